package eventlog

import (
	"context"
	"fmt"
	"testing"
)

// LimitPages caps the database at so many pages more than it has now, as a full
// disk would; a negative number takes the cap away.
func (l *Log) LimitPages(ctx context.Context, more int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var pages int
	if err := l.conn.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages); err != nil {
		return err
	}
	limit := pages + more
	if more < 0 {
		limit = 1 << 30
	}
	_, err := l.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", limit))
	return err
}

// Exec changes the database behind the log's back.
func (l *Log) Exec(ctx context.Context, text string, args ...any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.conn.ExecContext(ctx, text, args...)
	return err
}

// Checkpoint does what is done when nothing has been written for a while.
func (l *Log) Checkpoint() { l.checkpoint() }

// DropCache has the writer read its pages from the disk again.
func (l *Log) DropCache(t testing.TB) {
	t.Helper()
	if err := l.Exec(context.Background(), "PRAGMA shrink_memory; PRAGMA cache_size = 1"); err != nil {
		t.Fatal(err)
	}
}
