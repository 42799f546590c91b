//go:build unix && !linux

package database

// limitSilence does nothing here: the system decides how long it tries.
func limitSilence(int) error { return nil }
