// Package delivery sends the records of a set to an ingest server (Submitter) and
// outgoing notifications to their recipients (Notifier), until they are acknowledged.
// Files submits documents that belong to no set.
//
// A queue delivers due rows. Its loop reads what is due from the log, no more than a
// bounded number, and fewer of one host when many hosts wait. Hosts take turns. Of a
// host, the rows with the fewest tries go first, and one at a time to a subject (a
// record, a recipient). Calls are limited in all, to a host, and for what has failed
// before, so that a call that fails or hangs does not hold up the others. The effects of
// a call are decided when it ends: for the row a back-off or its end, for the host a
// pause. Of a host that is paused the queue holds nothing. The loop commits the results
// of rows, many together. Before that they are not delivered again, and when nothing can
// be committed no call begins. A row that somebody else has changed meanwhile is read and
// decided again.
//
// All state is in the log, and nothing counts as delivered before it is committed
// there: what was delivered when the process ends before that is delivered again.
package delivery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
)

const (
	// maxPerHost and maxQueued are how many items a queue holds: of one host, and of all
	// together. When there are too many in all, it holds fewer of one host.
	maxPerHost, maxQueued = 4000, 16_000
	// maxUncommitted is how many deliveries may be uncommitted before no other begins,
	// and how many are committed together.
	maxUncommitted = 256
)

// key is a hash of the name of a host or a subject: these names come from others and may
// be long.
type key [16]byte

func keyOf(text string) key {
	sum := sha256.Sum256([]byte(text))
	return key(sum[:16])
}

// item is a row that is due, and then the result of its delivery.
type item[T any] struct {
	id            int64
	due           event.Micros // after the commit: when it is due again, 0 is never
	tries         int
	host, subject key
	row           T

	began time.Time
	retry bool  // the host, or the row, has failed before
	skip  bool  // there is nothing to commit
	down  bool  // the host has not answered
	err   error // of deliver
}

// effect is the effect of a delivery on other items.
type effect struct {
	// hostUntil and subjectUntil are until when the host and the subject are paused.
	hostUntil, subjectUntil time.Time
	// answered ends the pause of the host.
	answered bool
}

// deliverer is what a queue delivers its rows with.
type deliverer[T any] interface {
	// deliver sends a row. call ends when the delivery is given up.
	deliver(call context.Context, it *item[T]) error
	// settle returns the effect of a delivery on others. The queue is locked meanwhile.
	settle(it *item[T]) effect
	// commit writes the results of items and sets when each is due again. It returns
	// those that somebody else has changed meanwhile, to be committed again.
	commit(ctx context.Context, done []item[T]) (again []item[T], err error)
}

// queue delivers due rows, as the package comment describes. The loop of its owner adds
// them, starts calls and commits. A goroutine whose call has ended goes on with the next
// item by itself. The fields above mu do not change once the queue is in use.
type queue[T any] struct {
	deliverer[T]
	now func() time.Time
	// calls is how many calls may be under way, perHost how many of one host, and retries
	// how many of items that have failed before: new items do not wait for those.
	calls, perHost, retries int
	// slow is how long a call may take at most while others wait for it; 0 is for ever.
	slow time.Duration
	// low is how many items of a host are left when the loop is asked for more.
	low int
	// wake gets a value when the loop has something to do.
	wake chan struct{}

	mu       sync.Mutex
	ended    bool // no call begins any more
	blocked  bool // nothing can be committed
	hosts    map[key]*hostQueue[T]
	order    []key // of hosts with items, in the order in which they are served
	most     int   // most items of one host
	total    int   // items of all hosts
	hidden   bool  // the log has due items of more hosts
	underWay map[int64]*call
	retrying int               // calls of items that have failed before
	subjects map[key]bool      // those that a call is under way to
	until    map[key]time.Time // when the pauses of hosts and subjects end
	claimed  map[int64]bool    // items under way, and those in done
	done     []item[T]         // not committed yet
	stale    bool              // the loop is to look for what is due
	next     time.Time         // when a row is due that is not due yet; zero is never
	workers  sync.WaitGroup
}

