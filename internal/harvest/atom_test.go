package harvest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// atomShelf is a Source of Atom-PMH whose documents and records are texts by their path. In a
// document {} stands for what all of them have.
func atomShelf(t *testing.T, mode event.Content, docs map[string]string) *shelf {
	s := newShelf(t, t.TempDir(), mode)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := docs[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/feed") {
			w.Header().Set("Content-Type", "application/atom+xml")
			body = strings.Replace(body, "{}", `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>F</title><author><name>A</name></author>`, 1)
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	s.from(harvest.AtomPMH, server.URL+"/feed", server.Client())
	return s
}

// An empty href leads to the document itself, and is what programs write where they have none: it
// makes no loop of the oldest document, and no record of the feed.
func TestAtomWithEmptyLinks(t *testing.T) {
	s := atomShelf(t, event.Mirror, map[string]string{
		"/feed": `{}<updated>2025-03-01T00:00:00Z</updated><link rel="prev-archive" href="/feed/1"/>
<entry><id>urn:e:3</id><title>3</title><updated>2025-02-01T00:00:00Z</updated><link type="text/plain" href="/r/3"/><link type="text/html" href=""/></entry>
<entry><id>urn:e:2</id><title>2</title><updated>2025-02-01T00:00:00Z</updated><link type="text/plain" href=" "/></entry></feed>`,
		"/feed/1": `{}<updated>2025-01-01T00:00:00Z</updated><link rel="self" href=""/><link rel="prev-archive" href=""/>
<entry><id>urn:e:1</id><title>1</title><updated>2025-01-01T00:00:00Z</updated><link type="text/plain" xml:base="/r/1" href=""/></entry></feed>`,
		"/r/1": "one", "/r/3": "three",
	})
	r := s.run()
	live := s.live()
	if r.Created != 2 || r.Quarantined != 1 || r.Gap != "" || live["urn:e:1"] == "" || live["urn:e:3"] == "" || strings.Contains(live["urn:e:3"], " ") {
		t.Errorf("%d created, %d quarantined, gap %q; live %q", r.Created, r.Quarantined, r.Gap, live)
	}
	if r := s.run(); r.Created+r.Updated > 0 {
		t.Errorf("the second harvest created %d and updated %d", r.Created, r.Updated)
	}
}

// An entry that a complete feed has in no namespace goes to quarantine, and its record is not taken
// for absent.
func TestAtomEntryInNoNamespace(t *testing.T) {
	const first = `<entry><id>urn:e:1</id><title>1</title><updated>2025-02-01T00:00:00Z</updated><link type="text/plain" href="/r/1"/></entry>`
	const second = `<entry><id>urn:e:2</id><title>2</title><updated>2025-02-01T00:00:00Z</updated><link type="text/plain" href="/r/2"/></entry></feed>`
	const head = `{}<updated>2025-03-01T00:00:00Z</updated><fh:complete xmlns:fh="http://purl.org/syndication/history/1.0"/>`
	docs := map[string]string{"/feed": head + first + second, "/r/1": "one", "/r/2": "two"}
	s := atomShelf(t, event.Mirror, docs)
	s.run()
	docs["/feed"] = head + first + strings.Replace(second, "<entry>", `<entry xmlns="">`, 1)
	r := s.run()
	if r.Quarantined != 1 || r.Deleted != 0 || len(s.live()) != 2 {
		t.Errorf("%+v; live %q", r, s.live())
	}
}

// An entry that a complete feed has inside of another element is named as a problem, and its record
// is not taken for absent.
func TestAtomEntryInAnotherElement(t *testing.T) {
	const first = `<entry><id>urn:e:1</id><title>1</title><updated>2025-02-01T00:00:00Z</updated><link type="text/plain" href="/r/1"/></entry>`
	const second = `<entry><id>urn:e:2</id><title>2</title><updated>2025-02-01T00:00:00Z</updated><link type="text/plain" href="/r/2"/></entry>`
	const head = `{}<updated>2025-03-01T00:00:00Z</updated><fh:complete xmlns:fh="http://purl.org/syndication/history/1.0"/>`
	docs := map[string]string{"/feed": head + first + second + "</feed>", "/r/1": "one", "/r/2": "two"}
	s := atomShelf(t, event.Mirror, docs)
	s.run()
	for _, odd := range []string{first + `<x:list xmlns:x="urn:x">` + second + `</x:list>`, strings.Replace(first, "</entry>", second+"</entry>", 1)} {
		docs["/feed"] = head + odd + "</feed>"
		r := s.run()
		if r.Problems == 0 || r.Deleted != 0 || len(s.live()) != 2 {
			t.Errorf("%s: %+v; live %q", odd, r, s.live())
		}
	}
}
