//go:build unix

// Package backup copies the state of a data folder into one file, while a process may
// write to the folder, and restores it.
//
// The file is a tar archive, compressed with Zstandard, which keeps up with the disk where
// gzip does not. It has these entries, in this order:
//
//   - backup.json: a [Manifest], with the time of the copy.
//   - log.db: the event log, as it was at one moment.
//   - content.db: the contents, as they were a moment later. A content is committed before
//     the event that names it, and is removed only after the set that has it, so all that
//     the log names are there.
//   - SHA256SUMS: the hashes of these, as sha256sum writes and checks them. It is the last
//     entry, so a file that was cut off has none.
//
// Everything else in a data folder is made again from these two databases, or belongs to
// the running process. The file head is left out on purpose: see [Options].
package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// The names of the entries. Those of the databases are their names in the data folder.
const (
	manifestName = "backup.json"
	contentName  = content.FileName
	sumsName     = "SHA256SUMS"
)

// partial is the end of the name of a file that is not whole yet.
const partial = ".partial"

const format = 1

// ErrOnServer means that the log is on a PostgreSQL server, which has its own ways to copy
// and to restore what it keeps.
var ErrOnServer = errors.New("its log is on a PostgreSQL server: back it up and restore it with pg_dump or pg_basebackup, together with the data folder; see docs/scale.md#backup")

// Manifest describes the time and the contents of a backup.
type Manifest struct {
	Format int `json:"format"`
	// Bridge is the version that made the backup.
	Bridge string `json:"bridge"`
	// Made is when the copy of the log began: the copy has what was committed until then.
	Made time.Time `json:"made"`
	// Writing reports that a process was writing to the data folder, so the log has more
	// events since.
	Writing bool `json:"writing"`
	// Lost reports that the log has lost events that may have been published, or that this
	// is unknown.
	Lost bool `json:"lost,omitempty"`
	// Last is the last event, LastObserved when it was observed; nil when there is none.
	Last         int64      `json:"last"`
	LastObserved *time.Time `json:"last_observed,omitempty"`
	Sets         []Set      `json:"sets"`
	// Bucket is the address of the bucket that has contents which the backup has not; "" is
	// that the backup has all.
	Bucket string `json:"bucket,omitempty"`
}

// Set is the part of a backup that concerns a set.
type Set struct {
	Name    string `json:"name"`
	Records int64  `json:"records"`
	Events  int64  `json:"events"`
}

// WriteFile writes a backup of a data folder to a file. The file has its name only when it
// is complete and durable: until then .partial is added to the name. An existing backup of
// that name is replaced; any other file is not. The error is an ErrOnServer when the log is
// on a server.
func WriteFile(ctx context.Context, folder, path, version string) (m Manifest, size int64, err error) {
	if err := inFolder(folder); err != nil {
		return m, 0, err
	}
	if err := replaceable(path); err != nil {
		return m, 0, err
	}
	f, err := claim(path + partial)
	if err != nil {
		return m, 0, database.Explain(path, err)
	}
	m, err = Write(ctx, folder, f, version)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		var st os.FileInfo
		if st, err = f.Stat(); err == nil {
			size, err = st.Size(), os.Rename(path+partial, path)
		}
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path+partial))
	} else {
		err = database.SyncDir(filepath.Dir(path))
	}
	return m, size, database.Explain(path, errors.Join(err, f.Close()))
}

// inFolder returns an error when the log of a data folder is on a server.
func inFolder(folder string) error {
	if eventlog.OnServer(folder) {
		return fmt.Errorf("%s: %w", folder, ErrOnServer)
	}
	return nil
}

