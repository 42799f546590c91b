package eventlog_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// node opens a log beside the node that writes it, in a folder of its own.
func node(t *testing.T, url, folder string) *eventlog.Log {
	t.Helper()
	l := mustOpen(t, folder, eventlog.Options{URL: url, Beside: true})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// follows checks that a node sees that the log has changed, and so many events.
func follows(t *testing.T, l *eventlog.Log, events int64) {
	t.Helper()
	changed, err := l.Follow(t.Context())
	if err != nil || !changed {
		t.Fatalf("changed: %v, %v", changed, err)
	}
	if changed, err = l.Follow(t.Context()); err != nil || changed {
		t.Fatalf("changed again: %v, %v", changed, err)
	}
	s, err := l.Set(t.Context(), "main")
	if err != nil || s.Events != events {
		t.Fatalf("%d events, want %d: %v", s.Events, events, err)
	}
}

// closed closes a log, or a file.
func closed(t testing.TB, l io.Closer) {
	t.Helper()
	must(t, l.Close())
}

// TestTakeOver: nodes read beside the one that writes; when that has gone, one of them takes
// over, and goes on where it was.
func TestTakeOver(t *testing.T) {
	url := testenv.SharedPostgres(t).NewSchema(t)
	folder, beside := t.TempDir(), t.TempDir()
	if _, err := eventlog.Open(t.Context(), beside, eventlog.Options{URL: url, Beside: true}); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("without a log: %v", err)
	}
	if _, err := eventlog.Open(t.Context(), t.TempDir(), eventlog.Options{Beside: true}); err == nil {
		t.Fatal("a log in a file has nodes")
	}
	first := mustOpen(t, folder, eventlog.Options{URL: url})
	closed(t, first)
	first, src := filled(t, folder, event.Reference)
	must(t, add(first, src, 0, 5))
	second, third := node(t, url, beside), node(t, url, t.TempDir())
	follows(t, second, 5)
	follows(t, third, 5)
	if _, err := eventlog.Open(t.Context(), beside, eventlog.Options{URL: url, Beside: true}); !errors.As(err, new(*eventlog.LockedError)) {
		t.Errorf("two nodes have one folder: %v", err)
	}
	if may, err := second.MayTakeOver(t.Context()); err != nil || may {
		t.Errorf("it may take over: %v, %v", may, err)
	}
	must(t, add(first, src, 5, 3))
	follows(t, second, 8)
	closed(t, first)
	for may := false; !may; { // the server notices it soon
		var err error
		if may, err = second.MayTakeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := second.TakeOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if loss := taken.Loss(); loss != nil {
		t.Error(loss)
	}
	must(t, add(taken, src, 8, 2))
	if changed, err := second.Follow(t.Context()); err != nil || !changed { // it goes on reading
		t.Fatalf("changed: %v, %v", changed, err)
	}
	closed(t, second)
	follows(t, third, 10)
	closed(t, taken)
	closed(t, third)
	check(t, folder, 10, true)
	check(t, beside, 10, true)
}

// TestTakenOver: a node that has lost its connection, and finds that another has written
// meanwhile, writes nothing any more.
func TestTakenOver(t *testing.T) {
	server := testenv.SharedPostgres(t)
	url := server.NewSchema(t)
	folder := onServer(t, url)
	first, src := filled(t, folder, event.Reference)
	defer first.Close()
	must(t, add(first, src, 0, 5))
	server.EndWriter(t, url)
	if err := add(first, src, 5, 5); err != nil { // nobody was faster
		t.Fatal(err)
	}
	second := node(t, url, t.TempDir())
	follows(t, second, 10)
	server.EndWriter(t, url)
	taken, err := second.TakeOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	must(t, add(taken, src, 10, 5))
	// Their number alone does not tell that the transactions are others.
	must(t, taken.Exec(t.Context(), "UPDATE log SET commits = commits - 1"))
	closed(t, taken)
	if err := add(first, src, 10, 5); !errors.Is(err, eventlog.ErrInUse) {
		t.Errorf("written by both: %v", err)
	}
	if err := first.Check(t.Context()); !errors.Is(err, eventlog.ErrInUse) || !errors.Is(err, eventlog.ErrStopped) {
		t.Errorf("it goes on: %v", err)
	}
	closed(t, first)
	check(t, folder, 15, true)
}

// TestFirstFails: a node that could not make the log, or did not learn whether it has, takes the one
// that another node has made since for all that there ever was.
func TestFirstFails(t *testing.T) {
	server := testenv.SharedPostgres(t)
	url, refused, pending := server.NewSchema(t), t.TempDir(), onServer(t, server.NewSchema(t))
	// As a standby does it, for one.
	if l, err := eventlog.Open(t.Context(), refused, eventlog.Options{URL: url + "&default_transaction_read_only=on"}); err == nil || !strings.Contains(err.Error(), "can only be read") {
		t.Fatalf("a log was made on a server that can only be read: %v, %v", l, err)
	}
	first, src := filled(t, onServer(t, url), event.Reference)
	must(t, add(first, src, 0, 5))
	if _, err := eventlog.Open(t.Context(), refused, eventlog.Options{URL: url}); !errors.Is(err, eventlog.ErrOthers) {
		t.Errorf("it is opened for writing: %v", err)
	}
	nodes := []*eventlog.Log{node(t, url, refused), node(t, url, pending)}
	for i, l := range nodes {
		if loss := l.Loss(); loss != nil {
			t.Errorf("node %d: %v", i, loss)
		}
		follows(t, l, 5)
	}
	must(t, add(first, src, 5, 1))
	closed(t, first)
	for i, l := range nodes {
		follows(t, l, 6)
		taken, err := l.TakeOver(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if all, err := taken.Epochs(t.Context()); err != nil || len(all) > 0 {
			t.Errorf("node %d: epochs %v, %v", i, all, err)
		}
		closed(t, taken)
		closed(t, l)
	}
	// Where nobody has made it yet it is made.
	again := onServer(t, server.NewSchema(t))
	first = mustOpen(t, again, eventlog.Options{URL: server.NewSchema(t)})
	closed(t, first)
}

// TestFirstTogether: of nodes that are started together on an empty database one makes the log, and
// the others find that it has.
func TestFirstTogether(t *testing.T) {
	url := testenv.SharedPostgres(t).NewSchema(t)
	var group sync.WaitGroup
	folders := []string{t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()}
	logs, errs := make([]*eventlog.Log, len(folders)), make([]error, len(folders))
	for i, folder := range folders {
		group.Go(func() {
			if logs[i], errs[i] = eventlog.Open(t.Context(), folder, eventlog.Options{URL: url}); errs[i] != nil {
				return
			}
			if errs[i] = logs[i].EnsureSet(t.Context(), eventlog.SetConfig{Name: "main"}); errs[i] == nil {
				errs[i] = logs[i].Close()
			}
		})
	}
	group.Wait()
	made := 0
	for i, err := range errs {
		if err == nil {
			made++
		} else if !errors.Is(err, eventlog.ErrOthers) && !errors.Is(err, eventlog.ErrInUse) {
			t.Errorf("node %d: %v", i, err)
		}
		if loss := node(t, url, folders[i]).Loss(); loss != nil {
			t.Errorf("node %d: %v", i, loss)
		}
	}
	if made != 1 {
		t.Errorf("%d nodes have made the log", made)
	}
}

// TestRemovedWhileAway: a set of which a node has seen the last event of all gets more events, and
// is removed, while the node is away. Nothing is lost, also while the rows of the set are still there.
func TestRemovedWhileAway(t *testing.T) {
	url, folder := testenv.SharedPostgres(t).NewSchema(t), t.TempDir()
	first, main := filled(t, onServer(t, url), event.Reference)
	src := another(t, first, "goes")
	must(t, errors.Join(add(first, main, 0, 2), add(first, src, 10, 3)))
	away := node(t, url, folder)
	follows(t, away, 2)
	closed(t, away)
	must(t, errors.Join(add(first, src, 13, 2), first.RemoveSet(t.Context(), "goes")))
	away = node(t, url, folder)
	if loss := away.Loss(); loss != nil {
		t.Errorf("while the set is removed: %v", loss)
	}
	closed(t, away)
	must(t, errors.Join(first.FinishRemovals(t.Context()), add(first, main, 2, 1)))
	closed(t, first)
	away = node(t, url, folder)
	follows(t, away, 3)
	if loss := away.Loss(); loss != nil {
		t.Errorf("after the set was removed: %v", loss)
	}
	taken, err := away.TakeOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all, err := taken.Epochs(t.Context()); err != nil || len(all) > 0 || taken.Loss() != nil {
		t.Errorf("epochs: %v, %v; lost: %v", all, err, taken.Loss())
	}
	sound(t, taken)
	closed(t, taken)
	closed(t, away)
}

// TestLossAndRemovedSet: a server has lost an event that a node has seen, and gone on with another
// one in its place. That it lies between events of a set that was removed since hides nothing.
func TestLossAndRemovedSet(t *testing.T) {
	server := testenv.SharedPostgres(t)
	url, older := server.NewSchema(t), server.NewSchema(t)
	folder, other, away := onServer(t, url), t.TempDir(), t.TempDir()
	first, main := filled(t, folder, event.Reference)
	src := another(t, first, "goes")
	must(t, add(first, src, 10, 2))
	b, err := os.ReadFile(filepath.Join(folder, eventlog.URLName))
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(filepath.Join(other, eventlog.URLName), []byte(strings.Replace(string(b), url, older, 1)), 0o600))
	if _, err := first.CopyTo(t.Context(), other, older, nil); err != nil {
		t.Fatal(err)
	}
	must(t, add(first, main, 0, 1))
	closed(t, node(t, url, away))
	closed(t, first)
	second := mustOpen(t, other, eventlog.Options{})
	must(t, errors.Join(add(second, main, 1, 1), add(second, src, 12, 2), second.RemoveSet(t.Context(), "goes"), second.FinishRemovals(t.Context())))
	closed(t, second)
	l := node(t, older, away)
	if loss := l.Loss(); loss == nil || loss.Commits > 0 || loss.Lost != 3 {
		t.Errorf("the loss is %v", loss)
	}
	closed(t, l)
}

// another makes another set with one Source.
func another(t *testing.T, l *eventlog.Log, set string) event.SourceID {
	t.Helper()
	must(t, l.EnsureSet(t.Context(), eventlog.SetConfig{Name: set, Content: event.Reference}))
	src, err := l.EnsureSource(t.Context(), set, "atompmh", "https://repository.example/"+set+".atom", 0)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// TestMovedAway: a log that was copied away is read by the nodes that have it open. No node writes
// it, in no folder, but the copy that is run again.
func TestMovedAway(t *testing.T) {
	url := testenv.SharedPostgres(t).NewSchema(t)
	folder := onServer(t, url)
	first, src := filled(t, folder, event.Reference)
	must(t, add(first, src, 0, 5))
	beside := t.TempDir()
	second := node(t, url, beside)
	follows(t, second, 5)
	for range 2 { // the second time, it was killed before the folder had the file
		must(t, first.MarkMoved(t.Context(), "/srv/new"))
	}
	closed(t, first)
	if _, err := second.TakeOver(t.Context()); !errors.Is(err, eventlog.ErrMoved) || !strings.Contains(err.Error(), "/srv/new") {
		t.Errorf("another node takes over: %v", err)
	}
	if s, err := second.Set(t.Context(), "main"); err != nil || s.Events != 5 {
		t.Errorf("%d events: %v", s.Events, err)
	}
	closed(t, second)
	if _, err := eventlog.Open(t.Context(), t.TempDir(), eventlog.Options{URL: url, Beside: true}); !errors.Is(err, eventlog.ErrMoved) {
		t.Errorf("a new node: %v", err)
	}
	must(t, os.Remove(filepath.Join(folder, eventlog.MovedName)))
	if _, err := eventlog.Open(t.Context(), folder, eventlog.Options{}); !errors.Is(err, eventlog.ErrMoved) {
		t.Errorf("its own folder: %v", err)
	}
	for _, o := range []eventlog.Options{{ReadOnly: true}, {CopyingTo: "/srv/new"}} {
		l := mustOpen(t, folder, o)
		closed(t, l)
	}
	for _, folder := range []string{folder, beside} { // a copy that was made is not made a second time elsewhere
		if _, err := eventlog.Open(t.Context(), folder, eventlog.Options{URL: url, CopyingTo: "/srv/other"}); !errors.Is(err, eventlog.ErrMoved) {
			t.Errorf("copied from %s to another place: %v", folder, err)
		}
	}
}

// TestNewerBeside: a node notices that a newer version has brought the log up to date, which it does
// not understand.
func TestNewerBeside(t *testing.T) {
	url := testenv.SharedPostgres(t).NewSchema(t)
	first, src := filled(t, onServer(t, url), event.Reference)
	must(t, add(first, src, 0, 5))
	second := node(t, url, t.TempDir())
	follows(t, second, 5)
	server, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close(t.Context())
	for step, change := range []string{"+ 1", "- 1"} {
		if _, err := server.Exec(t.Context(), "UPDATE format SET version = version "+change); err != nil {
			t.Fatal(err)
		}
		if _, err := second.Follow(t.Context()); (err == nil) != (step == 1) || err != nil && !strings.Contains(err.Error(), "newer bridge") {
			t.Errorf("version %s: %v", change, err)
		}
	}
	closed(t, first)
}

// TestLossBeside: nodes notice that a server has less than they have seen, as after a standby
// has taken its place: the one that takes over begins a new epoch, which the others accept.
func TestLossBeside(t *testing.T) {
	server := testenv.SharedPostgres(t)
	url, older := server.NewSchema(t), server.NewSchema(t)
	first, src := filled(t, onServer(t, url), event.Reference)
	folders := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	must(t, add(first, src, 0, 5))
	closed(t, node(t, url, folders[0])) // it has seen no more than the standby
	server.CopySchema(t, url, older)
	must(t, add(first, src, 5, 3))
	closed(t, node(t, url, folders[1]))
	must(t, add(first, src, 8, 2))
	closed(t, node(t, url, folders[2]))
	closed(t, first)
	nodes := make([]*eventlog.Log, len(folders))
	for i, folder := range folders {
		path := filepath.Join(folder, eventlog.URLName)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		must(t, os.WriteFile(path, []byte(strings.Replace(string(b), url, older, 1)), 0o600))
		nodes[i] = node(t, "", folder)
		if _, err := nodes[i].Follow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if loss := nodes[i].Loss(); (loss != nil && loss.Events()) != (i > 0) {
			t.Errorf("node %d: %v", i, loss)
		}
		// One that knows of no loss waits for one that does.
		if may, err := nodes[i].MayTakeOver(t.Context()); err != nil || may != (i > 0) {
			t.Errorf("node %d may take over: %v, %v", i, may, err)
		}
	}
	taken, err := nodes[2].TakeOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all, err := taken.Epochs(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("epochs: %v, %v", all, err)
	}
	for i, l := range nodes[:2] {
		if _, err := l.Follow(t.Context()); err != nil || l.Loss() != nil {
			t.Errorf("node %d after the new epoch: %v, %v", i, l.Loss(), err)
		}
	}
	closed(t, taken)
	if taken, err = nodes[1].TakeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := taken.Epochs(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("epochs after another node took over: %v, %v", all, err)
	}
	closed(t, taken)
	closed(t, nodes[1])
	// A folder whose head was not put back with it begins one, as a node too.
	must(t, os.Remove(filepath.Join(folders[1], eventlog.HeadName)))
	if taken, err = node(t, "", folders[1]).TakeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := taken.Epochs(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("epochs without a head: %v, %v", all, err)
	}
	closed(t, taken)
}
