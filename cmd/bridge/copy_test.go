package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// moves is a data folder that is copied from place to place: file N.toml is the
// configuration of the place N.
type moves struct {
	*folder
	places []string // the URL of the log, "" for a file
	more   string   // what is the same in all configurations
}

// next writes the configuration of the next place, and returns its name.
func (m *moves) next(url string) string {
	n := len(m.places)
	m.places = append(m.places, url)
	text := fmt.Sprintf("data = \"data-%d\"\n%s", n, m.more)
	if url != "" {
		text += fmt.Sprintf("[store]\nlog = %q\n", url)
	}
	name := fmt.Sprintf("%d.toml", n)
	if err := os.WriteFile(filepath.Join(m.path, name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return name
}

// usable reports whether a bridge may write the data folder of a place.
func (m *moves) usable(n int) bool {
	m.t.Helper()
	log, err := eventlog.Open(m.t.Context(), fmt.Sprintf("%s/data-%d", m.path, n), eventlog.Options{URL: m.places[n], DryRun: true})
	if err != nil {
		return false
	}
	defer log.Close()
	last := event.Seq(0)
	for ev, err := range log.Events(m.t.Context(), "", event.Range{Upto: 1 << 40}) {
		if err != nil {
			m.t.Fatal(err)
		}
		last = ev.Seq
	}
	return last > 0 // of a folder without a log, a dry run makes one
}

// open opens the log of a place for writing.
func (m *moves) open(n int) *eventlog.Log {
	m.t.Helper()
	log, err := eventlog.Open(m.t.Context(), fmt.Sprintf("%s/data-%d", m.path, n), eventlog.Options{URL: m.places[n]})
	if err != nil {
		m.t.Fatal(err)
	}
	return log
}

// newReferences makes a set main of references, with one Source.
func newReferences(t *testing.T, log *eventlog.Log) event.SourceID {
	t.Helper()
	if err := log.EnsureSet(t.Context(), eventlog.SetConfig{Name: "main", Content: event.Reference}); err != nil {
		t.Fatal(err)
	}
	id, err := log.EnsureSource(t.Context(), "main", "atompmh", "https://origin.example/feed", 0)
	if err == nil {
		err = log.MarkSetComplete(t.Context(), "main")
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// addReferences adds n records, and returns the cursor of the walk.
func addReferences(t *testing.T, log *eventlog.Log, source event.SourceID, cursor int64, from, n int) int64 {
	t.Helper()
	for n > 0 {
		b := &event.Batch{Source: source, Cursor: cursor, Start: cursor == 0, Next: []byte("on"), Documents: []event.Document{{URL: "https://origin.example/feed"}}}
		for range min(n, 1000) {
			b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: fmt.Sprint("urn:x:", from), Title: fmt.Sprint("Title ", from),
				Representations: []event.Representation{{Href: fmt.Sprint("https://origin.example/", from), Length: event.NoLength}}}})
			from++
			n--
		}
		out, err := log.Append(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		cursor = out.Cursor
	}
	return cursor
}

// TestKillCopy kills bridge copy at random moments, from a file to a server, from there to
// another, and back to a file. At no moment both folders can be written. Begun again until
// it ends, the copy has all that was there, and goes on.
func TestKillCopy(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.SharedPostgres(t)
	t.Parallel()
	m := &moves{folder: newFolder(t, "")}
	source := m.next("")
	log := m.open(0)
	id, cursor := newReferences(t, log), int64(0)
	const records = 2000
	cursor = addReferences(t, log, id, cursor, 0, records)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	kills, began := 0, time.Now()
	took := time.Duration(0) // what a whole copy takes
	for round := range testenv.Rounds(t, 3, 100) {
		url := ""
		if round%3 < 2 {
			url = postgres.NewSchema(t)
		}
		want := m.run(exitDone, "log", "--config", source, "--json").stdout
		if n := strings.Count(want, "\n"); n != records+round {
			t.Fatalf("seed %d, round %d: %d events, want %d", seed, round, n, records+round)
		}
		target := m.next(url)
		for took > 0 {
			began = time.Now()
			c := m.start("copy", "--from", source, "--to", target)
			select {
			case <-c.ended:
			case <-time.After(time.Duration(random.Int64N(int64(took * 5 / 4)))):
			}
			c.kill()
			if c.cmd.ProcessState.ExitCode() >= 0 { // it was not killed
				m.wantStatus(c, exitDone)
				break
			}
			kills++
			if m.usable(round) && m.usable(round+1) {
				t.Fatalf("seed %d, round %d: both folders can be written", seed, round)
			}
		}
		if took == 0 {
			m.run(exitDone, "copy", "--from", source, "--to", target)
			took = time.Since(began)
		}
		if m.usable(round) || !m.usable(round+1) {
			t.Fatalf("seed %d, round %d: the old folder can be written, or the new one cannot", seed, round)
		}
		if got := m.run(exitDone, "log", "--config", target, "--json").stdout; got != want {
			t.Fatalf("seed %d, round %d: the copy has another log", seed, round)
		}
		m.run(exitDone, "verify", "--config", target)
		log := m.open(round + 1)
		if log.Loss() != nil {
			t.Fatalf("seed %d, round %d: %v", seed, round, log.Loss())
		}
		cursor = addReferences(t, log, id, cursor, records+round, 1)
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		source = target
	}
	t.Logf("seed %d: %d kills", seed, kills)
}

// TestCopyUnderPoll moves a bridge to a server and back while its Source changes and a
// Destination polls it: the Destination gets each event once, and does not begin anew.
func TestCopyUnderPoll(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.SharedPostgres(t)
	t.Parallel()
	provider := fixtures.Catalogue(time.Now)
	origin := httptest.NewServer(provider)
	defer origin.Close()
	provider.SetBase(origin.URL)
	address := testenv.Nobody(t)
	m := &moves{folder: newFolder(t, ""), more: fmt.Sprintf(`
listen = %q
[[set]]
name = "main"
segment_events = 5
[[set.source]]
url = "%s%s"
every = "1s"
`, address, origin.URL, fixtures.Subscription)}
	source := m.next("")
	relay := newFolder(t, fmt.Sprintf(`
data = "data"
[[set]]
name = "copy"
[[set.source]]
kind = "resourcesync"
url = "http://%s/sets/main/capabilitylist.xml"
every = "1s"
`, address))
	bridge, _ := m.serve("--config", source)
	destination, _ := relay.serve("--listen", "127.0.0.1:0") // its log is there now
	events := func(f *folder, args ...string) (all []string) {
		for line := range strings.Lines(f.run(exitDone, append([]string{"log", "--json"}, args...)...).stdout) {
			var ev api.Event
			if err := json.Unmarshal([]byte(line), &ev); err != nil {
				t.Fatal(err)
			}
			hashes := ""
			for _, r := range ev.Representations {
				hashes += " " + r.SHA256
			}
			all = append(all, fmt.Sprint(ev.Kind, " ", ev.Record, hashes))
		}
		return all
	}
	// arrived waits until both have logged so many events more than at first, the Destination
	// last.
	atFirst := [2]int{}
	arrived := func(more int) (has, copied []string) {
		t.Helper()
		for late := time.Now().Add(patience); ; <-time.After(askEvery) {
			copied = events(relay)[atFirst[1]:]
			over := time.Now().After(late)
			if len(copied) < more && !over {
				continue
			}
			has = events(m.folder, "--config", source)[atFirst[0]:]
			if len(has) == more && len(copied) == more {
				return has, copied
			}
			if over {
				t.Fatalf("the bridge has %d more events, the Destination %d, and there were %d changes\n%s%s", len(has), len(copied), more, bridge.stderr.String(), destination.stderr.String())
			}
		}
	}
	for late := time.Now().Add(patience); ; <-time.After(askEvery) { // until the Destination has its first copy
		answerOf(t, "http://"+address+"/sets/main/resourcelist.xml")
		atFirst[1] = len(events(relay))
		if atFirst[1] == len(provider.Live()) {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("the Destination has %d records of %d\n%s", atFirst[1], len(provider.Live()), destination.stderr.String())
		}
	}
	atFirst[0] = len(events(m.folder, "--config", source))
	changes := 0
	for _, url := range []string{postgres.NewSchema(t), ""} {
		m.end(bridge, os.Interrupt)
		provider.Evolve() // while there is no bridge
		target := m.next(url)
		m.run(exitDone, "copy", "--from", source, "--to", target)
		source = target
		bridge, _ = m.serve("--config", source)
		for range 3 {
			changes++
			arrived(changes)
			provider.Evolve()
		}
		changes++
		if has, copied := arrived(changes); !slices.Equal(has, copied) {
			t.Fatalf("the bridge has logged\n%s\nand the Destination\n%s", strings.Join(has, "\n"), strings.Join(copied, "\n"))
		}
	}
	if out := relay.run(exitDone, "status").stdout; strings.Contains(out, "epoch") {
		t.Errorf("the Destination says\n%s", out)
	}
}

// TestCopyMillion moves a million records to a server and back. All lists and feeds keep
// their bytes, and a Destination that polls all the time gets each record once.
func TestCopyMillion(t *testing.T) {
	if !testenv.Soaking() {
		t.Skip("a long run: make soak")
	}
	const records = 1_000_000
	postgres := testenv.Postgres(t)
	address := testenv.Nobody(t)
	m := &moves{folder: newFolder(t, ""), more: fmt.Sprintf("listen = %q\n", address)}
	source := m.next("")
	log := m.open(0)
	id := newReferences(t, log)
	cursor := addReferences(t, log, id, 0, 0, records)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	relay := newFolder(t, fmt.Sprintf(`
data = "data"
[[set]]
name = "copy"
content = "reference"
[[set.source]]
kind = "resourcesync"
url = "http://%s/sets/main/capabilitylist.xml"
`, address))
	// listed waits until the Resource List is as new as the log.
	listed := func(events int) {
		t.Helper()
		for late := time.Now().Add(patience); ; <-time.After(askEvery) {
			said := m.run(exitDone, "status", "--config", source).stdout
			if strings.Contains(said, fmt.Sprintf("Resource List: up to date (Seq %d)", events)) {
				return
			}
			if time.Now().After(late) {
				t.Fatal(said)
			}
		}
	}
	bridge, base := m.serve("--config", source)
	listed(records)
	want := documents(t, base)
	relay.run(exitDone, "harvest")
	polls, stop := 0, make(chan struct{})
	var polling sync.WaitGroup
	polling.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			c := relay.start("harvest")
			<-c.ended // which fails while there is no bridge
			polls++
		}
	})
	for n, url := range []string{postgres.NewSchema(t), ""} {
		m.end(bridge, os.Interrupt)
		target := m.next(url)
		began := time.Now()
		t.Logf("%s%v", m.run(exitDone, "copy", "--from", source, "--to", target).stdout, time.Since(began).Round(time.Millisecond))
		source = target
		bridge, base = m.serve("--config", source)
		listed(records + n)
		got := documents(t, base)
		if len(got) < 2*records/50_000 || !maps.Equal(got, want) {
			t.Errorf("move %d: %d documents, and before it %d, or some have other bytes", n, len(got), len(want))
		}
		m.end(bridge, os.Interrupt)
		log := m.open(n + 1)
		cursor = addReferences(t, log, id, cursor, records+n, 1)
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		bridge, base = m.serve("--config", source)
		listed(records + n + 1)
		want = documents(t, base)
	}
	close(stop)
	polling.Wait()
	relay.run(exitDone, "harvest")
	if out := relay.run(exitDone, "status").stdout; !strings.Contains(out, fmt.Sprintf("copy (reference): %d records, %d events", records+2, records+2)) || strings.Contains(out, "epoch") {
		t.Errorf("after %d polls the Destination says\n%s", polls, out)
	}
	m.end(bridge, os.Interrupt)
	m.run(exitDone, "verify", "--config", source)
	t.Logf("%d polls, %d documents", polls, len(want))
}

