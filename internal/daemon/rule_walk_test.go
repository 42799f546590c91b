package daemon_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
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

// The clock of a server was a day ahead, and is set right between two harvests: what it stamps then
// is earlier than what was harvested, and is found in archives too.
func TestA3_ClockSetRight(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	now := time.Now().Truncate(time.Second)
	b.later(-10 * time.Minute)
	b.archive(active("a", "v1", now.Add(-48*time.Hour)))
	b.feed(active("b", "v1", now.Add(-24*time.Hour)), active("c", "v1", now.Add(23*time.Hour)))
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Header: http.Header{"Date": {now.Add(24 * time.Hour).UTC().Format(http.TimeFormat)}}})
	b.wantLog("a day ahead", "created b v1", "created c v1", "created a v1")
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{})
	b.later(0)
	b.provider.CloseArchive()
	b.archive(active("d", "v1", now.Add(-4*time.Minute)), active("e", "v1", now.Add(-3*time.Minute)))
	b.feed(active("f", "v1", now.Add(-2*time.Minute)))
	for path, updated := range map[string]time.Time{fixtures.Subscription: now.Add(-2 * time.Minute), fixtures.Archive(3): now.Add(-3 * time.Minute)} {
		b.provider.Edit(path, func(d *fixtures.Document) { d.Updated = updated })
	}
	b.wantLog("set right", "created f v1", "created d v1", "created e v1")
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
	b.later(100 * 24 * time.Hour)
	b.wantLog("due by a clock that is ahead")
	b.write(fixtures.Archive(1), active("a", "v3", day(2)), active("b", "v1", day(2)))
	b.later(0)
	b.wantLog("due once it was set right", "updated a v3")
}

func TestA1_TieAsksAnAlternate(t *testing.T) {
	for status, want := range map[int]string{200: "created a v1", 403: "", 404: "", 410: "", 401: "?", 500: "?"} {
		for _, first := range []string{"active", "deletion", "active, both in a file"} {
			t.Run(fmt.Sprintf("%d, %s first", status, first), func(t *testing.T) {
				b := newEntryHarness(t, fixtures.Options{})
				b.quick()
				if strings.HasSuffix(first, "file") {
					b.bridge.Harvester().BacklogMemory = 1 // D64
				}
				b.provider.SetHook("/records/a.xml", fixtures.Hook{Status: status})
				tie := []fixtures.Entry{active("a", "v1", day(1)), deletion("a", day(1))}
				if first == "deletion" {
					tie[0], tie[1] = tie[1], tie[0]
				}
				b.feed(tie...)
				r := b.harvest()
				got := strings.Join(b.log(0), ", ")
				if want != "?" {
					if got != want || r.Quarantined != 0 || reported(r, "A1") == "" {
						t.Fatalf("logged %q, want %q; report %+v", got, want, r)
					}
					return
				}
				q := b.quarantined()
				if got != "" || r.Quarantined != 1 || len(q) != 1 || q[0].Rule != "A1" || !r.Partial() {
					t.Fatalf("logged %q, in quarantine %+v, report %+v", got, q, r)
				}
				if strings.Count(string(q[0].Input), "<entry>") != 2 {
					t.Errorf("not both entries are in quarantine: %s", q[0].Input)
				}
				if _, err := b.replay(q[0]); !errors.Is(err, harvest.ErrStillBad) {
					t.Errorf("a replay that cannot tell either: %v", err)
				}
				b.provider.SetHook("/records/a.xml", fixtures.Hook{Status: http.StatusOK})
				if got, err := b.replay(q[0]); err != nil || strings.Join(got, "") != "created a v1" {
					t.Errorf("replay once it is there: %q, %v", got, err)
				}
				b.provider.SetHook("/records/a.xml", fixtures.Hook{Status: http.StatusGone})
				if got, err := b.replay(q[0]); err != nil || strings.Join(got, "") != "deleted a gone" {
					t.Errorf("replay once it is gone: %q, %v", got, err)
				}
			})
		}
	}
}

func TestA1_TieInAMirror(t *testing.T) {
	b := newHarness(t, fixtures.New(fixtures.Options{}))
	a := b.provider.Create(record("a", fixtures.Atom()))
	b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) {
		d.Entries = append(d.Entries, fixtures.Entry{Kind: fixtures.Deletion, ID: a.ID, Title: "A", Updated: a.Stamp})
	})
	b.harvest()
	b.want("the alternate answers", b.events(0), "created a [atom]")
}

func TestA1_StepBack(t *testing.T) {
	// An archive below, so that a walk ends before the oldest document.
	chain := func(t *testing.T) *harness {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(active("z", "v1", day(1)))
		b.feed(active("a", "v5", day(5)), active("b", "v6", day(6)))
		b.wantLog("first", "created a v5", "created b v6", "created z v1")
		return b
	}
	t.Run("only a complete enumeration takes it", func(t *testing.T) {
		b := chain(t)
		b.feed(active("a", "v3", day(3)), active("b", "v6", day(6)))
		r := b.wantLog("incremental")
		if reported(r, "S4") == "" {
			t.Errorf("not reported: %+v", r)
		}
		b.wantFull("--full", "updated a v3")
		b.wantFull("again")
	})
	t.Run("not over a gap", func(t *testing.T) {
		b := chain(t)
		b.feed(active("a", "v3", day(3)), active("b", "v6", day(6)))
		b.provider.SetHook(fixtures.Archive(1), fixtures.Hook{Status: http.StatusNotFound})
		if r := b.wantFull("archive missing"); r.Gap == "" {
			t.Errorf("no gap: %+v", r)
		}
		b.provider.ClearHook(fixtures.Archive(1))
		b.wantFull("archive back", "updated a v3")
	})
	t.Run("a stored stamp from the future", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(active("z", "v1", day(1)))
		b.feed(active("a", "2036", time.Date(2036, 1, 1, 0, 0, 0, 0, time.UTC)), active("b", "v6", day(6)))
		b.wantLog("first", "created b v6", "created a 2036", "created z v1")
		b.wantMark(day(6))
		b.feed(active("a", "v3", day(3)), active("b", "v6", day(6)))
		b.wantLog("put right", "updated a v3")
	})
}
