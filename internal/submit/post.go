package submit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// Mailer sends mail; *mail.Sender is one.
type Mailer interface {
	Send(context.Context, *mail.Mail) error
}

// Post delivers the notices of a log to their recipients, each at least once:
// what was delivered when the process is killed before the log knows is delivered
// again. The notices of one recipient go one at a time, the one that has been due
// longest first. There is one Post to a log.
type Post struct {
	Store Store
	// HTTP returns the client for an http or https recipient.
	HTTP func(recipient string) *sip.HTTPClient
	// Mail sends to smtp and mailto recipients; without it they wait.
	Mail Mailer
	// Workers is how many are sent at a time; 0 is 8.
	Workers int
	// First is how long after a failure a notice is tried again, doubled each time
	// up to Longest, until GiveUp has passed since it was created; 0 is a minute,
	// 6 hours, 5 days.
	First, Longest, GiveUp time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets what nobody else is told; nil is silence.
	Log *slog.Logger

	once sync.Once
	poke chan struct{}
}

// Poke tells that there may be new notices. It never blocks.
func (p *Post) Poke() {
	select {
	case p.poked() <- struct{}{}:
	default:
	}
}

func (p *Post) poked() chan struct{} {
	p.once.Do(func() { p.poke = make(chan struct{}, 1) })
	return p.poke
}

// The pace of a Post.
const (
	// postAtLeast is how long notices may wait that nobody has told it of.
	postAtLeast = time.Minute
	// postAgain is how soon it tries again what the log could not do.
	postAgain = 5 * time.Second
	// postPause is how long the log is left alone after it was asked for what is
	// due.
	postPause = 100 * time.Millisecond
	// postEnd is how long it may take to commit what was delivered at the end.
	postEnd = 5 * time.Second
	// postWindow is how many notices it looks at; when too few recipients are among
	// them to keep it busy, up to postWindows as many.
	postWindow, postWindows = 1000, 16
)

