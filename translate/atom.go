// Package translate turns entries of the protocols into observations, and events into
// entries. It is pure: it makes no request, stores nothing and uses no clock.
//
// Functions return an event.Observation for what a Source reports about a record:
// [FromEntry] for an Atom-PMH entry, [FromResource] for an entry of a ResourceSync
// list, [FromOAI] for a record of an OAI-PMH repository, [FromRecord] and
// [FromDisposition] for SIP. A [Selection] states which records and representations a
// set harvests, and under which identifiers.
//
// An event of the log becomes entries of a published document:
// [ListEncoder.ChangeEntries] makes those of a Change List, [ListEncoder.ResourceEntry]
// that of a Resource List, [FeedEncoder.Entry] that of an Atom-PMH feed, and
// [OAIEncoder.Encode] the record of an OAI-PMH repository. Data without a place in
// ResourceSync and Atom is in attributes of CarriedNamespace, so that another bridge
// reads the same observation.
package translate

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// FromEntry translates an Atom-PMH entry into an observation. An entry that has
// alternates, but none that the set wants, is a deletion for that set (A14). It reads
// the attributes of CarriedNamespace that another bridge has written (P1). Of links
// with the same href the first counts. The errors are ErrLocal, ErrUnreachable,
// ErrUnselected, ErrOwn and event.ErrTooMuch.
func FromEntry(e *atompmh.Entry, sel *Selection) (event.Observation, error) {
	o := event.Observation{Title: e.Title, Deleted: e.Kind == atompmh.Deletion}
	if e.Untitled() { // else a record without a title would get its id as one
		o.Title = ""
	}
	o.Record, o.SourceIdentifier = sel.Identifier(e.Record())
	o.Order, _ = event.StampOf(e.Updated)
	o.Modified = o.Order
	o.Via = viaOf(e, &o)
	if m, ok := stampIn(e.CarriedModified); ok {
		o.Modified = m
	}
	if o.Via.Href != "" && (o.Via.Modified.Known() || o.Modified != o.Order) {
		o.CopyModified = o.Order
	}
	o.Details = detailsOf(e)
	if o.Deleted {
		for i := range e.Links {
			if l := linkOfEntry(&e.Links[i]); l.PublishedOfDeletion() {
				o.Links = append(o.Links, l)
			}
		}
		return o, sel.accept(&o, "")
	}
	o.Categories = categoriesOf(e.Categories)
	t := taking{sel: sel, o: &o}
	o.Representations = make([]event.Representation, 0, 1)
	content := sel.Inline && e.Content.Taken()
	if content {
		t.takeContent(e)
	}
	for i := range e.Links {
		switch l := &e.Links[i]; l.Rel {
		case "alternate", atompmh.RelFurtherAlternate:
			if !content {
				t.take(representationOf(l))
			}
		case event.RelDescribedBy, event.RelDescribes:
			id, ok := l.Attr(atompmh.CarriedNamespace, "id")
			o.Links = append(o.Links, sel.related(linkOfEntry(l), id, ok))
		case event.RelProfile:
			if profile(l.Href) != "" && event.Public(l.Href) {
				o.Links = append(o.Links, linkOfEntry(l))
			}
		case event.RelRelated, event.RelLicense, event.RelCanonical, event.RelCollection, event.RelDuplicate:
			if other := linkOfEntry(l); other.Published(event.Reference) {
				o.Links = append(o.Links, other)
			}
		}
	}
	if err := t.finish(); err != nil {
		return o, err
	}
	href := "" // of a record whose representations the set does not want
	if !o.Deleted {
		href = o.Representations[o.Preferred].Href
	}
	return o, sel.accept(&o, href)
}

