package resourcesync

import (
	"fmt"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Rule is one rule that documents have to keep.
type Rule struct {
	// ID is short and stable; Problem.Rule, EntryError.Rule and RuleError.Rule
	// hold it.
	ID string
	// Title says the rule in a few words.
	Title string
	// Clause names the specification and the section in it.
	Clause string
	// Once tells that a Reader reports only the first place of a document that
	// breaks it: such a habit of the Source would fill a report with every entry.
	Once bool
}

// The ids of the rules.
const (
	ruleRoot       = "rs-root"
	ruleNamespace  = "rs-namespace"
	ruleCharset    = "rs-charset"
	ruleBase       = "rs-base"
	ruleHead       = "rs-head"
	rulePosition   = "rs-position"
	ruleCapability = "rs-capability"
	ruleAt         = "rs-at"
	ruleFrom       = "rs-from"
	ruleUntil      = "rs-until"
	ruleUp         = "rs-up"
	ruleIndex      = "rs-index"
	ruleEntries    = "rs-entries"
	ruleSize       = "rs-size"
	ruleOrder      = "rs-order"
	ruleInterval   = "rs-interval"
	ruleEntry      = "rs-entry"
	ruleLoc        = "rs-loc"
	ruleListed     = "rs-listed"
	ruleChange     = "rs-change"
	ruleDatetime   = "rs-datetime"
	ruleDate       = "rs-date"
	ruleUTC        = "rs-utc"
	ruleNaive      = "rs-naive"
	ruleHash       = "rs-hash"
	ruleLength     = "rs-length"
	rulePath       = "rs-path"
	rulePri        = "rs-pri"
	ruleLink       = "rs-link"
	ruleAttribute  = "rs-attribute"
	ruleSitemap    = "rs-sitemap"
)

// Rules returns the table of all rules, in a fixed order.
func Rules() []Rule {
	const clause = "ANSI/NISO Z39.99-2017, "
	return append([]Rule{
		{ruleRoot, "the root is urlset or sitemapindex in the namespace of sitemaps", clause + "7", true},
		{ruleNamespace, "the namespaces are those of sitemaps and of ResourceSync, character by character", clause + "4", true},
		{ruleCharset, "Content-Type and XML declaration name the same charset", "RFC 7303 3.2", true},
		{ruleBase, "xml:base is an IRI reference", "XML Base 3.1", false},
		{ruleHead, "the root has exactly one rs:md, with a capability", clause + "7", false},
		{rulePosition, "the root's rs:md and rs:ln stand before the entries", clause + "7, Table 2", true},
		{ruleCapability, "a capability is one that is defined, and fits its document", clause + "7", false},
		{ruleAt, "lists, dumps and manifests of resources have at, and no from or until", clause + "Appendix A", true},
		{ruleFrom, "lists, dumps and manifests of changes have from, and no at or completed", clause + "Appendix A", true},
		{ruleUntil, "until is not earlier than from", clause + "12.1", false},
		{ruleUp, "every document but a Source Description has one link up", clause + "9 to 13", true},
		{ruleIndex, "a document has at most one link index, and Capability Lists have no index", clause + "6.2, 9", true},
		{ruleEntries, "a document has at most 50,000 entries", clause + "7", true},
		{ruleSize, "a document has at most 50 MB", clause + "7", true},
		{ruleOrder, "changes stand in the order of their time", clause + "12.1, 12.2, 13.2", true},
		{ruleInterval, "a change lies between from and until of its document", clause + "7", true},
		{ruleEntry, "an entry is a url in a urlset and a sitemap in a sitemapindex, with at most one of each element but rs:ln", clause + "7", false},
		{ruleLoc, "an entry has one loc: an absolute URI, without white space around it", clause + "7", false},
		{ruleListed, "an entry of a Capability List has the capability of what it leads to, each once", clause + "9", false},
		{ruleChange, "a change is created, updated or deleted", clause + "12.1, 13.2", false},
		{ruleDatetime, "every change has a datetime, so that a Destination can tell which it has seen", clause + "12.1 (recommended)", true},
		{ruleDate, "a time is a W3C Datetime", clause + "7", false},
		{ruleUTC, "a time is complete, to the second at least, and in UTC", clause + "7 (recommended)", true},
		{ruleNaive, "a time has a zone; without one it is taken as UTC", "W3C NOTE-datetime", true},
		{ruleHash, "a hash is its algorithm, a colon and as many hex digits as that has", clause + "7", true},
		{ruleLength, "a length is a number of bytes", clause + "7", false},
		{rulePath, "in a manifest what was not deleted has a path, with a leading slash", clause + "11.2, 13.2", false},
		{rulePri, "pri is a whole number from 1 to 999,999", clause + "7", false},
		{ruleLink, "a link has rel and href, an absolute URI", clause + "7", false},
		{ruleAttribute, "attributes that the specification defines have no prefix, and others have a namespace of their own", clause + "7", true},
		{ruleSitemap, "changefreq and priority are as sitemaps define them", "Sitemaps XML format", true},
	}, walkRules()...)
}

// Problem is one place where a document breaks a rule and could be read all the
// same.
type Problem struct {
	Rule         string
	URL          string
	Line, Column int // from 1; 0 when the place is the document as a whole
	// Found says what is there, Expected what the rule wants, and what was made of
	// it.
	Found, Expected string
}

// String returns the problem in one line.
func (p Problem) String() string {
	at := p.URL
	if p.Line > 0 || at == "" {
		at = strictxml.Place(p.URL, p.Line, p.Column)
	}
	return fmt.Sprintf("%s: %s: found %s, expected %s", at, p.Rule, p.Found, p.Expected)
}

// Limits caps what a document may ask for. The zero value of a field means its
// default.
type Limits struct {
	// Document is how many bytes a document may have as it arrives, unpacked; 0 is 256 MiB.
	Document int64
	// Depth is how deep elements may be nested; 0 is 256.
	Depth int
	// Attributes is how many attributes one element may have, its namespace
	// declarations included; 0 is 256.
	Attributes int
	// Text is how many bytes one text, attribute value, tag or comment may have; 0
	// is 8 MiB.
	Text int
}

// DocumentError tells why a document cannot be read any further. It is the
// document's own fault: an error of the network below is returned as it is,
// wrapped with the place.
type DocumentError struct {
	URL string
	// Line and Column are where the reading ended, from 1; the column counts bytes
	// of UTF-8.
	Line, Column int
	// Cap is what the document has too much of: "document", "depth", "attributes"
	// or "text", as the field of Limits, or "namespaces", of which too many are
	// declared. It is "" when no limit was exceeded.
	Cap string
	// Reason says what is wrong and what was expected.
	Reason string
}

// Error returns place and reason.
func (e *DocumentError) Error() string { return (*strictxml.DocumentError)(e).Error() }

// documentError makes an error of the scanner one of this package.
func documentError(err error) error {
	if fault, ok := err.(*strictxml.DocumentError); ok { //nolint:errorlint // the scanner returns it bare
		return (*DocumentError)(fault)
	}
	return err
}

// EntryError tells of an entry that cannot be taken as it is. The reading goes
// on after it.
type EntryError struct {
	// Rule is the id of the broken rule, see Rules.
	Rule string
	URL  string
	// Line and Column are where the entry starts, from 1.
	Line, Column int
	// Loc and ID are what the entry says of itself, "" when it could not be read.
	Loc, ID string
	// Datetime is when it says that the change happened; zero when that could not
	// be read.
	Datetime Datetime
	// Reason says what is wrong and what was expected.
	Reason string
	// Input is the entry whole, as a document of its own in UTF-8 that a Reader
	// with the same URL reads in the same way.
	Input []byte
}

// Error returns place, loc, reason and rule.
func (e *EntryError) Error() string {
	var b strings.Builder
	b.WriteString(strictxml.Place(e.URL, e.Line, e.Column))
	b.WriteString(": bad entry")
	if e.Loc != "" {
		fmt.Fprintf(&b, " %q", strictxml.Clip(e.Loc))
	}
	fmt.Fprintf(&b, ": %s [%s]", e.Reason, e.Rule)
	return b.String()
}

// RuleError tells that a document would break the specification. The Writer
// returns it instead of writing such a document.
type RuleError struct {
	Rule   string // id of the rule
	Clause string // of the specification
	Place  string // head, or the entry's loc
	Broken string // what is wrong
}

// Error names the place, what is wrong there and the clause.
func (e *RuleError) Error() string {
	return fmt.Sprintf("resourcesync: %s: %s (%s, %s)", e.Place, e.Broken, e.Rule, e.Clause)
}

// fault is a broken rule before its place is known.
type fault struct{ rule, found, expected string }

// at makes the error of a Writer.
func (f *fault) at(place string) *RuleError {
	e := &RuleError{Rule: f.rule, Place: place, Broken: f.found + "; want " + f.expected}
	for _, r := range Rules() {
		if r.ID == f.rule {
			e.Clause = r.Clause
		}
	}
	return e
}
