package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// batch is one Append under way: the stored state it started from and the rows
// it has made so far. Nothing of it is visible before the commit.
type batch struct {
	l             *Log
	tx            *database.Tx
	in            *event.Batch
	now           event.Micros
	wall          event.Micros // that of the clock, for what is due by it
	set           setRow
	storedSet     setRow // as it was before the batch
	changesBefore int64  // rows that the connection had changed before a lazy batch
	deferred      bool   // only the cursor has changed: it stays in memory for now
	source        sourceRow
	walk          *walk
	out           event.Appended

	records   []*record                // of the items, then those that inherited a URI
	byID      map[int64]*record        // made when it is first needed
	hashes    []hashes                 // of the items
	bytes     []byte                   // memory for the blobs of rows
	touched   []*record                // in the order of their first change
	seq       event.Seq                // the last one given out in the whole log
	docs      map[event.Document]int64 // ids in table document of those that were needed so far
	feeds     map[string]*event.Feed   // of these documents, by their encoded bytes
	weights   map[int64]int64          // of the atom:source that each document gives its entries
	has       map[hasPage]*page        // pages that the batch has changed
	locs      *locs
	late      *lateKeys // of the transaction; nil where nothing is written
	targets   targets
	relations relations
	closed    []segmentRow
	open      segmentRow
	fresh     []*record // in the order of their numbers
	filter    *keyFilter
	events    *database.Bulk
}

// sourceRow is what an Append needs of its Source.
type sourceRow struct {
	id        event.SourceID
	stored    event.Progress
	rank      map[event.SourceID]int64 // of all Sources of the set
	others    bool                     // the set has other Sources
	members   map[event.SourceID]bool  // those of its Sources that are sets of the log
	resting   bool                     // no cursor is stored
	pending   bool                     // the Source has pending observations
	regressed bool                     // or regressed ones
	held      bool                     // or held deletions
	orders    bool                     // or rows in seen_order

	ordering ordering
}

// check returns an error if a batch breaks the rules for callers.
func check(in *event.Batch) error {
	if in.Next != nil && len(in.Next) == 0 {
		return errors.New("an empty cursor: nil ends a walk")
	}
	if in.Mode == event.ModeSubmission && (in.Next != nil || in.Progress != nil || in.Start) || in.Mode != event.ModeSubmission && len(in.Rejections) > 0 {
		return errors.New("what is submitted is no part of a walk")
	}
	for i := range in.Items {
		it := in.Items[i]
		switch {
		case it.Record == "":
			return fmt.Errorf("item %d: a record without an identifier", i)
		case len(in.Documents) > 0 && (it.Document < 0 || it.Document >= len(in.Documents)):
			return fmt.Errorf("item %d, record %q: it comes from document %d of %d", i, it.Record, it.Document, len(in.Documents))
		case it.Preferred < 0 || it.Preferred > 0 && it.Preferred >= len(it.Representations):
			return fmt.Errorf("item %d, record %q: representation %d of %d is preferred", i, it.Record, it.Preferred, len(it.Representations))
		}
	}
	return nil
}

// run loads the stored state, decides on each item, logs each rejection, and writes the
// result.
func (b *batch) run(ctx context.Context) error {
	q := b.tx
	var err error
	if b.in.Lazy {
		if b.changesBefore, err = b.tx.Changes(ctx); err != nil {
			return err
		}
	}
	if err := b.load(ctx, q); err != nil {
		return err
	}
	if b.in.Mode != event.ModeSubmission {
		if err := b.beginWalk(ctx); err != nil {
			return err
		}
	}
	if b.records, err = b.find(ctx, q); err != nil {
		return err
	}
	if err := b.prepare(ctx, q); err != nil {
		return err
	}
	b.out.Outcomes = make([]event.Outcome, len(b.in.Items))
	a := b.decider()
	for i := range b.in.Items {
		if b.out.Outcomes[i], err = b.appendItem(ctx, a, i); err != nil {
			return err
		}
	}
	for i := range b.in.Rejections {
		if err := b.reject(ctx, &b.in.Rejections[i]); err != nil {
			return err
		}
	}
	if err := b.relink(ctx, q); err != nil {
		return err
	}
	return b.save(ctx)
}

