package daemon_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// blog serves one legacy feed, written item by item, and the pages that it links
// to, below /p/.
type blog struct {
	mu     sync.Mutex
	items  []string
	head   string            // in the channel, before the items
	pages  map[string]string // by path
	status int               // of the feed, 0 is 200
	body   string            // instead of the feed
	length int               // Content-Length of the feed, 0 is the right one
	seen   []string          // requests: path, and whether they were conditional
}

// ServeHTTP is http.Handler.
func (s *blog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	condition := r.Header.Get("If-None-Match")
	s.seen = append(s.seen, strings.TrimSpace(r.URL.Path+" "+condition))
	if page, ok := s.pages[r.URL.Path]; ok {
		if page == "" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, page)
		return
	}
	if r.URL.Path != "/feed.atom" {
		http.NotFound(w, r)
		return
	}
	body := s.body
	if body == "" {
		body = `<?xml version="1.0"?><rss version="2.0" xmlns:at="http://purl.org/atompub/tombstones/1.0"><channel><title>Blog</title>` + s.head + strings.Join(s.items, "") + "</channel></rss>"
	}
	tag := `"` + hexSum([]byte(body))[:8] + `"`
	if s.status == 0 && condition == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("ETag", tag)
	w.Header().Set("Content-Type", "application/rss+xml")
	if s.length > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(s.length))
	}
	if s.status > 0 {
		w.WriteHeader(s.status)
	}
	fmt.Fprint(w, body)
}

// item is an item of a blog, with a description that may change.
func item(name, description string) string {
	return fmt.Sprintf(`<item><title>Post %s</title><link>/p/%s</link><guid isPermaLink="false">urn:%s</guid><pubDate>%s</pubDate><description>%s</description></item>`,
		name, name, name, day(len(name)).Format(http.TimeFormat), description)
}

