package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// BatchLaws: two logs that get the same random history in different batches and transactions,
// some of which are undone first, come to the same events, reports and waiting observations,
// and Verify finds nothing. The Sources are of any kinds, and the batches of most modes.
func BatchLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(t, "content")
		h := &batchHistory{t: t}
		for range rapid.IntRange(1, 3).Draw(t, "sources") {
			h.kinds = append(h.kinds, rapid.SampledFrom([]string{"atompmh", "oaipmh", "resourcesync", "feed"}).Draw(t, "kind"))
		}
		for i := range h.logs {
			h.logs[i] = begin(t, set{content: content, segmentEvents: 5}, names(len(h.kinds))...)
			h.kindle(i)
		}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			h.step()
			h.compare()
		}
	})
}

type batchHistory struct {
	t      *rapid.T
	kinds  []string // of the Sources
	logs   [2]*bench
	pieces int
}

// kindle gives the Sources of a log their kinds and ranks.
func (h *batchHistory) kindle(i int) {
	l := h.logs[i]
	for rank, name := range l.names {
		id, err := l.log.EnsureSource(context.Background(), "main", h.kinds[slices.Index(names(3), name)], name, rank)
		l.must(err)
		l.sources[rank] = id
	}
}

func (h *batchHistory) step() {
	t, source := h.t, rapid.IntRange(0, len(h.kinds)-1).Draw(h.t, "source")
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0:
		h.restart()
	case 1:
		h.settle(source)
	case 2:
		h.apply(source, false, event.ModeReplay, h.items(source, 3, false))
	case 3:
		all := h.items(source, 3, false)
		h.apply(source, false, event.ModeRepair, all)
	case 4:
		h.release(source)
	default:
		h.walk(source)
	}
}

// restart opens the logs again, perhaps with another order of the Sources.
func (h *batchHistory) restart() {
	order := rapid.Permutation([]int{0, 1, 2}[:len(h.kinds)]).Draw(h.t, "order")
	for i, l := range h.logs {
		if i == 0 && rapid.Bool().Draw(h.t, "stays open") {
			// only the order changes
		} else {
			l.stop()
			var err error
			l.log, err = eventlog.Open(context.Background(), l.folder, l.options)
			l.must(err)
		}
		for rank, source := range order {
			l.names[rank] = names(3)[source]
		}
		h.kindle(i)
	}
}

func (h *batchHistory) draw(t *rapid.T, source int, complete bool) *event.Item {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "record")
	word := name
	if rapid.Bool().Draw(t, "elsewhere") {
		word += ">" + rapid.SampledFrom([]string{"a", "x"}).Draw(t, "uri")
	}
	if rapid.IntRange(0, 5).Draw(t, "stamped") > 0 {
		word += fmt.Sprintf("@%d", rapid.IntRange(1, 6).Draw(t, "stamp"))
	}
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2:
		word = "-" + word
	case 3:
		word = rapid.SampledFrom([]string{"!", "~"}).Draw(t, "no state") + word
	default:
		if c := rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "content"); c != "" {
			word += "=" + c
		}
	}
	it := items(word)[0]
	switch h.kinds[source] {
	case "oaipmh":
		it.Current, it.Complete = true, complete
		it.Present = rapid.IntRange(0, 9).Draw(t, "present") == 0
	case "atompmh":
		it.Complete = complete
	case "feed":
		it.Order = event.Stamp{}
	case "resourcesync":
		part := rapid.IntRange(0, 1).Draw(t, "part")
		it.Place = event.Place{Part: part, List: int64(10*part + rapid.IntRange(2, 3).Draw(t, "list")), Position: int64(rapid.IntRange(0, 3).Draw(t, "position"))}
		if it.Place.Position == 0 {
			it.Place.List, it.Baseline = int64(99+part), true
			it.Deleted = false
			if len(it.Representations) == 0 && !it.Quarantine && !it.Unselected {
				it = &event.Item{Observation: event.Observation{Record: it.Record, Order: it.Order, Modified: it.Modified, Place: it.Place, Fetched: true, Title: "x", Representations: []event.Representation{{Href: href(name), Type: "text/plain", Length: event.NoLength}}}, Baseline: true}
			}
		} else if rapid.Bool().Draw(t, "from") {
			it.Place.From = event.StampFromNanos(it.Place.List)
		}
	}
	it.Late = rapid.IntRange(0, 7).Draw(t, "late") == 0
	if !it.Deleted && !it.Quarantine && !it.Unselected {
		if rapid.IntRange(0, 3).Draw(t, "via") == 0 {
			it.Via = event.Link{Href: href(rapid.SampledFrom([]string{"a", "b", "y"}).Draw(t, "original")), Length: event.NoLength}
		}
		switch rapid.IntRange(0, 5).Draw(t, "fetched") {
		case 0:
			it.Fetched = false
		case 1:
			it.Fetched, it.Pending = false, "503"
		}
	}
	it.Claim = it.ClaimOf()
	return it
}

