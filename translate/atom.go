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

// FeedEncoder translates the events of one set into entries of Atom-PMH documents. It
// is pure but for the memory it uses again: what it returns holds until its next
// call, and only one goroutine uses it at a time.
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
// and the id of its feed count.
func NewFeedEncoder(base string, set *event.Set) *FeedEncoder {
	return &FeedEncoder{urls: urls{records: recordsURL(base, set.Name), content: set.Content},
		space: parseUUID(set.Feed), types: map[string]bool{}}
}

// Entry returns the entry of an event, nil for a rejected one, which has none.
// Its time is that of the change in our pool, because rules that compare the
// times of documents must hold whatever the Sources' clocks say (P1); what the
// Source said travels on the link to the original.
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
	if strings.TrimSpace(entry.Title) == "" {
		entry.Title, entry.Language = entry.ID, ""
	}
	if e.Live() {
		entry.Kind = atompmh.Active
		f.alternates(e)
	}
	f.via(e)
	if e.Live() {
		f.others(e)
	}
	entry.Links = f.links
	return entry
}

// id keeps an identifier that can be an atom:id, which is permanent.
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
		// Nobody can be sent anywhere. Our URL does not answer in mode reference,
		// which tells a consumer just that (S9).
		f.alternate(f.record(e.Record), &event.Representation{Length: event.NoLength})
	}
}

func (f *FeedEncoder) alternate(href string, r *event.Representation) {
	if !event.Public(href) {
		return
	}
	// The draft asks for a type of every alternate.
	l, hash := atompmh.Link{Rel: "alternate", Href: href, Type: ServedType(r.Type), Hreflang: language(r.Hreflang), Length: r.Length}, r.Hash
	if r.Encoding != "" { // which a link cannot tell
		l.Length, hash = atompmh.NoLength, ""
	}
	if kind := strings.ToLower(l.Type + "\x00" + l.Hreflang); f.types[kind] {
		l.Rel = atompmh.RelFurtherAlternate
	} else {
		f.types[kind] = true
	}
	f.append(l, carried{hash: hash})
}

// via appends the link to the original, if it may be named.
func (f *FeedEncoder) via(e *event.Event) {
	if v, ok := original(e); ok {
		c := carried{hash: v.Hash, modified: v.Modified.String()}
		if v.Length >= 0 {
			c.length = strconv.FormatInt(v.Length, 10)
		}
		f.append(atompmh.Link{Rel: "via", Href: v.Href, Type: linkType(v.Type), Length: atompmh.NoLength}, c)
	}
}

// others appends the links that are passed on besides.
func (f *FeedEncoder) others(e *event.Event) {
	for i := range e.Links {
		l := &e.Links[i]
		if href := f.related(l); href != "" {
			f.append(atompmh.Link{Rel: l.Rel, Href: href, Type: linkType(l.Type), Length: atompmh.NoLength}, carried{id: otherThan(href, l.Record)})
		}
	}
}

// carried is what a link has in atompmh.CarriedNamespace.
type carried struct{ id, modified, hash, length string }

func (f *FeedEncoder) append(l atompmh.Link, c carried) {
	begin := len(f.attrs)
	for _, a := range [...]struct{ name, value string }{{"id", c.id}, {"modified", c.modified}, {"hash", c.hash}, {"length", c.length}} {
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
