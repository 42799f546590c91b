package atompmh

import (
	"errors"
	"testing"
	"time"
)

// A harvester ended its walk at the first record that it knew unchanged.
func TestSeenElsewhere_EndsAtFirstUnchangedRecord(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/1", entries: []string{alive("known", 3), alive("new", 20), alive("other", 19)}}.String())
	s.put("/1", page{updated: 18, prev: "/0", entries: []string{alive("missed", 18)}}.String())
	s.put("/0", page{updated: 2, entries: []string{alive("old", 2)}}.String())
	w := s.walk()
	w.State = marked(day(5))
	got := s.run(w)
	got.expect(t, "/feed /1 /0", "aknown anew aother amissed aold")
	if !got.reported(ruleS2) {
		t.Error("the broken S2 was not reported")
	}
}

// It compared whole seconds.
func TestSeenElsewhere_ComparesWholeSeconds(t *testing.T) {
	s := newSite(t)
	at := day(10)
	s.put("/feed", page{updated: 11, prev: "/1", entries: []string{aliveAt("a", at.Add(700*time.Millisecond))}}.String())
	s.put("/1", page{updated: 10, prev: "/0", entries: []string{aliveAt("b", at.Add(300*time.Millisecond)), aliveAt("c", at.Add(-time.Nanosecond))}}.String())
	s.put("/0", page{updated: 9, entries: []string{alive("d", 9)}}.String())
	w := s.walk()
	w.State = marked(at.Add(500 * time.Millisecond))
	got := s.run(w)
	got.expect(t, "/feed /1", "aa ab ac")
	if !got.Target.Equal(at.Add(700 * time.Millisecond)) {
		t.Errorf("target %v", got.Target)
	}
}

// It hard-coded "not deleted".
func TestSeenElsewhere_NeverDeletes(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, head: `<at:deleted-entry xmlns:at="http://purl.org/atompub/tombstones/1.0" ref="urn:x:b" when="2020-01-02T00:00:00Z"/>`,
		entries: []string{gone("a", 20), alive("c", 19)}}.String())
	s.run(s.walk()).expect(t, "/feed", "db da ac")
}

// A producer stamped every archive with the newest time, so that consumers that
// go by feed/updated alone never stopped. Here S2 is reported, the walk goes on,
// and it ends with the chain.
func TestSeenElsewhere_ArchivesStampedWithTheNewestTime(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/2", entries: []string{alive("a", 20), alive("b", 16)}}.String())
	s.put("/2", page{updated: 20, prev: "/1", entries: []string{alive("c", 10)}}.String())
	s.put("/1", page{updated: 20, entries: []string{alive("d", 5)}}.String())
	w := s.walk()
	w.State = marked(day(17))
	got := s.run(w)
	got.expect(t, "/feed /2 /1", "aa ab ac ad")
	if !got.reported(ruleS2) || got.Lost || !got.Oldest || !got.Target.Equal(day(20)) {
		t.Errorf("%+v %v", got.Result, got.problems)
	}
}

// Others looped forever on a cyclic chain.
func TestSeenElsewhere_CyclicChain(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/1", entries: []string{alive("a", 20)}}.String())
	s.put("/1", page{updated: 20, prev: "/feed", entries: []string{alive("b", 20)}}.String())
	got := s.run(s.walk())
	if !errors.Is(got.err, ErrLoop) || len(got.paths) != 2 {
		t.Errorf("visited %v, error %v", got.paths, got.err)
	}
}

// Others moved the mark past an entry whose storing failed. Here the loop
// is left before there is a State for the document.
func TestSeenElsewhere_MarkPassesAFailure(t *testing.T) {
	s := newSite(t)
	chain(s)
	var got walked
	w := s.walk()
	for d, err := range w.Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if len(got.states) == 1 {
			if _, err := d.Next(); err != nil {
				t.Error(err)
			}
			break
		}
		got.read(s, d)
	}
	if r := w.Result(); r.Oldest || r.Documents != 1 || !r.State.memory().Mark.IsZero() {
		t.Fatalf("%+v", r)
	}
	w.State = got.states[0]
	s.run(w).expect(t, "/3 /2 /1", "ac dd ad ae af aa")
}

// Others kept the date of the last entry instead of the largest.
func TestSeenElsewhere_KeepsTheLastDate(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/1", entries: []string{alive("a", 14), alive("b", 20), alive("c", 13)}}.String())
	s.put("/1", page{updated: 12, entries: []string{alive("d", 12)}}.String())
	got := s.run(s.walk())
	got.expect(t, "/feed /1", "*")
	if !got.Target.Equal(day(20)) {
		t.Errorf("target %v", got.Target)
	}
}
