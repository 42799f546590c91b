package eventlog

import (
	"encoding/binary"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// part is what one part of a Source last said of a record: one of its sets of
// resources (ResourceSync 9). A record that stands in several is gone when none
// has it (D2). What the record is, is what the Source said last, in whichever
// part; whether it is there, each part says for itself.
type part struct {
	number        int
	alive, future bool
	stamp         event.Stamp
	place         event.Place
	claim         int64
}

func (p *part) lastSaid(it *event.Item) lastSaid {
	return lastSaid{known: true, alive: p.alive, stamp: p.stamp, place: p.place, future: p.future, same: p.claim == it.Claim && p.alive == !it.Deleted, again: p.claim == it.Claim}
}

const (
	partAlive  = 1
	partFuture = 2
)

func (p *part) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(p.number))
	var f byte
	if p.alive {
		f |= partAlive
	}
	if p.future {
		f |= partFuture
	}
	b = appendStamp(append(b, f), p.stamp)
	return appendPlace(binary.LittleEndian.AppendUint64(b, uint64(p.claim)), p.place)
}

func (r *reader) part() part {
	p := part{number: int(r.uvarint())}
	f := r.byte()
	p.alive, p.future = f&partAlive != 0, f&partFuture != 0
	p.stamp, p.claim, p.place = r.stamp(), r.fixed(), r.place()
	return p
}

// part returns what a part of the Source says; nil when it has said nothing.
func (s *sourceState) part(number int) *part {
	for i := range s.parts {
		if s.parts[i].number == number {
			return &s.parts[i]
		}
	}
	return nil
}

// asPart returns what the Source says as that of the one part that has spoken.
func (s *sourceState) asPart() part {
	return part{number: s.place.Part, alive: s.alive, future: s.future, stamp: s.stamp, place: s.place, claim: s.claim}
}

// inOther reports whether another part of the Source has the record.
func (s *sourceState) inOther(number int) bool {
	for i := range s.parts {
		if s.parts[i].alive && s.parts[i].number != number {
			return true
		}
	}
	return len(s.parts) == 0 && s.alive && !s.place.IsZero() && s.place.Part != number
}

// sayPart notes what an item says for its part. Where only the first part has
// spoken, that is what the Source says.
func (s *sourceState) setPart(it *event.Item, late bool) {
	number := it.Place.Part
	if len(s.parts) == 0 {
		if number == 0 && (s.place.IsZero() || s.place.Part == 0) {
			return
		}
		if !s.place.IsZero() {
			s.parts = append(s.parts, s.asPart())
		}
	}
	p := s.part(number)
	if p == nil {
		s.parts = append(s.parts, part{number: number})
		p = &s.parts[len(s.parts)-1]
	}
	p.alive, p.future, p.stamp, p.place, p.claim = !it.Deleted, late, it.Order, it.Place, it.Claim
}

// ofList reports whether the items stand in lists, each of a part of the Source.
func (a *decider) inLists() bool {
	return a.ordering == byPlace && (a.mode == event.ModeWalk || a.mode == event.ModeSettle)
}

// note keeps what an item says for its part, and nothing else of it.
func (a *decider) notePart(r *record, it *event.Item, d *decision) {
	s := r.of(a.source)
	if s == nil {
		s = r.addSource(a.source)
	}
	s.setPart(it, d.late)
	s.dirty, d.changed, d.old, d.outcome = true, true, true, event.Unchanged
}

// ofPart decides for a Source with several parts: v is what the item means to
// what the Source last said. Whether the record is there the item says for its own
// part, so that it is compared with what that has said. noted: no more follows.
func (a *decider) decidePart(r *record, it *event.Item, v comparison, d *decision) (_ comparison, noted bool) {
	s := r.of(a.source)
	if it.Place.Part == 0 && (s == nil || len(s.parts) == 0) && (s == nil || s.place.Part == 0) {
		return v, false
	}
	own := a.comparePart(r, it, s)
	switch {
	case own != apply && own != doubt:
		d.old = true
		return own, false
	case it.Deleted && s != nil && s.inOther(it.Place.Part): // whatever the URL says
		return apply, false
	case it.Deleted:
		return own, false
	case s != nil && s.alive, r.pending != nil && !r.pending.deleted:
		if v == apply {
			return apply, false
		}
	case r.order == nil:
		return own, false // it was gone, and is there
	}
	a.notePart(r, it, d)
	return v, true
}

// rulePart decides by the order of the item in its own part.
func (a *decider) comparePart(r *record, it *event.Item, s *sourceState) comparison {
	var w lastSaid
	if s != nil {
		if p := s.part(it.Place.Part); p != nil {
			w = p.lastSaid(it)
		} else if len(s.parts) == 0 && s.place.Part == it.Place.Part {
			p := s.asPart()
			w = p.lastSaid(it)
		}
	}
	if p := r.pending; p != nil && !p.partial && p.place.Part == it.Place.Part {
		waits := part{alive: !p.deleted, future: p.late, stamp: p.stamp, place: p.place, claim: p.claim}
		w = waits.lastSaid(it)
	}
	w.comparableBy(a.ordering)
	own := *r
	own.met, own.order, own.regressed = r.metPart, nil, nil
	v, _ := a.comparePlaces(&own, it, &w)
	return v
}

// leave notes that one part does not have a record any more, which others have.
func (a *decider) leavePart(r *record, it *event.Item) decision {
	d := decision{outcome: event.Unchanged}
	s := r.of(a.source)
	if s == nil || !s.inOther(it.Place.Part) {
		return d
	}
	if p := s.part(it.Place.Part); p != nil && p.alive {
		p.alive, s.dirty, d.changed = false, true, true
	}
	return d
}

// undated reports whether a list of changes spoke of the record last, without a
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
