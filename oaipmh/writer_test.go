package oaipmh

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

var moment = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

const sampleBase = "https://repository.example/oai?a=1&b=2"

const sampleDC = `<oai_dc:dc xmlns:oai_dc="http://www.openarchives.org/OAI/2.0/oai_dc/" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/oai_dc/ http://www.openarchives.org/OAI/2.0/oai_dc.xsd"><dc:title xml:lang="de">Karten &amp; Pläne</dc:title></oai_dc:dc>`

func sampleRecord() *Record {
	return &Record{Header: Header{Identifier: "oai:repository.example:1", Datestamp: moment, Sets: []string{"maps", "maps:old"}},
		Metadata: []byte(sampleDC), Provenance: &Provenance{BaseURL: "https://origin.example/oai?x&y", Identifier: "oai:origin.example:<1>", Datestamp: "2025-01-01",
			MetadataNamespace: DCNamespace, Harvested: moment, Altered: true, Origin: &Provenance{BaseURL: "https://first.example/", Identifier: "urn:1", Datestamp: "2024-01-01", MetadataNamespace: DCNamespace, Harvested: moment}}}
}

func deletedRecord() *Record {
	return &Record{Header: Header{Identifier: "urn:x:2", Datestamp: moment, Day: true, Deleted: true}}
}

// answers are samples of every kind, by the names of their golden files.
func answers() map[string]func(w *bytes.Buffer) error {
	of := func(q *Request, write func(*Writer) error) func(*bytes.Buffer) error {
		return func(b *bytes.Buffer) error {
			w := NewWriter(b, moment, sampleBase, q)
			if err := write(w); err != nil {
				return err
			}
			return w.Close()
		}
	}
	return map[string]func(*bytes.Buffer) error{
		"identify": of(&Request{Verb: Identify}, func(w *Writer) error {
			return w.Identity(&Identity{Name: "Maps <& plans>", BaseURL: sampleBase, AdminEmails: []string{"a@a.example", "b@b.example"}, Earliest: moment, Deleted: DeletedPersistent,
				Granularity: Second, Compression: []string{"gzip"}, Descriptions: [][]byte{[]byte(sampleDC)}})
		}),
		"formats": of(&Request{Verb: ListMetadataFormats, Identifier: "urn:x:1"}, func(w *Writer) error {
			return errors.Join(w.Format(&Format{DC, "http://www.openarchives.org/OAI/2.0/oai_dc.xsd", DCNamespace}), w.Format(&Format{"mods", "", "http://www.loc.gov/mods/v3"}))
		}),
		"sets": of(&Request{Verb: ListSets, Token: "a&b"}, func(w *Writer) error {
			return errors.Join(w.Set(&Set{Spec: "maps", Name: "Maps & plans", Descriptions: [][]byte{[]byte(sampleDC)}}), w.Set(&Set{Spec: "maps:old"}), w.Token(&Token{Cursor: 7}))
		}),
		"record":  of(&Request{Verb: GetRecord, Identifier: "oai:repository.example:1", Prefix: DC}, func(w *Writer) error { return w.Record(sampleRecord()) }),
		"headers": of(&Request{Verb: ListIdentifiers, Prefix: DC, Set: "maps"}, func(w *Writer) error { return errors.Join(w.Record(sampleRecord()), w.Record(deletedRecord())) }),
		"records": of(&Request{Verb: ListRecords, Prefix: DC, From: moment, Until: moment, Granularity: Second}, func(w *Writer) error {
			return errors.Join(w.Record(sampleRecord()), w.Record(deletedRecord()), w.Token(&Token{Value: "x<y", Size: 9, Cursor: 0, Expires: moment}))
		}),
		"day": of(&Request{Verb: ListRecords, Prefix: DC, From: moment}, func(w *Writer) error { return w.Record(deletedRecord()) }),
		"errors": of(nil, func(w *Writer) error {
			return w.Errors(&Error{Code: BadArgument, Text: "a < b\x00"}, &Error{Code: BadArgument, Text: "c"})
		}),
		"none": of(&Request{Verb: ListRecords, Prefix: DC}, func(w *Writer) error { return w.Errors(&Error{Code: NoRecordsMatch}) }),
	}
}

