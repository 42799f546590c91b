package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Source is an upstream server of a set, with counts of what waits.
type Source struct {
	ID   event.SourceID
	Set  string
	Name string // in the configuration, "" when it has none there
	Kind string // atompmh, resourcesync, oaipmh, sip or feed; Member; Target
	URL  string
	Rank int
	// Former: it is not configured any more. Nothing new is requested from it, and its
	// last reports stay in force until Forget.
	Former bool
	event.Progress
	Schedule event.Schedule
	// Pending, Held and Quarantined count what waits; Partial are pending ones
	// that are published without some of their representations.
	Pending, Partial, Held, Quarantined int
	// Dropped counts bad inputs that have made room in quarantine for newer ones.
	Dropped int
}

// Member is the kind of a Source that is another set of the log, SIP that of one whose
// clients call us.
const (
	Member = "set"
	SIP    = "sip"
)

// ensureSources gives the configured Sources of a set their ranks. A Source is identified
// by its URL, else by its name. A Source that is a set is identified by its URL alone,
// since positions in the events of one set mean nothing in another set or at a server. A
// set has one Source of kind SIP, whatever its URL: its clients call us.
func (l *Log) ensureSources(ctx context.Context, tx *database.Tx, set int64, config *SetConfig, ended *[]FormerSource) error {
	sources := config.Sources
	stored, err := l.sourceConfigs(ctx, tx, set)
	if err != nil || len(sources) == 0 && !config.Whole {
		return err
	}
	last := len(sources) - 1
	for _, h := range stored {
		if h.kind != Target {
			last = max(last, h.rank)
		}
	}
	left := maps.Clone(stored)
	for i := range sources {
		delete(left, sources[i].URL)
	}
	for rank := range sources {
		c := &sources[rank]
		was, ok := stored[c.URL]
		if !ok && c.Kind != Member {
			for _, h := range left { // of several the one that is configured, else the newest
				same := c.Name != "" && h.name == c.Name
				if c.Kind == SIP {
					same = h.kind == SIP
				}
				if same && h.kind != Member && h.status != forgotten && (was.id == 0 || cmp.Or(cmp.Compare(was.status, h.status), cmp.Compare(h.id, was.id)) > 0) {
					was = h
				}
			}
			delete(left, was.url)
		}
		h := sourceConfig{id: was.id, set: set, name: c.Name, kind: cmp.Or(c.Kind, was.kind), url: c.URL, rank: rank}
		switch {
		case config.KeepOrder && was.id != 0:
			h.rank = was.rank
		case config.KeepOrder && len(stored) > 0:
			last++
			h.rank = last
		}
		if err := l.saveSource(ctx, tx, &h, was); err != nil {
			return err
		}
		c.ID, c.Kind = h.id, h.kind
	}
	for _, h := range stored {
		if h.kind != Target && (config.First == 0 || h.id < config.First) {
			config.First = h.id
		}
	}
	for i := range sources {
		if config.First == 0 || sources[i].ID < config.First {
			config.First = sources[i].ID
		}
	}
	if config.KeepOrder {
		return nil
	}
	// Those that are left and have a rank that is needed go behind all others.
	for _, url := range slices.Sorted(maps.Keys(left)) {
		was := left[url]
		h := was
		if h.rank < len(sources) {
			last++
			h.rank = last
		}
		if config.Whole && h.kind != Target && h.status != forgotten {
			h.status = former
			*ended = append(*ended, FormerSource{config.Name, h.url})
		}
		if err := l.saveSource(ctx, tx, &h, was); err != nil {
			return err
		}
	}
	return nil
}

// EnsureSource makes one Source, or brings its kind and rank up to date; an empty
// kind and a rank below 0 leave the stored ones. A Source that has had the rank so
// far goes behind all others.
func (l *Log) EnsureSource(ctx context.Context, set, kind, url string, rank int) (id event.SourceID, err error) {
	err = l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		of, err := l.findSet(ctx, tx, set)
		if err != nil {
			return err
		}
		if of.id == 0 {
			return noSet(set)
		}
		stored, err := l.sourceConfigs(ctx, tx, of.id)
		if err != nil {
			return err
		}
		if rank < 0 {
			rank = stored[url].rank
		}
		last := rank
		for _, h := range stored {
			last = max(last, h.rank)
		}
		for _, h := range stored {
			if h.rank == rank && h.url != url {
				moved := h
				last++
				moved.rank = last
				if err := l.saveSource(ctx, tx, &moved, h); err != nil {
					return err
				}
			}
		}
		h := sourceConfig{id: stored[url].id, set: of.id, name: stored[url].name, kind: cmp.Or(kind, stored[url].kind), url: url, rank: rank}
		err = l.saveSource(ctx, tx, &h, stored[url])
		id = h.id
		return err
	})
	return id, err
}

