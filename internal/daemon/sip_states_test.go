package daemon_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
)

// TestSIPStates_AtOnce: the reply is the ultimate disposition.
func TestSIPStates_AtOnce(t *testing.T) {
	library := newIngestServer(t, accepts)
	h := newSubmitter(t, "", library)
	good := h.take("good")
	s := h.becomes(good, event.StateAccepted)
	if s.Assigned != assignedTo(good) || s.Late || s.Tries != 1 || s.Due != 0 || s.Deadline != 0 {
		t.Errorf("accepted as %+v", s)
	}
	h.want("set kept", h.kept(), "created "+assignedTo(good))

	library.answers(rejects)
	bad := h.take("bad")
	s = h.becomes(bad, event.StateRejected)
	if s.Reason != "no author of "+bad {
		t.Errorf("rejected as %+v", s)
	}
	h.want("set main", h.told("main"), "created "+good, "created "+bad, "rejected "+bad+": no author of "+bad)
	h.want("set kept", h.kept(), "created "+assignedTo(good))
	if r := library.requests(good)[0]; r.Recipient != h.base+"/sip/main/"+h.of(good)[0].Token || len(r.Source.Submitter.Name) != len("Ann Gr\u00fcn") || *r.Source.Sequence != "main" ||
		string(r.Record.XML) != `<r xmlns="urn:r">this is good</r>` {
		t.Errorf("the server was sent %+v %+v", r, r.Source)
	}
	// A final reply leaves nothing to be told.
	tell(t, library.requests(good)[0].Recipient, library.requests(good)[0], accepts)
	h.wantCounts("accepted 1, rejected 1; matched 1")
	h.want("set kept, told again", h.kept(), "created "+assignedTo(good))
	h.shows("main", bad, "rejected", "no author of "+bad)
	if strings.Contains(h.page("main"), h.of(good)[0].Token) {
		t.Error("the page has a token")
	}
	h.verified()
}

// TestSIPStates_Provisional: the ultimate disposition comes in a notification.
func TestSIPStates_Provisional(t *testing.T) {
	library := newIngestServer(t, defers)
	h := newSubmitter(t, "", library)
	good, bad := h.take("good"), h.take("bad")
	for _, record := range []string{good, bad} {
		s := h.becomes(record, event.StateProvisional)
		if wait := time.Duration(s.Deadline-event.MicrosOf(h.clock.now())) * time.Microsecond; s.Due != s.Deadline || wait > 168*time.Hour || wait < 167*time.Hour {
			t.Errorf("provisional, for %v: %+v", wait, s)
		}
	}
	h.wantCounts("provisional 2; ")
	h.want("set kept", h.kept())
	h.shows("main", "provisional")
	h.restart(nil) // what is awaited is durable
	tell(t, library.requests(good)[0].Recipient, library.requests(good)[0], accepts)
	tell(t, library.requests(bad)[0].Recipient, library.requests(bad)[0], rejects)
	// Notified is committed: nobody need be waited for.
	if s := h.of(good)[0]; s.State != event.StateAccepted || s.Assigned != assignedTo(good) || s.Late {
		t.Errorf("notified of acceptance: %+v", s)
	}
	if s := h.of(bad)[0]; s.State != event.StateRejected || s.Reason != "no author of "+bad {
		t.Errorf("notified of rejection: %+v", s)
	}
	h.want("set main", h.told("main"), "created "+good, "created "+bad, "rejected "+bad+": no author of "+bad)
	h.want("set kept", h.kept(), "created "+assignedTo(good))
	h.wantCounts("accepted 1, rejected 1; matched 2")
	h.shows("main", "no author of "+bad)
	if n := len(library.requests(good)) + len(library.requests(bad)); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	h.verified()
}

