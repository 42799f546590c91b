package daemon_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// recipientAfter returns the path, below base, of the recipient that an ingest server
// was named last.
func recipientAfter(t *testing.T, s *testserver.IngestServer, base string) string {
	t.Helper()
	sent := s.Requests("")
	if len(sent) == 0 {
		t.Fatal("nothing was sent on")
	}
	path, ok := strings.CutPrefix(sent[len(sent)-1].Recipient, base)
	if !ok {
		t.Fatalf("the recipient is %q, not one below %s", sent[len(sent)-1].Recipient, base)
	}
	return path
}

const (
	accessToken    = "an-access-token-0123456789"
	accessPassword = "open-sesame-0123456789"
)

// TestSIPAccess: who may call what, for each of the four kinds. A submission's
// token admits its notification and nothing else, and secrets show nowhere.
func TestSIPAccess(t *testing.T) {
	testenv.Heavy(t)
	t.Setenv("SIP_TOKEN", accessToken)
	t.Setenv("SIP_PASSWORD", accessPassword)
	up := testserver.NewIngestServer(t, testserver.Defers)
	gateway := fmt.Sprintf("mode = \"gateway\"\nupstream = %q", up.URL)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+
		sipSet("none", gateway, `access = "none"`)+
		sipSet("token", gateway, `access = "token"`, `access_token = "${SIP_TOKEN}"`)+
		sipSet("basic", gateway, `access = "basic"`, `access_user = "ann"`, `access_password = "${SIP_PASSWORD}"`)+
		sipSet("far", gateway, `access = "addresses"`, `access_addresses = ["192.0.2.0/24"]`)+
		sipSet("near", gateway, `access = "addresses"`, `access_addresses = ["127.0.0.1"]`)+
		sipSet("main"))
	tokens := []string{accessToken, accessPassword}
	request := inSOAP(sipDoc("ingest-request", sourceOf("1")+recipientAt(h.base+"/sip/main")+recordOf(`<r xmlns="urn:r">x</r>`)))
	properties := inSOAP(sipDoc("get-properties", ""))
	for _, c := range []struct {
		set, path string
		args      []string // curl's, with what admits
		denied    int      // what others are answered
	}{
		{"none", "/sip/none", nil, 0},
		{"token", "/sip/token/" + accessToken, nil, 403},
		{"basic", "/sip/basic", []string{"--user", "ann:" + accessPassword}, 401},
		{"near", "/sip/near", nil, 0},
	} {
		h.curl(c.path, properties, c.args...).want(t, 200)
		if d := h.curl(c.path, request, c.args...).disposition(t); d.Provisional == nil {
			t.Fatalf("%s: %+v", c.set, d)
		}
		notify := recipientAfter(t, up, h.base)
		token := notify[strings.LastIndexByte(notify, '/')+1:]
		tokens = append(tokens, token)
		if notify != "/sip/"+c.set+"/"+token || len(token) < 16 || token == accessToken {
			t.Fatalf("%s: the recipient is %s", c.set, notify)
		}
		if c.denied != 0 {
			h.curl("/sip/"+c.set, request).want(t, c.denied)
			h.curl("/sip/"+c.set, notifyOf(acceptedAs("lib/x"))).want(t, c.denied)
			// It admits to notify alone.
			before := h.state()
			h.curl(notify, request).want(t, c.denied)
			h.curl(notify, properties).want(t, c.denied)
			h.curl(notify+"x", notifyOf(acceptedAs("lib/x"))).want(t, c.denied)
			h.curl(notify[:len(notify)-1], notifyOf(acceptedAs("lib/x"))).want(t, c.denied)
			if after := h.state(); after != before {
				t.Errorf("%s: the log was\n%sand is\n%s", c.set, before, after)
			}
		}
		h.curl(notify, notifyOf(acceptedAs("lib/"+c.set))).want(t, 202)
		h.curl(notify, notifyOf(acceptedAs("lib/"+c.set))).want(t, 202)
		eventually(t, "the submitter told", func() bool { // which changes the log as well
			waiting, err := h.bridge.SIP.Outgoing(t.Context(), c.set, submission.DeliveryWaiting, 0, 1)
			return err == nil && len(waiting) == 0
		})
		h.want(c.set, h.told(c.set), "created lib/"+c.set)
		h.want(c.set, h.submissions(c.set), "accepted 1 -> "+h.base+"/sip/main")
		// Another set's token is none here.
		if c.denied != 0 {
			h.curl("/sip/"+c.set+"/"+tokens[2], notifyOf(acceptedAs("lib/x"))).want(t, c.denied)
		}
	}
	h.curl("/sip/far", request).want(t, 403)
	h.curl("/sip/far?wsdl", "").want(t, 403)
	for _, set := range []string{"none", "token", "basic", "near"} {
		h.hides(set, tokens)
	}
	h.secret(tokens)
	for _, path := range []string{"/sip/token", "/sip/token/***", "/sip/none/***"} {
		if !strings.Contains(h.said.String(), "path="+path+" ") {
			t.Errorf("no request to %s is in the log, so nothing was hidden", path)
		}
	}
	h.verified()
}

