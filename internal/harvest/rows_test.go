package harvest_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// tableSite is a web site with a list of its pages in plain text.
type tableSite struct {
	*shelf
	base string

	mu    sync.Mutex
	list  string
	etag  string
	pages map[string]string // contents by path
	asked map[string]int
}

func newTableSite(t tester, folder, kind string, mode event.Content) *tableSite {
	s := &tableSite{shelf: newShelf(t, folder, mode), pages: map[string]string{}, asked: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.base = server.URL
	s.from(kind, server.URL+"/list", server.Client())
	return s
}

// ServeHTTP implements http.Handler.
func (s *tableSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[r.URL.Path]++
	text, ok := s.pages[r.URL.Path]
	if r.URL.Path == "/list" {
		w.Header().Set("Content-Type", "text/plain")
		if w.Header().Set("ETag", s.etag); s.etag != "" && r.Header.Get("If-None-Match") == s.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		text, ok = s.list, true
	}
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte(text))
}

// say sets the list.
func (s *tableSite) say(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = strings.ReplaceAll(strings.Join(lines, "\n"), "BASE", s.base) + "\n"
}

func (s *tableSite) page(path, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = text
}

// sum returns how many times pages were asked for since it was called last.
func (s *tableSite) sum() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, times := range s.asked {
		if path != "/list" {
			n += times
		}
	}
	clear(s.asked)
	return n
}

func (s *tableSite) news() string { return strings.ReplaceAll(s.shelf.news(), s.base, "") }

func (s *tableSite) is(what, want string, r harvest.Report, warns string) {
	s.t.Helper()
	s.compare(what, s.news(), want, r, warns)
}

// TestRowsLaw: whatever a table says, and whatever becomes of its pages, the log has what
// a naive model has after a harvest that reads everything.
func TestRowsLaw(t *testing.T) {
	testenv.Checks(t, 20)
	rapid.Check(t, func(t *rapid.T) {
		s := newTableSite(t, tempDir(t), harvest.CSV, event.Mirror)
		s.harvest.BacklogMemory = rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "in memory")
		s.harvest.BatchSize = rapid.IntRange(1, 6).Draw(t, "batch")
		dated := map[string]bool{"/p/0": true}
		have := map[string]bool{"/p/0": true}
		version := 0
		for round := range rapid.IntRange(1, 6).Draw(t, "harvests") {
			for range rapid.IntRange(0, 6).Draw(t, "changes") {
				version++
				path := fmt.Sprintf("/p/%d", rapid.IntRange(0, 5).Draw(t, "page"))
				switch rapid.IntRange(0, 2).Draw(t, "what") {
				case 0:
					have[path] = true
					dated[path] = rapid.Bool().Draw(t, "dated")
				case 1:
					delete(have, path)
				}
				s.page(path, fmt.Sprint(version))
			}
			have["/p/0"] = true // or the guard would hold the last deletion
			want := map[string]string{}
			lines := []string{"url,modified"}
			for _, path := range slices.Sorted(maps.Keys(have)) {
				s.mu.Lock()
				if s.pages[path] == "" {
					s.pages[path] = "first"
				}
				want[s.base+path] = hashOf(s.pages[path])
				s.mu.Unlock()
				at := ""
				if dated[path] {
					at = time.Date(2026, 1, 1, 0, version, round, 0, time.UTC).Format(time.RFC3339)
				}
				lines = append(lines, "BASE"+path+","+at)
			}
			s.say(lines...)
			_, err := s.try(harvest.Options{Full: true, AllPending: true})
			s.must(err)
			if got := s.live(); !maps.Equal(got, want) {
				t.Fatalf("the log has %v, want %v", got, want)
			}
			s.news()
			s.sum()
			s.run()
			if n, news := s.sum(), s.news(); n > 0 || news != "" {
				t.Fatalf("the same once more: %d pages, %q", n, news)
			}
		}
		s.must(s.log.Verify(context.Background(), func(f eventlog.Finding) { t.Fatalf("%s: %s", f.Where, f.What) }))
	})
}

// Absence is a deletion in a whole list without a bad row only, and behind the guard.
func TestRowsAbsent(t *testing.T) {
	t.Parallel()
	s := newTableSite(t, t.TempDir(), harvest.CSV, event.Redirect)
	s.say("url,type", "BASE/a,text/html", "BASE/b,text/html", "BASE/c,text/html")
	s.is("at first", "created /a, created /b, created /c", s.run(), "")
	s.mu.Lock()
	s.list = "url,type\n" + s.base + "/a,text/html\n" + s.base + "/b,text/html"
	s.mu.Unlock()
	s.is("cut off", "", s.run(), "its last line has no end")
	s.say("url,type", "BASE/a,text/html", "nonsense,text/html")
	r := s.run()
	s.is("with a bad row", "", r, "1 of its rows cannot be read")
	all, err := s.log.Quarantined(context.Background(), "main")
	s.must(err)
	if len(all) != 1 || all[0].Line != 3 || all[0].Rule != "row-url" {
		t.Fatalf("quarantined %+v", all)
	}
	q, err := s.log.QuarantinedInput(context.Background(), all[0].ID)
	s.must(err)
	if string(q.Input) != "url,type\nnonsense,text/html\n" {
		t.Errorf("quarantined %q", q.Input)
	}
	s.say("url,type", "BASE/a,text/html", "BASE/b,text/html")
	s.is("one is gone", "deleted /c", s.run(), "")
	s.say("url,type,deleted", "BASE/a,text/html,", "BASE/b,text/html,true")
	s.is("one is said to be", "deleted /b", s.run(), "")
	s.say("url,type")
	s.is("all are", "", s.run(), "1 of 1 records")
}

