package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
)

func sourceCommand() *cobra.Command {
	return group("source", sourceListCommand(),
		sourceTestCommand(),
		sourceAddCommand(),
		sourceRemoveCommand(),
		sourceImportCommand(),
		sourceExportCommand(),
		sourceShowCommand(),
		sourceHistoryCommand(),
		sourcePauseCommand(),
		sourceAction("source resume", newInputs),
		sourceAction("source harvest", newAsking),
		sourceAction("source reset", newInputs),
		sourceAction("source accept-gap", newInputs),
		sourceAction("source release", newInputs),
		sourceForgetCommand())
}

// sourceAction is a command that acts on one Source, through the serving process or with
// the lock of the data folder.
func sourceAction(name string, with func(*cobra.Command) *inputs) *cobra.Command {
	cmd := command(name)
	in := with(cmd)
	cmd.Args = takes(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return in.actOnSource(cmd, args, daemon.SourceAction{}) }
	return cmd
}

// actOnSource performs an action on the Source that the arguments name.
func (in *inputs) actOnSource(cmd *cobra.Command, args []string, a daemon.SourceAction) error {
	a.Do = cmd.Name()
	a.Set, a.Source = sourceNamed(args)
	return in.decide(cmd, []daemon.Decision{{Action: &a}}, func(w io.Writer, _ int, done daemon.DecisionResult) {
		fmt.Fprintln(w, done.Result)
	})
}

// sourceNamed returns the set and the Source that arguments name: SET, SET SOURCE,
// SET/NAME, or a URL or the path of a file or folder, whose set is then "".
func sourceNamed(args []string) (set, source string) {
	if len(args) == 2 {
		return args[0], args[1]
	}
	if before, after, ok := strings.Cut(args[0], "/"); ok && before != "" && !strings.Contains(before, ":") {
		return before, after
	}
	if strings.Contains(args[0], "/") {
		return "", args[0]
	}
	return args[0], ""
}

func sourcePauseCommand() *cobra.Command {
	cmd := command("source pause")
	var a daemon.SourceAction
	var until string
	in := newInputs(cmd)
	cmd.Flags().StringVar(&a.Reason, "reason", "", "why, for bridge status")
	cmd.Flags().StringVar(&until, "until", "", "when it is resumed: a `time`, a day, or how long from now, like 3d or 12h (default: with bridge source resume)")
	cmd.Args = takes(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if until == "" && cmd.Flags().Changed("until") { // as of an empty variable of a script
			return usage(errors.New("--until is empty: give a time, or leave it out to pause without an end"))
		}
		if a.Until, err = timeOf(until, time.Now(), 1); err != nil {
			return usage(fmt.Errorf("--until: %w", err))
		}
		return in.actOnSource(cmd, args, a)
	}
	return cmd
}

// timeOf parses a time as people type it, or as bridge prints it; "" is the zero time. One without
// a zone is in the machine's. A duration counts from now on with direction 1, and back with -1.
func timeOf(typed string, now time.Time, direction int) (time.Time, error) {
	if typed == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04Z07:00", time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, typed, now.Location()); err == nil {
			return at, nil
		}
	}
	if days, ok := strings.CutSuffix(typed, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, direction*int(n)), nil
		}
	}
	if d, err := time.ParseDuration(typed); err == nil && d > 0 {
		return now.Add(time.Duration(direction) * d), nil
	}
	return time.Time{}, fmt.Errorf(`%q is not a time; write one like "2026-01-31 18:00", "2026-01-31 18:00Z" for UTC, "2026-01-31", or how long, like "3d" or "12h"`, typed)
}

func sourceForgetCommand() *cobra.Command {
	cmd := command("source forget")
	var keep, remove bool
	in := newInputs(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the records that only this Source has")
	cmd.Flags().BoolVar(&remove, "delete", false, "delete the records that only this Source has")
	cmd.Args = takes(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if keep && remove {
			return usage(errors.New("--keep and --delete exclude each other"))
		}
		return in.actOnSource(cmd, args, daemon.SourceAction{Keep: keep, Delete: remove})
	}
	return cmd
}

func sourceListCommand() *cobra.Command {
	cmd := command("source ls")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	cmd.Args = takes(0, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			all, err := b.Status(ctx)
			if err != nil {
				return err
			}
			if err := onlySet(all, append(args, "")[0]); err != nil {
				return err
			}
			if *asJSON {
				for s := range all.Sources() {
					err = errors.Join(err, printJSON(w, api.SourceOf(s)))
				}
				return err
			}
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "SET\tNAME\tKIND\tSTATE\tLAST SUCCESS\tNEXT\tURL")
			for s := range all.Sources() {
				next := "-"
				if s.Underway != nil {
					next = "now"
				} else if !s.Next.IsZero() {
					next = minute(s.Next.Time)
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Set, cmp.Or(s.Name, "-"), cmp.Or(s.Kind, "?"), s.State, minute(s.LastSuccess.Time), next, s.URL)
			}
			return table.Flush()
		})
	}
	return cmd
}

