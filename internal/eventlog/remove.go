package eventlog

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// A set is removed as a whole, or not at all: one transaction takes it out of the log and
// adds a note, and from then on nobody sees the set. Its rows then go in short
// transactions, which can be interrupted, and go on when the log is opened for writing
// again. Only the note stays: which Seqs are missing, and since when.

// RemovedSet is a set that was removed.
type RemovedSet struct {
	Name            string
	Feed            string
	Removed         event.Micros
	Records, Events int64
	// UnderWay: some of its rows are still there.
	UnderWay bool

	id, first, last int64
	mirror          bool
	observed        event.Micros
	hash            string
	source          event.SourceID
}

func (r *RemovedSet) sum() int64 {
	return sumOf(r.id, r.Name, r.Feed, r.Removed, r.mirror, r.Records, r.Events, r.first, r.last, r.observed, r.hash, r.source, r.UnderWay)
}

const selectRemoved = "SELECT id, name, feed, removed, mirror, records, events, first_seq, last_seq, observed, hash, source, under_way, sum FROM removed_set ORDER BY id"

func (r *RemovedSet) scan(rows *sql.Rows) error {
	var sum int64
	err := rows.Scan(&r.id, &r.Name, &r.Feed, &r.Removed, &r.mirror, &r.Records, &r.Events, &r.first, &r.last, &r.observed, &r.hash, &r.source, &r.UnderWay, &sum)
	if err == nil && sum != r.sum() {
		err = fmt.Errorf("removed set %q: %w: run bridge verify", r.Name, ErrDamaged)
	}
	return err
}

func readRemoved(ctx context.Context, q preparer) ([]RemovedSet, error) {
	return database.All(ctx, q.Each, selectRemoved, nil, (*RemovedSet).scan)
}

// RemovedSets returns the sets that were removed, in the order of their creation.
func (l *Log) RemovedSets(ctx context.Context) ([]RemovedSet, error) { return readRemoved(ctx, l) }

// RemoveSet takes a set out of the log for good. FinishRemovals removes its rows.
func (l *Log) RemoveSet(ctx context.Context, name string) error {
	return l.writeFirst(ctx, func(ctx context.Context, tx *database.Tx) error {
		set, err := l.findSet(ctx, tx, name)
		if err != nil {
			return err
		}
		if set.id == 0 {
			return noSet(name)
		}
		r := RemovedSet{Name: name, Feed: set.Feed, Records: set.Live, Events: set.Events, UnderWay: true, id: set.id, mirror: set.Content == event.Mirror}
		if r.Removed, err = l.now(); err != nil {
			return err
		}
		if err := tx.Each(ctx, "SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM event WHERE id > $1 AND id < $2", []any{set.id << seqBits, (set.id + 1) << seqBits}, func(rows *sql.Rows) error {
			return rows.Scan(&r.first, &r.last)
		}); err != nil {
			return err
		}
		var last head
		if err := tx.Each(ctx, "SELECT "+eventColumns+" FROM event WHERE id = $1", []any{r.last}, last.scan); err != nil {
			return err
		}
		r.first, r.last, r.observed, r.hash = int64(seqOf(r.first)), int64(seqOf(r.last)), last.Observed, last.Hash
		if err := tx.Each(ctx, "SELECT max(n) FROM (SELECT coalesce(max(id), 0) AS n FROM source UNION ALL SELECT coalesce(max(source), 0) FROM removed_set) AS given", nil, func(rows *sql.Rows) error {
			return rows.Scan(&r.source)
		}); err != nil {
			return err
		}
		for _, statement := range []string{"DELETE FROM former_name WHERE set_id = $1", "DELETE FROM derived_set WHERE name = (SELECT name FROM sets WHERE id = $1)", "DELETE FROM sets WHERE id = $1"} {
			if err := tx.Exec(ctx, statement, set.id); err != nil {
				return err
			}
		}
		return tx.Exec(ctx, `INSERT INTO removed_set (id, name, feed, removed, mirror, records, events, first_seq, last_seq, observed, hash, source, under_way, sum)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 1, $13)`, r.id, r.Name, r.Feed, int64(r.Removed), r.mirror, r.Records, r.Events, r.first, r.last, int64(r.observed), r.hash, int64(r.source), r.sum())
	})
}

