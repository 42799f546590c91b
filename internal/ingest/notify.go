package ingest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// Notify takes a disposition in: for the submission whose token it names; else for
// the record that it tells of, if there is somewhere to fetch it from; else to be
// shown. It returns nil only when that is committed. The same notification again
// adds nothing, but that such a record is fetched again unless it is withdrawn.
func (d *Server) Notify(ctx context.Context, caller sip.Caller, disp *sip.Disposition) error {
	if err := d.mayNotify(ctx, caller.Token); err != nil {
		return err
	}
	if disp.Outcome == sip.ProvisionallyAccepted {
		return &sip.Fault{Code: sip.Client, Path: "ingest-disposition/provisionally-accepted",
			Text: "the disposition of a notification must not be provisionally accepted: send the ultimate one"}
	}
	disp, err := submission.Storable(disp)
	if err != nil {
		return err
	}
	note := submission.Incoming(d.Set, caller.Token, disp)
	s, err := d.submissionByToken(ctx, caller.Token)
	if err != nil {
		return err
	}
	if s == nil {
		if err := d.takeQuota(&caller, int64(len(note.SourceXML)+len(note.Reason)+len(note.Assigned))); err != nil {
			return err
		}
		return d.unmatched(ctx, disp, note)
	}
	find := func(ctx context.Context) (*event.Submission, error) { return d.Store.Submission(ctx, s.ID) }
	_, err = d.resolve(ctx, incoming{find: find, disposition: disp, notification: note})
	return err
}

// mayNotify refuses notifications where none are offered, but those with a token:
// what was sent on before the mode was another one, or while there was a target,
// still gets its disposition.
func (d *Server) mayNotify(ctx context.Context, token string) error {
	if d.Offers().Notify {
		return nil
	}
	s, err := d.submissionByToken(ctx, token)
	if err == nil && s == nil {
		err = &sip.Fault{Code: sip.Client, Path: "ingest-disposition", Text: "this service is an ingest server: it offers get-properties and ingest, and no notify"}
	}
	return err
}

// submissionByToken returns the submission of the set that has a token, nil when there is
// none.
func (d *Server) submissionByToken(ctx context.Context, token string) (*event.Submission, error) {
	if token == "" {
		return nil, nil
	}
	s, err := d.Store.SubmissionByToken(ctx, token)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case s.Set != d.Set:
		return nil, nil
	}
	return s, nil
}

// unmatched takes in a notification that belongs to no submission. Whoever knows
// the token of one is no stranger; this one knows none.
func (d *Server) unmatched(ctx context.Context, disp *sip.Disposition, note *event.IncomingNotification) error {
	note.Anonymous = d.anonymous()
	var items []event.Item
	switch {
	case disp.Outcome == sip.Rejected:
		note.Verdict = event.NotificationRejected
	case d.RecordURL == "":
		note.Verdict = event.NotificationUncorrelated
	default:
		o, err := translate.FromDisposition(disp.AssignedIdentifier, d.RecordURL, disp.Source, d.now())
		if err != nil {
			note.Verdict, note.Reason = event.NotificationUncorrelated, err.Error()
			break
		}
		note.Verdict, note.Item = event.NotificationRecord, 1
		items = []event.Item{{Observation: o}}
		if d.mirrors() {
			items[0].Pending = "not fetched yet"
		}
	}
	if _, err := d.batcher.append(ctx, d.Store, d.batch(items, &event.SubmissionBatch{Incoming: []event.IncomingNotification{*note}})); err != nil {
		return fmt.Errorf("log a notification: %w", err)
	}
	if len(items) > 0 && items[0].Pending != "" && d.Pending != nil {
		d.Pending()
	}
	return nil
}

func (d *Server) mirrors() bool { return d.Content == 0 || d.Content == event.Mirror }

// incoming is an ultimate disposition of a submission: from a notification, the reply
// to a request, a reviewer or an operator.
type incoming struct {
	// find returns the submission as it is now.
	find        func(context.Context) (*event.Submission, error)
	disposition *sip.Disposition
	// notification that it came in, to be completed with its verdict; nil when it came
	// otherwise.
	notification *event.IncomingNotification
	// relayed: the submitter gets the disposition as the reply to the own request.
	relayed bool
	// settled: an operator knows what the ingest server has decided, whatever is in
	// force; settles is the ID of the notification that says so, 0 is none.
	settled bool
	settles int64
}

