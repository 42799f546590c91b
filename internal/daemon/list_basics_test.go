package daemon_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestList_Entries: any document, a bare host, a page and a resource lead to all
// that the Source has, without anybody saying what they are.
func TestList_Entries(t *testing.T) {
	unsaid := func(c *config.Config) { c.Sets[0].Sources[0].Kind = "" }
	o := fixtures.SourceOptions{PerList: 2, PerPart: 2}
	for _, path := range []string{"", "/res/a", fixtures.ResourceListPart(2), fixtures.ChangeListPart(1)} {
		t.Run("from "+path, func(t *testing.T) {
			b := newListHarness(t, o, content(config.Reference), unsaid, entry(path))
			b.create("a", "b", "c", "d")
			b.expect("first", "created a 1", "created b 1", "created c 1", "created d 1")
			if kind := b.stored().Kind; kind != config.ResourceSync {
				t.Errorf("kind %q", kind)
			}
			b.reopen()
			b.quick()
			b.apart()
			b.update("a")
			b.remove("b")
			b.expect("next", "deleted b", "updated a 2")
			b.wantSame("in the end")
		})
	}
	t.Run("a bare host with a sitemap", func(t *testing.T) {
		b := newListHarness(t, fixtures.SourceOptions{Dialect: fixtures.PlainSitemap}, content(config.Reference), unsaid, entry(""))
		b.create("a", "b")
		if r := b.expect("first", "created a 1", "created b 1"); !slices.Contains(r.Dialects, "sitemap") {
			t.Errorf("%s", said(r))
		}
	})
	t.Run("nothing", func(t *testing.T) {
		b := newListHarness(t, fixtures.SourceOptions{}, unsaid, entry("/"))
		for _, path := range []string{"/", fixtures.Robots, fixtures.SourceDescription} {
			b.origin.SetHook(path, answer(http.StatusNotFound))
		}
		b.want("logged", b.wantError("/.well-known/resourcesync", "/robots.txt", "want an Atom, RSS or JSON feed"))
	})
}

// TestList_Mirrors: what a Source cannot give comes from its mirrors, the best one
// first, and that is said.
func TestList_Mirrors(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{Mirrors: 3})
	b.create("a", "b")
	b.origin.MisbehaveOn("a", fixtures.ShortContent)
	b.origin.SetHook("/mirror/1/res/a", answer(http.StatusNotFound))
	r := b.expect("first", "created a 1", "created b 1")
	if first := reported(r, "mirror"); !strings.Contains(first, "/mirror/2/res/a") || r.Pending != 0 {
		t.Errorf("%s", said(r))
	}
	b.wantSame("from a mirror")
	b.wantBytes()
	asked := strings.Join(b.asked(), " ")
	for path, want := range map[string]bool{"/mirror/1/res/a": true, "/mirror/2/res/a": true, "/mirror/3/res/a": false, "/mirror/1/res/b": false} {
		if got := strings.Contains(asked, path); got != want {
			t.Errorf("%s was asked for: %t", path, got)
		}
	}
}

// TestList_Alternates: further representations of a resource belong to its record;
// those that nobody wants are left out, and a record without any is deleted.
func TestList_Alternates(t *testing.T) {
	json := fixtures.Format{Ext: "json", Type: "application/json"}
	pdf := fixtures.Format{Ext: "pdf", Type: "application/pdf", Body: []byte("%PDF")}
	types := func(b *listHarness) []string {
		return b.eachLive(func(ev *event.Event) string {
			s := strings.TrimPrefix(ev.Record, b.server.URL)
			for i, r := range ev.Representations {
				if s += " " + r.Type; i == ev.Preferred {
					s += "*"
				}
			}
			return s
		})
	}
	t.Run("all", func(t *testing.T) {
		b := newListHarness(t, fixtures.SourceOptions{}, func(c *config.Config) { c.Sets[0].Prefer = []string{"application/json"} })
		b.origin.Create(fixtures.Resource{Name: "a", Alternates: []fixtures.Format{pdf, json}})
		b.origin.Create(fixtures.Resource{Name: "b"})
		b.harvest()
		b.want("types", types(b), "/res/a application/xml application/pdf application/json*", "/res/b application/xml*")
		b.wantSame("all")
		b.wantBytes()
	})
	t.Run("formats", func(t *testing.T) {
		b := newListHarness(t, fixtures.SourceOptions{}, func(c *config.Config) { c.Sets[0].Formats = []string{"application/json"} })
		b.origin.Create(fixtures.Resource{Name: "a", Alternates: []fixtures.Format{pdf, json}})
		b.origin.Create(fixtures.Resource{Name: "b"})
		b.harvest()
		b.want("types", types(b), "/res/a application/json*")
		b.apart()
		b.origin.Update(fixtures.Resource{Name: "a", Alternates: []fixtures.Format{pdf}})
		b.origin.Update(fixtures.Resource{Name: "b", Alternates: []fixtures.Format{json}})
		b.harvest()
		b.want("types", types(b), "/res/b application/json*")
		for _, path := range []string{"/res/a", "/res/b", "/res/a.pdf"} {
			if b.origin.Requests(path) != 0 {
				t.Errorf("%s was asked for", path)
			}
		}
		b.expectFull("in full")
	})
}

