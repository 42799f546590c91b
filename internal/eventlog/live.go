package eventlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math/bits"

	"github.com/pmh-bridge/bridge/event"
)

// errMoved: the set has events after the wanted position.
var errMoved = errors.New("the state has moved on")

// seqs is a set of positions of the log: one bit for each place up to the last.
type seqs struct {
	words []uint64
	n     int64
}

func (s *seqs) add(seq int64) {
	i, bit := seq/64, uint64(1)<<(seq%64)
	for int64(len(s.words)) <= i {
		s.words = append(s.words, make([]uint64, i+1-int64(len(s.words)))...)
	}
	if s.words[i]&bit == 0 {
		s.words[i] |= bit
		s.n++
	}
}

func (s *seqs) has(seq int64) bool {
	i := seq / 64
	return seq >= 0 && i < int64(len(s.words)) && s.words[i]&(1<<(seq%64)) != 0
}

func (s *seqs) remove(seq int64) {
	if s.has(seq) {
		s.words[seq/64] &^= 1 << (seq % 64)
		s.n--
	}
}

func (s *seqs) all() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for i, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if !yield(int64(i)*64 + int64(bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// state is which events are the last ones of the live records of a set.
type state struct {
	set       int64
	reference bool
	last      seqs
	// shared holds the keys of URIs that several records have; nil when that
	// is not known.
	shared map[int64]bool
}

// Live returns the last event of each record that is live at a position, in the
// order of these events. At the set's last position, and after it, it reads the
// current state; an earlier one is worked out from the log, which takes a pass
// over it. An event is good until the next one is asked for. One of the log's
// few connections is in use until the sequence ends.
func (l *Log) Live(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return l.living(ctx, set, at, false)
}

// Listed is Live but for records that share a URI in a set in mode reference: of
// these it returns the first, since a Resource List has a URI once.
func (l *Log) Listed(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return l.living(ctx, set, at, true)
}

func (l *Log) living(ctx context.Context, set string, at event.Seq, once bool) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		err := l.read(ctx, func(q querier) error {
			st, err := l.liveNow(ctx, q, set, at)
			if errors.Is(err, errMoved) {
				err = liveThen(ctx, q, st, at)
			}
			if err != nil {
				return err
			}
			return st.list(ctx, q, at, once, yield)
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(nil, err)
		}
	}
}

// liveNow reads the state table in one transaction.
func (l *Log) liveNow(ctx context.Context, q querier, set string, at event.Seq) (*state, error) {
	if c, ok := q.(*sql.Conn); ok && !l.opt.DryRun {
		tx, err := c.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return nil, err
		}
		defer tx.Rollback()
		q = tx
	}
	var now storedSet
	st := &state{shared: map[int64]bool{}}
	rows, err := q.QueryContext(ctx, selectSets+" WHERE name = $1", set)
	if err := scanAll(rows, err, func(rows *sql.Rows) (err error) {
		st.set, now, err = scanSet(rows)
		return err
	}); err != nil {
		return nil, err
	}
	if st.set == 0 {
		return nil, noSet(set)
	}
	st.reference = now.Content == event.Reference
	if at < now.Last {
		return st, errMoved
	}
	rows, err = q.QueryContext(ctx, "SELECT seq FROM state WHERE record > $1 AND record < $2 AND digest IS NOT NULL", st.set<<32, (st.set+1)<<32)
	if err := scanAll(rows, err, func(rows *sql.Rows) error {
		var seq int64
		err := rows.Scan(&seq)
		if err == nil && (seq <= 0 || seq > int64(now.Last)) {
			return fmt.Errorf("set %s: the state table names event %d of %d: run bridge verify", set, seq, now.Last)
		}
		st.last.add(seq)
		return err
	}); err != nil {
		return nil, err
	}
	if st.last.n != now.Live {
		return nil, fmt.Errorf("set %s: %d records are live in the state table, %d were counted: run bridge verify", set, st.last.n, now.Live)
	}
	if st.reference {
		rows, err := q.QueryContext(ctx, "SELECT key FROM loc WHERE set_id = $1 AND n > 1", st.set)
		return st, scanAll(rows, err, func(rows *sql.Rows) error {
			var key int64
			err := rows.Scan(&key)
			st.shared[key] = true
			return err
		})
	}
	return st, nil
}

// liveThen works the state at an earlier position out of the log.
func liveThen(ctx context.Context, q querier, st *state, at event.Seq) error {
	var last []int64 // by ordinal of the record
	if err := eachRow(ctx, q, "e.set_id = $3 AND ", []any{st.set}, event.Range{Upto: at}, nil, func(c columns, sealed []byte) error {
		if _, err := unseal(c, sealed); err != nil {
			return fmt.Errorf("event %d in the log: %w: run bridge verify, and restore a backup", c.seq, err)
		}
		o := ordinal(c.record)
		if n := int64(len(last)); n <= o {
			last = append(last, make([]int64, o+1-n)...)
		}
		switch event.Kind(c.kind) {
		case event.Created, event.Updated:
			last[o] = c.seq
		case event.Deleted:
			last[o] = 0
		}
		return nil
	}); err != nil {
		return err
	}
	st.shared = nil
	for _, seq := range last {
		if seq != 0 {
			st.last.add(seq)
		}
	}
	return nil
}

// list yields the events of the state in the order of the log, each URI of a set
// in mode reference once if wanted. Events never change, so no transaction is
// needed any more.
func (st *state) list(ctx context.Context, q querier, at event.Seq, once bool, yield func(*event.Event, error) bool) error {
	s, err := newScanner(ctx, q)
	if err != nil {
		return err
	}
	left := st.last.n
	seen := map[int64]bool{} // of the URIs that are shared, or may be
	key := newLocs(st.set).key
	if err := st.visit(ctx, q, at, func(c columns, sealed []byte) error {
		ev, err := s.event(c, sealed)
		if err != nil {
			return err
		}
		left--
		if ev.Set != s.sets[st.set].Name || !ev.Live() {
			return fmt.Errorf("event %d: the state table takes it for the last one of a live record of set %s: run bridge verify", ev.Seq, s.sets[st.set].Name)
		}
		if once && st.reference && ev.Loc != "" {
			if k := key(ev.Loc); st.shared == nil || st.shared[k] {
				if seen[k] {
					return nil
				}
				seen[k] = true
			}
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
// pass, or just these where they are few among the log's.
func (st *state) visit(ctx context.Context, q querier, at event.Seq, do func(c columns, sealed []byte) error) error {
	if st.last.n*8 > int64(at) {
		return eachRow(ctx, q, "", nil, event.Range{Upto: at}, st.last.has, do)
	}
	few := make([]any, 0, lookup)
	var p rowPage
	flush := func() error {
		if len(few) == 0 {
			return nil
		}
		rows, err := q.QueryContext(ctx, "SELECT "+eventColumns+" FROM event e WHERE e.seq IN ("+in(len(few))+") ORDER BY e.seq", few...)
		few = few[:0]
		if err := p.read(rows, err, nil); err != nil {
			return err
		}
		return p.each(do)
	}
	for seq := range st.last.all() {
		if few = append(few, seq); len(few) == lookup {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}
