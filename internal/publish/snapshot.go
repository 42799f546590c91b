package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// SnapshotSeqOf returns the Seq whose state the Resource List of a set shows: the set's last one
// where the list is made on request, else that of the current snapshot, 0 when there is none
// yet. It looks for snapshots only where there may be one.
func (p *Publisher) SnapshotSeqOf(ctx context.Context, set *event.Set) (event.Seq, error) {
	p.mu.Lock()
	known := p.states[set.Name] != nil
	p.mu.Unlock()
	if !known && set.Live <= int64(p.limits.Entries) {
		if _, err := os.Stat(p.setDir(set.Name)); errors.Is(err, fs.ErrNotExist) {
			return set.Last, nil
		}
	}
	st, err := p.state(ctx, set.Name)
	if err != nil {
		return 0, err
	}
	if p.isOneDocument(st, *set) {
		return set.Last, nil
	}
	if current := st.current(); current != nil {
		return current.Seq, nil
	}
	return 0, nil
}

// Snapshot makes a snapshot of the set's state as it is now, in one pass over
// the log and in memory that does not grow with it, and returns when it is
// durable and published. If there is one of that state already, it does
// nothing. An error leaves the current snapshot as it was. What an earlier process
// or another base URL has left among the set's snapshots is removed first.
//
// The order of steps makes this safe: parts, list and folder are durable before the
// rename; the rename publishes all files or none, and is durable before the snapshot
// is announced; only then are older snapshots removed (Retention). A failed step
// leaves a folder without the name of a snapshot, or a whole snapshot that the next
// call finds and uses.
func (p *Publisher) Snapshot(ctx context.Context, set string) error {
	st, err := p.state(ctx, set)
	if err != nil {
		return err
	}
	p.cleanup(&st.series)
	st.making.Lock()
	defer st.making.Unlock()
	s, err := p.set(ctx, set)
	if err != nil {
		return err
	}
	at := snapshotOf(&s, s.Last, s.LastObserved)
	if current := st.current(); current != nil && current.Seq == at.Seq {
		return nil
	}
	id := p.idOf(&st.series, s, at)
	made, err := p.makeSnapshot(ctx, &st.series, s, id, func(dir string) (l manifest, err error) {
		l.Parts, err = p.writeParts(ctx, s, at, dir)
		return l, err
	})
	if err != nil {
		return fmt.Errorf("snapshot of set %s at %d: %w", set, at.Seq, err)
	}
	st.noteSize(made)
	return nil
}

// noteSize notes that the Resource List fits into one document again, if its newest snapshot
// does; if not, the next request finds out.
func (st *state) noteSize(made *storedSnapshot) {
	if made.Parts == 1 {
		st.mu.Lock()
		st.tooLarge = false
		st.mu.Unlock()
	}
}

// makeSnapshot writes a snapshot of a series unless it is there, makes it the current
// one, and removes those that are too old. write writes the files into a folder.
// series.making is held.
//
// Other nodes get it from the bucket (files.go), so it is put there before clients learn of
// it here. If that fails, or takes longer than uploadWait, it is published all the same, and put
// there later: a slow bucket must not hold up the Resource Lists of all sets.
func (p *Publisher) makeSnapshot(ctx context.Context, se *series, set event.Set, id snapshotID, write func(dir string) (manifest, error)) (*storedSnapshot, error) {
	se.empty = false
	final := se.folder(id.number())
	made, err := p.loadSnapshot(se, set, id.number())
	if err != nil || made == nil || made.At != id.At {
		if err := p.writeSnapshot(id, final, write); err != nil {
			return nil, err
		}
		switch made, err = p.loadSnapshot(se, set, id.number()); {
		case err != nil:
			return nil, err
		case made == nil:
			return nil, fmt.Errorf("%s is not what was written", final)
		}
		if err := made.noteAll(); err != nil {
			return nil, err
		}
	}
	if err := p.disk.syncDir(se.dir); err != nil {
		return nil, err
	}
	limited, cancel := ctx, context.CancelFunc(func() {})
	if se.dump == "" { // dumps are gigabytes, and hold up dumps alone
		limited, cancel = context.WithTimeout(ctx, p.uploadWait)
	}
	defer cancel()
	if err := p.upload(limited, se, made); err != nil && !errors.Is(err, errBucket) && ctx.Err() == nil {
		p.logger.Warn("a snapshot could not be put into the bucket; it is tried again", "folder", final, "error", err)
	}
	se.add(made)
	p.prune(se)
	if p.files != nil {
		wakeUp(p.files.wakeup)
	}
	return made, nil
}

