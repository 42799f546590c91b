package ingest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// D33, D34: whatever has no ultimate disposition, or two, can be settled by whoever
// knows what the ingest server has decided.
func TestSettle(t *testing.T) {
	says := map[string]Settlement{
		"accepted":  {Outcome: submission.StateAccepted, Assigned: "urn:lib:1"},
		"rejected":  {Outcome: submission.StateRejected, Reason: "on the telephone"},
		"not taken": {Outcome: submission.StateUnsent},
	}
	for _, state := range []submission.State{submission.StateInDoubt, submission.StateProvisional, submission.StateUnresolved} {
		for _, of := range []string{"a gateway", "a target"} {
			for what, how := range says {
				if what == "not taken" && of == "a gateway" && state == submission.StateProvisional {
					continue // TestSettleOwesADecision
				}
				t.Run(strings.Join([]string{of, state.String(), what}, ", "), func(t *testing.T) {
					h := newHarness(t, Gateway, func(_ *harness, d *Server) { d.Targets = true })
					target := h.target()
					sub := h.received("1", state, func(s *submission.Submission) {
						s.Due, s.Deadline = 1<<60, 1<<60
						if of == "a target" {
							s.Source, s.Seq, s.Record, s.Recipient = target, 1, "urn:1", ""
						}
					})
					for range 2 { // the same again is no error, and nothing more
						_, err := h.server.Settle(t.Context(), sub.ID, how)
						h.do(err)
						got := h.submission(sub.ID)
						if got.State != how.Outcome || got.Assigned != how.Assigned || got.Due != 0 || got.Deadline != 0 {
							t.Errorf("it is %+v", got)
						}
						if owed := of == "a target" && what == "accepted"; got.ImportPending != owed {
							t.Errorf("owed: %v", got.ImportPending)
						}
						told := 0
						if of == "a gateway" && what != "not taken" {
							told = 1
						}
						if n := len(h.notices()); n != told {
							t.Errorf("%d notices, want %d", n, told)
						}
					}
					var want []string
					switch {
					case what == "rejected" && of == "a target":
						want = []string{"rejected 1: on the telephone"}
					case what == "rejected":
						want = []string{"rejected 1: on the telephone"}
					case what == "accepted" && of == "a gateway":
						want = []string{"created urn:lib:1"}
					}
					if want == nil {
						want = []string{}
					}
					h.wantEvents(want...)
					if of == "a gateway" {
						h.verified()
					}
				})
			}
		}
	}
}

// Of two dispositions that contradict each other somebody says which holds; from
// then on neither is a conflict, however often they are repeated.
func TestSettleConflict(t *testing.T) {
	for what, how := range map[string]Settlement{
		"the one in force":   {Outcome: submission.StateAccepted, Assigned: "urn:lib:1"},
		"the other one":      {Outcome: submission.StateRejected, Reason: "after all"},
		"neither of the two": {Outcome: submission.StateAccepted, Assigned: "urn:lib:2"},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHarness(t, Gateway, nil)
			sub := h.received("1", submission.StateProvisional, nil)
			first, second := accepted(mapOf("1"), "urn:lib:1"), rejected(mapOf("1"), "after all")
			h.notify(sub.Token, first)
			h.notify(sub.Token, second)
			if _, err := h.server.Settle(t.Context(), sub.ID, Settlement{Outcome: submission.StateUnsent}); err == nil {
				t.Error("what the server has decided on was not taken")
			}
			before, err := h.server.Settle(t.Context(), sub.ID, how)
			h.do(err)
			if before.Assigned != "urn:lib:1" {
				t.Errorf("before, it was %+v", before)
			}
			for range 2 {
				got := h.submission(sub.ID)
				if got.State != how.Outcome || got.Assigned != how.Assigned || got.Conflicts != 0 {
					t.Errorf("it is %+v", got)
				}
				counts, err := h.log.Counts(t.Context(), h.server.Source)
				h.do(err)
				if counts.Contradicted != 0 || counts.Incoming[submission.NotificationSettled] != 2 || counts.Incoming[submission.NotificationConflict] != 0 {
					t.Errorf("counted: %+v", counts)
				}
				h.notify(sub.Token, first)
				h.notify(sub.Token, second)
			}
			if n := len(h.notices()); n != 1 {
				t.Errorf("the sender is told %d times", n)
			}
			// What nobody has said before is a conflict again.
			h.notify(sub.Token, accepted(mapOf("1"), "urn:lib:3"))
			if got := h.submission(sub.ID); got.Conflicts != 1 {
				t.Errorf("after another one: %+v", got)
			}
			h.verified()
		})
	}
}

