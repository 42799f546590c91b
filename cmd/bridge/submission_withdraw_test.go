package main

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// Who asks a bridge to withdraw a record, and it is killed before it answers, is not
// told that it was withdrawn.
func TestWithdrawalIsKilled(t *testing.T) {
	f := newFolder(t, "data = \"data\"\n"+ingestConfig)
	first, base := f.serve("--listen", "127.0.0.1:0")
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
	command := f.start("submission", "withdraw", "--set", "library", disp.AssignedIdentifier)
	first.kill()
	if status, err := command.status(); err != nil || status != exitDone && status != exitFailed {
		t.Errorf("exit status %d, %v", status, err)
	}
	said := command.stdout.String()
	log := f.run(exitDone, "log", "--set", "library").stdout.String()
	if gone := strings.Contains(log, "  "+event.Deleted.String()+"   library  "+disp.AssignedIdentifier); gone != strings.Contains(said, "is withdrawn") {
		t.Errorf("the command says %q, and the log has:\n%s", said, log)
	}
	f.run(exitDone, "verify")
}
