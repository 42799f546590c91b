package harvest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// TestSetsOfResources: a resource that stands in several sets of a Source is there
// as long as one of those that the Source names has it, whatever lists tell of
// that, and however old its Resource Lists are. (D2)
func TestSetsOfResources(t *testing.T) {
	laws(t, 30, func(b *bench) {
		l := newLibrary(b.t, b.base)
		b.serve = l.serve
		id, err := b.log.EnsureSource(context.Background(), "main", harvest.ResourceSync, b.base+"/sd", 0)
		b.must(err)
		for range rapid.IntRange(2, 8).Draw(b.t, "harvests") {
			l.grow(b.t)
			switch rapid.IntRange(0, 5).Draw(b.t, "reset, or forgotten and configured again") {
			case 0:
				b.must(b.harvest.Reset(context.Background(), id))
			case 1:
				_, err := b.harvest.Forget(context.Background(), &harvest.Source{ID: id, Set: "main", Kind: harvest.ResourceSync, URL: b.base + "/sd", Content: b.mode}, true)
				b.must(err)
				again, err := b.log.EnsureSource(context.Background(), "main", harvest.ResourceSync, b.base+"/sd", 0)
				b.must(err)
				if again != id {
					b.t.Fatalf("Source %d is Source %d now", id, again)
				}
			}
			for again := range 2 {
				before := b.last()
				_, err := b.pass(harvest.Source{ID: id, Set: "main", Kind: harvest.ResourceSync, URL: b.base + "/sd", Content: b.mode,
					Overlap: time.Duration(rapid.IntRange(0, 60).Draw(b.t, "overlap")) * time.Minute},
					harvest.Options{Full: rapid.IntRange(0, 2).Draw(b.t, "full") == 0, AllPending: true})
				b.must(err)
				if got, want := b.live(b.base+"/r/"), l.live(); !maps.Equal(got, want) {
					b.t.Fatalf("the log has %v, want %v", got, want)
				}
				if again > 0 && b.last() != before {
					b.t.Fatal("the same once more has logged something")
				}
			}
		}
	})
}

// A Change List that several sets of resources name tells of the resources of each: directly, in an
// index, or by a redirect.
func TestSetsShareAChangeList(t *testing.T) {
	for _, by := range []string{"/cl", "/index", "/old"} {
		s := newShelf(t, t.TempDir(), event.Redirect)
		var changes atomic.Value
		changes.Store("")
		var server *httptest.Server
		list := func(w http.ResponseWriter, root, md string, entries ...string) {
			fmt.Fprintf(w, `<%s xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md %s/>%s</%s>`,
				root, md, strings.ReplaceAll(strings.Join(entries, ""), "{}", server.URL), root)
		}
		named := func(path, capability string) string {
			return fmt.Sprintf(`<url><loc>{}%s</loc><rs:md capability=%q/></url>`, path, capability)
		}
		server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := r.URL.Path[len(r.URL.Path)-1:] // of the set
			switch path := r.URL.Path; path {
			case "/sd":
				list(w, "urlset", `capability="description"`, named("/cap1", "capabilitylist"), named("/cap2", "capabilitylist"))
			case "/cap1", "/cap2":
				list(w, "urlset", `capability="capabilitylist"`, named("/rl"+n, "resourcelist"), named(by, "changelist"))
			case "/rl1", "/rl2":
				list(w, "urlset", `capability="resourcelist" at="2026-01-02T00:00:00Z"`,
					fmt.Sprintf(`<url><loc>{}/a%s</loc><rs:md type="text/html"/></url><url><loc>{}/b%s</loc><rs:md type="text/html"/></url>`, n, n))
			case "/old":
				http.Redirect(w, r, "/cl", http.StatusFound)
			case "/index":
				list(w, "sitemapindex", `capability="changelist" from="2026-01-01T00:00:00Z"`, `<sitemap><loc>{}/cl</loc><rs:md from="2026-01-01T00:00:00Z"/></sitemap>`)
			default:
				list(w, "urlset", `capability="changelist" from="2026-01-01T00:00:00Z"`, changes.Load().(string))
			}
		}))
		t.Cleanup(server.Close)
		s.from(harvest.ResourceSync, server.URL+"/sd", server.Client())
		for _, step := range []struct{ changes, want string }{
			{"", "created /a1, created /a2, created /b1, created /b2"},
			{`<url><loc>{}/a1</loc><rs:md change="deleted" datetime="2026-01-03T00:00:00Z"/></url><url><loc>{}/a2</loc><rs:md change="deleted" datetime="2026-01-03T00:00:00Z"/></url>` +
				`<url><loc>{}/n</loc><rs:md change="created" datetime="2026-01-04T00:00:00Z" type="text/html"/></url>`, "created /n, deleted /a1, deleted /a2"},
			{`<url><loc>{}/n</loc><rs:md change="deleted" datetime="2026-01-05T00:00:00Z"/></url>`, "deleted /n"},
		} {
			changes.Store(changes.Load().(string) + step.changes)
			for _, want := range []string{step.want, ""} {
				if r := s.run(); r.Gap != "" || len(r.Warnings) > 0 {
					t.Errorf("%s: %+v", by, r)
				}
				if got := strings.ReplaceAll(s.news(), server.URL, ""); got != want {
					t.Errorf("%s: %s, want %s", by, got, want)
				}
			}
		}
	}
}

