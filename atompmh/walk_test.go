package atompmh

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/internal/follow"
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
	if !reflect.DeepEqual(got.State.m.Heads, want) {
		t.Errorf("heads %v", got.State.m.Heads)
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
			w.Overlap, w.Full = tt.overlap, tt.full
			before := memory{Mark: day(tt.mark), Heads: map[string]time.Time{}}
			for path, d := range tt.heads {
				before.Heads[s.URL+path] = day(d)
			}
			w.State = State{&before}
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
			w.State = marked(day(tt.mark))
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
		{"largest, not first or last", day(30), day(99), page{updated: 20, entries: []string{alive("a", 12), alive("b", 20), alive("c", 13)}}, day(20)},
		{"later than the answer's date", day(19), day(99), page{updated: 20, entries: []string{alive("a", 20), alive("b", 18)}}, day(18)},
		{"later than our clock", day(30), day(19), page{updated: 20, entries: []string{alive("a", 20), alive("b", 18)}}, day(19)},
		{"without a date our clock counts", time.Time{}, day(19), page{updated: 20, entries: []string{alive("a", 20), alive("b", 18)}}, day(18)},
		{"within the second of the date", day(20), day(99), page{updated: 20, entries: []string{aliveAt("a", second), alive("b", 18)}}, second},
		{"all late", day(2), day(99), page{updated: 20, entries: []string{alive("a", 20)}}, time.Time{}},
		{"deletions count", day(30), day(99), page{updated: 20, entries: []string{gone("a", 20), alive("b", 18)}}, day(20)},
		{"empty: the next document decides", day(30), day(99), page{updated: 20}, day(25)},
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
	for d, err := range s.walk().Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if !d.Date.Equal(day(20)) || d.Late(day(20)) || d.Late(day(20).Add(time.Second-1)) || !d.Late(day(20).Add(time.Second)) {
			t.Errorf("date %v", d.Date)
		}
		if _, err := d.next(); err != io.EOF {
			t.Error(err)
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
	if first.NotModified || first.Full {
		t.Fatalf("%+v", first.Result)
	}
	w := s.walk()
	w.State = stored(t, first.State)
	got := s.run(w)
	got.expect(t, "", "")
	if !got.NotModified || got.FeedID != "urn:x:feed" || !reflect.DeepEqual(got.State, stored(t, first.State)) || got.Ended {
		t.Errorf("%+v", got.Result)
	}
	w.Full = true
	if got := s.run(w); got.NotModified || len(got.paths) != 1 {
		t.Errorf("full: %+v", got.Result)
	}
}

// stored is a State that was stored, alone and as a part of something.
func stored(t *testing.T, s State) State {
	t.Helper()
	text, err := s.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var alone State
	if err := alone.UnmarshalText(text); err != nil {
		t.Fatal(err)
	}
	type part struct{ State State }
	data, err := json.Marshal(part{alone})
	if want := fmt.Sprintf(`{"State":%s}`, text); err != nil || string(data) != want {
		t.Fatalf("%s, want %s, %v", data, want, err)
	}
	var again part
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatal(err)
	}
	return again.State
}

