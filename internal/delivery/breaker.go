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

// Failure is how a target fails. The log keeps it, so that another process can read it.
// The log stores it when it begins, has another reason or ends, and not for each failed
// request in between.
type Failure struct {
	// Since is the time of the first failed request after the last answer.
	Since time.Time `json:"since"`
	// Reason of the first failed request that had it.
	Reason string `json:"reason"`
	// Again is the time at which the server was to be asked next after that request.
	// After later failures the intervals grow, up to an hour.
	Again time.Time `json:"again"`
	// Properties: the request for the server's properties fails already.
	Properties bool `json:"properties,omitempty"`
}

// StoredFailure reads the failure that the log keeps of a target, nil when the target
// answers.
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

// same reports whether both are the same failure, except for Again.
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

// failed counts a failed request that began at a time, and returns how long the breaker
// is open for it. atOnce: this failure alone opens it. If a fault of the server opens it,
// the count begins anew, unless it is about the caller: the record may be the cause, and not
// the server.
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
		if fault, ok := errors.AsType[*sip.Fault](err); ok && fault.Code != sip.ClientAuthentication {
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

// retryAfter is how long the server has asked us to wait, an hour at most.
func retryAfter(err error) time.Duration {
	var status *sip.StatusError
	if !errors.As(err, &status) {
		return 0
	}
	return min(status.RetryAfter, submission.MaxRetry)
}

// RetryAfterGate refuses calls of the ingest server behind a gateway for as long as the
// server has asked us to wait, an hour at most. The zero value is ready.
type RetryAfterGate struct {
	mu    sync.Mutex
	until time.Time
	why   string
}

// PausedError is the error of a request that was not sent, because the ingest server has
// asked us to wait.
type PausedError struct {
	until time.Time
	why   string // the server's message
}

func (e *PausedError) Error() string {
	return fmt.Sprintf("it asks for no requests until %s: %s", e.until.UTC().Format(time.RFC3339), e.why)
}

// Check returns nil when the server may be called, else a *PausedError.
func (r *RetryAfterGate) Check(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.until) {
		return nil
	}
	return &PausedError{r.until, r.why}
}

// Record notes the error of a call of the server, if the server asks us to wait.
func (r *RetryAfterGate) Record(now time.Time, err error) {
	var status *sip.StatusError
	if !errors.As(err, &status) || status.RetryAfter == 0 {
		return
	}
	why := *status
	why.RetryAfter = 0 // Error states the end instead, which may be sooner
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := now.Add(retryAfter(err)); until.After(r.until) {
		r.until, r.why = until, submission.Clip(why.Error())
	}
}
