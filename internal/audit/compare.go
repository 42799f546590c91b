package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// Kind is what is wrong with a record.
type Kind string

// The kinds of differences.
const (
	// Missing: the Source has the record, and the log has never had it.
	Missing Kind = "missing"
	// Extra: the record is here, and the Source does not name it.
	Extra Kind = "extra"
	// DeletedThere: the record is here, and was deleted according to the Source.
	DeletedThere Kind = "deleted-there"
	// DeletedHere: the Source has the record, and it is deleted here.
	DeletedHere Kind = "deleted-here"
	// Stale: the Source has modified the record since.
	Stale Kind = "stale"
	// Hash, Length and Type: a representation is not what the Source states.
	Hash   Kind = "hash"
	Length Kind = "length"
	Type   Kind = "type"
	// Representations: the record has a representation here or there alone.
	Representations Kind = "representations"
	// Metadata: title, categories, links, original, or the language or profile of a
	// representation are not what the Source states.
	Metadata Kind = "metadata"
	// ContentMissing and ContentDamaged: the content is not in the store, or its bytes do
	// not have its hash.
	ContentMissing Kind = "content-missing"
	ContentDamaged Kind = "content-damaged"
	// Published: the answer at our URL of the record is not what its entry in our lists states.
	Published Kind = "published"
	// Original: the original, to which the via of the record leads, has other bytes.
	Original Kind = "original"
	// Pending: the Source has the record, and it waits for its content.
	Pending Kind = "pending"
	// Held: the record is here, is not at the Source, and its deletion is held.
	Held Kind = "held"
	// Quarantined: the present state of the record at the Source cannot be read.
	Quarantined Kind = "quarantined"
)

// Finding is one difference between a record here and its Source, its original or our own
// documents.
type Finding struct {
	Set    string `json:"set"`
	Source string `json:"source"` // its URL
	Record string `json:"record"` // its identifier
	Kind   Kind   `json:"kind"`
	// URL is that of the representation or the original that it is about, "" for others.
	URL      string `json:"url,omitempty"`
	Found    string `json:"found"`    // here
	Expected string `json:"expected"` // at the Source, or at the original
	// Repair is "done", or why it is not; "" where no repair was asked for.
	Repair string `json:"repair,omitempty"`
}

// Done is Finding.Repair of what was repaired.
const Done = "done"

// compared is one record that is here and at its Source.
type compared struct {
	kind        string // of the Source
	content     event.Content
	here, there *eventlog.SourceRecord
	found       []Finding
}

func (c *compared) add(kind Kind, url, found, expected string) {
	c.found = append(c.found, Finding{Kind: kind, URL: url, Found: found, Expected: expected})
}

// compare adds how the record differs from its state at the Source. A version that the Source
// has modified since is one difference, whatever else follows from it.
func (c *compared) compare() {
	here, there := &c.here.Observation, &c.there.Observation
	if here.Claim != there.Claim && there.Modified.After(here.Modified) {
		found := "modified " + cmp.Or(here.Modified.String(), "at an unknown time")
		if c.here.Pending != "" {
			found += "; a newer version waits: " + c.here.Pending
		}
		c.add(Stale, "", found, "modified "+there.Modified.String())
		return
	}
	c.representations()
	if here.Title != there.Title {
		c.add(Metadata, "", "title "+quote(here.Title), "title "+quote(there.Title))
	}
	if event.Original(here.Via.Href) != event.Original(there.Via.Href) {
		c.add(Metadata, "", "original "+cmp.Or(here.Via.Href, "none"), "original "+cmp.Or(there.Via.Href, "none"))
	}
	if c.content == event.Reference && event.URI(here.Loc) != event.URI(there.Loc) { // one that was logged before may stand as the Source writes it
		c.add(Metadata, "", "listed as "+cmp.Or(here.Loc, "none"), "listed as "+cmp.Or(there.Loc, "none"))
	}
	if a, b := categories(here), categories(there); a != b {
		c.add(Metadata, "", "categories "+cmp.Or(a, "none"), "categories "+cmp.Or(b, "none"))
	}
	if a, b := links(here, c.content), links(there, c.content); a != b {
		c.add(Metadata, "", "links "+cmp.Or(a, "none"), "links "+cmp.Or(b, "none"))
	}
}

