package delivery

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// fate is what happens at a point where something leaves or reaches a process.
type fate uint8

const (
	goesWell fate = iota
	// fails: it does not happen. cutOff: it happens, and fails all the same.
	fails
	cutOff
	// refused: a message certainly does not leave.
	refused
	// muted: a message arrives, and is answered 202 and nothing more. Elsewhere all
	// goes well.
	muted
	// killed: the process ends before it, or right after it.
	killedBefore
	killedAfter
)

var fateNames = map[fate]string{fails: "fails", cutOff: "cut off", refused: "refused", muted: "muted", killedBefore: "killed before", killedAfter: "killed after"}

var errKilled = errors.New("the process is dead")

// life is that of one process: a sequence of points, until it is killed.
type life struct {
	mu     sync.Mutex
	plan   func(n int, point string) fate // nil: all goes well
	points []string
	dead   bool
}

func (l *life) enter(point string) fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return killedBefore
	}
	l.points = append(l.points, point)
	f := goesWell
	if l.plan != nil {
		f = l.plan(len(l.points), point)
	}
	l.dead = f == killedBefore
	return f
}

func (l *life) leave(f fate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = l.dead || f == killedAfter
	return !l.dead
}

// calm lets all go well from here on.
func (l *life) calm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plan = nil
}

// pass does something at a point, as fate has it.
func (l *life) pass(point string, do func() error) error {
	f := l.enter(point)
	switch f {
	case killedBefore:
		return errKilled
	case fails, refused:
		return errBroken
	}
	err := do()
	switch {
	case !l.leave(f):
		return errKilled
	case f == cutOff:
		return errBroken
	}
	return err
}

// livingStore and livingWire are what a process has of the world
// as long as it lives.
type livingStore struct {
	Store
	life *life
}

func (s livingStore) Write(ctx context.Context, b *submission.Batch) (out submission.Written, err error) {
	err = s.life.pass("append", func() error { out, err = s.Store.Write(ctx, b); return err })
	return out, err
}

func (s livingStore) OutgoingDue(ctx context.Context, due event.Micros, after *submission.OutgoingNotification, limit int) (out []submission.OutgoingNotification, err error) {
	err = s.life.pass("notices", func() error { out, err = s.Store.OutgoingDue(ctx, due, after, limit); return err })
	return out, err
}

type livingWire struct {
	http.RoundTripper
	life  *life
	point string
}

func (w livingWire) RoundTrip(r *http.Request) (*http.Response, error) {
	f := w.life.enter(w.point)
	switch f {
	case killedBefore:
		return nil, errKilled
	case refused:
		return nil, errBroken
	case fails:
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		return nil, errBroken
	}
	resp, err := w.RoundTripper.RoundTrip(r)
	if err == nil && f == muted {
		resp.Body.Close()
		resp = &http.Response{StatusCode: http.StatusAccepted, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: r}
	}
	if alive := w.life.leave(f); err == nil && (!alive || f == cutOff) {
		resp.Body.Close()
		return nil, errBroken
	}
	return resp, err
}
