package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestList_AnyHistory: whatever a Source goes through, after each harvest bridge
// has just the resources that the Source has; the events of the log, applied one
// after another, come to the same, and each of them changes something; and
// nothing is deleted that lives.
func TestList_AnyHistory(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			testenv.Checks(t, 20)
			rapid.Check(t, func(rt *rapid.T) { anyListHistory(t, rt, mode) })
		})
	}
}

// randomSource changes a Source at random.
type randomSource struct {
	*listHarness
	rt *rapid.T
	o  fixtures.SourceOptions
	// undated: deletions have no time at all.
	undated bool
	made    int
	deleted []string
	pinned  bool
	// later: the next change does not share its stamp with the one before.
	later bool
}

func anyListHistory(t *testing.T, rt *rapid.T, mode string) {
	o := fixtures.SourceOptions{
		Dialect:     rapid.SampledFrom([]fixtures.Dialect{fixtures.ResourceSync11, fixtures.ResourceSync11, fixtures.ResourceSync10, fixtures.Beta2013}).Draw(rt, "dialect"),
		ChangeLists: rapid.SampledFrom([]fixtures.ChangeLists{fixtures.IndexedChangeLists, fixtures.IndexedChangeLists, fixtures.SingleChangeList, fixtures.NoChangeLists}).Draw(rt, "change lists"),
		PerList:     rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(rt, "changes a list"),
		PerPart:     rapid.SampledFrom([]int{0, 2}).Draw(rt, "resources a part"),
	}
	if o.ChangeLists == fixtures.SingleChangeList && o.Dialect != fixtures.Beta2013 { // whose lists do not say where they begin
		o.Window = rapid.SampledFrom([]int{0, 4}).Draw(rt, "window")
	}
	if o.ChangeLists != fixtures.NoChangeLists && o.Window == 0 {
		o.NoResourceList = rapid.IntRange(0, 4).Draw(rt, "no resource list") == 0
	}
	overlap := func(cf *config.Config) {
		cf.Sets[0].Sources[0].Overlap = rapid.SampledFrom([]time.Duration{0, 12 * time.Second, time.Hour}).Draw(rt, "overlap")
	}
	c := &randomSource{rt: rt, o: o, listHarness: newListHarness(t, o, content(mode), overlap,
		entry(rapid.SampledFrom([]string{fixtures.CapabilityList, fixtures.SourceDescription}).Draw(rt, "entry")))}
	defer func() {
		c.server.Close()
		c.close()
	}()
	c.origin.SetTime(day(1).Add(time.Second)) // after the moment at which the lists begin
	c.bridge.Harvester().BatchSize = rapid.SampledFrom([]int{1, 3, 50_000}).Draw(rt, "batch size")
	c.bridge.Harvester().BacklogMemory = rapid.SampledFrom([]int{0, 1, 3}).Draw(rt, "observations of a document in memory") // D64
	if o.Dialect == fixtures.ResourceSync11 && rapid.IntRange(0, 2).Draw(rt, "without datetimes") == 0 {
		c.undated = true
		c.origin.Misbehave(fixtures.MissingDatetime)
	}
	for range rapid.IntRange(1, 5).Draw(rt, "harvests") {
		c.round()
		c.check(rapid.IntRange(0, 3).Draw(rt, "full") == 0)
	}
}

// round is what happens between two harvests.
func (c *randomSource) round() {
	// What has rolled off unseen is known by its time alone.
	rolls := c.o.Window > 0 || c.o.Dialect != fixtures.Beta2013 && !c.o.NoResourceList && !c.pinned && rapid.IntRange(0, 3).Draw(c.rt, "rolls off") == 0
	if rolls || c.made == 0 || rapid.Bool().Draw(c.rt, "time passes") {
		c.apart()
	} else {
		c.tick()
	}
	c.later = rolls
	for range rapid.IntRange(0, 7).Draw(c.rt, "changes") {
		c.change()
		if rapid.IntRange(0, 3).Draw(c.rt, "close") == 0 && c.o.ChangeLists == fixtures.IndexedChangeLists {
			c.origin.CloseChangeList()
		}
	}
	if rolls {
		c.origin.RollOff(rapid.IntRange(1, 5).Draw(c.rt, "lists rolled off"))
	}
	// An old Resource List needs the Change Lists since, and their times.
	if c.o.ChangeLists != fixtures.NoChangeLists && c.o.Window == 0 && !c.undated && rapid.IntRange(0, 3).Draw(c.rt, "pin") == 0 {
		c.pinned = !rolls
		c.origin.UnpinResourceList()
		if c.pinned {
			c.origin.PinResourceList()
			c.apart()
			c.later = true
			c.change()
		}
	} else if c.pinned && rolls {
		c.origin.UnpinResourceList()
	}
}

