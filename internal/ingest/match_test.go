package ingest

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// D30: only the token tells to which submission a notification belongs. A source
// element, which others may know or copy, moves nothing: whoever calls, whatever
// state the submission is in, and also when there is no other it could mean.
func TestNotificationIsMatchedByTokenOnly(t *testing.T) {
	for _, kind := range []string{AccessNone, AccessToken, AccessBasic, AccessAddresses} {
		for _, of := range []string{"a gateway", "a gateway without a recipient", "a target"} {
			t.Run(of+" with access "+kind, func(t *testing.T) {
				h := newHarness(t, Gateway, func(_ *harness, d *Server) { d.Targets, d.Access = true, Access{Kind: kind} })
				target := h.target()
				var subs []*submission.Submission
				for i, state := range []submission.State{submission.StateInDoubt, submission.StateProvisional, submission.StateUnresolved, submission.StateAccepted} {
					id := fmt.Sprint(i)
					subs = append(subs, h.received(id, state, func(s *submission.Submission) {
						switch of {
						case "a gateway without a recipient":
							s.Token, s.Recipient = "", ""
						case "a target":
							s.Source, s.Seq, s.Record = target, 1, "urn:"+id
						}
						if state == submission.StateAccepted {
							s.Assigned = "urn:lib:" + id
						}
					}))
				}
				for i := range subs {
					for _, token := range []string{"", "token-of-nobody"} {
						for _, disp := range []*sip.Disposition{accepted(mapOf(fmt.Sprint(i)), "urn:other"), rejected(mapOf(fmt.Sprint(i)), "no")} {
							h.do(h.server.Notify(t.Context(), sip.Caller{Token: token}, disp))
						}
					}
				}
				for _, want := range subs {
					if got := h.submission(want.ID); !reflect.DeepEqual(got, want) {
						t.Errorf("without its token %+v became %+v", want, got)
					}
				}
				for _, what := range h.notifications() {
					if strings.HasPrefix(what, "matched") || strings.HasPrefix(what, "conflict") {
						t.Errorf("a notification without a token is %s", what)
					}
				}
				if len(h.notices()) > 0 {
					t.Error("a submitter is told what somebody else has decided")
				}
			})
		}
	}
}

// What was sent on gets its disposition, whatever the service has become since; who
// has no token of ours is told what is offered.
func TestTokenIsTakenInEveryMode(t *testing.T) {
	for _, mode := range []Mode{Recipient, Library, Review, Gateway} {
		t.Run(string(mode), func(t *testing.T) {
			h := newHarness(t, mode, func(_ *harness, d *Server) {
				d.Access = Access{Kind: AccessBasic, User: "maps", Password: "secret"}
			})
			sub := h.received("1", submission.StateProvisional, nil)
			handler := &sip.Handler{Backend: h.server, Offers: h.server.Offers()}
			tell := func(token string) error {
				at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Serve(w, r, token) }))
				return plainClient(at).Notify(t.Context(), accepted(mapOf("1"), "urn:lib:1"))
			}
			if err := tell("nobody's"); err == nil {
				t.Error("a token that is nobody's was taken")
			}
			h.wantEvents()
			for range 2 {
				h.do(tell(sub.Token))
			}
			if got := h.submission(sub.ID); got.State != submission.StateAccepted || got.Assigned != "urn:lib:1" {
				t.Errorf("it is %+v", got)
			}
			h.wantEvents("created urn:lib:1")
			if _, err := h.server.Ingest(t.Context(), sip.Caller{Token: sub.Token}, request("2", "")); err == nil {
				t.Error("the token lets submit")
			}
			if !h.server.Offers().Notify {
				isFault(t, h.server.Notify(t.Context(), sip.Caller{}, accepted(mapOf("1"), "urn:lib:1")), sip.Client, "ingest-disposition")
			}
		})
	}
}

// What was under review stays so when the mode changes: nobody decides it by a
// notification, and whoever reviews still does. What a gateway has sent on is not
// decided by whoever reviews.
func TestReviewOutlivesTheMode(t *testing.T) {
	for _, mode := range []Mode{Recipient, Library, Review, Gateway} {
		for _, accept := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, accept %v", mode, accept), func(t *testing.T) {
				h := newHarness(t, mode, func(_ *harness, d *Server) { d.Targets = true })
				under := h.received("1", submission.StateProvisional, reviewed)
				sent := h.received("2", submission.StateProvisional, nil)
				h.notify("", accepted(mapOf("1"), "urn:other"))
				if got := h.submission(under.ID); got.State != submission.StateProvisional {
					t.Fatalf("somebody else has decided: %+v", got)
				}
				ctx := context.Background()
				if err := h.server.Decide(ctx, Verdict{ID: sent.ID, Accept: accept, Assigned: "", Reason: ""}); err == nil || !strings.Contains(err.Error(), "not under review") {
					t.Errorf("what was sent on: %v", err)
				}
				h.do(h.server.Decide(ctx, Verdict{ID: under.ID, Accept: accept, Assigned: "", Reason: "no"}))
				want := "rejected 1: no"
				if accept {
					want = "created " + h.submission(under.ID).Assigned
				}
				h.wantEvents(want)
				if told := h.notices(); len(told) != 1 || told[0].Submission != under.ID {
					t.Errorf("notices %+v", told)
				}
				h.notify(sent.Token, accepted(mapOf("2"), "urn:lib:2"))
				if got := h.submission(sent.ID); got.State != submission.StateAccepted {
					t.Errorf("the library's decision: %+v", got)
				}
				h.verified()
			})
		}
	}
}