// hostQueue holds the due items of one host.
type hostQueue[T any] struct {
	due       []item[T]
	truncated bool // the log has more due items of the host
	// of is how many items of a subject were added. The first items, as many as unseen,
	// may still be replaced by items of other subjects.
	of     map[key]int
	unseen int
	busy   int // calls under way
	// failing: the last call got no answer, so one call at a time is made.
	failing bool
}

// call is one that is under way.
type call struct {
	began time.Time
	retry bool // that of its item
	cut   context.CancelCauseFunc
}

func newQueue[T any](q *queue[T]) *queue[T] {
	q.wake, q.stale, q.most = make(chan struct{}, 1), true, maxPerHost
	q.hosts, q.underWay, q.subjects = map[key]*hostQueue[T]{}, map[int64]*call{}, map[key]bool{}
	q.until, q.claimed = map[key]time.Time{}, map[int64]bool{}
	return q
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// reset forgets all items.
func (q *queue[T]) reset() {
	q.order, q.most, q.total, q.hidden = nil, maxPerHost, 0, false
	for _, h := range q.hosts {
		h.due, h.truncated, h.of, h.unseen = nil, false, nil, 0
	}
}

// add adds an item behind those that have been due longer. It drops an item of a host
// that is paused.
func (q *queue[T]) add(it item[T]) {
	h := q.hosts[it.host]
	switch {
	case q.claimed[it.id] || q.isPaused(it.host):
		return
	case (h == nil || len(h.due) == 0) && q.total >= maxQueued && q.most == 1:
		q.hidden = true
		return
	case h == nil:
		h = &hostQueue[T]{}
		q.hosts[it.host] = h
	}
	if len(h.due) >= q.most {
		h.truncated = true
		h.makeRoom(it)
		return
	}
	if len(h.due) == 0 {
		q.order = append(q.order, it.host)
	}
	if h.of == nil {
		h.of = map[key]int{}
	}
	h.of[it.subject]++
	if h.unseen == len(h.due) {
		h.unseen++
	}
	h.due = append(h.due, it)
	if q.total++; q.total <= maxQueued || q.most == 1 {
		return
	}
	// Halve the items of one host, so that a few hosts with very many do not hide the
	// others.
	q.most /= 2
	q.total = 0
	for _, host := range q.order {
		if h := q.hosts[host]; len(h.due) > q.most {
			cut := h.due[q.most:]
			h.due, h.truncated, h.unseen = slices.Clone(h.due[:q.most]), true, q.most
			for i := range cut {
				h.of[cut[i].subject]--
			}
			for i := range cut {
				h.makeRoom(cut[i])
			}
		}
		q.total += len(q.hosts[host].due)
	}
}

// makeRoom replaces an item of a subject that has several by an item of a subject that
// has none, so that a recipient with very many due notifications does not hide the
// others.
func (h *hostQueue[T]) makeRoom(it item[T]) {
	if h.of[it.subject] > 0 {
		return
	}
	for h.unseen = min(h.unseen, len(h.due)); h.unseen > 0; h.unseen-- {
		if last := &h.due[h.unseen-1]; h.of[last.subject] > 1 {
			h.of[last.subject]--
			h.of[it.subject] = 1
			*last = it
			return
		}
	}
}

// sort puts the items with the fewest tries first: a host that fails for some of its
// subjects only must not be busy with those alone. It forgets the hosts that have no
// items. The others are kept, with whether they are failing.
func (q *queue[T]) sort() {
	for host, h := range q.hosts {
		if len(h.due) == 0 && h.busy == 0 && !q.isPaused(host) {
			delete(q.hosts, host)
			continue
		}
		slices.SortStableFunc(h.due, func(a, b item[T]) int { return cmp.Compare(a.tries, b.tries) })
	}
}

// begin returns the next item that may be delivered now, of the host whose turn it is.
func (q *queue[T]) begin() (it item[T], ok bool) {
	if q.ended || q.blocked || len(q.underWay) >= q.calls || len(q.done) >= maxUncommitted {
		return it, false
	}
	for range q.order {
		host := q.order[0]
		q.order = q.order[1:]
		h := q.hosts[host]
		i := q.ready(host, h)
		if i < 0 {
			q.order = append(q.order, host)
			continue
		}
		it = h.due[i]
		h.due = slices.Delete(h.due, i, i+1)
		q.total--
		if len(h.due) > 0 {
			q.order = append(q.order, host)
		}
		if (h.truncated || q.hidden) && len(h.due) <= q.low {
			q.stale = true
		}
		h.busy++
		q.subjects[it.subject] = true
		if it.retry = h.failing || it.tries > 0; it.retry {
			q.retrying++
		}
		q.claimed[it.id] = true
		it.began = q.now()
		return it, true
	}
	return it, false
}

// ready returns the index of the first item of a host that may be delivered now; -1 is
// none. To one subject goes one at a time.
func (q *queue[T]) ready(host key, h *hostQueue[T]) int {
	if q.isPaused(host) || h.busy >= q.perHost || h.failing && (h.busy > 0 || q.retrying >= q.retries) {
		return -1
	}
	return slices.IndexFunc(h.due, func(it item[T]) bool {
		return !q.subjects[it.subject] && !q.isPaused(it.subject) && (it.tries == 0 || q.retrying < q.retries)
	})
}

// end takes an item back from its call, and applies the effect of its delivery.
func (q *queue[T]) end(it *item[T]) {
	h := q.hosts[it.host]
	h.busy--
	if it.retry {
		q.retrying--
	}
	delete(q.subjects, it.subject)
	delete(q.underWay, it.id)
	e := q.settle(it)
	if e.answered && q.isPaused(it.host) {
		delete(q.until, it.host)
		q.stale = true
	}
	q.pause(it.subject, e.subjectUntil)
	if q.pause(it.host, e.hostUntil) { // its items are read again when the pause ends
		q.total -= len(h.due)
		h.due = nil
		q.order = slices.DeleteFunc(q.order, func(k key) bool { return k == it.host })
	}
	if it.skip {
		delete(q.claimed, it.id)
		q.stale = true
		return
	}
	h.failing = it.down
	q.done = append(q.done, *it)
}

// pause lets no call to a host or a subject begin until a time, and reports whether that
// is later than its last pause.
func (q *queue[T]) pause(who key, until time.Time) bool {
	longer := until.After(q.until[who])
	if longer {
		q.until[who] = until
	}
	return longer
}

func (q *queue[T]) isPaused(who key) bool {
	until, ok := q.until[who]
	return ok && q.now().Before(until)
}

// errTooSlow is the cause that ends a call that has kept others waiting for too long.
var errTooSlow = errors.New("it did not answer while other deliveries were waiting")

// start begins as many calls as may be under way. When there are too many, in all or of
// items that have failed before, it ends the one of these that has taken longest, if that
// is longer than slow: else a few that never answer would stop all others. It returns
// when the next call will be too slow, zero for never. Calls end with ctx.
func (q *queue[T]) start(ctx context.Context) (slow time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		it, ok := q.begin()
		if !ok {
			break
		}
		q.work(ctx, it)
	}
	full := len(q.underWay) >= q.calls
	if q.slow == 0 || q.total == 0 || !full && q.retrying < q.retries {
		return time.Time{}
	}
	var oldest *call
	for _, c := range q.underWay {
		if (full || c.retry) && (oldest == nil || c.began.Before(oldest.began)) {
			oldest = c
		}
	}
	slow = oldest.began.Add(q.slow)
	if !q.now().Before(slow) {
		oldest.cut(errTooSlow)
	}
	return slow
}

