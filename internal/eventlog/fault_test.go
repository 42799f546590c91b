package eventlog_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestMain lets the test binary be the process that a test kills. In tests keys move to the
// large tables early; benchmarks measure the log as it is.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		eventlog.SetMaxRecent(20)
	}
	if folder := os.Getenv("EVENTLOG_VICTIM"); folder != "" {
		if err := victim(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testenv.WithPostgres(m).Run())
}

// filled opens a log in a folder with one set and one Source.
func filled(t testing.TB, folder string, content event.Content) (*eventlog.Log, event.SourceID) {
	t.Helper()
	l, src, err := start(folder, content)
	if err != nil {
		t.Fatal(err)
	}
	return l, src
}

func start(folder string, content event.Content) (*eventlog.Log, event.SourceID, error) {
	ctx := context.Background()
	l, err := eventlog.Open(ctx, folder, eventlog.Options{Holder: "bridge harvest"})
	if err != nil {
		return nil, 0, err
	}
	if err := l.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: content, SegmentEvents: 300}); err != nil {
		return nil, 0, err
	}
	src, err := l.EnsureSource(ctx, "main", "atompmh", "https://repository.example/feed.atom", 0)
	return l, src, err
}

// mustOpen opens a log.
func mustOpen(t testing.TB, folder string, o eventlog.Options) *eventlog.Log {
	t.Helper()
	l, err := eventlog.Open(context.Background(), folder, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// add appends n new records, as the next batch of the walk under way.
func add(l *eventlog.Log, src event.SourceID, from, n int) error {
	ctx := context.Background()
	p, err := l.Progress(ctx, src)
	if err != nil {
		return err
	}
	_, err = l.Append(ctx, &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: p.Cursor.Data == nil, Next: fmt.Append(nil, from+n),
		Documents: []event.Document{{URL: fmt.Sprintf("https://repository.example/%d.atom", from)}}, Items: items(from, n)})
	return err
}

// all returns every event as JSON.
func all(l *eventlog.Log) ([]string, error) { return eventsIn(l, "") }

func eventsIn(l *eventlog.Log, set string) ([]string, error) {
	var out []string
	for ev, err := range l.Events(context.Background(), set, event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			return out, err
		}
		line, err := json.Marshal(ev)
		if err != nil {
			return out, err
		}
		out = append(out, string(line))
	}
	return out, nil
}

// sound fails when the log finds fault with itself.
func sound(t testing.TB, l *eventlog.Log) {
	t.Helper()
	if err := l.Verify(context.Background(), func(f eventlog.Finding) { t.Errorf("%s: %s (%s)", f.Where, f.What, f.Do) }); err != nil {
		t.Error(err)
	}
}

// TestDiskFull: nothing is acknowledged, reading goes on, and the next Append
// works once there is space, without a hand.
func TestDiskFull(t *testing.T) {
	testenv.Heavy(t)
	ctx := context.Background()
	for more := range 40 { // full at another moment each time
		l, src := filled(t, t.TempDir(), event.Reference)
		must(t, add(l, src, 0, 100))
		must(t, l.LimitPages(ctx, more))
		before, err := all(l)
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Progress(ctx, src)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			err := add(l, src, 100, 2500)
			if !errors.Is(err, eventlog.ErrFull) {
				t.Fatalf("with %d pages left: %v", more, err)
			}
		}
		after, err := all(l)
		if err != nil || len(after) != len(before) {
			t.Fatalf("%d events, %v; there were %d", len(after), err, len(before))
		}
		if q, err := l.Progress(ctx, src); err != nil || q.Cursor.Version != p.Cursor.Version {
			t.Fatalf("the cursor moved to %d, %v", q.Cursor.Version, err)
		}
		must(t, l.LimitPages(ctx, -1))
		if err := add(l, src, 100, 2500); err != nil {
			t.Fatalf("with space again: %v", err)
		}
		// Who was met is as it was stored: all of these are.
		if absent, have, err := l.CountAbsent(ctx, src, event.Stamp{}); absent != 0 || have != 2600 || err != nil {
			t.Fatalf("%d of %d absent, %v", absent, have, err)
		}
		if more%10 == 0 {
			sound(t, l)
		}
		closed(t, l)
	}
}

