package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// I5: created, updated, deleted; a change of the stamp alone is none where there
// is a hash, and is one where there is not.
func testState(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	for _, step := range []struct{ says, outcomes, events string }{
		{"a@1=x b@1", "logged logged", "created a@1=x, created b@1"},
		{"a@1=x b@1", "unchanged unchanged", ""},
		{"a@2=x b@2", "unchanged logged", "updated b@2"},
		{"a@3=y -b@3", "logged logged", "updated a@3=y, deleted b@3"},
		{"-b@4 -c@4", "tombstone tombstone", ""},
		{"c@3=x b@5", "regressed logged", "created b@5"},
		{"c@4=x", "logged", "created c@4=x"},
		{"d=x", "logged", "created d=x"},
		{"d=x e@0", "unchanged logged", "created e@0"},
	} {
		b.want("outcomes of "+step.says, b.walk(step.says), step.outcomes)
		b.want("events of "+step.says, b.news(), step.events)
	}
	b.end(0)
	b.want("live", b.now(), "a b c d e")
}

// A1 inside a walk: the newest stamp wins, of equal ones the first, whatever the
// batches. S2 is broken when an older document has the newer stamp.
func testWalk(t *testing.T) {
	for _, c := range []struct {
		name, before   string
		documents      []string
		outcomes, news string
		broken         int
	}{
		{"first wins", "", []string{"a@5=x", "a@4=y a@5=z"}, "logged historical historical", "created a@5=x", 0},
		{"later wins", "", []string{"a@5=x", "a@6=y"}, "logged logged", "created a@5=x, updated a@6=y", 1},
		{"unchanged, then older", "a@5=x", []string{"a@5=x", "a@4=y"}, "unchanged historical", "", 0},
		{"deletion, then older", "a@5=x", []string{"-a@6", "a@5=x"}, "logged historical", "deleted a@6", 0},
		{"deletion at the same stamp", "a@5=x", []string{"-a@5"}, "logged", "deleted a@5", 0},
		{"deletion in an older document", "a@5=x", []string{"a@6=y", "-a@7"}, "logged logged", "updated a@6=y, deleted a@7", 1},
		{"bad, then older", "", []string{"!a", "a@5=x"}, "bad historical", "", 0},
		{"bad leaves the record", "a@5=x", []string{"!a", "a@5=x"}, "bad historical", "", 0},
		// D106: an item that was seen counts as seen, whatever becomes of it.
		{"bad and newer, then older ones", "a@3=x", []string{"!a@7", "a@5=y"}, "bad historical", "", 0},
		{"bad and undated, then newer than what is stored", "a@3=x", []string{"!a", "a@5=y"}, "bad historical", "", 0},
		{"bad and older than the next", "a@3=x", []string{"!a@4", "a@5=y"}, "bad logged", "updated a@5=y", 1},
		{"not selected, then older ones", "a@3=x", []string{"~a@7", "a@5=y b@1"}, "unselected historical logged", "created b@1", 0},
		{"not selected and never seen, then older", "", []string{"~a@7", "a@5=y"}, "unselected historical", "", 0},
		{"not selected, regressed, then older", "a@9=x", []string{"~a@7", "a@5=y -a@8"}, "unselected historical regressed", "", 1},
		{"tombstone, then older", "", []string{"-a@6", "a@5=x"}, "tombstone historical", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, split := range []bool{true, false} {
				b := begin(t, set{content: event.Redirect})
				b.walk(c.before)
				b.end(0)
				b.news()
				documents, broken := c.documents, 0
				if !split {
					documents = []string{strings.Join(c.documents, " ")}
				}
				var got []event.Outcome
				for i, d := range documents {
					out := b.batch(0, &event.Batch{Start: i == 0, Next: []byte("on"), Items: items(d)})
					got, broken = append(got, out.Outcomes...), broken+len(out.Broken)
					if split {
						b.reopen()
					}
				}
				b.want("outcomes", outcomes(got), c.outcomes)
				b.want("events", b.news(), c.news)
				if broken != c.broken {
					t.Errorf("%d items are said to break S2, want %d", broken, c.broken)
				}
			}
		})
	}
}

// regressed returns all that has regressed of a Source.
func regressed(l *eventlog.Log, source event.SourceID) (all []event.WaitingItem, err error) {
	err = l.Regressed(context.Background(), source, 2, func(kept []event.WaitingItem) error {
		if len(kept) > 2 {
			return fmt.Errorf("%d at a time, want 2 at most", len(kept))
		}
		all = append(all, kept...)
		return nil
	})
	return all, err
}

