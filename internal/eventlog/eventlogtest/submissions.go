package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// exchange appends a batch of submissions.
func (b *bench) exchange(in *event.Batch) event.Appended {
	b.t.Helper()
	in.Mode, in.Source = event.ModeSubmission, b.sources[0]
	if in.Documents == nil {
		in.Documents = []event.Document{{URL: "/sip/main"}}
	}
	out, err := b.log.Append(context.Background(), in)
	b.must(err)
	return out
}

// at returns a submission of the log's first Source with a state.
func (b *bench) at(state event.State) event.Submission {
	return event.Submission{Source: b.sources[0], State: state}
}

func (b *bench) submission(id int64) *event.Submission {
	b.t.Helper()
	s, err := b.log.Submission(context.Background(), id)
	b.must(err)
	return s
}

// A submission is kept whole; a step that is late does not happen, nor does what
// belongs to it.
func testSubmissions(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect})
	ctx := context.Background()
	b.exchange(&event.Batch{Items: items("r=x"), Submissions: &event.SubmissionBatch{}})
	b.want("what is submitted", b.news(), "created r=x")
	full := event.Submission{Source: b.sources[0], State: event.StateForwarding, Token: "token", Seq: 1, Request: [32]byte{1, 2}, SourceXML: []byte("<source/>"),
		SourceIdentifier: "145", Record: "urn:r", Content: [32]byte{3}, Length: 99, Type: "text/xml", Title: "A title", Recipient: "http://r.example/", Assigned: "", Reason: "why",
		Due: 5, Deadline: 6, Tries: 2, Late: true}
	out := b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: []event.SubmissionUpdate{{Submission: full}, {Submission: b.at(event.StateWaiting)}}}})
	if len(out.IDs) != 2 || len(out.Stale) != 0 || out.Last != 0 {
		t.Fatalf("appended: %+v", out)
	}
	b.reopen()
	full.ID, full.Version, full.Set, full.Created, full.Changed = out.IDs[0], 1, "main", event.MicrosOf(b.clock.Wall), event.MicrosOf(b.clock.Wall)
	got, err := b.log.SubmissionByToken(ctx, "token")
	b.must(err)
	if !reflect.DeepEqual(*got, full) {
		t.Errorf("the submission:\n got %+v\nwant %+v", *got, full)
	}
	other, err := b.log.Submission(ctx, out.IDs[1])
	b.must(err)
	if other.SourceXML != nil || other.Set != "main" {
		t.Errorf("the other one: %+v", other)
	}
	if _, err := b.log.SubmissionByToken(ctx, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no token: %v", err)
	}

	b.clock.Pass(time.Hour)
	answer := *got
	answer.State, answer.Assigned = event.StateAccepted, "a"
	steps := &event.Batch{Items: items("a=x b=x"), Submissions: &event.SubmissionBatch{Updates: []event.SubmissionUpdate{
		{Submission: answer, Item: 1, Outgoing: &event.OutgoingNotification{Recipient: "http://r.example/", Disposition: []byte("<d/>"), Message: "m@example"}},
		{Submission: answer, Item: 2, Rejected: true, Outgoing: &event.OutgoingNotification{Recipient: "never"}, Incoming: &event.IncomingNotification{Digest: [32]byte{9}}},
	}}}
	out = b.exchange(steps)
	b.want("outcomes", outcomes(out.Outcomes[:1]), "logged")
	if out.Outcomes[1] != 0 || len(out.Stale) != 1 || out.Stale[0] != 1 || out.Rejected != 0 {
		t.Errorf("of two steps of one version: %+v", out)
	}
	b.want("events", b.news(), "created a=x")
	again := b.exchange(steps)
	if len(again.Stale) != 2 || again.Last != 0 {
		t.Errorf("the same steps again: %+v", again)
	}
	got, err = b.log.Submission(ctx, answer.ID)
	b.must(err)
	if got.State != event.StateAccepted || got.Version != 2 || got.Created != full.Created || got.Changed != event.MicrosOf(b.clock.Wall) {
		t.Errorf("after the answer: %+v", got)
	}
	for times := range 2 { // a contradiction counts once
		conflict := *b.submission(answer.ID)
		conflict.Conflicts++
		b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: []event.SubmissionUpdate{{Submission: conflict,
			Incoming: &event.IncomingNotification{Digest: [32]byte{8}, Verdict: event.NotificationConflict, Outcome: event.StateRejected}}}}})
		found, err := b.log.Incoming(ctx, "main", event.NotificationConflict, 0, 10)
		b.must(err)
		if got := b.submission(answer.ID); got.Conflicts != full.Conflicts+1 || len(found) != 1 || found[0].Times != times+1 || found[0].Submission != answer.ID {
			t.Errorf("after %d conflicts: %+v, %+v", times+1, got, found)
		}
	}
	due, err := b.log.OutgoingDue(ctx, event.MicrosOf(b.clock.Wall), nil, 10)
	b.must(err)
	if len(due) != 1 || due[0].Submission != answer.ID || string(due[0].Disposition) != "<d/>" || due[0].Message != "m@example" || due[0].State != event.DeliveryWaiting || due[0].Set != "main" {
		t.Fatalf("notices: %+v", due)
	}
	done := due[0]
	done.State, done.Due, done.Tries = event.DeliveryDone, 0, 1
	b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Outgoing: []event.OutgoingNotification{done}}})
	if due, err = b.log.OutgoingDue(ctx, event.MicrosOf(b.clock.Wall), nil, 10); err != nil || len(due) != 0 {
		t.Errorf("after its delivery: %+v, %v", due, err)
	}
	counts, err := b.log.Counts(ctx, b.sources[0])
	b.must(err)
	if counts.Submissions[event.StateAccepted] != 1 || counts.Submissions[event.StateWaiting] != 1 || len(counts.Submissions) != 2 ||
		counts.Outgoing[event.DeliveryDone] != 1 || len(counts.Outgoing) != 1 || counts.Incoming[event.NotificationConflict] != 1 || counts.Contradicted != 1 || counts.Direct[event.StateAccepted] != 1 || len(counts.Direct) != 1 {
		t.Errorf("counts: %+v", counts)
	}
}

