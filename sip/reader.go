package sip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// ReadOptions are the options of ReadMessage. The zero value is valid.
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

// ReadMessage reads a SOAP 1.1 message to its end. An error of the message itself is a *Fault,
// to be sent as the answer; a message that is too long is an ErrTooLarge; any other error comes
// from r, wrapped with the place.
func ReadMessage(r io.Reader, o ReadOptions) (*Message, error) {
	if o.Limits.Document == 0 {
		o.Limits.Document = maxMessage
	}
	return newReader(strictxml.New(r, scanOptions(&o)), o).message(o.Plain)
}

// readBytes calls read with a reader of a document in memory.
func readBytes[T any](doc []byte, o ReadOptions, read func(r *reader) (T, error)) (m T, err error) {
	err = strictxml.Read(doc, scanOptions(&o), func(s *strictxml.Scanner) (err error) {
		m, err = read(newReader(s, o))
		return err
	})
	return m, err
}

// message reads a message to its end; plain allows one without an envelope.
func (r *reader) message(plain bool) (*Message, error) {
	if err := r.root(); err != nil {
		return nil, err
	}
	var m *Message
	var err error
	switch s := r.s; {
	case s.Space == soapNamespace && s.Local == "Envelope":
		m, err = r.envelope()
	case s.Local == "Envelope":
		f := r.fault(ruleEnvelope, "found an envelope%s, expected one of SOAP 1.1 in namespace %q", r.namespace(), soapNamespace)
		f.Code = VersionMismatch
		return nil, f
	case plain:
		m, err = r.document()
	default:
		return nil, r.fault(ruleEnvelope, "found <%s>%s, expected a SOAP 1.1 <Envelope>", r.name(), r.namespace())
	}
	if err != nil {
		return nil, err
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return m, nil
}

// ReadDocument reads one document without an envelope, in UTF-8. The error is a
// *Fault.
func ReadDocument(b []byte) (*Message, error) {
	return readBytes(b, stored(b), func(r *reader) (*Message, error) {
		if err := r.root(); err != nil {
			return nil, err
		}
		m, err := r.document()
		if err != nil {
			return nil, err
		}
		if err := r.end(); err != nil {
			return nil, err
		}
		return m, nil
	})
}

// ParseSource reads what AppendSource has written. The error is a *Fault.
func ParseSource(b []byte) (*Source, error) {
	return readBytes(b, stored(b), func(r *reader) (*Source, error) {
		if err := r.root(); err != nil {
			return nil, err
		}
		if r.s.Space != Namespace || r.s.Local != "source" {
			return nil, r.fault(ruleElement, "found <%s>%s, expected <source> in namespace %q", r.name(), r.namespace(), Namespace)
		}
		if err := r.attributes(); err != nil {
			return nil, err
		}
		s, err := r.source()
		if err != nil {
			return nil, err
		}
		return s, r.end()
	})
}

// stored are the options for stored bytes, whatever their length.
func stored(b []byte) ReadOptions { return ReadOptions{Limits: Limits{Document: int64(len(b))}} }

// reader reads a message from front to back. Each of its methods that reads an
// element begins at the start tag and ends at the end tag; path then is what it
// was before the start tag.
type reader struct {
	s      *strictxml.Scanner
	limits strictxml.Limits
	action string // ReadOptions.Action
	// path has the names of the elements that are open, from the document's on,
	// or from the envelope's outside of it.
	path   []string
	places Places // nil when they are not wanted
}

func newReader(s *strictxml.Scanner, o ReadOptions) *reader {
	return &reader{s: s, limits: strictxml.Limits(o.Limits), action: o.Action, places: o.Places}
}

func scanOptions(o *ReadOptions) strictxml.Options {
	return strictxml.Options{
		URL: o.URL, ContentType: o.ContentType, Limits: strictxml.Limits(o.Limits), Want: "a message of the Simple Ingest Protocol",
		Instructions: strictxml.InstructionsNowhere, // SOAP 1.1, 3
		Namespaces:   []string{Namespace, soapNamespace},
		Context:      o.Context,
	}
}

// root reads the first start tag.
func (r *reader) root() error {
	err := r.next()
	if err == nil {
		r.enter()
	}
	return err
}

// end makes sure that nothing follows the root.
func (r *reader) end() error {
	err := r.next()
	if err == io.EOF { //nolint:errorlint // a wrapped one would be the transport's
		return nil
	}
	return err
}

func (r *reader) enter() { r.path = append(r.path, r.name()) }
func (r *reader) leave() { r.path = r.path[:len(r.path)-1] }

func (r *reader) next() error {
	err := r.s.Next()
	if err == nil {
		return nil
	}
	return r.failed(err)
}

// failed makes a Fault of an error that is the message's own.
func (r *reader) failed(err error) error {
	var broken *strictxml.DocumentError
	switch {
	case !errors.As(err, &broken):
		return err
	case broken.Cap == strictxml.CapDocument:
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	f := r.fault(ruleDocument, "%s", broken.Reason)
	if broken.Cap != "" {
		f.Rule = "" // the limit is the reader's
	}
	f.Line, f.Column = broken.Line, broken.Column
	return f
}

// fault returns a Fault at the current token.
func (r *reader) fault(rule, format string, args ...any) *Fault {
	return &Fault{Code: Client, Rule: rule, Text: fmt.Sprintf(format, args...), Path: strings.Join(r.path, "/"), Line: r.s.Line, Column: r.s.Column}
}

// name and namespace describe the current start tag in a message.
func (r *reader) name() string { return strictxml.Clip(r.s.Local) }

func (r *reader) namespace() string {
	if r.s.Space == "" {
		return " without a namespace"
	}
	return fmt.Sprintf(" in namespace %q", strictxml.Clip(r.s.Space))
}

// child reads up to the next child of the current element (more), or to the end
// of the element itself. There may be no text between.
func (r *reader) child() (more bool, err error) {
	for {
		if err := r.next(); err != nil {
			return false, err
		}
		switch r.s.Kind {
		case strictxml.StartTag:
			r.enter()
			return true, nil
		case strictxml.EndTag:
			return false, nil
		case strictxml.Text:
			if text := strictxml.Trim(string(r.s.Data)); text != "" {
				return false, r.fault(ruleText, "found the text %q, expected elements only", strictxml.Clip(text))
			}
		}
	}
}

// attributes refuses attributes without a namespace, as the protocol has none. It ignores
// others.
func (r *reader) attributes() error {
	for _, a := range r.s.Attrs {
		if a.Name.Space == "" {
			return r.fault(ruleAttribute, "found the attribute %s, expected none", strictxml.Clip(a.Name.Local))
		}
	}
	return nil
}

// part of a sequence: an element, or a choice of elements.
type part struct {
	names []string
	need  bool // it has to be there
	many  bool // it may be there again
	read  func() error
}

func element(name string, read func() error) part {
	return part{names: []string{name}, need: true, read: read}
}

func optional(name string, read func() error) part { return part{names: []string{name}, read: read} }

// sequence reads the current element, whose children are parts in their order
// and of one namespace.
func (r *reader) sequence(space string, parts ...part) error {
	taken := false // parts[0] was there
	for {
		more, err := r.child()
		if err != nil {
			return err
		}
		open := parts
		again := taken
		for len(parts) > 0 && (taken || !parts[0].need) && (!more || !parts[0].is(r.s, space, taken)) {
			parts, taken = parts[1:], false
		}
		switch {
		case more && (len(parts) == 0 || !parts[0].is(r.s, space, taken)):
			return r.unexpected(space, open, again)
		case !more && len(parts) > 0:
			return r.fault(ruleElement, "found </%s>, expected %s", r.path[len(r.path)-1], expected("", open, again))
		case !more:
			r.leave()
			return nil
		}
		taken = true
		r.note()
		if space == Namespace {
			if err := r.attributes(); err != nil {
				return err
			}
		}
		if err := parts[0].read(); err != nil {
			return err
		}
	}
}

// is reports whether the current start tag is that of the part, which was taken
// already or not.
func (p *part) is(s *strictxml.Scanner, space string, taken bool) bool {
	return (!taken || p.many) && s.Space == space && slices.Contains(p.names, s.Local)
}

// unexpected is the Fault of a child that is none of the parts which are open.
func (r *reader) unexpected(space string, open []part, taken bool) *Fault {
	want := expected(r.path[len(r.path)-2], open, taken)
	if r.s.Space == space {
		return r.fault(ruleElement, "found <%s>, expected %s", r.name(), want)
	}
	return r.fault(ruleElement, "found <%s>%s, expected %s in namespace %q", r.name(), r.namespace(), want, space)
}

// expected names what may come next in an element, its end tag included when it
// has a name here. The first part was taken already or not.
func expected(parent string, open []part, taken bool) string {
	var names []string
	for i, p := range open {
		there := i == 0 && taken
		if there && !p.many {
			continue
		}
		for _, n := range p.names {
			names = append(names, "<"+n+">")
		}
		if p.need && !there {
			parent = ""
			break
		}
	}
	if parent != "" {
		names = append(names, "</"+parent+">")
	}
	return strings.Join(names, " or ")
}

// text reads the current element, which has only text in it. Each character of
// it counts.
func (r *reader) text() (string, error) {
	var b []byte
	for {
		if err := r.next(); err != nil {
			return "", err
		}
		switch r.s.Kind {
		case strictxml.StartTag:
			r.enter()
			return "", r.fault(ruleText, "found <%s>, expected only text in <%s>", r.name(), r.path[len(r.path)-2])
		case strictxml.EndTag:
			r.leave()
			return string(b), nil
		case strictxml.Text:
			b = append(b, r.s.Data...)
		}
	}
}

// trimmed is text that is not only white space, without the white space around it.
func (r *reader) trimmed() (string, error) {
	empty := r.fault(ruleValue, "found nothing in <%s>, expected a text", r.name())
	text, err := r.text()
	if text = strictxml.Trim(text); err == nil && text == "" {
		return "", empty
	}
	return text, err
}

// into makes a part's read of one that returns a value.
func into[T any](to *T, read func() (T, error)) func() error {
	return func() (err error) {
		*to, err = read()
		return err
	}
}

// document reads the document whose start tag is the current one.
func (r *reader) document() (*Message, error) {
	outer := r.path
	r.path = []string{r.name()}
	r.note()
	m, err := r.known()
	if err == nil {
		r.path = outer[:len(outer)-1]
	}
	return m, err
}

func (r *reader) known() (m *Message, err error) {
	switch r.s.Space {
	case soapNamespace:
		if r.s.Local == KindFault.String() {
			m = &Message{Kind: KindFault}
			m.Fault, err = r.soapFault()
			return m, err
		}
	case Namespace:
		for k := KindGetProperties; k <= KindDisposition; k++ {
			if r.s.Local == k.String() {
				if err := r.attributes(); err != nil {
					return nil, err
				}
				return r.content(k)
			}
		}
	}
	return nil, r.fault(ruleElement, "found <%s>%s, expected <get-properties>, <ingest-properties>, <ingest-request> or <ingest-disposition> in namespace %q",
		r.name(), r.namespace(), Namespace)
}

func (r *reader) content(k Kind) (m *Message, err error) {
	m = &Message{Kind: k}
	switch k {
	case KindGetProperties:
		err = r.sequence(Namespace)
	case KindProperties:
		m.Properties, err = r.properties()
	case KindRequest:
		m.Request, err = r.request()
	case KindDisposition:
		m.Disposition, err = r.disposition()
	}
	return m, err
}

func (r *reader) properties() (*Properties, error) {
	p := &Properties{}
	formats := part{names: []string{"format"}, need: true, many: true, read: func() error {
		format, err := r.trimmed()
		p.Formats = append(p.Formats, format)
		return err
	}}
	return p, r.sequence(Namespace,
		element("notification-style", into(&p.Style, r.style)),
		element("formats", func() error { return r.sequence(Namespace, formats) }))
}

func (r *reader) style() (Style, error) {
	bad := r.fault(ruleStyle, "")
	text, err := r.text()
	if err != nil {
		return "", err
	}
	switch style := Style(strictxml.Trim(text)); style {
	case Synchronous, Asynchronous:
		return style, nil
	}
	bad.Text = fmt.Sprintf("found the text %q, expected synchronous or asynchronous", strictxml.Clip(text))
	return "", bad
}

func (r *reader) source() (*Source, error) {
	s := &Source{}
	return s, r.sequence(Namespace,
		optional("submitter", into(&s.Submitter, r.submitter)),
		optional("sequence", into(&s.Sequence, r.present)),
		optional("source-identifier", into(&s.Identifier, r.present)))
}

// present is text that may be empty, which is not the same as missing.
func (r *reader) present() (*string, error) {
	text, err := r.text()
	return &text, err
}

// maybe is text that is missing when there is nothing in it but white space.
func (r *reader) maybe() (string, error) {
	text, err := r.text()
	return strictxml.Trim(text), err
}

func (r *reader) submitter() (*Submitter, error) {
	s := &Submitter{}
	return s, r.sequence(Namespace,
		element("name", into(&s.Name, r.text)),
		element("email-address", into(&s.EmailAddress, r.text)))
}

func (r *reader) request() (*Request, error) {
	q := &Request{}
	return q, r.sequence(Namespace,
		optional("source", into(&q.Source, r.source)),
		optional("notification-recipient", into(&q.Recipient, r.maybe)),
		element("record", into(&q.Record, r.record)))
}

// record reads <record>, which holds one element of any name.
func (r *reader) record() (Record, error) {
	more, err := r.child()
	if err != nil {
		return Record{}, err
	}
	if !more {
		return Record{}, r.fault(ruleRecord, "found </record>, expected the record, which is one element")
	}
	rec, err := readRecord(r.s, r.limits)
	if err != nil {
		return Record{}, r.failed(err)
	}
	r.leave()
	more, err = r.child()
	if err != nil {
		return Record{}, err
	}
	if more {
		return Record{}, r.fault(ruleRecord, "found <%s>, expected </record>: a request has one record", r.name())
	}
	r.leave()
	return rec, nil
}

func (r *reader) disposition() (*Disposition, error) {
	d := &Disposition{}
	outcome := part{names: []string{Accepted.String(), ProvisionallyAccepted.String(), Rejected.String()}, need: true, read: func() error {
		switch r.s.Local {
		case Accepted.String():
			d.Outcome = Accepted
			return r.sequence(Namespace, element("assigned-identifier", into(&d.AssignedIdentifier, r.trimmed)))
		case Rejected.String():
			d.Outcome = Rejected
			return r.sequence(Namespace, optional("reason", into(&d.Reason, r.text)))
		}
		d.Outcome = ProvisionallyAccepted
		return r.empty()
	}}
	return d, r.sequence(Namespace, optional("source", into(&d.Source, r.source)), outcome)
}

// empty reads an element that is EMPTY: not even white space or a comment is in
// it (XML 1.0, 3).
func (r *reader) empty() error {
	inside := r.s.Offset()
	bad := r.fault(ruleEmpty, "found something in <%s>, expected nothing at all, not even white space", r.name())
	if err := r.next(); err != nil {
		return err
	}
	if r.s.Kind != strictxml.EndTag || r.s.Start != inside {
		return bad
	}
	r.leave()
	return nil
}

// Places are where the elements of a message start, by their paths as they stand
// in Fault.Path. Of elements with the same path it is the first; headers and what
// is in a record are not among them.
type Places map[string]Place

// Place is a place in a message. Line and Column are from 1; the column counts
// bytes of UTF-8.
type Place struct{ Line, Column int }

// Locate returns err. When that is, or wraps, a *Fault with the path of an element
// in the message, and without line and column, these are added in a copy of the
// *Fault.
func (p Places) Locate(err error) error {
	var f *Fault
	if !errors.As(err, &f) || f.Line > 0 {
		return err
	}
	at, ok := p[f.Path]
	if !ok {
		return err
	}
	located := *f
	located.Line, located.Column = at.Line, at.Column
	return &located
}

// note keeps the place of the current start tag, if places are wanted.
func (r *reader) note() {
	if r.places == nil {
		return
	}
	path := strings.Join(r.path, "/")
	if _, ok := r.places[path]; !ok {
		r.places[path] = Place{r.s.Line, r.s.Column}
	}
}
