package eventlog

import (
	"encoding/binary"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// ordering is how the reports of a Source about one record are ordered.
type ordering uint8

const (
	// unordered: they have no order. Feeds, folders and SIP: any difference applies,
	// except a deletion of before the record was modified.
	unordered ordering = iota
	// byStamp: the stamp of an entry (Atom-PMH, OAI-PMH), or the place of an event in the
	// log (sets of this log).
	byStamp
	// byPlace: the place of a change in its list, and its datetime where it has
	// one (ResourceSync). When a resource was modified orders nothing.
	byPlace
)

// orderingOfKind returns the ordering of a kind of Source. Reports under another ordering
// cannot be compared: the kind of a Source may change.
func orderingOfKind(kind string) ordering {
	switch kind {
	case "atompmh", "oaipmh", Member:
		return byStamp
	case "resourcesync":
		return byPlace
	}
	return unordered
}

// orderedBy returns the ordering under which something was reported.
func orderedBy(stamp event.Stamp, place event.Place) ordering {
	switch {
	case !place.IsZero():
		return byPlace
	case stamp.Known():
		return byStamp
	}
	return unordered
}

// comparison is the result of comparing the order of an item with what is stored.
type comparison uint8

const (
	apply     comparison = iota + 1
	unchanged            // the stored claim, or nothing to report
	historical
	regressed
	superseded // pending content that a newer entry has replaced
	doubt      // nothing shows whether it or what is stored is newer: its URL has to be asked
)

// lastReport is the last report of a Source about a record, as far as later items are
// compared with it.
type lastReport struct {
	known  bool // it has reported something
	alive  bool
	stamp  event.Stamp
	place  event.Place
	future bool // its stamp lay in the future when it was stored
	same   bool // the item reports the same
	again  bool // the Source has reported exactly this, even if the record has been absent since
}

// lastReport returns what the item is compared with. A pending observation is newer than
// what is stored, published or not. An order of another kind is none.
func (a *decider) lastReport(r *record, it *event.Item) (w lastReport) {
	if s := r.of(a.source); s != nil && s.hasReported() {
		w = lastReport{known: true, alive: s.alive, stamp: s.stamp, place: s.place, future: s.future, same: s.claim == it.Claim && s.alive == !it.Deleted, again: s.claim == it.Claim}
	}
	if p := r.pending; p != nil && !p.partial && (!w.known || a.ordering == byPlace && !p.v.obs.Place.IsZero() || a.ordering != byPlace && !p.v.obs.Order.Before(w.stamp)) {
		o := &p.v.obs
		w = lastReport{known: true, alive: !o.Deleted, stamp: o.Order, place: o.Place, future: p.v.late, same: o.Claim == it.Claim && o.Deleted == it.Deleted, again: o.Claim == it.Claim}
	}
	w.comparableBy(a.ordering)
	return w
}

// inOrder reports whether what a Source has reported under such a stamp and place can be compared in
// an order.
func inOrder(stamp event.Stamp, place event.Place, o ordering) bool {
	return o == unordered || orderedBy(stamp, place) == o
}

// comparableBy clears an order of another ordering. The Source has to report the record
// again.
func (w *lastReport) comparableBy(o ordering) {
	if w.known && !inOrder(w.stamp, w.place, o) {
		*w = lastReport{known: true, alive: w.alive}
	}
}

// seenOrder is the stamp of what was seen of the record in this walk, and whether
// it can be trusted. Where it is unknown nothing is later.
func (r *record) seenOrder(w *lastReport) (stamp event.Stamp, trusted bool) {
	switch {
	case r.order != nil:
		return r.order.stamp, true
	case r.regressed != nil:
		return r.regressed.stamp, true
	}
	return w.stamp, !w.future
}

// compare decides by the order of the item alone. It changes nothing.
func (a *decider) compare(r *record, it *event.Item) (v comparison, broken bool) {
	s := r.of(a.source)
	switch a.mode {
	case event.ModeSubmission, event.ModeRepair:
		return apply, false
	case event.ModeRegressed:
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
		case a.mode == event.ModeAbsent && it.Reason == "" && a.ordering == byPlace && s != nil && s.undated(a.parts):
			return doubt, false // the enumeration may be older than the change
		}
		return apply, false
	}
	w := a.lastReport(r, it)
	if a.ordering == byPlace {
		return a.comparePlaces(r, it, &w)
	}
	if a.mode == event.ModeWalk && r.seen && a.ordering == unordered {
		if !it.Current || w.alive {
			return historical, false
		}
	} else if a.mode == event.ModeWalk && r.seen {
		if seen, _ := r.seenOrder(&w); r.order != nil && !seen.Known() || !it.Order.After(seen) && (!it.Current || it.Order != seen) {
			return historical, false
		}
		broken = !it.Current // it wins over what was seen first, so it is judged as the first
	}
	if a.ordering == unordered {
		switch {
		case w.known && w.same:
			return unchanged, false
		case it.Deleted && w.alive && !w.future && it.Modified.Known() && r.modified(a.source).After(it.Modified):
			return historical, false // it stays in the feed, and the record came back since (RFC 6721 3)
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
	case a.mode == event.ModeReplay, a.members[a.source]: // the event was taken before
		return historical, false
	case it.Current:
		return apply, broken
	}
	return regressed, broken
}

// comparePlaces decides for a Source whose lists are read from the newest to the
// oldest, so that only the first entry of a record counts. Reading a list again must
// not undo anything: an item that is no later than what was applied last is left alone.
// Datetimes decide where both can be trusted. Otherwise the places in one list decide,
// or which of two lists begins earlier. Otherwise the change applies when it agrees on
// whether the record exists, or states a later modification; else it is in doubt.
func (a *decider) comparePlaces(r *record, it *event.Item, w *lastReport) (v comparison, broken bool) {
	dated := it.Order.Known() && !it.Late
	if a.mode == event.ModeWalk && r.seen {
		seen, trusted := r.seenOrder(w)
		ofChange := r.order != nil || w.place.Position > 0 // a Resource List of that time has it
		later := it.Order.After(seen) || it.Baseline && ofChange && it.Order == seen
		if !dated || !trusted || !seen.Known() || !later {
			return historical, false
		}
		broken = !it.Baseline // which is read last, and shows a later moment
	}
	c := 0
	if dated = dated && w.stamp.Known() && !w.future; dated {
		if c = it.Order.Compare(w.stamp); c < 0 && !w.stamp.Time().After(it.Order.Time().Add(it.Open)) {
			c, dated = 0, false
		}
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
		// At the same place, another entry: it was corrected.
		if it.Place.Position > w.place.Position || it.Place.Position == w.place.Position && !w.again {
			return apply, broken
		}
		return unchanged, broken
	case w.same, dated && w.again:
		return unchanged, broken
	case it.Place.Before(w.place): // equal datetimes do not decide either
		return historical, false
	case dated, w.alive == !it.Deleted, it.Place.Position == 0 && w.place.Position == 0:
		return apply, broken
	}
	if stored := r.modified(a.source); stored.Known() && it.Modified.After(stored) {
		return apply, broken
	}
	return doubt, broken
}

// part is the last report of one part of a Source about a record: one of its sets of
// resources (ResourceSync 9). A record in several parts is gone when no part has it. Its
// state is the one that the Source reported last, in whichever part; whether it exists,
// each part reports for itself.
type part struct {
	number        int
	alive, future bool
	stamp         event.Stamp
	place         event.Place
	claim         int64
}

func (p *part) lastReport(it *event.Item) lastReport {
	return lastReport{known: true, alive: p.alive, stamp: p.stamp, place: p.place, future: p.future, same: p.claim == it.Claim && p.alive == !it.Deleted, again: p.claim == it.Claim}
}

const (
	partAlive  = 1
	partFuture = 2
)

func (p *part) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(p.number))
	b = appendStamp(append(b, byte(flag(partAlive, p.alive)|flag(partFuture, p.future))), p.stamp)
	return appendPlace(binary.LittleEndian.AppendUint64(b, uint64(p.claim)), p.place)
}

