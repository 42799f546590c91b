package resourcesync

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestChangeListIndexes: in whatever way an index shows its lists, they are read
// from the newest back to the mark.
func TestChangeListIndexes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		index []string
		since float64
		want  string // numbers of lists
		rule  string
	}{
		{"in order", []string{named("/1", "from", 1, "until", 3), named("/2", "from", 3, "until", 5), named("/3", "from", 5)}, 4, "3 2", ""},
		{"at a border", []string{named("/1", "from", 1, "until", 3), named("/2", "from", 3, "until", 5), named("/3", "from", 5)}, 3, "3 2 1", ""},
		{"newest first", []string{named("/3", "from", 5), named("/2", "from", 3, "until", 5), named("/1", "from", 1, "until", 3)}, 4, "3 2", ruleOrder},
		{"in no order", []string{named("/2", "from", 3, "until", 5), named("/3", "from", 5), named("/1", "from", 1, "until", 3)}, 4, "3 2", ruleOrder},
		{"no until", []string{named("/1", "from", 1), named("/2", "from", 3), named("/3", "from", 5)}, 4, "3 2", ""},
		{"no from", []string{named("/1", "until", 3), named("/2", "until", 5), named("/3")}, 4, "3 2", ruleFrom},
		{"no from, newest first", []string{named("/3"), named("/2", "until", 5), named("/1", "until", 3)}, 4, "3 2", ruleFrom},
		{"no times", []string{named("/1"), named("/2"), named("/3")}, 4, "3 2 1", ruleFrom},
		{"one without times", []string{named("/1", "from", 1, "until", 3), named("/2"), named("/3", "from", 5)}, 4, "3 2", ruleFrom},
		{"a hole", []string{named("/1", "from", 1, "until", 3), named("/3", "from", 4)}, 3.5, "3", ruleHole},
		{"all are closed and old", []string{named("/1", "from", 1, "until", 3), named("/2", "from", 3, "until", 4)}, 4.5, "", ""},
		{"the same list twice", []string{named("/1", "from", 1, "until", 3), named("/2", "from", 3, "until", 5), named("/2#x", "from", 5, "until", 6)}, 1, "2#x 1", ""},
		{"a redirect to a list", []string{named("/2", "from", 3, "until", 5), named("/moved", "from", 5, "until", 6)}, 1, "moved", ""},
		{"of one second", []string{named("/3", "from", 5), named("/2", "from", 5, "until", 5), named("/1", "from", 1, "until", 5)}, 5.5, "3", ruleOrder},
		{"of one second without until", []string{named("/1", "from", 1), named("/2", "from", 5), named("/3", "from", 5)}, 5.5, "3 2", ""},
		{"dates", []string{named("/1", "from", "2020-01-01", "until", "2020-01-03"), named("/2", "from", "2020-01-04", "until", "2020-01-04"), named("/3", "from", "2020-01-05")}, 3.5, "3 2 1", ruleHole},
		{"dates without until", []string{named("/1", "from", "2020-01-01"), named("/2", "from", "2020-01-03"), named("/3", "from", "2020-01-05")}, 3.5, "3 2 1", ruleUTC},
		{"dates, of a day later", []string{named("/1", "from", "2020-01-01", "until", "2020-01-03"), named("/2", "from", "2020-01-04", "until", "2020-01-04"), named("/3", "from", "2020-01-05")}, 4.5, "3 2", ruleUTC},
		{"an index in it", []string{named("/old", "from", 1, "until", 5), named("/3", "from", 5)}, 2, "3 2 1", ruleNested},
		{"the newest in an index", []string{named("/1", "from", 1, "until", 3), named("/new", "from", 3)}, 4, "3 2", ruleNested},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
			s.put("/rl", resources(tt.since))
			s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), tt.index...))
			s.put("/1", changes(1, 3, change("a", 2)))
			s.put("/2", changes(3, 5, change("b", 4)))
			s.put("/3", changes(5, 0, change("c", 6)))
			s.put("/old", sitemapindex(attrs("capability", "changelist", "from", 1), named("/1", "from", 1, "until", 3), named("/2", "from", 3)))
			s.put("/new", sitemapindex(attrs("capability", "changelist", "from", 3), named("/2", "from", 3, "until", 5), named("/3", "from", 5)))
			s.redirect("/moved", "/2")
			got := s.run(s.walk("/cap"))
			var visited []string
			for _, l := range got.lists[:len(got.lists)-1] {
				visited = append(visited, strings.TrimPrefix(l, "/"))
			}
			if list := strings.Join(visited, " "); list != tt.want || got.err != nil || got.Lost != "" {
				t.Errorf("visited %s, want %s; error %v, lost %q", list, tt.want, got.err, got.Lost)
			}
			if tt.rule != "" && !got.reported(tt.rule) || tt.rule == "" && (got.reported(ruleOrder) || got.reported(ruleNested)) {
				t.Errorf("problems %v, want %q", got.problems, tt.rule)
			}
		})
	}
}

