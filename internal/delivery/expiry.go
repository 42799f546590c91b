package delivery

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
)

// Expiry ends submissions that reach their deadline at targets that the log has and that
// are not configured any more. Nothing is sent to them: what waits there is sent when
// they are configured again, but what may have been taken, or was accepted provisionally,
// becomes unresolved. Their notifications still count.
type Expiry struct {
	Store   *store.Store
	Targets []event.SourceID
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets failures; nil discards them.
	Log *slog.Logger

	damaged Damaged
}

// pageLimit is how many submissions are read at a time.
const pageLimit = 1000

// expiryPeriod is how often Run looks for deadlines that have passed.
const expiryPeriod = time.Hour

// Run ends what has reached its deadline, now and each hour, until ctx ends.
func (f *Expiry) Run(ctx context.Context) {
	now := time.Now
	if f.Now != nil {
		now = f.Now
	}
	log := f.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	sound := func(rows []submission.Submission) []submission.Submission { return f.damaged.Remove(log, rows) }
	Loop(ctx, func() (time.Duration, error) {
		for _, target := range f.Targets {
			if err := Expire(ctx, f.Store, target, now(), sound, nil); err != nil {
				return 0, err
			}
		}
		return expiryPeriod, nil
	}, nil, func(err error, again time.Duration) {
		log.Error("submissions to targets that are no longer configured wait for the log", "error", err, "again_in", again)
	})
}

// Expire ends the submissions of a Source that have reached their deadline, except those
// that skip reports; nil reports none. Nothing is due after its deadline, so it reads
// only what is due, a page at a time, and nothing twice. sound removes damaged rows from a page.
func Expire(ctx context.Context, s *store.Store, source event.SourceID, now time.Time, sound func([]submission.Submission) []submission.Submission, skip func(id int64) bool) error {
	states := []submission.State{submission.StateWaiting, submission.StateInDoubt, submission.StateProvisional}
	return applyToAll(ctx, s, source, states, nil, event.MicrosOf(now), submission.Expire{}, now, sound, skip)
}

// LimitWaits shortens the waits for a disposition that are longer than deadline from now:
// the deadline was longer when they began, or the clock was ahead. sound is as in Expire.
func LimitWaits(ctx context.Context, s *store.Store, source event.SourceID, now time.Time, deadline time.Duration, sound func([]submission.Submission) []submission.Submission) error {
	states := []submission.State{submission.StateInDoubt, submission.StateProvisional}
	after := &submission.Submission{Due: event.MicrosOf(now.Add(deadline)), ID: math.MaxInt64}
	return applyToAll(ctx, s, source, states, after, math.MaxInt64, submission.LimitWait{Deadline: deadline}, now, sound, nil)
}

// applyToAll commits the effects of an input on the submissions of a Source in some
// states that are due after one and up to a time. If an update is stale, a disposition
// came first, and stays.
func applyToAll(ctx context.Context, s *store.Store, source event.SourceID, states []submission.State, after *submission.Submission, upto event.Micros, in submission.Input, now time.Time, sound func([]submission.Submission) []submission.Submission, skip func(id int64) bool) error {
	for _, state := range states {
		last := after
		for {
			page, err := s.SubmissionsDue(ctx, source, state, upto, last, pageLimit)
			if err != nil {
				return err
			}
			whole, n := len(page) == pageLimit, len(page)
			for n > 0 && page[n-1].Due == 0 { // then it is damaged
				n--
			}
			if whole = whole && n > 0; whole {
				last = &submission.Submission{Due: page[n-1].Due, ID: page[n-1].ID}
			}
			page = sound(page)
			var updates []submission.Update
			for i := range page {
				next, effects := submission.Apply(page[i], in, now)
				if effects.Changed && (skip == nil || !skip(next.ID)) {
					updates = append(updates, submission.Update{Submission: next})
				}
			}
			if len(updates) > 0 {
				if _, err := s.Write(ctx, &submission.Batch{Source: source, Updates: updates}); err != nil {
					return err
				}
			}
			if !whole {
				break
			}
		}
	}
	return nil
}
