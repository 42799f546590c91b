package harvest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// The namespaces of the formats. RSS 0.91 to 2.0 has none.
const (
	atom03     = "http://purl.org/atom/ns#"
	rss10      = "http://purl.org/rss/1.0/"
	rss090     = "http://channel.netscape.com/rdf/simple/0.9/"
	rss09      = "http://my.netscape.com/rdf/simple/0.9/"
	rdfSyntax  = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
	dublinCore = "http://purl.org/dc/elements/1.1/"
)

// feedXML splits a feed in XML into its items.
type feedXML struct {
	*feedReader
	scan     *strictxml.Scanner
	space    string // of the root
	prologue []byte
	epilogue string
	framed   int64 // how many bytes of prologue whole has given
	elements []feedElement
}

// xml reads a feed in XML.
func (g *feedReader) xml(doc []byte) error {
	x := &feedXML{feedReader: g}
	x.scan = strictxml.New(bytes.NewReader(doc), strictxml.Options{
		URL: g.url, ContentType: g.contentType, WebCharsets: true, Limits: g.limits, Want: "a feed",
		Namespaces: []string{atompmh.Namespace, atom03, rss10, dublinCore, atompmh.HistoryNamespace, atompmh.TombstonesNamespace, itunes},
		Report: func(n strictxml.Notice) {
			rule := ruleFeedBase
			if n.About == strictxml.AboutCharset {
				rule = ruleFeedCharset
			}
			g.problem(rule, n.Line, n.Column, "%s; want %s", strictxml.Clip(n.Found), n.Expected)
		},
	})
	if err := x.root(); err != nil {
		return err
	}
	if err := x.children(); err != nil {
		return err
	}
	if err := x.afterRoot(); err != nil {
		return err
	}
	said, err := g.parseElements(x.elements)
	if err != nil {
		g.problem(ruleFeedItem, 1, 1, "the feed's own title and date are left out: %s", err)
		return nil
	}
	g.doc.title, g.doc.metadata.Language = g.title(said, x.elements)
	g.doc.updated = g.date(said, 1, 1)
	return nil
}

// root reads the root's start tag.
func (x *feedXML) root() error {
	s := x.scan
	if err := s.Next(); err != nil {
		return err
	}
	x.atom = strings.EqualFold(s.Local, "feed")
	if !x.atom && !strings.EqualFold(s.Local, "rss") && !strings.EqualFold(s.Local, "rdf") {
		return s.Fail("%s; want a feed: RSS, Atom or JSON Feed", s.What())
	}
	native := []string{"", rdfSyntax}
	if x.atom {
		native = []string{atompmh.Namespace, atom03}
	}
	if !slices.Contains(native, s.Space) {
		x.problem(ruleFeedNamespace, s.Line, s.Column, "<%s> in namespace %q, taken for what its name says", s.Local, strictxml.Clip(s.Space))
	}
	x.space = s.Space
	var err error
	x.prologue, x.epilogue, err = s.Frame()
	return err
}

// children reads the elements of the root, and of RSS's channels, up to the root's end.
func (x *feedXML) children() error {
	s := x.scan
	for {
		s.Keep(-1)
		if err := s.Next(); err != nil {
			return err
		}
		switch {
		case s.Kind == strictxml.EndTag && s.Depth() == 0:
			return nil
		case s.Kind != strictxml.StartTag:
			continue
		}
		var err error
		switch name := strings.ToLower(s.Local); {
		case s.Space == atompmh.TombstonesNamespace && name == "deleted-entry":
			err = x.deleted()
		case s.Space == atompmh.HistoryNamespace && name == "complete":
			x.doc.protocol = true
			err = s.Skip()
		case atompmh.IsTotalResults(s.Space, s.Local):
			var text []byte
			text, _, err = s.Characters()
			x.doc.results = atompmh.TotalResults(string(text))
		case x.atom && name == "entry", !x.atom && name == "item":
			err = x.item() // whatever namespace it has been given by mistake
		case !x.atom && name == "channel" && s.Depth() == 2:
		case name == "link":
			err = x.headLink()
		case x.isExtension():
			err = x.headMetadata(name)
		default:
			err = x.headElement(name)
		}
		if err != nil {
			return err
		}
	}
}

