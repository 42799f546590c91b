package harvest_test

import (
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// model is the log without regard to how it is written: of each Source, in the
// order of the configuration, its last word on each record.
type model []map[string]word

// word is what a Source said last of a record.
type word struct {
	version int    // 0: it is not there
	at      int    // the number of the statement, or of the last one that the Resource List knew
	change  bool   // a list of changes said it
	dated   bool   // and when
	title   string // of that version
}

// live returns the titles of the records that the set has: the first Source that
// has one speaks for it.
func (m model) live() map[string]string {
	out := map[string]string{}
	for i := len(m) - 1; i >= 0; i-- {
		for name, w := range m[i] {
			if w.version > 0 {
				out[name] = w.title
			}
		}
	}
	return out
}

// take is a harvest of a Source that has come to its end.
func (m model) take(s *source, full bool) {
	words := m[s.rank]
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
	baseline := s.kind == harvest.ResourceSync && (full || !s.known)
	// Of the statements that are new the last one on each record decides. If it is
	// bad or not selected, nothing is known but that older ones do not hold.
	decided := map[string]bool{}
	for i := len(s.said) - 1; i >= s.seen; i-- {
		st := s.said[i]
		switch {
		case decided[st.name]:
		case baseline && !s.untimed && i < s.at && s.listed(st.name) > 0: // the Resource List is newer
		default:
			if !st.bad && !st.unselected {
				words[st.name] = s.word(st, i+1)
			}
			decided[st.name] = true
		}
	}
	s.seen, s.known = len(s.said), true
	if !baseline {
		return
	}
	// A later change holds against the list, even one that cannot be taken.
	later := map[string]bool{}
	for i, st := range s.said {
		later[st.name] = (st.bad || st.unselected) && i >= s.at
	}
	for name := range s.snapshot {
		w, known := words[name]
		if version := s.listed(name); version > 0 && !decided[name] && !later[name] && (!known || w.at <= s.at && !s.untimed) {
			words[name] = word{version: version, at: s.at, title: s.title(name, version)}
		}
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

// word is what the statement of a number says.
func (s *source) word(st statement, at int) word {
	return word{version: st.version, at: at, change: true, dated: st.dated, title: s.title(st.name, st.version)}
}

// listed is the version of a record that the Resource List has; 0 when it has
// none, or one that is not selected.
func (s *source) listed(name string) int {
	if l := s.snapshot[name]; !l.outside {
		return l.version
	}
	return 0
}
