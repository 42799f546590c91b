package translate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// FromResource translates an entry of a Resource List or a Change List into an
// observation. The record is the one that another bridge carries, else that of the loc;
// never that of the via, which two resources may share. Its alternates are further
// representations of it (ResourceSync 14.3). Order is the datetime of the change, if
// the entry has one. Of links with the same href the first counts. The errors are
// ErrLocal, ErrUnreachable, ErrUnselected, ErrOwn and event.ErrTooMuch.
func FromResource(e *resourcesync.Entry, sel *Selection) (event.Observation, error) {
	md := &e.Metadata
	o := event.Observation{Title: md.Title, Deleted: md.Change == resourcesync.Deleted, Order: stampOf(md.Datetime)}
	o.Record, o.SourceIdentifier = sel.Identifier(cmp.Or(md.ID, e.Loc))
	o.Modified = stampOf(e.LastMod)
	if !o.Modified.Known() {
		o.Modified = o.Order
	}
	copied := o.Modified
	takeVia(e, &o)
	if m := stampOf(md.CarriedModified); m.Known() {
		o.Modified = m
	}
	if o.Via.Href != "" && (o.Via.Modified.Known() || o.Modified != copied) {
		o.CopyModified = copied
	}
	var categories []event.Category
	o.Details, categories = readDetails(md.Details, o.Deleted)
	if o.Deleted {
		for i := range e.Links {
			if l := linkOf(&e.Links[i]); l.PublishedOfDeletion() {
				o.Links = append(o.Links, l)
			}
		}
		return o, sel.accept(&o, e.Loc)
	}
	o.Categories = categories
	if f := changeFreq(e.ChangeFreq); f != "" {
		if o.Details == nil {
			o.Details = &event.Details{}
		}
		o.Details.ChangeFreq = f
	}
	t := taking{sel: sel, o: &o}
	t.take(event.Representation{Href: e.Loc, Type: md.Type, Hreflang: md.Hreflang, Hash: resourcesync.Hashes(md.Hash), Encoding: codingOf(md.Encoding), Length: lengthOf(md.Length)})
	o.Links = append(o.Links, related(e, sel, t.wanted > 0)...)
	for i := range e.Links {
		if l := &e.Links[i]; l.Rel == resourcesync.RelAlternate && l.Href != e.Loc {
			t.take(event.Representation{Href: l.Href, Type: l.Type, Hreflang: l.Hreflang, Profile: profile(l.Profile), Hash: resourcesync.Hashes(l.Hash), Encoding: codingOf(l.Encoding), Length: lengthOf(l.Length), Pri: l.Pri})
		}
	}
	if err := t.finish(); err != nil {
		return o, err
	}
	return o, sel.accept(&o, e.Loc)
}

// takeVia takes the original that the entry names (clause 14.8), and when it was
// last modified there.
func takeVia(e *resourcesync.Entry, o *event.Observation) {
	for i := range e.Links {
		l := &e.Links[i]
		if l.Rel != resourcesync.RelVia || !event.Public(l.Href) {
			continue
		}
		m := stampOf(l.Modified)
		if m.Known() {
			o.Modified = m
		}
		o.Via = linkOf(l)
		o.Via.Rel, o.Via.Modified = "", m
		return
	}
}

// related returns the links to other resources. Mirrors of the resource, if its
// own representation is wanted (clause 14.2), come first, the best one at the
// front.
func related(e *resourcesync.Entry, sel *Selection, mirrored bool) []event.Link {
	var mirrors []*resourcesync.Link
	for i := range e.Links {
		if l := &e.Links[i]; mirrored && l.Rel == resourcesync.RelDuplicate {
			mirrors = append(mirrors, l)
		}
	}
	slices.SortStableFunc(mirrors, func(a, b *resourcesync.Link) int { return cmp.Compare(priority(a), priority(b)) })
	var out []event.Link
	for _, l := range mirrors {
		out = append(out, linkOf(l))
	}
	for i := range e.Links {
		switch l := &e.Links[i]; l.Rel {
		case resourcesync.RelAlternate, resourcesync.RelVia, resourcesync.RelDuplicate, resourcesync.RelUp, resourcesync.RelIndex:
		case event.RelDescribedBy, event.RelDescribes:
			out = append(out, sel.related(linkOf(l), l.ID, l.ID != ""))
		case event.RelProfile:
			if profile(l.Href) != "" {
				out = append(out, linkOf(l))
			}
		default:
			out = append(out, linkOf(l))
		}
	}
	return out
}

// priority orders mirrors: 1 is the best, none at all the worst (clause 7, pri).
func priority(l *resourcesync.Link) int {
	if l.Pri <= 0 {
		return 1 << 30
	}
	return l.Pri
}

