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

// The events of a record are its versions, numbered from 1. They are chained: each but
// the first states how far back the one before is, its own number, and how far back the
// anchor below it is. Anchors are the versions 1, 65, 129 and so on. So a version of any
// age is found from the last event of the record, which table record names, in few
// steps and without an index: along the anchors, then from one version to the next.

// anchorStride is how many versions lie between two anchors. It is part of the format.
const anchorStride = 64

// follow gives the body of an event at seq its place in the chain of its record. before
// is the body of the record's previous event, at r.seq; a record without one begins a
// chain.
func (v *body) follow(seq int64, r *record, before *body) error {
	v.before, v.version, v.anchor = 0, 0, 0
	if r.seq == 0 {
		return nil
	}
	if before == nil {
		return r.missingEvent()
	}
	v.before, v.version = seq-int64(r.seq), before.number()+1
	if !before.isAnchor() {
		v.anchor = before.before + before.anchor
	}
	return nil
}

// number is the number of the version that an event is.
func (v *body) number() int64 { return max(v.version, 1) }

func (v *body) isAnchor() bool { return v.number()%anchorStride == 1 }

// chainLink is one version as a walk along the chain reads it.
type chainLink struct {
	event.Version
	before, anchor event.Seq // 0 of the first one
}

// anchorNumber is the number of the anchor below.
func (l *chainLink) anchorNumber() int { return (l.Number-2)/anchorStride*anchorStride + 1 }

// chain is the versions of one record.
type chain struct {
	ctx    context.Context
	q      database.Querier
	set    int64
	record int64
	key    string
	last   chainLink
	v      body
}

// openChain finds the record of a set whose key it is; fs.ErrNotExist when the set has
// never had it, or serves no earlier versions and anySet is not set.
func (l *Log) openChain(ctx context.Context, q database.Querier, set, key string, anySet bool) (*chain, error) {
	bits, ok := event.KeyBitsOf(key)
	if !ok {
		return nil, database.Missing("%q is no key of a record", key)
	}
	c := &chain{ctx: ctx, q: q, key: key}
	var has setRow
	if err := database.Each(ctx, q, selectSets+" WHERE name = $1", []any{set}, has.scan); err != nil {
		return nil, err
	}
	if !has.History && !anySet {
		return nil, database.Missing("set %s has no history", set)
	}
	c.set = has.id
	type candidate struct {
		id  int64
		seq event.Seq
	}
	// Records whose keys begin alike.
	found, err := database.All(ctx, reading{q}.Each, selectChain, []any{bits, c.set}, func(of *candidate, rows *sql.Rows) error { return rows.Scan(&of.id, &of.seq) })
	if err != nil {
		return nil, err
	}
	for _, of := range found {
		c.record = of.id
		if c.last, err = c.read(of.seq, 0); err != nil {
			return nil, err
		}
		if event.IsKeyOf(key, c.v.obs.Record) {
			return c, nil
		}
	}
	return nil, database.Missing("set %s has no record %s", set, key)
}

// read reads one version, which has that number; 0 is any. c.v is its body then.
func (c *chain) read(seq event.Seq, number int) (at chainLink, err error) {
	found := false
	err = database.Each(c.ctx, c.q, "SELECT "+eventColumns+" FROM event WHERE id = $1", []any{eventID(c.set, seq)}, func(rows *sql.Rows) error {
		var row columns
		sealed, err := row.scan(rows)
		if err != nil {
			return err
		}
		found = true
		raw, err := unseal(row, sealed)
		if err == nil {
			err = readBody(raw, &c.v)
		}
		if err == nil && row.record != c.record {
			err = ErrDamaged
		}
		at.Version = event.Version{Number: int(c.v.number()), Seq: seq, Observed: event.Micros(row.observed), Kind: event.Kind(row.kind),
			Withdrawn: event.Kind(row.kind) == event.Deleted && c.v.reason != ""}
		if c.v.before != 0 {
			at.before = seq - event.Seq(c.v.before)
			at.anchor = at.before - event.Seq(c.v.anchor)
		}
		return err
	})
	if err == nil && (!found || number != 0 && at.Number != number) {
		err = ErrDamaged
	}
	if err != nil {
		return at, fmt.Errorf("event %d, a version of record %s: %w: run bridge verify, and restore a backup", seq, c.key, err)
	}
	return at, nil
}

// first returns the first version.
func (c *chain) first() (at chainLink, err error) {
	for at = c.last; err == nil && at.before != 0; {
		at, err = c.read(at.anchor, at.anchorNumber())
	}
	return at, err
}

