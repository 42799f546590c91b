package testenv

import (
	"flag"
	"strconv"
	"sync"
	"testing"
)

// checking is held by the test whose number of checks the flags have.
var checking sync.Mutex

// Checks makes rapid check n cases of a law instead of 100 until the test ends,
// where each costs much; under the race detector a tenth is enough. They are the same
// cases each time, so that what fails has changed; a soak, and whoever gives
// -rapid.checks or -rapid.seed, gets others, and a soak many. It is for tests whose
// package has rapid's flags, which are the process's: of parallel tests that ask for
// checks, one runs at a time.
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

// set gives a flag a value until the test ends.
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
