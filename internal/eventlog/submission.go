package eventlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

const (
	submissionColumns = "b.state, b.version, b.due, b.seq, b.token, b.request, b.created, b.changed, b.owed, b.body, b.sum FROM submission b"
	selectSubmissions = "SELECT b.id, b.source, s.name, " + submissionColumns + " JOIN source src ON src.id = b.source JOIN sets s ON s.id = src.set_id"
)

func scanSubmission(rows *sql.Rows) (s event.Submission, err error) {
	var request, raw []byte
	var sum int64
	if err := rows.Scan(&s.ID, &s.Source, &s.Set, &s.State, &s.Version, &s.Due, &s.Seq, &s.Token, &request, &s.Created, &s.Changed, &s.ImportPending, &raw, &sum); err != nil {
		return s, err
	}
	copy(s.Request[:], request)
	if sum != submissionSum(&s, raw) {
		return s, fmt.Errorf("submission %d: %w: run bridge verify", s.ID, errDamaged)
	}
	if err := readSubmission(raw, &s); err != nil {
		return s, fmt.Errorf("submission %d: %w: run bridge verify", s.ID, err)
	}
	return s, nil
}

// Submission returns one by its number; fs.ErrNotExist when there is none.
func (l *Log) Submission(ctx context.Context, id int64) (*event.Submission, error) {
	return l.submission(ctx, "b.id = $1", id)
}

// SubmissionByToken returns the one whose notification recipient has the token;
// fs.ErrNotExist when there is none.
func (l *Log) SubmissionByToken(ctx context.Context, token string) (*event.Submission, error) {
	return l.submission(ctx, "b.token <> '' AND b.token = $1", token)
}

