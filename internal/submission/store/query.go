package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// querier runs queries on what is committed, or inside a transaction.
type querier interface {
	Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error
}

// Queries are the queries of a Store and a Tx: a Store reads what is committed, a Tx also
// what its transaction has written.
type Queries struct{ q querier }

// read returns the rows of a table for which a condition holds. set returns the field of
// a row for the name of its set.
func read[T any](ctx context.Context, q querier, t *table[T], set func(*T) *string, where string, args ...any) ([]T, error) {
	return database.All(ctx, q.Each, t.selection()+where, args, func(v *T, rows *sql.Rows) (err error) {
		var name string
		*v, err = t.scan(rows, &name)
		*set(v) = name
		return err
	})
}

// one returns the only row; fs.ErrNotExist when there is none.
func one[T any](found []T, err error, what string) (*T, error) {
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, database.Missing("there is no such %s", what)
	}
	return &found[0], nil
}

// list is read that returns damaged rows too, with what is left of them: the ID and the set,
// and a Due that cannot be trusted if it is 0.
func list[T any](ctx context.Context, q querier, t *table[T], set func(*T) *string, left func(T) T, where string, args ...any) ([]T, error) {
	return database.All(ctx, q.Each, t.selection()+where, args, func(v *T, rows *sql.Rows) (err error) {
		var name string
		if *v, err = t.scan(rows, &name); errors.Is(err, ErrDamaged) {
			*v, err = left(*v), nil
		}
		*set(v) = name
		return err
	})
}

func setOfSubmission(s *submission.Submission) *string { return &s.Set }

func (r Queries) submissions(ctx context.Context, where string, args ...any) ([]submission.Submission, error) {
	return read(ctx, r.q, &submissions, setOfSubmission, where, args...)
}

// withDamaged is submissions that returns damaged rows too: see submission.Query.Damaged.
func (r Queries) withDamaged(ctx context.Context, where string, args ...any) ([]submission.Submission, error) {
	return list(ctx, r.q, &submissions, setOfSubmission, func(s submission.Submission) submission.Submission {
		return submission.Submission{ID: s.ID, Due: s.Due}
	}, where, args...)
}

// Submission returns a submission by its ID; the error is fs.ErrNotExist when there is
// none.
func (r Queries) Submission(ctx context.Context, id int64) (*submission.Submission, error) {
	found, err := r.submissions(ctx, "t.id = $1", id)
	return one(found, err, "submission")
}

// SubmissionByToken returns the submission whose notification recipient has the token;
// the error is fs.ErrNotExist when there is none.
func (r Queries) SubmissionByToken(ctx context.Context, token string) (*submission.Submission, error) {
	found, err := r.submissions(ctx, "t.token <> '' AND t.token = $1", token)
	return one(found, err, "submission")
}

// Submissions returns the submissions that a query selects.
func (r Queries) Submissions(ctx context.Context, q submission.Query) ([]submission.Submission, error) {
	var where []string
	var args []any
	and := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	if q.Set != "" {
		and("s.name = ?", q.Set)
	}
	if q.Source != 0 {
		and("t.source = ?", int64(q.Source))
	}
	states := q.States
	if q.UnderReview { // submission.UnderReview: a gateway may have very many that are not
		states = []submission.State{submission.StateProvisional}
		and("t.token = '' AND t.seq = 0 AND t.tries = 0")
	}
	if len(states) == 0 && q.Request == nil && q.Subject == "" && !q.ImportPending {
		// The index has the rows of one Source and state in the order of their ID. If the
		// condition names all states, SQLite stops at the limit; without states it would
		// sort all rows.
		states = submission.States()
	}
	if len(states) > 0 {
		var args []any
		for _, s := range states {
			args = append(args, int64(s))
		}
		and("t.state IN ("+database.Params(len(args))+")", args...)
	}
	if q.Request != nil {
		and("t.request IS NOT NULL AND t.request = ?", q.Request[:])
	}
	// The indexes are partial: SQLite uses them only if the condition repeats theirs word
	// for word. What stands in parentheses is written anew for PostgreSQL.
	if q.Subject != "" {
		and("t.subject <> 0 AND t.subject = ?", subjectKey(q.Subject))
	}
	if q.ImportPending {
		and("(t.import_pending)")
	}
	order := " ORDER BY t.id"
	if q.Newest {
		order += " DESC"
	}
	switch {
	case q.Newest && q.After > 0:
		and("t.id < ?", q.After)
	case !q.Newest:
		and("t.id > ?", q.After)
	}
	if q.Limit <= 0 {
		q.Limit = 1000
	}
	if len(where) == 0 {
		where = []string{"1 = 1"}
	}
	find := r.submissions
	if q.Damaged {
		find = r.withDamaged
	}
	found, err := find(ctx, strings.Join(where, " AND ")+order+" LIMIT ?", append(args, q.Limit)...)
	return slices.DeleteFunc(found, func(s submission.Submission) bool { // other subjects may have the same hash
		return q.Subject != "" && s.Subject() != q.Subject
	}), err
}

