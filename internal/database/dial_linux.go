package database

import "golang.org/x/sys/unix"

// limitSilence ends a connection when what was sent over it has not arrived for so long.
// Else the system tries for a quarter of an hour.
func limitSilence(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
}