func TestWriterGolden(t *testing.T) {
	for name, write := range answers() {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		testenv.Golden(t, *update, filepath.Join("testdata", "golden", name+".xml"), b.Bytes())
	}
}

func TestWriterSchema(t *testing.T) {
	docs := map[string][]byte{}
	for name, write := range answers() {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		docs[name] = b.Bytes()
	}
	testenv.NewStrictOAISchema(t).CheckAll(t, docs)
}

// Each of these would break the protocol, and is refused.
func TestWriterRefuses(t *testing.T) {
	list, get, formats, sets, identify := &Request{Verb: ListRecords}, &Request{Verb: GetRecord}, &Request{Verb: ListMetadataFormats}, &Request{Verb: ListSets}, &Request{Verb: Identify}
	record := func(change func(*Record)) func(*Writer) error {
		r := sampleRecord()
		change(r)
		return func(w *Writer) error { return w.Record(r) }
	}
	identity := func(change func(*Identity)) func(*Writer) error {
		id := Identity{BaseURL: sampleBase, AdminEmails: []string{"a@a.example"}, Earliest: moment, Deleted: DeletedNo}
		change(&id)
		return func(w *Writer) error { return w.Identity(&id) }
	}
	for name, c := range map[string]struct {
		q      *Request
		write  func(*Writer) error
		clause string
	}{
		"nothing":          {list, func(*Writer) error { return nil }, "3.2"},
		"a token alone":    {list, func(w *Writer) error { return w.Token(&Token{}) }, "3.2"},
		"no error":         {nil, func(w *Writer) error { return w.Errors() }, "3.6"},
		"an unknown error": {nil, func(w *Writer) error { return w.Errors(&Error{Code: "worse"}) }, "3.6"},
		"an error after records": {list, func(w *Writer) error {
			return errors.Join(w.Record(deletedRecord()), w.Errors(&Error{Code: NoRecordsMatch}))
		}, "3.6"},
		"a record to no request": {nil, func(w *Writer) error { return w.Record(deletedRecord()) }, "3.2"},
		"a record after a token": {list, func(w *Writer) error {
			return errors.Join(w.Record(deletedRecord()), w.Token(&Token{}), w.Record(deletedRecord()))
		}, "3.2"},
		"another verb":             {sets, func(w *Writer) error { return w.Record(deletedRecord()) }, "3.2"},
		"two records":              {get, func(w *Writer) error { return errors.Join(w.Record(deletedRecord()), w.Record(deletedRecord())) }, "4.1"},
		"no identifier":            {list, record(func(r *Record) { r.Identifier = "" }), "2.4"},
		"no URI":                   {list, record(func(r *Record) { r.Identifier = "not a uri" }), "2.4"},
		"no datestamp":             {list, record(func(r *Record) { r.Datestamp = time.Time{} }), "2.5"},
		"year 10000":               {list, record(func(r *Record) { r.Datestamp = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }), "2.5"},
		"setSpec":                  {list, record(func(r *Record) { r.Sets = []string{"a b"} }), "2.6"},
		"no metadata":              {list, record(func(r *Record) { r.Metadata = nil }), "2.5"},
		"deleted with metadata":    {list, record(func(r *Record) { r.Deleted = true }), "2.5.1"},
		"metadata of no namespace": {list, record(func(r *Record) { r.Metadata = []byte("<a/>") }), "3.4"},
		"metadata of ours":         {list, record(func(r *Record) { r.Metadata = []byte("<a xmlns='" + Namespace + "'/>") }), "3.4"},
		"two elements":             {list, record(func(r *Record) { r.Metadata = []byte("<a xmlns='urn:a'/><b xmlns='urn:a'/>") }), "2.5"},
		"not well-formed":          {list, record(func(r *Record) { r.Metadata = []byte("<a xmlns='urn:a'>") }), "2.5"},
		"a document type":          {list, record(func(r *Record) { r.Metadata = []byte("<!DOCTYPE a><a xmlns='urn:a'/>") }), "2.5"},
		"about of no namespace":    {list, record(func(r *Record) { r.About = [][]byte{[]byte("<a/>")} }), "3.2"},
		"about without an element": {list, record(func(r *Record) { r.About = [][]byte{[]byte("a")} }), "3.2"},
		"prefix":                   {formats, func(w *Writer) error { return w.Format(&Format{"a b", "", "urn:a"}) }, "3.4"},
		"format of no namespace":   {formats, func(w *Writer) error { return w.Format(&Format{"a", "", ""}) }, "3.4"},
		"schema":                   {formats, func(w *Writer) error { return w.Format(&Format{"a", "a b", "urn:a"}) }, "3.4"},
		"set":                      {sets, func(w *Writer) error { return w.Set(&Set{Spec: "a::b"}) }, "2.6"},
		"no mail":                  {identify, identity(func(id *Identity) { id.AdminEmails = nil }), "4.2"},
		"bad mail":                 {identify, identity(func(id *Identity) { id.AdminEmails[0] = "https://a.example" }), "4.2"},
		"base URL":                 {identify, identity(func(id *Identity) { id.BaseURL = "oai" }), "4.2"},
		"earliest":                 {identify, identity(func(id *Identity) { id.Earliest = time.Time{} }), "4.2"},
		"deletedRecord":            {identify, identity(func(id *Identity) { id.Deleted = "maybe" }), "2.5.1"},
	} {
		w := NewWriter(&bytes.Buffer{}, moment, sampleBase, c.q)
		err := c.write(w)
		if err == nil {
			err = w.Close()
		}
		var broken *RuleError
		if !errors.As(err, &broken) || broken.Clause != c.clause {
			t.Errorf("%s: %v, want a broken rule of %s", name, err, c.clause)
		}
		if again := w.Close(); again == nil {
			t.Errorf("%s: it could be closed after it was refused", name)
		}
	}
	for name, w := range map[string]*Writer{"date": NewWriter(&bytes.Buffer{}, time.Time{}, sampleBase, list), "base": NewWriter(&bytes.Buffer{}, moment, "/oai", list)} {
		if err := w.Record(deletedRecord()); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
}

// A record means the same inside of the answer as outside of it, and keeps its bytes.
func TestMetadataKeepsItsMeaning(t *testing.T) {
	for _, doc := range []string{
		`<a xmlns="urn:a"><b/></a>`,
		`<a xmlns = 'urn:a'><b xmlns=""/></a>`,
		`<p:a xmlns:p="urn:a"><b c="d"/></p:a>`,
		`<p:a xmlns:p="urn:a" x="a xmlns='u'"><b/></p:a>`,
		`<p:a xmlns:p="urn:a"><p:b/></p:a>`,
		`<p:a xmlns:p="urn:a"><b xmlns="urn:b"><c/></b><!-- <x> --></p:a>`,
		`<p:a xmlns:p="urn:a" xml:lang="de" xml:space="preserve"><oai:b xmlns:oai="urn:b"/>` + "\r\n\t&#13;<![CDATA[<x>]]></p:a>",
		`<p:a xmlns:p="urn:a"><!--` + strings.Repeat("x", 100_000) + `--><b/></p:a>`,
	} {
		var b bytes.Buffer
		w := NewWriter(&b, moment, sampleBase, &Request{Verb: GetRecord})
		rec := &Record{Header: deletedRecord().Header, Metadata: []byte(doc)}
		rec.Deleted = false
		if err := errors.Join(w.Record(rec), w.Close()); err != nil {
			t.Errorf("%.80s: %v", doc, err)
			continue
		}
		if !bytes.Contains(b.Bytes(), []byte("metadata>"+doc+"</")) && !bytes.Contains(b.Bytes(), []byte(`xmlns="">`+doc+"</")) {
			t.Errorf("%.80s: its bytes are not in the answer:\n%s", doc, b.Bytes())
		}
		var answer struct {
			Inside []byte `xml:",innerxml"`
		}
		if err := xml.Unmarshal(b.Bytes(), &answer); err != nil {
			t.Errorf("%.80s: %v", doc, err)
		}
		if got, want := namesIn(t, b.Bytes(), "metadata"), namesIn(t, []byte(doc), ""); got != want {
			t.Errorf("%.80s: inside it has the names\n%s\nand outside\n%s", doc, got, want)
		}
	}
}

// namesIn returns the names of the elements inside of another one, in order, with
// namespaces.
func namesIn(t *testing.T, doc []byte, inside string) string {
	t.Helper()
	var names strings.Builder
	d, in := xml.NewDecoder(bytes.NewReader(doc)), inside == ""
	for {
		token, err := d.Token()
		if err != nil {
			return names.String()
		}
		switch e := token.(type) {
		case xml.StartElement:
			if in {
				fmt.Fprintf(&names, "%s %s\n", e.Name.Space, e.Name.Local)
			}
			in = in || e.Name.Local == inside && e.Name.Space == Namespace
		case xml.EndElement:
			in = in && (inside == "" || e.Name.Local != inside)
		}
	}
}

func TestReadMetadata(t *testing.T) {
	var again MetadataReader
	for _, c := range []struct{ doc, kind, want string }{
		{"\ufeff<?xml version='1.0'?>\n<!-- x --><a xmlns='urn:a'>ü</a>\n<?p?>", "", "<a xmlns='urn:a'>ü</a>"},
		{"<?xml version='1.0' encoding='iso-8859-1'?><a>\xfc</a>", "text/xml", "<a>ü</a>"},
		{"<a>\xfc</a>", "text/xml; charset=iso-8859-1", "<a>ü</a>"},
		{"<a>\xfc</a>", "", ""},
		{"<!DOCTYPE a><a/>", "", ""},
		{"<a/><b/>", "", ""},
		{"<a/>x", "", ""},
		{"<a>", "", ""},
		{"", "", ""},
	} {
		got, root, err := ReadMetadata([]byte(c.doc), c.kind)
		if (err != nil) != (c.want == "") || string(got) != c.want || err == nil && root.Local != "a" {
			t.Errorf("%q: %q %v, %v; want %q", c.doc, got, root, err, c.want)
		}
		if err != nil && !errors.As(err, new(*DocumentError)) {
			t.Errorf("%q: %T", c.doc, err)
		}
		other, name, bad := again.Read([]byte(c.doc), c.kind)
		if string(other) != string(got) || name != root || fmt.Sprint(bad) != fmt.Sprint(err) {
			t.Errorf("%q: one that has read others read %q %v, %v", c.doc, other, name, bad)
		}
	}
}

// A record is read out of an answer as it was written, byte for byte: what the answer
// declares around it is none of its own.
func TestWrittenRecordsAreReadAgain(t *testing.T) {
	for _, doc := range []string{
		sampleDC,
		`<a xmlns="urn:a"><b/></a>`,
		`<p:a xmlns:p="urn:a"><b c="xsi:x"/>xsi: oai: text</p:a>`,
		`<p:a xmlns:p="urn:a"><p:b xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:nil="true"/></p:a>`,
		`<p:a xmlns:p="urn:a"><b><oai:c xmlns:oai="urn:oai"/></b></p:a>`,
		`<p:a xmlns:p="urn:a"><b xmlns="urn:b"><c/></b></p:a>`,
		`<a xmlns="urn:a"><b xmlns=""><c/></b></a>`,
		`<p:a xmlns:p="urn:a" xml:lang="de"> &#13;&lt;<![CDATA[<x>]]>` + "\r\n<!-- c --></p:a>",
	} {
		var b bytes.Buffer
		w := NewWriter(&b, moment, sampleBase, &Request{Verb: ListRecords, Prefix: "p"})
		rec := &Record{Header: Header{Identifier: "urn:x:1", Datestamp: moment}, Metadata: []byte(doc), Provenance: sampleRecord().Provenance}
		if err := errors.Join(w.Record(rec), w.Record(deletedRecord()), w.Token(&Token{Value: "t", Cursor: -1}), w.Close()); err != nil {
			t.Errorf("%.80s: %v", doc, err)
			continue
		}
		r := NewReader(&b, ReadOptions{Strict: true, Report: func(p Problem) {
			if p.Rule != ruleSchema { // these records have no schema
				t.Errorf("%.80s: %v", doc, p)
			}
		}})
		got, err := r.Next()
		if err != nil || string(got.Metadata) != doc || got.Provenance == nil || got.Provenance.First().Identifier != "urn:1" {
			t.Errorf("%s\nis read as\n%v, %v", doc, got, err)
			continue
		}
		if second, err := r.Next(); err != nil || !second.Deleted {
			t.Errorf("%.80s: then %v, %v", doc, second, err)
		}
		if _, err := r.Next(); err != io.EOF || r.Answer().Token == nil || r.Answer().Token.Value != "t" {
			t.Errorf("%.80s: at its end %v", doc, err)
		}
	}
}