func (s *blog) edit(change func(*blog)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// asked returns the requests since the last call.
func (s *blog) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func newFeedHarness(t *testing.T, s *blog, change ...func(*config.Config)) *harness {
	t.Helper()
	kind := func(c *config.Config) { c.Sets[0].Sources[0].Kind = config.Feed }
	b := newHarness(t, s, append([]func(*config.Config){kind}, change...)...)
	b.quick()
	return b
}

// What a tombstone of a legacy feed says of the deletion, and the licence of an item, are
// kept.
func TestFeedDetails(t *testing.T) {
	s := newBlog()
	s.items = []string{strings.Replace(item("a", "x"), "</item>", `<a:link xmlns:a="http://www.w3.org/2005/Atom" rel="license" href="https://licence.example/"/></item>`, 1)}
	b := newFeedHarness(t, s)
	b.wantLog("an item", "created a Post a")
	s.edit(func(s *blog) {
		s.items = []string{`<at:deleted-entry ref="urn:a" when="2025-02-01T00:00:00Z"><at:by><name>Jane</name></at:by><at:comment xml:lang="en">Gone &amp;amp; lost</at:comment>` +
			`<link xmlns="http://www.w3.org/2005/Atom" rel="successor-version" href="/p/aa"/></at:deleted-entry>`}
	})
	b.wantLog("its tombstone", "deleted a Post a")
	var got []string
	for ev := range b.eventsOf("main", 0) {
		for _, l := range ev.Links {
			got = append(got, l.Rel+" "+strings.TrimPrefix(l.Href, b.server.URL))
		}
		if d := ev.Details; d != nil {
			got = append(got, fmt.Sprint(d.DeletedBy, d.Comment))
		}
	}
	b.want("what is kept", got, "license https://licence.example/", "successor-version /p/aa", "{Jane  } {Gone & lost en}")
}

func newBlog() *blog {
	return &blog{items: []string{item("aa", "x"), item("a", "x")}, pages: map[string]string{"/p/a": "page a", "/p/aa": "page aa", "/p/aaa": "page aaa"}}
}

// A legacy feed is followed: what is new is created, what falls off its end stays,
// an edit without a new date is noticed, and an unchanged feed costs one request.
func TestFeedIsFollowed(t *testing.T) {
	s := newBlog()
	b := newFeedHarness(t, s)
	b.wantLog("the first harvest, oldest first", "created a Post a", "created aa Post aa")
	s.asked()
	if r := b.wantLog("nothing new"); !r.NotModified {
		t.Errorf("the report does not say so: %+v", r)
	}
	if asked := s.asked(); len(asked) != 1 || !strings.HasPrefix(asked[0], `/feed.atom "`) {
		t.Errorf("asked for %q, want one conditional request", asked)
	}
	s.edit(func(s *blog) { s.items = []string{item("aaa", "x"), item("aa", "x")} })
	b.wantLog("one falls off the end", "created aaa Post aaa")
	s.asked()
	b.wantFull("everything again")
	if asked := s.asked(); len(asked) != 1 || asked[0] != "/feed.atom" {
		t.Errorf("a full harvest asked for %q, want the feed alone, unconditionally", asked)
	}
	s.edit(func(s *blog) { s.items[1], s.pages["/p/aa"] = item("aa", "edited"), "page aa, edited" })
	b.wantLog("an edit without a new date", "updated aa Post aa")
	s.edit(func(s *blog) { s.items[1] = item("aa", "edited again, but not the page") })
	b.wantLog("an edit of the feed alone")
	s.edit(func(s *blog) { s.items = nil })
	b.wantLog("an emptied feed")
	b.wantFull("an emptied feed")
	b.want("live records", b.titles(), "a Post a", "aa Post aa", "aaa Post aaa")
	b.reopen()
	s.asked()
	b.quick()
	b.wantLog("after a restart")
	if asked := s.asked(); len(asked) != 1 || !strings.HasPrefix(asked[0], `/feed.atom "`) {
		t.Errorf("after a restart asked for %q, want one conditional request", asked)
	}
	b.wantMark(day(3))
}

// What a feed says of a deletion is believed, absence is not.
func TestFeedDeletedEntry(t *testing.T) {
	s := newBlog()
	b := newFeedHarness(t, s, content(config.Reference))
	b.wantLog("first", "created a Post a", "created aa Post aa")
	s.edit(func(s *blog) { s.items = []string{`<at:deleted-entry ref="urn:a" when="2025-02-01T00:00:00Z"/>`} })
	r := b.wantLog("a deleted-entry", "deleted a Post a")
	if reported(r, "feed-deleted") == "" {
		t.Errorf("not reported: %+v", r.Examples)
	}
	s.edit(func(s *blog) { s.items = nil })
	b.wantLog("the deleted-entry is gone as well")
	s.edit(func(s *blog) { s.items = []string{item("a", "x")} })
	b.wantLog("back again", "created a Post a")
}

// The deletion of a record that came back later is over, also when the feed still has the
// deleted-entry, and the item no more.
func TestFeedDeletedEntryOfBefore(t *testing.T) {
	const deleted = `<at:deleted-entry ref="urn:aa" when="2025-01-02T00:00:00Z"/>`
	s := newBlog()
	b := newFeedHarness(t, s, content(config.Reference))
	b.wantLog("first", "created a Post a", "created aa Post aa")
	back := strings.Replace(item("aa", "x"), "<pubDate>", "<pubDate>Sat, 01 Feb 2025 00:00:00 GMT</pubDate><x>", 1)
	back = strings.Replace(back, "</pubDate><description>", "</x><description>", 1)
	s.edit(func(s *blog) { s.items = []string{strings.Replace(deleted, "01-02", "01-31", 1)} })
	b.wantLog("deleted", "deleted aa Post aa")
	s.edit(func(s *blog) { s.items = []string{deleted, back} })
	b.wantLog("back again", "created aa Post aa")
	s.edit(func(s *blog) { s.items = []string{deleted} })
	b.wantLog("the item falls off the end")
	s.edit(func(s *blog) { s.items = []string{strings.Replace(deleted, "2025-01", "2025-03", 1)} })
	b.wantLog("deleted once more", "deleted aa Post aa")
}

// A document that cannot be taken whole changes nothing, and the next harvest
// asks for it again.
func TestFeedRefused(t *testing.T) {
	s := newBlog()
	b := newFeedHarness(t, s, content(config.Reference), func(c *config.Config) { c.Limits.FeedDocument = 4000 })
	b.wantLog("first", "created a Post a", "created aa Post aa")
	for _, tt := range []struct {
		name   string
		change func(*blog)
		words  []string
	}{
		{"404", func(s *blog) { s.status = 404 }, []string{"404", b.server.URL + "/feed.atom"}},
		{"cut off by the server", func(s *blog) { s.items, s.length = append(s.items, item("b", "x")), 3000 }, []string{"broke off"}},
		{"longer than the cap", func(s *blog) { s.items = append(s.items, item("b", strings.Repeat("long ", 1000))) }, []string{"4000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.t = t
			fresh := newBlog()
			s.edit(func(s *blog) {
				s.items, s.status, s.body, s.length = fresh.items, 0, "", 0
				tt.change(s)
			})
			b.want("logged", b.wantError(tt.words...))
			b.want("live records", b.titles(), "a Post a", "aa Post aa")
		})
	}
	b.t = t
	s.edit(func(s *blog) { s.items, s.status, s.body, s.length = newBlog().items[:1], 0, "", 0 })
	s.asked()
	b.wantLog("in order again")
	if asked := s.asked(); len(asked) != 1 {
		t.Errorf("asked for %q", asked)
	}
}

// A feed that has ended keeps its records; the operator is told.
func TestFeedEnded(t *testing.T) {
	s := newBlog()
	b := newFeedHarness(t, s, content(config.Reference))
	b.wantLog("first", "created a Post a", "created aa Post aa")
	s.edit(func(s *blog) { s.status = http.StatusGone })
	r := b.wantLog("410")
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "410") {
		t.Errorf("warnings %q", r.Warnings)
	}
	s.edit(func(s *blog) {
		s.status, s.body = 0, `{"version":"https://jsonfeed.org/version/1.1","expired":true,"items":[{"id":"urn:j","title":"Last","url":"/p/a"}]}`
	})
	r = b.wantLog("expired", "created j Last")
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "expired") {
		t.Errorf("warnings %q", r.Warnings)
	}
}

