package oaipmh

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// ReadOptions is what a Reader needs besides the bytes of the answer. The zero value is
// valid.
type ReadOptions struct {
	// URL is the address that answered, which errors name.
	URL string
	// ContentType is the value of the header field, for its charset.
	ContentType string
	Limits      Limits
	// Strict checks also the rules that no harvester depends on.
	Strict bool
	// Lenient reads an answer that is not well-formed as it was meant, where that is
	// clear, and reports it. Characters that XML does not allow, raw or as references,
	// and bytes that are not of the charset become U+FFFD, an ampersand that begins no
	// reference stands for itself, what follows the root is left out, and a record that is
	// not well-formed beyond that is a *RecordError. What is well-formed is read in the
	// same way with it and without it.
	Lenient bool
	// Report is called with each place where the answer breaks a rule and can be
	// read all the same; nil is allowed. It is called from within Next.
	Report func(Problem)
}

// Answer is the content of an answer besides its records (3.2).
type Answer struct {
	// Verb is the element of the answer, "" before it was read, and of an error.
	Verb Verb
	// ResponseDate is when the answer was made, by the repository's clock, in UTC; zero
	// when it does not say.
	ResponseDate time.Time
	// BaseURL and Request are the request, as the repository repeats it.
	BaseURL string
	Request Request
	// Identity is the answer to Identify, Formats to ListMetadataFormats, Sets to
	// ListSets.
	Identity *Identity
	Formats  []Format
	Sets     []Set
	// Token is the resumptionToken; nil when the list has none, or it was not read yet.
	Token *Token
	// Mended counts the places that a lenient Reader has changed.
	Mended int
	// Misplaced counts the elements named record or header that were left out, since none may be
	// where they stand, and the error noRecordsMatch beside records or a token. What they are
	// about is not absent.
	Misplaced int

	movedTo string // the base URL that redirects have led to for good, "" when there were none
}

// Reader reads one answer, one record at a time. It holds one record in memory, never
// the answer. It is not safe for concurrent use.
type Reader struct {
	in     io.Reader
	o      ReadOptions
	scan   *strictxml.Scanner
	answer Answer
	errs   []error // errors that the repository answers with
	err    error   // what ended the reading

	headed bool // head was called
	begun  bool // the current token starts the next record
	inList bool // inside of ListRecords, ListIdentifiers or GetRecord
	closed bool // the root's end tag was read
	// recovered: a record that is not well-formed was passed over.
	recovered bool
	// from and to are the last record's place in the document.
	from, to int64
	prologue []byte // start tags of the root and the list, for Input
	epilogue string
	framed   int64 // how many bytes of prologue Input has given
	seen     counts

	// Scratch, and what was the same in the record before.
	specs   []byte
	ends    []int
	sets    []string
	strings map[string]string
}

// counts is what the rules need to know about the whole answer.
type counts struct {
	dates, requests, records int
	twice                    map[string]bool // identifiers, for a strict Reader
	earliestDay              bool            // earliestDatestamp is a day
	last                     int             // place of the last child of the root in the schema
}

// NewReader returns a reader of the answer in r. Nothing is read before Next or Answer
// is called.
func NewReader(r io.Reader, o ReadOptions) *Reader {
	return &Reader{in: r, o: o}
}

// Answer returns what was read of the answer so far: before the first call of Next all
// that comes before the first record, and everything once Next has returned io.EOF. It
// changes while Next reads.
func (r *Reader) Answer() *Answer {
	_ = r.head() // Next returns it
	if r.scan != nil {
		r.answer.Mended = r.scan.Mended()
	}
	return &r.answer
}

// Next returns the next record, or the next header of ListIdentifiers; the caller may
// keep it, but for Sets, which records share. A *RecordError stands for one record that
// cannot be taken; the reading goes on after it. A *DocumentError ends it: the answer
// is at fault. An *Error says that the repository has answered with an error, and
// nothing was at fault; several are joined. Any other error is one of the underlying
// reader and ends the reading too. io.EOF is returned only once every byte has been
// read, the root was closed and nothing but comments and white space followed.
func (r *Reader) Next() (*Record, error) {
	if err := r.head(); err != nil {
		return nil, err
	}
	if !r.begun {
		if r.err = documentError(r.advance()); r.err != nil {
			return nil, r.err
		}
	}
	r.begun = false
	rec, err := r.record()
	if _, bad := err.(*RecordError); err != nil && !bad { //nolint:errorlint // record returns it bare
		r.err = documentError(err)
		return nil, r.err
	}
	return rec, err
}