// A1: an item that is earlier than the stored state waits for the end of the walk, and is
// forgotten when the walk sees an entry that wins over it.
func testRegressed(t *testing.T) {
	for _, c := range []struct {
		name      string
		documents []string
		outcomes  string
		kept      string // stamps
		news      string // once it is allowed
	}{
		{"kept", []string{"a@3=x"}, "regressed", "3", "updated a@3=x"},
		{"older ones do not count", []string{"a@3=x", "a@2=y -a@1"}, "regressed historical historical", "3", "updated a@3=x"},
		{"a later one wins", []string{"a@3=x", "a@4=y"}, "regressed regressed", "4", "updated a@4=y"},
		{"the stored one wins", []string{"a@3=x", "a@5=old"}, "regressed unchanged", "", ""},
		{"another one at the stored stamp wins", []string{"a@3=x", "a@5=y"}, "regressed logged", "", "updated a@5=y"},
		{"a newer one wins", []string{"a@3=x", "a@6=y"}, "regressed logged", "", "updated a@6=y"},
		{"a deletion", []string{"-a@3"}, "regressed", "3", "deleted a@3"},
		{"after the stored one it is historical", []string{"a@5=old", "a@3=x"}, "unchanged historical", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, split := range []bool{true, false} {
				b := begin(t, set{content: event.Reference})
				b.walk("a@5=old")
				b.end(0)
				b.news()
				documents := c.documents
				if !split {
					documents = []string{strings.Join(documents, " ")}
				}
				b.want("outcomes", b.walk(documents...), c.outcomes)
				b.reopen()
				kept, err := regressed(b.log, b.sources[0])
				b.must(err)
				in := &event.Batch{Mode: event.ModeRegressed, Next: []byte("end")}
				var stamps []string
				for i, k := range kept {
					stamps = append(stamps, k.Modified.String()[len("1970-01-01T00:00:00.00000000"):])
					if k.Document.URL != "one/feed" || k.Flag {
						t.Errorf("kept: %+v", k)
					}
					in.Documents = append(in.Documents, k.Document)
					in.Items = append(in.Items, &event.Item{Observation: k.Observation, Document: i})
					if claim := k.ClaimOf(); claim != k.Claim {
						t.Errorf("the claim of what was kept is %d, its own is %d", k.Claim, claim)
					}
				}
				b.want("kept", strings.TrimSuffix(strings.Join(stamps, " "), "Z"), c.kept)
				b.batch(0, in)
				b.end(0)
				b.want("events", strings.ReplaceAll(b.news(), " at a", ""), c.news)
				left, err := regressed(b.log, b.sources[0])
				if err != nil || len(left) > 0 {
					t.Errorf("after the walk %d are kept, %v", len(left), err)
				}
			}
		})
	}
	t.Run("future", func(t *testing.T) {
		b := begin(t, set{content: event.Redirect})
		late := items("a@9=x b@9=x")
		late[0].Late = true
		b.batch(0, &event.Batch{Start: true, Items: late})
		b.walk("a@3=y b@3=y")
		kept, err := regressed(b.log, b.sources[0])
		b.must(err)
		if len(kept) != 2 || !kept[0].Flag || kept[1].Flag {
			t.Errorf("the stored stamp of a lay in the future, that of b did not: %+v", kept)
		}
	})
}

// A5: a record that a complete enumeration does not have is absent; presence in it
// revives.
func testComplete(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@1=x b@1=x c@1=x -d@1")
	b.end(0)
	b.news()
	all := items("a@1=x -b@2 !e")
	for i := range all {
		all[i].Complete = true
	}
	b.want("outcomes", outcomes(b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: all}).Outcomes), "unchanged unchanged bad")
	b.reopen()
	absent, have, err := b.log.CountAbsent(context.Background(), b.sources[0], event.Stamp{})
	if absent != 2 || have != 3 || err != nil {
		t.Errorf("%d of %d are absent, %v; want 2 of 3", absent, have, err)
	}
	one, next, err := b.log.Absent(context.Background(), b.sources[0], event.Stamp{}, 0, 1)
	b.must(err)
	two, last, err := b.log.Absent(context.Background(), b.sources[0], event.Stamp{}, next, 5)
	b.must(err)
	none, _, err := b.log.Absent(context.Background(), b.sources[0], event.Stamp{}, last, 5)
	b.must(err)
	b.want("absent", strings.Join(append(append(one, two...), none...), " "), "urn:b urn:c")
	b.want("outcomes", b.more(event.ModeAbsent, "-b -c -d -a0"), "logged logged unchanged unchanged")
	b.end(0)
	b.want("events", b.news(), "deleted b@1, deleted c@1")
	b.walk("a@1=x b@1=x")
	b.end(0)
	b.want("revived at the same stamp", b.news(), "created b@1=x")
}

