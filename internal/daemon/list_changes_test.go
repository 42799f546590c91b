package daemon_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// busyStep is a step in the life of a Source that also changes while it is
// harvested.
type busyStep struct {
	what string
	do   func(*listHarness)
	want []string
	// mirror, when set, is what a mirror logs instead: it fetches content after
	// that has changed again.
	mirror []string
	// restless: the next harvest has more.
	restless bool
}

// busyLife is a history with all that can happen to resources and lists; so many
// resources as equal have the same stamp, twice.
func busyLife(equal int) []busyStep {
	at := func(b *listHarness, format string) {
		for i := range equal {
			b.origin.Create(fixtures.Resource{Name: fmt.Sprintf(format, i), Stamp: day(20)})
		}
	}
	during := func(b *listHarness, path string, do func()) {
		b.origin.SetHook(path, fixtures.Hook{Times: 1, Before: func(*http.Request) { do() }})
	}
	return []busyStep{
		{what: "created, and more while the Resource List is read", do: func(b *listHarness) {
			b.create("a", "b", "c")
			b.origin.CloseChangeList()
			b.create("d")
			// It is asked for at the start, for its at, and read at the end.
			during(b, fixtures.ResourceList, func() { b.create("e"); b.update("a"); b.remove("b") })
		}, want: []string{"created a 2", "created c 1", "created d 1", "created e 1"}},
		{what: "updated in several formats", do: func(b *listHarness) {
			b.origin.Update(fixtures.Resource{Name: "a", Alternates: []fixtures.Format{{Ext: "json", Type: "application/json"}, {Ext: "rdf", Type: "application/rdf+xml"}}})
		}, want: []string{"updated a 3"}},
		{what: "a format vanishes", do: func(b *listHarness) {
			b.origin.Update(fixtures.Resource{Name: "a", Alternates: []fixtures.Format{{Ext: "json", Type: "application/json"}}})
		}, want: []string{"updated a 4"}},
		{what: "touched, which is no change", do: func(b *listHarness) { b.origin.Touch("c"); b.origin.Touch("d") }},
		{what: "deleted and created again, across lists", do: func(b *listHarness) {
			b.remove("c")
			b.origin.CloseChangeList()
			b.recreate("c", "b")
		}, want: []string{"created b 2", "updated c 2"}},
		{what: "equal stamps", do: func(b *listHarness) { b.origin.CloseChangeList(); at(b, "t%03d") }, want: numbered("created t%03d 1", equal)},
		{what: "as many more, across the border of a list and the mark", do: func(b *listHarness) { b.origin.CloseChangeList(); at(b, "u%03d") },
			want: numbered("created u%03d 1", equal)},
		{what: "the list closes while it is read", do: func(b *listHarness) {
			b.origin.SetTime(day(21))
			b.create("f")
			path := fixtures.ChangeListPart(5)
			during(b, path, func() { b.origin.CloseChangeList(); b.update("f"); b.remove("e"); b.create("g") })
		}, want: []string{"created f 1"}, mirror: []string{}, restless: true},
		{what: "what came meanwhile", do: func(*listHarness) {}, want: []string{"created g 1", "deleted e", "updated f 2"}, mirror: []string{"created f 2", "created g 1", "deleted e"}},
		{what: "lists roll off that were read", do: func(b *listHarness) { b.origin.RollOff(3); b.update("g") }, want: []string{"updated g 2"}},
	}
}

// TestList_SourceThatChanges: the log tells exactly what happened, in batches of
// any size, and harvesting again adds nothing.
func TestList_SourceThatChanges(t *testing.T) {
	testenv.Heavy(t)
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			var logs []string
			for _, size := range []int{1, 7, 50_000} {
				t.Run(fmt.Sprintf("batches of %d", size), func(t *testing.T) { logs = append(logs, liveBusily(t, mode, size, 10)) })
			}
			for _, l := range logs[1:] {
				if l != logs[0] {
					t.Errorf("the log depends on the size of batches:\n%s", firstDifference(logs[0], l))
				}
			}
		})
	}
}

