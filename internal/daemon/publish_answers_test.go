package daemon_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// eachMode runs a test over the catalogue after 40 changes, each harvested, with
// segments of ten events, in every content mode.
func eachMode(t *testing.T, test func(t *testing.T, o *harness, mode string)) {
	for _, mode := range []string{config.Mirror, config.Redirect, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			o := newPublisher(newHarness(t, fixtures.Catalogue(nil), content(mode), segments(10)))
			o.harvest()
			o.evolve(40)
			o.wantLive()
			test(t, o, mode)
		})
	}
}

// evolve makes changes at the provider and harvests each.
func (o *harness) evolve(steps int) {
	o.t.Helper()
	for range steps {
		o.provider.Evolve()
		o.harvest()
	}
}

func TestEveryDocumentOfTheURLTable(t *testing.T) {
	testenv.Heavy(t)
	eachMode(t, func(t *testing.T, o *harness, mode string) {
		up := o.setURL("capabilitylist.xml")
		description := o.list("/.well-known/resourcesync", "urlset", "description")
		alone := o.list(o.setURL(".well-known/resourcesync"), "urlset", "description")
		for _, d := range []*listDoc{description, alone} {
			if len(d.URLs) != 1 || d.URLs[0].Loc != up || d.URLs[0].Meta.Capability != "capabilitylist" {
				t.Errorf("%s: %+v, want one entry of %s", d.url, d.URLs, up)
			}
			if l := linked(d.Links, "up"); len(l) > 0 {
				t.Errorf("%s links up: %v", d.url, l)
			}
		}
		capabilities := o.list(up, "urlset", "capabilitylist")
		capabilities.wantLink(t, "up", o.base+"/.well-known/resourcesync")
		got := fmt.Sprint(capabilities.URLs[0].Loc, capabilities.URLs[0].Meta.Capability, capabilities.URLs[1].Loc, capabilities.URLs[1].Meta.Capability)
		if want := fmt.Sprint(o.setURL("resourcelist.xml"), "resourcelist", o.setURL("changelist-index.xml"), "changelist"); got != want || len(capabilities.URLs) != 2 {
			t.Errorf("Capability List: %s, want %s", got, want)
		}
		events := o.logged(event.Range{Upto: o.last()})
		o.checkResourceList(t, events)
		o.checkChangeLists(t, events)
		for path, status := range map[string]int{
			"/": 200, "/sets/main/": 200, "/healthz": 200, "/readyz": 200, "/robots.txt": 200,
			"/sets/main/changelist/0.xml": 404, "/sets/main/changelist/8.xml": 404, "/sets/main/changelist/01.xml": 404,
			"/sets/main/resourcelist/67/1.xml": 404, "/sets/other/resourcelist.xml": 404, "/sets/main/resourcedump.xml": 404, "/sets": 404,
		} {
			o.ask(http.MethodGet, path).want(t, status)
		}
	})
}

// checkResourceList compares at and links; TestListsTellWhatTheURLsAnswer
// compares the entries.
func (o *harness) checkResourceList(t *testing.T, events []event.Event) {
	t.Helper()
	d := o.list(o.setURL("resourcelist.xml"), "urlset", "resourcelist")
	d.wantLink(t, "up", o.setURL("capabilitylist.xml"))
	if at := events[len(events)-1].Observed.String(); d.Meta.At != at || d.Meta.Completed != "" {
		t.Errorf("Resource List: at %s, completed %q, want at %s and no more", d.Meta.At, d.Meta.Completed, at)
	}
	if len(d.URLs) != len(o.provider.Live()) {
		t.Errorf("Resource List: %d entries, the provider has %d records", len(d.URLs), len(o.provider.Live()))
	}
}

