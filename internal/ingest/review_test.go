package ingest

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

func (h *gatewayHarness) decide(r *sip.Request, accept bool, assigned, reason string) error {
	h.t.Helper()
	return h.process.Load().Decide(context.Background(), Verdict{ID: h.of(r).ID, Accept: accept, Assigned: assigned, Reason: reason})
}

func TestReview(t *testing.T) {
	for _, c := range []struct {
		name             string
		accept           bool
		assigned, reason string
		want             sip.Disposition
		event            string
	}{
		{"accepted as in a library", true, "", "", sip.Disposition{Outcome: sip.Accepted}, "created"},
		{"accepted under a name", true, "map/17", "", sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "map/17"}, "created"},
		{"rejected", false, "", "too old", sip.Disposition{Outcome: sip.Rejected, Reason: "too old"}, "rejected"},
		{"rejected without a reason", false, "", "", sip.Disposition{Outcome: sip.Rejected}, "rejected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			posted := 0
			h := newGatewayHarness(t, Review, func(d *Server) { d.Notified = func() { posted++ } })
			r := h.request("1")
			h.answered(r, sip.ProvisionallyAccepted)
			h.clock.Advance(1000 * time.Hour) // nobody is hurried
			h.tend(0)
			h.answered(r, sip.ProvisionallyAccepted)
			if s := h.state(r, submission.StateProvisional); s.Due != 0 || s.Deadline != 0 || s.Length != int64(len(r.Record.XML)) {
				t.Errorf("%+v", s)
			}
			if len(h.events("1")) != 0 {
				t.Error("an event before the decision")
			}
			for range 2 {
				h.do(h.decide(r, c.accept, c.assigned, c.reason))
			}
			want := c.want
			if c.accept && c.assigned == "" {
				want.AssignedIdentifier = h.process.Load().assign(r.Source)
				h.do(h.decide(r, true, want.AssignedIdentifier, ""))
			}
			got := h.answered(r, want.Outcome)
			if got.AssignedIdentifier != want.AssignedIdentifier || got.Reason != want.Reason {
				t.Errorf("a repeat is answered %+v, want %+v", got, want)
			}
			if ev := h.events("1"); len(ev) != 1 || ev[0] != c.event {
				t.Errorf("events %v", ev)
			}
			if posted != 1 {
				t.Errorf("the post was told %d times", posted)
			}
			message := h.notices()[0].Message
			h.deliver()
			told := h.boxes.Of("1")
			if len(told) != 1 || told[0].AssignedIdentifier != want.AssignedIdentifier || told[0].Reason != want.Reason || message == "" {
				t.Errorf("notified of %+v, message %q", told, message)
			}
			h.verified()
		})
	}
}

// A repeat gets the answer of its submission, also when the format would not be accepted any
// more: else its submitter would be told that it is rejected, and later that it is accepted.
func TestReviewRepeatedWithAnotherConfiguration(t *testing.T) {
	root := "map"
	h := newGatewayHarness(t, Review, func(d *Server) { d.Formats = map[xml.Name]string{{Space: "urn:maps", Local: root}: mapFormat} })
	r := h.request("1")
	h.answered(r, sip.ProvisionallyAccepted)
	root = "atlas"
	h.start(Review, nil)
	h.answered(r, sip.ProvisionallyAccepted)
	h.do(h.decide(r, true, "17", ""))
	if got := h.answered(r, sip.Accepted); got.AssignedIdentifier != "17" {
		t.Errorf("a repeat is answered %+v", got)
	}
	if ev := h.events("1"); len(ev) != 1 || ev[0] != "created" {
		t.Errorf("events %v", ev)
	}
	h.answered(h.request("2"), sip.Rejected)
	h.deliver()
	if told := h.boxes.Of("1"); len(told) != 1 || told[0].AssignedIdentifier != "17" {
		t.Errorf("notified of %+v", told)
	}
	h.verified()
}

