package harvest

import (
	"bytes"
	"fmt"
	"html"
	"mime"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/atompmh"
)

// Rules of kind feed, under which defects are reported and items quarantined;
// docs/legacy-feeds.md lists them.
const (
	ruleFeedXML       = "feed-xml"       // not well-formed, and repaired
	ruleFeedCharset   = "feed-charset"   // bytes or declarations of another character set
	ruleFeedBase      = "feed-base"      // an xml:base that is no reference
	ruleFeedNamespace = "feed-namespace" // elements in no namespace, or in a wrong one
	ruleFeedID        = "feed-id"        // no identity, or one that is doubtful or there twice
	ruleFeedLink      = "feed-link"      // nothing to take, or a link that leads nowhere
	ruleFeedDate      = "feed-date"      // a date that cannot be read for certain
	ruleFeedItem      = "feed-item"      // an item that cannot be read
	ruleFeedDeleted   = "feed-deleted"   // at:deleted-entry
	ruleFeedKind      = "feed-kind"      // the feed can do more than kind feed sees
	ruleFeedPage      = "feed-page"      // a page that is not there
	ruleFeedResults   = "feed-results"   // far fewer items than the feed claims to have
)

// sanitizer repairs the most common faults of legacy feeds, so that the result is
// well-formed XML and every other fault can be refused. A lenient reader finds the same
// in it as before, and two different identifiers stay different.
type sanitizer struct {
	in, out  []byte
	done     int // bytes of in that are in out, repaired
	utf8     bool
	report   func(rule string, offset int, what string)
	reported map[string]bool

	root     int             // where in out namespaces may be declared; 0 when there is no root
	used     []string        // prefixes, in the order of their first use
	known    map[string]bool // of used
	declared map[string]bool // prefixes
}

// sanitize returns the document with its most common faults repaired. It reports each
// kind of fault once. It does not change a document whose encoding is not like ASCII.
func sanitize(doc []byte, contentType string, report func(rule string, offset int, what string)) []byte {
	charset := charsetOf(doc, contentType)
	if !likeASCII(doc, charset) {
		return doc
	}
	m := &sanitizer{in: doc, utf8: charset == "" || charset == "utf-8" || charset == "utf8", report: report,
		reported: map[string]bool{}, known: map[string]bool{}, declared: map[string]bool{}}
	start := 0
	if bytes.HasPrefix(doc, []byte(byteOrderMark)) {
		start = len(byteOrderMark)
	}
	if first := start + len(doc[start:]) - len(bytes.TrimLeft(doc[start:], " \t\r\n")); first > start && bytes.HasPrefix(doc[first:], []byte("<?xml")) {
		m.replace(ruleFeedXML, start, first, "", "white space before the XML declaration")
	}
	m.text(max(start, m.done))
	return m.finish()
}

const byteOrderMark = "\uFEFF"

var namedCharset = regexp.MustCompile(`(?i)\sencoding\s*=\s*["']([a-z0-9._:-]+)`)

// charsetOf returns the character set that a document claims, in lower case; "" if it
// claims none.
func charsetOf(doc []byte, contentType string) string {
	if bytes.HasPrefix(doc, []byte(byteOrderMark)) {
		return "utf-8"
	}
	if _, params, err := mime.ParseMediaType(contentType); err == nil && params["charset"] != "" {
		return strings.ToLower(params["charset"])
	}
	end := bytes.Index(doc, []byte("?>"))
	if end < 0 || !bytes.HasPrefix(bytes.TrimSpace(doc[:end]), []byte("<?xml")) {
		return ""
	}
	if m := namedCharset.FindSubmatch(doc[:end]); m != nil {
		return strings.ToLower(string(m[1]))
	}
	return ""
}

