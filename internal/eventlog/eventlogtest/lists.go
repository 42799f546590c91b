package eventlogtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// placed puts items into a list, at the positions 1, 2, and so on.
func placed(list int64, words string) []*event.Item {
	all := items(words)
	for i := range all {
		all[i].Place = event.Place{List: list, Position: int64(i + 1)}
	}
	return all
}

// baseline makes items those of a list of all records as they were at a moment.
func baseline(at int64, words string) []*event.Item {
	all := items(words)
	for i := range all {
		all[i].Baseline, all[i].Order = true, event.StampFromNanos(at)
		all[i].Place = event.Place{List: 99}
	}
	return all
}

// pass reads lists, one after the other, in a walk of its own that it ends.
func (b *bench) pass(lists ...[]*event.Item) string {
	b.t.Helper()
	var out []event.Outcome
	for i, l := range lists {
		out = append(out, b.batch(0, &event.Batch{Start: i == 0, Next: []byte("on"), Items: l}).Outcomes...)
	}
	b.end(0)
	return outcomes(out)
}

// Reading a list of changes again does no harm: an item that is no later than the one
// that was applied last is left alone, whatever it reports.
func testLists(t *testing.T) {
	none := placed(3, "!other")
	late := placed(1, "a@90=future")
	late[0].Late = true
	newer, older := placed(2, "-a@5"), placed(1, "a@5=x")
	newer[0].Place.From, older[0].Place.From = event.StampFromNanos(5), event.StampFromNanos(1)
	for _, c := range []struct {
		name     string
		before   [][]*event.Item
		now      [][]*event.Item
		outcomes string
		events   string
	}{
		{"an older list again", [][]*event.Item{placed(2, "a@2=new"), placed(1, "a@1=old")}, [][]*event.Item{placed(1, "a@1=old")}, "historical", ""},
		{"an older deletion again", [][]*event.Item{placed(2, "a@2=new"), placed(1, "-a@1")}, [][]*event.Item{placed(1, "-a@1")}, "historical", ""},
		{"the same list again", [][]*event.Item{placed(1, "a@1=x b@2=y")}, [][]*event.Item{placed(1, "a@1=x b@2=y")}, "unchanged unchanged", ""},
		{"a newer change", [][]*event.Item{placed(1, "a@1=x")}, [][]*event.Item{placed(1, "a@2=y")}, "logged", "updated a@2=y"},
		{"the newest list first", nil, [][]*event.Item{placed(2, "a@2=new"), placed(1, "a@1=old -b@1")}, "logged historical tombstone", "created a@2=new"},
		{"a later change in an older list", nil, [][]*event.Item{placed(2, "a@2=x"), placed(1, "a@3=y")}, "logged logged", "created a@2=x, updated a@3=y"},
		{"equal stamps, further on", [][]*event.Item{placed(1, "a@5=x")}, [][]*event.Item{placed(1, "!b a@5=y")}, "bad logged", "updated a@5=y"},
		{"corrected in place", [][]*event.Item{placed(1, "a@5=x b=x")}, [][]*event.Item{placed(1, "a@5=y b=y")}, "logged logged", "updated a@5=y, updated b=y"},
		{"equal stamps, a stale copy", [][]*event.Item{placed(1, "!b a@5=y")}, [][]*event.Item{placed(1, "a@5=x")}, "unchanged", ""},
		{"equal stamps, the list has moved", [][]*event.Item{placed(1, "!b a@5=y")}, [][]*event.Item{placed(2, "a@5=y")}, "unchanged", ""},
		{"equal stamps, another list", [][]*event.Item{placed(1, "!b a@5=y")}, [][]*event.Item{placed(2, "a@5=z")}, "logged", "updated a@5=z"},
		{"equal stamps, when the newer list has gone", [][]*event.Item{newer, older}, [][]*event.Item{older}, "historical", ""},
		{"no stamps, again", [][]*event.Item{placed(1, "a=x")}, [][]*event.Item{placed(1, "a=x")}, "unchanged", ""},
		{"no stamps, further on", [][]*event.Item{placed(1, "a=x")}, [][]*event.Item{placed(1, "!b a=y")}, "bad logged", "updated a=y"},
		{"no stamps, a stale copy", [][]*event.Item{placed(1, "!b a=y")}, [][]*event.Item{placed(1, "a=x")}, "unchanged", ""},
		{"no stamps, in two lists", nil, [][]*event.Item{placed(2, "a=x"), placed(1, "a=w")}, "logged historical", "created a=x"},
		{"a stamp after none", [][]*event.Item{placed(1, "a=x")}, [][]*event.Item{placed(2, "a@1=y")}, "logged", "updated a@1=y"},
		{"none after a stamp", [][]*event.Item{placed(1, "a@9=x")}, [][]*event.Item{placed(2, "a=y")}, "logged", "updated a@9=y"},
		{"after a stamp in the future", [][]*event.Item{late}, [][]*event.Item{placed(2, "a@6=y")}, "logged", "updated a@6=y"},
		{"a deletion, then created again", [][]*event.Item{placed(1, "a@1=x -a@2")}, [][]*event.Item{placed(1, "!b !c a@3=x")}, "bad bad logged", "created a@3=x"},
		{"a baseline that is older", [][]*event.Item{placed(1, "a@5=x -b@5 -c@5")}, [][]*event.Item{none, baseline(4, "a=old b=old")}, "bad historical historical", ""},
		{"a baseline that is newer", [][]*event.Item{placed(1, "a@5=x -b@5 c@5=z")}, [][]*event.Item{none, baseline(6, "a=new b=new c=z")}, "bad logged logged unchanged", "updated a@5=new, created b=new"},
		{"the same baseline again", [][]*event.Item{baseline(6, "a=x")}, [][]*event.Item{baseline(7, "a=x")}, "unchanged", ""},
		{"a baseline without a moment", [][]*event.Item{baseline(6, "a=x")}, [][]*event.Item{unmoved(baseline(0, "a=y"))}, "logged", "updated a=y"},
		{"changes, then the baseline", nil, [][]*event.Item{placed(1, "a@7=x -b@7"), baseline(6, "a=old b=old c=z")}, "logged tombstone historical historical logged", "created a@7=x, created c=z"},
		{"twice in a baseline", nil, [][]*event.Item{baseline(6, "a=x a=y")}, "logged historical", "created a=x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := begin(t, set{content: event.Redirect, kind: "resourcesync"})
			if c.before != nil {
				b.pass(c.before...)
			}
			b.news()
			b.reopen()
			b.want("outcomes", b.pass(c.now...), c.outcomes)
			b.want("events", b.news(), c.events)
		})
	}
}

