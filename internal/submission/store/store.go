// Package store keeps SIP's submissions and notifications, in tables of their own in the
// database of the log, so that they commit in one transaction with the events that they
// go with.
//
// Write is the only mutation. It compares the version of each submission that it changes,
// so that of two changes that began from the same state the second is not written. Work
// inside Do reads the rows as they are then, and needs no comparison.
package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Store is the SIP tables of a log. Its methods may be called from any goroutine.
type Store struct {
	*eventlog.Log
	Queries
	// Hook, when set before the store is used, is called for each call of the store, and
	// has to make that call: Do, Write and Append, which commit, with an empty query, and
	// each query with its text. Reads of the log itself do not pass it. The daemon learns
	// from it that the log has stopped, and a test can let calls fail.
	Hook func(query string, call func() error) error
}

// New returns the store in a log.
func New(l *eventlog.Log) *Store {
	s := &Store{Log: l}
	s.Queries = Queries{s}
	return s
}

func (s *Store) hooked(query string, call func() error) error {
	if s.Hook == nil {
		return call()
	}
	return s.Hook(query, call)
}

// Each runs a query on what is committed.
func (s *Store) Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	return s.hooked(text, func() error { return s.Log.Each(ctx, text, args, scan) })
}

// Append is that of the log: see eventlog.Log.Append.
func (s *Store) Append(ctx context.Context, b *event.Batch) (out event.Appended, err error) {
	err = s.hooked("", func() error { out, err = s.Log.Append(ctx, b); return err })
	return out, err
}

// Tx is a transaction of the log and of the store. Its queries also read what the
// transaction has written.
type Tx struct {
	*eventlog.Tx
	Queries
}

// Do runs work in a transaction: see eventlog.Log.Do.
func (s *Store) Do(ctx context.Context, work func(ctx context.Context, tx *Tx) error) error {
	return s.hooked("", func() error {
		return s.Log.Do(ctx, func(ctx context.Context, tx *eventlog.Tx) error { return work(ctx, &Tx{tx, Queries{tx}}) })
	})
}

// Write commits a batch in a transaction of its own: see Tx.Write.
func (s *Store) Write(ctx context.Context, b *submission.Batch) (out submission.Written, err error) {
	err = s.Do(ctx, func(ctx context.Context, tx *Tx) (err error) {
		out, err = tx.Write(ctx, b)
		return err
	})
	if err != nil {
		return submission.Written{}, err
	}
	return out, nil
}

// writer is one Write under way.
type writer struct {
	tx     *Tx
	in     *submission.Batch
	out    submission.Written
	log    event.Batch           // what the log appends
	stored map[int64]storedState // of the submissions that are updated
	counts map[count]int64       // what is to be added
	rows   *database.Bulk        // new submissions
	// anonymous: there may be too many anonymous rows, so that old ones have to be
	// removed.
	anonymous bool
}

// storedState is what an update needs of the row that it replaces.
type storedState struct {
	source  event.SourceID
	version int64
	state   submission.State
	token   string
}

// count is a row of table submission_count.
type count struct {
	source event.SourceID
	what   int64
	state  int64
}

// The counters of table submission_count.
const (
	countSubmissions = iota + 1
	countOutgoing
	countIncoming
	countDirect
	countContradicted
	countUnderReview
	countDropped
)

// Write logs the observations and rejections of a batch, and writes its submissions,
// notifications and replies. It leaves out updates of another version than the stored
// one, and what belongs to them. After an error the work of the transaction has to fail.
func (tx *Tx) Write(ctx context.Context, b *submission.Batch) (submission.Written, error) {
	w := &writer{tx: tx, in: b, stored: map[int64]storedState{}, counts: map[count]int64{}}
	for _, step := range []func(context.Context) error{w.compare, w.append, w.writeUpdates, w.writeOutgoing, w.writeRejections, w.writeIncoming, w.writeReplies, w.trim, w.saveCounts} {
		if err := step(ctx); err != nil {
			return submission.Written{}, fmt.Errorf("keeping what is submitted: %w", err)
		}
	}
	return w.out, nil
}

