package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// Laws compares the log with a model that implements nothing but the rules, over random
// histories: any number of Sources, walks in batches of any size, regressions, absences,
// restarts and new orders of the Sources. Two logs get the same history in different
// batches. After each walk: the events are those of the model; the state follows from
// them, at every position; the segments cover them without gaps; and repeating the walk
// adds nothing.
func Laws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom([]event.Content{event.Redirect, event.Reference}).Draw(t, "content")
		sources := rapid.IntRange(1, 3).Draw(t, "sources")
		h := &history{t: t, model: newModel(content == event.Reference, sources), sources: sources}
		for i := range h.logs {
			h.walked[i] = map[int][]*event.Batch{}
			h.logs[i] = begin(t, set{content: content, segmentEvents: rapid.IntRange(1, 7).Draw(t, "segment events")}, names(sources)...)
		}
		for range rapid.IntRange(1, 6).Draw(t, "walks") {
			h.walk()
		}
	})
}

func names(n int) []string { return []string{"one", "two", "three"}[:n] }

// history is one random history, which two logs and the model get.
type history struct {
	t       *rapid.T
	model   *model
	sources int
	logs    [2]*bench
	pieces  int                       // the number of batches that were appended
	walked  [2]map[int][]*event.Batch // batches of the walk under way of each Source
}

// id is the number that a log has given to a Source.
func (b *bench) id(source int) event.SourceID {
	return b.sources[slices.Index(b.names, names(3)[source])]
}

// item draws a report of a Source about one of a few records, at one of a few times.
func item(t *rapid.T, complete bool) *event.Item {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "record")
	word := name
	if rapid.Bool().Draw(t, "elsewhere") {
		word += ">" + rapid.SampledFrom([]string{"a", "b", "x"}).Draw(t, "uri")
	}
	word += fmt.Sprintf("@%d", rapid.IntRange(1, 6).Draw(t, "stamp"))
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2:
		word = "-" + word
	case 3:
		word = rapid.SampledFrom([]string{"!" + name, "!" + word, "~" + word}).Draw(t, "no state")
	default:
		if c := rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "content"); c != "" {
			word += "=" + c
		}
	}
	it := items(word)[0]
	it.Complete = complete
	return it
}

// walk is one walk of one Source, to its end or left unfinished.
func (h *history) walk() {
	t, source := h.t, rapid.IntRange(0, h.sources-1).Draw(h.t, "source")
	complete := rapid.Bool().Draw(t, "complete")
	all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *event.Item { return item(t, complete) }), 0, 8).Draw(t, "items")
	h.reorder()
	h.model.start(source)
	for _, it := range all {
		h.model.meet(source, *it)
	}
	for i := range h.logs {
		h.feed(i, source, true, event.ModeWalk, all)
	}
	h.compare()
	if whole := rapid.Bool().Draw(t, "whole"); whole {
		h.finish(source, complete)
		h.compare()
	}
	h.again(source, all)
}

// reorder restarts the logs, perhaps with another order of the Sources.
func (h *history) reorder() {
	order := rapid.Permutation([]int{0, 1, 2}[:h.sources]).Draw(h.t, "order")
	if !rapid.Bool().Draw(h.t, "restart") {
		return
	}
	h.model.reorder(order)
	for _, l := range h.logs {
		for rank, source := range order {
			l.names[rank] = names(3)[source]
		}
		l.reopen()
	}
}

// feed appends items in batches of a random size, several in a transaction, which may be
// undone once before it is committed.
func (h *history) feed(i, source int, start bool, mode event.Mode, all []*event.Item) {
	l := h.logs[i]
	var pieces []*event.Batch
	for first := true; first || len(all) > 0; first = false {
		n := min(len(all), rapid.IntRange(1, 5).Draw(h.t, "piece"))
		h.pieces++
		pieces = append(pieces, &event.Batch{Start: first && start, Next: fmt.Append(nil, h.pieces), Mode: mode, Lazy: rapid.Bool().Draw(h.t, "lazy"), Items: copies(all[:n])})
		all = all[n:]
	}
	for len(pieces) > 0 {
		together := pieces[:rapid.IntRange(1, len(pieces)).Draw(h.t, "in a transaction")]
		pieces = pieces[len(together):]
		l.clock.pass(time.Duration(rapid.Int64Range(0, int64(10*time.Hour)).Draw(h.t, "pause")))
		at := slices.Index(l.names, names(3)[source])
		if undone := errors.New("undone"); rapid.Bool().Draw(h.t, "undone") {
			if err := l.together(at, together, undone); !errors.Is(err, undone) {
				h.t.Fatalf("a transaction that is undone: %v", err)
			}
			if !together[0].Start {
				h.resume(i, source, at)
			}
		}
		if together[0].Start {
			h.walked[i][source] = nil
		}
		h.walked[i][source] = append(h.walked[i][source], together...)
		l.must(l.together(at, together, nil))
	}
}

