package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// segmentRow is a segment as it is stored; start is the Observed of its first
// event.
type segmentRow struct {
	event.Segment
	start event.Micros
	feed  int64 // an upper bound of the bytes of its archive document
}

const selectSegments = "SELECT n, from_at, until_at, start, first, last, events, entries, weight, feed_weight FROM segment WHERE set_id = $1"

func scanSegment(rows *sql.Rows) (s segmentRow, err error) {
	err = rows.Scan(&s.N, &s.From, &s.Until, &s.start, &s.First, &s.Last, &s.Events, &s.Entries, &s.Weight, &s.feed)
	return s, err
}

func (b *batch) loadOpenSegment(ctx context.Context, q preparer) error {
	err := q.Each(ctx, selectSegments+" ORDER BY n DESC LIMIT 1", []any{b.set.id}, func(rows *sql.Rows) (err error) {
		b.open, err = scanSegment(rows)
		return err
	})
	if err == nil && !b.open.Open() || b.open.N == 0 {
		return fmt.Errorf("set %d has no open segment: run bridge verify", b.set.id)
	}
	return err
}

// place puts an event into the open segment. A segment closes before an event
// that comes segment_hours after its first, or for which its documents have no
// room, and with the event that makes it long or heavy enough: a function of the
// log, never of a timer. It is never empty when it closes.
func (b *batch) place(seq event.Seq, kind event.Kind, observed event.Micros, v *body, source int64) {
	entries := entriesOf(kind, v)
	w := weightOf(v, entries, source)
	if s := &b.open; s.Events > 0 &&
		(observed-s.start >= event.Micros(b.set.segmentHours)*event.Micros(time.Hour/time.Microsecond) || int64(s.Entries+entries) > maxEntries ||
			s.Weight+w.list > listRoom || s.feed+w.feed > feedRoom) {
		b.closeSegment()
	}
	s := &b.open
	if s.Events == 0 {
		s.First, s.start = seq, observed
	}
	s.Last = seq
	s.Events++
	s.Entries += entries
	s.Weight += w.list
	s.feed += w.feed
	if s.Events >= b.set.segmentEvents || s.Weight > maxWeight || int64(s.Entries) >= maxEntries {
		s.Until = observed
		b.closeSegment()
	}
}

// maxEntries is what one list may hold (ResourceSync 7).
const maxEntries = 50_000

// closeSegment ends the open segment at its last event and opens the next. When
// it closes before an event its border is the Observed of the event before.
func (b *batch) closeSegment() {
	if b.open.Until == 0 {
		b.open.Until = b.set.LastObserved
	}
	b.closed = append(b.closed, b.open)
	b.open = segmentRow{Segment: event.Segment{N: b.open.N + 1, From: b.open.Until}}
}

func (b *batch) saveSegments(ctx context.Context) error {
	if b.out.Last == 0 {
		return nil
	}
	for _, s := range append(b.closed, b.open) {
		err := b.tx.Exec(ctx, `INSERT OR REPLACE INTO segment (set_id, n, from_at, until_at, start, first, last, events, entries, weight, feed_weight)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, b.set.id, s.N, int64(s.From), int64(s.Until), int64(s.start), int64(s.First), int64(s.Last), s.Events, s.Entries, s.Weight, s.feed)
		if err != nil {
			return err
		}
	}
	return nil
}

func entriesOf(kind event.Kind, v *body) int {
	e := event.Event{Kind: kind, Gone: v.gone, Unlisted: v.unlisted}
	return e.Entries()
}
