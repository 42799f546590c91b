package submit

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
const postLine, postTickets = 4000, 16_000

// key stands for a host, or for a recipient: what strangers write may be long.
type key [16]byte

func keyOf(text string) key {
	sum := sha256.Sum256([]byte(text))
	return key(sum[:16])
}

// ticket is what is kept of a notice that is due. It is read again when it is its
// turn.
type ticket struct {
	id              int64
	due             event.Micros
	tries           int
	host, recipient key
	// doubtful: where it goes, or it itself, has failed before.
	doubtful bool
}

// lane holds the tickets to one host.
type lane struct {
	line []ticket // in their order
	cut  bool     // there are more
	busy int      // how many are under way
	// doubt: nobody was there when the host was called last, so it is called once
	// at a time.
	doubt bool
}

// lanes are all that is due, by host. (A bridge names another recipient for each
// submission, all on one host.)
type lanes struct {
	senders int // how many may be under way
	hosts   map[key]*lane
	turns   []key // of hosts with tickets, in the order in which they are served
	most    int   // tickets of one host
	kept    int   // of all
	cut     bool  // there are more hosts

	// rests tells until when a host or a recipient is left alone.
	rests map[key]time.Time
	// calling are the recipients of those under way; under is how many of these keep
	// a sender, doubtful how many of these. flying are all of them, by their notice.
	calling         map[key]bool
	under, doubtful int
	flying          map[int64]*flying
}

// flying is a ticket under way.
type flying struct {
	ticket
	since time.Time
	slow  bool // it keeps no sender any more
	cut   context.CancelCauseFunc
}

func newLanes(senders int) lanes {
	return lanes{senders: senders, hosts: map[key]*lane{}, rests: map[key]time.Time{}, calling: map[key]bool{}, flying: map[int64]*flying{}}
}

// clear forgets all tickets, and the hosts of which nothing else is to be known.
func (q *lanes) clear(now time.Time) {
	q.turns, q.most, q.kept, q.cut = nil, postLine, 0, false
	for host, l := range q.hosts {
		if l.line, l.cut = nil, false; l.busy == 0 && !q.resting(host, now) {
			delete(q.hosts, host)
		}
	}
}

// add adds a ticket behind those that have been due longer.
func (q *lanes) add(n *event.OutgoingNotification) {
	t := ticket{id: n.ID, due: n.Due, tries: n.Tries, host: keyOf(hostOf(n.Recipient)), recipient: keyOf(n.Recipient)}
	l := q.hosts[t.host]
	if (l == nil || len(l.line) == 0) && q.kept >= postTickets && q.most == 1 {
		q.cut = true
		return
	}
	if l == nil {
		l = &lane{}
		q.hosts[t.host] = l
	}
	if len(l.line) >= q.most {
		l.cut = true
		return
	}
	if len(l.line) == 0 {
		q.turns = append(q.turns, t.host)
	}
	l.line = append(l.line, t)
	if q.kept++; q.kept > postTickets && q.most > 1 {
		q.shorten()
	}
}

// shorten keeps half as many tickets of one host, so that a few with very many
// hide nobody.
func (q *lanes) shorten() {
	q.most /= 2
	q.kept = 0
	for _, host := range q.turns {
		l := q.hosts[host]
		if len(l.line) > q.most {
			l.line, l.cut = slices.Clone(l.line[:q.most]), true
		}
		q.kept += len(l.line)
	}
}

// arrange puts those first that were tried least: a host that fails for some of
// its recipients only must not be busy with those alone.
func (q *lanes) arrange() {
	for _, l := range q.hosts {
		slices.SortStableFunc(l.line, func(a, b ticket) int { return cmp.Compare(a.tries, b.tries) })
	}
}

// begin returns the next ticket that may go now, of the host whose turn it is, and
// counts it as under way. emptied tells that the log has more for that place.
func (q *lanes) begin(now time.Time) (t ticket, emptied, ok bool) {
	for range q.turns {
		host := q.turns[0]
		q.turns = q.turns[1:]
		l := q.hosts[host]
		i := q.ready(host, l, now)
		if i < 0 {
			q.turns = append(q.turns, host)
			continue
		}
		t = l.line[i]
		if l.line = slices.Delete(l.line, i, i+1); len(l.line) > 0 {
			q.turns = append(q.turns, host)
		} else {
			emptied = l.cut || q.cut
		}
		q.under++
		l.busy++
		q.calling[t.recipient] = true
		if t.doubtful = l.doubt || t.tries > 0; t.doubtful {
			q.doubtful++
		}
		q.flying[t.id] = &flying{ticket: t, since: now}
		return t, emptied, true
	}
	return ticket{}, false, false
}

// ready returns the place of the first ticket in a line that may go now; -1 is
// none. To one recipient goes one at a time. At most half of the senders are for
// one host, so that a slow one does not stop the others, and at most half for what
// has failed before: what is new must not wait for that.
func (q *lanes) ready(host key, l *lane, now time.Time) int {
	half := max(1, q.senders/2)
	most := half
	if l.doubt {
		most = 1
	}
	if l.busy >= most || q.resting(host, now) || l.doubt && q.doubtful >= half {
		return -1
	}
	return slices.IndexFunc(l.line, func(t ticket) bool {
		return !q.calling[t.recipient] && !q.resting(t.recipient, now) && (t.tries == 0 || q.doubtful < half)
	})
}

// end takes a ticket back, and learns from what has become of it.
func (q *lanes) end(s *sending) {
	l := q.hosts[s.host]
	q.release(q.flying[s.id])
	delete(q.flying, s.id)
	l.busy--
	delete(q.calling, s.recipient)
	if s.notice != nil {
		l.doubt = s.down
	}
	q.rest(s.host, s.hostUntil)
	q.rest(s.recipient, s.recipientUntil)
}

// release takes the sender from a ticket under way, for another one.
func (q *lanes) release(f *flying) {
	if f.slow {
		return
	}
	f.slow = true
	q.under--
	if f.doubtful {
		q.doubtful--
	}
}

// How long a recipient may take before its sender goes on to others, and how many
// such recipients are waited for; beyond that, the one that has taken longest is given
// up until its next try. Else a few that never answer would keep all senders.
const (
	postSlow     = 2 * time.Second
	postSlowMost = 128
)

// errTarpit: too many others take as long.
var errTarpit = errors.New("it does not answer, and too many others do not either")

// relieve takes their senders from those that are slow.
func (q *lanes) relieve(now time.Time) {
	var slow []*flying
	for _, f := range q.flying {
		if now.Sub(f.since) >= postSlow {
			q.release(f)
			slow = append(slow, f)
		}
	}
	slices.SortFunc(slow, func(a, b *flying) int { return a.since.Compare(b.since) })
	for _, f := range slow[:max(0, len(slow)-postSlowMost)] {
		f.cut(errTarpit)
	}
}

// nextSlow returns when the next one under way is slow; the zero time is never.
func (q *lanes) nextSlow() (next time.Time) {
	for _, f := range q.flying {
		if at := f.since.Add(postSlow); !f.slow && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

func (q *lanes) rest(who key, until time.Time) {
	if until.After(q.rests[who]) {
		q.rests[who] = until
	}
}

func (q *lanes) resting(who key, now time.Time) bool {
	until, ok := q.rests[who]
	return ok && now.Before(until)
}

// soonest returns when the next rest is over; the zero time is never. Those that
// are over it forgets.
func (q *lanes) soonest(now time.Time) (next time.Time) {
	for who, until := range q.rests {
		switch {
		case !now.Before(until):
			delete(q.rests, who)
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
