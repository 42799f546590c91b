package audit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	folderPrefix = "bridge-audit-"
	// folderMin is how old a folder without a lock must be before it counts as left behind: a
	// new one is not locked yet.
	folderMin = time.Minute
)

// makeFolder makes a folder for one audit in another one or, where that cannot be written, in
// the system's. done removes it. It also removes the folders that interrupted audits have left
// there.
func makeFolder(in string) (dir string, done func() error, err error) {
	if in != "" {
		removeStale(in)
		dir, err = os.MkdirTemp(in, folderPrefix)
	}
	if in == "" || err != nil {
		if dir, err = os.MkdirTemp("", folderPrefix); err != nil {
			return "", nil, err
		}
	}
	held, err := hold(dir)
	if err != nil { // the file system has no locks: then no audit takes it for left behind either
		return dir, func() error { return os.RemoveAll(dir) }, nil
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), held.Close()) }, nil
}

// hold locks a folder, until it is closed or the process ends.
func hold(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// removeStale removes the folders of audits that were interrupted. What cannot be removed
// stays.
func removeStale(in string) {
	entries, _ := os.ReadDir(in)
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), folderPrefix) {
			continue
		}
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < folderMin {
			continue
		}
		dir := filepath.Join(in, e.Name())
		if f, err := hold(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = f.Close()
		}
	}
}
