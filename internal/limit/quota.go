package limit

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Amount is how much is stored in a day; a limit of zero means no limit.
type Amount struct {
	Messages, Bytes int64
}

// Quota bounds what unauthenticated clients may store in a day, which begins at midnight
// UTC. The counts are lost when the process ends. Its methods may be called from any
// goroutine; its fields do not change.
type Quota struct {
	// PerClient is for one client (see Client), All for all of them together.
	PerClient, All Amount

	mu      sync.Mutex
	day     time.Time
	all     Amount
	clients map[netip.Addr]Amount
}

// quotaClients is how many clients are counted separately in a day; all others share one
// count.
const quotaClients = 100_000

// Take counts a message of a client that has n bytes. After a *QuotaError the message is
// not counted, and the caller refuses it.
func (q *Quota) Take(client netip.Addr, n int64, now time.Time) error {
	client = Client(client)
	day := now.UTC().Truncate(24 * time.Hour)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !day.Equal(q.day) {
		q.day, q.all, q.clients = day, Amount{}, map[netip.Addr]Amount{}
	}
	own, known := q.clients[client]
	if !known && len(q.clients) >= quotaClients {
		client = netip.Addr{}
		own = q.clients[client]
	}
	own, all := own.plus(n), q.all.plus(n)
	switch {
	case own.exceeds(q.PerClient):
		return &QuotaError{Limit: q.PerClient, Client: true, Until: day.Add(24 * time.Hour)}
	case all.exceeds(q.All):
		return &QuotaError{Limit: q.All, Until: day.Add(24 * time.Hour)}
	}
	q.clients[client], q.all = own, all
	return nil
}

func (a Amount) plus(n int64) Amount { return Amount{a.Messages + 1, a.Bytes + n} }

func (a Amount) exceeds(limit Amount) bool {
	return limit.Messages > 0 && a.Messages > limit.Messages || limit.Bytes > 0 && a.Bytes > limit.Bytes
}

// QuotaError means that the daily quota of a client, or of all clients, is used up.
type QuotaError struct {
	Limit  Amount
	Client bool // the quota of this client, not of all
	Until  time.Time
}

func (e *QuotaError) Error() string {
	who := "of all addresses together"
	if e.Client {
		who = "of one address"
	}
	most := fmt.Sprintf("%d messages", e.Limit.Messages)
	switch {
	case e.Limit.Messages == 0:
		most = fmt.Sprintf("%d bytes", e.Limit.Bytes)
	case e.Limit.Bytes > 0:
		most += fmt.Sprintf(" and %d bytes", e.Limit.Bytes)
	}
	return fmt.Sprintf("the daily quota %s is used up (%s): send it again after %s", who, most, e.Until.Format("2006-01-02 15:04 MST"))
}

const (
	// attemptsFree is how many failed attempts a client has in a row.
	attemptsFree = 10
	// attemptEvery is the time after which one of them is forgotten.
	attemptEvery = 6 * time.Second
	// attemptClients is how many clients are remembered.
	attemptClients = 10_000
)

// Attempts slows down clients that guess passwords: it allows ten failed attempts in a
// row, and then one every six seconds. Its methods may be called from any goroutine;
// the zero Attempts is ready.
type Attempts struct {
	mu     sync.Mutex
	failed map[netip.Addr]time.Time // when the last failure will be forgotten
}

// Wait returns how long a client must wait before its next attempt; 0 is no wait.
func (a *Attempts) Wait(client netip.Addr, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.failed[client]
	if !ok {
		return 0
	}
	return max(0, until.Sub(now)-(attemptsFree-1)*attemptEvery)
}

// Failed counts a failed attempt.
func (a *Attempts) Failed(client netip.Addr, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = map[netip.Addr]time.Time{}
	}
	if len(a.failed) >= attemptClients {
		for c, until := range a.failed {
			if !until.After(now) {
				delete(a.failed, c)
			}
		}
		if len(a.failed) >= attemptClients { // an attacker with so many addresses need not use one twice
			clear(a.failed)
		}
	}
	until := a.failed[client]
	if until.Before(now) {
		until = now
	}
	a.failed[client] = until.Add(attemptEvery)
}

// Client returns the address that identifies a client: an IPv4 address, or the /64 network
// of an IPv6 address, since one client usually has the whole network.
func Client(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64) // 64 bits fit
		a = p.Addr()
	}
	return a
}

// ClientOf is Client of an address with a port, as net/http and net.Conn return it. It
// returns the zero Addr for all clients without an address.
func ClientOf(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return Client(ap.Addr())
}

// linesEvery is the time until the next line.
const linesEvery = time.Minute

// LogThrottle keeps events that any client can cause from filling the server's log: the
// first one is logged at once, the following ones together, once a minute. Its methods may
// be called from any goroutine. The zero LogThrottle is ready, and is for one kind of line.
type LogThrottle struct {
	mu   sync.Mutex
	open bool // a minute has begun
	n    int  // occurrences in it that were not logged
	log  func(n int)
}

// Note counts an occurrence. It may call log, now or within a minute, with the number of
// occurrences since the last line. If another Note comes before that, the log of the last
// one is called. log must not call Note.
func (l *LogThrottle) Note(log func(n int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	l.log = log
	if !l.open {
		l.flush()
	}
}

// flush logs the count, and does so again after each minute, until there is nothing to log.
// The caller holds mu.
func (l *LogThrottle) flush() {
	if l.open = l.n > 0; !l.open {
		l.log = nil
		return
	}
	l.log(l.n)
	l.n = 0
	time.AfterFunc(linesEvery, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.flush()
	})
}
