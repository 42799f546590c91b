package eventlogtest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// A later version is one of the same Source with a higher number: of the same
// record where a target submits it, else with the same source element.
func testLaterVersions(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect}, "one", "two")
	b.exchange(&event.Batch{Items: items("a=x b=x"), Submissions: &event.SubmissionBatch{}})
	received := func(block string, state event.State) event.SubmissionUpdate {
		s := b.at(state)
		s.SourceXML = []byte(block)
		return event.SubmissionUpdate{Submission: s}
	}
	sent := func(record, block string, state event.State, assigned string) event.SubmissionUpdate {
		s := received(block, state).Submission
		s.Record, s.Assigned, s.Seq = "urn:"+record, assigned, map[string]event.Seq{"a": 1, "b": 2}[record]
		return event.SubmissionUpdate{Submission: s}
	}
	ids := b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: []event.SubmissionUpdate{
		0: received("<A/>", event.StateProvisional),
		1: received("<B/>", event.StateInDoubt),
		2: received("<A/>", event.StateUnsent),
		3: received("<A/>", event.StateRejected),
		4: sent("a", "<A/>", event.StateAccepted, "one"),
		5: sent("a", "<B/>", event.StateWaiting, ""),
		6: sent("a", "<other/>", event.StateAccepted, "two"),
		7: sent("b", "<A/>", event.StateAccepted, "one"),
	}}}).IDs
	all := event.States()
	accepted, unsent := []event.State{event.StateAccepted}, []event.State{event.StateUnsent}
	for _, c := range []struct {
		of       int
		states   []event.State
		assigned string
		want     bool
	}{
		{0, all, "", true}, {0, unsent, "", true}, {0, accepted, "", false}, {0, []event.State{event.StateUnsent, event.StateRejected}, "", true},
		{2, unsent, "", false}, {2, all, "", true}, {3, all, "", false}, {1, all, "", false},
		{4, all, "", true}, {4, accepted, "two", true}, {4, accepted, "one", false}, {4, unsent, "", false},
		{5, accepted, "", true}, {5, accepted, "one", false}, {6, all, "", false}, {7, all, "", false},
	} {
		got, err := b.log.HasNewerVersion(context.Background(), b.submission(ids[c.of]), c.states, c.assigned)
		if b.must(err); got != c.want {
			t.Errorf("later than %d, with %v as %q: %v", c.of, c.states, c.assigned, got)
		}
	}
	other := *b.submission(ids[0])
	other.Source = b.sources[1]
	if got, err := b.log.HasNewerVersion(context.Background(), &other, all, ""); got || err != nil {
		t.Errorf("of another Source: %v, %v", got, err)
	}
}

// What is owed is found until it is owed no more.
func testOwed(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect}, "one", "two")
	b.exchange(&event.Batch{Items: items("a=x"), Submissions: &event.SubmissionBatch{}})
	steps := make([]event.SubmissionUpdate, 5)
	for i := range steps {
		s := b.at(event.StateProvisional)
		s.Record, s.Seq, s.Token = "urn:a", 1, fmt.Sprint("token ", i)
		if i%2 == 1 {
			s.State, s.Assigned, s.ImportPending = event.StateAccepted, "elsewhere", i == 1
		}
		steps[i].Submission = s
	}
	ids := b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: steps}}).IDs
	owed := func(q event.SubmissionQuery) (got []int) {
		q.ImportPending = true
		found, err := b.log.Submissions(context.Background(), q)
		b.must(err)
		for _, s := range found {
			got = append(got, slices.Index(ids, s.ID))
		}
		return got
	}
	change := func(i int, to bool) {
		s := *b.submission(ids[i])
		s.State, s.Assigned, s.ImportPending = event.StateAccepted, "elsewhere", to
		b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: []event.SubmissionUpdate{{Submission: s}}}})
	}
	for _, c := range []struct {
		do   func()
		want []int
	}{
		{func() {}, []int{1}},
		{func() { change(4, true) }, []int{1, 4}},
		{b.reopen, []int{1, 4}},
		{func() { change(1, false) }, []int{4}},
		{func() { change(4, false) }, nil},
	} {
		c.do()
		if got := owed(event.SubmissionQuery{Source: b.sources[0]}); !slices.Equal(got, c.want) {
			t.Errorf("owed: %v, want %v", got, c.want)
		}
		if got := owed(event.SubmissionQuery{Source: b.sources[1]}); len(got) > 0 {
			t.Errorf("owed by another Source: %v", got)
		}
	}
}
