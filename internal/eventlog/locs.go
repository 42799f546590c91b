package eventlog

import (
	"context"
	"database/sql"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// locs knows which live records of a set in mode reference are published under
// a URI: two may share one, and it is listed once and deleted with the last.
type locs struct {
	set  int64
	used map[int64][]int64 // key of the URI -> records
	was  map[int64][]int64 // as stored, for save
}

func newLocs(set int64) *locs {
	return &locs{set: set, used: map[int64][]int64{}, was: map[int64][]int64{}}
}

// key is 64 bits of a hash of set and URI.
func (l *locs) key(uri string) int64 { return event.KeyBits(uri) ^ l.set*0x1e3779b97f4a7c15 }

func (l *locs) load(ctx context.Context, q preparer, keys []int64) error {
	return each(ctx, q, "SELECT key, record FROM loc WHERE key IN ("+in(lookup)+")", keys, func(rows *sql.Rows) error {
		var key, record int64
		if err := rows.Scan(&key, &record); err != nil {
			return err
		}
		l.used[key] = append(l.used[key], record)
		l.was[key] = append(l.was[key], record)
		return nil
	})
}

// add publishes a record under a URI and tells whether another one has it too.
// Without a URI a record is published nowhere.
// key is that of the URI, when it is known already.
func (l *locs) add(uri string, key, record int64) (shared bool) {
	if uri == "" {
		return false
	}
	k := key
	if k == 0 {
		k = l.key(uri)
	}
	if !slices.Contains(l.used[k], record) {
		l.used[k] = append(l.used[k], record)
	}
	return len(l.used[k]) > 1
}

// drop ends that and tells whether the URI has gone with it.
func (l *locs) drop(uri string, record int64) (gone bool) {
	if uri == "" {
		return true
	}
	k := l.key(uri)
	l.used[k] = slices.DeleteFunc(l.used[k], func(r int64) bool { return r == record })
	return len(l.used[k]) == 0
}

// save writes what differs, in the order of the keys: it is the order of the
// table.
func (l *locs) save(ctx context.Context, log *Log) error {
	keys := make([]int64, 0, len(l.used))
	for k := range l.used {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	rows := log.bulk(ctx, insertLocs, 2)
	for _, k := range keys {
		for _, r := range l.used[k] {
			if !slices.Contains(l.was[k], r) {
				if err := rows.add(k, r); err != nil {
					return err
				}
			}
		}
		for _, r := range l.was[k] {
			if !slices.Contains(l.used[k], r) {
				if err := log.exec(ctx, "DELETE FROM loc WHERE key = $1 AND record = $2", k, r); err != nil {
					return err
				}
			}
		}
	}
	return rows.flush()
}
