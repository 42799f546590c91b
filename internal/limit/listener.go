package limit

import (
	"container/list"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// ConnLimits are the numbers of connections that a Listener has at a time.
type ConnLimits struct {
	// All of them, and those of one client. Above a limit the connection that has
	// been idle for the longest time is closed for the new one.
	All, PerClient int
	// Spare is the number of connections above the limits that are accepted when none is
	// idle, to respond that the server is busy, and to /healthz (see IsSpare). Above that
	// number the oldest idle one is closed for the next.
	Spare int
	// Exempt reports whether the limit PerClient does not apply to a client, such as a
	// proxy in front of us; a nil func exempts none.
	Exempt func(netip.Addr) bool
}

// Listener accepts connections within limits. The server reports by State which of them are
// active. A connection that was never reported counts as idle, also while its first request
// header is incomplete.
type Listener struct {
	net.Listener
	limits ConnLimits

	mu      sync.Mutex
	all     int
	clients map[netip.Addr]int
	fresh   int           // connections on which no request has begun
	none    chan struct{} // closed when fresh falls to 0; nil while Settle is not waiting
	idle    *list.List    // of *Conn within the limits, idle for the longest time first
	spare   *list.List    // of *Conn above them, oldest first
}

// NewListener returns a Listener over another one, which it closes.
func NewListener(l net.Listener, c ConnLimits) *Listener {
	return &Listener{Listener: l, limits: c, clients: map[netip.Addr]int{}, idle: list.New(), spare: list.New()}
}

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	l      *Listener
	client netip.Addr
	spare  bool

	// Protected by the mutex of the Listener.
	place  *list.Element // in one of its lists, nil in none
	closed bool
	begun  bool // also when it was closed before
}

// Accept returns the next connection for which there is room.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := l.admit(c); admitted != nil {
			return admitted, nil
		}
		_ = c.Close() // nothing was read from it yet
	}
}

// admit returns nil when the connection exceeds all limits.
func (l *Listener) admit(conn net.Conn) *Conn {
	c := &Conn{Conn: conn, l: l, client: ClientOf(conn.RemoteAddr().String())}
	var victim *Conn
	defer func() {
		if victim != nil {
			_ = victim.Conn.Close() // its server's next read or write fails
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	var room bool
	switch {
	case l.clients[c.client] >= l.limits.PerClient && (l.limits.Exempt == nil || !l.limits.Exempt(c.client)):
		victim = l.evict(l.idle, func(o *Conn) bool { return o.client == c.client })
		room = victim != nil
	case l.all >= l.limits.All:
		victim = l.evict(l.idle, nil)
		room = victim != nil
	default:
		room = true
	}
	if room {
		l.all++
		l.fresh++
		l.clients[c.client]++
		c.place = l.idle.PushBack(c)
		return c
	}
	if l.spare.Len() >= l.limits.Spare {
		if victim = l.evict(l.spare, nil); victim == nil {
			return nil
		}
	}
	c.spare = true
	l.fresh++
	c.place = l.spare.PushBack(c)
	return c
}

// evict stops counting the first connection of a list for which fits is true, and returns
// it; the caller closes it.
func (l *Listener) evict(from *list.List, fits func(*Conn) bool) *Conn {
	for e := from.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*Conn); fits == nil || fits(c) {
			l.forget(c)
			return c
		}
	}
	return nil
}

// forget stops counting a connection. Only its first call counts.
func (l *Listener) forget(c *Conn) {
	if c.closed {
		return
	}
	c.closed = true
	l.begin(c)
	l.leave(c)
	if c.spare {
		return
	}
	l.all--
	if l.clients[c.client]--; l.clients[c.client] == 0 {
		delete(l.clients, c.client)
	}
}

func (l *Listener) leave(c *Conn) {
	if c.place == nil {
		return
	}
	if c.spare {
		l.spare.Remove(c.place)
	} else {
		l.idle.Remove(c.place)
	}
	c.place = nil
}

// State is the function for http.Server.ConnState, which reports a connection as active
// once the header of a request has arrived.
func (l *Listener) State(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*Conn)
	if !ok || c.spare {
		return // these are closed next, whatever they do
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case state == http.StateActive:
		l.leave(c)
	case state == http.StateIdle && !c.closed && c.place == nil:
		c.place = l.idle.PushBack(c)
	}
}

// Begin notes that a request on the connection has begun.
func (c *Conn) Begin() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.begin(c)
}

func (l *Listener) begin(c *Conn) {
	if c.begun {
		return
	}
	c.begun = true
	if l.fresh--; l.fresh == 0 && l.none != nil {
		close(l.none)
		l.none = nil
	}
}

// Settle waits until on each connection that was accepted a request has begun, or it was closed,
// or until ctx ends. A http.Server that is shut down before that closes connections whose first
// request it has not read yet. It is called once, when nothing is accepted any more.
func (l *Listener) Settle(ctx context.Context) {
	l.mu.Lock()
	if l.fresh == 0 {
		l.mu.Unlock()
		return
	}
	none := make(chan struct{})
	l.none = none
	l.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

// IsSpare reports whether a connection was accepted above the limits.
func IsSpare(c net.Conn) bool {
	own, ok := c.(*Conn)
	return ok && own.spare
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.l.mu.Lock()
	c.l.forget(c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// ReadFrom implements io.ReaderFrom: without it files would not be sent by sendfile.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	if rf, ok := c.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// CloseWrite closes the sending side; a connection that does not support that stays
// unchanged.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
