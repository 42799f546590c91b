package submit

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/pmh-bridge/bridge/event"
)

// Of two versions of one record the later submission wins: at the ingest server,
// in our own set and in the one that accepted records go into, whatever is delayed,
// repeated or resumed. Versions are submissions of the same record of a target, or
// received ones with the same source element that names a record. The later one
// has the higher ID.

// versioned tells whether a received submission may have other versions: its
// source element names the record.
func versioned(s *event.Submission) bool {
	return s.SourceXML != nil && strings.TrimSpace(s.SourceIdentifier) != ""
}

// hasNewerSent tells whether a later version of a received submission was sent on,
// or is about to be.
func (d *Server) hasNewerSent(ctx context.Context, s *event.Submission) (bool, error) {
	if !versioned(s) {
		return false, nil
	}
	taken := slices.DeleteFunc(event.States(), func(s event.State) bool { return s == event.StateUnsent })
	return d.Store.HasNewerVersion(ctx, s, taken, "")
}

// hasNewerAccepted tells whether a later version of an accepted submission has been
// accepted under the same identifier, so that this one changes nothing any more:
// dispositions come in any order.
func hasNewerAccepted(ctx context.Context, store Store, s *event.Submission) (bool, error) {
	if s.Seq == 0 && !versioned(s) {
		return false, nil
	}
	return store.HasNewerVersion(ctx, s, []event.State{event.StateAccepted}, s.Assigned)
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
