package fetch

import (
	"io/fs"
	"syscall"
)

// ChangedAt returns when the state of a file last changed, in nanoseconds: unlike the
// time of its modification nobody can set it. 0 is unknown.
func ChangedAt(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ctim.Nano()
	}
	return 0
}
