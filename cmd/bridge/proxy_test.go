package main

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// killable is a server that a test kills, and that comes back at the same URL.
type killable interface {
	// launch starts it and returns when it serves. Who calls it meanwhile waits when
	// the proxy was opened before, and is refused otherwise.
	launch() error
	kill() error
	address() *proxy
}

// proxy is the address of a server through all its lives. It passes on what comes,
// piece by piece.
type proxy struct {
	address     string
	interceptor *atomic.Pointer[interceptor] // of everything that passes
	current     *listening
}

// listening is the time from one open of a proxy to the next shut.
type listening struct {
	*net.TCPListener
	known, shut chan struct{} // closed when target is known, and at the end
	target      string
}

func newProxy(t testing.TB, a *atomic.Pointer[interceptor]) *proxy {
	f := &proxy{address: testenv.Nobody(t), interceptor: a}
	t.Cleanup(f.shut)
	return f
}

func (f *proxy) url() string { return "http://" + f.address }

// open takes connections, which wait for forwardTo; when it is open already it stays
// so.
func (f *proxy) open() error {
	if f.current != nil {
		return nil
	}
	l, err := net.Listen("tcp", f.address)
	if err != nil {
		return err
	}
	o := &listening{TCPListener: l.(*net.TCPListener), known: make(chan struct{}), shut: make(chan struct{})}
	f.current = o
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.relay(c.(*net.TCPConn), o)
		}
	}()
	return nil
}

// forwardTo opens the proxy and says where its connections go.
func (f *proxy) forwardTo(target string) error {
	if err := f.open(); err != nil {
		return err
	}
	f.current.target = target
	close(f.current.known)
	return nil
}

// shut lets connections be refused. Those that have come through end with the
// server.
func (f *proxy) shut() {
	if f.current != nil {
		// To close it is not enough: a process that is just being started has the
		// listener too, until it becomes another program.
		if c, err := f.current.SyscallConn(); err == nil {
			_ = c.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
		}
		_ = f.current.Close()
		close(f.current.shut)
		f.current = nil
	}
}

func (f *proxy) relay(outer *net.TCPConn, o *listening) {
	defer cut(outer)
	select {
	case <-o.known:
	case <-o.shut:
		return
	}
	c, err := net.Dial("tcp", o.target)
	if err != nil {
		return
	}
	inner := c.(*net.TCPConn)
	defer cut(inner)
	var ways sync.WaitGroup
	ways.Go(func() { f.pass(inner, outer) })
	ways.Go(func() { f.pass(outer, inner) })
	ways.Wait()
}

// pass passes on until the end of from.
func (f *proxy) pass(to, from *net.TCPConn) {
	piece := make([]byte, 4096)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			lost := f.interceptor.Load().intercepts(f, piece[:n])
			if !lost {
				_, err := to.Write(piece[:n])
				lost = err != nil
			}
			if lost {
				cut(from)
				cut(to)
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) || to.CloseWrite() != nil {
				cut(to)
			}
			return
		}
	}
}

// cut ends a connection as a process that is killed does.
func cut(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// interceptor waits for something to pass one of the fronts.
type interceptor struct {
	at   *proxy        // nil is any
	word string        // what it has to have in it; "" is nothing
	left atomic.Int64  // how much passes before that
	hit  chan struct{} // closed when it does
	// hold: what passes stays where it is until over is closed; lose: and does not
	// arrive.
	hold, lose bool
	over       chan struct{}
	always     bool // all that has the word is met at once, and hit is not closed
}

// intercepts reports whether what passes is lost.
func (a *interceptor) intercepts(at *proxy, piece []byte) (lost bool) {
	if a.at != nil && a.at != at || !bytes.Contains(piece, []byte(a.word)) {
		return false
	}
	if a.always {
		return a.lose
	}
	if a.left.Add(-1) != 0 {
		return false
	}
	close(a.hit)
	if a.hold {
		<-a.over
	}
	return a.lose
}

// killAtRandom kills a server when so many pieces at most have passed, before the last
// has arrived or just after, or after a random time. hit tells that they have.
func killAtRandom(r *rand.Rand, at *atomic.Pointer[interceptor], pieces int64, victim killable) (hit bool, err error) {
	a := &interceptor{hit: make(chan struct{}), hold: r.IntN(2) == 0, over: make(chan struct{})}
	defer close(a.over)
	patience := time.Duration(r.IntN(300)) * time.Millisecond
	a.left.Store(math.MaxInt64)
	if r.IntN(3) > 0 {
		a.left.Store(1 + r.Int64N(pieces))
		patience += 300 * time.Millisecond
	}
	at.Store(a)
	select {
	case <-a.hit:
		hit = true
	case <-time.After(patience):
	}
	return hit, victim.kill()
}

// idle is an interceptor that nothing runs into.
func idle() *atomic.Pointer[interceptor] {
	var p atomic.Pointer[interceptor]
	p.Store(&interceptor{})
	return &p
}
