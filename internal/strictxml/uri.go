package strictxml

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// white is the white space of XML (1.0, 2.3).
const white = " \t\r\n"

// Trim cuts the white space of XML off both ends.
func Trim(s string) string { return strings.Trim(s, white) }

// Resolve resolves a reference by RFC 3986 5.2, white space around it left out.
// Without a base a relative one stays as it is. An absolute reference without dot
// segments is returned byte for byte: parsing it and writing it again would
// escape what others compare. What is longer than MaxReference is refused.
func Resolve(base *url.URL, ref string) (string, error) {
	ref = Trim(ref)
	if HasScheme(ref) {
		return absolute(ref, base != nil)
	}
	u, err := url.Parse(ref)
	if err != nil {
		return "", err
	}
	resolved := ref
	if base != nil {
		resolved = base.ResolveReference(u).String()
	}
	if len(resolved) > MaxReference {
		return "", errTooLong
	}
	return resolved, nil
}

// absolute takes an absolute reference, and resolves dot segments in it where there
// is a base.
func absolute(ref string, based bool) (string, error) {
	switch {
	case len(ref) > MaxReference:
		return "", errTooLong
	case !dotted(ref):
		return ref, nil
	}
	u, err := url.Parse(ref)
	if err != nil || !based {
		return ref, err
	}
	return u.ResolveReference(u).String(), nil
}

// dotted reports whether the path of an absolute reference has dot segments. A name that
// begins with a dot, as in /.well-known/, is none.
func dotted(ref string) bool {
	if !strings.Contains(ref, "/.") {
		return false
	}
	path := ref + "/"
	if end := strings.IndexAny(ref, "?#"); end >= 0 {
		path = ref[:end] + "/"
	}
	return strings.Contains(path, "/./") || strings.Contains(path, "/../")
}

// HasScheme reports whether s starts with a scheme (RFC 3986 3.1).
func HasScheme(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case i > 0 && ('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'):
		case c == ':':
			return i > 0
		default:
			return false
		}
	}
	return false
}

// IsIRI reports whether s is an IRI (RFC 3987 2.2): a scheme, and after it
// nothing but what may stand there.
func IsIRI(s string) bool {
	if !HasScheme(s) || !utf8.ValidString(s) {
		return false
	}
	_, rest, _ := strings.Cut(s, ":")
	rest, fragment, _ := strings.Cut(rest, "#")
	rest, query, _ := strings.Cut(rest, "?")
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		authority := after
		if slash := strings.IndexByte(after, '/'); slash >= 0 {
			authority, rest = after[:slash], after[slash:]
		} else {
			rest = ""
		}
		if !isAuthority(authority) {
			return false
		}
	}
	return isIRIText(rest, "/:@", false) && isIRIText(query, "/?:@", true) && isIRIText(fragment, "/?:@", false)
}

// isAuthority reports whether s is an iauthority.
func isAuthority(s string) bool {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		if !isIRIText(s[:at], ":", false) {
			return false
		}
		s = s[at+1:]
	}
	if end := strings.LastIndexByte(s, ']'); strings.HasPrefix(s, "[") && end > 0 {
		host, port := s[1:end], s[end+1:]
		if port != "" && port[0] != ':' {
			return false
		}
		return isIRIText(host, ":", false) && isDigits(strings.TrimPrefix(port, ":"))
	}
	host, port, _ := strings.Cut(s, ":")
	return isIRIText(host, "", false) && isDigits(port)
}

