package harvest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// jsonFeed has the members of JSON Feed, version 1 or 1.1, but for its items.
type jsonFeed struct {
	Title       string `json:"title"`
	FeedURL     string `json:"feed_url"`
	HomePageURL string `json:"home_page_url"`
	NextURL     string `json:"next_url"`
	Expired     bool   `json:"expired"`
	jsonMetadata
}

// jsonItem has the members of an item that must have the right type.
type jsonItem struct {
	ID            json.RawMessage `json:"id"`
	URL           string          `json:"url"`
	ExternalURL   string          `json:"external_url"`
	Title         string          `json:"title"`
	DatePublished string          `json:"date_published"`
	DateModified  string          `json:"date_modified"`
	Attachments   []struct {
		URL         string          `json:"url"`
		MimeType    string          `json:"mime_type"`
		SizeInBytes json.RawMessage `json:"size_in_bytes"`
	} `json:"attachments"`
}

// jsonMetadata is what a feed and its items have in common.
type jsonMetadata struct {
	Authors  []jsonPerson `json:"authors"`
	Author   jsonPerson   `json:"author"` // version 1
	Tags     []string     `json:"tags"`
	Language string       `json:"language"`
}

type jsonPerson struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// feedJSON reads a JSON Feed.
type feedJSON struct {
	*feedReader
	body   []byte
	dec    *json.Decoder
	base   *url.URL
	listed bool // there was an array of items

	at, line, lineStart int // up to where lines were counted
}

func (g *feedReader) json(body []byte) error {
	body = bytes.TrimPrefix(body, []byte(byteOrderMark))
	if !utf8.Valid(body) {
		return g.documentError(1, 1, "JSON that is not in UTF-8 (RFC 8259 8.1)")
	}
	if err := g.checkJSONCaps(body); err != nil {
		return err
	}
	x := &feedJSON{feedReader: g, body: body, dec: json.NewDecoder(bytes.NewReader(body))}
	x.base, _ = url.Parse(g.url) // without a base relative links are reported
	err := x.members()
	var syntax *json.SyntaxError
	var fault *strictxml.DocumentError
	switch {
	case err == nil && !x.listed:
		return g.documentError(1, 1, "JSON, but not a JSON Feed: it has no array items")
	case err == nil:
		x.head()
		return nil
	case errors.As(err, &fault):
		return fault
	case errors.As(err, &syntax):
		line, column := placeIn(body, min(int(syntax.Offset), len(body)))
		return g.documentError(line, column, "broken JSON: %s", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		line, column := placeIn(body, len(body))
		return g.documentError(line, column, "the document is cut off")
	}
	line, column := placeIn(body, int(x.dec.InputOffset()))
	return g.documentError(line, column, "%s", err)
}

// checkJSONCaps checks the caps on depth and on the length of one text, before anything
// else is read.
func (g *feedReader) checkJSONCaps(body []byte) error {
	deepest, longest := cmp.Or(g.limits.Depth, 256), cmp.Or(g.limits.Text, 8<<20)
	depth := 0
	capped := func(offset int, capName, reason string) error {
		line, column := placeIn(body, offset)
		return &strictxml.DocumentError{URL: g.url, Line: line, Column: column, Cap: capName, Reason: reason}
	}
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '{', '[':
			if depth++; depth > deepest {
				return capped(i, strictxml.CapDepth, fmt.Sprintf("objects and arrays are nested deeper than %d", deepest))
			}
		case '}', ']':
			depth--
		case '"':
			start := i
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
			if i-start > longest {
				return capped(start, strictxml.CapText, fmt.Sprintf("one text is longer than %d bytes", longest))
			}
		}
	}
	return nil
}

// place returns line and column of an offset, which must not be before that of the last
// call.
func (x *feedJSON) place(offset int) (line, column int) {
	passed := x.body[x.at:offset]
	x.line += bytes.Count(passed, []byte("\n"))
	if i := bytes.LastIndexByte(passed, '\n'); i >= 0 {
		x.lineStart = x.at + i + 1
	}
	x.at = offset
	return x.line + 1, offset - x.lineStart + 1
}

