package resourcesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

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
	for _, text := range []string{"no state", `{"walk":{"steps":[{"stream":0}]}}`, `{"walk":{"steps":[{"stream":-1}],"memory":{"streams":[{}]}}}`} {
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}

// classic serves one set: a Resource List of day 5, closed Change Lists up to
// day 10, and an open one from there.
func classic(s *site) {
	s.put("/.well-known/resourcesync", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist")))
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), ln("up", "{}/.well-known/resourcesync"),
		lists("/rl", "resourcelist"), lists("/cl", "changelist"), lists("/dump", "resourcedump")))
	s.put("/rl", resources(5, res("a"), res("b"), res("c")))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), ln("up", "{}/cap"),
		named("/cl1", "from", 1, "until", 4), named("/cl2", "from", 4, "until", 7), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10)))
	s.put("/cl1", changes(1, 4, change("a", 2), change("b", 3)))
	s.put("/cl2", changes(4, 7, change("b", 4.5), change("c", 6)))
	s.put("/cl3", changes(7, 10, change("a", 8), change("b", 9)))
	s.put("/cl4", changes(10, 0, change("c", 11)))
}

func TestFirstPass(t *testing.T) {
	s := newSite(t)
	classic(s)
	got := s.run(s.walk("/"))
	got.expect(t, "/cl4 /cl3 /cl2 /rl*")
	if entries := strings.Join(got.entries, " "); entries != "c | a b | b c | a b c |" {
		t.Errorf("entries %s", entries)
	}
	r := &got.Result
	if !r.Complete || !r.Baseline || r.NotModified || r.Gap != nil || r.Lost != "" || r.Documents != 4 ||
		!r.At.Equal(day(5)) || !r.Mark.Equal(day(11)) || strings.Join(r.Dialects, " ") != "1.1" {
		t.Errorf("%+v", r)
	}
	expectRequests(t, s, "/ /.well-known/resourcesync /cap /rl /cl /cl4 /cl3 /cl2 /rl")
}

func TestIncremental(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	w := s.walk("/cap")
	first := s.run(w)
	s.requests()

	got := s.again(w, first)
	got.expect(t, "")
	if !got.NotModified || !got.Mark.Equal(day(11)) || got.Baseline || got.Complete {
		t.Errorf("%+v", got.Result)
	}
	expectRequests(t, s, "/cl! /cl4!")

	// The open list grows without its index.
	s.put("/cl4", changes(10, 0, change("c", 11), change("d", 12)))
	grown := s.again(w, got)
	grown.expect(t, "/cl4")
	if grown.NotModified || !grown.Mark.Equal(day(12)) {
		t.Errorf("%+v", grown.Result)
	}
	expectRequests(t, s, "/cl! /cl4")

	// It closes, and another one opens. What has not changed is not read again,
	// even where the overlap reaches it.
	s.put("/cl4", changes(10, 13, change("c", 11), change("d", 12)))
	s.put("/cl5", changes(13, 0, change("e", 14)))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), ln("up", "{}/cap"), named("/cl1", "from", 1, "until", 4),
		named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 13), named("/cl5", "from", 13)))
	w.Overlap = 50 * time.Hour
	rolled := s.again(w, grown)
	rolled.expect(t, "/cl5 /cl4")
	if !rolled.Mark.Equal(day(14)) {
		t.Errorf("mark %v", rolled.Mark)
	}
	expectRequests(t, s, "/cl /cl5 /cl4 /cl3!")
	w.Overlap = 0
	if end := s.again(w, rolled); !end.NotModified {
		t.Errorf("%+v", end.Result)
	}
	expectRequests(t, s, "/cl! /cl5!")
}

// TestWithoutValidators: a server that knows nothing of 304.
func TestWithoutValidators(t *testing.T) {
	s := newSite(t)
	classic(s)
	w := s.walk("/cap")
	first := s.run(w)
	s.requests()
	w.Overlap = 36 * time.Hour
	got := s.again(w, first)
	got.expect(t, "/cl4 /cl3")
	expectRequests(t, s, "/cl /cl4 /cl3")
	if got.Baseline || !got.whole {
		t.Errorf("%+v", got.Result)
	}
}

func TestOneChangeList(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	s.put("/cl", changes(1, 0, change("a", 2), change("c", 6)))
	w := s.walk("/cap")
	first := s.run(w)
	first.expect(t, "/cl /rl*")
	s.requests()
	if again := s.again(w, first); !again.NotModified {
		t.Errorf("%+v", again.Result)
	}
	expectRequests(t, s, "/cl!")
	s.put("/cl", changes(1, 0, change("a", 2), change("c", 6), change("d", 7)))
	again := s.again(w, first)
	again.expect(t, "/cl")
	if !again.Mark.Equal(day(7)) {
		t.Errorf("mark %v", again.Mark)
	}
	expectRequests(t, s, "/cl")
}

