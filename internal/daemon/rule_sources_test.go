package daemon_test

import (
	"net/http/httptest"
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
	if _, err := b.bridge.Harvest(b.t.Context(), b.bridge.Sources[n], harvest.Options{}); err != nil {
		b.t.Fatal(err)
	}
}
