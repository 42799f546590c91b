package daemon_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// sample is a document that other people's software wrote, and what becomes of
// it.
type sample struct {
	path string
	// live records, in a set in mode reference.
	live []string
	// rules of what is in quarantine, sorted.
	quarantine []string
	documents  int64
}

func samples() []sample {
	return []sample{
		// Each entry has its content by src (docs/decisions/content-src.md), but
		// for one empty content: a deletion entry beside a tombstone.
		{path: "chain/index.atom", quarantine: []string{"S10", "S10", "S10", "S10"}, documents: 3},
		// No feed id.
		{path: "feeds/miletus-atom-feed-test-1a.xml", documents: 1,
			live: []string{"http://example.test/1 Kangaroo Populations of Eastern Australia - Ecology and Management", "http://example.test/2 Emeritus Professor Gordon Grigg", "http://example.test/3 Anthony Pople"}},
		{path: "feeds/miletus-atom-feed-test-1b.xml", documents: 1, live: []string{"*"}},
		{path: "feeds/rinfo-feed_with_deleted.atom", documents: 1},
	}
}

// serveSamples serves them at the places that their links name.
func serveSamples(t *testing.T) *httptest.Server {
	root := testenv.Shared(t, "samples")
	mux := http.NewServeMux()
	for from, to := range map[string]string{"/feed/": "chain", "/chain/": "chain", "/feeds/": "feeds"} {
		mux.Handle(from, http.StripPrefix(strings.TrimSuffix(from, "/"), http.FileServer(http.Dir(filepath.Join(root, to)))))
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestSamples(t *testing.T) {
	server := serveSamples(t)
	for _, s := range samples() {
		t.Run(s.path, func(t *testing.T) {
			b := newFileHarness(t, "atompmh:"+server.URL+"/"+s.path, content(config.Reference))
			s.check(t, b)
		})
	}
}

// check harvests twice: the sample is taken as it is, and nothing is deleted.
func (s sample) check(t *testing.T, b *harness) {
	t.Helper()
	r := b.harvest()
	if r.Documents != s.documents || r.Deleted != 0 || r.Held != 0 || r.Gap != "" {
		t.Errorf("report %+v", r)
	}
	got := b.titles()
	if len(s.live) == 1 && s.live[0] == "*" {
		if len(got) == 0 {
			t.Error("nothing is live")
		}
	} else if !slices.Equal(got, s.live) {
		t.Errorf("live\n%q, want\n%q", got, s.live)
	}
	var rules []string
	for _, q := range b.quarantined() {
		rules = append(rules, q.Rule)
	}
	slices.Sort(rules)
	if !slices.Equal(rules, s.quarantine) {
		t.Errorf("in quarantine %q, want %q", rules, s.quarantine)
	}
	before := b.last()
	r, err := b.try(harvest.Options{Full: true})
	if err != nil || b.last() != before || r.Deleted != 0 {
		t.Errorf("again: %+v, %v", r, err)
	}
}

// TestContentSrc: see docs/decisions/content-src.md.
func TestContentSrc(t *testing.T) {
	src := raw(`<entry><id>urn:a</id><title>by src</title><updated>2025-01-05T00:00:00Z</updated><content src="/a.rdf" type="application/rdf+xml"/></entry>`)
	t.Run("of a record that is live", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.feed(active("a", "v1", day(1)))
		b.wantLog("first", "created a v1")
		b.feed(src)
		r := b.wantLog("it is neither updated nor deleted")
		if r.Quarantined != 1 || !r.Partial() {
			t.Errorf("report %+v", r)
		}
		b.want("live", b.titles(), "a v1")
	})
	t.Run("in a complete feed it is present", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{Complete: true})
		b.feed(active("a", "v1", day(1)), active("b", "v1", day(1)))
		b.wantLog("first", "created a v1", "created b v1")
		b.feed(src)
		b.wantLog("b is absent, a is not", "deleted b v1")
	})
	t.Run("with an alternate it is active", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.feed(raw(`<entry><id>urn:a</id><title>both</title><updated>2025-01-05T00:00:00Z</updated><content src="/a.rdf"/><link href="/a.html" type="text/html"/></entry>`))
		r := b.wantLog("taken and reported", "created a both")
		if reported(r, "S10") == "" {
			t.Errorf("report %+v", r)
		}
	})
}
