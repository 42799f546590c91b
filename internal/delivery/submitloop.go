package delivery

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// submitLoop is a Submitter at work. One goroutine reads and writes the log and holds
// all of this; the workers get jobs and give reports back. Neither channel ever
// blocks: a record is in hand from its job until its report has been committed,
// and no more are in hand than a channel holds.
type submitLoop struct {
	s       *Submitter
	jobs    chan job
	reports chan report
	breaker breaker

	loaded     bool
	lastSeq    event.Seq         // the last event that was taken in
	moreEvents bool              // there may be events after it
	changed    <-chan struct{}   // closed when there are; nil is to be asked for anew
	waiting    map[string]queued // by record
	inHand     map[string]int64  // the row of each record that is with the workers, or with done
	done       []report          // not committed yet

	importDue bool // there may be accepted records that are to be passed on
	accepted  int  // how many were since the last time

	calls        sync.WaitGroup // the workers', and the one for the properties
	listings     chan listing
	asking       bool
	formats      []string  // that the server lists; nil is not known
	formatsUntil time.Time // when it has to list them again
	expiry       time.Time // when deadlines are looked at next
	checkedAt    time.Time // when it was last looked for what is due
	memory       memory    // what the log keeps of how the server fails
}

// queued is a row that waits, and the newest of its record.
type queued struct {
	id            int64
	due, deadline event.Micros
}

func queuedAs(id int64, s *event.Submission) queued { return queued{id, s.Due, s.Deadline} }

// job is a submission that is to be sent.
type job struct {
	event.Submission
	formats []string
}

// report is what has come of a job. The submission is as it was when that was
// decided.
type report struct {
	event.Submission
	Reply
	// unsent is why it cannot be sent.
	unsent string
	// local: nothing was sent, since the content could not be had.
	local bool
	// skipped: nothing has happened.
	skipped bool
	// expired: its deadline has come.
	expired bool
}

// listing is what the server has answered to get-properties.
type listing struct {
	*sip.Properties
	err error
}

const (
	formatsKept = time.Hour
	expiryPoll  = time.Minute
)

func newSubmitLoop(o *Submitter) *submitLoop {
	return &submitLoop{s: o, jobs: make(chan job, groupLimit), reports: make(chan report, groupLimit), moreEvents: true, importDue: true, inHand: map[string]int64{}, listings: make(chan listing, 1)}
}

// run goes round until ctx ends, or the log can be written no more.
func (d *submitLoop) run(ctx, calls context.Context) error {
	rest := time.Duration(0)
	for ctx.Err() == nil {
		if d.changed == nil {
			d.changed = d.s.Events.Changed() // before the events are read, so that none is missed
		}
		err := defect.Guard(func() error { return d.round(ctx, calls) })
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			if d.s.Fatal != nil && d.s.Fatal(err) {
				return err
			}
			d.loaded = false // the log knows what has happened all the same
			rest = min(max(2*rest, storeFirst), storeLongest)
			d.s.Log.Error("submissions wait for the log", "error", err, "again_in", rest)
			defect.Log(d.s.Log, err)
			d.wait(ctx, rest, nil)
			continue
		}
		rest = 0
		if d.loaded && len(d.done) == 0 && (!d.moreEvents || d.full()) {
			d.wait(ctx, d.idle(), d.reports)
		}
	}
	return nil
}

// round does what there is to do.
func (d *submitLoop) round(ctx, calls context.Context) error {
	if !d.loaded {
		if err := d.load(ctx); err != nil {
			return err
		}
	}
	// What was answered is committed although ctx has ended.
	if err := d.commit(calls); err != nil {
		return err
	}
	if err := d.enqueueChanges(ctx); err != nil {
		return err
	}
	if now := d.s.Now(); !now.Before(d.expiry) {
		if err := d.expire(ctx, now); err != nil {
			return err
		}
		d.expiry = now.Add(min(max(d.s.Deadline/100, expiryPoll), submission.MaxRetry))
	}
	if err := d.dispatch(ctx); err != nil {
		return err
	}
	// While answers come quickly many are passed on together, and else at once.
	if len(d.reports) == 0 || d.accepted >= groupLimit {
		if err := d.importAccepted(calls); err != nil {
			return err
		}
	}
	return d.saveFailure(calls) // the last: it may be long until the next round
}

// full tells that there is no room for more events.
func (d *submitLoop) full() bool { return len(d.waiting)+chunkLimit > maxQueuedRows }

