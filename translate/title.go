package translate

import (
	"bytes"
	"encoding/xml"
	"strings"
)

// maxRecordTitle is how many bytes of a title are kept: it stands in every document
// that names the record, and comes from outside.
const maxRecordTitle = 1000

// RecordTitle returns the text of the first Dublin Core title in a record, on one
// line and cut after 1000 bytes, or "".
func RecordTitle(record []byte) string { return firstTitle(record, false) }

// firstTitle is RecordTitle; where there is none, with other, the text of the first
// element of that name in whatever namespace. A record is well-formed, and is read in
// each harvest, so only the title goes through a decoder.
func firstTitle(record []byte, other bool) string {
	core := bytes.Contains(record, []byte("http://purl.org/dc/"))
	if !core && !other || !bytes.Contains(record, []byte("title")) {
		return "" // most records need not be read for it
	}
	var scope namespaces
	first, depth := "", 0
	textless := 0 // depth of a title without text: those in it have none either
	for rest := record; ; {
		at := bytes.IndexByte(rest, '<')
		if at < 0 {
			return first
		}
		switch rest = rest[at:]; {
		case bytes.HasPrefix(rest, []byte("<!--")):
			rest = after(rest, "-->")
			continue
		case bytes.HasPrefix(rest, []byte("<![CDATA[")):
			rest = after(rest, "]]>")
			continue
		case bytes.HasPrefix(rest, []byte("<?")):
			rest = after(rest, "?>")
			continue
		case bytes.HasPrefix(rest, []byte("<!")):
			rest = after(rest, ">")
			continue
		case bytes.HasPrefix(rest, []byte("</")):
			scope.close(depth)
			depth--
			rest = after(rest, ">")
			continue
		}
		tag, content := cutTag(rest)
		if depth++; depth <= textless {
			textless = 0
		}
		scope.open(depth, tag)
		name, _, _ := bytes.Cut(tag, []byte("/")) // of an empty element
		if end := bytes.IndexAny(name, " \t\r\n"); end >= 0 {
			name = name[:end]
		}
		prefix, local, ok := bytes.Cut(name, []byte(":"))
		if !ok {
			prefix, local = nil, name
		}
		if string(local) == "title" && textless == 0 {
			space := scope.of(prefix)
			ofCore := space == "http://purl.org/dc/elements/1.1/" || space == "http://purl.org/dc/terms/"
			if ofCore || other && first == "" {
				switch title := elementText(rest); {
				case title == "":
					textless = depth
				case ofCore || !core:
					return title
				case first == "":
					first = title
				}
			}
		}
		if bytes.HasSuffix(tag, []byte("/")) {
			scope.close(depth)
			depth--
		}
		rest = content
	}
}

// after returns what follows the first mark, nothing if there is none.
func after(b []byte, mark string) []byte {
	_, rest, _ := bytes.Cut(b, []byte(mark))
	return rest
}

// cutTag returns what stands between the brackets of the tag that b begins with, and what
// follows it.
func cutTag(b []byte) (tag, rest []byte) {
	quote := byte(0)
	for i, c := range b {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '>':
			return b[1:i], b[i+1:]
		}
	}
	return nil, nil
}

// namespaces are the declarations of namespaces that are in scope.
type namespaces struct {
	all []declared
	// last has the place in all, from 1, of the innermost declaration of a prefix: there may be
	// tens of thousands, and as many titles.
	last map[string]int
}

// declared is the declaration of a prefix.
type declared struct {
	depth         int // of the element that has it
	prefix, space string
	hidden        int // place in all, from 1, of the one around it, 0 for none
}

// open adds those of a tag.
func (n *namespaces) open(depth int, tag []byte) {
	for bytes.Contains(tag, []byte("xmlns")) {
		name, rest, ok := bytes.Cut(tag, []byte("="))
		rest = bytes.TrimLeft(rest, " \t\r\n")
		if !ok || len(rest) == 0 {
			return
		}
		value, next, _ := bytes.Cut(rest[1:], rest[:1])
		name = bytes.TrimRight(name, " \t\r\n")
		name = name[bytes.LastIndexAny(name, " \t\r\n")+1:]
		if prefix, ok := bytes.CutPrefix(name, []byte("xmlns")); ok && (len(prefix) == 0 || prefix[0] == ':') {
			n.declare(depth, string(bytes.TrimPrefix(prefix, []byte(":"))), string(value))
		}
		tag = next
	}
}

func (n *namespaces) declare(depth int, prefix, space string) {
	if n.last == nil {
		n.last = map[string]int{}
	}
	n.all = append(n.all, declared{depth, prefix, space, n.last[prefix]})
	n.last[prefix] = len(n.all)
}

// close removes those of an element.
func (n *namespaces) close(depth int) {
	for len(n.all) > 0 && n.all[len(n.all)-1].depth >= depth {
		d := &n.all[len(n.all)-1]
		n.last[d.prefix] = d.hidden
		n.all = n.all[:len(n.all)-1]
	}
}

// of returns the namespace of a prefix, "" if there is none.
func (n *namespaces) of(prefix []byte) string {
	if at := n.last[string(prefix)]; at > 0 {
		return n.all[at-1].space
	}
	return ""
}

// elementText returns the text of the element that b begins with, with that of the
// elements in it, as a title.
func elementText(b []byte) string {
	if tag, content := cutTag(b); !bytes.HasSuffix(tag, []byte("/")) { // most are plain text
		if at := bytes.IndexByte(content, '<'); at >= 0 && bytes.HasPrefix(content[at:], []byte("</")) && bytes.IndexByte(content[:at], '&') < 0 {
			return titleOf(string(content[:at]))
		}
	}
	d := xml.NewDecoder(bytes.NewReader(b))
	var text strings.Builder
	for depth := 0; ; {
		token, err := d.RawToken()
		if err != nil {
			return ""
		}
		switch t := token.(type) {
		case xml.StartElement:
			depth++
		case xml.EndElement:
			if depth--; depth == 0 {
				return titleOf(text.String())
			}
		case xml.CharData:
			text.Write(t)
		}
	}
}

// titleOf returns a text as a title: on one line, and not too long.
func titleOf(text string) string {
	return strings.TrimSpace(cut(strings.Join(strings.Fields(text), " "), maxRecordTitle))
}
