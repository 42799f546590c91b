// Package eventlog is the append-only log of events in SQLite, with the state
// that harvests keep beside it.
//
// Append is the only mutation of the log. It commits events, the state they
// change and the walk's cursor in one transaction, by compare-and-swap on the
// cursor (I2). Everything else that writes settles harvest state alone and
// never adds, changes or removes an event.
package eventlog

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/sqlite"
)

// FileName is the name of the log's database in the data folder.
const FileName = "log.db"

// ErrFull: the disk is full. Nothing was written; reading goes on.
var ErrFull = sqlite.ErrFull

// ErrStopped: after a failure it is not known what the database holds. The log
// writes nothing any more and has to be opened anew.
var ErrStopped = errors.New("the log has stopped writing after a failure, and has to be opened anew")

// Options say how a log is opened. The zero value opens it for reading and
// writing with the system's clock.
type Options struct {
	// ReadOnly opens an existing log beside whoever writes it. It takes no
	// lock.
	ReadOnly bool
	// DryRun makes everything happen in one transaction that Close undoes. Where
	// there is no log yet none is made.
	DryRun bool
	// AcceptClock confirms a clock that jumped ahead (I3).
	AcceptClock bool
	// Clock returns the wall clock and the time since some fixed moment by a
	// clock that never jumps, nor stops while the machine is suspended. Nil is the
	// system's.
	Clock func() (wall time.Time, running time.Duration)
	// Holder describes this process to whoever finds the log locked.
	Holder string
}

// Log is an open event log. Its methods may be called from any goroutine; one
// of them writes at a time.
type Log struct {
	folder  string
	scratch string // of a dry run where there is no log yet
	path    string // of the database
	opt     Options
	lock    *lockFile
	file    os.FileInfo // of the database when it was opened
	loss    *Loss       // found when it was opened

	db     *sql.DB   // read-only connections; nil in a dry run
	reads  reads     // on db
	writer *sql.DB   // nil when opened for reading
	conn   *sql.Conn // the one connection that writes

	mu     sync.Mutex               // held while writing; guards what follows
	guard  guard                    // of the clock
	head   *headFile                // nil in a dry run, and when opened for reading
	idle   *time.Timer              // checkpoints when nothing is being written
	walks  map[event.SourceID]*walk // as stored, or as a batch under way has made them
	stmts  map[string]*sql.Stmt     // prepared on conn
	raws   map[string]rawStmt       // prepared on conn, past database/sql
	failed error                    // why nothing can be written any more
	// services are the documents that submissions came from.
	services map[servedBy]int64

	// walking is the Source whose walk the transaction under way changes.
	walking event.SourceID

	schedules schedules
	ahead     ahead

	signal  sync.Mutex    // guards changed
	changed chan struct{} // closed and replaced by every commit that appended
}

//go:embed migrations/*.sql
var migrations embed.FS

// kind is the sort of database that a log is ("brLg").
func kind() *sqlite.Kind {
	steps, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the path is constant
	}
	return &sqlite.Kind{Name: "log", ID: 0x62724c67, Migrations: steps}
}

// Exists reports whether a data folder holds a log, or a file in its place.
func Exists(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, FileName))
	return err == nil
}