// add puts a snapshot among the others, the newest first. It replaces one of the same
// number.
func (se *series) add(made *storedSnapshot) {
	se.mu.Lock()
	defer se.mu.Unlock()
	i := slices.IndexFunc(se.kept, func(s *storedSnapshot) bool { return s.number() <= made.number() })
	if i < 0 {
		i = len(se.kept)
	}
	rest := se.kept[i:]
	if len(rest) > 0 && rest[0].number() == made.number() {
		rest = rest[1:]
	}
	se.kept = slices.Concat(se.kept[:i], []*storedSnapshot{made}, rest)
}

// writeSnapshot writes the folder final, and replaces an unfinished one there.
func (p *Publisher) writeSnapshot(id snapshotID, final string, write func(dir string) (manifest, error)) error {
	tmp := filepath.Join(filepath.Dir(final), newPrefix+filepath.Base(final))
	if err := p.disk.remove(tmp); err != nil {
		return err
	}
	if err := p.disk.mkdir(tmp); err != nil {
		return err
	}
	for dir := filepath.Dir(filepath.Dir(final)); len(dir) >= len(p.opts.SnapshotDir); dir = filepath.Dir(dir) {
		if err := p.disk.syncDir(dir); err != nil {
			return err
		}
	}
	l, err := write(tmp)
	if err == nil {
		l.snapshotID = id
		err = p.writeManifest(l, tmp)
	}
	if err == nil {
		err = p.disk.syncDir(tmp)
	}
	if err == nil {
		err = p.disk.remove(final)
	}
	if err == nil {
		err = p.disk.rename(tmp, final)
	}
	if err != nil {
		// It frees the disk at once; if it fails, the next attempt or start does it.
		_ = p.disk.remove(tmp)
	}
	return err
}

func (p *Publisher) writeManifest(l manifest, dir string) error {
	return p.disk.writeFile(filepath.Join(dir, manifestName), l.encode(), true)
}

func (l *manifest) encode() []byte {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		panic(err) // it has nothing that could fail
	}
	return append(data, '\n')
}

// writeParts writes the parts of the state at a Seq and makes them durable.
func (p *Publisher) writeParts(ctx context.Context, set event.Set, at Snapshot, dir string) ([]storedFile, error) {
	it := resourceList(set) // its events and their number; the parts have all of them
	var files []storedFile
	create := func(n int) (io.WriteCloser, error) {
		f, err := p.disk.create(filepath.Join(dir, fmt.Sprintf(partPattern, n)))
		if err != nil {
			return nil, err
		}
		pf := &partFile{Compressor: NewCompressor(), file: f, sum: NewHashWriter(f),
			closed: func(s sum) { files = append(files, storedFile{Gzip: s.length, SHA256: s.sha256}) }}
		pf.Begin(pf.sum)
		return pf, nil
	}
	parts, err := RenderParts(p.base, set, at, p.limits, p.events(ctx, &it), create)
	if err != nil {
		return nil, err
	}
	entries := 0
	for i := range files {
		files[i].Part = parts[i]
		entries += parts[i].Entries
	}
	if it.Entries >= 0 && entries != it.Entries {
		return nil, fmt.Errorf("expected %d records, read %d: the log may be damaged; run bridge verify", it.Entries, entries)
	}
	return files, nil
}

// partFile compresses, hashes and writes a part; Close makes it durable.
type partFile struct {
	*Compressor
	file   *file
	sum    *HashWriter
	closed func(sum)
}

func (f *partFile) Close() error {
	defer f.file.abandon()
	if err := f.Compressor.Close(); err != nil {
		return err
	}
	if err := f.file.finish(); err != nil {
		return err
	}
	f.closed(f.sum.sum())
	return nil
}

// A snapshot is a folder {SnapshotDir}/{set}/{seq} with the compressed parts and
// a list of them, manifestName. The folder gets its name when all in it is durable,
// in one rename, so its parts and the index that names them appear together.
// The highest Seq is the current snapshot. Those before it stay for a while, for
// clients that are reading their parts (Retention).
//
// Only the compressed form is kept: it is a sixth of the bytes to make durable.
// The other form is unpacked into the cache when it is requested.
const (
	manifestName = "snapshot.json"
	newPrefix    = ".new-"
	partPattern  = "%d.xml.gz"
	// Of a dump: a package and the copy of its manifest.
	packagePattern  = "%d.zip"
	contentsPattern = "%d.xml"
)

// manifest describes a snapshot and its parts, as the file manifestName has it. A
// Resource List has Parts, a dump has Packages.
type manifest struct {
	snapshotID
	Parts    []storedFile `json:"parts,omitempty"`
	Packages []packedPart `json:"packages,omitempty"`
}

