package fetch

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"golang.org/x/net/idna"
)

// Trusted tells whether the operator typed the URL's host, so that it may be
// asked whatever its address is.
func (g *Guard) Trusted(u *url.URL) bool { return g.trusted[canonical(u.Hostname())] }

// trust takes in one entry of Options.Trusted.
func (g *Guard) trust(typed string) {
	name := typed
	if strings.Contains(typed, "://") {
		u, err := url.Parse(typed)
		if err != nil {
			return
		}
		name = u.Hostname()
		g.remember(u)
	} else if h, _, err := net.SplitHostPort(typed); err == nil {
		name = h
	}
	if name = canonical(strings.Trim(name, "[]")); name != "" {
		g.trusted[name] = true
	}
}

// Allowed tells whether the URL's host, of whatever scheme, may be asked at all:
// the operator typed it, or every address that it has now is public. The error
// is an *Error: ErrAddress when the host may not be asked, ErrUnresolved when
// its name has no address that could be judged, which may change (Transient says
// how likely). When ctx ends first, the error is its cause.
//
// This is an early answer for people, no protection: an address can change, so
// connecting judges again. The text names what the name stands for in our
// network: it is for the operator, not for whoever gave the URL.
func (g *Guard) Allowed(ctx context.Context, u *url.URL) error {
	known, err := g.judgeWritten(u)
	if known || err != nil || g.options.Proxy != nil && (u.Scheme == "http" || u.Scheme == "https") {
		return err
	}
	return g.judgeName(ctx, u)
}

// judgeWritten judges what can be seen without a lookup; known tells whether
// that is enough.
func (g *Guard) judgeWritten(u *url.URL) (known bool, err error) {
	name := canonical(u.Hostname())
	literal, notLiteral := netip.ParseAddr(name)
	switch {
	case name == "":
		return true, &Error{URL: Plain(u), Err: fmt.Errorf("%w: the URL names no host", ErrAddress)}
	case g.trusted[name]:
		return true, nil
	case local(u), notLiteral == nil && !g.public(literal):
		return true, &Error{URL: Plain(u), Err: refuse(name, "not public")}
	case notLiteral != nil && numeric(name):
		return true, &Error{URL: Plain(u), Err: refuse(name, "no name, and an address in no form that is known here")}
	}
	return notLiteral == nil, nil
}

// judgeName looks up the URL's host and judges all of its addresses.
func (g *Guard) judgeName(ctx context.Context, u *url.URL) error {
	name := canonical(u.Hostname())
	lookup, cancel := context.WithTimeout(ctx, g.options.ConnectTimeout)
	defer cancel()
	addresses, err := g.dialer.Resolver.LookupNetIP(lookup, "ip", name)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return &Error{URL: Plain(u), Err: fmt.Errorf("%w: %w", ErrUnresolved, err), transient: retryable(err)}
	case len(addresses) == 0:
		return &Error{URL: Plain(u), Err: ErrUnresolved, transient: true}
	}
	for _, a := range addresses {
		if !g.public(a) {
			return &Error{URL: Plain(u), Err: refuse(name, a.Unmap().String())}
		}
	}
	return nil
}

// DialContext connects to host:port over TCP for other protocols than HTTP, as
// net.Dialer does, under the same rule: a trusted name may have any address,
// another one a public address only, else the error wraps ErrAddress. A proxy is
// not asked.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := g.dialer
	if !g.trusted[canonical(name)] {
		// Called after the name has been resolved, for the very address that is
		// connected to, so an answer that changes between two lookups is no use.
		d.ControlContext = func(_ context.Context, network, address string, _ syscall.RawConn) error {
			return g.checkAddress(name, network, address)
		}
	}
	return d.DialContext(ctx, network, address)
}

// dial decides by the host name of the URL, which is also what the transport's
// pool goes by: a connection that a trusted name opened is never used for
// another name of the same address.
func (g *Guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if g.isProxy(addr) {
		return g.dialer.DialContext(ctx, network, addr)
	}
	return g.DialContext(ctx, network, addr)
}

func (g *Guard) checkAddress(name, network, address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err == nil && (network == "tcp4" || network == "tcp6") && g.public(ap.Addr()) {
		return nil
	}
	return refuse(name, address)
}

