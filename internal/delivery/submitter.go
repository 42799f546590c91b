package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

// Submitter submits the records of a set to an ingest server: it is a target of that set.
// The log keeps a target as a Source of kind "submit", which is never the authority of a
// record.
//
// Every change of a record becomes a row in the log, a submission, which waits there
// until it is answered. So a process that ends loses nothing. At worst the next one
// submits a record again whose answer was not committed.
type Submitter struct {
	Set    string
	Source event.SourceID
	// URL of the ingest server, as the log's documents name it.
	URL      string
	Store    *store.Store
	Contents *content.Store
	// Server is asked for its properties first, and gets only records in a format that it
	// lists. With SkipProperties it gets every record, and is not asked: the draft gives
	// that operation no document, so a server need not support ours.
	Server         Upstream
	SkipProperties bool
	// Formats are the URLs of schemas by the root element of a record. A record
	// whose root is not among them is of the format that its own
	// xsi:schemaLocation names.
	Formats map[xml.Name]string
	// Submitter and Sequence describe the source of each record; nil and "" are
	// left out.
	Submitter *sip.Submitter
	Sequence  string
	// Recipient returns the URL of the notification recipient for a token; with
	// nil, or "", none is named.
	Recipient func(token string) string
	// Deadline is how long an answer may be missing before a submission counts as
	// unresolved; 0 is 168 hours.
	Deadline time.Duration
	// Every is how long a failed request waits before it is sent again, doubled
	// each time up to an hour; 0 is a minute.
	Every time.Duration
	// Workers is how many requests are under way at a time; 0 is 4.
	Workers int
	// ImportTo is the Source of kind sip of the set that imports the accepted records,
	// and ImportURL its URL in the log; 0 is none. Records that are accepted while there
	// is none are imported later.
	ImportTo  event.SourceID
	ImportURL string
	// ImportPending gets a value when a notification has committed that a record was
	// accepted (see ingest.Server.ImportPending); nil never has one.
	ImportPending <-chan struct{}
	// Reload gets a value when Resend has put rows into the queue; nil never has one.
	Reload <-chan struct{}
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets failures; nil discards them.
	Log *slog.Logger
	// Failed is called with each error of the log, also of reading; Run then tries again.
	// It may be nil.
	Failed func(error)

	maxFresh int // less than the constant in tests; 0 is the constant
}

// DefaultDeadline is how long a decision may take if Deadline is 0.
const DefaultDeadline = 7 * 24 * time.Hour

const (
	// maxFresh and maxWaiting are how many rows wait at most: of those that nothing was
	// tried with yet, and of all. Later events are read when there is room. So records that
	// a server never takes keep no others from being read.
	maxFresh, maxWaiting = 20_000, 200_000
	// pageItems is how many rows that are due are read at a time.
	pageItems = 512
	// pageRepeats is how many rows whose deadline has begun are read with a page of those
	// that nothing was tried with yet. As many failures alone do not open the breaker.
	pageRepeats = breakerThreshold - 1
	// chunkLimit is how many events are read at a time.
	chunkLimit = 1000
	// shutdownGrace is how long requests under way may still be answered when the process
	// ends: a request that is broken off has to be sent again.
	shutdownGrace = 5 * time.Second
)

// Run reads the changes of the set and submits them, until ctx ends. It must not run
// twice at a time for one target.
func (o *Submitter) Run(ctx context.Context) {
	calls, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	d := newSubmitLoop(o.withDefaults())
	defer context.AfterFunc(ctx, d.close)() // a step may take long
	Loop(ctx, func() (time.Duration, error) {
		if d.changed == nil {
			d.changed = d.s.Store.Changed() // before the events are read, so that none is missed
		}
		return d.step(ctx, calls)
	}, func(idle time.Duration) { d.wait(ctx, idle) }, func(err error, again time.Duration) {
		d.loaded = false // the commit may have taken effect all the same
		if d.s.Failed != nil {
			d.s.Failed(err)
		}
		d.s.Log.Error("submissions wait for the log", "error", err, "again_in", again)
		defect.Log(d.s.Log, err)
	})
	late := time.AfterFunc(shutdownGrace, cut)
	defer late.Stop()
	d.stop()
	d.shutdown(context.WithoutCancel(ctx))
}

