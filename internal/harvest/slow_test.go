package harvest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// resourceList is a Resource List, or an index of some.
func resourceList(root, entry string, locs ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<%s xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/>`, root)
	for _, loc := range locs {
		fmt.Fprintf(&b, `<%s><loc>%s</loc><rs:md at="2026-01-01T00:00:00Z" type="text/html"/></%s>`, entry, loc, entry)
	}
	fmt.Fprintf(&b, "</%s>", root)
	return b.String()
}

// A part of a Resource List without an entry, as of a server that has lost its database for a while,
// deletes no more than a few records at once.
func TestPartWithoutEntries(t *testing.T) {
	for _, records := range []int{5, 12} {
		s := newShelf(t, t.TempDir(), event.Redirect)
		var pages sync.Map
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			page, _ := pages.Load(r.URL.Path)
			text, _ := page.(string)
			_, _ = io.WriteString(w, text)
		}))
		t.Cleanup(server.Close)
		var parts []string
		whole := map[string]string{}
		for i := range 10 {
			var names []string
			for j := range records {
				names = append(names, fmt.Sprintf("%s/r%d-%d", server.URL, i, j))
			}
			path := fmt.Sprintf("/%d", i)
			parts = append(parts, server.URL+path)
			whole[path] = resourceList("urlset", "url", names...)
			pages.Store(path, whole[path])
		}
		pages.Store("/rl", resourceList("sitemapindex", "sitemap", parts...))
		s.from(harvest.ResourceSync, server.URL+"/rl", server.Client())
		s.run()
		s.news()
		pages.Store("/3", resourceList("urlset", "url"))
		want := ""
		if records == 5 {
			want = "deleted /r3-0, deleted /r3-1, deleted /r3-2, deleted /r3-3, deleted /r3-4"
		}
		for range 2 {
			r := s.run()
			if got := strings.ReplaceAll(s.news(), server.URL, ""); got != want || (r.Held > 0) != (records == 12) {
				t.Errorf("%d records: %s, %+v", records, got, r)
			}
			want = ""
		}
		if records == 12 {
			s.later += 2 * time.Hour // HoldDeletions is one
			if s.run(); strings.Count(s.news(), "deleted") != records {
				t.Error("the part is still empty, and its records are there")
			}
			pages.Store("/3", whole["/3"])
			if s.run(); strings.Count(s.news(), "created") != records {
				t.Error("the part is whole again, and its records are not there")
			}
		}
	}
}

// A list that fails for good, of a Source without Resource Lists, keeps no other one from being
// harvested for more than one harvest, and is a gap that can be accepted. Nothing is taken from what
// arrives of it.
func TestChangeListFailsForGood(t *testing.T) {
	for _, broken := range []bool{false, true} {
		s := newShelf(t, t.TempDir(), event.Redirect)
		var mended atomic.Bool
		const head = `<%s xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="changelist" from="2026-01-0%dT00:00:00Z"/>`
		var server *httptest.Server
		server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			day, name := 1, strings.TrimPrefix(r.URL.Path, "/")
			if name == "index" {
				fmt.Fprintf(w, head, "sitemapindex", 1)
				for i := range 3 {
					fmt.Fprintf(w, `<sitemap><loc>%s/%d</loc><rs:md from="2026-01-0%dT00:00:00Z"/></sitemap>`, server.URL, i+1, i+1)
				}
				_, _ = io.WriteString(w, "</sitemapindex>")
				return
			}
			_, _ = fmt.Sscan(name, &day)
			bad := day == 2 && !mended.Load()
			if bad && !broken {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			if bad {
				w.Header().Set("Content-Length", "9999")
			}
			fmt.Fprintf(w, head, "urlset", day)
			fmt.Fprintf(w, `<url><loc>%s/r%d</loc><rs:md change="created" datetime="2026-01-0%dT12:00:00Z" type="text/html"/></url>`, server.URL, day, day)
			if !bad {
				_, _ = io.WriteString(w, "</urlset>")
			}
		}))
		t.Cleanup(server.Close)
		s.from(harvest.ResourceSync, server.URL+"/index", server.Client())
		want := func(when, news string) {
			t.Helper()
			if got := strings.ReplaceAll(s.news(), server.URL, ""); got != news {
				t.Errorf("%s: %s, want %s", when, got, news)
			}
		}
		if r, err := s.harvest.Run(t.Context(), &s.src, harvest.Options{}); err == nil || r.Gap != "" {
			t.Errorf("at first: %+v, error %v", r, err)
		}
		want("at first", "created /r3")
		for _, when := range []string{"created /r1", ""} {
			if r, err := s.harvest.Run(t.Context(), &s.src, harvest.Options{}); err != nil || !strings.HasPrefix(r.Gap, server.URL+"/2: ") {
				t.Errorf("again: %+v, error %v", r, err)
			}
			want("again", when)
		}
		if broken {
			url, err := s.harvest.AcceptGap(t.Context(), &s.src)
			if err != nil || url != server.URL+"/2" {
				t.Errorf("accepted %s, error %v", url, err)
			}
			if r := s.run(); r.Gap != "" {
				t.Errorf("it is accepted: %+v", r)
			}
			want("it is accepted", "")
			continue
		}
		mended.Store(true)
		if r := s.run(); r.Gap != "" {
			t.Errorf("it answers: %+v", r)
		}
		want("it answers", "created /r2")
	}
}

// A part of a Resource List that is gone, which an operator has accepted, is read when it is
// there again.
func TestPartComesBack(t *testing.T) {
	s := newShelf(t, t.TempDir(), event.Redirect)
	var pages sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages.Load(r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, page.(string))
	}))
	t.Cleanup(server.Close)
	part := func(path string, names ...string) {
		for i := range names {
			names[i] = server.URL + names[i]
		}
		pages.Store(path, resourceList("urlset", "url", names...))
	}
	pages.Store("/rl", resourceList("sitemapindex", "sitemap", server.URL+"/1", server.URL+"/2"))
	part("/1", "/a")
	part("/2", "/b")
	s.from(harvest.ResourceSync, server.URL+"/rl", server.Client())
	want := func(when, news string) {
		t.Helper()
		if got := strings.ReplaceAll(s.news(), server.URL, ""); got != news {
			t.Errorf("%s: %s, want %s", when, got, news)
		}
	}
	s.run()
	want("at first", "created /a, created /b")
	pages.Delete("/2")
	if r := s.run(); r.Gap == "" {
		t.Errorf("the part is gone: %+v", r)
	}
	_, err := s.harvest.AcceptGap(t.Context(), &s.src)
	s.must(err)
	part("/1", "/c")
	if r := s.run(); r.Gap != "" || len(r.Examples) > 1 {
		t.Errorf("accepted: %+v", r)
	}
	want("accepted", "created /c")
	part("/2", "/b", "/d")
	s.run()
	want("there again", "created /d, deleted /a")
}

// While the contents of one list are fetched, the server gives up on the next one, which was
// requested meanwhile and which nobody has read. It is requested again.
func TestListGivenUpMeanwhile(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.harvest.BatchSize = 1
	a.harvest.Now = func() time.Time { a.pass(time.Minute); return a.clock() } // everything takes long
	requested, cut := make(chan struct{}), make(chan struct{})
	var lists, contents atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		base := "http://" + r.Host
		switch path := r.URL.Path; {
		case path == "/index":
			_, _ = io.WriteString(w, resourceList("sitemapindex", "sitemap", base+"/1", base+"/2"))
		case path == "/1":
			_, _ = io.WriteString(w, resourceList("urlset", "url", base+"/r/a", base+"/r/b", base+"/r/c"))
		case path == "/2" && lists.Add(1) == 1:
			_, _ = io.WriteString(w, "<urlset")
			w.(http.Flusher).Flush()
			close(requested)
			<-cut
			panic(http.ErrAbortHandler)
		case path == "/2":
			_, _ = io.WriteString(w, resourceList("urlset", "url", base+"/r/d"))
		case strings.HasPrefix(path, "/r/"):
			if contents.Add(1) == 1 {
				<-requested
				close(cut)
			}
			_, _ = io.WriteString(w, path)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	var err error
	a.src.URL, a.src.Kind = server.URL+"/index", harvest.ResourceSync
	a.src.ID, err = a.log.EnsureSource(t.Context(), "main", harvest.ResourceSync, a.src.URL, 1)
	a.must(err)
	if r := a.run(); r.Created != 4 || r.Partial() || lists.Load() != 2 {
		t.Errorf("%d requests for the second list, %+v", lists.Load(), r)
	}
}

// The next page of a repository is requested only when the further formats of the page before
// are there: its token may be good only once.
func TestTokenMeanwhile(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.harvest.BatchSize = 1
	a.repo.PageSize = 3
	a.repo.Formats = append(a.repo.Formats, testserver.ItemFormat{Prefix: "mods", Schema: "http://www.loc.gov/mods/v3/mods.xsd", Namespace: "http://www.loc.gov/mods/v3"})
	a.src.Repository.Also = []string{"mods"}
	for i := range 6 {
		a.put(fmt.Sprint(i), "one")
	}
	var formats, atSecond atomic.Int64
	a.repo.OnPage = func(verb string, page int) {
		switch {
		case verb == "GetRecord":
			formats.Add(1)
		case page == 2:
			atSecond.Store(formats.Load())
		}
	}
	if r := a.run(); r.Created != 6 || r.Partial() || atSecond.Load() == 0 {
		t.Errorf("%d further formats were there when the second page was requested; %+v", atSecond.Load(), r)
	}
}

// Mirrors whose contents do not come leave memory for other Sources, however long their lists
// are.
func TestHangingMirrors(t *testing.T) {
	testenv.Heavy(t)
	a := newArchive(t, event.Mirror)
	hang := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 50_000
		switch r.URL.Path {
		case "/quick":
			n = 1000
		case "/0", "/1":
		default:
			select {
			case hang[r.URL.Path[1]-'0'] <- struct{}{}:
			default:
			}
			<-r.Context().Done()
			return
		}
		locs := make([]string, n)
		for i := range locs {
			locs[i] = fmt.Sprintf("http://%s%s/%d", r.Host, r.URL.Path, i)
		}
		_, _ = io.WriteString(w, resourceList("urlset", "url", locs...))
	}))
	defer server.Close()
	source := func(set string, mode event.Content) harvest.Source {
		a.must(a.log.EnsureSet(t.Context(), eventlog.SetConfig{Name: set, Content: mode}))
		src := harvest.Source{Set: set, Kind: harvest.ResourceSync, URL: server.URL + "/" + set, Content: mode, Client: server.Client()}
		var err error
		src.ID, err = a.log.EnsureSource(t.Context(), set, src.Kind, src.URL, 0)
		a.must(err)
		return src
	}
	ctx, end := context.WithCancel(t.Context())
	var slow sync.WaitGroup
	for i := range hang {
		src := source(fmt.Sprint(i), event.Mirror)
		slow.Go(func() {
			if _, err := a.harvest.Run(ctx, &src, harvest.Options{}); ctx.Err() == nil {
				t.Errorf("%s has ended: %v", src.Set, err)
			}
		})
		<-hang[i]
	}
	src := source("quick", event.Reference)
	quick, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := a.harvest.Run(quick, &src, harvest.Options{})
	if err != nil || r.Created != 1000 {
		t.Errorf("%+v, %v", r, err)
	}
	end()
	slow.Wait()
}
