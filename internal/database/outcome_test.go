//go:build unix

package database

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// fate is what becomes of a COMMIT and of its connection.
type fate int

const (
	arrives      fate = iota
	lostBefore        // the connection breaks, and the server never sees the COMMIT
	lostBehind        // the same, but the server does not notice that the connection is broken
	answerLost        // the server has executed it
	answerBehind      // the same, and the server does not notice
)

// proxy is the way to a server, which breaks where a test wants it.
type proxy struct {
	server  string
	next    atomic.Int64  // the fate of the next COMMIT
	fates   func() fate   // if not nil, says it instead
	closed  atomic.Bool   // nobody gets through
	at      chan struct{} // if not nil, gets a value when a connection breaks,
	resume  chan struct{} // and waits
	commits atomic.Int64  // that were seen
}

// through starts a proxy, and returns the URL that leads through it.
func (p *proxy) through(t *testing.T, path string) string {
	t.Helper()
	u, err := url.Parse(path)
	if err != nil {
		t.Fatal(err)
	}
	p.server = u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	ended := false
	keep := func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			c.Close()
		}
		open = append(open, c)
		return !ended
	}
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				if p.closed.Load() || !keep(client) {
					return
				}
				server, err := net.Dial("tcp", p.server)
				if err != nil || !keep(server) {
					return
				}
				p.relay(client, server, &running)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		ended = true
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return with(t, path, func(u *url.URL, q url.Values) {
		u.Host = l.Addr().String()
		q.Set("sslmode", "disable")
	})
}

// relay passes on what both sides say, until one ends, and closes the client's side. The
// server's it leaves open where the server is not to notice.
func (p *proxy) relay(client, server net.Conn, running *sync.WaitGroup) {
	var answers atomic.Bool // are the last to come, and go nowhere
	answered := make(chan struct{})
	running.Go(func() {
		defer close(answered)
		defer client.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := server.Read(b)
			if err != nil || answers.Load() {
				return
			}
			if _, err := client.Write(b[:n]); err != nil {
				return
			}
		}
	})
	in, kind := bufio.NewReader(client), 0 // the first message is without its kind
	for {
		head := make([]byte, kind+4)
		if _, err := io.ReadFull(in, head); err != nil {
			break
		}
		body := make([]byte, int(binary.BigEndian.Uint32(head[kind:]))-4)
		if _, err := io.ReadFull(in, body); err != nil {
			break
		}
		how := arrives
		if kind == 1 && head[0] == 'Q' && string(body) == "COMMIT\x00" {
			p.commits.Add(1)
			how = fate(p.next.Swap(int64(arrives)))
			if p.fates != nil {
				how = p.fates()
			}
		}
		kind = 1
		answers.Store(how != arrives)
		if how != lostBefore && how != lostBehind {
			if _, err := server.Write(append(head, body...)); err != nil {
				break
			}
		}
		if how == arrives {
			continue
		}
		if how == answerLost || how == answerBehind {
			<-answered
		}
		if p.at != nil {
			p.at <- struct{}{}
			<-p.resume
		}
		if how == lostBehind || how == answerBehind {
			client.Close()
			return
		}
		break
	}
	client.Close()
	server.Close()
}

