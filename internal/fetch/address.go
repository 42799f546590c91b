package fetch

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/follow"
)

// Reach says where a Guard's requests may go, and with which login. Each Source has its
// own: if one of them may be asked in a private network, or with a password, no other
// Source may ask that host. The zero value reaches public addresses only.
//
// Hosts are written "name", which is all of its ports, "name:port", or as a URL,
// which is its port; an address is a name too.
type Reach struct {
	// Origin is the URL of the server that this Guard is for, as the operator
	// typed it; "" is none. Its host and port are one of Typed.
	Origin string
	// User is the login for Origin's scheme, host and port, which is sent nowhere else;
	// nil for none. So are the fields of Header, by their canonical names; User replaces
	// an Authorization there.
	User   *url.Userinfo
	Header http.Header
	// Roots are the authorities that Origin's certificate may come from; nil is the
	// system's. Other servers have the system's always.
	Roots *x509.CertPool
	// HeaderTimeout is that of Origin's scheme, host and port; 0 is Options.HeaderTimeout.
	HeaderTimeout time.Duration
	// Typed are further hosts that the operator typed. They may have private addresses, if
	// they had them when they were first asked (see Names), but never those of this
	// machine or its link. An address that the operator typed, and localhost, are allowed
	// as they are.
	Typed []string
	// Allowed are the hosts that the operator allows whatever their addresses are.
	Allowed []string
	// Only refuses what is neither Typed nor Allowed, public or not. Other ports
	// of these hosts may be asked when they are public.
	Only bool
	// SafePorts refuses ports of other services than HTTP and mail, which could take a
	// request for commands.
	SafePorts bool
}

// reach is a Reach whose hosts are in the form of follow.Host.
type reach struct {
	origin          string      // scheme, host and port
	header          http.Header // for origin
	typed, allowed  []hostPort
	only, safePorts bool
}

// hostPort is a host in that form, and one of its ports; "" is all of them.
type hostPort struct{ host, port string }

func (r Reach) compile() reach {
	c := reach{only: r.Only, safePorts: r.SafePorts, header: http.Header{}, typed: parseHosts(r.Typed), allowed: parseHosts(r.Allowed)}
	if u, err := url.Parse(r.Origin); err == nil && u.Host != "" {
		c.origin, c.typed = origin(u), append(c.typed, parseHosts([]string{r.Origin})...)
		maps.Copy(c.header, r.Header)
		if r.User != nil && (u.Scheme == "http" || u.Scheme == "https") {
			c.header.Set("Authorization", basic(r.User))
		}
	}
	return c
}

func parseHosts(hosts []string) []hostPort {
	var all []hostPort
	for _, typed := range hosts {
		p := hostPort{host: typed}
		if u, err := url.Parse(typed); err == nil && u.Host != "" {
			p = hostPort{u.Hostname(), port(u)}
		} else if host, port, err := net.SplitHostPort(typed); err == nil {
			p = hostPort{host, port}
		}
		if p.host = follow.Host(strings.Trim(p.host, "[]")); p.host != "" {
			all = append(all, p)
		}
	}
	return all
}

func has(all []hostPort, host, port string) bool {
	return slices.ContainsFunc(all, func(p hostPort) bool { return p.host == host && (p.port == "" || p.port == port) })
}

func hasHost(all []hostPort, host string) bool {
	return slices.ContainsFunc(all, func(p hostPort) bool { return p.host == host })
}

// addressRule is which addresses a host may have.
type addressRule uint8

const (
	publicAddress addressRule = iota
	typedAddress              // as Reach.Typed has it
	anyAddress
)

