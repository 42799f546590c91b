package eventlog

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Epoch is a period of the log. A new one begins when the log has lost events that were
// published. Destinations still have the lost events, so no document of the previous
// epoch may be continued: the sets get a new creation and new feed ids, their Change
// Lists begin anew, and no number of a Seq or a segment that may have been published is
// given out again.
type Epoch struct {
	N       int64
	Started event.Micros
	// After is the last event of the previous epoch; up to Upto no Seq is given out.
	After, Upto event.Seq
	Reason      string
}

func (e *Epoch) sum() int64 { return sumOf(e.N, e.Started, int64(e.After), int64(e.Upto), e.Reason) }

// unknownLoss is how many events, at most, a log is assumed to have lost when their
// number is unknown. Up to unknownSpread more are left out, by chance: the same copy may be put
// back once more, and what was given out in between must not be given out again.
const unknownLoss, unknownSpread = 1_000_000, 1 << 25

const selectEpochs = "SELECT n, started, after_seq, upto_seq, reason, sum FROM epoch ORDER BY n"

func scanEpoch(rows *sql.Rows) (e Epoch, err error) {
	var sum int64
	err = rows.Scan(&e.N, &e.Started, &e.After, &e.Upto, &e.Reason, &sum)
	if err == nil && sum != e.sum() {
		err = fmt.Errorf("epoch %d: %w: run bridge verify", e.N, ErrDamaged)
	}
	return e, err
}

// epochs are those that began after a loss, in order.
type epochs []Epoch

// before returns the previous Seq in the log, without those that were lost between
// epochs.
func (all epochs) before(seq event.Seq) event.Seq {
	for _, e := range all {
		if seq == e.Upto+1 {
			return e.After
		}
	}
	return seq - 1
}

// lost returns how many of the Seqs between two are not there because they were lost.
func (all epochs) lost(after, before event.Seq) (n int64) {
	counted := after // upto here
	for _, e := range all {
		if from := max(e.After, counted); after <= e.After && before > e.Upto && e.Upto > from {
			n += int64(e.Upto - from)
			counted = e.Upto
		}
	}
	return n
}

// began reports whether one of them began at a moment.
func (all epochs) began(at event.Micros) bool {
	return slices.ContainsFunc(all, func(e Epoch) bool { return e.Started == at })
}

// readEpochs reads them all.
func readEpochs(ctx context.Context, q preparer) (all epochs, err error) {
	return all, q.Each(ctx, selectEpochs, nil, func(rows *sql.Rows) error {
		e, err := scanEpoch(rows)
		all = append(all, e)
		return err
	})
}

// Epochs returns the epochs that began after a loss, in order.
func (l *Log) Epochs(ctx context.Context) ([]Epoch, error) { return readEpochs(ctx, l) }

// Forgotten reports whether a Seq does not belong to this log: a lost event may have had
// it, or it is later than the last event.
func (l *Log) Forgotten(ctx context.Context, seq event.Seq) (bool, error) {
	all, err := l.Epochs(ctx)
	if err != nil {
		return false, err
	}
	for _, e := range all {
		if seq > e.After && seq <= e.Upto {
			return true, nil
		}
	}
	last, err := l.LastSeq(ctx)
	return seq > last, err
}

// beginEpoch begins a new epoch after a loss.
func (l *Log) beginEpoch(ctx context.Context, loss *Loss, h head) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		lost := max(loss.Lost-loss.Last, 1)
		if loss.Unknown != "" {
			lost = unknownLoss + rand.N[event.Seq](unknownSpread)
		}
		now, err := l.now()
		if err != nil {
			return fmt.Errorf("a new epoch cannot begin: %w", err)
		}
		e := Epoch{Started: max(now, h.Observed+1), After: loss.Last, Upto: loss.Last + lost, Reason: loss.String()}
		if err := tx.Each(ctx, "SELECT (SELECT count(*) FROM epoch) + 2, (SELECT coalesce(max(clock), 0) FROM sets), (SELECT coalesce(max(upto_seq), 0) FROM epoch), (SELECT last_event FROM log)", nil, func(rows *sql.Rows) error {
			var clock event.Micros
			var upto event.Seq
			var last int64
			err := rows.Scan(&e.N, &clock, &upto, &last)
			e.Started, e.Upto = max(e.Started, clock+1), max(e.Upto, upto, seqOf(last))
			return err
		}); err != nil {
			return err
		}
		if err := tx.Exec(ctx, "INSERT INTO epoch (n, started, after_seq, upto_seq, reason, sum) VALUES ($1, $2, $3, $4, $5, $6)",
			e.N, int64(e.Started), int64(e.After), int64(e.Upto), e.Reason, e.sum()); err != nil {
			return err
		}
		sets := map[int64]*setRow{}
		if err := tx.Each(ctx, selectSets, nil, func(rows *sql.Rows) error {
			s := new(setRow)
			err := s.scan(rows)
			sets[s.id] = s
			return err
		}); err != nil {
			return err
		}
		for id, s := range sets {
			if err := l.renewSet(ctx, tx, id, s, &e); err != nil {
				return err
			}
		}
		return nil
	})
}

// renewSet begins the new epoch of a set. Its events and their state stay. Its segments
// get numbers that were never published: each closed segment has at least one event, so
// no more segments than events were lost. The open segment is closed, so that the Change
// Lists of the epoch begin with the next one.
func (l *Log) renewSet(ctx context.Context, tx *database.Tx, id int64, s *setRow, e *Epoch) error {
	at, lost := e.Started, int(e.Upto-e.After)
	var open segmentRow
	if err := tx.Each(ctx, selectSegments+" ORDER BY n DESC LIMIT 1", []any{id}, func(rows *sql.Rows) (err error) {
		open, err = scanSegment(rows)
		return err
	}); err != nil {
		return err
	}
	shift, next := open.N+lost, open.N+lost+open.N
	if err := tx.Exec(ctx, "UPDATE segment SET n = n + $2 WHERE set_id = $1", id, shift); err != nil {
		return err
	}
	if open.Events == 0 {
		if err := tx.Exec(ctx, "DELETE FROM segment WHERE set_id = $1 AND n = $2", id, next); err != nil {
			return err
		}
	} else {
		if err := tx.Exec(ctx, "UPDATE segment SET until_at = $3 WHERE set_id = $1 AND n = $2", id, next, int64(s.LastObserved)); err != nil {
			return err
		}
		next++
	}
	s.Created, s.FirstFeed, s.Feed, s.Complete = at, s.IdentifierFeed(), newUUID(), newUUID()
	if err := tx.Exec(ctx, `UPDATE sets SET created = $2, feed = $3, complete = $4, first_feed = $8, sum = $5, last_observed = $2, clock = $2, base_seq = $7, base_n = base_n + $6,
	partial = CASE WHEN EXISTS (SELECT 1 FROM source WHERE set_id = sets.id AND kind NOT IN ('sip', '`+Target+`')) THEN 1 ELSE 0 END WHERE id = $1`,
		id, int64(at), s.Feed, s.Complete, s.sum(), shift, int64(e.After), s.FirstFeed); err != nil {
		return err
	}
	return tx.Exec(ctx, "INSERT INTO segment (set_id, n, from_at) VALUES ($1, $2, $3)", id, next, int64(at))
}
