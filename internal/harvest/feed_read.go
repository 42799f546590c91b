package harvest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"html"
	"io"
	"net/url"
	"regexp"
	"strings"

	"github.com/mmcdole/gofeed"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// feedDocument is a feed of any format, read to its end.
type feedDocument struct {
	id, title string
	updated   event.Stamp
	metadata  feedMetadata
	links     []atompmh.Link
	items     []feedItem
	// protocol: it has what only Atom-PMH gives a meaning to.
	protocol bool
	// ended: it says of itself that nothing more will come.
	ended bool
	// results is how many results it claims to have (OpenSearch), 0 when it does
	// not say.
	results int64
	// older is where older items are, "" when nowhere: an archive document, or the
	// next page.
	older string
}

// feedItem is one item or entry. Of its entry, Links are alternates and via.
type feedItem struct {
	entry      atompmh.Entry
	enclosures []event.Link
	elsewhere  []atompmh.Link    // where the content is that does not stand in the feed
	content    [sha256.Size]byte // hash of all that stands in the item
	input      []byte            // the item as a document of its own
	// rule and reason say why it is to be quarantined; "" when it is not.
	rule, reason string

	words    []feedWord // what gofeed is to read of an item in XML
	source   string     // dc:source
	metadata feedMetadata
}

func (it *feedItem) bad(rule, format string, args ...any) {
	if it.rule == "" {
		it.rule, it.reason = rule, fmt.Sprintf(format, args...)
	}
}

// feedReading reads a document in two steps. The first applies the caps, splits
// the document into items and reads what has to be exact: identifiers and links.
// The second hands gofeed, item by item, the titles and dates. gofeed is forgiving
// where that is wanted, but it rewrites identifiers and links, loses the items of
// a second channel, and overflows the stack on deep documents.
type feedReading struct {
	url, contentType string
	limits           strictxml.Limits
	report           func(rule, text string)
	parse            func(io.Reader) (*gofeed.Feed, error) // gofeed
	doc              feedDocument
	atom             bool // the family of a feed in XML: Atom, else RSS
}

func (g *feedReading) problem(rule string, line, column int, format string, args ...any) {
	g.report(rule, strictxml.Place(g.url, line, column)+": "+fmt.Sprintf(format, args...))
}

// fail is an error of the document as a whole.
func (g *feedReading) fail(line, column int, format string, args ...any) error {
	return &strictxml.DocumentError{URL: g.url, Line: line, Column: column, Reason: fmt.Sprintf(format, args...)}
}

// mostItems is how many items a feed may have: all of them are in memory, and
// gofeed takes as long for a short one as for a long one.
const mostItems = 50_000

// add takes an item.
func (g *feedReading) add(it feedItem) error {
	if len(g.doc.items) == mostItems {
		return g.fail(it.entry.Line, it.entry.Column, "more than %d items; want a feed of the newest ones, or Atom-PMH", mostItems)
	}
	g.doc.items = append(g.doc.items, it)
	return nil
}

// read reads a document whole. Of one that cannot be read whole nothing is taken.
func (g *feedReading) read(body []byte) (*feedDocument, error) {
	start := bytes.TrimLeft(bytes.TrimPrefix(body, []byte(byteOrderMark)), " \t\r\n")
	var err error
	switch {
	case len(start) == 0:
		err = g.fail(1, 1, "the document is empty; want a feed")
	case start[0] == '{', start[0] == '[':
		err = g.json(body)
	case start[0] != '<' && likeASCII(body, ""):
		err = g.fail(1, 1, "neither XML nor JSON, it begins with %q; want a feed", strictxml.Clip(string(start[:min(len(start), 40)])))
	case isPage.Match(start[:min(len(start), 4096)]):
		err = g.page(start)
	default:
		err = g.xml(mend(body, g.contentType, func(rule string, offset int, what string) {
			line, column := placeIn(body, offset)
			g.problem(rule, line, column, "%s", what)
		}))
	}
	if err != nil {
		return nil, err
	}
	g.sources()
	for i := range g.doc.items {
		if err := g.item(&g.doc.items[i]); err != nil {
			g.doc.items[i].bad(ruleFeedItem, "%s", err)
		}
	}
	g.languages()
	return &g.doc, nil
}

// item lets gofeed read the title and the dates of an item.
func (g *feedReading) item(it *feedItem) error {
	if it.rule != "" || it.words == nil {
		return nil
	}
	said, err := g.ask(it.words)
	if err != nil {
		return err
	}
	it.entry.Title, it.metadata.Language = g.title(said, it.words)
	it.entry.Updated = g.date(said, it.entry.Line, it.entry.Column).Time()
	return nil
}

