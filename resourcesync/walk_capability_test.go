package resourcesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestCapabilityListChanges: where no open Change List is followed, each walk asks
// the Capability List what there is, and follows that. (D80)
func TestCapabilityListChanges(t *testing.T) {
	closed := []string{lists("/cl", "changelist"), lists("/rl", "resourcelist")}
	for _, tt := range []struct {
		name          string
		before, after []string
		visited, asks string // in the walk after the change
	}{
		{"a Change List is added", []string{lists("/rl", "resourcelist")}, []string{lists("/rl", "resourcelist"), lists("/open", "changelist")},
			"/open /rl*", "/cap /open /rl"},
		{"a Change List goes", closed, []string{lists("/rl", "resourcelist")}, "/rl*", "/cap /rl"},
		{"another Resource List", []string{lists("/rl", "resourcelist")}, []string{lists("/rl2", "resourcelist")}, "/rl2*", "/cap /rl2"},
		{"another Resource List beside a closed Change List", closed, []string{lists("/cl", "changelist"), lists("/rl2", "resourcelist")}, "/rl2*", "/cap /cl! /rl2"},
		{"another Change List", closed, []string{lists("/open", "changelist"), lists("/rl", "resourcelist")}, "/open", "/cap /open"},
		{"nothing that is followed", closed, append([]string{lists("/dump", "resourcedump")}, closed...), "", "/cap /cl!"},
		{"it names nothing any more", closed, nil, "", "/cap /cl!"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.tags = true
			s.put("/rl", resources(5, res("a")))
			s.put("/rl2", resources(7, res("a"), res("b")))
			s.put("/cl", changes(1, 6, change("a", 2)))
			s.put("/open", changes(5, 0, change("b", 7)))
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), tt.before...))
			w := s.walk("/cap")
			first := s.run(w)
			s.requests()

			// An unchanged Capability List costs one answer of 304, and leaves nothing to
			// write.
			same := s.again(w, first)
			if r := s.requests(); !same.NotModified || !strings.HasPrefix(r, "/cap! ") || strings.Count(r, "/") != strings.Count(r, "!") {
				t.Errorf("%+v, asked for %s", same.Result, r)
			}
			if a, b := mustJSON(t, first.State), mustJSON(t, same.State); a != b {
				t.Errorf("the state was\n%s\nand is\n%s", a, b)
			}

			s.put("/cap", urlset(attrs("capability", "capabilitylist"), tt.after...))
			got := s.again(w, same)
			got.expect(t, tt.visited)
			expectRequests(t, s, tt.asks)
			if got.Lost != "" || got.Gap != nil || strings.Contains(tt.visited, "*") != got.Complete {
				t.Errorf("%+v", got.Result)
			}
			if end := s.again(w, got); !end.NotModified {
				t.Errorf("%+v", end.Result)
			}
		})
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCapabilityListFails: what is known is followed without it. (D80)
func TestCapabilityListFails(t *testing.T) {
	s := newSite(t)
	s.tags = true
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist")))
	s.put("/rl", resources(5, res("a")))
	w := s.walk("/cap")
	first := s.run(w)
	for name, fail := range map[string]func(){
		"503":     func() { s.status("/cap", http.StatusServiceUnavailable) },
		"damaged": func() { s.put("/cap", "<urlset") },
	} {
		fail()
		s.put("/rl", resources(6, res("a"), res("b"), res(name)))
		got := s.again(w, first)
		got.expect(t, "/rl*")
		if !got.Complete || !got.reported(ruleMissing) {
			t.Errorf("%s: %+v, %v", name, got.Result, got.problems)
		}
	}
	// A login that is wanted now is no reason to go on.
	s.status("/cap", http.StatusUnauthorized)
	if got := s.again(w, first); got.err == nil {
		t.Errorf("%+v", got.Result)
	}
}

// TestClosedListGrows: a Change List that says that it is closed, and grows
// nevertheless, is read again, which is reported. (D81)
func TestClosedListGrows(t *testing.T) {
	for _, tags := range []bool{true, false} {
		s := newSite(t)
		s.tags = tags
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist"), lists("/rl", "resourcelist")))
		s.put("/rl", resources(5, res("a")))
		s.put("/cl", changes(1, 6, change("a", 2)))
		w := s.walk("/cap")
		first := s.run(w)
		if first.reported(ruleClosed) {
			t.Errorf("%v", first.problems)
		}
		for i, list := range []string{
			changes(1, 8, change("a", 2), change("b", 7)),                   // as if it were made anew for each request
			changes(1, 8, change("a", 2), change("b", 7), change("c", 7.5)), // or written on
			changes(1, 8, change("a", 2), change("b", 7), change("c", 7.5), change("d", 9)),
		} {
			s.put("/cl", list)
			got := s.again(w, first)
			got.expect(t, "/cl")
			if !got.reported(ruleClosed) || got.Baseline || got.Lost != "" || strings.Count(strings.Join(got.entries, " "), " ") != i+2 {
				t.Errorf("%d: %+v, read %v, problems %v", i, got.Result, got.entries, got.problems)
			}
			first = got
		}
		if got := s.again(w, first); got.reported(ruleClosed) || got.NotModified != tags {
			t.Errorf("unchanged: %+v, %v", got.Result, got.problems)
		}
	}
}