// A caller learns what has become of its COMMIT, although the connection breaks during it.
func TestServerCommitOutcome(t *testing.T) {
	p := new(proxy)
	path := testenv.SharedPostgres(t).NewSchema(t)
	after := 0
	m := makeAt(t, testKind, path, p.through(t, path), WriterOptions{AfterCommit: func(context.Context, *Tx) error { after++; return nil }})
	var want []string
	caller, rounds := 1000, 0
	do := func(how fate) {
		t.Helper()
		caller++
		p.next.Store(int64(how))
		var committed, undone int
		before := after
		err := m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			tx.OnCommit(func() { committed++ })
			tx.OnUndo(func() { undone++ })
			return insert(ctx, tx, caller, 0)
		})
		stored := how != lostBefore && how != lostBehind
		if stored {
			want = append(want, fmt.Sprintf("%d/0", caller))
		}
		if (err == nil) != stored || (committed == 1) != stored || (undone == 0) != stored || (after == before+1) != stored {
			t.Errorf("fate %d: %v, committed %d, undone %d, after %d", how, err, committed, undone, after-before)
		}
		if err != nil && !errors.Is(err, ErrCannotOpen) {
			t.Errorf("fate %d: %v", how, err)
		}
		if p.next.Load() != int64(arrives) {
			t.Error("the proxy has seen no COMMIT")
		}
		rounds++
	}
	for range 2 {
		for _, how := range []fate{lostBefore, answerLost, arrives, answerLost, lostBefore, lostBehind, answerBehind, lostBehind, arrives, answerBehind} {
			do(how)
		}
	}
	m.want(t, want...)
	// Nothing was written: there is nothing to ask for.
	p.next.Store(int64(lostBefore))
	if err := m.Do(t.Context(), func(context.Context, *Tx) error { return nil }); !errors.Is(err, ErrCannotOpen) {
		t.Errorf("an empty COMMIT: %v", err)
	}
	do(arrives)
	if n := p.commits.Load(); int(n) != rounds+1 {
		t.Errorf("%d COMMITs, want %d", n, rounds+1)
	}
}

// A database whose creation has lost its connection is there, or not, and can be created then.
// Where somebody else has created it nothing is noted.
func TestServerCreateOutcome(t *testing.T) {
	p := new(proxy)
	for _, how := range []fate{arrives, lostBefore, answerLost} {
		path := testenv.SharedPostgres(t).NewSchema(t)
		first, err := testKind.Look(t.Context(), p.through(t, path))
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		second, err := testKind.Look(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		p.next.Store(int64(how))
		var noted string
		note := func(identity string) error {
			if found, err := testKind.Find(t.Context(), path); found || err != nil {
				t.Errorf("fate %d: it can be seen before it is noted: %v, %v", how, found, err)
			}
			noted = identity
			return nil
		}
		if err := first.Create(t.Context(), "", note); (err == nil) != (how == arrives) {
			t.Errorf("fate %d: %v", how, err)
		}
		stored := how != lostBefore
		if noted == "" || first.Exists != stored || stored && first.Identity != noted {
			t.Errorf("fate %d: found %t, %q, noted %q", how, first.Exists, first.Identity, noted)
		}
		noted = ""
		if err := second.Create(t.Context(), "", note); (err == nil) == stored || (noted == "") != stored || !second.Exists {
			t.Errorf("fate %d, by another: %v, noted %q, found %t", how, err, noted, second.Exists)
		}
	}
}

// The law holds whatever becomes of the COMMITs.
func TestServerCommitLaw(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	var calm atomic.Bool
	p := &proxy{fates: func() fate {
		mu.Lock()
		defer mu.Unlock()
		if calm.Load() {
			return arrives
		}
		return max(arrives, fate(r.IntN(10)-5))
	}}
	path := testenv.SharedPostgres(t).NewSchema(t)
	m := makeAt(t, testKind, path, p.through(t, path), WriterOptions{})
	l := new(law)
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() { l.calls(m, seed, caller, func(done int) bool { return done < 20 }) })
	}
	callers.Wait()
	calm.Store(true)
	l.check(t, m)
}

// law is what callers of a Writer were told.
type law struct {
	mu            sync.Mutex
	model         []string // of those that got nil
	told, refused int
}

// calls is a caller, again and again.
func (l *law) calls(m *made, seed uint64, caller int, more func(done int) bool) {
	r := rand.New(rand.NewPCG(seed, uint64(1+caller)))
	for n := 0; more(n); n++ {
		fate, do := r.IntN(10), m.Do
		if r.IntN(4) == 0 {
			do = m.DoFirst
		}
		err := do(context.Background(), func(ctx context.Context, tx *Tx) error {
			if err := errors.Join(insert(ctx, tx, caller, 2*n), insert(ctx, tx, caller, 2*n+1)); err != nil {
				return err
			}
			switch fate {
			case 0:
				return errWork
			case 1:
				_ = insert(ctx, tx, caller, 2*n) // it is there, and the work goes on
			}
			return nil
		})
		l.mu.Lock()
		if err == nil {
			l.model = append(l.model, fmt.Sprintf("%d/%d", caller, 2*n), fmt.Sprintf("%d/%d", caller, 2*n+1))
			l.told++
		} else if fate > 1 {
			l.refused++
		}
		l.mu.Unlock()
	}
}

