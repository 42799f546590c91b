package eventlog

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// decider returns what decisions need to know of the batch.
func (b *batch) decider() *decider {
	return &decider{source: b.source.id, ordering: b.source.ordering, mode: b.in.Mode, content: b.set.Content, rank: b.source.rank,
		others: b.source.others, targets: b.targets, parts: b.in.Parts}
}

// decide decides on one item and carries the decision out.
func (b *batch) decide(ctx context.Context, a *decider, i int) (event.Outcome, error) {
	it, r := &b.in.Items[i], b.records[i]
	b.lookUpSeen(r, it)
	d, err := a.decide(r, it, &b.hashes[i])
	if err != nil {
		return 0, err
	}
	if d.broken {
		b.out.Broken = append(b.out.Broken, i)
	}
	if err := b.assignID(r); err != nil {
		return 0, err
	}
	if d.met {
		b.walk.markSeen(r.id, sideOf(it.Place.Part, d.old), d.present)
	}
	if err := b.saveWaiting(ctx, i, r, &d); err != nil {
		return 0, err
	}
	if d.changed {
		b.touch(r)
	}
	if d.kind != 0 {
		return d.outcome, b.logChange(ctx, r, &d)
	}
	return d.outcome, nil
}

// lookUpSeen looks up whether the walk has met the record.
func (b *batch) lookUpSeen(r *record, it *event.Item) {
	r.met, r.metPart = false, false
	if b.in.Mode == event.ModeWalk && r.id != 0 {
		r.met, r.metPart = b.walk.has(r.id), b.walk.hasIn(it.Place.Part, r.id)
	}
}

// saveWaiting stores what waits with the record.
func (b *batch) saveWaiting(ctx context.Context, i int, r *record, d *decision) error {
	switch d.pending {
	case put:
		if err := b.keepPending(ctx, i, r, d); err != nil {
			return err
		}
	case remove:
		if err := b.dropPending(ctx, r); err != nil {
			return err
		}
	}
	switch d.held {
	case put:
		if err := b.keepHeld(ctx, r); err != nil {
			return err
		}
	case remove:
		if err := b.dropHeld(ctx, r); err != nil {
			return err
		}
	}
	switch d.regressed {
	case put:
		if err := b.keepRegressed(ctx, i, r); err != nil {
			return err
		}
	case remove:
		if err := b.dropRegressed(ctx, r); err != nil {
			return err
		}
	}
	switch d.order {
	case put:
		return b.keepOrder(ctx, &b.in.Items[i], r)
	case remove:
		return b.dropOrder(ctx, r)
	}
	return nil
}

// assignID gives a record that is met for the first time its number.
func (b *batch) assignID(r *record) error {
	if r.id != 0 {
		return nil
	}
	b.set.records++
	if b.set.records >= 1<<32 {
		return errors.New("the set is full: it holds 4 billion records")
	}
	r.id, r.fresh = b.set.id<<32|b.set.records, true
	b.fresh = append(b.fresh, r)
	if b.byID != nil {
		b.byID[r.id] = r
	}
	return nil
}

func (b *batch) touch(r *record) {
	if !r.dirty {
		r.dirty = true
		b.touched = append(b.touched, r)
	}
}

// logChange logs the event of a decision. In a set in mode reference it also logs that
// of the record that has the URI from then on.
func (b *batch) logChange(ctx context.Context, r *record, d *decision) error {
	var left int64
	if b.locs != nil {
		var err error
		if left, err = b.locate(ctx, r, d); err != nil {
			return err
		}
	}
	switch d.kind {
	case event.Created:
		b.set.Live++
	case event.Deleted:
		b.set.Live--
	}
	if err := b.resolveDocument(ctx, d.body); err != nil {
		return err
	}
	if err := b.appendEvent(ctx, r, d.before, d.kind, d.body); err != nil {
		return err
	}
	return b.inheritURI(ctx, left)
}

// resolveDocument gives the document of a body its number.
func (b *batch) resolveDocument(ctx context.Context, v *body) (err error) {
	if v.document >= 0 {
		return nil
	}
	if len(b.in.Documents) == 0 {
		v.document = 0
		return nil
	}
	v.document, err = b.documentOf(ctx, b.in.Documents[^v.document])
	return err
}

