package resourcesync

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/follow"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// parts serves a Resource List Index of three parts, without Change Lists. Those
// with a day have that as their at, here and in the index.
func parts(s *site, at float64) {
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist")))
	s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), ln("up", "{}/cap"),
		named("/p1", "at", at), named("/p2", "at", at), named("/p3", "at", at)))
	s.put("/p1", resources(at, res("a")))
	s.put("/p2", resources(at, res("b")))
	s.put("/p3", resources(at, res("c")))
}

func TestResourceListIndex(t *testing.T) {
	s := newSite(t)
	s.tags = true
	parts(s, 6)
	w := s.walk("/cap")
	first := s.run(w)
	first.expect(t, "/p1* /p2* /p3*")
	if !first.Complete || !first.At.Equal(day(5)) || !first.Mark.Equal(day(5)) {
		t.Errorf("%+v", first.Result)
	}
	expectRequests(t, s, "/cap /rl /p1 /p2 /p3")

	if again := s.again(w, first); !again.NotModified || again.Complete || !again.whole {
		t.Errorf("%+v", again.Result)
	}
	expectRequests(t, s, "/cap! /rl! /p1! /p2! /p3!")

	// One part has changed: all are read, since absence counts.
	s.put("/p2", resources(6, res("b"), res("d")))
	again := s.again(w, first)
	again.expect(t, "/p1* /p2* /p3*")
	if !again.Complete || again.NotModified {
		t.Errorf("%+v", again.Result)
	}
	expectRequests(t, s, "/cap! /rl! /p1! /p2 /rl /p1 /p2 /p3")
}

// TestPartsWithoutAt: that the parts belong to one snapshot shows only when the
// index is the same after they were read.
func TestPartsWithoutAt(t *testing.T) {
	s := newSite(t)
	parts(s, 0)
	got := s.run(s.walk("/cap"))
	got.expect(t, "/p1* /p2* /p3*")
	if !got.Complete || !got.At.Equal(day(5)) {
		t.Errorf("%+v", got.Result)
	}
	expectRequests(t, s, "/cap /rl /p1 /p2 /p3 /rl")

	s.handle("/p3", func(w http.ResponseWriter, _ *http.Request) {
		s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 6), named("/p1"), named("/p2"), named("/p3"), named("/p4")))
		_, _ = w.Write([]byte(strings.ReplaceAll(resources(0, res("c")), "{}", s.URL)))
	})
	got = s.run(s.walk("/cap"))
	// Only what has changed in what it names counts.
	if got.Complete || !got.reported(ruleStable) || got.Gap != nil || !got.whole {
		t.Errorf("%+v, %v", got.Result, got.problems)
	}
}

// TestPartsThatMove: while the parts of a Resource List are read, a deletion moves
// a resource into a part that was read already. The next walk reads all of them
// again, as do some more when that goes on.
func TestPartsThatMove(t *testing.T) {
	s := newSite(t)
	parts(s, 6)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
	s.put("/cl", changes(1, 0))
	whole := sitemapindex(attrs("capability", "resourcelist", "at", 7), named("/p1", "at", 7), named("/p2", "at", 7))
	s.handle("/p2", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.ReplaceAll(resources(7, res("c")), "{}", s.URL))) // b has gone to the first
	})
	w := s.walk("/cap")
	got := s.run(w)
	for range movedMost - 1 {
		got.expect(t, "/cl /p1* /p2* /p3*")
		if got.Complete || !got.reported(ruleStable) || !strings.Contains(got.Lost, "may be missing") {
			t.Errorf("%+v, %v", got.Result, got.problems)
		}
		got = s.again(w, got)
	}
	for range 2 { // it is as if they always did
		last := got
		got = s.again(w, got)
		if got.Baseline || got.Lost != "" {
			t.Errorf("%+v after %+v", got.Result, last.Result)
		}
	}

	// One that changes once is whole in the walk after.
	parts(s, 6)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
	s.handle("/p2", func(w http.ResponseWriter, _ *http.Request) {
		s.put("/rl", whole)
		s.put("/p1", resources(7, res("b")))
		_, _ = w.Write([]byte(strings.ReplaceAll(resources(7, res("c")), "{}", s.URL)))
	})
	got = s.again(w, s.run(w))
	got.expect(t, "/cl /p1* /p2*")
	if !got.Complete || got.Lost != "" || strings.Join(got.entries, " ") != "| b | c |" {
		t.Errorf("%+v with %q", got.Result, got.entries)
	}
	if got = s.again(w, got); got.Baseline {
		t.Errorf("%+v", got.Result)
	}
}

