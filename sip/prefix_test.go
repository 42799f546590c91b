package sip

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// inScope draws the attributes that declare prefixes, on the elements around a
// record, and what each prefix means inside.
func inScope(t *rapid.T) (declared [4]string, meaning map[string]string) {
	prefix := rapid.StringMatching("[a-e\u00e9\u4e2d][a-c1.-]?")
	meaning = map[string]string{}
	for i := range declared {
		for _, p := range rapid.SliceOfNDistinct(prefix, 0, 6, rapid.ID).Draw(t, "prefixes") {
			meaning[p] = rapid.StringMatching("urn:[a-c]&<'").Draw(t, "namespace")
			declared[i] = string(strictxml.AppendAttr([]byte(declared[i]), " xmlns:"+p+`="`, meaning[p]))
		}
	}
	return declared, meaning
}

// uses draws a piece of a record that uses a prefix in one of the ways there are.
func uses(t *rapid.T, p string) string {
	return rapid.SampledFrom([]func() string{
		func() string { return "<" + p + ":x/>" },
		func() string { return "<x " + p + ":y=''/>" },
		func() string { return "<x y='" + p + ":z'/>" },
		func() string { return "<x y='/" + p + ":z[1]/zz'/>" },
		func() string { return "<x>" + p + ":z</x>" },
		func() string { return "<x><![CDATA[" + p + ":z]]></x>" },
	}).Draw(t, "use")()
}

// TestUsedPrefixes: whatever is declared around a record, each prefix that it uses
// is declared on it as what it was, and nothing is that was not in scope.
func TestUsedPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		declared, meaning := inScope(t)
		var inner strings.Builder
		var used []string
		for p := range meaning {
			if rapid.Bool().Draw(t, "used") {
				used = append(used, p)
				inner.WriteString(uses(t, p))
			}
		}
		given := "<r>" + inner.String() + "</r>"
		doc := fmt.Sprintf(`<S:Envelope xmlns:S="`+soapNamespace+`"%s><S:Body%s><I:ingest-request xmlns:I="`+Namespace+`"%s><I:record%s>%s</I:record></I:ingest-request></S:Body></S:Envelope>`,
			declared[0], declared[1], declared[2], declared[3], given)
		m, err := ReadMessage(strings.NewReader(doc), ReadOptions{})
		if err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		kept := m.Request.Record.XML
		if !bytes.HasSuffix(kept, []byte(given[len("<r"):])) {
			t.Fatalf("%s\nis not at the end of %s", given, kept)
		}
		has := declarations(t, kept)
		for _, p := range used {
			if has[p] != meaning[p] {
				t.Fatalf("%s\nprefix %s is %q in %s\nwant %q", doc, p, has[p], kept, meaning[p])
			}
		}
		for p, space := range has {
			if meaning[p] != space {
				t.Fatalf("%s\nprefix %s is %q in %s\nwant %q", doc, p, space, kept, meaning[p])
			}
		}
		again, err := ReadMessage(bytes.NewReader(AppendMessage(nil, m)), ReadOptions{})
		if err != nil || !bytes.Equal(again.Request.Record.XML, kept) {
			t.Fatalf("%s\nis again %s, %v", kept, describe(again), err)
		}
	})
}

// declarations returns what the root's start tag declares.
func declarations(t *rapid.T, doc []byte) map[string]string {
	token, err := xml.NewDecoder(bytes.NewReader(doc)).RawToken()
	root, ok := token.(xml.StartElement)
	if err != nil || !ok {
		t.Fatalf("%s: %v", doc, err)
	}
	has := map[string]string{}
	for _, a := range root.Attr {
		if a.Name.Space == "xmlns" {
			has[a.Name.Local] = a.Value
		}
	}
	return has
}

// TestCanonical: by the canonical forms, in which declarations that change nothing
// are left out, a message in which the record is replaced by what was kept of it is
// the same message, and what was kept means the same by itself.
func TestCanonical(t *testing.T) {
	xmllint := testenv.Need(t, "xmllint", "libxml2-utils")
	canonical := func(doc, form string) string {
		cmd := exec.Command(xmllint, form, "-")
		cmd.Stdin = strings.NewReader(doc)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", doc, err, out)
		}
		return string(out)
	}
	const around = `<S:Envelope xmlns:S="` + soapNamespace + `" xmlns="urn:d" xmlns:w14="urn:w14?a=1&amp;b=2" xmlns:p="urn:p" xmlns:unused="urn:unused"><S:Body>` +
		`<I:ingest-request xmlns:I="` + Namespace + `" xmlns:w14="urn:w14/2"><I:record>%s</I:record></I:ingest-request></S:Body></S:Envelope>`
	for record, alone := range map[string]string{
		`<p:r t="w14:x">p:x</p:r>`:                   `<p:r xmlns:p="urn:p" xmlns:w14="urn:w14/2" t="w14:x">p:x</p:r>`,
		`<p:r><w14:a xmlns:w14="urn:n"/></p:r>`:      `<p:r xmlns:p="urn:p" xmlns:w14="urn:w14/2"><w14:a xmlns:w14="urn:n"/></p:r>`,
		`<r xmlns=""><a xmlns="urn:d"/></r>`:         `<r><a xmlns="urn:d"/></r>`,
		"<p:r\r\n p:a = '\"' > <![CDATA[1]]></p:r >": `<p:r xmlns:p="urn:p" p:a='"'> 1</p:r>`,
	} {
		given := fmt.Sprintf(around, record)
		m, err := ReadMessage(strings.NewReader(given), ReadOptions{})
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		kept := string(m.Request.Record.XML)
		for _, form := range []string{"--c14n", "--exc-c14n"} {
			if got, want := canonical(fmt.Sprintf(around, kept), form), canonical(given, form); got != want {
				t.Errorf("%s: %s\nhas become %s", form, want, got)
			}
			if got, want := canonical(kept, form), canonical(alone, form); got != want {
				t.Errorf("%s: kept %s\nwant %s", form, got, want)
			}
		}
	}
}
