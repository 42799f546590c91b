package eventlog

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// LimitPages caps the database at so many pages more than it has now, as a full
// disk would; a negative number takes the cap away.
func (l *Log) LimitPages(ctx context.Context, more int) error {
	var pages int
	if err := l.use(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages)
	}); err != nil {
		return err
	}
	limit := pages + more
	if more < 0 {
		limit = 1 << 30
	}
	return l.Exec(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", limit))
}

// Exec changes the database behind the log's back.
func (l *Log) Exec(ctx context.Context, text string, args ...any) error {
	return l.use(ctx, func(ctx context.Context, _ *database.Tx) error {
		_, err := l.writer.Uncommitted().ExecContext(ctx, text, args...)
		return err
	})
}

// Hold has everybody who writes wait until a channel is closed.
func (l *Log) Hold(ctx context.Context, until <-chan struct{}) error {
	return l.use(ctx, func(context.Context, *database.Tx) error {
		<-until
		return nil
	})
}

// Changes counts the rows that were ever changed on the connection that writes.
func (l *Log) Changes(t testing.TB) (n int64) {
	t.Helper()
	if err := l.use(context.Background(), func(ctx context.Context, tx *database.Tx) (err error) {
		n, err = tx.Changes(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Walks counts the walks under way that are in memory.
func (l *Log) Walks(t testing.TB) (n int) {
	t.Helper()
	if err := l.use(context.Background(), func(context.Context, *database.Tx) error {
		n = len(l.walks)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Checkpoint does what is done when nothing has been written for a while.
func (l *Log) Checkpoint() { l.writer.Checkpoint() }

// DropCache has the writer read its pages from the disk again.
func (l *Log) DropCache(t testing.TB) {
	t.Helper()
	if err := l.Exec(context.Background(), "PRAGMA shrink_memory; PRAGMA cache_size = 1"); err != nil {
		t.Fatal(err)
	}
}

// SetMaxRecent has keys move to the large tables from so many on.
func SetMaxRecent(rows int64) { maxRecent = rows }

// Disconnect closes the connection that writes behind the log's back.
func (l *Log) Disconnect() error { return l.writer.Uncommitted().Close() }

// KeyQueries are those that look up keys.
var KeyQueries = []string{selectKeys, selectLogged, selectPresenceOf, selectCurrent, selectChain, selectLocs}

// LogFormerly changes what was logged of live records to what it was formerly.
func (l *Log) LogFormerly(t testing.TB, content event.Content, change func(*event.Observation)) {
	t.Helper()
	if err := l.use(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		type row struct {
			columns
			body
		}
		var all []row
		if err := tx.Each(ctx, "SELECT "+eventColumns+" FROM event", nil, func(rows *sql.Rows) error {
			var r row
			sealed, err := r.scan(rows)
			if err == nil {
				sealed, err = unseal(r.columns, sealed)
			}
			if err == nil {
				err = readBody(bytes.Clone(sealed), &r.body)
			}
			all = append(all, r)
			return err
		}); err != nil {
			return err
		}
		for i := range all {
			r := &all[i]
			change(&r.obs)
			if err := tx.Exec(ctx, "UPDATE event SET body = $2 WHERE id = $1", r.id(), seal(r.columns, appendBody(nil, &r.body))); err != nil {
				return err
			}
			if err := tx.Exec(ctx, "UPDATE record SET digest = $2 WHERE id = $1 AND seq = $3", r.record, r.obs.Digest(content), r.seq); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