// TestDiskFullInSmallBatches: the disk gets full somewhere in a batch that is small
// enough for SQLite to end the transaction at its last rows. Nothing of it stays.
func TestDiskFullInSmallBatches(t *testing.T) {
	testenv.Heavy(t)
	for more := range 14 {
		l, src := filled(t, t.TempDir(), event.Reference)
		must(t, errors.Join(add(l, src, 0, 500), l.LimitPages(t.Context(), more)))
		const n = 37
		from, err := 500, error(nil)
		for err == nil && from < 10_000 {
			if err = add(l, src, from, n); err == nil {
				from += n
			}
		}
		if !errors.Is(err, eventlog.ErrFull) {
			t.Fatalf("with %d pages left: %v", more, err)
		}
		if err := errors.Join(l.LimitPages(t.Context(), -1), add(l, src, from, n)); err != nil {
			t.Errorf("with %d pages left, and space again: %v", more, err)
		}
		sound(t, l)
		closed(t, l)
	}
}

// TestDiskFullDryRun: what a full disk has undone is not written for good by what
// follows.
func TestDiskFullDryRun(t *testing.T) {
	ctx := context.Background()
	folder := t.TempDir()
	l, src := filled(t, folder, event.Reference)
	must(t, errors.Join(add(l, src, 0, 10), l.Close()))
	l = mustOpen(t, folder, eventlog.Options{DryRun: true})
	must(t, errors.Join(add(l, src, 10, 10), l.LimitPages(ctx, 3)))
	if err := add(l, src, 20, 5000); !errors.Is(err, eventlog.ErrFull) {
		t.Fatalf("full: %v", err)
	}
	must(t, l.LimitPages(ctx, -1))
	_ = add(l, src, 20, 10) // may fail, and must not be kept
	closed(t, l)
	l, _ = filled(t, folder, event.Reference)
	defer l.Close()
	if events, err := all(l); err != nil || len(events) != 10 {
		t.Errorf("a dry run has left %d events, %v; want 10", len(events), err)
	}
	sound(t, l)
}

// TestCommitFails: a commit that fails has not happened, and the log goes on.
func TestCommitFails(t *testing.T) {
	ctx := context.Background()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	// A deferred constraint is checked by COMMIT itself.
	if err := l.Exec(ctx, "PRAGMA foreign_keys = 1; CREATE TABLE anchor (id INTEGER PRIMARY KEY); "+
		"CREATE TABLE boat (id INTEGER REFERENCES anchor DEFERRABLE INITIALLY DEFERRED); "+
		"CREATE TRIGGER sink AFTER INSERT ON event WHEN NEW.id = 1 << 40 | 15 BEGIN INSERT INTO boat VALUES (7); END"); err != nil {
		t.Fatal(err)
	}
	must(t, add(l, src, 0, 10))
	for range 2 {
		if err := add(l, src, 10, 10); err == nil {
			t.Fatal("the commit did not fail")
		}
	}
	if err := l.Exec(ctx, "DROP TRIGGER sink; DROP TABLE boat; DROP TABLE anchor"); err != nil {
		t.Fatal(err)
	}
	must(t, add(l, src, 10, 10))
	if events, err := all(l); err != nil || len(events) != 20 {
		t.Errorf("%d events, %v", len(events), err)
	}
	sound(t, l)
}

// TestTwoProcesses: the second is told who holds the log; a holder that dies
// leaves it free.
func TestTwoProcesses(t *testing.T) {
	folder := t.TempDir()
	child, stdout := spawn(t, folder)
	if _, err := stdout.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err := eventlog.Open(context.Background(), folder, eventlog.Options{Holder: "bridge serve"})
	var locked *eventlog.LockedError
	if want := fmt.Sprintf("bridge harvest (process %d)", child.Process.Pid); !errors.As(err, &locked) || locked.Holder != want || locked.Folder != folder {
		t.Errorf("the second: %v; want one that names %q", err, want)
	}
	beside := mustOpen(t, folder, eventlog.Options{ReadOnly: true})
	line, err := stdout.ReadString('\n') // the child goes on: reading to the end would chase it
	if err != nil {
		t.Fatal(err)
	}
	said, n := number(t, line), 0
	for _, err := range beside.Events(t.Context(), "main", event.Range{Upto: event.Seq(said)}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != said {
		t.Errorf("beside the child the log has %d of %d events", n, said)
	}
	closed(t, beside)
	kill(t, child)
	l, _ := filled(t, folder, event.Reference)
	sound(t, l)
	closed(t, l)
}

// TestKill kills a process with signal 9 at random moments of its Appends: what
// it acknowledged is there, nothing is there twice, and the cursor names just
// what is there.
func TestKill(t *testing.T) {
	killed(t, t.TempDir(), testenv.Rounds(t, 15, 1000))
}

// killed is TestKill in a folder.
func killed(t *testing.T, folder string, rounds int) {
	t.Helper()
	acknowledged := 0
	for round := range rounds {
		child, stdout := spawn(t, folder)
		// Killed between the first and the tenth batch from here, after a part
		// of the time that one takes.
		for range 1 + rand.IntN(10) {
			line, err := stdout.ReadString('\n')
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			acknowledged = number(t, line)
		}
		spin(time.Duration(rand.IntN(8_000)) * time.Microsecond)
		must(t, child.Process.Kill())
		for { // what it said before it died, which Wait would throw away
			line, err := stdout.ReadString('\n')
			if err != nil {
				break
			}
			acknowledged = number(t, line)
		}
		_ = child.Wait() // it was killed
		check(t, folder, acknowledged, round == rounds-1)
	}
}

func number(t *testing.T, line string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(line, &n); err != nil {
		t.Fatalf("the child said %q", line)
	}
	return n
}

// spin waits in steps far shorter than a timer's.
func spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}

