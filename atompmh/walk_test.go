package atompmh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// chain serves four documents: /feed, /3, /2, /1.
func chain(s *site) {
	s.put("/feed", page{updated: 20, prev: "/3", entries: []string{alive("a", 20), alive("b", 16)}}.String())
	s.put("/3", page{updated: 15, prev: "/2", entries: []string{alive("c", 15), gone("d", 11)}}.String())
	s.put("/2", page{updated: 10, prev: "/1", entries: []string{alive("d", 9), alive("e", 6)}}.String())
	s.put("/1", page{updated: 5, entries: []string{alive("f", 5), alive("a", 1)}}.String())
}

func TestFirstWalk(t *testing.T) {
	s := newSite(t)
	chain(s)
	got := s.run(s.walk())
	got.expect(t, "/feed /3 /2 /1", "aa ab ac dd ad ae af aa")
	if !got.Oldest || got.Complete || got.Lost || got.Gap != nil || got.Documents != 4 || got.FeedID != "urn:x:feed" || !got.Target.Equal(day(20)) {
		t.Errorf("%+v", got.Result)
	}
	if len(got.problems) != 0 {
		t.Error(got.problems)
	}
	if s.requests() != "/feed /3 /2 /1" {
		t.Error("asked otherwise")
	}
	want := map[string]time.Time{s.URL + "/3": day(15), s.URL + "/2": day(10), s.URL + "/1": day(5)}
	if !reflect.DeepEqual(got.Heads, want) {
		t.Errorf("heads %v", got.Heads)
	}
}

func TestA2_StopRule(t *testing.T) {
	tests := []struct {
		name    string
		mark    float64
		overlap time.Duration
		heads   map[string]float64
		full    bool
		change  func(*site)
		paths   string
		asked   string
		s2      bool
	}{
		{name: "below the mark", mark: 17, paths: "/feed", asked: "/feed /3"},
		{name: "head known from the last walk", mark: 17, heads: map[string]float64{"/3": 15}, paths: "/feed", asked: "/feed"},
		{name: "known head is later", mark: 17, heads: map[string]float64{"/3": 16.5}, paths: "/feed", asked: "/feed /3"},
		{name: "the mark itself does not stop it", mark: 16, paths: "/feed /3", asked: "/feed /3 /2"},
		{name: "overlap", mark: 17, overlap: 24 * time.Hour, paths: "/feed /3", asked: "/feed /3 /2"},
		{name: "overlap passed", mark: 17, overlap: 23 * time.Hour, paths: "/feed", asked: "/feed /3"},
		{name: "two documents", mark: 12, paths: "/feed /3", asked: "/feed /3 /2"},
		{name: "full", mark: 17, full: true, paths: "/feed /3 /2 /1", asked: "/feed /3 /2 /1"},
		{name: "S2 broken", mark: 17, paths: "/feed /3", asked: "/feed /3 /2", s2: true, change: func(s *site) {
			s.put("/3", page{updated: 18, prev: "/2", entries: []string{alive("x", 18), alive("y", 12)}}.String())
		}},
		{name: "head equal to the smallest stamp", mark: 17, paths: "/feed", asked: "/feed /3", change: func(s *site) {
			s.put("/3", page{updated: 16, prev: "/2", entries: []string{alive("x", 16)}}.String())
		}},
		{name: "head without updated", mark: 17, paths: "/feed /3", asked: "/feed /3 /2", change: func(s *site) {
			s.put("/3", page{prev: "/2", entries: []string{alive("x", 12)}}.String())
		}},
		{name: "empty document gives no bound", mark: 30, paths: "/feed /3", asked: "/feed /3 /2", change: func(s *site) {
			s.put("/feed", page{updated: 20, prev: "/3"}.String())
		}},
		{name: "bad entries give no bound", mark: 30, paths: "/feed /3", asked: "/feed /3 /2", change: func(s *site) {
			s.put("/feed", page{updated: 20, prev: "/3", entries: []string{undefined("x", 1)}}.String())
		}},
		{name: "any order", mark: 17, paths: "/feed", asked: "/feed /3", change: func(s *site) {
			s.put("/feed", page{updated: 20, prev: "/3", entries: []string{alive("b", 16), alive("a", 20)}}.String())
		}},
		{name: "a deletion is a bound", mark: 17, paths: "/feed", asked: "/feed /3", change: func(s *site) {
			s.put("/feed", page{updated: 20, prev: "/3", entries: []string{alive("a", 20), gone("b", 16)}}.String())
		}},
		{name: "prev-archive after the entries", mark: 17, paths: "/feed", asked: "/feed /3", change: func(s *site) {
			s.put("/feed", page{updated: 20, entries: []string{alive("b", 16)}, tail: `<link rel="prev-archive" href="3"/>`}.String())
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			chain(s)
			if tt.change != nil {
				tt.change(s)
			}
			w := s.walk()
			w.Mark, w.Overlap, w.Full = day(tt.mark), tt.overlap, tt.full
			w.Heads = map[string]time.Time{}
			for path, d := range tt.heads {
				w.Heads[s.URL+path] = day(d)
			}
			got := s.run(w)
			got.expect(t, tt.paths, "*")
			if asked := s.requests(); asked != tt.asked {
				t.Errorf("asked for %s, want %s", asked, tt.asked)
			}
			if got.reported(ruleS2) != tt.s2 {
				t.Errorf("problems %v", got.problems)
			}
			if got.Oldest != tt.full || got.Lost || got.Gap != nil {
				t.Errorf("%+v", got.Result)
			}
		})
	}
}