func (l *Log) submission(ctx context.Context, where string, arg any) (*event.Submission, error) {
	found, err := l.submissions(ctx, where, arg)
	if err == nil && len(found) == 0 {
		return nil, fmt.Errorf("there is no such submission: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return &found[0], nil
}

func (l *Log) submissions(ctx context.Context, where string, args ...any) (out []event.Submission, err error) {
	err = l.prepared(ctx, selectSubmissions+" WHERE "+where, args, func(rows *sql.Rows) error {
		s, err := scanSubmission(rows)
		out = append(out, s)
		return err
	})
	return out, err
}

// Submissions returns those that a query selects.
func (l *Log) Submissions(ctx context.Context, q event.SubmissionQuery) ([]event.Submission, error) {
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
		and("b.source = ?", int64(q.Source))
	}
	states := q.States
	if len(states) == 0 && q.Request == nil && q.Subject == "" && !q.ImportPending {
		// The index has the rows of one Source and state in the order of their ID:
		// with all states named SQLite stops at the limit, and else it sorts them all.
		states = event.States()
	}
	if len(states) > 0 {
		var args []any
		for _, s := range states {
			args = append(args, int64(s))
		}
		and("b.state IN ("+sqlite.Params(len(args))+")", args...)
	}
	if q.Request != nil {
		and("b.request IS NOT NULL AND b.request = ?", q.Request[:])
	}
	// The indexes hold only those that may be asked for: SQLite uses them when the
	// condition is theirs, word for word.
	if q.Subject != "" {
		and("b.subject <> 0 AND b.subject = ?", subjectKey(q.Subject))
	}
	if q.ImportPending {
		and("b.owed")
	}
	order := " ORDER BY b.id"
	if q.Newest {
		order += " DESC"
	}
	switch {
	case q.Newest && q.After > 0:
		and("b.id < ?", q.After)
	case !q.Newest:
		and("b.id > ?", q.After)
	}
	if q.Limit <= 0 {
		q.Limit = 1000
	}
	if len(where) == 0 {
		where = []string{"1"}
	}
	found, err := l.submissions(ctx, strings.Join(where, " AND ")+order+" LIMIT ?", append(args, q.Limit)...)
	return slices.DeleteFunc(found, func(s event.Submission) bool { // hashes of the others are the same
		return q.Subject != "" && s.Subject() != q.Subject
	}), err
}

// SubmissionsDue returns those of a Source in one state with 0 < their Due <= at,
// the longest due first, a page at a time: those that come after the Due and ID of
// another one, which need not be as it was any more; nil is from the start.
func (l *Log) SubmissionsDue(ctx context.Context, source event.SourceID, state event.State, at event.Micros, after *event.Submission, limit int) ([]event.Submission, error) {
	var passed event.Submission
	if after != nil {
		passed = *after
	}
	return l.submissions(ctx, "b.source = $1 AND b.state = $2 AND b.due > 0 AND b.due <= $3 AND (b.due, b.id) > ($4, $5) ORDER BY b.due, b.id LIMIT $6",
		int64(source), int64(state), int64(at), int64(passed.Due), passed.ID, limit)
}

// errEnough ends a query whose other rows do not matter.
var errEnough = errors.New("enough")

// HasNewerVersion reports whether a later version of a submission is in one of some states:
// one of the same Source and Subject with a higher ID. With assigned only those
// count to which that identifier was assigned.
func (l *Log) HasNewerVersion(ctx context.Context, s *event.Submission, states []event.State, assigned string) (bool, error) {
	// Whatever else the rows have in common, the subject has an index of its own.
	args := []any{subjectKey(s.Subject()), s.ID, int64(s.Source)}
	for _, state := range states {
		args = append(args, int64(state))
	}
	err := l.prepared(ctx, selectSubmissions+" WHERE b.subject <> 0 AND b.subject = ? AND b.id > ? AND +b.source = ? AND b.state IN ("+sqlite.Params(len(states))+")", args, func(rows *sql.Rows) error {
		v, err := scanSubmission(rows)
		if err == nil && v.Subject() == s.Subject() && // hashes of others are the same
			(assigned == "" || v.Assigned == assigned) {
			return errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return true, nil
	}
	return false, err
}

// StoredReply returns the disposition that a Source gave to the same whole request
// no longer than a day ago, nil when it gave none.
func (l *Log) StoredReply(ctx context.Context, source event.SourceID, request [32]byte) (disposition []byte, err error) {
	now, err := l.now()
	if err != nil {
		return nil, err
	}
	err = l.prepared(ctx, "SELECT at, disposition, sum FROM answered WHERE source = $1 AND request = $2 AND at >= $3",
		[]any{int64(source), request[:], int64(now - answerKept)}, func(rows *sql.Rows) error {
			var at event.Micros
			var sum int64
			err := rows.Scan(&at, &disposition, &sum)
			if err == nil && sum != sumOf(source, request[:], at, disposition) {
				err = fmt.Errorf("what Source %d has answered: %w: run bridge verify", source, errDamaged)
			}
			return err
		})
	return disposition, err
}

const (
	noticeColumns = "n.id, n.submission, n.source, n.state, n.due, n.created, n.body, n.sum"
	selectNotices = "SELECT " + noticeColumns + ", s.name FROM notice n JOIN source src ON src.id = n.source JOIN sets s ON s.id = src.set_id"
)

// scanNotice scans noticeColumns, and what a query asks for after them.
func scanNotice(rows *sql.Rows, more ...any) (n event.OutgoingNotification, source event.SourceID, err error) {
	var raw []byte
	var sum int64
	if err := rows.Scan(append([]any{&n.ID, &n.Submission, &source, &n.State, &n.Due, &n.Created, &raw, &sum}, more...)...); err != nil {
		return n, source, err
	}
	err = intact(sum == noticeSum(source, &n, raw), readNotice(raw, &n))
	return n, source, err
}

// intact returns the error of a row, of which the sum is right or not, and the body
// was decoded or not.
func intact(sum bool, decoded error) error {
	switch {
	case !sum:
		return errDamaged
	case decoded != nil:
		return fmt.Errorf("%w: %w", errDamaged, decoded)
	}
	return nil
}

// OutgoingDue returns those with 0 < their Due <= due, the longest due first, a page at
// a time: those that come after the Due and ID of another one, which need not be as
// it was any more; nil is from the start.
func (l *Log) OutgoingDue(ctx context.Context, due event.Micros, after *event.OutgoingNotification, limit int) ([]event.OutgoingNotification, error) {
	var passed event.OutgoingNotification
	if after != nil {
		passed = *after
	}
	return l.notices(ctx, "n.due > 0 AND n.due <= $1 AND (n.due, n.id) > ($2, $3) ORDER BY n.due, n.id LIMIT $4", int64(due), int64(passed.Due), passed.ID, limit)
}

// Outgoing returns the newest notices of a set in a state; 0 is any. With after
// they are those with an ID below it.
func (l *Log) Outgoing(ctx context.Context, set string, state event.DeliveryState, after int64, limit int) ([]event.OutgoingNotification, error) {
	which, args := oneOrAll(set, after, int64(state), int64(event.DeliveryExpired))
	return l.notices(ctx, "s.name = ? AND n.id < ? AND n.state IN ("+which+") ORDER BY n.id DESC LIMIT ?", append(args, limit)...)
}

func (l *Log) notices(ctx context.Context, where string, args ...any) (out []event.OutgoingNotification, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, selectNotices+" WHERE "+where, args...)
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var set string
			n, _, err := scanNotice(rows, &set)
			if err != nil {
				return fmt.Errorf("notice %d: %w: run bridge verify", n.ID, err)
			}
			n.Set = set
			out = append(out, n)
			return nil
		})
	})
	return out, err
}

