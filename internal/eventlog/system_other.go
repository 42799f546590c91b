//go:build unix && !linux

package eventlog

import (
	"os"

	"golang.org/x/sys/unix"
)

// sinceBoot is a clock that never jumps. Here it may stop while the machine is
// suspended: what follows looks like a jump then, and needs a restart.
const sinceBoot = unix.CLOCK_MONOTONIC

// allocate reserves the disk space of a file.
func allocate(f *os.File, size int64) error {
	_, err := f.Write(make([]byte, size))
	return err
}
