package sip

import (
	"bytes"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// need says which of the namespaces that an element inherits have to be declared on
// it when it becomes a document of its own: those of its names, and those whose
// prefix stands in front of a colon in a value or a text, which may be a QName. The
// others differ from client to client, and the same record is to be the same bytes
// whoever sends it. That is why the message's own two namespaces count in names only,
// and why nothing is declared for a word without a colon: it may be prose about xsd
// or soap.
type need struct {
	inherited []strictxml.Binding
	declare   []bool         // of inherited
	at        map[string]int // in inherited, by prefix
}

func needed(inherited []strictxml.Binding) *need {
	n := &need{inherited: inherited, declare: make([]bool, len(inherited)), at: make(map[string]int, len(inherited))}
	for i, b := range inherited {
		n.at[b.Prefix] = i
	}
	return n
}

// name is told of the prefix of a name; "" is the default one.
func (n *need) name(prefix []byte) {
	if i, ok := n.at[string(prefix)]; ok {
		n.declare[i] = true
	}
}

// value is told of what stands in front of a colon, anywhere.
func (n *need) value(prefix []byte) {
	if i, ok := n.at[string(prefix)]; ok && n.inherited[i].Space != soapNamespace && n.inherited[i].Space != Namespace {
		n.declare[i] = true
	}
}

// element is told of each token.
func (n *need) element(s *strictxml.Scanner) {
	if s.Kind != strictxml.StartTag {
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
			doc = strictxml.AppendAttr(doc, open+`="`, b.Space)
		}
	}
	return append(doc, element[name:]...)
}

// prefixes calls f with each word of the XML that may be the prefix of a name.
func prefixes(doc []byte, f func([]byte)) {
	for {
		colon := bytes.IndexByte(doc, ':')
		if colon < 0 {
			return
		}
		word := doc[:colon]
		start := len(word)
		for start > 0 && inName(word[start-1]) {
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

// inName tells whether c may be a byte of a name without a colon.
func inName(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.' || c >= utf8.RuneSelf
}

// beginsName reports whether r may be the first character of a name.
func beginsName(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.Nl, r) || r == 0x212E
}
