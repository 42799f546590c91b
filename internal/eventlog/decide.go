package eventlog

import (
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// ordering is what puts in order what a Source says of one record.
type ordering uint8

const (
	// unordered: nothing does. Feeds, folders and SIP: what differs applies.
	unordered ordering = iota
	// byStamp: the stamp of an entry (Atom-PMH, OAI-PMH).
	byStamp
	// byPlace: the place of a change in its list, and its datetime where it has
	// one (ResourceSync). When a resource was modified orders nothing.
	byPlace
)

// orderingOf is that of a kind of Source. What was said under another one cannot
// be compared: the kind of a Source may change (D107).
func orderingOfKind(kind string) ordering {
	switch kind {
	case "atompmh", "oaipmh":
		return byStamp
	case "resourcesync":
		return byPlace
	}
	return unordered
}

// orderedBy is the ordering under which something was said.
func orderedBy(stamp event.Stamp, place event.Place) ordering {
	switch {
	case !place.IsZero():
		return byPlace
	case stamp.Known():
		return byStamp
	}
	return unordered
}

// asker is what all items of a batch have in common.
type decider struct {
	source   event.SourceID
	ordering ordering
	mode     event.Mode
	content  event.Content
	rank     map[event.SourceID]int64 // of all Sources of the set
	others   bool                     // the set has other Sources
	targets  targets
	parts    []int // event.Batch.Parts
}

// change is what becomes of a row that waits with a record.
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
	// met: nothing older of the walk applies. present: it stood in the
	// enumeration. Neither follows from the other.
	met, present    bool
	old             bool // it is nothing new to the Source, whatever it is to its part
	pending         change
	reason          string // why it waits
	late            bool   // its stamp lay in the future when it was met
	held, regressed change
	order           change // of what was met, where nothing else keeps it
	changed         bool   // what the Sources say is to be stored
	// kind of the event that is to be logged, 0 for none; body of that event,
	// and of the record's event before.
	kind         event.Kind
	body, before *body
}

// decide is what an item means for its record (I5, A1, A15). It does no I/O: all
// that it needs was loaded, and what follows is in the decision. Append carries
// that out; NeedsContent asks for it beforehand.
func (a *decider) decide(r *record, it *event.Item, h *hashes) (decision, error) {
	d, err := a.decideItem(r, it, h)
	if err != nil || !r.live || r.topRanked(a.rank) == r.authority {
		return d, err
	}
	// The order of the configuration has changed since the record was met last.
	// Who speaks does not depend on what this item is worth.
	outcome := d.outcome
	d.changed, err = true, a.promote(r, &d)
	d.outcome = outcome
	return d, err
}