// resume goes on from the stored cursor, as a harvest does after an error: a transaction
// that is undone also loses the cursors that lazy batches left in memory.
func (h *history) resume(i, source, at int) {
	l := h.logs[i]
	p, err := l.log.Progress(context.Background(), l.sources[at])
	l.must(err)
	walked := h.walked[i][source]
	stored := slices.IndexFunc(walked, func(b *event.Batch) bool { return string(b.Next) == string(p.Cursor.Data) })
	if again := walked[stored+1:]; len(again) > 0 { // all of them if nothing of the walk is stored
		l.must(l.together(at, again, nil))
	}
}

// together appends batches of a Source in one transaction, which ends with an error.
func (b *bench) together(source int, batches []*event.Batch, end error) error {
	ctx := context.Background()
	p, err := b.log.Progress(ctx, b.sources[source])
	b.must(err)
	return b.log.Do(ctx, func(ctx context.Context, tx *eventlog.Tx) error {
		version := p.Cursor.Version
		for _, in := range batches {
			in.Source, in.Cursor, in.Documents = b.sources[source], version, []event.Document{{URL: b.names[source] + "/feed"}}
			out, err := tx.Append(ctx, in)
			if err != nil {
				return err
			}
			if len(out.Outcomes) != len(in.Items) {
				b.t.Fatalf("%d items gave %+v", len(in.Items), out)
			}
			version = out.Cursor
		}
		return end
	})
}

// finish ends a complete walk: it appends what has regressed, and deletes what is absent.
func (h *history) finish(source int, complete bool) {
	backs := maps.Clone(h.model.walks[source].back)
	for i, l := range h.logs {
		kept, err := regressed(l.log, l.id(source))
		l.must(err)
		if len(kept) != len(backs) {
			h.t.Fatalf("%d have regressed, want %d", len(kept), len(backs))
		}
		var all []*event.Item
		for n, k := range kept {
			it, ok := backs[k.Record]
			if !ok || k.Modified != it.Modified || k.Deleted != it.Deleted || n > 0 && k.Modified.Before(kept[n-1].Modified) {
				h.t.Fatalf("regressed: %+v, want %+v", k, it)
			}
			all = append(all, &event.Item{Observation: k.Observation})
			if i == 0 {
				h.model.say(source, it)
			}
		}
		h.feed(i, source, false, event.ModeRegressed, all)
	}
	h.compare()
	if !complete {
		return
	}
	missing := h.model.missing(source)
	var all []*event.Item
	for i, l := range h.logs {
		id := l.id(source)
		n, _, err := l.log.CountAbsent(context.Background(), id, event.Stamp{})
		l.must(err)
		ids, _, err := l.log.Absent(context.Background(), id, event.Stamp{}, 0, 100)
		l.must(err)
		// Both logs number the records alike, so the order is the same.
		if sorted := slices.Sorted(slices.Values(ids)); !slices.Equal(sorted, missing) || int(n) != len(missing) {
			h.t.Fatalf("absent are %q (%d), want %q", ids, n, missing)
		}
		all = nil
		for _, record := range ids {
			all = append(all, &event.Item{Observation: event.Observation{Record: record, Deleted: true}})
		}
		h.feed(i, source, false, event.ModeAbsent, all)
	}
	for _, it := range all {
		h.model.absent(source, it.Record)
	}
}

// again appends the items of the walk once more, which adds nothing.
func (h *history) again(source int, all []*event.Item) {
	before := h.last(0)
	h.feed(0, source, false, event.ModeWalk, all)
	if now := h.last(0); now != before {
		h.t.Fatalf("the same once more has added events %d to %d", before+1, now)
	}
	for _, it := range all {
		h.model.meet(source, *it)
	}
}

func (h *history) last(i int) event.Seq {
	last, err := h.logs[i].log.LastSeq(context.Background())
	h.logs[i].must(err)
	return last
}

