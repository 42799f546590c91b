package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/idna"

	"github.com/pmh-bridge/bridge/internal/defect"
)

// Network is what a Guard looks names up and connects with. The zero value is
// the system's.
type Network struct {
	// Resolver looks names up; nil is net.DefaultResolver.
	Resolver *net.Resolver
	// Dial connects to an address and port that the Guard has agreed to; nil is
	// that of net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// fallbackAfter is how long the first address of a name has to answer before the
// next one is tried beside it (RFC 8305 5).
const fallbackAfter = 300 * time.Millisecond

// Allowed tells whether the URL's host, of whatever scheme, may be asked at all:
// the error is an *Error: ErrAddress, ErrHost or ErrPort when it may not,
// ErrUnresolved when its name has no address that could be judged, which may
// change (Transient says how likely). When ctx ends first, the error is its
// cause.
//
// This is an early answer for people, no protection: an address can change, so
// connecting judges again. The text names what the name stands for in our
// network: it is for the operator, not for whoever gave the URL.
func (g *Guard) Allowed(ctx context.Context, u *url.URL) error {
	known, err := g.judgeWritten(u)
	if known || err != nil || g.options.Proxy != nil && (u.Scheme == "http" || u.Scheme == "https") {
		return err
	}
	lookup, cancel := context.WithTimeout(ctx, g.options.ConnectTimeout)
	defer cancel()
	_, _, err = g.look(lookup, canonical(u.Hostname()), port(u))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return &Error{URL: Plain(u), Err: err, transient: retryable(err)}
}

// judgeWritten judges what can be seen without a lookup; known tells whether
// that is enough.
func (g *Guard) judgeWritten(u *url.URL) (known bool, err error) {
	name := canonical(u.Hostname())
	r, err := g.reach.rule(name, port(u))
	literal, notLiteral := netip.ParseAddr(name)
	switch {
	case err != nil:
	case r == anyAddress:
		return true, nil
	case r == publicAddress && (localName(name) || notLiteral == nil && classOf(literal) != publicClass):
		err = refuse(name, "not public")
	case r == publicAddress && notLiteral != nil && numeric(name):
		err = refuse(name, "no name, and an address in no form that is known here")
	}
	if err != nil {
		return true, &Error{URL: Plain(u), Err: err}
	}
	return notLiteral == nil, nil
}

// look returns the addresses of a host that may be connected to. fresh reports
// that its name is to be remembered once it has been reached.
func (g *Guard) look(ctx context.Context, name, port string) (addresses []netip.Addr, fresh bool, err error) {
	r, err := g.reach.rule(name, port)
	if err != nil {
		return nil, false, err
	}
	if literal, err := netip.ParseAddr(name); err == nil {
		if r == publicAddress && classOf(literal) != publicClass {
			return nil, false, refuse(name, "not public")
		}
		return []netip.Addr{literal}, false, nil
	}
	if r == publicAddress && localName(name) {
		return nil, false, refuse(name, "not public")
	}
	resolver := g.options.Network.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addresses, err = resolver.LookupNetIP(ctx, "ip", name)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("%w: %w", ErrUnresolved, err)
	case len(addresses) == 0:
		return nil, false, ErrUnresolved
	}
	fresh, err = g.judgeAll(r, name, addresses)
	return addresses, fresh, err
}

// DialContext connects to host:port over TCP for other protocols than HTTP, as
// net.Dialer does, within the Guard's Reach, else the error wraps ErrAddress,
// ErrHost or ErrPort. A proxy is not asked.
//
// It connects to the very addresses that it has judged, so an answer that changes
// between two lookups is no use to anybody. The transport's pool goes by the host
// name of the URL, and each Guard has its own: a connection that may be made for
// one name or Source is never used for another.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	name := canonical(host)
	ctx, cancel := context.WithTimeout(ctx, g.options.ConnectTimeout)
	defer cancel()
	if !strings.HasPrefix(network, "tcp") {
		return nil, refuse(name, "asked for over "+network)
	}
	addresses, fresh, err := g.look(ctx, name, port)
	if err != nil {
		return nil, err
	}
	conn, err := g.connect(ctx, network, addresses, port)
	if err != nil || !fresh {
		return conn, err
	}
	if err := g.names.remember(ctx, name, classOf(addresses[0]) == publicClass); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// connect tries the addresses in their order, each beside those before it when
