package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// crashed returns the files of a data folder as a crash leaves them: with commits
// that are in the write-ahead log alone.
func crashed(t *testing.T, batches int) map[string][]byte {
	t.Helper()
	folder := t.TempDir()
	l, src := filled(t, folder, event.Redirect)
	for i := range batches {
		must(t, add(l, src, i*10, 10))
	}
	files := copied(t, folder)
	closed(t, l)
	return files
}

func copied(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, name := range []string{eventlog.FileName, eventlog.FileName + "-wal", eventlog.HeadName} {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		files[name] = b
	}
	return files
}

// placed makes a data folder of files.
func placed(t *testing.T, files map[string][]byte) string {
	t.Helper()
	folder := t.TempDir()
	for name, b := range files {
		must(t, os.WriteFile(filepath.Join(folder, name), b, 0o600))
	}
	return folder
}

// reader opens a folder for reading and returns what verify finds.
func reader(t *testing.T, folder string) (l *eventlog.Log, findings []string) {
	t.Helper()
	l = mustOpen(t, folder, eventlog.Options{ReadOnly: true})
	t.Cleanup(func() { _ = l.Close() })
	must(t, l.Verify(context.Background(), func(f eventlog.Finding) { findings = append(findings, f.Where+": "+f.What) }))
	return l, findings
}

// D140: of many copies with a byte of the write-ahead log flipped each has all that
// was committed, or it is noticed, by those who read and by who writes, and a new
// epoch begins.
func TestFlippedWAL(t *testing.T) {
	testenv.Heavy(t)
	files := crashed(t, 12)
	const wal = eventlog.FileName + "-wal"
	if len(files[wal]) < 100_000 {
		t.Fatalf("the write-ahead log has %d bytes: nothing to damage", len(files[wal]))
	}
	if l, found := reader(t, placed(t, files)); l.Loss() != nil || len(found) > 0 {
		t.Fatalf("undamaged: %v, %q", l.Loss(), found)
	}
	random, noticed, rounds := rand.New(rand.NewPCG(140, 1)), 0, testenv.Rounds(t, 40, 1000)
	for range rounds {
		at := random.IntN(len(files[wal]))
		damaged := maps.Clone(files)
		damaged[wal] = bytes.Clone(files[wal])
		damaged[wal][at] ^= 1 << random.IntN(8)
		if reopened(t, placed(t, damaged), 120) {
			noticed++
		}
	}
	t.Logf("%d of %d noticed", noticed, rounds)
	if noticed < rounds/2 {
		t.Errorf("only %d of %d flips cost a commit: this shows less than it should", noticed, rounds)
	}
}

