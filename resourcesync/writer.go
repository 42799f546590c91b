package resourcesync

import (
	"errors"
	"io"
	"strconv"
	"unicode/utf8"
)

// ErrFull is returned by Writer.Entry for an entry that would lift the document
// over the writer's limits. Nothing of it has been written: close the document
// and begin the next one with that entry.
var ErrFull = errors.New("resourcesync: the document is full")

// flushAt is how many bytes a Writer gathers before it passes them on.
const flushAt = 32 << 10

// Writer writes one document, entry by entry, in memory that does not grow with
// it. It is used by one goroutine at a time. The first error of the underlying
// writer, and a broken rule, end it: every later call returns the same.
//
// Text is escaped strictly: & < > " ' and the white space that a reader would
// turn into blanks. What XML 1.0 cannot hold at all (control characters,
// U+FFFE, U+FFFF, bytes that are not UTF-8) becomes U+FFFD, so every document
// is well-formed whatever it is made of.
type Writer struct {
	// MaxEntries and MaxBytes limit the document, its end included; 0 is no
	// limit. The first entry is always taken.
	MaxEntries int
	MaxBytes   int64

	w       io.Writer
	head    Document
	buf     []byte
	passed  int64  // bytes handed to w
	tail    string // what ends the document; "" once it has ended
	entries int
	last    Datetime // of the last change
	err     error
}

// NewWriter begins a document with head and, if it has any, its Entries. The
// bytes go to w in pieces of some 32 KiB; w is never closed.
func NewWriter(w io.Writer, head *Document) *Writer {
	wr := &Writer{w: w, head: *head, tail: "</urlset>\n", buf: make([]byte, 0, flushAt+4096)}
	if head.Index {
		wr.tail = "</sitemapindex>\n"
	}
	if wr.err = head.check(); wr.err != nil {
		return wr
	}
	wr.buf = appendHead(wr.buf, head)
	for i := range head.Entries {
		if wr.Entry(&head.Entries[i]) != nil {
			break
		}
	}
	wr.head.Entries = nil
	return wr
}

// Entry appends one entry. It keeps nothing of e.
func (w *Writer) Entry(e *Entry) error {
	if w.err != nil {
		return w.err
	}
	if w.err = e.check(&w.head, w.last); w.err != nil {
		return w.err
	}
	if w.MaxEntries > 0 && w.entries >= w.MaxEntries {
		return ErrFull
	}
	before := len(w.buf)
	w.buf = appendEntry(w.buf, e, w.head.Index)
	if w.MaxBytes > 0 && w.entries > 0 && w.Size() > w.MaxBytes {
		w.buf = w.buf[:before]
		return ErrFull
	}
	w.entries++
	if !e.Metadata.Datetime.IsZero() {
		w.last = e.Metadata.Datetime
	}
	if len(w.buf) >= flushAt {
		w.flush()
	}
	return w.err
}

// Entries counts the entries written so far.
func (w *Writer) Entries() int { return w.entries }

// Size returns the length in bytes that the document has when it is closed now.
// After Close it is the length of the document.
func (w *Writer) Size() int64 {
	return w.passed + int64(len(w.buf)) + int64(len(w.tail))
}

// Close ends the document and passes on what is left of it.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	w.buf = append(w.buf, w.tail...)
	w.tail = ""
	w.flush()
	if w.err != nil {
		return w.err
	}
	w.err = errClosed
	return nil
}

var errClosed = errors.New("resourcesync: the document is closed")

func (w *Writer) flush() {
	n, err := w.w.Write(w.buf)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	w.passed += int64(n)
	w.buf, w.err = w.buf[:0], err
}

// WriteTo writes the whole document with its Entries. It implements
// io.WriterTo.
func (d *Document) WriteTo(w io.Writer) (int64, error) {
	wr := NewWriter(w, d)
	if err := wr.Close(); err != nil {
		return wr.passed, err
	}
	return wr.Size(), nil
}