// TestClosedListsOfAnIndexGrow: so is the newest list of an index of which all are
// closed, whether or not the index changes with it. (D81)
func TestClosedListsOfAnIndexGrow(t *testing.T) {
	s := newSite(t)
	s.tags = true
	index := func(until float64) {
		s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/1", "from", 1, "until", 3), named("/2", "from", 3, "until", until)))
	}
	index(6)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/cl", "changelist"), lists("/rl", "resourcelist")))
	s.put("/rl", resources(2, res("a")))
	s.put("/1", changes(1, 3, change("a", 2)))
	s.put("/2", changes(3, 6, change("b", 4)))
	w := s.walk("/cap")
	got := s.run(w)
	got.expect(t, "/2 /1 /rl*")
	s.requests()
	if got = s.again(w, got); !got.NotModified {
		t.Errorf("%+v", got.Result)
	}
	expectRequests(t, s, "/cap! /cl! /2!")

	s.put("/2", changes(3, 6, change("b", 4), change("c", 7)))
	got = s.again(w, got)
	got.expect(t, "/2")
	if !got.reported(ruleClosed) || !got.Mark.Equal(day(7)) {
		t.Errorf("%+v, %v", got.Result, got.problems)
	}
	// What it has grown by is later than its until, which the mark follows.
	index(6.5)
	s.put("/2", changes(3, 6.5, change("b", 4), change("c", 7), change("d", 6.4)))
	got = s.again(w, got)
	got.expect(t, "/2")
	if !got.reported(ruleClosed) {
		t.Errorf("%v", got.problems)
	}
	// Another list follows it, as it should.
	s.put("/3", changes(8, 0, change("e", 9)))
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), named("/1", "from", 1, "until", 3), named("/2", "from", 3, "until", 8), named("/3", "from", 8)))
	got = s.again(w, got)
	got.expect(t, "/3")
	if s.requests(); got.Lost != "" || !s.again(w, got).NotModified {
		t.Errorf("%+v", got.Result)
	}
	expectRequests(t, s, "/cl! /3!")
}

// TestCapabilitiesOfIndexes: words that some Sources have for an index mean its
// lists. (D82)
func TestCapabilitiesOfIndexes(t *testing.T) {
	s := newSite(t)
	classic(s)
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelistindex"), lists("/cl", "changelistindex")))
	s.put("/cl", sitemapindex(attrs("capability", "changelistindex", "from", 1), named("/cl3", "from", 4, "until", 10), named("/cl4", "from", 10)))
	s.put("/rl", sitemapindex(attrs("capability", "resourcelistindex", "at", 5), named("/part", "at", 5)))
	s.put("/part", resources(5, res("a")))
	got := s.run(s.walk("/cap"))
	got.expect(t, "/cl4 /cl3 /part*")
	if !got.Complete || !got.reported(ruleCapability) {
		t.Errorf("%+v, problems %v", got.Result, got.problems)
	}
	s.run(s.walk("/cl")).expect(t, "/cl4 /cl3") // it is an entrance, too
}

// TestCheckpoints: what is written of the states is constant a list, however many
// lists an index has, and a walk goes on from any of them. (D121)
func TestCheckpoints(t *testing.T) {
	testenv.Heavy(t)
	share := map[int]int{} // bytes of states a list
	for _, n := range []int{200, 800} {
		s := newSite(t)
		var index []string
		for i := range n {
			from := 1 + float64(i)
			at := fmt.Sprintf("/cl%d", i)
			index = append(index, named(at, "from", from, "until", from+1))
			s.put(at, changes(from, from+1, change("a", from+0.5)))
		}
		s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), index...))
		written := 0
		var states []State
		var read []string
		w := s.walk("/cl")
		visit := func(_ context.Context, l *List) error {
			for {
				if _, err := l.next(); err == io.EOF {
					break
				} else if err != nil {
					return err
				}
			}
			read = append(read, l.URL)
			if l.Checkpoint() {
				state, _ := l.State()
				states = append(states, state)
				written += len(mustJSON(t, state))
			}
			return nil
		}
		if _, err := visitAll(t.Context(), w, visit); err != nil || len(read) != n {
			t.Fatalf("%d lists, error %v", len(read), err)
		}
		share[n] = written / n
		all, first := read, states[0]
		if n := first.m.Walk.Documents; n != 1 {
			t.Errorf("the first state comes after %d lists", n)
		}
		for _, state := range []State{first, states[len(states)/2], states[len(states)-1]} {
			c := state.m.Walk
			read, states, w.State = nil, nil, stored(t, state)
			if r, err := visitAll(t.Context(), w, visit); err != nil || !whole(r, err) || !slices.Equal(read, all[c.Documents:]) {
				t.Errorf("from %d: read %d, error %v", c.Documents, len(read), err)
			}
		}
	}
	if share[800] > share[200]*3/2 {
		t.Errorf("bytes a list: %v", share)
	}
	t.Logf("bytes a list: %v", share)
}

