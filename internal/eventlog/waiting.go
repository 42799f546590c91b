package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// A record of a Source may wait in four tables: pending, held_deletion,
// regressed and seen_order. Each has one row type here, with one scan and one sum, which batches,
// readers and verify share. scan fills in the whole row. Its error is ErrDamaged when
// the row is not what was stored.

// waitingKey is what the four tables have in common.
type waitingKey struct {
	source event.SourceID
	record int64
}

// saveWaiting stores what waits with the record of an item.
func (b *batch) saveWaiting(ctx context.Context, i int, r *record, d *decision) (err error) {
	switch {
	case d.pending == put:
		err = b.keepPending(ctx, i, r, d)
	case d.moved != nil:
		p := r.pending
		p.v.obs.Place, p.v.obs.Order, p.v.obs.Claim, p.v.late = d.moved.place, d.moved.stamp, d.moved.claim, d.moved.future
		p.raw = appendBody(nil, &p.v)
		err = b.savePending(ctx, p)
	case d.pending == remove && r.pending != nil:
		r.pending, err = nil, b.dropWaiting(ctx, "pending", r)
	}
	if err != nil {
		return err
	}
	switch {
	case d.held == put:
		err = b.keepHeld(ctx, r)
	case d.held == remove && r.held != nil: // the record reappears, or is deleted after all
		r.held, err = nil, b.dropWaiting(ctx, "held_deletion", r)
	}
	if err != nil {
		return err
	}
	switch {
	case d.regressed == put:
		err = b.keepRegressed(ctx, i, r)
	case d.regressed == remove && r.regressed != nil: // the walk has seen an entry that wins over it
		r.regressed, err = nil, b.dropWaiting(ctx, "regressed", r)
	}
	if err != nil {
		return err
	}
	switch {
	case d.order == put:
		err = b.keepOrder(ctx, b.in.Items[i], r)
	case d.order == remove && r.order != nil:
		r.order, err = nil, b.dropWaiting(ctx, "seen_order", r)
	}
	return err
}

func (b *batch) dropWaiting(ctx context.Context, table string, r *record) error {
	return b.tx.Exec(ctx, "DELETE FROM "+table+" WHERE source = $1 AND record = $2", int64(b.source.id), r.id)
}

func (k waitingKey) key() waitingKey { return k }

// stored is what a row without an observation has.
func (waitingKey) stored() []byte { return nil }

// pendingRow is an observation whose content could not be fetched yet.
type pendingRow struct {
	waitingKey
	partial bool
	since   event.Micros
	tries   int64
	asked   event.Micros // 0: never
	next    event.Micros
	reason  string
	raw     []byte // the observation, as it is stored
	v       body   // the same, decoded
}

const pendingColumns = "source, record, partial, since, tries, asked, next, reason, observation, sum"

func (p *pendingRow) sum() int64 {
	return sumOf(p.source, p.record, p.partial, p.since, p.tries, p.asked, p.next, p.reason, p.raw)
}

func (p *pendingRow) scan(rows *sql.Rows) error {
	var sum int64
	if err := rows.Scan(&p.source, &p.record, &p.partial, &p.since, &p.tries, &p.asked, &p.next, &p.reason, &p.raw, &sum); err != nil {
		return err
	}
	if sum != p.sum() || readBody(p.raw, &p.v) != nil {
		return ErrDamaged
	}
	return nil
}

func (p *pendingRow) stored() []byte { return p.raw }

// is reports whether it is the observation of an item.
func (p *pendingRow) is(it *event.Item) bool {
	return p.v.obs.Claim == it.Claim && p.v.obs.Order == it.Order
}

// pendingMost is how long after a request for a content the next one is, at most. What is
// due later was asked for while the clock was ahead.
const pendingMost = event.Micros(24 * time.Hour / time.Microsecond)

// unasked is why an observation waits whose content nobody has asked for.
const unasked = "its content has not been asked for yet"

// keepPending keeps an observation whose content could not be had, to be asked again:
// after five minutes first, then after twice as long each time, a day at most;
// at once when nobody has asked for it yet.
func (b *batch) keepPending(ctx context.Context, i int, r *record, d *decision) error {
	it := b.in.Items[i]
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
		if obs.Deleted && len(obs.Representations) == 0 && len(r.sources) > 0 { // where to ask whether it has gone
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
		p = &pendingRow{waitingKey: waitingKey{b.source.id, r.id}, since: b.now, v: body{obs: obs, document: doc, late: d.late}}
		p.raw = appendBody(nil, &p.v)
	}
	p.partial = it.Partial
	r.pending = p
	p.reason, p.next = d.reason, b.wall
	if !never {
		p.asked = b.wall
		delay := min(event.Micros((5*time.Minute).Microseconds())<<min(p.tries, 20), pendingMost)
		p.next = b.wall + max(delay, min(it.After-b.wall, pendingMost))
	}
	return b.savePending(ctx, p)
}

