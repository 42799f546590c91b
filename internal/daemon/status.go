package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
)

// SetStatus is how far a set has come.
type SetStatus struct {
	event.Set
	// SnapshotSeq is the Seq whose state the Resource List shows.
	SnapshotSeq event.Seq
	Sources     []SourceStatus
	// Peers tell of its submissions.
	Peers []PeerStatus
}

// SourceStatus is how far a Source has come.
type SourceStatus struct {
	eventlog.Source
	// Last is the report of the last harvest, nil when there was none.
	Last *harvest.Report
	// Next is when the next harvest is planned, zero when none is; Failures is how
	// many have failed in a row.
	Next     time.Time
	Failures int
	// Underway is the harvest under way, nil when there is none.
	Underway *Underway
	// GapText describes an open gap, "" when there is none.
	GapText string
	// Waits are the first few records that are pending, each with the reason.
	Waits []string
}

// Status tells how far every set and Source has come, with all URLs and what is
// said of them redacted.
func (b *Bridge) Status(ctx context.Context) ([]SetStatus, error) {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	p, err := b.Publisher("")
	if err != nil {
		return nil, err
	}
	out := make([]SetStatus, len(sets))
	for i, s := range sets {
		out[i].Set = s
		if out[i].SnapshotSeq, err = p.SnapshotSeq(ctx, s.Name); err != nil && !errors.Is(err, publish.ErrNotFound) {
			return nil, err
		}
		if out[i].Sources, err = b.sources(ctx, s.Name); err != nil {
			return nil, err
		}
		if out[i].Peers, err = b.peers(ctx, s.Name); err != nil {
			return nil, err
		}
		out[i].hide()
	}
	return out, nil
}

// hide redacts what an operator is shown.
func (s *SetStatus) hide() {
	for i := range s.Sources {
		src := &s.Sources[i]
		src.URL, src.GapText, src.Last = Redact(src.URL), Redact(src.GapText), RedactReport(src.Last)
		if src.Underway != nil {
			src.Underway.Doing = Redact(src.Underway.Doing)
		}
	}
	for i := range s.Peers {
		p := &s.Peers[i]
		p.URL = Redact(p.URL)
		if p.Trouble != nil {
			p.Trouble.Reason = Redact(p.Trouble.Reason)
		}
	}
}

func (b *Bridge) sources(ctx context.Context, set string) ([]SourceStatus, error) {
	all, err := b.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	underway := b.underwayOf()
	out := make([]SourceStatus, len(all))
	for i, src := range all {
		out[i] = SourceStatus{Source: src, GapText: harvest.Gap(src.Gap), Failures: src.Schedule.Failures, Underway: underway[src.ID]}
		if src.Schedule.Next != 0 {
			out[i].Next = src.Schedule.Next.Time()
		}
		if len(src.Schedule.Report) > 0 {
			if err := json.Unmarshal(src.Schedule.Report, &out[i].Last); err != nil {
				return nil, fmt.Errorf("the report of the last harvest of %s: %w", src.URL, err)
			}
		}
		if src.Pending == 0 {
			continue
		}
		const shown = 3
		waiting, err := b.Log.Pending(ctx, src.ID, math.MaxInt64, 0, shown)
		if err != nil {
			return nil, err
		}
		for _, k := range waiting {
			out[i].Waits = append(out[i].Waits, k.Record+": "+Redact(k.Reason))
		}
	}
	return out, nil
}

func (b *Bridge) now() time.Time {
	if b.opt.Now == nil {
		return time.Now()
	}
	return b.opt.Now()
}

func (b *Bridge) cacheDir() string    { return filepath.Join(b.Config.Data, "cache") }
func (b *Bridge) snapshotDir() string { return filepath.Join(b.Config.Data, "snapshots") }

// renderingAge is how old an open document may become before it is made anew, for
// each 1,000 of its entries: about fifty times what making them takes.
const renderingAge = 200 * time.Millisecond

