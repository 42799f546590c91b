package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
)

const selectSubmissions = `SELECT b.id, b.source, s.name, b.state, b.version, b.due, b.seq, b.token, b.request, b.created, b.changed, b.body, b.sum
FROM submission b JOIN source src ON src.id = b.source JOIN sets s ON s.id = src.set_id`

func scanSubmission(rows *sql.Rows) (s event.Submission, err error) {
	var request, raw []byte
	var sum int64
	if err := rows.Scan(&s.ID, &s.Source, &s.Set, &s.State, &s.Version, &s.Due, &s.Seq, &s.Token, &request, &s.Created, &s.Changed, &raw, &sum); err != nil {
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
	if len(states) == 0 && q.Request == nil && q.Block == nil && q.Record == "" {
		// The index has the rows of one Source and state in the order of their ID:
		// with all states named SQLite stops at the limit, and else it sorts them all.
		states = event.States()
	}
	if len(states) > 0 {
		var args []any
		for _, s := range states {
			args = append(args, int64(s))
		}
		and("b.state IN ("+in(len(args))+")", args...)
	}
	if q.Due > 0 {
		and("b.due > 0 AND b.due <= ?", int64(q.Due))
	}
	if q.Request != nil {
		and("b.request IS NOT NULL AND b.request = ?", q.Request[:])
	}
	// The indexes hold only those that may be asked for: SQLite uses them when the
	// condition is theirs, word for word.
	if q.Block != nil {
		and("b.block <> 0 AND b.block = ?", blockKey(q.Block))
	}
	if q.Record != "" {
		and("b.record = ?", recordKey(q.Record))
		if slices.Equal(q.States, []event.State{event.StateWaiting}) {
			and("b.state = 1")
		}
	}
	if q.Since > 0 {
		and("b.created >= ?", int64(q.Since))
	}
	order := " ORDER BY b.id"
	switch {
	case q.Newest && q.After > 0:
		and("b.id < ?", q.After)
	case !q.Newest:
		and("b.id > ?", q.After)
	}
	if q.Newest {
		order += " DESC"
	}
	if q.Limit <= 0 {
		q.Limit = 1000
	}
	if len(where) == 0 {
		where = []string{"1"}
	}
	found, err := l.submissions(ctx, strings.Join(where, " AND ")+order+" LIMIT ?", append(args, q.Limit)...)
	return slices.DeleteFunc(found, func(s event.Submission) bool { // hashes of the others are the same
		return q.Block != nil && string(s.Block) != string(q.Block) || q.Record != "" && s.Record != q.Record
	}), err
}

// Answered returns the disposition that a Source gave to the same whole request
// no longer than a day ago, nil when it gave none.
func (l *Log) Answered(ctx context.Context, source event.SourceID, request [32]byte) (disposition []byte, err error) {
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

const selectNotices = `SELECT n.id, n.submission, n.source, s.name, n.state, n.due, n.created, n.body, n.sum
FROM notice n JOIN source src ON src.id = n.source JOIN sets s ON s.id = src.set_id`

// Notices returns those that are due at a time, the longest due first.
func (l *Log) Notices(ctx context.Context, due event.Micros, limit int) ([]event.Notice, error) {
	return l.notices(ctx, "n.due > 0 AND n.due <= $1 ORDER BY n.due, n.id LIMIT $2", int64(due), limit)
}

// NoticesOf returns the newest notices of a set in a state; 0 is any.
func (l *Log) NoticesOf(ctx context.Context, set string, state event.NoticeState, limit int) ([]event.Notice, error) {
	which, args := oneOrAll(set, int64(state), int64(event.NoticeExpired))
	return l.notices(ctx, "s.name = ? AND n.state IN ("+which+") ORDER BY n.id DESC LIMIT ?", append(args, limit)...)
}

func (l *Log) notices(ctx context.Context, where string, args ...any) (out []event.Notice, err error) {
	err = l.read(ctx, func(q querier) error {
		rows, err := q.QueryContext(ctx, selectNotices+" WHERE "+where, args...)
		return scanAll(rows, err, func(rows *sql.Rows) error {
			var n event.Notice
			var source event.SourceID
			var raw []byte
			var sum int64
			if err := rows.Scan(&n.ID, &n.Submission, &source, &n.Set, &n.State, &n.Due, &n.Created, &raw, &sum); err != nil {
				return err
			}
			if sum != noticeSum(source, &n, raw) {
				return fmt.Errorf("notice %d: %w: run bridge verify", n.ID, errDamaged)
			}
			err := readNotice(raw, &n)
			out = append(out, n)
			return err
		})
	})
	return out, err
}

// oneOrAll names one state or verdict, or with 0 all from 1 to last, for a query
// that takes the newest of a set: the index has those of one in the order of
// their ID.
func oneOrAll(set string, one, last int64) (which string, args []any) {
	args = []any{set}
	for n := int64(1); n <= last; n++ {
		if one == 0 || n == one {
			args = append(args, n)
		}
	}
	return in(len(args) - 1), args
}

const selectNotifications = `SELECT n.id, n.source, s.name, n.digest, n.submission, n.verdict, n.first, n.last, n.times, n.body, n.sum
FROM notification n JOIN source src ON src.id = n.source JOIN sets s ON s.id = src.set_id`

// Notifications returns the newest notifications of a set with a verdict; 0 is
// any.
func (l *Log) Notifications(ctx context.Context, set string, verdict event.NotificationVerdict, limit int) (out []event.Notification, err error) {
	err = l.read(ctx, func(q querier) error {
		which, args := oneOrAll(set, int64(verdict), int64(event.NotificationConflict))
		rows, err := q.QueryContext(ctx, selectNotifications+" WHERE s.name = ? AND n.verdict IN ("+which+") ORDER BY n.id DESC LIMIT ?", append(args, limit)...)
		return scanAll(rows, err, func(rows *sql.Rows) error {
			var n event.Notification
			var source event.SourceID
			var digest, raw []byte
			var sum int64
			if err := rows.Scan(&n.ID, &source, &n.Set, &digest, &n.Submission, &n.Verdict, &n.First, &n.Last, &n.Times, &raw, &sum); err != nil {
				return err
			}
			copy(n.Digest[:], digest)
			if sum != notificationSum(source, &n, raw) {
				return fmt.Errorf("notification %d: %w: run bridge verify", n.ID, errDamaged)
			}
			err := readNotification(raw, &n)
			out = append(out, n)
			return err
		})
	})
	return out, err
}

// Counts returns how many submissions, notices and notifications a Source or
// target has. It takes the same time for a million.
func (l *Log) Counts(ctx context.Context, source event.SourceID) (event.Counts, error) {
	c := event.Counts{Submissions: map[event.State]int64{}, Notices: map[event.NoticeState]int64{},
		Notifications: map[event.NotificationVerdict]int64{}, Direct: map[event.State]int64{}}
	err := l.read(ctx, func(q querier) error {
		rows, err := q.QueryContext(ctx, "SELECT what, state, n FROM tally WHERE source = $1 AND n <> 0", int64(source))
		return scanAll(rows, err, func(rows *sql.Rows) error {
			var what, state, n int64
			err := rows.Scan(&what, &state, &n)
			switch what {
			case tallySubmissions:
				c.Submissions[event.State(state)] = n
			case tallyNotices:
				c.Notices[event.NoticeState(state)] = n
			case tallyNotifications:
				c.Notifications[event.NotificationVerdict(state)] = n
			case tallyDirect:
				c.Direct[event.State(state)] = n
			case tallyContradicted:
				c.Contradicted = n
			}
			return err
		})
	})
	return c, err
}
