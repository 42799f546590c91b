package daemon_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
