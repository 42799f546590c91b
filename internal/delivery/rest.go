package delivery

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// RetryAfterGate is how long the ingest server behind a gateway wants to be left alone, an
// hour at most: whoever calls until then is told so at once. The zero value is
// ready.
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