func testSubmissionQueries(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect})
	var steps []event.SubmissionUpdate
	for i, state := range []event.State{event.StateWaiting, event.StateProvisional, event.StateAccepted, event.StateWaiting, event.StateUnsent} {
		s := b.at(state)
		s.Assigned = map[event.State]string{event.StateAccepted: "urn:a"}[state]
		s.Due = event.Micros(10 * (i % 3))
		s.Record = []string{"urn:a", "urn:b"}[i%2]
		s.SourceXML = []byte("<source>" + s.Record + "</source>")
		s.Request = [32]byte{byte(i % 2)}
		if i == 2 {
			s.Token = "token"
		}
		steps = append(steps, event.SubmissionUpdate{Submission: s})
	}
	steps[2].Item = 1
	ids := b.exchange(&event.Batch{Items: items("a=x"), Submissions: &event.SubmissionBatch{Updates: steps}}).IDs
	request := [32]byte{1}
	for _, c := range []struct {
		name string
		q    event.SubmissionQuery
		want []int
	}{
		{"all", event.SubmissionQuery{}, []int{0, 1, 2, 3, 4}},
		{"set", event.SubmissionQuery{Set: "other"}, nil},
		{"source", event.SubmissionQuery{Source: b.sources[0], Limit: 2}, []int{0, 1}},
		{"after", event.SubmissionQuery{After: ids[1], Limit: 2}, []int{2, 3}},
		{"newest", event.SubmissionQuery{Newest: true, Limit: 2}, []int{4, 3}},
		{"newest before", event.SubmissionQuery{Newest: true, After: ids[3], Limit: 2}, []int{2, 1}},
		{"states", event.SubmissionQuery{States: []event.State{event.StateWaiting, event.StateUnsent}}, []int{0, 3, 4}},
		{"request", event.SubmissionQuery{Request: &request}, []int{1, 3}},
		{"subject", event.SubmissionQuery{Subject: "<source>urn:b</source>"}, []int{1, 3}},
		{"open subject", event.SubmissionQuery{Subject: "<source>urn:a</source>", States: []event.State{event.StateWaiting, event.StateProvisional}}, []int{0}},
		{"waiting subject", event.SubmissionQuery{Subject: "<source>urn:b</source>", States: []event.State{event.StateWaiting}}, []int{3}},
		{"no subject", event.SubmissionQuery{Subject: "urn:a"}, nil}, // it is that of a sent one only
	} {
		found, err := b.log.Submissions(context.Background(), c.q)
		b.must(err)
		var got []int
		for _, s := range found {
			got = append(got, int(s.ID-ids[0]))
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// What is due comes the longest due first, a page at a time, and nothing else; what
// becomes of a page does not disturb the next one.
func testSubmissionsDue(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect}, "one", "two")
	var steps []event.SubmissionUpdate
	for _, due := range []event.Micros{30, 10, 0, 20, 20, 20, 10, 40} {
		s := b.at(event.StateProvisional)
		s.Due = due
		other := b.at(event.StateInDoubt)
		other.Due = 10
		steps = append(steps, event.SubmissionUpdate{Submission: s}, event.SubmissionUpdate{Submission: other})
	}
	ids := b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: steps}}).IDs
	want := []int64{ids[2], ids[12], ids[6], ids[8], ids[10], ids[0]}
	for _, limit := range []int{1, 2, 3, 100} {
		var got []int64
		var last *event.Submission
		for {
			page, err := b.log.SubmissionsDue(context.Background(), b.sources[0], event.StateProvisional, 30, last, limit)
			b.must(err)
			if len(page) == 0 {
				break
			}
			for i := range page {
				got, last = append(got, page[i].ID), &page[i]
			}
			if limit == 3 { // they are put off, or due no more
				for i := range page {
					s := page[i]
					s.Due = event.Micros(i * 50)
					b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: []event.SubmissionUpdate{{Submission: s}}}})
				}
			}
			if len(page) > limit {
				t.Errorf("%d at once, no more than %d were wanted", len(page), limit)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d at a time: %v, want %v", limit, got, want)
		}
		if limit == 3 {
			want = []int64{}
		}
	}
	found, err := b.log.SubmissionsDue(context.Background(), b.sources[1], event.StateProvisional, 1000, nil, 100)
	if b.must(err); len(found) > 0 {
		t.Errorf("of another Source: %+v", found)
	}
}

