package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// selectNewest reads the events of a range, and the bodies of those alone that are the
// last ones of their records.
var selectNewest = fmt.Sprintf(`SELECT e.id, e.record, e.kind, e.observed, CASE WHEN r.seq = e.id & %d THEN e.body END FROM event e LEFT JOIN record r ON r.id = e.record
WHERE e.id > $1 AND e.id <= $2 ORDER BY e.id LIMIT $3`, int64(maxSeq))

// firstPage is how many rows the first statement of Newest reads. Each further one reads
// twice as many, up to eventPage.
const firstPage = 128

// Newest calls do for the events of a set in a range that are the last ones of their
// records, in the order of the log, until do returns false. It looks at no more events
// than most, and returns the Seq of the last event that it has looked at: r.Upto when
// these were all. Its cost depends on how many events it looks at, and not on where they
// are. An event is good until do returns. One of the log's few connections is in use
// until Newest returns.
func (l *Log) Newest(ctx context.Context, set string, r event.Range, most int, do func(*event.Event) bool) (looked event.Seq, err error) {
	r.After, r.Upto = max(r.After, 0), min(r.Upto, maxSeq)
	err = l.read(ctx, func(q database.Querier) error {
		s, err := newScanner(ctx, q, set)
		if err != nil {
			return err
		}
		id := s.idOf(set)
		if id == 0 {
			return noSet(set)
		}
		p := l.pages.Get().(*rowPage)
		defer func() {
			if cap(p.bytes) <= 1<<20 { // long bodies are rare
				l.pages.Put(p)
			}
		}()
		for limit := min(firstPage, most); most > 0; limit = min(2*limit, eventPage, most) {
			if err := p.read(ctx, q, selectNewest, []any{eventID(id, r.After), eventID(id, r.Upto), limit}, nil); err != nil {
				return err
			}
			for _, row := range p.kept {
				r.After = event.Seq(row.seq)
				if row.from == row.to { // it has been superseded
					continue
				}
				ev, err := s.event(row.columns, p.bytes[row.from:row.to])
				if err != nil {
					return err
				}
				if !do(ev) {
					return nil
				}
			}
			if p.rows < limit {
				r.After = r.Upto
				return nil
			}
			most -= limit
		}
		return nil
	})
	return r.After, err
}

var selectBack = "SELECT " + eventColumns + " FROM event WHERE id > $1 AND id < $2 ORDER BY id DESC LIMIT $3"

// Back calls do for the events of a set before a Seq, the newest first, until do returns
// false; before 0 is from the newest one. It returns the Seq of the last event that it
// has called do with, and 0 when there is none before that. Its cost depends on how many
// events it reads, and not on where they are. An event is good until do returns.
func (l *Log) Back(ctx context.Context, set string, before event.Seq, do func(*event.Event) bool) (last event.Seq, err error) {
	if last = before; before <= 0 || before > maxSeq {
		last = maxSeq
	}
	err = l.read(ctx, func(q database.Querier) error {
		s, err := newScanner(ctx, q, set)
		if err != nil {
			return err
		}
		id := s.idOf(set)
		if id == 0 {
			return noSet(set)
		}
		var p rowPage
		for limit := firstPage; ; limit = min(2*limit, eventPage) {
			if err := p.read(ctx, q, selectBack, []any{eventID(id, 0), eventID(id, last), limit}, nil); err != nil {
				return err
			}
			for _, row := range slices.Backward(p.kept) {
				ev, err := s.event(row.columns, p.bytes[row.from:row.to])
				if err != nil {
					return err
				}
				last = event.Seq(row.seq)
				if !do(ev) {
					return nil
				}
			}
			if p.rows < limit {
				last = 0
				return nil
			}
		}
	})
	return last, err
}

var selectObserved = fmt.Sprintf("SELECT e.id, e.observed FROM sets s JOIN event e ON e.id > s.id << %d | $2 AND e.id < s.id + 1 << %[1]d WHERE s.name = $1 ORDER BY e.id LIMIT 1", seqBits)

// FirstAt returns the first event of a set that was observed at a time or later, and 0
// when there is none; fs.ErrNotExist when there is no such set, or it was renamed meanwhile. It
// looks at few events, however many there are: Observed grows with Seq (I3).
func (l *Log) FirstAt(ctx context.Context, set string, at event.Micros) (event.Seq, error) {
	// What was observed earlier is at low or before; found is the first known not to be.
	var low, found event.Seq
	high, err := l.LastSeq(ctx)
	for err == nil && low < high {
		middle := low + (high-low)/2
		var seq event.Seq
		var observed event.Micros
		err = l.Each(ctx, selectObserved, []any{set, int64(middle)}, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id, &observed)
			seq = seqOf(id)
			return err
		})
		switch {
		case seq == 0: // none is after middle
			high = middle
		case observed < at:
			low = seq
		default:
			found, high = seq, middle
		}
	}
	if err == nil {
		_, err = l.Set(ctx, set)
	}
	return found, err
}