func appendHead(b []byte, d *Document) []byte {
	b = append(b, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"...)
	if d.Index {
		b = append(b, `<sitemapindex`...)
	} else {
		b = append(b, `<urlset`...)
	}
	b = append(b, ` xmlns="`+SitemapNamespace+`" xmlns:rs="`+Namespace+`"`...)
	if !d.Index && d.Capability != Description && d.Capability != CapabilityList {
		b = append(b, ` xmlns:b="`+CarriedNamespace+`"`...)
	}
	b = append(b, ">\n"...)
	for i := range d.Links {
		b = appendLink(append(b, ' '), &d.Links[i])
	}
	b = appendAttr(append(b, ` <rs:md`...), ` capability="`, string(d.Capability))
	b = appendTime(b, ` at="`, d.At)
	b = appendTime(b, ` completed="`, d.Completed)
	b = appendTime(b, ` from="`, d.From)
	b = appendTime(b, ` until="`, d.Until)
	return append(b, "/>\n"...)
}

func appendEntry(b []byte, e *Entry, index bool) []byte {
	open, end := " <url>\n  <loc>", " </url>\n"
	if index {
		open, end = " <sitemap>\n  <loc>", " </sitemap>\n"
	}
	b = append(b, open...)
	b = appendEscaped(b, e.Loc)
	b = append(b, "</loc>\n"...)
	if !e.LastMod.IsZero() {
		b = append(b, "  <lastmod>"...)
		b = e.LastMod.Append(b)
		b = append(b, "</lastmod>\n"...)
	}
	if e.Metadata != (Metadata{}) {
		b = appendMetadata(append(b, "  "...), &e.Metadata)
	}
	for i := range e.Links {
		b = appendLink(append(b, "  "...), &e.Links[i])
	}
	return append(b, end...)
}

func appendMetadata(b []byte, m *Metadata) []byte {
	b = append(b, "<rs:md"...)
	b = appendAttr(b, ` capability="`, string(m.Capability))
	b = appendTime(b, ` at="`, m.At)
	b = appendTime(b, ` completed="`, m.Completed)
	b = appendTime(b, ` from="`, m.From)
	b = appendTime(b, ` until="`, m.Until)
	b = appendAttr(b, ` change="`, m.Change)
	b = appendTime(b, ` datetime="`, m.Datetime)
	b = appendAttr(b, ` encoding="`, m.Encoding)
	b = appendAttr(b, ` hash="`, m.Hash)
	b = appendLength(b, m.Length)
	b = appendAttr(b, ` path="`, m.Path)
	b = appendAttr(b, ` type="`, m.Type)
	b = appendAttr(b, ` b:id="`, m.ID)
	b = appendAttr(b, ` b:title="`, m.Title)
	return append(b, "/>\n"...)
}

func appendLink(b []byte, l *Link) []byte {
	b = append(b, "<rs:ln"...)
	b = appendAttr(b, ` rel="`, l.Rel)
	b = appendAttr(b, ` href="`, l.Href)
	b = appendTime(b, ` modified="`, l.Modified)
	b = appendAttr(b, ` encoding="`, l.Encoding)
	b = appendAttr(b, ` hash="`, l.Hash)
	b = appendLength(b, l.Length)
	b = appendAttr(b, ` path="`, l.Path)
	if l.Pri > 0 {
		b = append(strconv.AppendInt(append(b, ` pri="`...), int64(l.Pri), 10), '"')
	}
	b = appendAttr(b, ` type="`, l.Type)
	return append(b, "/>\n"...)
}

func appendAttr(b []byte, open, value string) []byte {
	if value == "" {
		return b
	}
	return append(appendEscaped(append(b, open...), value), '"')
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

// special has a bit for each byte below 64 that cannot stand for itself in text
// and attributes alike.
const special uint64 = 1<<32 - 1 | 1<<'"' | 1<<'&' | 1<<'\'' | 1<<'<' | 1<<'>'

// appendEscaped appends s as text or as the value of an attribute. No byte of s
// becomes more than six.
func appendEscaped(b []byte, s string) []byte {
	start := 0
	for i := 0; i < len(s); {
		if i+8 <= len(s) && plain8(s[i:i+8]) {
			i += 8
			continue
		}
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 64 || special>>c&1 == 0 {
				i++
				continue
			}
			b = append(append(b, s[start:i]...), entity(c)...)
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == 0xFFFE || r == 0xFFFF {
			b = append(append(b, s[start:i]...), "\uFFFD"...)
			start = i + n
		}
		i += n
	}
	return append(b, s[start:]...)
}

// plain8 tells whether the eight bytes of s are ASCII and none of them special,
// by arithmetic on all at once: what is subtracted from each byte leaves its
// highest bit set when the byte is one of those looked for.
func plain8(s string) bool {
	const each = 0x0101010101010101
	x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	found := x | // not ASCII
		(x - each*0x20) | // control characters
		((x ^ each*'"') - each) |
		((x | each ^ each*'\'') - each) | // & and ' differ in the lowest bit
		((x | each*2 ^ each*'>') - each) // < and > differ in the next
	return found&(each*0x80) == 0
}

func entity(c byte) string {
	switch c {
	case '&':
		return "&amp;"
	case '<':
		return "&lt;"
	case '>':
		return "&gt;"
	case '"':
		return "&quot;"
	case '\'':
		return "&apos;"
	case '\t':
		return "&#9;"
	case '\n':
		return "&#10;"
	case '\r':
		return "&#13;"
	}
	return "\uFFFD"
}