// members reads the items, and passes over what describes the feed.
func (x *feedJSON) members() error {
	tok, err := x.dec.Token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return errors.New("JSON, but not a JSON Feed: want an object")
	}
	for x.dec.More() {
		name, err := x.dec.Token()
		if err != nil {
			return err
		}
		if name == "items" {
			err = x.items()
		} else {
			var other json.RawMessage
			err = x.dec.Decode(&other)
		}
		if err != nil {
			return err
		}
	}
	if _, err := x.dec.Token(); err != nil { // the object's end
		return err
	}
	switch _, err = x.dec.Token(); {
	case err == nil:
		return errors.New("something follows the feed's object")
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// head reads what describes the feed. What has another type than it should is left out.
func (x *feedJSON) head() {
	var head jsonFeed
	_ = json.Unmarshal(x.body, &head) // goes on behind a wrong type
	d := &x.doc
	d.Title, d.ID, d.ended = plainText(head.Title, false), head.FeedURL, head.Expired
	for _, l := range []struct{ rel, ref string }{{"alternate", head.HomePageURL}, {"self", head.FeedURL}, {"next", head.NextURL}} {
		to, err := strictxml.Resolve(x.base, readable(l.ref))
		switch {
		case err != nil || l.ref == "" || !x.reachable(to):
		case l.rel == "next":
			d.older = to
		default:
			d.Links = append(d.Links, atompmh.Link{Rel: l.rel, Href: to, Length: atompmh.NoLength})
		}
	}
	x.metadata(&d.Metadata, &d.language, head.jsonMetadata)
}

func (x *feedJSON) items() error {
	tok, err := x.dec.Token()
	if err != nil {
		return err
	}
	if tok != json.Delim('[') {
		return errors.New("JSON, but not a JSON Feed: items is no array")
	}
	x.listed = true
	for x.dec.More() {
		var raw json.RawMessage
		if err := x.dec.Decode(&raw); err != nil {
			return err
		}
		if err := x.addItem(x.item(raw, int(x.dec.InputOffset())-len(raw))); err != nil {
			return err
		}
	}
	_, err = x.dec.Token() // the array's end
	return err
}

// item reads one item, which starts at an offset of the document.
func (x *feedJSON) item(raw []byte, offset int) feedItem {
	it := feedItem{content: sha256.Sum256(raw), input: slices.Concat([]byte(`{"version":"https://jsonfeed.org/version/1.1","items":[`), raw, []byte(`]}`))}
	line, column := x.place(offset)
	it.entry.Line, it.entry.Column = line, column
	var item jsonItem
	err := json.Unmarshal(raw, &item)
	id, bad := jsonID(raw, item.ID)
	var wrong *json.UnmarshalTypeError
	switch {
	case bad != nil:
		it.reject(ruleFeedID, "%s", bad)
		return it
	case errors.As(err, &wrong):
		it.entry.ID = id
		it.reject(ruleFeedItem, "its %q is a %s; want a %s", wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:], wrong.Value, wrong.Type)
		return it
	}
	it.entry.Title = plainText(item.Title, false)
	it.entry.Updated = x.date(line, column, item.DateModified, item.DatePublished)
	var said jsonMetadata
	_ = json.Unmarshal(raw, &said) // goes on behind a wrong type
	x.metadata(&it.entry.Metadata, &it.language, said)
	if x.inline {
		var content struct {
			HTML string `json:"content_html"`
			Text string `json:"content_text"`
		}
		_ = json.Unmarshal(raw, &content) // goes on behind a wrong type
		for _, held := range []struct{ text, mediaType string }{{content.HTML, "text/html; charset=utf-8"}, {content.Text, "text/plain; charset=utf-8"}} {
			x.take(&it, strictxml.Content{Data: []byte(held.text), Type: held.mediaType}, "", line, column)
		}
	}
	resolve := func(ref string) (href string, ok bool) {
		href, err := strictxml.Resolve(x.base, readable(ref))
		return x.checkLink(href, err, ref, line, column)
	}
	for _, ref := range []string{item.URL, item.ExternalURL} {
		if ref == "" {
			continue
		}
		if href, ok := resolve(ref); ok && len(it.entry.Links) == 0 {
			it.entry.Links = append(it.entry.Links, alternate(href, ""))
		}
	}
	for _, a := range item.Attachments {
		if href, ok := resolve(a.URL); ok {
			it.enclosures = append(it.enclosures, event.Link{Rel: "enclosure", Href: href, Type: strings.TrimSpace(a.MimeType), Length: lengthOf(strings.Trim(string(a.SizeInBytes), `"`))})
		}
	}
	it.identify(id, id)
	return it
}

// metadata takes over the metadata of a feed or an item.
func (x *feedJSON) metadata(m *atompmh.Metadata, language *string, said jsonMetadata) {
	for _, p := range append(said.Authors, said.Author) {
		person := atompmh.Person{Name: plainText(p.Name, false)}
		if uri, err := strictxml.Resolve(x.base, p.URL); err == nil && p.URL != "" {
			person.URI = uri
		}
		addPerson(&m.Authors, person)
	}
	for _, tag := range said.Tags {
		addCategory(&m.Categories, atompmh.Category{Term: plainText(tag, false)})
	}
	*language = strictxml.Trim(said.Language)
}

// jsonID reads the id of an item byte for byte. Numbers are the text they are
// written in.
func jsonID(item, id json.RawMessage) (string, error) {
	if item[0] != '{' {
		return "", errors.New("the item is no object")
	}
	literal := string(id)
	if !strings.HasPrefix(literal, `"`) {
		if literal == "null" {
			return "", nil
		}
		if strings.HasPrefix(literal, "{") || strings.HasPrefix(literal, "[") {
			return "", errors.New("the item's id is neither text nor a number")
		}
		return literal, nil
	}
	var text string
	if err := json.Unmarshal(id, &text); err != nil {
		return "", err
	}
	// A lone surrogate is read as U+FFFD, which makes one identifier of two.
	if strings.Count(text, "\uFFFD") != strings.Count(literal, "\uFFFD")+strings.Count(strings.ToLower(literal), `\ufffd`) {
		return "", errors.New("the item's id holds half of a character (a lone surrogate)")
	}
	return text, nil
}
