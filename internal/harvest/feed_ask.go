package harvest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mmcdole/gofeed"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// wordBytes caps the title and each date of an item.
const wordBytes = 64 << 10

// feedWord is an element of an item that gofeed is to read.
type feedWord struct {
	name       string // under which gofeed knows it
	kind, mode string // the attributes type and mode of Atom
	language   string // as xml:lang states it
	text       []byte // what stands in it, as markup
}

// wordOf is the name under which gofeed takes an element of a feed or item to be
// what it is.
func wordOf(name string) string {
	switch name {
	case "pubdate":
		return "pubDate"
	case "lastbuilddate":
		return "atom:updated"
	case "modified":
		return "updated"
	case "issued", "created":
		return "published"
	}
	return name
}

// ask hands gofeed one item: a small document in UTF-8, without declaration,
// DOCTYPE or xml:base, in the right namespace, of what has passed the caps.
func (g *feedReading) ask(words []feedWord) (*gofeed.Item, error) {
	var b bytes.Buffer
	before, after := `<rss version="2.0" xmlns:dc="`+dublinCore+`" xmlns:atom="http://www.w3.org/2005/Atom"><channel><item>`, `</item></channel></rss>`
	if g.atom {
		before, after = `<feed xmlns="http://www.w3.org/2005/Atom"><entry>`, `</entry></feed>`
	}
	b.WriteString(before)
	for _, w := range words {
		b.WriteString("<" + w.name)
		for _, a := range [...]struct{ name, value string }{{"type", w.kind}, {"mode", w.mode}} {
			if g.atom && plainWord.MatchString(a.value) {
				b.WriteString(" " + a.name + `="` + a.value + `"`)
			}
		}
		b.WriteByte('>')
		b.Write(w.text)
		b.WriteString("</" + w.name + ">")
	}
	b.WriteString(after)
	return g.askGofeed(b.Bytes())
}

var plainWord = regexp.MustCompile(`^[A-Za-z/+]+$`)

// askGofeed returns the item of a document that has one. What gofeed does not
// survive is an error like others.
func (g *feedReading) askGofeed(doc []byte) (item *gofeed.Item, err error) {
	defer func() {
		if p := recover(); p != nil {
			item, err = nil, fmt.Errorf("the feed parser failed on it: %v", p)
		}
	}()
	feed, err := g.parse(bytes.NewReader(doc))
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("its %q is a %s; want a %s", wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:], wrong.Value, wrong.Type)
	case err != nil:
		return nil, err
	case len(feed.Items) != 1:
		return nil, errors.New("the feed parser did not find the item")
	}
	return feed.Items[0], nil
}

// title returns an item's title as plain text, and its language. RSS does not say
// whether titles are HTML; where they look like it they are.
func (g *feedReading) title(item *gofeed.Item, words []feedWord) (title, language string) {
	var word feedWord
	for _, name := range []string{"atom:title", "dc:title", "title"} {
		if i := slices.IndexFunc(words, func(w feedWord) bool { return w.name == name }); i >= 0 {
			word = words[i]
		}
	}
	if title = plainTitle(item.Title, !g.atom || strings.Contains(strings.ToLower(word.kind), "html")); title == "" {
		return "", ""
	}
	return title, word.language
}

// htmlTag matches the tags that titles have. Other words in angle brackets are
// taken as text.
var htmlTag = regexp.MustCompile(`(?is)<!--.*?-->|</?(a|abbr|acronym|b|bdi|bdo|big|blockquote|br|center|cite|code|del|dfn|div|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|nobr|ol|p|pre|q|s|samp|small|span|strike|strong|sub|sup|table|td|th|time|tr|tt|u|ul|var|wbr)(\s[^<>]*)?/?>`)

var htmlReference = regexp.MustCompile(`&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);`)

// plainTitle reduces a title to plain text in one line.
func plainTitle(s string, markup bool) string {
	if markup && strings.ContainsAny(s, "<&") {
		s = htmlTag.ReplaceAllStringFunc(s, func(tag string) string {
			switch strings.ToLower(htmlTag.FindStringSubmatch(tag)[1]) {
			case "br", "p", "div", "li", "td", "th", "tr", "hr", "blockquote":
				return " "
			}
			return ""
		})
		// html.UnescapeString alone would make "&not" of "&notes" as well.
		s = htmlReference.ReplaceAllStringFunc(s, html.UnescapeString)
	}
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == '\u00A0' || !inXML(r) }), " ")
}

// date returns when an item was last modified, else when it was published;
// unknown when the feed does not say, or not for certain. Line and column are
// the item's.
func (g *feedReading) date(item *gofeed.Item, line, column int) event.Stamp {
	type said struct {
		text string
		time *time.Time
	}
	dates := []said{{item.Updated, item.UpdatedParsed}, {item.Published, item.PublishedParsed}}
	for i, d := range dates {
		if d.text == "" || i > 0 && d.text == dates[0].text {
			continue
		}
		why := doubt(d.text)
		if d.time == nil {
			why = "it is not in a form of date that is known"
		}
		if why == "" {
			if s, ok := event.StampOf(*d.time); ok {
				return s
			}
			why = "its year is after 2261"
		}
		g.problem(ruleFeedDate, line, column, "date %q is left out: %s", strictxml.Clip(d.text), why)
	}
	return event.Stamp{}
}

var (
	dateOfNumbers = regexp.MustCompile(`^([0-9]{1,2})[/-]([0-9]{1,2})[/-]([0-9]+)`)
	dateOffset    = regexp.MustCompile(`[+-][0-9]{2}:?[0-9]{2}\b`)
	dateZone      = regexp.MustCompile(`[0-9 ]([A-Z]{2,5})$`)
	knownZone     = regexp.MustCompile(`^(UTC?|GMT|AM|PM|[ECMP][SD]T|WES?T|BST|CES?T|EES?T)$`)
)

// doubt says why the time that gofeed makes of a date may be another one than
// was meant; "" when there is no doubt.
func doubt(text string) string {
	text = strings.TrimSpace(text)
	if m := dateOfNumbers.FindStringSubmatch(text); m != nil {
		a, _ := strconv.Atoi(m[1])
		b, _ := strconv.Atoi(m[2])
		if len(m[3]) < 4 || a <= 12 && b <= 12 && a != b {
			return "which of its numbers is the day, the month and the year cannot be told"
		}
	}
	if m := dateZone.FindStringSubmatch(text); m != nil && !knownZone.MatchString(m[1]) && !dateOffset.MatchString(text) {
		return fmt.Sprintf("time zone %q is not known", m[1])
	}
	return ""
}
