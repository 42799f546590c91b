//go:build unix

package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Snapshot is a database as it was at one moment, for a copy beside the process that
// writes it. The writer is not held up, but the commits made meanwhile stay in the
// write-ahead log, which cannot be reused before Close. It is for one goroutine.
type Snapshot struct {
	// MaxLog is how long, in bytes, the write-ahead log may become while WriteTo copies.
	// A copy that is too slow for the writer then fails, and does not fill the disk.
	MaxLog int64

	path     string
	readers  *Readers
	conn     *sql.Conn
	pages    int64
	pageSize int64
}

// Snapshot begins a Snapshot of an existing database. The caller has to close it.
func (k *Kind) Snapshot(ctx context.Context, path string) (*Snapshot, error) {
	r, err := k.OpenReaders(ctx, path, 1)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{path: path, readers: r}
	if s.conn, err = r.Conn(ctx); err == nil {
		_, err = s.conn.ExecContext(ctx, "BEGIN")
	}
	if err == nil { // the first to read decides which moment it is
		err = s.conn.QueryRowContext(ctx, "SELECT page_count, page_size FROM pragma_page_count, pragma_page_size").Scan(&s.pages, &s.pageSize)
	}
	if err != nil {
		return nil, errors.Join(Explain(path, err), s.Close())
	}
	s.MaxLog = 1<<30 + s.Size()
	return s, nil
}

// Query returns the connection, which reads the database at the moment of the Snapshot.
func (s *Snapshot) Query() Querier { return s.conn }

// Size is how many bytes WriteTo writes.
func (s *Snapshot) Size() int64 { return s.pages * s.pageSize }

// WriteTo writes the database as a file that stands alone.
func (s *Snapshot) WriteTo(ctx context.Context, w io.Writer) error {
	var page sql.RawBytes
	var n int64
	err := Each(ctx, s.conn, "SELECT data FROM sqlite_dbpage ORDER BY pgno", nil, func(rows *sql.Rows) error {
		if n++; n%4096 == 0 {
			if err := s.checkLog(); err != nil {
				return err
			}
		}
		if err := rows.Scan(&page); err != nil {
			return err
		}
		if int64(len(page)) != s.pageSize {
			return fmt.Errorf("page %d has %d bytes: %w", n, len(page), ErrDamaged)
		}
		_, err := w.Write(page)
		return err
	})
	if err == nil && n != s.pages {
		err = fmt.Errorf("it has %d pages, and %d could be read: %w", s.pages, n, ErrDamaged)
	}
	if err != nil {
		return fmt.Errorf("copying %s: %w", s.path, Explain(s.path, err))
	}
	return nil
}

// checkLog returns an error when the write-ahead log has become too long.
func (s *Snapshot) checkLog() error {
	st, err := os.Stat(s.path + "-wal")
	if err != nil || st.Size() <= s.MaxLog {
		return nil //nolint:nilerr // nobody writes
	}
	return fmt.Errorf("meanwhile %s-wal has grown to %d bytes: what is written now comes faster than the copy; try again when less is harvested, or copy to a faster disk",
		filepath.Base(s.path), st.Size())
}

// Close ends the Snapshot. It may be called again.
func (s *Snapshot) Close() error {
	var errs []error
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
		s.conn = nil
	}
	return errors.Join(append(errs, s.readers.Close())...)
}
