package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// walk is what the walk under way of one Source has seen: two bitmaps over the ordinals
// of the set's records, in pages that are stored with every batch. seen are the records
// that it has mentioned: nothing older applies. present are those in the enumeration:
// they are not absent. They take 250 KB for a million records, and as much again for each
// further part of the Source.
type walk struct {
	seen, present map[int64]*page // by side and page, see pageOf
	dirty         map[int64]bool
	sides         []side
	sums          map[int64]uint32 // of the pages as they are stored
}

// unsavedCursors holds cursors that are newer than what is stored (Batch.Lazy): of walks
// that have changed nothing since. It is empty in a process that only reads.
type unsavedCursors struct {
	mu sync.Mutex
	of map[event.SourceID]unsavedCursor
}

type unsavedCursor struct {
	event.Cursor
	walk  bool         // Data counts too, and not the version alone
	since event.Micros // when something was stored last, or began to wait
}

// maxUnsaved is how long a cursor may stay unsaved while the walk goes on.
const maxUnsaved = event.Micros(time.Minute / time.Microsecond)

// update brings a cursor that was read up to date.
func (a *unsavedCursors) update(source event.SourceID, c *event.Cursor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, ok := a.of[source]
	if !ok || now.Version <= c.Version {
		return
	}
	c.Version = now.Version
	if now.walk {
		c.Data = now.Data
	}
}

func (a *unsavedCursors) since(source event.SourceID, now event.Micros) event.Micros {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.of[source]; ok && c.walk {
		return c.since
	}
	return now
}

func (a *unsavedCursors) put(source event.SourceID, c unsavedCursor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[event.SourceID]unsavedCursor{}
	}
	a.of[source] = c
}

// forget is called when a version is stored. Another batch of the same transaction may
// have made a newer one.
func (a *unsavedCursors) forget(source event.SourceID, stored int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[source].Version <= stored {
		delete(a.of, source)
	}
}

// drop forgets an unsaved cursor: the stored one counts. Versions that were given out are
// not given out again.
func (a *unsavedCursors) drop(source event.SourceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.of[source]; ok && c.walk {
		a.of[source] = unsavedCursor{Cursor: event.Cursor{Version: c.Version + 1}}
	}
}

const pageBits = 4096 * 8

type page [4096]byte

func newWalk() *walk {
	return &walk{seen: map[int64]*page{}, present: map[int64]*page{}, dirty: map[int64]bool{}, sums: map[int64]uint32{}}
}

// sum is what the checksums of the stored pages come to (source.seen_sum).
func (w *walk) sum() (all int64) {
	for _, sum := range w.sums {
		all += int64(sum)
	}
	return all
}

// damagedWalk is the error of what is stored of a walk and cannot be trusted.
func damagedWalk(source event.SourceID) error {
	return fmt.Errorf("which records the walk of Source %d has seen: %w: run bridge verify, or harvest with --full", source, ErrDamaged)
}

func ordinal(record int64) int64 { return record & (1<<32 - 1) }

// side is a part of the Source, and whether its report is new to the Source: if two parts
// report different things, an older report of one does not outdate a newer one of the
// other.
type side int64

func sideOf(part int, old bool) side {
	if old {
		return side(part)<<1 | 1
	}
	return side(part) << 1
}

// pageOf is the number of a page: an ordinal has 32 bits, and its page 17.
func pageOf(s side, ordinal int64) int64 { return int64(s)<<20 | ordinal/pageBits }

// has reports whether some part of the Source has reported something new about a record.
func (w *walk) has(record int64) bool {
	return slices.ContainsFunc(w.sides, func(s side) bool { return s&1 == 0 && bit(w.seen, s, record) })
}

// hasIn reports whether one part has mentioned it.
func (w *walk) hasIn(part int, record int64) bool {
	return bit(w.seen, sideOf(part, false), record) || bit(w.seen, sideOf(part, true), record)
}

func (w *walk) wasPresent(record int64) bool {
	return slices.ContainsFunc(w.sides, func(s side) bool { return bit(w.present, s, record) })
}

func (w *walk) presentIn(part int, record int64) bool {
	return bit(w.present, sideOf(part, false), record) || bit(w.present, sideOf(part, true), record)
}

func bit(pages map[int64]*page, s side, record int64) bool {
	o := ordinal(record)
	p := pages[pageOf(s, o)]
	return p != nil && p[o%pageBits/8]&(1<<(o%8)) != 0
}

