//go:build unix

package database

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// do runs statements in one transaction.
func (m *made) do(t *testing.T, statements ...string) {
	t.Helper()
	if err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
		for _, s := range statements {
			if err := tx.Exec(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// rowsOf returns the rows of a query, as fmt prints them.
func rowsOf(ctx context.Context, q Querier, text string, args ...any) (string, error) {
	var b strings.Builder
	err := Each(ctx, q, text, args, func(rows *sql.Rows) error {
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		row, to := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			to[i] = &row[i]
		}
		err = rows.Scan(to...)
		fmt.Fprint(&b, row)
		return err
	})
	return b.String(), err
}

// What is written for SQLite means the same on a server.
func TestServerStatements(t *testing.T) {
	onBoth(t, func(t *testing.T, newWriter func(*testing.T, WriterOptions) *made) {
		m := newWriter(t, WriterOptions{})
		text := "TEXT"
		if OnServer(m.path) {
			text = `TEXT COLLATE "C"`
		}
		m.do(t, "CREATE TABLE note (id BIGINT PRIMARY KEY, name "+text+", n BIGINT, small SMALLINT, bytes "+map[bool]string{false: "BLOB", true: "BYTEA"}[OnServer(m.path)]+")",
			"CREATE TABLE pair (a BIGINT, b BIGINT, c BIGINT, PRIMARY KEY (a, b))",
			"INSERT INTO note (id, name, n) VALUES (1, 'a?', 10), (2, 'it''s $1', 20), (3, NULL, NULL)")
		for _, c := range []struct {
			text string
			args []any
			want string // the rows
		}{
			{"SELECT id FROM note WHERE n = ?", []any{10}, "[1]"},
			{"SELECT id FROM note WHERE id > $2 AND n < $1 ORDER BY id", []any{30, 0}, "[1][2]"},
			{"SELECT id FROM note WHERE id > $1 AND n < ? AND id < ? AND n > $1", []any{1, 30, 3}, "[2]"},
			{"SELECT id FROM note WHERE name = 'a?' AND id = ?", []any{1}, "[1]"},
			{"SELECT id, 'it''s $2 ?' FROM note WHERE name = 'it''s $1' AND id = ?", []any{2}, "[2 it's $2 ?]"},
			{"SELECT id FROM note WHERE name = ?; ", []any{"a?"}, "[1]"},
			{"SELECT id + ? FROM note WHERE id = 1", []any{math.MaxInt64 - 1}, "[9223372036854775807]"},
			{"SELECT ? - 1", []any{int64(math.MinInt64 + 1)}, "[-9223372036854775808]"},
			{"SELECT id FROM note WHERE small IS NULL AND id < ? LIMIT ?", []any{math.MaxInt64, 1}, "[1]"},
			{"SELECT id FROM note WHERE small = ?", []any{math.MaxInt64}, ""},
			{"SELECT coalesce(?, n) FROM note WHERE id = 1", []any{nil}, "[10]"},
			{"SELECT coalesce(?, n) FROM note WHERE id = 1", []any{math.MaxInt64}, "[9223372036854775807]"}, // the same text with another argument
			{"SELECT id FROM note WHERE ? = name", []any{"a?"}, "[1]"},
			{"SELECT id FROM note WHERE ? = name", []any{nil}, ""},
			{"SELECT coalesce(name, ?) FROM note WHERE id = 3", []any{"none"}, "[none]"},
			{"SELECT n > 10, n = 20, name IS NULL FROM note WHERE id = 2", nil, "[1 1 0]"},
			{"SELECT n > 10 FROM note WHERE id = 3", nil, "[<nil>]"},
			{"SELECT ? = 1", []any{true}, "[1]"},
			{"SELECT n FROM note WHERE id = ?", []any{3}, "[<nil>]"},
		} {
			for range 2 { // also as it is remembered
				got, err := rowsOf(t.Context(), m.readers, c.text, c.args...)
				if err != nil || got != c.want {
					t.Errorf("%s %v: %s, %v; want %s", c.text, c.args, got, err, c.want)
				}
			}
		}
		for _, c := range []struct {
			text    string
			args    []any
			query   string // what it has done
			want    string
			changed int64
		}{
			{"INSERT OR FAIL INTO note (id, n) VALUES (?, ?)", []any{4, 40}, "SELECT n FROM note WHERE id = 4", "[40]", 1},
			{"INSERT OR IGNORE INTO note (id, n) VALUES (?, ?)", []any{4, 41}, "SELECT n FROM note WHERE id = 4", "[40]", 0},
			{"INSERT OR IGNORE INTO note (id, n) VALUES (4, 41), (5, 50)", nil, "SELECT n FROM note WHERE id >= 4 ORDER BY id", "[40][50]", 1},
			{"INSERT OR REPLACE INTO note (id, name, n, small, bytes) VALUES (?, ?, ?, NULL, ?)", []any{4, "vier", 44, []byte{0, 255}}, "SELECT name, n, small, bytes FROM note WHERE id = 4", "[vier 44 <nil> [0 255]]", 1},
			{"INSERT OR REPLACE INTO pair (a, b, c) VALUES (?, ?, ?)", []any{1, 2, 3}, "SELECT * FROM pair", "[1 2 3]", 1},
			{"INSERT OR REPLACE INTO pair (a, b, c) VALUES (?, ?, ?)", []any{1, 2, 4}, "SELECT * FROM pair", "[1 2 4]", 1},
			{"\n\tINSERT OR REPLACE INTO pair (a,b, c) VALUES (?, ?, ?)", []any{1, 2, 5}, "SELECT * FROM pair", "[1 2 5]", 1},
			{"INSERT OR REPLACE INTO pair (a, b, c) VALUES (?, ?, ?)", []any{1, 2, 4}, "SELECT * FROM pair", "[1 2 4]", 1},
			{"\n\tINSERT INTO pair (a, b) VALUES ($1, $1)", []any{7}, "SELECT a, b, c FROM pair WHERE a = 7", "[7 7 <nil>]", 1},
			{"INSERT INTO pair (a, b) SELECT ?, c + ? FROM pair WHERE c = 4 AND c < ? + 1", []any{8, math.MaxInt64 - 4, math.MaxInt64 - 1}, "SELECT a, b FROM pair WHERE a = 8", "[8 9223372036854775807]", 1},
			{"INSERT INTO note (id, name) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET n = note.n + ?", []any{4, "x", math.MaxInt64 - 44}, "SELECT name, n FROM note WHERE id = 4", "[vier 9223372036854775807]", 1},
			{"UPDATE note SET n = n + ?, name = ? WHERE id IN (1, 2)", []any{math.MaxInt64 - 20, "; '"}, "SELECT n, name FROM note WHERE id = 2", "[9223372036854775807 ; ']", 2},
			{"UPDATE note SET name = 'a; b' WHERE id = ?", []any{1}, "SELECT name FROM note WHERE id = 1", "[a; b]", 1},
			{"WITH old AS (SELECT id FROM note WHERE id < ?) DELETE FROM note WHERE id IN (SELECT id FROM old)", []any{3}, "SELECT min(id) FROM note", "[3]", 2},
			{"UPDATE note SET n = 1 WHERE id = 3; DELETE FROM pair WHERE a = 1; INSERT OR FAIL INTO pair (a, b) VALUES (9, 9)", nil, "SELECT n, (SELECT min(a) FROM pair), (SELECT max(a) FROM pair) FROM note WHERE id = 3", "[1 7 9]", 3},
			{"DELETE FROM pair WHERE a = ?", []any{99}, "SELECT count(*) FROM pair", "[3]", 0},
		} {
			var got string
			var before, after int64
			err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) (err error) {
				before, _ = tx.Changes(ctx)
				if err := tx.Exec(ctx, c.text, c.args...); err != nil {
					return err
				}
				after, err = tx.Changes(ctx)
				if err != nil {
					return err
				}
				got, err = rowsOf(ctx, tx, c.query)
				return err
			})
			if err != nil || got != c.want || after-before != c.changed {
				t.Errorf("%s %v: %s, %d changes, %v; want %s, %d", c.text, c.args, got, after-before, err, c.want, c.changed)
			}
		}
	})
}

