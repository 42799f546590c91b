package main

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// meter shows the progress of harvests: on a terminal as a bar with the rate, elsewhere as
// at most one line in ten seconds, and none while nothing changes.
type meter struct {
	mu      sync.Mutex
	out     io.Writer
	quiet   bool
	bar     *progressbar.ProgressBar
	sources []*sourceProgress
	start   time.Time
	last    string        // the last printed line
	ended   chan struct{} // closed by stop
}

// sourceProgress is a Source whose harvest is under way, or has ended.
type sourceProgress struct {
	name  string
	ended bool
	harvest.Progress
}

func newMeter(w io.Writer, quiet bool) *meter {
	m := &meter{out: w, quiet: quiet, start: time.Now(), bar: newBar(w, quiet, -1, "harvesting", "entries"), ended: make(chan struct{})}
	each := time.Second
	if m.bar == nil { // the output is a file, or a mail of cron
		each = 10 * time.Second
	}
	go func() {
		tick := time.NewTicker(each)
		defer tick.Stop()
		for {
			select {
			case <-m.ended:
				return
			case <-tick.C:
				m.show()
			}
		}
	}()
	return m
}

// newBar returns a bar for total things, -1 when that is not known; nil if w is not a
// terminal.
func newBar(w io.Writer, quiet bool, total int64, doing, things string) *progressbar.ProgressBar {
	if e, ok := w.(*escaping); ok {
		w = e.out // a bar moves the cursor, and shows only numbers
	}
	if quiet || !isTerminal(w) {
		return nil
	}
	return progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionSetItsString(things), progressbar.OptionShowIts(), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetDescription(doing), progressbar.OptionSpinnerType(14), progressbar.OptionSetElapsedTime(true))
}

// source returns two functions for a harvest: tell takes its progress, and ended is called
// at its end. name is the name of its Source for people.
func (m *meter) source(name string) (tell func(harvest.Progress), ended func()) {
	s := &sourceProgress{name: name}
	m.mu.Lock()
	m.sources = append(m.sources, s)
	m.mu.Unlock()
	tell = func(p harvest.Progress) {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.Progress = p
	}
	return tell, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.ended = true
	}
}

// show prints the present line, if it differs from the last.
func (m *meter) show() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.quiet {
		return
	}
	var sum harvest.Progress
	var waited *sourceProgress // the first that has not ended
	left := 0
	for _, s := range m.sources {
		sum.Documents += s.Documents
		sum.Entries += s.Entries
		sum.Events += s.Events
		sum.Fetched += s.Fetched
		sum.Wanted += s.Wanted
		if !s.ended {
			left++
			if waited == nil {
				waited = s
			}
		}
	}
	text := progressText(&sum)
	if waited != nil && waited.Doing != "" {
		text += "; " + daemon.Redact(waited.name) + ": " + doingText(&waited.Progress)
	}
	if left > 1 {
		text += fmt.Sprintf("; and %d more Sources", left-1)
	}
	if m.bar != nil {
		m.bar.Describe(text)
		_ = m.bar.Set64(sum.Entries + sum.Fetched)
		return
	}
	if text == m.last {
		return
	}
	m.last = text
	fmt.Fprintf(m.out, "%s (%.0f/s)\n", text, float64(sum.Entries+sum.Fetched)/time.Since(m.start).Seconds())
}

// progressText describes the progress of one harvest, or of several.
func progressText(p *harvest.Progress) string {
	text := fmt.Sprintf("read %s, %s; logged %s", plural(int(p.Documents), "document", "documents"), plural(int(p.Entries), "entry", "entries"), plural(int(p.Events), "event", "events"))
	if p.Wanted > 0 {
		text += fmt.Sprintf("; fetched %d of %s", p.Fetched, plural(int(p.Wanted), "content", "contents"))
	}
	if p.Doing != "" {
		text += "; " + doingText(p)
	}
	return text
}

// doingText describes what a harvest does or waits for.
func doingText(p *harvest.Progress) string {
	text := daemon.Redact(p.Doing)
	if !p.Until.IsZero() {
		text += ", until " + p.Until.UTC().Format("15:04:05Z")
	}
	return text
}

// clear removes the bar before other output.
func (m *meter) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Clear()
	}
}

func (m *meter) stop() {
	close(m.ended)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Finish()
	}
}

// warnings returns a logger for people at a terminal: it writes only warnings and errors.
func warnings(w io.Writer) *slog.Logger { return daemon.NewLogger(w, slog.LevelWarn, false) }
