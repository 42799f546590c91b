package atompmh

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// RuleError tells that a document would break a rule. The Writer returns it
// instead of writing such a document.
type RuleError struct {
	Rule   string // its id, see Rules
	Place  string // feed, or the entry's id
	Broken string // what is wrong
}

// Error names the place, what is wrong there and the rule.
func (e *RuleError) Error() string {
	return fmt.Sprintf("atompmh: %s: %s [%s]", e.Place, e.Broken, e.Rule)
}

// Writer writes one Atom Feed Document, a subscription, archive or complete
// document, entry by entry, in memory that does not grow with it. It is used by
// one goroutine at a time. The first error of the underlying writer, and a broken
// rule, end it: every later call returns the same.
//
// It checks what one document can show: S1, S2 (with PrevUpdated), S7, S10, S11
// and what RFC 4287 demands of a feed, an entry and a link. Text is escaped
// strictly, and what XML 1.0 cannot hold at all becomes U+FFFD: every document is
// well-formed whatever it is made of.
type Writer struct {
	// PrevUpdated is feed/updated of the document that PrevArchive names. No
	// entry may be earlier (S2); zero checks nothing. Set it before Entry.
	PrevUpdated time.Time

	out     *strictxml.Output
	head    Feed
	begun   bool // the head is written
	carries bool // the root declares the prefix of CarriedNamespace
	entries int
	err     error
}

// NewWriter begins a document with what head says. Its links are Self, Current,
// PrevArchive and NextArchive, and of Links those with another relation. ID,
// Title, Updated and Authors must be given. The bytes go to w in pieces of some 32
// KiB; w is never closed.
func NewWriter(w io.Writer, head *Feed) *Writer {
	wr := &Writer{out: strictxml.NewOutput(w), head: *head}
	wr.err = head.check()
	return wr
}

// begin writes the head. Whether the prefix of CarriedNamespace is declared there
// depends on the first entry: nearly all are like it. Where it is not, a later
// entry that has need of it declares it itself.
func (w *Writer) begin(first *Entry) {
	w.begun = true
	w.carries = first != nil && first.carries()
	w.out.Buf = appendHead(w.out.Buf, &w.head, w.carries)
}

// carries reports whether something of the entry is in CarriedNamespace.
func (e *Entry) carries() bool {
	if e.carriesID() || e.CarriedModified != "" {
		return true
	}
	for i := range e.Links {
		for j := range e.Links[i].Other {
			if e.Links[i].Other[j].Name.Space == CarriedNamespace {
				return true
			}
		}
	}
	return false
}

func (e *Entry) carriesID() bool {
	return e.CarriedID != "" && e.CarriedID != e.ID && strictxml.Holds(e.CarriedID)
}

// Entry appends one entry and keeps nothing of it. ID, Title, Updated and Kind
// must be given; Length of a link is NoLength where it is unknown. Of the links'
// Other the four in CarriedNamespace are written, and CarriedID where it is not
// ID and XML can hold it. A Deletion is written as a deletion entry, whether or not
// it was read as an at:deleted-entry.
func (w *Writer) Entry(e *Entry) error {
	if w.err != nil {
		return w.err
	}
	if w.err = w.check(e); w.err != nil {
		return w.err
	}
	if !w.begun {
		w.begin(e)
	}
	w.out.Buf = appendEntry(w.out.Buf, e, !w.carries && e.carries())
	w.entries++
	if w.out.Full() {
		w.err = w.out.Flush()
	}
	return w.err
}

// Entries counts the entries written so far.
func (w *Writer) Entries() int { return w.entries }

var errClosed = errors.New("atompmh: the document is closed")

// Close ends the document and passes on what is left of it.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	if !w.begun {
		w.begin(nil)
	}
	w.out.Buf = append(w.out.Buf, "</feed>\n"...)
	if w.err = w.out.Flush(); w.err != nil {
		return w.err
	}
	w.err = errClosed
	return nil
}

const carriedDeclaration = ` xmlns:b="` + CarriedNamespace + `"`