// removedAtOnce is how many rows one transaction removes: others wait no longer for it than
// for a batch of a harvest. scannedAtOnce is how many rows are looked at for those of a set
// where no index leads to them.
const (
	removedAtOnce = 500
	scannedAtOnce = 20_000
)

// FinishRemovals removes what is left of removed sets.
func (l *Log) FinishRemovals(ctx context.Context) error {
	all, err := l.RemovedSets(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].UnderWay {
			if err := l.finishRemoval(ctx, &all[i]); err != nil {
				return fmt.Errorf("removing set %s: %w", all[i].Name, err)
			}
		}
	}
	return nil
}

func (l *Log) finishRemoval(ctx context.Context, r *RemovedSet) error {
	sources, err := database.All(ctx, l.Each, "SELECT id FROM source WHERE set_id = $1", []any{r.id}, database.Column[int64])
	if err != nil {
		return err
	}
	for _, id := range sources {
		l.schedules.forget(event.SourceID(id))
		if err := l.removeOfSource(ctx, r, id); err != nil {
			return err
		}
	}
	from, to := r.id<<32, (r.id+1)<<32
	for _, step := range []func() (int, error){
		func() (int, error) {
			return l.removeRows(ctx, r, "presence", "record, source", "suppressed", "record >= $1 AND record < $2", from, to)
		},
		func() (int, error) { return l.removeRecords(ctx, from, to) },
		func() (int, error) {
			return l.removeRows(ctx, r, "event", "id", eventColumns, "id >= $1 AND id < $2", r.id<<seqBits, (r.id+1)<<seqBits)
		},
	} {
		if err := untilNone(step); err != nil {
			return err
		}
	}
	of := map[int64]bool{}
	for _, id := range sources {
		of[id] = true
	}
	ofSet := func(record int64) bool { return record>>32 == r.id }
	for _, scan := range []struct {
		table, key, second string
		mine               func(int64) bool
	}{
		{"recent_loc", "key", "owner", ofSet}, {"loc", "key", "owner", ofSet}, // in the order in which rows move
		{"loc_other", "key", "record", ofSet}, {"link", "key", "record", ofSet},
		{"document", "id", "source", func(source int64) bool { return of[source] }},
	} {
		if err := l.removeScanned(ctx, scan.table, scan.key, scan.second, scan.mine); err != nil {
			return err
		}
	}
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		delete(l.filters, r.id)
		for _, id := range sources {
			delete(l.walks, event.SourceID(id))
			l.unsaved.forget(event.SourceID(id), math.MaxInt64)
		}
		for _, statement := range []string{"DELETE FROM segment WHERE set_id = $1", "DELETE FROM source WHERE set_id = $1"} {
			if err := tx.Exec(ctx, statement, r.id); err != nil {
				return err
			}
		}
		done := *r
		done.UnderWay = false
		return tx.Exec(ctx, "UPDATE removed_set SET under_way = 0, sum = $2 WHERE id = $1", r.id, done.sum())
	})
}

// untilNone repeats a step until it has removed nothing.
func untilNone(step func() (int, error)) error {
	for {
		if n, err := step(); err != nil || n == 0 {
			return err
		}
	}
}

// removeOfSource removes what is kept of a Source of a removed set, submissions too.
func (l *Log) removeOfSource(ctx context.Context, r *RemovedSet, source int64) error {
	for _, t := range []struct{ table, key, body string }{
		{"pending", "source, record", "observation"}, {"regressed", "source, record", "observation"}, {"seen_order", "source, record", ""}, {"held_deletion", "source, record", ""},
		{"source_records", "source, page", ""}, {"seen", "source, page", ""}, {"quarantine", "id", ""}, {"schedule", "source", ""}, {"harvest", "source, n", ""},
		{"harvest_day", "source, day", ""}, {"pause", "source", ""}, {"submission", "id", "content"}, {"outgoing_notification", "id", ""}, {"incoming_notification", "id", ""},
		{"rejection", "id", ""}, {"reply", "id", ""}, {"submission_count", "source, what, state", ""},
	} {
		if err := untilNone(func() (int, error) { return l.removeRows(ctx, r, t.table, t.key, t.body, "source = $1", source) }); err != nil {
			return err
		}
	}
	return nil
}

