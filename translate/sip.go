package translate

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// AssignedIdentifier returns the identifier that a library assigns to the record
// that a source element names: a name-based urn:uuid (version 8, of SHA-256) of
// the set's feed id, the submitter, the sequence and the source-identifier. What
// is absent and what is empty differ. So the same record submitted again gets the
// same identifier, in this set and in no other.
func AssignedIdentifier(feed string, s *sip.Source) string {
	if s == nil {
		s = &sip.Source{}
	}
	name := appendField(nil, &feed)
	if s.Submitter == nil {
		name = appendField(appendField(name, nil), nil)
	} else {
		name = appendField(appendField(name, &s.Submitter.Name), &s.Submitter.EmailAddress)
	}
	name = appendField(appendField(name, s.Sequence), s.Identifier)
	sum := sha256.Sum256(name)
	return hashUUID(sum[:], 8)
}

// appendField appends a field so that no two lists of fields have the same bytes.
func appendField(to []byte, field *string) []byte {
	if field == nil {
		return append(to, 0)
	}
	to = binary.AppendUvarint(append(to, 1), uint64(len(*field)))
	return append(to, *field...)
}

// FromRecord translates an accepted record, which is in the content store, into
// an observation at the time now.
func FromRecord(assigned string, s *sip.Source, r *sip.Record, now time.Time) event.Observation {
	sub := Submitted{Assigned: assigned, Content: sha256.Sum256(r.XML), Length: int64(len(r.XML)), Title: RecordTitle(r.XML)}
	if s != nil && s.Identifier != nil {
		sub.SourceIdentifier = *s.Identifier
	}
	return FromSubmitted(&sub, now)
}

// Submitted is what is known of a record that was submitted and accepted.
type Submitted struct {
	Assigned, SourceIdentifier, Title string
	Content                           [32]byte // SHA-256 of its bytes
	Length                            int64    // of them
}

// FromSubmitted is FromRecord for a record that need not be read again.
func FromSubmitted(s *Submitted, now time.Time) event.Observation {
	o := disposed(s.Assigned, s.SourceIdentifier, now)
	o.Title, o.Fetched = s.Title, true
	o.Representations = []event.Representation{{Href: identifierIRI(s.Assigned), Type: "application/xml", Length: s.Length, Hash: event.HashOf(s.Content)}}
	return o
}

// FromDisposition translates the disposition of an accepted record, whose content is
// not at hand, into an observation at the time now. The template recordURL gives the
// URL of its representation; the error is FillRecordURL's. A disposition does not state
// when the record was modified, so that stays unknown: else the same disposition again
// would look like a change.
func FromDisposition(assigned, recordURL string, s *sip.Source, now time.Time) (event.Observation, error) {
	href, err := FillRecordURL(recordURL, assigned)
	if err != nil {
		return event.Observation{}, err
	}
	own := ""
	if s != nil && s.Identifier != nil {
		own = *s.Identifier
	}
	o := disposed(assigned, own, now)
	o.Modified = event.Stamp{}
	o.Representations = []event.Representation{{Href: href, Length: event.NoLength}}
	return o, nil
}

func disposed(assigned, own string, now time.Time) event.Observation {
	o := event.Observation{Record: assigned}
	if own != assigned {
		o.SourceIdentifier = own
	}
	o.Order, _ = event.StampOf(now)
	o.Modified = o.Order
	return o
}

// identifierIRI returns an identifier that may be any text as an absolute IRI:
// itself when it is one, else in a URN of ours.
func identifierIRI(id string) string {
	if atompmh.CanBeID(id) && event.Public(id) && !strings.HasSuffix(id, ":") {
		return id
	}
	return "urn:x-bridge:sip:" + percentEncode(id)
}

// percentEncode leaves only what RFC 3986 calls unreserved.
func percentEncode(s string) string {
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// assignedPlace is where in a record_url the identifier goes.
const assignedPlace = "{assigned-identifier}"

// FillRecordURL puts an identifier, which may be any text, in its place in a
// template. Scheme, host and what stands before the place remain those of the
// template: an identifier that would lead out of that, as a server may read the
// URL, is an error, and so is one that makes a URL longer than event.MaxHref.
func FillRecordURL(template, assigned string) (string, error) {
	before, after, ok := strings.Cut(template, assignedPlace)
	if !ok {
		return "", fmt.Errorf("the record_url %q has no place for the identifier: write %s where it goes", template, assignedPlace)
	}
	fixed, err := url.Parse(before)
	if err != nil {
		return "", fmt.Errorf("the record_url %q: %w", template, err)
	}
	built := before + percentEncode(assigned) + after
	u, err := url.Parse(built)
	if err != nil {
		return "", fmt.Errorf("the identifier %q makes no URL: %w", assigned, err)
	}
	// Some servers decode an escaped slash before they look for the folder above, and
	// some take a backslash for one.
	segments := strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' || r == '\\' })
	switch {
	case u.Scheme != fixed.Scheme || u.Host != fixed.Host || u.User.String() != fixed.User.String():
		return "", fmt.Errorf("the identifier %q makes a URL elsewhere than the record_url %q: %s", assigned, template, built)
	case assigned == "" || slices.Contains(segments, "..") || slices.Contains(segments, "."):
		return "", fmt.Errorf("the identifier %q cannot stand in the record_url %q: it would lead out of its folder", assigned, template)
	case len(built) > event.MaxHref:
		return "", fmt.Errorf("the identifier, of %d bytes, makes of the record_url %q a URL of %d bytes; want at most %d", len(assigned), template, len(built), event.MaxHref)
	}
	return built, nil
}
