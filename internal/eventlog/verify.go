package eventlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Finding is something in the log that is not as it must be.
type Finding struct {
	Where string // table and place
	What  string
	Do    string // what an operator can do
}

const (
	doRestore = "restore the data folder from a backup"
	doEpoch   = "put a newer copy of the data folder back, if there is one; else bridge serve and bridge harvest go on in a new epoch, which Destinations take in anew"
	doReset   = "run bridge source reset for the Source, then bridge harvest --full; the log itself is not touched by this"
	doServe   = "start bridge serve, which drops it and makes it anew"
	// maxFindings of one check are reported singly; the others are counted.
	maxFindings = 100
)

// Verify checks the log against itself: each event's checksum, position and time;
// that segments, the state of the records, counters and identifiers follow from the
// events; the checksums of all other rows; and the structure of the database. It
// repairs nothing. The error means that the check could not be done; findings go to
// report.
//
// It takes a pass over everything, and some dozen bytes of memory a record. Others
// may append meanwhile, and no transaction is held for long, which would keep the
// write-ahead log from being checkpointed: events, which never change, are
// read in pages; each table is read in a transaction of its own, after the events
// that were appended before it.
func (l *Log) Verify(ctx context.Context, report func(Finding)) error {
	if l.loss != nil && l.head == nil && !l.loss.Backup {
		report(Finding{"file " + HeadName, l.loss.String(), doEpoch})
	}
	return l.read(ctx, func(q database.Querier) error {
		v := &verifier{ctx: ctx, q: q, server: database.OnServer(l.path), report: report, reported: map[Finding]bool{}, sets: map[int64]*replay{}, sources: map[event.SourceID]int64{}, has: map[event.SourceID]*seqs{}, weights: map[int64]int64{}, ofSet: map[int64]int64{}}
		if c, ok := q.(*sql.Conn); ok && !l.opt.DryRun {
			v.conn = c
		}
		if err := v.run(); !errors.Is(err, errStop) {
			return err
		}
		return nil
	})
}

// checking is one of the checks that Verify makes.
type checking struct {
	where, do string
	run       func() error
}

func (v *verifier) run() error {
	removed, err := readRemoved(v.ctx, reading{v.q})
	if err != nil {
		v.report(Finding{"table removed_set", err.Error(), doRestore})
		return nil
	}
	for i := range removed {
		if r := &removed[i]; r.UnderWay {
			v.report(Finding{"set " + r.Name, "it is being removed, and nothing else was checked", "it goes on when bridge serve, or a command that changes something, is started; then run bridge verify again"})
			return nil
		}
		v.removedEvents += removed[i].Events
	}
	v.removed = removed
	for _, c := range []checking{{"database", doRestore, v.structure}, {"database schema", doRestore, v.schema}} {
		if err := v.inTransaction(c); err != nil {
			return err
		}
	}
	if err := v.inTransaction(slices.Concat(v.whatEventsName(), []checking{{"table host", doRestore, v.readHosts}, {"table derived_set", doRestore, v.readDerivedSets}, {"table former_name", doRestore, v.readFormerNames}, {"table record", doRestore, v.readKeys}, {"table event", doRestore, v.findEnd}})...); err != nil {
		return err
	}
	if err := v.make(checking{"table event", doRestore, v.replay}); err != nil {
		return err
	}
	for _, checks := range [][]checking{
		{{"table event", doRestore, v.endSegments}, {"table sets", doRestore, v.compareSets}},
		{{"table record", doRestore, v.readStates}, {"table presence", doRestore, v.readPresence}, {"table source_records", doRestore, v.readSourceRecords}},
		{{"table loc", doRestore, v.readLocs}},
		{{"table link", doRestore, v.readLinks}},
		{v.waiting("pending", pendingColumns, new(pendingRow))},
		{v.waiting("regressed", regressedColumns, new(regressedRow)), v.waiting("seen_order", orderColumns, new(orderRow)), v.waiting("held_deletion", heldColumns, new(heldRow)),
			{"table seen", doReset, v.readSeen}, {"table schedule", doReset, v.readSchedules}, {"table harvest", doReset, v.readHarvests}, {"table harvest_day", doReset, v.readDays},
			{"table pause", doReset, v.readPauses},
			{"table hub_topic", doServe, v.readHubTopics}, {"table subscription", doServe, v.readSubscriptions}},
		{{"table quarantine", doReset, v.readQuarantine}},
	} {
		// What was appended meanwhile is taken in first.
		catchUp := slices.Concat(v.whatEventsName(), []checking{{"table event", doRestore, v.findEnd}, {"table event", doRestore, v.replay}})
		if err := v.inTransaction(append(catchUp, checks...)...); err != nil {
			return err
		}
	}
	return nil
}

