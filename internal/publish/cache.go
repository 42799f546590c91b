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

// cache holds rendered documents as files whose names determine their bytes, so
// nothing in it is ever stale. It may be deleted at any time, also while it is used. A
// file counts only with the sum beside it, which is written last, and only if its
// length and hash agree with that sum: an unfinished or damaged file is ignored.
//
// Above its size the least recently used documents are removed; readers that have them
// open are not disturbed.
//
// While it cannot be written, documents are rendered in memory.
type cache struct {
	dir  string
	disk disk
	size int64
	// memory is the size of all documents in memory above which no more are made: clients
	// that read slowly keep them there.
	memory int
	// full returns why nothing more may be written, nil while the disk has room; a nil
	// func means that it always has.
	full func() error
	// changed is called with the reason when the cache cannot be written any more, and with
	// nil when it can again. What full returns is not reported: who says that has said it.
	changed func(why error)
	// slots bounds how many documents are made at a time, and with that the memory
	// and the readers of the log that they take.
	slots chan struct{}

	mu       sync.Mutex
	setSlots map[string]chan struct{} // by set, so that one set does not take all slots
	calls    map[string]*call
	files    map[string]*cachedFile
	bytes    int64  // that files take on the disk
	uses     uint64 // how often a file was used, as a clock
	refused  bool   // whether changed was last called with a reason

	inUse      map[string]*memoryDoc // documents that could not be written, by name
	inUseBytes int
}

// How many documents are made at a time: in all, and of one set.
const (
	slotsInAll = 6
	slotsOfSet = 2
)

// cachedFile is a file of the cache.
type cachedFile struct {
	size    int64
	time    time.Time
	checked bool // its hash has been compared since it last changed
	used    uint64
}

// block is what a file system gives out at a time.
const block = 4096

// onDisk is about how many bytes the file takes there, with its sum: of small documents these
// are many times their own.
func (f *cachedFile) onDisk() int64 { return (f.size+block-1)/block*block + block }

// sum is the length and the hash of some bytes.
type sum struct {
	length int64
	sha256 string
}

// renderFunc writes a document.
type renderFunc func(ctx context.Context, w io.Writer) error

func newCache(dir string, d disk, size int64) *cache {
	return &cache{dir: dir, disk: d, size: size, memory: 4 * memoryLimit, slots: make(chan struct{}, slotsInAll), setSlots: map[string]chan struct{}{},
		calls: map[string]*call{}, files: map[string]*cachedFile{}, inUse: map[string]*memoryDoc{}}
}

// acquire waits until a document of the set that a name belongs to may be rendered.
func (c *cache) acquire(ctx context.Context, name string) (leave func(), err error) {
	parts := strings.SplitN(filepath.ToSlash(name), "/", 3) // see cacheName and partFolder
	set := parts[min(1, len(parts)-1)]
	c.mu.Lock()
	own := c.setSlots[set]
	if own == nil {
		own = make(chan struct{}, slotsOfSet)
		c.setSlots[set] = own
	}
	c.mu.Unlock()
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots; <-own }, nil
	case <-ctx.Done():
		<-own
		return nil, ctx.Err()
	}
}

// open returns the document called name and its length, and renders it first if
// it is not there. However many ask for it at once, it is rendered once.
func (c *cache) open(ctx context.Context, name string, render renderFunc) (io.ReadSeekCloser, int64, error) {
	// A file may be removed after it was made and before it is opened: try again, and in the
	// end make the document in memory.
	for range 3 {
		if f, n := c.openChecked(name); f != nil {
			return f, n, nil
		}
		data, err := c.share(ctx, name, func(ctx context.Context) ([]byte, error) {
			return c.make(ctx, name, render)
		})
		if err != nil {
			return nil, 0, err
		}
		if data != nil {
			return c.openShared(name, data)
		}
	}
	data, err := c.inMemory(ctx, name, render)
	if err != nil {
		return nil, 0, err
	}
	return c.openShared(name, data)
}

