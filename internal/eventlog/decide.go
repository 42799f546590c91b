package eventlog

import (
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// decider is what all items of a batch have in common.
type decider struct {
	source   event.SourceID
	ordering ordering
	mode     event.Mode
	content  event.Content
	rank     map[event.SourceID]int64 // of all Sources of the set
	others   bool                     // the set has other Sources
	members  map[event.SourceID]bool  // those that are sets of this log: no other bridge is between
	targets  targets
	parts    []int  // event.Batch.Parts
	bodies   []body // memory for those of events
}

// newBody returns a body with the observation of an item. Bodies of a batch share memory:
// there is one for nearly every item, and each is half a kilobyte.
func (a *decider) newBody(it *event.Item, h *hashes) *body {
	if len(a.bodies) == cap(a.bodies) {
		a.bodies = make([]body, 0, min(max(1, 2*cap(a.bodies)), 64))
	}
	a.bodies = append(a.bodies, body{obs: it.Observation, document: documentOf(it), digest: h.digest, loc: h.loc})
	return &a.bodies[len(a.bodies)-1]
}

// change is what a decision does with a row that waits with the record.
type change uint8

const (
	skip change = iota
	put
	remove
)

// decision is what an item means for its record. The record itself, as it is in
// memory, has been brought to its new state.
type decision struct {
	outcome event.Outcome
	broken  bool // an earlier document of the walk should have had the item (S2)
	// seen: nothing older of the walk applies. present: it stood in the
	// enumeration. Neither follows from the other.
	seen, present   bool
	old             bool // the Source has reported the same before, even if this part of it has not
	pending         change
	moved           *part  // of two parts that report what waits, it is that of this one from now on
	reason          string // why it waits
	late            bool   // its stamp lay in the future when it was seen
	held, regressed change
	order           change // the row of seen_order
	changed         bool   // source states have to be stored
	// kind of the event that is to be logged, 0 for none; body of that event,
	// and of the record's event before.
	kind         event.Kind
	body, before *body
}

// decide returns what an item means for its record (I5, A1, A15). It does no I/O: all
// that it needs was loaded, and what follows is in the decision. batch.appendItem carries
// that out; NeedsContent asks for it beforehand, and does nothing.
func (a *decider) decide(r *record, it *event.Item, h *hashes) (decision, error) {
	d, err := a.decideItem(r, it, h)
	if err != nil || !r.live || r.topRanked(a.rank) == r.authority {
		return d, err
	}
	// The order of the configuration has changed since the record was seen last.
	// Which Source is the authority does not depend on the outcome of this item.
	outcome := d.outcome
	d.changed, err = true, a.promote(r, &d)
	d.outcome = outcome
	return d, err
}

// decideItem decides on the item itself, whether or not the order of the Sources has
// changed.
func (a *decider) decideItem(r *record, it *event.Item, h *hashes) (d decision, err error) {
	if a.mode == event.ModeLeft {
		return a.leavePart(r, it), nil
	}
	if it.Present {
		return decision{outcome: event.Unchanged, seen: true, present: true, held: remove}, nil
	}
	v, broken := a.compare(r, it)
	d.broken, d.late = broken, a.wasLate(r, it)
	stateless := it.Quarantine || it.Unselected || it.Complete && it.Deleted // it mentions the record, without a state that could apply
	if a.mode == event.ModeWalk {
		a.markSeen(it, v, stateless, &d)
		if stateless {
			d.outcome = event.Unchanged // absence decides in a complete enumeration (A5)
			if it.Quarantine {
				d.outcome = event.Bad
			} else if it.Unselected {
				d.outcome = event.Unselected
			}
			return d, nil
		}
	}
	if it.Answer == event.Refuted {
		d.pending = remove
		if it.Deleted {
			d.held = remove // the record is there, whatever the enumeration has
		}
		v = historical
	} else if a.mode == event.ModeWalk && a.ordering == byPlace {
		var noted bool
		if v, noted = a.decidePart(r, it, v, &d); noted {
			return d, nil
		}
	}
	if v == apply && a.mode == event.ModeReplay && it.Deleted && a.ordering == byPlace && r.of(a.source).hasParts() {
		v = doubt // nobody knows in which of them it stood
	}
	switch v {
	case unchanged, superseded:
		a.unchanged(r, it, &d)
		return d, nil
	case historical:
		d.outcome = event.Historical
		return d, nil
	case regressed:
		d.outcome, d.regressed = event.Regressed, put
		return d, nil
	case doubt:
		if it.Answer == event.Confirmed || !it.Deleted && a.content == event.Mirror { // in a mirror, fetching the content answers it
			break
		}
		d.outcome, d.pending, d.reason = event.NeedsContent, put, unasked
		if it.Pending != "" {
			d.outcome, d.reason = event.Waiting, it.Pending
		}
		return d, nil
	}
	if a.mode == event.ModeHold {
		d.outcome, d.held = event.Waiting, put
		return d, nil
	}
	loopback, err := a.isLoopback(r, it)
	if err != nil {
		return d, err
	}
	if loopback {
		return d, a.applyLoopback(r, it, h, &d)
	}
	return d, a.apply(r, it, h, &d)
}

// markSeen notes that the Source has mentioned the record in this walk.
func (a *decider) markSeen(it *event.Item, v comparison, stateless bool, d *decision) {
	d.seen = a.ordering != unordered || !it.Deleted || v != historical // an old tombstone says nothing of the items behind it
	switch {
	case it.Deleted, it.Unselected:
	case a.ordering == byPlace:
		// A Resource List enumerates the records that exist; a change describes a past
		// moment.
		d.present = it.Baseline
	default:
		d.present = v != historical
	}
	if d.present {
		d.held = remove // what reappears leaves the held list (A6)
	}
	if v == historical {
		return
	}
	if stateless {
		d.order = put
	} else {
		d.order = remove
	}
	if v != regressed || stateless {
		d.regressed = remove // the walk has seen an entry that wins over what had regressed
	}
}

// unchanged: the item changes nothing in the Source's report.
func (a *decider) unchanged(r *record, it *event.Item, d *decision) {
	d.outcome = event.Unchanged
	switch a.mode {
	case event.ModeAbsent, event.ModeHold:
		d.held = remove // it is gone already
	case event.ModeWalk, event.ModeReplay:
		// A pending observation that differs from the item is out of date: the Source has
		// taken it back. A place in a list was compared with the pending observation
		// already.
		if p := r.pending; p != nil && a.ordering != byPlace && !p.is(it) {
			d.pending = remove
		}
	}
}

// apply makes an observation the Source's current state of the record, and decides on an
// event when that changes the state of the record (I5).
func (a *decider) apply(r *record, it *event.Item, h *hashes, d *decision) error {
	if it.Deleted && a.inLists(it) && a.inOther(r, it) {
		a.notePart(r, it, d)
		if a.stopWaiting(r, it, d); r.pending != nil && r.pending.is(it) {
			d.pending = remove
		}
		return nil
	}
	a.noteWaitingPart(r, it, d)
	kept := put
	if a.mayBeOlder(r, it) {
		kept = skip
	}
	switch {
	case it.Pending != "":
		if d.pending, d.reason = put, it.Pending; !it.Partial {
			d.outcome, d.pending = event.Waiting, kept
			return nil
		}
	case a.content == event.Mirror && !it.Deleted && !it.Fetched:
		d.outcome, d.pending, d.reason = event.NeedsContent, kept, unasked
		return nil
	default:
		d.pending = remove
	}
	if a.mode != event.ModeSettle || it.Deleted { // content that is fetched late does not show that the feed has the record
		d.held = remove
	}
	s := r.of(a.source)
	if s == nil {
		if a.mode == event.ModeAbsent {
			d.outcome = event.Unchanged // it was only pending
			return nil
		}
		s = r.addSource(a.source)
	}
	if !it.Deleted {
		if err := r.rememberVia(s, it.ViaHref()); err != nil {
			return err
		}
	}
	if a.inLists(it) || a.mode == event.ModeRepair && a.ordering == byPlace && !it.Deleted {
		s.setPart(it, d.late) // beside the state so far
	}
	s.alive, s.dirty = !it.Deleted, true
	if it.Deleted && (it.Place.IsZero() || a.mode == event.ModeRepair) { // no part has it
		for i := range s.parts {
			s.parts[i].alive = false
		}
	}
	switch {
	case a.mode != event.ModeAbsent:
		s.set(it, d.late, a.ordering)
	case it.Reason != "": // its Source was forgotten
		s.claim, s.stamp, s.place, s.future, s.plain, s.parts = 0, event.Stamp{}, event.Place{}, false, false, nil
	}
	if s.alive {
		if err := a.dropLoopback(r, it); err != nil {
			return err
		}
	}
	d.changed = true
	return a.publishState(r, s, it, h, d)
}

// mayBeOlder reports whether an item stands in an enumeration without a time while a change of its
// record waits for the content. Only content that is as the item says shows that it is newer.
func (a *decider) mayBeOlder(r *record, it *event.Item) bool {
	p := r.pending
	return a.ordering == byPlace && it.Baseline && (!it.Order.Known() || it.Late) && p != nil && p.v.obs.Place.Position > 0
}

// wasLate reports whether the stamp of the item lay in the future when it was seen. An
// item that has waited remembers that.
func (a *decider) wasLate(r *record, it *event.Item) bool {
	switch {
	case a.mode == event.ModeSettle && r.pending != nil:
		return r.pending.v.late
	case a.mode == event.ModeRegressed && r.regressed != nil:
		return r.regressed.v.late
	}
	return it.Late
}

// set stores the report of an item, to compare later items with it. An item without a place
// in a list and without a datetime is an absence or a replay: it does not replace the
// entry that the lists still have.
func (s *sourceState) set(it *event.Item, late bool, o ordering) {
	switch {
	case o != byPlace || !it.Place.IsZero():
		s.place = it.Place
	case s.place.IsZero():
		s.place.List = noList
	case !it.Order.Known():
		return
	}
	s.claim, s.stamp, s.future, s.plain = it.Claim, it.Order, late, it.Order == it.Modified
}

// publishState decides on an event if the highest-ranked Source that has the record now
// reports another state. s is the state by the Source of the item.
func (a *decider) publishState(r *record, s *sourceState, it *event.Item, h *hashes, d *decision) error {
	first := r.topRanked(a.rank)
	if !s.alive && s != &r.sources[r.authority] {
		if err := r.rememberVia(s, ""); err != nil {
			return err
		}
	}
	s.suppressed, s.unsaved = nil, nil
	if first < 0 {
		if !r.live {
			d.outcome = event.Tombstone
			return nil
		}
		return a.logDeletion(r, it, d)
	}
	if !s.alive {
		return a.promote(r, d)
	}
	mine := &r.sources[first] == s
	if mine && r.live && first == r.authority && r.digest == h.digest {
		d.outcome = event.Unchanged
		return nil
	}
	v := a.newBody(it, h)
	v.obs.Claim, v.obs.Order, v.obs.Place = 0, event.Stamp{}, event.Place{}
	if !it.Modified.Known() && r.live && r.last != nil && r.last.obs.Modified.Known() { // a list without a time gives the record no newer one
		v.obs.Modified, v.digest = r.last.obs.Modified, 0
	}
	if !mine {
		s.unsaved = v
		return a.promote(r, d)
	}
	if err := r.setAuthority(first); err != nil {
		return err
	}
	a.logState(r, v, d)
	return nil
}

// documentOf returns a placeholder for the id of an item's document until it has one: a
// negative number, since ids are positive.
func documentOf(it *event.Item) int64 { return ^int64(it.Document) }

// promote makes the highest-ranked Source that has the record its authority, unless it
// is that already.
func (a *decider) promote(r *record, d *decision) error {
	first := r.topRanked(a.rank)
	if first == r.authority {
		d.outcome = event.Suppressed
		return nil
	}
	s := &r.sources[first]
	v, err := s.suppressedBody(r)
	if err != nil {
		return err
	}
	if v == nil {
		return fmt.Errorf("record %q: its state at Source %d is missing: run bridge verify", r.identifier, s.source)
	}
	s.suppressed, s.unsaved = nil, nil
	if err := r.setAuthority(first); err != nil {
		return err
	}
	// Targets of its links may have been created or deleted since it was reported.
	v.obs.Links, v.digest = a.targets.resolve(v.obs.Links), 0
	a.logState(r, v, d)
	return nil
}

// setAuthority makes sources[next] the authority. The state by the previous authority is
// kept: it is published again when the new one drops the record.
func (r *record) setAuthority(next int) error {
	if next == r.authority {
		return nil
	}
	old := &r.sources[r.authority]
	if !old.alive { // the log has its last report no longer
		if err := r.rememberVia(old, ""); err != nil {
			return err
		}
	}
	if r.live && old.alive && old.suppressed == nil && old.unsaved == nil {
		if r.last == nil {
			return r.missingEvent()
		}
		w := *r.last
		if old.plain { // a change of the stamp alone is not logged
			w.obs.Modified = old.stamp
		}
		old.unsaved = &w
	}
	old.dirty = true
	r.authority = next
	return nil
}

func (r *record) missingEvent() error {
	return fmt.Errorf("record %q: its last event %d is missing: run bridge verify", r.identifier, r.seq)
}

// logState decides on created or updated when the state is not the stored one.
func (a *decider) logState(r *record, v *body, d *decision) {
	digest := v.digest
	if digest == 0 {
		digest = v.obs.Digest(a.content)
	}
	if r.live && (r.digest == digest || a.unchangedAt(r, v)) {
		d.outcome = event.Unchanged
		return
	}
	d.outcome, d.kind = event.Logged, event.Created
	if r.live {
		d.kind = event.Updated
	}
	var before []event.Representation
	if r.last != nil {
		before = r.last.obs.Representations
	}
	v.obs.Representations = slices.Clone(v.obs.Representations)
	event.NameRepresentations(v.obs.Representations, before)
	v.unlisted, v.arrived, v.gone = false, false, ""
	r.digest, r.live = digest, true
	d.before, d.body = r.last, v
	r.last = v
}

// unchangedAt reports whether nothing has changed but that the address of the record, of its
// original, of a link or of another representation was logged as the Source writes it, and would be a
// URI now: that alone is no event. Closed lists have the former one, and keep it.
func (a *decider) unchangedAt(r *record, v *body) bool {
	if r.last == nil {
		return false
	}
	was, as := &r.last.obs, v.obs
	if a.content != event.Reference || uriOf(was.Loc) == as.Loc {
		as.Loc = was.Loc
	}
	if uriOf(was.Via.Href) == as.Via.Href {
		as.Via.Href = was.Via.Href
	}
	sameHref := func(x, y event.Representation) bool { return x.Href == y.Href }
	sameURI := func(x, y event.Representation) bool { return uriOf(x.Href) == uriOf(y.Href) }
	alternates := a.content == event.Reference && !slices.EqualFunc(was.Representations, as.Representations, sameHref) && slices.EqualFunc(was.Representations, as.Representations, sameURI)
	if alternates {
		as.Representations = slices.Clone(as.Representations)
		for i := range as.Representations {
			if i != as.Preferred {
				as.Representations[i].Href = was.Representations[i].Href
			}
		}
	}
	sameLink := func(x, y event.Link) bool { return x.Rel == y.Rel && uriOf(x.Href) == uriOf(y.Href) }
	former := !slices.Equal(was.Links, as.Links) && slices.EqualFunc(was.Links, as.Links, sameLink)
	if former {
		as.Links = slices.Clone(as.Links)
		for i := range as.Links {
			as.Links[i].Href = was.Links[i].Href
		}
	}
	return (former || alternates || as.Loc != v.obs.Loc || as.Via.Href != v.obs.Via.Href) && as.Digest(a.content) == r.digest
}

// logDeletion decides on an event of kind deleted, with the last title, categories and
// via of the record. A consumer that harvests one category alone must see the deletion.
func (a *decider) logDeletion(r *record, it *event.Item, d *decision) error {
	last := r.last
	if last == nil {
		return r.missingEvent()
	}
	v := &body{document: documentOf(it), reason: it.Reason, obs: event.Observation{Record: r.identifier, Deleted: true, Modified: it.Modified,
		Title: last.obs.Title, Categories: last.obs.Categories, SourceIdentifier: last.obs.SourceIdentifier, Loc: last.obs.Loc}}
	for _, rep := range last.obs.Representations { // a name, once given, stays, also when the record comes back
		v.obs.Representations = append(v.obs.Representations, event.Representation{Href: rep.Href, Name: rep.Name, Length: event.NoLength})
	}
	v.obs.CopyModified = it.CopyModified
	if !it.Modified.Known() { // by absence: what is known is when it last changed
		v.obs.Modified, v.obs.CopyModified = last.obs.Modified, last.obs.CopyModified
	}
	v.obs.Via = event.Link{Href: last.obs.ViaHref(), Length: event.NoLength, Modified: v.obs.Modified}
	switch {
	case last.obs.Via.Href == "":
	case sameOriginal(it.Via.Href, last.obs.Via.Href) && it.Via.Modified.Known():
		v.obs.Via.Modified = it.Via.Modified
	default: // an inherited link is passed on as it came
		v.obs.Via.Modified = last.obs.Via.Modified
	}
	v.obs.Details, v.obs.Links = it.Details, it.Links
	if d := last.obs.Details; v.obs.Details == nil && d != nil && (d.Language != "" || d.Source != nil) {
		v.obs.Details = &event.Details{Language: d.Language, Source: d.Source}
	}
	if it.Title != "" && a.mode != event.ModeAbsent {
		v.obs.Title = it.Title
	}
	r.live, r.digest = false, 0
	d.outcome, d.kind = event.Logged, event.Deleted
	d.before, d.body = last, v
	r.last = v
	return nil
}
