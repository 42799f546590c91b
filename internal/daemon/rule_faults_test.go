package daemon_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

func TestA8_MissingArchive(t *testing.T) {
	b := threeDocuments(t)
	b.archive(active("g", "v1", day(7)))
	b.archive(active("h", "v1", day(8)))
	b.feed(active("i", "v1", day(9)))
	b.provider.SetHook(fixtures.Archive(3), fixtures.Hook{Status: http.StatusNotFound})
	r := b.wantLog("what is newer applies", "created i v1", "created h v1")
	if !strings.Contains(r.Gap, "/archive/3.atom") || !r.Partial() {
		t.Errorf("report %+v", r)
	}
	b.wantMark(day(6))
	if gap := harvest.Gap(b.stored().Gap); !strings.Contains(gap, "/archive/3.atom") {
		t.Errorf("stored gap %q", gap)
	}
	b.wantLog("unconditional, and tried again")
	b.provider.ClearHook(fixtures.Archive(3))
	r = b.wantLog("the archive is back", "created g v1")
	if r.Gap != "" || b.stored().Gap != "" {
		t.Errorf("the gap is still there: %+v", r)
	}
	b.wantMark(day(9))
}

func TestA8_AcceptedGap(t *testing.T) {
	b := threeDocuments(t, func(c *config.Config) { c.Sets[0].Sources[0].FullEvery = 7 * 24 * time.Hour })
	if _, err := b.bridge.Harvester().AcceptGap(t.Context(), &b.source().Source); !errors.Is(err, harvest.ErrNoGap) {
		t.Errorf("nothing to accept: %v", err)
	}
	b.archive(active("g", "v1", day(7)))
	b.feed(active("h", "v1", day(8)))
	b.provider.SetHook(fixtures.Archive(3), fixtures.Hook{Status: http.StatusNotFound})
	b.wantLog("gap", "created h v1")
	gone, err := b.bridge.Harvester().AcceptGap(t.Context(), &b.source().Source)
	if err != nil || !strings.HasSuffix(gone, "/archive/3.atom") {
		t.Errorf("accepted %q, %v", gone, err)
	}
	b.wantMark(day(8))
	b.feed(active("i", "v1", day(9)))
	r := b.wantLog("goes on from it", "created i v1")
	if r.Partial() {
		t.Errorf("report %+v", r)
	}
	b.wantMark(day(9))
	// A climb as far as the chain goes is a full one, and not due again at once.
	b.later(8 * 24 * time.Hour)
	b.wantLog("due")
	if r := b.wantLog("not due"); !r.NotModified {
		t.Errorf("the chain is climbed at each harvest: %+v", r)
	}
}

func TestA8_ServerErrorsAreNoGap(t *testing.T) {
	for _, status := range []int{403, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			b := threeDocuments(t)
			b.quick()
			b.archive(active("g", "v1", day(7)))
			b.feed(active("h", "v1", day(8)))
			b.provider.SetHook(fixtures.Archive(3), fixtures.Hook{Status: status})
			b.want("what is newer applies", b.wantError("/archive/3.atom"), "created h v1")
			if b.stored().Gap != "" {
				t.Errorf("a gap: %s", b.stored().Gap)
			}
			b.feed(active("h", "v1", day(8)), active("i", "v1", day(9)))
			b.want("news do not wait for the archive", b.wantError("/archive/3.atom"), "created i v1")
			b.wantMark(day(6))
			b.provider.ClearHook(fixtures.Archive(3))
			b.wantLog("resumed", "created g v1")
			b.wantMark(day(9))
		})
	}
}

// A Source with more documents than a harvest may read is harvested on: what is new
// comes in, and the gap is shown (D108).
func TestA9_MaxDocuments(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{}, func(c *config.Config) { c.Sets[0].Sources[0].MaxDocuments = 3 })
	for i := range 5 {
		b.archive(active(fmt.Sprint(i+1), "v1", day(i+1)))
	}
	b.feed(active("6", "v1", day(6)))
	if r := b.wantLog("three of six", "created 6 v1", "created 5 v1", "created 4 v1"); !strings.Contains(r.Gap, "too many documents") { // D108
		t.Errorf("gap %q", r.Gap)
	}
	b.archive(active("7", "v1", day(7)))
	b.feed(active("8", "v1", day(8)))
	if r := b.wantLog("what is new", "created 8 v1", "created 7 v1"); !strings.Contains(r.Gap, "too many documents") {
		t.Errorf("what is new: gap %q", r.Gap)
	}
	b.source().MaxDocuments = 10
	b.provider.ForgetRequests()
	b.wantLog("raised: it goes on where it was", "created 3 v1", "created 2 v1", "created 1 v1")
	if n := b.provider.Requests(fixtures.Archive(5)); n != 0 {
		t.Errorf("archive 5 was read again")
	}
}