// Input returns the record that Next returned last, whole: a document of its own in
// UTF-8, which a Reader with the same URL reads in the same way. It is nil before the
// first record. The start tags of the root and the list stand around it, and may be far
// longer. Once a Reader has added far more bytes in this way than it has read, Input
// returns the record alone, without the namespaces of these tags.
func (r *Reader) Input() []byte {
	if r.to == 0 {
		return nil
	}
	before, after := r.prologue, r.epilogue
	if r.framed += int64(len(before)); r.framed > strictxml.FrameBudget(r.scan.Offset()) {
		before, after = nil, ""
	}
	return slices.Concat(before, r.scan.Slice(r.from, r.to), []byte(after))
}

// head reads up to the first record, or to the end of an answer that has none.
func (r *Reader) head() error {
	if r.err != nil || r.headed {
		return r.err
	}
	r.headed = true
	if r.err = r.start(); r.err == nil {
		r.err = r.advance()
	}
	r.err = documentError(r.err)
	return r.err
}

// start reads the root's start tag.
func (r *Reader) start() error {
	r.scan = strictxml.New(r.in, strictxml.Options{
		URL: r.o.URL, ContentType: r.o.ContentType, Limits: strictxml.Limits(r.o.Limits), Want: "an OAI-PMH answer",
		Namespaces: []string{Namespace, ProvenanceNamespace}, Report: r.notice, Mend: r.o.Lenient, UTF8: true,
	})
	s := r.scan
	if err := s.Next(); err != nil {
		return err
	}
	if s.Space != Namespace || s.Local != "OAI-PMH" {
		what := s.What()
		switch {
		case strings.Contains(s.Space, "openarchives.org/OAI/1."):
			what = "an answer of OAI-PMH 1"
		case s.Local == "OAI-PMH":
			what = fmt.Sprintf("<OAI-PMH> in namespace %q", clip(s.Space))
		}
		return s.Fail("%s; want an answer of OAI-PMH 2.0, with root {%s}OAI-PMH", what, Namespace)
	}
	if r.o.Strict {
		r.strictSchema(Namespace)
	}
	var err error
	r.prologue, r.epilogue, err = s.Frame()
	return err
}

// notice makes a Problem of a defect that the scanner has tolerated.
func (r *Reader) notice(n strictxml.Notice) {
	rule := ruleCharacters
	switch n.About {
	case strictxml.AboutCharset:
		rule = ruleCharset
	case strictxml.AboutBase:
		return // nothing is resolved against it
	}
	r.problem(Problem{Rule: rule, Line: n.Line, Column: n.Column, Found: n.Found, Expected: cmp.Or(n.Expected, "well-formed XML; what was meant is read")})
}

// advance reads the answer until the next record starts or the document has ended.
func (r *Reader) advance() error {
	s := r.scan
	s.Keep(-1)
	r.to = 0
	for {
		if err := s.Next(); err != nil {
			var fault *strictxml.DocumentError
			if r.o.Lenient && r.closed && errors.As(err, &fault) && fault.Cap == "" {
				r.problem(Problem{Rule: ruleTrailing, Line: fault.Line, Column: fault.Column, Found: fault.Reason, Expected: "the end; it is left out"})
				err = io.EOF
			}
			if errors.Is(err, io.EOF) {
				return r.finish()
			}
			return err
		}
		switch {
		case r.recovered && s.Kind == strictxml.Text && !blank(s.Data):
			return s.Fail("text behind a record that is not well-formed")
		case s.Kind == strictxml.EndTag:
			r.inList = r.inList && s.Depth() > 1
			r.closed = s.Depth() == 0
		case s.Kind != strictxml.StartTag:
		case r.inList && isEntry(s.Local):
			r.begun = true
			r.from = s.Start
			s.Keep(s.Start)
			return nil
		default:
			if err := r.element(); err != nil {
				return err
			}
		}
	}
}