// sourceConfigs returns the Sources of a set by their URL.
func (l *Log) sourceConfigs(ctx context.Context, tx *database.Tx, set int64) (map[string]sourceConfig, error) {
	out := map[string]sourceConfig{}
	err := tx.Each(ctx, selectConfigs+" WHERE set_id = $1", []any{set}, func(rows *sql.Rows) error {
		var h sourceConfig
		err := h.scan(rows)
		out[h.url] = h
		return err
	})
	return out, err
}

// saveSource writes a Source unless nothing has changed; one without a number is new and
// gets one. If its kind has changed it is harvested anew: marks, cursors and orders of
// two kinds have nothing in common.
func (l *Log) saveSource(ctx context.Context, tx *database.Tx, h *sourceConfig, was sourceConfig) error {
	switch {
	case *h == was:
		return nil
	case h.id != 0:
		if was.kind != "" && h.kind != was.kind {
			if err := l.keepKind(ctx, tx, &was); err != nil {
				return err
			}
			if err := l.forgetHarvest(ctx, tx, h.id, nil); err != nil {
				return err
			}
		}
		return tx.Exec(ctx, "UPDATE source SET name = $2, kind = $3, url = $4, rank = $5, status = $6, sum = $7 WHERE id = $1",
			int64(h.id), h.name, h.kind, h.url, h.rank, int64(h.status), h.sum())
	}
	return tx.Each(ctx, "INSERT INTO source (id, set_id, name, kind, url, rank, status, sum, progress_sum) VALUES (1 + (SELECT max(n) FROM (SELECT coalesce(max(id), 0) AS n FROM source UNION ALL SELECT coalesce(max(source), 0) FROM removed_set) AS given), $1, $2, $3, $4, $5, $6, $7, $8) RETURNING id",
		[]any{h.set, h.name, h.kind, h.url, h.rank, int64(h.status), h.sum(), progressSum(new(event.Progress))}, func(rows *sql.Rows) error { return rows.Scan(&h.id) })
}

// Forget ends a Source: it is no longer listed, and everything of it that waits is
// dropped, but for memory, which is kept as its memory. The records that the set has from it
// stay as they are. If it is configured again it is harvested from the beginning.
func (l *Log) Forget(ctx context.Context, id event.SourceID, memory []byte) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		was, err := readSource(ctx, tx, id)
		if err != nil {
			return err
		}
		l.schedules.forget(id)
		for _, table := range []string{"pending", "held_deletion", "quarantine", "schedule", "harvest", "harvest_day", "pause"} {
			if err := tx.Exec(ctx, "DELETE FROM "+table+" WHERE source = $1", int64(id)); err != nil {
				return err
			}
		}
		if err := tx.Exec(ctx, "UPDATE source SET dropped = 0 WHERE id = $1", int64(id)); err != nil {
			return err
		}
		if err := l.forgetHarvest(ctx, tx, id, memory); err != nil {
			return err
		}
		h := was
		h.name, h.status = "", forgotten
		return l.saveSource(ctx, tx, &h, was)
	})
}

// ResetHarvest forgets how far a Source has been harvested, and keeps memory as its memory.
// What waits, and is not what was stored, is dropped: the next harvest finds it again.
func (l *Log) ResetHarvest(ctx context.Context, id event.SourceID, memory []byte) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := l.forgetHarvest(ctx, tx, id, memory); err != nil {
			return err
		}
		return dropDamagedWaiting(ctx, tx, id)
	})
}

// forgetHarvest forgets how far a Source has been harvested, and what it had to remember but
// for memory. What waits for its content, and what is held, stays.
func (l *Log) forgetHarvest(ctx context.Context, tx *database.Tx, id event.SourceID, memory []byte) error {
	none := event.Progress{Memory: memory}
	if err := tx.Each(ctx, "SELECT version FROM source WHERE id = $1", []any{int64(id)}, func(rows *sql.Rows) error {
		return rows.Scan(&none.Cursor.Version)
	}); err != nil {
		return err
	}
	l.unsaved.update(id, &none.Cursor)
	none.Cursor = event.Cursor{Version: none.Cursor.Version + 1}
	if err := tx.Exec(ctx, "UPDATE source SET version = $2, cursor = NULL, mark = NULL, memory = $4, gap = '', progress_sum = $3 WHERE id = $1",
		int64(id), none.Cursor.Version, progressSum(&none), none.Memory); err != nil {
		return err
	}
	return l.endWalk(ctx, tx, id)
}

