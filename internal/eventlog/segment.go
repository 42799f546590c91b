package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// maxWeight closes a segment whose Change List may be larger than 40 MB.
const maxWeight = 40_000_000

// segmentRow is a segment as it is stored; start is the Observed of its first
// event.
type segmentRow struct {
	event.Segment
	start event.Micros
}

const selectSegments = "SELECT n, from_at, until_at, start, first, last, events, entries, weight FROM segment WHERE set_id = $1"

func scanSegment(rows *sql.Rows) (s segmentRow, err error) {
	err = rows.Scan(&s.N, &s.From, &s.Until, &s.start, &s.First, &s.Last, &s.Events, &s.Entries, &s.Weight)
	return s, err
}

func (b *batch) loadOpenSegment(ctx context.Context, q preparer) error {
	err := q.each(ctx, selectSegments+" ORDER BY n DESC LIMIT 1", []any{b.set.id}, func(rows *sql.Rows) (err error) {
		b.open, err = scanSegment(rows)
		return err
	})
	if err == nil && !b.open.Open() || b.open.N == 0 {
		return fmt.Errorf("set %d has no open segment: run bridge verify", b.set.id)
	}
	return err
}

// place puts an event into the open segment. A segment closes before an event
// that comes segment_hours after its first, and with the event that makes it
// long or heavy enough: a function of the log, never of a timer. It is never
// empty when it closes.
func (b *batch) place(seq event.Seq, kind event.Kind, observed event.Micros, v *body) {
	entries := entriesOf(kind, v)
	if s := &b.open; s.Events > 0 &&
		(observed-s.start >= event.Micros(b.set.segmentHours)*event.Micros(time.Hour/time.Microsecond) || int64(s.Entries+entries) > maxEntries) {
		b.closeSegment()
	}
	s := &b.open
	if s.Events == 0 {
		s.First, s.start = seq, observed
	}
	s.Last = seq
	s.Events++
	s.Entries += entries
	s.Weight += weightOf(v, entries)
	if int64(s.Events) >= b.set.segmentEvents || s.Weight > maxWeight || int64(s.Entries) >= maxEntries {
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
		b.open.Until = b.set.lastObserved
	}
	b.closed = append(b.closed, b.open)
	b.open = segmentRow{Segment: event.Segment{N: b.open.N + 1, From: b.open.Until}}
}

func (b *batch) saveSegments(ctx context.Context) error {
	if b.out.Last == 0 {
		return nil
	}
	for _, s := range append(b.closed, b.open) {
		err := b.l.exec(ctx, `INSERT OR REPLACE INTO segment (set_id, n, from_at, until_at, start, first, last, events, entries, weight)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, b.set.id, s.N, int64(s.From), int64(s.Until), int64(s.start), int64(s.First), int64(s.Last), s.Events, s.Entries, s.Weight)
		if err != nil {
			return err
		}
	}
	return nil
}

func entriesOf(kind event.Kind, v *body) int {
	e := event.Event{Kind: kind, Gone: v.gone, Shared: v.shared}
	return e.Entries()
}

// weightOf is an upper bound of the bytes that an event takes in a Change List,
// where the base URL and the set's name are no longer than 100 bytes together.
// The numbers are those of the markup with the longest times and lengths.
func weightOf(v *body, entries int) int64 {
	const (
		entry     = 225
		via       = 120
		alternate = 85
		own       = 100 + 16 + 87 // a URL of ours: base and set, path, key
	)
	o := &v.obs
	url := int64(own)
	if o.Loc != "" { // it is published under the Source's own
		url = 0
	}
	each := entry + via + url + escaped(o.Record) + escaped(o.Title) + escaped(o.ViaHref()) + escaped(o.Via.Type) + escaped(o.Via.Hash)
	n := each*int64(max(entries, 1)) + escaped(o.Loc) + 2*escaped(v.gone)
	for i, r := range o.Representations {
		n += escaped(r.Type) + escaped(r.Hash)
		if i == o.Preferred { // its type and hash stand in rs:md and in the via
			n += escaped(r.Type) + escaped(r.Hash)
			continue
		}
		n += alternate + url + 1 + int64(len(r.Name))
		if url == 0 {
			n += escaped(r.Href)
		}
	}
	return n
}

// escaped is an upper bound of the length of s in an attribute.
func escaped(s string) int64 {
	n := int64(len(s))
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '&', '<', '>', '"', '\'', '\t', '\n', '\r':
			n += 5
		}
	}
	return n
}