// element reads one child of the root, or of a list, that is no record.
func (r *Reader) element() error {
	s := r.scan
	if s.Local == "resumptionToken" && r.takesToken(r.inList) {
		return r.token()
	}
	switch {
	case s.Space == "" && s.Local == "error": // an answer would seem to be whole without it
		r.report(ruleOrder, "<error> in no namespace", "one in the namespace of the protocol; it is taken")
		return r.error()
	case s.Space != Namespace:
		return r.leaveOut()
	case r.inList && s.Local == "error": // some write one where a list breaks off
		return r.error()
	case r.inList:
		return r.leaveOut()
	}
	r.strictOrder(&r.seen.last)
	switch s.Local {
	case "responseDate":
		return r.responseDate()
	case "request":
		return r.request()
	case "error":
		return r.error()
	}
	verb := Verb(s.Local)
	switch verb {
	case Identify, ListMetadataFormats, ListSets, ListRecords, ListIdentifiers, GetRecord:
	default:
		return r.leaveOut()
	}
	if r.answer.Verb != "" || len(r.errs) > 0 {
		r.report(ruleErrors, "a second answer <"+s.Local+">", "one element named as the verb, or errors")
	}
	r.answer.Verb = verb
	switch verb {
	case Identify:
		return r.identity()
	case ListMetadataFormats:
		return s.Children(r.format)
	case ListSets:
		return s.Children(r.set)
	}
	r.inList = true
	tag := s.Slice(s.Start, s.Offset())
	if len(tag) > 4<<10 {
		return s.Fail("the start tag of <%s> has %d bytes; want at most %d", s.Local, len(tag), 4<<10)
	}
	if tag[len(tag)-2] == '/' { // no record comes
		return nil
	}
	name := tag[1:]
	name = name[:bytes.IndexAny(name, "> \t\r\n")]
	r.epilogue = "</" + string(name) + ">" + r.epilogue
	r.prologue = append(r.prologue, tag...)
	return nil
}

// finish checks what shows only at the end of the answer.
func (r *Reader) finish() error {
	if r.seen.dates == 0 {
		r.problem(Problem{Rule: ruleResponseDate, Found: "no responseDate", Expected: "one"})
	}
	if r.seen.requests == 0 {
		r.problem(Problem{Rule: ruleRequest, Found: "no request", Expected: "one"})
	}
	if r.o.Strict {
		r.strictAnswer()
	}
	err := errors.Join(r.errs...)
	switch {
	case err != nil && (r.seen.records > 0 || r.answer.Token != nil && r.answer.Token.Value != "") && only(err, NoRecordsMatch): // as of one of several servers
		r.answer.Misplaced++
	case len(r.errs) == 1:
		return r.errs[0]
	case err != nil:
		return err
	case r.answer.Verb == "":
		return &DocumentError{URL: r.o.URL, Line: r.scan.Line, Column: r.scan.Column, Reason: "neither an error nor an element named as the verb; want one of them"}
	case r.seen.records == 0 && (r.answer.Verb == ListRecords || r.answer.Verb == ListIdentifiers || r.answer.Verb == GetRecord):
		r.problem(Problem{Rule: ruleEmpty, Found: "an empty " + string(r.answer.Verb), Expected: "an entry, or the error noRecordsMatch"})
	}
	return io.EOF
}

// report reports a Problem at the current token.
func (r *Reader) report(rule, found, expected string) {
	r.problem(Problem{Rule: rule, Line: r.scan.Line, Column: r.scan.Column, Found: found, Expected: expected})
}

func (r *Reader) problem(p Problem) {
	if r.o.Report != nil {
		p.URL = r.o.URL
		r.o.Report(p)
	}
}

// unknown reports an element that is not allowed where it stands.
func (r *Reader) unknown() {
	r.report(ruleOrder, fmt.Sprintf("<%s> in namespace %q", clip(r.scan.Local), clip(r.scan.Space)), "an element of the protocol; it is left out")
}

// leaveOut passes over an element that is not allowed where it stands.
func (r *Reader) leaveOut() error {
	r.unknown()
	s := r.scan
	for depth := s.Depth(); s.Depth() >= depth; {
		if s.Kind == strictxml.StartTag && isEntry(s.Local) {
			r.answer.Misplaced++
		}
		if err := s.Next(); err != nil {
			return err
		}
	}
	return nil
}

