package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

// recover finds out what was under way when the last run ended, and corrects the due
// times of submissions that wait. It returns before the first request is taken.
func (d *Server) recover(ctx context.Context) error {
	if err := d.recoverAllForwarding(ctx); err != nil {
		return err
	}
	limit := d.deadline()
	if d.Mode != Gateway {
		limit = max(limit, longestWait)
	}
	return delivery.LimitWaits(ctx, d.Store, d.Source, d.now(), limit, d.sound)
}

// sound removes damaged submissions from rows that were read: nothing is done with them.
func (d *Server) sound(rows []submission.Submission) []submission.Submission {
	return d.damaged.Remove(d.log().With("set", d.Set), rows)
}

// longestWait is how long something may wait that was sent on before the set had another mode:
// the deadline that the gateway had is not known, and a longer wait is of a clock that was ahead.
const longestWait = 366 * 24 * time.Hour

// doDue does what is due, and returns when something is due next; the zero time when
// nothing is.
func (d *Server) doDue(ctx context.Context) (next time.Time, err error) {
	// First save the results of requests that the log could not store before.
	d.gateway.mu.Lock()
	unsaved := slices.Collect(maps.Keys(d.gateway.unsaved))
	d.gateway.mu.Unlock()
	for _, request := range unsaved {
		if err := d.recoverForwarding(ctx, request); err != nil {
			return next, err
		}
	}
	if err := d.recoverAllForwarding(ctx); err != nil {
		return next, err
	}
	now := d.now()
	if err := delivery.Expire(ctx, d.Store, d.Source, now, d.sound, nil); err != nil {
		return next, err
	}
	passed := submission.Submission{Due: event.MicrosOf(now), ID: math.MaxInt64}
	for _, state := range []submission.State{submission.StateInDoubt, submission.StateProvisional} {
		first, err := d.Store.SubmissionsDue(ctx, d.Source, state, math.MaxInt64, &passed, 1)
		if err != nil {
			return time.Time{}, err
		}
		for _, s := range d.sound(first) { // duePoll finds what is behind a damaged one
			if t := s.Due.Time(); next.IsZero() || t.Before(next) {
				next = t
			}
		}
	}
	return next, nil
}

// pageLimit is how many submissions are read at a time.
const pageLimit = 1000

// recoverAllForwarding recovers the requests that the log has in the state forwarding
// though no goroutine sends them: the process was killed, or the reply could not be
// committed.
func (d *Server) recoverAllForwarding(ctx context.Context) error {
	q := submission.Query{Source: d.Source, States: []submission.State{submission.StateForwarding}, Limit: pageLimit, Damaged: true}
	for whole := true; whole; {
		page, err := d.Store.Submissions(ctx, q)
		if err != nil {
			return err
		}
		if whole = len(page) == pageLimit; whole {
			q.After = page[len(page)-1].ID
		}
		page = d.sound(page)
		for i := range page {
			if err := d.recoverForwarding(ctx, page[i].Request); err != nil {
				return err
			}
		}
	}
	return nil
}

// recoverForwarding recovers one of them, unless it is under way after all.
func (d *Server) recoverForwarding(ctx context.Context, request [32]byte) error {
	if d.gateway.requests.inFlight(request) {
		return nil
	}
	var err error
	_, _ = d.gateway.requests.do(ctx, request, func() (*submission.Submission, error) {
		if _, err = d.recoverNewest(ctx, request, func() bool { return d.gateway.requests.waitedFor(request) }); err != nil {
			return nil, err
		}
		return nil, errRecovered
	})
	if errors.Is(err, store.ErrDamaged) { // it must not keep the others waiting
		d.dropUnsaved(request, err)
		return nil
	}
	return err
}