func TestComplete(t *testing.T) {
	full := make([]string, MaxEntries)
	for i := range full {
		full[i] = "<url><loc>urn:x</loc></url>"
	}
	for _, tt := range []struct {
		name     string
		serve    func(*site)
		complete bool
		rule     string
		gap      string
	}{
		{"whole", func(*site) {}, true, "", ""},
		{"a bad entry with a loc", func(s *site) {
			s.put("/p2", resources(6, `<url><loc>{}/r/b</loc><loc>{}/r/d</loc></url>`))
		}, true, "", ""},
		{"an entry without a loc", func(s *site) { s.put("/p2", resources(6, `<url><lastmod>2020-01-01</lastmod></url>`)) }, false, "", ""},
		{"an index entry without a loc", func(s *site) {
			s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), named("/p1", "at", 6), "<sitemap><rs:md at=\"2020-01-01T00:00:00Z\"/></sitemap>"))
		}, false, "", ""},
		{"another at than in the index", func(s *site) { s.put("/p2", resources(7, res("b"))) }, false, ruleStable, ""},
		{"an empty list", func(s *site) { s.put("/p2", resources(6)) }, true, ruleEmpty, ""},
		{"an index without lists", func(s *site) { s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5))) }, true, ruleEmpty, ""},
		{"50,000 entries and no index", func(s *site) { s.put("/rl", resources(5, full...)) }, false, ruleFull, ""},
		{"49,999 entries and no index", func(s *site) { s.put("/rl", resources(5, full[1:]...)) }, true, "", ""},
		{"50,000 entries in a part", func(s *site) { s.put("/p2", resources(6, full...)) }, true, "", ""},
		{"a part is missing", func(s *site) { s.remove("/p2") }, false, ruleMissing, "/p2"},
		{"a part is gone", func(s *site) { s.status("/p2", 410) }, false, ruleMissing, "/p2"},
		{"a part is a page", func(s *site) { s.put("/p2", "<html/>") }, false, ruleMissing, "/p2"},
		{"a part is cut off", func(s *site) { s.put("/p2", strings.TrimSuffix(resources(6, res("b")), "</urlset>")) }, false, ruleMissing, "/p2"},
		{"a part is the index by a redirect", func(s *site) { s.redirect("/p3", "/rl") }, false, ruleMissing, ""},
		{"a part is one before by a redirect", func(s *site) { s.redirect("/p3", "/p1") }, false, ruleMissing, ""},
		{"a part is one behind by a redirect", func(s *site) { s.redirect("/p1", "/p3") }, false, ruleMissing, ""},
		{"a part has moved", func(s *site) { s.redirect("/p3", "/p4"); s.put("/p4", resources(6, res("c"))) }, true, "", ""},
		{"the list of a second set is that of the first by a redirect", func(s *site) { s.redirect("/rl2", "/rl") }, false, ruleMissing, ""},
		{"a part is a Change List", func(s *site) { s.put("/p2", changes(1, 0)) }, false, ruleMissing, "/p2"},
		{"an index in an index", func(s *site) {
			s.put("/p2", sitemapindex(attrs("capability", "resourcelist", "at", 6), named("/p5", "at", 6)))
			s.put("/p5", resources(6, res("b")))
		}, true, ruleNested, ""},
		{"indexes without end", func(s *site) {
			for _, at := range []string{"2 5", "5 6", "6 7", "7 8", "8 9"} {
				from, to, _ := strings.Cut(at, " ")
				s.put("/p"+from, sitemapindex(attrs("capability", "resourcelist", "at", 6), named("/p"+to, "at", 6)))
			}
		}, false, ruleMissing, "/p7"},
		{"a second set without a Resource List", func(s *site) {
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist")))
			s.put("/cl", changes(1, 0))
		}, false, "", ""},
		{"a second set with archives only", func(s *site) {
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/archive", "resourcelist-archive")))
		}, false, ruleNames, ""},
		{"a second set with a dump that is missing", func(s *site) {
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/dump", "resourcedump")))
		}, false, ruleMissing, "/dump"},
		{"a second set with a dump of no package", func(s *site) {
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/dump", "resourcedump")))
			s.put("/dump", dumpOf(5))
		}, false, ruleEmpty, ""},
		{"a second Resource List", func(s *site) {
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/rl2", "resourcelist"), lists("/rl3", "resourcelist")))
		}, false, ruleNames, ""},
		{"a second Resource Dump beside a Resource List", func(s *site) {
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/rl2", "resourcelist"), lists("/d1", "resourcedump"), lists("/d2", "resourcedump")))
		}, true, ruleNames, ""},
		{"a second set that is missing", func(s *site) { s.remove("/cap2") }, false, ruleMissing, "/cap2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			parts(s, 6)
			s.put("/sd", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist"), lists("/cap2", "capabilitylist")))
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/rl2", "resourcelist")))
			s.put("/rl2", resources(9, res("x")))
			tt.serve(s)
			got := s.run(s.walk("/sd"))
			if got.err != nil || got.Complete != tt.complete || !got.Baseline {
				t.Errorf("complete %v, error %v", got.Complete, got.err)
			}
			if tt.rule != "" && !got.reported(tt.rule) {
				t.Errorf("%s is not reported: %v", tt.rule, got.problems)
			}
			switch {
			case tt.gap == "" && got.Gap != nil, tt.gap != "" && (got.Gap == nil || got.Gap.URL != s.URL+tt.gap):
				t.Errorf("gap %v", got.Gap)
			}
			if tt.gap == "" {
				return
			}
			if got.whole || !strings.Contains(strings.Join(got.entries, " "), "a |") {
				t.Errorf("%+v, entries %v", got.Result, got.entries)
			}
			w := s.walk("/sd")
			w.Accepted = []string{got.Gap.URL}
			if again := s.run(w); again.err != nil || again.Gap != nil || again.Complete || !again.whole {
				t.Errorf("accepted: %+v, error %v", again.Result, again.err)
			}
		})
	}
}

