package daemon_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// What comes out of a row of bridges is what the origin's own history says:
// records, identifiers, titles, Modified to the nanosecond, deletions, the types
// of alternates, the bytes of contents, and the origin as the original. It is
// read by decoders that share nothing with the bridge.

// Atom-PMH -> bridge -> ResourceSync -> bridge -> Atom-PMH.
func TestRoundTripOfFeeds(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 8)
	rapid.Check(t, func(rt *rapid.T) {
		o := newAtomOrigin(t, fixtures.Options{PerArchive: rapid.SampledFrom([]int{0, 2, 5}).Draw(rt, "entries a document")})
		a, b := newRelay(t), newRelay(t)
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), a.lists()}, false)
	})
}

// ResourceSync -> bridge -> Atom-PMH, archived or complete -> bridge ->
// ResourceSync.
func TestRoundTripOfLists(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 8)
	rapid.Check(t, func(rt *rapid.T) {
		o := drawListOrigin(t, rt)
		a, b := newRelay(t), newRelay(t)
		from := a.archived()
		if rapid.Bool().Draw(rt, "complete feed") {
			from = a.whole()
		}
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), from}, false)
	})
}

func drawListOrigin(t *testing.T, rt *rapid.T) *listOrigin {
	return newListOrigin(t, fixtures.SourceOptions{
		PerList:     rapid.SampledFrom([]int{0, 2, 5}).Draw(rt, "changes a list"),
		PerPart:     rapid.SampledFrom([]int{0, 3}).Draw(rt, "entries a part"),
		Carry:       rapid.Bool().Draw(rt, "carries identifiers"),
		ChangeLists: rapid.SampledFrom([]fixtures.ChangeLists{fixtures.IndexedChangeLists, fixtures.SingleChangeList, fixtures.NoChangeLists}).Draw(rt, "change lists"),
	})
}

// wantRoundTrip runs bridges in a row, each in any mode with segments of any
// length, over an origin that changes; each may miss harvests of the one before.
// Where feeds are to be archived, the last changes are more than any segment
// holds, and each bridge has an archive document in the end.
func wantRoundTrip(rt *rapid.T, o origin, row []*relay, from []string, archived bool) {
	const longest = 10
	for i, r := range row {
		p := pool{content: rapid.SampledFrom([]string{config.Mirror, config.Mirror, config.Redirect, config.Reference}).Draw(rt, "content"),
			segment: rapid.IntRange(3, longest).Draw(rt, "events a segment"), sources: from[i : i+1]}
		if i == 0 {
			p.prefer = rapid.SampledFrom([]string{"", "text/plain"}).Draw(rt, "prefer")
		}
		r.run(p)
		defer r.end()
	}
	s := newRandomOrigin(rt, o)
	rounds := rapid.IntRange(2, 4).Draw(rt, "rounds")
	for round := 1; round <= rounds; round++ {
		for range rapid.IntRange(0, 8).Draw(rt, "changes") {
			s.change()
		}
		all := round == rounds
		if all && archived {
			for i := range longest + 1 {
				s.write(fmt.Sprint("late", i))
			}
		}
		for i, r := range row {
			// A bridge that sends others to its Source's content has to be up to
			// date, else they get content that it has not told of.
			if !all && i > 0 && rapid.IntRange(0, 3).Draw(rt, "misses this one") == 0 {
				break
			}
			full := rapid.IntRange(0, 4).Draw(rt, "full") == 0
			if i == 0 {
				r.take(rt, r.source(), harvest.Options{Full: full})
				r.observe(o.history(r.fetches, r.prefer), !o.hashed())
			} else {
				r.takeBridge(rt, full)
				r.observe(row[i-1].told(from[i]), !o.hashed() && !anyFetches(row[:i]))
			}
			r.wantPublished(rt)
		}
	}
	for i, r := range row {
		if archived && len(r.chain()) < 2 {
			rt.Errorf("bridge %d has no archive document", i+1)
		}
	}
}

func anyFetches(row []*relay) bool {
	for _, r := range row {
		if r.fetches {
			return true
		}
	}
	return false
}

// A provider that only has a complete feed gets an archived one, with deletion
// entries, which another bridge follows.
func TestCompleteFeedsBecomeArchived(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 4)
	rapid.Check(t, func(rt *rapid.T) {
		o := newAtomOrigin(t, fixtures.Options{Complete: true})
		a, b := newRelay(t), newRelay(t)
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), a.archived()}, true)
	})
}

// An aggregator: ResourceSync in, ResourceSync out.
func TestRoundTripOfAggregators(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 4)
	rapid.Check(t, func(rt *rapid.T) {
		o := drawListOrigin(t, rt)
		a, b := newRelay(t), newRelay(t)
		wantRoundTrip(rt, o, []*relay{a, b}, []string{o.source(), a.lists()}, false)
	})
}

// Four bridges in a row, with one protocol after the other.
func TestRoundTripOfFour(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 3)
	rapid.Check(t, func(rt *rapid.T) {
		var o origin = newAtomOrigin(t, fixtures.Options{PerArchive: 3})
		if rapid.Bool().Draw(rt, "lists") {
			o = drawListOrigin(t, rt)
		}
		row, from := []*relay{newRelay(t)}, []string{o.source()}
		for i := range 3 {
			before := row[i]
			from = append(from, []string{before.lists(), before.archived()}[i%2])
			row = append(row, newRelay(t))
		}
		wantRoundTrip(rt, o, row, from, false)
	})
}
