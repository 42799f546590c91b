// Package eventlog is the append-only log of events in SQLite, with the state of
// harvests.
//
// Only Append changes the log. An observation passes these functions:
//
//   - [Log.Append] begins a transaction, which others can join with [Log.Do], and calls
//     [Tx.Append] (tx.go).
//   - batch.run (append.go) loads the stored state of the records, and calls for each
//     observation
//   - decider.decide (decide.go), which decides whether it is an event. It is pure.
//   - batch.appendEvent (append.go) gives the event its place in the log, and in a
//     segment. batch.save writes the events, the state that they change, and the cursor
//     of the walk, if the stored cursor is the one that the batch names.
//
// All other methods that write change harvest state alone, and never add, change or
// remove an event, except RemoveSet, which removes a set with all of its events
// (remove.go). Package publish reads the events with [Log.Events], a range of one set at
// a time.
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
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// FileName is the name of the log's database in the data folder, unless it is on a server.
const FileName = "log.db"

// ErrFull: the disk is full. Nothing was written; reading goes on.
var ErrFull = database.ErrFull

// ErrStopped: a failure has left the state of the database unknown. The log writes
// nothing any more and has to be opened anew.
var ErrStopped = errors.New("the log has stopped writing after a failure, and has to be opened anew")

// Options are how a log is opened. The zero value opens it for reading and
// writing with the system's clock.
type Options struct {
	// ReadOnly opens an existing log beside the process that writes it. It takes no
	// lock.
	ReadOnly bool
	// Beside opens a log on a server for reading beside the node that writes it, in a data
	// folder of this node's own, which is made if it is missing, and locked. See Follow and
	// TakeOver.
	Beside bool
	// DryRun makes everything happen in one transaction that Close undoes. Where
	// there is no log yet none is made.
	DryRun bool
	// AcceptClock confirms a clock that jumped ahead (I3).
	AcceptClock bool
	// URL of the PostgreSQL server that has the log, or is to have it; "" is where log.url in
	// the data folder says, or log.db in it.
	URL string
	// Clock returns the wall clock and the time since some fixed moment by a
	// clock that never jumps, nor stops while the machine is suspended. Nil is the
	// system's.
	Clock func() (wall time.Time, running time.Duration)
	// Committed, if not nil, is called with the duration of each COMMIT of a change.
	Committed func(took time.Duration)
	// Holder describes this process to others that find the log locked.
	Holder string
	// Restored is the time of the backup that was just restored into the folder; the log
	// then begins a new epoch. The zero time is no backup.
	Restored time.Time
	// Moved: the log was just moved into the folder, and nobody has written it anywhere
	// else since. So it is complete, although it has no head.
	Moved bool
	// CopyingTo is the absolute path of the data folder into which the log is being copied. A
	// log that was moved there is opened all the same. One that has lost its end is an
	// ErrLost, and begins no new epoch.
	CopyingTo string
}

// Log is an open event log. Its methods may be called from any goroutine; one
// of them writes at a time.
type Log struct {
	folder  string
	scratch string // of a dry run where there is no log yet
	path    string // of the database
	owned   string // its identity on a server, "" for a file
	opt     Options
	lock    *lockFile
	file    os.FileInfo // of the database when it was opened
	loss    *Loss       // found when it was opened

	readers *database.Readers // nil in a dry run
	writer  *database.Writer  // nil when opened for reading
	dry     *sql.Conn         // of a dry run: the connection that writes, which reads too

	// The next fields belong to the holder of the writer's turn.
	walks    map[event.SourceID]*walk // as stored, or as a batch under way has made them
	filters  map[int64]*keyFilter     // by set, of the writer's goroutine
	services map[servedBy]int64       // the documents that submissions came from
	appended bool                     // the transaction under way has events
	late     lateKeys                 // of the transaction under way
	// lastInput is the largest number that a bad input has, or has had since the log was opened:
	// who has noted the number of one that was discarded must not meet another one.
	lastInput int64
	newKeys   recentRows // recent_key
	newLocs   recentRows // recent_loc

	mu     sync.Mutex // guards what follows
	guard  clockGuard // of the clock
	head   *headFile  // nil in a dry run, and when opened for reading
	failed error      // why nothing can be written any more

	beside beside // of the caller of Follow

	schedules schedules
	lastSets  atomic.Pointer[setsAt] // as Sets has read them last
	unsaved   unsavedCursors
	observing observing

	pages sync.Pool // of *rowPage, for Newest

	took    atomic.Pointer[func(time.Duration)] // Options.Committed, or that of ReportCommits
	signal  sync.Mutex                          // guards changed
	changed chan struct{}                       // closed and replaced by every commit that appended
}

