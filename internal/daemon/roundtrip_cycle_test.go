package daemon_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// cycle is three bridges, each of which harvests the one before.
type cycle struct {
	rt     *rapid.T
	origin string // its URL as a Source
	row    []*relay
	pools  []pool
}

// newCycle draws a cycle: which of the bridges harvest the origin too, whether that
// or the other bridge speaks first, which of the protocols each two speak, and what each
// does with contents.
func newCycle(t *testing.T, rt *rapid.T, origin string, protocols func(before *relay) []string, contents ...string) *cycle {
	g := &cycle{rt: rt, origin: origin, row: []*relay{newRelay(t), newRelay(t), newRelay(t)}}
	for i := range g.row {
		sources := []string{rapid.SampledFrom(protocols(g.row[(i+2)%3])).Draw(rt, "protocol")}
		if i == 0 || rapid.IntRange(0, 2).Draw(rt, "has the origin too") == 0 {
			sources = slices.Insert(sources, rapid.IntRange(0, 1).Draw(rt, "place of the origin"), origin)
		}
		g.pools = append(g.pools, pool{sources: sources, segment: rapid.IntRange(3, 10).Draw(rt, "events a segment"), content: rapid.SampledFrom(contents).Draw(rt, "content")})
	}
	return g
}

// start runs the bridges, in any order; open leaves out what closes the cycle.
func (g *cycle) start(open bool) {
	for _, i := range rapid.Permutation([]int{0, 1, 2}).Draw(g.rt, "joins") {
		p := g.pools[i]
		if open && i == 0 {
			p.sources = []string{g.origin}
		}
		g.row[i].run(p)
	}
}

func (g *cycle) end() {
	for _, r := range g.row {
		r.end()
	}
}

// some harvests this one and that, while what a bridge sends others to may have
// gone at the origin already.
func (g *cycle) some() {
	g.rt.Helper()
	for range rapid.IntRange(0, 5).Draw(g.rt, "harvests") {
		r := g.row[rapid.IntRange(0, 2).Draw(g.rt, "bridge")]
		s := r.bridge.Sources()[rapid.IntRange(0, len(r.bridge.Sources())-1).Draw(g.rt, "source")]
		g.harvest(r, s, harvest.Options{Full: rapid.IntRange(0, 4).Draw(g.rt, "full") == 0})
	}
}

// harvest harvests a Source; ok is false where that is a repository which has no record,
// and so no format but oai_dc yet.
func (g *cycle) harvest(r *relay, s *daemon.Source, o harvest.Options) (report harvest.Report, ok bool) {
	g.rt.Helper()
	report, err := r.bridge.Harvest(r.t.Context(), s, o)
	if err != nil && !strings.Contains(err.Error(), "the repository has no format") {
		g.rt.Fatalf("%s: %v", s.URL, err)
	}
	return report, err == nil
}

// settle harvests everything, each time in another order, until there is nothing
// new. News takes as many rounds as there are bridges, in the worst order, and
// one more shows that it is over. As many go by first in a cycle of new bridges, until
// it is known that they wait for each other (D143).
func (g *cycle) settle() {
	g.rt.Helper()
	const rounds = 3 + 3 + 1
	for round := 1; ; round++ {
		var reports []harvest.Report
		var events, failed int64
		for _, i := range rapid.Permutation([]int{0, 1, 2}).Draw(g.rt, "order") {
			r := g.row[i]
			for _, s := range r.bridge.Sources() {
				report, ok := g.harvest(r, s, harvest.Options{AllPending: true})
				if !ok {
					failed++
				}
				events += report.Events()
				reports = append(reports, report)
			}
		}
		switch {
		case events+failed > 0 && round == rounds:
			g.rt.Fatalf("round %d in the cycle still adds %d events, and %d harvests fail: %+v", round, events, failed, reports)
		case events+failed > 0:
			continue
		}
		// What a bridge still sent others to when it was asked may be cleared up later
		// in the same round.
		left := slices.DeleteFunc(reports, func(r harvest.Report) bool { return !r.Partial() })
		if len(left) > 0 && round < rounds {
			continue
		}
		for i := range left {
			g.rt.Errorf("nothing is new, and something is left undone: %+v", left[i])
		}
		return
	}
}

