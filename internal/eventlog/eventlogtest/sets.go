package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// A15: of the Sources that have a record the first is its authority. The reports of the
// others are suppressed, and count once the authority has dropped the record.
func testSources(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "one", "two", "three")
	for _, step := range []struct {
		source                 int
		says, outcomes, events string
	}{
		{1, "a@5=two", "logged", "created a@5=two"},
		{2, "a@9=three", "suppressed", ""},
		{0, "a@1=one", "logged", "updated a@1=one"},
		{1, "a@6=two2", "suppressed", ""},
		{0, "-a@2", "logged", "updated a@6=two2"},
		{0, "a@3=two2", "logged", ""}, // the same state: nothing to log
		{1, "-a@7", "suppressed", ""},
		{0, "-a@4", "logged", "updated a@9=three"},
		{2, "-a@10", "logged", "deleted a@10"},
		{1, "-a@11", "tombstone", ""},
		{1, "a@12=two", "logged", "created a@12=two"},
	} {
		got := b.walkOf(step.source, step.says)
		if step.events == "" && step.outcomes == "logged" {
			step.outcomes = "unchanged"
		}
		b.want(fmt.Sprintf("outcomes of %s by %d", step.says, step.source), got, step.outcomes)
		b.want(fmt.Sprintf("events of %s by %d", step.says, step.source), b.news(), step.events)
		b.end(step.source)
		b.reopen()
	}
	// Absence of one Source is no deletion while another has the record.
	b.walkOf(0, "a@20=one b@1=one")
	b.end(0)
	b.walkOf(1, "")
	b.news()
	b.want("absent at two", b.moreOf(1, event.ModeAbsent, "-a -b"), "suppressed unchanged")
	b.want("events", b.news(), "")
	b.want("live", b.now(), "a b")
}

// When a Source gets another kind, what was logged of it keeps the protocol by which it came,
// and the link to the original that goes with it.
func testSourceKinds(t *testing.T) {
	b := begin(t, set{content: event.Redirect, kind: "oaipmh"})
	ctx := context.Background()
	var want []string
	for n, kind := range []struct{ kind, protocol string }{{"oaipmh", "oai-pmh false"}, {"resourcesync", "resourcesync true"}, {"oaipmh", "oai-pmh false"}, {"atompmh", "atom-pmh true"}} {
		b.set.kind = kind.kind
		b.reopen()
		p, err := b.log.Progress(ctx, b.sources[0])
		b.must(err)
		it := items(fmt.Sprintf("%c@%d=x", 'a'+n, n+1))
		it[0].Representations = []event.Representation{{Href: "https://source.example/1", Type: "text/xml", Length: 7, Hash: "x:y"}}
		_, err = b.log.Append(ctx, &event.Batch{Source: b.sources[0], Cursor: p.Cursor.Version, Start: true, Documents: []event.Document{{URL: "https://source.example/"}}, Items: it})
		b.must(err)
		want = append(want, kind.protocol)
		var got []string
		for ev, err := range b.log.Events(ctx, "main", event.Range{Upto: math.MaxInt64}) {
			b.must(err)
			got = append(got, fmt.Sprint(ev.Origin.Protocol, " ", ev.Via.Hash == "x:y" && ev.Via.Length == 7))
		}
		if !slices.Equal(got, want) {
			t.Errorf("as %s the events are %q, want %q", kind.kind, got, want)
		}
	}
}

// A15: when the order of the configuration changes, the Source that is now the first
// becomes the authority when the record is next seen at it, even without a change. A
// Source that is no longer configured ranks last.
func testSourcesOrder(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "one", "two")
	b.walkOf(0, "a@5=one b@5=one")
	b.end(0)
	b.walkOf(1, "a@6=two b@6=two")
	b.end(1)
	b.want("events", b.news(), "created a@5=one, created b@5=one")
	b.names = []string{"two", "one"}
	b.reopen()
	b.want("two goes first", b.walkOf(0, "a@6=two"), "unchanged")
	b.end(0)
	b.want("events", b.news(), "updated a@6=two")
	b.names = []string{"three", "one"}
	b.reopen()
	b.want("three, new", b.walkOf(0, "a@1=three"), "logged")
	b.end(0)
	b.want("one is before two again", b.walkOf(1, "b@5=one a@5=one"), "unchanged unchanged")
	b.end(1)
	b.want("events", b.news(), "updated a@1=three")
	b.walkOf(0, "-a@2")
	b.end(0)
	b.want("three drops it: one, not two, which is configured no more", b.news(), "updated a@5=one")
}

