package atompmh

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// site is a real server of feed documents on loopback.
type site struct {
	*httptest.Server
	t     *testing.T
	mu    sync.Mutex
	pages map[string]http.HandlerFunc
	other http.HandlerFunc // answers for all other paths; nil: 404
	asked []string         // paths, in order
}

func newSite(t *testing.T) *site {
	s := &site{t: t, pages: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		page := s.pages[r.URL.Path]
		if page == nil {
			page = s.other
		}
		s.mu.Unlock()
		if page == nil {
			page = http.NotFound
		}
		page(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) handle(path string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = h
}

// put serves a document.
func (s *site) put(path, doc string) {
	s.handle(path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/atom+xml")
		_, _ = io.WriteString(w, doc)
	})
}

func (s *site) status(path string, status int) {
	s.handle(path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
}

// requests returns the paths that were asked for since it was last called.
func (s *site) requests() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.asked, " ")
	s.asked = nil
	return out
}

// RoundTrip notes what the walk asks for, even when it gives up before the
// server has seen it.
func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path)
	s.mu.Unlock()
	return s.Client().Transport.RoundTrip(r)
}

// walk is a walk of the site's feed at /feed.
func (s *site) walk() *Walk {
	return &Walk{Client: &http.Client{Transport: s}, URL: s.URL + "/feed"}
}

// day is a stamp in January 2020; day 31.5 is noon.
func day(d float64) time.Time {
	return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration((d - 1) * 24 * float64(time.Hour)))
}

func stamp(t time.Time) string { return t.Format(time.RFC3339Nano) }

// page builds a document. prev is a path or "".
type page struct {
	updated float64 // a day; 0: no updated
	prev    string
	id      string // "": urn:x:feed; "-": none
	head    string // more of the feed
	entries []string
	tail    string // after the entries
}

func (p page) String() string {
	var b strings.Builder
	b.WriteString(`<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><title>F</title><author><name>N</name></author>`)
	switch p.id {
	case "-":
	case "":
		b.WriteString("<id>urn:x:feed</id>")
	default:
		b.WriteString("<id>" + p.id + "</id>")
	}
	if p.updated != 0 {
		b.WriteString("<updated>" + stamp(day(p.updated)) + "</updated>")
	}
	if p.prev != "" {
		b.WriteString(`<link rel="prev-archive" href="` + p.prev + `"/>`)
	}
	b.WriteString(p.head + strings.Join(p.entries, "") + p.tail + "</feed>")
	return b.String()
}

// alive is an active entry, gone a deletion entry, undefined a bad one.
func alive(id string, d float64) string { return aliveAt(id, day(d)) }

func aliveAt(id string, at time.Time) string {
	return fmt.Sprintf(`<entry><id>urn:x:%s</id><title>T</title><updated>%s</updated><link type="a/b" href="/r/%s"/></entry>`, id, stamp(at), id)
}

func gone(id string, d float64) string {
	return fmt.Sprintf(`<entry><id>urn:x:%s</id><title>T</title><updated>%s</updated><content/></entry>`, id, stamp(day(d)))
}

func undefined(id string, d float64) string {
	return fmt.Sprintf(`<entry><id>urn:x:%s</id><title>T</title><updated>%s</updated><content src="x"/></entry>`, id, stamp(day(d)))
}

// walked is what a walk did.
type walked struct {
	Result
	err      error
	entries  []string // a for active, d for deletion, ! for bad; and the id
	paths    []string // of the documents visited
	complete []bool
	states   []State
	problems []Problem
}

// walk notes everything that a walk hands out.
func (g *walked) walk(ctx context.Context, s *site, w *Walk) {
	for d, err := range w.Documents(ctx) {
		if err != nil {
			g.err = err
			break
		}
		g.paths = append(g.paths, strings.TrimPrefix(d.Requested, s.URL))
		g.read(s, d)
	}
	g.Result = w.Result()
}

func (g *walked) read(s *site, d *Document) {
	for {
		e, err := d.next()
		var mark, id string
		switch bad := err.(type) {
		case nil:
			mark, id = "a", e.ID
			if e.Kind == Deletion {
				mark = "d"
			}
		case *EntryError:
			mark, id = "!", bad.ID
		default:
			if err != io.EOF {
				return
			}
			state, ok := d.State()
			if !ok || !state.Unfinished() {
				s.t.Error("no state after the end")
			}
			g.states = append(g.states, state)
			g.complete = append(g.complete, d.Complete())
			return
		}
		if _, ok := d.State(); ok {
			s.t.Error("a state before the end")
		}
		g.entries = append(g.entries, mark+strings.TrimPrefix(id, "urn:x:"))
	}
}

func (s *site) run(w *Walk) *walked {
	g := &walked{}
	w.Report = func(p Problem) { g.problems = append(g.problems, p) }
	g.walk(context.Background(), s, w)
	return g
}

// marked is the State of a feed that was read up to a mark.
func marked(mark time.Time) State { return State{&memory{Mark: mark}} }

// expect compares the essentials.
func (g *walked) expect(t *testing.T, paths, entries string) {
	t.Helper()
	if g.err != nil {
		t.Errorf("error %v", g.err)
	}
	if got := strings.Join(g.paths, " "); got != paths {
		t.Errorf("visited %s, want %s", got, paths)
	}
	if got := strings.Join(g.entries, " "); entries != "*" && got != entries {
		t.Errorf("entries %s, want %s", got, entries)
	}
}

func (g *walked) reported(rule string) bool {
	for _, p := range g.problems {
		if p.Rule == rule {
			return true
		}
	}
	return false
}