// library is a Source with several sets of resources.
type library struct {
	url     string
	version map[string]int
	last    int // version
	minute  int
	sets    []*resourceSet
	dated   bool
	from    int  // minute at which the Change Lists begin
	listed  bool // there are Resource Lists only
}

type resourceSet struct {
	named    bool // in the Source Description
	has      map[string]bool
	changes  []string // entries of its Change List
	at       int
	snapshot map[string]int
}

func newLibrary(t *rapid.T, url string) *library {
	l := &library{url: url, version: map[string]int{"z": 1}, last: 1, minute: 1, dated: rapid.IntRange(0, 3).Draw(t, "datetime") > 0}
	for i := range rapid.IntRange(2, 3).Draw(t, "sets") {
		s := &resourceSet{named: i < 2, has: map[string]bool{"z": true}} // z holds off the guard
		l.sets = append(l.sets, s)
		l.show(s)
	}
	return l
}

// live is the model: what one of the sets has that the Source names.
func (l *library) live() map[string]string {
	out := map[string]string{}
	for _, s := range l.sets {
		for name := range s.has {
			if s.named {
				out[name] = l.title(name, l.version[name])
			}
		}
	}
	return out
}

func (l *library) title(name string, version int) string { return fmt.Sprintf("%s %d", name, version) }

func (l *library) grow(t *rapid.T) {
	for range rapid.IntRange(0, 6).Draw(t, "happens") {
		name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "resource")
		s := rapid.SampledFrom(l.sets).Draw(t, "set")
		l.minute++
		switch rapid.IntRange(0, 8).Draw(t, "what") {
		case 0:
			if s.named = !s.named; len(l.live()) == 0 { // one is left
				s.named = true
			}
		case 1:
			l.show(s)
		case 2, 3:
			if l.version[name] != 0 {
				l.last++
				l.version[name] = l.last
				for _, s := range l.sets {
					if s.has[name] {
						l.tell(s, "updated", name)
					}
				}
			}
		case 4, 5:
			if s.has[name] {
				delete(s.has, name)
				if !slices.ContainsFunc(l.sets, func(s *resourceSet) bool { return s.has[name] }) {
					delete(l.version, name)
				}
				l.tell(s, "deleted", name)
			}
		default:
			if !s.has[name] {
				if s.has[name] = true; l.version[name] == 0 {
					l.last++
					l.version[name] = l.last
				}
				l.tell(s, "created", name)
			}
		}
	}
}

func (l *library) show(s *resourceSet) {
	s.at, s.snapshot = l.minute, map[string]int{}
	for name := range s.has {
		s.snapshot[name] = l.version[name]
	}
}

func (l *library) tell(s *resourceSet, change, name string) {
	attrs := fmt.Sprintf(` change=%q`, change)
	if l.dated {
		attrs += fmt.Sprintf(` datetime="%s"`, minute(l.minute))
	}
	version := l.version[name]
	if change == "deleted" {
		version = 0
	}
	s.changes = append(s.changes, l.entry(name, version, attrs))
}

func (l *library) entry(name string, version int, attrs string) string {
	if version > 0 {
		attrs += fmt.Sprintf(` hash="sha-256:%x" b:title=%q`, sha256.Sum256([]byte(l.title(name, version))), l.title(name, version))
	}
	return fmt.Sprintf(`<url><loc>%s/r/%s</loc><rs:md%s/></url>`, l.url, name, attrs)
}