// add takes in a page.
func (w *walk) add(n int64, seen, present *page) {
	w.seen[n], w.present[n] = seen, present
	if s := side(n >> 20); !slices.Contains(w.sides, s) {
		w.sides = append(w.sides, s)
	}
}

func (w *walk) markSeen(record int64, s side, present bool) {
	o := ordinal(record)
	n := pageOf(s, o)
	if w.seen[n] == nil {
		w.add(n, new(page), new(page))
	}
	w.seen[n][o%pageBits/8] |= 1 << (o % 8)
	if present {
		w.present[n][o%pageBits/8] |= 1 << (o % 8)
	}
	w.dirty[n] = true
}

// walkOf returns the walk under way of the source, from memory or the database.
func (l *Log) walkOf(ctx context.Context, tx *database.Tx, source event.SourceID) (*walk, error) {
	if w := l.walks[source]; w != nil {
		return w, nil
	}
	w := newWalk()
	if err := tx.Each(ctx, "SELECT page, bits FROM seen WHERE source = $1", []any{int64(source)}, func(rows *sql.Rows) error {
		var n int64
		var sealed sql.RawBytes
		if err := rows.Scan(&n, &sealed); err != nil {
			return err
		}
		bits, err := unseal(columns{record: n, set: int64(source)}, sealed)
		if err != nil || len(bits) != 2*len(page{}) {
			return damagedWalk(source)
		}
		w.add(n, (*page)(slices.Clone(bits[:len(page{})])), (*page)(slices.Clone(bits[len(page{}):])))
		w.sums[n] = sumOfSealed(sealed)
		return nil
	}); err != nil {
		return nil, err
	}
	if err := tx.Each(ctx, "SELECT seen_sum FROM source WHERE id = $1 AND seen_sum IS NOT NULL", []any{int64(source)}, func(rows *sql.Rows) error {
		var sum int64
		if err := rows.Scan(&sum); err != nil {
			return err
		}
		if sum != w.sum() {
			return damagedWalk(source)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	l.walks[source] = w
	return w, nil
}

// walkNow returns a copy of what was seen that nobody else changes.
func (l *Log) walkNow(ctx context.Context, source event.SourceID) (*walk, error) {
	now := newWalk()
	err := l.use(ctx, func(ctx context.Context, tx *database.Tx) error {
		w, err := l.walkOf(ctx, tx, source)
		if err != nil {
			return err
		}
		for n, p := range w.present {
			now.add(n, (*page)(slices.Clone(w.seen[n][:])), (*page)(slices.Clone(p[:])))
		}
		return nil
	})
	return now, err
}

func (l *Log) saveWalk(ctx context.Context, tx *database.Tx, source event.SourceID, w *walk) error {
	if len(w.dirty) == 0 {
		return nil
	}
	for n := range w.dirty {
		sealed := seal(columns{record: n, set: int64(source)}, slices.Concat(w.seen[n][:], w.present[n][:]))
		if err := tx.Exec(ctx, "INSERT OR REPLACE INTO seen (source, page, bits) VALUES ($1, $2, $3)", int64(source), n, sealed); err != nil {
			return err
		}
		w.sums[n] = sumOfSealed(sealed)
	}
	clear(w.dirty)
	return tx.Exec(ctx, "UPDATE source SET seen_sum = $2 WHERE id = $1", int64(source), w.sum())
}

// undoWalk forgets what is in memory of a walk when the transaction is undone: it is
// not what is stored.
func (l *Log) undoWalk(tx *database.Tx, source event.SourceID) {
	tx.OnUndo(func() {
		delete(l.walks, source)
		l.unsaved.drop(source)
	})
}

// endWalk forgets what was seen and what has regressed.
func (l *Log) endWalk(ctx context.Context, tx *database.Tx, source event.SourceID) error {
	l.undoWalk(tx, source)
	delete(l.walks, source)
	l.unsaved.drop(source)
	for _, text := range []string{"DELETE FROM seen WHERE source = $1", "UPDATE source SET seen_sum = NULL WHERE id = $1 AND seen_sum IS NOT NULL",
		"DELETE FROM seen_order WHERE source = $1", "DELETE FROM regressed WHERE source = $1"} {
		if err := tx.Exec(ctx, text, int64(source)); err != nil {
			return err
		}
	}
	return nil
}
