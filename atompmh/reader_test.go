package atompmh

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// reading is everything that a document said.
type reading struct {
	feed     *Feed
	entries  []*Entry
	bad      []*EntryError
	inputs   [][]byte // of the good entries
	problems []Problem
	err      error // nil after io.EOF
}

func readAll(r io.Reader, o ReadOptions) reading {
	var got reading
	o.Report = func(p Problem) { got.problems = append(got.problems, p) }
	rd := NewReader(r, o)
	for {
		e, err := rd.Next()
		var bad *EntryError
		switch {
		case err == nil:
			got.entries = append(got.entries, e)
			got.inputs = append(got.inputs, rd.Input())
		case errors.As(err, &bad):
			got.bad = append(got.bad, bad)
		default:
			got.feed = rd.Feed()
			if err != io.EOF {
				got.err = err
			}
			return got
		}
	}
}

func readString(s string) reading {
	return readAll(strings.NewReader(s), ReadOptions{URL: docURL})
}

const docURL = "http://example.org/dir/feed.atom"

// rules lists the rules that were reported, in order.
func (g reading) rules() []string {
	var out []string
	for _, p := range g.problems {
		out = append(out, p.Rule)
	}
	return out
}

// feedOf puts entries into an otherwise faultless feed.
func feedOf(entries string) string {
	return `<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"` +
		` xmlns:at="http://purl.org/atompub/tombstones/1.0" xmlns:le="http://purl.org/atompub/link-extensions/1.0">` +
		`<id>urn:x:feed</id><title>F</title><updated>2030-01-01T00:00:00Z</updated><author><name>N</name></author>` +
		entries + `</feed>`
}

const goodRest = `<title>T</title><updated>2020-01-01T00:00:00Z</updated><link type="text/plain" href="a"/>`

func TestDraftExamples(t *testing.T) {
	tests := []struct {
		file              string
		active, deletions int
		rules             string
	}{
		{"01-basic", 2, 0, "4287-feed"},
		{"02-update-delete", 3, 1, "4287-feed"},
		{"03-chain", 0, 0, "4287-feed"},
		{"04-chain", 0, 0, "4287-feed"},
		{"05-chain", 0, 0, "4287-feed"},
		{"06-chain", 0, 0, "4287-feed"},
		{"07-complete-intro", 2, 0, "4287-feed"},
		{"08-example-1-subscription", 1, 0, "4287-feed"},
		{"09-example-1-archive-1", 1, 0, "4287-feed"},
		{"10-example-1-archive-2", 1, 0, "4287-alternates 4287-feed"},
		{"11-example-1-archive-3", 1, 0, "4287-feed"},
		{"12-example-1-entry-document", 0, 0, ""},
		{"13-example-2-deletion", 0, 1, "4287-feed"},
		{"14-example-3-complete", 4, 0, "4287-alternates 4287-feed"},
		{"15-example-4-complete-deleted", 3, 0, "4287-alternates 4287-feed"},
		{"16-example-5-update", 2, 0, "S1 4287-feed"},
	}
	files, err := filepath.Glob("testdata/draft/*.atom")
	if err != nil || len(files) != len(tests) {
		t.Fatalf("%d fixtures for %d examples (%v)", len(files), len(tests), err)
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			doc, err := os.ReadFile("testdata/draft/" + tt.file + ".atom")
			if err != nil {
				t.Fatal(err)
			}
			got := readAll(bytes.NewReader(doc), ReadOptions{URL: docURL})
			if strings.Contains(tt.file, "entry-document") {
				if got.err == nil || !strings.Contains(got.err.Error(), "an Atom Entry Document") {
					t.Fatalf("error %v, want one that says what it is", got.err)
				}
				return
			}
			active, deletions := 0, 0
			for _, e := range got.entries {
				if e.Kind == Deletion {
					deletions++
				} else {
					active++
				}
			}
			if got.err != nil || len(got.bad) != 0 || active != tt.active || deletions != tt.deletions {
				t.Errorf("%d active, %d deletions, bad %v, error %v", active, deletions, got.bad, got.err)
			}
			if rules := strings.Join(got.rules(), " "); rules != tt.rules {
				t.Errorf("reported %q, want %q", rules, tt.rules)
			}
		})
	}
}

