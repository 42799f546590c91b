package publish

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// sliceLog is a Log in memory: the second implementation of the interface, and
// the one that shows what publish needs of a log and no more.
type sliceLog struct {
	mu   sync.Mutex
	seq  event.Seq
	sets map[string]*sliceSet
	fail error // what every sequence ends with
	// reads counts calls that a cache should save, rows the segments that were read, asked the
	// reads of one set.
	reads, rows, asked int
}

type sliceSet struct {
	set      event.Set
	every    int // events in a segment
	events   []event.Event
	segments []event.Segment
	live     map[string]string // loc by record
	owners   map[string]string // record by loc
	filled   int               // steps of fill; a set in mode reference has more events
}

var created = event.MicrosOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

func newLog() *sliceLog { return &sliceLog{sets: map[string]*sliceSet{}} }

func (l *sliceLog) make(name string, content event.Content, every int) *sliceLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sets[name] = &sliceSet{every: every, live: map[string]string{}, owners: map[string]string{},
		set: event.Set{Name: name, Title: strings.ToUpper(name), Content: content, Created: created, LastObserved: created,
			Feed:     "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1",
			Complete: "urn:uuid:0b8b5f0c-9d3e-4f46-8a57-3c1e6a0d9b22"},
		segments: []event.Segment{{N: 1, From: created}}}
	return l
}

// add logs one event with what the log itself decides filled in.
func (l *sliceLog) add(set string, e event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := l.sets[set]; ; {
		left := l.addOne(s, e)
		heir := s.heir(left)
		if heir < 0 {
			return
		}
		e = s.events[heir]
		e.Kind, e.Observed, e.Arrived, e.Gone = event.Updated, 0, true, ""
	}
}

// addOne returns the loc that nobody owns any more.
func (l *sliceLog) addOne(s *sliceSet, e event.Event) (left string) {
	l.seq++
	e.Seq, e.Set = l.seq, s.set.Name
	s.set.Events++
	if e.Observed == 0 {
		e.Observed = s.set.LastObserved + 1_000_001
	}
	if e.Kind == event.Rejected {
		s.events = append(s.events, e)
		return ""
	}
	left = s.locate(&e)
	s.events = append(s.events, e)
	s.set.Last, s.set.LastObserved, s.set.Live = e.Seq, e.Observed, int64(len(s.live))

	open := &s.segments[len(s.segments)-1]
	if open.Events == 0 {
		open.First = e.Seq
	}
	open.Last = e.Seq
	open.Events++
	open.Entries += e.Entries()
	open.Weight += int64(e.Entries()) * (2000 + 6*int64(len(e.Record)+len(e.Title)+len(e.Loc)+len(e.Via.Href)))
	if open.Events == s.every {
		open.Until = e.Observed
		s.segments = append(slices.Clip(s.segments), event.Segment{N: open.N + 1, From: e.Observed})
	}
	return left
}

// locate keeps the books of mode reference, and says which locs come and go.
func (s *sliceSet) locate(e *event.Event) (left string) {
	old, was := s.live[e.Record]
	if e.Kind == event.Deleted {
		e.Loc = old
	}
	if moved := was && (!e.Live() || old != e.Loc); moved && s.owners[old] == e.Record {
		delete(s.owners, old)
		if left = old; e.Live() {
			e.Gone = old
		}
	}
	if e.Live() {
		s.live[e.Record] = e.Loc
	} else {
		delete(s.live, e.Record)
	}
	if s.set.Content != event.Reference {
		return ""
	}
	if e.Live() && s.owners[e.Loc] == "" {
		s.owners[e.Loc] = e.Record
	}
	if e.Live() {
		e.Unlisted = s.owners[e.Loc] != e.Record
		e.Arrived = !e.Unlisted && was && (old != e.Loc || e.Arrived)
	} else {
		e.Unlisted = left == ""
	}
	return left
}

// heir returns the last event of one that a loc is left to, -1 when there is none.
func (s *sliceSet) heir(loc string) int {
	if loc == "" {
		return -1
	}
	for i, e := range slices.Backward(s.events) {
		if l, ok := s.live[e.Record]; ok && l == loc && e.Live() {
			return i
		}
	}
	return -1
}

func (l *sliceLog) Sets(context.Context) ([]event.Set, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sets []event.Set
	for _, s := range l.sets {
		sets = append(sets, s.set)
	}
	slices.SortFunc(sets, func(a, b event.Set) int { return strings.Compare(a.Name, b.Name) })
	return sets, nil
}

func (l *sliceLog) Set(_ context.Context, name string) (event.Set, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	s, ok := l.sets[name]
	if !ok {
		return event.Set{}, fmt.Errorf("set %s: %w", name, fs.ErrNotExist)
	}
	return s.set, nil
}

func (l *sliceLog) Segments(_ context.Context, set string) ([]event.Segment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	return slices.Clone(l.sets[set].segments), nil
}

func (l *sliceLog) SegmentsFrom(ctx context.Context, set string, n int) ([]event.Segment, error) {
	segments, err := l.Segments(ctx, set)
	segments = slices.DeleteFunc(segments, func(s event.Segment) bool { return s.N < n })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows += len(segments)
	return segments, err
}

