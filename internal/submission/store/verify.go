package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// maxFindings of one check are reported singly; the others are counted.
const maxFindings = 100

// verifier is one Verify under way.
type verifier struct {
	s       *Store
	ctx     context.Context
	q       database.Querier
	all     []eventlog.Finding
	found   int
	sources map[event.SourceID]string // their sets
	rows    map[count]int64           // how many there are
	page    []submission.Submission   // to be compared with the log
}

// Verify checks the stored submissions: the checksum of each row; that rows that belong
// together exist; that a target's submission was made of an event of its set, and that a
// record that was accepted here is in the set; and the counters. It does not check the
// log itself. The error means that the check could not be done; findings go to report.
//
// It leaves out the records that a target's import set should have: the log does not have
// the time from which a target passes its records on. Nor does it check anything while a set is
// being removed, as its rows go one after the other.
func (s *Store) Verify(ctx context.Context, report func(eventlog.Finding)) error {
	v := &verifier{s: s, ctx: ctx, sources: map[event.SourceID]string{}, rows: map[count]int64{}}
	removing := ""
	err := s.Snapshot(ctx, func(q database.Querier) error {
		v.q = q
		if err := v.each("SELECT name FROM removed_set WHERE under_way <> 0 ORDER BY id", func(rows *sql.Rows) error { return rows.Scan(&removing) }); err != nil || removing != "" {
			return err
		}
		if err := v.each(selectSources, scanSource(v.sources)); err != nil {
			return err
		}
		whole := true
		for _, check := range []struct {
			table string
			run   func() error
		}{{submissions.name, v.submissions}, {outgoing.name, v.outgoing}, {incoming.name, v.incoming}, {rejections.name, v.rejections}, {replies.name, v.replies}} {
			if err := check.run(); err != nil && ctx.Err() == nil {
				whole = false
				v.finding("table "+check.table, "it could not be read to its end: %v", err)
			}
		}
		if !whole { // their number is unknown
			return nil
		}
		return v.counts()
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		v.finding("", "it could not be read to its end: %v", err)
	}
	if more := v.found - maxFindings; more > 0 {
		v.tell("", fmt.Sprintf("%d more findings of this check", more))
	}
	now := map[event.SourceID]string{}
	if err := s.Each(ctx, selectSources, nil, scanSource(now)); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		v.finding("", "it could not be read to its end: %v", err)
	}
	for id, set := range v.sources { // the log was read after the rows, and by the names of the sets
		if now[id] != set && removing == "" {
			removing = set
		}
	}
	if removing != "" {
		v.all = []eventlog.Finding{{Where: "tables of submissions", What: fmt.Sprintf("set %s was renamed or removed meanwhile, or is being removed, and they were not checked", removing), Do: "run bridge verify again"}}
	}
	for _, f := range v.all {
		report(f)
	}
	return nil
}

// selectSources are the Sources with the names of their sets.
const selectSources = "SELECT src.id, s.name FROM source src JOIN sets s ON s.id = src.set_id"

func scanSource(sources map[event.SourceID]string) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var id event.SourceID
		var set string
		err := rows.Scan(&id, &set)
		sources[id] = set
		return err
	}
}

func (v *verifier) finding(place, format string, args ...any) {
	if v.found++; v.found <= maxFindings {
		v.tell(place, fmt.Sprintf(format, args...))
	}
}

func (v *verifier) tell(place, what string) {
	where := "tables of submissions"
	if place != "" {
		where += ", " + place
	}
	v.all = append(v.all, eventlog.Finding{Where: where, What: what, Do: "restore the data folder from a backup"})
}

func (v *verifier) each(query string, scan func(*sql.Rows) error) error {
	return database.Each(v.ctx, v.q, query, nil, scan)
}

// sound reports a row that is damaged, or whose Source is missing. It returns whether the
// row can be used. err is that of scan.
func (v *verifier) sound(place string, source event.SourceID, err error) (bool, error) {
	_, known := v.sources[source]
	switch {
	case errors.Is(err, ErrDamaged):
		v.finding(place, "it is not what was stored")
	case err != nil:
		return false, err
	case !known:
		v.finding(place, "its Source %d is missing", source)
	default:
		return true, nil
	}
	return false, nil
}

