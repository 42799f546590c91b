package websub

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// Links are the links of a topic to its hubs and to itself (section 4).
type Links struct {
	// Hubs are where to subscribe, at most MaxHubs.
	Hubs []string
	// Self is the URL of the topic, which may differ from the one where it was found.
	Self string
}

// MaxHubs is how many hubs of a topic are used.
const MaxHubs = 3

// maxURL caps the URL of a hub or topic, in bytes: it is stored, shown and sent.
const maxURL = 8 << 10

// readBytes is how much of a document is read: links are at its beginning.
const readBytes = 256 << 10

// jsonBytes is how much of a JSON Feed is read: its hubs may stand behind its items.
const jsonBytes = 4 << 20

// Discover reads the hubs of a topic at a URL: those of the Link header or, if there are
// none, those of the document, which may be XML, HTML or a JSON Feed. There may be none. Self is the URL
// itself if the topic does not name itself.
func Discover(ctx context.Context, client *http.Client, topic string) (Links, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, topic, nil)
	if err != nil {
		return Links{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return Links{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return Links{}, fmt.Errorf("%s answers %s", topic, resp.Status)
	}
	at := req.URL
	if resp.Request != nil {
		at = resp.Request.URL
	}
	found := fromHeader(resp.Header, at)
	if len(found.Hubs) == 0 {
		body := bufio.NewReader(resp.Body)
		from, most := fromDocument, int64(readBytes)
		if start, _ := body.Peek(64); strings.HasPrefix(strings.TrimLeft(string(start), "\ufeff \t\r\n"), "{") {
			from, most = fromJSON, jsonBytes
		}
		in := from(io.LimitReader(body, most), at)
		if found.Hubs = in.Hubs; found.Self == "" {
			found.Self = in.Self
		}
	}
	found.Self = cmp.Or(found.Self, topic)
	return found, nil
}

// Add adds a link of a document at a URL, if its rel is hub or self and a request can be
// sent to it: http or https, without a login, and not too long.
func (l *Links) Add(rel, href string, at *url.URL) {
	u, err := at.Parse(strings.TrimSpace(href))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return
	}
	u.Fragment = ""
	if len(u.String()) > maxURL {
		return
	}
	for word := range strings.FieldsSeq(strings.ToLower(rel)) {
		switch {
		case word == "hub" && len(l.Hubs) < MaxHubs && !slices.Contains(l.Hubs, u.String()):
			l.Hubs = append(l.Hubs, u.String())
		case word == "self" && l.Self == "":
			l.Self = u.String()
		}
	}
}

// fromHeader returns the links of the Link header (RFC 8288 3).
func fromHeader(h http.Header, at *url.URL) (found Links) {
	for _, rest := range h.Values("Link") {
		for {
			_, after, ok := strings.Cut(rest, "<")
			href, after, closed := strings.Cut(after, ">")
			if !ok || !closed {
				break
			}
			var rel string
			rel, rest = linkRel(after)
			found.Add(rel, href, at)
		}
	}
	return found
}

// linkRel returns the rel of a link from its parameters, the first one if there are
// several, and the text after the link.
func linkRel(s string) (rel, rest string) {
	found := false
	for {
		s = strings.TrimLeft(s, " \t;")
		if s == "" || s[0] == ',' {
			return rel, s
		}
		end := strings.IndexAny(s, "=;,")
		if end < 0 {
			return rel, ""
		}
		name := strings.TrimSpace(s[:end])
		if s[end] != '=' {
			s = s[end:]
			continue
		}
		var value string
		if s = strings.TrimLeft(s[end+1:], " \t"); strings.HasPrefix(s, `"`) {
			value, s, _ = strings.Cut(s[1:], `"`)
		} else {
			n := strings.IndexAny(s, ";, \t")
			if n < 0 {
				n = len(s)
			}
			value, s = s[:n], s[n:]
		}
		if strings.EqualFold(name, "rel") && !found {
			rel, found = value, true
		}
	}
}

// fromDocument returns the links in the head of a feed, a ResourceSync document or a page:
// link elements of any namespace, and rs:ln. It is lenient, since the hub later confirms
// the topic.
func fromDocument(r io.Reader, at *url.URL) (found Links) {
	list := false // of ResourceSync, where a url is an entry; in RSS it is in an image
	for z := html.NewTokenizer(r); ; {
		switch z.Next() {
		case html.ErrorToken:
			return found
		case html.StartTagToken, html.SelfClosingTagToken:
			name, more := z.TagName()
			local := string(name[strings.LastIndexByte(string(name), ':')+1:])
			switch local {
			case "urlset", "sitemapindex":
				list = true
			case "entry", "item", "body": // the head ends here
				return found
			case "url", "sitemap":
				if list {
					return found
				}
			case "title":
				z.NextIsNotRawText() // an empty one in XML would swallow all that follows
			case "link", "ln":
				var rel, href string
				for more {
					var key, value []byte
					key, value, more = z.TagAttr()
					switch string(key) {
					case "rel":
						rel = string(value)
					case "href":
						href = string(value)
					}
				}
				found.Add(rel, href, at)
			}
		}
	}
}

// fromJSON returns the links of a JSON Feed: its feed_url, and its hubs of WebSub.
func fromJSON(r io.Reader, at *url.URL) (found Links) {
	in := bufio.NewReader(r)
	if mark, _, err := in.ReadRune(); err == nil && mark != '\ufeff' {
		_ = in.UnreadRune() // it was read last
	}
	d := json.NewDecoder(in)
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return found
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return found
		}
		var self string
		var hubs []struct{ Type, URL string }
		switch name {
		case "feed_url":
			err = d.Decode(&self)
		case "hubs":
			err = d.Decode(&hubs)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil && !errors.As(err, new(*json.UnmarshalTypeError)) {
			return found
		}
		if self != "" {
			found.Add("self", self, at)
		}
		for _, hub := range hubs {
			if strings.EqualFold(hub.Type, "WebSub") && hub.URL != "" {
				found.Add("hub", hub.URL, at)
			}
		}
	}
	return found
}
