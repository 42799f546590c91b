package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Table source_records holds which records each Source has: a bitmap over the ordinals of
// the set's records, in pages. The absent records are those of the bitmap that a complete
// enumeration did not have. Finding them takes time in proportion to the Source's
// records, however large the set is.

// hasPage is the number of a page of one Source.
type hasPage struct {
	source event.SourceID
	n      int64
}

// holds stores whether a Source has a record, if that has changed.
func (b *batch) holds(ctx context.Context, s *sourceState, record int64) error {
	if s.alive == s.wasAlive {
		return nil
	}
	s.wasAlive = s.alive
	o := ordinal(record)
	at := hasPage{s.source, o / pageBits}
	p := b.has[at]
	if p == nil {
		p = new(page)
		if err := b.tx.Each(ctx, "SELECT bits FROM source_records WHERE source = $1 AND page = $2", []any{int64(at.source), at.n}, func(rows *sql.Rows) error {
			var sealed sql.RawBytes
			if err := rows.Scan(&sealed); err != nil {
				return err
			}
			return p.unseal(at, sealed)
		}); err != nil {
			return err
		}
		if b.has == nil {
			b.has = map[hasPage]*page{}
		}
		b.has[at] = p
	}
	if s.alive {
		p[o%pageBits/8] |= 1 << (o % 8)
	} else {
		p[o%pageBits/8] &^= 1 << (o % 8)
	}
	return nil
}

func (b *batch) saveHas(ctx context.Context) error {
	for _, at := range slices.SortedFunc(maps.Keys(b.has), func(x, y hasPage) int {
		return cmp.Or(cmp.Compare(x.source, y.source), cmp.Compare(x.n, y.n))
	}) {
		if err := b.tx.Exec(ctx, "INSERT OR REPLACE INTO source_records (source, page, bits) VALUES ($1, $2, $3)", int64(at.source), at.n, b.has[at].seal(at)); err != nil {
			return err
		}
	}
	return nil
}

// The checksum of a page covers its Source and its number.
func (at hasPage) columns() columns { return columns{set: int64(at.source), record: at.n} }

func (p *page) seal(at hasPage) []byte { return seal(at.columns(), slices.Clone(p[:])) }

func (p *page) unseal(at hasPage, sealed []byte) error {
	raw, err := unseal(at.columns(), sealed)
	if err != nil || len(raw) != len(p) {
		return fmt.Errorf("which records Source %d has: %w: run bridge verify", at.source, ErrDamaged)
	}
	copy(p[:], raw)
	return nil
}

// CountAbsent returns how many records the Source has, and how many of them are absent:
// the enumeration of the walk under way did not have them. A record that the Source
// changed later than at is not absent; if at is unknown, neither is a record that a list
// of changes mentioned last. parts are the parts that the Source has now, if it ever had
// several; at is that of the earliest.
func (l *Log) CountAbsent(ctx context.Context, source event.SourceID, at event.Stamp, parts ...event.Enumerated) (absent, have int64, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		a, err := l.absence(ctx, q, source, at, parts)
		if err != nil {
			return err
		}
		have = countBits(a.has)
		return a.each(ctx, q, 0, func(_ int64, gone bool, _ []int) bool {
			if gone {
				absent++
			}
			return true
		})
	})
	return absent, have, err
}

// Has returns how many records a Source has, by its last reports. It reads one bit for
// each record.
func (l *Log) Has(ctx context.Context, source event.SourceID) (n int64, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		has, err := readHas(ctx, q, source)
		n = countBits(has)
		return err
	})
	return n, err
}

func countBits(pages map[int64]*page) (n int64) {
	for _, p := range pages {
		for _, b := range p {
			n += int64(bits.OnesCount8(b))
		}
	}
	return n
}

// Absent returns the identifiers of absent records (see CountAbsent), including records
// whose content is pending: at most limit of them, with record numbers above after. next
// is the record number to pass as after in the next call.
func (l *Log) Absent(ctx context.Context, source event.SourceID, at event.Stamp, after int64, limit int, parts ...event.Enumerated) (ids []string, next int64, err error) {
	next, err = l.pick(ctx, source, at, after, limit, parts, func(gone bool, _ []int) bool { return gone }, func(id string, _ []int) { ids = append(ids, id) })
	return ids, next, err
}

