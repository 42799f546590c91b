package ingest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

// ingestReview accepts a request provisionally, until somebody decides.
func (d *Server) ingestReview(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	if err := d.checkRecipient(ctx, r.Recipient); err != nil {
		return nil, err
	}
	digest := requestDigest(r)
	s, err := d.previous(ctx, d.Store, digest)
	if err != nil {
		return nil, err
	}
	if s != nil { // nothing has to be written, whatever would be said of the record now
		return d.answer(s, r.Source)
	}
	reason, err := d.rejectReason(ctx, &r.Record)
	if err != nil {
		return nil, err
	}
	if reason == "" && r.Recipient == "" {
		reason = "needs a notification-recipient"
	}
	if reason != "" {
		return d.conclude(ctx, r, reason)
	}
	queued, err := d.newSubmission(ctx, r, digest)
	if err != nil {
		return nil, err
	}
	*queued, _ = submission.Apply(*queued, submission.Review{}, d.now())
	if err := d.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if s, err = d.previous(ctx, tx, digest); err != nil || s != nil { // it may have come twice at once
			return err
		}
		s = queued
		batch := d.batch()
		batch.Updates = []submission.Update{{Submission: *queued}}
		_, err = tx.Write(ctx, batch)
		return err
	}); err != nil {
		return nil, fmt.Errorf("log a submission: %w", err)
	}
	return d.answer(s, r.Source)
}

// previous returns the submission that a request with a digest is a repeat of, nil when
// it is a new one. What the Server could not send on while it was a gateway is a new one.
func (d *Server) previous(ctx context.Context, q queries, digest [32]byte) (*submission.Submission, error) {
	s, err := d.newest(ctx, q, digest)
	if err != nil || s != nil && s.State == submission.StateUnsent {
		return nil, err
	}
	return d.repeatOf(ctx, q, s)
}

// Verdict is the decision on a submission under review.
type Verdict struct {
	ID int64
	// Accept it under the identifier Assigned ("" is the one that mode library would
	// give it), or reject it for Reason ("" is none).
	Accept           bool
	Assigned, Reason string
	// Replace: Assigned may be the identifier of somebody else's record.
	Replace bool
}

// Decide decides on a submission under review: one that was received and never sent on,
// whatever the mode is now. Nothing else ends such a submission; one that was sent on is
// decided by the server that it was sent to. The same decision twice is nil; for another
// one the error names the decision in force. When it returns nil the decision is
// committed, and the submitter will be notified.
func (d *Server) Decide(ctx context.Context, v Verdict) error {
	disposition := &sip.Disposition{Outcome: sip.Rejected, Reason: v.Reason}
	if v.Accept {
		if err := checkAssigned(v.Assigned); err != nil {
			return err
		}
		disposition = &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: v.Assigned}
	}
	if len(v.Reason) > submission.MaxText {
		return fmt.Errorf("the reason has %d bytes: at most %d are allowed", len(v.Reason), submission.MaxText)
	}
	_, _, err := d.resolve(ctx, incoming{id: v.ID, disposition: disposition, check: func(ctx context.Context, tx *store.Tx, s *submission.Submission) (bool, error) {
		if err := d.mayDecide(ctx, tx, s, disposition); err != nil {
			return false, err
		}
		if v.Accept && v.Assigned != "" && !v.Replace {
			if err := d.checkFree(ctx, tx, s, v.Assigned); err != nil {
				return false, err
			}
		}
		gone, err := withdrawn(ctx, tx, s)
		if err == nil && gone { // else it would seem that the record is published
			err = fmt.Errorf("submission %d has been accepted already, as %s, and that record has been withdrawn since: to publish it again, it must be submitted again", s.ID, s.Assigned)
		}
		return false, err
	}})
	return err
}

