//go:build !linux

package harvest

import "io/fs"

// changedAt returns when the state of a file last changed, in nanoseconds; 0 is unknown.
func changedAt(fs.FileInfo) int64 { return 0 }

// deviceOf returns the file system that a folder is on; 0 is unknown.
func deviceOf(fs.FileInfo) uint64 { return 0 }
