package eventlogtest

import (
	"context"
	"math"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// submit appends a batch of what was submitted.
func (b *bench) submit(in *event.Batch) event.Appended {
	b.t.Helper()
	in.Mode, in.Source = event.ModeSubmission, b.sources[0]
	if in.Documents == nil {
		in.Documents = []event.Document{{URL: "/sip/main"}}
	}
	out, err := b.log.Append(context.Background(), in)
	b.must(err)
	return out
}

// A submission is newer than everything before, whatever its stamp, and takes part in no
// walk; the same bytes again are no event.
func testSubmitted(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	submitted := func(words string) string { return outcomes(b.submit(&event.Batch{Items: items(words)}).Outcomes) }
	b.want("new", submitted("a@5=x b@5=x"), "logged logged")
	b.want("an earlier stamp and other bytes", submitted("a@1=y"), "logged")
	b.want("the same bytes", submitted("a@9=y"), "unchanged")
	b.want("two of one record in a batch", submitted("a@9=z a@9=y a@9=y"), "logged logged unchanged")
	b.want("events", b.news(), "created a@5=x, created b@5=x, updated a@1=y, updated a@9=z, updated a@9=y")
	waits := items("c@1")
	waits[0].Pending, waits[0].Fetched = "not fetched yet", false
	out := b.submit(&event.Batch{Items: waits})
	b.want("without content", outcomes(out.Outcomes), "waiting")
	kept, err := b.log.Pending(context.Background(), b.sources[0], event.MicrosOf(b.clock.wall), 0, 10)
	b.must(err)
	if len(kept) != 1 || kept[0].Record != "urn:c" {
		t.Fatalf("due at once: %+v", kept)
	}
	b.want("when it is there", b.more(event.ModeSettle, "c@1"), "logged")
	p, err := b.log.Progress(context.Background(), b.sources[0])
	b.must(err)
	if _, err := b.log.Append(context.Background(), &event.Batch{Source: b.sources[0], Cursor: p.Cursor.Version, Rejections: make([]event.Rejection, 1)}); err == nil {
		t.Error("rejections were part of a walk")
	}
}

// A rejection is an event that belongs to no segment and no record.
func testRejected(t *testing.T) {
	b := begin(t, set{content: event.Redirect, segmentEvents: 2})
	ctx := context.Background()
	b.submit(&event.Batch{Items: items("a=x")})
	out := b.submit(&event.Batch{Items: items("b=x"), Rejections: []event.Rejection{
		{Record: "urn:a", SourceIdentifier: "145", Reason: "no", Title: "T"}, {SourceIdentifier: "146", Reason: "out of range"}}})
	if out.Rejected != 2 || out.Created != 1 || out.Last-out.First != 2 {
		t.Fatalf("appended: %+v", out)
	}
	b.submit(&event.Batch{Items: items("c=x")})
	b.reopen()
	b.want("events", b.news(), "created a=x, created b=x, rejected a, rejected , created c=x")
	b.want("live", b.now(), "a b c")
	b.want("live before the last", b.live(4), "a b")
	for seq, want := range map[event.Seq]event.Event{
		3: {Record: "urn:a", Title: "T", Origin: event.Origin{SourceIdentifier: "145", Reason: "no"}},
		4: {Origin: event.Origin{SourceIdentifier: "146", Reason: "out of range"}},
	} {
		got, err := b.log.Event(ctx, seq)
		b.must(err)
		if got.Kind != event.Rejected || got.Record != want.Record || got.Title != want.Title || got.Origin.Reason != want.Origin.Reason ||
			got.Origin.SourceIdentifier != want.Origin.SourceIdentifier || got.Origin.Document != "/sip/main" || got.Via.Href != "" || got.Entries() != 0 {
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
}

var presenceWords = [...]string{event.NeverPresent: "nothing", event.Present: "record", event.Withdrawn: "deletion"}

// holds returns the presence of a record at a Source.
func (b *bench) holds(source int, name string) string {
	b.t.Helper()
	h, err := b.log.Presence(context.Background(), b.sources[source], "urn:"+name)
	b.must(err)
	return presenceWords[h]
}

// A deletion that somebody has decided on keeps the reason. It also withdraws an
// observation that waits: content that arrives later is ignored.
func testWithdrawn(t *testing.T) {
	b := begin(t, set{content: event.Mirror})
	withdraw := func() string {
		in := &event.Batch{Items: items("-a")}
		in.Items[0].Reason = "spam"
		return outcomes(b.submit(in).Outcomes)
	}
	notified := func() string {
		it := items("a=x")
		it[0].Pending, it[0].Fetched = "not fetched yet", false
		return outcomes(b.submit(&event.Batch{Items: it}).Outcomes)
	}
	b.want("awaited", notified(), "waiting")
	b.want("its content comes", b.more(event.ModeSettle, "a=x"), "logged")
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
	b.want("again", notified(), "waiting")
	b.want("pending", b.holds(0, "a"), "record")
	b.want("withdrawn once more", withdraw(), "tombstone")
	b.want("too late", b.more(event.ModeSettle, "a=x"), "unchanged")
	b.want("none waits", b.holds(0, "a"), "deletion")
	if kept, err := b.log.Pending(context.Background(), b.sources[0], math.MaxInt64, 0, 10); err != nil || len(kept) != 0 {
		t.Errorf("%+v, %v", kept, err)
	}
}

// The presence of a Source follows from its own last report, whichever Source is the
// authority.
func testPresence(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "one", "two")
	other, err := set{name: "other", content: event.Redirect}.ensure(b.log, "three")
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
	b.want("the authority has dropped it", all("a"), "deletion record record")
	b.walkOf(0, "a@3=x")
	b.walkOf(1, "-a@3")
	b.want("the other one has dropped it", all("a"), "record deletion record")
	b.walkOf(0, "-a@4")
	b.want("both have", all("a"), "deletion deletion record")
	waits := &event.Batch{Start: true, Next: []byte("on"), Items: unfetched("a@9")}
	waits.Items[0].Pending = "503"
	b.batch(1, waits)
	b.want("it is awaited", all("a"), "deletion record record")
	b.sources, b.names = b.sources[:2], b.names[:2]
}
