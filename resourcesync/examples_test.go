package resourcesync

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// examples are documents in the shape of those of the standard (01 to 33; 09 to 11
// are no documents of the framework but ways to find one), of figures 4 to 8 of
// D-Lib Magazine 19 (1/2), 2013, and of what else there is to be read.
func examples() map[string]exampleWant {
	return map[string]exampleWant{
		"01-resource-list":              {"resourcelist", false, Dialect11, 2, "rs-up"},
		"02-resource-list-metadata":     {"resourcelist", false, Dialect11, 2, "rs-up"},
		"03-change-list":                {"changelist", false, Dialect11, 3, "rs-up"},
		"04-resource-dump":              {"resourcedump", false, Dialect11, 1, "rs-up"},
		"05-resource-dump-manifest":     {"resourcedump-manifest", false, Dialect11, 2, "rs-up"},
		"06-capability-list":            {"capabilitylist", false, Dialect11, 3, ""},
		"07-source-description":         {"description", false, Dialect11, 1, ""},
		"08-resource-list-index":        {"resourcelist", true, Dialect11, 2, "rs-up"},
		"12-source-description":         {"description", false, Dialect11, 3, ""},
		"13-capability-list":            {"capabilitylist", false, Dialect11, 4, ""},
		"14-resource-list":              {"resourcelist", false, Dialect11, 2, ""},
		"15-resource-list-index":        {"resourcelist", true, Dialect11, 3, ""},
		"16-resource-list-part":         {"resourcelist", false, Dialect11, 2, ""},
		"17-resource-dump":              {"resourcedump", false, Dialect11, 3, ""},
		"18-resource-dump-manifest":     {"resourcedump-manifest", false, Dialect11, 2, ""},
		"19-open-change-list":           {"changelist", false, Dialect11, 4, "rs-datetime"},
		"20-change-list-index":          {"changelist", true, Dialect11, 3, ""},
		"21-closed-change-list":         {"changelist", false, Dialect11, 4, ""},
		"22-change-dump":                {"changedump", false, Dialect11, 3, ""},
		"23-change-dump-manifest":       {"changedump-manifest", false, Dialect11, 4, ""},
		"24-mirrors":                    {"changelist", false, Dialect10, 1, "rs-datetime"},
		"25-alternates":                 {"changelist", false, Dialect11, 1, ""},
		"26-canonical":                  {"changelist", false, Dialect11, 1, ""},
		"27-patches":                    {"changelist", false, Dialect10, 2, "rs-hash rs-datetime"},
		"28-metadata-about":             {"changelist", false, Dialect11, 2, ""},
		"29-versions":                   {"changelist", false, Dialect10, 1, "rs-datetime"},
		"30-collection":                 {"changelist", false, Dialect10, 1, "rs-datetime"},
		"31-original":                   {"changelist", false, Dialect10, 1, "rs-datetime"},
		"32-aggregator":                 {"changelist", false, Dialect10, 1, "rs-datetime"},
		"33-second-aggregator":          {"changelist", false, Dialect10, 1, "rs-datetime"},
		"dlib-4-resource-list":          {"resourcelist", false, DialectBeta, 2, ""},
		"dlib-5-resource-dump-manifest": {"resourcedump-manifest", false, DialectBeta, 2, ""},
		"dlib-6-change-list":            {"changelist", false, DialectBeta, 4, "rs-hash"},
		"dlib-7-change-dump-manifest":   {"changedump-manifest", false, DialectBeta, 4, ""},
		"dlib-8-capability-list":        {"capabilitylist", false, DialectBeta, 4, ""},
		"more-resourcelist-archive":     {"resourcelist-archive", false, Dialect11, 2, ""},
		"more-resourcedump-archive":     {"resourcedump-archive", false, Dialect11, 2, ""},
		"more-changelist-archive":       {"changelist-archive", false, Dialect11, 2, ""},
		"more-changedump-archive":       {"changedump-archive", false, Dialect11, 2, ""},
		"more-source-description-index": {"description", true, Dialect11, 2, ""},
		"more-resource-dump-index":      {"resourcedump", true, Dialect11, 2, ""},
		"more-change-dump-index":        {"changedump", true, Dialect11, 2, ""},
		"more-draft-change-list":        {"changelist", false, Dialect091, 2, ""},
		"more-draft-source-description": {"description", false, Dialect091, 1, ""},
		"more-sitemap":                  {"", false, DialectSitemap, 2, "rs-utc"},
		"more-sitemap-index":            {"", true, DialectSitemap, 2, "rs-utc"},
		"more-extended":                 {"changelist", false, Dialect11, 1, ""},
	}
}

