package publish

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// destination follows a set with a Walk, and keeps what lives there.
type destination struct {
	state resourcesync.State
	live  map[string]string // hash by loc
}

// follow reads what is new. The first list that names a resource says what it is now, and
// in a Change List the last entry.
func (d *destination) follow(t *rapid.T, client *http.Client) resourcesync.Result {
	w := resourcesync.Walk{Client: client, URL: base + "/sets/main/capabilitylist.xml", State: d.state}
	met, present := map[string]bool{}, map[string]bool{}
	for l, err := range w.Documents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]*resourcesync.Entry{}
		for e, bad := range l.Entries() {
			if bad != nil {
				t.Fatal(bad)
			}
			kept := *e
			said[e.Loc] = &kept
			present[e.Loc] = present[e.Loc] || l.Baseline
		}
		for loc, e := range said {
			switch {
			case met[loc]:
			case e.Metadata.Change == resourcesync.Deleted:
				delete(d.live, loc)
			default:
				d.live[loc] = e.Metadata.Hash
			}
			met[loc] = true
		}
	}
	r := w.Result()
	if r.Complete {
		for loc := range d.live {
			if !met[loc] && !present[loc] {
				delete(d.live, loc)
			}
		}
	}
	d.state = r.State
	return r
}

// handler answers with the documents of a Publisher.
func handler(p *Publisher) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		doc, err := p.Document(r.Context(), r.URL.Path, false)
		var notReady *NotReadyError
		switch {
		case errors.Is(err, ErrNotFound):
			http.NotFound(w, r)
			return
		case errors.As(err, &notReady):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("ETag", doc.ETag)
		w.Header().Set("Content-Type", doc.ContentType)
		if r.Header.Get("If-None-Match") == doc.ETag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		body, _, err := doc.Open()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer body.Close()
		_, _ = io.Copy(w, body)
	})
}

// Whoever slept has, through the archive, what one has who never slept, and needs no
// baseline for it; both have what the log says.
func TestAsleepLaw(t *testing.T) {
	testenv.Checks(t, 15)
	rapid.Check(t, func(rt *rapid.T) {
		l := history(rapid.IntRange(1, 3).Draw(rt, "events of a segment"), event.Mirror)
		l.fill("main", rapid.IntRange(1, 10).Draw(rt, "events before"))
		p := newPublisher(t, l)
		server := httptest.NewServer(handler(p))
		defer server.Close()
		client := &http.Client{Transport: toServer{server}}
		asleep, awake := &destination{live: map[string]string{}}, &destination{live: map[string]string{}}
		asleep.follow(rt, client)
		awake.follow(rt, client)
		// From here on the lists are short; the Resource List is one document all the same.
		p.limits.Entries = rapid.IntRange(2, 5).Draw(rt, "entries of an index")
		for range rapid.IntRange(1, 5).Draw(rt, "rounds") {
			l.fill("main", rapid.IntRange(0, 15).Draw(rt, "events"))
			if r := awake.follow(rt, client); r.Gap != nil {
				rt.Fatalf("awake: %v", r.Gap)
			}
			if rapid.Bool().Draw(rt, "sleeps on") {
				continue
			}
			if r := asleep.follow(rt, client); r.Gap != nil || r.Lost != "" || r.Baseline {
				rt.Fatalf("asleep: gap %v, lost %q, baseline %t", r.Gap, r.Lost, r.Baseline)
			}
			wantLive(rt, l, asleep, awake)
		}
		if r := asleep.follow(rt, client); r.Gap != nil || r.Lost != "" || r.Baseline {
			rt.Fatalf("asleep: gap %v, lost %q, baseline %t", r.Gap, r.Lost, r.Baseline)
		}
		wantLive(rt, l, asleep, awake)
	})
}

// wantLive fails unless Destinations have what lives in the set.
func wantLive(t *rapid.T, l *sliceLog, all ...*destination) {
	set, _ := l.Set(t.Context(), "main")
	var want []string
	for e, err := range l.Listed(t.Context(), "main", set.Last) {
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, string(e.Via.Hash))
	}
	slices.Sort(want)
	for _, d := range all {
		var have []string
		for _, hash := range d.live {
			have = append(have, hash)
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Fatalf("it has\n%q\nwant\n%q", have, want)
		}
	}
}

// toServer sends all requests to a server on loopback.
type toServer struct{ *httptest.Server }

func (s toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", s.Listener.Addr().String()
	return s.Client().Transport.RoundTrip(r)
}