// dropUnsaved gives up the reply to a request whose submission, or what it needs, is damaged, and
// logs it: the ingest server may not send it again.
func (d *Server) dropUnsaved(request [32]byte, err error) {
	unsaved, found := d.gateway.unsavedReply(request)
	if !found {
		return
	}
	d.gateway.clear(request)
	outcome, assigned, reason, identifier := "none", "", "", ""
	if r := unsaved.reply; r.Disposition != nil {
		outcome, assigned, reason = r.Disposition.Outcome.String(), r.Disposition.AssignedIdentifier, r.Disposition.Reason
		identifier = submission.SourceTexts(r.Disposition.Source)["source/source-identifier"]
	} else {
		reason = delivery.FailureText(r.Err)
	}
	d.log().Error("the reply of the ingest server cannot be stored, since the log is damaged there: run bridge verify, and settle the submission when that is repaired",
		"set", d.Set, "source_identifier", submission.Clip(identifier), "outcome", outcome, "assigned", assigned, "reason", submission.Clip(reason), "error", err)
}

// errRecovered tells a request that has waited for its recovery to go on: what was recovered
// may be no answer to it.
var errRecovered = errors.New("the request was recovered")

// recoverNewest returns the newest submission of a request, nil if there is none. Before
// that it commits the reply that is not in the log yet; if there is none, and the log
// still has the submission in the state forwarding, it becomes in doubt. submitterWaits
// reports whether a submitter waits for the reply. Only the goroutine that has the
// request under way may call it; so of several submissions of a request only the newest
// can be being sent.
func (d *Server) recoverNewest(ctx context.Context, request [32]byte, submitterWaits func() bool) (*submission.Submission, error) {
	s, err := d.newest(ctx, d.Store, request)
	if err != nil {
		return nil, err
	}
	unsaved, found := d.gateway.unsavedReply(request)
	switch {
	case s == nil, found && s.ID <= unsaved.after:
		d.gateway.clear(request) // its commit has failed indeed
	case found:
		return d.recordReply(ctx, s, unsaved.reply, submitterWaits())
	case s.State == submission.StateForwarding:
		return d.recordReply(ctx, s, delivery.Reply{Err: errLeft}, submitterWaits())
	}
	return s, nil
}

// recordReply commits the result of sending a submission on, and returns the submission
// as it is stored then. A result that cannot be committed is kept in unsaved. relayed
// means that the submitter is about to be answered.
func (d *Server) recordReply(ctx context.Context, s *submission.Submission, r delivery.Reply, relayed bool) (*submission.Submission, error) {
	d.gateway.save(s.Request, unsavedReply{r, s.ID - 1})
	id := s.ID
	var err error
	switch {
	case r.Disposition == nil:
		s, err = d.apply(ctx, id, submission.Failure{Class: r.Failure(), Reason: delivery.FailureText(r.Err), Deadline: d.deadline()})
	case r.Disposition.Outcome == sip.ProvisionallyAccepted:
		s, err = d.apply(ctx, id, submission.Disposition{State: submission.StateProvisional, Deadline: d.deadline(), Reply: true})
	default:
		_, s, err = d.resolve(ctx, incoming{id: id, disposition: r.Disposition, relayed: relayed})
	}
	if err != nil {
		return nil, err
	}
	d.gateway.clear(s.Request)
	return s, nil
}

func (d *Server) deadline() time.Duration {
	if d.Deadline > 0 {
		return d.Deadline
	}
	return delivery.DefaultDeadline
}

// apply commits the effects of an input on a submission as it is then, and returns it as
// it is stored after that.
func (d *Server) apply(ctx context.Context, id int64, in submission.Input) (s *submission.Submission, err error) {
	err = d.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if s, err = tx.Submission(ctx, id); err != nil {
			return err
		}
		next, effects := submission.Apply(*s, in, d.now())
		if !effects.Changed {
			return nil
		}
		batch := d.batch()
		batch.Updates = []submission.Update{{Submission: next}}
		next.Version++
		s = &next
		_, err = tx.Write(ctx, batch)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("log the progress of a submission: %w", err)
	}
	return s, nil
}
