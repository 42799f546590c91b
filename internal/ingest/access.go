package ingest

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"

	"github.com/pmh-bridge/bridge/sip"
)

// The kinds of access.
const (
	AccessNone      = "none"
	AccessToken     = "token"
	AccessBasic     = "basic"
	AccessAddresses = "addresses"
)

// Access is who may call a service.
type Access struct {
	// Kind is AccessNone, which "" is too: everybody may call; AccessToken: callers with
	// Token behind the service's path; AccessBasic: User with Password; AccessAddresses:
	// callers from one of Addresses. With any other kind nobody may call.
	Kind           string
	Token          string
	User, Password string
	Addresses      []netip.Prefix
}

// check returns nil when the caller may call the service. The error has the same text for
// every cause, so that a caller learns nothing from it.
func (a *Access) check(c *sip.Caller) *sip.Denied {
	allowed := false
	switch a.Kind {
	case "", AccessNone:
		allowed = true
	case AccessToken:
		allowed = a.Token != "" && constantTimeEqual(c.Token, a.Token)
	case AccessBasic:
		// Compare both, whatever the result of the first.
		user, password := constantTimeEqual(c.User, a.User), constantTimeEqual(c.Password, a.Password)
		if c.HasLogin && a.Password != "" && user && password {
			return nil
		}
		return &sip.Denied{Status: http.StatusUnauthorized, Reason: "this service wants a user name and a password"}
	case AccessAddresses:
		address := c.Address.Unmap().WithZone("")
		for _, p := range a.Addresses {
			allowed = allowed || p.Contains(address)
		}
	}
	if !allowed {
		return &sip.Denied{Status: http.StatusForbidden, Reason: "this service is not open to you"}
	}
	return nil
}

// denyReason returns, for our own log, why a caller was denied.
func (a *Access) denyReason(c *sip.Caller) string {
	switch {
	case a.Kind == AccessBasic && !c.HasLogin:
		return "no user name and password"
	case a.Kind == AccessBasic:
		return "a wrong user name or password"
	case a.Kind == AccessToken && c.Token == "":
		return "no token"
	case a.Kind == AccessToken:
		return "a wrong token"
	case a.Kind == AccessAddresses:
		return "the address is none of access_addresses"
	}
	return "no access"
}

// anonymous reports whether callers need no credentials, so that they cannot be
// distinguished.
func (d *Server) anonymous() bool { return d.Access.Kind == "" || d.Access.Kind == AccessNone }

// takeQuota counts the bytes that an anonymous caller has stored; other callers have no
// quota. The error is a *sip.Fault if the quota of the day is used up.
func (d *Server) takeQuota(caller *sip.Caller, bytes int64) error {
	if d.Quota == nil || !d.anonymous() {
		return nil
	}
	err := d.Quota.Take(caller.Address, bytes, d.now())
	if err == nil {
		return nil
	}
	d.overQuota.Note(func(n int) {
		d.log().Warn("messages from anonymous callers were refused", "set", d.Set, "messages", n, "last", caller.Address, "why", err)
	})
	return &sip.Fault{Code: sip.Server, Text: "nothing was stored: " + err.Error() + ", or ask the operator of this service for a secret"}
}

// constantTimeEqual compares in a time that depends on neither content nor length.
func constantTimeEqual(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Admit allows callers whom Access allows, and callers that name the token of a
// submission of this set: only the server that we gave it to can know it. The token is
// looked up whole, so that the time of a comparison reveals no part of it.
func (d *Server) Admit(ctx context.Context, caller sip.Caller) error {
	denied := d.Access.check(&caller)
	if denied == nil {
		return nil
	}
	s, err := d.submissionByToken(ctx, caller.Token)
	if err == nil && s == nil {
		why := d.Access.denyReason(&caller)
		d.denied.Note(func(n int) {
			d.log().Info("callers were denied access", "set", d.Set, "calls", n, "last", caller.Address, "why", why)
		})
		return denied
	}
	return err
}
