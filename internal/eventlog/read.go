package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// protocolOf names the protocol of each kind of Source.
func protocolOf(kind string) string {
	switch kind {
	case "atompmh":
		return "atom-pmh"
	case "oaipmh":
		return "oai-pmh"
	case Target:
		return "sip"
	}
	return kind
}

// scanner turns rows of table event into events. It keeps the few documents
// that neighbouring events share.
type scanner struct {
	q    database.Querier
	ctx  context.Context
	sets map[int64]event.Set
	docs map[int64]event.Origin // what events of a document have in common
	v    body
	ev   event.Event
	// Of a scan of all sets: where events were lost, and the sets whose events are not there
	// any more.
	lost    epochs
	removed []RemovedSet
}

// newScanner returns a scanner of the events of a set, or of all when set is "". There may be
// thousands of sets, and few events to read of one.
func newScanner(ctx context.Context, q database.Querier, set string) (*scanner, error) {
	s := &scanner{q: q, ctx: ctx, sets: map[int64]event.Set{}, docs: map[int64]event.Origin{}}
	if set != "" {
		return s, s.readSets(" WHERE name = $1", set)
	}
	var err error
	if s.lost, err = readEpochs(ctx, reading{q}); err != nil {
		return nil, err
	}
	if s.removed, err = readRemoved(ctx, reading{q}); err != nil {
		return nil, err
	}
	return s, s.readSets("")
}

func (s *scanner) readSets(where string, args ...any) error {
	return database.Each(s.ctx, s.q, selectSets+where, args, func(rows *sql.Rows) error {
		var set setRow
		err := set.scan(rows)
		s.sets[set.id] = set.Set
		return err
	})
}

// event returns the event of a row. It is good until the next one.
func (s *scanner) event(c columns, sealed []byte) (*event.Event, error) {
	if err := s.decode(c, sealed); err != nil {
		return nil, fmt.Errorf("event %d in the log: %w: run bridge verify, and restore a backup", c.seq, err)
	}
	return &s.ev, nil
}

func (s *scanner) scan(rows *sql.Rows) (*event.Event, error) {
	var c columns
	sealed, err := c.scan(rows)
	if err != nil {
		return nil, err
	}
	return s.event(c, sealed)
}

// eventPage is how many rows of table event one statement reads.
const eventPage = 500

// eachRow calls do for the rows of table event in a range, in their order: those of a
// set, or of all when set is 0. It reads page by page, and a page to its end before it
// passes on any of it: however long do takes, it holds no read transaction, which would
// keep the write-ahead log from being checkpointed.
func eachRow(ctx context.Context, q database.Querier, set int64, r event.Range, wanted func(seq int64) bool, do func(c columns, sealed []byte) error) error {
	r.After, r.Upto = max(r.After, 0), min(r.Upto, maxSeq) // no more bits than an id has for it
	var p rowPage
	for set != 0 {
		if err := p.read(ctx, q, selectOfSet, []any{eventID(set, r.After), eventID(set, r.Upto)}, wanted); err != nil {
			return err
		}
		if err := p.each(do); err != nil || p.rows < eventPage {
			return err
		}
		r.After = p.last
	}
	for r.After < r.Upto {
		after := r.After
		// Nearly every Seq of the log is there, in some set.
		if err := p.read(ctx, q, selectOfAll, []any{int64(r.After), int64(min(r.After+eventPage, r.Upto))}, wanted); err != nil {
			return err
		}
		if err := p.each(do); err != nil {
			return err
		}
		if r.After = p.last; p.rows == 0 { // the log ends, or events have been lost
			next, err := firstAfter(ctx, q, 0, after)
			if err != nil || next == 0 {
				return err
			}
			r.After = seqOf(next) - 1
		}
	}
	return nil
}

