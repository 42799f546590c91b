package daemon_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// What comes out of a row of bridges is what the origin's own history says:
// records, identifiers, titles, Modified to the nanosecond, deletions, the types
// of alternates, the bytes of contents, and the origin as the original. It is
// read by decoders that share nothing with the bridge.

// Atom-PMH -> bridge -> ResourceSync -> bridge -> Atom-PMH.
func TestRoundTripOfFeeds(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 4)
	rapid.Check(t, func(rt *rapid.T) {
		o := newAtomOrigin(t, fixtures.Options{PerArchive: rapid.SampledFrom([]int{0, 2, 5}).Draw(rt, "entries a document")})
		a, b := newRelay(t), newRelay(t)
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), a.lists()}, false)
	})
}

// ResourceSync -> bridge -> Atom-PMH, archived or complete -> bridge ->
// ResourceSync.
func TestRoundTripOfLists(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 4)
	rapid.Check(t, func(rt *rapid.T) {
		o := drawListOrigin(t, rt)
		a, b := newRelay(t), newRelay(t)
		from := a.archived()
		if rapid.Bool().Draw(rt, "complete feed") {
			from = a.whole()
		}
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), from}, false)
	})
}

func drawListOrigin(t *testing.T, rt *rapid.T) *listOrigin {
	return newListOrigin(t, fixtures.SourceOptions{
		PerList:     rapid.SampledFrom([]int{0, 2, 5}).Draw(rt, "changes a list"),
		PerPart:     rapid.SampledFrom([]int{0, 3}).Draw(rt, "entries a part"),
		Carry:       rapid.Bool().Draw(rt, "carries identifiers"),
		ChangeLists: rapid.SampledFrom([]fixtures.ChangeLists{fixtures.IndexedChangeLists, fixtures.SingleChangeList, fixtures.NoChangeLists}).Draw(rt, "change lists"),
	})
}

// wantRoundTrip runs bridges in a row, each in any mode with segments of any
// length, over an origin that changes; each may miss harvests of the one before.
// Where feeds are to be archived, the last changes are more than any segment
// holds, and each bridge has an archive document in the end.
func wantRoundTrip(rt *rapid.T, o origin, row []*relay, from []string, archived bool) {
	const longest = 10
	for i, r := range row {
		p := pool{content: rapid.SampledFrom([]string{config.Mirror, config.Mirror, config.Redirect, config.Reference}).Draw(rt, "content"),
			segment: rapid.IntRange(3, longest).Draw(rt, "events a segment"), sources: from[i : i+1]}
		if i == 0 {
			p.prefer = rapid.SampledFrom([]string{"", "text/plain"}).Draw(rt, "prefer")
		}
		r.run(p)
		defer r.end()
	}
	s := newRandomOrigin(rt, o)
	rounds := rapid.IntRange(2, 4).Draw(rt, "rounds")
	for round := 1; round <= rounds; round++ {
		for range rapid.IntRange(0, 8).Draw(rt, "changes") {
			s.change()
		}
		all := round == rounds
		if all && archived {
			for i := range longest + 1 {
				s.write(fmt.Sprint("late", i))
			}
		}
		for i, r := range row {
			// A bridge that sends others to its Source's content has to be up to
			// date, else they get content that it has not told of.
			if !all && i > 0 && rapid.IntRange(0, 3).Draw(rt, "misses this one") == 0 {
				break
			}
			full := rapid.IntRange(0, 4).Draw(rt, "full") == 0
			if i == 0 {
				r.take(rt, r.source(), harvest.Options{Full: full})
				r.observe(o.history(r.fetches, r.prefer), !o.hashed())
			} else {
				r.takeBridge(rt, full)
				r.observe(row[i-1].told(from[i]), !o.hashed() && !anyFetches(row[:i]))
			}
			r.wantPublished(rt)
		}
	}
	for i, r := range row {
		if archived && len(r.chain()) < 2 {
			rt.Errorf("bridge %d has no archive document", i+1)
		}
	}
}

func anyFetches(row []*relay) bool {
	for _, r := range row {
		if r.fetches {
			return true
		}
	}
	return false
}

// A provider that only has a complete feed gets an archived one, with deletion
// entries, which another bridge follows.
func TestCompleteFeedsBecomeArchived(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 4)
	rapid.Check(t, func(rt *rapid.T) {
		o := newAtomOrigin(t, fixtures.Options{Complete: true})
		a, b := newRelay(t), newRelay(t)
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), a.archived()}, true)
	})
}

// An aggregator: ResourceSync in, ResourceSync out.
func TestRoundTripOfAggregators(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 4)
	rapid.Check(t, func(rt *rapid.T) {
		o := drawListOrigin(t, rt)
		a, b := newRelay(t), newRelay(t)
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), a.lists()}, false)
	})
}

// Four bridges in a row, with one protocol after the other.
func TestRoundTripOfFour(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 2)
	rapid.Check(t, func(rt *rapid.T) {
		var o origin = newAtomOrigin(t, fixtures.Options{PerArchive: 3})
		if rapid.Bool().Draw(rt, "lists") {
			o = drawListOrigin(t, rt)
		}
		row, from := []*relay{newRelay(t)}, []string{o.source()}
		for i := range 3 {
			before := row[i]
			from = append(from, []string{before.lists(), before.archived()}[i%2])
			row = append(row, newRelay(t))
		}
		wantRoundTrip(rt, o, row, from, false)
	})
}