func liveBusily(t *testing.T, mode string, size, equal int) (log string) {
	b := newListHarness(t, fixtures.SourceOptions{}, content(mode))
	b.bridge.Harvester().BatchSize = size
	for _, step := range busyLife(equal) {
		b.apart()
		step.do(b)
		want := step.want
		if mode == config.Mirror && step.mirror != nil {
			want = step.mirror
		}
		r := b.expect(step.what, want...)
		if pending := r.Pending > 0; r.Held+r.Quarantined != 0 || len(r.Warnings) != 0 || pending != (mode == config.Mirror && step.restless) {
			t.Errorf("%s: %s", step.what, said(r))
		}
		if step.restless {
			continue
		}
		b.wantSame(step.what)
		if again := b.expect(step.what + ", again"); !again.NotModified {
			t.Errorf("%s, again: %+v", step.what, again)
		}
	}
	b.expectFull("a full harvest")
	return b.dump()
}

// TestList_LostChanges: when Change Lists roll off before they were read, that is
// said, and a baseline is compared, so that nothing but the times is lost.
func TestList_LostChanges(t *testing.T) {
	for name, o := range map[string]fixtures.SourceOptions{
		"of an index":          {PerList: 2, PerPart: 3},
		"of one list, windows": {ChangeLists: fixtures.SingleChangeList, Window: 3},
	} {
		for _, mode := range []string{config.Mirror, config.Reference} {
			t.Run(name+", "+mode, func(t *testing.T) {
				b := newListHarness(t, o, content(mode))
				b.create("a", "b", "c", "d", "e")
				b.expect("first", "created a 1", "created b 1", "created c 1", "created d 1", "created e 1")
				b.apart()
				b.update("a")
				b.remove("b")
				b.create("f")
				b.update("c", "f", "d")
				if o.Window == 0 {
					b.origin.RollOff(100)
				}
				b.origin.ForgetRequests()
				r := b.expect("what has rolled off", "created f 2", "deleted b", "updated a 2", "updated c 2", "updated d 2")
				if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "no longer in "+b.server.URL) || !r.Full || !r.Partial() {
					t.Errorf("the loss was not said: %s", said(r))
				}
				if n := b.origin.Requests(fixtures.CapabilityList); n != 1 {
					t.Errorf("the Capability List was asked for %d times before the changes were given up for lost, want once", n)
				}
				b.wantSame(name)
				b.quiet("afterwards", b.expect("afterwards"))
				b.apart()
				b.update("e")
				b.quiet("it goes on", b.expect("it goes on", "updated e 2"))
			})
		}
	}
}

// TestList_FullWithOverlap: a record that was taken from a Resource List, and whose
// earlier change is read afterwards, is there all the same.
func TestList_FullWithOverlap(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{PerList: 2}, content(mode), func(c *config.Config) { c.Sets[0].Sources[0].Overlap = time.Hour })
			b.create("a", "b", "c", "d", "e")
			b.expect("first", "created a 1", "created b 1", "created c 1", "created d 1", "created e 1")
			b.apart()
			b.update("e")
			b.expect("next", "updated e 2")
			b.quiet("in full", b.expectFull("in full"))
			b.wantSame("in the end")
		})
	}
}

// TestList_CorrectedInPlace: an entry that is put right where it stands, without a
// new change, is taken.
func TestList_CorrectedInPlace(t *testing.T) {
	for _, defect := range []fixtures.Defect{fixtures.WrongHash, fixtures.WrongLength, fixtures.LocDotDot, fixtures.LocFile} {
		t.Run(string(defect), func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{Carry: true})
			b.create("a")
			b.harvest()
			b.apart()
			b.create("b")
			b.origin.MisbehaveOn("b", defect)
			if r := b.expect("wrong"); r.Pending != 1 {
				t.Errorf("%s", said(r))
			}
			b.origin.Behave()
			b.expect("right", "created b 1")
			b.wantPending(0)
			b.quiet("afterwards", b.expect("afterwards"))
		})
	}
}

