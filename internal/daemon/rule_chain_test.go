package daemon_test

import (
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
