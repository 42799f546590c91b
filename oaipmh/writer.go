package oaipmh

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Writer writes one answer of a repository (3.2), element by element, in memory that
// does not grow with it. It is used by one goroutine at a time. The first error of the
// underlying writer, and a broken rule, end it: every later call returns the same.
//
// It refuses what OAI-PMH.xsd does not allow, with a *RuleError. Text is escaped, and
// what XML 1.0 cannot hold at all becomes U+FFFD: every answer is well-formed whatever it
// is made of.
type Writer struct {
	out      *strictxml.Output
	verb     Verb
	begun    bool // the element of the verb is open, or was the answer's only one
	elements int  // in the element of the verb
	ended    bool // nothing may follow but Close
	err      error
}

// RuleError is a call of a Writer that would break the protocol.
type RuleError struct {
	Clause string // of the specification
	Place  string // such as a record with its identifier
	Broken string
}

// Error returns clause, place and what is broken.
func (e *RuleError) Error() string {
	return fmt.Sprintf("oaipmh: %s: %s (%s)", e.Place, e.Broken, e.Clause)
}

func breaks(clause, place, format string, args ...any) *RuleError {
	return &RuleError{clause, place, fmt.Sprintf(format, args...)}
}

const (
	schemaInstance = "http://www.w3.org/2001/XMLSchema-instance"
	answerHead     = `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<OAI-PMH xmlns="` + Namespace + `" xmlns:xsi="` + schemaInstance +
		`" xsi:schemaLocation="` + Namespace + " " + Namespace + `OAI-PMH.xsd">` + "\n"
	metadataStart = "<metadata>"
	// A record in which names without a prefix belong to no namespace must not inherit
	// ours. It stays as it is, byte for byte, where its parent has a prefix.
	metadataStartBare = `<oai:metadata xmlns:oai="` + Namespace + `" xmlns="">`
)

// NewWriter begins an answer. date is its responseDate, base the base URL, and q the
// request. q is nil where the request is not to be repeated, since it was badVerb or
// badArgument (3.6); then nothing but Errors may follow. An Identifier, Prefix or Set
// that is not valid is not repeated. The bytes go to w in pieces of some 32 KiB; w is
// never closed.
func NewWriter(w io.Writer, date time.Time, base string, q *Request) *Writer {
	wr := &Writer{out: strictxml.NewOutput(w)}
	if date.IsZero() || !dated(date) {
		wr.err = breaks("3.2", "answer", "responseDate is missing or has no year from 1 to 9999")
		return wr
	}
	if !strictxml.IsIRI(base) {
		wr.err = breaks("3.2", "answer", "base URL %q is no URL", strictxml.Clip(base))
		return wr
	}
	b := append(wr.out.Buf, answerHead...)
	b = append(b, " <responseDate>"+Second.Format(date)+"</responseDate>\n <request"...)
	if q != nil {
		wr.verb = q.Verb
		b = strictxml.AppendAttr(b, ` verb="`, string(q.Verb))
		if CanBeIdentifier(q.Identifier) {
			b = strictxml.AppendAttr(b, ` identifier="`, q.Identifier)
		}
		if CanBePrefix(q.Prefix) {
			b = strictxml.AppendAttr(b, ` metadataPrefix="`, q.Prefix)
		}
		if !q.From.IsZero() {
			b = strictxml.AppendAttr(b, ` from="`, q.Granularity.Format(q.From))
		}
		if !q.Until.IsZero() {
			b = strictxml.AppendAttr(b, ` until="`, q.Granularity.Format(q.Until))
		}
		if CanBeSet(q.Set) {
			b = strictxml.AppendAttr(b, ` set="`, q.Set)
		}
		b = strictxml.AppendAttr(b, ` resumptionToken="`, q.Token)
	}
	wr.out.Buf = append(strictxml.AppendEscaped(append(b, '>'), base), "</request>\n"...)
	return wr
}

// Sent reports whether bytes of the answer have reached the underlying writer.
func (w *Writer) Sent() bool { return w.out.Passed() > 0 }

// Elements counts the records, headers, sets or formats so far.
func (w *Writer) Elements() int { return w.elements }

