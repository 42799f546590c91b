package main

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestKill kills bridge with SIGKILL at random moments of harvests and of
// publication, over Sources that change while they are read. One data folder
// lives through all rounds. Nothing may be lost or doubled; cursors, marks and
// documents must be right; and bridge must be ready again within 5 s where nothing
// else runs.
func TestKill(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	rounds, segment, churn := testenv.Rounds(t, 12, 1000), 20, 6
	if testenv.Soaking() {
		segment, churn = 500, 80
	}
	k := newKilling(t, segment)
	for i := range rounds {
		for n, most := range []int{churn, churn, 6} { // of too many deletions in the complete feed the guard would hold some (A6)
			for range k.random.IntN(most) {
				k.sources[n].evolve()
			}
		}
		k.round(i)
	}
	k.end(rounds)
}

// round kills one bridge, and after every tenth compares everything.
func (k *killing) round(i int) {
	if i%3 == 2 {
		k.killHarvest()
	} else {
		k.killServe()
	}
	if k.t.Failed() {
		k.t.Fatalf("in round %d of seed %d", i, k.seed)
	}
	if i%10 == 9 {
		k.settle()
	}
}

func (k *killing) end(rounds int) {
	k.settle()
	k.t.Logf("%d rounds: killed in %d harvests, %d before and %d after ready; %d events, %d requests; ready after %v at most", rounds, k.harvests, k.early, k.late, k.seq, k.requests.Load(), k.slowest)
}

// killing is a test that kills bridges over one data folder.
type killing struct {
	t       *testing.T
	seed    uint64
	random  *rand.Rand
	folder  *folder
	sources []*source
	sets    map[string]killSet
	// requests of bridges; when their number reaches killAt, due gets one.
	requests, killAt atomic.Int64
	due              chan struct{}
	// away: a server that the log or the contents are on may be away.
	away atomic.Bool
	// still keeps the Sources from changing; quiet guards it, and the changes.
	still bool
	quiet sync.Mutex

	model
	closed                map[string][]byte // closed documents, by path
	whole                 map[string]bool   // sets whose Resource List has been there
	slowest               time.Duration     // until ready
	harvests, early, late int
}

// source is an upstream server of the test.
type source struct {
	http.Handler
	evolve        func() // one change
	history, live func() []fixtures.Change
	asked         func() map[string]int // since forget
	forget        func()
	rest          func() // lets time pass without a change; nil where nothing depends on it
	// steady are the documents that each harvest asks for when nothing changes.
	steady func() []string

	url     string
	changes map[string][]fixtures.Change // by identifier
	learned int                          // of its history
}

// killSet is a set of a killed bridge.
type killSet struct {
	sources []int // their numbers
	hashed  bool  // its Sources state hashes, or it has its own
	served  bool  // it serves contents
}

func newFeedSource(o fixtures.Options) *source {
	p := fixtures.New(o)
	return &source{Handler: p, evolve: func() { p.Evolve() }, history: p.History, live: p.Live, asked: p.Asked, forget: p.ForgetRequests,
		steady: func() []string { return []string{fixtures.Subscription} }, url: fixtures.Subscription}
}

const killConfig = `
data = "data"
listen = "127.0.0.1:0"
base_url = "http://bridge.example.org"
[[set]]
name = "pool"
identity = "per-source"
segment_events = %[4]d
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
name = "whole"
content = "reference"
segment_events = %[4]d
[[set.source]]
url = "%[3]s"
every = "1s"
[[set]]
name = "again"
content = "redirect"
segment_events = %[4]d
[[set.source]]
url = "%[1]s"
every = "1s"
overlap = "0s"
`

func newKilling(t *testing.T, segment int) *killing {
	k := newKillingOf(t, map[string]killSet{"pool": {[]int{0, 1}, true, true}, "whole": {[]int{2}, false, false}, "again": {[]int{0}, false, false}})
	for _, o := range []fixtures.Options{{Title: "A", PerArchive: 25}, {Title: "B", PerArchive: 10}, {Title: "C", Complete: true}} {
		s := newFeedSource(o)
		for n := range 40 {
			s.Handler.(*fixtures.Provider).Create(fixtures.Record{Name: fmt.Sprintf("%s-%d", o.Title, n)})
		}
		k.serve(s)
	}
	k.configure(fmt.Sprintf(killConfig, k.sources[0].url, k.sources[1].url, k.sources[2].url, segment))
	return k
}

func newKillingOf(t *testing.T, sets map[string]killSet) *killing {
	k := &killing{t: t, seed: uint64(time.Now().UnixNano()), sets: sets, due: make(chan struct{}, 1), closed: map[string][]byte{}, whole: map[string]bool{}}
	k.random = rand.New(rand.NewPCG(k.seed, 0))
	return k
}

// serve makes a Source the next one, and its path a URL.
func (k *killing) serve(s *source) {
	server := httptest.NewServer(k.watch(s, int64(len(k.sources))))
	k.t.Cleanup(server.Close)
	s.url = server.URL + s.url
	k.sources = append(k.sources, s)
}

func (k *killing) configure(text string) { k.folder = newFolder(k.t, text) }

func (k *killing) config() string { return filepath.Join(k.folder.path, "bridge.toml") }