// work delivers an item, and then others as long as some may be delivered now.
func (q *queue[T]) work(ctx context.Context, it item[T]) {
	begin := func() context.Context {
		c, cut := context.WithCancelCause(ctx)
		q.underWay[it.id] = &call{it.began, it.retry, cut}
		return c
	}
	c := begin()
	q.workers.Go(func() {
		for ok := true; ok; {
			it.err = defect.Guard(func() error { return q.deliver(c, &it) })
			if it.err != nil && context.Cause(c) == errTooSlow { //nolint:errorlint // it is set as it is
				it.down, it.err = true, errTooSlow
			}
			it.skip = it.skip || it.err != nil && ctx.Err() != nil // ended with the process
			q.mu.Lock()
			q.underWay[it.id].cut(nil)
			q.end(&it)
			if it, ok = q.begin(); ok {
				c = begin()
			}
			q.mu.Unlock()
			poke(q.wake)
		}
	})
}

// flush commits the results so far, but none that arrive meanwhile: they might never end.
func (q *queue[T]) flush(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for left := len(q.done); left > 0; {
		group := slices.Clone(q.done[:min(left, maxUncommitted)])
		q.mu.Unlock()
		var again []item[T]
		err := defect.Guard(func() (err error) {
			again, err = q.commit(ctx, group)
			return err
		})
		q.mu.Lock()
		if q.blocked = err != nil; err != nil {
			return err
		}
		left -= len(group) - len(again)
		q.done = append(again, q.done[len(group):]...)
		for i := range group {
			q.release(&group[i])
		}
		for i := range again {
			q.claimed[again[i].id] = true
		}
	}
	return nil
}

