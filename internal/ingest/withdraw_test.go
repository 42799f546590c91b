package ingest

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// withdraw takes a record back.
func (h *harness) withdraw(identifier string) {
	h.t.Helper()
	h.do(h.server.Withdraw(context.Background(), identifier, "spam"))
}

// awaited returns the identifiers of records whose content is awaited.
func (h *harness) awaited() (out []string) {
	h.t.Helper()
	kept, err := h.log.Pending(context.Background(), h.server.Source, math.MaxInt64, 0, 100)
	h.do(err)
	for i := range kept {
		out = append(out, kept[i].Record)
	}
	return out
}

// arrives lets the content of all that is awaited arrive.
func (h *harness) arrives() {
	h.t.Helper()
	kept, err := h.log.Pending(context.Background(), h.server.Source, math.MaxInt64, 0, 100)
	h.do(err)
	h.settled(kept)
}

// settled tells the log that the content of these is there.
func (h *harness) settled(kept []event.WaitingItem) {
	h.t.Helper()
	p, err := h.log.Progress(context.Background(), h.server.Source)
	h.do(err)
	b := &event.Batch{Source: h.server.Source, Mode: event.ModeSettle, Cursor: p.Cursor.Version, Documents: []event.Document{{URL: h.server.URL}}}
	for i := range kept {
		o := kept[i].Observation
		o.Fetched = true
		b.Items = append(b.Items, &event.Item{Observation: o})
	}
	_, err = h.log.Append(context.Background(), b)
	h.do(err)
}

// What is withdrawn is a deletion with its reason. Submitted again, with the very
// bytes too, it is there again under the same identifier.
func TestWithdrawnFromALibrary(t *testing.T) {
	h := newHarness(t, Library, nil)
	first := h.ingest(request("1", `<title xmlns="http://purl.org/dc/terms/">A map</title>`))
	id := first.AssignedIdentifier
	h.ingest(request("2", "b"))
	h.withdraw(id)
	e, err := h.log.Record(t.Context(), "maps", event.Key(id))
	h.do(err)
	if e.Kind != event.Deleted || e.Origin.Reason != "spam" || e.Origin.Protocol != "sip" || e.Origin.SourceIdentifier != "1" || e.Title != "A map" || len(e.Representations) != 0 || e.Via.Href != id {
		t.Errorf("the event is %+v", e)
	}
	again := h.ingest(request("1", `<title xmlns="http://purl.org/dc/terms/">A map</title>`))
	if !reflect.DeepEqual(again, first) {
		t.Errorf("submitted again: %+v, want %+v", again, first)
	}
	two := translate.AssignedIdentifier(h.server.Feed, mapOf("2"))
	h.wantEvents("created "+id, "created "+two, "deleted "+id, "created "+id)
	counts, err := h.log.Counts(t.Context(), h.server.Source)
	h.do(err)
	if n := counts.Direct[submission.StateAccepted]; n != 3 {
		t.Errorf("%d records count as accepted, want 3", n)
	}
	h.verified()
}

// Without a source-identifier nothing tells a repeat on the way from a new
// submission: within a day it is a repeat.
func TestWithdrawnWithoutIdentifier(t *testing.T) {
	h := newHarness(t, Library, nil)
	first := h.ingest(request("", "a"))
	id := first.AssignedIdentifier
	h.withdraw(id)
	for range 2 {
		if got := h.ingest(request("", "a")); !reflect.DeepEqual(got, first) {
			t.Errorf("the repeat is answered %+v, want %+v", got, first)
		}
	}
	h.wantEvents("created "+id, "deleted "+id)
	h.ahead.Add(int64(24*time.Hour + time.Minute))
	other := h.ingest(request("", "a")).AssignedIdentifier
	if other == id {
		t.Error("a day later it has the same identifier")
	}
	h.wantEvents("created "+id, "deleted "+id, "created "+other)
}

