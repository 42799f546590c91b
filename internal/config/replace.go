package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockConfig locks a file. Save replaces the file by another one, which is locked too: a
// lock on a replaced file has no effect, so lockConfig then locks the new one.
func lockConfig(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			is, err1 := os.Stat(path)
			was, err2 := f.Stat()
			if err1 == nil && err2 == nil && os.SameFile(is, was) {
				return f, nil
			}
			_ = f.Close()
			if err := errors.Join(err1, err2); err != nil {
				return nil, fmt.Errorf("configuration: %w", err)
			}
			continue
		}
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is being changed by another bridge command: %w", path, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// replace replaces the text of a file, and keeps its mode and owner. The main file stays
// locked. An error means that the file is as it was.
func (e *Edit) replace(file string, old, text []byte, main bool) error {
	is, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(is, old) {
		return errors.New("it has been changed by somebody else meanwhile: try again")
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	// It is hidden, so that no pattern of include finds it.
	tmp, err := os.CreateTemp(filepath.Dir(file), ".bridge-*.tmp")
	if err != nil {
		return err
	}
	err = keepOwner(tmp, file)
	if err == nil {
		err = tmp.Chmod(info.Mode().Perm())
	}
	if err == nil {
		_, err = tmp.Write(text)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err == nil && main { // before it has its name
		err = unix.Flock(int(tmp.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
	}
	if main {
		e.locks = append(e.locks, tmp)
	} else {
		_ = tmp.Close() // it is synced
	}
	// Whoever may not list the folder cannot sync it. Then a power cut soon after this may
	// bring the old text back.
	if folder, err := os.Open(filepath.Dir(file)); err == nil {
		_ = errors.Join(folder.Sync(), folder.Close())
	}
	return nil
}

// keepOwner gives a new file the owner and the group of another one, so that the same users
// can read it.
func keepOwner(f *os.File, path string) error {
	var was, is unix.Stat_t
	if err := errors.Join(unix.Stat(path, &was), unix.Fstat(int(f.Fd()), &is)); err != nil {
		return err
	}
	if was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	if err := f.Chown(int(was.Uid), int(was.Gid)); err != nil {
		return fmt.Errorf("it belongs to user %d and group %d, and would not any more: run the command as root (%w)", was.Uid, was.Gid, err)
	}
	return nil
}
