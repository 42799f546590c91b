package sip

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// envelopeDepth is how deep the record is in a message: inside of Envelope, Body,
// ingest-request and record.
const envelopeDepth = 4

// xsiNamespace is that of the attributes which XML Schema defines for all
// documents (XML Schema 1.0, part 1, 2.6).
const xsiNamespace = "http://www.w3.org/2001/XMLSchema-instance"

// ReadRecord reads a file that holds one XML document, as a record to submit. Its charset is
// that of the byte order mark or the XML declaration; the declaration, and comments and
// processing instructions outside of the root, are left out. It refuses with a *DocumentError
// what no message can hold: what is not well-formed, a document type, a processing instruction
// inside of the root (SOAP 1.1, 3), and what exceeds the limits together with the envelope. A
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
	root, line, column := xml.Name{Space: s.Space, Local: s.Local}, s.Line, s.Column
	// The message's own two namespaces differ from client to client.
	doc, added, err := s.Element(limits.Depth-envelopeDepth, soapNamespace, Namespace)
	if err != nil {
		return Record{}, err
	}
	rec := Record{Root: root, XML: doc}
	if !added {
		return rec, nil
	}

	// With what was added, the start tag may have become more than the limits allow.
	if err := strictxml.Read(doc, strictxml.Options{Limits: strictxml.Limits{
		Document: int64(len(doc)), Attributes: limits.Attributes, Text: limits.Text}}, (*strictxml.Scanner).Next); err != nil {
		return Record{}, &strictxml.DocumentError{Line: line, Column: column,
			Reason: fmt.Sprintf("the record's start tag has too much in it, together with the namespaces in scope: %v", err)}
	}
	return rec, nil
}

// Locations returns the addresses of the record's schemas: the pairs of xsi:schemaLocation of
// its root, by namespace, and by "" the xsi:noNamespaceSchemaLocation. They are hints, and may
// be relative to an unknown URL. Of a namespace that is there twice the first address counts.
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
