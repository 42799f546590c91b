package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// sourceState is the last report of one Source about a record.
type sourceState struct {
	source event.SourceID
	alive  bool
	future bool        // its stamp lay in the future when it was stored (A1)
	plain  bool        // its stamp is also its Modified
	stamp  event.Stamp // the order of that report
	place  event.Place
	claim  int64
	// vias are hashes of the URLs that it reported as the original before, the latest
	// last. They identify a record that another bridge returns.
	vias []int64
	// parts are the last reports of the Source's parts, if others than the first have
	// reported anything.
	parts []part
	// suppressed is the observation of a Source that is not the authority of the
	// record, as it is stored; unsaved is one that is not stored yet. That of the
	// authority is in the log.
	suppressed []byte
	unsaved    *body
	wasAlive   bool // whether it was alive when it was stored
	stored     bool // has a row in table presence
	dirty      bool
}

// suppressedBody returns the observation of a Source that is not the authority; nil
// without one.
func (s *sourceState) suppressedBody(r *record) (*body, error) {
	if s.unsaved != nil || s.suppressed == nil {
		return s.unsaved, nil
	}
	v := new(body)
	if err := readBody(s.suppressed, v); err != nil {
		return nil, fmt.Errorf("record %q: its state at Source %d: %w: run bridge verify", r.identifier, s.source, err)
	}
	return v, nil
}

const (
	stateAlive  = 1
	stateFuture = 2
	statePlain  = 4
	statePlaced = 8  // a place follows
	stateVias   = 16 // vias follow
	stateParts  = 32 // parts follow
)

// maxVias is how many former originals are remembered.
const maxVias = 64

func (s *sourceState) flags() byte {
	return byte(flag(stateAlive, s.alive) | flag(stateFuture, s.future) | flag(statePlain, s.plain) | flag(statePlaced, !s.place.IsZero()) |
		flag(stateVias, len(s.vias) > 0) | flag(stateParts, len(s.parts) > 0))
}

func (s *sourceState) setFlags(f byte) {
	s.alive, s.future, s.plain = f&stateAlive != 0, f&stateFuture != 0, f&statePlain != 0
}

// appendSourceState appends the report of a Source about a record, with a CRC-32C over the
// record, that, and the suppressed observation that is stored beside it.
func appendSourceState(b []byte, record int64, s *sourceState) []byte {
	start := len(b)
	b = binary.AppendUvarint(b, uint64(s.source))
	b = append(b, s.flags())
	b = appendStamp(b, s.stamp)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.claim))
	if !s.place.IsZero() {
		b = appendPlace(b, s.place)
	}
	if len(s.vias) > 0 {
		b = binary.AppendUvarint(b, uint64(len(s.vias)))
		for _, v := range s.vias {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
	}
	if len(s.parts) > 0 {
		b = binary.AppendUvarint(b, uint64(len(s.parts)))
		for i := range s.parts {
			b = s.parts[i].append(b)
		}
	}
	return binary.LittleEndian.AppendUint32(b, sourceStateSum(record, b[start:], s.suppressed))
}

func sourceStateSum(record int64, fields, suppressed []byte) uint32 {
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(record))
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, fields)
	return crc32.Update(sum, castagnoli, suppressed)
}

// readSourceState is the inverse of appendSourceState.
func readSourceState(b, suppressed []byte, record int64) (s sourceState, err error) {
	if len(b) < 4 {
		return s, ErrDamaged
	}
	fields := b[:len(b)-4]
	if binary.LittleEndian.Uint32(b[len(fields):]) != sourceStateSum(record, fields, suppressed) {
		return s, ErrDamaged
	}
	r := reader{b: fields}
	s.source = event.SourceID(r.uvarint())
	flags := r.byte()
	s.setFlags(flags)
	s.wasAlive = s.alive
	s.stamp = r.stamp()
	s.claim = r.fixed()
	if flags&statePlaced != 0 {
		s.place = r.place()
	}
	if flags&stateVias != 0 {
		for range r.count() {
			s.vias = append(s.vias, r.fixed())
		}
	}
	if flags&stateParts != 0 {
		for range r.count() {
			s.parts = append(s.parts, r.part())
		}
	}
	s.suppressed = suppressed
	if r.bad || len(r.b) != 0 {
		return sourceState{}, ErrDamaged
	}
	return s, nil
}