// detailedFeed has an entry and a tombstone that say all that Atom lets them say, and an
// entry that says it wrongly.
const detailedFeed = `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:at="http://purl.org/atompub/tombstones/1.0" xmlns:app="http://www.w3.org/2007/app" xml:lang="de">
<id>urn:x:feed</id><title>Karten</title><updated>2026-01-05T00:00:00Z</updated><author><name>Bibliothek</name></author>
<entry xml:lang="en"><id>urn:x:1</id><title xml:lang="fr">Carte &amp; plan</title><updated>2026-01-02T00:00:00.000000007Z</updated>
<published>2020-01-01T00:00:00Z</published><app:edited>2021-01-01T00:00:00.5Z</app:edited>
<author><name>A &lt;B></name><uri>https://a.example/</uri><email>a@a.example</email></author><contributor><name>C</name></contributor>
<category term="maps" scheme="https://s.example/" label="Maps"/><category term="old"/><rights>All rights "reserved"</rights>
<link href="1.xml" type="text/xml"/><link rel="license" href="https://licence.example/" type="text/html"/><link rel="profile" href="https://profile.example/"/>
<source><id>urn:x:first</id><title>First</title><updated>2019-01-01T00:00:00Z</updated><link rel="self" href="https://first.example/feed"/></source></entry>
<entry><id>urn:x:2</id><title>Two</title><updated>2026-01-03T00:00:00Z</updated>%s</entry>
<entry><id>urn:x:3</id><title>Three</title><updated>2026-01-04T00:00:00Z</updated><published>yesterday</published><author/>
<link href="1.xml" type="text/xml"/><link rel="license" href="file:///etc/passwd"/><link rel="profile" href="%%zz"/><source><id>urn:x:first</id></source></entry>
%s</feed>`

// Atom-PMH -> bridge -> ResourceSync -> bridge -> Atom-PMH, with what few records have.
func TestRoundTripOfDetails(t *testing.T) {
	first := fmt.Sprintf(detailedFeed, `<link href="1.xml" type="text/xml"/><source><id>urn:x:first</id></source>`, "")
	second := fmt.Sprintf(detailedFeed, "<content/>", `<at:deleted-entry ref="urn:x:2" when="2026-01-05T00:00:00Z" xml:lang="en"><at:by><name>The editor</name><uri>https://e.example/</uri></at:by>
<at:comment>Withdrawn &amp; replaced</at:comment><link rel="successor-version" href="https://o.example/2b"/><source><id>urn:x:other</id></source></at:deleted-entry>`)
	body := first
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/1.xml" {
			w.Header().Set("Content-Type", "text/xml")
			fmt.Fprint(w, "<r/>")
			return
		}
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	a, b := newRelay(t), newRelay(t)
	a.run(pool{sources: []string{"atompmh:" + server.URL + "/feed.atom"}})
	defer a.end()
	b.run(pool{sources: []string{a.lists()}})
	defer b.end()
	for _, body = range []string{first, second} {
		a.take(t, a.source(), harvest.Options{})
		b.takeBridge(t, false)
	}
	inA, inB := detailsOf(a, "feed.atom"), detailsOf(b, "feed.atom")
	if inA != inB {
		t.Errorf("the second bridge has\n%s\nthe first one\n%s", inB, inA)
	}
	if strings.Count(inA, "<entry") != 4 {
		t.Errorf("4 entries are wanted:\n%s", inA)
	}
	for _, want := range []string{`<entry xml:lang="en">`, `<title xml:lang="fr">Carte &amp; plan</title>`, `<published>2020-01-01T00:00:00Z</published>`, `>2021-01-01T00:00:00.5Z</app:edited>`,
		`<rights xml:lang="en">All rights &quot;reserved&quot;</rights>`, `<link rel="license" href="https://licence.example/" type="text/html"/>`, `<link rel="profile" href="https://profile.example/"/>`,
		`<name>The editor</name><uri>https://e.example/</uri></at:by>`, `xml:lang="en">Withdrawn &amp; replaced</at:comment>`, `<link rel="successor-version" href="https://o.example/2b"/>`,
		`<category term="maps" scheme="https://s.example/" label="Maps"/>`, `<source><id>urn:x:other</id></source>`} {
		if !strings.Contains(inA, want) {
			t.Errorf("the first bridge does not publish %s:\n%s", want, inA)
		}
	}
	if strings.Contains(inA, "passwd") {
		t.Errorf("a local file is published:\n%s", inA)
	}
	// A third bridge that reads the feed publishes the same lists as the second one.
	c := newRelay(t)
	c.run(pool{sources: []string{a.archived()}})
	defer c.end()
	c.take(t, c.source(), harvest.Options{})
	if fromList, fromFeed := detailsOf(b, "resourcelist.xml"), detailsOf(c, "resourcelist.xml"); fromList != fromFeed || !strings.Contains(fromList, "licence.example") {
		t.Errorf("a bridge that reads lists has\n%s\none that reads feeds\n%s", fromList, fromFeed)
	}
}

var ownDates = regexp.MustCompile(`(?m)<(updated|lastmod)>[^<]*</(updated|lastmod)>|^ <(updated|link|id|title|author|generator|rs:md|rs:ln).*\n`)

// detailsOf returns a document without its address, its head and the dates of the bridge.
func detailsOf(r *relay, document string) string {
	doc := string(r.get(r.setURL(document)).body)
	return ownDates.ReplaceAllString(strings.ReplaceAll(doc, r.base, "https://bridge.example"), "")
}