func (o *Submitter) withDefaults() *Submitter {
	c := *o
	c.Deadline = cmp.Or(c.Deadline, DefaultDeadline)
	c.Every = cmp.Or(c.Every, time.Minute)
	c.Workers = cmp.Or(c.Workers, 4)
	c.maxFresh = cmp.Or(c.maxFresh, maxFresh)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("set", c.Set, "target", c.URL)
	return &c
}

// submitLoop is a running Submitter. Unless a field says otherwise it belongs to the
// goroutine of Run.
type submitLoop struct {
	s *Submitter
	*queue[*report]
	breaker breaker // guarded by the lock of the queue

	loaded     bool
	lastSeq    event.Seq              // the last event that was read
	moreEvents bool                   // there may be events after it
	changed    <-chan struct{}        // closed when there are; nil has to be fetched anew
	waiting    map[key]int64          // the row of each record that waits
	fresh      map[int64]struct{}     // the rows among them that nothing was tried with yet
	expiring   map[int64]event.Micros // when those are due whose deadline has begun
	importDue  bool                   // there may be accepted records that are to be imported
	accepted   int                    // how many were since the last import
	expiry     time.Time              // when deadlines are looked at next
	stored     *Failure               // the failure of the server that the log has
	version    int64                  // of stored, compared and swapped; -1 before it was read
	remembers  bool                   // stored and version are what the log has

	properties properties
	damaged    Damaged
}

// report is a submission and the result of sending it.
type report struct {
	submission.Submission
	Reply
	unsent  string // why it cannot be sent
	local   bool   // nothing was sent, for a reason on our side
	expired bool   // its deadline has come
	sent    bool
	// listed: the server has sent its properties; unlisted: that request has failed.
	listed, unlisted bool
}

func newSubmitLoop(o *Submitter) *submitLoop {
	d := &submitLoop{s: o, moreEvents: true, importDue: true, version: -1, properties: properties{turn: make(chan struct{}, 1)}}
	d.queue = newQueue(&queue[*report]{deliverer: d, now: o.Now, calls: o.Workers, perHost: o.Workers, retries: o.Workers, low: pageItems / 4})
	return d
}

// step does all that can be done now, and returns how long there is nothing else to do.
func (d *submitLoop) step(ctx, calls context.Context) (time.Duration, error) {
	if err := d.load(ctx); err != nil {
		return 0, err
	}
	// Commit the answers although ctx has ended.
	if err := d.flush(calls); err != nil {
		return 0, err
	}
	if err := d.enqueueChanges(ctx); err != nil {
		return 0, err
	}
	if now := d.s.Now(); !now.Before(d.expiry) || d.expiry.Sub(now) > submission.MaxRetry {
		if err := Expire(ctx, d.s.Store, d.s.Source, now, d.sound, d.isClaimed); err != nil {
			return 0, err
		}
		if err := d.hurry(ctx, now); err != nil {
			return 0, err
		}
		d.expiry = now.Add(min(max(d.s.Deadline/100, time.Minute), submission.MaxRetry))
		d.loaded = !d.full() // rows that have expired or were answered have made room
	}
	if stale, _ := d.look(); stale {
		if err := d.fill(ctx); err != nil {
			return 0, err
		}
	}
	d.start(calls)
	// While answers come quickly many are imported together, else each at once.
	if !d.sending() || d.accepted >= maxUncommitted {
		if err := d.importAccepted(calls); err != nil {
			return 0, err
		}
	}
	if err := d.saveFailure(calls); err != nil { // do this last: it may be long until the next step
		return 0, err
	}
	if !d.loaded || d.moreEvents && !d.full() {
		return 0, nil
	}
	_, at := d.look()
	return sooner(at, d.expiry).Sub(d.s.Now()), nil
}

