package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pmh-bridge/bridge/event"
)

// SetConfig is what the configuration says of a set.
type SetConfig struct {
	// Name of the set. An empty Title or Description leaves what is stored; a
	// new set's title is its name.
	Name, Title, Description string
	Content                  event.Content
	// SegmentEvents and SegmentHours say when a segment closes; 0 is 10,000
	// and 24, more than 50,000 events is 50,000.
	SegmentEvents, SegmentHours int
}

// ContentError: a set was made with another content mode, which is fixed.
type ContentError struct {
	Set       string
	Has, Want event.Content
}

func (e *ContentError) Error() string {
	return fmt.Sprintf("set %s was made with content = %q, which cannot be changed to %q: put it back, or make a new set with another name and harvest into that", e.Set, e.Has, e.Want)
}

// EnsureSet makes the set, with its creation time and feed ids, or brings its
// settings up to date. Another content mode is a *ContentError.
func (l *Log) EnsureSet(ctx context.Context, c SetConfig) error {
	if c.SegmentEvents <= 0 {
		c.SegmentEvents = 10_000
	}
	c.SegmentEvents = min(c.SegmentEvents, maxEntries)
	if c.SegmentHours <= 0 {
		c.SegmentHours = 24
	}
	return l.write(ctx, func(ctx context.Context) error {
		id, has, err := l.findSet(ctx, c.Name)
		if err != nil {
			return err
		}
		c.Title, c.Description = cmp.Or(c.Title, has.Title, c.Name), cmp.Or(c.Description, has.Description)
		s := event.Set{Name: c.Name, Title: c.Title, Description: c.Description, Content: c.Content, Created: has.Created, Feed: has.Feed, Complete: has.Complete}
		if id != 0 {
			if has.Content != c.Content {
				return &ContentError{Set: c.Name, Has: has.Content, Want: c.Content}
			}
			return l.exec(ctx, "UPDATE sets SET title = $2, description = $3, segment_events = $4, segment_hours = $5, sum = $6 WHERE id = $1",
				id, c.Title, c.Description, c.SegmentEvents, c.SegmentHours, setSum(&s, c.SegmentEvents, c.SegmentHours))
		}
		if s.Created, err = l.now(); err != nil {
			return err
		}
		s.Feed, s.Complete = newUUID(), newUUID()
		if err := l.exec(ctx, `INSERT INTO sets (name, title, description, content, created, feed, complete, segment_events, segment_hours, sum, last_observed, clock)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $5, $5)`, s.Name, s.Title, s.Description, int64(s.Content), int64(s.Created), s.Feed, s.Complete,
			c.SegmentEvents, c.SegmentHours, setSum(&s, c.SegmentEvents, c.SegmentHours)); err != nil {
			return err
		}
		return l.exec(ctx, "INSERT INTO segment (set_id, n, from_at) SELECT id, 1, created FROM sets WHERE name = $1", s.Name)
	})
}

func setSum(s *event.Set, segmentEvents, segmentHours int) int64 {
	return sumOf(s.Name, s.Title, s.Description, int64(s.Content), s.Created, s.Feed, s.Complete, segmentEvents, segmentHours)
}

// findSet returns a set with its number, 0 when there is none. Callers hold mu.
func (l *Log) findSet(ctx context.Context, name string) (id int64, set event.Set, err error) {
	err = writing{l}.each(ctx, selectSets+" WHERE name = $1", []any{name}, func(rows *sql.Rows) (err error) {
		id, set, err = scanSet(rows)
		return err
	})
	return id, set, err
}

// Source is an upstream server as the log knows it.
type Source struct {
	ID   event.SourceID
	Set  string
	Kind string // atompmh, resourcesync, sip or feed; Target
	URL  string
	Rank int
	event.Progress
	// Pending, Held and Quarantined count what waits; Partial are pending ones
	// that are published without some of their representations.
	Pending, Partial, Held, Quarantined int
}

