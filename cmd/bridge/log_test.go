package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// bridge log --follow ends when another log takes the place of the one that it reads, and says
// so: it would wait for good.
func TestFollowOfAReplacedLog(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	_, feed := newUpstream(t, "first", "second")
	f := newFolder(t, "")
	f.run(exitDone, "harvest", "--data", "data", feed)
	f.run(exitDone, "backup", "--data", "data", "b.tar.zst")
	c := f.start("log", "--data", "data", "--follow")
	if _, err := c.stdout.expect(regexp.MustCompile(`(?m)^ +2  .* created `)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(f.path, "data"), filepath.Join(f.path, "old")); err != nil {
		t.Fatal(err)
	}
	f.run(exitDone, "restore", "--data", "data", "b.tar.zst")
	f.wantStatus(c, exitFailed)
	if said := c.stderr.String(); !strings.Contains(said, "bridge: --follow has ended: the data folder was ") {
		t.Errorf("it says %q", said)
	}
}

// bridge log --follow of a set ends when that gets another name, and says which.
func TestFollowOfARenamedSet(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	_, feed := newUpstream(t, "first", "second")
	f := newFolder(t, "")
	f.run(exitDone, "harvest", "--data", "data", feed)
	c := f.start("log", "--data", "data", "--set", "main", "--follow")
	if _, err := c.stdout.expect(regexp.MustCompile(`(?m)^ +2  .* created `)); err != nil {
		t.Fatal(err)
	}
	f.run(exitDone, "set", "rename", "--data", "data", "main", "other")
	f.wantStatus(c, exitFailed)
	if said, want := c.stderr.String(), `bridge: --follow has ended: set "main" is called "other" by now: go on with --set other --after 2`; !strings.Contains(said, want) {
		t.Errorf("it says %q, want %q", said, want)
	}
}