// hurry makes rows due that are to be sent later than any can be: they were put off while the
// clock was ahead. It leaves deadlines alone, which load corrects: should it be now that the
// clock is wrong, and behind, they would end too early.
func (d *submitLoop) hurry(ctx context.Context, now time.Time) error {
	const spare, never = time.Minute, 100 * 366 * 24 * time.Hour
	longest := &submission.Submission{Due: event.MicrosOf(now.Add(max(submission.MaxRetry, d.s.Every) + spare)), ID: math.MaxInt64}
	err := applyToAll(ctx, d.s.Store, d.s.Source, []submission.State{submission.StateWaiting}, longest, math.MaxInt64,
		submission.LimitWait{Retry: d.s.Every, Deadline: never}, now, d.sound, d.isClaimed)
	d.mark()
	return err
}

// full reports whether there is no room for more events.
func (d *submitLoop) full() bool {
	return len(d.fresh)+chunkLimit > d.s.maxFresh || len(d.waiting)+chunkLimit > maxWaiting
}

// remember notes that a row waits, or that it does not.
func (d *submitLoop) remember(s *submission.Submission) {
	record := keyOf(s.Record)
	delete(d.fresh, s.ID)
	delete(d.expiring, s.ID)
	switch {
	case s.State == submission.StateWaiting:
		d.waiting[record] = s.ID
		switch {
		case s.Tries == 0 && s.Reason == "":
			d.fresh[s.ID] = struct{}{}
		case s.Deadline != 0:
			d.expiring[s.ID] = s.Due
		}
	case d.waiting[record] == s.ID:
		delete(d.waiting, record)
	}
}

// wait waits for something to do.
func (d *submitLoop) wait(ctx context.Context, idle time.Duration) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-d.wake:
	case <-d.changed:
		d.changed, d.moreEvents = nil, true
	case <-d.s.Reload:
		d.loaded = false
	case <-d.s.ImportPending:
		d.importDue = true
	}
}

// shutdown commits the answers that arrive after ctx has ended.
func (d *submitLoop) shutdown(ctx context.Context) {
	if err := d.flush(ctx); err != nil {
		d.s.Log.Error("answers could not be logged; the next run requests them again", "error", err)
		return
	}
	if err := d.saveFailure(ctx); err != nil {
		d.s.Log.Error("the failures of the ingest server could not be logged", "error", err)
	}
	if err := d.importAccepted(ctx); err != nil {
		d.s.Log.Error("accepted records could not be imported into the other set; the next run imports them", "error", err)
	}
}

// load reads how far the submissions have come, unless that is known.
func (d *submitLoop) load(ctx context.Context) error {
	if d.loaded {
		return nil
	}
	if !d.remembers {
		p, err := d.s.Store.Progress(ctx, d.s.Source)
		if err != nil {
			return err
		}
		if d.stored, err = StoredFailure(&p); err != nil {
			return err
		}
		if d.version < 0 { // later the breaker knows more than the log
			d.breaker.failure = d.stored
		}
		d.version, d.remembers = p.Cursor.Version, true
	}
	newest, err := d.s.Store.LastSubmitted(ctx, d.s.Source)
	if err != nil {
		return err
	}
	d.lastSeq = max(d.lastSeq, newest)
	d.waiting, d.fresh, d.expiring = map[key]int64{}, map[int64]struct{}{}, map[int64]event.Micros{}
	query := submission.Query{Source: d.s.Source, States: []submission.State{submission.StateWaiting}, Limit: chunkLimit, Damaged: true}
	for whole := true; whole; {
		rows, err := d.s.Store.Submissions(ctx, query)
		if err != nil {
			return err
		}
		if whole = len(rows) == chunkLimit; whole {
			query.After = rows[len(rows)-1].ID
		}
		if err := d.check(ctx, d.sound(rows)); err != nil {
			return err
		}
	}
	if err := LimitWaits(ctx, d.s.Store, d.s.Source, d.s.Now(), d.s.Deadline, d.sound); err != nil {
		return err
	}
	d.appended(true)
	d.loaded = true
	return nil
}

