package daemon_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// newMirrorHarness is a mirror of a provider with one record in two formats.
func newMirrorHarness(t *testing.T) *harness {
	t.Helper()
	b := newHarness(t, fixtures.New(fixtures.Options{}))
	b.quick()
	b.provider.Create(record("a", fixtures.Atom(), fixtures.RDF()))
	return b
}

func answer(status int) fixtures.Hook { return fixtures.Hook{Status: status} }

// wantEvents harvests once and compares what was logged, with the formats.
func (b *harness) wantEvents(what string, want ...string) harvest.Report {
	b.t.Helper()
	before := b.last()
	r := b.harvest()
	b.want(what, b.events(before), want...)
	b.wantBytes()
	return r
}

func (b *harness) wantPending(n int) {
	b.t.Helper()
	if got := b.stored().Pending; got != n {
		b.t.Errorf("%d pending, want %d", got, n)
	}
}

// wantBytes: each representation of each live record of a mirror is in the
// store, as long as the log says.
func (b *harness) wantBytes() {
	b.t.Helper()
	for ev := range b.liveEvents() {
		if len(ev.Representations) == 0 {
			b.t.Errorf("record %s is live without content", ev.Record)
		}
		for _, r := range ev.Representations {
			if got := b.bytes(&r); int64(len(got)) != r.Length {
				b.t.Errorf("record %s: %d bytes of %s, want %d", ev.Record, len(got), r.Href, r.Length)
			}
		}
	}
}

func (b *harness) bytes(r *event.Representation) []byte {
	b.t.Helper()
	var sum [32]byte
	if n, err := hex.Decode(sum[:], []byte(r.SHA256())); err != nil || n != 32 {
		b.t.Fatalf("%s: hash %q", r.Href, r.Hash)
	}
	blob, err := b.bridge.Contents.Open(context.Background(), sum)
	if err != nil {
		b.t.Fatalf("%s: %v", r.Href, err)
	}
	defer blob.Close()
	return readAll(b.t, blob)
}

// What was asked for while the clock was ahead is asked for again once it is right, with
// and without a restart, by hand and as it comes due.
func TestPendingAfterTheClockWasAhead(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for _, restart := range []bool{false, true} {
		for _, byHand := range []bool{false, true} {
			t.Run(fmt.Sprintf("restart %t, by hand %t", restart, byHand), func(t *testing.T) {
				clock := &testClock{}
				clock.pass(month)
				b := newHarnessWith(t, daemon.Options{Now: clock.now}, fixtures.New(fixtures.Options{}))
				b.quick()
				b.provider.Create(record("a", fixtures.Atom()))
				b.provider.SetHook("/records/a.atom", answer(503))
				b.wantEvents("a waits")
				b.bridge.Log.Settled() // no event gets an earlier time until a restart
				clock.pass(-month)
				if restart {
					b.reopen()
					b.quick()
				}
				if due, err := b.bridge.Log.DuePending(t.Context(), event.MicrosOf(clock.now())); err != nil || len(due) != 1 {
					t.Errorf("due are %v, %v", due, err)
				}
				b.wantEvents("it fails again")
				if due, err := b.bridge.Log.DuePending(t.Context(), event.MicrosOf(clock.now())); err != nil || len(due) != 0 {
					t.Errorf("at once due are %v, %v", due, err)
				}
				b.provider.ClearHook("/records/a.atom")
				if !byHand {
					clock.pass(20 * time.Minute)
				}
				before := b.last()
				if _, err := b.try(harvest.Options{AllPending: byHand}); err != nil {
					t.Fatal(err)
				}
				b.want("it is there", b.events(before), "created a [atom]")
				b.wantPending(0)
			})
		}
	}
}