// ready returns an error when no element of the verbs may be written now.
func (w *Writer) ready(verbs ...Verb) error {
	if w.err != nil {
		return w.err
	}
	for _, v := range verbs {
		if w.verb == v && !w.ended {
			if !w.begun {
				w.begun = true
				w.out.Buf = append(append(append(w.out.Buf, " <"...), v...), ">\n"...)
			}
			return nil
		}
	}
	w.err = breaks("3.2", "answer", "it is one to %q, and cannot hold this here", string(w.verb))
	return w.err
}

// end keeps the first error, and sends the bytes gathered once they are enough.
func (w *Writer) end(err *RuleError) error {
	if err != nil {
		w.err = err
		return err
	}
	if w.out.Full() {
		w.err = w.out.Flush()
	}
	return w.err
}

// Errors writes errors, which are then the whole answer (3.6).
func (w *Writer) Errors(errs ...*Error) error {
	switch {
	case w.err != nil:
		return w.err
	case w.begun, len(errs) == 0:
		return w.end(breaks("3.6", "answer", "errors stand alone, and there is at least one"))
	}
	w.begun, w.ended, w.verb = true, true, ""
	for _, e := range errs {
		if !e.Code.known() {
			return w.end(breaks("3.6", "error", "code %q", strictxml.Clip(string(e.Code))))
		}
		w.out.Buf = append(append(append(w.out.Buf, ` <error code="`...), e.Code...), `">`...)
		w.out.Buf = append(strictxml.AppendEscaped(w.out.Buf, e.Text), "</error>\n"...)
	}
	w.elements = len(errs)
	return w.end(nil)
}

func (c Code) known() bool {
	switch c {
	case BadArgument, BadResumptionToken, BadVerb, CannotDisseminateFormat, IDDoesNotExist, NoRecordsMatch, NoMetadataFormats, NoSetHierarchy:
		return true
	}
	return false
}

// Identity writes the repository's description of itself (4.2).
func (w *Writer) Identity(id *Identity) error {
	if err := w.ready(Identify); err != nil {
		return err
	}
	if err := id.broken(); err != nil {
		return w.end(err)
	}
	b := element(w.out.Buf, "  <repositoryName>", id.Name, "</repositoryName>\n")
	b = element(b, "  <baseURL>", id.BaseURL, "</baseURL>\n")
	b = append(b, "  <protocolVersion>2.0</protocolVersion>\n"...)
	for _, mail := range id.AdminEmails {
		b = element(b, "  <adminEmail>", mail, "</adminEmail>\n")
	}
	b = element(b, "  <earliestDatestamp>", id.Granularity.Format(id.Earliest), "</earliestDatestamp>\n")
	b = element(b, "  <deletedRecord>", string(id.Deleted), "</deletedRecord>\n")
	b = element(b, "  <granularity>", id.Granularity.String(), "</granularity>\n")
	for _, coding := range id.Compression {
		b = element(b, "  <compression>", coding, "</compression>\n")
	}
	w.out.Buf = b
	w.elements, w.ended = 1, true
	return w.foreign("Identify", "  <description>", id.Descriptions, "</description>\n")
}

func (id *Identity) broken() *RuleError {
	switch {
	case !strictxml.IsIRI(id.BaseURL):
		return breaks("4.2", "Identify", "baseURL %q is no URL", strictxml.Clip(id.BaseURL))
	case len(id.AdminEmails) == 0:
		return breaks("4.2", "Identify", "there is no adminEmail")
	case id.Earliest.IsZero() || !dated(id.Earliest):
		return breaks("4.2", "Identify", "earliestDatestamp is missing or has no year from 1 to 9999")
	}
	for _, mail := range id.AdminEmails {
		if !CanBeAdminEmail(mail) {
			return breaks("4.2", "Identify", "adminEmail %q is no address", strictxml.Clip(mail))
		}
	}
	switch id.Deleted {
	case DeletedNo, DeletedTransient, DeletedPersistent:
		return nil
	}
	return breaks("2.5.1", "Identify", "deletedRecord %q", strictxml.Clip(string(id.Deleted)))
}

