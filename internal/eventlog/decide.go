package eventlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// take decides of one item and does what follows, in memory.
func (b *batch) take(ctx context.Context, i int) (event.Outcome, error) {
	it, r := &b.in.Items[i], b.records[i]
	v, broken := b.rule(it, r)
	if broken {
		b.out.Broken = append(b.out.Broken, i)
	}
	if err := b.know(r); err != nil {
		return 0, err
	}
	if b.in.Mode == event.ModeWalk {
		if err := b.meet(ctx, it, r, v); err != nil {
			return 0, err
		}
	}
	switch {
	case it.Quarantine:
		return event.Bad, nil
	case it.Complete && it.Deleted && b.in.Mode == event.ModeWalk:
		return event.Unchanged, nil // absence decides there (A5)
	}
	switch v {
	case unchanged, superseded:
		return b.leave(ctx, i, r)
	case historical:
		return event.Historical, nil
	case stepBack:
		return event.SteppedBack, b.stepBack(ctx, i, r)
	}
	if b.in.Mode == event.ModeHold {
		return event.Waiting, b.hold(ctx, r)
	}
	echo, err := b.echo(it, r)
	if err != nil {
		return 0, err
	}
	if echo {
		return b.takeEcho(ctx, i, r)
	}
	return b.apply(ctx, i, r)
}

// meet marks the record as met in the walk, whatever becomes of the item. What
// reappears leaves the held list (A6); what was stepped back is forgotten when
// an entry that wins over it is met.
func (b *batch) meet(ctx context.Context, it *event.Item, r *record, v ruling) error {
	// A Resource List tells that a record is there, although what it says of the
	// record is older than what is known.
	alive := !it.Deleted && (v != historical || it.Baseline)
	b.walk.meet(r.id, alive)
	if alive {
		if err := b.unhold(ctx, r); err != nil {
			return err
		}
	}
	if v == historical || v == stepBack || it.Quarantine || it.Complete && it.Deleted {
		return nil
	}
	return b.forget(ctx, r)
}

// leave: the item changes nothing that the Source says. What else may be due is
// that another Source speaks for the record since the configuration's order has
// changed (A15).
func (b *batch) leave(ctx context.Context, i int, r *record) (event.Outcome, error) {
	switch b.in.Mode {
	case event.ModeAbsent, event.ModeHold:
		return event.Unchanged, b.unhold(ctx, r) // it is gone already
	case event.ModeWalk, event.ModeReplay:
	default:
		return event.Unchanged, nil
	}
	// What is pending and not this the Source has taken back; a place in a list
	// was compared with what is pending.
	if it, p := &b.in.Items[i], r.pending; p != nil && it.Place.IsZero() && !p.is(it) {
		if err := b.unwait(ctx, r); err != nil {
			return 0, err
		}
	}
	if !r.live || r.speaker(b.source.rank) <= 0 {
		return event.Unchanged, nil
	}
	b.touch(r)
	return b.turn(r)
}

// know gives a record that is met for the first time its number.
func (b *batch) know(r *record) error {
	if r.id != 0 {
		return nil
	}
	b.set.records++
	if b.set.records >= 1<<32 {
		return errors.New("the set is full: it holds 4 billion records")
	}
	r.id = b.set.id<<32 | b.set.records
	b.fresh = append(b.fresh, r)
	return nil
}

func (b *batch) touch(r *record) {
	if !r.dirty {
		r.dirty = true
		b.touched = append(b.touched, r)
	}
}

// apply takes an observation as what the Source now says, and logs an event
// when that changes the record's state (I5).
func (b *batch) apply(ctx context.Context, i int, r *record) (event.Outcome, error) {
	it := &b.in.Items[i]
	late := b.late(it, r)
	switch {
	case it.Pending != "":
		if err := b.wait(ctx, i, r, it.Pending); err != nil || !it.Partial {
			return event.Waiting, err
		}
	case b.set.content == event.Mirror && !it.Deleted && !it.Fetched:
		return event.NeedsContent, b.wait(ctx, i, r, unasked)
	default:
		if err := b.unwait(ctx, r); err != nil {
			return 0, err
		}
	}
	if b.in.Mode != event.ModeSettle { // content that can be had at last is no presence in the feed
		if err := b.unhold(ctx, r); err != nil {
			return 0, err
		}
	}
	s := r.by(b.source.id)
	if s == nil {
		if b.in.Mode == event.ModeAbsent {
			return event.Unchanged, nil // it was only pending
		}
		r.says = append(r.says, said{source: b.source.id})
		s = &r.says[len(r.says)-1]
	}
	if err := r.remember(s, it); err != nil {
		return 0, err
	}
	s.alive, s.dirty = !it.Deleted, true
	if b.in.Mode != event.ModeAbsent {
		s.say(it, late)
	}
	if s.alive {
		if err := b.disown(it, r); err != nil {
			return 0, err
		}
	}
	b.touch(r)
	return b.speak(ctx, i, r, s)
}

