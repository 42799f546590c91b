package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// change is one step in the life of a provider, and what the log makes of it.
type change struct {
	what string
	do   func(*fixtures.Provider)
	want []string // in mode mirror
	// stamped: events that other modes have besides, because where nothing has a
	// hash the stamp is all that tells of new content.
	stamped []string
	// asked are the documents and representations asked for, in mode mirror.
	asked map[string]int
}

// life is a history with all that can happen to a record; twice so many records
// as equal have the same stamp.
func life(equal int) []change {
	at := func(minute int) fixtures.Record {
		return fixtures.Record{Stamp: day(20).Add(time.Duration(minute) * time.Minute)}
	}
	with := func(r fixtures.Record, name string, formats ...fixtures.Format) fixtures.Record {
		r.Name, r.Title, r.Formats = name, strings.ToUpper(name), formats
		return r
	}
	return []change{
		{what: "created, in one to three formats", do: func(p *fixtures.Provider) {
			p.Create(record("a", fixtures.Atom()))
			p.Create(record("b", fixtures.Atom(), fixtures.RDF()))
			p.Create(record("c", fixtures.Atom(), fixtures.RDF(), fixtures.RIFCS()))
		}, want: []string{"created a [atom]", "created b [atom rdf]", "created c [atom rdf rifcs]"},
			asked: map[string]int{"/feed.atom": 1, "/records/a.atom": 1, "/records/b.atom": 1, "/records/b.rdf": 1, "/records/c.atom": 1, "/records/c.rdf": 1, "/records/c.rifcs": 1}},
		{what: "nothing", do: func(*fixtures.Provider) {}, asked: map[string]int{"/feed.atom": 1}},
		{what: "updated", do: func(p *fixtures.Provider) { p.Update(fixtures.Record{Name: "a", Summary: "New."}) },
			want: []string{"updated a [atom]"}, asked: map[string]int{"/feed.atom": 1, "/records/a.atom": 1}},
		{what: "updated several times", do: func(p *fixtures.Provider) {
			p.Update(fixtures.Record{Name: "a", Summary: "Newer."})
			p.Update(fixtures.Record{Name: "a", Summary: "Newest."})
		}, want: []string{"updated a [atom]"}, asked: map[string]int{"/feed.atom": 1, "/records/a.atom": 1}},
		{what: "touched", do: func(p *fixtures.Provider) { p.Touch("b") }, stamped: []string{"updated b [atom rdf]"},
			asked: map[string]int{"/feed.atom": 1, "/records/b.atom": 1, "/records/b.rdf": 1}},
		{what: "a format vanishes", do: func(p *fixtures.Provider) { p.DropFormats("c", "rdf") },
			want: []string{"updated c [atom rifcs]"}, asked: map[string]int{"/feed.atom": 1, "/records/c.atom": 1, "/records/c.rifcs": 1}},
		{what: "deleted, by both ways", do: func(p *fixtures.Provider) { p.Delete("a"); p.Bury("b") },
			want: []string{"deleted a", "deleted b"}, asked: map[string]int{"/feed.atom": 1}},
		{what: "re-created", do: func(p *fixtures.Provider) { p.Recreate(fixtures.Record{Name: "a", Summary: "Again."}) },
			want: []string{"created a [atom]"}, asked: map[string]int{"/feed.atom": 1, "/records/a.atom": 1}},
		{what: "created and deleted unseen", do: func(p *fixtures.Provider) { p.Create(record("d", fixtures.Atom())); p.Delete("d") },
			asked: map[string]int{"/feed.atom": 1}},
		{what: "deleted and re-created unseen", do: func(p *fixtures.Provider) { p.Delete("c"); p.Recreate(record("c", fixtures.RDF())) },
			want: []string{"updated c [rdf]"}, asked: map[string]int{"/feed.atom": 1, "/records/c.rdf": 1}},
		{what: "the document closes", do: func(p *fixtures.Provider) { p.CloseArchive(); p.Create(record("e", fixtures.Atom())) },
			want: []string{"created e [atom]"}, asked: map[string]int{"/feed.atom": 1, "/archive/1.atom": 1, "/records/e.atom": 1}},
		{what: "equal stamps", do: func(p *fixtures.Provider) {
			for i := range equal {
				p.Create(with(at(0), fmt.Sprintf("t%03d", i), fixtures.Atom()))
			}
		}, want: numbered("created t%03d [atom]", equal)},
		{what: "as many more, across the border of a document and the mark", do: func(p *fixtures.Provider) {
			p.CloseArchive()
			for i := range equal {
				p.Create(with(at(0), fmt.Sprintf("u%03d", i), fixtures.Atom()))
			}
		}, want: numbered("created u%03d [atom]", equal)},
		{what: "moved between archives", do: func(p *fixtures.Provider) {
			p.CloseArchive()
			p.Move("e", fixtures.Archive(2), fixtures.Archive(1))
			p.Move("t007", fixtures.Archive(2), fixtures.Archive(3))
			p.SetTime(day(21))
			p.Update(fixtures.Record{Name: "a", Summary: "Moved?"})
		}, want: []string{"updated a [atom]"}},
		{what: "the chain grows during the walk", do: func(p *fixtures.Provider) {
			p.CloseArchive()
			p.Create(record("f", fixtures.Atom()))
			grown := make(chan struct{})
			p.SetHook(fixtures.Archive(4), fixtures.Hook{Times: 1, Before: func(*http.Request) {
				p.Update(fixtures.Record{Name: "f", Summary: "During the walk."})
				p.CloseArchive()
				p.Delete("e")
				p.Create(record("g", fixtures.Atom()))
				close(grown)
			}})
			// The next document is asked for while the contents of the one before are.
			p.SetHook("/records/f.atom", fixtures.Hook{Times: 1, Before: func(*http.Request) { <-grown }})
		}, want: []string{"created f [atom]"}},
		// Its content was fetched after the update, so a mirror has that already.
		{what: "what came during the walk", do: func(*fixtures.Provider) {}, want: []string{"deleted e", "created g [atom]"}, stamped: []string{"updated f [atom]"}},
	}
}