func sourceShowCommand() *cobra.Command {
	cmd := command("source show")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	cmd.Args = takes(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			set, source := sourceNamed(args)
			found, err := b.Lookup(ctx, set, source)
			if err != nil {
				return err
			}
			all, err := b.Status(ctx)
			if err != nil {
				return err
			}
			for _, set := range all.Sets {
				for i := range set.Sources {
					if s := &set.Sources[i]; s.ID == found.ID && *asJSON {
						return printJSON(w, api.SourceOf(s))
					} else if s.ID == found.ID {
						fmt.Fprintf(w, "%s: %s\n", set.Name, s.State)
						printSource(w, s, len(set.Sources) > 1)
					}
				}
			}
			return nil
		})
	}
	return cmd
}

func sourceHistoryCommand() *cobra.Command {
	cmd := command("source history")
	var limit int
	var since string
	var failed bool
	in, asJSON := newInputs(cmd), addJSON(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many, the newest; 0 is all")
	cmd.Flags().StringVar(&since, "since", "", "only those since a `time`, a day, or how long ago, like 3d or 12h")
	cmd.Flags().BoolVar(&failed, "failed", false, "only those that have failed")
	cmd.Args = takes(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		from, err := timeOf(since, time.Now(), -1)
		if err != nil {
			return usage(fmt.Errorf("--since: %w", err))
		}
		if err := checkLimit(limit); err != nil {
			return err
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			set, source := sourceNamed(args)
			src, err := b.Lookup(ctx, set, source)
			if err != nil {
				return err
			}
			rows, err := b.History(ctx, src.ID, 0, 0)
			if err != nil {
				return err
			}
			rows = slices.DeleteFunc(rows, func(r status.HarvestRow) bool {
				return r.Ended.Before(from) || failed && r.Result != event.ResultFailed
			})
			if limit > 0 {
				rows = rows[:min(len(rows), limit)]
			}
			if *asJSON {
				for i := range rows {
					err = errors.Join(err, printJSON(w, &rows[i]))
				}
				return err
			}
			return printHistory(w, rows, src.Schedule.Quiet, !failed)
		})
	}
	return cmd
}

// printHistory prints a line for each harvest, the newest first, and with quiet the numbers
// of the harvests between them that found nothing new; newest has those since the last row.
func printHistory(w io.Writer, rows []status.HarvestRow, newest event.Quiet, quiet bool) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "no such harvest is kept: rows are kept for 90 days, at least 100 of a Source")
		return err
	}
	say := func(n int64, last time.Time) {
		if n > 0 && quiet {
			fmt.Fprintf(w, "%s  %s without anything new\n", minute(last), plural(int(n), "harvest", "harvests"))
		}
	}
	fmt.Fprintf(w, "%-17s  %-7s  %8s  %9s  %8s  %8s  %8s  %8s  %9s\n", "ENDED", "RESULT", "TOOK", "DOCUMENTS", "ENTRIES", "CREATED", "UPDATED", "DELETED", "BYTES")
	say(newest.Count, newest.Last.Time())
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(w, "%s  %-7s  %8s  %9d  %8d  %8d  %8d  %8d  %9d\n", minute(r.Ended.Time), r.Result, took(r.Took()), r.Documents, r.Entries, r.Created, r.Updated, r.Deleted, r.Bytes)
		if e := r.Error; e != nil {
			fmt.Fprintf(w, "    %s: %s\n", kindText(e), oneLine(dropRepeat(e.Text)))
		}
		for _, p := range r.Problems {
			fmt.Fprintf(w, "    %s, %s: %s\n", p.Rule, plural(int(p.Count), "place", "places"), oneLine(p.First))
		}
		if u := r.Unchanged; u != nil {
			say(u.Count, u.Last.Time)
		}
	}
	return nil
}