// takeContent takes the content of an entry as the only representation of its record.
// The original is then what an alternate link names, else the identifier, if that is an
// address.
func (t *taking) takeContent(e *atompmh.Entry) {
	c, o := e.Content, t.o
	r := event.Representation{Href: c.Src, Type: c.MediaType, Hreflang: c.Language, Length: event.NoLength}
	if o.Via.Href == "" {
		for _, l := range e.Alternates() {
			if public, ok := t.sel.Public(l.Href); ok && event.OnTheWeb(public) {
				o.Via = event.Link{Href: public, Type: l.Type, Length: event.NoLength, Modified: o.Modified}
				break
			}
		}
	}
	if !c.HasSrc {
		r.Href, r.Length, r.Hash = event.InlineHref(e.Record()), int64(len(c.Data)), event.HashOf(sha256.Sum256(c.Data))
		if o.Via.Href == "" && event.OnTheWeb(e.ID) && atompmh.CanBeID(e.ID) {
			o.Via = event.Link{Href: e.ID, Length: event.NoLength, Modified: o.Modified}
		}
		if Wanted(t.sel.Formats, r.Type) {
			t.wanted++
			o.Representations, o.Inline = append(o.Representations, r), c.Data
		}
		return
	}
	t.take(r)
}

// representationOf returns the representation that an alternate link describes.
func representationOf(l *atompmh.Link) event.Representation {
	r := event.Representation{Href: l.Href, Type: l.Type, Hreflang: l.Hreflang, Length: l.Length, Hash: hashOf(l), Pri: priOf(l)}
	narrowed, _ := l.Attr(atompmh.CarriedNamespace, "profile")
	r.Profile = profile(narrowed)
	if coding, ok := l.Attr(atompmh.CarriedNamespace, "encoding"); ok {
		r.Encoding, r.Length = codingOf(coding), carriedLength(l)
	}
	return r
}

// linkOfEntry returns a link of an entry that is neither alternate nor via. Hash and
// modified are read only of a link that is about the Source's copy alone
// (event.Link.OfCopy).
func linkOfEntry(l *atompmh.Link) event.Link {
	out := event.Link{Rel: l.Rel, Href: l.Href, Type: l.Type, Length: l.Length, Pri: priOf(l)}
	if out.OfCopy() {
		out.Hash = hashOf(l)
		out.Modified, _ = modified(l, atompmh.CarriedNamespace)
	}
	return out
}

// priOf returns the priority that another bridge carries, 0 if there is none.
func priOf(l *atompmh.Link) int {
	stated, ok := l.Attr(atompmh.CarriedNamespace, "pri")
	if !ok {
		return 0
	}
	if n, err := strconv.Atoi(stated); err == nil && n >= 1 && n <= 999_999 {
		return n
	}
	return 0
}

// carriedLength returns the length that another bridge carries.
func carriedLength(l *atompmh.Link) int64 {
	stated, ok := l.Attr(atompmh.CarriedNamespace, "length")
	if !ok {
		return event.NoLength
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(stated), 10, 64); err == nil && n >= 0 {
		return n
	}
	return event.NoLength
}

// hashOf reads the hash that a link states: what another bridge carries, the
// attribute of RFC 4287's extensions that ResourceSync took over (Atom Link
// Extensions), or le:md5.
func hashOf(l *atompmh.Link) string {
	for _, space := range []string{atompmh.CarriedNamespace, "", atompmh.LinkExtensionsNamespace} {
		if h, ok := l.Attr(space, "hash"); ok {
			return resourcesync.Hashes(h)
		}
	}
	if h, ok := l.Attr(atompmh.LinkExtensionsNamespace, "md5"); ok {
		return resourcesync.Hashes("md5:" + strings.TrimSpace(h))
	}
	return ""
}

// viaOf returns the original that the entry names. The link of another bridge states
// when the original was modified; that becomes the record's Modified.
func viaOf(e *atompmh.Entry, o *event.Observation) event.Link {
	l, ok := e.Via()
	if !ok || !event.Public(l.Href) {
		return event.Link{}
	}
	v := event.Link{Href: l.Href, Type: l.Type, Length: l.Length, Hash: hashOf(&l)}
	if n := carriedLength(&l); n >= 0 {
		v.Length = n
	}
	if m, ok := modified(&l, atompmh.CarriedNamespace); ok {
		o.Modified, v.Modified = m, m
	} else if m, ok := modified(&l, ""); ok {
		v.Modified = m
	}
	return v
}