// say notes what an item says, to compare later ones with it.
func (s *said) say(it *event.Item, late bool) {
	s.stamp, s.place, s.claim = it.Order, it.Place, it.Claim
	s.future, s.plain = late, it.Order == it.Modified
}

// speak lets the Source that now speaks for the record say its state. s is what
// the item's Source says; says[0] is the one whose word the log has.
func (b *batch) speak(ctx context.Context, i int, r *record, s *said) (event.Outcome, error) {
	it := &b.in.Items[i]
	s.shadow = nil
	who := r.speaker(b.source.rank)
	if who < 0 {
		if !r.live {
			return event.Tombstone, nil
		}
		return event.Logged, b.logDeletion(ctx, i, r)
	}
	if !s.alive {
		return b.turn(r)
	}
	if r.live && &r.says[who] == s && who == 0 && r.digest == b.hashes[i].digest {
		return event.Unchanged, nil // the document needs no number
	}
	doc, err := b.document(ctx, i)
	if err != nil {
		return 0, err
	}
	v := &body{obs: it.Observation, document: doc, digest: b.hashes[i].digest, loc: b.hashes[i].loc}
	v.obs.Claim, v.obs.Order, v.obs.Place = 0, event.Stamp{}, event.Place{}
	if !it.Modified.Known() && r.live && r.last != nil && r.last.obs.Modified.Known() { // a list that does not say when says nothing new
		v.obs.Modified, v.digest = r.last.obs.Modified, 0
	}
	if &r.says[who] != s {
		s.shadow = appendBody(nil, v)
		return b.turn(r)
	}
	if err := r.yield(who); err != nil {
		return 0, err
	}
	return b.logState(r, v)
}

// turn gives the word to the Source that is to speak for the record, if it has
// not got it already.
func (b *batch) turn(r *record) (event.Outcome, error) {
	who := r.speaker(b.source.rank)
	if who == 0 {
		return event.Shadowed, nil
	}
	speaker := &r.says[who]
	v := new(body)
	if err := readBody(speaker.shadow, v); err != nil {
		return 0, fmt.Errorf("record %q: what Source %d says of it: %w: run bridge verify", r.identifier, speaker.source, err)
	}
	speaker.shadow = nil
	if err := r.yield(who); err != nil {
		return 0, err
	}
	return b.logState(r, v)
}

// yield makes says[who] the one whose word the log has, and keeps the word of
// the one before for the day the new one falls silent.
func (r *record) yield(who int) error {
	if who == 0 {
		return nil
	}
	old := &r.says[0]
	if r.live && old.alive && old.shadow == nil {
		if r.last == nil {
			return r.missing()
		}
		word := *r.last
		if old.plain { // a change of the stamp alone is not logged
			word.obs.Modified = old.stamp
		}
		old.shadow = appendBody(nil, &word)
	}
	old.dirty = true
	r.says[0], r.says[who] = r.says[who], r.says[0]
	return nil
}

func (r *record) missing() error {
	return fmt.Errorf("record %q: its last event %d is missing: run bridge verify", r.identifier, r.seq)
}

