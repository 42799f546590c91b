package strictxml

import (
	"bufio"
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

// Kind is the kind of a token.
type Kind uint8

// The kinds of tokens. Comments and processing instructions are passed over, and
// so is white space outside of the root.
const (
	StartTag Kind = iota + 1
	EndTag
	Text
)

// Options says what a Scanner has to know besides the bytes. The zero value is
// valid.
type Options struct {
	// URL is the document's final URL, the base of its references; errors name
	// it.
	URL string
	// ContentType is the value of the header field, for its charset.
	ContentType string
	Limits      Limits
	// Want names what the caller reads, with its article, for messages.
	Want string
	// Namespaces are those that the caller looks for. Scanner.Space is the very
	// string given here, so that comparing it is comparing a pointer.
	Namespaces []string
	// Report is told of defects that can be read over; nil is allowed. It is
	// called from within Next.
	Report func(Notice)
}

// Scanner reads XML tokens and checks what encoding/xml lets pass: namespaces,
// duplicate attributes, one root, the caps. What its fields hold belongs to the
// current token and is valid until Next, Characters or Skip is called. It is not
// safe for concurrent use.
type Scanner struct {
	Kind         Kind
	Space, Local string // of a start tag: its namespace and name
	// Attrs are those of a start tag, in document order and without namespace
	// declarations; the namespace of each is in Name.Space.
	Attrs        []xml.Attr
	Data         []byte // of text
	Line, Column int    // where the token starts, from 1; columns count bytes of UTF-8
	Start        int64  // the same as an offset in the UTF-8 document

	in   io.Reader
	o    Options
	src  *source
	dec  *xml.Decoder // of the current token, when it was not a simple one
	text []byte       // scratch of Characters

	end       int64      // offset of the first byte behind the current token
	line      int        // of that byte, and
	lineStart int64      // the offset where this line starts
	closing   bool       // the current token is a start tag that closes itself
	scratch   []xml.Attr // for Attrs
	names     map[string]xml.Name
	classes   *classTable

	stack  []frame
	ns     []binding
	rooted bool // the root has been seen
}

type frame struct {
	name xml.Name // as written
	ns   int      // length of Scanner.ns outside of the element
	base *url.URL // nil when neither xml:base nor the document's URL is known
}

type binding struct{ prefix, space string }

// New returns a scanner of the document in r. Nothing is read before Next is
// called.
func New(r io.Reader, o Options) *Scanner {
	o.Limits = o.Limits.withDefaults()
	return &Scanner{in: r, o: o, ns: []binding{{"xml", Namespace}}, names: map[string]xml.Name{}, classes: newClassTable()}
}

// begin sets up the decoding.
func (s *Scanner) begin() {
	whole := &capped{r: s.in, left: s.o.Limits.Document, cap: s.o.Limits.Document}
	in, note, err := decoded(bufio.NewReader(whole), s.o.ContentType)
	if err != nil {
		// The first token will say it, with its place.
		in = errorReader{err}
	}
	s.src = newSource(in, s.o.Limits)
	s.line = 1
	if note != "" {
		s.report(Notice{About: AboutCharset, Line: 1, Column: 1, Found: note, Expected: "one charset; that of Content-Type is taken"})
	}
}

type errorReader struct{ err error }

func (e errorReader) Read([]byte) (int, error) { return 0, e.err }

func (s *Scanner) report(n Notice) {
	if s.o.Report != nil {
		s.o.Report(n)
	}
}

// Base is the base URI in force at the current token: that of a start tag counts
// for it already. It is nil when neither xml:base nor the document's URL is
// known.
func (s *Scanner) Base() *url.URL {
	if len(s.stack) > 0 {
		return s.stack[len(s.stack)-1].base
	}
	u, err := url.Parse(s.o.URL)
	if err != nil || s.o.URL == "" {
		return nil
	}
	return u
}

// Depth is the number of elements that are open; a start tag has opened its own,
// an end tag has closed it.
func (s *Scanner) Depth() int { return len(s.stack) }

// Next reads the next start tag, end tag or text. A *DocumentError says that the
// document is at fault; any other error comes from below, wrapped with the place.
// io.EOF comes only after the whole document: every byte was read, the root was
// closed, and nothing but comments and white space followed.
func (s *Scanner) Next() error {
	if s.src == nil {
		s.begin()
	}
	for {
		s.Start, s.Line, s.Column = s.end, s.line, int(s.end-s.lineStart)+1
		s.src.startToken(s.Start)
		if s.closing {
			s.closing = false
			return s.close(s.stack[len(s.stack)-1].name)
		}
		if done, err := s.simple(); done {
			return err
		}
		if done, err := s.decode(); done {
			return err
		}
	}
}

// decode reads the next token by encoding/xml. done is false when there is
// nothing to be said of it.
//
// The decoder is new for each token: it may hold back a byte that it has read,
// and an end tag that it makes of a start tag, and both are ours.
func (s *Scanner) decode() (done bool, err error) {
	s.dec = xml.NewDecoder(s.src)
	// What arrives is UTF-8 already, whatever the declaration says.
	s.dec.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	tok, err := s.dec.RawToken()
	if err != nil {
		return true, s.broken(err)
	}
	s.take(s.Start + s.dec.InputOffset())
	if s.end-s.Start > int64(s.o.Limits.Text) {
		return true, s.cap(tooLong(s.o.Limits))
	}
	switch t := tok.(type) {
	case xml.StartElement:
		s.closing = bytes.HasSuffix(s.raw(), []byte("/>"))
		return true, s.open(t.Name, t.Attr)
	case xml.EndElement:
		return true, s.close(t.Name)
	case xml.CharData:
		if len(s.stack) > 0 {
			s.Kind, s.Data = Text, t
			return true, s.checkReferences()
		}
		if len(bytes.Trim(t, white)) > 0 || s.raw()[0] == '<' {
			return true, s.outside(t)
		}
	case xml.ProcInst:
		if strings.EqualFold(t.Target, "xml") && s.Start != 0 {
			return true, s.Fail("an XML declaration that is not at the start")
		}
	case xml.Directive:
		if len(t) >= 12 && strings.EqualFold(string(t[:12]), "DOCTYPE html") {
			return true, s.Fail("an HTML page%s (DOCTYPE is refused)", s.not())
		}
		return true, s.Fail("DOCTYPE is refused: documents may not bring their own entities")
	}
	return false, nil
}

// take makes the bytes up to an offset the current token.
func (s *Scanner) take(end int64) {
	s.end = end
	s.src.pos = int(end - s.src.base)
	raw := s.raw()
	if i := bytes.LastIndexByte(raw, '\n'); i >= 0 {
		s.line += bytes.Count(raw, []byte("\n"))
		s.lineStart = s.Start + int64(i) + 1
	}
}

// outside tells of text that no element holds.
func (s *Scanner) outside(text []byte) error {
	const reason = "text outside of the root element"
	if start := bytes.TrimLeft(text, white); !s.rooted && len(start) > 0 && (start[0] == '{' || start[0] == '[') {
		return s.Fail("%s: perhaps JSON%s", reason, s.not())
	}
	return s.Fail(reason)
}

// not says in a message what was wanted instead.
func (s *Scanner) not() string {
	if s.o.Want == "" {
		return ""
	}
	return ", not " + s.o.Want
}

// raw returns the bytes of the current token.
func (s *Scanner) raw() []byte { return s.src.slice(s.Start, s.end) }

// open opens an element with a name and attributes as written.
func (s *Scanner) open(name xml.Name, attrs []xml.Attr) error {
	s.Kind = StartTag
	if s.rooted && len(s.stack) == 0 {
		return s.Fail("a second root element <%s>", Clip(name.Local))
	}
	s.rooted = true
	if len(attrs) > s.o.Limits.Attributes {
		return s.cap(tooManyAttributes(s.o.Limits))
	}
	if len(s.stack) >= s.o.Limits.Depth {
		return s.cap(&fault{cap: CapDepth, reason: fmt.Sprintf("elements are nested deeper than %d", s.o.Limits.Depth)})
	}
	f := frame{name: name, ns: len(s.ns), base: s.Base()}
	attrs, err := s.declare(attrs)
	if err != nil {
		return err
	}
	space, ok := s.lookup(name.Space)
	if !ok || strings.Contains(name.Local, ":") {
		return s.Fail("element <%s> has a prefix that is not declared", Clip(qname(name)))
	}
	s.Space, s.Local = space, name.Local
	if err := s.attributes(attrs, &f); err != nil {
		return err
	}
	s.stack = append(s.stack, f)
	return nil
}

// declare takes the namespace declarations out of the attributes.
func (s *Scanner) declare(attrs []xml.Attr) ([]xml.Attr, error) {
	kept := attrs[:0]
	outer := len(s.ns)
	for _, a := range attrs {
		prefix := ""
		switch {
		case a.Name.Space == "xmlns":
			prefix = a.Name.Local
			if a.Value == "" || prefix == "xmlns" || (prefix == "xml") != (a.Value == Namespace) {
				return nil, s.Fail("namespace declaration xmlns:%s=%q is not allowed", Clip(prefix), Clip(a.Value))
			}
		case a.Name.Space == "" && a.Name.Local == "xmlns":
		default:
			kept = append(kept, a)
			continue
		}
		for _, b := range s.ns[outer:] {
			if b.prefix == prefix {
				return nil, s.Fail("attribute %s is there twice", Clip(qname(a.Name)))
			}
		}
		s.ns = append(s.ns, binding{prefix, s.known(a.Value)})
	}
	return kept, nil
}

// known returns the caller's own string for a namespace that it looks for.
func (s *Scanner) known(space string) string {
	for _, k := range s.o.Namespaces {
		if space == k {
			return k
		}
	}
	return space
}

// lookup finds the namespace of a prefix; no default namespace is "".
func (s *Scanner) lookup(prefix string) (space string, ok bool) {
	for i := len(s.ns) - 1; i >= 0; i-- {
		if s.ns[i].prefix == prefix {
			return s.ns[i].space, true
		}
	}
	return "", prefix == ""
}

// attributes checks the attributes of the element that f opens.
func (s *Scanner) attributes(attrs []xml.Attr, f *frame) error {
	s.Attrs = attrs
	if err := s.checkReferences(); err != nil {
		return err
	}
	for i := range attrs {
		a := &attrs[i]
		if strings.Contains(a.Name.Local, ":") {
			return s.Fail("attribute name %s", Clip(qname(a.Name)))
		}
		if a.Name.Space != "" {
			space, ok := s.lookup(a.Name.Space)
			if !ok {
				return s.Fail("attribute %s has a prefix that is not declared", Clip(qname(a.Name)))
			}
			a.Name.Space = space
			if space == Namespace && a.Name.Local == "base" {
				s.rebase(f, a.Value)
			}
		}
		for j := range i {
			if attrs[j].Name == a.Name {
				return s.Fail("attribute %s is there twice", Clip(qname(a.Name)))
			}
		}
	}
	return nil
}

func (s *Scanner) rebase(f *frame, ref string) {
	u, err := url.Parse(Trim(ref))
	if err != nil {
		s.report(Notice{About: AboutBase, Line: s.Line, Column: s.Column, Found: Clip(ref), Expected: "an IRI reference in xml:base; it is ignored"})
		return
	}
	if f.base != nil {
		u = f.base.ResolveReference(u)
	}
	f.base = u
}

func (s *Scanner) close(name xml.Name) error {
	s.Kind = EndTag
	if len(s.stack) == 0 {
		return s.Fail("</%s> closes nothing", Clip(qname(name)))
	}
	f := s.stack[len(s.stack)-1]
	if f.name != name {
		return s.Fail("<%s> is closed by </%s>", Clip(qname(f.name)), Clip(qname(name)))
	}
	s.stack = s.stack[:len(s.stack)-1]
	s.ns = s.ns[:f.ns]
	return nil
}

// Attr returns the value of an attribute of the current start tag.
func (s *Scanner) Attr(space, local string) (value string, ok bool) {
	for i := range s.Attrs {
		if a := &s.Attrs[i]; a.Name.Local == local && a.Name.Space == space {
			return a.Value, true
		}
	}
	return "", false
}

var reference = regexp.MustCompile(`&#(x?)([0-9a-fA-F]+);`)

// checkReferences refuses references to surrogates (XML 1.0 4.1), of which
// encoding/xml makes U+FFFD.
func (s *Scanner) checkReferences() error {
	raw := s.raw()
	if !bytes.Contains(raw, []byte("&#")) || bytes.HasPrefix(raw, []byte("<![CDATA[")) {
		return nil
	}
	for _, m := range reference.FindAllSubmatch(raw, -1) {
		base := 10
		if len(m[1]) > 0 {
			base = 16
		}
		if n, err := strconv.ParseUint(string(m[2]), base, 32); err == nil && n >= 0xD800 && n <= 0xDFFF {
			return s.Fail("%s is no character", Clip(string(m[0])))
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

// Fail returns a *DocumentError at the current token.
func (s *Scanner) Fail(format string, args ...any) error {
	return &DocumentError{URL: s.o.URL, Line: s.Line, Column: s.Column, Reason: fmt.Sprintf(format, args...)}
}

func (s *Scanner) cap(f *fault) error {
	return &DocumentError{URL: s.o.URL, Line: s.Line, Column: s.Column, Cap: f.cap, Reason: f.reason}
}

// broken tells what an error of the decoder means: the end, a fault of the
// document, or of what brings it.
func (s *Scanner) broken(err error) error {
	line, column := s.dec.InputPos()
	switch {
	case column < 1:
		// The decoder has put a line break back and is between two lines.
		line, column = s.Line, s.Column
	case line == 1:
		line, column = s.Line, s.Column+column-1
	default:
		line += s.Line - 1
	}
	at := &DocumentError{URL: s.o.URL, Line: line, Column: column}
	var found *fault
	var syntax *xml.SyntaxError
	switch {
	case err == io.EOF && !s.rooted:
		at.Reason = "the document is empty"
		if s.o.Want != "" {
			at.Reason += "; want " + s.o.Want
		}
	case err == io.EOF && len(s.stack) > 0:
		at.Reason = fmt.Sprintf("the document is cut off inside <%s>", Clip(qname(s.stack[len(s.stack)-1].name)))
	case err == io.EOF:
		return io.EOF
	case errors.As(err, &found):
		at.Cap, at.Reason = found.cap, found.reason
	case errors.As(err, &syntax) && s.src.err == io.EOF && strings.HasPrefix(syntax.Msg, "unexpected EOF"):
		at.Reason = "the document is cut off"
	case errors.As(err, &syntax):
		at.Reason = "broken XML: " + Clip(syntax.Msg)
	case s.src.err != nil && s.src.err != io.EOF:
		return fmt.Errorf("%s: reading the document: %w", Place(s.o.URL, line, column), s.src.err)
	default:
		at.Reason = "broken XML: " + Clip(err.Error())
	}
	return at
}
