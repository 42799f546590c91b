package eventlog

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// exchange is what a batch does to submissions.
type exchange struct {
	in    *event.SubmissionBatch
	stale []bool       // by step
	again map[int]bool // items of notifications that have come before
	kept  []bool       // the row stays under the keys that it is stored under
	ids   []int64
	fresh *sqlite.Bulk      // rows of new submissions
	tally map[counted]int64 // what is to be added
	// strangers: there are rejections or notifications of strangers.
	strangers bool
}

// counted is a row of table tally.
type counted struct {
	source event.SourceID
	what   int64
	state  int64
}

// What table tally counts.
const (
	tallySubmissions = iota + 1
	tallyNotices
	tallyNotifications
	tallyDirect
	tallyContradicted
	tallyReview
	tallyDropped
	tallyUnquarantined
)

// loadExchange compares the versions of the submissions that the steps change.
func (b *batch) loadExchange(ctx context.Context, q preparer) (*exchange, error) {
	n := len(b.in.Submissions.Updates)
	x := &exchange{in: b.in.Submissions, stale: make([]bool, n), kept: make([]bool, n), ids: make([]int64, n), tally: map[counted]int64{}}
	type row struct {
		version int64
		state   event.State
		keys    submissionKeys
	}
	stored := map[int64]row{}
	var wanted []int64
	for i := range x.in.Updates {
		s := &x.in.Updates[i]
		if s.Submission.Source != b.source.id || s.Item < 0 || s.Item > len(b.in.Items) || s.Submission.State == 0 {
			return nil, fmt.Errorf("step %d: it is of Source %d with item %d of %d and state %d", i, s.Submission.Source, s.Item, len(b.in.Items), s.Submission.State)
		}
		if s.Submission.ID != 0 {
			wanted = append(wanted, s.Submission.ID)
		}
	}
	if err := each(ctx, q, selectKeys, wanted, func(rows *sql.Rows) error {
		var id int64
		var r row
		err := r.keys.scan(rows, &id, &r.state, &r.version)
		if r.keys.source == b.source.id {
			stored[id] = r
		}
		return err
	}); err != nil {
		return nil, err
	}
	var last int64
	if err := q.Each(ctx, "SELECT coalesce(max(id), 0) FROM submission", nil, func(rows *sql.Rows) error { return rows.Scan(&last) }); err != nil {
		return nil, err
	}
	for i := range x.in.Updates {
		s := &x.in.Updates[i].Submission
		if x.ids[i] = s.ID; s.ID == 0 {
			if x.fresh == nil {
				x.fresh = b.tx.Bulk(ctx, insertSubmissions, 14)
			}
			last++
			x.ids[i] = last
			x.count(b.source.id, tallySubmissions, int64(s.State), 1)
			if waitsForReview(s.State, s) {
				x.count(b.source.id, tallyReview, 0, 1)
			}
			continue
		}
		r, ok := stored[s.ID]
		if !ok || r.version != s.Version {
			x.stale[i] = true
			b.out.Stale = append(b.out.Stale, i)
			continue
		}
		x.count(b.source.id, tallySubmissions, int64(r.state), -1)
		x.count(b.source.id, tallySubmissions, int64(s.State), 1)
		if waitsForReview(r.state, s) { // what was sent to nobody once never is
			x.count(b.source.id, tallyReview, 0, -1)
		}
		if waitsForReview(s.State, s) {
			x.count(b.source.id, tallyReview, 0, 1)
		}
		keys := keysOf(s)
		x.kept[i] = r.keys == keys
		stored[s.ID] = row{s.Version + 1, s.State, keys} // a second step of the batch is late
	}
	b.out.IDs = x.ids
	return x, x.loadAgain(ctx, b)
}

