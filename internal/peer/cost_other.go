//go:build !linux

package peer

import "time"

var started = time.Now()

// threadTime is the time that has passed, where threads have no clock of their own.
func threadTime() time.Duration { return time.Since(started) }
