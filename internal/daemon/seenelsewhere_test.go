package daemon_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// The faults of other harvesters and producers. Each test fails with a harvester
// that has the fault.

func TestSeenElsewhere_EndsAtTheFirstUnchangedRecord(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.feed(active("a", "v1", day(1)), active("b", "v1", day(2)))
	b.harvest()
	b.archive(active("b", "v1", day(2)), active("a", "v2", day(4)))
	b.feed(active("b", "v1", day(2)), active("c", "v1", day(5)), active("d", "v1", day(6)))
	b.wantLog("behind an unchanged one, in its document and in the next", "created c v1", "created d v1", "updated a v2")
}

func TestSeenElsewhere_ComparesWholeSeconds(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	in := func(d time.Duration) time.Time { return day(1).Add(d) }
	b.feed(active("a", "v1", in(100*time.Millisecond)), active("a", "v2", in(100*time.Millisecond+1)))
	b.wantLog("a nanosecond apart", "created a v2")
	b.feed(active("a", "v3", in(200*time.Millisecond)))
	b.wantLog("in the same second", "updated a v3")
	b.wantMark(in(200 * time.Millisecond))
	b.archive(active("a", "v3", in(200*time.Millisecond)), active("b", "v1", in(250*time.Millisecond)))
	b.feed(active("c", "v1", in(300*time.Millisecond)))
	b.wantLog("across a border in the same second", "created c v1", "created b v1")
	b.feed(active("c", "v0", in(299*time.Millisecond)))
	r := b.wantLog("earlier in the same second, in a walk that is not whole")
	if reported(r, "S4") == "" {
		t.Errorf("the step back was not reported: %+v", r)
	}
}

func TestSeenElsewhere_HardCodedNotDeleted(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.feed(active("a", "v1", day(1)), active("b", "v1", day(1)))
	b.harvest()
	b.feed(deletion("a", day(2)), tombstone("b", day(2)))
	b.wantLog("both ways to say it", "deleted b v1", "deleted a gone")
	b.want("live", b.titles())
}

func TestSeenElsewhere_EveryArchiveHasTheNewestStamp(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	for i := range 4 {
		b.archive(active(string(rune('a'+i)), "v1", day(i+1)))
	}
	b.feed(active("e", "v1", day(5)))
	restamp := func(at time.Time) {
		for i := range 4 {
			b.provider.Edit(fixtures.Archive(i+1), func(d *fixtures.Document) { d.Updated = at })
		}
	}
	restamp(day(5))
	r := b.wantLog("first", "created e v1", "created d v1", "created c v1", "created b v1", "created a v1")
	if reported(r, "S2") == "" {
		t.Errorf("not reported: %+v", r.Examples)
	}
	b.wantMark(day(5))
	b.provider.ForgetRequests()
	if r := b.wantLog("unchanged"); !r.NotModified {
		t.Errorf("the chain was read again: %+v", r)
	}
	b.feed(active("f", "v1", day(6)), active("e", "v1", day(5)))
	restamp(day(6))
	b.wantLog("it ends, and logs what is new", "created f v1")
}

func TestSeenElsewhere_CyclicChain(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	for i := range 5 {
		b.archive(active(string(rune('a'+i)), "v1", day(i+1)))
	}
	b.provider.Edit(fixtures.Archive(1), func(d *fixtures.Document) { d.Prev = fixtures.Archive(5) })
	b.feed(active("f", "v1", day(6)))
	b.provider.ForgetRequests()
	b.want("all of it", b.wantError("loop"), "created f v1", "created e v1", "created d v1", "created c v1", "created b v1", "created a v1")
	for path, n := range b.provider.Asked() {
		if n != 1 {
			t.Errorf("asked %d times for %s", n, path)
		}
	}
}

func TestSeenElsewhere_KeepsTheDateOfTheLastEntry(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.feed(active("a", "v1", day(3)), active("b", "v1", day(9)), active("c", "v1", day(1)))
	b.harvest()
	b.wantMark(day(9))
	b.provider.CloseArchive()
	b.feed(active("d", "v1", day(10)))
	b.provider.ForgetRequests()
	b.wantLog("incremental", "created d v1")
	b.wantAsked(map[string]int{"/feed.atom": 1, "/archive/1.atom": 1})
}

// TestSeenElsewhere_MarkPassesWhatCouldNotBeStored: whatever fails, a harvest says so,
// and the next one takes in what is missing, once.
func TestSeenElsewhere_MarkPassesWhatCouldNotBeStored(t *testing.T) {
	const onFire = "the disk is on fire"
	// breakTable lets the nth change of a table fail.
	breakTable := func(file, change string) func(b *harness, n int) (context.Context, harvest.Options, func()) {
		return func(b *harness, n int) (context.Context, harvest.Options, func()) {
			path := filepath.Join(b.config.Data, file)
			tamper(b.t, path, fmt.Sprintf("CREATE TABLE allowed (n INTEGER); INSERT INTO allowed VALUES (%d); "+
				"CREATE TRIGGER broken BEFORE %s BEGIN UPDATE allowed SET n = n - 1; SELECT RAISE(ABORT, '%s') FROM allowed WHERE n <= 0; END", n, change, onFire))
			return b.t.Context(), harvest.Options{}, func() { tamper(b.t, path, "DROP TRIGGER broken; DROP TABLE allowed") }
		}
	}
	for _, c := range []struct {
		name string
		want string
		fail func(b *harness, n int) (context.Context, harvest.Options, func())
	}{
		{"contents fail", onFire, breakTable("content.db", "INSERT ON content")},
		{"the log fails once contents are stored", onFire, breakTable("log.db", "UPDATE ON source")},
		{"the harvest ends once the log has events", context.Canceled.Error(), func(b *harness, n int) (context.Context, harvest.Options, func()) {
			ctx, cancel := context.WithCancel(b.t.Context())
			events := int64(0)
			return ctx, harvest.Options{Progress: func(p harvest.Progress) {
				if p.Events > events {
					events = p.Events
					if n--; n == 0 {
						cancel()
					}
				}
			}}, cancel
		}},
	} {
		t.Run(c.name, func(t *testing.T) { failEverywhere(t, c.want, c.fail) })
	}
}

// failEverywhere lets every single step fail in turn, until a harvest gets through.
func failEverywhere(t *testing.T, want string, fail func(b *harness, n int) (context.Context, harvest.Options, func())) {
	for n := 1; ; n++ {
		p := fixtures.New(fixtures.Options{PerArchive: 3})
		b := newHarness(t, p, content(config.Mirror))
		b.bridge.Harvester().BatchSize = 2
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			p.Create(record(name, fixtures.Atom()))
		}
		ctx, options, undo := fail(b, n)
		_, err := b.bridge.Harvest(ctx, b.source(), options)
		undo()
		if err == nil {
			if n < 4 {
				t.Errorf("only %d steps", n)
			}
			return
		}
		if !strings.Contains(err.Error(), want) {
			t.Fatalf("step %d: %v", n, err)
		}
		if mark := b.stored().Mark; mark.Known() {
			b.wantLive() // the walk had ended; only the report was lost
		}
		b.harvest()
		b.wantLive()
		b.wantBytes()
		if got := len(b.events(0)); got != 7 {
			t.Errorf("call %d: %d events, want 7: %q", n, got, b.events(0))
		}
		b.close()
	}
}
