package resourcesync

import (
	"errors"
	"io"

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
	begun    bool   // the head is written
	declared bool   // the root declares the prefix of CarriedNamespace
	broken   broken // what to do with a broken rule
	fault    *fault // the first broken rule, of a strict writer
	tail     string // what ends the document; "" once it has ended
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
			wr.fault = &fault{rule, found, expected}
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
		w.err = w.fault.at("head")
		return
	}
	for i := range head.Entries {
		if w.Entry(&head.Entries[i]) != nil {
			break
		}
	}
}

// Entry appends one entry. It keeps nothing of e.
func (w *Writer) Entry(e *Entry) error {
	if w.err != nil {
		return w.err
	}
	if w.fault = e.unwritable(w.head.Dialect); w.fault == nil {
		e.check(&w.head, w.last, w.broken)
	}
	if w.fault != nil {
		w.err = w.fault.at("entry " + e.Loc)
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

// open writes the head. Whether the prefix of CarriedNamespace is declared there
// depends on the first entry: nearly all are like it. Where it is not, what has
// need of it later declares it itself.
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

// Close ends the document and passes on what is left of it.
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

// WriteTo writes the whole document with its Entries. It implements
// io.WriterTo.
func (d *Document) WriteTo(w io.Writer) (int64, error) {
	wr := NewWriter(w, d)
	if err := wr.Close(); err != nil {
		return wr.out.Passed(), err
	}
	return wr.Size(), nil
}
