package harvest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// A record may name any number of mirrors. The best of them are asked for, so that one record
// does not keep all others of its Source waiting.
func TestMirrorsOfARecordAreBounded(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	s := newShelf(t, t.TempDir(), event.Mirror)
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		switch r.URL.Path {
		case "/list":
			var links strings.Builder
			for n := range 1000 {
				fmt.Fprintf(&links, `<rs:ln rel="duplicate" pri="%d" href="%s/m/%d"/>`, n+1, server.URL, n)
			}
			_, _ = fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/>`+
				`<url><loc>%s/a</loc>%s</url><url><loc>%[1]s/b</loc><rs:ln rel="duplicate" href="%[1]s/m/0"/><rs:ln rel="duplicate" href="%[1]s/good"/></url></urlset>`, server.URL, &links)
		case "/good":
			_, _ = fmt.Fprint(w, "good")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s.from(harvest.ResourceSync, server.URL+"/list", server.Client())
	s.run()
	if news := s.news(); !strings.Contains(news, "/b") || strings.Contains(news, "/a") {
		t.Errorf("events %s", news)
	}
	mu.Lock()
	defer mu.Unlock()
	mirrors := 0
	for path, n := range asked {
		if strings.HasPrefix(path, "/m/") {
			mirrors += n
		}
	}
	if mirrors > 50 || asked["/m/9"] == 0 {
		t.Errorf("asked %d times for mirrors, and %d times for the tenth best", mirrors, asked["/m/9"])
	}
}

// Contents are asked for at addresses as people write them, with what a URI must escape.
func TestAddressesThatAreNoURIs(t *testing.T) {
	for _, kind := range []string{harvest.AtomPMH, harvest.Feed} {
		t.Run(kind, func(t *testing.T) { harvestOddAddresses(t, kind) })
	}
}

func harvestOddAddresses(t *testing.T, kind string) {
	s := newShelf(t, t.TempDir(), event.Mirror)
	links := []string{"a b|ü", "?q=a b", "50%-off", "100%", "%zz%20?x=100%", "%C3%BC", "b[1]?c[]=d"}
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch at := r.URL.EscapedPath() + "?" + r.URL.RawQuery; at {
		case "/feed?":
			entries := ""
			for n, to := range links {
				entries += fmt.Sprintf(`<entry><id>urn:e:%d</id><title>e</title><updated>2025-01-01T00:00:00Z</updated><link rel="alternate" type="text/plain" href="%s/%s"/></entry>`, n, server.URL, to)
			}
			_, _ = fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>F</title><updated>2025-01-01T00:00:00Z</updated>%s</feed>`, entries)
		case "/a%20b%7C%C3%BC?", "/?q=a%20b", "/50%25-off?", "/100%25?", "/%25zz%20?x=100%25", "/%C3%BC?", "/b%5B1%5D?c%5B%5D=d":
			_, _ = fmt.Fprint(w, at)
		default:
			http.NotFound(w, r)
			t.Errorf("asked for %s", at)
		}
	}))
	t.Cleanup(server.Close)
	guard := fetch.New(fetch.Options{Reach: fetch.Reach{Origin: server.URL}})
	t.Cleanup(guard.Close)
	s.from(kind, server.URL+"/feed", guard.Client(""))
	if r := s.run(); r.Created != int64(len(links)) {
		t.Errorf("%d records of %d: %+v", r.Created, len(links), r.Examples)
	}
}

// The contents of a Resource Dump come out of its package, without a request for any of them.
func TestDumpIsUnpacked(t *testing.T) {
	const records = 40
	chain := &testserver.ResourceChain{Resources: records, BodySize: 300, Dumps: true}
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/res/") {
			requests.Add(1)
		}
		chain.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s := newShelf(t, t.TempDir(), event.Mirror)
	s.from(harvest.ResourceSync, server.URL+"/.well-known/resourcesync", server.Client())
	if r := s.run(); requests.Load() > 0 || r.Created != records || r.Fetched != records || r.Problems > 0 {
		t.Errorf("%d contents were asked for; %+v", requests.Load(), r)
	}
	live := s.live()
	for id, sum := range live {
		w := httptest.NewRecorder()
		chain.ServeHTTP(w, httptest.NewRequest(http.MethodGet, id, nil))
		if want := sha256.Sum256(w.Body.Bytes()); w.Code != http.StatusOK || sum != hex.EncodeToString(want[:]) {
			t.Errorf("%s has the content %s, want %x", id, sum, want)
		}
	}
	if len(live) != records {
		t.Errorf("%d records live", len(live))
	}
}

// Entries with the same stamp, alive and deleted, are decided by their alternates (A1). A server that
// answers none of them is not asked for all: each may take a minute.
func TestTiesAtAFailingServer(t *testing.T) {
	const ties = 40
	var asked atomic.Int64
	status := http.StatusInternalServerError
	s := newShelf(t, t.TempDir(), event.Redirect)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/feed" {
			asked.Add(1)
			w.WriteHeader(status)
			return
		}
		var entries strings.Builder
		for n := range ties {
			const same = `<entry><id>urn:e:%d</id><title>e</title><updated>2025-01-01T00:00:00Z</updated>%s</entry>`
			fmt.Fprintf(&entries, same+same, n, fmt.Sprintf(`<link rel="alternate" type="text/html" href="/e/%d"/>`, n), n, "<content/>")
		}
		_, _ = fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>F</title><updated>2025-01-01T00:00:00Z</updated>%s</feed>`, &entries)
	}))
	t.Cleanup(server.Close)
	s.from(harvest.AtomPMH, server.URL+"/feed", server.Client())
	r := s.run()
	if n := asked.Swap(0); n > 10 || r.Quarantined != ties || s.news() != "" {
		t.Errorf("asked %d times, want ten at most; %d of %d are in quarantine", n, r.Quarantined, ties)
	}
	status = http.StatusOK
	if r := s.run(); asked.Load() != ties || r.Created != ties {
		t.Errorf("once it answers: asked %d times, %d records; want %d", asked.Load(), r.Created, ties)
	}
}