// compare finds the updates that are stale, and numbers the new submissions.
func (w *writer) compare(ctx context.Context) error {
	w.out.IDs = make([]int64, len(w.in.Updates))
	var last int64
	for i := range w.in.Updates {
		s := &w.in.Updates[i].Submission
		if s.Source != w.in.Source || s.State == 0 {
			return fmt.Errorf("update %d: it is of Source %d in state %d, in a batch of Source %d", i, s.Source, s.State, w.in.Source)
		}
		if w.out.IDs[i] = s.ID; s.ID == 0 {
			if last == 0 {
				if err := w.tx.Each(ctx, "SELECT coalesce(max(id), 0) FROM submission", nil, func(rows *sql.Rows) error { return rows.Scan(&last) }); err != nil {
					return err
				}
			}
			last++
			w.out.IDs[i] = last
			continue
		}
		stored, ok := w.stored[s.ID]
		if !ok {
			if err := w.tx.Each(ctx, "SELECT source, version, state, token FROM submission WHERE id = $1", []any{s.ID}, func(rows *sql.Rows) error {
				return rows.Scan(&stored.source, &stored.version, &stored.state, &stored.token)
			}); err != nil {
				return err
			}
			w.stored[s.ID] = stored
		}
		if stored.source != w.in.Source || stored.version != s.Version {
			w.out.Stale = append(w.out.Stale, i)
			continue
		}
		stored.version++ // a second update in the batch is stale
		w.stored[s.ID] = stored
	}
	return nil
}

// each calls do for the updates that are not stale.
func (w *writer) each(do func(i int, u *submission.Update) error) error {
	stale := w.out.Stale
	for i := range w.in.Updates {
		if len(stale) > 0 && stale[0] == i {
			stale = stale[1:]
			continue
		}
		if err := do(i, &w.in.Updates[i]); err != nil {
			return err
		}
	}
	return nil
}

// append logs the events: of the items, of the updates, of the notifications, and then
// the rejections.
func (w *writer) append(ctx context.Context) error {
	in := w.in
	w.log = event.Batch{Source: in.Source, Mode: event.ModeSubmission, Items: slices.Clone(in.Items)}
	if in.URL != "" {
		w.log.Documents = []event.Document{{URL: in.URL}}
	}
	_ = w.each(func(_ int, u *submission.Update) error { // which never fails here
		if u.Item != nil {
			w.log.Items = append(w.log.Items, u.Item)
		}
		if s := &u.Submission; u.Rejected {
			w.log.Rejections = append(w.log.Rejections, event.Rejection{Record: s.Record, SourceIdentifier: s.SourceIdentifier, Reason: s.Reason, Title: s.Title})
		}
		return nil
	})
	for i := range in.Rejections {
		if !in.Rejections[i].Anonymous {
			w.log.Rejections = append(w.log.Rejections, in.Rejections[i].Rejection)
		}
	}
	repeats := map[[32]byte]bool{}
	for i := range in.Incoming {
		n := &in.Incoming[i]
		rejected := n.Verdict == submission.NotificationRejected && !n.Anonymous
		if n.Item == nil && !rejected {
			continue
		}
		was, err := w.tx.incoming(ctx, in.Source, n.Digest)
		if err != nil {
			return err
		}
		repeat := was.ID != 0 || repeats[n.Digest]
		repeats[n.Digest] = true
		if rejected && !repeat {
			w.log.Rejections = append(w.log.Rejections, event.Rejection{SourceIdentifier: n.SourceIdentifier, Reason: n.Reason})
		}
		if n.Item == nil {
			continue
		}
		if was.ID != 0 {
			presence, err := w.tx.Presence(ctx, in.Source, n.Item.Record)
			if err != nil {
				return err
			}
			if presence == event.Withdrawn {
				continue
			}
		}
		w.log.Items = append(w.log.Items, n.Item)
	}
	if len(w.log.Items)+len(w.log.Rejections) == 0 {
		return nil
	}
	appended, err := w.tx.Append(ctx, &w.log)
	if err != nil {
		return err
	}
	w.out.Appended = appended
	w.out.Outcomes = appended.Outcomes[:len(in.Items)]
	for _, outcome := range w.out.Outcomes {
		if outcome == event.Logged {
			w.count(countDirect, int64(submission.StateAccepted), 1)
		}
	}
	return nil
}

func (w *writer) count(what, state, n int64) { w.counts[count{w.in.Source, what, state}] += n }

// writeUpdates writes the submissions, and what belongs to each.
func (w *writer) writeUpdates(ctx context.Context) error {
	if err := w.each(func(i int, u *submission.Update) error { return w.writeUpdate(ctx, i, u) }); err != nil || w.rows == nil {
		return err
	}
	return w.rows.Flush()
}

