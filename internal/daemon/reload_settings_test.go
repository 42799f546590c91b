package daemon_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestReloadOfSettings: the settings of a set that a reload changes count from then on, also
// for documents that were asked for before.
func TestReloadOfSettings(t *testing.T) {
	clock := testenv.NewClock()
	b := &harness{t: t, provider: fixtures.Catalogue(clock.Now), options: daemon.Options{Now: clock.Now, Network: daemon.Unresolved}}
	source := httptest.NewServer(b.provider)
	t.Cleanup(source.Close)
	b.listen(&http.Transport{DisableCompression: true})
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	write := func(settings string) {
		t.Helper()
		text := fmt.Sprintf("listen = %q\nbase_url = %q\ndata = %q\n[[set]]\nname = \"main\"\nsegment_events = 1\n%s[[set.source]]\nkind = \"atompmh\"\nurl = %q\n",
			b.listener.Addr(), b.base, filepath.Join(folder, "data"), settings, source.URL+fixtures.Subscription)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func(settings string) {
		t.Helper()
		write(settings)
		if said, err := b.bridge.Reload(t.Context()); err != nil || len(said) != 1 {
			t.Fatal(said, err)
		}
	}
	var err error
	write("feeds = false\n")
	if b.config, err = config.Load(file); err != nil {
		t.Fatal(err)
	}
	b.open()
	for range 3 { // days
		b.harvest()
		b.provider.Evolve()
		clock.Advance(24 * time.Hour)
	}
	b.publish()
	entries := b.resources()
	if len(entries) == 0 {
		t.Fatal("nothing is published")
	}
	record, feeds := entries[0].Loc, []string{"feed.atom", "feed/1.atom", "complete.atom"}
	archived := func() (archived []listEntry) {
		t.Helper()
		if !strings.Contains(string(b.get(b.setURL("capabilitylist.xml")).body), "/resourcelist-archive.xml") {
			return nil
		}
		return b.list(b.setURL("resourcelist-archive.xml"), "urlset", "resourcelist-archive").URLs
	}
	for _, want := range []struct {
		settings       string
		lists          int
		feeds, history bool
	}{
		{lists: 0, feeds: false},
		{settings: "keep_lists = 2\nhistory = true\n", lists: 2, feeds: true, history: true},
		{settings: "keep_lists = 1\nfeeds = false\n", lists: 1, feeds: false},
		{settings: "keep_lists_for = \"1000d\"\n", lists: 3, feeds: true},
		{settings: "feeds = false\n", lists: 0, feeds: false},
	} {
		if want.settings != "" {
			reload(want.settings)
		}
		all := archived()
		if len(all) != want.lists {
			t.Errorf("with %q the archive names %d lists, want %d", want.settings, len(all), want.lists)
		}
		for _, e := range all {
			for late := time.Now().Add(patience); ; {
				if r := b.ask(http.MethodGet, e.Loc); r.status != http.StatusServiceUnavailable || time.Now().After(late) { // it may yet be made
					r.want(t, http.StatusOK)
					break
				}
			}
		}
		for _, name := range feeds {
			status := http.StatusNotFound
			if want.feeds {
				status = http.StatusOK
			}
			if r := b.ask(http.MethodGet, b.setURL(name)); r.status != status {
				t.Errorf("with %q %s answers %d, want %d", want.settings, name, r.status, status)
			}
		}
		if links := strings.Join(b.get(record).header["Link"], ", "); strings.Contains(links, `rel="timegate`) != want.history {
			t.Errorf("with %q a record has the links %s", want.settings, links)
		}
	}
}