func TestMark(t *testing.T) {
	const late = 40_000 // in 2129
	for _, tt := range []struct {
		name     string
		list     string
		baseline string
		mark     float64
	}{
		{"the largest datetime", changes(1, 0, change("a", 3), change("b", 2)), resources(5), 3},
		{"none that is late", changes(1, 0, change("a", 3), change("b", late)), resources(5), 3},
		{"the at of the Resource List", changes(1, 0), resources(5), 5},
		{"no late at", changes(1, 0), resources(late), 1},
		{"from", changes(2, 0), "", 2},
		{"no datetime: the border of the list, not lastmod", changes(3, 0, `<url><loc>{}/r/a</loc><lastmod>2020-01-04T00:00:00Z</lastmod><rs:md change="updated"/></url>`), resources(2), 3},
		{"no datetime, closed", changes(1, 3.5, `<url><loc>{}/r/a</loc><lastmod>2020-01-02T00:00:00Z</lastmod><rs:md change="updated"/></url>`), resources(2), 3.5},
		{"a datetime: lastmod says nothing", changes(1, 0, change("a", 2),
			`<url><loc>{}/r/a</loc><lastmod>2020-01-04T00:00:00Z</lastmod><rs:md change="updated"/></url>`), "", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			named := []string{lists("/cl", "changelist")}
			s.put("/cl", tt.list)
			if tt.baseline != "" {
				named = append(named, lists("/rl", "resourcelist"))
				s.put("/rl", tt.baseline)
			}
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), named...))
			w := s.walk("/cap")
			got := s.run(w)
			if !got.Mark.Equal(day(tt.mark)) || !got.whole || got.Lost != "" {
				t.Fatalf("mark %v, error %v, lost %q", got.Mark, got.err, got.Lost)
			}
			s.put("/cl", changes(1, 0))
			if again := s.again(w, got); !again.Mark.Equal(day(tt.mark)) || again.Baseline {
				t.Errorf("the mark fell to %v", again.Mark)
			}
		})
	}
}

// TestLastmodIsNoMark: a list that is published late is read, however late the
// resources in the lists before it were modified. (D5)
func TestLastmodIsNoMark(t *testing.T) {
	s := newSite(t)
	undated := func(name string) string {
		return fmt.Sprintf(`<url><loc>{}/r/%s</loc><lastmod>2020-01-20T00:00:00Z</lastmod><rs:md change="updated"/></url>`, name)
	}
	classic(s)
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10)))
	s.put("/cl3", changes(7, 10, undated("a")))
	w := s.walk("/cap")
	first := s.run(w)
	first.expect(t, "/cl3 /rl*")
	s.put("/cl4", changes(10, 12, undated("b")))
	s.put("/cl5", changes(12, 0))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 12), named("/cl5", "from", 12)))
	s.again(w, first).expect(t, "/cl5 /cl4 /cl3")
}

func TestStreams(t *testing.T) {
	s := newSite(t)
	s.tags = true
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist"), lists("/cap2", "capabilitylist")))
	classic(s)
	s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/2/rl", "resourcelist"), lists("/2/cl", "changelist")))
	s.put("/2/rl", resources(8, res("x")))
	s.put("/2/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/2/cl1", "from", 1, "until", 8.5), named("/2/cl2", "from", 8.5)))
	s.put("/2/cl1", changes(1, 8.5, change("x", 8.2)))
	s.put("/2/cl2", changes(8.5, 0, change("y", 9)))
	w := s.walk("/sd")
	got := s.run(w)
	// Newest first over both.
	got.expect(t, "/cl4 /2/cl2 /cl3 /2/cl1 /cl2 /rl* /2/rl*")
	if !got.Complete || !got.At.Equal(day(5)) || !got.Mark.Equal(day(9)) {
		t.Errorf("%+v", got.Result)
	}
	s.requests()
	if again := s.again(w, got); !again.NotModified {
		t.Errorf("%+v", again.Result)
	}
	expectRequests(t, s, "/sd! /cl! /cl4! /2/cl! /2/cl2!")

	// A third set shows in the Source Description, and gives all a baseline.
	s.put("/cap3", urlset(attrs("capability", "capabilitylist"), lists("/3/rl", "resourcelist")))
	s.put("/3/rl", resources(20, res("z")))
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist"), lists("/cap2", "capabilitylist"), lists("/cap3", "capabilitylist")))
	third := s.again(w, got)
	third.expect(t, "/rl* /2/rl* /3/rl*")
	if !third.Complete || !third.At.Equal(day(5)) {
		t.Errorf("%+v", third.Result)
	}
	// And so does one that goes.
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap2", "capabilitylist"), lists("/cap3", "capabilitylist")))
	gone := s.again(w, third)
	gone.expect(t, "/2/rl* /3/rl*")
	if !gone.Complete || !gone.At.Equal(day(8)) {
		t.Errorf("%+v", gone.Result)
	}
}

// TestDiscoveredMeanwhile: when a list of one set has gone, and so the Source is discovered
// anew, the lists of the other sets that were not read yet are read all the same.
func TestDiscoveredMeanwhile(t *testing.T) {
	s := newSite(t)
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap", "capabilitylist"), lists("/cap2", "capabilitylist")))
	classic(s)
	s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/2/rl", "resourcelist"), lists("/2/a", "changelist")))
	s.put("/2/rl", resources(8, res("x")))
	s.put("/2/a", changes(1, 0, change("x", 9)))
	w := s.walk("/sd")
	first := s.run(w)
	first.expect(t, "/cl4 /2/a /cl3 /cl2 /rl* /2/rl*")

	s.put("/cl4", changes(10, 13, change("c", 11), change("d", 12)))
	s.put("/cl5", changes(13, 0, change("e", 14)))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 13), named("/cl5", "from", 13)))
	s.remove("/2/a")
	s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/2/rl", "resourcelist"), lists("/2/b", "changelist")))
	s.put("/2/b", changes(9, 0, change("y", 13)))
	got := s.again(w, first)
	got.expect(t, "/cl5 /2/b /cl4")
	if got.Lost != "" || got.Baseline || !got.Mark.Equal(day(13)) {
		t.Errorf("%+v", got.Result)
	}
}