// Rows that are being read stay while other statements run on the connection; rows that
// RETURNING gives are counted, whether they are read or not.
func TestServerRows(t *testing.T) {
	onBoth(t, func(t *testing.T, newWriter func(*testing.T, WriterOptions) *made) {
		m := newWriter(t, WriterOptions{})
		err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			for n := range 100 {
				if err := tx.Exec(ctx, "INSERT INTO item (caller, n, fill) VALUES (1, ?, ?)", n, bytes.Repeat([]byte{byte(n)}, n)); err != nil {
					return err
				}
			}
			var fills [][]byte
			if err := tx.Each(ctx, "SELECT n, fill FROM item WHERE caller = 1 ORDER BY n", nil, func(rows *sql.Rows) error {
				var n int
				var fill []byte
				if err := rows.Scan(&n, &fill); err != nil {
					return err
				}
				fills = append(fills, fill)
				if n%3 == 0 {
					if err := insert(ctx, tx, 2, n); err != nil {
						return err
					}
				}
				inner, err := rowsOf(ctx, tx, "SELECT n FROM item WHERE caller = 1 AND n < ? ORDER BY n LIMIT 2", n)
				if want := []string{"", "[0]", "[0][1]"}[min(n, 2)]; inner != want {
					t.Errorf("beside row %d: %s, want %s", n, inner, want)
				}
				return err
			}); err != nil {
				return err
			}
			for n, fill := range fills {
				if !bytes.Equal(fill, bytes.Repeat([]byte{byte(n)}, n)) {
					t.Errorf("row %d: %x", n, fill)
				}
			}
			if len(fills) != 100 {
				t.Errorf("%d rows", len(fills))
			}
			count := func(what string, want int64, do func() error) {
				t.Helper()
				before, _ := tx.Changes(ctx)
				err := do()
				after, _ := tx.Changes(ctx)
				if err != nil || after-before != want {
					t.Errorf("%s: %d changes, %v; want %d", what, after-before, err, want)
				}
			}
			count("all rows", 34, func() error {
				return tx.Each(ctx, "DELETE FROM item WHERE caller = 2 RETURNING n", nil, func(*sql.Rows) error { return nil })
			})
			count("one row", 3, func() error {
				var n int
				return tx.QueryRowContext(ctx, "INSERT INTO item (caller, n) VALUES (3, 1), (3, 2), (3, 3) RETURNING n").Scan(&n)
			})
			count("one that is not taken", 3, func() error {
				if err := Each(ctx, tx, "DELETE FROM item WHERE caller = 3 RETURNING n", nil, func(*sql.Rows) error { return errWork }); !errors.Is(err, errWork) {
					return err
				}
				return nil
			})
			count("a query", 0, func() error { _, err := rowsOf(ctx, tx, "SELECT n FROM item"); return err })
			count("no row", 0, func() error {
				_, err := rowsOf(ctx, tx, "DELETE FROM item WHERE caller = 3 RETURNING n")
				return err
			})
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if n := len(m.items(t)); n != 100 {
			t.Errorf("%d items are left", n)
		}
	})
}

