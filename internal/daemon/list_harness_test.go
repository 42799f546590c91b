package daemon_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// listHarness is a ResourceSync Source on loopback and a bridge that harvests it.
// Its tests speak of a resource and of which of its contents: "created a 1",
// "updated a 2", "deleted a".
type listHarness struct {
	*harness
	origin *fixtures.Source
	// twin, when set, lives through the same at another server.
	twin *fixtures.Source
}

// newListHarness opens a bridge over a Source, whose Capability List was typed.
// Overlap is 0 and no request is repeated after more than a millisecond.
func newListHarness(t *testing.T, o fixtures.SourceOptions, change ...func(*config.Config)) *listHarness {
	t.Helper()
	origin := fixtures.NewSource(o)
	b := &listHarness{newHarness(t, origin, append([]func(*config.Config){resourceSync, entry(fixtures.CapabilityList)}, change...)...), origin, nil}
	origin.SetBase(b.server.URL)
	b.quick()
	return b
}

func resourceSync(c *config.Config) { c.Sets[0].Sources[0].Kind = config.ResourceSync }

// entry makes another path of the server the one that was typed.
func entry(path string) func(*config.Config) {
	return func(c *config.Config) {
		s := &c.Sets[0].Sources[0]
		s.URL = s.URL[:strings.LastIndexByte(s.URL, '/')] + path
	}
}

// create adds resources by their names. A Source that carries identifiers calls
// them urn:name.
func (b *listHarness) create(names ...string) {
	b.each(names, func(s *fixtures.Source, n string) { s.Create(fixtures.Resource{Name: n, ID: "urn:" + n}) })
}

func (b *listHarness) update(names ...string) {
	b.each(names, func(s *fixtures.Source, n string) { s.Update(fixtures.Resource{Name: n}) })
}

func (b *listHarness) recreate(names ...string) {
	b.each(names, func(s *fixtures.Source, n string) { s.Recreate(fixtures.Resource{Name: n}) })
}

func (b *listHarness) remove(names ...string) {
	b.each(names, func(s *fixtures.Source, n string) { s.Delete(n) })
}

func (b *listHarness) each(names []string, do func(*fixtures.Source, string)) {
	for _, n := range names {
		do(b.origin, n)
		if b.twin != nil {
			do(b.twin, n)
		}
	}
}

// contents numbers the contents of each resource: by hash where that is known,
// and by Modified.
func (b *listHarness) contents() func(*event.Event) string {
	numbers, names := map[string]int{}, map[string]string{}
	count := map[string]int{}
	for _, c := range b.origin.History() {
		names[c.ID] = c.Name
		if len(c.Representations) == 0 || c.Kind == fixtures.Touched {
			continue
		}
		count[c.Name]++
		n := count[c.Name]
		numbers[c.Name+" "+c.Representations[0].SHA256] = n
		numbers[c.Name+" "+c.LastMod.UTC().String()] = n
	}
	return func(ev *event.Event) string {
		name, known := names[ev.Record]
		if !known {
			name = ev.Record
		}
		if !ev.Live() {
			return name
		}
		n, ok := numbers[name+" "+ev.Representations[0].SHA256()]
		if !ok {
			n, ok = numbers[name+" "+ev.Modified.Time().UTC().String()]
		}
		if !ok {
			return fmt.Sprintf("%s ? (%s, %s)", name, ev.Representations[0].Hash, ev.Modified)
		}
		return fmt.Sprintf("%s %d", name, n)
	}
}

// eventsAfter returns what the log holds after a position.
func (b *listHarness) eventsAfter(after event.Seq) []string {
	b.t.Helper()
	content := b.contents()
	var out []string
	for ev := range b.eventsOf("main", after) {
		out = append(out, ev.Kind.String()+" "+content(ev))
	}
	return out
}

// expect harvests once, which must not fail, and compares what was logged, in
// any order.
func (b *listHarness) expect(what string, want ...string) harvest.Report {
	b.t.Helper()
	return b.expectOf(what, harvest.Options{}, want...)
}

