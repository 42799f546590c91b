package fetch

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
)

// Plain returns the URL without user name, password and fragment: the form to
// request, store, print and publish. Logins are the Guard's (Reach.User), which
// adds them where they belong.
func Plain(u *url.URL) string {
	if u.User == nil && u.Fragment == "" {
		return u.String()
	}
	p := *u
	p.User, p.Fragment, p.RawFragment = nil, "", ""
	return p.String()
}

func origin(u *url.URL) string { return u.Scheme + "://" + authority(u) }

// maxURL caps the URL that a redirect leads to, in bytes.
const maxURL = 8 << 10

// authorize decides which credentials the request carries: those that the
// operator gave for its very origin, or what the caller has set. A user name in a
// URL counts for nothing: URLs come out of documents, and theirs would be sent
// under our name.
func (g *Guard) authorize(r *http.Request) {
	if user := r.URL.User; user != nil {
		// http.Client has made a header of it already.
		if r.Header.Get("Authorization") == basic(user) {
			r.Header.Del("Authorization")
		}
		u := *r.URL
		u.User = nil
		r.URL = &u
		g.options.Log.Warn("a user name in the address was not sent: the operator did not type it", "url", Plain(r.URL))
	}
	if g.reach.login != "" && r.Header.Get("Authorization") == "" && origin(r.URL) == g.reach.origin {
		r.Header.Set("Authorization", g.reach.login)
	}
}

// basic is the value of an Authorization header (RFC 7617).
func basic(user *url.Userinfo) string {
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// checkRedirect is the client's CheckRedirect.
func (g *Guard) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > g.options.Redirects {
		return &Error{URL: Plain(req.URL), Err: ErrRedirects}
	}
	if len(req.URL.String()) > maxURL {
		return &Error{URL: Plain(via[len(via)-1].URL), Err: ErrURL}
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return &Error{URL: Plain(req.URL), Err: ErrScheme}
	}
	// What net/http would carry on to subdomains, other ports and unencrypted
	// connections. A relative Location inherits the user name, and the referrer
	// may have a token in its query.
	if origin(via[0].URL) != origin(req.URL) {
		for _, k := range [...]string{"Authorization", "Proxy-Authorization", "Cookie", "Cookie2"} {
			req.Header.Del(k)
		}
	}
	req.Header.Del("Referer")
	req.URL.User = nil
	if tell, ok := req.Context().Value(redirects{}).(func(*http.Request, []*http.Request)); ok {
		tell(req, via)
	}
	return nil
}

// redirects is the key of what WithRedirects adds.
type redirects struct{}

// WithRedirects returns a context whose requests tell of each redirect before
// they follow it: the next request, whose Response has led to it, and those
// before, as http.Client.CheckRedirect has them. Tell may be called from several
// goroutines.
func WithRedirects(ctx context.Context, tell func(next *http.Request, via []*http.Request)) context.Context {
	return context.WithValue(ctx, redirects{}, tell)
}
