package harvest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// Contents are asked for at addresses as people write them, with what a URI must escape.
func TestAddressesThatAreNoURIs(t *testing.T) {
	for _, kind := range []string{harvest.AtomPMH, harvest.Feed} {
		t.Run(kind, func(t *testing.T) { harvestOddAddresses(t, kind) })
	}
}

func harvestOddAddresses(t *testing.T, kind string) {
	s := newShelf(t, t.TempDir(), event.Mirror)
	links := []string{"a b|ü", "?q=a b", "50%-off", "100%", "%zz%20?x=100%", "%C3%BC"}
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch at := r.URL.EscapedPath() + "?" + r.URL.RawQuery; at {
		case "/feed?":
			entries := ""
			for n, to := range links {
				entries += fmt.Sprintf(`<entry><id>urn:e:%d</id><title>e</title><updated>2025-01-01T00:00:00Z</updated><link rel="alternate" type="text/plain" href="%s/%s"/></entry>`, n, server.URL, to)
			}
			_, _ = fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>F</title><updated>2025-01-01T00:00:00Z</updated>%s</feed>`, entries)
		case "/a%20b%7C%C3%BC?", "/?q=a%20b", "/50%25-off?", "/100%25?", "/%25zz%20?x=100%25", "/%C3%BC?":
			_, _ = fmt.Fprint(w, at)
		default:
			http.NotFound(w, r)
			t.Errorf("asked for %s", at)
		}
	}))
	t.Cleanup(server.Close)
	guard := fetch.New(fetch.Options{Reach: fetch.Reach{Origin: server.URL}})
	t.Cleanup(guard.Close)
	s.src.Kind, s.src.URL, s.src.Client, s.src.Selection.PublicURL = kind, server.URL+"/feed", guard.Client(""), ""
	var err error
	s.src.ID, err = s.log.EnsureSource(context.Background(), "main", s.src.Kind, s.src.URL, 0)
	s.must(err)
	if r := s.run(); r.Created != int64(len(links)) {
		t.Errorf("%d records of %d: %+v", r.Created, len(links), r.Examples)
	}
}