// claim opens a file to which nobody else writes, and truncates it.
func claim(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil { // the previous process may have ended, and renamed it
		var has, is os.FileInfo
		if has, err = f.Stat(); err == nil {
			if is, err = os.Stat(path); err == nil && !os.SameFile(has, is) {
				err = unix.EWOULDBLOCK
			}
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%s: another backup to this file is under way", path)
	case err == nil:
		if err = f.Truncate(0); errors.Is(err, unix.EINVAL) {
			err = nil // it is not a regular file
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// replaceable returns an error when a file exists that is not a backup, such as another archive
// or a device. An empty one can be replaced.
func replaceable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().IsRegular() && info.Size() == 0:
		return nil
	case info.Mode().IsRegular():
		is, err := isBackup(path)
		if is || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is there, and is no backup: give another name, or remove it", path)
}

// isBackup reports whether a file begins as a backup does.
func isBackup(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return false, err
	}
	defer z.Close()
	h, err := tar.NewReader(z).Next()
	return err == nil && h.Name == manifestName, nil
}

// Write writes a backup of a data folder. version is that of bridge. The error is an
// ErrOnServer when the log is on a server.
func Write(ctx context.Context, folder string, to io.Writer, version string) (m Manifest, err error) {
	if err := inFolder(folder); err != nil {
		return m, err
	}
	writing := eventlog.Held(folder)
	m = Manifest{Format: format, Bridge: version, Made: time.Now().UTC().Truncate(time.Second), Writing: writing, Sets: []Set{}}
	log, err := eventlog.TakeSnapshot(ctx, folder)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	m.Last, m.Lost = int64(log.Last), log.Loss != nil && log.Loss.Events()
	if log.Last > 0 {
		at := log.Observed.Time()
		m.LastObserved = &at
	}
	for i := range log.Sets {
		s := &log.Sets[i]
		m.Sets = append(m.Sets, Set{s.Name, int64(s.Live), int64(s.Events)})
	}
	if m.Bucket, err = bucketOf(ctx, filepath.Join(folder, contentName)); err != nil {
		return m, err
	}
	contents, err := contentsOf(ctx, filepath.Join(folder, contentName)) // now: a set that is removed while the log is copied takes its contents along
	if err != nil {
		return m, err
	}
	if contents != nil {
		defer func() { err = errors.Join(err, contents.Close()) }()
	} else if log.NamesContents() { // the backup would take the place of one that has them
		return m, fmt.Errorf("the log of %s names contents, and %s is not there: put it back from a backup, or have its contents fetched again with bridge harvest --full", folder, contentName)
	}
	z, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(true))
	if err != nil {
		return m, err
	}
	w := &writer{tar: tar.NewWriter(z), made: m.Made}
	if err := w.all(ctx, &m, log, contents); err != nil {
		_ = z.Close() // it only says again what could not be written
		return m, err
	}
	return m, errors.Join(w.tar.Close(), z.Close())
}

// writer writes the entries, and stores their hashes.
type writer struct {
	tar  *tar.Writer
	made time.Time
	sums bytes.Buffer
}

// all writes the entries. A folder may have no contents, if no set needed them: then they are nil.
func (w *writer) all(ctx context.Context, m *Manifest, log *eventlog.Snapshot, contents *database.Snapshot) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := w.entry(manifestName, int64(len(text)+1), func(to io.Writer) error {
		_, err := to.Write(append(text, '\n'))
		return err
	}); err != nil {
		return err
	}
	if err := w.entry(eventlog.FileName, log.Size(), func(to io.Writer) error { return log.WriteTo(ctx, to) }); err != nil {
		return err
	}
	if err := log.Close(); err != nil { // so that its write-ahead log can be reused
		return err
	}
	if contents != nil {
		if err := w.entry(contentName, contents.Size(), func(to io.Writer) error { return contents.WriteTo(ctx, to) }); err != nil {
			return err
		}
	}
	return w.entry(sumsName, int64(w.sums.Len()), func(to io.Writer) error {
		_, err := w.sums.WriteTo(to)
		return err
	})
}

// bucketOf returns the address of the bucket that a content store has, "" if it has none.
func bucketOf(ctx context.Context, path string) (string, error) {
	s, err := content.Open(ctx, path, content.Options{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return s.Bucket(), s.Close()
}

// contentsOf begins a Snapshot of a content store, nil if there is none.
func contentsOf(ctx context.Context, path string) (*database.Snapshot, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content.TakeSnapshot(ctx, path)
}

func (w *writer) entry(name string, size int64, write func(to io.Writer) error) error {
	if err := w.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: w.made}); err != nil {
		return err
	}
	sum := sha256.New()
	to := bufio.NewWriterSize(io.MultiWriter(w.tar, sum), 1<<20)
	err := write(to)
	if err == nil {
		err = to.Flush()
	}
	if err != nil {
		return err
	}
	if name != sumsName {
		fmt.Fprintf(&w.sums, "%x  %s\n", sum.Sum(nil), name)
	}
	return nil
}
