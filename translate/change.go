package translate

import (
	"github.com/pmh-bridge/bridge/event"
)

// Change is an event of a set in bridge's own JSON format, for programs that follow a
// set without reading XML. It is about the record of an identifier; in a set in mode
// reference a record may move from one URL to another, and stays the same record.
type Change struct {
	// Seq is the place of the change. Later changes have larger ones, with gaps.
	Seq        event.Seq `json:"seq"`
	Identifier string    `json:"identifier"`
	Kind       string    `json:"kind"` // created, updated or deleted
	// Observed is when bridge logged the change: RFC 3339 in UTC, with microseconds.
	Observed string `json:"observed"`
	// Modified is when the record was modified or deleted at its origin, "" when that is
	// not known.
	Modified string `json:"modified,omitempty"`
	Title    string `json:"title,omitempty"`
	// Via is the original, nil where none may be named.
	Via *ChangeLink `json:"via,omitempty"`
	// Representations are where the record can be fetched, the preferred one first; a
	// deletion has none.
	Representations []ChangeLink `json:"representations"`
}

// ChangeLink is where a representation or an original is. What is not known is absent.
type ChangeLink struct {
	URL      string `json:"url"`
	Type     string `json:"type,omitempty"`     // media type
	Language string `json:"language,omitempty"` // RFC 5646
	Profile  string `json:"profile,omitempty"`  // RFC 6906
	// Hash is a list of hashes with spaces between, in the form of ResourceSync 7:
	// "sha-256:" and hex digits. With Encoding, a content coding, Hash and Length are of
	// the coded bytes.
	Hash     string `json:"hash,omitempty"`
	Encoding string `json:"encoding,omitempty"`
	Length   *int64 `json:"length,omitempty"`   // in bytes
	Modified string `json:"modified,omitempty"` // of an original
}

// ChangeEncoder translates the events of one set into Changes. Only one goroutine uses it
// at a time.
type ChangeEncoder struct{ urls }

// NewChangeEncoder returns a ChangeEncoder for a set whose documents stand below base, an
// absolute URL without a slash at its end.
func NewChangeEncoder(base, set string, content event.Content) *ChangeEncoder {
	return &ChangeEncoder{urls{records: recordsURL(base, set), content: content}}
}

// Change returns the change that an event is; ok is false of an event that is not
// published. What it returns shares no memory with the event.
func (c *ChangeEncoder) Change(e *event.Event) (change Change, ok bool) {
	if e.Kind == event.Rejected {
		return change, false
	}
	change = Change{Seq: e.Seq, Identifier: e.Record, Kind: e.Kind.String(), Observed: e.Observed.String(), Modified: e.Modified.String(), Title: e.Title,
		Representations: []ChangeLink{}}
	if v, ok := original(e); ok {
		change.Via = &ChangeLink{URL: v.Href, Type: linkType(v.Type), Hash: v.Hash, Length: knownLength(v.Length), Modified: v.Modified.String()}
	}
	if !e.Live() {
		return change, true
	}
	loc := c.loc(e)
	add := func(url string, r *event.Representation) {
		if event.Public(url) {
			change.Representations = append(change.Representations, ChangeLink{URL: url, Type: c.mediaType(r.Type), Language: language(r.Hreflang), Profile: r.Profile,
				Hash: r.Hash, Encoding: r.Encoding, Length: knownLength(r.Length)})
		}
	}
	if r, ok := e.Pref(); ok {
		add(loc, &r)
	}
	for i := range e.Representations {
		if i != e.Preferred {
			add(c.representation(loc, &e.Representations[i]), &e.Representations[i])
		}
	}
	return change, true
}

// knownLength is a length for JSON, nil when it is not known.
func knownLength(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}
