package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
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

// TestSIPZeep_Review: the ultimate dispositions come in notifications.
func TestSIPZeep_Review(t *testing.T) {
	testenv.Heavy(t)
	r := newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode))
	record := `<r xmlns="urn:r">x</r>`
	ops, got := h.zeep("/sip/main", "",
		soapCall{Operation: "get-properties"},
		soapCall{"ingest", map[string]any{"source": map[string]any{"source-identifier": "1"}, "notification-recipient": r.URL + "/n", "record": record}},
		soapCall{"ingest", map[string]any{"source": map[string]any{"source-identifier": "2"}, "notification-recipient": r.URL + "/n", "record": record}},
		soapCall{"ingest", map[string]any{"source": map[string]any{"source-identifier": "3"}, "record": record}},
	)
	if !slices.Equal(ops, []string{"get-properties", "ingest"}) || got[0].said("notification-style") != "asynchronous" {
		t.Errorf("operations %q, properties %+v", ops, got[0])
	}
	for _, r := range got[1:3] {
		if _, ok := r.Answer["provisionally-accepted"]; !ok || r.said("accepted")+r.said("rejected") != "<nil><nil>" {
			t.Errorf("answered %+v", r)
		}
	}
	if reason := got[3].said("rejected", "reason"); reason != "needs a notification-recipient" {
		t.Errorf("answered %+v", got[3])
	}
	for _, d := range []daemon.Decision{{ID: 1, Accept: true, Assigned: "lib/1"}, {ID: 2, Reason: "no room"}} {
		if _, err := h.bridge.Decide(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		switch n := r.next(); {
		case d.Accept && (n.Identifier != "1" || n.Assigned != "lib/1" || n.Rejected != nil), !d.Accept && (n.Identifier != "2" || n.Rejected == nil || n.Rejected.Reason != "no room"):
			t.Errorf("after %+v notified of %+v", d, n)
		}
	}
	h.want("logged", h.told("main"), "rejected 3: needs a notification-recipient", "created lib/1", "rejected 2: no room")
	if changes := h.changes(); len(changes) != 1 || string(h.get(changes[0].Loc).body) != record {
		t.Errorf("Change List %+v", changes)
	}
	h.verified()
}

// TestSIPZeep_Gateway: the gateway describes itself at the URL that it names to the
// ingest server, too, and takes the notification there.
func TestSIPZeep_Gateway(t *testing.T) {
	testenv.Heavy(t)
	up, r := testserver.NewIngestServer(t, testserver.Defers), newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", fmt.Sprintf("mode = \"gateway\"\nupstream = %q", up.URL)))
	record := `<r xmlns="urn:r">x</r>`
	ops, got := h.zeep("/sip/main", "",
		soapCall{Operation: "get-properties"},
		soapCall{"ingest", map[string]any{"source": map[string]any{"source-identifier": "1"}, "notification-recipient": r.URL, "record": record}},
	)
	if !slices.Equal(ops, []string{"get-properties", "ingest", "notify"}) || got[0].said("notification-style") != "asynchronous" {
		t.Errorf("operations %q, properties %+v", ops, got[0])
	}
	if _, ok := got[1].Answer["provisionally-accepted"]; !ok {
		t.Errorf("answered %+v", got[1])
	}
	_, got = h.zeep(recipientAfter(t, up, h.base), "", soapCall{"notify", map[string]any{"accepted": map[string]any{"assigned-identifier": "lib/1"}}})
	if got[0].Fault != "" {
		t.Errorf("notified: %+v", got[0])
	}
	if d := r.next(); d.Identifier != "1" || d.Assigned != "lib/1" {
		t.Errorf("the submitter is told %+v", d)
	}
	h.want("logged", h.told("main"), "created lib/1")
	if changes := h.changes(); len(changes) != 1 || string(h.get(changes[0].Loc).body) != record {
		t.Errorf("Change List %+v", changes)
	}
	h.verified()
}