func TestA2_LostArchives(t *testing.T) {
	for _, tt := range []struct {
		mark float64
		lost bool
	}{{0, false}, {15.5, true}, {16, false}, {17, false}} {
		s := newSite(t)
		s.put("/feed", page{updated: 20, entries: []string{alive("a", 20), alive("b", 16)}}.String())
		w := s.walk()
		if tt.mark != 0 {
			w.Mark = day(tt.mark)
		}
		got := s.run(w)
		got.expect(t, "/feed", "*")
		if got.Lost != tt.lost || !got.Oldest || !got.Target.Equal(day(20)) {
			t.Errorf("mark %v: %+v", tt.mark, got.Result)
		}
	}
}

func TestA3_Target(t *testing.T) {
	dated := func(date time.Time, doc page) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Date"] = nil
			if !date.IsZero() {
				w.Header().Set("Date", date.Format(http.TimeFormat))
			}
			_, _ = io.WriteString(w, doc.String())
		}
	}
	second := day(20).Add(500 * time.Millisecond)
	tests := []struct {
		name   string
		date   time.Time
		now    time.Time
		doc    page
		target time.Time
	}{
		{"largest, not first or last", day(30), day(1), page{updated: 20, entries: []string{alive("a", 12), alive("b", 20), alive("c", 13)}}, day(20)},
		{"later than the answer's date", day(19), day(99), page{updated: 20, entries: []string{alive("a", 20), alive("b", 18)}}, day(18)},
		{"without a date our clock counts", time.Time{}, day(19), page{updated: 20, entries: []string{alive("a", 20), alive("b", 18)}}, day(18)},
		{"within the second of the date", day(20), day(1), page{updated: 20, entries: []string{aliveAt("a", second), alive("b", 18)}}, second},
		{"all late", day(2), day(99), page{updated: 20, entries: []string{alive("a", 20)}}, time.Time{}},
		{"deletions count", day(30), day(1), page{updated: 20, entries: []string{gone("a", 20), alive("b", 18)}}, day(20)},
		{"empty: the next document decides", day(30), day(1), page{updated: 20}, day(25)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			tt.doc.prev = "/1"
			s.handle("/feed", dated(tt.date, tt.doc))
			// Later stamps further down never raise the mark.
			s.put("/1", page{updated: 25, prev: "/0", entries: []string{alive("x", 25)}}.String())
			s.put("/0", page{updated: 26, entries: []string{alive("y", 26)}}.String())
			w := s.walk()
			w.Now = func() time.Time { return tt.now }
			got := s.run(w)
			got.expect(t, "/feed /1 /0", "*")
			if !got.Target.Equal(tt.target) {
				t.Errorf("target %v, want %v", got.Target, tt.target)
			}
		})
	}
}