// record is a record as a batch sees it: what is stored, then what the batch
// has made of it so far.
type record struct {
	id         int64 // 0 until the batch gives it one
	key        int64
	identifier string

	seq    event.Seq
	live   bool
	digest int64
	// sources holds the last report of each Source. authority is the index of the one
	// whose state the log has, alive or deleted; its own is kept in table record.
	sources   []sourceState
	authority int
	// last is the body of the event at seq, loaded when it is needed.
	last *body
	// What waits, of the batch's Source.
	pending    *pendingRow
	regressed  *regressedRow
	held       *heldRow
	order      *orderRow
	seen       bool // in the walk under way
	seenInPart bool // in the part of the Source that the item is of

	shared bool           // several items of the batch are of it
	fresh  bool           // has no row in table record yet
	dirty  bool           // its row has to be written
	room   [1]sourceState // of sources, of which there is mostly one
}

func (r *record) of(source event.SourceID) *sourceState {
	for i := range r.sources {
		if r.sources[i].source == source {
			return &r.sources[i]
		}
	}
	return nil
}

// addSource adds a Source that has reported nothing yet.
func (r *record) addSource(source event.SourceID) *sourceState {
	r.sources = append(r.sources, sourceState{source: source})
	return &r.sources[len(r.sources)-1]
}

// topRanked returns the index of the Source that is to be the authority: of those that
// have the record the first in the order of the configuration (A15); -1 when none has it.
// Which Source reported something first does not count.
func (r *record) topRanked(rank map[event.SourceID]int64) int {
	best := -1
	for i := range r.sources {
		if s := &r.sources[i]; s.alive && (best < 0 || rank[s.source] < rank[r.sources[best].source]) {
			best = i
		}
	}
	return best
}

// A query looks up as many keys as lookup, or as few when there are no more: a commit of
// a few submissions should not pay for binding all parameters.
const lookup, few = 500, 32

// each runs a query with "IN (…)" over all values, sorted, a few hundred at a
// time, and scans every row.
func each(ctx context.Context, q preparer, text string, values []int64, scan func(*sql.Rows) error) error {
	values = slices.Clone(values)
	slices.Sort(values)
	values = slices.Compact(values)
	size := lookup
	if len(values) <= few {
		text, size = strings.Replace(text, database.Params(lookup), database.Params(few), 1), few
	}
	args := make([]any, size)
	for part := range slices.Chunk(values, size) {
		for i := range args {
			args[i] = part[min(i, len(part)-1)] // padded, so that one statement serves all
		}
		if err := q.Each(ctx, text, args, scan); err != nil {
			return err
		}
	}
	return nil
}

// preparer runs a query that is prepared once: the writer's connection, a reader's, or
// one of the log's readers.
type preparer interface {
	Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error
}

// reading is the preparer of a connection that reads.
type reading struct{ q database.Querier }

func (r reading) Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	return database.Each(ctx, r.q, text, args, scan)
}

var (
	selectKeys      = "SELECT key, record FROM any_key WHERE key IN (" + database.Params(lookup) + ") AND record > ? AND record < ?"
	selectChain     = "SELECT r.id, r.seq FROM any_key k JOIN record r ON r.id = k.record WHERE k.key = $1 AND k.record > $2 << 32 AND k.record < $2 + 1 << 32 AND r.seq <> 0"
	selectLocs      = "SELECT key, owner, others FROM any_loc WHERE key IN (" + database.Params(lookup) + ")"
	selectRecords   = "SELECT id, identifier, seq, digest, source_state FROM record WHERE id IN (" + database.Params(lookup) + ")"
	selectPresence  = `SELECT record, source, source_state, suppressed FROM presence WHERE record IN (` + database.Params(lookup) + `)`
	selectPending   = "SELECT " + pendingColumns + " FROM pending WHERE record IN (" + database.Params(lookup) + ") AND source = ?"
	selectRegressed = "SELECT " + regressedColumns + " FROM regressed WHERE record IN (" + database.Params(lookup) + ") AND source = ?"
	selectOrder     = "SELECT " + orderColumns + " FROM seen_order WHERE record IN (" + database.Params(lookup) + ") AND source = ?"
	selectHeld      = "SELECT " + heldColumns + " FROM held_deletion WHERE record IN (" + database.Params(lookup) + ") AND source = ?"
)