func (b *batch) savePending(ctx context.Context, p *pendingRow) error {
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO pending ("+pendingColumns+") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
		int64(p.source), p.record, p.partial, int64(p.since), p.tries, int64(p.asked), int64(p.next), p.reason, p.raw, p.sum())
}

// heldRow is a deletion by absence that the guard keeps back.
type heldRow struct {
	waitingKey
	since  event.Micros
	person bool // only a person may release it
}

const heldColumns = "source, record, since, person, sum"

func (h *heldRow) sum() int64 { return sumOf(h.source, h.record, h.since, h.person) }

func (h *heldRow) scan(rows *sql.Rows) error {
	var sum int64
	err := rows.Scan(&h.source, &h.record, &h.since, &h.person, &sum)
	if err == nil && sum != h.sum() {
		err = ErrDamaged
	}
	return err
}

// keepHeld keeps a deletion by absence back (A6). How long counts from the first
// time, unless the clock was ahead then, and what only a person may release stays so.
func (b *batch) keepHeld(ctx context.Context, r *record) error {
	if r.held == nil {
		r.held = &heldRow{waitingKey: waitingKey{b.source.id, r.id}, since: b.wall}
	}
	h := r.held
	h.since = min(h.since, b.wall)
	h.person = h.person || b.in.Person
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO held_deletion ("+heldColumns+") VALUES ($1, $2, $3, $4, $5)",
		int64(h.source), h.record, int64(h.since), h.person, h.sum())
}

// regressedRow is an observation of the walk under way that is earlier than what is
// stored (A1).
type regressedRow struct {
	waitingKey
	stamp  event.Stamp // its order
	future bool        // the stored stamp lay in the future when it was stored
	raw    []byte      // the observation, as it is stored
	v      body        // the same, decoded
}

const regressedColumns = "source, record, stamp, future, observation, sum"

func (g *regressedRow) sum() int64 { return sumOf(g.source, g.record, g.stamp, g.future, g.raw) }

func (g *regressedRow) scan(rows *sql.Rows) error {
	var stamp sql.NullInt64
	var sum int64
	if err := rows.Scan(&g.source, &g.record, &stamp, &g.future, &g.raw, &sum); err != nil {
		return err
	}
	g.stamp = stampOf(stamp)
	if sum != g.sum() || readBody(g.raw, &g.v) != nil {
		return ErrDamaged
	}
	return nil
}

func (g *regressedRow) stored() []byte { return g.raw }

// keepRegressed keeps an observation that is earlier than the stored one until the
// walk has ended.
func (b *batch) keepRegressed(ctx context.Context, i int, r *record) error {
	it := b.in.Items[i]
	doc, err := b.document(ctx, i)
	if err != nil {
		return err
	}
	s := r.of(b.source.id)
	g := &regressedRow{waitingKey: waitingKey{b.source.id, r.id}, stamp: it.Order, future: s != nil && s.future || r.pending != nil && r.pending.v.late,
		v: body{obs: denormalize(it.Observation), document: doc, late: it.Late}}
	g.raw = appendBody(nil, &g.v)
	r.regressed = g
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO regressed ("+regressedColumns+") VALUES ($1, $2, $3, $4, $5, $6)",
		int64(g.source), g.record, stampArg(g.stamp), g.future, g.raw, g.sum())
}

// orderRow is the order of an entry that the walk has seen where nothing else
// keeps it: it was bad, or not selected. What is older does not apply.
type orderRow struct {
	waitingKey
	stamp event.Stamp
}

const orderColumns = "source, record, stamp, sum"

func (o *orderRow) sum() int64 { return sumOf(o.source, o.record, o.stamp) }

func (o *orderRow) scan(rows *sql.Rows) error {
	var stamp sql.NullInt64
	var sum int64
	err := rows.Scan(&o.source, &o.record, &stamp, &sum)
	if o.stamp = stampOf(stamp); err == nil && sum != o.sum() {
		err = ErrDamaged
	}
	return err
}