var (
	selectOfSet = fmt.Sprintf("SELECT %s FROM event WHERE id > $1 AND id <= $2 ORDER BY id LIMIT %d", eventColumns, eventPage)
	selectOfAll = fmt.Sprintf(`SELECT e.id, e.record, e.kind, e.observed, e.body FROM sets s CROSS JOIN event e WHERE e.id > s.id << %d | $1 AND e.id <= s.id << %[1]d | $2`, seqBits)
	selectFirst = fmt.Sprintf("SELECT (SELECT min(e.id) FROM event e WHERE e.id > s.id << %d | $1 AND e.id < s.id + 1 << %[1]d) FROM sets s WHERE s.id = $2 OR $2 = 0", seqBits)
	selectUpto  = fmt.Sprintf("SELECT (SELECT max(e.id) FROM event e WHERE e.id > s.id << %d AND e.id <= s.id << %[1]d | $1) FROM sets s UNION ALL SELECT max(id << %[1]d | last_seq) FROM removed_set WHERE last_seq BETWEEN 1 AND $1 GROUP BY id", seqBits)
)

// firstAfter returns the id of the first event after a place in the log, of a set or of
// all when set is 0; 0 when there is none.
func firstAfter(ctx context.Context, q database.Querier, set int64, after event.Seq) (first int64, err error) {
	return first, database.Each(ctx, q, selectFirst, []any{int64(min(max(after, 0), maxSeq)), set}, func(rows *sql.Rows) error {
		var id sql.NullInt64
		err := rows.Scan(&id)
		if id.Valid && (first == 0 || seqOf(id.Int64) < seqOf(first)) {
			first = id.Int64
		}
		return err
	})
}

// lastUpto returns the id of the last event of all sets up to a place in the log; 0 when
// there is none.
func lastUpto(ctx context.Context, q database.Querier, upto event.Seq) (last int64, err error) {
	return last, database.Each(ctx, q, selectUpto, []any{int64(min(upto, maxSeq))}, func(rows *sql.Rows) error {
		var id sql.NullInt64
		err := rows.Scan(&id)
		if id.Valid && seqOf(id.Int64) > seqOf(last) {
			last = id.Int64
		}
		return err
	})
}

// rowPage are some rows of table event, in the order of the log.
type rowPage struct {
	rows  int       // all that were read
	last  event.Seq // of the last of them
	kept  []keptRow
	bytes []byte
}

// keptRow is a row whose body is a range of the page's bytes.
type keptRow struct {
	columns
	from, to int
}