func TestA13_AllDeadOrAnErrorIsPending(t *testing.T) {
	for name, c := range map[string]struct{ atom, rdf int }{
		"all gone":           {404, 410},
		"all refuse":         {401, 403},
		"one fails":          {500, 200},
		"one gone, one down": {404, 503},
		"all down":           {500, 502},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMirrorHarness(t)
			b.provider.Create(record("b", fixtures.Atom()))
			b.provider.SetHook("/records/a.atom", answer(c.atom))
			b.provider.SetHook("/records/a.rdf", answer(c.rdf))
			r := b.wantEvents("the others go on", "created b [atom]")
			if r.Pending != 1 || !r.Partial() {
				t.Errorf("report %+v", r)
			}
			b.wantPending(1)
			b.wantMark(b.provider.History()[1].Stamp) // passes what is pending
			b.provider.ClearHook("/records/a.atom")
			b.provider.ClearHook("/records/a.rdf")
			b.provider.ForgetRequests()
			b.wantEvents("not due")
			b.wantAsked(map[string]int{"/feed.atom": 1})
			b.reopen()
			b.quick()
			b.later(6 * time.Minute)
			if r := b.wantEvents("due, beside a 304", "created a [atom rdf]"); !r.NotModified {
				t.Errorf("report %+v", r)
			}
			b.wantPending(0)
		})
	}
	t.Run("a short body", func(t *testing.T) {
		b := newMirrorHarness(t)
		b.provider.SetHook("/records/a.rdf", fixtures.Hook{Break: 20})
		b.wantEvents("half is nothing")
		b.wantPending(1)
	})
	t.Run("larger than the cap", func(t *testing.T) {
		b := newMirrorHarness(t)
		b.source().Limits.Record = 100
		b.wantEvents("too much is nothing")
		b.wantPending(1)
	})
}

func TestA13_PendingOnItsOwnSchedule(t *testing.T) {
	b := newMirrorHarness(t)
	b.provider.SetHook("/records/a.rdf", answer(500))
	b.harvest()
	b.provider.ForgetRequests()
	asked := func(after time.Duration, want bool) {
		t.Helper()
		b.later(after)
		b.harvest()
		if got := b.provider.Requests("/records/a.rdf") > 0; got != want {
			t.Errorf("after %s: asked %t, want %t", after, got, want)
		}
		b.provider.ForgetRequests()
	}
	asked(4*time.Minute, false)
	asked(6*time.Minute, true)
	asked(6*time.Minute, false) // twice as long now
	asked(11*time.Minute, true)
	asked(11*time.Minute, false)
	if _, err := b.try(harvest.Options{AllPending: true}); err != nil {
		t.Fatal(err)
	}
	if b.provider.Requests("/records/a.rdf") == 0 {
		t.Error("everything pending was wanted")
	}
	b.wantPending(1)
}

func TestA13_UntilThenThePublishedStateStays(t *testing.T) {
	b := newMirrorHarness(t)
	b.wantEvents("first", "created a [atom rdf]")
	b.provider.Update(fixtures.Record{Name: "a", Summary: "Second."})
	b.provider.SetHook("/records/a.rdf", answer(503))
	b.wantEvents("the update waits")
	b.wantPending(1)
	b.provider.Update(fixtures.Record{Name: "a", Summary: "Third."})
	b.wantEvents("a newer entry waits in its place")
	b.wantPending(1)
	b.provider.ClearHook("/records/a.rdf")
	b.provider.Update(fixtures.Record{Name: "a", Summary: "Fourth."})
	b.wantEvents("a newer entry that answers", "updated a [atom rdf]")
	b.wantPending(0)
	b.later(6 * time.Minute)
	b.wantEvents("what was replaced is not asked for")
}

func TestA13_ADeletionRemovesWhatIsPending(t *testing.T) {
	b := newMirrorHarness(t)
	b.provider.SetHook("/records/a.atom", answer(500))
	b.wantEvents("never published")
	b.wantPending(1)
	b.provider.Delete("a")
	b.wantEvents("nor deleted")
	b.wantPending(0)

	b = newMirrorHarness(t)
	b.wantEvents("first", "created a [atom rdf]")
	b.provider.Update(fixtures.Record{Name: "a"})
	b.provider.SetHook("/records/a.atom", answer(500))
	b.wantEvents("update pending")
	b.provider.ClearHook("/records/a.atom")
	b.provider.Delete("a")
	b.wantEvents("deleted", "deleted a")
	b.wantPending(0)
}

func TestA13_StatedHashes(t *testing.T) {
	b := newMirrorHarness(t)
	_, _, body := answered(t, b.server.URL+"/records/a.atom")
	state := func(attribute string) {
		b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Body: func(doc []byte) []byte {
			s := strings.Replace(string(doc), `<link rel="alternate"`, `<link xmlns:le="http://purl.org/atompub/link-extensions/1.0" rel="alternate" `+attribute, 1)
			return []byte(s)
		}})
	}
	state(`hash="sha-256:` + strings.Repeat("0", 64) + `"`)
	b.wantEvents("a wrong hash")
	b.wantPending(1)
	state(`le:md5="` + strings.Repeat("0", 32) + `"`)
	b.wantEvents("a wrong MD5")
	b.wantPending(1)
	state(`hash="md99:what` + "\t" + `ever sha-256:` + strings.ToUpper(hexSum([]byte(body))) + `"`)
	b.wantEvents("the right one beside an unknown one", "created a [atom rdf]")
	b.wantPending(0)
}