func TestHead(t *testing.T) {
	const doc = `<a:feed xmlns:a="http://www.w3.org/2005/Atom" xmlns:h="http://purl.org/syndication/history/1.0" xml:base="sub/">
<a:id> urn:x:f</a:id><a:title type="html">A &amp;lt; &lt;b&gt;B&lt;/b&gt;</a:title><a:updated>2020-01-01T00:00:00.5+10:00</a:updated>
<a:link rel=" Prev-Archive " href="../1.atom" hash="h" a:x="y"/><a:link rel="http://www.iana.org/assignments/relation/self" href="#f"/>
<a:entry/><h:complete/><a:link rel="current" href="/now" xml:base="http://other.example/x/"/><a:link rel="next-archive" href="3"/><h:archive/></a:feed>`
	r := NewReader(strings.NewReader(doc), ReadOptions{URL: docURL})
	head, err := r.Head()
	if err != nil {
		t.Fatal(err)
	}
	if head.ID != " urn:x:f" || head.Title != "A < B" || !head.Updated.Equal(time.Date(2019, 12, 31, 14, 0, 0, 5e8, time.UTC)) {
		t.Errorf("head %+v", head)
	}
	if head.PrevArchive != "http://example.org/dir/1.atom" || head.Self != "http://example.org/dir/sub/#f" || head.Complete || head.Current != "" {
		t.Errorf("links %+v", head)
	}
	if v, ok := head.Links[0].Attr("", "hash"); !ok || v != "h" {
		t.Errorf("hash %q", v)
	}
	if v, ok := head.Links[0].Attr(Namespace, "x"); !ok || v != "y" {
		t.Errorf("a:x %q", v)
	}
	if _, err := r.Next(); err == nil {
		t.Error("an empty entry passed")
	}
	if _, err := r.Next(); err != io.EOF {
		t.Error(err)
	}
	for _, f := range []func() (*Feed, error){r.Head, func() (*Feed, error) { return r.Feed(), nil }} {
		if feed, err := f(); err != nil || !feed.Complete || !feed.Archive || feed.Current != "http://other.example/now" || feed.NextArchive != "http://example.org/dir/sub/3" {
			t.Errorf("after the end %+v, %v", feed, err)
		}
	}
}

// D67: the id of a feed, which a walk stores again and again, has a length.
func TestFeedIDHasALength(t *testing.T) {
	for length, want := range map[int]int{8 << 10: 8 << 10, 8<<10 + 1: 0} {
		id := "urn:" + strings.Repeat("i", length-4)
		got := readString(`<feed xmlns="http://www.w3.org/2005/Atom"><id>` + id + `</id><title>t</title><updated>2020-01-01T00:00:00Z</updated><author><name>a</name></author></feed>`)
		if got.err != nil || len(got.feed.ID) != want || slices.Contains(got.rules(), ruleID) != (want == 0) {
			t.Errorf("an id of %d bytes: %d bytes, rules %q, %v", length, len(got.feed.ID), got.rules(), got.err)
		}
	}
}