func modified(l *atompmh.Link, space string) (event.Stamp, bool) {
	m, _ := l.Attr(space, "modified")
	return stampIn(m)
}

func stampIn(s string) (event.Stamp, bool) {
	if s == "" {
		return event.Stamp{}, false
	}
	t, err := atompmh.ParseTime(s)
	if err != nil {
		return event.Stamp{}, false
	}
	return event.StampOf(t)
}

// FeedEncoder translates the events of one set into entries of Atom-PMH documents. It
// is pure, but reuses its memory: what it returns is valid until its next call, and
// only one goroutine may use it at a time.
type FeedEncoder struct {
	urls
	space [16]byte // of the identifiers that are no absolute IRI
	entry atompmh.Entry
	links []atompmh.Link
	attrs []xml.Attr
	types map[string]bool // and languages
}

// NewFeedEncoder returns a FeedEncoder for a set whose documents stand below base, an
// absolute URL without a slash at its end. Of the set its name, its content mode
// and the ids of its feed count.
func NewFeedEncoder(base string, set *event.Set) *FeedEncoder {
	f := &FeedEncoder{urls: urls{records: recordsURL(base, set.Name), content: set.Content}, types: map[string]bool{}}
	// An id that is no urn:uuid counts as the one of sixteen zero bytes.
	space, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(set.IdentifierFeed(), "urn:uuid:"), "-", ""))
	if err == nil && len(space) == len(f.space) {
		copy(f.space[:], space)
	}
	return f
}

// Entry returns the entry of an event, nil for a rejected one, which has none. Its time
// is when our log recorded the change, because rules that compare the times of
// documents must hold whatever the Sources' clocks show (P1); the link to the original
// has the time that the Source has stated.
func (f *FeedEncoder) Entry(e *event.Event) *atompmh.Entry {
	if e.Kind == event.Rejected {
		return nil
	}
	f.links, f.attrs = f.links[:0], f.attrs[:0]
	f.entry = atompmh.Entry{Kind: atompmh.Deletion, ID: f.id(e.Record), Updated: e.Observed.Time(), Title: e.Title, Metadata: metadata(e), Source: source(e)}
	entry := &f.entry
	if m := carriedModified(e); m.Known() {
		entry.CarriedModified = m.String()
	}
	if entry.ID != e.Record {
		entry.CarriedID = e.Record
	}
	if d := e.Details; d != nil {
		entry.EntryLanguage, entry.Published, entry.Edited = language(d.EntryLanguage), d.Published.Time(), d.Edited.Time()
		if e.Live() {
			entry.CarriedChangeFreq = changeFreq(d.ChangeFreq)
		} else if by := persons([]event.Person{d.DeletedBy}); by != nil {
			entry.DeletedBy = by[0]
		}
		if !e.Live() {
			entry.Comment = atompmh.Text{Value: d.Comment.Value, Language: language(d.Comment.Language)}
		}
	}
	if strings.TrimSpace(entry.Title) == "" {
		entry.Title, entry.Language = entry.ID, ""
	}
	if e.Live() {
		entry.Kind = atompmh.Active
		f.alternates(e)
	}
	if v, ok := original(e); ok {
		c := carried{hash: v.Hash, modified: v.Modified.String()}
		if v.Length >= 0 {
			c.length = strconv.FormatInt(v.Length, 10)
		}
		f.append(atompmh.Link{Rel: "via", Href: v.Href, Type: linkType(v.Type), Length: atompmh.NoLength}, c)
	}
	for i := range e.Links {
		l := &e.Links[i]
		href := f.related(l, e.Live())
		if href == "" {
			continue
		}
		to, c := atompmh.Link{Rel: l.Rel, Href: href, Type: linkType(l.Type), Length: atompmh.NoLength}, carried{id: otherThan(href, l.Record), pri: l.Pri}
		if l.OfCopy() {
			to.Length, c.hash, c.modified = l.Length, l.Hash, l.Modified.String()
		}
		f.append(to, c)
	}
	entry.Links = f.links
	return entry
}

