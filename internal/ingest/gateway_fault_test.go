package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// once is a plan: the first time at a point.
func once(at string, f testenv.Fate) func(int, string) testenv.Fate {
	met := false
	return func(_ int, point string) testenv.Fate {
		if met || point != at {
			return testenv.GoesWell
		}
		met = true
		return f
	}
}

// scenario is what a submitter and a library do.
type scenario struct {
	answers   sip.Outcome
	ultimate  sip.Outcome // after a provisional answer
	recipient bool
}

func (s scenario) String() string {
	text := fmt.Sprintf("answers=%v", s.answers)
	if s.answers == sip.ProvisionallyAccepted {
		text += fmt.Sprintf(" then=%v", s.ultimate)
	}
	return text + fmt.Sprintf(" recipient=%v", s.recipient)
}

func (s scenario) apply(h *gatewayHarness) {
	h.library.recognises, h.library.answers = false, s.answers
}

// Whatever happens once between any two steps: nothing is ever sent twice, and what
// the server has told, each submission has as its one ultimate disposition, and its
// submitter learns it.
func TestEveryFaultAtEveryPoint(t *testing.T) {
	testenv.Heavy(t)
	var all []scenario
	for _, recipient := range []bool{true, false} {
		all = append(all, scenario{sip.Accepted, 0, recipient}, scenario{sip.Rejected, 0, recipient})
	}
	all = append(all, scenario{sip.ProvisionallyAccepted, sip.Accepted, true}, scenario{sip.ProvisionallyAccepted, sip.Rejected, true})
	for _, s := range all {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			h := newGatewayHarness(t, Gateway, nil)
			s.apply(h)
			for f := testenv.Fails; f <= testenv.KilledAfter; f++ {
				reached := true
				for n := 1; reached; n++ {
					reached = h.faultAt(s, f, n)
				}
			}
			h.verified()
		})
	}
}

// faultAt goes through the scenario with one fault at one point. It tells whether
// there was such a point.
func (h *gatewayHarness) faultAt(s scenario, f testenv.Fate, n int) bool {
	h.t.Helper()
	id := fmt.Sprintf("%s-%d", strings.ReplaceAll(f.String(), " ", "-"), n)
	what := ""
	h.start(Gateway, func(at int, point string) testenv.Fate {
		if at != n {
			return testenv.GoesWell
		}
		what = point
		return f
	})
	r := request(id, "map "+id)
	if s.recipient {
		r.Recipient = h.boxURL
	}
	replies := map[*sip.Request][]*sip.Disposition{r: h.insist(r)}
	for h.library.decide(s.ultimate) > 0 {
		h.restart() // the library delivers at least once
	}
	h.clock.Advance(time.Minute)
	_, _ = h.process.Load().doDue(context.Background()) // it may be its turn to fail
	h.restart()
	h.process.Load().life.Calm()
	h.tend(time.Minute)
	h.what = fmt.Sprintf("%s at point %d (%s): ", f, n, what)
	h.conclude(s, []*sip.Request{r}, replies)
	h.what = ""
	return what != ""
}

// insist submits as a submitter does that wants an answer: again after each
// failure, for a while.
func (h *gatewayHarness) insist(r *sip.Request) (replies []*sip.Disposition) {
	for range 4 {
		disp, err := h.submit(r)
		if err == nil {
			return append(replies, disp)
		}
		h.restart()
		h.clock.Advance(time.Second)
	}
	return replies
}

// check wants what is promised to hold for a request.
func (h *gatewayHarness) check(r *sip.Request, replies []*sip.Disposition) {
	h.t.Helper()
	id := *r.Source.Identifier
	fail := func(format string, args ...any) {
		h.t.Errorf("%s%s: %s", h.what, id, fmt.Sprintf(format, args...))
	}
	s := h.of(r)
	entries := h.library.of(id)
	if len(entries) > 1 || len(entries) == 1 && entries[0].times > 1 {
		fail("the library was sent the record more than once")
	}
	switch {
	case s.State.Final():
		h.checkFinal(fail, s, r, entries, replies)
	case s.State == submission.StateInDoubt:
		h.checkDoubt(fail, r)
	default:
		fail("it ended %v (%s)", s.State, s.Reason)
	}
}