// loadAgain looks up which notifications that have items have come before.
func (x *exchange) loadAgain(ctx context.Context, b *batch) error {
	for i := range x.in.Incoming {
		n := &x.in.Incoming[i]
		if n.Item < 0 || n.Item > len(b.in.Items) {
			return fmt.Errorf("notification %d: it is of item %d of %d", i, n.Item, len(b.in.Items))
		}
		if n.Item == 0 {
			continue
		}
		was, err := b.notification(ctx, n)
		if err != nil {
			return err
		}
		if was.ID != 0 {
			if x.again == nil {
				x.again = map[int]bool{}
			}
			x.again[n.Item-1] = true
		}
	}
	return nil
}

// waitsForReview reports whether a submission waits for a decision here when it is
// in a state.
func waitsForReview(state event.State, s *event.Submission) bool {
	return state == event.StateProvisional && s.UnderReview()
}

func (x *exchange) count(source event.SourceID, what, state, n int64) {
	x.tally[counted{source, what, state}] += n
}

// leaves tells that an item belongs to a step that does not happen, or to a
// notification that has come before its record was deleted.
func (x *exchange) leaves(item int, r *record, source event.SourceID) bool {
	if x == nil {
		return false
	}
	if s := r.of(source); x.again[item] && s != nil && !s.alive && r.pending == nil {
		return true
	}
	for i, stale := range x.stale {
		if stale && x.in.Updates[i].Item == item+1 {
			return true
		}
	}
	return false
}

// settle writes what has happened to submissions, and logs the rejections.
func (x *exchange) settle(ctx context.Context, b *batch) error {
	for i := range x.in.Updates {
		if x.stale[i] {
			continue
		}
		if err := x.saveStep(ctx, b, i); err != nil {
			return err
		}
	}
	if x.fresh != nil {
		if err := x.fresh.Flush(); err != nil {
			return err
		}
	}
	for i := range x.in.Outgoing {
		if err := x.changeNotice(ctx, b, &x.in.Outgoing[i]); err != nil {
			return err
		}
	}
	if err := x.rejections(ctx, b); err != nil {
		return err
	}
	for i := range x.in.Incoming {
		if err := x.notified(ctx, b, x.in.Incoming[i]); err != nil {
			return err
		}
	}
	if err := x.trimStrangers(ctx, b); err != nil {
		return err
	}
	if len(x.in.Replies) > 0 { // what is too old goes, not much of it at a time
		if err := b.tx.Exec(ctx, "DELETE FROM answered WHERE (source, request) IN (SELECT source, request FROM answered WHERE at < $1 LIMIT 1000)", int64(b.now-answerKept)); err != nil {
			return err
		}
	}
	for i := range x.in.Replies {
		if err := b.answered(ctx, &x.in.Replies[i]); err != nil {
			return err
		}
	}
	return x.saveTally(ctx, b)
}

// rejections logs what was rejected, and counts what was decided without a row.
func (x *exchange) rejections(ctx context.Context, b *batch) error {
	stepped := map[int]bool{}
	for i := range x.in.Updates {
		s := &x.in.Updates[i]
		stepped[s.Item-1] = true
		if s.Rejected && !x.stale[i] {
			if err := b.reject(ctx, &event.Rejection{Record: s.Submission.Record, SourceIdentifier: s.Submission.SourceIdentifier,
				Reason: s.Submission.Reason, Title: s.Submission.Title}); err != nil {
				return err
			}
		}
	}
	for i := range x.in.Rejections {
		if err := x.rejected(ctx, b, x.in.Rejections[i]); err != nil {
			return err
		}
		x.count(b.source.id, tallyDirect, int64(event.StateRejected), 1)
	}
	for i, out := range b.out.Outcomes {
		if out == event.Logged && !stepped[i] {
			x.count(b.source.id, tallyDirect, int64(event.StateAccepted), 1)
		}
	}
	return nil
}

// rejected logs a rejection that has no row of its own, or keeps that of a stranger
// for a while.
func (x *exchange) rejected(ctx context.Context, b *batch, r event.Rejection) error {
	if !r.Anonymous {
		return b.reject(ctx, &r)
	}
	x.strangers = true
	r.At = b.now
	raw := appendRejection(nil, &r)
	return b.tx.Exec(ctx, "INSERT INTO rejection (source, at, body, sum) VALUES ($1, $2, $3, $4)", int64(b.source.id), int64(r.At), raw, rejectionSum(b.source.id, &r, raw))
}

