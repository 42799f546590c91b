package harvest

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/fetch"
)

const (
	// troubleAfter is how many requests for contents of one host in a row have to
	// fail before its contents are asked for once each and not several times.
	troubleAfter = 8
	// troubleMost is how long one harvest goes on asking a host where all fail.
	troubleMost = 10 * time.Minute
	// slowContents is how long a walk waits for the last contents of a batch once
	// all others are there.
	slowContents = 5 * time.Second
)

// hostState is what one harvest has found out about a host with contents. A
// failure counts against the record: whatever others do, every record is asked
// for. Only a host that cannot be reached at all is left alone.
type hostState struct {
	mu sync.Mutex // guards what follows

	failed      int  // requests in a row
	unreachable int  // of these, in a row, those that had no answer because nothing answers there
	answered    bool // there was an answer, of whatever kind
	since       time.Time
}

// leave reports whether the host is asked for nothing more in this harvest.
func (h *hostState) leave(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.answered && h.unreachable >= troubleAfter || h.failed >= troubleAfter && now.Sub(h.since) > troubleMost
}

// took takes note of how a request has ended.
func (h *hostState) took(f *fetched, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if isUnreachable(f.err) {
		h.unreachable++
	} else {
		h.unreachable, h.answered = 0, true
	}
	if !f.waiting() && h.unreachable == 0 {
		h.failed = 0
		return
	}
	if h.failed++; h.failed == 1 {
		h.since = now
	}
}

// failing reports whether so many requests in a row have failed that each is worth
// no more than one attempt.
func (h *hostState) failing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed >= troubleAfter
}

// isUnreachable reports whether a request failed because nothing answers at the
// host, whatever is asked for.
func isUnreachable(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns)
}

// queue asks for the contents of one batch. Each host has its own line, in the
// order of the batch, so that none keeps the others waiting.
type queue struct {
	r       *run
	get     func(context.Context, fetched) fetched
	lines   []*line
	next    int // the line whose turn it is
	running map[*atomic.Bool]context.CancelCauseFunc
	done    chan fetched
}

// line is the jobs of one host.
type line struct {
	*hostState
	jobs    []fetched
	running int
}

// fetchAll asks for everything and returns what came of it. What its host was not
// asked for is not among it; nor is, during a walk, what has no answer yet when
// all else is there.
func (r *run) fetchAll(ctx context.Context, jobs []fetched, get func(context.Context, fetched) fetched) []fetched {
	q := &queue{r: r, get: get, done: make(chan fetched), running: map[*atomic.Bool]context.CancelCauseFunc{}}
	of := map[string]*line{}
	for _, j := range jobs {
		l := of[j.host]
		if l == nil {
			l = &line{hostState: r.host(j.host)}
			of[j.host] = l
			q.lines = append(q.lines, l)
		}
		l.jobs = append(l.jobs, j)
	}
	var out []fetched
	var patience <-chan time.Time
	for {
		q.start(ctx)
		if len(q.running) == 0 {
			return out
		}
		if r.hurry && patience == nil && q.empty() {
			tick := time.NewTicker(slowContents)
			defer tick.Stop()
			patience = tick.C
		}
		select {
		case f := <-q.done:
			q.running[f.waits](nil)
			delete(q.running, f.waits)
			l := of[f.host]
			l.running--
			if errors.Is(f.err, errSlow) || errors.Is(f.err, fetch.ErrWait) {
				continue // it counts as not asked for
			}
			l.took(&f, r.h.now())
			out = append(out, f)
		case <-patience:
			for waits, cancel := range q.running {
				if waits.Load() {
					cancel(errSlow)
				}
			}
		}
	}
}

// errSlow ends requests that a walk does not wait for.
var errSlow = errors.New("slower than all others")

// host returns what is known of a host.
func (r *run) host(name string) *hostState {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hosts[name]
	if h == nil {
		if r.hosts == nil {
			r.hosts = map[string]*hostState{}
		}
		h = &hostState{}
		r.hosts[name] = h
	}
	return h
}

// start sends as many requests as may be under way, the hosts in turn. One host
// among several gets half of what one alone gets.
func (q *queue) start(ctx context.Context) {
	each := q.r.h.workers()
	all := 4 * each
	if len(q.lines) > 1 {
		each = max(1, each/2)
	}
	for idle := 0; idle < len(q.lines) && len(q.running) < all && ctx.Err() == nil; {
		l := q.lines[q.next%len(q.lines)]
		q.next++
		if len(l.jobs) > 0 && l.leave(q.r.h.now()) {
			l.jobs = nil
		}
		if len(l.jobs) == 0 || l.running >= each {
			idle++
			continue
		}
		idle = 0
		j := l.jobs[0]
		l.jobs = l.jobs[1:]
		l.running++
		asking, cancel := context.WithCancelCause(ctx)
		q.running[j.waits] = cancel
		if l.failing() {
			asking = fetch.Once(asking)
		}
		go func() { q.done <- q.get(asking, j) }()
	}
}

// empty reports whether everything was asked for.
func (q *queue) empty() bool {
	for _, l := range q.lines {
		if len(l.jobs) > 0 {
			return false
		}
	}
	return true
}

func hostOf(href string) string {
	u, err := url.Parse(href)
	if err != nil {
		return ""
	}
	return u.Host
}
