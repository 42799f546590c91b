// Package event holds the types that the other packages of bridge share: what
// a Source reports about a record (an Observation), the change that the log derives
// from it (an Event), its position (a Seq) and how events are grouped (a Segment).
//
// It depends on no protocol, clock, file or network.
package event

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Seq is the position of an event in the log. It is strictly increasing over
// all sets of one log; the first event has Seq 1, and 0 means "before the
// first".
type Seq int64

// Kind is what happened to a record.
type Kind uint8

// The kinds of events. A rejected event is about a SIP submission that was refused; it
// has a Seq, belongs to no segment and is published nowhere.
const (
	Created Kind = iota + 1
	Updated
	Deleted
	Rejected
)

// String returns the word of the log and of ResourceSync's change attribute
// (ResourceSync 7).
func (k Kind) String() string {
	switch k {
	case Created:
		return "created"
	case Updated:
		return "updated"
	case Deleted:
		return "deleted"
	case Rejected:
		return "rejected"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Content is how a set treats the content of its records. It is fixed when the
// set is made.
type Content uint8

// The content modes.
const (
	// Mirror: representations are fetched, kept and served by us.
	Mirror Content = iota + 1
	// Redirect: our record URL redirects to the original.
	Redirect
	// Reference: loc is the upstream's own URI and we serve no records.
	Reference
)

// String returns the word of the configuration.
func (c Content) String() string {
	switch c {
	case Mirror:
		return "mirror"
	case Redirect:
		return "redirect"
	case Reference:
		return "reference"
	}
	return fmt.Sprintf("content(%d)", uint8(c))
}

// ParseContent is the inverse of Content.String. The empty string is Mirror,
// the default.
func ParseContent(s string) (Content, error) {
	switch s {
	case "", "mirror":
		return Mirror, nil
	case "redirect":
		return Redirect, nil
	case "reference":
		return Reference, nil
	}
	return 0, fmt.Errorf("content %q: want mirror, redirect or reference", s)
}

// Micros is a time of our own clock: microseconds since 1970-01-01T00:00:00Z.
// Observed times, borders and creation times are Micros. Within one set they
// are strictly increasing.
type Micros int64

// MicrosOf cuts t to the microsecond.
func MicrosOf(t time.Time) Micros { return Micros(t.UnixMicro()) }

// Time returns m as a time in UTC.
func (m Micros) Time() time.Time { return time.UnixMicro(int64(m)).UTC() }

// String returns m in UTC with exactly six digits of fraction, the form of a
// W3C Datetime in our documents: 2026-01-02T03:04:05.000001Z.
func (m Micros) String() string { return m.Time().Format("2006-01-02T15:04:05.000000Z") }

// Stamp is a time of a Source's clock, with nanoseconds, or unknown. The zero
// Stamp is unknown.
type Stamp struct {
	// since counts nanoseconds from the earliest time that has a stamp, and one more:
	// an observation has five stamps, so they are kept small.
	since uint64
}

// before1678 is one nanosecond before the earliest time that a stamp can be: so many
// before 1970.
const before1678 = 1 << 63

// StampOf returns the stamp of t. Times before 1678 do not fit and have the
// earliest stamp. Later ones than 2261, and the zero time, have none: ok is false
// for them and the stamp is unknown.
func StampOf(t time.Time) (s Stamp, ok bool) {
	switch y := t.UTC().Year(); {
	case t.IsZero(), y > 2261:
		return Stamp{}, false
	case y < 1678:
		t = time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return StampFromNanos(t.UnixNano()), true
}

// StampFromNanos returns the stamp of ns nanoseconds since 1970 in UTC. The smallest
// int64 gives an unknown stamp; no time of StampOf has that number.
func StampFromNanos(ns int64) Stamp { return Stamp{uint64(ns) + before1678} }

// Known reports whether the stamp is a time at all.
func (s Stamp) Known() bool { return s.since != 0 }

// Nanos returns nanoseconds since 1970 in UTC; 0 when unknown.
func (s Stamp) Nanos() int64 {
	if !s.Known() {
		return 0
	}
	return int64(s.since - before1678)
}

// Time returns the stamp in UTC; the zero time when unknown.
func (s Stamp) Time() time.Time {
	if !s.Known() {
		return time.Time{}
	}
	return time.Unix(0, s.Nanos()).UTC()
}

// GobEncode writes a stamp for GobDecode.
func (s Stamp) GobEncode() ([]byte, error) {
	if !s.Known() {
		return nil, nil
	}
	return binary.AppendVarint(nil, s.Nanos()), nil
}

// GobDecode reads what GobEncode has written.
func (s *Stamp) GobDecode(b []byte) error {
	*s = Stamp{}
	if len(b) == 0 {
		return nil
	}
	ns, n := binary.Varint(b)
	if n != len(b) {
		return errors.New("not a stamp")
	}
	*s = StampFromNanos(ns)
	return nil
}

// MarshalText returns String's form.
func (s Stamp) MarshalText() ([]byte, error) { return s.Append(nil), nil }

// UnmarshalText reads a time in the form of RFC 3339. What is none is unknown: nothing
// depends on a stamp that is read so.
func (s *Stamp) UnmarshalText(b []byte) error {
	*s = Stamp{}
	if t, err := time.Parse(time.RFC3339Nano, string(b)); err == nil {
		*s, _ = StampOf(t)
	}
	return nil
}

// Compare orders stamps; an unknown stamp is earlier than every known one.
func (s Stamp) Compare(o Stamp) int { return cmp.Compare(s.since, o.since) }

// Before reports whether s is earlier than o.
func (s Stamp) Before(o Stamp) bool { return s.Compare(o) < 0 }

// After reports whether s is later than o.
func (s Stamp) After(o Stamp) bool { return s.Compare(o) > 0 }

// Add moves a known stamp by d; an unknown one stays unknown.
func (s Stamp) Add(d time.Duration) Stamp {
	if s.Known() {
		return StampFromNanos(s.Nanos() + int64(d))
	}
	return s
}

// String returns RFC 3339 in UTC with as many digits as needed; "" when
// unknown.
func (s Stamp) String() string { return string(s.Append(nil)) }

// Append appends String's form to b without allocating.
func (s Stamp) Append(b []byte) []byte {
	if !s.Known() {
		return b
	}
	return s.Time().AppendFormat(b, "2006-01-02T15:04:05.999999999Z")
}

// NoLength is the Length of a Representation or Link whose length is unknown.
const NoLength int64 = -1

// Representation is one alternate link of a record: one of the formats in which
// the record can be had.
type Representation struct {
	// Href is where the Source serves it, absolute.
	Href string
	// Type is its media type as the Source stated it, or "" when unknown.
	Type string
	// Hreflang is the language that it is in (RFC 4287 4.2.7.4), Profile what
	// narrows its media type; "" when the Source states none.
	Hreflang, Profile string
	// Length is in bytes, NoLength when unknown.
	Length int64
	// Hash is a whitespace-delimited list of hashes in the form of
	// ResourceSync 7, "sha-256:" and hex; "" when unknown. In a mirror it is
	// the SHA-256 of the bytes that we keep, and nothing else.
	Hash string
	// Encoding is the content coding, "gzip", of the bytes that the Source's
	// Hash and Length are of; "" is none, as always of the bytes that we keep.
	Encoding string
	// Pri is its priority among the alternate links, as that of a Link.
	Pri int
	// Name is the last part of our own URL of it: {key}.{Name}. The log gives
	// it when the event is logged and keeps it for as long as the record has a
	// representation with this Href; observations leave it empty.
	Name string
}

// SHA256 returns the hex digits of the representation's SHA-256, or "".
func (r Representation) SHA256() string { return SHA256Of(r.Hash) }

// Link is a link to a related resource (ResourceSync 14; RFC 4287 4.2.7).
type Link struct {
	Rel      string `json:"rel,omitempty"` // "" for a via, which has a field of its own
	Href     string `json:"href,omitempty"`
	Type     string `json:"type,omitempty"`
	Length   int64  `json:"-"` // NoLength when unknown
	Hash     string `json:"hash,omitempty"`
	Modified Stamp  `json:"modified,omitzero"`
	// Pri is the priority among the links of one relation, 1 to 999,999, the lowest
	// first; 0 when the Source states none (ResourceSync 7).
	Pri int `json:"pri,omitempty"`
	// Record is the identifier of the record of the same set that a link to or
	// from a description may lead to; "" for other links.
	Record string `json:"record,omitempty"`
	// InSet: the set had that record when the event was logged. The log sets
	// it, and logs another event when it changes.
	InSet bool `json:"-"`
}

// Origin is where the observation behind an event came from.
type Origin struct {
	Protocol string // atom-pmh, resourcesync, oai-pmh, sip, feed, folder, csv, sitemap or set
	Source   string // URL of the Source as configured
	Document string // URL of the document that contained it
	// FeedID, FeedTitle and FeedUpdated are what atom:source carries (RFC 4287
	// 4.2.11); empty for other protocols.
	FeedID      string
	FeedTitle   string
	FeedUpdated Stamp
	// Feed is the other metadata of the feed; nil when there is none.
	Feed *Feed
	// SourceIdentifier is the identifier at the Source where it differs from
	// the record's (identity = "per-source"), and the source-identifier of a
	// rejected SIP submission.
	SourceIdentifier string
	// Reason of a rejected event, and of a deletion that somebody has decided
	// on: why a record was withdrawn. "" where none was given.
	Reason string
}

// Event is one thing that happened to one record, at one position of the log.
// It is never changed once it is logged.
type Event struct {
	Seq    Seq
	Set    string
	Record string // identifier, byte for byte
	Kind   Kind
	// Observed is when the log appended the event, by our clock.
	Observed Micros
	// Modified is when the record was last modified or deleted, as the Source
	// states; unknown when it does not.
	Modified Stamp
	// CopyModified is when the Source's copy was last modified, where that is
	// known and the original is elsewhere.
	CopyModified Stamp
	Title        string
	// Categories of a deletion are those that the record had.
	Categories []Category
	// Details is nil when there are none.
	Details *Details
	// Representations in the Source's order; none on deletions.
	Representations []Representation
	// Preferred is the index of the representation that the record's own URL
	// answers, chosen when the event was logged.
	Preferred int
	// Via names the original: the inherited via, else the preferred
	// representation at the Source. Present on all but rejected events.
	Via Link
	// Links that the Source stated besides alternates and via. A deletion has only
	// those that are published.
	Links  []Link
	Origin Origin

	// Loc is the upstream URI under which a set in mode reference publishes
	// the record. In the other modes it is how documents name the original where
	// that is the record's own, and the Source writes no URI; else "".
	Loc string
	// ContentBits are those of the Observation.
	ContentBits int64 `json:"-"`
	// Lists have a Loc once: of several records that share it the one that came
	// first owns it, until it moves or is deleted. The log then has another event
	// of the record that owns it next.

	// Unlisted: another record owns the Loc. Lists leave this one out.
	Unlisted bool
	// Arrived: an update with which the record comes to own its Loc: it moved
	// there, or another one has left it. Change Lists name the Loc as created.
	Arrived bool
	// History: the set served earlier versions when the event was logged, so lists
	// name this one as a memento (ResourceSync 14.6).
	History bool
	// Again: the record had an event before this one.
	Again bool `json:"-"`
	// Gone is the Loc that the record owned before this event and has moved away
	// from; Change Lists name it as deleted, before the event itself.
	Gone string
}

// Live reports whether the record exists after the event.
func (e *Event) Live() bool { return e.Kind == Created || e.Kind == Updated }

// Withdrawn reports whether the event is a deletion that somebody has decided on, and
// that no Source has reported.
func (e *Event) Withdrawn() bool { return e.Kind == Deleted && e.Origin.Reason != "" }

// Pref returns the preferred representation; ok is false when there is none.
func (e *Event) Pref() (r Representation, ok bool) {
	if e.Preferred < 0 || e.Preferred >= len(e.Representations) {
		return Representation{}, false
	}
	return e.Representations[e.Preferred], true
}

// Entries returns how many entries the event has in a Change List: one, two
// when a record in mode reference moved to another URI, none for a rejection or
// a record that is not listed.
func (e *Event) Entries() int {
	if e.Kind == Rejected {
		return 0
	}
	n := 0
	if e.Gone != "" {
		n++
	}
	if !e.Unlisted {
		n++
	}
	return n
}

// Range is the events of one set with After < Seq <= Upto.
type Range struct {
	After, Upto Seq
}

// Segment is a range of one set's events that is published as one Change List
// and one Atom archive document. Its borders are stored and never move. Each
// set always has exactly one open segment, the last.
type Segment struct {
	N int // 1, 2, …
	// From is the border at which it starts: the set's creation, or the border
	// of the segment before. Its events have From < Observed.
	From Micros
	// Until is its border, the Observed of its last event; 0 while it is open.
	Until Micros
	// First and Last are the Seq of its first and last event, 0 while it has
	// none.
	First, Last Seq
	// Events and Entries count its events and the entries they have in a
	// Change List; Weight is an upper bound of that list's bytes; in
	// mode reference that is half as much again.
	Events, Entries int
	Weight          int64
}

// Open reports whether the segment may still grow.
func (s Segment) Open() bool { return s.Until == 0 }

// Range returns the segment's events; of an empty one, the empty range.
func (s Segment) Range() Range {
	if s.Events == 0 {
		return Range{}
	}
	return Range{After: s.First - 1, Upto: s.Last}
}

// Set is a set of records that are republished together. The log stores all of its
// fields, so that every document can be rendered from them again.
type Set struct {
	Name string
	// Named is the name in identifiers that are made from the set's name, if it differs
	// from Name, as after a change of name.
	Named       string
	Title       string
	Description string
	Content     Content
	Created     Micros
	// Feed and Complete are the urn:uuid ids of the two published feeds. FirstFeed is the
	// id that the first of them had in the first epoch of the log, if it differs.
	Feed, Complete, FirstFeed string
	// Last and LastObserved belong to the set's last event that is in a
	// segment; Last is 0 and LastObserved is Created when there is none. After
	// the log has begun a new epoch LastObserved is Created again until the next
	// event.
	Last         Seq
	LastObserved Micros
	// Newest is Observed of the last event of any kind, Created when there is none.
	Newest Micros
	// Live counts the records that exist; Events all events, rejected ones
	// included.
	Live, Events int64
	// History: earlier versions of its records are served. Only sets in mode mirror
	// have one.
	History bool
	// Partial: one of its Sources was never walked completely, so the set may lack
	// records.
	Partial bool
	// KeepLists and KeepListsFor bound how many Resource Lists of the past are kept, and
	// for how long. If one is 0 only the other applies; if both are 0 none is kept.
	KeepLists    int
	KeepListsFor Micros
	// NoRobots: robots.txt does not name it. NoFeeds: it is not published as feeds.
	NoRobots, NoFeeds bool
	// Dumps: its contents are published in packages too. Only a set in mode Mirror has
	// any.
	Dumps bool
}

// IdentifierName returns the name in identifiers that are made from the set's name. It
// never changes.
func (s *Set) IdentifierName() string { return cmp.Or(s.Named, s.Name) }

// IdentifierFeed returns the id in identifiers that are made from that of the set's feed.
// It never changes.
func (s *Set) IdentifierFeed() string { return cmp.Or(s.FirstFeed, s.Feed) }