// strangersKept is how many rejections of strangers are kept of a Source, and how
// many notifications of strangers that belong to nothing: anybody may cause
// as many as he likes.
const strangersKept = 1000

// trimStrangers removes the oldest of what strangers have caused when there is too
// much of it, and counts that.
func (x *exchange) trimStrangers(ctx context.Context, b *batch) error {
	if !x.strangers {
		return nil
	}
	for _, t := range []struct{ count, oldest, remove string }{
		{"SELECT count(*) FROM rejection WHERE source = $1", "SELECT id, 0 FROM rejection WHERE source = $1 ORDER BY id LIMIT $2",
			"DELETE FROM rejection WHERE id = $1"},
		{"SELECT count(*) FROM notification WHERE source = $1 AND stranger = 1", "SELECT id, verdict FROM notification WHERE source = $1 AND stranger = 1 ORDER BY id LIMIT $2",
			"DELETE FROM notification WHERE id = $1"},
	} {
		w := b.tx
		var n int64
		if err := w.Each(ctx, t.count, []any{int64(b.source.id)}, func(rows *sql.Rows) error { return rows.Scan(&n) }); err != nil {
			return err
		}
		if n <= strangersKept {
			continue
		}
		var gone []int64
		if err := w.Each(ctx, t.oldest, []any{int64(b.source.id), n - strangersKept}, func(rows *sql.Rows) error {
			var id, verdict int64
			err := rows.Scan(&id, &verdict)
			gone = append(gone, id)
			if verdict != 0 {
				x.count(b.source.id, tallyNotifications, verdict, -1)
			}
			return err
		}); err != nil {
			return err
		}
		for _, id := range gone {
			if err := b.tx.Exec(ctx, t.remove, id); err != nil {
				return err
			}
		}
		x.count(b.source.id, tallyDropped, 0, int64(len(gone)))
	}
	return nil
}

// reject logs an event of kind rejected. It is of no record: a record that has
// that identifier is what it was.
func (b *batch) reject(ctx context.Context, r *event.Rejection) error {
	var from event.Document
	if len(b.in.Documents) > 0 {
		from = b.in.Documents[0]
	}
	doc, err := b.documentOf(ctx, from)
	if err != nil {
		return err
	}
	return b.appendEvent(ctx, &record{}, nil, event.Rejected, &body{document: doc, reason: r.Reason,
		obs: event.Observation{Record: r.Record, Title: r.Title, SourceIdentifier: r.SourceIdentifier}})
}

func (x *exchange) saveTally(ctx context.Context, b *batch) error {
	for c, n := range x.tally {
		if err := b.l.count(ctx, b.tx, c, n); err != nil {
			return err
		}
	}
	return nil
}

// count adds n to a row of table tally.
func (l *Log) count(ctx context.Context, tx *sqlite.Tx, c counted, n int64) error {
	if n == 0 {
		return nil
	}
	return tx.Exec(ctx, "INSERT INTO tally (source, what, state, n) VALUES ($1, $2, $3, $4) ON CONFLICT DO UPDATE SET n = n + excluded.n",
		int64(c.source), c.what, c.state, n)
}

