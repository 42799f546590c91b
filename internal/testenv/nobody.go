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
	address, release, err := reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return address
}

// reserve returns an address on loopback that is reserved until it is released.
func reserve() (address string, release func(), err error) {
	// A socket that is bound and does not listen reserves its port; others can listen on it
	// if they set SO_REUSEADDR, as net.Listen does.
	syscall.ForkLock.RLock() // or a process that starts now inherits it
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return "", nil, err
	}
	release = func() { _ = syscall.Close(fd) }
	err = errors.Join(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err != nil {
		release()
		return "", nil, err
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		release()
		return "", nil, err
	}
	if runtime.GOOS != "linux" {
		release() // other systems do not share a port like this; it probably stays free
		release = func() {}
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port), release, nil
}
