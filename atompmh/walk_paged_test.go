package atompmh

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// next is a link to the page after this one.
func next(path string) string { return fmt.Sprintf(`<link rel="next" href="%s"/>`, path) }

// pages serves three pages of a feed that has no archives.
func pages(s *site) {
	s.put("/feed", page{updated: 20, tail: next("/p2"), entries: []string{alive("a", 20)}}.String())
	s.put("/p2", page{updated: 20, tail: next("/p3"), entries: []string{alive("b", 10)}}.String())
	s.put("/p3", page{updated: 20, entries: []string{alive("c", 5)}}.String())
}

// D8, D86: the pages of a feed without archives are read to their end, or to the
// first one below the mark, and the report says that they promise nothing.
func TestPagesAreFollowed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		mark    float64
		full    bool
		change  func(*site)
		paths   string
		entries string
		above   bool // it ends above the oldest page
	}{
		{name: "first harvest", paths: "/feed /p2 /p3", entries: "aa ab ac"},
		{name: "below the mark", mark: 15, paths: "/feed /p2", entries: "aa ab", above: true},
		{name: "full", mark: 15, full: true, paths: "/feed /p2 /p3", entries: "aa ab ac"},
		{name: "an old entry that stays in front", mark: 15, paths: "/feed /p2 /p3", entries: "az aa ab ac", above: true, change: func(s *site) {
			s.put("/feed", page{updated: 20, tail: next("/p2"), entries: []string{alive("z", 1), alive("a", 20)}}.String())
			s.put("/p2", page{updated: 20, tail: next("/p3"), entries: []string{alive("b", 18)}}.String())
			s.put("/p3", page{updated: 20, tail: next("/p4"), entries: []string{alive("c", 5)}}.String())
		}},
		{name: "a page that is not there", paths: "/feed /p2", entries: "aa ab", change: func(s *site) { s.status("/p3", 404) }},
		{name: "every page is the first", paths: "/feed /p2", entries: "aa aa", change: func(s *site) {
			same := page{updated: 20, tail: next("/p2"), entries: []string{alive("a", 20)}}.String()
			s.put("/feed", same)
			s.put("/p2", same)
		}},
		{name: "a ring by a redirect", paths: "/feed /p2", entries: "aa ab", change: func(s *site) {
			s.handle("/p3", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/feed", http.StatusFound) })
		}},
		{name: "a ring", paths: "/feed /p2", entries: "aa ab", change: func(s *site) {
			s.put("/p2", page{updated: 20, tail: next("/feed"), entries: []string{alive("b", 10)}}.String())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			pages(s)
			if tt.change != nil {
				tt.change(s)
			}
			w := s.walk()
			w.Full = tt.full
			if tt.mark > 0 {
				w.State, w.Overlap = marked(day(tt.mark)), time.Hour
			}
			got := s.run(w)
			got.expect(t, tt.paths, tt.entries)
			if !got.reported(rulePaged) || got.Gap != nil || got.Complete || got.Oldest == tt.above || !got.Target.Equal(day(20)) {
				t.Errorf("%+v, problems %v", got.Result, got.problems)
			}
		})
	}
}

// A page that cannot be read leaves a gap, as an archive document does.
func TestPageThatIsBroken(t *testing.T) {
	s := newSite(t)
	pages(s)
	s.put("/p3", "<html/>")
	got := s.run(s.walk())
	if got.Gap == nil || got.Gap.URL != s.URL+"/p3" {
		t.Errorf("gap %v", got.Gap)
	}
}

// An unfinished walk over pages goes on with the next one.
func TestPagesResume(t *testing.T) {
	s := newSite(t)
	pages(s)
	w := s.walk()
	w.State = State{&memory{Walk: &cursor{Next: s.URL + "/p3", Paged: true, Documents: 2, Fixed: true, Target: day(20)}}}
	got := s.run(w)
	got.expect(t, "/p3", "ac")
	if got.Documents != 3 || !got.Target.Equal(day(20)) {
		t.Errorf("%+v", got.Result)
	}
}

