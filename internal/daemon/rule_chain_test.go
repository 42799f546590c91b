package daemon_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
)

// threeDocuments is a chain that was harvested: two archives and the
// subscription document, mark day 6.
func threeDocuments(t *testing.T, change ...func(*config.Config)) *harness {
	t.Helper()
	b := newEntryHarness(t, fixtures.Options{}, change...)
	b.archive(active("a", "v1", day(1)), active("b", "v1", day(2)))
	b.archive(active("c", "v1", day(3)), active("d", "v1", day(4)))
	b.feed(active("e", "v1", day(5)), active("f", "v1", day(6)))
	b.wantLog("first", "created e v1", "created f v1", "created c v1", "created d v1", "created a v1", "created b v1")
	b.wantMark(day(6))
	b.provider.ForgetRequests()
	return b
}

func TestA2_TheClimbEndsBelowTheMark(t *testing.T) {
	b := threeDocuments(t)
	b.feed(active("g", "v1", day(7)), active("e", "v1", day(5)), active("f", "v1", day(6)))
	b.wantLog("a new entry", "created g v1")
	b.wantAsked(map[string]int{"/feed.atom": 1})

	b.provider.CloseArchive()
	b.feed(active("h", "v1", day(8)))
	b.wantLog("a new document: it and the one before are read", "created h v1")
	b.wantAsked(map[string]int{"/feed.atom": 1, "/archive/3.atom": 1})

	b.feed(active("h", "v1", day(8)), active("i", "v1", day(9)))
	b.wantLog("nothing in it is below the mark", "created i v1")
	b.wantAsked(map[string]int{"/feed.atom": 1, "/archive/3.atom": 1})
}

func TestA2_BrokenS2ClimbsOnAndIsReported(t *testing.T) {
	b := threeDocuments(t)
	// A bulk import with historic dates stands before what is new.
	b.archive(active("n", "v1", day(8)), active("o", "v1", day(7)))
	b.feed(active("old", "v1", day(0)))
	r := b.wantLog("imported", "created old v1", "created o v1", "created n v1")
	if got := reported(r, "S2"); !strings.Contains(got, "/archive/3.atom") {
		t.Errorf("S2 reported at %q", got)
	}
	b.wantFull("nothing was missed")
}

func TestA2_NoOtherReasonToStop(t *testing.T) {
	t.Run("entry order", func(t *testing.T) {
		b := threeDocuments(t)
		b.archive(active("e", "v1", day(5)), active("g", "v1", day(7)))
		b.feed(active("i", "v1", day(9)), active("h", "v1", day(8)))
		b.wantLog("oldest first or last", "created h v1", "created i v1", "created g v1")
	})
	t.Run("a known entry", func(t *testing.T) {
		b := threeDocuments(t)
		b.archive(active("g", "v1", day(7)), active("f", "v1", day(6)))
		b.feed(active("h", "v1", day(8)), active("f", "v1", day(6)), active("e", "v2", day(9)))
		b.wantLog("an unchanged entry first", "created h v1", "updated e v2", "created g v1")
	})
	t.Run("a URI seen before", func(t *testing.T) {
		b := threeDocuments(t)
		// The same URI has other entries now, all later than the mark.
		b.write(fixtures.Archive(2), active("g", "v1", day(7)), active("h", "v1", day(8)))
		b.feed(active("i", "v1", day(9)))
		b.wantLog("archive rewritten", "created i v1", "created g v1", "created h v1")
	})
	t.Run("feed/updated alone", func(t *testing.T) {
		b := threeDocuments(t)
		b.archive(active("g", "v1", day(7)))
		b.provider.Edit(fixtures.Archive(3), func(d *fixtures.Document) { d.Updated = day(1) })
		b.feed(active("h", "v1", day(8)))
		b.wantLog("an archive that says it is old", "created h v1", "created g v1")
	})
	t.Run("an empty document", func(t *testing.T) {
		b := threeDocuments(t)
		b.archive(active("f", "v1", day(6)), active("g", "v1", day(7)))
		b.archive()
		b.feed()
		b.wantLog("two empty documents", "created g v1")
	})
}

func TestA2_LostArchives(t *testing.T) {
	b := threeDocuments(t)
	b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) {
		d.Prev = ""
		d.Entries = []fixtures.Entry{active("g", "v1", day(8))}
	})
	r := b.wantLog("the chain ends above the mark", "created g v1")
	if !r.Partial() || !strings.Contains(strings.Join(r.Warnings, "\n"), "deletions may be lost") {
		t.Errorf("no warning: %+v", r)
	}
	b.wantMark(day(8))
}

