package ingest

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

func TestAccess(t *testing.T) {
	from := func(address string) sip.Caller { return sip.Caller{Address: netip.MustParseAddr(address)} }
	nets := Access{Kind: AccessAddresses, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}}
	token := Access{Kind: AccessToken, Token: "sixteencharacters"}
	basic := Access{Kind: AccessBasic, User: "maps", Password: "secret"}
	for _, c := range []struct {
		name   string
		access Access
		caller sip.Caller
		status int // 0 lets in
	}{
		{"nothing set", Access{}, sip.Caller{}, 0},
		{"none", Access{Kind: AccessNone}, sip.Caller{Token: "whatever"}, 0},
		{"a kind that is not known", Access{Kind: "passport"}, sip.Caller{}, 403},
		{"the token", token, sip.Caller{Token: "sixteencharacters"}, 0},
		{"no token", token, sip.Caller{}, 403},
		{"a beginning of the token", token, sip.Caller{Token: "sixteencharacter"}, 403},
		{"no token is set", Access{Kind: AccessToken}, sip.Caller{}, 403},
		{"user and password", basic, sip.Caller{User: "maps", Password: "secret", HasLogin: true}, 0},
		{"no login", basic, sip.Caller{}, 401},
		{"another user", basic, sip.Caller{User: "map", Password: "secret", HasLogin: true}, 401},
		{"another password", basic, sip.Caller{User: "maps", Password: "Secret", HasLogin: true}, 401},
		{"no password is set", Access{Kind: AccessBasic}, sip.Caller{HasLogin: true}, 401},
		{"an address in the net", nets, from("192.0.2.77"), 0},
		{"a mapped address in the net", nets, from("::ffff:192.0.2.77"), 0},
		{"an address of the other net", nets, from("2001:db8::1"), 0},
		{"an address with a zone", nets, from("2001:db8::1%eth0"), 0},
		{"an address elsewhere", nets, from("198.51.100.1"), 403},
		{"no address", nets, sip.Caller{}, 403},
	} {
		denied := c.access.check(&c.caller)
		if got := statusOf(denied); got != c.status {
			t.Errorf("%s: status %d, want %d", c.name, got, c.status)
		}
		for _, secret := range []string{"sixteen", "secret", "192.0.2", "maps"} {
			if denied != nil && strings.Contains(denied.Reason, secret) {
				t.Errorf("%s: the answer tells %q: %s", c.name, secret, denied.Reason)
			}
		}
	}
}

func statusOf(d *sip.Denied) int {
	if d == nil {
		return 0
	}
	return d.Status
}

// The token of a submission opens the service for its notification, whatever
// access says, and for nothing else.
func TestTokenOfASubmissionAdmits(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, Gateway, func(_ *harness, d *Server) { d.Access = Access{Kind: AccessToken, Token: "sixteencharacters"} })
	h.add(submission.Submission{State: submission.StateProvisional, Token: "abcdefghijklmnopqrstuvwxyz"})
	h.do(h.log.EnsureSet(ctx, eventlog.SetConfig{Name: "books", Content: event.Mirror}))
	other, err := h.log.EnsureSource(ctx, "books", "sip", "/sip/books", 0)
	h.do(err)
	h.add(submission.Submission{Source: other, State: submission.StateProvisional, Token: "ofanotherset"})
	for token, want := range map[string]int{"sixteencharacters": 0, "abcdefghijklmnopqrstuvwxyz": 0, "abcdefghijklmnopqrstuvwxy": 403, "": 403, "ofanotherset": 403} {
		var denied *sip.Denied
		if err := h.server.Admit(ctx, sip.Caller{Token: token}); err != nil && !errors.As(err, &denied) {
			t.Fatal(err)
		}
		if got := statusOf(denied); got != want {
			t.Errorf("token %q: %d, want %d", token, got, want)
		}
	}
	var denied *sip.Denied
	if _, err := h.server.Ingest(ctx, sip.Caller{Token: "abcdefghijklmnopqrstuvwxyz"}, request("1", "")); !errors.As(err, &denied) || denied.Status != 403 {
		t.Errorf("whoever may notify may ingest as well: %v", err)
	}
}
