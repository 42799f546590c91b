package harvest_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// TestLaw: whatever happens at some Sources of a set, and in whatever order,
// pieces and broken documents they tell of it, the log has what the naive model
// in law_model_test.go has, and the same harvest once more logs nothing. The documents go over sockets, through the
// adapters, into a log on disk. (D5, D82, D83, D104, D105, D106, D107)
//
// 40 histories, the same each time; others and more with -rapid.checks, which names
// the seed of what fails.
func TestLaw(t *testing.T) {
	laws(t, 40, func(b *bench) {
		h := &history{bench: b}
		b.serve = h.serve
		for i := range rapid.IntRange(1, 3).Draw(h.t, "sources") {
			s := newSource(h.t, fmt.Sprintf("%s/s%d", h.base, i), i, h.mode)
			h.sources = append(h.sources, s)
			h.model = append(h.model, words{source: s, of: map[string]word{}})
			h.ensure(s)
		}
		for range rapid.IntRange(2, 8).Draw(h.t, "harvests") {
			h.step()
		}
	})
}

// laws runs a test with many random histories, each of harvests over sockets into
// a log on disk of its own, which finds no fault with itself in the end.
func laws(t *testing.T, histories int, law func(b *bench)) {
	if testing.Short() {
		t.Skip("many histories")
	}
	testenv.Checks(t, histories)
	var at *bench
	under := &passes{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		under.Lock()
		defer under.Unlock()
		if r.Header.Get("Pass") == under.number() {
			at.serve(w, r)
		}
	}))
	defer server.Close()
	rapid.Check(t, func(t *rapid.T) {
		under.Lock()
		defer under.Unlock()
		mode := rapid.SampledFrom([]event.Content{event.Redirect, event.Mirror}).Draw(t, "content")
		at = &bench{harness: newHarness(t, tempDir(t), mode, eventlog.Options{}), t: t, base: server.URL, mode: mode, under: under}
		at.harvest.Workers = 2
		at.harvest.BatchSize = rapid.IntRange(1, 6).Draw(t, "batch")
		at.harvest.BacklogMemory = rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "observations in memory") // D64
		law(at)
		at.verify()
	})
}

// bench is a harness for Sources that all answer at one server.
type bench struct {
	*harness
	t     *rapid.T
	base  string // URL of the server
	serve http.HandlerFunc
	mode  event.Content
	under *passes
}

// passes are those over Sources, which answer during one, and change between two.
// A request that was given up may be on its way when its pass has ended: it carries
// the number of that, and is not answered.
type passes struct {
	sync.Mutex // of the Sources; the test has it but during a pass
	n          int
}

func (p *passes) number() string { return strconv.Itoa(p.n) }

// pass harvests a Source once.
func (b *bench) pass(s harvest.Source, o harvest.Options) (harvest.Report, error) {
	b.under.n++
	s.Client = &http.Client{Transport: ofPass(b.under.number())}
	b.under.Unlock()
	defer b.under.Lock()
	return b.harvest.Run(context.Background(), &s, o)
}

// ofPass sends requests that carry the number of a pass.
type ofPass string

// RoundTrip is http.RoundTripper.
func (p ofPass) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Pass", string(p))
	return http.DefaultTransport.RoundTrip(r)
}

func (b *bench) last() event.Seq {
	seq, err := b.log.LastSeq(context.Background())
	b.must(err)
	return seq
}

// live returns the titles of the records that live in the log, by their identifier
// behind a prefix.
func (b *bench) live(prefix string) map[string]string {
	out := map[string]string{}
	for ev, err := range b.log.Live(context.Background(), "main", math.MaxInt64) {
		b.must(err)
		out[strings.TrimPrefix(ev.Record, prefix)] = ev.Title
	}
	return out
}

// history is some Sources, the log that follows them, and the model of it.
type history struct {
	*bench
	sources []*source
	model   model
}

func (h *history) ensure(s *source) {
	var err error
	s.id, err = h.log.EnsureSource(context.Background(), "main", s.kind, s.url+"/doc", s.rank)
	h.must(err)
}

// rank gives the Sources another order, and has all of them say what they have.
func (h *history) rank() {
	for i, rank := range rapid.Permutation([]int{0, 1, 2}[:len(h.sources)]).Draw(h.t, "ranks") {
		h.sources[i].rank = rank
		h.ensure(h.sources[i])
	}
	for _, s := range h.sources {
		_, err := h.pass(s, true)
		h.must(err)
		h.model.take(s, harvested{full: true})
	}
	h.compare()
}

