//go:build unix

package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	lib "modernc.org/sqlite/lib"
)

// ErrClosed: the Writer was closed.
var ErrClosed = errors.New("the database is closed")

// Writer is the one connection that writes a database. All methods may be called
// from any goroutine; one of them uses the connection at a time.
//
// Callers that wait while another one writes share its transaction, and with it the
// one sync of the disk that a COMMIT costs (group commit). Each has a savepoint of
// its own. What Do guarantees:
//
//   - Do returns nil after the COMMIT, never before.
//   - An error or a panic of one caller undoes what that caller did, and nothing
//     else. There is one exception: SQLite ends the whole transaction itself after
//     some failures, such as a full disk. Then all who share it get an error.
//   - A COMMIT that fails has not happened, and all who share it get the error.
//   - A caller whose context ends while it waits for its turn has done nothing. Once
//     its work has begun, the work is not interrupted: SQLite would end the
//     transaction of the others too.
//
// On a PostgreSQL server that is the same, but for two things: after the error of any
// statement the whole work of a caller fails, and a COMMIT whose connection breaks may have
// happened (ErrDisk) where the server cannot be asked.
type Writer struct {
	path   string
	engine engine
	opt    WriterOptions

	turn    chan struct{} // holds one token: that of the caller that uses the connection
	waiting atomic.Int64  // callers that wait for their first turn

	// The next fields belong to the caller that has the turn.
	db      *sql.DB // nil together with conn
	conn    *sql.Conn
	inserts map[insertText]string // INSERTs of many rows
	group   *group                // has work that is not committed yet; nil when there is none
	failed  error                 // why nothing can be written any more
	idle    *time.Timer           // runs while no transaction is under way and something is to be checkpointed; nil in a dry run
	due     bool                  // it has to run after the transaction
}

// WriterOptions are the options of a Writer. The zero value is ready to use.
type WriterOptions struct {
	// Pragmas are added to those that every Writer has, as in "cache_size(-2000)".
	Pragmas []string
	// DryRun makes everything happen in one transaction, which Close undoes.
	DryRun bool
	// MovedTo opens a database on a server also after Writer.MarkMoved to this place.
	MovedTo string
	// Refuse, if it is not nil, returns why nothing may be written any more. It is called
	// before each call's work and before each COMMIT.
	Refuse func() error
	// BeforeCommit runs at the end of each transaction that has changed a row. After an
	// error nothing of the transaction has happened.
	BeforeCommit func(ctx context.Context, tx *Tx) error
	// AfterCommit runs after its COMMIT, before any caller returns. An error goes to
	// all callers, although what they did is durable.
	AfterCommit func(ctx context.Context, tx *Tx) error
	// Committed, if not nil, is called with the duration of each COMMIT of a change.
	Committed func(took time.Duration)
	// Failed is called with each error of a transaction before anybody else writes.
	// Refuse may depend on it.
	Failed func(err error)
	// Reopen is called before a connection that was lost is opened again. If it returns
	// an error the connection is not opened: the path may lead to another file by now.
	Reopen func() error
	// Idle runs after the checkpoint that follows IdleTime without a change.
	Idle func()
}

// Tx is the transaction of a Writer, for the time of one call of Do.
type Tx struct {
	w                 *Writer
	committed, undone []func()
	// ended is the error of a statement after which SQLite may have ended the
	// transaction. Further statements would each commit on their own, so they are
	// refused.
	ended error
}

// group is the callers that share a transaction.
type group struct {
	members []*Tx
	before  int64         // value of Tx.Changes when it began
	done    chan struct{} // closed when err is final
	err     error
}

const savepoint, savepointUndo, savepointRelease = "SAVEPOINT caller", "ROLLBACK TO caller; RELEASE caller", "RELEASE caller"

// OpenWriter opens the connection that writes, of which there is one, and brings the
// database up to date. The file at path must exist; "" is a new database in memory.
func (k *Kind) OpenWriter(ctx context.Context, path string, opt WriterOptions) (*Writer, error) {
	w := &Writer{path: path, engine: k.engine(path, opt), opt: opt, turn: make(chan struct{}, 1), inserts: map[insertText]string{}}
	if err := w.connect(ctx); err != nil {
		return nil, errors.Join(err, w.disconnect())
	}
	if !opt.DryRun {
		w.idle = time.AfterFunc(IdleTime, w.Checkpoint)
	}
	return w, nil
}

