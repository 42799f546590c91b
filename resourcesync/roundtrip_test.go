package resourcesync

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
	"pgregory.net/rapid"
)

// anyDocument draws documents of every kind, dialect and content, right or wrong.
func anyDocument(t *rapid.T) *Document {
	d := &Document{
		Capability: rapid.SampledFrom([]Capability{Description, CapabilityList, ResourceList, ChangeList, ResourceDump, ChangeDump, ResourceDumpManifest,
			ChangeDumpManifest, ResourceListArchive, ChangeListArchive, ResourceDumpArchive, ChangeDumpArchive}).Draw(t, "capability"),
		Index:   rapid.Bool().Draw(t, "index"),
		Dialect: rapid.SampledFrom([]Dialect{Dialect11, DialectBeta, DialectSitemap}).Draw(t, "dialect"),
	}
	if d.Dialect == DialectSitemap {
		d.Capability = ""
	} else {
		d.At, d.Completed, d.From, d.Until = anyTime(t), anyTime(t), anyTime(t), anyTime(t)
		d.Links = rapid.SliceOfN(rapid.Custom(anyLink), 0, 3).Draw(t, "links")
		d.Extra = anyExtra(t)
	}
	if d.Dialect == DialectBeta {
		d.Modified = anyTime(t)
	}
	for range rapid.IntRange(0, 4).Draw(t, "entries") {
		e := Entry{Loc: "http://a.example/" + anyWord(t), LastMod: anyTime(t), ChangeFreq: anyWord(t), Priority: anyWord(t)}
		if d.Dialect != DialectSitemap {
			e.Metadata = anyMetadata(t, d.Dialect)
			e.Links = rapid.SliceOfN(rapid.Custom(anyLink), 0, 3).Draw(t, "links")
		}
		d.Entries = append(d.Entries, e)
	}
	if d.changelog() && d.Dialect == Dialect11 && len(d.Entries) > 0 {
		d.Entries[0].Metadata.Datetime = Micros(moment)
	}
	return d
}

func anyMetadata(t *rapid.T, in Dialect) Metadata {
	m := Metadata{Capability: Capability(anyWord(t)), At: anyTime(t), Completed: anyTime(t), From: anyTime(t), Until: anyTime(t),
		Change: rapid.SampledFrom([]string{"", Created, Updated, Deleted, "moved"}).Draw(t, "change"), Datetime: anyTime(t),
		Encoding: anyText(t), Hash: anyWord(t), Length: Bytes(rapid.Int64Min(-1).Draw(t, "length")), Path: anyText(t), Type: anyWord(t),
		ETag: anyText(t), ID: anyText(t), Title: anyText(t), Details: rapid.SampledFrom([]string{"", "{}", `{"lang":"<d&e>"}`}).Draw(t, "details"), Extra: anyExtra(t)}
	if in == DialectBeta {
		m.Modified = anyTime(t)
	}
	return m
}

func anyLink(t *rapid.T) Link {
	return Link{Rel: anyWord(t), Href: "urn:x:" + anyWord(t), Modified: anyTime(t), Encoding: anyText(t), Hash: anyWord(t),
		Length: Bytes(rapid.Int64Min(-1).Draw(t, "length")), Path: anyText(t), Pri: rapid.IntRange(0, 999_999).Draw(t, "pri"), Type: anyWord(t),
		Profile: anyText(t), ID: anyText(t), Extra: anyExtra(t)}
}

func anyTime(t *rapid.T) Datetime {
	if rapid.Bool().Draw(t, "absent") {
		return Datetime{}
	}
	at := time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns"))
	return datetime(at, int8(rapid.IntRange(0, 9).Draw(t, "digits")))
}

func anyWord(t *rapid.T) string { return rapid.StringMatching(`[a-z0-9<&"'>-]{0,5}`).Draw(t, "word") }

// legal is what a reader gets of s: what XML cannot hold has become U+FFFD.
func legal(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF {
			return 0xFFFD
		}
		return r
	}, string([]rune(s)))
}

// anyText has white space and what has to be escaped, but nothing that XML cannot
// hold.
func anyText(t *rapid.T) string {
	return legal(rapid.StringN(0, 5, -1).Draw(t, "text"))
}

