package publish_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

const siteBase = "http://bridge.example/pool"

// site is a log, a content store, a Publisher and a server, without a network between them and
// its consumers. Its documents have few entries, so that every kind of them is met.
type site struct {
	t        *testing.T
	rnd      *rand.Rand
	folder   string
	set      string
	mode     event.Content
	log      *eventlog.Log
	contents *content.Store
	pub      *publish.Publisher
	server   *server.Server
	handler  http.Handler

	repositories    map[string]*publish.Repository
	began           time.Time
	elapsed, behind time.Duration // of the clock: since the begin, and how far it is set back
	sources         []event.SourceID
	cursors         map[event.SourceID]int64
	stamp, version  int64

	ends   map[int64]bool    // when something was logged last with the rest of its batch; before, a loc that one record leaves to another is gone
	quiet  bool              // nothing happens while a consumer reads
	tags   map[string]string // hash by URL and entity tag
	closed map[string]string // hash by URL of what may be kept for a while
	done   map[string]int    // how often what happened
}

func newSite(t *testing.T, seed uint64, mode event.Content) *site {
	t.Helper()
	s := &site{t: t, rnd: rand.New(rand.NewPCG(seed, seed)), folder: t.TempDir(), set: "main", mode: mode, began: time.Now().Truncate(time.Second),
		cursors: map[event.SourceID]int64{}, ends: map[int64]bool{}, tags: map[string]string{}, closed: map[string]string{}, done: map[string]int{}}
	s.open()
	s.check(s.log.EnsureSet(t.Context(), eventlog.SetConfig{Name: s.set, Title: "The <set> & its title", Content: mode, SegmentEvents: 4, KeepLists: 3, Dumps: mode == event.Mirror,
		History: mode == event.Mirror && seed%2 == 0}))
	for rank := range 2 {
		id, err := s.log.EnsureSource(t.Context(), s.set, "atompmh", fmt.Sprintf("https://origin.example/%d.atom", rank), rank)
		s.check(err)
		s.sources = append(s.sources, id)
	}
	t.Cleanup(s.close)
	return s
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) now() time.Time { return s.began.Add(s.elapsed - s.behind) }

func (s *site) open() {
	s.t.Helper()
	var err error
	s.log, err = eventlog.Open(context.Background(), filepath.Join(s.folder, "data"), eventlog.Options{Clock: func() (time.Time, time.Duration) { return s.now(), s.elapsed }})
	s.check(err)
	s.contents, err = content.Open(context.Background(), filepath.Join(s.folder, "data", "content.db"), content.Options{})
	s.check(err)
	s.pub, err = publish.New(publish.Options{Log: s.log, BaseURL: siteBase, CacheDir: filepath.Join(s.folder, "cache"), SnapshotDir: filepath.Join(s.folder, "snapshots"), CacheBytes: 1 << 20,
		Content: s.content, Now: s.now, Retention: publish.Retention{Age: 24 * time.Hour, Count: 100, Bytes: 1 << 30}})
	s.check(err)
	s.pub.LimitEntries(6)
	s.server = server.New(server.Options{Documents: s.pub, Log: s.log, Contents: opener(s.content), BaseURL: siteBase, Now: s.now, Moved: s.moved, Repository: s.repository})
	s.handler, s.repositories = s.server.Handler(), map[string]*publish.Repository{}
}

// moved returns the name that a set has by now.
func (s *site) moved(name string) string {
	all, err := s.log.FormerNames(context.Background())
	s.check(err)
	for _, f := range all {
		if f.Name == name {
			return f.Now
		}
	}
	return ""
}

func (s *site) repository(_ context.Context, set string) (*publish.Repository, error) {
	if set != s.set {
		return nil, publish.ErrNotFound
	}
	if s.repositories[set] == nil {
		s.repositories[set] = publish.NewRepository(publish.RepositoryOptions{Log: s.log, BaseURL: siteBase, Set: set, Content: s.content, AdminEmail: "a@bridge.example", Page: 3})
	}
	return s.repositories[set], nil
}

