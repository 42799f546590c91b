package backup_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/backup"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.WithS3(testenv.WithPostgres(m))) }

// contentsOf returns how many contents the data folder of a place has, each read and checked.
func contentsOf(t *testing.T, p backup.Place) int64 {
	t.Helper()
	log, err := eventlog.Open(t.Context(), p.Folder, eventlog.Options{URL: p.URL, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	owner := content.Owner{Folder: p.Folder}
	owner.URL, owner.Identity = log.Server()
	path, err := content.Locate(t.Context(), owner, p.Bucket)
	if err != nil {
		t.Fatal(err)
	}
	if database.OnServer(path) != (p.URL != "" && p.Bucket != "") {
		t.Errorf("the contents are in %s", path)
	}
	s, err := content.Open(t.Context(), path, content.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n, err := s.Verify(t.Context(), true, func(sum content.Sum, err error) {
		if err != nil {
			t.Errorf("%s: %v", sum, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return n.Count
}

// TestCopyContents: contents go with the log from a file to a server, to another one and back,
// also when the copy is interrupted after them and begun again. Contents of another log are
// never replaced.
func TestCopyContents(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.SharedPostgres(t)
	const bucket = "s3://library?endpoint=http://127.0.0.1:1" // it is not asked
	taken := postgres.NewSchema(t)
	beside, err := content.PlaceBeside(t.Context(), taken)
	if err != nil {
		t.Fatal(err)
	}
	s, err := content.Open(t.Context(), beside, content.Options{Spool: t.TempDir(), Log: "another"})
	if err == nil {
		err = errors.Join(s.Put(t.Context(), content.NewDraft([]byte("of another"))), s.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	from := backup.Place{Folder: newFolder(t)}
	for i, to := range []backup.Place{{URL: postgres.NewSchema(t), Bucket: bucket}, {URL: postgres.NewSchema(t), Bucket: bucket}, {}, {URL: postgres.NewSchema(t)}, {Bucket: bucket}} {
		var input *backup.InputError
		if i < 2 { // from a file, and from a server
			if _, err := backup.Copy(t.Context(), from, backup.Place{Folder: t.TempDir(), URL: taken, Bucket: to.Bucket}, nil); !errors.As(err, &input) || !errors.Is(err, database.ErrTaken) {
				t.Errorf("where contents are of another log: %v", err)
			}
		}
		to.Folder = t.TempDir()
		ctx, interrupt := context.WithCancel(t.Context())
		_, err := backup.Copy(ctx, from, to, func(int64) { interrupt() }) // in the log, after the contents
		interrupt()
		if err == nil {
			t.Fatal("it was not interrupted")
		}
		if to.URL != "" && to.Bucket != "" { // by now somebody else may have it
			if _, err := backup.Copy(t.Context(), from, backup.Place{Folder: to.Folder, URL: taken, Bucket: bucket}, nil); !errors.Is(err, database.ErrTaken) {
				t.Errorf("begun again where contents are of another log: %v", err)
			}
		}
		c, err := backup.Copy(t.Context(), from, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := contentsOf(t, to); n != 1 || c.ContentBytes < 200<<10 {
			t.Errorf("%+v: %d contents, %d bytes were copied", to, n, c.ContentBytes)
		}
		if _, err := os.Stat(filepath.Join(to.Folder, content.FileName)); (err == nil) == (to.URL != "" && to.Bucket != "") {
			t.Errorf("%+v: %v", to, err)
		}
		from = to
	}
	if s, err = content.Open(t.Context(), beside, content.Options{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n, err := s.Stats(t.Context()); err != nil || n.Count != 1 {
		t.Errorf("the contents of another log: %+v, %v", n, err)
	}
}

// TestCopyTakenOver: a copy that has lost its connection does not end when another node has written
// the log meanwhile, and that one goes on.
func TestCopyTakenOver(t *testing.T) {
	postgres := testenv.SharedPostgres(t)
	from, to := backup.Place{Folder: newFolder(t)}, backup.Place{Folder: t.TempDir()}
	server := backup.Place{Folder: t.TempDir(), URL: postgres.NewSchema(t)}
	if _, err := backup.Copy(t.Context(), from, server, nil); err != nil {
		t.Fatal(err)
	}
	beside, err := eventlog.Open(t.Context(), t.TempDir(), eventlog.Options{URL: server.URL, Beside: true})
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	var taken *eventlog.Log
	_, err = backup.Copy(t.Context(), server, to, func(int64) { // when all is read
		err := eventlog.ErrInUse
		for errors.Is(err, eventlog.ErrInUse) { // the copy may be faster, once, with its checkpoint
			postgres.EndWriter(t, server.URL)
			taken, err = beside.TakeOver(t.Context())
		}
		if err == nil {
			err = errors.Join(taken.EnsureSet(t.Context(), eventlog.SetConfig{Name: "late", Content: event.Reference}), taken.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if !errors.Is(err, eventlog.ErrInUse) {
		t.Errorf("it is copied: %v", err)
	}
	if taken == nil {
		t.Fatal("nobody has taken over")
	}
	if mark, err := eventlog.ReadMark(server.Folder, eventlog.MovedName); mark != "" || err != nil {
		t.Errorf("the folder has moved to %q, %v", mark, err)
	}
	l, err := eventlog.Open(t.Context(), server.Folder, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Set(t.Context(), "late")
	if err := errors.Join(err, l.Close()); err != nil {
		t.Error(err)
	}
	if _, err := backup.Copy(t.Context(), server, to, nil); err == nil || !strings.Contains(err.Error(), "neither is a copy of the other") {
		t.Errorf("copied again: %v", err)
	}
}

// TestCopyKilledInUnpack: a copy that was killed while it took contents back from a bucket, and is
// begun again after the original has changed, has all of them.
func TestCopyKilledInUnpack(t *testing.T) {
	s3 := testenv.SharedS3(t)
	s3.Setenv(t)
	var before atomic.Pointer[func()] // a request
	endpoint := s3.Proxy(t, func(http.ResponseWriter, *http.Request) bool {
		if f := before.Load(); f != nil {
			(*f)()
		}
		return false
	})
	from, to := backup.Place{Folder: newFolder(t)}, backup.Place{Folder: t.TempDir()}
	bucket := "s3://" + s3.NewBucket(t) + "?endpoint=" + endpoint
	add := func(n int) {
		t.Helper()
		s, err := content.Open(t.Context(), filepath.Join(from.Folder, content.FileName), content.Options{Bucket: bucket, Idle: true, Keep: -1})
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			body := make([]byte, 300<<10) // each is an object of its own
			rand.Read(body)
			if err := s.Put(t.Context(), content.NewDraft(body)); err != nil {
				t.Fatal(err)
			}
		}
		_, err = s.Tidy(t.Context(), content.TidyOptions{})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	add(4)

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	killed := map[string][]byte{} // what a kill leaves of the content store
	var requests atomic.Int32
	kill := func() {
		if requests.Add(1) != 4 {
			return
		}
		for _, end := range []string{"", "-wal", "-shm"} {
			body, err := os.ReadFile(filepath.Join(to.Folder, content.FileName+end))
			if err != nil {
				t.Error(err)
			}
			killed[end] = body
		}
		interrupt()
	}
	before.Store(&kill)
	if _, err := backup.Copy(ctx, from, to, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("not interrupted: %v", err)
	}
	before.Store(nil)
	if len(killed["-wal"]) == 0 {
		t.Fatal("nothing was taken back before the interruption")
	}
	for end, body := range killed {
		if err := os.WriteFile(filepath.Join(to.Folder, content.FileName+end), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add(20)
	if _, err := backup.Copy(t.Context(), from, to, nil); err != nil {
		t.Fatal(err)
	}
	if n := contentsOf(t, to); n != 25 {
		t.Errorf("the copy has %d contents, want 25", n)
	}
}

// TestCopyWithoutContents: a log that names contents is not copied without them, as if nothing
// had been lost.
func TestCopyWithoutContents(t *testing.T) {
	t.Parallel()
	from := withoutContents(t)
	if _, err := backup.Copy(t.Context(), backup.Place{Folder: from}, backup.Place{Folder: t.TempDir()}, nil); err == nil || !strings.Contains(err.Error(), "content.db is not there") {
		t.Errorf("without its contents: %v", err)
	}
}

// withoutContents makes a data folder with a record, and no contents.
func withoutContents(t *testing.T) (folder string) {
	t.Helper()
	folder = newFolder(t)
	if err := os.Remove(filepath.Join(folder, content.FileName)); err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), folder, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	source, err := log.EnsureSource(t.Context(), "main", "feed", "https://source.example/", 0)
	if err != nil {
		t.Fatal(err)
	}
	out, err := log.Append(t.Context(), &event.Batch{Source: source, Start: true, Documents: []event.Document{{URL: "https://source.example/"}}, Items: []*event.Item{{Observation: event.Observation{
		Record: "urn:a", Fetched: true, Representations: []event.Representation{{Href: "https://source.example/a", Length: 1, Hash: "sha-256:" + content.NewDraft([]byte("a")).Sum().String()}}}}}})
	if out.Created != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	if err := errors.Join(err, log.Close()); err != nil {
		t.Fatal(err)
	}
	return folder
}