var locations = regexp.MustCompile(`<(?:loc|link rel="[a-z-]*" href|atom:link [^>]*href)[>=]"?([^<"]+)`)

// documents returns the SHA-256 of the lists and feeds of the set main, by their URL.
func documents(t *testing.T, base string) map[string]string {
	t.Helper()
	found := map[string]string{}
	next := []string{base + "/sets/main/capabilitylist.xml", base + "/sets/main/feed.atom"}
	for len(next) > 0 {
		url := next[0]
		next = next[1:]
		if _, known := found[url]; known || !strings.HasPrefix(url, base) {
			continue
		}
		var body []byte
		for late := time.Now().Add(patience); ; <-time.After(lookEvery) {
			res, err := http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			body, err = io.ReadAll(res.Body)
			if err = errors.Join(err, res.Body.Close()); err == nil && res.StatusCode == http.StatusOK {
				break
			}
			if err != nil || res.StatusCode != http.StatusServiceUnavailable || time.Now().After(late) { // 503: it is being made
				t.Fatalf("%s: %s %v", url, res.Status, err)
			}
		}
		found[url] = fmt.Sprintf("%x", sha256.Sum256(body))
		for _, m := range locations.FindAllSubmatch(body, -1) {
			if name := string(m[1]); strings.HasSuffix(name, ".xml") || strings.HasSuffix(name, ".atom") {
				next = append(next, name)
			}
		}
	}
	return found
}
