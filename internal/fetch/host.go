package fetch

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lendAfter is how long a body's reader may pause before the body's slot
	// goes to a request that waits for one.
	lendAfter = 250 * time.Millisecond
	// slowAfter is how long a request may wait for its answer before its slot
	// goes to another one in the same way, and slowMost how many times the limit
	// of their host the requests may be from which that was taken: documents
	// that never answer must not keep a host's others from being asked for.
	slowAfter = 2 * time.Second
	slowMost  = 4
	// pauseMost is the longest wait that is remembered of a Retry-After, and
	// refusedMost how many documents of a host have one of their own.
	pauseMost   = time.Hour
	refusedMost = 1024
)

// host is what all clients of a Guard know of one host and port.
type host struct {
	users int           // requests under way; guarded by Guard.mu
	slots chan struct{} // one element for each request that the limit counts
	born  time.Time

	mu        sync.Mutex
	held      map[*slot]struct{}
	slow      int       // requests without a slot that still wait for their answer
	notBefore time.Time // the server's wish: Retry-After
	// refused are wishes too long to wait for: they are about one document.
	refused map[string]time.Time
	next    time.Time // our own: Options.Rate
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
		maps.DeleteFunc(h.refused, func(_ string, until time.Time) bool { return now.After(until) })
		if h.users == 0 && len(h.held) == 0 && len(h.refused) == 0 && now.After(h.notBefore) && now.After(h.next) {
			delete(g.hosts, a)
		}
		h.mu.Unlock()
	}
	g.sweepAt = max(1024, 2*len(g.hosts))
}

// enter waits until a request may be sent: there is a slot, the host has not
// asked to be left alone, and the rate allows it. document is what is asked for.
func (h *host) enter(ctx context.Context, o *Options, document string) (*slot, error) {
	if _, err := h.closed(ctx, document); err != nil {
		return nil, err // before it queues
	}
	s, err := h.acquire(ctx)
	if err != nil {
		return nil, err
	}
	for reserved := false; ; {
		wait, err := h.closed(ctx, document)
		switch {
		case err != nil:
		case wait > 0:
			reserved = false // who waited together must not start together
			report(ctx, Waiting{For: "the server asked for a pause", Until: time.Now().Add(wait)})
		case reserved:
			report(ctx, Waiting{For: "an answer"})
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

// closed returns how long the host wants to be left alone, a *WaitError when that
// is longer than we wait, or than whoever asks has time for.
func (h *host) closed(ctx context.Context, document string) (time.Duration, error) {
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

// postpone takes in a Retry-After. One that we wait for counts for the whole
// host; a longer one only for the document that it came with, so that one record
// cannot close its host.
func (h *host) postpone(asked time.Duration, o *Options, document string) {
	now := time.Now()
	until := now.Add(min(asked, pauseMost))
	h.mu.Lock()
	defer h.mu.Unlock()
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
//
// So does, within bounds, a request whose answer is slow to come: see slowAfter.
type slot struct {
	host   *host
	paused atomic.Int64 // when the last Read ended, since host.born; 0 while the server is waited for
	sent   atomic.Int64 // when the request was sent, since host.born; 0 once it was answered
	slow   bool         // the slot was taken while the request waited; guarded by host.mu
}

func (h *host) acquire(ctx context.Context) (*slot, error) {
	s := &slot{host: h}
	report(ctx, Waiting{For: "its turn at the host"})
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

// borrow takes the slot of a body that nobody reads, or of a slow request.
func (h *host) borrow() bool {
	now := int64(time.Since(h.born))
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.held {
		p, sent := s.paused.Load(), s.sent.Load()
		left := p != 0 && now-p >= int64(lendAfter)
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

// answered: the request no longer counts as slow.
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

// release gives the slot back, once, if it is still held.
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
