package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

// Settlement is what became of a submission at its ingest server, as an operator has
// found out: by asking there, or because a notification without a token can only be about
// it.
type Settlement struct {
	// Outcome is StateAccepted, under Assigned; StateRejected, for Reason, which may be
	// ""; StateUnsent when the server has not taken it; 0 for the outcome of
	// Notification.
	Outcome          submission.State
	Assigned, Reason string
	// Notification is the ID of a notification of the set that belongs to no submission;
	// 0 is none.
	Notification int64
	// Told settles nothing: the submitter has learned the decision otherwise, or cannot be
	// reached any more, and its notification is not sent any more. All else is 0 then.
	Told bool
}

// Settle settles a submission that was sent on and whose ultimate disposition is missing,
// or contradicted. It has the effects of a notification, except that a submitter who has
// a disposition already gets no other one. The same settlement twice is nil. A record
// that was published by a contradicted disposition stays: the submission that is returned
// is as it was before.
func (d *Server) Settle(ctx context.Context, id int64, how Settlement) (before *submission.Submission, err error) {
	if how.Notification != 0 {
		if err := d.fromNotification(ctx, d.Store, id, &how); err != nil {
			return nil, err
		}
	}
	in := incoming{id: id, settled: true, settles: how.Notification, check: func(ctx context.Context, tx *store.Tx, s *submission.Submission) (bool, error) {
		now := how
		if now.Notification != 0 { // another submission may have been settled by it since
			if err := d.fromNotification(ctx, tx, id, &now); err != nil {
				return false, err
			}
		}
		return d.maySettle(s, &now)
	}}
	switch how.Outcome {
	case submission.StateAccepted:
		if how.Assigned == "" {
			return nil, errors.New("give the identifier under which the ingest server has accepted it")
		}
		if err := checkAssigned(how.Assigned); err != nil {
			return nil, err
		}
		in.disposition = &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: how.Assigned}
	case submission.StateRejected:
		in.disposition = &sip.Disposition{Outcome: sip.Rejected, Reason: how.Reason}
	}
	if in.disposition != nil {
		if _, err := submission.Storable(in.disposition); err != nil {
			return nil, err
		}
	}
	before, _, err = d.resolve(ctx, in)
	return before, err
}

const settledUnsent = "the ingest server has not taken it, as was found out by hand"

// fromNotification takes the outcome from a notification that belongs to no submission.
func (d *Server) fromNotification(ctx context.Context, q queries, id int64, how *Settlement) error {
	n, err := q.IncomingNotification(ctx, how.Notification)
	switch {
	case err != nil:
		return err
	case n.Set != d.Set:
		return fmt.Errorf("notification %d is one to set %s, and the submission is of set %s", n.ID, n.Set, d.Set)
	case n.Submission != 0 && (n.Submission != id || n.Verdict != submission.NotificationSettled):
		return fmt.Errorf("notification %d belongs to submission %d", n.ID, n.Submission)
	case n.Submission != 0:
		how.Notification = 0 // a repeated settlement
	}
	how.Outcome, how.Assigned, how.Reason = n.Outcome, n.Assigned, n.Reason
	return nil
}

// isInForce reports whether the submission has ended as a settlement states.
func (how *Settlement) isInForce(s *submission.Submission) bool {
	_, effects := submission.Apply(*s, submission.Disposition{State: how.Outcome, Assigned: how.Assigned}, time.Time{})
	return effects.Resolution == submission.Repeats
}

// maySettle returns why a submission cannot be settled so, or done if it already is.
func (d *Server) maySettle(s *submission.Submission, how *Settlement) (done bool, err error) {
	switch {
	case s.Set != d.Set:
		return false, fmt.Errorf("submission %d is not one of set %s", s.ID, d.Set)
	case s.UnderReview():
		return false, fmt.Errorf("submission %d was sent to nobody: it is decided here, with bridge submission accept or reject", s.ID)
	case s.State == submission.StateUnsent && how.Outcome == submission.StateUnsent:
		return true, nil
	case s.State == submission.StateWaiting && s.Tries == 0, s.State == submission.StateForwarding, s.State == submission.StateUnsent, s.State == submission.StateReplaced:
		return false, fmt.Errorf("submission %d is %s: the ingest server does not have it yet, or a request is under way", s.ID, s.State)
	case how.Outcome == submission.StateUnsent && s.Promised():
		return false, fmt.Errorf("submission %d was accepted provisionally, and its submitter waits for the decision: settle it as rejected (--rejected), with the reason that the submitter is to have", s.ID)
	case s.State.Final() && s.Conflicts == 0 && how.isInForce(s):
		return how.Notification == 0, nil
	case s.State.Final() && s.Conflicts == 0:
		return false, fmt.Errorf("submission %d has been %s already%s, and nothing contradicts that: it stays in force", s.ID, s.State, as(s))
	case s.State.Final() && how.Outcome == submission.StateUnsent:
		return false, fmt.Errorf("submission %d was %s by the ingest server%s, so it was taken: give the disposition that is right", s.ID, s.State, as(s))
	}
	return false, nil
}

// as describes under which identifier a submission was accepted.
func as(s *submission.Submission) string {
	if s.State != submission.StateAccepted {
		return ""
	}
	return ", as " + s.Assigned
}

// Withdraw deletes a record that this Source has brought into the set: spam, or a record
// that must be taken down. That becomes an event of kind deleted, with the reason, unless
// another Source of the set has the record too (A15); and its content is not waited for
// any more. When it returns nil that is committed. Of the Server it needs only Set,
// Source, URL and Store.
//
// It is no ban. A record that is submitted or accepted after that is new and is published
// again; only repeats of earlier requests are not.
func (d *Server) Withdraw(ctx context.Context, identifier, reason string) error {
	if len(reason) > submission.MaxText {
		return fmt.Errorf("the reason has %d bytes: at most %d are allowed", len(reason), submission.MaxText)
	}
	// The time when the original was modified is unknown: the library may have it
	// unchanged.
	o := event.Observation{Record: identifier, Deleted: true}
	o.Order, _ = event.StampOf(d.now())
	var refused error
	if err := d.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		presence, err := tx.Presence(ctx, d.Source, identifier)
		switch {
		case err != nil:
			return err
		case presence == event.NeverPresent:
			refused = fmt.Errorf("set %s has no record %q from its SIP Source: see bridge log --set %s for the identifiers", d.Set, identifier, d.Set)
		case presence == event.Withdrawn:
			refused = fmt.Errorf("record %q of set %s has been withdrawn already: there is nothing to do", identifier, d.Set)
		}
		if refused != nil {
			return refused
		}
		_, err = tx.Append(ctx, &event.Batch{Source: d.Source, Mode: event.ModeSubmission, Documents: []event.Document{{URL: d.URL}},
			Items: []*event.Item{{Observation: o, Reason: reason}}})
		return err
	}); refused != nil {
		return refused
	} else if err != nil {
		return fmt.Errorf("log that record %q of set %s is withdrawn: %w", identifier, d.Set, err)
	}
	d.log().Info("a record was withdrawn", "set", d.Set, "record", identifier, "reason", reason)
	return nil
}

// withdrawn reports whether the record of an accepted submission has been withdrawn
// since.
func withdrawn(ctx context.Context, q queries, s *submission.Submission) (bool, error) {
	if s.State != submission.StateAccepted {
		return false, nil
	}
	presence, err := q.Presence(ctx, s.Source, s.Assigned)
	return presence == event.Withdrawn, err
}