// A baseline repeats what the Source reported last, and in the same batch a change of the same
// moment comes before it. Neither is news.
func testListsTogether(t *testing.T) {
	b := begin(t, set{content: event.Redirect, kind: "resourcesync"})
	linked := func(all []*event.Item) []*event.Item {
		all[0].Links = []event.Link{{Rel: "describedby", Href: href("b"), Length: 3, Record: "urn:b"}}
		return all
	}
	list := func() []*event.Item { return linked(baseline(1, "a=x b=x")) }
	b.want("first", b.pass(list()), "logged logged")
	b.news()
	b.want("together", b.pass(append(linked(placed(1, "a@1=x")), list()...)), "unchanged unchanged unchanged")
	b.want("events", b.news(), "")
}

// When a Source gets another kind, a record that a list of changes mentioned last, without a
// time, and that the Source does not have any more, is deleted without a question.
func testAbsentOfOtherKind(t *testing.T) {
	b := begin(t, set{content: event.Redirect, kind: "resourcesync"})
	b.pass(placed(1, "a=x b=x"))
	b.set.kind = "atompmh"
	b.reopen()
	b.walk("b@1=x")
	ids, _, err := b.log.Absent(context.Background(), b.sources[0], event.Stamp{}, 0, 10)
	b.must(err)
	b.want("absent", strings.Join(ids, " "), "urn:a")
	b.want("outcome", b.more(event.ModeAbsent, "-a"), "logged")
	b.want("live", b.now(), "b")
}

// A new record that waits for its content, and that a list of changes has mentioned in this walk
// without a time, may be later than the list of all resources that does not have it.
func testAbsentWhileItWaits(t *testing.T) {
	b := begin(t, set{content: event.Mirror, kind: "resourcesync"})
	waits := placed(1, "a=x")
	waits[0].Pending, waits[0].Fetched = "no answer", false
	for _, walk := range []struct {
		lists  [][]*event.Item
		absent string
	}{{[][]*event.Item{waits, baseline(9, "b=x")}, ""}, {[][]*event.Item{baseline(10, "b=x")}, "urn:a"}} {
		for i, l := range walk.lists {
			b.batch(0, &event.Batch{Start: i == 0, Next: []byte("on"), Items: l})
		}
		b.reopen()
		ids, _, err := b.log.Absent(context.Background(), b.sources[0], event.StampFromNanos(9), 0, 10)
		b.must(err)
		b.want("absent", strings.Join(ids, " "), walk.absent)
		b.end(0)
	}
}