// sourceConfig is what a Source is, besides how far it has been harvested.
type sourceConfig struct {
	id              event.SourceID
	set             int64
	name, kind, url string
	rank            int
	status          status
}

// status is whether the configuration has a Source.
type status int64

const (
	configured status = iota
	former            // not configured any more
	forgotten         // and a person has ended it
)

func (h *sourceConfig) sum() int64 {
	return sumOf(h.set, h.name, h.kind, h.url, h.rank, int64(h.status))
}

const selectConfigs = "SELECT id, set_id, name, kind, url, rank, status, sum FROM source"

// scan scans the columns of selectConfigs, and what a query asks for besides.
func (h *sourceConfig) scan(rows *sql.Rows, more ...any) error {
	var sum int64
	err := rows.Scan(append([]any{&h.id, &h.set, &h.name, &h.kind, &h.url, &h.rank, &h.status, &sum}, more...)...)
	if err == nil && sum != h.sum() {
		err = damagedSource(h.id)
	}
	return err
}

// readSource returns what a Source is; fs.ErrNotExist when there is none of that number.
func readSource(ctx context.Context, q database.Querier, id event.SourceID) (h sourceConfig, err error) {
	if err = database.Each(ctx, q, selectConfigs+" WHERE id = $1", []any{int64(id)}, func(rows *sql.Rows) error { return h.scan(rows) }); err == nil && h.id == 0 {
		err = noSource(id)
	}
	return h, err
}

// progressRow is the rest of a Source's row: how far it has been harvested.
type progressRow struct {
	event.Progress
	mark   sql.NullInt64
	stored int64 // its sum
}

const progressColumns = "src.version, src.cursor, src.mark, src.memory, src.gap, src.progress_sum"

func (p *progressRow) columns() []any {
	return []any{&p.Cursor.Version, &p.Cursor.Data, &p.mark, &p.Memory, &p.Gap, &p.stored}
}

// check completes it when its columns have been scanned.
func (p *progressRow) check(source event.SourceID) error {
	if p.Mark = stampOf(p.mark); p.stored != progressSum(&p.Progress) {
		return damagedSource(source)
	}
	return nil
}

func progressSum(p *event.Progress) int64 {
	return sumOf(p.Cursor.Version, p.Cursor.Data, p.Mark, p.Memory, p.Gap)
}

func damagedSource(id event.SourceID) error {
	return fmt.Errorf("Source %d: %w: run bridge verify", id, ErrDamaged)
}

// Target is the kind of the servers that a set's records are submitted to. They are
// stored among the Sources because they answer, and are never the authority of a record.
const Target = "submit"

// Sources returns the Sources of a set in the order of their rank.
func (l *Log) Sources(ctx context.Context, set string) ([]Source, error) {
	return l.sources(ctx, "s.name = $1 AND src.kind <> '"+Target+"'", set)
}

// SourceNames returns the Sources of a set, with nothing but what they are: how far they have
// been harvested, and when they are asked next, may be damaged.
func (l *Log) SourceNames(ctx context.Context, set string) ([]Source, error) {
	return l.sourceNames(ctx, "s.name = $1 AND src.kind <> '"+Target+"'", set)
}

func (l *Log) sourceNames(ctx context.Context, which string, args ...any) ([]Source, error) {
	return database.All(ctx, l.Each, "SELECT src.id, src.set_id, src.name, src.kind, src.url, src.rank, src.status, src.sum, s.name FROM source src JOIN sets s ON s.id = src.set_id WHERE src.status <> 2 AND "+which+" ORDER BY src.rank, src.id", args, func(s *Source, rows *sql.Rows) error {
		var h sourceConfig
		err := h.scan(rows, &s.Set)
		s.ID, s.Name, s.Kind, s.URL, s.Rank, s.Former = h.id, h.name, h.kind, h.url, h.rank, h.status == former
		return err
	})
}

// Targets returns those that the set's records are, or were, submitted to.
func (l *Log) Targets(ctx context.Context, set string) ([]Source, error) {
	return l.sources(ctx, "s.name = $1 AND src.kind = '"+Target+"'", set)
}

