package strictxml

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"golang.org/x/text/transform"
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

// Instructions says where a document may have processing instructions. The XML
// declaration is none.
type Instructions uint8

// Where processing instructions may be; elsewhere they are refused.
const (
	InstructionsAnywhere Instructions = iota
	InstructionsOutside               // of the root
	InstructionsNowhere
)

// Options is what a Scanner needs besides the bytes of the document. The zero value is
// valid.
type Options struct {
	// URL is the document's final URL, the base of its references; errors name
	// it.
	URL string
	// ContentType is the value of the header field, for its charset.
	ContentType string
	// Lenient reads what legacy feeds get wrong most often as it was meant, and
	// reports each kind of defect once: an "&" that begins no reference, entities of
	// HTML, control characters, bytes that are no UTF-8 (they are windows-1252), white
	// space before the XML declaration, prefixes that are not declared. What is
	// well-formed it reads like a strict Scanner, and different identifiers stay
	// different.
	//
	// The names of charsets have the meaning that they have on the web (WHATWG Encoding
	// Standard), where "us-ascii" and "iso-8859-1" are windows-1252, and "iso-8859-9" is
	// windows-1254. For a strict Scanner they are what their names say (RFC 7303, 3),
	// and a byte beyond ASCII is a fault in us-ascii.
	Lenient bool
	// Mend makes a document well-formed that is not, and reports each kind of defect once:
	// what is no character of XML, raw or as a reference, and bytes that are not of the
	// charset become U+FFFD, entities of HTML what they stand for, and an "&" or "]]>"
	// that may not be there is escaped. A DOCTYPE that defines nothing is passed over.
	// What Slice and Element return is mended too. What is well-formed is read in the same
	// way with it and without it. It does not go with Lenient.
	Mend bool
	// UTF8: the document ought to be in UTF-8. One that says that it is in a charset of
	// single bytes is read as that only where its bytes are not UTF-8. What the XML
	// declaration says counts before the Content-Type.
	UTF8 bool
	// Prefixes has the namespaces of prefixes that a lenient Scanner meets undeclared.
	// Others are of the namespace "urn:undeclared:" and the prefix.
	Prefixes map[string]string
	Limits   Limits
	// Instructions says where processing instructions may be.
	Instructions Instructions
	// Want names what the caller reads, with its article, for messages.
	Want string
	// Namespaces are those that the caller looks for. Scanner.Space is the very
	// string given here, so that comparing it is comparing a pointer.
	Namespaces []string
	// Report is called with defects that do not end the reading; nil is allowed. It is
	// called from within Next.
	Report func(Notice)
	// Context, when it is done, ends the reading of a document that is in memory; nil is
	// allowed.
	Context context.Context
}

// contextTokens is after how many tokens the context is looked at.
const contextTokens = 4096

// Scanner reads the tokens of a document without a document type (XML 1.0, fourth
// edition, and Namespaces in XML 1.0): it resolves the five predefined entities and
// character references, and no others. It refuses a document that is not well-formed or
// exceeds a cap. Its fields describe the current token and are valid until Next,
// Characters or Skip is called; strings stay valid. It is not safe for concurrent use.
type Scanner struct {
	Kind         Kind
	Space, Local string // of a start tag: its namespace and name
	// Attrs are those of a start tag, in document order and without namespace
	// declarations; the namespace of each is in Name.Space. They stay until the
	// next start tag.
	Attrs        []xml.Attr
	Data         []byte // of text
	Line, Column int    // where the token starts, from 1; columns count bytes of UTF-8
	Start        int64  // the same as an offset in the UTF-8 document

	in        io.Reader
	o         Options
	src       source
	lineStart int64 // the offset of the line in which the token starts
	names     names
	err       error // what Next has ended with

	// Scratch: what resolve has made of a text, the text of Characters, a tag's
	// attributes and their values, need.settled.
	resolved, text, values []byte
	written                []written
	settled                []bool

	stack []frame
	ns    []binding
	// innermost is the index in ns of each prefix that is bound, scope a number
	// that changes whenever one is bound or no longer is.
	innermost map[string]int
	scope     uint64
	// document is the base made of the document's URL; spent counts the bytes that Resolve
	// has handled.
	document *Base
	spent    int64
	tokens   uint
	stated   bool // the charset was stated before the first token was read
	rooted   bool // the root has been seen
	empty    bool // the current start tag is its end tag as well
	// reported are the kinds of defects that were reported by a Scanner that is lenient
	// or mends.
	reported map[string]bool
	// places counts the texts, values and so on that were mended, and mending is where one is.
	places  int
	mending []byte
}