// watch counts requests, makes due at one of them, and lets the Source change while
// it is read.
func (k *killing) watch(s *source, odd int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := k.requests.Add(1)
		if n == k.killAt.Load() {
			select {
			case k.due <- struct{}{}:
			default:
			}
		}
		k.quiet.Lock()
		if n%7 == odd && !k.still {
			s.evolve()
		}
		k.quiet.Unlock()
		s.ServeHTTP(w, r)
	})
}

// killSoon kills a bridge at a random request, or after a random time.
func (k *killing) killSoon(c *child) {
	select {
	case <-k.due: // of the round before
	default:
	}
	k.killAt.Store(0)
	patience := time.Duration(k.random.IntN(300)) * time.Millisecond
	if k.random.IntN(2) == 0 {
		patience = 1500 * time.Millisecond // a Source may be asked again only after a second
		k.killAt.Store(k.requests.Load() + 1 + k.random.Int64N(40))
	}
	select {
	case <-k.due:
	case <-c.ended:
	case <-time.After(patience):
	}
	c.kill()
}

func (k *killing) killHarvest() {
	c := k.folder.start("harvest", "--config", "bridge.toml")
	k.killSoon(c)
	// What changed while it was harvested may be pending.
	if status := c.cmd.ProcessState.ExitCode(); status > 0 && status != exitPartly {
		k.t.Errorf("bridge harvest: %s\n%s%s", c.cmd.ProcessState, c.stdout.String(), c.stderr.String())
	}
	k.harvests++
}

// killServe kills bridge serve while it starts, or while its documents are read.
func (k *killing) killServe() {
	began := time.Now()
	c := k.folder.start("serve", "--config", "bridge.toml")
	if k.random.IntN(3) == 0 {
		k.early++
		k.killSoon(c)
		return
	}
	k.late++
	server, err := c.ready()
	if err != nil {
		k.t.Error(err)
		c.kill()
		return
	}
	k.slowest = max(k.slowest, time.Since(began))
	if overdue(k.slowest, 5*time.Second) {
		k.t.Errorf("ready after %v, want 5 s at most", k.slowest)
	}
	read := make(chan error)
	go func() { read <- k.readUntilGone(server) }()
	k.killSoon(c)
	if err := <-read; err != nil {
		k.t.Error(err)
	}
}

// settle lets bridge harvest in peace and compares everything.
func (k *killing) settle() {
	k.t.Helper()
	k.beStill(true) // a request of a bridge that was killed may still be under way
	defer k.beStill(false)
	for _, s := range k.sources {
		if s.rest != nil {
			s.rest()
		}
	}
	k.run("harvest", exitPartly) // of parts that moved while they were read some may be missing
	k.run("harvest")
	before := k.follow(k.t, k.sources, k.config())
	for _, s := range k.sources {
		s.forget()
	}
	k.run("harvest")
	if after := k.follow(k.t, k.sources, k.config()); after != before {
		k.t.Errorf("harvesting again in peace added the events %d to %d", before+1, after)
	}
	for i, s := range k.sources {
		want := map[string]int{}
		for _, set := range k.sets {
			if slices.Contains(set.sources, i) {
				for _, path := range s.steady() {
					want[path]++
				}
			}
		}
		if asked := s.asked(); !maps.Equal(asked, want) {
			k.t.Errorf("harvesting again asked Source %d for %v, want %v", i, asked, want)
		}
	}
	k.wantLive(k.t, k.sources, k.sets)
	k.run("verify")
	k.wantDocuments()
	if k.t.Failed() {
		k.t.Fatalf("seed %d", k.seed)
	}
}

func (k *killing) beStill(still bool) {
	k.quiet.Lock()
	defer k.quiet.Unlock()
	k.still = still
}

// run runs a command that must succeed, or end with one of other statuses.
func (k *killing) run(command string, or ...int) {
	k.t.Helper()
	args := []string{command, "--config", k.config()}
	if command == "verify" {
		args = []string{command, "--data", "data"}
	}
	k.folder.runEnding(append(or, exitDone), args...)
}

// A bridge that is killed while it writes a backup leaves nothing under the backup's
// name.
func TestKillBackup(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	noise := make([]byte, 300<<10) // more than a pipe takes
	for i := range noise {
		noise[i] = byte(rand.N(256))
	}
	p := fixtures.New(fixtures.Options{})
	p.Create(fixtures.Record{Name: "a", Formats: []fixtures.Format{{Ext: "bin", Type: "application/octet-stream", Body: noise}}})
	source := httptest.NewServer(p)
	t.Cleanup(source.Close)
	f := newFolder(t, "data = \"data\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \""+source.URL+fixtures.Subscription+"\"\n")
	f.run(exitDone, "harvest")

	partial := filepath.Join(f.path, "kept.partial")
	if err := syscall.Mkfifo(partial, 0o600); err != nil { // so it cannot end before this test has read it all
		t.Fatal(err)
	}
	c := f.start("backup", "kept")
	read, err := os.Open(partial)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := io.ReadFull(read, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	c.kill()
	if _, err := os.Stat(filepath.Join(f.path, "kept")); !os.IsNotExist(err) {
		t.Errorf("a half backup is there: %v", err)
	}
	if err := os.Remove(partial); err != nil {
		t.Fatal(err)
	}
	f.run(exitDone, "backup", "kept")
	f.run(exitDone, "restore", "--data", "restored", "kept")
	f.run(exitDone, "verify", "--data", "restored")
}
