// Package sip is the Simple Ingest Protocol (draft 0.1 of 2004; not the Session
// Initiation Protocol): its documents, in SOAP 1.1 over HTTP, for the three roles.
//
//   - A submitter sends a record to an ingest server: read it with [ReadRecord], and
//     call [HTTPClient.Ingest]. The answer is a [Disposition]: accepted, rejected, or
//     provisionally accepted, when the ultimate one comes later as a notification.
//   - An ingest server is a [Backend] that a [Handler] serves. It notifies a
//     recipient with [HTTPClient.Notify].
//   - A notification recipient is a Backend with a Handler too.
//
// No call is repeated by itself. [Sent] and [Temporary] say of an error whether a
// repeat may submit something twice, and whether it may help.
//
// [ReadMessage] and [AppendMessage] read and write messages alone, for other
// transports; package sip/mail carries notifications over SMTP.
package sip

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/netip"
)

// Namespace of all documents of the protocol.
const Namespace = "http://www.alexandria.ucsb.edu"

// Properties of an ingest server (<ingest-properties>).
type Properties struct {
	Style Style
	// Formats are the URLs of the XML schemas of the formats that it accepts, at
	// least one.
	Formats []string
}

// Style is a server's notification style.
type Style string

// The styles: whether all ultimate dispositions come synchronously.
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
	// around it; "" when none is named.
	Recipient string
	Record    Record
}

// Outcome is what a disposition says.
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
	// Source repeats the request's; nil when there is none.
	Source  *Source
	Outcome Outcome
	// AssignedIdentifier of an accepted record, not empty, and without the white
	// space that was around it in the message.
	AssignedIdentifier string
	// Reason of a rejection, "" when none is given.
	Reason string
}

// Code is a SOAP fault code (SOAP 1.1, 4.4.1).
type Code string

// The fault codes.
const (
	VersionMismatch Code = "VersionMismatch"
	MustUnderstand  Code = "MustUnderstand"
	Client          Code = "Client"
	Server          Code = "Server"
)

// Fault is a SOAP fault, sent or received. As an error of a Backend it is the
// answer.
type Fault struct {
	Code Code
	// Text says what is wrong, for people (faultstring).
	Text string
	// Path, Line and Column are where in the message, where that is known: the
	// path has the names of the elements, as in
	// ingest-request/source/submitter/name. They stand in the fault's detail.
	Path         string
	Line, Column int
}

// Error returns code, place and text.
func (f *Fault) Error() string {
	if f.Path == "" {
		return fmt.Sprintf("SOAP fault %s: %s", f.Code, f.Text)
	}
	return fmt.Sprintf("SOAP fault %s at %s: %s", f.Code, f.Path, f.Text)
}

// Caller is who calls an operation, as far as the transport knows.
type Caller struct {
	// Token is what follows the service's own path in the URL of the call, or the
	// tag of the mailbox; "" when nothing does.
	Token string
	// Address is the peer's; the zero Addr when it is not known.
	Address netip.Addr
	// User and Password are of HTTP's basic authentication; HasLogin tells
	// whether they were given.
	User, Password string
	HasLogin       bool
}

// Backend is what a service does. Its methods are called from several goroutines
// at once. A *Fault is answered as it is, a *Denied as what it says; any other
// error is a fault of code Server, and its text stays here.
type Backend interface {
	// GetProperties is the operation get-properties of an ingest server.
	GetProperties(context.Context, Caller) (*Properties, error)
	// Ingest is the operation ingest of an ingest server. The request is the
	// callee's to keep.
	Ingest(context.Context, Caller, *Request) (*Disposition, error)
	// Notify is the operation notify of a notification recipient; the disposition
	// is an ultimate one. It returns nil only when that is durable.
	Notify(context.Context, Caller, *Disposition) error
	// Admit tells whether the caller may call anything at all; else the error is
	// a *Denied. It is asked before the message is read.
	Admit(context.Context, Caller) error
}

// Denied: the caller may not, or not now, whatever the message says.
type Denied struct {
	// Status is the HTTP status: 401, 403 or 429.
	Status int
	// Reason is for the caller.
	Reason string
}

// Error returns the reason.
func (d *Denied) Error() string { return d.Reason }
