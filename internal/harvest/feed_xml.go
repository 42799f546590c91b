package harvest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// The namespaces of the formats. RSS 0.91 to 2.0 has none. Of podcasts only the author
// is read.
const (
	atom03     = "http://purl.org/atom/ns#"
	rss10      = "http://purl.org/rss/1.0/"
	rss090     = "http://channel.netscape.com/rdf/simple/0.9/"
	rss09      = "http://my.netscape.com/rdf/simple/0.9/"
	rdfSyntax  = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
	dublinCore = "http://purl.org/dc/elements/1.1/"
	// contentModule is that of content:encoded.
	contentModule = "http://purl.org/rss/1.0/modules/content/"
	openSearch    = "http://a9.com/-/spec/opensearch/1.1/"
	itunes        = "http://www.itunes.com/dtds/podcast-1.0.dtd"
)

// feedXML splits a feed in XML into its items.
type feedXML struct {
	*feedReader
	scan     *strictxml.Scanner
	atom     bool   // its family: Atom, else RSS
	space    string // of the root
	prologue []byte
	epilogue string
	framed   int64  // how many bytes of prologue asDocument has given
	plain    []byte // used again by text
}

// feedTexts has the titles and the dates of a feed or an item, by the names of their
// elements. Of several with one name the first counts.
type feedTexts map[string]atompmh.Text

// titleOf returns the title, and its language.
func (t feedTexts) titleOf() (title, language string) {
	for _, name := range []string{"title", "dc:title", "atom:title", "other:title"} {
		if text := t[name]; text.Value != "" {
			return text.Value, text.Language
		}
	}
	return "", ""
}

func (g *feedReader) xml(doc []byte) error {
	x := &feedXML{feedReader: g}
	x.scan = strictxml.New(bytes.NewReader(doc), strictxml.Options{
		URL: g.url, ContentType: g.contentType, Lenient: true, Limits: g.limits, Want: "a feed",
		Prefixes:   map[string]string{"dc": dublinCore, "atom": atompmh.Namespace, "rdf": rdfSyntax, "rss": rss10, "opensearch": openSearch, "openSearch": openSearch},
		Namespaces: []string{atompmh.Namespace, atom03, rss10, dublinCore, atompmh.HistoryNamespace, atompmh.TombstonesNamespace, itunes},
		Report: func(n strictxml.Notice) {
			rule := map[strictxml.About]string{strictxml.AboutCharset: ruleFeedCharset, strictxml.AboutBase: ruleFeedBase,
				strictxml.AboutMarkup: ruleFeedXML, strictxml.AboutPrefix: ruleFeedNamespace}[n.About]
			text := strictxml.Clip(n.Found)
			if n.Expected != "" {
				text += "; want " + n.Expected
			}
			g.problem(rule, n.Line, n.Column, "%s", text)
		},
	})
	if err := x.root(); err != nil {
		return err
	}
	if err := x.children(); err != nil {
		return err
	}
	return x.afterRoot()
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
	s, texts := x.scan, feedTexts{}
	for {
		s.Keep(-1)
		if err := s.Next(); err != nil {
			return err
		}
		if s.Kind == strictxml.EndTag && s.Depth() == 0 {
			x.doc.Title, x.doc.Language = texts.titleOf()
			x.doc.Updated = x.dateOf(texts, 1, 1)
			return nil
		}
		if s.Kind != strictxml.StartTag {
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
		default:
			err = x.head(&x.doc.feedHead, texts, x.space, name)
		}
		if err != nil {
			return err
		}
	}
}