func TestWithdrawRefuses(t *testing.T) {
	h := newHarness(t, Library, nil)
	id := h.ingest(request("1", "a")).AssignedIdentifier
	for _, c := range []struct{ identifier, reason, says string }{
		{"urn:nobody", "", `set maps has no record "urn:nobody" from its SIP Source: see bridge log --set maps`},
		{strings.ToUpper(id), "", "has no record"},
		{id, strings.Repeat("x", submission.MaxText+1), "the reason has 8193 bytes"},
	} {
		if err := h.server.Withdraw(t.Context(), c.identifier, c.reason); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", c.identifier, err, c.says)
		}
	}
	h.wantEvents("created " + id)
	h.faults.Before.Store(1)
	if err := h.server.Withdraw(t.Context(), id, ""); err == nil || !strings.Contains(err.Error(), "log that record") {
		t.Errorf("the log does not take it: %v", err)
	}
	h.wantEvents("created " + id)
	h.withdraw(id)
	if err := h.server.Withdraw(t.Context(), id, ""); err == nil || !strings.Contains(err.Error(), "withdrawn already") {
		t.Errorf("once more: %v", err)
	}
	h.wantEvents("created "+id, "deleted "+id)
	h.verified()
}

// A record that another Source has too stays, by that Source's word (A15).
func TestWithdrawnAndElsewhereToo(t *testing.T) {
	for rank, want := range map[int][]string{1: {"created x", "updated x"}, -1: {"created x"}} {
		h := newHarness(t, Recipient, func(_ *harness, d *Server) { d.Content, d.RecordURL = event.Redirect, libraryRecords })
		other, err := h.log.EnsureSource(t.Context(), "maps", "atompmh", "https://data.example/feed", rank)
		h.do(err)
		theirs := event.Observation{Record: "x", Title: "Theirs", Representations: []event.Representation{{Href: "https://data.example/x", Length: event.NoLength}}}
		take := func() {
			t.Helper()
			p, err := h.log.Progress(t.Context(), other)
			h.do(err)
			_, err = h.log.Append(t.Context(), &event.Batch{Source: other, Cursor: p.Cursor.Version, Start: true, Documents: []event.Document{{URL: "https://data.example/feed"}}, Items: []*event.Item{{Observation: theirs}}})
			h.do(err)
		}
		if rank < 0 {
			take()
		}
		h.notify("", accepted(mapOf("1"), "x"))
		take()
		h.withdraw("x")
		h.wantEvents(want...)
		if e, err := h.log.Record(t.Context(), "maps", event.Key("x")); err != nil || e.Title != "Theirs" || !e.Live() {
			t.Errorf("rank %d: %+v, %v", rank, e, err)
		}
		h.notify("", accepted(mapOf("1"), "x"))
		h.wantEvents(want...)
		if err := h.server.Withdraw(t.Context(), "x", ""); err == nil || !strings.Contains(err.Error(), "withdrawn already") {
			t.Errorf("rank %d: once more: %v", rank, err)
		}
		h.verified()
	}
}

