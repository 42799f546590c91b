package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// listing has the flags of the commands that print the newest of something that each
// set has.
type listing struct {
	in           inputs
	set          string
	limit        int
	asJSON, full bool
}

// newListing adds the flags of a listing to a command.
func newListing(cmd *cobra.Command) *listing {
	l := &listing{}
	l.in.addFile(cmd)
	l.in.addData(cmd)
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "print JSON lines")
	cmd.Flags().BoolVar(&l.full, "full", false, "do not cut long texts")
	cmd.Flags().StringVar(&l.set, "set", "", "only those of the set with this `name`")
	cmd.Flags().IntVar(&l.limit, "limit", 100, "at most this many of a set, the newest; 0 is all")
	return l
}

// each opens the data folder and prints what each of the wanted sets has.
func (l *listing) each(cmd *cobra.Command, print func(h *daemon.Bridge, set string) error) error {
	h, err := l.in.read(cmd)
	if err != nil {
		return err
	}
	return errors.Join(eachSet(cmd.Context(), h, l.set, func(set string) error { return print(h, set) }), h.Close())
}

func submissionNoticesCommand() *cobra.Command {
	cmd := command("submission notices")
	var state string
	l := newListing(cmd)
	cmd.Flags().StringVar(&state, "state", "", "only those in this `state`: waiting, delivered, refused or expired")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wanted := event.DeliveryState(0)
		for s := event.DeliveryWaiting; s <= event.DeliveryExpired; s++ {
			if s.String() == state {
				wanted = s
			}
		}
		if state != "" && wanted == 0 {
			return usage(fmt.Errorf("--state: there is no state %q; write waiting, delivered, refused or expired", state))
		}
		return l.each(cmd, func(h *daemon.Bridge, set string) error {
			return printNotices(cmd.Context(), cmd.OutOrStdout(), h, set, wanted, l.limit, l.asJSON, l.full)
		})
	}
	return cmd
}

// The line of bridge submission notices --json. Fields are absent when unknown.
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

func printNotices(ctx context.Context, w io.Writer, h *daemon.Bridge, set string, state event.DeliveryState, limit int, asJSON, full bool) error {
	return newest(limit, func(after int64, most int) ([]event.OutgoingNotification, error) {
		return h.Log.Outgoing(ctx, set, state, after, most)
	}, func(n *event.OutgoingNotification) (int64, error) {
		if !asJSON {
			return n.ID, printNotice(w, n, full)
		}
		line := jsonNotice{ID: n.ID, Set: n.Set, Submission: n.Submission, Recipient: daemon.Redact(n.Recipient), State: n.State.String(), Tries: n.Tries, Reason: daemon.Redact(n.Reason),
			Created: n.Created.String()}
		if n.Due > 0 {
			line.Due = n.Due.String()
		}
		return n.ID, printJSON(w, line)
	})
}

func printNotice(w io.Writer, n *event.OutgoingNotification, full bool) error {
	_, err := fmt.Fprintf(w, "%6d  %s  %-9s  %s  submission %d  %s  %s\n", n.ID, n.Created.Time().Format("2006-01-02 15:04:05Z"), n.State, n.Set, n.Submission,
		brief(daemon.Redact(n.Recipient), full), brief(dropRepeat(daemon.Redact(n.Reason)), full))
	return err
}

// newest prints at most limit of what there is, all with 0, a page of the log at a
// time: the next one begins after the ID of what was printed last.
func newest[T any](limit int, page func(after int64, most int) ([]T, error), print func(*T) (id int64, err error)) error {
	left, after := limit, int64(0)
	for {
		most := 1000
		if limit > 0 {
			most = min(most, left)
		}
		found, err := page(after, most)
		if err != nil {
			return err
		}
		for i := range found {
			if after, err = print(&found[i]); err != nil {
				return err
			}
		}
		left -= len(found)
		if len(found) < most || limit > 0 && left <= 0 {
			return nil
		}
	}
}

// eachSet does something for the set with the name, or for all when it is "".
func eachSet(ctx context.Context, h *daemon.Bridge, name string, do func(set string) error) error {
	sets, err := h.Log.Sets(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range sets {
		names = append(names, s.Name)
		if name == "" || s.Name == name {
			if err := do(s.Name); err != nil {
				return err
			}
		}
	}
	if name != "" && !slices.Contains(names, name) {
		return fmt.Errorf("there is no set %q here; there is: %s", name, strings.Join(names, ", "))
	}
	return nil
}