// A Bulk writes as many rows as it was given, in their order.
func TestBulk(t *testing.T) {
	onBoth(t, func(t *testing.T, newWriter func(*testing.T, WriterOptions) *made) {
		m := newWriter(t, WriterOptions{})
		for caller, size := range []int{0, 1, 31, 49, 50, 51, 113, 250} {
			var changed int64
			err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
				before, _ := tx.Changes(ctx)
				b := tx.Bulk(ctx, "INSERT INTO item (caller, n, fill) VALUES ", 3)
				for n := range size {
					var fill any
					if n%2 == 0 {
						fill = []byte{byte(n), 0}
					}
					if err := b.Add(int64(caller), int64(n), fill); err != nil {
						return err
					}
				}
				err := b.Flush()
				after, _ := tx.Changes(ctx)
				changed = after - before
				return err
			})
			if err != nil || changed != int64(size) {
				t.Errorf("%d changes of %d, %v", changed, size, err)
			}
			var want strings.Builder
			for n := range size {
				if n%2 == 0 {
					fmt.Fprintf(&want, "[%d %v]", n, []byte{byte(n), 0})
				} else {
					fmt.Fprintf(&want, "[%d <nil>]", n)
				}
			}
			if got, err := rowsOf(t.Context(), m.readers, "SELECT n, fill FROM item WHERE caller = ? ORDER BY n", caller); err != nil || got != want.String() {
				t.Errorf("%d rows: %s, %v", size, got, err)
			}
		}
		if err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			b := tx.Bulk(ctx, "INSERT INTO item (caller, n) VALUES ", 2)
			return errors.Join(b.Add(int64(50), int64(0)), b.Add(int64(1), int64(0)), b.Flush())
		}); err == nil {
			t.Error("a row that is there was added")
		}
		if got, err := rowsOf(t.Context(), m.readers, "SELECT n FROM item WHERE caller = 50"); got != "" || err != nil {
			t.Errorf("a Bulk that failed has left %s, %v", got, err)
		}
	})
}