func TestFull(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	w := s.walk("/")
	first := s.run(w)
	s.requests()
	w.Full = true
	got := s.again(w, first)
	got.expect(t, "/cl4 /rl*")
	if !got.Complete || !got.Mark.Equal(day(11)) {
		t.Errorf("%+v", got.Result)
	}
	if r := s.requests(); strings.Contains(r, "!") {
		t.Errorf("a full walk asked conditionally: %s", r)
	}
}

// The numbers of sets outlive what was read of them: a full walk with nothing but the numbers
// reads everything again, and gives each set the number that it had.
func TestNumbered(t *testing.T) {
	if s := (State{}).Numbered(); !s.IsZero() || s.Numbers() != 0 {
		t.Errorf("of nothing: %+v", s)
	}
	s := newSite(t)
	s.tags = true
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap1", "capabilitylist"), lists("/cap2", "capabilitylist")))
	for _, n := range []string{"1", "2"} {
		s.put("/cap"+n, urlset(attrs("capability", "capabilitylist"), ln("up", "{}/sd"), lists("/rl"+n, "resourcelist")))
		s.put("/rl"+n, resources(5, res("a"+n)))
	}
	numbers := func(w *Walk) (of string) {
		for l, err := range w.Documents(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			for _, bad := range l.Entries() {
				if bad != nil {
					t.Error(bad)
				}
			}
			of += fmt.Sprintf("%s is %d ", strings.TrimPrefix(l.Requested, s.URL), l.Set)
		}
		return of
	}
	w := s.walk("/sd")
	first := numbers(w)
	if first != "/rl1 is 0 /rl2 is 1 " {
		t.Fatalf("at first: %s", first)
	}
	state := w.Result().State
	kept := state.Numbered()
	if kept.IsZero() || kept.Unfinished() || kept.Numbers() != 2 || state.Numbers() != 2 {
		t.Errorf("%d numbers of %d", kept.Numbers(), state.Numbers())
	}
	// The sets change their places.
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap2", "capabilitylist"), lists("/cap1", "capabilitylist")))
	s.requests()
	again := s.walk("/sd")
	again.State, again.Full = stored(t, kept), true
	if got := numbers(again); got != "/rl2 is 1 /rl1 is 0 " || strings.Contains(s.requests(), "!") {
		t.Errorf("again: %s", got)
	}
}

// TestNumberedWithGap: a set of resources that was read while another one was missing keeps its number,
// and the next walk finds out anew which sets there are, and reads all of them.
func TestNumberedWithGap(t *testing.T) {
	s := newSite(t)
	s.put("/sd", urlset(attrs("capability", "description"), lists("/cap1", "capabilitylist"), lists("/cap2", "capabilitylist")))
	for _, n := range []string{"1", "2"} {
		s.put("/cap"+n, urlset(attrs("capability", "capabilitylist"), ln("up", "{}/sd"), lists("/rl"+n, "resourcelist"), lists("/cl"+n, "changelist")))
		s.put("/rl"+n, resources(5, res("a"+n)))
		s.put("/cl"+n, changes(5, 0))
	}
	s.put("/rl2", resources(6, res("a2")))
	w := s.walk("/sd")
	s.failing("/cap1", 500)
	got := s.run(w)
	if got.expect(t, "/cl2 /rl2*"); got.Gap == nil || got.State.Numbers() != 1 {
		t.Fatalf("%+v", got.Result)
	}
	s.put("/cap1", urlset(attrs("capability", "capabilitylist"), lists("/rl1", "resourcelist"), lists("/cl1", "changelist")))
	w.State = stored(t, got.State)
	got = s.run(w)
	if got.expect(t, "/cl1 /cl2 /rl1* /rl2*"); !got.Complete || !slices.Equal(got.Sets, []int{1, 0}) || !slices.Equal(got.Ats, []time.Time{day(5), day(6)}) || !got.At.Equal(day(5)) {
		t.Errorf("%+v", got.Result)
	}
}

// TestChangeListFailsAtFirst: a Change List that fails when the Source is read
// first does not keep the Resource List from being read, but nothing is absent
// then; nor does it later, when one baseline was enough. What it had is read once it answers. (D84)
func TestChangeListFailsAtFirst(t *testing.T) {
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusForbidden} {
		changeListFailsAtFirst(t, status)
	}
}

// TestNewestListBreaksOffAtFirst: so it is with the newest list, behind which no other walk could go on.
func TestNewestListBreaksOffAtFirst(t *testing.T) {
	for _, status := range []int{-1, 0, 503} {
		s := newSite(t)
		classic(s)
		s.failing("/cl4", status)
		w := s.walk("/cap")
		got := s.run(w)
		if read := strings.TrimPrefix(strings.Join(got.lists, " "), "/cl4 "); !got.whole || read != "/cl3 /cl2 /rl*" || got.Lost == "" || got.Complete {
			t.Fatalf("%d: visited %v, error %v, %+v", status, got.lists, got.err, got.Result)
		}
		s.put("/cl4", changes(10, 0, change("c", 11)))
		if got = s.again(w, got); got.lists[0] != "/cl4" || !got.Complete || got.Lost != "" {
			t.Errorf("%d: it answers: visited %v, %+v", status, got.lists, got.Result)
		}
	}
}

