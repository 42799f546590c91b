package daemon_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// TestSIPStates_AtOnce: the reply is the ultimate disposition.
func TestSIPStates_AtOnce(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Accepts)
	h := newSubmitter(t, "", library)
	good := h.take("good")
	s := h.becomes(good, submission.StateAccepted)
	if s.Assigned != testserver.AssignedTo(good) || s.Late || s.Tries != 1 || s.Due != 0 || s.Deadline != 0 {
		t.Errorf("accepted as %+v", s)
	}
	h.want("set kept", h.kept(), "created "+testserver.AssignedTo(good))

	library.SetAnswer(testserver.Rejects)
	bad := h.take("bad")
	s = h.becomes(bad, submission.StateRejected)
	if s.Reason != "no author of "+bad {
		t.Errorf("rejected as %+v", s)
	}
	h.want("set main", h.told("main"), "created "+good, "created "+bad, "rejected "+bad+": no author of "+bad)
	h.want("set kept", h.kept(), "created "+testserver.AssignedTo(good))
	if r := library.Requests(good)[0]; r.Recipient != h.base+"/sip/main/"+h.of(good)[0].Token || len(r.Source.Submitter.Name) != len("Ann Gr\u00fcn") || *r.Source.Sequence != "main" ||
		string(r.Record.XML) != `<r xmlns="urn:r">this is good</r>` {
		t.Errorf("the server was sent %+v %+v", r, r.Source)
	}
	// A final reply leaves nothing to be told.
	tell(t, library.Requests(good)[0].Recipient, library.Requests(good)[0], testserver.Accepts)
	h.wantCounts("accepted 1, rejected 1; matched 1")
	h.want("set kept, told again", h.kept(), "created "+testserver.AssignedTo(good))
	h.shows("main", bad, "rejected", "no author of "+bad)
	if strings.Contains(h.page("main"), h.of(good)[0].Token) {
		t.Error("the page has a token")
	}
	h.verified()
}

// TestSIPStates_Provisional: the ultimate disposition comes in a notification.
func TestSIPStates_Provisional(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Defers)
	h := newSubmitter(t, "", library)
	good, bad := h.take("good"), h.take("bad")
	for _, record := range []string{good, bad} {
		s := h.becomes(record, submission.StateProvisional)
		if wait := time.Duration(s.Deadline-event.MicrosOf(h.clock.now())) * time.Microsecond; s.Due != s.Deadline || wait > 168*time.Hour || wait < 167*time.Hour {
			t.Errorf("provisional, for %v: %+v", wait, s)
		}
	}
	h.wantCounts("provisional 2; ")
	h.want("set kept", h.kept())
	h.shows("main", "provisional")
	h.restart(nil) // what is awaited is durable
	tell(t, library.Requests(good)[0].Recipient, library.Requests(good)[0], testserver.Accepts)
	tell(t, library.Requests(bad)[0].Recipient, library.Requests(bad)[0], testserver.Rejects)
	// Notified is committed: nobody need be waited for.
	if s := h.of(good)[0]; s.State != submission.StateAccepted || s.Assigned != testserver.AssignedTo(good) || s.Late {
		t.Errorf("notified of acceptance: %+v", s)
	}
	if s := h.of(bad)[0]; s.State != submission.StateRejected || s.Reason != "no author of "+bad {
		t.Errorf("notified of rejection: %+v", s)
	}
	h.want("set main", h.told("main"), "created "+good, "created "+bad, "rejected "+bad+": no author of "+bad)
	h.want("set kept", h.kept(), "created "+testserver.AssignedTo(good))
	h.wantCounts("accepted 1, rejected 1; matched 2")
	h.shows("main", "no author of "+bad)
	if n := len(library.Requests(good)) + len(library.Requests(bad)); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	h.verified()
}
