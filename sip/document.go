package sip

import (
	"fmt"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

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
	return nil, r.fault("found <%s>%s, expected <get-properties>, <ingest-properties>, <ingest-request> or <ingest-disposition> in namespace %q",
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
	bad := r.fault("")
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
		return Record{}, r.fault("found </record>, expected the record, which is one element")
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
		return Record{}, r.fault("found <%s>, expected </record>: a request has one record", r.name())
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
	bad := r.fault("found something in <%s>, expected nothing at all, not even white space", r.name())
	if err := r.next(); err != nil {
		return err
	}
	if r.s.Kind != strictxml.EndTag || r.s.Start != inside {
		return bad
	}
	r.leave()
	return nil
}