// representations compares what the record has with what the Source states, by their
// URLs at the Source.
func (c *compared) representations() {
	here, there := c.here.Observation.Representations, c.there.Observation.Representations
	at := func(reps []event.Representation, href string) int {
		if c.content == event.Reference { // one that was logged before may stand as the Source writes it
			return slices.IndexFunc(reps, func(r event.Representation) bool { return event.URI(r.Href) == event.URI(href) })
		}
		return slices.IndexFunc(reps, func(r event.Representation) bool { return r.Href == href })
	}
	for i := range there {
		if n := at(here, there[i].Href); n >= 0 {
			c.representation(&here[n], &there[i])
			continue
		}
		if i > 0 && c.kind == harvest.OAIPMH && c.here.Pending == "" {
			continue // only a request shows whether a record has a further format
		}
		found := "none"
		if c.here.Pending != "" {
			found = "pending: " + c.here.Pending
		}
		c.add(Representations, there[i].Href, found, "a representation of type "+cmp.Or(there[i].Type, "unknown"))
	}
	for i := range here {
		if at(there, here[i].Href) < 0 {
			c.add(Representations, here[i].Href, "a representation of type "+cmp.Or(here[i].Type, "unknown"), "none")
		}
	}
}

// representation compares one representation. In a mirror ours has the hash and length of
// the bytes that were fetched; elsewhere it has what the Source stated. What a Source
// does not state cannot differ. A length is a hint but in ResourceSync (RFC 4287
// 4.2.7.6), and so is a type in a legacy feed.
func (c *compared) representation(here, there *event.Representation) {
	mirror := c.content == event.Mirror
	if here.Hreflang != there.Hreflang || here.Profile != there.Profile {
		c.add(Metadata, there.Href, languageAndProfile(here), languageAndProfile(there))
	}
	if there.Type != "" && here.Type != there.Type && (!mirror || c.kind != harvest.Feed) {
		c.add(Type, there.Href, here.Type, there.Type)
	}
	if mirror && there.Encoding != "" {
		return // hash and length are of other bytes, and both sides were compared when these were fetched
	}
	if stated := there.SHA256(); mirror && stated != "" && stated != here.SHA256() || !mirror && here.Hash != there.Hash {
		c.add(Hash, there.Href, cmp.Or(here.Hash, "none"), cmp.Or(there.Hash, "none"))
	}
	if here.Length != there.Length && (!mirror || c.kind == harvest.ResourceSync && there.Length >= 0) {
		c.add(Length, there.Href, bytesText(here.Length), bytesText(there.Length))
	}
}

func languageAndProfile(r *event.Representation) string {
	return strings.TrimSpace("language " + cmp.Or(r.Hreflang, "none") + ", profile " + cmp.Or(r.Profile, "none"))
}

func bytesText(n int64) string {
	if n < 0 {
		return "no length"
	}
	return fmt.Sprintf("%d bytes", n)
}

func quote(text string) string { return fmt.Sprintf("%q", text) }

// categories returns the categories of a record as a text that does not depend on their
// order, nor on how often each is there.
func categories(o *event.Observation) string {
	var all []string
	for _, c := range o.Categories {
		all = append(all, strings.TrimSpace(c.Scheme+" "+c.Term+" "+c.Label))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// links returns the links of a record that may be published in the same way. Whether the
// set has their targets depends on its other Sources too.
func links(o *event.Observation, content event.Content) string {
	var all []string
	for i := range o.Links {
		switch l := &o.Links[i]; {
		case l.Describes() && l.Record != "":
			all = append(all, l.Rel+" "+l.Record)
		case !l.Describes() && l.Published(content):
			all = append(all, l.Rel+" "+event.URI(l.Href)) // one that was logged before may stand as the Source writes it
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
