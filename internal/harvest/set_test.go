package harvest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/translate"
)

// unions is a log with three sets of two Sources each, the set "all" that is made of them,
// and "above" that is made of that, beside what a naive model says that they have.
type unions struct {
	t        *rapid.T
	folder   string
	content  event.Content
	perSrc   bool
	partial  bool // sets begin as ones that are not walked whole
	log      *eventlog.Log
	sets     []eventlog.SetConfig // a, b, c, all
	members  []int                // of all, in order
	batch    int
	versions int

	says  [3][2]map[string]string // what each Source has: the title of each record
	taken [3]map[string]string    // what the union has taken of each set
	above map[string]string       // what "above" has taken of the union
	whole [3]bool                 // sets that were walked whole by now
	made  [3]map[string]bool      // the records that a set has had since it was made (again)

	titles map[string][]string // of each record of a set, in the order of the log
	read   event.Seq           // as far as titles
}

func (u *unions) fail(err error) {
	if err != nil {
		u.t.Fatal(err)
	}
}

func (u *unions) open() {
	var err error
	u.log, err = eventlog.Open(u.t.Context(), u.folder, eventlog.Options{})
	u.fail(err)
	u.configure()
}

// configure tells the log of the sets, and of the members that the union has now.
func (u *unions) configure() {
	u.sets = nil
	for _, name := range []string{"a", "b", "c"} {
		u.sets = append(u.sets, eventlog.SetConfig{Name: name, Content: u.content, Whole: true, Partial: u.partial,
			Sources: []eventlog.SourceConfig{{Kind: "sip", URL: "/sip/" + name}, {Kind: "sip", URL: "/sip/" + name + "2"}}})
	}
	all := eventlog.SetConfig{Name: "all", Content: u.content, Whole: true, Partial: true}
	for _, m := range u.members {
		all.Sources = append(all.Sources, eventlog.SourceConfig{Kind: Set, URL: "set:" + u.sets[m].Name})
	}
	above := eventlog.SetConfig{Name: "above", Content: u.content, Whole: true, Partial: true, Sources: []eventlog.SourceConfig{{Kind: Set, URL: "set:all"}}}
	u.sets = append(u.sets, all, above)
	_, err := u.log.Configure(u.t.Context(), u.sets)
	u.fail(err)
}

// change has Sources say something, each in a transaction.
func (u *unions) change() {
	for range rapid.IntRange(1, 12).Draw(u.t, "changes") {
		set, source := rapid.IntRange(0, 2).Draw(u.t, "set"), rapid.IntRange(0, 1).Draw(u.t, "source")
		b := &event.Batch{Source: u.sets[set].Sources[source].ID, Mode: event.ModeSubmission, Documents: []event.Document{{URL: fmt.Sprintf("http://h.example/%d", set)}}}
		used := map[string]bool{}
		for range rapid.IntRange(1, 4).Draw(u.t, "items") {
			id := fmt.Sprintf("urn:x:%d", rapid.IntRange(0, 7).Draw(u.t, "record"))
			if used[id] {
				continue
			}
			used[id] = true
			it := &event.Item{Observation: event.Observation{Record: id}}
			if rapid.IntRange(0, 3).Draw(u.t, "deleted") == 0 {
				it.Deleted = true
				delete(u.says[set][source], id)
			} else {
				u.versions++
				it.Title = fmt.Sprintf("version %d", u.versions)
				// The original is the same for all: no Source is taken for another's echo.
				it.Representations = []event.Representation{{Href: "http://o.example/" + id, Type: "text/xml", Length: 4, Hash: "sha-256:" + strings.Repeat("ab", 32)}}
				it.Fetched = true
				u.says[set][source][id] = it.Title
				u.made[set][id] = true
			}
			b.Items = append(b.Items, it)
		}
		_, err := u.log.Append(u.t.Context(), b)
		u.fail(err)
	}
}

// state is what a set has by the model: the first Source decides.
func (u *unions) state(set int) map[string]string {
	out := maps.Clone(u.says[set][1])
	maps.Copy(out, u.says[set][0])
	return out
}

func (u *unions) source(union, place int) *Source {
	to := &u.sets[union]
	c := to.Sources[place]
	set, err := u.log.Set(u.t.Context(), to.Name)
	u.fail(err)
	src := &Source{ID: c.ID, Set: to.Name, Kind: Set, URL: c.URL, Content: u.content, Epoch: set.Feed}
	if u.perSrc && c.ID != to.First {
		src.Selection.Name = c.URL
	}
	return src
}

// take takes what a member of the union has.
func (u *unions) take(place int) {
	u.harvest(3, place)
	m := u.members[place]
	was := u.taken[m]
	u.taken[m] = u.state(m)
	if u.partial && !u.whole[m] { // what it had before it was made again may come yet
		for id, title := range was {
			if !u.made[m][id] {
				u.taken[m][id] = title
			}
		}
	}
}