// sound removes damaged rows from rows that were read: nothing is done with them.
func (d *submitLoop) sound(rows []submission.Submission) []submission.Submission {
	for i := range rows {
		if s := &rows[i]; s.State == 0 {
			delete(d.fresh, s.ID)
			delete(d.expiring, s.ID)
		}
	}
	return d.damaged.Remove(d.s.Log, rows)
}

// check adds rows that wait, and corrects those that should not wait, or not so long.
// Only the row of a record's last change may wait: a row may have been put back into the
// queue while its record changed. A row that was made while the clock was ahead must not
// wait for years.
func (d *submitLoop) check(ctx context.Context, rows []submission.Submission) error {
	seqs := make([]event.Seq, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
	}
	latest, err := d.s.Store.Latest(ctx, d.s.Set, seqs)
	if err != nil {
		return err
	}
	now := d.s.Now()
	var updates []submission.Update
	for i := range rows {
		var in submission.Input = submission.LimitWait{Retry: d.s.Every, Deadline: d.s.Deadline}
		if !latest[rows[i].Seq] {
			in = submission.Replace{}
		}
		s, effects := submission.Apply(rows[i], in, now)
		if effects.Changed {
			updates = append(updates, submission.Update{Submission: s})
		}
		d.remember(&s)
	}
	if len(updates) > 0 {
		_, err = d.append(ctx, updates) // if one is stale, a disposition came first
	}
	return err
}

// enqueueChanges makes submissions of the next events, when there is room for them. A
// submission of the same record that waits is replaced.
func (d *submitLoop) enqueueChanges(ctx context.Context) error {
	if !d.moreEvents || d.full() {
		return nil
	}
	rows, upto, all, err := d.changes(ctx)
	if err != nil {
		return err
	}
	var updates []submission.Update
	for i := range rows {
		if id, ok := d.waiting[keyOf(rows[i].Record)]; ok {
			old, err := d.s.Store.SubmissionsOf(ctx, []int64{id})
			if err != nil {
				return err
			}
			for _, s := range d.sound(old) {
				if replaced, effects := submission.Apply(s, submission.Replace{}, d.s.Now()); effects.Changed {
					updates = append(updates, submission.Update{Submission: replaced})
				}
			}
		}
		updates = append(updates, submission.Update{Submission: rows[i]})
	}
	if len(updates) > 0 {
		// One that is stale was answered meanwhile.
		out, err := d.append(ctx, updates)
		if err != nil {
			return err
		}
		for i := range updates {
			s := &updates[i].Submission
			s.ID = out.IDs[i]
			d.remember(s)
		}
		d.appended(len(updates) > len(rows))
	}
	d.lastSeq, d.moreEvents = upto, !all
	return nil
}

// appended makes the queue read new rows. If some have replaced others it also forgets
// its items: an old version must not be sent after this.
func (d *submitLoop) appended(replaced bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.hosts[key{}]; h != nil && len(h.due) > d.low && h.due[d.low].tries == 0 && !replaced {
		h.truncated = true // they are read in their turn
		return
	}
	if replaced {
		d.reset()
	}
	d.stale = true
}

// changes reads the next events and returns new submissions of those that are the last
// events of their records, how far it has read, and whether that is all there is.
func (d *submitLoop) changes(ctx context.Context) (out []submission.Submission, upto event.Seq, all bool, err error) {
	upto = d.lastSeq
	n := 0
	for ev, err := range d.s.Store.Events(ctx, d.s.Set, event.Range{After: d.lastSeq, Upto: math.MaxInt64}) {
		if err != nil {
			return nil, 0, false, err
		}
		if upto = ev.Seq; ev.Kind != event.Rejected {
			out = append(out, d.s.row(ev))
		}
		if n++; n == chunkLimit {
			break
		}
	}
	seqs := make([]event.Seq, len(out))
	for i := range out {
		seqs[i] = out[i].Seq
	}
	latest, err := d.s.Store.Latest(ctx, d.s.Set, seqs)
	out = slices.DeleteFunc(out, func(s submission.Submission) bool { return !latest[s.Seq] })
	return out, upto, n < chunkLimit, err
}

