package translate

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
)

// Wants is what a set takes of a record.
type Wants struct {
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
}

// ErrLocal: an entry names only local files, of which none is published, where
// others would have to be sent to them.
var ErrLocal = errors.New("no alternate link lies in the Source's folder, so none has a place below its public_url")

// Identifier returns the identifier of the record that the Source calls id, and
// id itself where that differs (A15).
func (w *Wants) Identifier(id string) (record, own string) {
	if w.Name == "" {
		return id, ""
	}
	return OwnIdentifier(w.Name, id), id
}

// FromEntry translates what an Atom-PMH entry says into an observation. An
// entry that has alternates, but none that the set wants, is a deletion for
// that set (A14). The only error is ErrLocal.
func FromEntry(e *atompmh.Entry, w *Wants) (event.Observation, error) {
	o := event.Observation{Title: e.Title, Deleted: e.Kind == atompmh.Deletion}
	o.Record, o.SourceIdentifier = w.Identifier(e.ID)
	o.Modified, _ = event.StampOf(e.Updated)
	if o.Deleted {
		return o, nil
	}
	links, wanted := e.Alternates(), 0
	o.Representations = make([]event.Representation, 0, len(links))
	for i := range links {
		l := &links[i]
		if !Wanted(w.Formats, l.Type) {
			continue
		}
		wanted++
		href := l.Href
		if w.Published {
			var ok bool
			if href, ok = w.Public(href); !ok {
				continue
			}
		}
		o.Representations = append(o.Representations, event.Representation{Href: href, Type: l.Type, Length: l.Length, Hash: hashOf(l)})
	}
	switch {
	case wanted == 0:
		o.Deleted, o.Representations = true, nil
		return o, nil
	case len(o.Representations) == 0:
		return o, ErrLocal
	}
	o.Preferred = Preferred(w.Prefer, o.Representations)
	o.Via = via(e, &o, w)
	return o, nil
}

// Wanted tells whether a media type is one of formats. Parameters and case do
// not count; no formats want everything.
func Wanted(formats []string, mediaType string) bool {
	if len(formats) == 0 {
		return true
	}
	for _, f := range formats {
		if SameType(f, mediaType) {
			return true
		}
	}
	return false
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

// hashOf reads the hash that a link states: the attribute of RFC 4287's
// extensions that ResourceSync took over (Atom Link Extensions), or le:md5.
func hashOf(l *atompmh.Link) string {
	for _, space := range []string{"", atompmh.LinkExtensionsNamespace} {
		if h, ok := l.Attr(space, "hash"); ok {
			return strings.Join(strings.Fields(h), " ")
		}
	}
	if h, ok := l.Attr(atompmh.LinkExtensionsNamespace, "md5"); ok {
		return "md5:" + strings.ToLower(strings.TrimSpace(h))
	}
	return ""
}

// via returns the original that the entry names. Of a local Source it is the
// published place of the preferred representation, when there is one.
func via(e *atompmh.Entry, o *event.Observation, w *Wants) event.Link {
	if l, ok := e.Via(); ok && !strings.HasPrefix(l.Href, "file:") {
		v := event.Link{Href: l.Href, Type: l.Type, Length: l.Length, Hash: hashOf(&l), Modified: o.Modified}
		if m, ok := l.Attr("", "modified"); ok {
			if t, err := atompmh.ParseTime(m); err == nil {
				v.Modified, _ = event.StampOf(t)
			}
		}
		return v
	}
	r := &o.Representations[o.Preferred]
	if public, ok := w.Public(r.Href); ok && public != r.Href {
		return event.Link{Href: public, Type: r.Type, Length: r.Length, Hash: r.Hash, Modified: o.Modified}
	}
	return event.Link{}
}

// Public returns the URL under which others find what a Source's link names.
// That of a file below a local Source's folder is its place below PublicURL; ok
// is false when it has none.
func (w *Wants) Public(href string) (public string, ok bool) {
	if !strings.HasPrefix(href, "file:") {
		return href, true
	}
	rest, below := strings.CutPrefix(href, w.LocalURL)
	if w.PublicURL == "" || w.LocalURL == "" || !below {
		return "", false
	}
	// Escaped dots lead out of the folder as others do.
	if name, err := url.PathUnescape(rest); err != nil || !strings.HasPrefix(path.Clean("/f/"+name), "/f/") {
		return "", false
	}
	return strings.TrimSuffix(w.PublicURL, "/") + "/" + rest, true
}

// OwnIdentifier returns the urn:uuid, version 5, of a Source's name and an
// identifier there (A15).
func OwnIdentifier(source, identifier string) string {
	// The name-based namespace is that of URLs (RFC 9562 6.6).
	namespace := [16]byte{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}
	h := sha1.New()
	h.Write(namespace[:])
	h.Write([]byte(url.QueryEscape(source) + "?" + identifier))
	u := h.Sum(nil)[:16]
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
