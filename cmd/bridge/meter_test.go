package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/harvest"
)

// Where there is no terminal progress is one line in ten seconds at most, for all
// Sources together, with what is counted and what is waited for (D52, D53); while
// nothing happens, and with --json, it is none.
func TestMeterLines(t *testing.T) {
	for name, row := range map[string]struct {
		quiet bool
		lines int
	}{"text": {false, 10}, "json": {true, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				m := newMeter(&out, row.quiet)
				one, oneEnded := m.source("http://one.example/")
				two, _ := m.source("http://user:secret@two.example/")
				for i := range int64(99) {
					time.Sleep(time.Second) // of the bubble's clock
					one(harvest.Progress{Entries: 100 * i})
					two(harvest.Progress{Documents: 2, Entries: 900 * i, Events: 7, Fetched: 3, Wanted: 9, Doing: "waiting for an answer: http://two.example/a"})
				}
				oneEnded()
				time.Sleep(time.Minute)
				synctest.Wait()
				m.stop()
				if got := strings.Count(out.String(), "\n"); got != row.lines {
					t.Errorf("%d lines in 99 s and a minute of silence, want %d:\n%s", got, row.lines, out.String())
				}
				const last = "read 2 documents, 98000 entries; logged 7 events; fetched 3 of 9 contents; http://two.example/: waiting for an answer: http://two.example/a ("
				if !row.quiet && (!strings.Contains(out.String(), last) || strings.Contains(out.String(), "secret")) {
					t.Errorf("no %q in:\n%s", last, out.String())
				}
			})
		})
	}
}