// Any text comes back as it was, and is found by itself alone.
func TestServerTexts(t *testing.T) {
	m := newServerWriter(t, WriterOptions{})
	m.do(t, `CREATE TABLE name (id BIGINT PRIMARY KEY, name TEXT COLLATE "C" NOT NULL UNIQUE)`)
	part := rapid.OneOf(
		rapid.SampledFrom([]string{"", "\x00", escapeMark, escapeMark + "00", escapeMark + "f4", escapeMark[:2], escapeMark[:3], "\xff", "\xc0\x80", "\xed\xa0\x80", "\ufffd", "\\x00", "00", "é", "\U0010FFFE"}),
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 8), func(b []byte) string { return string(b) }))
	text := rapid.Map(rapid.SliceOfN(part, 0, 6), func(parts []string) string { return strings.Join(parts, "") })
	rapid.Check(t, func(rt *rapid.T) {
		texts := rapid.SliceOfNDistinct(text, 1, 8, rapid.ID[string]).Draw(rt, "texts")
		err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			if err := tx.Exec(ctx, "DELETE FROM name"); err != nil {
				return err
			}
			b := tx.Bulk(ctx, "INSERT INTO name (id, name) VALUES ", 2)
			for i, s := range texts {
				if i%2 == 0 {
					if err := tx.Exec(ctx, "INSERT INTO name (id, name) VALUES (?, ?)", i, s); err != nil {
						return err
					}
				} else if err := b.Add(int64(i), s); err != nil {
					return err
				}
			}
			if err := b.Flush(); err != nil {
				return err
			}
			for i, s := range texts {
				var id int
				var back string
				if err := tx.QueryRowContext(ctx, "SELECT id, name FROM name WHERE name = ?", s).Scan(&id, &back); err != nil || id != i || back != s {
					rt.Errorf("%q is found as %d, %q, %v; want %d", s, id, back, err, i)
				}
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// kindWith is the test's kind with other times to wait.
func kindWith(lock, outcome time.Duration) *Kind {
	k := *testKind
	k.lockWait, k.outcomeWait = lock, outcome
	return &k
}

// A schema has one writer at a time.
func TestServerLock(t *testing.T) {
	quick := kindWith(50*time.Millisecond, 0)
	m := newServerWriter(t, WriterOptions{})
	m.do(t, "INSERT INTO item (caller, n) VALUES (1, 0)")
	if got, err := rowsOf(t.Context(), m.Uncommitted(), "SELECT current_setting('tcp_keepalives_idle'), current_setting('statement_timeout')"); got != "[60 0]" || err != nil {
		t.Errorf("the session has %s, %v", got, err)
	}
	w, err := quick.OpenWriter(t.Context(), m.path, WriterOptions{})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "bridge ") || !strings.Contains(err.Error(), " at 127.0.0.1") {
		t.Errorf("a second writer: %v, %v", w, err)
	}
	other := newServerWriter(t, WriterOptions{}) // another schema
	other.do(t, "INSERT INTO item (caller, n) VALUES (2, 0)")
	m.do(t, "INSERT INTO item (caller, n) VALUES (3, 0)")
	m.want(t, "1/0", "3/0")
	other.want(t, "2/0")
	must(t, m.Close())
	w, err = kindWith(time.Minute, 0).OpenWriter(t.Context(), m.path, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Do(t.Context(), insertOne(4)), w.Close()); err != nil {
		t.Error(err)
	}
	m.want(t, "1/0", "3/0", "4/0")
}

// Who gives up while the connection is in use for it does not end the connection: another process
// could write then.
func TestServerUseGivenUp(t *testing.T) {
	const key = "hashtext(current_schema())"
	m := newServerWriter(t, WriterOptions{})
	before, err := rowsOf(t.Context(), m.Uncommitted(), "SELECT pg_backend_pid()")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pgx.Connect(t.Context(), m.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.Background()) }()
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock("+key+")"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- m.Use(ctx, func(ctx context.Context, tx *Tx) error {
			_, err := rowsOf(ctx, tx, "SELECT pg_advisory_lock("+key+")")
			return err
		})
	}()
	for waits := false; !waits; {
		must(t, other.QueryRow(t.Context(), "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND '['||pid||']' = $1)", before).Scan(&waits))
	}
	cancel()
	if _, err := other.Exec(t.Context(), "SELECT pg_sleep(0.1), pg_advisory_unlock("+key+")"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("what had begun has not ended: %v", err)
	}
	if after, err := rowsOf(t.Context(), m.Uncommitted(), "SELECT pg_backend_pid()"); err != nil || after != before {
		t.Errorf("the session was %s, and is %s, %v", before, after, err)
	}
	if err := m.Use(ctx, func(context.Context, *Tx) error { return errWork }); !errors.Is(err, context.Canceled) {
		t.Errorf("what had not begun: %v", err)
	}
}