// logState appends created or updated when the state is not the stored one.
func (b *batch) logState(r *record, v *body) (event.Outcome, error) {
	digest := v.digest
	if digest == 0 {
		digest = v.obs.Digest(b.set.content)
	}
	if r.live && r.digest == digest {
		return event.Unchanged, nil
	}
	kind := event.Created
	if r.live {
		kind = event.Updated
	}
	var before []event.Representation
	if r.last != nil {
		before = r.last.obs.Representations
	}
	v.obs.Representations = slices.Clone(v.obs.Representations)
	event.NameRepresentations(v.obs.Representations, before)
	v.shared, v.moved, v.gone = false, false, ""
	if b.locs != nil {
		if r.live && r.last == nil {
			return 0, r.missing()
		}
		if r.live && r.last.obs.Loc != v.obs.Loc {
			v.moved = true
			if b.locs.drop(r.last.obs.Loc, r.id) {
				v.gone = r.last.obs.Loc
			}
		}
		v.shared = b.locs.add(v.obs.Loc, v.loc, r.id)
	}
	r.digest = digest
	if !r.live {
		b.set.live++
		r.live = true
	}
	return event.Logged, b.log(r, kind, v)
}

// logDeletion appends deleted: with the last title, and the via of the state
// that has gone.
func (b *batch) logDeletion(ctx context.Context, i int, r *record) error {
	it, last := &b.in.Items[i], r.last
	if last == nil {
		return r.missing()
	}
	doc, err := b.document(ctx, i)
	if err != nil {
		return err
	}
	v := &body{document: doc, reason: it.Reason, obs: event.Observation{Record: r.identifier, Deleted: true, Modified: it.Modified,
		Title: last.obs.Title, SourceIdentifier: last.obs.SourceIdentifier, Loc: last.obs.Loc}}
	v.obs.Via = event.Link{Href: last.obs.ViaHref(), Length: event.NoLength, Modified: it.Modified}
	if !it.Modified.Known() { // by absence: what is known of the original is when it last changed
		v.obs.Modified = last.obs.Modified
		v.obs.Via.Modified = last.obs.Modified
		if last.obs.Via.Href != "" {
			v.obs.Via.Modified = last.obs.Via.Modified
		}
	}
	if it.Title != "" && b.in.Mode != event.ModeAbsent {
		v.obs.Title = it.Title
	}
	if b.locs != nil {
		v.shared = !b.locs.drop(last.obs.Loc, r.id)
	}
	r.live, r.digest = false, 0
	b.set.live--
	return b.log(r, event.Deleted, v)
}

// log gives the event its place.
func (b *batch) log(r *record, kind event.Kind, v *body) error {
	b.seq++
	b.set.clock = max(b.now, b.set.clock+1)
	c := columns{seq: int64(b.seq), set: b.set.id, record: r.id, kind: int64(kind), observed: int64(b.set.clock)}
	if v.back = 0; b.set.last != 0 {
		v.back = c.seq - int64(b.set.last)
	}
	b.set.events++
	if kind != event.Rejected { // which belongs to no segment and changes no state
		b.place(event.Seq(c.seq), kind, b.set.clock, v)
		b.relate(r, kind, v)
		b.set.last, b.set.lastObserved = b.seq, b.set.clock
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
	return b.events.add(c.seq, c.set, c.record, c.kind, c.observed, sealed)
}

// NeedsContent reports of each item of a batch that is to be appended whether
// its content is needed. It writes nothing. The answer is Append's own, as long
// as a record stands in the batch once and nobody else appends meanwhile; where
// it has become another one, Append keeps the item as pending.
func (l *Log) NeedsContent(ctx context.Context, in *event.Batch) ([]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.writable(); err != nil {
		return nil, err
	}
	b := &batch{l: l, in: in}
	q := writing{l}
	if err := b.load(ctx, q); err != nil {
		return nil, err
	}
	out := make([]bool, len(in.Items))
	if b.set.content != event.Mirror {
		return out, nil
	}
	var err error
	if b.walk = newWalk(); !in.Start {
		if b.walk, err = l.walkOf(ctx, in.Source); err != nil {
			return nil, err
		}
	}
	if b.records, err = b.find(ctx, q); err != nil {
		return nil, err
	}
	if err := b.loadVias(ctx, q); err != nil {
		return nil, err
	}
	for i := range in.Items {
		it, r := &in.Items[i], b.records[i]
		if v, _ := b.rule(it, r); v != apply || it.Deleted || it.Quarantine {
			continue
		}
		echo, err := b.echo(it, r)
		if err != nil {
			return nil, err
		}
		out[i] = !echo
	}
	return out, nil
}