// O9: a document with the Source's current state applies whatever its stamp. Of items
// with the same stamp, which may be a whole day, the last one applies. An item after a
// later stamp is old.
func testCurrent(t *testing.T) {
	for _, c := range []struct{ name, says, outcomes, events string }{
		{"nothing new", "a@5=old", "unchanged", ""},
		{"an earlier stamp", "a@3=x", "logged", "updated a@3=x"},
		{"an earlier deletion", "-a@3", "logged", "deleted a@3"},
		{"twice at one stamp", "a@6=x a@6=y", "logged logged", "updated a@6=x, updated a@6=y"},
		{"there and gone at one stamp", "a@6=x -a@6 a@6=z", "logged logged logged", "updated a@6=x, deleted a@6, created a@6=z"},
		{"the stored stamp twice", "a@5=x a@5=old", "logged logged", "updated a@5=x, updated a@5=old"},
		{"the earlier one comes last", "a@6=x a@5=y", "logged historical", "updated a@6=x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := begin(t, set{content: event.Redirect, kind: "oaipmh"})
			b.walk("a@5=old")
			b.end(0)
			b.news()
			var got []event.Outcome
			for i, it := range items(c.says) {
				it.Current = true
				got = append(got, b.batch(0, &event.Batch{Start: i == 0, Next: []byte("on"), Items: []*event.Item{it}}).Outcomes...)
			}
			b.end(0)
			b.want("outcomes", outcomes(got), c.outcomes)
			b.want("events", b.news(), c.events)
		})
	}
}

// A record that is only reported as present is not absent, and stays as it is.
func testPresent(t *testing.T) {
	b := begin(t, set{content: event.Redirect, kind: "oaipmh"})
	b.walk("a@5=x b@5=x c@5=x")
	b.end(0)
	b.news()
	there := items("a c")
	for i := range there {
		there[i].Present, there[i].Title, there[i].Representations = true, "", nil
	}
	b.want("outcomes", outcomes(b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: there}).Outcomes), "unchanged unchanged")
	b.reopen()
	ids, _, err := b.log.Absent(context.Background(), b.sources[0], event.Stamp{}, 0, 5)
	b.must(err)
	b.want("absent", strings.Join(ids, " "), "urn:b")
	b.end(0)
	b.want("events", b.news(), "")
}

// Content that no representation states is part of the state: a change of it alone is
// logged, and where it is known a change of the stamp alone is not logged (I5).
func testContentBits(t *testing.T) {
	b := begin(t, set{content: event.Redirect, kind: "oaipmh"})
	for _, step := range []struct {
		says   string
		bits   int64
		events string
	}{
		{"a@5", 1, "created a@5"}, {"a@5", 1, ""}, {"a@5", 2, "updated a@5"}, {"a@6", 2, ""}, {"a@7", 0, "updated a@7"},
	} {
		it := items(step.says)
		it[0].ContentBits, it[0].Current = step.bits, true
		b.pass(it)
		b.reopen()
		b.want(step.says, b.news(), step.events)
	}
}

