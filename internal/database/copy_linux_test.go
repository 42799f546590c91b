package database

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestCopyDiskFull: a copy whose disk is full at any moment, also at the very last, is not
// there.
func TestCopyDiskFull(t *testing.T) {
	testenv.Heavy(t)
	path := filepath.Join(t.TempDir(), "notes.db")
	must(t, copiedKind.Create(t.Context(), path))
	const rows, size = 10, 1 << 19
	writeNotes(t, path, func(ctx context.Context, tx *Tx) error {
		for i := range rows {
			// In the last table: nothing is written after it, and the disk is full when the
			// write-ahead log is copied to the file.
			if err := tx.Exec(ctx, "INSERT INTO pair (a, b) VALUES ($1, hex(randomblob($2)))", i, size/2); err != nil {
				return err
			}
		}
		return nil
	})
	disk := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }) // where the test has failed
	copied, failed := 0, 0
	for megabytes := 4; copied == 0; megabytes++ {
		if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%dM", megabytes)); err != nil {
			t.Skipf("a small disk cannot be made (mount tmpfs: %v): this needs root", err)
		}
		to := filepath.Join(disk, "notes.db")
		_, err := copiedKind.Copy(t.Context(), path, to, CopyOptions{})
		found, findErr := copiedKind.Find(t.Context(), to)
		switch {
		case findErr != nil || found != (err == nil):
			t.Errorf("%d MB: %v; there is a copy: %t %v", megabytes, err, found, findErr)
		case err == nil:
			if copied++; notes(t, to) != notes(t, path) {
				t.Errorf("%d MB: the copy is another", megabytes)
			}
		default:
			if failed++; !errors.Is(err, ErrFull) && !errors.Is(err, ErrDisk) {
				t.Errorf("%d MB: %v", megabytes, err)
			}
		}
		must(t, unix.Unmount(disk, 0))
	}
	if failed < 3 {
		t.Errorf("only %d copies failed", failed)
	}
}
