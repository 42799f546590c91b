package daemon_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mmcdole/gofeed"
	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestFeeds: in each mode the feeds keep the rules, say what the log says, and
// are read by others.
func TestFeeds(t *testing.T) {
	testenv.Heavy(t)
	schema := newAtomSchema(t)
	eachMode(t, func(t *testing.T, o *harness, mode string) {
		docs, complete := o.chain(), o.readFeed(o.setURL("complete.atom"))
		if len(docs) != 7 || docs[0].ID[0] == complete.ID[0] || complete.to("current") != "" {
			t.Errorf("%d documents, ids %s and %s", len(docs), docs[0].ID[0], complete.ID[0])
		}
		o.checkChain(t, docs)
		o.checkComplete(t, docs, complete)
		o.checkAgainstLog(t, docs, mode)
		for _, d := range append(docs, complete) {
			d.checkHeader(t, o)
			schema.add(d)
			f, err := gofeed.NewParser().Parse(bytes.NewReader(d.body))
			if err != nil || len(f.Items) != len(d.Entries) || f.Title != d.Title[0] {
				t.Errorf("gofeed reads %s as %v: %v", d.url, f, err)
			}
		}
		o.checkAnswers(t, complete, mode)
	})
	schema.check(3 * 8)
}

// checkComplete: the complete feed has the active entries of the chain, as they
// stand there, and no others (S8).
func (o *harness) checkComplete(t faults, docs []*feedDoc, complete *feedDoc) {
	t.Helper()
	complete.checkSelf(t)
	if complete.Complete == nil || complete.Archive != nil {
		t.Errorf("%s is not a complete feed", complete.url)
	}
	if !complete.updated().Equal(docs[0].updated()) {
		t.Errorf("%s is of %v, the subscription document of %v", complete.url, complete.updated(), docs[0].updated())
	}
	want := map[string]string{}
	for record, e := range newest(docs) {
		if len(e.alternates()) > 0 {
			want[record] = fmt.Sprint(*e)
		}
	}
	got := map[string]string{}
	for i := range complete.Entries {
		e := &complete.Entries[i]
		got[e.record()] = fmt.Sprint(*e)
	}
	if len(got) != len(complete.Entries) || !maps.Equal(trimSources(got), trimSources(want)) {
		t.Errorf("the complete feed has %d entries for %d records, the chain %d live ones:\n%v\n%v", len(complete.Entries), len(got), len(want), got, want)
	}
}

// trimSources takes the addresses of pointers out.
func trimSources(m map[string]string) map[string]string {
	for k, v := range m {
		m[k] = regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllString(v, "")
	}
	return m
}

// checkAgainstLog compares all entries of a chain with the events, in order.
func (o *harness) checkAgainstLog(t faults, docs []*feedDoc, mode string) {
	t.Helper()
	var entries []*feedEntry
	for i := len(docs) - 1; i >= 0; i-- {
		for j := range docs[i].Entries {
			entries = append(entries, &docs[i].Entries[j])
		}
	}
	events := o.logged(event.Range{Upto: o.last()})
	if len(entries) != len(events) {
		t.Fatalf("%d entries of %d events", len(entries), len(events))
	}
	for i, e := range entries {
		ev := &events[i]
		var types []string
		for _, l := range e.alternates() {
			types = append(types, l.Type+" "+l.Hash)
		}
		var want []string
		for j, r := range ev.Representations {
			if s := cmp.Or(r.Type, "application/octet-stream") + " " + r.Hash; j == ev.Preferred {
				want = slices.Insert(want, 0, s)
			} else {
				want = append(want, s)
			}
		}
		via := e.of("via")
		if e.record() != ev.Record || !e.updated().Equal(ev.Observed.Time()) || e.Title[0] != ev.Title || !slices.Equal(types, want) ||
			len(via) != 1 || via[0].Href != ev.Via.Href || via[0].Modified != ev.Modified.String() || via[0].Hash != ev.Via.Hash {
			t.Fatalf("event %d: %+v\nis published (%s) as %+v", ev.Seq, ev, mode, e)
		}
		if s := e.Source; s == nil || s.ID != ev.Origin.FeedID || s.Title != ev.Origin.FeedTitle || s.Updated != ev.Origin.FeedUpdated.String() {
			t.Errorf("event %d: from %+v, source %+v", ev.Seq, ev.Origin, s)
		}
	}
}

// checkAnswers asks for every alternate (S9).
func (o *harness) checkAnswers(t *testing.T, complete *feedDoc, mode string) {
	t.Helper()
	for i := range complete.Entries {
		for n, l := range complete.Entries[i].alternates() {
			switch mode {
			case config.Mirror:
				r := o.get(l.Href)
				r.field(t, "Content-Type", l.Type)
				if "sha-256:"+r.sum() != l.Hash || l.Length != strconv.Itoa(len(r.body)) {
					t.Errorf("%s answers with %d bytes, sum %s; the feed says %s and %s", l.Href, len(r.body), r.sum(), l.Length, l.Hash)
				}
			case config.Redirect:
				to := o.ask(http.MethodGet, l.Href).want(t, http.StatusTemporaryRedirect).header.Get("Location")
				o.get(to)
			case config.Reference:
				if strings.HasPrefix(l.Href, o.base) {
					t.Errorf("%s is ours", l.Href)
				}
				o.get(l.Href)
			}
			if own := strings.TrimPrefix(l.Href, o.setURL("records/")); mode != config.Reference && strings.Contains(own, ".") != (n > 0) {
				t.Errorf("alternate %d is %s", n, l.Href)
			}
		}
	}
}

