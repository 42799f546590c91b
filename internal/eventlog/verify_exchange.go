package eventlog

import (
	"database/sql"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
)

// readExchange checks what is kept of submissions, and that it was counted right.
func (v *verifier) readExchange() error {
	has := map[counted]int64{}
	for _, read := range []func(map[counted]int64) error{v.readSubmissions, v.readNotices, v.readNotifications} {
		if err := read(has); err != nil {
			return err
		}
	}
	if err := v.each("SELECT source, what, state, n FROM tally", func(rows *sql.Rows) error {
		var c counted
		var n int64
		err := rows.Scan(&c.source, &c.what, &c.state, &n)
		if c.what != tallyDirect {
			if n != has[c] {
				v.found(fmt.Sprintf("tally of Source %d", c.source), "%d are counted in state %d of %d, there are %d", n, c.state, c.what, has[c])
			}
			delete(has, c)
		}
		return err
	}); err != nil {
		return err
	}
	for c, n := range has {
		v.found(fmt.Sprintf("tally of Source %d", c.source), "%d in state %d of %d are not counted", n, c.state, c.what)
	}
	return v.each("SELECT source, request, at, disposition, sum FROM answered", func(rows *sql.Rows) error {
		var source event.SourceID
		var request, disposition []byte
		var at event.Micros
		var sum int64
		err := rows.Scan(&source, &request, &at, &disposition, &sum)
		if err == nil && sum != sumOf(source, request, at, disposition) {
			v.found(fmt.Sprintf("Source %d", source), "an answer is not what was stored")
		}
		return err
	})
}

func (v *verifier) readSubmissions(has map[counted]int64) error {
	// The join leaves out those whose Source is missing: they stay uncounted.
	return v.each(selectSubmissions, func(rows *sql.Rows) error {
		s, err := scanSubmission(rows)
		if s.ID == 0 && err != nil {
			return err
		}
		if err != nil {
			v.found(fmt.Sprintf("submission %d", s.ID), "%v", err)
		}
		has[counted{s.Source, tallySubmissions, int64(s.State)}]++
		if s.Conflicts > 0 {
			has[counted{s.Source, tallyContradicted, 0}]++
		}
		return nil
	})
}

func (v *verifier) readNotices(has map[counted]int64) error {
	return v.each("SELECT id, submission, source, state, due, created, body, sum FROM notice", func(rows *sql.Rows) error {
		var n event.Notice
		var source event.SourceID
		var raw []byte
		var sum int64
		err := rows.Scan(&n.ID, &n.Submission, &source, &n.State, &n.Due, &n.Created, &raw, &sum)
		if err == nil && (sum != noticeSum(source, &n, raw) || readNotice(raw, &n) != nil) {
			v.found(fmt.Sprintf("notice %d", n.ID), "it is not what was stored")
		}
		has[counted{source, tallyNotices, int64(n.State)}]++
		return err
	})
}

func (v *verifier) readNotifications(has map[counted]int64) error {
	return v.each("SELECT id, source, digest, submission, verdict, first, last, times, body, sum FROM notification", func(rows *sql.Rows) error {
		var n event.Notification
		var source event.SourceID
		var digest, raw []byte
		var sum int64
		err := rows.Scan(&n.ID, &source, &digest, &n.Submission, &n.Verdict, &n.First, &n.Last, &n.Times, &raw, &sum)
		copy(n.Digest[:], digest)
		if err == nil && (sum != notificationSum(source, &n, raw) || readNotification(raw, &n) != nil) {
			v.found(fmt.Sprintf("notification %d", n.ID), "it is not what was stored")
		}
		has[counted{source, tallyNotifications, int64(n.Verdict)}]++
		return err
	})
}