func TestA9_OtherHosts(t *testing.T) {
	other := fixtures.New(fixtures.Options{})
	server := httptest.NewServer(other)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := "http://localhost:" + u.Port() + fixtures.Subscription
	other.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Entries = []fixtures.Entry{active("a", "v1", day(1))} })
	chain := func(allowed ...string) *harness {
		b := newEntryHarness(t, fixtures.Options{}, func(c *config.Config) { c.AllowHosts = allowed })
		b.feed(active("b", "v1", day(2)))
		b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Prev = elsewhere })
		return b
	}
	b := chain()
	b.want("refused", b.wantError("localhost", "refused"), "created b v1")
	b.feed(active("b", "v1", day(2)), active("c", "v1", day(3)))
	b.want("news come in", b.wantError("refused"), "created c v1")
	if asked := other.Asked(); len(asked) != 0 {
		t.Errorf("the other host was asked for %v", asked)
	}
	b = chain("localhost")
	b.wantLog("allowed", "created b v1", "created a v1")
}

func TestA10_TheFeedHasEnded(t *testing.T) {
	b := threeDocuments(t)
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Status: http.StatusGone})
	for range 2 {
		r := b.wantLog("410")
		if !strings.Contains(strings.Join(r.Warnings, ""), "ended") || !r.Partial() {
			t.Errorf("report %+v", r)
		}
	}
	if len(b.titles()) != 6 {
		t.Errorf("live: %q", b.titles())
	}
	b.provider.ClearHook(fixtures.Subscription)
	b.feed(active("g", "v1", day(7)))
	b.wantLog("back", "created g v1")
}

func TestA10_Files(t *testing.T) {
	p := fixtures.Catalogue(nil)
	b, folder := newFolderHarness(t, p)
	if r := b.harvest(); r.Created != 27 {
		t.Fatalf("report %+v", r)
	}
	b.wantLive()
	if r := b.harvest(); !r.NotModified {
		t.Errorf("size and time have not changed: %+v", r)
	}
	c := p.Update(fixtures.Record{Name: p.Live()[0].Name, Summary: "Changed."})
	if err := p.WriteFiles(folder); err != nil {
		t.Fatal(err)
	}
	before := b.last()
	b.harvest()
	if got := b.events(before); len(got) != 1 || !strings.HasPrefix(got[0], "updated "+c.Name) {
		t.Errorf("logged %q", got)
	}
	now := time.Now().Add(time.Minute)
	if err := os.Chtimes(filepath.Join(folder, "feed.atom"), now, now); err != nil {
		t.Fatal(err)
	}
	before = b.last()
	if r := b.harvest(); r.NotModified || len(b.events(before)) != 0 {
		t.Errorf("another time, the same content: %+v", r)
	}
}

func TestA11_ViolationsAreReportedWithTheirPlace(t *testing.T) {
	b := newEntryHarness(t, fixtures.Options{})
	b.archive(active("a", "v1", day(5)))
	b.feed(active("b", "v1", day(3)), active("c", "v1", day(4)))
	b.provider.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Updated = day(3) })
	r := b.wantLog("all applies", "created b v1", "created c v1", "created a v1")
	if got := reported(r, "S1"); !strings.Contains(got, "/feed.atom:18:3:") || !strings.Contains(got, "urn:c") {
		t.Errorf("S1 reported at %q", got)
	}
	if got := reported(r, "S2"); !strings.Contains(got, "/archive/1.atom") {
		t.Errorf("S2 reported at %q", got)
	}
	if r.Partial() {
		t.Errorf("rules that the Source breaks are no failure of ours: %+v", r)
	}
}

func TestA11_BadEntriesGoToQuarantineWhole(t *testing.T) {
	const bad = "<entry><id>urn:bad</id><title>x</title><updated>yesterday</updated><link href='/x'/></entry>"
	b := newEntryHarness(t, fixtures.Options{})
	b.feed(active("a", "v1", day(1)), raw("  "+bad+"\n"), active("b", "v1", day(2)))
	r := b.wantLog("the rest goes on", "created a v1", "created b v1")
	q := b.quarantined()
	if r.Quarantined != 1 || !r.Partial() || len(q) != 1 {
		t.Fatalf("in quarantine %+v, report %+v", q, r)
	}
	if q[0].Rule != "4287-date" || q[0].Line != 17 || q[0].Column != 3 || !strings.Contains(string(q[0].Input), bad) || !strings.HasSuffix(q[0].URL, "/feed.atom") {
		t.Errorf("quarantined %+v\n%s", q[0], q[0].Input)
	}
	b.wantFull("the same input once")
	if q := b.quarantined(); len(q) != 1 || q[0].Times != 2 {
		t.Errorf("met again: %+v", q)
	}
	if _, err := b.replay(q[0]); !errors.Is(err, harvest.ErrStillBad) {
		t.Errorf("replay: %v", err)
	}
	if _, err := b.replay(event.Quarantined{Source: q[0].Source, Input: []byte("<")}); !errors.As(err, new(*atompmh.DocumentError)) {
		t.Errorf("replay of what is no XML: %v", err)
	}
}