// TestSIPStates_FinalBeforeProvisional: the server notifies before it has replied.
func TestSIPStates_FinalBeforeProvisional(t *testing.T) {
	library := newIngestServer(t, nil)
	h := newSubmitter(t, "", library)
	replied := make(chan struct{}, 2)
	hasty := func(answer func(*sip.Request) (*sip.Disposition, error)) func(*sip.Request) (*sip.Disposition, error) {
		return func(r *sip.Request) (*sip.Disposition, error) {
			tell(t, r.Recipient, r, answer)
			if s := h.of(*r.Source.Identifier)[0]; !s.State.Final() {
				t.Errorf("notified: %+v", s)
			}
			replied <- struct{}{}
			return defers(r)
		}
	}
	library.answers(hasty(accepts))
	good := h.take("good")
	<-replied
	h.becomes(good, event.StateAccepted)
	library.answers(hasty(rejects))
	bad := h.take("bad")
	<-replied
	h.becomes(bad, event.StateRejected)
	h.restart(nil) // before it ends, the replies are taken in
	if s := h.of(good)[0]; s.State != event.StateAccepted || s.Assigned != assignedTo(good) || s.Conflicts != 0 || s.Due != 0 {
		t.Errorf("after the reply: %+v", s)
	}
	if s := h.of(bad)[0]; s.State != event.StateRejected || s.Conflicts != 0 || s.Due != 0 {
		t.Errorf("after the reply: %+v", s)
	}
	h.want("set kept", h.kept(), "created "+assignedTo(good))
	h.wantCounts("accepted 1, rejected 1; matched 2")
	if n := len(library.requests(good)) + len(library.requests(bad)); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	h.verified()
}

// TestSIPStates_NoAnswer: what has no answer in time is unresolved, and a late one
// counts.
func TestSIPStates_NoAnswer(t *testing.T) {
	library := newIngestServer(t, defers)
	h := newSubmitter(t, `deadline = "24h"`, library)
	silent, refused := h.take("silent"), h.take("refused")
	h.becomes(silent, event.StateProvisional)
	h.becomes(refused, event.StateProvisional)
	library.answers(func(*sip.Request) (*sip.Disposition, error) { panic(http.ErrAbortHandler) })
	lost := h.take("lost")
	if s := h.tried(lost, 1); s.State != event.StateWaiting || s.Deadline == 0 || s.Reason == "" {
		t.Errorf("nobody knows whether it has arrived: %+v", s)
	}

	library.answers(accepts)
	woken := h.later(23 * time.Hour)
	h.becomes(woken, event.StateAccepted)
	h.becomes(silent, event.StateProvisional)
	h.becomes(lost, event.StateAccepted) // it was sent again
	library.answers(func(*sip.Request) (*sip.Disposition, error) { panic(http.ErrAbortHandler) })
	gone := h.take("gone")
	h.tried(gone, 1)

	h.restart(func() { h.clock.pass(2 * time.Hour) })
	for _, record := range []string{silent, refused} {
		if s := h.becomes(record, event.StateUnresolved); s.Due != 0 || s.Deadline != 0 {
			t.Errorf("unresolved: %+v", s)
		}
	}
	h.later(23 * time.Hour)
	h.becomes(gone, event.StateUnresolved)
	h.shows("main", "Submissions without an answer when their time was up: 3.", silent, refused, gone, "unresolved")
	tries := len(library.requests(silent)) + len(library.requests(gone))

	tell(t, library.requests(silent)[0].Recipient, library.requests(silent)[0], accepts)
	tell(t, library.requests(gone)[0].Recipient, library.requests(gone)[0], accepts)
	tell(t, library.requests(refused)[0].Recipient, library.requests(refused)[0], rejects)
	for record, want := range map[string]event.State{silent: event.StateAccepted, gone: event.StateAccepted, refused: event.StateRejected} {
		if s := h.of(record)[0]; s.State != want || !s.Late {
			t.Errorf("late: %+v, want %s", s, want)
		}
	}
	h.want("set kept", sorted(h.kept()...), sorted("created "+assignedTo(woken), "created "+assignedTo(lost), "created "+assignedTo(silent), "created "+assignedTo(gone))...)
	if page := h.page("main"); strings.Contains(page, "when their time was up") || !strings.Contains(page, "no author of "+refused) {
		t.Errorf("the page says\n%s", page)
	}
	if n := len(library.requests(silent)) + len(library.requests(gone)); n != tries {
		t.Errorf("%d requests more: what is unresolved is not sent again", n-tries)
	}
	h.verified()
}

