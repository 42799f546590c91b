package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRetryDelayIsCapped: a Source that fails for days is asked ever less often,
// down to its own interval or once a day, and never without a pause (D100, D141).
func TestRetryDelayIsCapped(t *testing.T) {
	for _, every := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 1<<63 - 1} {
		most := min(every, 24*time.Hour)
		before := time.Duration(0)
		for failures := 1; failures <= 200; failures++ {
			got := retryDelay(failures, every)
			if got < min(time.Minute, most) || got > most || got < before {
				t.Fatalf("every %s: %s after %d failures, %s after one less, want between %s and %s", every, got, failures, before, min(time.Minute, most), most)
			}
			before = got
		}
		if before != most {
			t.Errorf("every %s: %s after 200 failures, want %s", every, before, most)
		}
	}
}

// D75: a loop of the daemon that panics is begun anew after a minute, until it ends by
// itself or with the daemon.
func TestLoopIsBegunAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		h := &Bridge{opt: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}}
		began, start := 0, time.Now()
		h.restartOnPanic(t.Context(), "a loop", func(context.Context) {
			if began++; began < 3 {
				panic("a defect")
			}
		})
		if took := time.Since(start); began != 3 || took != 2*restartAfter {
			t.Errorf("begun %d times in %s", began, took)
		}
		if text := said.String(); strings.Count(text, "a loop has failed") != 2 || !strings.Contains(text, "schedule_test.go") {
			t.Errorf("the log says %s", text)
		}
		ctx, cancel := context.WithCancel(t.Context())
		h.restartOnPanic(ctx, "a loop", func(context.Context) {
			began++
			cancel()
			panic("a defect")
		})
		if began != 4 {
			t.Errorf("begun %d times, the last after the end", began)
		}
	})
}
