package atompmh

import (
	"fmt"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// The names of the caps, as they stand in DocumentError.Cap.
const (
	CapDocument   = strictxml.CapDocument
	CapDepth      = strictxml.CapDepth
	CapAttributes = strictxml.CapAttributes
	CapText       = strictxml.CapText
)

// Limits caps what a document may ask for. The zero value of each field means
// its default: 64 MiB for a document, a depth of 256, 256 attributes on one
// element, 8 MiB for one text.
type Limits = strictxml.Limits

// DocumentError tells why a document cannot be read any further. It is the
// document's own fault: an error of the network below is returned as it is,
// wrapped with the place.
type DocumentError = strictxml.DocumentError

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