// A notification that came before does not bring the record back, whatever it is a
// repeat of; a new one does. What was awaited is not any more.
func TestWithdrawnRecordURL(t *testing.T) {
	h := newHarness(t, Recipient, func(_ *harness, d *Server) { d.RecordURL = libraryRecords })
	h.notify("", accepted(mapOf("1"), "x"))
	h.notify("", accepted(mapOf("1 again"), "x"))
	h.arrives()
	h.notify("", accepted(mapOf("1"), "x")) // it is to be fetched again
	inFlight, err := h.log.Pending(t.Context(), h.server.Source, math.MaxInt64, 0, 10)
	h.do(err)
	if len(inFlight) != 1 {
		t.Fatalf("%d awaited", len(inFlight))
	}
	h.withdraw("x")
	h.settled(inFlight) // it had been asked for
	h.notify("", accepted(mapOf("1"), "x"))
	h.notify("", accepted(mapOf("1 again"), "x"))
	if got := h.awaited(); len(got) != 0 {
		t.Errorf("%q are awaited", got)
	}
	h.wantEvents("created x", "deleted x")
	if got := h.notifications(); !slices.Equal(got, []string{"record 2", "record 3"}) {
		t.Errorf("notifications %q", got)
	}
	h.notify("", accepted(mapOf("1, edition 2"), "x"))
	h.notify("", accepted(mapOf("1"), "x")) // it is back, so this fetches it as ever
	h.arrives()
	h.wantEvents("created x", "deleted x", "created x")

	// What has never come is withdrawn without an event, and does not come.
	h.notify("", accepted(mapOf("2"), "y"))
	h.withdraw("y")
	h.notify("", accepted(mapOf("2"), "y"))
	if got := h.awaited(); len(got) != 0 {
		t.Errorf("%q are awaited", got)
	}
	h.wantEvents("created x", "deleted x", "created x")
	h.verified()
}

// requests returns how many submissions there are of a request, and the last.
func (h *gatewayHarness) requests(r *sip.Request) (n int, last submission.Submission) {
	h.t.Helper()
	digest := requestDigest(r)
	found, err := h.log.Submissions(context.Background(), submission.Query{Source: h.source, Request: &digest})
	h.do(err)
	if len(found) == 0 {
		h.t.Fatal("no submission of the request")
	}
	return len(found), found[len(found)-1]
}

func (h *gatewayHarness) wantEvents(identifier string, want ...string) {
	h.t.Helper()
	if got := h.events(identifier); !slices.Equal(got, want) {
		h.t.Errorf("events of %s: %q, want %q", identifier, got, want)
	}
}

// After a withdrawal the same request is put before the reviewer again, if it says
// which record it is of; the submission before stays accepted.
func TestWithdrawnAfterReview(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	r := h.request("1")
	h.answered(r, sip.ProvisionallyAccepted)
	h.do(h.decide(r, true, "17", ""))
	first := h.of(r)
	h.do(h.process.Load().Withdraw(t.Context(), "17", ""))
	if err := h.decide(r, true, "", ""); err == nil || !strings.Contains(err.Error(), "accepted already, as 17, and that record has been withdrawn since") {
		t.Errorf("accepted once more: %v", err)
	}
	if s := h.of(r); !reflect.DeepEqual(s, first) {
		t.Errorf("the submission became %+v", s)
	}
	h.wantEvents("17", "created", "deleted")
	for range 2 {
		h.answered(r, sip.ProvisionallyAccepted)
	}
	n, second := h.requests(r)
	if n != 2 || second.State != submission.StateProvisional {
		t.Fatalf("%d submissions, the last %+v", n, second)
	}
	h.do(h.process.Load().Decide(t.Context(), Verdict{ID: second.ID, Accept: true, Assigned: "17", Reason: ""}))
	h.answered(r, sip.Accepted)
	h.wantEvents("17", "created", "deleted", "created")

	nameless := request("", "nameless")
	nameless.Source, nameless.Recipient = &sip.Source{}, h.boxURL
	h.answered(nameless, sip.ProvisionallyAccepted)
	h.do(h.decide(nameless, true, "18", ""))
	h.do(h.process.Load().Withdraw(t.Context(), "18", ""))
	if got := h.answered(nameless, sip.Accepted).AssignedIdentifier; got != "18" {
		t.Errorf("the repeat is answered %q", got)
	}
	h.clock.Advance(repeatWindow + time.Minute)
	h.answered(nameless, sip.ProvisionallyAccepted)
	h.wantEvents("18", "created", "deleted")
	h.verified()
}

