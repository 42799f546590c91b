package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// reviewCommand accepts or rejects submissions under review.
func reviewCommand(name string, accept bool) *cobra.Command {
	cmd := command(name)
	d := daemon.Decision{Accept: accept}
	word := "rejected"
	in := newInputs(cmd)
	if accept {
		word = "accepted"
		cmd.Flags().StringVar(&d.Assigned, "identifier", "", "the assigned `identifier`, of a single ID (default: bridge assigns one)")
		cmd.Flags().BoolVar(&d.Replace, "replace", false, "replace the record that has the identifier, even another one")
	} else {
		cmd.Flags().StringVar(&d.Reason, "reason", "", "the reason, for the submitter")
	}
	cmd.Args = takes(1, math.MaxInt)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case d.Assigned != "" && len(args) > 1:
			return usage(errors.New("--identifier is of one record: give one ID"))
		case d.Replace && d.Assigned == "":
			return usage(errors.New("--replace goes with --identifier"))
		}
		all := make([]daemon.Decision, len(args))
		for i, arg := range args {
			all[i] = d
			var err error
			if all[i].ID, err = submissionID(arg); err != nil {
				return err
			}
		}
		return in.decide(cmd, all, func(w io.Writer, i int, _ daemon.DecisionResult) {
			fmt.Fprintf(w, "submission %d is %s\n", all[i].ID, word)
		})
	}
	return cmd
}

// settleCommand stores what an ingest server has decided on a submission.
func settleCommand() *cobra.Command {
	cmd := command("submission settle")
	var how daemon.Settlement
	var notTaken bool
	in := newInputs(cmd)
	cmd.Flags().BoolVar(&how.Told, "told", false, "its submitter knows the decision, or cannot be reached: do not notify it any more")
	cmd.Flags().StringVar(&how.Assigned, "accepted", "", "the ingest server has accepted it under this `identifier`")
	cmd.Flags().StringVar(&how.Reason, "rejected", "", "the ingest server has rejected it for this `reason`, which may be empty")
	cmd.Flags().BoolVar(&notTaken, "not-taken", false, "the ingest server does not have it")
	cmd.Flags().Int64Var(&how.Notification, "notification", 0, "the uncorrelated notification with this `number` is about it")
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		given := 0
		for flag, state := range map[string]submission.State{"accepted": submission.StateAccepted, "rejected": submission.StateRejected, "not-taken": submission.StateUnsent, "notification": 0, "told": 0} {
			if f := cmd.Flags().Lookup(flag); f.Changed && (f.Value.Type() != "bool" || f.Value.String() == "true") {
				given++
				how.Outcome = state
			}
		}
		if given != 1 {
			return usage(errors.New("give the decision of the ingest server: --accepted ID, --rejected REASON, --not-taken, or --notification N; or --told, when its submitter knows it"))
		}
		id, err := submissionID(args[0])
		if err != nil {
			return err
		}
		return in.decide(cmd, []daemon.Decision{{ID: id, Settle: &how}}, func(w io.Writer, _ int, done daemon.DecisionResult) {
			if how.Told {
				fmt.Fprintf(w, "the notification of submission %d is not sent any more\n", id)
				return
			}
			fmt.Fprintf(w, "submission %d is settled: see bridge submission show %d\n", id, id)
			if done.Published != "" {
				fmt.Fprintf(w, "the record that was accepted before, as %s, stays published: use bridge submission withdraw to remove it; its submitter has that disposition, and is not notified again\n", oneLine(done.Published))
			}
		})
	}
	return cmd
}

// resendCommand puts submissions that were not sent, or not answered, back into the outbox.
func resendCommand() *cobra.Command {
	cmd := command("submission resend")
	var d daemon.Decision
	in := newInputs(cmd)
	cmd.Flags().StringVar(&d.Set, "set", "", "all submissions of the set with this `name`")
	cmd.Flags().StringVar(&d.Resend, "state", submission.StateUnsent.String(), "those in this `state`: unsent or unresolved; or the notifications to submitters that are refused or expired")
	cmd.Args = takes(0, math.MaxInt)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch d.Resend {
		case submission.StateUnsent.String(), submission.StateUnresolved.String(), submission.DeliveryRefused.String(), submission.DeliveryExpired.String():
		default:
			return usage(fmt.Errorf("--state: %q cannot be sent again; write unsent or unresolved, or refused or expired", d.Resend))
		}
		if (len(args) == 0) == (d.Set == "") {
			return usage(errors.New("give the numbers of submissions, or --set NAME for all of a set"))
		}
		var all []daemon.Decision
		if d.Set != "" {
			all = append(all, d)
		}
		for _, arg := range args {
			id, err := submissionID(arg)
			if err != nil {
				return err
			}
			d.ID = id
			all = append(all, d)
		}
		return in.decide(cmd, all, func(w io.Writer, _ int, done daemon.DecisionResult) {
			fmt.Fprintln(w, cmp.Or(done.Result, "done: only the latest change of each record, and no deletion, is sent again; see bridge submission ls"))
		})
	}
	return cmd
}