// A15: any report of a Source about the record is enough for that.
func testSourcesOrderMet(t *testing.T) {
	waits := items("a@6=new")
	waits[0].Pending, waits[0].Fetched = "no answer", false
	stamped, listed := items("a@5=x"), baseline(5, "a=x")
	for _, c := range []struct {
		name, kind       string
		content          event.Content
		has              []*event.Item
		says             [][]*event.Item
		outcomes, events string
	}{
		{"bad", "atompmh", event.Redirect, stamped, [][]*event.Item{items("!a@6")}, "bad", "updated a@5=x"},
		{"not selected", "atompmh", event.Redirect, stamped, [][]*event.Item{items("~a@6")}, "unselected", "updated a@5=x"},
		{"regressed", "atompmh", event.Redirect, stamped, [][]*event.Item{items("a@4=old")}, "regressed", "updated a@5=x"},
		{"without its content", "atompmh", event.Mirror, stamped, [][]*event.Item{waits}, "waiting", "updated a@5=x"},
		{"an older change", "resourcesync", event.Redirect, listed, [][]*event.Item{placed(1, "a@3=old"), listed}, "historical historical", "updated a=x"},
		{"a bad change", "resourcesync", event.Redirect, listed, [][]*event.Item{placed(1, "!a@6"), listed}, "bad historical", "updated a=x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := begin(t, set{content: c.content, kind: c.kind}, "one")
			b.pass(c.has)
			b.names = []string{"two", "one"}
			b.reopen()
			other := copies(c.has)
			other[0].Title = "another"
			b.pass(other)
			b.names = []string{"one", "two"}
			b.reopen()
			b.news()
			b.want("outcomes", b.pass(c.says...), c.outcomes)
			b.want("events", b.news(), c.events)
		})
	}
}

// In mode reference a record that moves has two entries. The first of several records
// that share a URI owns it; when the owner leaves, another one becomes the owner, and the
// URI is deleted when the last one leaves (D109).
func testLocs(t *testing.T) {
	b := begin(t, set{content: event.Reference})
	for _, step := range []struct {
		says, events string
		entries      int
	}{
		{"a@1=x b@1=y", "created a@1=x at a, created b@1=y at b", 2},
		{"a>m@2=x", "updated a@2=x at m gone a arrived", 4},
		{"b>m@2=y", "updated b@2=y at m gone b unlisted", 5},
		{"c>m@1=z", "created c@1=z at m unlisted", 5},
		{"a>m@3=w", "updated a@3=w at m", 6},
		{"a>n@4=w", "updated a@4=w at n gone m arrived, updated c@1=z at m arrived", 9},
		{"-b@5", "deleted b@5 at m unlisted", 9},
		{"-c@5", "deleted c@5 at m", 10},
		{"b>a@6=x a>b@6=x", "created b@6=x at a, updated a@6=x at b gone n arrived", 13},
		{"b>b@7=x -a@7 b>a@8=x", "updated b@7=x at b gone a unlisted, deleted a@7 at b, updated b@7=x at b arrived, updated b@8=x at a gone b arrived", 18},
	} {
		b.walk(step.says)
		b.want("events of "+step.says, b.news(), step.events)
		b.end(0)
		b.reopen()
		segments, err := b.log.Segments(context.Background(), "main")
		b.must(err)
		if n := segments[0].Entries; n != step.entries {
			t.Errorf("after %s the segment has %d entries, want %d", step.says, n, step.entries)
		}
	}
	b.walk("c>a@9=x d>e@1=x")
	last, err := b.log.LastSeq(context.Background())
	b.must(err)
	b.want("live", b.live(last), "b c d")
	b.want("listed: the one that owns the URI", b.records(b.log.Listed(context.Background(), "main", last)), "b d")
	b.want("listed before", b.records(b.log.Listed(context.Background(), "main", last-1)), "b")
}

