//go:build unix

// Package database opens the databases of a data folder and classifies their errors.
// The packages that use a database define its tables.
//
// A database is created completely or not at all, so an empty file is never a new one.
// Its header identifies its kind. Its write-ahead log is checkpointed at a few megabytes,
// after large commits at a few dozen, and whenever nothing is being written. So the
// database file alone has nearly all data.
package database

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver
)

// Kind is a sort of database.
type Kind struct {
	// Name of the kind in messages.
	Name string
	// ID is its application_id: a database with another one is not of this kind.
	ID uint32
	// Migrations holds 1.sql, 2.sql and so on. The number of the last is the version
	// of the format.
	Migrations fs.FS
	// Postgres has, by the number of a migration, what a PostgreSQL server needs after it. The
	// migration itself is translated.
	Postgres map[int]string
	// OwnSchema means that Create makes the schema that a URL names, if it is missing.
	OwnSchema bool
	// Rewrite has pairs: parts of statements that SQLite alone understands, and what a
	// PostgreSQL server gets in their place.
	Rewrite []string

	// How long to wait for a lock and for an outcome, if not the usual time.
	lockWait, outcomeWait time.Duration
}

const (
	// fileMode: records may be private, and log.db holds tokens and addresses.
	fileMode = 0o600
	// pageSize is that of a new database. A commit of a harvest touches nearly all pages
	// of the tables with random keys, and each page costs a look-up, two writes and a
	// checksum, whatever its size: fewer and larger pages save a fifth of the commit's
	// time. A small commit writes a whole page for each key: with 16 KiB it takes half as
	// long again.
	pageSize = 8 << 10
	// walBytes is how long the write-ahead log may be before a commit checkpoints it, and
	// the size that its file keeps on the disk. A commit of more than manyRows lets it
	// become walBytesOfMany: the commits of a harvest write many pages again and again.
	walBytes       = 7 << 20
	walBytesOfMany = 64 << 20
	manyRows       = 10_000
	// IdleTime is how long nothing must have been written before a checkpoint.
	IdleTime = time.Second
)

// Version is the number of the last migration.
func (k *Kind) Version() int {
	n := 0
	for {
		if _, err := fs.Stat(k.Migrations, fmt.Sprintf("%d.sql", n+1)); err != nil {
			return n
		}
		n++
	}
}

// Schema returns the text of all migrations.
func (k *Kind) Schema() (text string, err error) { return k.steps(0) }

// steps returns the migrations that bring a database of a version up to date.
func (k *Kind) steps(version int) (text string, err error) {
	for n := version + 1; n <= k.Version(); n++ {
		step, err := fs.ReadFile(k.Migrations, fmt.Sprintf("%d.sql", n))
		if err != nil {
			return "", err
		}
		text += string(step) + "\n"
	}
	return text + fmt.Sprintf("PRAGMA application_id = %d;\nPRAGMA user_version = %d;\n", k.ID, k.Version()), nil
}

// Found is what Look has found.
type Found struct {
	Exists bool // there is a database
	// Identity distinguishes a database on a server from all others, but for those that belong
	// to it. It is "" for a file.
	Identity string

	kind *Kind
	path string
	db   *sql.DB // a server's
}

// Look looks whether there is a database of the kind at path. Any other file there is
// an error, also an empty one: a new database must not take its place. So is a server that
// has something else there, or must not keep a database. The connection to a server stays
// open, for Readers, until Close.
func (k *Kind) Look(ctx context.Context, path string) (*Found, error) {
	if OnServer(path) {
		return k.lookOnServer(ctx, path)
	}
	exists, err := k.isFile(path)
	if err != nil {
		return nil, err
	}
	return &Found{Exists: exists, kind: k, path: path}, nil
}

// Close ends what Look has opened, and Readers has not taken over.
func (f *Found) Close() error {
	if f == nil || f.db == nil {
		return nil
	}
	db := f.db
	f.db = nil
	return db.Close()
}

// Find is Look for whether there is a database.
func (k *Kind) Find(ctx context.Context, path string) (bool, error) {
	f, err := k.Look(ctx, path)
	if err != nil {
		return false, err
	}
	return f.Exists, f.Close()
}