func (b *batch) keepOrder(ctx context.Context, it *event.Item, r *record) error {
	o := &orderRow{waitingKey{b.source.id, r.id}, it.Order}
	if b.source.ordering == byPlace && it.Late {
		o.stamp = event.Stamp{}
	}
	r.order = o
	return b.tx.Exec(ctx, "INSERT OR REPLACE INTO seen_order ("+orderColumns+") VALUES ($1, $2, $3, $4)", int64(o.source), o.record, stampArg(o.stamp), o.sum())
}

// waitingRow is a row of one of the four tables.
type waitingRow interface {
	scan(rows *sql.Rows) error
	key() waitingKey
	stored() []byte // its observation, nil where the table has none
}

// dropDamagedWaiting removes what is pending, held or in quarantine of a Source and is not what
// was stored.
func dropDamagedWaiting(ctx context.Context, tx *database.Tx, source event.SourceID) error {
	for _, t := range []struct {
		table, columns string
		row            waitingRow // scanned again and again
	}{{"pending", pendingColumns, new(pendingRow)}, {"held_deletion", heldColumns, new(heldRow)}} {
		if err := dropDamagedRows(ctx, tx, "SELECT "+t.columns+" FROM "+t.table+" WHERE source = $1", []any{int64(source)}, func(rows *sql.Rows) ([]any, error) {
			err := t.row.scan(rows)
			return []any{int64(source), t.row.key().record}, err
		}, "DELETE FROM "+t.table+" WHERE source = $1 AND record = $2"); err != nil {
			return err
		}
	}
	return dropDamagedInput(ctx, tx, source)
}

// hrefOf is the URL where a record can be fetched, or could be before its deletion.
func hrefOf(obs *event.Observation) string {
	if obs.Preferred < len(obs.Representations) {
		return obs.Representations[obs.Preferred].Href
	}
	return ""
}

// Regressed calls each with what has regressed in the walk under way, at most so many at a
// time, in the order of the Source's stamps, with whether the stored stamp lay in the future
// when it was stored. What each applies is gone.
func (l *Log) Regressed(ctx context.Context, source event.SourceID, most int, each func([]event.WaitingItem) error) error {
	records, err := database.All(ctx, l.Each, "SELECT record FROM regressed WHERE source = $1 ORDER BY stamp, record", []any{int64(source)}, database.Column[int64])
	if err != nil {
		return err
	}
	for part := range slices.Chunk(records, most) {
		kept, err := l.regressedOf(ctx, source, part)
		if err == nil {
			err = each(kept)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) regressedOf(ctx context.Context, source event.SourceID, records []int64) (out []event.WaitingItem, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		var found waitingRows
		for _, record := range records {
			if err := database.Each(ctx, q, "SELECT "+regressedColumns+" FROM regressed WHERE source = $1 AND record = $2", []any{int64(source), record}, func(rows *sql.Rows) error {
				var g regressedRow
				err := g.scan(rows)
				return found.add(event.WaitingItem{Number: g.record, Flag: g.future}, &g.v, err)
			}); err != nil {
				return err
			}
		}
		out, err = found.withDocuments(ctx, q)
		return err
	})
	return out, err
}

const selectPendingOf = "SELECT " + pendingColumns + " FROM pending WHERE source = $1"

// Pending returns the Source's pending observations whose next try is due, at
// most limit, in the order of the records' numbers, after one of these.
func (l *Log) Pending(ctx context.Context, source event.SourceID, due event.Micros, after int64, limit int) (out []event.WaitingItem, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		var found waitingRows
		if err := database.Each(ctx, q, selectPendingOf+" AND next <= $2 AND record > $3 ORDER BY record LIMIT $4", []any{int64(source), int64(due), after, limit}, found.addPending); err != nil {
			return err
		}
		out, err = found.withDocuments(ctx, q)
		return err
	})
	return out, err
}

// selectDue asks the index of next twice: with OR SQLite would read all that is pending.
const (
	selectNext = "SELECT record, asked, next FROM pending WHERE source = $1 AND next "
	selectDue  = "SELECT record, asked FROM (" + selectNext + "<= $2 UNION ALL " + selectNext + "> $3) AS due ORDER BY asked > 0, next, record"
)

// Due returns which of the Source's pending observations may be asked for, the
// next first: those that never were, then in the order in which they are due. Those that
// were asked for while the clock was ahead are due too.
func (l *Log) Due(ctx context.Context, source event.SourceID, due event.Micros) ([]event.Due, error) {
	return database.All(ctx, l.Each, selectDue, []any{int64(source), int64(due), notDue(due)}, func(d *event.Due, rows *sql.Rows) error { return rows.Scan(&d.Number, &d.Asked) })
}

