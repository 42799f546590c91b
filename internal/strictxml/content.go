package strictxml

import (
	"encoding/base64"
	"mime"
	"strings"
)

// Content is what an atom:content holds (RFC 4287 4.1.3.3).
type Content struct {
	Data []byte // the content as bytes of a document of its own, text in UTF-8
	Type string // its media type, with the charset of text
	// Bad says why it cannot be taken, "" if it can: it does not hold what its type says.
	Bad string
}

const (
	xhtmlNamespace = "http://www.w3.org/1999/xhtml"
	utf8Charset    = "; charset=utf-8"
)

// Content reads the atom:content whose start tag is the current token to its end: text
// as it is, HTML without its escaping, an XML element as a document of its own (of XHTML
// the div, since what is in it need not be one), and all else decoded from Base64. own is
// the namespace of the feed.
func (s *Scanner) Content(own string) (c Content, err error) {
	stated, _ := s.Attr("", "type")
	stated = Trim(stated)
	kind, params, bad := mime.ParseMediaType(stated)
	switch {
	case stated == "" || strings.EqualFold(stated, "text"):
		return s.contentText("text/plain" + utf8Charset)
	case strings.EqualFold(stated, "html"):
		return s.contentText("text/html" + utf8Charset)
	case strings.EqualFold(stated, "xhtml"):
		return s.contentElement("application/xhtml+xml", own, true)
	case bad != nil || !strings.Contains(kind, "/"):
		c.Bad = "its type " + Clip(stated) + " is no media type"
		return c, s.Skip()
	case strings.HasSuffix(kind, "+xml") || strings.HasSuffix(kind, "/xml"):
		delete(params, "charset") // the document is in UTF-8 now
		return s.contentElement(mime.FormatMediaType(kind, params), own, false)
	case strings.HasPrefix(kind, "text/"):
		params["charset"] = "utf-8"
		return s.contentText(mime.FormatMediaType(kind, params))
	}
	c, err = s.contentText(stated)
	if c.Bad != "" {
		c.Bad = "it holds elements in place of Base64, which its type " + Clip(stated) + " wants"
	}
	if err != nil || c.Bad != "" {
		return c, err
	}
	data, bad := base64.StdEncoding.DecodeString(strings.Map(func(r rune) rune {
		if strings.ContainsRune(white, r) {
			return -1
		}
		return r
	}, string(c.Data)))
	if c.Data = data; bad != nil {
		c.Bad = "it is not Base64, which its type " + Clip(stated) + " wants"
	}
	return c, nil
}

func (s *Scanner) contentText(mediaType string) (Content, error) {
	text, markup, err := s.Characters()
	c := Content{Data: append([]byte(nil), text...), Type: mediaType}
	if markup {
		c.Bad = "it holds elements, and its type is text"
	}
	return c, err
}

func (s *Scanner) contentElement(mediaType, own string, div bool) (Content, error) {
	c := Content{Type: mediaType}
	for depth := s.Depth(); s.Depth() >= depth; {
		if err := s.Next(); err != nil {
			return c, err
		}
		switch s.Kind {
		case Text:
			if Trim(string(s.Data)) != "" {
				c.Bad = "it holds text beside an element"
			}
		case StartTag:
			if c.Data != nil {
				c.Bad = "it holds more than one element"
			}
			if div && (s.Space != xhtmlNamespace || s.Local != "div") {
				c.Bad = "it holds " + s.What() + " in place of a div of XHTML"
			}
			var err error
			if c.Data, _, err = s.Element(s.o.Limits.Depth, own); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}