// A Resource List whose at lies in the future does not show what was there at that time: a record
// that a Change List has named since is not deleted because the list does not have it.
func TestList_AtInTheFuture(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{}, content(mode))
			b.create("a", "b", "c", "d", "e")
			b.keepResourceList("2099-01-01T00:00:00Z")
			b.apart()
			b.create("f")
			r := b.expect("first", "created a 1", "created b 1", "created c 1", "created d 1", "created e 1", "created f 1")
			if first := reported(r, "late"); !strings.Contains(first, "2099") {
				t.Errorf("reported %q", first)
			}
			b.expectFull("in full")
			b.wantSame("in the end")
		})
	}
}

// A change that is stated in whole seconds may be later than a Resource List of the same second
// whose at has a fraction.
func TestList_AtWithAFraction(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{}, content(mode))
			b.create("a", "b", "c", "d", "e")
			b.keepResourceList("2025-01-20T10:00:00.25Z")
			at := func() { b.origin.SetTime(time.Date(2025, 1, 20, 9, 59, 59, 0, time.UTC)) } // the next change comes a second later
			at()
			b.create("f")
			at()
			b.remove("a")
			b.expect("first", "created b 1", "created c 1", "created d 1", "created e 1", "created f 1")
			at()
			b.update("b")
			b.expect("in the same second", "updated b 2")
			b.expectFull("in full")
			b.wantSame("in the end")
		})
	}
}

// keepResourceList leaves the Resource List as it is now, with another at.
func (b *listHarness) keepResourceList(at string) {
	b.t.Helper()
	resp, err := b.server.Client().Get(b.server.URL + fixtures.ResourceList)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	list := regexp.MustCompile(` at="[^"]*"`).ReplaceAll(readAll(b.t, resp.Body), []byte(` at="`+at+`"`))
	b.origin.SetHook(fixtures.ResourceList, fixtures.Hook{Body: fixed(string(list))})
}

// A change of which only the day is stated may be later than a Resource List of that day.
func TestList_DatetimesWithoutATime(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{}, content(mode))
			b.origin.Misbehave(fixtures.DateOnly)
			b.origin.SetTime(time.Date(2025, 1, 20, 9, 0, 0, 0, time.UTC))
			b.create("a", "b", "c", "d", "e")
			b.origin.CloseChangeList()
			b.origin.RollOff(1)
			b.expect("first", "created a 1", "created b 1", "created c 1", "created d 1", "created e 1")
			b.apart()
			b.update("a")
			b.remove("b")
			b.create("f")
			b.expect("on the same day", "created f 1", "deleted b", "updated a 2")
			b.wantSame("on the same day")
			b.origin.PinResourceList()
			b.apart()
			b.update("c")
			b.remove("d")
			b.create("g")
			b.recreate("b")
			b.expectFull("with a list of before", "created b 2", "created g 1", "deleted d", "updated c 2")
			b.wantSame("with a list of before")
			b.expect("again")
			b.expectFull("in full again")
			b.wantSame("in the end")
		})
	}
}

// What is only in the second of two Resource Lists of a Capability List, which is not followed, is
// not deleted because the first does not have it.
func TestList_SecondResourceList(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{}, content(config.Reference))
	entry := regexp.MustCompile(`(?s)<url>\s*<loc>[^<]*/res/e</loc>.*?</url>`)
	b.origin.SetHook(fixtures.ResourceList, fixtures.Hook{Body: func(list []byte) []byte { return entry.ReplaceAll(list, nil) }})
	b.origin.SetHook(fixtures.CapabilityList, fixtures.Hook{Body: func(list []byte) []byte {
		more := `<url><loc>` + b.server.URL + `/more.xml</loc><rs:md capability="resourcelist"/></url></urlset>`
		return []byte(strings.Replace(string(list), "</urlset>", more, 1))
	}})
	b.create("a", "b", "c", "d", "e")
	b.expect("first", "created a 1", "created b 1", "created c 1", "created d 1", "created e 1")
	b.expectFull("in full")
	b.apart()
	b.remove("d")
	b.create("f")
	if r := b.expectFull("a change", "created f 1", "deleted d"); !strings.Contains(said(r), "nothing counts as deleted") {
		t.Errorf("%s", said(r))
	}
}