func TestA13_OtherModesLogAtOnce(t *testing.T) {
	for _, mode := range []string{config.Redirect, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			b := newHarness(t, fixtures.New(fixtures.Options{}), content(mode))
			b.provider.Create(record("a", fixtures.Atom(), fixtures.RDF()))
			b.provider.SetHook("/records/a.atom", answer(500))
			b.provider.SetHook("/records/a.rdf", answer(404))
			b.harvest()
			b.want("as the Source stated", b.events(0), "created a [atom rdf]")
			b.wantAsked(map[string]int{"/feed.atom": 1})
			b.wantPending(0)
			// The stamp alone tells of a change where there is no hash (I5).
			b.provider.Touch("a")
			b.harvest()
			b.want("touched", b.events(1), "updated a [atom rdf]")
		})
	}
	t.Run("mirror", func(t *testing.T) {
		b := newMirrorHarness(t)
		b.wantEvents("first", "created a [atom rdf]")
		b.provider.Touch("a")
		b.wantEvents("the bytes tell that nothing has changed (I5)")
		b.provider.ForgetRequests()
		if r, err := b.try(harvest.Options{Full: true}); err != nil || r.Fetched != 0 {
			t.Errorf("fetched again: %+v, %v", r, err)
		}
	})
}

func TestA14_AllWantedFormatsHaveVanished(t *testing.T) {
	for _, mode := range []string{config.Mirror, config.Reference} {
		t.Run(mode, func(t *testing.T) {
			p := fixtures.New(fixtures.Options{})
			b := newHarness(t, p, content(mode), func(c *config.Config) { c.Sets[0].Formats = []string{"Application/RDF+XML; charset=utf-8"} })
			p.Create(record("a", fixtures.Atom(), fixtures.RDF()))
			p.Create(record("b", fixtures.Atom()))
			step := func(what string, want ...string) {
				t.Helper()
				before := b.last()
				b.harvest()
				b.want(what, b.events(before), want...)
			}
			step("what is not wanted was never there", "created a [rdf]")
			p.DropFormats("a", "rdf")
			step("the wanted one vanishes", "deleted a")
			p.Update(record("a", fixtures.RIFCS()))
			step("others do not count")
			p.Update(record("a", fixtures.RIFCS(), fixtures.RDF()))
			step("it is back", "created a [rdf]")
			if b.provider.Requests("/records/a.atom")+b.provider.Requests("/records/b.atom") != 0 {
				t.Error("a format was fetched that nobody wants")
			}
		})
	}
	t.Run("in a complete feed it is no absence", func(t *testing.T) {
		p := fixtures.New(fixtures.Options{Complete: true})
		b := newHarness(t, p, content(config.Reference), func(c *config.Config) { c.Sets[0].Formats = []string{"application/rdf+xml"} })
		p.Create(record("a", fixtures.Atom(), fixtures.RDF()))
		b.harvest()
		p.DropFormats("a", "rdf")
		if r := b.harvest(); r.Held != 0 {
			t.Errorf("held: %+v", r)
		}
		b.want("deleted", b.events(1), "deleted a")
	})
	t.Run("some formats", func(t *testing.T) {
		b := newMirrorHarness(t)
		b.wantEvents("first", "created a [atom rdf]")
		b.provider.DropFormats("a", "atom")
		b.wantEvents("one vanishes", "updated a [rdf]")
		b.provider.Update(record("a", fixtures.RDF(), fixtures.RIFCS(), fixtures.Atom()))
		b.wantEvents("two appear", "updated a [rdf rifcs atom]")
	})
}