// fill reads what is due: first the rows that nothing was tried with yet, however many
// others are due, and then those that have been due longest. With a whole page of the
// former it reads a few whose deadline has begun, which may end before it is their turn.
func (d *submitLoop) fill(ctx context.Context) error {
	now, damaged := event.MicrosOf(d.s.Now()), d.damaged.number()
	ids, repeats, claimed, paused := d.room(now)
	if paused {
		return nil
	}
	rows, err := d.s.Store.SubmissionsOf(ctx, repeats)
	if err != nil {
		return err
	}
	rows = d.sound(rows)
	repeated := len(rows)
	fresh, err := d.s.Store.SubmissionsOf(ctx, ids)
	if err != nil {
		return err
	}
	rows = append(rows, d.sound(fresh)...)
	for _, id := range ids {
		delete(d.fresh, id)
	}
	for i := range rows {
		d.remember(&rows[i]) // unless it was answered in a notification
	}
	more := len(ids) == pageItems
	var next []submission.Submission
	if !more {
		limit := pageItems + claimed
		if len(rows) > 0 {
			limit = d.low + claimed + len(rows) // so that more is read when these rows have been sent
		}
		limit += damaged // they stay due
		due, err := d.s.Store.SubmissionsDue(ctx, d.s.Source, submission.StateWaiting, now, nil, limit)
		if err != nil {
			return err
		}
		if more = len(due) == limit; !more {
			if next, err = d.s.Store.SubmissionsDue(ctx, d.s.Source, submission.StateWaiting, math.MaxInt64, &submission.Submission{Due: now, ID: math.MaxInt64}, 1+damaged); err != nil {
				return err
			}
			next = d.sound(next)
		}
		due = d.sound(due)
		for i := range due {
			if _, ok := d.fresh[due[i].ID]; !ok {
				rows = append(rows, due[i])
			}
		}
	}
	if len(rows) == 0 && d.full() {
		d.loaded = false // rows that were answered in notifications have made room
	}
	d.clear()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range rows {
		if s := &rows[i]; d.waiting[keyOf(s.Record)] == s.ID {
			tries := s.Tries
			if i < repeated {
				tries = 0 // or all others would come first
			}
			d.add(item[*report]{id: s.ID, due: s.Due, tries: tries, subject: keyOf(s.Record), row: &report{Submission: *s}})
		} else if s.State == submission.StateWaiting && !d.claimed[s.ID] {
			d.loaded = false // another process has put it there: check whether it has the record's last change
		}
	}
	if h := d.hosts[key{}]; h != nil {
		h.truncated = more
	}
	for i := range next {
		d.next = sooner(d.next, next[i].Due.Time())
	}
	d.stale = d.stale || d.damaged.number() > damaged // others may be behind these
	d.sort()
	return nil
}

// room returns the oldest of the rows that nothing was tried with yet and that are not
// claimed, if these are a page those whose deadline has begun and that have been due
// longest, how many rows are claimed, and whether the server is paused.
func (d *submitLoop) room(now event.Micros) (fresh, repeats []int64, claimed int, paused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if paused = d.isPaused(key{}); paused {
		d.next = time.Time{} // the next time is the end of the pause
		return nil, nil, 0, true
	}
	for id := range d.fresh {
		if !d.claimed[id] {
			fresh = append(fresh, id)
		}
	}
	slices.Sort(fresh)
	if len(fresh) >= pageItems {
		fresh = fresh[:pageItems]
		for id, due := range d.expiring {
			if due <= now && !d.claimed[id] {
				repeats = append(repeats, id)
			}
		}
		slices.SortFunc(repeats, func(a, b int64) int { return cmp.Compare(d.expiring[a], d.expiring[b]) })
		repeats = repeats[:min(len(repeats), pageRepeats)]
	}
	return fresh, repeats, len(d.claimed), false
}

func (d *submitLoop) isClaimed(id int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claimed[id]
}

