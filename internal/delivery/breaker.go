package delivery

import (
	"errors"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// breaker is the way to the server. After failures in a row it is closed for a
// while, so that a server that is down does not use up the tries of everything
// that waits.
type breaker struct {
	mu        sync.Mutex
	failures  int
	openedAt  time.Time // since when, and
	openUntil time.Time
	probe     bool // after a failure the server is asked for its properties
	trouble   *Trouble
}

// breakerThreshold is how many in a row open the breaker.
const breakerThreshold = 3

func (l *breaker) allows(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !now.Before(l.openUntil)
}

func (l *breaker) retryAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.openUntil
}

func (l *breaker) takeProbe() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	doubt := l.probe
	l.probe = false
	return doubt
}

// succeeded ends the trouble, and with it the pause: a call that was under way when
// the line was closed may be the one that succeeds.
func (l *breaker) succeeded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures, l.trouble, l.openUntil = 0, nil, time.Time{}
}

// listed: the server has told its properties. It may fail all the same when it is
// given a record.
func (l *breaker) listed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble != nil && l.trouble.Properties {
		l.trouble = nil
	}
}

// troubled returns how the server fails, nil when it answers.
func (l *breaker) troubled() *Trouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// failed counts a call that began at a time, and returns how long the breaker is
// closed for it. atOnce: this failure alone is enough. A server that answers with
// a fault is given a new chance each time: it may be the records.
func (l *breaker) failed(every time.Duration, began, now time.Time, err error, atOnce bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if began.Before(l.openedAt) {
		return 0 // under way when the breaker opened
	}
	l.probe = true
	l.failures++
	if atOnce {
		l.failures = max(l.failures, breakerThreshold)
	}
	wait := retryAfter(err)
	if l.failures >= breakerThreshold {
		wait = max(wait, submission.BackOff(every, submission.MaxRetry, l.failures-breakerThreshold+1))
		var fault *sip.Fault
		if errors.As(err, &fault) {
			l.failures = 0
		}
	}
	if wait > 0 {
		l.openedAt, l.openUntil = now, now.Add(wait)
		t := &Trouble{Since: now.UTC(), Reason: submission.Clip(err.Error()), Again: l.openUntil.UTC(), Properties: atOnce}
		if l.trouble != nil {
			t.Since = l.trouble.Since
		}
		l.trouble = t
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
