package daemon_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

func TestA1_NewestStampWins(t *testing.T) {
	v := []fixtures.Entry{active("a", "v1", day(1)), active("a", "v2", day(2)), active("a", "v3", day(3))}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			b := newEntryHarness(t, fixtures.Options{})
			b.feed(v[order[0]], v[order[1]], v[order[2]])
			b.wantLog("one document", "created a v3")
		})
	}
	t.Run("historical entries in archives", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(v[0])
		b.archive(v[1])
		b.feed(v[2])
		r := b.wantLog("three documents", "created a v3")
		if r.Historical != 2 {
			t.Errorf("%d historical entries, want 2", r.Historical)
		}
	})
	t.Run("a deletion is an entry like others", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(active("a", "v1", day(1)), active("b", "v1", day(1)))
		b.feed(deletion("a", day(2)), tombstone("b", day(2)), active("c", "v1", day(2)))
		b.wantLog("deleted before they were seen", "created c v1")
		b.feed(deletion("a", day(2)), tombstone("b", day(2)), deletion("c", day(4)), active("c", "v2", day(3)))
		b.wantLog("deletion newer than update", "deleted c gone")
	})
	t.Run("an older document has the newer entry", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.archive(v[2])
		b.feed(v[0])
		r := b.wantLog("S2 broken", "created a v1", "updated a v3")
		if reported(r, "S2") == "" {
			t.Errorf("S2 was not reported: %+v", r.Examples)
		}
		b.wantFull("again")
	})
}

func TestA1_EqualStampsFirstMet(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.archive(active("a", "old", day(1)))
	b.feed(active("a", "new", day(1)), active("a", "second in its document", day(1)))
	b.wantLog("nearer to the subscription document wins", "created a new")
	b.wantFull("again")
}

func TestA1_EqualStampWithOtherContentApplies(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.feed(active("a", "v1", day(1)))
	b.wantLog("first", "created a v1")
	b.feed(active("a", "v2", day(1)))
	b.wantLog("same stamp, other content", "updated a v2")
	b.write(fixtures.Subscription)
	b.archive(active("a", "v1", day(1)))
	b.feed(active("a", "v2", day(1)))
	b.wantFull("the old content is met second")
	b.feed(deletion("a", day(1)))
	b.wantFull("deleted with the same stamp", "deleted a gone")
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
	t.Run("a deletion", func(t *testing.T) {
		b := chain(t)
		b.feed(deletion("a", day(3)), active("b", "v6", day(6)))
		b.wantLog("incremental")
		b.wantFull("--full", "deleted a gone")
	})
	t.Run("a chain read to its end without --full", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.feed(active("a", "v5", day(5)))
		b.wantLog("first", "created a v5")
		b.feed(active("a", "v3", day(3)))
		b.wantLog("the only document is the oldest", "updated a v3")
	})
	t.Run("the higher stamp was met", func(t *testing.T) {
		b := chain(t)
		b.write(fixtures.Archive(1), active("z", "v1", day(1)), active("a", "v5", day(5)))
		b.feed(active("a", "v3", day(3)), active("b", "v6", day(6)))
		b.wantFull("the stored entry is merely out of order")
	})
	t.Run("the newest of several", func(t *testing.T) {
		b := newEntryHarness(t, fixtures.Options{})
		b.feed(active("a", "v9", day(9)))
		b.wantLog("first", "created a v9")
		b.archive(active("a", "v4", day(4)))
		b.feed(active("a", "v3", day(3)))
		b.wantFull("inside a walk the newest stamp wins", "updated a v4")
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
	t.Run("not after an error", func(t *testing.T) {
		b := chain(t)
		b.quick()
		b.feed(active("a", "v3", day(3)), active("b", "v6", day(6)))
		b.provider.SetHook(fixtures.Archive(1), fixtures.Hook{Status: http.StatusInternalServerError})
		before := b.last()
		if _, err := b.try(harvest.Options{Full: true}); err == nil {
			t.Error("no error")
		}
		b.want("failed", b.log(before))
		b.provider.ClearHook(fixtures.Archive(1))
		b.wantLog("the unfinished walk goes on as it began", "updated a v3")
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

func TestA1_PresenceInACompleteEnumerationRevives(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{Complete: true})
	a, c := active("a", "v1", day(1)), active("c", "v1", day(1))
	b.feed(a, c)
	b.wantLog("first", "created a v1", "created c v1")
	b.feed(c)
	b.wantLog("absent", "deleted a v1")
	b.feed(a, c)
	b.wantLog("back with its old stamp", "created a v1")

	// A later deletion that the Source has taken back.
	b = newEntryHarness(t, fixtures.Options{})
	b.feed(a, c)
	b.wantLog("first", "created a v1", "created c v1")
	b.feed(deletion("a", day(3)), c)
	b.wantLog("deletion entry", "deleted a gone")
	b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Complete = true; d.Entries = []fixtures.Entry{a, c} })
	b.wantLog("present in a complete feed", "created a v1")
}

func TestA1_DeletionOfAnUnknownRecordIsATombstone(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.archive(active("z", "v1", day(1)))
	b.feed(deletion("a", day(5)), tombstone("b", day(5)))
	b.wantLog("never seen alive", "created z v1")
	b.feed(active("a", "v4", day(4)), active("b", "v6", day(6)))
	b.wantLog("what is older than the tombstone waits", "created b v6")
	b.wantFull("--full", "created a v4")
}