// these take long, and returns the first connection.
func (g *Guard) connect(ctx context.Context, network string, addresses []netip.Addr, port string) (net.Conn, error) {
	type attempt struct {
		conn net.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	attempts := make(chan attempt)
	next := time.NewTimer(0)
	defer next.Stop()
	started, ended := 0, 0
	var failed error // of the first address, which is the best one
	for {
		select {
		case <-next.C:
			if started == len(addresses) {
				continue
			}
			to := net.JoinHostPort(addresses[started].Unmap().String(), port)
			started++
			go func() {
				var conn net.Conn
				err := defect.Guard(func() (err error) {
					conn, err = g.dialAddress(ctx, network, to)
					return err
				})
				select {
				case attempts <- attempt{conn, err}:
				case <-ctx.Done():
					if conn != nil {
						_ = conn.Close() // another one was taken
					}
				}
			}()
			next.Reset(fallbackAfter)
		case a := <-attempts:
			ended++
			switch {
			case a.err == nil:
				return a.conn, nil
			case failed == nil:
				failed = a.err
			}
			if ended == len(addresses) {
				return nil, failed
			}
			next.Reset(0)
		case <-ctx.Done():
			return nil, cmp.Or(failed, context.Cause(ctx))
		}
	}
}

func (g *Guard) dialAddress(ctx context.Context, network, address string) (net.Conn, error) {
	if g.options.Network.Dial != nil {
		return g.options.Network.Dial(ctx, network, address)
	}
	d := net.Dialer{KeepAlive: 30 * time.Second}
	return d.DialContext(ctx, network, address)
}

// dial connects for HTTP.
func (g *Guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if g.isProxy(addr) {
		ctx, cancel := context.WithTimeout(ctx, g.options.ConnectTimeout)
		defer cancel()
		return g.dialAddress(ctx, network, addr)
	}
	return g.DialContext(ctx, network, addr)
}

func refuse(name, address string) error {
	return fmt.Errorf("%w: %q is %s; if you trust it, add %q to allow_hosts", ErrAddress, name, address, name)
}

// class is who can reach an address.
type class uint8

const (
	// localClass: this machine, its link, its cloud's metadata, or nobody.
	localClass class = iota
	privateClass
	publicClass
)

// classOf returns an address's class. Addresses that carry an IPv4 address are
// judged by that.
func classOf(a netip.Addr) class {
	if a.Zone() != "" {
		return localClass
	}
	a = a.Unmap()
	if v4, ok := embedded(a); ok {
		a = v4
	}
	for _, p := range localPrefixes {
		if p.Contains(a) {
			return localClass
		}
	}
	for _, p := range privatePrefixes {
		if p.Contains(a) {
			return privateClass
		}
	}
	if a.Is6() && !globalUnicast(a) {
		return localClass
	}
	return publicClass
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

// The blocks of the IANA special-purpose registries (RFC 6890) that are not
// globally reachable, and multicast; of IPv6, besides private ones, those within
// 2000::/3.
var (
	localPrefixes = prefixes(
		"0.0.0.0/8",          // this network, RFC 791
		"127.0.0.0/8",        // loopback, RFC 1122
		"169.254.0.0/16",     // link-local, RFC 3927; also cloud metadata
		"100.100.100.200/32", // cloud metadata, in carrier-grade NAT
		"168.63.129.16/32",   // cloud metadata, in the public network
		"192.0.0.0/24",       // protocol assignments, RFC 6890; also cloud metadata
		"192.88.99.0/24",     // 6to4 relays, RFC 7526
		"224.0.0.0/4",        // multicast, RFC 5771
		"240.0.0.0/4",        // reserved, RFC 1112; limited broadcast
		"2001::/23",          // protocol assignments, RFC 2928: Teredo, ORCHID, benchmarks
		"fd00:ec2::/32",      // cloud metadata, in private networks
		"fd20:ce::254/128",
	)
	privatePrefixes = prefixes(
		"10.0.0.0/8",      // RFC 1918
		"100.64.0.0/10",   // carrier-grade NAT, RFC 6598
		"172.16.0.0/12",   // RFC 1918
		"192.0.2.0/24",    // documentation, RFC 5737
		"192.168.0.0/16",  // RFC 1918
		"198.18.0.0/15",   // benchmarks, RFC 2544
		"198.51.100.0/24", // documentation, RFC 5737
		"203.0.113.0/24",  // documentation, RFC 5737
		"2001:db8::/32",   // documentation, RFC 3849
		"3fff::/20",       // documentation, RFC 9637
		"fc00::/7",        // RFC 4193
	)
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		all[i] = netip.MustParsePrefix(t)
	}
	return all
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

// authority returns host and port of a URL.
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
	case "smtp":
		return "25"
	}
	return "80"
}

// proxy is the transport's Proxy function.
func (g *Guard) proxy(req *http.Request) (*url.URL, error) {
	name := canonical(req.URL.Hostname())
	a, err := netip.ParseAddr(name)
	if r, _ := g.reach.rule(name, port(req.URL)); r != publicAddress && (localName(name) || err == nil && a.IsLoopback()) {
		return nil, nil
	}
	return g.options.Proxy, nil
}

func (g *Guard) isProxy(addr string) bool {
	return g.options.Proxy != nil && strings.EqualFold(addr, authority(g.options.Proxy))
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

// localName tells whether a name stands for this machine.
func localName(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}
