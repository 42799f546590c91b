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

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
)

// Status returns the state of all sets, with all URLs and messages redacted.
func (b *Bridge) Status(ctx context.Context) (*status.Status, error) {
	var out status.Status
	var err error
	if out.Sets, err = b.setStatus(ctx); err != nil {
		return nil, err
	}
	for i := range out.Sets {
		redactSet(&out.Sets[i])
	}
	out.Warnings, err = b.Warnings(ctx)
	return &out, err
}

// redactSet redacts what an operator is shown of a set.
func redactSet(s *status.Set) {
	for i := range s.Sources {
		src := &s.Sources[i]
		src.URL, src.Gap = Redact(src.URL), Redact(src.Gap)
		if src.Last != nil {
			src.Last.Report = *RedactReport(&src.Last.Report)
		}
		if src.Underway != nil {
			src.Underway.Doing = Redact(src.Underway.Doing)
		}
	}
	for i := range s.Submissions {
		p := &s.Submissions[i]
		p.URL = Redact(p.URL)
		if p.Failing != nil {
			p.Failing.Reason = Redact(p.Failing.Reason)
		}
	}
}

// setStatus returns the state of all sets, without their Problems.
func (b *Bridge) setStatus(ctx context.Context) ([]status.Set, error) {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	p, err := b.Publisher("")
	if err != nil {
		return nil, err
	}
	out := make([]status.Set, len(sets))
	for i, s := range sets {
		out[i] = status.Set{Name: s.Name, Records: s.Live, Events: s.Events, LastSeq: s.Last, Partial: s.Partial, Content: s.Content, Newest: s.Newest.Time()}
		if out[i].SnapshotSeq, err = p.SnapshotSeq(ctx, s.Name); err != nil && !errors.Is(err, publish.ErrNotFound) {
			return nil, err
		}
		if out[i].Sources, err = b.sourceStatus(ctx, s.Name); err != nil {
			return nil, err
		}
		if out[i].Submissions, err = b.submissionStatus(ctx, s.Name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// pageStatus returns the state of all sets for the pages, which redact it.
func (b *Bridge) pageStatus(ctx context.Context) ([]status.Set, error) {
	sets, err := b.setStatus(ctx)
	if err != nil {
		return nil, err
	}
	for i := range sets {
		if len(sets[i].Submissions) == 0 {
			continue
		}
		if sets[i].Problems, err = b.problems(ctx, sets[i].Name); err != nil {
			return nil, err
		}
	}
	return sets, nil
}

func (b *Bridge) sourceStatus(ctx context.Context, set string) ([]status.Source, error) {
	all, err := b.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	underway := b.underwayOf()
	out := make([]status.Source, len(all))
	for i, src := range all {
		out[i] = status.Source{ID: src.ID, Set: src.Set, Name: src.Name, Former: src.Former, Kind: src.Kind, URL: src.URL, Mark: status.Mark{Stamp: src.Mark},
			Pending: src.Pending, PartialRecords: src.Partial, Held: src.Held, Quarantined: src.Quarantined, Dropped: src.Dropped,
			Gap: harvest.Gap(src.Gap), Failures: src.Schedule.Failures, Underway: underway[src.ID], Unfinished: src.Cursor.Data != nil}
		if src.Schedule.Next != 0 {
			out[i].Next.Time = src.Schedule.Next.Time()
		}
		if len(src.Schedule.Report) > 0 {
			out[i].Last = &status.Harvest{}
			if err := json.Unmarshal(src.Schedule.Report, &out[i].Last.Report); err != nil {
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

// snapshotsKept is how many snapshots of a set are kept at most.
const snapshotsKept = 100

// Publisher returns a publisher of the log's documents below a base URL; without
// one it only tells what there is.
func (b *Bridge) Publisher(base string) (*publish.Publisher, error) {
	s := b.Config.Snapshot
	return publish.New(publish.Options{
		Log: b.Log, BaseURL: cmp.Or(base, "http://localhost"), AnyBase: base == "", MinAge: renderingAge, Full: b.diskSpace.Low,
		CacheBytes: b.Config.Limits.Cache, Retention: publish.Retention{Age: s.Keep, Count: snapshotsKept, Bytes: s.KeepSize}, CacheDir: b.cacheDir(), SnapshotDir: b.snapshotDir(),
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
