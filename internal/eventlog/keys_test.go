package eventlog_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
		must(t, add(l, src, n*size, size))
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

// TestKeysOfAGroup: Sources that have records in common are harvested in one transaction, every
// other one by a submission, whose keys do not wait for the COMMIT. Each meets the records of
// those before it, and one that fails leaves no key behind and takes none of the others away.
func TestKeysOfAGroup(t *testing.T) {
	t.Parallel()
	const callers, size, step = 4, 10, 5
	errWork := errors.New("the work fails")
	for failing := range 1<<callers + 1 { // a bit for each that fails; at last the disk is full
		folder, full := t.TempDir(), failing == 1<<callers
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			l, sources := withSources(t, folder, callers)
			defer closed(t, l)
			// together has all Sources harvested in one transaction, and returns how many got
			// an error.
			together := func(failing int) int64 {
				var failed atomic.Int64
				var group sync.WaitGroup
				free := occupied(t, l, &group)
				for i, src := range sources {
					p, err := l.Progress(ctx, src.ID)
					if err != nil {
						t.Fatal(err)
					}
					batch := event.Batch{Source: src.ID, Cursor: p.Cursor.Version, Start: true, Items: items(i*step, size), Documents: []event.Document{{URL: src.URL}}}
					if i%2 == 1 {
						batch.Mode, batch.Start = event.ModeSubmission, false
					}
					group.Go(func() {
						err := l.Do(ctx, func(ctx context.Context, tx *eventlog.Tx) error {
							if _, err := tx.Append(ctx, &batch); err != nil {
								return err
							}
							for _, it := range batch.Items {
								if holds, err := tx.Presence(ctx, src.ID, it.Record); err != nil || holds != event.Present {
									t.Errorf("in the transaction Source %d has of %s: %v, %v", i, it.Record, holds, err)
								}
							}
							if failing&(1<<i) != 0 {
								return errWork
							}
							return nil
						})
						if err != nil {
							failed.Add(1)
						}
						if failing&(1<<i) != 0 && !errors.Is(err, errWork) {
							t.Errorf("Source %d: %v", i, err)
						}
					})
					synctest.Wait()
				}
				close(free)
				group.Wait()
				return failed.Load()
			}
			want := map[string]bool{}
			if full {
				must(t, l.LimitPages(ctx, 0))
				if failed := together(0); failed != callers {
					t.Errorf("on a full disk %d of %d callers got an error", failed, callers)
				}
				must(t, l.LimitPages(ctx, -1))
			} else {
				together(failing)
				for i := range callers {
					for _, it := range items(i*step, size) {
						want[it.Record] = want[it.Record] || failing&(1<<i) == 0
					}
				}
			}
			for record, there := range want {
				if _, err := l.Record(ctx, "main", event.Key(record)); (err == nil) != there {
					t.Errorf("failing %04b: record %s is there: %v; %v", failing, record, !there, err)
				}
			}
			sound(t, l)
			if failed := together(0); failed != 0 {
				t.Errorf("then %d failed", failed)
			}
			if events, err := all(l); err != nil || len(events) != (callers-1)*step+size {
				t.Errorf("failing %04b: %d events, %v; each record has one", failing, len(events), err)
			}
			sound(t, l)
		})
	}
}