type exampleWant struct {
	capability Capability
	index      bool
	dialect    Dialect
	entries    int
	rules      string // reported
}

// Every example is read, and written again unchanged in meaning: what an
// independent reader of XML finds in both is the same, and so is what is read of
// both.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("testdata/examples/*.xml")
	if err != nil || len(files) != len(examples()) {
		t.Fatalf("%d files for %d examples, %v", len(files), len(examples()), err)
	}
	for name, want := range examples() {
		t.Run(name, func(t *testing.T) {
			doc, err := os.ReadFile("testdata/examples/" + name + ".xml")
			if err != nil {
				t.Fatal(err)
			}
			got := readAll(t, doc)
			found := exampleWant{got.doc.Capability, got.doc.Index, got.doc.Dialect, len(got.doc.Entries), got.rules()}
			if len(got.bad) > 0 || found != want {
				t.Errorf("got %+v, bad %v, want %+v", found, got.bad, want)
			}
			written := rewrite(t, got.doc)
			if ours, theirs := meaning(t, written), meaning(t, doc); ours != theirs {
				t.Errorf("written again:\n%s\noriginal:\n%s", ours, theirs)
			}
			if again := readAll(t, written); !reflect.DeepEqual(placeless(again.doc), placeless(got.doc)) {
				t.Errorf("read again:\n%+v\nbefore:\n%+v", again.doc, got.doc)
			}
			// What breaks no rule the strict Writer takes too.
			if want.rules == "" {
				if _, err := got.doc.WriteTo(io.Discard); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// reading is everything that a document said.
type reading struct {
	doc      *Document
	bad      []*EntryError
	problems []Problem
}

func (g reading) rules() string {
	var ids []string
	for _, p := range g.problems {
		ids = append(ids, p.Rule)
	}
	return strings.Join(ids, " ")
}

const docURL = "http://example.org/dir/list.xml"

func readAll(tb testing.TB, doc []byte) reading {
	tb.Helper()
	var g reading
	var err error
	g.doc, g.bad, err = readDocument(bytes.NewReader(doc), ReadOptions{URL: docURL, Report: func(p Problem) { g.problems = append(g.problems, p) }})
	if err != nil {
		tb.Fatalf("%v\n%s", err, doc)
	}
	return g
}

// readDocument reads a document with its Entries. Bad entries are returned apart.
func readDocument(in io.Reader, o ReadOptions) (d *Document, bad []*EntryError, err error) {
	r := NewReader(in, o)
	var entries []Entry
	for {
		e, err := r.Next()
		var be *EntryError
		switch {
		case err == io.EOF:
			d = r.Document()
			d.Entries = entries
			return d, bad, nil
		case errors.As(err, &be):
			bad = append(bad, be)
		case err != nil:
			return nil, bad, err
		default:
			entries = append(entries, *e)
		}
	}
}

// failer is what testing.T and rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func rewrite(tb failer, d *Document) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := tolerantWriter(&b, d, nil).Close(); err != nil {
		tb.Fatalf("%v: %+v", err, d)
	}
	return b.Bytes()
}

// placeless is d without the places of its entries.
func placeless(d *Document) *Document {
	out := *d
	out.Entries = slices.Clone(d.Entries)
	for i := range out.Entries {
		out.Entries[i].Line, out.Entries[i].Column = 0, 0
	}
	return &out
}

// meaning writes down what encoding/xml finds in a document of the framework, in
// one way for all ways to write it: elements with their namespaces, metadata
// before links before entries, attributes sorted, times in UTC with nine digits,
// white space collapsed.
func meaning(t *testing.T, doc []byte) string {
	t.Helper()
	var root node
	if err := xml.Unmarshal(doc, &root); err != nil {
		t.Fatal(err)
	}
	return root.String()
}

// node is any element.
type node struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []node     `xml:",any"`
}

func (n node) String() string {
	var attrs, parts []string
	for _, a := range n.Attrs {
		if a.Name.Space != "xmlns" && a.Name.Local != "xmlns" {
			attrs = append(attrs, fmt.Sprintf("{%s}%s=%q", a.Name.Space, a.Name.Local, normal(a.Value)))
		}
	}
	slices.Sort(attrs)
	children := slices.DeleteFunc(slices.Clone(n.Children), func(c node) bool {
		return !strings.Contains(SitemapNamespace+Namespace+BetaNamespace, c.XMLName.Space)
	})
	slices.SortStableFunc(children, func(a, b node) int { return cmp.Compare(rank(a), rank(b)) })
	for _, c := range children {
		parts = append(parts, strings.ReplaceAll(c.String(), "\n", "\n "))
	}
	return fmt.Sprintf("<{%s}%s %s>%s\n%s", n.XMLName.Space, n.XMLName.Local, strings.Join(attrs, " "), normal(n.Text), strings.Join(parts, ""))
}

func rank(n node) int {
	return slices.Index([]string{"loc", "lastmod", "changefreq", "priority", "md", "ln", "url", "sitemap"}, n.XMLName.Local)
}

func normal(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, s); err == nil {
			return at.UTC().Format("2006-01-02T15:04:05.000000000Z")
		}
	}
	return s
}