// notDue returns up to when observations are not due yet, at a time.
func notDue(at event.Micros) int64 { return int64(at + min(pendingMost, math.MaxInt64-at)) }

// PendingOf returns the pending observations of some records, in their order, as
// far as they are still pending.
func (l *Log) PendingOf(ctx context.Context, source event.SourceID, records []event.Due) (out []event.WaitingItem, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		var found waitingRows
		for _, d := range records {
			if err := database.Each(ctx, q, selectPendingOf+" AND record = $2", []any{int64(source), d.Number}, found.addPending); err != nil {
				return err
			}
		}
		out, err = found.withDocuments(ctx, q)
		return err
	})
	return out, err
}

// waitingRows collects rows of observations that wait. Their documents are read when all
// rows are there, each once.
type waitingRows struct {
	items     []event.WaitingItem
	documents []int64 // of the items
}

// add adds an item, with its observation. err is that of its row.
func (w *waitingRows) add(k event.WaitingItem, v *body, err error) error {
	if err != nil {
		return fmt.Errorf("what waits of record %d: %w: run bridge verify", k.Number, err)
	}
	k.Observation = v.obs
	w.items, w.documents = append(w.items, k), append(w.documents, v.document)
	return nil
}

func (w *waitingRows) addPending(rows *sql.Rows) error {
	var p pendingRow
	err := p.scan(rows)
	return w.add(event.WaitingItem{Number: p.record, Flag: p.partial, Tries: int(p.tries), Reason: p.reason}, &p.v, err)
}

// withDocuments returns the items with their documents.
func (w *waitingRows) withDocuments(ctx context.Context, q database.Querier) ([]event.WaitingItem, error) {
	known := map[int64]event.Document{}
	for i, id := range w.documents {
		document, ok := known[id]
		if !ok {
			row, _, err := readDocument(ctx, q, id)
			if err != nil {
				return nil, err
			}
			document = row.Document
			known[id] = document
		}
		w.items[i].Document = document
	}
	return w.items, nil
}

// Held returns the identifiers of the Source's deletions that are held since a time or
// longer. With person it includes those that only a person may release.
func (l *Log) Held(ctx context.Context, source event.SourceID, person bool, since event.Micros) ([]string, error) {
	return database.All(ctx, l.Each, `SELECT r.identifier FROM held_deletion h JOIN record r ON r.id = h.record
WHERE h.source = $1 AND h.since <= $3 AND ($2 <> 0 OR h.person = 0) ORDER BY h.record`, []any{int64(source), person, int64(since)}, database.Column[string])
}

// HeldDeletion is a deletion by absence that the guard keeps back (A6).
type HeldDeletion struct {
	Number int64 // of the record, for going on after it
	Record string
	Since  event.Micros
	Person bool // only a person may release it
}

// HeldDeletions returns at most limit held deletions of a Source, of records with numbers
// above after.
func (l *Log) HeldDeletions(ctx context.Context, source event.SourceID, after int64, limit int) ([]HeldDeletion, error) {
	return database.All(ctx, l.Each, `SELECT h.record, r.identifier, h.since, h.person FROM held_deletion h JOIN record r ON r.id = h.record
WHERE h.source = $1 AND h.record > $2 ORDER BY h.record LIMIT $3`, []any{int64(source), after, limit}, func(d *HeldDeletion, rows *sql.Rows) error {
		return rows.Scan(&d.Number, &d.Record, &d.Since, &d.Person)
	})
}

// HeldUntil returns since when the newest held deletion of a Source is held, 0 when it has
// none.
func (l *Log) HeldUntil(ctx context.Context, source event.SourceID) (newest event.Micros, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		return q.QueryRowContext(ctx, "SELECT coalesce(max(since), 0) FROM held_deletion WHERE source = $1", int64(source)).Scan(&newest)
	})
	return newest, err
}

// KeepHeld has the held deletions of a Source wait for a person: time does not release
// them any more. It returns how many there are.
func (l *Log) KeepHeld(ctx context.Context, source event.SourceID) (n int, err error) {
	err = l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		held, err := database.All(ctx, tx.Each, "SELECT "+heldColumns+" FROM held_deletion WHERE source = $1", []any{int64(source)}, (*heldRow).scan)
		if err != nil {
			return err
		}
		n = len(held)
		for _, h := range held {
			if h.person {
				continue
			}
			h.person = true
			if err := tx.Exec(ctx, "UPDATE held_deletion SET person = 1, sum = $3 WHERE source = $1 AND record = $2", int64(h.source), h.record, h.sum()); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}
