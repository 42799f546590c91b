package sip

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// envelopeDepth is how deep the record is in a message: inside of Envelope, Body,
// ingest-request and record.
const envelopeDepth = 4

// xsiNamespace is that of the attributes which XML Schema defines for all
// documents (XML Schema 1.0, part 1, 2.6).
const xsiNamespace = "http://www.w3.org/2001/XMLSchema-instance"

// ReadRecord reads a file that holds one XML document, as a record to submit.
// Its charset is that of the byte order mark or the XML declaration; the
// declaration, and comments and processing instructions outside of the root, are
// left out. Refused with a *DocumentError is what no message can hold:
// what is not well-formed, a document type, a processing instruction inside of the
// root (SOAP 1.1, 3), and what exceeds the limits together with the envelope. A
// file longer than limits.Document is an ErrTooLarge.
func ReadRecord(r io.Reader, limits Limits) (Record, error) {
	s := strictxml.New(r, strictxml.Options{Limits: strictxml.Limits(limits), Want: "a record", Instructions: strictxml.InstructionsOutside})
	err := s.Next()
	var rec Record
	if err == nil {
		rec, err = readRecord(s, strictxml.Limits(limits))
	}
	if err == nil {
		err = s.Next()
	}
	var broken *strictxml.DocumentError
	switch {
	case err == io.EOF: //nolint:errorlint // a wrapped one would be the reader's
		return rec, nil
	case errors.As(err, &broken) && broken.Cap == strictxml.CapDocument:
		err = fmt.Errorf("%w: %w", ErrTooLarge, (*DocumentError)(broken))
	case errors.As(err, &broken):
		err = (*DocumentError)(broken)
	}
	return Record{}, err
}

// readRecord reads the element whose start tag is the current one, and makes a
// document of its bytes.
func readRecord(s *strictxml.Scanner, limits strictxml.Limits) (Record, error) {
	limits = limits.WithDefaults()
	root := xml.Name{Space: s.Space, Local: s.Local}
	from, line, column := s.Start, s.Line, s.Column
	need := needed(s.Inherited())
	s.Keep(from)
	for outside := s.Depth() - 1; s.Depth() > outside; {
		if s.Kind == strictxml.StartTag && s.Depth()-outside > limits.Depth-envelopeDepth {
			return Record{}, s.Fail("the record's elements are nested deeper than %d", limits.Depth-envelopeDepth)
		}
		if len(need.inherited) > 0 {
			need.element(s)
		}
		if err := s.Next(); err != nil {
			return Record{}, err
		}
	}
	element := s.Slice(from, s.Offset())
	prefixes(element, need.value)
	doc := need.declaredOn(element)
	rec := Record{Root: root, XML: doc}
	s.Keep(-1)
	if len(doc) == len(element) {
		return rec, nil
	}

	// With what was added, the start tag may have become more than the limits allow.
	again := strictxml.New(bytes.NewReader(doc), strictxml.Options{Limits: strictxml.Limits{
		Document: int64(len(doc)), Attributes: limits.Attributes, Text: limits.Text}})
	if err := again.Next(); err != nil {
		return Record{}, &strictxml.DocumentError{Line: line, Column: column,
			Reason: fmt.Sprintf("the record's start tag has too much in it, together with the namespaces in scope: %v", err)}
	}
	return rec, nil
}

// Locations returns where the record says that its schemas are: the pairs of
// xsi:schemaLocation of its root, by namespace, and by "" the
// xsi:noNamespaceSchemaLocation. They are hints, and may be relative to a place that
// nobody knows. A namespace that is there twice has the first.
func (r *Record) Locations() map[string]string {
	s := strictxml.New(bytes.NewReader(r.XML), strictxml.Options{Limits: strictxml.Limits{Document: int64(len(r.XML))}})
	if s.Next() != nil {
		return nil
	}
	found := map[string]string{}
	pairs, _ := s.Attr(xsiNamespace, "schemaLocation")
	for words := strings.Fields(pairs); len(words) > 1; words = words[2:] {
		if _, ok := found[words[0]]; !ok {
			found[words[0]] = words[1]
		}
	}
	if url, ok := s.Attr(xsiNamespace, "noNamespaceSchemaLocation"); ok {
		found[""] = strictxml.Trim(url)
	}
	return found
}