// oneOrAll names one state or verdict, or with 0 all from 1 to last, for a query
// that takes the newest of a set: the index has those of one in the order of
// their ID, of which those below after are asked for.
func oneOrAll(set string, after, one, last int64) (which string, args []any) {
	if after <= 0 {
		after = math.MaxInt64
	}
	args = []any{set, after}
	for n := int64(1); n <= last; n++ {
		if one == 0 || n == one {
			args = append(args, n)
		}
	}
	return sqlite.Params(len(args) - 2), args
}

const (
	notificationColumns = "n.id, n.source, n.digest, n.submission, n.verdict, n.first, n.last, n.times, n.stranger, n.body, n.sum"
	selectNotifications = "SELECT " + notificationColumns + ", s.name FROM notification n JOIN source src ON src.id = n.source JOIN sets s ON s.id = src.set_id"
)

// scanNotification scans notificationColumns, and what a query asks for after them.
func scanNotification(rows *sql.Rows, more ...any) (n event.IncomingNotification, source event.SourceID, err error) {
	var digest, raw []byte
	var sum int64
	if err := rows.Scan(append([]any{&n.ID, &source, &digest, &n.Submission, &n.Verdict, &n.First, &n.Last, &n.Times, &n.Anonymous, &raw, &sum}, more...)...); err != nil {
		return n, source, err
	}
	copy(n.Digest[:], digest)
	err = intact(sum == notificationSum(source, &n, raw), readNotification(raw, &n))
	return n, source, err
}

// IncomingNotification returns one by its number; fs.ErrNotExist when there is none.
func (l *Log) IncomingNotification(ctx context.Context, id int64) (*event.IncomingNotification, error) {
	found, err := l.notifications(ctx, "n.id = ?", id)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("there is no such notification: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return &found[0], nil
}

// Incoming returns the newest notifications of a set with a verdict; 0 is
// any. With after they are those with an ID below it.
func (l *Log) Incoming(ctx context.Context, set string, verdict event.NotificationVerdict, after int64, limit int) ([]event.IncomingNotification, error) {
	which, args := oneOrAll(set, after, int64(verdict), int64(event.NotificationSettled))
	return l.notifications(ctx, "s.name = ? AND n.id < ? AND n.verdict IN ("+which+") ORDER BY n.id DESC LIMIT ?", append(args, limit)...)
}

func (l *Log) notifications(ctx context.Context, where string, args ...any) (out []event.IncomingNotification, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, selectNotifications+" WHERE "+where, args...)
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var set string
			n, _, err := scanNotification(rows, &set)
			if err != nil {
				return fmt.Errorf("notification %d: %w: run bridge verify", n.ID, err)
			}
			n.Set = set
			out = append(out, n)
			return nil
		})
	})
	return out, err
}

// Rejections returns the newest rejections of strangers' requests of a set. With
// after they are those with an ID below it.
func (l *Log) Rejections(ctx context.Context, set string, after int64, limit int) (out []event.Rejection, err error) {
	if after <= 0 {
		after = math.MaxInt64
	}
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, "SELECT "+rejectionColumns+`, s.name
FROM rejection r JOIN source src ON src.id = r.source JOIN sets s ON s.id = src.set_id WHERE s.name = ? AND r.id < ? ORDER BY r.id DESC LIMIT ?`, set, after, limit)
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var set string
			r, _, err := scanRejection(rows, &set)
			if err != nil {
				return fmt.Errorf("rejection %d: %w: run bridge verify", r.ID, err)
			}
			r.Set = set
			out = append(out, r)
			return nil
		})
	})
	return out, err
}

const rejectionColumns = "r.id, r.source, r.at, r.body, r.sum"

