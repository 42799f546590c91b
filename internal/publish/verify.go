package publish

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/pmh-bridge/bridge/event"
)

// Check is the result of verifying a document, or both documents of a segment.
type Check struct {
	// Kept counts the kept copies that were compared, compressed or not.
	Kept int
	// Damaged are the files among them that hold other bytes. Those of the cache
	// may be deleted; they are never served, nor are a snapshot's.
	Damaged []string
}

// baseName is the file in a folder of the cache that has its base URL.
const baseName = "base"

// Bases returns the base URLs of the documents in a Publisher's folders, sorted: they
// may differ from the configured one.
func Bases(cacheDir, snapshotDir string) []string {
	found := map[string]bool{}
	named, _ := filepath.Glob(filepath.Join(cacheDir, "*", baseName)) // the pattern is well formed
	for _, path := range named {
		if b, err := os.ReadFile(path); err == nil {
			found[strings.TrimSpace(string(b))] = true
		}
	}
	lists, _ := filepath.Glob(filepath.Join(snapshotDir, "*", "*", manifestName))
	dumps, _ := filepath.Glob(filepath.Join(snapshotDir, "*", "*", "*", manifestName))
	for _, path := range append(lists, dumps...) {
		var l manifest
		if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &l) == nil && l.Base != "" {
			found[l.Base] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// VerifySegment renders the Change List and the archive document of a closed segment again and
// compares them with the cached copies. The error is ErrNotFound when there is no such closed
// segment.
func (p *Publisher) VerifySegment(ctx context.Context, set string, n int) (Check, error) {
	st, err := p.state(ctx, set)
	if err != nil {
		return Check{}, err
	}
	segment, err := p.segment(ctx, st, int64(n))
	if err != nil {
		return Check{}, err
	}
	if segment.Open() {
		return Check{}, ErrNotFound
	}
	var c Check
	if segment.From >= st.fixed.Created { // else it has a feed only
		if c, err = p.verify(ctx, changeList(st.fixed, segment)); err != nil {
			return c, err
		}
	}
	feed, err := p.archive(ctx, st, int64(n))
	if err != nil {
		return c, err
	}
	a, err := p.verify(ctx, feed)
	c.Kept += a.Kept
	c.Damaged = append(c.Damaged, a.Damaged...)
	return c, err
}

// verify renders a document again and compares it with the cached copies.
func (p *Publisher) verify(ctx context.Context, it Item) (Check, error) {
	var c Check
	sw := NewHashWriter(io.Discard)
	if err := p.render(it, false)(ctx, sw); err != nil {
		return c, err
	}
	for _, gzip := range []bool{false, true} {
		if err := c.compare(filepath.Join(p.cache.dir, cacheName(&it, p.base, gzip)), gzip, sw.sum()); err != nil {
			return c, err
		}
	}
	return c, nil
}

// VerifySnapshot renders the parts of the set's current snapshot again and
// compares those that are kept. Without a snapshot there is nothing to check.
func (p *Publisher) VerifySnapshot(ctx context.Context, set string) ([]Check, error) {
	st, err := p.state(ctx, set)
	if err != nil {
		return nil, err
	}
	current := st.current()
	if current == nil {
		return nil, nil
	}
	return p.verifySnapshot(ctx, st, current)
}

// verifySnapshot renders the parts of a snapshot again and compares those that are kept.
func (p *Publisher) verifySnapshot(ctx context.Context, st *state, current *storedSnapshot) ([]Check, error) {
	it := Item{Kind: ResourceList, Set: st.fixed, Events: event.Range{Upto: current.Seq}}
	var checks []Check
	var sums []*HashWriter
	create := func(n int) (io.WriteCloser, error) {
		checks = append(checks, Check{})
		sums = append(sums, NewHashWriter(io.Discard))
		return writeNopCloser{sums[n-1]}, nil
	}
	if _, err := RenderParts(p.base, st.fixed, current.Snapshot, p.limits, p.events(ctx, &it), create); err != nil {
		return checks, err
	}
	for i := range checks {
		if err := checks[i].compare(current.partPath(i+1), true, sums[i].sum()); err != nil {
			return checks, err
		}
	}
	// A superfluous or missing part counts as damage.
	for n := len(checks) + 1; n <= current.Parts; n++ {
		checks = append(checks, Check{Kept: 1, Damaged: []string{current.partPath(n)}})
	}
	return checks, nil
}

// writeNopCloser is a writer with a Close that does nothing.
type writeNopCloser struct{ io.Writer }

func (writeNopCloser) Close() error { return nil }

// compare compares a kept file, if it exists.
func (c *Check) compare(path string, compressed bool, want sum) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	c.Kept++
	got, err := sumOf(f, compressed)
	if err != nil || got != want {
		c.Damaged = append(c.Damaged, path)
	}
	return nil
}

// sumOf returns the sum of all that r has, once uncompressed.
func sumOf(r io.Reader, compressed bool) (sum, error) {
	if compressed {
		zr, err := gzip.NewReader(r)
		if err != nil {
			return sum{}, err
		}
		r = zr
	}
	h := NewHashWriter(io.Discard)
	_, err := io.Copy(h, r)
	return h.sum(), err
}

// VerifyFolders finds the folders of the set's snapshots and dumps that are not used, since their
// list cannot be read, or files that it names are not there or have another length.
func (p *Publisher) VerifyFolders(ctx context.Context, set string) (damaged []string, err error) {
	st, err := p.state(ctx, set)
	if err != nil {
		return nil, err
	}
	for _, se := range st.all() {
		numbers, _ := snapshotNumbers(se.dir) // that a folder cannot be read is no damage, and was logged
		for _, n := range numbers {
			if isDamaged(se.folder(n), n) {
				damaged = append(damaged, se.folder(n))
			}
		}
	}
	return damaged, nil
}

// isDamaged reports whether a folder has a list of a snapshot, and is not what that says. One of
// another format, base URL or log may be whole.
func isDamaged(dir string, number int64) bool {
	list := filepath.Join(dir, manifestName)
	data, err := os.ReadFile(list)
	if err != nil {
		return false // without it, as when it is being removed, the rest is no snapshot
	}
	var l manifest
	damaged := json.Unmarshal(data, &l) != nil || l.Format == FormatVersion && (len(l.Parts)+len(l.Packages) == 0 || l.number() != number)
	if !damaged && l.Format == FormatVersion {
		for name, f := range filesOf(l.Parts, l.Packages) {
			st, err := os.Stat(filepath.Join(dir, name))
			damaged = damaged || errors.Is(err, os.ErrNotExist) || err == nil && st.Size() != f.length
		}
	}
	if damaged {
		_, err = os.Stat(list) // it may have been removed since
	}
	return damaged && err == nil
}

// VerifyDumps compares the files of the set's Resource Dumps and of its Change Dump with what was
// written. Without dumps there is nothing to check.
func (p *Publisher) VerifyDumps(ctx context.Context, set string) ([]Check, error) {
	st, err := p.state(ctx, set)
	if err != nil {
		return nil, err
	}
	var checks []Check
	for _, s := range slices.Concat(st.resourceDumps.snapshots(), st.changeDumps.snapshots()) {
		var c Check
		for name, want := range s.files() {
			if err := ctx.Err(); err != nil {
				return checks, err
			}
			if err := c.compare(filepath.Join(s.Dir, name), false, want); err != nil {
				return checks, err
			}
		}
		checks = append(checks, c)
	}
	return checks, nil
}