// TestRedirectAfterABreak: a part that leads to one that was read before the walk was broken off does
// not make the Resource List complete. One that leads elsewhere is read all the same.
func TestRedirectAfterABreak(t *testing.T) {
	for _, to := range []string{"/p1", "/p4"} {
		s := newSite(t)
		parts(s, 6)
		s.put("/p4", resources(6, res("c")))
		s.status("/p2", 503)
		w := s.walk("/cap")
		got := s.run(w)
		if got.err == nil {
			t.Fatal("it was not broken off")
		}
		s.put("/p2", resources(6, res("b")))
		s.redirect("/p3", to)
		w.State = stored(t, got.states[len(got.states)-1])
		rest := s.run(w)
		rest.expect(t, "/p2* /p3*")
		if rest.Complete || !rest.whole || !rest.reported(ruleMissing) {
			t.Errorf("%s: %+v, %v", to, rest.Result, rest.problems)
		}
	}
}

// TestSitemapOfTwoAddresses: many a site names its sitemap by a second address too, which leads
// to the first.
func TestSitemapOfTwoAddresses(t *testing.T) {
	for _, order := range []string{"Sitemap: /sitemap.xml\nSitemap: /index.xml", "Sitemap: /index.xml\nSitemap: /sitemap.xml"} {
		s := newSite(t)
		s.put("/robots.txt", order)
		s.redirect("/sitemap.xml", "/index.xml")
		s.put("/index.xml", sitemapindex("", named("/1")))
		s.put("/1", urlset("", res("a")))
		got := s.run(s.walk("/"))
		got.expect(t, "/1*")
		if !got.Complete || got.reported(ruleMissing) {
			t.Errorf("%+v, %v", got.Result, got.problems)
		}
	}
}

