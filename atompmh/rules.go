package atompmh

import (
	"fmt"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Rule is one rule that documents or their readers have to keep.
type Rule struct {
	// ID is short and stable; Problem.Rule and EntryError.Rule hold it.
	ID string
	// Title states the rule in a few words.
	Title string
	// Clause names the specification and the section in it.
	Clause string
	// Severity is Must, Should or Note.
	Severity string
	// Reader: the rule states what a consumer may rely on. No document can break it, so it
	// is never reported.
	Reader bool
	// Strict: only a Reader with ReadOptions.Strict checks it, as no consumer depends on
	// it.
	Strict bool
	// Several: it is about how documents fit together, so that no single one shows it.
	Several bool
	// Contents: it is about representations, which no Reader fetches.
	Contents bool
}

// The severities of rules. A rule that this implementation has added, or that is of a
// specification which the draft does not build on, is a Note.
const (
	Must   = "must"   // shall, MUST and SHALL, in the draft and the RFCs that it builds on
	Should = "should" // should and SHOULD
	Note   = "note"
)

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
	ruleDocument   = "4287-document"

	ruleText        = "4287-text"
	ruleLinkType    = "4287-link-type"
	ruleSelf        = "4287-self"
	ruleStamp       = "pmh-stamp"
	ruleArchiveMark = "5005-archive"
	ruleCurrentLink = "5005-current-link"
	ruleNextArchive = "5005-next-archive"
	ruleChain       = "pmh-chain"
	ruleResolves    = "pmh-resolves"
)

const draft = "Atom-PMH draft 2012-11-23, "

