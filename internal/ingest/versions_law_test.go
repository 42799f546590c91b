package ingest

import (
	"context"
	"fmt"
	"path"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

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