// The answer that is in force does not bring a record back, however often and by
// whatever way it comes; a request that is sent again does.
func TestWithdrawnBehindAGateway(t *testing.T) {
	h := newGatewayHarness(t, Gateway, func(d *Server) {
		d.RecordURL = libraryRecords
	})
	h.library.answers = sip.ProvisionallyAccepted
	r := h.request("1")
	h.answered(r, sip.ProvisionallyAccepted)
	if n := h.library.decide(sip.Accepted); n != 0 {
		t.Fatalf("%d notifications were not taken", n)
	}
	s := h.state(r, submission.StateAccepted)
	h.do(h.process.Load().Withdraw(t.Context(), s.Assigned, ""))
	for range 2 {
		h.do(h.process.Load().Notify(t.Context(), sip.Caller{Token: s.Token}, accepted(r.Source, s.Assigned)))
		h.tend(time.Minute)
	}
	h.wantEvents("1", "created", "deleted")
	if kept, err := h.log.Pending(t.Context(), h.source, math.MaxInt64, 0, 10); err != nil || len(kept) != 0 {
		t.Errorf("awaited: %+v, %v", kept, err)
	}
	h.answered(r, sip.ProvisionallyAccepted) // it is sent on, and decided on, anew
	h.answered(r, sip.ProvisionallyAccepted)
	h.wantEvents("1", "created", "deleted")
	if n := h.library.decide(sip.Accepted); n != 0 {
		t.Fatalf("%d notifications were not taken", n)
	}
	if n, second := h.requests(r); n != 2 || second.State != submission.StateAccepted || second.Assigned != s.Assigned {
		t.Errorf("%d submissions, the last %+v", n, second)
	}
	h.wantEvents("1", "created", "deleted", "created")
	h.answered(r, sip.Accepted)
	h.wantEvents("1", "created", "deleted", "created")
	h.verified()
}

// A withdrawal in a log that fails is there whole or not at all, whatever is
// answered in between.
func TestWithdrawFails(t *testing.T) {
	for after := range 2 {
		h := newHarness(t, Library, nil)
		id := h.ingest(request("1", "a")).AssignedIdentifier
		[]*atomic.Int32{&h.faults.Before, &h.faults.After}[after].Store(1)
		if err := h.server.Withdraw(t.Context(), id, ""); err == nil {
			t.Error("no error")
		}
		err := h.server.Withdraw(t.Context(), id, "")
		if (err == nil) != (after == 0) || err != nil && !strings.Contains(err.Error(), "withdrawn already") {
			t.Errorf("once more: %v", err)
		}
		h.wantEvents("created "+id, "deleted "+id)
	}
}

// Whatever is submitted and withdrawn in whatever order: a record is there when
// the last that was said of it was a submission, and an event is what changes that
// or its bytes.
func TestWithdrawalLaw(t *testing.T) {
	h := newHarness(t, Library, nil)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		before := len(h.events())
		there := map[string]string{} // its bytes, by identifier
		var want []string
		for range rapid.IntRange(1, 10).Draw(rt, "steps") {
			name := fmt.Sprint(run, rapid.SampledFrom([]string{" a", " b"}).Draw(rt, "record"))
			id := translate.AssignedIdentifier(h.server.Feed, mapOf(name))
			was, live := there[id]
			if rapid.IntRange(0, 2).Draw(rt, "withdraw") == 0 {
				err := h.server.Withdraw(context.Background(), id, "")
				if (err == nil) != live {
					rt.Fatalf("withdrawn: %v, though it is there: %v", err, live)
				}
				if live {
					want = append(want, "deleted "+id)
				}
				delete(there, id)
				continue
			}
			text := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "text")
			if disp := h.ingest(request(name, text)); disp.AssignedIdentifier != id {
				rt.Fatalf("assigned %q, want %q", disp.AssignedIdentifier, id)
			}
			switch {
			case !live:
				want = append(want, "created "+id)
			case was != text:
				want = append(want, "updated "+id)
			}
			there[id] = text
		}
		if got := h.events()[before:]; !slices.Equal(got, want) {
			rt.Fatalf("events %q, want %q", got, want)
		}
	})
}
