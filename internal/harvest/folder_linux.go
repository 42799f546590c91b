package harvest

import (
	"io/fs"
	"syscall"
)

// deviceOf returns the file system that a folder is on; 0 is unknown.
func deviceOf(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Dev
	}
	return 0
}
