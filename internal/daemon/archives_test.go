package daemon_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// decade is a set whose log grows by segments of one event.
type decade struct {
	*harness
	id     event.SourceID
	rounds int
}

// yearsOfSegments is how many segments ten years have.
const yearsOfSegments = 60_000

func newDecade(t *testing.T) *decade {
	o := &harness{t: t}
	o.openFor(config.AtomPMH+":http://127.0.0.1:9/feed.atom", content(config.Reference), segments(1))
	ctx := t.Context()
	d := &decade{harness: newPublisher(o), id: o.source().ID}
	if err := o.bridge.Log.MarkSetComplete(ctx, "main"); err != nil {
		t.Fatal(err)
	}
	return d
}

// growTo appends changes of 500 records until there are so many segments.
func (d *decade) growTo(segments int) {
	d.t.Helper()
	ctx := d.t.Context()
	for at := d.rounds * 500; at < segments; at = d.rounds * 500 {
		d.rounds++
		progress, err := d.bridge.Log.Progress(ctx, d.id)
		if err != nil {
			d.t.Fatal(err)
		}
		b := &event.Batch{Source: d.id, Cursor: progress.Cursor.Version, Documents: []event.Document{{URL: "http://127.0.0.1:9/feed.atom", FeedID: "urn:f", FeedTitle: "F"}}}
		for i := range 500 {
			o := event.Observation{Record: fmt.Sprintf("urn:x:%d", i), Title: fmt.Sprint("Version ", d.rounds), Order: event.StampFromNanos(int64(d.rounds) * 1e9)}
			o.Modified = o.Order
			// Every third record is there in every other round.
			if o.Deleted = i%3 == 0 && d.rounds%2 == 0; !o.Deleted {
				o.Representations = []event.Representation{{Href: fmt.Sprintf("https://origin.example/%d", i), Type: "text/xml", Length: int64(d.rounds),
					Hash: fmt.Sprintf("sha-256:%064x", d.rounds*500+i)}}
			}
			b.Items = append(b.Items, &event.Item{Observation: o})
		}
		if _, err := d.bridge.Log.Append(ctx, b); err != nil {
			d.t.Fatal(err)
		}
	}
}

// titles are the live records and what is published of them.
func titles(h *harness) []string {
	return h.eachLive(func(ev *event.Event) string {
		return fmt.Sprint(ev.Record, " ", ev.Title, " ", ev.Representations[0].Href, " ", ev.Representations[0].Hash)
	})
}

// Ten years of segments, and Destinations that slept for five and for nine of them: they
// catch up through the index and the archive, without a baseline, and have what one
// has that compares a baseline now.
func TestAsleepForYears(t *testing.T) {
	testenv.Soak(t)
	testenv.Heavy(t)
	d := newDecade(t)
	follow := func() *harness {
		h := &harness{t: t}
		h.openFor(config.ResourceSync+":"+d.base+"/sets/main/capabilitylist.xml", content(config.Reference), func(c *config.Config) { c.Sets[0].Sources[0].MaxDocuments = 100_000 })
		return h
	}
	nine, five := follow(), follow()
	d.growTo(yearsOfSegments / 12)
	nine.harvest()
	d.growTo(yearsOfSegments / 2)
	five.harvest()
	start := time.Now()
	d.growTo(yearsOfSegments)
	t.Logf("%d segments appended in %v", yearsOfSegments/2, time.Since(start))

	for _, path := range []string{"changelist-index.xml", "changelist-archive.xml", "capabilitylist.xml", "changelist.xml"} {
		start := time.Now()
		first := d.get(d.setURL(path))
		took := time.Since(start)
		start = time.Now()
		d.get(d.setURL(path))
		t.Logf("%s: %d bytes, %d entries; rendered in %v, sent again in %v", path, len(first.body), strings.Count(string(first.body), "<loc>"), took, time.Since(start))
		if n := strings.Count(string(first.body), "<loc>"); n > 50_000 || len(first.body) > 50_000_000 {
			t.Errorf("%s has %d entries, %d bytes", path, n, len(first.body))
		}
	}
	d.list(d.setURL("changelist-archive.xml"), "urlset", "changelist-archive")

	fresh := follow()
	fresh.harvest()
	want := titles(fresh)
	for name, h := range map[string]*harness{"nine years": nine, "five years": five} {
		before := h.last()
		start := time.Now()
		r := h.harvest()
		t.Logf("%s: %v, %d documents, %d events", name, time.Since(start), r.Documents, h.last()-before)
		if got := titles(h); !slices.Equal(got, want) || r.Gap != "" || len(r.Warnings) > 0 {
			t.Errorf("%s: %d records, want %d; %+v", name, len(got), len(want), r)
		}
		// One event for each record that is another than before: the newest state counts.
		if n := h.last() - before; n > 500 {
			t.Errorf("%s: %d events, more than one a record", name, n)
		}
		start = time.Now()
		if r := h.harvest(); r.Documents > 1 {
			t.Errorf("%s: the next harvest reads %d documents", name, r.Documents)
		}
		t.Logf("%s: a poll without news takes %v", name, time.Since(start))
	}
	d.growTo(yearsOfSegments + 500)
	start = time.Now()
	r := five.harvest()
	t.Logf("a poll with 500 news takes %v, %d documents", time.Since(start), r.Documents)
	if reply := d.ask(http.MethodGet, d.setURL("changelist-archive/1.xml")); reply.status != http.StatusNotFound {
		t.Errorf("an archive of one document has a part: %d", reply.status)
	}
}
