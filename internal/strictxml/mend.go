package strictxml

import (
	"html"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxMended is how many texts, values and so on of a document are mended. Each costs
// moving what was read behind it.
const maxMended = 100_000

// Mended counts the texts, attribute values, comments and so on that were mended so far,
// see Options.Mend.
func (s *Scanner) Mended() int { return s.places }

// mend replaces in the window what may not be between start and end, and returns the new
// end; 0 when nothing can be done.
func (s *Scanner) mend(start, end int, in setting) (int, error) {
	if !s.o.Mend {
		return 0, nil
	}
	raw := s.src.buf[start:end]
	to := s.mending[:0]
	replace := func(about About, what, with string) {
		s.mended(about, s.Line, s.Column, what)
		to = append(to, with...)
	}
	for i := 0; i < len(raw); {
		r, n := utf8.DecodeRune(raw[i:])
		switch {
		case r == '&' && in != inSection:
			var reason string
			if _, n, reason = reference(raw[i:]); reason == "" {
				to = append(to, raw[i:i+n]...)
				break
			}
			name := string(raw[i : i+n])
			text := html.UnescapeString(name)
			switch {
			case strings.HasPrefix(name, "&#") && strings.HasSuffix(name, ";"):
				replace(AboutMarkup, "references to characters that XML does not allow", "\uFFFD")
			case strings.HasSuffix(name, ";") && !strings.ContainsAny(text, "&;"):
				replace(AboutMarkup, "HTML entities, which XML does not define", string(AppendEscaped(nil, text)))
			default:
				n = 1
				replace(AboutMarkup, `"&" that does not begin a reference to anything defined`, "&amp;")
			}
		case r == '>' && in == inText && i >= 2 && raw[i-1] == ']' && raw[i-2] == ']':
			replace(AboutMarkup, "]]> outside of a CDATA section", "&gt;")
		case r == utf8.RuneError && n == 1:
			replace(AboutCharset, "bytes that are not of the charset", "\uFFFD")
		case !isChar(r):
			replace(AboutMarkup, "characters that XML does not allow", "\uFFFD")
		default:
			to = append(to, raw[i:i+n]...)
		}
		i += n
	}
	if s.mending = to; string(to) == string(raw) {
		return 0, nil
	}
	if s.places++; s.places > maxMended {
		return 0, s.broken("too much is wrong with it to be mended")
	}
	s.src.buf = slices.Replace(s.src.buf, start, end, to...)
	return start + len(to), nil
}
