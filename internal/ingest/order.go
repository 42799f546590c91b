package ingest

import "sync"

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
