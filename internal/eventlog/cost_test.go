package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// What is asked often costs what the answer takes, and not what the log holds.
// Allocations are counted: there are some for each row that is read.

// costs fails when do allocates more often than a number of times.
func costs(t *testing.T, what string, most float64, do func()) {
	t.Helper()
	if n := testing.AllocsPerRun(1, do); n > most {
		t.Errorf("%s takes %.0f allocations, more than %.0f", what, n, most)
	}
}

// D125: how much of a Source is absent costs what the Source has and was not
// present, not what the set has.
func TestD125_AbsenceBySource(t *testing.T) {
	const n = 20_000
	ctx := context.Background()
	l, full := filled(t, t.TempDir(), event.Redirect)
	empty, err := l.EnsureSource(ctx, "main", "atompmh", "https://empty.example/feed.atom", 1)
	if err != nil {
		t.Fatal(err)
	}
	must(t, add(l, full, 0, n))
	must(t, add(l, empty, 0, 0))
	for _, c := range []struct {
		what         string
		source       event.SourceID
		absent, have int64
	}{{"a Source without records", empty, 0, 0}, {"a Source all of whose records are present", full, 0, n}} {
		costs(t, c.what, n/10, func() {
			if absent, have, err := l.CountAbsent(ctx, c.source, event.Stamp{}); err != nil || absent != c.absent || have != c.have {
				t.Errorf("%s: %d of %d are absent, %v", c.what, absent, have, err)
			}
			if ids, _, err := l.Absent(ctx, c.source, event.Stamp{}, 0, 100); err != nil || len(ids) != 0 {
				t.Errorf("%s: %q are absent, %v", c.what, ids, err)
			}
		})
	}
}

// D128: the state a little while ago costs what has happened since, not what has
// ever happened.
func TestD128_StateOfEarlier(t *testing.T) {
	testenv.Heavy(t)
	const records, rounds = 50, 400
	ctx := context.Background()
	l, src := filled(t, t.TempDir(), event.Redirect)
	for round := range rounds {
		all := items(0, records)
		for i := range all {
			all[i].Order = event.StampFromNanos(all[i].Order.Nanos() + int64(round))
			all[i].Modified, all[i].Claim = all[i].Order, 0
		}
		p, err := l.Progress(ctx, src)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append(ctx, &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: true, Next: []byte("x"), Items: all}); err != nil {
			t.Fatal(err)
		}
	}
	for _, ago := range []event.Seq{0, 1, records - 1, 3*records + 7} {
		at := event.Seq(records*rounds) - ago
		costs(t, "the state as of an earlier event", records*rounds/4, func() {
			live, last := 0, event.Seq(0)
			for ev, err := range l.Live(ctx, "main", at) {
				if err != nil {
					t.Fatal(err)
				}
				live, last = live+1, ev.Seq
			}
			if live != records || last != at {
				t.Errorf("as of %d, %d records live, the last event is %d", at, live, last)
			}
		})
	}
}

