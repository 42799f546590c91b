package delivery

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// resendGroup is how many submissions are put back into the outbox at once.
const resendGroup = 500

// Resend puts submissions that have ended without an answer back into the outbox:
// one, or with id 0 all in a state, unsent or unresolved. What is not the last
// word on its record any more stays as it is: a later change was submitted in its
// place. It returns how many were put back. Run must be told by Reload.
func (o *Submitter) Resend(ctx context.Context, id int64, state submission.State) (n int, err error) {
	q := submission.Query{Source: o.Source, States: []submission.State{state}, Limit: resendGroup}
	for {
		found, err := o.resendable(ctx, id, q)
		if err != nil || len(found) == 0 {
			return n, err
		}
		q.After = found[len(found)-1].ID
		steps, err := o.requeue(ctx, found)
		if err != nil {
			return n, err
		}
		if len(steps) > 0 {
			out, err := o.Store.Write(ctx, &submission.Batch{Source: o.Source, Updates: steps})
			if err != nil {
				return n, err
			}
			n += len(steps) - len(out.Stale)
		}
		if id != 0 {
			return n, nil
		}
	}
}

// resendable returns the submission with the number, or the next ones.
func (o *Submitter) resendable(ctx context.Context, id int64, q submission.Query) ([]submission.Submission, error) {
	if id == 0 {
		return o.Store.Submissions(ctx, q)
	}
	s, err := o.Store.Submission(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case s.Source != o.Source || s.State != submission.StateUnsent && s.State != submission.StateUnresolved:
		return nil, fmt.Errorf("submission %d is %s: only unsent and unresolved submissions can be sent again", id, s.State)
	}
	return []submission.Submission{*s}, nil
}

// requeue makes submissions wait whose record is still what it was, and has a
// content: a deletion has none.
func (o *Submitter) requeue(ctx context.Context, found []submission.Submission) ([]submission.Update, error) {
	seqs := make([]event.Seq, len(found))
	for i := range found {
		seqs[i] = found[i].Seq
	}
	latest, err := o.Store.Latest(ctx, o.Set, seqs)
	if err != nil {
		return nil, err
	}
	now := o.withDefaults().Now()
	var steps []submission.Update
	for i := range found {
		if !latest[found[i].Seq] || found[i].Content == [32]byte{} {
			continue
		}
		if s, effects := submission.Apply(found[i], submission.Resend{}, now); effects.Changed {
			steps = append(steps, submission.Update{Submission: s})
		}
	}
	return steps, nil
}