func (l *sliceLog) Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error] {
	return l.yield(ctx, set, func(events []event.Event) []event.Event {
		return slices.Collect(func(yield func(event.Event) bool) {
			for _, e := range events {
				if e.Seq > r.After && e.Seq <= r.Upto && !yield(e) {
					return
				}
			}
		})
	})
}

func (l *sliceLog) Live(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return l.last(ctx, set, at, func(*event.Event) bool { return true })
}

func (l *sliceLog) Listed(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return l.last(ctx, set, at, func(e *event.Event) bool { return !e.Unlisted })
}

// last yields the last events of the records that live, as far as they are wanted.
func (l *sliceLog) last(ctx context.Context, set string, at event.Seq, wanted func(*event.Event) bool) iter.Seq2[*event.Event, error] {
	return l.yield(ctx, set, func(events []event.Event) []event.Event {
		last := map[string]int{}
		for i, e := range events {
			if e.Seq <= at && e.Kind != event.Rejected {
				last[e.Record] = i
			}
		}
		var live []event.Event
		for i, e := range events {
			if n, ok := last[e.Record]; ok && n == i && e.Live() && wanted(&e) {
				live = append(live, e)
			}
		}
		return live
	})
}

// yield gives the chosen events one after the other in the same memory.
func (l *sliceLog) yield(ctx context.Context, set string, choose func([]event.Event) []event.Event) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		l.mu.Lock()
		l.reads++
		events, fail := l.sets[set].events, l.fail
		l.mu.Unlock()
		var e event.Event
		for _, e = range choose(events) {
			if ctx.Err() != nil {
				yield(nil, ctx.Err())
				return
			}
			if !yield(&e, nil) {
				return
			}
		}
		if fail != nil {
			yield(nil, fail)
		}
	}
}

// sample is an event of a record whose looks depend on its number and version.
func sample(kind event.Kind, number, version int) event.Event {
	href := fmt.Sprintf("https://origin.example/data/%d", number)
	modified, _ := event.StampOf(created.Time().Add(time.Duration(version) * 1234567891))
	content := fmt.Appendf(nil, "content %d of record %d", version, number)
	hash := event.HashOf(sha256.Sum256(content))
	e := event.Event{Kind: kind, Record: fmt.Sprintf("urn:example:record:%d", number), Modified: modified,
		Title: fmt.Sprintf("Record <%d> & version %d", number, version), Loc: "",
		Via: event.Link{Href: href + ".xml", Type: "text/xml", Length: event.NoLength, Modified: modified}}
	if kind == event.Created || kind == event.Updated {
		e.Via.Hash, e.Via.Length = hash, int64(len(content))
		e.Representations = []event.Representation{{Href: href + ".xml", Type: "text/xml", Length: int64(len(content)), Hash: hash, Name: "xml"}}
		if number%2 == 1 {
			e.Representations = append(e.Representations,
				event.Representation{Href: href + ".html", Type: "text/html", Length: event.NoLength, Name: "html"})
		}
	}
	return e
}

// fill logs a history, one event or a few in mode reference for each step, in which records are created, updated, deleted and come
// back.
func (l *sliceLog) fill(set string, events int) *sliceLog {
	l.mu.Lock()
	s := l.sets[set]
	start, live := s.filled, map[int]bool{}
	s.filled += events
	reference := s.set.Content == event.Reference
	for record := range s.live {
		var n int
		if _, err := fmt.Sscanf(record, "urn:example:record:%d", &n); err != nil {
			panic(err)
		}
		live[n] = true
	}
	l.mu.Unlock()
	for i := start; i < start+events; i++ {
		number := i * i % 11
		kind := event.Created
		switch {
		case i%13 == 12:
			kind = event.Rejected
		case live[number] && i%3 == 0:
			kind = event.Deleted
		case live[number]:
			kind = event.Updated
		}
		if kind != event.Rejected {
			live[number] = kind != event.Deleted
		}
		e := sample(kind, number, i)
		if reference {
			e.Loc = fmt.Sprintf("https://origin.example/data/%d?v=%d", number%4, i%5)
		}
		l.add(set, e)
	}
	return l
}

// many logs n new records.
func (l *sliceLog) many(set string, n int) *sliceLog {
	l.mu.Lock()
	start := len(l.sets[set].events)
	l.mu.Unlock()
	for i := range n {
		l.add(set, sample(event.Created, start+i, 1))
	}
	return l
}

// newPublisher returns a Publisher of l on folders of their own.
func newPublisher(t testing.TB, l Log) *Publisher {
	return publisherIn(t, l, t.TempDir())
}

func publisherIn(t testing.TB, l Log, dir string) *Publisher {
	t.Helper()
	p, err := New(Options{Log: l, BaseURL: base, CacheDir: dir + "/cache", SnapshotDir: dir + "/snapshots", CacheBytes: 1 << 30,
		AfterDeletion: time.Minute, AfterChange: 10 * time.Minute, Retention: Retention{Age: 24 * time.Hour, Count: 100, Bytes: 4 << 30}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const base = "https://bridge.example"

// run has a Publisher run until end is called.
func run(p *Publisher) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	return func() { cancel(); running.Wait() }
}
