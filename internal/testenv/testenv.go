// Package testenv finds what tests need and may lack: independent programs that may not be
// installed, documents beside the repository, and time. Only tests import it.
package testenv

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Required reports whether a missing peer is a failure: BRIDGE_PEERS=required.
func Required() bool { return os.Getenv("BRIDGE_PEERS") == "required" }

// Need returns the path of an independent program. When it is missing, the test
// is skipped, or fails under BRIDGE_PEERS=required; either way the message names
// the Debian package to install.
func Need(t testing.TB, program, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		Missing(t, program, debianPackage)
	}
	return path
}

// Module returns the path of a Python that has a module: the python3 that PATH
// names, else the system's own, for which Debian's packages are. When neither has
// it, the test is skipped or fails as with Need.
func Module(t testing.TB, module, debianPackage string) (python string) {
	t.Helper()
	for _, name := range [...]string{"python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		find := "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
		if exec.Command(path, "-c", find, module).Run() == nil {
			return path
		}
	}
	Missing(t, "python3 module "+module, debianPackage)
	return ""
}

// Missing skips the test, or fails it under BRIDGE_PEERS=required, because a peer is
// missing.
func Missing(t testing.TB, name, debianPackage string) {
	t.Helper()
	if Required() {
		t.Fatalf("peer %s is missing: install the Debian package %s (make deps does)", name, debianPackage)
	}
	t.Skipf("peer %s is missing, so nothing is compared with it: install the Debian package %s (make deps does)", name, debianPackage)
}

// Shared returns the path of a file or folder of "shared", a folder beside the repository
// with schemas and samples that are not part of it. Without it the test is skipped,
// whatever BRIDGE_PEERS is: a clone does not have it.
func Shared(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Root(t), "..", "shared", filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		t.Skipf("../shared/%s is not part of the repository and is not here: %v", name, err)
	}
	return path
}

// Root returns the folder of go.mod.
func Root(t testing.TB) string {
	t.Helper()
	start, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no go.mod in %s or above it", start)
		}
	}
}

// Golden compares a text with a golden file, or writes the file.
func Golden(t testing.TB, write bool, file string, got []byte) {
	t.Helper()
	if write {
		if err := os.WriteFile(file, got, 0o644); err != nil { //nolint:gosec // everybody may read it
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		old := strings.Split(string(want), "\n")
		for i, line := range strings.Split(string(got), "\n") {
			if i >= len(old) || line != old[i] {
				t.Errorf("%s differs from line %d on; run make golden and look at the difference. Got:\n%s", file, i+1, line)
				return
			}
		}
		t.Errorf("%s is longer than what the code makes; run make golden", file)
	}
}

// Heavy skips a test under the race detector, which takes several times as long.
// Heavy tests run in the pass without it.
func Heavy(t testing.TB) {
	t.Helper()
	if raceDetector {
		t.Skip("heavy: runs without the race detector only")
	}
}

// Soaking reports whether long runs are wanted: BRIDGE_SOAK=1, set by make soak. A test
// with a short and a long form uses it to choose its number of rounds.
func Soaking() bool { return os.Getenv("BRIDGE_SOAK") == "1" }

// Rounds returns the number of rounds of a test: short in make test, a tenth of that under
// the race detector, long in a soak, and BRIDGE_ROUNDS where that is set.
func Rounds(t testing.TB, short, long int) int {
	t.Helper()
	if text := os.Getenv("BRIDGE_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("BRIDGE_ROUNDS=%s is not a number of rounds", text)
		}
		return n
	}
	if Soaking() {
		return long
	}
	if raceDetector {
		return max(1, short/10)
	}
	return short
}

// Soak skips a test that only makes sense as a long run.
func Soak(t testing.TB) {
	t.Helper()
	if !Soaking() {
		t.Skip("a long run: make soak")
	}
}

// checking is locked by the test that has set the flags.
var checking sync.Mutex

// Checks makes rapid check n cases of a law instead of 100 until the test ends, for laws
// whose cases are slow; under the race detector it is a tenth of n. The cases are the same
// each time, so that a new failure means a change. A soak, and a run with -rapid.checks or
// -rapid.seed, uses other cases, and a soak many. The package of the test must have rapid's
// flags, which are global: parallel tests that call Checks run one at a time.
func Checks(t testing.TB, n int) {
	t.Helper()
	checking.Lock()
	t.Cleanup(checking.Unlock)
	checks, seed := flag.Lookup("rapid.checks"), flag.Lookup("rapid.seed")
	switch {
	case checks.Value.String() != checks.DefValue:
		return
	case Soaking():
		set(t, checks, "2000")
		return
	case raceDetector:
		n = max(1, n/10)
	}
	set(t, checks, strconv.Itoa(n))
	if seed.Value.String() == seed.DefValue {
		set(t, seed, "1")
	}
}

// set sets a flag until the test ends.
func set(t testing.TB, f *flag.Flag, value string) {
	t.Helper()
	before := f.Value.String()
	if err := f.Value.Set(value); err != nil {
		t.Error(err)
	}
	t.Cleanup(func() {
		if err := f.Value.Set(before); err != nil {
			t.Error(err)
		}
	})
}
