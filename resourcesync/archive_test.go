package resourcesync

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A Source whose index reaches back to day 7, and whose archive to day 2. A walk read it
// up to day 5.
func archivedSite(t *testing.T, archive string) (*site, *walked, *Walk) {
	s := newSite(t)
	capabilities := func(more ...string) {
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), append([]string{lists("/rl", "resourcelist"), lists("/cl", "changelist")}, more...)...))
	}
	capabilities()
	s.put("/rl", resources(4, res("a")))
	s.put("/cl4", changes(4, 0, change("four", 5)))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 4), named("/cl4", "from", 4)))
	w := s.walk("/cap")
	g := s.run(w)

	capabilities(lists("/cla", "changelist-archive"), lists("/rla", "resourcelist-archive"), lists("/rda", "resourcedump-archive"), lists("/cda", "changedump-archive"))
	for d := 2; d < 8; d++ {
		until := float64(d + 1)
		if d == 7 {
			until = 0
		}
		s.put(fmt.Sprintf("/cl%d", d), changes(float64(d), until, change(fmt.Sprint("c", d), float64(d)+0.5)))
	}
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 7), named("/cl7", "from", 7)))
	if archive != "" {
		s.put("/cla", archive)
	}
	s.requests()
	return s, g, w
}

// entry is an entry of an archive that is a urlset.
func entry(path string, from, until float64) string {
	return strings.NewReplacer("<sitemap>", "<url>", "</sitemap>", "</url>").Replace(named(path, "from", from, "until", until))
}

func TestArchiveIsRead(t *testing.T) {
	head := attrs("capability", "changelist-archive")
	all := func(entry func(string, float64, float64) string, from, to int) (entries []string) {
		for d := from; d < to; d++ {
			entries = append(entries, entry(fmt.Sprintf("/cl%d", d), float64(d), float64(d+1)))
		}
		return entries
	}
	sitemap := func(path string, from, until float64) string { return named(path, "from", from, "until", until) }
	const start, lists = "/cl /cap /cl ", "/cl7 /cl6 /cl5 /cl4"
	for _, c := range []struct {
		name, archive, asked, lists string
		lost                        bool
		pages                       map[string]string
	}{
		{name: "a list", archive: urlset(head, all(entry, 2, 7)...), asked: "/cla", lists: lists},
		{name: "the paper's index", archive: sitemapindex(head, all(sitemap, 2, 7)...), asked: "/cla /cl6", lists: lists},
		{name: "newest first", archive: urlset(head, entry("/cl6", 6, 7), entry("/cl5", 5, 6), entry("/cl4", 4, 5)), asked: "/cla", lists: lists},
		{name: "an until before its from", archive: urlset(head, entry("/cl4", 4, 4.9), entry("/cl5", 5, 3), entry("/cl6", 6, 7)), asked: "/cla", lists: "/cl7 /cl6 /cl5"},
		{name: "parts, of which one is needed", archive: sitemapindex(head, sitemap("/p1", 2, 4), sitemap("/p2", 4, 7)), asked: "/cla /p2", lists: lists,
			pages: map[string]string{"/p2": urlset(head, all(entry, 4, 7)...)}},
		{name: "an index of Change Lists in it", archive: urlset(head, entry("/i", 2, 7)), asked: "/cla /cl7 /i", lists: lists,
			pages: map[string]string{"/i": sitemapindex(attrs("capability", "changelist", "from", 2), all(sitemap, 2, 7)...)}},
		{name: "not back to the mark", archive: urlset(head, all(entry, 6, 7)...), asked: "/cla", lists: "/cl7 /rl*", lost: true},
		{name: "not up to the index", archive: urlset(head, all(entry, 2, 6)...), asked: "/cla", lists: "/cl7 /rl*", lost: true},
		{name: "empty", archive: urlset(head), asked: "/cla", lists: "/cl7 /rl*", lost: true},
		{name: "missing", asked: "/cla", lists: "/cl7 /rl*", lost: true},
		{name: "another document", archive: resources(3, res("old")), asked: "/cla", lists: "/cl7 /rl*", lost: true},
		{name: "an archive of Resource Lists", archive: urlset(attrs("capability", "resourcelist-archive"), entry("/rl", 2, 7)), asked: "/cla", lists: "/cl7 /rl*", lost: true},
		{name: "a circle", archive: sitemapindex(head, sitemap("/cla", 2, 7)), asked: "/cla", lists: "/cl7 /rl*", lost: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, g, w := archivedSite(t, c.archive)
			for path, page := range c.pages {
				s.put(path, page)
			}
			got := s.again(w, g)
			got.expect(t, c.lists)
			if asked := s.requests(); !strings.HasPrefix(asked, start+c.asked) {
				t.Errorf("asked for %q, want %q first", asked, start+c.asked)
			}
			if c.lost != (got.Lost != "") || c.lost != got.Baseline || got.Gap != nil {
				t.Errorf("lost: %q, baseline %t, gap %v", got.Lost, got.Baseline, got.Gap)
			}
			if !c.lost {
				s.requests()
				if next := s.again(w, got); !next.whole || next.Baseline || strings.Contains(s.requests(), "/cla") {
					t.Errorf("the next walk reads the archive or a baseline again: %v, %v", next.lists, next.err)
				}
			}
		})
	}
}

