package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"math/bits"
	"slices"

	"github.com/pmh-bridge/bridge/internal/database"
)

// lateKeys are what the batches of one transaction add to the tables whose keys are
// hashes: those of records and of URIs. They are written before its COMMIT. Each batch
// of a harvest would touch nearly every page of the tables, and all batches together, of
// however many Sources, touch hardly more. Only the keys of records that were submitted are
// written at once.
//
// Until then whoever looks for a record in the transaction has to look here too. Nobody else
// ever reads the tables without them.
type lateKeys struct {
	records [][]recordKey // of each batch, in their order
	locs    [][]locUse
}

// undoable returns what takes away all that is added from now on.
func (l *lateKeys) undoable() (undo func()) {
	records, locs := len(l.records), len(l.locs)
	return func() { l.records, l.locs = l.records[:min(records, len(l.records))], l.locs[:min(locs, len(l.locs))] }
}

type recordKey struct{ key, record int64 }

func (k recordKey) hash() int64 { return k.key }

// locUse is the new row of a URI; a URI without an owner loses its row.
type locUse struct {
	key      int64
	batch    int
	replaces bool // an older row
	use
}

func (u locUse) hash() int64 { return u.key }

// byHash returns the rows of all parts in the order of compare, which is first of all that
// of their keys. These are hashes, so their first bits share the rows out evenly, a few to
// each bucket: that leaves little to compare.
func byHash[T any](key func(T) int64, compare func(a, b T) int, parts ...[]T) []T {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	width := bits.Len(uint(n / 16))
	bucket := func(row T) int { return int((uint64(key(row)) ^ 1<<63) >> (64 - width)) }
	ends := make([]int, 1<<width)
	for _, part := range parts {
		for _, row := range part {
			ends[bucket(row)]++
		}
	}
	at := 0
	for i, count := range ends {
		ends[i] = at // where its next row goes: in the end that is where the bucket ends
		at += count
	}
	sorted := make([]T, n)
	for _, part := range parts {
		for _, row := range part {
			b := bucket(row)
			sorted[ends[b]] = row
			ends[b]++
		}
	}
	at = 0
	for _, end := range ends {
		slices.SortFunc(sorted[at:end], compare)
		at = end
	}
	return sorted
}

// keysOf returns the keys of new records, in their order.
func keysOf(fresh []*record) []recordKey {
	keys := make([]recordKey, len(fresh))
	for i, r := range fresh {
		keys[i] = recordKey{r.key, r.id}
	}
	return byHash(recordKey.hash, compareRecordKeys, keys)
}

func compareRecordKeys(a, b recordKey) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.record, b.record))
}

// named calls found for each record, of whatever set, that has the key.
func (l *lateKeys) named(key int64, found func(recordKey)) {
	for _, batch := range l.records {
		at, _ := slices.BinarySearchFunc(batch, recordKey{key, math.MinInt64}, compareRecordKeys)
		for ; at < len(batch) && batch[at].key == key; at++ {
			found(batch[at])
		}
	}
}

// recordsOf calls found for each record of a set that has one of the keys.
func (l *lateKeys) recordsOf(set int64, keys []int64, found func(recordKey)) {
	if l == nil {
		return
	}
	for _, key := range keys {
		l.named(key, func(k recordKey) {
			if k.record>>32 == set {
				found(k)
			}
		})
	}
}

// addLocs adds the uses of URIs that a batch has changed.
func (l *lateKeys) addLocs(changed []locUse) {
	for i := range changed {
		changed[i].batch = len(l.locs)
	}
	l.locs = append(l.locs, byHash(locUse.hash, compareLocUses, changed))
}

func compareLocUses(a, b locUse) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.batch, b.batch))
}

// usesOf calls found for each of the keys that has changed, with its latest use.
func (l *lateKeys) usesOf(keys []int64, found func(key int64, u use)) {
	if l == nil {
		return
	}
	for n, batch := range l.locs {
		for _, key := range keys {
			if at, ok := slices.BinarySearchFunc(batch, locUse{key: key, batch: n}, compareLocUses); ok {
				found(key, batch[at].use) // that of a later batch replaces it
			}
		}
	}
}