func TestEntry(t *testing.T) {
	doc := feedOf("\n  " + `<entry xml:base="http://h.example/p/q" xml:lang="de"><id>a b#</id>
<title type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">One <b>two</b>
 three</div></title><updated>2020-02-29T23:59:59.1234567899-01:30</updated>
<link href="r" type="text/x" hreflang="de" title="L" length="12" modified="m" le:md5="5"/><link rel="VIA" href="http://v.example/a b"/><link rel="http://x.example/Rel" href="" length="x"/>
<source xml:lang="fr"><id>urn:s</id><title>S</title><updated>2001-01-01T00:00:00Z</updated><link href="s"/>
<author><name>Source</name></author><category term="all"/><rights type="html">&lt;i&gt;free&lt;/i&gt;</rights></source>
<author><uri>a</uri><email>a@h.example</email></author><author/><author><name> A  B </name><name>C</name></author><contributor><name>D</name><x xmlns="urn:x"/></contributor>
<category term=" maps " scheme="urn:sch" label="Maps"/><category/><rights xml:lang="en">ours</rights><rights>theirs</rights><summary>x</summary></entry>`)
	got := readString(doc)
	if got.err != nil || len(got.entries) != 1 {
		t.Fatal(got.err, got.bad)
	}
	e := got.entries[0]
	if e.ID != "a b#" || e.Title != "One two three" || e.Kind != Active || e.Line != 2 || e.Column != 3 || e.Content != nil || e.Tombstone {
		t.Errorf("%+v", e)
	}
	if want := time.Date(2020, 3, 1, 1, 29, 59, 123456789, time.UTC); !e.Updated.Equal(want) || e.UpdatedRaw != "2020-02-29T23:59:59.1234567899-01:30" {
		t.Errorf("updated %v %q", e.Updated, e.UpdatedRaw)
	}
	// D15: who made it, what it is about and whose it is, of the entry and of the
	// feed that it was copied from.
	if want := (Source{ID: "urn:s", Title: "S", Updated: time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC), UpdatedRaw: "2001-01-01T00:00:00Z",
		Metadata: Metadata{Language: "fr", Authors: []Person{{Name: "Source"}}, Categories: []Category{{Term: "all"}}, Rights: Text{"free", "fr"}},
		Links:    []Link{{Rel: "alternate", Href: "http://h.example/p/s", Length: NoLength}}}); !reflect.DeepEqual(*e.Source, want) {
		t.Errorf("source\n%+v, want\n%+v", *e.Source, want)
	}
	if want := (Metadata{Language: "de", Authors: []Person{{Name: "a@h.example", URI: "http://h.example/p/a", Email: "a@h.example"}, {Name: "A B"}}, Contributors: []Person{{Name: "D"}},
		Rights: Text{"ours", "en"}, Categories: []Category{{"maps", "urn:sch", "Maps"}}}); !reflect.DeepEqual(e.Metadata, want) {
		t.Errorf("metadata\n%+v, want\n%+v", e.Metadata, want)
	}
	if a := e.Alternates(); len(a) != 1 || a[0].Href != "http://h.example/p/r" || a[0].Type != "text/x" || a[0].Hreflang != "de" || a[0].Title != "L" || a[0].Length != 12 {
		t.Errorf("alternates %+v", a)
	} else if md5, _ := a[0].Attr(LinkExtensionsNamespace, "md5"); md5 != "5" {
		t.Errorf("le:md5 %q", md5)
	}
	if via, ok := e.Via(); !ok || via.Href != "http://v.example/a b" {
		t.Errorf("via %+v", via)
	}
	if via, ok := (&Entry{Links: e.Alternates()}).Via(); ok {
		t.Errorf("a via that is none: %+v", via)
	}
	if v, ok := e.Links[0].Attr("urn:other", "modified"); ok {
		t.Errorf("modified of another namespace: %q", v)
	}
	if l := e.Links[2]; l.Rel != "http://x.example/Rel" || l.Href != "http://h.example/p/q" || l.Length != NoLength {
		t.Errorf("link %+v", l)
	}
	if rules := strings.Join(got.rules(), " "); rules != "4287-id" {
		t.Errorf("reported %s", rules)
	}
}