// head reads an element that describes a feed: the document's, or that of an atom:source.
// space is the namespace of the element around it.
func (x *feedXML) head(h *feedHead, texts feedTexts, space, name string) error {
	s := x.scan
	extension := false
	switch s.Space {
	case dublinCore, itunes, atompmh.HistoryNamespace, atompmh.TombstonesNamespace:
		extension = true
	case atompmh.Namespace, atom03:
		extension = !x.atom && s.Space != space
	}
	switch text := textName(name); {
	case name == "link":
		return x.headLink(h)
	case extension:
	case name == "id" && h.ID == "":
		id, _, err := s.Characters()
		h.ID = string(id)
		return err
	case text == "title", text == "updated", text == "published":
		if s.Space != space && s.Space != "" && s.Space != rss10 && s.Space != rss090 && s.Space != rss09 && !x.atom {
			text = "other:" + text // of a module, as a rule; of the feed where it has no other one
		}
		return x.addText(texts, text)
	}
	return x.metadata(&h.Metadata, &h.language, name)
}

// maxFeedLinks is how many links of a feed, or of an atom:source, are kept.
const maxFeedLinks = 1000

// headLink reads a link that describes a feed, whatever the format: the
// relations of RFC 5005 may stand in RSS too.
func (x *feedXML) headLink(h *feedHead) error {
	l, base, _, err := x.readLink(!x.atom)
	if err != nil {
		return err
	}
	archive := l.Rel == "prev-archive"
	h.protocol = h.protocol || archive && x.atom
	href, bad := x.scan.Resolve(base, readable(l.Href))
	if href = escaped(href); l.Href == "" || bad != nil || !x.reachable(href) {
		return nil
	}
	if archive || l.Rel == "next" && h.older == "" {
		h.older = href
	}
	if len(h.Links) < maxFeedLinks {
		h.Links = append(h.Links, atompmh.Link{Rel: l.Rel, Href: href, Type: l.Type, Length: atompmh.NoLength})
	}
	return nil
}

// readLink reads a link to its end: the attributes of Atom's or, when inText, RSS's, which
// has its address as text. has: it has an attribute href. The address is not resolved
// against base yet.
func (x *feedXML) readLink(inText bool) (l atompmh.Link, base *strictxml.Base, has bool, err error) {
	s := x.scan
	l.Href, has = s.Attr("", "href")
	rel, _ := s.Attr("", "rel")
	l.Rel = relation(rel)
	l.Type, _ = s.Attr("", "type")
	l.Hreflang, _ = s.Attr("", "hreflang")
	l.Hreflang = strictxml.Trim(l.Hreflang)
	length, _ := s.Attr("", "length")
	l.Length = lengthOf(length)
	base = s.Base()
	text, _, err := s.Characters()
	if !has && inText {
		l.Href = string(text)
	}
	l.Href = strictxml.Trim(l.Href)
	return l, base, has, err
}

// relation normalises a rel attribute (RFC 4287 4.2.7.2).
func relation(rel string) string {
	rel = strings.TrimPrefix(strings.ToLower(strictxml.Trim(rel)), "http://www.iana.org/assignments/relation/")
	if rel == "" {
		return "alternate"
	}
	return rel
}