// connect opens the connection. In a dry run it begins the one transaction.
func (w *Writer) connect(ctx context.Context) (err error) {
	if w.db, w.conn, err = w.engine.open(ctx); err != nil {
		return err
	}
	if w.opt.DryRun {
		err = w.engine.begin(ctx, w.conn, false)
	}
	return Explain(w.path, err)
}

// Do runs work in a transaction. All of the work is durable when Do returns nil,
// none of it when Do returns an error, unless that is one of AfterCommit. The context
// of the work does not end. The work must not call the Writer's methods.
func (w *Writer) Do(ctx context.Context, work func(ctx context.Context, tx *Tx) error) error {
	return w.do(ctx, false, work)
}

// DoFirst is Do for work that takes long, or changes many rows. It first commits the work
// of earlier callers, so that they need not wait, and begins a transaction, which later
// callers may share. The first caller of a transaction needs no savepoint. That saves
// memory: SQLite keeps there each page that changes after a savepoint, and a long work
// changes all pages of a large table.
func (w *Writer) DoFirst(ctx context.Context, work func(ctx context.Context, tx *Tx) error) error {
	return w.do(ctx, true, work)
}

func (w *Writer) do(ctx context.Context, first bool, work func(ctx context.Context, tx *Tx) error) error {
	if err := w.acquire(ctx); err != nil {
		return err
	}
	held := true
	defer func() { // also when the work panics
		if held {
			w.release()
		}
	}()
	ctx = context.WithoutCancel(ctx)
	if first && w.group != nil {
		w.commit(ctx)
	}
	g, err := w.join(ctx, work)
	if err != nil {
		return w.fail(err)
	}
	if w.waiting.Load() > 0 && !w.opt.DryRun {
		// Callers that wait join the group. A channel serves its senders in their order:
		// the turn comes back to the first caller of the group after those who wait now,
		// even if all of these give up, and then it commits the group.
		w.release()
		held = false
		select {
		case <-g.done:
			return g.err
		case w.turn <- struct{}{}:
			held = true
		}
	}
	if w.group == g {
		w.commit(ctx)
	}
	return g.err
}

// Use runs do with the connection outside of any transaction, and after all that was
// written before is committed. do must not write. Its context does not end: on a server that
// would end the connection, and with it the lock.
func (w *Writer) Use(ctx context.Context, do func(ctx context.Context, tx *Tx) error) error {
	if err := w.acquire(ctx); err != nil {
		return err
	}
	defer w.release()
	ctx = context.WithoutCancel(ctx)
	if w.group != nil {
		w.commit(ctx)
	}
	if err := errors.Join(w.engine.alive(ctx, w), w.reconnect(ctx)); err != nil {
		return w.fail(err)
	}
	return Explain(w.path, do(ctx, &Tx{w: w}))
}

// fail returns an error as Explain does, and calls Failed. The caller has the turn.
func (w *Writer) fail(err error) error {
	err = Explain(w.path, err)
	if err != nil && w.opt.Failed != nil {
		w.opt.Failed(err)
	}
	return err
}

// reconnect opens the connection again, if it was lost.
func (w *Writer) reconnect(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	if w.opt.DryRun {
		w.failed = errors.New("the dry run has lost its connection, and with it all that was written")
		return w.failed
	}
	if w.opt.Reopen != nil {
		if err := w.opt.Reopen(); err != nil {
			return err
		}
	}
	return w.open(ctx)
}

// open opens a connection in the place of one that was lost.
func (w *Writer) open(ctx context.Context) error {
	if err := w.connect(ctx); err != nil {
		return errors.Join(err, w.disconnect())
	}
	return nil
}

// Uncommitted returns the connection itself, which reads what a dry run has written.
func (w *Writer) Uncommitted() *sql.Conn { return w.conn }

func (w *Writer) acquire(ctx context.Context) error {
	w.waiting.Add(1)
	defer w.waiting.Add(-1)
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := ctx.Err()
	if err == nil {
		err = w.refused()
	}
	if err != nil {
		w.release()
	}
	return err
}

func (w *Writer) refused() error {
	if w.failed == nil && w.opt.Refuse != nil {
		return w.opt.Refuse()
	}
	return w.failed
}

func (w *Writer) release() { <-w.turn }

