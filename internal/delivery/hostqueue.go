package delivery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// How many tickets are kept: of one host, and of all together. When there are too
// many, it is fewer of one host.
const maxPerHost, maxQueued = 4000, 16_000

// hostKey stands for a host, or for a recipient: what strangers write may be long.
type hostKey [16]byte

func hostKeyOf(text string) hostKey {
	sum := sha256.Sum256([]byte(text))
	return hostKey(sum[:16])
}

// dueItem is what is kept of a notice that is due. It is read again when it is its
// turn.
type dueItem struct {
	id              int64
	due             event.Micros
	tries           int
	host, recipient hostKey
	// retry: where it goes, or it itself, has failed before.
	retry bool
}

// hostQueue holds the due items of one host.
type hostQueue struct {
	due       []dueItem // in their order
	truncated bool      // there are more
	busy      int       // how many are under way
	// failing: nobody was there when the host was called last, so it is called once
	// at a time.
	failing bool
}

// hostQueues are all that is due, by host. (A bridge names another recipient for each
// submission, all on one host.)
type hostQueues struct {
	senders   int // how many may be under way
	hosts     map[hostKey]*hostQueue
	order     []hostKey // of hosts with tickets, in the order in which they are served
	perHost   int       // tickets of one host
	total     int       // of all
	truncated bool      // there are more hosts

	// busyUntil tells until when a host or a recipient is left alone.
	busyUntil map[hostKey]time.Time
	// recipients are the recipients of those under way; under is how many of these keep
	// a sender, doubtful how many of these. flying are all of them, by their notice.
	recipients           map[hostKey]bool
	senderCount, retries int
	inFlight             map[int64]*inFlight
}

// inFlight is an item under way.
type inFlight struct {
	dueItem
	since time.Time
	slow  bool // it keeps no sender any more
	cut   context.CancelCauseFunc
}

func newHostQueues(senders int) hostQueues {
	return hostQueues{senders: senders, hosts: map[hostKey]*hostQueue{}, busyUntil: map[hostKey]time.Time{}, recipients: map[hostKey]bool{}, inFlight: map[int64]*inFlight{}}
}

// clear forgets all tickets, and the hosts of which nothing else is to be known.
func (q *hostQueues) clear(now time.Time) {
	q.order, q.perHost, q.total, q.truncated = nil, maxPerHost, 0, false
	for host, l := range q.hosts {
		if l.due, l.truncated = nil, false; l.busy == 0 && !q.heldOff(host, now) {
			delete(q.hosts, host)
		}
	}
}

// add adds an item behind those that have been due longer.
func (q *hostQueues) add(n *event.OutgoingNotification) {
	t := dueItem{id: n.ID, due: n.Due, tries: n.Tries, host: hostKeyOf(hostOf(n.Recipient)), recipient: hostKeyOf(n.Recipient)}
	l := q.hosts[t.host]
	if (l == nil || len(l.due) == 0) && q.total >= maxQueued && q.perHost == 1 {
		q.truncated = true
		return
	}
	if l == nil {
		l = &hostQueue{}
		q.hosts[t.host] = l
	}
	if len(l.due) >= q.perHost {
		l.truncated = true
		return
	}
	if len(l.due) == 0 {
		q.order = append(q.order, t.host)
	}
	l.due = append(l.due, t)
	if q.total++; q.total > maxQueued && q.perHost > 1 {
		q.shorten()
	}
}

// shorten keeps half as many tickets of one host, so that a few with very many
// hide nobody.
func (q *hostQueues) shorten() {
	q.perHost /= 2
	q.total = 0
	for _, host := range q.order {
		l := q.hosts[host]
		if len(l.due) > q.perHost {
			l.due, l.truncated = slices.Clone(l.due[:q.perHost]), true
		}
		q.total += len(l.due)
	}
}

// arrange puts those first that were tried least: a host that fails for some of
// its recipients only must not be busy with those alone.
func (q *hostQueues) arrange() {
	for _, l := range q.hosts {
		slices.SortStableFunc(l.due, func(a, b dueItem) int { return cmp.Compare(a.tries, b.tries) })
	}
}