func refuse(name, address string) error {
	return fmt.Errorf("%w: %q is %s; if you trust it, add %q to allow_hosts", ErrAddress, name, address, name)
}

// public tells whether an address is reachable by everybody, and so not a way
// into somebody's own network. Addresses that carry an IPv4 address are judged
// by that.
func (g *Guard) public(a netip.Addr) bool {
	if a.Zone() != "" {
		return false
	}
	a = a.Unmap()
	if v4, ok := embedded(a); ok {
		a = v4
	} else if a.Is6() && !globalUnicast(a) {
		return false
	}
	for _, p := range g.special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// embedded returns the IPv4 address inside an address of NAT64 (RFC 6052) or
// 6to4 (RFC 3056). Hosts that have IPv6 only reach the public IPv4 world by the
// former.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return a, false
	}
	b := a.As16()
	switch {
	case b[0] == 0x00 && b[1] == 0x64 && b[2] == 0xff && b[3] == 0x9b && [8]byte(b[4:12]) == [8]byte{}:
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case b[0] == 0x20 && b[1] == 0x02:
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return a, false
}

// globalUnicast is 2000::/3, all that has been given out so far (RFC 4291 2.4).
func globalUnicast(a netip.Addr) bool { return a.As16()[0]>>5 == 1 }

// specialPrefixes are the blocks of the IANA special-purpose registries (RFC
// 6890) that are not globally reachable, and multicast; of IPv6, those within
// 2000::/3.
func specialPrefixes() []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range [...]string{
		"0.0.0.0/8",       // this network, RFC 791
		"10.0.0.0/8",      // private, RFC 1918
		"100.64.0.0/10",   // carrier-grade NAT, RFC 6598
		"127.0.0.0/8",     // loopback, RFC 1122
		"169.254.0.0/16",  // link-local, RFC 3927; also cloud metadata
		"172.16.0.0/12",   // private, RFC 1918
		"192.0.0.0/24",    // protocol assignments, RFC 6890
		"192.0.2.0/24",    // documentation, RFC 5737
		"192.88.99.0/24",  // 6to4 relays, RFC 7526
		"192.168.0.0/16",  // private, RFC 1918
		"198.18.0.0/15",   // benchmarks, RFC 2544
		"198.51.100.0/24", // documentation, RFC 5737
		"203.0.113.0/24",  // documentation, RFC 5737
		"224.0.0.0/4",     // multicast, RFC 5771
		"240.0.0.0/4",     // reserved, RFC 1112; limited broadcast
		"2001::/23",       // protocol assignments, RFC 2928: Teredo, ORCHID, benchmarks
		"2001:db8::/32",   // documentation, RFC 3849
		"3fff::/20",       // documentation, RFC 9637
	} {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// canonical returns the form in which host names and addresses are compared.
func canonical(name string) string {
	name = strings.TrimSuffix(name, ".")
	if a, err := netip.ParseAddr(name); err == nil {
		return a.Unmap().String()
	}
	if ascii, err := idna.Lookup.ToASCII(name); err == nil {
		return ascii
	}
	return strings.ToLower(name)
}

// authority returns host and port of an http or https URL.
func authority(u *url.URL) string {
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port(u))
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	switch u.Scheme {
	case "https":
		return "443"
	case "socks5", "socks5h":
		return "1080"
	}
	return "80"
}

// proxy is the transport's Proxy function.
func (g *Guard) proxy(req *http.Request) (*url.URL, error) {
	if g.Trusted(req.URL) && local(req.URL) {
		return nil, nil
	}
	return g.options.Proxy, nil
}

func (g *Guard) isProxy(addr string) bool {
	return g.options.Proxy != nil && strings.EqualFold(addr, authority(g.options.Proxy))
}

// checkProxied refuses what can be seen to be private before a proxy, whose
// address is the only one that we connect to, gets the request.
func (g *Guard) checkProxied(u *url.URL) error {
	if g.options.Proxy == nil {
		return nil
	}
	_, err := g.judgeWritten(u)
	return err
}

// numeric tells whether a name ends in a number, as no name does in the DNS. Some
// resolvers, a proxy's perhaps, take 2130706433, 0x7f.1 and 127.1 for addresses.
func numeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// local tells whether the URL names this machine.
func local(u *url.URL) bool {
	name := canonical(u.Hostname())
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.IsLoopback()
}
