package daemon_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// longChain is a provider with many archive documents that never change, and a
// subscription document that the test changes.
type longChain struct {
	archives *testserver.Chain
	head     *fixtures.Provider
	made     int      // records that were ever created
	old      []string // live ones that were there before the last change
	young    []string // the others
}

var chainPaths = regexp.MustCompile(`^/archive/\d+\.atom$|^/records/\d{8}\.xml$`)

func (l *longChain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if chainPaths.MatchString(r.URL.Path) {
		l.archives.ServeHTTP(w, r)
		return
	}
	l.head.ServeHTTP(w, r)
}

// newLongChain returns a chain of twelve archive documents with so many entries
// each.
func newLongChain(entries int) *longChain {
	const archives = 12
	l := &longChain{archives: &testserver.Chain{Documents: archives + 1, Entries: entries},
		head: fixtures.New(fixtures.Options{ID: "urn:uuid:6d2a6f5e-9a0b-4b7c-8f43-2f7d9c5f0a11"})}
	l.head.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Prev = fixtures.Archive(archives) })
	return l
}

// change makes so many changes that a harvest after them has an event for each:
// creations, and updates and deletions of what was created before.
func (l *longChain) change(n int) {
	l.old, l.young = append(l.old, l.young...), nil
	for i := range n {
		xml := fixtures.Format{Ext: "xml", Type: "application/xml"}
		if i%3 == 0 || len(l.old) == 0 {
			l.made++
			name := fmt.Sprintf("late-%d", l.made)
			l.head.Create(record(name, xml))
			l.young = append(l.young, name)
			continue
		}
		name := l.old[0]
		l.old = l.old[1:]
		if i%3 == 1 {
			l.head.Delete(name)
			continue
		}
		l.head.Update(fixtures.Record{Name: name, Title: fmt.Sprintf("Changed after %d", l.made)})
		l.young = append(l.young, name)
	}
}

// wall is a clock that can be put forward, and be held: then whoever asks for
// the time waits, and with that the making of snapshots.
type wall struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (w *wall) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.ahead)
}

func (w *wall) forward(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead += d
}

// news is a log handler that passes on that a snapshot was made, and faults.
type news struct {
	made  chan string
	fault func(string)
}

func (n news) Enabled(context.Context, slog.Level) bool { return true }
func (n news) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n news) WithGroup(string) slog.Handler            { return n }

func (n news) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	switch {
	case r.Message == "snapshot made":
		n.made <- text
	case r.Level >= slog.LevelWarn:
		n.fault(text)
	}
	return nil
}

// observer looks at all documents again and again, and remembers what must not
// change.
type observer struct {
	o      *harness
	closed map[string]string // URL and form of a closed list, and its sum
	open   webReply          // the open list as it was

	looks int
	grown int
}

// look compares all closed lists, compressed and as they are, and the open one with
// what they were.
func (w *observer) look() {
	t := w.o.t
	t.Helper()
	w.looks++
	index := w.o.list(w.o.setURL("changelist-index.xml"), "sitemapindex", "changelist")
	for n, m := range index.Maps {
		if want := w.o.setURL(fmt.Sprintf("changelist/%d.xml", n+1)); m.Loc != want {
			t.Fatalf("entry %d of the index is %s, want %s", n+1, m.Loc, want)
		}
		switch {
		case n == len(index.Maps)-1:
			w.lookAtOpen(m)
		case m.Meta.Until == "":
			t.Fatalf("%s is open and not the last", m.Loc)
		default:
			w.lookAtClosed(m)
		}
	}
}

