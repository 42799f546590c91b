package strictxml

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"html"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// token reads one token, the start of which is known. done is false when there
// is nothing in it for the caller.
func (s *Scanner) token() (done bool, err error) {
	first, err := s.src.ahead(0)
	if err != nil {
		return false, err
	}
	if first != '<' {
		if len(s.stack) == 0 {
			return false, s.outside()
		}
		end, err := s.src.find("<")
		if err != nil {
			return false, err
		}
		return true, s.setText(end, inText)
	}
	second, err := s.src.ahead(1)
	if err != nil {
		return false, err
	}
	switch second {
	case '/':
		return true, s.endTag()
	case '?':
		return false, s.instruction()
	case '!':
		return s.declaration()
	}
	return true, s.startTag()
}

// setText makes the text up to end the current token.
func (s *Scanner) setText(end int, in setting) error {
	raw, changes, err := s.content(end, in)
	if err != nil {
		return err
	}
	if changes {
		s.resolved = resolve(s.resolved[:0], raw, in)
		raw = s.resolved
	}
	s.Kind, s.Data = Text, raw
	return nil
}

// outside passes over white space outside of the root, where no other text may be.
func (s *Scanner) outside() error {
	c, _, err := s.space()
	if err != nil || c == '<' {
		return err
	}
	if !s.rooted && (s.o.Lenient || s.o.Mend) && s.marked() { // each file that a program is made of may have one
		s.mended(AboutMarkup, s.Line, s.Column, "a byte order mark that is not at the start")
		s.src.pos += len(byteOrderMark)
		return nil
	}
	if !s.rooted && (c == '{' || c == '[') {
		return s.Fail("%s: perhaps JSON%s", textOutside, s.insteadOf())
	}
	return s.Fail(textOutside)
}

const byteOrderMark = "\uFEFF"

// marked reports whether a byte order mark comes next.
func (s *Scanner) marked() bool {
	for i := range len(byteOrderMark) {
		if c, err := s.src.ahead(i); err != nil || c != byteOrderMark[i] {
			return false
		}
	}
	return true
}

const textOutside = "text outside of the root element"

// space passes over white space and returns the byte behind it, which stays.
func (s *Scanner) space() (next byte, passed bool, err error) {
	for {
		b, i := s.src.buf, s.src.pos
		for i < len(b) && isWhite(b[i]) {
			i++
		}
		passed = passed || i > s.src.pos
		s.src.pos = i
		if i < len(b) {
			return b[i], passed, nil
		}
		if err := s.src.fill(); err != nil {
			return 0, passed, err
		}
	}
}

// instruction passes over a processing instruction or the XML declaration.
func (s *Scanner) instruction() error {
	s.src.pos += len("<?")
	target, err := s.name("target name after <?")
	if err != nil {
		return err
	}
	isXML := strings.EqualFold(target.raw, "xml")
	if isXML && s.Start != 0 {
		if !s.o.Lenient && !s.o.Mend || s.rooted {
			return s.Fail("the XML declaration is not at the start of the document, where alone it may be")
		}
		s.mended(AboutMarkup, s.Line, s.Column, "white space before the XML declaration")
	}
	if !isXML && (s.o.Instructions == InstructionsNowhere || s.o.Instructions == InstructionsOutside && len(s.stack) > 0) {
		return s.Fail("the processing instruction <?%s is refused", Clip(target.raw))
	}
	end, err := s.src.find("?>")
	if err != nil {
		return err
	}
	if end > s.src.pos && !isWhite(s.src.buf[s.src.pos]) {
		return s.broken("no white space after <?" + target.raw)
	}
	if _, _, err := s.content(end, inSection); err != nil {
		return err
	}
	s.src.pos += len("?>")
	if isXML {
		return s.checkDeclaration(s.src.buf[s.src.token:s.src.pos])
	}
	return nil
}

// xmlDeclaration is XMLDecl of XML 1.0, 2.8, with any version, and with the colon
// that names of character sets may have.
var xmlDeclaration = pattern.Of(`^<\?xml\s+version\s*=\s*(?:"([^"]*)"|'([^']*)')` +
	`(?:\s+encoding\s*=\s*(?:"[A-Za-z][A-Za-z0-9._:-]*"|'[A-Za-z][A-Za-z0-9._:-]*'))?` +
	`(?:\s+standalone\s*=\s*(?:"(?:yes|no)"|'(?:yes|no)'))?\s*\?>$`)

// usualDeclaration is that of most documents. To match the pattern takes about as long as
// to read the rest of a short one.
const usualDeclaration = `<?xml version="1.0" encoding="UTF-8"?>`

