package pattern_test

import (
	"testing"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// A pattern is compiled once, and one that is none says so when it is used.
func TestOf(t *testing.T) {
	good := pattern.Of(`^[a-z]+$`)
	if !good().MatchString("bridge") || good().MatchString("1") {
		t.Errorf("%v is not the pattern", good())
	}
	if first, second := good(), good(); first != second {
		t.Error("it is compiled twice")
	}
	bad := pattern.Of(`(`)
	defer func() {
		if recover() == nil {
			t.Error("a pattern that is none is used")
		}
	}()
	bad()
}