// checkFree refuses an identifier that another record of the set has: accepting the
// submission under it would replace that record. A record is the same one, and no other, if
// it was accepted under the identifier for the same source element, submitter included, or
// if library mode would give it that identifier.
func (d *Server) checkFree(ctx context.Context, tx *store.Tx, s *submission.Submission, assigned string) error {
	if s.Assigned == assigned {
		return nil
	}
	// A record that is pending, or that this transaction adds, has no event to be read.
	presence, err := tx.Presence(ctx, d.Source, assigned)
	if err != nil {
		return err
	}
	other := "another record"
	switch ev, err := d.Store.Record(ctx, d.Set, event.Key(assigned)); {
	case err == nil && ev.Origin.SourceIdentifier != "":
		other += fmt.Sprintf(", whose identifier at its source is %q", ev.Origin.SourceIdentifier)
	case errors.Is(err, fs.ErrNotExist) && presence == event.NeverPresent:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	own, err := d.isOwn(ctx, tx, s, assigned)
	if err != nil || own {
		return err
	}
	return fmt.Errorf("%q is the identifier of %s: assign another one, or none to have one assigned, or use --replace to replace that record", assigned, other)
}

// isOwn reports whether a record was submitted with the same source element.
func (d *Server) isOwn(ctx context.Context, q queries, s *submission.Submission, assigned string) (bool, error) {
	if !submission.Versioned(s) {
		return false, nil
	}
	source, err := sourceOf(s)
	if err != nil || d.assign(source) == assigned {
		return err == nil, err
	}
	first := *s
	first.ID = 0 // any version of it
	return q.HasNewerVersion(ctx, &first, []submission.State{submission.StateAccepted}, assigned)
}

// mayDecide returns why a submission cannot be decided so. It completes a disposition
// without an assigned identifier.
func (d *Server) mayDecide(ctx context.Context, tx *store.Tx, s *submission.Submission, disposition *sip.Disposition) error {
	accept := disposition.Outcome == sip.Accepted
	switch {
	case s.Source != d.Source:
		return fmt.Errorf("submission %d is not one to set %s", s.ID, d.Set)
	case !s.UnderReview():
		return fmt.Errorf("submission %d is not under review: it was passed on to an ingest server, whose decision it is", s.ID)
	case s.State == submission.StateRejected && accept:
		return fmt.Errorf("submission %d has been rejected already (%s): that stays in force", s.ID, s.Reason)
	case s.State == submission.StateAccepted && (!accept || disposition.AssignedIdentifier != "" && disposition.AssignedIdentifier != s.Assigned):
		return fmt.Errorf("submission %d has been accepted already, as %s: that stays in force", s.ID, s.Assigned)
	case s.State == submission.StateAccepted:
		disposition.AssignedIdentifier = s.Assigned
	case accept && disposition.AssignedIdentifier == "":
		var err error
		disposition.AssignedIdentifier, err = IdentifierOf(ctx, tx, d.Feed, s)
		return err
	}
	return nil
}

// IdentifierOf returns the identifier under which a submission to a set with a feed id is
// accepted if nobody assigns another one: that of the last accepted version of its
// record, else the one that mode library gives.
func IdentifierOf(ctx context.Context, q queries, feed string, s *submission.Submission) (string, error) {
	if submission.Versioned(s) {
		accepted, err := q.Submissions(ctx, submission.Query{Source: s.Source, Subject: s.Subject(), States: []submission.State{submission.StateAccepted}, Newest: true, Limit: 1})
		if err != nil {
			return "", err
		}
		if len(accepted) > 0 {
			return accepted[0].Assigned, nil
		}
	}
	source, err := sourceOf(s)
	if err != nil {
		return "", err
	}
	return (&Server{Feed: feed}).assign(source), nil
}

// checkAssigned returns an error for a text that cannot be an identifier.
func checkAssigned(assigned string) error {
	switch {
	case len(assigned) > submission.MaxText:
		return fmt.Errorf("the identifier has %d bytes: at most %d are allowed", len(assigned), submission.MaxText)
	case !utf8.ValidString(assigned):
		return errors.New("the identifier is not in UTF-8")
	case strings.TrimSpace(assigned) != assigned:
		return fmt.Errorf("the identifier %q has white space at an end", assigned)
	case strings.ContainsFunc(assigned, unicode.IsControl):
		return fmt.Errorf("the identifier %q has control characters", assigned)
	}
	return nil
}
