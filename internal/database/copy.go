//go:build unix

package database

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Copied is how much a copy has.
type Copied struct {
	Tables int   `json:"tables"`
	Rows   int64 `json:"rows"`
	Bytes  int64 `json:"bytes"` // of the values
	// Others are tables beside the original that are not ours, and were not copied.
	Others []string `json:"others,omitempty"`
}

// CopyOptions are the options of Kind.Copy. The zero value is ready to use.
type CopyOptions struct {
	// Progress, if not nil, is called now and then with how many rows were read so far: each
	// is read twice, in the original and in the copy.
	Progress func(rows int64)
	// Before, if not nil, is called when the copy is complete and nobody can see it yet. If
	// it returns an error there will be no copy. identity is that of the copy, "" for a file.
	Before func(identity string) error
	// Identity is that of a copy on a server; "" is a new one.
	Identity string
	// Replace replaces a database on a server that has this Identity: an earlier copy.
	Replace bool
}

const (
	// copying is the end of the name of a file that is not a whole copy yet.
	copying = ".copying"
	// rowsOfCommit is how many rows of a copy in a file are committed at once, and
	// bytesOfCommit how many bytes at most, unless a single row has more.
	rowsOfCommit, bytesOfCommit = 50_000, 32 << 20
	// rowsOfProgress is how many rows make progress.
	rowsOfProgress = 4096
)

// ErrTaken: the place for a copy has a database already.
var ErrTaken = errors.New("give an empty place; if it is what a copy has left that is not wanted, remove it first (on a server: DROP SCHEMA, or the tables)")

// Copy copies all rows of a database to a place where there is none: from a file to a
// server, from a server to a file, or between two of a kind. Nobody may write either
// meanwhile. Each table of the copy is read again, and compared. The copy is there whole,
// or not at all: after an error of Before there is none. After another error that came
// later than the call of Before, Find has to be asked, on a server after Settle.
func (k *Kind) Copy(ctx context.Context, from, to string, o CopyOptions) (c Copied, err error) {
	found, err := k.Look(ctx, to)
	if err == nil {
		err = found.Close()
	}
	if err != nil {
		return c, err
	}
	if found.Exists {
		if has := found.Identity; !o.Replace || has == "" || has != o.Identity {
			return c, fmt.Errorf("%s has a %s already: %w", Shown(to), k.Name, ErrTaken)
		}
	}
	source, err := k.copySource(ctx, from)
	if err != nil {
		return c, fmt.Errorf("opening %s: %w", Shown(from), Explain(from, err))
	}
	defer func() {
		err = errors.Join(err, source.close())
		if err != nil && ctx.Err() != nil {
			err = ctx.Err() // and not what broke because of that
		}
	}()
	target, err := k.target(ctx, to, o)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, target.close()) }()
	tables, err := target.tables(ctx)
	if err != nil {
		return c, fmt.Errorf("reading what %s has: %w", Shown(to), Explain(to, err))
	}
	if c.Others, err = source.compare(ctx, tables); err != nil {
		return c, fmt.Errorf("reading what %s has: %w", Shown(from), Explain(from, err))
	}
	read := int64(0)
	tell := func() {
		if read++; read%rowsOfProgress == 0 && o.Progress != nil {
			o.Progress(read)
		}
	}
	for i := range tables {
		t := &tables[i]
		copied, err := copyTable(ctx, source.tx, target, t, tell)
		if err != nil {
			return c, fmt.Errorf("copying table %s from %s to %s: %w", t.name, Shown(from), Shown(to), Explain(to, err))
		}
		var has rowSum
		if err := target.each(ctx, t.all(), func(rows *sql.Rows) error {
			tell()
			return has.addRow(rows, len(t.columns))
		}); err != nil {
			return c, fmt.Errorf("reading table %s again in %s: %w", t.name, Shown(to), Explain(to, err))
		}
		if !has.same(&copied) {
			return c, fmt.Errorf("the copy of table %s in %s is not what was copied: it has %d rows of %d bytes, and %d of %d were read: %w",
				t.name, Shown(to), has.rows, has.bytes, copied.rows, copied.bytes, ErrDamaged)
		}
		c.Tables++
		c.Rows += copied.rows
		c.Bytes += copied.bytes
	}
	if o.Progress != nil {
		o.Progress(read)
	}
	return c, Explain(to, target.finish(ctx, o.Before))
}

