package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// withdrawCommand takes records back that came by SIP: here when nobody has the
// data folder, else by leaving that to who has it.
func withdrawCommand() *cobra.Command {
	cmd := command("submission withdraw")
	var in inputs
	var set, reason string
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().StringVar(&set, "set", "", "the `name` of the set that has the records")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the event log")
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if set == "" {
			return usage(errors.New("say which set has the records: --set NAME"))
		}
		for _, id := range args {
			if id == "" {
				return usage(errors.New("an identifier is empty: bridge log has those of the records"))
			}
		}
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		err = eachSet(cmd.Context(), h, set, func(string) error { return nil })
		last, lastErr := h.Log.LastSeq(cmd.Context())
		if err := errors.Join(err, lastErr, h.Close()); err != nil {
			return err
		}
		errs, err := withdraw(cmd, h.Config, set, reason, args, last)
		if err != nil {
			return err
		}
		return in.printWithdrawn(cmd, set, args, errs)
	}
	return cmd
}

// withdraw returns what became of each record; the other error is that nothing
// was tried.
func withdraw(cmd *cobra.Command, c *config.Config, set, reason string, identifiers []string, last event.Seq) ([]error, error) {
	decisions := make([]daemon.Decision, len(identifiers))
	for i, id := range identifiers {
		decisions[i] = daemon.Decision{Set: set, Withdraw: id, Seq: last, Reason: reason}
	}
	h, err := openHouse(cmd.Context(), c, daemon.Options{Command: "bridge submission withdraw", Logger: warnings(cmd.ErrOrStderr())})
	var locked *eventlog.LockedError
	if errors.As(err, &locked) {
		return daemon.LeaveDecisions(cmd.Context(), c.Data, decisions, decisionPatience), nil
	}
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(decisions))
	for i := range decisions {
		errs[i] = h.Decide(cmd.Context(), decisions[i])
	}
	return errs, h.Close()
}

// printWithdrawn prints a line for each record that was withdrawn.
func (in *inputs) printWithdrawn(cmd *cobra.Command, set string, identifiers []string, errs []error) error {
	h, err := in.read(cmd)
	if err != nil {
		return err
	}
	failed := 0
	for i, id := range identifiers {
		if errs[i] != nil {
			failed++
			continue
		}
		if err := printWithdrawal(cmd.Context(), cmd.OutOrStdout(), h, set, id); err != nil {
			return errors.Join(err, h.Close())
		}
	}
	err = errors.Join(append(errs, h.Close())...)
	if 0 < failed && failed < len(identifiers) {
		return partly(err)
	}
	return err
}

func printWithdrawal(ctx context.Context, w io.Writer, h *daemon.House, set, identifier string) error {
	stays, err := h.Stays(ctx, set, identifier)
	if err != nil {
		return err
	}
	but := ""
	if stays {
		but = "; it stays published, since another Source of the set has it too"
	}
	_, err = fmt.Fprintf(w, "record %s of set %s is withdrawn%s\n", oneLine(identifier), set, but)
	return err
}
