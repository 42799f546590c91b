package submit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pmh-bridge/bridge/event"
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
	disp, err := keepable(disp)
	if err != nil {
		return err
	}
	note := notification(d.Set, caller.Token, disp)
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
	_, _, err = d.resolve(ctx, incoming{find: find, disposition: disp, notification: note})
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

// keepable returns a disposition with a reason that is not too long for the log.
// The error is a *sip.Fault: the other texts cannot be cut.
func keepable(disp *sip.Disposition) (*sip.Disposition, error) {
	if err := checkTexts("ingest-disposition", disp.Source, disp.AssignedIdentifier); err != nil {
		return nil, err
	}
	if len(disp.Reason) <= maxText {
		return disp, nil
	}
	cut := *disp
	cut.Reason = strings.ToValidUTF8(disp.Reason[:maxText], "") + "..."
	return &cut, nil
}

// notification returns what the log keeps of one that came to a set.
func notification(set, token string, disp *sip.Disposition) *event.IncomingNotification {
	h := sha256.New()
	h.Write(binary.AppendUvarint(nil, uint64(len(token))))
	h.Write([]byte(token))
	h.Write(document(disp))
	n := &event.IncomingNotification{Set: set, Digest: [32]byte(h.Sum(nil)), Outcome: stateOf(disp), Assigned: disp.AssignedIdentifier, Reason: disp.Reason}
	if s := disp.Source; s != nil {
		n.SourceXML = sip.AppendSource(nil, s)
		if s.Identifier != nil {
			n.SourceIdentifier = *s.Identifier
		}
	}
	return n
}