func changeListFailsAtFirst(t *testing.T, status int) {
	s := newSite(t)
	s.tags = true
	classic(s)
	s.status("/cl3", status)
	w := s.walk("/cap")
	first := s.run(w)
	first.expect(t, "/cl4 /cl2 /rl*")
	if first.Lost == "" || first.Complete {
		t.Fatalf("%+v", first.Result)
	}
	s.put("/cl4", changes(10, 0, change("c", 11), change("d", 12)))
	second := s.again(w, first)
	second.expect(t, "/cl4 /cl2")
	if second.Lost == "" || second.Complete || !second.Mark.Equal(day(12)) {
		t.Errorf("it fails again: %+v", second.Result)
	}
	s.put("/cl3", changes(7, 10, change("a", 8)))
	third := s.again(w, second)
	third.expect(t, "/cl4 /cl3 /cl2 /rl*")
	if third.Lost != "" || !third.Complete {
		t.Errorf("%+v", third.Result)
	}
	if end := s.again(w, third); !end.NotModified {
		t.Errorf("%+v", end.Result)
	}
}

// TestChangeListFailsForLong: a Change List of an index that fails ends the walk, which is
// tried again. When that fails at the same list, or everything is to be read, the walk goes on
// without it, and what it had is read once it answers.
func TestChangeListFailsForLong(t *testing.T) {
	for status, full := range map[int]bool{403: false, 500: false, 503: true} {
		s := newSite(t)
		s.tags = true
		classic(s)
		w := s.walk("/cap")
		first := s.run(w)
		s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10),
			named("/cl4", "from", 10, "until", 13), named("/cl5", "from", 13, "until", 15), named("/cl6", "from", 15)))
		s.put("/cl4", changes(10, 13, change("c", 11), change("d", 12)))
		s.status("/cl5", status)
		s.put("/cl6", changes(15, 0, change("f", 16)))
		w.State = stored(t, first.State)
		var second *walked
		if w.Full = full; full {
			second = s.run(w)
			second.expect(t, "/cl6 /cl4 /rl*")
		} else {
			failed := s.run(w)
			if follow.Status(failed.err) != status || strings.Join(failed.lists, " ") != "/cl6" {
				t.Fatalf("visited %v, error %v", failed.lists, failed.err)
			}
			w.State = stored(t, failed.states[0])
			second = s.run(w)
			second.expect(t, "/cl4 /rl*")
		}
		if !strings.Contains(second.Lost, "/cl5 is missing") || second.Complete || !second.Mark.Equal(day(16)) {
			t.Errorf("%+v", second.Result)
		}
		w.Full = false
		s.put("/cl6", changes(15, 0, change("f", 16), change("g", 17)))
		third := s.again(w, second)
		third.expect(t, "/cl6 /cl4 /cl3")
		if third.Lost == "" || third.Baseline || !third.Mark.Equal(day(17)) {
			t.Errorf("it fails again: %+v", third.Result)
		}
		s.put("/cl5", changes(13, 15, change("e", 14)))
		fourth := s.again(w, third)
		fourth.expect(t, "/cl6 /cl5 /cl4 /cl3 /rl*")
		if fourth.Lost != "" || !fourth.Complete {
			t.Errorf("%+v", fourth.Result)
		}
		if end := s.again(w, fourth); !end.NotModified {
			t.Errorf("%+v", end.Result)
		}
	}
}

// failing serves a list that fails: with a status or, if that is 0, by breaking off; if it is -1, late;
// if it is -2, without any answer.
func (s *site) failing(path string, status int) {
	s.handle(path, func(w http.ResponseWriter, _ *http.Request) {
		if status > 0 {
			w.WriteHeader(status)
			return
		}
		if status == -2 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Length", "9999999")
		_, _ = io.WriteString(w, strings.TrimSuffix(strings.ReplaceAll(changes(7, 10, change("x", 8), strings.Repeat(change("y", 9), 1-5000*status)), "{}", s.URL), "</urlset>"))
	})
}

