package database

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// fill adds n items of some KiB each in one transaction.
func (m *made) fill(t *testing.T, caller, n int) {
	t.Helper()
	if err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
		return tx.Exec(ctx, `WITH RECURSIVE to_n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM to_n WHERE i < $2)
			INSERT INTO item (caller, n, fill) SELECT $1, i, randomblob(3000) FROM to_n`, caller, n)
	}); err != nil {
		t.Fatal(err)
	}
}

// pieces calls write for each part of what it is given.
type pieces func(p []byte) (int, error)

func (f pieces) Write(p []byte) (int, error) { return f(p) }

// A Snapshot is the database of the moment when it began, whatever is written before and
// while it is copied; the copy is a database that stands alone.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	m := newWriter(t, WriterOptions{})
	m.fill(t, 1, 500)
	s, err := testKind.Snapshot(t.Context(), m.path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m.fill(t, 2, 500)
	m.Checkpoint() // as far as it may
	var b bytes.Buffer
	next := 3
	if err := s.WriteTo(t.Context(), pieces(func(p []byte) (int, error) {
		if b.Len()%(50*len(p)) == 0 {
			m.fill(t, next, 10)
			next++
		}
		return b.Write(p)
	})); err != nil {
		t.Fatal(err)
	}
	if int64(b.Len()) != s.Size() || next < 6 {
		t.Errorf("%d bytes, of %d; %d changes meanwhile", b.Len(), s.Size(), next)
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(path, b.Bytes(), 0o600))
	r, err := testKind.OpenReaders(t.Context(), path, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var rows, callers int
	if err := r.QueryRow("SELECT count(*), count(DISTINCT caller) FROM item").Scan(&rows, &callers); err != nil || rows != 500 || callers != 1 {
		t.Errorf("%d rows of %d callers, %v", rows, callers, err)
	}
	if err := r.Each(t.Context(), "PRAGMA integrity_check", nil, func(rows *sql.Rows) error {
		var found string
		if err := rows.Scan(&found); err != nil || found != "ok" {
			t.Errorf("%s, %v", found, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A copy during which the write-ahead log grows too long ends.
func TestSnapshotLongLog(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	m := newWriter(t, WriterOptions{})
	m.fill(t, 1, 9000) // more pages than are copied between two looks
	s, err := testKind.Snapshot(t.Context(), m.path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m.fill(t, 2, 100)
	if err := s.WriteTo(t.Context(), new(bytes.Buffer)); err != nil {
		t.Error(err)
	}
	s.MaxLog = 100 << 10
	if err := s.WriteTo(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "-wal has grown to") {
		t.Errorf("copied: %v", err)
	}
}