// numbered has the highest number first: a provider's newest entry is the first.
func numbered(format string, n int) []string {
	var out []string
	for i := n - 1; i >= 0; i-- {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}

// TestProviderThatChanges: the log tells exactly what happened, in batches of any
// size, and harvesting again adds nothing and asks for nothing that it need not.
func TestProviderThatChanges(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) { sameLog(t, mode, 10, 1, 7, 50_000) })
		t.Run(mode+", 1,000 equal stamps", func(t *testing.T) {
			testenv.Heavy(t)
			sameLog(t, mode, 500, 1, 7, 50_000)
		})
	}
}

// sameLog lives through the history with batches of several sizes.
func sameLog(t *testing.T, mode string, equal int, sizes ...int) {
	var logs []string
	for _, size := range sizes {
		t.Run(fmt.Sprintf("batches of %d", size), func(t *testing.T) {
			b := newHarness(t, fixtures.New(fixtures.Options{}), content(mode))
			b.bridge.Harvester().BatchSize = size
			for _, c := range life(equal) {
				b.liveThrough(c, mode)
			}
			b.wantLive()
			if mode == config.Mirror {
				b.wantBytes()
			}
			before := b.last()
			if r := b.full(); r.Events() != 0 {
				t.Errorf("a full harvest added %q", b.events(before))
			}
			logs = append(logs, b.dump())
		})
	}
	for _, l := range logs[1:] {
		if l != logs[0] {
			t.Errorf("the log depends on the size of batches:\n%s", firstDifference(logs[0], l))
		}
	}
}

// liveThrough makes a change, harvests it, and harvests again.
func (b *harness) liveThrough(c change, mode string) {
	b.t.Helper()
	c.do(b.provider)
	b.provider.ForgetRequests()
	before := b.last()
	r := b.harvest()
	want := c.want
	if mode != config.Mirror {
		want = append(slices.Clone(want), c.stamped...)
	}
	b.want(c.what, b.events(before), want...)
	if r.Pending+r.Held+r.Quarantined != 0 || len(r.Warnings) != 0 {
		b.t.Errorf("%s: report %+v", c.what, r)
	}
	if c.asked != nil && mode == config.Mirror {
		b.wantAsked(c.asked)
	}
	if c.what == "the chain grows during the walk" {
		return // the next harvest has more
	}
	b.provider.ForgetRequests()
	if again := b.harvest(); again.Events() != 0 || !again.NotModified {
		b.t.Errorf("%s: harvesting again: %+v", c.what, again)
	}
	b.wantAsked(map[string]int{fixtures.Subscription: 1})
}

