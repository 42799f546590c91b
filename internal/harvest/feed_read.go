package harvest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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
	// protocol: it has elements that mean something in Atom-PMH only.
	protocol bool
	// ended: it says that nothing more will come.
	ended bool
	// results is how many results it claims to have (OpenSearch), 0 when it does
	// not say.
	results int64
	// older is the URL of the document with older items, an archive document or the
	// next page; "" for none.
	older string
}

// feedItem is one item or entry. Of its entry, Links are alternates and via.
type feedItem struct {
	entry      atompmh.Entry
	enclosures []event.Link
	elsewhere  []atompmh.Link    // where the content is that does not stand in the feed
	content    [sha256.Size]byte // hash of all that stands in the item
	input      []byte            // the item as a document of its own
	// rule and reason say why the item goes to quarantine; "" if it does not.
	rule, reason string

	elements []feedElement // what gofeed is to read of an item in XML
	source   string        // dc:source
	metadata feedMetadata
}

func (it *feedItem) reject(rule, format string, args ...any) {
	if it.rule == "" {
		it.rule, it.reason = rule, fmt.Sprintf(format, args...)
	}
}

// feedReader reads a document in two steps. The first applies the caps, splits
// the document into items and reads what has to be exact: identifiers and links.
// The second hands gofeed, item by item, the titles and dates. gofeed is forgiving
// where that is wanted, but it rewrites identifiers and links, loses the items of
// a second channel, and overflows the stack on deep documents.
type feedReader struct {
	url, contentType string
	limits           strictxml.Limits
	report           func(rule, text string)
	parse            func(io.Reader) (*gofeed.Feed, error) // gofeed
	doc              feedDocument
	atom             bool // the family of a feed in XML: Atom, else RSS
}

func (g *feedReader) problem(rule string, line, column int, format string, args ...any) {
	g.report(rule, strictxml.Place(g.url, line, column)+": "+fmt.Sprintf(format, args...))
}

// documentError is an error of the document as a whole.
func (g *feedReader) documentError(line, column int, format string, args ...any) error {
	return &strictxml.DocumentError{URL: g.url, Line: line, Column: column, Reason: fmt.Sprintf(format, args...)}
}

// maxItems is how many items a feed may have: all of them are kept in memory, and
// gofeed takes as long for a short one as for a long one.
const maxItems = 50_000

// addItem adds an item to the document.
func (g *feedReader) addItem(it feedItem) error {
	if len(g.doc.items) == maxItems {
		return g.documentError(it.entry.Line, it.entry.Column, "more than %d items; want a feed of the newest ones, or Atom-PMH", maxItems)
	}
	g.doc.items = append(g.doc.items, it)
	return nil
}

// read reads a document. Of one that cannot be read to its end nothing is taken.
func (g *feedReader) read(body []byte) (*feedDocument, error) {
	start := bytes.TrimLeft(bytes.TrimPrefix(body, []byte(byteOrderMark)), " \t\r\n")
	var err error
	switch {
	case len(start) == 0:
		err = g.documentError(1, 1, "the document is empty; want a feed")
	case start[0] == '{', start[0] == '[':
		err = g.json(body)
	case start[0] != '<' && likeASCII(body, ""):
		err = g.documentError(1, 1, "neither XML nor JSON, it begins with %q; want a feed", strictxml.Clip(string(start[:min(len(start), 40)])))
	case isPage.Match(start[:min(len(start), 4096)]):
		err = g.page(start)
	default:
		err = g.xml(sanitize(body, g.contentType, func(rule string, offset int, what string) {
			line, column := placeIn(body, offset)
			g.problem(rule, line, column, "%s", what)
		}))
	}
	if err != nil {
		return nil, err
	}
	g.setSources()
	for i := range g.doc.items {
		if err := g.parseItem(&g.doc.items[i]); err != nil {
			g.doc.items[i].reject(ruleFeedItem, "%s", err)
		}
	}
	g.setLanguages()
	return &g.doc, nil
}

// parseItem lets gofeed read the title and the dates of an item.
func (g *feedReader) parseItem(it *feedItem) error {
	if it.rule != "" || it.elements == nil {
		return nil
	}
	said, err := g.parseElements(it.elements)
	if err != nil {
		return err
	}
	it.entry.Title, it.metadata.Language = g.title(said, it.elements)
	it.entry.Updated = g.date(said, it.entry.Line, it.entry.Column).Time()
	return nil
}