// A few examples value by value, so that reading and writing cannot be wrong in
// the same way.
func TestExampleValues(t *testing.T) {
	at := func(day, hour int) Datetime { return Seconds(time.Date(2024, 5, day, hour, 0, 0, 0, time.UTC)) }
	up := []Link{{Rel: RelUp, Href: "https://maps.example.net/atlas/capabilities.xml"}}
	for name, want := range map[string]*Document{
		"24-mirrors": {Capability: ChangeList, Dialect: Dialect10, From: at(7, 0), Links: up, Entries: []Entry{{
			Loc: "https://maps.example.net/sheet/1", LastMod: at(7, 15), Line: 6, Column: 3,
			Metadata: Metadata{Change: Updated, Hash: "md5:c4ca4238a0b923820dcc509a6f75849b", Length: Bytes(4711), Type: "text/html"},
			Links: []Link{
				{Rel: RelDuplicate, Href: "https://north.example.net/sheet/1", Pri: 1, Modified: at(7, 15)},
				{Rel: RelDuplicate, Href: "https://south.example.net/sheet/1", Pri: 2, Modified: at(7, 15)},
				{Rel: RelDuplicate, Href: "gsiftp://grid.example.net/sheet/1", Pri: 3, Modified: Seconds(time.Date(2024, 5, 7, 15, 0, 41, 0, time.UTC))},
			}}}},
		"20-change-list-index": {Capability: ChangeList, Index: true, Dialect: Dialect11, From: at(5, 0), Links: up, Entries: []Entry{
			{Loc: "https://maps.example.net/atlas/changes-05.xml", Metadata: Metadata{From: at(5, 0), Until: at(6, 0)}, Line: 6, Column: 3},
			{Loc: "https://maps.example.net/atlas/changes-06.xml", Metadata: Metadata{From: at(6, 0), Until: at(7, 0)}, Line: 10, Column: 3},
			{Loc: "https://maps.example.net/atlas/changes-07.xml", Metadata: Metadata{From: at(7, 0)}, Line: 14, Column: 3},
		}},
		"dlib-8-capability-list": {Capability: CapabilityList, Dialect: DialectBeta, Modified: at(6, 11), Entries: []Entry{
			{Loc: "https://maps.example.net/atlas/resourcelist.xml", Metadata: Metadata{Capability: ResourceList}, Line: 5, Column: 3},
			{Loc: "https://maps.example.net/atlas/resourcedump.xml", Metadata: Metadata{Capability: ResourceDump}, Line: 9, Column: 3},
			{Loc: "https://maps.example.net/atlas/changelist.xml", Metadata: Metadata{Capability: ChangeList}, Line: 13, Column: 3},
			{Loc: "https://maps.example.net/atlas/changedump.xml", Metadata: Metadata{Capability: ChangeDump}, Line: 17, Column: 3},
		}},
		"more-extended": {Capability: ChangeList, Dialect: Dialect11, From: at(7, 0),
			Links: []Link{{Rel: RelUp, Href: up[0].Href, Extra: []xml.Attr{{Name: xml.Name{Space: "urn:example:extension", Local: "note"}, Value: "one & two"}}}},
			Extra: []xml.Attr{{Name: xml.Name{Space: "urn:example:extension", Local: "host"}, Value: "north"}},
			Entries: []Entry{{
				Loc: "https://maps.example.net/sheet/1", Line: 6, Column: 3,
				LastMod: datetime(time.Date(2024, 5, 7, 15, 0, 0, 25e7, time.UTC), 3),
				Metadata: Metadata{Change: Updated, Datetime: Micros(time.Date(2024, 5, 7, 15, 0, 0, 25e7, time.UTC)), Encoding: "gzip", Length: Bytes(0),
					ID: "urn:example:sheet:1", Title: "Sheet 1: <North>", Extra: []xml.Attr{
						{Name: xml.Name{Space: "urn:example:extension", Local: "quality"}, Value: "good"},
						{Name: xml.Name{Space: "http://www.w3.org/XML/1998/namespace", Local: "lang"}, Value: "en"}}},
				Links: []Link{{Rel: RelDescribedBy, Href: "https://maps.example.net/sheet/1.xml", Type: "application/xml", Profile: "http://purl.org/dc/terms/",
					Encoding: "br", Length: Bytes(17), Path: "/meta/1.xml", ID: "urn:example:sheet:1:meta", Extra: []xml.Attr{
						{Name: xml.Name{Space: "urn:example:extension", Local: "a"}, Value: "1"},
						{Name: xml.Name{Space: "urn:example:extension", Local: "b"}}}}}}}},
	} {
		doc, err := os.ReadFile("testdata/examples/" + name + ".xml")
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, doc); !reflect.DeepEqual(got.doc, want) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", name, got.doc, want)
		}
	}
}

