//go:build unix

package eventlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// LockedError: another process writes the log.
type LockedError struct {
	Folder string
	Holder string // what that process said of itself
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("the data folder %s is in use by %s: stop that one first, or give another folder with --data", e.Folder, e.Holder)
}

// lockFile is the writer's lock: a file with the holder's description, held by
// flock, so that it ends with the process whatever way that ends.
type lockFile struct{ f *os.File }

func takeLock(folder, holder string) (*lockFile, error) {
	f, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		said, _ := os.ReadFile(f.Name())
		who := strings.TrimSpace(string(said))
		if who == "" {
			who = "another process"
		}
		return nil, &LockedError{Folder: folder, Holder: who}
	}
	if holder == "" {
		holder = "process"
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("%s (process %d)\n", holder, os.Getpid()))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &lockFile{f}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// release empties the file and gives the lock back. The file itself stays:
// removing it would let two processes lock two files of the same name.
func (l *lockFile) release() error { return errors.Join(l.f.Truncate(0), l.f.Close()) }
