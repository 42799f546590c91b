package daemon_test

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

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
	const entries, most = 40_000, 24 << 20 // in memory they take about 100 MB
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
