// Package content keeps representations by the SHA-256 of their bytes, in a database of its
// own, from which they can be moved to a bucket of an S3 server. The database is an SQLite file,
// or a schema on the PostgreSQL server that has the log.
//
// A content is committed before the event that names it, and never changes. It is removed
// only with the whole set that named it, when nothing else names it. So a sum in the log
// always leads to its bytes, and two records with the same bytes share them. Every byte
// is checked against its hash when it is read: bytes that the disk has damaged are
// refused, not served.
package content

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

//go:embed migrations/*.sql
var migrations embed.FS

// kind returns the kind of database that a content store is ("brCn").
func kind() *database.Kind {
	steps, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the path is constant
	}
	return &database.Kind{Name: "content store", ID: 0x6272436e, Migrations: steps, OwnSchema: true, Rewrite: []string{
		"x''", "''::bytea",
	}, Postgres: map[int]string{1: `
-- Bytes are here until they are in the bucket, so they are not compressed. Those of a few
-- kilobytes stay in their row: to read them elsewhere took twice as long.
ALTER TABLE content SET (toast_tuple_target = 8160);
ALTER TABLE content ALTER COLUMN bytes SET STORAGE EXTERNAL;
ALTER TABLE chunk ALTER COLUMN bytes SET STORAGE EXTERNAL;`}}
}

// readConnections is how many reads run at once.
const readConnections = 4

// lookups is how many sums one statement looks up, or few when there are no more.
const lookups, few = 500, 32

// Errors that decide what a caller does next.
var (
	// ErrTooLarge: the reader has more bytes than the given limit.
	ErrTooLarge = errors.New("content is larger than allowed")
	// ErrDamaged: the bytes are not those that were stored. Reading them again does not
	// help.
	ErrDamaged = database.ErrDamaged
	// ErrFull: the disk is full. Nothing was stored, what is stored can be
	// read, and the same call succeeds once there is space.
	ErrFull = database.ErrFull
	// errReadOnly: the store was opened for reading.
	errReadOnly = errors.New("the content store is open for reading only")
)

// Sum is the SHA-256 of a content, its only name.
type Sum [sha256.Size]byte

// sumOf returns the SHA-256 of b.
func sumOf(b []byte) Sum { return sha256.Sum256(b) }

// ParseSum reads the 64 hex digits of String, in any case.
func ParseSum(digits string) (Sum, error) {
	var s Sum
	if len(digits) != hex.EncodedLen(len(s)) {
		return Sum{}, fmt.Errorf("%q is no SHA-256: want %d hex digits", digits, hex.EncodedLen(len(s)))
	}
	if _, err := hex.Decode(s[:], []byte(digits)); err != nil {
		return Sum{}, fmt.Errorf("%q is no SHA-256: %w", digits, err)
	}
	return s, nil
}

// String returns 64 hex digits in lower case.
func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// Options of a store. The zero value opens it for reading and writing.
type Options struct {
	// ReadOnly opens an existing store beside the process that writes it.
	ReadOnly bool
	// DryRun takes contents and drops them when the store is closed. A store that does
	// not exist yet is not made.
	DryRun bool
	// Spool is the folder for temporary files; "" is that of the store's file.
	Spool string
	// Log is the identity of the log whose contents a store on a server has.
	Log string
	// Bucket is the address of a bucket, as bucket.Parse takes it, to which contents are
	// moved by and by; "" is the one that the store has already, if it has one.
	Bucket string
	// Adopt takes over a bucket that was another store's, if this one has none: that other
	// one is lost. Store.Adopt then finds what is in it.
	Adopt bool
	// Idle moves nothing there but when Tidy says so.
	Idle bool
	// Keep is how many bytes of the newest packs are kept in the database too: 0 is 1 GiB,
	// a negative number none.
	Keep int64
	// KeepUnneeded is how long a pack stays after nothing needed it any more; 0 is 30 days.
	KeepUnneeded time.Duration
	// Now is the clock by which that time passes, and why it is not trusted: then nothing is removed
	// for it. Nil is the system's clock.
	Now func() (time.Time, error)
	// Report is called when contents cannot be moved to the bucket, and with nil when they
	// can again. Nil ignores it.
	Report func(error)
	// Failed is called with each error of a transaction; nil ignores it.
	Failed func(error)

	packBytes   int64         // of a pack; 0 is the constant packBytes
	largeAtOnce int           // large contents that are looked for at once; 0 is the constant largeAtOnce
	awayFor     time.Duration // that the server is not asked again; 0 is the constant awayFor
}

// Store is the content store. All methods may be called from any goroutine. Only one
// Store in one process may write a database; any number may read beside it. Of a file the
// caller makes sure of this, with the lock of the data folder.
type Store struct {
	path  string // of the file, or URL
	name  string // path as messages show it
	spool string // folder for temporary files of drafts

	readers *database.Readers // nil in a dry run
	query   database.Querier  // readers; in a dry run the connection that writes
	writer  *database.Writer  // nil when reading only
	packs   *packs            // nil without a bucket
}