// TestS10 decides what an entry is.
func TestS10(t *testing.T) {
	const front = `<entry><id>urn:x:1</id><title>T</title><updated>2020-01-01T00:00:00Z</updated>`
	const alt = `<link type="a/b" href="x"/>`
	tests := []struct {
		name, rest string
		kind       Kind   // 0: bad
		rules      string // reported, or the EntryError's
	}{
		{"alternate", alt, Active, ""},
		{"alternate by IANA's IRI", `<link rel="http://www.iana.org/assignments/relation/alternate" type="a/b" href="x"/>`, Active, ""},
		{"empty rel", `<link rel="" type="a/b" href="x"/>`, Active, ""},
		{"rel in capitals", `<link rel=" ALTERNATE" type="a/b" href="x"/>`, Active, ""},
		{"no type", `<link href="x"/>`, Active, "pmh-type"},
		{"empty content", `<content/>`, Deletion, ""},
		{"empty content with a type", `<content type="text"/>`, Deletion, ""},
		{"content of white space and comments", "<content> <!-- gone -->\n</content>", Deletion, ""},
		{"empty content beside other links", `<link rel="self" href="x"/><content></content>`, Deletion, ""},
		{"two empty contents", `<content/><content/>`, Deletion, "4287-entry"},
		{"content and alternate", alt + `<content>c</content>`, Active, "S10"},
		{"empty content and alternate", `<content/>` + alt, Active, "S10"},
		{"content at src and alternate", `<content src="y"/>` + alt, Active, "S10"},
		{"nothing", ``, 0, "S10"},
		{"content at src", `<content src="y" type="a/b"/>`, 0, "S10"},
		{"content at an empty src", `<content src=""/>`, 0, "S10"},
		{"content with text", `<content>c</content>`, 0, "S10"},
		{"content with an element", `<content><x/></content>`, 0, "S10"},
		{"content in another namespace", `<content xmlns="urn:x"/>`, 0, "S10"},
		{"link in another namespace", `<link xmlns="urn:x" href="x"/><content/>`, Deletion, ""},
		{"an empty and a full content", `<content/><content>c</content>`, 0, "S10"},
		{"broken alternate beside empty content", `<link href="%zz"/><content/>`, 0, "4287-link"},
		{"alternate without href beside empty content", `<link/><content/>`, 0, "4287-link"},
		{"broken alternate beside a good one", `<link href="%zz"/>` + alt, Active, "4287-link"},
		{"two alternates of one type", alt + alt, Active, "4287-alternates"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readString(feedOf(front + tt.rest + `</entry>`))
			if got.err != nil || len(got.entries)+len(got.bad) != 1 {
				t.Fatal(got.err)
			}
			if tt.kind == 0 {
				if len(got.bad) != 1 || got.bad[0].Rule != tt.rules || got.bad[0].ID != "urn:x:1" {
					t.Errorf("bad %v", got.bad)
				}
				return
			}
			if len(got.bad) != 0 || got.entries[0].Kind != tt.kind {
				t.Errorf("kind %v, bad %v", got.entries, got.bad)
			}
			if rules := strings.Join(got.rules(), " "); rules != tt.rules {
				t.Errorf("reported %q, want %q", rules, tt.rules)
			}
		})
	}
}

func TestBadEntries(t *testing.T) {
	entry := func(s string) string { return `<entry>` + s + `<title>T</title><link type="a/b" href="x"/></entry>` }
	const at = `<updated>2020-01-01T00:00:00Z</updated>`
	tests := []struct{ name, entry, rule, id string }{
		{"no id", entry(at), "4287-entry", ""},
		{"blank id", entry(`<id> </id>` + at), "4287-entry", ""},
		{"two ids", entry(`<id>a:1</id><id>a:2</id>` + at), "4287-entry", ""},
		{"markup in the id", entry(`<id>a:<b>1</b></id>` + at), "4287-id", ""},
		{"no updated", entry(`<id>a:1</id>`), "4287-entry", "a:1"},
		{"two updated", entry(`<id>a:1</id>` + at + at), "4287-entry", "a:1"},
		{"date only", entry(`<id>a:1</id><updated>2020-01-01</updated>`), "4287-date", "a:1"},
		{"year 9999", entry(`<id>a:1</id><updated>9999-01-01T00:00:00Z</updated>`), "range", "a:1"},
		{"tombstone without ref", `<at:deleted-entry when="2020-01-01T00:00:00Z"/>`, "6721-deleted-entry", ""},
		{"tombstone without when", `<at:deleted-entry ref="a:1"/>`, "6721-deleted-entry", "a:1"},
		{"no namespace", strings.Replace(entry(`<id>a:1</id>`+at), "<entry>", `<entry xmlns="">`, 1), "4287-entry", ""},
		{"tombstone in the namespace of entries", `<deleted-entry ref="a:1" when="2020-01-01T00:00:00Z"/>`, "4287-entry", ""},
		{"tombstone with a bad when", `<at:deleted-entry ref="a:1" when="yesterday"/>`, "4287-date", "a:1"},
	}
	const good = `<entry><id>a:9</id>` + goodRest + `</entry>`
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readString(feedOf(good + "\n" + tt.entry + good))
			if got.err != nil || len(got.entries) != 2 || len(got.bad) != 1 {
				t.Fatalf("%d entries, bad %v, error %v", len(got.entries), got.bad, got.err)
			}
			bad := got.bad[0]
			if bad.Rule != tt.rule || bad.ID != tt.id || bad.Line != 2 || bad.Column != 1 || bad.URL != docURL {
				t.Errorf("%+v", bad)
			}
			if !bytes.Contains(bad.Input, []byte(tt.entry)) {
				t.Errorf("input %s", bad.Input)
			}
			again := readAll(bytes.NewReader(bad.Input), ReadOptions{URL: docURL})
			if again.err != nil || len(again.bad) != 1 || again.bad[0].Rule != tt.rule || again.bad[0].Reason != bad.Reason || !bytes.Equal(again.bad[0].Input, bad.Input) {
				t.Errorf("read again: %v, %v", again.bad, again.err)
			}
		})
	}
}

