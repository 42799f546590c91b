package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// requestNaming is a request that names a notification-recipient.
func requestNaming(name, recipient string) string {
	return inSOAP(sipDoc("ingest-request", sourceOf(name)+recipientAt(recipient)+recordOf(`<r xmlns="urn:r">x</r>`)))
}

// TestSIPRecipient_Addresses: whichever scheme, form of the host and port a
// notification-recipient has, it leads to hosts that everybody can reach, or that
// the operator allows, and to no other.
func TestSIPRecipient_Addresses(t *testing.T) {
	h := newSIPBridge(t, "allow_hosts = [\"inside.example\", \"10.9.8.7\", \"fd00::7\"]\n[mail]\nfrom = \"notes@bridge.example\"\n"+sipSet("main", reviewMode))
	hosts := map[string]bool{
		"203.0.114.1": true, "10.9.8.7": true, "[2a00:1450:4001::1]": true, "[fd00::7]": true, "inside.example": true,
		"127.0.0.1": false, "10.0.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "0.0.0.0": false,
		"[::1]": false, "[::]": false, "[fd00::1]": false, "[fe80::1]": false, "[::ffff:10.0.0.1]": false, "[::ffff:7f00:1]": false, "[64:ff9b::a00:1]": false,
		"localhost": false, "x.localhost": false, "127.1": false, "2130706433": false,
	}
	n := 0
	ask := func(recipient string, taken bool) {
		n++
		h.sub(recipient, func(t *testing.T) {
			before := h.state()
			r, err := h.post("/sip/main", requestNaming(fmt.Sprint(n), recipient))
			switch {
			case err != nil:
				t.Fatal(err)
			case taken:
				if r.want(t, 200).disposition(t).Provisional == nil {
					t.Error("not accepted provisionally")
				}
				return
			}
			r.wantFault(t, "Client", "ingest-request/notification-recipient", "cannot be used")
			if h.state() != before {
				t.Error("the log has changed")
			}
		})
	}
	for host, public := range hosts {
		for _, port := range []string{"", ":25", ":8080"} {
			ask("http://"+host+port+"/n", public)
			ask("https://"+host+port, public)
			ask("smtp://"+host+port+"/box@lib.example", public)
			ask("mailto://"+host+port+"/box@lib.example", false)
		}
		_, err := netip.ParseAddr(strings.Trim(host, "[]"))
		ask("smtp:box@"+host, err != nil) // the servers of a name are looked up, under the guard, when there is mail
		ask("mailto:box@"+host, err != nil)
	}
}

// TestSIPRecipient_WithoutMail: where no mail can be sent a mailbox is refused to
// whoever would have to be told there, and not kept waiting for ever.
func TestSIPRecipient_WithoutMail(t *testing.T) {
	behind := testserver.NewIngestServer(t, testserver.Accepts)
	h := newSIPBridge(t, sipSet("main", reviewMode)+sipSet("gate", fmt.Sprintf("mode = \"gateway\"\nupstream = %q", behind.URL))+sipSet("library", libraryMode))
	boxes := []string{"mailto:box@lib.example", "smtp:box@lib.example", "smtp://203.0.114.1/box@lib.example", "SMTP://[2a00:1450:4001::1]:25/box@lib.example"}
	before := h.state()
	for _, set := range []string{"main", "gate"} {
		for _, box := range boxes {
			r, err := h.post("/sip/"+set, requestNaming(box, box))
			if err != nil {
				t.Fatal(err)
			}
			r.wantFault(t, "Client", "ingest-request/notification-recipient", "this service cannot send mail: name an http or https recipient")
		}
		r, err := h.post("/sip/"+set, requestNaming("1", "mailto:nobody"))
		if err != nil {
			t.Fatal(err)
		}
		r.wantFault(t, "Client", "ingest-request/notification-recipient", "is no mail address")
	}
	if after := h.state(); after != before {
		t.Errorf("the log was\n%sand is\n%s", before, after)
	}
	h.send("/sip/main", requestNaming("web", "http://203.0.114.1/n"), 200)
	h.send("/sip/library", requestNaming("1", boxes[0]), 200) // decides at once, and never tells anybody

	h.restart(func() { h.config.Mail.From = "notes@bridge.example" })
	for i, box := range boxes {
		if h.send("/sip/main", requestNaming(fmt.Sprint("box ", i), box), 200).disposition(t).Provisional == nil {
			t.Errorf("%s is not accepted provisionally", box)
		}
	}
}

// TestSIPRecipient_MailNoMore: a notice that was to go by mail says what is
// missing when there is no address left that it could come from.
func TestSIPRecipient_MailNoMore(t *testing.T) {
	h, clock, _ := newReviewBridge(t)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	h.reviewed(sourceOf("1"), "smtp://"+gone.Addr().String()+"/box@lib.example", daemon.Decision{Accept: true})
	h.failed(1)
	h.restart(func() {
		clock.pass(time.Hour)
		h.config.Mail.From = ""
	})
	if n := h.failed(2); !strings.Contains(n.Reason, "set from in [mail]") || n.State != submission.DeliveryWaiting {
		t.Errorf("%+v", n)
	}
}

