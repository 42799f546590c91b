package publish

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// Render writes one document. events are the set's events of it.Events, for a
// Change List, a subscription or an archive document; the last event of each
// record that lives at it.Events.Upto, for a Resource List (in mode reference of
// one record for each Loc) and a complete feed (of every record); the other kinds
// need none. The same *event.Event may come again with another value.
//
// A part of a snapshot cannot be rendered alone, since its border depends on
// the parts before it; see RenderParts.
//
// The error is resourcesync.ErrFull for a Resource List that does not fit into
// one document. After an error w holds a part of a document, which must not be
// published.
func Render(w io.Writer, base string, it *Item, events iter.Seq2[*event.Event, error]) error {
	switch it.Kind {
	case Robots:
		return renderRobots(w, base, it.sets)
	case ChangeList, ChangeListWindow:
		return renderChanges(w, base, it, events)
	case Notification:
		return renderNotification(w, base, it, events)
	case ResourceList:
		return renderResources(w, base, it, events)
	case Subscription, Archive, Complete:
		return renderFeed(w, base, it, events)
	}
	doc := smallDocument(base, it)
	if doc == nil {
		return fmt.Errorf("%s: a document of kind %d is not rendered alone", it.Path, it.Kind)
	}
	_, err := doc.WriteTo(w)
	return err
}