func (l *library) serve(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if name, ok := strings.CutPrefix(path, "/r/"); ok {
		if l.version[name] == 0 {
			http.NotFound(w, nil)
			return
		}
		fmt.Fprint(w, l.title(name, l.version[name]))
		return
	}
	var n int
	if path != "/sd" {
		_, _ = fmt.Sscan(path[len(path)-1:], &n)
	}
	write := (&source{}).writeList
	switch s := l.sets[n]; path[:3] {
	case "/sd":
		var entries strings.Builder
		for i, s := range l.sets {
			if s.named {
				fmt.Fprintf(&entries, `<url><loc>%s/cap%d</loc><rs:md capability="capabilitylist"/></url>`, l.url, i)
			}
		}
		write(w, "description", "", entries.String())
	case "/ca":
		named := fmt.Sprintf(`<url><loc>%s/rl%d</loc><rs:md capability="resourcelist"/></url>`, l.url, n)
		if !l.listed {
			named += fmt.Sprintf(`<url><loc>%s/cl%d</loc><rs:md capability="changelist"/></url>`, l.url, n)
		}
		write(w, "capabilitylist", "", named)
	case "/cl":
		write(w, "changelist", fmt.Sprintf(` from="%s"`, minute(l.from)), strings.Join(s.changes, ""))
	default:
		var entries strings.Builder
		for _, name := range slices.Sorted(maps.Keys(s.snapshot)) {
			entries.WriteString(l.entry(name, s.snapshot[name], ""))
		}
		write(w, "resourcelist", fmt.Sprintf(` at="%s"`, minute(s.at)), entries.String())
	}
}

// A resource that one set of resources has listed and then deleted, while another one had it, is
// gone when the other one goes, although the older Resource List of the first still has it.
func TestDeletionAfterItsResourceList(t *testing.T) {
	for _, dated := range []bool{true, false} {
		s := newShelf(t, t.TempDir(), event.Redirect)
		first := &resourceSet{named: true, has: map[string]bool{"b": true, "c": true, "z": true}}
		second := &resourceSet{named: true, has: map[string]bool{"a": true, "z": true}}
		l := &library{version: map[string]int{"a": 1, "b": 1, "c": 1, "z": 1}, minute: 1, dated: dated, sets: []*resourceSet{first, second}}
		l.show(first)
		l.show(second)
		server := httptest.NewServer(http.HandlerFunc(l.serve))
		defer server.Close()
		l.url = server.URL
		s.from(harvest.ResourceSync, server.URL+"/sd", server.Client())
		s.run()
		if got, want := strings.ReplaceAll(s.news(), server.URL+"/r", ""), "created /a, created /b, created /c, created /z"; got != want {
			t.Errorf("at first: %s, want %s", got, want)
		}
		l.minute = 2
		l.tell(first, "created", "a")
		first.has["a"], l.minute = true, 3
		l.show(first)
		delete(first.has, "a")
		l.minute = 4
		l.tell(first, "deleted", "a")
		second.named = false
		s.run()
		if got, want := strings.ReplaceAll(s.news(), server.URL+"/r", ""), "deleted /a"; got != want {
			t.Errorf("datetimes %t: %s, want %s", dated, got, want)
		}
	}
}

// What was replayed is of no known set of resources: a set that deletes it is taken at its word.
func TestReplayedInSecondSet(t *testing.T) {
	s := newShelf(t, t.TempDir(), event.Mirror)
	first := &resourceSet{named: true, has: map[string]bool{"b": true, "z": true}}
	second := &resourceSet{named: true, has: map[string]bool{"a": true, "z": true}}
	l := &library{version: map[string]int{"a": 1, "b": 1, "z": 1}, minute: 1, dated: true, sets: []*resourceSet{first, second}}
	l.show(first)
	l.show(second)
	wrong := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wrong && r.URL.Path == "/r/a" {
			fmt.Fprint(w, "not what the list says")
			return
		}
		l.serve(w, r)
	}))
	defer server.Close()
	l.url = server.URL
	s.from(harvest.ResourceSync, server.URL+"/sd", server.Client())
	s.run()
	s.run()
	wrong = false
	bad, err := s.log.Quarantined(t.Context(), "main")
	if s.must(err); len(bad) != 1 {
		t.Fatalf("in quarantine: %+v, want one input", bad)
	}
	input, err := s.log.QuarantinedInput(t.Context(), bad[0].ID)
	s.must(err)
	src := s.src
	_, err = s.harvest.Replay(t.Context(), &src, &input)
	s.must(err)
	delete(second.has, "a")
	l.minute = 2
	l.tell(second, "deleted", "a")
	delete(l.version, "a")
	s.run()
	if got, want := strings.ReplaceAll(s.news(), server.URL+"/r", ""), "created /a, created /b, created /z, deleted /a"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
}

