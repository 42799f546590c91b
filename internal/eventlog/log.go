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
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/pmh-bridge/bridge/event"
)

// FileName is the name of the log's database in the data folder.
const FileName = "log.db"

// ErrFull: the disk is full. Nothing was written; reading goes on.
var ErrFull = errors.New("no space left for the log")

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
	// clock that never jumps. Nil is the system's.
	Clock func() (wall time.Time, running time.Duration)
	// Holder describes this process to whoever finds the log locked.
	Holder string
}

// Log is an open event log. Its methods may be called from any goroutine; one
// of them writes at a time.
type Log struct {
	folder  string
	scratch string // of a dry run where there is no log yet
	opt     Options
	lock    *lockFile
	start   struct {
		wall    time.Time
		running time.Duration
	}

	db     *sql.DB   // read-only connections; nil in a dry run
	reads  reads     // on db
	writer *sql.DB   // nil when opened for reading
	conn   *sql.Conn // the one connection that writes

	mu     sync.Mutex               // held while writing; guards what follows
	walks  map[event.SourceID]*walk // as stored, or as a batch under way has made them
	stmts  map[string]*sql.Stmt     // prepared on conn
	raws   map[string]rawStmt       // prepared on conn, past database/sql
	failed error                    // why nothing can be written any more
	// services are the documents that submissions came from.
	services map[servedBy]int64

	schedules schedules

	signal  sync.Mutex    // guards changed
	changed chan struct{} // closed and replaced by every commit that appended
}

//go:embed migrations/*.sql
var migrations embed.FS

// Open opens the log in the data folder, which it makes when it is missing
// (unless ReadOnly). A log that another process writes is an error of type
// *LockedError.
func Open(ctx context.Context, folder string, opt Options) (*Log, error) {
	if opt.Clock == nil {
		epoch := time.Now()
		opt.Clock = func() (time.Time, time.Duration) {
			now := time.Now()
			return now.Round(0), now.Sub(epoch)
		}
	}
	l := &Log{folder: folder, opt: opt, walks: map[event.SourceID]*walk{}, stmts: map[string]*sql.Stmt{}, raws: map[string]rawStmt{},
		services: map[servedBy]int64{}, changed: make(chan struct{})}
	l.start.wall, l.start.running = opt.Clock()
	if err := l.open(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Log) open(ctx context.Context) error {
	path := filepath.Join(l.folder, FileName)
	if l.opt.ReadOnly {
		if _, err := os.Stat(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s holds no log: give the data folder of a bridge with --data, or harvest something first: %w", l.folder, err)
			}
			return err
		}
		return l.openReaders(ctx, path)
	}
	_, err := os.Stat(path)
	if l.opt.DryRun && errors.Is(err, fs.ErrNotExist) {
		if l.scratch, err = os.MkdirTemp("", "bridge-dry-run-"); err != nil {
			return fmt.Errorf("dry run: %w", err)
		}
		path = filepath.Join(l.scratch, FileName)
	} else {
		if err := os.MkdirAll(l.folder, 0o755); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
		lock, err := takeLock(l.folder, l.opt.Holder)
		if err != nil {
			return err
		}
		l.lock = lock
	}
	if err := l.openWriter(ctx, path); err != nil || l.opt.DryRun {
		return err // a dry run reads on the connection that writes
	}
	return l.openReaders(ctx, path)
}

// openWriter opens the one connection that writes. A cache takes twice the memory
// that is asked for, because the driver's pieces of memory are powers of two and
// a page with its header is a little more than one. Larger ones were no faster:
// batches write in the order of the keys, and the system has a cache too.
func (l *Log) openWriter(ctx context.Context, path string) error {
	var err error
	l.writer, err = sql.Open("sqlite", dsn(path, "rwc",
		"journal_mode(wal)", "synchronous(full)", "cache_size(-16384)", "wal_autocheckpoint(10000)",
		"busy_timeout(10000)", "foreign_keys(0)", "temp_store(memory)"))
	if err != nil {
		return err
	}
	l.writer.SetMaxOpenConns(1)
	if l.conn, err = l.writer.Conn(ctx); err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	if l.opt.DryRun {
		if _, err := l.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			return err
		}
	}
	return l.migrate(ctx, path)
}