// rename gives the set another name, or one that it had before.
func (s *site) rename() {
	s.t.Helper()
	was := s.set
	for s.set == was {
		s.set = []string{"main", "other", "third"}[s.rnd.IntN(3)]
	}
	s.check(s.log.RenameSet(s.t.Context(), was, s.set, true))
	for _, name := range []string{was, s.set} {
		s.pub.Forget(name)
		s.server.Forget(name)
	}
	s.check(os.RemoveAll(filepath.Join(s.folder, "snapshots", was)))
}

type opener func(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error)

func (o opener) Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	return o(ctx, sum)
}

func (s *site) content(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	b, err := s.contents.Open(ctx, sum)
	if err != nil {
		return nil, 0, err
	}
	return b, b.Size(), nil
}

func (s *site) close() {
	if err := errors.Join(s.contents.Close(), s.log.Close()); err != nil {
		s.t.Error(err)
	}
}

// happen lets something happen to the site.
func (s *site) happen() {
	s.t.Helper()
	ctx, what := s.t.Context(), ""
	switch s.elapsed += time.Duration(s.rnd.IntN(3)) * 400 * time.Millisecond; s.rnd.IntN(25) {
	default:
		what = "change"
		s.change()
	case 9:
		what = "rename"
		s.rename()
	case 0:
		what = "day"
		s.elapsed += 26 * time.Hour
	case 1:
		what = "clock"
		s.behind = time.Duration(s.rnd.IntN(2)) * time.Hour
	case 2, 3:
		what = "snapshot"
		s.check(s.pub.Snapshot(ctx, s.set))
	case 4:
		what = "kept"
		s.check(s.pub.KeepLists(ctx, s.set))
	case 5, 6:
		what = "dumps"
		set, err := s.log.Set(ctx, s.set)
		s.check(err)
		s.check(s.pub.MakeDumps(ctx, set))
	case 7:
		what = "restart"
		s.close()
		s.open()
	case 8:
		what = "cache"
		s.check(os.RemoveAll(filepath.Join(s.folder, "cache")))
	}
	s.done[what]++
}

// names are identifiers of records; only some of them are IRIs.
var names = []string{"urn:example:1", "urn:example:2", "https://origin.example/é?a=1&b=<2>", "Post: my first one", `a "b" 'c'`, "10.1000/182", "urn:example:7", "urn:example:8", "x", "urn:example:10", "urn:example:11", "urn:example:12"}