// What is handed in is the newest word, whatever stamp it has, beside the walk of
// nobody; the same bytes are no event.
func testHanded(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect})
	handed := func(words string) string {
		return outcomes(b.exchange(&event.Batch{Items: items(words), Submissions: &event.SubmissionBatch{}}).Outcomes)
	}
	b.want("new", handed("a@5=x b@5=x"), "logged logged")
	b.want("an earlier stamp and other bytes", handed("a@1=y"), "logged")
	b.want("the same bytes", handed("a@9=y"), "unchanged")
	b.want("two of one record in a batch", handed("a@9=z a@9=y a@9=y"), "logged logged unchanged")
	b.want("events", b.news(), "created a@5=x, created b@5=x, updated a@1=y, updated a@9=z, updated a@9=y")
	waits := items("c@1")
	waits[0].Pending, waits[0].Fetched = "not fetched yet", false
	out := b.exchange(&event.Batch{Items: waits})
	b.want("without content", outcomes(out.Outcomes), "waiting")
	kept, err := b.log.Pending(context.Background(), b.sources[0], event.MicrosOf(b.clock.Wall), 0, 10)
	b.must(err)
	if len(kept) != 1 || kept[0].Record != "urn:c" {
		t.Fatalf("due at once: %+v", kept)
	}
	b.want("when it is there", b.more(event.ModeSettle, "c@1"), "logged")
	p, err := b.log.Progress(context.Background(), b.sources[0])
	b.must(err)
	if _, err := b.log.Append(context.Background(), &event.Batch{Source: b.sources[0], Cursor: p.Cursor.Version, Submissions: &event.SubmissionBatch{}}); err == nil {
		t.Error("submissions were part of a walk")
	}
	counts, err := b.log.Counts(context.Background(), b.sources[0])
	b.must(err)
	if counts.Direct[event.StateAccepted] != 5 {
		t.Errorf("counted at once: %+v", counts.Direct)
	}
}

