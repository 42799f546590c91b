package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// openFile opens a bridge with the configuration in a file.
func openFile(t *testing.T, file string) *Bridge {
	t.Helper()
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return openBridge(t, c, Options{})
}

// openWritten opens a bridge with a configuration until the test ends.
func openWritten(t *testing.T, file, text string) *Bridge {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b := openFile(t, file)
	t.Cleanup(func() { closeBridge(t, b) })
	return b
}

// TestRenameByHand: a set is renamed even if a file of the configuration cannot be written. A
// person is told what to write, and until then the former name there means the set; no other
// set gets a former name by that.
func TestRenameByHand(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	sets, err := os.Create(filepath.Join(folder, "sets.toml"))
	if err != nil {
		t.Fatal(err)
	}
	defer sets.Close()
	fmt.Fprint(sets, "[[set]]\nname = \"a\"\n[[set.source]]\nurl = \"http://127.0.0.1:9/a\"\n")
	if err := os.Remove(sets.Name()); err != nil { // it has no place where it could be replaced
		t.Fatal(err)
	}
	at := fmt.Sprintf("/proc/self/fd/%d", sets.Fd())
	if _, err := os.Stat(at); err != nil {
		t.Skip("only where open files have a path")
	}
	file := filepath.Join(folder, "bridge.toml")
	b := openWritten(t, file, fmt.Sprintf("data = %q\ninclude = [%q]\n", filepath.Join(folder, "data"), at))
	_, err = b.RenameSet(t.Context(), "a", "b", false)
	if err == nil || !strings.Contains(err.Error(), "set a is called b") || !strings.Contains(err.Error(), `line 2, "b" instead of "a"`) {
		t.Fatalf("it says %v", err)
	}
	if _, err := b.Log.Set(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	if now := b.movedTo("b"); now != "" {
		t.Errorf("b leads to %s", now)
	}
	if _, err := b.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if all, err := b.Log.Sets(t.Context()); err != nil || len(all) != 1 || all[0].Name != "b" {
		t.Errorf("the sets are %+v, %v", all, err)
	}
}

// TestRenameWaits: a command that changes the configuration has it read again while others
// wait for it: who renames a set is not in its way.
func TestRenameWaits(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	text := fmt.Sprintf("data = %q\n", filepath.Join(folder, "data"))
	for _, name := range []string{"a", "gone"} {
		text += fmt.Sprintf("[[set]]\nname = %q\n[[set.source]]\nurl = \"http://127.0.0.1:9/%[1]s\"\n", name)
	}
	b := openWritten(t, file, text)
	e, err := config.NewEdit(t.Context(), file, config.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	done, failed := make(chan struct{}), make(chan error, 2)
	go func() {
		_, err := b.RenameSet(t.Context(), "a", "b", false)
		failed <- err
	}()
	go func() {
		_, err := b.RemoveSet(t.Context(), "gone", true)
		failed <- err
	}()
	go func() {
		defer close(done)
		for range 100 {
			if _, err := b.Reload(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("nothing can be read again")
	}
	e.Close()
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	<-done
}

// TestRenameToConfigured: a name that another set has in the file is refused, also when that
// was written since the file was read: its set would be taken for the renamed one, or refused.
func TestRenameToConfigured(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	text := fmt.Sprintf("data = %q\n[[set]]\nname = \"a\"\n[[set.source]]\nurl = \"http://127.0.0.1:9/a\"\n", filepath.Join(folder, "data"))
	b := openWritten(t, file, text)
	text += "[[set]]\nname = \"b\"\n[[set.source]]\nurl = \"http://127.0.0.1:9/b\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := b.RenameSet(t.Context(), "a", "b", true); err == nil || !strings.Contains(err.Error(), `another set "b"`) {
		t.Errorf("it says %q, %v", said, err)
	}
	if is, err := os.ReadFile(file); err != nil || string(is) != text {
		t.Errorf("the file is now %q, %v", is, err)
	}
	if _, err := b.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if all, err := b.Log.Sets(t.Context()); err != nil || len(all) != 2 || all[0].Name != "a" {
		t.Errorf("the sets are %+v, %v", all, err)
	}
}

// TestSnapshotsOfFormerSets: the snapshots and dumps of sets that were removed or renamed go
// when the data folder is next opened for writing, if a kill left them there. Those of sets that
// are not configured stay.
func TestSnapshotsOfFormerSets(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	data := filepath.Join(folder, "data")
	log, err := eventlog.Open(t.Context(), data, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "removed", "renamed"} {
		if err := log.EnsureSet(t.Context(), eventlog.SetConfig{Name: name, Content: event.Mirror}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kept", "removed", "renamed", ".gone-removed"} { // the last a kill has left while it was being removed
		dump := filepath.Join(data, "snapshots", name, "resourcedump", "7")
		if err := errors.Join(os.MkdirAll(dump, 0o700), os.WriteFile(filepath.Join(dump, "1.zip"), []byte("contents"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// What a command does before it drops their files.
	if err := errors.Join(log.RemoveSet(t.Context(), "removed"), log.RenameSet(t.Context(), "renamed", "other", false), log.Close()); err != nil {
		t.Fatal(err)
	}
	openWritten(t, filepath.Join(folder, "bridge.toml"), fmt.Sprintf("data = %q\n[[set]]\nname = \"other\"\n[[set.source]]\nurl = \"http://127.0.0.1:9/a\"\n", data))
	left, err := os.ReadDir(filepath.Join(data, "snapshots"))
	if err != nil || len(left) != 1 || left[0].Name() != "kept" {
		t.Errorf("the folder has snapshots of %v, %v", left, err)
	}
}
