package translate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// FromResource translates what an entry of a Resource List or a Change List says
// into an observation. The record is the one that another bridge carries, else
// that of the loc; never that of the via, which two resources may share. Its
// alternates are further representations of it (ResourceSync 14.3). Order is the
// datetime of the change, if the entry has one. Of links with the same href the
// first counts. The errors are ErrLocal, ErrUnreachable, ErrUnselected, ErrOwn
// and event.ErrTooMuch.
func FromResource(e *resourcesync.Entry, w *Selection) (event.Observation, error) {
	md := &e.Metadata
	o := event.Observation{Title: md.Title, Deleted: md.Change == resourcesync.Deleted, Order: stampOf(md.Datetime)}
	o.Record, o.SourceIdentifier = w.Identifier(cmp.Or(md.ID, e.Loc))
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
	if o.Deleted {
		return o, w.accept(&o, e.Loc)
	}
	if e.ChangeFreq != "" {
		o.Details = &event.Details{ChangeFreq: e.ChangeFreq}
	}
	t := taking{w: w, o: &o}
	t.take(event.Representation{Href: e.Loc, Type: md.Type, Hreflang: md.Hreflang, Hash: Hashes(md.Hash), Encoding: codingOf(md.Encoding), Length: lengthOf(md.Length)})
	o.Links = append(o.Links, related(e, w, t.wanted > 0)...)
	for i := range e.Links {
		if l := &e.Links[i]; l.Rel == resourcesync.RelAlternate && l.Href != e.Loc {
			t.take(event.Representation{Href: l.Href, Type: l.Type, Hreflang: l.Hreflang, Profile: l.Profile, Hash: Hashes(l.Hash), Encoding: codingOf(l.Encoding), Length: lengthOf(l.Length)})
		}
	}
	if err := t.finish(); err != nil {
		return o, err
	}
	return o, w.accept(&o, e.Loc)
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
func related(e *resourcesync.Entry, w *Selection, mirrored bool) []event.Link {
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
			out = append(out, w.related(linkOf(l), l.ID, l.ID != ""))
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
	out := event.Link{Rel: strings.TrimSpace(l.Rel), Href: l.Href, Type: l.Type, Length: event.NoLength, Modified: stampOf(l.Modified)}
	if codingOf(l.Encoding) == "" { // else they are those of bytes that nobody keeps
		out.Length, out.Hash = lengthOf(l.Length), Hashes(l.Hash)
	}
	return out
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
