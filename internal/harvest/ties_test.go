package harvest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

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
	s.src.Kind, s.src.URL, s.src.Client, s.src.Selection.PublicURL = harvest.AtomPMH, server.URL+"/feed", server.Client(), ""
	var err error
	s.src.ID, err = s.log.EnsureSource(context.Background(), "main", s.src.Kind, s.src.URL, 0)
	s.must(err)
	r := s.run()
	if n := asked.Swap(0); n > 10 || r.Quarantined != ties || s.news() != "" {
		t.Errorf("asked %d times, want ten at most; %d of %d are in quarantine", n, r.Quarantined, ties)
	}
	status = http.StatusOK
	if r := s.run(); asked.Load() != ties || r.Created != ties {
		t.Errorf("once it answers: asked %d times, %d records; want %d", asked.Load(), r.Created, ties)
	}
}