// A record of one of several sets of resources that no list of all resources has, and that a list
// of changes mentioned last, without a time, is deleted when its URL confirms that.
func testAbsentInParts(t *testing.T) {
	for _, answer := range []event.Answer{event.Confirmed, event.Refuted} {
		b := begin(t, set{content: event.Redirect, kind: "resourcesync"})
		changes, none := placed(1, "a=x"), baseline(9, "b=x")
		changes[0].Place.Part = 1
		b.pass(changes)
		b.news()
		b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: none})
		ids, _, err := b.log.Absent(context.Background(), b.sources[0], event.StampFromNanos(9), 0, 10, event.Enumerated{Part: 0}, event.Enumerated{Part: 1})
		b.must(err)
		b.want("absent", strings.Join(ids, " "), "urn:a")
		b.want("outcome", outcomes(b.batch(0, &event.Batch{Mode: event.ModeAbsent, Parts: []int{0, 1}, Next: []byte("on"), Items: items("-a")}).Outcomes), "needs-content")
		waits, err := b.log.Pending(context.Background(), b.sources[0], math.MaxInt64, 0, 10)
		b.must(err)
		b.batch(0, &event.Batch{Mode: event.ModeSettle, Next: []byte("on"), Items: []*event.Item{{Observation: waits[0].Observation, Answer: answer}}})
		b.end(0)
		b.want("live", b.now(), map[event.Answer]string{event.Confirmed: "b", event.Refuted: "a b"}[answer])
		b.sound()
	}
}

// A record that has moved from one set of resources to another, and whose content waits, is not
// absent.
func testMovedToPart(t *testing.T) {
	b := begin(t, set{content: event.Mirror, kind: "resourcesync"})
	b.pass(placed(1, "a@1=x"))
	moved := baseline(9, "a=y")
	moved[0].Place.Part, moved[0].Pending, moved[0].Fetched = 1, "no answer", false
	b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: moved})
	ids, _, err := b.log.Absent(context.Background(), b.sources[0], event.StampFromNanos(9), 0, 10, event.Enumerated{Part: 0}, event.Enumerated{Part: 1})
	b.must(err)
	b.want("absent", strings.Join(ids, " "), "")
}

// What waits for its content in one set of resources goes on to wait when another one does not have
// the record any more. It is deleted when that one does not have it either.
func testDeletedInOtherPart(t *testing.T) {
	in := func(part int, words string) []*event.Item {
		all := placed(int64(1+part), words)
		for i := range all {
			all[i].Place.Part = part
		}
		return all
	}
	for n, before := range []string{"", "a@1=x", "", "a@1=x"} {
		b := begin(t, set{content: event.Mirror, kind: "resourcesync"})
		one, other := n/2, 1-n/2
		b.pass(in(one, before))
		waits := in(other, "a@3=y")
		waits[0].Pending, waits[0].Fetched = "no answer", false
		b.want("outcomes", b.pass(waits, in(one, "!z -a@4")), "waiting bad unchanged")
		waits[0].Pending, waits[0].Fetched = "", true
		b.want("settled", outcomes(b.batch(0, &event.Batch{Mode: event.ModeSettle, Next: []byte("on"), Items: waits}).Outcomes), "logged")
		b.end(0)
		b.want("live", b.now(), "a")
		b.want("outcomes", b.pass(in(other, "!z -a@5")), "bad logged")
		b.want("live", b.now(), "")
		b.sound()
	}
	for one := range 2 { // whose report takes the place of the one that waits
		b := begin(t, set{content: event.Mirror, kind: "resourcesync"})
		waits := in(1-one, "a@1=x")
		waits[0].Pending, waits[0].Fetched = "no answer", false
		b.want("outcomes", b.pass(waits, in(one, "a@2=x")), "waiting logged")
		b.want("outcomes", b.pass(in(one, "!z -a@3")), "bad unchanged")
		b.want("live", b.now(), "a")
		b.want("outcomes", b.pass(in(1-one, "!z -a@4")), "bad logged")
		b.want("live", b.now(), "")
		b.sound()
	}
}

func unmoved(all []*event.Item) []*event.Item {
	for i := range all {
		all[i].Order = event.Stamp{}
	}
	return all
}

