package atompmh

import (
	"encoding/xml"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// openSearch is how the namespaces of OpenSearch's response elements begin.
const openSearch = "http://a9.com/-/spec/opensearch"

// IsTotalResults reports whether an element is OpenSearch's totalResults, of
// whichever version.
func IsTotalResults(space, local string) bool {
	return local == "totalResults" && strings.HasPrefix(space, openSearch)
}

// TotalResults reads the text of a totalResults; 0 when it is no number.
func TotalResults(text string) int64 {
	n, err := strconv.ParseInt(strictxml.Trim(text), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Short reports whether far fewer entries were read than a feed claims to have:
// more than a tenth of them is missing.
func Short(claimed, read int64) bool {
	missing := claimed - read
	return missing > 1 && missing > claimed/10
}

// Feed is the feed metadata of one Atom Feed Document (RFC 4287 4.1.1). The
// elements may stand anywhere in the document, so after the entries there may
// be more of them than before.
type Feed struct {
	// ID is atom:id, byte for byte; "" when there is none.
	ID string
	// Title is atom:title as plain text.
	Title string
	// Updated is atom:updated in UTC; zero when missing or bad.
	Updated time.Time
	// UpdatedRaw is the text that Updated was read from.
	UpdatedRaw string
	Metadata
	// Generator is the text of atom:generator, "" when there is none.
	Generator string
	// Links are all links of the feed, in document order.
	Links []Link
	// TotalResults is how many entries the feed claims to have in all (totalResults of
	// OpenSearch 1.0 and 1.1); 0 when it claims nothing.
	TotalResults int64
	// Archive and Complete: the feed has fh:archive, fh:complete (RFC 5005 2, 4).
	Archive, Complete bool
	// PrevArchive, NextArchive, Current and Self are the resolved hrefs of the
	// first link of that relation; "" when there is none.
	PrevArchive, NextArchive, Current, Self string
}

// Kind is what an entry means (draft, "Detecting entry type").
type Kind uint8

// The kinds of entries. Whether an entry with an alternate link is active or
// historical shows only when all entries of its record are known.
const (
	// Active is an active or historical entry: it has an alternate link.
	Active Kind = iota + 1
	// Deletion is a deletion entry, which has an empty atom:content without src and
	// no alternate link, or an at:deleted-entry (RFC 6721 3).
	Deletion
)

// String returns "active" or "deletion".
func (k Kind) String() string {
	switch k {
	case Active:
		return "active"
	case Deletion:
		return "deletion"
	}
	return "unknown"
}

// Entry is one entry of a document: what it says about one record.
type Entry struct {
	Kind Kind
	// ID is the identifier of the record, the character data of atom:id byte for
	// byte. White space around it belongs to it and is reported: two documents
	// that differ only there name different records.
	ID string
	// CarriedID is another bridge's identifier of the record where that is no absolute
	// IRI, from the attribute id in CarriedNamespace; "" when absent.
	CarriedID string
	// CarriedModified is when the record was last modified at its Source, where no link
	// states that, from the attribute modified in CarriedNamespace: a time of RFC 3339,
	// not checked; "" when absent.
	CarriedModified string
	// CarriedChangeFreq is a sitemap's hint how often the record changes, from the
	// attribute changefreq in CarriedNamespace; "" when absent.
	CarriedChangeFreq string
	// Updated is atom:updated (or at:deleted-entry's when) in UTC, to the
	// nanosecond; further digits are cut off. Its year is 1678 to 2261.
	Updated time.Time
	// UpdatedRaw is the text that Updated was read from.
	UpdatedRaw string
	// Title is atom:title as plain text, white space collapsed.
	Title string
	Metadata
	// EntryLanguage is the language of the entry itself, where it is not the title's.
	EntryLanguage string
	// Published is atom:published (RFC 4287 4.2.9), Edited is app:edited (RFC 5023
	// 10.2), in UTC; zero when missing or bad.
	Published, Edited time.Time
	// DeletedBy and Comment are at:by and at:comment (RFC 6721 4), of an
	// at:deleted-entry or of a deletion entry; a DeletedBy without a name is nobody.
	DeletedBy Person
	Comment   Text
	// Links are all links with a usable href, in document order.
	Links []Link
	// Content is atom:content; nil when there is none.
	Content *Content
	// Source is atom:source; nil when there is none (RFC 4287 4.2.11).
	Source *Source
	// Tombstone: this was an at:deleted-entry (RFC 6721 3).
	Tombstone bool
	// Line and Column are where the entry starts in its document, from 1. The
	// column counts bytes of UTF-8.
	Line, Column int
}

// Alternates returns the links of relation alternate and RelFurtherAlternate, in
// document order.
func (e *Entry) Alternates() []Link {
	var out []Link
	for _, l := range e.Links {
		if l.Rel == relAlternate || l.Rel == RelFurtherAlternate {
			out = append(out, l)
		}
	}
	return out
}

// Via returns the first link of relation via; ok is false when there is none.
func (e *Entry) Via() (l Link, ok bool) {
	for _, l := range e.Links {
		if l.Rel == "via" {
			return l, true
		}
	}
	return Link{}, false
}

// NoLength is the Length of a Link that states none.
const NoLength int64 = -1

// Link is an atom:link (RFC 4287 4.2.7).
type Link struct {
	// Rel is the relation: a registered name in lower case ("alternate" when
	// the attribute is absent or empty; the IANA form of a name is the name), or
	// any other IRI as it stands.
	Rel string
	// Href is resolved by RFC 3986 against xml:base, else the document's URL.
	Href string
	// Type is the media type as stated, "" when absent.
	Type string
	// Hreflang and Title are as stated, "" when absent.
	Hreflang, Title string
	// Length is in bytes, NoLength when absent or no number.
	Length int64
	// Other are the attributes that RFC 4287 does not define, with the name of
	// their namespace in Space: hash and modified without one, le:md5 and the
	// like in LinkExtensionsNamespace.
	Other []xml.Attr
}

// Attr returns the foreign attribute of that name; ok is false when the link has
// none. space is "" for attributes without a namespace.
func (l *Link) Attr(space, local string) (value string, ok bool) {
	for _, a := range l.Other {
		if a.Name.Local == local && a.Name.Space == space {
			return a.Value, true
		}
	}
	return "", false
}

// Content describes an atom:content (RFC 4287 4.1.3). What it holds is kept only with
// ReadOptions.Content: in Atom-PMH the alternate links lead to the metadata record.
type Content struct {
	// Empty: it holds neither elements nor text other than white
	// space.
	Empty bool
	// HasSrc: there is a src attribute; Src is resolved like an href.
	HasSrc bool
	Src    string
	// Type is the type attribute as stated.
	Type string
	// Data is what it holds, as bytes of a document of its own, and MediaType the media
	// type of that; Language is its xml:lang, also of what is at Src.
	Data                []byte
	MediaType, Language string
}

// Taken reports whether there is a content that can be taken as the record, as
// ReadOptions.Content does.
func (c *Content) Taken() bool { return c != nil && (c.Src != "" || c.Data != nil) }

// Source is an atom:source: the feed that the entry was copied from (RFC 4287
// 4.2.11).
type Source struct {
	ID, Title string
	// Updated is in UTC, zero when missing or bad.
	Updated    time.Time
	UpdatedRaw string
	Metadata
	Links []Link
}

// Metadata is what a feed, an entry and an atom:source have in common besides
// identity, title and links.
type Metadata struct {
	// Language is that of the title, as xml:lang states it; "" when unknown.
	Language              string
	Authors, Contributors []Person
	// Rights is atom:rights as plain text.
	Rights     Text
	Categories []Category
}

// Person is a Person construct (RFC 4287 3.2). Name is mandatory.
type Person struct{ Name, URI, Email string }

// Text is a text as plain text, with the language that xml:lang states, "" when
// unknown.
type Text struct{ Value, Language string }

// Category is an atom:category (RFC 4287 4.2.2). Term is mandatory.
type Category struct{ Term, Scheme, Label string }

// CanBeID reports whether an identifier can stand as atom:id byte for byte: it is
// an absolute IRI (RFC 4287 4.2.6), and XML can hold it.
func CanBeID(id string) bool { return strictxml.IsIRI(id) && strictxml.Holds(id) }

// Record returns the identifier of the entry's record: the one that it carries,
// else its atom:id.
func (e *Entry) Record() string {
	if e.CarriedID != "" {
		return e.CarriedID
	}
	return e.ID
}

// Untitled reports whether the title only repeats atom:id. RFC 4287 demands a title of
// every entry, so the entry of a record without one repeats the id there.
func (e *Entry) Untitled() bool { return e.Title == collapse(e.ID) }