// expectFull does the same with --full.
func (b *listHarness) expectFull(what string, want ...string) harvest.Report {
	b.t.Helper()
	return b.expectOf(what, harvest.Options{Full: true}, want...)
}

func (b *listHarness) expectOf(what string, o harvest.Options, want ...string) harvest.Report {
	b.t.Helper()
	before := b.last()
	r, err := b.try(o)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	got := b.eventsAfter(before)
	slices.Sort(got)
	slices.Sort(want)
	b.want(what, got, want...)
	return r
}

// quiet fails when a harvest left something undone or had something to say.
func (b *listHarness) quiet(what string, r harvest.Report) {
	b.t.Helper()
	if r.Partial() || r.Problems > 0 {
		b.t.Errorf("%s: %s", what, said(r))
	}
}

// said is everything that a report says of a Source's faults.
func said(r harvest.Report) string {
	var all []string
	for _, e := range r.Examples {
		all = append(all, fmt.Sprintf("%s (%d): %s", e.Rule, e.Count, e.First))
	}
	all = append(all, r.Warnings...)
	return strings.Join(append(all, fmt.Sprintf("dialects %q, %d pending, %d held, %d quarantined, gap %q, error %q", r.Dialects, r.Pending, r.Held, r.Quarantined, r.Gap, r.Error)), "\n")
}

// wantSame fails unless the bridge has just what the Source has: in the index of
// live records, and by applying the events of the log one after another, each of
// which must change something.
func (b *listHarness) wantSame(what string) {
	b.t.Helper()
	var want []string
	for _, c := range b.origin.Live() {
		s := c.ID
		for _, r := range c.Representations {
			s += " " + r.Type + " " + r.SHA256
		}
		want = append(want, s)
	}
	slices.Sort(want)
	b.want(what+", live records", b.liveState(config.Mirror), want...)
	got, wrong := b.replayed()
	b.want(what+", the log applied", got, want...)
	b.want(what+", events that say nothing", wrong)
}

// replayed applies the log, and tells of events that do not change a record's
// state (I5).
func (b *listHarness) replayed() (live, wrong []string) {
	b.t.Helper()
	state := map[string]string{}
	for ev := range b.eventsOf("main", 0) {
		before, alive := state[ev.Record]
		now := stateOf(ev, config.Mirror)
		if alive == (ev.Kind == event.Created) || ev.Kind == event.Updated && before == now && hashed(ev) {
			wrong = append(wrong, fmt.Sprintf("event %d: %s %s; it was %q and is %q", ev.Seq, ev.Kind, ev.Record, before, now))
		}
		if delete(state, ev.Record); ev.Live() {
			state[ev.Record] = now
		}
	}
	return slices.Sorted(maps.Values(state)), wrong
}

// hashed reports whether every representation has a hash, so that it alone tells
// of new content.
func hashed(ev *event.Event) bool {
	return !slices.ContainsFunc(ev.Representations, func(r event.Representation) bool { return r.Hash == "" })
}

// asked returns the documents and contents that were asked for since the last
// call, with the number of requests and, where one was answered 304, "!".
func (b *listHarness) asked() []string {
	var out []string
	for path, n := range b.origin.Asked() {
		s := fmt.Sprintf("%s %d", path, n)
		if n304 := b.origin.Answers(path, 304); n304 == n {
			s += "!"
		}
		out = append(out, s)
	}
	b.origin.ForgetRequests()
	slices.Sort(out)
	return out
}

// apart lets the Source's clock go on, so that no change shares its second with
// one that was harvested.
func (b *listHarness) apart() {
	if all := b.origin.History(); len(all) > 0 {
		next := all[len(all)-1].Stamp.Add(10 * time.Second)
		b.each([]string{""}, func(s *fixtures.Source, _ string) { s.SetTime(next) })
	}
}

// quickTo is quick for a Source that was typed by this name, so that its address
// is trusted by no other.
func (b *listHarness) quickTo(host string) {
	b.quick(func(o *fetch.Options) { o.Reach.Allowed = []string{host} })
}