// wantOrigin fails unless each bridge has just what the origin has, with the
// origin's own as the original.
func (g *cycle) wantOrigin(o *atomOrigin) {
	g.rt.Helper()
	want := o.history(true, "")
	for _, r := range g.row {
		got := r.readFeeds(g.rt)
		for id, p := range want {
			q, known := got[id]
			switch {
			case q.alive != p.alive:
				g.rt.Errorf("%s has record %q: %v, the origin: %v (known %v)", r.base, id, q.alive, p.alive, known)
			case p.alive && (q.title != p.title || q.via != p.via || q.images[0].sum != p.images[0].sum || len(q.images) != len(p.images)):
				g.rt.Errorf("%s has record %q as\n%s, the origin\n%s", r.base, id, q.words(), p.words())
			}
		}
		for _, id := range slices.Collect(maps.Keys(got)) {
			if _, ok := want[id]; !ok {
				g.rt.Errorf("%s has a record %q that the origin never had", r.base, id)
			}
		}
	}
}

// A cycle of bridges adds nothing: whatever its shape, whoever joins first and in
// whatever order they harvest, each has what the origin has, and there is an end
// to the events. What is deleted at the origin disappears everywhere, and what
// comes back there comes back. Originals move, too.
func TestCyclesAddNothing(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	testenv.Checks(t, 3)
	rapid.Check(t, func(rt *rapid.T) {
		o := newAtomOrigin(t, fixtures.Options{PerArchive: 4})
		g := newCycle(t, rt, o.source(), func(before *relay) []string { return []string{before.lists(), before.lists(), before.archived()} },
			config.Mirror, config.Redirect, config.Reference)
		defer g.end()
		s := newRandomOrigin(rt, o)
		g.run(s.change, func() { g.wantOrigin(o) })
	})
}

// run has the origin change and bridges harvest in any order, until nothing is new; then
// all of them must be as they should. In some cycles what closes it comes late.
func (g *cycle) run(change, check func()) {
	g.rt.Helper()
	late := rapid.Bool().Draw(g.rt, "closed late")
	g.start(late)
	for round := range rapid.IntRange(2, 3).Draw(g.rt, "rounds") {
		for range rapid.IntRange(1, 4).Draw(g.rt, "batches") {
			for range rapid.IntRange(0, 4).Draw(g.rt, "changes") {
				change()
			}
			g.some()
		}
		g.settle()
		check()
		if late && round == 0 {
			g.row[0].again(g.pools[0])
		}
	}
}

// A cycle in which one bridge keeps what comes round as a set of its own, and
// passes that on beside the set that it comes from: the round is made once.
func TestCycleOfSets(t *testing.T) {
	o := newAtomOrigin(t, fixtures.Options{})
	a, b, c := newRelay(t), newRelay(t), newRelay(t)
	a.run(pool{sources: []string{o.source()}}, pool{name: "around", sources: []string{c.lists()}})
	// What comes round is the first Source here, so it is asked first and would speak.
	b.run(pool{sources: []string{"resourcesync:" + a.base + "/sets/around/capabilitylist.xml", a.archived()}})
	c.run(pool{sources: []string{b.lists()}})
	row := []*relay{a, b, c}
	settle := func(what, main string, around ...string) {
		t.Helper()
		passAround(t, row)
		passAround(t, row) // b hears the news from a, then of it from around
		if what == "created" {
			passAround(t, row) // and at first they wait until it is known that they wait for each other
		}
		if n := passAround(t, row); n > 0 {
			t.Errorf("%s: %d events more", what, n)
		}
		for _, r := range row {
			if got := r.titles(); strings.Join(got, ", ") != main {
				t.Errorf("%s: %s has %q, want %q", what, r.base, got, main)
			}
		}
		var got []string
		for ev := range a.eventsOf("around", 0) {
			got = append(got, ev.Kind.String()+" "+ev.Title)
			if ev.Via.Href != o.url+"/records/a.atom" {
				t.Errorf("%s: once around, the original is %s", what, ev.Via.Href)
			}
		}
		a.want(what, got, around...)
	}
	o.Create(fixtures.Record{Name: "a", ID: "urn:a", Title: "v1"})
	settle("created", "a v1", "created v1")
	o.Update(fixtures.Record{Name: "a", Title: "v2"})
	settle("updated", "a v2", "created v1", "updated v2")
	o.Delete("a")
	settle("deleted", "", "created v1", "updated v2", "deleted v2")
	o.Recreate(fixtures.Record{Name: "a", Title: "v3"})
	settle("back", "a v3", "created v1", "updated v2", "deleted v2", "created v3")
}