// TestListFailsForLong: a list of an index that nothing replaces, and that fails, ends the walk,
// which is tried again. When it fails again all others are read, and it is a gap; so it is at
// once where the last walk had that gap, and where no list was read that a walk could go on from.
func TestListFailsForLong(t *testing.T) {
	listed := func(s *site) {
		classic(s)
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist")))
	}
	apart := func(s *site) { parts(s, 6) }
	for _, tt := range []struct {
		name     string
		serve    func(*site)
		fails    string
		statuses []int
		before   string // lists that are read before it
		behind   string
	}{
		{"a Change List", listed, "/cl3", []int{0, 400, 403, 500, 503}, "/cl4", "/cl2 /cl1"},
		{"the newest Change List", listed, "/cl4", []int{-2, -1, 0, 400, 403, 500, 503}, "", "/cl3 /cl2 /cl1"},
		{"a part of the Resource List", apart, "/p2", []int{0, 400, 403, 500, 503}, "/p1*", "/p3*"},
		{"the first part of the Resource List", apart, "/p1", []int{0, 400, 403, 500, 503}, "", "/p2* /p3*"},
		{"the list of one set of several", func(s *site) {
			s.put("/cap", urlset(attrs("capability", "description"), lists("/cap1", "capabilitylist"), lists("/cap2", "capabilitylist"), lists("/cap3", "capabilitylist")))
			for _, n := range []string{"1", "2", "3"} {
				s.put("/cap"+n, urlset(attrs("capability", "capabilitylist"), lists("/rl"+n, "resourcelist")))
				s.put("/rl"+n, resources(5, res("a"+n)))
			}
		}, "/rl2", []int{500, 503}, "/rl1*", "/rl3*"},
	} {
		for _, status := range tt.statuses {
			t.Run(fmt.Sprintf("%s, %d", tt.name, status), func(t *testing.T) {
				s := newSite(t)
				tt.serve(s)
				s.failing(tt.fails, status)
				w := s.walk("/cap")
				gap := func(got *walked, want string) {
					t.Helper()
					read := slices.DeleteFunc(slices.Clone(got.lists), func(l string) bool { return strings.TrimSuffix(l, "*") == tt.fails }) // a part of it
					if got.err != nil || got.Gap == nil || got.Gap.URL != s.URL+tt.fails || got.Complete || strings.Join(read, " ") != strings.TrimSpace(want) {
						t.Errorf("visited %v, want %s; gap %v, error %v, complete %v", got.lists, want, got.Gap, got.err, got.Complete)
					}
				}
				first := s.run(w)
				if tt.before == "" {
					gap(first, tt.behind)
				} else {
					if first.err == nil || first.lists[0] != tt.before || first.Gap != nil {
						t.Errorf("at first: visited %v, gap %v, error %v", first.lists, first.Gap, first.err)
					}
					w.State = stored(t, first.states[0])
					gap(s.run(w), tt.behind)
				}
				w.State, w.Failing = State{}, s.URL+tt.fails
				gap(s.run(w), tt.before+" "+tt.behind)
				tt.serve(s)
				star := "" // of Resource Lists
				if strings.Contains(tt.behind, "*") {
					star = "*"
				}
				if got := s.run(w); !got.whole || got.Lost != "" || strings.Join(got.lists, " ") != strings.TrimSpace(tt.before+" "+tt.fails+star+" "+tt.behind) {
					t.Errorf("it answers: visited %v, gap %v, error %v", got.lists, got.Gap, got.err)
				}
			})
		}
	}
}

// TestServerFailsForLong: where the index cannot be had either, no list is a gap.
func TestServerFailsForLong(t *testing.T) {
	for _, status := range []int{0, 500} {
		s := newSite(t)
		parts(s, 6)
		s.failing("/p2", status)
		w := s.walk("/cap")
		first := s.run(w)
		s.failing("/rl", status)
		w.State = stored(t, first.states[0])
		if got := s.run(w); got.err == nil || got.Gap != nil || len(got.lists) > 0 {
			t.Errorf("%d: visited %v, gap %v", status, got.lists, got.Gap)
		}
	}
}

// TestFirstSetFailsForLong: where the Change List of the first of several sets fails, those of the
// others are read.
func TestFirstSetFailsForLong(t *testing.T) {
	s := newSite(t)
	s.tags = true
	s.put("/cap", urlset(attrs("capability", "description"), lists("/cap1", "capabilitylist"), lists("/cap2", "capabilitylist"), lists("/cap3", "capabilitylist")))
	put := func(d float64) {
		for _, n := range []string{"1", "2", "3"} {
			s.put("/cap"+n, urlset(attrs("capability", "capabilitylist"), lists("/rl"+n, "resourcelist"), lists("/cl"+n, "changelist")))
			s.put("/rl"+n, resources(5, res("a"+n)))
			s.put("/cl"+n, changes(5, 0, change("a"+n, d)))
		}
	}
	put(6)
	w := s.walk("/cap")
	first := s.run(w)
	w.State = first.State
	s.failing("/cl1", 500)
	if got := s.run(w); follow.Status(got.err) != 500 || len(got.lists) > 0 {
		t.Errorf("nothing has changed: visited %v, error %v", got.lists, got.err)
	}
	put(7)
	s.failing("/cl1", 500)
	got := s.run(w)
	if follow.Status(got.err) != 500 || strings.Join(got.lists, " ") != "/cl2 /cl3" {
		t.Fatalf("visited %v, error %v", got.lists, got.err)
	}
	w.State = stored(t, got.states[1])
	got = s.run(w)
	if got.expect(t, "/rl1* /rl2* /rl3*"); got.Complete || got.Gap != nil || !strings.Contains(got.Lost, "/cl1") {
		t.Errorf("%+v", got.Result)
	}
	put(7)
	if got = s.again(w, got); got.Lost != "" || !got.Complete {
		t.Errorf("visited %v, %+v", got.lists, got.Result)
	}
}