func TestState(t *testing.T) {
	var s State
	if !s.IsZero() || s.Unfinished() {
		t.Errorf("%+v", s)
	}
	if s = stored(t, s); !s.IsZero() || s.Unfinished() {
		t.Errorf("%+v", s)
	}
	if err := s.UnmarshalText([]byte("no state")); err == nil {
		t.Error("text that is no state was read")
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
		var inner *follow.StatusError // for those who fetch besides
		if !errors.As(got.err, &e) || e.Status != status || !errors.As(got.err, &inner) || inner.Status != status || !strings.Contains(e.Error(), s.URL+"/feed") || got.Gap != nil {
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
			w.State = marked(day(mark))
		}
		whole := s.run(w)
		for i, state := range whole.states {
			again := *w
			again.State = stored(t, state)
			again.Full = false // the state knows
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
	w.State = first.states[0]
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
		w.State = first.states[0]
		if got := s.run(w); !errors.Is(got.err, ErrStale) || got.Gap != nil {
			t.Errorf("%d: %v", status, got.err)
		}
	}
}

func TestFullIgnoresTheMark(t *testing.T) {
	s := newSite(t)
	chain(s)
	w := s.walk()
	w.State, w.Full = marked(day(31)), true
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
	for d, err := range s.walk().Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.next(); err != nil {
			t.Error(err)
		}
		select {
		case <-asked:
		case <-time.After(3 * time.Minute):
			t.Error("/3 was not asked for")
		}
		break
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
	w.State = marked(day(13))
	got = s.run(w)
	got.expect(t, "/feed", "*")
	if len(got.problems) != 1 {
		t.Error(got.problems)
	}
}

func TestUnread(t *testing.T) {
	s := newSite(t)
	chain(s)
	documents := 0
	for d, err := range s.walk().Documents(t.Context()) {
		if documents++; documents == 1 && err == nil {
			continue
		}
		if documents != 2 || d != nil || !errors.Is(err, errUnread) {
			t.Error(err)
		}
	}
}

// A Document hands out its entries, each with its bytes, and says whether it was read to its
// end.
func TestDocumentEntries(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, entries: []string{alive("a", 20), undefined("b", 19), gone("c", 18)}}.String())
	s.put("/short", page{updated: 20, entries: []string{alive("a", 20)}, tail: "<"}.String())
	for path, want := range map[string]string{"/feed": "active a, bad b, deletion c", "/short": "active a"} {
		w := s.walk()
		w.URL = s.URL + path
		for d, err := range w.Documents(t.Context()) {
			var got []string
			if err != nil {
				break // what is at fault with /short
			}
			for e, bad := range d.Entries() {
				if d.Whole() {
					t.Errorf("%s: whole before its end", path)
				}
				if e == nil {
					got = append(got, "bad "+strings.TrimPrefix(bad.ID, "urn:x:"))
					continue
				}
				got = append(got, e.Kind.String()+" "+strings.TrimPrefix(e.ID, "urn:x:"))
				framed := d.Frame(d.AppendEntry(nil))
				if !bytes.Equal(framed, d.Input()) {
					t.Errorf("%s: %s is framed as %s", path, d.Input(), framed)
				}
				if again := readAll(bytes.NewReader(framed), ReadOptions{}); len(again.entries) != 1 || again.entries[0].ID != e.ID {
					t.Errorf("%s: %s, %v", path, framed, again.err)
				}
			}
			if g := strings.Join(got, ", "); g != want || d.Whole() != (path == "/feed") || d.Feed().ID != "urn:x:feed" || !d.Feed().Updated.Equal(day(20)) {
				t.Errorf("%s: %s, whole %t, feed %+v; want %s", path, g, d.Whole(), d.Feed(), want)
			}
			for e, bad := range d.Entries() {
				t.Errorf("%s: %v, %v is left", path, e, bad)
			}
		}
		if r := w.Result(); path == "/feed" && (r.Documents != 1 || r.Entries != 3) {
			t.Errorf("%s: %d documents with %d entries", path, r.Documents, r.Entries)
		}
	}
}

