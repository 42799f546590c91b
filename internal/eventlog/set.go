package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// SetConfig is the configuration of a set.
type SetConfig struct {
	// Name of the set. An empty Title or Description leaves what is stored; a
	// new set's title is its name.
	Name, Title, Description string
	Content                  event.Content
	// AnyContent takes the content mode of a set that is there already, and whether it
	// has a history, whatever Content and History are; Configure then sets Content to it.
	AnyContent bool
	// SegmentEvents and SegmentHours are when a segment closes; 0 is 10,000
	// and 24, more than 50,000 events is 50,000.
	SegmentEvents, SegmentHours int
	// NoRobots and NoFeeds are those of the set. With AnyContent they stay as they are in
	// a set that is there already.
	NoRobots, NoFeeds bool
	// History: earlier versions are served, of a set in mode mirror.
	History bool
	// KeepLists and KeepListsFor are those of the set. With AnyContent they stay too.
	KeepLists    int
	KeepListsFor time.Duration
	// Dumps is that of the set, if it is a mirror. With AnyContent it stays too.
	Dumps bool
	// Sources by rank: the first that has a record is its authority.
	Sources []SourceConfig
	// Whole: the configuration has no other Sources of the set. Any others that the log
	// has are not configured any more.
	Whole bool
	// Partial: a new set has Sources that are yet to be walked.
	Partial bool
	// KeepOrder leaves Sources that are there already in the order in which they
	// were first seen, and puts new ones behind them.
	KeepOrder bool
	// First is filled in by Configure: the Source that the set had first. It never
	// changes.
	First event.SourceID
}

// ContentError: a set was made with another content mode, which is fixed.
type ContentError struct {
	Set       string
	Has, Want event.Content
}

func (e *ContentError) Error() string {
	return fmt.Sprintf("set %s was made with content = %q, which cannot be changed to %q: put it back, or make a new set with another name and harvest into that", e.Set, e.Has, e.Want)
}

// SourceConfig is the configuration of a Source.
type SourceConfig struct {
	// ID is filled in by Configure.
	ID event.SourceID
	// Name identifies a Source when its URL changes; with "" only its URL identifies it.
	Name string
	// Kind of the Source; "" leaves the stored kind, which Configure then fills in.
	Kind string
	URL  string
}

// Configure brings sets and their Sources up to date in one transaction, and makes those
// that are missing. In each set the Sources get their rank in the order in which they
// stand; those that the configuration no longer has come after them. If nothing has
// changed, nothing is written. If a stored set has another content mode, the error is a
// *ContentError.
//
// former are the Sources that a configuration no longer has, if it is whole, including
// those of sets that it does not have.
func (l *Log) Configure(ctx context.Context, sets []SetConfig) (former []FormerSource, err error) {
	err = l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		former = nil
		named := map[string]bool{}
		var taken identifierNames
		for i := range sets {
			named[sets[i].Name] = true
			id, err := l.ensureSet(ctx, tx, &sets[i], &taken)
			if err != nil {
				return err
			}
			if err := l.ensureSources(ctx, tx, id, &sets[i], &former); err != nil {
				return err
			}
		}
		if !slices.ContainsFunc(sets, func(s SetConfig) bool { return s.Whole }) {
			return nil
		}
		others := map[string]int64{}
		if err := tx.Each(ctx, selectSets, nil, func(rows *sql.Rows) error {
			var s setRow
			err := s.scan(rows)
			if !named[s.Name] {
				others[s.Name] = s.id
			}
			return err
		}); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(others)) {
			if err := l.ensureSources(ctx, tx, others[name], &SetConfig{Name: name, Whole: true}, &former); err != nil {
				return err
			}
		}
		return nil
	})
	return former, err
}

// FormerSource is a Source that is not configured any more, and has not been
// forgotten.
type FormerSource struct{ Set, URL string }

// EnsureSet is Configure for one set whose Sources stay as they are.
func (l *Log) EnsureSet(ctx context.Context, c SetConfig) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		_, err := l.ensureSet(ctx, tx, &c, new(identifierNames))
		return err
	})
}

