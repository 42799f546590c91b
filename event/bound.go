package event

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits of a Source's report about one record, in bytes unless a limit counts something
// else. The report is published, and meanwhile stays in memory.
const (
	MaxIdentifier      = 8 << 10
	MaxHref            = 8 << 10
	MaxHash            = 4 << 10
	MaxTitle           = 4 << 10 // a longer one is cut
	MaxType            = 255     // of media types, content codings and relations
	MaxRepresentations = 256     // of one record
	MaxLinks           = 1024    // of one record, beside its representations
	MaxMetadata        = 400_000 // of all together: lists and feeds have room for so much
)

// ErrTooMuch: a Source reports more about a record than the limits allow.
var ErrTooMuch = errors.New("the Source reports too much about the record")

// cutMark ends a title that was cut.
const cutMark = " …"

// CutTitle cuts a title that is longer than MaxTitle, and marks it as cut.
func CutTitle(title string) string {
	if len(title) <= MaxTitle {
		return title
	}
	return strings.TrimSpace(strings.ToValidUTF8(title[:MaxTitle-len(cutMark)], "")) + cutMark
}

// Distinct leaves out each representation whose Href another one has before it.
func Distinct(reps []Representation) []Representation {
	const few = 8
	var seen map[string]bool
	if len(reps) > few {
		seen = make(map[string]bool, len(reps))
	}
	out := reps[:0]
	for i := range reps {
		href := reps[i].Href
		if seen[href] || seen == nil && slices.ContainsFunc(out, func(r Representation) bool { return r.Href == href }) {
			continue
		}
		if seen != nil {
			seen[href] = true
		}
		out = append(out, reps[i])
	}
	return out
}

// Bound cuts the title, and returns an ErrTooMuch that names what is too long, or too
// many.
func (o *Observation) Bound() error {
	o.Title = CutTitle(o.Title)
	err := cmp.Or(long("identifier", o.Record, MaxIdentifier), long("identifier", o.SourceIdentifier, MaxIdentifier), long("loc", o.Loc, MaxHref), o.Via.bound())
	if n := len(o.Representations); n > MaxRepresentations {
		err = cmp.Or(err, fmt.Errorf("%w: %d representations; want at most %d", ErrTooMuch, n, MaxRepresentations))
	}
	if n := len(o.Links); n > MaxLinks {
		err = cmp.Or(err, fmt.Errorf("%w: %d links; want at most %d", ErrTooMuch, n, MaxLinks))
	}
	for i := 0; i < len(o.Representations) && err == nil; i++ {
		r := &o.Representations[i]
		err = cmp.Or(long("URL of a representation", r.Href, MaxHref), long("media type", r.Type, MaxType), long("content coding", r.Encoding, MaxType), long("hash", r.Hash, MaxHash))
	}
	for i := 0; i < len(o.Links) && err == nil; i++ {
		err = o.Links[i].bound()
	}
	if n := o.size(); err == nil && n > MaxMetadata {
		err = fmt.Errorf("%w: its metadata, without its content, has %d bytes; want at most %d", ErrTooMuch, n, MaxMetadata)
	}
	return err
}

// Bound cuts the title of the feed, and leaves out an id that is too long to name
// one: each event that came from the document has both.
func (d *Document) Bound() {
	d.FeedTitle = CutTitle(d.FeedTitle)
	if len(d.FeedID) > MaxIdentifier {
		d.FeedID = ""
	}
}

// size counts the bytes of an observation's texts, and some for each of its parts.
func (o *Observation) size() int {
	n := len(o.Record) + len(o.Title) + len(o.SourceIdentifier) + len(o.Loc) + sizeOfLink(&o.Via) + sizeOfCategories(o.Categories)
	for i := range o.Representations {
		r := &o.Representations[i]
		n += pieceSize + len(r.Href) + len(r.Type) + len(r.Hreflang) + len(r.Profile) + len(r.Hash) + len(r.Encoding)
	}
	for i := range o.Links {
		n += sizeOfLink(&o.Links[i])
	}
	if d := o.Details; d != nil {
		n += len(d.Language) + len(d.EntryLanguage) + len(d.Rights.Value) + len(d.Rights.Language) + len(d.ChangeFreq) + sizeOfPersons(d.Authors) + sizeOfPersons(d.Contributors) +
			len(d.DeletedBy.Name) + len(d.DeletedBy.URI) + len(d.DeletedBy.Email) + len(d.Comment.Value) + len(d.Comment.Language)
	}
	return n
}

const pieceSize = 20

func sizeOfLink(l *Link) int {
	return pieceSize + len(l.Rel) + len(l.Href) + len(l.Type) + len(l.Hash) + len(l.Record)
}

func sizeOfPersons(persons []Person) (n int) {
	for i := range persons {
		n += pieceSize + len(persons[i].Name) + len(persons[i].URI) + len(persons[i].Email)
	}
	return n
}

func sizeOfCategories(categories []Category) (n int) {
	for i := range categories {
		n += pieceSize + len(categories[i].Term) + len(categories[i].Scheme) + len(categories[i].Label)
	}
	return n
}

func (l *Link) bound() error {
	return cmp.Or(long("relation", l.Rel, MaxType), long("URL of a link", l.Href, MaxHref), long("media type of a link", l.Type, MaxType),
		long("hash of a link", l.Hash, MaxHash), long("identifier behind a link", l.Record, MaxIdentifier))
}

func long(what, s string, most int) error {
	if len(s) <= most {
		return nil
	}
	return fmt.Errorf("%w: its %s has %d bytes; want at most %d", ErrTooMuch, what, len(s), most)
}
