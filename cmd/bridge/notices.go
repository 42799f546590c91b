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

func submissionNoticesCommand() *cobra.Command {
	cmd := command("submission notices")
	var in inputs
	var set, state string
	var limit int
	in.addData(cmd)
	cmd.Flags().StringVar(&set, "set", "main", "the set with this `name`")
	cmd.Flags().StringVar(&state, "state", "", "only those in this `state`: waiting, delivered, refused or expired")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this many, the newest")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wanted := event.NoticeState(0)
		for s := event.NoticeWaiting; s <= event.NoticeExpired; s++ {
			if s.String() == state {
				wanted = s
			}
		}
		if state != "" && wanted == 0 {
			return usage(fmt.Errorf("--state: there is no state %q; write waiting, delivered, refused or expired", state))
		}
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		return errors.Join(printNotices(cmd.Context(), cmd.OutOrStdout(), h, set, wanted, limit), h.Close())
	}
	return cmd
}

// The line of bridge submission notices. Fields are absent when unknown.
type jsonNotice struct {
	ID         int64  `json:"id"`
	Set        string `json:"set"`
	Submission int64  `json:"submission"`
	Recipient  string `json:"notification-recipient"`
	State      string `json:"state"`
	Tries      int    `json:"tries,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Created    string `json:"created"`
	Due        string `json:"due,omitempty"`
}

func printNotices(ctx context.Context, w io.Writer, h *daemon.House, set string, state event.NoticeState, limit int) error {
	if _, err := h.Log.Set(ctx, set); err != nil {
		return err
	}
	found, err := h.Log.NoticesOf(ctx, set, state, limit)
	if err != nil {
		return err
	}
	for i := range found {
		n := &found[i]
		line := jsonNotice{ID: n.ID, Set: n.Set, Submission: n.Submission, Recipient: n.Recipient, State: n.State.String(), Tries: n.Tries, Reason: n.Reason,
			Created: n.Created.String()}
		if n.Due > 0 {
			line.Due = n.Due.String()
		}
		if err := printJSON(w, line); err != nil {
			return err
		}
	}
	return nil
}
