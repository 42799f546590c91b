//go:build !linux

package fetch

import "io/fs"

// ChangedAt returns when the state of a file last changed, in nanoseconds; 0 is unknown.
func ChangedAt(fs.FileInfo) int64 { return 0 }