// saveKeys writes them all in the order of the keys, which is that of the tables.
func (l *Log) saveKeys(ctx context.Context, tx *database.Tx) error {
	late := l.late
	l.late = lateKeys{}
	if err := l.saveRecordKeys(ctx, tx, byHash(recordKey.hash, compareRecordKeys, late.records...)); err != nil {
		return err
	}
	locs := byHash(locUse.hash, compareLocUses, late.locs...)
	rows := tx.Bulk(ctx, insertLocs, 3)
	added, replaces := 0, false
	for i := range locs {
		u := &locs[i]
		replaces = replaces || u.replaces
		if i+1 < len(locs) && locs[i+1].key == u.key {
			continue // a later batch has another one
		}
		if replaces {
			for _, text := range []string{"DELETE FROM recent_loc WHERE key = $1", "DELETE FROM loc WHERE key = $1"} {
				if err := tx.Exec(ctx, text, u.key); err != nil {
					return err
				}
			}
		}
		replaces = false
		if u.owner == 0 {
			continue
		}
		added++
		if err := rows.Add(u.key, u.owner, u.others); err != nil {
			return err
		}
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	return l.newLocs.added(ctx, tx, added)
}

// saveRecordKeys writes the keys of new records.
func (l *Log) saveRecordKeys(ctx context.Context, tx *database.Tx, keys []recordKey) error {
	rows := tx.Bulk(ctx, insertKeys, 2)
	for _, k := range keys {
		if err := rows.Add(k.key, k.record); err != nil {
			return err
		}
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	return l.newKeys.added(ctx, tx, len(keys))
}

// maxRecent is how many rows recent_key and recent_loc have before rows move on to
// record_key and loc.
var maxRecent int64 = 1 << 20

// recentRows is a table of new rows, whose keys are hashes. Once it is large, each
// transaction that adds rows to it moves as many to the large table: those with the next
// keys, in turn. So each transaction touches a few neighbouring pages of the large table,
// however large that is, and none has to move very many. Only the holder of the writer's
// turn uses it.
type recentRows struct {
	table, large string
	counted      bool
	rows         int64 // about as many as it has
	moved        int64 // the last key that has moved
}

// added moves older rows to the large table after n rows were added.
func (r *recentRows) added(ctx context.Context, tx *database.Tx, n int) error {
	if n == 0 {
		return nil
	}
	next := *r
	if next.rows += int64(n); !r.counted {
		next.counted, next.moved = true, math.MinInt64
		if err := tx.Each(ctx, "SELECT count(*) FROM "+r.table, nil, func(rows *sql.Rows) error { return rows.Scan(&next.rows) }); err != nil {
			return err
		}
	}
	if next.rows > maxRecent {
		if err := next.move(ctx, tx, n); err != nil {
			return err
		}
	}
	before := *r
	*r = next
	tx.OnUndo(func() { *r = before })
	return nil
}

// move moves the next n rows, in the order of their keys. After the last key it begins
// again at the first, and counts the rows anew.
func (r *recentRows) move(ctx context.Context, tx *database.Tx, n int) error {
	after, upto := r.moved, int64(math.MaxInt64)
	r.rows, r.moved, r.counted = r.rows-int64(n), math.MinInt64, false
	if err := tx.Each(ctx, "SELECT key FROM "+r.table+" WHERE key > $1 ORDER BY key LIMIT 1 OFFSET $2", []any{after, n - 1}, func(rows *sql.Rows) error {
		err := rows.Scan(&upto)
		r.moved, r.counted = upto, true
		return err
	}); err != nil {
		return err
	}
	if err := tx.Exec(ctx, "INSERT OR FAIL INTO "+r.large+" SELECT * FROM "+r.table+" WHERE key > $1 AND key <= $2 ORDER BY key", after, upto); err != nil {
		return err
	}
	return tx.Exec(ctx, "DELETE FROM "+r.table+" WHERE key > $1 AND key <= $2", after, upto)
}