// New returns a scanner of the document in r. Nothing is read before Next is
// called.
func New(r io.Reader, o Options) *Scanner {
	o.Limits = o.Limits.WithDefaults()
	return &Scanner{
		in: r, o: o, src: newSource(r, o.Limits),
		ns: []binding{{Binding{"xml", Namespace}, -1}}, innermost: map[string]int{"xml": 0}, scope: 1,
		document: documentBase(o.URL),
	}
}

// Reset begins another document, which is in memory and must not change while it is read.
// The zero Scanner can be reset too. What the Scanner needs itself is used again, and of a
// document in UTF-8 nothing is copied: Slice returns parts of it, which stay valid.
func (s *Scanner) Reset(doc []byte, o Options) {
	if s.innermost == nil {
		*s = *New(nil, o)
	}
	clear(s.innermost)
	s.innermost["xml"] = 0
	o.Limits = o.Limits.WithDefaults()
	*s = Scanner{
		in: &memory{doc}, o: o, src: newSource(bytes.NewReader(doc), o.Limits), names: s.names,
		Attrs: s.Attrs[:0], resolved: s.resolved, text: s.text, values: s.values, written: s.written, settled: s.settled, mending: s.mending,
		stack: s.stack[:0], ns: s.ns[:1], innermost: s.innermost, scope: s.scope + 1, document: documentBase(o.URL),
	}
	if int64(len(doc)) > o.Limits.Document {
		s.in = bytes.NewReader(doc)
	}
}

var scanners = sync.Pool{New: func() any { return new(Scanner) }}

// shortDocument is up to how many bytes a document has whose Scanner, with its buffers, is kept for others.
const shortDocument = 64 << 10

// Read runs read with a Scanner of a document in memory, which must not change meanwhile. The
// Scanner is used again: what read keeps of it has to be a copy.
func Read(doc []byte, o Options, read func(s *Scanner) error) error {
	s := scanners.Get().(*Scanner) //nolint:forcetypeassert // there are no others
	s.Reset(doc, o)
	err := read(s)
	if len(doc) <= shortDocument {
		s.Reset(nil, Options{}) // lets go of the document
		scanners.Put(s)
	}
	return err
}

// begin sets up the decoding.
func (s *Scanner) begin() {
	var doc peeker
	if m, ok := s.in.(*memory); ok {
		doc = m
	} else {
		doc = bufio.NewReaderSize(&capped{r: s.in, left: s.o.Limits.Document, cap: s.o.Limits.Document}, head)
	}
	in, stated, note, err := decoded(doc, &s.o)
	if err != nil {
		// The first token returns the error, with its place.
		in = errorReader{err}
	}
	if m, ok := in.(*memory); ok && !s.o.Lenient && !s.o.Mend {
		s.src.buf, s.src.err = m.rest[:len(m.rest):len(m.rest)], io.EOF
	}
	if s.o.Lenient {
		in = transform.NewReader(in, &mender{report: s.mended, line: 1, column: 1})
	}
	s.src.r, s.stated = in, stated
	s.Line = 1
	if note != "" {
		expected := "one charset; that of Content-Type is used"
		if s.o.UTF8 {
			expected = "UTF-8"
		}
		s.report(Notice{About: AboutCharset, Line: 1, Column: 1, Found: note, Expected: expected})
	}
}

type errorReader struct{ err error }

func (e errorReader) Read([]byte) (int, error) { return 0, e.err }

func (s *Scanner) report(n Notice) {
	if s.o.Report != nil {
		s.o.Report(n)
	}
}