// TestSitemapOfSeveralMissing: of the sitemaps that robots.txt names one is not there. Its
// resources are not deleted, unless robots.txt names it no more.
func TestSitemapOfSeveralMissing(t *testing.T) {
	s := newSite(t)
	s.serve("/robots.txt", "text/plain", "Sitemap: /1\nSitemap: /2\nSitemap: /never")
	s.put("/1", urlset("", res("a")))
	s.put("/2", urlset("", res("b")))
	w := s.walk("/")
	first := s.run(w)
	if first.expect(t, "/1* /2*"); !first.Complete {
		t.Errorf("%+v", first.Result)
	}
	s.remove("/2")
	got := s.again(w, first)
	if got.expect(t, "/1*"); got.Complete || got.Gap == nil || got.Gap.URL != s.URL+"/2" {
		t.Errorf("%+v", got.Result)
	}
	accepted := *w
	accepted.Accepted = []string{s.URL + "/2"}
	if got = s.again(&accepted, first); got.Complete || !got.whole {
		t.Errorf("accepted: %+v", got.Result)
	}
	s.serve("/robots.txt", "text/plain", "Sitemap: /1\nSitemap: /never")
	if got = s.again(w, first); !got.Complete || !got.whole {
		t.Errorf("named no more: %+v", got.Result)
	}
}

// TestDescriptionOfAnotherRoute: while the Source Description at the well-known address is not
// there, what robots.txt names does not stand for all that the Source has.
func TestDescriptionOfAnotherRoute(t *testing.T) {
	s := newSite(t)
	classic(s)
	s.serve("/robots.txt", "text/plain", "Sitemap: /site")
	s.put("/site", urlset("", res("page")))
	w := s.walk("/")
	first := s.run(w)
	if !first.Complete {
		t.Fatalf("%+v", first.Result)
	}
	s.remove("/.well-known/resourcesync")
	w.Full = true
	if got := s.again(w, first); got.Complete || got.Gap == nil || !strings.HasSuffix(got.Gap.URL, "/.well-known/resourcesync") {
		t.Errorf("%+v, %v", got.Result, got.err)
	}
	w.Accepted = []string{s.URL + "/.well-known/resourcesync"}
	if got := s.again(w, first); !got.Complete || !got.whole {
		t.Errorf("accepted: %+v, %v", got.Result, got.err)
	}
}

// TestLaterErrors: what may pass ends the walk, which goes on from there.
func TestLaterErrors(t *testing.T) {
	for _, status := range []int{304, 401, 403, 429, 500, 503} {
		s := newSite(t)
		parts(s, 6)
		s.status("/p2", status)
		w := s.walk("/cap")
		got := s.run(w)
		var e *StatusError
		if !errors.As(got.err, &e) || e.Status != status || got.Gap != nil || got.whole {
			t.Fatalf("%d: %+v, error %v", status, got.Result, got.err)
		}
		parts(s, 6)
		w.State = stored(t, got.states[0])
		rest := s.run(w)
		rest.expect(t, "/p2* /p3*")
		if !rest.Complete || !rest.whole {
			t.Errorf("%d: %+v", status, rest.Result)
		}
	}
	s := newSite(t)
	parts(s, 6)
	s.handle("/p2", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9999")
		_, _ = w.Write([]byte(resources(6, res("b"))))
	})
	if got := s.run(s.walk("/cap")); got.err == nil || got.Gap != nil || errors.As(got.err, new(*DocumentError)) {
		t.Errorf("a short body: gap %v, error %v", got.Gap, got.err)
	}
}

// TestPartFailsAndAnotherChanges: where there are only Resource Lists, a part that fails does not
// hide that another one has changed.
func TestPartFailsAndAnotherChanges(t *testing.T) {
	for _, status := range []int{403, 500} {
		s := newSite(t)
		s.tags = true
		parts(s, 0)
		w := s.walk("/cap")
		first := s.run(w)
		s.failing("/p2", status)
		w.State = stored(t, first.State)
		s.requests()
		if got := s.run(w); follow.Status(got.err) != status || len(got.lists) > 0 {
			t.Errorf("nothing has changed: visited %v, error %v", got.lists, got.err)
		}
		s.put("/p3", resources(0, res("c"), res("d")))
		got := s.run(w)
		if follow.Status(got.err) != status || strings.Join(got.lists, " ") != "/p1*" {
			t.Fatalf("visited %v, error %v", got.lists, got.err)
		}
		w.State = stored(t, got.states[0])
		if got = s.run(w); got.err != nil || strings.Join(got.lists, " ") != "/p3*" || got.Gap == nil || got.Complete {
			t.Errorf("visited %v, error %v, %+v", got.lists, got.err, got.Result)
		}
	}
}

