package strictxml

import (
	"io"
	"strings"
	"unicode/utf8"
)

// PieceSize is how many bytes an Output gathers before it is full.
const PieceSize = 32 << 10

// Output gathers what the writer of a document appends and hands it on in
// pieces, so that memory does not grow with the document. It is used by one
// goroutine at a time.
type Output struct {
	// Buf is what was gathered; its owner appends to it.
	Buf []byte

	w      io.Writer
	passed int64
}

// NewOutput returns an Output that hands on to w, which is never closed.
func NewOutput(w io.Writer) *Output {
	return &Output{w: w, Buf: make([]byte, 0, PieceSize+4096)}
}

// Full reports whether it is time for Flush.
func (o *Output) Full() bool { return len(o.Buf) >= PieceSize }

// Len counts the bytes appended so far, those that were handed on included.
func (o *Output) Len() int64 { return o.passed + int64(len(o.Buf)) }

// Passed counts the bytes that the underlying writer has taken.
func (o *Output) Passed() int64 { return o.passed }

// Flush hands on what was gathered. After an error the document is lost.
func (o *Output) Flush() error {
	n, err := o.w.Write(o.Buf)
	if err == nil && n < len(o.Buf) {
		err = io.ErrShortWrite
	}
	o.passed += int64(n)
	o.Buf = o.Buf[:0]
	return err
}

// special has a bit for each byte below 64 that cannot stand for itself in text
// and attributes alike.
const special uint64 = 1<<32 - 1 | 1<<'"' | 1<<'&' | 1<<'\'' | 1<<'<' | 1<<'>'

// AppendEscaped appends s as text or as the value of an attribute: & < > " ' and
// the white space that a reader would turn into blanks are written as references.
// What XML 1.0 cannot hold at all (control characters, U+FFFE, U+FFFF, bytes that
// are not UTF-8) becomes U+FFFD, so every document is well-formed whatever it is
// made of. No byte of s becomes more than six.
func AppendEscaped(b []byte, s string) []byte {
	start := 0
	for i := 0; i < len(s); {
		if i+8 <= len(s) && plain8(s[i:i+8]) {
			i += 8
			continue
		}
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 64 || special>>c&1 == 0 {
				i++
				continue
			}
			b = append(append(b, s[start:i]...), entity(c)...)
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == 0xFFFE || r == 0xFFFF {
			b = append(append(b, s[start:i]...), "\uFFFD"...)
			start = i + n
		}
		i += n
	}
	return append(b, s[start:]...)
}

// AppendAttr appends an attribute: open, which is its blank, name, equals sign
// and quote, the escaped value and the other quote. An empty value appends
// nothing.
func AppendAttr(b []byte, open, value string) []byte {
	if value == "" {
		return b
	}
	return append(AppendEscaped(append(b, open...), value), '"')
}

// Holds reports whether XML can hold s as it is, so that AppendEscaped changes
// none of its characters.
func Holds(s string) bool {
	for i, r := range s {
		// A byte that is not UTF-8 is read as U+FFFD, too.
		if !isChar(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD") {
			return false
		}
	}
	return true
}

// plain8 reports whether the eight bytes of s are ASCII and none of them special.
func plain8(s string) bool {
	return special8(uint64(s[0])|uint64(s[1])<<8|uint64(s[2])<<16|uint64(s[3])<<24|
		uint64(s[4])<<32|uint64(s[5])<<40|uint64(s[6])<<48|uint64(s[7])<<56) == 0
}

// special8 looks at eight bytes at once, the first in the lowest bits: 0 says that
// they are ASCII and none of them special, else the lowest bit that is set is
// the highest of the first byte that is otherwise. What is subtracted from each
// byte leaves its highest bit set when the byte is one of those looked for; only
// the bytes above such a one can be mistaken.
func special8(x uint64) uint64 {
	const each = 0x0101010101010101
	found := x | // not ASCII
		(x - each*0x20) | // control characters
		((x ^ each*'"') - each) |
		((x | each ^ each*'\'') - each) | // & and ' differ in the lowest bit
		((x | each*2 ^ each*'>') - each) // < and > differ in the next
	return found & (each * 0x80)
}

func entity(c byte) string {
	switch c {
	case '&':
		return "&amp;"
	case '<':
		return "&lt;"
	case '>':
		return "&gt;"
	case '"':
		return "&quot;"
	case '\'':
		return "&apos;"
	case '\t':
		return "&#9;"
	case '\n':
		return "&#10;"
	case '\r':
		return "&#13;"
	}
	return "\uFFFD"
}