// whatEventsName are the tables that events refer to. When they are read again, only
// their new rows are.
func (v *verifier) whatEventsName() []checking {
	return []checking{{"table epoch", doRestore, v.readEpochs}, {"table sets", doRestore, v.readSets}, {"table source", doRestore, v.readSources}, {"table source", doReset, v.readProgress},
		{"table document", doRestore, v.readDocuments}, {"table record", doRestore, v.readRecords}, {"table segment", doRestore, v.readSegments}}
}

// inTransaction makes checks of one moment of the log.
func (v *verifier) inTransaction(checks ...checking) error {
	if v.conn != nil {
		tx, err := v.conn.BeginTx(v.ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		v.q = tx
		defer func() {
			_ = tx.Rollback() // nothing was written
			v.q = v.conn
		}()
	}
	if err := v.sameSets(); err != nil {
		return err
	}
	for _, c := range checks {
		if err := v.make(c); err != nil {
			return err
		}
	}
	return nil
}

// sameSets returns errStop, and reports why, if a set was removed since the check began: what
// is missing of it is no damage.
func (v *verifier) sameSets() error {
	now, err := readRemoved(v.ctx, reading{v.q})
	if err != nil || len(now) == len(v.removed) {
		return err
	}
	for i := range now {
		if !slices.ContainsFunc(v.removed, func(r RemovedSet) bool { return r.id == now[i].id }) {
			v.report(Finding{"set " + now[i].Name, "it was removed meanwhile, and the rest was not checked", "run bridge verify again"})
		}
	}
	return errStop
}

func (v *verifier) make(c checking) error {
	v.where, v.do, v.count = c.where, c.do, 0
	if err := c.run(); err != nil {
		if v.ctx.Err() != nil {
			return v.ctx.Err()
		}
		if errors.Is(err, errStop) {
			return err
		}
		v.found("", "it could not be read to its end: %v", err)
	}
	if more := v.count - maxFindings; more > 0 {
		v.report(Finding{v.where, fmt.Sprintf("%d more findings of this check", more), v.do})
	}
	return nil
}

// verifier is one Verify under way.
type verifier struct {
	ctx       context.Context
	conn      *sql.Conn // nil where transactions are none of ours
	q         database.Querier
	server    bool // the log is on a server
	report    func(Finding)
	reported  map[Finding]bool // some tables are read again and again
	where, do string           // of the check under way
	count     int

	last, upto int64 // Seq of the last event that was read, and of the last there is
	document   int64 // the last that was read
	epochs     epochs
	removed    []RemovedSet
	// missing counts the Seqs that are not there and were not lost: they must be
	// removedEvents.
	missingSeqs, removedEvents int64
	sets                       map[int64]*replay
	order                      []*replay // in the order of the sets' numbers
	sources                    map[event.SourceID]int64
	documents                  seqs
	has                        map[event.SourceID]*seqs // by ordinal of the record
	weights                    map[int64]int64          // of what documents give as atom:source
	ofSet                      map[int64]int64          // the set of each document's Source
}

// found reports a finding of the check under way.
func (v *verifier) found(place, format string, args ...any) {
	where := v.where
	if place != "" {
		where += ", " + place
	}
	f := Finding{where, fmt.Sprintf(format, args...), v.do}
	if v.reported[f] {
		return
	}
	if v.count++; v.count > maxFindings {
		return
	}
	v.reported[f] = true
	v.report(f)
}

func (v *verifier) each(query string, scan func(*sql.Rows) error, args ...any) error {
	return database.Each(v.ctx, v.q, query, args, scan)
}

// structure is SQLite's own check: pages, indexes, types.
func (v *verifier) structure() error {
	if v.server {
		return nil // a server has its own tools for that: pg_amcheck
	}
	return v.each(fmt.Sprintf("PRAGMA integrity_check(%d)", maxFindings), func(rows *sql.Rows) error {
		var text string
		err := rows.Scan(&text)
		if text != "ok" && err == nil {
			v.found("", "%s", text)
		}
		return err
	})
}

// schema compares the tables with those that the migrations make.
func (v *verifier) schema() error {
	if v.server {
		return nil // any other version was refused when the log was opened
	}
	want, err := ownSchema()
	if err != nil {
		return err
	}
	has, err := schemaOf(v.ctx, v.q)
	if err == nil && !slices.Equal(has, want) {
		v.found("", "the tables are not those that this version of bridge makes")
	}
	return err
}

// ownSchema is the schema of a new log.
var ownSchema = sync.OnceValues(func() ([]string, error) {
	text, err := kind().Schema()
	if err != nil {
		return nil, err
	}
	fresh, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer fresh.Close()
	fresh.SetMaxOpenConns(1)
	if _, err := fresh.Exec(text); err != nil {
		return nil, err
	}
	return schemaOf(context.Background(), fresh)
})

func schemaOf(ctx context.Context, q database.Querier) ([]string, error) {
	return database.All(ctx, reading{q}.Each, "SELECT type || ' ' || name || ' ' || tbl_name || ' ' || coalesce(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%' ORDER BY type, name", nil, database.Column[string])
}

func (v *verifier) readEpochs() error {
	v.epochs = nil
	return v.each(selectEpochs, func(rows *sql.Rows) error {
		e, err := scanEpoch(rows)
		if err != nil || e.N != int64(len(v.epochs))+2 {
			v.found(fmt.Sprintf("epoch %d", e.N), "it is not what was stored, or does not follow the one before")
		}
		v.epochs = append(v.epochs, e)
		return nil
	})
}

func (v *verifier) readSets() error {
	return v.each(selectSets+" ORDER BY id", func(rows *sql.Rows) error {
		var s setRow
		err := s.scan(rows)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return err
		}
		if err != nil {
			v.found(fmt.Sprintf("set %d", s.id), "%v", err)
		}
		if began := slices.IndexFunc(v.epochs, func(e Epoch) bool { return e.Started == s.Created }); began < 0 && s.base != 0 || began >= 0 && s.base != int64(v.epochs[began].After) {
			v.found(fmt.Sprintf("set %d", s.id), "its events up to %d are said to be of an earlier epoch, which is not so", s.base)
		}
		if v.sets[s.id] == nil {
			r := new(replay)
			v.sets[s.id], v.order = r, append(v.order, r)
		}
		v.sets[s.id].set = s
		return nil
	})
}