// removeRows removes some rows of a table, and notes the contents that they name: in their
// column body, if that is not "".
func (l *Log) removeRows(ctx context.Context, r *RemovedSet, table, key, body, where string, args ...any) (removed int, err error) {
	returned := "1"
	if body != "" && r.mirror {
		returned = body
	}
	text := fmt.Sprintf("DELETE FROM %[1]s WHERE (%[2]s) IN (SELECT %[2]s FROM %[1]s WHERE %[3]s LIMIT %[4]d) RETURNING %[5]s", table, key, where, removedAtOnce, returned)
	err = l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		removed = 0
		var sums [][]byte
		if err := tx.Each(ctx, text, args, func(rows *sql.Rows) error {
			removed++
			if returned == "1" {
				return nil
			}
			found, err := contentsOfRow(table, rows)
			if errors.Is(err, ErrDamaged) { // the contents that it names are unknown, and stay
				return nil
			}
			sums = append(sums, found...)
			return err
		}); err != nil {
			return err
		}
		for _, sum := range sums {
			if err := tx.Exec(ctx, "INSERT OR IGNORE INTO removed_content (sha256) VALUES ($1)", sum); err != nil {
				return err
			}
		}
		return nil
	})
	return removed, err
}

// contentsOfRow returns the SHA-256 of the contents that a row names: an event, a
// submission, or an observation; ErrDamaged of one that cannot be read.
func contentsOfRow(table string, rows *sql.Rows) (sums [][]byte, err error) {
	var raw []byte
	switch table {
	case "event":
		var c columns
		sealed, err := c.scan(rows)
		if err != nil {
			return nil, err
		}
		if raw, err = unseal(c, sealed); err != nil {
			return nil, fmt.Errorf("event %d: %w: %w", c.seq, ErrDamaged, err)
		}
	default:
		if err := rows.Scan(&raw); err != nil {
			return nil, err
		}
		if table == "submission" {
			if len(raw) == 32 {
				sums = append(sums, raw)
			}
			return sums, nil
		}
	}
	var b body
	if raw == nil {
		return nil, nil
	}
	if err := readBody(raw, &b); err != nil {
		return nil, fmt.Errorf("table %s: %w: %w", table, ErrDamaged, err)
	}
	for i := range b.obs.Representations {
		if sum, err := hex.DecodeString(b.obs.Representations[i].SHA256()); err == nil && len(sum) == 32 {
			sums = append(sums, sum)
		}
	}
	return sums, nil
}

// removeRecords removes some records of a set, with their keys.
func (l *Log) removeRecords(ctx context.Context, from, to int64) (removed int, err error) {
	err = l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		keys, err := database.All(ctx, tx.Each, fmt.Sprintf("DELETE FROM record WHERE id IN (SELECT id FROM record WHERE id >= $1 AND id < $2 LIMIT %d) RETURNING id, identifier", removedAtOnce), []any{from, to}, func(k *recordKey, rows *sql.Rows) error {
			var identifier string
			err := rows.Scan(&k.record, &identifier)
			k.key = event.KeyBits(identifier)
			return err
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			for _, text := range []string{"DELETE FROM recent_key WHERE key = $1 AND record = $2", "DELETE FROM record_key WHERE key = $1 AND record = $2"} {
				if err := tx.Exec(ctx, text, k.key, k.record); err != nil {
					return err
				}
			}
		}
		removed = len(keys)
		return nil
	})
	return removed, err
}