// snapshotID is equal for snapshots with the same bytes.
type snapshotID struct {
	Format  int          `json:"format"`
	Base    string       `json:"base"`
	Set     string       `json:"set"`
	Content string       `json:"content"`
	Created event.Micros `json:"created"`
	Seq     event.Seq    `json:"seq"`
	At      event.Micros `json:"at"`
	// Dump is what kind of dump it is, "" of a Resource List; Segment the number of
	// that of which a Change Dump has the changes.
	Dump    resourcesync.Capability `json:"dump,omitempty"`
	Segment int                     `json:"segment,omitempty"`
}

// number names a snapshot in its series.
func (id *snapshotID) number() int64 {
	if id.Segment != 0 {
		return int64(id.Segment)
	}
	return int64(id.Seq)
}

// series is the snapshots of one kind of a set, in a folder of their own.
type series struct {
	set    string
	dir    string
	dump   resourcesync.Capability // what kind of dump they are, "" for Resource Lists
	past   bool                    // they are Resource Lists that are kept (kept.go)
	making sync.Mutex              // held while one is made
	empty  bool                    // nothing was in its folder, and nothing has been made since; guarded by making
	stale  []int64                 // what was in its folder and is not whole, or not ours; guarded by making once others know the series

	mu      sync.Mutex
	kept    []*storedSnapshot // newest first; the slice is never changed
	settled bool              // what the bucket has of it, and can be used, is here: see settle
	vain    retry             // when that is tried again
}

// name is what the series is called in the bucket.
func (se *series) name() string {
	switch {
	case se.past:
		return pastFolder
	case se.dump != "":
		return string(se.dump)
	}
	return string(resourcesync.ResourceList)
}

func (se *series) isEmpty() bool {
	se.making.Lock()
	defer se.making.Unlock()
	return se.empty
}

func (se *series) folder(number int64) string {
	return filepath.Join(se.dir, strconv.FormatInt(number, 10))
}

// snapshots returns the snapshots of a series, newest first.
func (se *series) snapshots() []*storedSnapshot {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.kept
}

// inOrder returns them in the order in which another node should get them: Change Dumps grow
// from the oldest on, of all others the newest is needed most.
func (se *series) inOrder() []*storedSnapshot {
	all := slices.Clone(se.snapshots())
	if se.dump == resourcesync.ChangeDump {
		slices.Reverse(all)
	}
	return all
}

// current returns the newest snapshot of a series, nil when there is none.
func (se *series) current() *storedSnapshot {
	if kept := se.snapshots(); len(kept) > 0 {
		return kept[0]
	}
	return nil
}

// storedFile is one part of a snapshot.
type storedFile struct {
	Part
	Gzip   int64  `json:"gzip"`   // length of the file
	SHA256 string `json:"sha256"` // of the file, in hex
}

// storedSnapshot is a snapshot on disk, all of whose files are there.
type storedSnapshot struct {
	Snapshot
	id       snapshotID
	Dir      string
	Files    []storedFile // of a Resource List
	packages []packedPart // of a dump
	segment  int          // of a Change Dump
	made     time.Time
	bytes    int64
	indexed  indexedSnapshot // but for the folder: what the bucket's index says of it

	lasting context.Context //nolint:containedctx // that of the Publisher

	mu       sync.Mutex
	checked  map[string]cachedFile // files whose hash has been compared since they last changed
	checking map[string]*call      // files whose hash is being computed
}

// number is the name of its folder.
func (s *storedSnapshot) number() int64 {
	if s.segment != 0 {
		return int64(s.segment)
	}
	return int64(s.Seq)
}

// named finds the snapshot with a name in paths, nil when there is none.
func (se *series) named(name string) *storedSnapshot {
	for _, s := range se.snapshots() {
		if s.name() == name {
			return s
		}
	}
	return nil
}

// name is what distinguishes it in paths.
func (s *storedSnapshot) name() string {
	if s.segment != 0 {
		return strconv.Itoa(s.segment)
	}
	return s.Snapshot.name()
}

func (p *Publisher) setDir(set string) string { return filepath.Join(p.opts.SnapshotDir, set) }

