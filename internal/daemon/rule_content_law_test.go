package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

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
	testenv.Checks(t, 12)
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
