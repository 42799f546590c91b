package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

func sourceCommand() *cobra.Command {
	return group("source", sourceListCommand(),
		sourcePauseCommand(),
		sourceAction("source resume"),
		sourceAction("source harvest"),
		sourceAction("source reset"),
		sourceAction("source accept-gap"),
		sourceAction("source release"),
		sourceForgetCommand())
}

// sourceAction is a command that does something to one Source, through the process that
// serves or with the lock of the data folder.
func sourceAction(name string) *cobra.Command {
	cmd := command(name)
	in := newInputs(cmd)
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return in.actOnSource(cmd, args, daemon.SourceAction{}) }
	return cmd
}

// actOnSource does what a command is called to the Source that its arguments name.
func (in *inputs) actOnSource(cmd *cobra.Command, args []string, a daemon.SourceAction) error {
	a.Do = cmd.Name()
	a.Set, a.Source = sourceNamed(args)
	return in.decide(cmd, []daemon.Decision{{Action: &a}}, func(w io.Writer, _ int, done daemon.DecisionResult) {
		fmt.Fprintln(w, done.Said)
	})
}

// sourceNamed returns the set and the Source that arguments name: SET, SET SOURCE, SET/NAME,
// or a URL, whose set is then "".
func sourceNamed(args []string) (set, source string) {
	if len(args) == 2 {
		return args[0], args[1]
	}
	if before, after, ok := strings.Cut(args[0], "/"); ok && !strings.Contains(before, ":") {
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
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if a.Until, err = timeOf(until, time.Now()); err != nil {
			return usage(fmt.Errorf("--until: %w", err))
		}
		return in.actOnSource(cmd, args, a)
	}
	return cmd
}

// timeOf reads a time as people type it; "" is none.
func timeOf(typed string, now time.Time) (time.Time, error) {
	if typed == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, typed, now.Location()); err == nil {
			return at, nil
		}
	}
	if days, ok := strings.CutSuffix(typed, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, int(n)), nil
		}
	}
	if d, err := time.ParseDuration(typed); err == nil && d > 0 {
		return now.Add(d), nil
	}
	return time.Time{}, fmt.Errorf(`%q is not a time; write one like "2026-01-31 18:00", "2026-01-31", or from now on like "3d" or "12h"`, typed)
}

func sourceForgetCommand() *cobra.Command {
	cmd := command("source forget")
	var keep, remove bool
	in := newInputs(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the records that only this Source has")
	cmd.Flags().BoolVar(&remove, "delete", false, "delete the records that only this Source has")
	cmd.Args = cobra.RangeArgs(1, 2)
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
	in := newInputs(cmd)
	cmd.Args = cobra.MaximumNArgs(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			all, err := b.Status(ctx)
			if err != nil {
				return err
			}
			found := false
			for _, s := range all.Sets {
				for i := range s.Sources {
					if len(args) > 0 && args[0] != s.Name || len(args) > 1 && args[1] != s.Sources[i].Name && daemon.Redact(args[1]) != s.Sources[i].URL {
						continue
					}
					found = true
					fmt.Fprintf(w, "%s\n", s.Name)
					printSource(w, &s.Sources[i], len(s.Sources) > 1)
				}
			}
			if !found && len(args) > 0 {
				return errors.New("no such Source; bridge source ls lists them all")
			}
			return nil
		})
	}
	return cmd
}