func (x *exchange) saveStep(ctx context.Context, b *batch, i int) error {
	step := &x.in.Updates[i]
	if n := step.Incoming; n != nil && n.Verdict == event.NotificationConflict {
		was, err := b.notification(ctx, n)
		if err != nil {
			return err
		}
		if was.Verdict == event.NotificationConflict || was.Verdict == event.NotificationSettled { // it has contradicted before
			note := *n
			note.Submission = x.ids[i]
			return x.notified(ctx, b, note)
		}
	}
	s := step.Submission
	if n := step.Incoming; n != nil && n.Verdict == event.NotificationConflict && s.Conflicts == 1 {
		x.count(s.Source, tallyContradicted, 0, 1)
	}
	if step.Settled {
		if s.Conflicts > 0 {
			x.count(s.Source, tallyContradicted, 0, -1)
		}
		s.Conflicts = 0
		if err := x.settleNotifications(ctx, b, s.ID, step.SettledNotification); err != nil {
			return err
		}
	}
	fresh := s.ID == 0
	s.ID, s.Changed = x.ids[i], b.now
	s.Version++
	if fresh {
		s.Created = b.now
	}
	if err := x.saveSubmission(ctx, b, &s, i); err != nil {
		return err
	}
	if n := step.Outgoing; n != nil {
		if err := x.addNotice(ctx, b, *n, s.ID); err != nil {
			return err
		}
	}
	if n := step.Incoming; n != nil {
		note := *n
		note.Submission = s.ID
		return x.notified(ctx, b, note)
	}
	return nil
}

