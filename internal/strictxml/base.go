package strictxml

import (
	"errors"
	"fmt"
	"net/url"
)

const (
	// MaxReference is how long a URI that a document names may be, in bytes: a
	// base, a reference, and what it is resolved to.
	MaxReference = 8 << 10
	// Resolving costs at least the length of the base. A document may spend
	// freeResolving bytes and resolvingRatio more for each of its own, so that a
	// long base and many short references do not cost far more than they weigh.
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

// documentBase is the base that a document's URL is.
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

// Resolve resolves a reference against a base of the document, see the function of
// that name. A reference is refused, too, that makes far more of the document than
// it is.
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