// A6: held deletions wait, and keep their first time. A record that reappears in whatever
// way leaves the list.
func testHold(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	held := func(all bool, since event.Micros) string {
		ids, err := b.log.Held(context.Background(), b.sources[0], all, since)
		b.must(err)
		return strings.ReplaceAll(strings.Join(ids, " "), "urn:", "")
	}
	b.walk("a@5=x b@5=x c@5=x d@5=x e@5=x")
	b.end(0)
	b.news()
	b.walk("")
	b.batch(0, &event.Batch{Mode: event.ModeHold, Person: true, Next: []byte("on"), Items: items("-a -b -c -d -e -f")})
	b.end(0)
	b.want("events", b.news(), "")
	b.want("held", held(true, math.MaxInt64), "a b c d e")
	b.want("held, without those for a person", held(false, math.MaxInt64), "")
	b.clock.pass(time.Hour)
	b.walk("b@5=x c@4=x d@6=y !e")
	b.want("held after b, c, d, e reappeared", held(true, math.MaxInt64), "a")
	b.more(event.ModeHold, "-a")
	b.want("for a person still (D116)", held(false, math.MaxInt64), "")
	b.want("since when", b.walk("")+b.more(event.ModeHold, "-d"), "waiting")
	b.want("not for a person", held(false, event.MicrosOf(b.clock.wall)), "d")
	b.want("held since earlier, also for a person", held(true, event.MicrosOf(b.clock.wall)-1), "a")
	b.want("held since earlier", held(false, event.MicrosOf(b.clock.wall)-1), "")
	b.clock.pass(time.Hour)
	b.more(event.ModeHold, "-d")
	b.want("held since the first time", held(false, event.MicrosOf(b.clock.wall.Add(-time.Hour))), "d")
	const month = 30 * 24 * time.Hour
	b.clock.pass(-month)
	b.more(event.ModeHold, "-d")
	b.want("held since the clock was set back", held(false, event.MicrosOf(b.clock.wall)), "d")
	b.clock.pass(month)
	b.want("reappeared", b.walk("d@6=y"), "unchanged")
	b.want("released", b.more(event.ModeAbsent, "-a"), "logged")
	b.want("held", held(true, math.MaxInt64), "")
	b.end(0)
	b.want("events", b.news(), "updated d@6=y, deleted a@5")
	b.walk("")
	b.more(event.ModeHold, "-b")
	b.want("a deletion entry", b.walk("-b@7"), "logged")
	b.want("held", held(true, math.MaxInt64), "")
}

// Replay: which records were seen does not count, and an older item changes nothing.
func testReplay(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@5=x !b")
	b.want("outcomes", b.more(event.ModeReplay, "a@4=y b@4=y"), "historical logged")
	b.want("the walk goes on", b.walk("a@5=x")+" "+outcomes(b.batch(0, &event.Batch{Next: []byte("on"), Items: items("b@5=z c@1=x")}).Outcomes), "unchanged logged logged")
	b.want("events", b.news(), "created a@5=x, created b@4=y, updated b@5=z, created c@1=x")
}

// Repair: the findings of an audit apply whatever their order, and the same report of the
// Source afterwards changes nothing.
func testRepair(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	b.walk("a@5=x b@5=x c@5=x -d@5")
	b.end(0)
	b.news()
	b.want("outcomes", b.more(event.ModeRepair, "a@4=y -b@3 c@5=x d@1=z"), "logged logged unchanged logged")
	b.want("events", b.news(), "updated a@4=y, deleted b@3, created d@1=z")
	b.want("said again", b.walk("a@4=y -b@3 c@5=x d@1=z"), "unchanged unchanged unchanged unchanged")
	b.end(0)
	b.want("events", b.news(), "")
}

// I8: bad input is kept whole, the same input once.
func testQuarantine(t *testing.T) {
	b := begin(t, set{content: event.Redirect})
	ctx := context.Background()
	bad := []event.Quarantined{
		{URL: "u", Line: 3, Column: 4, Record: "urn:a", Rule: "S10", Reason: "why", Input: []byte("<entry>\x00\xff")},
		{URL: "u", Rule: "S1", Reason: "nothing there"},
	}
	b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: items("!a"), Quarantine: append(bad, bad[0])})
	list, err := b.log.Quarantined(ctx, "main")
	b.must(err)
	if len(list) != 2 || list[0].Times != 2 || list[1].Times != 1 || list[0].Reason != "why" || list[0].Line != 3 || list[0].Column != 4 ||
		list[0].Record != "urn:a" || list[0].Source != b.sources[0] || list[0].Set != "main" {
		t.Fatalf("in quarantine: %+v", list)
	}
	whole, err := b.log.QuarantinedInput(ctx, list[0].ID)
	b.must(err)
	b.want("input", string(whole.Input), string(bad[0].Input))
	b.must(b.log.Replayed(ctx, list[0].ID))
	b.clock.pass(time.Minute)
	again := bad[0]
	again.Line = 9
	b.batch(0, &event.Batch{Next: []byte("on"), Quarantine: []event.Quarantined{again}})
	list, err = b.log.Quarantined(ctx, "")
	b.must(err)
	if q := list[0]; len(list) != 2 || q.Times != 3 || q.Line != 9 || q.Replayed != 0 || q.Last-q.First != 60_000_000 {
		t.Errorf("bad again after a replay took it in: %+v", q)
	}
	if _, err := b.log.QuarantinedInput(ctx, 99); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("number 99: %v", err)
	}
}