// step lets things happen at one Source, and harvests it.
func (h *history) step() {
	if rapid.IntRange(0, 7).Draw(h.t, "another order") == 0 {
		h.rank()
	}
	s := rapid.SampledFrom(h.sources).Draw(h.t, "source")
	if rapid.IntRange(0, 7).Draw(h.t, "another kind") == 0 {
		before := s.kind
		if s.kind = rapid.SampledFrom(kinds).Draw(h.t, "kind"); s.kind != before {
			s.taken, s.known, s.behind = map[int]bool{}, false, false
			h.model.forget(s)
			h.ensure(s)
		}
	}
	if rapid.IntRange(0, 5).Draw(h.t, "forgotten") == 0 { // and configured again
		keep := rapid.Bool().Draw(h.t, "kept")
		_, err := h.harvest.Forget(context.Background(), &harvest.Source{ID: s.id, Set: "main", Kind: s.kind, URL: s.url + "/doc", Content: h.mode}, keep)
		h.must(err)
		if !keep {
			h.model.end(s)
		}
		h.compare()
		s.taken, s.known, s.behind = map[int]bool{}, false, false
		h.model.forget(s)
		h.ensure(s)
	}
	s.grow(h.t)
	full := rapid.IntRange(0, 3).Draw(h.t, "full") == 0
	if rapid.IntRange(0, 5).Draw(h.t, "fails") == 0 {
		h.fail(s, full)
		s.grow(h.t)
		s.sound = false
	}
	if _, err := h.pass(s, full); err != nil {
		h.t.Fatalf("%s: %v", s.kind, err)
	}
	h.model.take(s, harvested{full: full || s.behind})
	s.behind = false
	h.compare()
	before := h.last()
	_, err := h.pass(s, false)
	h.must(err)
	h.model.take(s, harvested{})
	h.compare()
	if now := h.last(); now != before {
		h.t.Fatalf("the same once more has logged %s", strings.Join(h.events(before), ", "))
	}
}

// fail harvests a Source while one of its documents fails, is missing or is cut
// off. Where the pass ends there, nobody knows how much was taken in before. Past
// a Change List it goes on, says so, and what that has comes in later: only then,
// with another baseline, all is as it should be.
func (h *history) fail(s *source, full bool) {
	s.failing, s.asked = rapid.SampledFrom([]string{"doc", "cl", "rl", "cl/0", "cl/1", "feed/0", "feed/1"}).Draw(h.t, "failing"), false
	s.failure = fails
	list, ofChanges := strings.CutPrefix(s.failing, "cl")
	if ofChanges {
		may := []int{fails, cutOff}
		if s.badly { // else nothing tells whether a Resource List is newer than what has gone
			may = append(may, missing)
		}
		s.failure = rapid.SampledFrom(may).Draw(h.t, "failure")
	}
	r, err := h.pass(s, full)
	s.failing = ""
	switch {
	case !s.asked:
		h.must(err)
		h.model.take(s, harvested{full: full})
		h.compare()
	case ofChanges && (s.failure != fails || !s.known):
		h.must(err)
		if !r.Partial() {
			h.t.Fatalf("past the Change List cl%s: %+v", list, r)
		}
		h.model.take(s, harvested{full: true, without: []string{list}, gone: s.failure == missing})
		if s.behind = s.failure != missing; !s.behind {
			h.compare()
		}
	default:
		if err == nil {
			h.t.Fatal("a document has failed, and the pass has not")
		}
		s.sound = true // the half that was taken in may be older than what is bad
	}
}

func (h *history) pass(s *source, full bool) (harvest.Report, error) {
	return h.bench.pass(harvest.Source{ID: s.id, Set: "main", Kind: s.kind, URL: s.url + "/doc", Content: h.mode,
		Selection: translate.Selection{Prefixes: []string{s.url + "/r/"}}, Overlap: 1000 * time.Hour}, harvest.Options{Full: full, AllPending: true})
}

func (h *history) events(after event.Seq) (out []string) {
	for ev, err := range h.log.Events(context.Background(), "main", event.Range{After: after, Upto: math.MaxInt64}) {
		h.must(err)
		out = append(out, fmt.Sprintf("%v %s %q", ev.Kind, ev.Record, ev.Title))
	}
	return out
}

// compare compares what lives in the log with the model.
func (h *history) compare() {
	got := h.live("urn:")
	want, now := h.model.live()
	for name, title := range now {
		// The new order may be in force already: the model does not know of all that
		// a list has of a record that is gone.
		if got[name] == title {
			h.model.meet(name)
			want[name] = title
		}
	}
	if !maps.Equal(got, want) {
		h.t.Fatalf("the log has %v, want %v", got, want)
	}
}

