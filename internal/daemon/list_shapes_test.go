package daemon_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// shape is one way in which Sources publish their lists.
type shape struct {
	name    string
	options fixtures.SourceOptions
	entry   string
	// steady is what a harvest asks for when nothing has changed.
	steady []string
	// dialect that the report names; "" is 1.1, which it does not.
	dialect string
}

func shapes() []shape {
	const single, index, resources = fixtures.ChangeList + " 1!", fixtures.ChangeListIndex + " 1!", fixtures.ResourceList + " 1!"
	const capabilities = fixtures.CapabilityList + " 1!"
	return []shape{
		{name: "an index with one open list", steady: []string{index, fixtures.ChangeListPart(1) + " 1!"}},
		{name: "an index with closed lists", options: fixtures.SourceOptions{PerList: 3}, steady: []string{index, fixtures.ChangeListPart(6) + " 1!"}},
		{name: "one Change List", options: fixtures.SourceOptions{ChangeLists: fixtures.SingleChangeList}, steady: []string{single}},
		{name: "a Resource List in parts", options: fixtures.SourceOptions{PerPart: 2, PerList: 4}, steady: []string{index, fixtures.ChangeListPart(4) + " 1!"}},
		{name: "no Change List", options: fixtures.SourceOptions{ChangeLists: fixtures.NoChangeLists}, steady: []string{capabilities, resources}},
		{name: "no Change List, a Resource List in parts", options: fixtures.SourceOptions{ChangeLists: fixtures.NoChangeLists, PerPart: 2},
			steady: []string{capabilities, resources, fixtures.ResourceListPart(1) + " 1!", fixtures.ResourceListPart(2) + " 1!"}},
		{name: "no Resource List", options: fixtures.SourceOptions{NoResourceList: true, PerList: 3}, steady: []string{index, fixtures.ChangeListPart(6) + " 1!"}},
		{name: "a Source Description", entry: fixtures.SourceDescription, steady: []string{fixtures.SourceDescription + " 1!", index, fixtures.ChangeListPart(1) + " 1!"}},
		{name: "version 1.0", options: fixtures.SourceOptions{Dialect: fixtures.ResourceSync10, PerList: 3}, dialect: "1.0", steady: []string{index, fixtures.ChangeListPart(6) + " 1!"}},
		{name: "version 0.9.1", options: fixtures.SourceOptions{Dialect: fixtures.ResourceSync091, PerList: 3}, entry: fixtures.SourceDescription, dialect: "1.0",
			steady: []string{fixtures.SourceDescription + " 1!", index, fixtures.ChangeListPart(6) + " 1!"}},
		{name: "the beta of 2013", options: fixtures.SourceOptions{Dialect: fixtures.Beta2013, PerList: 3}, dialect: "2013 beta",
			// Nothing says up to when its lists reach.
			steady: []string{index, fixtures.ChangeListPart(1) + " 1!", fixtures.ChangeListPart(2) + " 1!", fixtures.ChangeListPart(3) + " 1!",
				fixtures.ChangeListPart(4) + " 1!", fixtures.ChangeListPart(5) + " 1!", fixtures.ChangeListPart(6) + " 1!"}},
		{name: "a sitemap", options: fixtures.SourceOptions{Dialect: fixtures.PlainSitemap}, entry: fixtures.Sitemap, dialect: "sitemap", steady: []string{fixtures.Sitemap + " 1!"}},
		{name: "sitemaps in an index", options: fixtures.SourceOptions{Dialect: fixtures.PlainSitemap, PerPart: 2}, entry: fixtures.Sitemap, dialect: "sitemap",
			steady: []string{fixtures.ResourceListPart(1) + " 1!", fixtures.ResourceListPart(2) + " 1!", fixtures.Sitemap + " 1!"}},
	}
}

// TestList_Shapes: whatever lists a Source has, the log tells the same of the same
// life, and harvesting again costs a 304 for what may have changed.
func TestList_Shapes(t *testing.T) {
	testenv.Heavy(t)
	for _, s := range shapes() {
		for _, mode := range []string{config.Mirror, config.Reference} {
			t.Run(s.name+", "+mode, func(t *testing.T) {
				t.Parallel()
				s.live(t, mode)
			})
		}
	}
}

// listStep is one step in the life of a Source, and what the log makes of it.
type listStep struct {
	what string
	do   func(*listHarness)
	want []string
}

func listLife() []listStep {
	return []listStep{
		{"created", func(b *listHarness) { b.create("a", "b", "c") }, []string{"created a 1", "created b 1", "created c 1"}},
		{"nothing", func(*listHarness) {}, nil},
		{"updated", func(b *listHarness) { b.update("a") }, []string{"updated a 2"}},
		{"updated twice", func(b *listHarness) { b.update("a", "b", "a") }, []string{"updated a 4", "updated b 2"}},
		{"deleted", func(b *listHarness) { b.remove("b") }, []string{"deleted b"}},
		{"created again", func(b *listHarness) { b.recreate("b") }, []string{"created b 3"}},
		{"created and deleted unseen", func(b *listHarness) { b.create("d"); b.remove("d") }, nil},
		{"deleted and created unseen", func(b *listHarness) { b.remove("c"); b.recreate("c") }, []string{"updated c 2"}},
		{"all at once", func(b *listHarness) { b.create("e"); b.update("a"); b.remove("c") }, []string{"created e 1", "updated a 5", "deleted c"}},
	}
}

func (s *shape) live(t *testing.T, mode string) {
	path := s.entry
	if path == "" {
		path = fixtures.CapabilityList
	}
	b := newListHarness(t, s.options, content(mode), entry(path))
	for _, step := range listLife() {
		b.apart()
		step.do(b)
		r := b.expect(step.what, step.want...)
		if r.Pending+r.Held+r.Quarantined != 0 || len(r.Warnings) != 0 {
			t.Errorf("%s: %s", step.what, said(r))
		}
		if s.dialect == "" && r.Problems != 0 || r.Documents > 0 && s.dialect != "" && !slices.Contains(r.Dialects, s.dialect) {
			t.Errorf("%s: %s", step.what, said(r))
		}
		for path, n := range b.origin.Asked() {
			if strings.HasPrefix(path, "/res/") && n > 1 {
				t.Errorf("%s: %s was asked for %d times", step.what, path, n)
			}
		}
		b.asked()
		if again := b.expect(step.what + ", again"); !again.NotModified {
			t.Errorf("%s, again: %+v", step.what, again)
		}
		if steady := b.asked(); step.what == "all at once" && !slices.Equal(steady, s.steady) {
			t.Errorf("harvesting again asked for %q, want %q", steady, s.steady)
		}
	}
	if s.dialect != "sitemap" || mode == config.Mirror { // a sitemap states no hash
		b.wantSame(s.name)
	}
	b.expectFull("a full harvest")
}