// A notification that its recipient has refused is sent again when an operator wants that.
func TestNotificationSentAgain(t *testing.T) {
	h, told := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode)), newRecipient(t)
	var mended atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if mended.Load() {
			told.Config.Handler.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: sip.Client, Text: "no such project"}}))
	}))
	t.Cleanup(front.Close)
	h.reviewed(sourceOf("1"), front.URL, daemon.Decision{Accept: true, Assigned: "17"})
	eventually(t, "it is refused", func() bool { return len(h.notices(submission.DeliveryRefused)) == 1 })
	mended.Store(true)
	again := daemon.Decision{ID: 1, Resend: submission.StateUnsent.String()}
	if done, err := h.bridge.Decide(t.Context(), again); err != nil || !strings.Contains(done.Result, "sent again") {
		t.Fatalf("%+v, %v", done, err)
	}
	if d := told.next(); d.Assigned != "17" {
		t.Errorf("told %+v", d)
	}
	eventually(t, "it is delivered", func() bool { return len(h.notices(submission.DeliveryDone)) == 1 })
	if _, err := h.bridge.Decide(t.Context(), again); err == nil || !strings.Contains(err.Error(), "no notification of it was refused") {
		t.Errorf("sent again what was delivered: %v", err)
	}
	h.verified()
}

// All notifications of a set that were refused are sent again at once, but for one whose submission
// was settled otherwise since.
func TestNotificationsSentAgain(t *testing.T) {
	behind := testserver.NewIngestServer(t, testserver.Defers)
	var mended atomic.Bool
	var told atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		told.Add(1)
		if mended.Load() {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: sip.Client, Text: "no such project"}}))
	}))
	t.Cleanup(front.Close)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", fmt.Sprintf("mode = \"gateway\"\nupstream = %q", behind.URL)))
	for _, name := range []string{"1", "2", "3"} {
		h.send("/sip/main", requestNaming(name, front.URL), 200)
		request := behind.Requests(name)[0]
		tell(t, request.Recipient, request, testserver.Accepts)
	}
	eventually(t, "they are refused", func() bool { return len(h.notices(submission.DeliveryRefused)) == 3 })
	second := behind.Requests("2")[0]
	tell(t, second.Recipient, second, testserver.Rejects)
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: 2, Settle: &daemon.Settlement{Outcome: submission.StateRejected}}); err != nil {
		t.Fatal(err)
	}
	mended.Store(true)
	told.Store(0)
	again := daemon.Decision{Set: "main", Resend: submission.DeliveryRefused.String()}
	if _, err := h.bridge.Decide(t.Context(), again); err == nil || !strings.Contains(err.Error(), "2 notifications sent again") || !strings.Contains(err.Error(), "1 other left as before: submission 2 has been settled otherwise") {
		t.Errorf("they are sent again: %v", err)
	}
	eventually(t, "two are delivered", func() bool { return len(h.notices(submission.DeliveryDone)) == 2 })
	if left := h.notices(submission.DeliveryRefused); len(left) != 1 || left[0].Submission != 2 || told.Load() != 2 {
		t.Errorf("%+v are left, told %d times", left, told.Load())
	}
	h.verified()
}

// What is sent again for an operator has five days anew: a recipient that takes nothing at the
// first try, as mail servers do that greylist, gets it at the next one.
func TestNotificationSentAgain_Late(t *testing.T) {
	h, clock, _ := newReviewBridge(t)
	var status atomic.Int64
	status.Store(http.StatusInternalServerError)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: sip.Client, Text: "no such project"}}))
	}))
	t.Cleanup(front.Close)
	h.reviewed(sourceOf("1"), front.URL, daemon.Decision{Accept: true, Assigned: "17"})
	eventually(t, "it is refused", func() bool { return len(h.notices(submission.DeliveryRefused)) == 1 })
	h.restart(func() { clock.pass(6 * 24 * time.Hour) })
	status.Store(http.StatusServiceUnavailable)
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: 1, Resend: submission.StateUnsent.String()}); err != nil {
		t.Fatal(err)
	}
	var all []submission.OutgoingNotification
	eventually(t, "it is tried", func() bool {
		all = h.notices(0)
		return len(all) == 1 && all[0].Tries == 1
	})
	if n := all[0]; n.State != submission.DeliveryWaiting || n.Due.Time().Sub(clock.now()) > time.Minute {
		t.Errorf("after the first try it is %s, due %v", n.State, n.Due)
	}
	status.Store(http.StatusAccepted)
	h.restart(nil)
	eventually(t, "it is delivered", func() bool { return len(h.notices(submission.DeliveryDone)) == 1 })
	h.verified()
}

