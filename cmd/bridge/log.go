package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func logCommand() *cobra.Command {
	cmd := command("log")
	var after int64
	var follow bool
	var f logFilter
	in, asJSON := newInputs(cmd), addJSON(cmd)
	set := addSet(cmd)
	cmd.Flags().Int64Var(&after, "after", 0, "only events after this `SEQ`")
	cmd.Flags().BoolVar(&follow, "follow", false, "continue with new events")
	cmd.Flags().IntVar(&f.tail, "tail", 0, "only the last `N` events")
	cmd.Flags().StringVar(&f.since, "since", "", "only events since a `time`, a day, or how long ago, like 3d or 12h")
	cmd.Flags().StringVar(&f.record, "record", "", "only events of the record with this `identifier`")
	cmd.Flags().StringVar(&f.kind, "kind", "", "only events of this `kind`: created, updated, deleted or rejected")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		since, err := timeOf(f.since, time.Now(), -1)
		if err != nil {
			return usage(fmt.Errorf("--since: %w", err))
		}
		if f.kind != "" && !slices.Contains([]string{event.Created.String(), event.Updated.String(), event.Deleted.String(), event.Rejected.String()}, f.kind) {
			return usage(fmt.Errorf("--kind: %q is none: write created, updated, deleted or rejected", f.kind))
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			from, err := f.from(ctx, b, *set, event.Seq(after), since)
			if err != nil {
				return err
			}
			return printLog(ctx, w, b, *set, from, follow, *asJSON, f.wants)
		})
	}
	return cmd
}

// logFilter is which events are wanted.
type logFilter struct {
	tail                int
	since, record, kind string
}

func (f *logFilter) wants(ev *event.Event) bool {
	return (f.record == "" || ev.Record == f.record) && (f.kind == "" || ev.Kind.String() == f.kind)
}

// from returns the Seq after which the events begin that are wanted: after, since, and so
// many of the last ones.
func (f *logFilter) from(ctx context.Context, b *daemon.Bridge, set string, after event.Seq, since time.Time) (event.Seq, error) {
	last, err := b.Log.LastSeq(ctx)
	if err != nil {
		return 0, err
	}
	first := last + 1 // of those since
	var tail []event.Seq
	err = eachSet(ctx, b, set, func(set string) error {
		if !since.IsZero() {
			seq, err := b.Log.FirstAt(ctx, set, event.MicrosOf(since))
			if err != nil {
				return err
			}
			if seq > 0 {
				first = min(first, seq)
			}
		}
		if f.tail <= 0 {
			return nil
		}
		found := 0
		_, err := b.Log.Back(ctx, set, 0, func(ev *event.Event) bool {
			if ev.Seq > after && f.wants(ev) {
				tail = append(tail, ev.Seq)
				found++
			}
			return ev.Seq > after && found < f.tail
		})
		return err
	})
	if !since.IsZero() {
		after = max(after, first-1)
	}
	if slices.Sort(tail); len(tail) > f.tail {
		tail = tail[len(tail)-f.tail:]
	}
	if f.tail > 0 && len(tail) > 0 {
		after = max(after, tail[0]-1)
	}
	return after, err
}

// printLog prints the events that are wanted after a position, and with follow goes on until
// ctx ends.
func printLog(ctx context.Context, out io.Writer, h *daemon.Bridge, set string, after event.Seq, follow, asJSON bool, wants func(*event.Event) bool) error {
	w := bufio.NewWriter(out)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for ev, err := range h.Log.Events(ctx, set, event.Range{After: after, Upto: math.MaxInt64}) {
			if follow && ctx.Err() != nil {
				return w.Flush()
			}
			if err != nil {
				return errors.Join(err, w.Flush())
			}
			if after = ev.Seq; !wants(ev) {
				continue
			}
			if err := printEvent(w, ev, asJSON); err != nil {
				return err
			}
		}
		if err := w.Flush(); err != nil || !follow {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func printEvent(w io.Writer, ev *event.Event, asJSON bool) error {
	if asJSON {
		return printJSON(w, logLine(ev))
	}
	which, what := ev.Record, ev.Title
	if ev.Kind == event.Rejected {
		which, what = cmp.Or(ev.Origin.SourceIdentifier, ev.Record, "(no identifier)"), dropRepeat(daemon.Redact(ev.Origin.Reason))
	}
	_, err := fmt.Fprintf(w, "%8d  %s  %-8s  %s  %s  %s\n", ev.Seq, stamp(ev.Observed.Time()), ev.Kind, ev.Set, oneLine(which), oneLine(what))
	return err
}

// The line of bridge log --json. Fields are absent when unknown.
type jsonEvent struct {
	Seq             event.Seq  `json:"seq"`
	Set             string     `json:"set"`
	Record          string     `json:"record,omitempty"`
	Kind            string     `json:"kind"`
	Observed        string     `json:"observed"`
	Modified        string     `json:"modified,omitempty"`
	Title           string     `json:"title,omitempty"`
	Representations []jsonLink `json:"representations,omitempty"`
	Via             *jsonLink  `json:"via,omitempty"`
	// What few records have.
	Links      []event.Link     `json:"links,omitempty"`
	Categories []event.Category `json:"categories,omitempty"`
	Details    *event.Details   `json:"details,omitempty"`
	Origin     jsonOrigin       `json:"origin"`
}

// jsonLink is a representation, or the original.
type jsonLink struct {
	Href     string `json:"href"`
	Modified string `json:"modified,omitempty"` // of the original
	Type     string `json:"type,omitempty"`
	Length   *int64 `json:"length,omitempty"`
	SHA256   string `json:"sha256,omitempty"`
	Hash     string `json:"hash,omitempty"` // of other kinds
}

func linkLine(href, modified, mediaType string, length int64, hash string) jsonLink {
	l := jsonLink{Href: href, Modified: modified, Type: mediaType}
	if length >= 0 {
		l.Length = &length
	}
	if l.SHA256 = event.SHA256Of(hash); l.SHA256 == "" {
		l.Hash = hash
	}
	return l
}

type jsonOrigin struct {
	Protocol         string `json:"protocol,omitempty"`
	Source           string `json:"source,omitempty"`
	Document         string `json:"document,omitempty"`
	SourceIdentifier string `json:"source-identifier,omitempty"`
	Reason           string `json:"reason,omitempty"`
}

func logLine(ev *event.Event) jsonEvent {
	o := ev.Origin
	line := jsonEvent{Seq: ev.Seq, Set: ev.Set, Record: ev.Record, Kind: ev.Kind.String(), Observed: ev.Observed.String(),
		Modified: ev.Modified.String(), Title: ev.Title, Links: ev.Links, Categories: ev.Categories, Details: ev.Details,
		Origin: jsonOrigin{o.Protocol, daemon.Redact(o.Source), daemon.Redact(o.Document), o.SourceIdentifier, daemon.Redact(o.Reason)}}
	for _, r := range ev.Representations {
		line.Representations = append(line.Representations, linkLine(r.Href, "", r.Type, r.Length, r.Hash))
	}
	if v := ev.Via; v.Href != "" {
		via := linkLine(v.Href, v.Modified.String(), v.Type, v.Length, v.Hash)
		line.Via = &via
	}
	return line
}
