package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// Mailer sends mail; *mail.Sender is one.
type Mailer interface {
	Send(context.Context, *mail.Mail) error
}

// Notifier delivers the outgoing notifications of a log to their recipients, each at
// least once: a notification is delivered again if the process is killed after its
// delivery and before the commit. Each is tried at least once before it is given up.
// Those of one recipient go one at a time: first those with the fewest tries, and among
// these the one that has been due longest. There is one Notifier to a log.
type Notifier struct {
	Store *store.Store
	// HTTP returns the client for an http or https recipient.
	HTTP func(recipient string) *sip.HTTPClient
	// Mail sends to smtp and mailto recipients; without it they wait.
	Mail Mailer
	// First is how long after a failure a notification is tried again, doubled each time
	// up to Longest, until GiveUp has passed since it was created; 0 is a minute, 6
	// hours, 5 days. For the time of First nothing else goes to a recipient that gave a
	// bad answer, nor to a host that could not be reached.
	First, Longest, GiveUp time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets failures that are reported nowhere else; nil discards them.
	Log *slog.Logger

	once  sync.Once
	fresh chan struct{}
}

// Wake makes Run look for new notifications. It never blocks.
func (p *Notifier) Wake() { poke(p.woken()) }

func (p *Notifier) woken() chan struct{} {
	p.once.Do(func() { p.fresh = make(chan struct{}, 1) })
	return p.fresh
}

const (
	// notifyPoll is how often Run looks for notifications without a Wake.
	notifyPoll = time.Minute
	// loadPause is the shortest pause between two queries for what is due. The pause is
	// loadShare times as long as the last query took, and loadBusy times that while no
	// other call can begin.
	loadPause, loadShare, loadBusy = 100 * time.Millisecond, 4, 10
	// notifyEnd is how long the last commit may take when Run ends.
	notifyEnd = 5 * time.Second
	// notifyPage is how many notifications are read at a time.
	notifyPage = 64
)

// Run delivers until ctx ends; what was delivered by then is committed before it returns.
// It may run once at a time. It begins with all that waits, due or not: a restart often
// follows a repair.
func (p *Notifier) Run(ctx context.Context) {
	r := newNotifyLoop(p)
	r.startup = true
	defer context.AfterFunc(ctx, r.close)() // a step may take long
	Loop(ctx, func() (time.Duration, error) { return r.step(ctx) }, func(idle time.Duration) {
		timer := time.NewTimer(idle)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-p.woken():
			r.mark()
		case <-timer.C:
		}
	}, func(err error, again time.Duration) {
		r.log.Error("notifications wait for the log", "error", err, "again_in", again)
		defect.Log(r.log, err)
	})
	r.stop()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyEnd)
	defer cancel()
	if err := r.flush(end); err != nil {
		r.log.Error("the results of notifications could not be logged: they will be delivered again", "notifications", len(r.done), "error", err)
	}
}

// notifyLoop is a running Notifier. Its queue keeps no texts of notifications that wait:
// they are read again when it is their turn.
type notifyLoop struct {
	*Notifier
	*queue[*submission.OutgoingNotification]
	first, longest, giveUp time.Duration
	log                    *slog.Logger

	startup  bool          // all that waits is due
	loadedAt time.Time     // when the log was queried last
	loadTime time.Duration // how long that took

	damaged map[int64]bool // those that cannot be read, and were logged
}

func newNotifyLoop(p *Notifier) *notifyLoop {
	r := &notifyLoop{Notifier: p, first: cmp.Or(p.First, time.Minute), longest: cmp.Or(p.Longest, 6*time.Hour), giveUp: cmp.Or(p.GiveUp, 5*24*time.Hour), log: p.Log}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	now := p.Now
	if now == nil {
		now = time.Now
	}
	r.queue = newQueue(&queue[*submission.OutgoingNotification]{deliverer: r, now: now, calls: 128, perHost: 4, retries: 64, slow: 2 * time.Second})
	return r
}

