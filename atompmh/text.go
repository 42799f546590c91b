package atompmh

import (
	"errors"
	"fmt"
	"strings"
	"time"

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

var errTimeForm = errors.New("want RFC 3339, such as 2026-01-02T03:04:05.678Z")

// ParseTime reads a timestamp of RFC 3339 5.6 with any number of fraction digits (those
// below the nanosecond are cut off) and any offset, and returns it in UTC. t and z may
// be in lower case; a leap second is the start of the next minute. Years after 2261 are
// an error, because int64 nanoseconds cannot hold them; an earlier time than 1678,
// whether meant or a placeholder, is taken as the beginning of 1678.
func ParseTime(s string) (time.Time, error) {
	if len(s) < len("2006-01-02T15:04:05Z") {
		return time.Time{}, errTimeForm
	}
	for _, i := range [...]int{4, 7, 13, 16} {
		want := byte('-')
		if i > 10 {
			want = ':'
		}
		if s[i] != want {
			return time.Time{}, errTimeForm
		}
	}
	year, ok1 := digits(s[0:4])
	month, ok2 := digits(s[5:7])
	day, ok3 := digits(s[8:10])
	hour, ok4 := digits(s[11:13])
	minute, ok5 := digits(s[14:16])
	second, ok6 := digits(s[17:19])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || s[10] != 'T' && s[10] != 't' {
		return time.Time{}, errTimeForm
	}
	nanos, rest, ok := fraction(s[19:])
	if !ok {
		return time.Time{}, errTimeForm
	}
	offset, ok := zone(rest)
	if !ok {
		return time.Time{}, errTimeForm
	}
	if month < 1 || month > 12 || day < 1 || day > daysIn(year, month) || hour > 23 || minute > 59 || second > 60 {
		return time.Time{}, fmt.Errorf("%q is not a valid time", clip(s))
	}
	t := time.Date(year, time.Month(month), day, hour, minute-offset, second, nanos, time.UTC)
	if t.Year() > 2261 {
		return time.Time{}, errors.New("want a year up to 2261")
	}
	if t.Before(earliest()) {
		return earliest(), nil
	}
	return t, nil
}

func earliest() time.Time { return time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC) }

func digits(s string) (n int, ok bool) {
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + int(c)
	}
	return n, true
}

// fraction reads an optional fraction of a second.
func fraction(s string) (nanos int, rest string, ok bool) {
	if s[0] != '.' {
		return 0, s, true
	}
	i, scale := 1, 100_000_000
	for ; i < len(s) && s[i]-'0' <= 9; i++ {
		nanos += int(s[i]-'0') * scale
		scale /= 10
	}
	return nanos, s[i:], i > 1
}

// zone reads Z or an offset, in minutes.
func zone(s string) (minutes int, ok bool) {
	if s == "Z" || s == "z" {
		return 0, true
	}
	if len(s) != len("+00:00") || s[3] != ':' {
		return 0, false
	}
	h, ok1 := digits(s[1:3])
	m, ok2 := digits(s[4:6])
	if !ok1 || !ok2 || h > 23 || m > 59 {
		return 0, false
	}
	switch s[0] {
	case '+':
		return h*60 + m, true
	case '-':
		return -h*60 - m, true
	}
	return 0, false
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
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

// CanBeEmail reports whether s has the form that RFC 4287 3.2.3 asks for.
func CanBeEmail(s string) bool {
	at := strings.IndexByte(s, '@')
	return at > 0 && at < len(s)-1 && strictxml.Trim(s) == s && strictxml.Holds(s)
}
