package event

import (
	"fmt"
	"strings"
)

// The JSON of these types is what bridge log --json prints, and what travels from bridge
// to bridge in a list (resourcesync.Metadata.Details): the names of its fields never
// change.

// Category is a category that a record is in (RFC 4287 4.2.2), or a set of an
// OAI-PMH repository.
type Category struct {
	Term   string `json:"term,omitempty"`
	Scheme string `json:"scheme,omitempty"` // an IRI, "" when the Source names none
	Label  string `json:"label,omitempty"`  // for people, "" when the Source gives none
}

// Person is an author or contributor (RFC 4287 3.2). What is "" was not given.
type Person struct {
	Name  string `json:"name,omitempty"`
	URI   string `json:"uri,omitempty"`
	Email string `json:"email,omitempty"`
}

// Text is a text for people and the language that it is in, "" when unknown
// (RFC 4287 2, xml:lang).
type Text struct {
	Value    string `json:"text,omitempty"`
	Language string `json:"lang,omitempty"`
}

// Details are what a Source reports about a record that is passed on unchanged and is no
// part of the record's state: when it alone changes, nothing is logged (I5).
type Details struct {
	Language string `json:"lang,omitempty"` // of the title
	// EntryLanguage is that of everything else, where it differs.
	EntryLanguage string   `json:"entryLang,omitempty"`
	Authors       []Person `json:"authors,omitempty"`
	Contributors  []Person `json:"contributors,omitempty"`
	Rights        Text     `json:"rights,omitzero"`
	// Published and Edited are when the entry was first available (RFC 4287
	// 4.2.9), and when it was last edited (RFC 5023 10.2).
	Published Stamp `json:"published,omitzero"`
	Edited    Stamp `json:"edited,omitzero"`
	// DeletedBy and Comment are who has deleted the record, and a comment on that
	// (RFC 6721 4); only deletions have them.
	DeletedBy Person `json:"deletedBy,omitzero"`
	Comment   Text   `json:"comment,omitzero"`
	// ChangeFreq is a sitemap's hint.
	ChangeFreq string `json:"changefreq,omitempty"`
	// Source is the feed that the entry says it was copied from; nil when it
	// does not say.
	Source *Feed `json:"source,omitempty"`
}

// IsZero reports whether there are no details.
func (d *Details) IsZero() bool {
	return d.Language == "" && d.EntryLanguage == "" && d.Authors == nil && d.Contributors == nil && d.Rights == (Text{}) && !d.Published.Known() && !d.Edited.Known() &&
		d.DeletedBy == (Person{}) && d.Comment == (Text{}) && d.ChangeFreq == "" && d.Source == nil
}

// Feed is the metadata of a feed, as atom:source passes it on (RFC 4287 4.2.11). Nobody
// changes it once it is shared.
type Feed struct {
	ID           string     `json:"id,omitempty"`
	Title        Text       `json:"title,omitzero"`
	Updated      Stamp      `json:"updated,omitzero"`
	Authors      []Person   `json:"authors,omitempty"`
	Contributors []Person   `json:"contributors,omitempty"`
	Rights       Text       `json:"rights,omitzero"`
	Categories   []Category `json:"categories,omitempty"`
	Links        []Link     `json:"links,omitempty"`
}

// Relations of the links that are published.
const (
	RelDescribedBy = "describedby"       // ResourceSync 14.5
	RelDescribes   = "describes"         // RFC 6892
	RelProfile     = "profile"           // RFC 6906
	RelRelated     = "related"           // RFC 4287 4.2.7.2
	RelLicense     = "license"           // RFC 4946
	RelCanonical   = "canonical"         // RFC 6596; ResourceSync 14.3
	RelCollection  = "collection"        // RFC 6573; ResourceSync 14.7
	RelDuplicate   = "duplicate"         // RFC 6249; ResourceSync 14.2
	RelLatest      = "latest-version"    // RFC 5829
	RelSuccessor   = "successor-version" // RFC 5829
)

// Describes reports whether the link says that one resource describes another.
func (l *Link) Describes() bool { return l.Rel == RelDescribedBy || l.Rel == RelDescribes }

// OfCopy reports whether the relation is true of one copy alone: the one that the
// Source has (ResourceSync 14.8).
func (l *Link) OfCopy() bool {
	return l.Rel == RelCanonical || l.Rel == RelCollection || l.Rel == RelDuplicate
}

// Published reports whether a set that treats content so passes on a link of a live
// record: a link to or from a description if the set has its target; a profile or a
// licence, which apply to every copy; a related resource without an http or https URL;
// and in mode reference, which sends consumers to the Source's copy, statements about
// that copy (OfCopy).
func (l *Link) Published(content Content) bool {
	switch l.Rel {
	case RelDescribedBy, RelDescribes:
		return l.InSet
	case RelProfile, RelLicense:
		return Public(l.Href)
	case RelRelated:
		return Public(l.Href) && !OnTheWeb(l.Href)
	}
	return content == Reference && l.OfCopy() && Public(l.Href)
}