// step commits results, looks for what is due and starts calls. It returns how long there
// is nothing else to do.
func (r *notifyLoop) step(ctx context.Context) (time.Duration, error) {
	if err := r.flush(context.WithoutCancel(ctx)); err != nil {
		return 0, fmt.Errorf("log their results: %w", err)
	}
	slow := r.start(ctx)
	stale, at := r.look()
	since := time.Since(r.loadedAt)
	idle := notifyPoll - since
	if stale || idle <= 0 {
		pause := max(loadPause, loadShare*r.loadTime)
		if r.busy() {
			pause *= loadBusy
		}
		if at, idle = (time.Time{}), pause-since; idle <= 0 {
			if err := r.load(ctx); err != nil {
				return 0, fmt.Errorf("read which are due: %w", err)
			}
			slow, idle = r.start(ctx), notifyPoll
			_, at = r.look()
		}
	}
	if at = sooner(at, slow); !at.IsZero() {
		idle = min(idle, at.Sub(r.now()))
	}
	return max(idle, loadPause), nil
}

// load finds all that is due, a page at a time.
func (r *notifyLoop) load(ctx context.Context) error {
	now, began := r.now(), time.Now()
	defer func() { r.loadedAt, r.loadTime = time.Now(), time.Since(began) }()
	upto, soon := event.MicrosOf(now), event.MicrosOf(now.Add(notifyPoll))
	// A notification that is due later than any back-off allows was saved while the clock
	// was wrong.
	wrong := &submission.OutgoingNotification{Due: event.MicrosOf(now.Add(r.longest)), ID: math.MaxInt64}
	if r.startup {
		upto, soon, wrong = math.MaxInt64, math.MaxInt64, nil
	}
	r.clear()
	err := r.read(ctx, soon, nil, upto)
	if err == nil && wrong != nil {
		err = r.read(ctx, math.MaxInt64, wrong, math.MaxInt64)
	}
	r.startup = r.startup && err != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stale = r.stale || err != nil
	r.sort()
	return err
}

// read adds the notifications that are due at a time, after another one, up to the
// first that is due later than upto.
func (r *notifyLoop) read(ctx context.Context, due event.Micros, after *submission.OutgoingNotification, upto event.Micros) error {
	for {
		page, err := r.Store.OutgoingDue(ctx, due, after, notifyPage)
		if err != nil {
			return err
		}
		passed := after
		r.mu.Lock()
		for i := range page {
			n := &page[i]
			if n.Due != 0 {
				passed = n
			}
			if n.State == 0 {
				r.reportDamaged(n.ID)
				continue
			}
			if n.Due > upto { // they come in the order of their times
				r.next = n.Due.Time()
				r.mu.Unlock()
				return nil
			}
			r.add(item[*submission.OutgoingNotification]{id: n.ID, due: n.Due, tries: n.Tries, host: keyOf(hostOf(n.Recipient)), subject: keyOf(n.Recipient)})
		}
		r.mu.Unlock()
		if len(page) < notifyPage || passed == after {
			return nil
		}
		after = &submission.OutgoingNotification{Due: passed.Due, ID: passed.ID}
	}
}

// reportDamaged logs once that a notification cannot be delivered. It must not keep others from
// that.
func (r *notifyLoop) reportDamaged(id int64) {
	if r.damaged == nil {
		r.damaged = map[int64]bool{}
	}
	if !r.damaged[id] {
		r.damaged[id] = true
		r.log.Error("a notification is damaged in the log, and is not sent: run bridge verify", "notification", id)
	}
}

// hostOf returns the part of a recipient that has to answer: the host of a URL with its
// scheme, or the domain of a mailbox.
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

// deliver reads a notification and sends it by HTTP or mail, as its recipient's URL
// demands.
func (r *notifyLoop) deliver(ctx context.Context, it *item[*submission.OutgoingNotification]) error {
	it.skip = true
	n, err := r.Store.OutgoingNotification(ctx, it.id)
	if err != nil || n.Due != it.due {
		if err != nil && ctx.Err() == nil {
			r.log.Error("a notification could not be read; it is tried again", "notification", it.id, "error", err)
		}
		return err
	}
	it.row, it.skip = n, false
	m, err := sip.ReadDocument(n.Disposition)
	if err != nil {
		return fmt.Errorf("the stored disposition cannot be read: %w", err)
	}
	message := sip.AppendMessage(nil, m)
	scheme, _, _ := strings.Cut(n.Recipient, ":")
	if scheme = strings.ToLower(scheme); scheme == "http" || scheme == "https" {
		err = r.HTTP(n.Recipient).Post(ctx, message)
		it.down = !errors.As(err, new(*sip.Fault)) && !errors.As(err, new(*sip.StatusError)) && sip.Temporary(err)
		return err
	}
	to, err := mail.ParseRecipient(n.Recipient)
	switch {
	case err != nil:
		return err
	case r.Mail == nil:
		return errors.New("no mail can be sent from here: set from in [mail] of the configuration")
	}
	err = r.Mail.Send(ctx, &mail.Mail{ID: n.Message, To: to, Message: message, Subject: "Ingest disposition: " + m.Disposition.Outcome.String()})
	it.down = err != nil && !mail.Answered(err)
	return err
}