// rule returns the rule for a host, in that form, and one of its ports.
func (r *reach) rule(host, port string) (addressRule, error) {
	switch {
	case host == "":
		return 0, fmt.Errorf("%w: the URL names no host", ErrAddress)
	case r.safePorts && !safePort(port) && !slices.Contains(r.allowed, hostPort{host, port}):
		return 0, fmt.Errorf("%w %s of %q; want 80, 443, 25, 465, 587 or one above 1024 that no other service has", ErrPort, port, host)
	case has(r.allowed, host, port):
		return anyAddress, nil
	case has(r.typed, host, port):
		return typedAddress, nil
	case r.only && !hasHost(r.typed, host) && !hasHost(r.allowed, host):
		return 0, fmt.Errorf("%w: %q; if you trust it, add it to content_hosts", ErrHost, host)
	}
	return publicAddress, nil
}

// safePort reports whether HTTP or mail may be expected on a port: their own ports, and
// those above 1024 that are not known to be of another service.
func safePort(port string) bool {
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		return false
	}
	switch n {
	case 80, 443, 25, 465, 587:
		return true
	case 1433, 1434, 1521, 3050, 3306, 5432, 5984, 6379, 6380, 7000, 7001, 7199, 7473, 7474, 7687, 8086, 8087, 9042, 9160, 9200, 9300, 11211, 26379, 27017, 27018, 27019, 28015, // data bases
		2049, 3260, 3659, 4045, 5038, 9100, // files, disks, printers
		2181, 2375, 2376, 2377, 2379, 2380, 4369, 4646, 6443, 8300, 8301, 8500, 10250, 10255, 25672, // clusters
		1883, 4222, 5671, 5672, 8883, 9092, 11300, // queues
		1719, 1720, 1723, 3128, 3268, 3389, 3690, 4190, 5060, 5061, 5222, 5900, 5901, 5985, 5986, 6000, 6566, 6660, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080: // all sorts
		return false
	}
	return n > 1024
}

// Names keeps which of the names that an operator typed had public addresses when they
// were first connected to. Whoever owns a name can change its addresses. That must not
// lead from the public network into a private one, or the other way round with a
// password, before the operator has agreed.
type Names struct {
	mu    sync.Mutex
	known map[string]bool
	save  func(ctx context.Context, name string, public bool) error
}

// NewNames returns Names with what was known before. save makes a name durable; with nil
// the names last as long as the process.
func NewNames(known map[string]bool, save func(ctx context.Context, name string, public bool) error) *Names {
	n := &Names{known: map[string]bool{}, save: save}
	maps.Copy(n.known, known)
	return n
}

// lookup returns whether a name was public, and whether that is known.
func (n *Names) lookup(name string) (public, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	public, known = n.known[name]
	return public, known
}

// remember keeps what a name was when it was first connected to.
func (n *Names) remember(ctx context.Context, name string, public bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.known[name]; known {
		return nil
	}
	if n.save != nil {
		if err := n.save(ctx, name, public); err != nil {
			return fmt.Errorf("remembering the addresses of %q: %w", name, err)
		}
	}
	n.known[name] = public
	return nil
}

// checkAddresses checks the addresses that a name has now. fresh reports that a typed
// name is seen for the first time, and is to be kept.
func (g *Guard) checkAddresses(r addressRule, name string, addresses []netip.Addr) (fresh bool, err error) {
	first := classOf(addresses[0])
	for _, a := range addresses {
		c := classOf(a)
		switch {
		case r == anyAddress, r == typedAddress && localName(name) && a.Unmap().IsLoopback(), c == publicClass && first == c:
		case r == publicAddress:
			return false, refuse(name, a.Unmap().String())
		case c == localClass || localName(name):
			return false, fmt.Errorf("%w: %q is %s; a name is not followed to this machine, its link or its cloud's metadata: write the address itself, or add %q to allow_hosts if you trust it", ErrAddress, name, a.Unmap(), name)
		case c != first:
			return false, fmt.Errorf("%w: %q is %s and %s, public and private at once; if that is right, add %q to allow_hosts", ErrAddress, name, addresses[0].Unmap(), a.Unmap(), name)
		}
	}
	if r != typedAddress || localName(name) {
		return false, nil
	}
	public, known := g.names.lookup(name)
	if known && public != (first == publicClass) {
		was, is := "private", "public"
		if public {
			was, is = is, was
		}
		return false, fmt.Errorf("%w: %q was %s when it was first asked, and is %s now, at %s; if that is right, add %q to allow_hosts", ErrAddress, name, was, is, addresses[0].Unmap(), name)
	}
	return !known, nil
}

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