// loadSnapshots finds the snapshots of a series that are whole and of this format, base
// URL, set and log, and those that are not. One that cannot be read stays, and is neither.
// Those in a folder that cannot be read are made anew: the other documents of the set need none
// of them.
func (p *Publisher) loadSnapshots(ctx context.Context, se *series, set event.Set) error {
	passes := func(err error) bool { return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) }
	numbers, err := snapshotNumbers(se.dir)
	switch {
	case passes(err):
		return err
	case err != nil && !p.opts.AnyBase: // else it is asked for the state alone, again and again
		p.logger.Error("the snapshots in a folder cannot be read, and are made anew: give the folder to the user who runs bridge, or remove it", "folder", se.dir, "error", err)
	}
	var segments []event.Segment
	if se.dump == resourcesync.ChangeDump && len(numbers) > 0 {
		if segments, err = p.log.SegmentsFrom(ctx, set.Name, 1); err != nil {
			return err
		}
	}
	var kept []*storedSnapshot
	for _, n := range numbers {
		s, err := p.loadSnapshot(se, set, n)
		switch {
		case passes(err):
			return err
		case err != nil:
			p.logger.Error("a snapshot cannot be read, and is not served: give its folder to the user who runs bridge, or remove it", "folder", se.folder(n), "error", err)
			continue
		}
		ours := false // of a log that was replaced by a backup
		if s != nil {
			if ours, err = p.isOfThisLog(ctx, set, segments, &s.id); err != nil {
				return err
			}
		}
		if ours {
			kept = append(kept, s)
		} else {
			se.stale = append(se.stale, n)
		}
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.kept = kept
	return nil
}

// keeps returns how many of some snapshots, newest first, stay.
func (k Retention) keeps(kept []*storedSnapshot, now time.Time) int {
	var bytes int64
	for i, s := range kept {
		bytes += s.bytes
		if i >= 2 && (i >= k.Count || bytes > k.Bytes || now.Sub(kept[i-1].made) > k.Age) {
			return i
		}
	}
	return len(kept)
}

// prune removes the snapshots that are no longer kept; where the disk is nearly
// full, all but two. series.making is held. Change Dumps are kept as long as their
// segments, and Resource Lists of the past as long as the set's settings state; what a node
// keeps that follows another, the bucket says.
func (p *Publisher) prune(se *series) {
	if se.dump == resourcesync.ChangeDump || se.past || p.opts.Follow {
		return
	}
	limits := p.opts.Retention
	if se.dump != "" {
		limits = Retention{} // the newest two
	}
	if p.full() != nil {
		limits.Count = 2
	}
	now := p.opts.Now()
	se.mu.Lock()
	n := limits.keeps(se.kept, now)
	gone := se.kept[n:]
	se.kept = se.kept[:n:n]
	se.mu.Unlock()
	for _, s := range gone {
		p.removeSnapshot(se, s.number())
	}
}

// isOfThisLog reports whether a snapshot was made from this log, and not from one that
// a backup has replaced: its last event was observed at the time that it states. For a
// Change Dump the set's segments are needed: it has one of them.
func (p *Publisher) isOfThisLog(ctx context.Context, set event.Set, segments []event.Segment, id *snapshotID) (bool, error) {
	if id.Segment != 0 {
		g, ok := numbered(ChangeListSegments(set, segments), id.number())
		return ok && g.Last == id.Seq && g.Until == id.At, nil
	}
	if id.Seq == set.Last {
		return id.At == set.LastObserved, nil
	}
	if id.At == set.Created { // of before the set's first event, or that of its epoch
		return true, nil
	}
	for e, err := range p.log.Events(ctx, set.Name, event.Range{After: id.Seq - 1, Upto: id.Seq}) {
		if err != nil {
			return false, err
		}
		return e.Observed == id.At, nil
	}
	return false, nil
}

