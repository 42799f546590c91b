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
		t.Run(mode+", 300 equal stamps", func(t *testing.T) {
			testenv.Heavy(t)
			sameLog(t, mode, 150, 7, 50_000)
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
	for ev := range b.eventsOf("", 0) {
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

func stateOf(ev *event.Event, mode string) string {
	s := ev.Record
	for _, r := range ev.Representations {
		if s += " " + r.Type; mode == config.Mirror {
			s += " " + r.SHA256()
		}
	}
	return s
}

func (b *harness) liveState(mode string) []string {
	b.t.Helper()
	return b.eachLive(func(ev *event.Event) string { return stateOf(ev, mode) })
}