// What waits for its content keeps its place: an older change does not replace
// it, a newer one does.
func testListsPending(t *testing.T) {
	b := begin(t, set{content: event.Mirror, kind: "resourcesync"})
	waits := placed(1, "!z a@5=x")
	waits[1].Pending, waits[1].Fetched = "no answer", false
	b.want("first", b.pass(waits), "bad waiting")
	b.reopen()
	b.want("older", b.pass(placed(2, "a@4=old")), "historical")
	b.want("stale", b.pass(placed(1, "a@5=old")), "unchanged")
	kept, err := b.log.Pending(context.Background(), b.sources[0], 1<<62, 0, 10)
	b.must(err)
	if len(kept) != 1 || kept[0].Place != (event.Place{List: 1, Position: 2}) || kept[0].Order != event.StampFromNanos(5) {
		t.Fatalf("pending %+v", kept)
	}
	settled := &event.Item{Observation: kept[0].Observation}
	settled.Fetched = true
	out := b.batch(0, &event.Batch{Mode: event.ModeSettle, Items: []*event.Item{settled}})
	b.want("settled", outcomes(out.Outcomes), "logged")
	b.want("older, once it is settled", b.pass(placed(2, "a@4=old")), "historical")
	b.want("events", b.news(), "created a@5=x")
}

// A list of all records proves nothing about a record that changed after the list's
// moment. Without a moment it proves nothing about a record that a list of changes
// mentioned last (D82).
func testAbsentAt(t *testing.T) {
	b := begin(t, set{content: event.Redirect, kind: "resourcesync"}, "one", "two")
	late := placed(1, "d@99=x")
	late[0].Late = true
	b.pass(placed(1, "a@5=x b@7=x c=x"), late)
	waits := placed(1, "e@8=x")
	waits[0].Pending = "no answer"
	b.pass(waits)
	b.batch(1, &event.Batch{Start: true, Items: placed(7, "a@9=x f@1=x")})
	b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: placed(2, "!z")})
	for _, c := range []struct {
		at     event.Stamp
		absent string
	}{
		{event.Stamp{}, ""},
		{event.StampFromNanos(4), "urn:c urn:d"},
		{event.StampFromNanos(5), "urn:a urn:c urn:d"},
		{event.StampFromNanos(7), "urn:a urn:b urn:c urn:d"},
		{event.StampFromNanos(8), "urn:a urn:b urn:c urn:d urn:e"},
	} {
		absent, have, err := b.log.CountAbsent(context.Background(), b.sources[0], c.at)
		b.must(err)
		var got string
		for after := int64(0); ; {
			ids, next, err := b.log.Absent(context.Background(), b.sources[0], c.at, after, 1)
			b.must(err)
			if len(ids) == 0 {
				break
			}
			after = next
			got += ids[0] + " "
			absent--
		}
		b.want("absent at "+c.at.String(), strings.TrimSpace(got), c.absent)
		if have != 5 || absent != 0 {
			t.Errorf("at %s: %d records, %d more absent than were named", c.at, have, absent)
		}
	}
}

// A record in a Resource List exists, even if the list describes it in less detail than
// what is stored. An entry in a list of changes does not prove that, if it is older than
// the Resource List (D104).
func testThereInBaseline(t *testing.T) {
	b := begin(t, set{content: event.Redirect, kind: "resourcesync"})
	b.pass(placed(2, "a@5=x"))
	b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: placed(1, "a@3=old b@3=x")})
	b.batch(0, &event.Batch{Next: []byte("on"), Items: baseline(6, "a=x")})
	for at, want := range map[event.Stamp]string{{}: "", event.StampFromNanos(2): "", event.StampFromNanos(6): "urn:b"} {
		ids, _, err := b.log.Absent(context.Background(), b.sources[0], at, 0, 10)
		b.must(err)
		b.want("absent at "+at.String(), strings.Join(ids, " "), want)
	}
}

// fromBridge gives items the via that another bridge names.
func fromBridge(words string, via ...string) []*event.Item {
	all := items(words)
	for i := range all {
		if i < len(via) {
			all[i].Via = event.Link{Href: href(via[i]), Length: event.NoLength}
		}
	}
	return all
}