// deliver sends a submission.
func (d *submitLoop) deliver(ctx context.Context, it *item[*report]) error {
	r := it.row
	if r.Deadline != 0 && r.Deadline <= event.MicrosOf(it.began) {
		r.expired = true
		return nil
	}
	formats, err := d.formats(ctx, it)
	if err != nil {
		it.skip = true
		return err
	}
	if r.Token == "" && d.s.Recipient != nil {
		// It must be in the log before a notification can name it.
		r.Token = NewToken()
		out, err := d.append(ctx, []submission.Update{{Submission: r.Submission}})
		if err != nil || len(out.Stale) > 0 {
			r.Token, r.local, r.Err = "", true, err
			it.skip = err == nil // it was answered meanwhile
			return err
		}
		r.Version++
	}
	if request := d.s.request(ctx, r, formats); request != nil {
		r.sent = true
		r.Reply = Ask(ctx, d.s.Server, request)
	}
	return r.Err
}

// properties are the properties of the server. They belong to the call that has the turn.
type properties struct {
	turn     chan struct{}
	formats  []string  // nil is not known
	until    time.Time // when the server has to list them again
	failedAt time.Time
	failure  error
	// probe: after a failure the next call asks for the properties first.
	probe atomic.Bool
}

// formatsKept is how long a list of formats is used before the server is asked again.
const formatsKept = time.Hour

// formats returns the formats that the server lists. If several calls need them at once,
// one of them asks.
func (d *submitLoop) formats(ctx context.Context, it *item[*report]) ([]string, error) {
	if d.s.SkipProperties {
		return nil, nil
	}
	p := &d.properties
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.turn }()
	switch {
	case p.formats != nil && d.s.Now().Before(p.until) && !p.probe.Load():
		return p.formats, nil
	case p.failure != nil && !p.failedAt.Before(it.began):
		return nil, p.failure
	}
	told, err := d.s.Server.GetProperties(ctx)
	p.probe.Store(false)
	p.failure, p.failedAt, p.formats = err, d.s.Now(), nil
	if err != nil {
		it.row.unlisted = ctx.Err() == nil // else the server is not the cause
		return nil, err
	}
	it.row.listed = true
	p.formats, p.until = told.Formats, p.failedAt.Add(formatsKept)
	return p.formats, nil
}

// settle notes whether the server answers, and returns the pauses that follow.
func (d *submitLoop) settle(it *item[*report]) (e effect) {
	r := it.row
	if errors.As(it.err, new(*defect.Error)) {
		r.local, r.Err, it.skip = true, it.err, false
	}
	if r.listed && d.breaker.failure != nil && d.breaker.failure.Properties {
		d.breaker.failure = nil // it may still fail when it gets a record
	}
	switch {
	case r.unlisted:
	case it.skip, r.local, !r.sent:
		return e
	case r.Err == nil || AboutRecord(r.Err):
		d.breaker.failures, d.breaker.failure = 0, nil
		e.answered = true // and with that the pause ends: this call may have been under way when the others failed
		return e
	}
	d.properties.probe.Store(true)
	if pause := d.breaker.failed(d.s.Every, it.began, d.s.Now(), it.err, r.unlisted); pause > 0 {
		e.hostUntil = d.s.Now().Add(pause)
		d.s.Log.Warn("the ingest server fails; no request is sent for a while", "error", it.err, "again_in", pause)
	}
	return e
}

// commit writes the results of reports.
func (d *submitLoop) commit(ctx context.Context, done []item[*report]) (again []item[*report], err error) {
	var updates []submission.Update
	var of []int // the report of each update
	for i := range done {
		r := done[i].row
		if r.local && submission.Clip(r.Err.Error()) != r.Reason { // the same failure is logged once for a record
			d.s.Log.Error("a record could not be submitted", "record", r.Record, "error", r.Err)
			defect.Log(d.s.Log, r.Err)
		}
		if u, ok := d.s.update(r); ok {
			updates, of = append(updates, u), append(of, i)
			d.importDue = d.importDue || u.Submission.ImportPending
			d.accepted++
		}
	}
	var out submission.Written
	if len(updates) > 0 {
		if out, err = d.append(ctx, updates); err != nil {
			return nil, err
		}
	}
	for n, i := range of {
		if !slices.Contains(out.Stale, n) {
			done[i].row.Submission = updates[n].Submission
			continue
		}
		now, err := d.s.Store.SubmissionsOf(ctx, []int64{done[i].id})
		if err != nil {
			return nil, err
		}
		if now = d.sound(now); len(now) == 0 {
			done[i].row.Due = 0
			continue
		}
		done[i].row.Submission = now[0]
		again = append(again, done[i])
	}
	for i := range done {
		s := &done[i].row.Submission
		if done[i].due = s.Due; d.waiting[keyOf(s.Record)] == s.ID {
			d.remember(s)
		}
	}
	return again, nil
}