// afterRoot reports what follows the root. Legacy feeds have counters and scripts there,
// which do not matter.
func (x *feedXML) afterRoot() error {
	err := x.scan.Next()
	if fault, ok := errors.AsType[*strictxml.DocumentError](err); ok && fault.Cap == "" {
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
	var by []atompmh.Person
	if err := s.Children(func() (err error) {
		e := &it.entry
		switch {
		case s.Space == atompmh.TombstonesNamespace && s.Local == "by":
			err = x.person(&by)
		case s.Space == atompmh.TombstonesNamespace && s.Local == "comment" && e.Comment.Value == "":
			e.Comment, err = x.text("comment")
		case s.Space == atompmh.Namespace && s.Local == "link":
			line, column := s.Line, s.Column
			var l atompmh.Link
			var base *strictxml.Base
			if l, base, _, err = x.readLink(false); err == nil && l.Rel != "alternate" && l.Rel != "enclosure" {
				x.addLink(&it, l, base, line, column)
			}
		default:
			err = s.Skip()
		}
		return err
	}); err != nil {
		return err
	}
	if len(by) > 0 {
		it.entry.DeletedBy = by[0]
	}
	it.input = x.asDocument(from)
	if it.entry.ID == "" {
		it.reject(ruleFeedID, "the deleted-entry does not say what was deleted: its ref is missing")
	} else {
		x.problem(ruleFeedDeleted, it.entry.Line, it.entry.Column, "a tombstone of record %q, which is deleted unless it was modified later", strictxml.Clip(it.entry.ID))
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
	linked        bool // it has an alternate
	texts         feedTexts
	// What may be the content: content:encoded, else the description.
	encoded, description []byte
}

// item reads an item or entry to its end.
func (x *feedXML) item() error {
	s := x.scan
	from := s.Start
	it := xmlItem{space: s.Space, texts: feedTexts{}}
	it.entry.Line, it.entry.Column = s.Line, s.Column
	about, _ := s.Attr(rdfSyntax, "about")
	s.Keep(from)
	if err := s.Children(func() error { return x.child(&it) }); err != nil {
		return err
	}
	if it.id == "" && !x.atom {
		it.id = strictxml.Trim(about)
	}
	for _, held := range [][]byte{it.encoded, it.description} {
		x.take(&it.feedItem, strictxml.Content{Data: held, Type: "text/html; charset=utf-8"}, it.language, it.entry.Line, it.entry.Column)
	}
	it.entry.Title, it.entry.Language = it.texts.titleOf()
	it.entry.Updated = x.dateOf(it.texts, it.entry.Line, it.entry.Column)
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
	case space == contentModule && name == "encoded" && x.inline:
		return x.html(&it.encoded)
	case space == itunes:
		return x.metadata(&it.entry.Metadata, &it.language, name)
	}
	return s.Skip()
}

func (x *feedXML) atomChild(it *xmlItem, name string) error {
	s := x.scan
	switch text := textName(name); text {
	case "id":
		if x.atom && it.id == "" {
			return x.atomID(it)
		}
	case "link":
		return x.itemLink(it, false)
	case "content":
		src, has := s.Attr("", "src")
		mediaType, _ := s.Attr("", "type")
		if x.inline && !has {
			line, column, language := s.Line, s.Column, s.Lang()
			held, err := s.Content(it.space)
			if err == nil {
				x.take(&it.feedItem, held, language, line, column)
			}
			return err
		}
		if has && src != "" && x.atom { // it does not stand in the feed (RFC 4287 4.1.3.2)
			href, err := s.Resolve(s.Base(), readable(src))
			href, ok := x.checkLink(href, err, src, s.Line, s.Column)
			switch {
			case ok && x.inline && !it.entry.Content.Taken():
				it.entry.Content = &atompmh.Content{HasSrc: true, Src: href, MediaType: strictxml.Trim(mediaType), Language: s.Lang()}
			case ok:
				it.elsewhere = append(it.elsewhere, alternate(href, strictxml.Trim(mediaType)))
			}
		}
		return s.Skip()
	case "title", "updated", "published":
		if !x.atom {
			text = "atom:" + text
		}
		return x.addText(it.texts, text)
	case "source":
		return x.source(it)
	}
	return x.metadata(&it.entry.Metadata, &it.language, name)
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

// itemLink reads a link of an item: Atom's, which RSS has too, or RSS's own, of which the
// first counts. Some feeds write Atom's links in RSS without their namespace.
func (x *feedXML) itemLink(it *xmlItem, own bool) error {
	line, column := x.scan.Line, x.scan.Column
	l, base, has, err := x.readLink(own)
	if err != nil {
		return err
	}
	switch {
	case !has && own:
		if l.Href == "" || it.linked {
			return nil
		}
		l = alternate(l.Href, "")
	case l.Rel != "alternate" && l.Rel != "via" && l.Rel != "enclosure" && l.Rel != event.RelLicense:
		return nil
	case !has:
		x.problem(ruleFeedLink, line, column, "a link without href; it is left out")
		return nil
	}
	had := len(it.entry.Links)
	x.addLink(&it.feedItem, l, base, line, column)
	it.linked = it.linked || l.Rel == "alternate" && len(it.entry.Links) > had
	return nil
}

// addLink adds a link to an item, if it can be fetched.
func (x *feedXML) addLink(it *feedItem, l atompmh.Link, base *strictxml.Base, line, column int) {
	resolved, err := x.scan.Resolve(base, readable(l.Href))
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

func (x *feedXML) dublinCoreChild(it *xmlItem, name string) error {
	switch {
	case name == "title" && !x.atom, name == "date" && !x.atom:
		return x.addText(it.texts, "dc:"+name)
	case name == "source":
		text, _, err := x.scan.Characters()
		it.source = escaped(strictxml.Trim(string(text)))
		return err
	}
	return x.metadata(&it.entry.Metadata, &it.language, name)
}

func (x *feedXML) rssChild(it *xmlItem, name string) error {
	s := x.scan
	switch name {
	case "guid":
		return x.guid(it)
	case "link":
		return x.itemLink(it, true)
	case "enclosure":
		href, _ := s.Attr("", "url")
		mediaType, _ := s.Attr("", "type")
		length, _ := s.Attr("", "length")
		x.addLink(&it.feedItem, atompmh.Link{Rel: "enclosure", Href: href, Type: mediaType, Length: lengthOf(length)}, s.Base(), s.Line, s.Column)
		return s.Skip()
	case "title", "pubdate":
		return x.addText(it.texts, textName(name))
	case "source":
		return x.source(it)
	case "description":
		if x.inline {
			return x.html(&it.description)
		}
	}
	return x.metadata(&it.entry.Metadata, &it.language, name)
}

// html reads the content of an item of RSS, which is HTML that was escaped. The first
// counts.
func (x *feedXML) html(to *[]byte) error {
	text, _, err := x.scan.Characters()
	if *to == nil {
		*to = slices.Clone(text)
	}
	return err
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

// textName returns the name under which feedTexts has an element.
func textName(name string) string {
	switch name {
	case "modified", "lastbuilddate":
		return "updated"
	case "issued", "created", "pubdate":
		return "published"
	}
	return name
}

// addText reads the current element as the text of a name.
func (x *feedXML) addText(to feedTexts, name string) error {
	if _, has := to[name]; has {
		return x.scan.Skip()
	}
	text, err := x.text(name)
	to[name] = text
	return err
}

// dateOf returns when a feed or item was last modified, else when it was published; zero
// when it does not say, or not for certain.
func (x *feedXML) dateOf(texts feedTexts, line, column int) time.Time {
	return x.date(line, column, texts["updated"].Value, texts["dc:date"].Value, texts["atom:updated"].Value, texts["published"].Value, texts["atom:published"].Value,
		texts["other:updated"].Value, texts["other:published"].Value)
}

// elementBytes caps the title and other texts of a feed or item.
const elementBytes = 64 << 10

// text reads the current element as plain text in one line. RSS does not say whether
// texts are HTML; those that look like it are read as HTML.
func (x *feedXML) text(name string) (atompmh.Text, error) {
	s := x.scan
	kind, _ := s.Attr("", "type")
	kind = strings.ToLower(kind)
	language, line, column := s.Lang(), s.Line, s.Column
	x.plain = x.plain[:0]
	for depth := s.Depth(); s.Depth() >= depth; {
		if err := s.Next(); err != nil {
			return atompmh.Text{}, err
		}
		switch {
		case len(x.plain) > elementBytes:
		case s.Kind == strictxml.Text:
			x.plain = append(x.plain, s.Data...)
		case s.Kind == strictxml.StartTag && isBlock(s.Local):
			x.plain = append(x.plain, ' ')
		}
	}
	if len(x.plain) > elementBytes {
		x.problem(ruleFeedItem, line, column, "<%s> is longer than %d bytes; it is left out", name, elementBytes)
		return atompmh.Text{}, nil
	}
	text := plainText(string(x.plain), !x.atom || strings.Contains(kind, "html") && !strings.Contains(kind, "xhtml"))
	if text == "" {
		language = ""
	}
	return atompmh.Text{Value: text, Language: language}, nil
}

// metadata reads the current element if it is metadata, and skips it if it is not. A
// name means the same in all formats that have it.
func (x *feedXML) metadata(m *atompmh.Metadata, language *string, name string) error {
	if x.scan.Space == itunes && name != "author" {
		return x.scan.Skip()
	}
	switch name {
	case "author", "managingeditor", "creator":
		return x.person(&m.Authors)
	case "contributor":
		return x.person(&m.Contributors)
	case "category", "subject":
		return x.category(&m.Categories)
	case "rights", "copyright":
		text, err := x.text(name)
		if m.Rights.Value == "" {
			m.Rights = text
		}
		return err
	case "language":
		text, err := x.text(name)
		*language = cmp.Or(*language, text.Value)
		return err
	}
	return x.scan.Skip()
}

// person reads a person, whose name and addresses are elements as in Atom, or one
// text as in RSS and Dublin Core.
func (x *feedXML) person(to *[]atompmh.Person) error {
	s := x.scan
	var p atompmh.Person
	var whole strings.Builder
	for depth := s.Depth(); ; {
		err := s.Next()
		switch {
		case err != nil:
			return err
		case s.Kind == strictxml.EndTag && s.Depth() < depth:
			if p == (atompmh.Person{}) {
				p = personOf(plainText(whole.String(), true))
			}
			addPerson(to, p)
			return nil
		case s.Kind == strictxml.Text && whole.Len() < elementBytes:
			whole.Write(s.Data)
		case s.Kind == strictxml.StartTag:
			var text atompmh.Text
			base := s.Base()
			name := strings.ToLower(s.Local)
			if text, err = x.text(name); err != nil {
				return err
			}
			switch name {
			case "name":
				p.Name = text.Value
			case "email":
				p.Email = text.Value
			case "uri", "url":
				if uri, bad := s.Resolve(base, text.Value); bad == nil && text.Value != "" {
					p.URI = uri
				}
			}
		}
	}
}

// category reads a category: Atom's has attributes, that of RSS and Dublin Core is
// a text.
func (x *feedXML) category(to *[]atompmh.Category) (err error) {
	s := x.scan
	var c atompmh.Category
	var has bool
	if c.Term, has = s.Attr("", "term"); has {
		c.Scheme, _ = s.Attr("", "scheme")
		c.Label, _ = s.Attr("", "label")
		c.Term = strictxml.Trim(c.Term)
		err = s.Skip()
	} else {
		var term atompmh.Text
		c.Scheme, _ = s.Attr("", "domain")
		term, err = x.text("category")
		c.Term = term.Value
	}
	addCategory(to, c)
	return err
}

// source reads the feed that an item was copied from: an atom:source (RFC 4287
// 4.2.11), or RSS's source, which has the feed's title and address.
func (x *feedXML) source(it *xmlItem) (err error) {
	s, texts, space := x.scan, feedTexts{}, x.scan.Space
	var h feedHead
	if ref, has := s.Attr("", "url"); has {
		if href, bad := s.Resolve(s.Base(), ref); bad == nil && onTheWeb(href) {
			h.Links = append(h.Links, atompmh.Link{Rel: "self", Href: href, Length: atompmh.NoLength})
		}
		err = x.addText(texts, "title")
	} else {
		err = s.Children(func() error { return x.head(&h, texts, space, strings.ToLower(s.Local)) })
	}
	h.Title, h.Language = texts.titleOf()
	// Other forms of dates are not worth their time: an item may have any number of sources.
	if t, bad := atompmh.ParseTime(texts["updated"].Value); bad == nil {
		h.Updated = t
	}
	if h.ID != "" || h.Title != "" || h.Links != nil {
		it.entry.Source = &h.Source
	}
	return err
}
