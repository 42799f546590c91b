package daemon_test

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
)

// many are n entries r001, r002, …
func many(n int) []fixtures.Entry {
	var out []fixtures.Entry
	for i := range n {
		out = append(out, active(fmt.Sprintf("r%03d", i+1), "v1", day(1)))
	}
	return out
}

// newCompleteHarness is a complete feed of n records that was harvested.
func newCompleteHarness(t *testing.T, n int, change ...func(*config.Config)) *harness {
	t.Helper()
	b := newEntryHarness(t, fixtures.Options{Complete: true}, change...)
	b.feed(many(n)...)
	if r := b.harvest(); r.Created != int64(n) || !r.Full {
		t.Fatalf("first: %+v", r)
	}
	return b
}

func TestA6_MassDeletionGuard(t *testing.T) {
	for _, c := range []struct {
		have, left int
		held       bool
	}{{55, 44, false}, {56, 44, true}} {
		t.Run(fmt.Sprintf("%d of %d", c.left, c.have), func(t *testing.T) {
			b := newCompleteHarness(t, c.have)
			before := b.last()
			b.feed(many(c.left)...)
			r := b.harvest()
			gone := c.have - c.left
			if c.held {
				if r.Held != int64(gone) || r.Deleted != 0 || !r.Partial() || b.stored().Held != gone || len(b.log(before)) != 0 ||
					!strings.Contains(strings.Join(r.Warnings, ""), "bridge source release main") {
					t.Errorf("not held: %+v", r)
				}
			} else if r.Deleted != int64(gone) || r.Held != 0 || r.Partial() {
				t.Errorf("held: %+v", r)
			}
		})
	}
}

func TestA6_WhatIsHeld(t *testing.T) {
	held := func(t *testing.T) *harness {
		b := newCompleteHarness(t, 20)
		b.feed(many(5)...)
		b.wantLog("held")
		return b
	}
	wantHeld := func(b *harness, n int) {
		b.t.Helper()
		if got := b.stored().Held; got != n {
			b.t.Errorf("%d held, want %d", got, n)
		}
	}
	t.Run("released by a person", func(t *testing.T) {
		b := held(t)
		r, err := b.bridge.Harvester().Release(t.Context(), &b.source().Source, math.MaxInt64)
		if err != nil || r.Deleted != 15 {
			t.Errorf("release: %v, %+v", err, r)
		}
		wantHeld(b, 0)
		b.wantFull("again")
	})
	t.Run("applied after hold_deletions, a 304 counts", func(t *testing.T) {
		b := held(t)
		b.later(23 * time.Hour)
		if r := b.wantLog("too early"); !r.NotModified {
			t.Errorf("no 304: %+v", r)
		}
		b.later(25 * time.Hour)
		if r := b.harvest(); !r.NotModified || r.Deleted != 15 {
			t.Errorf("after 25 h: %+v", r)
		}
		wantHeld(b, 0)
	})
	t.Run("hold_deletions is the operator's", func(t *testing.T) {
		b := newCompleteHarness(t, 20, func(c *config.Config) { c.Sets[0].Sources[0].HoldDeletions = time.Hour })
		b.feed(many(5)...)
		b.wantLog("held")
		b.later(2 * time.Hour)
		if r := b.harvest(); r.Deleted != 15 {
			t.Errorf("after 2 h: %+v", r)
		}
	})
	t.Run("held while the clock was ahead", func(t *testing.T) {
		const month = 30 * 24 * time.Hour
		b, clock := newCompleteHarness(t, 20), &testClock{}
		b.options.Now = clock.now
		clock.pass(month)
		b.reopen()
		b.feed(many(5)...)
		b.wantLog("held")
		clock.pass(-month)
		b.wantFull("absent once more")
		clock.pass(23 * time.Hour)
		b.wantLog("too early")
		clock.pass(2 * time.Hour)
		if r := b.harvest(); r.Deleted != 15 {
			t.Errorf("after 25 h: %+v", r)
		}
	})
	t.Run("not after a failed harvest", func(t *testing.T) {
		b := held(t)
		b.later(25 * time.Hour)
		b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Status: http.StatusUnauthorized})
		b.want("logged", b.wantError("401"))
		b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Status: http.StatusGone})
		b.wantLog("410 is no absence")
		wantHeld(b, 15)
	})
	t.Run("an empty result only by a person", func(t *testing.T) {
		b := newCompleteHarness(t, 3)
		b.feed()
		b.wantLog("emptied")
		b.later(1000 * time.Hour)
		b.wantLog("a 304 later")
		b.wantFull("read again later")
		wantHeld(b, 3)
		if r, err := b.bridge.Harvester().Release(t.Context(), &b.source().Source, math.MaxInt64); err != nil || r.Deleted != 3 {
			t.Errorf("release: %v, %+v", err, r)
		}
	})
	t.Run("not once the feed is archived", func(t *testing.T) {
		b := held(t)
		b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Complete = false })
		b.wantLog("archived now")
		b.later(25 * time.Hour)
		b.wantLog("absence says nothing any more")
		b.wantFull("with --full neither")
		wantHeld(b, 15)
	})
}

