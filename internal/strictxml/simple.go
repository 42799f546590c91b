package strictxml

import (
	"bytes"
	"encoding/xml"
	"strconv"
	"strings"
	"unicode/utf8"
)

// What a byte of a document may be in a simple token, as bits.
const (
	inName   = 1 << iota // ASCII letters, digits and _ - . :
	atStart              // those that a name begins with
	inText               // stands for itself in text and attribute values
	notASCII             // does so when the whole is right UTF-8
	isBlank              // blank, tab, line feed
	isAmp                // begins a reference
)

// classTable has these bits for each byte.
type classTable [256]uint8

func newClassTable() *classTable {
	c := &classTable{}
	for b := range c {
		switch {
		case b >= utf8.RuneSelf:
			c[b] = inText | notASCII
		case b == '&':
			c[b] = inText | isAmp
		case b >= ' ' && b != '<', b == '\t', b == '\n':
			c[b] = inText
		}
		switch lower := b | 0x20; {
		case b < utf8.RuneSelf && lower >= 'a' && lower <= 'z', b == '_':
			c[b] |= inName | atStart
		case b >= '0' && b <= '9', b == '-', b == '.', b == ':':
			c[b] |= inName
		case b == ' ', b == '\t', b == '\n':
			c[b] |= isBlank
		}
	}
	return c
}

// simple reads the next token itself when that is a simple one, which saves most
// of the time of a decoder that asks for each byte and copies all of them: a start
// tag, an end tag or text of an element that lies whole in the window, has ASCII
// names, no carriage returns, and only references to characters. done is false for
// any other, and then nothing has been read: encoding/xml is to judge. What is
// simple encoding/xml would read in the same way; FuzzScanner compares the two.
func (s *Scanner) simple() (done bool, err error) {
	if s.src.pos == len(s.src.buf) && s.src.fill() != nil {
		return false, nil // encoding/xml meets the same error
	}
	b := s.src.buf[s.src.pos:]
	switch {
	case len(s.stack) == 0 && b[0] != '<':
		return false, nil
	case b[0] != '<':
		return s.simpleText(b)
	case len(b) > 1 && b[1] == '/':
		return s.simpleEnd(b)
	}
	return s.simpleStart(b)
}

func (s *Scanner) simpleText(b []byte) (done bool, err error) {
	n := bytes.IndexByte(b, '<')
	if n < 0 || n > s.o.Limits.Text || bytes.Contains(b[:n], []byte("]]>")) {
		return false, nil
	}
	all, some := uint8(inText), uint8(0)
	for _, c := range b[:n] {
		all &= s.classes[c]
		some |= s.classes[c]
	}
	if all == 0 || some&notASCII != 0 && !inXML(b[:n]) {
		return false, nil
	}
	text := b[:n:n]
	if some&isAmp != 0 {
		plain, ok := dereferenced(string(text))
		if !ok {
			return false, nil
		}
		text = []byte(plain)
	}
	s.take(s.Start + int64(n))
	s.Kind, s.Data = Text, text
	return true, nil
}

// inXML tells whether b is right UTF-8, without the two characters of it that XML
// 1.0 2.2 leaves out besides control characters.
func inXML(b []byte) bool {
	return utf8.Valid(b) && !bytes.Contains(b, []byte("\uFFFE")) && !bytes.Contains(b, []byte("\uFFFF"))
}

func (s *Scanner) simpleEnd(b []byte) (done bool, err error) {
	n := s.classes.name(b, 2)
	end := s.classes.blanks(b, n)
	if n == 2 || end >= len(b) || b[end] != '>' || end >= s.o.Limits.Text {
		return false, nil
	}
	tag, ok := s.name(b[2:n])
	if !ok {
		return false, nil
	}
	s.take(s.Start + int64(end) + 1)
	return true, s.close(tag)
}

func (s *Scanner) simpleStart(b []byte) (done bool, err error) {
	n := s.classes.name(b, 1)
	if n == 1 {
		return false, nil
	}
	tag, ok := s.name(b[1:n])
	if !ok {
		return false, nil
	}
	end, count, ok := s.classes.tagEnd(b, n)
	if !ok || end > s.o.Limits.Text || count > s.o.Limits.Attributes {
		return false, nil
	}
	s.scratch = s.scratch[:0]
	if count > 0 {
		if s.scratch, ok = appendAttributes(s.scratch, string(b[n:end])); !ok {
			return false, nil
		}
	}
	s.take(s.Start + int64(end))
	s.closing = b[end-2] == '/'
	return true, s.open(tag, s.scratch)
}

