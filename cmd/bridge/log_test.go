package main

import (
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// What a stranger writes into an identifier or a reason makes no lines of its own
// and tells the terminal nothing.
func TestOneLineEach(t *testing.T) {
	const evil = "x\u009b2J\n       9  2026-01-01 00:00:00Z  deleted   main  y"
	var out strings.Builder
	rejected := &event.Event{Kind: event.Rejected, Origin: event.Origin{SourceIdentifier: evil, Reason: evil}}
	for _, ev := range []*event.Event{{Kind: event.Created, Record: evil, Title: evil}, rejected} {
		if err := printEvent(&out, ev, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := printSubmission(&out, &event.Submission{SourceIdentifier: evil, Reason: evil}, &jsonSubmission{}, nil, &listing{}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 3 || strings.Contains(out.String(), "\u009b") {
		t.Errorf("%d lines, want 3:\n%s", n, out.String())
	}
}
