package server_test

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mmcdole/gofeed"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/server"
)

var recentNames = map[string]string{
	"recent.atom": "application/atom+xml", "recent.rss": "application/rss+xml", "recent.json": "application/feed+json",
}

// recent reads a feed as feed readers do.
func (h *testServer) recent(set, name string) *gofeed.Feed {
	h.t.Helper()
	r := h.get("/sets/"+set+"/"+name).want(h.t, 200).field(h.t, "Content-Type", recentNames[name]).field(h.t, "Cache-Control", "no-cache").
		field(h.t, "Last-Modified", "")
	f, err := gofeed.NewParser().ParseString(r.body)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", name, err, r.body)
	}
	return f
}

func TestRecent(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Maps & plans", event.Mirror).set("away", "", event.Reference)
	before := time.Now().Add(-time.Second)
	id := func(i int) string { return fmt.Sprintf("urn:example:%d", i) }
	for i := range 50 {
		h.alive("main", id(i), rep{"text/xml", "<a/>"})
		for j := range i % 5 { // the log's positions are those of both sets
			h.alive("away", fmt.Sprintf("urn:example:%d:%d", i, j), rep{"text/xml", "<a/>"})
		}
	}
	h.alive("main", id(3), rep{"text/xml", "<b/>"})
	h.observe("main", event.Observation{Record: id(100), Title: "<b>A & B\x01", Fetched: true,
		Representations: []event.Representation{{Href: "https://origin.example/100", Type: "text/plain", Hash: "sha-256:" + hexSum(""), Length: 0}}})
	h.dead("main", id(4))
	for name := range recentNames {
		f := h.recent("main", name)
		if f.Title != "Maps & plans" || f.Link != h.base+"/sets/main/" || len(f.Items) != 50 {
			t.Fatalf("%s: %q, %s, %d items", name, f.Title, f.Link, len(f.Items))
		}
		what := func(i int) string {
			if f.Items[i].Description == "" {
				return f.Items[i].Content
			}
			return f.Items[i].Description
		}
		seen := map[string]bool{}
		for i, item := range f.Items {
			seen[item.GUID] = true
			at := item.PublishedParsed
			if at == nil {
				at = item.UpdatedParsed
			}
			if at == nil || at.Before(before.Truncate(time.Second)) || at.After(time.Now()) {
				t.Errorf("%s: item %d is of %v", name, i, at)
			}
		}
		if len(seen) != 50 {
			t.Errorf("%s: %d different items", name, len(seen))
		}
		if got := f.Items[0]; got.Title != "Record "+id(4) || what(0) != "Deleted, from origin.example" || got.Link != "" {
			t.Errorf("%s: the newest is %+v", name, got)
		}
		if got := f.Items[1]; !strings.HasPrefix(got.Title, "<b>A & B") && got.Title != "A & B\uFFFD" || what(1) != "Created, from origin.example: text/plain" {
			t.Errorf("%s: the next is %q: %s", name, got.Title, what(1))
		}
		if got := f.Items[2]; got.Title != "Record "+id(3) || what(2) != "Updated, from origin.example: text/xml" {
			t.Errorf("%s: then %+v", name, got)
		}
		if got := f.Items[49]; got.Title != "Record "+id(1) {
			t.Errorf("%s: the last is %s", name, got.Title)
		}
		away := h.recent("away", name)
		if len(away.Items) != 50 || away.Items[0].Link != "https://origin.example/data/urn:example:49:3/0" || away.Title != "away" {
			t.Errorf("%s by reference: %q, %d items, %+v", name, away.Title, len(away.Items), away.Items[0])
		}
	}
}

// RFC 4287 4.1.2: an entry without a content has an alternate link. That of a deletion has no
// link, since there is nothing behind it any more.
func TestRecentAtomIsValid(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Maps", event.Mirror)
	h.alive("main", "urn:example:1", rep{"text/xml", "<a/>"})
	h.alive("main", "urn:example:2", rep{"text/xml", "<a/>"})
	h.dead("main", "urn:example:1")
	entries := strings.Split(h.get("/sets/main/recent.atom").want(t, 200).body, "<entry>")[1:]
	if len(entries) != 2 {
		t.Fatalf("%d entries, want 2", len(entries))
	}
	for _, e := range entries {
		if strings.Contains(e, `<link rel="alternate"`) == strings.Contains(e, "<content>") {
			t.Errorf("want either a content or an alternate link:\n%s", e)
		}
	}
}

func TestRecentConditions(t *testing.T) {
	h := newTestServer(t, "/here", nil).set("main", "Main", event.Mirror)
	for name := range recentNames {
		if f := h.recent("main", name); len(f.Items) != 0 || f.Title != "Main" {
			t.Errorf("%s of an empty set: %+v", name, f)
		}
	}
	if r := h.get("/sets/main/recent.json"); !strings.Contains(r.body, `"items": []`) || !strings.Contains(r.body, `"feed_url": "`+h.base+`/sets/main/recent.json"`) {
		t.Errorf("%s", r.body)
	}
	tags := map[string]bool{}
	for i := range 3 {
		for name := range recentNames {
			path := "/sets/main/" + name
			r := h.get(path).want(t, 200)
			tag := r.header.Get("ETag")
			if tags[tag] {
				t.Errorf("%s has the tag of another", name)
			}
			tags[tag] = true
			h.get(path, "If-None-Match", tag).want(t, 304)
			h.get(path, "If-None-Match", `"x"`).want(t, 200)
			head := h.ask(http.MethodHead, h.base+path).want(t, 200)
			head.field(t, "ETag", tag).field(t, "Content-Type", recentNames[name])
			if again := h.get(path).want(t, 200); again.body != r.body {
				t.Errorf("%s is not the same twice", name)
			}
		}
		h.alive("main", fmt.Sprint("urn:example:", i), rep{"text/xml", "<a/>"})
	}
	h.get("/sets/none/recent.atom").want(t, 404)
}