// isEntry reports whether an element of a list is a record, or a header alone, by its name.
func isEntry(local string) bool { return local == "record" || local == "header" }

// text returns the text of the current element, without white space around it.
func (r *Reader) text() (string, error) {
	text, _, err := r.scan.Characters()
	return strictxml.Trim(string(text)), err
}

// field returns the text of the current element as text does, and "" where it is too long
// to be kept.
func (r *Reader) field(rule string) (string, error) {
	local := r.scan.Local
	text, err := r.text()
	if len(text) > strictxml.MaxReference {
		r.report(rule, fmt.Sprintf("<%s> of %d bytes", clip(local), len(text)), fmt.Sprintf("at most %d; it is left out", strictxml.MaxReference))
		text = ""
	}
	return text, err
}

func (r *Reader) responseDate() error {
	line, column := r.scan.Line, r.scan.Column
	text, err := r.text()
	if err != nil {
		return err
	}
	if r.seen.dates++; r.seen.dates > 1 {
		r.report(ruleResponseDate, "a second responseDate", "one; the first is used")
		return nil
	}
	t, day, ok := parseDatestamp([]byte(text))
	if !ok || day {
		t, _, ok = guessDatestamp([]byte(text))
		expected := "YYYY-MM-DDThh:mm:ssZ; it is taken as " + t.Format(time.RFC3339)
		if !ok {
			expected = "YYYY-MM-DDThh:mm:ssZ"
		}
		r.problem(Problem{Rule: ruleResponseDate, Line: line, Column: column, Found: strconv.Quote(clip(text)), Expected: expected})
	}
	r.answer.ResponseDate = t
	return nil
}

func (r *Reader) request() error {
	q := &r.answer.Request
	for _, a := range r.scan.Attrs {
		if a.Name.Space != "" {
			continue
		}
		switch a.Name.Local {
		case "verb":
			q.Verb = Verb(a.Value)
		case "identifier":
			q.Identifier = a.Value
		case "metadataPrefix":
			q.Prefix = a.Value
		case "set":
			q.Set = a.Value
		case "resumptionToken":
			q.Token = a.Value
		case "from", "until":
			at, day, ok := parseDatestamp([]byte(a.Value))
			if ok && !day {
				q.Granularity = Second
			}
			if a.Name.Local == "from" {
				q.From = at
			} else {
				q.Until = at
			}
		default:
			r.report(ruleRequest, "attribute "+strconv.Quote(clip(a.Name.Local)), "an argument of the protocol")
		}
	}
	if r.seen.requests++; r.seen.requests > 1 {
		r.report(ruleRequest, "a second request", "one")
	}
	text, err := r.field(ruleRequest)
	r.answer.BaseURL = text
	return err
}

// maxErrors is how many errors of an answer are kept.
const maxErrors = 100

func (r *Reader) error() error {
	code, _ := r.scan.Attr("", "code")
	e := &Error{Code: Code(strictxml.Trim(code)), URL: r.o.URL}
	known := []Code{BadArgument, BadResumptionToken, BadVerb, CannotDisseminateFormat, IDDoesNotExist, NoRecordsMatch, NoMetadataFormats, NoSetHierarchy}
	if !slices.Contains(known, e.Code) {
		r.report(ruleErrors, "code "+strconv.Quote(clip(code)), "a code of the protocol")
		if i := slices.IndexFunc(known, func(c Code) bool { return strings.EqualFold(string(c), string(e.Code)) }); i >= 0 {
			e.Code = known[i]
		}
	}
	if r.answer.Verb != "" {
		r.report(ruleErrors, "an error beside <"+string(r.answer.Verb)+">", "the one or the other")
	}
	text, err := r.text()
	if e.Text = clip(text); len(r.errs) < maxErrors {
		r.errs = append(r.errs, e)
	}
	return err
}

