package eventlog_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A record that a ResourceSync Source has in several sets of resources lives while one of them
// has it, and each of them tells for itself whether it does. What each has told is kept when the
// log is opened again.
func TestParts(t *testing.T) {
	t.Parallel()
	ctx, folder := t.Context(), t.TempDir()
	var l *eventlog.Log
	var src event.SourceID
	open := func() {
		t.Helper()
		var err error
		if l, err = eventlog.Open(ctx, folder, eventlog.Options{}); err != nil {
			t.Fatal(err)
		}
		sets := []eventlog.SetConfig{{Name: "main", Content: event.Reference, Sources: []eventlog.SourceConfig{{Kind: "resourcesync", URL: "https://h.example/"}}}}
		if _, err = l.Configure(ctx, sets); err != nil {
			t.Fatal(err)
		}
		src = sets[0].Sources[0].ID
	}
	at := func(hour int) event.Stamp {
		stamp, _ := event.StampOf(time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC))
		return stamp
	}
	item := func(part, position, hour int, deleted bool, title string) *event.Item {
		it := &event.Item{Baseline: position == 0, Observation: event.Observation{Record: "https://h.example/r", Title: title, Deleted: deleted, Order: at(hour),
			Place: event.Place{Part: part, List: int64(1 + part), Position: int64(position)}}}
		if !deleted {
			it.Representations = []event.Representation{{Href: it.Record, Type: "text/plain", Length: event.NoLength}}
		}
		it.Claim = it.ClaimOf()
		return it
	}
	batch := func(start bool, mode event.Mode, items ...*event.Item) {
		t.Helper()
		p, err := l.Progress(ctx, src)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append(ctx, &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: start, Mode: mode, Next: []byte("on"), Parts: []int{0, 1}, Documents: []event.Document{{URL: "https://h.example/"}}, Items: items}); err != nil {
			t.Fatal(err)
		}
	}
	const r = "https://h.example/r"
	both := []event.Enumerated{{Part: 0}, {Part: 1}}
	for _, step := range []struct {
		what   string
		do     func()
		events string // all of them
		alive  bool
	}{
		{"both lists have it", func() {
			batch(true, event.ModeWalk, item(1, 0, 1, false, "one"))
			batch(false, event.ModeWalk, item(0, 0, 1, false, "one"))
		}, "created", true},
		{"the first list lacks it now", func() {
			batch(true, event.ModeWalk, item(1, 0, 2, false, "one"))
			if ids, _, err := l.Absent(ctx, src, at(2), 0, 10, both...); err != nil || len(ids) > 0 {
				t.Errorf("absent are %q, %v", ids, err)
			}
			left, _, err := l.Left(ctx, src, at(2), 0, 10, both...)
			if want := []event.Left{{Record: r, Part: 0}}; err != nil || !slices.Equal(left, want) {
				t.Errorf("left are %+v, %v", left, err)
			}
			batch(false, event.ModeLeft, &event.Item{Observation: event.Observation{Record: r, Deleted: true, Place: event.Place{Part: 0}}})
		}, "created", true},
		{"the second one deletes it", func() { batch(true, event.ModeWalk, item(1, 1, 3, true, "")) }, "created deleted", false},
		{"the first one creates it", func() { batch(true, event.ModeWalk, item(0, 1, 4, false, "two")) }, "created deleted created", true},
		{"the second one too", func() { batch(true, event.ModeWalk, item(1, 2, 5, false, "two")) }, "created deleted created", true},
		{"the first one deletes it", func() { batch(true, event.ModeWalk, item(0, 2, 6, true, "")) }, "created deleted created", true},
		{"an old change of the second one", func() { batch(true, event.ModeWalk, item(1, 1, 3, true, "")) }, "created deleted created", true},
		{"no list has it", func() {
			batch(true, event.ModeWalk)
			if n, have, err := l.CountAbsent(ctx, src, at(7), both...); err != nil || n != 1 || have != 1 {
				t.Errorf("%d of %d are absent, %v", n, have, err)
			}
			if has, err := l.Has(ctx, src); err != nil || has != 1 {
				t.Errorf("the Source has %d, %v", has, err)
			}
			ids, _, err := l.Absent(ctx, src, at(7), 0, 10, both...)
			if err != nil || !slices.Equal(ids, []string{r}) {
				t.Errorf("absent are %q, %v", ids, err)
			}
			batch(false, event.ModeAbsent, &event.Item{Observation: event.Observation{Record: r, Deleted: true}})
		}, "created deleted created deleted", false},
	} {
		open()
		step.do()
		var kinds []string
		for e, err := range l.Events(ctx, "main", event.Range{Upto: 1 << 40}) {
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, e.Kind.String())
		}
		set, err := l.Set(ctx, "main")
		if got := fmt.Sprint(kinds); err != nil || got != "["+step.events+"]" || (set.Live == 1) != step.alive {
			t.Errorf("%s: events %s, %d live, %v, want [%s], %t", step.what, got, set.Live, err, step.events, step.alive)
		}
		if holds, err := l.Presence(ctx, src, r); err != nil || (holds == event.Present) != step.alive {
			t.Errorf("%s: presence %v, %v", step.what, holds, err)
		}
		sound(t, l)
		closed(t, l)
	}
}
