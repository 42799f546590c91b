package audit_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/audit"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// source is a ResourceSync Source below a path, with records r0 to r19, each in one of
// the states of a resource. A Resource List has them as they are now, a Change List the
// deletions that it tells of.
type source struct {
	path  string
	at    int // seconds
	state [20]int
	since [20]int
	gone  map[string]bool // contents that are not there, of both Sources
}

const (
	never = iota
	there
	deleted // by the Change List
	absent
	bad // its entry cannot be read
)

func when(seconds int) string {
	return time.Unix(1_700_000_000+int64(seconds), 0).UTC().Format(time.RFC3339)
}

func (s *source) set(i, state int) {
	s.at++
	s.state[i], s.since[i] = state, s.at
}

func (s *source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	base := "http://" + r.Host
	head := `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">`
	switch strings.TrimPrefix(r.URL.Path, s.path) {
	case "/capabilitylist.xml":
		fmt.Fprintf(w, `%s<rs:md capability="capabilitylist"/><url><loc>%s%s/resourcelist.xml</loc><rs:md capability="resourcelist"/></url><url><loc>%[2]s%[3]s/changelist.xml</loc><rs:md capability="changelist"/></url></urlset>`, head, base, s.path)
	case "/resourcelist.xml":
		fmt.Fprintf(w, `%s<rs:md capability="resourcelist" at="%s"/>`, head, when(s.at))
		for i, state := range s.state {
			loc := fmt.Sprintf("%s/res/r%d", base, i)
			switch state {
			case there:
				fmt.Fprintf(w, `<url><loc>%s</loc><lastmod>%s</lastmod><rs:md hash="sha-256:%x" type="text/plain"/></url>`, loc, when(s.since[i]), sha256.Sum256([]byte(loc)))
			case bad:
				fmt.Fprintf(w, `<url><loc>%s</loc><rs:md type="text/%s"/></url>`, loc, strings.Repeat("x", event.MaxType))
			}
		}
		_, _ = io.WriteString(w, "</urlset>")
	case "/changelist.xml":
		fmt.Fprintf(w, `%s<rs:md capability="changelist" from="%s"/>`, head, when(0))
		for at := 1; at <= s.at; at++ {
			for i, state := range s.state {
				if state == deleted && s.since[i] == at {
					fmt.Fprintf(w, `<url><loc>%s/res/r%d</loc><rs:md change="deleted" datetime="%s"/></url>`, base, i, when(at))
				}
			}
		}
		_, _ = io.WriteString(w, "</urlset>")
	default:
		if s.gone[r.URL.Path] {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, base+r.URL.Path)
	}
}

// The counts of a report add up, and are those of a naive model, after any history of two
// Sources of a set, whether or not it was harvested; and so they are after a repair.
func TestReportAddsUp(t *testing.T) {
	for seed := range uint64(testenv.Rounds(t, 3, 300)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 11))
			gone := map[string]bool{}
			all := []*source{{path: "/one", gone: gone}, {path: "/two", gone: gone}}
			mux := http.NewServeMux()
			mux.Handle("/one/", all[0])
			mux.Handle("/two/", all[1])
			mux.Handle("/res/", all[0])
			server := httptest.NewServer(mux)
			defer server.Close()
			b := open(t, server.URL)
			for range 6 {
				for range random.IntN(20) {
					s, i := all[random.IntN(2)], random.IntN(20)
					switch state := []int{there, there, there, deleted, absent, bad}[random.IntN(6)]; {
					case s.state[i] == never && state != there && state != bad:
					default:
						s.set(i, state)
					}
					if path := fmt.Sprintf("/res/r%d", i); random.IntN(4) == 0 {
						gone[path] = !gone[path]
					}
				}
				for n := range b.sources {
					if random.IntN(2) == 0 {
						b.harvest(n)
					}
				}
				for n := range b.sources {
					b.wantReport(n, all[n], server.URL)
				}
			}
			for n := range b.sources {
				if r := b.audit(n, true); r.Sums() != nil {
					t.Errorf("a repair: %v: %+v", r.Sums(), r)
				}
			}
			for n := range b.sources {
				b.wantReport(n, all[n], server.URL)
			}
		})
	}
}

