package daemon_test

import (
	"context"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/status"
)

// trouble returns how the target of main fails, as another process finds it.
func (h *submitter) trouble() *status.Failure {
	h.t.Helper()
	beside, err := daemon.Open(context.Background(), h.config, daemon.Options{ReadOnly: true, Now: h.clock.now})
	if err != nil {
		h.t.Fatal(err)
	}
	defer beside.Close()
	now, err := beside.Status(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, s := range now.Sets {
		for _, p := range s.Submissions {
			if s.Name == "main" && p.Direction == status.Sent {
				return p.Failing
			}
		}
	}
	h.t.Fatal("main has no target")
	return nil
}

// A target that cannot be reached is to be seen, and why, although its submissions
// only wait; until it answers.
func TestSIPTrouble(t *testing.T) {
	library := newIngestServer(t, accepts)
	h := newSubmitter(t, "", library)
	library.shut()
	began := h.clock.now().Add(-time.Second)
	record := h.take("one")
	eventually(t, "the status tells that the target fails", func() bool { return h.trouble() != nil })
	got := h.trouble()
	if got.Reason == "" || got.Since.Before(began) || got.Since.After(h.clock.now()) || !got.Again.Equal(got.Since.Add(time.Minute)) {
		t.Errorf("failing: %+v", got)
	}
	h.wantCounts("waiting 1; ")
	h.shows("main", library.URL+" fails since "+got.Since.Format("2006-01-02 15:04:05 UTC"), got.Again.Format("It is asked again at 2006-01-02 15:04:05 UTC."))

	h.clock.pass(2 * time.Minute)
	if later := h.trouble(); !later.Again.IsZero() || !later.Since.Equal(got.Since.Time) {
		t.Errorf("two minutes later: %+v", later)
	}
	h.shows("main", "It is asked again within an hour.")

	library.gate.closed.Store(false)
	h.later(time.Hour)
	h.becomes(record, event.StateAccepted)
	eventually(t, "the status tells that the target answers", func() bool { return h.trouble() == nil })
	h.verified()
}
