package strictxml

import (
	"bytes"
	"fmt"
	"io"
)

// source is a window on the document. Tokens are found in it and left where they
// are: it holds the whole of the current one, and what Keep asked for.
type source struct {
	r   io.Reader
	buf []byte
	// pos and token are places in buf: where the reading is, and where the
	// current token starts.
	pos, token int
	// base and keep are offsets in the document: of buf[0], and of the first
	// byte that must stay (-1: none but the token's).
	base, keep int64
	limits     Limits
	step       int   // how much is read at a time
	err        error // of r, or that the token is too long; it stays
}

// chunk is how much is read at a time at most, shortest how much at least.
const chunk, shortest = 32 << 10, 512

// newSource returns the window on a document that comes from in. Of one in memory
// the length is known, and a short one gets no more room than it needs.
func newSource(in io.Reader, limits Limits) source {
	s := source{keep: -1, limits: limits, step: chunk}
	if whole, ok := in.(interface{ Len() int }); ok {
		s.step = min(chunk, max(shortest, whole.Len()+1)) // at the end, one byte is asked for in vain
	}
	return s
}

// offset is the place of pos in the document.
func (s *source) offset() int64 { return s.base + int64(s.pos) }

// ahead returns the byte that is n behind pos.
func (s *source) ahead(n int) (byte, error) {
	if s.pos+n < len(s.buf) {
		return s.buf[s.pos+n], nil
	}
	return s.outOfSight(n)
}

func (s *source) outOfSight(n int) (byte, error) {
	for s.pos+n >= len(s.buf) {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	return s.buf[s.pos+n], nil
}

// find returns where in buf the next mark is, from pos on.
func (s *source) find(mark string) (int, error) {
	for searched := 0; ; {
		rest := s.buf[s.pos+searched:]
		if i := bytes.Index(rest, []byte(mark)); i >= 0 {
			return s.pos + searched + i, nil
		}
		// The end may be the beginning of the mark.
		searched += max(0, len(rest)-len(mark)+1)
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
}

// fill reads on. What is in buf may move, and pos and token with it: other places
// are to be taken anew. A token that is too long is refused here, before more
// of it is stored.
func (s *source) fill() error {
	if s.err == nil && len(s.buf)-s.token > s.limits.Text {
		s.err = tooLong(s.limits)
	}
	if s.err != nil {
		return s.err
	}
	s.makeRoom()
	for range 100 {
		n, err := s.r.Read(s.buf[len(s.buf) : len(s.buf)+s.step])
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
	if cap(s.buf)-len(s.buf) >= s.step {
		return
	}
	from := s.token
	if s.keep >= 0 {
		from = min(from, int(s.keep-s.base))
	}
	rest := s.buf[from:]
	to := s.buf[:0]
	if cap(s.buf)-len(rest) < s.step {
		to = make([]byte, 0, max(2*s.step, 2*cap(s.buf)))
	}
	s.base += int64(from)
	s.pos -= from
	s.token -= from
	s.buf = append(to, rest...)
}

// slice returns the bytes of the document between two offsets that are kept.
func (s *source) slice(from, to int64) []byte {
	return s.buf[from-s.base : to-s.base]
}

func tooLong(l Limits) *fault {
	return &fault{cap: CapText, reason: fmt.Sprintf("one text, attribute or tag is longer than %d bytes", l.Text)}
}

func tooManyAttributes(l Limits) *fault {
	return &fault{cap: CapAttributes, reason: fmt.Sprintf("an element has more than %d attributes", l.Attributes)}
}
