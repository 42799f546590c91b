package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver that the log uses

	"github.com/pmh-bridge/bridge/internal/eventlog"
)

const (
	rowsPerTransaction = 50_000
	rowsPerStatement   = 50
)

// insertRows is the harvest's rival: it writes the rows that a harvest of new records has
// left to a database with the same tables, indexes and page size, in the same transactions
// and order, with prepared multi-row INSERTs and nothing else. Only BEGIN to COMMIT is
// timed. Count is the number of events.
func insertRows(ctx context.Context, j job, _ func(result)) (result, error) {
	from, err := openFile(filepath.Join(j.Folder, eventlog.FileName), "query_only(1)")
	if err != nil {
		return result{}, err
	}
	defer from.Close()
	var pageSize int
	if err := from.QueryRowContext(ctx, "PRAGMA page_size").Scan(&pageSize); err != nil {
		return result{}, err
	}
	to, err := openFile(filepath.Join(j.Folder, "rival.db"), fmt.Sprintf("page_size(%d)", pageSize), "synchronous(full)", "cache_size(-32768)", "wal_autocheckpoint(10000)")
	if err != nil {
		return result{}, err
	}
	r, err := copyRows(ctx, from, to)
	return r, errors.Join(err, to.Close())
}

func openFile(file string, pragmas ...string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(), RawQuery: url.Values{"_pragma": pragmas}.Encode()}
	return sql.Open("sqlite", u.String())
}

// table is one table to be written, with the query for the rows of a batch of records, in
// the order in which the log writes them. $1 < record <= $2.
type table struct {
	name, from, where string
	columns           int
	one, many         *sql.Stmt
}

func copyRows(ctx context.Context, from, to *sql.DB) (r result, err error) {
	conn, err := to.Conn(ctx)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	if err := copySchema(ctx, from, conn); err != nil {
		return r, err
	}
	tables := []*table{
		{name: "event", where: "id IN (SELECT id >> 32 << 40 | seq FROM record WHERE id > $1 AND id <= $2) ORDER BY id"},
		{name: "record", where: "id > $1 AND id <= $2 ORDER BY id"},
		{name: "record_key", from: "any_key", where: "record > $1 AND record <= $2 ORDER BY key"},
		{name: "loc", from: "any_loc", where: "owner > $1 AND owner <= $2 ORDER BY key"},
	}
	for _, t := range tables {
		if err := t.prepare(ctx, from, conn); err != nil {
			return r, err
		}
	}
	var first, last int64
	if err := from.QueryRowContext(ctx, "SELECT min(id) - 1, max(id), (SELECT count(*) FROM event) FROM record").Scan(&first, &last, &r.Count); err != nil {
		return r, err
	}
	for at := first; at < last; at += rowsPerTransaction {
		rows := make([][]any, len(tables))
		for i, t := range tables {
			if rows[i], err = t.read(ctx, from, at, at+rowsPerTransaction); err != nil {
				return r, err
			}
		}
		took, err := insert(ctx, conn, tables, rows)
		if err != nil {
			return r, err
		}
		r.Took += took
	}
	return r, nil
}

// copySchema makes the tables and indexes of the log. The write-ahead log may be switched
// on only after that: it fixes the size of the pages.
func copySchema(ctx context.Context, from *sql.DB, to *sql.Conn) error {
	rows, err := from.QueryContext(ctx, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		if _, err := to.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	_, err = to.ExecContext(ctx, "PRAGMA journal_mode = wal")
	return err
}

func (t *table) prepare(ctx context.Context, from *sql.DB, to *sql.Conn) error {
	if err := from.QueryRowContext(ctx, "SELECT count(*) FROM pragma_table_info($1)", t.name).Scan(&t.columns); err != nil {
		return err
	}
	row := "(?" + strings.Repeat(", ?", t.columns-1) + ")"
	var errs [2]error
	t.one, errs[0] = to.PrepareContext(ctx, "INSERT INTO "+t.name+" VALUES "+row)
	t.many, errs[1] = to.PrepareContext(ctx, "INSERT INTO "+t.name+" VALUES "+row+strings.Repeat(", "+row, rowsPerStatement-1))
	return errors.Join(errs[:]...)
}

// read returns the values of the table's rows, one after the other.
func (t *table) read(ctx context.Context, from *sql.DB, after, upto int64) (out []any, err error) {
	rows, err := from.QueryContext(ctx, "SELECT * FROM "+cmp.Or(t.from, t.name)+" WHERE "+t.where, after, upto)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		at := len(out)
		out = append(out, make([]any, t.columns)...)
		into := make([]any, t.columns)
		for i := range into {
			into[i] = &out[at+i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
	}
	return out, rows.Err()
}

// insert writes one transaction, and returns the time that it took.
func insert(ctx context.Context, conn *sql.Conn, tables []*table, values [][]any) (time.Duration, error) {
	start := time.Now()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return 0, err
	}
	for i, t := range tables {
		for rest := values[i]; len(rest) > 0; {
			stmt, n := t.many, rowsPerStatement*t.columns
			if len(rest) < n {
				stmt, n = t.one, t.columns
			}
			if _, err := stmt.ExecContext(ctx, rest[:n]...); err != nil {
				return 0, fmt.Errorf("%s: %w", t.name, err)
			}
			rest = rest[n:]
		}
	}
	_, err := conn.ExecContext(ctx, "COMMIT")
	return time.Since(start), err
}