// SourcesOfSets returns the Sources and Targets of all sets, by the names of the sets, in the
// orders of Sources and Targets.
func (l *Log) SourcesOfSets(ctx context.Context) (sources, targets map[string][]Source, err error) {
	all, err := l.sources(ctx, "true")
	sources, targets = bySet(all)
	return sources, targets, err
}

// SourceNamesOfSets is SourcesOfSets, as SourceNames is Sources.
func (l *Log) SourceNamesOfSets(ctx context.Context) (sources, targets map[string][]Source, err error) {
	all, err := l.sourceNames(ctx, "true")
	sources, targets = bySet(all)
	return sources, targets, err
}

// bySet sorts Sources and Targets by the names of their sets.
func bySet(all []Source) (sources, targets map[string][]Source) {
	sources, targets = map[string][]Source{}, map[string][]Source{}
	for _, src := range all {
		of := sources
		if src.Kind == Target {
			of = targets
		}
		of[src.Set] = append(of[src.Set], src)
	}
	return sources, targets
}

// sources returns those that a condition selects.
func (l *Log) sources(ctx context.Context, which string, args ...any) (out []Source, err error) {
	err = l.Each(ctx, `SELECT src.id, src.set_id, s.name, src.name, src.kind, src.url, src.rank, src.status, src.sum, `+progressColumns+`, `+scheduleColumns+`,
	(SELECT count(*) FROM pending p WHERE p.source = src.id), (SELECT count(*) FROM pending p WHERE p.source = src.id AND p.partial <> 0),
	(SELECT count(*) FROM held_deletion h WHERE h.source = src.id), (SELECT count(*) FROM quarantine q WHERE q.source = src.id AND q.replayed = 0), src.dropped
FROM source src JOIN sets s ON s.id = src.set_id LEFT JOIN schedule sch ON sch.source = src.id WHERE src.status <> 2 AND `+which+` ORDER BY src.rank, src.id`, args, func(rows *sql.Rows) error {
		var s Source
		var setID, sum int64
		var p progressRow
		var sch scheduleRow
		var is status
		columns := slices.Concat([]any{&s.ID, &setID, &s.Set, &s.Name, &s.Kind, &s.URL, &s.Rank, &is, &sum}, p.columns(),
			sch.columns(), []any{&s.Pending, &s.Partial, &s.Held, &s.Quarantined, &s.Dropped})
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		var err error
		if s.Schedule, err = sch.schedule(s.ID); err != nil {
			return err
		}
		if fresh, ok := l.schedules.get(s.ID); ok {
			s.Schedule = fresh
		}
		if h := (sourceConfig{s.ID, setID, s.Name, s.Kind, s.URL, s.Rank, is}); p.check(s.ID) != nil || sum != h.sum() {
			return damagedSource(s.ID)
		}
		s.Progress, s.Former = p.Progress, is == former
		l.unsaved.update(s.ID, &s.Cursor)
		out = append(out, s)
		return nil
	})
	return out, err
}

// Progress returns what the log keeps of a Source.
func (l *Log) Progress(ctx context.Context, source event.SourceID) (p event.Progress, err error) {
	var row progressRow
	err = l.read(ctx, func(q database.Querier) error {
		err := q.QueryRowContext(ctx, "SELECT "+progressColumns+" FROM source src WHERE src.id = $1", int64(source)).Scan(row.columns()...)
		if errors.Is(err, sql.ErrNoRows) {
			return noSource(source)
		}
		if err == nil {
			err = row.check(source)
		}
		l.unsaved.update(source, &row.Cursor)
		return err
	})
	return row.Progress, err
}

// SourceKind returns the kind of a Source, "" while it is not known.
func (l *Log) SourceKind(ctx context.Context, source event.SourceID) (kind string, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		err := q.QueryRowContext(ctx, "SELECT kind FROM source WHERE id = $1", int64(source)).Scan(&kind)
		if errors.Is(err, sql.ErrNoRows) {
			return noSource(source)
		}
		return err
	})
	return kind, err
}

func noSource(id event.SourceID) error {
	return database.Missing("no Source %d in this data folder", id)
}

// DuePending returns which Sources have pending observations that are due: see Due.
func (l *Log) DuePending(ctx context.Context, due event.Micros) ([]event.SourceID, error) {
	out, err := database.All(ctx, l.Each, `SELECT id FROM source src
WHERE EXISTS (SELECT 1 FROM pending WHERE source = src.id AND next <= $1) OR EXISTS (SELECT 1 FROM pending WHERE source = src.id AND next > $2)`, []any{int64(due), notDue(due)}, database.Column[event.SourceID])
	slices.Sort(out)
	return out, err
}