// Create makes a new database where there is none. On a server one that belongs to another gets
// the Identity of that one, "" is one of its own; and before is called as CopyOptions.Before is.
// After an error Exists says whether there is one all the same, as when somebody was faster.
func (f *Found) Create(ctx context.Context, identity string, before func(identity string) error) error {
	err := f.kind.create(ctx, f.path, identity, before)
	if f.db != nil {
		return errors.Join(err, f.again(ctx))
	}
	f.Exists = err == nil
	return err
}

// isFile is Look for a file.
func (k *Kind) isFile(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	var header [100]byte
	n, err := io.ReadFull(f, header[:])
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return false, fmt.Errorf("%s is empty: its bytes were lost, or it was made by something else: %w: restore it from a backup", path, ErrDamaged)
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return false, err
	case n < len(header) || string(header[:16]) != "SQLite format 3\x00":
		return false, fmt.Errorf("%s is no database: %w: restore it from a backup", path, ErrDamaged)
	}
	if id := binary.BigEndian.Uint32(header[68:]); id != k.ID {
		return false, fmt.Errorf("%s is a database, but no %s: it belongs to something else (application_id %#x): give another folder", path, k.Name, id)
	}
	return true, nil
}

// Create makes a new database. It gets its name only when it is whole and durable.
func (k *Kind) Create(ctx context.Context, path string) error { return k.create(ctx, path, "", nil) }

func (k *Kind) create(ctx context.Context, path, identity string, before func(identity string) error) error {
	if OnServer(path) {
		return k.createOnServer(ctx, path, identity, before)
	}
	tmp := path + ".new"
	for _, leftover := range []string{tmp, tmp + "-journal", tmp + "-wal", tmp + "-shm"} {
		if err := os.Remove(leftover); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// SQLite gives the files beside it the mode of the database.
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return Explain(path, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := k.fill(ctx, tmp); err != nil {
		_ = os.Remove(tmp) // the next attempt would do that too
		return Explain(path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

func (k *Kind) fill(ctx context.Context, path string) error {
	text, err := k.Schema()
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", dsn(path, "rw", "synchronous(full)", fmt.Sprintf("page_size(%d)", pageSize)))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, "BEGIN IMMEDIATE;\n"+text+"COMMIT;\nPRAGMA journal_mode = wal")
	return errors.Join(err, db.Close())
}

// SyncDir makes the file names in a folder durable.
func SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (k *Kind) openWriter(ctx context.Context, path string, pragmas []string) (*sql.DB, *sql.Conn, error) {
	db, err := openPrepared(dsn(path, "rw", append(pragmas, "journal_mode(wal)", "synchronous(full)", "busy_timeout(10000)", "cell_size_check(1)",
		fmt.Sprintf("journal_size_limit(%d)", walBytes))...))
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(1)
	conn, err := k.connect(ctx, db)
	if err != nil {
		return nil, nil, errors.Join(notOpened(path, err), db.Close())
	}
	return db, conn, nil
}

func (k *Kind) connect(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := k.migrate(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (k *Kind) migrate(ctx context.Context, conn *sql.Conn) error {
	var version int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := k.newer(version); err != nil || version == k.Version() {
		return err
	}
	text, err := k.steps(version)
	if err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE;\n"+text+"COMMIT"); err != nil {
		return fmt.Errorf("bringing it to version %d: %w", k.Version(), err) // closing undoes it
	}
	return nil
}

func (k *Kind) newer(version int) error {
	if version > k.Version() {
		return fmt.Errorf("it was written by a newer bridge (version %d of its format, this one knows %d): use that one", version, k.Version())
	}
	return nil
}

func (k *Kind) older(version int) error {
	if version < k.Version() {
		return fmt.Errorf("%w (version %d of its format, this one wants %d): run serve or harvest once, which brings it up to date", ErrOlder, version, k.Version())
	}
	return nil
}

// dsn returns the driver's name of a database; mode is that of SQLite's URIs. The empty
// path is a database in memory.
func dsn(path, mode string, pragmas ...string) string {
	if path == "" {
		path, mode = ":memory:", "memory"
	} else {
		path = (&url.URL{Path: path}).EscapedPath()
	}
	q := url.Values{"_pragma": pragmas, "_dqs": {"0"}}
	return "file:" + path + "?mode=" + mode + "&" + q.Encode()
}
