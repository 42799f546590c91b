//go:build unix

package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// Options are the options of a restore.
//
// Destinations know what was published after the backup was made, but the log does not. So
// the log continues in a new epoch: new feed ids, and Change Lists that begin now.
type Options struct {
	// Moved means that nothing was written or served since the backup was made. Then
	// Destinations continue as before. Restore refuses it for a backup that was made while
	// a process was writing.
	Moved bool
	// AcceptClock confirms a clock that is far ahead of the backup.
	AcceptClock bool
}

// ErrNotMoved means that Options.Moved cannot be right.
var ErrNotMoved = errors.New("the backup was made while a process was writing the data folder, so it lacks what was published afterwards: restore it without --moved; to move a folder, stop bridge serve first, and then make the backup")

// ErrLost means that Options.Moved would hide a loss of events.
var ErrLost = errors.New("the log had lost its end, or its file head, when the backup was made, and what it lacks may have been published: restore it without --moved")

// ErrInUse means that the folder is not empty.
var ErrInUse = errors.New("not empty: give a new or an empty data folder")

// restoring is the end of the names of incomplete files.
const restoring = ".restoring"

// mostManifest bounds the entries that are read into memory.
const mostManifest = 64 << 20

// Restore reads a backup, writes its files to a new or empty folder, and begins a new epoch
// of its log. The files get their names when all of them were read and their hashes are
// right. A failure leaves only the lock, which Restore holds meanwhile: a bridge that
// starts in the folder would begin a log of its own.
func Restore(ctx context.Context, from io.Reader, folder string, o Options) (m Manifest, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return m, err
	}
	if err := inFolder(folder); err != nil { // log.db would be a second log
		return m, err
	}
	if err := refuseFull(folder); err != nil { // before a file of somebody else is taken for the lock
		return m, err
	}
	release, err := eventlog.Hold(folder, holder)
	if err != nil {
		return m, err
	}
	m, err = putBack(ctx, from, folder, o)
	if err = errors.Join(err, release()); err != nil {
		return m, err
	}
	log, err := eventlog.Open(ctx, folder, eventlog.Options{Holder: holder, AcceptClock: o.AcceptClock, Moved: o.Moved, Restored: m.Made})
	if err != nil {
		if left := takeBack(folder); left != nil {
			return m, fmt.Errorf("the files were restored, but the log cannot be opened: %w", errors.Join(err, left))
		}
		return m, fmt.Errorf("nothing was restored: the log of the backup cannot be opened: %w", err)
	}
	return m, log.Close()
}

// takeBack removes the files that were restored, so that Restore can be called again. It leaves
// them to a process that has opened them meanwhile.
func takeBack(folder string) error {
	release, err := eventlog.Hold(folder, holder)
	if err != nil {
		return err
	}
	for _, name := range []string{eventlog.FileName, contentName, eventlog.HeadName} { // the log first: without it nothing is used
		err = errors.Join(err, content.RemoveFile(filepath.Join(folder, name)))
	}
	return errors.Join(err, release())
}

// holder is the command that the lock of the folder names meanwhile.
const holder = "bridge restore"

// putBack reads a backup, and writes its files to a folder that the caller has locked.
func putBack(ctx context.Context, from io.Reader, folder string, o Options) (m Manifest, err error) {
	if err := prepare(folder); err != nil {
		return m, err
	}
	r := &reader{ctx: ctx, folder: folder, o: o, sums: map[string]string{}}
	if err := r.read(from); err != nil {
		for _, name := range r.written {
			_ = os.Remove(filepath.Join(folder, name+restoring)) // the other error is reported
		}
		return r.manifest, fmt.Errorf("nothing was restored: %w", err)
	}
	// Rename the log last: a folder with contents and no log is not used as a new one.
	slices.Reverse(r.written)
	for _, name := range r.written {
		if err := os.Rename(filepath.Join(folder, name+restoring), filepath.Join(folder, name)); err != nil {
			return r.manifest, err
		}
	}
	return r.manifest, database.SyncDir(folder)
}