// lookAtClosed compares a closed list with what it was; the first time it must
// have grown out of the open one at the same URL.
func (w *observer) lookAtClosed(m listEntry) {
	t := w.o.t
	t.Helper()
	packed := w.o.get(m.Loc, "Accept-Encoding", "gzip")
	_, known := w.closed[m.Loc]
	if known {
		w.compare(m.Loc+" gzip", packed)
		w.compare(m.Loc, w.o.get(m.Loc))
		return
	}
	plain := w.o.get(m.Loc)
	if unzipped := unpack(t, packed); !bytes.Equal(unzipped, plain.body) {
		t.Errorf("%s holds other bytes when it is compressed", m.Loc)
	}
	for _, r := range []webReply{packed, plain} {
		r.field(t, "Cache-Control", "public, max-age=86400")
	}
	if w.open.url == m.Loc {
		w.grown++
		wantGrown(t, w.open, plain, ` until="`+m.Meta.Until+`"`)
	} else if w.open.url != "" {
		t.Errorf("%s closed although it was not the open one", m.Loc)
	}
	w.closed[m.Loc], w.closed[m.Loc+" gzip"] = plain.sum(), packed.sum()
}

func (w *observer) compare(name string, r webReply) {
	if r.sum() != w.closed[name] {
		w.o.t.Errorf("look %d: %s has changed", w.looks, name)
	}
}

func (w *observer) lookAtOpen(m listEntry) {
	t := w.o.t
	t.Helper()
	now := w.o.get(m.Loc)
	now.field(t, "Cache-Control", "no-cache")
	if m.Meta.Until != "" || bytes.Contains(now.body, []byte(" until=")) {
		t.Errorf("%s is the last and has an until", m.Loc)
	}
	if w.open.url == now.url {
		wantGrown(t, w.open, now, "")
	}
	w.open = now
}

// wantGrown fails unless a list has become another by growing at its end, and by
// a piece that its head has gained.
func wantGrown(t testing.TB, old, now webReply, gained string) {
	t.Helper()
	oldHead, oldEntries := cutList(t, old)
	head, entries := cutList(t, now)
	if oldEntries == "" { // the first entry may declare what it uses
		head = strings.Replace(head, ` xmlns:b="urn:x-bridge:terms:1"`, "", 1)
		oldHead = strings.Replace(oldHead, ` xmlns:b="urn:x-bridge:terms:1"`, "", 1)
	}
	if strings.Count(head, gained) < 1 || strings.Replace(head, gained, "", 1) != oldHead {
		t.Errorf("%s: its head was\n%s\nand is\n%s", now.url, oldHead, head)
	}
	if !strings.HasPrefix(entries, oldEntries) {
		t.Errorf("%s did not grow at its end alone", now.url)
	}
}

// cutList returns what stands before the first entry of a list, and its entries.
func cutList(t testing.TB, r webReply) (head, entries string) {
	t.Helper()
	body, ok := strings.CutSuffix(string(r.body), "</urlset>\n")
	if !ok {
		t.Fatalf("%s does not end as a list", r.url)
	}
	head, entries, _ = strings.Cut(body, " <url>")
	if entries != "" {
		entries = " <url>" + entries
	}
	return head, entries
}

