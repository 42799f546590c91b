package testenv

import (
	"flag"
	"strconv"
	"sync"
	"testing"
)

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
