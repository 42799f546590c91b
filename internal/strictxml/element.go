package strictxml

import (
	"bytes"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Element reads the element whose start tag is the current token, and returns a copy of
// its bytes as a document of its own: the namespaces in scope that it may need are
// declared on it (added), all else stays as it is. own are namespaces that surround
// every such element. Elements that are nested deeper than most are an error.
func (s *Scanner) Element(most int, own ...string) (doc []byte, added bool, err error) {
	from, kept := s.Start, s.src.keep
	need := needed(s.Inherited(), own)
	if kept < 0 {
		s.Keep(from)
	}
	for outside := s.Depth() - 1; s.Depth() > outside; {
		if s.Kind == StartTag && s.Depth()-outside > most {
			return nil, false, s.Fail("the record's elements are nested deeper than %d", most)
		}
		if len(need.inherited) > 0 {
			need.element(s)
		}
		if err := s.Next(); err != nil {
			return nil, false, err
		}
	}
	element := s.Slice(from, s.Offset())
	Prefixes(element, need.value)
	doc = need.declaredOn(element)
	added = len(doc) != len(element)
	s.Keep(kept)
	return doc, added, nil
}

// need says which of the namespaces that an element inherits have to be declared on
// it when it becomes a document of its own: those of its names, and those whose
// prefix stands in front of a colon in a value or a text, which may be a QName. The
// others differ from client to client, and the same record is to be the same bytes
// whoever sends it. That is why the namespaces that surround every one (own) count in
// names only, and why nothing is declared for a word without a colon: it may be prose
// about xsd or soap.
type need struct {
	own       []string
	inherited []Binding
	declare   []bool         // of inherited
	at        map[string]int // in inherited, by prefix
}

func needed(inherited []Binding, own []string) *need {
	n := &need{own: own, inherited: inherited, declare: make([]bool, len(inherited)), at: make(map[string]int, len(inherited))}
	for i, b := range inherited {
		n.at[b.Prefix] = i
	}
	return n
}

// name is called with the prefix of a name; "" is the default one.
func (n *need) name(prefix []byte) {
	if i, ok := n.at[string(prefix)]; ok {
		n.declare[i] = true
	}
}

// value is called with what stands in front of a colon, anywhere.
func (n *need) value(prefix []byte) {
	if i, ok := n.at[string(prefix)]; ok && !slices.Contains(n.own, n.inherited[i].Space) {
		n.declare[i] = true
	}
}

// element is called with each token.
func (n *need) element(s *Scanner) {
	if s.Kind != StartTag {
		return
	}
	tag := s.Slice(s.Start, s.Offset())[1:]
	if end := bytes.IndexAny(tag, ": \t\r\n/>"); end < 0 || tag[end] != ':' {
		n.name(nil)
	}
	start := 0
	for i := 0; i < len(tag); i++ {
		switch c := tag[i]; c {
		case '"', '\'':
			i += 1 + bytes.IndexByte(tag[i+1:], c)
		case ':':
			n.name(tag[start:i])
		case ' ', '\t', '\r', '\n', '=':
			start = i + 1
		}
	}
}

// declaredOn returns a copy of the element with what it needs declared on it, in
// the order of the prefixes. What is there stays as it is.
func (n *need) declaredOn(element []byte) []byte {
	name := bytes.IndexAny(element, " \t\r\n/>")
	doc := append(make([]byte, 0, len(element)+64), element[:name]...)
	for i, b := range n.inherited {
		open := " xmlns"
		if b.Prefix != "" {
			open += ":" + b.Prefix
		}
		if n.declare[i] {
			doc = AppendAttr(doc, open+`="`, b.Space)
		}
	}
	return append(doc, element[name:]...)
}

// Prefixes calls f with each word of the XML that may be the prefix of a name.
func Prefixes(doc []byte, f func([]byte)) {
	for {
		colon := bytes.IndexByte(doc, ':')
		if colon < 0 {
			return
		}
		word := doc[:colon]
		start := len(word)
		for start > 0 && inPrefix(word[start-1]) {
			start--
		}
		whole := nameIn(word[start:])
		if len(whole) > 0 {
			f(whole)
		}
		// What is not ASCII may be a letter of the name, or a quote in front of it.
		if i := bytes.LastIndexFunc(whole, func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 {
			_, n := utf8.DecodeRune(whole[i:])
			if last := nameIn(whole[i+n:]); len(last) > 0 {
				f(last)
			}
		}
		doc = doc[colon+1:]
	}
}

// nameIn cuts off what a name cannot begin with, but may follow, as in -p:x.
func nameIn(word []byte) []byte {
	return bytes.TrimLeftFunc(word, func(r rune) bool { return !beginsName(r) })
}

// inPrefix reports whether c may be a byte of a name without a colon.
func inPrefix(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.' || c >= utf8.RuneSelf
}

// beginsName reports whether r may be the first character of a name.
func beginsName(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.Nl, r) || r == 0x212E
}
