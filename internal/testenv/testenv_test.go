package testenv_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// outcome runs f as a test of its own and tells how it ended.
func outcome(t *testing.T, f func(t *recorder)) string {
	t.Helper()
	r := &recorder{TB: t, verdict: "passed"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil && v != any(r) {
				panic(v)
			}
		}()
		f(r)
	}()
	<-done
	return r.verdict
}

// recorder is a testing.TB that remembers a skip or a failure instead of
// reporting it.
type recorder struct {
	testing.TB
	verdict string
}

func (r *recorder) Skipf(string, ...any)  { r.verdict = "skipped"; panic(r) }
func (r *recorder) Skip(...any)           { r.verdict = "skipped"; panic(r) }
func (r *recorder) Fatalf(string, ...any) { r.verdict = "failed"; panic(r) }

func TestNeed(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "xmllint"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	for _, c := range []struct{ env, program, want string }{
		{"", "xmllint", "passed"},
		{"required", "xmllint", "passed"},
		{"", "jing", "skipped"},
		{"required", "jing", "failed"},
	} {
		t.Setenv("BRIDGE_PEERS", c.env)
		got := outcome(t, func(r *recorder) { testenv.Need(r, c.program, "some-package") })
		if got != c.want {
			t.Errorf("BRIDGE_PEERS=%q, %s: %s, want %s", c.env, c.program, got, c.want)
		}
	}
}

func TestModule(t *testing.T) {
	testenv.Heavy(t)
	testenv.Need(t, "python3", "python3")
	for _, c := range []struct{ env, module, want string }{
		{"", "json", "passed"},
		{"required", "json", "passed"},
		{"", "no_such_module", "skipped"},
		{"required", "no_such_module", "failed"},
	} {
		t.Setenv("BRIDGE_PEERS", c.env)
		got := outcome(t, func(r *recorder) {
			if python := testenv.Module(r, c.module, "some-package"); python == "" {
				r.Fatalf("no path")
			}
		})
		if got != c.want {
			t.Errorf("BRIDGE_PEERS=%q, %s: %s, want %s", c.env, c.module, got, c.want)
		}
	}
}

func TestSharedIsNeverAFailure(t *testing.T) {
	t.Setenv("BRIDGE_PEERS", "required")
	if got := outcome(t, func(r *recorder) { testenv.Shared(r, "no/such/file") }); got != "skipped" {
		t.Errorf("a missing file of ../shared: %s, want skipped", got)
	}
}

func TestSoak(t *testing.T) {
	for env, want := range map[string]string{"": "skipped", "1": "passed"} {
		t.Setenv("BRIDGE_SOAK", env)
		if got := outcome(t, func(r *recorder) { testenv.Soak(r) }); got != want {
			t.Errorf("BRIDGE_SOAK=%q: %s, want %s", env, got, want)
		}
	}
}

func TestRounds(t *testing.T) {
	short := 30
	if outcome(t, func(r *recorder) { testenv.Heavy(r) }) == "skipped" {
		short = 3
	}
	for _, c := range []struct {
		soak, rounds string
		want         int
	}{{"", "", short}, {"1", "", 70}, {"", "100", 100}, {"1", "100", 100}} {
		t.Setenv("BRIDGE_SOAK", c.soak)
		t.Setenv("BRIDGE_ROUNDS", c.rounds)
		if got := testenv.Rounds(t, 30, 70); got != c.want {
			t.Errorf("BRIDGE_SOAK=%q BRIDGE_ROUNDS=%q: %d rounds, want %d", c.soak, c.rounds, got, c.want)
		}
	}
	t.Setenv("BRIDGE_ROUNDS", "many")
	if got := outcome(t, func(r *recorder) { testenv.Rounds(r, 3, 7) }); got != "failed" {
		t.Errorf("BRIDGE_ROUNDS=many: %s, want failed", got)
	}
}

var sink []byte

// Errorf makes a recorder of failures that do not end the test.
func (r *recorder) Errorf(string, ...any) { r.verdict = "failed" }

// Work that grows with its input is affordable, more than is allowed is not, in time and in
// memory.
func TestAffordable(t *testing.T) {
	testenv.Heavy(t)   // or nothing is measured
	const n = 64 << 10 // they may take 0.63 s, and 34 MiB
	sum := 0
	for _, c := range []struct {
		name, want string
		f          func()
	}{
		{"nothing", "passed", func() {}},
		{"a copy", "passed", func() { sink = make([]byte, n) }},
		{"a copy for every 64th byte", "failed", func() {
			for range n / 64 {
				sink = make([]byte, n)
			}
		}},
		{"work for longer", "failed", func() {
			for began := testenv.ThreadTime(); testenv.ThreadTime() < began+700*time.Millisecond; {
				for range 10_000 {
					sum++
				}
			}
		}},
	} {
		if got := outcome(t, func(r *recorder) { testenv.Affordable(r, n, c.f) }); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