// A13: without its content an observation waits; the record keeps its state
// until then. A newer entry replaces it, a deletion removes it.
func testPending(t *testing.T) {
	b := begin(t, set{content: event.Mirror})
	pending := func() []event.WaitingItem {
		kept, err := b.log.Pending(context.Background(), b.sources[0], math.MaxInt64, 0, 100)
		b.must(err)
		return kept
	}
	// say appends observations that could not be fetched.
	say := func(mode event.Mode, start bool, words string) string {
		in := &event.Batch{Mode: mode, Start: start, Next: []byte("on"), Items: items(words)}
		for i := range in.Items {
			in.Items[i].Pending, in.Items[i].Fetched = "503", false
		}
		return outcomes(b.batch(0, in).Outcomes)
	}
	b.want("new", say(event.ModeWalk, true, "a@5"), "waiting")
	b.want("events", b.news(), "")
	kept := pending()
	if len(kept) != 1 || kept[0].Record != "urn:a" || kept[0].Tries != 0 || kept[0].Reason != "503" || kept[0].Document.URL != "one/feed" || kept[0].Claim != kept[0].ClaimOf() {
		t.Fatalf("pending: %+v", kept)
	}
	due := event.MicrosOf(b.clock.wall.Add(5 * time.Minute))
	if early, err := b.log.Pending(context.Background(), b.sources[0], due-1, 0, 9); err != nil || len(early) != 0 {
		t.Errorf("due before five minutes: %d, %v", len(early), err)
	}
	month := event.Micros(30 * 24 * time.Hour / time.Microsecond)
	for at, want := range map[event.Micros]int{due - 1: 0, due: 1, due - month: 1} { // the last by a clock that was set back
		list, err := b.log.Due(context.Background(), b.sources[0], at)
		of, failed := b.log.DuePending(context.Background(), at)
		if err != nil || failed != nil || len(list) != want || len(of) != want {
			t.Errorf("due at %v: %v of the Sources %v, %v, %v; want %d", at, list, of, err, failed, want)
		}
	}
	b.want("the same again", b.walk("a@5"), "unchanged")
	b.want("tried again", say(event.ModeSettle, false, "a@5"), "waiting")
	if kept = pending(); len(kept) != 1 || kept[0].Tries != 1 {
		t.Errorf("tried again: %+v", kept)
	}
	b.want("superseded", say(event.ModeSettle, false, "a@4"), "unchanged")
	b.want("settled", b.more(event.ModeSettle, "a@5"), "logged")
	b.want("events", b.news(), "created a@5")
	b.want("a newer one", say(event.ModeWalk, true, "a@6"), "waiting")
	b.want("replaced", b.walk("a@7"), "logged")
	if n := len(pending()); n != 0 {
		t.Errorf("%d pending after it was replaced", n)
	}
	b.want("another", say(event.ModeWalk, true, "a@8"), "waiting")
	b.want("deleted", b.walk("-a@9"), "logged")
	b.want("never seen alive", say(event.ModeWalk, true, "b@5"), "waiting")
	b.want("deleted", b.walk("-b@6"), "tombstone")
	if n := len(pending()); n != 0 {
		t.Errorf("%d pending after they were deleted", n)
	}
	b.want("events", b.news(), "updated a@7, deleted a@9")
	testPendingBack(b, say, pending)
}

// testPendingBack: a regressed observation that waits for its content is void when the
// Source returns to the stored state, and a stamp that lay in the future is
// remembered while it waits.
func testPendingBack(b *bench, say func(event.Mode, bool, string) string, pending func() []event.WaitingItem) {
	b.t.Helper()
	b.walk("d@8=x")
	b.want("back", b.walk("d@3=y"), "regressed")
	b.want("back without content", say(event.ModeRegressed, false, "d@3=y"), "waiting")
	b.end(0)
	b.want("the stored one again", b.walk("d@8=x"), "unchanged")
	if n := len(pending()); n != 0 {
		b.t.Errorf("%d pending after the Source has taken it back", n)
	}
	in := &event.Batch{Start: true, Next: []byte("on"), Items: unfetched("e@99=x")}
	in.Items[0].Pending, in.Items[0].Late = "503", true
	b.batch(0, in)
	b.want("settled", b.more(event.ModeSettle, "e@99=x"), "logged")
	b.walk("e@5=y")
	kept, err := regressed(b.log, b.sources[0])
	b.must(err)
	if len(kept) != 1 || !kept[0].Flag {
		b.t.Errorf("the stamp lay in the future: %+v", kept)
	}
	part := items("f@1=x")
	whole := items("f@1")[0].Observation
	part[0].Pending, part[0].Partial, part[0].Asked, part[0].Claim = "404", true, &whole, whole.ClaimOf()
	b.want("in part", outcomes(b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: part}).Outcomes), "logged")
	if kept := pending(); len(kept) != 1 || !kept[0].Flag || kept[0].Representations[0].Hash != "" {
		b.t.Errorf("pending in part: %+v", kept)
	}
}