// A list whose end nobody states deletes nothing.
func TestRowsWithoutLength(t *testing.T) {
	t.Parallel()
	s := newTableSite(t, t.TempDir(), harvest.Sitemap, event.Mirror)
	s.page("/a", "a")
	s.page("/b", "b")
	s.say("BASE/a", "BASE/b")
	s.is("at first", "created /a, created /b", s.run(), "")
	s.say("BASE/a")
	inner := s.src.Client.Transport
	s.src.Client = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		resp, err := inner.RoundTrip(r)
		if err == nil {
			resp.ContentLength, resp.TransferEncoding = -1, nil
		}
		return resp, err
	})}
	s.is("of unknown length", "", s.run(), "neither how long it is nor where it ends")
	s.src.Client = &http.Client{Transport: inner}
	s.is("of known length", "deleted /b", s.run(), "")
}

// Contents of which nothing says when they change are asked for again in each harvest that
// reads everything, and only then; the others when their time is another one.
func TestRowsAskedAgain(t *testing.T) {
	t.Parallel()
	s := newTableSite(t, t.TempDir(), harvest.CSV, event.Mirror)
	for _, path := range []string{"/a", "/b"} {
		s.page(path, "1")
	}
	s.say("url,modified", "BASE/a,", "BASE/b,2026-01-01")
	s.etag = `"1"`
	s.is("at first", "created /a, created /b", s.run(), "")
	for _, path := range []string{"/a", "/b"} {
		s.page(path, "2")
	}
	s.sum()
	if r := s.run(); !r.NotModified || s.sum() != 0 {
		t.Errorf("the same list: %+v", r)
	}
	s.later = 25 * time.Hour
	s.is("after a day", "updated /a", s.run(), "")
	if n := s.sum(); n != 1 {
		t.Errorf("%d pages were asked for, want 1", n)
	}
	s.say("url,modified", "BASE/a,", "BASE/b,2026-01-02")
	s.etag = `"2"`
	s.is("another time", "updated /b", s.run(), "")
}

// Thousands of rows, each twice, and as many bad ones: a harvest takes the good ones,
// and keeps the bad ones whole.
func TestRowsThousands(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	s := newTableSite(t, t.TempDir(), harvest.CSV, event.Reference)
	lines := []string{"title;url;type"}
	for i := range 3_000 {
		row := fmt.Sprintf("\"Row %d\nof many\";BASE/%d;text/html", i, i)
		lines = append(lines, row, row, fmt.Sprintf("bad %d;\"%d;x\"", i, i))
	}
	s.say(lines...)
	r := s.run()
	if r.Created != 3_000 || r.Quarantined != 3_000 || len(r.Examples) == 0 {
		t.Errorf("%d created, %d quarantined: %+v", r.Created, r.Quarantined, r.Examples)
	}
	if n := len(s.live()); n != 3_000 {
		t.Errorf("%d records live", n)
	}
}

// Sources of different kinds feed one set.
func TestKindsInOneSet(t *testing.T) {
	t.Parallel()
	s := newTableSite(t, t.TempDir(), harvest.Sitemap, event.Mirror)
	s.page("/a", "a")
	s.say("BASE/a")
	s.put("f.xml", "<f/>")
	files := s.src
	files.Kind = harvest.Folder
	shelf := &shelf{harness: &harness{t: t, log: s.log, harvest: s.harvest, src: files}, dir: s.dir}
	shelf.src.ID = 0
	shelf.at(s.dir)
	s.is("the sitemap", "created /a", s.run(), "")
	s.is("the folder", "created f.xml", shelf.run(), "")
	s.say("BASE/b")
	s.page("/b", "b")
	s.is("another page", "created /b, deleted /a", s.run(), "")
	s.is("the folder again", "", shelf.run(), "")
	if r := shelf.run(); !r.NotModified {
		t.Errorf("%+v", r)
	}
	n, err := s.log.Has(context.Background(), shelf.src.ID)
	if err != nil || n != 1 {
		t.Errorf("the folder has %d records, %v", n, err)
	}
}