func (v *verifier) readSources() error {
	return v.each(selectConfigs, func(rows *sql.Rows) error {
		var h sourceConfig
		err := h.scan(rows)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return err
		}
		if err != nil || v.sets[h.set] == nil {
			v.found(fmt.Sprintf("Source %d", h.id), "its kind, URL, rank or set is not what was stored")
		}
		v.sources[h.id] = h.set
		return nil
	})
}

func (v *verifier) readProgress() error {
	return v.each("SELECT src.id, "+progressColumns+" FROM source src", func(rows *sql.Rows) error {
		var id event.SourceID
		var p progressRow
		err := rows.Scan(append([]any{&id}, p.columns()...)...)
		if err == nil && p.check(id) != nil {
			v.found(fmt.Sprintf("Source %d", id), "cursor, mark, memory or gap is not what was stored")
		}
		return err
	})
}

func (v *verifier) readDocuments() error {
	return v.each(selectDocuments+" WHERE id > $1 ORDER BY id", func(rows *sql.Rows) error {
		var d documentRow
		err := d.scan(rows)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return err
		}
		if _, ok := v.sources[d.source]; !ok || err != nil {
			v.found(fmt.Sprintf("document %d", d.id), "it is not what was stored, or its Source %d is missing", d.source)
		}
		v.weights[d.id], v.ofSet[d.id], v.document = documentWeight(&d.Document), v.sources[d.source], d.id
		v.documents.add(d.id)
		return nil
	}, v.document)
}

