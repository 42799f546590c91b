package eventlog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// The history of a Source: rows of its newest harvests, and their sums for each day. It
// is only displayed; nothing else depends on it.
const (
	// harvestsFor is how long a row is kept, harvestsLeast how many are whatever their
	// age, and harvestsMost how many at most.
	harvestsFor   = 90 * 24 * time.Hour
	harvestsLeast = 100
	harvestsMost  = 2500
	// harvestsPruned: older rows are removed after so many new ones.
	harvestsPruned = 32
)

// writeHarvest adds a row to the history of a Source. One that is there is not counted
// again: rows stay in memory until it is known that they were written.
func writeHarvest(ctx context.Context, tx *database.Tx, source event.SourceID, h *event.Harvest) error {
	problems, err := marshalProblems(h.Problems)
	if err != nil {
		return err
	}
	added := false
	if err := tx.Each(ctx, insertHarvest, harvestArgs(source, h, problems), func(*sql.Rows) error {
		added = true
		return nil
	}); err != nil || !added {
		return err
	}
	if err := countDay(ctx, tx, source, h); err != nil || h.Number%harvestsPruned != 0 {
		return err
	}
	cutoff := h.Ended - event.Micros(harvestsFor.Microseconds())
	if err := tx.Exec(ctx, "DELETE FROM harvest WHERE source = $1 AND n <= $2 AND (started < $3 OR n <= $4)",
		int64(source), h.Number-harvestsLeast, int64(cutoff), h.Number-harvestsMost); err != nil {
		return err
	}
	return tx.Exec(ctx, "DELETE FROM harvest_day WHERE source = $1 AND day < $2", int64(source), dayOf(cutoff))
}

// countDay adds a row to the sums of its day in UTC.
func countDay(ctx context.Context, tx *database.Tx, source event.SourceID, h *event.Harvest) error {
	d := dayRow{source: source, day: dayOf(h.Ended)}
	if err := tx.Each(ctx, "SELECT "+dayColumns+" FROM harvest_day WHERE source = $1 AND day = $2", []any{int64(source), d.day}, func(rows *sql.Rows) error {
		if err := d.scan(rows); !errors.Is(err, ErrDamaged) {
			return err
		}
		d = dayRow{source: source, day: dayOf(h.Ended)} // it is counted anew
		return nil
	}); err != nil {
		return err
	}
	d.Harvests++
	if h.Result == event.ResultFailed {
		d.Failed++
	}
	d.Created, d.Updated, d.Deleted = d.Created+h.Created, d.Updated+h.Updated, d.Deleted+h.Deleted
	return tx.Exec(ctx, "INSERT OR REPLACE INTO harvest_day (source, day, harvests, failed, created, updated, deleted, sum) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
		int64(d.source), d.day, d.Harvests, d.Failed, d.Created, d.Updated, d.Deleted, d.sum())
}

// dropDamaged removes the damaged rows of a Source's history, and a damaged pause, and
// returns the number of the newest row that is left.
func dropDamaged(ctx context.Context, tx *database.Tx, source event.SourceID) (last int64, err error) {
	of := []any{int64(source)}
	if err := dropDamagedRows(ctx, tx, "SELECT "+harvestColumns+" FROM harvest WHERE source = $1", of, func(rows *sql.Rows) ([]any, error) {
		var h harvestRow
		err := h.scan(rows)
		last = max(last, h.Number)
		return []any{int64(source), h.Number}, err
	}, "DELETE FROM harvest WHERE source = $1 AND n = $2"); err != nil {
		return 0, err
	}
	if err := dropDamagedRows(ctx, tx, "SELECT "+dayColumns+" FROM harvest_day WHERE source = $1", of, func(rows *sql.Rows) ([]any, error) {
		var d dayRow
		err := d.scan(rows)
		return []any{int64(source), d.day}, err
	}, "DELETE FROM harvest_day WHERE source = $1 AND day = $2"); err != nil {
		return 0, err
	}
	return last, dropDamagedRows(ctx, tx, selectPauses+" WHERE source = $1", of, func(rows *sql.Rows) ([]any, error) {
		_, err := new(Pause).scan(rows)
		return of, err
	}, "DELETE FROM pause WHERE source = $1")
}

// dropDamagedRows removes the rows of a query that are not what was stored. scan returns the
// arguments by which drop finds the row.
func dropDamagedRows(ctx context.Context, tx *database.Tx, query string, args []any, scan func(*sql.Rows) ([]any, error), drop string) error {
	var damaged [][]any
	if err := tx.Each(ctx, query, args, func(rows *sql.Rows) error {
		key, err := scan(rows)
		if errors.Is(err, ErrDamaged) {
			damaged, err = append(damaged, key), nil
		}
		return err
	}); err != nil {
		return err
	}
	for _, key := range damaged {
		if err := tx.Exec(ctx, drop, key...); err != nil {
			return err
		}
	}
	return nil
}

