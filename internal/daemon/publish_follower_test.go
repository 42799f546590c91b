package daemon_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
)

// follower is a Destination that follows the Change List Index by the words of
// the standard: of each list that does not end before its mark it takes what is
// later than the mark, in the order of the document. Its mark is the datetime of
// what it took last.
type follower struct {
	o     *harness
	rng   *rand.Rand
	mark  time.Time
	got   []string          // what it took: change, loc, datetime
	state map[string]string // loc -> modified of its via
	// cached are documents with their tags, for a follower that asks with
	// If-None-Match; nil for one that does not.
	cached map[string]webReply
	wake   chan struct{}

	polls, saved, broken int
}

// read asks for a list.
func (f *follower) read(url string) (*listDoc, error) {
	var header []string
	old, ok := f.cached[url]
	if ok {
		header = []string{"If-None-Match", old.header.Get("ETag")}
	}
	r, err := f.o.request(http.MethodGet, url, header...)
	for tries := 0; err != nil && tries < 3; tries++ { // a bridge that ends may close a connection that it has just taken
		r, err = f.o.request(http.MethodGet, url, header...)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case r.status == http.StatusNotModified && ok:
		r = old
		f.saved++
	case r.status != http.StatusOK:
		return nil, fmt.Errorf("%s: status %d", url, r.status)
	case f.cached != nil:
		f.cached[url] = r
	}
	return parseList(r)
}

// baseline takes what the Resource List has, and the moment it shows as the mark.
func (f *follower) baseline() error {
	doc, err := f.read(f.o.setURL("resourcelist.xml"))
	if err != nil {
		return err
	}
	for _, e := range doc.URLs {
		f.state[e.Loc] = linked(e.Links, "via")[0].Modified
	}
	f.mark, err = time.Parse(time.RFC3339Nano, doc.Meta.At)
	return err
}

// poll makes one incremental pass. Sometimes it breaks off after a list, as a
// client does that is ended; what it has taken it has taken.
func (f *follower) poll() error {
	f.polls++
	index, err := f.read(f.o.setURL("changelist-index.xml"))
	if err != nil {
		return err
	}
	last := f.rng.IntN(8) // breaks off after so many lists
	for _, m := range index.Maps {
		if m.Meta.Until != "" {
			until, err := time.Parse(time.RFC3339Nano, m.Meta.Until)
			if err != nil {
				return err
			}
			if !until.After(f.mark) {
				continue
			}
		}
		if err := f.take(m); err != nil {
			return err
		}
		if last--; last == 0 {
			f.broken++
			return nil
		}
	}
	return nil
}

func (f *follower) take(m listEntry) error {
	list, err := f.read(m.Loc)
	if err != nil {
		return err
	}
	from, err := time.Parse(time.RFC3339Nano, list.Meta.From)
	if err != nil {
		return err
	}
	if from.After(f.mark) {
		return fmt.Errorf("a gap: %s starts at %s, after the mark %s", m.Loc, from, f.mark)
	}
	for _, e := range list.URLs {
		at, err := time.Parse(time.RFC3339Nano, e.Meta.Datetime)
		if err != nil {
			return err
		}
		if !at.After(f.mark) {
			continue
		}
		f.mark = at
		f.got = append(f.got, e.Meta.Change+" "+e.Loc+" "+e.Meta.Datetime)
		if e.Meta.Change == "deleted" {
			delete(f.state, e.Loc)
		} else {
			f.state[e.Loc] = linked(e.Links, "via")[0].Modified
		}
	}
	return nil
}

// follow polls at random moments until done, and then once more to the end.
func (f *follower) follow(done <-chan struct{}) error {
	for {
		for range f.rng.IntN(4) { // harvests that it lets pass
			select {
			case <-f.wake:
			case <-done:
				return f.finish()
			}
		}
		if err := f.poll(); err != nil {
			return err
		}
		select {
		case <-done:
			return f.finish()
		default:
		}
	}
}

// finish polls until nothing more comes; it may break off on the way.
func (f *follower) finish() error {
	for quiet := 0; quiet < 3; quiet++ {
		before := len(f.got)
		if err := f.poll(); err != nil {
			return err
		}
		if len(f.got) > before {
			quiet = -1
		}
	}
	return nil
}

// TestFollowerOfTheIndexMissesNothing has Destinations poll while the bridge
// harvests, closes segments, is started again and loses its cache. Each of them
// must have taken what the log has, event by event.
func TestFollowerOfTheIndexMissesNothing(t *testing.T) {
	const harvests, seed = 120, 20260102
	o := newPublisher(newHarness(t, fixtures.Catalogue(nil), content(config.Reference), segments(7)))
	var followers []*follower
	for i := range 4 {
		f := &follower{o: o, rng: rand.New(rand.NewPCG(seed, uint64(i))), state: map[string]string{}, wake: make(chan struct{}, 1)}
		if i%2 == 1 {
			f.cached = map[string]webReply{}
		}
		followers = append(followers, f)
	}
	created, err := o.bridge.Log.Set(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var group sync.WaitGroup
	faults := make([]error, len(followers))
	start := func(i int) { group.Go(func() { faults[i] = followers[i].follow(done) }) }
	begins := make([]time.Time, len(followers))
	for i := range 2 { // two from the set's creation on, before there is anything
		followers[i].mark = created.Created.Time()
		begins[i] = followers[i].mark
		start(i)
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	o.harvest()
	for n := range harvests {
		for range 1 + rng.IntN(6) {
			o.provider.Evolve()
		}
		o.harvest()
		for _, f := range followers {
			select {
			case f.wake <- struct{}{}:
			default:
			}
		}
		switch n {
		case 30, 60: // two begin with a Resource List
			i := n/30 + 1
			if err := followers[i].baseline(); err != nil {
				t.Error(err)
			}
			begins[i] = followers[i].mark
			start(i)
		case 45:
			o.restart(nil)
		case 75:
			o.removeCache()
		case 90:
			o.restart(o.removeCache)
		}
	}
	close(done)
	group.Wait()
	o.compareFollowers(followers, begins, faults)
}

// removeCache deletes all rendered documents, if there are any, also while they are
// written.
func (o *harness) removeCache() {
	o.t.Helper()
	cache := filepath.Join(o.config.Data, "cache")
	if err := os.Rename(cache, cache+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.t.Error(err)
	}
	if err := os.RemoveAll(cache + ".old"); err != nil {
		o.t.Error(err)
	}
}

func (o *harness) compareFollowers(followers []*follower, begins []time.Time, faults []error) {
	t := o.t
	events := o.logged(event.Range{Upto: o.last()})
	live := map[string]string{}
	for _, e := range events {
		live[e.Loc] = e.Modified.String()
		if !e.Live() {
			delete(live, e.Loc)
		}
	}
	for i, f := range followers {
		if faults[i] != nil {
			t.Errorf("follower %d: %v", i, faults[i])
		}
		var want []string
		for _, e := range events {
			if e.Observed.Time().After(begins[i]) {
				want = append(want, e.Kind.String()+" "+e.Loc+" "+e.Observed.String())
			}
		}
		if !slices.Equal(f.got, want) {
			t.Errorf("follower %d took %d changes, the log has %d since it began", i, len(f.got), len(want))
		}
		if !maps.Equal(f.state, live) {
			t.Errorf("follower %d has %d resources, %d are live", i, len(f.state), len(live))
		}
		t.Logf("follower %d: %d changes in %d passes (%d broken off, %d answers 304)", i, len(f.got), f.polls, f.broken, f.saved)
	}
	t.Logf("%d events in %d Change Lists", len(events), len(o.changeLists()))
}