// LastSubmitted returns the event of the newest submission of a target that is not damaged, 0
// when there is none.
func (r Queries) LastSubmitted(ctx context.Context, target event.SourceID) (event.Seq, error) {
	q := submission.Query{Source: target, Newest: true, Limit: 1, Damaged: true}
	for {
		newest, err := r.Submissions(ctx, q)
		if err != nil || len(newest) == 0 {
			return 0, err
		}
		if newest[0].State != 0 {
			return newest[0].Seq, nil
		}
		q.After = newest[0].ID
	}
}

// SubmissionsOf returns the submissions with some IDs, in the order of these. Those that
// are not there any more are left out. A damaged one is as with submission.Query.Damaged.
func (r Queries) SubmissionsOf(ctx context.Context, ids []int64) ([]submission.Submission, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return r.withDamaged(ctx, "t.id IN ("+database.Params(len(ids))+") ORDER BY t.id", args...)
}

// SubmissionsDue returns the submissions of a Source in one state with 0 < their Due <=
// at, the longest due first, at most limit: those that come after the Due and ID of
// another one, which may have changed since; nil is from the start. A damaged one is as with
// submission.Query.Damaged.
func (r Queries) SubmissionsDue(ctx context.Context, source event.SourceID, state submission.State, at event.Micros, after *submission.Submission, limit int) ([]submission.Submission, error) {
	var passed submission.Submission
	if after != nil {
		passed = *after
	}
	return r.withDamaged(ctx, "t.source = $1 AND t.state = $2 AND t.due > 0 AND t.due <= $3 AND (t.due, t.id) > ($4, $5) ORDER BY t.due, t.id LIMIT $6",
		int64(source), int64(state), int64(at), int64(passed.Due), passed.ID, limit)
}

// errEnough ends a query whose other rows do not matter.
var errEnough = errors.New("enough")