func TestA3_Late(t *testing.T) {
	s := newSite(t)
	s.handle("/feed", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", day(20).Format(http.TimeFormat))
		_, _ = io.WriteString(w, page{updated: 20}.String())
	})
	_, err := s.walk().Run(t.Context(), func(_ context.Context, d *Document) error {
		if !d.Date.Equal(day(20)) || d.Late(day(20)) || d.Late(day(20).Add(time.Second-1)) || !d.Late(day(20).Add(time.Second)) {
			t.Errorf("date %v", d.Date)
		}
		_, err := d.Next()
		if err == io.EOF {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestA5_Complete(t *testing.T) {
	const fh = "<fh:complete/>"
	tests := []struct {
		name          string
		sub, archive  page // archive: served at /1, named by sub when it has entries or a head
		paths         string
		complete      bool
		rule          string
		archiveIsLast bool
	}{
		{"subscription document", page{head: fh, entries: []string{alive("a", 2)}}, page{}, "/feed", true, "", false},
		{"after the entries", page{entries: []string{alive("a", 2)}, tail: fh}, page{}, "/feed", true, "", false},
		{"any prefix", page{head: `<h:complete xmlns:h="http://purl.org/syndication/history/1.0"/>`, entries: []string{alive("a", 2)}}, page{}, "/feed", true, "", false},
		{"prefix fh of another namespace", page{head: `<fh:complete xmlns:fh="urn:x"/>`, entries: []string{alive("a", 2)}}, page{}, "/feed", false, "", false},
		{"not in the feed itself", page{head: "<author>" + fh + "</author>", entries: []string{alive("a", 2)}}, page{}, "/feed", false, "", false},
		{"no entries", page{head: fh}, page{}, "/feed", true, "", false},
		{"prev-archive beside it", page{prev: "/1", head: fh, entries: []string{alive("a", 2)}}, page{updated: 2}, "/feed", true, ruleS11, false},
		{"prev-archive beside it, both at the end", page{entries: []string{alive("a", 2)}, tail: `<link rel="prev-archive" href="/1"/>` + fh}, page{updated: 2}, "/feed", true, ruleS11, false},
		{"S8: in an archive behind an empty document", page{prev: "/1"}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", true, "", true},
		{"S8: behind deletions", page{prev: "/1", entries: []string{gone("a", 3)}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", true, "", true},
		{"behind an active entry", page{prev: "/1", entries: []string{alive("a", 3)}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", false, ruleS8, true},
		{"behind a bad entry", page{prev: "/1", entries: []string{undefined("a", 3)}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", false, ruleS8, true},
		{"a bad entry with an id", page{head: fh, entries: []string{undefined("a", 2), alive("b", 2)}}, page{}, "/feed", true, "", false},
		{"a bad entry without an id", page{head: fh, entries: []string{"<entry/>", alive("b", 2)}}, page{}, "/feed", false, ruleS8, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			tt.sub.updated = 4
			s.put("/feed", tt.sub.String())
			s.put("/1", tt.archive.String())
			got := s.run(s.walk())
			got.expect(t, tt.paths, "*")
			if got.Complete != tt.complete || got.complete[len(got.complete)-1] != tt.complete || !got.Oldest {
				t.Errorf("complete %v %v, oldest %v", got.Complete, got.complete, got.Oldest)
			}
			if tt.archiveIsLast && got.complete[0] {
				t.Error("the subscription document counts")
			}
			var rules []string
			for _, p := range got.problems {
				if p.Rule == ruleS8 || p.Rule == ruleS11 {
					rules = append(rules, p.Rule)
				}
			}
			if strings.Join(rules, " ") != tt.rule {
				t.Errorf("reported %v, want %s", got.problems, tt.rule)
			}
		})
	}
}

// TestA5_CompleteIsStrict: a complete document counts only once its end is read.
func TestA5_CompleteIsStrict(t *testing.T) {
	whole := page{updated: 4, head: "<fh:complete/>", entries: []string{alive("a", 2)}}.String()
	for _, doc := range []string{
		strings.TrimSuffix(whole, "</feed>"),
		whole + "<x/>",
		strings.Replace(whole, "2005/Atom", "2005/Atom/", 1),
	} {
		s := newSite(t)
		s.put("/feed", doc)
		got := s.run(s.walk())
		var fault *DocumentError
		if !errors.As(got.err, &fault) || got.Complete || got.Oldest || len(got.complete) != 0 {
			t.Errorf("%v, %+v", got.err, got.Result)
		}
	}
}

func TestA5_CompleteIsNotLost(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 4, head: "<fh:complete/>", entries: []string{alive("a", 4)}}.String())
	w := s.walk()
	w.Mark = day(2)
	if got := s.run(w); got.Lost || got.err != nil || !got.Complete {
		t.Errorf("%+v", got.Result)
	}
}

func TestA7_FeedID(t *testing.T) {
	sub := page{updated: 20, prev: "/1", entries: []string{alive("a", 20)}}
	archive := page{updated: 10, entries: []string{alive("b", 10)}}
	tests := []struct {
		name            string
		want, sub, arch string
		refused, rule   bool
	}{
		{"same", "urn:x:feed", "", "", false, false},
		{"any", "", "", "", false, false},
		{"changed", "urn:x:old", "", "", true, false},
		{"byte for byte", "urn:X:feed", "", "", true, false},
		{"missing", "urn:x:feed", "-", "", false, false},
		{"archive differs", "urn:x:feed", "", "urn:x:other", false, true},
		{"archive differs, first walk", "", "", "urn:x:other", false, true},
		{"archive without", "urn:x:feed", "", "-", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			sub.id, archive.id = tt.sub, tt.arch
			s.put("/feed", sub.String())
			s.put("/1", archive.String())
			w := s.walk()
			w.WantID = tt.want
			got := s.run(w)
			if tt.refused {
				if !errors.Is(got.err, ErrFeedID) || len(got.paths) != 0 || !strings.Contains(got.err.Error(), tt.want) {
					t.Errorf("error %v, visited %v", got.err, got.paths)
				}
				return
			}
			got.expect(t, "/feed /1", "aa ab")
			if got.reported(ruleFeedID) != tt.rule {
				t.Errorf("problems %v", got.problems)
			}
		})
	}
	t.Run("id after the entries", func(t *testing.T) {
		s := newSite(t)
		s.put("/feed", page{id: "-", updated: 20, entries: []string{alive("a", 20)}, tail: "<id>urn:x:new</id>"}.String())
		w := s.walk()
		w.WantID = "urn:x:feed"
		if got := s.run(w); !errors.Is(got.err, ErrFeedID) {
			t.Error(got.err)
		}
		w.WantID = "urn:x:new"
		if got := s.run(w); got.err != nil || got.FeedID != "urn:x:new" || got.cursors[0].FeedID != "urn:x:new" {
			t.Errorf("%+v %v", got.Result, got.err)
		}
	})
}

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
				w.Resume = &got.cursors[0]
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
			w.Resume = &got.cursors[0]
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
	s := newSite(t)
	million(s)
	got := s.run(s.walk())
	if !errors.Is(got.err, ErrTooManyDocuments) || len(got.paths) != 10_000 || got.Documents != 10_000 {
		t.Fatalf("visited %d, error %v", len(got.paths), got.err)
	}
	if len(got.Heads) != keptHeads {
		t.Errorf("%d heads", len(got.Heads))
	}
	w := s.walk()
	w.Resume = &got.cursors[len(got.cursors)-1]
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
		if _, err := (&Walk{URL: start}).Run(t.Context(), nil); err == nil {
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
		n := 0
		_, err := w.Run(t.Context(), func(_ context.Context, d *Document) error {
			n++
			for {
				if _, err := d.Next(); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
			}
		})
		if ok && (err != nil || n != 2) || !ok && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %d documents, %v", prev, n, err)
		}
	}
}

func TestA10_ConditionalGet(t *testing.T) {
	s := newSite(t)
	doc := page{updated: 20, entries: []string{alive("a", 20)}}.String()
	s.handle("/feed", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Last-Modified", day(20).Format(http.TimeFormat))
		if r.Header.Get("If-None-Match") == `"v1"` && r.Header.Get("If-Modified-Since") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, doc)
	})
	first := s.run(s.walk())
	first.expect(t, "/feed", "aa")
	want := Validators{ETag: `"v1"`, LastModified: day(20).Format(http.TimeFormat)}
	if first.Validators != want || first.NotModified {
		t.Fatalf("%+v", first.Result)
	}
	w := s.walk()
	w.Validators, w.WantID, w.Heads = first.Validators, first.FeedID, map[string]time.Time{"u": day(1)}
	got := s.run(w)
	got.expect(t, "", "")
	if !got.NotModified || got.Validators != want || got.FeedID != "urn:x:feed" || len(got.Heads) != 1 || got.Ended {
		t.Errorf("%+v", got.Result)
	}
	w.Full = true
	if got := s.run(w); got.NotModified || len(got.paths) != 1 {
		t.Errorf("full: %+v", got.Result)
	}
}

func TestA10_Ended(t *testing.T) {
	s := newSite(t)
	s.status("/feed", http.StatusGone)
	got := s.run(s.walk())
	got.expect(t, "", "")
	if !got.Ended || got.NotModified || got.Oldest || got.Complete {
		t.Errorf("%+v", got.Result)
	}
}

func TestSubscriptionStatus(t *testing.T) {
	for _, status := range []int{201, 204, 206, 304, 400, 401, 403, 404, 429, 500, 503} {
		s := newSite(t)
		s.status("/feed", status)
		got := s.run(s.walk())
		var e *StatusError
		if !errors.As(got.err, &e) || e.Status != status || !strings.Contains(e.Error(), s.URL+"/feed") || got.Gap != nil {
			t.Errorf("%d: %v", status, got.err)
		}
	}
	s := newSite(t)
	s.put("/feed", `<entry xmlns="http://www.w3.org/2005/Atom"/>`)
	var fault *DocumentError
	if got := s.run(s.walk()); !errors.As(got.err, &fault) || got.Gap != nil {
		t.Error(got.err)
	}
}

// TestResume cuts a walk after each document; the pieces give the same as the
// whole, and the cursor survives being stored.
func TestResume(t *testing.T) {
	for _, mark := range []float64{0, 12} {
		s := newSite(t)
		chain(s)
		w := s.walk()
		w.Full = mark == 0
		if mark != 0 {
			w.Mark = day(mark)
		}
		whole := s.run(w)
		for i, c := range whole.cursors {
			stored, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			var cursor Cursor
			if err := json.Unmarshal(stored, &cursor); err != nil {
				t.Fatal(err)
			}
			again := *w
			again.Resume = &cursor
			again.Full = false // the cursor knows
			rest := s.run(&again)
			rest.expect(t, strings.Join(whole.paths[i+1:], " "), "*")
			if !reflect.DeepEqual(rest.Result, whole.Result) {
				t.Errorf("mark %v, after %d:\n%+v\n%+v", mark, i, rest.Result, whole.Result)
			}
		}
	}
}

func TestResumeKeepsWhatDecides(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/1", entries: []string{alive("a", 20)}}.String())
	s.put("/1", page{updated: 10, head: "<fh:complete/>", entries: []string{alive("b", 10)}}.String())
	first := s.run(s.walk())
	w := s.walk()
	w.Resume = &first.cursors[0]
	if got := s.run(w); got.Complete || !got.reported(ruleS8) {
		t.Errorf("%+v", got.Result)
	}
}

func TestStaleCursor(t *testing.T) {
	for _, status := range []int{404, 410} {
		s := newSite(t)
		chain(s)
		first := s.run(s.walk())
		s.status("/3", status)
		w := s.walk()
		w.Resume = &first.cursors[0]
		if got := s.run(w); !errors.Is(got.err, ErrStaleCursor) || got.Gap != nil {
			t.Errorf("%d: %v", status, got.err)
		}
	}
}

func TestFullIgnoresTheMark(t *testing.T) {
	s := newSite(t)
	chain(s)
	w := s.walk()
	w.Mark, w.Full = day(31), true
	got := s.run(w)
	got.expect(t, "/feed /3 /2 /1", "*")
	if !got.Oldest || got.Lost {
		t.Errorf("%+v", got.Result)
	}
}

// TestLooksAhead: the next document is asked for while the one before is read,
// the one after that is not, and what is not needed is let go.
func TestLooksAhead(t *testing.T) {
	s := newSite(t)
	leaks := goleak.IgnoreCurrent()
	chain(s)
	asked := make(chan struct{})
	s.handle("/3", func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		_, _ = io.WriteString(w, page{updated: 15, prev: "/2", entries: []string{alive("c", 15)}}.String())
	})
	stop := errors.New("enough")
	_, err := s.walk().Run(t.Context(), func(ctx context.Context, d *Document) error {
		if _, err := d.Next(); err != nil {
			return err
		}
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Error("/3 was not asked for")
		}
		return stop
	})
	if err != stop {
		t.Error(err)
	}
	if got := s.requests(); got != "/feed /3" {
		t.Errorf("asked for %s", got)
	}
	s.Client().CloseIdleConnections()
	s.Close()
	goleak.VerifyNone(t, leaks)
}