// remake removes a set, and makes it again under its name.
func (u *unions) remake(m int) {
	name := u.sets[m].Name
	u.fail(u.log.RemoveSet(u.t.Context(), name))
	if rapid.Bool().Draw(u.t, "finished") {
		u.fail(u.log.FinishRemovals(u.t.Context()))
	}
	u.says[m] = [2]map[string]string{{}, {}}
	u.made[m], u.whole[m] = map[string]bool{}, false
	u.configure()
	u.change()
}

// anew has the union forget how far a member was read, or all of it, so that it begins anew.
func (u *unions) anew(place int) {
	h, src := &Harvester{Log: u.log, BatchSize: u.batch}, u.source(3, place)
	switch keep := rapid.IntRange(0, 2).Draw(u.t, "keep"); keep {
	case 0:
		u.fail(h.Reset(u.t.Context(), src.ID))
	default:
		_, err := h.Forget(u.t.Context(), src, keep == 1)
		u.fail(err)
		if u.configure(); keep == 2 {
			u.taken[u.members[place]] = map[string]string{}
		}
	}
}

// harvest takes what a set has that another is made of. An interrupted one takes a part of
// it, and goes on after a restart. Deletions that are held are released.
func (u *unions) harvest(union, place int) {
	ctx, end := context.WithCancel(u.t.Context())
	defer end()
	h := &Harvester{Log: u.log, BatchSize: u.batch}
	o := Options{Full: rapid.IntRange(0, 5).Draw(u.t, "full") == 0}
	if rapid.IntRange(0, 2).Draw(u.t, "interrupted") == 0 {
		left := rapid.IntRange(1, 6).Draw(u.t, "after")
		o.Progress = func(Progress) {
			if left--; left == 0 {
				end()
			}
		}
	}
	_, err := h.Run(ctx, u.source(union, place), o)
	if ctx.Err() != nil {
		u.restart()
		u.change()
		h = &Harvester{Log: u.log, BatchSize: u.batch}
		_, err = h.Run(u.t.Context(), u.source(union, place), Options{})
	}
	u.fail(err)
	src := u.source(union, place)
	if behind, err := h.Behind(u.t.Context(), src); behind || err != nil {
		u.t.Fatalf("%s has more after its harvest: %v", src.URL, err)
	}
	_, err = h.Release(u.t.Context(), src, event.Micros(1)<<60)
	u.fail(err)
}

func (u *unions) restart() {
	u.fail(u.log.Close())
	u.open()
}

// check compares the sets with the model.
func (u *unions) check() {
	for m := range 3 {
		u.compare(u.sets[m].Name, u.state(m))
	}
	want := map[string]string{}
	for _, m := range slices.Backward(u.ranked()) {
		for id, title := range u.taken[m] {
			if u.perSrc && m != 0 { // whose harvest was the first
				id, _ = (&translate.Selection{Name: "set:" + u.sets[m].Name}).Identifier(id)
			}
			want[id] = title
		}
	}
	u.compare("all", want)
	u.compare("above", u.above)
	u.checkOrder()
}

// checkOrder compares the order of versions: the union has those of a record in the order of
// the set that it took them from, though not each.
func (u *unions) checkOrder() {
	now, err := u.log.LastSeq(u.t.Context())
	u.fail(err)
	for ev, err := range u.log.Events(u.t.Context(), "", event.Range{After: u.read, Upto: now}) {
		if u.fail(err); ev.Kind != event.Deleted {
			key := ev.Record + " of set:" + ev.Set
			u.titles[key] = append(u.titles[key], ev.Title)
		}
	}
	u.read = now
	place := map[string]int{}
	for ev, err := range u.log.Events(u.t.Context(), "all", event.Range{Upto: now}) {
		if u.fail(err); ev.Kind == event.Deleted {
			continue
		}
		from := cmp.Or(ev.Origin.SourceIdentifier, ev.Record) + " of " + ev.Origin.Source
		next := slices.Index(u.titles[from][place[from]:], ev.Title)
		if next < 0 {
			u.t.Fatalf("%s of %s comes after %s; the set has had %v", ev.Title, from, u.titles[from][place[from]], u.titles[from])
		}
		place[from] += next
	}
}

