//go:build unix

package database

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// Errors that decide what a caller does next.
var (
	// ErrFull: there is no space. Nothing was written, reading goes on, and the same
	// call succeeds once there is space.
	ErrFull = errors.New("no space left on the disk")
	// ErrDamaged: the file is not what was written.
	ErrDamaged = errors.New("damaged")
	// ErrDisk: the file system fails. The state of the database is unknown until it is
	// opened anew.
	ErrDisk = errors.New("the file system fails")
	// ErrCannotOpen: a connection could not be opened, although the file is there: the
	// process has too many open files, or the folder cannot be read at the moment.
	// Nothing was read or written, and the same call may succeed later.
	ErrCannotOpen = errors.New("the database cannot be opened at the moment")
	// ErrOlder: a connection that reads was refused, because the tables are those of an
	// older version. OpenWriter brings them up to date.
	ErrOlder = errors.New("it was written by an older bridge")
)

// Missing returns an error that says what is not there. It is an fs.ErrNotExist, and does not
// have the words of that, which are about a file.
func Missing(format string, args ...any) error { return missingError(fmt.Sprintf(format, args...)) }

type missingError string

func (e missingError) Error() string { return string(e) }

// Is implements errors.Is.
func (missingError) Is(target error) bool { return target == fs.ErrNotExist }

// Code returns the primary result code of an error of the driver, 0 for others.
func Code(err error) int { return extended(err) & 0xff }

func extended(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// noTransaction reports whether an error means that there was no transaction to end:
// SQLite ends one by itself after some failures, as when the disk is full.
func noTransaction(err error) bool { return Code(err) == lib.SQLITE_ERROR }

// Explain wraps an error of the driver with one of the errors above, if one applies. Some
// of SQLite's codes do not show that the disk is full: then Explain asks the file system
// of path.
func Explain(path string, err error) error {
	if err == nil || errors.Is(err, ErrFull) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrDisk) || errors.Is(err, ErrCannotOpen) {
		return err
	}
	if OnServer(path) {
		return explainServer(err)
	}
	code := Code(err)
	switch {
	case code == lib.SQLITE_FULL, errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case code == lib.SQLITE_CORRUPT, code == lib.SQLITE_NOTADB:
		return fmt.Errorf("%s is %w: %w: restore it from a backup", path, ErrDamaged, err)
	case code == lib.SQLITE_IOERR, code == lib.SQLITE_CANTOPEN:
		if extended(err) == lib.SQLITE_IOERR_SHMSIZE || full(filepath.Dir(path)) {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		if code == lib.SQLITE_CANTOPEN && !gone(path) {
			return denied(path, unix.R_OK, fmt.Errorf("%w: %w", ErrCannotOpen, err))
		}
		return fmt.Errorf("%w: %w", ErrDisk, err)
	case code == lib.SQLITE_READONLY:
		return denied(path, unix.W_OK, fmt.Errorf("%w: %w", ErrDisk, err))
	}
	return err
}

// gone reports whether there is no file at a path, as after its folder was removed or
// unmounted. A file in a folder that cannot be searched is not gone.
func gone(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// notOpened is Explain for a file that could not be opened.
func notOpened(path string, err error) error {
	if err = Explain(path, err); errors.Is(err, ErrDamaged) {
		return err // it names the file
	}
	return fmt.Errorf("opening %s: %w", path, err)
}

// denied adds to an error which file of a database this user may not use in a mode, as one
// that another user has made. It opens none: to close it would end SQLite's locks.
func denied(path string, mode uint32, err error) error {
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if refused := unix.Access(name, mode); errors.Is(refused, fs.ErrPermission) {
			return fmt.Errorf("%w: %s: %w: give the file to the user who runs bridge", err, name, refused)
		}
	}
	return err
}

// full reports whether a file system has no room for the smallest of files.
func full(folder string) bool {
	var st unix.Statfs_t
	if unix.Statfs(folder, &st) != nil {
		return false
	}
	return uint64(st.Bavail)*uint64(st.Bsize) < 64<<10 || st.Files > 0 && st.Ffree == 0
}
