package strictxml

import (
	"bytes"
	"cmp"
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
	need := s.needed(own)
	if kept < 0 {
		s.Keep(from)
	}
	for outside := s.Depth() - 1; s.Depth() > outside; {
		if s.Kind == StartTag && s.Depth()-outside > most {
			return nil, false, s.Fail("the record's elements are nested deeper than %d", most)
		}
		need.element()
		if err := s.Next(); err != nil {
			return nil, false, err
		}
	}
	element := s.Slice(from, s.Offset())
	if need.values() {
		Prefixes(element, need.value)
	}
	doc = need.declaredOn(element)
	added = len(doc) != len(element)
	s.Keep(kept)
	return doc, added, nil
}

// need finds the namespaces that an element inherits and that have to be declared on it
// when it becomes a document of its own: those of its names, and those whose prefix
// stands in front of a colon in a value or a text, which may be a QName. The others
// differ from client to client, and the same record is to be the same bytes whoever
// sends it. That is why the namespaces that surround every one (own) count in names
// only, and why nothing is declared for a word without a colon: it may be prose about
// xsd or soap.
//
// An element may have a few bytes, and inherit a thousand namespaces: only those are
// looked at whose prefix it has.
type need struct {
	s   *Scanner
	own []string
	// settled are those of Scanner.ns outside of the element that are declared on it: by
	// itself, or since declare has them.
	settled []bool
	declare []Binding
}

// needed begins at the start tag of the element.
func (s *Scanner) needed(own []string) *need {
	outer := s.stack[len(s.stack)-1].ns
	n := &need{s: s, own: own, settled: append(s.settled[:0], make([]bool, outer)...)}
	s.settled = n.settled
	for _, b := range s.ns[outer:] {
		if b.outer >= 0 {
			n.settled[b.outer] = true
		}
	}
	return n
}

// inherits reports whether the namespace at an index of Scanner.ns can be declared.
func (n *need) inherits(at int) bool {
	return !n.settled[at] && n.s.ns[at].Space != "" && n.s.ns[at].Prefix != "xml"
}

func (n *need) add(at int) {
	n.settled[at] = true
	n.declare = append(n.declare, n.s.ns[at].Binding)
}

// name is called with the prefix of a name of the current start tag. One that is declared
// inside of the element does not count.
func (n *need) name(prefix []byte) {
	if at, ok := n.s.innermost[string(prefix)]; ok && at < len(n.settled) && n.inherits(at) {
		n.add(at)
	}
}

// value is called with each word in front of a colon, anywhere in the element, once its end
// tag is read: what is declared inside of it is then no longer in scope.
func (n *need) value(prefix []byte) {
	if at, ok := n.s.innermost[string(prefix)]; ok && n.inherits(at) && !slices.Contains(n.own, n.s.ns[at].Space) {
		n.add(at)
	}
}

// values reports whether words in front of colons may be prefixes that have to be
// declared.
func (n *need) values() bool {
	for at := range n.settled {
		if n.inherits(at) && !slices.Contains(n.own, n.s.ns[at].Space) {
			return true
		}
	}
	return false
}

// element is called with each token.
func (n *need) element() {
	s := n.s
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
	slices.SortFunc(n.declare, func(a, b Binding) int { return cmp.Compare(a.Prefix, b.Prefix) })
	name := bytes.IndexAny(element, " \t\r\n/>")
	doc := append(make([]byte, 0, len(element)+64), element[:name]...)
	for _, b := range n.declare {
		open := " xmlns"
		if b.Prefix != "" {
			open += ":" + b.Prefix
		}
		doc = AppendAttr(doc, open+`="`, b.Space)
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
