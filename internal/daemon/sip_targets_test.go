package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// A set may submit its records without a SIP Source of its own. Notifications
// come to it all the same, also those that belong to nothing it has sent, and
// what other sets have under way is none of its business.
func TestTargetsWithoutAService(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Accepts)
	h := newSIPBridge(t, fmt.Sprintf("[[set]]\nname = \"alone\"\n[[set.submit]]\nurl = %q\n", library.URL+"/other")+
		sipSet("main", "mode = \"gateway\"\nupstream = \""+library.URL+"\""))
	h.notify("/sip/alone", sourceOf("1")+rejectedFor("no title"))
	h.notify("/sip/alone", sourceOf("1")+rejectedFor("no title"))
	h.notify("/sip/alone", sourceOf("2")+acceptedAs("L2"))
	h.want("the notifications", h.verdicts("alone"), "rejected 1: rejected no title x2", "uncorrelated 2: accepted L2 x1")
	h.want("the events", h.told("alone")) // of anonymous callers there are none (D40)
	h.shows("alone", "no title")

	// As a process leaves it that was killed while it sent a request on.
	sources, err := h.bridge.Log.Sources(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	under := submission.Submission{Source: sources[0].ID, State: submission.StateForwarding, Request: [32]byte{1}, Tries: 1, SourceIdentifier: "3"}
	if _, err := h.bridge.SIP.Write(t.Context(), &submission.Batch{Source: under.Source, Updates: []submission.Update{{Submission: under}}}); err != nil {
		t.Fatal(err)
	}
	h.restart(nil)
	eventually(t, "the gateway sees what it has left", func() bool { return h.submissions("main")[0] == "in doubt 3 -> " })
	h.notify("/sip/alone", sourceOf("1")+rejectedFor("no title"))
	h.want("the notifications", h.verdicts("alone"), "rejected 1: rejected no title x3", "uncorrelated 2: accepted L2 x1")
	h.verified()
}

// What waits for a target that is not configured any more ends at its deadline, the
// status says so, and not for ever that it fails; what may still be sent is when the target
// is back.
func TestFormerTarget(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Defers)
	h := newSubmitter(t, `deadline = "24h"`, library)
	configured := h.config.Sets
	silent := h.take("silent")
	h.becomes(silent, submission.StateProvisional)
	// What was begun may have arrived. So the outbox begins anew, and asks for the
	// properties first, in vain.
	library.Shut()
	h.restart(nil)
	var waits string
	h.inVain(func() { waits = h.take("waits") })
	former := func() (out []string) {
		t.Helper()
		now, err := h.bridge.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range now.Sets {
			for _, p := range s.Submissions {
				if p.Direction == status.Sent {
					out = append(out, fmt.Sprintf("former %t, failing %t", p.Former, p.Failing != nil))
				}
			}
		}
		return out
	}
	eventually(t, "the failure is stored", func() bool { return slices.Equal(former(), []string{"former false, failing true"}) })
	h.restart(func() {
		h.config.Sets = slices.Clone(configured)
		h.config.Sets[0].Submit = nil
		h.clock.pass(25 * time.Hour)
	})
	h.becomes(silent, submission.StateUnresolved)
	h.becomes(waits, submission.StateWaiting)
	h.want("not configured", former(), "former true, failing false")

	library.Open()
	library.SetAnswer(testserver.Accepts)
	h.restart(func() { h.config.Sets = configured; h.clock.pass(2 * time.Hour) })
	h.becomes(waits, submission.StateAccepted)
	h.becomes(silent, submission.StateUnresolved)
	h.verified()
}

// A set can be removed although some of its records were never sent to their target: nothing
// can conclude them when the target is gone.
func TestSetWithUnsentIsRemoved(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Defers)
	h := newSubmitter(t, "", library)
	asked := h.take("asked")
	h.becomes(asked, submission.StateProvisional)
	library.Shut()
	h.restart(nil)
	var waits string
	h.inVain(func() { waits = h.take("waits") })
	s := h.becomes(waits, submission.StateWaiting)
	h.withoutSet("main")
	if err := decided(t, h.config.Data, daemon.Decision{ID: s.ID, Settle: &daemon.Settlement{Outcome: submission.StateUnsent}})[0]; err == nil {
		t.Error("what was not sent is settled")
	}
	if _, err := h.bridge.RemoveSet(t.Context(), "main", false); err == nil || !strings.Contains(err.Error(), "still has 1 submission to conclude, and 0 notifications") {
		t.Errorf("removed with what was sent: %v", err)
	}
	for _, of := range h.of(asked) {
		if err := decided(t, h.config.Data, daemon.Decision{ID: of.ID, Settle: &daemon.Settlement{Outcome: submission.StateRejected}})[0]; err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.bridge.RemoveSet(t.Context(), "main", false); err != nil {
		t.Error(err)
	}
	h.verified()
}
