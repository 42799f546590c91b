package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	. "github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// bench is an open log with a set "main", two SIP Sources and a target.
type bench struct {
	t                     testing.TB
	*store.Store          // of the log
	folder                string
	url                   string // of the log on a server; "" is a file
	clock                 time.Time
	source, other, target event.SourceID
}

// server has the logs that begin makes; nil is a file for each.
var server *testenv.PostgresServer

func begin(t testing.TB, content event.Content) *bench {
	t.Helper()
	b := &bench{t: t, folder: t.TempDir(), clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if server != nil {
		b.url = server.NewSchema(t)
	}
	b.open(content)
	t.Cleanup(func() { b.must(b.Close()) })
	return b
}

func (b *bench) open(content event.Content) {
	b.t.Helper()
	l, err := eventlog.Open(context.Background(), b.folder, eventlog.Options{URL: b.url, Clock: func() (time.Time, time.Duration) { return b.clock, time.Duration(b.clock.UnixNano()) }})
	b.must(err)
	b.Store = store.New(l)
	b.must(l.EnsureSet(context.Background(), eventlog.SetConfig{Name: "main", Content: content, SegmentEvents: 1000, SegmentHours: 24}))
	b.source = b.ensure("main", "sip", "/sip/main")
	b.other = b.ensure("main", "sip", "/sip/other")
	b.target = b.ensure("main", eventlog.Target, "https://library.example/sip")
}

// reopen closes the log and opens it again.
func (b *bench) reopen() {
	b.t.Helper()
	b.must(b.Close())
	b.open(event.Redirect)
}

func (b *bench) ensure(set, kind, url string) event.SourceID {
	b.t.Helper()
	id, err := b.EnsureSource(context.Background(), set, kind, url, 1)
	b.must(err)
	return id
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// write commits a batch, of the first Source if it names none.
func (b *bench) write(in *Batch) Written {
	b.t.Helper()
	if in.Source == 0 {
		in.Source = b.source
	}
	if in.URL == "" {
		in.URL = "/sip/main"
	}
	out, err := b.Write(context.Background(), in)
	b.must(err)
	return out
}

// update commits updates of the first Source, and returns the IDs of their submissions.
func (b *bench) update(updates ...Update) []int64 {
	b.t.Helper()
	out := b.write(&Batch{Updates: updates})
	if len(out.Stale) > 0 {
		b.t.Fatalf("stale: %v", out.Stale)
	}
	return out.IDs
}

// in returns a submission of the first Source with a state.
func (b *bench) in(state State) Submission { return Submission{Source: b.source, State: state} }

func (b *bench) submission(id int64) *Submission {
	b.t.Helper()
	s, err := b.Submission(context.Background(), id)
	b.must(err)
	return s
}

func (b *bench) incoming(verdict NotificationVerdict) []IncomingNotification {
	b.t.Helper()
	found, err := b.Incoming(context.Background(), "main", verdict, 0, 100_000)
	b.must(err)
	return found
}

func (b *bench) counts() Counts {
	b.t.Helper()
	c, err := b.Counts(context.Background(), b.source)
	b.must(err)
	return c
}

// kinds returns the kinds and records of the events that were logged.
func (b *bench) kinds() (out []string) {
	b.t.Helper()
	for ev, err := range b.Events(context.Background(), "main", event.Range{Upto: math.MaxInt64}) {
		b.must(err)
		out = append(out, ev.Kind.String()+" "+ev.Record)
	}
	return out
}

// accepted is a record that is accepted, as it is logged.
func accepted(identifier string) *event.Item {
	return &event.Item{Observation: event.Observation{Record: identifier, Fetched: true, Representations: []event.Representation{
		{Href: "urn:x:" + identifier, Type: "application/xml", Length: 1, Hash: event.HashOf([32]byte{1})}}}}
}

// A submission is kept whole. An update that is stale does not happen, nor does what
// belongs to it.
func TestUpdates(t *testing.T) {
	b := begin(t, event.Redirect)
	ctx := context.Background()
	b.write(&Batch{Items: []*event.Item{accepted("urn:r")}})
	full := Submission{Source: b.source, State: StateForwarding, Token: "token", Seq: 1, Request: [32]byte{1, 2}, SourceXML: []byte("<source/>"),
		SourceIdentifier: "145", Record: "urn:r\xff", Content: [32]byte{3}, Length: 99, Type: "text/xml", Title: "A title", Recipient: "http://r.example/", Assigned: "a", Reason: "why",
		Due: 5, Deadline: 6, Tries: 2, Late: true, ImportPending: true}
	ids := b.update(Update{Submission: full}, Update{Submission: b.in(StateWaiting)})
	b.reopen()
	full.ID, full.Version, full.Set, full.Created, full.Changed = ids[0], 1, "main", event.MicrosOf(b.clock), event.MicrosOf(b.clock)
	got, err := b.SubmissionByToken(ctx, "token")
	b.must(err)
	if !reflect.DeepEqual(*got, full) {
		t.Errorf("the submission:\n got %+v\nwant %+v", *got, full)
	}
	if other := b.submission(ids[1]); other.SourceXML != nil || other.Set != "main" {
		t.Errorf("the other one: %+v", other)
	}
	if _, err := b.SubmissionByToken(ctx, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no token: %v", err)
	}

	b.clock = b.clock.Add(time.Hour)
	answer, a, c := *got, accepted("urn:a"), accepted("urn:c")
	answer.State, answer.Token, answer.ImportPending = StateAccepted, "another", false
	updates := &Batch{Updates: []Update{
		{Submission: answer, Item: a, Outgoing: &OutgoingNotification{Recipient: "http://r.example/", Disposition: []byte("<d/>"), Message: "m@example"}},
		{Submission: answer, Item: c, Rejected: true, Outgoing: &OutgoingNotification{Recipient: "never"}, Incoming: &IncomingNotification{Digest: [32]byte{9}}},
	}}
	if out := b.write(updates); !slices.Equal(out.Stale, []int{1}) || out.Created != 1 || out.Rejected != 0 {
		t.Errorf("of two updates of one version: %+v", out)
	}
	if out := b.write(updates); len(out.Stale) != 2 || out.Last != 0 {
		t.Errorf("the same updates again: %+v", out)
	}
	if got = b.submission(answer.ID); got.State != StateAccepted || got.Version != 2 || got.Created != full.Created || got.Changed != event.MicrosOf(b.clock) || got.Token != "another" {
		t.Errorf("after the answer: %+v", got)
	}
	for times := range 2 { // a contradiction counts once
		conflict := *b.submission(answer.ID)
		conflict.Conflicts++
		b.update(Update{Submission: conflict, Incoming: &IncomingNotification{Digest: [32]byte{8}, Verdict: NotificationConflict, Outcome: StateRejected}})
		if got, found := b.submission(answer.ID), b.incoming(NotificationConflict); got.Conflicts != 1 || len(found) != 1 || found[0].Times != times+1 || found[0].Submission != answer.ID {
			t.Errorf("after %d conflicts: %+v, %+v", times+1, got, found)
		}
	}
	due, err := b.OutgoingDue(ctx, event.MicrosOf(b.clock), nil, 10)
	b.must(err)
	if len(due) != 1 || due[0].Submission != answer.ID || string(due[0].Disposition) != "<d/>" || due[0].Message != "m@example" || due[0].State != DeliveryWaiting || due[0].Set != "main" {
		t.Fatalf("outgoing: %+v", due)
	}
	done := due[0]
	done.State, done.Due, done.Tries = DeliveryDone, 0, 1
	// One whose set was removed while it was sent is left out, and holds up no other.
	b.write(&Batch{Source: 77, Outgoing: []OutgoingNotification{{ID: 99, Source: 77, State: DeliveryDone}, done}})
	if due, err = b.OutgoingDue(ctx, event.MicrosOf(b.clock), nil, 10); err != nil || len(due) != 0 {
		t.Errorf("after its delivery: %+v, %v", due, err)
	}
	if c := b.counts(); c.Submissions[StateAccepted] != 1 || c.Submissions[StateWaiting] != 1 || c.Outgoing[DeliveryDone] != 1 || c.Outgoing[DeliveryWaiting] != 0 ||
		c.Incoming[NotificationConflict] != 1 || c.Contradicted != 1 || c.Direct[StateAccepted] != 1 {
		t.Errorf("counts: %+v", c)
	}
	for name, in := range map[string]*Batch{
		"an update of another Source": {Source: b.other, Updates: []Update{{Submission: b.in(StateWaiting)}}},
		"an update without a state":   {Source: b.source, Updates: []Update{{Submission: b.in(0)}}},
	} {
		if _, err := b.Write(ctx, in); err == nil {
			t.Errorf("%s is written", name)
		}
	}
}

// Work that fails has not happened, neither in the log nor in the store; work reads what
// it has written itself.
func TestDo(t *testing.T) {
	b := begin(t, event.Redirect)
	failure := errors.New("failure")
	err := b.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		out, err := tx.Write(ctx, &Batch{Source: b.source, Items: []*event.Item{accepted("urn:a")}, Updates: []Update{{Submission: b.in(StateProvisional)}},
			Replies: []StoredReply{{Request: [32]byte{1}, Disposition: []byte("<d/>")}}})
		if err != nil {
			return err
		}
		s, err := tx.Submission(ctx, out.IDs[0])
		if err != nil || s.State != StateProvisional || s.Set != "main" {
			t.Errorf("inside: %+v, %v", s, err)
		}
		if p, err := tx.Presence(ctx, b.source, "urn:a"); p != event.Present || err != nil {
			t.Errorf("inside: %v, %v", p, err)
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Error(err)
	}
	if c := b.counts(); len(c.Submissions) > 0 || len(b.kinds()) > 0 {
		t.Errorf("after a failure: %+v, %q", c, b.kinds())
	}
	if reply := b.reply(b.source, [32]byte{1}); reply != nil {
		t.Errorf("after a failure: %q", reply)
	}
}

// The hook makes every call of the log: what it does not let through does not happen.
func TestHook(t *testing.T) {
	b := begin(t, event.Redirect)
	ctx := t.Context()
	s := b.in(StateAccepted)
	s.SourceXML, s.SourceIdentifier, s.Assigned, s.Recipient = []byte("<source/>"), "1", "x", "https://maps.example/"
	calls := []func() error{
		func() error {
			_, err := b.Append(ctx, &event.Batch{Source: b.source, Mode: event.ModeSubmission, Items: []*event.Item{accepted("x")}})
			return err
		},
		func() error {
			_, err := b.Write(ctx, &Batch{Source: b.source, Updates: []Update{{Submission: s, Outgoing: &OutgoingNotification{Recipient: s.Recipient}}}})
			return err
		},
		func() error { return b.Do(ctx, func(context.Context, *store.Tx) error { return nil }) },
		func() error { _, err := b.OutgoingNotification(ctx, 1); return err },
		func() error { _, err := b.HasNewerAccepted(ctx, &s); return err },
	}
	broken := errors.New("broken")
	for i, call := range calls {
		commits, queries := 0, 0
		through := false
		b.Hook = func(query string, call func() error) error {
			if query == "" {
				commits++
			} else {
				queries++
			}
			if !through {
				return broken
			}
			return call()
		}
		if err := call(); !errors.Is(err, broken) {
			t.Errorf("call %d, which is not let through: %v", i, err)
		}
		through = true
		b.must(call())
		if want := 2; i < 3 && (commits != want || queries != 0) || i >= 3 && (commits != 0 || queries != want) {
			t.Errorf("call %d: %d commits and %d queries", i, commits, queries)
		}
	}
	b.Hook = nil
	if n, err := b.OutgoingNotification(ctx, 1); err != nil || n.Recipient != s.Recipient || len(b.kinds()) != 1 {
		t.Errorf("%+v, %v, events %q", n, err, b.kinds())
	}
	if _, err := b.OutgoingNotification(ctx, 2); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a notification that there is none of: %v", err)
	}
}

// Work that shares a transaction with others happens or not, whatever becomes of theirs:
// what one has undone leaves nothing in the database, and nothing in memory that the next
// one would build on.
func TestDo_Group(t *testing.T) {
	checks(t, 15)
	failure := errors.New("failure")
	rapid.Check(t, func(rt *rapid.T) {
		b := begin(t, event.Redirect)
		ctx := context.Background()
		want, provisional := map[string]bool{}, 0
		for range rapid.IntRange(1, 3).Draw(rt, "groups") {
			type caller struct {
				batch *Batch
				fails bool
			}
			var callers []caller
			for i := range rapid.IntRange(1, 8).Draw(rt, "callers") {
				name := fmt.Sprintf("urn:%d", rapid.IntRange(0, 5).Draw(rt, "record"))
				c := caller{&Batch{Source: b.source, URL: fmt.Sprintf("/sip/%d", rapid.IntRange(0, 2).Draw(rt, "url")), Items: []*event.Item{accepted(name)},
					Updates: []Update{{Submission: b.in(StateProvisional)}}, Replies: []StoredReply{{Request: [32]byte{byte(i)}, Disposition: []byte("<d/>")}},
					Incoming: []IncomingNotification{*received(i, NotificationUncorrelated, StateAccepted, "")}}, rapid.Bool().Draw(rt, "fails")}
				if !c.fails {
					want[name] = true
					provisional++
				}
				callers = append(callers, c)
			}
			// The first holds the writer, so that the others share its transaction.
			hold, held := make(chan struct{}), make(chan struct{})
			var wait sync.WaitGroup
			wait.Go(func() {
				if err := b.Do(ctx, func(context.Context, *store.Tx) error { close(held); <-hold; return nil }); err != nil {
					t.Error(err)
				}
			})
			<-held
			for _, c := range callers {
				wait.Go(func() {
					err := b.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
						_, err := tx.Write(ctx, c.batch)
						if err == nil && c.fails {
							err = failure
						}
						return err
					})
					if c.fails != errors.Is(err, failure) || !c.fails && err != nil {
						t.Errorf("it fails %v: %v", c.fails, err)
					}
				})
			}
			close(hold)
			wait.Wait()
		}
		if n := b.counts().Submissions[StateProvisional]; n != int64(provisional) {
			rt.Errorf("%d submissions, want %d", n, provisional)
		}
		for i := range 6 {
			name := fmt.Sprintf("urn:%d", i)
			if ev, err := b.Record(ctx, "main", event.Key(name)); (err == nil) != want[name] {
				rt.Errorf("%s is %+v, %v; want it %v", name, ev, err, want[name])
			}
		}
		found := b.findings()
		b.must(b.Log.Verify(ctx, func(f eventlog.Finding) { found = append(found, f.Where+": "+f.What) }))
		if len(found) > 0 {
			rt.Errorf("%q", found)
		}
	})
}

