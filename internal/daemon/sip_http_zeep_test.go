package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// soapCall is an operation that an independent client calls, and soapReturn what
// it made of the answer.
type (
	soapCall struct {
		Operation  string         `json:"operation"`
		Parameters map[string]any `json:"parameters,omitempty"`
	}
	soapReturn struct {
		Answer map[string]any `json:"answer"`
		Fault  string         `json:"fault"`
		Text   string         `json:"text"`
		Path   string         `json:"path"`
	}
)

// zeep calls a service through its WSDL. It returns the operations that the WSDL
// has, and what came of the calls.
func (h *sipBridge) zeep(path, login string, calls ...soapCall) ([]string, []soapReturn) {
	h.t.Helper()
	user, password, _ := strings.Cut(login, ":")
	in, err := json.Marshal(map[string]any{"wsdl": h.base + path + "?wsdl", "user": user, "password": password, "calls": calls})
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command(testenv.Module(h.t, "zeep", "python3-zeep"), "testdata/sip_client.py")
	var out, wrong bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &wrong
	if err := cmd.Run(); err != nil {
		h.t.Fatalf("zeep: %v\n%s", err, wrong.String())
	}
	var all []json.RawMessage
	if err := json.Unmarshal(out.Bytes(), &all); err != nil || len(all) != 1+len(calls) {
		h.t.Fatalf("%v: %s", err, out.String())
	}
	var operations []string
	err = json.Unmarshal(all[0], &operations)
	returns := make([]soapReturn, len(calls))
	for i := range returns {
		if err == nil {
			err = json.Unmarshal(all[i+1], &returns[i])
		}
	}
	if err != nil {
		h.t.Fatalf("%v: %s", err, out.String())
	}
	return operations, returns
}

// said writes what stands below the names in an answer.
func (r soapReturn) said(under ...string) string {
	var v any = r.Answer
	for _, name := range under {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return fmt.Sprint(v)
}

// TestSIPZeep_Library: a client that knows the WSDL alone asks for the properties
// and submits; the record is published as it was sent.
func TestSIPZeep_Library(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", libraryMode))
	source := map[string]any{"submitter": map[string]any{"name": "Maps & <Co>", "email-address": "maps@maps.example"}, "sequence": " Campus ", "source-identifier": "145"}
	record := `<m:r xmlns:m="urn:r" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Stra&#223;e &amp; Weg</dc:title><m:x a="1"/></m:r>`
	ops, got := h.zeep("/sip/main", "",
		soapCall{Operation: "get-properties"},
		soapCall{"ingest", map[string]any{"source": source, "record": record}},
		soapCall{"ingest", map[string]any{"source": source, "record": record}},
		soapCall{"ingest", map[string]any{"source": source, "record": strings.Replace(record, `a="1"`, `a="2"`, 1)}},
		soapCall{"ingest", map[string]any{"record": `<s xmlns="urn:s"/>`}},
		soapCall{"ingest", map[string]any{"source": source, "notification-recipient": "http://127.0.0.1/", "record": strings.Replace(record, `a="1"`, `a="2"`, 1)}},
	)
	if !slices.Equal(ops, []string{"get-properties", "ingest"}) {
		t.Errorf("operations %q", ops)
	}
	if got[0].said("notification-style") != "synchronous" || got[0].said("formats", "format") != "[http://schemas.example/r.xsd http://schemas.example/xhtml.xsd]" {
		t.Errorf("properties %+v", got[0])
	}
	assigned := got[1].said("accepted", "assigned-identifier")
	for _, r := range got[1:4] {
		if r.said("accepted", "assigned-identifier") != assigned || r.said("source") != fmt.Sprint(source) {
			t.Errorf("answered %+v, want the identifier %s and the source %v", r, assigned, source)
		}
	}
	if reason := got[4].said("rejected", "reason"); !strings.Contains(reason, "{urn:s}s is not accepted") || got[4].said("source") != "<nil>" {
		t.Errorf("answered %+v", got[4])
	}
	if got[5].said("accepted", "assigned-identifier") != assigned { // the recipient is ignored (D41)
		t.Errorf("answered %+v", got[5])
	}
	h.want("logged", h.told("main"), "created "+assigned, "updated "+assigned, "rejected : "+got[4].said("rejected", "reason"))

	changes := h.changes()
	if len(changes) != 2 || changes[0].Meta.Change != "created" || changes[1].Meta.Change != "updated" || changes[0].Loc != changes[1].Loc {
		t.Fatalf("Change List %+v", changes)
	}
	served := h.get(changes[1].Loc)
	served.field(t, "Content-Type", "application/xml")
	served.field(t, "Content-Security-Policy", "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'")
	if "sha-256:"+served.sum() != changes[1].Meta.Hash || !strings.Contains(string(served.body), `a="2"`) || strings.Contains(string(served.body), "alexandria") {
		t.Errorf("served %s with hash %s", served.body, changes[1].Meta.Hash)
	}
	if feed := h.get(h.setURL("feed.atom")); !strings.Contains(string(feed.body), "Stra\u00dfe &amp; Weg") || !strings.Contains(string(feed.body), changes[0].Loc) {
		t.Errorf("feed %s", feed.body)
	}
	h.verified()
}
