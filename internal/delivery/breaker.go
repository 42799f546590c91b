package delivery

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// Failure is how a target fails. The log keeps it, so that another process can
// tell, and takes it in when it begins, has another reason or ends: not once more
// for each failed request in between.
type Failure struct {
	// Since is when it began: the first failed request after the last answer.
	Since time.Time `json:"since"`
	// Reason of the first failed request that had it.
	Reason string `json:"reason"`
	// Again is when the server was to be asked after that request. Later it is asked
	// ever less often, at least once an hour.
	Again time.Time `json:"again"`
	// Properties: it fails when it is asked for its properties already.
	Properties bool `json:"properties,omitempty"`
}

// StoredFailure reads it out of what the log keeps of a target, nil when the
// target answers.
func StoredFailure(p *event.Progress) (*Failure, error) {
	if len(p.Memory) == 0 {
		return nil, nil
	}
	f := new(Failure)
	if err := json.Unmarshal(p.Memory, f); err != nil {
		return nil, fmt.Errorf("the failures of a target cannot be read: %w", err)
	}
	return f, nil
}

// same reports whether both say the same.
func (f *Failure) same(g *Failure) bool {
	if f == nil || g == nil {
		return f == g
	}
	return f.Since.Equal(g.Since) && f.Reason == g.Reason && f.Properties == g.Properties
}

// breaker stops requests to a server for a while after some have failed in a row, so
// that a server that is down does not use up the tries of everything that waits.
type breaker struct {
	failures int
	openedAt time.Time
	failure  *Failure // nil when the server answers
}

// breakerThreshold is how many failures in a row open the breaker.
const breakerThreshold = 3

// failed counts a request that began at a time, and returns how long the breaker is
// open for it. atOnce: this one alone is enough. A server that answers with a fault
// is given a new chance each time: it may be the records.
func (b *breaker) failed(every time.Duration, began, now time.Time, err error, atOnce bool) time.Duration {
	if began.Before(b.openedAt) {
		return 0 // under way when the breaker opened
	}
	b.failures++
	if atOnce {
		b.failures = max(b.failures, breakerThreshold)
	}
	wait := retryAfter(err)
	if b.failures >= breakerThreshold {
		wait = max(wait, submission.BackOff(every, submission.MaxRetry, b.failures-breakerThreshold+1))
		var fault *sip.Fault
		if errors.As(err, &fault) {
			b.failures = 0
		}
	}
	if wait > 0 {
		b.openedAt = now
		f := &Failure{Since: now.UTC(), Reason: submission.Clip(err.Error()), Again: now.Add(wait).UTC(), Properties: atOnce}
		if b.failure != nil {
			f.Since = b.failure.Since
		}
		b.failure = f
	}
	return wait
}

// retryAfter is how long the server wants to be left alone, an hour at most.
func retryAfter(err error) time.Duration {
	var status *sip.StatusError
	if !errors.As(err, &status) {
		return 0
	}
	return min(status.RetryAfter, submission.MaxRetry)
}

// RetryAfterGate is how long the ingest server behind a gateway wants to be left
// alone, an hour at most: whoever calls until then is told so at once. The zero value
// is ready.
type RetryAfterGate struct {
	mu    sync.Mutex
	until time.Time
	why   string
}

// PausedError is the error of a request that was not sent, since the ingest server
// wants to be left alone.
type PausedError struct {
	until time.Time
	why   string // what it has said
}

func (e *PausedError) Error() string {
	return fmt.Sprintf("it wants to be left alone until %s: %s", e.until.UTC().Format(time.RFC3339), e.why)
}

// Check returns nil when the server may be asked, else a *PausedError.
func (r *RetryAfterGate) Check(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.until) {
		return nil
	}
	return &PausedError{r.until, r.why}
}

// Record takes in how a call of the server has failed.
func (r *RetryAfterGate) Record(now time.Time, err error) {
	var status *sip.StatusError
	if !errors.As(err, &status) || status.RetryAfter == 0 {
		return
	}
	why := *status
	why.RetryAfter = 0 // the moment is said, and it may be sooner
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := now.Add(retryAfter(err)); until.After(r.until) {
		r.until, r.why = until, submission.Clip(why.Error())
	}
}