func (h *gatewayHarness) checkFinal(fail func(string, ...any), s *submission.Submission, r *sip.Request, entries []*entry, replies []*sip.Disposition) {
	id := *r.Source.Identifier
	if len(entries) != 1 || entries[0].ultimate == nil || submission.StateAfter(entries[0].ultimate) != s.State || entries[0].ultimate.AssignedIdentifier != s.Assigned {
		fail("it ended %v %q, which is not what the library says", s.State, s.Assigned)
		return
	}
	if ev := h.events(id); len(ev) != 1 {
		fail("events %v", ev)
	}
	told := 0
	for _, d := range append(replies, h.boxes.Of(id)...) {
		if d.Outcome == sip.ProvisionallyAccepted {
			continue
		}
		told++
		if submission.StateAfter(d) != s.State || d.AssignedIdentifier != s.Assigned || d.Reason != s.Reason {
			fail("the submitter was told %+v, and the log has %v %q", d, s.State, s.Assigned)
		}
	}
	if told == 0 {
		fail("the submitter was never told")
	}
	promised := len(replies) > 0 && replies[0].Outcome == sip.ProvisionallyAccepted
	if promised && len(h.boxes.Of(id)) == 0 {
		fail("a notification was promised, and none was delivered")
	}
	if s.Conflicts != 0 {
		fail("%d conflicts", s.Conflicts)
	}
}

// checkDoubt wants what is in doubt to be said.
func (h *gatewayHarness) checkDoubt(fail func(string, ...any), r *sip.Request) {
	_, err := h.submit(r)
	var fault *sip.Fault
	if !errors.As(err, &fault) || fault.Code != sip.Server || !strings.HasPrefix(fault.Text, "in doubt") {
		fail("a repeat is answered %v", err)
	}
}

// expire wants nothing to be in doubt for ever.
func (h *gatewayHarness) expire(requests ...*sip.Request) {
	h.t.Helper()
	h.tend(48 * time.Hour)
	for _, r := range requests {
		if s := h.of(r); !s.State.Final() && s.State != submission.StateUnresolved {
			h.t.Errorf("%s%s: after the deadline it is %v", h.what, *r.Source.Identifier, s.State)
		}
	}
}

// The same under any sequence of faults, with several submissions.
func TestAnySequenceOfFaults(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	h := newGatewayHarness(t, Gateway, nil)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		h.t = rt
		h.anyFaults(rt, fmt.Sprint("run-", run))
	})
	h.t = t
	h.verified()
}

// misfortune strikes after so many points.
type misfortune struct {
	After int
	Fate  testenv.Fate
}

func (h *gatewayHarness) anyFaults(rt *rapid.T, prefix string) {
	sc := scenario{recipient: true,
		answers:  rapid.SampledFrom([]sip.Outcome{sip.Accepted, sip.Rejected, sip.ProvisionallyAccepted}).Draw(rt, "answers"),
		ultimate: rapid.SampledFrom([]sip.Outcome{sip.Accepted, sip.Rejected}).Draw(rt, "ultimate")}
	sc.apply(h)
	plan := misfortunes(rt)
	h.start(Gateway, plan)
	var requests []*sip.Request
	for i := range rapid.IntRange(1, 3).Draw(rt, "submissions") {
		requests = append(requests, h.request(fmt.Sprintf("%s-%d", prefix, i)))
	}
	replies := map[*sip.Request][]*sip.Disposition{}
	for _, what := range rapid.SliceOfN(rapid.IntRange(0, 6), 1, 12).Draw(rt, "deeds") {
		switch {
		case what < 4:
			r := requests[what%len(requests)]
			if disp, err := h.submit(r); err == nil {
				replies[r] = append(replies[r], disp)
			}
		case what == 4:
			h.library.decide(sc.ultimate)
		case what == 5:
			h.clock.Advance(time.Minute)
			_, _ = h.process.Load().doDue(context.Background())
		case what == 6:
			h.start(Gateway, plan)
		}
		if h.process.Load().life.Killed() {
			h.start(Gateway, plan)
		}
	}
	h.start(Gateway, nil)
	for _, r := range requests {
		replies[r] = append(replies[r], h.insist(r)...)
	}
	h.conclude(sc, requests, replies)
}

