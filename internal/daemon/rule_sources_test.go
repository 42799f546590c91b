package daemon_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// twoSources is one set fed by two providers.
type twoSources struct {
	*harness
	second *fixtures.Provider
}

func newTwoSources(t *testing.T, o fixtures.Options, change ...func(*config.Config)) *twoSources {
	t.Helper()
	second := fixtures.New(o)
	server := httptest.NewServer(second)
	t.Cleanup(server.Close)
	change = append(change, func(c *config.Config) {
		s := c.Sets[0].Sources[0]
		s.URL = server.URL + fixtures.Subscription
		s.Name = "second"
		c.Sets[0].Sources = append(c.Sets[0].Sources, s)
	})
	return &twoSources{harness: newEntryHarness(t, o, change...), second: second}
}

// feed2 replaces the entries of the second provider.
func (b *twoSources) feed2(entries ...fixtures.Entry) {
	b.second.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Entries = entries })
}

// wantOf harvests the n-th Source and compares what was logged.
func (b *twoSources) wantOf(n int, what string, want ...string) {
	b.t.Helper()
	before := b.last()
	b.harvestOf(n)
	b.want(what, b.log(before), want...)
}

func TestA15_AbsenceAndGuardCountOneSource(t *testing.T) {
	b := newTwoSources(t, fixtures.Options{Complete: true})
	b.feed(many(30)...)
	b.feed2(append(many(2), active("x", "v1", day(1)), active("y", "v1", day(1)))...)
	b.wantOf(1, "the second", "created r001 v1", "created r002 v1", "created x v1", "created y v1")
	if r := b.harvest(); r.Created != 28 {
		t.Fatalf("the first: %+v", r)
	}
	b.feed2(many(1)...)
	b.wantOf(1, "absent from the second alone", "deleted x v1", "deleted y v1")
	b.feed(many(29)...)
	b.wantOf(0, "absent from the first", "deleted r030 v1")
	b.feed(many(1)...)
	before := b.last()
	if r := b.harvest(); r.Held != 28 || len(b.log(before)) != 0 {
		t.Errorf("the guard counts the first Source's records: %+v", r)
	}
}

func (b *twoSources) harvestOf(n int) {
	b.t.Helper()
	if _, err := b.bridge.Harvest(b.t.Context(), b.bridge.Sources()[n], harvest.Options{}); err != nil {
		b.t.Fatal(err)
	}
}

// swap gives the Sources the other order and opens the bridge again.
func (b *twoSources) swap() {
	s := b.config.Sets[0].Sources
	s[0], s[1] = s[1], s[0]
	b.reopen()
}

// D112: SOURCEs of the command line keep the order in which they were first seen,
// however they are harvested by turns.
func TestD112_SourcesByTurnsKeepTheirOrder(t *testing.T) {
	b := newTwoSources(t, fixtures.Options{})
	b.feed(active("a", "first", day(1)))
	b.feed2(active("a", "second", day(1)))
	b.wantOf(0, "the first", "created a first")
	both := b.config.Sets[0].Sources
	for range 2 {
		b.config.Sets[0].Sources = both[1:]
		b.reopen()
		b.wantOf(0, "the second alone")
		b.config.Sets[0].Sources = both[:1]
		b.reopen()
		b.wantOf(0, "the first alone")
	}
}

// D113: with identity = "per-source" the Source that the set had first keeps its
// identifiers, wherever it stands by now.
func TestD113_ReorderedSourcesKeepTheirIdentifiers(t *testing.T) {
	b := newTwoSources(t, fixtures.Options{}, func(c *config.Config) { c.Sets[0].Identity = config.PerSource })
	b.config.File = filepath.Join(t.TempDir(), "bridge.toml")
	b.feed(active("a", "first", day(1)))
	b.feed2(active("b", "second", day(1)))
	b.harvestOf(0)
	b.harvestOf(1)
	if n := len(b.log(0)); n != 2 {
		t.Fatalf("%d events, want 2", n)
	}
	b.swap()
	b.feed(active("a", "first", day(2)))
	b.feed2(active("b", "second", day(2)))
	before := b.last()
	b.harvestOf(0)
	b.harvestOf(1)
	for _, e := range b.log(before) {
		if e != "updated a first" && e[:len("updated uuid:")] != "updated uuid:" {
			t.Errorf("logged %q", e)
		}
	}
}

// D107: a Source of another kind goes on with the records that it has: stamps of
// one kind are no order for what comes under the other.
func TestD107_AnotherKind(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.feed(active("a", "v1", day(5)), active("b", "v1", day(5)))
	b.wantLog("as atompmh", "created a v1", "created b v1")
	kind := func(k string) {
		b.config.Sets[0].Sources[0].Kind = k
		b.reopen()
	}
	kind(config.Feed)
	b.feed(active("a", "v2", day(4)), active("b", "v1", day(5)))
	b.wantLog("as feed, with an earlier date", "updated a v2")
	kind(config.AtomPMH)
	b.feed(active("a", "v3", day(1)), active("b", "v1", day(5)))
	b.wantLog("as atompmh again", "updated a v3")
}

// D105, D106: in a mirror, an entry whose record is decided by a newer one that is
// undecidable is historical, is not asked for, and does not keep back others.
func TestD105_AnUndecidableEntryFailsNoBatch(t *testing.T) {
	b := newHarness(t, fixtures.New(fixtures.Options{PerArchive: 2}))
	a := b.provider.Create(record("a", fixtures.Atom()))
	b.harvest()
	b.want("first", b.events(0), "created a [atom]")
	before := b.last()
	b.provider.Update(record("a", fixtures.Atom()))
	newer := b.provider.Update(record("a", fixtures.Atom()))
	b.provider.Create(record("b", fixtures.Atom()))
	b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) {
		d.Entries = append(d.Entries, fixtures.Entry{Kind: fixtures.Deletion, ID: a.ID, Title: "A", Updated: newer.Stamp})
	})
	b.provider.SetHook("/records/a.atom", fixtures.Hook{Status: http.StatusUnauthorized})
	if _, err := b.try(harvest.Options{}); err != nil {
		t.Fatal(err)
	}
	b.want("the other one", b.events(before), "created b [atom]")
}
