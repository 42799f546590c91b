//go:build unix

package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Querier is a connection that reads. All queries of one call go through the same
// connection, so no call waits for a second one while it holds the first.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Readers are a few connections that read one database, beside the process that writes it,
// and keep their queries prepared. They are also a Querier, for single queries. All methods
// may be called from any goroutine.
type Readers struct {
	*sql.DB
	path string
}

// OpenReaders opens connections that read.
func (k *Kind) OpenReaders(ctx context.Context, path string, connections int) (*Readers, error) {
	return k.openReaders(ctx, path, connections, sessionOfReaders)
}

// openReaders is OpenReaders with parameters for the sessions of a server.
func (k *Kind) openReaders(ctx context.Context, path string, connections int, params map[string]string) (_ *Readers, err error) {
	f := &Found{kind: k, path: path}
	if OnServer(path) {
		if f.db, err = k.openPostgres(path, params); err != nil {
			return nil, err
		}
	}
	r, err := f.Readers(ctx, connections)
	return r, errors.Join(err, f.Close())
}

// Readers opens connections that read. Of those to a server, the one that has looked is the
// first. A folder that cannot be written, or a full disk, is read without writing: that needs
// a database that was closed, or whose files were all copied.
func (f *Found) Readers(ctx context.Context, connections int, pragmas ...string) (*Readers, error) {
	if f.db != nil {
		return f.serverReaders(ctx, connections)
	}
	k, path := f.kind, f.path
	mode := "rw"
	if unix.Access(filepath.Dir(path), unix.W_OK) != nil {
		mode = unwritable(path)
	}
	db, err := k.openFile(ctx, path, mode, connections, pragmas)
	if err != nil && mode == "rw" && errors.Is(err, ErrFull) && unwritable(path) == immutable {
		db, err = k.openFile(ctx, path, immutable, connections, pragmas)
	}
	if err != nil && mode != "rw" && errors.Is(err, ErrCannotOpen) {
		err = fmt.Errorf("%w: the folder cannot be written, and %s-wal holds what %[2]s does not have yet: copy the folder to where it can be written", err, filepath.Base(path))
	}
	if err != nil {
		return nil, err
	}
	return &Readers{DB: db, path: path}, nil
}

// immutable reads a database that nobody writes, without locks and without files
// beside it.
const immutable = "ro&immutable=1"

func unwritable(path string) string {
	if st, err := os.Stat(path + "-wal"); err == nil && st.Size() > 0 {
		return "ro"
	}
	return immutable
}

func (k *Kind) openFile(ctx context.Context, path, mode string, connections int, pragmas []string) (*sql.DB, error) {
	db, err := openPrepared(dsn(path, mode, append(pragmas, "query_only(1)", "busy_timeout(10000)", "cell_size_check(1)")...))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	var version int
	err = db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	if err == nil {
		err = k.newer(version)
	}
	if err == nil {
		err = k.older(version)
	}
	if err != nil {
		return nil, errors.Join(notOpened(path, err), db.Close())
	}
	return db, nil
}

// Read runs do with one of the connections, and returns it to the others even if do
// panics: a defect of one reader must not cost the others a connection.
func (r *Readers) Read(ctx context.Context, do func(q Querier) error) (err error) {
	c, err := r.Conn(ctx)
	if err != nil {
		return Explain(r.path, err)
	}
	defer func() { err = Explain(r.path, errors.Join(err, c.Close())) }()
	return do(c)
}

// Each runs a query, and scans every row.
func (r *Readers) Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	return Explain(r.path, Each(ctx, r, text, args, scan))
}

// All runs a query with each, such as Readers.Each, and returns its rows as scan reads them.
func All[T any](ctx context.Context, each func(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error, text string, args []any, scan func(*T, *sql.Rows) error) (all []T, err error) {
	err = each(ctx, text, args, func(rows *sql.Rows) error {
		var one T
		err := scan(&one, rows)
		all = append(all, one)
		return err
	})
	return all, err
}

// Column reads a row of one column, for All.
func Column[T any](to *T, rows *sql.Rows) error { return rows.Scan(to) }

// Each runs a query, and calls scan for each row of its result.
func Each(ctx context.Context, q Querier, text string, args []any, scan func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
