package content

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// applicationID marks the file as a content store ("brCn"), so that no other
// database is taken for one.
const applicationID = 0x6272436e

// readConnections is how many reads run at once.
const readConnections = 4

// lookups is how many sums one statement looks up.
const lookups = 500

//go:embed migrations/*.sql
var migrations embed.FS

// address returns the driver's name of a database file with settings for each
// connection. The empty file is a database in memory.
func address(file string, query url.Values, pragmas ...string) string {
	query["_pragma"] = pragmas
	query.Set("_dqs", "0")
	u := url.URL{Scheme: "file", Path: file, RawQuery: query.Encode()}
	if file == "" {
		u.Opaque = ":memory:"
	}
	return u.String()
}

func openReaders(ctx context.Context, file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", address(file, url.Values{"mode": {"ro"}},
		"busy_timeout(10000)", "cache_size(-8192)", "cell_size_check(1)", "query_only(1)"))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(readConnections)
	db.SetMaxIdleConns(readConnections)
	version, err := schemaVersion(ctx, db)
	if err == nil {
		var known int
		if known, err = knownVersion(); err == nil && version != known {
			err = fmt.Errorf("it has version %d, this program reads version %d: let the process that writes it bring it up to date, or use the program that made it", version, known)
		}
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// writer is the only connection that writes. The transaction is run by hand,
// because statements bound to a sql.Tx are prepared anew at every use.
type writer struct {
	db      *sql.DB
	conn    *sql.Conn // nil after a failure that a rollback could not undo
	one     *sql.Stmt // a content that stands in its row
	many    *sql.Stmt // rowsPerInsert of them
	chunk   *sql.Stmt
	account *sql.Stmt

	// A dry run is one transaction that nobody commits. SQLite may end a
	// transaction by itself when something fails, and what came after would be
	// committed statement by statement: so the first failure is the last.
	dry    bool
	failed error
}

func openWriter(ctx context.Context, file string, dry bool) (*writer, error) {
	pragmas := []string{"busy_timeout(10000)", "cache_size(-32768)", "cell_size_check(1)"}
	if !dry {
		pragmas = append(pragmas, "journal_mode(wal)", "synchronous(full)", "wal_autocheckpoint(10000)", "journal_size_limit(67108864)")
	}
	db, err := sql.Open("sqlite", address(file, url.Values{"mode": {"rwc"}}, pragmas...))
	if err != nil {
		return nil, err
	}
	w := &writer{db: db, dry: dry}
	if err := w.connect(ctx); err != nil {
		return nil, errors.Join(coded(err), w.close())
	}
	return w, nil
}

func (w *writer) connect(ctx context.Context) (err error) {
	if w.conn, err = w.db.Conn(ctx); err != nil {
		return err
	}
	if err := w.exec(ctx, `BEGIN IMMEDIATE`); err != nil {
		return err
	}
	if err := w.migrate(ctx); err != nil {
		return errors.Join(err, w.rollback(ctx))
	}
	if err := w.commit(ctx); err != nil {
		return errors.Join(err, w.rollback(ctx))
	}
	var errs [4]error
	w.one, errs[0] = w.conn.PrepareContext(ctx, insertContents(1))
	w.many, errs[1] = w.conn.PrepareContext(ctx, insertContents(rowsPerInsert))
	w.chunk, errs[2] = w.conn.PrepareContext(ctx, `INSERT INTO chunk (content, n, seal, bytes) VALUES ($1, $2, $3, $4)`)
	w.account, errs[3] = w.conn.PrepareContext(ctx, `UPDATE total SET count = count + $1, length = length + $2`)
	return errors.Join(errs[:]...)
}

// do runs work in a transaction: all of it is durable when do returns nil, else
// none of it is there.
func (w *writer) do(ctx context.Context, work func() error) error {
	err := w.begin(ctx)
	if err == nil {
		if err = work(); err == nil {
			err = w.commit(ctx)
		}
	}
	switch {
	case err == nil:
		return nil
	case w.dry:
		w.failed = fmt.Errorf("the dry run ended with an earlier failure: %w", err)
		return err
	}
	if undone := w.rollback(ctx); undone != nil {
		return errors.Join(err, undone, w.disconnect())
	}
	return err
}

func (w *writer) begin(ctx context.Context) error {
	if w.dry {
		return w.failed
	}
	if w.conn == nil {
		if err := w.connect(ctx); err != nil {
			return errors.Join(err, w.disconnect())
		}
	}
	return w.exec(ctx, `BEGIN IMMEDIATE`)
}

// commit is not to be interrupted: whether it took effect would be unknown.
func (w *writer) commit(ctx context.Context) error {
	if w.dry {
		return nil
	}
	return w.exec(context.WithoutCancel(ctx), `COMMIT`)
}

// rollback ends the transaction if there still is one: SQLite has ended it by
// itself after some failures, a full disk for one.
func (w *writer) rollback(ctx context.Context) error {
	if w.conn == nil {
		return nil
	}
	err := w.exec(context.WithoutCancel(ctx), `ROLLBACK`)
	if code(err) == lib.SQLITE_ERROR {
		return nil
	}
	return err
}

func (w *writer) exec(ctx context.Context, text string) error {
	_, err := w.conn.ExecContext(ctx, text)
	return err
}

// disconnect throws the connection away, so that the next use makes a new one.
func (w *writer) disconnect() error {
	if w.conn == nil {
		return nil
	}
	var errs []error
	for _, st := range []*sql.Stmt{w.one, w.many, w.chunk, w.account} {
		if st != nil {
			errs = append(errs, st.Close())
		}
	}
	// database/sql closes a connection only when it is told that it is bad.
	errs = append(errs, w.conn.Raw(func(any) error { return driver.ErrBadConn }))
	w.conn = nil
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		return errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
	})...)
}

