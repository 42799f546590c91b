package atompmh

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/mmcdole/gofeed/atom"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestDocumentFaults: what is no Atom feed is refused, and so is what package strictxml
// refuses, with the place.
func TestDocumentFaults(t *testing.T) {
	const root = `<feed xmlns="http://www.w3.org/2005/Atom">`
	for doc, want := range map[string]string{
		"": "1:1: the document is empty",
		`{"version":"https://jsonfeed.org/version/1"}`: "1:1: text outside",
		`<entry xmlns="http://www.w3.org/2005/Atom"/>`: "1:1: an Atom Entry Document",
		`<rss version="2.0"/>`:                         "1:1: RSS 2.0",
		`<!doctype HTML><html/>`:                       "1:1: an HTML page",
		`<feed xmlns="http://purl.org/atom/ns#"/>`:     "1:1: an Atom 0.3",
		`<feed xmlns="http://www.w3.org/2005/Atom/"/>`: "nearly",
		`<feed xmlns="http://www.w3.org/2005/atom"/>`:  "nearly",
		`<feed xmlns="https://www.w3.org/2005/Atom"/>`: "nearly",
		`<FEED xmlns="http://www.w3.org/2005/Atom"/>`:  "nearly",
		`<feed/>`: "without a namespace",
		root + "\n<id>x</id>\n  <title>\n</id></feed>":      "4:1: <title> is closed by </id>",
		root + `<title>&nbsp;</title></feed>`:               "&nbsp;",
		root + `</feed>` + root + `</feed>`:                 "second root",
		`<?xml version="1.0" encoding="x-klingon"?>` + root: "x-klingon",
	} {
		got := readString(doc)
		var fault *DocumentError
		if !errors.As(got.err, &fault) || fault.Cap != "" || !strings.HasPrefix(fault.Error(), docURL+":") || !strings.Contains(fault.Error(), want) {
			t.Errorf("%s: error %v, want %s", doc, got.err, want)
		}
	}
}

// TestErrorsStay asks again after the end.
func TestErrorsStay(t *testing.T) {
	r := NewReader(strings.NewReader("<rss/>"), ReadOptions{})
	_, first := r.Head()
	_, second := r.Head()
	_, third := r.Next()
	if first == nil || second != first || third != first {
		t.Error(first, second, third)
	}
	r = NewReader(strings.NewReader(feedOf("")), ReadOptions{})
	for range 3 {
		if _, err := r.Next(); err != io.EOF {
			t.Fatal(err)
		}
		if r.Input() != nil {
			t.Error("input without an entry")
		}
	}
}

// TestCaps: each field of Limits reaches the scanner.
func TestCaps(t *testing.T) {
	doc := feedOf(`<x a="" b=""><y>` + strings.Repeat("z", 1000) + `</y></x>`)
	for _, tt := range []struct {
		reached, exceeded Limits
		cap               string
	}{
		{Limits{Document: int64(len(doc))}, Limits{Document: int64(len(doc)) - 1}, "document"},
		{Limits{Depth: 3}, Limits{Depth: 2}, "depth"},
		{Limits{Attributes: 4}, Limits{Attributes: 3}, "attributes"}, // of the root
		{Limits{Text: 1000}, Limits{Text: 999}, "text"},
	} {
		if got := readAll(strings.NewReader(doc), ReadOptions{Limits: tt.reached}); got.err != nil {
			t.Error(got.err)
		}
		got := readAll(strings.NewReader(doc), ReadOptions{Limits: tt.exceeded})
		var fault *DocumentError
		if !errors.As(got.err, &fault) || fault.Cap != tt.cap || !strings.Contains(fault.Error(), tt.cap) {
			t.Errorf("error %v, want cap %s", got.err, tt.cap)
		}
	}
}

// TestCut reads every prefix of a document: none of them may seem whole.
func TestCut(t *testing.T) {
	testenv.Heavy(t)
	doc := plainFeed(33)
	doc = doc[:bytes.LastIndexByte(doc, '>')+1]
	if got := readAll(bytes.NewReader(doc), ReadOptions{}); got.err != nil || len(got.entries) == 0 || len(got.bad) != 0 || len(doc) < 8<<10 {
		t.Fatal(got.err, got.bad, len(doc))
	}
	for n := range doc {
		got := readAll(bytes.NewReader(doc[:n]), ReadOptions{})
		if !errors.As(got.err, new(*DocumentError)) {
			t.Fatalf("cut at %d: %v", n, got.err)
		}
	}
}

