package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// forwarded is the header in which each proxy adds whom it was called by, behind
// what it was sent.
const forwarded = "X-Forwarded-For"

// attributed returns the request with the address that it counts as coming from. It
// is the connection's, unless that is one of our proxies: then it is what the
// proxy says, and so on, as long as it is one of ours who says so. Everybody
// else may write what he likes.
func (s *Server) attributed(r *http.Request) *http.Request {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !s.trusts(peer.Addr()) {
		return r
	}
	at := s.caller(peer, strings.Join(r.Header.Values(forwarded), ","))
	if at == peer {
		return r
	}
	in := *r
	in.RemoteAddr = at.String()
	return &in
}

// caller walks from a connection back along a header: to the first address that
// is not one of our proxies', to the last one that there is, or up to something
// that is no address.
func (s *Server) caller(at netip.AddrPort, header string) netip.AddrPort {
	for s.trusts(at.Addr()) && header != "" {
		last := strings.LastIndexByte(header, ',')
		before, ok := parseHop(strings.Trim(header[last+1:], " \t"))
		if !ok {
			break
		}
		at, header = before, header[:max(last, 0)]
	}
	return at
}

// trusts tells whether an address is one of our proxies'.
func (s *Server) trusts(a netip.Addr) bool {
	a = plain(a)
	return slices.ContainsFunc(s.opt.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// parseHop reads an address as proxies write it: with or without a port, one of
// IPv6 with or without brackets.
func parseHop(text string) (netip.AddrPort, bool) {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(plain(ap.Addr()), ap.Port()), true
	}
	inside, brackets := strings.CutPrefix(text, "[")
	if brackets {
		inside, brackets = strings.CutSuffix(inside, "]")
		if !brackets {
			return netip.AddrPort{}, false
		}
	}
	a, err := netip.ParseAddr(inside)
	return netip.AddrPortFrom(plain(a), 0), err == nil && (!brackets || a.Is6())
}

// plain returns an address in the form in which networks are configured.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// misdirected reports whether a request on loopback names a host that we are not
// known by there. A browser sends such a one for a web page that has had its own
// name lead to this machine, and would let that page read the answer.
func (s *Server) misdirected(r *http.Request) bool {
	if r.Host == "" || !onLoopback(r) {
		return false
	}
	host := hostOf(r.Host)
	_, err := netip.ParseAddr(host)
	return err != nil && !strings.EqualFold(host, s.host) && !isLocalhost(host)
}

// hostOf returns a Host header without its port and the brackets of IPv6.
func hostOf(header string) string {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

func isLocalhost(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// onLoopback reports whether a request has come in at an address of loopback.
func onLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	ap, err := netip.ParseAddrPort(at.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// operator reports whether a request is of someone who may know how this server is
// set up and what fails: one on this very machine, of a server that nobody else is
// meant to reach. All others are strangers; operators have bridge status.
func (s *Server) operator(r *http.Request) bool {
	host, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s.host, "["), "]"))
	local := isLocalhost(s.host) || err == nil && host.IsLoopback()
	return local && onLoopback(r) && r.Header.Get(forwarded) == "" && r.Header.Get("Forwarded") == ""
}

// publicName reports whether the host of a URL is one that everybody can know: no
// name or address of somebody's own network.
func publicName(rawURL string) bool {
	u, err := url.Parse(rawURL)
	if err != nil || !isWeb(rawURL) {
		return false
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		return a.IsGlobalUnicast() && !a.IsPrivate()
	}
	if isLocalhost(host) || !strings.Contains(host, ".") {
		return false
	}
	for _, own := range []string{".internal", ".intranet", ".local", ".localdomain", ".lan", ".home", ".corp", ".private", ".home.arpa"} {
		if strings.HasSuffix(host, own) {
			return false
		}
	}
	return true
}
