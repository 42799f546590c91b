package daemon_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// patience is how long a test waits for what must come soon. It is long because
// the machine may be busy; nothing waits for it to pass.
const patience = 3 * time.Minute

// bench is a provider on loopback and a bridge that harvests it.
type bench struct {
	t        *testing.T
	provider *fixtures.Provider
	server   *httptest.Server
	config   *config.Config
	house    *daemon.Bridge
	options  daemon.Options
	batch    int
}

// newBench opens a bridge over a provider with one set in the given mode.
func newBench(t *testing.T, p *fixtures.Provider, change ...func(*config.Config)) *bench {
	t.Helper()
	b := newBenchOf(t, p, daemon.Options{}, change...)
	b.provider = p
	return b
}

func content(mode string) func(*config.Config) {
	return func(c *config.Config) { c.Sets[0].Content = mode }
}

func (b *bench) open() {
	b.t.Helper()
	h, err := daemon.Open(b.t.Context(), b.config, b.options)
	if err != nil {
		b.t.Fatal(err)
	}
	b.house = h
	h.Harvester().BatchSize = b.batch
	b.t.Cleanup(func() {
		if b.house == h {
			b.close()
		}
	})
}

func (b *bench) close() {
	if err := b.house.Close(); err != nil {
		b.t.Error(err)
	}
	b.house = nil
}

// reopen ends the bridge and starts it again on the same folder.
func (b *bench) reopen() {
	b.t.Helper()
	b.close()
	b.open()
}

func (b *bench) source() *daemon.Source { return b.house.Sources[0] }

// harvest makes one pass that must not fail.
func (b *bench) harvest() harvest.Report {
	b.t.Helper()
	r, err := b.try(harvest.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) full() harvest.Report {
	b.t.Helper()
	r, err := b.try(harvest.Options{Full: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) try(o harvest.Options) (harvest.Report, error) {
	b.t.Helper()
	return b.house.Harvest(b.t.Context(), b.source(), o)
}

// events returns what the log holds after a position, in the words of bridge
// log: "created a", "updated b [atom rdf]", with the last part of identifiers.
func (b *bench) events(after event.Seq) []string {
	b.t.Helper()
	var out []string
	for ev, err := range b.house.Log.Events(context.Background(), "", event.Range{After: after, Upto: math.MaxInt64}) {
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, b.words(ev))
	}
	return out
}

func (b *bench) words(ev *event.Event) string {
	var exts []string
	for _, r := range ev.Representations {
		exts = append(exts, event.Extension(r.Type))
	}
	s := ev.Kind.String() + " " + b.name(ev.Record)
	if len(exts) > 0 {
		s += " [" + strings.Join(exts, " ") + "]"
	}
	return s
}

// name is what the provider calls a record.
func (b *bench) name(id string) string {
	for _, c := range b.provider.History() {
		if c.ID == id {
			return c.Name
		}
	}
	return id
}

func (b *bench) last() event.Seq {
	b.t.Helper()
	seq, err := b.house.Log.LastSeq(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return seq
}

// live returns the names of the live records with their formats, sorted.
func (b *bench) live() []string {
	b.t.Helper()
	return b.eachLive(func(ev *event.Event) string {
		_, words, _ := strings.Cut(b.words(ev), " ")
		return words
	})
}

// eachLive returns what say says of each live record, sorted.
func (b *bench) eachLive(say func(*event.Event) string) []string {
	b.t.Helper()
	set, err := b.house.Log.Set(b.t.Context(), "main")
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for ev, err := range b.house.Log.Live(b.t.Context(), "main", set.Last) {
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, say(ev))
	}
	slices.Sort(out)
	return out
}

// want fails unless got is exactly this.
func (b *bench) want(what string, got []string, want ...string) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// wantLive fails unless the bridge has just the records that the provider has.
func (b *bench) wantLive() {
	b.t.Helper()
	var want []string
	for _, c := range b.provider.Live() {
		var exts []string
		for _, a := range c.Alternates {
			exts = append(exts, event.Extension(a.Type))
		}
		want = append(want, fmt.Sprintf("%s [%s]", c.Name, strings.Join(exts, " ")))
	}
	slices.Sort(want)
	b.want("live records", b.live(), want...)
}

func record(name string, formats ...fixtures.Format) fixtures.Record {
	return fixtures.Record{Name: name, Title: strings.ToUpper(name), Formats: formats}
}

// TestCatalogue is the main job: harvest, change, harvest again.
func TestCatalogue(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Redirect, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			p := fixtures.Catalogue(nil)
			b := newBench(t, p, content(mode))
			r := b.harvest()
			if got := r.Created; got != 27 {
				t.Errorf("%d records created, want 27: %+v", got, r)
			}
			b.wantLive()
			p.ForgetRequests()
			again := b.harvest()
			if !again.NotModified || again.Events() != 0 {
				t.Errorf("the second harvest: %+v", again)
			}
			if asked := p.Asked(); len(asked) != 1 || asked[fixtures.Subscription] != 1 {
				t.Errorf("the second harvest asked for %v", asked)
			}
			for range 30 {
				c := p.Evolve()
				before := b.last()
				b.harvest()
				want := c.Kind
				got := b.events(before)
				if len(got) != 1 || !strings.HasPrefix(got[0], want+" "+c.Name) {
					t.Fatalf("after %s %s the log has %q", c.Kind, c.Name, got)
				}
			}
			b.wantLive()
			before := b.last()
			if r := b.full(); r.Events() != 0 {
				t.Errorf("a full harvest added %q", b.events(before))
			}
		})
	}
}

var _ http.Handler = (*fixtures.Provider)(nil)
