package submit

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
	// Kind is AccessNone, which "" is too: everybody; AccessToken: whoever has
	// Token behind the service's path; AccessBasic: User with Password;
	// AccessAddresses: whoever calls from one of Addresses. Any other lets nobody
	// in.
	Kind           string
	Token          string
	User, Password string
	Addresses      []netip.Prefix
}

// check returns nil when the caller is let in. What it says is the same whatever
// is wrong.
func (a *Access) check(c *sip.Caller) *sip.Denied {
	allowed := false
	switch a.Kind {
	case "", AccessNone:
		allowed = true
	case AccessToken:
		allowed = a.Token != "" && same(c.Token, a.Token)
	case AccessBasic:
		// Both are compared whatever comes out of the first.
		user, password := same(c.User, a.User), same(c.Password, a.Password)
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

// same compares in a time that tells nothing, not even of lengths.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Admit lets in whom Access does, and whoever names the token of a submission of
// this set, which only the server that we gave it to can know. Such a token is
// looked up whole, so that no comparison tells a part of it.
func (d *Desk) Admit(ctx context.Context, caller sip.Caller) error {
	denied := d.Access.check(&caller)
	if denied == nil {
		return nil
	}
	s, err := d.withToken(ctx, caller.Token)
	if err == nil && s == nil {
		d.refusals.note(d.log().With("set", d.Set), caller.Address, d.Access.lacking(&caller))
		return denied
	}
	return err
}
