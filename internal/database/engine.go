//go:build unix

package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	lib "modernc.org/sqlite/lib"
)

// engine is what SQLite and PostgreSQL do each in their own way for a Writer. Each Writer
// has its own.
type engine interface {
	// open opens a connection that writes, and brings the database up to date.
	open(ctx context.Context) (*sql.DB, *sql.Conn, error)
	// begin begins a transaction. In a dry run one is under way, and errGone is that it is
	// not.
	begin(ctx context.Context, conn *sql.Conn, dryRun bool) error
	// changes counts the rows that were ever changed on the connection.
	changes(ctx context.Context, conn *sql.Conn) (int64, error)
	// commit commits the transaction of a Writer, which has changed so many rows.
	commit(ctx context.Context, w *Writer, rows int64) error
	// lost reports whether the connection has ended, so that another one has to be opened.
	lost(conn *sql.Conn) bool
	// alive closes a Writer's connection if it has ended since it was last used.
	alive(ctx context.Context, w *Writer) error
	// failed returns an error if a statement has failed in the transaction under way and
	// nothing that it does can be committed.
	failed(conn *sql.Conn) error
	// checkpoint copies what is committed to where it stays.
	checkpoint(ctx context.Context, conn *sql.Conn) error
}

// errGone: a dry run has lost its transaction.
var errGone = errors.New("the dry run ended with an earlier failure")

func (k *Kind) engine(path string, o WriterOptions) engine {
	if OnServer(path) {
		return &serverEngine{kind: k, url: path, movedTo: o.MovedTo}
	}
	return &fileEngine{kind: k, path: path, pragmas: o.Pragmas}
}

// fileEngine is SQLite.
type fileEngine struct {
	kind    *Kind
	path    string
	pragmas []string
	walMax  int // bytes of the write-ahead log after which a commit checkpoints it
}

func (e *fileEngine) open(ctx context.Context) (*sql.DB, *sql.Conn, error) {
	e.walMax = 0
	return e.kind.openWriter(ctx, e.path, e.pragmas)
}

func (e *fileEngine) begin(ctx context.Context, conn *sql.Conn, dryRun bool) error {
	_, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	if !dryRun {
		return err
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "ROLLBACK")
		return errors.Join(errGone, err)
	}
	if Code(err) == lib.SQLITE_ERROR {
		return nil
	}
	return err
}

func (e *fileEngine) changes(ctx context.Context, conn *sql.Conn) (n int64, err error) {
	err = conn.QueryRowContext(ctx, "SELECT total_changes()").Scan(&n)
	return n, err
}

// commit first sets at which length of the write-ahead log a COMMIT of so many rows
// checkpoints it.
func (e *fileEngine) commit(ctx context.Context, w *Writer, rows int64) error {
	most := walBytes
	if rows > manyRows {
		most = walBytesOfMany
	}
	if most != e.walMax {
		e.walMax = most
		if _, err := w.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", most/pageSize)); err != nil {
			return err
		}
	}
	_, err := w.conn.ExecContext(ctx, "COMMIT")
	return err
}

// lost: the connection is the process itself.
func (e *fileEngine) lost(*sql.Conn) bool { return false }

func (e *fileEngine) alive(context.Context, *Writer) error { return nil }

func (e *fileEngine) failed(*sql.Conn) error { return nil }

func (e *fileEngine) checkpoint(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
	return err
}
