package limit

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// attemptsFree is how many failed attempts a client has in a row.
	attemptsFree = 10
	// attemptEvery is how long it takes until one of them is forgotten.
	attemptEvery = 6 * time.Second
	// attemptClients is how many clients are remembered.
	attemptClients = 10_000
)

// Attempts slows down clients that guess: ten failed attempts in a row are free,
// and after that one every six seconds. Its methods may be called from any
// goroutine; the zero Attempts is ready.
type Attempts struct {
	mu     sync.Mutex
	failed map[netip.Addr]time.Time // when the last failure will be forgotten
}

// Wait returns how long a client has to wait before its next attempt; 0 is not at
// all.
func (a *Attempts) Wait(client netip.Addr, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.failed[client]
	if !ok {
		return 0
	}
	return max(0, until.Sub(now)-(attemptsFree-1)*attemptEvery)
}

// Failed counts a failed attempt.
func (a *Attempts) Failed(client netip.Addr, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = map[netip.Addr]time.Time{}
	}
	if len(a.failed) >= attemptClients {
		for c, until := range a.failed {
			if !until.After(now) {
				delete(a.failed, c)
			}
		}
		if len(a.failed) >= attemptClients { // whoever has so many addresses does not need to guess twice from one
			clear(a.failed)
		}
	}
	until := a.failed[client]
	if until.Before(now) {
		until = now
	}
	a.failed[client] = until.Add(attemptEvery)
}
