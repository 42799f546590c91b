// Package sip implements the Simple Ingest Protocol (draft 0.1 of 2004; not the Session
// Initiation Protocol), with SOAP 1.1 over HTTP, for its three roles.
//
//   - A submitter sends a record to an ingest server: read it with [ReadRecord], and
//     call [HTTPClient.Ingest]. The answer is a [Disposition]: accepted, rejected, or
//     provisionally accepted, when the ultimate one comes later as a notification.
//   - An ingest server is a [Backend] that a [Handler] serves. It notifies a
//     recipient with [HTTPClient.Notify].
//   - A notification recipient is a Backend with a Handler too.
//
// The client repeats no call by itself. For an error, [Sent] reports whether a repeat
// could submit something twice, and [Temporary] whether it may succeed.
//
// [ReadMessage] and [AppendMessage] read and write messages alone, for other
// transports; package sip/mail carries notifications over SMTP.
package sip

import (
	"encoding/xml"
	"errors"
	"fmt"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Namespace of all documents of the protocol.
const Namespace = "http://www.alexandria.ucsb.edu"

// Properties of an ingest server (<ingest-properties>).
type Properties struct {
	// Style is mandatory: Synchronous or Asynchronous.
	Style Style
	// Formats are the URLs of the XML schemas of the formats that it accepts, at
	// least one.
	Formats []string
}

// Style is a server's notification style.
type Style string

// The styles: Synchronous means that each answer to an ingest is the ultimate disposition,
// Asynchronous that some are provisional and the ultimate one comes later.
const (
	Synchronous  Style = "synchronous"
	Asynchronous Style = "asynchronous"
)

// Submitter is the institution, project or person that a record comes from.
type Submitter struct {
	Name, EmailAddress string
}

// Source describes where a record comes from (<source>). All of it is optional;
// what is there is repeated in the disposition, to the extent present, so nil and
// a pointer to "" differ.
type Source struct {
	Submitter *Submitter
	// Sequence names the sequence of records that the record is a member of.
	Sequence *string
	// Identifier is the source's own for the record (<source-identifier>).
	Identifier *string
}

// Record is the one element inside <record>.
type Record struct {
	// Root is its name.
	Root xml.Name
	// XML is the element as a document of its own: its bytes as they came, with
	// those of the namespaces in scope declared on it that it may need, in UTF-8
	// and without an XML declaration.
	XML []byte
}

// Request to ingest a record (<ingest-request>).
type Request struct {
	// Source is nil when there is none; an empty one is another thing.
	Source *Source
	// Recipient is the URL of the notification recipient, without the white space
	// around it; "" when none is named. The draft has http and smtp. A server that
	// accepts provisionally sends the ultimate disposition there.
	Recipient string
	// Record is mandatory; make it with ReadRecord.
	Record Record
}

// Outcome is the decision in a disposition.
type Outcome uint8

// The outcomes.
const (
	Accepted Outcome = iota + 1
	ProvisionallyAccepted
	Rejected
)

// String returns the name of the outcome's element.
func (o Outcome) String() string {
	switch o {
	case Accepted:
		return "accepted"
	case ProvisionallyAccepted:
		return "provisionally-accepted"
	case Rejected:
		return "rejected"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Disposition of an ingest request (<ingest-disposition>).
type Disposition struct {
	// Source is that of the request; nil when the request had none. The ingest
	// server copies it, here and in a later notification: a Handler does not.
	Source *Source
	// Outcome is mandatory: Accepted, ProvisionallyAccepted or Rejected.
	Outcome Outcome
	// AssignedIdentifier is what the ingest server calls an Accepted record. There
	// it is mandatory, and "" elsewhere. White space that was around it in the
	// message is left out.
	AssignedIdentifier string
	// Reason of a rejection, for people; "" when none is given.
	Reason string
}

// unwritable returns an error if something mandatory of the properties is missing.
func (p *Properties) unwritable() error {
	switch {
	case p == nil:
		return errors.New("the backend returned no properties")
	case p.Style != Synchronous && p.Style != Asynchronous:
		return fmt.Errorf("the backend returned properties with style %q; want %q or %q", p.Style, Synchronous, Asynchronous)
	case len(p.Formats) == 0:
		return errors.New("the backend returned properties without formats; want one or more")
	}
	return nil
}

// unwritable returns an error if something mandatory of the disposition is missing.
func (d *Disposition) unwritable() error {
	switch {
	case d == nil:
		return errors.New("the backend returned no disposition")
	case d.Outcome < Accepted || d.Outcome > Rejected:
		return errors.New("the backend returned a disposition without an outcome; want Accepted, ProvisionallyAccepted or Rejected")
	case d.Outcome == Accepted && strictxml.Trim(d.AssignedIdentifier) == "":
		return errors.New("the backend returned an accepted disposition without an assigned identifier")
	}
	return nil
}

// Kind of a message: which document it holds.
type Kind uint8

// The kinds. A get-properties has nothing in it: the draft gives that operation no document,
// the element is this implementation's own.
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