// What a gateway could not send on is reviewed when it is submitted again after the mode
// has changed.
func TestReviewOfWhatWasNotSent(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.instead = func(*sip.Request) (*sip.Disposition, error) {
		return nil, &sip.Fault{Code: sip.Server, Text: "closed for good"}
	}
	r := h.request("1")
	h.faulted(r, sip.Server, "closed for good")
	h.state(r, submission.StateUnsent)
	h.start(Review, nil)
	for range 2 {
		h.answered(r, sip.ProvisionallyAccepted)
	}
	p := h.process.Load()
	s, err := p.newest(context.Background(), h.log, requestDigest(r))
	h.do(err)
	h.do(p.Decide(context.Background(), Verdict{ID: s.ID, Accept: true, Assigned: "17"}))
	if got := h.answered(r, sip.Accepted); got.AssignedIdentifier != "17" {
		t.Errorf("a repeat is answered %+v", got)
	}
	h.deliver()
	if told := h.boxes.Of("1"); len(told) != 1 || told[0].AssignedIdentifier != "17" {
		t.Errorf("notified of %+v", told)
	}
	h.verified()
}

// The published record is what was submitted, byte for byte.
func TestReviewPublishesTheRecord(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	r := h.request("1")
	r.Record.XML = []byte(`<map xmlns="urn:maps"><title xmlns="http://purl.org/dc/elements/1.1/">The &amp; Map</title></map>`)
	h.answered(r, sip.ProvisionallyAccepted)
	h.do(h.decide(r, true, "17", ""))
	for e, err := range h.log.Events(context.Background(), "maps", event.Range{Upto: 1 << 40}) {
		h.do(err)
		sum := [32]byte(h.of(r).Content)
		if e.Record != "17" || e.Title != "The & Map" || len(e.Representations) != 1 || e.Representations[0].SHA256() != fmt.Sprintf("%x", sum) {
			t.Errorf("%+v", e)
		}
		if got := read(t, h.contents, sum); string(got) != string(r.Record.XML) {
			t.Errorf("content %s", got)
		}
	}
}

func TestReviewRefuses(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	nobody := request("1", "a")
	for range 2 {
		if got := h.answered(nobody, sip.Rejected).Reason; got != "needs a notification-recipient" {
			t.Errorf("reason %q", got)
		}
	}
	if ev := h.events("1"); len(ev) != 0 {
		t.Errorf("events %v", ev)
	}
	if kept, err := h.log.Rejections(t.Context(), "maps", 0, 10); err != nil || len(kept) != 1 || kept[0].SourceIdentifier != "1" {
		t.Errorf("kept: %+v, %v", kept, err)
	}
	other := h.request("2")
	other.Record.XML, other.Record.Root.Local = []byte(`<tune xmlns="urn:maps"/>`), "tune"
	if got := h.answered(other, sip.Rejected).Reason; !strings.Contains(got, "{urn:maps}tune is not accepted") {
		t.Errorf("reason %q", got)
	}
	bad := h.request("3")
	bad.Recipient = "http:"
	h.faulted(bad, sip.Client, "cannot be used")
	counts, err := h.log.Counts(context.Background(), h.source)
	h.do(err)
	if len(counts.Submissions) != 0 {
		t.Errorf("submissions %v", counts.Submissions)
	}
}

// Another decision than the one in force changes nothing, and is told which is.
func TestDecidedAlready(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	accepted, rejected := h.request("1"), h.request("2")
	h.answered(accepted, sip.ProvisionallyAccepted)
	h.answered(rejected, sip.ProvisionallyAccepted)
	h.do(h.decide(accepted, true, "17", ""))
	h.do(h.decide(rejected, false, "", "too old"))
	for _, c := range []struct {
		r        *sip.Request
		accept   bool
		assigned string
		says     string
	}{
		{accepted, true, "18", "accepted already, as 17"},
		{accepted, false, "", "accepted already, as 17"},
		{rejected, true, "", "rejected already (too old)"},
	} {
		if err := h.decide(c.r, c.accept, c.assigned, ""); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; want %q", err, c.says)
		}
		if s := h.of(c.r); s.Conflicts != 0 {
			t.Errorf("%+v", s)
		}
	}
	h.do(h.decide(accepted, true, "", ""))
	h.do(h.decide(rejected, false, "", "another reason"))
	if s := h.of(rejected); s.Reason != "too old" {
		t.Errorf("reason %q", s.Reason)
	}
	if len(h.notices()) != 2 {
		t.Errorf("%d notices", len(h.notices()))
	}
}

