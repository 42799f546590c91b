package testserver_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/resourcesync"
)

func ask(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	h.ServeHTTP(w, r)
	return w
}

// Every document of a chain has the entries that it should, each of them once, and
// a resource has the bytes that its list states.
func TestChainsAreExact(t *testing.T) {
	c := &testserver.Chain{Documents: 4, Entries: 25, BodySize: 2048}
	seen := map[string]bool{}
	for _, path := range []string{fixtures.Subscription, fixtures.Archive(3), fixtures.Archive(2), fixtures.Archive(1)} {
		var feed struct {
			IDs []string `xml:"entry>id"`
		}
		if err := xml.Unmarshal(ask(c, path).Body.Bytes(), &feed); err != nil || len(feed.IDs) != c.Entries {
			t.Fatalf("%s: %d entries, %v", path, len(feed.IDs), err)
		}
		for _, id := range feed.IDs {
			seen[id] = true
		}
	}
	if len(seen) != c.Records() || ask(c, "/records/00000099.xml").Body.Len() != c.BodySize {
		t.Errorf("%d records", len(seen))
	}

	s := &testserver.ResourceChain{Resources: 2, Changes: 3, BodySize: 300}
	for path, first := range map[string]int{fixtures.ResourceList: 0, fixtures.ChangeList: 2} {
		var list struct {
			MDs []struct {
				Hash string `xml:"hash,attr"`
			} `xml:"url>md"`
		}
		if err := xml.Unmarshal(ask(s, path).Body.Bytes(), &list); err != nil || len(list.MDs) != 2+first/2 {
			t.Fatalf("%s: %d entries, %v", path, len(list.MDs), err)
		}
		for i, md := range list.MDs {
			body := ask(s, fmt.Sprintf("/res/%08d.xml", first+i)).Body.Bytes()
			if sum := sha256.Sum256(body); len(body) != s.BodySize || md.Hash != "sha-256:"+hex.EncodeToString(sum[:]) {
				t.Errorf("%s, entry %d: %d bytes, hash %s", path, i, len(body), md.Hash)
			}
		}
	}
}

// Their documents break no rule of a walk.
func TestChainsConform(t *testing.T) {
	served := func(h http.Handler) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	w := atompmh.Walk{URL: served(&testserver.Chain{Documents: 5, Entries: 20}) + fixtures.Subscription, Report: func(p atompmh.Problem) { t.Error(p) }}
	entries, urls := 0, 0
	for d, err := range w.Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range d.Entries() {
			if entries++; bad != nil {
				t.Error(bad)
			}
		}
	}
	lists := resourcesync.Walk{URL: served(&testserver.ResourceChain{Resources: 60_000, Changes: 5}) + fixtures.SourceDescription, Report: func(p resourcesync.Problem) { t.Error(p) }}
	for d, err := range lists.Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range d.Entries() {
			if urls++; bad != nil {
				t.Error(bad)
			}
		}
	}
	if documents := w.Result().Documents; entries != 5*20 || documents != 5 || urls != 60_000+5 {
		t.Errorf("%d entries in %d documents, %d urls", entries, documents, urls)
	}
}

func TestChainsAnswer(t *testing.T) {
	chain, lists := &testserver.Chain{Documents: 3, Entries: 4}, &testserver.ResourceChain{Resources: 50_001, Changes: 1}
	for _, c := range []struct {
		handler http.Handler
		path    string
	}{{chain, fixtures.Subscription}, {chain, fixtures.Archive(2)}, {lists, fixtures.SourceDescription}, {lists, fixtures.CapabilityList}, {lists, fixtures.ResourceList},
		{lists, fixtures.ResourceListPart(2)}, {lists, fixtures.ChangeList}} {
		got := ask(c.handler, c.path)
		if got.Code != http.StatusOK || got.Header().Get("Content-Length") != fmt.Sprint(got.Body.Len()) || !bytes.HasPrefix(got.Body.Bytes(), []byte("<?xml")) {
			t.Errorf("%s: %d, Content-Length %s of %d bytes", c.path, got.Code, got.Header().Get("Content-Length"), got.Body.Len())
		}
		if again := ask(c.handler, c.path, "If-None-Match", got.Header().Get("ETag")); again.Code != http.StatusNotModified {
			t.Errorf("%s again: %d", c.path, again.Code)
		}
	}
	for path, h := range map[string]http.Handler{fixtures.Archive(3): chain, "/records/00000001.xml": chain, "/": chain, fixtures.ResourceListPart(3): lists, "/res/00000001.xml": lists} {
		if got := ask(h, path); got.Code != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", path, got.Code)
		}
	}
}

// A million entries cost a buffer for each document and no more.
func TestChainsTakeNoMemory(t *testing.T) {
	testenv.Heavy(t)
	for path, h := range map[string]http.Handler{fixtures.Archive(1): &testserver.Chain{Documents: 2, Entries: 100_000}, fixtures.ResourceListPart(7): &testserver.ResourceChain{Resources: 1_000_000}} {
		w := &forgetful{header: http.Header{}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; w.written < 10<<20 || took > 1<<20 {
			t.Errorf("%s: %d bytes allocated for %d", path, took, w.written)
		}
	}
}

// forgetful counts what is written to it.
type forgetful struct {
	header  http.Header
	written int
}

func (f *forgetful) Header() http.Header         { return f.header }
func (f *forgetful) WriteHeader(int)             {}
func (f *forgetful) Write(b []byte) (int, error) { f.written += len(b); return len(b), nil }