// read reads the rows of a query and keeps those that are wanted. Rows of several sets are
// sorted here: SQLite would write a page with long bodies to a file, and a log is read on
// a full disk too.
func (p *rowPage) read(ctx context.Context, q database.Querier, query string, args []any, wanted func(seq int64) bool) error {
	*p = rowPage{kept: p.kept[:0], bytes: p.bytes[:0]}
	if err := database.Each(ctx, q, query, args, func(rows *sql.Rows) error {
		var c columns
		sealed, err := c.scan(rows)
		if err != nil {
			return err
		}
		p.rows, p.last = p.rows+1, max(p.last, event.Seq(c.seq))
		if wanted == nil || wanted(c.seq) {
			p.kept = append(p.kept, keptRow{c, len(p.bytes), len(p.bytes) + len(sealed)})
			p.bytes = append(p.bytes, sealed...)
		}
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(p.kept, func(a, b keptRow) int { return cmp.Compare(a.seq, b.seq) })
	return nil
}

func (p *rowPage) each(do func(c columns, sealed []byte) error) error {
	for _, row := range p.kept {
		if err := do(row.columns, p.bytes[row.from:row.to]); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) decode(c columns, sealed []byte) error {
	raw, err := unseal(c, sealed)
	if err != nil {
		return err
	}
	if err := readBody(raw, &s.v); err != nil {
		return err
	}
	if _, ok := s.sets[c.set]; !ok { // it was made since
		if err := s.readSets(" WHERE id = $1", c.set); err != nil {
			return err
		}
	}
	origin, ok := s.docs[s.v.document]
	if !ok {
		d, src, err := readDocument(s.ctx, s.q, s.v.document)
		if err != nil {
			return err
		}
		origin = event.Origin{Protocol: protocolOf(src.kind), Source: src.url, Document: d.URL, FeedID: d.FeedID, FeedTitle: d.FeedTitle, FeedUpdated: d.FeedUpdated, Feed: d.Feed}
		if len(s.docs) > 100 {
			clear(s.docs)
		}
		s.docs[s.v.document] = origin
	}
	o := &s.v.obs
	origin.SourceIdentifier, origin.Reason = o.SourceIdentifier, s.v.reason
	if o.Deleted {
		o.Representations = o.Representations[:0] // their names alone are kept
	}
	s.ev = event.Event{
		Seq: event.Seq(c.seq), Set: s.sets[c.set].Name, Record: o.Record, Kind: event.Kind(c.kind), Observed: event.Micros(c.observed),
		Modified: o.Modified, CopyModified: o.CopyModified, Title: o.Title, Categories: o.Categories, Details: o.Details, Representations: o.Representations, Preferred: o.Preferred, Via: viaOf(o, origin.Protocol), Links: o.Links,
		Loc: o.Loc, ContentBits: o.ContentBits, Gone: s.v.gone, Arrived: s.v.arrived, Unlisted: s.v.unlisted, History: s.v.history, Again: s.v.before != 0,
		Origin: origin,
	}
	return nil
}

// viaOf returns the link to the original: the inherited via, else the preferred
// representation at the Source. In OAI-PMH the URL answers a document that contains the
// record, so the record's hash and length are not those of the answer.
func viaOf(o *event.Observation, protocol string) event.Link {
	if o.Via.Href != "" || o.Preferred < 0 || o.Preferred >= len(o.Representations) {
		return o.Via
	}
	r := &o.Representations[o.Preferred]
	if protocol == protocolOf("oaipmh") {
		return event.Link{Href: r.Href, Type: r.Type, Length: event.NoLength, Modified: o.Modified}
	}
	return event.Link{Href: r.Href, Type: r.Type, Length: r.Length, Hash: r.Hash, Modified: o.Modified}
}

// errStop ends a scan because nobody wants more.
var errStop = errors.New("stop")

// Events returns the events of a set in a range, in the order of the log; of
// all sets when set is "". The error is fs.ErrNotExist when there is no such set, or it was
// renamed meanwhile. An event is good until the next one is asked for. One of the log's few
// connections is in use until the sequence ends.
func (l *Log) Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		err := l.read(ctx, func(q database.Querier) error {
			s, err := newScanner(ctx, q, set)
			if err != nil {
				return err
			}
			id := s.idOf(set)
			if set != "" && id == 0 { // it was renamed or removed: it has not ended here
				return noSet(set)
			}
			last := max(r.After, 0)
			if err := eachRow(ctx, q, id, r, nil, func(c columns, sealed []byte) error {
				ev, err := s.event(c, sealed)
				if err == nil && s.before(set) > last {
					err = lost(last, ev.Seq)
				}
				if err != nil {
					return err
				}
				last = ev.Seq
				if !yield(ev, nil) {
					return errStop
				}
				return nil
			}); err != nil {
				return err
			}
			return s.ended(set, id, last, r.Upto)
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(nil, err)
		}
	}
}

// before returns the position of the previous event of the set, or of the log, by the
// event that was just read. No event may be missing between them, so an event that an
// index no longer leads to is not passed over silently.
func (s *scanner) before(set string) event.Seq {
	switch {
	case set == "":
		return s.beforeInLog(s.ev.Seq)
	case s.v.back == 0:
		return 0
	}
	return s.ev.Seq - event.Seq(s.v.back)
}

// ended checks that the last event that was read is the last in the range.
func (s *scanner) ended(set string, id int64, last, upto event.Seq) error {
	end := s.sets[id].Last
	if set == "" {
		for _, other := range s.sets {
			end = max(end, other.Last)
		}
	}
	if upto >= end {
		if last < end {
			return lost(last, end)
		}
		return nil
	}
	first, err := firstAfter(s.ctx, s.q, id, upto)
	if err != nil {
		return err
	}
	next := false
	if err := database.Each(s.ctx, s.q, "SELECT "+eventColumns+" FROM event WHERE id = $1", []any{first}, func(rows *sql.Rows) error {
		ev, err := s.scan(rows)
		next = true
		if err == nil && s.before(set) > last {
			err = lost(last, ev.Seq)
		}
		return err
	}); err != nil || next {
		return err
	}
	return lost(upto, end)
}

func lost(after, next event.Seq) error {
	return fmt.Errorf("events of the log are missing between %d and %d: %w: run bridge verify, and restore a backup", after, next, ErrDamaged)
}

func (s *scanner) idOf(name string) int64 {
	for id, n := range s.sets {
		if n.Name == name {
			return id
		}
	}
	return 0
}

// Event returns one event; fs.ErrNotExist when the log has none at that place.
func (l *Log) Event(ctx context.Context, seq event.Seq) (*event.Event, error) {
	for ev, err := range l.Events(ctx, "", event.Range{After: seq - 1, Upto: seq}) {
		return ev, err
	}
	return nil, database.Missing("there is no event %d", seq)
}

const selectCurrent = `SELECT e.id, e.record, e.kind, e.observed, e.body FROM any_key k JOIN record r ON r.id = k.record JOIN event e ON e.id = $2 << 40 | r.seq
WHERE k.key = $1 AND k.record > $2 << 32 AND k.record < $2 + 1 << 32`

// Record returns the last event of the record of a set whose key it is (see
// event.Key); fs.ErrNotExist when the set has never had it.
func (l *Log) Record(ctx context.Context, set, key string) (found *event.Event, err error) {
	bits, ok := event.KeyBitsOf(key)
	if !ok {
		return nil, database.Missing("%q is no key of a record", key)
	}
	err = l.read(ctx, func(q database.Querier) error {
		s, err := newScanner(ctx, q, set)
		if err != nil {
			return err
		}
		id := s.idOf(set)
		return database.Each(ctx, q, selectCurrent, []any{bits, id}, func(rows *sql.Rows) error {
			ev, err := s.scan(rows)
			if err == nil && event.IsKeyOf(key, ev.Record) {
				clone := *ev
				found, s.v = &clone, body{} // what the clone holds is not used again
			}
			return err
		})
	})
	if err == nil && found == nil {
		err = database.Missing("set %s has no record %s", set, key)
	}
	return found, err
}

var selectLogged = "SELECT r.identifier FROM any_key k JOIN record r ON r.id = k.record WHERE r.seq <> 0 AND k.key IN (" + database.Params(lookup) + ") AND k.record > ? AND k.record < ?"

// Logged returns which of these identifiers are of records that a set has events of.
func (l *Log) Logged(ctx context.Context, set string, identifiers []string) (map[string]bool, error) {
	logged, keys := make(map[string]bool, len(identifiers)), make([]int64, len(identifiers))
	for i, identifier := range identifiers {
		keys[i] = event.KeyBits(identifier)
	}
	err := l.read(ctx, func(q database.Querier) error {
		var in int64
		if err := q.QueryRowContext(ctx, "SELECT id FROM sets WHERE name = $1", set).Scan(&in); errors.Is(err, sql.ErrNoRows) {
			return noSet(set)
		} else if err != nil {
			return err
		}
		return each(ctx, ofSet(reading{q}, in), selectLogged, keys, func(rows *sql.Rows) error {
			var identifier string
			err := rows.Scan(&identifier)
			logged[identifier] = true
			return err
		})
	})
	return logged, err
}

// Latest returns which of these events of a set are the last ones of their records; one
// of kind rejected is of no record.
func (l *Log) Latest(ctx context.Context, set string, events []event.Seq) (map[event.Seq]bool, error) {
	latest := make(map[event.Seq]bool, len(events))
	err := l.read(ctx, func(q database.Querier) error {
		var of int64
		if err := q.QueryRowContext(ctx, "SELECT id FROM sets WHERE name = $1", set).Scan(&of); errors.Is(err, sql.ErrNoRows) {
			return noSet(set)
		} else if err != nil {
			return err
		}
		ids := make([]int64, len(events))
		for i, seq := range events {
			ids[i] = eventID(of, seq)
		}
		return each(ctx, reading{q}, selectLast, ids, func(rows *sql.Rows) error {
			var id int64
			var last sql.Null[event.Seq]
			err := rows.Scan(&id, &last)
			switch seq := seqOf(id); {
			case err != nil:
				return err
			case !last.Valid:
				return fmt.Errorf("the record of event %d is missing: %w: run bridge verify", seq, ErrDamaged)
			case last.V == seq:
				latest[seq] = true
			}
			return nil
		})
	})
	return latest, err
}

var selectLast = "SELECT e.id, r.seq FROM event e LEFT JOIN record r ON r.id = e.record WHERE e.record <> 0 AND e.id IN (" + database.Params(lookup) + ")"

// LastSeq returns the Seq of the last event of all sets, 0 when there is none.
func (l *Log) LastSeq(ctx context.Context) (seq event.Seq, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		id, err := lastUpto(ctx, q, maxSeq)
		seq = seqOf(id)
		return err
	})
	return seq, err
}