// id returns the atom:id of a record, which is permanent: its identifier if that can be
// one, else a urn:uuid made of it.
func (f *FeedEncoder) id(record string) string {
	if atompmh.CanBeID(record) {
		return record
	}
	return nameUUID(f.space, record)
}

// alternates appends the preferred representation and then the others. Of one
// media type and language only the first may be an alternate link (RFC 4287
// 4.1.2), so the others have a relation of our own (P6).
func (f *FeedEncoder) alternates(e *event.Event) {
	loc := f.loc(e)
	clear(f.types)
	if r, ok := e.Pref(); ok {
		f.alternate(loc, &r)
	}
	for i := range e.Representations {
		if i != e.Preferred {
			f.alternate(f.representation(loc, &e.Representations[i]), &e.Representations[i])
		}
	}
	if len(f.links) == 0 {
		// No representation can be linked to. Our own URL does not answer in mode reference,
		// so a consumer finds none there either (S9).
		f.alternate(f.record(e.Record), &event.Representation{Length: event.NoLength})
	}
}

func (f *FeedEncoder) alternate(href string, r *event.Representation) {
	if !event.Public(href) {
		return
	}
	// The draft asks for a type of every alternate.
	l, c := atompmh.Link{Rel: "alternate", Href: href, Type: ServedType(r.Type), Hreflang: language(r.Hreflang), Length: r.Length}, carried{hash: r.Hash, profile: r.Profile, pri: r.Pri}
	if r.Encoding != "" { // a link of Atom cannot describe coded bytes
		l.Length, c.encoding = atompmh.NoLength, r.Encoding
		if r.Length >= 0 {
			c.length = strconv.FormatInt(r.Length, 10)
		}
	}
	if kind := strings.ToLower(l.Type + "\x00" + l.Hreflang); f.types[kind] {
		l.Rel = atompmh.RelFurtherAlternate
	} else {
		f.types[kind] = true
	}
	f.append(l, c)
}

// carried is what a link has in atompmh.CarriedNamespace.
type carried struct {
	id, modified, hash, length, encoding, profile string
	pri                                           int // 0 for none
}

func (f *FeedEncoder) append(l atompmh.Link, c carried) {
	begin := len(f.attrs)
	pri := ""
	if c.pri > 0 {
		pri = strconv.Itoa(c.pri)
	}
	for _, a := range [...]struct{ name, value string }{{"id", c.id}, {"modified", c.modified}, {"hash", c.hash}, {"length", c.length},
		{"encoding", c.encoding}, {"profile", c.profile}, {"pri", pri}} {
		if a.value != "" {
			f.attrs = append(f.attrs, xml.Attr{Name: xml.Name{Space: atompmh.CarriedNamespace, Local: a.name}, Value: a.value})
		}
	}
	l.Other = f.attrs[begin:len(f.attrs):len(f.attrs)]
	f.links = append(f.links, l)
}

// nameUUID returns the urn:uuid, version 5, of a name in a namespace (RFC 9562
// 5.5).
func nameUUID(space [16]byte, name string) string {
	h := sha1.New()
	h.Write(space[:])
	h.Write([]byte(name))
	return hashUUID(h.Sum(nil), 5)
}