func (x *exchange) addNotice(ctx context.Context, b *batch, n event.OutgoingNotification, submission int64) error {
	n.Submission, n.State, n.Created = submission, event.DeliveryWaiting, b.now
	if n.Due == 0 {
		n.Due = b.now
	}
	x.count(b.source.id, tallyNotices, int64(n.State), 1)
	raw := appendNotice(nil, &n)
	return b.tx.Exec(ctx, "INSERT INTO notice (submission, source, state, due, created, body, sum) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		n.Submission, int64(b.source.id), int64(n.State), int64(n.Due), int64(n.Created), raw, noticeSum(b.source.id, &n, raw))
}

// changeNotice replaces a stored notice.
func (x *exchange) changeNotice(ctx context.Context, b *batch, n *event.OutgoingNotification) error {
	var was event.DeliveryState
	source := event.SourceID(0)
	if err := b.tx.Each(ctx, "SELECT state, source FROM notice WHERE id = $1", []any{n.ID}, func(rows *sql.Rows) error { return rows.Scan(&was, &source) }); err != nil {
		return err
	}
	if was == 0 {
		return fmt.Errorf("no notice %d in the log", n.ID)
	}
	x.count(source, tallyNotices, int64(was), -1)
	x.count(source, tallyNotices, int64(n.State), 1)
	raw := appendNotice(nil, n)
	return b.tx.Exec(ctx, "UPDATE notice SET state = $2, due = $3, body = $4, sum = $5 WHERE id = $1",
		n.ID, int64(n.State), int64(n.Due), raw, noticeSum(source, n, raw))
}

// notified keeps a notification, the same one once. One of kind
// NotificationRejected is an event when it is new to the set, and not a
// stranger's.
func (x *exchange) notified(ctx context.Context, b *batch, n event.IncomingNotification) error {
	was, err := b.notification(ctx, &n)
	if err != nil {
		return err
	}
	n.First, n.Last, n.Times = b.now, b.now, was.Times+1
	if was.ID != 0 {
		n.ID, n.First = was.ID, was.First
		if was.Verdict == event.NotificationSettled || n.Submission == 0 && (was.Submission != 0 || n.Verdict == event.NotificationUncorrelated) { // what was found out once stays
			n.Submission, n.Verdict = was.Submission, was.Verdict
		}
		n.Anonymous = n.Anonymous && was.Anonymous
		x.count(b.source.id, tallyNotifications, int64(was.Verdict), -1)
	}
	n.Anonymous = n.Anonymous && n.Submission == 0 && (n.Verdict == event.NotificationRejected || n.Verdict == event.NotificationUncorrelated)
	x.strangers = x.strangers || n.Anonymous
	x.count(b.source.id, tallyNotifications, int64(n.Verdict), 1)
	raw := appendNotification(nil, &n)
	if was.ID != 0 {
		return b.tx.Exec(ctx, "UPDATE notification SET submission = $2, verdict = $3, last = $4, times = $5, stranger = $6, body = $7, sum = $8 WHERE id = $1",
			n.ID, n.Submission, int64(n.Verdict), int64(n.Last), n.Times, boolArg(n.Anonymous), raw, notificationSum(b.source.id, &n, raw))
	}
	if n.Verdict == event.NotificationRejected && !n.Anonymous {
		if err := b.reject(ctx, &event.Rejection{SourceIdentifier: n.SourceIdentifier, Reason: n.Reason}); err != nil {
			return err
		}
	}
	return b.tx.Exec(ctx, "INSERT INTO notification (source, digest, submission, verdict, first, last, times, stranger, body, sum) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
		int64(b.source.id), n.Digest[:], n.Submission, int64(n.Verdict), int64(n.First), int64(n.Last), n.Times, boolArg(n.Anonymous), raw, notificationSum(b.source.id, &n, raw))
}

// settleNotifications marks the notifications of a submission as settled, and another
// one that was found to be about it.
func (x *exchange) settleNotifications(ctx context.Context, b *batch, submission, another int64) error {
	type row struct {
		event.IncomingNotification
		source event.SourceID
		raw    []byte
	}
	var all []row
	if err := b.tx.Each(ctx, `SELECT id, source, digest, submission, verdict, first, last, times, body FROM notification WHERE submission <> 0 AND submission = $1
	UNION ALL SELECT id, source, digest, submission, verdict, first, last, times, body FROM notification WHERE id = $2 AND submission = 0`, []any{submission, another}, func(rows *sql.Rows) error {
		var r row
		var digest []byte
		err := rows.Scan(&r.ID, &r.source, &digest, &r.Submission, &r.Verdict, &r.First, &r.Last, &r.Times, &r.raw)
		copy(r.Digest[:], digest)
		all = append(all, r)
		return err
	}); err != nil {
		return err
	}
	for i := range all {
		r := &all[i]
		x.count(r.source, tallyNotifications, int64(r.Verdict), -1)
		x.count(r.source, tallyNotifications, int64(event.NotificationSettled), 1)
		r.Submission, r.Verdict = submission, event.NotificationSettled
		if err := b.tx.Exec(ctx, "UPDATE notification SET submission = $2, verdict = $3, stranger = 0, sum = $4 WHERE id = $1",
			r.ID, r.Submission, int64(r.Verdict), notificationSum(r.source, &r.IncomingNotification, r.raw)); err != nil {
			return err
		}
	}
	return nil
}

// notification returns what is stored of a notification, nothing when it is new.
func (b *batch) notification(ctx context.Context, n *event.IncomingNotification) (was event.IncomingNotification, err error) {
	err = b.tx.Each(ctx, "SELECT id, submission, verdict, first, times, stranger FROM notification WHERE source = $1 AND digest = $2", []any{int64(b.source.id), n.Digest[:]}, func(rows *sql.Rows) error {
		return rows.Scan(&was.ID, &was.Submission, &was.Verdict, &was.First, &was.Times, &was.Anonymous)
	})
	return was, err
}

// answerKept is how long an answer is remembered.
const answerKept = event.Micros(24 * time.Hour / time.Microsecond)

func (b *batch) answered(ctx context.Context, a *event.StoredReply) error {
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO answered (source, request, at, disposition, sum) VALUES ($1, $2, $3, $4, $5)",
		int64(b.source.id), a.Request[:], int64(b.now), a.Disposition, sumOf(b.source.id, a.Request[:], b.now, a.Disposition))
}

func noticeSum(source event.SourceID, n *event.OutgoingNotification, raw []byte) int64 {
	return sumOf(source, n.Submission, int64(n.State), n.Due, n.Created, raw)
}

func notificationSum(source event.SourceID, n *event.IncomingNotification, raw []byte) int64 {
	return sumOf(source, n.Digest[:], n.Submission, int64(n.Verdict), n.First, n.Last, n.Times, boolArg(n.Anonymous), raw)
}

func rejectionSum(source event.SourceID, r *event.Rejection, raw []byte) int64 {
	return sumOf(source, r.At, raw)
}