// isExtension reports whether the current element belongs to an extension.
func (x *feedXML) isExtension() bool {
	switch x.scan.Space {
	case dublinCore, itunes, atompmh.HistoryNamespace, atompmh.TombstonesNamespace:
		return true
	case atompmh.Namespace, atom03:
		return !x.atom && x.scan.Space != x.space
	}
	return false
}

// headLink reads a link of the feed itself, whatever the format: the relations
// of RFC 5005 may stand in RSS too.
func (x *feedXML) headLink() error {
	s := x.scan
	rel, _ := s.Attr("", "rel")
	archive := relation(rel) == "prev-archive"
	if archive && x.atom {
		x.doc.protocol = true
	}
	if archive || relation(rel) == "next" && x.doc.older == "" {
		if href, _ := s.Attr("", "href"); href != "" {
			if to, err := s.Resolve(s.Base(), href); err == nil && x.reachable(to) {
				x.doc.older = to
			}
		}
	}
	return x.feedLink(&x.doc.links)
}

// headMetadata reads an element of the feed's own metadata.
func (x *feedXML) headMetadata(name string) error {
	if ok, err := x.metadata(&x.doc.metadata, name); ok {
		return err
	}
	return x.scan.Skip()
}

// headElement reads an element that describes the feed.
func (x *feedXML) headElement(name string) error {
	switch name {
	case "id":
		if x.doc.id == "" {
			text, _, err := x.scan.Characters()
			x.doc.id = string(text)
			return err
		}
	case "title", "updated", "modified", "pubdate", "lastbuilddate":
		x.scan.Keep(x.scan.Start)
		return x.keepElement(&x.elements, gofeedName(name))
	}
	return x.headMetadata(name)
}