// TestFeedsAreWalked has our own consumer read the feeds as it reads any other.
func TestFeedsAreWalked(t *testing.T) {
	testenv.Heavy(t)
	eachMode(t, func(t *testing.T, o *harness, _ string) {
		want := o.eachLive(func(ev *event.Event) string { return fmt.Sprint(ev.Record, ev.Title, len(ev.Representations)) })
		for _, name := range []string{"feed.atom", "complete.atom"} {
			got := map[string]string{}
			result := o.walk(name, func(e *atompmh.Entry) {
				if _, met := got[e.Record()]; met {
					return
				}
				got[e.Record()] = ""
				if e.Kind == atompmh.Active {
					got[e.Record()] = fmt.Sprint(e.Record(), e.Title, len(e.Alternates()))
				}
			})
			if !result.Oldest || result.Gap != nil || result.Lost || result.Complete != (name == "complete.atom") {
				t.Errorf("%s: %+v", name, result)
			}
			live := slices.DeleteFunc(slices.Sorted(maps.Values(got)), func(s string) bool { return s == "" })
			if !slices.Equal(live, want) {
				t.Errorf("%s: got\n%q\nwant\n%q", name, live, want)
			}
			if last := o.logged(event.Range{Upto: o.last()}); name == "feed.atom" && !result.Target.Equal(last[len(last)-1].Observed.Time()) {
				t.Errorf("the mark is %v, the newest event of %v", result.Target, last[len(last)-1].Observed)
			}
		}
	})
}

// walk walks a feed, which must break no rule, and visits the entries of each
// document from the last to the first.
func (o *harness) walk(name string, visit func(*atompmh.Entry)) atompmh.Result {
	o.t.Helper()
	w := atompmh.Walk{Client: o.client, URL: o.setURL(name), Report: func(p atompmh.Problem) { o.t.Error(p) }}
	for d, err := range w.Documents(o.t.Context()) {
		if err != nil {
			o.t.Fatal(err)
		}
		var entries []*atompmh.Entry
		for {
			e, err := d.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				o.t.Fatal(err)
			}
			entries = append(entries, e)
		}
		for _, e := range slices.Backward(entries) {
			visit(e)
		}
	}
	return w.Result()
}

// TestFeedRulesOverRandomHistories has a provider go through whatever it likes,
// with segments of any length, and looks at the feeds after each harvest.
func TestFeedRulesOverRandomHistories(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	testenv.Checks(t, 50)
	schema := newAtomSchema(t)
	rapid.Check(t, func(rt *rapid.T) {
		mode := rapid.SampledFrom([]string{config.Mirror, config.Redirect, config.Reference}).Draw(rt, "mode")
		p := fixtures.New(fixtures.Options{PerArchive: rapid.SampledFrom([]int{0, 2, 5}).Draw(rt, "entries a document")})
		o := newPublisher(newHarness(t, p, content(mode), segments(rapid.IntRange(1, 9).Draw(rt, "events a segment"))))
		defer func() {
			o.halt()
			o.server.Close()
			o.close()
		}()
		twins := []fixtures.Format{{Ext: "1.xml", Type: "text/xml"}, {Ext: "2.xml", Type: "TEXT/XML"}, {Ext: "txt", Type: "text/plain"}, {Ext: "raw"}}
		h := &historian{p: p, rt: rt}
		kept := map[string]*feedDoc{}
		for round := range rapid.IntRange(1, 6).Draw(rt, "harvests") {
			p.Create(fixtures.Record{Name: fmt.Sprint("twin", round), ID: fmt.Sprintf("%d & <no> IRI", round), Title: "Twins", Formats: twins})
			for range rapid.IntRange(0, 8).Draw(rt, "changes") {
				h.change()
			}
			o.full()
			docs, complete := o.chain(), o.readFeed(o.setURL("complete.atom"))
			o.checkChain(rt, docs)
			o.checkComplete(rt, docs, complete)
			o.checkAgainstLog(rt, docs, mode)
			schema.add(append(docs, complete)...)
			for _, d := range docs[1:] {
				if old := kept[d.url]; old != nil && !bytes.Equal(withoutNext(old.body), withoutNext(d.body)) {
					rt.Fatalf("%s has changed:\n%s\n%s", d.url, old.body, d.body)
				}
				kept[d.url] = d
			}
		}
	})
	schema.check(100)
}

var nextLink = regexp.MustCompile(`(?m)^ <link rel="next-archive" href="[^"]*"/>\n`)

