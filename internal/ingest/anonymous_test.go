package ingest

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// D69: anonymous callers have a daily quota, each address and all together; whoever shows a
// secret, or the token of a submission, has none.
func TestQuotaOfAnonymousCallers(t *testing.T) {
	eve := sip.Caller{Address: netip.MustParseAddr("2001:db8::1")}
	neighbour := sip.Caller{Address: netip.MustParseAddr("2001:db8::2"), User: "u", Password: "p", HasLogin: true}
	ann := sip.Caller{Address: netip.MustParseAddr("192.0.2.1")}
	quota := func() *limit.Quota {
		return &limit.Quota{PerClient: limit.Amount{Messages: 2, Bytes: 1 << 20}, All: limit.Amount{Messages: 3}}
	}
	refused := func(err error) {
		t.Helper()
		var fault *sip.Fault
		if !errors.As(err, &fault) || fault.Code != sip.Server || !strings.Contains(fault.Text, "the daily quota") || !strings.Contains(fault.Text, "nothing was stored") {
			t.Errorf("got %v, want a Fault of code Server that tells of the quota", err)
		}
	}
	ctx := context.Background()

	h := newHarness(t, Library, func(_ *harness, d *Server) { d.Quota = quota() })
	ingest := func(c sip.Caller, id, text string) error {
		_, err := h.server.Ingest(ctx, c, request(id, text))
		return err
	}
	refused(ingest(eve, "0", strings.Repeat("x", 2<<20)))
	h.do(ingest(eve, "1", "a"))
	h.do(ingest(neighbour, "2", "a"))
	refused(ingest(eve, "3", "a"))
	h.do(ingest(ann, "4", "a"))
	refused(ingest(ann, "5", "a"))
	if got := h.events(); len(got) != 3 {
		t.Errorf("events %q", got)
	}
	if _, err := h.server.GetProperties(ctx, eve); err != nil {
		t.Errorf("get-properties stores nothing: %v", err)
	}
	h.ahead.Add(int64(25 * 3600e9))
	h.do(ingest(eve, "3", "a"))

	h = newHarness(t, Recipient, func(_ *harness, d *Server) { d.Quota = quota() })
	sent := h.add(submission.Submission{Source: h.target(), State: submission.StateProvisional, Seq: 1, Record: "urn:maps:1", Token: "sent"})
	for _, text := range []string{"a", "b"} {
		h.do(h.server.Notify(ctx, eve, rejected(nil, text)))
	}
	refused(h.server.Notify(ctx, eve, rejected(nil, "c")))
	h.do(h.server.Notify(ctx, sip.Caller{Address: eve.Address, Token: "sent"}, accepted(nil, "urn:lib:1")))
	if got := h.submission(sent.ID); got.State != submission.StateAccepted {
		t.Errorf("the disposition of our own submission: %+v", got)
	}

	h = newHarness(t, Library, func(_ *harness, d *Server) {
		d.Quota, d.Access = quota(), Access{Kind: AccessBasic, User: "u", Password: "p"}
	})
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		h.do(ingest(neighbour, id, "a"))
	}
	unknown := request("6", "x")
	unknown.Record.Root.Local = "other"
	if _, err := h.server.Ingest(ctx, neighbour, unknown); err != nil {
		t.Fatal(err)
	}
	if got := h.events(); len(got) != 6 || !strings.HasPrefix(got[5], "rejected 6: ") {
		t.Errorf("what was rejected of somebody who is known is an event: %q", got)
	}
}
