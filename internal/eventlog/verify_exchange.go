package eventlog

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
)

// readExchange checks what is kept of submissions, that what belongs together is
// there, and that it was counted right.
func (v *verifier) readExchange() error {
	has := map[counted]int64{}
	for _, read := range []func(map[counted]int64) error{v.readSubmissions, v.readNotices, v.readNotifications, v.readRejections, v.readTally} {
		if err := read(has); err != nil {
			return err
		}
	}
	return v.each("SELECT source, request, at, disposition, sum FROM answered", func(rows *sql.Rows) error {
		var source event.SourceID
		var request, disposition []byte
		var at event.Micros
		var sum int64
		if err := rows.Scan(&source, &request, &at, &disposition, &sum); err != nil {
			return err
		}
		if _, known := v.sources[source]; !known || sum != sumOf(source, request, at, disposition) {
			v.found(fmt.Sprintf("Source %d", source), "an answer is not what was stored, or the Source is missing")
		}
		return nil
	})
}

// readTally compares what was counted with what there is.
func (v *verifier) readTally(has map[counted]int64) error {
	if err := v.each("SELECT source, what, state, n FROM tally", func(rows *sql.Rows) error {
		var c counted
		var n int64
		err := rows.Scan(&c.source, &c.what, &c.state, &n)
		if c.what != tallyDirect && c.what != tallyDropped && c.what != tallyUnquarantined { // of those there are no rows
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
	return nil
}

// owner is the submission that a notice or a notification names, in columns of the
// same row: all are NULL when it is not there.
type owner struct {
	source sql.Null[event.SourceID]
	state  sql.Null[event.State]
	body   []byte
}

const ownerColumns = "b.source, b.state, b.body"

// belongs checks to whom a notice or a notification of a Source belongs.
func (v *verifier) belongs(place string, source event.SourceID, submission int64, o *owner) bool {
	_, known := v.sources[source]
	switch {
	case !known:
		v.found(place, "its Source %d is missing", source)
	case submission == 0:
		return true
	case !o.source.Valid:
		v.found(place, "it belongs to submission %d, which is missing", submission)
	case o.source.V != source:
		v.found(place, "it is of Source %d, and submission %d, to which it belongs, is of Source %d", source, submission, o.source.V)
	default:
		return true
	}
	return false
}

func (v *verifier) readNotices(has map[counted]int64) error {
	return v.each("SELECT "+noticeColumns+", "+ownerColumns+" FROM notice n LEFT JOIN submission b ON b.id = n.submission", func(rows *sql.Rows) error {
		var o owner
		n, source, err := scanNotice(rows, &o.source, &o.state, &o.body)
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		has[counted{source, tallyNotices, int64(n.State)}]++
		place := fmt.Sprintf("notice %d", n.ID)
		switch {
		case err != nil:
			v.found(place, "it is not what was stored")
		case n.Submission == 0:
			v.found(place, "it belongs to no submission")
		case !v.belongs(place, source, n.Submission, &o):
		case !o.state.V.Final():
			v.found(place, "it tells what was decided about submission %d, which is %s", n.Submission, o.state.V)
		case n.State == event.DeliveryWaiting && (n.Recipient == "" || n.Due == 0):
			v.found(place, "it waits, and has no recipient or no time to be delivered at: nobody will be told of submission %d", n.Submission)
		}
		return nil
	})
}

func (v *verifier) readNotifications(has map[counted]int64) error {
	return v.each("SELECT "+notificationColumns+", "+ownerColumns+" FROM notification n LEFT JOIN submission b ON b.id = n.submission", func(rows *sql.Rows) error {
		var o owner
		n, source, err := scanNotification(rows, &o.source, &o.state, &o.body)
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		has[counted{source, tallyNotifications, int64(n.Verdict)}]++
		place := fmt.Sprintf("notification %d", n.ID)
		switch {
		case err != nil:
			v.found(place, "it is not what was stored")
		case n.Verdict == event.NotificationSettled && o.source.Valid: // it may have come to another Source of the set
		case v.belongs(place, source, n.Submission, &o):
			v.verdict(place, &n, &o)
		}
		return nil
	})
}

func (v *verifier) readRejections(map[counted]int64) error {
	return v.each("SELECT "+rejectionColumns+" FROM rejection r", func(rows *sql.Rows) error {
		r, source, err := scanRejection(rows)
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		if _, known := v.sources[source]; !known || err != nil {
			v.found(fmt.Sprintf("rejection %d", r.ID), "it is not what was stored, or its Source is missing")
		}
		return nil
	})
}

// verdict compares what became of a notification with the submission to which it
// belongs.
func (v *verifier) verdict(place string, n *event.IncomingNotification, o *owner) {
	wants := map[event.NotificationVerdict]event.Resolution{
		event.NotificationMatched:  event.Repeats, // or it was the first to say so
		event.NotificationConflict: event.Contradicts,
	}[n.Verdict]
	s := event.Submission{State: o.state.V}
	switch {
	case n.Verdict == event.NotificationSettled && n.Submission != 0: // somebody knows better than it
	case (wants != 0) != (n.Submission != 0):
		v.found(place, "it is %s, and belongs to submission %d (0 is none)", n.Verdict, n.Submission)
	case wants == 0 || readSubmission(o.body, &s) != nil: // a body that is damaged is found with its submission
	case s.Resolve(n.Outcome, n.Assigned) != wants:
		v.found(place, "it is %s: %s %q; submission %d is %s %q", n.Verdict, n.Outcome, n.Assigned, n.Submission, s.State, s.Assigned)
	}
}
