package daemon_test

import (
	"net/http/httptest"
	"strings"
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

func TestA15_DeletedWhenTheLastSourceDropsIt(t *testing.T) {
	b := newTwoSources(t, fixtures.Options{})
	b.feed(active("a", "first", day(1)), active("b", "first", day(1)))
	b.feed2(active("a", "second", day(1)), active("c", "second", day(1)))
	b.wantOf(0, "the first", "created a first", "created b first")
	b.wantOf(1, "the second", "created c second")
	b.feed2(deletion("a", day(2)), active("c", "second", day(1)))
	b.wantOf(1, "one of two drops it")
	b.feed(deletion("a", day(2)), deletion("b", day(2)))
	b.wantOf(0, "the last one drops it", "deleted a gone", "deleted b gone")
	b.feed2(active("a", "back", day(3)), active("c", "second", day(1)))
	b.wantOf(1, "back at the second", "created a back")
}

func TestA15_TheOrderOfTheConfigurationSpeaks(t *testing.T) {
	b := newTwoSources(t, fixtures.Options{})
	b.feed2(active("a", "second", day(9)))
	b.wantOf(1, "the second alone", "created a second")
	b.feed(active("a", "first", day(1)))
	b.wantOf(0, "the first speaks, with an earlier stamp too", "updated a first")
	b.feed2(active("a", "second, newer", day(10)))
	b.wantOf(1, "the second is not heard")
	b.feed(deletion("a", day(2)))
	b.wantOf(0, "the first falls silent: what the second last said", "updated a second, newer")
	b.feed2(active("a", "second, newest", day(11)))
	b.wantOf(1, "the second speaks", "updated a second, newest")
	b.feed2(deletion("a", day(12)))
	b.wantOf(1, "nobody has it", "deleted a gone")
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

func TestA15_Identity(t *testing.T) {
	t.Run("shared", func(t *testing.T) {
		b := newTwoSources(t, fixtures.Options{})
		b.feed(active("a", "v1", day(1)))
		b.feed2(active("a", "v1", day(1)))
		b.wantOf(0, "first", "created a v1")
		b.wantOf(1, "the same record")
	})
	t.Run("per-source", func(t *testing.T) {
		b := newTwoSources(t, fixtures.Options{}, func(c *config.Config) { c.Sets[0].Identity = config.PerSource })
		b.feed(active("a", "first", day(1)))
		b.feed2(active("a", "second", day(1)))
		b.wantOf(0, "first", "created a first")
		before := b.last()
		b.harvestOf(1)
		got := b.log(before)
		if len(got) != 1 || !strings.HasPrefix(got[0], "created uuid:") {
			t.Fatalf("logged %q", got)
		}
		for ev, err := range b.bridge.Log.Events(t.Context(), "main", allAfter(before)) {
			if err != nil || ev.Origin.SourceIdentifier != "urn:a" {
				t.Errorf("the original is not kept: %+v, %v", ev.Origin, err)
			}
		}
		b.feed2(deletion("a", day(2)))
		before = b.last()
		b.harvestOf(1)
		if got := b.log(before); len(got) != 1 || !strings.HasPrefix(got[0], "deleted uuid:") {
			t.Errorf("logged %q", got)
		}
		b.want("the first Source's stays", b.titles(), "a first")
	})
}

func (b *twoSources) harvestOf(n int) {
	b.t.Helper()
	if _, err := b.bridge.Harvest(b.t.Context(), b.bridge.Sources[n], harvest.Options{}); err != nil {
		b.t.Fatal(err)
	}
}