// An address that is no URI is logged as one. A record that was logged as its Source writes it,
// as before, stays so until it changes.
func testLocsAsURIs(t *testing.T) {
	b := begin(t, set{content: event.Reference}, "one", "two")
	for _, step := range []struct {
		source             int
		says, href, logged string // logged: as an earlier bridge did
		events             string
	}{
		{0, "a@1=x", "a b", "", "created a@1=x at a%20b"},
		{0, "a@2=x", "a b", "", ""},
		{0, "b@1=x", "b|ü", "b|ü", "created b@1=x at b|ü"},
		{0, "b@2=x", "b|ü", "", ""},
		{1, "b@2=x", "b|ü", "", ""},
		{0, "b@3=y", "b|ü", "", "updated b@3=y at b%7C%C3%BC gone b|ü arrived"},
		{0, "b@4=y", "b|ü", "", ""},
		{0, "c@1=x", "c d", "c d", "created c@1=x at c d"},
		{0, "-c@2", "", "", "deleted c@2 at c d"},
		{0, "c@3=x", "c d", "", "created c@3=x at c%20d"},
		{0, "d@1=x", "d e[1]", "d%20e[1]", "created d@1=x at d%20e[1]"},
		{0, "d@2=x", "d e[1]", "", ""},
		{1, "d@2=x", "d e[1]", "", ""},
		{0, "d@3=y", "d e[1]", "", "updated d@3=y at d%20e%5B1%5D gone d%20e[1] arrived"},
	} {
		it := items(step.says)
		if step.href != "" {
			it[0].Representations[0].Href = href(step.href)
			it[0].Claim = it[0].ClaimOf()
		}
		if step.logged != "" {
			it[0].Loc = href(step.logged)
		}
		b.batch(step.source, &event.Batch{Start: true, Items: it})
		b.reopen()
		b.want(step.says+" at "+step.href, b.news(), step.events)
	}
}

// A record moves to its URI at the next Source, where another record may be.
func testLocsOfSources(t *testing.T) {
	b := begin(t, set{content: event.Reference}, "one", "two")
	b.walkOf(0, "a>p@1=x c>q@1=x")
	b.walkOf(1, "a>q@1=y")
	b.want("events", b.news(), "created a@1=x at p, created c@1=x at q")
	b.walkOf(0, "-a@2")
	b.want("two becomes the authority", b.news(), "updated a@1=y at q gone p unlisted")
	b.walkOf(1, "-a@3")
	b.want("and leaves", b.news(), "deleted a@3 at q unlisted")
}

// Segments close with the event that fills them; their borders are the Observed
// of their last events; the last is open.
func testSegments(t *testing.T) {
	b := begin(t, set{content: event.Redirect, segmentEvents: 3})
	var closed []event.Segment
	n := 0
	for _, size := range []int{1, 1, 4, 3, 0, 2, 8} {
		var words []string
		for range size {
			n++
			words = append(words, fmt.Sprintf("r%d@1=x", n))
		}
		b.walk(strings.Join(words, " "))
		b.reopen()
		segments := b.segments()
		if len(segments) != n/3+1 {
			t.Fatalf("%d segments for %d events", len(segments), n)
		}
		for i, s := range closed {
			if segments[i] != s {
				t.Errorf("closed segment %d has changed: %+v, was %+v", i+1, segments[i], s)
			}
		}
		closed = segments[:len(segments)-1]
		for _, s := range closed {
			if s.Events != 3 {
				t.Errorf("segment %d has %d events", s.N, s.Events)
			}
		}
	}
}

