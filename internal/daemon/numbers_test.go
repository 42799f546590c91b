package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// numbers are those of a set, from wherever they are.
type numbers struct {
	records, events int64
	last            event.Seq
	newest          event.Micros
}

// Whatever has happened to a set, all who state how many records and events it has state the same:
// the log, bridge status, bridge set ls, bridge verify, the page and the published documents.
func TestNumbersAgree(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	testenv.Checks(t, 12)
	rapid.Check(t, func(rt *rapid.T) {
		b := newHarness(t, fixtures.Catalogue(nil), content(rapid.SampledFrom([]string{config.Mirror, config.Redirect}).Draw(rt, "content")), segments(rapid.IntRange(1, 9).Draw(rt, "events a segment")))
		defer b.close()
		o := newPublisher(b)
		for range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			for range rapid.IntRange(0, 6).Draw(rt, "changes") {
				b.provider.Evolve()
			}
			switch rapid.IntRange(0, 4).Draw(rt, "what happens besides") {
			case 0:
				o.restart(nil)
			case 1:
				o.restart(func() {
					if err := os.Remove(filepath.Join(b.config.Data, eventlog.HeadName)); err != nil {
						rt.Fatal(err)
					}
				})
			case 2:
				if _, err := b.bridge.Reset(t.Context(), "main", b.source().URL); err != nil {
					rt.Fatal(err)
				}
			}
			if _, err := b.try(harvest.Options{Full: rapid.Bool().Draw(rt, "full"), AllPending: true}); err != nil {
				rt.Fatal(err)
			}
			b.numbersAgree(rt, o)
		}
		o.halt()
	})
}

// entryBegins is what an entry of a list, and of a feed, begins with.
var entryBegins = regexp.MustCompile(`<(url|entry)[ >]`)

var tags = regexp.MustCompile(`<[^>]*>`)

func (b *harness) numbersAgree(rt *rapid.T, o *harness) {
	rt.Helper()
	ctx := b.t.Context()
	must := func(err error) {
		rt.Helper()
		if err != nil {
			rt.Fatal(err)
		}
	}
	epochs, err := b.bridge.Log.Epochs(ctx)
	must(err)
	begun := event.Seq(0) // Change Lists have what is after it
	if n := len(epochs); n > 0 {
		begun = epochs[n-1].After
	}
	var want numbers
	alive, changes := map[string]bool{}, 0
	for ev := range b.eventsOf("main", 0) {
		want.events, want.last, want.newest = want.events+1, ev.Seq, ev.Observed
		if delete(alive, ev.Record); ev.Kind != event.Deleted {
			alive[ev.Record] = true
		}
		if ev.Seq > begun {
			changes++
		}
	}
	want.records = int64(len(alive))
	agree := func(who string, got numbers) {
		rt.Helper()
		if got != want {
			rt.Errorf("%s: %+v, the events make it %+v", who, got, want)
		}
	}

	set, err := b.bridge.Log.Set(ctx, "main")
	must(err)
	agree("the log", numbers{set.Live, set.Events, set.Last, want.newest})
	status, err := b.bridge.Status(ctx)
	must(err)
	agree("status", numbers{status.Sets[0].Records, status.Sets[0].Events, status.Sets[0].LastSeq, event.MicrosOf(status.Sets[0].Newest)})
	infos, err := b.bridge.SetInfos(ctx)
	must(err)
	agree("set ls", numbers{infos[0].Records, infos[0].Events, infos[0].LastSeq, event.MicrosOf(infos[0].Newest.Time)})
	checked, err := b.bridge.Verify(ctx, true, func(f daemon.Finding) { rt.Errorf("verify: %+v", f) })
	must(err)
	agree("verify", numbers{want.records, checked.Events, want.last, want.newest})

	page := tags.ReplaceAllString(string(o.get(o.base+"/sets/main/").want(b.t, 200).body), " ")
	if stated := fmt.Sprintf(" records %d events %d ", want.records, want.events); !strings.Contains(strings.Join(strings.Fields(page), " "), stated) {
		rt.Errorf("the page does not have %q:\n%s", stated, page)
	}

	entries := func(path string) int {
		return len(entryBegins.FindAll(o.get(o.base+path).want(b.t, 200).body, -1))
	}
	agree("the Resource List", numbers{int64(entries("/sets/main/resourcelist.xml")), want.events, want.last, want.newest})
	agree("the complete feed", numbers{int64(entries("/sets/main/complete.atom")), want.events, want.last, want.newest})
	got := 0
	index := o.get(o.base+"/sets/main/changelist-index.xml").want(b.t, 200).body
	for _, m := range regexp.MustCompile(`<loc>([^<]+)</loc>`).FindAllSubmatch(index, -1) {
		got += entries(strings.TrimPrefix(string(m[1]), o.base))
	}
	if got != changes {
		rt.Errorf("the Change Lists have %d changes, the log %d", got, changes)
	}
}
