//go:build linux

package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// disk mounts a file system of a size, and skips where that is not permitted.
func disk(t *testing.T, size string) string {
	t.Helper()
	folder := t.TempDir()
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a disk of its own cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// fillDisk writes files until there is no room; some lets go of as many bytes.
func fillDisk(t *testing.T, folder string) {
	t.Helper()
	f, err := os.Create(filepath.Join(folder, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 16, 1} { // to the last byte
		for b := make([]byte, size); err == nil || size > 1 && !errors.Is(err, unix.ENOSPC); {
			_, err = f.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

// D147: on a full disk the log opens, by its reserve, and is read; it says that
// there is no space, and goes on once there is. Without the reserve it says so too.
func TestStartOnFullDisk(t *testing.T) {
	testenv.Heavy(t)
	ctx := context.Background()
	folder := disk(t, "12m")
	data := filepath.Join(folder, "data")
	l, src := filled(t, data, event.Redirect)
	must(t, errors.Join(add(l, src, 0, 500), l.Close()))
	fillDisk(t, folder)

	beside, found := reader(t, data)
	if events, err := all(beside); err != nil || len(events) != 500 || len(found) > 0 {
		t.Errorf("beside it: %d events, %v, %q", len(events), err, found)
	}
	closed(t, beside)
	l, src = filled(t, data, event.Redirect)
	if events, err := all(l); err != nil || len(events) != 500 {
		t.Errorf("opened: %d events, %v", len(events), err)
	}
	var full error
	for i := 0; full == nil; i++ {
		full = add(l, src, 500+i*1000, 1000)
	}
	if !errors.Is(full, eventlog.ErrFull) {
		t.Errorf("full: %v", full)
	}
	before, err := all(l)
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.Remove(filepath.Join(folder, "filler")))
	if err := add(l, src, 100_000, 1000); err != nil {
		t.Errorf("with space again: %v", err)
	}
	after, err := all(l)
	if err != nil || len(after) != len(before)+1000 {
		t.Errorf("%d events, then %d, %v", len(before), len(after), err)
	}
	sound(t, l)
	closed(t, l)

	fillDisk(t, folder)
	if err := os.Remove(filepath.Join(data, "reserve")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	must(t, os.Remove(filepath.Join(folder, "filler")))
	fillDisk(t, folder)
	if l, err := eventlog.Open(ctx, data, eventlog.Options{}); !errors.Is(err, eventlog.ErrFull) || !strings.Contains(fmt.Sprint(err), "free some space") {
		t.Errorf("without a reserve: %v", err)
		if err == nil {
			_ = l.Close()
		}
	}
}

// D149: a folder that cannot be written can be read, whether or not the log was
// closed; who would write is told.
func TestReadOnlyFolder(t *testing.T) {
	ctx := context.Background()
	for name, crash := range map[string]bool{"closed": false, "after a crash": true} {
		t.Run(name, func(t *testing.T) {
			folder := disk(t, "12m")
			l, src := filled(t, folder, event.Redirect)
			must(t, add(l, src, 0, 500))
			want := 500
			if crash {
				files := copied(t, folder)
				shm, err := os.ReadFile(filepath.Join(folder, eventlog.FileName+"-shm"))
				must(t, errors.Join(err, l.Close()))
				for name, b := range files {
					must(t, os.WriteFile(filepath.Join(folder, name), b, 0o600))
				}
				must(t, os.WriteFile(filepath.Join(folder, eventlog.FileName+"-shm"), shm, 0o600))
			} else {
				closed(t, l)
			}
			if err := unix.Mount("", folder, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=12m"); err != nil {
				t.Skipf("it cannot be made read-only: %v", err)
			}
			beside, found := reader(t, folder)
			if events, err := all(beside); err != nil || len(events) != want || len(found) > 0 {
				t.Errorf("%d events, %v, verify finds %q", len(events), err, found)
			}
			closed(t, beside)
			if l, err := eventlog.Open(ctx, folder, eventlog.Options{}); err == nil {
				_ = l.Close()
				t.Error("opened for writing")
			} else if !strings.Contains(err.Error(), "read-only file system") {
				t.Errorf("opened for writing: %v", err)
			}
		})
	}
}

// D149: a disk that fails under the log stops it: nothing is acknowledged, and the
// next try is not made on a database of which nobody knows what it holds.
func TestDiskTurnsReadOnly(t *testing.T) {
	folder := disk(t, "12m")
	l, src := filled(t, folder, event.Redirect)
	defer func() { _ = l.Close() }() // nothing more can be written
	must(t, add(l, src, 0, 500))
	must(t, l.Exec(context.Background(), "UPDATE sets SET name = name"))
	// The log has its files open for writing, so the disk cannot be remounted: its
	// pages are damaged instead, as a disk that fails gives them back.
	f, err := os.OpenFile(filepath.Join(folder, eventlog.FileName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.Checkpoint()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	junk := make([]byte, 4096)
	for i := range junk {
		junk[i] = 0xa5
	}
	for at := int64(4096); at < st.Size(); at += 4096 {
		if _, err := f.WriteAt(junk, at); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, f)
	l.DropCache(t)
	var first error
	for i := 0; first == nil && i < 100; i++ {
		first = add(l, src, 500+i*100, 100)
	}
	if !errors.Is(first, eventlog.ErrStopped) {
		t.Fatalf("on a damaged disk: %v", first)
	}
	if err := l.Check(context.Background()); !errors.Is(err, eventlog.ErrStopped) {
		t.Errorf("Check: %v", err)
	}
}