// ranked are the members in their order, a former one last.
func (u *unions) ranked() []int {
	out := slices.Clone(u.members)
	for m := range 3 {
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// live returns what a set has: the title of each record.
func (u *unions) live(set string) map[string]string {
	s, err := u.log.Set(u.t.Context(), set)
	u.fail(err)
	got := map[string]string{}
	for ev, err := range u.log.Live(u.t.Context(), set, s.Last) {
		u.fail(err)
		got[ev.Record] = ev.Title
		if ev.Via.Href != "http://o.example/"+ev.Record && !u.perSrc {
			u.t.Fatalf("set %s: the original of %s is %s", set, ev.Record, ev.Via.Href)
		}
	}
	return got
}

func (u *unions) compare(set string, want map[string]string) {
	if got := u.live(set); !maps.Equal(got, want) {
		u.t.Fatalf("set %s has\n%v, want\n%v", set, got, want)
	}
}

// A set that is made of others has what these have, whatever happens to their Sources,
// however its harvests end, and whichever of them belong to it meanwhile.
func TestSetsOfSets(t *testing.T) {
	t.Parallel()
	testenv.Checks(t, 30)
	folder, n := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		u := &unions{t: t, folder: filepath.Join(folder, fmt.Sprint(n)), content: rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(t, "content"),
			perSrc: rapid.Bool().Draw(t, "per-source"), partial: rapid.IntRange(0, 3).Draw(t, "partial") == 0, members: []int{0, 1, 2}, batch: rapid.IntRange(1, 9).Draw(t, "batch")}
		for m := range 3 {
			u.says[m] = [2]map[string]string{{}, {}}
			u.taken[m], u.made[m] = map[string]string{}, map[string]bool{}
		}
		u.titles = map[string][]string{}
		u.open()
		defer func() { u.fail(u.log.Close()) }()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 10).Draw(t, "step") {
			case 0, 1:
				u.change()
			case 2, 3, 4:
				u.take(rapid.IntRange(0, len(u.members)-1).Draw(t, "member"))
			case 7:
				u.harvest(4, 0)
				u.above = u.live("all")
			case 8:
				u.remake(rapid.IntRange(0, 2).Draw(t, "set"))
			case 9: // what was partial is walked whole
				m := rapid.IntRange(0, 2).Draw(t, "set")
				u.fail(u.log.MarkSetComplete(t.Context(), u.sets[m].Name))
				u.whole[m] = true
			case 10:
				u.anew(rapid.IntRange(0, len(u.members)-1).Draw(t, "member"))
			case 5:
				u.restart()
			case 6: // the last member leaves, or comes back
				if len(u.members) == 3 {
					u.members = []int{0, 1}
				} else {
					u.members = []int{0, 1, 2}
				}
				u.configure()
			}
			u.check()
		}
	})
}

// Under its name a Source becomes another set, or a server becomes a set: places of events
// that were taken before say nothing of the events of that set. What it had before stays,
// behind what there is now, until it is forgotten.
func TestAnotherSet(t *testing.T) {
	t.Parallel()
	for _, was := range []eventlog.SourceConfig{{Name: "member", Kind: Set, URL: "set:a"}, {Name: "member", Kind: AtomPMH, URL: "http://h.example/"}} {
		ctx := t.Context()
		log, err := eventlog.Open(ctx, t.TempDir(), eventlog.Options{})
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(err)
		sets := []eventlog.SetConfig{{Name: "a", Sources: []eventlog.SourceConfig{{Kind: "sip", URL: "/sip/a"}}}, {Name: "b", Sources: []eventlog.SourceConfig{{Kind: "sip", URL: "/sip/b"}}},
			{Name: "all", Sources: []eventlog.SourceConfig{was}}}
		for i := range sets {
			sets[i].Content, sets[i].Whole = event.Reference, true
		}
		say := func(source event.SourceID, mode event.Mode, title string, records ...string) {
			t.Helper()
			b := &event.Batch{Source: source, Mode: mode, Documents: []event.Document{{URL: "http://h.example/"}}}
			for _, id := range records {
				it := &event.Item{Observation: event.Observation{Record: id, Title: title, Representations: []event.Representation{{Href: "http://o.example/" + id, Type: "text/xml", Length: 4}}}}
				if mode == event.ModeWalk {
					it.Order, _ = event.StampOf(time.Unix(1_700_000_000, 0))
				}
				b.Items = append(b.Items, it)
			}
			_, err := log.Append(ctx, b)
			must(err)
		}
		harvestAll := func() {
			t.Helper()
			set, err := log.Set(ctx, "all")
			must(err)
			c := sets[2].Sources[0]
			_, err = (&Harvester{Log: log}).Run(ctx, &Source{ID: c.ID, Set: "all", Kind: Set, URL: c.URL, Content: event.Reference, Epoch: set.Feed}, Options{})
			must(err)
		}
		_, err = log.Configure(ctx, sets)
		must(err)
		say(sets[1].Sources[0].ID, event.ModeSubmission, "of b", "urn:x:1", "urn:x:2")
		say(sets[0].Sources[0].ID, event.ModeSubmission, "before", "urn:x:1", "urn:x:3")
		if was.Kind == Set {
			harvestAll()
		} else {
			say(sets[2].Sources[0].ID, event.ModeWalk, "before", "urn:x:1", "urn:x:3")
		}
		sets[2].Sources = []eventlog.SourceConfig{{Name: "member", Kind: Set, URL: "set:b"}}
		_, err = log.Configure(ctx, sets)
		must(err)
		harvestAll()
		got := map[string]string{}
		for ev, err := range log.Live(ctx, "all", 1<<40) {
			must(err)
			got[ev.Record] = ev.Title
		}
		if want := map[string]string{"urn:x:1": "of b", "urn:x:2": "of b", "urn:x:3": "before"}; !maps.Equal(got, want) {
			t.Errorf("after %s the set has %v, want %v", was.URL, got, want)
		}
		must(log.Close())
	}
}
