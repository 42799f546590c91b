package harvest_test

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// model is the log without regard to how it is written: of each Source its last
// word on each record.
type model []words

type words struct {
	source *source
	of     map[string]word
}

// harvested is a harvest that has come to its end. Some lists of changes were not
// to be had: those of these names, all where one is that of the index. They are
// gone, or may be had later.
type harvested struct {
	full    bool
	without []string
	gone    bool
}

// lacks reports whether the harvest could not read a statement.
func (p *harvested) lacks(s *source, i int) bool {
	if len(p.without) == 0 {
		return false
	}
	for list := range s.list + 1 {
		if !slices.Contains(p.without, "") && !slices.Contains(p.without, fmt.Sprintf("/%d", list)) && s.has(list, i) {
			return false
		}
	}
	return true
}

// word is what a Source said last of a record.
type word struct {
	version int    // 0: it is not there
	at      int    // the number of the statement, or of the last one that the Resource List knew
	change  bool   // a list of changes said it
	dated   bool   // and when
	title   string // of that version
	rank    int    // of the Source, when the record was met last
	said    said
}

// said is at and change as they were when the Source said it, and of which kind it was.
type said struct {
	kind   string
	at     int
	change bool
}

// live returns the titles of the records that the set has: the first Source that
// has one speaks for it, by the order that was in force when the record was met
// last, and by that of now.
func (m model) live() (met, now map[string]string) {
	met, now = map[string]string{}, map[string]string{}
	for name := range m.names() {
		first, newFirst := math.MaxInt, math.MaxInt
		for _, w := range m {
			word := w.of[name]
			if word.version > 0 && word.rank < first {
				first, met[name] = word.rank, word.title
			}
			if word.version > 0 && w.source.rank < newFirst {
				newFirst, now[name] = w.source.rank, word.title
			}
		}
	}
	return met, now
}

func (m model) names() map[string]bool {
	out := map[string]bool{}
	for _, w := range m {
		for name := range w.of {
			out[name] = true
		}
	}
	return out
}

// meet: the order of now is in force for a record.
func (m model) meet(name string) {
	for _, w := range m {
		if word, known := w.of[name]; known {
			word.rank = w.source.rank
			w.of[name] = word
		}
	}
}

// forget: when a Source of another kind said something does not tell whether a
// list is newer (D107). It tells again when the Source is of the former kind again.
func (m model) forget(s *source) {
	for name, w := range m[s.number].of {
		if w.at, w.change = 0, false; w.said.kind == s.kind {
			w.at, w.change = w.said.at, w.said.change
		}
		m[s.number].of[name] = w
	}
}

// end: the Source is forgotten, with all that it has.
func (m model) end(s *source) {
	for name, w := range m[s.number].of {
		if w.version > 0 {
			w.version = 0
			m[s.number].of[name] = w
			m.meet(name)
		}
	}
}

// take is a harvest of a Source. It meets what the Source has or had, but for what
// a short feed does not show, and what stands in a list that it lacks.
func (m model) take(s *source, p harvested) {
	before := maps.Clone(m[s.number].of)
	m.hear(s, p)
	shown := map[string]bool{}
	for _, st := range s.shown() {
		shown[st.name] = !st.unselected
	}
	for name := range m.names() {
		was, is := before[name], m[s.number].of[name]
		may := len(p.without) == 0 && (s.kind != harvest.Feed || shown[name])
		if was != is || may && is.version > 0 {
			m.meet(name)
		}
	}
}

// hear is what a Source has said in a harvest.
func (m model) hear(s *source, p harvested) {
	words := m[s.number].of
	switch {
	case s.kind == harvest.Feed: // what it shows is there; what it does not show says nothing
		for _, st := range s.shown() {
			if !st.unselected {
				words[st.name] = s.word(st, 0)
			}
		}
		return
	case s.kind == harvest.AtomPMH && s.complete:
		for name := range words {
			if s.truth[name] == 0 {
				delete(words, name)
			}
		}
		for i, st := range s.said {
			if st.version > 0 && s.truth[st.name] == st.version {
				words[st.name] = s.word(st, i+1)
			}
		}
		return
	}
	baseline := s.kind == harvest.ResourceSync && (p.full || !s.known)
	// Of the statements that are new the last one on each record decides. If it is
	// bad or not selected, nothing is known but that older ones do not hold.
	decided, spoken, waiting := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := len(s.said) - 1; i >= 0; i-- {
		st := s.said[i]
		if p.lacks(s, i) {
			continue
		}
		w, known := words[st.name]
		// A newer statement may have hidden this one. When the newer one's list has gone
		// and a baseline reads everything again, this one counts, unless the Source
		// has said something of the record since it is of this kind.
		hidden := baseline && known && w.said.kind != s.kind && !st.bad && !st.unselected
		old := s.taken[i] && !hidden || spoken[st.name]
		s.taken[i], spoken[st.name] = true, true
		switch {
		case old:
		case baseline && !s.untimed && i < s.at && s.listed(st.name) > 0: // the Resource List is newer
		case known && !w.change && w.at > i && st.dated && !s.untimed: // and was read before
		default:
			waiting[st.name] = s.waits(st.name, st.version) && i >= s.at
			if !st.bad && !st.unselected && !s.waits(st.name, st.version) {
				words[st.name] = s.word(st, i+1)
			}
			decided[st.name] = true
		}
	}
	s.known = true
	if !baseline {
		return
	}
	// A later change holds against the list, even one that cannot be taken.
	later := map[string]bool{}
	for i, st := range s.said {
		if p.lacks(s, i) {
			continue
		}
		later[st.name] = waiting[st.name] || (st.bad || st.unselected) && i >= s.at
	}
	for name := range s.snapshot {
		version := s.listed(name)
		if version == 0 || decided[name] || later[name] || s.waits(name, version) {
			continue
		}
		w, known := words[name]
		// Where no times tell, the list holds against what was not read again; it says
		// nothing against a change that is read later.
		untold := known && w.change && (s.untimed || !w.dated) && !spoken[name]
		if untold {
			for i := range s.said {
				if s.said[i].name == name {
					delete(s.taken, i)
				}
			}
		}
		if !known || untold || s.untimed && !w.change && !spoken[name] || !s.untimed && w.at <= s.at {
			words[name] = word{version: version, at: s.at, title: s.title(name, version), said: said{s.kind, s.at, false}}
		}
	}
	if len(p.without) > 0 && !p.gone {
		return // nobody knows what they tell
	}
	// What the list does not have is gone, unless a change tells of it later.
	for name, w := range words {
		switch {
		case s.listed(name) > 0, w.version == 0, later[name]:
		case !w.change, !s.untimed && w.dated && w.at <= s.at:
			delete(words, name)
		case !s.untimed && !w.dated && s.truth[name] == 0: // its URL was asked
			delete(words, name)
		}
	}
}

// waits reports whether a mirror cannot have a version, since there is another
// one by now: that of which a list that fails tells.
func (s *source) waits(name string, version int) bool {
	return s.mode == event.Mirror && version > 0 && s.truth[name] != version
}

// word is what the statement of a number says.
func (s *source) word(st statement, at int) word {
	return word{version: st.version, at: at, change: true, dated: st.dated, title: s.title(st.name, st.version), said: said{s.kind, at, true}}
}

// listed is the version of a record that the Resource List has; 0 when it has
// none, or one that is not selected.
func (s *source) listed(name string) int {
	if l := s.snapshot[name]; !l.outside {
		return l.version
	}
	return 0
}
