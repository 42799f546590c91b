package eventlogtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// An event that was appended can be read, with its place, its time and its origin.
func testEvents(t *testing.T) {
	b := begin(t, set{content: event.Reference})
	ctx := context.Background()
	changed := b.log.Changed()
	doc := event.Document{URL: "https://source.example/2.atom", FeedID: "urn:feed", FeedTitle: "A \"feed\"", FeedUpdated: event.StampFromNanos(-7)}
	full := event.Observation{
		Record: "an identifier with spaces, \"quotes\" and \xff", Title: "Title", Order: event.StampFromNanos(1_700_000_000_000_000_001), Modified: event.StampFromNanos(1_700_000_000_123_456_789),
		Representations: []event.Representation{
			{Href: "https://source.example/1.rdf", Type: "application/rdf+xml", Length: event.NoLength},
			{Href: "https://source.example/1.xml", Type: "text/xml; charset=utf-8", Length: 0, Hash: "md5:1 sha-256:2"},
			{Href: "https://source.example/2.xml", Type: "text/xml", Length: 1 << 40, Hash: "x:y"}},
		Preferred: 1, SourceIdentifier: "its own", Loc: "https://source.example/loc",
		Via:   event.Link{Href: "https://origin.example/", Type: "text/html", Length: 9, Hash: "x:z", Modified: event.StampFromNanos(5)},
		Links: []event.Link{{Rel: "describedby", Href: "https://source.example/about", Length: event.NoLength}},
	}
	plain := event.Observation{Record: "plain", Representations: []event.Representation{{Href: "https://source.example/p", Length: event.NoLength}}}
	batch := &event.Batch{Documents: []event.Document{{URL: "https://source.example/1.atom"}, doc}, Items: []*event.Item{{Observation: full, Document: 1}, {Observation: plain}}}
	out := b.batch(0, batch)
	if out.First != 1 || out.Last != 2 || out.Created != 2 || out.Updated+out.Deleted+len(out.Broken) != 0 {
		t.Errorf("appended: %+v", out)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody was told of the new events")
	}
	b.reopen()
	want := &event.Event{Seq: 1, Set: "main", Record: full.Record, Kind: event.Created, Observed: event.MicrosOf(b.clock.wall) + 1, Modified: full.Modified, Title: "Title",
		Representations: full.Representations, Preferred: 1, Via: full.Via, Links: full.Links, Loc: full.Loc,
		Origin: event.Origin{Protocol: "atom-pmh", Source: "one", Document: doc.URL, FeedID: doc.FeedID, FeedTitle: doc.FeedTitle, FeedUpdated: doc.FeedUpdated, SourceIdentifier: "its own"}}
	got, err := b.log.Event(ctx, 1)
	b.must(err)
	for i := range want.Representations {
		want.Representations[i].Name = []string{"rdf", "xml", "2a3a3b1b.xml"}[i]
	}
	want.Representations[2].Name = got.Representations[2].Name
	if !reflect.DeepEqual(got, want) {
		t.Errorf("event:\n got %+v\nwant %+v", got, want)
	}
	got, err = b.log.Event(ctx, 2)
	b.must(err)
	if got.Via.Href != plain.Representations[0].Href || got.Observed != want.Observed+1 || got.Loc != got.Via.Href || got.Origin.Document != "https://source.example/1.atom" {
		t.Errorf("event 2: %+v", got)
	}
	gone := items("-x")[0]
	gone.Record, gone.Modified = full.Record, event.StampFromNanos(1_800_000_000_000_000_000)
	gone.Order = gone.Modified
	b.batch(0, &event.Batch{Items: []*event.Item{gone}})
	got, err = b.log.Event(ctx, 3)
	b.must(err)
	if got.Kind != event.Deleted || got.Title != "Title" || got.Via.Href != full.Via.Href || got.Via.Modified != full.Via.Modified || // D12: an inherited link as it came
		got.Modified != gone.Modified || len(got.Representations) != 0 ||
		got.Loc != full.Loc || got.Origin.Document != "one/feed" || got.Origin.SourceIdentifier != "its own" {
		t.Errorf("the deletion: %+v", got)
	}
	if _, err := b.log.Event(ctx, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("event 4: %v", err)
	}
}