// TestProblemsComeInOrder: problems of a head that was read ahead wait until
// their document's turn, and those of one that is not visited are dropped.
func TestProblemsComeInOrder(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/1", entries: []string{alive("a", 20), aliveAt("b", day(30)), alive("c", 12)}}.String())
	s.put("/1", page{updated: 10, id: "12", entries: []string{alive("d", 10)}}.String())
	got := s.run(s.walk())
	var rules []string
	for _, p := range got.problems {
		rules = append(rules, strings.TrimPrefix(p.URL, s.URL)+" "+p.Rule)
	}
	if r := strings.Join(rules, ", "); r != "/feed S1, /1 4287-id, /1 4287-feed-id" {
		t.Error(r)
	}
	w := s.walk()
	w.Mark = day(13)
	got = s.run(w)
	got.expect(t, "/feed", "*")
	if len(got.problems) != 1 {
		t.Error(got.problems)
	}
}

func TestUnread(t *testing.T) {
	s := newSite(t)
	chain(s)
	_, err := s.walk().Run(t.Context(), func(context.Context, *Document) error { return nil })
	if !errors.Is(err, ErrUnread) {
		t.Error(err)
	}
}

func TestCancel(t *testing.T) {
	s := newSite(t)
	chain(s)
	ctx, cancel := context.WithCancel(t.Context())
	s.handle("/3", func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	got := &walked{}
	if _, err := s.walk().Run(ctx, got.visitor(s)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestSampleChain walks the documents of other people's software.
func TestSampleChain(t *testing.T) {
	samples(t)
	s := newSite(t)
	s.handle("/feed", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/feed/index.atom", http.StatusFound)
	})
	for _, name := range []string{"index", "archive-2009-02", "archive-2009-01"} {
		doc, err := os.ReadFile("../../shared/samples/chain/" + name + ".atom")
		if err != nil {
			t.Fatal(err)
		}
		s.put("/feed/"+name+".atom", string(doc))
	}
	got := s.run(s.walk())
	got.expect(t, "/feed /feed/archive-2009-02.atom /feed/archive-2009-01.atom",
		"!http://example.org/fs/2009/3 !http://example.org/fs/2009/2 dhttp://example.org/fs/2009/5 dhttp://example.org/fs/2009/5 !http://example.org/fs/2009/2 !http://example.org/fs/2009/1")
	if !got.Oldest || got.Complete || got.Gap != nil {
		t.Errorf("%+v", got.Result)
	}
}