// appendEvent gives the event its place in the log. before is the body of the event
// before of the same record.
func (b *batch) appendEvent(ctx context.Context, r *record, before *body, kind event.Kind, v *body) error {
	source, err := b.sourceWeight(ctx, v.document)
	if err != nil {
		return err
	}
	if b.seq++; b.seq > maxSeq {
		return errors.New("the log is full: it holds a trillion events")
	}
	b.set.Newest = max(b.now, b.set.Newest+1)
	c := columns{seq: int64(b.seq), set: b.set.id, record: r.id, kind: int64(kind), observed: int64(b.set.Newest)}
	if v.back = 0; b.set.Last != 0 {
		v.back = c.seq - int64(b.set.Last)
	}
	if v.before = 0; kind == event.Updated || kind == event.Deleted {
		v.before = c.seq - int64(r.seq)
	}
	b.set.Events++
	if kind != event.Rejected { // which belongs to no segment and changes no state
		b.place(event.Seq(c.seq), kind, b.set.Newest, v, source)
		b.relate(r, before, kind, v)
		b.set.Last, b.set.LastObserved = b.seq, b.set.Newest
		r.seq, r.last = b.seq, v
	}
	if b.out.First == 0 {
		b.out.First = b.seq
	}
	b.out.Last = b.seq
	switch kind {
	case event.Created:
		b.out.Created++
	case event.Updated:
		b.out.Updated++
	case event.Deleted:
		b.out.Deleted++
	case event.Rejected:
		b.out.Rejected++
	}
	sealed := b.blob(func(to []byte) []byte {
		from := len(to)
		to = appendBody(to, v)
		return binary.LittleEndian.AppendUint32(to, checksum(c, to[from:]))
	})
	return b.events.Add(c.id(), c.record, c.kind, c.observed, sealed)
}

// NeedsContent reports of each item of a batch that is to be appended whether
// its content is needed, or its URL has to be asked; in a set that keeps no
// contents, whether it applies. It writes nothing. The answer is Append's own, by the same decision, as long as a record stands in
// the batch once and nobody else appends meanwhile; where it has become another
// one, Append keeps the item as pending.
func (l *Log) NeedsContent(ctx context.Context, in *event.Batch) ([]bool, error) {
	var out []bool
	err := l.use(ctx, func(ctx context.Context, tx *sqlite.Tx) (err error) {
		out, err = l.needsContent(ctx, tx, in)
		return err
	})
	return out, err
}

func (l *Log) needsContent(ctx context.Context, tx *sqlite.Tx, in *event.Batch) ([]bool, error) {
	b := &batch{l: l, tx: tx, in: in}
	if err := b.load(ctx, tx); err != nil {
		return nil, err
	}
	var err error
	if b.walk = newWalk(); !in.Start && in.Mode == event.ModeWalk {
		if b.walk, err = l.walkOf(ctx, tx, in.Source); err != nil {
			return nil, err
		}
	}
	if b.records, err = b.find(ctx, tx); err != nil {
		return nil, err
	}
	if err := b.hashStates(); err != nil {
		return nil, err
	}
	if err := errors.Join(b.loadLast(ctx, tx), b.loadOwnIDs(ctx, tx)); err != nil {
		return nil, err
	}
	out := make([]bool, len(in.Items))
	a := b.decider()
	for i := range in.Items {
		r := b.records[i]
		if in.Start {
			r.regressed, r.order = nil, nil
		}
		it := in.Items[i]
		b.lookUpSeen(r, &it)
		it.Fetched, it.Pending = false, ""
		d, err := a.decide(r, &it, &b.hashes[i])
		if err != nil {
			return nil, err
		}
		// In another set than a mirror what applies needs what HTTP says of it.
		out[i] = d.outcome == event.NeedsContent || b.set.Content != event.Mirror && !it.Deleted && (d.outcome == event.Logged || d.outcome == event.Suppressed)
	}
	return out, nil
}
