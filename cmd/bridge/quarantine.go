package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func quarantineCommand() *cobra.Command {
	return group("quarantine", quarantineListCommand(), quarantineShowCommand(), quarantineReplayCommand())
}

func quarantineListCommand() *cobra.Command {
	cmd := command("quarantine ls")
	in, asJSON, set := newInputs(cmd), addJSON(cmd), addSet(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			all, err := b.Log.Quarantined(ctx, *set)
			for i := range all {
				err = errors.Join(err, printQuarantined(w, &all[i], *asJSON))
			}
			return err
		})
	}
	return cmd
}

type jsonQuarantined struct {
	ID       int64  `json:"id"`
	Set      string `json:"set"`
	URL      string `json:"url"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Record   string `json:"record,omitempty"`
	Rule     string `json:"rule"`
	Reason   string `json:"reason"`
	First    string `json:"first"`
	Last     string `json:"last"`
	Times    int    `json:"times"`
	Replayed string `json:"replayed,omitempty"`
}

func printQuarantined(w io.Writer, q *event.Quarantined, asJSON bool) error {
	replayed := ""
	if q.Replayed != 0 {
		replayed = q.Replayed.String()
	}
	url, reason := daemon.Redact(q.URL), daemon.Redact(q.Reason)
	if asJSON {
		return printJSON(w, jsonQuarantined{q.ID, q.Set, url, q.Line, q.Column, q.Record, q.Rule, reason, q.First.String(), q.Last.String(), q.Times, replayed})
	}
	taken := ""
	if replayed != "" {
		taken = "; replayed " + stamp(q.Replayed.Time())
	}
	_, err := fmt.Fprintf(w, "%d  %s  %s  %s\n    %s: %s\n    met %s, last %s%s\n", q.ID, q.Set, quarantinePlace(url, q), q.Record,
		q.Rule, reason, plural(q.Times, "time", "times"), stamp(q.Last.Time()), taken)
	return err
}

// quarantinePlace is where bad input stood. Content that is not what its list says has
// only the list.
func quarantinePlace(url string, q *event.Quarantined) string {
	if q.Line == 0 {
		return url
	}
	return fmt.Sprintf("%s:%d:%d", url, q.Line, q.Column)
}

func quarantineShowCommand() *cobra.Command {
	cmd := command("quarantine show")
	in := newInputs(cmd)
	cmd.Args = cobra.ExactArgs(1)
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

func quarantineReplayCommand() *cobra.Command {
	cmd := command("quarantine replay")
	in := newInputs(cmd)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := quarantineNumbers(args)
		if err != nil {
			return err
		}
		return in.change(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			return replay(ctx, w, b, ids)
		})
	}
	return cmd
}

// replay applies quarantined input again: that with these numbers, or all that was not
// replayed yet.
func replay(ctx context.Context, w io.Writer, h *daemon.Bridge, ids []int64) error {
	if len(ids) == 0 {
		all, err := h.Log.Quarantined(ctx, "")
		if err != nil {
			return err
		}
		for _, q := range all {
			if q.Replayed == 0 {
				ids = append(ids, q.ID)
			}
		}
	}
	still := 0
	for _, id := range ids {
		q, err := h.Log.QuarantinedInput(ctx, id)
		if err != nil {
			return err
		}
		report, err := h.Replay(ctx, &q)
		if err != nil {
			still++
			fmt.Fprintf(w, "%d  %s\n", id, daemon.Redact(err.Error()))
			continue
		}
		fmt.Fprintf(w, "%d  replayed: %s\n", id, plural(int(report.Events()), "event", "events"))
	}
	if still > 0 {
		are := "are"
		if still == 1 {
			are = "is"
		}
		return partFailure(fmt.Errorf("%d of %d %s still bad", still, len(ids), are))
	}
	return nil
}
