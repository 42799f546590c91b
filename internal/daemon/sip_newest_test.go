package daemon_test

import (
	"math"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// What a set tells of its last event is of one that is in no segment, too.
func TestSIPNewestEvent(t *testing.T) {
	h := newSIPBridge(t, sipSet("main"))
	h.notify("/sip/main", sourceOf("1")+rejectedFor("no title"))
	set, err := h.bridge.Log.Set(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	events := 0
	for ev, err := range h.bridge.Log.Events(t.Context(), "main", event.Range{Upto: math.MaxInt64}) {
		if err != nil {
			t.Fatal(err)
		}
		events++
		if ev.Observed != set.Newest || set.Newest <= set.Created || set.LastObserved != set.Created {
			t.Errorf("the event is of %v; the set says %v, and was made at %v", ev.Observed, set.Newest, set.Created)
		}
	}
	if events != 1 {
		t.Errorf("%d events, want 1", events)
	}
	h.shows("main", set.Newest.Time().Format("2006-01-02 15:04:05 UTC"))
}