func (s *Scanner) checkDeclaration(written []byte) error {
	if string(written) == usualDeclaration {
		return nil
	}
	m := xmlDeclaration().FindSubmatch(written)
	if m == nil {
		return s.Fail(`broken XML declaration; want <?xml version="1.0" encoding="..."?>`)
	}
	switch version := string(m[1]) + string(m[2]); {
	case version == "1.0":
	case version == "1.1" && s.o.Mend:
		s.mended(AboutMarkup, s.Line, s.Column, "XML 1.1, read as XML 1.0")
	default:
		return s.Fail("XML version %q is not supported; want 1.0", Clip(version))
	}
	// The document was read as UTF-8 until here, and bytes that are none as windows-1252.
	if label, _ := named(written, ""); s.o.Lenient && !s.stated && label != "" && !strings.EqualFold(label, "utf-8") && !strings.EqualFold(label, "utf8") {
		return s.Fail("encoding %q is declared too late; want the XML declaration at the start", Clip(label))
	}
	return nil
}

// declaration reads what begins with <!. Only a CDATA section has something for
// the caller.
func (s *Scanner) declaration() (done bool, err error) {
	third, err := s.src.ahead(len("<!"))
	if err != nil {
		return false, err
	}
	switch third {
	case '-':
		return false, s.comment()
	case '[':
		return true, s.section()
	}
	return false, s.doctype()
}

func (s *Scanner) comment() error {
	if ok, err := s.opens("<!--"); err != nil || !ok {
		return s.orBroken(err, "invalid sequence <!- not part of <!--")
	}
	dashes, err := s.src.find("--")
	if err != nil {
		return err
	}
	length := dashes - s.src.pos
	if c, err := s.src.ahead(length + len("--")); err != nil || c != '>' {
		s.src.pos += length + len("-->")
		return s.orBroken(err, `invalid sequence "--" not allowed in comments`)
	}
	if _, _, err := s.content(s.src.pos+length, inSection); err != nil {
		return err
	}
	s.src.pos += len("-->")
	return nil
}

func (s *Scanner) section() error {
	if ok, err := s.opens("<![CDATA["); err != nil || !ok {
		return s.orBroken(err, "invalid <![ sequence")
	}
	if len(s.stack) == 0 {
		return s.Fail(textOutside)
	}
	end, err := s.src.find("]]>")
	if err != nil {
		return err
	}
	if err := s.setText(end, inSection); err != nil {
		return err
	}
	s.src.pos += len("]]>")
	return nil
}

// opens passes over mark, or up to the first byte that is another.
func (s *Scanner) opens(mark string) (ok bool, err error) {
	for i := range len(mark) {
		c, err := s.src.ahead(0)
		if err != nil {
			return false, err
		}
		s.src.pos++
		if c != mark[i] {
			return false, nil
		}
	}
	return true, nil
}

// orBroken returns err or, if that is nil, an error for broken XML.
func (s *Scanner) orBroken(err error, reason string) error {
	if err != nil {
		return err
	}
	return s.broken(reason)
}

// doctype refuses a document type declaration after reading it to its end: a document
// that is cut off or too long gets the error for that instead.
func (s *Scanner) doctype() error {
	length := 0
	for depth := 0; length == 0 || depth > 0; length++ {
		c, err := s.src.ahead(length)
		switch {
		case err != nil:
			return err
		case c == '<':
			depth++
		case c == '>':
			depth--
		}
	}
	const page = "<!DOCTYPE html"
	if written := s.src.buf[s.src.pos:]; len(written) >= len(page) && bytes.EqualFold(written[:len(page)], []byte(page)) {
		return s.Fail("an HTML page%s (DOCTYPE is refused)", s.insteadOf())
	}
	if written := s.src.buf[s.src.pos : s.src.pos+length]; s.o.Mend && !s.rooted && bytes.HasPrefix(written, []byte("<!DOCTYPE")) && bytes.IndexByte(written, '[') < 0 {
		s.mended(AboutMarkup, s.Line, s.Column, "a DOCTYPE, which is passed over")
		s.src.pos += length
		return nil
	}
	return s.Fail("DOCTYPE is refused, since it can define entities; remove it")
}

// insteadOf returns, for a message, what was wanted instead.
func (s *Scanner) insteadOf() string {
	if s.o.Want == "" {
		return ""
	}
	return ", not " + s.o.Want
}

// setting is where characters stand: it decides which of them are markup.
type setting uint8

const (
	inText setting = iota
	inValue
	inSection // a CDATA section, comment or processing instruction: no markup at all
)

// content reads up to end, which is a place in buf behind the last character, and
// checks each character (XML 1.0, 2.2, 2.4). changes reports that raw has line
// breaks or references that resolve has to replace.
func (s *Scanner) content(end int, in setting) (raw []byte, changes bool, err error) {
	start := s.src.pos
	raw = s.src.buf[start:end:end]
	for i := plain(raw, 0); i < len(raw); i = plain(raw, i) {
		n, reason := 1, ""
		switch c := raw[i]; c {
		case '\n', '\t', '"', '\'':
		case '\r':
			changes = true
		case '&':
			if in != inSection {
				changes = true
				if _, n, reason = reference(raw[i:]); reason != "" && s.o.Lenient {
					_, n, reason = lenientReference(raw[i:])
					s.mended(AboutMarkup, s.Line, s.Column, reason)
					reason = ""
				}
			}
		case '<':
			if in == inValue {
				reason = "unescaped < in an attribute value, or no closing quote"
			}
		case '>':
			if in == inText && i >= 2 && raw[i-1] == ']' && raw[i-2] == ']' {
				reason = "unescaped ]]> not in CDATA section"
			}
		default:
			n, reason = characters(raw[i:])
		}
		i += n
		if reason != "" {
			if mended, err := s.mend(start, end, in); mended > 0 {
				return s.content(mended, in)
			} else if err != nil {
				return nil, false, err
			}
			s.src.pos = start + i
			return nil, false, s.broken(reason)
		}
	}
	s.src.pos = end
	return raw, changes, nil
}