// dump returns the whole log, one event a line, without Observed and where the
// provider listens.
func (b *harness) dump() string {
	b.t.Helper()
	var out strings.Builder
	for ev, err := range b.bridge.Log.Events(b.t.Context(), "", allAfter(0)) {
		if err != nil {
			b.t.Fatal(err)
		}
		clone := *ev
		clone.Observed = 0
		line, err := json.Marshal(struct {
			Event    event.Event
			Modified string
			Via      string
		}{clone, clone.Modified.String(), clone.Via.Modified.String()})
		if err != nil {
			b.t.Fatal(err)
		}
		if b.server != nil {
			line = bytes.ReplaceAll(line, []byte(b.server.URL), []byte("http://provider"))
		}
		out.Write(append(line, '\n'))
	}
	return out.String()
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return x[i] + "\n" + y[i]
		}
	}
	return fmt.Sprintf("%d and %d lines", len(x), len(y))
}

// TestAnyHistory: whatever a provider goes through, after each harvest bridge
// has just the records that the provider has, with their very content, and the
// events of the log, applied one after another, come to the same.
func TestAnyHistory(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			testenv.Checks(t, 20)
			rapid.Check(t, func(rt *rapid.T) { anyHistory(t, rt, mode) })
		})
	}
}

func anyHistory(t *testing.T, rt *rapid.T, mode string) {
	p := fixtures.New(fixtures.Options{
		Complete:   rapid.Bool().Draw(rt, "complete"),
		PerArchive: rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(rt, "entries a document"),
	})
	b := newHarness(t, p, content(mode))
	defer func() {
		b.server.Close()
		b.close()
	}()
	b.bridge.Harvester().BatchSize = rapid.SampledFrom([]int{1, 3, 50_000}).Draw(rt, "batch size")
	b.bridge.Harvester().BacklogMemory = rapid.SampledFrom([]int{0, 1, 3}).Draw(rt, "observations of a document in memory") // D64
	h := &historian{p: p, rt: rt}
	for range rapid.IntRange(1, 6).Draw(rt, "harvests") {
		for range rapid.IntRange(0, 8).Draw(rt, "changes") {
			h.change()
		}
		full := rapid.IntRange(0, 3).Draw(rt, "full") == 0 || h.moved
		h.moved = false
		h.check(b, full, mode)
	}
}

// historian changes a provider at random.
type historian struct {
	p     *fixtures.Provider
	rt    *rapid.T
	made  int
	moved bool // something stands where only a full harvest looks
}

func (h *historian) change() {
	p, rt := h.p, h.rt
	live := p.Live()
	var dead []string
	for _, c := range p.History() {
		if !slices.ContainsFunc(live, func(l fixtures.Change) bool { return l.Name == c.Name }) && !slices.Contains(dead, c.Name) {
			dead = append(dead, c.Name)
		}
	}
	what := rapid.SampledFrom([]string{"create", "create", "update", "update", "touch", "delete", "bury", "recreate", "drop", "close", "move", "evolve"}).Draw(rt, "change")
	if len(live) == 0 || what == "create" || what == "evolve" && len(live) < 2 || what == "recreate" && len(dead) == 0 {
		h.made++
		p.Create(record(fmt.Sprintf("r%d", h.made), h.formats()...))
		return
	}
	name := rapid.SampledFrom(live).Draw(rt, "record").Name
	stamp := h.stamp()
	stamped := func(name string) fixtures.Record {
		// An entry that differs in nothing, not even in its stamp, tells nothing.
		h.made++
		r := record(name, h.formats()...)
		r.Stamp, r.Title = stamp, fmt.Sprintf("%s %d", name, h.made)
		return r
	}
	switch what {
	case "update":
		p.Update(stamped(name))
	case "touch":
		p.Touch(name, stamp)
	case "delete":
		p.Delete(name, stamp)
	case "bury":
		p.Bury(name, stamp)
	case "recreate":
		p.Recreate(stamped(rapid.SampledFrom(dead).Draw(rt, "dead")))
	case "drop":
		p.Update(record(name, fixtures.RDF()))
	case "close":
		h.close()
	case "move":
		h.move(name)
	case "evolve":
		p.Evolve()
	}
}