// took formats the duration of a harvest in at most eight characters.
func took(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// kindText returns the kind of an error, and the rule.
func kindText(e *status.HarvestError) string {
	return strings.TrimSpace(cmp.Or(e.Kind, "error") + " " + e.Rule)
}

// printSource prints the state of a Source; several: its set has others, so commands must
// name this one.
func printSource(w io.Writer, s *status.Source, several bool) {
	fmt.Fprintf(w, "  %s %s\n", cmp.Or(s.Kind, "(kind not known yet)"), strings.TrimSpace(s.Name+" "+s.URL))
	if s.Former {
		fmt.Fprintf(w, "    NO LONGER CONFIGURED: its records stay; end it with: bridge source forget %s %s\n", s.Set, cmp.Or(s.Name, quoted(s.URL)))
	}
	fmt.Fprintf(w, "    %s\n", harvestedText(s))
	if !s.FailingSince.IsZero() {
		since := "it has never succeeded"
		if !s.LastSuccess.IsZero() {
			since = "last success " + stamp(s.LastSuccess.Time)
		}
		fmt.Fprintf(w, "    FAILING since %s; %s\n", stamp(s.FailingSince.Time), since)
	}
	which := s.Set
	if several {
		which += " " + cmp.Or(s.Name, quoted(s.URL))
	}
	if r := s.Last; r != nil {
		what := fmt.Sprintf("%s, %s", plural(int(r.Entries), "entry", "entries"), plural(int(r.Events()), "event", "events"))
		if r.NotModified {
			what = "not modified"
		}
		fmt.Fprintf(w, "    last harvest %s, took %s: %s\n", stamp(r.Started), r.Ended.Sub(r.Started).Round(time.Millisecond), what)
		if u := s.Unchanged; u != nil && u.Count > 1 {
			fmt.Fprintf(w, "    %d harvests have found nothing new since %s\n", u.Count, stamp(u.First.Time))
		}
		printFindings(w, "    ", &r.Report)
		for _, warning := range r.Warnings {
			fmt.Fprintf(w, "    warning: %s\n", oneLine(warning))
		}
		if r.Error != "" {
			fmt.Fprintf(w, "    FAILED%s: %s\n", inBrackets(r.ErrorKind), oneLine(dropRepeat(r.Error)))
		}
	}
	if e := s.LastError; e != nil && s.FailingSince.IsZero() {
		fmt.Fprintf(w, "    last error %s, %s: %s\n", stamp(e.At.Time), kindText(e), oneLine(dropRepeat(e.Text)))
	}
	if u := s.Underway; u != nil {
		fmt.Fprintf(w, "    being harvested since %s: %s\n", stamp(u.Started), progressText(&u.Progress))
	}
	if s.Unfinished && s.Underway == nil {
		fmt.Fprintf(w, "    a harvest was interrupted; the next one continues it\n")
	}
	if p := s.Paused; p != nil {
		until := "it is resumed with bridge source resume " + which
		if !p.Until.IsZero() {
			until = stamp(p.Until.Time)
		}
		fmt.Fprintf(w, "    PAUSED since %s until %s%s\n", stamp(p.Since.Time), until, reasonText(p.Reason))
	}
	if !s.Next.IsZero() && s.Underway == nil {
		after := ""
		if r := s.Last; r != nil && r.Error != "" && s.Next.Equal(r.RetryAfter.Truncate(time.Microsecond)) {
			after = " (the Source asks for that with Retry-After)"
		}
		if s.Failures > 1 {
			after += fmt.Sprintf(" (%d have failed in a row)", s.Failures)
		}
		fmt.Fprintf(w, "    next harvest %s%s\n", stamp(s.Next.Time), after)
	}
	for i := range s.Push {
		fmt.Fprintf(w, "    push: %s\n", pushText(&s.Push[i]))
	}
	if s.Pending > 0 {
		fmt.Fprintf(w, "    pending: %d (%d of them published without some of their representations)\n", s.Pending, s.PartialRecords)
		for _, why := range s.Waits {
			fmt.Fprintf(w, "      %s\n", oneLine(dropRepeat(why)))
		}
		if more := s.Pending - len(s.Waits); more > 0 {
			fmt.Fprintf(w, "      and %d more\n", more)
		}
	}
	if s.Held > 0 {
		fmt.Fprintf(w, "    HELD deletions: %d; apply them with: bridge source release %s\n", s.Held, which)
	}
	if s.Quarantined > 0 {
		fmt.Fprintf(w, "    quarantined: %d; see: bridge quarantine ls --set %s\n", s.Quarantined, s.Set)
	}
	if s.Dropped > 0 {
		fmt.Fprintf(w, "    dropped from quarantine: %s, to make room for newer ones\n", plural(s.Dropped, "bad input", "bad inputs"))
	}
	if s.Gap != "" {
		fmt.Fprintf(w, "    GAP: %s\n    if it will not come back: bridge source accept-gap %s\n", oneLine(dropRepeat(s.Gap)), which)
	}
}

// reasonText returns the end of a line with a reason, "" when there is none.
func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + oneLine(reason)
}

// quoted returns a URL quoted for a shell.
func quoted(url string) string {
	if strings.ContainsAny(url, "*?&;") {
		return "'" + url + "'"
	}
	return url
}

// harvestedText returns the time up to which a Source was harvested. One without times,
// such as a plain sitemap, has none.
func harvestedText(s *status.Source) string {
	switch r := s.Last; {
	case s.Kind == harvest.SIP:
		return "it calls bridge; nothing is harvested"
	case s.Mark.Known():
		return "harvested up to " + s.Mark.String()
	case r != nil && r.Error == "" && s.Gap == "" && !s.Unfinished && (r.NotModified || r.Documents > 0):
		return "harvested to its end; it states no times"
	}
	return "never harvested to its end"
}

// pushText describes the state of a subscription at a hub of a Source.
func pushText(p *status.Push) string {
	text := map[string]string{
		status.PushAsked: "the hub has not confirmed the subscription yet", status.PushSubscribed: "subscribed until " + stamp(p.Until.Time),
		status.PushFailing: "not subscribed", status.PushNone: "not subscribed", status.PushEnding: "the subscription is being ended",
	}[p.State]
	if p.Hub != "" {
		text += ", at the hub " + p.Hub
	}
	if !p.Last.IsZero() {
		text += ", last push " + stamp(p.Last.Time)
	}
	if p.Error != "" {
		text += ": " + oneLine(p.Error)
	}
	return text
}
