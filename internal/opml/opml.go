// Package opml reads and writes OPML 2.0, the lists of feeds that feed readers exchange.
package opml

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Feed is an outline that names a feed.
type Feed struct {
	// URL is xmlUrl, unchanged.
	URL string
	// Name is the outline's text, else its title; "" when it has neither.
	Name string
	// Type is the kind of feed; readers write rss for all kinds.
	Type string
	// Folder are the names of the outlines around it, the outermost first.
	Folder []string
	// Title is the title of the innermost of them where that differs from its name, else "".
	Title string
	// Line is the line of the outline; Write ignores it.
	Line int
}

// MaxFeeds is the most feeds that Read accepts.
const MaxFeeds = 50_000

// limits returns limits that no list of a person reaches.
func limits() strictxml.Limits {
	return strictxml.Limits{Document: 64 << 20, Depth: 64, Attributes: 64, Text: 64 << 10}
}

// Read returns the feeds of a document, in its order. It is strict, except for characters
// that feed readers forget to escape. A document type with definitions, or a document above
// the limits, is an error with its place. name is that of the file, for errors.
func Read(r io.Reader, name string) ([]Feed, error) {
	s := strictxml.New(r, strictxml.Options{URL: name, Mend: true, UTF8: true, Limits: limits(), Want: "an OPML document"})
	if err := s.Next(); err != nil {
		return nil, err
	}
	if s.Local != "opml" {
		return nil, s.Fail("%s; want an OPML document, with the root element opml", s.What())
	}
	var all []Feed
	err := s.Children(func() error {
		if s.Local != "body" {
			return s.Skip()
		}
		return s.Children(func() error { return outline(s, nil, "", &all) })
	})
	if err != nil {
		return nil, err
	}
	if err := s.Next(); !errors.Is(err, io.EOF) {
		return nil, err
	}
	return all, nil
}

// outline reads an outline with the outlines in it.
func outline(s *strictxml.Scanner, folder []string, title string, all *[]Feed) error {
	if s.Local != "outline" {
		return s.Skip()
	}
	attr := func(name string) string {
		value, _ := s.Attr("", name)
		return strings.Join(strings.Fields(value), " ")
	}
	text, own := attr("text"), attr("title")
	name := cmp.Or(text, own)
	if url := attr("xmlUrl"); url != "" {
		if len(*all) == MaxFeeds {
			return s.Fail("more than %d feeds; divide the file", MaxFeeds)
		}
		*all = append(*all, Feed{URL: url, Name: name, Type: attr("type"), Folder: folder, Title: title, Line: s.Line})
	}
	if own == name {
		own = ""
	}
	inside := folder
	if name != "" {
		inside = append(folder[:len(folder):len(folder)], name)
	} else {
		own = title
	}
	return s.Children(func() error { return outline(s, inside, own, all) })
}

// Write writes a document with feeds, those of one folder together. title is the document's.
func Write(w io.Writer, title string, feeds []Feed) error {
	var b strings.Builder
	escape := func(s string) string {
		var e strings.Builder
		_ = xml.EscapeText(&e, []byte(s)) // writing to a Builder cannot fail
		return e.String()
	}
	fmt.Fprintf(&b, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<opml version=\"2.0\">\n  <head><title>%s</title></head>\n  <body>\n", escape(title))
	type level struct{ name, title string }
	var open []level
	shut := func(depth int) {
		for len(open) > depth {
			open = open[:len(open)-1]
			fmt.Fprintf(&b, "%s</outline>\n", strings.Repeat("  ", len(open)+2))
		}
	}
	for _, f := range feeds {
		innermost := len(f.Folder) - 1
		same := 0
		for same < len(open) && same < len(f.Folder) && open[same].name == f.Folder[same] && (same < innermost || open[same].title == f.Title) {
			same++
		}
		shut(same)
		for i, name := range f.Folder[same:] {
			in, more := level{name: name}, ""
			if same+i == innermost && f.Title != "" {
				in.title, more = f.Title, fmt.Sprintf(" title=\"%s\"", escape(f.Title))
			}
			fmt.Fprintf(&b, "%s<outline text=\"%s\"%s>\n", strings.Repeat("  ", len(open)+2), escape(name), more)
			open = append(open, in)
		}
		fmt.Fprintf(&b, "%s<outline text=\"%s\" type=\"%s\" xmlUrl=\"%s\"/>\n", strings.Repeat("  ", len(open)+2), escape(cmp.Or(f.Name, f.URL)), escape(cmp.Or(f.Type, "rss")), escape(f.URL))
	}
	shut(0)
	b.WriteString("  </body>\n</opml>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
