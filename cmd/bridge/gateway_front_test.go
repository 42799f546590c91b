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

// mortal is a server that a test kills, and that comes back at the same URL.
type mortal interface {
	// rise starts it and returns when it serves. Who calls it meanwhile waits when
	// the front was opened before, and is refused otherwise.
	rise() error
	kill() error
	door() *front
}

// front is the address of a server through all its lives. It passes on what comes,
// piece by piece.
type front struct {
	address string
	ambush  *atomic.Pointer[ambush] // of everything that passes
	current *opening
}

// opening is the time from one open of a front to the next shut.
type opening struct {
	*net.TCPListener
	led, shut chan struct{} // closed when target is known, and at the end
	target    string
}

func newFront(t testing.TB, a *atomic.Pointer[ambush]) *front {
	f := &front{address: testenv.Nobody(t), ambush: a}
	t.Cleanup(f.shut)
	return f
}

func (f *front) url() string { return "http://" + f.address }

// open takes connections, which wait for lead; when it is open already it stays
// so.
func (f *front) open() error {
	if f.current != nil {
		return nil
	}
	l, err := net.Listen("tcp", f.address)
	if err != nil {
		return err
	}
	o := &opening{TCPListener: l.(*net.TCPListener), led: make(chan struct{}), shut: make(chan struct{})}
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

// lead opens the front and says where its connections go.
func (f *front) lead(target string) error {
	if err := f.open(); err != nil {
		return err
	}
	f.current.target = target
	close(f.current.led)
	return nil
}

// shut lets connections be refused. Those that have come through end with the
// server.
func (f *front) shut() {
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

func (f *front) relay(outer *net.TCPConn, o *opening) {
	defer cut(outer)
	select {
	case <-o.led:
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
func (f *front) pass(to, from *net.TCPConn) {
	piece := make([]byte, 4096)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			lost := f.ambush.Load().passing(f, piece[:n])
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

// ambush waits for something to pass one of the fronts.
type ambush struct {
	at   *front        // nil is any
	word string        // what it has to have in it; "" is nothing
	left atomic.Int64  // how much passes before that
	hit  chan struct{} // closed when it does
	// hold: what passes stays where it is until over is closed; lose: and does not
	// arrive.
	hold, lose bool
	over       chan struct{}
}

// passing reports whether what passes is lost.
func (a *ambush) passing(at *front, piece []byte) (lost bool) {
	if a.at != nil && a.at != at || !bytes.Contains(piece, []byte(a.word)) || a.left.Add(-1) != 0 {
		return false
	}
	close(a.hit)
	if a.hold {
		<-a.over
	}
	return a.lose
}

// strike kills a server when so many pieces at most have passed, before the last
// has arrived or just after, or after a random time. hit tells that they have.
func strike(r *rand.Rand, at *atomic.Pointer[ambush], pieces int64, victim mortal) (hit bool, err error) {
	a := &ambush{hit: make(chan struct{}), hold: r.IntN(2) == 0, over: make(chan struct{})}
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

// idle is an ambush that nothing runs into.
func idle() *atomic.Pointer[ambush] {
	var p atomic.Pointer[ambush]
	p.Store(&ambush{})
	return &p
}
