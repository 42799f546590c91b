package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
)

var testKind = &Kind{Name: "test", ID: 0x7465, Migrations: fstest.MapFS{"1.sql": {Data: []byte(`
CREATE TABLE item (caller INTEGER NOT NULL, n INTEGER NOT NULL, fill BLOB, PRIMARY KEY (caller, n)) STRICT;
CREATE TABLE anchor (id INTEGER PRIMARY KEY) STRICT;
-- A row here without an anchor fails the COMMIT.
CREATE TABLE boat (anchor INTEGER REFERENCES anchor (id) DEFERRABLE INITIALLY DEFERRED) STRICT;`)}}}

// made is a new database with its Writer, readers beside it, and a count of the
// COMMITs that have changed something.
type made struct {
	*Writer
	readers *Readers
	commits atomic.Int64
}

func newWriter(t *testing.T, opt WriterOptions) *made {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	if err := testKind.Create(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	m := new(made)
	opt.Pragmas = []string{"foreign_keys(1)"}
	after := opt.AfterCommit
	opt.AfterCommit = func(ctx context.Context, tx *Tx) error {
		m.commits.Add(1)
		if after != nil {
			return after(ctx, tx)
		}
		return nil
	}
	var err error
	if m.Writer, err = testKind.OpenWriter(t.Context(), path, opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // again, where the test has done it: that is allowed
		if err := errors.Join(m.Close(), m.readers.Close()); err != nil {
			t.Error(err)
		}
	})
	if m.readers, err = testKind.OpenReaders(t.Context(), path, 2); err != nil {
		t.Fatal(err)
	}
	return m
}

// items returns what is durable, as "caller/n".
func (m *made) items(t *testing.T) (out []string) {
	t.Helper()
	err := m.readers.Each(context.Background(), "SELECT caller || '/' || n FROM item ORDER BY caller, n", nil, func(rows *sql.Rows) error {
		var s string
		err := rows.Scan(&s)
		out = append(out, s)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return out
}

func (m *made) want(t *testing.T, items ...string) {
	t.Helper()
	if got := m.items(t); !slices.Equal(got, items) {
		t.Errorf("stored is %v, want %v", got, items)
	}
}

func insert(ctx context.Context, tx *Tx, caller, n int) error {
	return tx.Exec(ctx, "INSERT INTO item (caller, n) VALUES ($1, $2)", caller, n)
}

var errWork = errors.New("the work failed")

// insertOne is work that stores one item.
func insertOne(caller int) func(context.Context, *Tx) error {
	return func(ctx context.Context, tx *Tx) error { return insert(ctx, tx, caller, 0) }
}

// The law: whatever becomes of the others, a caller that gets nil has all of its
// items stored, at once and for good, and one that gets an error has none. The model
// is the set of the items of those that got nil.
func TestWriterLaw(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range 30 {
		m := newWriter(t, WriterOptions{})
		var mu sync.Mutex
		var model []string
		var callers sync.WaitGroup
		const perRound = 24
		for caller := range perRound {
			r := rand.New(rand.NewPCG(seed, uint64(round*perRound+caller)))
			callers.Go(func() {
				fate, rows := r.IntN(10), 1+r.IntN(3)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if fate == 0 {
					go cancel() // before it has its turn, or after
				}
				var ran, committed, undone int
				err := errors.New("it panicked")
				do := m.Do
				if r.IntN(4) == 0 {
					do = m.DoFirst
				}
				func() {
					defer func() { _ = recover() }()
					err = do(ctx, func(ctx context.Context, tx *Tx) error {
						ran++
						tx.OnCommit(func() { committed++ })
						tx.OnUndo(func() { undone++ })
						for n := range rows {
							if err := insert(ctx, tx, caller, n); err != nil {
								return err
							}
						}
						runtime.Gosched() // let others come and wait
						switch fate {
						case 1, 2:
							return errWork
						case 3:
							panic("a defect")
						case 4:
							return insert(ctx, tx, caller, 0) // it is there
						case 5:
							if round%5 == 0 {
								return tx.Exec(ctx, "INSERT INTO boat VALUES (7)") // no COMMIT
							}
						}
						return nil
					})
				}()
				stored := m.items(t)
				for n := range rows {
					item := fmt.Sprintf("%d/%d", caller, n)
					if has := slices.Contains(stored, item); has != (err == nil) {
						t.Errorf("round %d, caller %d got %v, and its item %d is stored: %v", round, caller, err, n, has)
					}
					if err == nil {
						mu.Lock()
						model = append(model, item)
						mu.Unlock()
					}
				}
				if fate >= 1 && fate <= 4 && err == nil {
					t.Errorf("caller %d failed, and got nil", caller)
				}
				if round%5 != 0 && fate >= 6 && err != nil {
					t.Errorf("caller %d got %v from others", caller, err)
				}
				if err == nil && (ran != 1 || committed != 1 || undone != 0) || err != nil && (ran > 1 || committed != 0 || undone != ran) {
					t.Errorf("caller %d got %v: its work ran %d times, %d were committed and %d undone", caller, err, ran, committed, undone)
				}
			})
		}
		callers.Wait()
		if err := m.Do(context.Background(), insertOne(1000)); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		got := m.items(t)
		model = append(model, "1000/0")
		slices.Sort(got)
		slices.Sort(model)
		if !slices.Equal(got, model) {
			t.Errorf("round %d: stored is %v, acknowledged was %v", round, got, model)
		}
		if m.group != nil {
			t.Error("a group is left")
		}
	}
}

// together runs the calls so that the first has the turn when all others wait for
// theirs, in their order, and returns what they got.
func together(m *made, calls ...func(context.Context, *Tx) error) []error {
	errs := make([]error, len(calls))
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i, work := range calls {
		wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					errs[i] = fmt.Errorf("panicked: %v", r)
				}
			}()
			errs[i] = m.Do(context.Background(), func(ctx context.Context, tx *Tx) error {
				if i == 0 {
					<-begin
				}
				return work(ctx, tx)
			})
		})
		synctest.Wait()
	}
	close(begin)
	wg.Wait()
	return errs
}

