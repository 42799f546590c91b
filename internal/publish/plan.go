// Package publish decides which documents exist and writes them. A request for a
// document, for example a Change List, passes these functions:
//
//   - [Publisher.Document] in document.go finds the range of the log that belongs to the
//     path. Opening the document renders it, unless the cache has it (cache.go).
//   - [Render] in render.go writes the bytes, from the events of that range. For each
//     event it calls
//   - [translate.ListEncoder.ChangeEntries], which makes entries of the event, and
//   - [resourcesync.Writer.Entry], which writes each as a url element.
//
// PlanSite, planSet and Render are pure: the first two list the documents of a log,
// and Render writes the bytes of one, all from values. A document depends only on the
// format (FormatVersion), the base URL, the set's stored settings and a range of the
// log.
//
// The Publisher does the input and output: it reads the log, keeps a cache that may be
// deleted at any time, and writes snapshots as files.
package publish

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// FormatVersion changes whenever the bytes of any document change for the same
// log: it is part of every entity tag and every cached name. So it also changes
// when the gzip library does.
const FormatVersion = 2

// Kind is the kind of a document.
type Kind uint8

// The kinds of documents.
const (
	Robots            Kind = iota + 1 // /robots.txt
	SourceDescription                 // of all sets, or of one
	CapabilityList
	ResourceList      // the whole list in one document
	ResourceListIndex // of a snapshot
	ResourceListPart  // of a snapshot
	ChangeListIndex
	ChangeList       // one segment
	ChangeListWindow // the open segment and what fits before it
	Subscription     // the open segment as a feed
	Archive          // a closed segment as a feed
	Complete         // all live records as a feed

	// Archives name earlier documents (archive.go).
	ChangeListArchive
	ChangeListArchiveIndex // of the parts of an archive that needs several
	ChangeListArchivePart
	ResourceListArchive

	// Dumps name packages of contents (dump.go).
	ResourceDump
	ChangeDump
	Package // of a dump, or the copy of its manifest
	ResourceDumpArchive
	ChangeDumpArchive

	Notification // the newest changes, for a hub (hub.go)
)

// Item is one document of a plan: its path, and the values that determine its bytes. (The
// items of a harvest, event.Item, are something else.)
type Item struct {
	// Path follows the base URL.
	Path string
	Kind Kind
	// Closed: it will never change again.
	Closed bool
	// Set is the set it belongs to; the zero Set for a document of all sets.
	Set event.Set
	// N is the number of a segment, or of a snapshot's part; from 1.
	N int
	// Events is the range that a Change List or feed publishes or, for a Resource List
	// and a complete feed, the range at whose end it shows the state.
	Events event.Range
	// Entries is the number of entries of its events, -1 when unknown. Render fails
	// when there are fewer.
	Entries int
	// From and Until are the borders of a Change List, its index or a feed; Until
	// is 0 for one that may grow.
	From, Until event.Micros
	// At is the moment a Resource List shows, or when a feed was updated. Of an open
	// Change List it is that of the set's last event: after a backup was restored,
	// another event may have the same Seq.
	At event.Micros
	// Next is the border of the segment after that of an archive document; 0
	// while that one is open, and the document lacks its link to it.
	Next event.Micros
	// First: it is a document of the set's first segment, and has none before it.
	First bool

	sets     []event.Set     // of a Source Description or robots.txt
	segments []event.Segment // of a Change List Index or an archive
	parts    int             // of a Resource List Index
	snapshot Snapshot        // of a Resource List Index or a part
	most     int64           // bytes of a complete feed, 0 for any number
	perPart  int             // entries of a full part of an archive, in its index
	packages []packageItem   // of a dump
	archived []Item          // dumps that an archive names
	hubs     []string        // that the document names (hub.go)
	// more are capabilities that a Capability List names besides the two that
	// every set has. The document of a capability is named after it.
	more []resourcesync.Capability
}

// Snapshot is the state of a set at a Seq, published as parts.
type Snapshot struct {
	Seq   event.Seq
	At    event.Micros // Observed of the last event in it
	Parts int
	past  bool // it is one of a series of kept Resource Lists
	// begins: nothing was logged in it since the log has lost something and begun a new epoch.
	begins bool
}

// snapshotOf is the state of a set after its event seq, which was observed at a time.
func snapshotOf(set *event.Set, seq event.Seq, at event.Micros) Snapshot {
	return Snapshot{Seq: seq, At: at, begins: seq != 0 && at == set.Created}
}

// name is what distinguishes it in paths. With the Seq alone one that begins an epoch would
// have those of one of the epoch before, which has another time.
func (s Snapshot) name() string {
	if s.begins {
		return fmt.Sprintf("%d-%d", s.Seq, s.At)
	}
	return strconv.FormatInt(int64(s.Seq), 10)
}

