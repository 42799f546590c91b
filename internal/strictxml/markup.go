package strictxml

import (
	"bytes"
	"regexp"
	"strings"
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
		return true, s.readText()
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

func (s *Scanner) readText() error {
	end, err := s.src.find("<")
	if err != nil {
		return err
	}
	return s.setText(end, inText)
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
	if !s.rooted && (c == '{' || c == '[') {
		return s.Fail("%s: perhaps JSON%s", textOutside, s.not())
	}
	return s.Fail(textOutside)
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
		return s.Fail("an XML declaration that is not at the start")
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
var xmlDeclaration = regexp.MustCompile(`^<\?xml\s+version\s*=\s*(?:"([^"]*)"|'([^']*)')` +
	`(?:\s+encoding\s*=\s*(?:"[A-Za-z][A-Za-z0-9._:-]*"|'[A-Za-z][A-Za-z0-9._:-]*'))?` +
	`(?:\s+standalone\s*=\s*(?:"(?:yes|no)"|'(?:yes|no)'))?\s*\?>$`)

func (s *Scanner) checkDeclaration(written []byte) error {
	m := xmlDeclaration.FindSubmatch(written)
	if m == nil {
		return s.Fail(`broken XML declaration; want <?xml version="1.0" encoding="..."?>`)
	}
	if version := string(m[1]) + string(m[2]); version != "1.0" {
		return s.Fail("XML version %q is not supported; want 1.0", Clip(version))
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

// orBroken returns err, else that the XML is broken.
func (s *Scanner) orBroken(err error, reason string) error {
	if err != nil {
		return err
	}
	return s.broken(reason)
}

// doctype refuses a document type declaration, when it was read: a document that
// is cut off or too long is said to be that.
func (s *Scanner) doctype() error {
	for n, depth := 0, 0; n == 0 || depth > 0; n++ {
		c, err := s.src.ahead(n)
		switch {
		case err != nil:
			return err
		case c == '<':
			depth++
		case c == '>':
			depth--
		}
	}
	const html = "<!DOCTYPE html"
	if written := s.src.buf[s.src.pos:]; len(written) >= len(html) && bytes.EqualFold(written[:len(html)], []byte(html)) {
		return s.Fail("an HTML page%s (DOCTYPE is refused)", s.not())
	}
	return s.Fail("DOCTYPE is refused: documents may not bring their own entities")
}

// not says in a message what was wanted instead.
func (s *Scanner) not() string {
	if s.o.Want == "" {
		return ""
	}
	return ", not " + s.o.Want
}
