package event

import "strings"

// Category is a category that a record is in (RFC 4287 4.2.2), or a set of an
// OAI-PMH repository.
type Category struct {
	Term   string
	Scheme string // an IRI, "" when the Source names none
	Label  string // for people, "" when the Source gives none
}

// Person is an author or contributor (RFC 4287 3.2). What is "" was not given.
type Person struct {
	Name, URI, Email string
}

// Text is a text for people and the language that it is in, "" when unknown
// (RFC 4287 2, xml:lang).
type Text struct {
	Value, Language string
}

// Details is what a Source says of a record that is passed on as it came, and is
// no part of the record's state: when it alone changes, nothing is logged (I5).
type Details struct {
	Language              string // of the title
	Authors, Contributors []Person
	Rights                Text
	// ChangeFreq is a sitemap's hint.
	ChangeFreq string
	// Source is the feed that the entry says it was copied from; nil when it
	// does not say.
	Source *Feed
}

// Feed is what a feed says of itself, as atom:source passes it on (RFC 4287
// 4.2.11). It is never changed once it was handed on.
type Feed struct {
	ID                    string
	Title                 Text
	Updated               Stamp
	Authors, Contributors []Person
	Rights                Text
	Categories            []Category
	Links                 []Link
}

// Relations of the links that are published.
const (
	RelDescribedBy = "describedby" // ResourceSync 14.5
	RelDescribes   = "describes"   // RFC 6892
	RelProfile     = "profile"     // RFC 6906
	RelRelated     = "related"     // RFC 4287 4.2.7.2
)

// Describes reports whether the link says that one resource describes another.
func (l *Link) Describes() bool { return l.Rel == RelDescribedBy || l.Rel == RelDescribes }

// Published reports whether the link is passed on: to or from a description when
// the set has its target; a profile, which is true of every copy; and what is
// related without being on the web. What else a Source states is true of its own
// copy (ResourceSync 14.8).
func (l *Link) Published() bool {
	switch l.Rel {
	case RelDescribedBy, RelDescribes:
		return l.InSet
	case RelProfile:
		return Public(l.Href)
	case RelRelated:
		return Public(l.Href) && !OnTheWeb(l.Href)
	}
	return false
}

// OnTheWeb reports whether a URL can be asked for with HTTP.
func OnTheWeb(href string) bool { return hasScheme(href, "http") || hasScheme(href, "https") }

// Public reports whether a URL may stand in a published document: there is one,
// and it names no file of the machine that the Source was read on.
func Public(href string) bool { return href != "" && !hasScheme(href, "file") }

func hasScheme(href, scheme string) bool {
	n := len(scheme)
	return len(href) > n && href[n] == ':' && strings.EqualFold(href[:n], scheme)
}
