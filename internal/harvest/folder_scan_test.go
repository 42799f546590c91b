package harvest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	r := newRun(&Harvester{Log: log}, &Source{Set: "main", URL: "file://" + folder + "/", Kind: Folder, Content: event.Mirror})
	w := &folderWalk{r: r}
	w.prepare()
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