// D151: the cursor of a walk that changes nothing need not be stored. It counts in the
// process, and is stored with the first change.
func testLazy(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@5=x b@5=x")
	b.end(0)
	b.reopen()
	stored, err := b.log.Progress(context.Background(), b.sources[0])
	b.must(err)
	lazily := func(start bool, next, words string) {
		t.Helper()
		in := &event.Batch{Start: start, Items: items(words), Lazy: true}
		if next != "" {
			in.Next = []byte(next)
		}
		out := b.batch(0, in)
		p, err := b.log.Progress(context.Background(), b.sources[0])
		b.must(err)
		if string(p.Cursor.Data) != next || p.Cursor.Version != out.Cursor {
			t.Errorf("after %q the cursor is %+v, want %q of version %d", words, p.Cursor, next, out.Cursor)
		}
		if _, err := b.log.Append(context.Background(), &event.Batch{Source: b.sources[0], Cursor: out.Cursor - 1, Next: []byte("x")}); !errors.Is(err, event.ErrConflict) {
			t.Errorf("after %q, with an old cursor: %v", words, err)
		}
	}
	lazily(true, "one", "a@5=x")
	lazily(false, "two", "b@5=x")
	lazily(false, "", "")
	lazily(true, "three", "a@5=x")
	b.reopen()
	if p, err := b.log.Progress(context.Background(), b.sources[0]); err != nil || p.Cursor.Data != nil || p.Cursor.Version != stored.Cursor.Version {
		t.Errorf("what changed nothing was stored: %+v, %v, it was %+v", p, err, stored)
	}
	lazily(true, "one", "a@5=x")
	lazily(false, "two", "c@1=x")
	lazily(false, "three", "b@5=x")
	b.reopen()
	if p, err := b.log.Progress(context.Background(), b.sources[0]); err != nil || string(p.Cursor.Data) != "two" {
		t.Errorf("the cursor of the last change is not stored: %+v, %v", p, err)
	}
	b.want("what the walk has seen is stored too", b.more(event.ModeWalk, "a@4=y b@4=y"), "historical regressed")
	lazily(false, "four", "")
	b.clock.pass(time.Hour)
	lazily(false, "five", "")
	b.reopen()
	if p, err := b.log.Progress(context.Background(), b.sources[0]); err != nil || string(p.Cursor.Data) != "five" {
		t.Errorf("a walk was ahead for long: %+v, %v", p, err)
	}
	lazily(false, "", "")
	b.reopen()
	if p, err := b.log.Progress(context.Background(), b.sources[0]); err != nil || p.Cursor.Data != nil {
		t.Errorf("the end of a walk that was stored is not: %+v, %v", p, err)
	}
}

// I2: events, state and cursor commit together, by compare-and-swap.
func testCursor(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	ctx := context.Background()
	first := b.batch(0, &event.Batch{Start: true, Next: []byte("one"), Items: items("a@1=x")})
	for _, wrong := range []int64{first.Cursor - 1, first.Cursor + 1} {
		out, err := b.log.Append(ctx, &event.Batch{Source: b.sources[0], Cursor: wrong, Next: []byte("two"), Items: items("b@1=x"),
			Quarantine: []event.Quarantined{{Input: []byte("bad")}}})
		if !errors.Is(err, event.ErrConflict) || out.Last != 0 {
			t.Errorf("with cursor %d: %+v, %v", wrong, out, err)
		}
	}
	b.want("events", b.news(), "created a@1=x")
	if list, err := b.log.Quarantined(ctx, ""); err != nil || len(list) != 0 {
		t.Errorf("a batch that failed has left %v, %v", list, err)
	}
	p, err := b.log.Progress(ctx, b.sources[0])
	b.must(err)
	if p.Cursor.Version != first.Cursor || string(p.Cursor.Data) != "one" {
		t.Errorf("cursor %+v", p.Cursor)
	}
	// The records that were seen are also as they were.
	b.want("the walk goes on", outcomes(b.batch(0, &event.Batch{Next: []byte("two"), Items: items("a@1=y b@1=x")}).Outcomes), "historical logged")
	if _, err := b.log.Append(ctx, &event.Batch{Source: 99}); err == nil {
		t.Error("a Source that is not there is accepted")
	}
	// Of many batches with the same cursor one is committed.
	p, err = b.log.Progress(ctx, b.sources[0])
	b.must(err)
	won := make(chan bool)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := b.log.Append(ctx, &event.Batch{Source: b.sources[0], Cursor: p.Cursor.Version, Next: []byte("x"), Items: items(fmt.Sprintf("c%d@1=x", i))})
			if err != nil && !errors.Is(err, event.ErrConflict) {
				t.Error(err)
			}
			won <- err == nil
		})
	}
	n := 0
	for range 20 {
		if <-won {
			n++
		}
	}
	wg.Wait()
	if last, err := b.log.LastSeq(ctx); n != 1 || last != 3 || err != nil {
		t.Errorf("%d batches won, the log ends with %d, %v", n, last, err)
	}
}