// A record that a bridge returns is no presence if the set has it, or had it, from a
// Source of its own: else a record that is deleted at its origin would live on in a cycle
// of bridges.
func testLoopback(t *testing.T) {
	b := begin(t, set{content: event.Mirror}, "origin", "bridge")
	bridge := func(words string, via ...string) string {
		t.Helper()
		out := b.batch(1, &event.Batch{Start: true, Items: fromBridge(words, via...)})
		return outcomes(out.Outcomes)
	}
	origin := func(words string) {
		t.Helper()
		b.walk(words)
		b.end(0)
	}
	origin("a@1=x b@1=x")
	b.want("given back, and others", bridge("a@5=x b@5=x c@5=x", "a", "elsewhere", "c0"), "loopback suppressed logged")
	needs, err := b.log.NeedsContent(context.Background(), &event.Batch{Source: b.sources[1], Items: fromBridge("a@6=x c@6=x", "a", "c0")})
	b.must(err)
	if len(needs) != 2 || needs[0] || !needs[1] {
		t.Errorf("contents are needed: %v, want none of a record that comes back", needs)
	}
	origin("-a@2 -b@2")
	b.want("deleted at the origin", b.now(), "b c")
	b.reopen()
	b.want("still there at the bridge", bridge("a@7=x", "a"), "loopback")
	b.want("stays deleted", b.now(), "b c")
	origin("c@3=y")
	b.want("given back before it came", bridge("d@8=z", "d"), "logged")
	origin("d@4=z")
	origin("-d@5")
	b.want("its origin has it, then deletes it", b.now(), "b c")
	b.want("a bridge deletes what it gave back", bridge("-d@9"), "tombstone")
	b.want("events", b.news(), "created a@1=x, created b@1=x, created c@5=x, deleted a@2, updated b@5=x, updated c@3=y, created d@8=z, deleted d@5")
}

// A bridge may be behind: it may return a record with the previous URL of the original.
func testLoopbackOfFormer(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "origin", "bridge")
	for _, says := range []string{"a>v1@1=x", "a>v2@2=x", "a>v3@3=x"} {
		b.walk(says)
		b.end(0)
		b.reopen()
	}
	for i, via := range []string{"v2", "v1", "v3"} {
		out := b.batch(1, &event.Batch{Start: true, Items: fromBridge(fmt.Sprintf("a@1%d=x", i), via)})
		b.want("given back as "+via, outcomes(out.Outcomes), "loopback")
	}
	b.walk("-a@9")
	b.end(0)
	b.reopen()
	out := b.batch(1, &event.Batch{Start: true, Items: fromBridge("a@22=x", "v1")})
	b.want("given back after the end", outcomes(out.Outcomes), "loopback")
	out = b.batch(1, &event.Batch{Start: true, Items: fromBridge("a@23=x", "elsewhere")})
	b.want("from elsewhere", outcomes(out.Outcomes), "logged")
	b.want("live", b.now(), "a")
}

// A bridge names the original by a URI, also where its Source writes an address that is none.
func testLoopbackAsURI(t *testing.T) {
	for _, mode := range []event.Content{event.Mirror, event.Reference} {
		b := begin(t, set{content: mode}, "origin", "bridge")
		at := func(words, address string) []*event.Item {
			it := items(words)
			it[0].Representations[0].Href = href(address)
			it[0].Claim = it[0].ClaimOf()
			return it
		}
		for i, address := range []string{"v 1", "ü[2]", "3|"} {
			b.batch(0, &event.Batch{Start: true, Items: at(fmt.Sprintf("a@%d=%d", i+1, i), address)})
		}
		b.news()
		for i, via := range []string{"3%7C", "v%201", "v 1", "%C3%BC%5B2%5D"} {
			out := b.batch(1, &event.Batch{Start: true, Items: fromBridge(fmt.Sprintf("a@1%d=2", i), via)})
			b.want(mode.String()+", given back as "+via, outcomes(out.Outcomes), "loopback")
		}
		b.walk("-a@9")
		b.end(0)
		b.want("deleted at the origin", b.now(), "")
	}
}

// The set has had a record from a Source of its own also when another one's version is, or
// was, published since.
func testLoopbackOfReplaced(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "one", "two", "bridge")
	bridge := func(stamp int, via, want string) {
		t.Helper()
		b.reopen()
		out := b.batch(2, &event.Batch{Start: true, Items: fromBridge(fmt.Sprintf("a@%d=x", stamp), via)})
		b.want("given back as "+via, outcomes(out.Outcomes), want)
	}
	b.walkOf(0, "a>v1@1=x")
	b.walkOf(1, "a>v2@1=y")
	b.walkOf(0, "-a@2")
	bridge(5, "v1", "loopback")
	b.walkOf(0, "a>v3@3=z")
	b.walkOf(1, "-a@4")
	bridge(6, "v2", "loopback")
	b.walkOf(0, "-a@4")
	b.want("deleted at both", b.now(), "")
	for i, via := range []string{"v1", "v2", "v3"} {
		bridge(7+2*i, "elsewhere", "logged")
		bridge(8+2*i, via, "logged")
		b.want("given back instead as "+via, b.now(), "")
	}
}

