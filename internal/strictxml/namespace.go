package strictxml

import (
	"cmp"
	"net/url"
	"slices"
)

type frame struct {
	name *name
	ns   int      // length of Scanner.ns outside of the element
	base *url.URL // nil when neither xml:base nor the document's URL is known
}

// Binding is a namespace and the prefix that stands for it; the prefix of the
// default namespace is "".
type Binding struct{ Prefix, Space string }

// open makes a start tag of what was written the current token.
func (s *Scanner) open(n *name) error {
	f := frame{name: n, ns: len(s.ns), base: s.Base()}
	if err := s.attributes(); err != nil {
		return err
	}
	space, ok := s.lookup(n.prefix)
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
	for _, b := range s.ns[outer:] {
		if b.Prefix == prefix {
			return s.Fail("attribute %s is there twice", Clip(w.raw))
		}
	}
	s.ns = append(s.ns, Binding{prefix, s.known(space)})
	return nil
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

// lookup finds the namespace of a prefix; no default namespace is "".
func (s *Scanner) lookup(prefix string) (space string, ok bool) {
	for i := len(s.ns) - 1; i >= 0; i-- {
		if s.ns[i].Prefix == prefix {
			return s.ns[i].Space, true
		}
	}
	return "", prefix == ""
}

// Inherited returns the namespaces that are in scope at the current start tag
// without being declared in it, by prefix, the default namespace first; "xml" is
// not among them.
func (s *Scanner) Inherited() []Binding {
	outer := s.stack[len(s.stack)-1].ns
	seen := map[string]bool{"xml": true}
	for _, b := range s.ns[outer:] {
		seen[b.Prefix] = true
	}
	var in []Binding
	for i := outer - 1; i >= 0; i-- {
		b := s.ns[i]
		if !seen[b.Prefix] && b.Space != "" {
			in = append(in, b)
		}
		seen[b.Prefix] = true
	}
	slices.SortFunc(in, func(a, b Binding) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return in
}

// resolveAttrs finds the namespaces of the attributes of the element that f opens.
func (s *Scanner) resolveAttrs(f *frame) error {
	for i := range s.Attrs {
		a := &s.Attrs[i]
		if prefix := a.Name.Space; prefix != "" {
			space, ok := s.lookup(prefix)
			if !ok {
				return s.Fail("attribute %s has a prefix that is not declared", Clip(prefix+":"+a.Name.Local))
			}
			a.Name.Space = space
			if space == Namespace && a.Name.Local == "base" {
				s.rebase(f, a.Value)
			}
		}
		for j := range i {
			if s.Attrs[j].Name == a.Name {
				return s.Fail("attribute %s is there twice", Clip(qname(a.Name)))
			}
		}
	}
	return nil
}

func (s *Scanner) rebase(f *frame, ref string) {
	u, err := url.Parse(Trim(ref))
	if err != nil {
		s.report(Notice{About: AboutBase, Line: s.Line, Column: s.Column, Found: Clip(ref), Expected: "an IRI reference in xml:base; it is ignored"})
		return
	}
	if f.base != nil {
		u = f.base.ResolveReference(u)
	}
	f.base = u
}