// Allowed reports whether the URL's host, of whatever scheme, may be asked at all: the
// error is an *Error: ErrAddress, ErrHost or ErrPort when it may not, ErrUnresolved
// when its name has no address that could be checked, which may change (see Transient).
// When ctx ends first, the error is its cause.
//
// This is an early answer for people and no protection: an address can change, so it is
// checked again on connecting. The text of the error names addresses of our network: it
// is for the operator, not for whoever gave the URL.
func (g *Guard) Allowed(ctx context.Context, u *url.URL) error {
	known, err := g.checkURL(u)
	if known || err != nil || g.options.Proxy != nil && (u.Scheme == "http" || u.Scheme == "https") {
		return err
	}
	lookup, cancel := context.WithTimeout(ctx, g.options.ConnectTimeout)
	defer cancel()
	_, _, err = g.resolve(lookup, follow.Host(u.Hostname()), port(u))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return &Error{URL: Plain(u), Err: err, transient: retryable(err)}
}

// checkURL checks what can be seen without a lookup; known reports whether
// that is enough.
func (g *Guard) checkURL(u *url.URL) (known bool, err error) {
	name := follow.Host(u.Hostname())
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

// resolve returns the addresses of a host that may be connected to. fresh reports
// that its name is to be remembered once it has been reached.
func (g *Guard) resolve(ctx context.Context, name, port string) (addresses []netip.Addr, fresh bool, err error) {
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
	fresh, err = g.checkAddresses(r, name, addresses)
	return addresses, fresh, err
}

// DialContext connects to host:port over TCP for other protocols than HTTP, as
// net.Dialer does, within the Guard's Reach, else the error wraps ErrAddress,
// ErrHost or ErrPort. A proxy is not asked.
//
// It connects to the addresses that it has checked, so an answer that changes between
// two lookups helps no attacker. Each Guard has a connection pool of its own, which goes
// by the host name of the URL: a connection that was made for one name or Source is
// never used for another.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	name := follow.Host(host)
	ctx, cancel := context.WithTimeout(ctx, g.options.ConnectTimeout)
	defer cancel()
	if !strings.HasPrefix(network, "tcp") {
		return nil, refuse(name, "asked for over "+network)
	}
	addresses, fresh, err := g.resolve(ctx, name, port)
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

// addressClass is who can reach an address.
type addressClass uint8

const (
	// localClass: this machine, its link, its cloud's metadata, or nobody.
	localClass addressClass = iota
	privateClass
	publicClass
)

// classOf returns an address's class. Addresses that carry an IPv4 address are
// checked by that.
func classOf(a netip.Addr) addressClass {
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

// authority returns host and port of a URL.
func authority(u *url.URL) string {
	return net.JoinHostPort(follow.Host(u.Hostname()), port(u))
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
	name := follow.Host(req.URL.Hostname())
	a, err := netip.ParseAddr(name)
	if r, _ := g.reach.rule(name, port(req.URL)); r != publicAddress && (localName(name) || err == nil && a.IsLoopback()) {
		return nil, nil
	}
	return g.options.Proxy, nil
}

func (g *Guard) isProxy(addr string) bool {
	return g.options.Proxy != nil && strings.EqualFold(addr, authority(g.options.Proxy))
}

// numeric reports whether a name ends in a number, as no name does in the DNS. Some
// resolvers, a proxy's perhaps, take 2130706433, 0x7f.1 and 127.1 for addresses.
func numeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// localName reports whether a name is one of this machine.
func localName(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}
