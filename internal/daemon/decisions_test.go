package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

// Two who decide on one submission at the same time are both told the truth,
// whoever was first.
func TestDecisionsAtOnce(t *testing.T) {
	library := newRecipient(t)
	h := newSoapHouse(t, "allow_hosts = [\"127.0.0.1\"]\n"+soapSet("main", reviewMode))
	h.send("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf("1")+recipientAt(library.URL)+recordOf(`<r xmlns="urn:r"/>`))), 200)
	h.halt() // so that both decisions lie there when it looks
	h.close()

	decisions := []daemon.Decision{{ID: 1, Accept: true, Assigned: "L1"}, {ID: 1, Reason: "no title"}}
	said := make([]chan error, len(decisions))
	for i, d := range decisions {
		said[i] = make(chan error, 1)
		go func() { said[i] <- daemon.LeaveDecision(t.Context(), h.config.Data, d, time.Minute) }()
		eventually(t, "the decision lies there", func() bool {
			files, _ := filepath.Glob(filepath.Join(h.config.Data, "decisions", "*.json"))
			return len(files) > i || len(said[0])+len(said[i]) > 0
		})
	}
	h.run()
	if err := <-said[0]; err != nil {
		t.Errorf("the first decision: %v", err)
	}
	if err := <-said[1]; err == nil || !strings.Contains(err.Error(), "accepted already, as L1") {
		t.Errorf("the second decision: %v, want that the first is in force", err)
	}
	if got := library.next(); got.Assigned != "L1" {
		t.Errorf("the submitter is told %+v", got)
	}
	eventually(t, "nothing is left", func() bool {
		files, err := os.ReadDir(filepath.Join(h.config.Data, "decisions"))
		return err == nil && len(files) == 0
	})
}