// mended reports a defect that is read as it was meant, if it is the first of its kind.
func (s *Scanner) mended(about About, line, column int, what string) {
	if s.reported[what] {
		return
	}
	if s.reported == nil {
		s.reported = map[string]bool{}
	}
	s.reported[what] = true
	s.report(Notice{About: about, Line: line, Column: column, Found: what})
}

// Lang is the language in force at the current token, as xml:lang states it (XML
// 1.0, 2.12): that of a start tag counts for it already. It is "" when unknown.
func (s *Scanner) Lang() string {
	if len(s.stack) == 0 {
		return ""
	}
	return s.stack[len(s.stack)-1].lang
}

// Depth is the number of elements that are open; a start tag has opened its own,
// an end tag has closed it.
func (s *Scanner) Depth() int { return len(s.stack) }

// Next reads the next start tag, end tag or text. A *DocumentError says that the
// document is at fault; any other error is one of the underlying reader, wrapped with
// the place. io.EOF comes only after the whole document: every byte was read, the root
// was closed, and nothing but comments and white space followed. After an error every
// further call returns the same.
func (s *Scanner) Next() error {
	if s.err != nil {
		return s.err
	}
	if s.src.r == nil {
		s.begin()
	}
	if s.tokens++; s.tokens%contextTokens == 0 && s.o.Context != nil && s.o.Context.Err() != nil {
		s.err = fmt.Errorf("%s: reading the document: %w", Place(s.o.URL, s.Line, s.Column), context.Cause(s.o.Context))
		return s.err
	}
	for {
		// The end of a token is the start of the next.
		s.Line, s.lineStart = s.place()
		s.Start = s.src.offset()
		s.Column = int(s.Start-s.lineStart) + 1
		s.src.token = s.src.pos
		if s.empty {
			s.empty = false
			s.pop()
			return nil
		}
		done, err := s.token()
		switch {
		case err != nil:
			s.err = s.placed(err)
			return s.err
		case s.src.pos-s.src.token > s.o.Limits.Text:
			s.err = s.cap(tooLong(s.o.Limits))
			return s.err
		case done:
			return nil
		}
	}
}

