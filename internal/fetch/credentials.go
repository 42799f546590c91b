package fetch

import (
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Plain returns the URL without user name, password and fragment: the form to
// request, store, print and publish. Credentials that were typed in a URL are
// known to the Guard (Options.Trusted), which adds them where they belong.
func Plain(u *url.URL) string {
	if u.User == nil && u.Fragment == "" {
		return u.String()
	}
	p := *u
	p.User, p.Fragment, p.RawFragment = nil, "", ""
	return p.String()
}

func origin(u *url.URL) string { return u.Scheme + "://" + authority(u) }

// remember keeps the credentials of a URL that the operator typed.
func (g *Guard) remember(u *url.URL) {
	if u.User == nil || u.Scheme != "http" && u.Scheme != "https" {
		return
	}
	g.logins[origin(u)] = append(g.logins[origin(u)], u.User)
}

// authorize decides which credentials the request carries. A user name in its
// URL counts only when the operator typed it for that origin: URLs come out of
// documents too, and theirs would be sent under our name.
func (g *Guard) authorize(r *http.Request) {
	typed := g.logins[origin(r.URL)]
	if len(typed) == 0 {
		if to, ok := upgraded(r.URL); ok {
			typed = g.logins[to]
		}
	}
	if user := r.URL.User; user != nil {
		// http.Client has made a header of it already.
		if r.Header.Get("Authorization") == basic(user) {
			r.Header.Del("Authorization")
		}
		u := *r.URL
		u.User = nil
		r.URL = &u
		for _, t := range typed {
			if basic(t) == basic(user) {
				r.Header.Set("Authorization", basic(t))
				return
			}
		}
		g.options.Log.Warn("a user name in the address was not sent: the operator did not type it", "url", Plain(r.URL))
	}
	if len(typed) > 0 && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", basic(typed[0]))
	}
}

// upgraded returns the plain http origin of a host whose https origin, on the
// usual port, u has: credentials for the one may go to the other.
func upgraded(u *url.URL) (string, bool) {
	if u.Scheme != "https" || port(u) != "443" {
		return "", false
	}
	return "http://" + net.JoinHostPort(strings.ToLower(u.Hostname()), "80"), true
}

// basic is the value of an Authorization header (RFC 7617).
func basic(user *url.Userinfo) string {
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// sameOwner tells whether credentials given for one URL may go to another.
func sameOwner(given, to *url.URL) bool {
	if origin(given) == origin(to) {
		return true
	}
	up, ok := upgraded(to)
	return ok && up == origin(given)
}

// checkRedirect is the client's CheckRedirect.
func (g *Guard) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > g.options.Redirects {
		return &Error{URL: Plain(req.URL), Err: ErrRedirects}
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return &Error{URL: Plain(req.URL), Err: ErrScheme}
	}
	// What net/http would carry on to subdomains, other ports and unencrypted
	// connections. A relative Location inherits the user name, and the referrer
	// may have a token in its query.
	if !sameOwner(via[0].URL, req.URL) {
		for _, k := range [...]string{"Authorization", "Proxy-Authorization", "Cookie", "Cookie2"} {
			req.Header.Del(k)
		}
	}
	req.Header.Del("Referer")
	req.URL.User = nil
	return nil
}