// The log keeps the harvest's other progress as it is.
func testProgress(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	for i, p := range []event.Progress{
		{},
		{Cursor: event.Cursor{Data: []byte("x")}, Mark: event.StampFromNanos(-1), Memory: []byte("\x00memory\xff"), Gap: "a gap"},
		{Cursor: event.Cursor{Data: []byte("\x00")}, Mark: event.StampFromNanos(0), Memory: []byte{}},
		{Cursor: event.Cursor{Data: []byte("data")}},
	} {
		b.batch(0, &event.Batch{Next: p.Cursor.Data, Progress: &p})
		b.batch(0, &event.Batch{Next: p.Cursor.Data})
		b.reopen()
		got, err := b.log.Progress(context.Background(), b.sources[0])
		b.must(err)
		if got.Mark != p.Mark || !bytes.Equal(got.Memory, p.Memory) || got.Gap != p.Gap || !bytes.Equal(got.Cursor.Data, p.Cursor.Data) ||
			(got.Cursor.Data == nil) != (p.Cursor.Data == nil) {
			t.Errorf("%d: got %+v, want %+v", i, got, p)
		}
	}
	if _, err := b.log.Progress(context.Background(), 99); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a Source that is not there: %v", err)
	}
}

// The log refuses a batch that no caller should send, and goes on.
func testRefused(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	for name, change := range map[string]func(*event.Batch){
		"no identifier":        func(in *event.Batch) { in.Items[1].Record = "" },
		"document not there":   func(in *event.Batch) { in.Items[1].Document = 1 },
		"document -1":          func(in *event.Batch) { in.Items[1].Document = -1 },
		"empty cursor":         func(in *event.Batch) { in.Next = []byte{} },
		"preferred not there":  func(in *event.Batch) { in.Items[1].Preferred = 1 },
		"preferred -1":         func(in *event.Batch) { in.Items[1].Preferred = -1 },
		"nothing is preferred": func(in *event.Batch) { in.Items[1].Preferred, in.Items[1].Representations = 1, nil },
	} {
		in := &event.Batch{Start: true, Next: []byte("on"), Items: items("a@1=x b@1=x")}
		change(in)
		b.want(name, failure(b, in), "error")
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.log.Append(canceled, &event.Batch{Source: b.sources[0]}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	b.walk("a@1=x b@1=x")
	b.want("events", b.news(), "created a@1=x, created b@1=x")
}

// I3: Observed is strictly increasing inside a set, whatever the clock does, also
// across restarts.
func testObserved(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	var last event.Micros
	n := 0
	check := func(what string) {
		t.Helper()
		n++
		b.walk(fmt.Sprintf("a@%d=%d b@%d=%d", n, n, n, n))
		for ev, err := range b.log.Events(context.Background(), "main", event.Range{After: b.seen, Upto: math.MaxInt64}) {
			b.must(err)
			if ev.Observed <= last {
				t.Errorf("%s: event %d observed at %v, not after %v", what, ev.Seq, ev.Observed, last)
			}
			last, b.seen = ev.Observed, ev.Seq
		}
		if got := event.MicrosOf(b.clock.wall); last < got {
			t.Errorf("%s: observed at %v, the clock says %v", what, last, got)
		}
	}
	check("first")
	for _, d := range []time.Duration{time.Hour, -time.Hour, -10 * 365 * 24 * time.Hour, 0, time.Hour, 10 * 365 * 24 * time.Hour} {
		b.clock.wall = b.clock.wall.Add(d)
		b.clock.running += time.Second
		check(fmt.Sprint("running, clock moved by ", d))
	}
	for _, d := range []time.Duration{-time.Hour, -5 * 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour, 300 * 24 * time.Hour} {
		b.stop()
		b.clock.wall = b.clock.wall.Add(d)
		b.start()
		check(fmt.Sprint("restarted, clock moved by ", d))
	}
}

// I3: in a running process a clock that jumps ahead by more than a day stops
// appending until it is put right or confirmed; reading goes on.
func testClockJump(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@1=x")
	b.clock.pass(100 * 24 * time.Hour)
	b.walk("b@1=x")
	b.clock.wall = b.clock.wall.Add(23 * time.Hour)
	b.walk("c@1=x")
	good := b.clock.wall
	b.clock.wall = good.Add(10 * 365 * 24 * time.Hour)
	for range 2 {
		if _, err := b.try(0, &event.Batch{Start: true, Items: items("d@1=x")}); !errors.Is(err, event.ErrClock) {
			t.Errorf("ten years ahead: %v", err)
		}
	}
	b.want("reading goes on", b.now(), "a b c")
	b.clock.wall = good
	b.walk("d@1=x")
	b.options.AcceptClock = true
	b.reopen()
	b.clock.wall = good.Add(10 * 365 * 24 * time.Hour)
	b.walk("e@1=x")
	b.want("live", b.now(), "a b c d e")
}

// I3, D142: a clock that is years ahead of what the log has seen, or was never
// set, is refused when the log is opened, and trusted without a restart once it
// is right; it does not make the right one look wrong.
func testClockAtStart(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@1=x")
	right := b.clock.wall
	names := "a"
	for name, wall := range map[string]time.Time{"ten years ahead": right.AddDate(10, 0, 0), "in 1970": time.Unix(86400, 0)} {
		b.clock.wall = wall
		b.reopen()
		for range 2 {
			if _, err := b.try(0, &event.Batch{Start: true, Items: items("d@1=x")}); !errors.Is(err, event.ErrClock) {
				t.Errorf("%s: %v", name, err)
			}
			b.clock.running += time.Hour
			b.clock.wall = b.clock.wall.Add(time.Hour)
		}
		b.want("reading goes on", b.now(), names)
		right = right.Add(48 * time.Hour) // it was off for a while
		b.clock.wall = right
		id := string(rune('a' + len(strings.Fields(names))))
		b.walk(id + "@1=x")
		names += " " + id
		b.clock.wall = right.AddDate(0, 0, 2)
		if _, err := b.try(0, &event.Batch{Start: true, Items: items("d@1=x")}); !errors.Is(err, event.ErrClock) {
			t.Errorf("%s, then right, then two days ahead: %v", name, err)
		}
		b.clock.wall = right
	}
	b.clock.wall = right.AddDate(10, 0, 0)
	b.options.AcceptClock = true
	b.reopen()
	b.walk("z@1=x")
	b.want("live", b.now(), names+" z")
}

// The state at every position, now and afterwards.
func testLive(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	live := map[string]bool{}
	var then []string
	b.want("nothing", b.live(0), "")
	for i := range 40 {
		b.walk(fmt.Sprintf("%sr%d@%d=%d", []string{"", "", "-"}[i%3], i*7%11, i, i))
		b.end(0)
		last, err := b.log.LastSeq(context.Background())
		b.must(err)
		now := b.live(last)
		if int(last) > len(then) {
			then = append(then, now)
		}
	}
	for i, want := range then {
		b.want(fmt.Sprint("live at ", i+1), b.live(event.Seq(i+1)), want)
	}
	for ev, err := range b.log.Live(context.Background(), "main", event.Seq(len(then))) {
		b.must(err)
		live[ev.Record] = true
		break // a reader that stops early
	}
	if len(live) != 1 {
		t.Errorf("%d", len(live))
	}
	for _, err := range b.log.Live(context.Background(), "none", 1) {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a set that is not there: %v", err)
		}
	}
}

// A record is found by its key, with its last event, deleted or not.
func testRecord(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	ctx := context.Background()
	b.walk("a@1=x b@1=x -c@1")
	b.walk("b@2=y -a@2")
	a, err := b.log.Record(ctx, "main", event.Key("urn:a"))
	b.must(err)
	r, err := b.log.Record(ctx, "main", event.Key("urn:b"))
	b.must(err)
	b.want("a", tell(a), "deleted a@2")
	b.want("b", tell(r), "updated b@2=y")
	b.want("a, after b was asked for", tell(a), "deleted a@2")
	for _, c := range []struct{ set, key string }{{"main", event.Key("urn:c")}, {"main", event.Key("urn:z")}, {"none", event.Key("urn:a")}, {"main", "short"}, {"main", event.Key("urn:a") + "x"}} {
		if ev, err := b.log.Record(ctx, c.set, c.key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s in %s: %v, %v", c.key, c.set, ev, err)
		}
	}
	b.submit(&event.Batch{Rejections: []event.Rejection{{Record: "urn:b", Reason: "no"}}})
	// Those of a@1, b@1, b@2, -a@2, the rejection, and one that there is not; more than
	// fit into one query.
	seqs := []event.Seq{5, 4, 3, 2, 1, 99}
	for range 300 {
		seqs = append(seqs, 3, 1)
	}
	latest, err := b.log.Latest(ctx, "main", seqs)
	b.must(err)
	if want := map[event.Seq]bool{3: true, 4: true}; !maps.Equal(latest, want) {
		t.Errorf("the last events are %v, want %v", latest, want)
	}
}

// Many connections read while one writes: in another Log, and nested; none sees a part of
// a batch.
func testReaders(t *testing.T) {
	b := begin(t, set{content: event.Redirect, segmentEvents: 10})
	ctx := context.Background()
	if second, err := eventlog.Open(ctx, b.folder, b.options); err == nil {
		t.Error("two write the same log")
		b.must(second.Close())
	}
	b.walk("")
	beside, err := eventlog.Open(ctx, b.folder, eventlog.Options{ReadOnly: true, Clock: b.clock.read})
	b.must(err)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 6 {
		log := []*eventlog.Log{b.log, beside}[i%2]
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				set, err := log.Set(ctx, "main")
				if err != nil {
					t.Error(err)
					return
				}
				n := event.Seq(0)
				for ev, err := range log.Events(ctx, "main", event.Range{Upto: set.Last}) {
					if err != nil || ev.Seq != n+1 {
						t.Errorf("event %d after %d, %v", ev.Seq, n, err)
						return
					}
					n = ev.Seq
				}
				if n%7 != 0 || n != set.Last {
					t.Errorf("a reader sees %d events of %d", n, set.Last)
					return
				}
			}
		})
	}
	for i := range 20 {
		words := ""
		for j := range 7 {
			words += fmt.Sprintf("r%d@1=x ", i*7+j)
		}
		b.batch(0, &event.Batch{Next: []byte("on"), Items: items(words)})
	}
	close(done)
	wg.Wait()
	if _, err := beside.Append(ctx, &event.Batch{Source: b.sources[0]}); err == nil {
		t.Error("a log that was opened for reading takes a batch")
	}
	b.must(beside.Close())
	if _, err := eventlog.Open(ctx, t.TempDir(), eventlog.Options{ReadOnly: true}); err == nil {
		t.Error("a log that is not there is opened for reading")
	}
}