// change logs what a Source says of some records.
func (s *site) change() {
	s.t.Helper()
	source := s.sources[s.rnd.IntN(len(s.sources))]
	batch := event.Batch{Source: source, Cursor: s.cursors[source], Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom", FeedID: "urn:example:feed", FeedTitle: "Feed & more"}}}
	for _, i := range s.rnd.Perm(len(names))[:1+s.rnd.IntN(5)] {
		it := &event.Item{Observation: s.observation(names[i])}
		it.Claim = it.ClaimOf()
		batch.Items = append(batch.Items, it)
	}
	out, err := s.log.Append(s.t.Context(), &batch)
	s.check(err)
	s.cursors[source] = out.Cursor
	set, err := s.log.Set(s.t.Context(), s.set)
	s.check(err)
	s.ends[int64(set.LastObserved)] = true
}

func (s *site) observation(record string) event.Observation {
	s.version++
	if s.rnd.IntN(4) > 0 { // else it has the time of another one
		s.stamp++
	}
	o := event.Observation{Record: record, Order: event.StampFromNanos(1_700_000_000_000_000_000 + s.stamp*1e8), Title: fmt.Sprintf("Version <%d> & more", s.version)}
	o.Modified = o.Order
	if o.Deleted = s.rnd.IntN(3) == 0; o.Deleted {
		return o
	}
	o.Fetched = s.mode == event.Mirror
	for i := range 1 + s.rnd.IntN(3) {
		body := fmt.Appendf(nil, "content %d", s.rnd.IntN(40))
		s.check(s.contents.Put(s.t.Context(), content.NewDraft(body)))
		o.Representations = append(o.Representations, event.Representation{Href: fmt.Sprintf("https://origin.example/%d/data é?a=%d&b=<%[1]d>", i, s.rnd.IntN(6)), Type: []string{"text/xml", "text/html", "", "image/png"}[s.rnd.IntN(4)],
			Hreflang: []string{"", "de", "no language"}[s.rnd.IntN(3)], Length: int64(len(body)), Hash: event.HashOf(sha256.Sum256(body))})
	}
	if s.rnd.IntN(3) == 0 { // a link that is published while the other record is there
		o.Links = []event.Link{{Rel: event.RelDescribedBy, Href: "https://origin.example/about", Record: names[s.rnd.IntN(len(names))], Length: event.NoLength}}
	}
	o.Representations = slices.CompactFunc(o.Representations, func(a, b event.Representation) bool { return a.Href == b.Href })
	return o
}

// resources is what the log says of the set at a time: the hashes that may be stated of each loc.
func (s *site) resources(at time.Time) map[string][]string {
	s.t.Helper()
	set, err := s.log.Set(s.t.Context(), s.set)
	s.check(err)
	live := map[string][2]string{}
	for e, err := range s.log.Events(s.t.Context(), s.set, event.Range{Upto: set.Last}) {
		s.check(err)
		if e.Observed.Time().After(at) {
			break
		}
		delete(live, e.Record)
		if e.Live() {
			loc := siteBase + "/sets/" + s.set + "/records/" + event.Key(e.Record)
			if s.mode == event.Reference {
				loc = e.Loc
			}
			live[e.Record] = [2]string{loc, e.Representations[e.Preferred].Hash}
		}
	}
	all := map[string][]string{}
	for _, r := range live {
		all[r[0]] = append(all[r[0]], r[1])
	}
	return all
}

// titles is what the log says of the set at a time: the title of each record.
func (s *site) titles(at time.Time) map[string]string {
	s.t.Helper()
	set, err := s.log.Set(s.t.Context(), s.set)
	s.check(err)
	live := map[string]string{}
	for e, err := range s.log.Events(s.t.Context(), s.set, event.Range{Upto: set.Last}) {
		s.check(err)
		if e.Observed.Time().After(at) {
			break
		}
		delete(live, e.Record)
		if e.Live() {
			live[e.Record] = e.Title
		}
	}
	return live
}

// compare compares the copy of a consumer with what the log says of a time.
func (s *site) compare(name string, c consumer, at time.Time) {
	s.t.Helper()
	got, mark := c.state()
	var all []string
	if d, ok := c.(*destination); ok {
		if d.set != s.set { // its resources have other addresses by now
			return
		}
		want := s.resources(at)
		for loc, hash := range got {
			if !slices.Contains(want[loc], hash) {
				all = append(all, fmt.Sprintf("%s is %s, want %v", loc, hash, want[loc]))
			}
		}
		for loc := range want {
			if _, ok := got[loc]; !ok {
				all = append(all, loc+" is missing")
			}
		}
	} else {
		want := slices.Sorted(maps.Values(s.titles(at))) // the identifiers of some are made of them
		if have := slices.Sorted(maps.Values(got)); !slices.Equal(have, want) {
			all = append(all, fmt.Sprintf("titles %q, want %q", have, want))
		}
	}
	if len(all) > 0 {
		s.t.Fatalf("%s with the mark %v, at %v:\n%s", name, mark, at, strings.Join(all, "\n"))
	}
}

// browser is how a consumer asks: with or without what it has kept, compressed or not.
type browser struct {
	*site
	how  string // "plain", "tags", "dates", or "cache", which keeps what may be kept
	kept map[string][]answer
	// stays: it begins anew where it would be redirected.
	stays bool
}

type answer struct {
	header http.Header
	body   []byte
	at     time.Time
	gzip   bool
}

// get returns a document. Meanwhile something may happen.
func (b *browser) get(url string) ([]byte, error) {
	b.t.Helper()
	if !b.quiet && b.rnd.IntN(20) == 0 {
		b.happen()
	}
	packed := b.rnd.IntN(2) == 0
	r := httptest.NewRequest(http.MethodGet, url, nil).WithContext(b.t.Context())
	if packed {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	var tags []string
	for _, old := range b.kept[url] {
		age, fresh := strings.CutPrefix(old.header.Get("Cache-Control"), "public, max-age=")
		if seconds, err := strconv.Atoi(age); b.how == "cache" && fresh && old.gzip == packed && err == nil && b.now().Sub(old.at) < time.Duration(seconds)*time.Second {
			return old.body, nil
		}
		tags = append(tags, []string{"", "W/"}[b.rnd.IntN(2)]+old.header.Get("ETag"))
		if modified := old.header.Get("Last-Modified"); b.how == "dates" && old.gzip == packed && modified != "" {
			r.Header.Set("If-Modified-Since", modified)
		}
	}
	if len(tags) > 0 && b.how != "dates" {
		r.Header.Set("If-None-Match", strings.Join(tags, ", "))
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	a := answer{w.Header(), w.Body.Bytes(), b.now(), w.Header().Get("Content-Encoding") == "gzip"}
	switch w.Code {
	case http.StatusMovedPermanently, http.StatusPermanentRedirect:
		b.done["moved"]++
		if b.stays {
			return nil, fmt.Errorf("%w: %s", errGone, url)
		}
		return b.get("http://bridge.example" + w.Header().Get("Location"))
	case http.StatusOK:
	case http.StatusNotModified:
		b.done["not modified"]++
		for _, old := range b.kept[url] {
			if old.header.Get("ETag") == a.header.Get("ETag") {
				return old.body, nil
			}
		}
		b.t.Fatalf("%s: 304 with %v, kept are %v", url, a.header, tags)
	case http.StatusServiceUnavailable:
		b.check(b.pub.Snapshot(b.t.Context(), b.set))
		b.check(b.pub.KeepLists(b.t.Context(), b.set))
		return nil, fmt.Errorf("%w: %s", errGone, url)
	case http.StatusNotFound:
		return nil, fmt.Errorf("%w: %s", errGone, url)
	default:
		b.t.Fatalf("%s: status %d: %s", url, w.Code, a.body)
	}
	if a.gzip {
		z, err := gzip.NewReader(bytes.NewReader(a.body))
		b.check(err)
		a.body, err = io.ReadAll(z)
		b.check(err)
	}
	if strings.Contains(url, "/oai?") {
		return a.body, nil
	}
	b.remember(url, &a)
	if b.how != "plain" {
		b.kept[url] = append(slices.DeleteFunc(b.kept[url], func(old answer) bool { return old.gzip == a.gzip }), a)
	}
	return a.body, nil
}

// remember compares an answer with all before: the same tag means the same bytes, and what may
// be kept for a while never changes.
func (s *site) remember(url string, a *answer) {
	s.t.Helper()
	sum, tag := hashOf(a.body), url+" "+a.header.Get("ETag")
	if old, ok := s.tags[tag]; ok && old != sum {
		s.t.Fatalf("%s is of other bytes than before", tag)
	}
	s.tags[tag] = sum
	if old, ok := s.closed[url]; ok && old != sum {
		s.t.Fatalf("%s has changed", url)
	}
	if a.header.Get("Cache-Control") != "no-cache" {
		s.closed[url] = sum
	}
	if kind := a.header.Get("Content-Type"); strings.HasSuffix(kind, "xml") {
		for d := xml.NewDecoder(bytes.NewReader(a.body)); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				s.t.Fatalf("%s: %v", url, err)
			}
		}
	}
}

// TestConsumersLaw lets consumers follow a set over random histories. After each visit, at a
// random moment and with whatever happens meanwhile, the copy of each is what the log says.
func TestConsumersLaw(t *testing.T) {
	testenv.Heavy(t)
	histories, steps := 1, 40
	if testenv.Soaking() {
		histories, steps = 40, 400
	}
	for _, mode := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		for n := range histories {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, uint64(n), mode)
				consumers := map[string]consumer{}
				for i, how := range []string{"plain", "tags", "dates", "cache"} {
					ask := func() *browser { return &browser{s, how, map[string][]answer{}, false} }
					for j, way := range []string{"lists", "window", "dumps", "past"} {
						asks := ask()
						asks.stays = true
						consumers[way+" "+how] = &destination{browser: asks, how: way, set: s.set, patient: (i+j)%2 == 0}
					}
					consumers["feed "+how] = &reader{browser: ask(), set: s.set}
					consumers["repository "+how] = &harvester{browser: ask(), set: s.set, verb: []string{"ListRecords", "ListIdentifiers"}[i%2]}
					consumers["complete feed "+how] = &reader{browser: ask(), set: s.set, complete: true}
				}
				all := slices.Sorted(maps.Keys(consumers))
				for range steps {
					s.happen()
					name := all[s.rnd.IntN(len(all))]
					s.visit(name, consumers[name])
				}
				s.quiet = true
				set, err := s.log.Set(t.Context(), s.set)
				s.check(err)
				for _, name := range all {
					for s.visit(name, consumers[name]) {
					}
					s.compare(name, consumers[name], set.LastObserved.Time())
				}
				t.Logf("%v", s.done)
			})
		}
	}
}

