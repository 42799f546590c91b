package atompmh

import (
	"slices"
	"strings"
	"testing"
)

// strictDocument puts elements of a feed and entries into a document that is faultless also
// for a strict Reader.
func strictDocument(head, entries string) string {
	return `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:x:feed</id><title>F</title>` +
		`<updated>2030-01-01T00:00:00Z</updated><author><name>N</name></author><link rel="self" href="/feed"/>` + head + entries + `</feed>`
}

// Each rule that a strict Reader alone checks is reported at the element that breaks it, or
// for the document as a whole. What can be used is read all the same, by any Reader.
func TestStrict(t *testing.T) {
	entry := func(inner string) string { return `<entry><id>urn:x:1</id>` + goodRest + inner + `</entry>` }
	atFeed := func(inner string) string { return strictDocument(inner, entry("")) }
	atEntry := func(inner string) string { return strictDocument("", entry(inner)) }
	const mark, current = `<fh:archive/>`, `<link rel="current" href="c"/>`
	for _, c := range []struct {
		name, doc string
		want      []string // problems without the URL in front
	}{
		{"nothing", atFeed(""), nil},
		{"all that may be there", atFeed(`<generator/><icon/><logo/><rights type="xhtml"/><subtitle type="html"/>` + mark + current + `<link rel="next-archive" href="n"/>` +
			`<link type="text/html" hreflang="en" href="a"/><link type="text/html" hreflang="de" href="b"/>`), nil},

		{"two of a feed", atFeed("<icon/>\n<icon/>\n<rights>a</rights>\n<rights>a</rights>\n<rights>a</rights>"), []string{
			":2:1: 4287-feed: found a second atom:icon, expected at most one",
			":4:1: 4287-feed: found a second atom:rights, expected at most one",
			":5:1: 4287-feed: found a second atom:rights, expected at most one"}},
		{"two of an entry", atEntry("<published>2019-01-01T00:00:00Z</published><summary/>\n<summary/><source/>\n<source/>"), []string{
			`:2:1: 4287-entry: record "urn:x:1": found a second atom:summary, expected at most one`,
			`:3:1: 4287-entry: record "urn:x:1": found a second atom:source, expected at most one`}},
		{"one of each entry", strictDocument("", entry("<summary/>")+strings.Replace(entry("<summary/>"), "urn:x:1", "urn:x:2", 1)), nil},
		{"a language that is none", atEntry("\n<summary xml:lang='a_b'/><rights xml:lang=''/><link rel='via' href='a' hreflang='en-GB'/>\n<link rel='via' href='b' hreflang=''/>"), []string{
			`:2:1: 4287-lang: record "urn:x:1": found xml:lang "a_b", expected a language tag`,
			`:3:1: 4287-lang: record "urn:x:1": found hreflang "", expected a language tag`}},
		{"a text of another type", atFeed("\n<subtitle type='text/plain'/>"), []string{`:2:1: 4287-text: found type "text/plain", expected text, html or xhtml`}},
		{"a link of no media type", atEntry("\n<link rel='VIA' type='html' href='b'/>\n<link type='text/' href='c' hreflang='de'/>\n<link rel='via' href='d' type=' '/>"), []string{
			`:2:1: 4287-link-type: record "urn:x:1": found type "html", expected a media type, such as text/html`,
			`:3:1: pmh-type: record "urn:x:1": found type "text/", expected a media type, such as text/html`}},
		{"categories", atEntry("<category term='a' scheme='urn:s'/>\n<category label='b'/>\n<category term='c' scheme='s'/>"), []string{
			`:2:1: 4287-category: record "urn:x:1": found a category without a term, expected one`,
			`:3:1: 4287-category: record "urn:x:1": found scheme "s" of category "c", expected an IRI`}},
		{"persons", atFeed("\n<contributor><email>a@b.example</email></contributor>\n<contributor><name>A</name><name>B</name><uri>a</uri><email>no address</email></contributor>" +
			"\n<contributor><name>C</name><uri>:</uri></contributor>"), []string{
			":2:1: 4287-person: found a person with 0 name, 0 uri, 1 email, expected one name, and at most one of the others",
			":3:1: 4287-person: found a person with 2 name, 1 uri, 1 email, expected one name, and at most one of the others",
			`:3:1: 4287-person: found email "no address", expected an address`,
			":4:1: 4287-person: found a uri that is no IRI reference, expected an IRI reference"}},
		{"the id of a source", strictDocument("\n", entry("<source><id>1</id></source>")), []string{`:2:1: 4287-source: record "urn:x:1": found id "1" of atom:source, expected an absolute IRI`}},
		{"two states of one time", strictDocument("", entry("")+"\n"+strings.Replace(entry(""), "00:00:00Z", "01:00:00+01:00", 1)), []string{
			`:2:1: pmh-stamp: record "urn:x:1": found a second entry of the record with updated 2020-01-01T01:00:00+01:00, ` +
				"expected a later stamp for each change, which says what the newest state is"}},

		{"no self", strings.Replace(atFeed(""), `rel="self"`, `rel="license"`, 1), []string{": 4287-self: found no link self in the feed, expected the URI of this document"}},
		{"alternates of the feed", atFeed(`<link type="text/html" href="a"/><link type="text/html" href="b"/>`), []string{
			`: 4287-alternates: found two alternate links of the feed of type "text/html", hreflang "", expected one of each`}},
		{"next-archive without archive", atFeed(`<link rel="next-archive" href="n"/>`), []string{": 5005-archive: found next-archive without fh:archive, expected fh:archive"}},
		{"archive without current", atFeed(mark), []string{": 5005-current-link: found fh:archive without a link current, expected a link current to the subscription document"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			strict := readAll(strings.NewReader(c.doc), ReadOptions{URL: docURL, Strict: true})
			var got []string
			for _, p := range strict.problems {
				got = append(got, strings.TrimPrefix(p.String(), docURL))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			usual := readString(c.doc)
			if usual.err != nil || strict.err != nil || len(usual.bad)+len(strict.bad) > 0 || len(usual.entries) != len(strict.entries) || len(usual.entries) == 0 {
				t.Errorf("a strict Reader reads %d entries, %v %v, another one %d, %v %v", len(strict.entries), strict.bad, strict.err, len(usual.entries), usual.bad, usual.err)
			}
			if len(usual.problems) > 0 {
				t.Errorf("a Reader that is not strict reports %v", usual.problems)
			}
		})
	}
}

// A strict walk reports what an archive document should say of its place in the chain: that
// it is one, and, but for the newest, which one is next (RFC 5005 4).
func TestStrictWalk(t *testing.T) {
	const (
		self    = `<link rel="self" href="/self"/>`
		archive = self + `<fh:archive/><link rel="current" href="/feed"/>`
		newer   = `<link rel="next-archive" href="/n"/>`
	)
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/4", head: self}.String())
	s.put("/4", page{updated: 18, prev: "/3", head: self}.String())
	s.put("/3", page{updated: 15, prev: "/2", head: archive + newer}.String())
	s.put("/2", page{updated: 10, prev: "/1", head: archive}.String())
	s.put("/1", page{updated: 5, head: self + newer}.String())
	for _, strict := range []bool{true, false} {
		w := s.walk()
		w.Strict = strict
		got := s.run(w)
		got.expect(t, "/feed /4 /3 /2 /1", "")
		want := []string{
			"/4: 5005-archive: found an archive document without fh:archive, expected fh:archive before its entries",
			"/2: 5005-next-archive: found an archive document without next-archive before its entries, expected a link to the archive document after it",
			"/1: 5005-archive: found next-archive without fh:archive, expected fh:archive",
		}
		if !strict {
			want = nil
		}
		var problems []string
		for _, p := range got.problems {
			problems = append(problems, strings.TrimPrefix(p.String(), s.URL))
		}
		if !slices.Equal(problems, want) {
			t.Errorf("strict %t:\n%s\nwant\n%s", strict, strings.Join(problems, "\n"), strings.Join(want, "\n"))
		}
	}
}

// The problem of a chain that breaks off names the document that is not there.
func TestUnreachable(t *testing.T) {
	p := Unreachable("https://a.example/1", "HTTP 404 Not Found")
	if want := "https://a.example/1: pmh-chain: found HTTP 404 Not Found, expected the Atom Feed Document before this one in the chain"; p.String() != want {
		t.Errorf("got %s", p)
	}
}