// A dry run shows what would be logged, and leaves nothing behind.
func testDryRun(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@1=x")
	b.end(0)
	b.stop()
	b.options.DryRun = true
	b.start()
	b.walk("a@2=y b@1=x")
	b.want("failure", failure(b, &event.Batch{Items: items("c@1=x"), Start: true, Documents: []event.Document{{}, {}}, Quarantine: nil, Cursor: 0, Source: 0, Mode: event.ModeWalk}), "none")
	b.want("live", b.now(), "a b c")
	if _, err := b.log.Append(context.Background(), &event.Batch{Source: b.sources[0], Cursor: 99, Items: items("d@1=x")}); !errors.Is(err, event.ErrConflict) {
		t.Error(err)
	}
	b.want("live after a batch failed", b.now(), "a b c")
	b.stop()
	b.options.DryRun = false
	b.start()
	b.want("live afterwards", b.now(), "a")
	b.want("events", b.news(), "created a@1=x")

	folder := t.TempDir() + "/new"
	l, err := eventlog.Open(context.Background(), folder, eventlog.Options{DryRun: true, Clock: b.clock.read})
	b.must(err)
	sources, err := set{name: "main", content: event.Redirect}.ensure(l, "one")
	b.must(err)
	out, err := l.Append(context.Background(), &event.Batch{Source: sources[0], Items: items("a@1=x")})
	if err != nil || out.Created != 1 {
		t.Errorf("a dry run without a log: %+v, %v", out, err)
	}
	b.must(l.Close())
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dry run has left something behind: %v", err)
	}
}

// A closed log answers with errors.
func testClosed(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@1=x")
	b.stop()
	ctx := context.Background()
	_, append := b.log.Append(ctx, &event.Batch{Source: b.sources[0]})
	_, needs := b.log.NeedsContent(ctx, &event.Batch{Source: b.sources[0]})
	_, sets := b.log.Sets(ctx)
	_, last := b.log.LastSeq(ctx)
	_, _, absent := b.log.CountAbsent(ctx, b.sources[0], event.Stamp{})
	var events error
	for _, events = range b.log.Events(ctx, "", event.Range{Upto: 9}) {
	}
	for i, err := range []error{append, needs, sets, last, absent, events} {
		if err == nil {
			t.Errorf("%d: a closed log answers", i)
		}
	}
	b.must(b.log.Close())
	b.start()
	b.want("live", b.now(), "a")
}