// What was changed here during the audit was not judged, so the audit is no proof, and says why:
// what could not be checked is status 3.
func TestChangedMeanwhile(t *testing.T) {
	s := &source{path: "/one"}
	s.set(0, there)
	var meanwhile func()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if do := meanwhile; do != nil && r.URL.Path == "/one/resourcelist.xml" {
			meanwhile = nil
			do()
		}
		s.ServeHTTP(w, r)
	}))
	defer server.Close()
	b := open(t, server.URL)
	b.harvest(0)
	s.set(1, there)
	meanwhile = func() {
		if _, err := b.harvester().Run(t.Context(), b.sources[0], harvest.Options{Full: true}); err != nil {
			t.Error(err)
		}
	}
	if r := b.audit(0, false); r.Changed != 1 || r.Whole() || len(r.Unchecked) != 1 || !strings.Contains(r.Unchecked[0], "changed here during the audit (1)") {
		t.Errorf("%+v", r)
	}
	if r := b.audit(0, false); !r.Whole() || len(r.Unchecked) > 0 {
		t.Errorf("%+v", r)
	}
}

// A server of originals that fails again and again is not asked for each of them, which may take
// a minute; what was not asked for is counted. Others are asked for all.
func TestFailingOrigin(t *testing.T) {
	var asked atomic.Int64
	dead := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer dead.Close()
	alive := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	defer alive.Close()
	const each = 40
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">`
		switch r.URL.Path {
		case "/one/capabilitylist.xml":
			fmt.Fprintf(w, `%s<rs:md capability="capabilitylist"/><url><loc>http://%s/resourcelist.xml</loc><rs:md capability="resourcelist"/></url></urlset>`, head, r.Host)
		case "/resourcelist.xml":
			fmt.Fprintf(w, `%s<rs:md capability="resourcelist" at="%s"/>`, head, when(0))
			for i := range each {
				for _, origin := range []string{dead.URL, alive.URL} {
					path := fmt.Sprintf("/%d/%s", i, strings.TrimPrefix(origin, "http://"))
					fmt.Fprintf(w, `<url><loc>http://%s%s</loc><rs:md type="text/plain"/><rs:ln rel="via" href="%s%s"/></url>`, r.Host, path, origin, path)
				}
			}
			_, _ = io.WriteString(w, "</urlset>")
		default:
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, r.URL.Path)
		}
	}))
	defer server.Close()
	b := open(t, server.URL)
	b.harvest(0)
	a := audit.Auditor{Log: b.log, Contents: b.store, Origin: http.DefaultClient, Workers: 1}
	r, err := a.Source(t.Context(), b.sources[0], func(harvest.Progress) {}, func(context.Context, *audit.Page) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if r.Originals != each+8 || asked.Load() != 8 || r.Differences != 0 {
		t.Errorf("%d originals were asked for, %d of the server that fails; %d differences", r.Originals, asked.Load(), r.Differences)
	}
	want := fmt.Sprintf("%d originals at %s: the last 8 requests there failed", each-8, strings.TrimPrefix(dead.URL, "http://"))
	if n := len(r.Unchecked); n != 9 || !strings.HasPrefix(r.Unchecked[n-1], want) {
		t.Errorf("not checked: %q, want at the end %q", r.Unchecked, want)
	}
}

type bridge struct {
	t       *testing.T
	log     *eventlog.Log
	store   *content.Store
	sources []*harvest.Source
}