// A bridge with per-source identifiers uses the Source's identifier for a record, which
// may be the one that we use.
func testLoopbackOfOwn(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "origin", "bridge")
	b.walk("a@1=x")
	b.end(0)
	back := fromBridge("own-a@5=x own-b@5=x", "a", "b")
	back[0].SourceIdentifier, back[1].SourceIdentifier = "urn:a", "urn:b"
	out := b.batch(1, &event.Batch{Start: true, Items: back})
	b.want("given back, and another", outcomes(out.Outcomes), "loopback logged")
	b.want("live", b.now(), "a own-b")
	b.walk("b@2=x")
	back[1].Order, back[1].Modified, back[1].Claim = event.StampFromNanos(6), event.StampFromNanos(6), 0
	out = b.batch(1, &event.Batch{Start: true, Items: back[1:]})
	b.want("given back unchanged, now that its origin is here", outcomes(out.Outcomes), "logged")
	b.want("live", b.now(), "a b")
}

// A record of an OAI-PMH repository has a URL in each format: it is one original.
func testLoopbackOfFormats(t *testing.T) {
	b := begin(t, set{content: event.Redirect}, "origin", "bridge")
	at := func(base, prefix, id string) string {
		return base + "?verb=GetRecord&identifier=" + id + "&metadataPrefix=" + prefix
	}
	const former, base = "https://former.example/oai", "https://origin.example/oai"
	for i, from := range []string{former, base} {
		own := items(fmt.Sprintf("a@%d=x b@%d=x", i+1, i+1))
		own[0].Representations[0].Href, own[1].Representations[0].Href = at(from, "mods", "a"), at(from, "mods", "b")
		b.batch(0, &event.Batch{Start: true, Items: own})
		b.reopen()
	}
	back := fromBridge("a@5=x b@5=x")
	for _, c := range []struct{ via, outcomes string }{
		{at(base, "oai_dc", "a"), "loopback suppressed"},
		{at(former, "oai_dc", "a"), "loopback suppressed"},
		{at(base, "oai_dc", "b"), "suppressed suppressed"},
		{at("https://elsewhere.example/oai", "mods", "a"), "suppressed suppressed"},
	} {
		for i := range back {
			back[i].Via, back[i].Order = event.Link{Href: c.via, Length: event.NoLength}, back[i].Order.Add(1)
		}
		back[1].Via.Href = "https://elsewhere.example/"
		out := b.batch(1, &event.Batch{Start: true, Items: back})
		b.want("given back as "+c.via, outcomes(out.Outcomes), c.outcomes)
	}
}

// Categories are part of the state: when they alone change, that is an event. Their order
// is not. A deletion has those of the record.
func testCategories(t *testing.T) {
	b := begin(t, set{content: event.Mirror}, "origin")
	maps, old, label := event.Category{Term: "maps", Scheme: "urn:s", Label: "Maps"}, event.Category{Term: "old"}, event.Category{Term: "maps", Scheme: "urn:s", Label: "Karten"}
	for i, c := range []struct {
		categories []event.Category
		outcome    string
	}{
		{nil, "logged"},
		{[]event.Category{maps, old}, "logged"},
		{[]event.Category{old, maps}, "unchanged"},
		{[]event.Category{old}, "logged"},
		{[]event.Category{old, {Term: "maps", Label: "Maps"}}, "logged"},
		{[]event.Category{old, label}, "logged"},
		{[]event.Category{maps, old}, "logged"},
	} {
		it := items(fmt.Sprintf("a@%d=x", i+1))
		it[0].Categories = c.categories
		out := b.batch(0, &event.Batch{Start: true, Items: it})
		b.want(fmt.Sprintf("%d: categories %v", i, c.categories), outcomes(out.Outcomes), c.outcome)
	}
	b.reopen()
	b.walk("-a@9")
	seq, err := b.log.LastSeq(context.Background())
	b.must(err)
	for e, err := range b.log.Events(context.Background(), "main", event.Range{After: seq - 1, Upto: seq}) {
		b.must(err)
		if e.Kind != event.Deleted || !slices.Equal(e.Categories, []event.Category{maps, old}) {
			t.Errorf("the deletion is %+v", e)
		}
		return
	}
	t.Error("there is no deletion")
}