// libraryOf is a Source of these sets, some of whose contents fail.
func libraryOf(t *testing.T, sets ...*resourceSet) (s *shelf, l *library, failing map[string]bool) {
	s, failing = newShelf(t, t.TempDir(), event.Mirror), map[string]bool{}
	l = &library{version: map[string]int{"z": 1}, minute: 1, sets: sets}
	for _, set := range sets {
		set.named, set.has = true, map[string]bool{"z": true}
		l.show(set)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failing[r.URL.Path] {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		answer := httptest.NewRecorder()
		l.serve(answer, r)
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(answer.Body.Bytes())))
		if w.Header().Get("ETag") == r.Header.Get("If-None-Match") {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(server.Close)
	l.url = server.URL
	s.from(harvest.ResourceSync, server.URL+"/sd", server.Client())
	return s, l, failing
}

// A new record of one of several sets of resources, which its Change List states without a
// datetime, waits for its content through each harvest that reads everything, not only the first.
func TestUndatedWaitsInItsSet(t *testing.T) {
	first, second := &resourceSet{}, &resourceSet{}
	s, l, failing := libraryOf(t, first, second)
	l.version["a"], second.has["a"], failing["/r/a"] = 1, true, true
	l.tell(second, "created", "a")
	s.run()
	failing["/r/a"] = false
	_, err := s.try(harvest.Options{Full: true, AllPending: true})
	s.must(err)
	if got, want := strings.ReplaceAll(s.news(), l.url+"/r", ""), "created /a, created /z"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
}

// What waits for its content in a set of resources that the Source names no more is not published,
// unless another one has it.
func TestWaitsInFormerSet(t *testing.T) {
	first, second := &resourceSet{}, &resourceSet{}
	s, l, failing := libraryOf(t, first, second)
	l.dated, l.minute = true, 2
	for _, name := range []string{"a", "b"} {
		l.version[name], second.has[name], failing["/r/"+name] = 1, true, true
		l.tell(second, "created", name)
	}
	first.has["b"] = true
	l.tell(first, "created", "b")
	s.run()
	second.named = false
	clear(failing)
	s.run()
	if got, want := strings.ReplaceAll(s.news(), l.url+"/r", ""), "created /b, created /z"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
}

// A set of resources that deletes a record while its content waits has it no more once that has
// come: the record is deleted when the other set deletes it too.
func TestDeletedInASetWhileItWaits(t *testing.T) {
	first, second := &resourceSet{}, &resourceSet{}
	s, l, failing := libraryOf(t, first, second)
	l.dated = true
	change := func(in *resourceSet, change string) {
		l.minute++
		in.has["a"] = change != "deleted"
		l.tell(in, change, "a")
	}
	l.version["a"] = 1
	change(first, "created")
	change(second, "created")
	s.run()
	l.version["a"], failing["/r/a"] = 2, true
	change(first, "updated")
	l.minute--
	change(second, "updated")
	s.run()
	for _, gone := range []*resourceSet{first, second} {
		change(gone, "deleted")
		if gone == second {
			delete(l.version, "a")
		}
		s.run()
		clear(failing)
		s.run()
	}
	if got, want := s.told(func(ev *event.Event) string { return ev.Kind.String() + " " + ev.Title }), []string{"created a 1", "created z 1", "updated a 2", "deleted a 2"}; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("events: %q, want %q", got, want)
	}
}

// A set of resources that the Source names no more does not have a record again once a content
// comes that it has waited for.
func TestWaitsInFormerSetOfARecord(t *testing.T) {
	first, second := &resourceSet{}, &resourceSet{}
	s, l, failing := libraryOf(t, first, second)
	l.dated, l.minute = true, 2
	l.version["a"], first.has["a"], second.has["a"] = 1, true, true
	l.tell(first, "created", "a")
	s.run()
	l.version["a"], l.minute, failing["/r/a"] = 2, 3, true
	l.tell(second, "created", "a")
	s.run()
	second.named = false
	clear(failing)
	s.run()
	delete(l.version, "a")
	delete(first.has, "a")
	l.minute = 4
	l.tell(first, "deleted", "a")
	s.run()
	if got, want := strings.ReplaceAll(s.news(), l.url+"/r", ""), "created /a, created /z, deleted /a"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
}

