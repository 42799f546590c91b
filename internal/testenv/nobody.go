//go:build unix

package testenv

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
)

// Nobody returns an address on loopback, host:port, that is reserved for the test until the
// test ends: connections to it are refused until the test listens there.
func Nobody(t testing.TB) string {
	t.Helper()
	// A socket that is bound and does not listen reserves its port; the test itself can
	// listen on it (SO_REUSEADDR, which net.Listen sets too).
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	release := func() { _ = syscall.Close(fd) }
	if runtime.GOOS == "linux" {
		t.Cleanup(release)
	} else {
		defer release() // other systems do not share a port like this; it probably stays free
	}
	syscall.CloseOnExec(fd)
	err = errors.Join(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
}
