package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// pendingRow is an observation whose content could not be fetched yet, as a
// batch sees it.
type pendingRow struct {
	stamp    event.Stamp // its order
	place    event.Place
	modified event.Stamp
	claim    int64
	deleted  bool
	late     bool
	partial  bool
	since    event.Micros
	tries    int64
	asked    event.Micros // 0: never
	raw      []byte       // the observation
}

func (p *pendingRow) is(it *event.Item) bool { return p.claim == it.Claim && p.stamp == it.Order }

func scanPending(rows *sql.Rows, source event.SourceID, known map[int64]*record) error {
	var id, next, sum int64
	var reason string
	p := new(pendingRow)
	if err := rows.Scan(&id, &p.partial, &p.since, &p.tries, &p.asked, &next, &reason, &p.raw, &sum); err != nil {
		return err
	}
	var v body
	err := readBody(p.raw, &v)
	if err != nil || sum != sumOf(source, id, p.partial, p.since, p.tries, p.asked, next, reason, p.raw) {
		return fmt.Errorf("what is pending of record %q: %w: run bridge verify", known[id].identifier, errDamaged)
	}
	p.stamp, p.place, p.claim, p.late = v.obs.Order, v.obs.Place, v.obs.Claim, v.late
	p.modified, p.deleted = v.obs.Modified, v.obs.Deleted
	known[id].pending = p
	return nil
}

// unasked is why an observation waits whose content nobody has asked for.
const unasked = "its content has not been asked for yet"