// withoutNext takes the one thing out of an archive document that may come (P2).
func withoutNext(doc []byte) []byte { return nextLink.ReplaceAll(doc, nil) }

// TestArchivesNeverChange compares archive documents byte by byte while the log
// grows, over a new title, new processes and a lost cache: next-archive comes
// once, when the next one has closed, and then nothing any more.
func TestArchivesNeverChange(t *testing.T) {
	testenv.Heavy(t)
	o := newPublisher(newHarness(t, fixtures.Catalogue(nil), segments(4)))
	o.harvest()
	type form struct{ plain, packed, tag string }
	last := map[string]form{}
	grown, compared := 0, 0
	for round := range 30 {
		for _, d := range o.chain()[1:] {
			packed := o.get(d.url, "Accept-Encoding", "gzip")
			if !bytes.Equal(unpack(t, packed), d.body) {
				t.Errorf("%s holds other bytes when it is compressed", d.url)
			}
			now := form{string(d.body), packed.sum(), d.header.Get("ETag")}
			old, known := last[d.url]
			switch final := d.to("next-archive") != ""; {
			case known && old == now:
				compared++
			case known && final && old.plain == string(withoutNext(d.body)) && old.tag != now.tag:
				grown++
			case known:
				t.Fatalf("round %d: %s has changed:\n%s\n%s", round, d.url, old.plain, now.plain)
			}
			last[d.url] = now
		}
		switch round {
		case 10:
			o.removeCache()
		case 20:
			o.restart(func() { o.config.Sets[0].Title = "Another title" })
			if d := o.readFeed(o.setURL("feed.atom")); d.Title[0] != "Another title" || d.Author[0] != "Another title" {
				t.Errorf("the subscription document has the title %q", d.Title[0])
			}
		case 25:
			o.restart(o.removeCache)
		}
		o.evolve(2)
	}
	if grown < 10 || compared < 200 {
		t.Errorf("%d archives got their last form, %d comparisons", grown, compared)
	}
}

// TestCompleteFeedAboveTheLimit: with more than 50,000 records there is none, and
// the answer says what to use.
func TestCompleteFeedAboveTheLimit(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	chain := &fixtures.Chain{Documents: 25, Entries: 2000}
	o := newPublisher(newHarness(t, chain, content(config.Reference), segments(50_000)))
	o.harvest()
	path := "/sets/main/complete.atom"
	before := o.get(path)
	if n := bytes.Count(before.body, []byte("<entry>")); n != 50_000 {
		t.Errorf("%s has %d entries", before.url, n)
	}
	// It closed before it was too long for another bridge to read (D116).
	archived := bytes.Count(o.get("/sets/main/feed/1.atom").body, []byte("<entry>"))
	o.halt()
	o.close()
	chain.Documents = 26
	o.open()
	o.publish()
	o.full()
	r := o.ask(http.MethodGet, path).want(t, http.StatusNotFound)
	r.field(t, "Content-Type", "text/plain; charset=utf-8")
	for _, text := range []string{"52000 records", "at most 50000", o.setURL("feed.atom")} {
		if !strings.Contains(string(r.body), text) {
			t.Errorf("the answer does not say %q: %s", text, r.body)
		}
	}
	o.ask(http.MethodHead, path).want(t, http.StatusNotFound)
	o.ask(http.MethodGet, path, "If-None-Match", before.header.Get("ETag")).want(t, http.StatusNotFound)
	if page := o.get("/sets/main/"); bytes.Contains(page.body, []byte("complete.atom")) {
		t.Error("the page leads to it")
	}
	if d := o.readFeed("/sets/main/feed.atom"); len(d.Entries) != 52_000-archived || d.to("prev-archive") != o.setURL("feed/1.atom") {
		t.Errorf("the subscription document has %d entries and leads to %s", len(d.Entries), d.to("prev-archive"))
	}
}

// TestVerifyCoversArchives damages the kept copies of archive documents.
func TestVerifyCoversArchives(t *testing.T) {
	o := newPublisher(newHarness(t, fixtures.Catalogue(nil), segments(10)))
	o.harvest()
	verify := func() (found []string) {
		t.Helper()
		if _, err := o.bridge.Verify(t.Context(), func(f daemon.Finding) { found = append(found, f.Where) }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	for n := 1; n <= 2; n++ { // one in its last form, one that still lacks its link
		o.get(o.setURL(fmt.Sprintf("feed/%d.atom", n)))
	}
	if found := verify(); len(found) > 0 {
		t.Errorf("undamaged: %q", found)
	}
	damaged := 0
	err := filepath.WalkDir(filepath.Join(o.config.Data, "cache"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".sum") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, []byte("<fh:archive/>")) {
			return err
		}
		damaged++
		return os.WriteFile(path, bytes.Replace(data, []byte("<title>"), []byte("<Title>"), 1), 0o666)
	})
	if err != nil {
		t.Fatal(err)
	}
	if found := verify(); damaged != 2 || len(found) != 2 {
		t.Errorf("%d damaged, found %q", damaged, found)
	}
}
