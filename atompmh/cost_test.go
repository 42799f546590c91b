package atompmh

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// hostileFeeds are feeds of about n bytes that ask much of their reader.
func hostileFeeds(n int) map[string][]byte {
	const entry = `<entry><id>urn:x:1</id><title>t</title><updated>2020-01-01T00:00:00Z</updated>`
	feed := func(root, content string) []byte {
		return []byte(`<feed xmlns="http://www.w3.org/2005/Atom"` + root + `><id>urn:x</id><title>t</title><updated>2020-01-01T00:00:00Z</updated>` + content + "</feed>")
	}
	fill := func(each string) string { return strings.Repeat(each, max(1, n/len(each))) }
	var declared strings.Builder
	for i := range 250 {
		fmt.Fprintf(&declared, ` xmlns:p%d="urn:%s"`, i, strings.Repeat("n", n/1000))
	}
	base := ` xml:base="http://h.example/` + strings.Repeat("b", 8000) + `/"`
	docs := map[string][]byte{
		"an entry of equal alternates":          feed("", entry+fill(`<link type="text/xml" href="http://h.example/r"/>`)+"</entry>"),
		"a feed of links":                       feed("", fill(`<link rel="prev-archive" href="r"/>`)),
		"bad entries under long declarations":   feed(declared.String(), fill("<entry/>")),
		"entries under a long base":             feed(base, fill(`<entry><id>urn:x:1</id><updated>2020-01-01T00:00:00Z</updated><link href="1"/></entry>`)),
		"bad entries under a long base":         feed(base, fill("<entry/>")),
		"contents with a src under a long base": feed(base, entry+fill(`<content src="1"/>`)+"</entry>"),
		"many ids":                              feed("", entry+fill("<id>urn:x:1</id>")+"</entry>"),
		"a long id":                             feed("", "<entry><id>urn:"+fill("x")+"</id></entry>"),
		"a title of HTML":                       feed("", `<entry><title type="html">`+fill("&lt;script>")+"</title></entry>"),
		"a title of references in HTML":         feed("", `<entry><title type="html">`+fill("&amp;lt;")+"</title></entry>"),
		"entries later than a long stamp":       []byte(`<feed xmlns="` + Namespace + `"><updated>2020-01-01T00:00:00.` + fill("0") + "Z</updated>" + fill("<entry><id>urn:x:1</id><updated>2020-01-02T00:00:00Z</updated><content/></entry>") + "</feed>"),
		"dates that are none":                   feed("", fill("<entry><id>urn:x:1</id><updated>2020-01-01T00:00:00.0000000000000000000000000000</updated></entry>")),
	}
	for name, element := range testenv.Hostile(n) {
		docs["in an entry: "+name] = feed("", entry+element+"</entry>")
		docs["in a title: "+name] = feed("", `<entry><title type="xhtml">`+element+"</title></entry>")
	}
	return docs
}

// readWhole reads a document as a harvest does, which keeps what is bad.
func readWhole(doc []byte) {
	r := NewReader(bytes.NewReader(doc), ReadOptions{URL: "http://h.example/feed", Report: func(Problem) {}})
	for {
		_, err := r.Next()
		var bad *EntryError
		if err != nil && !errors.As(err, &bad) {
			return
		}
	}
}

// D60, D61, D77, D103: whatever is in a feed, reading it costs time and memory in
// proportion to its length.
func TestCost(t *testing.T) { testenv.AffordableAll(t, hostileFeeds(512<<10), 1, readWhole) }

// FuzzCost: the same of any document.
func FuzzCost(f *testing.F) { testenv.FuzzAffordable(f, hostileFeeds(16<<10), 1, readWhole) }

// FuzzTimeCost: reading a stamp costs time and memory in proportion to its length.
func FuzzTimeCost(f *testing.F) {
	for _, s := range []string{"2020-01-01T00:00:00Z", "2020-01-01T00:00:00.", "", strings.Repeat("0", 1<<20), "2020-01-01T00:00:00." + strings.Repeat("0", 1<<20) + "Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		testenv.Affordable(t, len(s), func() { _, _ = ParseTime(s) })
	})
}

