package submit

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/sip"
)

// retryAfterGate is how long the ingest server behind a gateway wants to be left alone, an
// hour at most: whoever calls until then is told so at once. The zero value is
// ready.
type retryAfterGate struct {
	mu    sync.Mutex
	until time.Time
	why   string
}

// pausedError: the ingest server was not asked.
type pausedError struct {
	until time.Time
	why   string // what it has said
}

func (e *pausedError) Error() string {
	return fmt.Sprintf("it wants to be left alone until %s: %s", e.until.UTC().Format(time.RFC3339), e.why)
}

// check returns nil when the server may be asked, else a *pausedError.
func (r *retryAfterGate) check(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.until) {
		return nil
	}
	return &pausedError{r.until, r.why}
}

// record takes in how a call of the server has failed.
func (r *retryAfterGate) record(now time.Time, err error) {
	var status *sip.StatusError
	if !errors.As(err, &status) || status.RetryAfter == 0 {
		return
	}
	why := *status
	why.RetryAfter = 0 // the moment is said, and it may be sooner
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := now.Add(retryAfter(err)); until.After(r.until) {
		r.until, r.why = until, clip(why.Error())
	}
}
