package strictxml

import (
	"fmt"
	"slices"
	"strings"
)

// Characters reads the text of the element whose start tag is the current token,
// up to its end. markup: there were elements in it, whose text is part
// of it. The text is valid until Characters is called again.
func (s *Scanner) Characters() (text []byte, markup bool, err error) {
	s.text = s.text[:0]
	for depth := s.Depth(); s.Depth() >= depth; {
		if err := s.Next(); err != nil {
			return nil, false, err
		}
		switch s.Kind {
		case StartTag:
			markup = true
		case Text:
			if len(s.text)+len(s.Data) > s.o.Limits.Text {
				return nil, false, s.cap(tooLong(s.o.Limits))
			}
			s.text = append(s.text, s.Data...)
		}
	}
	return s.text, markup, nil
}

// Children calls read at the start tag of each child of the element whose start tag
// is the current token, up to that one's end. read reads the child to its end.
func (s *Scanner) Children(read func() error) error {
	for depth := s.Depth(); ; {
		if err := s.Next(); err != nil {
			return err
		}
		switch {
		case s.Kind == EndTag && s.Depth() < depth:
			return nil
		case s.Kind == StartTag:
			if err := read(); err != nil {
				return err
			}
		}
	}
}

// Skip reads to the end of the element whose start tag is the current token.
func (s *Scanner) Skip() error {
	for depth := s.Depth(); s.Depth() >= depth; {
		if err := s.Next(); err != nil {
			return err
		}
	}
	return nil
}

// Keep makes the bytes of the document from an offset on available to Slice,
// until it is called again. The offset is that of the current token, or a later
// one; a negative one keeps nothing.
func (s *Scanner) Keep(from int64) { s.src.keep = from }

// Offset is where the current token ends, in bytes of the UTF-8 document.
func (s *Scanner) Offset() int64 { return s.src.offset() }

// Slice returns the bytes of the document between two offsets that are kept. They
// are valid until Next is called.
func (s *Scanner) Slice(from, to int64) []byte { return s.src.slice(from, to) }

// longestFrame is how long the start tag may be that Frame returns, in bytes, but
// for its xml:base.
const longestFrame = 4 << 10

// FrameBudget is how many bytes of frames may be put in front of children of a
// document of which so much was read.
func FrameBudget(read int64) int64 { return 1<<20 + 4*read }

// Frame returns what makes a child of the root a document of its own, to be put
// before and after its bytes: the root's name, namespaces and xml:base, and
// nothing that changes from document to document. The namespaces that the caller
// looks for come first; of the others those are left out that would be too much,
// as a child may have a few bytes. The current token is the root's start tag.
func (s *Scanner) Frame() (before []byte, after string, err error) {
	root := s.stack[0]
	if len(root.name.raw) > longestFrame/2 {
		return nil, "", s.Fail("the root's name is longer than %d bytes", longestFrame/2)
	}
	before = append(before, "<"+root.name.raw...)
	for _, sought := range []bool{true, false} {
		for _, b := range s.ns[root.ns:] {
			attr := ` xmlns="`
			if b.Prefix != "" {
				attr = " xmlns:" + b.Prefix + `="`
			}
			if b.Prefix == "xml" || slices.Contains(s.o.Namespaces, b.Space) != sought || len(before)+len(attr)+len(b.Space) > longestFrame {
				continue
			}
			was := len(before)
			if before = AppendAttr(before, attr, b.Space); len(before) > longestFrame {
				before = before[:was]
			}
		}
	}
	if _, ok := s.Attr(Namespace, "base"); ok && root.base != nil {
		u, err := s.baseURL(root.base)
		if err != nil {
			return nil, "", s.Fail("the root's xml:base cannot be taken: %v", err)
		}
		before = AppendAttr(before, ` xml:base="`, u.String())
	}
	return append(before, '>'), "</" + root.name.raw + ">", nil
}

// What says in words what kind of document it is whose root is the current start
// tag.
func (s *Scanner) What() string {
	const atom = "http://www.w3.org/2005/Atom"
	name := strings.ToLower(s.Local)
	switch {
	case s.Space == atom && s.Local == "feed":
		return "an Atom Feed Document"
	case s.Space == atom && s.Local == "entry":
		return "an Atom Entry Document"
	case s.Local == "feed" && s.Space == "http://purl.org/atom/ns#":
		return "an Atom 0.3 feed"
	case name == "rss":
		v, _ := s.Attr("", "version")
		return strings.TrimSpace("RSS " + Clip(v))
	case s.Local == "RDF":
		return "RDF, perhaps RSS 1.0"
	case name == "html":
		return "an HTML page"
	case s.Local == "urlset", s.Local == "sitemapindex":
		return "a sitemap or ResourceSync document <" + s.Local + ">"
	case s.Local == "OAI-PMH":
		return "an OAI-PMH response"
	case s.Local == "Envelope":
		return "a SOAP message"
	case s.Space == "":
		return fmt.Sprintf("<%s> without a namespace", Clip(s.Local))
	}
	return fmt.Sprintf("<%s> in namespace %q", Clip(s.Local), Clip(s.Space))
}
