//go:build unix

package testenv_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// Nobody else gets the address, and whoever calls it is refused, before and after
// the test has listened there.
func TestNobody(t *testing.T) {
	address := testenv.Nobody(t)
	for range 2 {
		if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("called %s: %v, %v", address, c, err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if other := testenv.Nobody(t); other == address {
		t.Errorf("%s was given away twice", address)
	}
}