// ensureSet makes a set, or brings it up to date. taken are the names of the same transaction.
func (l *Log) ensureSet(ctx context.Context, tx *database.Tx, c *SetConfig, taken *identifierNames) (int64, error) {
	has, err := l.findSet(ctx, tx, c.Name)
	if err != nil {
		return 0, err
	}
	id := has.id
	want := has
	want.Name, want.Title, want.Description = c.Name, cmp.Or(c.Title, has.Title, c.Name), cmp.Or(c.Description, has.Description)
	want.segmentEvents, want.segmentHours = min(max(c.SegmentEvents, 0), maxEntries), max(c.SegmentHours, 0)
	want.segmentEvents = cmp.Or(want.segmentEvents, 10_000)
	want.segmentHours = cmp.Or(want.segmentHours, 24)
	if c.AnyContent && id != 0 {
		c.Content, c.NoRobots, c.NoFeeds, c.History, c.Dumps = has.Content, has.NoRobots, has.NoFeeds, has.History, has.Dumps
	}
	want.Content, want.NoRobots, want.NoFeeds, want.History = c.Content, c.NoRobots, c.NoFeeds, c.History && c.Content == event.Mirror
	if !c.AnyContent || id == 0 {
		want.KeepLists, want.KeepListsFor = c.KeepLists, event.Micros(c.KeepListsFor/time.Microsecond)
	}
	want.Dumps = c.Dumps && c.Content == event.Mirror
	switch {
	case id != 0 && has.Content != c.Content:
		return 0, &ContentError{Set: c.Name, Has: has.Content, Want: c.Content}
	case id != 0 && want == has:
		return id, nil
	case id != 0:
		return id, tx.Exec(ctx, "UPDATE sets SET title = $2, description = $3, segment_events = $4, segment_hours = $5, no_robots = $6, no_feeds = $7, history = $8, dumps = $9, keep_lists = $10, keep_lists_for = $11, sum = $12 WHERE id = $1",
			id, want.Title, want.Description, want.segmentEvents, want.segmentHours, want.NoRobots, want.NoFeeds, want.History, want.Dumps, want.KeepLists, int64(want.KeepListsFor), want.sum())
	}
	if want.Created, err = l.now(); err != nil {
		return 0, err
	}
	want.Feed, want.Complete = newUUID(), newUUID()
	if err := freeName(ctx, tx, c.Name, 0, false); err != nil {
		return 0, err
	}
	if want.Named, err = taken.give(ctx, tx, c.Name); err != nil {
		return 0, err
	}
	if err := tx.Each(ctx, `INSERT INTO sets (id, name, title, description, content, created, feed, complete, segment_events, segment_hours, no_robots, no_feeds, history, dumps, keep_lists, keep_lists_for, sum, last_observed, clock, partial, named)
VALUES (1 + (SELECT max(n) FROM (SELECT coalesce(max(id), 0) AS n FROM sets UNION ALL SELECT coalesce(max(id), 0) FROM removed_set) AS given), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $5, $5, $17, $18) RETURNING id`, []any{want.Name, want.Title, want.Description, int64(want.Content), int64(want.Created), want.Feed, want.Complete,
		want.segmentEvents, want.segmentHours, want.NoRobots, want.NoFeeds, want.History, want.Dumps, want.KeepLists, int64(want.KeepListsFor), want.sum(), c.Partial, want.Named}, func(rows *sql.Rows) error { return rows.Scan(&id) }); err != nil {
		return 0, err
	}
	if id > maxSet {
		return 0, errors.New("the log is full: it holds 8 million sets")
	}
	return id, tx.Exec(ctx, "INSERT INTO segment (set_id, n, from_at) VALUES ($1, 1, $2)", id, int64(want.Created))
}

// setRow is a row of sets.
type setRow struct {
	event.Set
	id                          int64
	segmentEvents, segmentHours int
	records                     int64 // the largest ordinal in record
	base                        int64 // events up to it are of an earlier epoch
	baseN                       int   // segments up to it too
}

func (s *setRow) sum() int64 {
	all := []any{s.Name, s.Title, s.Description, int64(s.Content), s.Created, s.Feed, s.Complete, s.segmentEvents, s.segmentHours, s.NoRobots, s.NoFeeds, s.History, s.Dumps, s.KeepLists, int64(s.KeepListsFor)}
	switch { // few sets have one of them
	case s.FirstFeed != "":
		all = append(all, s.Named, s.FirstFeed)
	case s.Named != "":
		all = append(all, s.Named)
	}
	return sumOf(all...)
}

