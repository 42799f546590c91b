package daemon_test

import (
	"fmt"
	"maps"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/backup"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// backUp writes a backup of the bridge while it runs.
func (b *harness) backUp() (path string) {
	b.t.Helper()
	path = filepath.Join(b.t.TempDir(), "backup.tar.zst")
	m, _, err := backup.WriteFile(b.t.Context(), b.config.Data, path, "test")
	if err != nil {
		b.t.Fatal(err)
	}
	if !m.Writing {
		b.t.Error("nobody writes the folder")
	}
	return path
}

// restore puts a backup into a folder of its own.
func (b *harness) restore(path string, o backup.Options) {
	b.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	b.config.Data = filepath.Join(b.t.TempDir(), "restored")
	if _, err := backup.Restore(b.t.Context(), f, b.config.Data, o); err != nil {
		b.t.Fatal(err)
	}
}

// wantSound fails unless bridge verify finds nothing.
func (b *harness) wantSound() {
	b.t.Helper()
	if _, err := b.bridge.Verify(b.t.Context(), true, func(f daemon.Finding) { b.t.Errorf("verify: %+v", f) }); err != nil {
		b.t.Fatal(err)
	}
}

// sums returns the live records of set main, with the hashes of what they have.
func (b *harness) sums() map[string]string {
	b.t.Helper()
	out := map[string]string{}
	for _, ev := range b.logged(event.Range{Upto: math.MaxInt64}) {
		id := ev.Record
		if delete(out, id); ev.Kind == event.Deleted {
			continue
		}
		var sums []string
		for _, r := range ev.Representations {
			sums = append(sums, r.SHA256())
		}
		slices.Sort(sums)
		out[id] = strings.Join(sums, " ")
	}
	return out
}

// A backup from before what Destinations have seen is restored: each ends with what the
// Source has, also without what was created and deleted in between. One that reads lists
// notices by itself; the others are told.
func TestRestoredForDestinations(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	p := fixtures.New(fixtures.Options{PerArchive: 4})
	source := httptest.NewServer(p)
	t.Cleanup(source.Close)
	for i := range 6 {
		p.Create(record(fmt.Sprint("r", i), fixtures.Atom(), fixtures.RDF()))
	}
	first := newRelay(t)
	main := pool{sources: []string{"atompmh:" + source.URL + fixtures.Subscription}}
	first.run(main)
	defer first.end()
	destinations := map[string]*relay{}
	from := map[string]string{"lists": first.lists(), "complete": first.whole(), "archived": first.archived(), "oai": first.oai("oai_dc")}
	for name := range from {
		r := newRelay(t)
		r.run(pool{sources: []string{from[name]}})
		defer r.end()
		destinations[name] = r
	}
	pass := func() {
		t.Helper()
		first.take(t, first.source(), harvest.Options{})
		for _, r := range destinations {
			r.take(t, r.source(), harvest.Options{})
		}
	}
	pass()
	kept := first.backUp()

	p.Create(record("passing", fixtures.Atom()))
	p.Update(record("r1", fixtures.Atom(), fixtures.Format{Ext: "rdf", Type: "application/rdf+xml", Body: []byte("<new/>")}))
	p.Delete("r2")
	pass()
	for name, r := range destinations {
		if n := len(r.sums()); n != 6 {
			t.Fatalf("%s: %d records before", name, n)
		}
		r.halt()
		r.close() // and with it the connections that it keeps
	}
	p.Delete("passing")
	p.Update(record("r1", fixtures.Atom()))
	p.Create(record("r6", fixtures.RDF()))

	first.halt()
	first.close()
	first.restore(kept, backup.Options{})
	first.run(main)
	first.wantSound()
	all := first.logged(event.Range{Upto: math.MaxInt64})
	if now, err := first.bridge.Status(t.Context()); err != nil || !now.Sets[0].Newest.Equal(all[len(all)-1].Observed.Time()) {
		t.Errorf("the last event of the restored set is of %v, and its state says %v, %v", all[len(all)-1].Observed, now.Sets[0].Newest, err)
	}
	first.take(t, first.source(), harvest.Options{})
	first.wantSound()
	want := first.sums()
	if len(want) != len(p.Live()) || len(want) != 6 {
		t.Fatalf("%d records, the Source has %d", len(want), len(p.Live()))
	}

	for name, r := range destinations {
		r.run(pool{sources: []string{from[name]}})
		_, err := r.bridge.Harvest(t.Context(), r.source(), harvest.Options{})
		if noticed := err != nil && strings.Contains(err.Error(), "the feed's id has changed"); noticed != strings.HasSuffix(from[name], ".atom") || !noticed && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		switch name {
		case "complete", "oai":
			err = r.bridge.Harvester().Reset(t.Context(), r.source().ID)
		case "archived": // its documents do not say what is absent
			if _, err = r.bridge.Harvester().Forget(t.Context(), &r.source().Source, false); err == nil {
				r.again(pool{sources: []string{from[name]}})
			}
		default:
			err = nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if name != "lists" {
			r.take(t, r.source(), harvest.Options{})
		}
		got := r.sums()
		if name == "oai" { // other bytes, of the same records
			got = maps.Collect(func(yield func(string, string) bool) {
				for id := range r.sums() {
					if id = first.recordOf(id); !yield(id, want[id]) {
						return
					}
				}
			})
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: the Destination has\n%v\nwant\n%v", name, got, want)
		}
		r.wantSound()
	}
}
