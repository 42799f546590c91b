package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/eventlog/eventlogtest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// onServer returns a data folder whose log is at a URL on a server, with one set and one
// Source. Whoever opens the folder finds the log.
func onServer(t *testing.T, url string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	l := mustOpen(t, folder, eventlog.Options{URL: url})
	closed(t, l)
	return folder
}

// TestConformOnServer: the suite passes on PostgreSQL as it does in a file.
func TestConformOnServer(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.SharedPostgres(t)
	testenv.Checks(t, 1)
	eventlogtest.On(func() string { return server.NewSchema(t) })
	defer eventlogtest.On(nil)
	// A server takes some tenths of a second for each log: the whole suite is for make soak.
	// TestLawsOnServer sees walks, states, URIs, the order of Sources, and what is live.
	parts := []string{"Events", "Cursor", "Progress", "Hold", "Pending", "Replay", "Repair", "Quarantine", "Loopback", "Links", "SeveralSets",
		"Submitted", "Rejected", "Withdrawn", "Record", "Readers", "DryRun", "Closed"}
	if testenv.Soaking() {
		parts = nil
	}
	eventlogtest.Test(t, parts...)
}

// TestLawsOnServer: of two logs that get the same random history one is a file and the
// other on a server.
func TestLawsOnServer(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.SharedPostgres(t)
	testenv.Checks(t, 3)
	logs := 0
	eventlogtest.On(func() string {
		if logs++; logs%2 == 0 {
			return ""
		}
		return server.NewSchema(t)
	})
	defer eventlogtest.On(nil)
	eventlogtest.Laws(t)
}

// TestKillOnServer is TestKill with the log on a server, which outlives the process.
func TestKillOnServer(t *testing.T) {
	testenv.Heavy(t)
	folder := onServer(t, testenv.SharedPostgres(t).NewSchema(t))
	killed(t, folder, testenv.Rounds(t, 6, 100))
}

// TestServerRestarts: the server is restarted, fast and at once, while the log is being
// written. What was acknowledged is there, once and in order, and writing goes on by itself.
func TestServerRestarts(t *testing.T) {
	testenv.Heavy(t)
	ctx := t.Context()
	server := testenv.Postgres(t)
	folder := onServer(t, server.NewSchema(t))
	l, src := filled(t, folder, event.Reference)
	acknowledged, failures := 0, 0
	more := func() error { // appends a batch after what is stored
		p, err := l.Progress(ctx, src)
		if err != nil {
			return err
		}
		next := 0
		if p.Cursor.Data != nil {
			next = number(t, string(p.Cursor.Data))
		}
		if next < acknowledged {
			t.Fatalf("%d records are stored, acknowledged were %d", next, acknowledged)
		}
		n := 1 + next%97
		if err := add(l, src, next, n); err != nil {
			return err
		}
		acknowledged = next + n
		return nil
	}
	for round := range testenv.Rounds(t, 4, 20) {
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch err := more(); {
				case err == nil:
				case errors.Is(err, eventlog.ErrStopped), !errors.Is(err, database.ErrCannotOpen):
					t.Errorf("round %d: %v", round, err)
					return
				default:
					failures++
				}
			}
		}()
		<-l.Changed() // it is at work
		how := testenv.FastShutdown
		if round%2 == 1 {
			how = testenv.ImmediateShutdown
		}
		server.Stop(t, how)
		server.Start(t)
		close(stop)
		<-stopped
		if err := more(); err != nil { // at the latest now
			t.Fatalf("after restart %d: %v", round, err)
		}
	}
	if failures == 0 {
		t.Error("no restart was noticed")
	}
	closed(t, l)
	check(t, folder, acknowledged, true)
}

