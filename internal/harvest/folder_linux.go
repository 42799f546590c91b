package harvest

import (
	"io/fs"
	"syscall"
)

// changedAt returns when the state of a file last changed, in nanoseconds: unlike the
// time of its modification nobody can set it. 0 is unknown.
func changedAt(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ctim.Nano()
	}
	return 0
}

// deviceOf returns the file system that a folder is on; 0 is unknown.
func deviceOf(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Dev
	}
	return 0
}