func TestA7_ChangedFeedID(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{Complete: true})
	b.feed(active("a", "v1", day(1)), active("b", "v1", day(1)))
	b.wantLog("first", "created a v1", "created b v1")
	b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) {
		d.ID = "urn:another"
		d.Entries = []fixtures.Entry{active("a", "v2", day(2)), active("c", "v1", day(2))}
	})
	b.want("refused", b.wantError(`to "urn:another": nothing was harvested; if the feed was replaced on purpose, run bridge source reset main `))
	b.want("refused again", b.wantError("urn:another"))
	if err := b.bridge.Harvester().Reset(t.Context(), b.source().ID); err != nil {
		t.Fatal(err)
	}
	b.wantLog("after reset", "updated a v2", "created c v1", "deleted b v1")
}

func TestA7_ArchivedAndComplete(t *testing.T) {
	complete := func(b *harness, is bool) {
		b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Complete = is })
	}
	b := newEntryHarness(t, fixtures.Options{})
	b.feed(many(20)...)
	b.harvest()
	complete(b, true)
	b.feed(many(18)...)
	b.wantLog("archived to complete: absence deletes", "deleted r019 v1", "deleted r020 v1")
	b.feed(many(4)...)
	b.wantLog("through the guard")
	complete(b, false)
	b.feed(many(3)...)
	b.wantFull("complete to archived: it does not")
	if got := b.stored().Held; got != 14 {
		t.Errorf("%d held, want 14", got)
	}
}

// A document that has a next page is no complete enumeration, whatever it says of itself: what
// has moved to that page is not deleted, and is read there.
func TestA5_CompleteWithPages(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{Complete: true})
	page := func(body []byte) []byte {
		return bytes.Replace(body, []byte("<fh:complete/>"), []byte(`<fh:complete/><link rel="next" href="/archive/1.atom"/>`), 1)
	}
	b.archive(active("c", "v1", day(1)), active("d", "v1", day(2)))
	b.provider.Edit(fixtures.Archive(1), func(d *fixtures.Document) { d.Archive, d.Complete = false, true })
	b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Prev = "" })
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Body: page})
	b.feed(active("e", "v1", day(3)), active("f", "v1", day(4)))
	r := b.wantLog("two pages", "created e v1", "created f v1", "created c v1", "created d v1")
	if first := reported(r, "S8"); !strings.Contains(first, "next page") {
		t.Errorf("reported %q", first)
	}
	b.write(fixtures.Archive(1), active("d", "v1", day(2)), active("e", "v1", day(3)))
	b.feed(active("f", "v1", day(4)), active("g", "v1", day(5)))
	b.wantLog("an entry moves to the second page", "created g v1")
}