// TestChangeListRedirected: one that leads to a document which is no Change List of its own is
// missing, and is asked for again.
func TestChangeListRedirected(t *testing.T) {
	for _, to := range []string{"/cl", "/rl", "/latest"} {
		s := newSite(t)
		classic(s)
		w := s.walk("/cap")
		first := s.run(w)
		s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 12),
			named("/cl5", "from", 12, "until", 14), named("/cl6", "from", 14)))
		s.put("/cl4", changes(10, 12, change("c", 11)))
		s.put("/latest", changes(14, 0, change("f", 15)))
		s.redirect("/cl5", to)
		s.redirect("/cl6", "/latest")
		got := s.again(w, first)
		got.expect(t, "/cl6 /cl4 /rl*")
		if !strings.Contains(got.Lost, "/cl5") || got.Complete {
			t.Errorf("%s: %+v", to, got.Result)
		}
		s.put("/cl5", changes(12, 14, change("d", 13)))
		got = s.again(w, got)
		got.expect(t, "/cl6 /cl5 /cl4 /cl3 /rl*")
		if got.Lost != "" || !got.Complete {
			t.Errorf("%s: %+v", to, got.Result)
		}
	}
}

// TestMovedIndex: a Change List Index that has moved, and begins later than the mark, is read at
// its new address, to which the old one leads.
func TestMovedIndex(t *testing.T) {
	s := newSite(t)
	classic(s)
	w := s.walk("/cap")
	first := s.run(w)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/new", "changelist")))
	s.redirect("/cl", "/new")
	s.put("/new", sitemapindex(attrs("capability", "changelist", "from", 12), named("/cl5", "from", 12)))
	s.put("/cl5", changes(12, 0, change("d", 13)))
	got := s.again(w, first)
	got.expect(t, "/cl5 /rl*")
	if got.Lost == "" || !got.Mark.Equal(day(13)) {
		t.Errorf("%+v", got.Result)
	}
}

// TestStaleChangeList: a Change List that its index calls closed, and of which a cache has an
// earlier copy, is read again by the next walk, although the index has not changed and a newer
// list was read.
func TestStaleChangeList(t *testing.T) {
	for _, grown := range []bool{true, false} { // the copy has changes that the last walk has not read
		s := newSite(t)
		s.tags = true
		classic(s)
		w := s.walk("/cap")
		first := s.run(w)
		if grown {
			s.put("/cl4", changes(10, 0, change("c", 11), change("d", 12)))
		}
		old := s.pages["/cl4"]
		s.handle("/cl4", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", day(12.5).Format(http.TimeFormat))
			old(w, r)
		})
		s.put("/cl5", changes(13, 0, change("f", 14)))
		s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 13), named("/cl5", "from", 13)))
		got := s.again(w, first)
		got.expect(t, "/cl5 /cl4")
		if !got.reported(ruleIndexUntil) || got.Lost != "" || !got.Mark.Equal(day(14)) {
			t.Errorf("%+v, %v", got.Result, got.problems)
		}
		s.put("/cl4", changes(10, 13, change("c", 11), change("d", 12), change("e", 12.9)))
		got = s.again(w, got)
		got.expect(t, "/cl5 /cl4")
		if entries := strings.Join(got.entries, " "); entries != "f | c d e |" || got.reported(ruleIndexUntil) || got.Baseline {
			t.Errorf("entries %s, %+v", entries, got.Result)
		}
		s.requests()
		if end := s.again(w, got); !end.NotModified {
			t.Errorf("%+v", end.Result)
		}
		expectRequests(t, s, "/cl! /cl5!")
	}
}

