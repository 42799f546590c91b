package ingest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// A thousand of the same at once, and more later: one event.
func TestConcurrentNotifications(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		token string
		disp  *sip.Disposition
		want  string // the event
		owed  int    // notices
	}{
		"by token":       {1000, "token-1", accepted(mapOf("1"), "urn:lib:1"), "created urn:lib:1", 1},
		"rejected":       {200, "token-1", rejected(mapOf("1"), "no"), "rejected 1: no", 1},
		"of nobody":      {1000, "", rejected(mapOf("9"), "no"), "rejected 9: no", 0},
		"uncorrelated":   {200, "", accepted(mapOf("9"), "urn:lib:9"), "", 0},
		"without source": {200, "", rejected(nil, "no"), "rejected : no", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, Gateway, closed)
			h.received("1", submission.StateProvisional, nil)
			var wait sync.WaitGroup
			for range c.n {
				wait.Go(func() {
					if err := h.server.Notify(context.Background(), sip.Caller{Token: c.token}, c.disp); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
			h.notify(c.token, c.disp)
			want := []string{}
			if c.want != "" {
				want = append(want, c.want)
			}
			h.wantEvents(want...)
			if got := h.notifications(); len(got) != 1 || !strings.HasSuffix(got[0], fmt.Sprintf(" %d", c.n+1)) {
				t.Errorf("notifications %q", got)
			}
			if n := len(h.notices()); n != c.owed {
				t.Errorf("%d notices, want %d", n, c.owed)
			}
			h.verified()
		})
	}
}

// Two that arrive at once and say different things: one is in force, the other is
// a conflict.
func TestConcurrentContradiction(t *testing.T) {
	h := newHarness(t, Gateway, closed)
	for n := range 20 {
		sub := h.received(fmt.Sprint(n), submission.StateProvisional, nil)
		var wait sync.WaitGroup
		for _, disp := range []*sip.Disposition{accepted(nil, fmt.Sprintf("urn:lib:%d", n)), rejected(nil, "no")} {
			wait.Go(func() {
				if err := h.server.Notify(context.Background(), sip.Caller{Token: sub.Token}, disp); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if got := h.submission(sub.ID); !got.State.Final() || got.Conflicts != 1 {
			t.Errorf("submission %d: %+v", n, got)
		}
	}
	if got := h.events(); len(got) != 20 || len(h.notices()) != 20 {
		t.Errorf("%d events, %d notices, want 20 each", len(got), len(h.notices()))
	}
}

// What fails is not acknowledged; the repeat ends in one event, whether or not
// the commit had taken effect.
func TestFailuresOfNotifications(t *testing.T) {
	for name, c := range map[string]struct {
		fail  func(*harness)
		token string
		disp  *sip.Disposition
		times string
	}{
		"matched, before":      {func(h *harness) { h.faults.Before.Store(1) }, "token-1", accepted(mapOf("1"), "urn:lib:1"), "matched 1"},
		"matched, after":       {func(h *harness) { h.faults.After.Store(1) }, "token-1", accepted(mapOf("1"), "urn:lib:1"), "matched 2"},
		"of nobody, before":    {func(h *harness) { h.faults.Before.Store(1) }, "", rejected(mapOf("9"), "no"), "rejected 1"},
		"of nobody, after":     {func(h *harness) { h.faults.After.Store(1) }, "", rejected(mapOf("9"), "no"), "rejected 2"},
		"rejected, both times": {func(h *harness) { h.faults.Before.Store(1); h.faults.After.Store(1) }, "token-1", rejected(mapOf("1"), "no"), "matched 2"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, Gateway, closed)
			h.received("1", submission.StateProvisional, nil)
			server := httptest.NewServer(tokenPath{&sip.Handler{Backend: h.server, Offers: h.server.Offers()}})
			defer server.Close()
			client := &sip.HTTPClient{HTTP: server.Client(), URL: server.URL + "/" + c.token}
			c.fail(h)
			tries := 0
			for err := error(nil); tries == 0 || err != nil; tries++ {
				if err = client.Notify(t.Context(), c.disp); err != nil {
					isFault(t, err, sip.Server, "")
				}
			}
			if tries < 2 {
				t.Error("nothing failed")
			}
			if got := h.events(); len(got) != 1 {
				t.Errorf("events %q", got)
			}
			if got := h.notifications(); !slices.Equal(got, []string{c.times}) {
				t.Errorf("notifications %q, want %q", got, c.times)
			}
			h.verified()
		})
	}
}

// tokenPath gives the handler what follows the slash as the token.
type tokenPath struct{ *sip.Handler }

func (p tokenPath) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.Serve(w, r, strings.TrimPrefix(r.URL.Path, "/"))
}

// A submitter who was told gets no notice; a reply that repeats what is known, or
// contradicts it, changes no state.
func TestRepliesAndNotifications(t *testing.T) {
	h := newHarness(t, Gateway, nil)
	sub := h.received("1", submission.StateForwarding, nil)
	reply := func(disp *sip.Disposition) *submission.Submission {
		_, s, err := h.server.resolve(t.Context(), incoming{id: sub.ID, disposition: disp, relayed: true})
		h.do(err)
		return s
	}
	if first := reply(accepted(nil, "urn:lib:1")); first.State != submission.StateAccepted || first.Assigned != "urn:lib:1" {
		t.Errorf("the reply: %+v", first)
	}
	stored, err := h.log.Submission(t.Context(), sub.ID)
	h.do(err)
	if s := reply(accepted(nil, "urn:lib:1")); s.State != submission.StateAccepted || s.Version != stored.Version {
		t.Errorf("its repeat: %+v", s)
	}
	if s := reply(rejected(nil, "no")); s.State != submission.StateAccepted || s.Conflicts != 1 {
		t.Errorf("its contradiction: %+v", s)
	}
	h.notify(sub.Token, accepted(mapOf("1"), "urn:lib:1"))
	if len(h.notices()) != 0 {
		t.Error("a notice is owed to whoever had it in the reply")
	}
	if got := h.notifications(); !slices.Equal(got, []string{"conflict 1", "matched 1"}) {
		t.Errorf("notifications %q", got)
	}
	h.wantEvents("created urn:lib:1")
}