// TestSIPStates_Contradiction: the first ultimate disposition stays in force.
func TestSIPStates_Contradiction(t *testing.T) {
	library := newIngestServer(t, defers)
	h := newSubmitter(t, "", library)
	good, bad := h.take("good"), h.take("bad")
	h.becomes(good, event.StateProvisional)
	h.becomes(bad, event.StateProvisional)
	other := func(r *sip.Request) (*sip.Disposition, error) {
		return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "assignedTo:other"}, nil
	}
	for record, answers := range map[string][]func(*sip.Request) (*sip.Disposition, error){
		good: {accepts, rejects, other, accepts, rejects},
		bad:  {rejects, accepts, rejects},
	} {
		for _, answer := range answers {
			tell(t, library.requests(record)[0].Recipient, library.requests(record)[0], answer)
		}
	}
	if s := h.of(good)[0]; s.State != event.StateAccepted || s.Assigned != assignedTo(good) || s.Conflicts != 2 {
		t.Errorf("accepted first: %+v", s)
	}
	if s := h.of(bad)[0]; s.State != event.StateRejected || s.Assigned != "" || s.Conflicts != 1 {
		t.Errorf("rejected first: %+v", s)
	}
	h.want("set kept", h.kept(), "created "+assignedTo(good))
	h.want("set main", h.told("main"), "created "+good, "created "+bad, "rejected "+bad+": no author of "+bad)
	h.wantCounts("accepted 1, rejected 1; conflict 3, matched 2")
	h.want("the notifications", h.verdicts("main"), sorted(
		"conflict "+good+": accepted assignedTo:other x1", "conflict "+good+": rejected no author of "+good+" x2",
		"conflict "+bad+": accepted "+assignedTo(bad)+" x1", "matched "+good+": accepted "+assignedTo(good)+" x2", "matched "+bad+": rejected no author of "+bad+" x2")...)
	h.shows("main", "Notifications that contradict an earlier one: 3.", "The first one stays in force", "accepted, contradicted 2 times", "rejected, contradicted once", "3 conflict")
	h.verified()
}

// TestSIPStates_ReplyContradicts: the reply itself may be what contradicts.
func TestSIPStates_ReplyContradicts(t *testing.T) {
	library := newIngestServer(t, func(r *sip.Request) (*sip.Disposition, error) {
		tell(t, r.Recipient, r, accepts)
		return rejects(r)
	})
	h := newSubmitter(t, "", library)
	good := h.take("good")
	eventually(t, "the reply is taken in", func() bool { s := h.of(good); return len(s) == 1 && s[0].Conflicts > 0 })
	if s := h.of(good)[0]; s.State != event.StateAccepted || s.Assigned != assignedTo(good) || s.Conflicts != 1 {
		t.Errorf("%+v", s)
	}
	h.wantCounts("accepted 1; conflict 1, matched 1")
	h.want("the notifications", h.verdicts("main"), "conflict "+good+": rejected no author of "+good+" x1", "matched "+good+": accepted "+assignedTo(good)+" x1")
	h.want("set main", h.told("main"), "created "+good)
	h.shows("main", "accepted, contradicted once")
	// Told again, it is no other contradiction.
	tell(t, library.requests(good)[0].Recipient, library.requests(good)[0], rejects)
	if s := h.of(good)[0]; s.Conflicts != 1 {
		t.Errorf("told again: %+v", s)
	}
	h.wantCounts("accepted 1; conflict 1, matched 1")
	h.verified()
}

