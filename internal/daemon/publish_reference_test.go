package daemon_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
)

// TestEveryLocLivesOnItsOwn has records move between few URLs, share them and
// vanish. Whoever plays the Change Lists from the first on never meets a URL that
// is created twice, nor one updated or deleted that is not there, and always has
// just the URLs of the Resource List.
func TestEveryLocLivesOnItsOwn(t *testing.T) {
	const rounds, records, places = 80, 6, 4
	p := fixtures.New(fixtures.Options{})
	o := newOutlet(newBench(t, p, content(config.Reference), segments(9)))
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
		var listed []string
		for _, e := range o.resources() {
			listed = append(listed, e.Loc)
		}
		slices.Sort(listed)
		if got := slices.Sorted(maps.Keys(have)); !slices.Equal(got, listed) {
			t.Fatalf("round %d: the changes leave\n%q\nthe Resource List has\n%q", round, got, listed)
		}
	}
	if kinds["created"] < 10 || kinds["updated"] < 10 || kinds["deleted"] < 10 {
		t.Errorf("the history was too tame: %v", kinds)
	}
	t.Logf("%v in %d Change Lists", kinds, len(o.changeLists()))
}

// play applies all changes in order, and counts their kinds.
func (o *outlet) play(kinds map[string]int) map[string]bool {
	o.t.Helper()
	have := map[string]bool{}
	last := ""
	for i, e := range o.changes() {
		kinds[e.Meta.Change]++
		if e.Meta.Datetime < last {
			o.t.Fatalf("change %d is of %s, the one before of %s", i+1, e.Meta.Datetime, last)
		}
		last = e.Meta.Datetime
		if have[e.Loc] == (e.Meta.Change == "created") {
			o.t.Fatalf("change %d: %s is %s, and was there before: %t", i+1, e.Loc, e.Meta.Change, have[e.Loc])
		}
		if len(linked(e.Links, "via")) != 1 {
			o.t.Errorf("change %d has no via", i+1)
		}
		have[e.Loc] = true
		if e.Meta.Change == "deleted" {
			delete(have, e.Loc)
		}
	}
	return have
}
