package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// TestKillRepositories is TestKill over OAI-PMH repositories that change while their lists
// are read: one that tells of deletions, one that does not, so that its headers are read
// too, and one whose datestamps are days. The mark never runs ahead: after each round it
// is no later than the date of an answer, and what a killed harvest has not stored is
// found by the next one.
func TestKillRepositories(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	rounds := testenv.Rounds(t, 9, 100)
	k := newKillingOf(t, map[string]killSet{"told": {[]int{0}, true, true}, "untold": {[]int{1}, false, false}, "days": {[]int{2}, true, true}})
	var all []*repository
	for n, deleted := range []string{"persistent", "no", "transient"} {
		s := newRepository(k.seed, n, deleted)
		all = append(all, s)
		k.serve(s.source())
	}
	all[2].repo.Days = true
	k.configure(fmt.Sprintf(killRepositoriesConfig, k.sources[0].url, k.sources[1].url, k.sources[2].url))
	for i := range rounds {
		for _, s := range k.sources {
			for range k.random.IntN(5) {
				s.evolve()
			}
		}
		k.round(i)
		wantMarksBehind(t, k.config(), all)
	}
	k.end(rounds)
}

const killRepositoriesConfig = `
data = "data"
listen = "127.0.0.1:0"
base_url = "http://bridge.example.org"
[[set]]
name = "told"
segment_events = 20
[[set.source]]
kind = "oaipmh"
url = "%[1]s"
every = "1s"
overlap = "0s"
full_every = "0s"
[[set]]
name = "untold"
content = "redirect"
segment_events = 20
[[set.source]]
kind = "oaipmh"
url = "%[2]s"
every = "1s"
overlap = "0s"
full_every = "1ms"
hold_deletions = "1ms"
[[set]]
name = "days"
segment_events = 20
[[set.source]]
kind = "oaipmh"
url = "%[3]s"
every = "1s"
overlap = "0s"
full_every = "1ms"
hold_deletions = "1ms"
`

// wantMarksBehind fails if a mark is later than its repository's clock. A bridge killed
// before it made its log has no marks.
func wantMarksBehind(t *testing.T, file string, all []*repository) {
	t.Helper()
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := daemon.Open(t.Context(), c, daemon.Options{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i, s := range b.Sources() {
		p, err := b.Log.Progress(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if now, _ := event.StampOf(all[i].time()); p.Mark.After(now) {
			t.Errorf("the mark of %s is %s, and there it is %s", s.Set, p.Mark, now)
		}
	}
}

// repository changes an OAI-PMH repository at random. Its clock is a day behind, and goes
// on by at least a second with each change.
type repository struct {
	repo   *testserver.Repository
	change sync.Mutex // one change at a time
	mu     sync.Mutex // guards what follows
	random *rand.Rand
	name   string
	now    time.Time
	made   int
	titles map[string]string // of what is there, by identifier
	ids    []string
	gone   []string
	past   []fixtures.Change
}

func newRepository(seed uint64, n int, deleted string) *repository {
	s := &repository{repo: testserver.NewRepository(), random: rand.New(rand.NewPCG(seed, uint64(n+1))), name: string(rune('a' + n)), now: time.Now().UTC().Truncate(time.Second).Add(-24 * time.Hour), titles: map[string]string{}}
	s.repo.Now, s.repo.Deleted, s.repo.PageSize, s.repo.Stateless = s.time, deleted, 7, n == 0
	for range 60 {
		s.create()
	}
	return s
}

func (s *repository) time() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// source is the repository as a Source. How many documents a harvest takes depends on
// whether headers are due, so that is compared where they never are.
func (s *repository) source() *source {
	steady := []string{"/oai", "/oai"} // Identify and ListRecords
	asked := func() map[string]int {
		n := len(s.repo.Calls())
		if s.repo.Deleted != "persistent" {
			n = min(n, len(steady))
		}
		return map[string]int{"/oai": n}
	}
	return &source{Handler: s.repo, evolve: s.evolve, url: "/oai", asked: asked, forget: func() { s.repo.Calls() }, steady: func() []string { return steady },
		history: func() []fixtures.Change {
			s.mu.Lock()
			defer s.mu.Unlock()
			return append([]fixtures.Change(nil), s.past...)
		},
		live: s.live, rest: s.rest,
	}
}

// rest lets time pass: a record of the very second in which a list begins may have changed
// while the list was read, so what it lacks is in doubt.
func (s *repository) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(time.Second)
}

func (s *repository) live() (out []fixtures.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := map[string]fixtures.Change{}
	for _, c := range s.past {
		last[c.ID] = c
	}
	for _, c := range last {
		if c.Kind != fixtures.Deleted {
			out = append(out, c)
		}
	}
	return out
}

// put changes a record, and notes it before it can be seen.
func (s *repository) put(id string) {
	s.mu.Lock()
	s.made++
	s.now = s.now.Add(time.Second)
	title, kind := fmt.Sprintf("Version %d of %s", s.made, id), fixtures.Updated
	if s.titles[id] == "" {
		s.ids, kind = append(s.ids, id), fixtures.Created
	}
	s.titles[id] = title
	metadata := testserver.DublinCore(title)
	sum := sha256.Sum256([]byte(metadata))
	stamp := s.now
	if s.repo.Days {
		stamp = stamp.Truncate(24 * time.Hour)
	}
	s.past = append(s.past, fixtures.Change{Kind: kind, ID: id, Title: title, Stamp: stamp, Alternates: []fixtures.Alternate{{SHA256: hex.EncodeToString(sum[:]), Type: "application/xml"}}})
	item := testserver.Item{Identifier: id, Datestamp: s.now, Metadata: map[string]string{"oai_dc": metadata}}
	s.mu.Unlock()
	s.repo.Put(item)
}

func (s *repository) create() { s.put(fmt.Sprintf("oai:%s.example:%d", s.name, len(s.past)+1)) }

func (s *repository) remove() {
	s.mu.Lock()
	s.now = s.now.Add(time.Second)
	at := s.random.IntN(len(s.ids))
	id := s.ids[at]
	s.ids = append(s.ids[:at], s.ids[at+1:]...)
	delete(s.titles, id)
	s.gone = append(s.gone, id)
	s.past = append(s.past, fixtures.Change{Kind: fixtures.Deleted, ID: id, Stamp: s.now})
	s.mu.Unlock()
	s.repo.Delete(id)
}

func (s *repository) evolve() {
	s.change.Lock()
	defer s.change.Unlock()
	switch n := s.random.IntN(10); {
	case n < 5:
		s.put(s.ids[s.random.IntN(len(s.ids))])
	case n < 7:
		s.create()
	case n < 9 && len(s.ids) > 40:
		s.remove()
	case len(s.gone) > 0 && !strings.HasPrefix(s.name, "b"): // what has gone without a trace would not look new
		s.put(s.gone[0])
		s.gone = s.gone[1:]
	}
}