// resolve commits what follows from a disposition for its submission, and decides
// again when somebody else has changed the submission meanwhile. It returns the
// submission with the state that is then in force.
func (d *Server) resolve(ctx context.Context, in incoming) (*event.Submission, error) {
	for {
		s, err := in.find(ctx)
		if err != nil {
			return nil, err
		}
		next, err := d.commitIncoming(ctx, s, &in)
		switch {
		case err != nil:
			return nil, err
		case next != nil:
			return next, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

// commitIncoming commits what follows from a disposition for a submission as it was
// found, in one transaction: the state; the record, if it was accepted here and no
// newer version of it was; the event, if it was rejected; the notification that its
// submitter gets; and the one that was received. It returns the submission as it is
// then, and nil when somebody else has changed it meanwhile.
func (d *Server) commitIncoming(ctx context.Context, s *event.Submission, in *incoming) (*event.Submission, error) {
	disposition := in.disposition
	next, effects := submission.Apply(*s, submission.Disposition{State: submission.StateAfter(disposition), Assigned: disposition.AssignedIdentifier, Reason: disposition.Reason,
		Relayed: in.relayed, Settled: in.settled}, d.now())
	if !effects.Changed && in.notification == nil {
		return s, nil
	}
	if (effects.Resolution == event.Resolves || in.settled) && s.Source == d.Source && submission.Versioned(s) {
		// Of two versions that are accepted at the same time each has to know of the
		// other.
		defer d.committing.lock(string(s.SourceXML))()
		now, err := d.Store.Submission(ctx, s.ID)
		if err != nil || now.Version != s.Version {
			return nil, err
		}
	}
	batch := d.batch(nil, &event.SubmissionBatch{})
	batch.Source = s.Source
	var note *event.IncomingNotification
	if in.notification != nil {
		own := *in.notification
		own.Submission, own.Verdict = s.ID, event.NotificationMatched
		note = &own
	}
	if effects.Changed {
		u := event.SubmissionUpdate{Submission: next, Rejected: effects.Rejected, Incoming: note, Settled: in.settled, SettledNotification: in.settles}
		if effects.Resolution == event.Contradicts && !in.settled {
			u.Incoming = submission.Contradiction(s, disposition, note)
		}
		if effects.Publish && s.Source == d.Source {
			newer, err := delivery.HasNewerAccepted(ctx, d.Store, &next)
			if err != nil {
				return nil, err
			}
			if !newer {
				batch.Items = []event.Item{{Observation: d.accepted(&next)}}
				u.Item = 1
			}
		}
		if effects.Notify {
			var err error
			if u.Outgoing, err = d.notice(&next, disposition); err != nil {
				return nil, err
			}
		}
		batch.Submissions.Updates = []event.SubmissionUpdate{u}
	} else {
		batch.Submissions.Incoming = []event.IncomingNotification{*note}
	}
	appended, err := d.batcher.append(ctx, d.Store, batch)
	switch {
	case err != nil:
		return nil, fmt.Errorf("log a disposition of submission %d: %w", s.ID, err)
	case len(appended.Stale) > 0:
		return nil, nil
	}
	if effects.Notify && d.Notified != nil {
		d.Notified()
	}
	if effects.Import && d.ImportPending != nil {
		d.ImportPending(next.Source)
	}
	return &next, nil
}

// accepted returns what is published of an accepted submission.
func (d *Server) accepted(s *event.Submission) event.Observation {
	o := translate.FromSubmission(s, d.now())
	if d.RecordURL != "" {
		if href, err := translate.FillRecordURL(d.RecordURL, s.Assigned); err == nil {
			o.Representations[0].Href = href
		} else {
			d.log().Warn("the record has no URL at the library", "set", d.Set, "error", err)
		}
	}
	return o
}

// notice returns the notification that the submitter gets when the submission has
// ended.
func (d *Server) notice(s *event.Submission, disp *sip.Disposition) (*event.OutgoingNotification, error) {
	source, err := sourceOf(s)
	if err != nil {
		return nil, err
	}
	own := *disp
	own.Source = source
	now := event.MicrosOf(d.now())
	return &event.OutgoingNotification{
		Set: d.Set, Recipient: s.Recipient, Disposition: submission.Document(&own), State: event.DeliveryWaiting, Created: now, Due: now,
		// One submission has one ultimate disposition, so this names the mail.
		Message: fmt.Sprintf("submission-%d@%s.bridge", s.ID, strings.TrimPrefix(d.Feed, "urn:uuid:")),
	}, nil
}

// sourceOf returns the source element that a request came with, nil when it had
// none.
func sourceOf(s *event.Submission) (*sip.Source, error) {
	if s.SourceXML == nil {
		return nil, nil
	}
	source, err := sip.ParseSource(s.SourceXML)
	if err != nil {
		return nil, fmt.Errorf("read the stored source element of submission %d: %w", s.ID, err)
	}
	return source, nil
}
