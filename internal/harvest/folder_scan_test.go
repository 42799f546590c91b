package harvest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A file system that is unmounted while a harvest looks through the folder takes its files
// along: what is left then is no folder of which files were deleted.
func TestUnmountedMeanwhile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, "disk"), 0o755); err != nil { // where it was mounted
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), filepath.Join(t.TempDir(), "data"), eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	if err := log.EnsureSet(t.Context(), eventlog.SetConfig{Name: "main"}); err != nil {
		t.Fatal(err)
	}
	r := newRun(&Harvester{Log: log}, &Source{Set: "main", URL: "file://" + folder + "/", Kind: Folder, Content: event.Mirror})
	w := &folderWalk{r: r}
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.root, err = r.src.openFolder(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.root.Close() })
	before := folderScan{mounts: []string{"disk"}} // as the first look has found it
	if err := w.mounted(before.mounts); err != nil {
		t.Fatal(err)
	}
	b := backlog[folderFile]{r: r, record: w.record}
	d := &folderDocument{w: w, ctx: t.Context(), before: before, last: true}
	if _, err := d.read(&b, func() error { return nil }); err == nil || !strings.Contains(err.Error(), "nothing is mounted any more at "+filepath.Join(folder, "disk")) || w.taken {
		t.Errorf("the folder is taken in (%v): %v", w.taken, err)
	}
}

// A link that leads to nothing is no file; one that cannot be followed may be one.
func TestLeadsNowhere(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	root, err := os.OpenRoot(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	for name, to := range map[string]string{"out": "../..", "absolute": "/etc/passwd", "self": "self", "dead": "nothing", "file": "is/file", "long": strings.Repeat("x", 300)} {
		if err := os.Symlink(to, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := root.Stat(name); err == nil || !leadsNowhere(err) {
			t.Errorf("a link to %s: %v", to, err)
		}
	}
	for _, number := range []syscall.Errno{syscall.EACCES, syscall.EIO, syscall.ESTALE, syscall.EMFILE} {
		if err := (&os.PathError{Op: "statat", Path: "x", Err: number}); leadsNowhere(err) {
			t.Errorf("%v", err)
		}
	}
	found, err := scanFolder(context.Background(), root, time.Now(), nil, func(string, string) {})
	if err != nil || found.unread != nil {
		t.Errorf("the links: %v, %v", found.unread, err)
	}
}
