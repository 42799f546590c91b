//go:build unix

package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// LockName is the name of the lock in the data folder, which outlives its holder.
const LockName = "lock"

// LockedError: another process writes the log.
type LockedError struct {
	Folder string
	Holder string // how that process describes itself
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("the data folder %s is in use by %s: stop that one first, or give another data folder", e.Folder, e.Holder)
}

// lockFile is the writer's lock: a file with the holder's description, held by
// flock, so that it ends with the process whatever way that ends.
type lockFile struct {
	f    *os.File
	info os.FileInfo
}

func takeLock(folder, holder string) (*lockFile, error) {
	f, err := os.OpenFile(filepath.Join(folder, LockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", database.Explain(folder, err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		said, _ := os.ReadFile(f.Name())
		who := cmp.Or(strings.TrimSpace(string(said)), "another process")
		return nil, &LockedError{Folder: folder, Holder: who}
	}
	holder = cmp.Or(holder, "process")
	err = errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("%s (process %d)\n", holder, os.Getpid())))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = nil // a full disk is no reason not to read; only the name is missing
	}
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &lockFile{f, info}, nil
}

// Hold takes the writer's lock of a data folder that has no log yet, until release is
// called. The error is a *LockedError when another process has it.
func Hold(folder, holder string) (release func() error, err error) {
	l, err := takeLock(folder, holder)
	if err != nil {
		return nil, err
	}
	return l.release, nil
}

// Held reports whether a process holds the writer's lock of a data folder.
func Held(folder string) bool {
	f, err := os.Open(filepath.Join(folder, LockName))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Holder returns how the process describes itself that holds that lock, "" when none does.
func Holder(folder string) string {
	if !Held(folder) {
		return ""
	}
	said, _ := os.ReadFile(filepath.Join(folder, LockName))
	return strings.TrimSpace(string(said))
}

// present returns an error when the data folder is no longer the one that was opened:
// what is written now would go to files that have lost their names.
func (l *Log) present() error {
	var lock os.FileInfo // a process that only reads has none, nor has a dry run without a folder
	if l.lock != nil {
		lock = l.lock.info
	}
	for _, f := range []struct {
		path string
		was  os.FileInfo
	}{{filepath.Join(l.folder, LockName), lock}, {l.path, l.file}} {
		if f.was == nil {
			continue
		}
		switch is, err := os.Stat(f.path); {
		case err != nil:
			return fmt.Errorf("the data folder was removed, renamed or unmounted: %w", err)
		case !os.SameFile(is, f.was):
			return fmt.Errorf("the data folder was replaced: %s is another file than when it was opened", f.path)
		}
	}
	return nil
}

// Continues returns an error unless events after a Seq, up to which a reader has read, are those
// that follow: the log may have lost some since, or another one may be in its place.
func (l *Log) Continues(ctx context.Context, seq event.Seq) error {
	if err := l.present(); err != nil {
		return err
	}
	lost, err := l.Forgotten(ctx, seq)
	if lost {
		err = fmt.Errorf("%d is no place of this log, which has lost events that you may have seen, or was made anew", seq)
	}
	return err
}

// Check returns why the log must not be written any more, nil when it may: that
// its folder has gone, or that the disk fails. A caller that holds the log for
// long calls it every few seconds.
func (l *Log) Check(ctx context.Context) error {
	err := l.use(ctx, func(ctx context.Context, tx *database.Tx) error {
		var commits int64
		return errors.Join(l.present(), tx.QueryRowContext(ctx, "SELECT commits FROM log").Scan(&commits))
	})
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrStopped) || errors.Is(err, errClosed) || errors.Is(err, ErrFull) || errors.Is(err, database.ErrCannotOpen) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
	}
	return fmt.Errorf("%w: %w", ErrStopped, err)
}

// A reserve is a file that is removed when the disk is full, so that the log can still be
// opened: SQLite needs room for its files even to read a database that may be written.
const (
	reserveName  = "reserve"
	reserveBytes = 2 << 20
)

// keepReserve makes the reserve, if there is room.
func (l *Log) keepReserve() {
	path := filepath.Join(l.folder, reserveName)
	if _, err := os.Stat(path); err == nil {
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	if err := errors.Join(allocate(f, reserveBytes), f.Close()); err != nil {
		_ = os.Remove(path) // half of it is of no use
	}
}

// useReserve removes the reserve and reports whether there was one.
func (l *Log) useReserve() bool { return os.Remove(filepath.Join(l.folder, reserveName)) == nil }

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// release empties the file and releases the lock. The file itself stays:
// removing it would let two processes lock two files of the same name. Closing it would not
// do: a process that is just being started has a copy of the open file until
// it runs its own program.
func (l *lockFile) release() error {
	return errors.Join(l.f.Truncate(0), unix.Flock(int(l.f.Fd()), unix.LOCK_UN), l.f.Close())
}