func (r *reader) part() part {
	p := part{number: int(r.uvarint())}
	f := r.byte()
	p.alive, p.future = f&partAlive != 0, f&partFuture != 0
	p.stamp, p.claim, p.place = r.stamp(), r.fixed(), r.place()
	return p
}

// part returns the last report of a part of the Source; nil when it has reported nothing.
func (s *sourceState) part(number int) *part {
	for i := range s.parts {
		if s.parts[i].number == number {
			return &s.parts[i]
		}
	}
	return nil
}

// hasReported reports whether anything is known that the Source has reported: not after it was
// forgotten, with its records.
func (s *sourceState) hasReported() bool { return s.alive || s.claim != 0 || len(s.parts) > 0 }

// hasParts reports whether several parts of the Source have reported the record.
func (s *sourceState) hasParts() bool { return s != nil && len(s.parts) > 0 }

// hasLeft reports whether a part of the Source has said last that it does not have the record.
func (s *sourceState) hasLeft(number int) bool {
	if s == nil {
		return false
	}
	p := s.part(number)
	return p != nil && !p.alive
}

// asPart returns the Source's report as that of the only part that has reported anything.
func (s *sourceState) asPart() part {
	return part{number: s.place.Part, alive: s.alive, future: s.future, stamp: s.stamp, place: s.place, claim: s.claim}
}