// A list that fails in the midst of very many is the first one of a walk after a few that were
// broken off there, although not each has left a State.
func TestCheckpointsBeforeAListThatFails(t *testing.T) {
	testenv.Heavy(t)
	const n, bad = 2000, 30 // lists, the newest first
	s := newSite(t)
	var index []string
	for i := range n {
		from := 1 + float64(i)
		at := fmt.Sprintf("/cl%d", i)
		index = append(index, named(at, "from", from, "until", from+1))
		if i >= n-bad-5 {
			s.put(at, changes(from, from+1, change("a", from+0.5)))
		}
	}
	s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", 1), index...))
	fails := fmt.Sprintf("/cl%d", n-bad)
	s.failing(fails, http.StatusInternalServerError)
	behind := fmt.Sprintf("/cl%d", n-bad-5)
	w := s.walk("/cl")
	walks := 0
	for ; walks < 20; walks++ {
		got := s.finish(w, &walked{sparse: true, stop: behind})
		if errors.Is(got.err, errStop) {
			break
		}
		if follow.Status(got.err) != http.StatusInternalServerError {
			t.Fatalf("walk %d: %v", walks, got.err)
		}
		if len(got.states) > 0 {
			w.State = stored(t, got.states[len(got.states)-1])
		}
	}
	if walks > 7 {
		t.Errorf("%d walks have not gone on without it", walks)
	}
}

// A Source is read whole again once its Capability List has nothing any more that is not followed.
func TestNoLongerPartial(t *testing.T) {
	for _, list := range []string{resources(5, res("a"), res("b")), resources(6, res("a"))} {
		s := newSite(t)
		s.tags = true
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/more", "resourcelist")))
		s.put("/rl", resources(5, res("a"), res("b")))
		w := s.walk("/cap")
		first := s.run(w)
		if first.Complete || !first.whole {
			t.Fatalf("%+v, %v", first.Result, first.err)
		}
		s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist")))
		s.put("/rl", list)
		second := s.again(w, first)
		second.expect(t, "/rl*")
		if !second.Complete {
			t.Errorf("%+v", second.Result)
		}
		if third := s.again(w, second); !third.NotModified {
			t.Errorf("%+v", third.Result)
		}
	}
}

// TestSourceMoves: a Source all of whose addresses are redirected to another host, for good, is read
// there by the next walk. One Change List that is redirected to another host is not.
func TestSourceMoves(t *testing.T) {
	s := newSite(t)
	there := strings.Replace(s.URL, "127.0.0.1", "there.localhost", 1)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
	s.put("/rl", resources(5, res("a")))
	s.put("/cl", changes(5, 0, change("a", 6)))
	w := s.walk("/cap")
	w.Client = client
	first := s.run(w)
	moved := func(path string) {
		page := s.pages[path]
		s.handle(path, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.Host, "127.") {
				http.Redirect(w, r, there+path, http.StatusMovedPermanently)
				return
			}
			page(w, r)
		})
	}
	s.put("/cl", changes(5, 0, change("a", 7)))
	moved("/cl")
	w.State = stored(t, first.State)
	if got := s.run(w); !errors.Is(got.err, ErrRefused) {
		t.Errorf("one list has moved: visited %v, error %v", got.lists, got.err)
	}
	moved("/cap")
	moved("/rl")
	got := s.run(w)
	if got.expect(t, "/cl"); got.Lost != "" || got.Gap != nil || !got.Mark.Equal(day(7)) {
		t.Errorf("%+v", got.Result)
	}
	s.put("/cl", changes(5, 0, change("a", 8)))
	moved("/cl")
	if got = s.again(w, got); !got.Mark.Equal(day(8)) {
		t.Errorf("%+v, error %v", got.Result, got.err)
	}
}
