package atompmh

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestA8_MissingArchive(t *testing.T) {
	broken := page{updated: 15, prev: "/2", entries: []string{alive("x", 15)}}.String()
	tests := []struct {
		name   string
		serve  func(*site)
		gap    string // part of the reason; "": an error instead
		status int
	}{
		{"404", func(s *site) { s.status("/3", 404) }, "404", 0},
		{"410", func(s *site) { s.status("/3", 410) }, "410", 0},
		{"HTML", func(s *site) { s.put("/3", "<html/>") }, "an HTML page", 0},
		{"cut off", func(s *site) { s.put("/3", broken[:len(broken)-8]) }, "cut off", 0},
		{"text behind", func(s *site) { s.put("/3", broken+"x") }, "text outside", 0},
		{"401", func(s *site) { s.status("/3", 401) }, "", 401},
		{"403", func(s *site) { s.status("/3", 403) }, "", 403},
		{"429", func(s *site) { s.status("/3", 429) }, "", 429},
		{"500", func(s *site) { s.status("/3", 500) }, "", 500},
		{"304", func(s *site) { s.status("/3", 304) }, "", 304},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			chain(s)
			tt.serve(s)
			got := s.run(s.walk())
			if tt.gap != "" {
				if got.err != nil || got.Gap == nil || got.Gap.URL != s.URL+"/3" || !strings.Contains(got.Gap.String(), tt.gap) {
					t.Fatalf("gap %v, error %v", got.Gap, got.err)
				}
				if got.Oldest || got.Documents != 1 || !got.Target.Equal(day(20)) {
					t.Errorf("%+v", got.Result)
				}
				w := s.walk()
				w.Accepted = []string{s.URL + "/3"}
				again := s.run(w)
				again.expect(t, "/feed", "aa ab")
				if again.Gap != nil || again.Oldest || again.Lost {
					t.Errorf("accepted: %+v", again.Result)
				}
				w.State = stored(t, got.State)
				again = s.run(w)
				again.expect(t, "/feed", "aa ab")
				if m := again.State.memory(); again.Gap != nil || !m.Mark.Equal(day(20)) || m.Gap != "" {
					t.Errorf("accepted and stored: %+v", again.Result)
				}
				w.State = got.states[0]
				again = s.run(w)
				again.expect(t, "", "")
				if again.Gap != nil || again.Oldest || !again.Target.Equal(day(20)) {
					t.Errorf("accepted and resumed: %+v", again.Result)
				}
				return
			}
			var status *StatusError
			if !errors.As(got.err, &status) || status.Status != tt.status || status.URL != s.URL+"/3" || got.Gap != nil {
				t.Fatalf("error %v", got.err)
			}
			// What was read is not lost: the walk goes on once the server does.
			chain(s)
			w := s.walk()
			w.State = got.states[0]
			s.run(w).expect(t, "/3 /2 /1", "ac dd ad ae af aa")
		})
	}
}

// TestA8_ShortBody: a connection that breaks is no gap.
func TestA8_ShortBody(t *testing.T) {
	s := newSite(t)
	chain(s)
	s.handle("/3", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9999")
		_, _ = io.WriteString(w, page{updated: 15, entries: []string{alive("x", 15)}}.String())
	})
	got := s.run(s.walk())
	if !errors.Is(got.err, io.ErrUnexpectedEOF) || got.Gap != nil {
		t.Errorf("gap %v, error %v", got.Gap, got.err)
	}
}

func TestA9_Loops(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n > 3 {
				testenv.Heavy(t)
			}
			s := newSite(t)
			for i := range n {
				path := fmt.Sprintf("/%d", i)
				if i == 0 {
					path = "/feed"
				}
				prev := fmt.Sprintf("/%d#x", (i+1)%n)
				if (i+1)%n == 0 {
					prev = "/feed"
				}
				s.put(path, page{updated: 20, prev: prev, entries: []string{alive(fmt.Sprint(i), 20)}}.String())
			}
			w := s.walk()
			w.MaxDocuments = n + 1
			got := s.run(w)
			if !errors.Is(got.err, ErrLoop) || len(got.paths) != n || !strings.Contains(got.err.Error(), "/feed") {
				t.Errorf("visited %d, error %v", len(got.paths), got.err)
			}
			if got.Oldest || got.Gap != nil {
				t.Errorf("%+v", got.Result)
			}
			if asked := strings.Count(s.requests(), "/"); asked != n {
				t.Errorf("%d requests", asked)
			}
		})
	}
	t.Run("same body at ever new URLs", func(t *testing.T) {
		s := newSite(t)
		doc := page{updated: 20, prev: "n/", entries: []string{alive("a", 20)}}.String()
		s.other = func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, doc) }
		w := s.walk()
		w.MaxDocuments = 20
		if got := s.run(w); !errors.Is(got.err, ErrLoop) || len(got.paths) != 2 {
			t.Errorf("visited %v, error %v", got.paths, got.err)
		}
	})
	t.Run("redirect home", func(t *testing.T) {
		s := newSite(t)
		s.put("/feed", page{updated: 20, prev: "/1", entries: []string{alive("a", 20)}}.String())
		s.handle("/1", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/feed", http.StatusFound) })
		if got := s.run(s.walk()); !errors.Is(got.err, ErrLoop) || len(got.paths) != 1 {
			t.Errorf("visited %v, error %v", got.paths, got.err)
		}
	})
}

