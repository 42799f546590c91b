package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestKillLists is TestKill over ResourceSync Sources: with closed lists and parts,
// with one Change List, and without any, of which baselines are compared.
func TestKillLists(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	rounds := testenv.Rounds(t, 9, 1000)
	k := newKillingOf(t, map[string]killSet{"lists": {[]int{0, 1}, true, true}, "plain": {[]int{0}, true, false}, "whole": {[]int{2}, true, false}})
	for n, o := range []fixtures.SourceOptions{{PerList: 7, PerPart: 20}, {ChangeLists: fixtures.SingleChangeList}, {ChangeLists: fixtures.NoChangeLists, PerPart: 1000}} {
		k.serve(newListSource(k.seed, n, o))
	}
	k.configure(fmt.Sprintf(killListsConfig, k.sources[0].url, k.sources[1].url, k.sources[2].url))
	for i := range rounds {
		for _, s := range k.sources {
			for range k.random.IntN(5) { // of too many deletions by absence the guard would hold some (A6)
				s.evolve()
			}
		}
		k.round(i)
	}
	k.end(rounds)
}

const killListsConfig = `
data = "data"
listen = "127.0.0.1:0"
base_url = "http://bridge.example.org"
[[set]]
name = "lists"
segment_events = 20
[[set.source]]
url = "%[1]s"
every = "1s"
overlap = "10s"
[[set.source]]
name = "second"
url = "%[2]s"
every = "1s"
overlap = "10s"
[[set]]
name = "plain"
content = "redirect"
segment_events = 20
[[set.source]]
kind = "resourcesync"
url = "%[1]s"
every = "1s"
overlap = "0s"
[[set]]
name = "whole"
content = "reference"
segment_events = 20
[[set.source]]
url = "%[3]s"
every = "1s"
`

// listSource changes a ResourceSync Source at random.
type listSource struct {
	*fixtures.Source
	mu      sync.Mutex
	random  *rand.Rand
	name    string
	made    int
	deleted []string
}

func newListSource(seed uint64, n int, o fixtures.SourceOptions) *source {
	o.Carry = true
	s := &listSource{Source: fixtures.NewSource(o), random: rand.New(rand.NewPCG(seed, uint64(n+1))), name: string(rune('a' + n))}
	for range 40 {
		s.create()
	}
	lists := []string{fixtures.CapabilityList, fixtures.ResourceList} // whether there are Change Lists by now (D80)
	switch o.ChangeLists {
	case fixtures.IndexedChangeLists:
		lists = []string{fixtures.ChangeListIndex, ""}
	case fixtures.SingleChangeList:
		lists = []string{fixtures.ChangeList}
	}
	return &source{Handler: s, evolve: s.evolve, url: fixtures.CapabilityList, asked: s.Asked, forget: s.ForgetRequests,
		history: func() []fixtures.Change { return changesOf(s.History()) },
		live:    func() []fixtures.Change { return changesOf(s.Live()) },
		steady: func() []string {
			if o.ChangeLists == fixtures.IndexedChangeLists {
				lists[1] = s.open()
			}
			return lists
		},
	}
}

// open returns the path of the open Change List.
func (s *listSource) open() (last string) {
	for _, path := range s.Documents() {
		if strings.HasPrefix(path, "/changelist/") {
			last = path
		}
	}
	return last
}

func (s *listSource) create() {
	s.made++
	name := fmt.Sprintf("%s-%d", s.name, s.made)
	s.Create(fixtures.Resource{Name: name, ID: "urn:" + name})
}

func (s *listSource) evolve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := s.Live()
	name := live[s.random.IntN(len(live))].Name
	switch n := s.random.IntN(10); {
	case n < 4:
		s.Update(fixtures.Resource{Name: name})
	case n < 6:
		s.create()
	case n < 8 && len(live) > 30:
		s.Delete(name)
		s.deleted = append(s.deleted, name)
	case n < 9 && len(s.deleted) > 0:
		s.Recreate(fixtures.Resource{Name: s.deleted[0]})
		s.deleted = s.deleted[1:]
	default:
		s.Touch(name)
	}
}

// changesOf tells a ResourceSync Source's history in the words of a feed's.
func changesOf(all []fixtures.ResourceChange) []fixtures.Change {
	out := make([]fixtures.Change, 0, len(all))
	for _, c := range all {
		out = append(out, fixtures.Change{Kind: c.Kind, Name: c.Name, ID: c.ID, Title: c.Title, Stamp: c.Stamp, Alternates: c.Representations})
	}
	return out
}
