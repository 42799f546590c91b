package atompmh

import (
	"fmt"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Limits caps what a document may ask for. The zero value of a field means its
// default.
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
	var b strings.Builder
	b.WriteString(strictxml.Place(e.URL, e.Line, e.Column))
	b.WriteString(": bad entry")
	if e.ID != "" {
		fmt.Fprintf(&b, " %q", clip(e.ID))
	}
	fmt.Fprintf(&b, ": %s [%s]", e.Reason, e.Rule)
	return b.String()
}

// clip shortens what a document said to what fits into a message.
func clip(s string) string { return strictxml.Clip(s) }
