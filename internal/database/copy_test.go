//go:build unix

package database

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// copiedKind has tables like those of a log: keys of every sort, a row of its own, another
// order of the columns on a server.
var copiedKind = &Kind{
	Name: "notebook", ID: 0x62724e62,
	Migrations: fstest.MapFS{"1.sql": {Data: []byte(`CREATE TABLE one (id INTEGER PRIMARY KEY, n INTEGER NOT NULL) STRICT;
INSERT INTO one (id, n) VALUES (1, 0);
CREATE TABLE note (id INTEGER PRIMARY KEY, name TEXT NOT NULL, bytes BLOB, n INTEGER) STRICT;
CREATE TABLE pair (a INTEGER NOT NULL, b TEXT NOT NULL, PRIMARY KEY (b, a)) STRICT, WITHOUT ROWID;
CREATE INDEX note_name ON note (name);
CREATE VIEW every AS SELECT id FROM note;`)}},
	Postgres: map[int]string{1: `ALTER TABLE one DROP n;
ALTER TABLE one ADD n BIGINT NOT NULL DEFAULT 0;
ALTER TABLE note DROP name, DROP bytes;
ALTER TABLE note ADD name TEXT COLLATE "C" NOT NULL, ADD bytes BYTEA;
CREATE INDEX note_name ON note (name);`},
}

