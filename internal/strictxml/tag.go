package strictxml

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"unicode/utf8"
)

// written is an attribute as it stands in a tag. Its value ends at end in
// Scanner.values, where the next one begins.
type written struct {
	*name
	end int
}

func (s *Scanner) startTag() error {
	s.src.pos++
	n, err := s.name("element name after <")
	if err != nil {
		return err
	}
	switch {
	case s.rooted && len(s.stack) == 0:
		return s.Fail("a second root element <%s>", Clip(n.local))
	case len(s.stack) >= s.o.Limits.Depth:
		return s.cap(&fault{cap: CapDepth, reason: fmt.Sprintf("elements are nested deeper than %d", s.o.Limits.Depth)})
	}
	s.rooted = true
	s.written, s.values = s.written[:0], s.values[:0]
	for {
		c, passed, err := s.space()
		switch {
		case err != nil:
			return err
		case c == '>':
			s.src.pos++
			return s.open(n)
		case c == '/':
			if ok, err := s.opens("/>"); err != nil || !ok {
				return s.orBroken(err, "expected /> in element")
			}
			s.empty = true
			return s.open(n)
		case !passed && inName(c):
			return s.broken("no white space before an attribute")
		case len(s.written) == s.o.Limits.Attributes:
			return s.cap(&fault{cap: CapAttributes, reason: fmt.Sprintf("an element has more than %d attributes", s.o.Limits.Attributes)})
		}
		if err := s.attribute(); err != nil {
			return err
		}
	}
}

// attribute reads name, equals sign and value into written and values.
func (s *Scanner) attribute() error {
	n, err := s.name("attribute name in element")
	if err != nil {
		return err
	}
	if c, _, err := s.space(); err != nil || c != '=' {
		s.src.pos++
		return s.orBroken(err, "attribute name without = in element")
	}
	s.src.pos++
	quote, _, err := s.space()
	s.src.pos++
	if err != nil || quote != '"' && quote != '\'' {
		return s.orBroken(err, "unquoted or missing attribute value in element")
	}
	end, err := s.findQuote(quote)
	if err != nil {
		return err
	}
	raw, changes, err := s.content(end, inValue)
	if err != nil {
		return err
	}
	s.src.pos++
	if changes {
		s.values = resolve(s.values, raw, inValue)
	} else {
		s.values = append(s.values, raw...)
	}
	s.written = append(s.written, written{n, len(s.values)})
	return nil
}

// findQuote finds the end of a value. Where it is not in sight, a < shows that
// the quote was forgotten, before the rest of the document is taken for the value.
func (s *Scanner) findQuote(quote byte) (int, error) {
	for searched := 0; ; {
		rest := s.src.buf[s.src.pos+searched:]
		if i := bytes.IndexByte(rest, quote); i >= 0 {
			return s.src.pos + searched + i, nil
		}
		if i := bytes.IndexByte(rest, '<'); i >= 0 {
			s.src.pos += searched + i + 1
			return 0, s.broken("unescaped < in an attribute value, or no closing quote")
		}
		searched += len(rest)
		if err := s.src.fill(); err != nil {
			return 0, err
		}
	}
}

// longestShared is up to how many bytes the values of a tag are made one string. A
// caller that keeps one value of a string keeps all of it in memory.
const longestShared = 1024