// What several callers at once get, and what is stored then.
func TestWriterGroup(t *testing.T) {
	failed := func(ctx context.Context, tx *Tx) error { return errors.Join(insert(ctx, tx, 50, 0), errWork) }
	panicked := func(ctx context.Context, tx *Tx) error {
		if err := insert(ctx, tx, 51, 0); err != nil {
			return err
		}
		panic("a defect")
	}
	uncommittable := func(ctx context.Context, tx *Tx) error {
		return errors.Join(insert(ctx, tx, 52, 0), tx.Exec(ctx, "INSERT INTO boat VALUES (7)"))
	}
	// SQLite undoes the whole transaction, not the one statement.
	full := func(ctx context.Context, tx *Tx) error {
		return tx.Exec(ctx, "INSERT INTO item (caller, n, fill) VALUES (53, 0, zeroblob(4 << 20))")
	}
	works := []func(context.Context, *Tx) error{insertOne(0), insertOne(1), insertOne(2), insertOne(3)}
	at := func(i int, work func(context.Context, *Tx) error) []func(context.Context, *Tx) error {
		return slices.Insert(slices.Clone(works), i, work)
	}
	for _, c := range []struct {
		name    string
		calls   []func(context.Context, *Tx) error
		limited bool
		want    string // "+" for each that gets nil
		stored  string
		commits int64
	}{
		{"all share one commit", works, false, "++++", "0/0 1/0 2/0 3/0", 1},
		{"the first fails", at(0, failed), false, "-++++", "0/0 1/0 2/0 3/0", 1},
		{"one fails", at(2, failed), false, "++-++", "0/0 1/0 2/0 3/0", 1},
		{"the last fails", at(4, failed), false, "++++-", "0/0 1/0 2/0 3/0", 1},
		{"the first panics", at(0, panicked), false, "-++++", "0/0 1/0 2/0 3/0", 1},
		{"one panics", at(2, panicked), false, "++-++", "0/0 1/0 2/0 3/0", 1},
		{"the last panics", at(4, panicked), false, "++++-", "0/0 1/0 2/0 3/0", 1},
		{"the commit fails", at(1, uncommittable), false, "-----", "", 0},
		{"the disk is full for the first", at(0, full), true, "-++++", "0/0 1/0 2/0 3/0", 1},
		{"the disk is full for one", at(2, full), true, "---++", "2/0 3/0", 1},
		{"the disk is full for the last", at(4, full), true, "-----", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newWriter(t, WriterOptions{})
				if c.limited {
					if err := m.Use(t.Context(), func(ctx context.Context, tx *Tx) error {
						var pages int
						return tx.QueryRowContext(ctx, "PRAGMA max_page_count = 20").Scan(&pages)
					}); err != nil {
						t.Fatal(err)
					}
				}
				errs := together(m, c.calls...)
				var got strings.Builder
				for _, err := range errs {
					switch {
					case err == nil:
						got.WriteString("+")
					case c.limited && !errors.Is(err, ErrFull):
						t.Errorf("on a full disk: %v", err)
						fallthrough
					default:
						got.WriteString("-")
					}
				}
				if got.String() != c.want {
					t.Errorf("the callers got %s (%v), want %s", got.String(), errs, c.want)
				}
				m.want(t, strings.Fields(c.stored)...)
				if n := m.commits.Load(); n != c.commits {
					t.Errorf("%d commits, want %d", n, c.commits)
				}
				if err := m.Do(t.Context(), insertOne(60)); err != nil {
					t.Errorf("afterwards: %v", err)
				}
				m.want(t, append(strings.Fields(c.stored), "60/0")...)
			})
		})
	}
}