func (h *history) serve(w http.ResponseWriter, r *http.Request) {
	for _, s := range h.sources {
		if path, ok := strings.CutPrefix(h.base+r.URL.Path, s.url+"/"); ok {
			s.serve(w, path)
			return
		}
	}
	http.NotFound(w, r)
}

// What may happen to a document.
const (
	fails   = http.StatusInternalServerError
	missing = http.StatusNotFound
	cutOff  = http.StatusOK
)

// statement is what a Source has once said of a record.
type statement struct {
	name       string
	version    int // 0: deleted
	bad        bool
	unselected bool
	dated      bool
	list       int // the list of changes that it stands in
	document   int // the archive document
	minute     int // when; of two statements of one minute the later one counts
}

var kinds = []string{harvest.AtomPMH, harvest.ResourceSync, harvest.Feed}

// source is a Source that has said some things, one or several a minute, and
// shows them as a chain of feeds, a complete feed, lists, or a short feed.
type source struct {
	url    string
	id     event.SourceID
	number int
	rank   int
	kind   string
	mode   event.Content

	said    []statement
	truth   map[string]int // versions of what is there, at that URL
	outside map[string]bool
	// snapshot is the Resource List, as things were after so many statements.
	snapshot map[string]entry
	at       int
	version  int
	// failing is a document, and failure what happens to it; asked: it was asked
	// for.
	failing string
	failure int
	asked   bool

	complete, untimed, undated, overlap, badly, sound bool
	order                                             map[int]int // of lastmod, which says nothing
	document, list                                    int

	// What the model remembers: which statements were taken in, and whether there
	// was a harvest.
	taken  map[int]bool
	known  bool
	behind bool // it went on past a Change List that may be had later
}

func newSource(t *rapid.T, url string, number int, mode event.Content) *source {
	s := &source{url: url, number: number, rank: number, mode: mode, taken: map[int]bool{}, truth: map[string]int{}, outside: map[string]bool{}, order: map[int]int{},
		kind: rapid.SampledFrom(kinds).Draw(t, "kind"), complete: rapid.IntRange(0, 3).Draw(t, "complete") == 0,
		untimed: rapid.IntRange(0, 3).Draw(t, "no at") == 0, undated: rapid.IntRange(0, 3).Draw(t, "no datetime") == 0,
		overlap: rapid.Bool().Draw(t, "overlaps")}
	s.badly = !s.untimed && !s.undated && !s.complete
	// One record is always there: the guard would keep it back if all were gone.
	s.version++
	s.truth["z"] = s.version
	s.said = append(s.said, statement{name: "z", version: s.version, dated: !s.undated, minute: 1})
	s.show()
	return s
}

// grow makes some things happen.
func (s *source) grow(t *rapid.T) {
	for range rapid.IntRange(0, 6).Draw(t, "happens") {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "record")
		st := statement{name: name, dated: !s.undated && (s.badly || rapid.Bool().Draw(t, "datetime")), list: s.list, document: s.document}
		switch rapid.IntRange(0, 11).Draw(t, "what") {
		case 0:
			s.document++
			continue
		case 1:
			s.list++
			continue
		case 2:
			s.list, s.document = s.list+1, s.document+1
			s.show()
			continue
		case 3, 4:
			if s.truth[name] == 0 {
				continue
			}
			delete(s.truth, name)
		case 5:
			// A deletion that nobody tells of. A mirror would wait for the content; what is
			// new and in doubt is asked for, and so are two entries of one minute, should
			// it become a feed.
			unread, tie := false, false
			for i, st := range s.said {
				unread = unread || st.name == name && !s.taken[i]
				tie = tie || st.name == name && st.version == 0
			}
			if s.kind == harvest.ResourceSync && s.mode != event.Mirror && !unread && !tie {
				delete(s.truth, name)
			}
			continue
		case 6:
			s.version++
			s.truth[name], st.version, st.bad = s.version, s.version, s.badly && !s.sound
			s.outside[name] = false
		case 7:
			s.version++
			s.truth[name], st.version, st.unselected = s.version, s.version, s.badly && !s.sound
			s.outside[name] = st.unselected
		default:
			s.version++
			s.truth[name], st.version = s.version, s.version
			s.outside[name] = false
			if s.badly && s.list > 0 && rapid.IntRange(0, 3).Draw(t, "a closed list grows") == 0 {
				st.list--
			}
		}
		st.minute = s.minute(len(s.said))
		// A Resource List has all up to its at; where lists grow, or one of two entries
		// cannot be taken, one minute does not tell which is later.
		before := s.said[len(s.said)-1]
		unlike := st.bad || st.unselected || before.bad || before.unselected
		if len(s.said) == s.at || st.list < s.list || unlike || rapid.IntRange(0, 3).Draw(t, "same minute") != 0 {
			st.minute++
		}
		s.said = append(s.said, st)
		s.order[len(s.said)] = rapid.IntRange(0, 50).Draw(t, "lastmod")
	}
}