// copyTable copies a table, and returns the sum of what was read.
func copyTable(ctx context.Context, from Querier, to target, t *copiedTable, tell func()) (sum rowSum, err error) {
	rows, err := from.QueryContext(ctx, t.all()+t.order())
	if err != nil {
		return sum, err
	}
	defer rows.Close()
	in := &rowSource{rows: rows, table: t, sum: &sum, tell: tell}
	if err := to.fill(ctx, t, in); in.err == nil { // else that is the cause
		return sum, err
	}
	return sum, fmt.Errorf("reading it: %w", in.err)
}

// copySource is the original, as it was at one moment.
type copySource struct {
	path string
	db   *sql.DB
	conn *sql.Conn
	tx   *sql.Tx
}

func (k *Kind) copySource(ctx context.Context, path string) (s *copySource, err error) {
	s = &copySource{path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	params := maps.Clone(sessionOfWriter) // no timeout that others have: this takes as long as it takes
	maps.Copy(params, sessionOfReaders)
	r, err := k.openReaders(ctx, path, 1, params)
	if err == nil {
		s.db = r.DB
		s.conn, err = s.db.Conn(ctx)
	}
	if err == nil && OnServer(path) {
		err = unlimited(ctx, s.conn)
	}
	if err == nil {
		s.tx, err = s.conn.BeginTx(ctx, nil)
	}
	if err == nil && OnServer(path) {
		// Rows come in the order of an index: to sort them first would take as much disk as
		// the table.
		_, err = s.tx.ExecContext(ctx, "SET LOCAL enable_sort = off")
	}
	return s, err
}

// compare returns an error when the original has not all tables with all columns. It also
// returns the names of other tables.
func (s *copySource) compare(ctx context.Context, tables []copiedTable) (others []string, err error) {
	if others, err = tableNames(ctx, s.tx, OnServer(s.path)); err != nil {
		return nil, err
	}
	for i := range tables {
		t := &tables[i]
		if !slices.Contains(others, t.name) {
			return nil, fmt.Errorf("%w: there is no table %s", ErrDamaged, t.name)
		}
		others = slices.DeleteFunc(others, func(name string) bool { return name == t.name })
		has, err := columnsOf(ctx, s.tx, t.name)
		if err == nil && !slices.Equal(has, t.columns) {
			err = fmt.Errorf("%w: table %s has the columns %v, and should have %v", ErrDamaged, t.name, has, t.columns)
		}
		if err != nil {
			return nil, err
		}
	}
	return others, nil
}

func (s *copySource) close() error {
	var errs []error
	if s.tx != nil {
		_ = s.tx.Rollback() // it only reads
	}
	if s.conn != nil {
		if err := s.conn.Close(); !errors.Is(err, sql.ErrConnDone) { // it may have been lost
			errs = append(errs, err)
		}
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	return errors.Join(errs...)
}

// copiedTable is a table of a database.
type copiedTable struct {
	name    string
	columns []string // in the order of their names
	key     []string // the columns of the primary key, in its order
}

func (t *copiedTable) all() string {
	return "SELECT " + strings.Join(t.columns, ", ") + " FROM " + t.name
}

// order is the order in which rows are written best.
func (t *copiedTable) order() string {
	if len(t.key) == 0 {
		return ""
	}
	return " ORDER BY " + strings.Join(t.key, ", ")
}

// tableNames returns the names of the tables of a database, in their order. The table
// format, which only a server has, belongs to the place and not to what is kept there.
func tableNames(ctx context.Context, q Querier, onServer bool) ([]string, error) {
	query := "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
	if onServer {
		query = "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = quote_ident(current_schema())::regnamespace AND relname <> 'format'"
	}
	names, err := texts(ctx, q, query)
	slices.Sort(names)
	return names, err
}

// tablesOf returns the tables of a database.
func tablesOf(ctx context.Context, q Querier, onServer bool) ([]copiedTable, error) {
	key := "SELECT name FROM pragma_table_info($1) WHERE pk > 0 ORDER BY pk"
	if onServer {
		key = "SELECT a.attname::text FROM pg_index i, pg_attribute a WHERE i.indisprimary AND i.indrelid = to_regclass($1) AND a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) ORDER BY array_position(i.indkey::smallint[], a.attnum)"
	}
	names, err := tableNames(ctx, q, onServer)
	if err != nil {
		return nil, err
	}
	tables := make([]copiedTable, len(names))
	for i, name := range names {
		t := &tables[i]
		t.name = name
		if t.key, err = texts(ctx, q, key, name); err != nil {
			return nil, err
		}
		if t.columns, err = columnsOf(ctx, q, name); err != nil {
			return nil, err
		}
	}
	return tables, nil
}

// columnsOf returns the columns of a table, in the order of their names.
func columnsOf(ctx context.Context, q Querier, table string) ([]string, error) {
	rows, err := q.QueryContext(ctx, "SELECT * FROM "+table+" LIMIT 0")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	slices.Sort(columns)
	return columns, errors.Join(err, rows.Err())
}

// texts returns the only column of a query's rows.
func texts(ctx context.Context, q Querier, text string, args ...any) (out []string, err error) {
	return out, Each(ctx, q, text, args, func(rows *sql.Rows) error {
		var s string
		err := rows.Scan(&s)
		out = append(out, s)
		return err
	})
}

// rowSum is the sum of the hashes of rows, which their order does not change.
type rowSum struct {
	rows, bytes int64
	low, high   uint64
	buf         []byte // of the last row
}

func (s *rowSum) same(o *rowSum) bool {
	return s.rows == o.rows && s.bytes == o.bytes && s.low == o.low && s.high == o.high
}

func (s *rowSum) add(values []any) error {
	buf := s.buf[:0]
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			buf = append(buf, 0)
		case int64:
			buf = binary.BigEndian.AppendUint64(append(buf, 1), uint64(v))
		case string:
			buf = append(binary.BigEndian.AppendUint64(append(buf, 2), uint64(len(v))), v...)
		case []byte:
			buf = append(binary.BigEndian.AppendUint64(append(buf, 3), uint64(len(v))), v...)
		default:
			return fmt.Errorf("a value is a %T, and no number, text or bytes", v)
		}
	}
	sum := sha256.Sum256(buf)
	var carry uint64
	s.low, carry = bits.Add64(s.low, binary.BigEndian.Uint64(sum[8:]), 0)
	s.high, _ = bits.Add64(s.high, binary.BigEndian.Uint64(sum[:8]), carry)
	s.rows++
	s.bytes += int64(len(buf))
	s.buf = buf
	return nil
}