// load reads the rows of the set and the Source.
func (b *batch) load(ctx context.Context, q preparer) error {
	b.source = sourceRow{id: b.in.Source, rank: map[event.SourceID]int64{}, members: map[event.SourceID]bool{}}
	found := false
	err := q.Each(ctx, `SELECT src.set_id, `+progressColumns+`, log.last_event, log.sum, (SELECT coalesce(max(upto_seq), 0) FROM epoch),
	EXISTS (SELECT 1 FROM pending WHERE source = src.id), EXISTS (SELECT 1 FROM regressed WHERE source = src.id), EXISTS (SELECT 1 FROM held_deletion WHERE source = src.id),
	EXISTS (SELECT 1 FROM seen_order WHERE source = src.id), src.kind
FROM log, source src WHERE src.id = $1`, []any{int64(b.in.Source)}, func(rows *sql.Rows) error {
		found = true
		var last, lastSum int64
		var kind string
		var p progressRow
		src := &b.source
		err := rows.Scan(append(append([]any{&b.set.id}, p.columns()...), &last, &lastSum, &b.seq, &src.pending, &src.regressed, &src.held, &src.orders, &kind)...)
		src.ordering = orderingOfKind(kind)
		if err == nil {
			err = p.check(b.in.Source)
		}
		src.stored = p.Progress
		if err == nil && lastSum != sumOf(last) {
			err = fmt.Errorf("the last event of the log: %w: run bridge verify", ErrDamaged)
		}
		b.seq = max(b.seq, seqOf(last))
		return err
	})
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("no Source %d in the log", b.in.Source)
	}
	if err := q.Each(ctx, selectSets+" WHERE id = $1", []any{b.set.id}, b.set.scan); err != nil {
		return err
	}
	if b.set.Name == "" {
		return errRemoved
	}
	if b.set.Last > b.seq {
		return behind(b.seq, b.set.Last)
	}
	b.storedSet = b.set
	b.beginFilter()
	b.source.resting = b.source.stored.Cursor.Data == nil
	b.l.unsaved.update(b.source.id, &b.source.stored.Cursor)
	if err := q.Each(ctx, "SELECT id, rank, kind = '"+Member+"' FROM source WHERE set_id = $1 AND kind <> '"+Target+"'", []any{b.set.id}, func(rows *sql.Rows) error {
		var id event.SourceID
		var rank int64
		var member bool
		err := rows.Scan(&id, &rank, &member)
		b.source.rank[id] = rank
		if member {
			b.source.members[id] = true
		}
		return err
	}); err != nil {
		return err
	}
	b.source.others = len(b.source.rank) > 1
	return nil
}

// behind returns the error of a log that has an event after the one that is noted as the
// last: new events would get Seqs that are in use.
func behind(noted, last event.Seq) error {
	return fmt.Errorf("the last event is recorded as %d, and the log has event %d: %w: run bridge verify", noted, last, ErrDamaged)
}

// beginWalk compares the batch's cursor with the stored one, and loads the walk under
// way.
func (b *batch) beginWalk(ctx context.Context) (err error) {
	if b.source.stored.Cursor.Version != b.in.Cursor {
		return event.ErrConflict
	}
	b.l.undoWalk(b.tx, b.source.id)
	if b.in.Start {
		if err := b.l.endWalk(ctx, b.tx, b.source.id); err != nil {
			return err
		}
	}
	b.walk, err = b.l.walkOf(ctx, b.tx, b.source.id)
	return err
}

func (b *batch) find(ctx context.Context, q preparer) ([]*record, error) {
	b.hashes = make([]hashes, len(b.in.Items))
	if err := b.onAllCores(func(i int) {
		b.normalize(b.in.Items[i])
		b.hashes[i].key = event.KeyBits(b.in.Items[i].Record)
	}); err != nil {
		return nil, err
	}
	return b.recordsOf(ctx, q, b.in.Items)
}

// normalize fills in what a document may leave out: the claim, and the URI of a record in
// mode reference.
func (b *batch) normalize(it *event.Item) {
	if it.Claim == 0 {
		it.Claim = it.ClaimOf()
	}
	if b.set.Content != event.Reference {
		it.Loc = ""
	} else if it.Loc == "" && it.Preferred < len(it.Representations) {
		it.Loc = uriOf(it.Representations[it.Preferred].Href)
	}
}

// uriOf returns the URI under which lists name what is at an address of the Source. One that
// would be too long for a list to be read stays as it is.
func uriOf(href string) string {
	if uri := event.URI(href); len(uri) <= event.MaxHref {
		return uri
	}
	return href
}