// hashUUID returns the urn:uuid of a version whose other bits are the first of a hash.
func hashUUID(hash []byte, version byte) string {
	u := hash[:16]
	u[6] = u[6]&0x0f | version<<4
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Bounds for the metadata of a feed, since it is repeated in every entry that came from
// that feed. Longer texts are cut. A longer id or address is left out, since a part of
// it would be wrong; so are persons, categories and links beyond maxSourceItems.
const (
	maxSourceID    = 1000 // bytes
	maxSourceTitle = 200
	maxSourceText  = 1000
	maxSourceItems = 10
)

// cut shortens a text to so many bytes at most, without cutting a character.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// short returns an address that is not too long, else "".
func short(s string) string {
	if len(s) > maxSourceID {
		return ""
	}
	return s
}

// FeedOf returns the metadata of a feed besides its id, its title and when it was
// updated; nil when there is none.
func FeedOf(f *atompmh.Feed) *event.Feed {
	feed := feedOf(&f.Metadata, f.Links)
	if feed.Title.Language == "" && feed.Authors == nil && feed.Contributors == nil && feed.Rights.Value == "" && feed.Categories == nil && feed.Links == nil {
		return nil
	}
	return feed
}

func feedOf(m *atompmh.Metadata, links []atompmh.Link) *event.Feed {
	f := &event.Feed{Title: event.Text{Language: m.Language}, Rights: event.Text(m.Rights), Authors: personsOf(m.Authors[:min(len(m.Authors), maxSourceItems)]),
		Contributors: personsOf(m.Contributors[:min(len(m.Contributors), maxSourceItems)]), Categories: categoriesOf(m.Categories[:min(len(m.Categories), maxSourceItems)])}
	for i := range links {
		f.Links = append(f.Links, event.Link{Rel: links[i].Rel, Href: links[i].Href, Type: links[i].Type})
	}
	boundFeed(f)
	return f
}

// boundFeed bounds the metadata of a feed, and leaves out the links that do not
// describe it. It takes over the memory of f.
func boundFeed(f *event.Feed) {
	f.ID, f.Title = short(f.ID), event.Text{Value: cut(f.Title.Value, maxSourceTitle), Language: short(f.Title.Language)}
	f.Rights = event.Text{Value: cut(f.Rights.Value, maxSourceText), Language: short(f.Rights.Language)}
	for _, persons := range [...]*[]event.Person{&f.Authors, &f.Contributors} {
		*persons = (*persons)[:min(len(*persons), maxSourceItems)]
		for i, p := range *persons {
			(*persons)[i] = event.Person{Name: cut(p.Name, maxSourceTitle), URI: short(p.URI), Email: short(p.Email)}
		}
	}
	var categories []event.Category
	for _, c := range f.Categories[:min(len(f.Categories), maxSourceItems)] {
		if c.Term = short(c.Term); c.Term != "" {
			categories = append(categories, event.Category{Term: c.Term, Scheme: short(c.Scheme), Label: cut(c.Label, maxSourceTitle)})
		}
	}
	f.Categories = categories
	var links []event.Link
	for _, l := range f.Links {
		if !event.Public(l.Href) || len(l.Href) > maxSourceID || len(links) == maxSourceItems {
			continue
		}
		switch l.Rel {
		case "self", "alternate", "related", "via", "license", "describedby":
			// Other links lead from page to page, or to services.
			links = append(links, event.Link{Rel: l.Rel, Href: l.Href, Type: short(l.Type), Length: event.NoLength})
		}
	}
	f.Links = links
}

func personsOf(persons []atompmh.Person) (out []event.Person) {
	for _, p := range persons {
		out = append(out, event.Person(p))
	}
	return out
}

func categoriesOf(categories []atompmh.Category) (out []event.Category) {
	for _, c := range categories {
		out = append(out, event.Category(c))
	}
	return distinct(out)
}

// detailsOf returns the metadata of an entry that decides nothing, such as its authors
// and rights; nil when there is none.
func detailsOf(e *atompmh.Entry) *event.Details {
	d := event.Details{Language: e.Language, EntryLanguage: e.EntryLanguage, Authors: personsOf(e.Authors), Contributors: personsOf(e.Contributors), Rights: event.Text(e.Rights),
		ChangeFreq: changeFreq(e.CarriedChangeFreq)}
	d.Published, _ = event.StampOf(e.Published)
	d.Edited, _ = event.StampOf(e.Edited)
	if e.Kind == atompmh.Deletion {
		d.DeletedBy, d.Comment = event.Person(e.DeletedBy), event.Text(e.Comment)
	}
	if s := e.Source; s != nil {
		d.Source = feedOf(&s.Metadata, s.Links)
		d.Source.ID, d.Source.Title.Value = short(s.ID), cut(s.Title, maxSourceTitle)
		d.Source.Updated, _ = event.StampOf(s.Updated)
	}
	if d.IsZero() {
		return nil
	}
	out := d // most entries have no details: memory is allocated only here
	return &out
}

// metadata returns the metadata of a record for its entry. It leaves out what RFC 4287
// does not allow.
func metadata(e *event.Event) (m atompmh.Metadata) {
	m.Categories = categories(e.Categories)
	d := e.Details
	if d == nil {
		return m
	}
	m.Language = language(d.Language)
	m.Authors, m.Contributors = persons(d.Authors), persons(d.Contributors)
	m.Rights = atompmh.Text{Value: d.Rights.Value, Language: language(d.Rights.Language)}
	return m
}

// source returns the atom:source of an entry, the feed that it was copied from (RFC
// 4287 4.2.11): as the entry stated it, else with the metadata of that feed; nil when
// nothing is known.
func source(e *event.Event) *atompmh.Source {
	o := &e.Origin
	f := &event.Feed{ID: short(o.FeedID), Title: event.Text{Value: cut(o.FeedTitle, maxSourceTitle)}, Updated: o.FeedUpdated}
	switch {
	case e.Details != nil && e.Details.Source != nil:
		f = e.Details.Source
	case o.Feed != nil:
		all := *o.Feed
		all.ID, all.Title.Value, all.Updated = f.ID, f.Title.Value, f.Updated
		f = &all
	case f.ID == "":
		return nil
	}
	s := &atompmh.Source{ID: f.ID, Title: f.Title.Value, Updated: f.Updated.Time(), Metadata: atompmh.Metadata{
		Language: language(f.Title.Language), Authors: persons(f.Authors), Contributors: persons(f.Contributors),
		Rights: atompmh.Text{Value: f.Rights.Value, Language: language(f.Rights.Language)}, Categories: categories(f.Categories)}}
	if !atompmh.CanBeID(s.ID) {
		s.ID = ""
	}
	for i := range f.Links {
		if l := &f.Links[i]; event.Public(l.Href) {
			s.Links = append(s.Links, atompmh.Link{Rel: l.Rel, Href: l.Href, Type: linkType(l.Type), Length: atompmh.NoLength})
		}
	}
	if s.ID == "" && s.Title == "" && s.Updated.IsZero() && s.Authors == nil && s.Contributors == nil && s.Rights.Value == "" && s.Categories == nil && s.Links == nil {
		return nil
	}
	return s
}

func persons(all []event.Person) (out []atompmh.Person) {
	for _, p := range all {
		if !atompmh.CanBeID(p.URI) {
			p.URI = ""
		}
		if !atompmh.CanBeEmail(p.Email) {
			p.Email = ""
		}
		if strings.TrimSpace(p.Name) != "" {
			out = append(out, atompmh.Person(p))
		}
	}
	return out
}

func categories(all []event.Category) (out []atompmh.Category) {
	for _, c := range all {
		if !atompmh.CanBeID(c.Scheme) {
			c.Scheme = ""
		}
		if c.Term != "" {
			out = append(out, atompmh.Category(c))
		}
	}
	return out
}

// language leaves out what is no language tag.
func language(tag string) string {
	if !atompmh.CanBeLanguage(tag) {
		return ""
	}
	return tag
}

// linkType leaves out what is no media type.
func linkType(t string) string {
	if !atompmh.CanBeType(t) {
		return ""
	}
	return t
}

// ServedType returns the media type under which we serve a copy of a representation
// with the stated type.
func ServedType(stated string) string {
	if t := linkType(stated); t != "" {
		return t
	}
	return "application/octet-stream"
}
