package translate

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
)

// Feeder translates the events of one set into entries of Atom-PMH documents. It
// is pure but for the memory it uses again: what it returns holds until its next
// call, and only one goroutine uses it at a time.
type Feeder struct {
	place
	space  [16]byte // of the identifiers that are no absolute IRI
	entry  atompmh.Entry
	source atompmh.Source
	links  []atompmh.Link
	attrs  []xml.Attr
	types  map[string]bool
}

// NewFeeder returns a Feeder for a set whose documents stand below base, an
// absolute URL without a slash at its end. Of the set its name, its content mode
// and the id of its feed count.
func NewFeeder(base string, set *event.Set) *Feeder {
	return &Feeder{place: place{records: recordsURL(base, set.Name), content: set.Content},
		space: parseUUID(set.Feed), types: map[string]bool{}}
}

// Entry returns the entry of an event, nil for a rejected one, which has none.
// Its time is that of the change in our pool, because rules that compare the
// times of documents must hold whatever the Sources' clocks say (P1); what the
// Source said travels on the link to the original.
func (f *Feeder) Entry(e *event.Event) *atompmh.Entry {
	if e.Kind == event.Rejected {
		return nil
	}
	f.links, f.attrs = f.links[:0], f.attrs[:0]
	f.entry = atompmh.Entry{Kind: atompmh.Deletion, ID: f.id(e.Record), Updated: e.Observed.Time(), Title: e.Title, Source: f.sourceOf(e)}
	entry := &f.entry
	if entry.ID != e.Record {
		entry.CarriedID = e.Record
	}
	if strings.TrimSpace(entry.Title) == "" {
		entry.Title = entry.ID
	}
	if e.Live() {
		entry.Kind = atompmh.Active
		f.alternates(e)
	}
	f.via(e)
	if e.Live() {
		f.describing(e)
	}
	entry.Links = f.links
	return entry
}

// id keeps an identifier that can be an atom:id, which is permanent.
func (f *Feeder) id(record string) string {
	if atompmh.CanBeID(record) {
		return record
	}
	return nameUUID(f.space, record)
}

// alternates appends the preferred representation and then the others. Of one
// media type only the first may be an alternate link (RFC 4287 4.1.2), so the
// others have a relation of our own (P6).
func (f *Feeder) alternates(e *event.Event) {
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
		// Nobody can be sent anywhere. Our URL does not answer in mode reference,
		// which tells a consumer just that (S9).
		f.alternate(f.record(e.Record), &event.Representation{Length: event.NoLength})
	}
}

func (f *Feeder) alternate(href string, r *event.Representation) {
	if !event.Public(href) {
		return
	}
	l, hash := atompmh.Link{Rel: "alternate", Href: href, Type: atomType(f.mediaType(r.Type)), Length: r.Length}, r.Hash
	if r.Encoding != "" { // which a link cannot tell
		l.Length, hash = atompmh.NoLength, ""
	}
	if kind := strings.ToLower(l.Type); f.types[kind] {
		l.Rel = atompmh.RelFurtherAlternate
	} else {
		f.types[kind] = true
	}
	f.append(l, carried{hash: hash})
}

// via appends the link to the original, if it may be named.
func (f *Feeder) via(e *event.Event) {
	if v, ok := original(e); ok {
		c := carried{hash: v.Hash, modified: v.Modified.String()}
		if v.Length >= 0 {
			c.length = strconv.FormatInt(v.Length, 10)
		}
		f.append(atompmh.Link{Rel: "via", Href: v.Href, Type: atomType(v.Type), Length: atompmh.NoLength}, c)
	}
}

// describing appends links to records of the set that describe this one, or are
// described by it.
func (f *Feeder) describing(e *event.Event) {
	for i := range e.Links {
		l := &e.Links[i]
		if href := f.related(l); href != "" {
			f.append(atompmh.Link{Rel: l.Rel, Href: href, Type: atomType(l.Type), Length: atompmh.NoLength}, carried{id: otherThan(href, l.Record)})
		}
	}
}

// carried is what a link has in atompmh.CarriedNamespace.
type carried struct{ id, modified, hash, length string }

func (f *Feeder) append(l atompmh.Link, c carried) {
	begin := len(f.attrs)
	for _, a := range [...]struct{ name, value string }{{"id", c.id}, {"modified", c.modified}, {"hash", c.hash}, {"length", c.length}} {
		if a.value != "" {
			f.attrs = append(f.attrs, xml.Attr{Name: xml.Name{Space: atompmh.CarriedNamespace, Local: a.name}, Value: a.value})
		}
	}
	l.Other = f.attrs[begin:len(f.attrs):len(f.attrs)]
	f.links = append(f.links, l)
}

// What of a feed goes into atom:source is bounded, since it stands in every
// entry that came from that feed.
const (
	maxSourceID    = 1000 // bytes; a longer one names nobody any more
	maxSourceTitle = 200  // bytes; what is longer is cut
)

// sourceOf tells of the feed that the event came from (RFC 4287 4.2.11); nil when
// that is not known.
func (f *Feeder) sourceOf(e *event.Event) *atompmh.Source {
	o := &e.Origin
	if o.FeedID == "" || len(o.FeedID) > maxSourceID {
		return nil
	}
	f.source = atompmh.Source{ID: o.FeedID, Title: cut(o.FeedTitle, maxSourceTitle), Updated: o.FeedUpdated.Time()}
	return &f.source
}

// cut shortens a text to so many bytes at most, without cutting a character.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// atomType leaves out what has not the form of a media type (RFC 4287 4.2.7.3).
func atomType(t string) string {
	slash := strings.IndexByte(t, '/')
	if slash < 1 || slash == len(t)-1 || !printable(t) {
		return ""
	}
	return t
}

// nameUUID returns the urn:uuid, version 5, of a name in a namespace (RFC 9562
// 5.5).
func nameUUID(space [16]byte, name string) string {
	h := sha1.New()
	h.Write(space[:])
	h.Write([]byte(name))
	u := h.Sum(nil)[:16]
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// parseUUID reads a urn:uuid; what is none counts as the one of nothing but
// noughts.
func parseUUID(urn string) (u [16]byte) {
	digits, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(urn, "urn:uuid:"), "-", ""))
	if err == nil && len(digits) == len(u) {
		copy(u[:], digits)
	}
	return u
}