func TestDecideRefuses(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	r := h.request("1")
	h.answered(r, sip.ProvisionallyAccepted)
	ctx := context.Background()
	server := h.process.Load().Server
	if err := server.Decide(ctx, Verdict{ID: 4711, Accept: true, Assigned: "", Reason: ""}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such submission: %v", err)
	}
	for assigned, says := range map[string]string{" 17": "white space", "1\n7": "control", "\xff": "UTF-8"} {
		if err := h.decide(r, true, assigned, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want %q", assigned, err, says)
		}
	}
	target, err := h.log.EnsureSource(ctx, "maps", "submit", "https://library.example/sip", 1)
	h.do(err)
	out, err := h.log.Write(ctx, &submission.Batch{Source: target, Updates: []submission.Update{
		{Submission: submission.Submission{Source: target, State: submission.StateProvisional, Record: "x"}}}})
	h.do(err)
	if err := server.Decide(ctx, Verdict{ID: out.IDs[0], Accept: true, Assigned: "", Reason: ""}); err == nil || !strings.Contains(err.Error(), "not one to set maps") {
		t.Errorf("a submission of a target: %v", err)
	}
	h.library.answers = sip.ProvisionallyAccepted
	h.start(Gateway, nil)
	passed := h.request("2")
	h.answered(passed, sip.ProvisionallyAccepted)
	h.start(Review, nil)
	if err := h.decide(passed, true, "", ""); err == nil || !strings.Contains(err.Error(), "not under review") {
		t.Errorf("what a gateway has passed on: %v", err)
	}
	h.state(r, submission.StateProvisional)
	h.state(passed, submission.StateProvisional)
}

// Of two that decide at once one wins, and the other is told.
func TestDecideAtOnce(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	for i := range 20 {
		r := h.request(fmt.Sprint(i))
		h.answered(r, sip.ProvisionallyAccepted)
		id := h.of(r).ID
		errs := make([]error, 8)
		var wait sync.WaitGroup
		for n := range errs {
			wait.Go(func() {
				errs[n] = h.process.Load().Decide(context.Background(), Verdict{ID: id, Accept: n%2 == 0, Assigned: "", Reason: "no"})
			})
		}
		wait.Wait()
		accepted := h.of(r).State == submission.StateAccepted
		for n, err := range errs {
			if (err == nil) != ((n%2 == 0) == accepted) {
				t.Errorf("accepted = %v, and decision %d got %v", accepted, n, err)
			}
		}
		if ev := h.events(fmt.Sprint(i)); len(ev) != 1 {
			t.Errorf("events %v", ev)
		}
	}
	if n := len(h.notices()); n != 20 {
		t.Errorf("%d notices", n)
	}
	h.verified()
}

// Every fault between receiving and deciding: one submission, one disposition,
// one notice.
func TestReviewFaults(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	for f := testenv.Fails; f <= testenv.KilledAfter; f++ {
		for n, reached := 1, true; reached; n++ {
			reached = false
			h.start(Review, func(at int, _ string) testenv.Fate {
				if at != n {
					return testenv.GoesWell
				}
				reached = true
				return f
			})
			r := h.request(fmt.Sprintf("%d-%d", f, n))
			if got := h.insist(r); len(got) != 1 || got[0].Outcome != sip.ProvisionallyAccepted {
				t.Fatalf("%s at %d: %+v", f, n, got)
			}
			for h.decide(r, true, "", "") != nil {
				h.restart()
			}
			h.restart()
			h.process.Load().life.Calm()
			h.answered(r, sip.Accepted)
			h.deliver()
			id := *r.Source.Identifier
			if ev, told := h.events(id), h.boxes.Of(id); len(ev) != 1 || len(told) != 1 {
				t.Errorf("%s at %d: events %v, told %d times", f, n, ev, len(told))
			}
		}
	}
	h.verified()
}

// Equal requests at once are one submission.
func TestReviewEqualRequests(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	r := h.request("1")
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			disp, err := h.process.Load().Ingest(context.Background(), sip.Caller{}, r)
			if err != nil || disp.Outcome != sip.ProvisionallyAccepted {
				t.Errorf("%+v, %v", disp, err)
			}
		})
	}
	wait.Wait()
	h.state(r, submission.StateProvisional)
}

// A record's identifier is not given to another by a slip of the finger; an update
// of the record may have it again.
func TestDecideKeepsRecordsApart(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	first, second := h.request("1"), h.request("2")
	h.answered(first, sip.ProvisionallyAccepted)
	h.answered(second, sip.ProvisionallyAccepted)
	h.do(h.decide(first, true, "map/1", ""))
	err := h.decide(second, true, "map/1", "")
	if err == nil || !strings.Contains(err.Error(), `"map/1" is the identifier of another record`) {
		t.Fatalf("decided: %v", err)
	}
	h.state(second, submission.StateProvisional)
	h.do(h.decide(first, true, "map/1", ""))
	h.do(h.decide(second, true, "map/2", ""))
}