func TestTombstone(t *testing.T) {
	got := readString(feedOf(`<at:deleted-entry ref="urn:x:1" when="2020-01-01T00:00:00Z"><at:comment>gone</at:comment><id>urn:x:no</id></at:deleted-entry>`))
	if got.err != nil || len(got.entries) != 1 || len(got.problems) != 0 {
		t.Fatal(got.err, got.bad, got.problems)
	}
	if e := got.entries[0]; e.ID != "urn:x:1" || e.Kind != Deletion || !e.Tombstone || e.Updated.Year() != 2020 {
		t.Errorf("%+v", e)
	}
}

// What RFC 6721 and RFC 5023 let an entry say besides. What is odd is reported, and the
// entry is taken.
func TestMoreOfAnEntry(t *testing.T) {
	const at = `<at:deleted-entry ref="urn:x:1" when="2020-01-01T00:00:00Z" xml:lang="en">`
	const front = `<entry xml:lang="de" xmlns:app="http://www.w3.org/2007/app"><id>urn:x:1</id><updated>2020-01-01T00:00:00Z</updated>`
	by, gone := Person{"Jane", "http://example.org/jane", "j@j.example"}, Text{"Gone & lost", "en"}
	full := at + `<at:by><name>Jane</name><uri>/jane</uri><email>j@j.example</email></at:by><at:comment type="html">Gone &amp;amp; &lt;b>lost&lt;/b></at:comment>` +
		`<link rel="successor-version" href="2"/><link href="old"/><source><id>urn:x:f</id></source>`
	tests := []struct {
		name, entry, rules string
		want               Entry
	}{
		{"a tombstone with all of it", full + `</at:deleted-entry>`, "", Entry{Kind: Deletion, DeletedBy: by, Comment: gone, Source: &Source{ID: "urn:x:f"},
			Links: []Link{{Rel: "successor-version", Href: "http://example.org/dir/2", Length: NoLength}, {Rel: "alternate", Href: "http://example.org/dir/old", Length: NoLength}}}},
		{"two of each", full + `<at:by><name>B</name></at:by><at:comment/><at:comment>second</at:comment></at:deleted-entry>`, "6721-deleted-entry 6721-deleted-entry",
			Entry{Kind: Deletion, DeletedBy: by, Comment: gone, Source: &Source{ID: "urn:x:f"}}},
		{"nobody", at + `<at:by/></at:deleted-entry>`, "6721-deleted-entry", Entry{Kind: Deletion}},
		{"a deletion entry that says so too", front + `<title xml:lang="fr">T</title><content/><at:by><name>Jane</name></at:by><at:comment>weg</at:comment></entry>`, "",
			Entry{Kind: Deletion, Title: "T", Metadata: Metadata{Language: "fr"}, EntryLanguage: "de", DeletedBy: Person{Name: "Jane"}, Comment: Text{"weg", "de"}}},
		{"dates", front + `<title>T</title><link type="a/b" href="x"/><published>2019-01-01T00:00:00Z</published><published>2018-01-01T00:00:00Z</published><app:edited> 2019-06-01T00:00:00+01:00</app:edited></entry>`, "4287-date",
			Entry{Kind: Active, Title: "T", Metadata: Metadata{Language: "de"}, Published: time.Date(2019, 1, 1, 0, 0, 0, 0, time.UTC), Edited: time.Date(2019, 5, 31, 23, 0, 0, 0, time.UTC)}},
		{"a source that is odd", front + `<title>T</title><link type="a/b" href="x"/><source><x xmlns="urn:x"><id/></x><id>1</id><updated>now</updated><link/><subtitle>s</subtitle></source></entry>`,
			"4287-date 4287-link", Entry{Kind: Active, Title: "T", Metadata: Metadata{Language: "de"}, Source: &Source{ID: "1", UpdatedRaw: "now"}}},
		{"a content elsewhere and nowhere", front + `<title>T</title><link type="a/b" href="x"/><content src=":"/></entry>`, "4287-link S10",
			Entry{Kind: Active, Title: "T", Metadata: Metadata{Language: "de"}}},
		{"a tombstone with more than it has", at + `<at:place>here</at:place></at:deleted-entry>`, "", Entry{Kind: Deletion}},
		{"dates that are none", front + `<title>T</title><link type="a/b" href="x"/><published>today</published><app:edited>9999-01-01T00:00:00Z</app:edited></entry>`, "4287-date 4287-date",
			Entry{Kind: Active, Title: "T", Metadata: Metadata{Language: "de"}}},
		{"a hint", strings.Replace(front, "<entry", `<entry xmlns:c="urn:x-bridge:terms:1" c:changefreq="daily"`, 1) + `<title>T</title><link type="a/b" href="x"/></entry>`, "",
			Entry{Kind: Active, Title: "T", Metadata: Metadata{Language: "de"}, CarriedChangeFreq: "daily"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readString(feedOf(tt.entry))
			if got.err != nil || len(got.entries) != 1 {
				t.Fatal(got.err, got.bad)
			}
			if rules := strings.Join(got.rules(), " "); rules != tt.rules {
				t.Errorf("reported %v, want %s", got.problems, tt.rules)
			}
			e := got.entries[0]
			if tt.want.Links == nil {
				e.Links = nil
			}
			e.ID, e.Updated, e.UpdatedRaw, e.Content, e.Tombstone, e.Line, e.Column = "", time.Time{}, "", nil, false, 0, 0
			if !reflect.DeepEqual(*e, tt.want) {
				t.Errorf("got\n%+v\nwant\n%+v", *e, tt.want)
			}
		})
	}
}