// stateOf returns the state that an ultimate disposition leads to.
func stateOf(disp *sip.Disposition) event.State {
	if disp.Outcome == sip.Accepted {
		return event.StateAccepted
	}
	return event.StateRejected
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

// incoming is an ultimate disposition that has arrived for a submission: in a
// notification, as the reply to a request, or from whoever reviews it.
type incoming struct {
	// find returns the submission as it is now.
	find        func(context.Context) (*event.Submission, error)
	disposition *sip.Disposition
	// notification is the notification that it came in, to be completed with what
	// becomes of it; nil when it came otherwise.
	notification *event.IncomingNotification
	// relayed: the submitter gets the disposition as the reply to his own
	// request, so no notice is owed.
	relayed bool
	// settled: somebody knows what the ingest server has decided, whatever is in
	// force; settles is the notification that says so, 0 is none.
	settled bool
	settles int64
}

// resolve commits what follows from an arrival for its submission, in one
// transaction: the state; the record, if it is this set's to publish and was
// accepted; the event, if it was rejected; the notice that its sender is owed.
// When somebody else changes the submission meanwhile it is decided anew. It
// returns the submission with the state that is then in force.
func (d *Server) resolve(ctx context.Context, a incoming) (*event.Submission, event.Resolution, error) {
	for {
		s, err := a.find(ctx)
		if err != nil {
			return nil, 0, err
		}
		resolution := s.Resolve(stateOf(a.disposition), a.disposition.AssignedIdentifier)
		if resolution == event.Repeats && a.notification == nil {
			return s, resolution, nil
		}
		next, err := d.commitIncoming(ctx, s, resolution, &a)
		switch {
		case err != nil:
			return nil, 0, err
		case next != nil:
			return next, resolution, nil
		case ctx.Err() != nil:
			return nil, 0, ctx.Err()
		}
	}
}

// commitIncoming commits what follows from an arrival for a submission as it was found,
// and returns it as it is then; nil when somebody else has changed it meanwhile.
func (d *Server) commitIncoming(ctx context.Context, s *event.Submission, resolution event.Resolution, a *incoming) (*event.Submission, error) {
	if (resolution == event.Resolves || a.settled) && s.Source == d.Source && versioned(s) {
		// Of two versions that are accepted at the same time each has to know of the
		// other.
		defer d.committing.lock(string(s.SourceXML))()
		now, err := d.Store.Submission(ctx, s.ID)
		if err != nil || now.Version != s.Version {
			return nil, err
		}
	}
	b, next, err := d.updateFor(ctx, s, resolution, a)
	if err != nil {
		return nil, err
	}
	appended, err := d.batcher.append(ctx, d.Store, b)
	switch {
	case err != nil:
		return nil, fmt.Errorf("log a disposition of submission %d: %w", s.ID, err)
	case len(appended.Stale) > 0:
		return nil, nil
	}
	if len(b.Submissions.Updates) > 0 && b.Submissions.Updates[0].Outgoing != nil && d.Notified != nil {
		d.Notified()
	}
	if next.ImportPending && d.ImportPending != nil {
		d.ImportPending(next.Source)
	}
	return next, nil
}

// updateFor returns what is to be committed, and the submission as it is then.
func (d *Server) updateFor(ctx context.Context, s *event.Submission, resolution event.Resolution, a *incoming) (*event.Batch, *event.Submission, error) {
	b := d.batch(nil, &event.SubmissionBatch{})
	b.Source = s.Source
	var note *event.IncomingNotification
	if a.notification != nil {
		n := *a.notification
		n.Submission, n.Verdict = s.ID, event.NotificationMatched
		note = &n
	}
	next := *s
	step := event.SubmissionUpdate{Incoming: note, Settled: a.settled, SettledNotification: a.settles}
	switch {
	case a.settled && resolution == event.Repeats:
	case resolution == event.Repeats:
		b.Submissions.Incoming = []event.IncomingNotification{*note}
		return b, s, nil
	case resolution == event.Contradicts && !a.settled:
		next.Conflicts++
		step.Incoming = contradiction(s, a.disposition, note)
	default:
		if err := d.applyUltimate(ctx, &next, &step, b, a); err != nil {
			return nil, nil, err
		}
	}
	step.Submission = next
	b.Submissions.Updates = []event.SubmissionUpdate{step}
	return b, &next, nil
}

// contradiction is what the log keeps of a disposition that contradicts the one
// in force, whether it came in a notification or as a reply.
func contradiction(s *event.Submission, disp *sip.Disposition, note *event.IncomingNotification) *event.IncomingNotification {
	if note == nil {
		note = notification(s.Set, s.Token, disp)
		note.Submission = s.ID
	}
	note.Verdict = event.NotificationConflict
	return note
}

// applyDisposition takes a submission to the state that a disposition leads to. What a target
// has submitted is from then on owed to the set that takes it, if there is one.
func applyDisposition(s *event.Submission, to event.State, disposition *sip.Disposition) {
	s.Late = to.Final() && s.State == event.StateUnresolved
	s.State, s.Assigned, s.Reason, s.Due, s.Deadline = to, disposition.AssignedIdentifier, disposition.Reason, 0, 0
	s.ImportPending = to == event.StateAccepted && s.Seq != 0
}

// applyUltimate takes a submission to its end, with what belongs to that.
func (d *Server) applyUltimate(ctx context.Context, s *event.Submission, step *event.SubmissionUpdate, b *event.Batch, a *incoming) error {
	to := stateOf(a.disposition)
	told := s.State.Final() // its sender was told an ultimate disposition, and there is one only
	applyDisposition(s, to, a.disposition)
	switch {
	case to == event.StateRejected:
		step.Rejected = true
	case s.Source == d.Source:
		passed, err := hasNewerAccepted(ctx, d.Store, s)
		if err != nil {
			return err
		}
		if !passed {
			b.Items = []event.Item{{Observation: d.accepted(s)}}
			step.Item = 1
		}
	}
	if a.relayed || told {
		return nil
	}
	var err error
	step.Outgoing, err = d.notice(s, a.disposition)
	return err
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

// notice returns what the sender of a submission is owed when it has come to its
// end, nil when he named no recipient.
func (d *Server) notice(s *event.Submission, disp *sip.Disposition) (*event.OutgoingNotification, error) {
	if s.Recipient == "" {
		return nil, nil
	}
	source, err := sourceOf(s)
	if err != nil {
		return nil, err
	}
	own := *disp
	own.Source = source
	now := event.MicrosOf(d.now())
	return &event.OutgoingNotification{
		Set: d.Set, Recipient: s.Recipient, Disposition: document(&own), State: event.DeliveryWaiting, Created: now, Due: now,
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
