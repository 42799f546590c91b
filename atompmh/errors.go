package atompmh

import (
	"fmt"
	"strings"
)

// The names of the caps, as they stand in DocumentError.Cap.
const (
	CapDocument   = "document"
	CapDepth      = "depth"
	CapAttributes = "attributes"
	CapText       = "text"
)

// DocumentError tells why a document cannot be read any further. It is the
// document's own fault: an error of the network below is returned as it is,
// wrapped with the place.
type DocumentError struct {
	URL string
	// Line and Column are where the reading ended, from 1; the column counts
	// bytes of UTF-8.
	Line, Column int
	// Cap names the limit that was exceeded (CapDocument, ...), else "".
	Cap string
	// Reason says what is wrong and what was expected.
	Reason string
}

// Error returns place and reason.
func (e *DocumentError) Error() string {
	if e.Cap != "" {
		return fmt.Sprintf("%s: %s (cap %q)", place(e.URL, e.Line, e.Column), e.Reason, e.Cap)
	}
	return place(e.URL, e.Line, e.Column) + ": " + e.Reason
}

// EntryError tells of an entry that cannot be taken as it is. The reading goes
// on after it.
type EntryError struct {
	// Rule is the id of the broken rule, see Rules.
	Rule string
	URL  string
	// Line and Column are where the entry starts, from 1.
	Line, Column int
	// ID is the identifier when exactly one could be read, else "".
	ID string
	// Reason says what is wrong and what was expected.
	Reason string
	// Input is the entry whole, as a document of its own in UTF-8 that a Reader
	// with the same URL reads in the same way.
	Input []byte
}

// Error returns place, record, reason and rule.
func (e *EntryError) Error() string {
	var b strings.Builder
	b.WriteString(place(e.URL, e.Line, e.Column))
	b.WriteString(": bad entry")
	if e.ID != "" {
		fmt.Fprintf(&b, " %q", clip(e.ID))
	}
	fmt.Fprintf(&b, ": %s [%s]", e.Reason, e.Rule)
	return b.String()
}

func place(url string, line, column int) string {
	if url == "" {
		url = "document"
	}
	return fmt.Sprintf("%s:%d:%d", url, line, column)
}

// clip shortens what a document said to what fits into a message.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
