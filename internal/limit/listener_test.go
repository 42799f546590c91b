package limit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/internal/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listener is a Listener on loopback, with what is accepted in the order of
// accepting.
type listener struct {
	t *testing.T
	*limit.Listener
}

func listen(t *testing.T, c limit.ConnLimits) *listener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t, limit.NewListener(inner, c)}
	t.Cleanup(func() { l.Close() })
	return l
}

// dial returns both ends of a connection from an address of loopback.
func (l *listener) dial(from string) (client, server net.Conn) {
	l.t.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	client, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { client.Close() })
	server, err = l.Accept()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { server.Close() })
	return client, server
}

// gone fails unless the other end of a connection has been closed.
func gone(t *testing.T, what string, client net.Conn) {
	t.Helper()
	if err := client.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("%s was not closed: %v", what, err)
	}
}

func isTimeout(err error) bool { e, ok := err.(net.Error); return ok && e.Timeout() }

// answers fails unless a connection is whole.
func answers(t *testing.T, what string, client, server net.Conn) {
	t.Helper()
	if _, err := io.WriteString(server, "x"); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
		t.Errorf("%s was closed: %v", what, err)
	}
}

// D66: a client's oldest idle connection goes for its next one, in all the oldest
// idle one of anybody.
func TestIdleConnectionsGiveWay(t *testing.T) {
	l := listen(t, limit.ConnLimits{All: 3, PerClient: 2, Spare: 1})
	c1, s1 := l.dial("127.0.0.1")
	c2, s2 := l.dial("127.0.0.1")
	l.State(s1, http.StateActive)
	c3, s3 := l.dial("127.0.0.1")
	gone(t, "the idle one of two", c2)
	answers(t, "the active one", c1, s1)
	l.State(s1, http.StateIdle) // from now on idle, later than the third
	c4, s4 := l.dial("127.0.0.2")
	c5, s5 := l.dial("127.0.0.2")
	gone(t, "the one that was idle for the longest time", c3)
	answers(t, "another client", c4, s4)
	answers(t, "another client's second", c5, s5)
	answers(t, "the one that has become idle", c1, s1)
	for _, c := range []net.Conn{s1, s2, s3, s4, s5} {
		if limit.IsSpare(c) {
			t.Error("a spare one although there was room")
		}
	}
}

// D66: where all are busy there is room left to say so, and to answer who asks
// whether the server lives.
func TestSpareConnections(t *testing.T) {
	l := listen(t, limit.ConnLimits{All: 4, PerClient: 1, Spare: 2, Exempt: func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.9") }})
	busyClient, busy := l.dial("127.0.0.1")
	l.State(busy, http.StateActive)
	c1, s1 := l.dial("127.0.0.1")
	c2, s2 := l.dial("127.0.0.1")
	if !limit.IsSpare(s1) || !limit.IsSpare(s2) || limit.IsSpare(busy) {
		t.Error("which are spare")
	}
	_, s3 := l.dial("127.0.0.1")
	gone(t, "the oldest spare one", c1)
	answers(t, "the second spare one", c2, s2)
	answers(t, "the busy one", busyClient, busy)
	s3.Close()
	s2.Close()
	s1.Close() // again
	for range 3 {
		if _, s := l.dial("127.0.0.9"); limit.IsSpare(s) {
			t.Error("an exempt client has a spare connection")
		} else {
			l.State(s, http.StateActive)
		}
	}
	if _, s := l.dial("127.0.0.2"); !limit.IsSpare(s) {
		t.Error("four are busy, and another one is not spare")
	}
	busy.Close()
	if _, s := l.dial("127.0.0.1"); limit.IsSpare(s) {
		t.Error("the busy one has gone, and the next one is spare")
	}
}

// The law of the books: nothing is lost or counted twice, so that after all have
// gone there is room for all again.
func TestRoomComesBack(t *testing.T) {
	l := listen(t, limit.ConnLimits{All: 3, PerClient: 3, Spare: 0})
	for range 20 {
		var conns []net.Conn
		for range 3 {
			_, s := l.dial("127.0.0.1")
			l.State(s, http.StateActive)
			conns = append(conns, s)
		}
		l.State(conns[0], http.StateIdle)
		conns[0].Close()
		l.State(conns[0], http.StateClosed)
		_, s := l.dial("127.0.0.1")
		conns[1].Close()
		conns[1].Close()
		conns[2].Close()
		s.Close()
	}
}

// A spare connection gives way to the next one also when the server reports that it is
// active; without room for spare ones the next connection is closed unread, and Accept
// waits for another one, until the Listener is closed.
func TestWithoutRoom(t *testing.T) {
	l := listen(t, limit.ConnLimits{All: 1, PerClient: 1, Spare: 1})
	_, busy := l.dial("127.0.0.1")
	l.State(busy, http.StateActive)
	c1, s1 := l.dial("127.0.0.1")
	l.State(s1, http.StateActive)
	l.dial("127.0.0.2")
	gone(t, "a spare one that is active", c1)

	l = listen(t, limit.ConnLimits{All: 1, PerClient: 1})
	busyClient, busy := l.dial("127.0.0.1")
	l.State(busy, http.StateActive)
	accepted := make(chan error)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		gone(t, "a connection without room", c)
	}
	answers(t, "the busy one", busyClient, busy)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept returned %v", err)
	}
}

