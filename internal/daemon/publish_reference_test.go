package daemon_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

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
