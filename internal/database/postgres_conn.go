//go:build unix

package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sys/unix"
)

// postgresConn is a connection to a server that understands what is written for SQLite
// and is not particular to it: ? beside $1, INSERT OR FAIL, numbers for truth values, a
// query while the rows of another are being read. It counts the rows that it changes. One
// goroutine at a time calls it.
type postgresConn struct {
	inner   *stdlib.Conn
	rewrite *strings.Replacer // of parts that SQLite alone understands
	texts   map[statement]string
	changed int64         // rows, ever
	open    *postgresRows // are being read; nil when there are none
}

// statement is one as we write it, with what its arguments are as far as that matters.
type statement struct{ text, args string }

// keptTexts is how many statements a connection remembers how to write.
const keptTexts = 1000

// text returns a statement as PostgreSQL wants it. A ? is the parameter after the last
// one. A number is a bigint: where only an operator or a small number stands beside it,
// the server would take it for less, and overflow. In an INSERT of values the columns say
// what it is.
func (c *postgresConn) text(ctx context.Context, ours string, args []driver.NamedValue) (string, error) {
	name := statement{text: ours}
	typed := !strings.HasPrefix(strings.TrimLeft(ours, " \n\t"), "INSERT") || strings.Contains(ours, "SELECT")
	if typed {
		kinds := make([]byte, len(args))
		for i, a := range args {
			if _, ok := a.Value.(int64); ok {
				kinds[i] = 1
			}
		}
		name.args = string(kinds)
	}
	if theirs, ok := c.texts[name]; ok {
		return theirs, nil
	}
	var b strings.Builder
	last, quoted := 0, false
	parameter := func(n int) {
		b.WriteString("$" + strconv.Itoa(n))
		if n <= len(name.args) && name.args[n-1] == 1 {
			b.WriteString("::bigint")
		}
	}
	for i := 0; i < len(ours); i++ {
		switch ch := ours[i]; {
		case ch == '\'':
			quoted = !quoted
			b.WriteByte(ch)
		case ch == '?' && !quoted:
			last++
			parameter(last)
		case ch == '$' && !quoted:
			end := i + 1
			for end < len(ours) && ours[end] >= '0' && ours[end] <= '9' {
				end++
			}
			n, err := strconv.Atoi(ours[i+1 : end])
			if err != nil {
				return "", fmt.Errorf("a parameter without a number: %s", ours)
			}
			last = max(last, n)
			parameter(n)
			i = end - 1
		default:
			b.WriteByte(ch)
		}
	}
	if len(c.texts) >= keptTexts {
		clear(c.texts)
	}
	theirs, err := c.upsert(ctx, strings.TrimLeft(c.rewrite.Replace(b.String()), " \n\t"))
	if err == nil {
		c.texts[name] = theirs
	}
	return theirs, err
}

// upsert writes INSERT OR REPLACE and INSERT OR IGNORE with ON CONFLICT. Rows are replaced
// by their primary key, and have all columns.
func (c *postgresConn) upsert(ctx context.Context, text string) (string, error) {
	if rest, ok := strings.CutPrefix(text, "INSERT OR IGNORE INTO "); ok {
		return "INSERT INTO " + rest + " ON CONFLICT DO NOTHING", nil
	}
	rest, ok := strings.CutPrefix(text, "INSERT OR REPLACE INTO ")
	if !ok {
		return text, nil
	}
	table, after, _ := strings.Cut(rest, " ")
	columns, _, ok := strings.Cut(strings.TrimPrefix(after, "("), ")")
	if !ok {
		return "", fmt.Errorf("INSERT OR REPLACE without columns: %s", text)
	}
	var key string
	if err := c.inner.Conn().QueryRow(ctx, `SELECT string_agg(a.attname, ', ') FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indisprimary AND i.indrelid = to_regclass($1)`, table).Scan(&key); err != nil {
		return "", fmt.Errorf("the primary key of %s: %w", table, err)
	}
	keys, set := strings.Split(key, ", "), []string{}
	for _, column := range strings.Split(columns, ",") {
		if column = strings.TrimSpace(column); !slices.Contains(keys, column) {
			set = append(set, column+" = excluded."+column)
		}
	}
	if len(set) == 0 {
		return "INSERT INTO " + rest + " ON CONFLICT DO NOTHING", nil
	}
	return "INSERT INTO " + rest + " ON CONFLICT (" + key + ") DO UPDATE SET " + strings.Join(set, ", "), nil
}