// The examples as they stand in the texts of the standard and of D-Lib Magazine,
// where these lie beside the repository: read, written, read again. The texts went
// through character recognition, so what that did to the markup is undone first.
func TestStandard(t *testing.T) {
	for _, text := range []struct {
		file     string
		examples int // documents of the framework that the text shows whole
	}{
		{"specs/resourcesync.txt", 26},
		{"specs/dlib-2013-resource-synchronization.txt", 5},
	} {
		t.Run(text.file, func(t *testing.T) {
			raw, err := os.ReadFile(testenv.Shared(t, text.file))
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			joined := regexp.MustCompile("```\\s*```").ReplaceAllString(string(raw), "") // where a page ends
			for _, block := range regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(joined, -1) {
				doc := recognised(block[1])
				if !strings.HasPrefix(doc, "<?xml") || strings.Contains(doc, "<feed") || strings.Contains(doc, "<resync") {
					continue
				}
				n++
				got := readAll(t, []byte(doc))
				if len(got.bad) > 0 || len(got.doc.Entries) != strings.Count(doc, "<loc>") || !got.doc.Capability.known() {
					t.Errorf("%s: %v, %d entries\n%s", got.doc.Capability, got.bad, len(got.doc.Entries), doc)
				}
				again := rewrite(t, got.doc)
				if ours, theirs := meaning(t, again), meaning(t, []byte(doc)); ours != theirs {
					t.Errorf("written again:\n%s\noriginal:\n%s", ours, theirs)
				}
				if once := readAll(t, again).doc; !reflect.DeepEqual(placeless(once), placeless(got.doc)) {
					t.Errorf("read again:\n%+v\nbefore:\n%+v", once, got.doc)
				}
			}
			if n != text.examples {
				t.Errorf("%d examples, want %d", n, text.examples)
			}
		})
	}
}