// An entry with more links than anybody can use is bad, and the reading goes on
// after it (D102). Of a feed and of an atom:source as many are kept.
func TestManyLinks(t *testing.T) {
	links := strings.Repeat(`<link rel="x" href="http://h.example/x"/>`, maxLinks)
	entry := func(more string) string {
		return `<entry><id>urn:x:1</id><title>t</title><updated>2020-01-01T00:00:00Z</updated><link href="http://h.example/r"/>` + more + `</entry>`
	}
	got := readAll(strings.NewReader(feedOf(links+links+entry("")+entry(links)+entry("<source>"+links+links+"</source>"))), ReadOptions{URL: docURL})
	if got.err != nil || len(got.entries) != 2 || len(got.bad) != 1 || !strings.Contains(got.bad[0].Reason, "more than 10000 links") {
		t.Errorf("%d entries, %v, %v", len(got.entries), got.bad, got.err)
	}
	if n := len(got.feed.Links); n != maxLinks {
		t.Errorf("the feed has %d links", n)
	}
	if n := len(got.entries[1].Source.Links); n != maxLinks {
		t.Errorf("the source has %d links", n)
	}
}

// The same of categories.
func TestManyCategories(t *testing.T) {
	categories := strings.Repeat(`<category term="a"/>`, maxCategories)
	entry := func(more string) string {
		return `<entry><id>urn:x:1</id><title>t</title><updated>2020-01-01T00:00:00Z</updated><link href="http://h.example/r"/>` + more + `</entry>`
	}
	got := readAll(strings.NewReader(feedOf(categories+categories+entry(categories)+entry(categories+`<category term="b"/>`)+entry("<source>"+categories+categories+"</source>"))), ReadOptions{URL: docURL})
	if got.err != nil || len(got.entries) != 2 || len(got.bad) != 1 || !strings.Contains(got.bad[0].Reason, "more than 20000 categories") {
		t.Fatalf("%d entries, %v, %v", len(got.entries), got.bad, got.err)
	}
	for what, n := range map[string]int{"feed": len(got.feed.Categories), "source": len(got.entries[1].Source.Categories)} {
		if n != maxCategories+1 {
			t.Errorf("the %s has %d categories", what, n)
		}
	}
}

// The same of persons.
func TestManyPersons(t *testing.T) {
	for _, role := range []string{"author", "contributor"} {
		persons := strings.Repeat("<"+role+"><name>a</name></"+role+">", maxPersons)
		one := "<" + role + "><email>b</email></" + role + ">"
		entry := func(more string) string {
			return `<entry><id>urn:x:1</id><title>t</title><updated>2020-01-01T00:00:00Z</updated><link href="http://h.example/r"/>` + more + `</entry>`
		}
		got := readAll(strings.NewReader(feedOf(persons+persons+entry(persons)+entry(persons+one)+entry("<source>"+persons+persons+"</source>"))), ReadOptions{URL: docURL})
		if got.err != nil || len(got.entries) != 2 || len(got.bad) != 1 || !strings.Contains(got.bad[0].Reason, "more than 20000 authors") {
			t.Fatalf("%s: %d entries, %v, %v", role, len(got.entries), got.bad, got.err)
		}
		for what, m := range map[string]*Metadata{"feed": &got.feed.Metadata, "source": &got.entries[1].Source.Metadata} {
			if n := len(m.Authors) + len(m.Contributors); n < maxPersons || n > maxPersons+2 { // the feed has an author of its own
				t.Errorf("the %s has %d of role %s", what, n, role)
			}
		}
	}
}

// What is wrong in front of the first entry is not kept, however much of it there is.
func TestHeldIsBounded(t *testing.T) {
	d := &Document{}
	d.reader = NewReader(strings.NewReader(`<feed xmlns="`+Namespace+`">`+strings.Repeat("<updated>soon</updated>", 10_000)+`</feed>`), ReadOptions{Report: d.problem})
	if _, err := d.reader.Next(); err == nil || len(d.held) == 0 || len(d.held) > maxHeld {
		t.Errorf("%v, %d are kept", err, len(d.held))
	}
}
