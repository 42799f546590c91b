package harvest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// feedRun is a harvest of a feed that has been fetched.
func feedRun() *run {
	return &run{h: &Harvester{}, src: &Source{Kind: Feed, Set: "main", URL: "http://feeds.example/dir/feed", Content: event.Reference}}
}

// readFeed reads a document.
func readFeed(r *run, body []byte) (*feedDocument, error) {
	return r.newFeedReader(r.src.URL, "").read(body)
}

// itemsOf returns what a document says of its records, in its order, and the bad
// input.
func itemsOf(t testing.TB, r *run, doc *feedDocument) (items []*event.Item, bad []event.Quarantined) {
	t.Helper()
	p, b := r.newFeedPage(doc, &follow.Answer{URL: r.src.URL}), &backlog[*event.Item]{r: r}
	if _, err := p.read(b, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(b.values, func(it *event.Item) bool { return it.Quarantine }), b.quarantine
}

// harvested tells what a document comes to: the feed, its items, what is
// quarantined and what is reported.
func harvested(t testing.TB, r *run, doc *feedDocument) []string {
	t.Helper()
	lines := []string{join("feed", doc.Title, doc.ID, stampOrUnknown(doc.Updated).String())}
	r.advise(doc, r.src.URL)
	items, bad := itemsOf(t, r, doc)
	for i := range items {
		lines = append(lines, lineOf(items[i]))
	}
	for _, q := range bad {
		lines = append(lines, join("quarantined", q.Rule, q.Record, q.Reason))
	}
	for _, e := range r.report.Examples {
		lines = append(lines, fmt.Sprintf("reported %s %d", e.Rule, e.Count))
	}
	return lines
}

func lineOf(item *event.Item) string {
	if item.Deleted {
		return join("deleted", item.Record, item.Modified.String())
	}
	parts := []string{item.Record, item.Title, item.Modified.String()}
	for _, r := range item.Representations {
		parts = append(parts, strings.TrimSpace(kindOf(r.Type, r.Length)+" "+r.Href))
	}
	for _, l := range item.Links {
		parts = append(parts, l.Rel+" "+kindOf(l.Type, l.Length)+" "+l.Href)
	}
	if item.Via.Href != "" {
		parts = append(parts, "via "+item.Via.Href)
	}
	return join(parts...)
}

func kindOf(mediaType string, length int64) string {
	if length == event.NoLength {
		return mediaType
	}
	return fmt.Sprintf("%s %d", mediaType, length)
}

func join(parts ...string) string { return strings.Join(parts, " | ") }

// feedFiles returns the names of all legacy feeds.
func feedFiles(t testing.TB) []string {
	t.Helper()
	files, err := os.ReadDir("testdata/feeds")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	if len(names) < 50 {
		t.Fatalf("%d legacy feeds in testdata/feeds, want at least 50", len(names))
	}
	return names
}

func feedFile(t testing.TB, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata/feeds", name))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// Every legacy feed is harvested to what the table says, or refused for the
// reason that it says, and the table has every one.
func TestFeedDocuments(t *testing.T) {
	var named []string
	for _, tt := range feedTable() {
		named = append(named, tt.file)
		t.Run(tt.file, func(t *testing.T) {
			r := feedRun()
			var got []string
			doc, err := readFeed(r, feedFile(t, tt.file))
			if err != nil {
				got = []string{"refused | " + strings.TrimPrefix(err.Error(), r.src.URL+":")}
			} else {
				got = harvested(t, r, doc)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
		})
	}
	slices.Sort(named)
	if files := feedFiles(t); !slices.Equal(named, files) {
		t.Errorf("the table has\n\t%v\nthe folder\n\t%v", named, files)
	}
}

// What the caps refuse is refused whole.
func TestFeedCaps(t *testing.T) {
	testenv.Heavy(t)
	rss := func(item string) string {
		return `<rss version="2.0"><channel><title>T</title><item><title>First</title><link>http://a.example/1</link></item>` + item + `</channel></rss>`
	}
	small := Limits{Document: 1000, Depth: 20, Attributes: 10, Text: 300}
	for _, tt := range []struct {
		name, body string
		limits     Limits
		want       string
	}{
		{"10 MB of nested elements", rss(strings.Repeat("<x>", 3_000_000)), Limits{}, strictxml.CapDepth},
		{"deep in a title", rss("<item><title>" + strings.Repeat("<b>", 300)), Limits{}, strictxml.CapDepth},
		{"configured depth", rss("<item><title>" + strings.Repeat("<b>", 20) + strings.Repeat("</b>", 20) + "</title></item>"), small, strictxml.CapDepth},
		{"100,000 attributes", rss("<item" + strings.Repeat(` a="1"`, 100_000) + "/>"), Limits{}, strictxml.CapAttributes},
		{"configured attributes", rss(`<item a="" b="" c="" d="" e="" f="" g="" h="" i="" j="" k=""/>`), small, strictxml.CapAttributes},
		{"a text of 9 MiB", rss("<item><title>" + strings.Repeat("long ", 9<<20/5) + "</title></item>"), Limits{}, strictxml.CapText},
		{"configured text", rss("<item><title>" + strings.Repeat("long ", 61) + "</title></item>"), small, strictxml.CapText},
		{"configured length", rss(strings.Repeat("<item/>", 200)), small, strictxml.CapDocument},
		{"long behind the root", rss("") + strings.Repeat(" ", 1000), small, strictxml.CapDocument},
		{"JSON 1,000,000 deep", `{"items":[{"id":"1","url":"http://a.example/1"}],"x":` + strings.Repeat("[", 1_000_000), Limits{}, strictxml.CapDepth},
		{"JSON at the configured depth", `{"items":[{"id":"1","url":"http://a.example/1"}],"x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`, small, strictxml.CapDepth},
		{"JSON with a text of 9 MiB", `{"items":[{"id":"1","url":"http://a.example/1","title":"` + strings.Repeat("long ", 9<<20/5) + `"}]}`, Limits{}, strictxml.CapText},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := feedRun()
			r.src.Limits = tt.limits
			_, err := readFeed(r, []byte(tt.body))
			if fault, ok := errors.AsType[*strictxml.DocumentError](err); !ok || fault.Cap != tt.want || fault.URL != r.src.URL {
				t.Errorf("error %v, want one of cap %q", err, tt.want)
			}
		})
	}
}

// What is just within the caps is taken.
func TestFeedWithinCaps(t *testing.T) {
	body := `<rss version="2.0"><channel><item a="" b="" c="" d="" e="" f="" g="" h="" i="" j=""><title>` + strings.Repeat("<b>", 16) +
		strings.Repeat("long ", 59) + strings.Repeat("</b>", 16) + `</title><link>http://a.example/1</link></item></channel></rss>`
	r := feedRun()
	r.src.Limits = Limits{Document: int64(len(body)), Depth: 20, Attributes: 10, Text: 300}
	doc, err := readFeed(r, []byte(body))
	if err != nil || len(doc.items) != 1 || doc.items[0].rule != "" || len(doc.items[0].entry.Title) != 294 {
		t.Errorf("%+v, %v", doc, err)
	}
}

// A title that is longer than any is left out; the item stays.
func TestFeedLongTitle(t *testing.T) {
	r := feedRun()
	doc, err := readFeed(r, []byte(`<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>1</id><title>`+strings.Repeat("x", elementBytes+1)+`</title><link href="/1"/></entry></feed>`))
	if err != nil {
		t.Fatal(err)
	}
	if got := doc.items[0].entry; got.ID != "1" || got.Title != "" || r.report.Problems != 1 {
		t.Errorf("%+v, %+v", got, r.report)
	}
}

// An edit that changes neither date nor link changes the claim; reading the same
// again does not.
func TestFeedClaim(t *testing.T) {
	body := string(feedFile(t, "rss-20.xml"))
	claims := func(body string) (out []int64) {
		r := feedRun()
		doc, err := readFeed(r, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := range doc.items {
			item, err := r.feedItem(&doc.items[i])
			if err != nil {
				t.Fatal(err)
			}
			if item.Order.Known() {
				t.Error("a feed has no order")
			}
			out = append(out, item.Claim)
		}
		return out
	}
	first, again := claims(body), claims(strings.Replace(body, "<description>Acquisitions</description>", "", 1))
	if !slices.Equal(first, again) {
		t.Errorf("claims %v, then %v", first, again)
	}
	edited := claims(strings.Replace(body, "Forty letters", "Forty-one letters", 1))
	if edited[0] == first[0] || edited[1] != first[1] {
		t.Errorf("claims %v, after an edit of the first item %v", first, edited)
	}
}

// A stamp is a stamp whatever the time zone of this machine is called.
func TestFeedZones(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	time.Local = time.FixedZone("AEST", 10*3600)
	for date, want := range map[string]string{
		"Tue, 07 Jan 2025 09:05:03 AEST":     "",
		"Tue, 07 Jan 2025 09:05:03 EST":      "2025-01-07T14:05:03Z",
		"Tue, 07 Jan 2025 09:05:03 +1000":    "2025-01-06T23:05:03Z",
		"2025-01-07T09:05:03":                "2025-01-07T09:05:03Z",
		"Tue Jan  7 09:05:03 EST 2025":       "2025-01-07T14:05:03Z",
		"Tue Jan  7 09:05:03 AEST 2025":      "",
		"Tue Jan  7 09:05:03 JST 2025":       "",
		"Tue, 07 Jan 2025 09:05:03 ChST":     "",
		"07 JAN 2025":                        "2025-01-07T00:00:00Z",
		"Tue, 7 Jan 2025 09:05:03 +03":       "2025-01-07T06:05:03Z",
		"Tue, 07 Jan 2025 09:05:03 -03":      "2025-01-07T12:05:03Z",
		"Tue, 7 Jan 2025 09:05:03 +3":        "2025-01-07T06:05:03Z",
		"Tue, Jan 7 2025 09:05:03 -700":      "2025-01-07T16:05:03Z",
		"Tue, 07 Jan 2025 09:05 GMT+2":       "2025-01-07T07:05:00Z",
		"Tue, 7 Jan 2025 09:05:03 GMT-8":     "2025-01-07T17:05:03Z",
		"Tue, 7 Jan 2025 09:05:03 UTC+10":    "2025-01-06T23:05:03Z",
		"Tue, 7 Jan 2025 09:05:03 GMT+05:30": "2025-01-07T03:35:03Z",
		"2025-01-07 09:05:03 +03":            "2025-01-07T06:05:03Z",
		"2025-01-07 09:05:03+03":             "2025-01-07T06:05:03Z",
		"2025-01-07T09:05:03-05":             "2025-01-07T14:05:03Z",
		"2025-01-07T09:05-05:00":             "2025-01-07T14:05:00Z",
		"2025-01-07T09:05:03-05:30":          "2025-01-07T14:35:03Z",
		"2016-12-31t23:59:60z":               "2017-01-01T00:00:00Z",
		"1677-01-01T00:00:00Z":               "1678-01-01T00:00:00Z",
	} {
		doc, err := readFeed(feedRun(), []byte(`<rss version="2.0"><channel><item><link>http://a.example/1</link><pubDate>`+date+`</pubDate></item></channel></rss>`))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := event.StampOf(doc.items[0].entry.Updated)
		if got.String() != want {
			t.Errorf("%s: %q, want %q", date, got, want)
		}
	}
}

// UTF-16 whose beginning does not say so is refused: without its zero bytes other
// characters would be left.
func TestFeedUTF16BehindSomething(t *testing.T) {
	var doc []byte
	for _, c := range `<rss><channel><item><guid>ą</guid><link>http://a.example/1</link></item></channel></rss>` {
		doc = append(doc, byte(c>>8), byte(c))
	}
	if _, err := readFeed(feedRun(), doc); err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{" ", "\ufeff", "\ufeff \n", strings.Repeat("\n", 4000)} {
		if feed, err := readFeed(feedRun(), append([]byte(before), doc...)); err == nil || !strings.Contains(err.Error(), "zero bytes") {
			t.Errorf("behind %.10q: %v, %v", before, feed, err)
		}
	}
}

// The date of an atom:source has the form of RFC 4287, or counts for nothing. An entry
// may have any number of sources: the forms of dates that items have are not tried.
func TestFeedSourceDate(t *testing.T) {
	for date, want := range map[string]string{
		"2025-01-07T09:05:03Z":          "2025-01-07T09:05:03Z",
		"Tue, 07 Jan 2025 09:05:03 EST": "",
		"Mon, 99 Foo":                   "",
	} {
		r := feedRun()
		doc, err := readFeed(r, []byte(`<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>urn:1</id><link href="http://a.example/1"/><source><id>urn:s</id><updated>`+date+`</updated></source></entry></feed>`))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := event.StampOf(doc.items[0].entry.Source.Updated)
		if got.String() != want || len(r.report.Examples) > 0 {
			t.Errorf("%s: %q, want %q; reported %v", date, got, want, r.report.Examples)
		}
	}
}

// A date that is left out is named with the reason.
func TestFeedDateLeftOut(t *testing.T) {
	for date, want := range map[string]string{
		"Mon, 01 Jan 0001 00:00:00 GMT": "is left out: programs write it for no date",
		"0001-01-01T00:00:00+01:00":     "is left out: programs write it for no date",
		"0000-01-01T00:00:00Z":          "is left out: programs write it for no date",
		"Tue, 7 Jan 09:05:03 GMT":       "or it has no year",
		"Tue, 7 Jan 0025 09:05:03 GMT":  "or it has no year",
		"0025-01-07T09:05:03Z":          "or it has no year",
		"Tue Jan  7 09:05:03 JST 2025":  `is left out: time zone "JST" is not known`,
		"Fri, 31 Dec 9999 23:59:59 GMT": "is left out: its year is after 2261",
		"garbage":                       "is left out: it is not in a form of date that is known",
	} {
		r := feedRun()
		if _, err := readFeed(r, []byte(`<rss version="2.0"><channel><title>t</title><item><guid>1</guid><pubDate>`+date+`</pubDate></item></channel></rss>`)); err != nil {
			t.Fatal(err)
		}
		if got := r.report.Examples; len(got) != 1 || !strings.Contains(got[0].First, want) {
			t.Errorf("%s: %+v, want %s", date, got, want)
		}
	}
}

// FuzzFeed: no document makes the reading panic or exceed its caps, and what is
// taken can be used.
func FuzzFeed(f *testing.F) {
	for _, name := range feedFiles(f) {
		f.Add(feedFile(f, name))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := feedRun()
		r.src.Limits = Limits{Document: 64 << 10, Depth: 16, Attributes: 16, Text: 4096}
		doc, err := readFeed(r, body)
		if err != nil {
			return
		}
		items, bad := itemsOf(t, r, doc)
		for _, item := range items {
			if item.Record == "" || item.Deleted == (len(item.Representations) > 0) || !utf8.ValidString(item.Record+item.Title) || !strictxml.Holds(item.Title) {
				t.Errorf("taken: %+v", item)
			}
			for _, rep := range item.Representations {
				if !onTheWeb(rep.Href) || strings.ContainsAny(rep.Href, " <>\"") {
					t.Errorf("link %q", rep.Href)
				}
			}
		}
		for i := range bad {
			_, _ = (&feedWalk{r: r}).reread(t.Context(), &bad[i]) // it may be good alone
		}
	})
}

// D88: of an item that stands in a feed twice the latest counts, of equally late
// ones the first.
func TestFeedTakesTheLatestOfTwins(t *testing.T) {
	item := func(title, date string) string {
		return "<item><guid>urn:x:1</guid><title>" + title + "</title><link>http://feeds.example/1</link><pubDate>" + date + "</pubDate></item>"
	}
	const early, late = "Mon, 05 Jan 2026 10:00:00 GMT", "Tue, 06 Jan 2026 10:00:00 GMT"
	for _, c := range []struct{ items, want string }{
		{item("a", early) + item("b", late), "b"},
		{item("a", late) + item("b", early), "a"},
		{item("a", late) + item("b", late), "a"},
		{item("a", early) + item("b", late) + item("c", late), "b"},
	} {
		r := feedRun()
		doc, err := readFeed(r, []byte(`<rss version="2.0"><channel><title>t</title>`+c.items+"</channel></rss>"))
		if err != nil {
			t.Fatal(err)
		}
		if w := doc.latestItems(r.src.URL, r.problem); len(w) != 1 || w["urn:x:1"].entry.Title != c.want {
			t.Errorf("%s: %d records, the first is %q, want %q", c.items, len(w), w["urn:x:1"].entry.Title, c.want)
		}
	}
}

// The title and the date of a feed are its own, not those of a module in front of them, unless it
// has no others: some feeds are in a namespace of which nobody knows.
func TestFeedTitleOfAModule(t *testing.T) {
	for _, c := range []struct{ channel, title, updated string }{
		{`<media:title>M</media:title><dcterms:modified>2020-01-01</dcterms:modified><title>T</title><lastBuildDate>Tue, 07 Jan 2025 09:05:03 GMT</lastBuildDate>`, "T", "2025-01-07T09:05:03Z"},
		{`<media:title>M</media:title><dcterms:modified>2020-01-01</dcterms:modified>`, "M", "2020-01-01T00:00:00Z"},
		{`<r:title xmlns:r="http://purl.org/rss/1.0/">T</r:title><media:title>M</media:title>`, "T", ""},
	} {
		doc, err := readFeed(feedRun(), []byte(`<rss version="2.0" xmlns:media="http://search.yahoo.com/mrss/" xmlns:dcterms="http://purl.org/dc/terms/"><channel>`+c.channel+
			`<item><link>http://a.example/1</link></item></channel></rss>`))
		if err != nil {
			t.Fatal(err)
		}
		if at := stampOrUnknown(doc.Updated).String(); doc.Title != c.title || at != c.updated {
			t.Errorf("%s: %q at %q, want %q at %q", c.channel, doc.Title, at, c.title, c.updated)
		}
	}
}

// A tombstone is reported as what it is: it deletes no item that is later.
func TestFeedTombstoneOfALaterItem(t *testing.T) {
	r := feedRun()
	doc, err := readFeed(r, []byte(`<feed xmlns="http://www.w3.org/2005/Atom" xmlns:at="http://purl.org/atompub/tombstones/1.0">
<entry><id>urn:a</id><title>Back again</title><updated>2026-01-02T00:00:00Z</updated><link href="/a"/></entry>
<at:deleted-entry ref="urn:a" when="2026-01-01T00:00:00Z"/></feed>`))
	if err != nil {
		t.Fatal(err)
	}
	if items, _ := itemsOf(t, r, doc); len(items) != 1 || items[0].Deleted {
		t.Errorf("items %v", items)
	}
	if e := r.report.Examples; len(e) != 1 || e[0].Rule != ruleFeedDeleted || !strings.HasSuffix(e[0].First, `:3:1: a tombstone of record "urn:a", which is deleted unless it was modified later`) {
		t.Errorf("reported %+v", e)
	}
}

// D15: who made it, what it is about, whose it is and in which language goes into
// the log, of the feed and of its items, and so does the feed that an item says it
// came from. D16: languages of alternates do too.
func TestFeedMetadata(t *testing.T) {
	person := func(name, email, uri string) event.Person { return event.Person{Name: name, Email: email, URI: uri} }
	link := func(rel, href, mediaType string) event.Link {
		return event.Link{Rel: rel, Href: href, Type: mediaType, Length: event.NoLength}
	}
	type item struct {
		categories []event.Category
		details    *event.Details
	}
	for _, tt := range []struct {
		file  string
		feed  *event.Feed
		items []item
	}{
		{"metadata-rss-20.xml",
			&event.Feed{Title: event.Text{Language: "de-AT"}, Authors: []event.Person{person("Edda Editor", "editor@charts.example", "")},
				Rights:     event.Text{Value: "© 2025 Chart room", Language: "de-AT"},
				Categories: []event.Category{{Term: "Cartography", Scheme: "https://charts.example/topics"}},
				Links:      []event.Link{link("alternate", "http://feeds.example/charts/", ""), link("self", "https://charts.example/feed.xml", "application/rss+xml")}},
			[]item{
				{[]event.Category{{Term: "Maps"}, {Term: "Maps", Scheme: "https://charts.example/topics"}},
					&event.Details{Language: "de-AT", Authors: []event.Person{person("Jane Doe", "jane@charts.example", ""), person("Karl & Co.", "", "")},
						Contributors: []event.Person{person("The surveyors", "", "")}, Rights: event.Text{Value: "CC BY 4.0", Language: "de-AT"}}},
				{nil, &event.Details{Language: "en", Authors: []event.Person{person("nobody@charts.example", "nobody@charts.example", ""), person("Charts FM", "", "")},
					Source: &event.Feed{Title: event.Text{Value: "The origin"}, Links: []event.Link{link("self", "https://origin.example/rss", "")}}}},
				{[]event.Category{{Term: "fr", Scheme: "https://charts.example/l", Label: "French"}},
					&event.Details{Language: "de-AT", Authors: []event.Person{person("Anne", "", "https://people.example/anne")}}},
			}},
		{"metadata-rss-10.rdf",
			&event.Feed{Title: event.Text{Language: "en"}, Authors: []event.Person{person("The society", "", "")}, Rights: event.Text{Value: "The society", Language: "en"},
				Categories: []event.Category{{Term: "Rigging"}}, Links: []event.Link{link("alternate", "http://toc.example/", "")}},
			[]item{
				{[]event.Category{{Term: "Knots"}}, &event.Details{Language: "fr", Authors: []event.Person{person("Rope, R.", "", ""), person("Twine, T.", "", "")}}},
				{nil, &event.Details{Language: "en", Rights: event.Text{Value: "Public domain", Language: "en"}}},
			}},
		{"metadata-atom-03.xml",
			&event.Feed{Title: event.Text{Language: "en"}, Authors: []event.Person{person("Keeper", "keeper@log.example", "http://feeds.example/keeper")},
				Rights: event.Text{Value: "Keeper", Language: "en"}, Links: []event.Link{link("alternate", "http://log.example/", "text/html")}},
			[]item{
				{[]event.Category{{Term: "Light"}}, &event.Details{Language: "cy", Authors: []event.Person{person("Mate", "", "")},
					Contributors: []event.Person{person("Cook", "", ""), person("boy@log.example", "boy@log.example", "")}}},
			}},
		{"metadata-atom-10.atom",
			&event.Feed{Title: event.Text{Language: "en"}, Authors: []event.Person{person("Planet", "", "")}, Rights: event.Text{Value: "Each entry its author's", Language: "en"},
				Categories: []event.Category{{Term: "planet"}},
				Links:      []event.Link{link("self", "https://planet.example/atom", ""), link("alternate", "https://planet.example/", "text/html")}},
			[]item{
				{[]event.Category{{Term: "Harbours", Scheme: "https://blog.example/tags#", Label: "All harbours"}},
					&event.Details{Language: "de", Authors: []event.Person{person("Blogger", "", "https://blog.example/me")}, Contributors: []event.Person{person("Reader", "", "")},
						Rights: event.Text{Value: "© Blogger", Language: "en"},
						Source: &event.Feed{ID: "urn:blog", Title: event.Text{Value: "Das Blog", Language: "de"}, Updated: stampOrUnknown(time.Date(2025, 1, 31, 0, 0, 0, 0, time.UTC)),
							Authors: []event.Person{person("Blogger", "", "")}, Rights: event.Text{Value: "© Blogger", Language: "de"},
							Categories: []event.Category{{Term: "sea"}}, Links: []event.Link{link("self", "https://blog.example/atom", "application/atom+xml")}}}},
			}},
		{"metadata-json.json",
			&event.Feed{Title: event.Text{Language: "nl"}, Authors: []event.Person{person("Service", "", "https://buoys.example/about")},
				Links: []event.Link{link("alternate", "https://buoys.example/", ""), link("self", "https://buoys.example/feed.json", "")}},
			[]item{
				{[]event.Category{{Term: "buoy"}, {Term: "red buoy"}}, &event.Details{Language: "nl",
					Authors: []event.Person{person("A. Anker", "", "http://feeds.example/a"), person("https://b.example/", "", "https://b.example/")}}},
				{nil, &event.Details{Language: "en", Authors: []event.Person{person("Old form", "", "")}}},
				{nil, nil},
			}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			r := feedRun()
			doc, err := readFeed(r, feedFile(t, tt.file))
			if err != nil {
				t.Fatal(err)
			}
			same(t, "the feed", r.newFeedPage(doc, &follow.Answer{}).origin().Feed, tt.feed)
			items, _ := itemsOf(t, r, doc)
			if len(items) != len(tt.items) {
				t.Fatalf("%d items, want %d", len(items), len(tt.items))
			}
			for i, want := range tt.items {
				same(t, fmt.Sprintf("categories of item %d", i), items[i].Categories, want.categories)
				same(t, fmt.Sprintf("details of item %d", i), items[i].Details, want.details)
			}
		})
	}
	r := feedRun()
	doc, err := readFeed(r, feedFile(t, "metadata-atom-10.atom"))
	if err != nil {
		t.Fatal(err)
	}
	items, _ := itemsOf(t, r, doc)
	if reps := items[0].Representations; len(reps) != 2 || reps[0].Hreflang != "de" || reps[1].Hreflang != "en" {
		t.Errorf("representations %+v", reps)
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	shown := func(v any) []byte {
		b, err := json.MarshalIndent(v, "\t", " ")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	t.Errorf("%s:\n\t%s\nwant\n\t%s", what, shown(got), shown(want))
}
