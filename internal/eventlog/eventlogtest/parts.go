package eventlogtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
)

// PartLaws: over random histories of a ResourceSync Source with two sets of resources that
// share some, which are read now by their lists of changes and now by their lists of all
// resources, a record lives while one of the sets has it, as it is at the Source.
func PartLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := begin(t, set{content: rapid.SampledFrom([]event.Content{event.Redirect, event.Reference}).Draw(t, "content"), kind: "resourcesync"})
		o := &origin{in: map[string]map[int]bool{}, version: map[string]int{}, modified: map[string]int{}}
		for range rapid.IntRange(1, 10).Draw(t, "walks") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				o.change(t)
			}
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				b.reopen()
			}
			if rapid.IntRange(0, 2).Draw(t, "whole") == 0 {
				o.readWhole(t, b)
			} else {
				o.readChanges(t, b)
			}
			want := []string{}
			for id, in := range o.in {
				if len(in) > 0 {
					want = append(want, fmt.Sprint(id, " ", o.version[id]))
				}
			}
			slices.Sort(want)
			var got []string
			for ev, err := range b.log.Live(context.Background(), "main", math.MaxInt64) {
				b.must(err)
				got = append(got, ev.Record+" "+ev.Title)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("live are %q, the Source has %q", got, want)
			}
			b.sound()
		}
	})
}

// origin is a Source with two sets of resources.
type origin struct {
	now      int
	in       map[string]map[int]bool // which of the sets have a resource
	version  map[string]int          // of its content
	modified map[string]int          // when it was last modified
	changes  [2][]*event.Item        // those that were not read yet, the newest first
	position [2]int
}

// change changes a resource, or which of the sets have it.
func (o *origin) change(t *rapid.T) {
	o.now++
	id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "resource")
	if o.in[id] == nil {
		o.in[id] = map[int]bool{}
	}
	part := rapid.IntRange(0, 1).Draw(t, "part")
	switch in := o.in[id]; {
	case !in[part]:
		if len(in) == 0 {
			o.version[id]++
			o.modified[id] = o.now
		}
		in[part] = true
		o.list(part, o.item(id, part, false))
	case rapid.Bool().Draw(t, "leaves"):
		delete(in, part)
		o.list(part, o.item(id, part, true))
	default:
		o.version[id]++
		o.modified[id] = o.now
		for p := range 2 {
			if in[p] {
				o.list(p, o.item(id, p, false))
			}
		}
	}
}

// list adds a change to the list of a set.
func (o *origin) list(part int, it *event.Item) {
	o.position[part]++
	it.Place.List, it.Place.Position = int64(2+part), int64(o.position[part]) // 1 is that of what was replayed
	o.changes[part] = append([]*event.Item{it}, o.changes[part]...)
}

func (o *origin) item(id string, part int, deleted bool) *event.Item {
	stamp := func(n int) event.Stamp { return event.StampFromNanos(int64(n)) }
	it := &event.Item{Observation: event.Observation{Record: id, Deleted: deleted, Order: stamp(o.now), Modified: stamp(o.now), Place: event.Place{Part: part}}}
	if !deleted {
		it.Title, it.Fetched, it.Modified = fmt.Sprint(o.version[id]), true, stamp(o.modified[id])
		it.Representations = []event.Representation{{Href: href(id), Type: "text/plain", Length: event.NoLength}}
	}
	it.Claim = it.ClaimOf()
	return it
}

// parts returns the sets in the order in which they are read.
func partsOf(t *rapid.T) []int { return rapid.Permutation([]int{0, 1}).Draw(t, "order") }

// readChanges reads the lists of changes, each from the newest change on.
func (o *origin) readChanges(t *rapid.T, b *bench) {
	start := true
	for _, part := range partsOf(t) {
		all := o.changes[part]
		o.changes[part] = nil
		for first := true; first || len(all) > 0; first = false {
			n := min(len(all), rapid.IntRange(1, 3).Draw(t, "piece"))
			b.batch(0, &event.Batch{Start: start, Next: []byte("on"), Items: all[:n]})
			all, start = all[n:], false
		}
	}
	b.end(0)
}

// readWhole reads the lists of all resources, maybe after those of changes.
func (o *origin) readWhole(t *rapid.T, b *bench) {
	ctx, parts := context.Background(), []int{0, 1}
	start := true
	read := func(all []*event.Item) {
		b.batch(0, &event.Batch{Start: start, Next: []byte("on"), Items: all})
		start = false
	}
	changes := rapid.Bool().Draw(t, "after the changes")
	o.now++
	at := event.StampFromNanos(int64(o.now))
	for _, part := range partsOf(t) {
		if changes {
			read(o.changes[part])
		}
		o.changes[part] = nil
		var all []*event.Item
		for _, id := range slices.Sorted(strings.SplitSeq("a b c", " ")) {
			if o.in[id][part] {
				it := o.item(id, part, false)
				it.Baseline, it.Place.List = true, int64(90+part)
				all = append(all, it)
			}
		}
		read(all)
	}
	enumerated := []event.Enumerated{{Part: 0}, {Part: 1}}
	left, _, err := b.log.Left(ctx, b.sources[0], at, 0, 100, enumerated...)
	b.must(err)
	in := &event.Batch{Mode: event.ModeLeft, Next: []byte("on")}
	for _, l := range left {
		in.Items = append(in.Items, &event.Item{Observation: event.Observation{Record: l.Record, Deleted: true, Place: event.Place{Part: l.Part}}})
	}
	b.batch(0, in)
	ids, _, err := b.log.Absent(ctx, b.sources[0], at, 0, 100, enumerated...)
	b.must(err)
	in = &event.Batch{Mode: event.ModeAbsent, Next: []byte("on"), Parts: parts}
	for _, id := range ids {
		in.Items = append(in.Items, &event.Item{Observation: event.Observation{Record: id, Deleted: true}})
	}
	b.batch(0, in)
	b.end(0)
}