// Rules returns the table of all rules, in a fixed order.
func Rules() []Rule {
	return []Rule{
		{ID: ruleS1, Title: "feed/updated is not earlier than any entry of the document", Clause: draft + "Timestamps", Severity: Must},
		{ID: ruleS2, Title: "feed/updated of the document that prev-archive names is not later than any entry of the document with that link", Clause: draft + "Timestamps", Severity: Must, Several: true},
		{ID: "S3", Title: "the entries of a document are in any order", Clause: draft + "Timestamps", Severity: Must, Reader: true},
		{ID: "S4", Title: "an active entry is not earlier than a historical one of its record; equal stamps are legal", Clause: draft + "Active entries", Severity: Must, Reader: true},
		{ID: "S5", Title: "archive documents and their URIs may change", Clause: draft + "Changing archive documents and URI", Severity: Must, Reader: true},
		{ID: "S6", Title: "a consumer reads up to and including the time of its previous harvest", Clause: draft + "Detecting deleted metadata records", Severity: Must, Reader: true},
		{ID: ruleS7, Title: "with fh:complete, a record without an active entry is deleted; deletion entries do not belong there", Clause: draft + "Deletion entries; Detecting deleted metadata records", Severity: Should},
		{ID: ruleS8, Title: "a document has fh:complete only if it contains all active entries of the logical feed", Clause: draft + "Complete feeds", Severity: Must, Several: true},
		{ID: "S9", Title: "a URI that answers 403, 404 or 410 means that its entry is no longer active; 401 and 5xx do not", Clause: draft + "Resolvability of URIs", Severity: Must, Reader: true},
		{ID: ruleS10, Title: "an entry has an alternate link and no atom:content, or an empty atom:content without src and no alternate link", Clause: draft + "Detecting entry type", Severity: Must},
		{ID: ruleS11, Title: "every document has prev-archive, except the oldest and complete ones", Clause: draft + "Complete feeds; Example 1", Severity: Must, Several: true},
		{ID: ruleType, Title: "an alternate link states the media type of its representation, in the form of a media type", Clause: draft + "Active entries", Severity: Must},
		{ID: ruleFeedID, Title: "every document of a logical feed has the same, permanent atom:id", Clause: "RFC 4287 4.2.6", Severity: Must, Several: true},
		{ID: ruleFeed, Title: "a feed has exactly one atom:id, atom:title and atom:updated, and an author unless every entry has one; generator, icon, logo, rights and subtitle at most once", Clause: "RFC 4287 4.1.1", Severity: Must},
		{ID: ruleEntry, Title: "an entry has exactly one atom:id, atom:title and atom:updated, and at most one atom:content, published, rights, source and summary", Clause: "RFC 4287 4.1.2", Severity: Must},
		{ID: ruleID, Title: "atom:id is an absolute IRI without surrounding white space", Clause: "RFC 4287 4.2.6", Severity: Must},
		{ID: ruleDate, Title: "a date has the form of RFC 3339, without surrounding white space", Clause: "RFC 4287 3.3", Severity: Must},
		{ID: ruleRange, Title: "a time is not after the year 2261 (int64 nanoseconds)", Clause: "this implementation", Severity: Note},
		{ID: ruleLink, Title: "a link has an href that is an IRI reference", Clause: "RFC 4287 4.2.7.1", Severity: Must},
		{ID: ruleAlternates, Title: "no two alternate links of an entry, or of the feed, have the same type and hreflang", Clause: "RFC 4287 4.1.1, 4.1.2", Severity: Must},
		{ID: ruleBase, Title: "xml:base is an IRI reference", Clause: "RFC 4287 2", Severity: Must},
		{ID: ruleArchive, Title: "a document has at most one prev-archive link", Clause: "RFC 5005 4", Severity: Must},
		{ID: rulePaged, Title: "a logical feed of several documents is an archived feed: in a paged feed (next) entries may move between pages", Clause: "RFC 5005 3", Severity: Note, Several: true},
		{ID: ruleCurrent, Title: "a logical feed is harvested from its subscription document, not from an archive document", Clause: "RFC 5005 4", Severity: Note, Several: true},
		{ID: ruleResults, Title: "a feed has as many entries as totalResults states", Clause: "OpenSearch 1.1 draft 6, Response elements", Severity: Note, Several: true},
		{ID: rulePerson, Title: "an author or contributor has a name, its uri is an IRI, and its email an address", Clause: "RFC 4287 3.2", Severity: Must},
		{ID: ruleCategory, Title: "a category has a term, and its scheme is an IRI", Clause: "RFC 4287 4.2.2", Severity: Must},
		{ID: ruleLanguage, Title: "xml:lang and hreflang are language tags", Clause: "RFC 4287 2, 4.2.7.4", Severity: Must},
		{ID: ruleSource, Title: "the atom:id of an atom:source is an absolute IRI", Clause: "RFC 4287 4.2.6, 4.2.11", Severity: Must},
		{ID: ruleTombstone, Title: "at:deleted-entry has the attributes ref and when", Clause: "RFC 6721 3", Severity: Must},
		{ID: ruleCharset, Title: "Content-Type and the XML declaration name the same charset", Clause: "RFC 7303 3.2", Severity: Note},
		{ID: ruleDocument, Title: "a document is whole, well-formed XML without a document type, and its root is atom:feed", Clause: "RFC 4287 2; XML 1.0 2.1", Severity: Must},

		// Rules that no consumer depends on.
		{ID: ruleText, Title: "the type of a title, subtitle, summary or rights is text, html or xhtml", Clause: "RFC 4287 3.1.1", Severity: Must, Strict: true},
		{ID: ruleLinkType, Title: "the type of a link has the form of a media type", Clause: "RFC 4287 4.2.7.3", Severity: Must, Strict: true},
		{ID: ruleSelf, Title: "a feed has a link self", Clause: "RFC 4287 4.1.1", Severity: Should, Strict: true},
		{ID: ruleStamp, Title: "no two entries of a record have the same stamp", Clause: draft + "Active entries, Deletion entries; RFC 4287 4.1.1", Severity: Should, Strict: true},
		{ID: ruleArchiveMark, Title: "an archive document has fh:archive", Clause: "RFC 5005 4", Severity: Should, Strict: true},
		{ID: ruleCurrentLink, Title: "an archive document has a link current to the subscription document", Clause: "RFC 5005 4", Severity: Should, Strict: true},
		{ID: ruleNextArchive, Title: "an archive document has next-archive, unless it is the newest", Clause: "RFC 5005 4", Severity: Should, Strict: true, Several: true},
		{ID: ruleChain, Title: "prev-archive leads to an Atom Feed Document, and never back to one of the chain", Clause: draft + "Timestamps", Severity: Must, Several: true},
		{ID: ruleResolves, Title: "the alternate links of an active entry resolve, to representations of the stated type", Clause: draft + "Active entries", Severity: Must, Contents: true},
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