// A rejection is an event that belongs to no segment and no record. The same
// notification twice is one.
func testRejected(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect, SegmentEvents: 2})
	ctx := context.Background()
	note := event.IncomingNotification{Digest: [32]byte{1}, Verdict: event.NotificationRejected, Outcome: event.StateRejected, SourceIdentifier: "146", Reason: "out of range", SourceXML: []byte("<source/>")}
	request := [32]byte{5}
	b.exchange(&event.Batch{Items: items("a=x")})
	out := b.exchange(&event.Batch{Items: items("b=x"), Submissions: &event.SubmissionBatch{
		Rejections: []event.Rejection{{Record: "urn:a", SourceIdentifier: "145", Reason: "no", Title: "T"}},
		Incoming:   []event.IncomingNotification{note},
		Replies:    []event.StoredReply{{Request: request, Disposition: []byte("<d/>")}}}})
	if out.Rejected != 2 || out.Created != 1 || out.Last-out.First != 2 {
		t.Fatalf("appended: %+v", out)
	}
	out = b.exchange(&event.Batch{Items: items("c=x"), Submissions: &event.SubmissionBatch{Incoming: []event.IncomingNotification{note, note}}})
	if out.Rejected != 0 {
		t.Errorf("the same notification again: %+v", out)
	}
	b.reopen()
	b.want("events", b.news(), "created a=x, created b=x, rejected a, rejected , created c=x")
	b.want("live", b.now(), "a b c")
	b.want("live before the last", b.live(4), "a b")
	for seq, want := range map[event.Seq]event.Event{
		3: {Seq: 3, Set: "main", Record: "urn:a", Kind: event.Rejected, Title: "T", Origin: event.Origin{Source: "one", Document: "/sip/main", SourceIdentifier: "145", Reason: "no"}},
		4: {Seq: 4, Set: "main", Kind: event.Rejected, Origin: event.Origin{Source: "one", Document: "/sip/main", SourceIdentifier: "146", Reason: "out of range"}},
	} {
		got, err := b.log.Event(ctx, seq)
		b.must(err)
		if got.Record != want.Record || got.Kind != want.Kind || got.Title != want.Title || got.Origin.Reason != want.Origin.Reason ||
			got.Origin.SourceIdentifier != want.Origin.SourceIdentifier || got.Origin.Document != want.Origin.Document || got.Via.Href != "" || got.Entries() != 0 {
			t.Errorf("event %d: %+v", seq, got)
		}
	}
	segments, err := b.log.Segments(ctx, "main")
	b.must(err)
	if len(segments) != 2 || segments[0].First != 1 || segments[0].Last != 2 || segments[1].First != 5 || segments[1].Events != 1 {
		t.Errorf("segments: %+v", segments)
	}
	set, err := b.log.Set(ctx, "main")
	b.must(err)
	if set.Events != 5 || set.Last != 5 {
		t.Errorf("the set: %+v", set)
	}
	found, err := b.log.Incoming(ctx, "main", event.NotificationRejected, 0, 10)
	b.must(err)
	if len(found) != 1 || found[0].Times != 3 || found[0].Reason != note.Reason || string(found[0].SourceXML) != "<source/>" || found[0].Set != "main" {
		t.Errorf("notifications: %+v", found)
	}
	answer, err := b.log.StoredReply(ctx, b.sources[0], request)
	b.must(err)
	b.want("answered", string(answer), "<d/>")
	b.clock.Pass(24*time.Hour + time.Second)
	if answer, err = b.log.StoredReply(ctx, b.sources[0], request); err != nil || answer != nil {
		t.Errorf("a day later: %q, %v", answer, err)
	}
	counts, err := b.log.Counts(ctx, b.sources[0])
	b.must(err)
	if counts.Direct[event.StateRejected] != 1 || counts.Incoming[event.NotificationRejected] != 1 {
		t.Errorf("counts: %+v", counts)
	}
}