// EnsureSource makes the Source, or brings its kind and rank up to date. The
// lowest rank speaks for a record that several Sources of a set have. A Source
// that has had the rank so far goes behind all others: when every configured
// Source was given its place, those that are no longer configured come last.
func (l *Log) EnsureSource(ctx context.Context, set, kind, url string, rank int) (id event.SourceID, err error) {
	err = l.write(ctx, func(ctx context.Context) error {
		setID, _, err := l.findSet(ctx, set)
		if err != nil {
			return err
		}
		if setID == 0 {
			return noSet(set)
		}
		var displaced []sourceHead
		last := rank
		if err := (writing{l}).each(ctx, selectHeads+" WHERE set_id = $1", []any{setID}, func(rows *sql.Rows) error {
			h, err := scanHead(rows)
			last = max(last, h.rank)
			switch {
			case h.url == url:
				id = h.id
			case h.rank == rank:
				displaced = append(displaced, h)
			}
			return err
		}); err != nil {
			return err
		}
		for _, h := range displaced {
			last++
			h.rank = last
			if err := l.exec(ctx, "UPDATE source SET rank = $2, sum = $3 WHERE id = $1", int64(h.id), h.rank, h.sum()); err != nil {
				return err
			}
		}
		h := sourceHead{id: id, set: setID, kind: kind, url: url, rank: rank}
		if id != 0 {
			return l.exec(ctx, "UPDATE source SET kind = $2, rank = $3, sum = $4 WHERE id = $1", int64(id), kind, rank, h.sum())
		}
		s, err := l.stmt(ctx, "INSERT INTO source (set_id, kind, url, rank, sum, kept) VALUES ($1, $2, $3, $4, $5, $6) RETURNING id")
		if err != nil {
			return err
		}
		return s.QueryRowContext(ctx, setID, kind, url, rank, h.sum(), keptSum(new(event.Progress))).Scan(&id)
	})
	return id, err
}

// sourceHead is what a Source is, besides how far it has been harvested.
type sourceHead struct {
	id        event.SourceID
	set       int64
	kind, url string
	rank      int
}

func (h *sourceHead) sum() int64 { return sumOf(h.set, h.kind, h.url, h.rank) }

const selectHeads = "SELECT id, set_id, kind, url, rank, sum FROM source"

func scanHead(rows *sql.Rows) (h sourceHead, err error) {
	var sum int64
	err = rows.Scan(&h.id, &h.set, &h.kind, &h.url, &h.rank, &sum)
	if err == nil && sum != h.sum() {
		err = damagedSource(h.id)
	}
	return h, err
}

func damagedSource(id event.SourceID) error {
	return fmt.Errorf("Source %d: %w: run bridge verify", id, errDamaged)
}

func noSet(name string) error {
	return fmt.Errorf("no set %q in this data folder: %w", name, fs.ErrNotExist)
}

// Target is the kind of those that a set's records are submitted to. They have
// their place among the Sources because they answer, and never speak for a
// record.
const Target = "submit"

// Sources returns the Sources of a set in the order of their rank.
func (l *Log) Sources(ctx context.Context, set string) ([]Source, error) {
	return l.sources(ctx, set, "src.kind <> '"+Target+"'")
}

// Targets returns those that the set's records are, or were, submitted to.
func (l *Log) Targets(ctx context.Context, set string) ([]Source, error) {
	return l.sources(ctx, set, "src.kind = '"+Target+"'")
}

func (l *Log) sources(ctx context.Context, set, which string) (out []Source, err error) {
	err = l.read(ctx, func(q querier) error {
		rows, err := q.QueryContext(ctx, `SELECT src.id, src.set_id, s.name, src.kind, src.url, src.rank, src.sum, src.version, src.cursor, src.mark, src.memory, src.gap, src.kept,
	(SELECT count(*) FROM pending p WHERE p.source = src.id), (SELECT count(*) FROM pending p WHERE p.source = src.id AND p.partial),
	(SELECT count(*) FROM held h WHERE h.source = src.id), (SELECT count(*) FROM quarantine q WHERE q.source = src.id AND q.replayed = 0)
FROM source src JOIN sets s ON s.id = src.set_id WHERE s.name = $1 AND `+which+` ORDER BY src.rank, src.id`, set)
		return scanAll(rows, err, func(rows *sql.Rows) error {
			var s Source
			var mark sql.NullInt64
			var setID, sum, kept int64
			if err := rows.Scan(&s.ID, &setID, &s.Set, &s.Kind, &s.URL, &s.Rank, &sum, &s.Cursor.Version, &s.Cursor.Data, &mark, &s.Memory, &s.Gap, &kept,
				&s.Pending, &s.Partial, &s.Held, &s.Quarantined); err != nil {
				return err
			}
			s.Mark = stampOf(mark)
			if h := (sourceHead{s.ID, setID, s.Kind, s.URL, s.Rank}); sum != h.sum() || kept != keptSum(&s.Progress) {
				return damagedSource(s.ID)
			}
			out = append(out, s)
			return nil
		})
	})
	return out, err
}