// readRecords reads the records that are new since it was called last.
func (v *verifier) readRecords() error {
	for _, r := range v.order {
		if err := v.each("SELECT id, identifier FROM record WHERE id > $1 AND id < $2 ORDER BY id", func(rows *sql.Rows) error {
			var id int64
			var identifier string
			if err := rows.Scan(&id, &identifier); err != nil {
				return err
			}
			o := ordinal(id)
			if o != int64(len(r.keys))+1 {
				v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o), "it follows record %d", len(r.keys))
			}
			if o > int64(len(r.keys)) && o <= r.set.records {
				r.know(o, event.KeyBits(identifier))
			}
			return nil
		}, r.set.id<<32|int64(len(r.keys)), (r.set.id+1)<<32); err != nil {
			return err
		}
		if int64(len(r.keys)) != r.set.records {
			v.found("set "+r.set.Name, "it has %d records, %d were given out", len(r.keys), r.set.records)
		}
	}
	if v.last > 0 {
		return nil
	}
	return v.each("SELECT id FROM record WHERE id >> 32 NOT IN (SELECT id FROM sets)", func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		v.found(fmt.Sprintf("record %d", id), "there is no set %d", id>>32)
		return err
	})
}

// readKeys checks that each record is found under its key.
func (v *verifier) readKeys() error {
	named := map[*replay]*seqs{} // by ordinal
	for _, r := range v.order {
		named[r] = new(seqs)
	}
	err := v.each("SELECT key, record FROM any_key", func(rows *sql.Rows) error {
		var key, id int64
		if err := rows.Scan(&key, &id); err != nil {
			return err
		}
		r := v.known(id)
		if r == nil {
			return nil
		}
		o := ordinal(id)
		if key != r.keys[o-1] {
			v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o), "key %d and its identifier do not belong together", key)
		}
		if named[r].has(o) {
			v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o), "it has its key twice")
		}
		named[r].add(o)
		return nil
	})
	for _, r := range v.order {
		if n := named[r].n; n != r.set.records {
			v.found("set "+r.set.Name, "it has %d keys for %d records", n, r.set.records)
		}
	}
	return err
}

// known returns the set of a record that a row names, reporting one that is not
// there.
func (v *verifier) known(record int64) *replay {
	r := v.sets[record>>32]
	if o := ordinal(record); r == nil || o < 1 || o > int64(len(r.keys)) {
		v.found(fmt.Sprintf("record %d of set %d", ordinal(record), record>>32), "there is no such record")
		return nil
	}
	return r
}

// names checks what a row of harvest state refers to.
func (v *verifier) names(place string, source event.SourceID, record int64, sound bool) {
	if r := v.known(record); r != nil && v.sources[source] != r.set.id {
		v.found(place, "Source %d does not feed set %s", source, r.set.Name)
	}
	if !sound {
		v.found(place, "it is not what was stored")
	}
}

// observed checks an observation that is kept.
func (v *verifier) observed(place string, raw []byte) {
	var o body
	if err := readBody(raw, &o); err != nil {
		v.found(place, "its observation cannot be read: %v", err)
	} else if o.document != 0 && !v.documents.has(o.document) {
		v.found(place, "document %d is missing", o.document)
	}
}

