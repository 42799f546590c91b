package publish

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// Archives name documents of a set that its other documents no longer name, the oldest
// first (the Archives specification of ResourceSync). An archive is a urlset at
// {capability}.xml. One that needs more entries than a document may have is an index
// there, and its parts are {capability}/{k}.xml. Which part names a segment depends on
// the number of the segment alone, so a full part never changes. An archive without
// entries does not exist, and the Capability List does not name it.
//
// The Change List Archive names each closed Change List that the index has no room for: every
// Change List stands in one of the two. The index drops a list in the moment in which the
// archive has it, so a client that reads the index first misses none.

// splitChanges divides the segments with Change Lists into those that the archive names
// and the newest, at most so many, which the index names.
func splitChanges(set event.Set, segments []event.Segment, most int) (archived, indexed []event.Segment) {
	segments = ChangeListSegments(set, segments)
	older := max(len(segments)-most, 0)
	return segments[:older], segments[older:]
}

// planChangeListArchive returns the documents of the Change List Archive: none, one, or
// an index and its parts.
func planChangeListArchive(set event.Set, segments []event.Segment, most int) []Item {
	archived, _ := splitChanges(set, segments, most)
	it := Item{Path: listArchivePath(set.Name, resourcesync.ChangeListArchive), Kind: ChangeListArchive, Set: set, segments: archived}
	switch {
	case len(archived) == 0:
		return nil
	case len(archived) <= most:
		return []Item{it}
	}
	it.Kind, it.perPart = ChangeListArchiveIndex, most
	return append([]Item{it}, archiveParts(&it)...)
}

// archiveParts returns the parts of an archive with an index. Part k names the segments
// with the numbers up to k times perPart; the last one may grow.
func archiveParts(index *Item) (parts []Item) {
	for left := index.segments; len(left) > 0; {
		k := (left[0].N-1)/index.perPart + 1
		last := k * index.perPart
		n := min(last-left[0].N+1, len(left))
		part := Item{Path: listArchivePartPath(index.Set.Name, index.Kind.archive(), k), Kind: ChangeListArchivePart, Set: index.Set,
			N: k, From: left[0].From, segments: left[:n]}
		if end := left[n-1]; end.N == last {
			part.Closed, part.Until = true, end.Until
		}
		parts, left = append(parts, part), left[n:]
	}
	return parts
}

// listArchives returns the documents of all archives.
func listArchives(set event.Set, segments []event.Segment, most int) []Item {
	return append(planResourceListArchive(set, segments), planChangeListArchive(set, segments, most)...)
}

// archive returns the capability of an archive's documents, "" of any other kind.
func (k Kind) archive() resourcesync.Capability {
	switch k {
	case ChangeListArchive, ChangeListArchiveIndex, ChangeListArchivePart:
		return resourcesync.ChangeListArchive
	case ResourceListArchive:
		return resourcesync.ResourceListArchive
	case ResourceDumpArchive:
		return resourcesync.ResourceDumpArchive
	case ChangeDumpArchive:
		return resourcesync.ChangeDumpArchive
	}
	return ""
}

// named returns the capabilities that a Capability List names because of some archives.
func named(archives []Item) (more []resourcesync.Capability) {
	for _, it := range archives {
		if c := it.Kind.archive(); it.N == 0 { // else it is a part
			more = append(more, c)
		}
	}
	return more
}

func listArchivePath(set string, c resourcesync.Capability) string {
	return setPath(set, string(c)+".xml")
}

func listArchivePartPath(set string, c resourcesync.Capability, k int) string {
	return setPath(set, fmt.Sprintf("%s/%d.xml", c, k))
}

func find(items []Item, path string) (Item, error) {
	for i := range items {
		if items[i].Path == path {
			return items[i], nil
		}
	}
	return Item{}, ErrNotFound
}

// archiveDocument is an archive, its index, or a part of it.
func archiveDocument(base string, it *Item) *resourcesync.Document {
	c := it.Kind.archive()
	doc := &resourcesync.Document{Capability: c, Links: []resourcesync.Link{upLink(base, it.Set.Name)}}
	if it.Kind == ChangeListArchiveIndex {
		doc.Index = true
		for _, part := range archiveParts(it) {
			doc.Entries = append(doc.Entries, intervalEntry(base+part.Path, part.From, part.Until))
		}
		return doc
	}
	if it.N > 0 {
		doc.Links = append(doc.Links, indexLink(base, it.Set.Name, string(c)+".xml"))
	}
	if it.Kind == ResourceListArchive {
		doc.Entries = keptListEntries(base, it)
	} else {
		doc.Entries = changeListEntries(base, it)
	}
	return doc
}

// changeListEntries name the Change Lists of segments.
func changeListEntries(base string, it *Item) []resourcesync.Entry {
	entries := make([]resourcesync.Entry, 0, len(it.segments))
	for _, s := range it.segments {
		entries = append(entries, intervalEntry(base+changeListPath(it.Set.Name, s.N), s.From, s.Until))
	}
	return entries
}

// intervalEntry names a document that covers an interval; until is 0 for one that may
// grow.
func intervalEntry(loc string, from, until event.Micros) resourcesync.Entry {
	e := resourcesync.Entry{Loc: loc, Metadata: resourcesync.Metadata{From: datetime(from)}}
	if until != 0 {
		e.Metadata.Until = datetime(until)
		e.LastMod = resourcesync.Seconds(until.Time())
	}
	return e
}

// VerifyArchives renders the full parts of the set's archives again and compares them with the
// cached copies.
func (p *Publisher) VerifyArchives(ctx context.Context, set string) (checks []Check, err error) {
	st, err := p.state(ctx, set)
	if err != nil {
		return nil, err
	}
	_, segments, err := p.segments(ctx, st)
	if err != nil {
		return nil, err
	}
	for _, it := range planChangeListArchive(st.fixed, segments, p.limits.Entries) {
		if !it.Closed {
			continue
		}
		c, err := p.verify(ctx, it)
		if err != nil {
			return checks, err
		}
		checks = append(checks, c)
	}
	return checks, nil
}
