package ingest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// version is a request for record 1 with a text of its own.
func (h *gatewayHarness) version(text string) *sip.Request {
	r := h.request("1")
	r.Record.XML = []byte(`<map xmlns="urn:maps">` + text + `</map>`)
	return r
}

// got returns the texts that the ingest server was sent of record 1.
func (h *gatewayHarness) got() (texts []string) {
	for _, e := range h.library.of("1") {
		texts = append(texts, textOf(e.request.Record.XML))
	}
	return texts
}

func textOf(record []byte) string {
	_, text, _ := strings.Cut(string(record), ">")
	text, _, _ = strings.Cut(text, "<")
	return text
}

// published returns the events of a record, as "kind text".
func (h *gatewayHarness) published(identifier string) (out []string) {
	h.t.Helper()
	texts := map[string]string{}
	for _, text := range []string{"A", "B", "old", "new"} {
		texts[event.HashOf(sha256.Sum256(h.version(text).Record.XML))] = text
	}
	for e, err := range h.log.Events(context.Background(), "maps", event.Range{Upto: 1 << 40}) {
		h.do(err)
		if e.Record == identifier {
			out = append(out, e.Kind.String()+" "+texts[e.Representations[0].Hash])
		}
	}
	return out
}

func (h *gatewayHarness) wantTexts(what string, got []string, want ...string) {
	h.t.Helper()
	if !slices.Equal(got, want) {
		h.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// rows returns the submissions to the set, the first one first.
func (h *gatewayHarness) rows() []submission.Submission {
	h.t.Helper()
	found, err := h.log.Submissions(context.Background(), submission.Query{Source: h.source})
	h.do(err)
	return found
}

// A version that is submitted once more, after another one, is a submission of its
// own. As long as there is no other one it is a repeat.
func TestRevert(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	for _, text := range []string{"A", "A", "B", "B", "A", "A"} {
		h.answered(h.version(text), sip.Accepted)
	}
	h.wantTexts("the server got", h.got(), "A", "B", "A")
	h.wantTexts("published", h.published("urn:lib:1"), "created A", "updated B", "updated A")

	nameless := func(text string) *sip.Request {
		r := h.version(text)
		r.Source = &sip.Source{Sequence: r.Source.Identifier}
		return r
	}
	h.library.instead = func(r *sip.Request) (*sip.Disposition, error) {
		if r.Source.Identifier != nil {
			return nil, nil
		}
		return &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "nameless " + textOf(r.Record.XML)}, nil
	}
	before := len(h.rows())
	for _, text := range []string{"A", "B", "A"} {
		h.answered(nameless(text), sip.Accepted)
	}
	if n := len(h.rows()) - before; n != 2 {
		t.Errorf("%d submissions of two records that have no identifier", n)
	}
	h.verified()
}

// What was not sent makes nothing old; what is sent for the first time when
// another version has been is the later one.
func TestRevertOfUnsent(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	refused := &sip.Fault{Code: sip.Server, Text: "not now"}
	h.library.instead = func(*sip.Request) (*sip.Disposition, error) { return nil, refused }
	h.faulted(h.version("A"), sip.Server, "not now")
	h.library.instead = nil
	h.answered(h.version("B"), sip.Accepted)
	h.answered(h.version("A"), sip.Accepted)
	h.wantTexts("the server got", h.got(), "B", "A")
	rows := h.rows()
	if len(rows) != 3 || rows[0].State != submission.StateUnsent || rows[2].State != submission.StateAccepted {
		t.Errorf("%+v", rows)
	}
	h.library.instead = func(*sip.Request) (*sip.Disposition, error) { return nil, refused }
	h.faulted(h.version("C"), sip.Server, "not now")
	h.library.instead = nil
	h.answered(h.version("A"), sip.Accepted)
	h.wantTexts("the server got", h.got(), "B", "A")
}

// Under review, and in a library, it is the same.
func TestRevertElsewhere(t *testing.T) {
	h := newGatewayHarness(t, Review, nil)
	for _, text := range []string{"A", "B", "A", "A"} {
		h.answered(h.version(text), sip.ProvisionallyAccepted)
	}
	if n := len(h.rows()); n != 3 {
		t.Errorf("%d are under review, want 3", n)
	}
	for _, s := range h.rows() {
		h.do(h.process.Load().Decide(t.Context(), Verdict{ID: s.ID, Accept: true, Assigned: "urn:lib:1", Reason: ""}))
	}
	h.wantTexts("published after review", h.published("urn:lib:1"), "created A", "updated B", "updated A")
	h.verified()

	l := newGatewayHarness(t, Library, nil)
	for _, text := range []string{"A", "B", "A", "A"} {
		l.answered(l.version(text), sip.Accepted)
	}
	l.wantTexts("a library has logged", l.events("1"), "created", "updated", "updated")
}

// A repeat of what is in doubt is the same submission, until another version has
// come; then it is sent, and the one in doubt is not.
func TestRepeatOfDoubtIsAnother(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.start(Gateway, once("upstream", testenv.Fails))
	h.faulted(h.version("A"), sip.Server, "in doubt")
	h.answered(h.version("B"), sip.Accepted)
	h.answered(h.version("A"), sip.Accepted)
	h.tend(49 * time.Hour)
	h.wantTexts("the server got", h.got(), "B", "A")
	rows := h.rows()
	if len(rows) != 3 || rows[0].State != submission.StateUnresolved || rows[2].State != submission.StateAccepted || rows[0].Request != rows[2].Request || rows[0].Token == rows[2].Token {
		t.Errorf("%+v", rows)
	}
	h.wantTexts("published", h.published("urn:lib:1"), "created B", "updated A")
	h.verified()
}

// A reply that the log could not take belongs to its own submission, although the
// same request has become another one since.
func TestReplyOfAnOldVersionIsKept(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	store, faults := breakable(h.log)
	h.change = func(d *Server) { d.Store = store }
	h.start(Gateway, nil)
	h.library.instead = func(r *sip.Request) (*sip.Disposition, error) {
		faults.Before.Store(1)
		h.library.instead = nil
		return nil, nil
	}
	if _, err := h.submit(h.version("A")); err == nil {
		t.Fatal("the log failed, and the submitter was answered")
	}
	h.answered(h.version("B"), sip.Accepted)
	h.tend(0)
	rows := h.rows()
	if len(rows) != 2 || rows[0].State != submission.StateAccepted || rows[1].State != submission.StateAccepted {
		t.Errorf("%+v", rows)
	}
	h.wantTexts("published", h.published("urn:lib:1"), "created B")
	h.verified()
}

// What could not be begun is not taken for the older submission of the same request.
func TestWhatWasNotBegunIsForgotten(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.start(Gateway, once("upstream", testenv.Fails))
	h.faulted(h.version("A"), sip.Server, "in doubt")
	h.answered(h.version("B"), sip.Accepted)
	doubt := h.rows()[0]
	h.start(Gateway, once("commit", testenv.Fails))
	if _, err := h.submit(h.version("A")); err == nil {
		t.Fatal("the log failed, and the submitter was answered")
	}
	h.tend(0)
	if got := h.rows()[0]; len(h.rows()) != 2 || got.Version != doubt.Version || got.Reason != doubt.Reason {
		t.Errorf("it was %+v, and is %+v", doubt, got)
	}
	if n := len(h.process.Load().gateway.unsaved); n != 0 {
		t.Errorf("%d are owed still", n)
	}
}

// One version of a record is on its way at a time; other records are not held up.
func TestVersionsAreSentInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		var mu sync.Mutex
		var got []string
		h := newHarness(t, Gateway, func(_ *harness, d *Server) {
			d.Endpoint = func() string { return "http://bridge.example" }
			d.Upstream = upstreamFunc(func(r *sip.Request) (*sip.Disposition, error) {
				text := textOf(r.Record.XML)
				mu.Lock()
				got = append(got, text)
				mu.Unlock()
				if text == "old" {
					<-hold
				}
				return accepted(r.Source, "urn:lib:"+*r.Source.Identifier), nil
			})
		})
		var wait sync.WaitGroup
		for _, r := range []*sip.Request{request("1", "old"), request("1", "new"), request("2", "other")} {
			wait.Go(func() {
				if _, err := h.server.Ingest(t.Context(), sip.Caller{}, r); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if !slices.Equal(got, []string{"old", "other"}) {
			t.Errorf("on their way: %q", got)
		}
		close(hold)
		wait.Wait()
		if !slices.Equal(got, []string{"old", "other", "new"}) {
			t.Errorf("sent: %q", got)
		}
	})
}

// A version that cannot be sent within a minute, since an earlier one waits for its answer,
// is not sent, and its submitter may repeat it.
func TestVersionWaitsForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		h := newHarness(t, Gateway, func(_ *harness, d *Server) {
			d.Endpoint = func() string { return "http://bridge.example" }
			d.Upstream = upstreamFunc(func(r *sip.Request) (*sip.Disposition, error) {
				if textOf(r.Record.XML) == "old" {
					<-hold
				}
				return accepted(r.Source, "urn:lib:1"), nil
			})
		})
		var wait sync.WaitGroup
		wait.Go(func() {
			if _, err := h.server.Ingest(t.Context(), sip.Caller{}, request("1", "old")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		time.AfterFunc(5*time.Minute, func() { close(hold) })
		began := time.Now()
		d, err := h.server.Ingest(t.Context(), sip.Caller{}, request("1", "new"))
		var fault *sip.Fault
		if !errors.As(err, &fault) || fault.Code != sip.Server || !strings.Contains(fault.Text, "was not sent") {
			t.Errorf("answered %+v, %v", d, err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("answered after %v", took)
		}
		wait.Wait()
		if d, err := h.server.Ingest(t.Context(), sip.Caller{}, request("1", "new")); err != nil || d.Outcome != sip.Accepted {
			t.Errorf("the repeat is answered %+v, %v", d, err)
		}
	})
}

// Of two versions that are accepted as the same record the later one is published,
// whichever disposition comes first, or both at once. Accepted as different
// records both are.
func TestOldVersionIsAcceptedLast(t *testing.T) {
	for name, c := range map[string]struct {
		identifiers []string // of old and new
		order       []int    // nil is at once
		want        string
	}{
		"in their order": {[]string{"x", "x"}, []int{0, 1}, "created x, updated x"},
		"the old last":   {[]string{"x", "x"}, []int{1, 0}, "created x"},
		"two records":    {[]string{"y", "x"}, []int{1, 0}, "created x, created y"},
		"at once":        {[]string{"x", "x"}, nil, ""},
	} {
		for round := range map[bool]int{true: 1, false: 20}[c.order != nil] {
			h := newHarness(t, Gateway, nil)
			subs := make([]*submission.Submission, 2)
			for i := range subs {
				r := request("1", []string{"old", "new"}[i])
				s, err := h.server.newSubmission(t.Context(), r, requestDigest(r))
				h.do(err)
				s.State, s.Token = submission.StateProvisional, fmt.Sprint("token ", i)
				subs[i] = h.add(*s)
			}
			tell := func(i int) { h.notify(subs[i].Token, accepted(mapOf("1"), c.identifiers[i])) }
			if c.order == nil {
				var wait sync.WaitGroup
				for i := range subs {
					wait.Go(func() { tell((i + round) % 2) })
				}
				wait.Wait()
			}
			for _, i := range c.order {
				tell(i)
			}
			if got := strings.Join(h.events(), ", "); c.want != "" && got != c.want {
				t.Errorf("%s: %s", name, got)
			}
			e, err := h.log.Record(t.Context(), "maps", event.Key("x"))
			h.do(err)
			if e.Representations[0].Hash != event.HashOf(subs[1].Content) {
				t.Errorf("%s: the old version is published; events %q", name, h.events())
			}
			for _, s := range subs {
				if got := h.submission(s.ID).State; got != submission.StateAccepted {
					t.Errorf("%s: submission %d is %v", name, s.ID, got)
				}
			}
			h.verified()
		}
	}
}

// Nothing is awaited for longer than the deadline from the start on.
func TestDeadlineIsBroughtForward(t *testing.T) {
	h := newGatewayHarness(t, Gateway, nil)
	h.library.answers = sip.ProvisionallyAccepted
	r := h.request("1")
	h.answered(r, sip.ProvisionallyAccepted)
	h.change = func(d *Server) { d.Deadline = time.Hour }
	h.start(Gateway, nil)
	h.tend(59 * time.Minute)
	h.state(r, submission.StateProvisional)
	h.start(Gateway, nil) // the time that has passed counts
	h.tend(time.Minute)
	h.state(r, submission.StateUnresolved)
}

// A service whose log takes nothing begins when it does; until then it says so.
func TestRunWaitsForTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Gateway, nil)
		sub := h.received("1", submission.StateForwarding, nil)
		store, faults := breakable(h.log)
		faults.Before.Store(3)
		d := &Server{Set: "maps", Feed: h.server.Feed, URL: "/sip/maps", Source: h.server.Source, Mode: Gateway, Store: store, Keep: h.server.Keep}
		d.Upstream = upstreamFunc(func(r *sip.Request) (*sip.Disposition, error) { return accepted(r.Source, "urn:lib:2"), nil })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); d.Run(ctx) }()
		synctest.Wait()
		if _, err := d.Ingest(ctx, sip.Caller{}, request("2", "a")); !errors.Is(err, testenv.ErrBroken) {
			t.Errorf("before it has begun: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := h.submission(sub.ID); s.State != submission.StateInDoubt {
			t.Errorf("a minute later: %v", s.State)
		}
		if disp, err := d.Ingest(ctx, sip.Caller{}, request("2", "a")); err != nil || disp.Outcome != sip.Accepted {
			t.Errorf("when it has begun: %+v, %v", disp, err)
		}
		cancel()
		<-ended
	})
}