// update returns the update of a report's submission; false is none: a notification came
// first, or a later change has replaced it.
func (o *Submitter) update(r *report) (submission.Update, bool) {
	var in submission.Input
	switch {
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
	u := submission.Update{Submission: next, Rejected: effects.Rejected}
	if effects.Resolution == submission.Contradicts {
		u.Incoming = submission.Contradiction(&next, r.Disposition, nil)
	}
	return u, effects.Changed
}

// importAccepted imports accepted records into the other set, under their assigned
// identifiers, in the transaction that marks them as imported. It reads their events,
// which never change, before that, since the transaction keeps others from writing. The
// records inherit the URL of the original from the event that was submitted. Of two
// submissions of one record that were accepted under the same identifier the later one
// stays, whichever was accepted first.
func (d *submitLoop) importAccepted(ctx context.Context) error {
	for d.importDue && d.s.ImportTo != 0 {
		query := submission.Query{Source: d.s.Source, ImportPending: true, Limit: chunkLimit + d.damaged.number(), Damaged: true}
		pending, err := d.s.Store.Submissions(ctx, query)
		if err != nil {
			return err
		}
		left := len(pending) == query.Limit
		pending = d.sound(pending)
		if len(pending) == 0 {
			d.importDue, d.accepted = left, 0
			continue
		}
		originals, held := make(map[event.Seq]*event.Event, len(pending)), map[int64]bool{}
		for i := range pending {
			s := &pending[i]
			ev, err := d.s.Store.Event(ctx, s.Seq)
			switch {
			case err == nil:
				originals[s.Seq] = ev
			case errors.Is(err, store.ErrDamaged), errors.Is(err, fs.ErrNotExist):
				held[s.ID] = true
				d.holdImport(s, err)
			default:
				return fmt.Errorf("the event behind submission %d: %w", s.ID, err)
			}
		}
		if err := d.s.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
			rows, err := tx.Submissions(ctx, query)
			rows = slices.DeleteFunc(d.sound(rows), func(s submission.Submission) bool { return held[s.ID] })
			n := len(rows)
			rows = slices.DeleteFunc(rows, func(s submission.Submission) bool { return originals[s.Seq] == nil })
			left = left || len(rows) < n // accepted meanwhile
			if err != nil || len(rows) == 0 {
				return err
			}
			imports := event.Batch{Source: d.s.ImportTo, Mode: event.ModeSubmission, Documents: []event.Document{{URL: d.s.ImportURL}}}
			var updates []submission.Update
			for i := range rows {
				s := &rows[i]
				newer, err := tx.HasNewerAccepted(ctx, s)
				if errors.Is(err, store.ErrDamaged) { // it must not replace what that one may have brought
					d.holdImport(s, err)
					continue
				}
				if err != nil {
					return err
				}
				imported, _ := submission.Apply(*s, submission.Imported{}, d.s.Now())
				if updates = append(updates, submission.Update{Submission: imported}); newer {
					continue
				}
				original := originals[s.Seq]
				order, _ := event.StampOf(original.Observed.Time())
				imports.Items = append(imports.Items, &event.Item{Observation: event.Observation{
					Record:           s.Assigned,
					SourceIdentifier: s.Record,
					Order:            order,
					Modified:         original.Modified,
					Title:            s.Title,
					Representations:  []event.Representation{{Href: original.Via.Href, Type: s.Type, Length: s.Length, Hash: event.HashOf(s.Content)}},
					Via:              original.Via,
					Fetched:          true,
				}})
			}
			if len(imports.Items) > 0 {
				if _, err := tx.Append(ctx, &imports); err != nil {
					return err
				}
			}
			_, err = tx.Write(ctx, &submission.Batch{Source: d.s.Source, URL: d.s.URL, Updates: updates})
			return err
		}); err != nil {
			return err
		}
		d.importDue, d.accepted = left, 0
	}
	return nil
}