// changes reports whether a statement changes rows, and so counts them.
func changes(text string) bool {
	text = strings.TrimLeft(text, " \n\t")
	for _, verb := range [...]string{"INSERT", "UPDATE", "DELETE"} {
		if strings.HasPrefix(text, verb) || strings.HasPrefix(text, "WITH") && strings.Contains(text, verb+" ") {
			return true
		}
	}
	return false
}

// arguments are those of a statement as the server takes them.
func arguments(args []driver.NamedValue) []driver.NamedValue {
	for i := range args {
		if s, ok := args[i].Value.(string); ok {
			args[i].Value = escape(s)
		}
	}
	return args
}

// escapeMark is a code point that no text has. It stands before the two hexadecimal digits of a
// byte that the server does not keep in a text: 0, a part of what is not UTF-8, and of
// escapeMark itself. A name of a file may have such bytes.
const escapeMark = "\U0010FFFF"

func escape(s string) string {
	if utf8.ValidString(s) && !strings.Contains(s, "\x00") && !strings.Contains(s, escapeMark) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == 0 || r == utf8.RuneError && n == 1 || s[:n] == escapeMark {
			for _, bad := range []byte(s[:n]) {
				fmt.Fprintf(&b, "%s%02x", escapeMark, bad)
			}
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// unescape is the reverse of escape.
func unescape(s string) string {
	before, rest, found := strings.Cut(s, escapeMark)
	if !found {
		return s
	}
	b := []byte(before)
	for found {
		if bad, err := hex.DecodeString(rest[:min(2, len(rest))]); err == nil {
			b, rest = append(b, bad...), rest[min(2, len(rest)):]
		}
		before, rest, found = strings.Cut(rest, escapeMark)
		b = append(b, before...)
	}
	return string(b)
}

func (c *postgresConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.drain(); err != nil {
		return nil, err
	}
	if len(args) == 0 && strings.Contains(text, ";") { // may be several statements
		results, err := c.inner.Conn().PgConn().Exec(ctx, c.rewrite.Replace(text)).ReadAll()
		for _, r := range results {
			if tag := r.CommandTag; tag.Insert() || tag.Update() || tag.Delete() {
				c.changed += tag.RowsAffected()
			}
		}
		return driver.ResultNoRows, c.err(err)
	}
	if text == "COMMIT" {
		return driver.ResultNoRows, c.commit(ctx)
	}
	theirs, err := c.text(ctx, text, args)
	if err != nil {
		return nil, c.err(err)
	}
	r, err := c.inner.ExecContext(ctx, theirs, arguments(args))
	if err != nil {
		return nil, c.err(err)
	}
	if changes(text) {
		n, err := r.RowsAffected()
		if err != nil {
			return nil, err
		}
		c.changed += n
	}
	return r, nil
}

// commit is COMMIT. A transaction that has failed before ends without an error, undone.
func (c *postgresConn) commit(ctx context.Context) error {
	tag, err := c.inner.Conn().Exec(ctx, "COMMIT", pgx.QueryExecModeSimpleProtocol)
	if err == nil && tag.String() != "COMMIT" {
		return fmt.Errorf("the transaction had failed before its COMMIT, and was undone (%s)", tag)
	}
	return c.err(err)
}

func (c *postgresConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.drain(); err != nil {
		return nil, err
	}
	theirs, err := c.text(ctx, text, args)
	if err != nil {
		return nil, c.err(err)
	}
	rows, err := c.inner.QueryContext(ctx, theirs, arguments(args))
	if err != nil {
		return nil, c.err(err)
	}
	c.open = &postgresRows{Rows: rows, conn: c, counted: changes(text)}
	return c.open, nil
}

// drain reads the rest of the rows that are being read, since a server answers one query
// after the other.
func (c *postgresConn) drain() error {
	if c.open == nil {
		return nil
	}
	r := c.open
	for {
		row := make([]driver.Value, len(r.Columns()))
		err := r.read(row)
		if errors.Is(err, io.EOF) {
			return r.end()
		}
		if err != nil {
			r.failed = err
			return r.end()
		}
		r.kept = append(r.kept, row)
	}
}

// err marks an error that is not the server's, and not the caller's, who has given up.
func (c *postgresConn) err(err error) error {
	if err == nil || errors.Is(err, driver.ErrBadConn) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); !ok && c.inner.Conn().IsClosed() {
		return wayToServer{err}
	}
	return err
}

// CheckNamedValue turns an argument into what a column holds: a number, a text or bytes.
func (c *postgresConn) CheckNamedValue(v *driver.NamedValue) error {
	value, err := driver.DefaultParameterConverter.ConvertValue(v.Value)
	if b, ok := value.(bool); ok {
		value = number(b)
	}
	v.Value = value
	return err
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Prepare is not for us: the driver keeps statements prepared.
func (c *postgresConn) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("statements of a server are not prepared by hand")
}

// Close returns no error: of a connection that was lost before, TLS says that its end could not be
// told.
func (c *postgresConn) Close() error {
	_ = c.inner.Close()
	return nil
}

// Begin is BeginTx.
func (c *postgresConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx begins a transaction that reads one moment of the database.
func (c *postgresConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.drain(); err != nil {
		return nil, err
	}
	opts.Isolation = driver.IsolationLevel(sql.LevelRepeatableRead)
	tx, err := c.inner.BeginTx(ctx, opts)
	return tx, c.err(err)
}

func (c *postgresConn) Ping(ctx context.Context) error { return c.err(c.inner.Ping(ctx)) }

// ResetSession is called before a connection is used again. The driver asks the server
// whether the connection still is one only after a second without use; when the server was
// restarted meanwhile there is something to read, without asking.
func (c *postgresConn) ResetSession(ctx context.Context) error {
	if pending(c.inner.Conn().PgConn().Conn()) && c.inner.Ping(ctx) != nil {
		return driver.ErrBadConn
	}
	return c.inner.ResetSession(ctx)
}

// pending reports whether a connection has something to read, or has ended.
func pending(c net.Conn) (is bool) {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = outer.NetConn()
	}
	inner, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := inner.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		is = !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	return is || err != nil
}

// IsValid reports whether the connection may be used again.
func (c *postgresConn) IsValid() bool { return !c.inner.Conn().IsClosed() }

// postgresRows are the rows of a query.
type postgresRows struct {
	driver.Rows
	conn    *postgresConn
	counted bool
	columns []string
	kept    [][]driver.Value // those that drain has read
	failed  error            // what ended it
	ended   bool
}

func (r *postgresRows) Columns() []string {
	if r.columns == nil {
		r.columns = r.Rows.Columns()
	}
	return r.columns
}

func (r *postgresRows) Next(dest []driver.Value) error {
	if len(r.kept) > 0 {
		copy(dest, r.kept[0])
		r.kept = r.kept[1:]
		return nil
	}
	if r.failed != nil {
		return r.failed
	}
	if r.ended {
		return io.EOF
	}
	return r.read(dest)
}

// read reads a row from the connection.
func (r *postgresRows) read(dest []driver.Value) error {
	if err := r.Rows.Next(dest); err != nil {
		return r.conn.err(err)
	}
	for i := range dest {
		switch v := dest[i].(type) {
		case bool:
			dest[i] = number(v)
		case string:
			dest[i] = unescape(v)
		}
	}
	if r.counted {
		r.conn.changed++
	}
	return nil
}

// end ends the query on the connection.
func (r *postgresRows) end() error {
	if r.ended {
		return nil
	}
	r.ended = true
	if r.conn.open == r {
		r.conn.open = nil
	}
	return r.conn.err(r.Rows.Close())
}

// Close counts the rows that nobody wants to read.
func (r *postgresRows) Close() error {
	r.kept = nil
	if r.counted && !r.ended {
		for row := make([]driver.Value, len(r.Columns())); r.read(row) == nil; {
		}
	}
	return r.end()
}