// Publisher returns a publisher of the log's documents below a base URL; without
// one it only tells what there is.
func (b *Bridge) Publisher(base string) (*publish.Publisher, error) {
	s := b.Config.Snapshot
	return publish.New(publish.Options{
		Log: b.Log, BaseURL: cmp.Or(base, "http://localhost"), AnyBase: base == "", MinAge: renderingAge, Full: b.diskSpace.Low,
		CacheBytes: b.Config.Limits.Cache, Retention: publish.Retention{Age: s.Keep, Bytes: s.KeepSize}, CacheDir: b.cacheDir(), SnapshotDir: b.snapshotDir(),
		AfterDeletion: s.AfterDeletion, AfterChange: s.AfterChange, Now: b.opt.Now, Logger: b.opt.Logger,
	})
}

// Find returns the Source of a set that a person means: by its name, or its URL,
// also redacted if no other looks the same, or without either the only one. One that
// is not configured has the default settings.
func (b *Bridge) Find(ctx context.Context, set, source string) (*Source, error) {
	all, err := b.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	found := findSource(all, source)
	switch {
	case found != nil:
	case len(all) == 0:
		return nil, fmt.Errorf("set %q has no Source in this data folder: see bridge source ls", set)
	case source == "":
		return nil, fmt.Errorf("set %q has %d Sources: name one of them, see bridge source ls %s", set, len(all), set)
	default:
		return nil, fmt.Errorf("set %q has no Source %q: see bridge source ls %s", set, source, set)
	}
	for _, s := range b.Sources {
		if s.ID == found.ID {
			return s, nil
		}
	}
	return b.unconfigured(ctx, set, found)
}

// findSource returns the one with a name or URL, the only one whose URL looks like
// it, or the only one if there is neither; nil is none.
func findSource(all []eventlog.Source, source string) *eventlog.Source {
	if source == "" && len(all) == 1 {
		return &all[0]
	}
	var alike []*eventlog.Source
	for i := range all {
		switch {
		case source != "" && all[i].Name == source, all[i].URL == source:
			return &all[i]
		case Redact(all[i].URL) == source:
			alike = append(alike, &all[i])
		}
	}
	if len(alike) != 1 {
		return nil
	}
	return alike[0]
}

// unconfigured makes a Source that only the log knows ready to be worked on.
func (b *Bridge) unconfigured(ctx context.Context, set string, s *eventlog.Source) (*Source, error) {
	stored, err := b.Log.Set(ctx, set)
	if err != nil {
		return nil, err
	}
	source := s.URL
	switch s.Kind {
	case "":
	case config.KindSIP:
		source = config.KindSIP + ":" // whatever its URL: it calls us
	default:
		source = s.Kind + ":" + source
	}
	c, err := config.FromArguments(config.Flags{Data: b.Config.Data}, []string{set + "=" + source})
	if err != nil {
		return nil, err
	}
	c.Sets[0].Sources[0].URL = s.URL
	src, err := b.source(&c.Sets[0], 0, &eventlog.SetConfig{Content: stored.Content, Sources: []eventlog.SourceConfig{{ID: s.ID}}, First: s.ID})
	if err == nil {
		src.Epoch = stored.Feed
	}
	return src, err
}

// Redact returns a text without the secrets of the URLs in it, as pages show it
// too: see server.Redact. Whatever is printed that may name a URL goes through
// it, but for what records and their representations are called: these are
// published.
func Redact(text string) string { return server.Redact(text) }

// RedactAttr is Redact for the lines of a log, as slog.HandlerOptions wants it.
func RedactAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
		text := a.Value.String()
		if hidden := Redact(text); hidden != text {
			a.Value = slog.StringValue(hidden)
		}
	}
	return a
}

// RedactReport is Redact for the texts of a report; nil stays nil.
func RedactReport(r *harvest.Report) *harvest.Report {
	if r == nil {
		return nil
	}
	out := *r
	out.Gap, out.Error, out.Moved, out.Warnings, out.Examples = Redact(r.Gap), Redact(r.Error), Redact(r.Moved), slices.Clone(r.Warnings), slices.Clone(r.Examples)
	for i, w := range out.Warnings {
		out.Warnings[i] = Redact(w)
	}
	for i := range out.Examples {
		out.Examples[i].First = Redact(out.Examples[i].First)
	}
	return &out
}