// takesToken reports whether the current element, which is called so, is the resumptionToken
// of the list. A list would seem to end with one that is left out, so one beside the list, or
// in no namespace, is taken as well, unless there is another.
func (r *Reader) takesToken(inList bool) bool {
	s := r.scan
	if inList && s.Space == Namespace {
		return true
	}
	if s.Space != Namespace && s.Space != "" || r.answer.Token != nil {
		return false
	}
	found := "<resumptionToken> beside the list"
	if inList {
		found = "<resumptionToken> in no namespace"
	}
	r.report(ruleOrder, found, "one inside of the list, in the namespace of the protocol; it is taken")
	return true
}

// token reads a resumptionToken (3.5). White space around it is no part of it where a
// line break shows that it was put there for people.
func (r *Reader) token() error {
	s := r.scan
	t := &Token{Size: -1, Cursor: -1}
	number := func(name string, to *int64) {
		value, ok := s.Attr("", name)
		n, err := strconv.ParseInt(strictxml.Trim(value), 10, 64)
		switch {
		case !ok:
		case err != nil || n < 0:
			r.report(ruleToken, name+" "+strconv.Quote(clip(value)), "a number")
		default:
			*to = n
		}
	}
	number("completeListSize", &t.Size)
	number("cursor", &t.Cursor)
	if value, ok := s.Attr("", "expirationDate"); ok {
		at, day, ok := parseDatestamp([]byte(strictxml.Trim(value)))
		if !ok || day {
			r.report(ruleToken, "expirationDate "+strconv.Quote(clip(value)), "YYYY-MM-DDThh:mm:ssZ")
			at, _, _ = guessDatestamp([]byte(value))
		}
		t.Expires = at
	}
	text, markup, err := s.Characters()
	if err != nil {
		return err
	}
	t.Value = string(text)
	trimmed := strictxml.Trim(t.Value)
	if trimmed == "" || strings.Contains(t.Value[:strings.Index(t.Value, trimmed)], "\n") || strings.HasSuffix(strings.TrimRight(t.Value, " \t"), "\n") {
		t.Value = trimmed
	}
	switch {
	case markup:
		return s.Fail("a resumptionToken with elements in it; want text")
	case len(t.Value) > maxToken:
		return s.Fail("a resumptionToken of %d bytes; want at most %d", len(t.Value), maxToken)
	case r.answer.Token != nil:
		return s.Fail("a second resumptionToken; want one")
	}
	r.answer.Token = t
	return nil
}

// maxToken is how long a resumptionToken may be, in bytes: it goes into an address.
const maxToken = 4 << 10

const (
	// maxDescribed is how many sets or formats one answer may have.
	maxDescribed = 100_000
	// maxDescriptions is how many descriptions of one thing are kept; once they have
	// maxSaid bytes no further one is kept.
	maxDescriptions = 100
	maxSaid         = 1 << 20
)

// description reads the elements of a description.
func (r *Reader) description(to *[][]byte) error {
	return r.scan.Children(func() error {
		said := 0
		for _, d := range *to {
			said += len(d)
		}
		if said > maxSaid || len(*to) >= maxDescriptions {
			return r.scan.Skip()
		}
		doc, _, err := r.scan.Element(depth(r.o.Limits), Namespace, schemaInstance)
		if err == nil {
			*to = append(*to, doc)
		}
		return err
	})
}

// depth is the cap for elements in elements.
func depth(l Limits) int { return strictxml.Limits(l).WithDefaults().Depth }

