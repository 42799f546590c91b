package harvest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// endlessFeed is a feed whose pages always lead to a further one.
type endlessFeed struct {
	*shelf
	items func(page int) string
	clock func() time.Time // nil is that of the system
	asked int
}

func newEndlessFeed(t *testing.T, items func(page int) string) *endlessFeed {
	f := &endlessFeed{shelf: newShelf(t, t.TempDir(), event.Reference), items: items}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.from(harvest.Feed, server.URL+"/feed", server.Client())
	f.src.MaxDocuments = 20
	return f
}

// ServeHTTP implements http.Handler.
func (f *endlessFeed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page, _ := strconv.Atoi(r.URL.Query().Get("page"))
	if r.Method == http.MethodGet {
		f.asked++
	}
	w.Header().Set("Content-Type", "application/atom+xml")
	if f.clock != nil {
		w.Header().Set("Date", f.clock().UTC().Format(http.TimeFormat))
	}
	_, _ = fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>Page %d</title><link rel="next" href="?page=%d"/>%s</feed>`, page, page+1, f.items(page))
}

// wants harvests, and checks how many documents were asked for and what the warnings say.
func (f *endlessFeed) wants(what string, asked int, warns string) {
	f.t.Helper()
	f.asked = 0
	r := f.run()
	if got := strings.Join(r.Warnings, "; "); f.asked != asked || !strings.Contains(got, warns) || warns == "" && got != "" {
		f.t.Errorf("%s: asked for %d documents, want %d; warnings %q, want %q", what, f.asked, asked, got, warns)
	}
}

func entryOfPage(n int, day string) string {
	return fmt.Sprintf(`<entry><id>urn:e:%d</id><title>%d</title><updated>2025-02-%sT00:00:00Z</updated><link href="/%d" type="text/html"/></entry>`, n, n, day, n)
}

// A feed with more pages than max_documents is read up to there once, and then as far as it has
// something new; that the others were not read is said in each harvest, and what a higher
// max_documents allows is read.
func TestFeedWithTooManyPages(t *testing.T) {
	day := "09"
	f := newEndlessFeed(t, func(page int) string {
		if page == 0 {
			return entryOfPage(1000, day)
		}
		return entryOfPage(page, "01")
	})
	f.wants("first", 20, "raise max_documents")
	f.wants("again", 1, "raise max_documents")
	day = "10"
	f.wants("something new", 2, "raise max_documents")
	f.src.MaxDocuments = 30
	f.wants("max_documents was raised", 30, "raise max_documents")
	f.wants("again", 1, "raise max_documents")
}

// Pages that repeat the items of another page are the end of a feed: some software answers so for
// any page behind the last one.
func TestFeedWithRepeatedPages(t *testing.T) {
	f := newEndlessFeed(t, func(page int) string { return entryOfPage(min(page, 3), "01") })
	f.wants("first", 5, "")
	f.wants("again", 1, "")
}

// entriesFrom returns pages with one entry each: n, then n-1, and so on.
func entriesFrom(n *int, dates string) func(page int) string {
	return func(page int) string {
		e := *n - page
		return fmt.Sprintf(`<entry><id>urn:e:%d</id><title>%d</title>%s<link href="/%d" type="text/html"/></entry>`, e, e, dates, e)
	}
}

// New items may have dates before the last harvest, or none, as those of a repository that dates them
// by when they were published. Pages are read as far as they have such items.
func TestFeedWithOldDates(t *testing.T) {
	for _, dates := range []string{"<updated>2001-01-01T00:00:00Z</updated>", ""} {
		n := 1000
		f := newEndlessFeed(t, entriesFrom(&n, dates))
		f.wants("first", 20, "raise max_documents")
		f.wants("again", 1, "raise max_documents")
		n += 5
		f.wants("five new ones", 6, "raise max_documents")
		f.wants("again", 1, "raise max_documents")
		if live := len(f.live()); live != 25 {
			t.Errorf("%d records, want 25", live)
		}
	}
}

// Pages are read as far as they have something newer also where the configuration does not select
// it, or it is bad: what is behind it may be new too.
func TestFeedWithNewUnselectedItems(t *testing.T) {
	for _, href := range []string{"/other/9", ""} {
		newest := ""
		f := newEndlessFeed(t, func(page int) string {
			switch {
			case newest == "":
				return strings.ReplaceAll(entryOfPage(page, "01"), `href="/`, `href="/maps/`)
			case page < 2:
				return fmt.Sprintf(`<entry><id>urn:o:%d</id><title>o</title><updated>2025-02-%sT00:00:00Z</updated><link href="%s"/></entry>`, page, newest, href)
			}
			return strings.ReplaceAll(entryOfPage(1000-page, newest), `href="/`, `href="/maps/`)
		})
		f.src.Selection.Prefixes = []string{strings.TrimSuffix(f.src.URL, "feed") + "maps/"}
		f.wants("first", 20, "raise max_documents")
		newest = "09"
		f.wants("new ones behind two pages of others", 20, "raise max_documents")
		if live := len(f.live()); live != 38 {
			t.Errorf("%q: %d records, want 38", href, live)
		}
		f.wants("again", 1, "raise max_documents")
	}
}

// A server whose clock was ahead dates its items so. Once it is right, pages are read as far as
// they have something newer, as before.
func TestFeedOfAClockThatWasAhead(t *testing.T) {
	now := time.Now().AddDate(1, 0, 0)
	day := "01"
	f := newEndlessFeed(t, func(page int) string {
		if page < 2 { // the newest, and one that is edited
			return strings.Replace(entryOfPage(page, day), "2025-02-"+day+"T00:00:00Z", now.Add(-time.Minute).UTC().Format(time.RFC3339), 1)
		}
		return entryOfPage(page, day)
	})
	f.clock = func() time.Time { return now }
	f.wants("ahead", 20, "raise max_documents")
	now = time.Now().Add(time.Hour) // by when the items are newer than the first harvest
	f.wants("right again", 3, "raise max_documents")
}

// A walk that was interrupted begins anew, and reads the pages behind those whose items are known
// since.
func TestFeedWithOldDatesInterrupted(t *testing.T) {
	n := 1000
	entry := entriesFrom(&n, "")
	f := newEndlessFeed(t, entry)
	f.harvest.BatchSize = 1 // each is durable at once
	f.wants("first", 20, "raise max_documents")
	n += 5
	ctx, cancel := context.WithCancel(t.Context())
	known := f.log.Changed()
	f.items = func(page int) string {
		if page == 2 {
			<-known
			cancel()
		}
		return entry(page)
	}
	src := f.src
	if _, err := f.harvest.Run(ctx, &src, harvest.Options{}); err == nil {
		t.Fatal("the harvest was not interrupted")
	}
	f.items = entry
	f.run()
	if live := len(f.live()); live != 25 {
		t.Errorf("%d records, want 25", live)
	}
}

// A tombstone deletes no item that is later, whichever of their pages comes first.

func TestFeedWithTombstoneBeforeLaterItem(t *testing.T) {
	const tombstone = `<at:deleted-entry xmlns:at="http://purl.org/atompub/tombstones/1.0" ref="urn:e:1" when="2025-03-01T00:00:00Z"/>`
	item := func(title, date string) string {
		return fmt.Sprintf(`<entry><id>urn:e:1</id><title>%s</title><updated>%s</updated><link href="/1" type="text/html"/></entry>`, title, date)
	}
	pages := []string{tombstone, item("again", "2025-04-01T00:00:00Z")}
	f := newEndlessFeed(t, func(page int) string {
		if page < len(pages) {
			return pages[page]
		}
		return ""
	})
	f.src.MaxDocuments = 3
	kinds := func() string {
		return fmt.Sprint(f.told(func(ev *event.Event) string { return ev.Kind.String() + " " + ev.Title }))
	}
	step := func(what, want string, o ...string) {
		t.Helper()
		if len(o) > 0 {
			pages = o
		}
		_, err := f.try(harvest.Options{Full: true})
		f.must(err)
		if got := kinds(); got != want {
			t.Errorf("%s: events %s, want %s", what, got, want)
		}
	}
	step("new", "[created again]")
	step("unchanged", "[]")
	step("edited", "[updated edited]", tombstone, item("edited", "2025-05-01T00:00:00Z"))
	step("unchanged", "[]")
	step("older than the tombstone", "[]", tombstone, item("old", "2025-02-01T00:00:00Z"))
	step("tombstone later", "[deleted edited]", `<at:deleted-entry xmlns:at="http://purl.org/atompub/tombstones/1.0" ref="urn:e:1" when="2025-06-01T00:00:00Z"/>`, item("edited", "2025-05-01T00:00:00Z"))
	step("unchanged", "[]")
	step("without a time", "[]", strings.Replace(tombstone, "2025-03-01", "soon", 1), item("again", "2025-07-01T00:00:00Z"))
	step("item of the future", "[]", tombstone, item("future", "2125-07-01T00:00:00Z"))
	step("back", "[created back]", tombstone, item("back", "2025-07-01T00:00:00Z"))
	step("without a time", "[deleted back]", strings.Replace(tombstone, "2025-03-01", "soon", 1), item("back", "2025-07-01T00:00:00Z"))
	step("unchanged", "[]")
}

// Undated items that the configuration does not select, or that are bad, do not hide new ones on
// the pages behind: the pages are read up to one with an item that is known.
func TestFeedWithUndatedUnselectedItems(t *testing.T) {
	for _, href := range []string{"/other/9", ""} {
		n, others := 1000, 0
		entry := entriesFrom(&n, "")
		f := newEndlessFeed(t, func(page int) string {
			if page < others {
				return fmt.Sprintf(`<entry><id>urn:o:%d</id><title>o</title><link href="%s"/></entry>`, page, href)
			}
			return strings.ReplaceAll(entry(page-others), `href="/`, `href="/maps/`)
		})
		f.src.Selection.Prefixes = []string{strings.TrimSuffix(f.src.URL, "feed") + "maps/"}
		f.wants("first", 20, "raise max_documents")
		n, others = 1002, 3
		f.wants("two new ones behind three pages of others", 6, "raise max_documents")
		if live := len(f.live()); live != 22 {
			t.Errorf("%q: %d records, want 22", href, live)
		}
		f.wants("again", 4, "raise max_documents")
	}
}
