package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// An order to withdraw that was left for a bridge, which is killed with SIGKILL
// before it takes it, as is who has left it, is taken by the next one.
func TestWithdrawalOutlivesAKill(t *testing.T) {
	folder := t.TempDir()
	config := filepath.Join(folder, "bridge.toml")
	if err := os.WriteFile(config, []byte("data = \"data\"\n"+ingestConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := func(args ...string) *child {
		t.Helper()
		c, err := start(folder, nil, "bridge", args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.kill)
		return c
	}
	first := begin("serve", "--listen", "127.0.0.1:0")
	base, err := first.ready()
	if err != nil {
		t.Fatal(err)
	}
	name := "145"
	library := &sip.HTTPClient{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, URL: base + "/sip/library"}
	disp, err := library.Ingest(t.Context(), &sip.Request{Source: &sip.Source{Identifier: &name}, Record: sip.Record{XML: []byte(`<r xmlns="urn:r"/>`)}})
	if err != nil || disp.Outcome != sip.Accepted {
		t.Fatalf("submitted: %+v, %v", disp, err)
	}

	// It has the data folder, and takes nothing any more.
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	command := begin("submission", "withdraw", "--set", "library", disp.AssignedIdentifier)
	decisions := filepath.Join(folder, "data", "decisions", "*.json")
	awaitFiles(t, decisions, 1)
	command.kill()
	first.kill()
	if out := command.stdout.String(); out != "" {
		t.Errorf("the command says %q of what has not happened", out)
	}

	second := begin("serve", "--listen", "127.0.0.1:0")
	if _, err := second.ready(); err != nil {
		t.Fatal(err)
	}
	awaitFiles(t, decisions, 0)
	out, err := bridgeOutput(folder, "log", "--set", "library")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); err != nil || len(lines) != 2 || !strings.Contains(lines[1], "  "+event.Deleted.String()+"   library  "+disp.AssignedIdentifier) {
		t.Errorf("the log has:\n%s(%v)", out, err)
	}
	if out, err := bridgeOutput(folder, "verify"); err != nil || !strings.Contains(out, ": 0 findings") {
		t.Errorf("verify: %v\n%s", err, out)
	}
}

// awaitFiles waits until so many files match.
func awaitFiles(t *testing.T, pattern string, n int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); ; {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == n {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%d files match %s, want %d", len(found), pattern, n)
		}
	}
}

// bridgeOutput runs a command in a folder to its end.
func bridgeOutput(folder string, args ...string) (string, error) {
	c, err := start(folder, nil, "bridge", args...)
	if err != nil {
		return "", err
	}
	_, err = c.status()
	return c.stdout.String(), err
}
