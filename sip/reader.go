package sip

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

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
	places Places // nil when nobody wants them
}

func newReader(r io.Reader, o ReadOptions) *reader {
	return &reader{limits: strictxml.Limits(o.Limits), action: o.Action, places: o.Places, s: strictxml.New(r, strictxml.Options{
		URL: o.URL, ContentType: o.ContentType, Limits: strictxml.Limits(o.Limits), Want: "a message of the Simple Ingest Protocol",
		Instructions: strictxml.InstructionsNowhere, // SOAP 1.1, 3
		Namespaces:   []string{Namespace, soapNamespace},
		Context:      o.Context,
	})}
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
	f := r.fault("%s", broken.Reason)
	f.Line, f.Column = broken.Line, broken.Column
	return f
}

// fault returns a Fault at the current token.
func (r *reader) fault(format string, args ...any) *Fault {
	return &Fault{Code: Client, Text: fmt.Sprintf(format, args...), Path: strings.Join(r.path, "/"), Line: r.s.Line, Column: r.s.Column}
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
				return false, r.fault("found the text %q, expected elements only", strictxml.Clip(text))
			}
		}
	}
}

// attributes refuses attributes that the protocol does not know. Those of
// another namespace are somebody else's.
func (r *reader) attributes() error {
	for _, a := range r.s.Attrs {
		if a.Name.Space == "" {
			return r.fault("found the attribute %s, expected none", strictxml.Clip(a.Name.Local))
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
			return r.fault("found </%s>, expected %s", r.path[len(r.path)-1], expected("", open, again))
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

// is tells whether the current start tag is that of the part, which was taken
// already or not.
func (p *part) is(s *strictxml.Scanner, space string, taken bool) bool {
	return (!taken || p.many) && s.Space == space && slices.Contains(p.names, s.Local)
}

// unexpected is the Fault of a child that is none of the parts which are open.
func (r *reader) unexpected(space string, open []part, taken bool) *Fault {
	want := expected(r.path[len(r.path)-2], open, taken)
	if r.s.Space == space {
		return r.fault("found <%s>, expected %s", r.name(), want)
	}
	return r.fault("found <%s>%s, expected %s in namespace %q", r.name(), r.namespace(), want, space)
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
			return "", r.fault("found <%s>, expected only text in <%s>", r.name(), r.path[len(r.path)-2])
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
	empty := r.fault("found nothing in <%s>, expected a text", r.name())
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