// findSet returns a set; its id is 0 when there is none.
func (l *Log) findSet(ctx context.Context, tx *database.Tx, name string) (set setRow, err error) {
	return set, tx.Each(ctx, selectSets+" WHERE name = $1", []any{name}, set.scan)
}

func noSet(name string) error {
	return database.Missing("no set %q in this data folder", name)
}

const selectSets = `SELECT id, name, title, description, content, created, feed, complete, segment_events, segment_hours, no_robots, no_feeds, history, dumps, keep_lists, keep_lists_for, sum, last_seq, last_observed, clock, live, events, partial, records, base_seq, base_n, named, first_feed FROM sets`

func (s *setRow) scan(rows *sql.Rows) error {
	var sum int64
	err := rows.Scan(&s.id, &s.Name, &s.Title, &s.Description, &s.Content, &s.Created, &s.Feed, &s.Complete, &s.segmentEvents, &s.segmentHours, &s.NoRobots, &s.NoFeeds, &s.History, &s.Dumps, &s.KeepLists, &s.KeepListsFor, &sum,
		&s.Last, &s.LastObserved, &s.Newest, &s.Live, &s.Events, &s.Partial, &s.records, &s.base, &s.baseN, &s.Named, &s.FirstFeed)
	if err == nil && sum != s.sum() {
		err = fmt.Errorf("set %q: %w: run bridge verify", s.Name, ErrDamaged)
	}
	return err
}

// MarkSetComplete records that each Source of a set was walked completely.
func (l *Log) MarkSetComplete(ctx context.Context, set string) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Exec(ctx, "UPDATE sets SET partial = 0 WHERE name = $1", set)
	})
}

// Sets returns all sets in the order of their creation. There may be thousands, and the
// publisher asks every other second: while this process has committed nothing, they are those
// that were read last.
func (l *Log) Sets(ctx context.Context) ([]event.Set, error) {
	commits := l.commits()
	if last := l.lastSets.Load(); last != nil && last.commits == commits {
		return slices.Clone(last.sets), nil
	}
	sets, err := allSets(ctx, l)
	if err == nil && commits > 0 {
		l.lastSets.Store(&setsAt{commits, slices.Clone(sets)})
	}
	return sets, err
}

// setsAt are all sets after so many commits, or later.
type setsAt struct {
	commits int64
	sets    []event.Set
}

// commits counts the commits of the log. It is 0 where another process may write it.
func (l *Log) commits() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head == nil || l.writer == nil || database.OnServer(l.path) {
		return 0
	}
	return l.head.now.Commits
}

func allSets(ctx context.Context, q preparer) ([]event.Set, error) {
	return database.All(ctx, q.Each, selectSets+" ORDER BY id", nil, func(s *event.Set, rows *sql.Rows) error {
		var row setRow
		err := row.scan(rows)
		*s = row.Set
		return err
	})
}

// Set returns one set; fs.ErrNotExist when there is none of that name.
func (l *Log) Set(ctx context.Context, name string) (set event.Set, err error) {
	var s setRow
	err = l.Each(ctx, selectSets+" WHERE name = $1", []any{name}, s.scan)
	if err == nil && s.id == 0 {
		err = noSet(name)
	}
	return s.Set, err
}

// Segments returns the segments of a set, oldest first; the last is open.
func (l *Log) Segments(ctx context.Context, set string) ([]event.Segment, error) {
	return l.SegmentsFrom(ctx, set, 1)
}

// SegmentsFrom returns the segments of a set from the one with a number on.
func (l *Log) SegmentsFrom(ctx context.Context, set string, n int) (out []event.Segment, err error) {
	out, err = segmentsOf(ctx, l, set, n)
	if err == nil && len(out) == 0 {
		return nil, noSet(set)
	}
	return out, err
}

func segmentsOf(ctx context.Context, q preparer, set string, n int) ([]event.Segment, error) {
	return database.All(ctx, q.Each, `SELECT n, from_at, until_at, start, first, last, g.events, entries, weight, feed_weight
FROM segment g JOIN sets s ON s.id = g.set_id WHERE s.name = $1 AND n >= $2 ORDER BY n`, []any{set, n}, func(s *event.Segment, rows *sql.Rows) error {
		row, err := scanSegment(rows)
		*s = row.Segment
		return err
	})
}

