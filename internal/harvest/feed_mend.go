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
	ruleFeedXML       = "feed-xml"       // not well-formed, and mended
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

// mending turns what legacy feeds get wrong most often into well-formed XML, so
// that everything else can be refused strictly. What it changes says the same as
// before to a lenient reader, and two different identifiers stay different.
type mending struct {
	in, out []byte
	done    int // bytes of in that are in out, mended
	utf8    bool
	report  func(rule string, offset int, what string)
	told    map[string]bool

	root     int             // where in the mended document declarations may be put in; 0 when there is no root
	used     []string        // prefixes, in the order in which they are met
	known    map[string]bool // is in used
	declared map[string]bool // prefixes
}

// mend returns the document with its commonest defects mended, each kind
// reported once. Bytes that are not laid out like ASCII are left as they are.
func mend(doc []byte, contentType string, report func(rule string, offset int, what string)) []byte {
	charset := charsetOf(doc, contentType)
	if !likeASCII(doc, charset) {
		return doc
	}
	m := &mending{in: doc, utf8: charset == "" || charset == "utf-8" || charset == "utf8", report: report,
		told: map[string]bool{}, known: map[string]bool{}, declared: map[string]bool{}}
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

// charsetOf is the character set that a document claims, in lower case; "" when
// it claims none.
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

// likeASCII reports whether "<" and "&" are single bytes that mean nothing else.
func likeASCII(doc []byte, charset string) bool {
	if bytes.HasPrefix(doc, []byte("\xFE\xFF")) || bytes.HasPrefix(doc, []byte("\xFF\xFE")) || bytes.IndexByte(doc[:min(4, len(doc))], 0) >= 0 {
		return false
	}
	return !strings.HasPrefix(charset, "iso-2022") && !strings.HasPrefix(charset, "hz") && charset != "utf-7"
}

func (m *mending) replace(rule string, from, to int, with, what string) {
	m.out = append(append(m.out, m.in[m.done:from]...), with...)
	m.done = to
	if !m.told[what] {
		m.told[what] = true
		m.report(rule, from, what)
	}
}

// text goes through the document from i on, outside of tags.
func (m *mending) text(i int) {
	for i < len(m.in) {
		switch {
		case m.in[i] != '<':
			i = m.character(i, true)
		case m.starts(i, "<!--"):
			i = m.end(i, "-->")
		case m.starts(i, "<?"):
			i = m.end(i, "?>")
		case m.starts(i, "<![CDATA["):
			for end := m.end(i, "]]>"); i < end; {
				i = m.character(i, false)
			}
		default:
			i = m.tag(i + 1)
		}
	}
}

func (m *mending) starts(i int, s string) bool { return bytes.HasPrefix(m.in[i:], []byte(s)) }

// end is where what begins at i has ended, with the text that ends it.
func (m *mending) end(i int, text string) int {
	n := bytes.Index(m.in[i:], []byte(text))
	if n < 0 {
		return len(m.in)
	}
	return i + n + len(text)
}

// tag goes through a tag from behind its "<", and notes the prefixes in it.
func (m *mending) tag(i int) int {
	closing := m.starts(i, "/")
	if closing {
		i++
	}
	name := m.name(i)
	i += len(name)
	if m.root == 0 && name != "" && !closing {
		m.root = len(m.out) + i - m.done
	}
	m.prefixed(name, false)
	for i < len(m.in) {
		switch c := m.in[i]; c {
		case '>':
			return i + 1
		case '<': // the tag before was none
			return i
		case '"', '\'':
			for i++; i < len(m.in) && m.in[i] != c; {
				i = m.character(i, true)
			}
			i++
		default:
			if name := m.name(i); name != "" {
				m.prefixed(name, true)
				i += len(name)
				continue
			}
			i = m.character(i, false)
		}
	}
	return i
}

// name returns the name at i, "" when there is none.
func (m *mending) name(i int) string {
	end := i
	for end < len(m.in) {
		c := m.in[end]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= utf8.RuneSelf
		if !letter && (end == i || c != '-' && c != '.' && c != ':' && (c < '0' || c > '9')) {
			break
		}
		end++
	}
	return string(m.in[i:end])
}

func (m *mending) prefixed(name string, attribute bool) {
	prefix, local, ok := strings.Cut(name, ":")
	switch {
	case !ok || prefix == "xml":
	case prefix == "xmlns":
		if attribute {
			m.declared[local] = true
		}
	case !m.known[prefix]:
		m.known[prefix] = true
		m.used = append(m.used, prefix)
	}
}

// character goes past one character. references: "&" begins one here.
func (m *mending) character(i int, references bool) int {
	switch c := m.in[i]; {
	case c == '&' && references:
		return m.reference(i)
	case c < ' ' && c != '\t' && c != '\n' && c != '\r':
		m.replace(ruleFeedXML, i, i+1, "", "control characters, which XML does not allow, left out")
	case c >= utf8.RuneSelf && m.utf8:
		r, size := utf8.DecodeRune(m.in[i:])
		if r == utf8.RuneError && size == 1 {
			m.replace(ruleFeedCharset, i, i+1, string(windows1252(c)), "bytes that are no UTF-8, taken as windows-1252")
		}
		return i + size
	}
	return i + 1
}

// windows1252 is the character of a byte from 0x80 on, as WHATWG's Encoding
// Standard has it: no two bytes are the same.
func windows1252(c byte) rune {
	const upper = "\u20AC\u0081\u201A\u0192\u201E\u2026\u2020\u2021\u02C6\u2030\u0160\u2039\u0152\u008D\u017D\u008F" +
		"\u0090\u2018\u2019\u201C\u201D\u2022\u2013\u2014\u02DC\u2122\u0161\u203A\u0153\u009D\u017E\u0178"
	if c >= 0xA0 {
		return rune(c)
	}
	return []rune(upper)[c-0x80]
}

var reference = regexp.MustCompile(`^&(?:#([0-9]{1,8}|x[0-9a-fA-F]{1,8})|([A-Za-z][A-Za-z0-9]{1,31}));`)

// reference goes past a "&" and what belongs to it. HTML's names become numbers;
// what is no reference that XML allows becomes the text that it looks like.
func (m *mending) reference(i int) int {
	window := m.in[i:min(i+40, len(m.in))]
	found := reference.FindSubmatch(window)
	if found == nil {
		m.replace(ruleFeedXML, i, i+1, "&amp;", `"&" that begins no reference, taken as itself`)
		return i + 1
	}
	end, name := i+len(found[0]), string(found[2])
	switch name {
	case "amp", "lt", "gt", "quot", "apos":
		return end
	}
	if name == "" {
		if _, ok := numbered(string(found[1])); !ok {
			m.replace(ruleFeedXML, i, i+1, "&amp;", "references to what is no character in XML, taken as text")
		}
		return end
	}
	text := html.UnescapeString(string(found[0]))
	if strings.ContainsAny(text, "&;") {
		m.replace(ruleFeedXML, i, i+1, "&amp;", "references to entities that nothing defines, taken as text")
		return end
	}
	var numbers strings.Builder
	for _, r := range text {
		fmt.Fprintf(&numbers, "&#%d;", r)
	}
	m.replace(ruleFeedXML, i, end, numbers.String(), "entities of HTML, which XML does not know")
	return end
}

// numbered is the character that the number of a reference names; ok is false when
// XML allows no such reference.
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

// finish declares at the root the prefixes that nothing declares, and returns
// the document.
func (m *mending) finish() []byte {
	var declarations strings.Builder
	for _, p := range m.used {
		if !m.declared[p] {
			fmt.Fprintf(&declarations, ` xmlns:%s="%s"`, p, usualNamespace(p))
		}
	}
	if m.done == 0 && declarations.Len() == 0 {
		return m.in
	}
	out := append(m.out, m.in[m.done:]...)
	if declarations.Len() == 0 {
		return out
	}
	m.report(ruleFeedNamespace, m.root, fmt.Sprintf("prefixes that are not declared, taken as usual:%s", strings.ReplaceAll(declarations.String(), " xmlns:", " ")))
	return slices.Insert(out, m.root, []byte(declarations.String())...)
}

// usualNamespace is what a prefix stands for that a feed has not declared.
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
