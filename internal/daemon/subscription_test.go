package daemon

import (
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
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