// Left returns records that are not absent, because a part of the Source has them, once
// for each part that no longer has them. limit, after and next are as in Absent.
func (l *Log) Left(ctx context.Context, source event.SourceID, at event.Stamp, after int64, limit int, parts ...event.Enumerated) (out []event.Left, next int64, err error) {
	next, err = l.pick(ctx, source, at, after, limit, parts, func(_ bool, left []int) bool { return len(left) > 0 }, func(id string, left []int) {
		for _, part := range left {
			out = append(out, event.Left{Record: id, Part: part})
		}
	})
	return out, next, err
}

// pick calls add for each record of an absence that wanted selects. limit, after and next
// are as in Absent.
func (l *Log) pick(ctx context.Context, source event.SourceID, at event.Stamp, after int64, limit int, parts []event.Enumerated,
	wanted func(gone bool, left []int) bool, add func(id string, left []int)) (next int64, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		a, err := l.absence(ctx, q, source, at, parts)
		if err != nil {
			return err
		}
		var records []int64
		var lefts [][]int
		if err := a.each(ctx, q, after, func(record int64, gone bool, left []int) bool {
			if wanted(gone, left) {
				records, lefts = append(records, record), append(lefts, left)
			}
			return len(records) < limit
		}); err != nil {
			return err
		}
		for i, r := range records {
			var id string
			if err := q.QueryRowContext(ctx, "SELECT identifier FROM record WHERE id = $1", r).Scan(&id); err != nil {
				return fmt.Errorf("record %d: %w", r, err)
			}
			add(id, lefts[i])
			next = r
		}
		return nil
	})
	return next, err
}

// absence is what Absent and Left compare: the records that a Source has or whose content
// is pending, and the records that the walk has seen.
type absence struct {
	source   event.SourceID
	set      int64
	at       event.Stamp
	parts    []event.Enumerated // that were enumerated, if the Source ever had several; it no longer has the others
	ordering ordering
	has      map[int64]*page
	walk     *walk
	// changedLater are records of which the walk has seen a change that is later than the
	// enumeration, and that was bad or not selected: their state is unknown.
	changedLater map[int64]bool
}

func (l *Log) absence(ctx context.Context, q database.Querier, source event.SourceID, at event.Stamp, parts []event.Enumerated) (*absence, error) {
	a := &absence{source: source, at: at, parts: parts}
	src, err := readSource(ctx, q, source)
	if err != nil {
		return nil, err
	}
	if a.walk, err = l.walkNow(ctx, source); err != nil {
		return nil, err
	}
	a.set, a.ordering = src.set, orderingOfKind(src.kind)
	if a.changedLater, err = changedLaterThan(ctx, q, source, a.ordering, at); err != nil {
		return nil, err
	}
	if a.has, err = readHas(ctx, q, source); err != nil {
		return nil, err
	}
	return a, database.Each(ctx, q, "SELECT record FROM pending WHERE source = $1", []any{int64(source)}, func(rows *sql.Rows) error {
		var record int64
		err := rows.Scan(&record)
		n, o := ordinal(record)/pageBits, ordinal(record)
		if a.has[n] == nil {
			a.has[n] = new(page)
		}
		a.has[n][o%pageBits/8] |= 1 << (o % 8)
		return err
	})
}

// readHas reads which records a Source has, by its last reports.
func readHas(ctx context.Context, q database.Querier, source event.SourceID) (map[int64]*page, error) {
	has := map[int64]*page{}
	return has, database.Each(ctx, q, "SELECT page, bits FROM source_records WHERE source = $1", []any{int64(source)}, func(rows *sql.Rows) error {
		var n int64
		var sealed sql.RawBytes
		if err := rows.Scan(&n, &sealed); err != nil {
			return err
		}
		has[n] = new(page)
		return has[n].unseal(hasPage{source, n}, sealed)
	})
}

