package oaipmh

import (
	"errors"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Limits caps the size and the nesting of a document. The zero value of a field means
// its default.
type Limits struct {
	// Document is how many bytes a document may have, after its content coding was
	// undone; 0 is 64 MiB.
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

// RecordError is a record that cannot be taken as it is. The reading goes on
// after it.
type RecordError struct {
	// Rule is the id of the broken rule, see Rules.
	Rule string
	URL  string
	// Line and Column are where the record starts, from 1.
	Line, Column int
	// Header is what could be read of the record's header: Identifier is "" when there
	// is not exactly one, Datestamp zero when there is none.
	Header Header
	// Reason says what is wrong and what was expected.
	Reason string
	// Input is the record whole, as a document of its own in UTF-8 that a Reader
	// with the same URL reads in the same way.
	Input []byte
}

// Error returns place, record, reason and rule.
func (e *RecordError) Error() string {
	name := ""
	if e.Header.Identifier != "" {
		name = fmt.Sprintf(" %q", clip(e.Header.Identifier))
	}
	return fmt.Sprintf("%s: bad record%s: %s [%s]", strictxml.Place(e.URL, e.Line, e.Column), name, e.Reason, e.Rule)
}

// clip shortens a text of a document to fit into a message.
func clip(s string) string { return strictxml.Clip(s) }

// Errors of a walk that decide what to do next.
var (
	// ErrRepository: the repository behind the URL is another one than was harvested
	// before: its baseURL has changed. If that is meant, start anew with a zero State.
	ErrRepository = errors.New("the repository has changed")
	// ErrLoop: the list does not come to an end: its tokens lead back to records that it
	// has listed before. What was read stays good; the mark must not move, and absence
	// means nothing.
	ErrLoop = errors.New("the list goes round in a loop")
	// ErrTooManyDocuments: MaxDocuments were read. The walk can go on from the last
	// Document.State with a higher one.
	ErrTooManyDocuments = errors.New("too many documents in one walk")
	// ErrIncomplete: parts of the list could not be read to their end, although they
	// were asked for again. What was read stays good, the mark must not move.
	ErrIncomplete = errors.New("the list could not be read to its end")
	// ErrRefused: a redirect leads where the walk may not go.
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
	return fmt.Sprintf("%s: %v: %d were read; if the list is that long, raise the cap and go on", e.URL, ErrTooManyDocuments, e.Read)
}

// Unwrap returns ErrTooManyDocuments.
func (e *TooManyError) Unwrap() error { return ErrTooManyDocuments }

// IncompleteError is an ErrIncomplete that says what is missing.
type IncompleteError struct {
	// Parts counts the parts of the list that could not be read to their end.
	Parts int
	// From and Until are the datestamps of the first of them, in UTC; zero where it is
	// open.
	From, Until time.Time
	// Reason says why that one could not be read.
	Reason string
}

// Error says what is missing, why, and what to do.
func (e *IncompleteError) Error() string {
	from, until := "the beginning", "the end"
	if !e.From.IsZero() {
		from = e.From.Format(time.RFC3339)
	}
	if !e.Until.IsZero() {
		until = e.Until.Format(time.RFC3339)
	}
	return fmt.Sprintf("%v: parts of it are missing (%d), the first from %s to %s: %s; tell the repository's operator", ErrIncomplete, e.Parts, from, until, e.Reason)
}

// Unwrap returns ErrIncomplete.
func (e *IncompleteError) Unwrap() error { return ErrIncomplete }