func (l *Log) openReaders(ctx context.Context, path string) error {
	var err error
	l.db, err = sql.Open("sqlite", dsn(path, "rw", "query_only(1)", "cache_size(-2048)", "busy_timeout(10000)"))
	if err != nil {
		return err
	}
	l.db.SetMaxOpenConns(4)
	l.db.SetMaxIdleConns(4)
	var version int
	if err := l.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return checkVersion(path, version, l.opt.ReadOnly)
}

func dsn(path, mode string, pragmas ...string) string {
	q := url.Values{"mode": {mode}}
	for _, p := range pragmas {
		q.Add("_pragma", p)
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// schemaVersion is the number of the last migration.
const schemaVersion = 1

func checkVersion(path string, version int, exact bool) error {
	switch {
	case version > schemaVersion:
		return fmt.Errorf("%s was written by a newer bridge (format %d, this one knows %d): use that one", path, version, schemaVersion)
	case exact && version < schemaVersion:
		return fmt.Errorf("%s was written by an older bridge (format %d, this one wants %d): run serve or harvest once, which brings it up to date", path, version, schemaVersion)
	}
	return nil
}

func (l *Log) migrate(ctx context.Context, path string) error {
	var version int
	if err := l.conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if err := checkVersion(path, version, false); err != nil {
		return err
	}
	for ; version < schemaVersion; version++ {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/%d.sql", version+1))
		if err != nil {
			return err
		}
		step := fmt.Sprintf("%s\nPRAGMA user_version = %d", text, version+1)
		if !l.opt.DryRun {
			step = "BEGIN IMMEDIATE;\n" + step + ";\nCOMMIT"
		}
		if _, err := l.conn.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("bringing %s to format %d: %w", path, version+1, explain(err)) // closing undoes it
		}
	}
	return nil
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
			if _, err := l.conn.ExecContext(context.Background(), "ROLLBACK"); !noTransaction(err) {
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
	if l.lock != nil {
		errs = append(errs, l.lock.release())
	}
	if l.scratch != "" {
		errs = append(errs, os.RemoveAll(l.scratch))
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
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close())
}

// prepared runs a query of which there are few, and that comes again and again. It
// scans every row.
func (l *Log) prepared(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	if l.db == nil {
		return reading{l.conn}.each(ctx, text, args, scan)
	}
	s, err := l.reads.stmt(ctx, l.db, text)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	return scanAll(rows, err, scan)
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
		return explain(err)
	}
	committed := false
	defer func() { // also when do panics
		if !committed {
			l.undo(ctx)
		}
	}()
	if err := do(ctx); err != nil {
		return explain(err)
	}
	if _, err := l.conn.ExecContext(ctx, commit); err != nil {
		return explain(err)
	}
	committed = true
	then()
	return nil
}

// undo ends a transaction that failed. SQLite may have undone it by itself, as
// it does when the disk is full; in a dry run that undoes all, and what followed
// would be written for good.
func (l *Log) undo(ctx context.Context) {
	clear(l.walks) // what they hold is not what is stored
	text := "ROLLBACK"
	if l.opt.DryRun {
		text = "ROLLBACK TO step; RELEASE step"
	}
	if _, err := l.conn.ExecContext(ctx, text); err != nil && (l.opt.DryRun || !noTransaction(err)) {
		l.failed = fmt.Errorf("a transaction could not be undone: %w", err)
	}
}

// noTransaction: there was none to undo.
func noTransaction(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code() == sqlite3.SQLITE_ERROR
}

// explain turns what the driver says into what a caller decides by.
func explain(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL {
		return fmt.Errorf("%w: free some, nothing was lost: %w", ErrFull, err)
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

// now returns the clock's time, or ErrClock when it has run ahead of the clock
// that never jumps by more than a day since the log was opened (I3).
func (l *Log) now() (event.Micros, error) {
	wall, running := l.opt.Clock()
	if ahead := wall.Sub(l.start.wall) - (running - l.start.running); ahead > 24*time.Hour && !l.opt.AcceptClock {
		return 0, fmt.Errorf("%w (it says %s)", event.ErrClock, wall.UTC().Format(time.RFC3339))
	}
	return event.MicrosOf(wall), nil
}

func newUUID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
