package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// schedules are those that were saved lazily: newer than what is stored, and not
// written yet.
type schedules struct {
	mu    sync.Mutex
	fresh map[event.SourceID]event.Schedule
}

func (s *schedules) get(source event.SourceID) (event.Schedule, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.fresh[source]
	return v, ok
}

func (s *schedules) put(source event.SourceID, v event.Schedule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fresh == nil {
		s.fresh = map[event.SourceID]event.Schedule{}
	}
	s.fresh[source] = v
}

// SaveSchedule keeps when a Source is asked next. What is saved lazily is
// written by FlushSchedules or Close: a crash before that costs one more request.
func (l *Log) SaveSchedule(ctx context.Context, source event.SourceID, s event.Schedule, lazily bool) error {
	l.schedules.put(source, s)
	if lazily {
		return nil
	}
	return l.FlushSchedules(ctx)
}

// FlushSchedules writes what was saved lazily, in one transaction.
func (l *Log) FlushSchedules(ctx context.Context) error {
	l.schedules.mu.Lock()
	writing := maps.Clone(l.schedules.fresh)
	l.schedules.mu.Unlock()
	if len(writing) == 0 {
		return nil
	}
	err := l.write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		for _, source := range slices.Sorted(maps.Keys(writing)) {
			s := writing[source]
			if err := tx.Exec(ctx, "INSERT OR REPLACE INTO schedule (source, next, failures, report, sum) VALUES ($1, $2, $3, $4, $5)",
				int64(source), int64(s.Next), s.Failures, s.Report, scheduleSum(source, &s)); err != nil {
				return err
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
		if now := l.schedules.fresh[source]; same(&now, &s) {
			delete(l.schedules.fresh, source)
		}
	}
	return nil
}

func same(a, b *event.Schedule) bool {
	return a.Next == b.Next && a.Failures == b.Failures && slices.Equal(a.Report, b.Report)
}

func scheduleSum(source event.SourceID, s *event.Schedule) int64 {
	return sumOf(source, s.Next, int64(s.Failures), s.Report)
}

// Schedule returns when a Source is asked next; the zero Schedule is that of one
// which was never harvested.
func (l *Log) Schedule(ctx context.Context, source event.SourceID) (out event.Schedule, err error) {
	if s, ok := l.schedules.get(source); ok {
		return s, nil
	}
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, "SELECT "+scheduleColumns+" FROM schedule sch WHERE source = $1", int64(source))
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var s scheduleRow
			err := rows.Scan(s.columns()...)
			if err == nil {
				out, err = s.schedule(source)
			}
			return err
		})
	})
	return out, err
}

// scheduleColumns are those of schedule, of a row that may be missing.
const scheduleColumns = "sch.next, sch.failures, sch.report, sch.sum"

type scheduleRow struct {
	next, failures, sum sql.NullInt64
	report              []byte
}

func (r *scheduleRow) columns() []any { return []any{&r.next, &r.failures, &r.report, &r.sum} }

func (r *scheduleRow) schedule(source event.SourceID) (s event.Schedule, err error) {
	if !r.sum.Valid {
		return s, nil
	}
	s = event.Schedule{Next: event.Micros(r.next.Int64), Failures: int(r.failures.Int64), Report: r.report}
	if r.sum.Int64 != scheduleSum(source, &s) {
		err = fmt.Errorf("when Source %d is asked next: %w: run bridge verify", source, errDamaged)
	}
	return s, err
}

// DuePending returns which Sources have pending observations that are due.
func (l *Log) DuePending(ctx context.Context, due event.Micros) (out []event.SourceID, err error) {
	err = l.read(ctx, func(q sqlite.Querier) error {
		rows, err := q.QueryContext(ctx, "SELECT id FROM source src WHERE EXISTS (SELECT 1 FROM pending WHERE source = src.id AND next <= $1)", int64(due))
		return sqlite.ScanAll(rows, err, func(rows *sql.Rows) error {
			var id event.SourceID
			err := rows.Scan(&id)
			out = append(out, id)
			return err
		})
	})
	slices.SortFunc(out, func(a, b event.SourceID) int { return cmp.Compare(a, b) })
	return out, err
}