// find returns the newest version that reaches holds for, and the one after it, zero if
// that is the last. If it holds for a version it holds for all older ones, and it must
// hold for the first.
func (c *chain) find(reaches func(event.Version) bool) (at, next chainLink, err error) {
	at = c.last
	for !reaches(at.Version) {
		anchor, err := c.read(at.anchor, at.anchorNumber())
		if err != nil {
			return at, next, err
		}
		if !reaches(anchor.Version) {
			at = anchor
			continue
		}
		for !reaches(at.Version) {
			next = at
			if at, err = c.read(at.before, at.Number-1); err != nil {
				return at, next, err
			}
		}
	}
	return at, next, nil
}

// Version returns the newest version of a record that is at seq or before and was
// observed at a time or before, and the versions beside it; the first version if all are
// later. It is fs.ErrNotExist when the set keeps no history, or has never had the record.
func (l *Log) Version(ctx context.Context, set, key string, seq event.Seq, observed event.Micros) (*event.Versions, error) {
	out := &event.Versions{}
	err := l.read(ctx, func(q database.Querier) error {
		c, err := l.openChain(ctx, q, set, key, false)
		if err != nil {
			return err
		}
		first, err := c.first()
		if err != nil {
			return err
		}
		at, next, err := c.find(func(v event.Version) bool { return v.Number == 1 || v.Seq <= seq && v.Observed <= observed })
		if err != nil {
			return err
		}
		out.First, out.Version, out.Next, out.Last = first.Version, at.Version, next.Version, c.last.Version
		if at.before != 0 {
			previous, err := c.read(at.before, at.Number-1)
			if err != nil {
				return err
			}
			out.Previous = previous.Version
		}
		s, err := newScanner(ctx, q, set)
		if err != nil {
			return err
		}
		return database.Each(ctx, q, "SELECT "+eventColumns+" FROM event WHERE id = $1", []any{eventID(c.set, at.Seq)}, func(rows *sql.Rows) error {
			ev, err := s.scan(rows)
			if err == nil {
				clone := *ev
				out.Event, s.v = &clone, body{} // what the clone holds is not used again
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// VersionPage returns a page of so many versions of a record, oldest first, and its
// first and last version. Pages are numbered from 1; 0 is the newest one. A page that
// is not there has no versions. It is fs.ErrNotExist as in Version.
func (l *Log) VersionPage(ctx context.Context, set, key string, page, size int) (list []event.Version, first, last event.Version, err error) {
	err = l.read(ctx, func(q database.Querier) error {
		c, err := l.openChain(ctx, q, set, key, false)
		if err != nil {
			return err
		}
		oldest, err := c.first()
		if err != nil {
			return err
		}
		first, last = oldest.Version, c.last.Version
		pages := (last.Number + size - 1) / size
		page = cmp.Or(page, pages)
		if page < 1 || page > pages {
			return nil
		}
		at, _, err := c.find(func(v event.Version) bool { return v.Number <= page*size })
		for err == nil {
			if list = append(list, at.Version); at.before == 0 || at.Number == (page-1)*size+1 {
				break
			}
			at, err = c.read(at.before, at.Number-1)
		}
		return err
	})
	slices.Reverse(list)
	return list, first, last, err
}

// EventsOf calls do for the events of a record before a Seq, the newest first, until do
// returns false; before 0 is from the newest one. It is fs.ErrNotExist when the set has
// never had the record. An event is good until do returns.
func (l *Log) EventsOf(ctx context.Context, set, key string, before event.Seq, do func(*event.Event) bool) error {
	return l.read(ctx, func(q database.Querier) error {
		c, err := l.openChain(ctx, q, set, key, true)
		if err != nil {
			return err
		}
		at := c.last
		if before > 0 {
			if at, _, err = c.find(func(v event.Version) bool { return v.Number == 1 || v.Seq < before }); err != nil || at.Seq >= before {
				return err
			}
		}
		s, err := newScanner(ctx, q, set)
		for err == nil {
			on := true
			if err = database.Each(ctx, q, "SELECT "+eventColumns+" FROM event WHERE id = $1", []any{eventID(c.set, at.Seq)}, func(rows *sql.Rows) error {
				ev, err := s.scan(rows)
				on = err == nil && do(ev)
				return err
			}); err != nil || !on || at.before == 0 {
				return err
			}
			at, err = c.read(at.before, at.Number-1)
		}
		return err
	})
}
