// Package eventlogtest tests an event log against what the rest of bridge relies on: the
// invariants I1-I8 and the rules A1-A15, as far as the log is responsible for them. It
// uses nothing but the log's methods, so it holds for any layout of the tables.
package eventlogtest

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// set is a set to be made.
type set struct {
	name                        string
	content                     event.Content
	segmentEvents, segmentHours int // 0: the log's defaults
	history                     bool
	kind                        string // of its Sources; "" is atompmh
}

// ensure makes a set, or brings it up to date, with its Sources in the order of the
// configuration, and returns their numbers.
func (s set) ensure(l *eventlog.Log, sources ...string) (out []event.SourceID, err error) {
	ctx := context.Background()
	if err := l.EnsureSet(ctx, eventlog.SetConfig{Name: s.name, Content: s.content, SegmentEvents: s.segmentEvents, SegmentHours: s.segmentHours, History: s.history}); err != nil {
		return nil, err
	}
	for rank, url := range sources {
		id, err := l.EnsureSource(ctx, s.name, cmp.Or(s.kind, "atompmh"), url, rank)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// newURL makes a place for a new log on a PostgreSQL server; nil is that each log is a file.
var newURL func() string

// On makes the logs of all that is tested from now on in places that newURL makes on a
// PostgreSQL server.
func On(place func() string) { newURL = place }

// Test runs some parts of the suite, or all when none are named, each on logs of its own.
func Test(t *testing.T, parts ...string) {
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Events", testEvents}, {"Cursor", testCursor}, {"Lazy", testLazy}, {"Progress", testProgress}, {"Refused", testRefused},
		{"State", testState}, {"Walk", testWalk}, {"Regressed", testRegressed}, {"Complete", testComplete}, {"Current", testCurrent}, {"Present", testPresent}, {"ContentBits", testContentBits}, {"Hold", testHold},
		{"Pending", testPending}, {"NeedsContent", testNeedsContent}, {"ManyAtOneURI", testManyAtOneURI}, {"Replay", testReplay}, {"Repair", testRepair}, {"Quarantine", testQuarantine},
		{"Lists", testLists}, {"ListsTogether", testListsTogether}, {"ListsPending", testListsPending}, {"AbsentAt", testAbsentAt}, {"AbsentOfOtherKind", testAbsentOfOtherKind}, {"AbsentWhileItWaits", testAbsentWhileItWaits}, {"AbsentInParts", testAbsentInParts}, {"MovedToPart", testMovedToPart}, {"DeletedInOtherPart", testDeletedInOtherPart}, {"ThereInBaseline", testThereInBaseline}, {"Loopback", testLoopback}, {"LoopbackOfFormer", testLoopbackOfFormer}, {"LoopbackOfReplaced", testLoopbackOfReplaced}, {"LoopbackAsURI", testLoopbackAsURI}, {"LoopbackOfOwn", testLoopbackOfOwn}, {"LoopbackOfFormats", testLoopbackOfFormats}, {"Categories", testCategories}, {"Links", testLinks}, {"ManyLinks", testManyLinks}, {"NamesStay", testNamesStay},
		{"Sources", testSources}, {"SourceKinds", testSourceKinds}, {"SourcesOrder", testSourcesOrder}, {"SourcesOrderMet", testSourcesOrderMet}, {"Locs", testLocs}, {"LocsAsURIs", testLocsAsURIs}, {"LocsOfSources", testLocsOfSources},
		{"Segments", testSegments}, {"SegmentHours", testSegmentHours}, {"SegmentEntries", testSegmentEntries}, {"SeveralSets", testSeveralSets},
		{"Submitted", testSubmitted}, {"Rejected", testRejected}, {"Withdrawn", testWithdrawn}, {"Presence", testPresence},
		{"Observed", testObserved}, {"ClockJump", testClockJump}, {"ClockAtStart", testClockAtStart},
		{"Live", testLive}, {"Record", testRecord}, {"Versions", testVersions}, {"HistoryOnAndOff", testHistoryOnAndOff}, {"Readers", testReaders}, {"DryRun", testDryRun}, {"Closed", testClosed},
	} {
		if len(parts) == 0 || slices.Contains(parts, part.name) {
			t.Run(part.name, part.run)
		}
	}
}

// clock is a clock that a test moves.
type clock struct {
	wall    time.Time
	running time.Duration
}

// read is Options.Clock.
func (c *clock) read() (time.Time, time.Duration) { return c.wall, c.running }

// pass moves both clocks by the same time.
func (c *clock) pass(d time.Duration) { c.wall, c.running = c.wall.Add(d), c.running+d }

// tester is a test, or one case of a property.
type tester interface {
	rapid.TB
	Cleanup(func())
}

// bench is an open log with one set, "main", and its Sources.
type bench struct {
	t       tester
	folder  string
	options eventlog.Options
	clock   *clock
	set     set
	names   []string // of the Sources
	log     *eventlog.Log
	sources []event.SourceID
	seen    event.Seq
}

// begin opens a log with a set and its Sources.
func begin(t tester, set set, sources ...string) *bench {
	t.Helper()
	if len(sources) == 0 {
		sources = []string{"one"}
	}
	set.name = "main"
	b := &bench{t: t, set: set, names: sources, clock: &clock{wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	var err error
	b.folder, err = os.MkdirTemp("", "eventlog-")
	b.must(err)
	t.Cleanup(func() { b.must(os.RemoveAll(b.folder)) })
	b.options.Clock = b.clock.read
	if newURL != nil { // "" is a file
		b.options.URL = newURL()
	}
	b.start()
	t.Cleanup(b.stop)
	t.Cleanup(b.sound)
	return b
}

func (b *bench) start() {
	b.t.Helper()
	var err error
	b.log, err = eventlog.Open(context.Background(), b.folder, b.options)
	b.must(err)
	b.sources, err = b.set.ensure(b.log, b.names...)
	b.must(err)
}

func (b *bench) stop() {
	b.t.Helper()
	b.must(b.log.Close())
}

func (b *bench) reopen() {
	b.t.Helper()
	b.stop()
	b.start()
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// sound fails the test if Verify reports a finding.
func (b *bench) sound() {
	b.t.Helper()
	b.must(b.log.Verify(context.Background(), func(f eventlog.Finding) {
		b.t.Errorf("the log finds fault with itself: %s: %s: %s", f.Where, f.What, f.Do)
	}))
}

// items parses the reports of Sources. Each word is an observation:
//
//	name@stamp=content   the record is there; content stands for its bytes
//	-name@stamp          it is deleted
//	!name@stamp          bad input
//	~name@stamp          not selected
//
// Without stamp it is unknown; without content it has no hash. "name>loc" is a
// record at another URI than its own.
func items(words string) []*event.Item {
	var out []*event.Item
	for w := range strings.FieldsSeq(words) {
		it := &event.Item{}
		w, it.Deleted = strings.CutPrefix(w, "-")
		w, it.Quarantine = strings.CutPrefix(w, "!")
		w, it.Unselected = strings.CutPrefix(w, "~")
		w, content, _ := strings.Cut(w, "=")
		w, stamp, stamped := strings.Cut(w, "@")
		w, loc, _ := strings.Cut(w, ">")
		it.Record = "urn:" + w
		if stamped {
			n, err := strconv.ParseInt(stamp, 10, 64)
			if err != nil {
				panic(err)
			}
			it.Modified = event.StampFromNanos(n)
			it.Order = it.Modified
		}
		loc = cmp.Or(loc, w)
		if !it.Deleted && !it.Quarantine && !it.Unselected {
			it.Title = "Title of " + w
			r := event.Representation{Href: href(loc), Type: "text/plain", Length: event.NoLength}
			if content != "" {
				r.Hash = "x:" + content
			}
			it.Representations = []event.Representation{r}
			it.Fetched = true
		}
		out = append(out, it)
	}
	return out
}

// copies returns copies of items: what a log fills in of one stays there.
func copies(all []*event.Item) []*event.Item {
	out := make([]*event.Item, len(all))
	for i, it := range all {
		one := *it
		out[i] = &one
	}
	return out
}

// href is the URI of a representation.
func href(loc string) string { return "https://source.example/" + loc }

// batch appends items, in a mode, as part of the walk under way of a Source.
func (b *bench) batch(source int, in *event.Batch) event.Appended {
	b.t.Helper()
	out, err := b.try(source, in)
	b.must(err)
	return out
}

func (b *bench) try(source int, in *event.Batch) (event.Appended, error) {
	b.t.Helper()
	p, err := b.log.Progress(context.Background(), b.sources[source])
	b.must(err)
	in.Source, in.Cursor = b.sources[source], p.Cursor.Version
	if in.Documents == nil {
		in.Documents = []event.Document{{URL: b.names[source] + "/feed"}}
	}
	return b.log.Append(context.Background(), in)
}

// walk begins a walk with the items of its first document, and goes on with the others,
// without ending it. It returns the outcomes.
func (b *bench) walk(documents ...string) string {
	b.t.Helper()
	return b.walkOf(0, documents...)
}

func (b *bench) walkOf(source int, documents ...string) string {
	b.t.Helper()
	var out []event.Outcome
	for i, d := range documents {
		a := b.batch(source, &event.Batch{Start: i == 0, Next: []byte("on"), Items: items(d)})
		out = append(out, a.Outcomes...)
	}
	return outcomes(out)
}

// end ends the walk under way.
func (b *bench) end(source int) {
	b.t.Helper()
	b.batch(source, &event.Batch{})
}

// more appends items in another mode, while the walk is under way.
func (b *bench) more(mode event.Mode, words string) string {
	b.t.Helper()
	return b.moreOf(0, mode, words)
}

func (b *bench) moreOf(source int, mode event.Mode, words string) string {
	b.t.Helper()
	return outcomes(b.batch(source, &event.Batch{Mode: mode, Next: []byte("on"), Items: items(words)}).Outcomes)
}

var outcomeWords = [...]string{event.Logged: "logged", event.Unchanged: "unchanged", event.Historical: "historical", event.Regressed: "regressed",
	event.Tombstone: "tombstone", event.Suppressed: "suppressed", event.Waiting: "waiting", event.NeedsContent: "needs-content", event.Unselected: "unselected", event.Bad: "bad", event.Loopback: "loopback"}

func outcomes(all []event.Outcome) string {
	var words []string
	for _, o := range all {
		words = append(words, outcomeWords[o])
	}
	return strings.Join(words, " ")
}

// news returns the events since its last call, in the notation of items: kind, name,
// stamp, content, and in mode reference the URI and the URI that has gone.
func (b *bench) news() string {
	b.t.Helper()
	var out []string
	for ev, err := range b.log.Events(context.Background(), "main", event.Range{After: b.seen, Upto: math.MaxInt64}) {
		b.must(err)
		b.seen = ev.Seq
		out = append(out, tell(ev))
	}
	return strings.Join(out, ", ")
}

func tell(ev *event.Event) string {
	s := ev.Kind.String() + " " + strings.TrimPrefix(ev.Record, "urn:")
	if ev.Modified.Known() {
		s += fmt.Sprintf("@%d", ev.Modified.Nanos())
	}
	if r, ok := ev.Pref(); ok && r.Hash != "" {
		s += strings.Replace(r.Hash, "x:", "=", 1)
	}
	if ev.Loc != "" {
		s += " at " + strings.TrimPrefix(ev.Loc, href(""))
		for _, w := range []struct {
			is   bool
			word string
		}{{ev.Gone != "", " gone " + strings.TrimPrefix(ev.Gone, href(""))}, {ev.Arrived, " arrived"}, {ev.Unlisted, " unlisted"}} {
			if w.is {
				s += w.word
			}
		}
	}
	return s
}

// live returns the names of the live records at a position, sorted.
func (b *bench) live(at event.Seq) string {
	b.t.Helper()
	return b.records(b.log.Live(context.Background(), "main", at))
}

func (b *bench) records(events iter.Seq2[*event.Event, error]) string {
	b.t.Helper()
	var out []string
	for ev, err := range events {
		b.must(err)
		out = append(out, strings.TrimPrefix(ev.Record, "urn:"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (b *bench) now() string {
	b.t.Helper()
	seq, err := b.log.LastSeq(context.Background())
	b.must(err)
	return b.live(seq)
}

func (b *bench) want(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}