// TestCutEntries reads every prefix of a document with all that an entry may have: an entry
// that is cut off is not handed out, whichever way it is read.
func TestCutEntries(t *testing.T) {
	doc := feedOf(`<link href="f"/><contributor><name>C</name><uri>c</uri></contributor><at:deleted-entry ref="urn:x:1" when="2020-01-01T00:00:00Z">` +
		`<at:by><name>A</name></at:by><at:x><y/></at:x></at:deleted-entry><entry><id>urn:x:2</id><title type="xhtml"><b>T</b></title><updated>2020-01-01T00:00:00Z</updated>` +
		`<content><x/></content><link href="a" type="a/b"/><source><x xmlns="urn:x">y</x><id>urn:s</id><link href="s"/></source></entry>` +
		`<entry><id>urn:x:3</id><title>T</title><updated>2020-01-01T00:00:00Z</updated><content type="a/b">AAAA</content></entry>`)
	for _, o := range []ReadOptions{{}, {Content: true}, {Strict: true}} {
		for n := range doc {
			got := readAll(strings.NewReader(doc[:n]), o)
			whole := strings.Count(doc[:n], "</entry>") + strings.Count(doc[:n], "</at:deleted-entry>")
			var fault *DocumentError
			if !errors.As(got.err, &fault) || len(got.entries)+len(got.bad) != whole {
				t.Fatalf("%+v, cut at %d: %d entries, %d bad, want %d, and %v", o, n, len(got.entries), len(got.bad), whole, got.err)
			}
		}
	}
}

// Each error says where, what is wrong and by which rule, or what to do.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		got  error
		want string
	}{
		{&EntryError{Rule: "S10", URL: "http://a.example/", Line: 3, Column: 4, ID: "urn:x:1", Reason: "no link"}, `http://a.example/:3:4: bad entry "urn:x:1": no link [S10]`},
		{&EntryError{Rule: "4287-id", Line: 3, Column: 4, Reason: "no id"}, "document:3:4: bad entry: no id [4287-id]"},
		{&RuleError{Rule: "S1", Place: "entry urn:x:1", Broken: "too late"}, "atompmh: entry urn:x:1: too late [S1]"},
		{&TooManyError{URL: "http://a.example/", Read: 9}, "http://a.example/: too many documents in one walk: 9 were read; if the feed is that long, raise the cap and go on"},
	} {
		if c.got.Error() != c.want {
			t.Errorf("got  %v\nwant %s", c.got, c.want)
		}
	}
	for want, gap := range map[string]Gap{
		"http://a.example/1: HTTP 404": {URL: "http://a.example/1", Reason: "HTTP 404"},
		"http://a.example/1:1:1: RSS":  {URL: "http://a.example/1", Reason: "http://a.example/1:1:1: RSS"},
	} {
		if gap.String() != want {
			t.Errorf("got %s, want %s", gap, want)
		}
	}
}

// TestSecondOpinion compares with gofeed where gofeed can be believed: plain
// identifiers, absolute links.
func TestSecondOpinion(t *testing.T) {
	doc := plainFeed(50)
	got := readAll(bytes.NewReader(doc), ReadOptions{URL: docURL})
	other, err := (&atom.Parser{}).Parse(bytes.NewReader(doc))
	if err != nil || got.err != nil || len(got.entries) != len(other.Entries) {
		t.Fatal(err, got.err, len(got.entries))
	}
	if got.feed.ID != other.ID || got.feed.Title != other.Title || !got.feed.Updated.Equal(*other.UpdatedParsed) {
		t.Errorf("%+v", got.feed)
	}
	for i, e := range got.entries {
		o := other.Entries[i]
		if e.ID != o.ID || e.Title != o.Title || !e.Updated.Equal(*o.UpdatedParsed) || len(e.Links) != len(o.Links) {
			t.Fatalf("%+v\n%+v", e, o)
		}
		for j, l := range e.Links {
			if m := o.Links[j]; l.Href != m.Href || l.Rel != m.Rel || l.Type != m.Type {
				t.Errorf("%+v\n%+v", l, m)
			}
		}
	}
}