// setSources makes a dc:source the item's via, if it is a URL. One that several items
// name is that of the publication, and is ignored.
func (g *feedReader) setSources() {
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

// identify sets the identifier and the representations of an item that was read.
// permalink is a guid or id that is a link as well, or "".
func (it *feedItem) identify(id, permalink string) {
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
		it.reject(ruleFeedID, "the item has no guid, id or link that could identify it")
	case len(links) == 0:
		it.reject(ruleFeedLink, "the item has neither a link nor an enclosure that could be taken")
	}
}

// alternate returns a link to the page that an item is about.
func alternate(href, mediaType string) atompmh.Link {
	return atompmh.Link{Rel: "alternate", Href: href, Type: mediaType, Length: atompmh.NoLength}
}

func onTheWeb(href string) bool {
	u, err := url.Parse(href)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// reachable reports whether a link of this document can be fetched.
func (g *feedReader) reachable(href string) bool {
	return onTheWeb(href) || strings.HasPrefix(href, "file:") && strings.HasPrefix(g.url, "file:")
}

// placeIn returns the line and the column, in bytes, of an offset. Both count from 1.
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

// page returns an error that says which feeds an HTML page names.
func (g *feedReader) page(doc []byte) error {
	feeds := pageFeeds(doc, g.url)
	if len(feeds) == 0 {
		return g.documentError(1, 1, "an HTML page, not a feed, and it names no feed: look at the address")
	}
	return g.documentError(1, 1, "an HTML page, not a feed; it names %s: take that as the Source's URL", strings.Join(feeds, ", "))
}

// pageBytes is how much of a page is read.
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

// elementBytes caps the title and each date of an item.
const elementBytes = 64 << 10

// feedElement is an element of an item that gofeed is to read.
type feedElement struct {
	name       string // under which gofeed knows it
	kind, mode string // the attributes type and mode of Atom
	language   string // as xml:lang states it
	text       []byte // what stands in it, as markup
}

// gofeedName returns the name under which gofeed knows an element of a feed or item.
func gofeedName(name string) string {
	switch name {
	case "pubdate":
		return "pubDate"
	case "lastbuilddate":
		return "atom:updated"
	case "modified":
		return "updated"
	case "issued", "created":
		return "published"
	}
	return name
}

// parseElements hands gofeed one item: a small document in UTF-8, without declaration,
// DOCTYPE or xml:base, in the right namespace, of what has passed the caps.
func (g *feedReader) parseElements(elements []feedElement) (*gofeed.Item, error) {
	var b bytes.Buffer
	before, after := `<rss version="2.0" xmlns:dc="`+dublinCore+`" xmlns:atom="http://www.w3.org/2005/Atom"><channel><item>`, `</item></channel></rss>`
	if g.atom {
		before, after = `<feed xmlns="http://www.w3.org/2005/Atom"><entry>`, `</entry></feed>`
	}
	b.WriteString(before)
	for _, w := range elements {
		b.WriteString("<" + w.name)
		for _, a := range [...]struct{ name, value string }{{"type", w.kind}, {"mode", w.mode}} {
			if g.atom && plainValue.MatchString(a.value) {
				b.WriteString(" " + a.name + `="` + a.value + `"`)
			}
		}
		b.WriteByte('>')
		b.Write(w.text)
		b.WriteString("</" + w.name + ">")
	}
	b.WriteString(after)
	return g.runGofeed(b.Bytes())
}

var plainValue = regexp.MustCompile(`^[A-Za-z/+]+$`)

// runGofeed returns the item of a document that has one. A panic of gofeed is an error
// like others.
func (g *feedReader) runGofeed(doc []byte) (item *gofeed.Item, err error) {
	defer func() {
		if p := recover(); p != nil {
			item, err = nil, fmt.Errorf("the feed parser failed on it: %v", p)
		}
	}()
	feed, err := g.parse(bytes.NewReader(doc))
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("its %q is a %s; want a %s", wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:], wrong.Value, wrong.Type)
	case err != nil:
		return nil, err
	case len(feed.Items) != 1:
		return nil, errors.New("the feed parser did not find the item")
	}
	return feed.Items[0], nil
}

