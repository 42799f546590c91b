package publish

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// The Resource List Archive names Resource Lists of the past: {capability}/{seq}.xml is the
// index of the state at a Seq, and {capability}/{seq}/{n}.xml are its parts. Which
// lists are kept is a function of the log and of the set's settings: the state at
// the end of the first segment that closed on each day of UTC, as many as the set
// keeps, for as long as it keeps them before the newest border.
//
// They are snapshots (snapshot.go), in the folder pastFolder. What a set no longer keeps is
// removed, but for the one that was dropped last: somebody may be reading it. What is
// missing is made again, with the same bytes, in the background.

// pastFolder is the folder in that of a set's snapshots.
const pastFolder = "past"

// keptLists returns the segments at whose ends a set keeps its Resource List, oldest
// first, and the newest of those before them, nil if there is none.
func keptLists(set event.Set, segments []event.Segment) (kept []event.Segment, dropped *event.Segment) {
	if !keepsLists(&set) {
		return nil, nil
	}
	closed := ChangeListSegments(set, segments)
	closed = closed[:max(len(closed)-1, 0)]
	for i := len(closed) - 1; i >= 0; i-- {
		s := &closed[i]
		if i > 0 && day(closed[i-1].Until) == day(s.Until) {
			continue
		}
		age := closed[len(closed)-1].Until - s.Until
		if set.KeepLists > 0 && len(kept) == set.KeepLists || set.KeepListsFor > 0 && age > set.KeepListsFor {
			dropped = s
			break
		}
		kept = append(kept, *s)
	}
	slices.Reverse(kept)
	return kept[max(len(kept)-resourcesync.MaxEntries, 0):], dropped
}

func keepsLists(set *event.Set) bool { return set.KeepLists != 0 || set.KeepListsFor != 0 }

// day counts the days of UTC.
func day(m event.Micros) int64 { return int64(m) / (24 * int64(time.Hour/time.Microsecond)) }

// keptList is the list that is kept of a segment's end.
func keptList(s *event.Segment) Snapshot { return Snapshot{Seq: s.Last, At: s.Until, past: true} }

// planResourceListArchive returns the archive, if it names anything.
func planResourceListArchive(set event.Set, segments []event.Segment) []Item {
	kept, _ := keptLists(set, segments)
	if len(kept) == 0 {
		return nil
	}
	return []Item{{Path: listArchivePath(set.Name, resourcesync.ResourceListArchive), Kind: ResourceListArchive, Set: set, segments: kept}}
}

// keptListEntries name the lists that are kept at the ends of segments.
func keptListEntries(base string, it *Item) []resourcesync.Entry {
	entries := make([]resourcesync.Entry, 0, len(it.segments))
	for i := range it.segments {
		s := &it.segments[i]
		entries = append(entries, resourcesync.Entry{Loc: base + indexPath(it.Set.Name, keptList(s)), LastMod: resourcesync.Seconds(s.Until.Time()),
			Metadata: resourcesync.Metadata{At: datetime(s.Until)}})
	}
	return entries
}

// planKept returns the kept lists, each an index and its parts.
func (p *Publisher) planKept(st *state, set event.Set, segments []event.Segment) (items []Item, err error) {
	kept, _ := keptLists(set, segments)
	for i := range kept {
		s := p.storedList(st, &kept[i])
		if s == nil {
			return nil, &NotReadyError{indexPath(set.Name, keptList(&kept[i])), snapshotWait, ""}
		}
		items = append(items, resourceListIndex(set, s.Snapshot))
		for n := 1; n <= s.Parts; n++ {
			items = append(items, resourceListPart(set, s.Snapshot, n))
		}
	}
	return items, nil
}

// keptDocument returns a kept list, or a part of one, by its "{seq}.xml" or
// "{seq}/{part}.xml".
func (p *Publisher) keptDocument(ctx context.Context, name, numbers string, gzip bool) (*Document, error) {
	set, segments, err := p.Segments(ctx, name)
	if err != nil {
		return nil, err
	}
	st, err := p.state(ctx, name)
	if err != nil {
		return nil, err
	}
	seqText, file, isPart := strings.Cut(numbers, "/")
	if !isPart {
		seqText, file = strings.TrimSuffix(numbers, ".xml"), "1.xml"
	}
	seq, n := event.Seq(number(seqText)), fileNumber(file, ".xml")
	kept, dropped := keptLists(set, segments)
	if dropped != nil {
		kept = append([]event.Segment{*dropped}, kept...)
	}
	i := slices.IndexFunc(kept, func(s event.Segment) bool { return s.Last == seq })
	if i < 0 || seq == 0 || n == 0 || !isPart && fileNumber(numbers, ".xml") == 0 {
		return nil, ErrNotFound
	}
	path := setPath(name, string(resourcesync.ResourceListArchive)+"/"+numbers)
	if err := requireComplete(&set, path); err != nil {
		return nil, err
	}
	s := p.storedList(st, &kept[i])
	switch {
	case s == nil:
		p.wake()
		return nil, &NotReadyError{path, snapshotWait, ""}
	case n > int64(len(s.Files)):
		return nil, ErrNotFound
	case !isPart:
		return p.document(ctx, resourceListIndex(st.fixed, s.Snapshot), gzip), nil
	}
	return p.storedPart(ctx, st, &st.past, s, int(n), gzip)
}

