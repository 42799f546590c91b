package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

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