// noList is the list of what was replayed: nobody knows in which part it stood.
const noList = 1

// inList reports whether the last report of the Source stood in a list.
func (s *sourceState) inList() bool { return !s.place.IsZero() && s.place.List != noList }

// inOther reports whether another part of the Source has the record.
func (s *sourceState) inOther(number int) bool {
	for i := range s.parts {
		if s.parts[i].alive && s.parts[i].number != number {
			return true
		}
	}
	return len(s.parts) == 0 && s.alive && s.inList() && s.place.Part != number
}

// stopWaiting ends the waiting of what the part of an item has reported, which does not have the
// record any more. It goes on as the report of another part that claims the same, or that has
// reported the record since its published state, and was not applied because of what waits.
func (a *decider) stopWaiting(r *record, it *event.Item, d *decision) {
	w, s := r.pending, r.of(a.source)
	if w == nil || w.v.obs.Deleted || w.v.obs.Place.Part != it.Place.Part {
		return
	}
	d.pending = remove
	for i := range s.parts {
		if p := &s.parts[i]; p.alive && p.number != it.Place.Part && (p.claim == w.v.obs.Claim || p.stamp.After(s.stamp)) {
			d.moved = p
		}
	}
}

// inOther reports whether another part of the Source than that of an item has the record, or
// will have it once its content is there.
func (a *decider) inOther(r *record, it *event.Item) bool {
	if s := r.of(a.source); s != nil && s.inOther(it.Place.Part) {
		return true
	}
	return r.waitsInOther(it)
}

// waitsInOther reports whether another part than that of an item has the record, and its report
// waits for the content.
func (r *record) waitsInOther(it *event.Item) bool {
	p := r.pending
	return p != nil && !p.v.obs.Deleted && !p.v.obs.Place.IsZero() && p.v.obs.Place.Part != it.Place.Part
}

// setPart stores the report of an item for its part. Where only the first part has
// reported anything, that is the report of the Source.
func (s *sourceState) setPart(it *event.Item, late bool) {
	if len(s.parts) > 0 || it.Place.Part != 0 || !s.place.IsZero() && s.place.Part != 0 {
		s.storePart(it, late)
	}
}

// storePart stores the report of an item for its part.
func (s *sourceState) storePart(it *event.Item, late bool) {
	number := it.Place.Part
	if len(s.parts) == 0 && s.inList() {
		s.parts = append(s.parts, s.asPart())
	}
	p := s.part(number)
	if p == nil {
		s.parts = append(s.parts, part{number: number})
		p = &s.parts[len(s.parts)-1]
	}
	p.alive, p.future, p.stamp, p.place, p.claim = !it.Deleted, late, it.Order, it.Place, it.Claim
}

// inLists reports whether an item stands in a list, of a part of the Source. An absence does not.
func (a *decider) inLists(it *event.Item) bool {
	return a.ordering == byPlace && (a.mode == event.ModeWalk || a.mode == event.ModeSettle) && !it.Place.IsZero()
}