// submissions checks each row, and compares it with the log.
func (v *verifier) submissions() error {
	if err := v.each("SELECT "+submissions.list()+", t.subject FROM submission t ORDER BY t.id", func(rows *sql.Rows) error {
		var subject int64
		s, err := submissions.scan(rows, &subject)
		if err == nil && subject != subjectKey(s.Subject()) {
			err = ErrDamaged
		}
		v.rows[count{s.Source, countSubmissions, int64(s.State)}]++
		if s.State == submission.StateProvisional && s.UnderReview() {
			v.rows[count{s.Source, countUnderReview, 0}]++
		}
		if s.Conflicts > 0 {
			v.rows[count{s.Source, countContradicted, 0}]++
		}
		if ok, err := v.sound(fmt.Sprintf("submission %d", s.ID), s.Source, err); err != nil || !ok {
			return err
		}
		if s.Seq == 0 && s.State != submission.StateAccepted && !s.ImportPending {
			return nil
		}
		if v.page = append(v.page, s); len(v.page) < 1000 {
			return nil
		}
		return v.compare()
	}); err != nil {
		return err
	}
	return v.compare()
}

// compare compares a page of submissions with their events. Verify of the log reports
// damaged events.
func (v *verifier) compare() error {
	page := v.page
	v.page = v.page[:0]
	events, err := v.eventsOf(page)
	if err != nil {
		return err
	}
	accepted, logged := map[string][]string{}, map[string]map[string]bool{} // by set
	for i := range page {
		if s := &page[i]; s.Seq == 0 && s.State == submission.StateAccepted {
			accepted[v.sources[s.Source]] = append(accepted[v.sources[s.Source]], s.Assigned)
		}
	}
	for set, identifiers := range accepted {
		if found, err := v.s.Logged(v.ctx, set, identifiers); err == nil {
			logged[set] = found
		}
	}
	for i := range page {
		s := &page[i]
		set, place := v.sources[s.Source], fmt.Sprintf("submission %d", s.ID)
		if s.ImportPending && (s.Seq == 0 || s.State != submission.StateAccepted) {
			v.finding(place, "it is to be imported into another set, and is %s, made of event %d", s.State, s.Seq)
		}
		switch made := events[s.Seq]; {
		case s.Seq != 0 && made.missing:
			v.finding(place, "it was made of event %d, which is missing", s.Seq)
		case s.Seq != 0 && !made.damaged && (made.set != set || made.record != s.Record):
			v.finding(place, "it was made of event %d, which is not one of record %q in its set", s.Seq, s.Record)
		case s.Seq == 0 && s.State == submission.StateAccepted && logged[set] != nil && !logged[set][s.Assigned]:
			v.finding(place, "it was accepted as %q, and its set has no event of such a record", s.Assigned)
		}
	}
	return v.ctx.Err()
}

// origin is the set and the record of an event.
type origin struct {
	set, record      string
	missing, damaged bool
}

// eventsOf looks up the events that submissions were made of. Where they follow each
// other closely they are read together.
func (v *verifier) eventsOf(page []submission.Submission) (map[event.Seq]origin, error) {
	out := map[event.Seq]origin{}
	var first, last event.Seq = math.MaxInt64, 0
	for i := range page {
		if seq := page[i].Seq; seq != 0 {
			first, last = min(first, seq), max(last, seq)
			out[seq] = origin{missing: true}
		}
	}
	if len(out) > 0 && last-first < event.Seq(4*len(out)) {
		whole := true
		for ev, err := range v.s.Events(v.ctx, "", event.Range{After: first - 1, Upto: last}) {
			if err != nil {
				whole = false
				break
			}
			if _, wanted := out[ev.Seq]; wanted {
				out[ev.Seq] = origin{set: ev.Set, record: ev.Record}
			}
		}
		if whole {
			return out, v.ctx.Err()
		}
	}
	for seq := range out {
		ev, err := v.s.Event(v.ctx, seq)
		switch {
		case err == nil:
			out[seq] = origin{set: ev.Set, record: ev.Record}
		case !errors.Is(err, fs.ErrNotExist):
			out[seq] = origin{damaged: true}
		}
	}
	return out, v.ctx.Err()
}

// owner is the submission that a notification belongs to, in columns of the same row: all
// are NULL if the submission is missing.
type owner struct {
	source   sql.Null[event.SourceID]
	state    sql.NullInt64 // in a damaged row it may be any number
	assigned sql.Null[string]
}

// is returns its state, 0 when it has none.
func (o *owner) is() submission.State {
	if n := o.state.Int64; 0 < n && n <= int64(submission.StateReplaced) {
		return submission.State(n)
	}
	return 0
}

const ownerColumns = ", b.source, b.state, b.assigned FROM "
const joinOwner = " t LEFT JOIN submission b ON b.id = t.submission"

