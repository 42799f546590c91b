package main

import (
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// A bridge that is killed while it writes a backup leaves nothing under the backup's
// name.
func TestKillBackup(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	noise := make([]byte, 300<<10) // more than a pipe takes
	for i := range noise {
		noise[i] = byte(rand.N(256))
	}
	p := fixtures.New(fixtures.Options{})
	p.Create(fixtures.Record{Name: "a", Formats: []fixtures.Format{{Ext: "bin", Type: "application/octet-stream", Body: noise}}})
	source := httptest.NewServer(p)
	t.Cleanup(source.Close)
	f := newFolder(t, "data = \"data\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \""+source.URL+fixtures.Subscription+"\"\n")
	f.run(exitDone, "harvest")

	partial := filepath.Join(f.path, "kept.partial")
	if err := syscall.Mkfifo(partial, 0o600); err != nil { // so it cannot end before this test has read it all
		t.Fatal(err)
	}
	c := f.start("backup", "kept")
	read, err := os.Open(partial)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := io.ReadFull(read, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	c.kill()
	if _, err := os.Stat(filepath.Join(f.path, "kept")); !os.IsNotExist(err) {
		t.Errorf("a half backup is there: %v", err)
	}
	if err := os.Remove(partial); err != nil {
		t.Fatal(err)
	}
	f.run(exitDone, "backup", "kept")
	f.run(exitDone, "restore", "--data", "restored", "kept")
	f.run(exitDone, "verify", "--data", "restored")
}