// prepare returns an error unless the folder is empty. It removes the remains of an
// interrupted Restore.
func prepare(folder string) error {
	if err := refuseFull(folder); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name == contentName: // before the file that shows what it is
			err = content.RemoveFile(filepath.Join(folder, name))
		case strings.HasSuffix(name, restoring):
			err = os.Remove(filepath.Join(folder, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refuseFull returns an error unless a folder has only its lock, and the remains of an
// interrupted Restore or Copy: of a Restore that was killed between its renames the contents too.
func refuseFull(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	killed := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == eventlog.FileName+restoring })
	for _, e := range entries {
		if name := e.Name(); (!killed || name != contentName) && name != "lost+found" && name != eventlog.LockName && name != eventlog.CopyingName+".new" && !strings.HasSuffix(name, restoring) {
			return fmt.Errorf("%s has %s in it: %w", folder, name, ErrInUse)
		}
	}
	return nil
}

// reader reads the entries of a backup.
type reader struct {
	ctx      context.Context
	folder   string
	o        Options
	manifest Manifest
	sums     map[string]string // by name, of what was read
	written  []string          // names of the written files
}

func (r *reader) read(from io.Reader) error {
	z, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	entries := tar.NewReader(z)
	for first, ended := true, false; ; first = false {
		h, err := entries.Next()
		switch {
		case err == io.EOF && ended:
			_, err := io.Copy(io.Discard, z) // the checksum at the end is read too
			return err
		case err == io.EOF && !first:
			return errors.New("the backup is cut off: it has no " + sumsName)
		case err != nil && first:
			return fmt.Errorf("it is no backup of bridge, or damaged: %w", err)
		case err != nil:
			return fmt.Errorf("the backup is damaged or cut off: %w", err)
		case first != (h.Name == manifestName) || ended:
			return fmt.Errorf("it is no backup of bridge: it has %q in an unexpected place", h.Name)
		}
		if err := r.entry(h, entries); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		ended = h.Name == sumsName
	}
}

func (r *reader) entry(h *tar.Header, from io.Reader) error {
	sum := sha256.New()
	from = io.TeeReader(&entryReader{r.ctx, from}, sum)
	switch h.Name {
	case manifestName, sumsName:
		text, err := io.ReadAll(io.LimitReader(from, mostManifest))
		if err != nil {
			return err
		}
		if h.Name == sumsName {
			return r.compare(text)
		}
		if err := r.begin(text); err != nil {
			return err
		}
	case eventlog.FileName, contentName:
		if slices.Contains(r.written, h.Name) {
			return errors.New("it is no backup of bridge: it has this twice")
		}
		r.written = append(r.written, h.Name)
		if err := extract(filepath.Join(r.folder, h.Name+restoring), from); err != nil {
			return err
		}
	default:
		return errors.New("it is no backup of this version of bridge, which knows no such entry")
	}
	r.sums[h.Name] = fmt.Sprintf("%x", sum.Sum(nil))
	return nil
}

// begin reads the manifest.
func (r *reader) begin(text []byte) error {
	if err := json.Unmarshal(text, &r.manifest); err != nil {
		return fmt.Errorf("the backup is damaged: %w", err)
	}
	if r.manifest.Format != format {
		return fmt.Errorf("it was made by another bridge (%s; format %d, this one knows %d): use that one", r.manifest.Bridge, r.manifest.Format, format)
	}
	if r.o.Moved && r.manifest.Writing {
		return ErrNotMoved
	}
	if r.o.Moved && r.manifest.Lost {
		return ErrLost
	}
	return nil
}

// compare compares the hashes of what was read with those that were written.
func (r *reader) compare(text []byte) error {
	if len(r.written) == 0 || r.written[0] != eventlog.FileName {
		return errors.New("the backup has no " + eventlog.FileName)
	}
	n := 0
	for line := range bytes.Lines(text) {
		want, name, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), "  ")
		if got := r.sums[name]; got != want {
			return fmt.Errorf("the backup is damaged: %s has the SHA-256 %s, expected %s", name, got, want)
		}
		n++
	}
	if n != len(r.sums) {
		return fmt.Errorf("the backup is damaged: %d hashes of %d entries", n, len(r.sums))
	}
	return nil
}

// extract writes a file, durably.
func extract(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return database.Explain(path, err)
	}
	_, err = io.Copy(f, from)
	if err == nil {
		err = f.Sync()
	}
	return database.Explain(path, errors.Join(err, f.Close()))
}

// entryReader reads an entry until ctx ends.
type entryReader struct {
	ctx  context.Context
	from io.Reader
}

func (r *entryReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.from.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF is never wrapped
		err = fmt.Errorf("the backup is damaged or cut off: %w", err)
	}
	return n, err
}
