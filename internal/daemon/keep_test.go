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
		if text := said.String(); strings.Count(text, "a loop has failed") != 2 || !strings.Contains(text, "keep_test.go") {
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