// conclude lets the library decide, and checks how everything ends when nothing
// fails any more.
func (h *gatewayHarness) conclude(sc scenario, requests []*sip.Request, replies map[*sip.Request][]*sip.Disposition) {
	h.t.Helper()
	if n := h.library.decide(sc.ultimate); n != 0 {
		h.t.Fatalf("%d notifications were not taken", n)
	}
	for _, r := range requests {
		replies[r] = append(replies[r], h.insist(r)...)
	}
	h.deliver()
	for _, r := range requests {
		h.check(r, replies[r])
	}
	h.expire(requests...)
}

// Many at once, and the process is killed in between, again and again.
func TestKilledAmongMany(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	sc := scenario{sip.ProvisionallyAccepted, sip.Accepted, true}
	sc.apply(h)
	const rounds, clients = 10, 8
	var requests []*sip.Request
	for round := range rounds {
		h.start(Gateway, func(n int, _ string) testenv.Fate {
			if n == 20+7*round {
				return testenv.KilledAfter
			}
			return testenv.GoesWell
		})
		var wait sync.WaitGroup
		for c := range clients {
			r := h.request(fmt.Sprintf("%d-%d", round, c))
			requests = append(requests, r)
			wait.Go(func() { _, _ = h.submit(r) }) // some are cut off
		}
		wait.Wait()
		h.restart()
	}
	h.start(Gateway, nil)
	replies := map[*sip.Request][]*sip.Disposition{}
	for _, r := range requests {
		replies[r] = h.insist(r)
	}
	h.conclude(sc, requests, replies)
	h.verified()
}

// While the log fails for long, what is known is not forgotten: a server that
// answers at once sends no notification.
func TestReplyIsKeptWhileTheLogFails(t *testing.T) {
	for _, f := range []testenv.Fate{testenv.Fails, testenv.CutOff} {
		h := newGatewayHarness(t, Gateway, nil)
		h.library.recognises = false
		appends := 0
		h.start(Gateway, func(_ int, point string) testenv.Fate {
			if point != "commit" {
				return testenv.GoesWell
			}
			if appends++; appends > 1 && appends < 6 {
				return f
			}
			return testenv.GoesWell
		})
		r := h.request("1")
		if _, err := h.submit(r); err == nil {
			t.Error("a reply was relayed that is not in the log")
		}
		p := h.process.Load()
		for range 4 {
			_, _ = p.doDue(context.Background()) // fails as well
		}
		h.tend(0)
		h.state(r, submission.StateAccepted)
		h.deliver()
		// What took effect did so for a reply, which only a repeat can still get.
		if got := h.boxes.Of("1"); f == testenv.Fails && len(got) != 1 {
			t.Errorf("notified %d times", len(got))
		}
		h.answered(r, sip.Accepted)
		if len(p.gateway.unsaved) != 0 {
			t.Errorf("%d are still remembered", len(p.gateway.unsaved))
		}
		if e := h.library.of("1"); len(e) != 1 || e[0].times != 1 {
			t.Errorf("sent %d times", len(e))
		}
	}
}

// A commit that fails although it has taken effect does not put a request in
// doubt that was never sent.
func TestNeverSentIsNotInDoubt(t *testing.T) {
	for _, f := range []testenv.Fate{testenv.Fails, testenv.CutOff} {
		h := newGatewayHarness(t, Gateway, nil)
		h.library.recognises = false
		h.start(Gateway, once("commit", f))
		r := h.request("1")
		if _, err := h.submit(r); err == nil {
			t.Error("there is an answer")
		}
		if len(h.library.of("1")) != 0 {
			t.Error("it was sent without being in the log")
		}
		if f == testenv.CutOff {
			h.tend(0)
			h.state(r, submission.StateUnsent)
		}
		h.answered(r, sip.Accepted)
		if n := len(h.process.Load().gateway.unsaved); n != 0 {
			t.Errorf("%d are still remembered", n)
		}
	}
}
