package publish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/pmh-bridge/bridge/event"
)

// A snapshot is a folder {SnapshotDir}/{set}/{seq} with the compressed parts and
// a list of them, listName. The folder gets its name when all in it is durable,
// in one rename, so its parts and the index that names them appear together.
// The highest Seq is the current snapshot. Those before it stay for a while, for
// those who are walking their parts (Kept).
//
// Only the compressed form is kept: it is a sixth of the bytes to make durable.
// The other is unpacked into the cache when somebody asks for it.
const (
	listName    = "snapshot.json"
	newPrefix   = ".new-"
	partPattern = "%d.xml.gz"
)

// list is what a snapshot's list says.
type list struct {
	Format  int          `json:"format"`
	Base    string       `json:"base"`
	Set     string       `json:"set"`
	Content string       `json:"content"`
	Created event.Micros `json:"created"`
	Seq     event.Seq    `json:"seq"`
	At      event.Micros `json:"at"`
	Parts   []storedFile `json:"parts"`
}

// storedFile is one part of a snapshot.
type storedFile struct {
	Part
	Gzip   int64  `json:"gzip"`   // length of the file
	SHA256 string `json:"sha256"` // of the file, in hex
}

// stored is a snapshot on disk, all of whose files are there.
type stored struct {
	Snapshot
	Dir   string
	Files []storedFile
	made  time.Time
	bytes int64

	mu      sync.Mutex
	checked map[int]known // parts whose hash has been compared
}

func (p *Publisher) setDir(set string) string { return filepath.Join(p.opts.SnapshotDir, set) }

