package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func quarantineCommand() *cobra.Command {
	return group("quarantine", quarantineListCommand(), quarantineShowCommand(), quarantineReplayCommand())
}

func quarantineListCommand() *cobra.Command {
	cmd := command("quarantine ls")
	var in inputs
	var set string
	var asJSON bool
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().StringVar(&set, "set", "", "only this `set`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		all, err := h.Log.Quarantined(cmd.Context(), set)
		for i := range all {
			err = errors.Join(err, printQuarantined(cmd.OutOrStdout(), &all[i], asJSON))
		}
		return errors.Join(err, h.Close())
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
		taken = "; taken in " + q.Replayed.Time().Format("2006-01-02 15:04:05Z")
	}
	_, err := fmt.Fprintf(w, "%d  %s  %s  %s\n    %s: %s\n    met %s, last %s%s\n", q.ID, q.Set, quarantinePlace(url, q), q.Record,
		q.Rule, reason, plural(q.Times, "time", "times"), q.Last.Time().Format("2006-01-02 15:04:05Z"), taken)
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
	var in inputs
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := number(args[0])
		if err != nil {
			return err
		}
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		q, err := h.Log.QuarantinedInput(cmd.Context(), id)
		if err == nil {
			if n := len(q.Input); n > 0 && q.Input[n-1] != '\n' {
				q.Input = append(q.Input, '\n')
			}
			_, err = unescaped(cmd.OutOrStdout()).Write(q.Input)
		}
		return errors.Join(err, h.Close())
	}
	return cmd
}

func number(arg string) (int64, error) {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil || id < 1 {
		return 0, usage(fmt.Errorf("%q is no number of the quarantine: see bridge quarantine ls", arg))
	}
	return id, nil
}

func quarantineReplayCommand() *cobra.Command {
	cmd := command("quarantine replay")
	var in inputs
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var ids []int64
		for _, a := range args {
			id, err := number(a)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		h, err := in.change(cmd, "bridge quarantine replay")
		if err != nil {
			return err
		}
		return errors.Join(replay(cmd.Context(), cmd.OutOrStdout(), h, ids), h.Close())
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
		fmt.Fprintf(w, "%d  taken in: %s\n", id, plural(int(report.Events()), "event", "events"))
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