// TestList_Selected: what prefix and since do not select is left alone and counted,
// and is not taken for deleted.
func TestList_Selected(t *testing.T) {
	for _, o := range []fixtures.SourceOptions{{}, {ChangeLists: fixtures.NoChangeLists}} {
		t.Run(fmt.Sprint("change lists ", o.ChangeLists), func(t *testing.T) {
			b := newListHarness(t, o, content(config.Reference), func(c *config.Config) {
				s := &c.Sets[0].Sources[0]
				s.Prefixes = []string{strings.TrimSuffix(s.URL, fixtures.CapabilityList) + "/res/map-"}
				s.Since = day(5)
			})
			b.origin.SetTime(day(4))
			b.create("map-old")
			b.origin.SetTime(day(6))
			b.create("map-a", "map-b", "book-a")
			if r := b.expect("first", "created map-a 1", "created map-b 1"); r.Skipped == 0 || r.Partial() {
				t.Errorf("%d skipped, %s", r.Skipped, said(r))
			}
			b.apart()
			b.update("map-a", "book-a", "map-old")
			b.remove("map-b")
			b.expect("next", "created map-old 2", "deleted map-b", "updated map-a 2")
			b.expectFull("in full")
		})
	}
}

// TestList_Guard: deletions by absence of too many are held; a second baseline, a
// day later, releases those that are absent still, and what is back is not
// deleted (A6).
func TestList_Guard(t *testing.T) {
	for name, o := range map[string]fixtures.SourceOptions{
		"no Change List": {ChangeLists: fixtures.NoChangeLists},
		"Change Lists":   {PerList: 20, PerPart: 7},
	} {
		t.Run(name, func(t *testing.T) {
			b := newListHarness(t, o, content(config.Reference))
			if o.PerList > 0 {
				b.origin.Misbehave(fixtures.NoDeletions)
			}
			var all []string
			for i := range 40 {
				all = append(all, fmt.Sprintf("r%02d", i))
			}
			b.create(all...)
			b.harvest()
			b.apart()
			b.remove(all[:12]...)
			b.update("r20")
			r := b.expectFull("held", "updated r20 2")
			if r.Held != 12 || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "12 of 40") || !strings.Contains(r.Warnings[0], "source release main") {
				t.Errorf("%s", said(r))
			}
			b.expect("the next harvest")
			b.apart()
			b.recreate("r00")
			b.update("r21")
			// What came back in between has other content.
			b.expectFull("some are back", "updated r00 2", "updated r21 2")
			if held := b.stored().Held; held != 11 {
				t.Errorf("%d are held, want 11", held)
			}
			b.later(25 * time.Hour)
			var want []string
			for _, n := range all[1:12] {
				want = append(want, "deleted "+n)
			}
			if r := b.expect("a day later", want...); !r.Full && !r.NotModified {
				t.Errorf("no baseline: %+v", r)
			}
			b.wantSame("in the end")
			if held := b.stored().Held; held != 0 {
				t.Errorf("%d are held", held)
			}
		})
	}
}

// TestList_WaitingContent: content that cannot be had keeps its record's published
// state and comes in when it can be had; a deletion ends the waiting.
func TestList_WaitingContent(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{})
	b.create("a", "b", "c")
	b.harvest()
	b.apart()
	b.update("a", "b")
	for _, path := range []string{"/res/a", "/res/b"} {
		b.origin.SetHook(path, answer(http.StatusInternalServerError))
	}
	if r := b.expect("cannot be had"); r.Pending != 2 {
		t.Errorf("%s", said(r))
	}
	b.apart()
	b.remove("b")
	b.expect("deleted meanwhile", "deleted b")
	b.wantPending(1)
	b.origin.ClearHook("/res/a")
	r, err := b.try(harvest.Options{AllPending: true})
	if err != nil || r.Updated != 1 {
		t.Errorf("%v, %+v", err, r)
	}
	b.wantPending(0)
	b.wantSame("in the end")
	b.wantBytes()
}

// TestList_MismatchOfAPass: content that is not what its list says goes to quarantine
// when it was so before a pass and is so after it. What failed for another reason
// before may have been changed after the list was read.
func TestList_MismatchOfAPass(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{})
	b.create("a", "b")
	b.origin.SetHook("/res/a", answer(http.StatusInternalServerError))
	b.harvest()
	b.origin.SetHook("/res/a", fixtures.Hook{Body: func([]byte) []byte { return []byte("not yet in any list") }})
	for i, want := range []int64{0, 1} {
		b.apart()
		r, err := b.try(harvest.Options{AllPending: true})
		if err != nil || r.Quarantined != want {
			t.Errorf("mismatch %d: %v, %d in quarantine, want %d", i+1, err, r.Quarantined, want)
		}
		b.wantPending(1)
	}
}

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

// A Source that was forgotten with its records, and is configured again, is harvested from the
// beginning: what its lists have comes back, although they are those of before.
func TestList_ForgottenComesBack(t *testing.T) {
	t.Parallel()
	for _, content := range []string{config.Mirror, config.Redirect, config.Reference} {
		b := newListHarness(t, fixtures.SourceOptions{}, func(c *config.Config) { c.Sets[0].Content = content })
		b.create("a", "c")
		b.origin.PinResourceList()
		b.expect("the lists", "created a 1", "created c 1")
		b.create("b")
		b.update("a")
		b.remove("c")
		b.expect("changes since", "created b 1", "updated a 2", "deleted c")
		if _, err := b.bridge.Forget(t.Context(), "main", "", false, true); err != nil {
			t.Fatal(err)
		}
		b.want("forgotten", b.live())
		b.reopen()
		b.expect("configured again", "created a 2", "created b 1")
		b.expectFull("once more")
	}
}