// loadSnapshots finds the set's snapshots that are whole and of this format, base
// URL, set and log, newest first.
func (p *Publisher) loadSnapshots(ctx context.Context, set event.Set) ([]*stored, error) {
	seqs, err := snapshotSeqs(p.setDir(set.Name))
	if err != nil {
		return nil, err
	}
	var kept []*stored
	for _, seq := range seqs {
		s := p.loadSnapshot(set, seq)
		if s == nil {
			continue
		}
		switch ours, err := p.ours(ctx, set, s); {
		case err != nil:
			return nil, err
		case ours: // else of a log that was replaced by a backup
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// stay returns how many of some snapshots, newest first, are kept.
func (k Retention) stay(kept []*stored, now time.Time) int {
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
// full, all but two. st.making is held.
func (p *Publisher) prune(st *state) {
	limits := p.opts.Retention
	if p.opts.Full != nil && p.opts.Full() != nil {
		limits.Count = 2
	}
	now := p.opts.Now()
	st.mu.Lock()
	n := limits.stay(st.kept, now)
	gone := st.kept[n:]
	st.kept = st.kept[:n:n]
	st.mu.Unlock()
	for _, s := range gone {
		p.drop(st.fixed.Name, s.Dir, s.Seq)
	}
}

// ours tells whether a snapshot was made from this very log: the event that it
// ends with was observed at the moment it shows.
func (p *Publisher) ours(ctx context.Context, set event.Set, s *stored) (bool, error) {
	if s.Seq == set.Last {
		return s.At == set.LastObserved, nil
	}
	for e, err := range p.log.Events(ctx, set.Name, event.Range{After: s.Seq - 1, Upto: s.Seq}) {
		if err != nil {
			return false, err
		}
		return e.Observed == s.At, nil
	}
	return false, nil
}

// snapshotSeqs returns the snapshots in a set's folder, newest first.
func snapshotSeqs(dir string) ([]event.Seq, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var seqs []event.Seq
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && strconv.FormatInt(n, 10) == e.Name() {
			seqs = append(seqs, event.Seq(n))
		}
	}
	slices.Sort(seqs)
	slices.Reverse(seqs)
	return seqs, nil
}

// loadSnapshot reads a snapshot's list; nil when it is not whole or not ours.
// The hashes are compared when a part is first served.
func (p *Publisher) loadSnapshot(set event.Set, seq event.Seq) *stored {
	dir := filepath.Join(p.setDir(set.Name), strconv.FormatInt(int64(seq), 10))
	at, err := os.Stat(filepath.Join(dir, listName))
	if err != nil {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, listName))
	if err != nil {
		return nil
	}
	var l list
	if json.Unmarshal(data, &l) != nil || len(l.Parts) == 0 || l.Seq != seq {
		return nil
	}
	want := p.newList(set, Snapshot{Seq: seq, At: l.At}, l.Parts)
	if p.opts.AnyBase {
		want.Base = l.Base
	}
	if !want.like(l) {
		return nil
	}
	var bytes int64
	for i, f := range l.Parts {
		bytes += f.Gzip
		st, err := os.Stat(filepath.Join(dir, fmt.Sprintf(partPattern, i+1)))
		if err != nil || st.Size() != f.Gzip {
			return nil
		}
	}
	return &stored{Snapshot: Snapshot{Seq: seq, At: l.At, Parts: len(l.Parts)}, Dir: dir, Files: l.Parts, made: at.ModTime(), bytes: bytes,
		checked: map[int]known{}}
}

func (p *Publisher) newList(set event.Set, s Snapshot, parts []storedFile) list {
	return list{Format: FormatVersion, Base: p.base, Set: set.Name, Content: set.Content.String(),
		Created: set.Created, Seq: s.Seq, At: s.At, Parts: parts}
}

// like tells whether two lists are of snapshots with the same bytes.
func (l list) like(o list) bool {
	return l.Format == o.Format && l.Base == o.Base && l.Set == o.Set && l.Content == o.Content &&
		l.Created == o.Created && l.Seq == o.Seq && l.At == o.At
}

// errDamaged: a part of a snapshot is not what was written.
var errDamaged = errors.New("damaged")

func (s *stored) partPath(n int) string { return filepath.Join(s.Dir, fmt.Sprintf(partPattern, n)) }

// openPart opens a part's file, after its hash has been compared once.
func (s *stored) openPart(n int) (*os.File, error) {
	f, err := os.Open(s.partPath(n))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err := s.check(n, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (s *stored) check(n int, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.checked[n]; ok && k.size == st.Size() && k.time.Equal(st.ModTime()) {
		return nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != s.Files[n-1].SHA256 {
		return fmt.Errorf("%w: %s has another hash than when it was written", errDamaged, f.Name())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s.checked[n] = known{size: st.Size(), time: st.ModTime()}
	return nil
}

// storedPart returns one part of a snapshot. If its file is damaged the snapshot
// is given up and made again: it is a function of the log.
func (p *Publisher) storedPart(ctx context.Context, st *state, s *stored, n int, gzip bool) (*Document, error) {
	it := resourceListPart(st.fixed, s.Snapshot, n)
	f, err := s.openPart(n)
	if errors.Is(err, errDamaged) {
		p.giveUp(st, s, err)
		return nil, &NotReadyError{it.Path, snapshotWait, ""}
	}
	if err != nil {
		return nil, err
	}
	f.Close()
	doc := &Document{Meta: p.meta(&it, gzip)}
	if gzip {
		doc.open = func() (io.ReadSeekCloser, int64, error) {
			f, err := s.openPart(n)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", it.Path, err)
			}
			return f, s.Files[n-1].Gzip, nil
		}
		return doc, nil
	}
	name := filepath.Join(partFolder(st.fixed.Name, s.Seq), fmt.Sprintf("%d-%s.xml", n, it.key(p.base, false)))
	doc.open = func() (io.ReadSeekCloser, int64, error) {
		return p.cache.open(ctx, name, func(ctx context.Context, w io.Writer) error { return s.unpack(ctx, n, w) })
	}
	return doc, nil
}

// partFolder is where the cache has a snapshot's unpacked parts.
func partFolder(set string, seq event.Seq) string {
	return filepath.Join("parts", set, strconv.FormatInt(int64(seq), 10))
}

// unpack writes a part as it was before it was compressed.
func (s *stored) unpack(ctx context.Context, n int, w io.Writer) error {
	f, err := s.openPart(n)
	if err != nil {
		return err
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		k, err := zr.Read(buf)
		if _, writeErr := w.Write(buf[:k]); writeErr != nil {
			return writeErr
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// giveUp gives up a damaged snapshot, for good, and has the next one made at once.
func (p *Publisher) giveUp(st *state, s *stored, why error) {
	st.mu.Lock()
	n := slices.Index(st.kept, s)
	if n >= 0 {
		st.kept = slices.Concat(st.kept[:n], st.kept[n+1:])
	}
	st.mu.Unlock()
	if n < 0 {
		return
	}
	p.logger.Error("a snapshot is damaged and will be made again", "set", st.fixed.Name, "seq", s.Seq, "error", why)
	p.drop(st.fixed.Name, s.Dir, s.Seq)
	p.rouse()
}

// drop removes a snapshot's files and what the cache has unpacked of them. The
// list goes first: without it the rest is no snapshot.
func (p *Publisher) drop(set, dir string, seq event.Seq) {
	err := p.disk.remove(filepath.Join(dir, listName))
	if err == nil {
		err = p.disk.remove(dir)
	}
	if err != nil {
		p.logger.Warn("an old snapshot could not be removed; it will be tried at the next start",
			"folder", dir, "error", err)
	}
	p.cache.forgetFolder(partFolder(set, seq))
}

// tidy removes what crashes and older formats have left behind: half-made
// snapshots, those that are not kept, and old renderings.
func (p *Publisher) tidy(st *state) error {
	st.making.Lock()
	defer st.making.Unlock()
	dir := p.setDir(st.fixed.Name)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) {
			if err := p.disk.remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	seqs, err := snapshotSeqs(dir)
	if err != nil {
		return err
	}
	p.prune(st)
	kept := st.snapshots()
	for _, seq := range seqs {
		if slices.ContainsFunc(kept, func(s *stored) bool { return s.Seq == seq }) {
			continue
		}
		p.drop(st.fixed.Name, filepath.Join(dir, strconv.FormatInt(int64(seq), 10)), seq)
	}
	return nil
}