// TestEmptyLists: a Resource List or an index without an entry, in whichever set of resources, makes
// it doubtful what is absent.
func TestEmptyLists(t *testing.T) {
	for _, tt := range []struct {
		name, path, doc string
		empty           bool
	}{
		{"none", "", "", false},
		{"a part", "/p2", resources(6), true},
		{"an index", "/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5)), true},
		{"a Change List", "/cl2", changes(5, 0), false},
		{"a Change List Index", "/cl2", sitemapindex(attrs("capability", "changelist", "from", 5)), false},
	} {
		s := newSite(t)
		parts(s, 6)
		s.put("/sd", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist"), lists("/cap2", "capabilitylist")))
		s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/rl2", "resourcelist"), lists("/cl2", "changelist")))
		s.put("/rl2", resources(5, res("x")))
		s.put("/cl2", changes(5, 0, change("x", 6)))
		if tt.path != "" {
			s.put(tt.path, tt.doc)
		}
		if got := s.run(s.walk("/sd")); got.Empty != tt.empty || !got.Complete || got.err != nil {
			t.Errorf("%s: %+v, error %v", tt.name, got.Result, got.err)
		}
	}
}

// TestChangeListAsAPart: where the place of a Resource List has a Change List that was read in the
// same walk, or an index of some, the other parts are no complete enumeration.
func TestChangeListAsAPart(t *testing.T) {
	for _, wrong := range []string{"/cl", "/cl4", "/cl4#2"} {
		s := newSite(t)
		classic(s)
		s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), named("/p1", "at", 5), named(wrong, "at", 5)))
		s.put("/p1", resources(5, res("a")))
		w := s.walk("/cap")
		got := s.run(w)
		if got.expect(t, "/cl4 /cl3 /cl2 /p1*"); got.Complete || !got.reported(ruleMissing) {
			t.Errorf("%s: %+v, %v", wrong, got.Result, got.problems)
		}
		s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), named("/p1", "at", 5), named("/p1#2", "at", 5)))
		w.Full = true
		if got = s.again(w, got); !got.Complete {
			t.Errorf("a part that is named twice: %v, %+v", got.lists, got.Result)
		}
	}
}

// TestIndexAsAPart: where the place of a part has an index that names itself, or the one that names
// it, the parts are no complete enumeration, also after a walk that was broken off. Two sets may
// name one index.
func TestIndexAsAPart(t *testing.T) {
	for _, tt := range []struct{ at, names string }{{"/p2", "/p2"}, {"/p2", "/rl"}, {"/rl", "/rl"}} {
		s := newSite(t)
		parts(s, 6)
		s.put(tt.at, sitemapindex(attrs("capability", "resourcelist", "at", 5), ln("up", "{}/cap"), named("/p1", "at", 6), named(tt.names, "at", 6), named("/p3", "at", 6)))
		w := s.walk("/cap")
		got := s.run(w)
		if got.expect(t, "/p1* /p3*"); got.Complete || !got.whole || !got.reported(ruleMissing) {
			t.Errorf("%s in %s: %+v, %v", tt.names, tt.at, got.Result, got.problems)
		}
		w.State = stored(t, got.states[0])
		if got := s.run(w); got.err != nil || got.Complete {
			t.Errorf("%s in %s, broken off: %+v, error %v", tt.names, tt.at, got.Result, got.err)
		}
	}
	s := newSite(t)
	parts(s, 6)
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist"), lists("/cap2", "capabilitylist")))
	s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist")))
	if got := s.run(s.walk("/sd")); !got.Complete {
		t.Errorf("two sets with one index: %v, %+v", got.lists, got.Result)
	}
}

