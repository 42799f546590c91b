package atompmh

import (
	"strings"

	"golang.org/x/net/html"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// plainText reduces a Text construct (RFC 4287 3.1) to plain text. s is its
// character data; markup of type xhtml is gone already.
func plainText(typ, s string) string {
	typ = strictxml.Trim(typ)
	if (strings.EqualFold(typ, "html") || strings.EqualFold(typ, "text/html")) && strings.ContainsAny(s, "<&") {
		s = stripMarkup(s)
	}
	return collapse(s)
}

func stripMarkup(s string) string {
	var b strings.Builder
	z := html.NewTokenizer(strings.NewReader(s))
	skip := ""
	for {
		switch z.Next() {
		case html.ErrorToken:
			return b.String()
		case html.TextToken:
			if skip == "" {
				b.Write(z.Text())
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			name, _ := z.TagName()
			switch string(name) {
			case "script", "style":
				skip = string(name)
			case "br", "p", "div", "li", "td", "th", "tr":
				b.WriteByte(' ')
			}
		case html.EndTagToken:
			if name, _ := z.TagName(); string(name) == skip {
				skip = ""
			}
		}
	}
}

// collapse trims white space and makes each run of it one space.
func collapse(s string) string {
	clean := true
	for i := range len(s) {
		c := s[i]
		if c == '\t' || c == '\n' || c == '\r' || c == ' ' && (i == 0 || i == len(s)-1 || s[i-1] == ' ') {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return r == ' ' || r == '\t' || r == '\n' || r == '\r'
	}), " ")
}