// Harvests returns rows of the history of a Source, newest first: at most limit, of those
// with a number below before; 0 is no bound.
func (l *Log) Harvests(ctx context.Context, source event.SourceID, before int64, limit int) (out []event.Harvest, err error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	if limit <= 0 {
		limit = harvestsMost + harvestsPruned
	}
	err = l.Each(ctx, "SELECT "+harvestColumns+" FROM harvest WHERE source = $1 AND n < $2 ORDER BY n DESC LIMIT $3", []any{int64(source), before, limit}, func(rows *sql.Rows) error {
		var h harvestRow
		err := h.scan(rows)
		if errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("harvest %d of Source %d: %w: run bridge verify", h.Number, source, ErrDamaged)
		}
		out = append(out, h.Harvest)
		return err
	})
	return out, err
}

// HarvestDays returns the daily sums of the harvests of each Source since a moment, in
// the order of the days (UTC). Days without a harvest that has a row are left out.
func (l *Log) HarvestDays(ctx context.Context, since event.Micros) (map[event.SourceID][]event.Day, error) {
	out := map[event.SourceID][]event.Day{}
	return out, l.Each(ctx, "SELECT "+dayColumns+" FROM harvest_day WHERE day >= $1 ORDER BY source, day", []any{dayOf(since)}, func(rows *sql.Rows) error {
		var d dayRow
		err := d.scan(rows)
		if errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("day %d of the history of Source %d: %w: run bridge verify", d.day, d.source, ErrDamaged)
		}
		out[d.source] = append(out[d.source], d.Day)
		return err
	})
}

const (
	harvestColumns = `source, n, started, ended, result, documents, entries, bytes, contents, created, updated, deleted, pending, held, quarantined, problems, error, error_kind, error_rule,
	quiet, quiet_first, quiet_last, sum`
	insertHarvest = "INSERT INTO harvest (" + harvestColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23) ON CONFLICT DO NOTHING RETURNING n`
)

// harvestArgs are the columns of a row of table harvest, with its sum.
func harvestArgs(source event.SourceID, h *event.Harvest, problems []byte) []any {
	return []any{int64(source), h.Number, int64(h.Started), int64(h.Ended), int64(h.Result), h.Documents, h.Entries, h.Bytes, h.Contents, h.Created, h.Updated, h.Deleted,
		h.Pending, h.Held, h.Quarantined, problems, h.Error.Text, h.Error.Kind, h.Error.Rule, h.Before.Count, int64(h.Before.First), int64(h.Before.Last), harvestSum(source, h, problems)}
}

func harvestSum(source event.SourceID, h *event.Harvest, problems []byte) int64 {
	return sumOf(source, h.Number, h.Started, h.Ended, int64(h.Result), h.Documents, h.Entries, h.Bytes, h.Contents, h.Created, h.Updated, h.Deleted,
		h.Pending, h.Held, h.Quarantined, problems, h.Error.Text, h.Error.Kind, h.Error.Rule, h.Before.Count, h.Before.First, h.Before.Last)
}

// marshalProblems returns nil for none.
func marshalProblems(all []event.BrokenRule) ([]byte, error) {
	if len(all) == 0 {
		return nil, nil
	}
	return json.Marshal(all)
}

// harvestRow is a row of table harvest.
type harvestRow struct {
	source event.SourceID
	event.Harvest
}

// scan fills in the whole row. Its error is ErrDamaged when that is not what was stored.
func (r *harvestRow) scan(rows *sql.Rows) error {
	h := &r.Harvest
	var problems []byte
	var sum int64
	if err := rows.Scan(&r.source, &h.Number, &h.Started, &h.Ended, &h.Result, &h.Documents, &h.Entries, &h.Bytes, &h.Contents, &h.Created, &h.Updated, &h.Deleted,
		&h.Pending, &h.Held, &h.Quarantined, &problems, &h.Error.Text, &h.Error.Kind, &h.Error.Rule, &h.Before.Count, &h.Before.First, &h.Before.Last, &sum); err != nil {
		return err
	}
	if sum != harvestSum(r.source, h, problems) || problems != nil && json.Unmarshal(problems, &h.Problems) != nil {
		return ErrDamaged
	}
	if h.Result == event.ResultFailed {
		h.Error.At = h.Ended
	}
	return nil
}

const dayColumns = "source, day, harvests, failed, created, updated, deleted, sum"

// dayRow is a row of table harvest_day.
type dayRow struct {
	source event.SourceID
	day    int64 // since 1970
	event.Day
}

const dayMicros = event.Micros(24 * time.Hour / time.Microsecond)

func dayOf(at event.Micros) int64 { return int64(at / dayMicros) }

func (d *dayRow) sum() int64 {
	return sumOf(d.source, d.day, d.Harvests, d.Failed, d.Created, d.Updated, d.Deleted)
}

// scan is like that of harvestRow.
func (d *dayRow) scan(rows *sql.Rows) error {
	var sum int64
	if err := rows.Scan(&d.source, &d.day, &d.Harvests, &d.Failed, &d.Created, &d.Updated, &d.Deleted, &sum); err != nil {
		return err
	}
	if d.Start = event.Micros(d.day) * dayMicros; sum != d.sum() {
		return ErrDamaged
	}
	return nil
}