// with changes a URL.
func with(t *testing.T, base string, change func(u *url.URL, q url.Values)) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	change(u, q)
	u.RawQuery = q.Encode()
	return u.String()
}

// execute runs statements on a connection that is not ours.
func execute(t *testing.T, base string, statements ...string) {
	t.Helper()
	ctx := context.Background() // also when the test ends
	c, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// What must not keep a database, and what cannot be reached, is refused with the reason, and
// without the password.
func TestServerRefused(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.SharedPostgres(t)
	const secret = "s3cret"
	schema := func(t *testing.T, statements ...string) string {
		base := server.NewSchema(t)
		execute(t, base, statements...)
		return with(t, base, func(u *url.URL, _ url.Values) { u.User = url.UserPassword(u.User.Username(), secret) })
	}
	created := func(t *testing.T, kind *Kind, statements ...string) string {
		path := schema(t)
		must(t, kind.Create(t.Context(), path))
		execute(t, path, statements...)
		return path
	}
	name := "bridge_ascii_" + with(t, server.NewSchema(t), func(u *url.URL, q url.Values) { *u = url.URL{Path: q.Get("search_path")} })[len("test_"):]
	name, _, _ = strings.Cut(name, "?")
	execute(t, server.URL(), "CREATE DATABASE "+name+" ENCODING 'SQL_ASCII' TEMPLATE template0")
	t.Cleanup(func() { execute(t, server.URL(), "DROP DATABASE "+name+" WITH (FORCE)") })
	other, newer := *testKind, *testKind
	other.ID, other.Name = 7, "other"
	newer.Migrations, newer.Postgres = fstest.MapFS{"1.sql": {}, "2.sql": {}}, nil
	for what, c := range map[string]struct {
		path   string
		reason string
		is     error
		found  bool // Find finds one, and to open it is refused
	}{
		"another encoding": {with(t, schema(t), func(u *url.URL, q url.Values) { u.Path = name }), "encoding SQL_ASCII", nil, false},
		"foreign tables":   {schema(t, "CREATE TABLE theirs (id INT)"), "belongs to something else", nil, false},
		"a foreign format": {schema(t, "CREATE TABLE format (id INT)"), "belongs to something else", nil, false},
		"another kind":     {created(t, &other), "no test", nil, false},
		"no kind":          {created(t, testKind, "DELETE FROM format"), "damaged", ErrDamaged, false},
		"a newer version":  {created(t, &newer), "newer bridge (version 2 ", nil, true},
		"no schema":        {with(t, schema(t), func(_ *url.URL, q url.Values) { q.Set("search_path", "missing") }), "CREATE SCHEMA", nil, false},
		"no database":      {with(t, schema(t), func(u *url.URL, _ url.Values) { u.Path = "missing" }), "missing", ErrCannotOpen, false},
		"no server":        {with(t, schema(t), func(u *url.URL, _ url.Values) { u.Host = "127.0.0.1:1" }), "refused", ErrCannotOpen, false},
		"no port":          {"postgres://bridge:" + secret + "@127.0.0.1:port/postgres", "is no URL", nil, false},
		"no escape":        {"postgres://bridge:" + secret + "%zz@127.0.0.1/postgres", "is no URL", nil, false},
		"no setting":       {"postgres://bridge@127.0.0.1:port/postgres?password=" + secret, "is no URL", nil, false},
		"no mode":          {"postgres://bridge@127.0.0.1/postgres?sslmode=some&password=" + secret, "is no URL", nil, false},
		"no role":          {"postgres://no:" + secret + strings.TrimPrefix(server.URL(), "postgres://bridge"), `"no" does not exist`, ErrCannotOpen, false},
	} {
		t.Run(what, func(t *testing.T) {
			check := func(err error) {
				t.Helper()
				switch {
				case err == nil:
					t.Error("it is not refused")
				case !strings.Contains(err.Error(), c.reason) || c.is != nil && !errors.Is(err, c.is):
					t.Errorf("refused with: %v", err)
				case strings.Contains(err.Error(), secret) || strings.Contains(Shown(c.path), secret):
					t.Errorf("it tells the password: %v, %s", err, Shown(c.path))
				}
			}
			found, err := testKind.Find(t.Context(), c.path)
			if !c.found {
				check(err)
			}
			if found != c.found {
				t.Errorf("found: %v, %v", found, err)
			}
			if w, err := testKind.OpenWriter(t.Context(), c.path, WriterOptions{}); err == nil {
				t.Error("it is opened", w.Close())
			} else if c.found {
				check(err)
			}
			if r, err := testKind.OpenReaders(t.Context(), c.path, 1); err == nil {
				t.Error("it is read", r.Close())
			} else if c.found {
				check(err)
			}
		})
	}
	empty := schema(t)
	if found, err := testKind.Find(t.Context(), empty); found || err != nil {
		t.Errorf("an empty schema: %v, %v", found, err)
	}
	if err := testKind.Create(t.Context(), empty); err != nil {
		t.Error(err)
	}
	if found, err := testKind.Find(t.Context(), empty); !found || err != nil {
		t.Errorf("a schema with a database: %v, %v", found, err)
	}
	if err := testKind.Create(t.Context(), empty); err == nil {
		t.Error("it is created twice")
	}
}

// A server that would lose what is committed is refused, also when it begins to be one
// while the Writer is open.
func TestServerWithoutFsync(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.Postgres(t)
	path := server.NewSchema(t)
	m := makeAt(t, testKind, path, path, WriterOptions{})
	m.do(t, "INSERT INTO item (caller, n) VALUES (1, 0)")
	for _, setting := range []string{"fsync", "full_page_writes"} {
		execute(t, server.URL(), "ALTER SYSTEM SET "+setting+" = off")
		server.Stop(t, testenv.FastShutdown)
		server.Start(t)
		_, err := testKind.Find(t.Context(), path)
		for doing, err := range map[string]error{"find": err, "write": m.Do(t.Context(), insertOne(2))} {
			if err == nil || !strings.Contains(err.Error(), "fsync or full_page_writes off") {
				t.Errorf("%s off, %s: %v", setting, doing, err)
			}
		}
		execute(t, server.URL(), "ALTER SYSTEM RESET "+setting)
	}
	server.Stop(t, testenv.FastShutdown)
	server.Start(t)
	if err := m.Do(t.Context(), insertOne(3)); err != nil {
		t.Error(err)
	}
	m.want(t, "1/0", "3/0")
}

// look returns what is at a place.
func look(t *testing.T, k *Kind, path string) *Found {
	t.Helper()
	f, err := k.Look(t.Context(), path)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A new version is reached in one transaction, or not at all.
func TestServerMigration(t *testing.T) {
	testenv.Heavy(t)
	path := testenv.SharedPostgres(t).NewSchema(t)
	must(t, testKind.Create(t.Context(), path))
	identity := look(t, testKind, path).Identity
	if len(identity) != 36 {
		t.Errorf("the identity %q", identity)
	}
	second := func(step string) *Kind {
		k := *testKind
		k.Migrations = fstest.MapFS{"1.sql": {}, "2.sql": {Data: []byte(step)}}
		return &k
	}
	next := second("CREATE TABLE extra (n INTEGER PRIMARY KEY REFERENCES anchor (id)) STRICT, WITHOUT ROWID;")
	if _, err := next.OpenReaders(t.Context(), path, 1); err == nil || !strings.Contains(err.Error(), "older bridge") {
		t.Errorf("reading the version before: %v", err)
	}
	if _, err := second("CREATE TABLE extra (n INTEGER) STRICT; SELECT 1 / 0;").OpenWriter(t.Context(), path, WriterOptions{}); err == nil {
		t.Error("a step that fails is no failure")
	}
	w, err := next.OpenWriter(t.Context(), path, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Do(t.Context(), func(ctx context.Context, tx *Tx) error { return tx.Exec(ctx, "INSERT INTO extra VALUES (1)") }), w.Close()); err != nil {
		t.Error(err)
	}
	if after := look(t, next, path).Identity; after != identity {
		t.Errorf("the identity was %s, and is %s", identity, after)
	}
}

// Readers see one moment in a transaction, and write nothing.
func TestServerReaders(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.Postgres(t)
	path := server.NewSchema(t)
	m := makeAt(t, testKind, path, path, WriterOptions{})
	m.do(t, "INSERT INTO item (caller, n) VALUES (1, 0)")
	conn, err := m.readers.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	const all = "SELECT caller FROM item ORDER BY caller"
	for n := range 3 { // the first query decides which moment it is
		if got, err := rowsOf(t.Context(), tx, all); err != nil || got != "[1]" {
			t.Errorf("%s, %v", got, err)
		}
		must(t, m.Do(t.Context(), insertOne(2+n)))
	}
	if err := errors.Join(tx.Commit(), conn.Close()); err != nil {
		t.Error(err)
	}
	m.want(t, "1/0", "2/0", "3/0", "4/0")
	if _, err := m.readers.ExecContext(t.Context(), "INSERT INTO item (caller, n) VALUES (9, 9)"); !errors.Is(Explain(path, err), ErrCannotOpen) {
		t.Errorf("a reader writes: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = Explain(path, Each(ctx, m.readers, "SELECT pg_sleep(0), n FROM generate_series(1, 100000) AS n", nil, func(*sql.Rows) error { cancel(); return nil }))
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrCannotOpen) {
		t.Errorf("a reader that gives up: %v", err)
	}
	read := func(how string) {
		t.Helper()
		for range 4 { // more than there are connections
			if got, err := rowsOf(t.Context(), m.readers, all); err != nil || got != "[1][2][3][4]" {
				t.Errorf("%s: %s, %v", how, got, err)
			}
			if err := m.readers.Read(t.Context(), func(q Querier) error {
				got, err := rowsOf(t.Context(), q, all)
				if got != "[1][2][3][4]" {
					t.Errorf("%s: %s", how, got)
				}
				return err
			}); err != nil {
				t.Errorf("%s, on one connection: %v", how, err)
			}
		}
	}
	for how, shutdown := range map[string]testenv.Shutdown{"after a restart": testenv.FastShutdown, "after a crash": testenv.ImmediateShutdown} {
		a, errA := m.readers.Conn(t.Context())
		b, errB := m.readers.Conn(t.Context())
		if err := errors.Join(errA, errB, a.PingContext(t.Context()), b.PingContext(t.Context()), a.Close(), b.Close()); err != nil { // all are open
			t.Fatal(err)
		}
		server.Stop(t, shutdown)
		for range 4 {
			if _, err := rowsOf(t.Context(), m.readers, all); !errors.Is(Explain(path, err), ErrCannotOpen) {
				t.Errorf("without a server: %v", err)
			}
		}
		server.Start(t)
		read(how)
		server.Stop(t, shutdown)
		server.Start(t)
		read(how + " that nobody noticed")
		if err := m.Use(t.Context(), func(ctx context.Context, tx *Tx) error {
			got, err := rowsOf(ctx, tx, all)
			if got != "[1][2][3][4]" {
				t.Errorf("%s, Use reads %s", how, got)
			}
			return err
		}); err != nil {
			t.Errorf("%s, Use: %v", how, err)
		}
	}
}

// Of several servers in a URL the one that takes writes is used, also by those who only read: a
// standby may lack the end of the log.
func TestServerHosts(t *testing.T) {
	testenv.Heavy(t)
	standby := testenv.Postgres(t)
	execute(t, standby.URL(), "ALTER DATABASE postgres SET default_transaction_read_only = on")
	path := testenv.SharedPostgres(t).NewSchema(t)
	for _, attrs := range []string{"", "read-write", "primary"} {
		both := with(t, path, func(u *url.URL, q url.Values) {
			other, err := url.Parse(standby.URL())
			if err != nil {
				t.Fatal(err)
			}
			if attrs == "primary" { // which the other one is too
				u.Host += "," + other.Host
			} else {
				u.Host = other.Host + "," + u.Host
			}
			if attrs != "" {
				q.Set("target_session_attrs", attrs)
			}
		})
		t.Run(attrs, func(t *testing.T) {
			found, err := testKind.Find(t.Context(), both)
			if err == nil && !found {
				err = testKind.Create(t.Context(), both)
			}
			if err != nil {
				t.Fatal(err)
			}
			w, err := testKind.OpenWriter(t.Context(), both, WriterOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			r, err := testKind.OpenReaders(t.Context(), both, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if got, err := rowsOf(t.Context(), r, "SELECT current_setting('default_transaction_read_only'), count(*) FROM format"); got != "[on 1]" || err != nil {
				t.Errorf("it reads %s, %v", got, err)
			}
		})
	}
}

// The server's codes say what a caller does next.
func TestExplainServer(t *testing.T) {
	path := "postgres://bridge@127.0.0.1/postgres"
	all := []error{ErrFull, ErrDamaged, ErrDisk, ErrCannotOpen}
	for code, want := range map[string]error{
		"53100": ErrFull, "XX001": ErrDamaged, "XX002": ErrDamaged, "58030": ErrDisk, "57P01": ErrCannotOpen, "57P03": ErrCannotOpen, "53300": ErrCannotOpen,
		"25006": ErrCannotOpen, "28P01": ErrCannotOpen, "3D000": ErrCannotOpen, "08006": ErrCannotOpen, "23505": nil, "42P01": nil, "XX000": nil, "": nil,
	} {
		cause := fmt.Errorf("storing: %w", &pgconn.PgError{Severity: "ERROR", Code: code, Message: "no"})
		err := Explain(path, cause)
		if !errors.Is(err, cause) {
			t.Errorf("%s: the cause is lost: %v", code, err)
		}
		for _, e := range all {
			if errors.Is(err, e) != (e == want) {
				t.Errorf("%s: %v", code, err)
			}
		}
		if again := Explain(path, err); again.Error() != err.Error() {
			t.Errorf("%s: explained again it is %v", code, again)
		}
	}
	for _, c := range []struct{ err, want error }{
		{wayToServer{io.ErrUnexpectedEOF}, ErrCannotOpen}, {sql.ErrNoRows, nil}, {errWork, nil}, {nil, nil},
	} {
		if err := Explain(path, c.err); c.want == nil && err != c.err || c.want != nil && (!errors.Is(err, c.want) || !errors.Is(err, c.err)) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}