// memoryFile is a document that is no file.
type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

// openMemory returns a document that was made in memory, unless that failed.
func openMemory(data []byte, err error) (io.ReadSeekCloser, int64, error) {
	if err != nil {
		return nil, 0, err
	}
	return memoryFile{bytes.NewReader(data)}, int64(len(data)), nil
}

// memoryDoc is a document that could not be written. All who read it at the same time share
// it.
type memoryDoc struct {
	data    []byte
	readers int
}

// sharedFile is a memoryDoc for one of its readers.
type sharedFile struct {
	*bytes.Reader
	close func()
}

func (f sharedFile) Close() error {
	f.close()
	return nil
}

// openShared opens a document in memory, until its last reader has closed it.
func (c *cache) openShared(name string, data []byte) (io.ReadSeekCloser, int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.inUse[name]
	if d == nil {
		d = &memoryDoc{data: data}
		c.inUse[name] = d
		c.inUseBytes += len(data)
	}
	d.readers++
	return sharedFile{bytes.NewReader(d.data), sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d.readers--; d.readers == 0 {
			delete(c.inUse, name)
			c.inUseBytes -= len(d.data)
		}
	})}, int64(len(d.data)), nil
}

// openChecked opens a file whose hash is known to be right; nil when there is none.
func (c *cache) openChecked(name string) (*os.File, int64) {
	c.mu.Lock()
	var k cachedFile
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

// make ensures that the file called name is whole, and renders it if need be. When it
// cannot be written, make returns the document itself.
func (c *cache) make(ctx context.Context, name string, render renderFunc) ([]byte, error) {
	if c.verify(name) {
		return nil, nil
	}
	leave, err := c.acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	err = c.store(ctx, name, render)
	var unwritable *storeError
	if !errors.As(err, &unwritable) {
		if err == nil {
			c.report(nil)
		}
		return nil, err
	}
	c.report(unwritable)
	data, err := c.inMemory(ctx, name, render)
	if err != nil {
		return nil, errors.Join(err, unwritable)
	}
	return data, nil
}

// report calls changed when the cache can no longer be written, or can be again. That a file or
// folder is gone is our own doing: cleanup removes them, also beside the first requests.
func (c *cache) report(why error) {
	if errors.Is(why, fs.ErrNotExist) || why != nil && c.full != nil && c.full() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if (why != nil) != c.refused && c.changed != nil {
		c.refused = why != nil
		c.changed(why)
	}
}

// storeError is a failure to write a document to the disk, not to render it.
type storeError struct{ err error }

func (e *storeError) Error() string {
	return fmt.Sprintf("the cache cannot be written (is the disk full?): %v", e.err)
}
func (e *storeError) Unwrap() error { return e.err }

// memoryLimit is the size up to which a document is made in memory when the
// cache cannot be written: every document keeps to resourcesync.MaxBytes, save
// a Change List with a gigantic entry.
const memoryLimit = 64 << 20

func (c *cache) inMemory(ctx context.Context, name string, render renderFunc) ([]byte, error) {
	c.mu.Lock()
	d, held := c.inUse[name], c.inUseBytes
	c.mu.Unlock()
	if d != nil {
		return d.data, nil
	}
	if held > c.memory {
		return nil, &NotReadyError{Path: name, RetryAfter: memoryWait}
	}
	b := limitedBuffer{limit: memoryLimit}
	if err := render(ctx, &b); err != nil {
		return nil, err
	}
	return b.buf, nil
}

type limitedBuffer struct {
	buf   []byte
	limit int
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
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
	sw := NewHashWriter(f)
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
	c.add(name, st, true)
	c.evict(name)
	return nil
}

// add counts a file.
func (c *cache) add(name string, st fs.FileInfo, checked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uncount(name)
	c.uses++
	f := &cachedFile{size: st.Size(), time: st.ModTime(), checked: checked, used: c.uses}
	c.files[name] = f
	c.bytes += f.onDisk()
}

// uncount stops counting a file; c.mu is held.
func (c *cache) uncount(name string) {
	if f := c.files[name]; f != nil {
		c.bytes -= f.onDisk()
		delete(c.files, name)
	}
}

// evict removes the least recently used files, but not the one called but, until a
// tenth of the size is free. So it does not run for each new document.
func (c *cache) evict(but string) {
	c.mu.Lock()
	var names []string
	if c.bytes > c.size {
		for name := range c.files {
			if name != but {
				names = append(names, name)
			}
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(c.files[a].used, c.files[b].used) })
		held, n := c.bytes, 0
		for n < len(names) && held > c.size-c.size/10 {
			held -= c.files[names[n]].onDisk()
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

// verify compares a file with its sum, and counts it as checked if they agree.
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
	if got, err := sumOf(f, false); err != nil || got != want {
		return false
	}
	c.add(name, st, true)
	return true
}

// forget removes one document. Readers that have it open are not disturbed.
func (c *cache) forget(name string) {
	c.mu.Lock()
	c.uncount(name)
	c.mu.Unlock()
	path := filepath.Join(c.dir, name)
	// What cannot be removed now is removed by cleanup at the next start.
	_ = c.disk.remove(path + ".sum")
	_ = c.disk.remove(path)
}

// HashWriter passes bytes on and hashes them. It keeps the error of its writer apart
// from those of its caller.
type HashWriter struct {
	w      io.Writer
	hash   hash.Hash
	length int64
	err    error
}

// NewHashWriter returns a HashWriter that passes bytes on to w.
func NewHashWriter(w io.Writer) *HashWriter { return &HashWriter{w: w, hash: sha256.New()} }

func (s *HashWriter) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.hash.Write(p[:n])
	s.length += int64(n)
	s.err = err
	return n, err
}

// Sum returns the length and the SHA-256, in hex, of what was written.
func (s *HashWriter) Sum() (length int64, sha256 string) {
	return s.length, hex.EncodeToString(s.hash.Sum(nil))
}

func (s *HashWriter) sum() (is sum) {
	is.length, is.sha256 = s.Sum()
	return is
}

// call is the rendering of one document, shared by all that wait for it.
type call struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int
	data    []byte
	err     error
}