// join runs work in the transaction of the group, which begins if there is none. The
// first caller needs no savepoint: there is nothing else to undo.
func (w *Writer) join(ctx context.Context, work func(ctx context.Context, tx *Tx) error) (g *group, err error) {
	if err := w.begin(ctx); err != nil {
		return nil, err
	}
	g = w.group
	first := len(g.members) == 0 && !w.opt.DryRun
	tx, done := &Tx{w: w}, false
	defer func() { // also when work panics
		if done {
			return
		}
		cause := err
		if cause == nil {
			cause = errors.New("a defect")
		}
		tx.runUndone()
		w.undo(ctx, first, cause)
	}()
	if !first {
		if err := tx.Exec(ctx, savepoint); err != nil {
			return nil, err
		}
	}
	if err := work(ctx, tx); err != nil {
		return nil, err
	}
	if err := w.engine.failed(w.conn); err != nil {
		return nil, err
	}
	if !first {
		if err := tx.Exec(ctx, savepointRelease); err != nil {
			return nil, err
		}
	}
	g.members = append(g.members, tx)
	done = true
	return g, nil
}

func (w *Writer) begin(ctx context.Context) error {
	if w.group != nil {
		return nil
	}
	if err := w.reconnect(ctx); err != nil {
		return err
	}
	before, err := w.beginOn(ctx)
	if err != nil && w.engine.lost(w.conn) && !w.opt.DryRun {
		// It was lost since the last transaction, as when the server was restarted.
		if err = errors.Join(w.disconnect(), w.reconnect(ctx)); err == nil {
			before, err = w.beginOn(ctx)
		}
	}
	if errors.Is(err, errGone) {
		w.failed = err
		return err
	}
	if err == nil {
		w.due = w.idle != nil && w.idle.Stop() || w.due
		w.group = &group{before: before, done: make(chan struct{})}
	} else if errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) {
		err = errors.Join(err, w.disconnect())
	}
	return err
}

// beginOn begins a transaction on the connection that there is, and returns how many rows
// were changed before.
func (w *Writer) beginOn(ctx context.Context) (before int64, err error) {
	if before, err = w.engine.changes(ctx, w.conn); err != nil {
		return 0, err
	}
	return before, w.engine.begin(ctx, w.conn, w.opt.DryRun)
}

// undo undoes the work of one caller. If SQLite has ended the transaction that is
// impossible, and the whole group fails.
func (w *Writer) undo(ctx context.Context, first bool, cause error) {
	if !first {
		_, err := w.conn.ExecContext(ctx, savepointUndo)
		switch {
		case err == nil && w.opt.DryRun:
			w.end(nil)
			return
		case err == nil:
			return
		case w.opt.DryRun:
			// The transaction that nobody commits may be gone. Later statements would
			// each commit on their own.
			w.failed = fmt.Errorf("the dry run ended with an earlier failure: %w", cause)
			w.end(w.failed)
			return
		}
		cause = fmt.Errorf("the transaction was undone with that of another, which failed: %w", cause)
	}
	w.rollback(ctx)
	w.end(w.fail(cause))
}

// rollback ends the transaction, if there still is one. If that fails, rollback closes
// the connection, which undoes the transaction too.
func (w *Writer) rollback(ctx context.Context) {
	if w.conn == nil {
		return // the COMMIT has lost it
	}
	if _, err := w.conn.ExecContext(ctx, "ROLLBACK"); err != nil && !noTransaction(err) {
		_ = w.disconnect() // the next caller opens another one
	}
}

// commit ends the group: all its callers get the outcome.
func (w *Writer) commit(ctx context.Context) {
	g, tx := w.group, &Tx{w: w} // of the hooks
	g.members = append(g.members, tx)
	outcome, durable := errors.New("a defect during the commit"), false
	defer func() { // also when a hook panics
		switch {
		case !durable && w.opt.DryRun:
			w.failed = fmt.Errorf("the dry run ended with an earlier failure: %w", outcome)
		case !durable:
			w.rollback(ctx)
		}
		w.end(w.fail(outcome))
	}()
	err := w.refused()
	var after int64
	if err == nil {
		after, err = w.engine.changes(ctx, w.conn)
	}
	changed := after != g.before
	if err == nil && changed && w.opt.BeforeCommit != nil {
		err = w.opt.BeforeCommit(ctx, tx)
	}
	if err == nil && !w.opt.DryRun {
		began := time.Now()
		err = w.engine.commit(ctx, w, after-g.before)
		if changed && w.opt.Committed != nil {
			w.opt.Committed(time.Since(began))
		}
	}
	if err != nil {
		outcome = err
		return
	}
	durable = true
	members := g.members
	g.members = nil // the work is durable, whatever the hooks return
	for _, m := range members {
		for _, f := range m.committed {
			f()
		}
	}
	if outcome = nil; !changed {
		return
	}
	w.due = true
	if w.opt.AfterCommit != nil {
		outcome = w.opt.AfterCommit(ctx, tx)
	}
}

