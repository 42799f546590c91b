package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// Mailer sends mail; *mail.Sender is one.
type Mailer interface {
	Send(context.Context, *mail.Mail) error
}

// Notifier delivers the notices of a log to their recipients, each at least once:
// what was delivered when the process is killed before the log knows is delivered
// again. Each is tried at least once before it is given up. The notices of one
// recipient go one at a time, first those that were tried least, and among these
// the one that has been due longest. There is one Notifier to a log.
type Notifier struct {
	Store Store
	// HTTP returns the client for an http or https recipient.
	HTTP func(recipient string) *sip.HTTPClient
	// Mail sends to smtp and mailto recipients; without it they wait.
	Mail Mailer
	// Workers is how many are sent at a time; 0 is 8.
	Workers int
	// First is how long after a failure a notice is tried again, doubled each time
	// up to Longest, until GiveUp has passed since it was created; 0 is a minute,
	// 6 hours, 5 days. For as long as First nothing else goes to a recipient whose
	// answer was no good, nor to a host that could not be reached.
	First, Longest, GiveUp time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets what nobody else is told; nil is silence.
	Log *slog.Logger

	once sync.Once
	wake chan struct{}
}

// Wake tells that there may be new notices. It never blocks.
func (p *Notifier) Wake() {
	select {
	case p.wakeChan() <- struct{}{}:
	default:
	}
}

func (p *Notifier) wakeChan() chan struct{} {
	p.once.Do(func() { p.wake = make(chan struct{}, 1) })
	return p.wake
}

// The pace of a Notifier.
const (
	// notifyPoll is how long notices may wait that nobody has told it of.
	notifyPoll = time.Minute
	// notifyRetry is how soon it tries again what the log could not do.
	notifyRetry = 5 * time.Second
	// postPause is how long the log is left alone at least after it was asked for
	// what is due, postShare how many times as long as the answer took; while there
	// is something to send that is postBusy times as long.
	loadPause, loadShare, loadBusy = 100 * time.Millisecond, 4, 10
	// notifyEnd is how long it may take to commit what was delivered at the end.
	notifyEnd = 5 * time.Second
	// notifyPage is how many notices are read at a time.
	notifyPage = 64
)