// likeASCII reports whether "<" and "&" are single bytes, as in ASCII.
func likeASCII(doc []byte, charset string) bool {
	if bytes.HasPrefix(doc, []byte("\xFE\xFF")) || bytes.HasPrefix(doc, []byte("\xFF\xFE")) || bytes.IndexByte(doc[:min(4, len(doc))], 0) >= 0 {
		return false
	}
	return !strings.HasPrefix(charset, "iso-2022") && !strings.HasPrefix(charset, "hz") && charset != "utf-7"
}

func (s *sanitizer) replace(rule string, from, to int, with, what string) {
	s.out = append(append(s.out, s.in[s.done:from]...), with...)
	s.done = to
	if !s.reported[what] {
		s.reported[what] = true
		s.report(rule, from, what)
	}
}

// text repairs the document from i on.
func (s *sanitizer) text(i int) {
	for i < len(s.in) {
		switch {
		case s.in[i] != '<':
			i = s.character(i, true)
		case s.starts(i, "<!--"):
			i = s.after(i, "-->")
		case s.starts(i, "<?"):
			i = s.after(i, "?>")
		case s.starts(i, "<![CDATA["):
			for end := s.after(i, "]]>"); i < end; {
				i = s.character(i, false)
			}
		default:
			i = s.tag(i + 1)
		}
	}
}

func (s *sanitizer) starts(i int, text string) bool { return bytes.HasPrefix(s.in[i:], []byte(text)) }

// after is where what begins at i has ended, with the text that ends it.
func (s *sanitizer) after(i int, text string) int {
	n := bytes.Index(s.in[i:], []byte(text))
	if n < 0 {
		return len(s.in)
	}
	return i + n + len(text)
}

// tag repairs a tag from behind its "<", and notes its prefixes.
func (s *sanitizer) tag(i int) int {
	closing := s.starts(i, "/")
	if closing {
		i++
	}
	name := s.name(i)
	i += len(name)
	if s.root == 0 && name != "" && !closing {
		s.root = len(s.out) + i - s.done
	}
	s.prefixed(name, false)
	for i < len(s.in) {
		switch c := s.in[i]; c {
		case '>':
			return i + 1
		case '<': // that was no tag
			return i
		case '"', '\'':
			for i++; i < len(s.in) && s.in[i] != c; {
				i = s.character(i, true)
			}
			i++
		default:
			if name := s.name(i); name != "" {
				s.prefixed(name, true)
				i += len(name)
				continue
			}
			i = s.character(i, false)
		}
	}
	return i
}

// name returns the name at i, "" when there is none.
func (s *sanitizer) name(i int) string {
	end := i
	for end < len(s.in) {
		c := s.in[end]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= utf8.RuneSelf
		if !letter && (end == i || c != '-' && c != '.' && c != ':' && (c < '0' || c > '9')) {
			break
		}
		end++
	}
	return string(s.in[i:end])
}

func (s *sanitizer) prefixed(name string, attribute bool) {
	prefix, local, ok := strings.Cut(name, ":")
	switch {
	case !ok || prefix == "xml":
	case prefix == "xmlns":
		if attribute {
			s.declared[local] = true
		}
	case !s.known[prefix]:
		s.known[prefix] = true
		s.used = append(s.used, prefix)
	}
}

// character repairs one character, and returns the place behind it. references: "&"
// begins one here.
func (s *sanitizer) character(i int, references bool) int {
	switch c := s.in[i]; {
	case c == '&' && references:
		return s.reference(i)
	case c < ' ' && c != '\t' && c != '\n' && c != '\r':
		s.replace(ruleFeedXML, i, i+1, "", "control characters, which XML does not allow, left out")
	case c >= utf8.RuneSelf && s.utf8:
		r, size := utf8.DecodeRune(s.in[i:])
		if r == utf8.RuneError && size == 1 {
			s.replace(ruleFeedCharset, i, i+1, string(windows1252(c)), "bytes that are no UTF-8, taken as windows-1252")
		}
		return i + size
	}
	return i + 1
}

