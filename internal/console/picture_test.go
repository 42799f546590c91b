package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// The picture in docs: a bridge that has run for a month. Only BRIDGE_SCREENSHOTS has it
// made.
func TestPicture(t *testing.T) {
	folder := os.Getenv("BRIDGE_SCREENSHOTS")
	if folder == "" {
		t.Skip("BRIDGE_SCREENSHOTS names no folder")
	}
	var clock atomic.Int64
	now := func() time.Time { return time.UnixMicro(clock.Load()).UTC() }
	clock.Store(time.Date(2026, 10, 24, 7, 12, 5, 0, time.UTC).UnixMicro())
	catalogue, maps, news, museum, instruments := fixtures.Catalogue(now), fixtures.Maps(now), fixtures.News(), fixtures.Museum(now), fixtures.Instruments(now)
	var gone atomic.Bool
	observatory := fixtures.Catalogue(now)
	sources := []struct {
		set, name, kind, path string
		handler               http.Handler
	}{
		{"research", "Eastmere data catalogue", "atompmh", fixtures.Subscription, catalogue},
		{"research", "Instruments", "atompmh", fixtures.Subscription, instruments},
		{"research", "Observatory", "atompmh", fixtures.Subscription, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if gone.Load() {
				http.NotFound(w, r)
				return
			}
			observatory.ServeHTTP(w, r)
		})},
		{"region", "Averil maps", "resourcesync", fixtures.SourceDescription, maps},
		{"region", "Combe museum", "oaipmh", fixtures.MuseumOAI, museum},
		{"region", "Library news", "feed", fixtures.NewsFeed, news},
	}
	text, set := "data = \"data\"\n", ""
	for _, s := range sources {
		server := httptest.NewServer(s.handler)
		t.Cleanup(server.Close)
		if s.set != set {
			set = s.set
			text += fmt.Sprintf("[[set]]\nname = %q\n", set)
		}
		text += fmt.Sprintf("[[set.source]]\nname = %q\nkind = %q\nurl = %q\noverlap = \"0s\"\n", s.name, s.kind, server.URL+s.path)
	}
	b := openBridge(t, daemon.Options{Now: now}, text)
	for day := range 31 {
		for n := range (day*7 + day*day/3) % 9 {
			catalogue.Evolve()
			if n%2 == 0 {
				fixtures.EvolveMaps(maps, day*9+n)
				observatory.Evolve()
			}
			if n%3 == 0 {
				museum.Evolve()
			}
		}
		if day%4 == 0 {
			news.Evolve()
		}
		gone.Store(day > 27)
		if day == 30 {
			for _, change := range instruments.Live()[1:] {
				instruments.Delete(change.Name)
			}
		}
		for _, src := range b.Sources() {
			clock.Add((11 * time.Minute).Microseconds())
			_, _ = b.Harvest(t.Context(), src, harvest.Options{Full: day == 30})
		}
		if day < 30 {
			clock.Add((23*time.Hour - 6*time.Minute).Microseconds())
		}
	}
	for i, src := range b.Sources() { // as a schedule plans them
		plan, err := b.Log.Schedule(t.Context(), src.ID)
		if plan.Next = event.MicrosOf(now().Add(time.Duration(7+11*i) * time.Minute)); err == nil {
			err = b.Log.SaveSchedule(t.Context(), src.ID, plan, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Pause(t.Context(), "region", "Combe museum", "moves to a new server", now().Add(72*time.Hour)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(console.New(console.Options{Bridge: b, Base: "https://bridge.example.org", Version: "bridge", Now: now}))
	t.Cleanup(server.Close)
	tab := newChromium(t).newTab()
	for _, scheme := range []string{"light", "dark"} {
		tab.look(1120, 700, scheme)
		tab.open(server.URL + console.Path + "/")
		tab.screenshot(folder, "picture-"+scheme)
	}
}
