package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// newFixedHarness is a bridge over a feed, or a sitemap, that stays what it is.
func newFixedHarness(t *testing.T, kind, doc string) *harness {
	t.Helper()
	b := newHarness(t, fixtures.New(fixtures.Options{}), content(config.Reference), func(c *config.Config) { c.Sets[0].Sources[0].Kind = kind })
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Body: fixed(doc)})
	return b
}

// D67, D102: who says too much of a record has it quarantined, and nothing else
// happens; what can be cut is cut.
func TestBounds_OfRecords(t *testing.T) {
	testenv.Heavy(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	links := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	entry := func(id, title, inside string) string {
		return `<entry><id>` + id + `</id><title>` + title + `</title><updated>2025-01-01T00:00:00Z</updated>` + inside + `</entry>`
	}
	const link = `<link type="text/xml" href="http://127.0.0.1/r"/>`
	feed := `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title><updated>2025-01-02T00:00:00Z</updated><author><name>n</name></author>` +
		entry("urn:good", "good", link) +
		entry("urn:"+x(event.MaxIdentifier), "long id", link) +
		entry("urn:long-title", x(2*event.MaxTitle), link) +
		entry("urn:long-type", "t", `<link type="text/`+x(event.MaxType)+`" href="http://127.0.0.1/r"/>`) +
		entry("urn:long-href", "t", `<link type="text/xml" href="http://127.0.0.1/`+x(event.MaxHref)+`"/>`) +
		entry("urn:categories", "t", link+links(100_000, `<category term="%d"/>`)) +
		entry("urn:equal", "8,000 equal ones", strings.Repeat(link, 8000)) +
		entry("urn:many", "as many as there may be", links(event.MaxRepresentations, `<link type="text/xml" href="http://127.0.0.1/%d"/>`)) +
		entry("urn:more", "one more", links(event.MaxRepresentations+1, `<link type="text/xml" href="http://127.0.0.1/%d"/>`)) + "</feed>"
	b := newFixedHarness(t, config.AtomPMH, feed)
	r, err := b.try(harvest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reps := map[string]int{}
	for e := range b.eventsOf("main", 0) {
		reps[e.Record] = len(e.Representations)
		if e.Record == "urn:long-title" && (len(e.Title) > event.MaxTitle || !strings.HasSuffix(e.Title, "…")) {
			t.Errorf("a title of %d bytes", len(e.Title))
		}
	}
	if want := (map[string]int{"urn:good": 1, "urn:long-title": 1, "urn:equal": 1, "urn:many": event.MaxRepresentations}); fmt.Sprint(reps) != fmt.Sprint(want) {
		t.Errorf("logged %v, want %v", reps, want)
	}
	var rules []string
	for _, q := range b.quarantined() {
		rules = append(rules, q.Rule)
		if len(q.Record) > event.MaxIdentifier {
			t.Errorf("in quarantine under an identifier of %d bytes", len(q.Record))
		}
	}
	slices.Sort(rules)
	if r.Quarantined != 5 || fmt.Sprint(rules) != "[4287-entry 4287-link size size size]" {
		t.Errorf("%d quarantined: %v", r.Quarantined, rules)
	}
}

// D67: the same of a ResourceSync list.
func TestBounds_OfResources(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	url := func(loc, inside string) string {
		return "<url><loc>http://127.0.0.1/" + loc + "</loc>" + inside + "</url>"
	}
	list := `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2025-01-01T00:00:00Z"/>` +
		url("good", "") + url(x(event.MaxHref), "") +
		url("type", `<rs:md type="text/`+x(event.MaxType)+`"/>`) +
		url("equal", strings.Repeat(`<rs:ln rel="alternate" type="text/xml" href="http://127.0.0.1/alternate"/>`, 8000)) + "</urlset>"
	b := newFixedHarness(t, config.ResourceSync, list)
	r, err := b.try(harvest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reps := map[string]int{}
	for e := range b.eventsOf("main", 0) {
		reps[strings.TrimPrefix(e.Record, "http://127.0.0.1/")] = len(e.Representations)
	}
	if want := (map[string]int{"good": 1, "equal": 2}); fmt.Sprint(reps) != fmt.Sprint(want) || r.Quarantined != 2 {
		t.Errorf("logged %v, want %v; %d quarantined", reps, want, r.Quarantined)
	}
}
