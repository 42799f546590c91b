package submit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// recover finds out what was under way when the last run ended. It returns
// before the first request is taken.
func (d *Desk) recover(ctx context.Context) error { return d.sweep(ctx) }

// tend does what is due, and returns when something is due next; the zero time
// when nothing is known to be.
func (d *Desk) tend(ctx context.Context) (time.Time, error) {
	if err := d.payUp(ctx); err != nil {
		return time.Time{}, err
	}
	if err := d.sweep(ctx); err != nil {
		return time.Time{}, err
	}
	now := d.now()
	doubtful, next, err := d.expire(ctx, event.MicrosOf(now))
	if err != nil {
		return time.Time{}, err
	}
	return next, d.resend(ctx, doubtful)
}

// payUp tells the log what came of requests when it could not take it.
func (d *Desk) payUp(ctx context.Context) error {
	for _, request := range d.gate.debts() {
		if err := d.settle(ctx, request); err != nil {
			return err
		}
	}
	return nil
}

// sweep settles what the log shows as being sent on, though nobody is at it: the
// process was killed, or its last word did not get into the log.
func (d *Desk) sweep(ctx context.Context) error {
	return d.each(ctx, event.SubmissionQuery{States: []event.State{event.StateForwarding}}, func(s []event.Submission) error {
		for i := range s {
			if err := d.settle(ctx, s[i].Request); err != nil {
				return err
			}
		}
		return nil
	})
}

// settle settles one of them, unless it is under way after all.
func (d *Desk) settle(ctx context.Context, request [32]byte) error {
	if d.gate.requests.underWay(request) {
		return nil
	}
	_, err := d.gate.requests.do(ctx, request, func() (*event.Submission, error) {
		return d.settled(ctx, request, gone)
	})
	return err
}

// gone: nobody is on the line, who is to be answered otherwise.
func gone() bool { return false }

// settled returns the submission that a request is a repeat of, nil if there is
// none, after it has told the log what is still owed to it. Only the one who
// has the request under way may call it.
func (d *Desk) settled(ctx context.Context, request [32]byte, here func() bool) (*event.Submission, error) {
	s, err := d.latest(ctx, request)
	if err != nil {
		return nil, err
	}
	r, owed := d.gate.owes(request)
	switch {
	case s == nil:
		d.gate.paid(request) // its commit has failed indeed
		return nil, nil
	case owed:
		return d.land(ctx, s, r, here())
	case s.State == event.StateForwarding:
		return d.land(ctx, s, reply{err: errLeft}, here())
	}
	return s, nil
}

// land commits what came of sending a submission on, and returns it as it is
// stored then. What the log does not take is kept for the next time. relayed
// tells that the submitter is about to be answered.
func (d *Desk) land(ctx context.Context, s *event.Submission, r reply, relayed bool) (*event.Submission, error) {
	d.gate.owe(s.Request, r)
	id := s.ID
	var err error
	if r.disposition != nil && r.disposition.Outcome != sip.ProvisionallyAccepted {
		s, _, err = d.resolve(ctx, arrival{
			find:        func(ctx context.Context) (*event.Submission, error) { return d.Store.Submission(ctx, id) },
			disposition: r.disposition,
			relayed:     relayed,
		})
	} else {
		s, err = d.change(ctx, id, func(s *event.Submission) bool { return d.progress(s, r) })
	}
	if err != nil {
		return nil, err
	}
	d.gate.paid(s.Request)
	return s, nil
}

// progress takes into a submission what came of sending it on, when that is no
// ultimate disposition. It returns false when nothing follows: a notification has
// been faster.
func (d *Desk) progress(s *event.Submission, r reply) bool {
	first := s.State == event.StateForwarding
	if !first && s.State != event.StateInDoubt {
		return false
	}
	now := d.now()
	switch {
	case r.disposition != nil:
		s.State, s.Reason = event.StateProvisional, ""
		if s.Recipient == "" {
			s.Reason = "accepted provisionally, although no notification-recipient was named: its decision can only be learned from the ingest server itself"
		}
		s.Deadline = event.MicrosOf(now.Add(d.deadline()))
		s.Due = s.Deadline
	case first && r.refused() || r.refusedForGood():
		s.State, s.Reason, s.Due, s.Deadline = event.StateUnsent, failureText(r.err), 0, 0
	default:
		s.State, s.Reason = event.StateInDoubt, failureText(r.err)
		if first {
			s.Deadline = event.MicrosOf(now.Add(d.deadline()))
			s.Due = d.resendAt(s)
			if d.ResendInDoubt && errors.Is(r.err, errLeft) {
				s.Due = event.MicrosOf(now)
			}
		}
	}
	return true
}

// The back-off of what is in doubt, and how long a decision may take where the
// Desk says nothing.
const (
	resendFirst     = time.Minute
	resendLongest   = time.Hour
	defaultDeadline = 7 * 24 * time.Hour
)

// resendAt returns when a submission in doubt is due: to be sent again, or to be
// given up.
func (d *Desk) resendAt(s *event.Submission) event.Micros {
	if !d.ResendInDoubt {
		return s.Deadline
	}
	return min(event.MicrosOf(d.now().Add(backOff(resendFirst, resendLongest, s.Tries))), s.Deadline)
}