// renderRobots lists each set's Resource List (clause 6.3.4).
func renderRobots(w io.Writer, base string, sets []event.Set) error {
	var b strings.Builder
	b.WriteString("User-agent: *\nDisallow:\n")
	for _, s := range sets {
		fmt.Fprintf(&b, "Sitemap: %s\n", base+setPath(s.Name, "resourcelist.xml"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// smallDocument returns a document that needs no events; nil for other kinds.
func smallDocument(base string, it *Item) *resourcesync.Document {
	switch it.Kind {
	case SourceDescription:
		return describe(base, it)
	case CapabilityList:
		return capabilities(base, it)
	case ResourceListIndex:
		return resourceIndex(base, it)
	case ResourceDump, ChangeDump:
		return dumpDocument(base, it)
	case ResourceDumpArchive, ChangeDumpArchive:
		return dumpArchive(base, it)
	case ChangeListIndex:
		return changeIndex(base, it)
	case ChangeListArchive, ChangeListArchiveIndex, ChangeListArchivePart, ResourceListArchive:
		return archiveDocument(base, it)
	}
	return nil
}

// describe is a Source Description (clause 8).
func describe(base string, it *Item) *resourcesync.Document {
	about := base + "/"
	if it.Set.Name != "" {
		about = base + setPath(it.Set.Name, "")
	}
	doc := &resourcesync.Document{
		Capability: resourcesync.Description,
		Links:      []resourcesync.Link{{Rel: resourcesync.RelDescribedBy, Href: about}},
	}
	for _, s := range it.sets {
		doc.Entries = append(doc.Entries, resourcesync.Entry{
			Loc:      base + setPath(s.Name, "capabilitylist.xml"),
			Metadata: resourcesync.Metadata{Capability: resourcesync.CapabilityList},
			Links:    []resourcesync.Link{{Rel: resourcesync.RelDescribedBy, Href: base + setPath(s.Name, "")}},
		})
	}
	return doc
}

// capabilities is a Capability List (clause 9).
func capabilities(base string, it *Item) *resourcesync.Document {
	entry := func(name string, c resourcesync.Capability) resourcesync.Entry {
		return resourcesync.Entry{Loc: base + setPath(it.Set.Name, name), Metadata: resourcesync.Metadata{Capability: c}}
	}
	doc := &resourcesync.Document{
		Capability: resourcesync.CapabilityList,
		Links: []resourcesync.Link{
			{Rel: resourcesync.RelDescribedBy, Href: base + setPath(it.Set.Name, "")},
			{Rel: resourcesync.RelUp, Href: base + "/.well-known/resourcesync"},
		},
		Entries: []resourcesync.Entry{
			entry("resourcelist.xml", resourcesync.ResourceList),
			entry("changelist-index.xml", resourcesync.ChangeList),
		},
	}
	for _, c := range it.more {
		doc.Entries = append(doc.Entries, entry(string(c)+".xml", c))
	}
	if len(it.hubs) > 0 {
		channel := entry(notificationName, resourcesync.ChangeNotification)
		for _, hub := range it.hubs {
			channel.Links = append(channel.Links, resourcesync.Link{Rel: resourcesync.RelHub, Href: hub})
		}
		doc.Entries = append(doc.Entries, channel)
		doc.Links = append(doc.Links, hubLinks(base, it)...)
	}
	return doc
}

// changeIndex is a Change List Index (clause 12.2).
func changeIndex(base string, it *Item) *resourcesync.Document {
	return &resourcesync.Document{
		Capability: resourcesync.ChangeList,
		Index:      true,
		From:       datetime(it.From),
		Links: append([]resourcesync.Link{upLink(base, it.Set.Name),
			// The window cannot be in an index (12.2), nor in the Capability List,
			// which has one entry for each capability (9): so it is linked.
			{Rel: resourcesync.RelAlternate, Href: base + setPath(it.Set.Name, "changelist.xml")}}, hubLinks(base, it)...),
		Entries: changeListEntries(base, it),
	}
}

// resourceIndex is the index of a snapshot's parts (clause 10.2).
func resourceIndex(base string, it *Item) *resourcesync.Document {
	doc := &resourcesync.Document{
		Capability: resourcesync.ResourceList,
		Index:      true,
		At:         datetime(it.At),
		Links:      []resourcesync.Link{upLink(base, it.Set.Name)},
	}
	for n := 1; n <= it.parts; n++ {
		doc.Entries = append(doc.Entries, resourcesync.Entry{
			Loc:      base + partPath(it.Set.Name, it.snapshot, n),
			Metadata: resourcesync.Metadata{At: datetime(it.At)},
		})
	}
	return doc
}

// renderChanges writes a Change List (clause 12.1). Only a segment's own
// document is in the index.
func renderChanges(w io.Writer, base string, it *Item, events iter.Seq2[*event.Event, error]) error {
	head := &resourcesync.Document{
		Capability: resourcesync.ChangeList,
		From:       datetime(it.From),
		Links:      []resourcesync.Link{upLink(base, it.Set.Name)},
	}
	if it.Kind == ChangeList {
		head.Links = append(head.Links, indexLink(base, it.Set.Name, "changelist-index.xml"))
	}
	head.Links = append(head.Links, hubLinks(base, it)...)
	if it.Until != 0 {
		head.Until = datetime(it.Until)
	}
	encoder := translate.NewListEncoder(base, it.Set.Name, it.Set.Content)
	doc := resourcesync.NewWriter(w, head)
	for e, err := range events {
		if err != nil {
			return err
		}
		entries := encoder.ChangeEntries(e)
		for i := range entries {
			if err := doc.Entry(&entries[i]); err != nil {
				return fmt.Errorf("event %d: %w", e.Seq, err)
			}
		}
	}
	return finish(doc, it)
}

// renderResources writes a Resource List that is one document (clause 10.1).
func renderResources(w io.Writer, base string, it *Item, events iter.Seq2[*event.Event, error]) error {
	encoder := translate.NewListEncoder(base, it.Set.Name, it.Set.Content)
	doc := resourcesync.NewWriter(w, resourceHead(base, it))
	doc.MaxEntries, doc.MaxBytes = resourcesync.MaxEntries, resourcesync.MaxBytes
	for e, err := range events {
		if err != nil {
			return err
		}
		if err := doc.Entry(encoder.ResourceEntry(e)); err != nil {
			return fmt.Errorf("event %d: %w", e.Seq, err)
		}
	}
	return finish(doc, it)
}

func resourceHead(base string, it *Item) *resourcesync.Document {
	head := &resourcesync.Document{
		Capability: resourcesync.ResourceList,
		At:         datetime(it.At),
		Links:      []resourcesync.Link{upLink(base, it.Set.Name)},
	}
	if it.Kind == ResourceListPart {
		head.Links = append(head.Links, resourcesync.Link{Rel: resourcesync.RelIndex, Href: base + indexPath(it.Set.Name, it.snapshot)})
	}
	return head
}

// finish closes a list, and fails if entries are missing: a Destination would delete
// or miss those records.
func finish(doc interface {
	Entries() int
	Close() error
}, it *Item) error {
	if it.Entries >= 0 && doc.Entries() != it.Entries {
		return fmt.Errorf("%s: expected %d entries, read %d: the log may be damaged; run bridge verify", it.Path, it.Entries, doc.Entries())
	}
	return doc.Close()
}

// Part is one part of a Resource List that needs several.
type Part struct {
	Entries int   `json:"entries"`
	Length  int64 `json:"length"` // in bytes, not compressed
}

// Limits say when a part of a Resource List is full. The zero Limits are those
// of the specification (clause 7).
type Limits struct {
	Entries int
	Bytes   int64
}

// RenderParts writes a Resource List as parts, each as full as limits allow.
// events are as for Render; create gives the writer of the n-th part, from 1,
// which is closed when the part is whole. There is always one part, which may
// be empty. Where the parts end is a function of the events and limits.
func RenderParts(base string, set event.Set, at Snapshot, limits Limits, events iter.Seq2[*event.Event, error],
	create func(n int) (io.WriteCloser, error)) ([]Part, error) {
	if limits == (Limits{}) {
		limits = Limits{Entries: resourcesync.MaxEntries, Bytes: resourcesync.MaxBytes}
	}
	r := partsWriter{base: base, set: set, at: at, limits: limits, create: create}
	defer func() {
		if r.w != nil {
			r.w.Close() // the part is abandoned; the error that ended it is returned
		}
	}()
	encoder := translate.NewListEncoder(base, set.Name, set.Content)
	err := r.begin()
	for e, readErr := range events {
		if err == nil {
			err = readErr
		}
		if err != nil {
			break
		}
		entry := encoder.ResourceEntry(e)
		if err = r.doc.Entry(entry); errors.Is(err, resourcesync.ErrFull) {
			if err = r.end(); err == nil {
				err = r.begin()
			}
			if err == nil {
				err = r.doc.Entry(entry)
			}
		}
	}
	if err == nil {
		err = r.end()
	}
	return r.parts, err
}

type partsWriter struct {
	base   string
	set    event.Set
	at     Snapshot
	limits Limits
	create func(n int) (io.WriteCloser, error)
	parts  []Part
	w      io.WriteCloser
	doc    *resourcesync.Writer
}

func (r *partsWriter) begin() error {
	n := len(r.parts) + 1
	it := resourceListPart(r.set, r.at, n)
	w, err := r.create(n)
	if err != nil {
		return err
	}
	r.w = w
	r.doc = resourcesync.NewWriter(w, resourceHead(r.base, &it))
	r.doc.MaxEntries, r.doc.MaxBytes = r.limits.Entries, r.limits.Bytes
	return nil
}

func (r *partsWriter) end() error {
	if err := r.doc.Close(); err != nil {
		return err
	}
	w := r.w
	r.w = nil
	if err := w.Close(); err != nil {
		return err
	}
	r.parts = append(r.parts, Part{Entries: r.doc.Entries(), Length: r.doc.Size()})
	return nil
}

func upLink(base, set string) resourcesync.Link {
	return resourcesync.Link{Rel: resourcesync.RelUp, Href: base + setPath(set, "capabilitylist.xml")}
}

func indexLink(base, set, name string) resourcesync.Link {
	return resourcesync.Link{Rel: resourcesync.RelIndex, Href: base + setPath(set, name)}
}

func datetime(m event.Micros) resourcesync.Datetime { return resourcesync.Micros(m.Time()) }
