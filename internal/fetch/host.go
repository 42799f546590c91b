package fetch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// lendAfter is how long a body's reader may pause before the body's slot goes
// to a request that waits for one.
const lendAfter = 250 * time.Millisecond

// host is what all clients of a Guard know of one host and port.
type host struct {
	users int           // requests under way; guarded by Guard.mu
	slots chan struct{} // one element for each request that the limit counts
	born  time.Time

	mu        sync.Mutex
	held      map[*slot]struct{}
	notBefore time.Time // the server's wish: Retry-After
	next      time.Time // our own: Options.Rate
}

// enlist returns the host, which stays known until leave is called.
func (g *Guard) enlist(authority string) *host {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hosts[authority]
	if h == nil {
		g.sweep()
		h = &host{slots: make(chan struct{}, g.options.PerHost), held: map[*slot]struct{}{}, born: time.Now()}
		g.hosts[authority] = h
	}
	h.users++
	return h
}

func (g *Guard) leave(h *host) {
	g.mu.Lock()
	h.users--
	g.mu.Unlock()
}

// sweep forgets hosts of which there is nothing to know, so that documents full
// of invented hosts do not fill the memory. The caller holds g.mu.
func (g *Guard) sweep() {
	if len(g.hosts) < g.sweepAt {
		return
	}
	now := time.Now()
	for a, h := range g.hosts {
		h.mu.Lock()
		if h.users == 0 && len(h.held) == 0 && now.After(h.notBefore) && now.After(h.next) {
			delete(g.hosts, a)
		}
		h.mu.Unlock()
	}
	g.sweepAt = max(1024, 2*len(g.hosts))
}

// enter waits until a request may be sent: there is a slot, the host has not
// asked to be left alone, and the rate allows it.
func (h *host) enter(ctx context.Context, o *Options) (*slot, error) {
	if _, err := h.closed(ctx, o); err != nil {
		return nil, err // before it queues
	}
	s, err := h.acquire(ctx)
	if err != nil {
		return nil, err
	}
	for reserved := false; ; {
		wait, err := h.closed(ctx, o)
		switch {
		case err != nil:
		case wait > 0:
			reserved = false // who waited together must not start together
		case reserved:
			return s, nil
		default:
			wait, reserved = h.reserve(o.Rate), true
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

// closed returns how long the host wants to be left alone, ErrWait when that is
// longer than we wait, or than whoever asks has time for.
func (h *host) closed(ctx context.Context, o *Options) (time.Duration, error) {
	h.mu.Lock()
	until := h.notBefore
	h.mu.Unlock()
	if until.IsZero() {
		return 0, nil
	}
	wait := time.Until(until)
	deadline, limited := ctx.Deadline()
	if wait > o.MaxWait && !o.Insist || limited && until.After(deadline) {
		return 0, fmt.Errorf("%w, but after %s", ErrWait, until.UTC().Format(time.RFC3339))
	}
	return wait, nil
}

// postpone takes in a Retry-After.
func (h *host) postpone(asked time.Duration, o *Options) {
	if o.Insist {
		asked = min(asked, o.MaxWait)
	}
	until := time.Now().Add(asked)
	h.mu.Lock()
	if until.After(h.notBefore) {
		h.notBefore = until
	}
	h.mu.Unlock()
}

// reserve takes the next place in the host's rate and returns how far off it is.
func (h *host) reserve(rate float64) time.Duration {
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

// slot is a request's place among those that its host gets at a time. It is
// kept until the body has been read or closed.
//
// A body that its reader has left alone for a while gives its slot away: the
// server has nothing to do for it, and a reader may be waiting for another
// answer from the same host, which would otherwise wait for the reader.
type slot struct {
	host   *host
	paused atomic.Int64 // when the last Read ended, since host.born; 0 while the server is waited for
}

func (h *host) acquire(ctx context.Context) (*slot, error) {
	s := &slot{host: h}
	select {
	case h.slots <- struct{}{}:
	default:
		if err := h.queue(ctx); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	h.held[s] = struct{}{}
	h.mu.Unlock()
	return s, nil
}

func (h *host) queue(ctx context.Context) error {
	tick := time.NewTicker(lendAfter)
	defer tick.Stop()
	for {
		select {
		case h.slots <- struct{}{}:
			return nil
		case <-tick.C:
			if h.borrow() {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// borrow takes the slot of a body that nobody reads.
func (h *host) borrow() bool {
	now := int64(time.Since(h.born))
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.held {
		if p := s.paused.Load(); p != 0 && now-p >= int64(lendAfter) {
			delete(h.held, s)
			return true
		}
	}
	return false
}

func (s *slot) reading() { s.paused.Store(0) }

func (s *slot) pause() { s.paused.Store(max(1, int64(time.Since(s.host.born)))) }

// release gives the slot back, once, if it is still held.
func (s *slot) release() {
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
