package export

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/internal/publish"
)

// own is the folder in the tree with what is bridge's own: what was exported, the
// configuration of web servers, and files that are being written. It is no part of what
// is published.
const own = ".bridge"

const (
	stateFile   = own + "/export.json"
	markerFile  = own + "/underway"
	lockName    = own + "/lock"
	stageFolder = own + "/new"
)

// InputError: the folder cannot take an export, or another option is wrong. Nothing was
// written.
type InputError struct{ Option, Why string }

func (e *InputError) Error() string { return e.Option + ": " + e.Why }

// tree is the folder that files are exported to. One goroutine uses it. All paths are
// relative to it, with slashes, and none leads out of it, whatever symbolic links are
// in it.
type tree struct {
	path string // absolute
	root *os.Root
	dir  *os.File // the folder itself
	lock *os.File
	// step wraps each change of the file system, and can make it fail, before it took
	// effect or although it did: for tests.
	step   func(op, path string, do func() error) error
	staged int
	made   map[string]bool // folders that are known to be there
	free   []*bufio.Writer // to be used again
	copied [64 << 10]byte  // for copies
	Wrote  Written
}

// Written counts what an export has changed.
type Written struct {
	Files   int64 `json:"files"`
	Bytes   int64 `json:"bytes"`
	Removed int64 `json:"removed"`
}

// openTree opens a folder for an export, and makes it where there is none. It must be
// empty, or hold an earlier export.
func openTree(folder string) (*tree, error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, &InputError{folder, "it cannot be made: " + err.Error()}
	}
	// The folder itself may be a link. What is in it is not followed out of it.
	real, err := filepath.EvalSymlinks(folder)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		return nil, &InputError{folder, err.Error()}
	}
	t := &tree{path: real, made: map[string]bool{}}
	if t.root, err = os.OpenRoot(real); err != nil {
		return nil, err
	}
	if _, err := t.root.Lstat(own); len(entries) > 0 && err != nil {
		return nil, errors.Join(&InputError{folder, "it is not empty, and holds no export: give a new or an empty folder with --out"}, t.close())
	}
	if err := t.takeLock(folder); err != nil {
		return nil, errors.Join(err, t.close())
	}
	if t.dir, err = os.Open(real); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *tree) takeLock(folder string) (err error) {
	if err := t.root.MkdirAll(own, 0o777); err != nil {
		return err
	}
	if t.lock, err = t.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return err
	}
	if err := unix.Flock(int(t.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &InputError{folder, "another bridge export is writing it: wait until it has ended"}
	}
	return nil
}

func (t *tree) close() error {
	var errs []error
	for _, f := range []*os.File{t.dir, t.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(append(errs, t.root.Close())...)
}

func (t *tree) do(op, path string, step func() error) error {
	if t.step == nil {
		return step()
	}
	return t.step(op, path, step)
}

// sync makes everything durable that was written so far.
func (t *tree) sync() error { return t.do("sync", "", func() error { return syncAll(t.dir) }) }

// folder makes the folder of a file.
func (t *tree) folder(name string) error {
	dir := path.Dir(name)
	if t.made[dir] {
		return nil
	}
	err := t.do("mkdir", dir, func() error { return t.root.MkdirAll(dir, 0o777) })
	t.made[dir] = err == nil
	return err
}

// sum identifies the bytes of a file.
type sum struct {
	SHA256 string `json:"sha256"` // in hex
	Length int64  `json:"length"`
}

func sumOf(h *publish.HashWriter) (is sum) {
	is.Length, is.SHA256 = h.Sum()
	return is
}

// draft is a new file that has its place in the tree only when it is published.
type draft struct {
	sum
	name string // where it is until then
}

// newName returns the path of a new draft.
func (t *tree) newName() string {
	t.staged++
	return fmt.Sprintf("%s/%d", stageFolder, t.staged)
}

// stageFile is a draft that is being written.
type stageFile struct {
	*publish.HashWriter
	t      *tree
	folder *os.Root
	name   string // in the folder
	f      *os.File
	buf    *bufio.Writer
}

func (t *tree) create() (*stageFile, error) {
	name := t.newName()
	if err := t.folder(name); err != nil {
		return nil, err
	}
	return t.createIn(t.root, name)
}

func (t *tree) createIn(folder *os.Root, name string) (*stageFile, error) {
	s := &stageFile{t: t, folder: folder, name: name}
	if err := t.do("create", name, func() (err error) {
		s.f, err = folder.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		return err
	}); err != nil {
		return nil, err
	}
	if n := len(t.free); n > 0 {
		s.buf, t.free = t.free[n-1], t.free[:n-1]
		s.buf.Reset(s.f)
	} else {
		s.buf = bufio.NewWriterSize(s.f, 256<<10)
	}
	s.HashWriter = publish.NewHashWriter(s.buf)
	return s, nil
}

// end closes a draft; with an error it removes it.
func (s *stageFile) end(err error) (draft, error) {
	if err == nil {
		err = s.t.do("write", s.name, s.buf.Flush)
	}
	if closed := s.f.Close(); err == nil {
		err = closed
	}
	s.t.free = append(s.t.free, s.buf)
	if err != nil {
		_ = s.folder.Remove(s.name) // else the next export removes it
		return draft{}, err
	}
	return draft{sumOf(s.HashWriter), s.name}, nil
}

func (t *tree) stage(write func(w io.Writer) error) (draft, error) {
	s, err := t.create()
	if err != nil {
		return draft{}, err
	}
	return s.end(write(s))
}

// publish moves a draft to its place in the tree at once, and replaces what is there.
func (t *tree) publish(d draft, to string, modified time.Time) error {
	if err := t.folder(to); err != nil {
		return err
	}
	err := t.root.Chtimes(d.name, time.Time{}, modified)
	if err == nil {
		err = t.do("rename", to, func() error { return t.root.Rename(d.name, to) })
	}
	if err == nil {
		t.Wrote.Files++
		t.Wrote.Bytes += d.Length
	}
	return err
}

// discard removes a draft that is not needed.
func (t *tree) discard(d draft) error { return t.root.Remove(d.name) }

// size returns the length of a file, -1 where there is no regular file.
func (t *tree) size(name string) int64 {
	info, err := t.root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return -1
	}
	return info.Size()
}