// addRow adds the row that a query has come to.
func (s *rowSum) addRow(rows *sql.Rows, width int) error {
	values, err := scanRow(rows, width)
	if err != nil {
		return err
	}
	return s.add(values)
}

func scanRow(rows *sql.Rows, width int) ([]any, error) {
	values, to := make([]any, width), make([]any, width)
	for i := range values {
		to[i] = &values[i]
	}
	err := rows.Scan(to...)
	for i, v := range values {
		if b, ok := v.([]byte); ok && b == nil {
			values[i] = []byte{} // as SQLite's driver returns no bytes, and a nil slice is written as NULL
		}
	}
	return values, err
}

// rowSource reads the rows of a table, and adds them up.
type rowSource struct {
	rows   *sql.Rows
	table  *copiedTable
	sum    *rowSum
	tell   func()
	values []any
	err    error
}

// Next reads the next row. It is false at the end, or after an error.
func (r *rowSource) Next() bool {
	if r.err != nil || !r.rows.Next() {
		r.err = errors.Join(r.err, r.rows.Err())
		return false
	}
	r.tell()
	if r.values, r.err = scanRow(r.rows, len(r.table.columns)); r.err == nil {
		r.err = r.sum.add(r.values)
	}
	return r.err == nil
}

// Values returns the row as a server takes it: with Err, this is what pgx copies from.
func (r *rowSource) Values() ([]any, error) {
	for i, v := range r.values {
		if s, ok := v.(string); ok {
			r.values[i] = escape(s)
		}
	}
	return r.values, nil
}

