package eventlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// schedules are those that were saved lazily: newer than what is stored, and not
// written yet, with the rows of the history that go with them.
type schedules struct {
	mu    sync.Mutex
	fresh map[event.SourceID]freshSchedule
}

// freshSchedule is what is not written yet of a Source.
type freshSchedule struct {
	event.Schedule
	rows []event.Harvest // oldest first; more than one only while nothing can be written
}

func (s *schedules) get(source event.SourceID) (event.Schedule, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.fresh[source]
	return v.Schedule, ok
}

// unwritten returns what is not written yet of a Source, with 0 of all.
func (s *schedules) unwritten(only event.SourceID) map[event.SourceID]freshSchedule {
	s.mu.Lock()
	defer s.mu.Unlock()
	if only == 0 {
		return maps.Clone(s.fresh)
	}
	out := map[event.SourceID]freshSchedule{}
	if v, ok := s.fresh[only]; ok {
		out[only] = v
	}
	return out
}

// unwrittenRows is how many rows of a Source are kept while the disk is full.
const unwrittenRows = 20

func (s *schedules) put(source event.SourceID, v event.Schedule, row *event.Harvest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fresh == nil {
		s.fresh = map[event.SourceID]freshSchedule{}
	}
	rows := s.fresh[source].rows
	if row != nil {
		rows = append(slices.Clip(rows[max(0, len(rows)-unwrittenRows+1):]), *row)
	}
	s.fresh[source] = freshSchedule{v, rows}
}

func (s *schedules) forget(source event.SourceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fresh, source)
}

// SaveSchedule keeps when a Source is asked next. What is saved lazily is
// written by FlushSchedules or Close: a crash before that costs one more request.
func (l *Log) SaveSchedule(ctx context.Context, source event.SourceID, s event.Schedule, lazily bool) error {
	l.schedules.put(source, s, nil)
	if lazily {
		return nil
	}
	return l.writeSchedules(ctx, source)
}

// SaveHarvest adds a row to the history of a Source, and keeps the schedule that
// counts it: Schedule.Harvests is the row's number.
func (l *Log) SaveHarvest(ctx context.Context, source event.SourceID, s event.Schedule, row *event.Harvest) error {
	l.schedules.put(source, s, row)
	return l.writeSchedules(ctx, source)
}

// FlushSchedules writes what was saved lazily, in one transaction.
func (l *Log) FlushSchedules(ctx context.Context) error {
	if len(l.schedules.unwritten(0)) == 0 {
		return nil
	}
	return l.writeSchedules(ctx, 0)
}

