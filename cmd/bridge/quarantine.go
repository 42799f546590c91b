package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func quarantineCommand() *cobra.Command {
	return group("quarantine", quarantineListCommand(), quarantineShowCommand(), quarantineAction("quarantine replay", newAsking, cobra.ArbitraryArgs), quarantineAction("quarantine discard", newInputs, takes(1, math.MaxInt)))
}

func quarantineListCommand() *cobra.Command {
	cmd := command("quarantine ls")
	in, asJSON, set := newInputs(cmd), addJSON(cmd), addSet(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			if *set != "" {
				if _, err := b.Log.Set(ctx, *set); err != nil {
					return err
				}
			}
			return eachQuarantined(ctx, b, event.QuarantineQuery{Set: *set}, func(q *event.Quarantined) error { return printQuarantined(w, q, *asJSON) })
		})
	}
	return cmd
}

// eachQuarantined calls do with the bad input that a query selects. It reads it in pages.
func eachQuarantined(ctx context.Context, b *daemon.Bridge, which event.QuarantineQuery, do func(*event.Quarantined) error) error {
	return newest(0, func(after int64, most int) ([]event.Quarantined, error) {
		which.After, which.Limit = after, most
		return b.Log.QuarantinePage(ctx, which)
	}, func(q *event.Quarantined) (int64, error) { return q.ID, do(q) })
}

func printQuarantined(w io.Writer, q *event.Quarantined, asJSON bool) error {
	if asJSON {
		return printJSON(w, api.QuarantinedOf(q))
	}
	url, reason, taken := daemon.Redact(q.URL), daemon.Redact(q.Reason), ""
	if q.Replayed != 0 {
		taken = "; replayed " + stamp(q.Replayed.Time())
	}
	_, err := fmt.Fprintf(w, "%d  %s  %s  %s\n    %s: %s\n    met %s, last %s%s\n", q.ID, q.Set, quarantinePlace(url, q), oneLine(q.Record),
		q.Rule, oneLine(reason), plural(q.Times, "time", "times"), stamp(q.Last.Time()), taken)
	return err
}

// quarantinePlace returns where bad input was found. Content that does not match its list
// has only the list.
func quarantinePlace(url string, q *event.Quarantined) string {
	if q.Line == 0 {
		return url
	}
	return fmt.Sprintf("%s:%d:%d", url, q.Line, q.Column)
}

func quarantineShowCommand() *cobra.Command {
	cmd := command("quarantine show")
	in := newInputs(cmd)
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := quarantineNumbers(args)
		if err != nil {
			return err
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			q, err := b.Log.QuarantinedInput(ctx, ids[0])
			if err != nil {
				return err
			}
			if n := len(q.Input); n > 0 && q.Input[n-1] != '\n' {
				q.Input = append(q.Input, '\n')
			}
			_, err = unescaped(w).Write(q.Input)
			return err
		})
	}
	return cmd
}

func quarantineNumbers(words []string) (ids []int64, err error) {
	for _, word := range words {
		id, err := number(word, "the quarantine", "bridge quarantine ls")
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// quarantineAction is a command that acts on bad inputs, whose numbers are its arguments.
func quarantineAction(name string, with func(*cobra.Command) *inputs, count cobra.PositionalArgs) *cobra.Command {
	cmd := command(name)
	in := with(cmd)
	cmd.Args = count
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := quarantineNumbers(args)
		if err != nil {
			return err
		}
		return in.decideQuarantined(cmd, ids)
	}
	return cmd
}

// decideQuarantined does to bad inputs what the name of the command means, through the
// serving process or with the lock of the data folder. Without numbers it acts on all that
// wait.
func (in *inputs) decideQuarantined(cmd *cobra.Command, ids []int64) error {
	var c *config.Config
	if err := in.read(cmd, func(ctx context.Context, _ io.Writer, b *daemon.Bridge) error {
		c = b.Config()
		if len(ids) > 0 {
			return nil
		}
		return eachQuarantined(ctx, b, event.QuarantineQuery{Waiting: true}, func(q *event.Quarantined) error {
			ids = append(ids, q.ID)
			return nil
		})
	}); err != nil || len(ids) == 0 {
		return err
	}
	var all []daemon.Decision
	for _, id := range ids {
		all = append(all, daemon.Decision{ID: id, Quarantine: cmd.Name()})
	}
	still := 0
	if err := applyOrSend(cmd, c, all, func(i int, done daemon.DecisionResult) {
		if done.Error != "" {
			still++
			done.Result = daemon.Redact(done.Error)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d  %s\n", ids[i], done.Result)
	}); err != nil {
		return err
	}
	if still == 0 {
		return nil
	}
	are, what := "are", "not replayed"
	if still == 1 {
		are = "is"
	}
	if cmd.Name() == "discard" {
		what = "not discarded"
	}
	return partFailure(fmt.Errorf("%d of %d %s %s", still, len(ids), are, what))
}
