package strictxml

import (
	"encoding/xml"
	"strings"
	"unicode/utf8"
)

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

// longestName keeps long names, of which each would be another, from staying.
const longestName = 100

// place is where a name is looked for. Those of one document seldom agree in
// length, first and last byte.
func (n *names) place(raw []byte) **name {
	length := len(raw)
	return &n[uint8(length*61)^raw[0]*7^raw[length-1]*29]
}

// name reads a name. want says in a message what was to be there.
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
func isName(s string) bool {
	if c := s[0]; c == '-' || c == '.' || '0' <= c && c <= '9' {
		return false
	}
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return isForeignName(s)
		}
	}
	return true
}

// isForeignName asks encoding/xml, whose tables are those of XML 1.0's fourth
// edition: the fifth allows more, and what it adds nobody else would read.
func isForeignName(s string) bool {
	_, err := xml.NewDecoder(strings.NewReader("<" + s + "/>")).RawToken()
	return err == nil
}

// inName reports whether a name goes on with c, the first byte of a character. Of
// those that are not ASCII it is found out when the name is whole.
func inName(c byte) bool {
	return c|0x20-'a' < 26 || c-'0' <= ':'-'0' || c == '_' || c == '-' || c == '.' || c >= utf8.RuneSelf
}

// isWhite reports whether c is white space (XML 1.0, 2.3).
func isWhite(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
