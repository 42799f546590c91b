package daemon

import (
	"context"
	"sync"
)

// turn serializes the work on a Source: a harvest, the requests for pending contents, or an
// operator's action, which takes precedence.
type turn struct {
	busy sync.Mutex

	mu     sync.Mutex
	urgent int                // number of waiting operators
	closed bool               // only operators may work
	end    context.CancelFunc // ends the work under way; nil when it cannot be ended
}

// take waits until no work on the Source is under way. The work must end when the context
// that take returns ends, and must then call done.
func (t *turn) take(ctx context.Context) (work context.Context, done func()) {
	t.busy.Lock()
	return t.begin(ctx)
}

// try is take if no work is under way; otherwise ok is false.
func (t *turn) try(ctx context.Context) (work context.Context, done func(), ok bool) {
	if !t.busy.TryLock() {
		return ctx, nil, false
	}
	work, done = t.begin(ctx)
	return work, done, true
}

func (t *turn) begin(ctx context.Context) (work context.Context, done func()) {
	work, end := context.WithCancel(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = end
	if t.urgent > 0 || t.closed {
		end()
	}
	return work, func() {
		t.mu.Lock()
		t.end = nil
		t.mu.Unlock()
		end()
		t.busy.Unlock()
	}
}

// takeFirst is take for an operator: a harvest under way ends at its next border, and what
// it has committed stays. The operator's own work cannot be interrupted.
func (t *turn) takeFirst() (done func()) {
	t.mu.Lock()
	t.urgent++
	if t.end != nil {
		t.end()
	}
	t.mu.Unlock()
	t.busy.Lock()
	t.mu.Lock()
	t.urgent--
	t.mu.Unlock()
	return t.busy.Unlock
}

// interrupt ends the work under way at its next border, and does not wait for that.
func (t *turn) interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end != nil {
		t.end()
	}
}

// close ends the work under way at its next border; from now on only operators can work. It
// returns when no work is under way any more.
func (t *turn) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.takeFirst()()
}

func (t *turn) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}