// hides fails when a document of a set has one of these texts.
func (h *sipBridge) hides(set string, secrets []string) {
	h.t.Helper()
	for _, name := range []string{"", "capabilitylist.xml", "resourcelist.xml", "changelist.xml", "changelist/1.xml", "feed.atom", "complete.atom", "recent.rss", "recent.atom", "recent.json"} {
		r := h.get("/sets/" + set + "/" + name)
		for _, s := range secrets {
			if strings.Contains(string(r.body)+fmt.Sprint(r.header), s) {
				h.t.Errorf("%s has %s", r.url, s)
			}
		}
	}
}

// secret fails when the log of the process, the status, or the page of all has
// one of these texts.
func (h *sipBridge) secret(secrets []string) {
	h.t.Helper()
	status, err := h.bridge.Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for what, text := range map[string]string{
		"the process's log": h.said.String(), "the status": fmt.Sprintf("%+v", status), "the page": string(h.get("/").body), "the configuration": fmt.Sprintf("%+v %#v", h.config, h.config),
	} {
		if len(text) < 100 {
			h.t.Errorf("%s is %q", what, text)
		}
		for _, s := range secrets {
			if i := strings.Index(text, s); i >= 0 {
				h.t.Errorf("%s has %s: ...%s", what, s, text[max(0, i-100):i+len(s)])
			}
		}
	}
}

// TestSIPAccess_BehindAProxy: access by addresses goes by what a trusted proxy
// says, and by nothing that a caller writes.
func TestSIPAccess_BehindAProxy(t *testing.T) {
	const friend, other = "127.0.0.2", "127.0.0.3"
	set := sipSet("main", `access = "addresses"`, fmt.Sprintf("access_addresses = [%q]", friend))
	for key, throughProxy := range map[string]int{`trusted_proxies = ["127.0.0.1", "::1"]`: 202, "": 403} {
		h := newSIPBridge(t, key+"\n"+set)
		to, err := url.Parse(h.base)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
		t.Cleanup(proxy.Close)
		n := 0
		notify := func(want int, server, from string, claims ...string) {
			t.Helper()
			n++
			r, err := http.NewRequest(http.MethodPost, server+"/sip/main", strings.NewReader(notifyOf(sourceOf(fmt.Sprint(n))+rejectedFor("no"))))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "text/xml")
			r.Header["X-Forwarded-For"] = claims
			transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}
			defer transport.CloseIdleConnections()
			res, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("%q: %s, which claims to be %q, gets %d from %s, want %d: %s", key, from, claims, res.StatusCode, server, want, readAll(t, res.Body))
			}
		}
		notify(throughProxy, proxy.URL, friend)
		notify(403, proxy.URL, other, friend)
		// Past the proxy.
		notify(202, h.base, friend)
		notify(403, h.base, other, friend)
	}
}