func anyExtra(t *rapid.T) []xml.Attr {
	var out []xml.Attr
	for range rapid.IntRange(0, 3).Draw(t, "extra") {
		name := xml.Name{Space: rapid.SampledFrom([]string{"", "urn:a", "urn:b&", "http://www.w3.org/XML/1998/namespace"}).Draw(t, "space"),
			Local: rapid.SampledFrom([]string{"p", "q-1", "\u00e4"}).Draw(t, "local")}
		if !slices.ContainsFunc(out, func(a xml.Attr) bool { return a.Name == name }) {
			out = append(out, xml.Attr{Name: name, Value: anyText(t)})
		}
	}
	return out
}

// Whatever can be written is read as it was.
func TestWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDocument(t)
		written := rewrite(t, d)
		got, bad, err := readDocument(bytes.NewReader(written), ReadOptions{})
		if err != nil || len(bad) > 0 {
			t.Fatalf("%v %v\n%s", err, bad, written)
		}
		if !reflect.DeepEqual(shape(got), shape(d)) {
			t.Fatalf("got  %+v\nwant %+v\n%s", got, d, written)
		}
	})
}

// shape is d without the places of its entries, and with nil for what is empty.
func shape(d *Document) *Document {
	out := placeless(d)
	if len(out.Links) == 0 {
		out.Links = nil
	}
	if len(out.Entries) == 0 {
		out.Entries = nil
	}
	for i := range out.Entries {
		if len(out.Entries[i].Links) == 0 {
			out.Entries[i].Links = nil
		}
	}
	return out
}

