package atompmh

import (
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

const (
	relAlternate   = "alternate"
	ianaRelation   = "http://www.iana.org/assignments/relation/"
	relPrevArchive = "prev-archive"
	relNextArchive = "next-archive"
	relCurrent     = "current"
	relSelf        = "self"
	relNext        = "next"
)

// relation normalises a rel attribute (RFC 4287 4.2.7.2).
func relation(rel string) string {
	switch rel {
	case "", relAlternate:
		return relAlternate
	}
	rel = strictxml.Trim(rel)
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
