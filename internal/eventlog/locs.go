package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// locs knows how many live records of a set in mode reference are published under
// a URI: several may share one, and it is listed once and deleted with the last.
// Which they are does not matter, so that one more of many costs no more than the
// second (D124).
type locs struct {
	set int64
	n   map[int64]int64 // key of the URI -> records
	was map[int64]int64 // as stored, for save
}

func newLocs(set int64) *locs {
	return &locs{set: set, n: map[int64]int64{}, was: map[int64]int64{}}
}

// key is 64 bits of a hash of set and URI.
func (l *locs) key(uri string) int64 { return event.KeyBits(uri) ^ l.set*0x1e3779b97f4a7c15 }

func (l *locs) load(ctx context.Context, q preparer, keys []int64) error {
	return each(ctx, q, "SELECT key, n FROM loc WHERE key IN ("+in(lookup)+")", keys, func(rows *sql.Rows) error {
		var key, n int64
		if err := rows.Scan(&key, &n); err != nil {
			return err
		}
		l.n[key], l.was[key] = n, n
		return nil
	})
}

// add publishes one more record under a URI and reports whether another one has
// it too. Without a URI a record is published nowhere. key is that of the URI,
// when it is known already.
func (l *locs) add(uri string, key int64) (shared bool) {
	if uri == "" {
		return false
	}
	k := cmp.Or(key, l.key(uri))
	l.n[k]++
	return l.n[k] > 1
}

// shared reports whether several records are published under a URI.
func (l *locs) shared(uri string) bool { return uri != "" && l.n[l.key(uri)] > 1 }

// drop ends that for one record and reports whether the URI has gone with it.
func (l *locs) drop(uri string) (gone bool) {
	if uri == "" {
		return true
	}
	k := l.key(uri)
	l.n[k]--
	return l.n[k] <= 0
}

// save writes what differs, in the order of the keys: it is the order of the
// table.
func (l *locs) save(ctx context.Context, log *Log) error {
	keys := make([]int64, 0, len(l.n))
	for k, n := range l.n {
		if n != l.was[k] {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	rows := log.bulk(ctx, replaceLocs, 3)
	for _, k := range keys {
		if l.n[k] > 0 {
			if err := rows.add(k, l.set, l.n[k]); err != nil {
				return err
			}
		} else if err := log.exec(ctx, "DELETE FROM loc WHERE key = $1", k); err != nil {
			return err
		}
	}
	return rows.flush()
}
