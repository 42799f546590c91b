// Package limit bounds what clients can use of a server: the bytes of requests under way
// (Bytes), connections (Listener), what they may store in a day (Quota), failed logins
// (Attempts), the disk (Space), and the lines that they cause in the server's log
// (LogThrottle). It is independent of protocols. A client is an address, see Client.
package limit

import (
	"container/list"
	"errors"
	"net/netip"
	"sync"
)

// ErrFull means that a request may use no more bytes now. The request itself is correct:
// answer 503 or 451, so that the client tries again.
var ErrFull = errors.New("too much is being received at a time")

// Bytes is a budget for the bytes of requests under way, shared by all
// protocols. Its methods, and those of its Holds, may be called from any
// goroutine.
//
// When slow requests have used up the budget, or the share of their client, the oldest
// one that is still being received is cut off. A request that arrives at a usual speed
// ends before it is the oldest.
type Bytes struct {
	total, share int64

	mu        sync.Mutex
	held      int64
	clients   map[netip.Addr]int64
	receiving *list.List // of *Hold, oldest first
}

// NewBytes returns a budget of total bytes, of which one client gets share at
// most.
func NewBytes(total, share int64) *Bytes {
	return &Bytes{total: total, share: share, clients: map[netip.Addr]int64{}, receiving: list.New()}
}

// Hold is the part of a budget that one request uses. The caller must call Release.
type Hold struct {
	b      *Bytes
	client netip.Addr
	cut    func()
	n      int64
	place  *list.Element // in receiving; nil once whole
	failed bool
}

// Hold begins a request of an address. cut is called from another goroutine and must return
// at once; it ends the receiving of the request, for example by a read deadline in the
// past. A request with a nil cut cannot be cut off.
func (b *Bytes) Hold(client netip.Addr, cut func()) *Hold {
	h := &Hold{b: b, client: Client(client), cut: cut}
	if cut != nil {
		b.mu.Lock()
		h.place = b.receiving.PushBack(h)
		b.mu.Unlock()
	}
	return h
}

// Add counts n more bytes of the request. If the error is ErrFull, they are not counted,
// and the caller refuses the request.
func (h *Hold) Add(n int64) error {
	b := h.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.failed {
		return ErrFull
	}
	if ofClient := b.clients[h.client]+n > b.share; ofClient || b.held+n > b.total {
		h.fail()
		// Cut off the request that has been received for the longest time. Its memory is
		// free only when it ends, too late for this one.
		for e := b.receiving.Front(); e != nil; e = e.Next() {
			if o := e.Value.(*Hold); o.n > 0 && (!ofClient || o.client == h.client) {
				o.fail()
				o.cut()
				break
			}
		}
		return ErrFull
	}
	b.held += n
	b.clients[h.client] += n
	h.n += n
	return nil
}

// fail marks a request as cut off.
func (h *Hold) fail() {
	h.failed = true
	h.unlist()
}

func (h *Hold) unlist() {
	if h.place != nil {
		h.b.receiving.Remove(h.place)
		h.place = nil
	}
}

// Failed reports whether the request was refused bytes, or was cut off.
func (h *Hold) Failed() bool {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	return h.failed
}

// Received marks the request as received: it is not cut off any more.
func (h *Hold) Received() {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	h.unlist()
}

// Release returns all bytes to the budget. Only its first call counts.
func (h *Hold) Release() {
	b := h.b
	b.mu.Lock()
	defer b.mu.Unlock()
	h.unlist()
	b.held -= h.n
	if b.clients[h.client] -= h.n; b.clients[h.client] == 0 {
		delete(b.clients, h.client)
	}
	h.n = 0
}
