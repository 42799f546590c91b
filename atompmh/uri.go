package atompmh

import (
	"net/url"
	"strings"
)

const (
	relAlternate   = "alternate"
	ianaRelation   = "http://www.iana.org/assignments/relation/"
	relPrevArchive = "prev-archive"
)

const space = " \t\r\n"

// relation normalises a rel attribute (RFC 4287 4.2.7.2).
func relation(rel string) string {
	switch rel {
	case "", relAlternate:
		return relAlternate
	}
	rel = strings.Trim(rel, space)
	if len(rel) >= len(ianaRelation) && strings.EqualFold(rel[:len(ianaRelation)], ianaRelation) {
		rel = rel[len(ianaRelation):]
	}
	if rel == "" {
		return relAlternate
	}
	if strings.Contains(rel, ":") {
		return rel
	}
	return strings.ToLower(rel)
}

// resolve resolves a reference by RFC 3986 5.2. Without a base a relative one
// stays as it is. An absolute reference without dot segments is returned byte
// for byte: parsing it and writing it again would escape what others compare.
func resolve(base *url.URL, ref string) (string, error) {
	ref = strings.Trim(ref, space)
	if hasScheme(ref) && !strings.Contains(ref, "/.") {
		return ref, nil
	}
	u, err := url.Parse(ref)
	if err != nil {
		return "", err
	}
	if base == nil {
		return ref, nil
	}
	return base.ResolveReference(u).String(), nil
}

// hasScheme tells whether s starts with a scheme (RFC 3986 3.1).
func hasScheme(s string) bool {
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
