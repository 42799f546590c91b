package publish

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/defect"
)

// cache holds rendered documents as files under names that say which bytes they
// are, so that nothing in it is ever stale. It may be deleted at any time, also
// while it is used. A file counts only with the sum beside it, which is written
// last, and only if its length and hash agree with that sum: half a file or a
// damaged one is as good as none.
//
// It has a size. Above it those documents go that nobody has asked for for the
// longest time; those who are reading them read on.
//
// When it cannot be written it is passed over: documents are then made in
// memory for those who wait for them.
type cache struct {
	dir  string
	disk disk
	size int64
	// full is why nothing more is to be written, nil where the disk has room; a nil
	// func is a disk that always has.
	full func() error
	// all bounds how many documents are made at a time, and with that the memory
	// and the readers of the log that they take.
	all chan struct{}

	mu      sync.Mutex
	slots   map[string]chan struct{} // by set: what one set costs does not keep others out
	flights map[string]*flight
	files   map[string]*cached
	held    int64  // bytes of files
	uses    uint64 // how often a file was used, as a clock
}

// How many documents are made at a time: in all, and of one set.
const (
	slotsInAll = 6
	slotsOfSet = 2
)

// cached is a file of the cache.
type cached struct {
	size    int64
	time    time.Time
	checked bool // its hash has been compared since it last changed
	used    uint64
}

// known is a file whose hash has been compared since it last changed.
type known struct {
	size int64
	time time.Time
}

// sum is the length and the hash of some bytes.
type sum struct {
	length int64
	sha256 string
}

// renderFunc writes a document.
type renderFunc func(ctx context.Context, w io.Writer) error

func newCache(dir string, d disk, size int64) *cache {
	return &cache{dir: dir, disk: d, size: size, all: make(chan struct{}, slotsInAll), slots: map[string]chan struct{}{},
		flights: map[string]*flight{}, files: map[string]*cached{}}
}

// slot waits until a document of the set that a name belongs to may be made.
func (c *cache) slot(ctx context.Context, name string) (leave func(), err error) {
	parts := strings.SplitN(filepath.ToSlash(name), "/", 3) // see cacheName and partFolder
	set := parts[min(1, len(parts)-1)]
	c.mu.Lock()
	own := c.slots[set]
	if own == nil {
		own = make(chan struct{}, slotsOfSet)
		c.slots[set] = own
	}
	c.mu.Unlock()
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case c.all <- struct{}{}:
		return func() { <-c.all; <-own }, nil
	case <-ctx.Done():
		<-own
		return nil, ctx.Err()
	}
}

// open returns the document called name and its length, and renders it first if
// it is not there. However many ask for it at once, it is rendered once.
func (c *cache) open(ctx context.Context, name string, render renderFunc) (io.ReadSeekCloser, int64, error) {
	// A file may be taken away between its making and its opening; so try again,
	// and in the end do without the file.
	for range 3 {
		if f, n := c.fast(name); f != nil {
			return f, n, nil
		}
		data, err := c.once(ctx, name, func(ctx context.Context) ([]byte, error) {
			return c.make(ctx, name, render)
		})
		if err != nil {
			return nil, 0, err
		}
		if data != nil {
			return memory{bytes.NewReader(data)}, int64(len(data)), nil
		}
	}
	data, err := inMemory(ctx, render)
	if err != nil {
		return nil, 0, err
	}
	return memory{bytes.NewReader(data)}, int64(len(data)), nil
}

// memory is a document that is no file.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// fast opens a file whose hash is known to be right; nil when there is none.
func (c *cache) fast(name string) (*os.File, int64) {
	c.mu.Lock()
	var k cached
	if own := c.files[name]; own != nil {
		c.uses++
		own.used = c.uses
		k = *own
	}
	c.mu.Unlock()
	if !k.checked {
		return nil, 0
	}
	f, err := os.Open(filepath.Join(c.dir, name))
	if err != nil {
		return nil, 0
	}
	if st, err := f.Stat(); err != nil || st.Size() != k.size || !st.ModTime().Equal(k.time) {
		f.Close()
		return nil, 0
	}
	return f, k.size
}

