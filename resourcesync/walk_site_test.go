package resourcesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// site is a real server of documents on loopback.
type site struct {
	*httptest.Server
	t     *testing.T
	mu    sync.Mutex
	pages map[string]http.HandlerFunc
	tags  bool     // put gives ETags
	asked []string // paths, in order; those answered 304 with ! behind
}

func newSite(t *testing.T) *site {
	s := &site{t: t, pages: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		page := s.pages[r.URL.Path]
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

// put serves a document. {} in it is the site's address.
func (s *site) put(path, doc string) { s.serve(path, "application/xml", doc) }

func (s *site) serve(path, contentType, doc string) {
	doc = strings.ReplaceAll(doc, "{}", s.URL)
	s.mu.Lock()
	tag := fmt.Sprintf(`"%d-%s"`, len(doc), digestOf(doc))
	s.mu.Unlock()
	s.handle(path, func(w http.ResponseWriter, r *http.Request) {
		if s.tags {
			w.Header().Set("ETag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, doc)
	})
}

func digestOf(s string) string {
	return digest([]string{s})[:16]
}

func (s *site) status(path string, status int) {
	s.handle(path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
}

func (s *site) redirect(path, to string) {
	s.handle(path, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
}

func (s *site) remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pages, path)
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
	at := len(s.asked)
	s.asked = append(s.asked, r.URL.Path)
	s.mu.Unlock()
	resp, err := s.Client().Transport.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusNotModified {
		s.mu.Lock()
		if at < len(s.asked) {
			s.asked[at] += "!"
		}
		s.mu.Unlock()
	}
	return resp, err
}

func (s *site) walk(path string) *Walk {
	return &Walk{Client: &http.Client{Transport: s}, URL: s.URL + path}
}

// day is a moment in January 2020; day 31.5 is noon.
func day(d float64) time.Time {
	return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration((d - 1) * 24 * float64(time.Hour)))
}

// attrs writes name, value pairs as attributes: days as times, others as they
// are. A day of 0 is left out.
func attrs(pairs ...any) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		value := fmt.Sprint(pairs[i+1])
		switch d := pairs[i+1].(type) {
		case int:
			pairs[i+1] = float64(d)
			if value = stamp(day(float64(d))); d == 0 {
				continue
			}
		case float64:
			if value = stamp(day(d)); d == 0 {
				continue
			}
		}
		fmt.Fprintf(&b, ` %v="%s"`, pairs[i], value)
	}
	return b.String()
}

const rootNames = ` xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"`

// urlset is a document; md are pairs for its rs:md, none without any.
func urlset(md string, children ...string) string { return document("urlset", md, children) }

func sitemapindex(md string, children ...string) string {
	return document("sitemapindex", md, children)
}

func document(root, md string, children []string) string {
	if md != "" {
		md = "<rs:md" + md + "/>"
	}
	return "<" + root + rootNames + ">" + md + strings.Join(children, "") + "</" + root + ">"
}

func ln(rel, href string) string { return fmt.Sprintf(`<rs:ln rel="%s" href="%s"/>`, rel, href) }

// named is an entry of an index or of a list of lists.
func named(path string, md ...any) string {
	return fmt.Sprintf("<sitemap><loc>{}%s</loc><rs:md%s/></sitemap>", path, attrs(md...))
}

func lists(path, capability string) string {
	return fmt.Sprintf(`<url><loc>{}%s</loc><rs:md capability="%s"/></url>`, path, capability)
}

// res is a resource, change an entry of a Change List.
func res(name string) string { return fmt.Sprintf("<url><loc>{}/r/%s</loc></url>", name) }

func change(name string, d float64) string {
	return fmt.Sprintf("<url><loc>{}/r/%s</loc><rs:md%s/></url>", name, attrs("change", "updated", "datetime", d))
}

// changes is a Change List; resources a Resource List.
func changes(from, until float64, entries ...string) string {
	return urlset(attrs("capability", "changelist", "from", from, "until", until), append([]string{ln("up", "{}/cap")}, entries...)...)
}

func resources(at float64, entries ...string) string {
	return urlset(attrs("capability", "resourcelist", "at", at), append([]string{ln("up", "{}/cap")}, entries...)...)
}

// walked is what a walk did.
type walked struct {
	Result
	err      error
	lists    []string // paths of the lists visited; Resource Lists with * behind
	entries  []string // names of the resources, ! for bad ones; | between lists
	states   []State
	problems []Problem
	whole    bool
	stop     string // the visit of this path fails
	sparse   bool   // only the states that are worth storing are asked for
}

var errStop = errors.New("stopped")

func (g *walked) visitor(s *site) func(context.Context, *List) error {
	return func(_ context.Context, l *List) error {
		path := strings.TrimPrefix(l.Requested, s.URL)
		if path == g.stop {
			return errStop
		}
		if done := len(g.states); !g.sparse && done > 0 && l.Index != g.states[done-1].m.Walk.Documents {
			s.t.Errorf("list %d has index %d", g.states[done-1].m.Walk.Documents, l.Index)
		}
		if l.Baseline {
			path += "*"
		}
		g.lists = append(g.lists, path)
		n := 0
		for {
			e, err := l.next()
			switch {
			case err == nil:
				g.entries = append(g.entries, strings.TrimPrefix(e.Loc, s.URL+"/r/"))
			case errors.As(err, new(*EntryError)):
				g.entries = append(g.entries, "!")
			case err != io.EOF:
				return err
			default:
				if !g.sparse || l.Checkpoint() {
					state, ok := l.State()
					if !ok || !state.Unfinished() {
						s.t.Error("no state after the end")
					}
					g.states = append(g.states, state)
				}
				g.entries = append(g.entries, "|")
				return nil
			}
			if n++; l.Position() != n {
				s.t.Errorf("position %d of entry %d", l.Position(), n)
			}
			if _, ok := l.State(); ok {
				s.t.Error("a state before the end")
			}
		}
	}
}

// visitAll has visit read each document of a walk, until it returns an error that is
// not the document's own.
func visitAll(ctx context.Context, w *Walk, visit func(context.Context, *List) error) (_ Result, err error) {
	var d *List
	for d, err = range w.Documents(ctx) {
		if err != nil {
			break
		}
		if err = visit(ctx, d); err != nil && !errors.Is(err, d.fatal) {
			break
		}
		err = nil
	}
	return w.Result(), err
}

func (s *site) run(w *Walk) *walked { return s.runUntil(w, "") }

func (s *site) runUntil(w *Walk, stop string) *walked { return s.finish(w, &walked{stop: stop}) }

// finish has g be what a walk does.
func (s *site) finish(w *Walk, g *walked) *walked {
	s.t.Helper()
	w.Report = func(p Problem) { g.problems = append(g.problems, p) }
	g.Result, g.err = visitAll(s.t.Context(), w, g.visitor(s))
	g.whole = whole(g.Result, g.err)
	switch {
	case g.State.Unfinished():
		s.t.Error("the walk has ended and its state says that it goes on")
	case g.whole && g.State.m.URL != w.URL:
		s.t.Errorf("the state is of %q, want %q", g.State.m.URL, w.URL)
	case !g.whole:
		before := memory{}
		if w.State.m != nil {
			before = *w.State.m
			before.Walk = nil
		}
		after := *g.State.m // but for the sets of resources to which it has given numbers
		after.Streams = slices.DeleteFunc(slices.Clone(after.Streams), func(o stream) bool { return !o.Known })
		before.Streams = slices.DeleteFunc(slices.Clone(before.Streams), func(o stream) bool { return !o.Known })
		if after.Numbers > before.Numbers && g.Documents > 0 {
			before.URL, before.Numbers = w.URL, after.Numbers
		}
		if is, was := mustJSON(s.t, after), mustJSON(s.t, before); is != was {
			s.t.Errorf("after a walk that has not ended whole the state is\n%s\nand was\n%s", is, was)
		}
	}
	return g
}

// whole reports whether a walk has ended whole.
func whole(r Result, err error) bool { return err == nil && r.Gap == nil && !r.Ended }

// again is the walk after g.
func (s *site) again(w *Walk, g *walked) *walked {
	s.t.Helper()
	if !g.whole {
		s.t.Fatalf("the walk has not ended whole: gap %v, error %v", g.Gap, g.err)
	}
	n := *w
	n.State = stored(s.t, g.State)
	return s.run(&n)
}

// expect compares what was visited.
func (g *walked) expect(t *testing.T, lists string) {
	t.Helper()
	if g.err != nil {
		t.Errorf("error %v", g.err)
	}
	if got := strings.Join(g.lists, " "); got != lists {
		t.Errorf("visited %q, want %q", got, lists)
	}
}

func (g *walked) reported(rule string) bool {
	return slices.ContainsFunc(g.problems, func(p Problem) bool { return p.Rule == rule })
}

func expectRequests(t *testing.T, s *site, want string) {
	t.Helper()
	if got := s.requests(); got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
}