func (h *batchHistory) items(source, most int, complete bool) []*event.Item {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *event.Item { return h.draw(t, source, complete) }), 0, most).Draw(h.t, "items")
}

// apply appends items to both logs.
func (h *batchHistory) apply(source int, start bool, mode event.Mode, all []*event.Item) {
	for i := range h.logs {
		h.feed(i, source, start, mode, all)
	}
}

// feed appends items in batches of a random size, several in a transaction, which may be
// undone once before it is committed.
func (h *batchHistory) feed(i, source int, start bool, mode event.Mode, all []*event.Item) {
	l := h.logs[i]
	var pieces []*event.Batch
	for first := true; first || len(all) > 0; first = false {
		n := min(len(all), rapid.IntRange(1, 5).Draw(h.t, "piece"))
		h.pieces++
		pieces = append(pieces, &event.Batch{Start: first && start, Next: fmt.Append(nil, h.pieces), Mode: mode, Parts: []int{0, 1}, Items: copies(all[:n])})
		all = all[n:]
	}
	for len(pieces) > 0 {
		together := pieces[:rapid.IntRange(1, len(pieces)).Draw(h.t, "in a transaction")]
		pieces = pieces[len(together):]
		at := slices.Index(l.names, names(3)[source])
		if undone := errors.New("undone"); rapid.Bool().Draw(h.t, "undone") {
			if err := l.together(at, together, undone); !errors.Is(err, undone) {
				h.t.Fatalf("a transaction that is undone: %v", err)
			}
		}
		l.must(l.together(at, together, nil))
	}
}

// walk is one walk of one Source, to its end or left unfinished.
func (h *batchHistory) walk(source int) {
	t, ctx := h.t, context.Background()
	complete := rapid.Bool().Draw(t, "complete")
	h.apply(source, true, event.ModeWalk, h.items(source, 8, complete))
	if !rapid.Bool().Draw(t, "whole") {
		return
	}
	for i, l := range h.logs {
		kept, err := regressed(l.log, l.id(source))
		l.must(err)
		var all []*event.Item
		for _, k := range kept {
			it := &event.Item{Observation: k.Observation}
			it.Fetched = true
			all = append(all, it)
		}
		h.feed(i, source, false, event.ModeRegressed, all)
	}
	h.compare()
	if !complete {
		return
	}
	at := event.StampFromNanos(int64(rapid.IntRange(1, 6).Draw(t, "at")))
	if rapid.Bool().Draw(t, "without a time") {
		at = event.Stamp{}
	}
	var parts []event.Enumerated
	if h.kinds[source] == "resourcesync" {
		parts = []event.Enumerated{{Part: 0}, {Part: 1}}
	}
	mode := rapid.SampledFrom([]event.Mode{event.ModeAbsent, event.ModeHold}).Draw(t, "mode")
	for i, l := range h.logs {
		if parts != nil {
			left, _, err := l.log.Left(ctx, l.id(source), at, 0, 100, parts...)
			l.must(err)
			var all []*event.Item
			for _, p := range left {
				all = append(all, &event.Item{Observation: event.Observation{Record: p.Record, Deleted: true, Place: event.Place{Part: p.Part}}})
			}
			h.feed(i, source, false, event.ModeLeft, all)
		}
		n, _, err := l.log.CountAbsent(ctx, l.id(source), at, parts...)
		l.must(err)
		ids, _, err := l.log.Absent(ctx, l.id(source), at, 0, 100, parts...)
		l.must(err)
		if int(n) != len(ids) {
			t.Fatalf("%d are absent: %q", n, ids)
		}
		var all []*event.Item
		for _, id := range ids {
			all = append(all, &event.Item{Observation: event.Observation{Record: id, Deleted: true}})
		}
		h.feed(i, source, false, mode, all)
	}
	h.compare()
	if rapid.Bool().Draw(t, "end") {
		for _, l := range h.logs {
			l.end(slices.Index(l.names, names(3)[source]))
		}
	}
}