// The bytes of entries, which AppendEntry returns, are by Frame a document with these entries.
func TestFrame(t *testing.T) {
	r := NewReader(strings.NewReader(strings.Replace(feedOf(`<entry><id>urn:x:1</id>`+goodRest+`</entry><x/><at:deleted-entry ref="urn:x:2" when="2020-01-01T00:00:00Z"/>`),
		"<feed ", `<feed xml:base="sub/" `, 1)), ReadOptions{URL: docURL})
	if b := r.AppendEntry([]byte("nothing")); string(b) != "nothing" {
		t.Errorf("before the first entry: %s", b)
	}
	var entries [][]byte
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, r.AppendEntry(nil))
		if alone := r.Frame(entries[len(entries)-1]); !bytes.Equal(alone, r.Input()) {
			t.Errorf("got %s, and Input is %s", alone, r.Input())
		}
	}
	got := readAll(bytes.NewReader(r.Frame(entries...)), ReadOptions{URL: docURL})
	if got.err != nil || len(got.entries) != 2 {
		t.Fatal(got.err, got.bad)
	}
	if e, d := got.entries[0], got.entries[1]; e.ID != "urn:x:1" || e.Links[0].Href != "http://example.org/dir/sub/a" || d.ID != "urn:x:2" || !d.Tombstone {
		t.Errorf("%+v\n%+v", e, d)
	}
}

