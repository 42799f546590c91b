package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
)

func notificationCommand() *cobra.Command { return group("notification", notificationListCommand()) }

func notificationListCommand() *cobra.Command {
	cmd := command("notification ls")
	var sent, received bool
	var state, verdict string
	l := newListing(cmd)
	cmd.Flags().BoolVar(&sent, "sent", false, "notifications to submitters")
	cmd.Flags().BoolVar(&received, "received", false, "notifications from ingest servers")
	cmd.Flags().StringVar(&state, "state", "", "only sent ones in this `state`: waiting, delivered, refused or expired")
	cmd.Flags().StringVar(&verdict, "verdict", "", "only received ones with this `verdict`: matched, record, rejected, uncorrelated, conflict or settled")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		states, isState := valueNamed(state, submission.DeliveryWaiting, submission.DeliveryExpired)
		verdicts, isVerdict := valueNamed(verdict, submission.NotificationMatched, submission.NotificationSettled)
		switch {
		case sent == received:
			return usage(errors.New("say which: --sent or --received"))
		case state != "" && received:
			return usage(errors.New("--state goes with --sent; what was received has a --verdict"))
		case verdict != "" && sent:
			return usage(errors.New("--verdict goes with --received; what is sent has a --state"))
		case !isState:
			return usage(fmt.Errorf("--state: there is no state %q; write waiting, delivered, refused or expired", state))
		case !isVerdict:
			return usage(fmt.Errorf("--verdict: there is no verdict %q; write matched, record, rejected, uncorrelated, conflict or settled", verdict))
		}
		return l.each(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge, set string) error {
			if sent {
				return newest(l.limit, func(after int64, most int) ([]submission.OutgoingNotification, error) {
					return b.SIP.Outgoing(ctx, set, states, after, most)
				}, func(n *submission.OutgoingNotification) (int64, error) { return n.ID, printSent(w, n, l) })
			}
			return newest(l.limit, func(after int64, most int) ([]submission.IncomingNotification, error) {
				return b.SIP.Incoming(ctx, set, verdicts, after, most)
			}, func(n *submission.IncomingNotification) (int64, error) { return n.ID, printReceived(w, n, l) })
		})
	}
	return cmd
}

// valueNamed returns the value from first to last whose text is the word; the zero value for
// "".
func valueNamed[T interface {
	~uint8
	fmt.Stringer
}](word string, first, last T) (value T, ok bool) {
	for v := first; v <= last; v++ {
		if v.String() == word {
			return v, true
		}
	}
	return 0, word == ""
}

// The line of bridge notification ls --sent --json. Fields are absent when unknown; one that is
// damaged has nothing but its ID, its set and the state "damaged".
type jsonSent struct {
	ID         int64  `json:"id"`
	Set        string `json:"set"`
	Submission int64  `json:"submission,omitempty"`
	Recipient  string `json:"notification-recipient,omitempty"`
	State      string `json:"state"`
	Tries      int    `json:"tries,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Created    string `json:"created,omitempty"`
	Due        string `json:"due,omitempty"`
}

func printSent(w io.Writer, n *submission.OutgoingNotification, l *listing) error {
	if n.State == 0 && !l.asJSON {
		return printDamaged(w, n.ID, n.Set)
	}
	recipient, reason := daemon.Redact(n.Recipient), daemon.Redact(n.Reason)
	if l.asJSON {
		line := jsonSent{ID: n.ID, Set: n.Set, Submission: n.Submission, Recipient: recipient, State: n.State.String(), Tries: n.Tries, Reason: reason}
		if n.State != 0 {
			line.Created = n.Created.String()
		}
		if n.State != 0 && n.Due > 0 {
			line.Due = n.Due.String()
		}
		return printJSON(w, line)
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %-9s  %s  submission %d  %s  %s\n", n.ID, stamp(n.Created.Time()), n.State, n.Set, n.Submission, l.brief(recipient), l.brief(dropRepeat(reason)))
	return err
}

// The line of bridge notification ls --received --json. Fields are absent when
// unknown; one that is damaged has nothing but its ID, its set and the verdict "damaged".
type jsonReceived struct {
	ID               int64  `json:"id"`
	Set              string `json:"set"`
	Verdict          string `json:"verdict"`
	Submission       int64  `json:"submission,omitempty"`
	Outcome          string `json:"outcome,omitempty"`
	SourceIdentifier string `json:"source-identifier,omitempty"`
	Sequence         string `json:"sequence,omitempty"`
	Submitter        string `json:"submitter,omitempty"`
	Email            string `json:"email-address,omitempty"`
	Assigned         string `json:"assigned-identifier,omitempty"`
	Reason           string `json:"reason,omitempty"`
	First            string `json:"first,omitempty"`
	Last             string `json:"last,omitempty"`
	Times            int    `json:"times,omitempty"`
}

func printReceived(w io.Writer, n *submission.IncomingNotification, l *listing) error {
	switch damaged := n.Verdict == 0; {
	case damaged && l.asJSON:
		return printJSON(w, jsonReceived{ID: n.ID, Set: n.Set, Verdict: n.Verdict.String()})
	case damaged:
		return printDamaged(w, n.ID, n.Set)
	}
	reason := daemon.Redact(n.Reason)
	if l.asJSON {
		line := jsonReceived{ID: n.ID, Set: n.Set, Verdict: n.Verdict.String(), Submission: n.Submission, Outcome: n.Outcome.String(),
			SourceIdentifier: n.SourceIdentifier, Assigned: n.Assigned, Reason: reason, First: n.First.String(), Last: n.Last.String(), Times: n.Times}
		var err error
		if line.Sequence, line.Submitter, line.Email, err = api.SourceTexts(n.SourceXML); err != nil {
			return fmt.Errorf("notification %d: %w", n.ID, err)
		}
		return printJSON(w, line)
	}
	said := n.Outcome.String()
	if more := cmp.Or(n.Assigned, reason); more != "" {
		said += ": " + l.brief(dropRepeat(more))
	}
	if n.Submission != 0 {
		said += fmt.Sprintf("; of submission %d", n.Submission)
	}
	if n.Times > 1 {
		said += fmt.Sprintf("; %d times", n.Times)
	}
	_, err := fmt.Fprintf(w, "%6d  %s  %-12s  %s  %s  %s\n", n.ID, stamp(n.Last.Time()), n.Verdict, n.Set, l.brief(cmp.Or(n.SourceIdentifier, "(no identifier)")), said)
	return err
}