// sources makes a dc:source the item's via, when it is a URL and no other item
// names the same: then it is the publication's.
func (g *feedReading) sources() {
	named := map[string]int{}
	for i := range g.doc.items {
		named[g.doc.items[i].source]++
	}
	for i := range g.doc.items {
		it := &g.doc.items[i]
		_, has := it.entry.Via()
		if !has && named[it.source] == 1 && onTheWeb(it.source) {
			it.entry.Links = append(it.entry.Links, atompmh.Link{Rel: "via", Href: it.source, Length: atompmh.NoLength})
		}
	}
}

// complete decides what identifies an item, once it is read whole, and what its
// representations are. permalink is a guid or id that is a link as well, or "".
func (it *feedItem) complete(id, permalink string) {
	e := &it.entry
	e.Kind = atompmh.Active
	permalink = escaped(permalink)
	links := e.Alternates()
	switch {
	case len(links) > 0:
	case onTheWeb(permalink):
		links = append(links, alternate(permalink, ""))
		e.Links = append(e.Links, links...)
	case len(it.elsewhere) > 0:
		links = it.elsewhere
		e.Links = append(e.Links, links...)
	default:
		for _, l := range it.enclosures {
			links = append(links, atompmh.Link{Rel: "alternate", Href: l.Href, Type: l.Type, Length: l.Length})
		}
		e.Links = append(e.Links, links...)
		it.enclosures = nil
	}
	if id == "" && len(links) > 0 {
		id = links[0].Href
	}
	e.ID = id
	switch {
	case id == "":
		it.bad(ruleFeedID, "the item has no guid, id or link that could identify it")
	case len(links) == 0:
		it.bad(ruleFeedLink, "the item has neither a link nor an enclosure that could be taken")
	}
}

// alternate is a link to the page that an item is about. Feeds mean a page when
// they do not say what is behind a link.
func alternate(href, mediaType string) atompmh.Link {
	return atompmh.Link{Rel: "alternate", Href: href, Type: mediaType, Length: atompmh.NoLength}
}

func onTheWeb(href string) bool {
	u, err := url.Parse(href)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// reachable reports whether a link of this document leads to something that can be
// taken.
func (g *feedReading) reachable(href string) bool {
	return onTheWeb(href) || strings.HasPrefix(href, "file:") && strings.HasPrefix(g.url, "file:")
}

// placeIn counts lines and bytes in them, from 1.
func placeIn(doc []byte, offset int) (line, column int) {
	before := doc[:offset]
	return 1 + bytes.Count(before, []byte("\n")), offset - bytes.LastIndexByte(before, '\n')
}

var (
	isPage     = regexp.MustCompile(`(?is)^(?:<\?xml.*?\?>|<!--.*?-->|\s)*<(?:!doctype\s+html|html)\b`)
	pageLink   = regexp.MustCompile(`(?is)<link\s[^<>]*>`)
	pageAttr   = regexp.MustCompile(`(?is)\s(rel|type|href)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))`)
	pageIsFeed = regexp.MustCompile(`(?i)^application/(?:rss|atom|rdf|feed)\+(?:xml|json)$|^application/json$`)
)

// page says that a document is an HTML page, and which feeds it names.
func (g *feedReading) page(doc []byte) error {
	feeds := pageFeeds(doc, g.url)
	if len(feeds) == 0 {
		return g.fail(1, 1, "an HTML page, not a feed, and it names no feed: look at the address")
	}
	return g.fail(1, 1, "an HTML page, not a feed; it names %s: take that as the Source's URL", strings.Join(feeds, ", "))
}

// pageBytes is how much of a page is looked at.
const pageBytes = 1 << 20

// pageFeeds returns the first feeds that an HTML page names.
func pageFeeds(doc []byte, at string) (feeds []string) {
	base, _ := url.Parse(at) // without one relative links stay so
	for _, tag := range pageLink.FindAll(doc[:min(len(doc), pageBytes)], 100) {
		attrs := map[string]string{}
		for _, a := range pageAttr.FindAllStringSubmatch(string(tag), -1) {
			attrs[strings.ToLower(a[1])] = html.UnescapeString(a[2] + a[3] + a[4])
		}
		if !strings.Contains(strings.ToLower(attrs["rel"]), "alternate") || !pageIsFeed.MatchString(strings.TrimSpace(attrs["type"])) {
			continue
		}
		if href, err := strictxml.Resolve(base, attrs["href"]); err == nil && len(feeds) < 5 {
			feeds = append(feeds, strictxml.Clip(href))
		}
	}
	return feeds
}