// scanRejection scans rejectionColumns, and what a query asks for after them.
func scanRejection(rows *sql.Rows, more ...any) (r event.Rejection, source event.SourceID, err error) {
	r.Anonymous = true
	var raw []byte
	var sum int64
	if err := rows.Scan(append([]any{&r.ID, &source, &r.At, &raw, &sum}, more...)...); err != nil {
		return r, source, err
	}
	err = intact(sum == rejectionSum(source, &r, raw), readRejection(raw, &r))
	return r, source, err
}

// Counts returns how many submissions, notices and notifications a Source or
// target has. It takes the same time for a million.
func (l *Log) Counts(ctx context.Context, source event.SourceID) (event.SubmissionCounts, error) {
	c := event.SubmissionCounts{Submissions: map[event.State]int64{}, Outgoing: map[event.DeliveryState]int64{},
		Incoming: map[event.NotificationVerdict]int64{}, Direct: map[event.State]int64{}}
	err := l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, "SELECT what, state, n FROM tally WHERE source = $1 AND n <> 0", int64(source))
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var what, state, n int64
			err := rows.Scan(&what, &state, &n)
			switch what {
			case tallySubmissions:
				c.Submissions[event.State(state)] = n
			case tallyNotices:
				c.Outgoing[event.DeliveryState(state)] = n
			case tallyNotifications:
				c.Incoming[event.NotificationVerdict(state)] = n
			case tallyDirect:
				c.Direct[event.State(state)] = n
			case tallyContradicted:
				c.Contradicted = n
			case tallyReview:
				c.UnderReview = n
			case tallyDropped:
				c.Dropped = n
			}
			return err
		})
	})
	return c, err
}

// submissionKeys are the columns that submissions are found by, besides state and
// due. They hardly ever change, and an UPDATE that names them writes more
// indexes, in places that are scattered.
type submissionKeys struct {
	source  event.SourceID
	seq     event.Seq
	token   string
	request [32]byte
	subject int64 // a hash
	created event.Micros
}

var (
	selectKeys        = "SELECT id, state, version, source, seq, token, request, subject, created FROM submission WHERE id IN (" + sqlite.Params(lookup) + ")"
	insertSubmissions = "INSERT OR FAIL INTO submission (id, source, state, version, due, seq, token, request, subject, created, changed, owed, body, sum) VALUES "
)

// scan reads a row of selectKeys.
func (k *submissionKeys) scan(rows *sql.Rows, id *int64, state *event.State, version *int64) error {
	var request sql.RawBytes
	err := rows.Scan(id, state, version, &k.source, &k.seq, &k.token, &request, &k.subject, &k.created)
	copy(k.request[:], request)
	return err
}

func keysOf(s *event.Submission) submissionKeys {
	return submissionKeys{s.Source, s.Seq, s.Token, s.Request, subjectKey(s.Subject()), s.Created}
}

func subjectKey(subject string) int64 {
	if subject == "" {
		return 0
	}
	return event.KeyBits(subject)
}

// saveSubmission writes the row of a step as it is. New ones are written together,
// by flush.
func (x *exchange) saveSubmission(ctx context.Context, b *batch, s *event.Submission, step int) error {
	raw := b.blob(func(to []byte) []byte { return appendSubmission(to, s) })
	sum := submissionSum(s, raw)
	if x.kept[step] {
		return b.tx.Exec(ctx, "UPDATE submission SET state = $2, version = $3, due = $4, changed = $5, owed = $6, body = $7, sum = $8 WHERE id = $1",
			s.ID, int64(s.State), s.Version, int64(s.Due), int64(s.Changed), boolArg(s.ImportPending), raw, sum)
	}
	k := keysOf(s)
	var request any
	if k.request != [32]byte{} {
		request = k.request[:]
	}
	args := []any{s.ID, int64(k.source), int64(s.State), s.Version, int64(s.Due), int64(k.seq), k.token, request, k.subject,
		int64(k.created), int64(s.Changed), boolArg(s.ImportPending), raw, sum}
	if x.in.Updates[step].Submission.ID == 0 {
		return x.fresh.Add(args...)
	}
	return b.tx.Exec(ctx, `UPDATE submission SET source = $2, state = $3, version = $4, due = $5, seq = $6, token = $7, request = $8, subject = $9,
	created = $10, changed = $11, owed = $12, body = $13, sum = $14 WHERE id = $1`, args...)
}

func submissionSum(s *event.Submission, raw []byte) int64 {
	return sumOf(s.ID, s.Source, int64(s.State), s.Version, s.Due, int64(s.Seq), s.Token, s.Request[:], s.Created, s.Changed, boolArg(s.ImportPending), raw)
}