// An item that cannot be taken is quarantined, the others are taken; it can be
// replayed once it can be read.
func TestFeedQuarantine(t *testing.T) {
	s := newBlog()
	const bare = `<item><title>Post b</title><guid isPermaLink="false">urn:b</guid></item>`
	s.items = append(s.items, bare)
	b := newFeedHarness(t, s, content(config.Reference))
	r := b.wantLog("two of three", "created a Post a", "created aa Post aa")
	list := b.quarantined()
	if r.Quarantined != 1 || len(list) != 1 || list[0].Record != "urn:b" || list[0].Rule != "feed-link" || !strings.Contains(string(list[0].Input), bare) {
		t.Fatalf("in quarantine %+v, report %+v", list, r)
	}
	q := list[0]
	if _, err := b.replay(q); !errors.Is(err, harvest.ErrStillBad) {
		t.Errorf("replayed as it was: %v", err)
	}
	q.Input = []byte(strings.Replace(string(q.Input), "<title>", "<link>/p/b</link><title>", 1))
	got, err := b.replay(q)
	if err != nil {
		t.Fatal(err)
	}
	b.want("replayed", got, "created b Post b")
	s.edit(func(s *blog) { s.items = s.items[:2:2]; s.items = append(s.items, bare, item("aaa", "x")) })
	b.wantLog("met once more", "created aaa Post aaa")
	if again := b.quarantined(); len(again) != 1 || again[0].Times != 2 {
		t.Errorf("the same input in quarantine: %+v", again)
	}
}