func (v *verifier) readStates() error {
	if err := v.each("SELECT id, seq, digest, source_state FROM record", func(rows *sql.Rows) error {
		var record, seq int64
		var digest sql.NullInt64
		var raw sql.RawBytes
		if err := rows.Scan(&record, &seq, &digest, &raw); err != nil {
			return err
		}
		r := v.known(record)
		if r == nil {
			return nil
		}
		o := ordinal(record) - 1
		place := fmt.Sprintf("set %s, record %d", r.set.Name, o+1)
		if r.last[o] != 0 {
			r.missing--
		}
		live := r.live.has(o)
		if seq != r.last[o] || digest.Valid != live || live && digest.Int64 != r.digests[o] {
			v.found(place, "its state is not what the events make of it: last event %d, the log has %d", seq, r.last[o])
		}
		if raw == nil && seq == 0 {
			return nil
		}
		s, err := readSourceState(raw, nil, record)
		v.names(place, s.source, record, err == nil)
		v.holds(&s, record)
		if err == nil && live && !s.alive {
			v.found(place, "it is live, and Source %d, its authority, does not have it", s.source)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, r := range v.order {
		if r.missing > 0 {
			v.found("set "+r.set.Name, "%d records have events and no state", r.missing)
		}
	}
	return nil
}

func (v *verifier) readPresence() error {
	return v.each("SELECT record, source, source_state, suppressed FROM presence", func(rows *sql.Rows) error {
		var record int64
		var source event.SourceID
		var raw, suppressed []byte
		if err := rows.Scan(&record, &source, &raw, &suppressed); err != nil {
			return err
		}
		place := fmt.Sprintf("Source %d, record %d", source, ordinal(record))
		s, err := readSourceState(raw, suppressed, record)
		v.names(place, source, record, err == nil && s.source == source)
		v.holds(&s, record)
		if suppressed != nil {
			v.observed(place, suppressed)
		}
		if r := v.sets[record>>32]; err == nil && s.alive && (suppressed == nil || r != nil && !r.live.has(ordinal(record)-1)) {
			v.found(place, "the Source has the record, and the record is not live or its state at the Source is missing")
		}
		return nil
	})
}

// holds collects which records a Source has.
func (v *verifier) holds(s *sourceState, record int64) {
	if !s.alive {
		return
	}
	if v.has[s.source] == nil {
		v.has[s.source] = new(seqs)
	}
	v.has[s.source].add(ordinal(record))
}

func (v *verifier) readSourceRecords() error {
	if err := v.each("SELECT source, page, bits FROM source_records", func(rows *sql.Rows) error {
		var at hasPage
		var sealed sql.RawBytes
		if err := rows.Scan(&at.source, &at.n, &sealed); err != nil {
			return err
		}
		place := fmt.Sprintf("Source %d, page %d", at.source, at.n)
		var p page
		if err := p.unseal(at, sealed); err != nil {
			v.found(place, "%v", err)
			return nil
		}
		has := v.has[at.source]
		if has == nil {
			has = new(seqs)
		}
		for o := at.n * pageBits; o < (at.n+1)*pageBits; o++ {
			there := p[o%pageBits/8]&(1<<(o%8)) != 0
			if there != has.has(o) {
				v.found(place, "its bit for record %d is %v, and the stored states differ", o, there)
			}
			has.remove(o)
		}
		return nil
	}); err != nil {
		return err
	}
	for source, has := range v.has {
		if has.n > 0 {
			v.found(fmt.Sprintf("Source %d", source), "%d records that it has are missing", has.n)
		}
	}
	return nil
}

func (v *verifier) readLocs() error {
	others := map[int64]int64{} // by key, so far as they were not found there
	if err := v.each("SELECT key, record FROM loc_other", func(rows *sql.Rows) error {
		var key, record int64
		err := rows.Scan(&key, &record)
		if err == nil {
			others[key]++
			v.located(key, record, false)
		}
		return err
	}); err != nil {
		return err
	}
	if err := v.each("SELECT key, owner, others FROM any_loc", func(rows *sql.Rows) error {
		var key, owner, n int64
		err := rows.Scan(&key, &owner, &n)
		if err == nil {
			v.located(key, owner, true)
			if n != others[key] {
				v.found(fmt.Sprintf("key %d", key), "%d records share that URI, %d were counted", others[key], n)
			}
			delete(others, key)
		}
		return err
	}); err != nil {
		return err
	}
	if len(others) > 0 {
		v.found("", "%d URIs that records share have no owner", len(others))
	}
	for _, r := range v.order {
		if r.located != 0 {
			v.found("set "+r.set.Name, "%d live records have no URI", r.located)
		}
	}
	return nil
}

// located checks that a record is at a URI, and whether it owns that.
func (v *verifier) located(key, record int64, owns bool) {
	r := v.known(record)
	if r == nil {
		return
	}
	o := ordinal(record) - 1
	if r.locs == nil || r.locs[o] != key || r.listed.has(o) != owns {
		v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o+1), "it is not at the URI that its last event has, or is there twice, or it is the wrong one that lists have")
		return
	}
	r.locs[o] = 0 // it has been found
	r.located--
}

func (v *verifier) readLinks() error {
	if err := v.each("SELECT key, record FROM link", func(rows *sql.Rows) error {
		var key, record int64
		if err := rows.Scan(&key, &record); err != nil {
			return err
		}
		r := v.known(record)
		if r == nil {
			return nil
		}
		o := ordinal(record) - 1
		at, ok := slices.BinarySearch(r.links[o], key)
		if !ok {
			v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o+1), "its last event has no such link")
			return nil
		}
		r.links[o] = slices.Delete(r.links[o], at, at+1)
		return nil
	}); err != nil {
		return err
	}
	for _, r := range v.order {
		for o, keys := range r.links {
			if len(keys) > 0 {
				v.found(fmt.Sprintf("set %s, record %d", r.set.Name, o+1), "links of its last event are missing")
			}
		}
	}
	return nil
}

