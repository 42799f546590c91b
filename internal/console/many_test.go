package console_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// withMany opens a bridge with a number of sets of one Source each, and one set of several.
func withMany(t *testing.T, sets, inOne int) *daemon.Bridge {
	t.Helper()
	var file strings.Builder
	file.WriteString("data = \"data\"\n")
	source := func(n int) {
		fmt.Fprintf(&file, "[[set.source]]\nkind = \"atompmh\"\nname = \"source %d\"\nurl = \"http://127.0.0.1:9/%[1]d.atom\"\n", n)
	}
	for n := range sets {
		fmt.Fprintf(&file, "[[set]]\nname = \"set-%04d\"\ncontent = \"redirect\"\n", n)
		source(n)
	}
	file.WriteString("[[set]]\nname = \"large\"\ncontent = \"redirect\"\n")
	for n := range inOne {
		source(sets + n)
	}
	path := filepath.Join(t.TempDir(), "bridge.toml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// The state of everything is read for each page, and by everybody who may ask for one: of very
// many sets it must not cost some requests to the log for each.
func TestStatusOfMany(t *testing.T) { // not parallel: it counts allocations
	const sets = 500
	b := withMany(t, sets, 1)
	if cost := testing.AllocsPerRun(3, func() {
		if _, err := b.Status(t.Context()); err != nil {
			t.Error(err)
		}
	}) / sets; cost > 250 {
		t.Errorf("the state of one set takes %.0f allocations", cost)
	}
}
