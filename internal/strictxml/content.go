package strictxml

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// setting is where characters stand: it decides which of them are markup.
type setting uint8

const (
	inText setting = iota
	inValue
	inSection // a CDATA section, comment or processing instruction: no markup at all
)

// content reads up to end, which is a place in buf behind the last character, and
// checks each character (XML 1.0, 2.2, 2.4). changes tells that raw has line
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
				_, n, reason = reference(raw[i:])
			}
		case '<':
			if in == inValue {
				reason = "unescaped < inside quoted string"
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
// references their characters. Blanks in attribute values stay what they are,
// though XML 1.0, 3.3.3 would make a blank of each: an identifier is compared
// byte for byte, and was so before.
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
			r, n, _ = reference(raw)
			to = utf8.AppendRune(to, r)
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
	if n == len(b) || b[n] != ';' {
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
	digits, numeric := strings.CutPrefix(body, "#")
	r, ok := number(digits)
	switch {
	case !numeric || !ok:
		return 0, n, "invalid character entity " + string(b[:n])
	case r >= 0xD800 && r <= 0xDFFF:
		return 0, n, string(b[:n]) + " is no character"
	case !isChar(r):
		return 0, n, fmt.Sprintf("illegal character code %U", r)
	}
	return r, n, ""
}

// number reads the digits of a character reference, hexadecimal behind an x.
func number(digits string) (r rune, ok bool) {
	digits, hex := strings.CutPrefix(digits, "x")
	base := rune(10)
	if hex {
		base = 16
	}
	for i := range len(digits) {
		d := rune(99)
		switch c := digits[i]; {
		case '0' <= c && c <= '9':
			d = rune(c - '0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			d = rune(c|0x20-'a') + 10
		}
		if d >= base {
			return 0, false
		}
		if r = r*base + d; r > utf8.MaxRune {
			return 0, false
		}
	}
	return r, digits != ""
}