// A page that cannot be had is asked for again, though the feed has dropped it;
// once it is there it is not asked for any more.
func TestFeedPending(t *testing.T) {
	s := newBlog()
	s.pages["/p/a"] = ""
	b := newFeedHarness(t, s)
	r := b.wantLog("one page fails", "created aa Post aa")
	if r.Pending != 1 {
		t.Errorf("pending: %+v", r)
	}
	s.edit(func(s *blog) { s.items, s.pages["/p/a"] = s.items[:1], "page a" })
	b.wantLogOf("the page is back, the item is gone", harvest.Options{AllPending: true}, "created a Post a")
	s.edit(func(s *blog) { s.items = newBlog().items })
	s.asked()
	b.wantFull("the item is back")
	if asked := s.asked(); len(asked) != 1 {
		t.Errorf("asked for %q, want the feed alone", asked)
	}
}

// D85, D86: the archives and the pages of a legacy feed are read: all of them at
// first, later only where something may be new. What a later page says of a record
// that an earlier one has is historical.
func TestFeedPagesAreFollowed(t *testing.T) {
	for _, rel := range []string{"next", "prev-archive"} {
		t.Run(rel, func(t *testing.T) {
			s := newBlog()
			link := func(to string) string {
				return `<atom:link xmlns:atom="http://www.w3.org/2005/Atom" rel="` + rel + `" href="` + to + `"/>`
			}
			page := func(head string, items ...string) string {
				return `<rss version="2.0"><channel><title>Blog</title>` + head + strings.Join(items, "") + "</channel></rss>"
			}
			s.head = link("/older/2")
			s.pages["/older/2"] = page(link("/older/3"), item("a", "an older text"))
			s.pages["/older/3"] = page(link("/older/4"), item("aaa", "x")) // and there the feed ends: 404
			b := newFeedHarness(t, s, content(config.Reference))
			b.wantLog("first", "created a Post a", "created aa Post aa", "created aaa Post aaa")
			documents := slices.DeleteFunc(s.asked(), func(path string) bool { return strings.HasPrefix(path, "/p/") }) // whose types are asked for (D13)
			if got := strings.Join(documents, " "); got != "/feed.atom /older/2 /older/3 /older/4" {
				t.Errorf("asked for %s", got)
			}
			s.edit(func(s *blog) { s.items = append([]string{item("aaaaaa", "new")}, s.items...) })
			b.wantLog("later", "created aaaaaa Post aaaaaa")
			for _, path := range s.asked() {
				if path == "/older/3" {
					t.Error("a page below the mark was followed by another one")
				}
			}
		})
	}
}

// A page that cannot be read is said and asked for again; what was read counts.
func TestFeedPageThatFails(t *testing.T) {
	s := newBlog()
	s.head = `<atom:link xmlns:atom="http://www.w3.org/2005/Atom" rel="next" href="/older/2"/>`
	s.pages["/older/2"] = "" // 500
	b := newFeedHarness(t, s, content(config.Reference))
	r := b.wantLog("first", "created a Post a", "created aa Post aa")
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "/older/2") {
		t.Errorf("warnings %q", r.Warnings)
	}
	s.edit(func(s *blog) {
		s.pages["/older/2"] = `<rss version="2.0"><channel><title>Blog</title>` + item("aaa", "x") + "</channel></rss>"
	})
	b.wantLog("again", "created aaa Post aaa")
}

// An Atom feed with archives is advised to be harvested as Atom-PMH, once; RSS
// cannot be (D85).
func TestFeedOfAtomPMH(t *testing.T) {
	s := newBlog()
	s.body = `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>F</title><updated>2026-01-01T00:00:00Z</updated><link rel="prev-archive" href="/archive/1"/>` +
		`<entry><id>urn:a</id><title>Post a</title><updated>2026-01-01T00:00:00Z</updated><link href="/p/a"/></entry></feed>`
	b := newFeedHarness(t, s, content(config.Reference))
	r := b.wantLog("first", "created a Post a")
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "atompmh") || reported(r, "feed-kind") == "" {
		t.Errorf("not told: %+v", r)
	}
	r = b.wantFull("again")
	if len(r.Warnings) != 0 || reported(r, "feed-kind") == "" {
		t.Errorf("told again, or not reported: %+v", r)
	}
}

