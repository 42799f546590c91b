package translate

import (
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
)

// Selection is which records and representations a set takes.
type Selection struct {
	// Formats are the wanted media types; empty is all.
	Formats []string
	// Prefer orders media types: of the first that a record has, its first
	// representation stands for the record. Empty is the first alternate.
	Prefer []string
	// PublicURL is where the folder at LocalURL (a file: URL that ends in a
	// slash) is published; "" when it is not.
	LocalURL, PublicURL string
	// Name of the Source when its identifiers are to be its own (identity =
	// "per-source"), else "".
	Name string
	// Published: others will be sent to the representations' own URLs, so those
	// of a local Source are given as the public ones.
	Published bool
	// Prefixes select records by how the URL that stands for them begins; none
	// select all.
	Prefixes []string
	// Since selects records that were modified no earlier, or at an unknown
	// time; unknown selects all.
	Since event.Stamp
	// Inline: the atom:content of an entry is its record.
	Inline bool
	// Own is what our own URLs of the set begin with, under each of its names. A record
	// whose original is there has come back from another bridge.
	Own []string
}

// Reasons why an entry of a Source is ignored.
var (
	// ErrUnselected: the configuration selects other records.
	ErrUnselected = errors.New("not among the records that prefix and since select")
	// ErrOwn: the original is a record of this set.
	ErrOwn = errors.New("its original is a record of this set: another bridge has harvested it from here")
)

// ErrLocal: an entry names only local files, of which none is published, where
// others would have to be sent to them.
var ErrLocal = errors.New("no alternate link lies in the Source's folder, so none has a place below its public_url")

// ErrUnreachable: an entry names alternates, but none that could be asked for.
var ErrUnreachable = errors.New("no alternate link can be followed: want http or https")

// Identifier returns the identifier of the record that the Source calls id, and
// id itself where that differs (A15).
func (s *Selection) Identifier(id string) (record, own string) {
	if s.Name == "" {
		return id, ""
	}
	return ownIdentifier(s.Name, id), id
}

// Public returns the URL under which others find what a Source's link names.
// That of a file below a local Source's folder is its place below PublicURL; ok
// is false when it has none.
func (s *Selection) Public(href string) (public string, ok bool) {
	if href == "" || event.Public(href) {
		return href, true
	}
	rest, below := strings.CutPrefix(href, s.LocalURL)
	if s.PublicURL == "" || s.LocalURL == "" || !below {
		return "", false
	}
	// Escaped dots lead out of the folder as others do.
	if name, err := url.PathUnescape(rest); err != nil || !strings.HasPrefix(path.Clean("/f/"+name), "/f/") {
		return "", false
	}
	return strings.TrimSuffix(s.PublicURL, "/") + "/" + rest, true
}

// accept returns the error for an observation that is ignored or too large, else nil.
// href is the URL that stands for the record, "" when it is not known.
func (s *Selection) accept(o *event.Observation, href string) error {
	switch {
	case slices.ContainsFunc(s.Own, func(own string) bool { return strings.HasPrefix(o.Via.Href, own) }):
		return ErrOwn
	case s.Since.Known() && o.Modified.Known() && o.Modified.Before(s.Since):
		return ErrUnselected
	case len(s.Prefixes) > 0 && href != "" && !slices.ContainsFunc(s.Prefixes, func(p string) bool { return strings.HasPrefix(href, p) }):
		return ErrUnselected
	}
	return o.Bound()
}

// ownIdentifier returns the urn:uuid, version 5, of a Source's name and an
// identifier there (A15).
func ownIdentifier(source, identifier string) string {
	// The name-based namespace is that of URLs (RFC 9562 6.6).
	namespace := [16]byte{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}
	return nameUUID(namespace, url.QueryEscape(source)+"?"+identifier)
}

// Wanted reports whether a media type is one of formats. Parameters and case do
// not count; no formats want everything.
func Wanted(formats []string, mediaType string) bool {
	return len(formats) == 0 || slices.ContainsFunc(formats, func(f string) bool { return SameType(f, mediaType) })
}

// Preferred returns the index of the representation that stands for the record:
// the first match of prefer, else the first.
func Preferred(prefer []string, reps []event.Representation) int {
	for _, p := range prefer {
		for i := range reps {
			if SameType(p, reps[i].Type) {
				return i
			}
		}
	}
	return 0
}

// SameType compares media types without their parameters, in any case.
func SameType(a, b string) bool { return strings.EqualFold(essence(a), essence(b)) }

func essence(t string) string {
	t, _, _ = strings.Cut(t, ";")
	return strings.TrimSpace(t)
}

// related completes a link to what may be another record of the set: the one
// that another bridge names, else the one whose identifier is the link's target.
func (s *Selection) related(l event.Link, carried string, named bool) event.Link {
	id := l.Href
	if named {
		id = carried
	}
	l.Record, _ = s.Identifier(id)
	return l
}

// taking takes the representations of a record into its observation.
type taking struct {
	sel         *Selection
	o           *event.Observation
	wanted      int
	unreachable int // of the wanted ones
}

// take takes a representation, if the set wants it. What is neither on the web
// nor a file is kept as something related.
func (t *taking) take(r event.Representation) {
	if !Wanted(t.sel.Formats, r.Type) {
		return
	}
	t.wanted++
	if event.IsInline(r.Href) { // a name of our own, which has no meaning in a document of others
		t.unreachable++
		return
	}
	if !event.OnTheWeb(r.Href) && event.Public(r.Href) {
		t.unreachable++
		t.o.Links = append(t.o.Links, event.Link{Rel: event.RelRelated, Href: r.Href, Type: r.Type, Length: r.Length, Hash: r.Hash})
		return
	}
	if t.sel.Published {
		var ok bool
		if r.Href, ok = t.sel.Public(r.Href); !ok {
			return
		}
	}
	t.o.Representations = append(t.o.Representations, r)
}

// finish completes the observation of a record that exists.
func (t *taking) finish() error {
	sel, o := t.sel, t.o
	switch {
	case t.wanted == 0:
		o.Deleted, o.Representations, o.Links, o.Categories, o.Inline = true, nil, nil, nil, nil
		return nil
	case t.wanted == t.unreachable:
		o.Links = nil
		return ErrUnreachable
	case len(o.Representations) == 0:
		return ErrLocal
	}
	o.Representations = event.Distinct(o.Representations)
	o.Preferred = Preferred(sel.Prefer, o.Representations)
	r := &o.Representations[o.Preferred]
	if o.Via.Href == "" {
		if public, ok := sel.Public(r.Href); ok && public != r.Href {
			o.Via = event.Link{Href: public, Type: r.Type, Length: event.NoLength, Modified: o.Modified}
			if r.Encoding == "" {
				o.Via.Length, o.Via.Hash = r.Length, r.Hash
			}
		}
	}
	return nil
}