// Open opens the log in the data folder, and makes both when they are missing
// (unless ReadOnly); but no log where a folder has had one. A log that another
// process writes is an error of type *LockedError. One that has lost events since
// it was written last goes on in a new epoch: see Loss.
func Open(ctx context.Context, folder string, opt Options) (*Log, error) {
	if opt.Clock == nil {
		opt.Clock = systemClock
	}
	l := &Log{folder: folder, path: filepath.Join(folder, FileName), opt: opt, walks: map[event.SourceID]*walk{}, stmts: map[string]*sql.Stmt{},
		raws: map[string]rawStmt{}, services: map[servedBy]int64{}, changed: make(chan struct{}),
		guard: guard{clock: opt.Clock, accept: opt.AcceptClock}}
	if err := l.open(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Log) open(ctx context.Context) error {
	if l.opt.ReadOnly {
		return l.openForReading(ctx)
	}
	found, err := kind().Find(l.path)
	if err != nil {
		return err
	}
	if l.opt.DryRun && !found {
		if l.scratch, err = os.MkdirTemp("", "bridge-dry-run-"); err != nil {
			return fmt.Errorf("dry run: %w", err)
		}
		l.path = filepath.Join(l.scratch, FileName)
		if err := kind().Create(ctx, l.path); err != nil {
			return err
		}
		return l.openWriter(ctx)
	}
	if err := l.openFolder(); err != nil {
		return err
	}
	err = l.openForWriting(ctx)
	if errors.Is(err, ErrFull) && l.useReserve() {
		err = l.closeDatabase()
		clear(l.stmts)
		l.conn, l.db, l.writer = nil, nil, nil
		if err == nil {
			err = l.openForWriting(ctx)
		}
	}
	if errors.Is(err, ErrFull) {
		err = fmt.Errorf("the data folder %s cannot be opened for writing: make room there first: %w", l.folder, err)
	}
	return err
}

// openFolder makes the data folder, which is for its owner alone, and locks it.
func (l *Log) openFolder() (err error) {
	if err := os.MkdirAll(l.folder, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	l.lock, err = takeLock(l.folder, l.opt.Holder)
	return err
}

func (l *Log) openForWriting(ctx context.Context) error {
	found, err := kind().Find(l.path)
	if err != nil {
		return err
	}
	if !found && !l.opt.DryRun {
		if err := l.create(ctx); err != nil {
			return err
		}
	}
	h, place, headErr := readHead(l.folder)
	if err := l.openWriter(ctx); err != nil || l.opt.DryRun {
		return err // a dry run reads on the connection that writes
	}
	if l.file, err = os.Stat(l.path); err != nil {
		return err
	}
	if err := l.openReaders(ctx); err != nil {
		return err
	}
	return l.openEpoch(ctx, h, place, headErr)
}

// create makes a new log, unless the folder has had one.
func (l *Log) create(ctx context.Context) error {
	for _, name := range []string{HeadName, FileName + "-wal", "content.db"} {
		switch _, err := os.Stat(filepath.Join(l.folder, name)); {
		case err == nil:
			return fmt.Errorf("%s has lost its log: %s is there, and %s is not: put %[3]s back from a backup; to begin anew move what is in the folder away",
				l.folder, name, FileName)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return kind().Create(ctx, l.path)
}

// openEpoch compares the log with its head, and goes on in a new epoch if it has
// to.
func (l *Log) openEpoch(ctx context.Context, h head, place int, headErr error) error {
	if err := l.look(ctx, h, headErr); err != nil {
		return err
	}
	if l.loss != nil && l.loss.Events() {
		if err := l.beginEpoch(ctx, l.loss, h); err != nil {
			return err
		}
	}
	now, err := topOf(ctx, l.conn, 1<<62)
	if err != nil {
		return err
	}
	now.Seen = max(h.Seen, now.Observed)
	if l.head, err = openHead(l.folder, place, now); err != nil {
		return err
	}
	l.idle = time.AfterFunc(sqlite.IdleTime, l.checkpoint)
	l.keepReserve()
	return nil
}

// look finds out what the log has lost, and when it was in use last.
func (l *Log) look(ctx context.Context, h head, headErr error) error {
	return l.read(ctx, func(q querier) (err error) {
		if l.loss, err = lossSince(ctx, q, h, headErr); err != nil {
			return err
		}
		var last sql.NullInt64
		if err := q.QueryRowContext(ctx, "SELECT max(clock) FROM sets").Scan(&last); err != nil {
			return err
		}
		if seen := max(h.Seen, event.Micros(last.Int64)); seen > 0 {
			l.guard.seen = seen.Time()
		}
		return nil
	})
}

func (l *Log) openForReading(ctx context.Context) error {
	found, err := kind().Find(l.path)
	if err == nil && !found {
		err = fmt.Errorf("%s holds no log: give the data folder of a bridge with --data, or harvest something first: %w", l.folder, fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	h, _, headErr := readHead(l.folder)
	if err := l.openReaders(ctx); err != nil {
		return err
	}
	return l.look(ctx, h, headErr)
}

// openWriter opens the one connection that writes. A cache takes twice the memory
// that is asked for, because the driver's pieces of memory are powers of two and
// a page with its header is a little more than one. Larger ones were no faster:
// batches write in the order of the keys, and the system has a cache too.
func (l *Log) openWriter(ctx context.Context) (err error) {
	if l.writer, l.conn, err = kind().OpenWriter(ctx, l.path, "cache_size(-16384)", "foreign_keys(0)", "temp_store(memory)"); err != nil {
		return err
	}
	if l.opt.DryRun {
		_, err = l.conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	}
	return err
}

func (l *Log) openReaders(ctx context.Context) (err error) {
	l.db, err = kind().OpenReaders(ctx, l.path, 4, "cache_size(-2048)")
	return err
}

// checkpoint is called when nothing has been written for a while.
func (l *Log) checkpoint() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writable() == nil {
		// Both are done again, at the latest when the log is closed.
		_ = sqlite.Checkpoint(context.Background(), l.conn)
		_ = l.head.f.Sync()
	}
}

// errClosed: nothing can be written through this Log.
var errClosed = errors.New("the log is closed, or was opened for reading only")

// Close ends all connections and gives the lock back. A dry run leaves nothing
// behind.
func (l *Log) Close() error {
	var errs []error
	if err := l.FlushSchedules(context.Background()); !errors.Is(err, errClosed) && !errors.Is(err, ErrStopped) {
		errs = append(errs, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.failed, errClosed) {
		return nil
	}
	l.failed = errClosed
	if l.idle != nil {
		l.idle.Stop()
	}
	errs = append(errs, l.closeDatabase())
	if l.head != nil {
		errs = append(errs, l.head.close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.release())
	}
	if l.scratch != "" {
		errs = append(errs, os.RemoveAll(l.scratch))
	}
	return errors.Join(errs...)
}

func (l *Log) closeDatabase() error {
	var errs []error
	for _, s := range l.stmts {
		errs = append(errs, s.Close())
	}
	if len(l.raws) > 0 {
		errs = append(errs, l.conn.Raw(func(any) error {
			for _, s := range l.raws {
				errs = append(errs, s.Close())
			}
			return nil
		}))
	}
	if l.conn != nil {
		if l.opt.DryRun {
			if _, err := l.conn.ExecContext(context.Background(), "ROLLBACK"); !sqlite.NoTransaction(err) {
				errs = append(errs, err)
			}
		}
		errs = append(errs, l.conn.Close())
	}
	if l.db != nil {
		errs = append(errs, l.reads.close(), l.db.Close())
	}
	if l.writer != nil {
		errs = append(errs, l.writer.Close())
	}
	return errors.Join(errs...)
}

// querier is one connection that reads: all queries of one call go through the
// same one, so that no call ever waits for a second while it holds the first.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// read runs do with a connection for reading; in a dry run it is the one that
// writes.
func (l *Log) read(ctx context.Context, do func(q querier) error) error {
	if l.db == nil {
		return do(l.conn)
	}
	c, err := l.db.Conn(ctx)
	if err == nil {
		err = readOn(c, do)
	}
	return l.unread(err)
}

// unread says of an error in reading what has happened to the file.
func (l *Log) unread(err error) error {
	err = sqlite.Explain(l.path, err)
	if l.writer != nil && (errors.Is(err, sqlite.ErrDisk) || errors.Is(err, sqlite.ErrDamaged)) {
		err = fmt.Errorf("%w: %w", ErrStopped, err) // who would write must not go on
	}
	return err
}

// readOn runs do and gives the connection back, also when do panics: a defect of
// whoever reads must not cost the others a connection.
func readOn(c *sql.Conn, do func(q querier) error) (err error) {
	defer func() { err = errors.Join(err, c.Close()) }()
	return do(c)
}

// prepared runs a query of which there are few, and that comes again and again. It
// scans every row.
func (l *Log) prepared(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	if l.db == nil {
		return reading{l.conn}.each(ctx, text, args, scan)
	}
	s, err := l.reads.stmt(ctx, l.db, text)
	if err != nil {
		return l.unread(err)
	}
	rows, err := s.QueryContext(ctx, args...)
	return l.unread(scanAll(rows, err, scan))
}

// reads are statements that each connection for reading keeps.
type reads struct {
	mu    sync.Mutex
	stmts map[string]*sql.Stmt
}

func (r *reads) stmt(ctx context.Context, db *sql.DB, text string) (*sql.Stmt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.stmts[text]; ok {
		return s, nil
	}
	if r.stmts == nil {
		r.stmts = map[string]*sql.Stmt{}
	}
	s, err := db.PrepareContext(ctx, text) //nolint:sqlclosecheck // close does
	if err != nil {
		return nil, fmt.Errorf("preparing %q: %w", text, err)
	}
	r.stmts[text] = s
	return s, nil
}

func (r *reads) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, s := range r.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// writable returns why nothing can be written, nil when it can. Callers hold mu.
func (l *Log) writable() error {
	switch {
	case l.conn == nil || errors.Is(l.failed, errClosed):
		return errClosed
	case l.failed != nil:
		return fmt.Errorf("%w: %w", ErrStopped, l.failed)
	}
	return nil
}

// write runs do inside a transaction of the one connection that writes. When do
// or the commit fails nothing has happened: the transaction is undone. Should
// that fail too the log is in doubt, and refuses to write until it is opened
// anew.
func (l *Log) write(ctx context.Context, do func(ctx context.Context) error) error {
	return l.writeThen(ctx, do, func() {})
}

// writeThen is write, with what is done after the commit and before the next
// transaction.
func (l *Log) writeThen(ctx context.Context, do func(ctx context.Context) error, then func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(l.writable(), ctx.Err()); err != nil {
		return err
	}
	// A transaction is short; ending it half-way when ctx ends would only cost
	// the connection.
	ctx = context.WithoutCancel(ctx)
	begin, commit := "BEGIN IMMEDIATE", "COMMIT"
	if l.opt.DryRun {
		begin, commit = "SAVEPOINT step", "RELEASE step"
	}
	if _, err := l.conn.ExecContext(ctx, begin); err != nil {
		return l.explain(err)
	}
	committed := false
	l.walking = 0
	defer func() { // also when do panics
		if !committed {
			l.undo(ctx)
		}
	}()
	before, err := l.changes(ctx)
	if err != nil {
		return l.explain(err)
	}
	if err := do(ctx); err != nil {
		return l.explain(err)
	}
	after, err := l.changes(ctx)
	changed := after != before
	if err == nil && changed {
		err = l.exec(ctx, "UPDATE log SET commits = commits + 1")
	}
	if err != nil {
		return l.explain(err)
	}
	if _, err := l.conn.ExecContext(ctx, commit); err != nil {
		return l.explain(err)
	}
	committed = true
	then()
	if !changed {
		return nil
	}
	if l.idle != nil {
		l.idle.Reset(sqlite.IdleTime)
	}
	if err := errors.Join(l.present(), l.committed()); err != nil {
		l.failed = err
		return fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return nil
}

// changes counts the rows that were ever changed on the connection.
func (l *Log) changes(ctx context.Context) (n int64, err error) {
	s, err := l.stmt(ctx, "SELECT total_changes()")
	if err == nil {
		err = s.QueryRowContext(ctx).Scan(&n)
	}
	return n, err
}

// undo ends a transaction that failed. SQLite may have undone it by itself, as
// it does when the disk is full; in a dry run that undoes all, and what followed
// would be written for good.
func (l *Log) undo(ctx context.Context) {
	delete(l.walks, l.walking) // what it holds is not what is stored
	l.ahead.drop(l.walking)
	text := "ROLLBACK"
	if l.opt.DryRun {
		text = "ROLLBACK TO step; RELEASE step"
	}
	if _, err := l.conn.ExecContext(ctx, text); err != nil && (l.opt.DryRun || !sqlite.NoTransaction(err)) {
		l.failed = fmt.Errorf("a transaction could not be undone: %w", err)
	}
}

// explain turns what the driver says into what a caller decides by. When the disk
// fails, or the database is damaged, it is not known what it holds: the log stops.
func (l *Log) explain(err error) error {
	err = sqlite.Explain(l.path, err)
	switch {
	case errors.Is(err, ErrFull):
		return fmt.Errorf("%w: free some, nothing was lost", err)
	case errors.Is(err, sqlite.ErrDisk), errors.Is(err, sqlite.ErrDamaged):
		if l.failed == nil {
			l.failed = err
		}
		return fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return err
}

// stmt returns the statement prepared on the writer's connection. Callers hold
// mu.
func (l *Log) stmt(ctx context.Context, text string) (*sql.Stmt, error) {
	if s, ok := l.stmts[text]; ok {
		return s, nil
	}
	s, err := l.conn.PrepareContext(ctx, text)
	if err != nil {
		return nil, fmt.Errorf("preparing %q: %w", text, err)
	}
	l.stmts[text] = s
	return s, nil
}

func (l *Log) exec(ctx context.Context, text string, args ...any) error {
	s, err := l.stmt(ctx, text)
	if err != nil {
		return err
	}
	_, err = s.ExecContext(ctx, args...)
	return err
}

// Changed returns a channel that is closed when the next event is appended by
// this process.
func (l *Log) Changed() <-chan struct{} {
	l.signal.Lock()
	defer l.signal.Unlock()
	return l.changed
}

func (l *Log) announce() {
	l.signal.Lock()
	defer l.signal.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

func newUUID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
