package oaipmh

import (
	"fmt"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Rule is one rule that answers or those who read them have to keep.
type Rule struct {
	// ID is short and stable; Problem.Rule and RecordError.Rule hold it.
	ID string
	// Title states the rule in a few words.
	Title string
	// Clause names the section of the specification.
	Clause string
	// Severity is Must, Should or Note.
	Severity string
	// Strict: only a Reader with ReadOptions.Strict checks it, as no harvester depends
	// on it.
	Strict bool
	// Several: it is about how answers fit together, so that no single one shows it.
	Several bool
}

// The severities of rules. A rule that this implementation has added is a Note.
const (
	Must   = "must"
	Should = "should"
	Note   = "note"
)

// The ids of the rules.
const (
	ruleDocument     = "oai-document"
	ruleCharacters   = "oai-characters"
	ruleCharset      = "oai-charset"
	ruleTrailing     = "oai-trailing"
	ruleResponseDate = "oai-response-date"
	ruleRequest      = "oai-request"
	ruleErrors       = "oai-errors"
	ruleOrder        = "oai-order"
	ruleEmpty        = "oai-empty"
	ruleIdentifier   = "oai-identifier"
	ruleHeader       = "oai-header"
	ruleDatestamp    = "oai-datestamp"
	ruleMetadata     = "oai-metadata"
	ruleDeleted      = "oai-deleted"
	ruleAbout        = "oai-about"
	ruleProvenance   = "oai-provenance"
	ruleSetSpec      = "oai-set-spec"
	ruleSchema       = "oai-schema-location"
	ruleToken        = "oai-token"
	ruleIdentify     = "oai-identify"
	ruleFormats      = "oai-formats"
	ruleSets         = "oai-sets"
	ruleTwice        = "oai-twice"

	ruleGranularity = "oai-granularity"
	ruleRange       = "oai-range"
	ruleFuture      = "oai-future"
	ruleSize        = "oai-size"
	ruleLost        = "oai-token-lost"
	ruleFrom        = "oai-from"
	ruleStatus      = "oai-status"
	ruleRedirect    = "oai-redirect"
	ruleEarliest    = "oai-earliest"
	ruleBaseURL     = "oai-base-url"

	ruleErrorCodes = "oai-error-codes"
	rulePost       = "oai-post"
	ruleMediaType  = "oai-media-type"
	ruleSameLists  = "oai-same-lists"
	ruleLastToken  = "oai-last-token"
	ruleDC         = "oai-dc"
)

// Rules returns all rules.
func Rules() []Rule {
	return []Rule{
		{ID: ruleDocument, Title: "an answer is whole, well-formed XML without a document type, and its root is OAI-PMH", Clause: "3.2", Severity: Must},
		{ID: ruleCharacters, Title: "an answer has no character that XML 1.0 does not allow, raw or as a reference, and no undefined entity", Clause: "3.2; XML 1.0 2.2", Severity: Must},
		{ID: ruleCharset, Title: "an answer is in UTF-8, and what it says of its charset is true", Clause: "3.2; RFC 7303 3.2", Severity: Must},
		{ID: ruleTrailing, Title: "nothing follows the end tag of OAI-PMH", Clause: "3.2; XML 1.0 2.1", Severity: Must},
		{ID: ruleResponseDate, Title: "an answer has one responseDate, in UTC and in seconds", Clause: "3.2", Severity: Must},
		{ID: ruleRequest, Title: "an answer has one request, whose text is the base URL and whose attributes are the arguments", Clause: "3.2", Severity: Must},
		{ID: ruleErrors, Title: "an answer has errors, each with a code of the protocol, or one element named as the verb, and nothing else", Clause: "3.2, 3.6", Severity: Must},
		{ID: ruleOrder, Title: "the elements of an answer and of a record are in the order of the schema, each as often as it may be", Clause: "3.2", Severity: Must},
		{ID: ruleEmpty, Title: "a list has at least one entry; none is noRecordsMatch", Clause: "3.6, 4.3, 4.5", Severity: Must},
		{ID: ruleIdentifier, Title: "a header has one identifier, which is a URI", Clause: "2.4", Severity: Must},
		{ID: ruleHeader, Title: "a record has one header, and unless it is deleted metadata", Clause: "2.5", Severity: Must},
		{ID: ruleDatestamp, Title: "a header has one datestamp, YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ", Clause: "2.5, 3.3", Severity: Must},
		{ID: ruleMetadata, Title: "metadata has exactly one element, and no text beside it", Clause: "2.5", Severity: Must},
		{ID: ruleDeleted, Title: "a deleted record has neither metadata nor about, and status says deleted or nothing", Clause: "2.5, 2.5.1", Severity: Must},
		{ID: ruleAbout, Title: "about has exactly one element", Clause: "2.5", Severity: Must},
		{ID: ruleProvenance, Title: "provenance is as its schema says", Clause: "guideline on provenance", Severity: Note},
		{ID: ruleSetSpec, Title: "a setSpec is names of letters, digits and -_.!~*'() with colons between them", Clause: "2.6; OAI-PMH.xsd", Severity: Must},
		{ID: ruleToken, Title: "a resumptionToken has a value until the list ends, its own one in each answer, and numbers and a date as attributes", Clause: "3.5", Severity: Must},
		{ID: ruleIdentify, Title: "Identify says repositoryName, baseURL, protocolVersion 2.0, adminEmail, earliestDatestamp, deletedRecord and granularity", Clause: "4.2", Severity: Must},
		{ID: ruleFormats, Title: "a format has metadataPrefix, schema and metadataNamespace", Clause: "4.4", Severity: Must},
		{ID: ruleSets, Title: "a set has setSpec and setName", Clause: "4.6", Severity: Must},

		// Rules that only a strict Reader checks.
		{ID: ruleSchema, Title: "the root, and the metadata of oai_dc, have an xsi:schemaLocation that names the schema of their namespace", Clause: "3.2, 3.4", Severity: Must, Strict: true},
		{ID: ruleTwice, Title: "no identifier is twice in a list", Clause: "2.5, 3.5", Severity: Note, Strict: true},

		// Rules that only a Walk can check.
		{ID: ruleGranularity, Title: "datestamps have the granularity that Identify says, and from and until may have it", Clause: "2.7.1, 3.3", Severity: Must, Several: true},
		{ID: ruleRange, Title: "a list has records with datestamps from from to until, and no others", Clause: "2.7.1", Severity: Must, Several: true},
		{ID: ruleFuture, Title: "no datestamp is later than the responseDate", Clause: "2.7.1", Severity: Note, Several: true},
		{ID: ruleSize, Title: "a list has as many records as completeListSize says", Clause: "3.5", Severity: Note, Several: true},
		{ID: ruleLost, Title: "a resumptionToken can be used, and used again, until it expires", Clause: "3.5", Severity: Must, Several: true},
		{ID: ruleFrom, Title: "the clock of a repository does not go back", Clause: "2.7.1", Severity: Note, Several: true},
		{ID: ruleStatus, Title: "errors of the protocol come with the status 200", Clause: "3.1.2.2, 3.6", Severity: Should, Several: true},
		{ID: ruleRedirect, Title: "a repository answers at its base URL", Clause: "3.1.2.2", Severity: Note, Several: true},
		{ID: ruleEarliest, Title: "no datestamp is earlier than earliestDatestamp, which does not fall", Clause: "4.2", Severity: Must, Several: true},
		{ID: ruleBaseURL, Title: "baseURL is the address that answers", Clause: "4.2", Severity: Must, Several: true},

		// Rules for requests that no harvest makes.
		{ID: ruleErrorCodes, Title: "a request that is wrong is answered with the error for it, and one that is right with no error", Clause: "3.6", Severity: Must, Several: true},
		{ID: rulePost, Title: "a repository answers POST as it answers GET", Clause: "3.1.1", Severity: Must, Several: true},
		{ID: ruleMediaType, Title: "the Content-Type of an answer is text/xml", Clause: "3.1.2.1", Severity: Must, Several: true},
		{ID: ruleSameLists, Title: "ListIdentifiers has the headers of the records that ListRecords has", Clause: "4.3", Severity: Must, Several: true},
		{ID: ruleLastToken, Title: "the last answer of a list in several has an empty resumptionToken", Clause: "3.5", Severity: Must, Several: true},
		{ID: ruleDC, Title: "a repository has the format oai_dc", Clause: "2.5", Severity: Must, Several: true},
	}
}

// Problem is one place where an answer breaks a rule.
type Problem struct {
	Rule         string
	URL          string
	Line, Column int // from 1; 0 when the place is the answer as a whole
	// Record is the identifier of the record, "" when it is about the answer.
	Record          string
	Found, Expected string
}

// String returns the problem in one line.
func (p Problem) String() string {
	at := p.URL
	if p.Line > 0 || at == "" {
		at = strictxml.Place(p.URL, p.Line, p.Column)
	}
	record := ""
	if p.Record != "" {
		record = fmt.Sprintf(" record %q:", clip(p.Record))
	}
	return fmt.Sprintf("%s: %s:%s found %s, expected %s", at, p.Rule, record, p.Found, p.Expected)
}