// seqOf is the Seq in a name, 0 if there is none.
func seqOf(name string) int64 {
	seq, _, _ := strings.Cut(name, "-")
	return number(seq)
}

// PlanSite returns the documents of all sets together.
func PlanSite(sets []event.Set) []Item {
	named := slices.DeleteFunc(slices.Clone(sets), func(s event.Set) bool { return s.NoRobots })
	return []Item{
		{Path: "/.well-known/resourcesync", Kind: SourceDescription, sets: sets},
		{Path: "/robots.txt", Kind: Robots, sets: named},
	}
}

// PlanHead returns those documents of a set that are not of one segment alone: they are
// few, however many segments there are. The parts of its Resource List are left out.
func PlanHead(set event.Set, segments []event.Segment) []Item {
	return planHead(set, segments, nil, resourcesync.MaxEntries)
}

// PlanChangeLists returns the Change Lists of some of the set's segments.
func PlanChangeLists(set event.Set, segments []event.Segment) (items []Item) {
	for _, s := range ChangeListSegments(set, segments) {
		items = append(items, changeList(set, s))
	}
	return items
}

// planSet returns the documents of one set: segments are all of its segments, and most is
// how many entries one document may have. snapshot is the one that its Resource List
// consists of, nil when the list fits into one document.
func planSet(set event.Set, segments []event.Segment, snapshot *Snapshot, most int) []Item {
	items := append(planHead(set, segments, snapshot, most), PlanChangeLists(set, segments)...)
	return append(items, planArchives(set, segments)...)
}

func planHead(set event.Set, segments []event.Segment, snapshot *Snapshot, most int) []Item {
	archives := listArchives(set, segments, most)
	items := []Item{setDescription(set), capabilityList(set, named(archives)...)}
	if snapshot == nil {
		items = append(items, resourceList(set))
	} else {
		items = append(items, resourceListIndex(set, *snapshot))
		for n := 1; n <= snapshot.Parts; n++ {
			items = append(items, resourceListPart(set, *snapshot, n))
		}
	}
	items = append(items, changeListIndex(set, segments, most), changeListWindow(set, segments))
	return append(append(items, archives...), planFeeds(set, segments)...)
}

func setPath(set, name string) string { return "/sets/" + set + "/" + name }

func setDescription(set event.Set) Item {
	return Item{Path: setPath(set.Name, ".well-known/resourcesync"), Kind: SourceDescription, Set: set,
		sets: []event.Set{set}}
}

// capabilityList names the documents of every set, and those of more capabilities.
func capabilityList(set event.Set, more ...resourcesync.Capability) Item {
	return Item{Path: setPath(set.Name, "capabilitylist.xml"), Kind: CapabilityList, Set: set, more: more}
}

func resourceList(set event.Set) Item {
	entries := int(set.Live)
	if set.Content == event.Reference {
		entries = -1 // records that share a loc are listed once
	}
	return Item{Path: setPath(set.Name, "resourcelist.xml"), Kind: ResourceList, Set: set,
		Events: event.Range{Upto: set.Last}, Entries: entries, At: set.LastObserved}
}

func resourceListIndex(set event.Set, s Snapshot) Item {
	return Item{Path: indexPath(set.Name, s), Kind: ResourceListIndex, Set: set, Closed: s.past,
		Events: event.Range{Upto: s.Seq}, At: s.At, parts: s.Parts, snapshot: s}
}

func resourceListPart(set event.Set, s Snapshot, n int) Item {
	return Item{Path: partPath(set.Name, s, n), Kind: ResourceListPart, Set: set, Closed: true,
		N: n, Events: event.Range{Upto: s.Seq}, Entries: -1, At: s.At, snapshot: s}
}

// indexPath is that of the index of a snapshot.
func indexPath(set string, s Snapshot) string {
	if s.past {
		return setPath(set, fmt.Sprintf("%s/%d.xml", resourcesync.ResourceListArchive, s.Seq))
	}
	return setPath(set, "resourcelist.xml")
}

func partPath(set string, s Snapshot, n int) string {
	folder := resourcesync.ResourceList
	if s.past {
		folder = resourcesync.ResourceListArchive
	}
	return setPath(set, fmt.Sprintf("%s/%s/%d.xml", folder, s.name(), n))
}

// ChangeListSegments returns the segments with Change Lists: those since the creation of the set,
// which is renewed when the log has lost something. Feeds have all segments, because
// the chain of a feed leads to every record.
func ChangeListSegments(set event.Set, segments []event.Segment) []event.Segment {
	i := sort.Search(len(segments), func(i int) bool { return segments[i].From >= set.Created })
	return segments[i:]
}

