package strictxml

import (
	"net/url"
	"strings"
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
	if len(ref) > MaxReference {
		return "", errTooLong
	}
	if HasScheme(ref) && !strings.Contains(ref, "/.") {
		return ref, nil
	}
	u, err := url.Parse(ref)
	if err != nil {
		return "", err
	}
	if base == nil {
		return ref, nil
	}
	resolved := base.ResolveReference(u).String()
	if len(resolved) > MaxReference {
		return "", errTooLong
	}
	return resolved, nil
}

// HasScheme tells whether s starts with a scheme (RFC 3986 3.1).
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