// A held deletion that is released, and that the URL of its record refutes, is not held any more.
func TestReleaseRefuted(t *testing.T) {
	set := &resourceSet{}
	s, l, _ := libraryOf(t, set)
	for i := range 12 {
		name := fmt.Sprint(i)
		l.version[name] = 1
		l.tell(set, "created", name)
	}
	s.run()
	set.changes, l.minute = nil, 5
	l.show(set)
	r, err := s.try(harvest.Options{Full: true})
	s.must(err)
	delete(l.version, "3")
	src := s.src
	released, err := s.harvest.Release(t.Context(), &src, event.MicrosOf(time.Now()))
	s.must(err)
	held, err := s.log.Held(t.Context(), s.src.ID, true, math.MaxInt64)
	s.must(err)
	if r.Held != 12 || released.Deleted != 1 || len(held) != 0 {
		t.Errorf("held %d, then deleted %d and held %d, want 12, 1, 0", r.Held, released.Deleted, len(held))
	}
}

// A set of resources that was harvested while the Capability List of another one failed keeps its
// number, so that it deletes what it had then, also when the walk was broken off.
func TestNumbersOutliveGap(t *testing.T) {
	for _, broken := range []bool{false, true} {
		first, second := &resourceSet{}, &resourceSet{}
		s, l, failing := libraryOf(t, first, second)
		l.dated, l.minute = true, 2
		l.version["a"], second.has["a"] = 1, true
		l.tell(second, "created", "a")
		failing["/cap0"], failing["/rl1"] = true, broken
		for range 2 { // the second one goes on where the first one was broken off
			if r, err := s.try(harvest.Options{}); r.Gap == "" && err == nil {
				t.Fatal("the first set of resources is not missed")
			}
		}
		clear(failing)
		s.run()
		l.minute = 3
		delete(l.version, "a")
		delete(second.has, "a")
		l.tell(second, "deleted", "a")
		s.run()
		if got, want := strings.ReplaceAll(s.news(), l.url+"/r", ""), "created /a, created /z, deleted /a"; got != want {
			t.Errorf("broken off %t: events: %s, want %s", broken, got, want)
		}
	}
}

// A record that a Resource List does not have any more is deleted, however old that of another set is:
// where there are no Change Lists, and where they have lost the deletion.
func TestAbsentBesideOlderResourceList(t *testing.T) {
	for _, listed := range []bool{true, false} {
		first, second := &resourceSet{}, &resourceSet{}
		s, l, _ := libraryOf(t, first, second)
		l.dated, l.listed, l.minute = true, listed, 5
		l.version["a"], second.has["a"] = 1, true
		l.tell(second, "created", "a")
		l.show(second)
		s.run()
		l.minute, l.from, second.changes = 20, 10, nil
		delete(l.version, "a")
		delete(second.has, "a")
		l.show(second)
		s.run()
		if got, want := strings.ReplaceAll(s.news(), l.url+"/r", ""), "created /a, created /z, deleted /a"; got != want {
			t.Errorf("Resource Lists only %t: events: %s, want %s", listed, got, want)
		}
	}
}

// What waits in a set of resources that leaves the record is published as another set has listed it,
// also where that did so at another time.
func TestWaitsInOtherSet(t *testing.T) {
	first, second := &resourceSet{}, &resourceSet{}
	s, l, failing := libraryOf(t, first, second)
	l.dated, l.minute = true, 2
	l.version["a"], first.has["a"], second.has["a"] = 1, true, true
	l.tell(first, "created", "a")
	l.tell(second, "created", "a")
	s.run()
	l.version["a"], l.version["b"], first.has["b"], second.has["b"] = 2, 2, true, true
	failing["/r/a"], failing["/r/b"] = true, true
	for _, set := range l.sets {
		l.minute++
		l.tell(set, "updated", "a")
		l.tell(set, "created", "b")
	}
	s.run()
	second.named = false
	s.run()
	clear(failing)
	s.run()
	if got, want := strings.ReplaceAll(s.news(), l.url+"/r", ""), "created /a, created /b, created /z, updated /a"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
}