// TestSIPZeep_Recipient: notify is one-way.
func TestSIPZeep_Recipient(t *testing.T) {
	testenv.Heavy(t)
	t.Setenv("SIP_PASSWORD", "open sesame")
	h := newSIPBridge(t, sipSet("main", `access = "basic"`, `access_user = "ann"`, `access_password = "${SIP_PASSWORD}"`))
	ops, got := h.zeep("/sip/main", "ann:open sesame",
		soapCall{"notify", map[string]any{"source": map[string]any{"source-identifier": "1"}, "accepted": map[string]any{"assigned-identifier": "lib/1"}}},
		soapCall{"notify", map[string]any{"source": map[string]any{"source-identifier": "2"}, "rejected": map[string]any{"reason": "a < b & c"}}},
		soapCall{"notify", map[string]any{"source": map[string]any{"source-identifier": "2"}, "rejected": map[string]any{"reason": "a < b & c"}}},
		soapCall{"notify", map[string]any{"rejected": map[string]any{}}},
	)
	if !slices.Equal(ops, []string{"notify"}) {
		t.Errorf("operations %q", ops)
	}
	for i, r := range got {
		if r.Fault != "" || r.Answer != nil {
			t.Errorf("notification %d: %+v", i+1, r)
		}
	}
	h.want("notifications", h.verdicts("main"), "rejected 2: rejected a < b & c x2", "rejected : rejected  x1", "uncorrelated 1: accepted lib/1 x1")
	h.want("logged", h.told("main"), "rejected 2: a < b & c", "rejected : ")
	h.curl("/sip/main?wsdl", "").want(t, http.StatusUnauthorized)
	h.verified()
}

// TestSIPRecord: a record is served with its own bytes. What it needs of the
// namespaces around it is declared on it; its charset is UTF-8.
func TestSIPRecord(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", libraryMode))
	outer := `<e:Envelope xmlns:e="` + envelopeSpace + `" xmlns:q="urn:q?a=1&amp;b=2"><e:Body><ingest-request xmlns="` + sipSpace + `"><source><source-identifier>%s</source-identifier></source>` +
		`<record xmlns:p="urn:p">%s</record></ingest-request></e:Body></e:Envelope>`
	for i, c := range []struct{ sent, want string }{
		{`<r xmlns="urn:r"/>`, `<r xmlns="urn:r"/>`},
		{`<r xmlns="urn:r"  a = '1'` + "\n" + `><![CDATA[<&]]>&#x41;<!-- c --><x/></r >`, `<r xmlns="urn:r"  a = '1'` + "\n" + `><![CDATA[<&]]>&#x41;<!-- c --><x/></r >`},
		{`<z:r xmlns:z="urn:r"><p:a q:b="1"/></z:r>`, `<z:r xmlns:p="urn:p" xmlns:q="urn:q?a=1&amp;b=2" xmlns:z="urn:r"><p:a q:b="1"/></z:r>`},
		{`<r xmlns="urn:r" t="p:int">e:x</r>`, `<r xmlns:p="urn:p" xmlns="urn:r" t="p:int">e:x</r>`},
		{"<r xmlns=\"urn:r\">\u00e9\u20ac\U0001f600</r>", "<r xmlns=\"urn:r\">\u00e9\u20ac\U0001f600</r>"},
		{"<r xmlns=\"urn:r\">a\r\nb\tc</r>", "<r xmlns=\"urn:r\">a\r\nb\tc</r>"},
	} {
		d := h.send("/sip/main", fmt.Sprintf(outer, fmt.Sprint(i), c.sent), http.StatusOK).disposition(t)
		changes := h.changes()
		e := changes[len(changes)-1]
		r := h.get(e.Loc)
		if d.Identifier != fmt.Sprint(i) || string(r.body) != c.want || "sha-256:"+r.sum() != e.Meta.Hash || e.Meta.Length != fmt.Sprint(len(r.body)) {
			t.Errorf("record %d %q is served as\n%q, want\n%q\n%+v", i, c.sent, r.body, c.want, e.Meta)
		}
		cmd := exec.Command(testenv.Need(t, "xmllint", "libxml2-utils"), "--noout", "--nonet", "-")
		cmd.Stdin = bytes.NewReader(r.body)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("record %d: %v %s", i, err, out)
		}
	}
	h.verified()
}