// Of the feed/updated of archive documents, by which the next walk stops, the newest are
// kept, whichever walk has met them.
func TestNewestHeads(t *testing.T) {
	now, before := map[string]time.Time{}, map[string]time.Time{}
	for i := range keptHeads {
		now[fmt.Sprintf("n%03d", i)] = day(float64(2 * i))
		before[fmt.Sprintf("b%03d", i)] = day(float64(2*i + 1))
	}
	now["b000"] = day(2*keptHeads + 1) // has changed
	got := newest(now, before)
	if len(got) != keptHeads || !got["b000"].Equal(now["b000"]) {
		t.Errorf("%d are kept, and b000 of %v", len(got), got["b000"])
	}
	for u, at := range got {
		if at.Before(day(keptHeads)) {
			t.Errorf("%s of %v is kept", u, at)
		}
	}
	if len(before) != keptHeads || len(newest(nil, nil)) != 0 {
		t.Errorf("what was before has %d", len(before))
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
	if got.walk(ctx, s, s.walk()); !errors.Is(got.err, context.Canceled) {
		t.Error(got.err)
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

// A harvester ended its walk at the first record that it knew unchanged.
func TestSeenElsewhere_EndsAtFirstUnchangedRecord(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/1", entries: []string{alive("known", 3), alive("new", 20), alive("other", 19)}}.String())
	s.put("/1", page{updated: 18, prev: "/0", entries: []string{alive("missed", 18)}}.String())
	s.put("/0", page{updated: 2, entries: []string{alive("old", 2)}}.String())
	w := s.walk()
	w.State = marked(day(5))
	got := s.run(w)
	got.expect(t, "/feed /1 /0", "aknown anew aother amissed aold")
	if !got.reported(ruleS2) {
		t.Error("the broken S2 was not reported")
	}
}

// It compared whole seconds.
func TestSeenElsewhere_ComparesWholeSeconds(t *testing.T) {
	s := newSite(t)
	at := day(10)
	s.put("/feed", page{updated: 11, prev: "/1", entries: []string{aliveAt("a", at.Add(700*time.Millisecond))}}.String())
	s.put("/1", page{updated: 10, prev: "/0", entries: []string{aliveAt("b", at.Add(300*time.Millisecond)), aliveAt("c", at.Add(-time.Nanosecond))}}.String())
	s.put("/0", page{updated: 9, entries: []string{alive("d", 9)}}.String())
	w := s.walk()
	w.State = marked(at.Add(500 * time.Millisecond))
	got := s.run(w)
	got.expect(t, "/feed /1", "aa ab ac")
	if !got.Target.Equal(at.Add(700 * time.Millisecond)) {
		t.Errorf("target %v", got.Target)
	}
}

// It hard-coded "not deleted".
func TestSeenElsewhere_NeverDeletes(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, head: `<at:deleted-entry xmlns:at="http://purl.org/atompub/tombstones/1.0" ref="urn:x:b" when="2020-01-02T00:00:00Z"/>`,
		entries: []string{gone("a", 20), alive("c", 19)}}.String())
	s.run(s.walk()).expect(t, "/feed", "db da ac")
}

// A producer stamped every archive with the newest time, so that consumers that
// go by feed/updated alone never stopped. Here S2 is reported, the walk goes on,
// and it ends with the chain.
func TestSeenElsewhere_ArchivesStampedWithTheNewestTime(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 20, prev: "/2", entries: []string{alive("a", 20), alive("b", 16)}}.String())
	s.put("/2", page{updated: 20, prev: "/1", entries: []string{alive("c", 10)}}.String())
	s.put("/1", page{updated: 20, entries: []string{alive("d", 5)}}.String())
	w := s.walk()
	w.State = marked(day(17))
	got := s.run(w)
	got.expect(t, "/feed /2 /1", "aa ab ac ad")
	if !got.reported(ruleS2) || got.Lost || !got.Oldest || !got.Target.Equal(day(20)) {
		t.Errorf("%+v %v", got.Result, got.problems)
	}
}

// Others moved the mark past an entry whose storing failed. Here the loop
// is left before there is a State for the document.
func TestSeenElsewhere_MarkPassesAFailure(t *testing.T) {
	s := newSite(t)
	chain(s)
	var got walked
	w := s.walk()
	for d, err := range w.Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if len(got.states) == 1 {
			if _, err := d.next(); err != nil {
				t.Error(err)
			}
			break
		}
		got.read(s, d)
	}
	if r := w.Result(); r.Oldest || r.Documents != 1 || !r.State.memory().Mark.IsZero() {
		t.Fatalf("%+v", r)
	}
	w.State = got.states[0]
	s.run(w).expect(t, "/3 /2 /1", "ac dd ad ae af aa")
}