func isDigits(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// isIRIText reports whether s consists of iunreserved, percent-encoded octets,
// sub-delims and the characters in more, in a query also of private ones.
func isIRIText(s, more string, query bool) bool {
	for i, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		case r == '%':
			if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
				return false
			}
		case r < 0x80:
			if !strings.ContainsRune("-._~!$&'()*+,;=", r) && !strings.ContainsRune(more, r) {
				return false
			}
		case 0xE000 <= r && r <= 0xF8FF, r >= 0xF0000:
			if !query || r&0xFFFE == 0xFFFE {
				return false
			}
		case r < 0xA0, 0xFDD0 <= r && r <= 0xFDEF, r >= 0xFFF0 && r <= 0xFFFF, r >= 0xE0000 && r <= 0xE0FFF, r&0xFFFE == 0xFFFE:
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

const (
	// MaxReference is how long a URI that a document names may be, in bytes: a
	// base, a reference, and what it is resolved to.
	MaxReference = 8 << 10
	// Resolving costs at least the length of the base. A document may spend freeResolving
	// bytes and resolvingRatio more for each of its own, so that a long base and many
	// short references do not cost far more than their own length.
	freeResolving  = 1 << 20
	resolvingRatio = 16
)

// The errors of a reference that is not resolved although it is well-formed.
var (
	errTooLong   = fmt.Errorf("longer than %d bytes", MaxReference)
	errLongBase  = fmt.Errorf("its base is longer than %d bytes", MaxReference)
	errExpansion = errors.New("the document's references are too long for its length, once they are resolved against their base")
)

// Base is the base URI of an element. It is resolved when Resolve needs it. nil is
// no base.
type Base struct {
	outer *Base
	ref   *url.URL // as written; nil when it is too long
	url   *url.URL // resolved against outer; nil when it was not yet
	bytes int      // length of url
}

// documentBase returns the base made of a document's URL, nil when there is none.
func documentBase(raw string) *Base {
	u, err := url.Parse(raw)
	if err != nil || raw == "" {
		return nil
	}
	return &Base{ref: u, url: u, bytes: len(raw)}
}

// Base is the base URI in force at the current token: that of a start tag counts
// for it already. It is nil when neither xml:base nor the document's URL is
// known.
func (s *Scanner) Base() *Base {
	if len(s.stack) > 0 {
		return s.stack[len(s.stack)-1].base
	}
	return s.document
}

// rebase gives the element that f opens the base that its xml:base names.
func (s *Scanner) rebase(f *frame, ref string) {
	ref = Trim(ref)
	if len(ref) > MaxReference {
		s.report(Notice{About: AboutBase, Line: s.Line, Column: s.Column, Found: Clip(ref),
			Expected: fmt.Sprintf("at most %d bytes in xml:base; relative references in the element are not resolved", MaxReference)})
		f.base = &Base{}
		return
	}
	u, err := url.Parse(ref)
	if err != nil {
		s.report(Notice{About: AboutBase, Line: s.Line, Column: s.Column, Found: Clip(ref), Expected: "an IRI reference in xml:base; it is ignored"})
		return
	}
	f.base = &Base{outer: f.base, ref: u}
}

// baseURL resolves a base.
func (s *Scanner) baseURL(b *Base) (*url.URL, error) {
	switch {
	case b.url != nil:
		return b.url, nil
	case b.ref == nil:
		return nil, errLongBase
	}
	u := b.ref
	if b.outer != nil && !u.IsAbs() {
		outer, err := s.baseURL(b.outer)
		if err != nil {
			return nil, err
		}
		if !s.spend(b.outer.bytes) {
			return nil, errExpansion
		}
		u = outer.ResolveReference(u)
	}
	n := len(u.String())
	if n > MaxReference {
		b.ref = nil
		return nil, errLongBase
	}
	b.url, b.bytes, b.outer = u, n, nil
	return u, nil
}

// spend reports whether resolving something may cost n bytes more.
func (s *Scanner) spend(n int) bool {
	s.spent += int64(n)
	return s.spent <= freeResolving+resolvingRatio*s.src.offset()
}

// Resolve resolves a reference against a base of the document, see the function of that
// name. It also refuses a reference once resolving has cost far more bytes than were
// read of the document.
func (s *Scanner) Resolve(b *Base, ref string) (string, error) {
	ref = Trim(ref)
	switch {
	case HasScheme(ref):
		return absolute(ref, b != nil)
	case b == nil:
		return Resolve(nil, ref)
	}
	base, err := s.baseURL(b)
	if err != nil {
		return "", err
	}
	if !s.spend(b.bytes) {
		return "", errExpansion
	}
	return Resolve(base, ref)
}