// An archive that cannot be had, perhaps for good, does not keep the walk from its end.
func TestArchiveNotToBeHad(t *testing.T) {
	for _, status := range []int{401, 403, 500, 503} {
		s, g, w := archivedSite(t, "")
		s.status("/cla", status)
		s.again(w, g).expectLost(t, fmt.Sprint(status))
	}
	s, g, w := archivedSite(t, "")
	s.handle("/cla", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.example/cla", http.StatusFound)
	})
	s.again(w, g).expectLost(t, "another host")

	var parts []string
	for i := range 20 {
		s.put(fmt.Sprint("/p", i), urlset(attrs("capability", "changelist-archive")))
		parts = append(parts, named(fmt.Sprint("/p", i), "from", 5, "until", 6))
	}
	s.put("/cla", sitemapindex(attrs("capability", "changelist-archive"), parts...))
	s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 2), named("/rl1", "at", 2)))
	s.put("/rl1", resources(2, res("a")))
	w.MaxDocuments = 10
	if got := s.again(w, g); got.Lost == "" || !got.Complete {
		t.Errorf("too many parts: lost %q, error %v", got.Lost, got.err)
	}

	spent := errors.New("spent")
	w.Client = &http.Client{Transport: failingFor{s, "/cla", spent}}
	w.Ends = func(err error) bool { return errors.Is(err, spent) }
	if got := s.again(w, g); !errors.Is(got.err, spent) {
		t.Errorf("a limit of the caller: %v, error %v", got.lists, got.err)
	}
}

// failingFor fails for one path.
type failingFor struct {
	http.RoundTripper
	path string
	err  error
}

func (f failingFor) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == f.path {
		return nil, f.err
	}
	return f.RoundTripper.RoundTrip(r)
}

func (w *walked) expectLost(t *testing.T, name string) {
	t.Helper()
	w.expect(t, "/cl7 /rl*")
	if w.Lost == "" || !w.Complete {
		t.Errorf("%s: lost %q, complete %t, error %v", name, w.Lost, w.Complete, w.err)
	}
}

// No more of an archive is read once a walk may not read all the lists that it needs.
func TestArchivePartsOfTooManyLists(t *testing.T) {
	head := attrs("capability", "changelist-archive")
	s, g, w := archivedSite(t, "")
	var parts []string
	for p := range 4 {
		var lists []string
		for i := range 5 {
			lists = append(lists, entry(fmt.Sprintf("/x%d-%d", p, i), 6, 7))
		}
		s.put(fmt.Sprint("/p", p), urlset(head, lists...))
		parts = append(parts, named(fmt.Sprint("/p", p), "from", 6, "until", 7))
	}
	s.put("/cla", sitemapindex(head, parts...))
	w.MaxDocuments = 8
	s.again(w, g).expectLost(t, "too many lists")
	if asked := strings.Count(s.requests(), "/p"); asked != 2 {
		t.Errorf("%d parts were read, want 2", asked)
	}
}

// More lists than a walk may read are not begun: a baseline costs less.
func TestArchiveOfTooManyLists(t *testing.T) {
	s, g, w := archivedSite(t, urlset(attrs("capability", "changelist-archive"), entry("/cl4", 4, 5), entry("/cl5", 5, 6), entry("/cl6", 6, 7)))
	w.MaxDocuments = 3
	got := s.again(w, g)
	got.expect(t, "/cl7 /rl*")
	if got.Lost == "" || !got.Complete {
		t.Errorf("lost %q, complete %t", got.Lost, got.Complete)
	}
}

// A Source of 2013 may name its archive where its Change List belongs.
func TestArchiveInPlaceOfAChangeList(t *testing.T) {
	s := newSite(t)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cla", "changelist")))
	s.put("/rl", resources(4, res("a")))
	s.put("/cl3", changes(3, 4, change("three", 3.5)))
	s.put("/cl4", changes(4, 0, change("four", 4.5)))
	s.put("/cla", sitemapindex(attrs("capability", "changelist-archive"), named("/cl3", "from", 2, "until", 4), named("/cl4", "from", 4)))
	g := s.run(s.walk("/cap"))
	g.expect(t, "/cl4 /cl3 /rl*")
	if g.Gap != nil || !g.Complete {
		t.Errorf("gap %v, complete %t", g.Gap, g.Complete)
	}
}

// No archive is taken for the state of a Source, wherever it is named.
func TestArchiveIsNoResourceList(t *testing.T) {
	for _, c := range []string{"resourcelist-archive", "resourcedump-archive", "changelist-archive", "changedump-archive"} {
		for _, index := range []bool{false, true} {
			s := newSite(t)
			old := urlset(attrs("capability", c), entry("/old", 2, 3))
			if index {
				old = sitemapindex(attrs("capability", c), named("/old", "at", 2))
			}
			s.put("/archive", old)
			s.put("/old", resources(2, res("gone")))
			s.put("/rl", resources(3, res("here")))
			// As a capability of its own, and in place of the Resource List.
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/archive", c), lists("/rl", "resourcelist")))
			s.run(s.walk("/cap")).expect(t, "/rl*")
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/archive", "resourcelist")))
			if g := s.run(s.walk("/cap")); len(g.lists) > 0 || g.Complete || g.Gap == nil {
				t.Errorf("%s, index %t: %v was read, gap %v", c, index, g.lists, g.Gap)
			}
			// robots.txt names it.
			s.put("/cap", urlset(attrs("capability", "capabilitylist")))
			s.serve("/robots.txt", "text/plain", "Sitemap: {}/archive\nSitemap: {}/rl\n")
			if g := s.run(s.walk("")); strings.Join(g.lists, " ") != "/rl*" {
				t.Errorf("%s, index %t: from robots.txt %v was read, %v", c, index, g.lists, g.err)
			}
		}
	}
}