// wait waits for something to do, and takes reports.
func (d *submitLoop) wait(ctx context.Context, longest time.Duration, reports <-chan report) {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-d.changed:
		d.changed, d.moreEvents = nil, true
	case <-d.s.Reload:
		d.loaded = false
	case <-d.s.ImportPending:
		d.importDue = true
	case l := <-d.listings:
		d.listed(l)
	case r := <-reports:
		d.done = append(d.done, r)
	}
}

// idle is how long there is nothing to do, if nothing happens. While something is
// in hand, its report is what happens next. What has come due since the last look
// at the rows is still to come.
func (d *submitLoop) idle() time.Duration {
	next := d.expiry
	sooner := func(at time.Time) bool {
		if at.After(d.checkedAt) && at.Before(next) {
			next = at
		}
		return at.After(d.checkedAt)
	}
	if !sooner(d.breaker.retryAt()) && len(d.inHand) == 0 {
		for _, w := range d.waiting {
			sooner(w.due.Time())
		}
	}
	return next.Sub(d.s.Now())
}

// dispatch gives what is due to the workers.
func (d *submitLoop) dispatch(ctx context.Context) error {
	now := d.s.Now()
	d.checkedAt = now
	if len(d.waiting) == 0 || len(d.inHand) > groupLimit/2 || !d.breaker.allows(now) {
		return nil
	}
	if !d.s.SkipProperties && (d.formats == nil || !now.Before(d.formatsUntil) || d.breaker.takeProbe()) {
		d.ask(ctx)
	}
	if d.asking && !d.hasListed() {
		return nil
	}
	rows, err := d.s.Store.SubmissionsDue(ctx, d.s.Source, event.StateWaiting, event.MicrosOf(now), nil, groupLimit+len(d.inHand))
	if err != nil {
		return err
	}
	if len(rows) == 0 && len(d.inHand) == 0 { // answers that came as notifications have made room
		maps.DeleteFunc(d.waiting, func(_ string, w queued) bool { return w.due <= event.MicrosOf(now) })
	}
	due, err := d.assignTokens(ctx, d.next(rows))
	if err != nil {
		return err
	}
	for _, s := range due {
		d.inHand[s.Record] = s.ID
		if overdue(s, now) {
			d.done = append(d.done, report{Submission: *s, expired: true})
		} else {
			d.jobs <- job{*s, d.formats}
		}
	}
	return nil
}

// next picks those of the rows that are due whose turn it is.
func (d *submitLoop) next(rows []event.Submission) (due []*event.Submission) {
	for i := range rows {
		switch s := &rows[i]; {
		case d.inHand[s.Record] != 0 || len(d.inHand)+len(due) == groupLimit:
		case d.waiting[s.Record].id != s.ID:
			d.loaded = false // somebody has put it there: is it the last word on its record?
		default:
			due = append(due, s)
		}
	}
	return due
}

// ask asks the server for its properties, beside everything else.
func (d *submitLoop) ask(ctx context.Context) {
	if d.asking {
		return
	}
	d.asking = true
	d.calls.Go(func() {
		var p *sip.Properties
		err := defect.Guard(func() (err error) {
			p, err = d.s.Server.GetProperties(ctx)
			return err
		})
		if ctx.Err() == nil { // else it says nothing of the server
			d.listings <- listing{p, err}
		}
	})
}

// hasListed takes the answer if it is there, and tells whether it is a good one:
// as long as there are many events to take in nobody waits for it.
func (d *submitLoop) hasListed() bool {
	select {
	case l := <-d.listings:
		d.listed(l)
		return l.err == nil
	default:
		return false
	}
}

// listed takes the answer.
func (d *submitLoop) listed(l listing) {
	d.asking = false
	now := d.s.Now()
	if l.err != nil {
		d.formats = nil
		d.warn(d.breaker.failed(d.s.Every, now, now, l.err, true), l.err)
		return
	}
	d.breaker.listed()
	d.formats, d.formatsUntil = l.Formats, now.Add(formatsKept)
}

func overdue(s *event.Submission, now time.Time) bool {
	return s.Deadline != 0 && s.Deadline <= event.MicrosOf(now)
}