// PublishedOfDeletion reports whether a link is passed on with the deletion of its
// record: to what takes its place, what is related, or the terms.
func (l *Link) PublishedOfDeletion() bool {
	switch l.Rel {
	case RelRelated, RelLicense, RelLatest, RelSuccessor:
		return Public(l.Href)
	}
	return false
}

// inline begins the Href of a representation whose content is part of the document that
// reported the record, and that has no URL.
const inline = "urn:x-bridge:content:"

// InlineHref returns the Href of a representation whose content is part of the document
// that reported the record.
func InlineHref(record string) string { return inline + Key(record) }

// IsInline reports whether the Href is one of InlineHref. Nobody can fetch it.
func IsInline(href string) bool { return strings.HasPrefix(href, inline) }

// OnTheWeb reports whether a URL can be asked for with HTTP.
func OnTheWeb(href string) bool { return hasScheme(href, "http") || hasScheme(href, "https") }

// Original returns a string that identifies an original, whether its address is written as a URI
// or not. A record of an OAI-PMH repository has a GetRecord URL in each format: it is returned
// without the metadataPrefix.
func Original(href string) string {
	href = URI(href)
	rest, value, ok := strings.Cut(href, "&metadataPrefix=")
	if !ok || !strings.Contains(href, "verb=GetRecord&") {
		return href
	}
	if _, more, ok := strings.Cut(value, "&"); ok {
		return rest + "&" + more
	}
	return rest
}

// Public reports whether a URL may stand in a published document: there is one,
// and it names no file of the machine that the Source was read on.
func Public(href string) bool { return href != "" && !hasScheme(href, "file") }

// URI returns an IRI as a URI (RFC 3987 3.1). It escapes as well what may stand in neither, such
// as a blank, a % that escapes nothing, or a bracket that is not around the host, which Sources
// write all the same.
func URI(iri string) string { return escape(iri, true) }

// FormerURI returns what URI has returned formerly: brackets, and each #, stand as they are.
func FormerURI(iri string) string { return escape(iri, false) }

func escape(iri string, delimiters bool) string {
	i := 0
	for i < len(iri) && staysInURI(iri[i]) { // most are nothing else, and each record has one
		i++
	}
	var b []byte // nil as long as nothing was escaped
	host, fragment := -1, false
	for ; i < len(iri); i++ {
		c := iri[i]
		bad := !inURI(c)
		switch c {
		case '%':
			bad = !escapes(iri[i:])
		case '[', ']':
			if host < 0 {
				host = authorityEnd(iri)
			}
			bad = delimiters && i >= host
		case '#':
			bad, fragment = delimiters && fragment, true
		}
		switch {
		case bad:
			if b == nil {
				b = []byte(iri[:i])
			}
			b = fmt.Appendf(b, "%%%02X", c)
		case b != nil:
			b = append(b, c)
		}
	}
	if b == nil {
		return iri
	}
	return string(b)
}

// staysInURI reports whether a byte stays as it is, wherever it stands.
func staysInURI(c byte) bool {
	const (
		marks   uint64 = 1<<'!' | 1<<'$' | 1<<'&' | 1<<'\'' | 1<<'(' | 1<<')' | 1<<'*' | 1<<'+' | 1<<',' | 1<<'-' | 1<<'.' | 1<<'/' | 1<<':' | 1<<';' | 1<<'=' | 1<<'?'
		figures uint64 = (1<<10 - 1) << '0'
		letters uint64 = (1<<27-1)<<('@'-64) | 1<<('_'-64) | (1<<26-1)<<('a'-64) | 1<<('~'-64)
	)
	return c < 64 && (marks|figures)>>c&1 != 0 || c >= 64 && c < 128 && letters>>(c-64)&1 != 0
}

// authorityEnd returns where the authority of an IRI ends, 0 when it has none.
func authorityEnd(iri string) int {
	at := strings.IndexByte(iri, ':') + len("://")
	if !strings.HasPrefix(iri[max(0, at-len("://")):], "://") {
		return 0
	}
	if n := strings.IndexAny(iri[at:], "/?#"); n >= 0 {
		return at + n
	}
	return len(iri)
}

func inURI(c byte) bool {
	switch c {
	case '"', '<', '>', '\\', '^', '`', '{', '|', '}':
		return false
	}
	return ' ' < c && c < 0x7f
}

// escapes reports whether the % at the beginning of s is that of an escaped byte.
func escapes(s string) bool {
	const digits = "0123456789ABCDEFabcdef"
	return len(s) > 2 && strings.IndexByte(digits, s[1]) >= 0 && strings.IndexByte(digits, s[2]) >= 0
}

func hasScheme(href, scheme string) bool {
	n := len(scheme)
	return len(href) > n && href[n] == ':' && strings.EqualFold(href[:n], scheme)
}