// TestNewestListFailsForLong: where the newest list of an index fails, the others are read and it is
// a gap. If it still fails then, one comparison of the Resource Lists makes up for it, and another
// one once it can be read.
func TestNewestListFailsForLong(t *testing.T) {
	for _, status := range []int{-2, -1, 0, 403, 500, 503} {
		for _, replaced := range []bool{true, false} {
			s := newSite(t)
			s.tags = true
			classic(s)
			rl := " /rl*"
			if !replaced {
				rl = ""
				s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist")))
			}
			w := s.walk("/cap")
			w.State = stored(t, s.run(w).State)
			s.put("/cl4", changes(10, 13, change("c", 11), change("d", 12)))
			s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), ln("up", "{}/cap"),
				named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 13), named("/cl5", "from", 13)))
			s.failing("/cl5", status)
			got := s.run(w)
			read := func() string { return strings.TrimPrefix(strings.Join(got.lists, " "), "/cl5 ") } // a part of it, perhaps
			if got.err != nil || read() != "/cl4" || got.Gap == nil || got.Gap.URL != s.URL+"/cl5" || got.Lost != "" {
				t.Fatalf("%d: visited %v, error %v, %+v", status, got.lists, got.err, got.Result)
			}
			w.Failing = got.Gap.URL
			if got = s.run(w); replaced {
				if read() != "/cl4"+rl || !got.whole || got.Complete || !strings.Contains(got.Lost, "/cl5") {
					t.Errorf("%d: again: %+v", status, got.Result)
				}
				w.Failing, w.State = "", stored(t, got.State)
				if got = s.run(w); !got.whole || strings.Contains(strings.Join(got.lists, " "), "/rl*") {
					t.Errorf("%d: visited %v, %+v", status, got.lists, got.Result)
				}
				w.State = stored(t, got.State)
			} else if read() != "/cl4" || got.Gap == nil {
				t.Errorf("%d: again: %+v", status, got.Result)
			}
			s.put("/cl5", changes(13, 0, change("e", 14)))
			if got = s.run(w); !got.whole || got.lists[0] != "/cl5" || got.Complete != replaced || got.Lost != "" {
				t.Errorf("%d: it answers: visited %v, %+v", status, got.lists, got.Result)
			}
		}
	}
}

// TestNewestListAccepted: the newest list of an index, which an operator has accepted as gone, loses
// nothing when it is there again, and when it is closed then. While it fails the Resource Lists make
// up for it, if there are any.
func TestNewestListAccepted(t *testing.T) {
	for _, status := range []int{-2, 0, 404, 500} {
		for _, replaced := range []bool{true, false} {
			s := newSite(t)
			classic(s)
			if !replaced {
				s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist")))
			}
			w := s.walk("/cap")
			w.State = stored(t, s.run(w).State)
			s.failing("/cl4", status)
			if status == 404 {
				s.remove("/cl4")
			}
			w.Accepted = []string{s.URL + "/cl4"}
			got := s.run(w)
			if !got.whole || got.Complete != (replaced && status == 404) || got.Baseline != replaced {
				t.Errorf("%d, %t: accepted: %+v, error %v", status, replaced, got.Result, got.err)
			}
			w.State = stored(t, got.State)
			s.put("/cl4", changes(10, 0, change("c", 11), change("d", 12)))
			got = s.run(w)
			if !got.whole || !slices.Contains(got.lists, "/cl4") {
				t.Errorf("%d, %t: it answers: visited %v, %+v, error %v", status, replaced, got.lists, got.Result, got.err)
			}
			w.State = stored(t, got.State)
			s.put("/cl4", changes(10, 14, change("c", 11), change("d", 12), change("e", 13)))
			s.put("/cl5", changes(14, 0))
			s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), ln("up", "{}/cap"),
				named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 14), named("/cl5", "from", 14)))
			if got = s.run(w); !got.whole || !slices.Contains(got.lists, "/cl4") {
				t.Errorf("%d, %t: it is closed: visited %v, %+v, error %v", status, replaced, got.lists, got.Result, got.err)
			}
		}
	}
}

// TestResourceListFailsAtFirst: a Resource List that fails does not keep the Change Lists from being
// read, nor the other sets of resources, and it is a gap when it still fails then. Where it answers,
// what changed between it and the first Change List is still expected of a newer one.
func TestResourceListFailsAtFirst(t *testing.T) {
	several := func(s *site) {
		s.put("/cap", urlset(attrs("capability", "description"), lists("/cap1", "capabilitylist"), lists("/cap2", "capabilitylist")))
		for _, n := range []string{"1", "2"} {
			s.put("/cap"+n, urlset(attrs("capability", "capabilitylist"), lists("/rl"+n, "resourcelist"), lists("/cl"+n, "changelist")))
			s.put("/rl"+n, resources(5, res("a"+n)))
			s.put("/cl"+n, changes(7, 0, change("a"+n, 8)))
		}
	}
	for _, tt := range []struct {
		name   string
		serve  func(*site)
		fails  string
		before string
	}{
		{"one set", func(s *site) { classic(s); s.put("/cl", changes(7, 0, change("a", 8))) }, "/rl", "/cl"},
		{"the second of two sets", several, "/rl2", "/cl1 /cl2 /rl1*"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.tags = true
			tt.serve(s)
			s.failing(tt.fails, 503)
			w := s.walk("/cap")
			first := s.run(w)
			if follow.Status(first.err) != 503 || strings.Join(first.lists, " ") != tt.before {
				t.Fatalf("visited %v, want %s; error %v", first.lists, tt.before, first.err)
			}
			w.State = stored(t, first.states[len(first.states)-1])
			if got := s.run(w); got.err != nil || got.Gap == nil || got.Gap.URL != s.URL+tt.fails || got.Complete {
				t.Errorf("it fails again: visited %v, gap %v, error %v", got.lists, got.Gap, got.err)
			}
			tt.serve(s)
			got := s.run(w)
			if got.expect(t, tt.fails+"*"); !got.Complete {
				t.Errorf("it answers: %+v", got.Result)
			}
			s.put(tt.fails, resources(9, res("b")))
			if got = s.again(w, got); !got.Baseline || !got.Complete {
				t.Errorf("it is a newer one: visited %v, %+v", got.lists, got.Result)
			}
		})
	}
}