// name returns where the name that begins at from ends; from when there is none.
func (c *classTable) name(b []byte, from int) int {
	if from >= len(b) || c[b[from]]&atStart == 0 {
		return from
	}
	to := from
	for to < len(b) && c[b[to]]&inName != 0 {
		to++
	}
	return to
}

// blanks returns where the blanks that begin at from end.
func (c *classTable) blanks(b []byte, from int) int {
	for from < len(b) && c[b[from]]&isBlank != 0 {
		from++
	}
	return from
}

// tagEnd checks the rest of a start tag, from the end of its name on. It returns
// where the tag ends and how many attributes it has.
func (c *classTable) tagEnd(b []byte, start int) (end, attributes int, ok bool) {
	some := uint8(0)
	for before := start; ; attributes++ {
		at := c.blanks(b, before)
		switch {
		case at+1 >= len(b):
			return 0, 0, false
		case b[at] == '>':
			return at + 1, attributes, some&notASCII == 0 || inXML(b[start:at])
		case b[at] == '/' && b[at+1] == '>':
			return at + 2, attributes, some&notASCII == 0 || inXML(b[start:at])
		}
		n := c.name(b, at)
		if at == before || n == at || n+1 >= len(b) || b[n] != '=' || b[n+1] != '"' && b[n+1] != '\'' {
			return 0, 0, false
		}
		quote := b[n+1]
		for at = n + 2; at < len(b) && b[at] != quote; at++ {
			if c[b[at]]&inText == 0 {
				return 0, 0, false
			}
			some |= c[b[at]]
		}
		before = at + 1
	}
}

// appendAttributes appends the attributes of a tag that tagEnd has checked. Names
// and values are parts of the one string.
func appendAttributes(to []xml.Attr, tag string) ([]xml.Attr, bool) {
	for at := 0; ; {
		for tag[at] == ' ' || tag[at] == '\t' || tag[at] == '\n' {
			at++
		}
		if tag[at] == '>' || tag[at] == '/' {
			return to, true
		}
		equals := at
		for tag[equals] != '=' {
			equals++
		}
		from := equals + 2
		n, ok := split(tag[at:equals])
		if !ok {
			return nil, false
		}
		at = from
		for tag[at] != tag[from-1] {
			at++
		}
		value := tag[from:at]
		if strings.IndexByte(value, '&') >= 0 {
			if value, ok = dereferenced(value); !ok {
				return nil, false
			}
		}
		to = append(to, xml.Attr{Name: n, Value: value})
		at++
	}
}

// mostNames is how many names of elements a Scanner remembers.
const mostNames = 256

// name returns the name of an element that is written so; ok is false for one
// that has more than one colon, or one at an end.
func (s *Scanner) name(written []byte) (n xml.Name, ok bool) {
	if n, ok = s.names[string(written)]; ok {
		return n, true
	}
	if n, ok = split(string(written)); ok && len(s.names) < mostNames {
		s.names[string(written)] = n
	}
	return n, ok
}

// split cuts a name at its colon.
func split(written string) (n xml.Name, ok bool) {
	prefix, local, colon := strings.Cut(written, ":")
	if !colon {
		return xml.Name{Local: written}, true
	}
	return xml.Name{Space: prefix, Local: local}, local != "" && !strings.Contains(local, ":")
}

// dereferenced returns s with the characters that its references stand for; ok is
// false when it has a reference that is not to a character of XML.
func dereferenced(s string) (plain string, ok bool) {
	b := make([]byte, 0, len(s))
	for {
		i := strings.IndexByte(s, '&')
		if i < 0 {
			return string(append(b, s...)), true
		}
		name, rest, ok := strings.Cut(s[i+1:], ";")
		c := character(name)
		if !ok || c == 0 {
			return "", false
		}
		b = utf8.AppendRune(append(b, s[:i]...), c)
		s = rest
	}
}

// character returns the character that a reference is to; 0 when it is to none
// that XML has.
func character(name string) rune {
	switch name {
	case "amp":
		return '&'
	case "lt":
		return '<'
	case "gt":
		return '>'
	case "quot":
		return '"'
	case "apos":
		return '\''
	}
	digits, ok := strings.CutPrefix(name, "#")
	base := 10
	if hex, is := strings.CutPrefix(digits, "x"); is {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 31)
	switch c := rune(n); {
	case !ok || err != nil || !utf8.ValidRune(c), c == 0xFFFE, c == 0xFFFF:
		return 0
	case c >= ' ', c == '\t', c == '\n', c == '\r':
		return c
	}
	return 0
}