// settle sets the state of a notification that has been delivered, or refused, and returns
// the pauses of its recipient and its host.
func (r *notifyLoop) settle(it *item[*submission.OutgoingNotification]) (e effect) {
	if it.skip {
		return e
	}
	var fault *sip.Fault
	var status *sip.StatusError
	n, now, faulted := it.row, r.now(), errors.As(it.err, &fault)
	errors.As(it.err, &status)
	n.Tries++
	n.Reason, n.Due = "", 0
	switch {
	case it.err == nil:
		n.State = submission.DeliveryDone
		return e
	case faulted && fault.Code == sip.Client || mail.Permanent(it.err):
		n.State, n.Reason = submission.DeliveryRefused, FailureText(it.err)
		return e
	}
	n.Reason = FailureText(it.err)
	switch {
	case it.down:
		e.hostUntil = now.Add(r.first)
	case faulted: // that is about this notification
	case status != nil && status.RetryAfter > 0 && (status.Status == http.StatusTooManyRequests || status.Status == http.StatusServiceUnavailable):
		e.hostUntil = now.Add(min(status.RetryAfter, r.longest))
	default:
		e.subjectUntil = now.Add(r.first)
	}
	return e
}

// postpone sets when a notification that has failed is tried again, or gives it up.
func (r *notifyLoop) postpone(n *submission.OutgoingNotification, err error) {
	now := r.now()
	if now.Sub(n.Created.Time()) >= r.giveUp {
		n.State = submission.DeliveryExpired
		return
	}
	// After its back-off, or later if the recipient asks for that; for the last time when it is given up.
	wait := submission.BackOff(r.first, r.longest, n.Tries)
	if status, ok := errors.AsType[*sip.StatusError](err); ok {
		wait = max(wait, min(status.RetryAfter, r.longest))
	}
	n.Due = event.MicrosOf(sooner(now.Add(wait), n.Created.Time().Add(r.giveUp)))
}

// commit writes the new states of notifications into the log. It may be called again with the
// same ones, after the log did not believe the clock: so it is decided here when each is due.
func (r *notifyLoop) commit(ctx context.Context, done []item[*submission.OutgoingNotification]) (again []item[*submission.OutgoingNotification], err error) {
	changed := make([]submission.OutgoingNotification, len(done))
	for i := range done {
		changed[i] = *done[i].row
		if changed[i].State == submission.DeliveryWaiting {
			r.postpone(&changed[i], done[i].err)
		}
		done[i].due = changed[i].Due
	}
	// A batch has one Source, and any one will do: notifications are changed by their ID.
	if _, err := r.Store.Write(ctx, &submission.Batch{Source: changed[0].Source, Outgoing: changed}); err != nil {
		return nil, err
	}
	for i := range done {
		if err := done[i].err; err != nil {
			n := &changed[i]
			r.log.Warn("a notification was not delivered", "set", n.Set, "submission", n.Submission, "notification", n.ID, "state", n.State.String(), "tries", n.Tries, "reason", n.Reason)
			defect.Log(r.log, err)
		}
	}
	return nil, nil
}

// FailureText returns the text of an error of a call without the recipient: a URL may
// hold a secret, and a mailbox is personal data.
func FailureText(err error) string {
	var fault *sip.Fault
	var status *sip.StatusError
	var several interface{ Unwrap() []error }
	switch {
	case errors.As(err, &fault):
		return submission.Clip(fault.Error())
	case errors.As(err, &status):
		return submission.Clip(status.Error())
	case errors.As(err, &several): // servers of one domain; they were asked in order
		all := several.Unwrap()
		err = all[len(all)-1]
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	return submission.Clip(err.Error())
}
