package ingest

import (
	"context"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// hasNewerSent tells whether a later version of a received submission was sent on,
// or is about to be.
func (d *Server) hasNewerSent(ctx context.Context, s *event.Submission) (bool, error) {
	if !submission.Versioned(s) {
		return false, nil
	}
	taken := slices.DeleteFunc(event.States(), func(s event.State) bool { return s == event.StateUnsent })
	return d.Store.HasNewerVersion(ctx, s, taken, "")
}

// keyedMutex lets one at a time have a key. The zero value is ready.
type keyedMutex struct {
	mu     sync.Mutex
	locked map[string]chan struct{} // closed when the key is given back
}

// lock waits for its turn, and returns what ends it.
func (t *keyedMutex) lock(key string) (end func()) {
	own := make(chan struct{})
	for {
		t.mu.Lock()
		other := t.locked[key]
		if other == nil {
			if t.locked == nil {
				t.locked = map[string]chan struct{}{}
			}
			t.locked[key] = own
			t.mu.Unlock()
			return func() { t.unlock(key) }
		}
		t.mu.Unlock()
		<-other
	}
}

func (t *keyedMutex) unlock(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.locked[key])
	delete(t.locked, key)
}
