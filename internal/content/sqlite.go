package content

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

// kind is the sort of database that a content store is ("brCn").
func kind() *sqlite.Kind {
	steps, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the path is constant
	}
	return &sqlite.Kind{Name: "content store", ID: 0x6272436e, Migrations: steps}
}

// readConnections is how many reads run at once.
const readConnections = 4

// lookups is how many sums one statement looks up.
const lookups = 500

// writer is the only connection that writes. The transaction is run by hand,
// because statements bound to a sql.Tx are prepared anew at every use.
type writer struct {
	file    string
	db      *sql.DB   // nil together with conn
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

// openWriter opens the file; "" is a store in memory.
func openWriter(ctx context.Context, file string, dry bool) (*writer, error) {
	w := &writer{file: file, dry: dry}
	if err := w.connect(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *writer) connect(ctx context.Context) (err error) {
	if w.db, w.conn, err = kind().OpenWriter(ctx, w.file, "cache_size(-32768)"); err != nil {
		return err
	}
	if w.dry {
		if err := w.exec(ctx, `BEGIN IMMEDIATE`); err != nil {
			return err
		}
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
	if sqlite.NoTransaction(err) {
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
	errs = append(errs, w.conn.Raw(func(any) error { return driver.ErrBadConn }), w.db.Close())
	w.conn, w.db = nil, nil
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		return errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
	})...)
}

func (w *writer) close() error { return w.disconnect() }

// missingFrom returns the sums that the database does not hold, in the given
// order, each once.
func missingFrom(ctx context.Context, q querier, sums []Sum) ([]Sum, error) {
	seen := make(map[Sum]bool, len(sums)) // true: stored, or returned already
	for rest := sums; len(rest) > 0; {
		n := min(len(rest), lookups)
		if err := markPresent(ctx, q, rest[:n], seen); err != nil {
			return nil, err
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

// coded adds to an error of the store's file what it means to us.
func (s *Store) coded(err error) error {
	err = sqlite.Explain(s.path, err)
	if errors.Is(err, ErrDamaged) && !strings.Contains(err.Error(), "restore") {
		err = fmt.Errorf("%w: restore it from a backup", err)
	}
	return err
}
