package submit

import (
	"context"
	"log/slog"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Former looks after targets that the log knows and that are not configured any
// more. Nothing is sent to them, and what waits there is sent when they are
// configured again; but what may have arrived, or was accepted provisionally,
// becomes unresolved at its deadline. Notifications of theirs still count.
type Former struct {
	Store   Store
	Targets []event.SourceID
	// Fatal tells that after this failure of the log no other call can succeed;
	// nil is never.
	Fatal func(error) bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log is told of failures; nil is silence.
	Log *slog.Logger
}

// formerEvery is how long a deadline may be passed before anybody looks.
const formerEvery = time.Hour

// Run looks at the deadlines, now and each hour, until ctx has ended. The error is
// nil, or Fatal.
func (f *Former) Run(ctx context.Context) error {
	for rest := storeFirst; ctx.Err() == nil; {
		wait := formerEvery
		if err := f.expire(ctx); err != nil && ctx.Err() == nil {
			if f.Fatal != nil && f.Fatal(err) {
				return err
			}
			wait, rest = rest, min(2*rest, storeLongest)
			if f.Log != nil {
				f.Log.Error("what waits for former targets waits for the log", "error", err, "again_in", wait)
			}
		} else {
			rest = storeFirst
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// expire ends what has reached its deadline.
func (f *Former) expire(ctx context.Context) error {
	now := time.Now
	if f.Now != nil {
		now = f.Now
	}
	at := now()
	for _, target := range f.Targets {
		for _, state := range []event.State{event.StateWaiting, event.StateProvisional} {
			if err := f.expireIn(ctx, target, state, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Former) expireIn(ctx context.Context, target event.SourceID, state event.State, at time.Time) error {
	var last *event.Submission
	for {
		// Nothing is due after its deadline.
		page, err := f.Store.SubmissionsDue(ctx, target, state, event.MicrosOf(at), last, pageLimit)
		if err != nil || len(page) == 0 {
			return err
		}
		end := page[len(page)-1]
		last = &end
		var steps []event.SubmissionUpdate
		for i := range page {
			if s, effects := submission.Apply(page[i], submission.Expire{}, at); effects.Changed {
				steps = append(steps, event.SubmissionUpdate{Submission: s})
			}
		}
		if len(steps) == 0 {
			continue
		}
		// A step that is late has lost to a disposition.
		if _, err := f.Store.Append(ctx, &event.Batch{Source: target, Mode: event.ModeSubmission, Submissions: &event.SubmissionBatch{Updates: steps}}); err != nil {
			return err
		}
	}
}
