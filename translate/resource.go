package translate

import (
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// ListEncoder translates the events of one set into entries of Change Lists and
// Resource Lists. It is pure but for the memory it uses again: what it returns
// holds until its next call, and only one goroutine uses it at a time.
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
	entry.Metadata.Change = change(e)
	entry.Metadata.Datetime = resourcesync.Micros(e.Observed.Time())
	return l.entries[:n+1]
}

// ResourceEntry returns the entry of a live record in a Resource List; e is its
// last event.
func (l *ListEncoder) ResourceEntry(e *event.Event) *resourcesync.Entry { return l.entry(0, e) }

// change is the word for e itself, after what is gone has been told. To a
// Destination it is the URI that changes.
func change(e *event.Event) string {
	switch {
	case e.Kind == event.Deleted:
		return resourcesync.Deleted
	case e.Kind == event.Created || e.Arrived:
		return resourcesync.Created
	}
	return resourcesync.Updated
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
		links = l.appendAlternates(links, entry.Loc, e)
		links = l.appendOthers(links, e)
	}
	carry(entry, e)
	l.links[i], entry.Links = links, links
	return entry
}

// gone fills entry with the deletion of the URI that the record has left. The
// original's hash, length and type are those of the new place and stay away; if
// the record was its own original, it was so at the old URI.
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

// carry adds what only another bridge reads.
func carry(entry *resourcesync.Entry, e *event.Event) {
	if e.Record != entry.Loc {
		entry.Metadata.ID = e.Record
	}
	entry.Metadata.Title = e.Title
	entry.Metadata.CarriedModified = stamp(carriedModified(e))
}

// changeFreq leaves out what is no word of the Sitemap protocol.
func changeFreq(stated string) string {
	switch stated {
	case "always", "hourly", "daily", "weekly", "monthly", "yearly", "never":
		return stated
	}
	return ""
}

// lastMod is when the copy that loc answers changed: ours when we serve it, the
// upstream's own word when it does, unless that lies in the future. It is in
// whole seconds, as HTTP's Last-Modified, by which clause 7 defines it.
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
		return resourcesync.Datetime{} // what is known is true of the original
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

// appendAlternates appends a link for each representation but the preferred one
// (clause 14.3).
func (l *ListEncoder) appendAlternates(links []resourcesync.Link, loc string, e *event.Event) []resourcesync.Link {
	for i := range e.Representations {
		r := &e.Representations[i]
		if i == e.Preferred {
			continue
		}
		href := l.representation(loc, r)
		if !event.Public(href) {
			continue
		}
		links = append(links, resourcesync.Link{
			Rel:      resourcesync.RelAlternate,
			Href:     href,
			Hash:     r.Hash,
			Encoding: r.Encoding,
			Length:   resourcesync.Bytes(r.Length),
			Type:     l.mediaType(r.Type),
			Hreflang: language(r.Hreflang),
			Profile:  r.Profile,
		})
	}
	return links
}

// appendOthers appends the links that are passed on besides (clauses 14.5 and
// 14.8).
func (l *ListEncoder) appendOthers(links []resourcesync.Link, e *event.Event) []resourcesync.Link {
	for i := range e.Links {
		from := &e.Links[i]
		if href := l.related(from); href != "" {
			links = append(links, resourcesync.Link{Rel: from.Rel, Href: href, Type: linkType(from.Type), ID: otherThan(href, from.Record)})
		}
	}
	return links
}

func stamp(s event.Stamp) resourcesync.Datetime {
	if !s.Known() {
		return resourcesync.Datetime{}
	}
	return resourcesync.Exact(s.Time())
}