func (w *writer) writeUpdate(ctx context.Context, i int, u *submission.Update) error {
	s := u.Submission
	var note *submission.IncomingNotification
	if u.Incoming != nil {
		own := *u.Incoming
		own.Submission, note = w.out.IDs[i], &own
	}
	if note != nil && note.Verdict == submission.NotificationConflict {
		was, err := w.tx.incoming(ctx, w.in.Source, note.Digest)
		if err != nil {
			return err
		}
		if was.Verdict == submission.NotificationConflict || was.Verdict == submission.NotificationSettled { // it has contradicted before
			return w.receive(ctx, note)
		}
		if s.Conflicts == 1 {
			w.count(countContradicted, 0, 1)
		}
	}
	if u.Settled {
		if s.Conflicts > 0 {
			w.count(countContradicted, 0, -1)
		}
		s.Conflicts = 0
		if err := w.settle(ctx, s.ID, u.SettledNotification); err != nil {
			return err
		}
	}
	was := w.stored[s.ID]
	isNew := s.ID == 0
	s.ID, s.Changed = w.out.IDs[i], w.tx.Now
	s.Version++
	w.count(countSubmissions, int64(s.State), 1)
	w.countReview(s.State, &s, 1)
	if isNew {
		s.Created = w.tx.Now
		if w.rows == nil {
			w.rows = w.tx.Bulk(ctx, submissions.insert(), len(submissions.columns)+1)
		}
		if err := w.rows.Add(submissions.row(&s)...); err != nil {
			return err
		}
	} else {
		w.count(countSubmissions, int64(was.state), -1)
		w.countReview(was.state, &s, -1)
		from := tokenColumn // an UPDATE that names the token also writes its index, at a random place
		if was.token == s.Token {
			from++
		}
		if err := submissions.update(ctx, w.tx, &s, from); err != nil {
			return err
		}
	}
	if u.Outgoing != nil {
		n := *u.Outgoing
		n.Source, n.Submission, n.State, n.Created = w.in.Source, s.ID, submission.DeliveryWaiting, w.tx.Now
		n.Due = cmp.Or(n.Due, w.tx.Now)
		w.count(countOutgoing, int64(n.State), 1)
		if err := outgoing.add(ctx, w.tx, &n); err != nil {
			return err
		}
	}
	if note != nil {
		return w.receive(ctx, note)
	}
	return nil
}

// countReview counts a submission that waits for a decision here: one in the state
// provisional that was never sent to anybody.
func (w *writer) countReview(state submission.State, s *submission.Submission, n int64) {
	if state == submission.StateProvisional && s.UnderReview() {
		w.count(countUnderReview, 0, n)
	}
}

// writeOutgoing replaces stored notifications, whichever Source they are of. One that is
// delivered stays so, and one that is not stored any more, or is damaged, is left out.
func (w *writer) writeOutgoing(ctx context.Context) error {
	for _, n := range w.in.Outgoing {
		found, err := outgoing.find(ctx, w.tx, "id = $1", n.ID)
		if errors.Is(err, ErrDamaged) { // it must not fail the others
			continue
		}
		if err != nil {
			return err
		}
		// While it was being sent an operator has removed its set, or ended it.
		if len(found) == 0 || found[0].State == submission.DeliveryDone {
			continue
		}
		n.Source, n.Submission, n.Created = found[0].Source, found[0].Submission, found[0].Created
		if n.State == submission.DeliveryWaiting && found[0].State != n.State { // sent again: it has its time anew
			n.Created = w.tx.Now
		}
		w.counts[count{n.Source, countOutgoing, int64(found[0].State)}]--
		w.counts[count{n.Source, countOutgoing, int64(n.State)}]++
		if err := outgoing.update(ctx, w.tx, &n, 1); err != nil {
			return err
		}
	}
	return nil
}