func spawn(t *testing.T, folder string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), "EVENTLOG_VICTIM="+folder)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	must(t, child.Start())
	return child, bufio.NewReader(out)
}

func kill(t *testing.T, child *exec.Cmd) {
	t.Helper()
	must(t, child.Process.Kill())
	_ = child.Wait() // it was killed
}

// victim appends small batches to the end of its life, and says how many records
// are in after each.
func victim(folder string) error {
	l, src, err := start(folder, event.Reference)
	if err != nil {
		return err
	}
	p, err := l.Progress(context.Background(), src)
	if err != nil {
		return err
	}
	next := 0
	if p.Cursor.Data != nil {
		if _, err := fmt.Sscan(string(p.Cursor.Data), &next); err != nil {
			return err
		}
	}
	fmt.Println(next)
	for {
		n := 1 + next%97
		if err := add(l, src, next, n); err != nil {
			return err
		}
		next += n
		fmt.Println(next)
	}
}

// check compares what is in the log with what the child acknowledged.
func check(t *testing.T, folder string, acknowledged int, last bool) {
	t.Helper()
	l, src := filled(t, folder, event.Reference)
	defer closed(t, l)
	p, err := l.Progress(context.Background(), src)
	if err != nil {
		t.Fatal(err)
	}
	cursor := 0
	if p.Cursor.Data != nil {
		cursor = number(t, string(p.Cursor.Data))
	}
	n := 0
	for ev, err := range l.Events(context.Background(), "main", event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			t.Fatal(err)
		}
		if want := items(n, 1)[0].Record; ev.Record != want || int(ev.Seq) != n+1 || ev.Kind != event.Created {
			t.Fatalf("event %d is %v of %s, want created of %s", ev.Seq, ev.Kind, ev.Record, want)
		}
		n++
	}
	if n != cursor || n < acknowledged {
		t.Fatalf("%d records in the log, the cursor says %d, acknowledged were %d", n, cursor, acknowledged)
	}
	absent, have, err := l.CountAbsent(context.Background(), src, event.Stamp{})
	if absent != 0 || int(have) != n || err != nil {
		t.Fatalf("%d of %d records were not met, %v", absent, have, err)
	}
	if last || n%5 == 0 {
		sound(t, l)
	}
}

// D75: whoever reads and panics gives the connection back: there are few of them.
func TestPanicOfAReader(t *testing.T) {
	l, src := filled(t, t.TempDir(), event.Redirect)
	defer closed(t, l)
	it := &event.Item{Observation: event.Observation{Record: "urn:x:1", Representations: []event.Representation{{Href: "http://h.example/1", Type: "text/plain", Length: event.NoLength}}}}
	it.Order, _ = event.StampOf(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
	if _, err := l.Append(t.Context(), &event.Batch{Source: src, Documents: []event.Document{{URL: "http://h.example/"}}, Items: []*event.Item{it}}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		err := defect.Guard(func() error {
			for _, err := range l.Events(t.Context(), "main", event.Range{Upto: 1}) {
				if err == nil {
					panic("a defect")
				}
				return err
			}
			return nil
		})
		if !errors.As(err, new(*defect.Error)) {
			t.Fatalf("got %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // else it would wait for ever
	defer cancel()
	if last, err := l.LastSeq(ctx); err != nil || last != 1 {
		t.Errorf("the last event is %d (%v), want 1", last, err)
	}
}
