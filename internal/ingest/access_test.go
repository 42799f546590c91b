package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
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

// Nor do callers fill the log who ask a gateway for its properties while the ingest server
// behind it fails, whatever that says.
func TestSilentServerIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said testenv.Log
		d := &Server{Set: "maps", Mode: Gateway, Upstream: upstreamFunc(nil), Log: slog.New(slog.NewTextHandler(&said, nil))}
		for range 100 {
			if _, err := d.GetProperties(t.Context(), sip.Caller{}); err == nil {
				t.Fatal("there are properties")
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		lines := strings.Split(strings.TrimSuffix(said.String(), "\n"), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "requests=1 ") || !strings.Contains(lines[1], "requests=99 ") {
			t.Errorf("the log has %d lines: %.300q", len(lines), lines)
		}
	})
}

// Of callers who are not let in an operator is told, at once, and once a minute.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said testenv.Log
		log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		d := &Server{Set: "maps", Access: Access{Kind: AccessBasic, User: "u", Password: "p"}, Log: log}
		refuse := func(last byte, c sip.Caller) {
			t.Helper()
			c.Address = netip.AddrFrom4([4]byte{192, 0, 2, last})
			if err := d.Admit(context.Background(), c); err == nil {
				t.Error("let in")
			}
		}
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			got := strings.TrimSuffix(said.Take(), "\n")
			if want := strings.Join(lines, "\n"); got != want {
				t.Errorf("the log has\n%s\nwant\n%s", got, want)
			}
		}
		line := func(calls, last int, why string) string {
			return fmt.Sprintf(`level=INFO msg="callers were denied access" set=maps calls=%d last=192.0.2.%d why=%q`, calls, last, why)
		}
		refuse(1, sip.Caller{})
		want(line(1, 1, "no user name and password"))
		for i := range 100 {
			refuse(byte(i), sip.Caller{HasLogin: true, User: "u", Password: "x"})
		}
		want("")
		time.Sleep(time.Minute)
		want(line(100, 99, "a wrong user name or password"))
		time.Sleep(time.Hour)
		want("")
		refuse(7, sip.Caller{})
		want(line(1, 7, "no user name and password"))
	})
}