// release removes a committed item from those that are claimed.
func (q *queue[T]) release(it *item[T]) {
	delete(q.claimed, it.id)
	if at := it.due.Time(); it.due != 0 && (q.next.IsZero() || at.Before(q.next)) {
		q.next = at
	}
}

// look reports whether to query the log for what is due now, and otherwise at which time;
// zero is unknown.
func (q *queue[T]) look() (stale bool, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for who, until := range q.until {
		if !now.Before(until) {
			delete(q.until, who)
			q.stale = true
		} else {
			at = sooner(at, until)
		}
	}
	q.stale = q.stale || !q.next.IsZero() && !now.Before(q.next)
	return q.stale, sooner(at, q.next)
}

// clear empties the queue before the loop reads anew what is due.
func (q *queue[T]) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reset()
	q.stale, q.next = false, time.Time{}
}

// mark makes the loop read anew what is due.
func (q *queue[T]) mark() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stale = true
}

// busy reports whether as many calls are under way as may be.
func (q *queue[T]) busy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.underWay) >= q.calls
}

// sending reports whether calls are under way and more items wait.
func (q *queue[T]) sending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total > 0 && len(q.underWay) > 0
}

// sooner returns the earlier of two times; zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// close lets no call begin any more.
func (q *queue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
}

// stop waits for the calls under way, and begins no others.
func (q *queue[T]) stop() {
	q.close()
	q.workers.Wait()
}

// storeFirst and storeLongest are the shortest and the longest wait after a failed step.
const storeFirst, storeLongest = time.Second, 30 * time.Second

// Loop calls step until ctx ends, and wait after each step; nil waits for the time alone.
// After a step that has failed it calls failed and waits, longer each time.
func Loop(ctx context.Context, step func() (idle time.Duration, err error), wait func(idle time.Duration), failed func(err error, again time.Duration)) {
	sleep := func(idle time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(idle):
		}
	}
	if wait == nil {
		wait = sleep
	}
	for rest := time.Duration(0); ctx.Err() == nil; {
		var idle time.Duration
		err := defect.Guard(func() (err error) {
			idle, err = step()
			return err
		})
		switch {
		case ctx.Err() != nil:
		case err == nil:
			rest = 0
			wait(idle)
		default:
			rest = min(max(2*rest, storeFirst), storeLongest)
			failed(err, rest)
			sleep(rest)
		}
	}
}
