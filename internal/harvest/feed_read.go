package harvest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"html"
	"io"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mmcdole/gofeed/rss"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/pattern"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Rules of kind feed, under which defects are reported and items quarantined;
// docs/legacy-feeds.md lists them.
const (
	ruleFeedXML       = "feed-xml"       // not well-formed, and read all the same
	ruleFeedCharset   = "feed-charset"   // bytes or declarations of another character set
	ruleFeedBase      = "feed-base"      // an xml:base that is no reference
	ruleFeedNamespace = "feed-namespace" // elements in no namespace, or in a wrong one
	ruleFeedID        = "feed-id"        // no identity, or one that is doubtful or there twice
	ruleFeedLink      = "feed-link"      // nothing to take, or a link that leads nowhere
	ruleFeedDate      = "feed-date"      // a date that cannot be read for certain
	ruleFeedItem      = "feed-item"      // an item that cannot be read
	ruleFeedDeleted   = "feed-deleted"   // at:deleted-entry
	ruleFeedKind      = "feed-kind"      // the feed offers more than kind feed reads
	ruleFeedPage      = "feed-page"      // a page that is not there, or is another one again
	ruleFeedResults   = "feed-results"   // far fewer items than the feed claims to have
)

// feedDocument is a feed of any format, read to its end.
type feedDocument struct {
	feedHead
	items []feedItem
	// ended: it says that nothing more will come.
	ended bool
	// results is how many results it claims to have (OpenSearch), 0 when it does
	// not say.
	results int64
}

