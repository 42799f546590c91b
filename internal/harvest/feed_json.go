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

	"github.com/mmcdole/gofeed"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// json reads a JSON Feed, version 1 or 1.1.
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
	case errors.As(err, &fault):
		return fault
	case err == nil:
	case errors.As(err, &syntax):
		line, column := placeIn(body, min(int(syntax.Offset), len(body)))
		return g.documentError(line, column, "broken JSON: %s", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		line, column := placeIn(body, len(body))
		return g.documentError(line, column, "the document is cut off")
	default:
		line, column := placeIn(body, int(x.dec.InputOffset()))
		return g.documentError(line, column, "%s", err)
	}
	if !x.listed {
		return g.documentError(1, 1, "JSON, but not a JSON Feed: it has no array items")
	}
	return nil
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

// feedJSON reads the members of a JSON Feed.
type feedJSON struct {
	*feedReader
	body   []byte
	dec    *json.Decoder
	base   *url.URL
	listed bool // there was an array of items

	at, line, lineStart int // up to where lines were counted
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
			err = x.member(name)
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

// member reads a member that describes the feed.
func (x *feedJSON) member(name json.Token) error {
	var raw json.RawMessage
	if err := x.dec.Decode(&raw); err != nil {
		return err
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = "" // has another type
	}
	switch name {
	case "title":
		x.doc.title = plainTitle(text, false)
	case "feed_url":
		x.doc.id = text
		x.headLink("self", text)
	case "home_page_url":
		x.headLink("alternate", text)
	case "next_url":
		if to, err := strictxml.Resolve(x.base, text); err == nil && text != "" && x.reachable(to) {
			x.doc.older = to
		}
	case "expired":
		x.doc.ended = x.doc.ended || string(raw) == "true"
	case "author", "authors", "language":
		x.metadata(&x.doc.metadata, fmt.Appendf(nil, "{%q:%s}", name, raw))
	}
	return nil
}

// headLink takes a link of the feed itself.
func (x *feedJSON) headLink(rel, ref string) {
	if to, err := strictxml.Resolve(x.base, ref); err == nil && ref != "" && x.reachable(to) {
		x.doc.links = append(x.doc.links, atompmh.Link{Rel: rel, Href: to, Length: atompmh.NoLength})
	}
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
	id, err := jsonID(raw)
	if err != nil {
		it.reject(ruleFeedID, "%s", err)
		return it
	}
	said, err := x.runGofeed(it.input)
	if err != nil {
		it.entry.ID = id
		it.reject(ruleFeedItem, "%s", err)
		return it
	}
	it.entry.Title = plainTitle(said.Title, false)
	it.entry.Updated = x.date(said, line, column).Time()
	x.metadata(&it.metadata, raw)
	x.links(&it, said)
	it.identify(id, id)
	return it
}

// links takes url, else external_url, and the attachments.
func (x *feedJSON) links(it *feedItem, said *gofeed.Item) {
	resolve := func(ref string) (href string, ok bool) {
		href, err := strictxml.Resolve(x.base, ref)
		return x.checkLink(href, err, ref, it.entry.Line, it.entry.Column)
	}
	for _, ref := range said.Links {
		if href, ok := resolve(ref); ok && len(it.entry.Links) == 0 {
			it.entry.Links = append(it.entry.Links, alternate(href, ""))
		}
	}
	for _, e := range said.Enclosures {
		if href, ok := resolve(e.URL); ok {
			it.enclosures = append(it.enclosures, event.Link{Rel: "enclosure", Href: href, Type: strings.TrimSpace(e.Type), Length: lengthOf(e.Length)})
		}
	}
}

// jsonID reads the id of an item byte for byte. Numbers are the text they are
// written in.
func jsonID(raw []byte) (string, error) {
	var item struct {
		ID json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(raw, &item); err != nil || raw[0] != '{' {
		return "", errors.New("the item is no object")
	}
	literal := string(item.ID)
	if !strings.HasPrefix(literal, `"`) {
		if literal == "null" {
			return "", nil
		}
		if strings.HasPrefix(literal, "{") || strings.HasPrefix(literal, "[") {
			return "", errors.New("the item's id is neither text nor a number")
		}
		return literal, nil
	}
	var id string
	if err := json.Unmarshal(item.ID, &id); err != nil {
		return "", err
	}
	// A lone surrogate is read as U+FFFD, which makes one identifier of two.
	if strings.Count(id, "\uFFFD") != strings.Count(literal, "\uFFFD")+strings.Count(strings.ToLower(literal), `\ufffd`) {
		return "", errors.New("the item's id holds half of a character (a lone surrogate)")
	}
	return id, nil
}