// waiting returns the check of one of these tables. row is scanned again and again.
func (v *verifier) waiting(table, columns string, row waitingRow) checking {
	return checking{"table " + table, doReset, func() error {
		return v.each("SELECT "+columns+" FROM "+table, func(rows *sql.Rows) error {
			err := row.scan(rows)
			if err != nil && !errors.Is(err, ErrDamaged) {
				return err
			}
			k := row.key()
			place := fmt.Sprintf("Source %d, record %d", k.source, ordinal(k.record))
			v.names(place, k.source, k.record, err == nil)
			if raw := row.stored(); raw != nil {
				v.observed(place, raw)
			}
			return nil
		})
	}}
}

// sound reports a row that is not what was stored. err is that of its scan.
func (v *verifier) sound(err error, place, format string, args ...any) error {
	if errors.Is(err, ErrDamaged) {
		v.found(place, format, args...)
		return nil
	}
	return err
}

func (v *verifier) readHosts() error {
	return v.each(selectHosts, func(rows *sql.Rows) error {
		name, _, err := scanHost(rows)
		return v.sound(err, fmt.Sprintf("host %q", name), "it is not what was stored")
	})
}

func (v *verifier) readDerivedSets() error {
	return v.each(selectDerived, func(rows *sql.Rows) error {
		var s DerivedSet
		err := s.scan(rows)
		return v.sound(err, fmt.Sprintf("derived set %q", s.Name), "it is not what was stored")
	})
}

func (v *verifier) readFormerNames() error {
	return v.each(selectFormerNames, func(rows *sql.Rows) error {
		var f formerRow
		err := f.scan(rows)
		return v.sound(err, fmt.Sprintf("former name %q", f.Name), "it is not what was stored, or its set is missing")
	})
}

func (v *verifier) readSchedules() error {
	return v.each("SELECT source, "+scheduleColumns+" FROM schedule sch", func(rows *sql.Rows) error {
		var source event.SourceID
		var s scheduleRow
		if err := rows.Scan(append([]any{&source}, s.columns()...)...); err != nil {
			return err
		}
		if _, known := v.sources[source]; !known {
			v.found(fmt.Sprintf("Source %d", source), "it is missing")
		} else if _, err := s.schedule(source); err != nil {
			v.found(fmt.Sprintf("Source %d", source), "it is not what was stored")
		}
		return nil
	})
}