// make sees to it that name is there: found whole, or rendered. When it cannot
// be written it returns the document itself.
func (c *cache) make(ctx context.Context, name string, render renderFunc) ([]byte, error) {
	if c.verify(name) {
		return nil, nil
	}
	leave, err := c.slot(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	err = c.store(ctx, name, render)
	var unwritable *storeError
	if !errors.As(err, &unwritable) {
		return nil, err
	}
	data, err := inMemory(ctx, render)
	if err != nil {
		return nil, errors.Join(err, unwritable)
	}
	return data, nil
}

// storeError is a failure to keep a document, not to make it.
type storeError struct{ err error }

func (e *storeError) Error() string {
	return fmt.Sprintf("the cache cannot be written (is the disk full?): %v", e.err)
}
func (e *storeError) Unwrap() error { return e.err }

// memoryLimit is the size up to which a document is made in memory when the
// cache cannot be written: every document keeps to resourcesync.MaxBytes, save
// a Change List with a gigantic entry.
const memoryLimit = 64 << 20

func inMemory(ctx context.Context, render renderFunc) ([]byte, error) {
	b := limited{limit: memoryLimit}
	if err := render(ctx, &b); err != nil {
		return nil, err
	}
	return b.buf, nil
}

type limited struct {
	buf   []byte
	limit int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(l.buf)+len(p) > l.limit {
		return 0, fmt.Errorf("the document is larger than %d bytes and there is no room for it on disk: make room, or name another folder for the cache", l.limit)
	}
	l.buf = append(l.buf, p...)
	return len(p), nil
}

// store renders into a file of its own and renames it, then its sum. The sum
// coming last is what makes a crash harmless; nothing is synced, because a file
// that a power cut has shortened does not agree with its sum.
func (c *cache) store(ctx context.Context, name string, render renderFunc) error {
	path := filepath.Join(c.dir, name)
	if c.full != nil {
		if err := c.full(); err != nil {
			return &storeError{err}
		}
	}
	if err := c.disk.mkdir(filepath.Dir(path)); err != nil {
		return &storeError{err}
	}
	f, err := c.disk.temp(path)
	if err != nil {
		return &storeError{err}
	}
	defer f.abandon()
	sw := &summing{w: f, hash: sha256.New()}
	if err := render(ctx, sw); err != nil {
		if sw.err != nil {
			return &storeError{sw.err}
		}
		return err
	}
	tmp := f.f.Name()
	st, err := f.f.Stat()
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = c.disk.rename(tmp, path)
	}
	if err == nil {
		err = c.storeSum(path, sw.sum())
	}
	if err != nil {
		_ = os.Remove(tmp)
		return &storeError{err}
	}
	c.enter(name, st, true)
	c.evict(name)
	return nil
}

// enter counts a file.
func (c *cache) enter(name string, st fs.FileInfo, checked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave(name)
	c.uses++
	c.files[name] = &cached{size: st.Size(), time: st.ModTime(), checked: checked, used: c.uses}
	c.held += st.Size()
}

// leave counts a file no more; c.mu is held.
func (c *cache) leave(name string) {
	if f := c.files[name]; f != nil {
		c.held -= f.size
		delete(c.files, name)
	}
}

// evict removes what was not used for the longest time, but for one file, until a
// tenth of the size is free: so it is not done for each document.
func (c *cache) evict(but string) {
	c.mu.Lock()
	var names []string
	if c.held > c.size {
		for name := range c.files {
			if name != but {
				names = append(names, name)
			}
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(c.files[a].used, c.files[b].used) })
		held, n := c.held, 0
		for n < len(names) && held > c.size-c.size/10 {
			held -= c.files[names[n]].size
			n++
		}
		names = names[:n]
	}
	c.mu.Unlock()
	for _, name := range names {
		c.forget(name)
	}
}

// storeSum puts the sum beside the file at path, whole or not at all.
func (c *cache) storeSum(path string, s sum) error {
	f, err := c.disk.temp(path + ".sum")
	if err != nil {
		return err
	}
	defer f.abandon()
	if _, err := fmt.Fprintf(f, "%d %s\n", s.length, s.sha256); err != nil {
		return err
	}
	tmp := f.f.Name()
	if err := f.Close(); err != nil {
		return err
	}
	return c.disk.rename(tmp, path+".sum")
}