// removeScanned removes the rows of a table whose second column is one of a removed set.
// It reads the table in the order of its key, in pages, and holds no transaction meanwhile.
func (l *Log) removeScanned(ctx context.Context, table, key, second string, mine func(int64) bool) error {
	text := fmt.Sprintf("SELECT %[1]s, %[2]s FROM %[3]s WHERE (%[1]s, %[2]s) > ($1, $2) ORDER BY %[1]s, %[2]s LIMIT %[4]d", key, second, table, scannedAtOnce)
	if table == "recent_loc" || table == "loc" || table == "document" { // of which the first column is the key
		text = fmt.Sprintf("SELECT %[1]s, %[2]s FROM %[3]s WHERE %[1]s > $1 AND $2 IS NOT NULL ORDER BY %[1]s LIMIT %[4]d", key, second, table, scannedAtOnce)
	}
	remove := fmt.Sprintf("DELETE FROM %s WHERE %s = $1 AND %s = $2", table, key, second)
	at := [2]int64{math.MinInt64, math.MinInt64}
	for {
		n := 0
		var found [][2]int64
		if err := l.Each(ctx, text, []any{at[0], at[1]}, func(rows *sql.Rows) error {
			err := rows.Scan(&at[0], &at[1])
			if n++; err == nil && mine(at[1]) {
				found = append(found, at)
			}
			return err
		}); err != nil || n == 0 {
			return err
		}
		for some := range slices.Chunk(found, removedAtOnce) {
			if err := l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
				for _, row := range some {
					if err := tx.Exec(ctx, remove, row[0], row[1]); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
		}
	}
}

// UnusedContents returns some of the contents that removed sets have named and nothing in
// the log names any more; done is called when they were removed from the store. There are no
// more when it returns none. Nobody may write the log meanwhile.
func (l *Log) UnusedContents(ctx context.Context) (unused [][32]byte, done func() error, err error) {
	const most = 500_000
	named := map[[32]byte]bool{}
	if err := l.Each(ctx, fmt.Sprintf("SELECT sha256 FROM removed_content LIMIT %d", most), nil, func(rows *sql.Rows) error {
		var sum []byte
		err := rows.Scan(&sum)
		if err == nil && len(sum) == 32 {
			named[[32]byte(sum)] = true
		}
		return err
	}); err != nil || len(named) == 0 {
		return nil, nil, err
	}
	all := slices.AppendSeq(make([][32]byte, 0, len(named)), maps.Keys(named))
	if err := l.read(ctx, func(q database.Querier) error {
		for _, t := range []struct{ table, query string }{
			{"event", "SELECT " + eventColumns + " FROM event"}, {"presence", "SELECT suppressed FROM presence WHERE suppressed IS NOT NULL"}, {"pending", "SELECT observation FROM pending"},
			{"regressed", "SELECT observation FROM regressed"}, {"submission", "SELECT content FROM submission WHERE content IS NOT NULL"},
		} {
			if err := database.Each(ctx, q, t.query, nil, func(rows *sql.Rows) error {
				sums, err := contentsOfRow(t.table, rows)
				for _, sum := range sums {
					delete(named, [32]byte(sum))
				}
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	}); errors.Is(err, ErrDamaged) {
		return nil, nil, nil // what a damaged row names is unknown: all stay
	} else if err != nil {
		return nil, nil, err
	}
	for _, sum := range all {
		if named[sum] {
			unused = append(unused, sum)
		}
	}
	return unused, func() error {
		for some := range slices.Chunk(all, removedAtOnce) {
			if err := l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
				for _, sum := range some {
					if err := tx.Exec(ctx, "DELETE FROM removed_content WHERE sha256 = $1", sum[:]); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// beforeInLog returns the Seq that an event follows: those of an epoch that was lost, and of sets
// that were removed, are not there.
func (s *scanner) beforeInLog(seq event.Seq) event.Seq { return beforeGaps(s.lost, s.removed, seq) }

func beforeGaps(lost epochs, removed []RemovedSet, seq event.Seq) event.Seq {
	for {
		p := lost.before(seq)
		for i := range removed {
			if r := &removed[i]; r.first > 0 && r.first <= int64(p) && int64(p) <= r.last {
				p = event.Seq(r.first) - 1
			}
		}
		if p == seq-1 {
			return p
		}
		seq = p + 1
	}
}

// errRemoved is the error of a batch for a set that was removed.
var errRemoved = database.Missing("the set was removed")
