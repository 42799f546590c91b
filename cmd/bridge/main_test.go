package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// In scripts, and for tests that kill it, "bridge" is this program, a process of
// its own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"bridge": main})
}
