package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// mailSink is a mail server that is not ours, behind a gate.
type mailSink struct {
	t    *testing.T
	gate *testserver.GatedListener
	in   io.Writer
	told *json.Decoder
}

// sunk is a mail as the sink has understood it.
type sunk struct {
	ID, Sender, Subject, Type, Reply string
	To, Header, Defects              []string
	Documents                        any
}

func newMailSink(t *testing.T) *mailSink {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.Module(t, "aiosmtpd", "python3-aiosmtpd"), "testdata/sip_mail_sink.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &mailSink{t: t, in: in, told: json.NewDecoder(out)}
	var port int
	if err := s.told.Decode(&port); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.gate = &testserver.GatedListener{Listener: l}
	go s.lead(fmt.Sprint("127.0.0.1:", port))
	t.Cleanup(func() {
		l.Close()
		in.Close()
		cmd.Wait() //nolint:errcheck // what it was there for, it has told
	})
	return s
}

// lead connects those who come through the gate to the server.
func (s *mailSink) lead(server string) {
	for {
		from, err := s.gate.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", server)
		if err != nil {
			from.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
			go func() {
				_, _ = io.Copy(pair[0], pair[1]) // until either hangs up
				pair[0].Close()
			}()
		}
	}
}

func (s *mailSink) address() string { return s.gate.Addr().String() }

// replies is what the next mails are answered.
func (s *mailSink) replies(reply string) {
	s.t.Helper()
	fmt.Fprintln(s.in, reply)
	var heard string
	if err := s.told.Decode(&heard); err != nil || heard != reply {
		s.t.Fatalf("the mail server was told %q and heard %q, %v", reply, heard, err)
	}
}