// compare compares both logs with the model.
func (h *history) compare() {
	for i, l := range h.logs {
		ctx := context.Background()
		var got []string
		mirror := map[string]string{}
		mirrored := []string{""}
		kept := l.set.segmentEvents
		for ev, err := range l.log.Events(ctx, "main", event.Range{Upto: math.MaxInt64}) {
			l.must(err)
			got = append(got, lineOf(ev))
			h.apply(mirror, ev)
			mirrored = append(mirrored, words(mirror))
		}
		if !slices.Equal(got, h.model.events) {
			h.t.Fatalf("log %d has\n%s\nwant\n%s", i, strings.Join(got, "\n"), strings.Join(h.model.events, "\n"))
		}
		if keys := strings.Join(slices.Sorted(maps.Keys(mirror)), " "); keys != h.model.listed() {
			h.t.Fatalf("listed are %s, want %s", keys, h.model.listed())
		}
		for at, want := range mirrored {
			list := map[string]string{}
			n := 0
			for ev, err := range l.log.Listed(ctx, "main", event.Seq(at)) {
				l.must(err)
				list[h.keyOf(ev)] = stateOf(ev)
				n++
			}
			if got := words(list); got != want || n != len(list) {
				h.t.Fatalf("log %d, listed at %d: %s in %d entries, want what the changes come to: %s", i, at, got, n, want)
			}
		}
		segments, err := l.log.Segments(ctx, "main")
		l.must(err)
		events := 0
		for n, s := range segments {
			events += s.Events
			if s.Events > kept || (s.Events == 0 || s.Open() && s.Events == kept) && n != len(segments)-1 {
				h.t.Fatalf("segment %d has %d events", s.N, s.Events)
			}
		}
		set, err := l.log.Set(ctx, "main")
		l.must(err)
		if events != len(got) || set.Events != int64(len(got)) || set.Live != int64(h.alive()) {
			h.t.Fatalf("segments hold %d events, the set %d with %d live; want %d with %d", events, set.Events, set.Live, len(got), h.alive())
		}
		h.compareNewest(l)
	}
}

// compareNewest compares Newest and FirstAt with all events: in every range, and however
// few Newest looks at.
func (h *history) compareNewest(l *bench) {
	type place struct {
		seq      event.Seq
		observed event.Micros
		record   string
	}
	var all []place
	for ev, err := range l.log.Events(context.Background(), "main", event.Range{Upto: math.MaxInt64}) {
		l.must(err)
		all = append(all, place{ev.Seq, ev.Observed, ev.Record})
	}
	newest := func(i int) bool {
		return !slices.ContainsFunc(all[i+1:], func(p place) bool { return p.record == all[i].record })
	}
	end := event.Seq(1)
	if len(all) > 0 {
		end = all[len(all)-1].seq + 1
	}
	for _, r := range []event.Range{{Upto: math.MaxInt64}, {Upto: end / 2}, {After: end / 3, Upto: end - 1}} {
		for _, most := range []int{1, 3, math.MaxInt} {
			var want, got []event.Seq
			for i, p := range all {
				if p.seq > r.After && p.seq <= r.Upto && newest(i) {
					want = append(want, p.seq)
				}
			}
			for part := r; ; {
				looked, err := l.log.Newest(context.Background(), "main", part, most, func(ev *event.Event) bool {
					got = append(got, ev.Seq)
					return len(got)%4 != 0
				})
				l.must(err)
				if looked == part.After || looked >= min(r.Upto, 1<<40-1) {
					break
				}
				part.After = looked
			}
			if !slices.Equal(got, want) {
				h.t.Fatalf("newest in %v, %d at a time: %v, want %v", r, most, got, want)
			}
		}
	}
	for i, p := range all {
		next := event.Seq(0)
		if i+1 < len(all) {
			next = all[i+1].seq
		}
		for at, want := range map[event.Micros]event.Seq{p.observed: p.seq, p.observed + 1: next} {
			if got, err := l.log.FirstAt(context.Background(), "main", at); err != nil || got != want {
				h.t.Fatalf("first at %v: %d, %v, want %d", at, got, err, want)
			}
		}
	}
}

// apply updates a mirror from the entries of an event in a Change List (D109).
func (h *history) apply(mirror map[string]string, ev *event.Event) {
	if ev.Gone != "" {
		delete(mirror, ev.Gone)
	}
	switch {
	case ev.Unlisted:
	case ev.Live():
		mirror[h.keyOf(ev)] = stateOf(ev)
	default:
		delete(mirror, h.keyOf(ev))
	}
}

// keyOf is the key of the record of an event in a list.
func (h *history) keyOf(ev *event.Event) string {
	if h.model.reference {
		return ev.Loc
	}
	return ev.Record
}

// stateOf is the state of a record in a list.
func stateOf(ev *event.Event) string {
	r, _ := ev.Pref()
	return fmt.Sprint(ev.Record, ev.Modified, ev.Title, r.Hash, r.Href, ev.Observed)
}

func words(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+": "+m[k])
	}
	return strings.Join(out, "\n")
}

func (h *history) alive() int { return len(strings.Fields(h.model.live())) }
