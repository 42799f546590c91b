package atompmh

import (
	"fmt"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Rule is one rule that documents or their readers have to keep.
type Rule struct {
	// ID is short and stable; Problem.Rule and EntryError.Rule hold it.
	ID string
	// Title says the rule in a few words.
	Title string
	// Clause names the specification and the section in it.
	Clause string
	// Reader: the rule says what a consumer may rely on. No document
	// can break it, so it is never reported.
	Reader bool
}

// The ids of the rules.
const (
	ruleS1  = "S1"
	ruleS2  = "S2"
	ruleS7  = "S7"
	ruleS8  = "S8"
	ruleS10 = "S10"
	ruleS11 = "S11"

	ruleType       = "pmh-type"
	ruleFeedID     = "4287-feed-id"
	ruleFeed       = "4287-feed"
	ruleEntry      = "4287-entry"
	ruleID         = "4287-id"
	ruleDate       = "4287-date"
	ruleRange      = "range"
	ruleLink       = "4287-link"
	ruleAlternates = "4287-alternates"
	ruleBase       = "4287-base"
	ruleArchive    = "5005-prev-archive"
	rulePaged      = "5005-paged"
	ruleCurrent    = "5005-current"
	ruleResults    = "opensearch-results"
	ruleTombstone  = "6721-deleted-entry"
	rulePerson     = "4287-person"
	ruleCategory   = "4287-category"
	ruleLanguage   = "4287-lang"
	ruleSource     = "4287-source"
	ruleCharset    = "7303-charset"
)

const draft = "Atom-PMH draft 2012-11-23, "

// Rules returns the table of all rules, in a fixed order.
func Rules() []Rule {
	return []Rule{
		{ruleS1, "feed/updated is not earlier than any entry of the document", draft + "Timestamps", false},
		{ruleS2, "feed/updated of the document that prev-archive names is not later than any entry of the document with that link", draft + "Timestamps", false},
		{"S3", "the entries of a document are in any order", draft + "Timestamps", true},
		{"S4", "an active entry is not earlier than a historical one of its record; equal stamps are legal", draft + "Active entries", true},
		{"S5", "archive documents and their URIs may change", draft + "Changing archive documents and URI", true},
		{"S6", "a consumer reads up to and including the time of its previous harvest", draft + "Detecting deleted metadata records", true},
		{ruleS7, "with fh:complete, a record without an active entry is deleted; deletion entries do not belong there", draft + "Deletion entries; Detecting deleted metadata records", false},
		{ruleS8, "a document has fh:complete only if it contains all active entries of the logical feed", draft + "Complete feeds", false},
		{"S9", "a URI that answers 403, 404 or 410 means that its entry is no longer active; 401 and 5xx do not", draft + "Resolvability of URIs", true},
		{ruleS10, "an entry has an alternate link and no atom:content, or an empty atom:content without src and no alternate link", draft + "Detecting entry type", false},
		{ruleS11, "every document has prev-archive, except the oldest and complete ones", draft + "Complete feeds; Example 1", false},
		{ruleType, "an alternate link states the media type of its representation, in the form of a media type", draft + "Active entries", false},
		{ruleFeedID, "every document of a logical feed has the same, permanent atom:id", "RFC 4287 4.2.6", false},
		{ruleFeed, "a feed has exactly one atom:id, atom:title and atom:updated, and an author unless every entry has one", "RFC 4287 4.1.1", false},
		{ruleEntry, "an entry has exactly one atom:id, atom:title and atom:updated, and at most one atom:content", "RFC 4287 4.1.2", false},
		{ruleID, "atom:id is an absolute IRI without surrounding white space", "RFC 4287 4.2.6", false},
		{ruleDate, "a date has the form of RFC 3339, without surrounding white space", "RFC 4287 3.3", false},
		{ruleRange, "a time is not after the year 2261 (int64 nanoseconds)", "this implementation", false},
		{ruleLink, "a link has an href that is an IRI reference", "RFC 4287 4.2.7.1", false},
		{ruleAlternates, "no two alternate links of an entry have the same type and hreflang", "RFC 4287 4.1.2", false},
		{ruleBase, "xml:base is an IRI reference", "RFC 4287 2", false},
		{ruleArchive, "a document has at most one prev-archive link", "RFC 5005 4", false},
		{rulePaged, "a logical feed of several documents is an archived feed: in a paged feed (next) entries may move between pages", "RFC 5005 3", false},
		{ruleCurrent, "a logical feed is harvested from its subscription document, not from an archive document", "RFC 5005 4", false},
		{ruleResults, "a feed has as many entries as totalResults states", "OpenSearch 1.1 draft 6, Response elements", false},
		{rulePerson, "an author or contributor has a name, its uri is an IRI, and its email an address", "RFC 4287 3.2", false},
		{ruleCategory, "a category has a term, and its scheme is an IRI", "RFC 4287 4.2.2", false},
		{ruleLanguage, "xml:lang and hreflang are language tags", "RFC 4287 2, 4.2.7.4", false},
		{ruleSource, "the atom:id of an atom:source is an absolute IRI", "RFC 4287 4.2.6, 4.2.11", false},
		{ruleTombstone, "at:deleted-entry has the attributes ref and when", "RFC 6721 3", false},
		{ruleCharset, "Content-Type and the XML declaration name the same charset", "RFC 7303 3.2", false},
	}
}

// Problem is one place where a document breaks a rule.
type Problem struct {
	Rule         string
	URL          string
	Line, Column int // from 1; 0 when the place is the document as a whole
	// Record is the identifier of the entry, "" when it is about the feed.
	Record          string
	Found, Expected string
}

// String returns the problem in one line.
func (p Problem) String() string {
	at := p.URL
	if p.Line > 0 || at == "" {
		at = strictxml.Place(p.URL, p.Line, p.Column)
	}
	record := ""
	if p.Record != "" {
		record = fmt.Sprintf(" record %q:", clip(p.Record))
	}
	return fmt.Sprintf("%s: %s:%s found %s, expected %s", at, p.Rule, record, p.Found, p.Expected)
}