// D40: what strangers cause is no event, and the newest thousand of each kind are
// kept; what belongs to something, or comes from somebody who is known, stays.
func testStrangers(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect})
	ctx := context.Background()
	note := func(n int, v event.NotificationVerdict, stranger bool) event.IncomingNotification {
		digest := [32]byte{byte(n), byte(n >> 8), byte(v)}
		return event.IncomingNotification{Digest: digest, Verdict: v, Outcome: event.StateRejected, SourceIdentifier: fmt.Sprint(n), Anonymous: stranger}
	}
	known := note(0, event.NotificationRejected, false)
	fetched := note(0, event.NotificationRecord, true)
	claimed := note(0, event.NotificationUncorrelated, true)
	out := b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{
		Incoming:   []event.IncomingNotification{known, fetched, claimed},
		Rejections: []event.Rejection{{SourceIdentifier: "known"}},
		Updates:    []event.SubmissionUpdate{{Submission: b.at(event.StateUnresolved)}},
	}})
	if out.Rejected != 2 {
		t.Errorf("of two rejections of somebody who is known: %+v", out)
	}
	found, err := b.log.Incoming(ctx, "main", event.NotificationUncorrelated, 0, 10)
	b.must(err)
	s, err := b.log.Submission(ctx, out.IDs[0])
	b.must(err)
	s.State = event.StateRejected
	b.exchange(&event.Batch{Submissions: &event.SubmissionBatch{Updates: []event.SubmissionUpdate{{Submission: *s, Settled: true, SettledNotification: found[0].ID}}}})

	const many, most = 2200, 1000
	for i := 0; i < many; i += 100 {
		x := event.SubmissionBatch{}
		for n := i; n < i+100; n++ {
			verdict := event.NotificationRejected
			if n%2 == 0 {
				verdict = event.NotificationUncorrelated
			}
			x.Incoming = append(x.Incoming, note(n+1, verdict, true))
			x.Rejections = append(x.Rejections, event.Rejection{Anonymous: true, Record: "urn:a", SourceIdentifier: fmt.Sprint(n + 1), Reason: "no", Title: "T"})
		}
		if out := b.exchange(&event.Batch{Submissions: &x}); out.Rejected != 0 {
			t.Fatalf("rejections of strangers are events: %+v", out)
		}
	}
	b.reopen()
	rejections, err := b.log.Rejections(ctx, "main", 0, 10*many)
	b.must(err)
	if n := len(rejections); n != most || rejections[0].SourceIdentifier != fmt.Sprint(many) || rejections[n-1].SourceIdentifier != fmt.Sprint(many-most+1) {
		t.Errorf("%d rejections are kept", n)
	}
	if r := rejections[0]; r.Set != "main" || r.Record != "urn:a" || r.Reason != "no" || r.Title != "T" || r.At == 0 || !r.Anonymous {
		t.Errorf("the newest: %+v", r)
	}
	older, err := b.log.Rejections(ctx, "main", rejections[9].ID, 10)
	b.must(err)
	if len(older) != 10 || older[0].ID != rejections[10].ID {
		t.Errorf("a page further: %+v", older)
	}
	counts, err := b.log.Counts(ctx, b.sources[0])
	b.must(err)
	for verdict, want := range map[event.NotificationVerdict]int{event.NotificationRejected: most/2 + 1, event.NotificationUncorrelated: most / 2, event.NotificationRecord: 1, event.NotificationSettled: 1} {
		found, err := b.log.Incoming(ctx, "main", verdict, 0, 10*many)
		b.must(err)
		if len(found) != want || counts.Incoming[verdict] != int64(want) {
			t.Errorf("%s: %d are kept, %d counted, want %d", verdict, len(found), counts.Incoming[verdict], want)
		}
	}
	if counts.Dropped != 2*(many-most) || counts.Direct[event.StateRejected] != many+1 {
		t.Errorf("counts: %+v", counts)
	}
}
