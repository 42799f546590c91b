package eventlog

import "github.com/pmh-bridge/bridge/event"

// ruling is what the rules make of an item before its content matters.
type ruling uint8

const (
	apply     ruling = iota + 1
	unchanged        // the stored claim, or nothing to say
	historical
	stepBack
	superseded // pending content that a newer entry has replaced
)

// word is what a Source last said of a record, as far as later words are
// compared with it.
type word struct {
	known  bool // it said something
	stamp  event.Stamp
	place  event.Place
	future bool // its stamp lay in the future when it was stored
	same   bool // it is what the item says
}

// lastWord returns what the item is compared with. What is pending is the newer
// word of the Source, published or not.
func (b *batch) lastWord(it *event.Item, r *record) word {
	var w word
	if s := r.by(b.source.id); s != nil {
		w = word{known: true, stamp: s.stamp, place: s.place, future: s.future, same: s.claim == it.Claim && s.alive == !it.Deleted}
	}
	if p := r.pending; p != nil && !p.partial && (!w.known || !p.place.IsZero() || !p.stamp.Before(w.stamp)) {
		w = word{known: true, stamp: p.stamp, place: p.place, future: p.late, same: p.claim == it.Claim}
	}
	return w
}

// rule decides by the stamps alone (A1), or by the places in lists. It reads
// what is stored and what the walk has met, and changes nothing. broken: an
// earlier document of the walk should have had the item (S2).
func (b *batch) rule(it *event.Item, r *record) (v ruling, broken bool) {
	switch b.in.Mode {
	case event.ModeSubmission:
		return apply, false
	case event.ModeStepBack:
		if r.back == nil || r.back.stamp != it.Order {
			return superseded, false
		}
		return apply, false
	case event.ModeSettle:
		if r.pending == nil || !r.pending.is(it) {
			return superseded, false
		}
		return apply, false
	case event.ModeAbsent, event.ModeHold:
		if s := r.by(b.source.id); (s == nil || !s.alive) && r.pending == nil {
			return unchanged, false
		}
		return apply, false
	}
	w := b.lastWord(it, r)
	met := b.in.Mode == event.ModeWalk && r.id != 0 && b.walk.has(r.id)
	if !it.Place.IsZero() {
		return placed(it, &w, met)
	}
	if met {
		switch {
		case r.back != nil && it.Order.After(r.back.stamp): // wins over what was met first, so it is judged as the first
			broken = true
		case r.back != nil || !w.known || !it.Order.After(w.stamp):
			return historical, false
		default:
			return apply, true
		}
	}
	switch c := it.Order.Compare(w.stamp); {
	case !w.known || c > 0:
		return apply, broken
	case c == 0 && w.same:
		return unchanged, broken
	case c == 0:
		return apply, broken
	case b.in.Mode == event.ModeReplay:
		return historical, false
	}
	return stepBack, broken
}

// placed decides for a Source whose lists are read from the newest to the
// oldest, so that of a record only the first entry counts. To read a list again
// is not harmless: what is no later than what was applied last is left alone.
// Stamps tell that where both are to be trusted, else the places in one list,
// else only that something differs.
func placed(it *event.Item, w *word, met bool) (v ruling, broken bool) {
	c := 0
	if it.Order.Known() && w.stamp.Known() && !it.Late && !w.future {
		c = it.Order.Compare(w.stamp)
	}
	switch {
	case met && !it.Baseline && w.known && c > 0:
		return apply, true
	case met:
		return historical, false
	case !w.known:
		return apply, false
	case c < 0:
		return historical, false
	case it.Baseline && w.same:
		return unchanged, false
	case it.Baseline, c > 0:
		return apply, false
	case it.Place.List == w.place.List && w.place.Position > 0:
		// At the same place something else stands when the entry was corrected.
		if it.Place.Position > w.place.Position || it.Place.Position == w.place.Position && !w.same {
			return apply, false
		}
		return unchanged, false
	case w.same:
		return unchanged, false
	}
	return apply, false
}
