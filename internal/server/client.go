package server

import (
	"net/http"
	"net/netip"
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
