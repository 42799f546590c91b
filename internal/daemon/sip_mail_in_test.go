package daemon_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/smtp"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// takesMail are the keys of a SIP Source that has a mailbox; all of them are at
// one address.
func takesMail(box string) string {
	return fmt.Sprintf("smtp_listen = \"127.0.0.1:0\"\nmailbox = %q", box)
}

var mailTaken = regexp.MustCompile(`msg="mail is accepted" address=(\S+)`)

// mailServer is where the bridge takes mail.
func (h *sipBridge) mailServer() string {
	h.t.Helper()
	found := mailTaken.FindAllStringSubmatch(h.said.String(), -1)
	if len(found) == 0 {
		h.t.Fatal("the bridge takes no mail")
	}
	return found[len(found)-1][1]
}

// mail delivers a mail with a message in base64, and returns the server's reply.
func (h *sipBridge) mail(to, message string) string {
	h.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "From: ingest@library.example\r\nTo: %s\r\nSubject: Disposition\r\nContent-Type: text/xml; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n", to)
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString([]byte(message))), 76) {
		fmt.Fprintf(&b, "%s\r\n", line)
	}
	err := smtp.SendMail(h.mailServer(), nil, "ingest@library.example", []string{to}, []byte(b.String()))
	var refused *textproto.Error
	switch {
	case errors.As(err, &refused):
		return fmt.Sprintf("%d %s", refused.Code, refused.Msg)
	case err != nil:
		h.t.Fatal(err)
	}
	return "250 "
}

// TestSIPMail_Boxes: several sets share an address; who has no submission is told
// of all the same, once.
func TestSIPMail_Boxes(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", takesMail("main@bridge.example"))+sipSet("other", takesMail("Other.Box@lib.example"), `access = "addresses"`, `access_addresses = ["192.0.2.1"]`)+
		sipSet("third", takesMail("third@lib.example")))
	rejected := notifyOf(sourceOf("1") + rejectedFor("no room"))
	accepted := notifyOf(sourceOf("2") + acceptedAs("17"))
	for _, to := range []string{"main@bridge.example", "MAIN@BRIDGE.example", "main+nobody@bridge.example", "third@lib.example"} {
		for _, message := range []string{rejected, accepted} {
			if reply := h.mail(to, message); !strings.HasPrefix(reply, "250 ") {
				t.Errorf("to %s: %s", to, reply)
			}
		}
	}
	h.want("set third", h.told("third"), "rejected 1: no room")
	h.want("set third", h.verdicts("third"), "rejected 1: rejected no room x1", "uncorrelated 2: accepted 17 x1")
	h.want("set main", h.verdicts("main"), "rejected 1: rejected no room x1", "rejected 1: rejected no room x2", "uncorrelated 2: accepted 17 x1", "uncorrelated 2: accepted 17 x2")
	h.shows("third", "Notifications that belong to no submission: 1.", "no room")

	before := h.state()
	for _, row := range []struct{ to, message, reply string }{
		{"nobody@bridge.example", rejected, "550 5.1.1 "},
		{"main@lib.example", rejected, "550 5.1.1 "},
		{"other.box@lib.example", rejected, "550 5.7.1 "},
		{"main@bridge.example", notifyOf("<i:provisionally-accepted/>"), "554 5.6.0 ingest-disposition/provisionally-accepted: "},
	} {
		if reply := h.mail(row.to, row.message); !strings.HasPrefix(reply, row.reply) {
			t.Errorf("%.60q to %s: %s, want %s", row.message, row.to, reply, row.reply)
		}
	}
	if after := h.state(); after != before {
		t.Errorf("the log was\n%sand is\n%s", before, after)
	}
	h.verified()
}

// TestSIPMail_Owed: the mailbox of a set that decides itself, and has no target any more, takes what
// ingest servers owe, and nothing else.
func TestSIPMail_Owed(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode, takesMail("main@bridge.example")))
	target, err := h.bridge.Log.EnsureSource(t.Context(), "main", eventlog.Target, "https://ingest.example", 1)
	if err != nil {
		t.Fatal(err)
	}
	sent := submission.Submission{Source: target, State: submission.StateProvisional, Seq: 1, Record: "urn:1", SourceIdentifier: "urn:1", Token: "t0ken", Tries: 1}
	if _, err := h.bridge.SIP.Write(t.Context(), &submission.Batch{Source: target, Updates: []submission.Update{{Submission: sent}}}); err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]string{"main+t0ken@bridge.example": "250 ", "main@bridge.example": "554 5.6.0 ingest-disposition: "} {
		if reply := h.mail(to, notifyOf(sourceOf("urn:1")+acceptedAs("L1"))); !strings.HasPrefix(reply, want) {
			t.Errorf("to %s: %s", to, reply)
		}
	}
	h.want("the submissions", h.submissions("main"), "accepted urn:1 -> ")
}

// TestSIPMail_Limit: sip_message holds for mail as well.
func TestSIPMail_Limit(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, "[limits]\nsip_message = \"16 KiB\"\n"+sipSet("main", takesMail("main@bridge.example")))
	sized := func(bytes int) string {
		return notifyOf(rejectedFor(strings.Repeat("x", bytes-len(notifyOf(rejectedFor(""))))))
	}
	if reply := h.mail("main@bridge.example", sized(16<<10)); !strings.HasPrefix(reply, "250 ") {
		t.Errorf("16 KiB: %s", reply)
	}
	if reply := h.mail("main@bridge.example", sized(16<<10+1)); !strings.HasPrefix(reply, "552 ") {
		t.Errorf("a byte more: %s", reply)
	}
	h.send("/sip/main", sized(16<<10+1), 413)
	if n := len(h.told("main")); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

