package strictxml

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
)

type frame struct {
	name *name
	ns   int    // length of Scanner.ns outside of the element
	base *Base  // nil when neither xml:base nor the document's URL is known
	lang string // xml:lang
}

// Binding is a namespace and the prefix that stands for it; the prefix of the
// default namespace is "".
type Binding struct{ Prefix, Space string }

// binding is a Binding in scope. outer is the index in Scanner.ns of the one of
// the same prefix that it hides, -1 when there is none.
type binding struct {
	Binding
	outer int
}

// maxBindings is how many namespace declarations may be in scope at once.
const maxBindings = 1024

// open makes the start tag that was read the current token.
func (s *Scanner) open(n *name) error {
	f := frame{name: n, ns: len(s.ns), base: s.Base(), lang: s.Lang()}
	if err := s.attributes(); err != nil {
		return err
	}
	space, ok := s.lookup(n)
	if !ok {
		return s.Fail("element <%s> has a prefix that is not declared", Clip(n.raw))
	}
	s.Kind, s.Space, s.Local = StartTag, space, n.local
	if err := s.resolveAttrs(&f); err != nil {
		return err
	}
	s.stack = append(s.stack, f)
	return nil
}

// xmlnsNamespace is bound to the prefix xmlns, which nobody may declare
// (Namespaces in XML 1.0, 3).
const xmlnsNamespace = "http://www.w3.org/2000/xmlns/"

// declare binds a prefix to a namespace; those of the same tag are behind outer.
func (s *Scanner) declare(w written, prefix, space string, outer int) error {
	if prefix == "xmlns" || (prefix == "xml") != (space == Namespace) || space == xmlnsNamespace || space == "" && prefix != "" {
		return s.Fail("namespace declaration %s=%q is not allowed", Clip(w.raw), Clip(space))
	}
	// It is compared, and hashed, for each attribute that it is the namespace of.
	if len(space) > MaxReference {
		return s.Fail("a namespace of %d bytes; want at most %d", len(space), MaxReference)
	}
	hidden, again := s.innermost[prefix]
	switch {
	case again && hidden >= outer:
		return s.Fail("attribute %s occurs twice", Clip(w.raw))
	case !again:
		hidden = -1
	}
	if len(s.ns) > maxBindings {
		return s.cap(&fault{cap: capNamespaces, reason: fmt.Sprintf("more than %d namespace declarations are in scope", maxBindings)})
	}
	s.innermost[prefix] = len(s.ns)
	s.ns = append(s.ns, binding{Binding{prefix, s.known(space)}, hidden})
	s.scope++
	return nil
}

// undeclare takes the declarations of an element out of scope; outer is how many
// there were outside of it.
func (s *Scanner) undeclare(outer int) {
	if len(s.ns) == outer {
		return
	}
	for _, b := range slices.Backward(s.ns[outer:]) {
		if b.outer < 0 {
			delete(s.innermost, b.Prefix)
		} else {
			s.innermost[b.Prefix] = b.outer
		}
	}
	s.ns = s.ns[:outer]
	s.scope++
}

// known returns the caller's own string for a namespace that it looks for.
func (s *Scanner) known(space string) string {
	for _, k := range s.o.Namespaces {
		if space == k {
			return k
		}
	}
	return space
}

// lookup finds the namespace of a name's prefix; no default namespace is "". A lenient
// Scanner has one for every prefix. The name keeps the result until a declaration comes
// into scope or leaves it.
func (s *Scanner) lookup(n *name) (space string, ok bool) {
	if n.scope == s.scope {
		return n.space, true
	}
	at, ok := s.innermost[n.prefix]
	switch {
	case ok:
		space = s.ns[at].Space
	case n.prefix != "" && !s.o.Lenient:
		return "", false
	case n.prefix != "":
		s.mended(AboutPrefix, s.Line, s.Column, "undeclared prefixes, read with their usual namespaces")
		if space = s.o.Prefixes[n.prefix]; space == "" {
			space = "urn:undeclared:" + n.prefix
		}
	}
	n.space, n.scope = space, s.scope
	return space, true
}

// manyAttributes is the number of attributes above which a map finds duplicates.
const manyAttributes = 16

// resolveAttrs finds the namespaces of the attributes of the element that f opens.
func (s *Scanner) resolveAttrs(f *frame) error {
	var seen map[xml.Name]bool
	if len(s.Attrs) > manyAttributes {
		seen = make(map[xml.Name]bool, len(s.Attrs))
	}
	i := 0
	for _, w := range s.written {
		if w.declares() {
			continue
		}
		a := &s.Attrs[i]
		if w.prefix != "" {
			space, ok := s.lookup(w.name)
			if !ok {
				return s.Fail("attribute %s has a prefix that is not declared", Clip(w.raw))
			}
			a.Name.Space = space
			if space == Namespace {
				switch a.Name.Local {
				case "base":
					s.rebase(f, a.Value)
				case "lang":
					f.lang = Trim(a.Value)
				}
			}
		}
		again := seen[a.Name]
		if seen != nil {
			seen[a.Name] = true
		} else {
			again = slices.ContainsFunc(s.Attrs[:i], func(b xml.Attr) bool { return b.Name == a.Name })
		}
		if again {
			return s.Fail("attribute %s occurs twice", Clip(strings.TrimPrefix(a.Name.Space+":"+a.Name.Local, ":")))
		}
		i++
	}
	return nil
}
