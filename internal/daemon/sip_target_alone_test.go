package daemon_test

import (
	"fmt"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// A set may submit its records without a SIP Source of its own. Notifications
// come to it all the same, also those that belong to nothing it has sent, and
// what other sets have under way is none of its business.
func TestTargetsWithoutAService(t *testing.T) {
	library := newIngestServer(t, accepts)
	h := newSoapHouse(t, fmt.Sprintf("[[set]]\nname = \"alone\"\n[[set.submit]]\nurl = %q\n", library.URL+"/other")+
		soapSet("main", "mode = \"gateway\"\nupstream = \""+library.URL+"\""))
	h.notify("/sip/alone", sourceOf("1")+rejectedFor("no title"))
	h.notify("/sip/alone", sourceOf("1")+rejectedFor("no title"))
	h.notify("/sip/alone", sourceOf("2")+acceptedAs("L2"))
	h.want("the notifications", h.verdicts("alone"), "rejected 1: rejected no title x2", "uncorrelated 2: accepted L2 x1")
	h.want("the events", h.told("alone"), "rejected 1: no title")
	h.shows("alone", "no title")

	// As a process leaves it that was killed while it sent a request on.
	sources, err := h.house.Log.Sources(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	under := event.Submission{Source: sources[0].ID, State: event.StateForwarding, Request: [32]byte{1}, Tries: 1, SourceIdentifier: "3"}
	if _, err := h.house.Log.Append(t.Context(), &event.Batch{Source: under.Source, Mode: event.ModeSubmission,
		Exchange: &event.Exchange{Steps: []event.Step{{Submission: under}}}}); err != nil {
		t.Fatal(err)
	}
	h.restart(nil)
	eventually(t, "the gateway sees what it has left", func() bool { return h.submissions("main")[0] == "in doubt 3 -> " })
	h.notify("/sip/alone", sourceOf("1")+rejectedFor("no title"))
	h.want("the notifications", h.verdicts("alone"), "rejected 1: rejected no title x3", "uncorrelated 2: accepted L2 x1")
	h.verified()
}
