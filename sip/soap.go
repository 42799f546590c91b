package sip

import (
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

const (
	soapNamespace = "http://schemas.xmlsoap.org/soap/envelope/"
	// nextActor is the next receiver of the message (SOAP 1.1, 4.2.2).
	nextActor = "http://schemas.xmlsoap.org/soap/actor/next"
	// detailNamespace is that of the element in a fault's detail that names the place. It is
	// this implementation's own.
	detailNamespace = "urn:x-bridge:terms:1"
)

// envelope reads the Envelope. SOAP 1.1, 4 lets other elements follow the body; they are
// refused, as they have no defined meaning.
func (r *reader) envelope() (m *Message, err error) {
	err = r.sequence(soapNamespace,
		optional("Header", r.header),
		element("Body", into(&m, r.body)))
	return m, err
}

// header passes over the entries of the header, and refuses one that must be understood.
func (r *reader) header() error {
	for {
		more, err := r.child()
		switch {
		case err != nil:
			return err
		case !more:
			r.leave()
			return nil
		case r.mustUnderstand():
			f := r.fault(ruleHeader, "the header <%s>%s is not understood here", r.name(), r.namespace())
			f.Code = MustUnderstand
			return f
		}
		if err := r.skip(); err != nil {
			return err
		}
	}
}

// mustUnderstand reports whether the current header is for us and has to be
// understood (SOAP 1.1, 4.2.2 and 4.2.3).
func (r *reader) mustUnderstand() bool {
	must, _ := r.s.Attr(soapNamespace, "mustUnderstand")
	actor, _ := r.s.Attr(soapNamespace, "actor")
	must, actor = strictxml.Trim(must), strictxml.Trim(actor)
	return (must == "1" || must == "true") && (actor == "" || actor == nextActor)
}

// body reads the Body, which has one child.
func (r *reader) body() (*Message, error) {
	more, err := r.child()
	if err != nil {
		return nil, err
	}
	if !more && isGetProperties(r.action) {
		r.leave()
		return &Message{Kind: KindGetProperties}, nil
	}
	if !more {
		return nil, r.fault(ruleEnvelope, "found </Body>, expected one document")
	}
	m, err := r.document()
	if err != nil {
		return nil, err
	}
	more, err = r.child()
	if err != nil {
		return nil, err
	}
	if more {
		return nil, r.fault(ruleEnvelope, "found <%s>, expected </Body>: a message has one document", r.name())
	}
	r.leave()
	return m, nil
}

// isGetProperties reports whether a SOAPAction, which stands in quotes (SOAP 1.1,
// 6.1.1), names that operation, whatever URI it has in front.
func isGetProperties(action string) bool {
	action = strings.Trim(action, "\"")
	name := KindGetProperties.String()
	before, ok := strings.CutSuffix(action, name)
	return ok && (before == "" || strings.HasSuffix(before, "/") || strings.HasSuffix(before, "#") || strings.HasSuffix(before, ":"))
}

// soapFault reads a Fault (SOAP 1.1, 4.4). It is read for people only, so what is
// unknown in it is passed over, and so are order and namespace of what is known.
func (r *reader) soapFault() (*Fault, error) {
	f := &Fault{}
	for {
		more, err := r.child()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		switch r.s.Local {
		case "faultcode":
			var code string
			code, err = r.loose()
			f.Code = faultCode(code)
		case "faultstring":
			f.Text, err = r.loose()
		case "detail":
			err = r.detail(f)
		default:
			err = r.skip()
		}
		if err != nil {
			return nil, err
		}
	}
	if f.Code == "" {
		return nil, r.fault(ruleEnvelope, "found </Fault>, expected a <faultcode> before it")
	}
	r.leave()
	return f, nil
}

// loose reads the text of an element, whatever else is in it.
func (r *reader) loose() (string, error) {
	text, _, err := r.s.Characters()
	if err != nil {
		return "", r.failed(err)
	}
	r.leave()
	return string(text), nil
}

func (r *reader) skip() error {
	if err := r.s.Skip(); err != nil {
		return r.failed(err)
	}
	r.leave()
	return nil
}

// detail finds in a fault's detail what AppendMessage has written there, and ignores the rest.
func (r *reader) detail(f *Fault) error {
	for depth := r.s.Depth(); r.s.Depth() >= depth; {
		if err := r.next(); err != nil {
			return err
		}
		if r.s.Kind == strictxml.StartTag && r.s.Space == detailNamespace && r.s.Local == "problem" {
			f.Path, _ = r.s.Attr("", "path")
			f.Line = r.number("line")
			f.Column = r.number("column")
		}
	}
	r.leave()
	return nil
}

// number returns the attribute's value, 0 when there is none.
func (r *reader) number(attr string) int {
	value, _ := r.s.Attr("", attr)
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// faultCode returns a fault code without its prefix, and without what follows a dot (SOAP 1.1,
// 4.4.1), except that of ClientAuthentication.
func faultCode(written string) Code {
	code := strictxml.Trim(written[strings.LastIndexByte(written, ':')+1:])
	if strings.HasPrefix(code+".", string(ClientAuthentication)+".") {
		return ClientAuthentication
	}
	code, _, _ = strings.Cut(code, ".")
	return Code(strictxml.Trim(code))
}