// next returns the next mail that it gets.
func (s *mailSink) next() sunk {
	s.t.Helper()
	var m sunk
	if err := s.told.Decode(&m); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// reviewed submits a record for review, another one for each decision, and
// settles it.
func (h *sipBridge) reviewed(source, recipient string, d daemon.Decision) {
	h.t.Helper()
	record := recordOf(fmt.Sprintf(`<r xmlns="urn:r">%x %x</r>`, d.Assigned, d.Reason))
	if h.send("/sip/main", inSOAP(sipDoc("ingest-request", source+recipientAt(recipient)+record)), 200).disposition(h.t).Provisional == nil {
		h.t.Fatal("not accepted provisionally")
	}
	newest, err := h.bridge.SIP.Submissions(h.t.Context(), submission.Query{Set: "main", Newest: true, Limit: 1})
	if err != nil || len(newest) != 1 {
		h.t.Fatalf("%d submissions, %v", len(newest), err)
	}
	d.ID = newest[0].ID
	if _, err := h.bridge.Decide(h.t.Context(), d); err != nil {
		h.t.Fatal(err)
	}
}

// notices returns those of set main in a state.
func (h *sipBridge) notices(state submission.DeliveryState) []submission.OutgoingNotification {
	h.t.Helper()
	all, err := h.bridge.SIP.Outgoing(context.Background(), "main", state, 0, 100)
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// TestSIPMail_Delivered: an independent server and parsers get the disposition that
// was made, with the source that the submitter gave.
func TestSIPMail_Delivered(t *testing.T) {
	testenv.Heavy(t)
	const full = "<i:source><i:submitter><i:name>Ann Gr\u00fcn &amp; S\u00f6hne</i:name><i:email-address>ann@lib.example</i:email-address></i:submitter>" +
		"<i:sequence>A &lt;1&gt;</i:sequence><i:source-identifier>\u6f22 145</i:source-identifier></i:source>"
	type pairs = []any
	source := pairs{"source", pairs{pairs{"submitter", pairs{pairs{"name", "Ann Gr\u00fcn & S\u00f6hne"}, pairs{"email-address", "ann@lib.example"}}},
		pairs{"sequence", "A <1>"}, pairs{"source-identifier", "\u6f22 145"}}}
	accepted := pairs{"accepted", pairs{pairs{"assigned-identifier", "Regal \u00e4/1"}}}
	rejected := pairs{"rejected", pairs{pairs{"reason", "zu gro\u00df &\n zu schwer"}}}
	for _, relayed := range []bool{false, true} {
		t.Run(fmt.Sprint("relay ", relayed), func(t *testing.T) {
			sink := newMailSink(t)
			text, recipients := "allow_hosts = [\"127.0.0.1\"]\n[mail]\nfrom = \"notes@bridge.example\"\n", []string{"smtp://" + sink.address() + "/Box@LIB.example"}
			if relayed {
				text, recipients = fmt.Sprintf("[mail]\nrelay = %q\nfrom = \"notes@bridge.example\"\n", sink.address()), []string{"mailto:Box@lib.example", "smtp:Box@lib.example"}
			}
			h := newSIPBridge(t, text+sipSet("main", reviewMode))
			ids := map[string]bool{}
			for _, recipient := range recipients {
				for _, row := range []struct {
					source   string
					decision daemon.Decision
					want     pairs
				}{
					{full, daemon.Decision{Accept: true, Assigned: "Regal \u00e4/1"}, pairs{source, accepted}},
					{full, daemon.Decision{Reason: "zu gro\u00df &\n zu schwer"}, pairs{source, rejected}},
					{"<i:source/>", daemon.Decision{}, pairs{pairs{"source", ""}, pairs{"rejected", ""}}},
					{"", daemon.Decision{Accept: true, Assigned: "Regal \u00e4/" + recipient}, pairs{pairs{"accepted", pairs{pairs{"assigned-identifier", "Regal \u00e4/" + recipient}}}}},
				} {
					h.reviewed(row.source, recipient, row.decision)
					m := sink.next()
					if want := (pairs{pairs{"ingest-disposition", row.want}}); !reflect.DeepEqual(m.Documents, any(want)) {
						t.Errorf("to %s came\n%q, want\n%q", recipient, m.Documents, want)
					}
					if m.Sender != "notes@bridge.example" || !reflect.DeepEqual(m.To, []string{"Box@lib.example"}) || !reflect.DeepEqual(m.Header, []string{"notes@bridge.example", "Box@lib.example"}) ||
						m.Type != "text/xml utf-8" || len(m.Defects) > 0 || !strings.HasPrefix(m.Subject, "Ingest disposition: ") {
						t.Errorf("the mail to %s is %+v", recipient, m)
					}
					ids[m.ID] = true
				}
			}
			if len(ids) != 4*len(recipients) {
				t.Errorf("the Message-IDs are %v", ids)
			}
			eventually(t, "all are delivered", func() bool { return len(h.notices(submission.DeliveryDone)) == len(ids) })
			h.shows("main", fmt.Sprintf("notifications to submitters%d delivered", len(ids)))
			h.verified()
		})
	}
}

// failed waits until the only notice that waits was tried so often.
func (h *sipBridge) failed(tries int) submission.OutgoingNotification {
	h.t.Helper()
	var all []submission.OutgoingNotification
	eventually(h.t, fmt.Sprintf("tried %d times", tries), func() bool {
		all = h.notices(submission.DeliveryWaiting)
		return len(all) == 1 && all[0].Tries == tries
	})
	return all[0]
}

// deliverAnother has the bridge look at what it owes: it owes something else, which comes
// through.
func (h *sipBridge) deliverAnother(r *recipient, name string) {
	h.t.Helper()
	h.reviewed(sourceOf(name), r.URL, daemon.Decision{Reason: "poked"})
	if d := r.next(); d.Identifier != name {
		h.t.Fatalf("%s was told %+v", name, d)
	}
}

// newReviewBridge is a bridge under review that can be poked, with a clock.
func newReviewBridge(t *testing.T) (*sipBridge, *testClock, *recipient) {
	t.Helper()
	h, clock := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n[mail]\nfrom = \"notes@bridge.example\"\n"+sipSet("main", reviewMode)), &testClock{}
	h.restart(func() { h.options.Now = clock.now })
	return h, clock, newRecipient(t)
}

// TestSIPMail_Retried: a recipient that is down, or has no room, gets its notice
// when it is well again, under the same Message-ID.
func TestSIPMail_Retried(t *testing.T) {
	testenv.Heavy(t)
	sink := newMailSink(t)
	h, clock, other := newReviewBridge(t)
	sink.gate.Shut()
	h.reviewed(sourceOf("1"), "smtp://"+sink.address()+"/box@lib.example", daemon.Decision{Accept: true, Assigned: "17"})
	n := h.failed(1)
	if wait := n.Due.Time().Sub(clock.now()); wait <= 0 || wait > time.Minute || n.Reason == "" {
		t.Errorf("after the first try: %+v", n)
	}
	h.shows("main", "1 waiting")

	// Not before its time.
	cut := sink.gate.Refused()
	clock.pass(30 * time.Second)
	h.deliverAnother(other, "too early")
	clock.pass(2 * time.Minute)
	h.deliverAnother(other, "second")
	h.failed(2)
	if n := sink.gate.Refused() - cut; n != 1 {
		t.Errorf("tried %d times more, want 1", n)
	}

	sink.gate.Open()
	sink.replies("451 4.2.2 the box is full")
	h.restart(func() { clock.pass(time.Hour) })
	first := sink.next()
	if n := h.failed(3); !strings.Contains(n.Reason, "451") || !strings.Contains(n.Reason, "the box is full") || "<"+n.Message+">" != first.ID {
		t.Errorf("after a temporary failure, mail %s: %+v", first.ID, n)
	}
	sink.replies("250 2.0.0 taken")
	clock.pass(time.Hour)
	h.deliverAnother(other, "fourth")
	second := sink.next()
	first.Reply, second.Reply = "", ""
	if !reflect.DeepEqual(first, second) {
		t.Errorf("first came\n%+v, then\n%+v", first, second)
	}
	eventually(t, "delivered", func() bool { return len(h.notices(submission.DeliveryWaiting)) == 0 })
	for _, n := range h.notices(submission.DeliveryDone) {
		if strings.HasPrefix(n.Recipient, "smtp") && (n.Tries != 4 || n.Due != 0) {
			t.Errorf("delivered: %+v", n)
		}
	}
	h.verified()
}