// Format writes a format of the repository or of an item (4.4).
func (w *Writer) Format(f *Format) error {
	if err := w.ready(ListMetadataFormats); err != nil {
		return err
	}
	place := "format " + strictxml.Clip(f.Prefix)
	switch {
	case !CanBePrefix(f.Prefix):
		return w.end(breaks("3.4", place, "metadataPrefix has a character that is not allowed, or none at all"))
	case !strictxml.IsIRI(f.Namespace):
		return w.end(breaks("3.4", place, "metadataNamespace %q is no URI", strictxml.Clip(f.Namespace)))
	case f.Schema != "" && !strictxml.IsIRI(f.Schema):
		return w.end(breaks("3.4", place, "schema %q is no URL", strictxml.Clip(f.Schema)))
	}
	b := element(w.out.Buf, "  <metadataFormat><metadataPrefix>", f.Prefix, "</metadataPrefix>")
	b = element(b, "<schema>", f.Schema, "</schema>")
	w.out.Buf = element(b, "<metadataNamespace>", f.Namespace, "</metadataNamespace></metadataFormat>\n")
	w.elements++
	return w.end(nil)
}

// Set writes a set (4.6).
func (w *Writer) Set(s *Set) error {
	if err := w.ready(ListSets); err != nil {
		return err
	}
	place := "set " + strictxml.Clip(s.Spec)
	if !CanBeSet(s.Spec) {
		return w.end(breaks("2.6", place, "setSpec has a character that is not allowed, or an empty part"))
	}
	b := element(w.out.Buf, "  <set><setSpec>", s.Spec, "</setSpec>")
	w.out.Buf = element(b, "<setName>", s.Name, "</setName>")
	if err := w.foreign(place, "<setDescription>", s.Descriptions, "</setDescription>"); err != nil {
		return err
	}
	w.out.Buf = append(w.out.Buf, "</set>\n"...)
	w.elements++
	return w.end(nil)
}

// Record writes a record (2.5), and in an answer to ListIdentifiers its header alone.
// A Metadata that comes with its Root is one that a Reader or ReadMetadata has returned,
// and is written as it is; without a Root it is read first.
func (w *Writer) Record(r *Record) error {
	if err := w.ready(GetRecord, ListRecords, ListIdentifiers); err != nil {
		return err
	}
	place := "record " + strictxml.Clip(r.Identifier)
	if w.verb == GetRecord && w.elements > 0 {
		return w.end(breaks("4.1", place, "GetRecord answers with one record"))
	}
	if err := r.broken(place); err != nil {
		return w.end(err)
	}
	if w.verb == ListIdentifiers {
		w.out.Buf = append(appendHeader(append(w.out.Buf, "  "...), &r.Header), '\n')
		w.elements++
		return w.end(nil)
	}
	metadata, root := r.Metadata, r.Root
	switch {
	case r.Deleted && (metadata != nil || r.Provenance != nil || len(r.About) > 0):
		return w.end(breaks("2.5.1", place, "a deleted record with more than its header"))
	case !r.Deleted && len(metadata) == 0:
		return w.end(breaks("2.5", place, "there is no metadata, and it is not deleted"))
	case !r.Deleted && root.Local == "":
		var err error
		if metadata, root, err = ReadMetadata(metadata, ""); err != nil {
			return w.end(breaks("2.5", place, "metadata: %v", err))
		}
	}
	if !r.Deleted && (root.Space == "" || root.Space == Namespace) {
		return w.end(breaks("3.4", place, "the namespace of metadata's element %q is %q: want one of its own", strictxml.Clip(root.Local), root.Space))
	}
	w.out.Buf = appendHeader(append(w.out.Buf, "  <record>"...), &r.Header)
	if !r.Deleted {
		start, end := metadataStart, "</metadata>"
		if inheritsDefault(metadata) {
			start, end = metadataStartBare, "</oai:metadata>"
		}
		if err := w.raw(start, metadata, end); err != nil {
			return err
		}
	}
	if r.Provenance != nil {
		w.out.Buf = append(appendOrigin(append(w.out.Buf, "<about>"+provenanceStart...), r.Provenance), "</provenance></about>"...)
	}
	if err := w.foreign(place, "<about>", r.About, "</about>"); err != nil {
		return err
	}
	w.out.Buf = append(w.out.Buf, "</record>\n"...)
	w.elements++
	return w.end(nil)
}

func (h *Header) broken(place string) *RuleError {
	switch {
	case !CanBeIdentifier(h.Identifier):
		return breaks("2.4", place, "identifier is no URI")
	case h.Datestamp.IsZero() || !dated(h.Datestamp):
		return breaks("2.5", place, "datestamp is missing or has no year from 1 to 9999")
	}
	for _, spec := range h.Sets {
		if !CanBeSet(spec) {
			return breaks("2.6", place, "setSpec %q", strictxml.Clip(spec))
		}
	}
	return nil
}

