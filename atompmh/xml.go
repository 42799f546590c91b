package atompmh

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

type tokenKind uint8

const (
	startTag tokenKind = iota + 1
	endTag
	charData
)

// scanner reads XML tokens and checks what encoding/xml lets pass: namespaces,
// duplicate attributes, one root, the caps. What it holds is valid until next
// is called again.
type scanner struct {
	src    *source
	dec    *xml.Decoder
	limits Limits
	url    string
	report func(rule string, line, column int, found, expected string)

	kind         tokenKind
	space, local string     // of a start tag, resolved
	attrs        []xml.Attr // of a start tag, as written, without xmlns
	data         []byte     // of character data
	line, column int        // where the token starts
	start        int64      // and its offset

	stack  []frame
	ns     []binding
	rooted bool // the root has been seen
}

type frame struct {
	name xml.Name // as written
	ns   int      // length of scanner.ns outside of the element
	base *url.URL // nil when neither xml:base nor the document's URL is known
}

type binding struct{ prefix, space string }

func newScanner(src *source, limits Limits, documentURL string) *scanner {
	s := &scanner{src: src, dec: xml.NewDecoder(src), limits: limits, url: documentURL}
	// What arrives is UTF-8 already, whatever the declaration says.
	s.dec.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	s.ns = append(s.ns, binding{"xml", xmlNamespace})
	return s
}

// base is the base URI in force at the current token.
func (s *scanner) base() *url.URL {
	if len(s.stack) > 0 {
		return s.stack[len(s.stack)-1].base
	}
	u, err := url.Parse(s.url)
	if err != nil || s.url == "" {
		return nil
	}
	return u
}

// depth is the number of elements that are open.
func (s *scanner) depth() int { return len(s.stack) }

// next reads the next start tag, end tag or text. io.EOF comes only after the
// whole document.
func (s *scanner) next() error {
	for {
		s.start = s.dec.InputOffset()
		s.line, s.column = s.dec.InputPos()
		s.src.startToken(s.start)
		tok, err := s.dec.RawToken()
		if err != nil {
			return s.broken(err)
		}
		if s.dec.InputOffset()-s.start > int64(s.limits.Text) {
			return s.cap(tooLong(s.limits))
		}
		switch t := tok.(type) {
		case xml.StartElement:
			s.kind = startTag
			return s.open(t)
		case xml.EndElement:
			s.kind = endTag
			return s.close(t.Name)
		case xml.CharData:
			if len(s.stack) > 0 {
				s.kind, s.data = charData, t
				if bytes.Contains(t, []byte("\uFFFD")) {
					return s.checkReferences()
				}
				return nil
			}
			if len(bytes.Trim(t, space)) > 0 || s.raw()[0] == '<' {
				return s.fail("text outside of the root element")
			}
		case xml.ProcInst:
			if strings.EqualFold(t.Target, "xml") && s.start != 0 {
				return s.fail("an XML declaration that is not at the start")
			}
		case xml.Directive:
			if len(t) >= 12 && strings.EqualFold(string(t[:12]), "DOCTYPE html") {
				return s.fail("an HTML page, not an Atom Feed Document (DOCTYPE is refused)")
			}
			return s.fail("DOCTYPE is refused: documents may not bring their own entities")
		}
	}
}

// raw returns the bytes of the current token.
func (s *scanner) raw() []byte { return s.src.slice(s.start, s.dec.InputOffset()) }

func (s *scanner) open(t xml.StartElement) error {
	if s.rooted && len(s.stack) == 0 {
		return s.fail("a second root element <%s>", clip(t.Name.Local))
	}
	s.rooted = true
	if len(t.Attr) > s.limits.Attributes {
		return s.cap(tooManyAttributes(s.limits))
	}
	if len(s.stack) >= s.limits.Depth {
		return s.cap(&faultError{cap: CapDepth, reason: fmt.Sprintf("elements are nested deeper than %d", s.limits.Depth)})
	}
	f := frame{name: t.Name, ns: len(s.ns), base: s.base()}
	if err := s.declare(&t); err != nil {
		return err
	}
	space, ok := s.lookup(t.Name.Space)
	if !ok || strings.Contains(t.Name.Local, ":") {
		return s.fail("element <%s> has a prefix that is not declared", clip(qname(t.Name)))
	}
	s.space, s.local = space, t.Name.Local
	if err := s.attributes(t.Attr, &f); err != nil {
		return err
	}
	s.stack = append(s.stack, f)
	return nil
}

// declare takes the namespace declarations out of the attributes.
func (s *scanner) declare(t *xml.StartElement) error {
	kept := t.Attr[:0]
	outer := len(s.ns)
	for _, a := range t.Attr {
		prefix := ""
		switch {
		case a.Name.Space == "xmlns":
			prefix = a.Name.Local
			if a.Value == "" || prefix == "xmlns" || (prefix == "xml") != (a.Value == xmlNamespace) {
				return s.fail("namespace declaration xmlns:%s=%q is not allowed", clip(prefix), clip(a.Value))
			}
		case a.Name.Space == "" && a.Name.Local == "xmlns":
		default:
			kept = append(kept, a)
			continue
		}
		for _, b := range s.ns[outer:] {
			if b.prefix == prefix {
				return s.fail("attribute %s is there twice", clip(qname(a.Name)))
			}
		}
		s.ns = append(s.ns, binding{prefix, known(a.Value)})
	}
	t.Attr = kept
	return nil
}