// changeListIndex names the newest Change Lists, at most so many, and states its from: an index
// of indexes is not allowed. The archive names those before them.
func changeListIndex(set event.Set, segments []event.Segment, most int) Item {
	archived, indexed := splitChanges(set, segments, most)
	it := Item{Path: setPath(set.Name, "changelist-index.xml"), Kind: ChangeListIndex, Set: set, From: set.Created, segments: indexed}
	if len(archived) > 0 {
		it.From = indexed[0].From
	}
	return it
}

func changeListPath(set string, n int) string {
	return fmt.Sprintf("/sets/%s/changelist/%d.xml", set, n)
}

func changeList(set event.Set, s event.Segment) Item {
	it := Item{Path: changeListPath(set.Name, s.N), Kind: ChangeList, Set: set, Closed: !s.Open(),
		N: s.N, Events: s.Range(), Entries: s.Entries, From: s.From, Until: s.Until}
	if !it.Closed {
		it.At = set.LastObserved
	}
	return it
}

// headRoom is the number of bytes for the head and the end of a list.
const headRoom = 4 << 10

// maxBytes returns how many bytes the Change List of a segment has at most. Its weight has the URI
// of a record in mode reference once, and the list twice.
func maxBytes(set *event.Set, s *event.Segment) int64 {
	if set.Content == event.Reference {
		return s.Weight + s.Weight/2
	}
	return s.Weight
}

// changeListWindow returns the Change List of the whole open segment and as many whole
// closed ones before it as fit into one document.
func changeListWindow(set event.Set, segments []event.Segment) Item {
	it := Item{Path: setPath(set.Name, "changelist.xml"), Kind: ChangeListWindow, Set: set, From: set.Created, At: set.LastObserved}
	bytes := int64(headRoom)
	segments = ChangeListSegments(set, segments)
	for i := len(segments) - 1; i >= 0; i-- {
		s := &segments[i]
		it.Entries += s.Entries
		bytes += maxBytes(&set, s)
		if !s.Open() && (it.Entries > resourcesync.MaxEntries || bytes > resourcesync.MaxBytes) {
			it.Entries -= s.Entries
			break
		}
		it.From, it.N = s.From, s.N
		if r := s.Range(); s.Events > 0 {
			it.Events.After = r.After
			it.Events.Upto = max(it.Events.Upto, r.Upto)
		}
	}
	return it
}

// Tag returns a strong entity tag for the document under a base URL, without
// rendering it: a hash of all that decides its bytes. What differs in a byte
// differs in its tag, also between two logs with sets of the same name.
func (it *Item) Tag(base string, gzip bool) string { return `"` + it.key(base, gzip) + `"` }

// key is the tag without its quotes; it also names the document in the cache.
func (it *Item) key(base string, gzip bool) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %q %q %d %d %d %d %d %d %d %d %d %d\n", FormatVersion, it.Kind, base, it.Path,
		it.Set.Content, it.Set.Created, it.N, it.Events.After, it.Events.Upto, it.From, it.Until, it.At,
		it.parts, len(it.segments))
	// A set that was made anew, or goes on after a backup was restored, has other ids.
	fmt.Fprintf(h, "%q\n", it.Set.Feed)
	for _, s := range it.sets {
		fmt.Fprintf(h, "%q\n", s.Name)
	}
	if len(it.more) > 0 {
		fmt.Fprintf(h, "%q\n", it.more)
	}
	for i := range it.archived {
		fmt.Fprintf(h, "%q %d %d %d\n", it.archived[i].Path, it.archived[i].From, it.archived[i].Until, it.archived[i].At)
	}
	for i := range it.packages {
		fmt.Fprintf(h, "%q %q\n", it.packages[i].SHA256, it.packages[i].ContentsSHA256)
	}
	// Borders never move, so the open segment stands for all before it.
	if n := len(it.segments); n > 0 {
		fmt.Fprintf(h, "%d %d\n", it.segments[n-1].N, it.segments[n-1].From)
	}
	if len(it.hubs) > 0 {
		fmt.Fprintf(h, "%q\n", it.hubs)
	}
	if it.isFeed() {
		fmt.Fprintf(h, "%q %q %d\n", it.feedID(), it.feedTitle(), it.Next)
		if it.Set.FirstFeed != "" { // ids of entries are made of it
			fmt.Fprintf(h, "%q\n", it.Set.FirstFeed)
		}
	}
	key := hex.EncodeToString(h.Sum(nil)[:16])
	if gzip {
		key += "-gz"
	}
	return key
}
