package resourcesync

import (
	"encoding/xml"
	"strconv"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

const carriedDeclaration = ` xmlns:b="` + CarriedNamespace + `"`

// carries reports whether something of the entry is in CarriedNamespace.
func (e *Entry) carries() bool {
	for i := range e.Links {
		if e.Links[i].carries() {
			return true
		}
	}
	return e.Metadata.carries()
}

func (l *Link) carries() bool { return l.ID != "" || l.Hreflang != "" }

func (w *Writer) appendHead(b []byte) []byte {
	d := &w.head
	b = append(b, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"...)
	if d.Index {
		b = append(b, `<sitemapindex`...)
	} else {
		b = append(b, `<urlset`...)
	}
	b = append(b, ` xmlns="`+SitemapNamespace+`"`...)
	b = strictxml.AppendAttr(b, ` xmlns:rs="`, d.Dialect.namespace())
	if w.declared {
		b = append(b, carriedDeclaration...)
	}
	b = append(b, ">\n"...)
	if d.Dialect == DialectSitemap {
		return b
	}
	for i := range d.Links {
		b = w.appendLink(append(b, ' '), &d.Links[i])
	}
	capability := string(d.Capability)
	if d.Dialect == Dialect091 && d.Capability == Description {
		capability = draftDescription
	}
	b = strictxml.AppendAttr(append(b, ` <rs:md`...), ` capability="`, capability)
	b = appendTime(b, ` at="`, d.At)
	b = appendTime(b, ` completed="`, d.Completed)
	b = appendTime(b, ` from="`, d.From)
	b = appendTime(b, ` until="`, d.Until)
	b = appendTime(b, ` modified="`, d.Modified)
	return append(appendExtra(b, d.Extra), "/>\n"...)
}

func (w *Writer) appendEntry(b []byte, e *Entry) []byte {
	open, end := " <url>\n  <loc>", " </url>\n"
	if w.head.Index {
		open, end = " <sitemap>\n  <loc>", " </sitemap>\n"
	}
	b = append(b, open...)
	b = strictxml.AppendEscaped(b, e.Loc)
	b = append(b, "</loc>\n"...)
	if !e.LastMod.IsZero() {
		b = append(b, "  <lastmod>"...)
		b = e.LastMod.Append(b)
		b = append(b, "</lastmod>\n"...)
	}
	b = appendElement(b, "changefreq", e.ChangeFreq)
	b = appendElement(b, "priority", e.Priority)
	if !e.Metadata.isZero() {
		b = w.appendMetadata(append(b, "  "...), &e.Metadata)
	}
	for i := range e.Links {
		b = w.appendLink(append(b, "  "...), &e.Links[i])
	}
	return append(b, end...)
}

func (w *Writer) appendMetadata(b []byte, m *Metadata) []byte {
	b = append(b, "<rs:md"...)
	if m.carries() && !w.declared {
		b = append(b, carriedDeclaration...)
	}
	b = strictxml.AppendAttr(b, ` capability="`, string(m.Capability))
	b = appendTime(b, ` at="`, m.At)
	b = appendTime(b, ` completed="`, m.Completed)
	b = appendTime(b, ` from="`, m.From)
	b = appendTime(b, ` until="`, m.Until)
	b = strictxml.AppendAttr(b, ` change="`, m.Change)
	b = appendTime(b, ` datetime="`, m.Datetime)
	b = strictxml.AppendAttr(b, ` encoding="`, m.Encoding)
	b = strictxml.AppendAttr(b, ` hash="`, m.Hash)
	b = appendLength(b, m.Length)
	b = strictxml.AppendAttr(b, ` path="`, m.Path)
	b = strictxml.AppendAttr(b, ` type="`, m.Type)
	b = strictxml.AppendAttr(b, ` etag="`, m.ETag)
	b = appendTime(b, ` modified="`, m.Modified)
	b = strictxml.AppendAttr(b, ` b:id="`, m.ID)
	b = strictxml.AppendAttr(b, ` b:title="`, m.Title)
	b = strictxml.AppendAttr(b, ` b:hreflang="`, m.Hreflang)
	b = appendTime(b, ` b:modified="`, m.CarriedModified)
	return append(appendExtra(b, m.Extra), "/>\n"...)
}

func (w *Writer) appendLink(b []byte, l *Link) []byte {
	b = append(b, "<rs:ln"...)
	if l.carries() && !w.declared {
		b = append(b, carriedDeclaration...)
	}
	b = strictxml.AppendAttr(b, ` rel="`, l.Rel)
	b = strictxml.AppendAttr(b, ` href="`, l.Href)
	b = appendTime(b, ` modified="`, l.Modified)
	b = strictxml.AppendAttr(b, ` encoding="`, l.Encoding)
	b = strictxml.AppendAttr(b, ` hash="`, l.Hash)
	b = appendLength(b, l.Length)
	b = strictxml.AppendAttr(b, ` path="`, l.Path)
	if l.Pri > 0 {
		b = append(strconv.AppendInt(append(b, ` pri="`...), int64(l.Pri), 10), '"')
	}
	b = strictxml.AppendAttr(b, ` type="`, l.Type)
	b = strictxml.AppendAttr(b, ` profile="`, l.Profile)
	b = strictxml.AppendAttr(b, ` b:id="`, l.ID)
	b = strictxml.AppendAttr(b, ` b:hreflang="`, l.Hreflang)
	return append(appendExtra(b, l.Extra), "/>\n"...)
}

// appendExtra appends attributes with a prefix and a declaration for each
// namespace: x0, x1 and so on.
func appendExtra(b []byte, extra []xml.Attr) []byte {
	for i, a := range extra {
		b = append(b, ' ')
		switch a.Name.Space {
		case "":
		case strictxml.Namespace:
			b = append(b, "xml:"...)
		default:
			first := declared(extra[:i+1])
			prefix := "x" + strconv.Itoa(first)
			if first == i {
				b = append(append(append(b, "xmlns:"...), prefix...), `="`...)
				b = append(strictxml.AppendEscaped(b, a.Name.Space), `" `...)
			}
			b = append(append(b, prefix...), ':')
		}
		b = append(append(b, a.Name.Local...), `="`...)
		b = append(strictxml.AppendEscaped(b, a.Value), '"')
	}
	return b
}

// declared returns the place of the first attribute with the last one's
// namespace.
func declared(extra []xml.Attr) int {
	last := len(extra) - 1
	for i := range extra {
		if extra[i].Name.Space == extra[last].Name.Space {
			return i
		}
	}
	return last
}

func appendElement(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	b = append(append(append(b, "  <"...), name...), '>')
	b = strictxml.AppendEscaped(b, text)
	return append(append(append(b, "</"...), name...), ">\n"...)
}

func appendTime(b []byte, open string, t Datetime) []byte {
	if t.IsZero() {
		return b
	}
	return append(t.Append(append(b, open...)), '"')
}

func appendLength(b []byte, l Length) []byte {
	if !l.known {
		return b
	}
	return append(l.append(append(b, ` length="`...)), '"')
}