// What has no form in XML is refused by both writers.
func TestUnwritable(t *testing.T) {
	attr := func(space, local string) []xml.Attr { return []xml.Attr{{Name: xml.Name{Space: space, Local: local}}} }
	entry := func(e Entry) *Document {
		return &Document{Capability: ResourceList, At: Micros(moment), Links: up(), Entries: []Entry{e}}
	}
	for name, d := range map[string]*Document{
		"name of a field":                 entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: attr("", "hash")}}),
		"name of a carried field":         entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: attr(CarriedNamespace, "id")}}),
		"name of a link's field":          entry(Entry{Loc: "http://a", Links: []Link{{Rel: "x", Href: "y", Extra: attr("", "pri")}}}),
		"no name":                         entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: attr("", "")}}),
		"name with a blank":               entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: attr("", `a b="c" d`)}}),
		"name with a colon":               entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: attr("", "a:b")}}),
		"namespace of declarations":       entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: attr("http://www.w3.org/2000/xmlns/", "a")}}),
		"namespaces that XML cannot hold": entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: append(attr("\x01", "a"), attr("\x02", "a")...)}}),
		"declaration":                     entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: attr("", "xmlns")}}),
		"twice":                           entry(Entry{Loc: "http://a", Metadata: Metadata{Extra: append(attr("u", "a"), attr("u", "a")...)}}),
		"on the head":                     {Capability: ResourceList, At: Micros(moment), Links: up(), Extra: attr("", "at")},
		"no loc":                          entry(Entry{}),
		"sitemap with capability":         {Dialect: DialectSitemap, Capability: ResourceList},
		"sitemap with metadata":           {Dialect: DialectSitemap, Entries: []Entry{{Loc: "http://a", Metadata: Metadata{Type: "a/b"}}}},
	} {
		for _, w := range []*Writer{NewWriter(io.Discard, d), tolerantWriter(io.Discard, d, nil)} {
			var rule *RuleError
			if err := w.Close(); !errors.As(err, &rule) || rule.Rule == "" || rule.Clause == "" {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The tolerant writer reports what the strict one refuses, by the same rules as a
// Reader.
func TestTolerantWriter(t *testing.T) {
	d := &Document{Capability: ChangeList, Entries: []Entry{{Loc: "http://a.example/1", Metadata: Metadata{Change: "moved"}}}}
	var written, read []string
	var b bytes.Buffer
	if err := tolerantWriter(&b, d, func(p Problem) { written = append(written, p.Rule) }).Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readDocument(&b, ReadOptions{Report: func(p Problem) { read = append(read, p.Rule) }}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"rs-from", "rs-up", "rs-change"}; !reflect.DeepEqual(written, want) {
		t.Errorf("written: %v, want %v", written, want)
	}
	if want := []string{"rs-change", "rs-datetime", "rs-from", "rs-up"}; !reflect.DeepEqual(read, want) {
		t.Errorf("read: %v, want %v", read, want)
	}
}

// FuzzRead: nothing panics, every fault has a place, whatever is read can be
// written and read again with the same meaning, and every entry, good or bad, can
// be read again from its Input.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/examples/*.xml")
	if err != nil || len(files) == 0 {
		f.Fatal("no fixtures", err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	f.Add([]byte(changesOf(`<url><loc>x</loc><lastmod>2026-01-02 03:04,5+0100</lastmod><rs:md rs:change="X" xmlns:x="u" x:x=""/></url><url/>`)))
	f.Add([]byte(`<URLSET><url xml:base="b/"><loc>c</loc><md xmlns="http://www.openarchives.org/rs" modified="2013"/></url></URLSET>`))
	limits := Limits{Document: 64 << 10, Depth: 20, Attributes: 10, Text: 10_000}
	f.Fuzz(func(t *testing.T, doc []byte) {
		d, bad, inputs, err := readInputs(doc, limits)
		if err != nil {
			var fault *DocumentError
			if !errors.As(err, &fault) || fault.Line < 1 || fault.Column < 1 || fault.Reason == "" {
				t.Fatalf("%#v", err)
			}
			return
		}
		if d.Dialect.considered() {
			return // not written; see FuzzConsidered
		}
		written := rewrite(t, d)
		again, alsoBad, _, err := readInputs(written, Limits{})
		if err != nil || len(alsoBad) > 0 || !reflect.DeepEqual(shape(again), shape(d)) {
			t.Fatalf("%v %v\n%+v\n%+v\n%s", err, alsoBad, again, d, written)
		}
		for i, input := range inputs {
			one, _, _, err := readInputs(input, Limits{})
			if err != nil || len(one.Entries) != 1 || !reflect.DeepEqual(shape(one).Entries[0], shape(d).Entries[i]) {
				t.Fatalf("%v\n%s\n%+v\n%+v", err, input, one, d.Entries[i])
			}
		}
		for _, b := range bad {
			_, again, _, err := readInputs(b.Input, Limits{})
			if err != nil || len(again) != 1 || again[0].Rule != b.Rule || again[0].Loc != b.Loc || again[0].ID != b.ID {
				t.Fatalf("%v %v\n%s", err, again, b.Input)
			}
		}
	})
}

// readInputs is readDocument with the input of each good entry.
func readInputs(doc []byte, limits Limits) (d *Document, bad []*EntryError, inputs [][]byte, err error) {
	r := NewReader(bytes.NewReader(doc), ReadOptions{URL: docURL, Limits: limits})
	var entries []Entry
	for {
		e, err := r.Next()
		var be *EntryError
		switch {
		case err == nil:
			entries = append(entries, *e)
			inputs = append(inputs, r.Input())
		case errors.As(err, &be):
			bad = append(bad, be)
		case err == io.EOF && r.framed > strictxml.FrameBudget(0):
			return nil, nil, nil, &DocumentError{Line: 1, Column: 1, Reason: "more entries than frames"}
		case err == io.EOF:
			d = r.Document()
			d.Entries = entries
			return d, bad, inputs, nil
		default:
			return nil, nil, nil, err
		}
	}
}

// FuzzDatetime: what is read is written in the recommended form and means the
// same, and what time.Parse reads as RFC 3339 is read as the same moment.
func FuzzDatetime(f *testing.F) {
	for _, s := range []string{"2026", "2026-01", "2026-01-02", "2026-01-02T03:04Z", "2026-01-02T03:04:05.1234567891+01:30", "2026-01-02 03:04:05,5", "0000-01-01T00:00:00+01:00", "9999-12-31T23:59:60Z", "2024-02-30"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, form := readTime(s)
		if b, also := readTime([]byte(s)); b != d || also != form {
			t.Fatalf("%q as bytes: %v", s, b)
		}
		theirs, err := time.Parse(time.RFC3339Nano, s)
		if form == noTime {
			if y := theirs.UTC().Year(); err == nil && y >= 0 && y <= 9999 && theirs.Format(time.RFC3339Nano) == s {
				t.Fatalf("%q is %v", s, theirs)
			}
			return
		}
		if err == nil && !d.Time().Equal(theirs) {
			t.Fatalf("%q: %v, want %v", s, d, theirs)
		}
		again, form := readTime(d.String())
		if again != d || form != asRecommended {
			t.Fatalf("%q: %v, again %v (%d)", s, d, again, form)
		}
	})
}

// tolerantWriter writes whatever a Reader has read: broken rules are reported and
// written all the same. Only what has no form in XML is a *RuleError.
func tolerantWriter(w io.Writer, head *Document, report func(Problem)) *Writer {
	wr := &Writer{}
	wr.broken = func(rule, found, expected string) {
		if report != nil {
			report(Problem{Rule: rule, Found: found, Expected: expected})
		}
	}
	wr.begin(w, head)
	return wr
}