// identity reads the answer to Identify (4.2).
func (r *Reader) identity() error {
	s := r.scan
	id := &Identity{}
	r.answer.Identity = id
	line, column := s.Line, s.Column
	report := func(found, expected string) {
		r.problem(Problem{Rule: ruleIdentify, Line: line, Column: column, Found: found, Expected: expected})
	}
	met, last := map[string]int{}, 0
	err := s.Children(func() error {
		if s.Space != Namespace {
			r.unknown()
			return s.Skip()
		}
		name := s.Local
		r.strictOrder(&last)
		if name == "description" {
			return r.description(&id.Descriptions)
		}
		text, err := r.field(ruleIdentify)
		if err != nil {
			return err
		}
		met[name]++
		switch name {
		case "repositoryName":
			id.Name = text
		case "baseURL":
			id.BaseURL = text
		case "protocolVersion":
			if id.ProtocolVersion = text; text != "2.0" {
				report("protocolVersion "+strconv.Quote(clip(text)), "2.0")
			}
		case "adminEmail":
			if len(id.AdminEmails) < 100 {
				id.AdminEmails = append(id.AdminEmails, text)
			}
		case "earliestDatestamp":
			at, day, ok := parseDatestamp([]byte(text))
			r.seen.earliestDay = day
			if !ok {
				report("earliestDatestamp "+strconv.Quote(clip(text)), "YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ")
				at, _, _ = guessDatestamp([]byte(text))
			}
			id.Earliest = at
		case "deletedRecord":
			switch id.Deleted = DeletedRecords(text); id.Deleted {
			case DeletedNo, DeletedPersistent, DeletedTransient:
			default:
				report("deletedRecord "+strconv.Quote(clip(text)), "no, transient or persistent; no is assumed")
				id.Deleted = DeletedNo
			}
		case "granularity":
			// Some have "YYYY-MM-DDThh:mm:ss.SSSZ", some a lower case of it.
			if strings.Contains(strings.ToUpper(text), "T") {
				id.Granularity = Second
			}
			if text != id.Granularity.String() {
				report("granularity "+strconv.Quote(clip(text)), id.Granularity.String()+", which is assumed")
			}
		case "compression":
			if len(id.Compression) < 100 {
				id.Compression = append(id.Compression, text)
			}
		default:
			delete(met, name) // there may be very many
			r.report(ruleOrder, "<"+clip(name)+"> in Identify", "an element of the schema")
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"repositoryName", "baseURL", "protocolVersion", "earliestDatestamp", "deletedRecord", "granularity"} {
		if met[name] != 1 {
			report(fmt.Sprintf("%d %s", met[name], name), "one")
		}
	}
	if met["adminEmail"] == 0 {
		report("no adminEmail", "one or more")
	}
	if id.Deleted == "" {
		id.Deleted = DeletedNo
	}
	return nil
}

// format reads one child of ListMetadataFormats (4.4).
func (r *Reader) format() error {
	s := r.scan
	if s.Space != Namespace || s.Local != "metadataFormat" {
		r.unknown()
		return s.Skip()
	}
	var f Format
	if err := s.Children(func() error {
		to := map[string]*string{"metadataPrefix": &f.Prefix, "schema": &f.Schema, "metadataNamespace": &f.Namespace}[s.Local]
		if to == nil || s.Space != Namespace {
			r.unknown()
			return s.Skip()
		}
		text, err := r.field(ruleFormats)
		*to = text
		return err
	}); err != nil {
		return err
	}
	if f.Prefix == "" || f.Schema == "" || f.Namespace == "" {
		r.report(ruleFormats, fmt.Sprintf("format %q with schema %q and namespace %q", clip(f.Prefix), clip(f.Schema), clip(f.Namespace)), "all three")
	}
	if len(r.answer.Formats) >= maxDescribed {
		return s.Fail("more than %d formats", maxDescribed)
	}
	if f.Prefix != "" {
		r.answer.Formats = append(r.answer.Formats, f)
	}
	return nil
}

// set reads one child of ListSets (4.6).
func (r *Reader) set() error {
	s := r.scan
	if s.Local == "resumptionToken" && r.takesToken(true) {
		return r.token()
	}
	if s.Space != Namespace || s.Local != "set" {
		r.unknown()
		return s.Skip()
	}
	var set Set
	if err := s.Children(func() (err error) {
		switch {
		case s.Space != Namespace:
			r.unknown()
			err = s.Skip()
		case s.Local == "setSpec":
			set.Spec, err = r.field(ruleSets)
		case s.Local == "setName":
			set.Name, err = r.field(ruleSets)
		case s.Local == "setDescription":
			err = r.description(&set.Descriptions)
		default:
			r.unknown()
			err = s.Skip()
		}
		return err
	}); err != nil {
		return err
	}
	if set.Spec == "" || set.Name == "" {
		r.report(ruleSets, fmt.Sprintf("set %q with name %q", clip(set.Spec), clip(set.Name)), "both")
	}
	if len(r.answer.Sets) >= maxDescribed {
		return s.Fail("more than %d sets in one answer", maxDescribed)
	}
	if set.Spec != "" {
		r.checkSetSpec(set.Spec)
		r.answer.Sets = append(r.answer.Sets, set)
	}
	return nil
}