// writeSchedules writes what is not written yet of a Source, with 0 of all. Harvests that end
// together share a transaction: if each wrote all, they would write the square of their number.
func (l *Log) writeSchedules(ctx context.Context, only event.SourceID) error {
	var writing map[event.SourceID]freshSchedule
	err := l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		// Take what is fresh now, and not when this began to wait: meanwhile it may have
		// been written or replaced, or the Source was forgotten.
		writing = l.schedules.unwritten(only)
		for _, source := range slices.Sorted(maps.Keys(writing)) {
			s := writing[source]
			if err := tx.Exec(ctx, insertSchedule, scheduleArgs(source, &s.Schedule)...); err != nil {
				return err
			}
			for i := range s.rows {
				if err := writeHarvest(ctx, tx, source, &s.rows[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.schedules.mu.Lock()
	defer l.schedules.mu.Unlock()
	for source, s := range writing {
		if now, ok := l.schedules.fresh[source]; ok && reflect.DeepEqual(now, s) {
			delete(l.schedules.fresh, source)
		}
	}
	return nil
}

// ResetSchedule forgets when a Source is asked next, how often it has failed in a row and
// what its last harvest reported. Its history and its pause stay, if they are not damaged.
func (l *Log) ResetSchedule(ctx context.Context, source event.SourceID) error {
	was, err := l.Schedule(ctx, source)
	if errors.Is(err, ErrDamaged) {
		was, err = event.Schedule{}, nil
	}
	if err != nil {
		return err
	}
	was.Next, was.Failures, was.Report = 0, 0, nil
	if err := l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		last, err := dropDamaged(ctx, tx, source)
		was.Harvests = max(was.Harvests, last)
		return err
	}); err != nil {
		return err
	}
	return l.SaveSchedule(ctx, source, was, false)
}

// Schedule returns when a Source is asked next; the zero Schedule is that of one
// which was never harvested.
func (l *Log) Schedule(ctx context.Context, source event.SourceID) (out event.Schedule, err error) {
	if s, ok := l.schedules.get(source); ok {
		return s, nil
	}
	err = l.Each(ctx, "SELECT "+scheduleColumns+" FROM schedule sch WHERE source = $1", []any{int64(source)}, func(rows *sql.Rows) error {
		var s scheduleRow
		err := rows.Scan(s.columns()...)
		if err == nil {
			out, err = s.schedule(source)
		}
		return err
	})
	return out, err
}

const insertSchedule = `INSERT OR REPLACE INTO schedule (source, next, failures, report, last_success, failing_since, error_at, error, error_kind, error_rule, harvests, quiet, quiet_first, quiet_last, sum)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`

// scheduleArgs are the columns of a row of table schedule, with its sum.
func scheduleArgs(source event.SourceID, s *event.Schedule) []any {
	return []any{int64(source), int64(s.Next), s.Failures, s.Report, int64(s.LastSuccess), int64(s.FailingSince),
		int64(s.LastError.At), s.LastError.Text, s.LastError.Kind, s.LastError.Rule,
		s.Harvests, s.Quiet.Count, int64(s.Quiet.First), int64(s.Quiet.Last), scheduleSum(source, s)}
}

func scheduleSum(source event.SourceID, s *event.Schedule) int64 {
	return sumOf(source, s.Next, int64(s.Failures), s.Report, s.LastSuccess, s.FailingSince,
		s.LastError.At, s.LastError.Text, s.LastError.Kind, s.LastError.Rule, s.Harvests, s.Quiet.Count, s.Quiet.First, s.Quiet.Last)
}

// scheduleColumns are those of schedule, of a row that may be missing.
const scheduleColumns = `sch.next, sch.failures, sch.report, sch.last_success, sch.failing_since, sch.error_at, coalesce(sch.error, ''), coalesce(sch.error_kind, ''), coalesce(sch.error_rule, ''),
	sch.harvests, sch.quiet, sch.quiet_first, sch.quiet_last, sch.sum`

type scheduleRow struct {
	next, failures, success, since, at, harvests, quiet, first, last, sum sql.NullInt64
	report                                                                []byte
	failure                                                               event.Failure
}

func (r *scheduleRow) columns() []any {
	return []any{&r.next, &r.failures, &r.report, &r.success, &r.since, &r.at, &r.failure.Text, &r.failure.Kind, &r.failure.Rule,
		&r.harvests, &r.quiet, &r.first, &r.last, &r.sum}
}

func (r *scheduleRow) schedule(source event.SourceID) (s event.Schedule, err error) {
	if !r.sum.Valid {
		return s, nil
	}
	micros := func(v sql.NullInt64) event.Micros { return event.Micros(v.Int64) }
	s = event.Schedule{Next: micros(r.next), Failures: int(r.failures.Int64), Report: r.report, LastSuccess: micros(r.success), FailingSince: micros(r.since),
		LastError: r.failure, Harvests: r.harvests.Int64, Quiet: event.Quiet{Count: r.quiet.Int64, First: micros(r.first), Last: micros(r.last)}}
	s.LastError.At = micros(r.at)
	if r.sum.Int64 != scheduleSum(source, &s) {
		err = fmt.Errorf("when Source %d is asked next: %w: run bridge verify", source, ErrDamaged)
	}
	return s, err
}