// holdImport logs once that an accepted record cannot be imported, because the log is damaged
// where the import has to read it. It waits for a restart, and keeps no others from being imported.
func (d *submitLoop) holdImport(s *submission.Submission, err error) {
	if d.damaged.add(s.ID) {
		d.s.Log.Error("an accepted record cannot be imported into the other set, and is left out: run bridge verify, and restart when it is repaired", "submission", s.ID, "record", s.Record, "error", err)
	}
}

// saveFailure stores in the log how the server fails, or that it answers, when that has
// changed.
func (d *submitLoop) saveFailure(ctx context.Context) error {
	d.mu.Lock()
	f := d.breaker.failure
	d.mu.Unlock()
	if f.same(d.stored) {
		return nil
	}
	p := new(event.Progress)
	if f != nil {
		var err error
		if p.Memory, err = json.Marshal(f); err != nil {
			return err
		}
	}
	out, err := d.s.Store.Append(ctx, &event.Batch{Source: d.s.Source, Cursor: d.version, Progress: p})
	if err != nil {
		d.remembers = false // it may have been committed all the same
		return err
	}
	d.stored, d.version = f, out.Cursor
	return nil
}

// append commits updates of the target.
func (d *submitLoop) append(ctx context.Context, updates []submission.Update) (submission.Written, error) {
	return d.s.Store.Write(ctx, &submission.Batch{Source: d.s.Source, URL: d.s.URL, Updates: updates})
}

// resendGroup is how many submissions are put back into the queue at once.
const resendGroup = 500

// Resend puts submissions that have ended without an answer back into the queue: one, or
// with id 0 all in a state, unsent or unresolved. A submission that is not of its
// record's last change stays as it is: a later change was submitted instead. It returns
// how many were put back. The caller then has to send to Reload.
func (o *Submitter) Resend(ctx context.Context, id int64, state submission.State) (n int, err error) {
	o = o.withDefaults()
	now := o.Now()
	q := submission.Query{Source: o.Source, States: []submission.State{state}, Limit: resendGroup, Damaged: true}
	var damaged Damaged
	for {
		var found []submission.Submission
		if id == 0 {
			if found, err = o.Store.Submissions(ctx, q); err != nil || len(found) == 0 {
				return n, err
			}
			q.After = found[len(found)-1].ID
			found = damaged.Remove(o.Log, found)
		} else {
			s, err := o.Store.Submission(ctx, id)
			if err != nil {
				return 0, err
			}
			if s.Source != o.Source || s.State != submission.StateUnsent && s.State != submission.StateUnresolved {
				return 0, fmt.Errorf("submission %d is %s: only unsent and unresolved submissions can be sent again", id, s.State)
			}
			found = []submission.Submission{*s}
		}
		seqs := make([]event.Seq, len(found))
		for i := range found {
			seqs[i] = found[i].Seq
		}
		latest, err := o.Store.Latest(ctx, o.Set, seqs)
		if err != nil {
			return n, err
		}
		var updates []submission.Update
		for i := range found {
			if !latest[found[i].Seq] || found[i].Content == [32]byte{} { // a deletion has no content
				continue
			}
			if s, effects := submission.Apply(found[i], submission.Resend{}, now); effects.Changed {
				updates = append(updates, submission.Update{Submission: s})
			}
		}
		if len(updates) > 0 {
			out, err := o.Store.Write(ctx, &submission.Batch{Source: o.Source, Updates: updates})
			if err != nil {
				return n, err
			}
			n += len(updates) - len(out.Stale)
		}
		if id != 0 {
			return n, nil
		}
	}
}
