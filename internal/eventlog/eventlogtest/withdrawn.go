package eventlogtest

import (
	"context"
	"math"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

var presenceWords = [...]string{event.NeverPresent: "nothing", event.Present: "record", event.Withdrawn: "deletion"}

// holds returns what a Source holds of a record.
func (b *bench) holds(source int, name string) string {
	b.t.Helper()
	h, err := b.log.Presence(context.Background(), b.sources[source], "urn:"+name)
	b.must(err)
	return presenceWords[h]
}

// A deletion that somebody has decided on keeps the reason. A notification that
// came before it does not bring the record back, and a new one does.
func testWithdrawn(t *testing.T) {
	for _, content := range []event.Content{event.Redirect, event.Mirror} {
		b := begin(t, Set{Content: content}, "one")
		outcome := "logged"
		if content == event.Mirror {
			outcome = "waiting"
		}
		// notify takes in notifications of a, each with an item of its own.
		notify := func(notes ...byte) string {
			in := &event.Batch{Items: items("other=x"), Submissions: &event.SubmissionBatch{}}
			for _, n := range notes {
				it := items("a=x")[0]
				if content == event.Mirror {
					it.Pending, it.Fetched = "not fetched yet", false
				}
				in.Items = append(in.Items, it)
				in.Submissions.Incoming = append(in.Submissions.Incoming, event.IncomingNotification{Digest: [32]byte{n}, Verdict: event.NotificationRecord, Outcome: event.StateAccepted, Item: len(in.Items)})
			}
			out := b.exchange(in)
			return outcomes(out.Outcomes[1:])
		}
		withdraw := func() string {
			in := &event.Batch{Items: items("-a")}
			in.Items[0].Reason = "spam"
			return outcomes(b.exchange(in).Outcomes)
		}
		waiting := func() int {
			kept, err := b.log.Pending(context.Background(), b.sources[0], math.MaxInt64, 0, 10)
			b.must(err)
			return len(kept)
		}
		b.want("the first", notify(1), outcome)
		if content == event.Mirror {
			b.want("its content comes", b.more(event.ModeSettle, "a=x"), "logged")
		}
		b.news()
		b.want("withdrawn", withdraw(), "logged")
		b.want("events", b.news(), "deleted a")
		last, err := b.log.LastSeq(context.Background())
		b.must(err)
		ev, err := b.log.Event(context.Background(), last)
		b.must(err)
		b.want("the reason", ev.Origin.Reason, "spam")
		b.reopen()
		b.want("it holds", b.holds(0, "a"), "deletion")
		b.want("repeats", notify(1, 1), " ")
		if n := waiting(); n != 0 || b.news() != "" {
			t.Errorf("%v: a repeat waits: %d", content, n)
		}
		b.want("a new one among repeats", notify(1, 2), " "+outcome)
		if content == event.Mirror {
			b.want("pending", b.holds(0, "a"), "record")
			b.want("a repeat while it is awaited", notify(2), "waiting")
			// What waits is withdrawn as well, and what comes of it is too late.
			b.want("withdrawn once more", withdraw(), "tombstone")
			b.want("too late", b.more(event.ModeSettle, "a=x"), "unchanged")
			b.want("none waits", b.holds(0, "a"), "deletion")
		}
		b.want("a repeat of the new one", b.holds(0, "a")+notify(2), map[event.Content]string{event.Mirror: "deletion", event.Redirect: "recordunchanged"}[content])
		found, err := b.log.Incoming(context.Background(), "main", event.NotificationRecord, 0, 10)
		b.must(err)
		if len(found) != 2 || found[1].Times != 4 {
			t.Errorf("%v: notifications %+v", content, found)
		}
		in := &event.Batch{Mode: event.ModeSubmission, Source: b.sources[0], Items: items("a=x"), Submissions: &event.SubmissionBatch{Incoming: []event.IncomingNotification{{Item: 2}}}}
		if _, err := b.log.Append(context.Background(), in); err == nil {
			t.Error("a notification of an item that is not there is taken")
		}
	}
}

// What a Source has is what it last said itself, whichever Source is the authority.
func testPresence(t *testing.T) {
	b := begin(t, Set{Content: event.Redirect}, "one", "two")
	other, err := b.log.Make(context.Background(), Set{Name: "other", Content: event.Redirect}, "three")
	b.must(err)
	b.sources, b.names = append(b.sources, other...), append(b.names, "three")
	b.walkOf(1, "a@1=x")
	b.walkOf(0, "b@1=y -c@1")
	b.walkOf(2, "a@1=x")
	all := func(name string) string { return b.holds(0, name) + " " + b.holds(1, name) + " " + b.holds(2, name) }
	b.want("one has it", all("a"), "nothing record record")
	b.want("another one", all("b"), "record nothing nothing")
	b.want("deleted before it was seen", all("c"), "deletion nothing nothing")
	b.want("nobody has it", all("z"), "nothing nothing nothing")
	b.walkOf(0, "a@1=w")
	b.want("two have it", all("a"), "record record record")
	b.walkOf(0, "-a@2")
	b.want("the speaker has dropped it", all("a"), "deletion record record")
	b.walkOf(0, "a@3=x")
	b.walkOf(1, "-a@3")
	b.want("who is silent has dropped it", all("a"), "record deletion record")
	b.walkOf(0, "-a@4")
	b.want("both have", all("a"), "deletion deletion record")
	waits := &event.Batch{Start: true, Next: []byte("on"), Items: unfetched("a@9")}
	waits.Items[0].Pending = "503"
	b.batch(1, waits)
	b.want("it is awaited", all("a"), "deletion record record")
	b.sources, b.names = b.sources[:2], b.names[:2]
}
