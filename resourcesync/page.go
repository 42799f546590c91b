package resourcesync

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/url"
	"regexp"
	"strings"

	"golang.org/x/net/html"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

const (
	// How many bytes of a page are read for the links of its head, and of a robots.txt for its
	// Sitemap lines (RFC 9309 2.5).
	maxPage   = 1 << 20
	maxRobots = 512 << 10

	relResourceSync = "resourcesync"
)

// markup is what may stand before the first tag: a byte order mark, space, XML
// declaration and other processing instructions, comments.
var markup = regexp.MustCompile(`^(?:\x{FEFF}|\s|<\?[^>]*\?>|<!--(?s:.*?)-->)*<([A-Za-z!][^\s>/]*)(?:\s+([A-Za-z]+))?`)

// isHTML reports whether a body is a page. Its first tag counts for more than its Content-Type:
// lists are served as text/html, too.
func isHTML(a *follow.Answer, in *bufio.Reader) bool {
	// A read error is returned again by the next read.
	head, _ := in.Peek(2048)
	if m := markup.FindSubmatch(head); m != nil {
		name := strings.ToLower(string(m[1]))
		return name == "html" || name == "!doctype" && strings.EqualFold(string(m[2]), "html")
	}
	media, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	return err == nil && (media == "text/html" || media == "application/xhtml+xml") && !bytes.HasPrefix(head, []byte("<?xml"))
}

// htmlLinks returns the targets of the links of relation resourcesync in the head
// of a page (clause 6.3.3).
func htmlLinks(r io.Reader, at string) ([]string, error) {
	base, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	based := false
	var links []string
	z := html.NewTokenizer(io.LimitReader(r, maxPage))
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); err != io.EOF {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			return links, nil
		case html.StartTagToken, html.SelfClosingTagToken:
		default:
			continue
		}
		name, _ := z.TagName()
		switch string(name) {
		case "body":
			return links, nil
		case "base":
			if href, ok := attributes(z)["href"]; ok && !based { // of several the first counts
				based = true
				if u, err := base.Parse(strictxml.Trim(href)); err == nil && len(href) <= strictxml.MaxReference {
					base = u
				}
			}
		case "link":
			a := attributes(z)
			if a["href"] != "" && hasRelation(a["rel"]) {
				if links = appendLink(links, base, a["href"]); len(links) == maxNamed {
					return links, nil
				}
			}
		}
	}
}

// maxNamed is how many documents a page, a header or a robots.txt may name.
const maxNamed = 1000

// appendLink appends the target of a link, if it is one.
func appendLink(links []string, base *url.URL, ref string) []string {
	if to, err := strictxml.Resolve(base, ref); err == nil && len(links) < maxNamed {
		return append(links, to)
	}
	return links
}

func attributes(z *html.Tokenizer) map[string]string {
	all := map[string]string{}
	for {
		key, value, more := z.TagAttr()
		if _, again := all[string(key)]; !again {
			all[string(key)] = string(value)
		}
		if !more {
			return all
		}
	}
}

// hasRelation reports whether resourcesync is among some relation types.
func hasRelation(rel string) bool {
	for _, r := range strings.Fields(rel) {
		if strings.EqualFold(r, relResourceSync) {
			return true
		}
	}
	return false
}

// linkHeader returns the targets of the Link header fields of relation
// resourcesync (RFC 8288 3).
func linkHeader(a *follow.Answer) []string {
	base, err := url.Parse(a.URL)
	if err != nil {
		return nil
	}
	var links []string
	for _, field := range a.Header.Values("Link") {
		for _, value := range split(field, ',') {
			target, rest, ok := strings.Cut(strings.TrimLeft(value, " \t<"), ">")
			if !ok {
				continue
			}
			for _, param := range split(rest, ';') {
				name, rel, _ := strings.Cut(param, "=")
				if !strings.EqualFold(strings.TrimSpace(name), "rel") {
					continue
				}
				if hasRelation(strings.Trim(rel, " \t\"")) {
					links = appendLink(links, base, target)
				}
				break // of several rel only the first counts
			}
		}
	}
	return links
}

// split splits at a separator outside of quotes and of <>.
func split(s string, at byte) []string {
	var out []string
	start, quoted, angle := 0, false, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"' && !angle:
			quoted = !quoted
		case quoted:
		case c == '<' || c == '>':
			angle = c == '<'
		case c == at && !angle:
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	return append(out, s[start:])
}

// robots follows the Sitemap lines of robots.txt (clause 6.3.4). Resource Lists
// lead up to their Capability Lists; plain sitemaps count where there is none.
func (d *discovery) robots(at string) error {
	const place = "robots.txt"
	d.seen[follow.Key(at)] = true
	a, answer, err := d.ask(at)
	var sitemaps []string
	if a != nil {
		sitemaps, err = sitemapLines(a.Body, a.URL)
		a.Close()
		if len(sitemaps) == 0 {
			answer = "no Sitemap line"
		}
	}
	if err != nil {
		return err
	}
	if answer != "" {
		d.fail(place, at, answer)
	}
	var plain []string
	for _, to := range sitemaps {
		l, err := d.lookAt(place, to)
		switch {
		case l == nil:
		case l.Head().Capability == "":
			plain = append(plain, to)
			l.close()
		default:
			err = d.addRoute(l, place)
		}
		if err != nil {
			return err
		}
	}
	if len(d.found.Sets) > 0 {
		for _, at := range plain {
			d.walker.report(Problem{Rule: ruleNames, URL: at, Found: "a plain sitemap beside Resource Lists", Expected: "Resource Lists; the sitemap is not followed"}, false)
		}
		return nil
	}
	for _, at := range plain {
		d.found.Sets = append(d.found.Sets, Lists{ResourceList: at})
	}
	if len(plain) > 0 {
		d.found.URL, d.found.Route, d.found.Dialect = plain[0], place, DialectSitemap
	}
	return nil
}

// sitemapLines returns the URLs in the Sitemap lines of the robots.txt at a URL.
func sitemapLines(r io.Reader, at string) (urls []string, err error) {
	base, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(io.LimitReader(r, maxRobots))
	lines.Buffer(nil, maxRobots+1)
	for lines.Scan() {
		line, _, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "\uFEFF"), " #")
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.EqualFold(strings.TrimSpace(name), "sitemap") {
			urls = appendLink(urls, base, value)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return urls, nil
}
