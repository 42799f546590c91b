package sip

import (
	"net/mail"
	"net/url"
	"strconv"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Rule is one rule that messages have to keep.
type Rule struct {
	// ID is short and stable; Fault.Rule and Problem.Rule hold it.
	ID string
	// Title says the rule in a few words.
	Title string
	// Clause names the specification and the section in it.
	Clause string
	// Severity is Must, Should or Note.
	Severity string
}

// The severities of rules. The draft uses only the word must; what it demands in other words,
// and in its document types, is a Must too.
const (
	Must   = "must"
	Should = "should"
	Note   = "note"
)

// The ids of the rules.
const (
	ruleDocument  = "sip-document"
	ruleEnvelope  = "sip-envelope"
	ruleHeader    = "sip-header"
	ruleElement   = "sip-element"
	ruleText      = "sip-text"
	ruleAttribute = "sip-attribute"
	ruleValue     = "sip-value"
	ruleStyle     = "sip-style"
	ruleRecord    = "sip-record"
	ruleEmpty     = "sip-empty"

	ruleFormat    = "sip-format"
	ruleRecipient = "sip-recipient"
	ruleEmail     = "sip-email"
)

// Rules returns the table of all rules, in a fixed order. A message that breaks one of
// the first ten is refused by ReadMessage with a *Fault; Message.Check finds the others.
func Rules() []Rule {
	const draft = "SIP draft 0.1, "
	return []Rule{
		{ruleDocument, "a message is whole, well-formed XML without a document type and processing instructions", "SOAP 1.1 3; XML 1.0 2.1", Must},
		{ruleEnvelope, "a message is a SOAP 1.1 Envelope, with one document in its Body", draft + "SOAP binding; SOAP 1.1 4", Must},
		{ruleHeader, "no header has to be understood that the protocol does not have", "SOAP 1.1 4.2.3", Must},
		{ruleElement, "elements are in the namespace of the protocol, in their order, and all that are mandatory are there", draft + "Document formats", Must},
		{ruleText, "an element has only elements, or only text, as its type says", draft + "Document formats", Must},
		{ruleAttribute, "elements have no attributes without a namespace", draft + "Document formats", Must},
		{ruleValue, "an assigned-identifier and a format are not empty", draft + "Document formats", Must},
		{ruleStyle, "a notification-style is synchronous or asynchronous", draft + "ingest-properties", Must},
		{ruleRecord, "a record is exactly one element", draft + "ingest-request", Must},
		{ruleEmpty, "provisionally-accepted is empty, without even white space", draft + "ingest-disposition; XML 1.0 3", Must},
		{ruleFormat, "a format is the URL of an XML schema", draft + "ingest-properties", Must},
		{ruleRecipient, "a notification-recipient is a URL of http or smtp", draft + "SOAP binding", Must},
		{ruleEmail, "an email-address has the form of one", "RFC 5322 3.4.1", Note},
	}
}

// Problem is one place where a message breaks a rule and can be read all the same.
type Problem struct {
	Rule string
	// Path has the names of the elements, as Fault.Path has.
	Path            string
	Line, Column    int // from 1; 0 when the place is not known
	Found, Expected string
}

// Check calls report with each place where the message breaks a rule that ReadMessage
// tolerates. places are those that ReadMessage has filled; nil is allowed.
func (m *Message) Check(places Places, report func(Problem)) {
	broken := func(rule, path string, at Place, found, expected string) {
		report(Problem{Rule: rule, Path: path, Line: at.Line, Column: at.Column, Found: found, Expected: expected})
	}
	source := func(s *Source, document string) {
		if s == nil || s.Submitter == nil {
			return
		}
		if _, err := mail.ParseAddress(s.Submitter.EmailAddress); err != nil {
			path := document + "/source/submitter/email-address"
			broken(ruleEmail, path, places[path], strconv.Quote(strictxml.Clip(s.Submitter.EmailAddress)), "an address such as name@example.org")
		}
	}
	switch m.Kind {
	case KindProperties:
		const path = "ingest-properties/formats/format"
		for i, format := range m.Properties.Formats {
			if u, err := url.Parse(format); err != nil || !u.IsAbs() {
				var at Place
				if i == 0 { // places have only the first element of a path
					at = places[path]
				}
				broken(ruleFormat, path, at, strconv.Quote(strictxml.Clip(format)), "the URL of an XML schema")
			}
		}
	case KindRequest:
		source(m.Request.Source, "ingest-request")
		if m.Request.Recipient != "" {
			u, err := url.Parse(m.Request.Recipient)
			if err != nil || u.Scheme != "http" && u.Scheme != "smtp" {
				const path = "ingest-request/notification-recipient"
				broken(ruleRecipient, path, places[path], strconv.Quote(strictxml.Clip(m.Request.Recipient)), "a URL of http or smtp")
			}
		}
	case KindDisposition:
		source(m.Disposition.Source, "ingest-disposition")
	}
}