// TestServerPlace: the folder knows its log, and no other.
func TestServerPlace(t *testing.T) {
	testenv.Heavy(t)
	ctx := t.Context()
	server := testenv.SharedPostgres(t)
	open := func(folder string, o eventlog.Options) error {
		l, err := eventlog.Open(ctx, folder, o)
		if err != nil {
			return err
		}
		return l.Close()
	}
	at, other := server.NewSchema(t), server.NewSchema(t)
	folder := onServer(t, at)
	l, src := filled(t, folder, event.Reference)
	must(t, add(l, src, 0, 10))
	if size, err := l.Size(ctx); err != nil || size < 100_000 {
		t.Errorf("the log has %d bytes, %v", size, err)
	}
	beside := mustOpen(t, folder, eventlog.Options{ReadOnly: true})
	if events, err := all(beside); err != nil || len(events) != 10 {
		t.Errorf("beside the process that writes there are %d events, %v", len(events), err)
	}
	must(t, errors.Join(beside.Close(), l.Close()))
	if !eventlog.Exists(folder) || !eventlog.OnServer(folder) {
		t.Error("the folder does not know its log")
	}
	if st, err := os.Stat(filepath.Join(folder, eventlog.URLName)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", eventlog.URLName, st, err)
	}
	if _, err := os.Stat(filepath.Join(folder, eventlog.FileName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", eventlog.FileName, err)
	}
	file := t.TempDir()
	must(t, open(file, eventlog.Options{}))
	second := onServer(t, other)
	damaged := t.TempDir()
	must(t, os.WriteFile(filepath.Join(damaged, eventlog.URLName), []byte("db.example.org\n"), 0o600))
	empty := server.NewSchema(t)
	for name, c := range map[string]struct {
		folder string
		o      eventlog.Options
		want   string
	}{
		"a folder with log.db":       {file, eventlog.Options{URL: empty}, "has its log in log.db"},
		"a log of another folder":    {t.TempDir(), eventlog.Options{URL: at}, "has the log of another data folder"},
		"another log":                {second, eventlog.Options{URL: at}, "has another log than the one of"},
		"another log, for reading":   {second, eventlog.Options{URL: at, ReadOnly: true}, "has another log than the one of"},
		"the log is gone":            {folder, eventlog.Options{URL: empty}, "has lost its log: head is there"},
		"no log, for reading":        {t.TempDir(), eventlog.Options{URL: empty, ReadOnly: true}, "holds no log"},
		"log.url that is no address": {damaged, eventlog.Options{}, "does not name a PostgreSQL server"},
		"no schema":                  {t.TempDir(), eventlog.Options{URL: server.URL() + "?search_path=nowhere"}, "no schema"},
		"no server":                  {t.TempDir(), eventlog.Options{URL: "postgres://bridge:secret@127.0.0.1:1/bridge"}, "postgres://bridge:xxxxx@127.0.0.1:1/bridge"},
	} {
		if err := open(c.folder, c.o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	if _, err := eventlog.TakeSnapshot(ctx, folder); err == nil || !strings.Contains(err.Error(), "pg_dump") {
		t.Errorf("a snapshot: %v", err)
	}
	// The server has moved.
	moved, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	moved.Host = strings.Replace(moved.Host, "127.0.0.1", "localhost", 1)
	if err := open(folder, eventlog.Options{URL: moved.String()}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(folder, eventlog.URLName)); err != nil || !strings.HasPrefix(string(b), moved.String()+"\n") {
		t.Errorf("%s is %q, %v", eventlog.URLName, b, err)
	}
	// A new folder takes over the log of one that is lost: whether it is whole is not known.
	taken := t.TempDir()
	must(t, os.WriteFile(filepath.Join(taken, eventlog.URLName), []byte(at+"\n"), 0o600))
	l, _ = filled(t, taken, event.Reference)
	if loss := l.Loss(); loss == nil || loss.Unknown == "" {
		t.Errorf("taken over: %v", loss)
	}
	if events, err := all(l); err != nil || len(events) == 0 {
		t.Errorf("taken over: %d events, %v", len(events), err)
	}
	sound(t, l)
	closed(t, l)
}

// TestServerOlder: a server that has lost commits is noticed, as an older copy of a file is.
func TestServerOlder(t *testing.T) {
	testenv.Heavy(t)
	ctx := context.Background()
	folder := onServer(t, testenv.SharedPostgres(t).NewSchema(t))
	l, src := filled(t, folder, event.Redirect)
	must(t, add(l, src, 0, 20))
	closed(t, l)
	head, err := os.ReadFile(filepath.Join(folder, eventlog.HeadName))
	if err != nil {
		t.Fatal(err)
	}
	// What the folder knows of the log: five events more than there are.
	l, src = filled(t, folder, event.Redirect)
	must(t, add(l, src, 20, 5))
	newer, err := os.ReadFile(filepath.Join(folder, eventlog.HeadName))
	if err != nil || string(newer) == string(head) {
		t.Fatal("the head did not move", err)
	}
	for _, text := range []string{"DELETE FROM event WHERE id & ((1::bigint << 40) - 1) > 20", "UPDATE log SET commits = commits - 1, last_event = (SELECT max(id) FROM event)"} {
		must(t, l.Exec(ctx, text))
	}
	_ = l.Close() // which may find fault
	must(t, os.WriteFile(filepath.Join(folder, eventlog.HeadName), newer, 0o600))
	l = mustOpen(t, folder, eventlog.Options{ReadOnly: true})
	if loss := l.Loss(); loss == nil || !loss.Events() || !strings.Contains(fmt.Sprint(loss), "Seq 21 to 25") {
		t.Errorf("lost were %v", loss)
	}
	closed(t, l)
}

// TestServerOvertaken: a server that takes the place of another, and lacks its last commit,
// is noticed before anything is written to it.
func TestServerOvertaken(t *testing.T) {
	testenv.Heavy(t)
	ctx := t.Context()
	folder := onServer(t, testenv.SharedPostgres(t).NewSchema(t))
	l, src := filled(t, folder, event.Redirect)
	defer l.Close()
	must(t, add(l, src, 0, 20))
	must(t, l.Exec(ctx, "UPDATE format SET last = 'the mark of the one before'"))
	if err := l.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())"); err == nil {
		t.Fatal("the session has not ended")
	}
	for range 2 {
		if err := add(l, src, 20, 5); !errors.Is(err, eventlog.ErrStopped) || !strings.Contains(err.Error(), "begins a new epoch") {
			t.Errorf("written to a server that has less: %v", err)
		}
	}
	if events, err := all(l); err != nil || len(events) != 20 {
		t.Errorf("%d events, %v", len(events), err)
	}
}

// TestEarlierFormat: a log of an earlier version, in which documents have no kind, and sets no
// first feed, is brought up to date, in a file and on a server. A walk under way goes on.
func TestEarlierFormat(t *testing.T) {
	testenv.Heavy(t)
	for name, earlier := range map[string]string{"file": "PRAGMA user_version = 8", "server": "UPDATE format SET version = 8"} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if name == "server" {
				folder = onServer(t, testenv.SharedPostgres(t).NewSchema(t))
			}
			l, src := filled(t, folder, event.Redirect)
			must(t, add(l, src, 0, 10))
			was, err := all(l)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{"ALTER TABLE document DROP COLUMN kind", "ALTER TABLE sets DROP COLUMN first_feed", "DROP INDEX pending_partial", "ALTER TABLE source DROP COLUMN seen_sum", earlier} {
				must(t, l.Exec(t.Context(), text))
			}
			closed(t, l)
			l, _ = filled(t, folder, event.Redirect)
			defer l.Close()
			if now, err := all(l); err != nil || !slices.Equal(now, was) || len(was) != 10 {
				t.Errorf("%d events, and before %d, or others; %v", len(now), len(was), err)
			}
			sound(t, l)
			must(t, add(l, src, 10, 5))
			sound(t, l)
		})
	}
}
