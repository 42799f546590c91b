package testenv

import (
	"flag"
	"strconv"
	"testing"
)

// Checks makes rapid check n cases of a law instead of 100 until the test ends,
// where each costs much; a soak and -rapid.checks have as many as they want, and
// under the race detector a tenth is enough. It is for tests whose package has
// rapid's flags.
func Checks(t testing.TB, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	before := f.Value.String()
	switch {
	case before != f.DefValue:
		return
	case Soaking():
		n = 2000
	case raceDetector:
		n = max(1, n/10)
	}
	set := func(value string) {
		if err := f.Value.Set(value); err != nil {
			t.Error(err)
		}
	}
	set(strconv.Itoa(n))
	t.Cleanup(func() { set(before) })
}