// What is text, what is a relation and what is a media type (RFC 4287 3.1, 4.2.7).
func TestText(t *testing.T) {
	for _, c := range []struct{ title, want string }{
		{`<title type="html">a&lt;br>b&lt;script>x &lt; "&lt;/b>"&lt;/script>&lt;style>p { }&lt;/style>&lt;p>c&lt;/p>&lt;li>d</title>`, "a b c d"},
		{`<title type="html">&lt;i>a&lt;/i>b &amp;amp; c</title>`, "ab & c"},
		{"<title>a &lt;b>\n\t c </title>", "a <b> c"},
	} {
		if got := readString(strings.Replace(feedOf(""), "<title>F</title>", c.title, 1)); got.err != nil || got.feed.Title != c.want {
			t.Errorf("%s: %q, %v, want %q", c.title, got.feed.Title, got.err, c.want)
		}
	}
	for rel, want := range map[string]string{"": "alternate", " ": "alternate", ianaRelation: "alternate", ianaRelation + "Self": "self", "VIA": "via", "urn:X": "urn:X"} {
		if got := relation(rel); got != want {
			t.Errorf("the relation %q is %q, want %q", rel, got, want)
		}
	}
	for typ, want := range map[string]bool{"text/html": true, "text/html; charset=utf-8": true, "application/atom+xml ; type=entry": true,
		"": false, "text": false, "text/": false, "/html": false, "text/html/x": false, "te xt/html": false, "text/html; a=\x01": false, "text/html; a=\u00e9": false} {
		if CanBeType(typ) != want {
			t.Errorf("a media type %q: %t", typ, !want)
		}
	}
	for k, want := range map[Kind]string{Active: "active", Deletion: "deletion", 0: "unknown"} {
		if k.String() != want {
			t.Errorf("kind %d is %q, want %q", k, k, want)
		}
	}
}

// TestInputKeepsContext reads an entry again outside of its document.
func TestInputKeepsContext(t *testing.T) {
	const doc = `<p:feed xmlns:p="http://www.w3.org/2005/Atom" xmlns:q="urn:q&quot;&amp;" xmlns="urn:d" xml:base="sub&amp;/">` +
		`<p:entry q:a="1"><x/><p:id>urn:x:ü</p:id><p:updated>2020-01-01T00:00:00Z</p:updated><p:title>T</p:title><p:link href="r" q:b="2"/></p:entry></p:feed>`
	latin := strings.ReplaceAll(doc, "ü", "\xfc")
	for _, tt := range []struct{ name, doc, contentType string }{{"UTF-8", doc, ""}, {"Latin-1", latin, "text/xml; charset=iso-8859-1"}} {
		t.Run(tt.name, func(t *testing.T) {
			got := readAll(strings.NewReader(tt.doc), ReadOptions{URL: docURL, ContentType: tt.contentType})
			if got.err != nil || len(got.entries) != 1 {
				t.Fatal(got.err, got.bad)
			}
			again := readAll(bytes.NewReader(got.inputs[0]), ReadOptions{URL: docURL})
			if again.err != nil || len(again.entries) != 1 {
				t.Fatal(again.err, again.bad)
			}
			want, e := *got.entries[0], again.entries[0]
			want.Line, want.Column = e.Line, e.Column
			if !reflect.DeepEqual(want, *e) || e.ID != "urn:x:ü" || e.Links[0].Href != "http://example.org/dir/sub&/r" {
				t.Errorf("%+v\n%+v", want, *e)
			}
		})
	}
}

// TestInputAcrossChunks: entries lie anywhere in the window that is kept of the
// document, and one may be larger than it.
func TestInputAcrossChunks(t *testing.T) {
	long := `<entry><id>urn:x:long</id><summary>` + strings.Repeat("x", 300_000) + `</summary>` + goodRest + `</entry>`
	doc := bytes.Replace(plainFeed(1000), []byte("</feed>"), []byte(long+long+"</feed>"), 1)
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(doc), "bytes": iotest.OneByteReader(bytes.NewReader(doc)), "data with EOF": iotest.DataErrReader(bytes.NewReader(doc))} {
		t.Run(name, func(t *testing.T) {
			got := readAll(r, ReadOptions{})
			if got.err != nil || len(got.entries) != 1002 {
				t.Fatal(got.err, len(got.entries))
			}
			for i, e := range got.entries {
				again := readAll(bytes.NewReader(got.inputs[i]), ReadOptions{})
				if again.err != nil || len(again.entries) != 1 || again.entries[0].ID != e.ID {
					t.Fatalf("entry %d: %v", i, again.err)
				}
			}
			if !bytes.Contains(got.inputs[1000], []byte(long)) {
				t.Error("the long entry is not whole")
			}
		})
	}
}