// visit has a consumer visit the site, and compares its copy unless it has to come again.
func (s *site) visit(name string, c consumer) (more bool) {
	s.t.Helper()
	if d, ok := c.(*destination); ok && d.set != s.set {
		d.set, d.mark, d.copy = s.set, time.Time{}, nil
	}
	set := s.set
	more, err := c.visit()
	if d, ok := c.(*destination); ok && set != s.set { // what it has met was of one name or the other
		d.mark, d.copy = time.Time{}, nil
		return true
	}
	switch {
	case errors.Is(err, errGone):
		s.done["gone"]++
		return true
	case err != nil:
		s.t.Fatalf("%s: %v", name, err)
	}
	s.done["visit"]++
	if _, mark := c.state(); mark.IsZero() { // a harvester may have a part of what came meanwhile
		return more
	} else if s.mode != event.Reference || s.ends[mark.UnixMicro()] {
		s.compare(name, c, mark)
	}
	return more
}

// A list of an OAI-PMH repository goes on where it is when its set gets another name, and gets it
// back.
func TestListWhileRenamed(t *testing.T) {
	s := newSite(t, 1, event.Redirect)
	for len(s.titles(s.now())) < 8 {
		s.elapsed += time.Second
		s.change()
	}
	s.quiet = true
	h := &harvester{browser: &browser{s, "plain", map[string][]answer{}, false}, set: s.set, verb: "ListRecords"}
	q, met := url.Values{"verb": {h.verb}, "metadataPrefix": {"oai_dc"}}, map[string]bool{}
	for q != nil {
		a, err := h.ask(q)
		if err != nil || len(a.Errors) > 0 {
			t.Fatalf("as %s, %v: %v %+v", s.set, q, err, a)
		}
		for _, rec := range a.Records {
			if rec.Header.Status == "" {
				met[rec.Header.Identifier] = true
			}
		}
		if q = nil; a.Token != "" {
			q = url.Values{"verb": {h.verb}, "resumptionToken": {a.Token}}
			s.rename()
		}
	}
	if want := len(s.titles(s.now())); len(met) != want || s.done["moved"] == 0 {
		t.Errorf("%d records, want %d; %v", len(met), want, s.done)
	}
}