// A caller that gives up while it waits has done nothing, and leaves nobody behind
// who relied on it to commit. One whose context ends later is not interrupted.
func TestWriterCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newWriter(t, WriterOptions{})
		waiting, cancel := context.WithCancel(t.Context())
		first, begin := make(chan error), make(chan struct{})
		go func() {
			ctx, cancel := context.WithCancel(t.Context())
			first <- m.Do(ctx, func(ctx context.Context, tx *Tx) error {
				<-begin
				cancel()
				return errors.Join(ctx.Err(), insert(ctx, tx, 1, 0))
			})
		}()
		synctest.Wait()
		second := make(chan error)
		go func() { second <- m.Do(waiting, insertOne(2)) }()
		synctest.Wait()
		cancel()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("the one that waited: %v", err)
		}
		close(begin)
		if err := <-first; err != nil {
			t.Errorf("the one that had begun: %v", err)
		}
		m.want(t, "1/0")
		if err := m.Do(waiting, insertOne(3)); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled from the start: %v", err)
		}
		m.want(t, "1/0")
	})
}

// A goroutine that ends inside its work, as a test does that fails, is a caller that
// failed.
func TestWriterGoexit(t *testing.T) {
	m := newWriter(t, WriterOptions{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			if err := insert(ctx, tx, 1, 0); err != nil {
				t.Error(err)
			}
			runtime.Goexit()
			return nil
		})
	}()
	<-done
	if err := m.Do(t.Context(), insertOne(2)); err != nil {
		t.Error(err)
	}
	m.want(t, "2/0")
}

// Use reads what is committed, and commits first what waits for others.
func TestWriterUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newWriter(t, WriterOptions{})
		begin, done := make(chan struct{}), make(chan error, 2)
		go func() {
			done <- m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
				<-begin
				return insert(ctx, tx, 1, 0)
			})
		}()
		synctest.Wait()
		go func() {
			done <- m.Use(t.Context(), func(ctx context.Context, tx *Tx) error {
				m.want(t, "1/0") // as another connection sees it
				return nil
			})
		}()
		synctest.Wait()
		close(begin)
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
}

// The connection is gone for a reason of its own: the next caller has a new one.
func TestWriterLosesConnection(t *testing.T) {
	m := newWriter(t, WriterOptions{})
	if err := errors.Join(m.Do(t.Context(), insertOne(1)), m.conn.Close()); err != nil {
		t.Fatal(err)
	}
	if err := m.Do(t.Context(), insertOne(2)); err == nil {
		t.Error("stored without a connection")
	}
	if err := m.Do(t.Context(), insertOne(3)); err != nil {
		t.Error(err)
	}
	m.want(t, "1/0", "3/0")
}