// originalURI returns the URI by which documents name the original of a record that is its own
// original, if its Source writes that address otherwise; else "".
func originalURI(o *event.Observation) string {
	if o.Via.Href != "" && !ownVia(o) || o.Preferred >= len(o.Representations) {
		return ""
	}
	href := o.Representations[o.Preferred].Href
	if uri := uriOf(href); uri != href {
		return uri
	}
	return ""
}

// ownVia reports whether the original that a record names is its own preferred representation.
func ownVia(o *event.Observation) bool {
	return o.Preferred < len(o.Representations) && o.Via.Href == o.Representations[o.Preferred].Href
}

// linksAsURIs returns the links with the URIs by which documents name what they lead to. A profile
// is a name: it stays as it is.
func linksAsURIs(links []event.Link) []event.Link {
	cloned := false
	for i := range links {
		l := &links[i]
		if l.Rel == event.RelProfile || !event.Public(l.Href) {
			continue
		}
		if uri := uriOf(l.Href); uri != l.Href {
			if !cloned {
				links, cloned = slices.Clone(links), true
			}
			links[i].Href = uri
		}
	}
	return links
}

// alternatesAsURIs returns the representations of a record in mode reference with the URIs by which
// documents name them. The preferred one stays as it is, since documents name that by the Loc.
func alternatesAsURIs(o *event.Observation) []event.Representation {
	reps, cloned := o.Representations, false
	for i := range reps {
		if i == o.Preferred || !event.Public(reps[i].Href) {
			continue
		}
		if uri := uriOf(reps[i].Href); uri != reps[i].Href {
			if !cloned {
				reps, cloned = slices.Clone(reps), true
			}
			reps[i].Href = uri
		}
	}
	return reps
}

// denormalize undoes normalize for an observation that is kept: its claim is the one of
// the document.
func denormalize(obs event.Observation) event.Observation {
	if obs.Preferred < len(obs.Representations) && obs.Loc == uriOf(obs.Representations[obs.Preferred].Href) {
		obs.Loc = ""
	}
	return obs
}

// onAllCores calls do for each item, in no order. It returns a panic of do as an error.
func (b *batch) onAllCores(do func(i int)) error {
	n := len(b.in.Items)
	size := max(1000, n/runtime.GOMAXPROCS(0)+1)
	parts := make(chan error)
	started := 0
	for from := 0; from < n; from += size {
		started++
		go func() {
			parts <- defect.Guard(func() error {
				for i := from; i < min(from+size, n); i++ {
					do(i)
				}
				return nil
			})
		}()
	}
	var err error
	for range started {
		err = errors.Join(err, <-parts)
	}
	return err
}

// prepare loads what the items will need in bulk: the last events of records
// that may change, the users of the URIs of a set in mode reference, and the
// open segment.
func (b *batch) prepare(ctx context.Context, q preparer) error {
	if err := b.loadOpenSegment(ctx, q); err != nil {
		return err
	}
	if err := b.loadTargets(ctx, q); err != nil {
		return err
	}
	if err := b.hashStates(); err != nil {
		return err
	}
	if err := b.loadLast(ctx, q); err != nil {
		return err
	}
	b.docs, b.feeds, b.weights = map[event.Document]int64{}, map[string]*event.Feed{}, map[int64]int64{}
	b.events = b.tx.Bulk(ctx, insertEvents, 5)
	if b.set.Content != event.Reference {
		return nil
	}
	b.locs = newLocs(b.set.id, len(b.in.Items))
	keys := make([]int64, 0, len(b.in.Items))
	for i, r := range b.records {
		if h := &b.hashes[i]; h.loc != 0 && b.filter.has(uriKey(h.loc)) {
			keys = append(keys, h.loc)
		}
		if last := r.last; last != nil && last.obs.Loc != "" {
			keys = append(keys, b.locs.key(last.obs.Loc))
		}
		for j := range r.sources {
			v, err := r.sources[j].suppressedBody(r)
			if err != nil {
				return err
			}
			if v != nil { // it may become the authority
				keys = append(keys, b.locs.key(v.obs.Loc))
			}
		}
	}
	return b.locs.load(ctx, q, keys, b.late)
}

// hashes are what is hashed of an item.
type hashes struct {
	key    int64 // of the identifier
	loc    int64 // of the URI in mode reference
	digest int64 // of the state; 0 of a deletion
	// same: the item repeats the last report of its Source, and will when its turn comes, so
	// only the key was computed.
	same bool
}

