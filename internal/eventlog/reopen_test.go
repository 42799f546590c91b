//go:build linux

package eventlog_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// withoutFiles runs do while the process can open no file more.
func withoutFiles(t *testing.T, do func()) {
	t.Helper()
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	defer func() {
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	}()
	do()
}

// besideAnother runs do while the one connection for reading that the log has is in
// use, so that the next reader opens another.
func besideAnother(t *testing.T, l *eventlog.Log, do func()) {
	t.Helper()
	for _, err := range l.Events(t.Context(), "main", event.Range{Upto: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		do()
	}
}

// A connection for reading that cannot be opened, because the process has too many
// open files, is an error of that reader. The log goes on, and so does the reader
// when there is room again.
func TestReaderCannotOpen(t *testing.T) {
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	must(t, add(l, src, 0, 10))
	besideAnother(t, l, func() {
		withoutFiles(t, func() {
			if _, err := l.LastSeq(ctx); err == nil || errors.Is(err, eventlog.ErrStopped) {
				t.Errorf("without files: %v, want an error that does not stop the log", err)
			}
			if err := l.Check(ctx); err != nil {
				t.Errorf("Check: %v", err)
			}
		})
		if last, err := l.LastSeq(ctx); err != nil || last != 10 {
			t.Errorf("with files again: %d, %v", last, err)
		}
	})
	if err := add(l, src, 10, 10); err != nil {
		t.Errorf("Append afterwards: %v", err)
	}
	sound(t, l)
}

// A folder that has gone, or is another one, stops the log when a reader finds it so.
func TestReaderFindsFolderGone(t *testing.T) {
	for name, replace := range map[string]func(folder string) error{
		"gone":     func(string) error { return nil },
		"replaced": func(folder string) error { return os.MkdirAll(filepath.Join(folder, eventlog.FileName), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "data")
			l, src := filled(t, folder, event.Reference)
			defer func() { _ = l.Close() }() // its files are elsewhere
			must(t, add(l, src, 0, 10))
			besideAnother(t, l, func() {
				must(t, errors.Join(os.Rename(folder, folder+".away"), replace(folder)))
				if _, err := l.LastSeq(t.Context()); !errors.Is(err, eventlog.ErrStopped) {
					t.Errorf("read: %v, want ErrStopped", err)
				}
			})
			if err := add(l, src, 10, 10); !errors.Is(err, eventlog.ErrStopped) {
				t.Errorf("Append: %v, want ErrStopped", err)
			}
		})
	}
}

// loseConnection throws the connection that writes away, as a disk that fails does.
func loseConnection(t *testing.T, l *eventlog.Log, src event.SourceID) {
	t.Helper()
	must(t, l.Disconnect())
	if err := add(l, src, 10, 10); err == nil {
		t.Fatal("the lost connection has written")
	}
}

// Where the connection that writes was lost, and cannot be opened again for the moment,
// the log goes on later.
func TestWriterCannotReopen(t *testing.T) {
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	must(t, add(l, src, 0, 10))
	loseConnection(t, l, src)
	withoutFiles(t, func() {
		for what, err := range map[string]error{"Append": add(l, src, 10, 10), "Check": l.Check(t.Context())} {
			if err == nil || errors.Is(err, eventlog.ErrStopped) {
				t.Errorf("%s without files: %v, want an error that does not stop the log", what, err)
			}
		}
	})
	if err := add(l, src, 10, 10); err != nil {
		t.Errorf("Append afterwards: %v", err)
	}
	sound(t, l)
}

// Where the connection that writes was lost, and the folder is another one by now,
// nothing is written there.
func TestWriterReopensNoOther(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	l, src := filled(t, folder, event.Reference)
	defer func() { _ = l.Close() }() // its files are elsewhere
	must(t, add(l, src, 0, 10))
	loseConnection(t, l, src)
	must(t, errors.Join(os.CopyFS(folder+".copy", os.DirFS(folder)), os.Rename(folder, folder+".away"), os.Rename(folder+".copy", folder)))
	if err := add(l, src, 10, 10); !errors.Is(err, eventlog.ErrStopped) {
		t.Errorf("Append: %v, want ErrStopped", err)
	}
	other := mustOpen(t, folder, eventlog.Options{ReadOnly: true})
	defer other.Close()
	if last, err := other.LastSeq(t.Context()); err != nil || last != 10 {
		t.Errorf("the other folder has events up to %d, %v", last, err)
	}
}