// check compares what was told with what is stored, and writes once more.
func (l *law) check(t *testing.T, m *made) {
	t.Helper()
	if err := m.Do(t.Context(), insertOne(1000)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	got, want := m.items(t), append(l.model, "1000/0")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("stored is %v, acknowledged was %v", got, want)
	}
	t.Logf("%d were told nil, %d an error that is not theirs", l.told, l.refused)
	if l.told == 0 || l.refused == 0 {
		t.Error("nothing was tried")
	}
}

// The law holds while the server is restarted, and while it crashes.
func TestServerRestarts(t *testing.T) {
	server := testenv.Postgres(t)
	path := server.NewSchema(t)
	m := makeAt(t, testKind, path, path, WriterOptions{})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := new(law)
	var callers sync.WaitGroup
	var ended atomic.Bool
	defer callers.Wait()
	defer ended.Store(true)
	for caller := range 4 {
		callers.Go(func() {
			l.calls(m, seed, caller, func(n int) bool { return !ended.Load() })
		})
	}
	told := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.told
	}
	for i := range 4 {
		for before := told(); told() < before+20; { // they write
			<-time.After(time.Millisecond)
		}
		server.Stop(t, []testenv.Shutdown{testenv.FastShutdown, testenv.ImmediateShutdown}[i%2])
		server.Start(t)
	}
	ended.Store(true)
	callers.Wait()
	l.check(t, m)
}

// stopping returns a proxy that lets nobody through once a COMMIT has met its fate. It sends
// to at then.
func stopping(how fate) *proxy {
	p := &proxy{at: make(chan struct{}), resume: make(chan struct{})}
	p.fates = func() fate {
		if p.commits.Load() > 1 {
			return arrives
		}
		p.closed.Store(true)
		return how
	}
	return p
}

// A crash may forget a transaction so thoroughly that the next one gets its number. It
// was not committed.
func TestServerForgottenTransaction(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.Postgres(t)
	execute(t, server.URL(), "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
	p := stopping(lostBefore)
	resume := sync.OnceFunc(func() { close(p.resume) })
	defer resume()
	path := server.NewSchema(t)
	m := makeAt(t, testKind, path, p.through(t, path), WriterOptions{})
	var number int64
	done := make(chan error, 1)
	go func() {
		done <- m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			return errors.Join(insert(ctx, tx, 1, 0), tx.QueryRowContext(ctx, "SELECT pg_current_xact_id()::text::bigint").Scan(&number))
		})
	}()
	<-p.at
	server.Stop(t, testenv.ImmediateShutdown)
	server.Start(t)
	other, err := sql.Open("pgx", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for taken := int64(0); taken < number; {
		before := taken
		must(t, other.QueryRow("SELECT pg_current_xact_id()::text::bigint").Scan(&taken))
		if before == 0 && taken > number {
			t.Errorf("the server remembers transaction %d: the next is %d", number, taken)
		}
	}
	p.closed.Store(false)
	resume()
	if err := <-done; err == nil {
		t.Error("the transaction of another was taken for it")
	}
	m.want(t)
	if err := m.Do(t.Context(), insertOne(2)); err != nil {
		t.Error(err)
	}
	m.want(t, "2/0")
}