// end gives all callers of the group its outcome. It runs the OnUndo functions of the
// members that are left: their work was undone.
func (w *Writer) end(err error) {
	g := w.group
	w.group = nil
	g.err = err
	for _, m := range slices.Backward(g.members) {
		m.runUndone()
	}
	if w.due && w.idle != nil {
		w.due = false
		w.idle.Reset(IdleTime)
	}
	close(g.done)
}

// Checkpoint copies the write-ahead log into the database itself, except for what readers
// of older states still need, and calls Idle. A Writer does that by itself when nothing
// has been written for IdleTime. If it fails, the next checkpoint does it.
func (w *Writer) Checkpoint() {
	_ = w.Use(context.Background(), func(ctx context.Context, tx *Tx) error {
		err := w.engine.checkpoint(ctx, w.conn)
		if w.opt.Idle != nil {
			w.opt.Idle()
		}
		return err
	})
}

// Close ends the connection, after a transaction under way. A dry run is undone.
func (w *Writer) Close() error {
	w.turn <- struct{}{}
	defer w.release()
	if errors.Is(w.failed, ErrClosed) {
		return nil
	}
	if w.group != nil {
		w.commit(context.Background())
	}
	w.failed = ErrClosed
	if w.idle != nil {
		w.idle.Stop()
	}
	return w.disconnect()
}

// disconnect closes the connection, so that the next use opens a new one.
func (w *Writer) disconnect() error {
	if w.conn == nil {
		return nil
	}
	errs := []error{
		// database/sql closes a connection only after driver.ErrBadConn.
		w.conn.Raw(func(any) error { return driver.ErrBadConn }),
		w.db.Close(),
	}
	w.conn, w.db = nil, nil
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		return errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
	})...)
}

// Exec runs a statement.
func (tx *Tx) Exec(ctx context.Context, text string, args ...any) error {
	if tx.ended != nil {
		return tx.ended
	}
	_, err := tx.w.conn.ExecContext(ctx, text, args...)
	return tx.check(err)
}

// check remembers an error after which SQLite may have ended the transaction.
func (tx *Tx) check(err error) error {
	switch Code(err) {
	case lib.SQLITE_FULL, lib.SQLITE_IOERR, lib.SQLITE_NOMEM, lib.SQLITE_BUSY, lib.SQLITE_INTERRUPT, lib.SQLITE_CORRUPT, lib.SQLITE_CANTOPEN:
		tx.ended = err
	}
	return err
}

// Each runs a query, and scans every row.
func (tx *Tx) Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	if tx.ended != nil {
		return tx.ended
	}
	return tx.check(Each(ctx, tx.w.conn, text, args, scan))
}

// Changes counts the rows that were ever changed on the connection.
func (tx *Tx) Changes(ctx context.Context) (int64, error) { return tx.w.engine.changes(ctx, tx.w.conn) }

// Awaited reports whether other callers wait for the connection, or for the COMMIT of
// their work. Work that could go on should end then.
func (tx *Tx) Awaited() bool {
	return tx.w.waiting.Load() > 0 || tx.w.group != nil && len(tx.w.group.members) > 0
}

// OnCommit registers f to be called after the COMMIT, before the next transaction begins.
func (tx *Tx) OnCommit(f func()) { tx.committed = append(tx.committed, f) }

// OnUndo registers f to be called when the caller's work is undone, before anybody else
// has the connection. What was registered last is called first.
func (tx *Tx) OnUndo(f func()) { tx.undone = append(tx.undone, f) }

func (tx *Tx) runUndone() {
	for _, f := range slices.Backward(tx.undone) {
		f()
	}
}

// QueryContext runs a query. See Each.
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.w.conn.QueryContext(ctx, query, args...)
}

// QueryRowContext is QueryContext for at most one row.
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return tx.w.conn.QueryRowContext(ctx, query, args...)
}
