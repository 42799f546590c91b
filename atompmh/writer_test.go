package atompmh

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

var written = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// sampleHead has what a head must have.
func sampleHead() *Feed {
	return &Feed{ID: "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1", Title: "Maps & plans", Metadata: Metadata{Authors: []Person{{Name: "The library"}}}, Updated: written}
}

func carriedAttrs(pairs ...string) (attrs []xml.Attr) {
	for i := 0; i < len(pairs); i += 2 {
		attrs = append(attrs, xml.Attr{Name: xml.Name{Space: CarriedNamespace, Local: pairs[i]}, Value: pairs[i+1]})
	}
	return attrs
}

func activeEntry() Entry {
	return Entry{Kind: Active, ID: "urn:x:1", CarriedID: "1", CarriedModified: "2024-01-01T00:00:00Z", CarriedChangeFreq: "weekly", EntryLanguage: "de",
		Published: written.Add(-2 * time.Hour), Edited: written.Add(-3 * time.Hour), Title: "A <b>", Updated: written, Metadata: Metadata{
			Language: "en-GB", Authors: []Person{{Name: "A", URI: "https://a.example/?a&b", Email: "a@a.example"}, {Name: "B & C"}}, Contributors: []Person{{Name: "D"}},
			Rights: Text{"© us", "fr"}, Categories: []Category{{"maps", "urn:scheme", "Maps & plans"}, {Term: "old"}}}, Links: []Link{
			{Rel: "alternate", Href: "https://a.example/1?x&y", Type: "text/xml", Hreflang: "en", Title: "one", Length: 0, Other: carriedAttrs("hash", "md5:0f", "encoding", "gzip", "profile", "urn:p", "pri", "7")},
			{Rel: RelFurtherAlternate, Href: "https://a.example/2", Type: "text/xml", Hreflang: "en", Length: NoLength},
			{Rel: "via", Href: "https://o.example/1", Length: NoLength, Other: carriedAttrs("modified", "2025-01-01T00:00:00.000000007Z", "hash", "md5:0e", "length", "9")},
			{Rel: "describedby", Href: "https://a.example/3", Length: NoLength, Other: carriedAttrs("id", "3")},
		}, Source: &Source{ID: "urn:f", Title: "F", Updated: written.Add(-time.Hour), Metadata: Metadata{Language: "de", Authors: []Person{{Name: "Them"}},
			Categories: []Category{{Term: "all"}}, Rights: Text{"theirs", "de"}}, Links: []Link{{Rel: "self", Href: "https://o.example/feed", Type: "application/atom+xml", Length: NoLength}}}}
}

func deletionEntry() Entry {
	return Entry{Kind: Deletion, ID: "urn:x:2", Title: "B", Updated: written.Add(-time.Microsecond), DeletedBy: Person{"The <editor>", "https://e.example/", "e@e.example"},
		Comment: Text{"Withdrawn & gone", "en"}, Links: []Link{{Rel: "successor-version", Href: "https://a.example/4", Length: NoLength}}, Content: &Content{Empty: true}}
}

