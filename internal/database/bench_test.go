//go:build unix

package database

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

const benchRows = 500_000

// benchNotes returns a database in a file with rows like those of events.
func benchNotes(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "notes.db")
	if err := copiedKind.Create(b.Context(), path); err != nil {
		b.Fatal(err)
	}
	w, err := copiedKind.OpenWriter(b.Context(), path, WriterOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	if err := w.Do(b.Context(), func(ctx context.Context, tx *Tx) error {
		return tx.Exec(ctx, `WITH RECURSIVE to_n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM to_n WHERE i < $1)
			INSERT INTO note (id, name, bytes, n) SELECT i, 'urn:x:' || i, randomblob(190), i FROM to_n`, benchRows)
	}); err != nil {
		b.Fatal(err)
	}
	return path
}

// benchCopy reports how many rows a copy writes in a second.
func benchCopy(b *testing.B, copying func(b *testing.B)) {
	for b.Loop() {
		copying(b)
	}
	b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkCopy copies a table, with reading it again, to a server and to a file. Its rivals
// read nothing again: a COPY with rows that are in memory, and SQLite's own copy of a file.
func BenchmarkCopy(b *testing.B) {
	from := benchNotes(b)
	postgres := testenv.SharedPostgres(b)
	b.Run("to a server", func(b *testing.B) {
		benchCopy(b, func(b *testing.B) {
			if _, err := copiedKind.Copy(b.Context(), from, postgres.NewSchema(b), CopyOptions{}); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("to a server, bare", func(b *testing.B) {
		r, err := copiedKind.OpenReaders(b.Context(), from, 1)
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		var all [][]any
		rows, err := r.QueryContext(b.Context(), "SELECT bytes, id, n, name FROM note ORDER BY id")
		if err != nil {
			b.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			values, err := scanRow(rows, 4)
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, values)
		}
		if err := rows.Err(); err != nil {
			b.Fatal(err)
		}
		benchCopy(b, func(b *testing.B) {
			url := postgres.NewSchema(b)
			if err := copiedKind.Create(b.Context(), url); err != nil {
				b.Fatal(err)
			}
			c, err := pgx.Connect(b.Context(), url)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close(b.Context())
			if _, err := c.CopyFrom(b.Context(), pgx.Identifier{"note"}, []string{"bytes", "id", "n", "name"}, pgx.CopyFromRows(all)); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("to a file", func(b *testing.B) {
		benchCopy(b, func(b *testing.B) {
			if _, err := copiedKind.Copy(b.Context(), from, filepath.Join(b.TempDir(), "copy.db"), CopyOptions{}); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("to a file, bare", func(b *testing.B) {
		db, err := openPrepared(dsn(from, "rw"))
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		benchCopy(b, func(b *testing.B) {
			if _, err := db.ExecContext(b.Context(), "VACUUM INTO '"+filepath.Join(b.TempDir(), "copy.db")+"'"); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// BenchmarkDo stores one row a call, by some callers at once. Callers that wait share
// a COMMIT, and with it a sync of the disk: commits/row tells how many.
func BenchmarkDo(b *testing.B) {
	for _, callers := range []int{1, 4, 32} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			path := b.TempDir() + "/bench.db"
			if err := testKind.Create(b.Context(), path); err != nil {
				b.Fatal(err)
			}
			var commits, next atomic.Int64
			w, err := testKind.OpenWriter(b.Context(), path, WriterOptions{AfterCommit: func(context.Context, *Tx) error {
				commits.Add(1)
				return nil
			}})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						if err := w.Do(b.Context(), func(ctx context.Context, tx *Tx) error { return insert(ctx, tx, int(n), 0) }); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(commits.Load())/float64(b.N), "commits/row")
		})
	}
}