// tick lets automatic stamps go on within the second of the last change.
func (c *randomSource) tick() {
	all := c.origin.History()
	c.origin.SetTime(all[len(all)-1].Stamp)
}

// stamp is now and then that of the change before, else the next one.
func (c *randomSource) stamp() time.Time {
	all := c.origin.History()
	if len(all) > 0 && !c.later && rapid.IntRange(0, 3).Draw(c.rt, "same stamp") == 0 {
		return all[len(all)-1].Stamp
	}
	c.later = false
	return time.Time{}
}

func (c *randomSource) change() {
	var live []string
	for _, r := range c.origin.Live() {
		live = append(live, r.Name)
	}
	what := rapid.SampledFrom([]string{"create", "create", "update", "update", "touch", "delete", "recreate"}).Draw(c.rt, "change")
	if len(live) == 0 || what == "create" || what == "recreate" && len(c.deleted) == 0 {
		c.made++
		c.origin.Create(fixtures.Resource{Name: fmt.Sprintf("r%d", c.made), Stamp: c.stamp()})
		return
	}
	name := rapid.SampledFrom(live).Draw(c.rt, "resource")
	switch what {
	case "update":
		c.origin.Update(fixtures.Resource{Name: name, Stamp: c.stamp()})
	case "touch":
		c.origin.Touch(name, c.stamp())
	case "delete":
		c.origin.Delete(name, c.stamp())
		c.deleted = append(c.deleted, name)
	case "recreate":
		i := rapid.IntRange(0, len(c.deleted)-1).Draw(c.rt, "deleted")
		c.origin.Recreate(fixtures.Resource{Name: c.deleted[i], Stamp: c.stamp()})
		c.deleted = slices.Delete(c.deleted, i, i+1)
	}
}

// check harvests and compares.
func (c *randomSource) check(full bool) {
	before := c.last()
	r, err := c.try(harvest.Options{Full: full})
	if err != nil {
		c.rt.Fatal(err)
	}
	var want []string
	live := map[string]bool{}
	for _, ch := range c.origin.Live() {
		live[ch.Name] = true
		want = append(want, ch.ID+" "+ch.Representations[0].Type+" "+ch.Representations[0].SHA256)
	}
	slices.Sort(want)
	for _, told := range c.told(before) {
		if name, ok := strings.CutPrefix(told, "deleted "); ok && live[name] {
			c.rt.Fatalf("%s, which lives", told)
		}
	}
	if c.stored().Held > 0 {
		if _, err := c.bridge.Harvester().Release(c.t.Context(), &c.source().Source); err != nil {
			c.rt.Fatal(err)
		}
	}
	applied, wrong := c.replayed()
	if len(wrong) > 0 {
		c.rt.Fatalf("events that say nothing: %q", wrong)
	}
	for what, got := range map[string][]string{"the log tells of": applied, "bridge has": c.liveState(config.Mirror)} {
		if !slices.Equal(got, want) {
			c.rt.Fatalf("full %t: %s\n%s\nand the Source has\n%s\n%s\nthe log: %q", full, what, strings.Join(got, "\n"), strings.Join(want, "\n"), said(r), c.told(0))
		}
	}
	before = c.last()
	if r, err := c.try(harvest.Options{}); err != nil || r.Events() != 0 || !r.NotModified {
		c.rt.Fatalf("harvesting again: %v, %q, %+v", err, c.told(before), r)
	}
}