// begin returns the next ticket that may go now, of the host whose turn it is, and
// counts it as under way. emptied tells that the log has more for that place.
func (q *hostQueues) begin(now time.Time) (t dueItem, emptied, ok bool) {
	for range q.order {
		host := q.order[0]
		q.order = q.order[1:]
		l := q.hosts[host]
		i := q.ready(host, l, now)
		if i < 0 {
			q.order = append(q.order, host)
			continue
		}
		t = l.due[i]
		if l.due = slices.Delete(l.due, i, i+1); len(l.due) > 0 {
			q.order = append(q.order, host)
		} else {
			emptied = l.truncated || q.truncated
		}
		q.senderCount++
		l.busy++
		q.recipients[t.recipient] = true
		if t.retry = l.failing || t.tries > 0; t.retry {
			q.retries++
		}
		q.inFlight[t.id] = &inFlight{dueItem: t, since: now}
		return t, emptied, true
	}
	return dueItem{}, false, false
}

// ready returns the place of the first ticket in a line that may go now; -1 is
// none. To one recipient goes one at a time. At most half of the senders are for
// one host, so that a slow one does not stop the others, and at most half for what
// has failed before: what is new must not wait for that.
func (q *hostQueues) ready(host hostKey, l *hostQueue, now time.Time) int {
	half := max(1, q.senders/2)
	most := half
	if l.failing {
		most = 1
	}
	if l.busy >= most || q.heldOff(host, now) || l.failing && q.retries >= half {
		return -1
	}
	return slices.IndexFunc(l.due, func(t dueItem) bool {
		return !q.recipients[t.recipient] && !q.heldOff(t.recipient, now) && (t.tries == 0 || q.retries < half)
	})
}

// end takes a ticket back, and learns from what has become of it.
func (q *hostQueues) end(s *attempt) {
	l := q.hosts[s.host]
	q.release(q.inFlight[s.id])
	delete(q.inFlight, s.id)
	l.busy--
	delete(q.recipients, s.recipient)
	if s.notice != nil {
		l.failing = s.down
	}
	q.holdOff(s.host, s.hostUntil)
	q.holdOff(s.recipient, s.recipientUntil)
}

// release takes the sender from a ticket under way, for another one.
func (q *hostQueues) release(f *inFlight) {
	if f.slow {
		return
	}
	f.slow = true
	q.senderCount--
	if f.retry {
		q.retries--
	}
}

// How long a recipient may take before its sender goes on to others, and how many
// such recipients are waited for; beyond that, the one that has taken longest is given
// up until its next try. Else a few that never answer would keep all senders.
const (
	slowAfter = 2 * time.Second
	maxSlow   = 128
)

// errTooSlow: too many others take as long.
var errTooSlow = errors.New("it does not answer, and too many others do not either")

// freeSlow takes their senders from those that are slow.
func (q *hostQueues) freeSlow(now time.Time) {
	var slow []*inFlight
	for _, f := range q.inFlight {
		if now.Sub(f.since) >= slowAfter {
			q.release(f)
			slow = append(slow, f)
		}
	}
	slices.SortFunc(slow, func(a, b *inFlight) int { return a.since.Compare(b.since) })
	for _, f := range slow[:max(0, len(slow)-maxSlow)] {
		f.cut(errTooSlow)
	}
}

// nextSlow returns when the next one under way is slow; the zero time is never.
func (q *hostQueues) nextSlow() (next time.Time) {
	for _, f := range q.inFlight {
		if at := f.since.Add(slowAfter); !f.slow && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

func (q *hostQueues) holdOff(who hostKey, until time.Time) {
	if until.After(q.busyUntil[who]) {
		q.busyUntil[who] = until
	}
}

func (q *hostQueues) heldOff(who hostKey, now time.Time) bool {
	until, ok := q.busyUntil[who]
	return ok && now.Before(until)
}

// soonest returns when the next rest is over; the zero time is never. Those that
// are over it forgets.
func (q *hostQueues) soonest(now time.Time) (next time.Time) {
	for who, until := range q.busyUntil {
		switch {
		case !now.Before(until):
			delete(q.busyUntil, who)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return next
}

// hostOf returns what answers, or does not, for a recipient: the host of a URL
// with its scheme, or the domain of a mailbox.
func hostOf(recipient string) string {
	u, err := url.Parse(recipient)
	switch {
	case err != nil:
		return recipient
	case u.Host != "":
		return u.Scheme + "://" + strings.ToLower(u.Host)
	}
	return strings.ToLower(u.Opaque[strings.LastIndexByte(u.Opaque, '@')+1:])
}
