package eventlog

import (
	"os"

	"golang.org/x/sys/unix"
)

// sinceBoot is a clock that never jumps and does not stop while the machine is
// suspended.
const sinceBoot = unix.CLOCK_BOOTTIME

// allocate reserves the disk space of a file.
func allocate(f *os.File, size int64) error { return unix.Fallocate(int(f.Fd()), 0, 0, size) }