const (
	presenceColumns = `SELECT r.id, r.identifier, r.source_state, p.source_state, p.suppressed, EXISTS (SELECT 1 FROM pending w WHERE w.source = src.id AND w.record = r.id) FROM source src`
	ofTheSource     = "LEFT JOIN presence p ON p.record = r.id AND p.source = src.id WHERE src.id = $2"
	// selectPresenceOf finds the record by its key, and selectHolding by its number.
	selectPresenceOf = presenceColumns + " JOIN any_key k ON k.key = $1 AND k.record > src.set_id << 32 AND k.record < (src.set_id + 1) << 32 JOIN record r ON r.id = k.record " + ofTheSource
	selectHolding    = presenceColumns + " JOIN record r ON r.id = $1 AND r.id >> 32 = src.set_id " + ofTheSource
)

// Presence returns what a Source has of the record of its set with that
// identifier, whichever Source is its authority.
func (l *Log) Presence(ctx context.Context, source event.SourceID, identifier string) (holds event.Presence, err error) {
	err = l.Each(ctx, selectPresenceOf, []any{event.KeyBits(identifier), int64(source)}, scanHolding(&holds, source, identifier))
	return holds, err
}

// Presence is that of the Log, with what the transaction has changed.
func (tx *Tx) Presence(ctx context.Context, source event.SourceID, identifier string) (holds event.Presence, err error) {
	scan := scanHolding(&holds, source, identifier)
	err = tx.Each(ctx, selectPresenceOf, []any{event.KeyBits(identifier), int64(source)}, scan)
	tx.l.late.named(event.KeyBits(identifier), func(k recordKey) {
		if err == nil {
			err = tx.Each(ctx, selectHolding, []any{k.record, int64(source)}, scan)
		}
	})
	return holds, err
}

// scanHolding sets what a Source has of the record with that identifier.
func scanHolding(holds *event.Presence, source event.SourceID, identifier string) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var id int64
		var name string
		var first, other, suppressed []byte
		var pending bool
		if err := rows.Scan(&id, &name, &first, &other, &suppressed, &pending); err != nil || name != identifier {
			return err
		}
		if pending {
			*holds = event.Present
			return nil
		}
		for _, stored := range [][2][]byte{{first, nil}, {other, suppressed}} {
			if stored[0] == nil {
				continue
			}
			s, err := readSourceState(stored[0], stored[1], id)
			switch {
			case err != nil:
				return fmt.Errorf("the state at Source %d of record %q: %w: run bridge verify", source, identifier, err)
			case s.source != source:
			case s.alive:
				*holds = event.Present
			default:
				*holds = event.Withdrawn
			}
		}
		return nil
	}
}
