package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
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
		if after < 0 {
			return usage(fmt.Errorf("--after: %d is no place in the log; write the number of an event, or 0 for all", after))
		}
		if f.tail < 1 && cmd.Flags().Changed("tail") {
			return usage(fmt.Errorf("--tail: %d is no number of events; write 1 or more", f.tail))
		}
		if f.kind != "" && !slices.Contains([]string{event.Created.String(), event.Updated.String(), event.Deleted.String(), event.Rejected.String()}, f.kind) {
			return usage(fmt.Errorf("--kind: %q is none: write created, updated, deleted or rejected", f.kind))
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			if after > 0 {
				if err := b.Log.Continues(ctx, event.Seq(after)); err != nil {
					return fmt.Errorf("--after: %w: read it from the beginning, without --after", err)
				}
			}
			from, err := f.from(ctx, b, *set, event.Seq(after), since)
			if err != nil {
				return err
			}
			if f.record != "" {
				if from, err = f.printRecord(ctx, w, b, *set, from, *asJSON); err != nil || !follow {
					return err
				}
			}
			return printLog(ctx, w, b, *set, from, follow, *asJSON, f.wants)
		})
	}
	return cmd
}

// logFilter selects events.
type logFilter struct {
	tail                int
	since, record, kind string
}

func (f *logFilter) wants(ev *event.Event) bool {
	return (f.record == "" || ev.Record == f.record) && (f.kind == "" || ev.Kind.String() == f.kind)
}

// from returns the Seq after which the selected events begin, from after, since, and the
// number of the last ones.
func (f *logFilter) from(ctx context.Context, b *daemon.Bridge, set string, after event.Seq, since time.Time) (event.Seq, error) {
	last, err := b.Log.LastSeq(ctx)
	if err != nil {
		return 0, err
	}
	first := last + 1 // first of the events since then
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

// printRecord prints the selected events of the record after a position, along their
// chains, and returns the position after the log's last event.
func (f *logFilter) printRecord(ctx context.Context, w io.Writer, b *daemon.Bridge, set string, after event.Seq, asJSON bool) (event.Seq, error) {
	last, err := b.Log.LastSeq(ctx)
	if err != nil {
		return 0, err
	}
	var seqs []event.Seq
	if err := eachSet(ctx, b, set, func(set string) error {
		err := b.Log.EventsOf(ctx, set, event.Key(f.record), 0, func(ev *event.Event) bool {
			if ev.Seq > after && ev.Seq <= last && f.wants(ev) {
				seqs = append(seqs, ev.Seq)
			}
			return ev.Seq > after
		})
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}); err != nil {
		return 0, err
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		ev, err := b.Log.Event(ctx, seq)
		if err == nil {
			err = printEvent(w, ev, asJSON)
		}
		if err != nil {
			return 0, err
		}
	}
	return max(after, last), nil
}

// printLog prints the selected events after a position; with follow it continues until ctx
// ends.
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
		err := h.Log.Continues(ctx, after)
		if err == nil && set != "" {
			err = hasSet(ctx, h, set, after)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("--follow has ended: %w", err)
		}
	}
}

// hasSet returns an error when the log does not have a set any more, or has it under another name.
func hasSet(ctx context.Context, h *daemon.Bridge, set string, after event.Seq) error {
	_, err := h.Log.Set(ctx, set)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	former, err2 := h.Log.FormerNames(ctx)
	if i := slices.IndexFunc(former, func(f eventlog.FormerName) bool { return f.Name == set }); i >= 0 {
		return fmt.Errorf("set %q is called %q by now: go on with --set %[2]s --after %d", set, former[i].Now, after)
	}
	return errors.Join(err, err2)
}

func printEvent(w io.Writer, ev *event.Event, asJSON bool) error {
	if asJSON {
		return printJSON(w, api.EventOf(ev))
	}
	which, what := ev.Record, ev.Title
	if ev.Kind == event.Rejected {
		which, what = cmp.Or(ev.Origin.SourceIdentifier, ev.Record, "(no identifier)"), dropRepeat(daemon.Redact(ev.Origin.Reason))
	}
	_, err := fmt.Fprintf(w, "%8d  %s  %-8s  %s  %s  %s\n", ev.Seq, stamp(ev.Observed.Time()), ev.Kind, ev.Set, oneLine(which), oneLine(what))
	return err
}
