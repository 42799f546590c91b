package eventlogtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
)

// linked returns items of which the first links to targets.
func linked(words string, targets ...string) []*event.Item {
	all := items(words)
	for _, target := range targets {
		all[0].Links = append(all[0].Links, event.Link{Rel: "describedby", Href: href(target), Length: 3, Record: "urn:" + target})
	}
	return all
}

// waiting returns items whose content could not be had.
func waiting(words string) []*event.Item {
	all := items(words)
	for i := range all {
		all[i].Pending, all[i].Fetched = "503", false
	}
	return all
}

// tellLinks is tell, with the links of the record whose targets the set has.
func tellLinks(ev *event.Event) string {
	s := tell(ev)
	for _, l := range ev.Links {
		if l.InSet {
			s += " > " + strings.TrimPrefix(l.Record, "urn:")
		}
	}
	return s
}

// D7: a link leads to a record for as long as the set has it, in whichever batch and
// order the records and links arrive.
func testLinks(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "one", "two")
	for _, c := range []struct {
		name   string
		source int
		items  []*event.Item
		want   string
	}{
		{"both in one batch, the target last", 0, linked("a@1=x b@1=x", "b"), "created a@1=x > b, created b@1=x"},
		{"the target is missing", 0, linked("c@1=x", "d"), "created c@1=x"},
		{"the target comes later", 0, items("d@1=x"), "created d@1=x, updated c@1=x > d"},
		{"the same again", 0, linked("c@2=x d@2=x", "d"), ""},
		{"the target goes", 0, items("-d@3"), "deleted d@3, updated c@1=x"},
		{"the target goes with the describer's update", 0, linked("a@2=y -b@2", "b"), "updated a@2=y, deleted b@2"},
		{"the target comes back, from another Source", 1, items("b@2=x"), "created b@2=x, updated a@2=y > b"},
		{"the target is quarantined", 0, linked("e@1=x !f", "f"), "created e@1=x"},
		{"the target is not selected", 0, linked("q@1=x ~r", "r"), "created q@1=x"},
		{"the target waits for its content", 0, append(linked("s@1=x", "t"), waiting("t@1=x")...), "created s@1=x"},
		{"a tombstone is no target", 0, linked("g@1=x -h@1", "h"), "created g@1=x"},
		{"a deletion by a Source that is not the authority", 0, linked("i@1=x -b@3", "b"), "created i@1=x, updated i@1=x > b"},
		{"to itself", 0, linked("j@1=x", "j"), "created j@1=x > j"},
		{"the describer goes, then the target", 0, append(items("-i@2 -a@3"), items("-j@2")...), "deleted i@2, deleted a@3, deleted j@2"},
		{"nobody links to it any more", 1, items("-b@4"), "deleted b@4"},
		{"the authority has no link", 0, items("n@1=x"), "created n@1=x"},
		{"another Source has one", 1, linked("n@1=y", "o"), ""},
		{"its target comes", 0, items("o@1=x"), "created o@1=x"},
		{"it becomes the authority, in one event", 0, items("-n@2"), "updated n@1=y > o"},
		{"two targets come, one of them twice", 0, linked("k@1=x", "l", "m", "l"), "created k@1=x"},
		{"they come", 0, items("l@1=x m@1=x"), "created l@1=x, created m@1=x, updated k@1=x > l > m > l"},
		{"without a time", 0, linked("p=x", "l"), "created p=x > l"},
		{"the same again", 0, linked("p=x", "l"), ""},
	} {
		b.batch(c.source, &event.Batch{Items: c.items})
		var news []string
		for ev, err := range b.log.Events(context.Background(), "main", event.Range{After: b.seen, Upto: math.MaxInt64}) {
			b.must(err)
			b.seen = ev.Seq
			news = append(news, tellLinks(ev))
		}
		if got := strings.Join(news, ", "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// D116: a representation keeps its name when its record is deleted and comes back.
func testNamesStay(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	both := func(words, first, second string) []*event.Item {
		all := items(words)
		r := all[0].Representations[0]
		all[0].Representations = []event.Representation{r, r}
		all[0].Representations[0].Href, all[0].Representations[1].Href = href(first), href(second)
		return all
	}
	names := func() map[string]string {
		ev, err := b.log.Record(context.Background(), "main", event.Key("urn:a"))
		b.must(err)
		out := map[string]string{}
		for _, r := range ev.Representations {
			out[r.Href] = r.Name
		}
		return out
	}
	b.batch(0, &event.Batch{Items: both("a@1=x", "one", "two")})
	want := names()
	b.batch(0, &event.Batch{Items: items("-a@2")})
	if got := names(); len(got) != 0 {
		t.Errorf("a deleted record has %v", got)
	}
	b.batch(0, &event.Batch{Items: both("a@3=x", "two", "one")})
	if got := names(); len(got) != 2 || got[href("one")] != want[href("one")] || got[href("two")] != want[href("two")] {
		t.Errorf("names %v, before %v", got, want)
	}
	b.seen = math.MaxInt64
}

// D7: when a record that many describe comes or goes, all of these get an event.
func testManyLinks(t *testing.T) {
	const n = 2500
	b := begin(t, set{content: event.Redirect})
	var all []*event.Item
	for i := range n {
		all = append(all, linked(fmt.Sprintf("r%d@1=x", i), "hub")...)
	}
	b.batch(0, &event.Batch{Items: all})
	for i, c := range []struct{ words, want string }{{"hub@1=x", "hub"}, {"-hub@2", ""}} {
		out := b.batch(0, &event.Batch{Items: items(c.words)})
		if out.Updated != n {
			t.Errorf("%s: %d records were updated, want %d", c.words, out.Updated, n)
		}
		seen := 0
		for ev, err := range b.log.Live(context.Background(), "main", math.MaxInt64) {
			b.must(err)
			if len(ev.Links) == 1 {
				if seen++; ev.Links[0].InSet != (i == 0) {
					t.Fatalf("%s: %s", c.words, tellLinks(ev))
				}
			}
		}
		if seen != n {
			t.Errorf("%d records with links, want %d", seen, n)
		}
	}
	b.seen = math.MaxInt64
}

// LinkLaws: over random histories of two Sources, after each transaction every link between
// records shows whether the set has its target (D7), a URI that records share has one owner,
// and Verify finds nothing.
func LinkLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom([]event.Content{event.Redirect, event.Reference}).Draw(t, "content")
		b := begin(t, set{content: content, segmentEvents: 3}, "one", "two")
		records := []string{"a", "b", "c", "d", "e"}
		item := func() *event.Item {
			word := rapid.SampledFrom(records).Draw(t, "record")
			uri := rapid.SampledFrom([]string{"", "", ">x", ">a"}).Draw(t, "uri")
			stamp := fmt.Sprintf("@%d", rapid.IntRange(1, 9).Draw(t, "stamp"))
			switch rapid.IntRange(0, 8).Draw(t, "kind") {
			case 0, 1, 2:
				return items("-" + word + stamp)[0]
			case 3:
				return items(rapid.SampledFrom([]string{"!", "~"}).Draw(t, "no state") + word + stamp)[0]
			}
			targets := rapid.SliceOfN(rapid.SampledFrom(records), 0, 3).Draw(t, "targets")
			return linked(word+uri+stamp+"="+rapid.SampledFrom([]string{"x", "y"}).Draw(t, "content"), targets...)[0]
		}
		for range rapid.IntRange(1, 12).Draw(t, "transactions") {
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				b.names = rapid.Permutation([]string{"one", "two"}).Draw(t, "order")
				b.reopen()
			}
			var batches []*event.Batch
			for range rapid.IntRange(1, 3).Draw(t, "batches") {
				in := &event.Batch{Start: rapid.Bool().Draw(t, "start"), Next: []byte("on")}
				if rapid.IntRange(0, 5).Draw(t, "absent") == 0 {
					in.Mode = event.ModeAbsent
					in.Items = items("-" + rapid.SampledFrom(records).Draw(t, "record"))
				}
				for range rapid.IntRange(1, 4).Draw(t, "items") {
					if in.Mode == event.ModeWalk {
						in.Items = append(in.Items, item())
					}
				}
				batches = append(batches, in)
			}
			b.must(b.together(rapid.IntRange(0, 1).Draw(t, "source"), batches, nil))
			b.linksHold()
		}
	})
}

// linksHold fails the test if a link does not show whether its target is live, or a URI does
// not have one owner.
func (b *bench) linksHold() {
	live, owners := map[string][]event.Link{}, map[string]int{}
	for ev, err := range b.log.Live(context.Background(), "main", math.MaxInt64) {
		b.must(err)
		live[ev.Record] = slices.Clone(ev.Links)
		if owners[ev.Loc] += 0; !ev.Unlisted {
			owners[ev.Loc]++
		}
	}
	for id, links := range live {
		for _, l := range links {
			if _, there := live[l.Record]; there != l.InSet {
				b.t.Fatalf("%s links to %s, in the set: %v, and that is live: %v", id, l.Record, l.InSet, there)
			}
		}
	}
	for uri, n := range owners {
		if n != 1 && uri != "" {
			b.t.Fatalf("%d records own %s", n, uri)
		}
	}
}
