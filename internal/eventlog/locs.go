package eventlog

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
)

// locs holds which live record of a set in mode reference owns each URI, and how many
// others share it. The others are looked up only when the owner leaves, so that one more
// of many costs no more than the second.
type locs struct {
	set  int64
	uses map[int64]use // by the key of the URI
	was  map[int64]use // as stored, or about to be
}

// use is who is at a URI: nobody when it is zero.
type use struct {
	owner  int64 // the number of a record
	others int64
}

// newLocs has room for n URIs.
func newLocs(set int64, n int) *locs {
	return &locs{set: set, uses: make(map[int64]use, n), was: map[int64]use{}}
}

// key is that of a URI in the set.
func (l *locs) key(uri string) int64 { return locKey(l.set, uri) }

// locKey is 64 bits of a hash of set and URI.
func locKey(set int64, uri string) int64 { return event.KeyBits(uri) ^ set*0x1e3779b97f4a7c15 }

func (l *locs) load(ctx context.Context, q preparer, keys []int64, late *lateKeys) error {
	err := each(ctx, q, selectLocs, keys, func(rows *sql.Rows) error {
		var key int64
		var u use
		if err := rows.Scan(&key, &u.owner, &u.others); err != nil {
			return err
		}
		l.uses[key], l.was[key] = u, u
		return nil
	})
	late.usesOf(keys, func(key int64, u use) { l.uses[key], l.was[key] = u, u })
	return err
}

// changed returns what differs from what is stored.
func (l *locs) changed() (out []locUse) {
	for k, u := range l.uses {
		if u != l.was[k] {
			out = append(out, locUse{key: k, use: u, replaces: l.was[k].owner != 0})
		}
	}
	return out
}

// locate sets in the event of a decision whether lists have it, and stores where the
// record now is. It returns the key of the URI that the record owned and
// has left to others, 0 when there is none.
func (b *batch) locate(ctx context.Context, r *record, d *decision) (left int64, err error) {
	v := d.body
	switch {
	case d.kind == event.Created:
		v.unlisted, err = b.claimURI(ctx, r, v)
	case d.kind == event.Deleted:
		v.unlisted, left, err = b.releaseURI(ctx, r, v.obs.Loc)
	case d.before == nil:
		err = r.missingEvent()
	case d.before.obs.Loc == v.obs.Loc:
		v.unlisted = v.obs.Loc != "" && b.locs.uses[b.locs.key(v.obs.Loc)].owner != r.id
	default:
		var other bool
		if other, left, err = b.releaseURI(ctx, r, d.before.obs.Loc); err != nil {
			break
		}
		if !other {
			v.gone = d.before.obs.Loc
		}
		v.unlisted, err = b.claimURI(ctx, r, v)
		v.arrived = !v.unlisted
	}
	return left, err
}

// claimURI registers a record at its URI and reports whether another record owns the URI.
// It does nothing for a record without a URI.
func (b *batch) claimURI(ctx context.Context, r *record, v *body) (other bool, err error) {
	if v.obs.Loc == "" {
		return false, nil
	}
	k := v.loc
	if k == 0 {
		k = b.locs.key(v.obs.Loc)
	}
	u := b.locs.uses[k]
	b.addToFilter(uriKey(k))
	if u.owner == 0 {
		b.locs.uses[k] = use{owner: r.id}
		return false, nil
	}
	u.others++
	b.locs.uses[k] = u
	return true, b.tx.Exec(ctx, "INSERT INTO loc_other (key, record) VALUES ($1, $2)", k, r.id)
}

// releaseURI removes a record from a URI and reports whether another record owns the URI.
// If none does, and others share it, left is its key.
func (b *batch) releaseURI(ctx context.Context, r *record, uri string) (other bool, left int64, err error) {
	if uri == "" {
		return false, 0, nil
	}
	k := b.locs.key(uri)
	u := b.locs.uses[k]
	if u.owner == r.id {
		u.owner = 0
		b.locs.uses[k] = u
		if u.others > 0 {
			left = k
		}
		return false, left, nil
	}
	u.others--
	b.locs.uses[k] = u
	return true, 0, b.tx.Exec(ctx, "DELETE FROM loc_other WHERE key = $1 AND record = $2", k, r.id)
}

// inheritURI gives a URI that its owner has left to another record that shares it, and
// logs an event of that record: to a Destination it is new. The record with the highest
// number comes first. When many leave one after another, mostly in the order of their
// numbers, the URI gets a new owner only once.
func (b *batch) inheritURI(ctx context.Context, key int64) error {
	if key == 0 {
		return nil
	}
	q := b.tx
	u := b.locs.uses[key]
	if err := q.Each(ctx, "SELECT coalesce(max(record), 0) FROM loc_other WHERE key = $1", []any{key}, func(rows *sql.Rows) error {
		return rows.Scan(&u.owner)
	}); err != nil {
		return err
	}
	r, err := b.nextOwner(ctx, q, u.owner)
	if err != nil {
		return err
	}
	u.others--
	b.locs.uses[key] = u
	if err := b.tx.Exec(ctx, "DELETE FROM loc_other WHERE key = $1 AND record = $2", key, r.id); err != nil {
		return err
	}
	v := *r.last
	v.unlisted, v.arrived, v.gone = false, true, ""
	b.touch(r)
	return b.appendEvent(ctx, r, r.last, event.Updated, &v)
}

// nextOwner returns a record by its number, with its last event: the batch's own, or one
// that is loaded and belongs to the batch from then on.
func (b *batch) nextOwner(ctx context.Context, q preparer, id int64) (*record, error) {
	if b.byID == nil {
		b.byID = make(map[int64]*record, len(b.records))
		for _, r := range b.records {
			b.byID[r.id] = r
		}
	}
	r := b.byID[id]
	if r == nil {
		found, err := b.recordsByID(ctx, q, []int64{id})
		if err != nil {
			return nil, err
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("record %d, which shares a URI, is missing: run bridge verify", id)
		}
		r = found[0]
		b.byID[id] = r
		b.records = append(b.records, r)
	}
	if err := b.loadBodies(ctx, q, []*record{r}); err != nil {
		return nil, err
	}
	if !r.live || r.last == nil {
		return nil, r.missingEvent()
	}
	return r, nil
}
