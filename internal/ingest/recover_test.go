package ingest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// A request that was cut off is in doubt, and never sent again, whoever asks.
func TestInDoubtIsNotSentAgain(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.recognises = false
	h.start(Gateway, once("upstream", testenv.CutOff))
	r := h.request("1")
	h.faulted(r, sip.Server, "in doubt")
	s := h.state(r, submission.StateInDoubt)
	if want := event.MicrosOf(h.clock.Now().Add(48 * time.Hour)); s.Deadline != want || s.Due != want || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	h.tend(time.Hour)
	h.faulted(r, sip.Server, "in doubt")
	h.start(Gateway, nil)
	h.tend(46 * time.Hour)
	h.faulted(r, sip.Server, "in doubt")
	h.tend(time.Hour)
	s = h.state(r, submission.StateUnresolved)
	if !strings.Contains(s.Reason, "in time") || s.Due != 0 {
		t.Errorf("%+v", s)
	}
	h.faulted(r, sip.Server, "unresolved")
	if e := h.library.of("1"); len(e) != 1 || e[0].times != 1 {
		t.Errorf("sent %d times", len(e))
	}
	h.verified()
}

// A notification settles what is in doubt, and also what is unresolved.
func TestInDoubtIsNotified(t *testing.T) {
	for _, late := range []bool{false, true} {
		h := newGatewayHarness(t, Gateway, nil)
		h.library.recognises, h.library.answers = false, sip.ProvisionallyAccepted
		h.start(Gateway, once("upstream", testenv.CutOff))
		r := h.request("1")
		h.faulted(r, sip.Server, "in doubt")
		if late {
			h.tend(49 * time.Hour)
			h.state(r, submission.StateUnresolved)
		}
		if n := h.library.decide(sip.Accepted); n != 0 {
			t.Fatal("the notification was not taken")
		}
		if s := h.state(r, submission.StateAccepted); s.Late != late || s.Assigned != "urn:lib:1" {
			t.Errorf("%+v", s)
		}
		h.answered(r, sip.Accepted)
		h.deliver()
		if got := h.boxes.Of("1"); len(got) != 1 {
			t.Errorf("notified of %+v", got)
		}
		h.verified()
	}
}

func TestDeadlines(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.answers = sip.ProvisionallyAccepted
	const n = 1003 // more than a page
	var steps []submission.Update
	for i := range n {
		s := submission.Submission{Source: h.source, State: submission.StateProvisional, Request: [32]byte{byte(i), byte(i >> 8), 1}, Recipient: h.boxURL,
			Deadline: event.MicrosOf(h.clock.Now().Add(time.Hour)), Due: event.MicrosOf(h.clock.Now().Add(time.Hour))}
		steps = append(steps, submission.Update{Submission: s})
	}
	_, err := h.log.Write(context.Background(), &submission.Batch{Source: h.source, Updates: steps})
	h.do(err)
	h.clock.Advance(59*time.Minute + 30*time.Second)
	next, err := h.process.Load().doDue(context.Background())
	if err != nil || next.Sub(h.clock.Now()) != 30*time.Second {
		t.Errorf("next at %v, %v; want in 30 s", next, err)
	}
	h.tend(30 * time.Second)
	counts, err := h.log.Counts(context.Background(), h.source)
	h.do(err)
	if counts.Submissions[submission.StateUnresolved] != n || counts.Submissions[submission.StateProvisional] != 0 {
		t.Errorf("%+v", counts.Submissions)
	}
	h.verified()
}

// Run recovers before it takes anything in, and tends without being asked.
func TestRunTends(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	r := h.request("1")
	s, err := h.process.Load().newSubmission(context.Background(), r, requestDigest(r))
	h.do(err)
	s.State, s.Tries = submission.StateForwarding, 1
	_, err = h.log.Write(context.Background(), &submission.Batch{Source: h.source, Updates: []submission.Update{{Submission: *s}}})
	h.do(err)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := &Server{Set: "maps", Source: h.source, Mode: Gateway, Store: h.log, Keep: keep(h.contents), Deadline: 90 * time.Minute,
			Now: func() time.Time { return h.clock.Now().Add(time.Since(start)) }}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); d.Run(ctx) }()
		_, err := d.Ingest(ctx, sip.Caller{}, r)
		isFault(t, err, sip.Server, "")
		if s := h.of(r); s.State != submission.StateInDoubt || !strings.Contains(s.Reason, "stopped") {
			t.Errorf("%+v", s)
		}
		time.Sleep(90*time.Minute - time.Nanosecond)
		synctest.Wait()
		if s := h.of(r); s.State != submission.StateInDoubt {
			t.Errorf("before the deadline: %+v", s)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if s := h.of(r); s.State != submission.StateUnresolved {
			t.Errorf("after the deadline: %+v", s)
		}
		cancel()
		<-ended
	})
}
