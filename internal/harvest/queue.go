package harvest

import (
	"context"
	"errors"
	"net"
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
	// lastContentsTime is how long a walk waits for the last contents of a batch when
	// all others are there.
	lastContentsTime = 5 * time.Second
)

// hostState is the state of a host with contents in one harvest. A failure counts
// against the record, not the host: every record is asked for, whatever became of
// others. Only a host that cannot be reached at all is given up.
type hostState struct {
	mu sync.Mutex // guards what follows

	failed      int  // requests in a row
	unreachable int  // of these, in a row, those that had no answer because nothing answers there
	answered    bool // there was an answer, of whatever kind
	since       time.Time
}

// givenUp reports whether this harvest sends no more requests to the host.
func (h *hostState) givenUp(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.answered && h.unreachable >= troubleAfter || h.failed >= troubleAfter && now.Sub(h.since) > troubleMost
}

// record notes how a request has ended.
func (h *hostState) record(f *contentJob, now time.Time) {
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

// failing reports whether so many requests in a row have failed that each is made once
// only.
func (h *hostState) failing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed >= troubleAfter
}

// isUnreachable reports whether a request failed because the host does not answer at all.
func isUnreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, new(*net.DNSError))
}

// contentQueue asks for the contents of one batch. Each host has its own queue, in the
// order of the batch, so that a slow host does not hold up the others.
type contentQueue struct {
	r       *run
	get     func(context.Context, contentJob) contentJob
	hosts   []*hostQueue
	next    int // index of the host that is next
	running map[*atomic.Bool]context.CancelCauseFunc
	done    chan contentJob
}

// hostQueue has the jobs of one host.
type hostQueue struct {
	*hostState
	jobs    []contentJob
	running int
}

// fetchAll makes the requests and returns what came of them. It leaves out requests that
// were not made and, unless it is patient, those without an answer when all others have
// one.
func (r *run) fetchAll(ctx context.Context, jobs []contentJob, patient bool, get func(context.Context, contentJob) contentJob) []contentJob {
	q := &contentQueue{r: r, get: get, done: make(chan contentJob), running: map[*atomic.Bool]context.CancelCauseFunc{}}
	of := map[string]*hostQueue{}
	for _, j := range jobs {
		l := of[j.host]
		if l == nil {
			l = &hostQueue{hostState: r.host(j.host)}
			of[j.host] = l
			q.hosts = append(q.hosts, l)
		}
		l.jobs = append(l.jobs, j)
	}
	var out []contentJob
	var patience <-chan time.Time
	for {
		q.start(ctx)
		if len(q.running) == 0 {
			return out
		}
		if !patient && patience == nil && q.empty() {
			tick := time.NewTicker(lastContentsTime)
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
				continue // as if it had not been made
			}
			if !f.never {
				l.record(&f, r.h.now())
			}
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

// errSlow cancels requests that a walk does not wait for.
var errSlow = errors.New("slower than all others")

// host returns the state of a host in this harvest.
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

// start sends as many requests as may be under way, host by host in turn. One of several
// hosts gets half as many as a single one.
func (q *contentQueue) start(ctx context.Context) {
	each := q.r.h.workers()
	all := 4 * each
	if len(q.hosts) > 1 {
		each = max(1, each/2)
	}
	for idle := 0; idle < len(q.hosts) && len(q.running) < all && ctx.Err() == nil; {
		l := q.hosts[q.next%len(q.hosts)]
		q.next++
		if len(l.jobs) > 0 && l.givenUp(q.r.h.now()) {
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

// empty reports whether all requests were made.
func (q *contentQueue) empty() bool {
	for _, l := range q.hosts {
		if len(l.jobs) > 0 {
			return false
		}
	}
	return true
}