// nextOf returns the numbers of the first records after a number that a Source has, at most so
// many, in their order.
func nextOf(ctx context.Context, q database.Querier, source event.SourceID, set, after int64, limit int) (next []int64, err error) {
	at := hasPage{source, ordinal(after) / pageBits}
	for more := true; more && err == nil && len(next) < limit; at.n++ {
		more = false
		err = database.Each(ctx, q, "SELECT page, bits FROM source_records WHERE source = $1 AND page >= $2 ORDER BY page LIMIT 1", []any{int64(source), at.n}, func(rows *sql.Rows) error {
			more = true
			var sealed sql.RawBytes
			if err := rows.Scan(&at.n, &sealed); err != nil {
				return err
			}
			var p page
			if err := p.unseal(at, sealed); err != nil {
				return err
			}
			for i, b := range p {
				for left := b; left != 0; left &= left - 1 {
					record := set<<32 | at.n*pageBits | int64(i)*8 | int64(bits.TrailingZeros8(left))
					if record > after && len(next) < limit {
						next = append(next, record)
					}
				}
			}
			return nil
		})
	}
	return next, err
}

// each calls do for the records that are absent, or that some parts of the Source have
// left, with numbers above after and in the order of their numbers, until do returns
// false. It looks up the stored states only of records that the enumeration did not have,
// but of all records if the Source has several parts.
func (a *absence) each(ctx context.Context, q database.Querier, after int64, do func(record int64, gone bool, left []int) bool) error {
	piece := make([]int64, 0, lookup)
	flush := func() (more bool, err error) {
		later, parts, err := a.later(ctx, q, piece)
		if err != nil {
			return false, err
		}
		for _, r := range piece {
			if later[r] {
				continue
			}
			gone, left := a.left(r, parts[r])
			if (gone || len(left) > 0) && !do(r, gone, left) {
				return false, nil
			}
		}
		piece = piece[:0]
		return true, nil
	}
	for _, n := range slices.Sorted(maps.Keys(a.has)) {
		p, present := a.has[n], a.walk.present[n]
		if present == nil || len(a.parts) > 0 {
			present = new(page)
		}
		for i := range p {
			for left := p[i] &^ present[i]; left != 0; left &= left - 1 {
				record := a.set<<32 | n*pageBits | int64(i)*8 | int64(bits.TrailingZeros8(left))
				if record <= after || a.changedLater[record] {
					continue
				}
				if piece = append(piece, record); len(piece) < lookup {
					continue
				}
				if more, err := flush(); err != nil || !more {
					return err
				}
			}
		}
	}
	_, err := flush()
	return err
}

// moment returns the moment that the enumeration shows of a part; followed is false when it does
// not have the part.
func (a *absence) moment(part int) (at event.Stamp, followed bool) {
	i := slices.IndexFunc(a.parts, func(e event.Enumerated) bool { return e.Part == part })
	if i < 0 || !a.parts[i].At.Known() {
		return a.at, i >= 0 || len(a.parts) == 0
	}
	return a.parts[i].At, true
}

// left decides on a record by the last reports of the Source's parts. gone: no part has
// it any more. left are the parts that no longer have it, though others may. A part that
// last mentioned the record without a time may have done so after the enumeration: it is
// not in left, and does not keep the record from being gone. One whose enumeration has the
// record has it, even if that report waits for its content.
func (a *absence) left(record int64, parts []part) (gone bool, left []int) {
	has, untold := a.walk.wasPresent(record), false
	for i := range parts {
		p := &parts[i]
		if !p.alive {
			continue
		}
		at, followed := a.moment(p.number)
		w := lastReport{known: true, stamp: p.stamp, place: p.place, future: p.future}
		w.comparableBy(a.ordering)
		switch {
		case followed && (a.walk.presentIn(p.number, record) || w.laterThan(at)):
			has = true
		case followed && p.undated():
			untold = true
		default:
			left = append(left, p.number)
		}
	}
	if has || untold {
		return !has, left
	}
	return true, nil
}

