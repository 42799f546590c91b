package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestKillFolder: harvests of a folder are killed at any moment, while its files come,
// change and go in between. The log then has what the folder has, and each event once.
func TestKillFolder(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	f := newFolder(t, "")
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	model := map[string]string{}
	version := 0
	put := func(n int) {
		version++
		name := fmt.Sprintf("d%d/%d.txt", n%7, n)
		model[name] = fmt.Sprintf("%08d", version)
		at := filepath.Join(f.path, "records", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(model[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 1500 {
		put(n)
	}
	killed := 0
	for range testenv.Rounds(t, 6, 200) {
		c := f.start("harvest", "--data", "data", "set=folder:records")
		select {
		case <-time.After(time.Duration(random.IntN(1500)) * time.Millisecond):
			c.kill()
			killed++
		case <-c.ended:
		}
		for range random.IntN(40) {
			put(random.IntN(1500))
		}
		left := random.IntN(10) // of more deletions the guard would hold some (A6)
		for name := range model {
			if left--; left < 0 {
				break
			}
			delete(model, name)
			if err := os.Remove(filepath.Join(f.path, "records", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.run(exitDone, "harvest", "--data", "data", "--full", "set=folder:records")
	f.run(exitDone, "verify", "--data", "data")
	f.run(exitDone, "audit", "--data", "data")
	live, events := map[string]bool{}, 0
	for line := range bytes.Lines([]byte(f.run(exitDone, "log", "--data", "data", "--json").stdout)) {
		var e struct{ Kind, Record string }
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		events++
		name := e.Record[strings.LastIndexByte(e.Record, ':')+1:]
		if live[name] == (e.Kind == "created") {
			t.Fatalf("event %d: %s is %s again", events, name, e.Kind)
		}
		if live[name] = true; e.Kind == "deleted" {
			delete(live, name)
		}
	}
	if want := maps.Collect(func(yield func(string, bool) bool) {
		for name := range model {
			if !yield(name, true) {
				return
			}
		}
	}); !maps.Equal(live, want) {
		t.Errorf("%d records live, want %d", len(live), len(want))
	}
	t.Logf("killed %d harvests, %d events", killed, events)
}
