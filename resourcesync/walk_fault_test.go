package resourcesync

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

var errNetwork = errors.New("the network is down")

// failingAt is a transport whose nth request goes wrong: with a status, or else
// with errNetwork.
type failingAt struct {
	next   http.RoundTripper
	status int
	mu     sync.Mutex
	left   int
}

func (f *failingAt) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.left--
	now := f.left == 0
	f.mu.Unlock()
	if !now {
		return f.next.RoundTrip(r)
	}
	if f.status == 0 {
		return nil, errNetwork
	}
	return &http.Response{StatusCode: f.status, Body: http.NoBody, Request: r, Header: http.Header{}}, nil
}

// scene is a state of a Source and of what is known of it.
type scene struct {
	name  string
	path  string
	serve func(*testing.T, *site) State
}

func scenes() []scene {
	before := func(path string) func(*testing.T, *site) State {
		return func(t *testing.T, s *site) State {
			g := s.run(s.walk(path))
			if !g.whole {
				t.Fatalf("gap %v, error %v", g.Gap, g.err)
			}
			return g.State
		}
	}
	return []scene{
		{"first", "/", func(_ *testing.T, s *site) State { classic(s); return State{} }},
		{"from a part", "/cl4", func(_ *testing.T, s *site) State {
			classic(s)
			s.put("/cl4", urlset(attrs("capability", "changelist", "from", 10), ln("index", "{}/cl"), change("c", 11)))
			return State{}
		}},
		{"from robots.txt", "/", func(_ *testing.T, s *site) State {
			classic(s)
			s.remove("/.well-known/resourcesync")
			s.put("/robots.txt", "Sitemap: /rl")
			return State{}
		}},
		{"from a dump", "/dump", func(_ *testing.T, s *site) State {
			classic(s)
			s.put("/dump", urlset(attrs("capability", "resourcedump", "at", 5), ln("up", "{}/cap")))
			return State{}
		}},
		{"again", "/", func(t *testing.T, s *site) State {
			classic(s)
			m := before("/")(t, s)
			s.put("/cl4", changes(10, 0, change("c", 11), change("d", 12)))
			return m
		}},
		{"lost", "/cap", func(t *testing.T, s *site) State {
			classic(s)
			m := before("/cap")(t, s)
			s.put("/cl", changes(12, 0, change("d", 13)))
			return m
		}},
		{"moved", "/cap", func(t *testing.T, s *site) State {
			classic(s)
			m := before("/cap")(t, s)
			s.remove("/cl")
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl4", "changelist")))
			return m
		}},
		{"closed", "/cap", func(t *testing.T, s *site) State {
			classic(s)
			s.put("/cl", changes(1, 10, change("a", 2)))
			m := before("/cap")(t, s)
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl4", "changelist")))
			return m
		}},
		{"parts", "/cap", func(_ *testing.T, s *site) State { parts(s, 0); return State{} }},
		{"parts again", "/cap", func(t *testing.T, s *site) State {
			parts(s, 0)
			m := before("/cap")(t, s)
			s.put("/p3", resources(0, res("c"), res("d")))
			return m
		}},
		{"parts beside Change Lists", "/sd", func(_ *testing.T, s *site) State {
			parts(s, 6)
			s.put("/sd", sitemapindex(attrs("capability", "description"), named("/cap"), named("/cap2")))
			s.put("/cap", urlset(attrs("capability", "capabilitylist"), lists("/rl", "resourcelist"), lists("/cl", "changelist")))
			s.put("/cl", changes(1, 0, change("a", 7)))
			s.put("/cap2", urlset(attrs("capability", "capabilitylist"), lists("/cl2", "changelist"), lists("/p1", "resourcelist")))
			s.put("/cl2", changes(1, 0))
			return State{}
		}},
	}
}

// eachRequest repeats the walk of each scene, every time with another request
// going wrong. whole is the walk without that.
func eachRequest(t *testing.T, status int, judge func(t *testing.T, got, whole *walked, nth string)) {
	for _, sc := range scenes() {
		t.Run(sc.name, func(t *testing.T) {
			s := newSite(t)
			s.tags = true
			w := s.walk(sc.path)
			w.State = sc.serve(t, s)
			s.requests()
			whole := s.run(w)
			n := len(strings.Fields(s.requests()))
			if !whole.whole || n < 2 {
				t.Fatalf("%d requests, gap %v, error %v", n, whole.Gap, whole.err)
			}
			for i := range n {
				bad := *w
				bad.Client = &http.Client{Transport: &failingAt{next: s, left: i + 1, status: status}}
				judge(t, s.run(&bad), whole, fmt.Sprintf("request %d of %d", i+1, n))
			}
			s.run(w).expect(t, strings.Join(whole.lists, " "))
		})
	}
}

// TestEachRequestFails: when the network fails at any request the walk ends with
// that error, and the next one does what it would have done. At the newest list of an index that
// can be had it may be that list alone which is not answered: it is a gap, and says so.
func TestEachRequestFails(t *testing.T) {
	eachRequest(t, 0, func(t *testing.T, got, _ *walked, nth string) {
		newest := got.err == nil && got.Gap != nil && strings.HasSuffix(got.Gap.URL, "/cl4") && strings.Contains(got.Gap.Reason, errNetwork.Error())
		if !newest && !errors.Is(got.err, errNetwork) || got.Complete || got.whole {
			t.Errorf("%s: %+v, error %v", nth, got.Result, got.err)
		}
	})
}

// TestEachRequestMissing: when any document is missing, a walk that calls itself
// complete has seen all there is, and one that leaves something out says so.
func TestEachRequestMissing(t *testing.T) {
	eachRequest(t, http.StatusNotFound, func(t *testing.T, got, whole *walked, nth string) {
		if got.Complete && !enumerates(got, whole) {
			t.Errorf("%s: complete after %v, want %v", nth, got.lists, whole.lists)
		}
		said := got.err != nil || got.Gap != nil || got.Lost != "" || len(got.problems) > len(whole.problems)
		if !said && !got.Complete && !slices.Equal(got.lists, whole.lists) {
			t.Errorf("%s: visited %v, want %v, and nothing is said", nth, got.lists, whole.lists)
		}
	})
}

// A gap says where it is once, and a walk that is too long what to do.
func TestErrors(t *testing.T) {
	for want, gap := range map[string]Gap{
		"http://a.example/1: HTTP 404": {URL: "http://a.example/1", Reason: "HTTP 404"},
		"http://a.example/1:1:1: RSS":  {URL: "http://a.example/1", Reason: "http://a.example/1:1:1: RSS"},
	} {
		if gap.String() != want {
			t.Errorf("got %s, want %s", gap, want)
		}
	}
	err := error(&TooManyError{URL: "http://a.example/", Read: 9})
	if want := "http://a.example/: too many documents in one walk: 9 were read; if the Source is that large, raise the cap and go on"; err.Error() != want || !errors.Is(err, ErrTooManyDocuments) {
		t.Errorf("got %v", err)
	}
}

// enumerates reports whether a walk has visited every Resource List of another.
func enumerates(got, whole *walked) bool {
	seen := " " + strings.Join(got.lists, " ") + " "
	for _, l := range whole.lists {
		if strings.HasSuffix(l, "*") && !strings.Contains(seen, " "+l+" ") {
			return false
		}
	}
	return true
}