// attributes makes Attrs of what was written, and takes out the namespace
// declarations.
func (s *Scanner) attributes() error {
	s.Attrs = s.Attrs[:0]
	outer := len(s.ns)
	shared := ""
	if len(s.values) <= longestShared {
		shared = string(s.values)
	}
	start := 0
	for _, w := range s.written {
		value := ""
		if shared != "" {
			value = shared[start:w.end]
		} else {
			value = string(s.values[start:w.end])
		}
		start = w.end
		if !w.declares() {
			s.Attrs = append(s.Attrs, xml.Attr{Name: xml.Name{Space: w.prefix, Local: w.local}, Value: value})
			continue
		}
		prefix := w.local
		if w.prefix == "" {
			prefix = ""
		}
		if err := s.declare(w, prefix, value, outer); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scanner) endTag() error {
	s.src.pos += len("</")
	if len(s.stack) > 0 && s.closes(s.stack[len(s.stack)-1].name.raw) {
		s.pop()
		return nil
	}
	n, err := s.name("element name after </")
	if err != nil {
		return err
	}
	if c, _, err := s.space(); err != nil || c != '>' {
		s.src.pos++
		return s.orBroken(err, "invalid characters between </"+n.local+" and >")
	}
	s.src.pos++
	if len(s.stack) == 0 {
		return s.Fail("</%s> without a start tag", Clip(n.raw))
	}
	if open := s.stack[len(s.stack)-1].name; open.raw != n.raw {
		return s.Fail("<%s> is closed by </%s>", Clip(open.raw), Clip(n.raw))
	}
	s.pop()
	return nil
}

// closes passes over the name and the > when they are there as they mostly are: in
// sight and without white space.
func (s *Scanner) closes(name string) bool {
	rest := s.src.buf[s.src.pos:]
	if len(rest) <= len(name) || rest[len(name)] != '>' || string(rest[:len(name)]) != name {
		return false
	}
	s.src.pos += len(name) + 1
	return true
}

// pop closes the innermost element.
func (s *Scanner) pop() {
	f := s.stack[len(s.stack)-1]
	s.Kind = EndTag
	s.stack = s.stack[:len(s.stack)-1]
	s.undeclare(f.ns)
}

// name is the name of an element or attribute, or the target of a processing
// instruction.
type name struct {
	raw           string // as written
	prefix, local string // raw, cut at its colon

	// space is the namespace of the prefix while Scanner.scope is scope.
	space string
	scope uint64
}

// declares reports whether an attribute of this name is a namespace declaration.
func (n *name) declares() bool { return n.prefix == "xmlns" || n.raw == "xmlns" }

// names holds names that were met, each at its place, so that a name that comes
// again and again is made and checked once. A rarer one may take the place of
// another.
type names [256]*name

// longestName is up to how many bytes a name is kept: long names that all differ would
// fill the memory.
const longestName = 100

// place is where a name is looked for. Those of one document seldom agree in
// length, first and last byte.
func (n *names) place(raw []byte) **name {
	length := len(raw)
	return &n[uint8(length*61)^raw[0]*7^raw[length-1]*29]
}

// name reads a name. want names, for a message, what was expected.
func (s *Scanner) name(want string) (*name, error) {
	start := s.src.pos - s.src.token // a fill may move the token
	for {
		b, i := s.src.buf, s.src.pos
		for i < len(b) && inName(b[i]) {
			i++
		}
		s.src.pos = i
		if i < len(b) {
			break
		}
		if err := s.src.fill(); err != nil {
			return nil, err
		}
	}
	raw := s.src.buf[s.src.token+start : s.src.pos]
	if len(raw) == 0 {
		return nil, s.broken("expected " + want)
	}
	place := s.names.place(raw)
	if n := *place; n != nil && n.raw == string(raw) {
		return n, nil
	}
	n := &name{raw: string(raw)}
	if reason := n.split(); reason != "" {
		return nil, s.broken(reason)
	}
	// A name with a wrong letter is another name, which would be passed over: the item
	// would have another identifier.
	if s.reported[notUTF8] && strings.ContainsFunc(n.raw, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return nil, s.broken("name with bytes that are not UTF-8: " + n.raw)
	}
	if len(raw) <= longestName {
		*place = n
	}
	return n, nil
}

// split cuts a name into prefix and local part and checks both (Namespaces in
// XML 1.0, 4).
func (n *name) split() (reason string) {
	colon := false
	n.prefix, n.local, colon = strings.Cut(n.raw, ":")
	switch {
	case !colon:
		n.prefix, n.local = "", n.raw
	case n.prefix == "" || n.local == "":
		return n.raw + " has a prefix that is not declared"
	case strings.Contains(n.local, ":") || !isName(n.prefix):
		return "invalid XML name: " + n.raw
	}
	if !isName(n.local) {
		return "invalid XML name: " + n.raw
	}
	return ""
}

// isName reports whether s is a name. It is not empty, and all its bytes are inName.
// Of a name beyond ASCII encoding/xml decides, whose tables are those of XML 1.0's
// fourth edition: the fifth allows more, which other readers refuse.
func isName(s string) bool {
	if c := s[0]; c == '-' || c == '.' || '0' <= c && c <= '9' {
		return false
	}
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			_, err := xml.NewDecoder(strings.NewReader("<" + s + "/>")).RawToken()
			return err == nil
		}
	}
	return true
}

// inName reports whether a name goes on with c, the first byte of a character. Of
// those that are not ASCII it is found out when the name is whole.
func inName(c byte) bool {
	return c|0x20-'a' < 26 || c-'0' <= ':'-'0' || c == '_' || c == '-' || c == '.' || c >= utf8.RuneSelf
}

// isWhite reports whether c is white space (XML 1.0, 2.3).
func isWhite(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