// Of two who accept records under one identifier at the same time one is refused.
func TestDecideKeepsRecordsApartAtOnce(t *testing.T) {
	var first func()
	h := newHarness(t, Review, func(_ *harness, d *Server) {
		commit := d.Store.Hook
		d.Store.Hook = func(query string, call func() error) error {
			if do := first; query == "" && do != nil {
				first = nil
				do()
			}
			return commit(query, call)
		}
	})
	for _, identifier := range []string{"1", "2"} {
		r := request(identifier, "map "+identifier)
		r.Recipient = "http://maps.example/sip"
		h.ingest(r)
	}
	first = func() { h.do(h.server.Decide(t.Context(), Verdict{ID: 1, Accept: true, Assigned: "map/1"})) }
	err := h.server.Decide(t.Context(), Verdict{ID: 2, Accept: true, Assigned: "map/1"})
	if err == nil || !strings.Contains(err.Error(), `"map/1" is the identifier of another record, whose identifier at its source is "1": assign`) {
		t.Errorf("the second is decided: %v", err)
	}
	h.wantEvents("created map/1")
	h.do(h.server.Decide(t.Context(), Verdict{ID: 2, Accept: true, Assigned: "map/1", Replace: true}))
	h.wantEvents("created map/1", "updated map/1")
}

// An identifier that an operator assigns is no longer than recipients of notifications take.
func TestAcceptUnderLongIdentifier(t *testing.T) {
	h := newHarness(t, Review, nil)
	r := request("1", "a map")
	r.Recipient = "http://maps.example/sip"
	h.ingest(r)
	long := strings.Repeat("x", submission.MaxText+1)
	if err := h.server.Decide(t.Context(), Verdict{ID: 1, Accept: true, Assigned: long}); err == nil || err.Error() != "the identifier has 8193 bytes: at most 8192 are allowed" {
		t.Errorf("it is decided: %v", err)
	}
	h.wantEvents()
	h.do(h.server.Decide(t.Context(), Verdict{ID: 1, Accept: true, Assigned: long[1:]}))
	h.wantEvents("created " + long[1:])
}

// What was under review when the mode changed does not replace a later version that was accepted
// at once, also where that is what was published before. Its submitter is notified all the same.
func TestReviewEndsAfterTheMode(t *testing.T) {
	h := newHarness(t, Library, nil)
	submit := func(mode Mode, identifier, text string) string {
		t.Helper()
		h.server.Mode = mode
		r := request(identifier, text)
		r.Recipient = "http://maps.example/sip"
		return h.ingest(r).AssignedIdentifier
	}
	reverted := submit(Library, "reverted", "a")
	for _, identifier := range []string{"reverted", "updated", "alone"} {
		submit(Review, identifier, "b")
	}
	submit(Library, "reverted", "a")
	updated := submit(Library, "updated", "c")
	submit(Library, "updated", "d")
	for id := range int64(3) {
		h.do(h.server.Decide(t.Context(), Verdict{ID: id + 1, Accept: true}))
	}
	h.wantEvents("created "+reverted, "created "+updated, "updated "+updated, "created "+h.submission(3).Assigned)
	if got := len(h.notices()); got != 3 {
		t.Errorf("%d notifications to submitters", got)
	}
	h.verified()
}

// A repeat of a request is answered from the log, also where no record can be stored any
// more.
func TestReviewRepeatsOnAFullDisk(t *testing.T) {
	h := newHarness(t, Review, nil)
	r := request("1", "a")
	r.Recipient = "http://maps.example/sip"
	first := h.ingest(r)
	h.server.Keep = noRoom
	if again := h.ingest(r); !reflect.DeepEqual(first, again) {
		t.Errorf("%+v, then %+v", first, again)
	}
	r.Record.XML = []byte("<map xmlns='urn:maps'>b</map>")
	if _, err := h.server.Ingest(t.Context(), sip.Caller{}, r); !errors.Is(err, testenv.ErrBroken) {
		t.Errorf("another one: %v", err)
	}
}
