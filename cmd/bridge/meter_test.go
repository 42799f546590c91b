package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/harvest"
)

// Where there is no terminal progress is one line a second at most, for all
// Sources together; with --json it is none.
func TestMeterLines(t *testing.T) {
	for name, row := range map[string]struct {
		quiet bool
		lines int
	}{"text": {false, 9}, "json": {true, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				m := newMeter(&out, row.quiet)
				one, two := m.source(0), m.source(1)
				for i := range int64(99) {
					time.Sleep(100 * time.Millisecond) // of the bubble's clock
					one(harvest.Progress{Entries: 100 * i})
					two(harvest.Progress{Entries: 900 * i})
				}
				m.stop()
				if got := strings.Count(out.String(), "\n"); got != row.lines {
					t.Errorf("%d lines in 9.9 s, want %d:\n%s", got, row.lines, out.String())
				}
				if !row.quiet && !strings.Contains(out.String(), " entries (") {
					t.Errorf("no rate in:\n%s", out.String())
				}
			})
		})
	}
}
