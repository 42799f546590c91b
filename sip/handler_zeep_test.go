package sip_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// moody is a server that fails for some records.
type moody struct{ memoryServer }

func (m *moody) Ingest(ctx context.Context, c sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	switch r.Record.Root.Local {
	case "badrecipient":
		return nil, &sip.Fault{Code: sip.Client, Text: "not that recipient", Path: "ingest-request/notification-recipient"}
	case "disk":
		return nil, errors.New("disk is full")
	case "denied":
		return nil, &sip.Denied{Status: 429, Reason: "slowly"}
	}
	return m.memoryServer.Ingest(ctx, c, r)
}

// zeepLine is what the Python script tells of one call.
type zeepLine struct {
	Step              string
	Answer            any
	Fault, Text, Path string
	Status            int
}

// runZeep runs the script and returns its lines by their step.
func runZeep(t *testing.T, args ...string) map[string]zeepLine {
	t.Helper()
	python := testenv.Module(t, "zeep", "python3-zeep")
	cmd := exec.Command(python, append([]string{filepath.Join("testdata", "zeep_client.py")}, args...)...)
	var out, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), wrong.String())
	}
	lines := map[string]zeepLine{}
	for s := bufio.NewScanner(&out); s.Scan(); {
		var l zeepLine
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%v in %s", err, s.Text())
		}
		lines[l.Step] = l
	}
	return lines
}

// A strict SOAP client that knows nothing but our WSDL and schema.
func TestHandlerZeep(t *testing.T) {
	backend := &moody{}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	got := runZeep(t, base+"?wsdl")

	source := map[string]any{
		"submitter":         map[string]any{"name": "Müller & Söhne", "email-address": "a@example.org"},
		"sequence":          "Campus <Buildings>",
		"source-identifier": " 145 ",
	}
	number := map[string]any{"submitter": nil, "sequence": nil, "source-identifier": "7"}
	answer := func(source any, outcome string, value any) map[string]any {
		a := map[string]any{"source": source, "accepted": nil, "provisionally-accepted": nil, "rejected": nil}
		a[outcome] = value
		return a
	}
	accepted := func(id string) map[string]any { return map[string]any{"assigned-identifier": id} }
	var noSource any
	for step, want := range map[string]any{
		"operations": []any{"get-properties", "ingest", "notify"},
		"properties": map[string]any{"notification-style": "asynchronous",
			"formats": map[string]any{"format": []any{"http://example.org/a.xsd", "http://example.org/b.xsd?x=1&y=2"}}},
		"whole":       answer(source, "accepted", accepted("lib/1")),
		"bare":        answer(noSource, "accepted", accepted("lib/2")),
		"some source": answer(number, "accepted", accepted("lib/3")),
		"rejected":    answer(source, "rejected", map[string]any{"reason": "no <room> & no time"}),
		// It takes an empty element for none, in both directions.
		"provisional":           answer(source, "provisionally-accepted", nil),
		"notify accepted":       nil,
		"notify rejected":       nil,
		"notify without source": nil,
	} {
		l, told := got[step]
		if !told || l.Fault != "" || l.Status != 0 || !reflect.DeepEqual(l.Answer, want) {
			t.Errorf("%s: %+v\nwant %v", step, l, want)
		}
	}
	for step, want := range map[string]zeepLine{
		"fault of the caller": {Fault: "Client", Text: "not that recipient", Path: "ingest-request/notification-recipient"},
		"fault of the server": {Fault: "Server", Text: "the service could not process the message; try again later"},
		"header":              {Fault: "MustUnderstand"},
		"denied":              {Status: 429},
	} {
		l := got[step]
		if l.Fault != want.Fault || l.Path != want.Path || l.Status != want.Status || l.Answer != nil || want.Text != "" && l.Text != want.Text {
			t.Errorf("%s: %+v, want %+v", step, l, want)
		}
	}
	zeepArrived(t, &backend.memoryServer)
}

// zeepArrived checks what the script has sent.
func zeepArrived(t *testing.T, d *memoryServer) {
	t.Helper()
	text := func(s string) *string { return &s }
	full := &sip.Source{
		Submitter: &sip.Submitter{Name: "Müller & Söhne", EmailAddress: "a@example.org"},
		Sequence:  text("Campus <Buildings>"), Identifier: text(" 145 "),
	}
	requests := d.ingested()
	if len(requests) != 5 {
		t.Fatalf("%d requests", len(requests))
	}
	whole := requests[0]
	if !reflect.DeepEqual(whole.Source, full) || whole.Recipient != "http://example.org/n?a=1&b=2" ||
		whole.Record.Root.Space != "urn:gazetteer" || whole.Record.Root.Local != "entry" {
		t.Errorf("the first request is %+v", whole)
	}
	// lxml writes the record in its own manner: what it holds is the same.
	for _, part := range []string{`xmlns="urn:other"`, `kind="x"`, "<name>Zürich</name>", `xlink:href="#a"`, "<!-- c -->"} {
		if !strings.Contains(string(whole.Record.XML), part) {
			t.Errorf("%s is not in %s", part, whole.Record.XML)
		}
	}
	if requests[1].Source != nil || requests[1].Recipient != "" || string(requests[1].Record.XML) != "<plain/>" {
		t.Errorf("the second request is %+v", requests[1])
	}
	if !reflect.DeepEqual(requests[2].Source, &sip.Source{Identifier: text("7")}) {
		t.Errorf("the source of the third request is %+v", requests[2].Source)
	}
	want := []*sip.Disposition{
		{Source: full, Outcome: sip.Accepted, AssignedIdentifier: "lib/7"},
		{Source: &sip.Source{Identifier: text("7")}, Outcome: sip.Rejected, Reason: "out of < range"},
		{Outcome: sip.Rejected, Reason: "no"},
	}
	if got := d.notified(); !reflect.DeepEqual(got, want) {
		t.Errorf("notified %+v", got)
	}
}

// The description of a service behind a token or a login leads to itself, and
// holds only what is offered.
func TestHandlerZeepLetIn(t *testing.T) {
	testenv.Heavy(t)
	for _, c := range []struct {
		behind string
		login  []string
		admit  func(sip.Caller) bool
	}{
		{"/s3cret-token", nil, func(c sip.Caller) bool { return c.Token == "s3cret-token" }},
		{"", []string{"ann", "open sesame"}, func(c sip.Caller) bool { return c.User == "ann" && c.Password == "open sesame" }},
	} {
		admit := func(caller sip.Caller) error {
			if c.admit(caller) {
				return nil
			}
			return &sip.Denied{Status: 401, Reason: "no"}
		}
		backend := &moody{memoryServer{admit: admit}}
		base := serveBackend(t, &sip.Handler{Backend: backend, Offers: sip.Operations{Ingest: true}})
		got := runZeep(t, append([]string{base + c.behind + "?wsdl"}, c.login...)...)
		if want := []any{"get-properties", "ingest"}; !reflect.DeepEqual(got["operations"].Answer, want) {
			t.Errorf("%+v: %+v", c, got)
		}
		if n := len(backend.ingested()); n != 5 || got["properties"].Answer == nil {
			t.Errorf("%+v: %d requests, %+v", c, n, got["properties"])
		}
		if got := runZeep(t, base+"/wrong?wsdl"); got["wsdl"].Status != 401 {
			t.Errorf("%+v: without leave: %+v", c, got)
		}
	}
}
