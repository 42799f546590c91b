//go:build unix

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/internal/database"
)

// Several nodes may have one log on a server. One of them writes; the others read it, each in
// a data folder of its own (Options.Beside), and one of them can take the place of the one
// that writes when that has gone (TakeOver). The server decides who writes, by the lock of the
// connection that does. Each node notes how far it has seen the log come, as the one that
// writes does, so that it notices when a server has less than that.

// Errors that decide what a node does next.
var (
	// ErrInUse: another node writes the log, or has written it meanwhile.
	ErrInUse = database.ErrInUse
	// ErrOthers: the log on the server is not one of the data folder.
	ErrOthers = errors.New("has the log of another data folder than")
	// ErrOlder: the log has the format of an older version, and a node that writes must bring it
	// up to date first.
	ErrOlder = database.ErrOlder
	// ErrMoved: the log was copied to another place, where it goes on.
	ErrMoved = database.ErrMoved
	// ErrAway: the server cannot be reached.
	ErrAway = database.ErrCannotOpen
)

// joinFolder makes the data folder one of the log that is on the server, unless it has that log
// already. What the log has then counts as all that it ever had.
func (l *Log) joinFolder(ctx context.Context, identity string) error {
	if !begun(l.folder) {
		if _, err := os.Stat(filepath.Join(l.folder, URLName)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, name := range []string{HeadName, "content.db"} {
			if _, err := os.Stat(filepath.Join(l.folder, name)); err == nil {
				return fmt.Errorf("%s has had a log: %s is there: give the node another data folder", l.folder, name)
			}
		}
	}
	var now head
	if err := l.read(ctx, func(q database.Querier) (err error) {
		now, err = topOf(ctx, q, 1<<62)
		return err
	}); err != nil {
		return err
	}
	now.Seen = now.Observed
	return enterFolder(l.folder, place{l.path, identity}, now)
}

// openBeside opens the log for reading, beside the node that writes it.
func (l *Log) openBeside(ctx context.Context) (err error) {
	if !database.OnServer(l.path) {
		return fmt.Errorf("%s has its log in %s: only a log on a PostgreSQL server can have several nodes", l.folder, FileName)
	}
	if err := l.openFolder(); err != nil {
		return err
	}
	found, err := kind().Look(ctx, l.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	if !found.Exists {
		return database.Missing("there is no log in %s yet", database.Shown(l.path))
	}
	if err := l.openReaders(ctx, found); err != nil {
		return err
	}
	if err := l.read(ctx, func(q database.Querier) error { return kind().Refuse(ctx, q, l.path) }); err != nil {
		return err
	}
	if err := l.joinFolder(ctx, found.Identity); err != nil {
		return err
	}
	if err := l.recognize(found); err != nil {
		return err
	}
	h, place, headErr := readHead(l.folder)
	if err := l.look(ctx, h, headErr); err != nil || headErr != nil {
		return err // a folder without a head stays one: whoever writes there begins a new epoch
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.head, err = openHead(l.folder, place, h)
	return err
}

// Follow notes how far the log has come, and reports whether it may have changed since the
// last call that returned no error. A log that has less than it had is a Loss, until a new
// epoch has begun that accounts for it. One that was copied away is an ErrMoved; it is an error too
// that a newer version has changed the format. One goroutine calls Follow and MayTakeOver.
func (l *Log) Follow(ctx context.Context) (changed bool, err error) {
	var now head
	var loss *Loss
	err = l.read(ctx, func(q database.Querier) error {
		if err := kind().Refuse(ctx, q, l.path); err != nil {
			return err
		}
		var commits int64
		if err := q.QueryRowContext(ctx, "SELECT commits FROM log").Scan(&commits); err != nil {
			return err
		}
		if changed = !l.beside.followed || commits != l.beside.commits; !changed {
			return nil
		}
		l.mu.Lock()
		was, has := head{}, l.head != nil
		if has {
			was = l.head.now
		}
		l.mu.Unlock()
		if now, err = topOf(ctx, q, 1<<62); err != nil || !has {
			return err
		}
		loss, err = lossSince(ctx, q, was, nil)
		return err
	})
	if err != nil || !changed {
		return changed, err
	}
	l.beside.followed, l.beside.commits = true, now.Commits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head == nil {
		return true, nil
	}
	if l.loss = loss; loss != nil { // what was lost must not be forgotten
		return true, nil
	}
	now.Seen = max(l.head.now.Seen, now.Observed)
	l.head.now = now
	l.head.seen(&l.guard)
	return true, l.head.write()
}

// lossWait is how long a node waits before it takes over when it cannot know whether the
// server has lost something since another one wrote: that one may be about to say so.
const lossWait = 15 * time.Second

// beside is what a node knows that reads beside the one that writes.
type beside struct {
	followed bool
	commits  int64
	server   string    // which process of a server answered when another node wrote
	free     time.Time // since when no other node writes, on another server or at the start
}

// MayTakeOver reports whether this node should take over: no other node writes, and this one
// knows of a loss, or that there is none, or nobody has come for a while who knows of one.
func (l *Log) MayTakeOver(ctx context.Context) (bool, error) {
	var holder, server string
	if err := l.read(ctx, func(q database.Querier) (err error) {
		holder, server, err = database.WriterOf(ctx, q)
		return err
	}); err != nil {
		return false, err
	}
	b := &l.beside
	if holder != "" {
		b.server, b.free = server, time.Time{}
		return false, nil
	}
	if loss := l.Loss(); server == b.server || loss != nil && loss.Events() {
		return true, nil
	}
	if b.free.IsZero() {
		b.free = time.Now()
	}
	return time.Since(b.free) >= lossWait, nil
}

// TakeOver opens the log of a node that has read so far for writing. The error is an ErrInUse
// when another one writes. The Log that reads goes on, but for the lock of the data folder,
// which the new one has.
func (l *Log) TakeOver(ctx context.Context) (w *Log, err error) {
	opt := l.opt
	opt.Beside = false
	w = newLog(l.folder, l.path, opt)
	w.lock = l.lock
	done := false
	defer func() { // also when opening panics: the lock on the server must not stay
		if !done {
			w.lock = nil // it stays with the one that reads
			w, err = nil, errors.Join(err, w.Close())
		}
	}()
	if err := w.openForWriting(ctx); err != nil {
		return w, err
	}
	done = true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lock = nil
	if l.head != nil {
		_ = l.head.close() // the new one has its own
		l.head = nil
	}
	return w, nil
}
