package mail

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// limitListener is the listener of a Receiver. It refuses connections above the limits. It
// closes one early for a newcomer, a connection on which a mail is being received only when
// there is no other: that mail is cut off, and one that is being stored gets its reply.
type limitListener struct {
	net.Listener
	total, each int           // connections at a time, in all and per address
	wait        time.Duration // until a connection has named a recipient that is taken here
	life        time.Duration // of one that has

	mu     sync.Mutex
	conns  map[*conn]bool
	closed bool
}

// Accept returns the next connection within the limits.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := l.admit(c); admitted != nil {
			return admitted, nil
		}
		// What fits into the buffer of a new socket is written at once.
		writeLast(c, "421 4.7.0 Too many connections, try again later\r\n")
		c.Close()
	}
}

// writeLast sends a last line to a client that may have disconnected already.
func writeLast(c net.Conn, farewell string) {
	if c.SetWriteDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.WriteString(c, farewell)
	}
}

// Close stops listening. A second call does nothing.
func (l *limitListener) Close() error {
	if err := l.Listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// admit returns the connection, or nil when there are too many already.
func (l *limitListener) admit(c net.Conn) *conn {
	admitted := &conn{Conn: c, listener: l, peer: peerOf(c), since: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	from := map[netip.Prefix]int{}
	for other := range l.conns {
		from[network(other.peer)]++
	}
	neighbours := from[network(admitted.peer)]
	if neighbours >= l.each || len(l.conns) >= l.total && !l.closeOne(from, neighbours) {
		return nil
	}
	admitted.over = l.closed
	l.conns[admitted] = true
	return admitted
}

// closeOne closes a connection of the address with the most connections, if that has more than
// the newcomer's: first one without a mail under way, of these first one that has named no
// recipient yet, and of these the oldest. It reports whether there was one. The caller holds mu.
func (l *limitListener) closeOne(from map[netip.Prefix]int, neighbours int) bool {
	most := neighbours + 1
	for _, n := range from {
		most = max(most, n)
	}
	var victim *conn
	for c := range l.conns {
		if from[network(c.peer)] == most && (victim == nil || c.before(victim)) {
			victim = c
		}
	}
	if victim == nil {
		return false
	}
	delete(l.conns, victim)
	victim.endSoon("421 4.7.0 Others are waiting, try again later\r\n")
	victim.cut()
	return true
}

// endAll closes connections without a mail under way, and the others after their reply.
func (l *limitListener) endAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.conns {
		c.endSoon("421 4.3.2 Service shutting down, try again later\r\n")
	}
}

// cut closes the connections that are left.
func (l *limitListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Conn.Close()
	}
}

func (l *limitListener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// conn is a connection of a limitListener.
type conn struct {
	net.Conn
	listener *limitListener
	peer     netip.Addr // zero when it is not known
	since    time.Time

	mu       sync.Mutex
	welcome  bool   // it has named a recipient that is taken here
	busy     int    // mails that are being received or stored: one that was begun anew may not have ended
	over     bool   // nothing more is read, but for the mail under way
	lost     bool   // nothing more is read at all
	farewell string // sent then
	ended    bool   // a Read has failed
}

// begin marks the connection as busy with the content of a mail; false when it may not
// come any more.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.busy++
	}
	return !c.over
}

// recipient notes that the client has named a recipient that is taken here.
func (c *conn) recipient() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.welcome = true
}

// before reports whether c is to be closed before other.
func (c *conn) before(other *conn) bool {
	a, b := c.worth(), other.worth()
	return a < b || a == b && c.since.Before(other.since)
}

// worth is higher for a connection that is to be closed later.
func (c *conn) worth() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.busy > 0:
		return 2
	case c.welcome:
		return 1
	}
	return 0
}

// end notes that the reply to the mail is decided. It is written before the next
// Read.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
}

// endSoon ends the connection as soon as no mail is under way.
func (c *conn) endSoon(farewell string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.farewell = true, farewell
	if c.busy == 0 {
		// Wakes a Read that waits. One that begins now sees over first.
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// cut ends the mail that is arriving, and with it the connection: the reply to the mail is the
// last line.
func (c *conn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost = true; c.busy > 0 {
		c.farewell = ""
	}
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
}

// whole reports whether no Read has failed.
func (c *conn) whole() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.ended
}

// leave reports whether the connection is to end now, and then sends the last line once.
func (c *conn) leave() bool {
	c.mu.Lock()
	leave, farewell := c.over && c.busy == 0, c.farewell
	if leave {
		c.farewell = ""
	}
	c.mu.Unlock()
	if leave && farewell != "" {
		writeLast(c.Conn, farewell)
	}
	return leave
}

// Read returns io.EOF after its first error. Bytes that come after a timeout could be the rest
// of a mail, and must not be taken for commands. While a mail is under way it returns io.EOF at
// once: the server would answer any other error in a chunk (BDAT) with 554, and the client would
// give the mail up.
func (c *conn) Read(p []byte) (int, error) {
	if c.leave() || !c.whole() {
		return 0, io.EOF
	}
	n, err := c.Conn.Read(p)
	if err == nil {
		return n, nil
	}
	if c.leave() {
		return 0, io.EOF
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.busy > 0 {
		err = io.EOF
	}
	return n, err
}

// SetReadDeadline sets a deadline that is not later than the end of the connection.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.since.Add(c.listener.wait)
	switch {
	case c.lost:
		until = time.Unix(1, 0)
	case c.welcome:
		until = c.since.Add(c.listener.life)
	}
	if t.After(until) {
		t = until
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) Close() error {
	c.listener.forget(c)
	return c.Conn.Close()
}

func peerOf(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// network returns what counts as one address: a client with one of IPv6 has 2^64 of them.
func network(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the zero Prefix for the zero Addr
	return p
}