// windows1252 returns the character of a byte from 0x80 on, as in WHATWG's Encoding
// Standard: different bytes are different characters.
func windows1252(c byte) rune {
	const upper = "\u20AC\u0081\u201A\u0192\u201E\u2026\u2020\u2021\u02C6\u2030\u0160\u2039\u0152\u008D\u017D\u008F" +
		"\u0090\u2018\u2019\u201C\u201D\u2022\u2013\u2014\u02DC\u2122\u0161\u203A\u0153\u009D\u017E\u0178"
	if c >= 0xA0 {
		return rune(c)
	}
	return []rune(upper)[c-0x80]
}

var reference = regexp.MustCompile(`^&(?:#([0-9]{1,8}|x[0-9a-fA-F]{1,8})|([A-Za-z][A-Za-z0-9]{1,31}));`)

// reference repairs a reference, and returns the place behind it. Names of HTML become
// numbers; what XML does not allow becomes text.
func (s *sanitizer) reference(i int) int {
	window := s.in[i:min(i+40, len(s.in))]
	found := reference.FindSubmatch(window)
	if found == nil {
		s.replace(ruleFeedXML, i, i+1, "&amp;", `"&" that begins no reference, taken as itself`)
		return i + 1
	}
	end, name := i+len(found[0]), string(found[2])
	switch name {
	case "amp", "lt", "gt", "quot", "apos":
		return end
	}
	if name == "" {
		if _, ok := numbered(string(found[1])); !ok {
			s.replace(ruleFeedXML, i, i+1, "&amp;", "references to what is no character in XML, taken as text")
		}
		return end
	}
	text := html.UnescapeString(string(found[0]))
	if strings.ContainsAny(text, "&;") {
		s.replace(ruleFeedXML, i, i+1, "&amp;", "references to entities that nothing defines, taken as text")
		return end
	}
	var numbers strings.Builder
	for _, r := range text {
		fmt.Fprintf(&numbers, "&#%d;", r)
	}
	s.replace(ruleFeedXML, i, end, numbers.String(), "entities of HTML, which XML does not know")
	return end
}

// numbered returns the character that a reference names by its number; ok is false if
// XML does not allow it.
func numbered(digits string) (r rune, ok bool) {
	base := 10
	if strings.HasPrefix(digits, "x") {
		digits, base = digits[1:], 16
	}
	n, err := strconv.ParseInt(digits, base, 32)
	return rune(n), err == nil && inXML(rune(n))
}

// inXML reports whether a character is one of XML's (1.0, 2.2).
func inXML(r rune) bool {
	return r == '\t' || r == '\n' || r == '\r' || r >= ' ' && r <= 0xD7FF || r >= 0xE000 && r <= 0xFFFD || r >= 0x10000 && r <= utf8.MaxRune
}

// finish declares, at the root, the prefixes that are not declared, and returns the
// document.
func (s *sanitizer) finish() []byte {
	var declarations strings.Builder
	for _, p := range s.used {
		if !s.declared[p] {
			fmt.Fprintf(&declarations, ` xmlns:%s="%s"`, p, usualNamespace(p))
		}
	}
	if s.done == 0 && declarations.Len() == 0 {
		return s.in
	}
	out := append(s.out, s.in[s.done:]...)
	if declarations.Len() == 0 {
		return out
	}
	s.report(ruleFeedNamespace, s.root, fmt.Sprintf("prefixes that are not declared, taken as usual:%s", strings.ReplaceAll(declarations.String(), " xmlns:", " ")))
	return slices.Insert(out, s.root, []byte(declarations.String())...)
}

// usualNamespace returns the namespace of a prefix that a feed has not declared.
func usualNamespace(prefix string) string {
	switch prefix {
	case "dc":
		return dublinCore
	case "atom":
		return atompmh.Namespace
	case "rdf":
		return rdfSyntax
	case "rss":
		return rss10
	case "opensearch", "openSearch":
		return "http://a9.com/-/spec/opensearch/1.1/"
	}
	return "urn:undeclared:" + prefix
}
