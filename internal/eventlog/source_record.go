package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// SourceRecord is the last report of one Source about a record, and the state of that record in the log.
type SourceRecord struct {
	// Number is the record's, for going on after it; 0 if the log does not have it.
	Number int64
	Record string
	// Seq is that of the record's last event, 0 when it has none. Live: the record exists
	// after it, whichever Source has it.
	Seq  event.Seq
	Live bool
	// Known: the Source has reported something that applies. Alive: by that it has the record.
	Known, Alive bool
	// Authority: the record is published as this Source reports it (A15).
	Authority bool
	// Observation is the report, with its order, place and claim. It has
	// nothing else when the record is not alive, or when only states were asked for.
	Observation event.Observation
	// Pending is why a newer report of the Source waits for its content, "" when
	// nothing does. PendingSince is how long.
	Pending      string
	PendingSince event.Micros
	// Held: the deletion of the record by absence is held (A6).
	Held bool
}

const selectSourceRecords = "SELECT id, identifier, seq, digest, source_state FROM record WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3"

// SourceRecords returns the last reports of a Source about the records of its set, and the state of
// these in the log: of at most limit records after a record number, in the order of their numbers.
// Records that the Source has never reported are among them.
func (l *Log) SourceRecords(ctx context.Context, source event.SourceID, after int64, limit int) ([]SourceRecord, error) {
	return l.sourceRecords(ctx, source, false, func(q database.Querier, set int64, scan func(*sql.Rows) error) error {
		return database.Each(ctx, q, selectSourceRecords, []any{max(after, set<<32), (set + 1) << 32, limit}, scan)
	})
}

// SourceHas is SourceRecords of those records alone that the Source has by its last reports.
// Those of the other Sources of its set, which may be thousands, are not read. With statesOnly
// it leaves the observations out, which need the events.
func (l *Log) SourceHas(ctx context.Context, source event.SourceID, after int64, limit int, statesOnly bool) ([]SourceRecord, error) {
	return l.sourceRecords(ctx, source, statesOnly, func(q database.Querier, set int64, scan func(*sql.Rows) error) error {
		next, err := nextOf(ctx, q, source, set, after, limit)
		if err != nil {
			return err
		}
		return each(ctx, reading{q}, selectRecords, next, scan)
	})
}

// sourceRecords returns the last reports of a Source about the records that read scans.
func (l *Log) sourceRecords(ctx context.Context, source event.SourceID, statesOnly bool, read func(q database.Querier, set int64, scan func(*sql.Rows) error) error) (out []SourceRecord, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		b, err := readOnlyBatch(ctx, q, source)
		if err != nil {
			return err
		}
		var all []*record
		if err := read(q, b.set.id, func(rows *sql.Rows) error {
			r := &record{}
			var digest sql.NullInt64
			var state sql.RawBytes
			if err := rows.Scan(&r.id, &r.identifier, &r.seq, &digest, &state); err != nil {
				return err
			}
			all = append(all, r)
			if state == nil && r.seq == 0 {
				return nil // seen, quarantined or pending
			}
			s, err := readSourceState(state, nil, r.id)
			if err != nil {
				return fmt.Errorf("state of record %q: %w: run bridge verify", r.identifier, err)
			}
			r.live, r.digest = digest.Valid, digest.Int64
			r.sources = append(r.room[:0], s)
			return nil
		}); err != nil {
			return err
		}
		slices.SortFunc(all, func(a, b *record) int { return cmp.Compare(a.id, b.id) })
		if err := b.loadRest(ctx, reading{q}, all); err != nil {
			return err
		}
		out, err = b.said(ctx, q, all, statesOnly)
		return err
	})
	return out, err
}

// SourceRecordsOf returns the same of the records with some identifiers, in their order.
func (l *Log) SourceRecordsOf(ctx context.Context, source event.SourceID, identifiers []string) (out []SourceRecord, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		b, err := readOnlyBatch(ctx, q, source)
		if err != nil {
			return err
		}
		items := make([]*event.Item, len(identifiers))
		b.hashes = make([]hashes, len(identifiers))
		for i, identifier := range identifiers {
			items[i] = &event.Item{Observation: event.Observation{Record: identifier}}
			b.hashes[i].key = event.KeyBits(identifier)
		}
		all, err := b.recordsOf(ctx, reading{q}, items)
		if err != nil {
			return err
		}
		out, err = b.said(ctx, q, all, false)
		return err
	})
	return out, err
}

// readOnlyBatch returns a batch that only looks records up, with what is stored of them for a
// Source: nothing is looked up in a table that has nothing of it.
func readOnlyBatch(ctx context.Context, q database.Querier, source event.SourceID) (*batch, error) {
	src, err := readSource(ctx, q, source)
	if err != nil {
		return nil, err
	}
	b := &batch{source: sourceRow{id: source}}
	b.set.id = src.set
	err = q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM source WHERE set_id = $2 AND id <> $1), EXISTS (SELECT 1 FROM pending WHERE source = $1),
	EXISTS (SELECT 1 FROM held_deletion WHERE source = $1)`, int64(source), src.set).Scan(&b.source.others, &b.source.pending, &b.source.held)
	return b, err
}

// said returns the last reports of the batch's Source about records.
func (b *batch) said(ctx context.Context, q database.Querier, all []*record, statesOnly bool) ([]SourceRecord, error) {
	if !statesOnly {
		var published []*record
		for _, r := range all {
			if s := r.of(b.source.id); s != nil && s.alive && r.live && &r.sources[r.authority] == s {
				published = append(published, r)
			}
		}
		if err := b.loadBodies(ctx, reading{q}, published); err != nil {
			return nil, err
		}
	}
	out := make([]SourceRecord, len(all))
	for i, r := range all {
		w := &out[i]
		*w = SourceRecord{Number: r.id, Record: r.identifier, Seq: r.seq, Live: r.live, Held: r.held != nil}
		if r.pending != nil {
			w.Pending, w.PendingSince = r.pending.reason, r.pending.since
		}
		s := r.of(b.source.id)
		if s == nil {
			continue
		}
		w.Known, w.Alive, w.Authority = true, s.alive, &r.sources[r.authority] == s
		if s.alive && !statesOnly {
			v, err := r.last, error(nil)
			if !w.Authority {
				v, err = s.suppressedBody(r)
			}
			switch {
			case err != nil:
				return nil, err
			case v == nil:
				return nil, r.missingEvent()
			}
			w.Observation = v.obs
			if s.plain { // a change of the stamp alone is not logged
				w.Observation.Modified = s.stamp
			}
		}
		o := &w.Observation
		o.Record, o.Deleted, o.Order, o.Place, o.Claim = r.identifier, !s.alive, s.stamp, s.place, s.claim
	}
	return out, nil
}