func TestA3_MarkIsTheLargestOfTheFirstDocument(t *testing.T) {
	t.Run("in any order, not the last", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.feed(active("a", "v1", day(2)), active("b", "v1", day(9)), active("c", "v1", day(1)))
		b.harvest()
		b.wantMark(day(9))
	})
	t.Run("the first that is not empty", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(active("a", "v1", day(3)))
		b.archive(deletion("a", day(4)))
		b.feed()
		b.harvest()
		b.wantMark(day(4))
	})
	t.Run("what is read later never raises it", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(active("a", "v1", day(9)))
		b.feed(active("b", "v1", day(3)))
		b.wantLog("S2 broken", "created b v1", "created a v1")
		b.wantMark(day(3))
	})
	t.Run("fixed when it is read", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(active("a", "v1", day(1)))
		b.feed(active("b", "v1", day(2)))
		b.provider.SetHook(fixtures.Archive(1), fixtures.Hook{Times: 1, Before: func(*http.Request) {
			b.archive(active("b", "v1", day(2)), active("c", "v1", day(3)))
			b.feed(active("d", "v1", day(4)))
		}})
		b.wantLog("the chain grows during the walk", "created b v1", "created a v1")
		b.wantMark(day(2))
		b.wantLog("the next one has the rest", "created d v1", "created c v1")
		b.wantMark(day(4))
	})
}

func TestA3_StampsInTheFutureAreLeftOut(t *testing.T) {
	future := time.Date(2036, 1, 1, 0, 0, 0, 0, time.UTC)
	t.Run("of the answer's Date", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{Clock: func() time.Time { return day(5) }})
		b.feed(active("a", "v1", day(4)), active("b", "v1", day(6)))
		b.wantLog("applied all the same", "created a v1", "created b v1")
		b.wantMark(day(4))
	})
	t.Run("of our clock, without Date", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Header: http.Header{"Date": nil}})
		b.feed(active("a", "v1", day(4)), active("b", "v1", future))
		b.wantLog("applied all the same", "created a v1", "created b v1")
		b.wantMark(day(4))
	})
	t.Run("all of them", func(t *testing.T) {
		b := threeDocuments(t)
		b.feed(active("z", "v1", future), active("y", "v1", future))
		b.wantLog("applied", "created z v1", "created y v1")
		b.wantMark(day(6))
	})
}

func TestA4_CreatedOrUpdated(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	for _, step := range []struct {
		entry fixtures.Entry
		want  string
	}{
		{active("a", "v1", day(1)), "created a v1"},
		{active("a", "v2", day(2)), "updated a v2"},
		{deletion("a", day(3)), "deleted a gone"},
		{active("a", "v4", day(4)), "created a v4"},
		{tombstone("a", day(5)), "deleted a v4"},
		{active("a", "v6", day(6)), "created a v6"},
		{active("a", "v7", day(7)), "updated a v7"},
	} {
		b.feed(step.entry)
		b.wantLog(step.want, step.want)
	}
	// What happened between two harvests is not told.
	b.feed(active("a", "v10", day(10)), deletion("a", day(9)), active("a", "v8", day(8)))
	b.wantLog("deleted and created between harvests", "updated a v10")
	b.feed(active("b", "v11", day(11)), active("b", "v12", day(12)), deletion("b", day(13)))
	b.wantLog("created and deleted between harvests")
}

func TestA12_OverlapCatchesLateCommits(t *testing.T) {
	b := threeDocuments(t, func(c *config.Config) { c.Sets[0].Sources[0].Overlap = 36 * time.Hour })
	// Committed after the harvest with a stamp before its mark, into an archive.
	b.write(fixtures.Archive(2), active("c", "v1", day(3)), active("d", "v1", day(4)), active("late", "v1", day(5)))
	b.feed(active("e", "v1", day(5)), active("f", "v1", day(6)), active("g", "v1", day(7)))
	b.wantLog("within the overlap", "created g v1", "created late v1")
}

func TestA12_FullCatchesChangedArchives(t *testing.T) {
	change := func(b *harness) {
		b.write(fixtures.Archive(1), active("a", "v2", day(2)), active("b", "v1", day(2)))
		b.feed(active("e", "v1", day(5)), active("f", "v1", day(6)), active("g", "v1", day(7)))
	}
	b := threeDocuments(t)
	change(b)
	b.wantLog("incremental", "created g v1")
	b.wantFull("--full", "updated a v2")

	b = threeDocuments(t, func(c *config.Config) { c.Sets[0].Sources[0].FullEvery = 7 * 24 * time.Hour })
	change(b)
	b.later(6 * 24 * time.Hour)
	b.wantLog("not due", "created g v1")
	b.later(8 * 24 * time.Hour)
	b.wantLog("due, and unconditional", "updated a v2")
	b.provider.ForgetRequests()
	b.wantLog("not due any more")
	b.wantAsked(map[string]int{"/feed.atom": 1})
}

func TestA12_AbsenceFromAnArchivedFeedIsNothing(t *testing.T) {
	b := threeDocuments(t)
	b.write(fixtures.Archive(1))
	b.write(fixtures.Archive(2), active("c", "v1", day(3)))
	b.feed(active("f", "v1", day(6)))
	b.wantLog("vanished without a word")
	b.wantFull("--full neither")
	b.feed()
	b.wantFull("empty")
}
