package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Links between records of a set (describedby, describes) are part of the state
// of the record that has them, and are published as long as the set has their
// target. Table link has which live records link to an identifier, whether or
// not the set has it, so that those whose target came or went get an event in the
// same transaction, however the records were spread over batches.

// linkRow is a row of table link: a live record, and the key of an identifier
// that it links to.
type linkRow struct{ key, record int64 }

// linkKey is 64 bits of a hash of set and identifier.
func linkKey(set int64, identifier string) int64 {
	return event.KeyBits(identifier) ^ set*0x1e3779b97f4a7c15
}

// targets are the records of the set that the items name besides their own.
type targets struct {
	linked map[string]bool // those that links lead to: whether the set will have them after the batch, by the stored state and its items
	// ownIDs has the records of the set whose identifier is the one that an item has at
	// its Source, where the item gets another one here (A15): another bridge returns our
	// records under our identifiers.
	ownIDs map[string]*record
}

// loadTargets looks them up. If the batch has an item of a record that a link leads to,
// that item counts, wherever it stands in the batch.
func (b *batch) loadTargets(ctx context.Context, q preparer) error {
	if err := b.loadOwnIDs(ctx, q); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for i := range b.in.Items {
		addTargets(wanted, b.in.Items[i].Links)
	}
	for _, r := range b.records {
		for i := range r.sources { // it may become the authority
			v, err := r.sources[i].suppressedBody(r)
			if err != nil {
				return err
			}
			if v != nil {
				addTargets(wanted, v.obs.Links)
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	if err := b.living(ctx, q, wanted); err != nil {
		return err
	}
	for i := range b.in.Items {
		it := b.in.Items[i]
		stateless := it.Quarantine || it.Unselected || it.Present || it.Pending != "" && !it.Partial
		if _, ok := wanted[it.Record]; ok && !stateless {
			wanted[it.Record] = !it.Deleted
		}
	}
	b.targets.linked = wanted
	return nil
}

func addTargets(to map[string]bool, links []event.Link) {
	for i := range links {
		if links[i].Record != "" {
			to[links[i].Record] = false
		}
	}
}

// living sets for each identifier whether the set has a live record with it, by the
// stored state.
func (b *batch) living(ctx context.Context, q preparer, identifiers map[string]bool) error {
	keys := make([]int64, 0, len(identifiers))
	for id := range identifiers {
		keys = append(keys, event.KeyBits(id))
	}
	return b.recordRows(ctx, q, keys, func(row *recordRow) error {
		if _, ok := identifiers[string(row.identifier)]; ok {
			identifiers[string(row.identifier)] = row.digest.Valid
		}
		return nil
	})
}

// resolve returns the links with InSet as it is now: whether the set has their target.
func (t targets) resolve(links []event.Link) []event.Link {
	return resolve(links, func(id string) bool { return t.linked[id] })
}

func resolve(links []event.Link, has func(identifier string) bool) []event.Link {
	cloned := false
	for i := range links {
		in := links[i].Record != "" && has(links[i].Record)
		if in == links[i].InSet {
			continue
		}
		if !cloned {
			links, cloned = slices.Clone(links), true
		}
		links[i].InSet = in
	}
	return links
}

// relations are what a batch changes in table link, and the records that may
// need another event for it.
type relations struct {
	rows    map[linkRow]bool // whether the row is to exist
	linking []*record        // logged with links to records
	turned  []*record        // that were created or deleted
}

// relate notes what an event changes.
func (b *batch) relate(r *record, before *body, kind event.Kind, v *body) {
	if kind != event.Updated {
		b.relations.turned = append(b.relations.turned, r)
	}
	if before != nil && !before.obs.Deleted {
		b.setRows(r, before.obs.Links, false)
	}
	if kind != event.Deleted && b.setRows(r, v.obs.Links, true) {
		b.relations.linking = append(b.relations.linking, r)
	}
}

func (b *batch) setRows(r *record, links []event.Link, there bool) (any bool) {
	for i := range links {
		if id := links[i].Record; id != "" {
			if b.relations.rows == nil {
				b.relations.rows = map[linkRow]bool{}
			}
			b.relations.rows[linkRow{linkKey(b.set.id, id), r.id}] = there
			any = true
		}
	}
	return any
}

// relink logs an event of each record whose links lead to a record that this batch has
// created or deleted, or to one that has not become what the items of the batch
// announced.
func (b *batch) relink(ctx context.Context, q preparer) error {
	describers, err := b.describers(ctx, q)
	if err != nil || len(describers)+len(b.relations.linking) == 0 {
		return err
	}
	own, byID := make(map[string]*record, len(b.records)), make(map[int64]*record, len(b.records))
	for _, r := range b.records {
		own[r.identifier], byID[r.id] = r, r
	}
	ours := slices.Clone(b.relations.linking)
	others := make([]int64, 0, len(describers))
	for _, id := range describers {
		if r := byID[id]; r != nil {
			ours = append(ours, r)
		} else {
			others = append(others, id)
		}
	}
	if err := b.relinkRecords(ctx, q, ours, own); err != nil {
		return err
	}
	for page := range slices.Chunk(others, relinkedAtOnce) { // there may be as many as the set has records
		records, err := b.recordsByID(ctx, q, page)
		if err != nil {
			return err
		}
		touched := b.touched
		b.touched = nil
		if err := b.relinkRecords(ctx, q, records, own); err != nil {
			return err
		}
		if err := b.saveTouched(ctx); err != nil {
			return err
		}
		b.touched = touched
	}
	return nil
}

const relinkedAtOnce = 1000

// describers are the records that linked, before the batch, to a record that it has
// created or deleted.
func (b *batch) describers(ctx context.Context, q preparer) (ids []int64, err error) {
	if len(b.relations.turned) == 0 {
		return nil, nil
	}
	some := false
	if err := q.Each(ctx, "SELECT 1 FROM link LIMIT 1", nil, func(*sql.Rows) error { some = true; return nil }); err != nil || !some {
		return nil, err
	}
	keys := make([]int64, len(b.relations.turned))
	for i, r := range b.relations.turned {
		keys[i] = linkKey(b.set.id, r.identifier)
	}
	err = each(ctx, q, "SELECT record FROM link WHERE key IN ("+database.Params(lookup)+")", keys, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	})
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// recordsByID loads records that are not in the batch.
func (b *batch) recordsByID(ctx context.Context, q preparer, ids []int64) ([]*record, error) {
	var items []*event.Item
	if err := each(ctx, q, "SELECT identifier FROM record WHERE id IN ("+database.Params(lookup)+")", ids, func(rows *sql.Rows) error {
		it := &event.Item{}
		err := rows.Scan(&it.Record)
		items = append(items, it)
		return err
	}); err != nil {
		return nil, err
	}
	look := &batch{l: b.l, in: &event.Batch{Source: b.in.Source, Items: items}, set: b.set, source: b.source, late: b.late}
	return look.find(ctx, q)
}

// relinkRecords logs an event of each of these records whose links are not as
// they were when its last event was logged.
func (b *batch) relinkRecords(ctx context.Context, q preparer, records []*record, own map[string]*record) error {
	if err := b.loadBodies(ctx, q, records); err != nil {
		return err
	}
	others := map[string]bool{}
	for _, r := range records {
		switch {
		case !r.live:
		case r.last == nil:
			return r.missingEvent()
		default:
			addTargets(others, r.last.obs.Links)
		}
	}
	maps.DeleteFunc(others, func(id string, _ bool) bool { return own[id] != nil })
	if err := b.living(ctx, q, others); err != nil {
		return err
	}
	has := func(id string) bool {
		if r := own[id]; r != nil {
			return r.live
		}
		return others[id]
	}
	for _, r := range records {
		if !r.live {
			continue
		}
		links := resolve(r.last.obs.Links, has)
		if slices.Equal(links, r.last.obs.Links) {
			continue
		}
		v := *r.last
		v.obs.Links, v.arrived, v.gone = links, false, ""
		r.digest = v.obs.Digest(b.set.Content)
		b.touch(r)
		if err := b.appendEvent(ctx, r, r.last, event.Updated, &v); err != nil {
			return err
		}
	}
	return nil
}

// loadBodies loads the last events of records where they are not at hand.
func (b *batch) loadBodies(ctx context.Context, q preparer, records []*record) error {
	need := map[int64]*record{}
	var ids []int64
	for _, r := range records {
		if id := eventID(b.set.id, r.seq); r.last == nil && r.seq != 0 && need[id] == nil {
			need[id] = r
			ids = append(ids, id)
		}
	}
	return each(ctx, q, "SELECT "+eventColumns+" FROM event WHERE id IN ("+database.Params(lookup)+")", ids, func(rows *sql.Rows) error {
		var c columns
		sealed, err := c.scan(rows)
		if err != nil {
			return err
		}
		raw, err := unseal(c, sealed)
		if err != nil {
			return fmt.Errorf("event %d: %w: run bridge verify", c.seq, err)
		}
		r := need[c.id()]
		if c.record != r.id {
			return fmt.Errorf("record %q: event %d, which is stored as its last one, is of another record: %w: run bridge verify", r.identifier, c.seq, ErrDamaged)
		}
		r.last = new(body)
		return readBody(raw, r.last)
	})
}

// saveLinks writes what differs, in the order of the table.
func (b *batch) saveLinks(ctx context.Context) error {
	for _, row := range slices.SortedFunc(maps.Keys(b.relations.rows), func(x, y linkRow) int {
		return cmp.Or(cmp.Compare(x.key, y.key), cmp.Compare(x.record, y.record))
	}) {
		text := "DELETE FROM link WHERE key = $1 AND record = $2"
		if b.relations.rows[row] {
			text = "INSERT OR IGNORE INTO link (key, record) VALUES ($1, $2)"
		}
		if err := b.tx.Exec(ctx, text, row.key, row.record); err != nil {
			return err
		}
	}
	return nil
}