// Progress returns what the log keeps of a Source.
func (l *Log) Progress(ctx context.Context, source event.SourceID) (p event.Progress, err error) {
	err = l.read(ctx, func(q querier) error {
		var mark sql.NullInt64
		var sum int64
		err := q.QueryRowContext(ctx, "SELECT version, cursor, mark, memory, gap, kept FROM source WHERE id = $1", int64(source)).
			Scan(&p.Cursor.Version, &p.Cursor.Data, &mark, &p.Memory, &p.Gap, &sum)
		p.Mark = stampOf(mark)
		if errors.Is(err, sql.ErrNoRows) {
			return noSource(source)
		}
		if err == nil && sum != keptSum(&p) {
			return damagedSource(source)
		}
		return err
	})
	return p, err
}

func noSource(id event.SourceID) error {
	return fmt.Errorf("no Source %d in this data folder: %w", id, fs.ErrNotExist)
}

const selectSets = `SELECT id, name, title, description, content, created, feed, complete, segment_events, segment_hours, sum, last_seq, last_observed, clock, live, events FROM sets`

func scanSet(rows *sql.Rows) (id int64, s event.Set, err error) {
	var segmentEvents, segmentHours int
	var sum int64
	err = rows.Scan(&id, &s.Name, &s.Title, &s.Description, &s.Content, &s.Created, &s.Feed, &s.Complete, &segmentEvents, &segmentHours, &sum,
		&s.Last, &s.LastObserved, &s.Newest, &s.Live, &s.Events)
	if err == nil && sum != setSum(&s, segmentEvents, segmentHours) {
		err = fmt.Errorf("set %q: %w: run bridge verify", s.Name, errDamaged)
	}
	return id, s, err
}

// Sets returns all sets in the order of their creation.
func (l *Log) Sets(ctx context.Context) ([]event.Set, error) {
	var out []event.Set
	err := l.sets(ctx, " ORDER BY id", nil, func(_ int64, s event.Set) { out = append(out, s) })
	return out, err
}

func (l *Log) sets(ctx context.Context, where string, args []any, found func(id int64, s event.Set)) error {
	return l.read(ctx, func(q querier) error {
		rows, err := q.QueryContext(ctx, selectSets+where, args...)
		return scanAll(rows, err, func(rows *sql.Rows) error {
			id, s, err := scanSet(rows)
			if err == nil {
				found(id, s)
			}
			return err
		})
	})
}

// Set returns one set; fs.ErrNotExist when there is none of that name.
func (l *Log) Set(ctx context.Context, name string) (set event.Set, err error) {
	found := false
	err = l.sets(ctx, " WHERE name = $1", []any{name}, func(_ int64, s event.Set) { set, found = s, true })
	if err == nil && !found {
		err = noSet(name)
	}
	return set, err
}

// Segments returns the segments of a set, oldest first; the last is open.
func (l *Log) Segments(ctx context.Context, set string) (out []event.Segment, err error) {
	err = l.read(ctx, func(q querier) error {
		rows, err := q.QueryContext(ctx, `SELECT n, from_at, until_at, start, first, last, g.events, entries, weight
FROM segment g JOIN sets s ON s.id = g.set_id WHERE s.name = $1 ORDER BY n`, set)
		return scanAll(rows, err, func(rows *sql.Rows) error {
			s, err := scanSegment(rows)
			out = append(out, s.Segment)
			return err
		})
	})
	if err == nil && len(out) == 0 {
		return nil, noSet(set)
	}
	return out, err
}

// Hosts returns the host names that were connected to, and which of them had
// public addresses then.
func (l *Log) Hosts(ctx context.Context) (map[string]bool, error) {
	known := map[string]bool{}
	err := l.read(ctx, func(q querier) error {
		rows, err := q.QueryContext(ctx, "SELECT name, public, sum FROM host")
		return scanAll(rows, err, func(rows *sql.Rows) error {
			var name string
			var public bool
			var sum int64
			err := rows.Scan(&name, &public, &sum)
			if err == nil && sum != sumOf(name, public) {
				err = fmt.Errorf("host %q: %w: run bridge verify", name, errDamaged)
			}
			known[name] = public
			return err
		})
	})
	return known, err
}

// RememberHost keeps whether a host name that was connected to for the first time
// had public addresses.
func (l *Log) RememberHost(ctx context.Context, name string, public bool) error {
	return l.write(ctx, func(ctx context.Context) error {
		return l.exec(ctx, "INSERT OR IGNORE INTO host (name, public, sum) VALUES ($1, $2, $3)", name, boolArg(public), sumOf(name, public))
	})
}
