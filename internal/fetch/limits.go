package fetch

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// idleAfter is how long a body's reader may pause before another request gets the
	// body's slot.
	idleAfter = 250 * time.Millisecond
	// slowAfter is how long a request may wait for its answer before another request
	// gets its slot. No more than slowMost times the limit of their host may have lost
	// their slots so: documents that never answer must not block the others of a host.
	slowAfter = 2 * time.Second
	slowMost  = 4
	// pauseMost is for how long a Retry-After is kept at most, and refusedMost how many
	// documents of a host have one of their own.
	pauseMost   = time.Hour
	refusedMost = 1024
)

// host is the state of one host and port, which all Guards of a process share.
type host struct {
	users int           // requests under way; guarded by Guard.mu
	slots chan struct{} // one element for each request that the limit counts
	born  time.Time

	mu        sync.Mutex
	held      map[*slot]struct{}
	slow      int       // requests without a slot that still wait for their answer
	notBefore time.Time // Retry-After of the host
	// refused has the Retry-After of documents that is too long to wait for.
	refused map[string]time.Time
	next    time.Time // by Options.Rate
}

// acquireHost returns the host, which is kept until releaseHost is called.
func (g *Guard) acquireHost(authority string) *host {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hosts[authority]
	if h == nil {
		g.forgetIdleHosts()
		h = &host{slots: make(chan struct{}, g.options.PerHost), held: map[*slot]struct{}{}, born: time.Now()}
		g.hosts[authority] = h
	}
	h.users++
	return h
}

func (g *Guard) releaseHost(h *host) {
	g.mu.Lock()
	h.users--
	g.mu.Unlock()
}

// forgetIdleHosts drops the hosts without requests, limits or waits, so that documents
// full of invented hosts do not fill the memory. The caller holds g.mu.
func (g *Guard) forgetIdleHosts() {
	if len(g.hosts) < g.forgetAt {
		return
	}
	now := time.Now()
	for a, h := range g.hosts {
		h.mu.Lock()
		h.forgetRefused(now)
		if h.users == 0 && len(h.held) == 0 && len(h.refused) == 0 && now.After(h.notBefore) && now.After(h.next) {
			delete(g.hosts, a)
		}
		h.mu.Unlock()
	}
	g.forgetAt = max(1024, 2*len(g.hosts))
}

// waitTurn waits until a request for a document may be sent: there is a slot, no
// Retry-After of the host is left, and the rate allows it.
func (h *host) waitTurn(ctx context.Context, o *Options, document string) (*slot, error) {
	if _, err := h.pauseLeft(ctx, document); err != nil {
		return nil, err // before it queues
	}
	s, err := h.acquireSlot(ctx)
	if err != nil {
		return nil, err
	}
	for reserved := false; ; {
		wait, err := h.pauseLeft(ctx, document)
		switch {
		case err != nil:
		case wait > 0:
			reserved = false // requests that waited together must not start together
			reportWaiting(ctx, Waiting{For: "the server asked for a pause", Until: time.Now().Add(wait)})
		case reserved:
			reportWaiting(ctx, Waiting{For: "an answer"})
			return s, nil
		default:
			wait, reserved = h.reserveTurn(o.Rate), true
		}
		if err == nil && wait > 0 {
			err = sleep(ctx, wait)
		}
		if err != nil {
			s.release()
			return nil, err
		}
	}
}

// pauseLeft returns how long the host wants no requests. The error is a *WaitError when
// that is longer than we wait, or than the caller's deadline.
func (h *host) pauseLeft(ctx context.Context, document string) (time.Duration, error) {
	h.mu.Lock()
	until, refused := h.notBefore, h.refused[document]
	h.mu.Unlock()
	if time.Until(refused) > 0 {
		return 0, &WaitError{Until: refused}
	}
	if until.IsZero() {
		return 0, nil
	}
	if deadline, limited := ctx.Deadline(); limited && until.After(deadline) {
		return 0, &WaitError{Until: until}
	}
	return time.Until(until), nil
}