// reply returns what was replied to a request.
func (b *bench) reply(source event.SourceID, request [32]byte) (out []byte) {
	b.t.Helper()
	b.must(b.Do(context.Background(), func(ctx context.Context, tx *store.Tx) (err error) {
		out, err = tx.StoredReply(ctx, source, request)
		return err
	}))
	return out
}

func TestSubmissions(t *testing.T) {
	b := begin(t, event.Redirect)
	a := accepted("urn:a")
	var updates []Update
	for i, state := range []State{StateWaiting, StateProvisional, StateAccepted, StateWaiting, StateUnsent} {
		s := b.in(state)
		s.Record = []string{"urn:a", "urn:b"}[i%2]
		s.SourceXML = []byte("<source>" + s.Record + "</source>")
		s.Request = [32]byte{byte(i % 2), 1}
		updates = append(updates, Update{Submission: s})
	}
	updates[2].Item, updates[2].Submission.Assigned = a, "urn:a"
	updates[1].Submission.ImportPending = true
	ids := b.update(updates...)
	request := [32]byte{1, 1}
	for _, c := range []struct {
		name string
		q    Query
		want []int
	}{
		{"all", Query{}, []int{0, 1, 2, 3, 4}},
		{"set", Query{Set: "other"}, nil},
		{"source", Query{Source: b.source, Limit: 2}, []int{0, 1}},
		{"another source", Query{Source: b.other}, nil},
		{"after", Query{After: ids[1], Limit: 2}, []int{2, 3}},
		{"newest", Query{Newest: true, Limit: 2}, []int{4, 3}},
		{"newest before", Query{Newest: true, After: ids[3], Limit: 2}, []int{2, 1}},
		{"states", Query{States: []State{StateWaiting, StateUnsent}}, []int{0, 3, 4}},
		{"request", Query{Request: &request}, []int{1, 3}},
		{"import pending", Query{Source: b.source, ImportPending: true}, []int{1}},
		{"import pending of any source", Query{ImportPending: true}, []int{1}},
		{"import pending of another source", Query{Source: b.other, ImportPending: true}, nil},
		{"subject", Query{Subject: "<source>urn:b</source>"}, []int{1, 3}},
		{"open subject", Query{Subject: "<source>urn:a</source>", States: []State{StateWaiting, StateProvisional}}, []int{0}},
		{"no subject", Query{Subject: "urn:a"}, nil}, // it is that of a sent one only
	} {
		found, err := b.Submissions(context.Background(), c.q)
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
func TestSubmissionsDue(t *testing.T) {
	b := begin(t, event.Redirect)
	var updates []Update
	for _, due := range []event.Micros{30, 10, 0, 20, 20, 20, 10, 40} {
		s, other := b.in(StateProvisional), b.in(StateInDoubt)
		s.Due, other.Due = due, 10
		updates = append(updates, Update{Submission: s}, Update{Submission: other})
	}
	ids := b.update(updates...)
	want := []int64{ids[2], ids[12], ids[6], ids[8], ids[10], ids[0]}
	for _, limit := range []int{1, 2, 3, 100} {
		var got []int64
		var last *Submission
		for {
			page, err := b.SubmissionsDue(context.Background(), b.source, StateProvisional, 30, last, limit)
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
					b.update(Update{Submission: s})
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
			want = nil
		}
	}
	if found, err := b.SubmissionsDue(context.Background(), b.other, StateProvisional, 1000, nil, 100); err != nil || len(found) > 0 {
		t.Errorf("of another Source: %+v, %v", found, err)
	}
}

// A later version is one of the same Source with a higher number: of the same
// record where a target submits it, else with the same source element.
func TestHasNewerVersion(t *testing.T) {
	b := begin(t, event.Redirect)
	received := func(source string, state State) Update {
		s := b.in(state)
		s.SourceXML = []byte(source)
		return Update{Submission: s}
	}
	sent := func(record, source string, state State, assigned string) Update {
		s := received(source, state).Submission
		s.Record, s.Assigned, s.Seq = "urn:"+record, assigned, map[string]event.Seq{"a": 1, "b": 2}[record]
		return Update{Submission: s}
	}
	ids := b.update(
		received("<A/>", StateProvisional),
		received("<B/>", StateInDoubt),
		received("<A/>", StateUnsent),
		received("<A/>", StateRejected),
		sent("a", "<A/>", StateAccepted, "one"),
		sent("a", "<B/>", StateWaiting, ""),
		sent("a", "<other/>", StateAccepted, "two"),
		sent("b", "<A/>", StateAccepted, "one"),
	)
	all, only, unsent := States(), []State{StateAccepted}, []State{StateUnsent}
	for _, c := range []struct {
		of       int
		states   []State
		assigned string
		want     bool
	}{
		{0, all, "", true}, {0, unsent, "", true}, {0, only, "", false}, {0, []State{StateUnsent, StateRejected}, "", true},
		{2, unsent, "", false}, {2, all, "", true}, {3, all, "", false}, {1, all, "", false},
		{4, all, "", true}, {4, only, "two", true}, {4, only, "one", false}, {4, unsent, "", false},
		{5, only, "", true}, {5, only, "one", false}, {6, all, "", false}, {7, all, "", false},
	} {
		if got, err := b.HasNewerVersion(context.Background(), b.submission(ids[c.of]), c.states, c.assigned); err != nil || got != c.want {
			t.Errorf("later than %d, with %v as %q: %v, %v", c.of, c.states, c.assigned, got, err)
		}
	}
	other := *b.submission(ids[0])
	other.Source = b.other
	if got, err := b.HasNewerVersion(context.Background(), &other, all, ""); got || err != nil {
		t.Errorf("of another Source: %v, %v", got, err)
	}
}

// The same notification twice is one row, and one event. Replies are kept for a day.
func TestIncoming(t *testing.T) {
	b := begin(t, event.Redirect)
	note := IncomingNotification{Digest: [32]byte{1}, Verdict: NotificationRejected, Outcome: StateRejected, SourceIdentifier: "146", Reason: "out of range", SourceXML: []byte("<source/>")}
	request := [32]byte{5}
	out := b.write(&Batch{Items: []*event.Item{accepted("urn:b")},
		Rejections: []Rejection{{Rejection: event.Rejection{Record: "urn:a", SourceIdentifier: "145", Reason: "no", Title: "T"}}},
		Incoming:   []IncomingNotification{note, note},
		Replies:    []StoredReply{{Request: request, Disposition: []byte("<first/>")}}})
	if out.Rejected != 2 || out.Created != 1 || len(out.Outcomes) != 1 || out.Outcomes[0] != event.Logged {
		t.Fatalf("written: %+v", out)
	}
	if out = b.write(&Batch{Incoming: []IncomingNotification{note}, Replies: []StoredReply{{Request: request, Disposition: []byte("<d/>")}}}); out.Last != 0 {
		t.Errorf("the same notification again: %+v", out)
	}
	b.reopen()
	if got := b.kinds(); !slices.Equal(got, []string{"created urn:b", "rejected urn:a", "rejected "}) {
		t.Errorf("events: %q", got)
	}
	found := b.incoming(0)
	if len(found) != 1 || found[0].Times != 3 || found[0].Reason != note.Reason || string(found[0].SourceXML) != "<source/>" || found[0].Set != "main" || found[0].Source != b.source {
		t.Errorf("incoming: %+v", found)
	}
	if n, err := b.IncomingNotification(t.Context(), found[0].ID); err != nil || n.Digest != note.Digest {
		t.Errorf("by its number: %+v, %v", n, err)
	}
	if _, err := b.IncomingNotification(t.Context(), 99); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if got := b.reply(b.source, request); string(got) != "<d/>" || b.reply(b.other, request) != nil {
		t.Errorf("the reply: %q", got)
	}
	b.clock = b.clock.Add(24*time.Hour + time.Second)
	if got := b.reply(b.source, request); got != nil {
		t.Errorf("the reply a day later: %q", got)
	}
	b.write(&Batch{Replies: []StoredReply{{Request: [32]byte{6}, Disposition: []byte("<d/>")}}})
	rows := 0
	b.must(b.Each(t.Context(), "SELECT count(*) FROM reply", nil, func(r *sql.Rows) error { return r.Scan(&rows) }))
	if rows != 1 {
		t.Errorf("%d replies are kept", rows)
	}
	if c := b.counts(); c.Direct[StateRejected] != 1 || c.Direct[StateAccepted] != 1 || c.Incoming[NotificationRejected] != 1 {
		t.Errorf("counts: %+v", c)
	}
}

// A notification that came before its record was withdrawn does not bring the record
// back, and a new one does.
func TestIncomingOfWithdrawn(t *testing.T) {
	for _, content := range []event.Content{event.Redirect, event.Mirror} {
		b := begin(t, content)
		notify := func(notes ...byte) (events int) {
			in := &Batch{}
			for _, n := range notes {
				it := accepted("urn:a")
				if content == event.Mirror {
					it.Pending, it.Fetched = "not fetched yet", false
				}
				in.Incoming = append(in.Incoming, IncomingNotification{Digest: [32]byte{n}, Verdict: NotificationRecord, Outcome: StateAccepted, Item: it})
			}
			return b.write(in).Created
		}
		presence := func() event.Presence {
			p, err := b.Presence(context.Background(), b.source, "urn:a")
			b.must(err)
			return p
		}
		withdraw := func() {
			_, err := b.Append(context.Background(), &event.Batch{Source: b.source, Mode: event.ModeSubmission, Items: []*event.Item{{Observation: event.Observation{Record: "urn:a", Deleted: true}}}})
			b.must(err)
		}
		notify(1)
		withdraw()
		if p := presence(); p != event.Withdrawn {
			t.Fatalf("%v: withdrawn, and it is %v", content, p)
		}
		if n := notify(1, 1); n != 0 || presence() != event.Withdrawn {
			t.Errorf("%v: repeats have brought it back", content)
		}
		if notify(1, 2); presence() != event.Present {
			t.Errorf("%v: a new notification has not brought it back", content)
		}
		if found := b.incoming(NotificationRecord); len(found) != 2 || found[1].Times != 4 {
			t.Errorf("%v: incoming %+v", content, found)
		}
	}
}

// D40: what anonymous callers cause is no event, and the newest thousand of each kind are
// kept; what belongs to something, or comes from somebody who is known, stays.
func TestAnonymous(t *testing.T) {
	b := begin(t, event.Redirect)
	ctx := context.Background()
	note := func(n int, v NotificationVerdict, anonymous bool) IncomingNotification {
		return IncomingNotification{Digest: [32]byte{byte(n), byte(n >> 8), byte(v)}, Verdict: v, Outcome: StateRejected, SourceIdentifier: fmt.Sprint(n), Anonymous: anonymous}
	}
	out := b.write(&Batch{
		Incoming:   []IncomingNotification{note(0, NotificationRejected, false), note(0, NotificationRecord, true), note(0, NotificationUncorrelated, true)},
		Rejections: []Rejection{{Rejection: event.Rejection{SourceIdentifier: "known"}}},
		Updates:    []Update{{Submission: b.in(StateUnresolved)}},
	})
	if out.Rejected != 2 {
		t.Errorf("of two rejections of somebody who is known: %+v", out)
	}
	s := *b.submission(out.IDs[0])
	s.State = StateRejected
	b.update(Update{Submission: s, Settled: true, SettledNotification: b.incoming(NotificationUncorrelated)[0].ID})

	const many, most = 2200, 1000
	for i := 0; i < many; i += 100 {
		in := &Batch{}
		for n := i; n < i+100; n++ {
			verdict := NotificationRejected
			if n%2 == 0 {
				verdict = NotificationUncorrelated
			}
			in.Incoming = append(in.Incoming, note(n+1, verdict, true))
			in.Rejections = append(in.Rejections, Rejection{Anonymous: true, Rejection: event.Rejection{Record: "urn:a", SourceIdentifier: fmt.Sprint(n + 1), Reason: "no", Title: "T"}})
		}
		if out := b.write(in); out.Rejected != 0 {
			t.Fatalf("anonymous rejections are events: %+v", out)
		}
	}
	b.reopen()
	rows, err := b.Rejections(ctx, "main", 0, 10*many)
	b.must(err)
	if n := len(rows); n != most || rows[0].SourceIdentifier != fmt.Sprint(many) || rows[n-1].SourceIdentifier != fmt.Sprint(many-most+1) {
		t.Fatalf("%d rejections are kept", n)
	}
	if r := rows[0]; r.Set != "main" || r.Record != "urn:a" || r.Reason != "no" || r.Title != "T" || r.At == 0 || !r.Anonymous {
		t.Errorf("the newest: %+v", r)
	}
	older, err := b.Rejections(ctx, "main", rows[9].ID, 10)
	b.must(err)
	if len(older) != 10 || older[0].ID != rows[10].ID {
		t.Errorf("a page further: %+v", older)
	}
	counts := b.counts()
	for verdict, want := range map[NotificationVerdict]int{NotificationRejected: most/2 + 1, NotificationUncorrelated: most / 2, NotificationRecord: 1, NotificationSettled: 1} {
		if found := b.incoming(verdict); len(found) != want || counts.Incoming[verdict] != int64(want) {
			t.Errorf("%s: %d are kept, %d counted, want %d", verdict, len(found), counts.Incoming[verdict], want)
		}
	}
	if counts.Dropped != 2*(many-most) || counts.Direct[StateRejected] != many+1 {
		t.Errorf("counts: %+v", counts)
	}
}

func TestMain(m *testing.M) { os.Exit(testenv.WithPostgres(m).Run()) }

// TestOnServer: with the log on a PostgreSQL server all is as in a file. Plans are SQLite's
// own.
func TestOnServer(t *testing.T) {
	testenv.Heavy(t)
	server = testenv.SharedPostgres(t)
	defer func() { server = nil }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Updates", TestUpdates}, {"Do", TestDo}, {"Hook", TestHook}, {"Do_Group", TestDo_Group}, {"Submissions", TestSubmissions},
		{"SubmissionsDue", TestSubmissionsDue}, {"HasNewerVersion", TestHasNewerVersion}, {"Incoming", TestIncoming},
		{"IncomingOfWithdrawn", TestIncomingOfWithdrawn}, {"Anonymous", TestAnonymous},
		{"Verify_Columns", TestVerify_Columns}, {"Verify_Values", TestVerify_Values}, {"Verify_Source", TestVerify_Source},
	} {
		t.Run(c.name, c.test)
	}
	if testenv.Soaking() { // they make dozens of logs
		t.Run("Verify", TestVerify)
		t.Run("Verify_AnyHistory", TestVerify_AnyHistory)
	}
}

// checks is testenv.Checks, with fewer cases on a server, where a new log takes longer.
func checks(t *testing.T, n int) {
	t.Helper()
	if server != nil {
		n /= 5
	}
	testenv.Checks(t, n)
}
