package ingest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// accepting is a disposition as a message.
func accepting(identifier string, source *sip.Source) string {
	d := &sip.Disposition{Source: source, Outcome: sip.Accepted, AssignedIdentifier: identifier}
	return string(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindDisposition, Disposition: d}))
}

// oddGate is a gateway before a server that answers each ingest alike, and counts.
func oddGate(t *testing.T, answer func(w http.ResponseWriter)) (h *gatewayHarness, asked func() int) {
	t.Helper()
	came := make(chan struct{}, 100)
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		came <- struct{}{}
		answer(w)
	}))
	return newGatewayHarness(t, Gateway, func(d *Server) { d.Upstream = plainClient(url) }), func() int { return len(came) }
}

// What may have been taken is not sent twice, whatever the server says instead of
// an answer.
func TestGatewayOddAnswerIsSentOnce(t *testing.T) {
	for _, status := range []int{200, 202, 204} {
		h, asked := oddGate(t, func(w http.ResponseWriter) { w.WriteHeader(status) })
		r := h.request("1")
		for range 3 {
			h.faulted(r, sip.Server, "in doubt")
		}
		if s := h.state(r, submission.StateInDoubt); asked() != 1 || s.Tries != 1 {
			t.Errorf("status %d: asked %d times, %d tries", status, asked(), s.Tries)
		}
		h.tend(49 * time.Hour)
		h.state(r, submission.StateUnresolved)
	}
}

// An answer about another record decides nothing about this one.
func TestGatewayAnswerAboutAnotherRecord(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.recognises = false
	h.library.instead = func(*sip.Request) (*sip.Disposition, error) {
		two := "2"
		return &sip.Disposition{Source: &sip.Source{Identifier: &two}, Outcome: sip.Accepted, AssignedIdentifier: "urn:lib:2"}, nil
	}
	r := h.request("1")
	h.faulted(r, sip.Server, "in doubt")
	if s := h.state(r, submission.StateInDoubt); s.Reason != `the answer is not about what was sent: its source/source-identifier is "2", and "1" was sent` {
		t.Errorf("reason %q", s.Reason)
	}
	if ev := append(h.events("1"), h.events("2")...); len(ev) != 0 {
		t.Errorf("events %v", ev)
	}
}

// A reason is kept as long as one of a notification.
func TestGatewayLongReason(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.instead = func(r *sip.Request) (*sip.Disposition, error) {
		return &sip.Disposition{Source: r.Source, Outcome: sip.Rejected, Reason: strings.Repeat("\u00e9", submission.MaxText)}, nil
	}
	r := h.request("1")
	want := strings.Repeat("\u00e9", submission.MaxText/2) + "..."
	if got := h.answered(r, sip.Rejected).Reason; got != want {
		t.Errorf("answered a reason of %d bytes", len(got))
	}
	if s := h.state(r, submission.StateRejected); s.Reason != want {
		t.Errorf("kept a reason of %d bytes", len(s.Reason))
	}
}

// What will not be taken whenever it is sent is the submitter's to mend, and he is
// told what is wrong.
func TestGatewayRefusedForGood(t *testing.T) {
	for status, says := range map[int]string{
		400: "refuses the request: HTTP 400 Bad Request: look here",
		413: "too long for it as it is passed on: HTTP 413 Request Entity Too Large: look here",
		415: "HTTP 415 Unsupported Media Type: look here",
		422: "HTTP 422 Unprocessable Entity: look here",
	} {
		h, _ := oddGate(t, func(w http.ResponseWriter) { http.Error(w, "look here", status) })
		r := h.request("1")
		h.faulted(r, sip.Client, says)
		h.state(r, submission.StateUnsent)
	}
	// What is between the gateway and its server is not his business.
	for _, status := range []int{401, 403, 404, 405, 407} {
		h, _ := oddGate(t, func(w http.ResponseWriter) { http.Error(w, "look here", status) })
		r := h.request("1")
		h.faulted(r, sip.Server, "send it again later")
		if _, err := h.submit(r); strings.Contains(err.Error(), "look here") {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

// While the server wants to be left alone nobody waits for it, and everybody is
// told when to come again.
func TestGatewayLeavesTheServerAlone(t *testing.T) {
	for _, after := range []struct {
		asked string
		rests time.Duration
	}{{"1800", 30 * time.Minute}, {"9999", time.Hour}} {
		up := false
		h, asked := oddGate(t, func(w http.ResponseWriter) {
			if !up {
				w.Header().Set("Retry-After", after.asked)
				http.Error(w, "busy", http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "text/xml")
			_, _ = io.WriteString(w, accepting("7", nil))
		})
		first, second := h.request("1"), h.request("2")
		h.faulted(first, sip.Server, "HTTP 503 Service Unavailable: busy; wants to be asked again in")
		until := "it asks for no requests until " + h.clock.Now().Add(after.rests).Format(time.RFC3339) + ": HTTP 503 Service Unavailable: busy"
		h.faulted(first, sip.Server, until)
		h.faulted(second, sip.Server, until)
		if s := h.state(second, submission.StateUnsent); s.Reason != until {
			t.Errorf("reason %q", s.Reason)
		}
		_, err := h.process.Load().GetProperties(context.Background(), sip.Caller{})
		var fault *sip.Fault
		if !errors.As(err, &fault) || !strings.Contains(fault.Text, until) {
			t.Errorf("properties: %v", err)
		}
		if asked() != 1 {
			t.Fatalf("asked %d times", asked())
		}
		up = true
		h.clock.Advance(after.rests - time.Second)
		h.faulted(first, sip.Server, until)
		h.clock.Advance(time.Second)
		h.answered(first, sip.Accepted)
		h.answered(second, sip.Accepted)
		if asked() != 3 {
			t.Errorf("asked %d times", asked())
		}
	}
}