func open(t *testing.T, url string) *bridge {
	t.Helper()
	folder := t.TempDir()
	b := &bridge{t: t}
	var err error
	if b.log, err = eventlog.Open(t.Context(), folder, eventlog.Options{}); err != nil {
		t.Fatal(err)
	}
	if b.store, err = content.Open(t.Context(), filepath.Join(folder, "content.db"), content.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.store.Close(), b.log.Close()); err != nil {
			t.Error(err)
		}
	})
	sets := []eventlog.SetConfig{{Name: "main", Content: event.Mirror, Sources: []eventlog.SourceConfig{
		{Kind: harvest.ResourceSync, URL: url + "/one/capabilitylist.xml"}, {Kind: harvest.ResourceSync, URL: url + "/two/capabilitylist.xml"}}}}
	if _, err := b.log.Configure(t.Context(), sets); err != nil {
		t.Fatal(err)
	}
	for _, s := range sets[0].Sources {
		b.sources = append(b.sources, &harvest.Source{ID: s.ID, Set: "main", Kind: s.Kind, URL: s.URL, Content: event.Mirror, Client: http.DefaultClient, MaxDocuments: 100})
	}
	return b
}

func (b *bridge) harvester() *harvest.Harvester {
	return &harvest.Harvester{Log: b.log, Contents: b.store}
}

func (b *bridge) harvest(n int) {
	b.t.Helper()
	if _, err := b.harvester().Run(b.t.Context(), b.sources[n], harvest.Options{AllPending: true}); err != nil {
		b.t.Fatal(err)
	}
}

// audit audits one of the Sources.
func (b *bridge) audit(n int, repair bool) *audit.Report {
	b.t.Helper()
	a := audit.Auditor{Log: b.log, Contents: b.store}
	r, err := a.Source(b.t.Context(), b.sources[n], func(harvest.Progress) {}, func(ctx context.Context, p *audit.Page) error {
		if !repair {
			return nil
		}
		in := harvest.Repairs{Absent: p.Absent, Have: p.Have, Active: p.Active}
		for i := range p.Differences {
			if r := p.Differences[i].Repair; r != nil {
				in.Records = append(in.Records, *r)
			}
		}
		_, _, err := b.harvester().Repair(ctx, b.sources[n], &in)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// wantReport compares the counts of a report with what a naive model makes of the Source
// and the log.
func (b *bridge) wantReport(n int, s *source, url string) {
	b.t.Helper()
	got := b.audit(n, false)
	if err := got.Sums(); err != nil {
		b.t.Errorf("%v: %+v", err, got)
	}
	want := audit.Report{}
	for i, state := range s.state {
		loc := fmt.Sprintf("%s/res/r%d", url, i)
		holds, err := b.log.Presence(b.t.Context(), b.sources[n].ID, loc)
		if err != nil {
			b.t.Fatal(err)
		}
		said, err := b.log.SourceRecordsOf(b.t.Context(), b.sources[n].ID, []string{loc})
		if err != nil {
			b.t.Fatal(err)
		}
		ev, err := b.log.Record(b.t.Context(), "main", event.Key(loc))
		known := err == nil
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.t.Fatal(err)
		}
		live := known && ev.Live()
		pending := said[0].Pending != ""
		here := holds == event.Present && live && said[0].Alive
		if here {
			want.Here++
		}
		if state == there || state == bad {
			want.AtSource++
		}
		switch {
		case state == bad:
			want.Quarantined++
			if here {
				want.NotRead++
			}
		case state == there && here && said[0].Authority:
			want.Published++
		case state == there && here:
			want.OtherSource++
		case state == there && pending:
			want.Pending++
		case state == there && live && holds == event.NeverPresent:
			want.GivenBack++
		case state == there && known || state == there && holds == event.Withdrawn:
			want.DeletedHere++
		case state == there:
			want.Missing++
		case here && said[0].Held:
			want.Held++
		case here && state == deleted:
			want.ToDelete++
		case here:
			want.Extra++
		}
	}
	counts := func(r *audit.Report) string {
		return fmt.Sprintf("there %d: published %d, other %d, given back %d, pending %d, quarantined %d, deleted here %d, missing %d; here %d: to delete %d, held %d, extra %d, not read %d",
			r.AtSource, r.Published, r.OtherSource, r.GivenBack, r.Pending, r.Quarantined, r.DeletedHere, r.Missing, r.Here, r.ToDelete, r.Held, r.Extra, r.NotRead)
	}
	if counts(got) != counts(&want) {
		b.t.Errorf("Source %d:\n got %s\nwant %s", n, counts(got), counts(&want))
	}
}
