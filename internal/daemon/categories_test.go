package daemon_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/export"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/translate"
)

// Categories are passed on with term, scheme and label, by every protocol that another
// bridge reads. They are part of the state of a record: when they alone change, that is
// an event, here and behind. Their order and how often each stands there are not.

// wantCategories harvests what serves one record with the categories of each round, and
// three bridges behind: by lists, by a feed, and by the repository. What is exported has
// those of the last round.
func wantCategories(t *testing.T, source string, serve func(round int), rounds ...[]event.Category) {
	t.Helper()
	a, lists, feed, repository := newRelay(t), newRelay(t), newRelay(t), newRelay(t)
	a.run(pool{sources: []string{source}})
	lists.run(pool{sources: []string{a.lists()}})
	feed.run(pool{sources: []string{a.archived()}})
	repository.run(pool{sources: []string{a.oai("oai_dc")}})
	var last []event.Category
	events := 0
	for round, want := range rounds {
		serve(round)
		if round == 0 || !sameCategories(last, want) {
			events++
		}
		last = want
		for _, r := range []*relay{a, lists, feed, repository} {
			r.take(t, r.source(), harvest.Options{})
			all := r.logged(allAfter(0))
			if len(all) != events {
				t.Fatalf("round %d: %s has %d events, want %d: %+v", round, r.source().URL, len(all), events, all)
			}
			want := want
			if r == repository { // a setSpec has no room for more
				want = nil
				for _, c := range last {
					want = append(want, event.Category{Term: translate.SetSpec(c), Scheme: translate.SetScheme})
				}
			}
			if got := all[len(all)-1].Categories; !sameCategories(got, want) {
				t.Errorf("round %d: %s: categories %+v, want %+v", round, r.source().URL, got, want)
			}
		}
	}
	tree := filepath.Join(t.TempDir(), "tree")
	if _, err := a.bridge.Export(t.Context(), export.Options{BaseURL: "https://data.example.org", Folder: tree}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"feed.atom", "complete.atom", "resourcelist.xml", "changelist.xml"} {
		file, err := os.ReadFile(filepath.Join(tree, "sets", "main", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range last {
			for _, text := range []string{c.Term, c.Scheme, c.Label} {
				if !strings.Contains(string(file), strings.ReplaceAll(text, "&", "&amp;")) {
					t.Errorf("the exported %s has no category %+v:\n%s", name, c, file)
				}
			}
		}
	}
}

func sameCategories(a, b []event.Category) bool {
	order := func(x, y event.Category) int {
		return strings.Compare(x.Term+"\x00"+x.Scheme+"\x00"+x.Label, y.Term+"\x00"+y.Scheme+"\x00"+y.Label)
	}
	return slices.Equal(slices.Compact(slices.SortedFunc(slices.Values(a), order)), slices.Compact(slices.SortedFunc(slices.Values(b), order)))
}

// oneRecord serves a document at /feed that changes each round, and the record that it
// names.
func oneRecord(t *testing.T, document func(round int) string) (url string, serve func(round int)) {
	var mu sync.Mutex
	body := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/1.xml" {
			w.Header().Set("Content-Type", "text/xml")
			fmt.Fprint(w, "<r/>")
			return
		}
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/feed", func(round int) {
		mu.Lock()
		defer mu.Unlock()
		body = document(round)
	}
}

func TestCategoriesOfAtom(t *testing.T) {
	testenv.Heavy(t)
	maps := event.Category{Term: "maps", Scheme: "https://s.example/", Label: "Maps & plans"}
	karten := event.Category{Term: "maps", Scheme: "https://s.example/", Label: "Karten"}
	old, elseOld := event.Category{Term: "old"}, event.Category{Term: "old", Scheme: "urn:else"}
	rounds := [][]event.Category{{maps, old}, {old, maps, old}, {maps}, {karten, old}, {karten, elseOld}, nil, {maps}}
	url, serve := oneRecord(t, func(round int) string {
		var categories strings.Builder
		for _, c := range rounds[round] {
			fmt.Fprintf(&categories, `<category term="%s" scheme="%s" label="%s"/>`, c.Term, c.Scheme, strings.ReplaceAll(c.Label, "&", "&amp;"))
		}
		return fmt.Sprintf(`<feed xmlns="http://www.w3.org/2005/Atom"><complete xmlns="http://purl.org/syndication/history/1.0"/><id>urn:x:feed</id><title>F</title><updated>2026-01-0%[1]dT00:00:00Z</updated><author><name>A</name></author>
<entry><id>urn:x:1</id><title>One</title><updated>2026-01-0%[1]dT00:00:00Z</updated><link href="1.xml" type="text/xml"/>%[2]s</entry></feed>`,
			round+1, strings.ReplaceAll(categories.String(), ` scheme=""`, ""))
	})
	wantCategories(t, "atompmh:"+url, serve, rounds...)
}

func TestCategoriesOfRSS(t *testing.T) {
	testenv.Heavy(t)
	plain, old := event.Category{Term: "maps", Scheme: "https://s.example/"}, event.Category{Term: "old"}
	rounds := [][]event.Category{{plain, old}, {old, plain, plain}, {old}, {plain}}
	url, serve := oneRecord(t, func(round int) string {
		var categories strings.Builder
		for _, c := range rounds[round] {
			fmt.Fprintf(&categories, `<category domain="%s">%s</category>`, c.Scheme, c.Term)
		}
		return fmt.Sprintf(`<rss version="2.0"><channel><title>F</title><item><guid isPermaLink="false">urn:x:1</guid><title>One</title><link>/1.xml</link>
<pubDate>Thu, 0%d Jan 2026 00:00:00 GMT</pubDate>%s</item></channel></rss>`, round+1, strings.ReplaceAll(categories.String(), ` domain=""`, ""))
	})
	wantCategories(t, "feed:"+url, serve, rounds...)
}

func TestCategoriesOfJSONFeed(t *testing.T) {
	testenv.Heavy(t)
	term := func(s string) event.Category { return event.Category{Term: s} }
	rounds := [][]event.Category{{term("maps & plans"), term("old")}, {term("old"), term("maps & plans"), term("old")}, {term("old")}}
	url, serve := oneRecord(t, func(round int) string {
		var tags []string
		for _, c := range rounds[round] {
			tags = append(tags, fmt.Sprintf("%q", c.Term))
		}
		return fmt.Sprintf(`{"version": "https://jsonfeed.org/version/1.1", "title": "F", "items": [{"id": "urn:x:1", "title": "One", "url": "/1.xml", "date_modified": "2026-01-0%dT00:00:00Z", "tags": [%s]}]}`,
			round+1, strings.Join(tags, ", "))
	})
	wantCategories(t, "feed:"+url, serve, rounds...)
}

func TestCategoriesOfOAI(t *testing.T) {
	testenv.Heavy(t)
	spec := func(s string) event.Category { return event.Category{Term: s, Scheme: translate.SetScheme} }
	rounds := [][]event.Category{{spec("maps:old"), spec("a-20b")}, {spec("a-20b"), spec("maps:old"), spec("a-20b")}, {spec("maps")}, nil, {spec("maps:old")}}
	repository := testserver.NewRepository()
	server := httptest.NewServer(repository)
	t.Cleanup(server.Close)
	wantCategories(t, "oaipmh:"+server.URL+"/oai", func(round int) {
		item := testserver.Item{Identifier: "oai:x:1", Metadata: map[string]string{"oai_dc": testserver.DublinCore("One")}}
		for _, c := range rounds[round] {
			item.Sets = append(item.Sets, c.Term)
		}
		repository.Put(item)
	}, rounds...)
}
