package daemon_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// chainOfTen is a provider of ten archive documents with two records each.
func chainOfTen() *fixtures.Provider {
	p := fixtures.New(fixtures.Options{PerArchive: 2})
	for i := range 20 {
		p.Create(fixtures.Record{Name: fmt.Sprint("r", i)})
	}
	return p
}

// untilWhole harvests until nothing is over the budget any more, and fails when that
// takes too many harvests, or none that ended early. Each must come further.
func (b *harness) untilWhole(spent string) {
	b.t.Helper()
	early, documents := 0, int64(0)
	for range 40 {
		r, err := b.try(harvest.Options{})
		if err == nil {
			if early == 0 {
				b.t.Error("the budget ended no harvest")
			}
			return
		}
		early++
		if !errors.Is(err, harvest.ErrSpent) || !strings.Contains(err.Error(), spent) || r.Error == "" {
			b.t.Fatalf("harvest %d: %v, want %q in it", early, err, spent)
		}
		documents += r.Documents
	}
	b.t.Fatalf("after %d harvests of %d documents in all it is not whole", early, documents)
}

// D75: a harvest that has read harvest_size ends, and the next one goes on from
// there, until all is had.
func TestHarvestSize(t *testing.T) {
	b := newHarness(t, chainOfTen(), content("reference"), func(c *config.Config) { c.Limits.HarvestSize = 5 << 10 })
	b.untilWhole("bytes")
	if n := len(b.events(0)); n != 20 {
		t.Errorf("%d events, want one for each record", n)
	}
}

// D75: the same with harvest_time, by the bridge's clock.
func TestHarvestTime(t *testing.T) {
	var ahead atomic.Int64
	p := chainOfTen()
	b := newHarnessWith(t, daemon.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ahead.Add(int64(time.Minute)) // each document takes that long
		p.ServeHTTP(w, r)
	}),
		content("reference"), func(c *config.Config) { c.Limits.HarvestTime = 4 * time.Minute })
	b.provider = p
	p.SetBase(b.server.URL)
	b.untilWhole("of 4m0s")
	if n := len(b.events(0)); n != 20 {
		t.Errorf("%d events, want one for each record", n)
	}
}

// headPanics panics when it is asked for what is not a document.
type headPanics struct{ next http.RoundTripper }

func (f headPanics) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodHead {
		panic("a defect")
	}
	return f.next.RoundTrip(r)
}

// D75: a panic in one of the requests beside the walk fails the harvest, not the
// process.
func TestPanicBesideTheWalk(t *testing.T) {
	p := fixtures.New(fixtures.Options{})
	p.Create(fixtures.Record{Name: "a"})
	p.Create(fixtures.Record{Name: "untyped", Formats: []fixtures.Format{{Ext: "bin"}}})
	b := newHarness(t, p, content("reference"))
	src := b.source()
	src.Client = &http.Client{Transport: headPanics{src.Client.Transport}}
	if _, err := b.try(harvest.Options{}); !errors.As(err, new(*defect.Error)) {
		t.Errorf("got %v", err)
	}
}

// archivePanics panics while the walk reads an archive document.
type archivePanics struct{ next http.RoundTripper }

func (f archivePanics) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.next.RoundTrip(r)
	if err == nil && strings.Contains(r.URL.Path, "/archive/") {
		resp.Body = bodyPanics{resp.Body}
	}
	return resp, err
}

type bodyPanics struct{ io.ReadCloser }

func (bodyPanics) Read([]byte) (int, error) { panic("a defect") }

// D75: a panic of the walk itself fails the harvest as well. What was read before
// is in the log by then, and the next harvest goes on from there.
func TestPanicOfTheWalk(t *testing.T) {
	b := newHarness(t, chainOfTen(), content("reference"))
	src := b.source()
	whole := src.Client
	src.Client = &http.Client{Transport: archivePanics{whole.Transport}}
	if _, err := b.try(harvest.Options{}); !errors.As(err, new(*defect.Error)) {
		t.Errorf("got %v", err)
	}
	if n := len(b.events(0)); n != 2 {
		t.Errorf("%d events of the first document, want 2", n)
	}
	src.Client = whole
	b.harvest()
	if n := len(b.events(0)); n != 20 {
		t.Errorf("%d events, want one for each record", n)
	}
}

// longFeed is a feed of so many short entries in one document. Before its end it
// calls read, when nearly all of it has been read.
type longFeed struct {
	entries int
	bad     bool // they cannot be taken
	read    func()
}

// ServeHTTP is http.Handler.
func (f *longFeed) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/atom+xml")
	fmt.Fprint(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>F</title><updated>2026-01-02T00:00:00Z</updated><author><name>N</name></author>`)
	for i := range f.entries {
		link := fmt.Sprintf(`<link href="http://127.0.0.1/r/%d" type="text/xml"/>`, i)
		if f.bad {
			link = ""
		}
		fmt.Fprintf(w, `<entry><id>urn:x:%d</id><title>Entry %d</title><updated>2026-01-01T00:00:00Z</updated>%s</entry>`, i, i, link)
	}
	_ = http.NewResponseController(w).Flush()
	f.read()
	fmt.Fprint(w, "</feed>")
}

// D64: what a long Atom document says does not wait in memory for its end, neither
// the entries that are taken nor the bad ones, and all of it is taken then.
func TestLongFeedTakesLittleMemory(t *testing.T) {
	testenv.Heavy(t)
	const entries, most = 16_000, 24 << 20 // in memory they take about 40 MB
	for _, bad := range []bool{false, true} {
		t.Run(fmt.Sprintf("bad %t", bad), func(t *testing.T) {
			var before, while runtime.MemStats
			f := &longFeed{entries: entries, bad: bad, read: func() {
				runtime.GC()
				runtime.ReadMemStats(&while)
			}}
			b := newHarness(t, f, content(config.Reference))
			b.bridge.Harvester().BacklogMemory = 1000
			runtime.GC()
			runtime.ReadMemStats(&before)
			r := b.harvest()
			if grown := int64(while.HeapAlloc) - int64(before.HeapAlloc); grown > most {
				t.Errorf("%d MB in use at the end of %d entries, want at most %d MB", grown>>20, entries, most>>20)
			}
			if bad && r.Quarantined != entries || !bad && r.Created != entries {
				t.Errorf("%+v", r)
			}
		})
	}
}