// A server that nobody reaches leaves the outcome open.
func TestServerUnreachable(t *testing.T) {
	var how atomic.Int64
	p := new(proxy)
	p.fates = func() fate {
		p.closed.Store(fate(how.Load()) != arrives)
		return fate(how.Load())
	}
	path := testenv.SharedPostgres(t).NewSchema(t)
	var failures []error
	m := makeAt(t, kindWith(0, 50*time.Millisecond), path, p.through(t, path), WriterOptions{Failed: func(err error) { failures = append(failures, err) }})
	m.idle.Stop() // a checkpoint that finds the server away is told to Failed too
	m.idle = nil
	var want []string
	for i, fate := range []fate{lostBefore, answerLost} {
		how.Store(int64(fate))
		if err := m.Do(t.Context(), insertOne(2*i)); !errors.Is(err, ErrDisk) || errors.Is(err, ErrCannotOpen) {
			t.Errorf("fate %d: %v", fate, err)
		}
		if len(failures) != 2*i+1 || !errors.Is(failures[2*i], ErrDisk) {
			t.Errorf("the failures are %v", failures)
		}
		if err := m.Do(t.Context(), insertOne(9)); !errors.Is(err, ErrCannotOpen) || errors.Is(err, ErrDisk) {
			t.Errorf("still unreachable: %v", err)
		}
		how.Store(int64(arrives))
		p.closed.Store(false)
		if err := m.Do(t.Context(), insertOne(2*i+1)); err != nil {
			t.Errorf("reachable again: %v", err)
		}
		want = append(want, [][]string{{"1/0"}, {"2/0", "3/0"}}[i]...)
		m.want(t, want...)
	}
}

// Work that goes on after a statement that failed fails alone.
func TestServerFailedStatement(t *testing.T) {
	m := newServerWriter(t, WriterOptions{})
	m.do(t, "INSERT INTO item (caller, n) VALUES (1, 0)")
	begun, first := make(chan struct{}), make(chan error, 1)
	go func() {
		first <- m.Do(t.Context(), func(ctx context.Context, tx *Tx) error {
			close(begun)
			for m.waiting.Load() == 0 {
				runtime.Gosched()
			}
			_ = insert(ctx, tx, 1, 0) // it is there
			return nil
		})
	}()
	<-begun
	if err := m.Do(t.Context(), insertOne(2)); err != nil {
		t.Errorf("the other: %v", err)
	}
	if err := <-first; err == nil {
		t.Error("it got nil")
	}
	m.want(t, "1/0", "2/0")
}

// Another process that has written since leaves the outcome open too, and ends all writing.
func TestServerOvertaken(t *testing.T) {
	p := stopping(answerLost)
	resume := sync.OnceFunc(func() { close(p.resume) })
	defer resume()
	path := testenv.SharedPostgres(t).NewSchema(t)
	m := makeAt(t, testKind, path, p.through(t, path), WriterOptions{})
	done := make(chan error, 1)
	go func() { done <- m.Do(t.Context(), insertOne(1)) }()
	<-p.at
	execute(t, path, "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_namespace ON objid = oid WHERE locktype = 'advisory' AND nspname = current_schema()")
	w, err := testKind.OpenWriter(t.Context(), path, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Do(t.Context(), insertOne(2)), w.Close()); err != nil {
		t.Error(err)
	}
	p.closed.Store(false)
	resume()
	if err := <-done; !errors.Is(err, ErrDisk) || !errors.Is(err, ErrInUse) {
		t.Errorf("overtaken: %v", err)
	}
	if err := m.Do(t.Context(), insertOne(3)); !errors.Is(err, ErrInUse) {
		t.Errorf("overtaken before: %v", err)
	}
	m.want(t, "1/0", "2/0")
}

// A server that can only be read, as a standby that answers while the other one restarts, gets no
// writer: that would keep its connection there, and never write again.
func TestServerReadOnly(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.Postgres(t)
	path := server.NewSchema(t)
	m := makeAt(t, testKind, path, path, WriterOptions{})
	must(t, m.Do(t.Context(), insertOne(1)))
	execute(t, path, "ALTER DATABASE postgres SET default_transaction_read_only = on")
	server.Stop(t, testenv.FastShutdown)
	server.Start(t)
	for range 2 {
		if err := m.Do(t.Context(), insertOne(2)); !errors.Is(err, ErrCannotOpen) || !strings.Contains(err.Error(), "can only be read") {
			t.Errorf("written: %v", err)
		}
	}
	execute(t, path, "BEGIN READ WRITE; ALTER DATABASE postgres RESET default_transaction_read_only; COMMIT")
	if err := m.Do(t.Context(), insertOne(3)); err != nil {
		t.Errorf("it can be written again: %v", err)
	}
	m.want(t, "1/0", "3/0")
}
