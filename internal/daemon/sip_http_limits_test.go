package daemon_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestSIPLimits_Fetched: a record that a library is asked for may be as long as the
// limit of records.
func TestSIPLimits_Fetched(t *testing.T) {
	const most = 100 << 10
	l := newLibrary(t)
	h := newSIPBridge(t, fmt.Sprintf("[limits]\nrecord = \"%d\"\n", most)+sipSet("main", l.records()))
	exact := "<r>" + strings.Repeat("x", most-7) + "</r>"
	l.put("exact", exact)
	l.put("longer", exact+"\n")
	h.notify("/sip/main", acceptedAs("longer"))
	l.wasAsked("/records/longer")
	h.notify("/sip/main", acceptedAs("exact"))
	h.await(1)
	if changes := h.changes(); len(changes) != 1 || string(h.get(changes[0].Loc).body) != exact {
		t.Errorf("Change List %+v", changes)
	}
	h.settle()
	h.want("logged", h.told("main"), "created exact")
	h.verified()
}
