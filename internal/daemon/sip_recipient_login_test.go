package daemon_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// A host that the operator typed, with a password at that, is for what he typed
// it for. A stranger who names it as his notification recipient has nothing sent
// there, unless it is in allow_hosts, and then without the password.
func TestRecipientsAtTypedHosts(t *testing.T) {
	t.Setenv("FEED_PASSWORD", "secret")
	type call struct{ path, login string }
	calls := make(chan call, 16)
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls <- call{r.URL.Path, r.Header.Get("Authorization")}
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(inside.Close)
	typed := sipSet("main", reviewMode) +
		fmt.Sprintf("[[set]]\nname = \"fed\"\n[[set.source]]\nkind = \"atompmh\"\nurl = %q\nuser = \"reader\"\npassword = \"${FEED_PASSWORD}\"\n", inside.URL+"/feed.atom")
	asks := inSOAP(sipDoc("ingest-request", sourceOf("1")+recipientAt(inside.URL+"/admin/delete")+recordOf(`<r xmlns="urn:r"/>`)))

	h := newSIPBridge(t, typed)
	h.send("/sip/main", asks, 500).wantFault(t, "Client", "ingest-request/notification-recipient", "its host is not one that everybody can reach")

	h = newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+typed)
	h.send("/sip/main", asks, 200)
	all, err := h.bridge.Log.Submissions(t.Context(), event.SubmissionQuery{Set: "main"})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: all[0].ID, Accept: true}); err != nil {
		t.Fatal(err)
	}
	for c := range calls {
		if c.path != "/admin/delete" {
			continue // the feed is asked for
		}
		if c.login != "" {
			t.Errorf("the recipient gets the login %q", c.login)
		}
		break
	}
}