// checkChangeLists compares index, segments of ten events, and the window with
// the log.
func (o *harness) checkChangeLists(t *testing.T, events []event.Event) {
	t.Helper()
	index := o.list(o.setURL("changelist-index.xml"), "sitemapindex", "changelist")
	index.wantLink(t, "up", o.setURL("capabilitylist.xml"))
	lists := o.changeLists()
	if want := len(events)/10 + 1; len(lists) != want {
		t.Fatalf("%d events in segments of ten make %d Change Lists, want %d", len(events), len(lists), want)
	}
	border := index.Meta.From
	for n, l := range lists {
		l.wantLink(t, "up", o.setURL("capabilitylist.xml"))
		l.wantLink(t, "index", o.setURL("changelist-index.xml"))
		if want := o.setURL(fmt.Sprintf("changelist/%d.xml", n+1)); l.url != want {
			t.Errorf("segment %d is %s, want %s", n+1, l.url, want)
		}
		mine := events[n*10 : min(n*10+10, len(events))]
		until := ""
		if len(mine) == 10 {
			until = mine[9].Observed.String()
		}
		if l.Meta.From != border || l.Meta.Until != until || index.Maps[n].Meta.From != border || index.Maps[n].Meta.Until != until {
			t.Errorf("%s: from %s until %q, in the index from %s until %q, want from %s until %q",
				l.url, l.Meta.From, l.Meta.Until, index.Maps[n].Meta.From, index.Maps[n].Meta.Until, border, until)
		}
		border = until
		wantSequence(t, l, mine)
	}
	window := o.list(o.setURL("changelist.xml"), "urlset", "changelist")
	window.wantLink(t, "up", o.setURL("capabilitylist.xml"))
	if len(linked(window.Links, "index")) > 0 || window.Meta.Until != "" || window.Meta.From != index.Meta.From {
		t.Errorf("the window: from %s, until %q, links %v", window.Meta.From, window.Meta.Until, window.Links)
	}
	wantSequence(t, window, events)
}

// wantSequence fails unless a list tells just these events. None of them has two
// entries.
func wantSequence(t *testing.T, l *listDoc, events []event.Event) {
	t.Helper()
	if len(l.URLs) != len(events) {
		t.Fatalf("%s: %d entries for %d events", l.url, len(l.URLs), len(events))
	}
	for i, e := range l.URLs {
		if want := events[i]; e.Meta.Change != want.Kind.String() || e.Meta.Datetime != want.Observed.String() {
			t.Errorf("%s: entry %d is %s at %s, the log has %s at %s", l.url, i+1, e.Meta.Change, e.Meta.Datetime, want.Kind, want.Observed)
		}
	}
}

func TestListsTellWhatTheURLsAnswer(t *testing.T) {
	testenv.Heavy(t)
	eachMode(t, func(t *testing.T, o *harness, mode string) {
		changes := o.changes()
		lastOf := map[string]listEntry{}
		for i, e := range changes {
			via := linked(e.Links, "via")
			if len(via) != 1 || !strings.HasPrefix(via[0].Href, o.server.URL+"/records/") {
				t.Fatalf("entry %d: via %+v, want one at the provider", i+1, via)
			}
			if _, err := time.Parse(time.RFC3339Nano, via[0].Modified); err != nil {
				t.Errorf("entry %d: modified of its via: %v", i+1, err)
			}
			lastOf[e.Loc] = e
		}
		resources := map[string]listEntry{}
		for _, e := range o.resources() {
			resources[e.Loc] = e
		}
		checked, deleted := 0, 0
		for loc, e := range lastOf {
			if e.Meta.Change == "deleted" {
				deleted++
				o.checkDeleted(t, mode, e)
				if _, listed := resources[loc]; listed {
					t.Errorf("%s was deleted and is in the Resource List", loc)
				}
				continue
			}
			checked++
			o.checkLoc(t, mode, e)
			r := resources[loc]
			e.Meta.Change, e.Meta.Datetime = "", ""
			if fmt.Sprint(r) != fmt.Sprint(e) {
				t.Errorf("the Resource List has\n %+v\nthe last change\n %+v", r, e)
			}
		}
		if live := len(o.provider.Live()); checked != live || len(resources) != live || deleted == 0 {
			t.Errorf("%d locs were asked for, %d listed, %d deleted; the provider has %d records", checked, len(resources), deleted, live)
		}
		t.Logf("%d change entries with via; %d locs fetched and compared, %d deleted ones", len(changes), checked, deleted)
	})
}

