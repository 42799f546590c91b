package resourcesync

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// ErrFull is returned by Writer.Entry for an entry that would lift the document
// over the writer's limits. Nothing of it has been written: close the document
// and begin the next one with that entry.
var ErrFull = errors.New("resourcesync: the document is full")

// Writer writes one document, entry by entry, in memory that does not grow with
// it. It is used by one goroutine at a time. The first error of the underlying
// writer, and a broken rule, end it: every later call returns the same.
//
// It checks the capability, the times (Appendix A) and links of the head; that an entry has a
// loc; change, order and interval of changes; the capabilities in a Capability List; and the
// paths in a manifest. It does not check the form of a loc, an href, a hash or a media type, or
// the number of entries.
//
// Text is escaped strictly, and what XML 1.0 cannot hold at all becomes U+FFFD:
// every document is well-formed whatever it is made of.
type Writer struct {
	// MaxEntries and MaxBytes limit the document, its end included; 0, as NewWriter
	// leaves them, is no limit. Those of clause 7 are the constants of the same names.
	// An entry above them is ErrFull; the first one is always taken.
	MaxEntries int
	MaxBytes   int64

	out      *strictxml.Output
	head     Document
	begun    bool       // the head is written
	declared bool       // the root declares the prefix of CarriedNamespace
	broken   broken     // what to do with a broken rule
	fault    *RuleError // the first broken rule, of a strict writer
	tail     string     // what ends the document; "" once it has ended
	entries  int
	last     Datetime // of the last change
	err      error
}

// NewWriter begins a document with head and, if it has any, its Entries. The
// bytes go to w in pieces of some 32 KiB; w is never closed. A broken rule is a
// *RuleError, and nothing of what broke it is written.
func NewWriter(w io.Writer, head *Document) *Writer {
	wr := &Writer{}
	wr.broken = func(rule, found, expected string) {
		if wr.fault == nil {
			wr.fault = ruleError(rule, found, expected)
		}
	}
	wr.begin(w, head)
	return wr
}

func (w *Writer) begin(to io.Writer, head *Document) {
	w.out, w.head, w.tail = strictxml.NewOutput(to), *head, "</urlset>\n"
	w.head.Entries = nil
	if head.Index {
		w.tail = "</sitemapindex>\n"
	}
	if w.fault = head.unwritable(); w.fault == nil {
		head.check(w.broken)
	}
	if w.fault != nil {
		w.fault.Place = "head"
		w.err = w.fault
		return
	}
	for i := range head.Entries {
		if w.Entry(&head.Entries[i]) != nil {
			break
		}
	}
}

// Entry appends one entry. It keeps nothing of e. The error is ErrFull, a *RuleError, or that
// of the underlying writer.
func (w *Writer) Entry(e *Entry) error {
	if w.err != nil {
		return w.err
	}
	if w.fault = e.unwritable(w.head.Dialect); w.fault == nil {
		e.check(&w.head, w.last, w.broken)
	}
	if w.fault != nil {
		w.fault.Place = "entry " + e.Loc
		w.err = w.fault
		return w.err
	}
	if w.MaxEntries > 0 && w.entries >= w.MaxEntries {
		return ErrFull
	}
	if !w.begun {
		w.open(e.carries())
	}
	before := len(w.out.Buf)
	w.out.Buf = w.appendEntry(w.out.Buf, e)
	if w.MaxBytes > 0 && w.entries > 0 && w.Size() > w.MaxBytes {
		w.out.Buf = w.out.Buf[:before]
		return ErrFull
	}
	w.entries++
	if t := e.moment(&w.head); w.last.before(t) {
		w.last = t
	}
	if w.out.Full() {
		w.err = w.out.Flush()
	}
	return w.err
}

// open writes the head. It declares the prefix of CarriedNamespace there if the first entry or
// a link of the head needs it: nearly all entries are like the first. Otherwise each element
// that needs the prefix declares it itself.
func (w *Writer) open(carries bool) {
	w.begun = true
	for i := range w.head.Links {
		carries = carries || w.head.Links[i].carries()
	}
	w.declared = carries && w.head.Dialect != DialectSitemap
	w.out.Buf = w.appendHead(w.out.Buf)
}

// Entries counts the entries written so far.
func (w *Writer) Entries() int { return w.entries }

// Size returns the length in bytes that the document has when it is closed now.
// After Close it is the length of the document.
func (w *Writer) Size() int64 {
	if !w.begun && w.err == nil {
		empty := Writer{head: w.head, out: &strictxml.Output{}}
		empty.open(false)
		return empty.out.Len() + int64(len(w.tail))
	}
	return w.out.Len() + int64(len(w.tail))
}

// Close ends the document and writes what is left of it.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	if !w.begun {
		w.open(false)
	}
	w.out.Buf = append(w.out.Buf, w.tail...)
	w.tail = ""
	if w.err = w.out.Flush(); w.err != nil {
		return w.err
	}
	w.err = errClosed
	return nil
}

var errClosed = errors.New("resourcesync: the document is closed")

// WriteTo writes the whole document with its Entries, as a Writer without limits
// does. The error is a *RuleError, or comes from w. It implements io.WriterTo.
func (d *Document) WriteTo(w io.Writer) (int64, error) {
	wr := NewWriter(w, d)
	if err := wr.Close(); err != nil {
		return wr.out.Passed(), err
	}
	return wr.Size(), nil
}

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
	m := d.metadata()
	if d.Dialect == Dialect091 && d.Capability == Description {
		m.Capability = draftDescription
	}
	return w.appendMetadata(append(b, ' '), &m)
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
	b = strictxml.AppendAttr(b, ` b:details="`, m.Details)
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
			first := slices.IndexFunc(extra, func(o xml.Attr) bool { return o.Name.Space == a.Name.Space })
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