// Run delivers until ctx ends; what was delivered by then is committed before it
// returns nil. It may run once at a time. It begins with what waits, due or not:
// whoever has started the process may have mended what was in the way.
func (p *Post) Run(ctx context.Context) error {
	r := newRound(p)
	r.fresh = true
	for {
		timer := time.NewTimer(r.turn(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			r.end(ctx)
			return nil
		case s := <-r.sent:
			r.take(s)
		case <-p.poked():
			r.look = true
		case <-timer.C:
			r.look = true
		}
		timer.Stop()
	}
}

// round is a Post at work. It belongs to the goroutine of Run; senders give back
// what has become of their notice through sent.
type round struct {
	*Post
	workers              int
	first, longest, over time.Duration
	sent                 chan sending

	// lines are the due notices to each host that are not under way; hosts are
	// those with such, in the order in which they are served. (A bridge names
	// another recipient for each submission, all on one host.)
	lines map[string][]event.Notice
	hosts []string
	// held are the notices under way, and those in done.
	held map[int64]bool
	// busy counts those under way to each host, all are under; calling are their
	// recipients.
	busy    map[string]int
	under   int
	calling map[string]bool
	// done are those whose new state is not in the log yet.
	done []event.Notice

	fresh  bool      // whatever waits is due
	look   bool      // the log is to be asked what is due
	more   bool      // it has more than was looked at
	looked time.Time // when it was asked last
	next   time.Time // when the next is due that is not due yet
}

// sending is a notice that was tried.
type sending struct {
	event.Notice
	// down: its host could not be reached, so the others to it wait too.
	down bool
}

func newRound(p *Post) *round {
	or := func(d, usual time.Duration) time.Duration {
		if d > 0 {
			return d
		}
		return usual
	}
	r := &round{Post: p, workers: p.Workers, sent: make(chan sending), held: map[int64]bool{}, busy: map[string]int{}, calling: map[string]bool{}, look: true,
		first: or(p.First, time.Minute), longest: or(p.Longest, 6*time.Hour), over: or(p.GiveUp, 5*24*time.Hour)}
	if r.workers <= 0 {
		r.workers = 8
	}
	return r
}

// turn commits what is done, looks for what is due, sets senders going, and
// returns how long to wait for one of them.
func (r *round) turn(ctx context.Context) time.Duration {
	if err := r.commit(ctx); err != nil {
		return r.fail(ctx, "what became of notices could not be logged", err)
	}
	r.send(ctx)
	if !r.idle() {
		return postAtLeast
	}
	if r.look || r.more && len(r.lines) == 0 {
		if rest := postPause - time.Since(r.looked); rest > 0 {
			return rest
		}
		if err := r.load(ctx); err != nil {
			return r.fail(ctx, "the log does not tell which notices are due", err)
		}
		r.send(ctx)
	}
	if r.next.IsZero() {
		return postAtLeast
	}
	return min(postAtLeast, max(r.next.Sub(r.now()), postPause))
}

func (r *round) idle() bool {
	_, free := r.pick()
	return r.under < r.workers && !free
}

func (r *round) fail(ctx context.Context, what string, err error) time.Duration {
	if ctx.Err() == nil {
		r.log().Error(what+"; it is tried again", "error", err, "again_in", postAgain)
	}
	return postAgain
}

// load looks at what is due, and at more of it as long as that is too little to
// keep the senders busy: a host with many notices must not hide the others.
func (r *round) load(ctx context.Context) error {
	now := r.now()
	upto, soon := event.MicrosOf(now), event.MicrosOf(now.Add(postAtLeast))
	if r.fresh {
		upto, soon = math.MaxInt64, math.MaxInt64
	}
	for limit := postWindow; ; limit *= 2 {
		due, err := r.Store.Notices(ctx, soon, limit)
		r.looked = time.Now()
		if err != nil {
			return err
		}
		r.look, r.more = false, len(due) == limit
		r.line(due, upto)
		if !r.more || len(r.hosts)+len(r.busy) >= r.workers || limit >= postWindow*postWindows {
			r.fresh = false
			return nil
		}
	}
}

// line sorts what is due up to a time by host.
func (r *round) line(notices []event.Notice, upto event.Micros) {
	r.lines, r.hosts, r.next = map[string][]event.Notice{}, nil, time.Time{}
	for _, n := range notices {
		if n.Due > upto {
			r.next = n.Due.Time() // they come in the order of their times
			r.more = false
			return
		}
		if r.held[n.ID] {
			continue
		}
		host := hostOf(n.Recipient)
		if len(r.lines[host]) == 0 {
			r.hosts = append(r.hosts, host)
		}
		r.lines[host] = append(r.lines[host], n)
	}
}

// hostOf returns what answers, or does not, for a recipient: the host of a URL,
// the mail server or the domain of a mailbox.
func hostOf(recipient string) string {
	u, err := url.Parse(recipient)
	switch {
	case err != nil:
		return recipient
	case u.Host != "":
		return u.Host
	}
	return u.Opaque[strings.LastIndexByte(u.Opaque, '@')+1:]
}

// pick returns the place in its line of the next notice that may be sent, to the
// first of hosts that has one: no two to one recipient at a time, and at most
// half of the senders on one host, so that a slow one does not stop the others.
// Hosts that have none go to the end.
func (r *round) pick() (i int, ok bool) {
	for range r.hosts {
		host := r.hosts[0]
		if r.busy[host] < max(1, r.workers/2) {
			if i = slices.IndexFunc(r.lines[host], func(n event.Notice) bool { return !r.calling[n.Recipient] }); i >= 0 {
				return i, true
			}
		}
		r.hosts = append(r.hosts[1:], host)
	}
	return 0, false
}

// send sets senders going, as many as may.
func (r *round) send(ctx context.Context) {
	for r.under < r.workers {
		i, ok := r.pick()
		if !ok {
			return
		}
		host := r.hosts[0]
		n := r.lines[host][i]
		r.hosts = r.hosts[1:]
		if r.lines[host] = slices.Delete(r.lines[host], i, i+1); len(r.lines[host]) == 0 {
			delete(r.lines, host)
		} else {
			r.hosts = append(r.hosts, host)
		}
		r.under++
		r.busy[host]++
		r.calling[n.Recipient], r.held[n.ID] = true, true
		go func() { r.sent <- r.try(ctx, n) }()
	}
}

// take takes in what a sender gives back, and what others have to give by now.
func (r *round) take(s sending) {
	for {
		r.takeOne(s)
		select {
		case s = <-r.sent:
		default:
			return
		}
	}
}

func (r *round) takeOne(s sending) {
	host := hostOf(s.Recipient)
	r.under--
	if r.busy[host]--; r.busy[host] == 0 {
		delete(r.busy, host)
	}
	delete(r.calling, s.Recipient)
	r.done = append(r.done, s.Notice)
	if !s.down {
		return
	}
	// The others wait for the same moment, if they may still wait. That is no try of
	// theirs.
	line := r.lines[host]
	delete(r.lines, host)
	r.hosts = slices.DeleteFunc(r.hosts, func(h string) bool { return h == host })
	now := r.now()
	for _, n := range line {
		n.Reason = s.Reason
		switch {
		case now.Sub(n.Created.Time()) >= r.over:
			n.State, n.Due = event.NoticeExpired, 0
		case s.State == event.NoticeExpired:
			n.Due = event.MicrosOf(now.Add(r.first))
		default:
			n.Due = s.Due
		}
		r.held[n.ID] = true
		r.done = append(r.done, n)
	}
}

// commit writes the new states of notices into the log.
func (r *round) commit(ctx context.Context) error {
	if len(r.done) == 0 {
		return nil
	}
	// A notice names its submission, that names the Source, and that will do for
	// all: a batch is of one Source, notices are changed by their ID.
	s, err := r.Store.Submission(ctx, r.done[0].Submission)
	if err != nil {
		return err
	}
	if _, err := r.Store.Append(ctx, &event.Batch{Source: s.Source, Mode: event.ModeSubmission, Exchange: &event.Exchange{Notices: r.done}}); err != nil {
		return err
	}
	for i := range r.done {
		delete(r.held, r.done[i].ID)
		if due := r.done[i].Due; due != 0 && (r.next.IsZero() || due.Time().Before(r.next)) {
			r.next = due.Time()
		}
	}
	r.done = nil
	return nil
}

// end waits for the senders, whose calls end with ctx, and commits what they
// have delivered.
func (r *round) end(ctx context.Context) {
	for r.under > 0 {
		r.takeOne(<-r.sent)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postEnd)
	defer cancel()
	if err := r.commit(ctx); err != nil {
		r.log().Error("what became of notices could not be logged: they will be delivered again", "notices", len(r.done), "error", err)
	}
}

// try sends a notice, and returns it with what has become of it.
func (r *round) try(ctx context.Context, n event.Notice) sending {
	err := r.deliver(ctx, &n)
	if err != nil && ctx.Err() != nil {
		return sending{Notice: n} // broken off by the end of the process: that is no try
	}
	n.Tries++
	n.Reason, n.Due = "", 0
	var fault *sip.Fault
	answered := errors.As(err, &fault)
	switch now := r.now(); {
	case err == nil:
		n.State = event.NoticeDelivered
		return sending{Notice: n}
	case answered && fault.Code == sip.Client || mail.Permanent(err):
		n.State, answered = event.NoticeRefused, true
	case now.Sub(n.Created.Time()) >= r.over:
		n.State = event.NoticeExpired
	default:
		n.Due = event.MicrosOf(r.again(now, &n, err))
	}
	n.Reason = failureText(err)
	r.log().Warn("a notice was not delivered", "set", n.Set, "submission", n.Submission, "notice", n.ID, "state", n.State, "tries", n.Tries, "reason", n.Reason)
	return sending{Notice: n, down: !answered}
}

// again returns when a notice is tried again: after its back-off, or later if the
// recipient wants so; for the last time when it is given up.
func (r *round) again(now time.Time, n *event.Notice, err error) time.Time {
	wait := backOff(r.first, r.longest, n.Tries)
	var status *sip.StatusError
	if errors.As(err, &status) {
		wait = max(wait, min(status.RetryAfter, r.longest))
	}
	at, last := now.Add(wait), n.Created.Time().Add(r.over)
	if at.After(last) {
		return last
	}
	return at
}

// deliver sends a notice the way its recipient wants it.
func (r *round) deliver(ctx context.Context, n *event.Notice) error {
	m, err := sip.ReadDocument(n.Disposition)
	if err != nil {
		return fmt.Errorf("the stored disposition cannot be read: %w", err)
	}
	message := sip.AppendMessage(nil, m)
	scheme, _, _ := strings.Cut(n.Recipient, ":")
	if scheme = strings.ToLower(scheme); scheme == "http" || scheme == "https" {
		return r.HTTP(n.Recipient).Post(ctx, message)
	}
	to, err := mail.ParseRecipient(n.Recipient)
	switch {
	case err != nil:
		return err
	case r.Mail == nil:
		return errors.New("no mail can be sent from here: set from in [mail] of the configuration")
	}
	return r.Mail.Send(ctx, &mail.Mail{ID: n.Message, To: to, Message: message, Subject: "Ingest disposition: " + m.Disposition.Outcome.String()})
}

// failureText returns what an error of a call says, without whom it was to: a URL
// may hold what only the two know, and a mailbox is somebody's.
func failureText(err error) string {
	var fault *sip.Fault
	var status *sip.StatusError
	var several interface{ Unwrap() []error }
	switch {
	case errors.As(err, &fault):
		return clip(fault.Error())
	case errors.As(err, &status):
		return clip(status.Error())
	case errors.As(err, &several): // servers of one domain; they were asked in order
		all := several.Unwrap()
		err = all[len(all)-1]
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	return clip(err.Error())
}

func (p *Post) now() time.Time {
	if p.Now != nil {
		return p.Now()
	}
	return time.Now()
}

func (p *Post) log() *slog.Logger {
	if p.Log != nil {
		return p.Log
	}
	return slog.New(slog.DiscardHandler)
}