func linkOf(l *resourcesync.Link) event.Link {
	out := event.Link{Rel: strings.TrimSpace(l.Rel), Href: l.Href, Type: l.Type, Length: event.NoLength, Modified: stampOf(l.Modified), Pri: l.Pri}
	if codingOf(l.Encoding) == "" { // else they are those of bytes that nobody keeps
		out.Length, out.Hash = lengthOf(l.Length), resourcesync.Hashes(l.Hash)
	}
	return out
}

// changeFreq returns a hint if it is one of the words of the sitemap format, else "".
func changeFreq(hint string) string {
	switch hint {
	case "always", "hourly", "daily", "weekly", "monthly", "yearly", "never":
		return hint
	}
	return ""
}

// profile leaves out what is no absolute IRI (RFC 6906).
func profile(stated string) string {
	if !atompmh.CanBeID(stated) {
		return ""
	}
	return stated
}

// codingOf returns the content coding that a hash and a length are of (clause 7,
// encoding; RFC 9110 8.4.1), "" for none.
func codingOf(encoding string) string {
	switch e := strings.ToLower(strings.TrimSpace(encoding)); e {
	case "identity":
		return ""
	case "x-gzip":
		return "gzip"
	default:
		return e
	}
}

func lengthOf(l resourcesync.Length) int64 {
	if n, known := l.Bytes(); known {
		return n
	}
	return event.NoLength
}

func stampOf(d resourcesync.Datetime) event.Stamp {
	if d.IsZero() {
		return event.Stamp{}
	}
	s, _ := event.StampOf(d.Time())
	return s
}

// ListEncoder translates the events of one set into entries of Change Lists and
// Resource Lists. It is pure, but reuses its memory: what it returns is valid until its
// next call, and only one goroutine may use it at a time.
type ListEncoder struct {
	urls
	entries [2]resourcesync.Entry
	links   [2][]resourcesync.Link
}

// NewListEncoder returns a ListEncoder for a set whose documents stand below base, an
// absolute URL without a slash at its end.
func NewListEncoder(base, set string, content event.Content) *ListEncoder {
	return &ListEncoder{urls: urls{records: recordsURL(base, set), content: content}}
}

// ChangeEntries returns the entries that e has in a Change List, e.Entries() in
// number: none for what is not published or listed, two for a record in mode
// reference that moved to another URI (deleted there, created here).
func (l *ListEncoder) ChangeEntries(e *event.Event) []resourcesync.Entry {
	if e.Kind == event.Rejected {
		return nil
	}
	n := 0
	if e.Gone != "" {
		l.gone(&l.entries[n], e)
		n++
	}
	if e.Unlisted {
		return l.entries[:n]
	}
	entry := l.entry(n, e)
	// For a Destination the change is that of the URI: a record that arrives at one is
	// created there.
	switch {
	case e.Kind == event.Deleted:
		entry.Metadata.Change = resourcesync.Deleted
	case e.Kind == event.Created || e.Arrived:
		entry.Metadata.Change = resourcesync.Created
	default:
		entry.Metadata.Change = resourcesync.Updated
	}
	entry.Metadata.Datetime = resourcesync.Micros(e.Observed.Time())
	return l.entries[:n+1]
}

// ResourceEntry returns the entry of a live record in a Resource List; e is its
// last event.
func (l *ListEncoder) ResourceEntry(e *event.Event) *resourcesync.Entry { return l.entry(0, e) }

// AddPaths adds to an entry of e, in the manifest of a dump, the paths of the contents
// in the package. They are in folder, which begins and ends with a slash, under the
// names that they have in our record URLs. Only a set in mode mirror has dumps.
func (l *ListEncoder) AddPaths(entry *resourcesync.Entry, e *event.Event, folder string) {
	r, ok := e.Pref()
	if !e.Live() || !ok {
		return
	}
	entry.Metadata.Path = folder + strings.TrimPrefix(l.representation(entry.Loc, &r), l.records)
	for i := range entry.Links {
		if link := &entry.Links[i]; link.Rel == resourcesync.RelAlternate {
			link.Path = folder + strings.TrimPrefix(link.Href, l.records)
		}
	}
}