// TestUntilBeforeFrom: an until that cannot be true does not keep a Change List that has grown
// since it was read from being read to its end.
func TestUntilBeforeFrom(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	w := s.walk("/cap")
	first := s.run(w)
	s.put("/cl4", changes(10, 3, change("c", 11), change("d", 12)))
	s.put("/cl5", changes(13, 0, change("f", 14)))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 3), named("/cl5", "from", 13)))
	got := s.again(w, first)
	got.expect(t, "/cl5 /cl4")
	if !got.reported(ruleUntil) || got.Lost != "" || !got.Mark.Equal(day(14)) {
		t.Errorf("%+v, %v", got.Result, got.problems)
	}
	s.requests()
	if end := s.again(w, got); !end.NotModified {
		t.Errorf("%+v", end.Result)
	}
	expectRequests(t, s, "/cl! /cl5!")
}

// TestClosedListIsGone: a closed Change List that is gone, while its index goes on to name it, costs
// one baseline, and a second one if the first is older than the list.
func TestClosedListIsGone(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 13.5)))
	s.remove("/cl4")
	w := s.walk("/cap")
	got := s.run(w)
	got.expect(t, "/cl3 /rl*")
	if !strings.Contains(got.Lost, "/cl4") {
		t.Errorf("%+v", got.Result)
	}
	quiet := func() {
		t.Helper()
		got = s.again(w, got)
		if got.expect(t, ""); !got.reported(ruleMissing) || got.Baseline || got.Lost != "" {
			t.Errorf("%+v, %v", got.Result, got.problems)
		}
	}
	quiet()
	quiet()
	s.put("/rl", resources(13.6, res("a"), res("d")))
	got = s.again(w, got)
	if got.expect(t, "/rl*"); !got.Complete {
		t.Errorf("%+v", got.Result)
	}
	quiet()
	s.put("/cl4", changes(10, 13.5, change("d", 11)))
	s.again(w, got).expect(t, "/cl4")
	// The next one is gone as well.
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl4", "from", 10, "until", 13.5), named("/cl5", "from", 13.5, "until", "2020-01-15")))
	got = s.again(w, got)
	if got.expect(t, "/cl4 /rl*"); !strings.Contains(got.Lost, "/cl5") {
		t.Errorf("%+v", got.Result)
	}
	s.put("/rl", resources(15.5, res("a"), res("d"))) // within the day to whose end the list reaches
	for range 2 {
		got = s.again(w, got)
		got.expect(t, "/rl*")
	}
	s.put("/rl", resources(16, res("a"), res("d")))
	got = s.again(w, got)
	got.expect(t, "/rl*")
	quiet()
}

// TestReportedOnce: what is wrong with a document is said once, however
// often it is opened.
func TestReportedOnce(t *testing.T) {
	s := newSite(t)
	classic(s)
	s.put("/rl", urlset(attrs("capability", "resourcelist"), ln("up", "{}/cap"), res("a")))
	got := s.run(s.walk("/cap"))
	n := 0
	for _, p := range got.problems {
		if p.Rule == ruleAt {
			n++
		}
	}
	if n != 1 || !got.At.IsZero() || !got.Complete {
		t.Errorf("%d problems, %+v", n, got.Result)
	}
	// Without an at all Change Lists are needed.
	if len(got.lists) != 5 {
		t.Errorf("visited %v", got.lists)
	}
}

func zipped(doc string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, doc)
	_ = z.Close()
	return b.Bytes()
}