// need says which of the namespaces that an element inherits have to be declared on
// it when it becomes a document of its own: those of its names, and those whose
// prefix stands in front of a colon in a value or a text, which may be a QName. The
// others differ from client to client, and the same record is to be the same bytes
// whoever sends it. That is why the message's own two namespaces count in names only,
// and why nothing is declared for a word without a colon: it may be prose about xsd
// or soap.
type need struct {
	inherited []strictxml.Binding
	declare   []bool         // of inherited
	at        map[string]int // in inherited, by prefix
}

func needed(inherited []strictxml.Binding) *need {
	n := &need{inherited: inherited, declare: make([]bool, len(inherited)), at: make(map[string]int, len(inherited))}
	for i, b := range inherited {
		n.at[b.Prefix] = i
	}
	return n
}

// name is called with the prefix of a name; "" is the default one.
func (n *need) name(prefix []byte) {
	if i, ok := n.at[string(prefix)]; ok {
		n.declare[i] = true
	}
}

// value is called with what stands in front of a colon, anywhere.
func (n *need) value(prefix []byte) {
	if i, ok := n.at[string(prefix)]; ok && n.inherited[i].Space != soapNamespace && n.inherited[i].Space != Namespace {
		n.declare[i] = true
	}
}

// element is called with each token.
func (n *need) element(s *strictxml.Scanner) {
	if s.Kind != strictxml.StartTag {
		return
	}
	tag := s.Slice(s.Start, s.Offset())[1:]
	if end := bytes.IndexAny(tag, ": \t\r\n/>"); end < 0 || tag[end] != ':' {
		n.name(nil)
	}
	start := 0
	for i := 0; i < len(tag); i++ {
		switch c := tag[i]; c {
		case '"', '\'':
			i += 1 + bytes.IndexByte(tag[i+1:], c)
		case ':':
			n.name(tag[start:i])
		case ' ', '\t', '\r', '\n', '=':
			start = i + 1
		}
	}
}

// declaredOn returns a copy of the element with what it needs declared on it, in
// the order of the prefixes. What is there stays as it is.
func (n *need) declaredOn(element []byte) []byte {
	name := bytes.IndexAny(element, " \t\r\n/>")
	doc := append(make([]byte, 0, len(element)+64), element[:name]...)
	for i, b := range n.inherited {
		open := " xmlns"
		if b.Prefix != "" {
			open += ":" + b.Prefix
		}
		if n.declare[i] {
			doc = strictxml.AppendAttr(doc, open+`="`, b.Space)
		}
	}
	return append(doc, element[name:]...)
}

// prefixes calls f with each word of the XML that may be the prefix of a name.
func prefixes(doc []byte, f func([]byte)) {
	for {
		colon := bytes.IndexByte(doc, ':')
		if colon < 0 {
			return
		}
		word := doc[:colon]
		start := len(word)
		for start > 0 && inName(word[start-1]) {
			start--
		}
		whole := nameIn(word[start:])
		if len(whole) > 0 {
			f(whole)
		}
		// What is not ASCII may be a letter of the name, or a quote in front of it.
		if i := bytes.LastIndexFunc(whole, func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 {
			_, n := utf8.DecodeRune(whole[i:])
			if last := nameIn(whole[i+n:]); len(last) > 0 {
				f(last)
			}
		}
		doc = doc[colon+1:]
	}
}

// nameIn cuts off what a name cannot begin with, but may follow, as in -p:x.
func nameIn(word []byte) []byte {
	return bytes.TrimLeftFunc(word, func(r rune) bool { return !beginsName(r) })
}

// inName reports whether c may be a byte of a name without a colon.
func inName(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.' || c >= utf8.RuneSelf
}

// beginsName reports whether r may be the first character of a name.
func beginsName(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.Nl, r) || r == 0x212E
}