// snapshotNumbers returns the snapshots in the folder of a series, newest first.
func snapshotNumbers(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var numbers []int64
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && strconv.FormatInt(n, 10) == e.Name() {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	return numbers, nil
}

// loadSnapshot reads a snapshot's list; nil when it is not whole or not ours. An error says
// nothing about that, as openFile's. The hashes are compared when a part is first served.
func (p *Publisher) loadSnapshot(se *series, set event.Set, number int64) (*storedSnapshot, error) {
	dir := se.folder(number)
	at, err := os.Stat(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, unlessGone(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, unlessGone(err)
	}
	l := p.readManifest(se, set, number, data)
	if l == nil {
		return nil, nil
	}
	s := &storedSnapshot{Snapshot: snapshotOf(&set, l.Seq, l.At), id: l.snapshotID, Dir: dir, Files: l.Parts, packages: l.Packages,
		segment: l.Segment, made: at.ModTime(), indexed: indexedSnapshot{Manifest: hashOf(data), Files: 1, Bytes: int64(len(data))},
		lasting: p.lasting, checked: map[string]cachedFile{}, checking: map[string]*call{}}
	s.Parts, s.past = len(l.Parts)+len(l.Packages), se.past
	for name, f := range s.files() {
		s.bytes += f.length
		s.indexed.Files++
		s.indexed.Bytes += f.length
		switch st, err := os.Stat(filepath.Join(dir, name)); {
		case err != nil:
			return nil, unlessGone(err)
		case st.Size() != f.length:
			return nil, nil
		}
	}
	return s, nil
}

// unlessGone returns an error unless it is that there is no such file.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// readManifest reads a snapshot's list; nil when it is not one, or not of this number,
// format, base URL and set.
func (p *Publisher) readManifest(se *series, set event.Set, number int64, data []byte) *manifest {
	var l manifest
	if json.Unmarshal(data, &l) != nil || len(l.Parts)+len(l.Packages) == 0 || l.number() != number {
		return nil
	}
	want := p.idOf(se, set, Snapshot{Seq: l.Seq, At: l.At})
	want.Segment = l.Segment
	if p.opts.AnyBase {
		want.Base = l.Base
	}
	if want != l.snapshotID {
		return nil
	}
	return &l
}

// files yields the files of a snapshot and what they are.
func (s *storedSnapshot) files() iter.Seq2[string, sum] { return filesOf(s.Files, s.packages) }

func filesOf(parts []storedFile, packages []packedPart) iter.Seq2[string, sum] {
	return func(yield func(string, sum) bool) {
		for i, f := range parts {
			if !yield(fmt.Sprintf(partPattern, i+1), sum{f.Gzip, f.SHA256}) {
				return
			}
		}
		for i, f := range packages {
			if !yield(fmt.Sprintf(packagePattern, i+1), sum{f.Length, f.SHA256}) ||
				!yield(fmt.Sprintf(contentsPattern, i+1), sum{f.ContentsLength, f.ContentsSHA256}) {
				return
			}
		}
	}
}

func (p *Publisher) idOf(se *series, set event.Set, at Snapshot) snapshotID {
	return snapshotID{Format: FormatVersion, Base: p.base, Set: set.Name, Content: set.Content.String(), Created: set.Created, Seq: at.Seq, At: at.At, Dump: se.dump}
}

// errDamaged: a part of a snapshot is not what was written.
var errDamaged = errors.New("damaged")

func (s *storedSnapshot) partPath(n int) string {
	return filepath.Join(s.Dir, fmt.Sprintf(partPattern, n))
}

// openPart opens a part's file, after its hash has been compared once.
func (s *storedSnapshot) openPart(ctx context.Context, n int) (*os.File, error) {
	return s.openFile(ctx, fmt.Sprintf(partPattern, n), s.Files[n-1].SHA256)
}

// openFile opens a file of the snapshot, after its hash has been compared once. The error
// is errDamaged only if the file has gone or has other bytes: whatever else fails, for
// instance because too many files are open, says nothing about it.
func (s *storedSnapshot) openFile(ctx context.Context, name, sha256 string) (*os.File, error) {
	for {
		f, err := os.Open(filepath.Join(s.Dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %w", errDamaged, err)
		}
		if err != nil {
			return nil, err
		}
		st, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		h := s.check(name, sha256, f, st)
		if h == nil {
			return f, nil
		}
		select {
		case <-h.done:
			if h.err != nil {
				return nil, h.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// check returns nil if the hash of a file has been compared since it last changed, else the one
// that is being computed; then f is closed. A package may have gigabytes: no caller waits for the
// hash of another file, and it is computed to its end when all callers have given up, so that
// the next one need not wait.
func (s *storedSnapshot) check(name, sha256 string, f *os.File, st fs.FileInfo) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.checked[name]; ok && k.size == st.Size() && k.time.Equal(st.ModTime()) {
		return nil
	}
	h := s.checking[name]
	if h != nil {
		f.Close()
		return h
	}
	h = &call{done: make(chan struct{})}
	s.checking[name] = h
	go func() {
		defer f.Close()
		h.err = defect.Guard(func() error {
			got, err := sumOf(untilDone{s.lasting, f}, false)
			if err == nil && got.sha256 != sha256 {
				err = fmt.Errorf("%w: %s has another hash than when it was written", errDamaged, f.Name())
			}
			return err
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.err == nil {
			s.checked[name] = cachedFile{size: st.Size(), time: st.ModTime()}
		}
		delete(s.checking, name)
		close(h.done)
	}()
	return h
}

// noteAll marks all files as checked: their hashes are those of what has just been written.
func (s *storedSnapshot) noteAll() error {
	for name := range s.files() {
		st, err := os.Stat(filepath.Join(s.Dir, name))
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.checked[name] = cachedFile{size: st.Size(), time: st.ModTime()}
		s.mu.Unlock()
	}
	return nil
}

// untilDone reads until a context is done.
type untilDone struct {
	ctx context.Context //nolint:containedctx // that of one call
	r   io.Reader
}

func (u untilDone) Read(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(b)
}

// storedPart returns one part of a snapshot. If its file is damaged the snapshot is
// discarded and made again: it is a function of the log.
func (p *Publisher) storedPart(ctx context.Context, st *state, se *series, s *storedSnapshot, n int, gzip bool) (*Document, error) {
	it := resourceListPart(st.fixed, s.Snapshot, n)
	f, err := s.openPart(ctx, n)
	if errors.Is(err, errDamaged) {
		p.discard(se, s, err)
		return nil, &NotReadyError{it.Path, snapshotWait, ""}
	}
	if err != nil {
		return nil, err
	}
	f.Close()
	doc := &Document{Meta: p.meta(&it, gzip)}
	if gzip {
		doc.open = func() (io.ReadSeekCloser, int64, error) {
			f, err := s.openPart(ctx, n)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", it.Path, err)
			}
			return f, s.Files[n-1].Gzip, nil
		}
		return doc, nil
	}
	name := filepath.Join(partFolder(st.fixed.Name, s.Snapshot), fmt.Sprintf("%d-%s.xml", n, it.key(p.base, false)))
	doc.open = func() (io.ReadSeekCloser, int64, error) {
		return p.cache.open(ctx, name, func(ctx context.Context, w io.Writer) error { return s.unpack(ctx, n, w) })
	}
	doc.write = func(ctx context.Context, plain, packed io.Writer) error { return s.writePart(ctx, n, plain, packed) }
	return doc, nil
}

// partFolder is the folder in the cache with a snapshot's unpacked parts.
func partFolder(set string, s Snapshot) string {
	folder := "parts"
	if s.past {
		folder = pastFolder
	}
	return filepath.Join(folder, set, strconv.FormatInt(int64(s.Seq), 10))
}

// unpack writes a part as it was before it was compressed.
func (s *storedSnapshot) unpack(ctx context.Context, n int, w io.Writer) error {
	f, err := s.openPart(ctx, n)
	if err != nil {
		return err
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(w, untilDone{ctx, zr}, make([]byte, 64<<10))
	return err
}

// writePart writes a part as it was before it was compressed and, unless packed is nil,
// as it is stored.
func (s *storedSnapshot) writePart(ctx context.Context, n int, plain, packed io.Writer) error {
	if err := s.unpack(ctx, n, plain); err != nil || packed == nil {
		return err
	}
	f, err := s.openPart(ctx, n)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(packed, f)
	return err
}

// discard removes a damaged snapshot and makes Run write the next one at once.
func (p *Publisher) discard(se *series, s *storedSnapshot, why error) {
	se.mu.Lock()
	n := slices.Index(se.kept, s)
	if n >= 0 {
		se.kept = slices.Concat(se.kept[:n], se.kept[n+1:])
	}
	se.mu.Unlock()
	if n < 0 {
		return
	}
	p.logger.Error("a snapshot is damaged and will be made again", "set", se.set, "folder", s.Dir, "error", why)
	p.removeSnapshot(se, s.number())
	p.wake()
}

// removeSnapshot removes a snapshot's files and what the cache has unpacked of them. The
// list goes first: without it the rest is no snapshot.
func (p *Publisher) removeSnapshot(se *series, number int64) {
	dir := se.folder(number)
	err := p.disk.remove(filepath.Join(dir, manifestName))
	if err == nil {
		err = p.disk.remove(dir)
	}
	if err != nil {
		p.logger.Warn("an old snapshot could not be removed; it will be tried at the next start",
			"folder", dir, "error", err)
	}
	p.forgetFiles(objectID(se.set, se.name(), number))
	if se.dump == "" {
		p.cache.forgetFolder(partFolder(se.set, Snapshot{Seq: event.Seq(number), past: se.past}))
	}
}

// cleanup removes what crashes and older formats have left behind: unfinished
// snapshots, those that are not kept, and old renderings; and at a node that follows the error
// of a dump from when it made them.
func (p *Publisher) cleanup(se *series) {
	if err := p.removeLeftovers(se); err != nil {
		p.logger.Warn("leftovers of snapshots could not be removed", "set", se.set, "kind", se.name(), "error", err)
	}
}

func (p *Publisher) removeLeftovers(se *series) error {
	se.making.Lock()
	defer se.making.Unlock()
	if p.opts.Follow {
		if err := p.noteFault(se, nil); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(se.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) {
			if err := p.disk.remove(filepath.Join(se.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	p.prune(se)
	for _, n := range se.stale {
		if se.find(n) == nil { // else it was made anew
			p.removeSnapshot(se, n)
		}
	}
	se.stale = nil
	return nil
}

// retryAfter is how long Run waits after a snapshot that failed: disk space may be free again
// at any time.
const retryAfter = 20 * time.Second

// Run removes what an earlier run has left behind, and then makes the snapshots of
// the sets that need them until ctx is done: at once where there is none, or where
// the log has grown since the last run; otherwise some time after a deletion or a
// change (Options). Failures are logged. A Publisher that follows does nothing.
func (p *Publisher) Run(ctx context.Context) {
	if p.opts.Follow {
		<-ctx.Done()
		return
	}
	defer context.AfterFunc(ctx, p.end)()
	if err := p.cleanupCache(); err != nil {
		p.logger.Warn("leftovers could not be removed from the cache", "folder", p.opts.CacheDir, "error", err)
	}
	plans, dumps := map[string]*schedule{}, map[string]*dumpPlan{}
	again := map[string]time.Time{} // when lists that could not be kept are tried again
	var group sync.WaitGroup
	if p.files != nil {
		group.Go(func() { p.files.share(ctx) })
	}
	group.Go(func() { // a dump may take hours
		p.repeat(ctx, "dumps", p.dumpWakeups, func() error { return p.checkDumps(ctx, dumps) })
	})
	p.repeat(ctx, "snapshots", p.wakeups, func() error { return p.checkSets(ctx, plans, again) })
	group.Wait()
}

// repeat runs check at each Poll, and after each wakeup, until ctx is done.
func (p *Publisher) repeat(ctx context.Context, what string, wakeups <-chan struct{}, check func() error) {
	ticker := time.NewTicker(p.opts.Poll)
	defer ticker.Stop()
	for {
		if err := check(); err != nil && ctx.Err() == nil {
			p.logger.Error("the check for due "+what+" failed", "error", err)
			defect.Log(p.logger, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-wakeups:
		}
	}
}

// wake makes Run check all sets at once.
func (p *Publisher) wake() {
	wakeUp(p.wakeups)
	wakeUp(p.dumpWakeups)
}

func wakeUp(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // a check is due already
	}
}

// full returns why the disk should not be written to, nil while it may be.
func (p *Publisher) full() error {
	if p.opts.Full == nil {
		return nil
	}
	return p.opts.Full()
}

// schedule is when Run makes the next snapshot of a set.
type schedule struct {
	shown event.Seq // what the Resource List showed at the last check
	seen  event.Seq // the last event that was searched for deletions
	due   time.Time // zero: nothing to do

	measured event.Seq // the last event when the length of the list was looked at
	measure  time.Time // when that is done again
}

// measure reports whether a Resource List with few records fits into one document. Without a
// bucket whoever requests it finds out; with one that may be another node.
func (p *Publisher) measure(ctx context.Context, st *state, set event.Set, pl *schedule) (fits bool, err error) {
	now := p.opts.Now()
	if p.files == nil || set.Last == pl.measured || now.Before(pl.measure) {
		return true, nil
	}
	pl.measured, pl.measure = set.Last, now.Add(p.opts.AfterChange)
	doc, err := p.wholeList(ctx, st, set, true)
	return doc != nil, err
}

// checkSets checks each set once and makes the snapshots that are due, and then at most
// one kept list of each set.
func (p *Publisher) checkSets(ctx context.Context, plans map[string]*schedule, again map[string]time.Time) error {
	sets, err := p.log.Sets(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, set := range sets {
		if err := p.checkSet(ctx, plans, set); err != nil {
			errs = append(errs, fmt.Errorf("set %s: %w", set.Name, err))
		}
	}
	// Lists of the past wait for the present ones of all sets, one after the other.
	unmade := false
	for _, set := range sets {
		more, err := p.checkLists(ctx, again, set)
		if err != nil {
			errs = append(errs, err)
		}
		unmade = unmade || more
	}
	if unmade {
		wakeUp(p.wakeups)
	}
	return errors.Join(errs...)
}

// checkSet makes the snapshot of a set if it is due. A panic counts as a failure of
// that set alone: its snapshot is tried again later.
func (p *Publisher) checkSet(ctx context.Context, plans map[string]*schedule, set event.Set) (err error) {
	defer func() {
		var panicked *defect.Error
		if pl := plans[set.Name]; pl != nil && errors.As(err, &panicked) {
			pl.due = p.opts.Now().Add(retryAfter)
		}
	}()
	defer defect.Recover(&err)
	st, err := p.state(ctx, set.Name)
	if err != nil {
		return err
	}
	p.settle(ctx, st, set, &st.series, math.MaxInt)
	pl := plans[set.Name]
	if pl == nil {
		pl = p.firstSchedule(st, set)
		plans[set.Name] = pl
	}
	if set.Partial {
		return nil
	}
	if p.isOneDocument(st, set) {
		if fits, err := p.measure(ctx, st, set, pl); fits || err != nil {
			*pl = schedule{shown: set.Last, measured: pl.measured, measure: pl.measure}
			return err
		}
	}
	func() {
		st.making.Lock()
		defer st.making.Unlock()
		p.prune(&st.series)
	}()
	if err := p.schedule(ctx, st, set, pl); err != nil {
		return err
	}
	start := p.opts.Now()
	if pl.due.IsZero() || start.Before(pl.due) {
		return nil
	}
	if err := p.Snapshot(ctx, set.Name); err != nil {
		pl.due = p.opts.Now().Add(retryAfter)
		return err
	}
	if current := st.current(); current != nil {
		*pl = schedule{shown: current.Seq, seen: current.Seq}
		p.logger.Info("snapshot made", "set", set.Name, "seq", current.Seq, "records", set.Live,
			"parts", current.Parts, "took", p.opts.Now().Sub(start))
	}
	return nil
}

// firstSchedule removes the leftovers of the set's snapshots. A snapshot is due at
// once where the log has grown since the last one was made.
func (p *Publisher) firstSchedule(st *state, set event.Set) *schedule {
	p.cleanup(&st.series)
	current := st.current()
	if current == nil {
		return &schedule{}
	}
	pl := &schedule{shown: current.Seq, seen: current.Seq}
	if current.Seq != set.Last {
		pl.due = p.opts.Now()
	}
	return pl
}

// schedule determines when the next snapshot is due, from what has happened since the current
// one.
func (p *Publisher) schedule(ctx context.Context, st *state, set event.Set, pl *schedule) error {
	now := p.opts.Now()
	current := st.current()
	switch {
	case current == nil:
		if pl.shown != 0 || pl.due.IsZero() { // the first, or the last one was discarded
			*pl = schedule{due: now}
		}
		return nil
	case current.Seq < pl.shown: // the Resource List must not stay behind what it has shown
		*pl = schedule{shown: current.Seq, seen: set.Last, due: now}
		return nil
	case current.Seq > pl.shown: // another caller made one
		*pl = schedule{shown: current.Seq, seen: current.Seq}
	}
	if set.Last <= pl.seen {
		return nil
	}
	if due := now.Add(p.opts.AfterChange); pl.due.IsZero() || due.Before(pl.due) {
		pl.due = due
	}
	if due := now.Add(p.opts.AfterDeletion); due.Before(pl.due) {
		deletes, err := p.deletes(ctx, set.Name, event.Range{After: pl.seen, Upto: set.Last})
		if err != nil {
			return err
		}
		if deletes {
			pl.due = due
		}
	}
	pl.seen = set.Last
	return nil
}

// deletes reports whether a deletion is among some events.
func (p *Publisher) deletes(ctx context.Context, set string, r event.Range) (bool, error) {
	for e, err := range p.log.Events(ctx, set, r) {
		if err != nil {
			return false, err
		}
		if e.Kind == event.Deleted || e.Gone != "" {
			return true, nil
		}
	}
	return false, nil
}

// cleanupCache removes what this format and base URL do not use: other epochs, open
// documents, and unfinished files.
func (p *Publisher) cleanupCache() error {
	entries, err := os.ReadDir(p.opts.CacheDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if name := e.Name(); len(name) == len(cacheEpoch("")) && name != filepath.Base(p.cache.dir) {
			errs = append(errs, p.disk.remove(filepath.Join(p.opts.CacheDir, e.Name())))
		}
	}
	return errors.Join(append(errs, p.cache.cleanup(), p.writeCacheBase())...)
}

// writeCacheBase writes the base URL into the cache's folder, whose name is only a
// hash of it.
func (p *Publisher) writeCacheBase() error {
	if err := p.disk.mkdir(p.cache.dir); err != nil {
		return err
	}
	return p.disk.writeFile(filepath.Join(p.cache.dir, baseName), []byte(p.base+"\n"), false)
}
