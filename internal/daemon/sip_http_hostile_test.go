package daemon_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// markup is what an attacker would like a browser to run.
const markup = `"'><script>alert(1)</script><img src=x onerror=alert(2)>`

// TestSIPHostile_Browser: a caller's record is served so that a browser runs
// nothing of it, and his texts stand in pages as texts.
func TestSIPHostile_Browser(t *testing.T) {
	testenv.Heavy(t)
	l := newLibrary(t)
	h := newSIPBridge(t, sipSet("main", libraryMode)+sipSet("box", l.records())+sipSet("lost"))
	page := `<html xmlns="http://www.w3.org/1999/xhtml"><head><title>x</title><script>alert(1)</script></head><body onload="alert(2)"/></html>`
	h.curl("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf("page")+recordOf(page)))).disposition(t)
	served := h.get(h.changes()[0].Loc)
	for name, want := range map[string]string{"Content-Type": "application/xml", "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'", "X-Content-Type-Options": "nosniff"} {
		served.field(t, name, want)
	}
	if string(served.body) != page {
		t.Errorf("served %s", served.body)
	}

	var escaped bytes.Buffer
	if err := xml.EscapeText(&escaped, []byte(markup)); err != nil {
		t.Fatal(err)
	}
	evil := escaped.String()
	title := `<r xmlns="urn:r" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>` + evil + `</dc:title></r>`
	h.curl("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf(evil)+recordOf(title)))).disposition(t)
	r := h.curl("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf(evil)+recordOf("<odd/>"))))
	if d := r.disposition(t); d.Identifier != markup || strings.Contains(string(r.body), "<script") {
		t.Errorf("answered %s", r.body)
	}
	l.put(markup, `<r onclick="alert(1)"/>`)
	h.notify("/sip/box", sourceOf(evil)+acceptedAs(evil))
	h.await(4)
	h.notify("/sip/box", sourceOf(evil)+rejectedFor(evil))
	h.notify("/sip/lost", sourceOf(evil)+acceptedAs(evil))
	script := regexp.MustCompile(`(?i)<script>alert|<img src=x|onerror=alert\(2\)>`)
	for _, path := range []string{"/", "/sets/main/", "/sets/box/", "/sets/lost/"} {
		r := h.get(path)
		if m := script.Find(r.body); m != nil || !strings.Contains(r.header.Get("Content-Security-Policy"), "default-src 'none'") || strings.Contains(r.header.Get("Content-Security-Policy"), "script") {
			t.Errorf("%s has %q, policy %q", r.url, m, r.header.Get("Content-Security-Policy"))
		}
	}
	for _, set := range []string{"main", "box"} {
		for _, name := range []string{"capabilitylist.xml", "resourcelist.xml", "changelist.xml", "feed.atom", "complete.atom", "recent.rss", "recent.atom"} {
			r := h.get("/sets/" + set + "/" + name)
			if err := xml.Unmarshal(r.body, new(struct{})); err != nil || bytes.Contains(r.body, []byte("<script>alert")) {
				t.Errorf("%s: %v\n%s", r.url, err, r.body)
			}
		}
		if r := h.get("/sets/" + set + "/recent.json"); !json.Valid(r.body) {
			t.Errorf("%s: %s", r.url, r.body)
		}
	}
	h.verified()
}

// TestSIPHostile_LineBreaks: what has line breaks makes no lines of its own, in
// headers or in the process's log.
func TestSIPHostile_LineBreaks(t *testing.T) {
	testenv.Heavy(t)
	l := newLibrary(t)
	h := newSIPBridge(t, sipSet("main", l.records())+sipSet("lib", libraryMode))
	const broken = "x\r\nSet-Cookie: a=b\r\nlevel=ERROR msg=forged"
	escaped := strings.NewReplacer("\r", "&#13;", "\n", "&#10;").Replace(broken)
	l.put(broken, "<r/>")
	h.notify("/sip/main", sourceOf(escaped)+acceptedAs(escaped))
	h.await(1)
	h.notify("/sip/main", sourceOf(escaped)+rejectedFor(escaped))
	h.curl("/sip/lib", ingestOf(escaped, "x")).disposition(t)
	h.curl("/sip/lib/a%0D%0Atime=2026%20level=ERROR", ingestOf(escaped, "x")).disposition(t)
	h.curl("/sip/none%0d%0atime=2026%20level=ERROR", ingestOf(escaped, "x")).want(t, http.StatusNotFound)
	changes := h.changes()
	r := h.get(changes[0].Loc)
	if r.header.Get("Set-Cookie") != "" || strings.Contains(fmt.Sprint(r.header), "Set-Cookie") && !strings.Contains(fmt.Sprint(r.header), "%0D%0ASet-Cookie") {
		t.Errorf("header %v", r.header)
	}
	if ev := h.logged(allAfter(0)); len(ev) != 2 || ev[0].Record != broken || ev[0].Origin.SourceIdentifier != "" || ev[1].Origin.Reason != broken {
		t.Errorf("events %+v", ev)
	}
	for line := range strings.Lines(h.said.String()) {
		if !strings.HasPrefix(line, "time=") || strings.HasPrefix(line, "time=2026 level") {
			t.Errorf("a forged line in the log: %q", line)
		}
	}
	h.verified()
}

// TestSIPHostile_Redirects: neither the library nor a recipient leads us into our
// own network.
func TestSIPHostile_Redirects(t *testing.T) {
	testenv.Heavy(t)
	secret := newRequestLog(t)
	for _, to := range []string{secret.URL + "/secret", "file:///etc/passwd"} {
		l := newLibrary(t)
		h := newSIPBridge(t, sipSet("main", l.records()))
		l.put("1", "<r/>")
		l.redirect(to)
		h.notify("/sip/main", acceptedAs("1"))
		l.wasAsked("/records/1")
		h.settle()
		if h.pending() != 1 || h.last() != 0 {
			t.Errorf("%s: %d pending, events %q", to, h.pending(), h.told("main"))
		}
		l.redirect("")
		h.settle()
		h.want("once it answers itself", h.told("main"), "created 1")
		h.verified()
	}

	asked := make(chan struct{}, 16)
	astray := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, secret.URL+"/notified", http.StatusTemporaryRedirect)
		asked <- struct{}{}
	}))
	defer astray.Close()
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode))
	h.send("/sip/main", inSOAP(sipDoc("ingest-request", recipientAt(astray.URL)+recordOf(`<r xmlns="urn:r"/>`))), http.StatusOK)
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: 1, Accept: true}); err != nil {
		t.Fatal(err)
	}
	<-asked
	if n := h.failed(1); !strings.Contains(n.Reason, "307") {
		t.Errorf("the notice: %+v", n)
	}
	if got := secret.asked(); len(got) != 0 {
		t.Errorf("reached %q", got)
	}
	h.verified()
}

// TestSIPLimits_Fetched: a record that a library is asked for may be as long as the
// limit of records.
func TestSIPLimits_Fetched(t *testing.T) {
	const most = 100 << 10
	l := newLibrary(t)
	h := newSIPBridge(t, fmt.Sprintf("[limits]\nrecord = \"%d\"\n", most)+sipSet("main", l.records()))
	exact := "<r>" + strings.Repeat("x", most-7) + "</r>"
	l.put("exact", exact)
	l.put("longer", exact+"\n")
	h.notify("/sip/main", acceptedAs("longer"))
	l.wasAsked("/records/longer")
	h.notify("/sip/main", acceptedAs("exact"))
	h.await(1)
	if changes := h.changes(); len(changes) != 1 || string(h.get(changes[0].Loc).body) != exact {
		t.Errorf("Change List %+v", changes)
	}
	h.settle()
	h.want("logged", h.told("main"), "created exact")
	h.verified()
}