// title returns an item's title as plain text, and its language. RSS does not say
// whether titles are HTML; those that look like it are read as HTML.
func (g *feedReader) title(item *gofeed.Item, elements []feedElement) (title, language string) {
	var e feedElement
	for _, name := range []string{"atom:title", "dc:title", "title"} {
		if i := slices.IndexFunc(elements, func(e feedElement) bool { return e.name == name }); i >= 0 {
			e = elements[i]
		}
	}
	if title = plainTitle(item.Title, !g.atom || strings.Contains(strings.ToLower(e.kind), "html")); title == "" {
		return "", ""
	}
	return title, e.language
}

// htmlTag matches the tags that titles may have. Other words in angle brackets are text.
var htmlTag = regexp.MustCompile(`(?is)<!--.*?-->|</?(a|abbr|acronym|b|bdi|bdo|big|blockquote|br|center|cite|code|del|dfn|div|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|nobr|ol|p|pre|q|s|samp|small|span|strike|strong|sub|sup|table|td|th|time|tr|tt|u|ul|var|wbr)(\s[^<>]*)?/?>`)

var htmlReference = regexp.MustCompile(`&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);`)

// plainTitle reduces a title to plain text in one line.
func plainTitle(s string, markup bool) string {
	if markup && strings.ContainsAny(s, "<&") {
		s = htmlTag.ReplaceAllStringFunc(s, func(tag string) string {
			switch strings.ToLower(htmlTag.FindStringSubmatch(tag)[1]) {
			case "br", "p", "div", "li", "td", "th", "tr", "hr", "blockquote":
				return " "
			}
			return ""
		})
		// html.UnescapeString alone would make "&not" of "&notes" as well.
		s = htmlReference.ReplaceAllStringFunc(s, html.UnescapeString)
	}
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == '\u00A0' || !inXML(r) }), " ")
}

// date returns when an item was last modified, else when it was published;
// unknown when the feed does not say, or not for certain. Line and column are
// the item's.
func (g *feedReader) date(item *gofeed.Item, line, column int) event.Stamp {
	type said struct {
		text string
		time *time.Time
	}
	dates := []said{{item.Updated, item.UpdatedParsed}, {item.Published, item.PublishedParsed}}
	for i, d := range dates {
		if d.text == "" || i > 0 && d.text == dates[0].text {
			continue
		}
		why := dateDoubt(d.text)
		if d.time == nil {
			why = "it is not in a form of date that is known"
		}
		if why == "" {
			if s, ok := event.StampOf(*d.time); ok {
				return s
			}
			why = "its year is after 2261"
		}
		g.problem(ruleFeedDate, line, column, "date %q is left out: %s", strictxml.Clip(d.text), why)
	}
	return event.Stamp{}
}

var (
	dateOfNumbers = regexp.MustCompile(`^([0-9]{1,2})[/-]([0-9]{1,2})[/-]([0-9]+)`)
	dateOffset    = regexp.MustCompile(`[+-][0-9]{2}:?[0-9]{2}\b`)
	dateZone      = regexp.MustCompile(`[0-9 ]([A-Z]{2,5})$`)
	knownZone     = regexp.MustCompile(`^(UTC?|GMT|AM|PM|[ECMP][SD]T|WES?T|BST|CES?T|EES?T)$`)
)

// dateDoubt returns why the time that gofeed reads from a date may not be the one that
// was meant, "" if it is.
func dateDoubt(text string) string {
	text = strings.TrimSpace(text)
	if m := dateOfNumbers.FindStringSubmatch(text); m != nil {
		a, _ := strconv.Atoi(m[1])
		b, _ := strconv.Atoi(m[2])
		if len(m[3]) < 4 || a <= 12 && b <= 12 && a != b {
			return "which of its numbers is the day, the month and the year cannot be told"
		}
	}
	if m := dateZone.FindStringSubmatch(text); m != nil && !knownZone.MatchString(m[1]) && !dateOffset.MatchString(text) {
		return fmt.Sprintf("time zone %q is not known", m[1])
	}
	return ""
}