// A host that cannot be reached is asked a few times, not once for each record;
// and what was not asked for gets no try counted (D101).
func TestA13_AHostThatIsDownIsLeftAlone(t *testing.T) {
	p := fixtures.New(fixtures.Options{})
	dead := "http://" + testenv.Nobody(t)
	for i := range 200 {
		p.Create(fixtures.Record{Name: fmt.Sprintf("r%03d", i), Formats: []fixtures.Format{{Ext: "xml", Type: "application/xml", Href: fmt.Sprintf("%s/%d.xml", dead, i)}}})
	}
	b := newHarness(t, p, func(c *config.Config) { c.AllowHosts = []string{"127.0.0.1"} })
	b.quick()
	b.bridge.Harvester().Workers = 1
	r := b.harvest()
	if r.Pending != 200 || r.Events() != 0 {
		t.Fatalf("%+v", r)
	}
	due, err := b.bridge.Log.Due(t.Context(), b.source().ID, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	spared := 0
	for _, d := range due {
		if d.Asked == 0 {
			spared++
		}
	}
	if spared < 150 || len(due) != 200 {
		t.Errorf("%d of %d records were spared", spared, len(due))
	}
}

// faulty serves the contents of records, some of them badly for ever.
type faulty struct {
	mu   sync.Mutex
	does map[string]string // by the path
}

func (f *faulty) set(path, how string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.does[path] = how
}

// answer reports whether it has answered.
func (f *faulty) answer(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	how := f.does[r.URL.Path]
	f.mu.Unlock()
	switch how {
	case "500", "502", "503", "429", "404", "410", "400":
		var status int
		_, _ = fmt.Sscan(how, &status)
		w.WriteHeader(status)
	case "later":
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	case "hangs":
		<-r.Context().Done()
	case "breaks off":
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "short")
	case "drops":
		panic(http.ErrAbortHandler)
	default:
		return false
	}
	return true
}

// TestLaw_EveryGoodRecordIsPublished: whatever records fail, in whatever way and
// for ever, every good record is published within three harvests (D101).
func TestLaw_EveryGoodRecordIsPublished(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 6)
	faults := []string{"500", "502", "503", "429", "404", "410", "400", "later", "hangs", "breaks off", "drops"}
	rapid.Check(t, func(rt *rapid.T) {
		contents := &faulty{does: map[string]string{}}
		p := fixtures.New(fixtures.Options{})
		b := newHarness(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !contents.answer(w, r) {
				p.ServeHTTP(w, r)
			}
		}), func(c *config.Config) { c.AllowHosts = []string{"127.0.0.1"} })
		defer b.server.Close()
		b.provider = p
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !contents.answer(w, r) {
				fmt.Fprint(w, r.URL.Path)
			}
		}))
		defer other.Close()
		b.quick(func(o *fetch.Options) { o.HeaderTimeout = 100 * time.Millisecond })
		b.bridge.Harvester().Workers = rapid.IntRange(4, 32).Draw(rt, "workers")

		type wanted struct{ by int } // the number of the harvest
		good := map[string]wanted{}
		n := 0
		for round := range rapid.IntRange(1, 3).Draw(rt, "rounds") + 2 {
			// Many bad ones, and a few good ones among them.
			many := make([]bool, rapid.IntRange(0, 250).Draw(rt, "records"))
			if round >= 3 {
				many = nil
			}
			for i := range many {
				many[i] = true
			}
			for range rapid.IntRange(0, 5).Draw(rt, "good") {
				if len(many) > 0 {
					many[rapid.IntRange(0, len(many)-1).Draw(rt, "at")] = false
				}
			}
			hosts := rapid.IntRange(1, 2).Draw(rt, "hosts")
			fault := rapid.SampledFrom(append(faults, "any")).Draw(rt, "fault")
			if fault == "hangs" { // each of these takes its time
				many = many[:min(len(many), 40)]
			}
			for _, bad := range many {
				name := fmt.Sprintf("r%03d", n)
				n++
				rec, path := record(name, fixtures.RDF()), "/records/"+name+".rdf"
				if hosts == 2 && n%2 == 0 {
					path = "/" + name
					rec = fixtures.Record{Name: name, Formats: []fixtures.Format{{Ext: "xml", Type: "application/xml", Href: other.URL + path}}}
				}
				p.Create(rec)
				how := fault
				if how == "any" {
					how = faults[n%len(faults)]
				}
				if bad {
					contents.set(path, how)
				} else {
					good[name] = wanted{round + 2}
				}
			}
			o := harvest.Options{AllPending: rapid.Bool().Draw(rt, "all")}
			_, err := b.bridge.Harvest(t.Context(), b.source(), o)
			for tries := 1; timedOut(err) && tries < 20; tries++ { // a busy machine is late with the feed itself
				_, err = b.bridge.Harvest(t.Context(), b.source(), o)
			}
			if err != nil {
				rt.Fatal(err)
			}
			live := b.live()
			for name, w := range good {
				if round >= w.by && !slices.ContainsFunc(live, func(s string) bool { return strings.HasPrefix(s, name+" ") }) {
					rt.Fatalf("good record %s is not published after harvest %d; there are %q", name, round+1, live)
				}
			}
		}
		b.close()
	})
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