func (v *verifier) readPauses() error {
	return v.each(selectPauses, func(rows *sql.Rows) error {
		var p Pause
		source, err := p.scan(rows)
		if _, known := v.sources[source]; !known || errors.Is(err, ErrDamaged) {
			v.found(fmt.Sprintf("Source %d", source), "it is not what was stored, or the Source is missing")
			return nil
		}
		return err
	})
}

func (v *verifier) readHubTopics() error {
	return v.each(selectHubTopics, func(rows *sql.Rows) error {
		var h HubTopic
		err := h.scan(rows)
		return v.sound(err, "hub "+h.Hub, "its row for %s is damaged", h.Topic)
	})
}

func (v *verifier) readSubscriptions() error {
	return v.each(selectSubscriptions, func(rows *sql.Rows) error {
		var s Subscription
		err := s.scan(rows)
		return v.sound(err, fmt.Sprintf("Source %d", s.Source), "its subscription at %s is not what was stored", s.Hub)
	})
}

func (v *verifier) readHarvests() error {
	return v.each("SELECT "+harvestColumns+" FROM harvest", func(rows *sql.Rows) error {
		var h harvestRow
		err := h.scan(rows)
		if _, known := v.sources[h.source]; errors.Is(err, ErrDamaged) || err == nil && !known {
			v.found(fmt.Sprintf("Source %d, harvest %d", h.source, h.Number), "it is not what was stored, or the Source is missing")
			return nil
		}
		return err
	})
}

func (v *verifier) readDays() error {
	return v.each("SELECT "+dayColumns+" FROM harvest_day", func(rows *sql.Rows) error {
		var d dayRow
		err := d.scan(rows)
		if _, known := v.sources[d.source]; errors.Is(err, ErrDamaged) || err == nil && !known {
			v.found(fmt.Sprintf("Source %d, day %d", d.source, d.day), "it is not what was stored, or the Source is missing")
			return nil
		}
		return err
	})
}

func (v *verifier) readSeen() error {
	sums := map[int64]int64{}
	if err := v.each("SELECT source, page, bits FROM seen", func(rows *sql.Rows) error {
		var source, n int64
		var sealed sql.RawBytes
		if err := rows.Scan(&source, &n, &sealed); err != nil {
			return err
		}
		_, known := v.sources[event.SourceID(source)]
		if bits, err := unseal(columns{record: n, set: source}, sealed); err != nil || len(bits) != 2*len(page{}) || !known {
			v.found(fmt.Sprintf("Source %d, page %d", source, n), "it is not what was stored, or the Source is missing")
			return nil
		}
		sums[source] += int64(sumOfSealed(sealed))
		return nil
	}); err != nil {
		return err
	}
	return v.each("SELECT id, seen_sum FROM source WHERE seen_sum IS NOT NULL", func(rows *sql.Rows) error {
		var source, sum int64
		err := rows.Scan(&source, &sum)
		if err == nil && sum != sums[source] {
			v.found(fmt.Sprintf("Source %d", source), "pages are missing, or are not those that were stored last")
		}
		return err
	})
}

func (v *verifier) readQuarantine() error {
	return v.each("SELECT "+quarantineColumns+", q.input, q.digest, q.sum FROM quarantine q", func(rows *sql.Rows) error {
		var input, digest []byte
		var sum int64
		q, err := scanQuarantined(rows, &input, &digest, &sum)
		if err != nil {
			return err
		}
		q.Input = input
		if want := sha256.Sum256(input); !bytes.Equal(digest, want[:]) {
			v.found(fmt.Sprintf("number %d", q.ID), "its hash is not that of its input")
		} else if _, known := v.sources[q.Source]; !known || sum != quarantineSum(&q) {
			v.found(fmt.Sprintf("number %d", q.ID), "it is not what was stored, or its Source %d is missing", q.Source)
		}
		return nil
	})
}