//go:embed migrations/*.sql
var migrations embed.FS

// kind returns the kind of database that a log is ("brLg").
func kind() *database.Kind {
	steps, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the path is constant
	}
	return &database.Kind{Name: "log", ID: 0x62724c67, Migrations: steps, Rewrite: []string{
		"WHERE import_pending;", "WHERE import_pending <> 0;",
		"(t.import_pending)", "t.import_pending <> 0",
	}}
}

// Exists reports whether a data folder holds a log, or a file in its place. One that may not
// be searched is taken to hold one: whoever opens it says that it may not be read.
func Exists(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, FileName))
	return err == nil || errors.Is(err, fs.ErrPermission) || OnServer(folder)
}

// Open opens the log in the data folder. It makes both if they are missing, unless
// ReadOnly is set, but no new log where the folder has had one. The error is a
// *LockedError if another process writes the log. A log that has lost events since it was
// last written begins a new epoch: see Loss.
func Open(ctx context.Context, folder string, opt Options) (*Log, error) {
	if opt.Clock == nil {
		opt.Clock = systemClock
	}
	err := refuseMarked(folder, opt.ReadOnly, opt.CopyingTo)
	path := ""
	if err == nil {
		path, err = pathOf(folder, opt.URL)
	}
	if err != nil {
		return nil, err
	}
	l := newLog(folder, path, opt)
	if err := l.open(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func newLog(folder, path string, opt Options) *Log {
	l := &Log{pages: sync.Pool{New: func() any { return new(rowPage) }}, folder: folder, path: path, opt: opt, walks: map[event.SourceID]*walk{}, filters: map[int64]*keyFilter{}, services: map[servedBy]int64{},
		newKeys: recentRows{table: "recent_key", large: "record_key"}, newLocs: recentRows{table: "recent_loc", large: "loc"}, changed: make(chan struct{}),
		guard: clockGuard{clock: opt.Clock, accept: opt.AcceptClock}}
	if opt.Committed != nil {
		l.took.Store(&opt.Committed)
	}
	return l
}

func (l *Log) open(ctx context.Context) error {
	if l.opt.Beside {
		return l.openBeside(ctx)
	}
	if l.opt.ReadOnly {
		return l.openForReading(ctx)
	}
	if l.opt.DryRun {
		exists, err := kind().Find(ctx, l.path)
		if err != nil {
			return err
		}
		if !exists {
			if err := l.lost(); err != nil {
				return err
			}
			return l.openScratch(ctx)
		}
	}
	if err := l.openFolder(); err != nil {
		return err
	}
	err := l.openForWriting(ctx)
	if errors.Is(err, ErrFull) && l.useReserve() {
		err = l.closeDatabase()
		l.readers, l.writer = nil, nil
		if err == nil {
			err = l.openForWriting(ctx)
		}
	}
	if errors.Is(err, ErrFull) {
		where := "the data folder " + l.folder
		if database.OnServer(l.path) {
			where = database.Shown(l.path)
		}
		err = fmt.Errorf("%s cannot be opened for writing: free some space there first: %w", where, err)
	}
	return err
}

// openScratch opens a log for a dry run where there is none yet.
func (l *Log) openScratch(ctx context.Context) (err error) {
	if l.scratch, err = os.MkdirTemp("", "bridge-dry-run-"); err != nil {
		return fmt.Errorf("dry run: %w", err)
	}
	l.path = filepath.Join(l.scratch, FileName)
	if err := kind().Create(ctx, l.path); err != nil {
		return err
	}
	return l.openWriter(ctx)
}

// openFolder makes the data folder, which is for its owner alone, and locks it.
func (l *Log) openFolder() (err error) {
	if err := os.MkdirAll(l.folder, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	l.lock, err = takeLock(l.folder, l.opt.Holder)
	return err
}

func (l *Log) openForWriting(ctx context.Context) (err error) {
	found, err := kind().Look(ctx, l.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	if !found.Exists && l.opt.CopyingTo != "" {
		return database.Missing("%s holds no log", l.folder)
	}
	if !found.Exists && !l.opt.DryRun {
		if err := l.create(ctx, found); err != nil && !found.Exists {
			return err
		}
	}
	if err := l.recognize(found); err != nil {
		return err
	}
	h, place, headErr := readHead(l.folder)
	if err := l.openWriter(ctx); err != nil || l.opt.DryRun {
		return err // a dry run reads on the connection that writes
	}
	if !database.OnServer(l.path) {
		if l.file, err = os.Stat(l.path); err != nil {
			return err
		}
	}
	if err := l.openReaders(ctx, found); err != nil {
		return err
	}
	return l.openEpoch(ctx, h, place, headErr)
}

// create makes a new log, unless the folder has had one.
func (l *Log) create(ctx context.Context, where *database.Found) error {
	if err := l.lost(); err != nil {
		return err
	}
	// The folder comes first: else it would not know its own log after a crash.
	return where.Create(ctx, "", func(identity string) error {
		return enterFolder(l.folder, place{l.path, identity}, head{})
	})
}

// lost returns an error for a folder that has no log and has had one.
func (l *Log) lost() error {
	lost := FileName
	if database.OnServer(l.path) {
		lost = "the log in " + database.Shown(l.path)
	}
	for _, name := range []string{HeadName, FileName + "-wal", "content.db"} {
		switch _, err := os.Stat(filepath.Join(l.folder, name)); {
		case name == HeadName && begun(l.folder):
		case err == nil:
			return fmt.Errorf("%s has lost its log: %s is there, and %s is not: put %[3]s back from a backup; to start empty move the files of the folder away",
				l.folder, name, lost)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

// openEpoch compares the log with its head, and begins a new epoch if events were lost.
func (l *Log) openEpoch(ctx context.Context, h head, place int, headErr error) error {
	if err := l.look(ctx, h, headErr); err != nil {
		return err
	}
	if l.loss != nil && l.loss.Events() {
		if l.opt.CopyingTo != "" {
			return fmt.Errorf("%s: %w (%s)", l.folder, ErrLost, l.loss)
		}
		if err := l.beginEpoch(ctx, l.loss, h); err != nil {
			return err
		}
	}
	var now head
	if err := l.writer.Use(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
		if now, err = topOf(ctx, tx, 1<<62); err != nil {
			return err
		}
		var noted int64
		if err := tx.QueryRowContext(ctx, "SELECT last_event, (SELECT coalesce(max(id), 0) FROM quarantine) FROM log").Scan(&noted, &l.lastInput); err != nil {
			return err
		}
		if seqOf(noted) < now.Seq {
			return behind(seqOf(noted), now.Seq)
		}
		all, err := readEpochs(ctx, tx)
		if n := len(all); n > 0 && now.Seq <= all[n-1].After { // the copy that was put back may be put back again
			now.Seq, now.Hash = all[n-1].Upto, ""
		}
		return err
	}); err != nil {
		return err
	}
	now.Seen = max(h.Seen, now.Observed)
	head, err := openHead(l.folder, place, now)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.head = head
	l.mu.Unlock()
	l.keepReserve()
	return nil
}

// look finds out what the log has lost, and when it was in use last.
func (l *Log) look(ctx context.Context, h head, headErr error) error {
	return l.read(ctx, func(q database.Querier) (err error) {
		if l.loss, err = lossSince(ctx, q, h, headErr); err != nil {
			return err
		}
		switch {
		case l.loss == nil || !l.loss.Backup:
		case l.opt.Moved:
			l.loss = nil
		case !l.opt.Restored.IsZero():
			l.loss.Unknown = "it was restored from a backup of " + l.opt.Restored.UTC().Format(time.RFC3339)
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

func (l *Log) openForReading(ctx context.Context) (err error) {
	found, err := kind().Look(ctx, l.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	if found.Exists {
		err = l.recognize(found)
	} else if err = l.lost(); err == nil {
		err = database.Missing("%s holds no log: give the data folder of a bridge with --data, or harvest something first", l.folder)
	}
	if err != nil {
		return err
	}
	h, _, headErr := readHead(l.folder)
	if !database.OnServer(l.path) {
		if l.file, err = os.Stat(l.path); err != nil {
			return err
		}
	}
	if err := l.openReaders(ctx, found); err != nil {
		return err
	}
	return l.look(ctx, h, headErr)
}

// openWriter opens the one connection that writes. A cache takes half as much memory
// again as is asked for, because the driver allocates powers of two and a page with its
// header is a little more than one. Larger caches were no faster: batches write in the
// order of the keys, and the system has a cache too. A transaction of a large log changes
// more pages than any cache holds: a small cache is full from the first batches on.
func (l *Log) openWriter(ctx context.Context) error {
	w, err := kind().OpenWriter(ctx, l.path, database.WriterOptions{
		Pragmas: []string{"cache_size(-4096)", "foreign_keys(0)", "temp_store(memory)"},
		DryRun:  l.opt.DryRun, MovedTo: l.opt.CopyingTo,
		Refuse: l.writable, Committed: l.reportCommit,
		BeforeCommit: func(ctx context.Context, tx *database.Tx) error {
			if err := l.saveKeys(ctx, tx); err != nil {
				return err
			}
			return tx.Exec(ctx, "UPDATE log SET commits = commits + 1")
		},
		AfterCommit: l.committed,
		Failed:      func(err error) { _ = l.stopAt(err) },
		Reopen: func() error {
			if err := l.present(); err != nil {
				return fmt.Errorf("%w: %w", database.ErrDisk, err)
			}
			return nil
		},
		Idle: l.syncHead,
	})
	if err != nil {
		return err
	}
	if l.opt.DryRun {
		l.dry = w.Uncommitted()
	}
	l.mu.Lock() // the Writer's checkpoints run already, and call writable
	defer l.mu.Unlock()
	l.writer = w
	return nil
}

// ReportCommits has another function than Options.Committed called.
func (l *Log) ReportCommits(f func(took time.Duration)) { l.took.Store(&f) }

func (l *Log) reportCommit(took time.Duration) {
	if f := l.took.Load(); f != nil {
		(*f)(took)
	}
}

func (l *Log) openReaders(ctx context.Context, found *database.Found) (err error) {
	l.readers, err = found.Readers(ctx, 4, "cache_size(-2048)")
	return err
}

// errClosed: nothing can be written through this Log.
var errClosed = errors.New("the log is closed, or was opened for reading only")

// Close ends all connections and releases the lock. A dry run leaves nothing
// behind.
func (l *Log) Close() error {
	var errs []error
	if err := l.FlushSchedules(context.Background()); !errors.Is(err, errClosed) && !errors.Is(err, ErrStopped) {
		errs = append(errs, err)
	}
	errs = append(errs, l.closeDatabase())
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.failed, errClosed) {
		return nil
	}
	l.failed = errClosed
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
	if l.readers != nil {
		errs = append(errs, l.readers.Close())
	}
	if l.writer != nil {
		errs = append(errs, l.writer.Close())
	}
	return errors.Join(errs...)
}

// read runs do with a connection for reading; in a dry run it is the one that
// writes.
func (l *Log) read(ctx context.Context, do func(q database.Querier) error) error {
	if l.readers == nil {
		return do(l.dry)
	}
	return l.unread(l.readers.Read(ctx, do))
}

// Each runs a query on what is committed, and scans every row.
func (l *Log) Each(ctx context.Context, text string, args []any, scan func(*sql.Rows) error) error {
	if l.readers == nil {
		return reading{l.dry}.Each(ctx, text, args, scan)
	}
	return l.unread(l.readers.Each(ctx, text, args, scan))
}

// unread makes an error of reading an ErrStopped where a process that also writes must
// stop writing: when the disk fails, the database is damaged, another process writes it, or its
// folder has gone. A
// connection that cannot be opened for another reason is no such case, neither there nor in a
// process that reads beside it.
func (l *Log) unread(err error) error {
	writes := l.writer != nil
	if err == nil || !writes && !l.opt.Beside || errors.Is(err, ErrStopped) {
		return err
	}
	if writes && (errors.Is(err, database.ErrDisk) || errors.Is(err, database.ErrDamaged) || errors.Is(err, database.ErrInUse)) {
		return fmt.Errorf("%w: %w", ErrStopped, err)
	}
	if errors.Is(err, database.ErrCannotOpen) {
		if writes {
			if gone := l.present(); gone != nil {
				return fmt.Errorf("%w: %w: %w", ErrStopped, gone, err)
			}
		}
		if !errors.Is(err, event.ErrUnavailable) {
			return fmt.Errorf("%w: %w", event.ErrUnavailable, err)
		}
	}
	return err
}

// writable returns why nothing can be written, nil when it can.
func (l *Log) writable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.writer == nil || errors.Is(l.failed, errClosed):
		return errClosed
	case l.failed != nil && !errors.Is(l.failed, ErrStopped):
		return fmt.Errorf("%w: %w", ErrStopped, l.failed)
	}
	return l.failed
}

// write runs do inside a transaction, which others may share: see database.Writer. When do
// or the commit fails nothing has happened. When the disk fails, or the database is
// damaged, the state of the database is unknown: the log refuses to write until it is
// opened anew.
func (l *Log) write(ctx context.Context, do func(ctx context.Context, tx *database.Tx) error) error {
	if l.writer == nil {
		return errClosed
	}
	return l.explain(l.writer.Do(ctx, do))
}

// writeFirst is write for work that takes long, or changes many rows.
func (l *Log) writeFirst(ctx context.Context, do func(ctx context.Context, tx *database.Tx) error) error {
	if l.writer == nil {
		return errClosed
	}
	return l.explain(l.writer.DoFirst(ctx, do))
}

// use runs do on the connection that writes, after everything before is committed. do
// must not write. It may use the fields that belong to the holder of the writer's turn.
func (l *Log) use(ctx context.Context, do func(ctx context.Context, tx *database.Tx) error) error {
	if l.writer == nil {
		return errClosed
	}
	return l.explain(l.writer.Use(ctx, do))
}

// committed runs after each commit that has changed a row, before any caller returns.
func (l *Log) committed(ctx context.Context, tx *database.Tx) error {
	appended := l.appended
	l.appended = false
	err := l.present()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head != nil {
		if appended {
			l.head.advance(ctx, tx)
		}
		l.head.now.Commits++
		l.head.seen(&l.guard)
		err = errors.Join(err, l.head.write())
	}
	if err != nil {
		l.failed = err
		return fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return nil
}

// explain turns an error of the driver into one of those that callers test for.
func (l *Log) explain(err error) error {
	err = l.stopAt(err)
	switch {
	case errors.Is(err, database.ErrClosed):
		return errClosed
	case errors.Is(err, ErrFull):
		return fmt.Errorf("%w: free some, nothing was lost", err)
	}
	return err
}

// stopAt stops the log at an error that leaves the state of the database unknown.
func (l *Log) stopAt(err error) error {
	err = l.unread(database.Explain(l.path, err))
	if errors.Is(err, ErrStopped) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.failed == nil {
			l.failed = err
		}
	}
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
