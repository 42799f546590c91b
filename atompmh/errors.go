package atompmh

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Limits caps the size and the nesting of a document. The zero value of a field means
// its default.
type Limits struct {
	// Document is how many bytes a document may have; 0 is 64 MiB.
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

// DocumentError says why a document cannot be read any further. It is the
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

// EntryError is an entry that cannot be taken as it is. The reading goes
// on after it.
type EntryError struct {
	// Rule is the id of the broken rule, see Rules.
	Rule string
	URL  string
	// Line and Column are where the entry starts, from 1.
	Line, Column int
	// ID is the identifier of the record (see Entry.Record) when exactly one
	// could be read, else "".
	ID string
	// Updated is the entry's stamp when it could be read, else zero.
	Updated time.Time
	// Reason says what is wrong and what was expected.
	Reason string
	// Input is the entry whole, as a document of its own in UTF-8 that a Reader
	// with the same URL reads in the same way.
	Input []byte
}

// Error returns place, record, reason and rule.
func (e *EntryError) Error() string {
	name := ""
	if e.ID != "" {
		name = fmt.Sprintf(" %q", clip(e.ID))
	}
	return fmt.Sprintf("%s: bad entry%s: %s [%s]", strictxml.Place(e.URL, e.Line, e.Column), name, e.Reason, e.Rule)
}

// clip shortens a text of a document to fit into a message.
func clip(s string) string { return strictxml.Clip(s) }

// RuleError is a rule that a document would break. The Writer returns it instead of
// writing such a document.
type RuleError struct {
	Rule   string // its id, see Rules
	Place  string // feed, or the entry's id
	Broken string // what is wrong
}

// Error names the place, what is wrong there and the rule.
func (e *RuleError) Error() string {
	return fmt.Sprintf("atompmh: %s: %s [%s]", e.Place, e.Broken, e.Rule)
}

// Gap is a missing or unreadable archive document.
type Gap struct {
	// URL is that of the document, as it stands in the link.
	URL string
	// Reason describes, for people, what was there instead.
	Reason string
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
	// ErrFeedID: the feed behind the URL is another one than was harvested before. If that
	// is meant, start anew with a zero State.
	ErrFeedID = errors.New("the feed's id has changed")
	// ErrLoop: the chain leads back to a document of this walk. What was read
	// stays good; the mark must not move.
	ErrLoop = errors.New("the chain of archive documents is a loop")
	// ErrTooManyDocuments: MaxDocuments were read. The walk can go on from the last
	// Document.State with a higher one.
	ErrTooManyDocuments = errors.New("too many documents in one walk")
	// ErrStale: the document where an unfinished walk was to go on is gone; start
	// anew.
	ErrStale = errors.New("the walk cannot be resumed: its next document is gone; start anew")
	// ErrRefused: a link or redirect leads where the walk may not go.
	ErrRefused = errors.New("address refused")
)

// errUnread: the loop over Documents went on before the document was read to its end.
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

// Error names the document, the number of those read, and what to do.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%s: %v: %d were read; if the feed is that long, raise the cap and go on", e.URL, ErrTooManyDocuments, e.Read)
}

// Unwrap returns ErrTooManyDocuments.
func (e *TooManyError) Unwrap() error { return ErrTooManyDocuments }
