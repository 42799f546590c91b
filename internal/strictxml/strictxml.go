// Package strictxml is the XML tokenizer of the protocol packages. It is strict, caps
// the size and the nesting of a document, and keeps the bytes of it that a caller needs
// again. For legacy feeds it can be lenient with what they get wrong most often. It
// reads XML, its namespaces and xml:base. Of the protocols it knows only how an
// atom:content is encoded ([Scanner.Content]), and the names of documents for messages
// ([Scanner.What]).
package strictxml

import (
	"cmp"
	"fmt"
	"strings"
)

// Namespace is that of the attributes that XML itself defines, such as xml:base.
const Namespace = "http://www.w3.org/XML/1998/namespace"

// The names of the caps, as they stand in DocumentError.Cap.
const (
	CapDocument   = "document"
	CapDepth      = "depth"
	CapAttributes = "attributes"
	CapText       = "text"
	capNamespaces = "namespaces"
)

// Limits caps the size and the nesting of a document. The zero value of each field
// means its default.
type Limits struct {
	// Document is the length of a document in bytes as it arrives; 64 MiB, where the
	// protocol package sets no other.
	Document int64
	// Depth of nested elements, 256.
	Depth int
	// Attributes of one element, namespace declarations counted, 256.
	Attributes int
	// Text is the length in bytes of one text, attribute value, tag or comment,
	// 8 MiB.
	Text int
}

// WithDefaults returns the limits with their defaults filled in.
func (l Limits) WithDefaults() Limits {
	l.Document = cmp.Or(l.Document, 64<<20)
	l.Depth = cmp.Or(l.Depth, 256)
	l.Attributes = cmp.Or(l.Attributes, 256)
	l.Text = cmp.Or(l.Text, 8<<20)
	return l
}

// DocumentError says why a document cannot be read any further. It is the
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
		return fmt.Sprintf("%s: %s (cap %q)", Place(e.URL, e.Line, e.Column), e.Reason, e.Cap)
	}
	return Place(e.URL, e.Line, e.Column) + ": " + e.Reason
}

// About says what a Notice is about.
type About uint8

// What a Notice is about.
const (
	// AboutCharset: Content-Type and XML declaration disagree (RFC 7303 3.2), or bytes
	// are not of the charset.
	AboutCharset About = iota + 1
	// AboutBase: an xml:base is no IRI reference and is ignored.
	AboutBase
	// AboutMarkup: the document is not well-formed, and read all the same.
	AboutMarkup
	// AboutPrefix: a prefix is not declared.
	AboutPrefix
)

// Notice is a defect that does not keep a document from being read.
type Notice struct {
	About        About
	Line, Column int // from 1
	Found        string
	Expected     string // "" when Found says it
}

// fault is a fault of the document that is found before its place is known.
type fault struct {
	cap, reason string
}

func (e *fault) Error() string { return e.reason }

// Place names a place of a document in a message.
func Place(url string, line, column int) string {
	url = cmp.Or(url, "document")
	return fmt.Sprintf("%s:%d:%d", url, line, column)
}

// Clip shortens a text of a document to fit into a message: to about 200 bytes.
func Clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