// TestWithheldListIsNoGap: a bridge that has not walked all its own Sources is asked again.
func TestWithheldListIsNoGap(t *testing.T) {
	s := newSite(t)
	s.put("/cap", urlset(attrs("capability", "description"), lists("/cap1", "capabilitylist"), lists("/cap2", "capabilitylist")))
	for _, n := range []string{"1", "2"} {
		s.put("/cap"+n, urlset(attrs("capability", "capabilitylist"), lists("/rl"+n, "resourcelist")))
		s.put("/rl"+n, resources(5, res("a"+n)))
	}
	s.handle("/rl1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(follow.PartialHeader, "some-set")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	got := s.run(s.walk("/cap"))
	if e, ok := errors.AsType[*StatusError](got.err); !ok || e.Partial != "some-set" || got.Gap != nil {
		t.Errorf("visited %v, gap %v, error %v", got.lists, got.Gap, got.err)
	}
}

// TestListsFailOneAfterTheOther: a walk that goes on without one Change List that fails does so
// without the next one, too.
func TestListsFailOneAfterTheOther(t *testing.T) {
	for _, status := range []int{0, 503} {
		s := newSite(t)
		s.tags = true
		classic(s)
		w := s.walk("/cap")
		first := s.run(w)
		s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 13),
			named("/cl5", "from", 13, "until", 15), named("/cl6", "from", 15, "until", 17), named("/cl7", "from", 17)))
		s.put("/cl4", changes(10, 13, change("c", 11), change("d", 12)))
		s.failing("/cl5", status)
		s.failing("/cl6", status)
		s.put("/cl7", changes(17, 0, change("f", 18)))
		w.State = stored(t, first.State)
		failed := s.run(w)
		if failed.err == nil || failed.lists[0] != "/cl7" {
			t.Fatalf("visited %v, error %v", failed.lists, failed.err)
		}
		w.State = stored(t, failed.states[0])
		second := s.run(w)
		if all := strings.Join(second.lists, " "); !strings.HasSuffix(all, "/cl4 /rl*") || !strings.Contains(second.Lost, "/cl5") || !strings.Contains(second.Lost, "/cl6") || second.Complete {
			t.Errorf("%d: visited %s, error %v, %+v", status, all, second.err, second.Result)
		}
		s.put("/cl5", changes(13, 15, change("e", 14)))
		s.put("/cl6", changes(15, 17, change("e", 16)))
		third := s.again(w, second)
		third.expect(t, "/cl7 /cl6 /cl5 /cl4 /cl3 /rl*")
		if third.Lost != "" || !third.Complete {
			t.Errorf("%d: %+v", status, third.Result)
		}
	}
}

// TestChangeListFailsWithoutAt: where no Resource List has an at, only the lists from one that
// fails on are read again and again, not all that the index names.
func TestChangeListFailsWithoutAt(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	s.put("/rl", urlset(attrs("capability", "resourcelist"), ln("up", "{}/cap"), res("a"), res("b"), res("c")))
	s.status("/cl3", http.StatusInternalServerError)
	w := s.walk("/cap")
	first := s.run(w)
	first.expect(t, "/cl4 /cl2 /cl1 /rl*")
	second := s.again(w, first)
	second.expect(t, "/cl4")
	if second.Lost == "" {
		t.Errorf("%+v", second.Result)
	}
	s.put("/cl3", changes(7, 10, change("a", 8)))
	third := s.again(w, second)
	third.expect(t, "/cl4 /cl3 /rl*")
	if third.Lost != "" || !third.Complete {
		t.Errorf("%+v", third.Result)
	}
	if end := s.again(w, third); !end.NotModified {
		t.Errorf("%+v", end.Result)
	}
}

// TestDamagedChangeList: one that cannot be read is asked for until it can be,
// with one baseline meanwhile and one then; until then nothing is absent. (D84)
func TestDamagedChangeList(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	w := s.walk("/cap")
	first := s.run(w)
	whole := changes(10, 13, change("c", 11), change("d", 12))
	s.put("/cl4", strings.TrimSuffix(whole, "</urlset>"))
	s.put("/cl5", changes(13, 0, change("e", 14)))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/cl3", "from", 7, "until", 10), named("/cl4", "from", 10, "until", 13), named("/cl5", "from", 13)))
	got := s.again(w, first)
	got.expect(t, "/cl5 /cl4 /rl*")
	for range 2 {
		if !strings.Contains(got.Lost, "/cl4") || got.Complete {
			t.Errorf("%+v", got.Result)
		}
		got = s.again(w, got)
		got.expect(t, "/cl5 /cl4 /cl3")
	}
	s.put("/cl4", whole)
	got = s.again(w, got)
	got.expect(t, "/cl5 /cl4 /cl3 /rl*")
	if got.Lost != "" || !got.Complete {
		t.Errorf("%+v", got.Result)
	}
	if end := s.again(w, got); !end.NotModified {
		t.Errorf("%+v", end.Result)
	}
}

