package resourcesync

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Limits caps the size of one document. The zero value of a field means its default.
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

// DocumentError is why a document cannot be read any further. It is about the document itself:
// an error of the network is returned as it is, wrapped with the place.
type DocumentError struct {
	URL string
	// Line and Column are where the reading ended, from 1; the column counts bytes
	// of UTF-8.
	Line, Column int
	// Cap is the exceeded limit: "document", "depth", "attributes" or "text", as the field of
	// Limits, or "namespaces", of which too many are declared. It is "" when no limit was
	// exceeded.
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

// EntryError is an entry that cannot be taken as it is. The reading goes
// on after it.
type EntryError struct {
	// Rule is the id of the broken rule, see Rules.
	Rule string
	URL  string
	// Line and Column are where the entry starts, from 1.
	Line, Column int
	// Loc and ID are those of the entry, "" when they could not be read.
	Loc, ID string
	// Datetime is when the change happened according to the entry; zero when that could not be
	// read.
	Datetime Datetime
	// Reason says what is wrong and what was expected.
	Reason string
	// Input is the entry whole, as a document of its own in UTF-8 that a Reader
	// with the same URL reads in the same way.
	Input []byte
}

// Error returns place, loc, reason and rule.
func (e *EntryError) Error() string {
	name := ""
	if e.Loc != "" {
		name = fmt.Sprintf(" %q", strictxml.Clip(e.Loc))
	}
	return fmt.Sprintf("%s: bad entry%s: %s [%s]", strictxml.Place(e.URL, e.Line, e.Column), name, e.Reason, e.Rule)
}

// RuleError is a rule of the specification that a document would break. The Writer
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

// ruleError is a broken rule before its place is known.
func ruleError(rule, found, expected string) *RuleError {
	e := &RuleError{Rule: rule, Broken: found + "; want " + expected}
	for _, r := range Rules() {
		if r.ID == rule {
			e.Clause = r.Clause
		}
	}
	return e
}

// Gap is a missing or unreadable list.
type Gap struct {
	// URL is that of the list, as in the document that names it.
	URL string `json:"url"`
	// Reason is what was there instead, for people.
	Reason string `json:"reason"`
}

// String returns both in one line.
func (g Gap) String() string {
	if strings.HasPrefix(g.Reason, g.URL) {
		return g.Reason
	}
	return g.URL + ": " + g.Reason
}

// Errors of a walk that decide what to do next.
var (
	// ErrTooManyDocuments: MaxDocuments were read. The walk can go on from the last
	// List.State with a higher one.
	ErrTooManyDocuments = errors.New("too many documents in one walk")
	// ErrStale: the list where an unfinished walk was to go on is gone; start anew.
	ErrStale = errors.New("the walk cannot be resumed: its next document is gone; start anew")
	// ErrRefused: a link or redirect leads to an address that the walk may not request.
	ErrRefused = errors.New("address refused")
)

// errUnread: the loop over Documents went on before the list was read to its end.
var errUnread = errors.New("the document was not read to its end")

// StatusError is an answer with a status that the walk cannot go on from.
type StatusError struct {
	URL    string
	Status int // of HTTP
	// Partial is the answer's header field Bridge-Partial, "" when it has none. A
	// bridge sends it while its lists do not have all that its own Sources have.
	Partial string
}

// Error returns the status, the URL and what to do.
func (e *StatusError) Error() string { return (*follow.StatusError)(e).Error() }

// Unwrap returns the same error as an internal type.
func (e *StatusError) Unwrap() error { return (*follow.StatusError)(e) }

// TooManyError is an ErrTooManyDocuments that says which document was not read.
type TooManyError struct {
	URL  string
	Read int // documents
}

// Error returns the URL, how many documents were read, and what to do.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%s: %v: %d were read; if the Source is that large, raise the cap and go on", e.URL, ErrTooManyDocuments, e.Read)
}

// Unwrap returns ErrTooManyDocuments.
func (e *TooManyError) Unwrap() error { return ErrTooManyDocuments }

// Tried is a place where discovery looked in vain.
type Tried struct {
	Place, URL string
	// Answer is what was there instead.
	Answer string
}

// NoSourceError is an address that leads to no document of the framework and
// to no sitemap.
type NoSourceError struct {
	URL   string
	Tried []Tried
}

// Error names each place that was tried and what it answered.
func (e *NoSourceError) Error() string {
	tried := make([]string, len(e.Tried))
	for i, t := range e.Tried {
		tried[i] = fmt.Sprintf("%s %s: %s", t.Place, t.URL, t.Answer)
	}
	return fmt.Sprintf("%s: no ResourceSync Source and no sitemap found; give the address of one of its documents. Tried: %s", e.URL, strings.Join(tried, "; "))
}