// reopened opens a folder for reading, then for writing, and reports whether a
// loss was noticed. One that is not, or that does not begin a new epoch, fails.
func reopened(t *testing.T, folder string, want event.Seq) (noticed bool) {
	t.Helper()
	ctx := context.Background()
	beside, found := reader(t, folder)
	has, err := beside.LastSeq(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l, src := filled(t, folder, event.Redirect)
	lost := has < want
	backup := beside.Loss() != nil && beside.Loss().Backup // as whole as it was when it was made
	if lost && (len(found) == 0 != backup || beside.Loss() == nil || l.Loss() == nil || !l.Loss().Events()) {
		t.Errorf("the log ends at %d of %d, and nobody noticed: %q, %v", has, want, found, l.Loss())
	}
	if epochs, err := l.Epochs(ctx); err != nil || (len(epochs) > 0) != lost {
		t.Errorf("the log ends at %d of %d, epochs %v, %v", has, want, epochs, err)
	}
	must(t, add(l, src, 5000, 3))
	events, err := all(l)
	if last, serr := l.LastSeq(ctx); errors.Join(err, serr) != nil || last <= want || len(events) != int(has)+3 {
		t.Errorf("going on: %d events, the last %d, %v, %v", len(events), last, err, serr)
	}
	sound(t, l)
	noticed = l.Loss() != nil
	closed(t, l)
	if _, found := reader(t, folder); len(found) > 0 {
		t.Errorf("in the new epoch verify finds %q", found)
	}
	return noticed
}

// D140, D146: an older copy that is put back is noticed: what was published since
// is given no number again, the sets begin anew, and their old Change Lists are
// not continued.
func TestOlderCopy(t *testing.T) {
	ctx := context.Background()
	folder := t.TempDir()
	l, src := filled(t, folder, event.Redirect) // 300 events a segment
	must(t, add(l, src, 0, 700))
	closed(t, l)
	older := copied(t, folder)
	delete(older, eventlog.HeadName)
	l, src = filled(t, folder, event.Redirect)
	must(t, add(l, src, 700, 900))
	was, err := l.Set(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	segments, err := l.Segments(ctx, "main")
	must(t, errors.Join(err, l.Close()))
	must(t, os.WriteFile(filepath.Join(folder, eventlog.FileName), older[eventlog.FileName], 0o600))
	if !reopened(t, folder, 1600) {
		t.Fatal("nobody noticed")
	}

	l, _ = filled(t, folder, event.Redirect)
	defer l.Close()
	if l.Loss() != nil {
		t.Errorf("the next start has lost %v", l.Loss())
	}
	is, err := l.Set(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	if is.Created <= was.LastObserved || is.Feed == was.Feed || is.Complete == was.Complete || !is.Partial || is.Last <= was.Last {
		t.Errorf("the set was %+v, and is %+v", was, is)
	}
	if is.IdentifierFeed() != was.Feed {
		t.Errorf("identifiers are made of %s, and were of %s", is.IdentifierFeed(), was.Feed)
	}
	for seq, want := range map[event.Seq]bool{1: false, 700: false, 701: true, 1600: true, is.Last: false, is.Last + 1: true} {
		if got, err := l.Forgotten(ctx, seq); got != want || err != nil {
			t.Errorf("event %d is forgotten: %t, %v", seq, got, err)
		}
	}
	now, err := l.Segments(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range now {
		if s.N <= segments[len(segments)-1].N || i > 0 && s.N != now[i-1].N+1 {
			t.Errorf("segment %d: %d were published", s.N, len(segments))
		}
	}
	if open := now[len(now)-1]; open.From != is.Created || open.Events != 3 {
		t.Errorf("the open segment is %+v", open)
	}
}

// TestLostBehindHead: events that are lost and that the head does not know of, because the
// process ended before it was written, are before the new epoch too.
func TestLostBehindHead(t *testing.T) {
	ctx, folder := context.Background(), t.TempDir()
	l, src := filled(t, folder, event.Reference)
	must(t, add(l, src, 0, 2))
	head := copied(t, folder)[eventlog.HeadName]
	if err := errors.Join(add(l, src, 2, 1), l.Exec(ctx, "DELETE FROM event WHERE id > 1 << 40 | 1"), l.Close(),
		os.WriteFile(filepath.Join(folder, eventlog.HeadName), head, 0o600)); err != nil {
		t.Fatal(err)
	}
	l, src = filled(t, folder, event.Reference)
	if loss := l.Loss(); loss == nil || loss.Last != 1 || loss.Lost != 2 {
		t.Errorf("lost: %v", loss)
	}
	must(t, add(l, src, 3, 1))
	if events, err := eventsIn(l, ""); err != nil || len(events) != 2 {
		t.Errorf("%d events, %v", len(events), err)
	}
	closed(t, l)
}

// D140: what is lost may be no event: a submission that was acknowledged, say. That
// is said, and needs no new epoch. A log whose head is missing, as after a backup was
// put back into an empty folder, is not trusted.
func TestLostCommits(t *testing.T) {
	ctx := context.Background()
	folder := t.TempDir()
	l, src := filled(t, folder, event.Redirect)
	must(t, add(l, src, 0, 7))
	closed(t, l)
	older := copied(t, folder)
	l, _ = filled(t, folder, event.Redirect)
	must(t, l.RememberHost(ctx, "repository.example", true))
	closed(t, l)
	files := copied(t, folder)
	files[eventlog.FileName] = older[eventlog.FileName]
	l, _ = filled(t, placed(t, files), event.Redirect)
	if epochs, err := l.Epochs(ctx); l.Loss() == nil || l.Loss().Events() || len(epochs) > 0 || err != nil {
		t.Errorf("lost %v, epochs %v, %v", l.Loss(), epochs, err)
	}
	closed(t, l)

	delete(files, eventlog.HeadName)
	reopened(t, placed(t, files), 1000)
	files[eventlog.HeadName] = bytes.Repeat([]byte("?"), 1024)
	reopened(t, placed(t, files), 1000)
}

// sevenEvents returns the files of a log that has seven events and is closed.
func sevenEvents(t *testing.T) map[string][]byte {
	t.Helper()
	folder := t.TempDir()
	l, src := filled(t, folder, event.Redirect)
	must(t, errors.Join(add(l, src, 0, 7), l.Close()))
	return copied(t, folder)
}

// A copy without a head that is put back a second time gives out other numbers than the first
// time: those may have been published.
func TestCopyPutBackTwice(t *testing.T) {
	ctx := context.Background()
	files := sevenEvents(t)
	delete(files, eventlog.HeadName)
	given, numbers := map[event.Seq]bool{}, map[int]bool{}
	for range 2 {
		l, src := filled(t, placed(t, files), event.Redirect)
		must(t, add(l, src, 7, 3))
		for e, err := range l.Events(ctx, "main", event.Range{After: 7, Upto: 1 << 60}) {
			if err != nil || given[e.Seq] {
				t.Errorf("Seq %d is given out twice, %v", e.Seq, err)
			}
			given[e.Seq] = true
		}
		segments, err := l.Segments(ctx, "main")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range segments {
			if numbers[s.N] {
				t.Errorf("segment %d is there twice", s.N)
			}
			numbers[s.N] = true
		}
		closed(t, l)
	}
}

// D143, D145: no new log is made where one has been, nor is it said that there was none, and a
// log.db that is none is said to be so.
func TestNoNewLog(t *testing.T) {
	ctx := context.Background()
	files := sevenEvents(t)
	for name, c := range map[string]struct {
		change func(map[string][]byte)
		want   string
	}{
		"deleted":               {func(f map[string][]byte) { delete(f, eventlog.FileName) }, "has lost its log: head is there"},
		"deleted, the WAL left": {func(f map[string][]byte) { clear(f); f[eventlog.FileName+"-wal"] = []byte("x") }, "has lost its log: log.db-wal is there"},
		"beside contents":       {func(f map[string][]byte) { clear(f); f["content.db"] = []byte("x") }, "has lost its log: content.db is there"},
		"empty":                 {func(f map[string][]byte) { f[eventlog.FileName] = nil }, "log.db is empty"},
		"text":                  {func(f map[string][]byte) { f[eventlog.FileName] = bytes.Repeat([]byte("text "), 100) }, "log.db is no database"},
		"another's": {func(f map[string][]byte) {
			f[eventlog.FileName] = bytes.Clone(f[eventlog.FileName])
			copy(f[eventlog.FileName][68:], "brCn")
		}, "log.db is a database, but no log"},
	} {
		files := maps.Clone(files)
		c.change(files)
		folder := placed(t, files)
		for _, o := range []eventlog.Options{{}, {DryRun: true}, {ReadOnly: true}} {
			if l, err := eventlog.Open(ctx, folder, o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %+v: %v, want %q", name, o, err, c.want)
				if err == nil {
					_ = l.Close()
				}
			}
		}
	}
}

// D145: a copy of log.db alone, made while nothing is being written, has all; and
// what is being written is never more than a few megabytes ahead.
func TestCheckpoint(t *testing.T) {
	testenv.Heavy(t)
	folder := t.TempDir()
	l, src := filled(t, folder, event.Redirect)
	defer l.Close()
	must(t, add(l, src, 0, 20_000))
	for i := range 200 { // small commits, one after the other
		must(t, add(l, src, 20_000+i*10, 10))
		if st, err := os.Stat(filepath.Join(folder, eventlog.FileName+"-wal")); err != nil || i > 20 && st.Size() > 8<<20 {
			t.Fatalf("the write-ahead log has %d bytes, %v", st.Size(), err)
		}
	}
	l.Checkpoint()
	files := copied(t, folder)
	delete(files, eventlog.FileName+"-wal")
	copied, found := reader(t, placed(t, files))
	if last, err := copied.LastSeq(context.Background()); last != 22_000 || err != nil || len(found) > 0 {
		t.Errorf("the copy ends at %d, %v; verify finds %q", last, err, found)
	}
}

// D144: a log whose folder was removed, renamed or replaced acknowledges nothing.
func TestFolderGone(t *testing.T) {
	ctx := context.Background()
	for name, change := range map[string]func(folder string) error{
		"removed": os.RemoveAll,
		"renamed": func(folder string) error { return os.Rename(folder, folder+".old") },
		"replaced": func(folder string) error {
			if err := os.Rename(folder, folder+".old"); err != nil {
				return err
			}
			return os.CopyFS(folder, os.DirFS(folder+".old"))
		},
		"the log replaced": func(folder string) error {
			path := filepath.Join(folder, eventlog.FileName)
			b, err := os.ReadFile(path)
			return errors.Join(err, os.Remove(path), os.WriteFile(path, b, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "data")
			l, src := filled(t, folder, event.Redirect)
			defer func() { _ = l.Close() }() // its files are gone
			must(t, errors.Join(add(l, src, 0, 7), l.Check(ctx)))
			must(t, change(folder))
			p, err := l.Progress(ctx, src)
			if err != nil {
				t.Skip("it cannot be read any more: nothing is acknowledged")
			}
			in := &event.Batch{Source: src, Cursor: p.Cursor.Version, Next: []byte("on"), Documents: []event.Document{{URL: "https://repository.example/1.atom"}}, Items: items(7, 1)}
			for range 2 {
				if _, err := l.Append(ctx, in); !errors.Is(err, eventlog.ErrStopped) {
					t.Errorf("acknowledged: %v", err)
				}
			}
			if err := l.Check(ctx); !errors.Is(err, eventlog.ErrStopped) {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

// D73: the data folder and what is in it are for its owner alone.
func TestModes(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	l, src := filled(t, folder, event.Redirect)
	defer l.Close()
	must(t, add(l, src, 0, 7))
	if st, err := os.Stat(folder); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", st.Mode(), err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) < 5 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), st.Mode(), err)
		}
	}
}

// D123, D151: who reads and stalls, as `bridge log --follow | less` does, holds
// back no checkpoint.
func TestStalledReader(t *testing.T) {
	testenv.Heavy(t)
	folder := t.TempDir()
	l, src := filled(t, folder, event.Redirect)
	defer l.Close()
	must(t, add(l, src, 0, 5000))
	next, stop := iter.Pull2(l.Events(context.Background(), "main", event.Range{Upto: 1 << 60}))
	defer stop()
	live, stopLive := iter.Pull2(l.Live(context.Background(), "main", 5000))
	defer stopLive()
	for _, next := range []func() (*event.Event, error, bool){next, live} {
		if _, err, ok := next(); err != nil || !ok {
			t.Fatal(err)
		}
	}
	for i := range 500 {
		must(t, add(l, src, 5000+i*10, 10))
	}
	if st, err := os.Stat(filepath.Join(folder, eventlog.FileName+"-wal")); err != nil || st.Size() > 8<<20 {
		t.Errorf("the write-ahead log has %d bytes, %v", st.Size(), err)
	}
	n := 1
	for {
		_, err, ok := next()
		if !ok {
			break
		}
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 10_000 {
		t.Errorf("the stalled reader has read %d events of 10000", n)
	}
}

// An older copy that is put back twice loses each time what was published since: nothing that
// was lost the first time is given out again, although the epoch that says so is lost too.
func TestOlderCopyTwice(t *testing.T) {
	ctx, folder := t.Context(), t.TempDir()
	l, src := filled(t, folder, event.Redirect)
	file := filepath.Join(folder, eventlog.FileName)
	must(t, errors.Join(add(l, src, 0, 10), l.Close()))
	older, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	l, src = filled(t, folder, event.Redirect)
	must(t, errors.Join(add(l, src, 10, 10), l.Close()))
	feeds := map[string]bool{}
	for round := range 3 {
		must(t, os.WriteFile(file, older, 0o600))
		for range 2 { // the second time nothing is lost
			l, _ = filled(t, folder, event.Redirect)
			if loss := l.Loss(); (loss != nil) == feeds[feedOf(t, l)] {
				t.Errorf("round %d: lost %v", round, loss)
			}
			feeds[feedOf(t, l)] = true
			must(t, l.Close())
		}
		if len(feeds) != round+1 {
			t.Errorf("after the copy was put back %d times the set has had %d feeds since", round+1, len(feeds))
		}
	}
	l, src = filled(t, folder, event.Redirect)
	defer l.Close()
	must(t, add(l, src, 30, 1))
	if last, err := l.LastSeq(ctx); err != nil || last <= 20 {
		t.Errorf("event %d was logged, %v, and 20 was published", last, err)
	}
	sound(t, l)
}

func feedOf(t *testing.T, l *eventlog.Log) string {
	t.Helper()
	set, err := l.Set(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	return set.Feed
}