// The bodies of these rows hold what nobody looks up, in the manner of an event's.
const exchangeVersion = 1

func appendSubmission(b []byte, s *event.Submission) []byte {
	b = append(b, exchangeVersion, byte(boolArg(s.Late)), byte(boolArg(s.SourceXML != nil)))
	b = append(b, s.Content[:]...)
	for _, text := range [...]string{string(s.SourceXML), s.SourceIdentifier, s.Record, s.Type, s.Title, s.Recipient, s.Assigned, s.Reason} {
		b = appendString(b, text)
	}
	for _, n := range [...]int64{s.Length, int64(s.Deadline), int64(s.Tries), int64(s.Conflicts)} {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func readSubmission(b []byte, s *event.Submission) error {
	r := reader{b: b}
	if r.byte() != exchangeVersion {
		return errNewer
	}
	s.Late = r.byte() != 0
	hasBlock := r.byte() != 0
	r.digest(&s.Content)
	block := r.string()
	if hasBlock {
		s.SourceXML = []byte(block)
	}
	for _, text := range [...]*string{&s.SourceIdentifier, &s.Record, &s.Type, &s.Title, &s.Recipient, &s.Assigned, &s.Reason} {
		*text = r.string()
	}
	s.Length, s.Deadline, s.Tries, s.Conflicts = r.varint(), event.Micros(r.varint()), int(r.varint()), int(r.varint())
	return r.whole()
}

func appendNotice(b []byte, n *event.OutgoingNotification) []byte {
	b = append(b, exchangeVersion)
	for _, text := range [...]string{n.Recipient, string(n.Disposition), n.Message, n.Reason} {
		b = appendString(b, text)
	}
	return binary.AppendVarint(b, int64(n.Tries))
}

func readNotice(b []byte, n *event.OutgoingNotification) error {
	r := reader{b: b}
	if r.byte() != exchangeVersion {
		return errNewer
	}
	n.Recipient, n.Disposition, n.Message, n.Reason = r.string(), []byte(r.string()), r.string(), r.string()
	n.Tries = int(r.varint())
	return r.whole()
}

func appendNotification(b []byte, n *event.IncomingNotification) []byte {
	b = append(b, exchangeVersion, byte(n.Outcome), byte(boolArg(n.SourceXML != nil)))
	for _, text := range [...]string{n.SourceIdentifier, n.Assigned, n.Reason, string(n.SourceXML)} {
		b = appendString(b, text)
	}
	return b
}

func appendRejection(b []byte, r *event.Rejection) []byte {
	b = append(b, exchangeVersion)
	for _, text := range [...]string{r.Record, r.SourceIdentifier, r.Reason, r.Title} {
		b = appendString(b, text)
	}
	return b
}

func readRejection(b []byte, r *event.Rejection) error {
	from := reader{b: b}
	if from.byte() != exchangeVersion {
		return errNewer
	}
	r.Record, r.SourceIdentifier, r.Reason, r.Title = from.string(), from.string(), from.string(), from.string()
	return from.whole()
}

func readNotification(b []byte, n *event.IncomingNotification) error {
	r := reader{b: b}
	if r.byte() != exchangeVersion {
		return errNewer
	}
	n.Outcome = event.State(r.byte())
	hasBlock := r.byte() != 0
	n.SourceIdentifier, n.Assigned, n.Reason = r.string(), r.string(), r.string()
	if block := r.string(); hasBlock {
		n.SourceXML = []byte(block)
	}
	return r.whole()
}

var errNewer = errors.New("written by a newer bridge: its form is not known to this one")

func (r *reader) digest(d *[32]byte) {
	if len(r.b) < len(d) {
		r.fail()
		return
	}
	copy(d[:], r.b)
	r.b = r.b[len(d):]
}

// whole returns whether everything was read, and nothing is left.
func (r *reader) whole() error {
	if r.bad || len(r.b) != 0 {
		return errDamaged
	}
	return nil
}