func TestEnded(t *testing.T) {
	s := newSite(t)
	s.status("/gone", http.StatusGone)
	got := s.run(s.walk("/gone"))
	if !got.Ended || got.err != nil || got.whole || got.Complete {
		t.Errorf("%+v, error %v", got.Result, got.err)
	}
	// What was harvested before does not change that.
	classic(s)
	w := s.walk("/cap")
	first := s.run(w)
	s.status("/cap", http.StatusGone)
	s.status("/cl", http.StatusGone)
	if got := s.again(w, first); !got.Ended || got.whole || len(got.lists) != 0 {
		t.Errorf("%+v, error %v", got.Result, got.err)
	}
}

func TestResume(t *testing.T) {
	s := newSite(t)
	s.tags = true
	classic(s)
	all := strings.Fields("/cl4 /cl3 /cl2 /rl*")
	for i, stop := range []string{"/cl3", "/cl2", "/rl"} {
		w := s.walk("/cap")
		got := s.runUntil(w, stop)
		if !errors.Is(got.err, errStop) || len(got.lists) != i+1 || got.Documents != i+1 || got.Complete {
			t.Fatalf("%s: %v, error %v", stop, got.lists, got.err)
		}
		w.State = stored(t, got.states[i])
		s.requests()
		rest := s.run(w)
		rest.expect(t, strings.Join(all[i+1:], " "))
		if !rest.Complete || rest.Documents != 4 || !rest.Mark.Equal(day(11)) || !rest.At.Equal(day(5)) || !rest.whole {
			t.Errorf("%s: %+v", stop, rest.Result)
		}
		if r := s.requests(); strings.Contains(r, "!") {
			t.Errorf("a resumed walk asked conditionally: %s", r)
		}
		w.State = State{}
		if again := s.again(w, rest); !again.NotModified {
			t.Errorf("%s: %+v", stop, again.Result)
		}
	}
	// All was read; only the end is left.
	w := s.walk("/cap")
	got := s.run(w)
	w.State = got.states[3]
	s.requests()
	if end := s.run(w); end.err != nil || !end.Complete || !end.whole {
		t.Errorf("%+v, error %v", end.Result, end.err)
	}
	expectRequests(t, s, "")
}

// A list that an archive names too is read once, also when the walk is broken off between them.
func TestResumeNamedTwice(t *testing.T) {
	s := newSite(t)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist"), lists("/cla", "changelist-archive")))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 3.0), named("/part"), named("/cl3")))
	s.put("/part", sitemapindex(attrs("capability", "changelist", "from", 3.0), named("/cl2")))
	s.put("/cla", sitemapindex(attrs("capability", "changelist-archive"), named("/cl1"), named("/cl2")))
	s.put("/cl1", changes(2, 3, change("a", 2.5)))
	s.put("/cl2", changes(3, 4, change("b", 3.5)))
	s.put("/cl3", changes(4, 0, change("c", 4.5)))
	w := s.walk("/cap")
	whole := s.run(w)
	whole.expect(t, "/cl3 /cl2 /cl1")
	for i, rest := range []string{"/cl2 /cl1", "/cl1", ""} {
		w.State = stored(t, whole.states[i])
		s.run(w).expect(t, rest)
	}
}

func TestStaleCursor(t *testing.T) {
	s := newSite(t)
	classic(s)
	w := s.walk("/cap")
	got := s.runUntil(w, "/cl2")
	s.remove("/cl2")
	w.State = got.states[1]
	if got := s.run(w); !errors.Is(got.err, ErrStale) {
		t.Errorf("error %v", got.err)
	}
}

func TestMaxDocuments(t *testing.T) {
	s := newSite(t)
	classic(s)
	w := s.walk("/cap")
	w.MaxDocuments = 3
	got := s.run(w)
	if !errors.Is(got.err, ErrTooManyDocuments) || len(got.lists) != 3 {
		t.Fatalf("visited %v, error %v", got.lists, got.err)
	}
	w.MaxDocuments, w.State = 4, got.states[2]
	s.run(w).expect(t, "/rl*")
	w = s.walk("/sd")
	var many []string
	for i := range 20 {
		many = append(many, lists("/"+strings.Repeat("x", i+1), "capabilitylist"))
	}
	s.put("/sd", urlset(attrs("capability", "description"), many...))
	w.MaxDocuments = 10
	if got := s.run(w); !errors.Is(got.err, ErrTooManyDocuments) {
		t.Errorf("a description of 20: %v", got.err)
	}
}

// TestVisitFails: the caller's own error ends the walk, and so does a list that
// was not read.
func TestVisitFails(t *testing.T) {
	s := newSite(t)
	classic(s)
	for want, visit := range map[error]func(context.Context, *List) error{
		errStop:   func(context.Context, *List) error { return errStop },
		errUnread: func(_ context.Context, l *List) error { _, err := l.next(); return err },
	} {
		r, err := visitAll(t.Context(), s.walk("/cap"), visit)
		if !errors.Is(err, want) || whole(r, err) {
			t.Errorf("%v: %v", want, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := visitAll(ctx, s.walk("/cap"), func(_ context.Context, l *List) error {
		cancel()
		for {
			if _, err := l.next(); err == io.EOF {
				return nil
			}
		}
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
}
