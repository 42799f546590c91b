package atompmh

import (
	"encoding/xml"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// maxLinks is how many links an entry may have. Of the feed and of an atom:source as many
// are kept.
const maxLinks = 10_000

// maxCategories is how many categories an entry may have. Of the feed and of an
// atom:source one more is kept.
const maxCategories = 20_000

// maxPersons is how many authors, and how many contributors, an entry may have. Of the feed and of
// an atom:source one more is kept.
const maxPersons = 20_000

// draftEntry is an entry while it is being read, with what it breaks.
type draftEntry struct {
	Entry
	ids, titles, updates int
	alternates           int    // those without a usable href included
	usable               int    // those with one
	author               bool   // it, or its atom:source, has one
	once                 uint   // elements that a strict Reader has met
	badContent           string // why the content cannot be taken
	rule, reason         string // why it is bad; the first reason stands
}

func (d *draftEntry) bad(rule, format string, args ...any) {
	if d.rule == "" {
		d.rule, d.reason = rule, fmt.Sprintf(format, args...)
	}
}

// entry reads the entry whose start tag is the current token.
func (r *Reader) entry() (*Entry, error) {
	s := r.scan
	d := &draftEntry{}
	d.Line, d.Column = s.Line, s.Column
	d.CarriedID, _ = s.Attr(CarriedNamespace, "id")
	d.CarriedModified, _ = s.Attr(CarriedNamespace, "modified")
	d.CarriedChangeFreq, _ = s.Attr(CarriedNamespace, "changefreq")
	d.EntryLanguage = s.Lang()
	report := func(rule, found, expected string) {
		r.problem(Problem{Rule: rule, Line: d.Line, Column: d.Column, Record: d.ID, Found: found, Expected: expected})
	}
	r.links = r.links[:0]
	if misplaced(s.Space, s.Local) {
		d.bad(ruleEntry, "<%s> in namespace %q; want an entry in %q, or a deleted-entry in %q", s.Local, s.Space, Namespace, TombstonesNamespace)
	}
	if s.Space == TombstonesNamespace {
		if err := r.tombstone(d, report); err != nil {
			return nil, err
		}
	} else {
		if err := s.Children(func() error { return r.child(d, report) }); err != nil {
			return nil, err
		}
		r.classify(d, report)
	}
	d.Links = slices.Clone(r.links)
	if d.Tombstone { // it has no title
		d.EntryLanguage = ""
	} else if d.EntryLanguage == d.Language || d.Language == "" {
		d.Language, d.EntryLanguage = d.EntryLanguage, ""
	}
	r.to = s.Offset()
	if d.rule == "" {
		r.note(d, report)
		return &d.Entry, nil
	}
	id := d.Record()
	if d.ids != 1 {
		id = ""
	}
	return nil, &EntryError{Rule: d.rule, URL: r.o.URL, Line: d.Line, Column: d.Column, ID: id, Updated: d.Updated, Reason: d.reason, Input: r.Input()}
}

// tombstone reads an at:deleted-entry (RFC 6721 3).
func (r *Reader) tombstone(d *draftEntry, report reporter) error {
	s := r.scan
	d.Kind, d.Tombstone = Deletion, true
	if ref, ok := s.Attr("", "ref"); ok {
		d.ID, d.ids = ref, 1
	}
	when, ok := s.Attr("", "when")
	switch {
	case strictxml.Trim(d.ID) == "":
		d.ids = 0
		d.bad(ruleTombstone, "at:deleted-entry without ref")
	case !ok:
		d.bad(ruleTombstone, "at:deleted-entry without when")
	default:
		r.checkID(d.ID, report)
		d.stamp(r, when, report)
	}
	return s.Children(func() error {
		switch {
		case s.Space == TombstonesNamespace:
			return r.deletion(d, report)
		case s.Space == Namespace && s.Local == "link":
			return r.entryLink(d, report)
		case s.Space == Namespace && s.Local == "source":
			return r.source(d, report)
		}
		return s.Skip()
	})
}

// deletion reads a child that describes a deletion (RFC 6721 4).
func (r *Reader) deletion(d *draftEntry, report reporter) error {
	s := r.scan
	switch s.Local {
	case "by":
		var by []Person
		if err := r.person(&by); err != nil {
			return err
		}
		switch {
		case len(by) == 0:
			report(ruleTombstone, "an at:by without a name", "a person's name; it is left out")
		case d.DeletedBy.Name != "":
			report(ruleTombstone, "a second at:by", "at most one; the first is used")
		default:
			d.DeletedBy = by[0]
		}
		return nil
	case "comment":
		language := s.Lang()
		text, err := r.textConstruct()
		switch {
		case err != nil || text == "":
		case d.Comment.Value != "":
			report(ruleTombstone, "a second at:comment", "at most one; the first is used")
		default:
			d.Comment = Text{text, language}
		}
		return err
	}
	return s.Skip()
}

// entryLink reads a link of the entry.
func (r *Reader) entryLink(d *draftEntry, report reporter) error {
	rel, _ := r.scan.Attr("", "rel")
	alternate := relation(rel) == relAlternate
	if alternate {
		d.alternates++
	}
	l, ok, err := r.link(report)
	switch {
	case err != nil || !ok:
		return err
	case len(r.links) == maxLinks:
		d.bad(ruleEntry, "more than %d links", maxLinks)
	default:
		r.links = append(r.links, l)
	}
	if alternate {
		d.usable++
		if !d.Tombstone && strictxml.Trim(l.Type) == "" {
			report(ruleType, "an alternate link without type: "+clip(l.Href), "the media type of the representation")
		}
	}
	return nil
}

// extraDate reads a date that does not order entries. A bad one is reported and left
// out.
func (r *Reader) extraDate(to *time.Time, report reporter) error {
	name := r.scan.Local
	raw, _, err := r.characters()
	if err != nil || !to.IsZero() {
		return err
	}
	t, bad := r.date(raw, report)
	if bad != nil {
		report(ruleDate, name+" "+strconv.Quote(clip(raw))+": "+bad.Error(), "a date; it is left out")
		return nil
	}
	*to = t
	return nil
}

func (r *Reader) child(d *draftEntry, report reporter) error {
	s := r.scan
	switch {
	case s.Space == TombstonesNamespace:
		return r.deletion(d, report)
	case s.Space == PublishingNamespace && s.Local == "edited":
		return r.extraDate(&d.Edited, report)
	case s.Space != Namespace:
		return s.Skip()
	}
	if r.o.Strict {
		r.strictElement(&d.once, d.ID, ruleEntry)
	}
	switch s.Local {
	case "published":
		return r.extraDate(&d.Published, report)
	case "id":
		id, markup, err := r.characters()
		d.ids++
		switch {
		case d.ids == 1 && markup:
			d.ids++ // it cannot be used as an id
			d.bad(ruleID, "atom:id contains elements; want an IRI")
		case d.ids > 1:
			d.bad(ruleEntry, "more than one atom:id")
		}
		d.ID = id
		return err
	case "updated":
		raw, _, err := r.characters()
		if d.updates++; d.updates > 1 {
			d.bad(ruleEntry, "more than one atom:updated")
			return err
		}
		if err == nil {
			d.stamp(r, raw, report)
		}
		return err
	case "title":
		language := s.Lang()
		title, err := r.textConstruct()
		if d.titles++; d.titles == 1 {
			d.Title, d.Language = title, language
		}
		return err
	case "link":
		return r.entryLink(d, report)
	case "content":
		return r.content(d, report)
	case "source":
		return r.source(d, report)
	}
	d.author = d.author || s.Local == "author"
	if ok, err := r.metadata(&d.Metadata); ok {
		if len(d.Categories) > maxCategories {
			d.bad(ruleEntry, "more than %d categories", maxCategories)
		}
		if max(len(d.Authors), len(d.Contributors)) > maxPersons {
			d.bad(ruleEntry, "more than %d authors or contributors", maxPersons)
		}
		return err
	}
	return r.pass()
}

// stamp takes the entry's time.
func (d *draftEntry) stamp(r *Reader, raw string, report reporter) {
	t, err := r.date(raw, report)
	d.Updated, d.UpdatedRaw = t, raw
	if err == nil {
		return
	}
	rule := ruleDate
	if strings.HasPrefix(err.Error(), "want a year") {
		rule = ruleRange
	}
	d.bad(rule, "stamp %q: %v", clip(raw), err)
}

// content reads an atom:content. It keeps the text and elements inside only with
// ReadOptions.Content; otherwise it only notes whether there are any, in any of
// several.
func (r *Reader) content(d *draftEntry, report reporter) error {
	s := r.scan
	c := Content{Empty: true}
	if d.Content != nil {
		c = *d.Content
		report(ruleEntry, "a second atom:content", "at most one")
	} else {
		c.Type, _ = s.Attr("", "type")
	}
	if src, ok := s.Attr("", "src"); ok {
		c.HasSrc = true
		resolved, err := s.Resolve(s.Base(), src)
		if err != nil || r.isEmpty(src, resolved) {
			resolved = ""
			report(ruleLink, "src "+strconv.Quote(clip(src)), "an IRI reference")
		}
		c.Src = resolved
	}
	if r.o.Content {
		return r.contentTaken(d, c)
	}
	for depth := s.Depth(); s.Depth() >= depth; {
		if err := s.Next(); err != nil {
			return err
		}
		switch s.Kind {
		case strictxml.StartTag:
			c.Empty = false
		case strictxml.Text:
			c.Empty = c.Empty && strictxml.Trim(string(s.Data)) == ""
		}
	}
	d.Content = &c
	return nil
}

// contentTaken reads an atom:content and keeps what is inside. Of several the first
// counts; the entry is a deletion only if all are empty.
func (r *Reader) contentTaken(d *draftEntry, c Content) error {
	if d.Content != nil {
		text, markup, err := r.scan.Characters()
		d.Content.Empty = d.Content.Empty && !c.HasSrc && !markup && strictxml.Trim(string(text)) == ""
		return err
	}
	d.Content = &c
	c.Language = r.scan.Lang()
	if c.HasSrc {
		c.MediaType = strictxml.Trim(c.Type)
		return r.scan.Skip()
	}
	held, err := r.scan.Content(Namespace)
	if err != nil {
		return err
	}
	// White space is a content where it was written in Base64.
	c.Empty = held.Bad == "" && (len(held.Data) == 0 || strings.HasPrefix(held.Type, "text/") && strictxml.Trim(string(held.Data)) == "")
	if d.badContent = held.Bad; held.Bad == "" && !c.Empty {
		c.Data, c.MediaType = held.Data, held.Type
	}
	return nil
}

// source reads an atom:source (RFC 4287 4.2.11).
func (r *Reader) source(d *draftEntry, report reporter) error {
	s := r.scan
	src := &Source{}
	d.Source = src
	return s.Children(func() (err error) {
		switch {
		case s.Space != Namespace:
			err = s.Skip()
		case s.Local == "id":
			if src.ID, _, err = r.characters(); err == nil && r.o.Strict && !strictxml.IsIRI(src.ID) {
				report(ruleSource, "id "+strconv.Quote(clip(src.ID))+" of atom:source", "an absolute IRI")
			}
		case s.Local == "title":
			src.Language = s.Lang()
			src.Title, err = r.textConstruct()
		case s.Local == "updated":
			if src.UpdatedRaw, _, err = r.characters(); err == nil {
				var bad error
				if src.Updated, bad = r.date(src.UpdatedRaw, report); bad != nil {
					report(ruleDate, "atom:source updated "+strconv.Quote(clip(src.UpdatedRaw)), bad.Error())
				}
			}
		case s.Local == "link":
			var l Link
			var ok bool
			if l, ok, err = r.link(report); ok && len(src.Links) < maxLinks {
				src.Links = append(src.Links, l)
			}
		default:
			d.author = d.author || s.Local == "author"
			var ok bool
			if ok, err = r.metadata(&src.Metadata); !ok {
				err = s.Skip()
			}
		}
		return err
	})
}

// link reads an atom:link; ok is false when it has no usable href.
func (r *Reader) link(report reporter) (l Link, ok bool, err error) {
	s := r.scan
	l.Length = NoLength
	var rel, href, base = "", "", s.Base()
	for i := range s.Attrs {
		a := &s.Attrs[i]
		if a.Name.Space != "" {
			if a.Name.Space != strictxml.Namespace {
				l.Other = append(l.Other, *a)
			}
			continue
		}
		switch a.Name.Local {
		case "rel":
			rel = a.Value
		case "href":
			href, ok = a.Value, true
		case "type":
			l.Type = a.Value
		case "hreflang":
			l.Hreflang = a.Value
		case "title":
			l.Title = a.Value
		case "length":
			if n, err := strconv.ParseInt(strictxml.Trim(a.Value), 10, 64); err == nil && n >= 0 {
				l.Length = n
			}
		default:
			l.Other = append(l.Other, xml.Attr{Name: a.Name, Value: a.Value})
		}
	}
	l.Rel = relation(rel)
	var bad error
	if ok {
		l.Href, bad = s.Resolve(base, href)
	}
	if !ok || bad != nil || l.Rel != relSelf && r.isEmpty(href, l.Href) {
		ok = false
		report(ruleLink, "link "+l.Rel+" with href "+strconv.Quote(clip(href)), "an IRI reference; the link is ignored")
	}
	return l, ok, s.Skip()
}

// isEmpty reports whether a reference is empty, and so leads to the document itself (RFC 3986 4.4):
// programs write it where they have none.
func (r *Reader) isEmpty(ref, resolved string) bool {
	if strictxml.Trim(ref) != "" {
		return false
	}
	u, err := url.Parse(r.o.URL)
	return err == nil && resolved == u.String()
}

// classify decides by S10 what the entry is, once all of it has been read.
func (r *Reader) classify(d *draftEntry, report reporter) {
	switch {
	case d.ids == 0 || d.ids == 1 && strictxml.Trim(d.ID) == "":
		d.ids = 0
		d.bad(ruleEntry, "no atom:id")
	case d.updates == 0:
		d.bad(ruleEntry, "no atom:updated")
	}
	if d.rule == "" {
		r.checkID(d.ID, report)
	}
	c := d.Content
	if d.badContent != "" && d.usable > 0 {
		report(ruleS10, "atom:content that cannot be taken: "+d.badContent, "what its type says; the alternate links are taken in its place")
		c = nil
	}
	switch {
	case r.o.Content && c.Taken():
		d.Kind = Active
	case d.badContent != "" && d.usable == 0:
		d.bad(ruleS10, "atom:content cannot be taken: %s", d.badContent)
	case d.usable > 0:
		d.Kind = Active
		if c != nil {
			report(ruleS10, "atom:content beside an alternate link", "no atom:content; it is read as an active or historical entry")
		}
	case d.alternates > 0:
		d.bad(ruleLink, "no alternate link has a usable href")
	case c == nil:
		d.bad(ruleS10, "neither an alternate link nor atom:content; want an alternate link, or an empty atom:content for a deletion")
	case c.HasSrc:
		d.bad(ruleS10, "atom:content with src and no alternate link; want an alternate link, or an empty atom:content without src")
	case !c.Empty:
		d.bad(ruleS10, "atom:content that is not empty and no alternate link; want an alternate link, or an empty atom:content")
	default:
		d.Kind = Deletion
	}
}

// note reports the rules that a good entry breaks, and keeps what can be checked only
// at the end of the document.
func (r *Reader) note(d *draftEntry, report reporter) {
	if !d.Tombstone {
		if d.titles != 1 {
			report(ruleEntry, fmt.Sprintf("%d atom:title", d.titles), "exactly one")
		}
		if dup := duplicate(d.Links); dup != nil {
			report(ruleAlternates, fmt.Sprintf("two alternate links of type %q, hreflang %q", clip(dup.Type), clip(dup.Hreflang)), "one of each; all are read")
		}
		if !d.author && !r.seen.author && r.seen.authorless == nil {
			r.seen.authorless = &Problem{Rule: ruleFeed, Line: d.Line, Column: d.Column, Record: d.ID,
				Found: "an entry without author in a feed without one", Expected: "an author on the feed or on every entry"}
		}
	}
	if r.o.Strict {
		r.strictStamp(&d.Entry, report)
	}
	late := func() Problem {
		return Problem{Rule: ruleS1, Line: d.Line, Column: d.Column, Record: d.ID, Found: "entry updated " + clip(d.UpdatedRaw), Expected: r.notLater()}
	}
	switch {
	case r.seen.feedUpdates > 0:
		if !r.feed.Updated.IsZero() && d.Updated.After(r.feed.Updated) {
			r.problem(late())
		}
	case d.Updated.After(r.seen.latestAt):
		p := late()
		r.seen.latest, r.seen.latestAt = &p, d.Updated
	}
	if d.Kind == Deletion && r.seen.deletion == nil {
		r.seen.deletion = &Problem{Rule: ruleS7, Line: d.Line, Column: d.Column, Record: d.ID,
			Found: "a deletion entry in a document with fh:complete", Expected: "none: a record without an active entry is deleted"}
	}
}

// duplicate finds an alternate link with the type and language of another. Past
// a few dozen links it is not worth the time.
func duplicate(links []Link) *Link {
	links = links[:min(len(links), 64)]
	for i := range links {
		if relation(links[i].Rel) != relAlternate {
			continue
		}
		for j := range i {
			a, b := &links[i], &links[j]
			if relation(b.Rel) == relAlternate && strings.EqualFold(a.Hreflang, b.Hreflang) && strings.EqualFold(a.Type, b.Type) {
				return a
			}
		}
	}
	return nil
}

func (r *Reader) checkID(id string, report reporter) {
	switch {
	case id != strictxml.Trim(id):
		report(ruleID, "white space around "+strconv.Quote(clip(id)), "none; it is part of the identifier")
	case !strictxml.IsIRI(id):
		report(ruleID, strconv.Quote(clip(id)), "an absolute IRI")
	}
}

// date reads a Date construct (RFC 4287 3.3). White space around it is common
// in pretty-printed documents: it is reported and cut off.
func (r *Reader) date(raw string, report reporter) (time.Time, error) {
	cut := strictxml.Trim(raw)
	t, err := ParseTime(cut)
	if err == nil && len(cut) != len(raw) {
		report(ruleDate, "white space around "+clip(cut), "none")
	}
	return t, err
}

// characters reads the text of an element up to its end. markup: there
// were elements in it, whose text is part of it.
func (r *Reader) characters() (text string, markup bool, err error) {
	b, markup, err := r.scan.Characters()
	return string(b), markup, err
}

// textConstruct reads a Text construct (RFC 4287 3.1) as plain text.
func (r *Reader) textConstruct() (string, error) {
	typ, _ := r.scan.Attr("", "type")
	text, _, err := r.characters()
	if err != nil {
		return "", err
	}
	return plainText(typ, text), nil
}