// Whatever a submitter submits again, the ingest server decides in any order, and
// fails on the way: of the versions of a record the server gets none after a later
// one, and the later one of those that it has accepted is what is published.
func TestLaterVersionWins(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	h := newGatewayHarness(t, Gateway, nil)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		h.t = rt
		h.anyVersions(rt, fmt.Sprint("run-", run))
	})
	h.t = t
	h.verified()
}

// anyVersions submits versions of two records, under any misfortunes.
func (h *gatewayHarness) anyVersions(rt *rapid.T, prefix string) {
	h.library.recognises = false // so that it has an entry of each request
	plan := misfortunes(rt)
	h.start(Gateway, plan)
	first := len(h.library.entries)
	for range rapid.IntRange(2, 25).Draw(rt, "deeds") {
		switch rapid.SampledFrom([]string{"submit", "submit", "submit", "decide", "a minute", "an hour", "start"}).Draw(rt, "deed") {
		case "submit":
			r := h.request(prefix + rapid.SampledFrom([]string{"-a", "-b"}).Draw(rt, "record"))
			r.Record.XML = []byte(`<map xmlns="urn:maps">` + rapid.SampledFrom([]string{"A", "B", "C"}).Draw(rt, "text") + `</map>`)
			h.library.answers = rapid.SampledFrom([]sip.Outcome{sip.Accepted, sip.Rejected, sip.ProvisionallyAccepted}).Draw(rt, "answer")
			if _, err := h.submit(r); err == nil {
				h.isNewest(r)
			}
		case "decide":
			if n := len(h.library.entries) - first; n > 0 {
				h.decideEntry(h.library.entries[first+rapid.IntRange(0, n-1).Draw(rt, "entry")], rapid.SampledFrom([]sip.Outcome{sip.Accepted, sip.Rejected}).Draw(rt, "outcome"))
			}
		case "a minute":
			h.clock.Advance(time.Minute)
			_, _ = h.process.Load().doDue(context.Background())
		case "an hour":
			h.clock.Advance(time.Hour)
			_, _ = h.process.Load().doDue(context.Background())
		case "start":
			h.start(Gateway, plan)
		}
		if h.process.Load().life.Killed() {
			h.start(Gateway, plan)
		}
	}
	h.start(Gateway, nil)
	h.library.answers = sip.Accepted
	h.tend(2 * time.Hour)
	h.tend(2 * time.Hour)
	h.library.decide(sip.Accepted)
	h.tend(49 * time.Hour)
	h.inOrder(first)
}