// million serves a chain of a million documents, made as they are asked for.
func million(s *site) {
	s.other = func(w http.ResponseWriter, r *http.Request) {
		i := 0
		if _, err := fmt.Sscanf(r.URL.Path, "/n/%d", &i); err != nil && r.URL.Path != "/feed" || i >= 1_000_000 {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, page{updated: 20, prev: fmt.Sprintf("/n/%d", i+1), entries: []string{alive(fmt.Sprint(i), 20)}}.String())
	}
}

func TestA9_MaxDocuments(t *testing.T) {
	testenv.Heavy(t)
	s := newSite(t)
	million(s)
	got := s.run(s.walk())
	if !errors.Is(got.err, ErrTooManyDocuments) || len(got.paths) != 10_000 || got.Documents != 10_000 {
		t.Fatalf("visited %d, error %v", len(got.paths), got.err)
	}
	last := got.states[len(got.states)-1]
	if n := len(last.m.Walk.Heads); n != keptHeads {
		t.Errorf("%d heads", n)
	}
	w := s.walk()
	w.State = last
	if again := s.run(w); !errors.Is(again.err, ErrTooManyDocuments) || len(again.paths) != 0 {
		t.Errorf("resumed with the same cap: visited %d, %v", len(again.paths), again.err)
	}
	w.MaxDocuments = 10_001
	if again := s.run(w); !errors.Is(again.err, ErrTooManyDocuments) || len(again.paths) != 1 {
		t.Errorf("resumed with a higher cap: visited %d, %v", len(again.paths), again.err)
	}
}

func TestA9_Addresses(t *testing.T) {
	elsewhere := newSite(t)
	elsewhere.put("/1", page{updated: 1, entries: []string{alive("z", 1)}}.String())
	other := strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1) + "/1"
	tests := []struct {
		name, prev string
		allow      bool
		ok         bool
	}{
		{"same host, other port", elsewhere.URL + "/1", false, true},
		{"other host", other, false, false},
		{"other host, allowed", other, true, true},
		{"redirect to another host", "/redirect", false, false},
		{"redirect to another host, allowed", "/redirect", true, true},
		{"redirects without end", "/again", true, false},
		{"file", "file:///etc/passwd", true, false},
		{"ftp", "ftp://127.0.0.1/1", true, false},
		{"no scheme to speak of", "javascript:alert(1)", true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.put("/feed", page{updated: 20, prev: tt.prev, entries: []string{alive("a", 20)}}.String())
			s.handle("/redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, http.StatusFound) })
			s.handle("/again", func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/again?"+r.URL.RawQuery+"x", http.StatusFound)
			})
			w := s.walk()
			w.AllowHost = func(host string) bool { return tt.allow && host == "localhost" }
			got := s.run(w)
			if tt.ok {
				if got.err != nil || len(got.paths) != 2 {
					t.Errorf("visited %v, error %v", got.paths, got.err)
				}
				return
			}
			if got.err == nil || got.Gap != nil || len(got.paths) != 1 {
				t.Errorf("visited %v, error %v, gap %v", got.paths, got.err, got.Gap)
			}
			if tt.name != "redirects without end" && !errors.Is(got.err, ErrRefused) {
				t.Error(got.err)
			}
		})
	}
	for _, start := range []string{"", "feed", "ftp://example.org/feed", "mailto:x@example.org", ":"} {
		if got := newSite(t).run(&Walk{URL: start}); got.err == nil {
			t.Errorf("%q was walked", start)
		}
	}
}

// TestA9_Files walks through local files, and only through those below the
// first one's folder.
func TestA9_Files(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, p page) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(p.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	transport := &http.Transport{}
	transport.RegisterProtocol("file", http.NewFileTransport(http.Dir("/")))
	defer transport.CloseIdleConnections()
	write("in/old/1.atom", page{updated: 10, entries: []string{alive("b", 10)}})
	write("out.atom", page{updated: 10})
	for prev, ok := range map[string]bool{"old/1.atom": true, "../out.atom": false, "%2e%2e/out.atom": false, "http://127.0.0.1:1/x": false} {
		write("in/feed.atom", page{updated: 20, prev: prev, entries: []string{alive("a", 20)}})
		w := &Walk{Client: &http.Client{Transport: transport}, URL: "file://" + dir + "/in/feed.atom"}
		got := newSite(t).run(w)
		if n := len(got.paths); ok && (got.err != nil || n != 2) || !ok && !errors.Is(got.err, ErrRefused) {
			t.Errorf("%s: %d documents, %v", prev, n, got.err)
		}
	}
}