// Open opens the store in the file path, whose folder must exist, or at the URL of a
// PostgreSQL server, as Locate returns it. It makes the store when there is none. With ReadOnly
// a missing store is the error fs.ErrNotExist.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if o.ReadOnly && o.DryRun {
		return nil, errors.New("open content store: read-only and dry run exclude each other")
	}
	if !database.OnServer(path) {
		var err error
		if path, err = filepath.Abs(path); err != nil {
			return nil, fmt.Errorf("open content store: %w", err)
		}
		o.Spool = cmp.Or(o.Spool, filepath.Dir(path))
	}
	s := &Store{path: path, name: database.Shown(path), spool: o.Spool}
	err := s.open(ctx, o)
	if err == nil {
		err = s.openBucket(ctx, o)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open content store %s: %w", s.name, err), s.Close())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, o Options) (err error) {
	found, err := kind().Look(ctx, s.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	switch {
	case o.ReadOnly && !found.Exists:
		return fs.ErrNotExist
	case o.DryRun:
		where := s.path
		if !found.Exists {
			where = ""
		}
		if s.writer, err = kind().OpenWriter(ctx, where, database.WriterOptions{Pragmas: pragmas(), DryRun: true}); err != nil {
			return err
		}
		s.spool, s.query = "", s.writer.Uncommitted()
	default:
		if !o.ReadOnly {
			if err := s.openWriter(ctx, found, o); err != nil {
				return err
			}
		}
		if s.readers, err = found.Readers(ctx, readConnections, "cache_size(-2048)"); err != nil {
			return err
		}
		s.query = s.readers
	}
	return nil
}

func (s *Store) openWriter(ctx context.Context, found *database.Found, o Options) (err error) {
	if !found.Exists {
		if err := found.Create(ctx, o.Log, nil); err != nil {
			return err
		}
	}
	if s.writer, err = kind().OpenWriter(ctx, s.path, database.WriterOptions{Pragmas: pragmas(), Failed: o.Failed}); err != nil {
		return err
	}
	return s.sweep()
}

// pragmas are those of the connection that writes. A large call writes each page once, so
// a larger cache gains nothing. SQLite lends the unused part of one cache to the others
// of the process, so memory depends on the sum of all. The undo data of a single
// statement is a few hundred kilobytes, and needs no file.
func pragmas() []string { return []string{"cache_size(-4096)", "temp_store(memory)"} }

// Close ends the store and, in a dry run, drops its new contents. Reading from a Blob
// that is still open fails then.
func (s *Store) Close() error {
	var errs []error
	if s.packs != nil {
		errs = append(errs, s.packs.close())
	}
	if s.readers != nil {
		errs = append(errs, s.readers.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.Close())
	}
	return errors.Join(errs...)
}

// Stats is how much a store holds.
type Stats struct {
	Count int64 // contents
	Bytes int64 // their lengths together, without what the database adds
}

// Stats returns how much the store holds, in the same time whatever its size.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	var st Stats
	err := s.query.QueryRowContext(ctx, `SELECT count, length FROM total`).Scan(&st.Count, &st.Bytes)
	if err != nil {
		return Stats{}, fmt.Errorf("%s: count contents: %w", s.name, s.coded(err))
	}
	return st, nil
}

// Has reports whether the store holds a content. It does not read its bytes.
func (s *Store) Has(ctx context.Context, sum Sum) (bool, error) {
	missing, err := s.Missing(ctx, []Sum{sum})
	return err == nil && len(missing) == 0, err
}

// Missing returns those of sums that the store does not hold, in the given
// order, each once.
func (s *Store) Missing(ctx context.Context, sums []Sum) ([]Sum, error) {
	missing, err := missingFrom(ctx, s.each, sums)
	if err != nil {
		return nil, fmt.Errorf("%s: look up contents: %w", s.name, s.coded(err))
	}
	return missing, nil
}

// each runs a query, and scans every row.
func (s *Store) each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	return database.Each(ctx, s.query, text, args, scan)
}

// query runs a query and scans every row.
type query func(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error

// missingFrom returns the sums that the database does not hold, in the given
// order, each once.
func missingFrom(ctx context.Context, query query, sums []Sum) ([]Sum, error) {
	seen := make(map[Sum]bool, len(sums)) // true: stored, or returned already
	for part := range slices.Chunk(sums, lookups) {
		if err := markPresent(ctx, query, part, seen); err != nil {
			return nil, err
		}
	}
	var missing []Sum
	for _, sum := range sums {
		if !seen[sum] {
			seen[sum] = true
			missing = append(missing, sum)
		}
	}
	return missing, nil
}

func markPresent(ctx context.Context, query query, sums []Sum, seen map[Sum]bool) error {
	size := lookups
	if len(sums) <= few {
		size = few
	}
	args := make([]any, size)
	for i := range args {
		args[i] = sums[min(i, len(sums)-1)][:] // padded, so that one statement serves all
	}
	return query(ctx, `SELECT sum FROM content WHERE sum IN (`+database.Params(size)+`)`, args, func(rows *sql.Rows) error {
		var raw sql.RawBytes
		if err := rows.Scan(&raw); err != nil {
			return err
		}
		var sum Sum
		copy(sum[:], raw)
		seen[sum] = true
		return nil
	})
}

// coded wraps an error of the store's database with one of the errors above, as
// database.Explain does, and with event.ErrUnavailable when it cannot be reached. A server whose
// own disk fails is of no use either, but a store that is asked again later loses nothing.
func (s *Store) coded(err error) error {
	err = database.Explain(s.path, err)
	if away := errors.Is(err, database.ErrCannotOpen) || errors.Is(err, database.ErrDisk) && database.OnServer(s.path); away && !errors.Is(err, event.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", event.ErrUnavailable, err)
	}
	if errors.Is(err, ErrDamaged) && !strings.Contains(err.Error(), "restore") {
		err = fmt.Errorf("%w: restore it from a backup", err)
	}
	return err
}
