package fetch

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Reach says where a Guard's requests may go, and with which login. Each Source
// has its own: that one of them may be asked in a private network, or with a
// password, opens that host to no other. The zero value reaches public addresses
// only.
//
// Hosts are written "name", which is all of its ports, "name:port", or as a URL,
// which is its port; an address is a name too.
type Reach struct {
	// Origin is the URL of the server that this Guard is for, as the operator
	// typed it; "" is none. Its host and port are one of Typed.
	Origin string
	// User logs in at Origin's scheme, host and port, and nowhere else; nil is
	// nobody.
	User *url.Userinfo
	// Typed are further hosts that the operator typed. They may have private
	// addresses, if they had them when they were first asked (see Names), but
	// never those of this machine or its link; an address, and localhost, are
	// what they are.
	Typed []string
	// Allowed are the hosts that the operator vouches for, whatever their
	// addresses are.
	Allowed []string
	// Only refuses what is neither Typed nor Allowed, public or not. Other ports
	// of these hosts may be asked when they are public.
	Only bool
	// Notices refuses ports on which neither HTTP nor mail is to be expected.
	Notices bool
}

// reach is a Reach in the form in which it is compared.
type reach struct {
	origin         string // scheme, host and port
	login          string // of an Authorization header, for origin
	typed, allowed []place
	only, notices  bool
}

// place is a host in its canonical form; without a port it is all of them.
type place struct{ host, port string }

func (r Reach) compile() reach {
	c := reach{only: r.Only, notices: r.Notices, typed: places(r.Typed), allowed: places(r.Allowed)}
	if u, err := url.Parse(r.Origin); err == nil && u.Host != "" {
		c.origin, c.typed = origin(u), append(c.typed, places([]string{r.Origin})...)
		if r.User != nil && (u.Scheme == "http" || u.Scheme == "https") {
			c.login = basic(r.User)
		}
	}
	return c
}

func places(hosts []string) []place {
	var all []place
	for _, typed := range hosts {
		p := place{host: typed}
		if u, err := url.Parse(typed); err == nil && u.Host != "" {
			p = place{u.Hostname(), port(u)}
		} else if host, port, err := net.SplitHostPort(typed); err == nil {
			p = place{host, port}
		}
		if p.host = canonical(strings.Trim(p.host, "[]")); p.host != "" {
			all = append(all, p)
		}
	}
	return all
}

func has(all []place, host, port string) bool {
	return slices.ContainsFunc(all, func(p place) bool { return p.host == host && (p.port == "" || p.port == port) })
}

func hasHost(all []place, host string) bool {
	return slices.ContainsFunc(all, func(p place) bool { return p.host == host })
}

// rule says which addresses a host may have.
type rule uint8

const (
	publicAddress rule = iota
	typedAddress       // as Reach.Typed has it
	anyAddress
)

// rule returns the rule for a host, in its canonical form, and one of its ports.
func (r *reach) rule(host, port string) (rule, error) {
	switch {
	case host == "":
		return 0, fmt.Errorf("%w: the URL names no host", ErrAddress)
	case r.notices && !noticePort(port) && !slices.Contains(r.allowed, place{host, port}):
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

// noticePort reports whether HTTP or mail may be expected on a port: its own
// ports, and those above 1024 but for what is known to be another service, which
// could take a request for commands.
func noticePort(port string) bool {
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

// Names remembers which of the names that an operator typed had public addresses
// when they were first connected to. The one who owns a name can change its
// addresses: then it must not lead from the public network into a private one,
// or the other way round with a password, before the operator has agreed.
type Names struct {
	mu    sync.Mutex
	known map[string]bool
	save  func(ctx context.Context, name string, public bool) error
}

// NewNames returns a memory with what it knew before. Save makes a name durable;
// nil is a memory that lasts as long as the process.
func NewNames(known map[string]bool, save func(ctx context.Context, name string, public bool) error) *Names {
	n := &Names{known: map[string]bool{}, save: save}
	for name, public := range known {
		n.known[name] = public
	}
	return n
}

// met returns what is remembered of a name.
func (n *Names) met(name string) (public, known bool) {
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

// judgeAll judges the addresses that a name has now. fresh reports that a typed
// name is met for the first time, and is to be remembered.
func (g *Guard) judgeAll(r rule, name string, addresses []netip.Addr) (fresh bool, err error) {
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
	public, known := g.names.met(name)
	if known && public != (first == publicClass) {
		was, is := "private", "public"
		if public {
			was, is = is, was
		}
		return false, fmt.Errorf("%w: %q was %s when it was first asked, and is %s now, at %s; if that is right, add %q to allow_hosts", ErrAddress, name, was, is, addresses[0].Unmap(), name)
	}
	return !known, nil
}
