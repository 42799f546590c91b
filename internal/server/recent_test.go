package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mmcdole/gofeed"

	"github.com/pmh-bridge/bridge/event"
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