// A dry run sees what it has written, loses what failed, and leaves nothing.
func TestWriterDryRun(t *testing.T) {
	m := newWriter(t, WriterOptions{DryRun: true})
	if err := m.Do(t.Context(), insertOne(1)); err != nil {
		t.Error(err)
	}
	if err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error { return errors.Join(insert(ctx, tx, 2, 0), errWork) }); !errors.Is(err, errWork) {
		t.Error(err)
	}
	if err := m.Do(t.Context(), insertOne(3)); err != nil {
		t.Error(err)
	}
	var n int
	if err := m.Uncommitted().QueryRowContext(t.Context(), "SELECT group_concat(caller, '') FROM item").Scan(&n); err != nil || n != 13 {
		t.Errorf("the run has %d, %v; want 13", n, err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	m.want(t)
	if err := m.Do(t.Context(), insertOne(4)); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// What runs around a commit: nothing is committed when it is refused, and what fails
// after it is told to the callers, although they are stored.
func TestWriterHooks(t *testing.T) {
	var failing atomic.Value // the hook that fails
	failing.Store("")
	hook := func(name string) error {
		if failing.Load() == name {
			return errWork
		}
		return nil
	}
	m := newWriter(t, WriterOptions{
		Refuse: func() error { return hook("refuse") },
		BeforeCommit: func(ctx context.Context, tx *Tx) error {
			return errors.Join(hook("before"), tx.Exec(ctx, "INSERT INTO anchor DEFAULT VALUES"))
		},
		AfterCommit: func(context.Context, *Tx) error { return hook("after") },
	})
	do := func(caller int, fails string) {
		t.Helper()
		err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			failing.Store(fails)
			return insert(ctx, tx, caller, 0)
		})
		failing.Store("")
		if errors.Is(err, errWork) != (fails != "") {
			t.Errorf("%q fails: %v", fails, err)
		}
	}
	do(1, "")
	if err := m.Do(t.Context(), func(context.Context, *Tx) error { return nil }); err != nil {
		t.Errorf("nothing to change: %v", err)
	}
	do(2, "before")
	do(3, "refuse")
	do(4, "after")
	m.want(t, "1/0", "4/0")
	var anchors int
	if err := m.readers.QueryRowContext(t.Context(), "SELECT count(*) FROM anchor").Scan(&anchors); err != nil || anchors != 2 || m.commits.Load() != 2 {
		t.Errorf("%d hooks before, %d after a commit, %v; want 2 of each", anchors, m.commits.Load(), err)
	}
}

// A transaction is awaited by those who wait for their turn, and by those who have done
// their work and wait for the COMMIT.
func TestWriterAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newWriter(t, WriterOptions{})
		var got []bool
		ask := func(caller int) func(context.Context, *Tx) error {
			return func(ctx context.Context, tx *Tx) error {
				got = append(got, tx.Awaited())
				return insert(ctx, tx, caller, 0)
			}
		}
		if err := errors.Join(m.Do(t.Context(), ask(0)), errors.Join(together(m, ask(1), ask(2))...)); err != nil {
			t.Fatal(err)
		}
		if want := []bool{false, true, true}; !slices.Equal(got, want) {
			t.Errorf("alone, with one that waits, with one that is done: %v, want %v", got, want)
		}
	})
}

// DoFirst has what others have done committed before its work begins. What becomes of
// either is nothing to the other.
func TestWriterDoFirst(t *testing.T) {
	for name, end := range map[string]error{"done": nil, "failed": errWork} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newWriter(t, WriterOptions{})
				var before, after error
				begin := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() {
					before = m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
						<-begin
						return insert(ctx, tx, 0, 0)
					})
				})
				synctest.Wait()
				wg.Go(func() {
					after = m.DoFirst(t.Context(), func(ctx context.Context, tx *Tx) error {
						m.want(t, "0/0")
						return errors.Join(insert(ctx, tx, 1, 0), end)
					})
				})
				synctest.Wait()
				close(begin)
				wg.Wait()
				if before != nil || !errors.Is(after, end) {
					t.Errorf("before: %v, then: %v", before, after)
				}
				want := []string{"0/0", "1/0"}
				if end != nil {
					want = want[:1]
				}
				m.want(t, want...)
			})
		})
	}
}