// writeNotes writes rows to a database of copiedKind.
func writeNotes(t *testing.T, path string, do func(ctx context.Context, tx *Tx) error) {
	t.Helper()
	w, err := copiedKind.OpenWriter(t.Context(), path, WriterOptions{})
	if err == nil {
		err = errors.Join(w.Do(t.Context(), do), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// notes returns all rows of a database of copiedKind, as Go writes them.
func notes(t *testing.T, path string) string {
	t.Helper()
	r, err := copiedKind.OpenReaders(t.Context(), path, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b strings.Builder
	for _, query := range []string{"SELECT id, n FROM one", "SELECT id, n, name, bytes FROM note ORDER BY id", "SELECT a, b FROM pair ORDER BY a"} {
		width := strings.Count(query, ",") + 1
		if err := r.Each(t.Context(), query, nil, func(rows *sql.Rows) error {
			values, err := scanRow(rows, width)
			fmt.Fprintf(&b, "%#v\n", values)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// moreRows is more than are committed at once.
const moreRows = rowsOfCommit + 10

// newNotes returns the path of a database in a file, with rows of every sort of value, and so
// many in its last table.
func newNotes(t *testing.T, rows int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notes.db")
	must(t, copiedKind.Create(t.Context(), path))
	writeNotes(t, path, func(ctx context.Context, tx *Tx) error {
		if err := tx.Exec(ctx, "UPDATE one SET n = 7"); err != nil {
			return err
		}
		note := tx.Bulk(ctx, "INSERT INTO note (id, name, bytes, n) VALUES ", 4)
		for i, row := range [][]any{
			{"", nil, nil}, {"", []byte{}, int64(0)}, {"a\x00b", []byte{0}, int64(-1 << 63)}, {"\xff\U0010FFFF", []byte("\xff"), int64(1<<63 - 1)},
			{"it's \"one\"\n\t\\N", []byte(`\x41`), int64(1)}, {"😀", bytes.Repeat([]byte{1, 2}, 100_000), nil},
		} {
			if err := note.Add(append([]any{int64(i - 2)}, row...)...); err != nil {
				return err
			}
		}
		if err := note.Flush(); err != nil {
			return err
		}
		pair := tx.Bulk(ctx, "INSERT INTO pair (a, b) VALUES ", 2)
		for i := range rows {
			if err := pair.Add(i, fmt.Sprint("b", i%977, "\x00")); err != nil {
				return err
			}
		}
		return pair.Flush()
	})
	return path
}

// TestCopy: a copy of a copy of a copy, through files and servers, has every value as it was.
func TestCopy(t *testing.T) {
	testenv.Heavy(t)
	first := newNotes(t, moreRows)
	want := notes(t, first)
	postgres := testenv.SharedPostgres(t)
	from := first
	for i, to := range []string{postgres.NewSchema(t), postgres.NewSchema(t), filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")} {
		var told int64
		called := false
		c, err := copiedKind.Copy(t.Context(), from, to, CopyOptions{Progress: func(rows int64) { told = rows }, Before: func(identity string) error {
			called = true
			if found, err := copiedKind.Find(t.Context(), to); found || err != nil {
				t.Errorf("copy %d is there before it is whole: %v", i, err)
			}
			if (identity != "") != OnServer(to) {
				t.Errorf("copy %d has the identity %q", i, identity)
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if rows := int64(1 + 6 + moreRows); c.Tables != 3 || c.Rows != rows || told != 2*rows || !called || len(c.Others) > 0 {
			t.Errorf("copy %d: %+v, told of %d rows", i, c, told)
		}
		if got := notes(t, to); got != want {
			t.Errorf("copy %d has\n%.2000s\nwant\n%.2000s", i, got, want)
		}
		if _, err := copiedKind.Copy(t.Context(), first, to, CopyOptions{}); err == nil || !strings.Contains(err.Error(), "has a notebook already") {
			t.Errorf("a copy over copy %d: %v", i, err)
		}
		writeNotes(t, to, func(ctx context.Context, tx *Tx) error { // it is like any other
			return errors.Join(tx.Exec(ctx, "INSERT INTO note (id, name) VALUES (100, 'x')"), tx.Exec(ctx, "DELETE FROM note WHERE id = 100"))
		})
		from = to
	}
}

// TestCopyFails: whatever ends a copy, nothing of it is there, and another one succeeds.
func TestCopyFails(t *testing.T) {
	testenv.Heavy(t)
	path := newNotes(t, moreRows)
	postgres := testenv.SharedPostgres(t)
	for _, to := range []string{filepath.Join(t.TempDir(), "notes.db"), postgres.NewSchema(t)} {
		broken := errors.New("broken")
		if _, err := copiedKind.Copy(t.Context(), path, to, CopyOptions{Before: func(string) error { return broken }}); !errors.Is(err, broken) {
			t.Errorf("%v, want the error of Before", err)
		}
		for _, after := range []int64{1, 5000, rowsOfCommit - 5000} {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := copiedKind.Copy(ctx, path, to, CopyOptions{Progress: func(rows int64) {
				if rows > after {
					cancel()
				}
			}, Before: func(string) error { t.Error("it was completed"); return nil }})
			cancel()
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want that it was cancelled", err)
			}
			if found, err := copiedKind.Find(t.Context(), to); found || err != nil {
				t.Errorf("after %d rows something is there: %v", after, err)
			}
		}
		if !OnServer(to) {
			if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) > 0 {
				t.Errorf("left: %v %v", left, err)
			}
			must(t, os.WriteFile(to+copying, []byte("of a copy that was killed"), 0o600))
		}
		if _, err := copiedKind.Copy(t.Context(), path, to, CopyOptions{}); err != nil {
			t.Error(err)
		}
		if notes(t, to) != notes(t, path) {
			t.Error("the copy is another")
		}
	}
}

// TestCopyOthers: a table that is not ours stays where it is, and is named. An original that
// is not whole is not copied.
func TestCopyOthers(t *testing.T) {
	testenv.Heavy(t)
	path := newNotes(t, 1000)
	postgres := testenv.SharedPostgres(t)
	for _, newPlace := range []func() string{func() string { return filepath.Join(t.TempDir(), "notes.db") }, func() string { return postgres.NewSchema(t) }} {
		for sql, want := range map[string]string{
			"CREATE TABLE a (x BIGINT)":              "",
			"ALTER TABLE one ADD COLUMN more BIGINT": "table one has the columns [id more n], and should have [id n]",
			"DROP TABLE pair":                        "there is no table pair",
		} {
			other := newPlace()
			if _, err := copiedKind.Copy(t.Context(), path, other, CopyOptions{}); err != nil {
				t.Fatal(err)
			}
			if !OnServer(other) {
				sql = strings.ReplaceAll(sql, "BIGINT", "INTEGER")
			}
			writeNotes(t, other, func(ctx context.Context, tx *Tx) error { return tx.Exec(ctx, sql) })
			to := newPlace()
			c, err := copiedKind.Copy(t.Context(), other, to, CopyOptions{})
			if want == "" {
				if err != nil || !slices.Equal(c.Others, []string{"a"}) || notes(t, to) != notes(t, path) {
					t.Errorf("%s: %+v %v", sql, c, err)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v, want %q", sql, err, want)
			}
			if found, err := copiedKind.Find(t.Context(), to); found || err != nil {
				t.Errorf("%s: there is a copy: %v", sql, err)
			}
		}
	}
}

// TestCopyLimited: limits that the administrator of a server has set for others do not end a
// copy, and its COMMIT waits for the disk.
func TestCopyLimited(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.Postgres(t)
	path, from, to := newNotes(t, 1000), postgres.NewSchema(t), postgres.NewSchema(t)
	db, err := copiedKind.openPostgres(postgres.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for setting, value := range map[string]string{"statement_timeout": "10s", "idle_in_transaction_session_timeout": "1ms", "lock_timeout": "10s", "idle_session_timeout": "10s", "synchronous_commit": "off"} {
		if _, err := db.ExecContext(t.Context(), "DO $$ BEGIN IF current_setting('"+setting+"', true) IS NOT NULL THEN ALTER ROLE bridge SET "+setting+" = '"+value+"'; END IF; END $$"); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "notes.db")
	for _, places := range [][2]string{{path, from}, {from, file}} {
		if _, err := copiedKind.Copy(t.Context(), places[0], places[1], CopyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if notes(t, file) != notes(t, path) {
		t.Error("the copy is another")
	}
	source, err := copiedKind.copySource(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = source.close() }()
	target, err := copiedKind.serverTarget(t.Context(), to, CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.close() }()
	for name, q := range map[string]Querier{"source": source.tx, "target": target.conn} {
		var limits, syncs string
		if err := q.QueryRowContext(t.Context(), "SELECT current_setting('statement_timeout') || current_setting('idle_in_transaction_session_timeout') || current_setting('lock_timeout') || coalesce(current_setting('idle_session_timeout', true), '0'), current_setting('synchronous_commit')").
			Scan(&limits, &syncs); err != nil || limits != "0000" || name == "target" && syncs != "on" {
			t.Errorf("%s: limits %s, COMMIT %s: %v", name, limits, syncs, err)
		}
	}
}

// TestCopyCommitPending: while the COMMIT of a copy whose process is gone is still under way,
// no other copy begins, and Settle waits for what becomes of it.
func TestCopyCommitPending(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.Postgres(t)
	to := postgres.NewSchema(t)
	path := newNotes(t, 1000)
	db, err := copiedKind.openPostgres(postgres.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// until waits until a query on the server is true.
	until := func(query string) error {
		for late := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
			var is bool
			if err := db.QueryRowContext(t.Context(), query).Scan(&is); err != nil || is {
				return err
			}
			if time.Now().After(late) {
				return fmt.Errorf("it never is so: %s", query)
			}
		}
	}
	standby := func(name string) error { // each COMMIT waits for it
		for _, text := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + name + "'", "SELECT pg_reload_conf()"} {
			if _, err := db.ExecContext(t.Context(), text); err != nil {
				return err
			}
		}
		return until("SELECT current_setting('synchronous_standby_names') = '" + name + "'")
	}
	patient := *copiedKind
	patient.lockWait = 50 * time.Millisecond
	first := make(chan error, 1)
	must(t, standby("nobody"))
	if _, err := copiedKind.Copy(t.Context(), path, to, CopyOptions{Before: func(string) error {
		go func() {
			if err := until("SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep')"); err != nil {
				first <- errors.Join(err, standby(""))
				return
			}
			_, err := patient.Copy(t.Context(), path, to, CopyOptions{})
			settled := patient.Settle(t.Context(), to)
			if errors.Is(err, ErrInUse) && errors.Is(settled, ErrInUse) {
				err = nil
			} else {
				err = fmt.Errorf("another copy: %w; Settle: %w", err, settled)
			}
			first <- errors.Join(err, standby(""))
		}()
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := copiedKind.Settle(t.Context(), to); err != nil {
		t.Error(err)
	}
	if _, err := copiedKind.Copy(t.Context(), path, to, CopyOptions{}); !errors.Is(err, ErrTaken) {
		t.Errorf("%v, want that there is a copy", err)
	}
}

// A row that is lost, doubled or changed changes the sum, the order of the rows does not.
func TestRowSum(t *testing.T) {
	sum := func(rows ...[]any) (s rowSum) {
		for _, row := range rows {
			must(t, s.add(row))
		}
		return s
	}
	a, b := []any{int64(1), "a", []byte("b"), nil}, []any{int64(2), "a", []byte("b"), nil}
	ab, ba := sum(a, b), sum(b, a)
	if !ab.same(&ba) {
		t.Error("the order counts")
	}
	other := []rowSum{
		sum(a), sum(a, a), sum(a, b, b), sum(a, []any{int64(2), "ab", []byte(""), nil}), sum(a, []any{int64(2), []byte("a"), []byte("b"), nil}),
		sum(a, []any{int64(2), "a", "b", nil}), sum(a, []any{int64(2), "a", []byte("b"), ""}), sum(a, []any{int64(2), "a", nil, []byte("b")}), sum([]any{int64(3), "a", []byte("b"), nil}, []any{int64(0), "a", []byte("b"), nil}),
	}
	for i := range other {
		if other[i].same(&ab) {
			t.Errorf("%d has the same sum", i)
		}
	}
	if err := new(rowSum).add([]any{1.5}); err == nil {
		t.Error("a value of another sort has a sum")
	}
}

// TestCopyReplaces: an earlier copy on a server is replaced when it has the identity that the
// copy is to have, and no other database is. Where the schema is missing it is made.
func TestCopyReplaces(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.SharedPostgres(t)
	path := newNotes(t, 1000)
	to, err := Beside(t.Context(), server.NewSchema(t), "_contents")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := copiedKind.Copy(t.Context(), path, to, CopyOptions{Identity: "it's mine"}); !errors.Is(err, errNoSchema) {
		t.Errorf("into no schema: %v", err)
	}
	kind := *copiedKind
	kind.OwnSchema = true
	for _, c := range []struct {
		o     CopyOptions
		taken bool
	}{
		{CopyOptions{Identity: "it's mine"}, false},
		{CopyOptions{Identity: "it's mine"}, true},
		{CopyOptions{Replace: true}, true},
		{CopyOptions{Identity: "another", Replace: true}, true},
		{CopyOptions{Identity: "it's mine", Replace: true}, false},
	} {
		if _, err := kind.Copy(t.Context(), path, to, c.o); c.taken != errors.Is(err, ErrTaken) || !c.taken && err != nil {
			t.Errorf("%+v: %v", c.o, err)
		}
		if has := look(t, &kind, to).Identity; has != "it's mine" {
			t.Errorf("%+v: it is %q", c.o, has)
		}
	}
	if notes(t, to) != notes(t, path) {
		t.Error("the copy is another")
	}
}