// appendHead declares no namespace that the document has no use for.
func appendHead(b []byte, f *Feed, carries bool) []byte {
	b = append(b, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"+`<feed xmlns="`+Namespace+`"`...)
	if f.Archive || f.Complete {
		b = append(b, ` xmlns:fh="`+HistoryNamespace+`"`...)
	}
	if carries {
		b = append(b, carriedDeclaration...)
	}
	b = append(b, ">\n"...)
	b = appendElement(b, " <id>", f.ID, "</id>\n")
	b = append(appendText(append(b, ' '), "title", f.Title, f.Language), '\n')
	b = appendTime(b, " <updated>", f.Updated, "</updated>\n")
	b = f.append(b, " ", "\n")
	if f.Generator != "" {
		b = appendElement(b, " <generator>", f.Generator, "</generator>\n")
	}
	if f.Archive {
		b = append(b, " <fh:archive/>\n"...)
	}
	if f.Complete {
		b = append(b, " <fh:complete/>\n"...)
	}
	for _, l := range [...]Link{{Rel: relSelf, Href: f.Self}, {Rel: relCurrent, Href: f.Current},
		{Rel: relPrevArchive, Href: f.PrevArchive}, {Rel: relNextArchive, Href: f.NextArchive}} {
		if l.Href != "" {
			l.Length = NoLength
			b = appendLink(append(b, ' '), &l)
		}
	}
	for i := range f.Links {
		switch l := &f.Links[i]; l.Rel {
		case relSelf, relCurrent, relPrevArchive, relNextArchive:
		default:
			b = appendLink(append(b, ' '), l)
		}
	}
	return b
}

func appendEntry(b []byte, e *Entry, declare bool) []byte {
	b = append(b, " <entry"...)
	if declare {
		b = append(b, carriedDeclaration...)
	}
	if e.carriesID() {
		b = strictxml.AppendAttr(b, ` b:id="`, e.CarriedID)
	}
	b = strictxml.AppendAttr(b, ` b:modified="`, e.CarriedModified)
	b = append(b, ">\n"...)
	b = appendElement(b, "  <id>", e.ID, "</id>\n")
	b = append(appendText(append(b, "  "...), "title", e.Title, e.Language), '\n')
	b = appendTime(b, "  <updated>", e.Updated, "</updated>\n")
	b = e.append(b, "  ", "\n")
	for i := range e.Links {
		b = appendLink(append(b, "  "...), &e.Links[i])
	}
	if s := e.Source; s != nil {
		b = append(b, "  <source>"...)
		if s.ID != "" {
			b = appendElement(b, "<id>", s.ID, "</id>")
		}
		if s.Title != "" {
			b = appendText(b, "title", s.Title, s.Language)
		}
		if !s.Updated.IsZero() {
			b = appendTime(b, "<updated>", s.Updated, "</updated>")
		}
		b = s.append(b, "", "")
		for i := range s.Links {
			b = appendLink(b, &s.Links[i])
			b = b[:len(b)-1] // one line for all of it
		}
		b = append(b, "</source>\n"...)
	}
	if e.Kind == Deletion {
		b = append(b, "  <content/>\n"...)
	}
	return append(b, " </entry>\n"...)
}

func appendLink(b []byte, l *Link) []byte {
	rel := l.Rel
	if rel == "" {
		rel = relAlternate
	}
	b = strictxml.AppendAttr(append(b, "<link"...), ` rel="`, rel)
	b = strictxml.AppendAttr(b, ` href="`, l.Href)
	b = strictxml.AppendAttr(b, ` type="`, l.Type)
	b = strictxml.AppendAttr(b, ` hreflang="`, l.Hreflang)
	b = strictxml.AppendAttr(b, ` title="`, l.Title)
	if l.Length >= 0 {
		b = append(strconv.AppendInt(append(b, ` length="`...), l.Length, 10), '"')
	}
	for i := range l.Other {
		a := &l.Other[i]
		if a.Name.Space != CarriedNamespace {
			continue
		}
		switch a.Name.Local {
		case "id":
			b = strictxml.AppendAttr(b, ` b:id="`, a.Value)
		case "modified":
			b = strictxml.AppendAttr(b, ` b:modified="`, a.Value)
		case "hash":
			b = strictxml.AppendAttr(b, ` b:hash="`, a.Value)
		case "length":
			b = strictxml.AppendAttr(b, ` b:length="`, a.Value)
		}
	}
	return append(b, "/>\n"...)
}

func appendElement(b []byte, open, text, end string) []byte {
	return append(strictxml.AppendEscaped(append(b, open...), text), end...)
}

// appendTime appends t with as many digits as it needs.
func appendTime(b []byte, open string, t time.Time, end string) []byte {
	return append(t.UTC().AppendFormat(append(b, open...), time.RFC3339Nano), end...)
}
