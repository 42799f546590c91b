package content

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/pmh-bridge/bridge/internal/database"
)

// TakeSnapshot begins a Snapshot of the store in a file, for a copy beside the process
// that writes it. It has all contents that events name which were committed before. The
// caller has to close it.
func TakeSnapshot(ctx context.Context, path string) (*database.Snapshot, error) {
	return kind().Snapshot(ctx, path)
}

// Copy copies a store to a server, or from one, and reads it again there. Nobody may write it
// meanwhile. On a server the copy gets the identity of its log, and replaces an earlier copy that
// has it; in a file it replaces any. It returns the bytes of the rows.
func Copy(ctx context.Context, from, to, log string) (int64, error) {
	if !database.OnServer(to) {
		if err := RemoveFile(to); err != nil {
			return 0, err
		}
	}
	c, err := kind().Copy(ctx, from, to, database.CopyOptions{Identity: log, Replace: true})
	return c.Bytes, err
}

// RemoveFile removes a store in a file, which another one is to replace. Its write-ahead log goes
// first: SQLite would take what a killed process has left there for that of the new file.
func RemoveFile(path string) error {
	for _, end := range []string{"-wal", "-shm", ""} {
		if err := os.Remove(path + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
