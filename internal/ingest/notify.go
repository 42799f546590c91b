package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// Notify commits a disposition: for the submission whose token it has; else for the
// record that it names, if that can be fetched from RecordURL; else only to be shown. It
// returns nil only when that is committed. The same notification again adds nothing,
// except that such a record is fetched again unless it is withdrawn.
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
	_, _, err = d.resolve(ctx, incoming{id: s.ID, disposition: disp, notification: note})
	return err
}

// mayNotify refuses notifications where none are offered, except those with a token: a
// request that was sent on in another mode, or for a target, still gets its disposition.
func (d *Server) mayNotify(ctx context.Context, token string) error {
	if d.Offers().Notify {
		return nil
	}
	s, err := d.submissionByToken(ctx, token)
	if err == nil && s == nil {
		err = &sip.Fault{Code: sip.Client, Path: "ingest-disposition", Text: "this service is an ingest server: it offers get-properties and ingest, not notify"}
	}
	return err
}

// submissionByToken returns the submission of the set that has a token, nil when there is
// none.
func (d *Server) submissionByToken(ctx context.Context, token string) (*submission.Submission, error) {
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

// unmatched commits a notification that belongs to no submission. A caller that has the
// token of a submission is identified by it; this caller has shown none.
func (d *Server) unmatched(ctx context.Context, disp *sip.Disposition, note *submission.IncomingNotification) error {
	note.Anonymous = d.anonymous()
	pending := false
	switch {
	case disp.Outcome == sip.Rejected:
		note.Verdict = submission.NotificationRejected
	case d.RecordURL == "":
		note.Verdict = submission.NotificationUncorrelated
	default:
		o, err := translate.FromDisposition(disp.AssignedIdentifier, d.RecordURL, disp.Source, d.now())
		if err != nil {
			note.Verdict, note.Reason = submission.NotificationUncorrelated, err.Error()
			break
		}
		note.Verdict, note.Item = submission.NotificationRecord, &event.Item{Observation: o}
		if pending = d.Content == 0 || d.Content == event.Mirror; pending {
			note.Item.Pending = "not fetched yet"
		}
	}
	batch := d.batch()
	batch.Incoming = []submission.IncomingNotification{*note}
	if _, err := d.Store.Write(ctx, batch); err != nil {
		return fmt.Errorf("log a notification: %w", err)
	}
	if pending && d.Pending != nil {
		d.Pending()
	}
	return nil
}

// incoming is an ultimate disposition of a submission: from a notification, the reply
// to a request, a reviewer or an operator.
type incoming struct {
	// id is the submission's.
	id int64
	// check returns why the disposition is refused, or completes it; nil allows all. done
	// means that it is in force already.
	check       func(ctx context.Context, tx *store.Tx, s *submission.Submission) (done bool, err error)
	disposition *sip.Disposition
	// notification that it came in, to be completed with its verdict; nil when it came
	// otherwise.
	notification *submission.IncomingNotification
	// relayed: the submitter gets the disposition as the reply to its own request.
	relayed bool
	// settled: an operator has found out what the ingest server decided, whatever is in
	// force; settles is the ID of the notification with that decision, 0 is none.
	settled bool
	settles int64
}

// resolve commits the effects of a disposition on its submission, as that is then, in one
// transaction: the state; the record, if it was accepted here and no newer version of it
// was; the event, if it was rejected; the notification that its submitter gets; and the
// one that was received. It returns the submission as it was before, and as it is after.
func (d *Server) resolve(ctx context.Context, in incoming) (before, after *submission.Submission, err error) {
	var effects submission.Effects
	err = d.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		s, err := tx.Submission(ctx, in.id)
		if err != nil {
			return fmt.Errorf("submission %d of set %s: %w", in.id, d.Set, err)
		}
		before, after = s, s
		if in.check != nil {
			if done, err := in.check(ctx, tx, s); done || err != nil {
				return err
			}
		}
		var input submission.Input = submission.SettleUnsent{Reason: settledUnsent}
		if in.disposition != nil {
			input = submission.Disposition{State: submission.StateAfter(in.disposition), Assigned: in.disposition.AssignedIdentifier, Reason: in.disposition.Reason,
				Relayed: in.relayed, Settled: in.settled}
		}
		next, does := submission.Apply(*s, input, d.now())
		batch := &submission.Batch{Source: s.Source, URL: d.URL}
		note := in.notification
		if note != nil {
			note.Submission, note.Verdict = s.ID, submission.NotificationMatched
		}
		if note != nil && does.Resolution != submission.Resolves {
			if more, err := tx.KeepsMore(ctx, s, note.Digest); err != nil {
				return err
			} else if !more {
				return &sip.Fault{Code: sip.Client, Path: "ingest-disposition", Text: "this submission has its ultimate disposition, and too many different notifications of it have come: no other one is kept"}
			}
		}
		switch {
		case does.Changed:
			u, err := d.update(ctx, tx, &next, does, &in)
			if err != nil {
				return err
			}
			batch.Updates = []submission.Update{u}
		case note != nil:
			batch.Incoming = []submission.IncomingNotification{*note}
		default:
			return nil
		}
		effects, after = does, &next
		_, err = tx.Write(ctx, batch)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if effects.Notify && d.Notified != nil {
		d.Notified()
	}
	if effects.Import && d.ImportPending != nil {
		d.ImportPending(after.Source)
	}
	return before, after, nil
}

// update returns the update of a submission that a disposition has changed.
func (d *Server) update(ctx context.Context, tx *store.Tx, next *submission.Submission, effects submission.Effects, in *incoming) (submission.Update, error) {
	u := submission.Update{Submission: *next, Rejected: effects.Rejected, Incoming: in.notification, Settled: in.settled, SettledNotification: in.settles}
	if effects.Resolution == submission.Contradicts && !in.settled {
		u.Incoming = submission.Contradiction(next, in.disposition, in.notification)
	}
	if effects.Publish {
		newer, err := tx.HasNewerAccepted(ctx, next)
		if err != nil {
			return u, err
		}
		if !newer {
			u.Item = &event.Item{Observation: d.accepted(next)}
		}
	}
	if effects.Notify {
		var err error
		if u.Outgoing, err = d.outgoing(next, in.disposition); err != nil {
			return u, err
		}
	}
	return u, nil
}

// accepted returns the observation that is published of an accepted submission.
func (d *Server) accepted(s *submission.Submission) event.Observation {
	o := translate.FromSubmitted(&translate.Submitted{Assigned: s.Assigned, SourceIdentifier: s.SourceIdentifier, Title: s.Title, Content: s.Content, Length: s.Length}, d.now())
	if d.RecordURL != "" {
		if href, err := translate.FillRecordURL(d.RecordURL, s.Assigned); err == nil {
			o.Representations[0].Href = href
		} else {
			d.log().Warn("the record has no URL at the library", "set", d.Set, "error", err)
		}
	}
	return o
}

// outgoing returns the notification that the submitter gets when the submission has
// ended.
func (d *Server) outgoing(s *submission.Submission, disp *sip.Disposition) (*submission.OutgoingNotification, error) {
	source, err := sourceOf(s)
	if err != nil {
		return nil, err
	}
	own := *disp
	own.Source = source
	now := event.MicrosOf(d.now())
	return &submission.OutgoingNotification{
		Set: d.Set, Recipient: s.Recipient, Disposition: submission.Document(&own), State: submission.DeliveryWaiting, Created: now, Due: now,
		// A submission has one ultimate disposition, so this is a stable Message-ID for
		// the mail.
		Message: fmt.Sprintf("submission-%d@%s.bridge", s.ID, strings.TrimPrefix(cmp.Or(d.Epoch, d.Feed), "urn:uuid:")),
	}, nil
}

// sourceOf returns the source element of a submission's request, nil when it had none.
func sourceOf(s *submission.Submission) (*sip.Source, error) {
	if s.SourceXML == nil {
		return nil, nil
	}
	source, err := sip.ParseSource(s.SourceXML)
	if err != nil {
		return nil, fmt.Errorf("read the stored source element of submission %d: %w", s.ID, err)
	}
	return source, nil
}