// checkLoc asks for a loc and its alternates and compares what they answer with
// the entry, and with what the provider has.
func (o *harness) checkLoc(t *testing.T, mode string, e listEntry) {
	t.Helper()
	via := linked(e.Links, "via")[0]
	want := o.alternatesAt(t, via.Href)
	first := o.ask(http.MethodGet, e.Loc)
	alternates := linked(e.Links, "alternate")
	if len(alternates) != len(want)-1 {
		t.Fatalf("%s: %d alternates, the provider has %d", e.Loc, len(alternates), len(want)-1)
	}
	switch mode {
	case config.Mirror:
		first.want(t, 200)
		o.wantDiscovery(t, first)
		compareAnswer(t, first, e.Meta.Hash, e.Meta.Length, e.Meta.Type, want[0], true)
		compareAnswer(t, o.get(via.Href), via.Hash, via.Length, via.Type, want[0], false)
	case config.Redirect:
		first.want(t, http.StatusTemporaryRedirect)
		o.wantDiscovery(t, first)
		if to := first.header.Get("Location"); to != via.Href {
			t.Errorf("%s leads to %s, not to %s", e.Loc, to, via.Href)
		}
		compareAnswer(t, o.get(via.Href), e.Meta.Hash, e.Meta.Length, e.Meta.Type, want[0], false)
	case config.Reference:
		if e.Loc != via.Href {
			t.Errorf("loc %s, via %s", e.Loc, via.Href)
		}
		compareAnswer(t, first.want(t, 200), e.Meta.Hash, e.Meta.Length, e.Meta.Type, want[0], false)
	}
	for i, a := range alternates {
		r := o.ask(http.MethodGet, a.Href)
		if mode == config.Redirect {
			o.wantDiscovery(t, r.want(t, http.StatusTemporaryRedirect))
			r = o.get(r.header.Get("Location"))
		}
		compareAnswer(t, r.want(t, 200), a.Hash, a.Length, a.Type, want[i+1], mode == config.Mirror)
	}
}

// alternatesAt returns what the provider has of the record whose first
// representation is at a URL.
func (o *harness) alternatesAt(t *testing.T, href string) []fixtures.Alternate {
	t.Helper()
	for _, c := range o.provider.Live() {
		if o.server.URL+c.Alternates[0].Href == href {
			return c.Alternates
		}
	}
	t.Fatalf("the provider has nothing at %s", href)
	return nil
}

// compareAnswer compares an answer with what a list states of it; complete lists
// state everything, others what the Source stated, which is not the hash.
func compareAnswer(t *testing.T, r webReply, hash, length, kind string, want fixtures.Alternate, complete bool) {
	t.Helper()
	if r.sum() != want.SHA256 {
		t.Errorf("%s answers other bytes than the provider has", r.url)
	}
	if complete || hash != "" {
		if hash != "sha-256:"+r.sum() {
			t.Errorf("%s: the list states hash %q, the bytes have sha-256:%s", r.url, hash, r.sum())
		}
	}
	if length != strconv.Itoa(len(r.body)) || r.header.Get("Content-Length") != length {
		t.Errorf("%s: the list states length %q, Content-Length %s, got %d bytes", r.url, length, r.header.Get("Content-Length"), len(r.body))
	}
	if kind != want.Type || r.header.Get("Content-Type") != kind {
		t.Errorf("%s: the list states type %q, Content-Type %s, the provider has %s", r.url, kind, r.header.Get("Content-Type"), want.Type)
	}
}

// checkDeleted asks for what was deleted.
func (o *harness) checkDeleted(t *testing.T, mode string, e listEntry) {
	t.Helper()
	if e.Meta.Hash+e.Meta.Length+e.Meta.Type != "" || len(linked(e.Links, "alternate")) > 0 {
		t.Errorf("%s: the deletion states more than itself: %+v", e.Loc, e)
	}
	r := o.ask(http.MethodGet, e.Loc).want(t, http.StatusGone)
	if mode != config.Reference {
		o.wantDiscovery(t, r)
	}
}

// wantDiscovery fails unless the answer's Link header leads to the Capability
// List (ResourceSync 6.3.3).
func (o *harness) wantDiscovery(t *testing.T, r webReply) {
	t.Helper()
	want := "<" + o.setURL("capabilitylist.xml") + `>; rel="resourcesync"`
	if got := r.header.Values("Link"); len(got) == 0 || got[0] != want {
		t.Errorf("%s: Link is %q, want %q first", r.url, got, want)
	}
}

// TestAwkwardRecords: whatever a provider calls its records, their formats and
// their files, a mirror states of them what it answers, and an independent reader
// reads what the log says.
func TestAwkwardRecords(t *testing.T) {
	testenv.Heavy(t)
	for _, mode := range []string{config.Mirror, config.Redirect, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			o := newPublisher(newHarness(t, awkward(), content(mode), segments(4)))
			o.harvest()
			o.provider.Delete("r5")
			o.provider.Update(fixtures.Record{Name: "r6", Summary: "Another one."})
			o.harvest()
			compared := 0
			for _, e := range o.resources() {
				if mode != config.Mirror {
					break
				}
				links := append(linked(e.Links, "alternate"), listLink{Href: e.Loc, Hash: e.Meta.Hash, Length: e.Meta.Length, Type: e.Meta.Type})
				for _, l := range links {
					r := o.get(l.Href)
					if l.Hash != "sha-256:"+r.sum() || l.Length != r.header.Get("Content-Length") || l.Type != r.header.Get("Content-Type") {
						t.Errorf("%s answers %s, length %s, hash %s; the list states %+v", l.Href, r.header.Get("Content-Type"), r.header.Get("Content-Length"), r.sum(), l)
					}
					compared++
				}
			}
			if want := 5 * 8; mode == config.Mirror && compared != want {
				t.Errorf("%d representations were compared, want %d", compared, want)
			}
			o.compareRead(t, mode, o.readIndependently(t, "--window", o.base+"/.well-known/resourcesync"))
		})
	}
}

