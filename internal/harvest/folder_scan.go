package harvest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pmh-bridge/bridge/internal/fetch"
)

const (
	// maxFolderDepth is how deep folders may be nested.
	maxFolderDepth = 128
	// maxMounts is how many mounted file systems below a folder are remembered.
	maxMounts = 1000
	// settledAfter is how long a file must have been unchanged for its times to show that
	// it is the same: the times of file systems are coarse, some have steps of two
	// seconds.
	settledAfter = 2 * time.Second
)

// folderFile is a file as its folder shows it. Its fields are exported for gob.
type folderFile struct {
	Record string // identifier of its record
	Path   string // relative to the folder, with slashes, as the file system has it
	Size   int64
	// Modified and Changed are times of the file system, in nanoseconds.
	Modified, Changed int64
	// Fresh: it was changed so recently that it may change again at the same time.
	Fresh bool
}

// href returns the place of the file in its folder, as the log keeps it.
func (f *folderFile) href() string { return escapePath(f.Path) }

// state appends the values by which the file is recognized as unchanged.
func (f *folderFile) state(b []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(f.Path))), f.Path...)
	for _, n := range []int64{f.Size, f.Modified, f.Changed} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	if f.Fresh {
		return append(b, 1)
	}
	return append(b, 0)
}

// escapePath escapes a path for a URL or a URN, byte for byte: a name need not be in
// UTF-8.
func escapePath(name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// isTemporary reports whether a file is hidden, or is named as those that are still
// being written are.
func isTemporary(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "~") || strings.HasSuffix(name, "~") {
		return true
	}
	switch strings.ToLower(path.Ext(name)) {
	case ".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".swp":
		return true
	}
	return false
}

// folderScan is what one look through a folder has found.
type folderScan struct {
	names, states [sha256.Size]byte // digests of the paths, and of what shows changes
	mounts        []string          // folders on another file system than the one around them
	// unread is why some of it could not be looked through; nil if all was.
	unread error
}

// folderScanner looks through a folder.
type folderScanner struct {
	ctx   context.Context
	began time.Time
	found folderScan
	names hash.Hash
	state hash.Hash
	file  func(f *folderFile) error
	// problem is called with what is in the folder and cannot be a record.
	problem func(rule, text string)
}

// scanFolder looks through a folder, in the order of names, and calls file for each file
// that may be a record, and problem for each that cannot be one. It opens no file.
func scanFolder(ctx context.Context, root *os.Root, now time.Time, file func(*folderFile) error, problem func(rule, text string)) (folderScan, error) {
	s := &folderScanner{ctx: ctx, began: now, names: sha256.New(), state: sha256.New(), file: file, problem: problem}
	info, err := root.Stat(".")
	if err != nil {
		return s.found, err
	}
	device := deviceOf(info)
	if around, err := os.Stat(filepath.Dir(root.Name())); err == nil && deviceOf(around) != device {
		s.found.mounts = append(s.found.mounts, ".")
	}
	if err := s.folder(root, root, "", device, 0); err != nil {
		return s.found, err
	}
	s.names.Sum(s.found.names[:0])
	s.state.Sum(s.found.states[:0])
	return s.found, nil
}

// folder looks through one folder, whose path relative to the root ends in a slash.
func (s *folderScanner) folder(root, dir *os.Root, at string, device uint64, depth int) error {
	entries, err := readDir(dir)
	if err != nil {
		if depth == 0 {
			return err
		}
		s.unread(at, err)
	}
	for _, e := range entries {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		name := e.Name()
		switch kind := e.Type(); {
		case strings.HasPrefix(name, "."), !kind.IsDir() && isTemporary(name):
		case kind.IsDir():
			if err := s.below(root, dir, at, name, device, depth+1); err != nil {
				return err
			}
		case kind&fs.ModeSymlink != 0:
			if err := s.link(root, at+name); err != nil {
				return err
			}
		case kind.IsRegular() || kind == fs.ModeIrregular:
			info, err := dir.Lstat(name)
			if err := s.add(at+name, info, err); err != nil {
				return err
			}
		default:
			s.problem(ruleSpecial, fmt.Sprintf("%s is no regular file: it is not taken", shown(at+name)))
		}
	}
	return nil
}

// readDir returns what is in a folder in the order of names, as far as that can be read.
func readDir(dir *os.Root) ([]fs.DirEntry, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// unread notes that something could not be looked at.
func (s *folderScanner) unread(name string, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("it went away while the folder was read")
	}
	s.problem(ruleUnread, fmt.Sprintf("%s cannot be read: %v", shown(name), err))
	if s.found.unread == nil {
		s.found.unread = fmt.Errorf("%s: %w", shown(name), err)
	}
}

// below looks through a folder in a folder.
func (s *folderScanner) below(root, dir *os.Root, at, name string, device uint64, depth int) error {
	if depth > maxFolderDepth {
		s.unread(at+name, fmt.Errorf("more than %d folders lie in each other", maxFolderDepth))
		return nil
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		s.unread(at+name, err)
		return nil
	}
	defer sub.Close()
	info, err := sub.Stat(".")
	if err != nil {
		s.unread(at+name, err)
		return nil
	}
	own := deviceOf(info)
	if own != device && len(s.found.mounts) < maxMounts {
		s.found.mounts = append(s.found.mounts, at+name)
	}
	return s.folder(root, sub, at+name+"/", own, depth)
}

// link takes the file that a symbolic link leads to, if that lies in the folder. Links to
// folders are not followed: what lies in the folder is met there, and so nothing is
// taken twice, or for ever.
func (s *folderScanner) link(root *os.Root, name string) error {
	info, err := root.Stat(filepath.FromSlash(name))
	switch {
	case err != nil && !leadsNowhere(err):
		s.unread(name, err)
		return nil
	case err != nil:
		s.problem(ruleLink, fmt.Sprintf("%s is a symbolic link that leads to nothing, or out of the folder: it is not taken", shown(name)))
		return nil
	case info.IsDir():
		s.problem(ruleLink, fmt.Sprintf("%s is a symbolic link to a folder: it is not followed", shown(name)))
		return nil
	case !info.Mode().IsRegular():
		s.problem(ruleSpecial, fmt.Sprintf("%s is no regular file: it is not taken", shown(name)))
		return nil
	}
	return s.add(name, info, nil)
}

// leadsNowhere reports whether a link leads to nothing, in a circle, or out of the
// folder, which os.Root says itself. With any other error the file may exist, but
// cannot be looked at.
func leadsNowhere(err error) bool {
	var number syscall.Errno
	return !errors.As(err, &number) || slices.Contains([]syscall.Errno{syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG}, number)
}

func (s *folderScanner) add(name string, info fs.FileInfo, err error) error {
	if err != nil {
		s.unread(name, err)
		return nil
	}
	if !info.Mode().IsRegular() {
		s.problem(ruleSpecial, fmt.Sprintf("%s is no regular file: it is not taken", shown(name)))
		return nil
	}
	f := &folderFile{Path: name, Size: info.Size(), Modified: info.ModTime().UnixNano(), Changed: fetch.ChangedAt(info)}
	f.Fresh = max(f.Modified, f.Changed) > s.began.Add(-settledAfter).UnixNano()
	_, _ = s.names.Write(append([]byte(name), 0)) // a hash takes everything
	_, _ = s.state.Write(f.state(nil))
	if s.file == nil {
		return nil
	}
	return s.file(f)
}

// shown returns a path for a message.
func shown(name string) string { return strings.ToValidUTF8(strings.TrimSuffix(name, "/"), "\uFFFD") }
