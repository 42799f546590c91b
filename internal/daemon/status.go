package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
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
	out.Summary = status.Summarize(out.Sets)
	out.Warnings, err = b.Warnings(ctx)
	return &out, err
}

// redactSet redacts the URLs and messages of a set.
func redactSet(s *status.Set) {
	for i := range s.Hubs {
		s.Hubs[i].URL, s.Hubs[i].Error = Redact(s.Hubs[i].URL), Redact(s.Hubs[i].Error)
	}
	if s.Dumps != nil {
		for i, fault := range s.Dumps.Faults {
			s.Dumps.Faults[i] = Redact(fault)
		}
	}
	for i := range s.Sources {
		src := &s.Sources[i]
		src.URL, src.Gap, src.Moved = Redact(src.URL), Redact(src.Gap), Redact(src.Moved)
		if e := src.LastError; e != nil {
			e.Text = Redact(e.Text)
		}
		for i := range src.Push {
			p := &src.Push[i]
			p.Hub, p.Topic, p.Error = Redact(p.Hub), Redact(p.Topic), Redact(p.Error)
		}
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
	pauses, err := b.pauseStatus(ctx)
	if err != nil {
		return nil, err
	}
	pushes, err := b.pushStatus(ctx)
	if err != nil {
		return nil, err
	}
	topics, err := b.Log.HubTopics(ctx)
	if err != nil {
		return nil, err
	}
	sources, targets, err := b.Log.SourcesOfSets(ctx)
	if err != nil {
		return nil, err
	}
	leftOut, err := b.leftOut(ctx)
	if err != nil {
		return nil, err
	}
	for _, all := range sources {
		for i := range all {
			all[i].Former = all[i].Former || leftOut(&all[i])
		}
	}
	told := bySet(topics)
	underway := b.underwayOf()
	hubs := map[string][]string{}
	for i := range b.Config().Sets {
		if set := &b.Config().Sets[i]; hubs[set.Name] == nil {
			hubs[set.Name] = set.Hub
		}
	}
	out := make([]status.Set, len(sets))
	for i, s := range sets {
		out[i] = status.Set{Name: s.Name, Records: s.Live, Events: s.Events, LastSeq: s.Last, Partial: s.Partial, Content: s.Content}
		out[i].Newest = server.Newest(ctx, b.Log, &s)
		if out[i].SnapshotSeq, err = p.SnapshotSeqOf(ctx, &s); err != nil && !errors.Is(err, publish.ErrNotFound) {
			return nil, err
		}
		out[i].Hubs = hubStatus(hubs[s.Name], told[s.Name])
		if s.Dumps {
			d, err := p.DumpState(ctx, s.Name)
			if err != nil {
				return nil, err
			}
			out[i].Dumps = &status.Dumps{Seq: d.Seq, Segments: d.Segments, Packed: d.Packed, Faults: d.Faults}
		}
		if out[i].Sources, err = b.sourceStatus(ctx, sources[s.Name], pauses, underway); err != nil {
			return nil, err
		}
		for j := range out[i].Sources {
			out[i].Sources[j].Push = pushes[out[i].Sources[j].ID]
		}
		if out[i].Submissions, err = b.submissionStatus(ctx, s.Name, slices.Concat(sources[s.Name], targets[s.Name])); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// leftOut returns a function that reports whether the configuration does not have a Source any
// more, although the log has it as configured: no process has opened the log with it since. While
// another process writes the log its configuration counts, which only the log tells.
func (b *Bridge) leftOut(ctx context.Context) (func(*eventlog.Source) bool, error) {
	file := b.FileConfig()
	if !b.opt.ReadOnly || b.opt.Beside || file.Store.Log != "" || eventlog.Held(b.Config().Data) {
		return func(*eventlog.Source) bool { return false }, nil
	}
	published, err := b.configuredSets(ctx)
	if published == nil || err != nil {
		return func(*eventlog.Source) bool { return false }, err
	}
	for _, f := range *b.formerNames.Load() {
		if file.Set(f.Name) != nil && file.Set(f.Now) == nil {
			file, published[f.Now] = file.Renamed(f.Name, f.Now), true
		}
	}
	type key struct{ set, text string }
	listed, urls, names, kinds := map[string]bool{}, map[key]bool{}, map[key]bool{}, map[key]bool{}
	for i := range file.Sets {
		set := &file.Sets[i]
		listed[set.Name] = true
		for j := range set.Sources {
			c := &set.Sources[j]
			if u, err := url.Parse(c.URL); err == nil {
				urls[key{set.Name, fetch.Plain(u)}] = true
			}
			names[key{set.Name, c.Name}] = c.Name != ""
			kinds[key{set.Name, c.Kind}] = true
		}
	}
	return func(s *eventlog.Source) bool {
		switch {
		case !published[s.Set]:
			return true
		case !listed[s.Set]: // it was made of a template
			return false
		case s.Kind == config.KindSIP || s.Kind == config.KindSet: // whatever its URL; a template stands for several
			return !kinds[key{s.Set, s.Kind}]
		}
		return !urls[key{s.Set, s.URL}] && !names[key{s.Set, s.Name}]
	}, nil
}

// pageStatus returns the state of all sets for the pages, which redact it.
func (b *Bridge) pageStatus(ctx context.Context) ([]status.Set, error) {
	sets, err := b.setStatus(ctx)
	if err != nil {
		return nil, err
	}
	sets = slices.DeleteFunc(sets, func(s status.Set) bool { return !b.publishes(s.Name) })
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

// sourceStatus returns the state of the Sources of a set, which are all; pauses and underway
// have entries for all Sources.
func (b *Bridge) sourceStatus(ctx context.Context, all []eventlog.Source, pauses map[event.SourceID]*status.Pause, underway map[event.SourceID]*status.Underway) ([]status.Source, error) {
	out := make([]status.Source, len(all))
	for i, src := range all {
		out[i] = status.Source{ID: src.ID, Set: src.Set, Name: src.Name, Former: src.Former, Kind: src.Kind, URL: src.URL, Mark: status.Mark{Stamp: src.Mark},
			Pending: src.Pending, PartialRecords: src.Partial, Held: src.Held, Quarantined: src.Quarantined, Dropped: src.Dropped,
			Gap: harvest.Gap(src.Gap), Underway: underway[src.ID], Paused: pauses[src.ID], Unfinished: src.Cursor.Data != nil}
		if len(src.Schedule.Report) > 0 {
			out[i].Last = &status.Harvest{}
			if err := json.Unmarshal(src.Schedule.Report, &out[i].Last.Report); err != nil {
				return nil, fmt.Errorf("the report of the last harvest of %s: %w", src.URL, err)
			}
			if r := &out[i].Last.Report; src.Held == 0 {
				r.Warnings = slices.DeleteFunc(r.Warnings, harvest.IsAboutHeld)
			}
		}
		out[i].SetSchedule(&src.Schedule)
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

// Redact returns a text without the secrets of the URLs in it, as pages show it: see
// server.Redact. All printed text that may contain a URL goes through it, except the
// identifiers and URLs of records and their representations: these are published.
func Redact(text string) string { return server.Redact(text) }

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
