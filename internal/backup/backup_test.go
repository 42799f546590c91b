package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/backup"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// newFolder makes a data folder with a set and a content.
func newFolder(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	log, err := eventlog.Open(t.Context(), folder, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := content.Open(t.Context(), filepath.Join(folder, "content.db"), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 200<<10)
	for i := range noise {
		noise[i] = byte(rand.N(256))
	}
	err = store.Put(t.Context(), content.NewDraft(noise))
	if err := errors.Join(err, log.EnsureSet(t.Context(), eventlog.SetConfig{Name: "main", Content: event.Mirror}), store.Close(), log.Close()); err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestDamage: a backup in which a byte is another one, or that is cut off or goes on, is
// refused, and leaves nothing behind.
func TestDamage(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	original := newFolder(t)
	if _, err := backup.Write(t.Context(), original, &b, "test"); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	contents, err := os.ReadFile(filepath.Join(original, "content.db"))
	if err != nil {
		t.Fatal(err)
	}
	flipped := func(at int) []byte {
		out := bytes.Clone(whole)
		out[at] ^= 1 << rand.N(8)
		return out
	}
	cases := map[string][]byte{"empty": {}, "no end": whole[:len(whole)-1], "half": whole[:len(whole)/2], "more": append(bytes.Clone(whole), "more"...), "first": flipped(0), "last": flipped(len(whole) - 1)}
	for range 20 {
		cases["somewhere"] = flipped(rand.N(len(whole)))
		for name, bad := range cases {
			folder := filepath.Join(t.TempDir(), "data")
			_, err := backup.Restore(t.Context(), bytes.NewReader(bad), folder, backup.Options{})
			if same, _ := os.ReadFile(filepath.Join(folder, "content.db")); err == nil && bytes.Equal(same, contents) {
				continue // a bit that means nothing
			}
			if err == nil || !strings.Contains(err.Error(), "nothing was restored") {
				t.Errorf("%s: restored, %v", name, err)
			}
			if left, err := os.ReadDir(folder); err != nil || len(left) != 1 || left[0].Name() != eventlog.LockName {
				t.Errorf("%s: left %v, %v", name, left, err)
			}
		}
		cases = map[string][]byte{}
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "content.db"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(t.Context(), bytes.NewReader(whole), folder, backup.Options{}); !errors.Is(err, backup.ErrInUse) {
		t.Errorf("restored over contents: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "log.db.restoring"), whole, 0o600); err != nil { // of one that was killed when it had renamed the contents
		t.Fatal(err)
	}
	if _, err := backup.Restore(t.Context(), bytes.NewReader(whole), folder, backup.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := backup.Restore(t.Context(), bytes.NewReader(whole), folder, backup.Options{}); !errors.Is(err, backup.ErrInUse) {
		t.Errorf("restored over a data folder: %v", err)
	}
}

// TestFullDisk: a backup, or a copy, on a full disk says so once. The copy leaves no part of the
// contents there.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	const full = "/dev/full"
	f, err := os.OpenFile(full, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	folder, to := newFolder(t), t.TempDir()
	_, err = backup.Write(t.Context(), folder, f, "test")
	if !errors.Is(err, unix.ENOSPC) || strings.Count(err.Error(), unix.ENOSPC.Error()) != 1 {
		t.Errorf("backup: %v", err)
	}
	part := filepath.Join(to, "content.db.partial")
	if err := errors.Join(eventlog.WriteMark(to, eventlog.CopyingName, folder), os.Symlink(full, part)); err != nil { // as an interrupted copy leaves them
		t.Fatal(err)
	}
	_, err = backup.Copy(t.Context(), backup.Place{Folder: folder}, backup.Place{Folder: to}, nil)
	if !errors.Is(err, database.ErrFull) {
		t.Errorf("copy: %v", err)
	}
	if _, err := os.Lstat(part); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the part is there: %v", err)
	}
}

// TestRemovalDuringBackup: contents of a set that is removed while its log is copied are in the
// backup, which has that set.
func TestRemovalDuringBackup(t *testing.T) {
	t.Parallel()
	folder, restored := newFolder(t), t.TempDir()
	store, err := content.Open(t.Context(), filepath.Join(folder, "content.db"), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	draft := content.NewDraft([]byte("a record"))
	sum := draft.Sum()
	if err := store.Put(t.Context(), draft); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	begun := false
	_, err = backup.Write(t.Context(), folder, writing(func(p []byte) {
		if !begun {
			begun, err = true, store.Remove(t.Context(), sum)
		}
		b.Write(p)
	}), "test")
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(t.Context(), &b, restored, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	if store, err = content.Open(t.Context(), filepath.Join(restored, "content.db"), content.Options{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	blob, err := store.Open(t.Context(), sum)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(blob.Close(), store.Close()); err != nil {
		t.Error(err)
	}
}

// writing is a writer that hands over what it is given.
type writing func(p []byte)

func (w writing) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// TestRestoreHoldsFolder: no bridge begins a log in a folder that is being restored, and
// nothing is restored into one where a bridge begins.
func TestRestoreHoldsFolder(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if _, err := backup.Write(t.Context(), newFolder(t), &b, "test"); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	begin := func() error {
		log, err := eventlog.Open(t.Context(), folder, eventlog.Options{})
		if err != nil {
			return err
		}
		return log.Close()
	}
	var meanwhile error
	from := io.MultiReader(bytes.NewReader(b.Bytes()[:100]), reading(func() { meanwhile = begin() }), bytes.NewReader(b.Bytes()[100:]))
	var locked *eventlog.LockedError
	if _, err := backup.Restore(t.Context(), from, folder, backup.Options{}); err != nil || !errors.As(meanwhile, &locked) {
		t.Errorf("restored: %v; a log was begun meanwhile: %v", err, meanwhile)
	}
	if err := begin(); err != nil {
		t.Error(err)
	}
	folder = t.TempDir()
	release, err := eventlog.Hold(folder, "bridge serve")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(t.Context(), &b, folder, backup.Options{}); !errors.As(err, &locked) {
		t.Errorf("restored where a bridge begins: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// reading is an empty part of what is read, which does something when it is reached.
type reading func()

func (r reading) Read([]byte) (int, error) {
	r()
	return 0, io.EOF
}

// TestMovedAfterLoss: a log that has lost its end goes on in a new epoch, also in another
// folder.
func TestMovedAfterLoss(t *testing.T) {
	t.Parallel()
	original := newFolder(t)
	restore := func() error {
		var b bytes.Buffer
		if _, err := backup.Write(t.Context(), original, &b, "test"); err != nil {
			t.Fatal(err)
		}
		_, err := backup.Restore(t.Context(), &b, t.TempDir(), backup.Options{Moved: true})
		return err
	}
	if err := restore(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(original, eventlog.HeadName)); err != nil {
		t.Fatal(err)
	}
	if err := restore(); !errors.Is(err, backup.ErrLost) {
		t.Errorf("moved as if it were whole: %v", err)
	}
}

// TestRestoreAgain: a backup of which the log cannot be opened, since the clock is years ahead of
// it, leaves an empty folder. So it can be restored there with what the message asks for.
func TestRestoreAgain(t *testing.T) {
	t.Parallel()
	original, folder := t.TempDir(), t.TempDir()
	log, err := eventlog.Open(t.Context(), original, eventlog.Options{Clock: func() (time.Time, time.Duration) { return time.Now().AddDate(-3, 0, 0), 0 }})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(log.EnsureSet(t.Context(), eventlog.SetConfig{Name: "main", Content: event.Redirect}), log.Close()); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := backup.Write(t.Context(), original, &b, "test"); err != nil {
		t.Fatal(err)
	}
	restore := func(o backup.Options) error {
		_, err := backup.Restore(t.Context(), bytes.NewReader(b.Bytes()), folder, o)
		return err
	}
	if err := restore(backup.Options{}); !errors.Is(err, event.ErrClock) || !strings.Contains(err.Error(), "nothing was restored") {
		t.Errorf("the clock is not confirmed: %v", err)
	}
	if err := restore(backup.Options{AcceptClock: true}); err != nil {
		t.Errorf("the clock is confirmed: %v", err)
	}
}

// TestInterrupted: a backup that is not made to its end leaves the one before as it was.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	folder, path := newFolder(t), filepath.Join(t.TempDir(), "backup")
	if _, _, err := backup.WriteFile(t.Context(), folder, path, "test"); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := backup.WriteFile(ended, folder, path, "test"); !errors.Is(err, context.Canceled) {
		t.Errorf("written: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the backup before is not what it was: %v", err)
	}
	if _, err := os.Stat(path + ".partial"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left a part: %v", err)
	}
	to := &failing{left: 1000}
	if _, err := backup.Write(t.Context(), folder, to, "test"); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("written: %v", err)
	}
}

// TestWithoutContents: a folder that has lost its contents replaces no backup that has them.
func TestWithoutContents(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "backup")
	if _, _, err := backup.WriteFile(t.Context(), newFolder(t), path, "test"); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := backup.WriteFile(t.Context(), withoutContents(t), path, "test"); err == nil || !strings.Contains(err.Error(), "content.db is not there") {
		t.Errorf("without its contents: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the backup before is not what it was: %v", err)
	}
}

// TestForeignFile: what is no backup is not replaced, though it is compressed in the same way, or
// is a device.
func TestForeignFile(t *testing.T) {
	t.Parallel()
	folder, out := newFolder(t), t.TempDir()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	archive := z.EncodeAll(bytes.Repeat([]byte("an archive of something else"), 100), nil)
	files := map[string]string{"archive.tar.zst": string(archive), "damaged.zst": string(archive[:6]), "text": "text"}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(out, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(out, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Close() })
	if _, err := writer.Write(archive); err != nil { // so that nobody waits for it
		t.Fatal(err)
	}
	for name := range files {
		if _, _, err := backup.WriteFile(t.Context(), folder, filepath.Join(out, name), "test"); err == nil || !strings.HasSuffix(err.Error(), name+" is there, and is no backup: give another name, or remove it") {
			t.Errorf("%s: %v", name, err)
		}
		if data, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(data) != files[name] {
			t.Errorf("%s was replaced: %v", name, err)
		}
	}
	if _, _, err := backup.WriteFile(t.Context(), folder, pipe, "test"); err == nil {
		t.Error("a pipe was replaced")
	}
	path := filepath.Join(out, "empty")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and then a backup
		if _, _, err := backup.WriteFile(t.Context(), folder, path, "test"); err != nil {
			t.Error(err)
		}
	}
}

// TestLogOnServer: of a folder whose log is on a server no backup is made, since it would have
// no log, and none is restored into it, since it would have two. Nothing is left behind, and
// what was there stays.
func TestLogOnServer(t *testing.T) {
	t.Parallel()
	var whole bytes.Buffer
	if _, err := backup.Write(t.Context(), newFolder(t), &whole, "test"); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, eventlog.URLName), []byte("postgres://bridge@db.example/bridge\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(did string, err error) {
		t.Helper()
		if !errors.Is(err, backup.ErrOnServer) || !strings.Contains(err.Error(), folder+": its log is on a PostgreSQL server: ") || !strings.HasSuffix(err.Error(), "see docs/scale.md#backup") {
			t.Errorf("%s: %v", did, err)
		}
	}
	path := filepath.Join(t.TempDir(), "backup.tar.zst")
	if err := os.WriteFile(path, whole.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := backup.WriteFile(t.Context(), folder, path, "test")
	refused("written to a file", err)
	if has, err := os.ReadFile(path); err != nil || !bytes.Equal(has, whole.Bytes()) {
		t.Errorf("the backup before is not what it was: %v", err)
	}
	if _, err := os.Stat(path + ".partial"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left a part: %v", err)
	}
	var b bytes.Buffer
	_, err = backup.Write(t.Context(), folder, &b, "test")
	if refused("written", err); b.Len() > 0 {
		t.Errorf("wrote %d bytes", b.Len())
	}
	_, err = backup.Restore(t.Context(), &whole, folder, backup.Options{})
	refused("restored", err)
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 1 || left[0].Name() != eventlog.URLName {
		t.Errorf("left %v, %v", left, err)
	}
}

// failing takes so many bytes and then fails.
type failing struct{ left int }

func (f *failing) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}
