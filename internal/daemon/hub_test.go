package daemon

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A subscription that is not wanted any more, and cannot be removed from the log, is tried
// again after a minute, and not at once.
func TestSubscriptionThatStays(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	h := openFeeds(t, folder, &httptest.Server{URL: "http://source.example"}, "/")
	defer closeBridge(t, h)
	row := eventlog.Subscription{Token: "t", Source: h.Sources()[0].ID, Topic: "http://source.example/", Due: event.MicrosOf(time.Now().Add(time.Hour))}
	if err := h.Log.SaveSubscription(t.Context(), &row); err != nil {
		t.Fatal(err)
	}
	change(t, filepath.Join(folder, "log.db"), "CREATE TRIGGER broken BEFORE DELETE ON subscription BEGIN SELECT RAISE(ABORT, 'the disk is on fire'); END")
	if !h.loadPushes(t.Context()) {
		t.Fatal("the subscriptions cannot be read")
	}
	h.subscribeRound(t.Context())
	if wait := h.subscribeRound(t.Context()); wait < pushFirst/2 {
		t.Errorf("it is tried again after %s", wait)
	}
	change(t, filepath.Join(folder, "log.db"), "DROP TRIGGER broken")
	h.push.rows["t"].Due = 1
	h.subscribeRound(t.Context())
	if all, err := h.Log.Subscriptions(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestHubStatus: a hub fails since the first of its failures that goes on, whatever the order
// of documents.
func TestHubStatus(t *testing.T) {
	t.Parallel()
	var b Bridge
	b.generation.Store(&generation{config: &config.Config{Sets: []config.Set{{Name: "main", Hub: []string{"h"}}}}})
	told := []eventlog.HubTopic{{Hub: "h", Topic: "a", Since: 3, Error: "c"}, {Hub: "h", Topic: "b", Since: 1, Error: "d"}, {Hub: "h", Topic: "c", Told: 9}, {Hub: "h", Topic: "d", Since: 2, Error: "e"}}
	if all := hubStatus(b.hubsOf("main"), told); len(all) != 1 || all[0].FailingSince != timeOf(1) || all[0].Error != "d" || all[0].Told != timeOf(9) {
		t.Errorf("%+v", all)
	}
}

// TestHubFailsSinceNow: a hub that began to fail while the clock was ahead has failed since the next
// failure, or nobody would be alerted before the wrong time has come.
func TestHubFailsSinceNow(t *testing.T) {
	t.Parallel()
	var b Bridge
	b.opt.Logger = slog.New(slog.DiscardHandler)
	h := eventlog.HubTopic{Hub: "h", Topic: "a"}
	for since, want := range map[event.Micros]event.Micros{0: 5, 3: 3, 9: 5} {
		b.hubs.notified = map[[2]string]eventlog.HubTopic{{"h", "a"}: {Hub: "h", Topic: "a", Since: since}}
		if got := b.failedTopic(&h, 5, errors.New("502")); got.Since != want || got.Error != "502" {
			t.Errorf("failing since %d: %+v, want %d", since, got, want)
		}
	}
}