// known returns the constant for a namespace that matters, so that comparing
// with it is comparing a pointer.
func known(space string) string {
	for _, k := range [...]string{Namespace, HistoryNamespace, TombstonesNamespace, LinkExtensionsNamespace} {
		if space == k {
			return k
		}
	}
	return space
}

// lookup finds the namespace of a prefix; no default namespace is "".
func (s *scanner) lookup(prefix string) (space string, ok bool) {
	for i := len(s.ns) - 1; i >= 0; i-- {
		if s.ns[i].prefix == prefix {
			return s.ns[i].space, true
		}
	}
	return "", prefix == ""
}

// attributes checks the attributes of the element that f opens.
func (s *scanner) attributes(attrs []xml.Attr, f *frame) error {
	s.attrs = attrs
	for i := range attrs {
		a := &attrs[i]
		if strings.Contains(a.Value, "\uFFFD") {
			if err := s.checkReferences(); err != nil {
				return err
			}
		}
		if strings.Contains(a.Name.Local, ":") {
			return s.fail("attribute name %s", clip(qname(a.Name)))
		}
		if a.Name.Space != "" {
			space, ok := s.lookup(a.Name.Space)
			if !ok {
				return s.fail("attribute %s has a prefix that is not declared", clip(qname(a.Name)))
			}
			a.Name.Space = space
			if space == xmlNamespace && a.Name.Local == "base" {
				s.rebase(f, a.Value)
			}
		}
		for j := range i {
			if attrs[j].Name == a.Name {
				return s.fail("attribute %s is there twice", clip(qname(a.Name)))
			}
		}
	}
	return nil
}

func (s *scanner) rebase(f *frame, ref string) {
	u, err := url.Parse(strings.Trim(ref, space))
	if err != nil {
		s.report(ruleBase, s.line, s.column, clip(ref), "an IRI reference in xml:base; it is ignored")
		return
	}
	if f.base != nil {
		u = f.base.ResolveReference(u)
	}
	f.base = u
}

func (s *scanner) close(name xml.Name) error {
	if len(s.stack) == 0 {
		return s.fail("</%s> closes nothing", clip(qname(name)))
	}
	f := s.stack[len(s.stack)-1]
	if f.name != name {
		return s.fail("<%s> is closed by </%s>", clip(qname(f.name)), clip(qname(name)))
	}
	s.stack = s.stack[:len(s.stack)-1]
	s.ns = s.ns[:f.ns]
	return nil
}

// attr returns the value of an attribute of the current start tag.
func (s *scanner) attr(space, local string) (value string, ok bool) {
	for i := range s.attrs {
		if a := &s.attrs[i]; a.Name.Local == local && a.Name.Space == space {
			return a.Value, true
		}
	}
	return "", false
}

var reference = regexp.MustCompile(`&#(x?)([0-9a-fA-F]+);`)

// checkReferences refuses references to surrogates (XML 1.0 4.1), of which
// encoding/xml makes U+FFFD. It is called where there is a U+FFFD.
func (s *scanner) checkReferences() error {
	for _, m := range reference.FindAllSubmatch(s.raw(), -1) {
		base := 10
		if len(m[1]) > 0 {
			base = 16
		}
		if n, err := strconv.ParseUint(string(m[2]), base, 32); err == nil && n >= 0xD800 && n <= 0xDFFF {
			return s.fail("%s is no character", clip(string(m[0])))
		}
	}
	return nil
}

func qname(n xml.Name) string {
	if n.Space == "" {
		return n.Local
	}
	return n.Space + ":" + n.Local
}

// fail returns a DocumentError at the current token.
func (s *scanner) fail(format string, args ...any) error {
	return &DocumentError{URL: s.url, Line: s.line, Column: s.column, Reason: fmt.Sprintf(format, args...)}
}

func (s *scanner) cap(f *faultError) error {
	return &DocumentError{URL: s.url, Line: s.line, Column: s.column, Cap: f.cap, Reason: f.reason}
}

// broken tells what an error of the decoder means: the end, a fault of the
// document, or of what brings it.
func (s *scanner) broken(err error) error {
	line, column := s.dec.InputPos()
	if column < 1 {
		// The decoder has put a line break back and is between two lines.
		line, column = s.line, s.column
	}
	at := &DocumentError{URL: s.url, Line: line, Column: column}
	var fault *faultError
	var syntax *xml.SyntaxError
	switch {
	case err == io.EOF && !s.rooted:
		at.Reason = "the document is empty; want an Atom Feed Document"
	case err == io.EOF && len(s.stack) > 0:
		at.Reason = fmt.Sprintf("the document is cut off inside <%s>", clip(qname(s.stack[len(s.stack)-1].name)))
	case err == io.EOF:
		return io.EOF
	case errors.As(err, &fault):
		at.Cap, at.Reason = fault.cap, fault.reason
	case s.src.err != nil && s.src.err != io.EOF:
		return fmt.Errorf("%s: reading the document: %w", place(s.url, line, column), s.src.err)
	case errors.As(err, &syntax) && s.src.err == io.EOF && strings.HasPrefix(syntax.Msg, "unexpected EOF"):
		at.Reason = "the document is cut off"
	case errors.As(err, &syntax):
		at.Reason = "broken XML: " + clip(syntax.Msg)
	default:
		at.Reason = "broken XML: " + clip(err.Error())
	}
	return at
}
