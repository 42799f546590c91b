//go:build unix

package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// A connection that keeps its statements prepared does what one does that does not: also
// where a query runs while its own rows are read, ended before its last row, after the schema
// has changed, when there were more texts than are kept, and where a text is two statements.
func TestPreparedStatements(t *testing.T) {
	m := newWriter(t, WriterOptions{})
	write := func(statements ...string) {
		t.Helper()
		if err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			for _, s := range statements {
				if err := tx.Exec(ctx, s); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	write("CREATE TABLE number (n INTEGER)", "INSERT INTO number VALUES (1), (2), (3)")
	numbers := func(q Querier, text string, args ...any) (all []int) {
		t.Helper()
		if err := Each(t.Context(), q, text, args, func(rows *sql.Rows) error {
			var n int
			err := rows.Scan(&n)
			all = append(all, n)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	const query = "SELECT n FROM number WHERE n >= $1 ORDER BY n"
	both := func(do func(q Querier)) {
		t.Helper()
		if err := m.readers.Read(t.Context(), func(q Querier) error { do(q); return nil }); err != nil {
			t.Fatal(err)
		}
		if err := m.Do(t.Context(), func(_ context.Context, tx *Tx) error { do(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	both(func(q Querier) {
		for range 3 {
			if got := numbers(q, query, 2); !slices.Equal(got, []int{2, 3}) {
				t.Errorf("%v", got)
			}
		}
		var nested [][]int
		if err := Each(t.Context(), q, query, []any{1}, func(rows *sql.Rows) error {
			var n int
			if err := rows.Scan(&n); err != nil {
				return err
			}
			nested = append(nested, numbers(q, query, n))
			return nil
		}); err != nil || fmt.Sprint(nested) != "[[1 2 3] [2 3] [3]]" {
			t.Errorf("%v, %v", nested, err)
		}
		ended := errors.New("ended")
		if err := Each(t.Context(), q, query, []any{1}, func(*sql.Rows) error { return ended }); !errors.Is(err, ended) {
			t.Error(err)
		}
		if got := numbers(q, query, 3); !slices.Equal(got, []int{3}) {
			t.Errorf("after rows that were not read to their end: %v", got)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Each(canceled, q, query, []any{1}, func(*sql.Rows) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Error("a query with a context that has ended ran")
		}
		if _, err := q.QueryContext(t.Context(), "SELECT nothing FROM number"); err == nil { //nolint:sqlclosecheck // there are none
			t.Error("a query of a column that does not exist ran")
		}
	})
	const add = "INSERT INTO number (n) VALUES (7)"
	write(add, add, "UPDATE number SET n = n + 1 WHERE n = 7; DELETE FROM number WHERE n < 8", add)
	both(func(q Querier) {
		if got := numbers(q, query, 0); !slices.Equal(got, []int{7, 8, 8}) {
			t.Errorf("after statements that came again: %v", got)
		}
	})
	write("ALTER TABLE number RENAME TO old", "CREATE TABLE number (other TEXT, n INTEGER)", add)
	both(func(q Querier) {
		if got := numbers(q, query, 2); !slices.Equal(got, []int{7}) {
			t.Errorf("after a change of the schema: %v", got)
		}
		for n := range 3 * keptStatements {
			if got := numbers(q, fmt.Sprintf("SELECT n + %d FROM number", n)); !slices.Equal(got, []int{7 + n}) {
				t.Errorf("%v", got)
			}
		}
		if got := numbers(q, query, 2); !slices.Equal(got, []int{7}) {
			t.Errorf("after many others: %v", got)
		}
		conn, ok := q.(*sql.Conn)
		if !ok {
			conn = m.conn
		}
		err := conn.Raw(func(c any) error {
			if n := len(c.(*preparedConn).stmts); n > keptStatements { //nolint:forcetypeassert // as openReaders opens it
				t.Errorf("%d statements are kept", n)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A query that comes again is not parsed again.
func BenchmarkPreparedQuery(b *testing.B) {
	path := b.TempDir() + "/bench.db"
	must(b, testKind.Create(b.Context(), path))
	r, err := testKind.OpenReaders(b.Context(), path, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	const query = "SELECT caller, n FROM item WHERE caller = $1 AND n > $2 AND EXISTS (SELECT 1 FROM anchor) ORDER BY n LIMIT 1"
	for name, text := range map[string]func(i int) string{
		"again": func(int) string { return query },
		"new":   func(i int) string { return fmt.Sprint(query, " -- ", i) },
	} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				must(b, r.Each(b.Context(), text(i), []any{1, 0}, func(*sql.Rows) error { return nil }))
			}
		})
	}
}