// notePart stores the report of an item for its part, and nothing else of it.
func (a *decider) notePart(r *record, it *event.Item, d *decision) {
	s := r.of(a.source)
	if s == nil {
		s = r.addSource(a.source)
	}
	s.storePart(it, d.late)
	s.dirty, d.changed, d.old, d.outcome = true, true, true, event.Unchanged
}

// noteWaitingPart stores that a part has the record whose report waits, and is replaced by an item of
// another part.
func (a *decider) noteWaitingPart(r *record, it *event.Item, d *decision) {
	if !a.inLists(it) || !r.waitsInOther(it) {
		return
	}
	s := r.of(a.source)
	if s == nil {
		s = r.addSource(a.source)
	}
	s.storePart(&event.Item{Observation: r.pending.v.obs}, r.pending.v.late)
	s.dirty, d.changed = true, true
}

// decidePart decides for a Source with several parts. v is the comparison with the last
// report of the Source. An item reports only for its own part whether the record exists,
// so it is compared with the last report of that part. noted: nothing else follows.
func (a *decider) decidePart(r *record, it *event.Item, v comparison, d *decision) (_ comparison, noted bool) {
	s := r.of(a.source)
	if it.Place.Part == 0 && (s == nil || len(s.parts) == 0 && s.place.Part == 0) && (r.pending == nil || r.pending.v.obs.Place.Part == 0) {
		return v, false
	}
	own := a.comparePart(r, it, s)
	switch {
	case own != apply && own != doubt:
		d.old = true
		if own == historical && s.hasLeft(it.Place.Part) && (r.pending == nil || r.pending.v.obs.Place.Part != it.Place.Part) {
			d.present, d.held = false, skip // its Resource List is older than its deletion
		}
		return own, false
	case it.Deleted && a.inOther(r, it): // whatever the URL answers
		return apply, false
	case it.Deleted:
		return own, false
	case s != nil && s.alive, r.pending != nil && !r.pending.v.obs.Deleted:
		if v == apply {
			return apply, false
		}
	case r.order == nil:
		return own, false // the part did not have it, and has it now
	}
	a.notePart(r, it, d)
	return v, true
}

// comparePart decides by the order of the item in its own part.
func (a *decider) comparePart(r *record, it *event.Item, s *sourceState) comparison {
	var w lastReport
	if s != nil {
		if p := s.part(it.Place.Part); p != nil {
			w = p.lastReport(it)
		} else if len(s.parts) == 0 && s.place.Part == it.Place.Part && s.hasReported() {
			p := s.asPart()
			w = p.lastReport(it)
		}
	}
	if p := r.pending; p != nil && !p.partial && p.v.obs.Place.Part == it.Place.Part {
		o := &p.v.obs
		waits := part{alive: !o.Deleted, future: p.v.late, stamp: o.Order, place: o.Place, claim: o.Claim}
		w = waits.lastReport(it)
	}
	w.comparableBy(a.ordering)
	own := *r
	own.seen, own.order, own.regressed = r.seenInPart, nil, nil
	v, _ := a.comparePlaces(&own, it, &w)
	return v
}

// leavePart notes that one part no longer has a record, which others have.
func (a *decider) leavePart(r *record, it *event.Item) decision {
	d := decision{outcome: event.Unchanged}
	s := r.of(a.source)
	if s == nil || !a.inOther(r, it) {
		return d
	}
	a.stopWaiting(r, it, &d)
	if p := s.part(it.Place.Part); p != nil && p.alive {
		p.alive, s.dirty, d.changed = false, true, true
	}
	return d
}

// undated reports whether a list of changes mentioned the record last, without a
// time that can be compared with that of an enumeration.
func (p *part) undated() bool { return p.place.Position > 0 && (!p.stamp.Known() || p.future) }

// undated reports the same of the Source, or of one of the parts that it has,
// where it ever had several.
func (s *sourceState) undated(parts []int) bool {
	all := s.parts
	if len(all) == 0 {
		all = []part{s.asPart()}
	}
	return slices.ContainsFunc(all, func(p part) bool {
		return p.alive && p.undated() && (len(parts) == 0 || slices.Contains(parts, p.number))
	})
}