// place returns the line of what comes next, and the offset where it starts.
func (s *Scanner) place() (line int, start int64) {
	line, start = s.Line, s.lineStart
	read := s.src.buf[s.src.token:s.src.pos]
	for i := bytes.IndexByte(read, '\n'); i >= 0; i = bytes.IndexByte(read, '\n') {
		read = read[i+1:]
		line, start = line+1, s.src.offset()-int64(len(read))
	}
	return line, start
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

// Fail returns a *DocumentError at the current token.
func (s *Scanner) Fail(format string, args ...any) error {
	return &DocumentError{URL: s.o.URL, Line: s.Line, Column: s.Column, Reason: fmt.Sprintf(format, args...)}
}

func (s *Scanner) cap(f *fault) error {
	return &DocumentError{URL: s.o.URL, Line: s.Line, Column: s.Column, Cap: f.cap, Reason: f.reason}
}

// broken returns a *DocumentError at the place that has been reached.
func (s *Scanner) broken(reason string) error {
	line, start := s.place()
	return &DocumentError{URL: s.o.URL, Line: line, Column: int(s.src.offset()-start) + 1, Reason: "broken XML: " + Clip(reason)}
}

// placed returns an error inside a token as one of Next: a fault of the document, its
// early end, or an error of the underlying reader.
func (s *Scanner) placed(err error) error {
	var at *DocumentError
	if errors.As(err, &at) {
		return at
	}
	if err == io.EOF && s.rooted && len(s.stack) == 0 && s.src.token == len(s.src.buf) {
		return io.EOF
	}
	s.src.pos = len(s.src.buf)
	line, start := s.place()
	at = &DocumentError{URL: s.o.URL, Line: line, Column: int(s.src.offset()-start) + 1}
	var found *fault
	switch {
	case errors.As(err, &found):
		at.Cap, at.Reason = found.cap, found.reason
	case err != io.EOF:
		return fmt.Errorf("%s: reading the document: %w", Place(s.o.URL, line, at.Column), err)
	case bytes.HasPrefix(s.src.buf[s.src.token:], []byte{'<'}):
		at.Reason = "the document is cut off"
	case !s.rooted:
		at.Reason = "the document is empty"
		if s.o.Want != "" {
			at.Reason += "; want " + s.o.Want
		}
	case len(s.stack) > 0:
		at.Reason = fmt.Sprintf("the document is cut off inside <%s>", Clip(s.stack[len(s.stack)-1].name.raw))
	default:
		return io.EOF
	}
	return at
}

// Characters reads the text of the element whose start tag is the current token,
// up to its end. markup: there were elements in it, whose text is part
// of it. The text is valid until Characters is called again.
func (s *Scanner) Characters() (text []byte, markup bool, err error) {
	s.text = s.text[:0]
	for depth := s.Depth(); s.Depth() >= depth; {
		if err := s.Next(); err != nil {
			return nil, false, err
		}
		switch s.Kind {
		case StartTag:
			markup = true
		case Text:
			if len(s.text)+len(s.Data) > s.o.Limits.Text {
				return nil, false, s.cap(tooLong(s.o.Limits))
			}
			s.text = append(s.text, s.Data...)
		}
	}
	return s.text, markup, nil
}

// Children calls read at the start tag of each child of the element whose start tag
// is the current token, up to that one's end. read reads the child to its end.
func (s *Scanner) Children(read func() error) error {
	for depth := s.Depth(); ; {
		if err := s.Next(); err != nil {
			return err
		}
		switch {
		case s.Kind == EndTag && s.Depth() < depth:
			return nil
		case s.Kind == StartTag:
			if err := read(); err != nil {
				return err
			}
		}
	}
}

// Skip reads to the end of the element whose start tag is the current token.
func (s *Scanner) Skip() error {
	for depth := s.Depth(); s.Depth() >= depth; {
		if err := s.Next(); err != nil {
			return err
		}
	}
	return nil
}

// Recover goes on behind an element that could not be read, after Next has returned a
// *DocumentError inside of it: to the next end tag that is written as that of the
// innermost element but depth. That becomes the current token. It reports whether there
// was one. It does not check what stands in between. The end tag may be inside of a
// comment or CDATA section, or that of an element inside which has the same name; then the
// document is not well-formed after it. Of an element inside that was open it is passed over
// where the end tag of that one's parent follows. For what stands in between only the limit of
// the document counts.
func (s *Scanner) Recover(depth int) bool {
	if len(s.stack) < depth || depth < 1 || !errors.As(s.err, new(*DocumentError)) {
		return false
	}
	if long, ok := errors.AsType[*fault](s.src.err); ok && long.cap == CapText {
		limit := s.src.limits.Text
		s.src.err, s.src.limits.Text = nil, math.MaxInt
		defer func() { s.src.limits.Text = limit }()
	}
	if s.src.err != nil && s.src.err != io.EOF {
		return false
	}
	mark := "</" + s.stack[depth-1].name.raw
	for s.src.pos = s.src.token; ; {
		at, err := s.src.find(mark)
		if err != nil {
			return false
		}
		s.src.pos = at + len(mark)
		switch c, _, err := s.space(); {
		case err != nil:
			return false
		case c == '>':
			s.src.pos++
			if s.closesInside(depth) {
				continue
			}
			for len(s.stack) >= depth {
				s.pop()
			}
			s.err, s.empty = nil, false
			return true
		}
	}
}

// closesInside reports whether the end tag that was read last is rather that of an open
// element inside of the innermost one but depth, which has the same name, as a record of
// MARC in one of OAI-PMH: the end tag of its parent follows.
func (s *Scanner) closesInside(depth int) bool {
	end := s.src.pos - s.src.token // reading on may move the token
	defer func() { s.src.pos = s.src.token + end }()
	if _, _, err := s.space(); err != nil {
		return false
	}
	for i := depth; i < len(s.stack); i++ {
		if s.stack[i].name.raw == s.stack[depth-1].name.raw && s.endsNext(s.stack[i-1].name.raw) {
			return true
		}
	}
	return false
}

// endsNext reports whether an end tag with a name comes next.
func (s *Scanner) endsNext(name string) bool {
	for i, mark := 0, "</"+name; i < len(mark); i++ {
		if c, err := s.src.ahead(i); err != nil || c != mark[i] {
			return false
		}
	}
	c, err := s.src.ahead(len("</") + len(name))
	return err == nil && !inName(c)
}

// Keep makes the bytes of the document from an offset on available to Slice,
// until it is called again. The offset is that of the current token, or a later
// one; a negative one keeps nothing.
func (s *Scanner) Keep(from int64) { s.src.keep = from }

// Offset is where the current token ends, in bytes of the UTF-8 document.
func (s *Scanner) Offset() int64 { return s.src.offset() }

// Slice returns the bytes of the document between two offsets that are kept. They
// are valid until Next is called.
func (s *Scanner) Slice(from, to int64) []byte { return s.src.slice(from, to) }

// longestFrame is how long the start tag may be that Frame returns, in bytes, but
// for its xml:base.
const longestFrame = 4 << 10

// FrameBudget returns how many bytes of frames may be put in front of children of a
// document of which read bytes were read.
func FrameBudget(read int64) int64 { return 1<<20 + 4*read }

// Frame returns what makes a child of the root a document of its own, to be put
// before and after its bytes: the root's name, namespaces and xml:base, and
// nothing that changes from document to document. The namespaces that the caller
// looks for come first; of the others those are left out that would be too much,
// as a child may have a few bytes. The current token is the root's start tag.
func (s *Scanner) Frame() (before []byte, after string, err error) {
	root := s.stack[0]
	if len(root.name.raw) > longestFrame/2 {
		return nil, "", s.Fail("the root's name is longer than %d bytes", longestFrame/2)
	}
	before = append(before, "<"+root.name.raw...)
	for _, sought := range []bool{true, false} {
		for _, b := range s.ns[root.ns:] {
			attr := ` xmlns="`
			if b.Prefix != "" {
				attr = " xmlns:" + b.Prefix + `="`
			}
			if b.Prefix == "xml" || slices.Contains(s.o.Namespaces, b.Space) != sought || len(before)+len(attr)+len(b.Space) > longestFrame {
				continue
			}
			was := len(before)
			if before = AppendAttr(before, attr, b.Space); len(before) > longestFrame {
				before = before[:was]
			}
		}
	}
	if _, ok := s.Attr(Namespace, "base"); ok && root.base != nil {
		u, err := s.baseURL(root.base)
		if err != nil {
			return nil, "", s.Fail("the root's xml:base cannot be taken: %v", err)
		}
		before = AppendAttr(before, ` xml:base="`, u.String())
	}
	return append(before, '>'), "</" + root.name.raw + ">", nil
}

// What names, for messages, the kind of document whose root is the current start tag.
func (s *Scanner) What() string {
	const atom = "http://www.w3.org/2005/Atom"
	name := strings.ToLower(s.Local)
	switch {
	case s.Space == atom && s.Local == "feed":
		return "an Atom Feed Document"
	case s.Space == atom && s.Local == "entry":
		return "an Atom Entry Document"
	case s.Local == "feed" && s.Space == "http://purl.org/atom/ns#":
		return "an Atom 0.3 feed"
	case name == "rss":
		v, _ := s.Attr("", "version")
		return strings.TrimSpace("RSS " + Clip(v))
	case s.Local == "RDF":
		return "RDF, perhaps RSS 1.0"
	case name == "html":
		return "an HTML page"
	case s.Local == "urlset", s.Local == "sitemapindex":
		return "a sitemap or ResourceSync document <" + s.Local + ">"
	case s.Local == "OAI-PMH":
		return "an OAI-PMH response"
	case s.Local == "Envelope":
		return "a SOAP message"
	case s.Space == "":
		return fmt.Sprintf("<%s> without a namespace", Clip(s.Local))
	}
	return fmt.Sprintf("<%s> in namespace %q", Clip(s.Local), Clip(s.Space))
}
