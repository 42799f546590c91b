package strictxml

import (
	"bytes"
	"fmt"
	"io"
)

// source feeds the XML decoder byte by byte and keeps what it may be asked for
// again: the bytes of the current token, and of the current entry. It refuses
// long tokens while they are being read, before the decoder has stored them.
type source struct {
	r   io.Reader
	buf []byte // buf[0] is at offset base
	pos int    // of the next byte in buf
	// base, token and keep are offsets in the document: of buf[0], of the token
	// being read, and of the first byte that must stay (-1: none but the
	// token's).
	base, token, keep int64
	limits            Limits
	tag               tagCounter
	err               error
}

const chunk = 32 << 10

func newSource(r io.Reader, limits Limits) *source {
	return &source{r: r, keep: -1, limits: limits, buf: make([]byte, 0, 2*chunk)}
}

// ReadByte keeps the decoder from buffering on its own, so that its offsets are
// exact.
func (s *source) ReadByte() (byte, error) {
	if s.pos == len(s.buf) {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	b := s.buf[s.pos]
	s.pos++
	return b, nil
}

// Read makes source an io.Reader, as xml.NewDecoder wants one.
func (s *source) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := s.ReadByte()
	if err != nil {
		return 0, err
	}
	p[0] = b
	return 1, nil
}

func (s *source) fill() error {
	if s.err != nil {
		return s.err
	}
	if s.err = s.checkToken(); s.err != nil {
		return s.err
	}
	s.makeRoom()
	for range 100 {
		n, err := s.r.Read(s.buf[len(s.buf) : len(s.buf)+chunk])
		s.buf = s.buf[:len(s.buf)+n]
		if err != nil {
			s.err = err
		}
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	s.err = io.ErrNoProgress
	return s.err
}

// makeRoom forgets what nobody needs and grows the window when that is not
// enough.
func (s *source) makeRoom() {
	if cap(s.buf)-len(s.buf) >= chunk {
		return
	}
	from := s.token
	if s.keep >= 0 && s.keep < from {
		from = s.keep
	}
	rest := s.buf[from-s.base:]
	to := s.buf[:0]
	if cap(s.buf)-len(rest) < chunk {
		to = make([]byte, 0, 2*cap(s.buf))
	}
	s.pos -= int(from - s.base)
	s.base = from
	s.buf = append(to, rest...)
}

// startToken tells that the next token starts at offset.
func (s *source) startToken(offset int64) {
	s.token = offset
	s.tag = tagCounter{}
}

// slice returns the bytes of the document between two offsets that are kept.
func (s *source) slice(from, to int64) []byte {
	return s.buf[from-s.base : to-s.base]
}

func (s *source) checkToken() error {
	token := s.buf[s.token-s.base:]
	if len(token) > s.limits.Text {
		return tooLong(s.limits)
	}
	if s.tag.count(token) > s.limits.Attributes {
		return tooManyAttributes(s.limits)
	}
	return nil
}

func tooLong(l Limits) *fault {
	return &fault{cap: CapText, reason: fmt.Sprintf("one text, attribute or tag is longer than %d bytes", l.Text)}
}

func tooManyAttributes(l Limits) *fault {
	return &fault{cap: CapAttributes, reason: fmt.Sprintf("an element has more than %d attributes", l.Attributes)}
}

// tagCounter counts the attributes of a start tag that is still being read.
// Without it a tag of millions of attributes would be built before it could be
// refused.
type tagCounter struct {
	seen  int // bytes of the token that were counted already
	n     int
	quote byte
}

func (c *tagCounter) count(token []byte) int {
	if len(token) < 2 || token[0] != '<' || token[1] == '!' || token[1] == '?' {
		return 0
	}
	rest := token[c.seen:]
	c.seen = len(token)
	for len(rest) > 0 {
		if c.quote != 0 {
			i := bytes.IndexByte(rest, c.quote)
			if i < 0 {
				break
			}
			c.quote = 0
			rest = rest[i+1:]
			continue
		}
		i := bytes.IndexAny(rest, `"'`)
		if i < 0 {
			break
		}
		c.n++
		c.quote = rest[i]
		rest = rest[i+1:]
	}
	return c.n
}