func unfetched(words string) []*event.Item {
	out := items(words)
	for i := range out {
		out[i].Fetched = false
	}
	return out
}

// failure returns "error" when the batch fails, having changed nothing.
func failure(b *bench, in *event.Batch) string {
	b.t.Helper()
	before, err := b.log.LastSeq(context.Background())
	b.must(err)
	_, err = b.try(0, in)
	after, serr := b.log.LastSeq(context.Background())
	b.must(serr)
	if err == nil || before != after {
		return "none"
	}
	return "error"
}

// D105: NeedsContent predicts what Append does with the items of a walk, and changes
// nothing. An item that then has no content waits for it, and the other items of the
// batch are applied.
func testNeedsContent(t *testing.T) {
	b := begin(t, set{content: event.Mirror})
	b.walk("a@5=x b@5=x")
	b.batch(0, &event.Batch{Next: []byte("on")})
	ask := func(start bool, words string) string {
		needs, err := b.log.NeedsContent(context.Background(), &event.Batch{Source: b.sources[0], Start: start, Items: items(words)})
		b.must(err)
		var out []string
		for _, n := range needs {
			out = append(out, map[bool]string{false: "no", true: "yes"}[n])
		}
		return strings.Join(out, " ")
	}
	b.want("in the walk", ask(false, "a@5=y a@4=x a@6=x c@1 -d@9 !e"), "no no yes yes no no")
	b.want("at the start of another", ask(true, "a@5=y a@5=x"), "yes no")
	b.end(0)
	b.want("in the next", ask(false, "a@5=x a@5=y a@4=x a@6=x"), "no yes no yes")
	b.want("live", b.now(), "a b")

	b.news()
	mixed := append(items("c@1=x"), unfetched("a@6=y d@1=y b@5=x")...)
	b.want("without contents", outcomes(b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: mixed}).Outcomes), "logged needs-content needs-content unchanged")
	b.want("events", b.news(), "created c@1=x")
	b.reopen()
	kept, err := b.log.Pending(context.Background(), b.sources[0], event.MicrosOf(b.clock.wall), 0, 9)
	b.must(err)
	if len(kept) != 2 || kept[0].Record != "urn:a" || kept[1].Record != "urn:d" || kept[0].Tries != 0 {
		t.Errorf("pending: %+v", kept)
	}
	b.want("with contents", b.more(event.ModeSettle, "a@6=y d@1=y"), "logged logged")
	b.want("events", b.news(), "updated a@6=y, created d@1=y")
}

// D124, D109: however many records share a URI, one more is counted, not compared with
// the others; when all go, the URI gets a new owner once.
func testManyAtOneURI(t *testing.T) {
	b := begin(t, set{content: event.Reference})
	const many = 4000
	all := make([]*event.Item, many)
	for i := range all {
		all[i] = items(fmt.Sprintf("r%d>shared@1", i))[0]
	}
	b.batch(0, &event.Batch{Start: true, Next: []byte("on"), Items: all})
	b.reopen()
	b.news()
	b.want("one more", b.walk("x>shared@2"), "logged")
	b.want("events", b.news(), "created x@2 at shared unlisted")
	b.want("and one away", b.walk("x>elsewhere@3"), "logged")
	b.want("events", b.news(), "updated x@3 at elsewhere arrived")
	b.want("listed", fmt.Sprint(len(strings.Fields(b.records(b.log.Listed(context.Background(), "main", math.MaxInt64))))), "2")
	for i := range all {
		all[i] = items(fmt.Sprintf("-r%d@4", i))[0]
	}
	if out := b.batch(0, &event.Batch{Items: all}); out.Deleted != many || out.Updated != 1 {
		t.Errorf("%d were deleted and %d updated, want all and 1", out.Deleted, out.Updated)
	}
	b.want("listed", b.records(b.log.Listed(context.Background(), "main", math.MaxInt64)), "x")
}