// entry is what a Resource List has of a record.
type entry struct {
	version int
	outside bool
}

// show makes a Resource List of what is there.
func (s *source) show() {
	s.snapshot, s.at = map[string]entry{}, len(s.said)
	for name, version := range s.truth {
		s.snapshot[name] = entry{version, s.outside[name]}
	}
}

func (s *source) title(name string, version int) string {
	return fmt.Sprintf("%s %d of %d", name, version, s.number)
}

func (s *source) loc(name string, outside bool) string {
	if outside {
		return s.url + "/x/" + name
	}
	return s.url + "/r/" + name
}

// minute is that of so many statements.
func (s *source) minute(n int) int {
	if n == 0 {
		return 0
	}
	return s.said[n-1].minute
}

func minute(n int) string {
	return time.Date(2020, 1, 1, 0, n, 0, 0, time.UTC).Format(time.RFC3339)
}

func (s *source) serve(w http.ResponseWriter, path string) {
	if path == s.failing {
		s.asked = true
		if s.failure != cutOff {
			http.Error(w, "not now", s.failure)
			return
		}
		whole := httptest.NewRecorder()
		defer func() { _, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()-10]) }()
		s.write(whole, path)
		return
	}
	s.write(w, path)
}

func (s *source) write(w http.ResponseWriter, path string) {
	kind, part, _ := strings.Cut(path, "/")
	var n int
	_, _ = fmt.Sscan(part, &n)
	switch {
	case kind == "r" || kind == "x":
		if version := s.truth[part]; version > 0 && s.outside[part] == (kind == "x") {
			fmt.Fprint(w, s.title(part, version))
			return
		}
		http.Error(w, "gone", http.StatusNotFound)
	case path == "doc" && s.kind == harvest.ResourceSync:
		s.writeList(w, "capabilitylist", "", fmt.Sprintf(`<url><loc>%s/cl</loc><rs:md capability="changelist"/></url><url><loc>%s/rl</loc><rs:md capability="resourcelist"/></url>`, s.url, s.url))
	case path == "doc" && s.kind == harvest.Feed:
		s.serveRSS(w)
	case path == "doc":
		s.serveFeed(w, s.document)
	case kind == "feed":
		s.serveFeed(w, n)
	case path == "rl":
		at := fmt.Sprintf(` at="%s"`, minute(s.minute(s.at)))
		if s.untimed {
			at = ""
		}
		var entries strings.Builder
		for _, name := range slices.Sorted(maps.Keys(s.snapshot)) {
			fmt.Fprintf(&entries, s.resource(name, s.snapshot[name].version, s.snapshot[name].outside, ""), "")
		}
		s.writeList(w, "resourcelist", at, entries.String())
	case path == "cl":
		s.serveIndex(w)
	case kind == "cl":
		s.serveChanges(w, n)
	}
}

// writeList writes a list, or a Capability List.
func (s *source) writeList(w io.Writer, capability, attrs, entries string) {
	fmt.Fprintf(w, `<urlset xmlns=%q xmlns:rs=%q xmlns:b=%q><rs:md capability=%q%s/>%s</urlset>`,
		resourcesync.SitemapNamespace, resourcesync.Namespace, resourcesync.CarriedNamespace, capability, attrs, entries)
}

// resource is an entry of a list.
func (s *source) resource(name string, version int, outside bool, attrs string) string {
	if version > 0 {
		attrs += fmt.Sprintf(` hash="sha-256:%x" b:title=%q`, sha256.Sum256([]byte(s.title(name, version))), s.title(name, version))
	}
	return fmt.Sprintf(`<url><loc>%s</loc>%%s<rs:md%s b:id="urn:%s"/></url>`, s.loc(name, outside), attrs, name)
}

// begins is the minute before which a list of changes has nothing.
func (s *source) begins(list int) int {
	if list == 0 {
		return 0
	}
	for i := range s.said {
		if s.said[i].list >= list {
			return i
		}
	}
	return len(s.said)
}