// withdrawCommand withdraws records that were submitted by SIP.
func withdrawCommand() *cobra.Command {
	cmd := command("submission withdraw")
	var set, reason string
	in := newInputs(cmd)
	cmd.Flags().StringVar(&set, "set", "", "the `name` of the set that has the records")
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, for the event log")
	cmd.Args = takes(1, math.MaxInt)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if set == "" {
			return usage(errors.New("say which set has the records: --set NAME"))
		}
		all := make([]daemon.Decision, len(args))
		for i, id := range args {
			if id == "" {
				return usage(errors.New("an identifier is empty: bridge log has those of the records"))
			}
			all[i] = daemon.Decision{Set: set, Withdraw: id, Reason: reason}
		}
		return in.decide(cmd, all, func(w io.Writer, i int, done daemon.DecisionResult) {
			but := ""
			if done.Stays {
				but = "; it stays published, since another Source of the set has it too"
			}
			if done.Packed {
				but += "; packages of the set's dumps keep its content: see docs/operations.md#dumps"
			}
			fmt.Fprintf(w, "record %s of set %s is withdrawn%s\n", oneLine(args[i]), set, but)
		})
	}
	return cmd
}

const (
	// lockPatience is how long a command waits for a process that holds the data folder and
	// accepts no decisions, such as a harvest; it checks again every lockPause.
	lockPatience = 30 * time.Second
	lockPause    = 200 * time.Millisecond
)

// decide applies decisions and prints a line for each. Where a process serves from the
// data folder, that process applies them.
func (in *inputs) decide(cmd *cobra.Command, all []daemon.Decision, print func(w io.Writer, i int, done daemon.DecisionResult)) error {
	var c *config.Config
	// The log, and a set with the name, must exist.
	if err := in.read(cmd, func(ctx context.Context, _ io.Writer, b *daemon.Bridge) error {
		if c = b.Config(); all[0].Set == "" {
			return nil
		}
		return eachSet(ctx, b, all[0].Set, func(string) error { return nil })
	}); err != nil {
		return err
	}
	var refused []error
	applied := func(i int, done daemon.DecisionResult) {
		if done.Undecided {
			refused = append(refused, usage(errors.New(done.Error)))
		} else if done.Error != "" {
			refused = append(refused, errors.New(done.Error))
		} else {
			print(cmd.OutOrStdout(), i, done)
		}
	}
	if err := applyOrSend(cmd, c, all, applied); err != nil {
		return errors.Join(append(refused, err)...)
	}
	if n := len(refused); n > 0 && n < len(all) {
		return partFailure(errors.Join(refused...))
	}
	return errors.Join(refused...)
}

// applyOrSend takes the lock of the data folder and applies the decisions, or sends them
// to the process that has it. It calls applied with each result.
func applyOrSend(cmd *cobra.Command, c *config.Config, all []daemon.Decision, applied func(int, daemon.DecisionResult)) error {
	ctx := cmd.Context()
	for limit := time.Now().Add(lockPatience); ; {
		h, err := openBridge(ctx, c, daemon.Options{Command: cmd.CommandPath(), Logger: warnings(cmd.ErrOrStderr()), AdoptBucket: all[0].Tidy != nil && all[0].Tidy.Adopt})
		if err == nil {
			for i := range all {
				done, err := h.Decide(ctx, all[i])
				if err != nil {
					done.Error = err.Error()
				}
				applied(i, done)
			}
			return h.Close()
		}
		var locked *eventlog.LockedError
		if !errors.As(err, &locked) {
			return err
		}
		if err := daemon.SendDecisions(ctx, c.Data, all, applied); !errors.Is(err, daemon.ErrNotServing) {
			return err
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%w; it accepts no commands yet", locked)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPause):
		}
	}
}