// entry fills the i-th entry with all that Change Lists and Resource Lists have
// in common.
func (l *ListEncoder) entry(i int, e *event.Event) *resourcesync.Entry {
	entry := &l.entries[i]
	*entry = resourcesync.Entry{Loc: l.loc(e), LastMod: l.lastMod(e)}
	links := appendVia(l.links[i][:0], e)
	if e.Live() {
		if r, ok := e.Pref(); ok {
			entry.Metadata.Hash, entry.Metadata.Encoding = r.Hash, r.Encoding
			entry.Metadata.Length = resourcesync.Bytes(r.Length)
			entry.Metadata.Type = l.mediaType(r.Type)
			entry.Metadata.Hreflang = language(r.Hreflang)
		}
		if e.Details != nil {
			entry.ChangeFreq = changeFreq(e.Details.ChangeFreq)
		}
		for i := range e.Representations { // clause 14.3
			r := &e.Representations[i]
			if i == e.Preferred {
				continue
			}
			if href := l.representation(entry.Loc, r); event.Public(href) {
				links = append(links, resourcesync.Link{
					Rel:      resourcesync.RelAlternate,
					Href:     href,
					Hash:     r.Hash,
					Encoding: r.Encoding,
					Length:   resourcesync.Bytes(r.Length),
					Type:     l.mediaType(r.Type),
					Hreflang: language(r.Hreflang),
					Profile:  r.Profile,
					Pri:      r.Pri,
				})
			}
		}
	}
	for i := range e.Links { // clauses 14.5 and 14.8
		from := &e.Links[i]
		href := l.related(from, e.Live())
		if href == "" {
			continue
		}
		to := resourcesync.Link{Rel: from.Rel, Href: href, Type: linkType(from.Type), Pri: from.Pri, ID: otherThan(href, from.Record)}
		if from.OfCopy() {
			to.Hash, to.Length, to.Modified = from.Hash, resourcesync.Bytes(from.Length), stamp(from.Modified)
		}
		links = append(links, to)
	}
	carry(entry, e)
	entry.Metadata.Details = appendDetails(e)
	if e.History {
		links = appendHistory(links, entry, e)
	}
	l.links[i], entry.Links = links, links
	return entry
}

// appendHistory appends the links to this version of the record, and to its TimeGate
// and TimeMap (clause 14.6). A deletion has no link to its version, since there is
// nothing to fetch.
func appendHistory(links []resourcesync.Link, entry *resourcesync.Entry, e *event.Event) []resourcesync.Link {
	if md := &entry.Metadata; e.Live() {
		links = append(links, resourcesync.Link{Rel: resourcesync.RelMemento, Href: event.MementoURL(entry.Loc, e.Seq), Modified: entry.LastMod,
			Hash: md.Hash, Length: md.Length, Type: md.Type})
	}
	return append(links,
		resourcesync.Link{Rel: resourcesync.RelTimeGate, Href: event.TimeGateURL(entry.Loc)},
		resourcesync.Link{Rel: resourcesync.RelTimeMap, Href: event.TimeMapURL(entry.Loc), Type: "application/link-format"})
}

// gone fills entry with the deletion of the URI that the record has left. The
// original's hash, length and type are those of the new place and are left out; if the
// record was its own original, it was so at the old URI.
func (l *ListEncoder) gone(entry *resourcesync.Entry, e *event.Event) {
	*entry = resourcesync.Entry{Loc: e.Gone, LastMod: l.lastMod(e)}
	entry.Metadata.Change = resourcesync.Deleted
	entry.Metadata.Datetime = resourcesync.Micros(e.Observed.Time())
	links := appendVia(l.links[0][:0], e)
	if len(links) > 0 {
		href := links[0].Href
		if href == e.Loc {
			href = e.Gone
		}
		links[0] = resourcesync.Link{Rel: resourcesync.RelVia, Href: href, Modified: links[0].Modified}
	}
	carry(entry, e)
	l.links[0], entry.Links = links, links
}

// carry adds the attributes that only another bridge reads.
func carry(entry *resourcesync.Entry, e *event.Event) {
	if e.Record != entry.Loc {
		entry.Metadata.ID = e.Record
	}
	entry.Metadata.Title = e.Title
	entry.Metadata.CarriedModified = stamp(carriedModified(e))
}

// lastMod returns when the copy at loc changed: the time of our event when we serve it,
// the time that the Source states when it serves it, unless that lies in the future. It
// is in whole seconds, as HTTP's Last-Modified, by which clause 7 defines it.
func (l *ListEncoder) lastMod(e *event.Event) resourcesync.Datetime {
	observed := e.Observed.Time()
	if l.content != event.Reference {
		return resourcesync.Seconds(observed)
	}
	m := e.Modified
	switch {
	case e.CopyModified.Known():
		m = e.CopyModified
	case inherited(e) && e.Via.Modified.Known():
		return resourcesync.Datetime{} // the known time is that of the original
	}
	if !m.Known() || m.Time().After(observed) {
		return resourcesync.Datetime{}
	}
	return resourcesync.Seconds(m.Time())
}

// appendVia appends the link to the original (clause 14.8), if it may be named.
func appendVia(links []resourcesync.Link, e *event.Event) []resourcesync.Link {
	v, ok := original(e)
	if !ok {
		return links
	}
	return append(links, resourcesync.Link{
		Rel:      resourcesync.RelVia,
		Href:     v.Href,
		Modified: stamp(v.Modified),
		Hash:     v.Hash,
		Length:   resourcesync.Bytes(v.Length),
		Type:     linkType(v.Type),
	})
}

func stamp(s event.Stamp) resourcesync.Datetime {
	if !s.Known() {
		return resourcesync.Datetime{}
	}
	return resourcesync.Exact(s.Time())
}
