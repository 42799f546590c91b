package eventlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// seqs is a set of positions of the log: one bit for each, 64 of them together. A set of the log
// may have few events, far apart among those of the others.
type seqs struct {
	words map[int64]uint64
	n     int64
}

func (s *seqs) add(seq int64) {
	i, bit := seq>>6, uint64(1)<<(seq&63)
	if s.words == nil {
		s.words = map[int64]uint64{}
	}
	if w := s.words[i]; w&bit == 0 {
		s.words[i] = w | bit
		s.n++
	}
}

func (s *seqs) has(seq int64) bool { return s.words[seq>>6]&(1<<(seq&63)) != 0 }

func (s *seqs) remove(seq int64) {
	if !s.has(seq) {
		return
	}
	i := seq >> 6
	if s.words[i] &^= 1 << (seq & 63); s.words[i] == 0 {
		delete(s.words, i)
	}
	s.n--
}

// all yields them in their order.
func (s *seqs) all() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for _, i := range slices.Sorted(maps.Keys(s.words)) {
			for w := s.words[i]; w != 0; w &= w - 1 {
				if !yield(i<<6 + int64(bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// state is which events are the last ones of the live records of a set.
type state struct {
	set    int64
	events int64 // of the set
	last   seqs
}

// Live returns the last event of each record that is live at a position, in the order of
// these events. It starts from the current state, and undoes the events since the
// position. An event is good until the next one is asked for. One of the log's few
// connections is in use until the sequence ends.
func (l *Log) Live(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return l.liveEvents(ctx, set, at, false)
}

// Listed is Live without records whose Loc another one owns: a Resource List has a
// URI once.
func (l *Log) Listed(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return l.liveEvents(ctx, set, at, true)
}

func (l *Log) liveEvents(ctx context.Context, set string, at event.Seq, listed bool) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		err := l.read(ctx, func(q database.Querier) error {
			st, now, err := l.loadState(ctx, q, set, at)
			if err != nil {
				return err
			}
			if at < now {
				if err := st.rewind(ctx, q, event.Range{After: at, Upto: now}); err != nil {
					return err
				}
			}
			return st.list(ctx, q, set, at, listed, yield)
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(nil, err)
		}
	}
}

// loadState reads the current state in one transaction: the events up to a position
// that are the last ones of live records, and the set's last position.
func (l *Log) loadState(ctx context.Context, q database.Querier, set string, at event.Seq) (*state, event.Seq, error) {
	if c, ok := q.(*sql.Conn); ok && !l.opt.DryRun {
		tx, err := c.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return nil, 0, err
		}
		defer tx.Rollback()
		q = tx
	}
	var now setRow
	if err := database.Each(ctx, q, selectSets+" WHERE name = $1", []any{set}, now.scan); err != nil {
		return nil, 0, err
	}
	if now.id == 0 {
		return nil, 0, noSet(set)
	}
	st := &state{set: now.id, events: now.Events}
	live := int64(0)
	if err := database.Each(ctx, q, "SELECT seq FROM record WHERE id > $1 AND id < $2 AND digest IS NOT NULL", []any{st.set << 32, (st.set + 1) << 32}, func(rows *sql.Rows) error {
		var seq int64
		err := rows.Scan(&seq)
		if err == nil && (seq <= 0 || seq > int64(now.Last)) {
			return fmt.Errorf("set %s: the current state names event %d of %d: run bridge verify", set, seq, now.Last)
		}
		if live++; seq <= int64(at) {
			st.last.add(seq)
		}
		return err
	}); err != nil {
		return nil, 0, err
	}
	if live != now.Live {
		return nil, 0, fmt.Errorf("set %s: %d live records are stored, %d were counted: run bridge verify", set, live, now.Live)
	}
	return st, now.Last, nil
}

// rewind turns the state into that of the position before a range of events. The first
// event of a record in the range shows whether the record existed before it, and which
// event was its last one then.
func (st *state) rewind(ctx context.Context, q database.Querier, since event.Range) error {
	var told seqs // records, by their ordinals
	var v body
	return eachRow(ctx, q, st.set, since, nil, func(c columns, sealed []byte) error {
		if kind := event.Kind(c.kind); kind == event.Rejected || told.has(ordinal(c.record)) {
			return nil
		}
		told.add(ordinal(c.record))
		raw, err := unseal(c, sealed)
		if err == nil {
			err = readBody(raw, &v)
		}
		if err != nil {
			return fmt.Errorf("event %d in the log: %w: run bridge verify, and restore a backup", c.seq, err)
		}
		if v.before != 0 && event.Kind(c.kind) != event.Created {
			st.last.add(c.seq - v.before)
		}
		return nil
	})
}

// list yields the events of the state in the order of the log; with listed, only those of
// records that lists name. Events never change, so no transaction is needed any more.
func (st *state) list(ctx context.Context, q database.Querier, set string, at event.Seq, listed bool, yield func(*event.Event, error) bool) error {
	s, err := newScanner(ctx, q, set)
	if err != nil {
		return err
	}
	left := st.last.n
	if err := st.visit(ctx, q, at, func(c columns, sealed []byte) error {
		ev, err := s.event(c, sealed)
		if err != nil {
			return err
		}
		left--
		if ev.Set != s.sets[st.set].Name || !ev.Live() {
			return fmt.Errorf("event %d: it is stored as the last one of a live record of set %s: run bridge verify", ev.Seq, s.sets[st.set].Name)
		}
		if listed && ev.Unlisted {
			return nil
		}
		if !yield(ev, nil) {
			return errStop
		}
		return nil
	}); err != nil {
		return err
	}
	if left != 0 {
		return fmt.Errorf("set %s: the last events of %d live records are missing: run bridge verify", s.sets[st.set].Name, left)
	}
	return nil
}

// visit calls do for the rows of the state's events: out of the whole range in one
// pass, or just these where they are few among the set's.
func (st *state) visit(ctx context.Context, q database.Querier, at event.Seq, do func(c columns, sealed []byte) error) error {
	if st.last.n*8 > st.events {
		return eachRow(ctx, q, st.set, event.Range{Upto: at}, st.last.has, do)
	}
	few := make([]any, 0, lookup)
	var p rowPage
	flush := func() error {
		if len(few) == 0 {
			return nil
		}
		if err := p.read(ctx, q, "SELECT "+eventColumns+" FROM event WHERE id IN ("+database.Params(len(few))+") ORDER BY id", few, nil); err != nil {
			return err
		}
		few = few[:0]
		return p.each(do)
	}
	for seq := range st.last.all() {
		if few = append(few, eventID(st.set, event.Seq(seq))); len(few) == lookup {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}
