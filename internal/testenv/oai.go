package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const provenance = "http://www.openarchives.org/OAI/2.0/provenance"

// OAISchema validates OAI-PMH responses with xmllint and OAI-PMH.xsd, and their oai_dc
// elements with oai_dc.xsd. Where OAI-PMH.xsd requires an element of a format without a
// schema here, any element is accepted.
type OAISchema struct{ xmllint, file string }

// NewOAISchema returns the schema. Without xmllint or ../shared the test is skipped, as by
// Need and Shared.
func NewOAISchema(t testing.TB) *OAISchema {
	t.Helper()
	return newOAISchema(t, "lax")
}

// NewStrictOAISchema is NewOAISchema for responses with only oai_dc and provenance: it
// accepts no other element.
func NewStrictOAISchema(t testing.TB) *OAISchema {
	t.Helper()
	return newOAISchema(t, "strict")
}

func newOAISchema(t testing.TB, foreign string) *OAISchema {
	t.Helper()
	s := &OAISchema{xmllint: Need(t, "xmllint", "libxml2-utils"), file: filepath.Join(t.TempDir(), "answer.xsd")}
	for name, change := range map[string]*strings.Replacer{
		"OAI-PMH.xsd": strings.NewReplacer(`processContents="strict"`, `processContents="`+foreign+`"`),
		"oai_dc.xsd":  strings.NewReplacer(),
		// The schema of xml:lang is on the network.
		"simpledc20021212.xsd": strings.NewReplacer("http://www.w3.org/2001/03/xml.xsd", "xml.xsd"),
		"oai-identifier.xsd":   strings.NewReplacer(),
	} {
		text, err := os.ReadFile(Shared(t, "schemas/"+name))
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, name, change.Replace(string(text)))
	}
	s.write(t, "xml.xsd", `<schema xmlns="http://www.w3.org/2001/XMLSchema" targetNamespace="http://www.w3.org/XML/1998/namespace"><attribute name="lang" type="language"/></schema>`)
	known := "" // of the elements that are accepted unchecked elsewhere
	if foreign == "strict" {
		known = `<import namespace="` + provenance + `" schemaLocation="provenance.xsd"/>`
	}
	// Written after the text of the guideline on provenance.
	s.write(t, "provenance.xsd", `<schema xmlns="http://www.w3.org/2001/XMLSchema" xmlns:p="`+provenance+`" targetNamespace="`+provenance+`" elementFormDefault="qualified">
<element name="provenance"><complexType><sequence><element name="originDescription" type="p:origin"/></sequence></complexType></element>
<complexType name="origin"><sequence><element name="baseURL" type="anyURI"/><element name="identifier" type="string"/><element name="datestamp" type="string"/>
<element name="metadataNamespace" type="anyURI"/><element name="originDescription" type="p:origin" minOccurs="0"/></sequence>
<attribute name="harvestDate" type="dateTime" use="required"/><attribute name="altered" type="boolean" use="required"/></complexType></schema>`)
	s.write(t, filepath.Base(s.file), `<schema xmlns="http://www.w3.org/2001/XMLSchema">`+
		`<import namespace="http://www.openarchives.org/OAI/2.0/" schemaLocation="OAI-PMH.xsd"/>`+
		`<import namespace="http://www.openarchives.org/OAI/2.0/oai_dc/" schemaLocation="oai_dc.xsd"/>`+
		known+
		`<import namespace="http://www.openarchives.org/OAI/2.0/oai-identifier" schemaLocation="oai-identifier.xsd"/></schema>`)
	return s
}

// CheckAll fails the test for each response, by its name, that is not valid.
func (s *OAISchema) CheckAll(t testing.TB, answers map[string][]byte) {
	t.Helper()
	for name, answer := range answers {
		if err := s.Check(answer); err != nil {
			t.Errorf("%s: %v\n%s", name, err, answer)
		}
	}
}

func (s *OAISchema) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(s.file), name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Check returns the errors of xmllint about a response; nil when it is valid.
func (s *OAISchema) Check(answer []byte) error {
	cmd := exec.Command(s.xmllint, "--noout", "--nonet", "--schema", s.file, "-")
	cmd.Stdin = bytes.NewReader(answer)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("xmllint: %w\n%s", err, out)
	}
	return nil
}