// backOff returns how long to wait after so many tries: first, doubled with each
// up to longest.
func backOff(first, longest time.Duration, tries int) time.Duration {
	wait := first
	for ; tries > 1 && wait < longest; tries-- {
		wait *= 2
	}
	return min(wait, longest)
}

func (d *Desk) deadline() time.Duration {
	if d.Deadline > 0 {
		return d.Deadline
	}
	return defaultDeadline
}

// expire ends the waiting for what has reached its deadline. It returns what is
// to be sent again, and when something is due next.
func (d *Desk) expire(ctx context.Context, now event.Micros) (doubtful []event.Submission, next time.Time, err error) {
	soon := now + event.Micros(tendAtLeast/time.Microsecond)
	query := event.SubmissionQuery{States: []event.State{event.StateInDoubt, event.StateProvisional}, Due: soon}
	err = d.each(ctx, query, func(found []event.Submission) error {
		var over []event.Step
		for _, s := range found {
			switch {
			case s.Due > now:
				if t := s.Due.Time(); next.IsZero() || t.Before(next) {
					next = t
				}
			case s.Deadline != 0 && s.Deadline <= now:
				if s.State == event.StateProvisional {
					s.Reason = ""
				}
				s.State, s.Due = event.StateUnresolved, 0
				s.Reason = joinReason("the ingest server has not told its decision in time", s.Reason)
				over = append(over, event.Step{Submission: s})
			case s.State == event.StateInDoubt && d.ResendInDoubt && d.Upstream != nil:
				doubtful = append(doubtful, s)
			}
		}
		if len(over) == 0 {
			return nil
		}
		// A step that is late lost to a disposition.
		_, err := d.append(ctx, over...)
		return err
	})
	return doubtful, next, err
}

func joinReason(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// resend sends what is in doubt again, until one of them gets no answer: then the
// others wait too, since the server is not well.
func (d *Desk) resend(ctx context.Context, doubtful []event.Submission) error {
	for i := range doubtful {
		request := doubtful[i].Request
		s, err := d.gate.requests.do(ctx, request, func() (*event.Submission, error) {
			s, err := d.settled(ctx, request, gone)
			if err != nil || s == nil || s.State != event.StateInDoubt {
				return s, err
			}
			return d.sendAgain(ctx, s.ID)
		})
		var fault *sip.Fault
		if errors.As(err, &fault) {
			continue // it is settled: unsent
		}
		if err != nil {
			return err
		}
		if s != nil && s.State == event.StateInDoubt {
			return nil
		}
	}
	return nil
}

// sendAgain sends a submission from what the log and the content store have of
// it, so that the server sees the same request.
func (d *Desk) sendAgain(ctx context.Context, id int64) (*event.Submission, error) {
	s, err := d.beginAgain(ctx, id)
	if err != nil || s.State != event.StateInDoubt {
		return s, err
	}
	record, err := d.record(ctx, s)
	if err != nil {
		return nil, err
	}
	source, err := sourceOf(s)
	if err != nil {
		return nil, err
	}
	return d.send(ctx, s, source, record, gone)
}

// record reads a submission's record.
func (d *Desk) record(ctx context.Context, s *event.Submission) ([]byte, error) {
	r, _, err := d.Contents.Open(ctx, s.Content)
	if err != nil {
		return nil, fmt.Errorf("submission %d: its record: %w", s.ID, err)
	}
	defer r.Close()
	record, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("submission %d: its record: %w", s.ID, err)
	}
	return record, nil
}

// debts returns the requests whose end is owed to the log.
func (g *gate) debts() [][32]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	requests := make([][32]byte, 0, len(g.owed))
	for r := range g.owed {
		requests = append(requests, r)
	}
	return requests
}

// each hands out the submissions of this Source that a query selects, a page at a
// time.
func (d *Desk) each(ctx context.Context, q event.SubmissionQuery, page func([]event.Submission) error) error {
	const size = 1000
	q.Source, q.Limit = d.Source, size
	for {
		found, err := d.Store.Submissions(ctx, q)
		if err != nil {
			return err
		}
		if err := page(found); err != nil || len(found) < size {
			return err
		}
		q.After = found[len(found)-1].ID
	}
}

// change commits what alter makes of a submission, anew when somebody else has
// changed it meanwhile, and returns it as it is stored then. When alter returns
// false it stays as it is.
func (d *Desk) change(ctx context.Context, id int64, alter func(*event.Submission) bool) (*event.Submission, error) {
	for {
		s, err := d.Store.Submission(ctx, id)
		if err != nil || !alter(s) {
			return s, err
		}
		out, err := d.append(ctx, event.Step{Submission: *s})
		switch {
		case err != nil:
			return nil, err
		case len(out.Stale) == 0:
			s.Version++
			return s, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

// append commits steps alone.
func (d *Desk) append(ctx context.Context, steps ...event.Step) (event.Appended, error) {
	out, err := d.tray.append(ctx, d.Store, d.batch(nil, &event.Exchange{Steps: steps}))
	if err != nil {
		return out, fmt.Errorf("log how far a submission has come: %w", err)
	}
	return out, nil
}