// A feed in a file is one like others; its items may lead to files beside it.
func TestFeedFromFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("page.html", "<p>page</p>")
	write("feed.xml", `<rss version="2.0"><channel><item><title>Page</title><link>page.html</link><guid isPermaLink="false">urn:page</guid></item>
<item><title>Out</title><link>../out.html</link><guid isPermaLink="false">urn:out</guid></item></channel></rss>`)
	b := newFileHarness(t, "feed:"+filepath.Join(dir, "feed.xml"))
	r := b.wantLog("first", "created page Page")
	if r.Pending != 1 {
		t.Errorf("what lies outside of the folder: %+v", r)
	}
	if r := b.wantLog("again"); !r.NotModified {
		t.Errorf("the file has not changed: %+v", r)
	}
}

// D15: what a legacy feed says of itself and of its items stands in the aggregated
// Atom: the item's own on the entry, the feed's in its atom:source, and the feed
// that an item was copied from instead.
func TestFeedMetadataIsPublished(t *testing.T) {
	s := newBlog()
	s.head = `<link>http://blog.example/</link><language>de</language><copyright>© Blog</copyright><managingEditor>ed@blog.example (Ed)</managingEditor><category>Harbours</category>`
	s.items = []string{
		strings.Replace(item("a", "x"), "</item>", `<author>jo@blog.example (Jo)</author><category domain="http://blog.example/t">Piers</category></item>`, 1),
		strings.Replace(item("aa", "x"), "</item>", `<source url="http://origin.example/rss">Origin</source></item>`, 1),
	}
	b := newFeedHarness(t, s)
	b.wantLog("the first harvest", "created a Post a", "created aa Post aa")
	url, end := published(t, b.bridge.Publish)
	status, _, feed := answered(t, url+"/sets/main/feed.atom")
	if err := end(); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	at := strings.Index(feed, "<id>urn:aa</id>")
	if at < 0 {
		t.Fatalf("no entry urn:aa in %s", feed)
	}
	for _, want := range []struct{ in, text string }{
		{feed[:at], `<title xml:lang="de">Post a</title>`},
		{feed[:at], `<author><name>Jo</name><email>jo@blog.example</email></author>`},
		{feed[:at], `<category term="Piers" scheme="http://blog.example/t"/>`},
		{feed[:at], `<source><title xml:lang="de">Blog</title><author><name>Ed</name><email>ed@blog.example</email></author><category term="Harbours"/><rights xml:lang="de">© Blog</rights><link rel="alternate" href="http://blog.example/"/></source>`},
		{feed[at:], `<source><title>Origin</title><link rel="self" href="http://origin.example/rss"/></source>`},
	} {
		if !strings.Contains(want.in, want.text) {
			t.Errorf("no %s in\n%s", want.text, want.in)
		}
	}
}

// D86: a legacy feed that claims far more results than it has is reported in each
// harvest, and the operator is warned once.
func TestFeedOfFewResults(t *testing.T) {
	s := newBlog()
	s.head = `<opensearch:totalResults xmlns:opensearch="http://a9.com/-/spec/opensearchrss/1.0/">173245</opensearch:totalResults>`
	b := newFeedHarness(t, s, content(config.Reference))
	r := b.wantLog("first", "created a Post a", "created aa Post aa")
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "173245 results, and leads to 2") {
		t.Errorf("warnings %q", r.Warnings)
	}
	for _, when := range []string{"not modified", "modified"} {
		if first := reported(r, "feed-results"); !strings.Contains(first, "173245") {
			t.Errorf("before %s: reported %q", when, first)
		}
		if r = b.wantLog(when); len(r.Warnings) > 0 {
			t.Errorf("%s: warnings %q", when, r.Warnings)
		}
		s.edit(func(s *blog) { s.items[0] = item("aa", "y") })
	}
	s.edit(func(s *blog) { s.head = "" })
	if r = b.wantLog("it claims nothing any more"); reported(r, "feed-results") != "" {
		t.Errorf("still reported: %+v", r)
	}
}