func appendHeader(b []byte, h *Header) []byte {
	b = append(b, "<header"...)
	if h.Deleted {
		b = append(b, ` status="deleted"`...)
	}
	b = element(append(b, '>'), "<identifier>", h.Identifier, "</identifier><datestamp>")
	g := Second
	if h.Day {
		g = Day
	}
	b = append(append(b, g.Format(h.Datestamp)...), "</datestamp>"...)
	for _, spec := range h.Sets {
		b = element(b, "<setSpec>", spec, "</setSpec>")
	}
	return append(b, "</header>"...)
}

const provenanceStart = `<provenance xmlns="` + ProvenanceNamespace + `" xsi:schemaLocation="` + ProvenanceNamespace + " " + ProvenanceNamespace + `.xsd">`

// appendOrigin appends an originDescription with those inside of it (guideline on
// provenance).
func appendOrigin(b []byte, p *Provenance) []byte {
	b = append(b, "<originDescription"...)
	if !p.Harvested.IsZero() {
		b = strictxml.AppendAttr(b, ` harvestDate="`, Second.Format(p.Harvested))
	}
	b = strictxml.AppendAttr(b, ` altered="`, strconv.FormatBool(p.Altered))
	b = element(b, "><baseURL>", p.BaseURL, "</baseURL>")
	b = element(b, "<identifier>", p.Identifier, "</identifier>")
	b = element(b, "<datestamp>", p.Datestamp, "</datestamp>")
	b = element(b, "<metadataNamespace>", p.MetadataNamespace, "</metadataNamespace>")
	if p.Origin != nil {
		b = appendOrigin(b, p.Origin)
	}
	return append(b, "</originDescription>"...)
}

// foreign writes foreign XML elements, each between start and end.
func (w *Writer) foreign(place, start string, docs [][]byte, end string) error {
	for _, doc := range docs {
		doc, root, err := ReadMetadata(doc, "")
		if err != nil {
			return w.end(breaks("3.2", place, "%v", err))
		}
		if root.Space == "" || root.Space == Namespace || inheritsDefault(doc) {
			return w.end(breaks("3.2", place, "element %q is not in a namespace of its own", strictxml.Clip(root.Local)))
		}
		if err := w.raw(start, doc, end); err != nil {
			return err
		}
	}
	return w.end(nil)
}

// raw writes a document without a copy of a long one.
func (w *Writer) raw(start string, doc []byte, end string) error {
	w.out.Buf = append(w.out.Buf, start...)
	for len(doc) > strictxml.PieceSize {
		w.out.Buf = append(w.out.Buf, doc[:strictxml.PieceSize]...)
		if doc = doc[strictxml.PieceSize:]; w.out.Full() {
			if w.err = w.out.Flush(); w.err != nil {
				return w.err
			}
		}
	}
	w.out.Buf = append(append(w.out.Buf, doc...), end...)
	return nil
}

// Token ends a list with its resumptionToken (3.5). One without a Value ends the last
// answer of a list that came in several.
func (w *Writer) Token(t *Token) error {
	if err := w.ready(ListRecords, ListIdentifiers, ListSets); err != nil {
		return err
	}
	b := append(w.out.Buf, "  <resumptionToken"...)
	if !t.Expires.IsZero() {
		b = strictxml.AppendAttr(b, ` expirationDate="`, Second.Format(t.Expires))
	}
	if t.Size > 0 {
		b = strictxml.AppendAttr(b, ` completeListSize="`, strconv.FormatInt(t.Size, 10))
	}
	if t.Cursor >= 0 {
		b = strictxml.AppendAttr(b, ` cursor="`, strconv.FormatInt(t.Cursor, 10))
	}
	w.out.Buf = element(append(b, '>'), "", t.Value, "</resumptionToken>\n")
	w.ended = true
	return w.end(nil)
}

var errWriterClosed = errors.New("oaipmh: the answer is closed")

// Close ends the answer and passes on what is left of it. One without an element is
// refused (3.2).
func (w *Writer) Close() error {
	switch {
	case w.err != nil:
		return w.err
	case w.elements == 0:
		return w.end(breaks("3.2", "answer", "there is nothing in it"))
	}
	if w.verb != "" {
		w.out.Buf = append(append(append(w.out.Buf, " </"...), w.verb...), ">\n"...)
	}
	w.out.Buf = append(w.out.Buf, "</OAI-PMH>\n"...)
	if w.err = w.out.Flush(); w.err != nil {
		return w.err
	}
	w.err = errWriterClosed
	return nil
}