func TestProblems(t *testing.T) {
	const open = `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:x:f</id><title>F</title><author/>`
	entry := func(at string) string {
		return `<entry><id>urn:x:1</id><title/><updated>` + at + `</updated><link type="a/b" href="x"/></entry>`
	}
	const up = `<updated>2020-01-01T00:00:00Z</updated>`
	tests := []struct{ name, doc, rules string }{
		{"S1", open + up + entry("2020-01-01T00:00:00.000000001Z") + `</feed>`, "S1"},
		{"S1 equal", open + up + entry("2020-01-01T10:00:00+10:00") + `</feed>`, ""},
		{"S1 with updated at the end", open + entry("2021-01-01T00:00:00Z") + entry("2020-06-01T00:00:00Z") + up + `</feed>`, "S1"},
		{"no updated", open + entry("2021-01-01T00:00:00Z") + `</feed>`, "4287-feed"},
		{"bad updated", open + `<updated>now</updated>` + entry("2021-01-01T00:00:00Z") + `</feed>`, "4287-date"},
		{"white space around updated", open + "<updated>\n2020-01-01T00:00:00Z </updated></feed>", "4287-date"},
		{"two of each", open + up + up + `<id>urn:x:g</id><title/></feed>`, "4287-feed 4287-feed 4287-feed"},
		{"S7", open + up + `<fh:complete/><entry><id>urn:x:1</id><title/><updated>2019-01-01T00:00:00Z</updated><content/></entry></feed>`, "S7"},
		{"S7 with complete at the end", open + up + `<entry><id>urn:x:1</id><title/><updated>2019-01-01T00:00:00Z</updated><content/></entry><fh:complete/></feed>`, "S7"},
		{"two prev-archives", open + up + `<link rel="prev-archive" href="a"/><link rel="prev-archive" href="b"/></feed>`, "5005-prev-archive"},
		{"bad base", strings.Replace(open, "<feed", `<feed xml:base=":"`, 1) + up + `</feed>`, "4287-base"},
		{"id with white space", strings.Replace(open, "urn:x:f", " urn:x:f\n", 1) + up + `</feed>`, "4287-id"},
		{"id that is no IRI", strings.Replace(open, "urn:x:f", "12", 1) + up + `</feed>`, "4287-id"},
		{"no author", strings.Replace(open, "<author/>", "", 1) + up + entry("2019-01-01T00:00:00Z") + entry("2019-01-01T00:00:00Z") + `</feed>`, "4287-feed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readString(tt.doc)
			if got.err != nil || len(got.bad) != 0 {
				t.Fatal(got.err, got.bad)
			}
			if rules := strings.Join(got.rules(), " "); rules != tt.rules {
				t.Errorf("reported %v, want %s", got.problems, tt.rules)
			}
			for _, p := range got.problems {
				if p.URL != docURL || p.Found == "" || p.Expected == "" || !strings.Contains(p.String(), docURL) {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}

func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		if r.ID == "" || r.Title == "" || r.Clause == "" || seen[r.ID] {
			t.Errorf("%+v", r)
		}
		seen[r.ID] = true
	}
	for i := 1; i <= 11; i++ {
		if !seen[fmt.Sprintf("S%d", i)] {
			t.Errorf("S%d is missing", i)
		}
	}
}

// samples returns the documents of other people's software.
func samples(t *testing.T) []string {
	files, err := filepath.Glob("../../shared/samples/*/*")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("the samples folder is not there")
	}
	return files
}

func TestSamples(t *testing.T) {
	want := map[string][3]int{ // active, deletions, bad
		"archive-2009-01.atom":          {0, 0, 1},
		"archive-2009-02.atom":          {0, 2, 1},
		"index.atom":                    {0, 0, 2},
		"miletus-atom-feed-test-1a.xml": {3, 0, 0},
		"miletus-atom-feed-test-1b.xml": {2, 0, 0},
		"rinfo-feed_with_deleted.atom":  {0, 8, 0},
	}
	for _, file := range samples(t) {
		doc, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := readAll(iotest.OneByteReader(bytes.NewReader(doc)), ReadOptions{URL: docURL})
		var n [3]int
		for _, e := range got.entries {
			n[e.Kind-1]++
		}
		n[2] = len(got.bad)
		if got.err != nil || n != want[filepath.Base(file)] {
			t.Errorf("%s: %v, error %v", file, n, got.err)
		}
		for _, b := range got.bad {
			if b.Rule != "S10" || b.ID == "" {
				t.Errorf("%s: %v", file, b)
			}
		}
	}
}