// A reset, or a Source that is forgotten, loses nothing of what it keeps when it is killed between
// two of its transactions: the numbers by which the reports of sets of resources are known.
func TestResetKilled(t *testing.T) {
	for _, forget := range []bool{false, true} {
		s, l, _ := libraryOf(t, &resourceSet{}, &resourceSet{})
		s.run()
		if got, want := strings.ReplaceAll(s.news(), l.url+"/r", ""), "created /z"; got != want {
			t.Errorf("events: %s, want %s", got, want)
		}
		var kept []string
		s.log.ReportCommits(func(time.Duration) {
			p, err := s.log.Progress(t.Context(), s.src.ID)
			s.must(err)
			kept = append(kept, string(p.Memory))
		})
		if forget {
			src := s.src
			_, err := s.harvest.Forget(t.Context(), &src, true)
			s.must(err)
		} else {
			s.must(s.harvest.Reset(t.Context(), s.src.ID))
		}
		s.log.ReportCommits(func(time.Duration) {})
		if len(kept) == 0 {
			t.Fatal("nothing was committed")
		}
		for i, memory := range kept {
			if memory != kept[len(kept)-1] {
				t.Errorf("forgotten %t: killed after transaction %d of %d it remembers %q, at its end %q", forget, i+1, len(kept), memory, kept[len(kept)-1])
			}
		}
		if !strings.Contains(kept[len(kept)-1], "/cap1") {
			t.Errorf("it remembers %q, not its sets of resources", kept[len(kept)-1])
		}
	}
}

// A deletion that is replayed, of which nobody knows in which set of resources it stood, holds
// where several have the record only if that is gone.
func TestReplayedDeletionBesideOtherSet(t *testing.T) {
	for _, gone := range []bool{false, true} {
		first, second := &resourceSet{}, &resourceSet{}
		s, l, _ := libraryOf(t, first, second)
		l.dated, l.minute, l.version["a"] = true, 2, 1
		for _, set := range l.sets {
			set.has["a"] = true
			l.tell(set, "created", "a")
		}
		s.run()
		l.minute = 3
		delete(first.has, "a")
		if gone {
			delete(second.has, "a")
			delete(l.version, "a")
		}
		input := fmt.Sprintf(`<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="changelist" from="%s"/><url><loc>%s/r/a</loc><rs:md change="deleted" datetime="%s"/></url></urlset>`,
			minute(0), l.url, minute(3))
		src := s.src
		_, err := s.harvest.Replay(t.Context(), &src, &event.Quarantined{URL: l.url + "/cl0", Record: l.url + "/r/a", Input: []byte(input)})
		s.must(err)
		want := "created /a, created /z"
		if gone {
			want += ", deleted /a"
		}
		if got := strings.ReplaceAll(s.news(), l.url+"/r", ""); got != want {
			t.Errorf("gone %t: events %s, want %s", gone, got, want)
		}
	}
}

// What was bad since it exceeds [limits] is taken by replay once these are higher.
func TestReplayWithHigherLimits(t *testing.T) {
	deep := strings.Repeat("<x:a xmlns:x='urn:x'>", 300) + strings.Repeat("</x:a>", 300)
	for kind, input := range map[string]string{
		harvest.AtomPMH: `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:x:feed</id><title>F</title><updated>2026-01-02T00:00:00Z</updated><entry><id>urn:x:1</id><title>One</title>
			<updated>2026-01-02T00:00:00Z</updated><link rel="alternate" type="text/html" href="http://127.0.0.1/1"/>` + deep + `</entry></feed>`,
		harvest.ResourceSync: `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-02T00:00:00Z"/>
			<url><loc>http://127.0.0.1/1</loc><lastmod>2026-01-02T00:00:00Z</lastmod>` + deep + `</url></urlset>`,
	} {
		s := newShelf(t, t.TempDir(), event.Reference)
		s.from(kind, "http://127.0.0.1/doc", http.DefaultClient)
		src, q := s.src, &event.Quarantined{URL: s.src.URL, Input: []byte(input)}
		if _, err := s.harvest.Replay(t.Context(), &src, q); !errors.Is(err, harvest.ErrStillBad) {
			t.Errorf("%s, the limits are as they were: %v", kind, err)
		}
		src.Limits.Depth = 1000
		_, err := s.harvest.Replay(t.Context(), &src, q)
		s.must(err)
		if got := s.news(); got != "created urn:x:1" && got != "created http://127.0.0.1/1" {
			t.Errorf("%s: events %q", kind, got)
		}
	}
}