// recognised undoes what character recognition did to markup.
func recognised(doc string) string {
	doc = strings.NewReplacer("</pre>", "", "</url>d", "</url>", "lengt.h=", "length=", "sha-\n256:", "sha-256:", `\verb|`, "", `"|`, `"`).Replace(doc)
	doc = regexp.MustCompile(`<(/?)1+(r?)(7?)1>|<(/?)1+rl>`).ReplaceAllString(doc, "<$1${4}url>")
	doc = regexp.MustCompile(`</url>\s*</url>`).ReplaceAllString(doc, "</url>")
	doc = regexp.MustCompile(`/>(\s*)href=`).ReplaceAllString(doc, `/><rs:ln rel="up"${1}href=`)
	// Start tags that were lost: a loc follows the end of what came before.
	lost := regexp.MustCompile(`(</url>|</sitemap>|/>)(\s*)<loc>`)
	tag := "<url>"
	if strings.Contains(doc, "<sitemapindex") {
		tag = "<sitemap>"
	}
	return strings.TrimSpace(lost.ReplaceAllString(doc, "$1"+tag+"$2<loc>"))
}

// What a Source of another hand publishes is read without a complaint, in each
// dialect, and the dialect is known where the markup shows it.
func TestFixtures(t *testing.T) {
	const changeList = "/changelist/1.xml"
	for dialect, want := range map[fixtures.Dialect]map[string]Dialect{
		fixtures.ResourceSync11: {fixtures.SourceDescription: Dialect11, fixtures.CapabilityList: Dialect11, fixtures.ResourceList: Dialect11,
			fixtures.ChangeListIndex: Dialect11, changeList: Dialect11},
		fixtures.ResourceSync10:  {fixtures.CapabilityList: Dialect11, changeList: Dialect10},
		fixtures.ResourceSync091: {fixtures.SourceDescription: Dialect091, fixtures.CapabilityList: Dialect11, changeList: Dialect10},
		fixtures.Beta2013: {fixtures.SourceDescription: DialectBeta, fixtures.CapabilityList: DialectBeta, fixtures.ResourceList: DialectBeta,
			fixtures.ChangeListIndex: DialectBeta, changeList: DialectBeta},
		fixtures.PlainSitemap: {fixtures.Sitemap: DialectSitemap},
	} {
		s := fixtures.NewSource(fixtures.SourceOptions{Dialect: dialect, Carry: true})
		for _, name := range []string{"a", "b"} {
			s.Create(fixtures.Resource{Name: name})
		}
		s.Delete("a")
		for path, want := range want {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil))
			if w.Code != http.StatusOK {
				t.Errorf("%s: %s: %d", dialect, path, w.Code)
				continue
			}
			rules := ""
			if want == Dialect10 {
				rules = ruleDatetime
			}
			if got := readAll(t, w.Body.Bytes()); got.doc.Dialect != want || len(got.doc.Entries) == 0 || len(got.bad) > 0 || got.rules() != rules {
				t.Errorf("%s: %s is %s with %d entries: %v %v", dialect, path, got.doc.Dialect, len(got.doc.Entries), got.bad, got.problems)
			}
		}
	}
}
