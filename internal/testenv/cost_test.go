package testenv_test

import (
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

var sink []byte

// Errorf makes a recorder of failures that do not end the test.
func (r *recorder) Errorf(string, ...any) { r.verdict = "failed" }

// Work that grows with its input is affordable, work that grows with its square is
// not, in time and in memory.
func TestAffordable(t *testing.T) {
	testenv.Heavy(t) // or nothing is measured
	const n = 64 << 10
	for _, c := range []struct {
		name, want string
		f          func()
	}{
		{"nothing", "passed", func() {}},
		{"a copy", "passed", func() { sink = make([]byte, n) }},
		{"a copy for every eighth byte", "failed", func() {
			for range n / 8 {
				sink = make([]byte, n)
			}
		}},
		{"a look at each byte for each byte", "failed", func() {
			for i := range uint64(n) * n { // seconds, or a fast machine would afford it
				if i*i == 3 {
					t.Error(i)
				}
			}
		}},
	} {
		if got := outcome(t, func(r *recorder) { testenv.Affordable(r, n, c.f) }); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
