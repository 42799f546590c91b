package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestRing lets three bridges harvest each other in a ring, each a process of its
// own that harvests every second: A has an Atom-PMH provider and what comes from
// C, B has A by Atom-PMH, C has B by ResourceSync. A keeps what comes round as a
// second set too. The bridges join in any order, and each waits for the one
// before it.
func TestRing(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	for _, joins := range []string{"ABC", "CBA"} {
		t.Run(joins, func(t *testing.T) {
			t.Parallel()
			g := newProcessRing(t, joins)
			g.provider.Create(fixtures.Record{Name: "a", ID: "urn:a", Title: "v1"})
			g.provider.Create(fixtures.Record{Name: "stays", ID: "urn:stays", Title: "v1"})
			g.want("created v1")
			g.wantQuiet()
			g.provider.Delete("a")
			g.want("created v1", "deleted v1")
			g.provider.Recreate(fixtures.Record{Name: "a", Title: "v2"})
			g.want("created v1", "deleted v1", "created v2")
			g.wantQuiet()
			g.end()
		})
	}
}

// processRing is a ring of bridges in processes of their own.
type processRing struct {
	t        *testing.T
	provider *fixtures.Provider
	origin   string
	members  []*member
}

// member is one bridge of a ring.
type member struct {
	*folder
	name  string
	serve *child
	// follow is bridge log --follow on the same data folder.
	follow   *child
	requests *counter
	url      string // of the counter
	// readers is how many Sources of the others it is.
	readers int
}

// counter stands before a bridge whose port is not known yet. It holds requests back
// until it is, and counts those for a feed or a Change List Index, which every
// harvest asks for once.
type counter struct {
	mu      sync.Mutex
	to      http.Handler
	open    chan struct{} // closed when to is set
	begun   int
	changed chan struct{} // closed and replaced by every count
}

// ServeHTTP is http.Handler.
func (g *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-g.open:
	case <-r.Context().Done():
		return
	}
	g.mu.Lock()
	if strings.HasSuffix(r.URL.Path, "/feed.atom") || strings.HasSuffix(r.URL.Path, "/changelist-index.xml") {
		g.begun++
		close(g.changed)
		g.changed = make(chan struct{})
	}
	g.mu.Unlock()
	g.to.ServeHTTP(w, r)
}

// count is how many harvests have begun.
func (g *counter) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun
}

// wait waits until so many harvests have begun.
func (g *counter) wait(harvests int) error {
	limit := time.After(patience)
	for {
		g.mu.Lock()
		begun, changed := g.begun, g.changed
		g.mu.Unlock()
		if begun >= harvests {
			return nil
		}
		select {
		case <-changed:
		case <-limit:
			return fmt.Errorf("%d harvests have begun, want %d", begun, harvests)
		}
	}
}

func newProcessRing(t *testing.T, joins string) *processRing {
	g := &processRing{t: t, provider: fixtures.New(fixtures.Options{})}
	server := httptest.NewServer(g.provider)
	t.Cleanup(server.Close)
	g.origin = server.URL
	for _, name := range []string{"A", "B", "C"} {
		m := &member{name: name, requests: &counter{open: make(chan struct{}), changed: make(chan struct{})}}
		server := httptest.NewServer(m.requests)
		t.Cleanup(server.Close)
		m.url = server.URL
		g.members = append(g.members, m)
	}
	a, b, c := g.members[0], g.members[1], g.members[2]
	lists := func(m *member) string { return m.url + "/sets/main/capabilitylist.xml" }
	a.readers, b.readers, c.readers = 1, 1, 2
	// Of B only the host is given to C: what it is has to be found out.
	a.configure(t, [][]string{{"main", g.origin + fixtures.Subscription, lists(c)}, {"around", lists(c)}})
	b.configure(t, [][]string{{"main", a.url + "/sets/main/feed.atom"}})
	c.configure(t, [][]string{{"main", b.url}})
	for _, name := range joins {
		g.members[name-'A'].join()
	}
	return g
}

