package daemon_test

import (
	"net/http"
	"testing"
)

// An order to withdraw a record is carried out also where nothing is configured
// any more that has to do with SIP.
func TestWithdrawnWithoutAService(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned
	h.restart(func() { h.config.Sets = nil })
	if err := decided(t, h.config.Data, h.order(id))[0]; err != nil {
		t.Fatal(err)
	}
	h.want("the events", h.told("main"), "created "+id, "deleted "+id)
}