// TestSIPMail_SlowIsCut: mails that do not end keep no messages out: when there is no room for
// one, the mail that has been arriving for the longest time is cut off.
func TestSIPMail_SlowIsCut(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", takesMail("main@bridge.example")))
	told := make(chan string, 2)
	nearlyAll := "Content-Type: text/xml\r\n\r\n" + strings.Repeat(strings.Repeat("x", 998)+"\r\n", 8300)
	for range 2 { // nearly all of each mail comes in, and then nothing more
		c, err := textproto.Dial("tcp", h.mailServer())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, step := range []struct {
			say  string
			want int
		}{{"", 220}, {"EHLO library.example\r\n", 250}, {"MAIL FROM:<ingest@library.example>\r\n", 250}, {"RCPT TO:<main@bridge.example>\r\n", 250},
			{fmt.Sprintf("BDAT %d\r\n%s", len(nearlyAll), nearlyAll), 250}} { // the last reply: all this has come
			if _, err := c.W.WriteString(step.say); err != nil {
				t.Fatal(err)
			}
			if err := c.W.Flush(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.ReadResponse(step.want); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.PrintfLine("BDAT 10 LAST"); err != nil {
			t.Fatal(err)
		}
		go func() {
			line, err := c.ReadLine()
			told <- fmt.Sprint(line, err)
		}()
	}
	message := notifyOf(rejectedFor(strings.Repeat("x", 3<<20)))
	// There is no room. The answer may come before all is sent, and be lost.
	if r, err := h.post("/sip/main", message); err == nil {
		r.want(t, http.StatusServiceUnavailable)
	}
	select {
	case reply := <-told:
		if strings.HasPrefix(reply, "2") || strings.HasPrefix(reply, "5") {
			t.Errorf("the mail that is cut off gets %s", reply)
		}
	case <-time.After(30 * time.Second): // after a minute it would end by itself
		t.Fatal("no mail is cut off")
	}
	eventually(t, "there is room again", func() bool { // once that mail is forgotten
		r, err := h.post("/sip/main", message)
		return err == nil && r.status == http.StatusAccepted
	})
}

// TestSIPMail_AfterTheCommit: a mail is taken only when what it says is in the log.
func TestSIPMail_AfterTheCommit(t *testing.T) {
	testenv.Heavy(t)
	testenv.Need(t, "swaks", "swaks") // before anything is broken
	library := testserver.NewIngestServer(t, testserver.Defers)
	h := newSubmitterOf(t, sipSet("box", takesMail("box@bridge.example"), `record_url = "http://library.invalid/{assigned-identifier}"`)+
		sipSet("main", libraryMode, takesMail("main@bridge.example")), `recipient = "smtp:main@bridge.example"`, library)
	for _, row := range []struct{ name, table, box, says string }{
		{"the notification of a rejection", "incoming_notification", "main", rejectedFor("no room")},
		{"the notification of what is accepted", "incoming_notification", "main", acceptedAs("2")},
		{"what is to be fetched", "pending", "box", acceptedAs("3")},
	} {
		t.Run(row.name, func(t *testing.T) {
			outer := h.t
			h.t = t
			defer func() { h.t = outer }()
			to := "box@bridge.example"
			record := ""
			if row.box == "main" {
				record = h.take(row.name)
				h.becomes(record, submission.StateProvisional)
				to = strings.TrimPrefix(library.Requests(record)[0].Recipient, "smtp:")
			}
			h.kept() // what was accepted before is imported when it is ready
			before, told := h.state(), len(h.told(row.box))
			heal := h.breaks("log.db", row.table)
			for range 2 {
				if reply := h.mail(to, notifyOf(row.says)); !strings.HasPrefix(reply, "451 4.3.0 ") || strings.Contains(reply, "fire") {
					t.Errorf("while the log fails: %s", reply)
				}
			}
			if h.state() != before || len(h.told(row.box)) != told {
				t.Errorf("the log was\n%sand is\n%s", before, h.state())
			}
			if record != "" && h.of(record)[0].State != submission.StateProvisional {
				t.Errorf("while the log fails: %+v", h.of(record)[0])
			}
			heal()
			for range 2 { // and once more, as if the reply had been lost
				if reply := h.mail(to, notifyOf(row.says)); !strings.HasPrefix(reply, "250 ") {
					t.Errorf("when it works: %s", reply)
				}
			}
			if record != "" && !h.of(record)[0].State.Final() || h.state() == before {
				t.Errorf("it was taken, and the log is\n%s", h.state())
			}
		})
	}
	h.want("set kept", h.kept(), "created 2")
	h.want("set box", h.told("box"))
	h.wantCounts("accepted 1, rejected 1; matched 2")
	h.verified()
}

// TestSIPMail_Restart: what was taken is there after the end, and the mailbox too.
func TestSIPMail_Restart(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main", takesMail("main@bridge.example")))
	for i := range 2 {
		if reply := h.mail("main@bridge.example", notifyOf(rejectedFor(fmt.Sprint("reason ", i)))); !strings.HasPrefix(reply, "250 ") {
			t.Error(reply)
		}
		h.restart(nil)
	}
	h.want("set main", h.told("main"), "rejected : reason 0", "rejected : reason 1")
	h.verified()
}