// sum is a hash of the items.
func (d *feedDocument) sum() [sha256.Size]byte {
	h := sha256.New()
	for i := range d.items {
		it := &d.items[i]
		fmt.Fprintf(h, "%x %q ", it.content, it.entry.ID)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// feedHead is what describes a feed.
type feedHead struct {
	atompmh.Source
	// language is that of all its texts which have none of their own: RSS's
	// language, dc:language, the language of JSON Feed.
	language string
	// protocol: it has elements that mean something in Atom-PMH only.
	protocol bool
	// older is the URL of the document with older items, an archive document or the
	// next page; "" for none.
	older string
}

// feedItem is one item or entry. Of its entry, Links are alternates and via.
type feedItem struct {
	entry      atompmh.Entry
	language   string // as that of a feed
	enclosures []event.Link
	elsewhere  []atompmh.Link    // where the content is that does not stand in the feed
	content    [sha256.Size]byte // hash of all that stands in the item
	input      []byte            // the item as a document of its own
	source     string            // dc:source
	// rule and reason say why the item goes to quarantine; "" if it does not.
	rule, reason string
}

func (it *feedItem) reject(rule, format string, args ...any) {
	if it.rule == "" {
		it.rule, it.reason = rule, fmt.Sprintf(format, args...)
	}
}

// feedReader reads a document. It uses gofeed only to parse dates. The rest of gofeed
// rewrites identifiers and links, loses the items of a second channel, and overflows
// the stack on deep documents.
type feedReader struct {
	url, contentType string
	limits           strictxml.Limits
	report           func(rule, text string)
	inline           bool // the content of an item is its record
	doc              feedDocument
}

func (g *feedReader) problem(rule string, line, column int, format string, args ...any) {
	g.report(rule, strictxml.Place(g.url, line, column)+": "+fmt.Sprintf(format, args...))
}

// documentError is an error of the document as a whole.
func (g *feedReader) documentError(line, column int, format string, args ...any) error {
	return &strictxml.DocumentError{URL: g.url, Line: line, Column: column, Reason: fmt.Sprintf(format, args...)}
}

const byteOrderMark = "\uFEFF"

// read reads a document. Of one that cannot be read to its end nothing is taken.
func (g *feedReader) read(body []byte) (*feedDocument, error) {
	start := bytes.TrimLeft(bytes.TrimPrefix(body, []byte(byteOrderMark)), " \t\r\n")
	var err error
	switch {
	case len(start) == 0:
		err = g.documentError(1, 1, "the document is empty; want a feed")
	case start[0] == '{', start[0] == '[':
		err = g.json(body)
	case start[0] > ' ' && start[0] < 0x7F && start[0] != '<': // no encoding of XML begins so
		err = g.documentError(1, 1, "neither XML nor JSON, it begins with %q; want a feed", strictxml.Clip(string(start[:min(len(start), 40)])))
	case start[0] == 0 && len(start) < len(body):
		err = g.documentError(1, 1, "zero bytes behind white space or the byte order mark of UTF-8; UTF-16 begins with its own")
	case isPage().Match(start[:min(len(start), 4096)]):
		err = g.page(start)
	default:
		err = g.xml(body)
	}
	if err != nil {
		return nil, err
	}
	g.setSources()
	g.setLanguages()
	return &g.doc, nil
}

// maxItems is how many items a feed may have: all of them are kept in memory.
const maxItems = 50_000

// addItem adds an item to the document.
func (g *feedReader) addItem(it feedItem) error {
	if len(g.doc.items) == maxItems {
		return g.documentError(it.entry.Line, it.entry.Column, "more than %d items; want a feed of the newest ones, or Atom-PMH", maxItems)
	}
	g.doc.items = append(g.doc.items, it)
	return nil
}

// identify sets the identifier and the representations of an item that was read.
// permalink is a guid or id that is a link as well, or "".
func (it *feedItem) identify(id, permalink string) {
	e := &it.entry
	e.Kind = atompmh.Active
	permalink = escaped(readable(permalink))
	links := e.Alternates()
	if len(links) == 0 && !e.Content.Taken() {
		switch {
		case onTheWeb(permalink):
			links = append(links, alternate(permalink, ""))
		case len(it.elsewhere) > 0:
			links = it.elsewhere
		default:
			for _, l := range it.enclosures {
				links = append(links, atompmh.Link{Rel: "alternate", Href: l.Href, Type: l.Type, Length: l.Length})
			}
			it.enclosures = nil
		}
		e.Links = append(e.Links, links...)
	}
	if id == "" && len(links) > 0 {
		id = links[0].Href
	}
	e.ID = id
	switch {
	case id == "":
		it.reject(ruleFeedID, "the item has no guid, id or link that could identify it")
	case len(links) == 0 && !e.Content.Taken():
		it.reject(ruleFeedLink, "the item has neither a link nor an enclosure that could be taken")
	}
}

// take makes content that stands in an item its record. The first that can be taken
// counts.
func (g *feedReader) take(it *feedItem, c strictxml.Content, language string, line, column int) {
	if c.Bad == "" && strings.HasSuffix(c.Type, "xml") && len(c.Data) > 0 { // it was read leniently, and becomes a document
		for s, err := strictxml.New(bytes.NewReader(c.Data), strictxml.Options{Limits: g.limits}), error(nil); err != io.EOF; { //nolint:errorlint // the scanner returns it bare
			if err = s.Next(); err != nil && err != io.EOF { //nolint:errorlint // likewise
				c.Bad = "it is no XML document by itself: " + err.Error()
				break
			}
		}
	}
	switch {
	case c.Bad != "":
		g.problem(ruleFeedItem, line, column, "the content is not taken: %s", c.Bad)
	case strictxml.Trim(string(c.Data)) != "" && !it.entry.Content.Taken():
		it.entry.Content = &atompmh.Content{Data: c.Data, MediaType: c.Type, Language: language}
	}
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

// setLanguages gives the title and the rights of the feed and of its items the
// language that the item, or the feed, states for all its texts.
func (g *feedReader) setLanguages() {
	set := func(m *atompmh.Metadata, title, language string) {
		if m.Language == "" && title != "" {
			m.Language = language
		}
		if m.Rights.Language == "" && m.Rights.Value != "" {
			m.Rights.Language = language
		}
	}
	feed := &g.doc.feedHead
	set(&feed.Metadata, feed.Title, feed.language)
	for i := range g.doc.items {
		it := &g.doc.items[i]
		set(&it.entry.Metadata, it.entry.Title, cmp.Or(it.language, feed.language))
	}
}

// personOf reads a person from one text: "jane@example.org (Jane Doe)", as RSS
// asks for, "Jane Doe <jane@example.org>", or a name alone.
func personOf(text string) atompmh.Person {
	if a, err := mail.ParseAddress(text); err == nil {
		return atompmh.Person{Name: a.Name, Email: a.Address}
	}
	return atompmh.Person{Name: text}
}

// maxOfAKind is how many persons of a kind, and categories, are kept while a document
// is read. An item with so many is too large (event.MaxMetadata). Each is compared with the
// first maxCompared only.
const (
	maxOfAKind  = 1 + event.MaxMetadata/20
	maxCompared = 64
)

// addPerson adds a person who has a name, or an address instead. One who is there
// already, as when RSS and Dublin Core name the same author, is completed.
func addPerson(to *[]atompmh.Person, p atompmh.Person) {
	for _, name := range []string{p.Email, p.URI} {
		p.Name = cmp.Or(p.Name, name)
	}
	if p.Name == "" || len(*to) == maxOfAKind {
		return
	}
	for i := range min(len(*to), maxCompared) {
		if known := &(*to)[i]; strings.EqualFold(known.Name, p.Name) {
			known.Email = cmp.Or(known.Email, p.Email)
			known.URI = cmp.Or(known.URI, p.URI)
			return
		}
	}
	*to = append(*to, p)
}

// addCategory adds a category that has a term and is not there yet.
func addCategory(to *[]atompmh.Category, c atompmh.Category) {
	c.Scheme = strictxml.Trim(c.Scheme)
	if c.Term != "" && len(*to) < maxOfAKind && !slices.Contains((*to)[:min(len(*to), maxCompared)], c) {
		*to = append(*to, c)
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

// checkLink returns the URL that a link was resolved to, or reports that it cannot be
// fetched.
func (g *feedReader) checkLink(resolved string, err error, ref string, line, column int) (href string, ok bool) {
	href = escaped(resolved)
	if err != nil || strictxml.Trim(ref) == "" || !g.reachable(href) {
		g.problem(ruleFeedLink, line, column, "link %q leads to nothing that can be taken; want http or https; it is left out", strictxml.Clip(ref))
		return "", false
	}
	return href, true
}

// readable returns a reference that can be read: a % that escapes nothing, for which it could
// not, is escaped.
func readable(ref string) string {
	ref = strictxml.Trim(ref)
	if _, err := url.Parse(ref); !errors.As(err, new(url.EscapeError)) {
		return ref
	}
	var b strings.Builder
	for i := range len(ref) {
		b.WriteByte(ref[i])
		if ref[i] != '%' {
			continue
		}
		if _, err := url.PathUnescape(ref[i:min(i+3, len(ref))]); err != nil {
			b.WriteString("25")
		}
	}
	return b.String()
}

// escaped returns a link as a URI or IRI: it percent-encodes characters that neither may
// contain (RFC 3987 2.2), and leaves out line breaks.
func escaped(href string) string {
	if !strings.ContainsFunc(href, notInURL) {
		return href
	}
	var b strings.Builder
	for _, r := range href {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
		case notInURL(r):
			fmt.Fprintf(&b, "%%%02X", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func notInURL(r rune) bool { return r <= ' ' || r == 0x7F || strings.ContainsRune("\"<>\\^`{|}", r) }

func lengthOf(s string) int64 {
	n, err := strconv.ParseInt(strictxml.Trim(s), 10, 64)
	if err != nil || n < 0 {
		return event.NoLength
	}
	return n
}

// placeIn returns the line and the column, in bytes, of an offset. Both count from 1.
func placeIn(doc []byte, offset int) (line, column int) {
	before := doc[:offset]
	return 1 + bytes.Count(before, []byte("\n")), offset - bytes.LastIndexByte(before, '\n')
}

// Tags that titles may have. Other words in angle brackets are text. Block elements
// separate words.
var (
	htmlTag = pattern.Of(`(?is)^</?(a|abbr|acronym|b|bdi|bdo|big|blockquote|br|center|cite|code|del|dfn|div|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|nobr|ol|p|pre|q|s|samp|small|span|strike|strong|sub|sup|table|td|th|time|tr|tt|u|ul|var|wbr)(\s[^<>]*)?/?>$`)

	htmlReference = pattern.Of(`&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);`)
)

func isBlock(element string) bool {
	switch strings.ToLower(element) {
	case "br", "p", "div", "li", "td", "th", "tr", "hr", "blockquote":
		return true
	}
	return false
}

// plainText reduces a text to plain text in one line. markup: tags and entities of HTML
// in it are meant.
func plainText(s string, markup bool) string {
	if markup && strings.ContainsAny(s, "<&") {
		s = withoutTags(s)
		// html.UnescapeString alone would make "&not" of "&notes" as well.
		s = htmlReference().ReplaceAllStringFunc(s, html.UnescapeString)
	}
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == '\u00A0' || !strictxml.Holds(string(r)) }), " ")
}

// withoutTags returns a text without the comments and the tags of HTML in it. It looks at
// no byte again for each tag, as a pattern of both would where a comment does not end.
func withoutTags(s string) string {
	var b strings.Builder
	comments := true // one may end in the rest
	for {
		text, tag, found := strings.Cut(s, "<")
		b.WriteString(text)
		if !found {
			return b.String()
		}
		s = s[len(text):]
		if comment, is := strings.CutPrefix(tag, "!--"); is && comments {
			_, after, ends := strings.Cut(comment, "-->")
			if ends {
				s = after
				continue
			}
			comments = false
		}
		end := strings.IndexAny(tag, "<>") + len("<")
		var m []string
		if end > 0 && s[end] == '>' {
			m = htmlTag().FindStringSubmatch(s[:end+1])
		}
		if m == nil {
			b.WriteByte('<')
			s = tag
			continue
		}
		if isBlock(m[1]) {
			b.WriteByte(' ')
		}
		s = s[end+1:]
	}
}

// date returns the first of some dates that can be read for certain; zero when none can.
// Line and column are the item's.
func (g *feedReader) date(line, column int, texts ...string) time.Time {
	for i, text := range texts {
		if text == "" || slices.Contains(texts[:i], text) {
			continue
		}
		why := dateDoubt(text)
		t, known := parseDate(text)
		switch s, ok := event.StampOf(t); {
		case !known:
			why = "it is not in a form of date that is known"
		case why != "":
		case t.Year() < 100: // as 0001-01-01, which with an offset is in the year before, or 0025
			why = "programs write it for no date, or it has no year"
		case ok:
			return s.Time()
		default:
			why = "its year is after 2261"
		}
		g.problem(ruleFeedDate, line, column, "date %q is left out: %s", strictxml.Clip(text), why)
	}
	return time.Time{}
}

// parseDate reads a date of RFC 3339, or in one of the forms that gofeed knows. gofeed reads
// them in feeds only.
func parseDate(text string) (time.Time, bool) {
	if len(text) > 100 {
		return time.Time{}, false
	}
	if t, err := atompmh.ParseTime(text); err == nil && t.Year() > 1678 { // earlier ones are not told apart
		return t, true
	}
	text = withOffset(text)
	doc := append(strictxml.AppendEscaped([]byte(`<rss version="2.0"><channel><item><pubDate>`), text), "</pubDate></item></channel></rss>"...)
	var feed *rss.Feed
	err := defect.Guard(func() (err error) { // one date must not end the harvest
		feed, err = new(rss.Parser).Parse(bytes.NewReader(doc))
		return err
	})
	if err != nil || len(feed.Items) != 1 || feed.Items[0].PubDateParsed == nil {
		return time.Time{}, false
	}
	return *feed.Items[0].PubDateParsed, true
}

var (
	dateOfNumbers = pattern.Of(`^([0-9]{1,2})[/-]([0-9]{1,2})[/-]([0-9]+)`)
	dateOffset    = pattern.Of(`[+-][0-9]{2}:?[0-9]{2}\b`)
	dateZone      = pattern.Of(`(?:[0-9 ](ChST|MeST|[A-Z]{2,5})|:[0-9]{2} ([A-Z]{2,5}) [0-9]{4})$`)
	knownZone     = pattern.Of(`^(UTC?|GMT|AM|PM|[ECMP][SD]T|WES?T|BST|CES?T|EES?T)$`)
)

// dateDoubt returns why the time that gofeed reads from a date may not be the one that
// was meant, "" if it is.
func dateDoubt(text string) string {
	if m := dateOfNumbers().FindStringSubmatch(text); m != nil {
		a, _ := strconv.Atoi(m[1])
		b, _ := strconv.Atoi(m[2])
		if len(m[3]) < 4 || a <= 12 && b <= 12 && a != b {
			return "which of its numbers is the day, the month and the year cannot be told"
		}
	}
	zone := ""
	if m := dateZone().FindStringSubmatch(text); m != nil {
		zone = m[1] + m[2]
	}
	if zone != "" && !knownZone().MatchString(zone) && !dateOffset().MatchString(text) {
		return fmt.Sprintf("time zone %q is not known", zone)
	}
	return ""
}

// offsetOfHours matches, behind a time, an offset that gofeed takes for the name of a zone, or
// passes over, so that it would read the time as UTC: +2, +02, -700, GMT+2.
var offsetOfHours = pattern.Of(`^(.*:[0-9]{2}) *(?:(?:GMT|UTC) *([+-])([0-9]{1,2}?)(?::?([0-9]{2}))?|([+-])([0-9]{1,2}?)([0-9]{2})??)$`)

// withOffset returns a date with its offset from UTC in the form that gofeed knows, +0200.
func withOffset(text string) string {
	m := offsetOfHours().FindStringSubmatch(text)
	if m == nil {
		return text
	}
	hours := "0" + m[3] + m[6]
	return m[1] + " " + m[2] + m[5] + hours[len(hours)-2:] + cmp.Or(m[4]+m[7], "00")
}