// belongs checks that the submission of a notification, if any, exists and is of the same
// Source. It returns whether it is.
func (v *verifier) belongs(place string, source event.SourceID, id int64, o *owner) bool {
	switch {
	case id == 0:
		return true
	case !o.source.Valid:
		v.finding(place, "it belongs to submission %d, which is missing", id)
	case o.source.V != source:
		v.finding(place, "it is of Source %d, and submission %d, to which it belongs, is of Source %d", source, id, o.source.V)
	default:
		return true
	}
	return false
}

func (v *verifier) outgoing() error {
	return v.each("SELECT "+outgoing.list()+ownerColumns+outgoing.name+joinOwner, func(rows *sql.Rows) error {
		var o owner
		n, err := outgoing.scan(rows, &o.source, &o.state, &o.assigned)
		v.rows[count{n.Source, countOutgoing, int64(n.State)}]++
		place := fmt.Sprintf("outgoing notification %d", n.ID)
		ok, err := v.sound(place, n.Source, err)
		switch {
		case err != nil || !ok:
			return err
		case n.Submission == 0:
			v.finding(place, "it belongs to no submission")
		case !v.belongs(place, n.Source, n.Submission, &o):
		case !o.is().Final():
			v.finding(place, "it says what was decided about submission %d, which is %s", n.Submission, o.is())
		case n.State == submission.DeliveryWaiting && (n.Recipient == "" || n.Due == 0):
			v.finding(place, "it waits, and has no recipient or no time to be delivered at: nobody will be notified of submission %d", n.Submission)
		}
		return nil
	})
}

func (v *verifier) incoming() error {
	return v.each("SELECT "+incoming.list()+ownerColumns+incoming.name+joinOwner, func(rows *sql.Rows) error {
		var o owner
		n, err := incoming.scan(rows, &o.source, &o.state, &o.assigned)
		v.rows[count{n.Source, countIncoming, int64(n.Verdict)}]++
		place := fmt.Sprintf("incoming notification %d", n.ID)
		if ok, err := v.sound(place, n.Source, err); err != nil || !ok {
			return err
		}
		if n.Verdict == submission.NotificationSettled && o.source.Valid || !v.belongs(place, n.Source, n.Submission, &o) {
			return nil // a settled one may have come to another Source of the set
		}
		wants := map[submission.NotificationVerdict]submission.Resolution{
			submission.NotificationMatched:  submission.Repeats, // or it was the one that resolved it
			submission.NotificationConflict: submission.Contradicts,
		}[n.Verdict]
		s := submission.Submission{State: o.is(), Assigned: o.assigned.V}
		switch {
		case (wants != 0) != (n.Submission != 0):
			v.finding(place, "it is %s, and belongs to submission %d (0 is none)", n.Verdict, n.Submission)
		case wants != 0 && s.Resolve(n.Outcome, n.Assigned) != wants:
			v.finding(place, "it is %s: %s %q; submission %d is %s %q", n.Verdict, n.Outcome, n.Assigned, n.Submission, s.State, s.Assigned)
		}
		return nil
	})
}

func (v *verifier) rejections() error {
	return v.each("SELECT "+rejections.list()+" FROM rejection t", func(rows *sql.Rows) error {
		r, err := rejections.scan(rows)
		_, err = v.sound(fmt.Sprintf("rejection %d", r.ID), r.Source, err)
		return err
	})
}

func (v *verifier) replies() error {
	return v.each("SELECT "+replies.list()+" FROM reply t", func(rows *sql.Rows) error {
		r, err := replies.scan(rows)
		_, err = v.sound(fmt.Sprintf("reply %d", r.id), r.source, err)
		return err
	})
}

// counts compares the counters with the rows.
func (v *verifier) counts() error {
	if err := v.each("SELECT source, what, state, n FROM submission_count", func(rows *sql.Rows) error {
		var c count
		var n int64
		err := rows.Scan(&c.source, &c.what, &c.state, &n)
		if c.what != countDirect && c.what != countDropped { // which have no rows
			if n != v.rows[c] {
				v.finding(fmt.Sprintf("counts of Source %d", c.source), "%d are counted in state %d of %d, there are %d", n, c.state, c.what, v.rows[c])
			}
			delete(v.rows, c)
		}
		return err
	}); err != nil {
		return err
	}
	for c, n := range v.rows {
		v.finding(fmt.Sprintf("counts of Source %d", c.source), "%d in state %d of %d are not counted", n, c.state, c.what)
	}
	return nil
}