// share runs work once for all callers that ask for name at the same time. The work
// goes on as long as one of them waits.
func (c *cache) share(ctx context.Context, name string, work func(context.Context) ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	f := c.calls[name]
	if f == nil {
		workCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &call{done: make(chan struct{}), cancel: cancel}
		c.calls[name] = f
		go func() {
			defer cancel()
			f.err = defect.Guard(func() (err error) {
				f.data, err = work(workCtx)
				return err
			})
			c.endCall(name, f)
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
		if last && c.calls[name] == f {
			delete(c.calls, name)
		}
		c.mu.Unlock()
		if last {
			// The last one to leave waits for its end: no file is written any more once
			// all requests have ended.
			f.cancel()
			<-f.done
		}
		return nil, ctx.Err()
	}
}

// endCall removes a finished call, so that the next caller starts a new one.
func (c *cache) endCall(name string, f *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[name] == f {
		delete(c.calls, name)
	}
}

// forgetFolder removes all documents in a folder.
func (c *cache) forgetFolder(folder string) {
	c.mu.Lock()
	for name := range c.files {
		if strings.HasPrefix(name, folder+string(filepath.Separator)) {
			c.uncount(name)
		}
	}
	c.mu.Unlock()
	_ = c.disk.remove(filepath.Join(c.dir, folder))
}

// cleanup removes open documents, which are of an earlier run, and unfinished files.
// It counts the rest, oldest first, and removes what exceeds the size.
func (c *cache) cleanup() error {
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
			c.add(f.name, f.st, false)
		}
	}
	c.evict("")
	return err
}
