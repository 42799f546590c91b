package sip

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// need tells which of the namespaces that an element inherits it may need, so that
// they have to be declared on it when it becomes a document of its own.
//
// The default one: if there is an element without a prefix, or any word at all,
// for that may be a QName without one. Another: if its prefix stands in front of a
// colon, as in names and in the QNames of values, or is a word by itself in a value
// or in text, as in lists of prefixes. The others are left out: they differ from
// client to client, and the same record should arrive as the same bytes. That is
// also why a word of a text does not count for the message's own two namespaces,
// to which each client gives another prefix: it may be prose about soap.
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

// prefix is told of what is used as a prefix; "" is the default one.
func (n *need) prefix(p []byte) {
	if i, ok := n.at[string(p)]; ok {
		n.declare[i] = true
	}
}

// element is told of each token.
func (n *need) element(s *strictxml.Scanner) {
	if s.Kind != strictxml.StartTag {
		return
	}
	tag := s.Slice(s.Start, s.Offset())
	if end := bytes.IndexAny(tag, ": \t\r\n/>"); end < 0 || tag[end] != ':' {
		n.prefix(nil)
	}
}

// word is told of each word of the element.
func (n *need) word(w []byte, prose bool) {
	n.prefix(nil)
	i, ok := n.at[string(w)]
	if !ok {
		return
	}
	if space := n.inherited[i].Space; !prose || space != soapNamespace && space != Namespace {
		n.declare[i] = true
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

// words finds the words in attribute values and texts that may be prefixes or
// names, after references were resolved. A text goes on across comments and CDATA
// sections.
type words struct {
	// met is told of each. prose: it is in a text, and no colon follows it.
	met  func(word []byte, prose bool)
	text []byte
}

// token is told of each token in its order.
func (w *words) token(s *strictxml.Scanner) {
	if s.Kind == strictxml.Text {
		w.text = append(w.text, s.Data...)
		return
	}
	w.end()
	if s.Kind == strictxml.StartTag {
		for _, a := range s.Attrs {
			w.text = append(w.text[:0], a.Value...)
			w.split(w.text, false)
		}
		w.text = w.text[:0]
	}
}

// end is told that the last token has come.
func (w *words) end() {
	w.split(w.text, true)
	w.text = w.text[:0]
}

func (w *words) split(text []byte, prose bool) {
	for len(text) > 0 {
		end := bytes.IndexFunc(text, func(r rune) bool { return !inWord(r) })
		if end < 0 {
			end = len(text)
		}
		if word := nameIn(text[:end]); len(word) > 0 {
			w.met(word, prose && (end == len(text) || text[end] != ':'))
		}
		_, behind := utf8.DecodeRune(text[end:])
		text = text[end+behind:]
	}
}

// inWord tells whether r may be in a name without a colon; more may be than XML
// allows, but what parts words does not.
func inWord(r rune) bool {
	if r < utf8.RuneSelf {
		return inName(byte(r))
	}
	return beginsName(r) || unicode.In(r, unicode.M, unicode.Nd) || strings.ContainsRune("\u00b7\u0387\u06dd\u06de", r)
}

// beginsName tells the same of a name's first character.
func beginsName(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.Nl, r) || r == 0x212E
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

// mentions calls f with each word of a record that somebody who reads it in a
// message may take for a prefix.
func mentions(record []byte, f func([]byte)) {
	prefixes(record, f)
	most := len(record) + 1 // whatever it was allowed when it was read
	s := strictxml.New(bytes.NewReader(record), strictxml.Options{Limits: strictxml.Limits{
		Document: int64(most), Depth: most, Attributes: most, Text: most}})
	w := words{met: func(word []byte, _ bool) { f(word) }}
	for s.Next() == nil {
		w.token(s)
	}
	w.end()
}