// HasNewerVersion reports whether a later version of a submission is in one of some
// states: one of the same Source and Subject with a higher ID. With assigned it counts
// only versions to which that identifier was assigned.
func (r Queries) HasNewerVersion(ctx context.Context, s *submission.Submission, states []submission.State, assigned string) (bool, error) {
	// The query uses the index of subjects, which is selective whatever else the rows
	// have in common.
	args := []any{subjectKey(s.Subject()), s.ID, int64(s.Source)}
	for _, state := range states {
		args = append(args, int64(state))
	}
	var damaged error
	err := r.q.Each(ctx, submissions.selection()+"t.subject <> 0 AND t.subject = ? AND t.id > ? AND +t.source = ? AND t.state IN ("+database.Params(len(states))+")", args, func(rows *sql.Rows) error {
		v, err := submissions.scan(rows, new(string))
		if errors.Is(err, ErrDamaged) { // it may be one, unless another is
			damaged = err
			return nil
		}
		if err == nil && v.Subject() == s.Subject() && // other subjects may have the same hash
			(assigned == "" || v.Assigned == assigned) {
			return errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return true, nil
	}
	return false, cmp.Or(err, damaged)
}

// HasNewerAccepted reports whether a later version of an accepted submission has been
// accepted under the same identifier, so that this one changes nothing any more:
// dispositions come in any order.
func (r Queries) HasNewerAccepted(ctx context.Context, s *submission.Submission) (bool, error) {
	if s.Seq == 0 && !submission.Versioned(s) {
		return false, nil
	}
	return r.HasNewerVersion(ctx, s, []submission.State{submission.StateAccepted}, s.Assigned)
}

// StoredReply returns the disposition that a Source gave to the same whole request in the
// last 24 hours, nil when it gave none.
func (tx *Tx) StoredReply(ctx context.Context, source event.SourceID, request [32]byte) ([]byte, error) {
	found, err := replies.find(ctx, tx, "t.source = $1 AND t.request = $2 AND t.at >= $3", int64(source), request[:], int64(tx.Now-replyKept))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0].Disposition, nil
}

func setOfOutgoing(n *submission.OutgoingNotification) *string { return &n.Set }

func (r Queries) outgoing(ctx context.Context, where string, args ...any) ([]submission.OutgoingNotification, error) {
	return read(ctx, r.q, &outgoing, setOfOutgoing, where, args...)
}

// outgoings is outgoing that returns damaged rows too: they have the State 0, the ID and the
// Set, and a Due that cannot be trusted if it is 0.
func (r Queries) outgoings(ctx context.Context, where string, args ...any) ([]submission.OutgoingNotification, error) {
	return list(ctx, r.q, &outgoing, setOfOutgoing, func(n submission.OutgoingNotification) submission.OutgoingNotification {
		return submission.OutgoingNotification{ID: n.ID, Due: n.Due}
	}, where, args...)
}

// OutgoingDue returns the notifications with 0 < their Due <= due, the longest due first,
// at most limit: those that come after the Due and ID of another one, which may have
// changed since; nil is from the start. A damaged one is as in outgoings.
func (r Queries) OutgoingDue(ctx context.Context, due event.Micros, after *submission.OutgoingNotification, limit int) ([]submission.OutgoingNotification, error) {
	var passed submission.OutgoingNotification
	if after != nil {
		passed = *after
	}
	return r.outgoings(ctx, "t.due > 0 AND t.due <= $1 AND (t.due, t.id) > ($2, $3) ORDER BY t.due, t.id LIMIT $4", int64(due), int64(passed.Due), passed.ID, limit)
}

// OutgoingNotification returns one by its ID; fs.ErrNotExist when there is none.
func (r Queries) OutgoingNotification(ctx context.Context, id int64) (*submission.OutgoingNotification, error) {
	found, err := r.outgoing(ctx, "t.id = ?", id)
	return one(found, err, "notification")
}

// CanConclude reports whether a Source has something that somebody can conclude: a submission in
// one of some states, or a notification that waits to be delivered, that is not damaged.
func (r Queries) CanConclude(ctx context.Context, source event.SourceID, states []submission.State) (bool, error) {
	args := []any{int64(source)}
	for _, state := range states {
		args = append(args, int64(state))
	}
	err := r.q.Each(ctx, submissions.selection()+"t.source = ? AND t.state IN ("+database.Params(len(states))+")", args, func(rows *sql.Rows) error {
		_, err := submissions.scan(rows, new(string))
		return enough(err)
	})
	if err == nil {
		err = r.q.Each(ctx, outgoing.selection()+"t.source = ? AND t.state = ?", []any{int64(source), int64(submission.DeliveryWaiting)}, func(rows *sql.Rows) error {
			_, err := outgoing.scan(rows, new(string))
			return enough(err)
		})
	}
	if errors.Is(err, errEnough) {
		return true, nil
	}
	return false, err
}

// enough ends a query at the first row that is not damaged.
func enough(err error) error {
	switch {
	case err == nil:
		return errEnough
	case errors.Is(err, ErrDamaged):
		return nil
	}
	return err
}

// Undelivered returns the notification of a submission that waits, that its recipient has
// refused, or that was given up; fs.ErrNotExist when there is none.
func (r Queries) Undelivered(ctx context.Context, s *submission.Submission) (*submission.OutgoingNotification, error) {
	found, err := r.outgoing(ctx, "t.source = ? AND t.state IN (?, ?, ?) AND t.submission = ?", int64(s.Source), int64(submission.DeliveryWaiting), int64(submission.DeliveryRefused), int64(submission.DeliveryExpired), s.ID)
	return one(found, err, "notification")
}

// Outgoing returns the newest notifications of a set in a state; 0 is any. If after is
// not 0 it returns only those with a lower ID. A damaged one has the State 0, the ID and the
// Set.
func (r Queries) Outgoing(ctx context.Context, set string, state submission.DeliveryState, after int64, limit int) ([]submission.OutgoingNotification, error) {
	which, args := oneOrAll(set, after, int64(state), int64(submission.DeliveryExpired))
	return r.outgoings(ctx, "s.name = ? AND t.id < ? AND t.state IN ("+which+") ORDER BY t.id DESC LIMIT ?", append(args, limit)...)
}

// oneOrAll returns the parameters and arguments for one state or verdict, or with 0 for
// all from 1 to last, in a query for the newest rows of a set with an ID below after. The
// index has the rows of one state in the order of their ID.
func oneOrAll(set string, after, one, last int64) (which string, args []any) {
	args = []any{set, below(after)}
	for n := int64(1); n <= last; n++ {
		if one == 0 || n == one {
			args = append(args, n)
		}
	}
	return database.Params(len(args) - 2), args
}

// below returns the ID below which a page begins.
func below(after int64) int64 {
	if after <= 0 {
		return math.MaxInt64
	}
	return after
}

func setOfIncoming(n *submission.IncomingNotification) *string { return &n.Set }

// incoming returns a notification by its digest, a zero one when it has not come yet.
func (tx *Tx) incoming(ctx context.Context, source event.SourceID, digest [32]byte) (submission.IncomingNotification, error) {
	found, err := incoming.find(ctx, tx, "t.source = $1 AND t.digest = $2", int64(source), digest[:])
	if err != nil || len(found) == 0 {
		return submission.IncomingNotification{}, err
	}
	return found[0], nil
}

// notificationsKept is how many different notifications of a submission are kept of those that
// change nothing any more.
const notificationsKept = 100

// KeepsMore reports whether a notification of a submission that changes nothing any more can be
// kept: it is there already, or there are not too many yet.
func (tx *Tx) KeepsMore(ctx context.Context, s *submission.Submission, digest [32]byte) (bool, error) {
	was, err := tx.incoming(ctx, s.Source, digest)
	if err != nil || was.ID != 0 {
		return err == nil, err
	}
	var n int
	err = tx.Each(ctx, "SELECT count(*) FROM (SELECT 1 FROM incoming_notification WHERE submission <> 0 AND submission = $1 LIMIT $2) kept", []any{s.ID, notificationsKept},
		func(rows *sql.Rows) error { return rows.Scan(&n) })
	return n < notificationsKept, err
}

// IncomingNotification returns one by its ID; fs.ErrNotExist when there is none.
func (r Queries) IncomingNotification(ctx context.Context, id int64) (*submission.IncomingNotification, error) {
	found, err := read(ctx, r.q, &incoming, setOfIncoming, "t.id = ?", id)
	return one(found, err, "notification")
}

// Incoming returns the newest notifications of a set with a verdict; 0 is any. If after
// is not 0 it returns only those with a lower ID. A damaged one has the Verdict 0, the ID and
// the Set.
func (r Queries) Incoming(ctx context.Context, set string, verdict submission.NotificationVerdict, after int64, limit int) ([]submission.IncomingNotification, error) {
	which, args := oneOrAll(set, after, int64(verdict), int64(submission.NotificationSettled))
	return list(ctx, r.q, &incoming, setOfIncoming, func(n submission.IncomingNotification) submission.IncomingNotification {
		return submission.IncomingNotification{ID: n.ID}
	}, "s.name = ? AND t.id < ? AND t.verdict IN ("+which+") ORDER BY t.id DESC LIMIT ?", append(args, limit)...)
}

// Rejections returns the newest anonymous rejections of a set. If after is not 0 it
// returns only those with a lower ID. A damaged one has the Source 0, the ID and the Set.
func (r Queries) Rejections(ctx context.Context, set string, after int64, limit int) ([]submission.Rejection, error) {
	return list(ctx, r.q, &rejections, func(r *submission.Rejection) *string { return &r.Set }, func(r submission.Rejection) submission.Rejection { return submission.Rejection{ID: r.ID} },
		"s.name = ? AND t.id < ? ORDER BY t.id DESC LIMIT ?", set, below(after), limit)
}

// Counts returns how many submissions and notifications a Source or target has. Its time
// does not depend on their number.
func (r Queries) Counts(ctx context.Context, source event.SourceID) (submission.Counts, error) {
	c := submission.Counts{Submissions: map[submission.State]int64{}, Outgoing: map[submission.DeliveryState]int64{},
		Incoming: map[submission.NotificationVerdict]int64{}, Direct: map[submission.State]int64{}}
	return c, r.q.Each(ctx, "SELECT what, state, n FROM submission_count WHERE source = $1 AND n <> 0", []any{int64(source)}, func(rows *sql.Rows) error {
		var what, state, n int64
		err := rows.Scan(&what, &state, &n)
		switch what {
		case countSubmissions:
			c.Submissions[submission.State(state)] = n
		case countOutgoing:
			c.Outgoing[submission.DeliveryState(state)] = n
		case countIncoming:
			c.Incoming[submission.NotificationVerdict(state)] = n
		case countDirect:
			c.Direct[submission.State(state)] = n
		case countContradicted:
			c.Contradicted = n
		case countUnderReview:
			c.UnderReview = n
		case countDropped:
			c.Dropped = n
		}
		return err
	})
}