// hashStates hashes what may change the state of a record. The state has URIs where the Source writes
// none: of links, of an original elsewhere, and in modes other than reference of one that is its own.
func (b *batch) hashStates() error {
	reference := b.set.Content == event.Reference
	return b.onAllCores(func(i int) {
		it, r, h := b.in.Items[i], b.records[i], &b.hashes[i]
		if b.in.Mode == event.ModeWalk && r.pending == nil && len(r.sources) == 1 && !r.shared {
			s := &r.sources[0]
			h.same = s.source == b.source.id && len(s.parts) == 0 && s.alive == !it.Deleted && s.claim == it.Claim && s.stamp == it.Order && s.place == it.Place &&
				inOrder(s.stamp, s.place, b.source.ordering)
		}
		if h.same || it.Quarantine || it.Unselected {
			return
		}
		it.Links = linksAsURIs(it.Links)
		if event.OnTheWeb(it.Via.Href) && !ownVia(&it.Observation) {
			it.Via.Href = uriOf(it.Via.Href)
		}
		if it.Deleted {
			return
		}
		it.Links = b.targets.resolve(it.Links)
		if reference {
			it.Representations = alternatesAsURIs(&it.Observation)
		} else {
			it.Loc = originalURI(&it.Observation)
		}
		h.digest = it.Digest(b.set.Content)
		if reference {
			h.loc = locKey(b.set.id, it.Loc)
		}
	})
}

// loadLast loads the last events of records that may change. Of a record that
// several Sources have it is always needed: its authority may change.
func (b *batch) loadLast(ctx context.Context, q preparer) error {
	var need []*record
	for i, r := range b.records {
		h := &b.hashes[i]
		returned := b.targets.ownIDs[b.in.Items[i].SourceIdentifier] != nil // perhaps: then it goes, unchanged or not
		if h.same || len(r.sources) == 1 && b.source.id == r.sources[0].source && r.live && h.digest == r.digest && !returned {
			continue
		}
		need = append(need, r)
	}
	return b.loadBodies(ctx, q, need)
}

// decider returns the data that all decisions of the batch share.
func (b *batch) decider() *decider {
	return &decider{source: b.source.id, ordering: b.source.ordering, mode: b.in.Mode, content: b.set.Content, rank: b.source.rank,
		others: b.source.others, members: b.source.members, targets: b.targets, parts: b.in.Parts}
}