// passAround harvests every Source of every bridge once.
func passAround(t *testing.T, row []*relay) (events int64) {
	t.Helper()
	for _, r := range row {
		for _, s := range r.bridge.Sources() {
			report := r.take(t, s, harvest.Options{})
			events += report.Events()
		}
	}
	return events
}

// Where identifiers are each Source's own, what comes round has another
// identifier, and is known by the one that it had here.
func TestCycleOfOwnIdentifiers(t *testing.T) {
	first, second := newAtomOrigin(t, fixtures.Options{}), newAtomOrigin(t, fixtures.Options{})
	a, b, c := newRelay(t), newRelay(t), newRelay(t)
	a.run(pool{identity: config.PerSource, sources: []string{first.source(), second.source(), c.lists()}})
	b.run(pool{sources: []string{a.archived()}})
	c.run(pool{sources: []string{b.lists()}})
	row := []*relay{a, b, c}
	for _, o := range []*atomOrigin{first, second} {
		o.Create(fixtures.Record{Name: "a", ID: "urn:a", Title: o.url})
	}
	passAround(t, row)
	for range 3 {
		if n := passAround(t, row); n > 0 {
			t.Errorf("%d events more", n)
		}
	}
	for _, o := range []*atomOrigin{first, second} {
		o.Delete("a")
	}
	passAround(t, row)
	for _, r := range row {
		if got := r.titles(); len(got) > 0 {
			t.Errorf("deleted at both origins, %s still has %q", r.base, got)
		}
	}
}

// A bridge that gave records before their origin was a Source itself has no say
// in them from then on: what the origin deletes goes, though the bridge has not
// heard of that yet, and does not come back when it is asked.
func TestOriginJoinsAfterTheBridge(t *testing.T) {
	for _, bridgeFirst := range []bool{false, true} {
		o := newAtomOrigin(t, fixtures.Options{})
		a, b := newRelay(t), newRelay(t)
		o.Create(fixtures.Record{Name: "a", ID: "urn:a", Title: "v1"})
		a.run(pool{sources: []string{o.source()}})
		b.run(pool{sources: []string{a.lists()}})
		passAround(t, []*relay{a, b})
		b.want("from the bridge", b.titles(), "a v1")
		from, origin := []string{o.source(), a.lists()}, 0
		if bridgeFirst {
			from, origin = []string{a.lists(), o.source()}, 1
		}
		b.again(pool{sources: from})
		b.take(t, b.bridge.Sources()[origin], harvest.Options{})
		o.Delete("a")
		b.take(t, b.bridge.Sources()[origin], harvest.Options{})
		b.want("deleted at the origin", b.titles())
		b.take(t, b.bridge.Sources()[1-origin], harvest.Options{Full: true})
		b.want("still at the bridge", b.titles())
	}
}