// TestGzipFiles: sitemaps are often stored packed, and no header field says so.
func TestGzipFiles(t *testing.T) {
	testenv.Heavy(t)
	list := func(s *site) string { return strings.ReplaceAll(resources(5, res("a"), res("b")), "{}", s.URL) }
	noise := make([]byte, 20_000)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = "abcdefghijklmnopqrstuvwxyz234567"[random.IntN(32)]
	}
	for _, tt := range []struct {
		name string
		body func(s *site) []byte
		want string // part of the gap; "" when it is read
	}{
		{"whole", func(s *site) []byte { return zipped(list(s)) }, ""},
		{"in two members", func(s *site) []byte {
			doc := list(s)
			return append(zipped(doc[:100]), zipped(doc[100:])...)
		}, ""},
		{"cut off", func(s *site) []byte {
			b := zipped(list(s) + "<!--" + string(noise) + "-->")
			return b[:len(b)-2000]
		}, "cannot be unpacked"},
		{"cut off in its header", func(s *site) []byte { return zipped(list(s))[:3] }, "cannot be unpacked"},
		{"damaged", func(s *site) []byte {
			b := zipped(list(s) + "<!--" + string(noise) + "-->")
			b[len(b)-6] ^= 1 // of the checksum
			return b
		}, "cannot be unpacked"},
		{"rubbish behind", func(s *site) []byte { return append(zipped(list(s)), "rubbish"...) }, "cannot be unpacked"},
		{"a bomb", func(s *site) []byte {
			return zipped(strings.TrimSuffix(list(s), "</urlset>") + strings.Repeat(" ", 30<<20) + "</urlset>")
		}, "more than 100 times"},
		{"within the ratio", func(s *site) []byte {
			return zipped(strings.TrimSuffix(list(s), "</urlset>") + strings.Repeat(" ", 1<<20-1000) + "</urlset>")
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl.xml.gz", "resourcelist")))
			body := tt.body(s)
			s.handle("/rl.xml.gz", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/octet-stream")
				_, _ = w.Write(body)
			})
			got := s.run(s.walk("/cap"))
			if got.err != nil {
				t.Fatal(got.err)
			}
			if tt.want == "" {
				if !got.Complete || strings.Join(got.entries, "") != "ab|" {
					t.Errorf("%+v, %v", got.Result, got.entries)
				}
				return
			}
			if got.Gap == nil || !strings.Contains(got.Gap.Reason, tt.want) || got.Complete {
				t.Errorf("%+v, gap %v", got.Result, got.Gap)
			}
		})
	}
	t.Run("a broken connection", func(t *testing.T) {
		s := newSite(t)
		body := zipped(list(s) + "<!--" + string(noise) + "-->")
		s.handle("/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "999999")
			_, _ = w.Write(body[:len(body)-2000])
		})
		got := s.run(s.walk("/"))
		if got.Gap != nil || !errors.Is(got.err, io.ErrUnexpectedEOF) || errors.As(got.err, new(*DocumentError)) {
			t.Errorf("gap %v, error %v", got.Gap, got.err)
		}
	})
}

