package daemon_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mmcdole/gofeed"
	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
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
		if e.record() != ev.Record || !e.updated().Equal(ev.Observed.Time()) || e.Title[0] != cmp.Or(ev.Title, e.ID[0]) || !slices.Equal(types, want) ||
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

// TestFeedRulesOverRandomHistories has a provider go through whatever it likes,
// with segments of any length, and looks at the feeds after each harvest.
func TestFeedRulesOverRandomHistories(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	testenv.Checks(t, 10)
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
		h := newRandomOrigin(rt, &atomOrigin{p, o.server.URL, false, map[string]bool{}})
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
