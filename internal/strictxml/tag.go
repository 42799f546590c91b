package strictxml

import (
	"bytes"
	"encoding/xml"
	"fmt"
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
			return s.cap(tooManyAttributes(s.o.Limits))
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

// findQuote finds the end of a value. Where it is not in sight, a < tells that
// the quote was forgotten, before the rest of the document is taken for the value.
func (s *Scanner) findQuote(quote byte) (int, error) {
	for searched := 0; ; {
		rest := s.src.buf[s.src.pos+searched:]
		if i := bytes.IndexByte(rest, quote); i >= 0 {
			return s.src.pos + searched + i, nil
		}
		if i := bytes.IndexByte(rest, '<'); i >= 0 {
			s.src.pos += searched + i + 1
			return 0, s.broken("unescaped < inside quoted string")
		}
		searched += len(rest)
		if err := s.src.fill(); err != nil {
			return 0, err
		}
	}
}

// longestShared is how long the values of a tag are at the most when they are made
// one string. With longer ones a short value that somebody keeps would keep them.
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
		return s.Fail("</%s> closes nothing", Clip(n.raw))
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
