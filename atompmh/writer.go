package atompmh

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

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

// NewWriter begins a document with the metadata in head. Its links are Self, Current,
// PrevArchive and NextArchive, and of Links those with another relation. ID, Title,
// Updated and Authors must be given. The bytes go to w in pieces of some 32 KiB; w is
// never closed.
func NewWriter(w io.Writer, head *Feed) *Writer {
	wr := &Writer{out: strictxml.NewOutput(w), head: *head}
	if err := head.broken(); err != nil {
		err.Place = "feed"
		wr.err = err
	}
	return wr
}

// begin writes the head. Whether the prefix of CarriedNamespace is declared there
// depends on the head's own links and on the first entry: nearly all are like it. Where
// it is not, a later entry that has need of it declares it itself.
func (w *Writer) begin(first *Entry) {
	w.begun = true
	w.carries = carried(w.head.Links) || first != nil && first.carries()
	w.out.Buf = appendHead(w.out.Buf, &w.head, w.carries)
}

// carries reports whether something of the entry is in CarriedNamespace.
func (e *Entry) carries() bool {
	return e.carriesID() || e.CarriedModified != "" || e.CarriedChangeFreq != "" || carried(e.Links) || e.Source != nil && carried(e.Source.Links)
}

// carried reports whether a link has an attribute in CarriedNamespace.
func carried(links []Link) bool {
	for i := range links {
		for j := range links[i].Other {
			if links[i].Other[j].Name.Space == CarriedNamespace {
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
// Other those in CarriedNamespace are written, and CarriedID where it is not
// ID and XML can hold it. A Deletion is written as a deletion entry, whether or not
// it was read as an at:deleted-entry.
func (w *Writer) Entry(e *Entry) error {
	if w.err != nil {
		return w.err
	}
	if err := w.broken(e); err != nil {
		err.Place = "entry " + clip(e.ID)
		w.err = err
		return err
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
	b = strictxml.AppendAttr(b, ` b:changefreq="`, e.CarriedChangeFreq)
	b = strictxml.AppendAttr(b, ` xml:lang="`, e.EntryLanguage)
	b = append(b, ">\n"...)
	b = appendElement(b, "  <id>", e.ID, "</id>\n")
	b = append(appendText(append(b, "  "...), "title", e.Title, e.Language), '\n')
	b = appendTime(b, "  <updated>", e.Updated, "</updated>\n")
	if !e.Published.IsZero() {
		b = appendTime(b, "  <published>", e.Published, "</published>\n")
	}
	if !e.Edited.IsZero() {
		b = appendTime(b, `  <app:edited xmlns:app="`+PublishingNamespace+`">`, e.Edited, "</app:edited>\n")
	}
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
		if e.DeletedBy.Name != "" {
			b = appendPersons(b, "  ", "at:by"+tombstonesDeclaration, []Person{e.DeletedBy}, "\n")
		}
		if e.Comment.Value != "" {
			b = append(appendText(append(b, "  "...), "at:comment"+tombstonesDeclaration, e.Comment.Value, e.Comment.Language), '\n')
		}
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
		if a.Name.Space != CarriedNamespace || slices.ContainsFunc(l.Other[:i], func(o xml.Attr) bool { return o.Name == a.Name }) {
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
		case "encoding":
			b = strictxml.AppendAttr(b, ` b:encoding="`, a.Value)
		case "profile":
			b = strictxml.AppendAttr(b, ` b:profile="`, a.Value)
		case "pri":
			b = strictxml.AppendAttr(b, ` b:pri="`, a.Value)
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

// broken applies the rules of RFC 4287 for persons, categories and languages.
func (m *Metadata) broken() *RuleError {
	for _, persons := range [...][]Person{m.Authors, m.Contributors} {
		for i := range persons {
			switch p := &persons[i]; {
			case strictxml.Trim(p.Name) == "":
				return breaks(rulePerson, "a person without a name: %q %q", clip(p.URI), clip(p.Email))
			case p.URI != "" && !strictxml.IsIRI(p.URI):
				return breaks(rulePerson, "person %q: uri %q is no IRI", clip(p.Name), clip(p.URI))
			case p.Email != "" && !CanBeEmail(p.Email):
				return breaks(rulePerson, "person %q: email %q is no address", clip(p.Name), clip(p.Email))
			}
		}
	}
	for i := range m.Categories {
		switch c := &m.Categories[i]; {
		case c.Term == "":
			return breaks(ruleCategory, "a category without a term: %q %q", clip(c.Scheme), clip(c.Label))
		case c.Scheme != "" && !strictxml.IsIRI(c.Scheme):
			return breaks(ruleCategory, "category %q: scheme %q is no IRI", clip(c.Term), clip(c.Scheme))
		}
	}
	for _, language := range [...]string{m.Language, m.Rights.Language} {
		if language != "" && !CanBeLanguage(language) {
			return breaks(ruleLanguage, "language %q", clip(language))
		}
	}
	return nil
}

// append appends all of it but the language, which stands on the title. Each
// element begins with indent and is followed by end.
func (m *Metadata) append(b []byte, indent, end string) []byte {
	b = appendPersons(b, indent, "author", m.Authors, end)
	b = appendPersons(b, indent, "contributor", m.Contributors, end)
	for i := range m.Categories {
		c := &m.Categories[i]
		b = append(append(b, indent...), "<category"...)
		b = strictxml.AppendAttr(b, ` term="`, c.Term)
		b = strictxml.AppendAttr(b, ` scheme="`, c.Scheme)
		b = strictxml.AppendAttr(b, ` label="`, c.Label)
		b = append(append(b, "/>"...), end...)
	}
	if m.Rights.Value != "" {
		b = appendText(append(b, indent...), "rights", m.Rights.Value, m.Rights.Language)
		b = append(b, end...)
	}
	return b
}

const tombstonesDeclaration = ` xmlns:at="` + TombstonesNamespace + `"`

// appendPersons appends a Person construct of each. The part of name after a space is
// written in the start tag only, as with appendText.
func appendPersons(b []byte, indent, name string, persons []Person, end string) []byte {
	for i := range persons {
		p := &persons[i]
		b = append(append(append(append(b, indent...), '<'), name...), "><name>"...)
		b = append(strictxml.AppendEscaped(b, p.Name), "</name>"...)
		if p.URI != "" {
			b = append(strictxml.AppendEscaped(append(b, "<uri>"...), p.URI), "</uri>"...)
		}
		if p.Email != "" {
			b = append(strictxml.AppendEscaped(append(b, "<email>"...), p.Email), "</email>"...)
		}
		b = append(append(appendEnd(b, name), '>'), end...)
	}
	return b
}

func appendEnd(b []byte, name string) []byte {
	name, _, _ = strings.Cut(name, " ")
	return append(append(b, "</"...), name...)
}

// appendText appends a Text construct with its language.
func appendText(b []byte, name, text, language string) []byte {
	b = append(append(b, '<'), name...)
	b = strictxml.AppendAttr(b, ` xml:lang="`, language)
	b = strictxml.AppendEscaped(append(b, '>'), text)
	return append(appendEnd(b, name), '>')
}

// broken applies the rules for the head of a document.
func (f *Feed) broken() *RuleError {
	switch {
	case f.ID == "" || strictxml.Trim(f.Title) == "" || len(f.Authors) == 0:
		return breaks(ruleFeed, "id %q, title %q, %d authors: all three are mandatory", clip(f.ID), clip(f.Title), len(f.Authors))
	case !strictxml.IsIRI(f.ID):
		return breaks(ruleID, "id %q is no absolute IRI", clip(f.ID))
	case !dated(f.Updated):
		return breaks(ruleFeed, "updated is missing or has no year from 1678 to 2261")
	case f.Complete && f.PrevArchive != "":
		return breaks(ruleS11, "prev-archive %s beside fh:complete", clip(f.PrevArchive))
	}
	if l := duplicate(f.Links); l != nil {
		return twoAlternates(l)
	}
	if err := f.Metadata.broken(); err != nil {
		return err
	}
	return brokenLink(f.Links)
}

// broken applies the rules for an entry.
func (w *Writer) broken(e *Entry) *RuleError {
	switch {
	case e.ID == "" || strictxml.Trim(e.Title) == "":
		return breaks(ruleEntry, "id %q and title %q: both are mandatory", clip(e.ID), clip(e.Title))
	case !strictxml.IsIRI(e.ID):
		return breaks(ruleID, "id %q is no absolute IRI", clip(e.ID))
	case !dated(e.Updated):
		return breaks(ruleEntry, "updated is missing or has no year from 1678 to 2261")
	case e.Updated.After(w.head.Updated):
		return breaks(ruleS1, "updated %v is later than the feed's, %v", exact(e.Updated), exact(w.head.Updated))
	case e.Updated.Before(w.PrevUpdated):
		return breaks(ruleS2, "updated %v is earlier than that of the document behind prev-archive, %v", exact(e.Updated), exact(w.PrevUpdated))
	}
	if err := w.brokenKind(e); err != nil {
		return err
	}
	if l := duplicate(e.Links); l != nil {
		return twoAlternates(l)
	}
	if err := cmp.Or(undated("published", e.Published), undated("edited", e.Edited)); err != nil {
		return err
	}
	if err := e.broken(); err != nil {
		return err
	}
	more := Metadata{Language: e.EntryLanguage, Rights: e.Comment}
	if e.DeletedBy != (Person{}) {
		more.Authors = []Person{e.DeletedBy}
	}
	if err := more.broken(); err != nil {
		return err
	}
	if s := e.Source; s != nil {
		if s.ID != "" && !strictxml.IsIRI(s.ID) {
			return breaks(ruleSource, "id %q of atom:source is no absolute IRI", clip(s.ID))
		}
		if err := cmp.Or(undated("updated of atom:source", s.Updated), s.broken()); err != nil {
			return err
		}
		if err := brokenLink(s.Links); err != nil {
			return err
		}
	}
	return brokenLink(e.Links)
}

// brokenKind applies S10 and S7.
func (w *Writer) brokenKind(e *Entry) *RuleError {
	alternates, further := 0, 0
	for i := range e.Links {
		switch relation(e.Links[i].Rel) {
		case relAlternate:
			alternates++
		case RelFurtherAlternate:
			further++
		default:
			continue
		}
		if e.Links[i].Type == "" {
			return breaks(ruleType, "an alternate link without type: %s", clip(e.Links[i].Href))
		}
	}
	c := e.Content
	switch {
	case e.Kind == Active && alternates == 0:
		return breaks(ruleS10, "no alternate link")
	case e.Kind == Active && c != nil:
		return breaks(ruleS10, "atom:content beside an alternate link")
	case e.Kind == Active:
		return nil
	case e.Kind != Deletion:
		return breaks(ruleS10, "kind %d is neither active nor deletion", e.Kind)
	case alternates+further > 0:
		return breaks(ruleS10, "a deletion entry with an alternate link")
	case c != nil && (!c.Empty || c.HasSrc):
		return breaks(ruleS10, "a deletion entry with a content that is not empty, or has src")
	case w.head.Complete:
		return breaks(ruleS7, "a deletion entry beside fh:complete")
	}
	return nil
}

func twoAlternates(l *Link) *RuleError {
	return breaks(ruleAlternates, "two alternate links of type %q, hreflang %q: let the further one have the relation %s",
		clip(l.Type), clip(l.Hreflang), RelFurtherAlternate)
}

// undated returns the error for a time that cannot be written; a zero one is not.
func undated(name string, t time.Time) *RuleError {
	if t.IsZero() || dated(t) {
		return nil
	}
	return breaks(ruleDate, "%s %v has no year from 1678 to 2261", name, exact(t))
}

func brokenLink(links []Link) *RuleError {
	for i := range links {
		switch l := &links[i]; {
		case l.Href == "":
			return breaks(ruleLink, "link %s without href", clip(l.Rel))
		case l.Type != "" && !CanBeType(l.Type):
			return breaks(ruleType, "link %s with type %q", clip(l.Href), clip(l.Type))
		case l.Hreflang != "" && !CanBeLanguage(l.Hreflang):
			return breaks(ruleLanguage, "link %s with hreflang %q", clip(l.Href), clip(l.Hreflang))
		}
	}
	return nil
}

// dated reports whether ParseTime reads t back.
func dated(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 1678 && y <= 2261
}

func exact(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func breaks(rule, format string, args ...any) *RuleError {
	return &RuleError{Rule: rule, Broken: fmt.Sprintf(format, args...)}
}
