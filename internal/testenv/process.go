package testenv

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Clock is a clock that only the test advances.
type Clock struct {
	mu   sync.Mutex
	wall time.Time
	run  time.Duration
}

// NewClock returns a Clock at a fixed time.
func NewClock() *Clock { return &Clock{wall: time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)} }

// Now returns the time of day.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

// Both returns the time of day and how long the clock has run.
func (c *Clock) Both() (time.Time, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall, c.run
}

// Advance advances both.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.run = c.wall.Add(d), c.run+d
}

// ThisDecade advances the clock of a synctest bubble, which begins in the year 2000, to a
// time that a log accepts.
func ThisDecade() {
	if day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); time.Now().Before(day) {
		time.Sleep(time.Until(day))
	}
}

// Log is a log that is read while it is written.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns what is in the log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Take returns it, and empties the log.
func (l *Log) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// Pipes is a listener whose connections are in memory, for tests whose clock is synctest's.
type Pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewPipes returns a listener.
func NewPipes() *Pipes { return &Pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

// Accept implements net.Listener.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr implements net.Listener.
func (p *Pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Dial connects to the listener, whatever the address, once it accepts.
func (p *Pipes) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ErrBroken is the error of a call that is made to fail, ErrKilled that of a process that
// has been killed.
var (
	ErrBroken = errors.New("the disk is gone")
	ErrKilled = errors.New("the process is dead")
)

// Faults makes calls fail.
type Faults struct {
	// Before and After are how many further calls fail: before they do anything, and after
	// they have done everything.
	Before, After atomic.Int32
	// Calls counts the calls.
	Calls atomic.Int32
}

// Pass makes a call, or makes it fail.
func (f *Faults) Pass(call func() error) error {
	if fails(&f.Before) {
		return ErrBroken
	}
	f.Calls.Add(1)
	err := call()
	if err == nil && fails(&f.After) {
		return ErrBroken
	}
	return err
}

// Hook makes the commits of a store pass; a query is not one.
func (f *Faults) Hook(query string, call func() error) error {
	if query != "" {
		return call()
	}
	return f.Pass(call)
}

func fails(n *atomic.Int32) bool { return n.Load() > 0 && n.Add(-1) >= 0 }

// Fate is the outcome of a point at which something leaves or reaches a process.
type Fate uint8

// The fates.
const (
	GoesWell Fate = iota
	// Fails: the action is not done. CutOff: it is done, and fails all the same.
	Fails
	CutOff
	// Refused: a message is certainly not sent.
	Refused
	// Muted: a message arrives, and the response is 202 and nothing else. At other points
	// all succeeds.
	Muted
	// KilledBefore and KilledAfter: the process ends before the action, or right after it.
	KilledBefore
	KilledAfter
)

// String returns the name of the fate.
func (f Fate) String() string {
	return [...]string{"goes well", "fails", "cut off", "refused", "muted", "killed before", "killed after"}[f]
}

// Life is one run of a process: a sequence of points, until it is killed.
type Life struct {
	// Plan returns the fate of each point, the first of which is 1; nil means that all
	// succeed.
	Plan func(n int, point string) Fate

	mu     sync.Mutex
	points int
	dead   bool
}

func (l *Life) enter(point string) Fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return KilledBefore
	}
	l.points++
	f := GoesWell
	if l.Plan != nil {
		f = l.Plan(l.points, point)
	}
	l.dead = f == KilledBefore
	return f
}

func (l *Life) leave(f Fate) (alive bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = l.dead || f == KilledAfter
	return !l.dead
}

// Calm makes all points succeed from here on.
func (l *Life) Calm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Plan = nil
}

// Kill ends the process.
func (l *Life) Kill() { l.leave(KilledAfter) }

// Killed reports whether the process has ended.
func (l *Life) Killed() bool { return !l.leave(GoesWell) }

// Pass performs an action at a point, with the outcome of its fate.
func (l *Life) Pass(point string, do func() error) error {
	f := l.enter(point)
	switch f {
	case KilledBefore:
		return ErrKilled
	case Fails, Refused:
		return ErrBroken
	}
	err := do()
	switch {
	case !l.leave(f):
		return ErrKilled
	case f == CutOff:
		return ErrBroken
	}
	return err
}

// Hook has a store pass the point "commit" or "query" with each.
func (l *Life) Hook(query string, call func() error) error {
	if query == "" {
		return l.Pass("commit", call)
	}
	return l.Pass("query", call)
}

// Wire is the network of a process: each request is a point.
type Wire struct {
	http.RoundTripper
	Life  *Life
	Point string
}

// RoundTrip implements http.RoundTripper.
func (w Wire) RoundTrip(r *http.Request) (*http.Response, error) {
	f := w.Life.enter(w.Point)
	switch f {
	case KilledBefore:
		return nil, ErrKilled
	case Refused:
		return nil, ErrBroken
	case Fails:
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		return nil, ErrBroken
	}
	resp, err := w.RoundTripper.RoundTrip(r)
	if err == nil && f == Muted {
		resp.Body.Close()
		resp = &http.Response{StatusCode: http.StatusAccepted, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: r}
	}
	if alive := w.Life.leave(f); err == nil && (!alive || f == CutOff) {
		resp.Body.Close()
		return nil, ErrBroken
	}
	return resp, err
}