// TestEveryLocLivesOnItsOwn has records move between few URLs, share them and
// vanish (D109). Whoever plays the Change Lists from the first on never meets a
// URL that is created twice, nor one updated or deleted that is not there, and
// always has just what the Resource List says of each URL. A bridge that harvests
// the changes alone has just the records that are listed.
func TestEveryLocLivesOnItsOwn(t *testing.T) {
	testenv.Heavy(t)
	const rounds, records, places = 120, 6, 4
	p := fixtures.New(fixtures.Options{})
	o := newPublisher(newHarness(t, p, content(config.Reference), segments(9)))
	next := newRelay(t)
	rng := rand.New(rand.NewPCG(2026, 11))
	alive, known := map[string]bool{}, map[string]bool{}
	kinds := map[string]int{}
	for round := range rounds {
		for range 1 + rng.IntN(3) {
			name := fmt.Sprintf("r%d", rng.IntN(records))
			r := record(name, fixtures.Format{Ext: "xml", Type: "text/xml", Href: fmt.Sprintf("/records/place-%d.xml", rng.IntN(places))})
			r.Title = fmt.Sprintf("Round %d", round)
			switch {
			case !known[name]:
				p.Create(r)
			case !alive[name]:
				p.Recreate(r)
			case rng.IntN(3) == 0:
				p.Delete(name)
				alive[name] = false
				continue
			default:
				p.Update(r)
			}
			alive[name], known[name] = true, true
		}
		o.harvest()
		clear(kinds)
		have := o.play(kinds)
		listed, records := map[string]string{}, []string{}
		for _, e := range o.resources() {
			if listed[e.Loc] != "" {
				t.Fatalf("round %d: %s is listed twice", round, e.Loc)
			}
			listed[e.Loc] = e.state()
			records = append(records, e.Meta.ID)
		}
		if !maps.Equal(have, listed) {
			t.Fatalf("round %d: the changes leave\n%q\nthe Resource List has\n%q", round, have, listed)
		}
		places := map[string]bool{}
		for _, at := range o.eachLive(func(ev *event.Event) string { return ev.Loc }) {
			places[at] = true
		}
		if len(places) != len(listed) {
			t.Fatalf("round %d: the records are at %v, listed are %q", round, places, listed)
		}
		if round == 0 {
			next.run(pool{content: config.Reference, sources: []string{"resourcesync:" + o.setURL("capabilitylist.xml")}})
			defer next.end()
		}
		next.take(t, next.source(), harvest.Options{})
		slices.Sort(records)
		next.want(fmt.Sprintf("round %d: the next bridge", round), next.eachLive(func(ev *event.Event) string { return ev.Record }), records...)
	}
	if kinds["created"] < 10 || kinds["updated"] < 10 || kinds["deleted"] < 10 {
		t.Errorf("the history was too tame: %v", kinds)
	}
	t.Logf("%v in %d Change Lists", kinds, len(o.changeLists()))
}

// state is what an entry says of a record, apart from how that came about.
func (e listEntry) state() string {
	e.Meta.Change, e.Meta.Datetime = "", ""
	return fmt.Sprint(e)
}

// play applies all changes in order, and counts their kinds.
func (o *harness) play(kinds map[string]int) map[string]string {
	o.t.Helper()
	have := map[string]string{}
	last := ""
	for i, e := range o.changes() {
		kinds[e.Meta.Change]++
		if e.Meta.Datetime < last {
			o.t.Fatalf("change %d is of %s, the one before of %s", i+1, e.Meta.Datetime, last)
		}
		last = e.Meta.Datetime
		if _, there := have[e.Loc]; there == (e.Meta.Change == "created") {
			o.t.Fatalf("change %d: %s is %s, and was there before: %t", i+1, e.Loc, e.Meta.Change, there)
		}
		if len(linked(e.Links, "via")) != 1 {
			o.t.Errorf("change %d has no via", i+1)
		}
		have[e.Loc] = e.state()
		if e.Meta.Change == "deleted" {
			delete(have, e.Loc)
		}
	}
	return have
}