// TestLookAhead: the next list is asked for while the one before is read.
func TestLookAhead(t *testing.T) {
	s := newSite(t)
	classic(s)
	asked := make(chan struct{})
	doc := strings.ReplaceAll(changes(7, 10, change("a", 8)), "{}", s.URL)
	s.handle("/cl3", func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		_, _ = io.WriteString(w, doc)
	})
	_, err := visitAll(t.Context(), s.walk("/cap"), func(_ context.Context, l *List) error {
		if strings.HasSuffix(l.URL, "/cl4") {
			<-asked
		}
		for {
			if _, err := l.next(); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	if n := strings.Count(s.requests(), "/cl3"); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestList: what a list says of itself.
func TestList(t *testing.T) {
	s := newSite(t)
	classic(s)
	s.handle("/cl3", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", day(9.5).Format(http.TimeFormat))
		doc := changes(7, 10, change("a", 8), "<url><rs:md change=\"updated\"/></url>", change("b", 9))
		_, _ = io.WriteString(w, strings.ReplaceAll(doc, "{}", s.URL))
	})
	_, err := visitAll(t.Context(), s.walk("/cap"), func(_ context.Context, l *List) error {
		path := strings.TrimPrefix(l.URL, s.URL)
		if l.Lists.CapabilityList != s.URL+"/cap" || l.Lists.ChangeList != s.URL+"/cl" || l.Baseline != (path == "/rl") {
			t.Errorf("%s: %+v", path, l.Lists)
		}
		if path == "/cl3" {
			if l.Identity != s.URL+"/cl3|2020-01-07T00:00:00Z" || l.Head().Capability != ChangeList || !l.Date.Equal(day(9.5)) ||
				l.Late(day(9)) || !l.Late(day(10)) || l.Index != 1 || l.Position() != 0 {
				t.Errorf("%+v", l)
			}
		}
		for {
			_, err := l.next()
			if err == io.EOF {
				break
			}
			if path == "/cl3" && !bytes.Contains(l.Input(), []byte("<url>")) {
				t.Errorf("input %s", l.Input())
			}
		}
		if path == "/cl3" && l.Position() != 3 {
			t.Errorf("%d entries", l.Position())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAcceptedChangeList: what is known to be gone is no gap, and is read when it is there again.
func TestAcceptedChangeList(t *testing.T) {
	s := newSite(t)
	classic(s)
	w := s.walk("/cap")
	w.Accepted = []string{s.URL + "/cl3"}
	s.run(w).expect(t, "/cl4 /cl3 /cl2 /rl*")
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist")))
	s.remove("/cl3")
	got := s.run(w)
	if got.expect(t, "/cl4 /cl2 /cl1"); got.Lost != "" || got.Gap != nil {
		t.Errorf("%+v", got.Result)
	}
}

// TestStateOfAnotherURL: what is known of another address is of no use.
func TestStateOfAnotherURL(t *testing.T) {
	s := newSite(t)
	classic(s)
	first := s.run(s.walk("/cap"))
	s.requests()
	got := s.again(s.walk("/rl"), first)
	got.expect(t, "/cl4 /cl3 /cl2 /rl*")
	if got.State.m.URL != s.URL+"/rl" {
		t.Errorf("%+v", got.State.m)
	}
}

// TestRemembered: what was remembered must not keep a walk from finding what has
// changed.
func TestRemembered(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	w := s.walk("/")
	first := s.run(w)
	before := mustJSON(t, first.State)

	// The Source moves: its description names another Capability List.
	s.put("/.well-known/resourcesync", urlset(attrs("capability", "description"), lists("/new", "capabilitylist")))
	s.put("/new", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
	w.State = first.State
	got := s.run(w)
	got.expect(t, "/cl4 /cl3 /cl2 /rl*")
	if !got.Complete {
		t.Errorf("%+v", got.Result)
	}
	if after := mustJSON(t, first.State); after != before {
		t.Errorf("the state that the walk began with was\n%s\nand is\n%s", before, after)
	}
	// The description goes.
	s.remove("/.well-known/resourcesync")
	s.put("/robots.txt", "Sitemap: /rl")
	s.put("/rl", urlset(attrs("capability", "resourcelist", "at", 12), ln("up", "{}/new"), res("a")))
	if again := s.again(w, got); again.err != nil || !again.whole || len(again.State.m.Descriptions) != 0 || again.Baseline {
		t.Errorf("%+v, error %v", again.Result, again.err)
	}
}

// TestHostileIndexes: no document keeps a walk busy without end.
func TestHostileIndexes(t *testing.T) {
	s := newSite(t)
	var missing, deep []string
	for i := range 40 {
		missing = append(missing, named(fmt.Sprintf("/missing%d", i), "from", 10))
		deep = append(deep, named(fmt.Sprintf("/deep%d", i), "at", 5))
		s.put(fmt.Sprintf("/deep%d", i), sitemapindex(attrs("capability", "resourcelist", "at", 5)))
	}
	classic(s)
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), missing...))
	w := s.walk("/cap")
	got := s.run(w)
	if n := strings.Count(got.Lost, "is missing ("); n != keptLost || !strings.HasSuffix(got.Lost, "; and 30 times more") {
		t.Errorf("lost %q", got.Lost)
	}
	w.MaxDocuments = 20
	if got = s.run(w); !errors.Is(got.err, ErrTooManyDocuments) {
		t.Errorf("40 missing lists: %v", got.err)
	}
	s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), deep...))
	w = s.walk("/rl")
	if got = s.run(w); got.err != nil || !got.Complete {
		t.Errorf("40 empty indexes: %+v, error %v", got.Result, got.err)
	}
	w.MaxDocuments = 20
	if got = s.run(w); !errors.Is(got.err, ErrTooManyDocuments) {
		t.Errorf("40 empty indexes: %v", got.err)
	}
	s.put("/rl", sitemapindex(attrs("capability", "resourcelist", "at", 5), strings.Repeat("<sitemap><loc>{}/x</loc></sitemap>", MaxEntries+1)))
	if got = s.run(s.walk("/rl")); got.Gap == nil || !strings.Contains(got.Gap.Reason, "more than 50000 entries") {
		t.Errorf("gap %v, error %v", got.Gap, got.err)
	}
}

// TestManyListsOfIndexes: indexes in an index that name more lists than any walk can read end
// the walk before their lists fill the memory.
func TestManyListsOfIndexes(t *testing.T) {
	testenv.Heavy(t)
	s := newSite(t)
	var parts, closed []string
	for i := range MaxEntries {
		closed = append(closed, fmt.Sprintf(`<sitemap><loc>{}/%d</loc><rs:md from="2020-01-01T00:00:00Z" until="2020-01-02T00:00:00Z"/></sitemap>`, i))
	}
	s.put("/part0", sitemapindex(attrs("capability", "changelist", "from", 1), closed...))
	for i := range 200 {
		part := fmt.Sprintf("/part%d", i)
		parts = append(parts, named(part))
		s.handle(part, s.pages["/part0"])
	}
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), parts...))
	got := s.run(s.walk("/cl"))
	if n := len(strings.Fields(s.requests())); !errors.Is(got.err, ErrTooManyDocuments) || !strings.Contains(got.err.Error(), "name more than 200000 lists") || n > 7 {
		t.Errorf("%d requests, error %v", n, got.err)
	}
}