func (w *writer) close() error { return errors.Join(w.disconnect(), w.db.Close()) }

// migrate brings the database to the newest version, in the open transaction.
func (w *writer) migrate(ctx context.Context) error {
	version, err := schemaVersion(ctx, w.conn)
	if err != nil {
		return err
	}
	known, err := knownVersion()
	if err != nil {
		return err
	}
	if version > known {
		return fmt.Errorf("it has version %d, this program knows versions up to %d: use the program that made it", version, known)
	}
	for v := version + 1; v <= known; v++ {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/%04d.sql", v))
		if err != nil {
			return err
		}
		stamp := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d;", applicationID, v)
		if err := w.exec(ctx, string(text)+stamp); err != nil {
			return fmt.Errorf("bring it to version %d: %w", v, err)
		}
	}
	return nil
}

func knownVersion() (int, error) {
	names, err := fs.Glob(migrations, path.Join("migrations", "*.sql"))
	return len(names), err
}

// schemaVersion returns the number of the last migration, 0 for an empty file.
func schemaVersion(ctx context.Context, q querier) (int, error) {
	var id, version, tables int
	err := q.QueryRowContext(ctx, `SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
		FROM pragma_application_id, pragma_user_version`).Scan(&id, &version, &tables)
	if err != nil {
		return 0, coded(err)
	}
	if id != applicationID && (id != 0 || version != 0 || tables != 0) {
		return 0, errors.New("it is a database, but no content store: name another file")
	}
	return version, nil
}

// missingFrom returns the sums that the database does not hold, in the given
// order, each once.
func missingFrom(ctx context.Context, q querier, sums []Sum) ([]Sum, error) {
	seen := make(map[Sum]bool, len(sums)) // true: stored, or returned already
	for rest := sums; len(rest) > 0; {
		n := min(len(rest), lookups)
		if err := markPresent(ctx, q, rest[:n], seen); err != nil {
			return nil, coded(err)
		}
		rest = rest[n:]
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

func markPresent(ctx context.Context, q querier, sums []Sum, seen map[Sum]bool) error {
	args := make([]any, len(sums))
	for i := range sums {
		args[i] = sums[i][:]
	}
	rows, err := q.QueryContext(ctx, `SELECT sum FROM content WHERE sum IN (?`+strings.Repeat(`,?`, len(sums)-1)+`)`, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var raw sql.RawBytes
		if err := rows.Scan(&raw); err != nil {
			return err
		}
		var sum Sum
		copy(sum[:], raw)
		seen[sum] = true
	}
	return rows.Err()
}

// coded adds to an error of the driver what it means to us.
func coded(err error) error {
	if errors.Is(err, ErrFull) || errors.Is(err, ErrDamaged) {
		return err
	}
	switch code(err) {
	case lib.SQLITE_FULL:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return fmt.Errorf("%w: %w: restore it from a backup", ErrDamaged, err)
	}
	return err
}

// code returns the primary result code of an error of the driver, 0 for others.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}