// writeRejections counts the rejections, and keeps the anonymous ones.
func (w *writer) writeRejections(ctx context.Context) error {
	for _, r := range w.in.Rejections {
		w.count(countDirect, int64(submission.StateRejected), 1)
		if r.Anonymous {
			w.anonymous = true
			r.Source, r.At = w.in.Source, w.tx.Now
			if err := rejections.add(ctx, w.tx, &r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *writer) writeIncoming(ctx context.Context) error {
	for i := range w.in.Incoming {
		if err := w.receive(ctx, &w.in.Incoming[i]); err != nil {
			return err
		}
	}
	return nil
}

// receive stores a notification, the same one once.
func (w *writer) receive(ctx context.Context, in *submission.IncomingNotification) error {
	n := *in
	was, err := w.tx.incoming(ctx, w.in.Source, n.Digest)
	if err != nil {
		return err
	}
	n.Source, n.First, n.Last, n.Times = w.in.Source, w.tx.Now, w.tx.Now, was.Times+1
	if was.ID != 0 {
		n.ID, n.First = was.ID, was.First
		if was.Verdict == submission.NotificationSettled || n.Submission == 0 && (was.Submission != 0 || n.Verdict == submission.NotificationUncorrelated) { // what was found out once stays
			n.Submission, n.Verdict = was.Submission, was.Verdict
		}
		n.Anonymous = n.Anonymous && was.Anonymous
		w.count(countIncoming, int64(was.Verdict), -1)
	}
	n.Anonymous = n.Anonymous && n.Submission == 0 && (n.Verdict == submission.NotificationRejected || n.Verdict == submission.NotificationUncorrelated)
	w.anonymous = w.anonymous || n.Anonymous
	w.count(countIncoming, int64(n.Verdict), 1)
	if was.ID != 0 {
		return incoming.update(ctx, w.tx, &n, 3)
	}
	return incoming.add(ctx, w.tx, &n)
}

// settle marks the notifications of a submission as settled, and another notification
// that was found to be about it.
func (w *writer) settle(ctx context.Context, id, another int64) error {
	for _, which := range []struct {
		where string
		id    int64
	}{{"submission <> 0 AND submission = $1", id}, {"id = $1 AND submission = 0", another}} {
		found, err := incoming.find(ctx, w.tx, which.where, which.id)
		if err != nil {
			return err
		}
		for i := range found {
			n := &found[i]
			w.counts[count{n.Source, countIncoming, int64(n.Verdict)}]--
			w.counts[count{n.Source, countIncoming, int64(submission.NotificationSettled)}]++
			n.Submission, n.Verdict, n.Anonymous = id, submission.NotificationSettled, false
			if err := incoming.update(ctx, w.tx, n, 3); err != nil {
				return err
			}
		}
	}
	return nil
}

// replyKept is how long a reply is remembered.
const replyKept = event.Micros(24 * time.Hour / time.Microsecond)

// writeReplies remembers replies, and removes some of those that are too old.
func (w *writer) writeReplies(ctx context.Context) error {
	if len(w.in.Replies) == 0 {
		return nil
	}
	if err := w.tx.Exec(ctx, "DELETE FROM reply WHERE id IN (SELECT id FROM reply WHERE at < $1 LIMIT 1000)", int64(w.tx.Now-replyKept)); err != nil {
		return err
	}
	for _, r := range w.in.Replies {
		if err := w.tx.Exec(ctx, "DELETE FROM reply WHERE source = $1 AND request = $2", int64(w.in.Source), r.Request[:]); err != nil {
			return err
		}
		if err := replies.add(ctx, w.tx, &reply{StoredReply: r, source: w.in.Source, at: w.tx.Now}); err != nil {
			return err
		}
	}
	return nil
}

// anonymousKept is how many rejections of anonymous requests are kept of a Source, and
// how many anonymous notifications that belong to no submission: anybody may cause as
// many as they like.
const anonymousKept = 1000

// trim removes the oldest of these rows when there are too many, and counts what it
// removes.
func (w *writer) trim(ctx context.Context) error {
	if !w.anonymous {
		return nil
	}
	for _, text := range []string{
		"DELETE FROM rejection WHERE source = $1 AND id <= (SELECT id FROM rejection WHERE source = $1 ORDER BY id DESC LIMIT 1 OFFSET $2) RETURNING 0",
		"DELETE FROM incoming_notification WHERE source = $1 AND anonymous = 1 AND id <= (SELECT id FROM incoming_notification WHERE source = $1 AND anonymous = 1 ORDER BY id DESC LIMIT 1 OFFSET $2) RETURNING verdict",
	} {
		if err := w.tx.Each(ctx, text, []any{int64(w.in.Source), anonymousKept}, func(rows *sql.Rows) error {
			var verdict int64
			err := rows.Scan(&verdict)
			if verdict != 0 {
				w.count(countIncoming, verdict, -1)
			}
			w.count(countDropped, 0, 1)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) saveCounts(ctx context.Context) error {
	for c, n := range w.counts {
		if n == 0 {
			continue
		}
		if err := w.tx.Exec(ctx, "INSERT INTO submission_count (source, what, state, n) VALUES ($1, $2, $3, $4) ON CONFLICT (source, what, state) DO UPDATE SET n = submission_count.n + excluded.n",
			int64(c.source), c.what, c.state, n); err != nil {
			return err
		}
	}
	return nil
}
