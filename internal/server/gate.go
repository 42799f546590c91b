package server

import (
	"net/netip"
	"sync"
	"time"
)

// gate counts the requests under way, and how many of them each address has.
type gate struct {
	limit int // below 0: none

	mu    sync.Mutex
	busy  map[netip.Addr]int
	total int
	empty chan struct{} // closed when total falls to 0; nil while nobody waits
}

func newGate(limit int) *gate { return &gate{limit: limit, busy: map[netip.Addr]int{}} }

// enter lets a request in; ok is false when its address has enough of them, which
// does not matter for one that is always let in. Who was let in must leave.
func (g *gate) enter(a netip.Addr, always bool) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !always && g.limit >= 0 && g.busy[a] >= g.limit {
		return false
	}
	g.busy[a]++
	g.total++
	return true
}

func (g *gate) leave(a netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy[a]--; g.busy[a] == 0 {
		delete(g.busy, a)
	}
	if g.total--; g.total == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// wait returns when no request is under way, or after a time, with their number.
func (g *gate) wait(d time.Duration) int {
	g.mu.Lock()
	if g.total == 0 {
		g.mu.Unlock()
		return 0
	}
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.mu.Unlock()
	select {
	case <-empty:
	case <-time.After(d):
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.total
}