// The state of a set takes memory for its own records, however many Seqs the log has given out to
// others, or has left out where it was restored.
func TestStateOfFew(t *testing.T) {
	ctx, folder := context.Background(), t.TempDir()
	l, src := filled(t, folder, event.Redirect)
	if err := add(l, src, 0, 10); err != nil {
		t.Fatal(err)
	}
	for range 12 { // of the Seqs that are left out, millions, the most count
		if err := errors.Join(l.Close(), os.Remove(filepath.Join(folder, eventlog.HeadName))); err != nil {
			t.Fatal(err)
		}
		l, src = filled(t, folder, event.Redirect)
	}
	defer closed(t, l)
	if err := add(l, src, 10, 10); err != nil {
		t.Fatal(err)
	}
	state := func() (live int, last event.Seq) {
		for ev, err := range l.Live(ctx, "main", math.MaxInt64) {
			if err != nil {
				t.Fatal(err)
			}
			live, last = live+1, ev.Seq
		}
		return live, last
	}
	state() // which prepares its statements
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	live, last := state()
	runtime.ReadMemStats(&after)
	if live != 20 || last < 1_000_000 {
		t.Fatalf("%d records live, the last event is %d", live, last)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 1_000_000 {
		t.Errorf("the state of %d records up to Seq %d took %d bytes", live, last, took)
	}
}

// What it takes to make sets grows with their number, and not with its square.
func TestMakeThousandsOfSets(t *testing.T) {
	const n = 3000
	l := mustOpen(t, t.TempDir(), eventlog.Options{})
	defer l.Close()
	round := 0
	testenv.Affordable(t, n*100, func() { // bytes of a configuration
		round++
		sets := make([]eventlog.SetConfig, n)
		for i := range sets {
			sets[i].Name = fmt.Sprintf("s%d-%d", round, i)
		}
		if _, err := l.Configure(t.Context(), sets); err != nil {
			t.Fatal(err)
		}
	})
}

// What is read of one set does not cost more where there are many others.
func TestManySets(t *testing.T) {
	const n = 1_000
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Redirect)
	must(t, add(l, src, 0, 10))
	others := make([]eventlog.SetConfig, 0, n)
	for i := range n {
		others = append(others, eventlog.SetConfig{Name: fmt.Sprint("other", i)})
	}
	if _, err := l.Configure(ctx, others); err != nil {
		t.Fatal(err)
	}
	ev, err := l.Event(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	key, found := event.Key(ev.Record), 0
	for what, read := range map[string]func() error{
		"a record":          func() (err error) { _, err = l.Record(ctx, "main", key); found++; return err },
		"a record's events": func() error { return l.EventsOf(ctx, "main", key, 0, func(*event.Event) bool { found++; return true }) },
		"the newest events": func() (err error) {
			_, err = l.Newest(ctx, "main", event.Range{Upto: 10}, 10, func(*event.Event) bool { found++; return true })
			return err
		},
		"events backwards": func() (err error) {
			_, err = l.Back(ctx, "main", 0, func(*event.Event) bool { found++; return true })
			return err
		},
		"events":           func() error { return each(l.Events(ctx, "main", event.Range{Upto: 10}), &found) },
		"the live records": func() error { return each(l.Live(ctx, "main", 10), &found) },
	} {
		found = 0
		costs(t, what+" of a set among many", n, func() {
			if err := read(); err != nil || found == 0 {
				t.Errorf("%s: %d found, %v", what, found, err)
			}
		})
	}
}

func each(events iter.Seq2[*event.Event, error], found *int) error {
	for _, err := range events {
		if err != nil {
			return err
		}
		*found++
	}
	return nil
}

// D67: what a feed says of itself comes with each of its events, and is bounded
// like what it says of a record.
func TestDocumentIsBounded(t *testing.T) {
	l, src := filled(t, t.TempDir(), event.Redirect)
	defer closed(t, l)
	b := &event.Batch{Source: src, Documents: []event.Document{{URL: "http://h.example/", FeedID: "urn:" + strings.Repeat("i", 1<<20), FeedTitle: strings.Repeat("title ", 1<<20)}}}
	for i := range 10 {
		it := &event.Item{Observation: event.Observation{Record: fmt.Sprint("urn:x:", i), Representations: []event.Representation{{Href: "http://h.example/1", Type: "text/plain", Length: event.NoLength}}}}
		it.Order, _ = event.StampOf(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
		b.Items = append(b.Items, it)
	}
	if _, err := l.Append(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	ev, err := l.Event(t.Context(), 1)
	if err != nil || ev.Origin.FeedID != "" || len(ev.Origin.FeedTitle) > event.MaxTitle || !strings.HasPrefix(ev.Origin.FeedTitle, "title title") {
		t.Errorf("the event has an id of %d bytes and a title of %d, %v", len(ev.Origin.FeedID), len(ev.Origin.FeedTitle), err)
	}
	if segments, err := l.Segments(t.Context(), "main"); err != nil || len(segments) != 1 {
		t.Errorf("10 small events fill %d segments, %v", len(segments), err)
	}
}
