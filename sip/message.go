package sip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge: a message, or a record, is longer than its reader was told to
// take.
var ErrTooLarge = errors.New("too large")

// Kind of a message: which document it holds.
type Kind uint8

// The kinds. A get-properties has nothing in it: the draft gives that operation
// no document, the element is ours.
const (
	KindGetProperties Kind = iota + 1
	KindProperties
	KindRequest
	KindDisposition
	KindFault
)

// String returns the name of the document's element.
func (k Kind) String() string {
	names := [...]string{"", "get-properties", "ingest-properties", "ingest-request", "ingest-disposition", "Fault"}
	if int(k) < len(names) && k != 0 {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Message is what a SOAP message holds, one document. The field of its Kind is
// set and the others are nil.
type Message struct {
	Kind        Kind
	Properties  *Properties
	Request     *Request
	Disposition *Disposition
	Fault       *Fault
}

// ReadOptions says what is known of a message besides its bytes. The zero value
// is valid.
type ReadOptions struct {
	// URL that it came from; errors of its transport name it.
	URL string
	// ContentType is the value of the header field, for its charset.
	ContentType string
	// Limits of the message; a Document of 0 is 4 MiB.
	Limits Limits
	// Plain: a document without an envelope is taken as well.
	Plain bool
	// Action is the SOAPAction that came with the message. When it is that of
	// get-properties, for which the draft has no document, an empty Body is a
	// get-properties too.
	Action string
	// Context ends the reading; nil is allowed.
	Context context.Context
	// Places are filled with those of the message's elements; nil is allowed.
	Places Places
}

// maxMessage is the default of ReadOptions.Limits.Document.
const maxMessage = 4 << 20

// ReadMessage reads a SOAP 1.1 message to its end. What is wrong with the message
// itself is a *Fault, which is what to answer; a message that is too long is an
// ErrTooLarge; any other error comes from r, wrapped with the place.
func ReadMessage(r io.Reader, o ReadOptions) (*Message, error) {
	if o.Limits.Document == 0 {
		o.Limits.Document = maxMessage
	}
	d := newReader(r, o)
	if err := d.root(); err != nil {
		return nil, err
	}
	var m *Message
	var err error
	switch s := d.s; {
	case s.Space == soapNamespace && s.Local == "Envelope":
		m, err = d.envelope()
	case s.Local == "Envelope":
		f := d.fault("found an envelope%s, expected one of SOAP 1.1 in namespace %q", d.namespace(), soapNamespace)
		f.Code = VersionMismatch
		return nil, f
	case o.Plain:
		m, err = d.document()
	default:
		return nil, d.fault("found <%s>%s, expected a SOAP 1.1 <Envelope>", d.name(), d.namespace())
	}
	if err != nil {
		return nil, err
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return m, nil
}

// ReadDocument reads one document without an envelope, in UTF-8. The error is a
// *Fault.
func ReadDocument(b []byte) (*Message, error) {
	d := bytesReader(b)
	if err := d.root(); err != nil {
		return nil, err
	}
	m, err := d.document()
	if err != nil {
		return nil, err
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return m, nil
}

// ParseSource reads what AppendSource has written. The error is a *Fault.
func ParseSource(b []byte) (*Source, error) {
	d := bytesReader(b)
	if err := d.root(); err != nil {
		return nil, err
	}
	if d.s.Space != Namespace || d.s.Local != "source" {
		return nil, d.fault("found <%s>%s, expected <source> in namespace %q", d.name(), d.namespace(), Namespace)
	}
	if err := d.attributes(); err != nil {
		return nil, err
	}
	s, err := d.source()
	if err != nil {
		return nil, err
	}
	return s, d.end()
}

// bytesReader returns a reader of bytes that we keep, whatever their length.
func bytesReader(b []byte) *reader {
	return newReader(bytes.NewReader(b), ReadOptions{Limits: Limits{Document: int64(len(b))}})
}