// A Conn copies from a reader and closes its sending side as the connection below it can:
// one of TCP reads from the reader itself, one of a Unix socket does not, and both stay
// open in the other direction.
func TestConnSends(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			inner, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			l := limit.NewListener(inner, limit.ConnLimits{All: 1, PerClient: 1})
			defer l.Close()
			client, err := net.Dial(network, l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()

			const sent = "what is sent"
			if n, err := server.(io.ReaderFrom).ReadFrom(strings.NewReader(sent)); n != int64(len(sent)) || err != nil {
				t.Errorf("sent %d bytes, %v", n, err)
			}
			if err := server.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(client); string(got) != sent || err != nil {
				t.Errorf("received %q, %v", got, err)
			}
			answers(t, "the other direction", server, client)
		})
	}
}

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:1":                "192.0.2.7",
		"[::ffff:192.0.2.7]:1":       "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:1":   "2001:db8:1:2::",
		"[2001:db8:1:2:ffff::]:2":    "2001:db8:1:2::",
		"[fe80::1%eth0]:1":           "fe80::",
		"@":                          "invalid IP",
		"":                           "invalid IP",
		"[2001:db8:1:3:3:4:5:6]:443": "2001:db8:1:3::",
	} {
		if got := limit.ClientOf(remote).String(); got != want {
			t.Errorf("%q is %s, want %s", remote, got, want)
		}
	}
}

// pipes is a net.Listener whose connections are in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) { return <-p, nil }
func (pipes) Close() error                { return nil }
func (pipes) Addr() net.Addr              { return &net.TCPAddr{} }

// Settle waits for each connection that was accepted until its first request has begun, or it
// was closed, and no longer than its context lasts.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := make(pipes, 1)
		l := limit.NewListener(inner, limit.ConnLimits{All: 10, PerClient: 10})
		l.Settle(t.Context()) // there is none
		var conns []*limit.Conn
		for range 3 {
			_, server := net.Pipe()
			inner <- server
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			conns = append(conns, c.(*limit.Conn))
		}
		ended, end := context.WithCancel(t.Context())
		end()
		l.Settle(ended)

		settled := make(chan struct{})
		go func() {
			defer close(settled)
			l.Settle(t.Context())
		}()
		for i, step := range []func(){conns[0].Begin, conns[0].Begin, func() { conns[1].Close() }, func() { conns[1].Close() }} {
			step()
			synctest.Wait()
			select {
			case <-settled:
				t.Fatalf("it has not waited for all, after step %d", i+1)
			default:
			}
		}
		conns[2].Begin()
		<-settled
	})
}