// Where the origin is a local file that may not be named, the first bridge's own
// record is the original, and it knows that when it comes round.
func TestCycleAroundALocalFile(t *testing.T) {
	testenv.Heavy(t)
	p, folder := fixtures.New(fixtures.Options{}), t.TempDir()
	a, b, c := newRelay(t), newRelay(t), newRelay(t)
	row := []*relay{a, b, c}
	p.Create(fixtures.Record{Name: "a", ID: "urn:a", Title: "v1"})
	p.Create(fixtures.Record{Name: "stays", ID: "urn:stays", Title: "v1"})
	settle := func(what string, want ...string) {
		t.Helper()
		if err := p.WriteFiles(folder); err != nil {
			t.Fatal(err)
		}
		if a.bridge == nil {
			a.run(pool{sources: []string{c.lists(), "atompmh:" + folder + fixtures.Subscription}})
			b.run(pool{sources: []string{a.lists()}})
			c.run(pool{sources: []string{b.archived()}})
			passAround(t, row) // until it is known that they wait for each other (D143)
		}
		passAround(t, row) // c is asked before it has heard anything
		if n := passAround(t, row); n > 0 {
			t.Errorf("%s: %d events more", what, n)
		}
		for _, r := range row {
			r.want(what, r.titles(), want...)
		}
	}
	settle("created", "a v1", "stays v1")
	for _, e := range c.logged(allAfter(0)) {
		if e.Via.Href != a.base+"/sets/main/records/"+event.Key(e.Record) {
			t.Errorf("the original of %s is %s, want it at the first bridge", e.Record, e.Via.Href)
		}
	}
	if report := a.take(t, a.bridge.Sources()[0], harvest.Options{Full: true}); report.Entries == 0 || report.Skipped != report.Entries {
		t.Errorf("%d of %d entries are known to be its own: %+v", report.Skipped, report.Entries, report)
	}
	p.Delete("a")
	settle("deleted", "stays v1")
	p.Recreate(fixtures.Record{Name: "a", Title: "v2"})
	settle("back", "a v2", "stays v1")
}

// A new bridge that harvests new bridges does not publish a part of what they will
// have as all of it (D143): it waits for those that wait, but for those that wait for
// nobody but itself.
func TestBridgesWaitForBridges(t *testing.T) {
	o := newAtomOrigin(t, fixtures.Options{})
	o.Create(fixtures.Record{Name: "a", ID: "urn:a", Title: "v1"})
	for _, c := range []struct {
		name    string
		sources func(a, b, c *relay) [3][]string
		asks    string // which bridge asks which of its Sources, before the origin is asked
		rounds  int    // in which all publish, then
	}{
		{"a chain", func(a, b, c *relay) [3][]string {
			return [3][]string{{o.source()}, {a.lists()}, {b.lists()}}
		}, "b0 c0 b0 c0", 1},
		{"a cycle", func(a, b, c *relay) [3][]string {
			return [3][]string{{o.source(), c.lists()}, {a.lists()}, {b.lists()}}
		}, "a1 b0 c0 b0 c0 a1 c0 a1 b0", 3},
		{"two that harvest a third and each other", func(a, b, c *relay) [3][]string {
			return [3][]string{{o.source()}, {c.lists(), a.lists()}, {b.lists(), a.lists()}}
		}, "b0 b1 c0 c1 b0 c0 c1 b0", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			row := []*relay{newRelay(t), newRelay(t), newRelay(t)}
			sources := c.sources(row[0], row[1], row[2])
			for i, r := range row {
				r.run(pool{sources: sources[i]})
				defer r.end()
			}
			// publishes asks all for their lists: what is there is whole.
			publishes := func(when string) (n int) {
				t.Helper()
				for _, r := range row {
					switch a := r.ask(http.MethodGet, r.setURL("resourcelist.xml")); a.status {
					case http.StatusServiceUnavailable:
					case http.StatusOK:
						n++
						if got := r.titles(); len(got) != 1 || len(r.resources()) != 1 {
							t.Errorf("%s: %s publishes %q as all that it has", when, r.base, got)
						}
					default:
						t.Errorf("%s: %s answers %d", when, r.base, a.status)
					}
				}
				return n
			}
			for i := 0; i < len(c.asks); i += 3 {
				r := row[c.asks[i]-'a']
				if report := r.take(t, r.bridge.Sources()[c.asks[i+1]-'0'], harvest.Options{}); !report.Withheld {
					t.Errorf("%s: nothing was withheld: %+v", c.asks[i:i+2], report)
				}
				if n := publishes(c.asks[:i+2]); n != 0 {
					t.Errorf("%d bridges publish before the origin was asked", n)
				}
			}
			for range c.rounds {
				passAround(t, row)
				if publishes("then") == len(row) {
					return
				}
			}
			t.Errorf("not all publish after %d rounds", c.rounds)
		})
	}
}
