package daemon_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// decided asks who serves from a data folder to decide, once it listens, and returns
// what was refused.
func decided(t *testing.T, folder string, all ...daemon.Decision) []error {
	t.Helper()
	errs := make([]error, len(all))
	eventually(t, "decisions are taken", func() bool {
		err := daemon.SendDecisions(context.Background(), folder, all, func(i int, done daemon.DecisionResult) {
			if done.Error != "" {
				errs[i] = errors.New(done.Error)
			}
		})
		if err != nil && !errors.Is(err, daemon.ErrNotServing) {
			t.Fatal(err)
		}
		return err == nil
	})
	return errs
}

// Two who decide on one submission at the same time are both told the truth,
// whoever was first.
func TestDecisionsAtOnce(t *testing.T) {
	library := newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode))
	h.send("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf("1")+recipientAt(library.URL)+recordOf(`<r xmlns="urn:r"/>`))), 200)
	decisions := []daemon.Decision{{ID: 1, Accept: true, Assigned: "L1"}, {ID: 1, Reason: "no title"}}
	errs := make([]error, len(decisions))
	var both sync.WaitGroup
	for i := range decisions {
		both.Go(func() { errs[i] = decided(t, h.config.Data, decisions[i])[0] })
	}
	both.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("both or neither: %v", errs)
	}
	got := library.next()
	if errs[0] == nil && (got.Assigned != "L1" || !strings.Contains(errs[1].Error(), "accepted already, as L1")) ||
		errs[1] == nil && (got.Rejected == nil || !strings.Contains(errs[0].Error(), "rejected already (no title)")) {
		t.Errorf("%v; the submitter is told %+v", errs, got)
	}
}

// D37: any number of decisions is one request, and each is answered.
func TestManyDecisions(t *testing.T) {
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode))
	library := newRecipient(t)
	const n = 30
	all := make([]daemon.Decision, n+1)
	for i := range n {
		h.send("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf(string(rune('A'+i)))+recipientAt(library.URL)+recordOf(`<r xmlns="urn:r"/>`))), 200)
		all[i] = daemon.Decision{ID: int64(i + 1), Accept: i%2 == 0, Reason: "no"}
	}
	all[n].ID = n + 1
	errs := decided(t, h.config.Data, all...)
	for i, err := range errs {
		if (err != nil) != (i == n) {
			t.Errorf("decision %d: %v", i, err)
		}
	}
	counts, err := h.bridge.SIP.Counts(t.Context(), h.bridge.Sources()[0].ID)
	if err != nil || counts.Submissions[submission.StateAccepted] != n/2 || counts.Submissions[submission.StateRejected] != n/2 || counts.UnderReview != 0 {
		t.Errorf("%+v, %v", counts, err)
	}
}

// A data folder with a path that is too long for a socket is no obstacle, nor is a
// socket that a killed process has left, and when serve ends nothing is left.
func TestDecisionsWhereverTheFolderIs(t *testing.T) {
	for _, depth := range []int{0, 40} {
		h := newSIPBridge(t, "")
		h.halt()
		h.close()
		folder := filepath.Join(h.config.Data, strings.Repeat("deep/", depth))
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		left := filepath.Join(t.TempDir(), "control") // of the killed process
		if depth == 0 {
			left = filepath.Join(folder, "control")
		} else if err := os.Symlink(left, filepath.Join(folder, "control")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		h.config.Data = folder
		h.run()
		if err := decided(t, folder, daemon.Decision{ID: 1})[0]; err == nil || !strings.Contains(err.Error(), "there is no submission 1") {
			t.Errorf("in a path of %d bytes: %v", len(folder), err)
		}
		if _, err := os.Stat(filepath.Dir(left)); depth > 0 && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the killed process has left %s: %v", filepath.Dir(left), err)
		}
		h.halt()
		if _, err := os.Lstat(filepath.Join(folder, "control")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the end: %v", err)
		}
		if err := daemon.SendDecisions(t.Context(), folder, []daemon.Decision{{ID: 1}}, nil); !errors.Is(err, daemon.ErrNotServing) {
			t.Errorf("nobody is there: %v", err)
		}
	}
}
