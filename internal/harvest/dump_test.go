package harvest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

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
	s.src.Kind, s.src.URL, s.src.Client = harvest.ResourceSync, server.URL+"/.well-known/resourcesync", server.Client()
	var err error
	s.src.ID, err = s.log.EnsureSource(context.Background(), "main", s.src.Kind, s.src.URL, 0)
	s.must(err)
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
