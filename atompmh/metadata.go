package atompmh

import (
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Metadata is what a feed, an entry and an atom:source have in common besides
// identity, title and links.
type Metadata struct {
	// Language is that of the title, as xml:lang states it; "" when unknown.
	Language              string
	Authors, Contributors []Person
	// Rights is atom:rights as plain text.
	Rights     Text
	Categories []Category
}

// Person is a Person construct (RFC 4287 3.2). Name is mandatory.
type Person struct{ Name, URI, Email string }

// Text is a text as plain text, with the language that xml:lang states, "" when
// unknown.
type Text struct{ Value, Language string }

// Category is an atom:category (RFC 4287 4.2.2). Term is mandatory.
type Category struct{ Term, Scheme, Label string }

// metadata reads the current child of a feed, an entry or an atom:source, if it is
// one of these; ok is false when it is not, and nothing was read.
func (r *Reader) metadata(m *Metadata) (ok bool, err error) {
	s := r.scan
	switch s.Local {
	case "author":
		return true, r.person(&m.Authors)
	case "contributor":
		return true, r.person(&m.Contributors)
	case "rights":
		language := s.Lang()
		text, err := r.textConstruct()
		if m.Rights.Value == "" && text != "" {
			m.Rights = Text{text, language}
		}
		return true, err
	case "category":
		var c Category
		c.Term, _ = s.Attr("", "term")
		c.Scheme, _ = s.Attr("", "scheme")
		c.Label, _ = s.Attr("", "label")
		if c.Term = strictxml.Trim(c.Term); c.Term != "" {
			c.Scheme = strictxml.Trim(c.Scheme)
			m.Categories = append(m.Categories, c)
		}
		return true, s.Skip()
	}
	return false, nil
}

// person reads a Person construct. One without a name has the address instead.
func (r *Reader) person(to *[]Person) error {
	var p Person
	s := r.scan
	if err := s.Children(func() (err error) {
		switch {
		case s.Space == Namespace && s.Local == "name" && p.Name == "":
			p.Name, err = r.textConstruct()
		case s.Space == Namespace && s.Local == "uri" && p.URI == "":
			p.URI, err = r.reference()
		case s.Space == Namespace && s.Local == "email" && p.Email == "":
			p.Email, err = r.textConstruct()
		default:
			err = s.Skip()
		}
		return err
	}); err != nil {
		return err
	}
	if p.Name == "" {
		p.Name = p.Email
	}
	if p.Name == "" {
		p.Name = p.URI
	}
	if p.Name != "" {
		*to = append(*to, p)
	}
	return nil
}

// reference reads an IRI reference that is the text of an element.
func (r *Reader) reference() (string, error) {
	base := r.scan.Base()
	text, _, err := r.characters()
	if err != nil {
		return "", err
	}
	resolved, bad := r.scan.Resolve(base, text)
	if bad != nil {
		return "", nil
	}
	return resolved, nil
}

// CanBeType reports whether a media type can stand on a link (RFC 4287 4.2.7.3):
// two tokens with a slash between them, and parameters or none.
func CanBeType(mediaType string) bool {
	essence, parameters, _ := strings.Cut(mediaType, ";")
	kind, sub, ok := strings.Cut(strictxml.Trim(essence), "/")
	return ok && isToken(kind) && isToken(sub) && !strings.ContainsFunc(parameters, func(c rune) bool { return c < ' ' || c >= 0x7f })
}

// isToken reports whether s is a token (RFC 9110 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// CanBeLanguage reports whether s has the form of a language tag (RFC 4287 2).
func CanBeLanguage(s string) bool {
	for i, part := range strings.Split(s, "-") {
		if part == "" || len(part) > 8 || strings.ContainsFunc(part, func(c rune) bool {
			letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
			return !letter && (i == 0 || c < '0' || c > '9')
		}) {
			return false
		}
	}
	return true
}

// broken applies what RFC 4287 asks of persons, categories and languages.
func (m *Metadata) broken() *RuleError {
	for _, persons := range [...][]Person{m.Authors, m.Contributors} {
		for i := range persons {
			switch p := &persons[i]; {
			case strictxml.Trim(p.Name) == "":
				return breaks(rulePerson, "a person without a name: %q %q", clip(p.URI), clip(p.Email))
			case p.URI != "" && !strictxml.IsIRI(p.URI):
				return breaks(rulePerson, "person %q: uri %q is no IRI", clip(p.Name), clip(p.URI))
			case p.Email != "" && !CanBeEmail(p.Email):
				return breaks(rulePerson, "person %q: email %q is no address", clip(p.Name), clip(p.Email))
			}
		}
	}
	for i := range m.Categories {
		switch c := &m.Categories[i]; {
		case c.Term == "":
			return breaks(ruleCategory, "a category without a term: %q %q", clip(c.Scheme), clip(c.Label))
		case c.Scheme != "" && !strictxml.IsIRI(c.Scheme):
			return breaks(ruleCategory, "category %q: scheme %q is no IRI", clip(c.Term), clip(c.Scheme))
		}
	}
	for _, language := range [...]string{m.Language, m.Rights.Language} {
		if language != "" && !CanBeLanguage(language) {
			return breaks(ruleLanguage, "language %q", clip(language))
		}
	}
	return nil
}

// CanBeEmail reports whether s has the form that RFC 4287 3.2.3 asks for.
func CanBeEmail(s string) bool {
	at := strings.IndexByte(s, '@')
	return at > 0 && at < len(s)-1 && strictxml.Trim(s) == s && strictxml.Holds(s)
}

// append appends all of it but the language, which stands on the title. Each
// element begins with indent and is followed by end.
func (m *Metadata) append(b []byte, indent, end string) []byte {
	b = appendPersons(b, indent, "author", m.Authors, end)
	b = appendPersons(b, indent, "contributor", m.Contributors, end)
	for i := range m.Categories {
		c := &m.Categories[i]
		b = append(append(b, indent...), "<category"...)
		b = strictxml.AppendAttr(b, ` term="`, c.Term)
		b = strictxml.AppendAttr(b, ` scheme="`, c.Scheme)
		b = strictxml.AppendAttr(b, ` label="`, c.Label)
		b = append(append(b, "/>"...), end...)
	}
	if m.Rights.Value != "" {
		b = appendText(append(b, indent...), "rights", m.Rights.Value, m.Rights.Language)
		b = append(b, end...)
	}
	return b
}

func appendPersons(b []byte, indent, name string, persons []Person, end string) []byte {
	for i := range persons {
		p := &persons[i]
		b = append(append(append(append(b, indent...), '<'), name...), "><name>"...)
		b = append(strictxml.AppendEscaped(b, p.Name), "</name>"...)
		if p.URI != "" {
			b = append(strictxml.AppendEscaped(append(b, "<uri>"...), p.URI), "</uri>"...)
		}
		if p.Email != "" {
			b = append(strictxml.AppendEscaped(append(b, "<email>"...), p.Email), "</email>"...)
		}
		b = append(append(append(append(b, "</"...), name...), '>'), end...)
	}
	return b
}

// appendText appends a Text construct with its language.
func appendText(b []byte, name, text, language string) []byte {
	b = append(append(b, '<'), name...)
	b = strictxml.AppendAttr(b, ` xml:lang="`, language)
	b = strictxml.AppendEscaped(append(b, '>'), text)
	return append(append(append(b, "</"...), name...), '>')
}