// A notification that belongs to no submission settles the one that somebody names.
func TestSettleByNotification(t *testing.T) {
	h := newHarness(t, Gateway, func(_ *harness, d *Server) { d.Targets = true })
	target := h.target()
	for i, change := range []func(*submission.Submission){nil, func(s *submission.Submission) { s.Source, s.Seq, s.Record, s.Recipient = target, 1, "urn:x", "" }} {
		id := string(rune('1' + i))
		sub := h.received(id, submission.StateProvisional, change)
		h.notify("", accepted(mapOf(id), "urn:lib:"+id))
		found, err := h.log.Incoming(t.Context(), "maps", submission.NotificationUncorrelated, 0, 10)
		h.do(err)
		if len(found) != 1 {
			t.Fatalf("uncorrelated: %+v", found)
		}
		for range 2 {
			_, err := h.server.Settle(t.Context(), sub.ID, Settlement{Notification: found[0].ID})
			h.do(err)
			if got := h.submission(sub.ID); got.State != submission.StateAccepted || got.Assigned != "urn:lib:"+id {
				t.Errorf("it is %+v", got)
			}
			h.notify("", accepted(mapOf(id), "urn:lib:"+id))
			if got, err := h.log.IncomingNotification(t.Context(), found[0].ID); err != nil || got.Verdict != submission.NotificationSettled || got.Submission != sub.ID {
				t.Errorf("the notification is %+v, %v", got, err)
			}
		}
		if _, err := h.server.Settle(t.Context(), h.received("9"+id, submission.StateProvisional, nil).ID, Settlement{Notification: found[0].ID}); err == nil {
			t.Error("one notification has settled two submissions")
		}
	}
	h.wantEvents("created urn:lib:1")
	// Neither does it when two are settled by it at the same moment.
	h.notify("", accepted(mapOf("3"), "urn:lib:3"))
	found, err := h.log.Incoming(t.Context(), "maps", submission.NotificationUncorrelated, 0, 10)
	h.do(err)
	first, second := h.received("3", submission.StateProvisional, nil).ID, h.received("93", submission.StateProvisional, nil).ID
	commit := h.store.Hook
	h.store.Hook = func(query string, call func() error) error {
		if do := first; query == "" && do != 0 {
			first = 0
			_, err := h.server.Settle(t.Context(), do, Settlement{Notification: found[0].ID})
			h.do(err)
		}
		return commit(query, call)
	}
	if _, err := h.server.Settle(t.Context(), second, Settlement{Notification: found[0].ID}); err == nil || !strings.Contains(err.Error(), "belongs to submission") {
		t.Errorf("one notification has settled two submissions at the same moment: %v", err)
	}
	h.wantEvents("created urn:lib:1", "created urn:lib:3")
}

// What is decided, or not there to be decided on, cannot be settled.
func TestSettleRefuses(t *testing.T) {
	h := newHarness(t, Gateway, nil)
	yes := Settlement{Outcome: submission.StateAccepted, Assigned: "urn:lib:1"}
	for _, c := range []struct {
		state  submission.State
		change func(*submission.Submission)
		want   string
	}{
		{submission.StateProvisional, reviewed, "bridge submission accept"},
		{submission.StateUnsent, nil, "is unsent"},
		{submission.StateWaiting, func(s *submission.Submission) { s.Tries = 0 }, "is waiting"},
		{submission.StateRejected, nil, "has been rejected already"},
		{submission.StateAccepted, func(s *submission.Submission) { s.Assigned = "urn:lib:9" }, "as urn:lib:9"},
	} {
		sub := h.received(c.state.String(), c.state, c.change)
		if _, err := h.server.Settle(t.Context(), sub.ID, yes); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.state, err, c.want)
		}
	}
	sub := h.received("1", submission.StateInDoubt, nil)
	for _, assigned := range []string{"", " x", strings.Repeat("x", submission.MaxText+1)} {
		if _, err := h.server.Settle(t.Context(), sub.ID, Settlement{Outcome: submission.StateAccepted, Assigned: assigned}); err == nil {
			t.Errorf("accepted as %q", assigned[:min(len(assigned), 9)])
		}
	}
	if !slices.Equal(h.events(), []string{}) {
		t.Errorf("events %q", h.events())
	}
}

// D33: a gateway's request that was settled as not taken goes on when it is
// submitted again.
func TestSettledAsNotTakenIsSentAgain(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.start(Gateway, once("upstream", testenv.Fails))
	r := h.request("1")
	h.faulted(r, sip.Server, "in doubt")
	s := h.state(r, submission.StateInDoubt)
	_, err := h.process.Load().Settle(t.Context(), s.ID, Settlement{Outcome: submission.StateUnsent})
	h.do(err)
	h.answered(r, sip.Accepted)
}

// A submitter who was answered "provisionally accepted" waits for a decision, also after
// the deadline: it gets one, and is not left to wait because the ingest server has lost the
// record.
func TestSettleOwesADecision(t *testing.T) {
	for what, late := range map[string]bool{"in time": false, "after the deadline": true} {
		t.Run(what, func(t *testing.T) {
			h := newGatewayHarness(t, Gateway, nil)
			h.library.answers = sip.ProvisionallyAccepted
			r := h.request("1")
			h.answered(r, sip.ProvisionallyAccepted)
			if late {
				h.tend(49 * time.Hour)
				h.state(r, submission.StateUnresolved)
			}
			s := h.of(r)
			_, err := h.process.Load().Settle(t.Context(), s.ID, Settlement{Outcome: submission.StateUnsent})
			if err == nil || !strings.Contains(err.Error(), "--rejected") {
				t.Errorf("settled as not taken: %v; the notifications are %+v", err, h.notices())
			}
			_, err = h.process.Load().Settle(t.Context(), s.ID, Settlement{Outcome: submission.StateRejected, Reason: "the ingest server has lost it"})
			h.do(err)
			h.deliver()
			told := h.boxes.Of("1")
			if len(told) != 1 || told[0].Outcome != sip.Rejected || told[0].Reason != "the ingest server has lost it" {
				t.Errorf("the submitter was told %+v", told)
			}
		})
	}
	// Nobody waits where nobody named a recipient.
	h := newGatewayHarness(t, Gateway, nil)
	h.library.answers = sip.ProvisionallyAccepted
	r := h.request("1")
	r.Recipient = ""
	h.faulted(r, sip.Server, "provisionally")
	_, err := h.process.Load().Settle(t.Context(), h.of(r).ID, Settlement{Outcome: submission.StateUnsent})
	h.do(err)
	h.state(r, submission.StateUnsent)
}