// holds reports whether a file is there and has just those bytes.
func (t *tree) holds(name string, want sum) (bool, error) {
	if t.size(name) != want.Length {
		return false, nil
	}
	return t.holdsIn(t.root, name, want)
}

func (t *tree) holdsIn(folder *os.Root, name string, want sum) (bool, error) {
	f, err := folder.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	h := publish.NewHashWriter(io.Discard)
	if _, err := io.CopyBuffer(h, readOnly{f}, t.copied[:]); err != nil {
		return false, err
	}
	return sumOf(h) == want, nil
}

// readOnly hides that a reader can write itself, so that io.CopyBuffer uses the buffer.
type readOnly struct{ io.Reader }

// later returns a time of modification for what replaces a file: not before now, and in
// a later second than that of the file, since web servers and their clients compare
// seconds.
func (t *tree) later(name string, now time.Time) time.Time {
	info, err := t.root.Lstat(name)
	if err != nil || info.ModTime().Unix() < now.Unix() {
		return now
	}
	return info.ModTime().Truncate(time.Second).Add(time.Second)
}

// remove removes a file, and no folder; that it is not there is no error.
func (t *tree) remove(name string) error {
	if _, err := t.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := t.do("remove", name, func() error { return t.root.Remove(name) })
	if err == nil {
		t.Wrote.Removed++
	}
	return err
}

// removeAll removes a file or folder of bridge's own.
func (t *tree) removeAll(name string) error {
	delete(t.made, name)
	return t.do("remove", name, func() error { return t.root.RemoveAll(name) })
}

// keep writes a file of bridge's own, unless it holds that already.
func (t *tree) keep(name string, data []byte) error {
	if old, err := t.root.ReadFile(name); err == nil && bytes.Equal(old, data) {
		return nil
	}
	d, err := t.stage(func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return t.move(d, name)
}

// move moves a draft to its place among bridge's own files.
func (t *tree) move(d draft, name string) error {
	if err := t.folder(name); err != nil {
		return err
	}
	return t.do("rename", name, func() error { return t.root.Rename(d.name, name) })
}

// files calls do for each file below a folder of the tree but those below folders that
// skip names.
func (t *tree) files(folder string, skip func(name string) bool, do func(name string) error) error {
	err := fs.WalkDir(t.root.FS(), folder, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skip(name):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		return do(name)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeEmpty removes the folders below a folder that have nothing in them, and the
// folder itself, but those that skip names.
func (t *tree) removeEmpty(folder string, skip func(name string) bool) error {
	var folders []string
	err := fs.WalkDir(t.root.FS(), folder, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			if skip(name) {
				return fs.SkipDir
			}
			folders = append(folders, name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for i := len(folders) - 1; i >= 0 && err == nil; i-- {
		if rerr := t.root.Remove(folders[i]); rerr != nil && !errors.Is(rerr, unix.ENOTEMPTY) && !errors.Is(rerr, unix.EEXIST) {
			err = rerr
		}
		delete(t.made, folders[i])
	}
	return err
}

// inside reports whether a folder is the same as another one, or below it.
func inside(folder, of string) bool {
	rel, err := filepath.Rel(of, folder)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
