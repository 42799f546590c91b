package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// versionsOf returns the versions of a record, made from its events.
func (b *bench) versionsOf(record string) (out []event.Version) {
	b.t.Helper()
	for ev, err := range b.log.Events(context.Background(), "main", event.Range{Upto: math.MaxInt64}) {
		b.must(err)
		if ev.Record == record {
			out = append(out, event.Version{Number: len(out) + 1, Seq: ev.Seq, Observed: ev.Observed, Kind: ev.Kind, Withdrawn: ev.Withdrawn()})
		}
	}
	return out
}

// Every version of a record is found by its number, its Seq and its time, with the
// versions beside it, as in a list of all events: across deletions, and along anchors.
func testVersions(t *testing.T) {
	for seed, most := range []int{1, 2, 3, 10, 64, 65, 66, 67, 140} {
		rnd := rand.New(rand.NewPCG(1, uint64(seed)))
		b := begin(t, set{content: event.Mirror, history: true})
		deletions := 2 + rnd.IntN(20)
		for i := range most {
			what := fmt.Sprintf("a@%d=%d", i+1, i)
			if i%deletions == 1 {
				what = fmt.Sprintf("-a@%d", i+1)
			}
			if rnd.IntN(5) == 0 {
				what += fmt.Sprintf(" b@%d=%d", i+1, i)
			}
			b.walk(what)
			b.end(0)
			b.clock.pass(time.Duration(rnd.IntN(4)) * 300 * time.Microsecond)
		}
		for _, record := range []string{"urn:a", "urn:b"} {
			b.sameVersions(rnd, record)
		}
	}
}

// sameVersions compares the log's versions of a record with all its events.
func (b *bench) sameVersions(rnd *rand.Rand, record string) {
	b.t.Helper()
	t := b.t
	ctx, key, want := context.Background(), event.Key(record), b.versionsOf(record)
	if len(want) == 0 {
		if _, err := b.log.Version(ctx, "main", key, math.MaxInt64, math.MaxInt64); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s was never there: %v", record, err)
		}
		return
	}
	beside := func(i int) event.Version {
		if i < 0 || i >= len(want) {
			return event.Version{}
		}
		return want[i]
	}
	check := func(seq event.Seq, at event.Micros) {
		i := len(want) - 1
		for i > 0 && (want[i].Seq > seq || want[i].Observed > at) {
			i--
		}
		got, err := b.log.Version(ctx, "main", key, seq, at)
		b.must(err)
		e := got.Event
		got.Event = nil
		if wanted := (event.Versions{Version: want[i], First: want[0], Previous: beside(i - 1), Next: beside(i + 1), Last: want[len(want)-1]}); *got != wanted {
			t.Fatalf("%s upto %d, %v of %d versions:\n got %+v\nwant %+v", record, seq, at, len(want), *got, wanted)
		}
		if e.Seq != want[i].Seq || e.Record != record || !e.History {
			t.Fatalf("%s upto %d: event %+v", record, seq, e)
		}
	}
	for range 20 {
		v := want[rnd.IntN(len(want))]
		check(v.Seq+event.Seq(rnd.IntN(3)-1), math.MaxInt64)
		check(math.MaxInt64, v.Observed+event.Micros(rnd.IntN(3)-1))
	}
	size := 1 + rnd.IntN(2*len(want))
	pages := (len(want) + size - 1) / size
	for page := range pages + 2 {
		list, first, last, err := b.log.VersionPage(ctx, "main", key, page, size)
		b.must(err)
		n := page
		if page == 0 {
			n = pages
		}
		var wanted []event.Version
		if n <= pages {
			wanted = want[(n-1)*size : min(n*size, len(want))]
		}
		if first != want[0] || last != want[len(want)-1] || fmt.Sprint(list) != fmt.Sprint(wanted) {
			t.Fatalf("page %d of %d versions:\n got %v\nwant %v", page, size, list, wanted)
		}
	}
}

// A history that is switched on includes the versions from before; only later events are
// marked for lists. One that is switched off is not served.
func testHistoryOnAndOff(t *testing.T) {
	b := begin(t, set{content: event.Mirror})
	ctx, key := context.Background(), event.Key("urn:a")
	versions := func() int {
		list, _, _, err := b.log.VersionPage(ctx, "main", key, 0, 100)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return len(list)
	}
	var seen []int
	for i, on := range []bool{false, true, false, true} {
		b.set.history = on
		b.reopen()
		b.walk(fmt.Sprintf("a@%d=%d", i+1, i))
		b.end(0)
		seen = append(seen, versions())
	}
	var marked []bool
	for ev, err := range b.log.Events(ctx, "main", event.Range{Upto: math.MaxInt64}) {
		b.must(err)
		marked = append(marked, ev.History)
	}
	if got := fmt.Sprint(seen, marked); got != "[0 2 0 4] [false true false true]" {
		t.Error(got)
	}
	// A configuration without a history leaves it as it is; sets other than mirrors have
	// none.
	b.must(b.log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", AnyContent: true}))
	b.must(b.log.EnsureSet(ctx, eventlog.SetConfig{Name: "other", Content: event.Reference, History: true}))
	main, err := b.log.Set(ctx, "main")
	b.must(err)
	other, err := b.log.Set(ctx, "other")
	b.must(err)
	if !main.History || other.History {
		t.Errorf("history of main %v, of a set in mode reference %v", main.History, other.History)
	}
}