// appendItem decides what an item means for its record (decider.decide), and does it:
// the event, the state and the rows that follow are added to the batch.
func (b *batch) appendItem(ctx context.Context, a *decider, i int) (event.Outcome, error) {
	it, r := b.in.Items[i], b.records[i]
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
	if d.seen {
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

// lookUpSeen looks up whether the walk has seen the record.
func (b *batch) lookUpSeen(r *record, it *event.Item) {
	r.seen, r.seenInPart = false, false
	if b.in.Mode == event.ModeWalk && r.id != 0 {
		r.seen, r.seenInPart = b.walk.has(r.id), b.walk.hasIn(it.Place.Part, r.id)
	}
}

// assignID gives a record that is seen for the first time its number.
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
	b.addToFilter(r.key)
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

// logChange logs the event of a decision. In a set in mode reference it also logs an
// event of the record that owns the former URI from then on.
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

// appendEvent gives the event its place in the log. before is the body of the previous
// event of the same record.
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
	v.history = b.set.History
	if err := v.follow(c.seq, r, before); err != nil {
		return err
	}
	b.set.Events++
	if kind != event.Rejected { // which belongs to no segment and changes no state
		b.place(event.Seq(c.seq), kind, b.set.Newest, v, source)
		b.relate(r, before, kind, v)
		b.set.Last, b.set.LastObserved = b.seq, b.set.Newest
		r.seq, r.last = b.seq, v
	}
	b.out.First = cmp.Or(b.out.First, b.seq)
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

// blob returns the bytes that fill appends to an empty slice. Rows share the memory.
func (b *batch) blob(fill func(b []byte) []byte) []byte {
	if cap(b.bytes)-len(b.bytes) < 1<<10 {
		b.bytes = make([]byte, 0, min(1<<16, 2<<10*(len(b.in.Items)+1)))
	}
	from := len(b.bytes)
	b.bytes = fill(b.bytes)
	return b.bytes[from:len(b.bytes):len(b.bytes)]
}

// reject logs an event of kind rejected. The event belongs to no record: a record with
// the same identifier does not change.
func (b *batch) reject(ctx context.Context, r *event.Rejection) error {
	var from event.Document
	if len(b.in.Documents) > 0 {
		from = b.in.Documents[0]
	}
	doc, err := b.documentOf(ctx, from)
	if err != nil {
		return err
	}
	return b.appendEvent(ctx, &record{}, nil, event.Rejected, &body{document: doc, reason: r.Reason,
		obs: event.Observation{Record: r.Record, Title: r.Title, SourceIdentifier: r.SourceIdentifier}})
}

// save writes the rows that follow from the items, then the state of the walk.
func (b *batch) save(ctx context.Context) error {
	if err := b.events.Flush(); err != nil {
		return err
	}
	if err := b.saveTouched(ctx); err != nil {
		return err
	}
	if err := b.saveFresh(ctx); err != nil {
		return err
	}
	if err := b.saveHas(ctx); err != nil {
		return err
	}
	if b.locs != nil {
		b.late.addLocs(b.locs.changed())
	}
	if err := b.saveLinks(ctx); err != nil {
		return err
	}
	if err := b.saveSegments(ctx); err != nil {
		return err
	}
	if b.out.Last != 0 {
		last := eventID(b.set.id, b.out.Last)
		if err := b.tx.Exec(ctx, "UPDATE log SET last_event = $1, sum = $2", last, sumOf(last)); err != nil {
			return err
		}
	}
	if b.set != b.storedSet {
		if err := b.tx.Exec(ctx, "UPDATE sets SET last_seq = $2, last_observed = $3, clock = $4, live = $5, events = $6, records = $7 WHERE id = $1",
			b.set.id, int64(b.set.Last), int64(b.set.LastObserved), int64(b.set.Newest), b.set.Live, b.set.Events, b.set.records); err != nil {
			return err
		}
	}
	if len(b.in.Quarantine) > 0 {
		if err := b.quarantine(ctx); err != nil {
			return err
		}
	}
	if b.in.Mode == event.ModeSubmission {
		return nil
	}
	return b.saveProgress(ctx)
}

// saveTouched writes the changes of records: which Sources have them, what these have
// reported, and the rows in table record that exist already.
func (b *batch) saveTouched(ctx context.Context) error {
	replaced := b.tx.Bulk(ctx, replaceRecords, 5)
	present := b.tx.Bulk(ctx, replacePresent, 4)
	for _, r := range b.touched {
		if len(r.sources) == 0 {
			continue // seen, quarantined or pending: nothing is known of it yet
		}
		for i := range r.sources {
			s := &r.sources[i]
			if err := b.holds(ctx, s, r.id); err != nil {
				return err
			}
			switch {
			case i == r.authority && s.stored:
				if err := b.tx.Exec(ctx, "DELETE FROM presence WHERE record = $1 AND source = $2", r.id, int64(s.source)); err != nil {
					return err
				}
			case i != r.authority && (s.dirty || !s.stored):
				if s.unsaved != nil {
					if err := b.resolveDocument(ctx, s.unsaved); err != nil {
						return err
					}
					s.suppressed, s.unsaved = appendBody(nil, s.unsaved), nil
				}
				if err := present.Add(r.id, int64(s.source), appendSourceState(nil, r.id, s), s.suppressed); err != nil {
					return err
				}
			}
		}
		if r.fresh {
			continue // see saveFresh
		}
		if err := b.addRow(replaced, r); err != nil {
			return err
		}
	}
	if err := replaced.Flush(); err != nil {
		return err
	}
	return present.Flush()
}

// addRow adds the row of a record.
func (b *batch) addRow(rows *database.Bulk, r *record) error {
	var digest, state any
	if r.live {
		digest = r.digest
	}
	if len(r.sources) > 0 {
		state = b.blob(func(to []byte) []byte { return appendSourceState(to, r.id, &r.sources[r.authority]) })
	}
	return rows.Add(r.id, r.identifier, int64(r.seq), digest, state)
}

// saveFresh writes the new records, in the order of their numbers. Their keys follow.
func (b *batch) saveFresh(ctx context.Context) error {
	rows := b.tx.Bulk(ctx, insertRecords, 5)
	for _, r := range b.fresh {
		if err := b.addRow(rows, r); err != nil {
			return err
		}
	}
	keys := keysOf(b.fresh)
	if b.in.Mode == event.ModeSubmission { // they are few, and it would wait before its COMMIT anyhow, for the contents that they name
		if err := b.l.saveRecordKeys(ctx, b.tx, keys); err != nil {
			return err
		}
	} else {
		b.late.records = append(b.late.records, keys)
	}
	return rows.Flush()
}

func (b *batch) saveProgress(ctx context.Context) error {
	p := b.source.stored
	if b.in.Progress != nil {
		p = *b.in.Progress
	}
	b.out.Cursor = b.source.stored.Cursor.Version + 1
	p.Cursor = event.Cursor{Version: b.out.Cursor, Data: b.in.Next}
	since := b.l.unsaved.since(b.source.id, b.now)
	if b.in.Next == nil {
		b.endFilter()
		if err := b.l.endWalk(ctx, b.tx, b.source.id); err != nil {
			return err
		}
	}
	if lazy, err := b.mayDefer(ctx, &p, since); err != nil {
		return err
	} else if lazy {
		b.deferred = true
		b.l.unsaved.put(b.source.id, unsavedCursor{p.Cursor, true, since})
		return nil
	}
	if b.in.Next != nil {
		if err := b.l.saveWalk(ctx, b.tx, b.source.id, b.walk); err != nil {
			return err
		}
	}
	if err := b.tx.Exec(ctx, "UPDATE source SET version = $2, cursor = $3, mark = $4, gap = $5, progress_sum = $6 WHERE id = $1",
		int64(b.source.id), p.Cursor.Version, p.Cursor.Data, stampArg(p.Mark), p.Gap, progressSum(&p)); err != nil {
		return err
	}
	if b.in.Progress == nil {
		return nil // Memory may be large, and has not changed
	}
	return b.tx.Exec(ctx, "UPDATE source SET memory = $2 WHERE id = $1", int64(b.source.id), p.Memory)
}

// mayDefer reports whether the batch has changed nothing but the cursor, so that it may
// stay in memory. The end of a walk with a stored cursor is never deferred, and no cursor
// is deferred for longer than maxUnsaved.
func (b *batch) mayDefer(ctx context.Context, p *event.Progress, since event.Micros) (bool, error) {
	was := &b.source.stored
	if !b.in.Lazy || p.Mark != was.Mark || p.Gap != was.Gap || !bytes.Equal(p.Memory, was.Memory) {
		return false, nil
	}
	if b.in.Next == nil && !b.source.resting || b.in.Next != nil && b.now-since >= maxUnsaved {
		return false, nil
	}
	changes, err := b.tx.Changes(ctx)
	return changes == b.changesBefore, err
}

// NeedsContent reports, for each item of a batch that is to be appended, whether its
// content is needed or its URL has to be asked; in a set that keeps no contents, whether
// the item applies. It writes nothing. It decides as Append does, so its answer holds as
// long as each record is in the batch only once and nobody else appends meanwhile. If the
// answer has changed by then, Append keeps the item as pending.
func (l *Log) NeedsContent(ctx context.Context, in *event.Batch) ([]bool, error) {
	var out []bool
	err := l.use(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
		out, err = l.needsContent(ctx, tx, in)
		return err
	})
	return out, err
}

func (l *Log) needsContent(ctx context.Context, tx *database.Tx, in *event.Batch) ([]bool, error) {
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
	if err := errors.Join(b.loadOwnIDs(ctx, tx), b.hashStates()); err != nil {
		return nil, err
	}
	if err := b.loadLast(ctx, tx); err != nil {
		return nil, err
	}
	out := make([]bool, len(in.Items))
	a := b.decider()
	for i := range in.Items {
		r := b.records[i]
		if in.Start {
			r.regressed, r.order = nil, nil
		}
		it := *in.Items[i]
		b.lookUpSeen(r, &it)
		it.Fetched, it.Pending = false, ""
		d, err := a.decide(r, &it, &b.hashes[i])
		if err != nil {
			return nil, err
		}
		// In a set that is no mirror, an item that applies needs the answer of its URL.
		// The log does not keep inline content, so a regressed item has none when it is
		// applied later.
		out[i] = d.outcome == event.NeedsContent || d.outcome == event.Regressed && it.Inline != nil || b.set.Content != event.Mirror && !it.Deleted && (d.outcome == event.Logged || d.outcome == event.Suppressed)
	}
	return out, nil
}