// loadSum reads the sum beside the file called name.
func (c *cache) loadSum(name string) (s sum, ok bool) {
	data, err := os.ReadFile(filepath.Join(c.dir, name) + ".sum")
	if err != nil {
		return sum{}, false
	}
	if _, err := fmt.Sscanf(string(data), "%d %64s\n", &s.length, &s.sha256); err != nil {
		return sum{}, false
	}
	return s, true
}

// verify compares a file with its sum, and remembers it if they agree.
func (c *cache) verify(name string) bool {
	want, ok := c.loadSum(name)
	if !ok {
		return false
	}
	f, err := os.Open(filepath.Join(c.dir, name))
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() != want.length {
		return false
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil || hex.EncodeToString(h.Sum(nil)) != want.sha256 {
		return false
	}
	c.enter(name, st, true)
	return true
}

// forget removes one document. Those who are reading it read on.
func (c *cache) forget(name string) {
	c.mu.Lock()
	c.leave(name)
	c.mu.Unlock()
	path := filepath.Join(c.dir, name)
	// What cannot be removed now goes when the cache is tidied, at the next start.
	_ = c.disk.remove(path + ".sum")
	_ = c.disk.remove(path)
}

// summing passes bytes on and sums them; it keeps the error of its writer apart
// from those of whoever writes.
type summing struct {
	w      io.Writer
	hash   hash.Hash
	length int64
	err    error
}

func (s *summing) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.hash.Write(p[:n])
	s.length += int64(n)
	s.err = err
	return n, err
}

func (s *summing) sum() sum { return sum{s.length, hex.EncodeToString(s.hash.Sum(nil))} }

// flight is one document being made, and those who wait for it.
type flight struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int
	data    []byte
	err     error
}

// once runs work for all who ask for name at the same time. It goes on as long
// as one of them waits.
func (c *cache) once(ctx context.Context, name string, work func(context.Context) ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	f := c.flights[name]
	if f == nil {
		workCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{done: make(chan struct{}), cancel: cancel}
		c.flights[name] = f
		go func() {
			defer cancel()
			f.err = defect.Guard(func() (err error) {
				f.data, err = work(workCtx)
				return err
			})
			c.land(name, f)
			close(f.done)
		}()
	}
	f.waiters++
	c.mu.Unlock()

	select {
	case <-f.done:
		return f.data, f.err
	case <-ctx.Done():
		c.mu.Lock()
		f.waiters--
		last := f.waiters == 0
		if last && c.flights[name] == f {
			delete(c.flights, name)
		}
		c.mu.Unlock()
		if last {
			// Whoever leaves last waits for its end: no file is written any more
			// once all requests are answered.
			f.cancel()
			<-f.done
		}
		return nil, ctx.Err()
	}
}

// land takes a flight off the list, so that who comes now starts afresh.
func (c *cache) land(name string, f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flights[name] == f {
		delete(c.flights, name)
	}
}

// forgetFolder removes all documents in a folder.
func (c *cache) forgetFolder(folder string) {
	c.mu.Lock()
	for name := range c.files {
		if strings.HasPrefix(name, folder+string(filepath.Separator)) {
			c.leave(name)
		}
	}
	c.mu.Unlock()
	_ = c.disk.remove(filepath.Join(c.dir, folder))
}

// tidy removes open documents, which are of an earlier run, files that were never
// finished, and what is too much; and counts the rest, oldest first.
func (c *cache) tidy() error {
	c.forgetFolder("open")
	type found struct {
		name string
		st   fs.FileInfo
	}
	var all []found
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil || d.IsDir() || strings.HasSuffix(path, ".sum"):
			return err
		case strings.HasSuffix(path, ".tmp"):
			return c.disk.remove(path)
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		name, relErr := filepath.Rel(c.dir, path)
		all = append(all, found{name, st})
		return errors.Join(err, relErr)
	})
	slices.SortFunc(all, func(a, b found) int { return a.st.ModTime().Compare(b.st.ModTime()) })
	for _, f := range all {
		c.mu.Lock()
		counted := c.files[f.name] != nil // it is in use already
		c.mu.Unlock()
		if !counted {
			c.enter(f.name, f.st, false)
		}
	}
	c.evict("")
	return err
}
