//go:build unix

package eventlog

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/event"
)

const (
	// maxJump is how far the clock may run ahead of the one that never jumps (I3).
	maxJump = 24 * time.Hour
	// maxIdle is how long a log may have been unused before its clock is doubted: such a
	// pause looks like a clock that is years ahead.
	maxIdle = 366 * 24 * time.Hour
)

// plausible is earlier than any correct time: a machine that has lost its clock starts in
// 1970, or when its firmware was made.
var plausible = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// clockGuard decides whether the clock can be trusted. Times in the log never go back, so
// a time from a wrong clock would stay for ever.
//
// The first plausible time arms it: one that is not long after the last time that the log
// has seen, nor before it. From then on the clock may not run ahead of the one that never
// jumps. Until then, and after a jump, each time is checked anew, so a clock that was set
// right is trusted without a restart.
type clockGuard struct {
	clock func() (wall time.Time, running time.Duration)
	// accept: the operator has confirmed the clock, whatever it shows
	// (Options.AcceptClock).
	accept bool
	seen   time.Time // the last time that the log has seen; zero of a new one

	armed   bool
	wall    time.Time // when the guard was armed
	running time.Duration
}

func systemClock() (time.Time, time.Duration) {
	var t unix.Timespec
	if err := unix.ClockGettime(sinceBoot, &t); err != nil {
		panic(err) // the clock is one that every system of its kind has
	}
	return time.Now().Round(0), time.Duration(t.Nano())
}

// now returns the clock's time, or an event.ErrClock if the clock cannot be trusted.
func (g *clockGuard) now() (time.Time, error) {
	wall, running := g.clock()
	if g.accept {
		return wall, nil
	}
	if g.armed {
		if due := g.wall.Add(running - g.running); wall.Sub(due) > maxJump {
			return wall, clockError(wall, "it was %s a moment ago", due)
		}
		return wall, nil
	}
	switch {
	case wall.Before(plausible):
		return wall, clockError(wall, "it cannot have been set: %s is long over", plausible)
	case g.seen.IsZero():
	case wall.Sub(g.seen) > maxIdle:
		return wall, clockError(wall, "the log was last written at %s", g.seen)
	case g.seen.Sub(wall) > maxJump:
		return wall, nil // what is logged gets later times all the same
	}
	g.armed, g.wall, g.running = true, wall, running
	return wall, nil
}

func clockError(wall time.Time, why string, at time.Time) error {
	return fmt.Errorf("%w (it says %s, and "+why+")", event.ErrClock, wall.UTC().Format(time.RFC3339), at.UTC().Format(time.RFC3339))
}

// Clock returns why the clock is not trusted, so that nothing is logged; nil when it is
// trusted.
func (l *Log) Clock() error {
	_, err := l.now()
	return err
}

// now returns the clock's time.
func (l *Log) now() (event.Micros, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wall, err := l.guard.now()
	return event.MicrosOf(wall), err
}

// observing tracks which times new events may still get.
type observing struct {
	mu sync.Mutex
	// settled is what Settled has returned last: no event gets an earlier time any more.
	settled event.Micros
	begun   map[event.Micros]int // of transactions that are not committed yet, how many at each time
}

// beginObserving returns the time of a transaction whose events are to be observed: that
// of the clock, wall, but not before what is settled. The caller must call observing.end
// when the events can be read.
func (l *Log) beginObserving() (now, wall event.Micros, err error) {
	o := &l.observing
	o.mu.Lock()
	defer o.mu.Unlock()
	if wall, err = l.now(); err != nil {
		return 0, 0, err
	}
	now = max(wall, o.settled)
	if o.begun == nil {
		o.begun = map[event.Micros]int{}
	}
	o.begun[now]++
	return now, wall, nil
}

// end records that the transaction that began at a time is committed or has failed; 0 is
// no transaction.
func (o *observing) end(began event.Micros) {
	if began == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.begun[began]--; o.begun[began] <= 0 {
		delete(o.begun, began)
	}
}

// Settled returns a time before which the log is complete: every event that was observed
// before it can be read, and no later event will be observed before it, whatever the
// clock does while this process runs. It is the present, or the time at which the oldest
// transaction under way began. It is 0 if another process writes the log, since this
// process has no such time: then everything after the newest event of a set is
// unsettled.
func (l *Log) Settled() event.Micros {
	if l.writer == nil {
		return 0
	}
	o := &l.observing
	o.mu.Lock()
	defer o.mu.Unlock()
	now, err := l.now()
	if err != nil { // the clock is not trusted
		return o.settled
	}
	for began := range o.begun {
		now = min(now, began)
	}
	o.settled = max(o.settled, now)
	return o.settled
}