// Err returns the error that has ended the rows.
func (r *rowSource) Err() error { return r.err }

// target is where a copy is made.
type target interface {
	// tables returns the tables to be filled. They are empty.
	tables(ctx context.Context) ([]copiedTable, error)
	// fill writes the rows of a table.
	fill(ctx context.Context, t *copiedTable, in *rowSource) error
	// each reads what was written.
	each(ctx context.Context, query string, scan func(*sql.Rows) error) error
	// finish makes the copy visible.
	finish(ctx context.Context, before func(identity string) error) error
	// close ends the copy. One that is not finished is gone then.
	close() error
}

func (k *Kind) target(ctx context.Context, path string, o CopyOptions) (target, error) {
	if OnServer(path) {
		return k.serverTarget(ctx, path, o)
	}
	return k.fileTarget(ctx, path)
}

// clearTables removes the rows that a new database has by itself.
func clearTables(tables []copiedTable, exec func(text string) error) error {
	for i := range tables {
		if err := exec("DELETE FROM " + tables[i].name); err != nil {
			return err
		}
	}
	return nil
}

// copiedFile is a copy in a file, which has its name when it is whole.
type copiedFile struct {
	path   string
	writer *Writer // nil when it is closed
}

func (k *Kind) fileTarget(ctx context.Context, path string) (*copiedFile, error) {
	f := &copiedFile{path: path}
	if err := RemoveCopy(path); err != nil {
		return nil, err
	}
	err := k.Create(ctx, path+copying)
	if err == nil {
		f.writer, err = k.OpenWriter(ctx, path+copying, WriterOptions{Pragmas: []string{"cache_size(-65536)", "foreign_keys(0)"}})
	}
	if err != nil {
		return nil, errors.Join(err, RemoveCopy(path))
	}
	return f, nil
}

// RemoveCopy removes what an interrupted copy to a file has left.
func RemoveCopy(path string) error {
	var errs []error
	for _, end := range []string{"", "-wal", "-shm", ".new", ".new-journal"} {
		if err := os.Remove(path + copying + end); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (f *copiedFile) tables(ctx context.Context) (all []copiedTable, err error) {
	return all, f.writer.Do(ctx, func(ctx context.Context, tx *Tx) (err error) {
		if all, err = tablesOf(ctx, tx, false); err != nil {
			return err
		}
		return clearTables(all, func(text string) error { return tx.Exec(ctx, text) })
	})
}

func (f *copiedFile) fill(ctx context.Context, t *copiedTable, in *rowSource) error {
	insert := "INSERT INTO " + t.name + " (" + strings.Join(t.columns, ", ") + ") VALUES "
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.writer.DoFirst(ctx, func(ctx context.Context, tx *Tx) error {
			bulk, bytes := tx.Bulk(ctx, insert, len(t.columns)), in.sum.bytes
			for n := 0; n < rowsOfCommit && in.sum.bytes-bytes < bytesOfCommit; n++ {
				if more = in.Next(); !more {
					break
				}
				if err := bulk.Add(in.values...); err != nil {
					return err
				}
			}
			return bulk.Flush()
		}); err != nil {
			return err
		}
	}
	return nil
}

func (f *copiedFile) each(ctx context.Context, query string, scan func(*sql.Rows) error) error {
	return f.writer.Use(ctx, func(_ context.Context, tx *Tx) error { return tx.Each(ctx, query, nil, scan) }) // ends with the caller: it takes long
}

// finish first copies the write-ahead log to the file. To close the file would do that too,
// but without an error where the disk is full.
func (f *copiedFile) finish(ctx context.Context, before func(identity string) error) error {
	if err := f.writer.Use(ctx, func(ctx context.Context, tx *Tx) error {
		var busy, frames, copied int64
		if err := tx.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &copied); err != nil {
			return err
		}
		if busy != 0 || frames != copied {
			return fmt.Errorf("%w: of %d frames of its write-ahead log %d could be copied", ErrDisk, frames, copied)
		}
		return nil
	}); err != nil {
		return err
	}
	err := f.writer.Close()
	f.writer = nil
	if err != nil {
		return err
	}
	if st, err := os.Stat(f.path + copying + "-wal"); err == nil && st.Size() > 0 {
		return fmt.Errorf("%w: its write-ahead log could not be copied", ErrDisk)
	}
	if before != nil {
		if err := before(""); err != nil {
			return err
		}
	}
	return errors.Join(os.Rename(f.path+copying, f.path), SyncDir(filepath.Dir(f.path)))
}

