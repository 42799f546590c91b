package harvest

import (
	"cmp"
	"encoding/json"
	"net/mail"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// itunes is the namespace of podcasts, of which only the author is read.
const itunes = "http://www.itunes.com/dtds/podcast-1.0.dtd"

// feedMetadata is what a feed, an item or an atom:source says of itself besides
// its identity, its title and its links.
type feedMetadata struct {
	atompmh.Metadata
	// language is that of all its texts which have none of their own: RSS's
	// language, dc:language, the language of JSON Feed.
	language string
}

// metadata reads the current element, if it is one of these; ok is false when it
// is not, and nothing was read. A name means the same in all formats that have it.
func (x *feedXML) metadata(m *feedMetadata, name string) (ok bool, err error) {
	if x.scan.Space == itunes && name != "author" {
		return false, nil
	}
	switch name {
	case "author", "managingeditor", "creator":
		return true, x.person(&m.Authors)
	case "contributor":
		return true, x.person(&m.Contributors)
	case "category", "subject":
		return true, x.category(m)
	case "rights", "copyright":
		text, err := x.text(name)
		if m.Rights.Value == "" {
			m.Rights = text
		}
		return true, err
	case "language":
		text, err := x.text(name)
		if m.language == "" {
			m.language = text.Value
		}
		return true, err
	}
	return false, nil
}

// text reads the current element as plain text in one line, as titles are read.
func (x *feedXML) text(name string) (atompmh.Text, error) {
	s := x.scan
	kind, _ := s.Attr("", "type")
	language, line, column := s.Lang(), s.Line, s.Column
	text, _, err := s.Characters()
	if err != nil {
		return atompmh.Text{}, err
	}
	if len(text) > elementBytes {
		x.tooLong(name, line, column)
		return atompmh.Text{}, nil
	}
	plain := plainTitle(string(text), !x.atom || strings.Contains(strings.ToLower(kind), "html"))
	if plain == "" {
		language = ""
	}
	return atompmh.Text{Value: plain, Language: language}, nil
}

func (x *feedXML) tooLong(name string, line, column int) {
	x.problem(ruleFeedItem, line, column, "<%s> is longer than %d bytes; it is left out", name, elementBytes)
}

// person reads a person, whose name and addresses are elements as in Atom, or one
// text as in RSS and Dublin Core.
func (x *feedXML) person(to *[]atompmh.Person) error {
	s := x.scan
	var p atompmh.Person
	var whole strings.Builder
	for depth := s.Depth(); ; {
		if err := s.Next(); err != nil {
			return err
		}
		if s.Kind == strictxml.EndTag && s.Depth() < depth {
			break
		}
		if s.Kind == strictxml.Text && whole.Len() < elementBytes {
			whole.Write(s.Data)
		}
		if s.Kind != strictxml.StartTag {
			continue
		}
		var text atompmh.Text
		var err error
		switch name := strings.ToLower(s.Local); name {
		case "name":
			text, err = x.text(name)
			p.Name = text.Value
		case "email":
			text, err = x.text(name)
			p.Email = text.Value
		case "uri", "url":
			base := s.Base()
			var ref []byte
			if ref, _, err = s.Characters(); err == nil {
				if uri, bad := s.Resolve(base, string(ref)); bad == nil {
					p.URI = uri
				}
			}
		default:
			err = s.Skip()
		}
		if err != nil {
			return err
		}
	}
	if p == (atompmh.Person{}) {
		p = personOf(plainTitle(whole.String(), true))
	}
	addPerson(to, p)
	return nil
}

// personOf reads a person from one text: "jane@example.org (Jane Doe)", as RSS
// asks for, "Jane Doe <jane@example.org>", or a name alone.
func personOf(text string) atompmh.Person {
	if a, err := mail.ParseAddress(text); err == nil {
		return atompmh.Person{Name: a.Name, Email: a.Address}
	}
	return atompmh.Person{Name: text}
}

// maxOfAKind is how many persons of a kind, and categories, are kept while a
// document is read. Of an item so many are too much (event.MaxSaid).
const maxOfAKind = 1 + event.MaxSaid/20

// addPerson adds a person who has a name, or an address instead. One who is there
// already, as when RSS and Dublin Core name the same author, is completed.
func addPerson(to *[]atompmh.Person, p atompmh.Person) {
	for _, name := range []string{p.Email, p.URI} {
		if p.Name == "" {
			p.Name = name
		}
	}
	if p.Name == "" || len(*to) == maxOfAKind {
		return
	}
	for i := range min(len(*to), 64) { // more are not worth the time
		if known := &(*to)[i]; strings.EqualFold(known.Name, p.Name) {
			if known.Email == "" {
				known.Email = p.Email
			}
			if known.URI == "" {
				known.URI = p.URI
			}
			return
		}
	}
	*to = append(*to, p)
}

// category reads a category: Atom's has attributes, that of RSS and Dublin Core is
// a text.
func (x *feedXML) category(m *feedMetadata) error {
	s := x.scan
	var c atompmh.Category
	var has bool
	if c.Term, has = s.Attr("", "term"); has {
		c.Scheme, _ = s.Attr("", "scheme")
		c.Label, _ = s.Attr("", "label")
		c.Term = strictxml.Trim(c.Term)
		m.addCategory(c)
		return s.Skip()
	}
	c.Scheme, _ = s.Attr("", "domain")
	term, err := x.text("category")
	c.Term = term.Value
	m.addCategory(c)
	return err
}

// addCategory adds a category that has a term and is not there yet.
func (m *feedMetadata) addCategory(c atompmh.Category) {
	c.Scheme = strictxml.Trim(c.Scheme)
	if c.Term == "" || len(m.Categories) == maxOfAKind {
		return
	}
	for i := range min(len(m.Categories), 64) {
		if m.Categories[i] == c {
			return
		}
	}
	m.Categories = append(m.Categories, c)
}

// source reads the feed that an item was copied from: an atom:source (RFC 4287
// 4.2.11), or RSS's source, which has the feed's title and address.
func (x *feedXML) source(it *xmlItem) error {
	s := x.scan
	src := &atompmh.Source{}
	if ref, has := s.Attr("", "url"); has {
		if href, err := s.Resolve(s.Base(), ref); err == nil && onTheWeb(href) {
			src.Links = append(src.Links, atompmh.Link{Rel: "self", Href: href, Length: atompmh.NoLength})
		}
		title, err := x.text("source")
		if src.Title, src.Language = title.Value, title.Language; src.Title != "" || src.Links != nil {
			it.entry.Source = src
		}
		return err
	}
	m := &feedMetadata{}
	if err := s.Children(func() error { return x.sourceElement(src, m) }); err != nil {
		return err
	}
	m.Language = src.Language
	src.Metadata = m.Metadata
	if src.ID != "" || src.Title != "" || src.Links != nil {
		it.entry.Source = src
	}
	return nil
}

func (x *feedXML) sourceElement(src *atompmh.Source, m *feedMetadata) error {
	s := x.scan
	switch name := strings.ToLower(s.Local); name {
	case "id":
		text, _, err := s.Characters()
		src.ID = string(text)
		return err
	case "title":
		title, err := x.text(name)
		src.Title, src.Language = title.Value, title.Language
		return err
	case "updated":
		text, _, err := s.Characters()
		if t, bad := atompmh.ParseTime(strictxml.Trim(string(text))); bad == nil {
			src.Updated = t
		}
		return err
	case "link":
		return x.feedLink(&src.Links)
	default:
		if ok, err := x.metadata(m, name); ok {
			return err
		}
		return s.Skip()
	}
}

// maxFeedLinks is how many links of a feed, or of an atom:source, are looked at.
const maxFeedLinks = 1000

// feedLink reads a link of a feed as it tells of itself. In RSS its address may be
// its text.
func (x *feedXML) feedLink(to *[]atompmh.Link) error {
	s := x.scan
	l := atompmh.Link{Length: atompmh.NoLength}
	rel, _ := s.Attr("", "rel")
	l.Rel = relation(rel)
	l.Type, _ = s.Attr("", "type")
	ref, has := s.Attr("", "href")
	base := s.Base()
	text, _, err := s.Characters()
	if err != nil {
		return err
	}
	if !has && !x.atom {
		ref = string(text)
	}
	if ref = strictxml.Trim(ref); ref == "" || len(*to) == maxFeedLinks {
		return nil
	}
	if href, bad := s.Resolve(base, ref); bad == nil && x.reachable(escaped(href)) {
		l.Href = escaped(href)
		*to = append(*to, l)
	}
	return nil
}

// setLanguages gives the title and the rights of the feed and of its items the
// language that the item, or the feed, states for all its texts.
func (g *feedReader) setLanguages() {
	feed := &g.doc.metadata
	feed.setLanguage(g.doc.title, feed.language)
	for i := range g.doc.items {
		it := &g.doc.items[i]
		it.metadata.setLanguage(it.entry.Title, it.metadata.language)
		it.metadata.setLanguage(it.entry.Title, feed.language)
		it.entry.Metadata = it.metadata.Metadata
	}
}

// setLanguage sets the language of those texts that have none.
func (m *feedMetadata) setLanguage(title, language string) {
	if m.Language == "" && title != "" {
		m.Language = language
	}
	if m.Rights.Language == "" && m.Rights.Value != "" {
		m.Rights.Language = language
	}
}

// jsonMetadata is what the object of a feed and those of its items have in common.
type jsonMetadata struct {
	Authors  []jsonPerson `json:"authors"`
	Author   jsonPerson   `json:"author"` // version 1
	Tags     []string     `json:"tags"`
	Language string       `json:"language"`
}

type jsonPerson struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// metadata reads the metadata of an object of JSON Feed. What has another type
// than it should is left out.
func (x *feedJSON) metadata(m *feedMetadata, object []byte) {
	var said jsonMetadata
	_ = json.Unmarshal(object, &said) // goes on behind a wrong type
	for _, p := range append(said.Authors, said.Author) {
		person := atompmh.Person{Name: plainTitle(p.Name, false)}
		if uri, err := strictxml.Resolve(x.base, p.URL); err == nil && p.URL != "" {
			person.URI = uri
		}
		addPerson(&m.Authors, person)
	}
	for _, tag := range said.Tags {
		m.addCategory(atompmh.Category{Term: plainTitle(tag, false)})
	}
	m.language = cmp.Or(m.language, strictxml.Trim(said.Language))
}
