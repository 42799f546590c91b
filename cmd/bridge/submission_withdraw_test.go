package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// Who asks a bridge to withdraw a record, and it is killed before it answers, is not
// told that it was withdrawn.
func TestWithdrawalIsKilled(t *testing.T) {
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
	first.kill()
	if status, err := command.status(); err != nil || status != exitDone && status != exitFailed {
		t.Errorf("exit status %d, %v", status, err)
	}
	said := command.stdout.String()
	out, err := bridgeOutput(folder, "log", "--set", "library")
	if gone := strings.Contains(out, "  "+event.Deleted.String()+"   library  "+disp.AssignedIdentifier); err != nil || gone != strings.Contains(said, "is withdrawn") {
		t.Errorf("the command says %q, and the log has:\n%s(%v)", said, out, err)
	}
	if out, err := bridgeOutput(folder, "verify"); err != nil || !strings.Contains(out, ": 0 findings") {
		t.Errorf("verify: %v\n%s", err, out)
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
