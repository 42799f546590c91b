package oaipmh

import (
	"encoding/xml"
	"fmt"
	"time"
)

// The namespaces that matter. Prefixes never do.
const (
	// Namespace is that of the protocol's answers (3.2).
	Namespace = "http://www.openarchives.org/OAI/2.0/"
	// DCNamespace is that of oai_dc, the format that every repository has (2.5).
	DCNamespace = "http://www.openarchives.org/OAI/2.0/oai_dc/"
	// ProvenanceNamespace is that of the about container that says where a record was
	// harvested from (guideline on provenance).
	ProvenanceNamespace = "http://www.openarchives.org/OAI/2.0/provenance"
)

// DC is the metadataPrefix of unqualified Dublin Core, which every repository has (2.5).
const DC = "oai_dc"

// Verb is one of the six requests of the protocol (4).
type Verb string

// The verbs.
const (
	Identify            Verb = "Identify"            // 4.2
	ListMetadataFormats Verb = "ListMetadataFormats" // 4.4
	ListSets            Verb = "ListSets"            // 4.6
	GetRecord           Verb = "GetRecord"           // 4.1
	ListIdentifiers     Verb = "ListIdentifiers"     // 4.3
	ListRecords         Verb = "ListRecords"         // 4.5
)

// Granularity is how exact the datestamps of a repository are (2.7.1, 3.3). The zero
// value is Day.
type Granularity uint8

// The granularities.
const (
	Day    Granularity = iota // YYYY-MM-DD
	Second                    // YYYY-MM-DDThh:mm:ssZ
)

// String returns the form that Identify states.
func (g Granularity) String() string {
	if g == Second {
		return "YYYY-MM-DDThh:mm:ssZ"
	}
	return "YYYY-MM-DD"
}

// Format returns a time in UTC as a datestamp of this granularity.
func (g Granularity) Format(t time.Time) string {
	if g == Second {
		return t.UTC().Format("2006-01-02T15:04:05Z")
	}
	return t.UTC().Format(time.DateOnly)
}

// DeletedRecords says what a repository keeps of deleted records (2.5.1).
type DeletedRecords string

// What a repository keeps of deleted records.
const (
	DeletedNo         DeletedRecords = "no"
	DeletedTransient  DeletedRecords = "transient"
	DeletedPersistent DeletedRecords = "persistent"
)

// Identity is a repository's description of itself (4.2, Identify).
type Identity struct {
	Name    string
	BaseURL string
	// ProtocolVersion is 2.0; a Writer states that whatever stands here.
	ProtocolVersion string
	AdminEmails     []string
	// Earliest is the lower limit of all datestamps, in UTC.
	Earliest    time.Time
	Deleted     DeletedRecords
	Granularity Granularity
	Compression []string
	// Descriptions are XML elements, each as a document of its own.
	Descriptions [][]byte
}

// Set is a set of records (2.6).
type Set struct {
	Spec string // setSpec: names of a path, with colons between them
	Name string
	// Descriptions are XML elements, each as a document of its own.
	Descriptions [][]byte
}

// Format is a format in which records are disseminated (3.4).
type Format struct {
	Prefix    string // metadataPrefix
	Schema    string // URL of the XML Schema
	Namespace string
}

// Header is the header of a record (2.5): what the repository says of the item in any
// format.
type Header struct {
	Identifier string // byte for byte
	// Datestamp is when the record was created, changed or deleted, in UTC; midnight
	// where Day.
	Datestamp time.Time
	// Day: the datestamp is a day without a time.
	Day     bool
	Sets    []string // setSpecs
	Deleted bool
}

// Record is a record in one format (2.5), or a header alone, as ListIdentifiers has it.
type Record struct {
	Header
	// Metadata is the one element inside of metadata as a document of its own, byte for
	// byte, with the namespaces that are in scope declared on it; nil in a header alone,
	// and of what is deleted.
	Metadata []byte
	// Root is the name of Metadata's element.
	Root xml.Name
	// Provenance says where the repository has harvested the record from; nil when it
	// does not say. It is the first one of the about containers.
	Provenance *Provenance
	// About are the other about containers, each the element inside, as a document of its
	// own.
	About [][]byte
	// Line and Column are where the record starts, from 1; 0 in one that was not read.
	Line, Column int
	// Mended: characters of the record that XML cannot hold were replaced by U+FFFD
	// (O8).
	Mended bool
}

// Provenance says where a record was harvested from (guideline on provenance,
// originDescription).
type Provenance struct {
	BaseURL, Identifier string
	// Datestamp is that of the record there, as it is written: a day or a second.
	Datestamp         string
	MetadataNamespace string
	// Harvested is when it was harvested, in UTC; zero when not stated.
	Harvested time.Time
	// Altered: the metadata is not what the origin has.
	Altered bool
	// Origin is where the repository BaseURL has harvested it from; nil when it did not
	// say.
	Origin *Provenance
}

// First returns the first repository in the chain of origins.
func (p *Provenance) First() *Provenance {
	for p.Origin != nil {
		p = p.Origin
	}
	return p
}

// Token is the resumptionToken of an incomplete list (3.5).
type Token struct {
	// Value is for the next request, byte for byte; "" at the end of the list.
	Value string
	// Size is the completeListSize and Cursor how many records came before; -1 when not
	// stated. They are hints.
	Size, Cursor int64
	// Expires is when the token may expire, in UTC; zero when not stated.
	Expires time.Time
}

// Request is a request (3.1, 4). Zero fields are not sent.
type Request struct {
	Verb       Verb
	Identifier string
	Prefix     string // metadataPrefix
	Set        string // setSpec
	// From and Until select by datestamp, both inclusive, in UTC and in Granularity.
	From, Until time.Time
	Granularity Granularity
	Token       string // exclusive: nothing but the verb goes with it
}

// Code is the code of an error that a repository answers with (3.6).
type Code string

// The codes.
const (
	BadArgument             Code = "badArgument"
	BadResumptionToken      Code = "badResumptionToken"
	BadVerb                 Code = "badVerb"
	CannotDisseminateFormat Code = "cannotDisseminateFormat"
	IDDoesNotExist          Code = "idDoesNotExist"
	NoRecordsMatch          Code = "noRecordsMatch"
	NoMetadataFormats       Code = "noMetadataFormats"
	NoSetHierarchy          Code = "noSetHierarchy"
)

// Error is an error that a repository answers with (3.6).
type Error struct {
	Code Code
	// Text says what is wrong, for people.
	Text string
	// URL is the request that was answered so; "" when it was not sent.
	URL string
}

// Error returns URL, code and text.
func (e *Error) Error() string {
	s := string(e.Code)
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.URL == "" {
		return s
	}
	return fmt.Sprintf("%s: the repository answers %s", e.URL, s)
}