// segments returns the segments after checking that they cover the events without gaps.
func (b *bench) segments() []event.Segment {
	b.t.Helper()
	ctx := context.Background()
	segments, err := b.log.Segments(ctx, "main")
	b.must(err)
	set, err := b.log.Set(ctx, "main")
	b.must(err)
	border, last := set.Created, event.Seq(0)
	for i, s := range segments {
		open := i == len(segments)-1
		if s.N != i+1 || s.From != border || s.Open() != open || !open && s.Events == 0 {
			b.t.Errorf("segment %d: %+v, begins at %v", i+1, s, border)
		}
		var got event.Segment
		for ev, err := range b.log.Events(ctx, "main", s.Range()) {
			b.must(err)
			if got.Events == 0 {
				got.First = ev.Seq
			}
			got.Last, got.Until = ev.Seq, ev.Observed
			got.Events++
			got.Entries += ev.Entries()
			if ev.Observed <= s.From || !open && ev.Observed > s.Until || ev.Seq <= last {
				b.t.Errorf("event %d, observed %v, is in segment %+v", ev.Seq, ev.Observed, s)
			}
			last = ev.Seq
		}
		if open {
			got.Until = 0
		}
		if got.First != s.First || got.Last != s.Last || got.Until != s.Until || got.Events != s.Events || got.Entries != s.Entries || (s.Weight > 0) != (s.Events > 0) {
			b.t.Errorf("segment %+v; its events come to %+v", s, got)
		}
		border = s.Until
	}
	if last != set.Last {
		b.t.Errorf("the segments end with event %d, the set with %d", last, set.Last)
	}
	return segments
}

// A segment closes before an event that comes segment_hours after its first,
// never by a timer.
func testSegmentHours(t *testing.T) {
	b := begin(t, set{content: event.Redirect, segmentHours: 2})
	for i, step := range []struct {
		pass time.Duration
		want int
	}{{0, 1}, {2*time.Hour - time.Second, 1}, {time.Second + time.Microsecond, 2}, {time.Hour, 2}, {10 * time.Hour, 3}, {0, 3}} {
		b.clock.pass(step.pass)
		if i > 0 {
			if n := len(b.segments()); n > step.want {
				t.Errorf("time alone has closed a segment: %d", n)
			}
		}
		b.walk(fmt.Sprintf("a@%d=%d", i, i))
		b.reopen()
		if n := len(b.segments()); n != step.want {
			t.Errorf("after event %d: %d segments, want %d", i+1, n, step.want)
		}
	}
}

// A list holds 50,000 entries (ResourceSync 7), and an event may have two.
func testSegmentEntries(t *testing.T) {
	b := begin(t, set{content: event.Reference, segmentEvents: 1_000_000})
	// 49,999 entries, then an event with one, or with two.
	items := make([]*event.Item, 0, 49_999)
	for i := range 49_999 {
		items = append(items, &event.Item{Observation: event.Observation{Record: fmt.Sprint("urn:", i), Representations: []event.Representation{{Href: href(fmt.Sprint(i))}}}})
	}
	moved := copies(items[:1])[0]
	moved.Modified = event.StampFromNanos(1)
	moved.Order = moved.Modified
	moved.Representations = []event.Representation{{Href: href("elsewhere")}}
	b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: items})
	b.tried(func() {
		b.batch(0, &event.Batch{Next: []byte("on"), Items: []*event.Item{{Observation: event.Observation{Record: "urn:last", Representations: []event.Representation{{Href: href("last")}}}}}})
		if s := b.segments(); len(s) != 2 || s[0].Entries != 50_000 || s[1].Events != 0 {
			t.Errorf("segments: %+v", s)
		}
	})
	b.batch(0, &event.Batch{Next: []byte("on"), Items: []*event.Item{moved}})
	if s := b.segments(); len(s) != 2 || s[0].Entries != 49_999 || s[1].Entries != 2 {
		t.Errorf("segments: %+v", s)
	}
}

// tried runs do on a dry run of the log, which leaves nothing behind.
func (b *bench) tried(do func()) {
	b.t.Helper()
	for _, dry := range []bool{true, false} {
		b.stop()
		b.options.DryRun = dry
		b.start()
		if dry {
			do()
		}
	}
}

