package harvest

import (
	"errors"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// hostileLegacyFeeds are feeds of about n bytes that ask much of their reader.
func hostileLegacyFeeds(n int) map[string][]byte {
	fill := func(each string) string { return strings.Repeat(each, max(1, n/len(each))) }
	rss := func(content string) []byte {
		return []byte(`<rss version="2.0"><channel>` + content + "</channel></rss>")
	}
	docs := map[string][]byte{
		"items of RSS":                       rss(fill("<item><guid>1</guid></item>")),
		"items without anything":             rss(fill("<item/>")),
		"items of one guid":                  rss(fill("<item><guid>urn:x</guid><link>http://h.example/1</link></item>")),
		"enclosures":                         rss("<item><guid>1</guid>" + fill(`<enclosure url="http://h.example/1"/>`) + "</item>"),
		"links under a long base":            rss(`<item xml:base="http://h.example/` + strings.Repeat("b", 8000) + `/"><guid>1</guid>` + fill(`<link href="1"/>`) + "</item>"),
		"categories":                         rss("<item><guid>1</guid>" + fill(`<category>x</category>`) + "</item>"),
		"entities that are HTML's":           rss("<item><title>" + fill("&nbsp;") + "</title></item>"),
		"ampersands":                         rss("<item><title>" + fill("& ") + "</title></item>"),
		"control characters":                 rss("<item><title>" + fill("\x01") + "</title></item>"),
		"bytes that are not UTF-8":           rss("<item><title>" + fill("\xff") + "</title></item>"),
		"tags that do not end":               rss(fill("<item><title>x</item>")),
		"attributes of no value":             rss("<item>" + fill("<a b c=d>") + "</item>"),
		"comments of HTML that do not end":   rss("<item><guid>1</guid><author>" + fill("&lt;!--&lt;b>") + "</author></item>"),
		"dates that are none":                rss(fill("<item><guid>1</guid><pubDate>Mon, 99 Foo 2020</pubDate></item>")),
		"dates of sources that are none":     []byte(`<feed xmlns="http://www.w3.org/2005/Atom"><entry>` + fill("<source><updated>Mon, 99 Foo</updated></source>") + "</entry></feed>"),
		"items of JSON":                      []byte(`{"version":"https://jsonfeed.org/version/1.1","items":[` + strings.TrimSuffix(fill(`{"id":"1"},`), ",") + "]}"),
		"items of JSON that are not objects": []byte(`{"version":"https://jsonfeed.org/version/1.1","items":[` + strings.TrimSuffix(fill("1,"), ",") + "]}"),
		"arrays of JSON, as deep as may be":  []byte(`{"version":"https://jsonfeed.org/version/1.1","items":` + fill("[") + "}"),
		"members of JSON":                    []byte(`{` + fill(`"a":1,`) + `"items":[]}`),
		"attachments of JSON":                []byte(`{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1","attachments":[` + strings.TrimSuffix(fill(`{"url":"1"},`), ",") + "]}]}"),
		"a page":                             []byte("<!DOCTYPE html><html>" + fill("<link ")),
		"a page of comments":                 []byte("<html>" + fill("<!--")),
	}
	for name, element := range testenv.Hostile(n) {
		docs["in an item: "+name] = rss("<item><guid>1</guid>" + element + "</item>")
		docs["in a title: "+name] = rss("<item><guid>1</guid><title>" + element + "</title></item>")
		docs["in an entry: "+name] = []byte(`<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>urn:x</id><title>t</title>` + element + "</entry></feed>")
	}
	return docs
}

// readLegacy reads a document as a harvest does.
func readLegacy(body []byte) {
	r := feedRun()
	doc, err := r.newFeedReader("http://h.example/feed", "").read(body)
	if err != nil {
		return
	}
	p, b := r.newFeedPage(doc, &follow.Answer{URL: "http://h.example/feed"}), &backlog[*event.Item]{r: r}
	_, _ = p.read(b, func() error { return nil })
}

// perItem is how much more a feed may cost than other documents: gofeed reads each
// item, however short, as a document.
const perItem = 8

// D77: whatever is in a feed, reading it costs time and memory in proportion to its
// length.
func TestCost(t *testing.T) {
	testenv.AffordableAll(t, hostileLegacyFeeds(128<<10), perItem, readLegacy)
}

// The same of an item of RSS with a great many links of Atom and of its own.
func TestCostOfLinks(t *testing.T) {
	doc := []byte(`<rss version="2.0"><channel><item>` + strings.Repeat(`<link rel="via" href="//a"/>`, 60_000) + strings.Repeat("<link>x</link>", 120_000) + "</item></channel></rss>")
	testenv.Affordable(t, len(doc), func() { readLegacy(doc) })
}

// FuzzCost: the same of any document.
func FuzzCost(f *testing.F) {
	testenv.FuzzAffordable(f, hostileLegacyFeeds(16<<10), perItem, readLegacy)
}

// D64, D77: a feed of more items than can be is refused, and not held in memory.
func TestManyItems(t *testing.T) {
	testenv.Heavy(t)
	for _, c := range []struct{ before, item, after string }{
		{`<rss version="2.0"><channel>`, "<item/>", "</channel></rss>"},
		{`<feed xmlns="http://www.w3.org/2005/Atom">`, `<at:deleted-entry xmlns:at="http://purl.org/atompub/tombstones/1.0" ref="x"/>`, "</feed>"},
		{`{"items":[`, "1,", "1]}"},
	} {
		doc := []byte(c.before + strings.Repeat(c.item, maxItems+1) + c.after)
		_, err := feedRun().newFeedReader("http://h.example/feed", "").read(doc)
		if fault, ok := errors.AsType[*strictxml.DocumentError](err); !ok || !strings.Contains(fault.Reason, "more than 50000 items") {
			t.Errorf("%s: %v", c.item, err)
		}
	}
}