// plain returns where from i on is the first byte that is special or not ASCII.
func plain(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		if found := special8(binary.LittleEndian.Uint64(b[i:])); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for i < len(b) && b[i] < utf8.RuneSelf && (b[i] >= 64 || special>>b[i]&1 == 0) {
		i++
	}
	return i
}

// characters checks the control character or the run of characters outside of
// ASCII that b begins with. n is their length, up to the one that reason is about.
func characters(b []byte) (n int, reason string) {
	for n < len(b) && (b[n] >= utf8.RuneSelf || n == 0) {
		r, size := utf8.DecodeRune(b[n:])
		if r == utf8.RuneError && size == 1 {
			return n, "invalid UTF-8"
		}
		if !isChar(r) {
			return n, fmt.Sprintf("illegal character code %U", r)
		}
		n += size
	}
	return n, ""
}

// isChar reports whether XML has the character (XML 1.0, 2.2).
func isChar(r rune) bool {
	return r >= ' ' && r < 0xD800 || r == '\t' || r == '\n' || r == '\r' || r > 0xDFFF && r < 0xFFFE || r > 0xFFFF && r <= utf8.MaxRune
}

// resolve appends what raw stands for: line breaks are \n (XML 1.0, 2.11),
// references their characters, in a lenient Scanner all that they mean. White space in
// attribute values stays what it is, although XML 1.0, 3.3.3 makes a space of each: an
// identifier is compared byte for byte.
func resolve(to, raw []byte, in setting) []byte {
	for len(raw) > 0 {
		n := 1
		switch c := raw[0]; {
		case c == '\r':
			if len(raw) > 1 && raw[1] == '\n' {
				n = 2
			}
			to = append(to, '\n')
		case c == '&' && in != inSection:
			var r rune
			var reason, text string
			if r, n, reason = reference(raw); reason == "" {
				to = utf8.AppendRune(to, r)
				break
			}
			text, n, _ = lenientReference(raw)
			to = append(to, text...)
		default:
			for n < len(raw) && raw[n] != '&' && raw[n] != '\r' {
				n++
			}
			to = append(to, raw[:n]...)
		}
		raw = raw[n:]
	}
	return to
}

// reference reads the reference that b begins with; n is its length. reason
// says why it is none.
func reference(b []byte) (r rune, n int, reason string) {
	n = 1
	for n < len(b) && (inName(b[n]) || n == 1 && b[n] == '#') {
		n++
	}
	switch missing := n == len(b) || b[n] != ';'; {
	case missing && n == 1: // a lenient Scanner meets as many as there are bytes
		return 0, n, "invalid character entity & (no semicolon)"
	case missing:
		return 0, n, "invalid character entity " + string(b[:n]) + " (no semicolon)"
	}
	body := string(b[1:n])
	n++
	switch body {
	case "lt":
		return '<', n, ""
	case "gt":
		return '>', n, ""
	case "amp":
		return '&', n, ""
	case "apos":
		return '\'', n, ""
	case "quot":
		return '"', n, ""
	}
	digits, ok := strings.CutPrefix(body, "#")
	if ok {
		r, ok = number(digits)
	}
	switch {
	case !ok:
		return 0, n, "invalid character entity " + string(b[:n])
	case r >= 0xD800 && r <= 0xDFFF:
		return 0, n, string(b[:n]) + " is not a character"
	case !isChar(r):
		return 0, n, fmt.Sprintf("illegal character code %U", r)
	}
	return r, n, ""
}

// lenientReference returns what the reference means that b begins with, and that XML does not
// allow: the characters of an entity of HTML, else no more than the "&". n is the length
// of what text stands for, and what says what is wrong.
func lenientReference(b []byte) (text string, n int, what string) {
	_, n, _ = reference(b)
	name := string(b[:n])
	switch {
	case !strings.HasSuffix(name, ";") || name == "&;":
		return "&", 1, `"&" that does not begin a reference, read as "&"`
	case name[1] == '#':
		return "&", 1, "references to characters that XML does not allow, read as text"
	}
	if text = html.UnescapeString(name); strings.ContainsAny(text, "&;") {
		return "&", 1, "references to undefined entities, read as text"
	}
	return text, n, "HTML entities, which XML does not define"
}

// number reads the digits of a character reference, hexadecimal behind an x.
func number(digits string) (r rune, ok bool) {
	base := 10
	if hex, ok := strings.CutPrefix(digits, "x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	return rune(n), err == nil && n <= utf8.MaxRune
}