// Several sets share the positions, and nothing else.
func testSeveralSets(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	ctx := context.Background()
	other, err := set{name: "other", content: event.Reference}.ensure(b.log, "one")
	b.must(err)
	b.walk("a@1=x")
	_, err = b.log.Append(ctx, &event.Batch{Source: other[0], Start: true, Items: items("a@1=x b@1=x")})
	b.must(err)
	b.batch(0, &event.Batch{Items: items("b@1=x -a@2")})
	for _, c := range []struct{ set, events, live string }{{"main", "1 4 5", "b"}, {"other", "2 3", "a b"}, {"", "1 2 3 4 5", ""}} {
		var got, live []string
		for ev, err := range b.log.Events(ctx, c.set, event.Range{Upto: math.MaxInt64}) {
			b.must(err)
			got = append(got, fmt.Sprint(ev.Seq))
			if (ev.Seq == 2 || ev.Seq == 3) != (ev.Set == "other") {
				t.Errorf("event %d is of set %s", ev.Seq, ev.Set)
			}
		}
		b.want("events of "+c.set, strings.Join(got, " "), c.events)
		if c.set == "" {
			continue
		}
		for ev, err := range b.log.Live(ctx, c.set, 5) {
			b.must(err)
			live = append(live, strings.TrimPrefix(ev.Record, "urn:"))
		}
		b.want("live in "+c.set, strings.Join(live, " "), c.live)
	}
	b.want("live at 3", b.live(3), "a")
	sets, err := b.log.Sets(ctx)
	b.must(err)
	if len(sets) != 2 || sets[0].Name != "main" || sets[1].Name != "other" || sets[0].Events != 3 || sets[0].Live != 1 || sets[1].Live != 2 ||
		sets[0].Last != 5 || sets[1].Last != 3 || sets[0].Feed == sets[1].Feed || sets[0].Feed == sets[0].Complete {
		t.Errorf("sets: %+v", sets)
	}
	// What is appended while all sets are read is read too, also of a set that is made
	// meanwhile.
	var read []string
	for ev, err := range b.log.Events(ctx, "", event.Range{Upto: math.MaxInt64}) {
		b.must(err)
		if read = append(read, fmt.Sprintf("%s %d", ev.Set, ev.Seq)); len(read) == 1 {
			b.walk("c@1=x d@1=x")
			third, err := set{name: "third", content: event.Redirect}.ensure(b.log, "one")
			b.must(err)
			_, err = b.log.Append(ctx, &event.Batch{Source: third[0], Start: true, Items: items("a@1=x")})
			b.must(err)
		}
	}
	b.want("read beside an append", strings.Join(read, ", "), "main 1, other 2, other 3, main 4, main 5, main 6, main 7, third 8")
	for _, c := range []struct {
		set   string
		after event.Seq
		want  string
	}{{"other", -1, "2 3"}, {"third", math.MinInt64, "8"}, {"", -600, "1 2 3 4 5 6 7 8"}, {"other", 1 << 40, ""}, {"", 1 << 40, ""}, {"", 1 << 41, ""}, {"", math.MaxInt64 - 1, ""}} {
		var got []string
		for ev, err := range b.log.Events(ctx, c.set, event.Range{After: c.after, Upto: math.MaxInt64}) {
			b.must(err)
			got = append(got, fmt.Sprint(ev.Seq))
		}
		b.want(fmt.Sprintf("events of set %q after %d", c.set, c.after), strings.Join(got, " "), c.want)
	}
	for _, seq := range []event.Seq{0, -1, 9, 1 << 41} {
		if ev, err := b.log.Event(ctx, seq); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("event %d: %v, %v", seq, ev, err)
		}
	}
	// Its end would be taken for that of its events.
	var missing error
	for _, missing = range b.log.Events(ctx, "none", event.Range{Upto: math.MaxInt64}) {
	}
	if !errors.Is(missing, fs.ErrNotExist) {
		t.Errorf("a set that is not there ends with %v", missing)
	}
	if seq, err := b.log.FirstAt(ctx, "none", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a set that is not there begins with event %d, %v", seq, err)
	}
}