// expire ends what has had no answer before its deadline.
func (d *submitLoop) expire(ctx context.Context, now time.Time) error {
	for record, w := range d.waiting {
		if w.deadline == 0 || w.deadline > event.MicrosOf(now) || d.inHand[record] != 0 {
			continue
		}
		s, err := d.s.Store.Submission(ctx, w.id)
		if err != nil {
			return err
		}
		d.done = append(d.done, report{Submission: *s, expired: true})
	}
	if err := d.commit(ctx); err != nil {
		return err
	}
	return Expire(ctx, d.s.Store, d.s.Source, []event.State{event.StateProvisional}, now, d.commitUpdates(ctx))
}

// commit takes the reports that there are, and writes what follows from them, a
// group at a time. What cannot be written is kept.
func (d *submitLoop) commit(ctx context.Context) error {
	for {
		for more := true; more; {
			select {
			case r := <-d.reports:
				d.done = append(d.done, r)
			default:
				more = false
			}
		}
		if len(d.done) == 0 {
			return nil
		}
		late, err := d.commitGroup(ctx, d.done[:min(len(d.done), groupLimit)])
		if err != nil {
			return err
		}
		d.done = append(late, d.done[min(len(d.done), groupLimit):]...)
	}
}

// commitGroup returns those whose submission somebody else has changed, as it is
// now, to be decided anew.
func (d *submitLoop) commitGroup(ctx context.Context, group []report) (late []report, err error) {
	var steps []event.SubmissionUpdate
	var of []int // the report of each step
	for i := range group {
		step, ok := d.s.update(&group[i])
		if !ok {
			continue
		}
		steps, of = append(steps, step), append(of, i)
		if step.Submission.ImportPending {
			d.importDue = true
			d.accepted++
		}
	}
	var out event.Appended
	if len(steps) > 0 {
		if out, err = d.append(ctx, steps); err != nil {
			return nil, err
		}
	}
	for _, n := range out.Stale {
		now, err := d.s.Store.Submission(ctx, group[of[n]].ID)
		if err != nil {
			return nil, err
		}
		r := group[of[n]]
		r.Submission = *now
		late = append(late, r)
	}
	for n, i := range of {
		group[i].Submission = steps[n].Submission
	}
	for i := range group {
		if !slices.ContainsFunc(late, func(r report) bool { return r.ID == group[i].ID }) {
			d.release(&group[i].Submission)
		}
	}
	return late, nil
}

// release lets the record of a submission go, as it is now.
func (d *submitLoop) release(s *event.Submission) {
	if d.inHand[s.Record] == s.ID {
		delete(d.inHand, s.Record)
	}
	switch {
	case d.waiting[s.Record].id != s.ID:
	case s.State == event.StateWaiting:
		d.waiting[s.Record] = queuedAs(s.ID, s)
	default:
		delete(d.waiting, s.Record)
	}
}

// shutdown writes what was answered after ctx has ended.
func (d *submitLoop) shutdown(ctx context.Context) {
	if err := d.commit(ctx); err != nil {
		d.s.Log.Error("answers could not be logged, and are asked for again by the next run", "error", err)
		return
	}
	if err := d.saveFailure(ctx); err != nil {
		d.s.Log.Error("how the ingest server fails could not be logged", "error", err)
	}
	if err := d.importAccepted(ctx); err != nil {
		d.s.Log.Error("accepted records could not be taken into the other set, which the next run does", "error", err)
	}
}

// update returns what follows from a report for its submission; false is nothing: a
// notification was faster, or a later change has replaced it.
func (o *Submitter) update(r *report) (event.SubmissionUpdate, bool) {
	var in submission.Input
	switch {
	case r.skipped:
		return event.SubmissionUpdate{}, false
	case r.Disposition != nil:
		in = submission.Disposition{State: submission.StateAfter(r.Disposition), Assigned: r.Disposition.AssignedIdentifier, Reason: r.Disposition.Reason, Deadline: o.Deadline, Reply: true}
	case r.expired:
		in = submission.Expire{}
	case r.unsent != "":
		in = submission.Unsendable{Reason: r.unsent}
	case r.local:
		in = submission.Failure{Class: submission.NotTried, Reason: submission.Clip(r.Err.Error()), Retry: o.Every}
	default:
		in = submission.Failure{Class: r.Failure(), Reason: submission.Clip(r.Err.Error()), Retry: o.Every, RetryAfter: retryAfter(r.Err), Deadline: o.Deadline}
	}
	next, effects := submission.Apply(r.Submission, in, o.Now())
	u := event.SubmissionUpdate{Submission: next, Rejected: effects.Rejected}
	if effects.Resolution == event.Contradicts {
		u.Incoming = submission.Contradiction(&next, r.Disposition, nil)
	}
	return u, effects.Changed
}