// recordsOf looks up the records of the items: result[i] is that of items[i], and
// items that name the same record share it.
func (b *batch) recordsOf(ctx context.Context, q preparer, items []*event.Item) ([]*record, error) {
	order, keys, known := make([]int, len(items)), make([]int64, len(items)), make([]int64, 0, len(items))
	for i := range items {
		order[i], keys[i] = i, b.hashes[i].key
		if b.filter.has(keys[i]) {
			known = append(known, keys[i])
		}
	}
	slices.SortFunc(order, func(x, y int) int {
		if c := cmp.Compare(keys[x], keys[y]); c != 0 {
			return c // nearly always; the identifiers are far away in memory
		}
		return cmp.Or(cmp.Compare(items[x].Record, items[y].Record), cmp.Compare(x, y))
	})
	out := make([]*record, len(items))
	all := make([]*record, 0, len(items))
	backing := make([]record, len(items))
	for n, i := range order {
		if n > 0 && items[order[n-1]].Record == items[i].Record {
			out[i] = out[order[n-1]]
			out[i].shared = true
			continue
		}
		r := &backing[len(all)]
		r.key, r.identifier = keys[i], items[i].Record
		r.sources = r.room[:0]
		out[i] = r
		all = append(all, r)
	}
	if err := b.loadStates(ctx, q, all, known); err != nil {
		return nil, err
	}
	return out, b.loadRest(ctx, q, all)
}

// loadStates fills in what table record holds. all is sorted by key.
func (b *batch) loadStates(ctx context.Context, q preparer, all []*record, keys []int64) error {
	sorted := make([]int64, len(all)) // side by side in memory, which the records are not
	for i, r := range all {
		sorted[i] = r.key
	}
	return b.recordRows(ctx, q, keys, func(row *recordRow) error {
		at, _ := slices.BinarySearch(sorted, row.key)
		for ; at < len(all) && all[at].key == row.key; at++ {
			if r := all[at]; r.identifier == string(row.identifier) {
				r.id = row.id
				if row.state == nil && row.seq == 0 {
					break // seen, quarantined or pending: nothing is known of it yet
				}
				s, err := readSourceState(row.state, nil, row.id)
				if err != nil {
					return fmt.Errorf("state of record %q: %w: run bridge verify", r.identifier, err)
				}
				r.seq, r.live, r.digest = row.seq, row.digest.Valid, row.digest.Int64
				r.sources = append(r.sources, s)
				break
			}
		}
		return nil
	})
}

// recordRow is a row of table record, with its key. Its bytes are good until the next.
type recordRow struct {
	id, key           int64
	identifier, state sql.RawBytes
	seq               event.Seq
	digest            sql.NullInt64 // not valid when the record is not live
}

// recordRows calls scan for each record of the set that has one of the keys. The rows are
// looked up in the order of their numbers and not of their keys: what a document names
// together mostly became known together, and stands together. In a join each row was on
// another page.
func (b *batch) recordRows(ctx context.Context, q preparer, keys []int64, scan func(*recordRow) error) error {
	var found []recordKey
	if err := each(ctx, ofSet(q, b.set.id), selectKeys, keys, func(rows *sql.Rows) error {
		var k recordKey
		err := rows.Scan(&k.key, &k.record)
		found = append(found, k)
		return err
	}); err != nil {
		return err
	}
	b.late.recordsOf(b.set.id, keys, func(k recordKey) { found = append(found, k) })
	slices.SortFunc(found, func(a, b recordKey) int { return cmp.Compare(a.record, b.record) })
	ids := make([]int64, len(found))
	for i := range found {
		ids[i] = found[i].record
	}
	var row recordRow
	return each(ctx, q, selectRecords, ids, func(rows *sql.Rows) error {
		if err := rows.Scan(&row.id, &row.identifier, &row.seq, &row.digest, &row.state); err != nil {
			return err
		}
		at, _ := slices.BinarySearch(ids, row.id)
		row.key = found[at].key
		return scan(&row)
	})
}