const openToAll = `access = "none"`

// TestSIPAnonymous_Quota: above the day's quota anonymous callers are answered a Fault and
// 451, which say why; who is known is not (D69).
func TestSIPAnonymous_Quota(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, "[limits]\nopen_address_messages = 3\nopen_set_messages = 5\n"+sipSet("main", libraryMode, openToAll)+
		sipSet("box", takesMail("box@bridge.example"), openToAll)+sipSet("known", libraryMode))
	for i := range 3 {
		h.curl("/sip/main", ingestOf(fmt.Sprint(i), "x")).disposition(t)
		h.notify("/sip/box", sourceOf(fmt.Sprint(i))+rejectedFor("no room"))
	}
	for range 20 {
		h.curl("/sip/main", ingestOf("more", "x")).wantFault(t, "Server", "", "the daily quota of one address is used up (3 messages and 1073741824 bytes)")
		if reply := h.mail("box@bridge.example", notifyOf(rejectedFor("more"))); !strings.HasPrefix(reply, "451 4.3.0 ") || !strings.Contains(reply, "the daily quota of one address is used up") {
			t.Errorf("by mail: %s", reply)
		}
		h.curl("/sip/known", ingestOf("more", "x")).disposition(t)
	}
	if n := len(h.logged(allAfter(0))); n != 3 {
		t.Errorf("%d events in set main, want three", n)
	}
	// What anybody can cause is a line a minute, and this takes less than a few (D40).
	for _, line := range []string{"messages from anonymous callers were refused", "mails were refused"} {
		if n := strings.Count(h.said.String(), line); n == 0 || n > 6 {
			t.Errorf("%q stands %d times in the log", line, n)
		}
	}
	h.verified()
}

// TestSIPAnonymous_Rejections: what anonymous callers cause to be rejected is no event, and
// shows where an operator looks (D40).
func TestSIPAnonymous_Rejections(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", libraryMode, openToAll)+sipSet("review", reviewMode, openToAll)+sipSet("box", openToAll))
	h.curl("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf("1")+recordOf("<odd/>")))).disposition(t)
	h.curl("/sip/review", ingestOf("2", "x")).disposition(t)
	h.notify("/sip/box", sourceOf("3")+rejectedFor("no room"))
	for range 20 {
		h.curl("/sip/review", inSOAP(sipDoc("ingest-request", sourceOf("4")+recipientAt("http://10.9.8.7/n")+recordOf(`<r xmlns="urn:r"/>`)))).
			wantFault(t, "Client", "ingest-request/notification-recipient", "not one that everybody can reach")
	}
	if got := h.logged(allAfter(0)); len(got) != 0 {
		t.Errorf("events %+v", got)
	}
	for set, want := range map[string]string{"main": "1: the format odd is not accepted", "review": "2: needs a notification-recipient"} {
		found, err := h.bridge.SIP.Rejections(t.Context(), set, 0, 10)
		if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].SourceIdentifier+": "+found[0].Reason, want) {
			t.Errorf("set %s: %+v, %v", set, found, err)
		}
	}
	h.shows("main", "the format odd is not accepted", "decided here")
	h.shows("box", "no room", "reported by an ingest server")
	status, err := h.bridge.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range status.Sets {
		if n := s.Submissions[0].States[submission.StateRejected] + s.Submissions[0].NotificationsReceived[submission.NotificationRejected]; n != 1 {
			t.Errorf("set %s: %d are counted", s.Name, n)
		}
	}
	if n := strings.Count(h.said.String(), "notification-recipients were refused"); n == 0 || n > 6 {
		t.Errorf("the line of refused recipients stands %d times in the log", n)
	}
	if r := h.get("/sets/main/"); r.status != http.StatusOK {
		t.Errorf("the page: %d", r.status)
	}
	h.verified()
}