func unpack(t testing.TB, r webReply) []byte {
	t.Helper()
	r.field(t, "Content-Encoding", "gzip")
	zr, err := gzip.NewReader(bytes.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(zr)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	mostEntries = 50_000
	mostBytes   = 50 << 20
)

// growth is a bridge with twelve closed segments and what happens to it.
type growth struct {
	*harness
	chain    *longChain
	clock    *wall
	made     chan string
	segment  int
	observer *observer
}

func newGrowth(t *testing.T, segment int) *growth {
	g := &growth{chain: newLongChain(segment), clock: &wall{}, made: make(chan string, 100), segment: segment}
	options := daemon.Options{Now: g.clock.now, Logger: slog.New(news{g.made, func(s string) { t.Error(s) }})}
	b := newHarnessWith(t, options, g.chain, content(config.Reference), segments(segment))
	b.provider = g.chain.head
	r := b.harvest()
	if want := int64(12 * segment); r.Created != want {
		t.Fatalf("%d records created, want %d: %+v", r.Created, want, r)
	}
	g.harness = newPublisher(b)
	g.observer = &observer{o: g.harness, closed: map[string]string{}}
	return g
}

// TestManySegments: 50,400 records in segments of 4,200, 120,000 in a soak: more than
// one part of a Resource List has. While it is harvested on, closed lists stay as they are.
func TestManySegments(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	segment := 4_200
	if testenv.Soaking() {
		segment = 10_000
	}
	g := newGrowth(t, segment)
	g.checkIndex()
	g.observer.look()
	g.awaitSnapshot()
	first := g.checkParts(12 * segment)
	g.chain.change(g.segment - 60)
	g.harvest()
	g.observer.look()
	g.chain.change(100)
	g.harvest()
	g.observer.look()
	if g.observer.grown != 1 {
		t.Errorf("%d segments were seen to close, want one", g.observer.grown)
	}
	g.checkNextSnapshots(first)
	t.Run("schema", func(t *testing.T) {
		s := newSchema(t)
		parts := g.list(g.setURL("resourcelist.xml"), "sitemapindex", "resourcelist").Maps
		for _, url := range []string{g.setURL("resourcelist.xml"), parts[len(parts)-1].Loc, g.setURL("changelist-index.xml"), g.setURL("changelist/13.xml")} {
			if verdict := s.check(g.get(url).body); verdict != "" {
				t.Errorf("%s: %.2000s", url, verdict)
			}
		}
	})
	t.Run("independent reader", func(t *testing.T) {
		testenv.Soak(t) // a minute of Python
		g.compareRead(t, config.Reference, g.readIndependently(t, "--window", g.base+"/.well-known/resourcesync"))
	})
}

// checkIndex checks the Change List Index after the first harvest: twelve closed
// segments and an open one.
func (g *growth) checkIndex() {
	t := g.t
	t.Helper()
	index := g.list(g.setURL("changelist-index.xml"), "sitemapindex", "changelist")
	if len(index.Maps) != 13 {
		t.Fatalf("the Change List Index has %d entries, want 13", len(index.Maps))
	}
	border, largest := index.Meta.From, 0
	for n, m := range index.Maps {
		l := g.list(m.Loc, "urlset", "changelist")
		want := g.segment
		if n == 12 {
			want = 0
		}
		if m.Meta.From != border || l.Meta.From != border || l.Meta.Until != m.Meta.Until || (m.Meta.Until == "") != (n == 12) || len(l.URLs) != want {
			t.Errorf("segment %d: %+v in the index, %+v itself, %d entries", n+1, m.Meta, l.Meta, len(l.URLs))
		}
		if want > 0 && l.URLs[want-1].Meta.Datetime != l.Meta.Until {
			t.Errorf("segment %d ends at %s, its last entry is of %s", n+1, l.Meta.Until, l.URLs[want-1].Meta.Datetime)
		}
		border, largest = l.Meta.Until, max(largest, l.size)
	}
	t.Logf("Change List Index: 12 closed lists of %d entries, at most %d bytes, and the open one", g.segment, largest)
}

// checkParts reads the Resource List, which must be an index with parts of so
// many records in all, and returns the parts' sums by URL.
func (g *growth) checkParts(records int) map[string]string {
	t := g.t
	t.Helper()
	index := g.list(g.setURL("resourcelist.xml"), "sitemapindex", "resourcelist")
	index.wantLink(t, "up", g.setURL("capabilitylist.xml"))
	sums, locs, largest := map[string]string{}, map[string]bool{}, 0
	for n, m := range index.Maps {
		r := g.get(m.Loc)
		part, err := parseList(r)
		if err != nil {
			t.Fatal(err)
		}
		part.wantLink(t, "up", g.setURL("capabilitylist.xml"))
		part.wantLink(t, "index", g.setURL("resourcelist.xml"))
		if part.Meta.At != index.Meta.At || m.Meta.At != index.Meta.At || part.Meta.Capability != "resourcelist" {
			t.Errorf("part %d: %+v, the index has at %s", n+1, part.Meta, index.Meta.At)
		}
		if len(part.URLs) > mostEntries || len(r.body) > mostBytes || n < len(index.Maps)-1 && len(part.URLs) != mostEntries {
			t.Errorf("part %d has %d entries and %d bytes", n+1, len(part.URLs), len(r.body))
		}
		for _, e := range part.URLs {
			locs[e.Loc] = true
		}
		sums[m.Loc], largest = r.sum(), max(largest, len(r.body))
		checkBigFile(t, g.harness, r)
	}
	if len(locs) != records {
		t.Errorf("the parts have %d different locs, want %d", len(locs), records)
	}
	t.Logf("Resource List Index: %d parts, at most %d bytes, %d different locs, at %s", len(sums), largest, len(locs), index.Meta.At)
	return sums
}

// checkBigFile checks that a part of a snapshot is a good file over HTTP.
func checkBigFile(t testing.TB, o *harness, whole webReply) {
	t.Helper()
	whole.field(t, "Cache-Control", "public, max-age=86400")
	whole.field(t, "Content-Length", strconv.Itoa(len(whole.body)))
	whole.field(t, "Content-Encoding", "")
	tag, modified := whole.header.Get("ETag"), whole.header.Get("Last-Modified")
	if !strings.HasPrefix(tag, `"`) || modified == "" {
		t.Errorf("%s: ETag %s, Last-Modified %q", whole.url, tag, modified)
	}
	o.ask(http.MethodGet, whole.url, "If-None-Match", tag).want(t, http.StatusNotModified)
	o.ask(http.MethodGet, whole.url, "If-Modified-Since", modified).want(t, http.StatusNotModified)
	head := o.ask(http.MethodHead, whole.url).want(t, http.StatusOK)
	head.field(t, "ETag", tag)
	middle := len(whole.body) / 2
	part := o.ask(http.MethodGet, whole.url, "Range", "bytes="+strconv.Itoa(middle)+"-", "If-Range", tag).want(t, http.StatusPartialContent)
	if !bytes.Equal(part.body, whole.body[middle:]) {
		t.Errorf("%s: its second half is another", whole.url)
	}
	if !bytes.Equal(unpack(t, o.get(whole.url, "Accept-Encoding", "gzip")), whole.body) {
		t.Errorf("%s holds other bytes when it is compressed", whole.url)
	}
}

// partSums counts the records of all parts, without reading more of them, and
// returns the parts' sums by URL.
func (g *growth) partSums(records int) map[string]string {
	g.t.Helper()
	sums, entries := map[string]string{}, 0
	for _, m := range g.list(g.setURL("resourcelist.xml"), "sitemapindex", "resourcelist").Maps {
		r := g.get(m.Loc)
		sums[m.Loc] = r.sum()
		entries += bytes.Count(r.body, []byte("<loc>"))
	}
	if entries != records {
		g.t.Errorf("the parts have %d records, want %d", entries, records)
	}
	return sums
}

// checkNextSnapshots makes more snapshots: the parts of the one before still
// answer after the next, as they were; those of the first are gone by then.
func (g *growth) checkNextSnapshots(first map[string]string) {
	t := g.t
	t.Helper()
	g.awaitSnapshot()
	before := g.partSums(g.living())
	for round := range 2 {
		g.chain.change(5) // one is a deletion: a minute is enough
		g.harvest()
		if shown := g.list(g.setURL("resourcelist.xml"), "sitemapindex", "resourcelist").Maps; before[shown[0].Loc] == "" {
			t.Error("the Resource List is a new one before its time")
		}
		g.awaitSnapshot()
		next := g.partSums(g.living())
		for url, sum := range before {
			if next[url] != "" {
				t.Errorf("%s is of two snapshots", url)
			}
			if got := g.get(url); got.sum() != sum {
				t.Errorf("round %d: %s has changed", round, url)
			}
		}
		before = next
	}
	for url := range first {
		g.ask(http.MethodGet, url).want(t, http.StatusOK)
	}
}

// awaitSnapshot puts the clock forward until there is a snapshot of all that the
// log has.
func (g *growth) awaitSnapshot() {
	last := fmt.Sprintf(" seq=%d ", g.last())
	tick := time.NewTicker(500 * time.Millisecond) // more often than the bridge looks
	defer tick.Stop()
	enough := time.After(patience)
	for {
		select {
		case text := <-g.made:
			if strings.Contains(text, last) {
				g.t.Log(text)
				return
			}
		case <-tick.C:
			g.clock.forward(time.Minute)
		case <-enough:
			g.t.Fatalf("no snapshot with%swas made", last)
		}
	}
}

// living counts the records that the provider has.
func (g *growth) living() int { return 12*g.segment + len(g.provider.Live()) }