// afterRoot reports what follows the root. Legacy feeds have counters and scripts there,
// which do not matter.
func (x *feedXML) afterRoot() error {
	err := x.scan.Next()
	var fault *strictxml.DocumentError
	if errors.As(err, &fault) && fault.Cap == "" {
		x.problem(ruleFeedXML, fault.Line, fault.Column, "what follows the root element is left out: %s", fault.Reason)
		return nil
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// deleted reads an at:deleted-entry (RFC 6721 3).
func (x *feedXML) deleted() error {
	s := x.scan
	it := feedItem{entry: atompmh.Entry{Kind: atompmh.Deletion, Tombstone: true, Line: s.Line, Column: s.Column}}
	it.entry.ID, _ = s.Attr("", "ref")
	when, _ := s.Attr("", "when")
	from := s.Start
	s.Keep(from)
	if err := s.Skip(); err != nil {
		return err
	}
	it.input = x.asDocument(from)
	if it.entry.ID == "" {
		it.reject(ruleFeedID, "the deleted-entry does not say what was deleted: its ref is missing")
	} else {
		x.problem(ruleFeedDeleted, it.entry.Line, it.entry.Column, "record %q is taken as deleted", strictxml.Clip(it.entry.ID))
	}
	t, err := atompmh.ParseTime(strictxml.Trim(when))
	if err != nil {
		x.problem(ruleFeedDate, it.entry.Line, it.entry.Column, "when=%q of a deleted-entry: %s; taken as unknown", strictxml.Clip(when), err)
	} else {
		it.entry.Updated = t
	}
	return x.addItem(it)
}

// asDocument returns the element that ends with the current token as a document of
// its own, or alone once such documents are far longer than the feed. It starts
// where the bytes are kept from.
func (x *feedXML) asDocument(from int64) []byte {
	if x.framed += int64(len(x.prologue)); x.framed > strictxml.FrameBudget(x.scan.Offset()) {
		return slices.Clone(x.scan.Slice(from, x.scan.Offset()))
	}
	return slices.Concat(x.prologue, x.scan.Slice(from, x.scan.Offset()), []byte(x.epilogue))
}

// xmlItem is an item while it is read.
type xmlItem struct {
	feedItem
	space         string
	id, permalink string
}

// item reads an item or entry to its end.
func (x *feedXML) item() error {
	s := x.scan
	from := s.Start
	it := xmlItem{space: s.Space}
	it.entry.Line, it.entry.Column = s.Line, s.Column
	about, _ := s.Attr(rdfSyntax, "about")
	s.Keep(from)
	if err := s.Children(func() error { return x.child(&it) }); err != nil {
		return err
	}
	if it.id == "" && !x.atom {
		it.id = strictxml.Trim(about)
	}
	it.content = sha256.Sum256(s.Slice(from, s.Offset()))
	it.input = x.asDocument(from)
	it.identify(it.id, it.permalink)
	return x.addItem(it.feedItem)
}

// child reads one element of an item.
func (x *feedXML) child(it *xmlItem) error {
	s := x.scan
	name := strings.ToLower(s.Local)
	switch space := s.Space; {
	case x.atom && (space == it.space || space == ""):
		return x.atomChild(it, name)
	case space == it.space, space == "", space == rss10, space == rss09, space == rss090:
		return x.rssChild(it, name)
	case space == atompmh.Namespace, space == atom03:
		return x.atomChild(it, name)
	case space == dublinCore:
		return x.dublinCoreChild(it, name)
	case space == itunes:
		return x.itemMetadata(it, name)
	}
	return s.Skip()
}

// itemMetadata reads an element of an item's metadata.
func (x *feedXML) itemMetadata(it *xmlItem, name string) error {
	if ok, err := x.metadata(&it.metadata, name); ok {
		return err
	}
	return x.scan.Skip()
}

func (x *feedXML) atomChild(it *xmlItem, name string) error {
	switch name {
	case "id":
		if x.atom && it.id == "" {
			return x.atomID(it)
		}
	case "link":
		return x.atomLink(it)
	case "content":
		return x.atomContent(it)
	case "title", "updated", "modified", "published", "issued", "created":
		if name = gofeedName(name); !x.atom {
			name = "atom:" + name
		}
		return x.keepElement(&it.elements, name)
	case "source":
		return x.source(it)
	}
	return x.itemMetadata(it, name)
}

// atomID reads an identifier byte for byte (RFC 4287 4.2.6.1).
func (x *feedXML) atomID(it *xmlItem) error {
	line, column := x.scan.Line, x.scan.Column
	text, _, err := x.scan.Characters()
	if trimmed := strictxml.Trim(string(text)); trimmed != "" {
		it.id = string(text)
		if len(trimmed) < len(text) {
			x.problem(ruleFeedID, line, column, "white space around the id %q; it belongs to it", strictxml.Clip(it.id))
		}
	}
	return err
}

// atomContent reads where the content is that does not stand in the feed (RFC
// 4287 4.1.3.2).
func (x *feedXML) atomContent(it *xmlItem) error {
	s := x.scan
	src, _ := s.Attr("", "src")
	mediaType, _ := s.Attr("", "type")
	line, column, base := s.Line, s.Column, s.Base()
	if src != "" && x.atom {
		href, err := s.Resolve(base, src)
		if href, ok := x.checkLink(href, err, src, line, column); ok {
			it.elsewhere = append(it.elsewhere, alternate(href, strictxml.Trim(mediaType)))
		}
	}
	return s.Skip()
}

// atomLink reads an atom:link, which RSS has too.
func (x *feedXML) atomLink(it *xmlItem) error {
	s := x.scan
	href, has := s.Attr("", "href")
	rel, _ := s.Attr("", "rel")
	mediaType, _ := s.Attr("", "type")
	hreflang, _ := s.Attr("", "hreflang")
	length, _ := s.Attr("", "length")
	line, column, base := s.Line, s.Column, s.Base()
	if err := s.Skip(); err != nil {
		return err
	}
	rel = relation(rel)
	if rel != "alternate" && rel != "via" && rel != "enclosure" {
		return nil
	}
	if !has {
		x.problem(ruleFeedLink, line, column, "a link without href; it is left out")
		return nil
	}
	x.link(it, atompmh.Link{Rel: rel, Href: href, Type: mediaType, Hreflang: strictxml.Trim(hreflang), Length: lengthOf(length)}, base, line, column)
	return nil
}

// link adds a link to an item, if it can be fetched.
func (x *feedXML) link(it *xmlItem, l atompmh.Link, base *strictxml.Base, line, column int) {
	resolved, err := x.scan.Resolve(base, l.Href)
	href, ok := x.checkLink(resolved, err, l.Href, line, column)
	if !ok {
		return
	}
	l.Href, l.Type = href, strictxml.Trim(l.Type)
	switch {
	case l.Rel == "enclosure":
		it.enclosures = append(it.enclosures, event.Link{Rel: l.Rel, Href: href, Type: l.Type, Length: l.Length})
	case l.Rel != "via" || onTheWeb(href):
		it.entry.Links = append(it.entry.Links, l)
	}
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

func (x *feedXML) dublinCoreChild(it *xmlItem, name string) error {
	switch name {
	case "title", "date":
		return x.keepElement(&it.elements, "dc:"+name)
	case "source":
		text, _, err := x.scan.Characters()
		it.source = escaped(strictxml.Trim(string(text)))
		return err
	}
	return x.itemMetadata(it, name)
}

func (x *feedXML) rssChild(it *xmlItem, name string) error {
	s := x.scan
	switch name {
	case "guid":
		return x.guid(it)
	case "link":
		return x.rssLink(it)
	case "enclosure":
		href, _ := s.Attr("", "url")
		mediaType, _ := s.Attr("", "type")
		length, _ := s.Attr("", "length")
		x.link(it, atompmh.Link{Rel: "enclosure", Href: href, Type: mediaType, Length: lengthOf(length)}, s.Base(), s.Line, s.Column)
		return s.Skip()
	case "title", "pubdate":
		return x.keepElement(&it.elements, gofeedName(name))
	case "source":
		return x.source(it)
	}
	return x.itemMetadata(it, name)
}

// guid reads an identifier of RSS, without the white space around it. It is a link as
// well, unless its isPermaLink is false.
func (x *feedXML) guid(it *xmlItem) error {
	s := x.scan
	is, _ := s.Attr("", "isPermaLink")
	if is == "" {
		is, _ = s.Attr("", "isPermalink")
	}
	text, _, err := s.Characters()
	if id := strictxml.Trim(string(text)); id != "" && it.id == "" {
		it.id = id
		if !strings.EqualFold(strictxml.Trim(is), "false") {
			it.permalink = id
		}
	}
	return err
}

// rssLink reads a link of RSS, whose address is its text; of several the first
// counts. Some feeds write Atom's links without their namespace.
func (x *feedXML) rssLink(it *xmlItem) error {
	s := x.scan
	if _, has := s.Attr("", "href"); has {
		return x.atomLink(it)
	}
	line, column, base := s.Line, s.Column, s.Base()
	text, _, err := s.Characters()
	if href := strictxml.Trim(string(text)); href != "" && len(it.entry.Alternates()) == 0 {
		x.link(it, alternate(href, ""), base, line, column)
	}
	return err
}

// keepElement keeps an element for gofeed. Of several with one name the first counts.
// The scanner keeps its bytes already.
func (x *feedXML) keepElement(to *[]feedElement, name string) error {
	s := x.scan
	e := feedElement{name: name}
	e.kind, _ = s.Attr("", "type")
	e.mode, _ = s.Attr("", "mode")
	e.language = s.Lang()
	line, column, from := s.Line, s.Column, s.Offset()
	if slices.ContainsFunc(*to, func(o feedElement) bool { return o.name == name }) {
		return s.Skip()
	}
	if err := s.Skip(); err != nil {
		return err
	}
	if s.Start-from > elementBytes {
		x.tooLong(name, line, column)
		return nil
	}
	e.text = bytes.Clone(s.Slice(from, s.Start))
	*to = append(*to, e)
	return nil
}

// relation normalises a rel attribute (RFC 4287 4.2.7.2).
func relation(rel string) string {
	rel = strings.TrimPrefix(strings.ToLower(strictxml.Trim(rel)), "http://www.iana.org/assignments/relation/")
	if rel == "" {
		return "alternate"
	}
	return rel
}

func lengthOf(s string) int64 {
	n, err := strconv.ParseInt(strictxml.Trim(s), 10, 64)
	if err != nil || n < 0 {
		return event.NoLength
	}
	return n
}