// misfortunes draws a plan of some.
func misfortunes(rt *rapid.T) func(int, string) testenv.Fate {
	strokes := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) misfortune {
		return misfortune{rapid.IntRange(1, 12).Draw(rt, "after"), testenv.Fate(rapid.IntRange(int(testenv.Fails), int(testenv.KilledAfter)).Draw(rt, "fate"))}
	}), 0, 6).Draw(rt, "strokes")
	return func(int, string) testenv.Fate {
		if len(strokes) == 0 {
			return testenv.GoesWell
		}
		if strokes[0].After--; strokes[0].After > 0 {
			return testenv.GoesWell
		}
		f := strokes[0].Fate
		strokes = strokes[1:]
		return f
	}
}

// decideEntry decides one, and notifies; whether or not it is taken.
func (h *gatewayHarness) decideEntry(e *entry, outcome sip.Outcome) {
	h.library.mu.Lock()
	defer h.library.mu.Unlock()
	if e.ultimate == nil {
		h.library.decideOne(e, outcome)
	}
	e.notified = plainClient(e.request.Recipient).Notify(context.Background(), e.ultimate) == nil
}

// isNewest wants a request that was answered to be the last one of its record.
func (h *gatewayHarness) isNewest(r *sip.Request) {
	h.t.Helper()
	found, err := h.log.Submissions(context.Background(), submission.Query{Source: h.source, Subject: string(sip.AppendSource(nil, r.Source)), Newest: true})
	h.do(err)
	for i := range found {
		if s := &found[i]; s.State != submission.StateUnsent {
			if s.Request != requestDigest(r) {
				h.t.Fatalf("%s was answered, and submission %d of the same record is later", r.Record.XML, s.ID)
			}
			return
		}
	}
	h.t.Fatalf("%s was answered, and is no submission", r.Record.XML)
}

// inOrder checks the records of a run, of which the library has the entries from
// one on.
func (h *gatewayHarness) inOrder(first int) {
	h.t.Helper()
	ctx := context.Background()
	sent := map[string]int64{}
	for _, e := range h.library.entries[first:] {
		s, err := h.log.SubmissionByToken(ctx, path.Base(e.request.Recipient))
		h.do(err)
		if id := e.identifier(); s.ID < sent[id] {
			h.t.Errorf("of %s the server got submission %d after %d", id, s.ID, sent[id])
		} else {
			sent[id] = s.ID
		}
	}
	for id := range sent {
		source := mapOf(id)
		found, err := h.log.Submissions(ctx, submission.Query{Source: h.source, Subject: string(sip.AppendSource(nil, source)), States: []submission.State{submission.StateAccepted}, Newest: true, Limit: 1})
		h.do(err)
		if len(found) == 0 {
			continue
		}
		ev, err := h.log.Record(ctx, "maps", event.Key(found[0].Assigned))
		h.do(err)
		if want := event.HashOf(found[0].Content); ev.Representations[0].Hash != want {
			h.t.Errorf("%s is published with %s, and submission %d, the last one accepted, has %s", id, ev.Representations[0].Hash, found[0].ID, want)
		}
	}
}