func (f *copiedFile) close() (err error) {
	if f.writer != nil {
		err = f.writer.Close()
		f.writer = nil
	}
	return errors.Join(err, RemoveCopy(f.path))
}

// copiedOnServer is a copy on a server. All of it is one transaction.
type copiedOnServer struct {
	db   *sql.DB
	conn *sql.Conn
}

func (k *Kind) serverTarget(ctx context.Context, path string, o CopyOptions) (*copiedOnServer, error) {
	text, err := k.postgresSteps(0, o.Identity)
	if err == nil && k.OwnSchema {
		err = k.makeSchema(ctx, path)
	}
	if err != nil {
		return nil, err
	}
	s := &copiedOnServer{}
	if s.db, s.conn, err = k.lockServer(ctx, path); err != nil {
		return nil, err
	}
	drop, err := s.earlier(ctx, o)
	if err != nil {
		return nil, errors.Join(Explain(path, err), s.close())
	}
	text = drop + text
	if _, err := s.conn.ExecContext(ctx, "BEGIN;\n"+text); err != nil {
		return nil, errors.Join(fmt.Errorf("creating the tables in %s: %w", Shown(path), Explain(path, err)), s.close())
	}
	return s, nil
}

// earlier returns what drops an earlier copy that is to be replaced, "" if there is none.
func (s *copiedOnServer) earlier(ctx context.Context, o CopyOptions) (drop string, err error) {
	var found bool
	if !o.Replace {
		return "", nil
	}
	if err := s.conn.QueryRowContext(ctx, "SELECT to_regclass('format') IS NOT NULL").Scan(&found); err != nil || !found {
		return "", err
	}
	var has string
	if err := s.conn.QueryRowContext(ctx, "SELECT identity FROM format").Scan(&has); err != nil || has != o.Identity {
		return "", err // to create the tables fails
	}
	names, err := tableNames(ctx, s.conn, true)
	return "DROP TABLE " + strings.Join(append(names, "format"), ", ") + " CASCADE;\n", err
}

func (s *copiedOnServer) tables(ctx context.Context) ([]copiedTable, error) {
	all, err := tablesOf(ctx, s.conn, true)
	if err != nil {
		return nil, err
	}
	return all, clearTables(all, func(text string) error {
		_, err := s.conn.ExecContext(ctx, text)
		return err
	})
}

func (s *copiedOnServer) fill(ctx context.Context, t *copiedTable, in *rowSource) error {
	if err := s.conn.Raw(func(c any) error {
		conn := c.(*postgresConn) //nolint:forcetypeassert // as openPostgres opens it
		_, err := conn.inner.Conn().CopyFrom(ctx, pgx.Identifier{t.name}, t.columns, in)
		return conn.err(err)
	}); err != nil {
		return err
	}
	// Without it the server would not know how many rows there are, and plan badly.
	_, err := s.conn.ExecContext(ctx, "ANALYZE "+t.name)
	return err
}

func (s *copiedOnServer) each(ctx context.Context, query string, scan func(*sql.Rows) error) error {
	return Each(ctx, s.conn, query, nil, scan)
}

func (s *copiedOnServer) finish(ctx context.Context, before func(identity string) error) error {
	var identity string
	if err := s.conn.QueryRowContext(ctx, "SELECT identity FROM format").Scan(&identity); err != nil {
		return err
	}
	if before != nil {
		if err := before(identity); err != nil {
			return err
		}
	}
	_, err := s.conn.ExecContext(context.WithoutCancel(ctx), "COMMIT")
	return err
}

// close: the server undoes what was not committed.
func (s *copiedOnServer) close() error {
	err := s.conn.Close()
	if errors.Is(err, sql.ErrConnDone) {
		err = nil // it was lost
	}
	return errors.Join(err, s.db.Close())
}
