package eventlog

import (
	"cmp"
	"context"
	"slices"

	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// lateKeys are what the batches of one transaction add to the two tables whose keys are
// hashes: record_key and loc. It is written when the transaction ends. Each batch of a
// harvest would touch nearly every page of both tables, and all of its batches together
// touch hardly more.
//
// They belong to the work of one caller, so they are undone with it, and nobody else
// finds a table without them.
type lateKeys struct {
	records [][]recordKey // of each batch, in their order
	locs    [][]locUse
}

type recordKey struct{ key, record int64 }

// locUse is a new row of table loc; of one without an owner there is none any more.
type locUse struct {
	key   int64
	batch int
	use
}

// addRecords adds the keys of new records.
func (l *lateKeys) addRecords(fresh []*record) {
	keys := make([]recordKey, len(fresh))
	for i, r := range fresh {
		keys[i] = recordKey{r.key, r.id}
	}
	slices.SortFunc(keys, compareRecordKeys)
	l.records = append(l.records, keys)
}

func compareRecordKeys(a, b recordKey) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.record, b.record))
}

// recordsOf calls found for each record of a set that has one of the keys.
func (l *lateKeys) recordsOf(set int64, keys []int64, found func(recordKey)) {
	if l == nil {
		return
	}
	for _, batch := range l.records {
		for _, key := range keys {
			at, _ := slices.BinarySearchFunc(batch, recordKey{key, set << 32}, compareRecordKeys)
			for ; at < len(batch) && batch[at].key == key && batch[at].record>>32 == set; at++ {
				found(batch[at])
			}
		}
	}
}

// addLocs adds the uses of URIs that a batch has changed.
func (l *lateKeys) addLocs(changed []locUse) {
	for i := range changed {
		changed[i].batch = len(l.locs)
	}
	slices.SortFunc(changed, compareLocUses)
	l.locs = append(l.locs, changed)
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

// save writes them all in the order of the keys, which is that of the tables.
func (l *lateKeys) save(ctx context.Context, tx *sqlite.Tx) error {
	records := slices.Concat(l.records...)
	slices.SortFunc(records, compareRecordKeys)
	rows := tx.Bulk(ctx, insertKeys, 2)
	for _, r := range records {
		if err := rows.Add(r.key, r.record); err != nil {
			return err
		}
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	locs := slices.Concat(l.locs...)
	slices.SortFunc(locs, compareLocUses)
	rows = tx.Bulk(ctx, replaceLocs, 3)
	for i := range locs {
		switch u := &locs[i]; {
		case i+1 < len(locs) && locs[i+1].key == u.key: // a later batch has another one
		case u.owner != 0:
			if err := rows.Add(u.key, u.owner, u.others); err != nil {
				return err
			}
		default:
			if err := tx.Exec(ctx, "DELETE FROM loc WHERE key = $1", u.key); err != nil {
				return err
			}
		}
	}
	*l = lateKeys{}
	return rows.Flush()
}