// settle settles some of what is pending.
func (h *batchHistory) settle(source int) {
	chosen := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"urn:a", "urn:b", "urn:c", "urn:d"}), 0, 4, rapid.ID[string]).Draw(h.t, "settled")
	answers := map[string]int{}
	for _, id := range chosen {
		answers[id] = rapid.IntRange(0, 4).Draw(h.t, "answer")
	}
	for i, l := range h.logs {
		kept, err := l.log.Pending(context.Background(), l.id(source), math.MaxInt64, 0, 100)
		l.must(err)
		var all []*event.Item
		for _, k := range kept {
			answer, ok := answers[k.Record]
			if !ok {
				continue
			}
			it := &event.Item{Observation: k.Observation}
			switch answer {
			case 0:
				it.Pending = "503"
			case 1:
				it.Answer = event.Refuted
			case 2:
				it.Answer, it.Fetched = event.Confirmed, !it.Deleted
			default:
				it.Fetched = !it.Deleted
			}
			all = append(all, it)
		}
		h.feed(i, source, false, event.ModeSettle, all)
	}
}

// release applies held deletions.
func (h *batchHistory) release(source int) {
	for i, l := range h.logs {
		ids, err := l.log.Held(context.Background(), l.id(source), true, math.MaxInt64)
		l.must(err)
		var all []*event.Item
		for _, id := range ids {
			all = append(all, &event.Item{Observation: event.Observation{Record: id, Deleted: true}})
		}
		h.feed(i, source, false, event.ModeAbsent, all)
	}
}

// compare compares the two logs.
func (h *batchHistory) compare() {
	var first string
	for i, l := range h.logs {
		ctx := context.Background()
		var out strings.Builder
		live := map[string]bool{}
		for ev, err := range l.log.Events(ctx, "main", event.Range{Upto: math.MaxInt64}) {
			l.must(err)
			fmt.Fprintln(&out, lineOf(ev), ev.Via.Href)
			if ev.Live() == live[ev.Record] && ev.Kind != event.Updated || ev.Kind == event.Updated && !live[ev.Record] {
				h.t.Fatalf("event %d: %v of what was live: %v", ev.Seq, ev.Kind, live[ev.Record])
			}
			live[ev.Record] = ev.Live()
		}
		for source, kind := range h.kinds {
			all, err := l.log.SourceRecords(ctx, l.id(source), 0, 100)
			l.must(err)
			var has []eventlog.SourceRecord
			for _, r := range all {
				if r.Alive {
					has = append(has, r)
				}
				o := &r.Observation
				fmt.Fprintln(&out, source, kind, r.Record, r.Live, r.Known, r.Alive, r.Authority, r.Pending, r.Held, o.Order, o.Place, o.Claim, o.Title, o.ViaHref(), o.Modified)
			}
			waits, err := l.log.Pending(ctx, l.id(source), math.MaxInt64, 0, 100)
			l.must(err)
			for _, w := range waits {
				fmt.Fprintln(&out, source, "pending", w.Record, w.Deleted, w.Order, w.Place, w.Claim, w.Reason, w.Flag, len(w.Representations))
			}
			n, err := l.log.Has(ctx, l.id(source))
			l.must(err)
			var found []eventlog.SourceRecord
			for after := int64(0); ; after = found[len(found)-1].Number {
				some, err := l.log.SourceHas(ctx, l.id(source), after, 5, false)
				if l.must(err); len(some) == 0 {
					break
				}
				found = append(found, some...)
			}
			if int(n) != len(has) || !reflect.DeepEqual(found, has) {
				h.t.Fatalf("Source %d has %d records, which are\n%+v\nby its reports they are\n%+v", source, n, found, has)
			}
		}
		l.must(l.log.Verify(ctx, func(f eventlog.Finding) { h.t.Fatalf("log %d: %+v", i, f) }))
		if i == 0 {
			first = out.String()
		} else if got := out.String(); got != first {
			h.t.Fatalf("in other batches:\n%s\nwant\n%s", got, first)
		}
		l.clock.pass(time.Second)
	}
}
