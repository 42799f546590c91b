//go:build unix

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pmh-bridge/bridge/internal/database"
)

// Several nodes may have one log on a server. One of them writes; the others read it, each in
// a data folder of its own (Options.Beside), and one of them can take the place of the one
// that writes when that has gone (TakeOver). The server decides who writes, by the lock of the
// connection that does. Each node notes how far it has seen the log come, as the one that
// writes does, so that it notices when a server has less than that.

// ErrInUse: another node writes the log.
var ErrInUse = database.ErrInUse

// joinFolder makes the data folder one of the log that is on the server, unless it has that log
// already. What the log has then counts as all that it ever had.
func (l *Log) joinFolder(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(l.folder, URLName)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(l.folder, "content.db")); err == nil {
		return fmt.Errorf("%s has contents, but no log: give the node another data folder", l.folder)
	}
	identity, err := kind().Identity(ctx, l.path)
	if err != nil {
		return err
	}
	readers, err := kind().OpenReaders(ctx, l.path, 1)
	if err != nil {
		return err
	}
	var now head
	err = readers.Read(ctx, func(q database.Querier) (err error) {
		now, err = topOf(ctx, q, 1<<62)
		return err
	})
	if err := errors.Join(err, readers.Close()); err != nil {
		return err
	}
	now.Seen = now.Observed
	// The head comes first: with the address alone the folder would be one that has lost it.
	h, err := openHead(l.folder, 0, now)
	if err != nil {
		return err
	}
	if err := h.close(); err != nil {
		return err
	}
	return writeURL(l.folder, place{l.path, identity})
}

// openBeside opens the log for reading, in a folder of its own.
func (l *Log) openBeside(ctx context.Context) error {
	if !database.OnServer(l.path) {
		return fmt.Errorf("%s has its log in %s: only a log on a PostgreSQL server can have several nodes", l.folder, FileName)
	}
	if err := l.openFolder(); err != nil {
		return err
	}
	found, err := kind().Find(ctx, l.path)
	if err == nil && !found {
		err = fmt.Errorf("there is no log in %s yet: %w", database.Shown(l.path), fs.ErrNotExist)
	}
	if err == nil {
		err = l.joinFolder(ctx)
	}
	if err == nil {
		err = l.recognize(ctx)
	}
	if err != nil {
		return err
	}
	h, place, headErr := readHead(l.folder)
	if err := l.openReaders(ctx); err != nil {
		return err
	}
	if err := l.look(ctx, h, headErr); err != nil || headErr != nil {
		return err // a folder without a head stays one: whoever writes there begins a new epoch
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.head, err = openHead(l.folder, place, h)
	return err
}

// Follow notes how far the log has come, and reports whether it has changed since the last
// call. A log that has less than it had is a Loss. One that began a new epoch because of that
// loss has none any more.
func (l *Log) Follow(ctx context.Context) (changed bool, err error) {
	l.mu.Lock()
	was := head{}
	if l.head != nil {
		was = l.head.now
	}
	first := !l.followed
	l.followed = true
	l.mu.Unlock()
	err = l.read(ctx, func(q database.Querier) error {
		var commits int64
		if err := q.QueryRowContext(ctx, "SELECT commits FROM log").Scan(&commits); err != nil {
			return err
		}
		if changed = first || commits != l.lastCommits; !changed {
			return nil
		}
		l.lastCommits = commits
		now, err := topOf(ctx, q, 1<<62)
		if err != nil {
			return err
		}
		loss, err := l.lossBeside(ctx, q, was)
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.loss = loss
		if l.head == nil || loss != nil {
			return nil // what was lost must not be forgotten
		}
		now.Seen = max(was.Seen, now.Observed)
		l.head.now = now
		l.head.seen(&l.guard)
		return l.head.write()
	})
	return changed, err
}

// lossBeside is lossSince of a node that reads: a new epoch accounts for what it has seen and
// is there no more.
func (l *Log) lossBeside(ctx context.Context, q database.Querier, was head) (*Loss, error) {
	if l.head == nil {
		return l.loss, nil
	}
	loss, err := lossSince(ctx, q, was, nil)
	if loss == nil || err != nil {
		return loss, err
	}
	all, err := readEpochs(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if was.Seq > e.After && was.Seq <= e.Upto || !loss.Events() && was.Seen < e.Started {
			return nil, nil
		}
	}
	return loss, nil
}

// Writer returns how the node that writes the log calls itself, "" when none does.
func (l *Log) Writer(ctx context.Context) (holder string, err error) {
	err = l.read(ctx, func(q database.Querier) (err error) {
		holder, err = database.WriterOf(ctx, q)
		return err
	})
	return holder, err
}

// TakeOver opens the log of a node that has read so far for writing. The error is an ErrInUse
// when another one writes. The Log that reads goes on, but for the lock of the data folder,
// which the new one has.
func (l *Log) TakeOver(ctx context.Context) (*Log, error) {
	opt := l.opt
	opt.Beside = false
	w := newLog(l.folder, l.path, opt)
	w.lock = l.lock
	if err := w.openForWriting(ctx); err != nil {
		w.lock = nil // it stays with the one that reads
		return nil, errors.Join(err, w.Close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lock = nil
	err := l.head.close()
	l.head = nil
	return w, err
}
