//go:build unix

package database

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
)

const tooMuch = "INSERT INTO item (caller, n, fill) VALUES (53, 0, zeroblob(4 << 20))"

// limitPages makes the disk full, as far as the database can tell.
func limitPages(ctx context.Context, q Querier) error {
	var pages int
	return q.QueryRowContext(ctx, "PRAGMA max_page_count = 20").Scan(&pages)
}

// TestWriterEndedTransaction: on a full disk SQLite ends the transaction. Work that
// goes on after that writes nothing, which would be committed alone.
func TestWriterEndedTransaction(t *testing.T) {
	m := newWriter(t, WriterOptions{})
	must(t, m.Use(t.Context(), func(ctx context.Context, tx *Tx) error { return limitPages(ctx, tx) }))
	for name, after := range map[string]func(context.Context, *Tx) error{
		"a statement": func(ctx context.Context, tx *Tx) error { return insert(ctx, tx, 7, 0) },
		"many rows": func(ctx context.Context, tx *Tx) error {
			b := tx.Bulk(ctx, "INSERT INTO item (caller, n) VALUES ", 2)
			return errors.Join(b.Add(int64(7), int64(1)), b.Flush())
		},
	} {
		err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			return errors.Join(tx.Exec(ctx, tooMuch), after(ctx, tx))
		})
		if !errors.Is(err, ErrFull) {
			t.Errorf("%s: %v", name, err)
		}
		m.want(t)
	}
}

// TestWriterDryRunEnds: a dry run whose transaction has ended, at whatever moment,
// commits nothing afterwards.
func TestWriterDryRunEnds(t *testing.T) {
	for _, moment := range []string{"before the commit", "in the work", "when the connection is lost", "while somebody reads"} {
		path := filepath.Join(t.TempDir(), "test.db")
		must(t, testKind.Create(t.Context(), path))
		fail := ""
		w, err := testKind.OpenWriter(t.Context(), path, WriterOptions{DryRun: true, BeforeCommit: func(ctx context.Context, tx *Tx) error {
			if fail == "before the commit" {
				return tx.Exec(ctx, tooMuch)
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		must(t, errors.Join(limitPages(t.Context(), w.Uncommitted()), w.Do(t.Context(), insertOne(1))))
		switch fail = moment; moment {
		case "before the commit":
			err = w.Do(t.Context(), insertOne(2))
		case "in the work":
			err = w.Do(t.Context(), func(ctx context.Context, tx *Tx) error { return tx.Exec(ctx, tooMuch) })
		case "when the connection is lost":
			err = errors.Join(errors.New("lost"), w.Uncommitted().Close())
		case "while somebody reads":
			_, err = w.Uncommitted().ExecContext(t.Context(), tooMuch)
		}
		if err == nil {
			t.Errorf("%s: no error", moment)
		}
		fail = ""
		if err := w.Do(t.Context(), insertOne(3)); err == nil {
			t.Errorf("%s: the dry run goes on", moment)
		}
		if err := w.Close(); err != nil {
			t.Errorf("%s: %v", moment, err)
		}
		r, err := testKind.OpenReaders(t.Context(), path, 1)
		if err != nil {
			t.Fatal(err)
		}
		m := &made{readers: r}
		m.want(t)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestWriterFailed: who waits while a COMMIT fails learns that nothing may be written
// any more before it writes.
func TestWriterFailed(t *testing.T) {
	var stop error
	committing, waits := make(chan struct{}), make(chan struct{})
	m := newWriter(t, WriterOptions{
		Refuse: func() error { return stop },
		Failed: func(err error) { stop = err },
		BeforeCommit: func(context.Context, *Tx) error {
			close(committing)
			<-waits
			return nil
		},
	})
	first := make(chan error, 1)
	go func() {
		first <- m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			return errors.Join(insert(ctx, tx, 1, 0), tx.Exec(ctx, "INSERT INTO boat VALUES (7)")) // which the COMMIT refuses
		})
	}()
	<-committing
	second := make(chan error, 1)
	go func() { second <- m.Do(t.Context(), insertOne(2)) }()
	for m.waiting.Load() == 0 {
		runtime.Gosched()
	}
	close(waits)
	if err := <-first; err == nil {
		t.Error("the commit has not failed")
	}
	if err := <-second; err == nil {
		t.Error("the next one writes")
	}
	m.want(t)
}