// decideItem decides on the item itself, in whatever order the Sources are by now.
func (a *decider) decideItem(r *record, it *event.Item, h *hashes) (d decision, err error) {
	if a.mode == event.ModeLeft {
		return a.leavePart(r, it), nil
	}
	v, broken := a.compare(r, it)
	d.broken, d.late = broken, a.wasLate(r, it)
	spoken := it.Quarantine || it.Unselected || it.Complete && it.Deleted // of the record, without a state that could apply
	if a.mode == event.ModeWalk {
		a.markSeen(it, v, spoken, &d)
		if spoken {
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
		v = historical
	} else if a.mode == event.ModeWalk && a.ordering == byPlace {
		var noted bool
		if v, noted = a.decidePart(r, it, v, &d); noted {
			return d, nil
		}
	}
	switch v {
	case unchanged, superseded:
		a.unchanged(r, it, &d)
		return d, nil
	case historical:
		d.outcome = event.Historical
		return d, nil
	case regressed:
		d.outcome, d.regressed = event.SteppedBack, put
		return d, nil
	case doubt:
		if it.Answer == event.Confirmed || !it.Deleted && a.content == event.Mirror { // the content of a mirror answers
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
	echo, err := a.isLoopback(r, it)
	if err != nil {
		return d, err
	}
	if echo {
		return d, a.applyLoopback(r, it, h, &d)
	}
	return d, a.apply(r, it, h, &d)
}

// meet notes that the Source has spoken of the record in this walk.
func (a *decider) markSeen(it *event.Item, v comparison, spoken bool, d *decision) {
	d.met = true
	switch {
	case it.Deleted, it.Unselected:
	case a.ordering == byPlace:
		// A Resource List enumerates what is there; a change says what was, when it
		// happened.
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
	if spoken {
		d.order = put
	} else {
		d.order = remove
	}
	if v != regressed || spoken {
		d.regressed = remove // what was stepped back, the walk has met something that wins over
	}
}

// ruling is what the order of an item makes of it.
type comparison uint8

const (
	apply     comparison = iota + 1
	unchanged            // the stored claim, or nothing to say
	historical
	regressed
	superseded // pending content that a newer entry has replaced
	doubt      // nothing tells whether it or what is stored is newer: its URL has to be asked
)

// word is what a Source last said of a record, as far as later words are
// compared with it.
type lastSaid struct {
	known  bool // it said something
	alive  bool
	stamp  event.Stamp
	place  event.Place
	future bool // its stamp lay in the future when it was stored
	same   bool // it is what the item says
	again  bool // it was said in the same words, whatever absence has made of it
}

// lastWord returns what the item is compared with. What is pending is the newer
// word of the Source, published or not. An order of another kind is none.
func (a *decider) lastSaid(r *record, it *event.Item) (w lastSaid) {
	if s := r.of(a.source); s != nil {
		w = lastSaid{known: true, alive: s.alive, stamp: s.stamp, place: s.place, future: s.future, same: s.claim == it.Claim && s.alive == !it.Deleted, again: s.claim == it.Claim}
	}
	if p := r.pending; p != nil && !p.partial && (!w.known || a.ordering == byPlace && !p.place.IsZero() || a.ordering != byPlace && !p.stamp.Before(w.stamp)) {
		w = lastSaid{known: true, alive: !p.deleted, stamp: p.stamp, place: p.place, future: p.late, same: p.claim == it.Claim && p.deleted == it.Deleted, again: p.claim == it.Claim}
	}
	w.comparableBy(a.ordering)
	return w
}

// within forgets an order that is none under another ordering. What was said in
// that is to be said again.
func (w *lastSaid) comparableBy(o ordering) {
	if w.known && o != unordered && orderedBy(w.stamp, w.place) != o {
		*w = lastSaid{known: true, alive: w.alive}
	}
}

// metOrder is the stamp of what was met of the record in this walk, and whether
// it can be trusted. Where it is unknown nothing is later.
func (r *record) metOrder(w *lastSaid) (stamp event.Stamp, trusted bool) {
	switch {
	case r.order != nil:
		return r.order.stamp, true
	case r.regressed != nil:
		return r.regressed.stamp, true
	}
	return w.stamp, !w.future
}

// rule decides by the order of the item alone. It changes nothing.
func (a *decider) compare(r *record, it *event.Item) (v comparison, broken bool) {
	s := r.of(a.source)
	switch a.mode {
	case event.ModeSubmission:
		return apply, false
	case event.ModeStepBack:
		if r.regressed == nil || r.regressed.stamp != it.Order {
			return superseded, false
		}
		return apply, false
	case event.ModeSettle:
		switch {
		case r.pending == nil || !r.pending.is(it):
			return superseded, false
		case it.Deleted || a.ordering == byPlace && a.content != event.Mirror: // it waits for an answer
			return doubt, false
		}
		return apply, false
	case event.ModeAbsent, event.ModeHold:
		switch {
		case (s == nil || !s.alive) && r.pending == nil:
			return unchanged, false
		case a.mode == event.ModeAbsent && it.Reason == "" && s != nil && s.undated(a.parts):
			return doubt, false // the enumeration may be older than the change
		}
		return apply, false
	}
	w := a.lastSaid(r, it)
	if a.ordering == byPlace {
		return a.comparePlaces(r, it, &w)
	}
	if a.mode == event.ModeWalk && r.met {
		if met, _ := r.metOrder(&w); a.ordering == unordered || r.order != nil && !met.Known() || !it.Order.After(met) {
			return historical, false
		}
		broken = true // it wins over what was met first, so it is judged as the first
	}
	if a.ordering == unordered {
		if w.known && w.same {
			return unchanged, false
		}
		return apply, false
	}
	switch c := it.Order.Compare(w.stamp); {
	case !w.known || c > 0:
		return apply, broken
	case c == 0 && w.same:
		return unchanged, broken
	case c == 0:
		return apply, broken
	case a.mode == event.ModeReplay:
		return historical, false
	}
	return regressed, broken
}

// byPlace decides for a Source whose lists are read from the newest to the
// oldest, so that of a record only the first entry counts. To read a list again
// is not harmless: what is no later than what was applied last is left alone.
// Datetimes tell that where both are to be trusted, else the places in one list, or
// which of two lists begins earlier; else the change stands when it says the same of
// whether the record is there, or states a later modification, and is in doubt when
// not.
func (a *decider) comparePlaces(r *record, it *event.Item, w *lastSaid) (v comparison, broken bool) {
	dated := it.Order.Known() && !it.Late
	if a.mode == event.ModeWalk && r.met {
		met, trusted := r.metOrder(w)
		ofChange := r.order != nil || w.place.Position > 0 // that the Resource List knew
		later := it.Order.After(met) || it.Baseline && ofChange && it.Order == met
		if !dated || !trusted || !met.Known() || !later {
			return historical, false
		}
		broken = !it.Baseline // which is read last, and shows a later moment
	}
	c := 0
	if dated = dated && w.stamp.Known() && !w.future; dated {
		c = it.Order.Compare(w.stamp)
	}
	switch {
	case !w.known:
		return apply, broken
	case c < 0:
		return historical, false
	case it.Baseline && w.same:
		return unchanged, broken
	case dated && (it.Baseline || c > 0):
		return apply, broken
	case it.Place.List == w.place.List && it.Place.Position > 0 && w.place.Position > 0:
		// At the same place something else stands when the entry was corrected.
		if it.Place.Position > w.place.Position || it.Place.Position == w.place.Position && !w.again {
			return apply, broken
		}
		return unchanged, broken
	case w.same, dated && w.again:
		return unchanged, broken
	case !dated && it.Place.Before(w.place):
		return historical, false
	case dated, w.alive == !it.Deleted, it.Place.Position == 0 && w.place.Position == 0:
		return apply, broken
	}
	if stored := r.modified(a.source); stored.Known() && it.Modified.After(stored) {
		return apply, broken
	}
	return doubt, broken
}

// keep: the item changes nothing that the Source says.
func (a *decider) unchanged(r *record, it *event.Item, d *decision) {
	d.outcome = event.Unchanged
	switch a.mode {
	case event.ModeAbsent, event.ModeHold:
		d.held = remove // it is gone already
	case event.ModeWalk, event.ModeReplay:
		// What is pending and not this the Source has taken back; a place in a list
		// was compared with what is pending.
		if p := r.pending; p != nil && a.ordering != byPlace && !p.is(it) {
			d.pending = remove
		}
	}
}

// apply takes an observation as what the Source now says, and decides on an
// event when that changes the record's state (I5).
func (a *decider) apply(r *record, it *event.Item, h *hashes, d *decision) error {
	if s := r.of(a.source); it.Deleted && s != nil && a.inLists() && s.inOther(it.Place.Part) {
		a.notePart(r, it, d)
		if r.pending != nil && r.pending.is(it) {
			d.pending = remove
		}
		return nil
	}
	switch {
	case it.Pending != "":
		d.pending, d.reason = put, it.Pending
		if !it.Partial {
			d.outcome = event.Waiting
			return nil
		}
	case a.content == event.Mirror && !it.Deleted && !it.Fetched:
		d.outcome, d.pending, d.reason = event.NeedsContent, put, unasked
		return nil
	default:
		d.pending = remove
	}
	if a.mode != event.ModeSettle || it.Deleted { // content that can be had at last is no presence in the feed
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
	if err := r.rememberVia(s, it); err != nil {
		return err
	}
	if a.inLists() {
		s.setPart(it, d.late) // beside what it has said so far
	}
	s.alive, s.dirty = !it.Deleted, true
	if a.mode == event.ModeAbsent {
		for i := range s.parts {
			s.parts[i].alive = false
		}
	} else {
		s.set(it, d.late, a.ordering)
	}
	if s.alive {
		if err := a.dropLoopback(r, it); err != nil {
			return err
		}
	}
	d.changed = true
	return a.publishState(r, s, it, h, d)
}

// late reports whether the item's stamp lay in the future when it was met: what
// has waited has to remember.
func (a *decider) wasLate(r *record, it *event.Item) bool {
	switch {
	case a.mode == event.ModeSettle && r.pending != nil:
		return r.pending.late
	case a.mode == event.ModeStepBack && r.regressed != nil:
		return r.regressed.late
	}
	return it.Late
}

// say notes what an item says, to compare later ones with it. What has no place
// among lists and no datetime is an absence, or a replay: it does not take the
// place of the entry that the lists still have.
func (s *sourceState) set(it *event.Item, late bool, o ordering) {
	switch {
	case o != byPlace || !it.Place.IsZero():
		s.place = it.Place
	case s.place.IsZero():
		s.place.List = 1
	case !it.Order.Known():
		return
	}
	s.claim, s.stamp, s.future, s.plain = it.Claim, it.Order, late, it.Order == it.Modified
}

// speak lets the Source that now speaks for the record say its state. s is what
// the item's Source says.
func (a *decider) publishState(r *record, s *sourceState, it *event.Item, h *hashes, d *decision) error {
	s.suppressed, s.unsaved = nil, nil
	first := r.topRanked(a.rank)
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
	v := &body{obs: it.Observation, document: documentOf(it), digest: h.digest, loc: h.loc}
	v.obs.Claim, v.obs.Order, v.obs.Place = 0, event.Stamp{}, event.Place{}
	if !it.Modified.Known() && r.live && r.last != nil && r.last.obs.Modified.Known() { // a list that does not say when says nothing new
		v.obs.Modified, v.digest = r.last.obs.Modified, 0
	}
	if !mine {
		s.unsaved = v
		return a.promote(r, d)
	}
	if err := r.demote(first); err != nil {
		return err
	}
	a.logState(r, v, d)
	return nil
}

// documentOf stands for the document of an item until that has a number: below
// zero, since numbers are above.
func documentOf(it *event.Item) int64 { return ^int64(it.Document) }

// turn gives the word to the Source that is to speak for the record, if it has
// not got it already.
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
		return fmt.Errorf("record %q: what Source %d says of it is missing: run bridge verify", r.identifier, s.source)
	}
	s.suppressed, s.unsaved = nil, nil
	if err := r.demote(first); err != nil {
		return err
	}
	// Targets of its links may have come or gone since it was said.
	v.obs.Links, v.digest = a.targets.resolve(v.obs.Links), 0
	a.logState(r, v, d)
	return nil
}

// yield makes says[first] the one whose word the log has, and keeps the word of
// the one before for the day the new one falls silent.
func (r *record) demote(first int) error {
	if first == r.authority {
		return nil
	}
	old := &r.sources[r.authority]
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
	r.authority = first
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
	if r.live && r.digest == digest {
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

// logDeletion decides on deleted: with the last title, and the via of the state
// that has gone.
func (a *decider) logDeletion(r *record, it *event.Item, d *decision) error {
	last := r.last
	if last == nil {
		return r.missingEvent()
	}
	v := &body{document: documentOf(it), reason: it.Reason, obs: event.Observation{Record: r.identifier, Deleted: true, Modified: it.Modified,
		Title: last.obs.Title, SourceIdentifier: last.obs.SourceIdentifier, Loc: last.obs.Loc}}
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
	case it.Via.Href == last.obs.Via.Href && it.Via.Modified.Known():
		v.obs.Via.Modified = it.Via.Modified
	default: // an inherited link is passed on as it came
		v.obs.Via.Modified = last.obs.Via.Modified
	}
	v.obs.Details = it.Details
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