// later reports which of some records the Source has changed after the moment of the
// enumeration, and returns the states of the parts for the others.
func (a *absence) later(ctx context.Context, q database.Querier, records []int64) (map[int64]bool, map[int64][]part, error) {
	later, parts, has := map[int64]bool{}, map[int64][]part{}, map[int64]bool{}
	note := func(record int64, w lastReport, at event.Stamp) {
		w.comparableBy(a.ordering)
		if w.laterThan(at) {
			later[record] = true
		}
	}
	said := func(rows *sql.Rows) error {
		var record int64
		var raw, suppressed sql.RawBytes
		if err := rows.Scan(&record, &raw, &suppressed); err != nil {
			return err
		}
		s, err := readSourceState(raw, suppressed, record)
		if err != nil {
			return fmt.Errorf("state of record %d: %w: run bridge verify", record, err)
		}
		has[record] = has[record] || s.source == a.source && s.alive
		if s.source == a.source && len(s.parts) > 0 { // also where the state waits for its content
			parts[record] = s.parts
		} else if s.source == a.source && s.alive && len(a.parts) > 0 && !s.place.IsZero() {
			parts[record] = []part{s.asPart()}
		} else if s.source == a.source && s.alive {
			note(record, lastReport{known: true, stamp: s.stamp, place: s.place, future: s.future}, a.at)
		}
		return nil
	}
	r := reading{q}
	if err := each(ctx, r, "SELECT id, source_state, NULL FROM record WHERE source_state IS NOT NULL AND id IN ("+database.Params(lookup)+")", records, said); err != nil {
		return nil, nil, err
	}
	if err := each(ctx, withSource(r, a.source), "SELECT record, source_state, suppressed FROM presence WHERE record IN ("+database.Params(lookup)+") AND source = ?", records, said); err != nil {
		return nil, nil, err
	}
	return later, parts, each(ctx, withSource(r, a.source), "SELECT record, observation FROM pending WHERE record IN ("+database.Params(lookup)+") AND source = ?", records, func(rows *sql.Rows) error {
		var record int64
		var waits sql.RawBytes
		if err := rows.Scan(&record, &waits); err != nil {
			return err
		}
		var v body
		if err := readBody(waits, &v); err != nil {
			return fmt.Errorf("what is pending of record %d: %w: run bridge verify", record, err)
		}
		at, followed := a.moment(v.obs.Place.Part)
		if !followed { // the parts tell which others have it
			parts[record] = append(parts[record], part{number: v.obs.Place.Part, alive: !v.obs.Deleted})
			return nil
		}
		note(record, lastReport{known: true, stamp: v.obs.Order, place: v.obs.Place, future: v.late}, at)
		if waits := (part{stamp: v.obs.Order, place: v.obs.Place, future: v.late}); !has[record] && waits.undated() && a.walk.hasIn(v.obs.Place.Part, record) {
			later[record] = true // it is new, and perhaps newer than the enumeration
		}
		return nil
	})
}

// changedLaterThan returns absence.changedLater.
func changedLaterThan(ctx context.Context, q database.Querier, source event.SourceID, o ordering, at event.Stamp) (map[int64]bool, error) {
	out := map[int64]bool{}
	if o != byPlace {
		return out, nil
	}
	return out, database.Each(ctx, q, "SELECT record, stamp FROM seen_order WHERE source = $1", []any{int64(source)}, func(rows *sql.Rows) error {
		var record int64
		var stamp sql.NullInt64
		err := rows.Scan(&record, &stamp)
		if !at.Known() || !stamp.Valid || stampOf(stamp).After(at) {
			out[record] = true
		}
		return err
	})
}

// laterThan reports whether the Source changed the record after at, the moment of an
// enumeration; if at is unknown, whether a list of changes mentioned the record last.
func (w *lastReport) laterThan(at event.Stamp) bool {
	if !at.Known() {
		return w.place.Position > 0
	}
	return !w.future && w.stamp.After(at)
}