// stamp is now and then that of the change before, else the next one.
func (h *historian) stamp() time.Time {
	if all := h.p.History(); rapid.IntRange(0, 3).Draw(h.rt, "same stamp") == 0 {
		return all[len(all)-1].Stamp
	}
	return time.Time{}
}

func (h *historian) formats() []fixtures.Format {
	return rapid.SampledFrom([][]fixtures.Format{
		{fixtures.Atom()}, {fixtures.RDF(), fixtures.Atom()}, {fixtures.Atom(), fixtures.RDF(), fixtures.RIFCS()},
	}).Draw(h.rt, "formats")
}

// close closes the subscription document; a complete feed has no archives.
func (h *historian) close() {
	if !h.complete() {
		h.p.CloseArchive()
	}
}

func (h *historian) complete() (is bool) {
	h.p.Edit(fixtures.Subscription, func(d *fixtures.Document) { is = d.Complete })
	return is
}

// move closes the subscription document and puts a record's entries into the
// document before or after it.
func (h *historian) move(name string) {
	if h.complete() || !h.open(fixtures.UUID(name)) {
		return
	}
	from := h.p.CloseArchive()
	to := fixtures.Subscription
	var n int
	if _, err := fmt.Sscanf(from, "/archive/%d.atom", &n); err != nil {
		h.rt.Fatal(err)
	}
	if n > 1 && rapid.Bool().Draw(h.rt, "back") {
		to = fixtures.Archive(n - 1)
		h.moved = true
	}
	h.p.Move(name, from, to)
}

// open reports whether the subscription document has an entry of a record.
func (h *historian) open(id string) (has bool) {
	h.p.Edit(fixtures.Subscription, func(d *fixtures.Document) {
		has = slices.ContainsFunc(d.Entries, func(e fixtures.Entry) bool { return e.ID == id })
	})
	return has
}

// check harvests and compares.
func (h *historian) check(b *harness, full bool, mode string) {
	o := "harvest"
	if full {
		o = "full harvest"
		b.full()
	} else {
		b.harvest()
	}
	held := b.stored().Held
	if held > 0 {
		if _, err := b.bridge.Harvester().Release(b.t.Context(), &b.source().Source); err != nil {
			h.rt.Fatal(err)
		}
	}
	want := providerState(h.p, mode)
	if got := b.logState(mode); !slices.Equal(got, want) {
		h.rt.Fatalf("after a %s the log tells of\n%s\nand the provider has\n%s", o, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := b.liveState(mode); !slices.Equal(got, want) {
		h.rt.Fatalf("after a %s the bridge has\n%s\nand the provider\n%s", o, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	before := b.last()
	if r := b.harvest(); r.Events() != 0 || !r.NotModified {
		h.rt.Fatalf("harvesting again: %q, %+v", b.events(before), r)
	}
}

func providerState(p *fixtures.Provider, mode string) []string {
	var out []string
	for _, c := range p.Live() {
		s := c.ID
		for _, a := range c.Alternates {
			if s += " " + a.Type; mode == config.Mirror {
				s += " " + a.SHA256
			}
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func stateOf(ev *event.Event, mode string) string {
	s := ev.Record
	for _, r := range ev.Representations {
		if s += " " + r.Type; mode == config.Mirror {
			s += " " + r.SHA256()
		}
	}
	return s
}

// logState applies the events of the log one after another. Created is what was
// not there, updated and deleted what was.
func (b *harness) logState(mode string) []string {
	b.t.Helper()
	state := map[string]string{}
	for ev, err := range b.bridge.Log.Events(b.t.Context(), "main", allAfter(0)) {
		if err != nil {
			b.t.Fatal(err)
		}
		if _, there := state[ev.Record]; there == (ev.Kind == event.Created) {
			b.t.Fatalf("event %d: %s %s, and it was there: %t", ev.Seq, ev.Kind, ev.Record, there)
		}
		if delete(state, ev.Record); ev.Live() {
			state[ev.Record] = stateOf(ev, mode)
		}
	}
	var out []string
	for _, s := range state {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func (b *harness) liveState(mode string) []string {
	b.t.Helper()
	set, err := b.bridge.Log.Set(b.t.Context(), "main")
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for ev, err := range b.bridge.Log.Live(b.t.Context(), "main", set.Last) {
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, stateOf(ev, mode))
	}
	slices.Sort(out)
	return out
}
