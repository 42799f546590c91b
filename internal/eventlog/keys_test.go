package eventlog_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// Keys of records and of URIs move on to the large tables, some with each batch, and each
// stays where it is found.
func TestKeysMoveOn(t *testing.T) {
	ctx := context.Background()
	folder := t.TempDir()
	l, src := filled(t, folder, event.Reference)
	const batches, size = 40, 7
	for n := range batches {
		if n == batches/2 { // the next process counts what is there
			closed(t, l)
			l, src = filled(t, folder, event.Reference)
		}
		if err := add(l, src, n*size, size); err != nil {
			t.Fatal(err)
		}
	}
	defer l.Close()
	for recent, large := range map[string]string{"recent_key": "record_key", "recent_loc": "loc"} {
		counts := map[string]int{}
		for _, table := range []string{recent, large} {
			if err := l.Each(ctx, "SELECT count(*) FROM "+table, nil, func(rows *sql.Rows) error {
				var n int
				err := rows.Scan(&n)
				counts[table] = n
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if counts[recent] > 20+2*size || counts[recent]+counts[large] != batches*size {
			t.Errorf("after %d keys: %v", batches*size, counts)
		}
	}
	for i := range batches * size {
		if _, err := l.Record(ctx, "main", event.Key(items(i, 1)[0].Record)); err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if err := l.Verify(ctx, func(f eventlog.Finding) { t.Errorf("%s: %s", f.Where, f.What) }); err != nil {
		t.Error(err)
	}
}

// A look-up searches both tables of keys, and reads neither whole.
func TestKeysAreSearched(t *testing.T) {
	l, _ := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	for _, query := range eventlog.KeyQueries {
		var plan []string
		args := make([]any, strings.Count(query, "?")+strings.Count(query, "$1")+strings.Count(query, "$2"))
		if err := l.Each(context.Background(), "EXPLAIN QUERY PLAN "+query, args, func(rows *sql.Rows) error {
			var id, parent, unused int
			var step string
			err := rows.Scan(&id, &parent, &unused, &step)
			plan = append(plan, step)
			return err
		}); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", query, err))
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "SCAN") && !strings.Contains(text, "SCAN CONSTANT") || strings.Count(text, "SEARCH") < 2 {
			t.Errorf("%s:\n%s", query, text)
		}
	}
}