// loadRest fills in what the rarer tables hold: other Sources of the set, and
// what waits.
func (b *batch) loadRest(ctx context.Context, q preparer, all []*record) error {
	src := &b.source
	if !src.others && !src.pending && !src.regressed && !src.held && !src.orders {
		return nil
	}
	known := make(map[int64]*record, len(all))
	ids := make([]int64, 0, len(all))
	for _, r := range all {
		if r.id != 0 {
			known[r.id] = r
			ids = append(ids, r.id)
		}
	}
	for _, t := range []struct {
		wanted bool
		q      preparer
		text   string
		scan   func(*sql.Rows) error
	}{
		{src.others, q, selectPresence, func(rows *sql.Rows) error { return scanPresence(rows, known) }},
		{src.pending, withSource(q, src.id), selectPending, func(rows *sql.Rows) error {
			p := new(pendingRow)
			err := p.scan(rows)
			return found(known[p.record], "what is pending", err, func(r *record) { r.pending = p })
		}},
		{src.regressed, withSource(q, src.id), selectRegressed, func(rows *sql.Rows) error {
			g := new(regressedRow)
			err := g.scan(rows)
			return found(known[g.record], "what has regressed", err, func(r *record) { r.regressed = g })
		}},
		{src.orders, withSource(q, src.id), selectOrder, func(rows *sql.Rows) error {
			o := new(orderRow)
			err := o.scan(rows)
			return found(known[o.record], "what was seen", err, func(r *record) { r.order = o })
		}},
		{src.held, withSource(q, src.id), selectHeld, func(rows *sql.Rows) error {
			h := new(heldRow)
			err := h.scan(rows)
			return found(known[h.record], "the held deletion", err, func(r *record) { r.held = h })
		}},
	} {
		if t.wanted {
			if err := each(ctx, t.q, t.text, ids, t.scan); err != nil {
				return err
			}
		}
	}
	return nil
}

// found calls set with the record that a row belongs to. err is the error of reading the
// row.
func found(r *record, what string, err error, set func(r *record)) error {
	if r == nil || err != nil && !errors.Is(err, ErrDamaged) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%s of record %q: %w: run bridge verify", what, r.identifier, err)
	}
	set(r)
	return nil
}

func scanPresence(rows *sql.Rows, known map[int64]*record) error {
	var id, source int64
	var raw, suppressed []byte
	if err := rows.Scan(&id, &source, &raw, &suppressed); err != nil {
		return err
	}
	s, err := readSourceState(raw, suppressed, id)
	if err != nil || s.source != event.SourceID(source) {
		return fmt.Errorf("the state at Source %d of record %q: %w: run bridge verify", source, known[id].identifier, ErrDamaged)
	}
	s.stored = true
	known[id].sources = append(known[id].sources, s)
	return nil
}

// with adds further parameters after the looked up values.
type with struct {
	preparer
	args []any
}

func (w with) Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	return w.preparer.Each(ctx, text, append(slices.Clip(args), w.args...), scan)
}

// ofSet bounds a query to the records of a set. Sets may have identifiers in
// common, as many sets as there are.
func ofSet(q preparer, set int64) with { return with{q, []any{set << 32, (set + 1) << 32}} }

func withSource(q preparer, source event.SourceID) with { return with{q, []any{int64(source)}} }

func stampOf(n sql.NullInt64) event.Stamp {
	if !n.Valid {
		return event.Stamp{}
	}
	return event.StampFromNanos(n.Int64)
}

func stampArg(s event.Stamp) any {
	if !s.Known() {
		return nil
	}
	return s.Nanos()
}

// OR FAIL spares SQLite a journal for each statement: one that fails takes the
// whole transaction with it in any case.
const (
	insertRecords  = "INSERT OR FAIL INTO record (id, identifier, seq, digest, source_state) VALUES "
	replaceRecords = "INSERT OR REPLACE INTO record (id, identifier, seq, digest, source_state) VALUES "
	insertKeys     = "INSERT OR FAIL INTO recent_key (key, record) VALUES "
	insertEvents   = "INSERT OR FAIL INTO event (id, record, kind, observed, body) VALUES "
	replacePresent = "INSERT OR REPLACE INTO presence (record, source, source_state, suppressed) VALUES "
	insertLocs     = "INSERT OR FAIL INTO recent_loc (key, owner, others) VALUES "
)
