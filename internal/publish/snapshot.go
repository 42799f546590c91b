package publish

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"github.com/pmh-bridge/bridge/event"
)

// SnapshotSeq returns the Seq whose state the set's Resource List shows: the
// set's last one where the list is made on request, else that of the current
// snapshot, 0 when there is none yet. The error may be ErrNotFound.
func (p *Publisher) SnapshotSeq(ctx context.Context, set string) (event.Seq, error) {
	s, err := p.set(ctx, set)
	if err != nil {
		return 0, err
	}
	st, err := p.state(ctx, set)
	if err != nil {
		return 0, err
	}
	if p.direct(st, s) {
		return s.Last, nil
	}
	if current := st.current(); current != nil {
		return current.Seq, nil
	}
	return 0, nil
}

// Snapshot makes a snapshot of the set's state as it is now, in one pass over
// the log and in memory that does not grow with it, and returns when it is
// durable and published. If there is one of that state already, it does
// nothing. An error leaves the current snapshot as it was.
//
// The order of steps is the safety argument: parts, list and folder are durable
// before the rename; the rename shows all or nothing, and is durable before
// anybody is told of it; only then older snapshots go (Kept). A failed
// step leaves a folder that has no name of a snapshot, or a whole snapshot that
// the next call finds and takes.
func (p *Publisher) Snapshot(ctx context.Context, set string) error {
	st, err := p.state(ctx, set)
	if err != nil {
		return err
	}
	st.making.Lock()
	defer st.making.Unlock()
	s, err := p.set(ctx, set)
	if err != nil {
		return err
	}
	at := Snapshot{Seq: s.Last, At: s.LastObserved}
	if current := st.current(); current != nil && current.Seq == at.Seq {
		return nil
	}
	final := filepath.Join(p.setDir(set), strconv.FormatInt(int64(at.Seq), 10))
	made := p.loadSnapshot(s, at.Seq)
	if made == nil || made.At != at.At {
		if err := p.makeSnapshot(ctx, s, at, final); err != nil {
			return fmt.Errorf("snapshot of set %s at %d: %w", set, at.Seq, err)
		}
		if made = p.loadSnapshot(s, at.Seq); made == nil {
			return fmt.Errorf("snapshot of set %s at %d: %s is not what was written", set, at.Seq, final)
		}
	}
	if err := p.disk.syncDir(p.setDir(set)); err != nil {
		return fmt.Errorf("snapshot of set %s at %d: %w", set, at.Seq, err)
	}
	p.shelve(st, made)
	return nil
}

// shelve makes a snapshot the current one and removes those that are too old.
func (p *Publisher) shelve(st *state, made *stored) {
	st.mu.Lock()
	st.kept = append([]*stored{made}, st.kept...)
	if made.Parts == 1 {
		st.over = false // it fits again; if not, the next request finds out
	}
	st.mu.Unlock()
	p.prune(st)
}

// makeSnapshot writes the folder final. What stands there is not whole.
func (p *Publisher) makeSnapshot(ctx context.Context, set event.Set, at Snapshot, final string) error {
	tmp := filepath.Join(filepath.Dir(final), newPrefix+filepath.Base(final))
	if err := p.disk.remove(tmp); err != nil {
		return err
	}
	if err := p.disk.mkdir(tmp); err != nil {
		return err
	}
	if err := p.disk.syncDir(p.opts.SnapshotDir); err != nil {
		return err
	}
	files, err := p.writeParts(ctx, set, at, tmp)
	if err == nil {
		err = p.writeList(p.newList(set, at, files), tmp)
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
		// Frees the room at once; if it fails, the next attempt or start does it.
		_ = p.disk.remove(tmp)
	}
	return err
}

func (p *Publisher) writeList(l list, dir string) error {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return p.disk.writeFile(filepath.Join(dir, listName), append(data, '\n'), true)
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
		pf := &partFile{file: f, sum: &summing{w: f, hash: sha256.New()},
			closed: func(s sum) { files = append(files, storedFile{Gzip: s.length, SHA256: s.sha256}) }}
		if pf.deflater, err = newDeflater(pf.sum); err != nil {
			f.abandon()
			return nil, err
		}
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
		return nil, fmt.Errorf("the log gave %d records where its books have %d: the log is in doubt, run bridge verify",
			entries, it.Entries)
	}
	return files, nil
}

// partFile compresses, sums and writes a part; Close makes it durable.
type partFile struct {
	*deflater
	file   *file
	sum    *summing
	closed func(sum)
}

func (f *partFile) Close() error {
	defer f.file.abandon()
	if err := f.deflater.Close(); err != nil {
		return err
	}
	if err := f.file.sync(); err != nil {
		return err
	}
	if err := f.file.Close(); err != nil {
		return err
	}
	f.closed(f.sum.sum())
	return nil
}