// storedList returns the files of the list that is kept of a segment's end, nil while
// there are none. Another process may have made them since the others were found.
func (p *Publisher) storedList(st *state, segment *event.Segment) *storedSnapshot {
	want := keptList(segment)
	if s := st.past.find(int64(want.Seq)); s != nil {
		return s
	}
	s, err := p.loadSnapshot(&st.past, st.fixed, int64(want.Seq))
	if err != nil || s == nil || s.At != want.At {
		return nil
	}
	st.past.add(s)
	return s
}

// KeepLists makes the lists that a set keeps and that are not there, the newest first,
// and removes those that it keeps no longer.
func (p *Publisher) KeepLists(ctx context.Context, name string) error {
	_, err := p.keepLists(ctx, name, resourcesync.MaxEntries)
	return err
}

// keepLists is KeepLists, but makes at most so many. more: others may be missing.
func (p *Publisher) keepLists(ctx context.Context, name string, most int) (more bool, err error) {
	st, err := p.state(ctx, name)
	if err != nil {
		return false, err
	}
	st.past.making.Lock()
	defer st.past.making.Unlock()
	set, segments, err := p.segments(ctx, st)
	if err != nil || set.Partial {
		return false, err
	}
	kept, dropped := keptLists(set, segments)
	if err := p.removeLists(&st.past, kept, dropped); err != nil {
		return false, err
	}
	for i := range slices.Backward(kept) {
		if most == 0 {
			return true, nil
		}
		made, err := p.makeList(ctx, st, set, &kept[i])
		if err != nil {
			return false, fmt.Errorf("keep the Resource List of set %s at %d: %w", name, kept[i].Last, err)
		}
		if made {
			most--
		}
	}
	return false, nil
}

// checkLists removes the lists that a set keeps no longer, and gets or makes one that is missing
// unless the disk is nearly full. For a while after a failure it does nothing. more: others may be
// missing.
func (p *Publisher) checkLists(ctx context.Context, again map[string]time.Time, set event.Set) (more bool, err error) {
	if p.opts.Now().Before(again[set.Name]) {
		return false, nil
	}
	defer func() {
		if err != nil {
			again[set.Name] = p.opts.Now().Add(retryAfter)
		}
	}()
	defer defect.Recover(&err)
	st, err := p.state(ctx, set.Name)
	if err != nil || set.Partial || !keepsLists(&set) && st.past.isEmpty() && (p.files == nil || st.past.isSettled()) {
		return false, err
	}
	if p.full() != nil {
		_, err := p.keepLists(ctx, set.Name, 0)
		return false, err
	}
	if p.settle(ctx, st, set, &st.past, 1) {
		return true, nil
	}
	return p.keepLists(ctx, set.Name, 1)
}

// makeList makes a kept list, unless it is there.
func (p *Publisher) makeList(ctx context.Context, st *state, set event.Set, segment *event.Segment) (made bool, err error) {
	at := keptList(segment)
	if s := p.storedList(st, segment); s != nil {
		if _, err := os.Stat(filepath.Join(s.Dir, manifestName)); err == nil && isWhole(s) {
			return false, nil
		}
		st.past.drop(func(other *storedSnapshot) bool { return other == s })
	}
	if err := p.full(); err != nil {
		return false, err
	}
	set.Last, set.LastObserved, set.Live = at.Seq, at.At, -1 // records alive then are not counted
	if _, err := p.makeSnapshot(ctx, &st.past, set, p.idOf(&st.past, set, at), func(dir string) (l manifest, err error) {
		l.Parts, err = p.writeParts(ctx, set, at, dir)
		return l, err
	}); err != nil {
		return false, err
	}
	p.logger.Info("Resource List kept", "set", set.Name, "seq", at.Seq, "at", at.At.Time())
	return true, nil
}

// drop forgets some snapshots.
func (se *series) drop(which func(*storedSnapshot) bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.kept = slices.DeleteFunc(slices.Clone(se.kept), which)
}

// isWhole reports whether all files of a snapshot are there.
func isWhole(s *storedSnapshot) bool {
	for name, f := range s.files() {
		if st, err := os.Stat(filepath.Join(s.Dir, name)); err != nil || st.Size() != f.length {
			return false
		}
	}
	return true
}

// removeLists removes all lists that are neither kept nor the one that was dropped last,
// and what a crash has left.
func (p *Publisher) removeLists(past *series, kept []event.Segment, dropped *event.Segment) error {
	entries, err := os.ReadDir(past.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	past.empty = len(entries) == 0
	stay := map[string]bool{}
	for i := range kept {
		stay[filepath.Base(past.folder(int64(kept[i].Last)))] = true
	}
	if dropped != nil {
		stay[filepath.Base(past.folder(int64(dropped.Last)))] = true
	}
	past.drop(func(s *storedSnapshot) bool { return !stay[filepath.Base(s.Dir)] })
	for _, e := range entries {
		n, err := strconv.ParseInt(e.Name(), 10, 64)
		switch {
		case stay[e.Name()]:
		case err == nil && strconv.FormatInt(n, 10) == e.Name():
			p.removeSnapshot(past, n)
		default:
			if err := p.disk.remove(filepath.Join(past.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// VerifyLists renders the kept lists that are there again and compares them.
func (p *Publisher) VerifyLists(ctx context.Context, name string) (checks []Check, err error) {
	st, err := p.state(ctx, name)
	if err != nil {
		return nil, err
	}
	set, segments, err := p.segments(ctx, st)
	if err != nil {
		return nil, err
	}
	kept, _ := keptLists(set, segments)
	for i := range kept {
		s := p.storedList(st, &kept[i])
		if s == nil {
			continue
		}
		of, err := p.verifySnapshot(ctx, st, s)
		if checks = append(checks, of...); err != nil {
			return checks, err
		}
	}
	return checks, nil
}
