package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// meter shows how far harvests have come: on a terminal a bar with the rate,
// elsewhere one line a second at most.
type meter struct {
	mu    sync.Mutex
	out   io.Writer
	quiet bool
	bar   *progressbar.ProgressBar
	by    map[int]harvest.Progress
	told  time.Time
	start time.Time
}

func newMeter(w io.Writer, quiet bool) *meter {
	return &meter{out: w, quiet: quiet, by: map[int]harvest.Progress{}, start: time.Now(), told: time.Now(), bar: newBar(w, quiet, -1, "harvesting", "entries")}
}

// newBar returns a bar of so many things, -1 when that is not known; nil where
// there is no terminal.
func newBar(w io.Writer, quiet bool, total int64, doing, things string) *progressbar.ProgressBar {
	if f, ok := w.(*os.File); !ok || quiet || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionSetItsString(things), progressbar.OptionShowIts(), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetDescription(doing), progressbar.OptionSpinnerType(14), progressbar.OptionSetElapsedTime(true))
}

// source returns what a harvest tells its progress.
func (m *meter) source(i int) func(harvest.Progress) {
	return func(p harvest.Progress) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.by[i] = p
		m.show()
	}
}

func (m *meter) show() {
	var sum harvest.Progress
	for _, p := range m.by {
		sum.Documents += p.Documents
		sum.Entries += p.Entries
		sum.Events += p.Events
		sum.Fetched += p.Fetched
	}
	if m.bar != nil {
		m.bar.Describe(fmt.Sprintf("%s, %s, %s logged", counted(int(sum.Documents), "document", "documents"), counted(int(sum.Entries), "entry", "entries"), counted(int(sum.Events), "event", "events")))
		_ = m.bar.Set64(sum.Entries)
		return
	}
	now := time.Now()
	if m.quiet || now.Sub(m.told) < time.Second {
		return
	}
	m.told = now
	rate := float64(sum.Entries) / now.Sub(m.start).Seconds()
	fmt.Fprintf(m.out, "read %s, %s (%.0f/s); logged %s; fetched %s\n", counted(int(sum.Documents), "document", "documents"), counted(int(sum.Entries), "entry", "entries"), rate,
		counted(int(sum.Events), "event", "events"), counted(int(sum.Fetched), "representation", "representations"))
}

// clear makes room for other output.
func (m *meter) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Clear()
	}
}

func (m *meter) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Finish()
	}
}

// warnings is a logger for people at a terminal: warnings and errors only.
func warnings(w io.Writer) *slog.Logger { return logger(w, slog.LevelWarn) }

func logger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: daemon.PrivateAttr}))
}
