package audit

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An audit works below the data folder, and removes what others have left there that were
// cut off; not what one holds that still runs, nor a folder of another kind.
func TestFolder(t *testing.T) {
	in, now := t.TempDir(), time.Now()
	for _, name := range []string{folderPrefix + "left", folderPrefix + "held", "other"} {
		if err := os.MkdirAll(filepath.Join(in, name, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(in, name), now, now.Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	held, err := hold(filepath.Join(in, folderPrefix+"held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	dir, done, err := makeFolder(in)
	if err != nil || filepath.Dir(dir) != in {
		t.Fatalf("it is %s: %v", dir, err)
	}
	names := func() (all []string) {
		entries, err := os.ReadDir(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	if got := names(); len(got) != 3 {
		t.Errorf("there are %q", got)
	}
	if err := done(); err != nil || len(names()) != 2 {
		t.Errorf("afterwards there are %q: %v", names(), err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	dir, done, err = makeFolder(filepath.Join(in, "none"))
	if err != nil || filepath.Dir(dir) != os.TempDir() {
		t.Errorf("without a folder it is %s: %v", dir, err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
}
