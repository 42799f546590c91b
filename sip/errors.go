package sip

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// ErrTooLarge: a message, or a record, is longer than its reader accepts.
var ErrTooLarge = errors.New("too large")

// Code is a SOAP fault code (SOAP 1.1, 4.4.1).
type Code string

// The fault codes.
const (
	VersionMismatch Code = "VersionMismatch"
	MustUnderstand  Code = "MustUnderstand"
	Client          Code = "Client"
	Server          Code = "Server"
	// ClientAuthentication is the only code with a dot that is kept apart: it is about the
	// caller, and about no message.
	ClientAuthentication Code = "Client.Authentication"
)

// Fault is a SOAP fault, sent or received. A Backend returns it as an error to answer with it.
type Fault struct {
	Code Code
	// Text says what is wrong, for people (faultstring).
	Text string
	// Path, Line and Column are where in the message, where that is known: the
	// path has the names of the elements, as in
	// ingest-request/source/submitter/name. They stand in the fault's detail.
	Path         string
	Line, Column int
	// Rule is the id of the rule that the message breaks, see Rules; "" for what is not
	// about a rule. It is not sent.
	Rule string
}

// Error returns code, place and text.
func (f *Fault) Error() string {
	if f.Path == "" {
		return fmt.Sprintf("SOAP fault %s: %s", f.Code, f.Text)
	}
	return fmt.Sprintf("SOAP fault %s at %s: %s", f.Code, f.Path, f.Text)
}

// Denied is the error for a caller that may not call, or not now, whatever its message is.
type Denied struct {
	// Status is the HTTP status: 401, 403 or 429.
	Status int
	// Reason is for the caller.
	Reason string
}

// Error returns the reason.
func (d *Denied) Error() string { return d.Reason }

// Limits caps the size of one document. The zero value of a field means its default.
type Limits struct {
	// Document is how many bytes a document may have; 0 is 4 MiB for a message, 64
	// MiB for a record.
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

// DocumentError is why a file cannot be a record.
type DocumentError struct {
	// URL is that of the file, "" when it is not known.
	URL string
	// Line and Column are where the reading ended, from 1; the column counts bytes
	// of UTF-8.
	Line, Column int
	// Cap is the exceeded limit: "document", "depth", "attributes" or "text", as the field of
	// Limits, or "namespaces", of which too many are declared. It is "" when no limit was
	// exceeded.
	Cap string
	// Reason says what is wrong and what was expected.
	Reason string
}

// Error returns place and reason.
func (e *DocumentError) Error() string { return (*strictxml.DocumentError)(e).Error() }

// StatusError is an answer that is neither a document nor a fault.
type StatusError struct {
	URL    string
	Status int // of HTTP
	// Text is the answer if it is plain text, cut off, or what is unexpected in it.
	Text string
	// RetryAfter is how long the server asks to wait; 0 when it states nothing.
	RetryAfter time.Duration
}

// Error returns status and text.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("HTTP %d %s", e.Status, http.StatusText(e.Status))
	if e.Text != "" {
		text += ": " + e.Text
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; wants to be asked again in %v", e.RetryAfter)
	}
	return text
}

// Temporary reports whether the same call may succeed later: there was no whole
// answer, or it was a fault of code Server, or status 408, 425, 429 or 5xx
// without a fault. It may have succeeded already; see Sent.
func Temporary(err error) bool {
	var (
		fault  *Fault
		status *StatusError
		call   *callError
	)
	switch {
	case errors.As(err, &fault):
		return fault.Code == Server
	case errors.As(err, &status):
		switch status.Status {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
			return true
		}
		return status.Status >= 500
	case errors.As(err, &call):
		return call.unanswered
	}
	return false
}

// Sent reports whether the message of a call that ended with err may have reached
// the server. False is certain: the address was refused, there was no
// connection, or nothing of the message was written to it.
func Sent(err error) bool {
	var call *callError
	return !errors.As(err, &call) || !call.unsent
}

// callError is a call that failed. A *Fault or a *StatusError in it is the answer of the
// server.
type callError struct {
	operation, url string
	err            error
	// unsent: no byte of the message has left. unanswered: no whole answer came.
	unsent, unanswered bool
}

func (e *callError) Error() string {
	text := e.operation
	if e.url != "" {
		text += " at " + e.url
	}
	text += ": " + e.err.Error()
	switch {
	case e.unsent && e.unanswered:
		text += "; nothing was sent"
	case e.unanswered:
		text += "; whether the message was taken is not known"
	}
	return text
}

func (e *callError) Unwrap() error { return e.err }