// configure writes sets, each with its name and its Sources.
func (m *member) configure(t *testing.T, sets [][]string) {
	text := fmt.Sprintf("data = \"data\"\nlisten = \"127.0.0.1:0\"\nbase_url = %q\n", m.url)
	for _, set := range sets {
		text += fmt.Sprintf("[[set]]\nname = %q\nsegment_events = 2\n", set[0])
		for _, source := range set[1:] {
			text += fmt.Sprintf("[[set.source]]\nurl = %q\nevery = \"1s\"\n", source)
		}
	}
	m.folder = newFolder(t, text)
}

// join runs the bridge and lets the requests through.
func (m *member) join() {
	m.t.Helper()
	var address string
	m.serve, address = m.folder.serve()
	u, err := url.Parse(address)
	if err != nil {
		m.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.ErrorLog = log.New(io.Discard, "", 0) // a bridge that ends leaves requests unanswered
	m.requests.to = proxy
	close(m.requests.open)
	m.follow = m.start("log", "--data", "data", "--follow", "--json")
}

// ringEvents finds what a set's log has of the record that changes.
var ringEvents = regexp.MustCompile(`(?m)^\{"seq":\d+,"set":"(\w+)","record":"urn:a","kind":"(\w+)",.*"title":"(\w+)".*"via":\{"href":"([^"]+)"`)

// want waits until every log has these events of record a, in this order, and
// fails when one has others.
func (g *processRing) want(events ...string) {
	g.t.Helper()
	for _, m := range g.members {
		sets := []string{"main"}
		if m.name == "A" {
			sets = append(sets, "around")
		}
		for _, set := range sets {
			pattern := `(?s)\A`
			for _, e := range events {
				kind, title, _ := strings.Cut(e, " ")
				pattern += fmt.Sprintf(`.*?"set":"%s","record":"urn:a","kind":"%s",[^\n]*"title":"%s"`, set, kind, title)
			}
			if _, err := m.follow.stdout.expect(regexp.MustCompile(pattern)); err != nil {
				g.t.Fatalf("%s, set %s: %v\n%s", m.name, set, err, m.serve.stderr.String())
			}
			var got []string
			for _, e := range ringEvents.FindAllStringSubmatch(m.follow.stdout.String(), -1) {
				if e[1] == set {
					got = append(got, e[2]+" "+e[3])
				}
				if e[4] != g.origin+"/records/a.atom" {
					g.t.Errorf("%s: the original is %s", m.name, e[4])
				}
			}
			if strings.Join(got, ", ") != strings.Join(events, ", ") {
				g.t.Errorf("%s, set %s: the log has %q, want %q", m.name, set, got, events)
			}
		}
	}
}

// wantQuiet fails if harvesting everything again, and once more to see what that
// was worth, adds an event anywhere.
func (g *processRing) wantQuiet() {
	g.t.Helper()
	var lines, begun []int
	for _, m := range g.members {
		lines = append(lines, m.follow.stdout.lines())
		begun = append(begun, m.requests.count())
	}
	for i, m := range g.members {
		// Of each Source's harvests the first may be of one that had begun before.
		if err := m.requests.wait(begun[i] + 3*m.readers); err != nil {
			g.t.Fatalf("%s: %v", m.name, err)
		}
	}
	for i, m := range g.members {
		if n := m.follow.stdout.lines(); n != lines[i] {
			g.t.Errorf("%s: %d events more in the ring:\n%s", m.name, n-lines[i], m.follow.stdout.String())
		}
	}
}

func (o *output) lines() int { return strings.Count(o.String(), "\n") }

// end ends the bridges as Ctrl-C does, and verifies what they leave.
func (g *processRing) end() {
	g.t.Helper()
	for _, m := range g.members {
		m.end(m.follow, syscall.SIGINT)
		m.end(m.serve, syscall.SIGINT)
		m.run(exitDone, "verify", "--data", "data")
	}
}
