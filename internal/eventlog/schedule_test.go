package eventlog_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// TestForgottenSchedule: what waits to be written of a Source when that is forgotten is
// not written after it.
func TestForgottenSchedule(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		l := mustOpen(t, folder, eventlog.Options{Clock: func() (time.Time, time.Duration) { return now, 0 }})
		sets := []eventlog.SetConfig{{Name: "main", Sources: []eventlog.SourceConfig{{Kind: "feed", URL: "https://repository.example/"}}}}
		if _, err := l.Configure(ctx, sets); err != nil {
			t.Fatal(err)
		}
		src := sets[0].Sources[0].ID
		var group sync.WaitGroup
		free := occupied(t, l, &group)
		must(t, l.SaveSchedule(ctx, src, event.Schedule{Next: 7, Failures: 3}, true))
		for _, do := range []func() error{
			func() error { return l.Forget(ctx, src, nil) },
			func() error { return l.FlushSchedules(ctx) },
		} {
			group.Go(func() {
				if err := do(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(free)
		group.Wait()
		if s, err := l.Schedule(ctx, src); err != nil || s.Failures != 0 || s.Next != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		closed(t, l)
	})
}

// withSources opens a log with n Sources of the set main, in mode reference.
func withSources(t *testing.T, folder string, n int) (*eventlog.Log, []eventlog.SourceConfig) {
	t.Helper()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := mustOpen(t, folder, eventlog.Options{Clock: func() (time.Time, time.Duration) { return now, 0 }})
	set := eventlog.SetConfig{Name: "main", Content: event.Reference}
	for i := range n {
		set.Sources = append(set.Sources, eventlog.SourceConfig{Kind: "feed", URL: fmt.Sprintf("https://repository.example/%d", i)})
	}
	sets := []eventlog.SetConfig{set}
	if _, err := l.Configure(t.Context(), sets); err != nil {
		t.Fatal(err)
	}
	return l, sets[0].Sources
}

// occupied lets all that writes wait until free is closed.
func occupied(t *testing.T, l *eventlog.Log, group *sync.WaitGroup) (free chan struct{}) {
	t.Helper()
	free = make(chan struct{})
	group.Go(func() {
		if err := l.Hold(t.Context(), free); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return free
}

// TestHarvestsEndTogether: harvests that end while something else is written write their own
// schedule and row each, and not those of all others too.
func TestHarvestsEndTogether(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l, sources := withSources(t, folder, 30)
		defer closed(t, l)
		before := l.Changes(t)
		var group sync.WaitGroup
		free := occupied(t, l, &group)
		for _, src := range sources {
			group.Go(func() {
				if err := l.SaveHarvest(ctx, src.ID, event.Schedule{Failures: 1, Harvests: 1}, &event.Harvest{Number: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(free)
		group.Wait()
		if n := l.Changes(t) - before; n > 4*30 {
			t.Errorf("%d rows were written", n)
		}
	})
}

// TestResetDamagedPause: a pause that is not what was stored keeps the status of all
// Sources from being read; verify says to reset the Source, and that helps.
func TestResetDamagedPause(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	reset := func(want int) {
		t.Helper()
		must(t, l.ResetSchedule(ctx, src))
		if all, err := l.Pauses(ctx); err != nil || len(all) != want {
			t.Errorf("%v, %v", all, err)
		}
	}
	must(t, l.SetPause(ctx, src, &eventlog.Pause{Since: 1, Reason: "their server moves"}))
	reset(1)
	must(t, l.Exec(ctx, "UPDATE pause SET reason = 'x'"))
	if _, err := l.Pauses(ctx); err == nil {
		t.Error("a damaged pause is read")
	}
	reset(0)
}

// TestDueNewBeforeOld: what was never asked for is due before what failed, and
// that in the order in which it is due; a server's own wish counts; and what was
// not asked for has no try counted (D101).
func TestDueNewBeforeOld(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() (time.Time, time.Duration) { return now, now.Sub(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) }
	l := mustOpen(t, t.TempDir(), eventlog.Options{Clock: clock})
	defer closed(t, l)
	set := eventlog.SetConfig{Name: "main", Content: event.Mirror, Sources: []eventlog.SourceConfig{{Kind: "atompmh", URL: "http://h.example/"}}}
	sets := []eventlog.SetConfig{set}
	if _, err := l.Configure(t.Context(), sets); err != nil {
		t.Fatal(err)
	}
	source := sets[0].Sources[0].ID
	add := func(mode event.Mode, pending string, after time.Duration, names ...string) {
		t.Helper()
		p, err := l.Progress(t.Context(), source)
		if err != nil {
			t.Fatal(err)
		}
		b := &event.Batch{Source: source, Cursor: p.Cursor.Version, Mode: mode, Next: []byte("on"), Documents: []event.Document{{URL: "http://h.example/"}}}
		for _, name := range names {
			it := &event.Item{Pending: pending}
			it.Record = name
			it.Representations = []event.Representation{{Href: "http://h.example/" + name, Type: "text/plain", Length: -1}}
			it.Order, _ = event.StampOf(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
			if after != 0 {
				it.After = event.MicrosOf(now.Add(after))
			}
			b.Items = append(b.Items, it)
		}
		if _, err := l.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	want := func(due time.Time, names ...string) {
		t.Helper()
		list, err := l.Due(t.Context(), source, event.MicrosOf(due))
		if err != nil {
			t.Fatal(err)
		}
		kept, err := l.PendingOf(t.Context(), source, list)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range kept {
			got = append(got, fmt.Sprintf("%s %d", k.Record, k.Tries))
		}
		if fmt.Sprint(got) != fmt.Sprint(names) {
			t.Errorf("due until %s: %q, want %q", due.Format(time.TimeOnly), got, names)
		}
	}
	start := now
	add(event.ModeWalk, "503", 0, "a")
	now = now.Add(time.Minute)
	add(event.ModeWalk, "503 with Retry-After", 2*time.Hour, "b")
	add(event.ModeWalk, "", 0, "c")
	now = now.Add(time.Minute)
	add(event.ModeWalk, "", 0, "d")
	want(now, "c 0", "d 0")
	want(start.Add(5*time.Minute), "c 0", "d 0", "a 0")
	want(time.UnixMicro(math.MaxInt64/2), "c 0", "d 0", "a 0", "b 0")
	add(event.ModeSettle, "", 0, "c") // it was left out
	want(now, "c 0", "d 0")
	add(event.ModeSettle, "503", 0, "a", "c")
	want(now, "d 0")
	want(now.Add(10*time.Minute), "d 0", "c 0", "a 1")
}