// What an operator has ended is not sent any more, although a call was under way then that fails.
func TestNotificationEnded(t *testing.T) {
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode))
	called, answer := make(chan struct{}, 2), make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		called <- struct{}{}
		<-answer
		w.WriteHeader(http.StatusGone)
	}))
	t.Cleanup(front.Close)
	h.reviewed(sourceOf("1"), front.URL, daemon.Decision{Accept: true, Assigned: "17"})
	<-called
	ended := daemon.Decision{ID: 1, Settle: &daemon.Settlement{Told: true}}
	if _, err := h.bridge.Decide(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	close(answer)
	eventually(t, "its result is committed", func() bool { return strings.Contains(h.said.String(), "a notification was not delivered") })
	h.restart(nil) // with which all that waits is due
	if all := h.notices(0); len(all) != 1 || all[0].State != submission.DeliveryDone || all[0].Due != 0 || all[0].Reason != "its submitter was told otherwise" {
		t.Errorf("%+v", all)
	}
	if _, err := h.bridge.Decide(t.Context(), ended); err == nil || !strings.Contains(err.Error(), "submission 1 has no notification to its submitter that waits") {
		t.Errorf("ended twice: %v", err)
	}
	if len(called) != 0 {
		t.Error("it was sent again")
	}
	h.verified()
}

// What a notification says that was refused is not sent again once an operator has found that
// the ingest server decided otherwise.
func TestNotificationOfAnotherDecision(t *testing.T) {
	behind := testserver.NewIngestServer(t, testserver.Defers)
	var told atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		told.Add(1)
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: sip.Client, Text: "no such project"}}))
	}))
	t.Cleanup(front.Close)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", fmt.Sprintf("mode = \"gateway\"\nupstream = %q", behind.URL)))
	h.send("/sip/main", requestNaming("1", front.URL), 200)
	request := behind.Requests("1")[0]
	tell(t, request.Recipient, request, testserver.Accepts)
	eventually(t, "it is refused", func() bool { return len(h.notices(submission.DeliveryRefused)) == 1 })
	tell(t, request.Recipient, request, testserver.Rejects)
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: 1, Settle: &daemon.Settlement{Outcome: submission.StateRejected}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: 1, Resend: submission.StateUnsent.String()}); err == nil || !strings.Contains(err.Error(), "has been settled otherwise since") {
		t.Errorf("sent again: %v", err)
	}
	if len(h.notices(submission.DeliveryRefused)) != 1 || told.Load() != 1 {
		t.Errorf("told %d times", told.Load())
	}
	h.verified()
}

// TestMailFrom: what the configuration takes for an address that mail can come
// from, by itself or by default, is one for the sender too.
func TestMailFrom(t *testing.T) {
	reached := errors.New("the mail is composed")
	compose := func(from string) error {
		s := &mail.Sender{From: from, Relay: "relay.example:25", Dial: func(context.Context, string, string) (net.Conn, error) { return nil, reached }}
		return s.Send(t.Context(), &mail.Mail{ID: "1@bridge.example", To: mail.Recipient{Address: "box@lib.example"}})
	}
	label := rapid.StringMatching(`[A-Za-z0-9_-]{0,3}`)
	hosts := rapid.OneOf(
		rapid.SampledFrom([]string{"localhost", "127.0.0.1", "192.0.2.1", "[2001:db8::1]", "bridge.example.org", "a.b.", "a..b", "1.2.3", strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 130) + "example"}),
		rapid.Map(rapid.SliceOfN(label, 1, 4), func(labels []string) string { return strings.Join(labels, ".") }))
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		host := hosts.Draw(t, "host")
		c, err := config.FromArguments(config.Flags{BaseURL: "http://" + host}, nil)
		if err != nil || c.Mail.From == "" {
			return
		}
		found++
		if err := compose(c.Mail.From); !errors.Is(err, reached) {
			t.Fatalf("%s gives %s: %v", host, c.Mail.From, err)
		}
	})
	if found == 0 {
		t.Error("no host gives an address")
	}
}

// A host that the operator typed, with a password at that, is for what he typed
// it for. A caller who names it as his notification recipient has nothing sent
// there, unless it is in allow_hosts, and then without the password.
func TestRecipientsAtTypedHosts(t *testing.T) {
	t.Setenv("FEED_PASSWORD", "secret")
	type call struct{ path, login string }
	calls := make(chan call, 16)
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls <- call{r.URL.Path, r.Header.Get("Authorization")}
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(inside.Close)
	typed := sipSet("main", reviewMode) +
		fmt.Sprintf("[[set]]\nname = \"fed\"\n[[set.source]]\nkind = \"atompmh\"\nurl = %q\nuser = \"reader\"\npassword = \"${FEED_PASSWORD}\"\n", inside.URL+"/feed.atom")
	asks := inSOAP(sipDoc("ingest-request", sourceOf("1")+recipientAt(inside.URL+"/admin/delete")+recordOf(`<r xmlns="urn:r"/>`)))

	h := newSIPBridge(t, typed)
	h.send("/sip/main", asks, 500).wantFault(t, "Client", "ingest-request/notification-recipient", "its host is not one that everybody can reach")

	h = newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+typed)
	h.send("/sip/main", asks, 200)
	all, err := h.bridge.SIP.Submissions(t.Context(), submission.Query{Set: "main"})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: all[0].ID, Accept: true}); err != nil {
		t.Fatal(err)
	}
	for c := range calls {
		if c.path != "/admin/delete" {
			continue // the feed is asked for
		}
		if c.login != "" {
			t.Errorf("the recipient gets the login %q", c.login)
		}
		break
	}
}