// TestSIPStates_Duplicates: the same notification, 1,000 times at once, is one.
func TestSIPStates_Duplicates(t *testing.T) {
	library := newIngestServer(t, defers)
	h := newSubmitter(t, "", library)
	good := h.take("good")
	h.becomes(good, event.StateProvisional)
	r := library.requests(good)[0]
	const clients, each = 200, 5 // no more than one address may have at a time
	own := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer own.CloseIdleConnections()
	d, _ := accepts(r)
	var group sync.WaitGroup
	start := make(chan struct{})
	for range clients {
		group.Go(func() {
			<-start
			for range each {
				if err := (&sip.HTTPClient{HTTP: own, URL: r.Recipient}).Notify(t.Context(), d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(start)
	group.Wait()
	if s := h.of(good)[0]; s.State != event.StateAccepted || s.Conflicts != 0 {
		t.Errorf("%+v", s)
	}
	h.want("set kept", h.kept(), "created "+assignedTo(good))
	h.want("the notifications", h.verdicts("main"), "matched "+good+": accepted "+assignedTo(good)+" x1000")
	h.wantCounts("accepted 1; matched 1")
	h.verified()
}

// TestSIPStates_WithoutToken: a notification that lacks the token, or has another,
// belongs to no submission, although its source element tells which is meant (D30).
func TestSIPStates_WithoutToken(t *testing.T) {
	library := newIngestServer(t, defers)
	h := newSubmitterOf(t, sipSet("main", libraryMode+"\naccess = \"addresses\"\naccess_addresses = [\"127.0.0.0/8\"]"), "", library)
	good := h.take("good")
	h.becomes(good, event.StateProvisional)
	sent := library.requests(good)[0]
	for _, path := range []string{"/sip/main", "/sip/main/aaaaaaaaaaaaaaaaaaaaaaaaaa"} {
		tell(t, h.base+path, sent, accepts)
		tell(t, h.base+path, sent, rejects)
	}
	if s := h.of(good)[0]; s.State != event.StateProvisional {
		t.Errorf("told without the token: %+v", s)
	}
	h.want("set kept", h.kept())
	h.shows("main", "Notifications that belong to no submission: 2.", "2 uncorrelated")
	tell(t, sent.Recipient, sent, accepts)
	h.becomes(good, event.StateAccepted)
	h.want("set kept", h.kept(), "created "+assignedTo(good))
	h.verified()
}

// TestSIPStates_Down: a server that is down for days costs nothing but time.
func TestSIPStates_Down(t *testing.T) {
	library := newIngestServer(t, accepts)
	h := newSubmitter(t, `deadline = "24h"`, library)
	library.shut()
	var records []string
	h.inVain(func() { records = append(records, h.take("first")) })
	for range 5 {
		h.inVain(func() { records = append(records, h.later(20*time.Hour)) })
	}
	h.inVain(func() { h.restart(func() { h.clock.pass(24 * time.Hour) }) })
	for _, record := range records {
		// Nothing was sent, so that no answer is missing.
		if s := h.becomes(record, event.StateWaiting); s.Deadline != 0 {
			t.Errorf("%+v", s)
		}
	}
	h.wantCounts("waiting 6; ")
	h.shows("main", "waiting")
	library.gate.closed.Store(false)
	records = append(records, h.later(2*time.Hour))
	for _, record := range records {
		h.becomes(record, event.StateAccepted)
		if n := len(library.requests(record)); n != 1 {
			t.Errorf("%s was sent %d times", record, n)
		}
	}
	h.wantCounts("accepted 7; ")
	if got := h.kept(); len(got) != len(records) {
		t.Errorf("set kept: %q", got)
	}
	h.verified()
}

// TestSIPStates_Faults: a fault of the server is waited out, one of ours is the
// end.
func TestSIPStates_Faults(t *testing.T) {
	library := newIngestServer(t, func(r *sip.Request) (*sip.Disposition, error) {
		return nil, &sip.Fault{Code: sip.Server, Text: "our shelves are being moved"}
	})
	h := newSubmitter(t, "", library)
	good := h.take("good")
	if s := h.tried(good, 1); s.State != event.StateWaiting || !strings.Contains(s.Reason, "our shelves are being moved") || s.Due <= event.MicrosOf(h.clock.now()) {
		t.Errorf("after a fault Server: %+v", s)
	}
	library.answers(accepts)
	woken := h.later(time.Minute)
	h.becomes(woken, event.StateAccepted)
	if s := h.becomes(good, event.StateAccepted); s.Tries != 2 || s.Reason != "" {
		t.Errorf("after it went well: %+v", s)
	}

	library.answers(func(r *sip.Request) (*sip.Disposition, error) {
		return nil, &sip.Fault{Code: sip.Client, Text: "I do not read that", Path: "ingest-request/record"}
	})
	bad := h.take("bad")
	s := h.becomes(bad, event.StateUnsent)
	if s.Tries != 1 || s.Due != 0 || !strings.Contains(s.Reason, "I do not read that") || !strings.Contains(s.Reason, "ingest-request/record") {
		t.Errorf("after a fault Client: %+v", s)
	}
	h.want("set main", h.told("main"), "created "+good, "created "+woken, "created "+bad)
	h.want("set kept", sorted(h.kept()...), sorted("created "+assignedTo(good), "created "+assignedTo(woken))...)
	h.wantCounts("accepted 2, unsent 1; ")
	h.shows("main", bad, "unsent", "I do not read that")
	library.answers(accepts)
	h.becomes(h.later(200*time.Hour), event.StateAccepted)
	if n := len(library.requests(bad)); n != 1 {
		t.Errorf("what cannot be sent was sent %d times", n)
	}
	h.verified()
}