// TestLost: what is missing between what was read and what is to be had.
func TestLost(t *testing.T) {
	for _, tt := range []struct {
		name  string
		serve func(*site)
		lost  string // part of it
		lists string
		asked string
	}{
		{"the first lists rolled off behind the mark", func(s *site) {
			s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 7), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10)))
		}, "", "/cl4", "/cl /cl4"},
		{"and before it", func(s *site) {
			s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl5", "from", 12, "until", 13), named("/cl6", "from", 13)))
			s.put("/cl5", changes(12, 13, change("d", 12.5)))
			s.put("/cl6", changes(13, 0, change("e", 14)))
		}, "from 2020-01-11T00:00:00Z to 2020-01-12T00:00:00Z", "/cl6 /cl5 /rl*", "/cl /cap /cl /cl6 /cl5 /rl"},
		{"another Change List has them", func(s *site) {
			s.put("/cl", changes(12, 0))
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/other", "changelist")))
			s.put("/other", changes(10, 0, change("c", 11), change("d", 12)))
		}, "", "/other", "/cl /cap /other"},
		{"one list that begins later", func(s *site) { s.put("/cl", changes(12, 0, change("d", 13))) },
			"2020-01-12", "/cl /rl*", "/cl /cap /cl /rl"},
		{"a needed list is missing", func(s *site) { s.remove("/cl4") }, "/cl4", "/rl*", "/cl /cl4 /rl"},
		{"a needed list is a page", func(s *site) { s.put("/cl4", "<html/>") }, "an HTML page", "/rl*", "/cl /cl4 /rl"},
		{"a needed list is cut off", func(s *site) { s.put("/cl4", strings.TrimSuffix(changes(10, 0, change("c", 11)), "</urlset>")) },
			"cut off", "/cl4 /rl*", "/cl /cl4 /rl"},
		{"an entry of the index cannot be read", func(s *site) {
			s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 7), named("/cl3", "from", 7, "until", 10),
				"<sitemap><rs:md/></sitemap>", named("/cl4", "from", 10)))
		}, "cannot be read", "/cl4 /rl*", "/cl /cl4 /rl"},
		{"the Change List has moved", func(s *site) {
			s.remove("/cl")
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/moved", "changelist")))
			s.put("/moved", sitemapindex(attrs("capability", "changelist", "from", 7), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10)))
		}, "", "/cl4", "/cl /cap /moved /cl4"},
		{"the Change List is missing", func(s *site) { s.remove("/cl") }, "/cl", "/rl*", "/cl /cap /cl /rl"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			classic(s)
			w := s.walk("/cap")
			first := s.run(w)
			s.requests()
			tt.serve(s)
			got := s.again(w, first)
			got.expect(t, tt.lists)
			expectRequests(t, s, tt.asked)
			if tt.lost == "" != (got.Lost == "") || !strings.Contains(got.Lost, tt.lost) || got.Gap != nil || !got.whole {
				t.Errorf("lost %q, gap %v", got.Lost, got.Gap)
			}
			damaged := strings.Contains(tt.name, "page") || strings.Contains(tt.name, "cut off")
			if baseline := tt.lost != ""; got.Baseline != baseline || got.Complete != (baseline && !damaged) {
				t.Errorf("%+v", got.Result)
			}
			// Once a baseline was compared nothing is lost any more.
			if strings.Contains(tt.name, "later") || strings.Contains(tt.name, "before") {
				if again := s.again(w, got); again.Lost != "" || again.Baseline {
					t.Errorf("again: %+v", again.Result)
				}
			}
		})
	}
}

// TestLostWithoutBaseline: nothing makes up for a Change List that is missing.
func TestLostWithoutBaseline(t *testing.T) {
	s := newSite(t)
	classic(s)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist")))
	w := s.walk("/cap")
	first := s.run(w)
	first.expect(t, "/cl4 /cl3 /cl2 /cl1")
	if first.Complete || first.Baseline || !first.whole || !first.At.IsZero() {
		t.Errorf("%+v", first.Result)
	}
	s.remove("/cl4")
	got := s.again(w, first)
	if got.Gap == nil || got.Gap.URL != s.URL+"/cl4" || got.whole || got.err != nil {
		t.Errorf("%+v, error %v", got.Result, got.err)
	}
	w.Accepted = []string{s.URL + "/cl4"}
	if got = s.again(w, first); got.Gap != nil || !got.whole {
		t.Errorf("accepted: %+v", got.Result)
	}
	w.Accepted = nil
	s.put("/cl", changes(20, 0))
	got = s.again(w, first)
	if got.Lost == "" || !got.whole || got.Complete || got.Baseline {
		t.Errorf("%+v", got.Result)
	}
}