// TestListOlderThanTheLoss: changes that are in no Change List any more, and that the Resource List
// does not show yet, are made up for by the first Resource List that does.
func TestListOlderThanTheLoss(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first bool // it is so in the first walk
		gone  bool // a list of an index is gone
	}{{"the Change List begins anew", false, false}, {"it begins late", true, false}, {"a list is gone", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.tags = true
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
			s.put("/rl", resources(5, res("a"), res("b")))
			s.put("/cl", changes(5, 0, change("a", 6)))
			w := s.walk("/cap")
			got := &walked{}
			if !tt.first {
				got = s.run(w)
			}
			if s.put("/cl", changes(10, 0, change("c", 11))); tt.gone {
				s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 5), named("/cl1", "from", 5, "until", 10), named("/cl2", "from", 10)))
				s.put("/cl2", changes(10, 0, change("c", 11)))
			}
			if tt.first {
				got = s.run(w)
			} else {
				got = s.again(w, got)
			}
			if !got.Baseline || !tt.first && got.Lost == "" {
				t.Errorf("%+v", got.Result)
			}
			s.put("/rl", resources(7, res("a"), res("b"), res("d")))
			for _, want := range []string{"/rl", "/rl!"} {
				s.requests()
				if got = s.again(w, got); !got.NotModified {
					t.Errorf("%+v", got.Result)
				}
				if requests := s.requests(); !strings.Contains(requests+" ", want+" ") {
					t.Errorf("asked for %s, want also %s", requests, want)
				}
			}
			down := *w
			down.Client = &http.Client{Transport: failingFor{s, "/rl", errors.New("away")}}
			if got = s.again(&down, got); !got.NotModified || !got.reported(ruleMissing) {
				t.Errorf("while the list is away: %+v, %v", got.Result, got.problems)
			}
			s.put("/rl", resources(12, res("a"), res("c"), res("d")))
			got = s.again(w, got)
			if !got.Baseline || !got.Complete || !strings.HasSuffix(strings.Join(got.entries, " "), "a c d |") {
				t.Errorf("visited %v, %v: %+v", got.lists, got.entries, got.Result)
			}
			s.requests()
			if got = s.again(w, got); !got.NotModified || strings.Contains(s.requests(), "/rl") {
				t.Errorf("%+v", got.Result)
			}
		})
	}
}

// TestStaleIndex: a Change List that begins anew, at a URL under which an earlier copy of the index
// has the one before it, shows that this copy lacks a list: that is read when the index names it.
func TestStaleIndex(t *testing.T) {
	for _, changed := range []bool{false, true} { // the copy is not the one that the last walk has read
		s := newSite(t)
		s.tags = true
		classic(s)
		w := s.walk("/cap")
		first := s.run(w)
		if changed {
			s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10)))
			index := s.pages["/cl"]
			s.handle("/cl", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", day(12.5).Format(http.TimeFormat))
				index(w, r)
			})
		}
		s.put("/cl4", changes(13, 0, change("f", 14)))
		got := s.again(w, first)
		got.expect(t, "/cl4")
		s.put("/cl4a", changes(10, 13, change("c", 11), change("d", 12)))
		s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4a", "from", 10, "until", 13), named("/cl4", "from", 13)))
		got = s.again(w, got)
		got.expect(t, "/cl4 /cl4a")
		s.requests()
		if got = s.again(w, got); !got.NotModified {
			t.Errorf("%+v", got.Result)
		}
		expectRequests(t, s, "/cl! /cl4!")
	}
}