func write(head *Feed, entries ...Entry) ([]byte, error) {
	var b bytes.Buffer
	w := NewWriter(&b, head)
	for i := range entries {
		if err := w.Entry(&entries[i]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func TestWriter(t *testing.T) {
	head := sampleHead()
	head.Generator, head.Archive = "bridge", true
	head.Self, head.Current, head.PrevArchive, head.NextArchive = "https://a.example/2", "https://a.example/", "https://a.example/1", "https://a.example/3"
	// The four stand in Links too when a head was read; they are written once.
	head.Links = []Link{{Rel: "self", Href: "https://a.example/2", Length: NoLength}, {Rel: "license", Href: "https://a.example/l", Length: NoLength}}
	got, err := write(head, activeEntry(), deletionEntry())
	if err != nil {
		t.Fatal(err)
	}
	const want = `<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0" xmlns:b="urn:x-bridge:terms:1">
 <id>urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1</id>
 <title>Maps &amp; plans</title>
 <updated>2026-01-02T03:04:05.000006Z</updated>
 <author><name>The library</name></author>
 <generator>bridge</generator>
 <fh:archive/>
 <link rel="self" href="https://a.example/2"/>
 <link rel="current" href="https://a.example/"/>
 <link rel="prev-archive" href="https://a.example/1"/>
 <link rel="next-archive" href="https://a.example/3"/>
 <link rel="license" href="https://a.example/l"/>
 <entry b:id="1" b:modified="2024-01-01T00:00:00Z" b:changefreq="weekly" xml:lang="de">
  <id>urn:x:1</id>
  <title xml:lang="en-GB">A &lt;b&gt;</title>
  <updated>2026-01-02T03:04:05.000006Z</updated>
  <published>2026-01-02T01:04:05.000006Z</published>
  <app:edited xmlns:app="http://www.w3.org/2007/app">2026-01-02T00:04:05.000006Z</app:edited>
  <author><name>A</name><uri>https://a.example/?a&amp;b</uri><email>a@a.example</email></author>
  <author><name>B &amp; C</name></author>
  <contributor><name>D</name></contributor>
  <category term="maps" scheme="urn:scheme" label="Maps &amp; plans"/>
  <category term="old"/>
  <rights xml:lang="fr">© us</rights>
  <link rel="alternate" href="https://a.example/1?x&amp;y" type="text/xml" hreflang="en" title="one" length="0" b:hash="md5:0f" b:encoding="gzip" b:profile="urn:p" b:pri="7"/>
  <link rel="urn:x-bridge:terms:1:alternate" href="https://a.example/2" type="text/xml" hreflang="en"/>
  <link rel="via" href="https://o.example/1" b:modified="2025-01-01T00:00:00.000000007Z" b:hash="md5:0e" b:length="9"/>
  <link rel="describedby" href="https://a.example/3" b:id="3"/>
  <source><id>urn:f</id><title xml:lang="de">F</title><updated>2026-01-02T02:04:05.000006Z</updated><author><name>Them</name></author><category term="all"/><rights xml:lang="de">theirs</rights><link rel="self" href="https://o.example/feed" type="application/atom+xml"/></source>
 </entry>
 <entry>
  <id>urn:x:2</id>
  <title>B</title>
  <updated>2026-01-02T03:04:05.000005Z</updated>
  <link rel="successor-version" href="https://a.example/4"/>
  <at:by xmlns:at="http://purl.org/atompub/tombstones/1.0"><name>The &lt;editor&gt;</name><uri>https://e.example/</uri><email>e@e.example</email></at:by>
  <at:comment xmlns:at="http://purl.org/atompub/tombstones/1.0" xml:lang="en">Withdrawn &amp; gone</at:comment>
  <content/>
 </entry>
</feed>
`
	if string(got) != want {
		t.Errorf("got\n%s", got)
	}
}

// What is written is read back as it was, and breaks no rule.
func TestWriterIsRead(t *testing.T) {
	head := sampleHead()
	head.Generator, head.Archive = "bridge", true
	head.Self, head.Current, head.PrevArchive, head.NextArchive = "https://a.example/2", "https://a.example/", "https://a.example/1", "https://a.example/3"
	doc, err := write(head, activeEntry(), deletionEntry())
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(doc), ReadOptions{URL: "https://a.example/2", Report: func(p Problem) { t.Error(p) }})
	for _, want := range []Entry{activeEntry(), deletionEntry()} {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got.Line, got.Column, got.UpdatedRaw = 0, 0, ""
		if len(got.Links) == 0 {
			got.Links = nil
		}
		if got.Source != nil {
			got.Source.UpdatedRaw = ""
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("got\n%+v\nwant\n%+v", *got, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatal(err)
	}
	f := r.Feed()
	f.Links, f.UpdatedRaw = nil, ""
	if !reflect.DeepEqual(f, head) {
		t.Errorf("got\n%+v\nwant\n%+v", f, head)
	}
}

func TestAlternatesInOrder(t *testing.T) {
	e := activeEntry()
	slices.Reverse(e.Links)
	doc, err := write(sampleHead(), e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := NewReader(bytes.NewReader(doc), ReadOptions{}).Next()
	if err != nil {
		t.Fatal(err)
	}
	links := got.Alternates()
	if len(links) != 2 || links[0].Href != "https://a.example/2" || links[1].Href != "https://a.example/1?x&y" {
		t.Errorf("got %+v", links)
	}
	if got.Record() != "1" || got.Untitled() {
		t.Errorf("record %q, untitled %v", got.Record(), got.Untitled())
	}
}

// A bad entry is that of the record that it carries.
func TestBadEntryNamesItsRecord(t *testing.T) {
	doc := `<feed xmlns="` + Namespace + `" xmlns:b="` + CarriedNamespace + `"><entry b:id="7"><id>urn:x:1</id><title>t</title></entry></feed>`
	_, err := NewReader(strings.NewReader(doc), ReadOptions{}).Next()
	var bad *EntryError
	if !errors.As(err, &bad) || bad.ID != "7" {
		t.Errorf("got %v", err)
	}
}

func TestWriterRules(t *testing.T) {
	feed := func(edit func(*Feed)) *Feed {
		f := sampleHead()
		edit(f)
		return f
	}
	entry := func(e Entry, edit func(*Entry)) []Entry {
		edit(&e)
		return []Entry{e}
	}
	same := sampleHead()
	for _, c := range []struct {
		name, rule string
		head       *Feed
		entries    []Entry
	}{
		{"feed without id", ruleFeed, feed(func(f *Feed) { f.ID = "" }), nil},
		{"feed without title", ruleFeed, feed(func(f *Feed) { f.Title = "" }), nil},
		{"feed without author", ruleFeed, feed(func(f *Feed) { f.Authors = nil }), nil},
		{"feed without updated", ruleFeed, feed(func(f *Feed) { f.Updated = time.Time{} }), nil},
		{"feed id that is no IRI", ruleID, feed(func(f *Feed) { f.ID = "feed" }), nil},
		{"complete with prev-archive", ruleS11, feed(func(f *Feed) { f.Complete, f.PrevArchive = true, "https://a.example/1" }), nil},
		{"feed link without href", ruleLink, feed(func(f *Feed) { f.Links = []Link{{Rel: "license"}} }), nil},
		{"two alternates of a feed", ruleAlternates, feed(func(f *Feed) {
			f.Links = []Link{{Href: "https://a.example/1"}, {Rel: "alternate", Href: "https://a.example/2"}}
		}), nil},
		{"entry without id", ruleEntry, same, entry(activeEntry(), func(e *Entry) { e.ID = "" })},
		{"entry without title", ruleEntry, same, entry(activeEntry(), func(e *Entry) { e.Title = "\t " })},
		{"entry without updated", ruleEntry, same, entry(activeEntry(), func(e *Entry) { e.Updated = time.Time{} })},
		{"entry of the year 2300", ruleEntry, same, entry(activeEntry(), func(e *Entry) { e.Updated = written.AddDate(274, 0, 0) })},
		{"id that is no IRI", ruleID, same, entry(activeEntry(), func(e *Entry) { e.ID = "1" })},
		{"later than the feed", ruleS1, same, entry(activeEntry(), func(e *Entry) { e.Updated = written.Add(1) })},
		{"active without alternate", ruleS10, same, entry(activeEntry(), func(e *Entry) { e.Links = e.Links[1:] })},
		{"active with content", ruleS10, same, entry(activeEntry(), func(e *Entry) { e.Content = &Content{Empty: true} })},
		{"deletion with alternate", ruleS10, same, entry(activeEntry(), func(e *Entry) { e.Kind = Deletion })},
		{"deletion with a further alternate", ruleS10, same, entry(activeEntry(), func(e *Entry) { e.Kind, e.Links = Deletion, e.Links[1:2] })},
		{"deletion with content", ruleS10, same, entry(deletionEntry(), func(e *Entry) { e.Content = &Content{} })},
		{"deletion with src", ruleS10, same, entry(deletionEntry(), func(e *Entry) { e.Content = &Content{Empty: true, HasSrc: true} })},
		{"no kind", ruleS10, same, entry(activeEntry(), func(e *Entry) { e.Kind = 0 })},
		{"deletion in a complete feed", ruleS7, feed(func(f *Feed) { f.Complete = true }), entry(deletionEntry(), func(*Entry) {})},
		{"two alternates of one type", ruleAlternates, same, entry(activeEntry(), func(e *Entry) { e.Links[1].Rel = "alternate" })},
		{"two alternates, one without rel", ruleAlternates, same, entry(activeEntry(), func(e *Entry) { e.Links[1].Rel = "" })},
		{"deletion with an alternate in other letters", ruleS10, same, entry(activeEntry(), func(e *Entry) { e.Kind, e.Links[0].Rel, e.Links = Deletion, "Alternate", e.Links[:1] })},
		{"published in the year 10000", ruleDate, same, entry(activeEntry(), func(e *Entry) { e.Published = written.AddDate(8000, 0, 0) })},
		{"edited in the year 2300", ruleDate, same, entry(activeEntry(), func(e *Entry) { e.Edited = written.AddDate(274, 0, 0) })},
		{"source of the year -1", ruleDate, same, entry(activeEntry(), func(e *Entry) { e.Source.Updated = written.AddDate(-2027, 0, 0) })},
		{"D17: id that looks like an IRI", ruleID, same, entry(activeEntry(), func(e *Entry) { e.ID = "Post: my first one" })},
		{"D13: alternate without type", ruleType, same, entry(activeEntry(), func(e *Entry) { e.Links[0].Type = "" })},
		{"D13: further alternate without type", ruleType, same, entry(activeEntry(), func(e *Entry) { e.Links[1].Type = "" })},
		{"D90: type that is none", ruleType, same, entry(activeEntry(), func(e *Entry) { e.Links[0].Type = "pdf" })},
		{"D90: type of a source's link", ruleType, same, entry(activeEntry(), func(e *Entry) { e.Source = &Source{Links: []Link{{Rel: "self", Href: "x", Type: "a/b c"}}} })},
		{"D90: id of a source", ruleSource, same, entry(activeEntry(), func(e *Entry) { e.Source = &Source{ID: " "} })},
		{"D90: relative id of a source", ruleSource, same, entry(activeEntry(), func(e *Entry) { e.Source = &Source{ID: "/feed"} })},
		{"language of a link", ruleLanguage, same, entry(activeEntry(), func(e *Entry) { e.Links[0].Hreflang = "en_GB" })},
		{"language of a title", ruleLanguage, same, entry(activeEntry(), func(e *Entry) { e.Language = "English language" })},
		{"person without name", rulePerson, same, entry(activeEntry(), func(e *Entry) { e.Authors = []Person{{Email: "a@b"}} })},
		{"person with a relative uri", rulePerson, same, entry(activeEntry(), func(e *Entry) { e.Contributors = []Person{{Name: "A", URI: "a"}} })},
		{"person with a bad email", rulePerson, feed(func(f *Feed) { f.Authors[0].Email = "at home" }), nil},
		{"category without term", ruleCategory, same, entry(activeEntry(), func(e *Entry) { e.Categories = []Category{{Label: "A"}} })},
		{"category with a bad scheme", ruleCategory, same, entry(activeEntry(), func(e *Entry) { e.Source.Categories = []Category{{Term: "a", Scheme: "b c"}} })},
		{"language of an entry", ruleLanguage, same, entry(activeEntry(), func(e *Entry) { e.EntryLanguage = "German language" })},
		{"nobody who deleted it", rulePerson, same, entry(deletionEntry(), func(e *Entry) { e.DeletedBy.Name = " " })},
		{"link without href", ruleLink, same, entry(activeEntry(), func(e *Entry) { e.Links[2].Href = "" })},
	} {
		_, err := write(c.head, c.entries...)
		var rule *RuleError
		if !errors.As(err, &rule) || rule.Rule != c.rule || rule.Broken == "" {
			t.Errorf("%s: got %v, want rule %s", c.name, err, c.rule)
			continue
		}
		if !slices.ContainsFunc(Rules(), func(r Rule) bool { return r.ID == rule.Rule }) {
			t.Errorf("%s: rule %s is not in the table", c.name, rule.Rule)
		}
	}

	w := NewWriter(io.Discard, sampleHead())
	w.PrevUpdated = written
	e := deletionEntry()
	first := w.Entry(&e)
	var rule *RuleError
	if !errors.As(first, &rule) || rule.Rule != ruleS2 {
		t.Errorf("earlier than the document before: got %v", first)
	}
	good := activeEntry()
	if err := w.Entry(&good); !errors.Is(err, first) {
		t.Errorf("after a broken rule: got %v", err)
	}
	if err := w.Close(); !errors.Is(err, first) {
		t.Errorf("after a broken rule: got %v", err)
	}
}

// Whatever text it is given, what is written is well-formed and read back as far
// as XML can hold it.
func TestWriterText(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"<", "&amp;", "]]>", "\x00", "\xff", "\r\n", "\uffff", "  a  b ", "\"'"}))
	rapid.Check(t, func(t *rapid.T) {
		e := activeEntry()
		if id := "urn:" + text.Draw(t, "id"); CanBeID(id) {
			e.ID = id
		}
		e.Title, e.CarriedID = "t"+text.Draw(t, "title"), text.Draw(t, "carried")
		e.Links[0].Title, e.Links[0].Other = text.Draw(t, "link title"), carriedAttrs("hash", text.Draw(t, "hash"))
		e.Categories[0].Label, e.Rights.Value = text.Draw(t, "label"), text.Draw(t, "rights")
		head := sampleHead()
		head.Authors = []Person{{Name: "a" + text.Draw(t, "author")}}
		doc, err := write(head, e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := NewReader(bytes.NewReader(doc), ReadOptions{}).Next()
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		if got.ID != e.ID || strictxml.Holds(e.Title) && got.Title != collapse(e.Title) || strictxml.Holds(e.Rights.Value) && got.Rights.Value != collapse(e.Rights.Value) {
			t.Fatalf("got %q %q, want %q %q", got.ID, got.Title, e.ID, e.Title)
		}
		want := e.CarriedID
		if want == e.ID || !strictxml.Holds(want) {
			want = ""
		}
		if got.CarriedID != want {
			t.Fatalf("got carried id %q, want %q", got.CarriedID, want)
		}
		if l := &got.Links[0]; strictxml.Holds(e.Links[0].Title) && l.Title != e.Links[0].Title {
			t.Fatalf("got title %q, want %q", l.Title, e.Links[0].Title)
		}
		if c := &got.Categories[0]; strictxml.Holds(e.Categories[0].Label) && c.Label != e.Categories[0].Label {
			t.Fatalf("got label %q, want %q", c.Label, e.Categories[0].Label)
		}
	})
}

// A link is an alternate one unless it says otherwise, without the length where that is not
// known, and of its foreign attributes it has those of CarriedNamespace.
func TestWriterLinks(t *testing.T) {
	e := activeEntry()
	e.Links = []Link{{Href: "https://a.example/?a&b", Type: "text/xml", Length: NoLength, Other: append(carriedAttrs("hash", "md5:0f", "unknown", "x"),
		xml.Attr{Name: xml.Name{Local: "hash"}, Value: "y"}, xml.Attr{Name: xml.Name{Space: LinkExtensionsNamespace, Local: "md5"}, Value: "z"})}}
	doc, err := write(sampleHead(), e)
	if want := `<link rel="alternate" href="https://a.example/?a&amp;b" type="text/xml" b:hash="md5:0f"/>`; err != nil || !strings.Contains(string(doc), want) {
		t.Errorf("%v, want %s in\n%s", err, want, doc)
	}
}

// An attribute is declared wherever its link stands, and written once.
func TestWriterCarriedLinks(t *testing.T) {
	link := Link{Rel: "license", Href: "https://a.example/l", Length: NoLength, Other: carriedAttrs("hash", "md5:0f", "hash", "md5:0e")}
	inFeed, inEntry, inSource := sampleHead(), deletionEntry(), deletionEntry()
	inFeed.Links, inEntry.Links, inSource.Source = []Link{link}, []Link{link}, &Source{Links: []Link{link}}
	for name, c := range map[string]struct {
		head    *Feed
		entries []Entry
	}{"feed": {inFeed, nil}, "feed and entries": {inFeed, []Entry{deletionEntry()}}, "entry": {sampleHead(), []Entry{deletionEntry(), inEntry}},
		"source": {sampleHead(), []Entry{inSource}}, "later source": {sampleHead(), []Entry{deletionEntry(), inSource}}} {
		doc, err := write(c.head, c.entries...)
		if got := readString(string(doc)); err != nil || got.err != nil || len(got.entries) != len(c.entries) || strings.Count(string(doc), ` b:hash="md5:0f"`) != 1 {
			t.Errorf("%s: %v, %v\n%s", name, err, got.err, doc)
		}
	}
}

// D22: namespaces are declared where they are of use.
func TestWriterDeclares(t *testing.T) {
	fh, b := `xmlns:fh="`+HistoryNamespace+`"`, `xmlns:b="`+CarriedNamespace+`"`
	plain := activeEntry()
	plain.CarriedID, plain.CarriedModified, plain.CarriedChangeFreq, plain.Links = "", "", "", plain.Links[:1]
	linked := plain
	linked.Links = slices.Clone(plain.Links)
	plain.Links[0].Other = nil
	for _, c := range []struct {
		name    string
		edit    func(*Feed)
		entries []Entry
		fh, b   int
	}{
		{"nothing", func(*Feed) {}, nil, 0, 0},
		{"an archive", func(f *Feed) { f.Archive = true }, nil, 1, 0},
		{"a complete feed", func(f *Feed) { f.Complete = true }, []Entry{plain}, 1, 0},
		{"the first carries", func(*Feed) {}, []Entry{activeEntry(), plain, activeEntry()}, 0, 1},
		{"only a link carries", func(*Feed) {}, []Entry{linked, plain}, 0, 1},
		{"the second and third carry", func(*Feed) {}, []Entry{plain, activeEntry(), activeEntry()}, 0, 2},
	} {
		head := sampleHead()
		c.edit(head)
		doc, err := write(head, c.entries...)
		if err != nil {
			t.Fatal(err)
		}
		if n, m := strings.Count(string(doc), fh), strings.Count(string(doc), b); n != c.fh || m != c.b {
			t.Errorf("%s: %d and %d declarations, want %d and %d\n%s", c.name, n, m, c.fh, c.b, doc)
		}
		r := NewReader(bytes.NewReader(doc), ReadOptions{})
		for i := range c.entries {
			got, err := r.Next()
			if err != nil || got.CarriedID != c.entries[i].CarriedID {
				t.Errorf("%s, entry %d: %v, carried id %q", c.name, i, err, got.CarriedID)
			}
		}
	}
}

type brokenPipe struct{ room int }

var errPipe = errors.New("the pipe is broken")

func (p *brokenPipe) Write(b []byte) (int, error) {
	if p.room -= len(b); p.room < 0 {
		return 0, errPipe
	}
	return len(b), nil
}

func TestWriterFails(t *testing.T) {
	for _, room := range []int{0, 100, strictxml.PieceSize + 9000} {
		w := NewWriter(&brokenPipe{room}, sampleHead())
		e := activeEntry()
		for range 200 {
			_ = w.Entry(&e) // Close tells
		}
		if err := w.Close(); !errors.Is(err, errPipe) {
			t.Errorf("room %d: got %v", room, err)
		}
		if err := w.Entry(&e); !errors.Is(err, errPipe) {
			t.Errorf("room %d: the next entry got %v", room, err)
		}
	}
	short := NewWriter(&brokenPipe{}, sampleHead())
	if first, again := short.Close(), short.Close(); !errors.Is(first, errPipe) || !errors.Is(again, errPipe) {
		t.Errorf("a document that fits into memory: %v, and then %v", first, again)
	}
	w := NewWriter(io.Discard, sampleHead())
	if err := w.Close(); err != nil || w.Entries() != 0 {
		t.Error(err, w.Entries())
	}
	e := activeEntry()
	if w.Entry(&e) == nil || w.Close() == nil {
		t.Error("a closed document took more")
	}
}

// BenchmarkWriter writes 50,000 entries.
func BenchmarkWriter(b *testing.B) {
	e := activeEntry()
	var out int64
	b.ReportAllocs()
	for range b.N {
		w := NewWriter(io.Discard, sampleHead())
		for range 50_000 {
			if err := w.Entry(&e); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		out = w.out.Passed()
	}
	b.SetBytes(out)
}