// wait keeps an observation whose content could not be had, to be asked again:
// after five minutes first, then after twice as long each time, a day at most;
// at once when nobody has asked for it yet.
func (b *batch) keepPending(ctx context.Context, i int, r *record, d *decision) error {
	it := &b.in.Items[i]
	p := r.pending
	never := d.reason == unasked || b.in.Mode == event.ModeSubmission
	if p != nil && p.is(it) {
		if d.reason == unasked {
			return nil // it goes on waiting as it did
		}
		if p.asked != 0 && !never {
			p.tries++
		}
	} else {
		obs := denormalize(it.Observation)
		if it.Asked != nil {
			obs = *it.Asked
		}
		obs.Claim = it.Claim
		if obs.Deleted && len(obs.Representations) == 0 { // where to ask whether it has gone
			own := max(slices.IndexFunc(r.sources, func(s sourceState) bool { return s.source == b.source.id }), 0)
			w, err := r.observation(own)
			if w == nil && err == nil {
				w, err = r.observation(r.authority)
			}
			if err == nil && w != nil {
				obs.Representations = []event.Representation{{Href: hrefOf(w), Length: event.NoLength}}
			}
		}
		doc, err := b.document(ctx, i)
		if err != nil {
			return err
		}
		p = &pendingRow{stamp: it.Order, place: it.Place, modified: it.Modified, claim: it.Claim, deleted: it.Deleted, late: d.late, since: b.now,
			raw: appendBody(nil, &body{obs: obs, document: doc, late: d.late})}
	}
	p.partial = it.Partial
	r.pending = p
	next := int64(b.now)
	if !never {
		p.asked = b.now
		delay := min(5*time.Minute<<min(p.tries, 20), 24*time.Hour)
		next = max(next+delay.Microseconds(), min(int64(it.After), next+(24*time.Hour).Microseconds()))
	}
	return b.tx.Exec(ctx, `INSERT OR REPLACE INTO pending (source, record, partial, since, tries, asked, next, reason, observation, sum)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, int64(b.source.id), r.id, boolArg(p.partial), int64(p.since), p.tries, int64(p.asked), next, d.reason, p.raw,
		sumOf(b.source.id, r.id, p.partial, p.since, p.tries, p.asked, next, d.reason, p.raw))
}

func (b *batch) dropPending(ctx context.Context, r *record) error {
	if r.pending == nil {
		return nil
	}
	r.pending = nil
	return b.tx.Exec(ctx, "DELETE FROM pending WHERE source = $1 AND record = $2", int64(b.source.id), r.id)
}

// heldRow is a deletion by absence that the guard keeps back.
type heldRow struct {
	since  event.Micros
	person bool // only a person may release it
}

func scanHeld(rows *sql.Rows, source event.SourceID, known map[int64]*record) error {
	var id, sum int64
	h := new(heldRow)
	if err := rows.Scan(&id, &h.since, &h.person, &sum); err != nil {
		return err
	}
	if sum != sumOf(source, id, h.since, boolArg(h.person)) {
		return fmt.Errorf("the held deletion of record %q: %w: run bridge verify", known[id].identifier, errDamaged)
	}
	known[id].held = h
	return nil
}

// hold keeps a deletion by absence back (A6). How long counts from the first
// time, and what only a person may release stays so (D116).
func (b *batch) keepHeld(ctx context.Context, r *record) error {
	if r.held == nil {
		r.held = &heldRow{since: b.now}
	}
	r.held.person = r.held.person || b.in.Person
	person := boolArg(r.held.person)
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO held (source, record, since, person, sum) VALUES ($1, $2, $3, $4, $5)",
		int64(b.source.id), r.id, int64(r.held.since), person, sumOf(b.source.id, r.id, r.held.since, person))
}

// unhold: what reappears, or is deleted after all, leaves the held list.
func (b *batch) dropHeld(ctx context.Context, r *record) error {
	if r.held == nil {
		return nil
	}
	r.held = nil
	return b.tx.Exec(ctx, "DELETE FROM held WHERE source = $1 AND record = $2", int64(b.source.id), r.id)
}

// backRow is an observation of the walk under way that is earlier than what is
// stored (A1).
type regressedRow struct {
	stamp event.Stamp
	late  bool
}

func scanRegressed(rows *sql.Rows, source event.SourceID, known map[int64]*record) error {
	var id, sum int64
	var stamp sql.NullInt64
	var future bool
	var raw []byte
	if err := rows.Scan(&id, &stamp, &future, &raw, &sum); err != nil {
		return err
	}
	var v body
	err := readBody(raw, &v)
	if err != nil || sum != sumOf(source, id, stampOf(stamp), future, raw) {
		return fmt.Errorf("what was stepped back of record %q: %w: run bridge verify", known[id].identifier, errDamaged)
	}
	known[id].regressed = &regressedRow{stamp: v.obs.Order, late: v.late}
	return nil
}

// stepBack keeps an observation that is earlier than the stored one until the
// walk has ended.
func (b *batch) keepRegressed(ctx context.Context, i int, r *record) error {
	it := &b.in.Items[i]
	doc, err := b.document(ctx, i)
	if err != nil {
		return err
	}
	s := r.of(b.source.id)
	future := s != nil && s.future || r.pending != nil && r.pending.late
	r.regressed = &regressedRow{stamp: it.Order, late: it.Late}
	raw := appendBody(nil, &body{obs: denormalize(it.Observation), document: doc, late: it.Late})
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO step_back (source, record, stamp, future, observation, sum) VALUES ($1, $2, $3, $4, $5, $6)",
		int64(b.source.id), r.id, stampArg(it.Order), boolArg(future), raw, sumOf(b.source.id, r.id, it.Order, future, raw))
}

// forget: the walk has met an entry of the record that wins over the one that
// was stepped back.
func (b *batch) dropRegressed(ctx context.Context, r *record) error {
	if r.regressed == nil {
		return nil
	}
	r.regressed = nil
	return b.tx.Exec(ctx, "DELETE FROM step_back WHERE source = $1 AND record = $2", int64(b.source.id), r.id)
}

// orderRow is the order of an entry that the walk has met where nothing else
// keeps it: it was bad, or not selected. What is older does not apply (D106).
type orderRow struct{ stamp event.Stamp }

func scanOrder(rows *sql.Rows, source event.SourceID, known map[int64]*record) error {
	var id, sum int64
	var stamp sql.NullInt64
	if err := rows.Scan(&id, &stamp, &sum); err != nil {
		return err
	}
	if sum != sumOf(source, id, stampOf(stamp)) {
		return fmt.Errorf("what was met of record %q: %w: run bridge verify", known[id].identifier, errDamaged)
	}
	known[id].order = &orderRow{stampOf(stamp)}
	return nil
}

func (b *batch) keepOrder(ctx context.Context, it *event.Item, r *record) error {
	r.order = &orderRow{it.Order}
	if b.source.ordering == byPlace && it.Late {
		r.order.stamp = event.Stamp{}
	}
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO met_order (source, record, stamp, sum) VALUES ($1, $2, $3, $4)",
		int64(b.source.id), r.id, stampArg(r.order.stamp), sumOf(b.source.id, r.id, r.order.stamp))
}

func (b *batch) dropOrder(ctx context.Context, r *record) error {
	if r.order == nil {
		return nil
	}
	r.order = nil
	return b.tx.Exec(ctx, "DELETE FROM met_order WHERE source = $1 AND record = $2", int64(b.source.id), r.id)
}

// hrefOf is where a record that is there, or was, can be had.
func hrefOf(obs *event.Observation) string {
	if obs.Preferred < len(obs.Representations) {
		return obs.Representations[obs.Preferred].Href
	}
	return ""
}

// StepBacks returns what the walk under way has stepped back, in the order of
// the Source's stamps, with whether the stored stamp lay in the future when it
// was stored.
func (l *Log) StepBacks(ctx context.Context, source event.SourceID) (out []event.WaitingItem, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, "SELECT record, stamp, future, observation, sum FROM step_back WHERE source = $1 ORDER BY stamp, record", int64(source))
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var k event.WaitingItem
			var stamp sql.NullInt64
			var raw []byte
			var sum int64
			if err := rows.Scan(&k.Number, &stamp, &k.Flag, &raw, &sum); err != nil {
				return err
			}
			out, err = l.appendWaiting(ctx, q, out, k, raw, sum == sumOf(source, k.Number, stampOf(stamp), k.Flag, raw))
			return err
		})
	})
	return out, err
}

const selectWaiting = "SELECT record, partial, since, tries, asked, next, reason, observation, sum FROM pending WHERE source = $1"

func (l *Log) scanWaiting(ctx context.Context, q sqlite.Querier, source event.SourceID, rows *sql.Rows, out []event.WaitingItem) ([]event.WaitingItem, error) {
	var k event.WaitingItem
	var raw []byte
	var since, asked, next, sum int64
	if err := rows.Scan(&k.Number, &k.Flag, &since, &k.Tries, &asked, &next, &k.Reason, &raw, &sum); err != nil {
		return out, err
	}
	return l.appendWaiting(ctx, q, out, k, raw, sum == sumOf(source, k.Number, k.Flag, since, k.Tries, asked, next, k.Reason, raw))
}

// Pending returns the Source's pending observations whose next try is due, at
// most limit, in the order of the records' numbers, after one of these.
func (l *Log) Pending(ctx context.Context, source event.SourceID, due event.Micros, after int64, limit int) (out []event.WaitingItem, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, selectWaiting+" AND next <= $2 AND record > $3 ORDER BY record LIMIT $4", int64(source), int64(due), after, limit)
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) (err error) {
			out, err = l.scanWaiting(ctx, q, source, rows, out)
			return err
		})
	})
	return out, err
}

// Due returns which of the Source's pending observations may be asked for, the
// next first: those that never were, then in the order in which they are due.
func (l *Log) Due(ctx context.Context, source event.SourceID, due event.Micros) (out []event.Due, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, "SELECT record, asked FROM pending WHERE source = $1 AND next <= $2 ORDER BY asked > 0, next, record", int64(source), int64(due))
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var d event.Due
			err := rows.Scan(&d.Number, &d.Asked)
			out = append(out, d)
			return err
		})
	})
	return out, err
}

// PendingOf returns the pending observations of some records, in their order, as
// far as they are still pending.
func (l *Log) PendingOf(ctx context.Context, source event.SourceID, records []event.Due) (out []event.WaitingItem, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		for _, d := range records {
			rows, err := q.QueryContext(ctx, selectWaiting+" AND record = $2", int64(source), d.Number)
			if err := sqlite.ScanAll(rows, err, func(rows *sql.Rows) (err error) {
				out, err = l.scanWaiting(ctx, q, source, rows, out)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// keep appends one that waits, with its observation and document.
func (l *Log) appendWaiting(ctx context.Context, q sqlite.Querier, out []event.WaitingItem, k event.WaitingItem, raw []byte, whole bool) ([]event.WaitingItem, error) {
	var v body
	if !whole || readBody(raw, &v) != nil {
		return out, fmt.Errorf("what waits of record %d: %w: run bridge verify", k.Number, errDamaged)
	}
	k.Observation = v.obs
	doc, err := readDocument(ctx, q, v.document)
	k.Document = event.Document{URL: doc.url, FeedID: doc.feedID, FeedTitle: doc.title, FeedUpdated: doc.updated, Feed: doc.feed}
	return append(out, k), err
}

// Held returns the identifiers of the Source's held deletions: all of them, or
// those held since no later than a time and not for a person alone.
func (l *Log) Held(ctx context.Context, source event.SourceID, all bool, since event.Micros) ([]string, error) {
	return l.identifiers(ctx, `SELECT r.identifier FROM held h JOIN record r ON r.id = h.record
WHERE h.source = $1 AND ($2 OR (h.since <= $3 AND h.person = 0)) ORDER BY h.record`, int64(source), boolArg(all), int64(since))
}

func (l *Log) identifiers(ctx context.Context, query string, args ...any) (out []string, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, query, args...)
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			out = append(out, id)
			return err
		})
	})
	return out, err
}
