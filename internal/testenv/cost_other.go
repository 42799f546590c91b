//go:build !linux

package testenv

import "time"

var started = time.Now()

// threadTime is the time that has passed, where threads have no clock of their own.
func threadTime() time.Duration { return time.Since(started) }