// D8: the URL of an archive document leads to the subscription document, or the
// report says what is wrong with it.
func TestArchiveDocumentAsURL(t *testing.T) {
	for _, tt := range []struct{ name, current, paths string }{
		{"with current", "/feed", "/feed /3 /2 /1"},
		{"without", "", "/3 /2 /1"},
		{"that names itself", "/3", "/3 /2 /1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			chain(s)
			tail := `<fh:archive xmlns:fh="` + HistoryNamespace + `"/>`
			if tt.current != "" {
				tail += `<link rel="current" href="` + tt.current + `"/>`
			}
			s.put("/3", page{updated: 15, prev: "/2", head: tail, entries: []string{alive("c", 15), gone("d", 11)}}.String())
			w := s.walk()
			w.URL = s.URL + "/3"
			got := s.run(w)
			got.expect(t, tt.paths, "*")
			if !got.reported(ruleCurrent) {
				t.Errorf("not reported: %v", got.problems)
			}
		})
	}
}

// Where an archive document names a subscription document that cannot be read, the walk ends
// with that error: it would never find anything new.
func TestArchiveDocumentWithoutCurrent(t *testing.T) {
	s := newSite(t)
	s.put("/3", page{updated: 15, head: `<fh:archive/><link rel="current" href="/feed"/>`, entries: []string{alive("c", 15)}}.String())
	for _, status := range []int{404, 410, 503} {
		s.status("/feed", status)
		w := s.walk()
		w.URL = s.URL + "/3"
		got := s.run(w)
		var e *StatusError
		if !errors.As(got.err, &e) || e.Status != status || e.URL != s.URL+"/feed" || len(got.paths) > 0 || got.Ended {
			t.Errorf("%d: visited %v, %v, %+v", status, got.paths, got.err, got.Result)
		}
	}
}

// D86: a feed that claims far more results than its documents lead to is reported,
// once the walk has come to its end, and is no complete enumeration.
func TestTotalResults(t *testing.T) {
	claim := func(n int) string {
		return fmt.Sprintf(`<o:totalResults xmlns:o="http://a9.com/-/spec/opensearch/1.1/"> %d </o:totalResults>`, n)
	}
	one := []string{alive("a", 20)}
	for _, tt := range []struct {
		name     string
		feed     page
		mark     float64
		short    bool
		complete bool
	}{
		{name: "one entry of 173,245", feed: page{head: claim(173245), entries: one}, short: true},
		{name: "after the entries", feed: page{tail: claim(173245), entries: one}, short: true},
		{name: "OpenSearch 1.0", feed: page{head: `<s:totalResults xmlns:s="http://a9.com/-/spec/opensearchrss/1.0/">173245</s:totalResults>`, entries: one}, short: true},
		{name: "another namespace", feed: page{head: `<totalResults>173245</totalResults>`, entries: one}},
		{name: "no number", feed: page{head: `<s:totalResults xmlns:s="http://a9.com/-/spec/opensearchrss/1.0/">many</s:totalResults>`, entries: one}},
		{name: "as many as there are", feed: page{head: claim(3), tail: next("/p2"), entries: one}},
		{name: "one too many", feed: page{head: claim(4), tail: next("/p2"), entries: one}},
		{name: "many more than all pages have", feed: page{head: claim(5), tail: next("/p2"), entries: one}, short: true},
		{name: "not read to the end", mark: 15, feed: page{head: claim(173245), tail: next("/p2"), entries: one}},
		{name: "complete", feed: page{head: claim(1) + "<fh:complete/>", entries: one}, complete: true},
		{name: "not complete at all", feed: page{head: claim(173245) + "<fh:complete/>", entries: one}, short: true},
		{name: "not complete, said at its end", feed: page{head: "<fh:complete/>", entries: one, tail: claim(173245)}, short: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			pages(s)
			tt.feed.updated = 20
			s.put("/feed", tt.feed.String())
			w := s.walk()
			if tt.mark > 0 {
				w.State, w.Overlap = marked(day(tt.mark)), time.Hour
			}
			got := s.run(w)
			if got.err != nil || got.reported(ruleResults) != tt.short || got.Complete != tt.complete || got.Oldest != (tt.mark == 0) {
				t.Errorf("%v, %+v, problems %v", got.err, got.Result, got.problems)
			}
		})
	}
}