// postpone keeps a Retry-After. One that we wait for applies to the whole host; a longer
// one only to the document that it came with, so that one record cannot block its host.
func (h *host) postpone(asked time.Duration, o *Options, document string) {
	now := time.Now()
	until := now.Add(min(asked, pauseMost))
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refused) >= refusedMost {
		h.forgetRefused(now)
	}
	switch {
	case asked <= o.MaxWait:
		if until.After(h.notBefore) {
			h.notBefore = until
		}
	case len(h.refused) < refusedMost:
		if h.refused == nil {
			h.refused = map[string]time.Time{}
		}
		h.refused[document] = until
	}
}

// forgetRefused drops the documents that may be asked for again. The caller holds h.mu.
func (h *host) forgetRefused(now time.Time) {
	maps.DeleteFunc(h.refused, func(_ string, until time.Time) bool { return now.After(until) })
}

// reserveTurn takes the next turn that the rate allows, and returns how long to wait for
// it.
func (h *host) reserveTurn(rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	at := h.next
	if at.Before(now) {
		at = now
	}
	h.next = at.Add(time.Duration(float64(time.Second) / rate))
	return at.Sub(now)
}

// slot is what a request needs to be one of those that its host gets at a time. It is
// held until the body has been read or closed.
//
// A body that is not read for a while loses its slot: the server has nothing to do for
// it, and its reader may be waiting for another answer of the same host, which would
// otherwise wait for the reader.
//
// So does, within bounds, a request whose answer is slow to come: see slowAfter.
type slot struct {
	host   *host
	paused atomic.Int64 // when the last Read ended, since host.born; 0 while the server is waited for
	sent   atomic.Int64 // when the request was sent, since host.born; 0 once it was answered
	slow   bool         // the slot was taken while the request waited; guarded by host.mu
}

func (h *host) acquireSlot(ctx context.Context) (*slot, error) {
	s := &slot{host: h}
	reportWaiting(ctx, Waiting{For: "its turn at the host"})
	select {
	case h.slots <- struct{}{}:
	default:
		if err := h.waitForSlot(ctx); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	h.held[s] = struct{}{}
	h.mu.Unlock()
	return s, nil
}

func (h *host) waitForSlot(ctx context.Context) error {
	tick := time.NewTicker(idleAfter)
	defer tick.Stop()
	for {
		select {
		case h.slots <- struct{}{}:
			return nil
		case <-tick.C:
			if h.takeIdleSlot() {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// takeIdleSlot takes the slot of a body that is not being read, or of a slow request.
func (h *host) takeIdleSlot() bool {
	now := int64(time.Since(h.born))
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.held {
		p, sent := s.paused.Load(), s.sent.Load()
		left := p != 0 && now-p >= int64(idleAfter)
		if slow := sent != 0 && now-sent >= int64(slowAfter); !left && slow && h.slow < slowMost*cap(h.slots) {
			s.slow, left = true, true
			h.slow++
		}
		if left {
			delete(h.held, s)
			return true
		}
	}
	return false
}

func (s *slot) send() { s.sent.Store(max(1, int64(time.Since(s.host.born)))) }

// answered notes that the request has its answer: it is no longer slow.
func (s *slot) answered() {
	s.sent.Store(0)
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	if s.slow {
		s.slow = false
		s.host.slow--
	}
}

func (s *slot) reading() { s.paused.Store(0) }

func (s *slot) pause() { s.paused.Store(max(1, int64(time.Since(s.host.born)))) }

// release gives the slot back if it is still held.
func (s *slot) release() {
	s.answered()
	s.host.mu.Lock()
	_, held := s.host.held[s]
	delete(s.host.held, s)
	s.host.mu.Unlock()
	if held {
		<-s.host.slots
	}
}

// sleep waits, or returns why the context ended.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
