package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

func sourceCommand() *cobra.Command {
	return group("source", sourceListCommand(),
		sourceAction("source reset", resetSource),
		sourceAction("source accept-gap", acceptGap),
		sourceAction("source release", releaseHeld),
		sourceForgetCommand())
}

func sourceForgetCommand() *cobra.Command {
	var keep, remove bool
	cmd := sourceAction("source forget", func(ctx context.Context, w io.Writer, h *daemon.Bridge, s *daemon.Source) error {
		_, have, err := h.Log.CountAbsent(ctx, s.ID, event.Stamp{})
		switch {
		case err != nil:
			return err
		case keep && remove:
			return usage(errors.New("--keep and --delete exclude each other"))
		case have > 0 && !keep && !remove:
			return usage(fmt.Errorf("%s: %s has %s: say --delete to delete those that no other Source of the set has, or --keep to keep them as they are",
				s.Set, daemon.Redact(s.URL), plural(int(have), "record", "records")))
		}
		report, err := h.Harvester().Forget(ctx, &s.Source, keep)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: %s is forgotten: %s deleted\n", s.Set, daemon.Redact(s.URL), plural(int(report.Deleted), "record", "records"))
		return nil
	})
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the records that only this Source has")
	cmd.Flags().BoolVar(&remove, "delete", false, "delete the records that only this Source has")
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

// sourceAction is a command that does something to one Source.
func sourceAction(name string, do func(context.Context, io.Writer, *daemon.Bridge, *daemon.Source) error) *cobra.Command {
	cmd := command(name)
	in := newInputs(cmd)
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return in.change(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			s, err := b.Find(ctx, args[0], append(args, "")[1])
			if err != nil {
				return err
			}
			return do(ctx, w, b, s)
		})
	}
	return cmd
}

func resetSource(ctx context.Context, w io.Writer, h *daemon.Bridge, s *daemon.Source) error {
	if err := h.Harvester().Reset(ctx, s.ID); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %s is read from the beginning in the next harvest; its records and events stay\n", s.Set, daemon.Redact(s.URL))
	return nil
}

func acceptGap(ctx context.Context, w io.Writer, h *daemon.Bridge, s *daemon.Source) error {
	url, err := h.Harvester().AcceptGap(ctx, &s.Source)
	if errors.Is(err, harvest.ErrNoGap) {
		fmt.Fprintf(w, "%s: %s has no gap: nothing to accept\n", s.Set, daemon.Redact(s.URL))
		return nil
	}
	if err != nil {
		return err
	}
	url = daemon.Redact(url)
	if s.Kind == harvest.ResourceSync {
		fmt.Fprintf(w, "%s: %s is no longer requested; changes that only it contained are lost\n", s.Set, url)
		return nil
	}
	fmt.Fprintf(w, "%s: from now on the chain ends before %s; deletions that only it contained are lost\n", s.Set, url)
	return nil
}

func releaseHeld(ctx context.Context, w io.Writer, h *daemon.Bridge, s *daemon.Source) error {
	report, err := h.Harvester().Release(ctx, &s.Source)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %s applied\n", s.Set, plural(int(report.Deleted), "held deletion", "held deletions"))
	return nil
}