// AtOnce returns all sets in the order of their creation, and their segments by the
// name of the set, as they were together at one moment.
func (l *Log) AtOnce(ctx context.Context) (sets []event.Set, segments map[string][]event.Segment, err error) {
	segments = map[string][]event.Segment{}
	err = l.Snapshot(ctx, func(q database.Querier) error {
		if sets, err = allSets(ctx, reading{q}); err != nil {
			return err
		}
		for i := range sets {
			if segments[sets[i].Name], err = segmentsOf(ctx, reading{q}, sets[i].Name, 1); err != nil {
				return err
			}
		}
		return nil
	})
	return sets, segments, err
}

// Hosts returns the host names that were connected to, and which of them had
// public addresses then.
func (l *Log) Hosts(ctx context.Context) (map[string]bool, error) {
	known := map[string]bool{}
	err := l.Each(ctx, selectHosts, nil, func(rows *sql.Rows) error {
		name, public, err := scanHost(rows)
		if errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("host %q: %w: run bridge verify", name, err)
		}
		known[name] = public
		return err
	})
	return known, err
}

const selectHosts = "SELECT name, public, sum FROM host"

func scanHost(rows *sql.Rows) (name string, public bool, err error) {
	var sum int64
	err = rows.Scan(&name, &public, &sum)
	if err == nil && sum != sumOf(name, public) {
		err = ErrDamaged
	}
	return name, public, err
}

// RememberHost keeps whether a host name that was connected to for the first time
// had public addresses.
func (l *Log) RememberHost(ctx context.Context, name string, public bool) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Exec(ctx, "INSERT OR IGNORE INTO host (name, public, sum) VALUES ($1, $2, $3)", name, public, sumOf(name, public))
	})
}

// DerivedSet is a set that was made for one of the sets of resources of a Source.
type DerivedSet struct {
	Template string // the configured set that stands for all of them
	URL      string // the Capability List of the set of resources
	Name     string // of the set
}

const selectDerived = "SELECT template, url, name, sum FROM derived_set"

func (s *DerivedSet) scan(rows *sql.Rows) error {
	var sum int64
	err := rows.Scan(&s.Template, &s.URL, &s.Name, &sum)
	if err == nil && sum != sumOf(s.Template, s.URL, s.Name) {
		err = ErrDamaged
	}
	return err
}

// DerivedSets returns the sets that were derived from a configured one, by their names.
func (l *Log) DerivedSets(ctx context.Context, template string) ([]DerivedSet, error) {
	return database.All(ctx, l.Each, selectDerived+" WHERE template = $1 ORDER BY name", []any{template}, func(s *DerivedSet, rows *sql.Rows) error {
		err := s.scan(rows)
		if errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("derived set %q: %w: run bridge verify", s.Name, err)
		}
		return err
	})
}

// DeriveSet gives a set of resources its set, unless it has one: the first of names that
// no set has, and that is not among others.
func (l *Log) DeriveSet(ctx context.Context, template, url string, names, others []string) (name string, err error) {
	err = l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		name = ""
		var has DerivedSet
		if err := tx.Each(ctx, selectDerived+" WHERE template = $1 AND url = $2", []any{template, url}, has.scan); err != nil {
			return err
		}
		if name = has.Name; name != "" {
			return nil
		}
		for _, n := range names {
			taken := slices.Contains(others, n)
			if err := tx.Each(ctx, "SELECT 1 FROM sets WHERE name = $1 UNION SELECT 1 FROM derived_set WHERE name = $1 UNION SELECT 1 FROM former_name WHERE name = $1", []any{n}, func(*sql.Rows) error {
				taken = true
				return nil
			}); err != nil {
				return err
			}
			if !taken {
				name = n
				return tx.Exec(ctx, "INSERT INTO derived_set (template, url, name, sum) VALUES ($1, $2, $3, $4)", template, url, name, sumOf(template, url, name))
			}
		}
		return fmt.Errorf("set %q: there are other sets of the names %q: give the set another name in the configuration", template, names)
	})
	return name, err
}
