package eventlog_test

import (
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
		l, err := eventlog.Open(ctx, folder, eventlog.Options{Clock: func() (time.Time, time.Duration) { return now, 0 }})
		if err != nil {
			t.Fatal(err)
		}
		sets := []eventlog.SetConfig{{Name: "main", Sources: []eventlog.SourceConfig{{Kind: "feed", URL: "https://repository.example/"}}}}
		if _, err := l.Configure(ctx, sets); err != nil {
			t.Fatal(err)
		}
		src := sets[0].Sources[0].ID
		var group sync.WaitGroup
		free := make(chan struct{})
		group.Go(func() {
			if err := l.Hold(ctx, free); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if err := l.SaveSchedule(ctx, src, event.Schedule{Next: 7, Failures: 3}, true); err != nil {
			t.Fatal(err)
		}
		for _, do := range []func() error{
			func() error { return l.Forget(ctx, src) },
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
		if err := l.Close(); err != nil {
			t.Error(err)
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
		if err := l.ResetSchedule(ctx, src); err != nil {
			t.Fatal(err)
		}
		if all, err := l.Pauses(ctx); err != nil || len(all) != want {
			t.Errorf("%v, %v", all, err)
		}
	}
	if err := l.SetPause(ctx, src, &eventlog.Pause{Since: 1, Reason: "their server moves"}); err != nil {
		t.Fatal(err)
	}
	reset(1)
	if err := l.Exec(ctx, "UPDATE pause SET reason = 'x'"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Pauses(ctx); err == nil {
		t.Error("a damaged pause is read")
	}
	reset(0)
}
