//go:build !linux

package harvest

import "io/fs"

// deviceOf returns the file system that a folder is on; 0 is unknown.
func deviceOf(fs.FileInfo) uint64 { return 0 }
