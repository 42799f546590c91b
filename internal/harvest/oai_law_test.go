package harvest_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// TestRepositoryLaw: whatever a repository's granularity, deletions, tokens and lies,
// however its records change, before and while it is read, and wherever harvests break
// off: once it is left alone, and its headers were read, the set has what the repository
// has. Another harvest logs nothing.
//
// 50 histories, the same each time; others and more with -rapid.checks.
func TestRepositoryLaw(t *testing.T) {
	if testing.Short() {
		t.Skip("many histories")
	}
	testenv.Checks(t, 25)
	rapid.Check(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]event.Content{event.Mirror, event.Mirror, event.Redirect, event.Reference}).Draw(t, "mode")
		a := newArchive(t, mode)
		r := a.repo
		r.Days = rapid.Bool().Draw(t, "days")
		r.Deleted = rapid.SampledFrom([]string{"persistent", "transient", "no"}).Draw(t, "deletedRecord")
		r.PageSize = rapid.IntRange(1, 4).Draw(t, "page size")
		r.Stateless = rapid.Bool().Draw(t, "stateless")
		r.Scattered = !r.Stateless && rapid.Bool().Draw(t, "scattered")
		lies := rapid.SliceOfDistinct(rapid.SampledFrom([]testserver.Lie{
			testserver.OffsetTokens, testserver.LastPageRepeats, testserver.NoLastToken, testserver.OddTokens, testserver.SizeZero,
			testserver.SecondsRefused, testserver.LateFromRefused, testserver.FromIgnored, testserver.FinerStamps, testserver.CoarserStamps, testserver.OffsetStamps, testserver.HiddenDeletion,
			testserver.DeletedWithMetadata, testserver.EmptyIdentifier,
			testserver.TokenAlways, testserver.EmptyList, testserver.FractionStamps, testserver.NaiveStamps, testserver.NoStamps, testserver.SlowClock, testserver.DayResponse,
			testserver.SpaceAround, testserver.LeadingSpace, testserver.TrailingGarbage, testserver.WrongCharset, testserver.Redirected,
		}), func(l testserver.Lie) testserver.Lie { return l }).Draw(t, "lies")
		r.Lie(lies...)
		if slices.Contains(lies, testserver.HiddenDeletion) {
			r.PageSize += 3 // three pages of nothing but deletions are a loop (O2)
		}
		if rapid.Bool().Draw(t, "also") {
			r.Formats = append(r.Formats, testserver.ItemFormat{Prefix: "other", Schema: "http://other.example/x.xsd", Namespace: "http://other.example/"})
			a.src.Repository.Also = []string{"other"}
		}
		a.src.MaxDocuments = 1000
		if rapid.IntRange(0, 3).Draw(t, "in windows") == 0 {
			a.src.Repository.Window, r.Earliest = 24*time.Hour, a.now.Add(-50*time.Hour)
		}
		a.src.Overlap = rapid.SampledFrom([]time.Duration{0, 0, time.Hour}).Draw(t, "overlap")
		// One record is always there: the guard would leave it to a person if all were gone.
		w := world{archive: a, truth: map[string]string{}}
		w.put("z")
		_, err := a.try(harvest.Options{})
		a.must(err)
		for range rapid.IntRange(1, 5).Draw(t, "harvests") {
			w.plan(t)()
			var during []func() // while it is read
			for range rapid.IntRange(0, 5).Draw(t, "changes while it is read") {
				during = append(during, w.plan(t))
			}
			r.OnPage = func(verb string, _ int) {
				if len(during) > 0 && (verb == "ListRecords" || verb == "ListIdentifiers") {
					during[0]()
					during = during[1:]
				}
			}
			if rapid.IntRange(0, 2).Draw(t, "fails") == 0 {
				r.Fail(testserver.Failure{Verb: rapid.SampledFrom([]string{"ListRecords", "ListIdentifiers", "GetRecord", ""}).Draw(t, "of verb"), Page: rapid.IntRange(0, 3).Draw(t, "of page"), Times: rapid.IntRange(1, 3).Draw(t, "times"),
					How: rapid.SampledFrom([]testserver.How{testserver.TokenRefused, testserver.NotFound, testserver.ServerError, testserver.HTMLPage, testserver.Unavailable, testserver.CutPage, testserver.NoEndTag, testserver.Broken, testserver.EmptyBody}).Draw(t, "how")})
			}
			if rapid.IntRange(0, 3).Draw(t, "much later") == 0 {
				a.week()
			}
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				r.Restart()
			}
			_, _ = a.try(harvest.Options{Full: rapid.IntRange(0, 4).Draw(t, "full") == 0})
			r.OnPage = nil
		}
		r.Honest() // but for what it always is
		r.Lie(lies...)
		w.compare(t)
	})
}

// world is a repository and what it should have.
type world struct {
	*archive
	truth   map[string]string // title by name
	version int
}

func (w *world) put(name string) {
	w.version++
	title := fmt.Sprintf("%s%d", name, w.version)
	it := testserver.Item{Identifier: "oai:x:" + name, Metadata: map[string]string{"oai_dc": testserver.DublinCore(title), "other": "<o xmlns=\"http://other.example/\">" + title + "</o>"}}
	if w.version%3 == 0 {
		delete(it.Metadata, "other")
	}
	w.repo.Put(it)
	w.truth[name] = title
}

// plan returns what makes some things happen.
func (w *world) plan(t *rapid.T) func() {
	var all []func()
	for range rapid.IntRange(0, 3).Draw(t, "happens") {
		took := time.Duration(rapid.IntRange(1, 3000).Draw(t, "seconds")) * time.Second
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "record")
		what := rapid.IntRange(0, 5).Draw(t, "what")
		all = append(all, func() {
			w.pass(took)
			_, there := w.truth[name]
			switch {
			case what < 3 || !there:
				w.put(name)
				return
			case what == 3 && w.repo.Deleted != "persistent": // without a trace
				w.repo.Forget("oai:x:" + name)
			default:
				w.repo.Delete("oai:x:" + name)
			}
			delete(w.truth, name)
		})
	}
	return func() {
		for _, do := range all {
			do()
		}
	}
}

// compare leaves the repository alone, lets its headers be read, and compares.
func (w *world) compare(t *rapid.T) {
	w.run()
	w.week()
	w.run()
	if _, err := w.harvest.Release(context.Background(), &w.src, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Hour)
	w.run() // what is pending is asked for
	got := map[string]string{}
	for ev, err := range w.log.Events(context.Background(), "main", event.Range{Upto: math.MaxInt64}) {
		w.must(err)
		name := strings.TrimPrefix(ev.Record, "oai:x:")
		if delete(got, name); ev.Live() {
			got[name] = ev.Title
		}
		w.seen = ev.Seq
	}
	if !maps.Equal(got, w.truth) {
		t.Fatalf("the log has %v, want %v", got, w.truth)
	}
	if w.src.Content == event.Mirror {
		for _, name := range slices.Sorted(maps.Keys(got)) {
			if b := w.bytesOf("oai:x:" + name); b != testserver.DublinCore(got[name]) {
				t.Fatalf("%s has the content %q", name, b)
			}
		}
	}
	w.run()
	_, err := w.try(harvest.Options{Full: true})
	w.must(err)
	if news := w.news(); news != "" {
		t.Fatalf("nothing has changed, and the log says: %s", news)
	}
}