// TestRollingWindow: a list that drops what is older than a time of its own loses
// nothing as long as it is read often enough, however rare changes are.
func TestRollingWindow(t *testing.T) {
	s := newSite(t)
	list := func(from, written float64, entries ...string) {
		doc := strings.ReplaceAll(changes(from, 0, entries...), "{}", s.URL)
		s.handle("/cl", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Last-Modified", day(written).Format(http.TimeFormat))
			_, _ = w.Write([]byte(doc))
		})
	}
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist"), lists("/rl", "resourcelist")))
	s.put("/rl", resources(5))
	list(1, 8, change("a", 2))
	w := s.walk("/cap")
	got := s.run(w)
	for d := 9.0; d < 30; d++ {
		list(d-4, d)
		got = s.again(w, got)
		if got.Lost != "" || got.Baseline || !got.Mark.Equal(day(2)) {
			t.Fatalf("day %v: %+v", d, got.Result)
		}
	}
	list(31, 40)
	if got = s.again(w, got); got.Lost == "" || !got.Baseline {
		t.Errorf("%+v", got.Result)
	}
}

// TestClosedList: only the Capability List tells what comes after a closed list.
func TestClosedList(t *testing.T) {
	s := newSite(t)
	s.tags = true
	serve := func(name string) {
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists(name, "changelist"), lists("/rl", "resourcelist")))
	}
	serve("/cl1")
	s.put("/rl", resources(5, res("a")))
	s.put("/cl1", changes(1, 6, change("a", 2)))
	w := s.walk("/cap")
	first := s.run(w)
	first.expect(t, "/cl1 /rl*")
	s.requests()
	if again := s.again(w, first); !again.NotModified {
		t.Errorf("%+v", again.Result)
	}
	expectRequests(t, s, "/cap! /cl1!")

	serve("/cl2")
	s.put("/cl2", changes(6, 0, change("b", 7)))
	second := s.again(w, first)
	second.expect(t, "/cl2")
	expectRequests(t, s, "/cap /cl2")

	// It grows, closes, and is replaced between two walks.
	serve("/cl3")
	s.put("/cl2", changes(6, 9, change("b", 7), change("b", 8)))
	s.put("/cl3", changes(9, 0, change("b", 10)))
	third := s.again(w, second)
	third.expect(t, "/cl3 /cl2")
	if third.Lost != "" || third.Baseline || !third.Mark.Equal(day(10)) {
		t.Errorf("%+v", third.Result)
	}
	expectRequests(t, s, "/cl2 /cap /cl3 /cl2")
	if again := s.again(w, third); !again.NotModified {
		t.Errorf("%+v", again.Result)
	}
	expectRequests(t, s, "/cl3!")

	// A list is skipped: what it had is lost.
	serve("/cl5")
	s.put("/cl3", changes(9, 12))
	s.put("/cl5", changes(15, 0))
	fourth := s.again(w, third)
	fourth.expect(t, "/cl5 /cl3 /rl*")
	if !strings.Contains(fourth.Lost, "from 2020-01-12T00:00:00Z to 2020-01-15T00:00:00Z") {
		t.Errorf("lost %q", fourth.Lost)
	}
}

func TestAtBeforeChangeLists(t *testing.T) {
	s := newSite(t)
	classic(s)
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 7), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10)))
	if got := s.run(s.walk("/cap")); !got.reported(ruleReach) || got.Lost != "" {
		t.Errorf("%v, lost %q", got.problems, got.Lost)
	}
}

func TestManyParts(t *testing.T) {
	testenv.Heavy(t)
	s := newSite(t)
	s.tags = true
	var all []string
	for i := range keptValidators + 1 {
		at := "/part/" + time.Duration(i).String()
		all = append(all, named(at, "at", 5))
		s.put(at, resources(5, res(at)))
	}
	s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), all...))
	w := s.walk("/rl")
	first := s.finish(w, &walked{sparse: true})
	if len(first.lists) != len(all) || !first.Complete {
		t.Fatalf("%d lists, error %v", len(first.lists), first.err)
	}
	// Too many to ask for each: all is read again.
	w.State = stored(t, first.State)
	if again := s.finish(w, &walked{sparse: true}); again.NotModified || len(again.lists) != len(all) {
		t.Errorf("%+v", again.Result)
	}
}