func element(b []byte, start, text, end string) []byte {
	return append(strictxml.AppendEscaped(append(b, start...), text), end...)
}

// dated reports whether a time can be written as a datestamp.
func dated(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 1 && y <= 9999
}

// The patterns of OAI-PMH.xsd.
var (
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9\-_.!~*'()]+$`)
	setPattern    = regexp.MustCompile(`^[A-Za-z0-9\-_.!~*'()]+(:[A-Za-z0-9\-_.!~*'()]+)*$`)
	emailPattern  = regexp.MustCompile(`^\S+@(\S+\.)+\S+$`)
)

// CanBeIdentifier reports whether s has the form of an identifier, an absolute URI (2.4).
func CanBeIdentifier(s string) bool { return strictxml.IsIRI(s) }

// CanBePrefix reports whether s has the form of a metadataPrefix (3.4).
func CanBePrefix(s string) bool { return prefixPattern.MatchString(s) }

// CanBeSet reports whether s has the form of a setSpec (2.6).
func CanBeSet(s string) bool { return setPattern.MatchString(s) }

// CanBeAdminEmail reports whether s has the form of an adminEmail (4.2).
func CanBeAdminEmail(s string) bool { return emailPattern.MatchString(s) }

// ReadMetadata reads an XML document whose media type is contentType, "" if it is not
// known, and returns its root element as a document in UTF-8, and the name of that
// element. If it was in UTF-8 they are the same bytes, and a part of doc. A byte order
// mark, the XML declaration, and comments and processing instructions outside of the root
// are left out. A document that is not well-formed, or has a document type, cannot be
// metadata: the error is, or wraps, a *DocumentError.
func ReadMetadata(doc []byte, contentType string) ([]byte, xml.Name, error) {
	return new(MetadataReader).Read(doc, contentType)
}

// MetadataReader reads many documents as [ReadMetadata] does, one after the other, with
// the same memory. Its zero value is ready.
type MetadataReader struct{ scan strictxml.Scanner }

// Read is ReadMetadata.
func (r *MetadataReader) Read(doc []byte, contentType string) ([]byte, xml.Name, error) {
	s := &r.scan
	s.Reset(doc, strictxml.Options{ContentType: contentType, Want: "an XML document",
		Limits: strictxml.Limits{Document: int64(len(doc)) + 1, Text: len(doc) + 1}})
	if err := s.Next(); err != nil {
		return nil, xml.Name{}, documentError(err)
	}
	root, from := xml.Name{Space: s.Space, Local: s.Local}, s.Start
	s.Keep(from)
	if err := s.Skip(); err != nil {
		return nil, xml.Name{}, documentError(err)
	}
	to := s.Offset()
	if err := s.Next(); err != io.EOF { //nolint:errorlint // a wrapped one would be the reader's
		return nil, xml.Name{}, fmt.Errorf("after the root element: %w", documentError(err))
	}
	return s.Slice(from, to), root, nil
}

// inheritsDefault reports whether the element may have names without a prefix that
// belong to no namespace, and would come to be in that of what surrounds it. It looks at
// well-formed XML only, and may take what is inside of a comment or CDATA for a name.
func inheritsDefault(doc []byte) bool {
	if declaresDefault(doc) {
		return false
	}
	for {
		i := bytes.IndexByte(doc, '<')
		if i < 0 || i+1 >= len(doc) {
			return false
		}
		doc = doc[i+1:]
		if c := doc[0]; c == '/' || c == '!' || c == '?' {
			continue
		}
		if end := bytes.IndexAny(doc, ": \t\r\n/>"); end >= 0 && doc[end] != ':' {
			return true
		}
	}
}

// declaresDefault reports whether the first start tag declares the default namespace.
func declaresDefault(doc []byte) bool {
	for i := 1; i < len(doc) && doc[i] != '>'; i++ {
		switch c := doc[i]; c {
		case '"', '\'':
			i += 1 + bytes.IndexByte(doc[i+1:], c)
		case ' ', '\t', '\r', '\n':
			rest, found := bytes.CutPrefix(doc[i+1:], []byte("xmlns"))
			if rest = bytes.TrimLeft(rest, " \t\r\n"); found && len(rest) > 0 && rest[0] == '=' {
				return true
			}
		}
	}
	return false
}