// The feeds of a set with a hub name it and themselves, in their header and in their text, and
// are other feeds than without it (WebSub 4).
func TestRecentNamesHubs(t *testing.T) {
	var hubs []string
	h := newTestServer(t, "/here", func(o *server.Options) { o.Hubs = func(string) []string { return hubs } }).set("main", "Main", event.Mirror)
	for name, text := range map[string][]string{
		"recent.atom": {`<link rel="hub" href="https://hub.example/?a=1"`, `<link rel="hub" href="http://b.example/"`, `<link rel="self" type="application/atom+xml" href="` + h.base + `/sets/main/recent.atom"`},
		"recent.rss":  {`rel="hub" href="https://hub.example/?a=1"`, `rel="hub" href="http://b.example/"`, `rel="self" type="application/rss+xml" href="` + h.base + `/sets/main/recent.rss"`},
		"recent.json": {`"url": "https://hub.example/?a=1"`, `"url": "http://b.example/"`, `"type": "WebSub"`},
	} {
		hubs = nil
		without := h.get("/sets/main/"+name).want(t, 200).field(t, "Link", "")
		hubs = []string{"https://hub.example/?a=1", "http://b.example/"}
		r := h.get("/sets/main/"+name, "If-None-Match", without.header.Get("ETag")).want(t, 200)
		want := []string{`<https://hub.example/?a=1>; rel="hub"`, `<http://b.example/>; rel="hub"`, "<" + h.base + "/sets/main/" + name + `>; rel="self"`}
		if got := r.header.Values("Link"); !slices.Equal(got, want) {
			t.Errorf("%s: Link %q, want %q", name, got, want)
		}
		for _, s := range text {
			if !strings.Contains(r.body, s) || strings.Contains(without.body, "hub") {
				t.Errorf("%s: no %s in\n%s", name, s, r.body)
			}
		}
	}
}

// A set without feeds has none, its page leads to none, and its other documents are there. What
// is listed as a set's pages and documents is answered.
func TestSetWithoutFeeds(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	set, segments, err := h.pub.Segments(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	links := server.DocumentLinks(h.base, set, segments)
	for _, l := range links {
		if !strings.HasSuffix(l.URL, "/oai?verb=Identify") { // served where there is a repository
			h.ask(http.MethodGet, l.URL).want(t, 200)
		}
		if l.Name == "" || l.About == "" {
			t.Errorf("%+v says too little", l)
		}
	}
	if len(links) != 7 {
		t.Errorf("%d documents: %+v", len(links), links)
	}
	if err := h.log.EnsureSet(t.Context(), eventlog.SetConfig{Name: "quiet", NoFeeds: true, Content: event.Mirror}); err != nil {
		t.Fatal(err)
	}
	for set, status := range map[string]int{"main": 200, "quiet": 404} {
		pages := server.Pages(set)
		if want := []string{"/sets/" + set + "/", "/sets/" + set + "/recent.atom", "/sets/" + set + "/recent.rss", "/sets/" + set + "/recent.json"}; !slices.Equal(pages, want) {
			t.Errorf("pages %q, want %q", pages, want)
		}
		for _, feed := range pages[1:] {
			h.get(feed).want(t, status)
		}
		if feeds := h.page(pages[0]).feeds; (len(feeds) > 0) != (status == 200) {
			t.Errorf("the page of %s leads to %q", set, feeds)
		}
	}
	h.get("/sets/quiet/capabilitylist.xml").want(t, 200)
}

// verbose is a log whose events have a megabyte of links each.
type verbose struct {
	*eventlog.Log
	heap *uint64 // how much was in use at most while events were read
}

func (l verbose) Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		n := 0
		for e, err := range l.Log.Events(ctx, set, r) {
			if err == nil {
				e.Representations = make([]event.Representation, 128)
				for i := range e.Representations {
					e.Representations[i].Href = "https://origin.example/" + strings.Repeat("x", 8<<10)
				}
			}
			if !yield(e, err) {
				return
			}
			if n++; n%25 == 0 {
				*l.heap = max(*l.heap, heap())
			}
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Anybody may ask for the newest changes, and a Source decides how long these are: they are
// not in memory together.
func TestRecentOfLongEvents(t *testing.T) {
	l := verbose{heap: new(uint64)}
	h := newTestServer(t, "", func(o *server.Options) {
		l.Log = o.Log.(*eventlog.Log)
		o.Log = l
	}).set("main", "Main", event.Mirror)
	for i := range 100 {
		h.alive("main", fmt.Sprintf("urn:example:%d", i), rep{"text/xml", "<a/>"})
	}
	before := heap()
	if f := h.recent("main", "recent.atom"); len(f.Items) != 50 {
		t.Errorf("%d items", len(f.Items))
	}
	if *l.heap == 0 || *l.heap > before+30<<20 {
		t.Errorf("%d MB in use, %d before", *l.heap>>20, before>>20)
	}
}