func (s *source) borders(list int) string {
	b := fmt.Sprintf(` from="%s"`, minute(s.minute(s.begins(list))))
	if list < s.list {
		b += fmt.Sprintf(` until="%s"`, minute(s.minute(s.begins(list+1))))
	}
	return b
}

func (s *source) serveIndex(w io.Writer) {
	fmt.Fprintf(w, `<sitemapindex xmlns=%q xmlns:rs=%q><rs:md capability="changelist" from="%s"/>`, resourcesync.SitemapNamespace, resourcesync.Namespace, minute(0))
	for i := range s.list + 1 {
		fmt.Fprintf(w, `<sitemap><loc>%s/cl/%d</loc><rs:md%s/></sitemap>`, s.url, i, s.borders(i))
	}
	fmt.Fprint(w, `</sitemapindex>`)
}

// has reports whether a list of changes has a statement: its own, and where lists
// overlap the last one before it.
func (s *source) has(list, i int) bool {
	last := -1
	for j := range s.said {
		if s.said[j].list < list {
			last = j
		}
	}
	return s.said[i].list == list || s.overlap && i == last
}

func (s *source) serveChanges(w io.Writer, list int) {
	var entries strings.Builder
	for i, st := range s.said {
		if !s.has(list, i) {
			continue
		}
		change := map[bool]string{true: "updated", false: "deleted"}[st.version > 0]
		if st.bad {
			change = "mangled"
		}
		attrs := fmt.Sprintf(` change=%q`, change)
		if st.dated {
			attrs += fmt.Sprintf(` datetime="%s"`, minute(st.minute))
		}
		lastmod := ""
		if n := s.order[i+1]; n > 0 && n <= 30 { // any that is not later than the change
			lastmod = "<lastmod>" + minute(min(n, st.minute)) + "</lastmod>"
		}
		fmt.Fprintf(&entries, s.resource(st.name, st.version, st.unselected, attrs), lastmod)
	}
	s.writeList(w, "changelist", s.borders(list), entries.String())
}

func (s *source) serveFeed(w io.Writer, document int) {
	head := ""
	if s.complete {
		head = `<fh:complete/>`
	} else if document > 0 {
		head = fmt.Sprintf(`<link rel="prev-archive" href="%s/feed/%d"/>`, s.url, document-1)
	}
	if !s.complete && document < s.document {
		head += `<fh:archive/>`
	}
	updated := 0
	var entries []string
	for _, st := range s.said {
		if !s.complete && st.document <= document {
			updated = st.minute
		}
		if s.complete && (s.truth[st.name] != st.version || st.version == 0) || !s.complete && st.document != document {
			continue
		}
		entries = append(entries, s.entry(&st))
	}
	if s.complete {
		updated = s.minute(len(s.said))
	}
	slices.Reverse(entries)
	fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:feed</id><title>Feed</title><updated>%s</updated>%s<author><name>x</name></author>%s</feed>`,
		minute(updated), head, strings.Join(entries, ""))
}

func (s *source) entry(st *statement) string {
	body := `<content/>`
	switch {
	case st.bad:
		body = `<content>neither here nor there</content>`
	case st.version > 0:
		body = fmt.Sprintf(`<link rel="alternate" type="text/plain" href="%s"/>`, s.loc(st.name, st.unselected))
	}
	return fmt.Sprintf(`<entry><id>urn:%s</id><title>%s</title><updated>%s</updated>%s</entry>`, st.name, s.title(st.name, st.version), minute(st.minute), body)
}

// recent is how many of its last statements a short feed shows.
const recent = 4

// shown returns the last statement on each record that a short feed shows.
func (s *source) shown() (out []statement) {
	seen := map[string]bool{}
	for i := len(s.said) - 1; i >= max(0, len(s.said)-recent); i-- {
		if st := s.said[i]; st.version > 0 && s.truth[st.name] == st.version && !seen[st.name] {
			seen[st.name] = true
			out = append(out, st)
		}
	}
	return out
}

func (s *source) serveRSS(w io.Writer) {
	fmt.Fprint(w, `<rss version="2.0"><channel><title>Feed</title><link>https://source.example/</link><description>x</description>`)
	for _, st := range s.shown() {
		fmt.Fprintf(w, `<item><guid isPermaLink="false">urn:%s</guid><title>%s</title><link>%s</link></item>`, st.name, s.title(st.name, st.version), s.loc(st.name, st.unselected))
	}
	fmt.Fprint(w, `</channel></rss>`)
}