// Run delivers until ctx ends; what was delivered by then is committed before it
// returns nil. It may run once at a time. It begins with what waits, due or not:
// whoever has started the process may have mended what was in the way.
func (p *Notifier) Run(ctx context.Context) error {
	r := newNotifyLoop(p)
	r.startup = true
	for {
		timer := time.NewTimer(r.step(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			r.end(ctx)
			return nil
		case s := <-r.results:
			r.takeResults(s)
		case <-p.wakeChan():
			r.stale = true
		case <-timer.C:
		}
		timer.Stop()
	}
}

// notifyLoop is a Notifier at work. It belongs to the goroutine of Run; senders give back
// what has become of their notice through sent. Of notices that wait it keeps
// tickets, and nothing that strangers have written.
type notifyLoop struct {
	*Notifier
	first, longest, giveUp time.Duration
	results                chan attempt
	hostQueues

	// claimed are the notices under way, and those in done.
	claimed map[int64]bool
	// done are those whose new state is not in the log yet.
	done []event.OutgoingNotification

	startup  bool          // whatever waits is due
	stale    bool          // the log is to be asked what is due
	loadedAt time.Time     // when it was asked last
	loadTime time.Duration // how long it took to answer
	next     time.Time     // when the next is due that is not due yet
	slow     time.Time     // when the next recipient will be slow
}

func newNotifyLoop(p *Notifier) *notifyLoop {
	return &notifyLoop{Notifier: p, results: make(chan attempt), hostQueues: newHostQueues(cmp.Or(p.Workers, 8)), claimed: map[int64]bool{}, stale: true,
		first: cmp.Or(p.First, time.Minute), longest: cmp.Or(p.Longest, 6*time.Hour), giveUp: cmp.Or(p.GiveUp, 5*24*time.Hour)}
}

// step commits what is done, looks for what is due, sets senders going, and
// returns how long to wait for one of them.
func (r *notifyLoop) step(ctx context.Context) time.Duration {
	if err := r.commit(ctx); err != nil {
		return r.fail(ctx, "what became of notices could not be logged", err)
	}
	free := r.send(ctx)
	if !r.next.IsZero() && !r.now().Before(r.next) || time.Since(r.loadedAt) >= notifyPoll {
		r.stale = true
	}
	if r.stale {
		pause := max(loadPause, loadShare*r.loadTime)
		if !free {
			pause *= loadBusy
		}
		if rest := pause - time.Since(r.loadedAt); rest > 0 {
			return rest
		}
		if err := r.load(ctx); err != nil {
			return r.fail(ctx, "the log does not tell which notices are due", err)
		}
		r.send(ctx)
	}
	return r.idle()
}

// idle is how long there is nothing to do, if nothing happens.
func (r *notifyLoop) idle() time.Duration {
	wait, now := notifyPoll-time.Since(r.loadedAt), r.now()
	for _, t := range [...]time.Time{r.next, r.soonest(now), r.slow} {
		if !t.IsZero() {
			wait = min(wait, t.Sub(now))
		}
	}
	return max(wait, loadPause)
}

func (r *notifyLoop) fail(ctx context.Context, what string, err error) time.Duration {
	if ctx.Err() == nil {
		r.log().Error(what+"; it is tried again", "error", err, "again_in", notifyRetry)
	}
	return notifyRetry
}

// load finds all that is due, a page at a time.
func (r *notifyLoop) load(ctx context.Context) error {
	now := r.now()
	upto, soon := event.MicrosOf(now), event.MicrosOf(now.Add(notifyPoll))
	// What is due later than a failure can make it was made so by a clock that went
	// wrong.
	wrong := &event.OutgoingNotification{Due: event.MicrosOf(now.Add(r.longest)), ID: math.MaxInt64}
	if r.startup {
		upto, soon, wrong = math.MaxInt64, math.MaxInt64, nil
	}
	r.clear(now)
	r.next = time.Time{}
	began := time.Now()
	err := r.each(ctx, soon, nil, func(n *event.OutgoingNotification) bool {
		if n.Due > upto {
			r.next = n.Due.Time() // they come in the order of their times
			return false
		}
		r.admit(n)
		return true
	})
	if err == nil && wrong != nil {
		err = r.each(ctx, math.MaxInt64, wrong, func(n *event.OutgoingNotification) bool { r.admit(n); return true })
	}
	r.loadedAt, r.loadTime = time.Now(), time.Since(began)
	r.stale = err != nil
	r.startup = r.startup && err != nil
	r.arrange()
	return err
}

func (r *notifyLoop) admit(n *event.OutgoingNotification) {
	if !r.claimed[n.ID] {
		r.add(n)
	}
}

// each hands out the notices that are due at a time, after another one, until one
// is the last that is wanted.
func (r *notifyLoop) each(ctx context.Context, due event.Micros, after *event.OutgoingNotification, take func(*event.OutgoingNotification) bool) error {
	for {
		page, err := r.Store.OutgoingDue(ctx, due, after, notifyPage)
		if err != nil {
			return err
		}
		for i := range page {
			if !take(&page[i]) {
				return nil
			}
		}
		if len(page) < notifyPage {
			return nil
		}
		after = &event.OutgoingNotification{Due: page[len(page)-1].Due, ID: page[len(page)-1].ID}
	}
}

// send sets senders going, as many as may, and tells whether some have nothing
// to do.
func (r *notifyLoop) send(ctx context.Context) (free bool) {
	r.freeSlow(r.now())
	defer func() { r.slow = r.nextSlow() }()
	for r.senderCount < r.senders {
		t, emptied, ok := r.begin(r.now())
		if !ok {
			return true
		}
		r.stale = r.stale || emptied
		r.claimed[t.id] = true
		call, cut := context.WithCancelCause(ctx)
		r.inFlight[t.id].cut = cut
		go func() {
			defer cut(nil)
			s := attempt{dueItem: t}
			if err := defect.Guard(func() error {
				s = r.try(ctx, call, t)
				return nil
			}); err != nil {
				s.unread = err
			}
			r.results <- s
		}()
	}
	return false
}

// takeResults takes in what a sender gives back, and what others have to give by now.
func (r *notifyLoop) takeResults(s attempt) {
	for {
		r.takeResult(s)
		select {
		case s = <-r.results:
		default:
			return
		}
	}
}

func (r *notifyLoop) takeResult(s attempt) {
	r.hostQueues.end(&s)
	if s.notice != nil {
		r.done = append(r.done, *s.notice)
		return
	}
	delete(r.claimed, s.id)
	r.stale = true
	if s.unread != nil {
		r.log().Error("a notice could not be read; it is tried again", "notice", s.id, "error", s.unread)
	}
}

// commit writes the new states of notices into the log.
func (r *notifyLoop) commit(ctx context.Context) error {
	if len(r.done) == 0 {
		return nil
	}
	// A notice names its submission, that names the Source, and that will do for
	// all: a batch is of one Source, notices are changed by their ID.
	s, err := r.Store.Submission(ctx, r.done[0].Submission)
	if err != nil {
		return err
	}
	if _, err := r.Store.Append(ctx, &event.Batch{Source: s.Source, Mode: event.ModeSubmission, Submissions: &event.SubmissionBatch{Outgoing: r.done}}); err != nil {
		return err
	}
	for i := range r.done {
		delete(r.claimed, r.done[i].ID)
		if due := r.done[i].Due; due != 0 && (r.next.IsZero() || due.Time().Before(r.next)) {
			r.next = due.Time()
		}
	}
	r.done = nil
	return nil
}

// end waits for the senders, whose calls end with ctx, and commits what they
// have delivered.
func (r *notifyLoop) end(ctx context.Context) {
	for len(r.inFlight) > 0 {
		r.takeResult(<-r.results)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyEnd)
	defer cancel()
	if err := r.commit(ctx); err != nil {
		r.log().Error("what became of notices could not be logged: they will be delivered again", "notices", len(r.done), "error", err)
	}
}

func (p *Notifier) now() time.Time {
	if p.Now != nil {
		return p.Now()
	}
	return time.Now()
}

func (p *Notifier) log() *slog.Logger {
	if p.Log != nil {
		return p.Log
	}
	return slog.New(slog.DiscardHandler)
}
