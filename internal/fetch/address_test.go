package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

func TestPublic(t *testing.T) {
	for _, a := range []string{
		"8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "198.17.255.255", "198.20.0.0",
		"203.0.114.0", "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888", "2001:200::", "2003::", "3ffe::",
		"64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:8.8.8.8",
	} {
		if classOf(netip.MustParseAddr(a)) != publicClass {
			t.Errorf("%s is refused", a)
		}
	}
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.0.0.1", "127.255.255.255",
		"169.254.169.254", "172.16.0.0", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.0",
		"198.19.255.255", "198.51.100.7", "203.0.113.255", "224.0.0.1", "239.1.2.3", "240.0.0.0", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::8.8.8.8", "fe80::1", "fe80::1%eth0", "2606:4700::1111%eth0", "fec0::1", "fc00::1", "fd12::1", "ff02::1", "ff0e::1",
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
		"64:ff9b::127.0.0.1", "64:ff9b::10.1.2.3", "64:ff9b:1::8.8.8.8", "64:ff9b::1:8.8.8.8",
		"2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:101::1",
		"2001::1", "2001:0:808:808::1", "2001:2::1", "2001:10::1", "2001:db8::1", "2001:1ff::", "3fff::1", "3fff:fff::1",
		"100::1", "5f00::1", "4000::", "1fff::",
	} {
		if classOf(netip.MustParseAddr(a)) == publicClass {
			t.Errorf("%s is let through", a)
		}
	}
}

// FuzzPublic: an address is judged alike in all the forms that carry it.
func FuzzPublic(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{8, 8, 4, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 4 {
			t.Skip("no IPv4 address")
		}
		a := netip.AddrFrom4([4]byte(b))
		want := classOf(a)
		if want == publicClass && (a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()) {
			t.Errorf("%s is let through", a)
		}
		for _, form := range []string{
			"::ffff:" + a.String(), "64:ff9b::" + a.String(), fmt.Sprintf("2002:%02x%02x:%02x%02x::1", b[0], b[1], b[2], b[3]),
		} {
			if got := classOf(netip.MustParseAddr(form)); got != want {
				t.Errorf("%s: class %d, %s: %d", a, want, form, got)
			}
		}
	})
}

func TestLoopbackIsRefusedUnlessTyped(t *testing.T) {
	s, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	g := newGuard(t, Options{Network: Network{Resolver: nameServer("127.0.0.1")}})
	for _, name := range []string{"127.0.0.1", "localhost", "LOCALHOST", "localhost.", "::ffff:127.0.0.1", "::1", "0.0.0.0", "::"} {
		_, _, err := get(g.Client(""), named(t, s, name))
		if !errors.Is(err, ErrAddress) || Transient(err) {
			t.Errorf("%s: %v, want ErrAddress, not transient", name, err)
		}
	}
	for _, name := range []string{"0177.0.0.1", "2130706433", "127.1", "0x7f000001"} {
		if _, _, err := get(g.Client(""), named(t, s, name)); err == nil {
			t.Errorf("%s was reached", name)
		}
	}
	if n := conns(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

func TestRefusalSaysWhatToDo(t *testing.T) {
	_, _, err := get(newGuard(t, Options{}).Client(""), "http://127.0.0.1:1/feed.atom")
	for _, want := range []string{"http://127.0.0.1:1/feed.atom", "not public", `add "127.0.0.1" to allow_hosts`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	var e *Error
	if !errors.As(err, &e) || e.URL != "http://127.0.0.1:1/feed.atom" || e.Attempts != 0 {
		t.Errorf("error %+v", e)
	}
}

// What the operator vouches for, and what he typed, is known in every spelling.
func TestPlaces(t *testing.T) {
	for typed, asked := range map[string]string{
		"localhost": "http://LocalHost.:7/", "[::1]": "http://[::1]:5/", "::1": "http://[0:0:0:0:0:0:0:1]/", "[::1]:80": "http://[::1]/",
		"127.0.0.1": "http://[::ffff:127.0.0.1]/", "b\u00fccher.example": "http://xn--bcher-kva.example/", "xn--bcher-kva.example:443": "https://B\u00dcCHER.example/",
		"under_score.example": "smtp://UNDER_score.example/", "box.example:25": "smtp://box.example",
	} {
		u, err := url.Parse(asked)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []Reach{{Allowed: []string{typed}}, {Typed: []string{typed}}} {
			c := r.compile()
			if rule, err := c.rule(follow.Host(u.Hostname()), port(u)); err != nil || rule == publicAddress {
				t.Errorf("typed %q, asked for %s: rule %d, %v", typed, asked, rule, err)
			}
		}
	}
	for _, typed := range []string{"", ":", "[]", ":80"} {
		c := Reach{Typed: []string{typed}, Allowed: []string{typed}}.compile()
		if len(c.typed)+len(c.allowed) != 0 {
			t.Errorf("typed %q: %+v", typed, c)
		}
	}
	for _, origin := range []string{"http://%zz/", "http:///path", "/sip/set"} {
		if c := (Reach{Origin: origin}).compile(); len(c.typed) != 0 {
			t.Errorf("origin %q: %+v", origin, c)
		}
	}
}

// An open connection of a trusted name is no way in for another name of the same
// address and port.
func TestConnectionsAreNotSharedBetweenNames(t *testing.T) {
	s, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	g := newGuard(t, Options{Reach: Reach{Typed: []string{"127.0.0.1"}}})
	mustGet(t, g.Client(""), s.URL)
	for range 3 {
		if _, _, err := get(g.Client(""), named(t, s, "localhost")); !errors.Is(err, ErrAddress) {
			t.Fatalf("localhost after 127.0.0.1: %v, want ErrAddress", err)
		}
	}
	mustGet(t, g.Client(""), s.URL)
	if n := conns(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestRedirectToPrivateHost(t *testing.T) {
	private, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	public, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, named(t, private, "localhost"), http.StatusFound)
	})
	g := newGuard(t, Options{Reach: Reach{Typed: []string{"127.0.0.1"}}})
	if _, _, err := get(g.Client(""), public.URL); !errors.Is(err, ErrAddress) {
		t.Errorf("redirect to a private host: %v, want ErrAddress", err)
	}
	if conns() != 0 {
		t.Error("the private host was reached")
	}
}

func TestRedirects(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch n := strings.TrimPrefix(r.URL.Path, "/"); n {
		case "0":
		case "file":
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
		case "loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		default:
			http.Redirect(w, r, "/"+string(n[0]-1), http.StatusMovedPermanently)
		}
	})
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}})
	mustGet(t, g.Client("/"), s.URL+"/5")
	for _, path := range []string{"/6", "/loop"} {
		if _, _, err := get(g.Client("/"), s.URL+path); !errors.Is(err, errRedirects) || Transient(err) {
			t.Errorf("%s: %v, want errRedirects", path, err)
		}
	}
	// Even for a client that may read every file.
	if _, _, err := get(g.Client("/"), s.URL+"/file"); !errors.Is(err, errScheme) {
		t.Errorf("redirect to a file: %v, want errScheme", err)
	}
	c := g.Client("/")
	c.CheckRedirect = nil
	if _, _, err := get(c, s.URL+"/file"); !errors.Is(err, errScheme) {
		t.Errorf("redirect to a file, past CheckRedirect: %v, want errScheme", err)
	}
}

// nameServer answers every name with the next of the given answers, and the last
// one from then on. An answer is the addresses of a name, with spaces between
// them; "" says that there is no such name.
func nameServer(answers ...string) *net.Resolver {
	var mu sync.Mutex
	return testserver.Names(func(_ string, wanted dnsmessage.Type) string {
		mu.Lock()
		defer mu.Unlock()
		addresses := answers[0]
		if wanted == dnsmessage.TypeA && len(answers) > 1 {
			answers = answers[1:]
		}
		return addresses
	})
}

// The address is judged when it is connected to, so neither a public name with a
// private address nor one that changes its address gets through.
func TestNamesWithPrivateAddresses(t *testing.T) {
	s, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, answer := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0"} {
		g := newGuard(t, Options{Network: Network{Resolver: nameServer(answer)}})
		if _, _, err := get(g.Client(""), named(t, s, "harmless.example.org")); !errors.Is(err, ErrAddress) {
			t.Errorf("a name for %s: %v, want ErrAddress", answer, err)
		}
	}
	if conns() != 0 {
		t.Error("the server was reached")
	}

	g := newGuard(t, Options{Reach: Reach{Allowed: []string{"allowed.example.org"}}, Network: Network{Resolver: nameServer("127.0.0.1")}})
	mustGet(t, g.Client(""), named(t, s, "allowed.example.org"))
	if _, _, err := get(g.Client(""), named(t, s, "harmless.example.org")); !errors.Is(err, ErrAddress) {
		t.Errorf("another name of the allowed address: %v, want ErrAddress", err)
	}
}

func TestRebinding(t *testing.T) {
	s, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	names := nameServer("93.184.216.34", "127.0.0.1")
	// Whoever looks first sees a public address ...
	if seen, err := names.LookupHost(t.Context(), "rebind.example.org"); err != nil || seen[0] != "93.184.216.34" {
		t.Fatalf("looked up %v, %v", seen, err)
	}
	// ... and the connection goes by a second look.
	g := newGuard(t, Options{Network: Network{Resolver: names}})
	if _, _, err := get(g.Client(""), named(t, s, "rebind.example.org")); !errors.Is(err, ErrAddress) {
		t.Errorf("rebound name: %v, want ErrAddress", err)
	}
	if conns() != 0 {
		t.Error("the server was reached")
	}
}

// TLS does not change the decision.
func TestHTTPSAddresses(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	g := newGuard(t, Options{})
	if _, _, err := get(g.Client(""), s.URL); !errors.Is(err, ErrAddress) {
		t.Errorf("https to loopback: %v, want ErrAddress", err)
	}
	trusting := newGuard(t, Options{Reach: Reach{Origin: s.URL}})
	_, _, err := get(trusting.Client(""), s.URL)
	var e *Error
	if !errors.As(err, &e) || e.Attempts != 1 || Transient(err) {
		t.Errorf("unknown certificate: %v, want one attempt and a final error", err)
	}
}

func TestAllowed(t *testing.T) {
	allowed, refused, unresolved := error(nil), ErrAddress, ErrUnresolved
	for _, c := range []struct {
		url, names string // what the name has for addresses
		want       error
	}{
		{"http://93.184.216.34/notify", "", allowed},
		{"https://[2606:4700::1111]:8443/", "", allowed},
		{"smtp://93.184.216.34/box@library.example", "", allowed},
		{"http://127.0.0.1/", "93.184.216.34", refused},
		{"http://[::1]:80/", "93.184.216.34", refused},
		{"http://[::ffff:10.0.0.1]/", "93.184.216.34", refused},
		{"http://[fe80::1%25eth0]/", "93.184.216.34", refused},
		{"http://169.254.169.254/latest/", "", refused},
		{"smtp://10.0.0.1/box@library.example", "", refused},
		{"http://2130706433/", "93.184.216.34", refused},
		{"http://0x7F000001/", "93.184.216.34", refused},
		{"http://127.1./", "93.184.216.34", refused},
		{"smtp://0177.0.0.0x1/box@library.example", "93.184.216.34", refused},
		{"http://7.example/", "93.184.216.34", allowed},
		{"http://library.0xample/", "93.184.216.34", allowed},
		{"http://localhost/", "93.184.216.34", refused},
		{"http://a.LOCALHOST./", "93.184.216.34", refused},
		{"http:///path", "93.184.216.34", refused},
		{"mailto:box@library.example", "93.184.216.34", refused},
		{"http://library.example/", "93.184.216.34", allowed},
		{"smtp://library.example/box@library.example", "93.184.216.34 2606:4700::1111", allowed},
		{"http://library.example/", "10.0.0.1", refused},
		{"http://library.example/", "93.184.216.34 10.0.0.1", refused},
		{"http://library.example/", "93.184.216.34 fd00::1", refused},
		{"http://library.example/", "2606:4700::1111 127.0.0.1", refused},
		{"http://library.example/", "", unresolved},
		{"http://typed.example/", "10.0.0.1", allowed},
		{"smtp://TYPED.example.:25/box", "", allowed},
		{"http://b\u00fccher.example/", "10.0.0.1", allowed},
		{"http://192.168.7.7:9/", "", allowed},
		{"http://192.168.7.8/", "", refused},
	} {
		g := newGuard(t, Options{Reach: Reach{Allowed: []string{"typed.example", "xn--bcher-kva.example", "192.168.7.7"}}, Network: Network{Resolver: nameServer(c.names)}})
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		err = g.Allowed(t.Context(), u)
		if !errors.Is(err, c.want) {
			t.Errorf("%s at %q: %v, want %v", c.url, c.names, err, c.want)
		}
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.URL != c.url && !strings.Contains(c.url, "%25")) {
			t.Errorf("%s: error %#v", c.url, err)
		}
		if errors.Is(err, ErrAddress) == errors.Is(err, ErrUnresolved) && err != nil || Transient(err) {
			t.Errorf("%s: the error is not clear: %v", c.url, err)
		}
	}
}

// A lookup that does not end says nothing about the host.
func TestAllowedWithoutAnswer(t *testing.T) {
	u := &url.URL{Scheme: "http", Host: "library.example"}
	silent := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	g := newGuard(t, Options{ConnectTimeout: time.Millisecond, Network: Network{Resolver: silent}})
	if err := g.Allowed(t.Context(), u); !errors.Is(err, ErrUnresolved) || !Transient(err) {
		t.Errorf("after the time for it: %v, want ErrUnresolved, transient", err)
	}
	patient := newGuard(t, Options{ConnectTimeout: time.Hour, Network: Network{Resolver: silent}})
	why := errors.New("the caller has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := patient.Allowed(ctx, u); err != why {
		t.Errorf("after the caller has gone: %v", err)
	}
}

// A proxy resolves names itself, and is asked for http and https alone.
func TestAllowedThroughProxy(t *testing.T) {
	g := newGuard(t, Options{Proxy: &url.URL{Scheme: "http", Host: "proxy.example:3128"}, Network: Network{Resolver: nameServer("10.0.0.1")}})
	for u, want := range map[string]error{
		"https://library.example/": nil, "http://10.0.0.1/": ErrAddress, "http://167772161/": ErrAddress, "http://localhost/": ErrAddress, "smtp://library.example/box@library.example": ErrAddress,
	} {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Allowed(t.Context(), parsed); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", u, err, want)
		}
	}
}

// What was allowed is judged again when it is connected to.
func TestAllowedThenRebound(t *testing.T) {
	s, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	g := newGuard(t, Options{Network: Network{Resolver: nameServer("93.184.216.34", "127.0.0.1")}})
	u, err := url.Parse(named(t, s, "rebind.example.org"))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Allowed(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if _, err := g.DialContext(t.Context(), "tcp", u.Host); !errors.Is(err, ErrAddress) {
		t.Errorf("rebound name: %v, want ErrAddress", err)
	}
	if conns() != 0 {
		t.Error("the server was reached")
	}
}

func TestDialContext(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// A proxy of the HTTP client is nothing that other protocols may reach.
	g := newGuard(t, Options{Reach: Reach{Allowed: []string{"relay.example"}}, Proxy: &url.URL{Scheme: "http", Host: l.Addr().String()}, Network: Network{Resolver: nameServer("127.0.0.1")}})
	for _, name := range []string{"127.0.0.1", "localhost", "mx.example", "", "::ffff:127.0.0.1"} {
		if c, err := g.DialContext(t.Context(), "tcp", net.JoinHostPort(name, port)); !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %v, %v, want ErrAddress", name, c, err)
		}
	}
	if _, err := g.DialContext(t.Context(), "udp", net.JoinHostPort("93.184.216.34", port)); !errors.Is(err, ErrAddress) {
		t.Errorf("udp: %v, want ErrAddress", err)
	}
	if _, err := g.DialContext(t.Context(), "tcp", "relay.example"); err == nil {
		t.Error("an address without a port was taken")
	}
	ours, err := g.DialContext(t.Context(), "tcp", net.JoinHostPort("RELAY.example.", port))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if ours.LocalAddr().String() != theirs.RemoteAddr().String() {
		t.Error("somebody else was let in")
	}
}

// world is a network on loopback: names have the addresses that a test gives
// them, and a connection to any address and port ends at the server that listens
// there.
type world struct {
	t       *testing.T
	mu      sync.Mutex
	servers map[string]string // "10.0.0.1:80" -> where it really listens
	dialed  []string
}

func newWorld(t *testing.T) *world { return &world{t: t, servers: map[string]string{}} }

// at puts a server to an address and port. It counts its requests by path, with
// the user that was logged in: "ann /secret".
func (w *world) at(address string, h http.HandlerFunc) (asked func() string) {
	var mu sync.Mutex
	var all []string
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		mu.Lock()
		all = append(all, strings.TrimSpace(user+" "+r.URL.Path))
		mu.Unlock()
		if h != nil {
			h(rw, r)
		}
	}))
	w.t.Cleanup(s.Close)
	w.servers[address] = s.Listener.Addr().String()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(all, ", ")
	}
}

func (w *world) network(names *net.Resolver) Network {
	return Network{Resolver: names, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		w.mu.Lock()
		w.dialed = append(w.dialed, address)
		w.mu.Unlock()
		real, ok := w.servers[address]
		if !ok {
			return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		}
		return new(net.Dialer).DialContext(ctx, network, real)
	}}
}

// D63: a name that the operator typed is not followed to this machine, its link
// or the metadata of its cloud, whichever other addresses it has.
func TestTypedNameWithLocalAddresses(t *testing.T) {
	for _, addresses := range []string{
		"127.0.0.99", "93.184.216.34 127.0.0.99", "93.184.216.34 169.254.169.254", "10.0.0.1 169.254.1.1", "0.0.0.0", "100.100.100.200",
		"93.184.216.34 168.63.129.16", "192.0.0.192", "93.184.216.34 ::1", "2606:4700::1111 fe80::1", "fd00:ec2::254", "::ffff:127.0.0.1 10.0.0.1", "224.0.0.1",
	} {
		w := newWorld(t)
		for a := range strings.FieldsSeq(addresses) {
			w.at(net.JoinHostPort(a, "80"), nil)
		}
		names := NewNames(nil, nil)
		g := newGuard(t, Options{Reach: Reach{Origin: "http://evil.example/feed"}, Network: w.network(nameServer(addresses)), Names: names})
		_, _, err := get(g.Client(""), "http://evil.example/feed")
		if !errors.Is(err, ErrAddress) || Transient(err) || !strings.Contains(err.Error(), `add "evil.example" to allow_hosts`) {
			t.Errorf("%s: %v", addresses, err)
		}
		if len(w.dialed) != 0 || len(names.known) != 0 {
			t.Errorf("%s: connected to %v, remembered %v", addresses, w.dialed, names.known)
		}
	}
}

// D63: what a name was at first contact is remembered, and a change is refused
// until allow_hosts says so.
func TestTypedNameChangesItsAddresses(t *testing.T) {
	const public, private = "93.184.216.34", "10.0.0.1"
	for _, c := range []struct{ first, then, advice string }{
		{public, private, "was public when it was first asked, and is private now"},
		{private, public, "was private when it was first asked, and is public now"},
		{public, public + " " + private, "public and private at once"},
		{public, "fd12::1", "is private now"},
	} {
		w := newWorld(t)
		for _, a := range []string{public, private, "fd12::1"} {
			w.at(net.JoinHostPort(a, "80"), nil)
		}
		durable := map[string]bool{}
		save := func(_ context.Context, name string, public bool) error { durable[name] = public; return nil }
		reach := Reach{Origin: "http://source.example/"}
		first := newGuard(t, Options{Reach: reach, Network: w.network(nameServer(c.first)), Names: NewNames(nil, save)})
		mustGet(t, first.Client(""), "http://source.example/")
		if want := map[string]bool{"source.example": c.first == public}; !maps.Equal(durable, want) {
			t.Fatalf("remembered %v, want %v", durable, want)
		}
		// As after a restart.
		w.dialed = nil
		again := newGuard(t, Options{Reach: reach, Network: w.network(nameServer(c.then)), Names: NewNames(durable, save)})
		_, _, err := get(again.Client(""), "http://source.example/")
		if !errors.Is(err, ErrAddress) || Transient(err) || !strings.Contains(err.Error(), c.advice) || !strings.Contains(err.Error(), `add "source.example" to allow_hosts`) {
			t.Errorf("%s, then %s: %v", c.first, c.then, err)
		}
		if len(w.dialed) != 0 {
			t.Errorf("%s, then %s: connected to %v", c.first, c.then, w.dialed)
		}
		reach.Allowed = []string{"source.example"}
		mustGet(t, again.With(reach).Client(""), "http://source.example/")
	}
}

// A name is remembered once it was reached, and not when what is to be remembered
// cannot be kept.
func TestNamesAreRememberedWhenReached(t *testing.T) {
	w := newWorld(t)
	asked := w.at("10.0.0.1:80", nil)
	full := errors.New("no space left")
	names := NewNames(nil, func(context.Context, string, bool) error { return full })
	g := newGuard(t, Options{Attempts: 1, Reach: Reach{Origin: "http://a.example/", Typed: []string{"b.example", "10.0.0.1"}}, Network: w.network(nameServer("10.0.0.1")), Names: names})
	if _, _, err := get(g.Client(""), "http://b.example:81/"); err == nil || len(names.known) != 0 {
		t.Errorf("not reached: %v, remembered %v", err, names.known)
	}
	if _, _, err := get(g.Client(""), "http://a.example/"); !errors.Is(err, full) || asked() != "" {
		t.Errorf("not remembered: %v; asked for %s", err, asked())
	}
	mustGet(t, g.Client(""), "http://10.0.0.1/")
	if len(names.known) != 0 {
		t.Errorf("an address is remembered: %v", names.known)
	}
}

// D62: each Source has a guard and a login of its own. What is another Source's
// private host stays closed, by its name, its address, a redirect and another
// port, also while that Source has connections open there.
func TestReachIsPerSource(t *testing.T) {
	w := newWorld(t)
	asked := w.at("10.0.0.1:8080", nil)
	other := w.at("10.0.0.1:9090", nil)
	w.at("93.184.216.34:80", func(rw http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(rw, r, to, http.StatusFound)
		}
	})
	private := newGuard(t, Options{Attempts: 1, Network: w.network(nameServer("10.0.0.1")), Reach: Reach{Origin: "http://private.example:8080/feed", User: url.UserPassword("ann", "secret")}})
	mustGet(t, private.Client(""), "http://private.example:8080/own")
	evil := private.With(Reach{Origin: "http://93.184.216.34/list.xml"})
	t.Cleanup(evil.Close)
	mustGet(t, evil.Client(""), "http://93.184.216.34/list.xml")
	for _, to := range []string{"http://private.example:8080/secret", "http://10.0.0.1:8080/secret", "http://private.example:9090/", "http://10.0.0.1:9090/"} {
		for _, from := range []string{to, "http://93.184.216.34/?to=" + url.QueryEscape(to)} {
			if _, _, err := get(evil.Client(""), from); !errors.Is(err, ErrAddress) {
				t.Errorf("%s: %v, want ErrAddress", from, err)
			}
		}
	}
	// Nor is the private Source led to another port of its host.
	if _, _, err := get(private.Client(""), "http://private.example:9090/"); !errors.Is(err, ErrAddress) {
		t.Errorf("another port: %v, want ErrAddress", err)
	}
	if got := asked(); got != "ann /own" {
		t.Errorf("the private host was asked for %q", got)
	}
	if got := other(); got != "" {
		t.Errorf("another port of it was asked for %q", got)
	}
	// allow_hosts opens a host, or one port of it, and gives away no login.
	allowed := private.With(Reach{Origin: "http://93.184.216.34/", Allowed: []string{"10.0.0.1:8080"}})
	t.Cleanup(allowed.Close)
	mustGet(t, allowed.Client(""), "http://10.0.0.1:8080/allowed")
	if _, _, err := get(allowed.Client(""), "http://10.0.0.1:9090/"); !errors.Is(err, ErrAddress) {
		t.Errorf("another port than allowed: %v, want ErrAddress", err)
	}
	if got := asked(); got != "ann /own, /allowed" {
		t.Errorf("the private host was asked for %q", got)
	}
}

// D62: content_hosts.
func TestOnly(t *testing.T) {
	w := newWorld(t)
	for _, a := range []string{"93.184.216.34:80", "93.184.216.34:8080"} {
		w.at(a, nil)
	}
	g := newGuard(t, Options{Network: w.network(nameServer("93.184.216.34")),
		Reach: Reach{Origin: "http://own.example/", Typed: []string{"files.example:8080"}, Allowed: []string{"allowed.example"}, Only: true}})
	for to, want := range map[string]error{
		"http://own.example/": nil, "http://own.example:8080/": nil, "http://files.example:8080/": nil, "http://allowed.example/": nil,
		"http://other.example/": ErrHost, "http://93.184.216.34/": ErrHost, "http://10.0.0.1/": ErrHost,
	} {
		if _, _, err := get(g.Client(""), to); !errors.Is(err, want) || Transient(err) {
			t.Errorf("%s: %v, want %v", to, err, want)
		}
	}
}

// D75: notifications go where HTTP and mail are to be expected.
func TestSafePorts(t *testing.T) {
	g := newGuard(t, Options{Reach: Reach{SafePorts: true, Allowed: []string{"10.0.0.1", "10.0.0.2:22"}}})
	for to, want := range map[string]error{
		"http://93.184.216.34/": nil, "https://93.184.216.34/": nil, "http://93.184.216.34:8080/": nil, "smtp://93.184.216.34/box": nil,
		"smtp://93.184.216.34:587/box": nil, "smtp://93.184.216.34:465/box": nil, "https://93.184.216.34:8443/": nil, "http://10.0.0.1:40000/": nil, "http://10.0.0.2:22/": nil,
		"smtp://93.184.216.34:6379/box": ErrPort, "http://93.184.216.34:22/": ErrPort, "http://93.184.216.34:1024/": ErrPort, "http://93.184.216.34:11211/": ErrPort,
		"http://93.184.216.34:9200/": ErrPort, "http://93.184.216.34:5432/": ErrPort, "http://93.184.216.34:0/": ErrPort, "http://10.0.0.1:6379/": ErrPort, "http://10.0.0.1:23/": ErrPort,
	} {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Allowed(t.Context(), u); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", to, err, want)
		}
		if want == nil {
			continue
		}
		if _, err := g.DialContext(t.Context(), "tcp", net.JoinHostPort(u.Hostname(), port(u))); !errors.Is(err, want) {
			t.Errorf("connecting to %s: %v, want %v", to, err, want)
		}
	}
}

// D60: a redirect's URL is capped.
func TestRedirectURLIsCapped(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/long":
			http.Redirect(w, r, "/x?"+strings.Repeat("x", 8000), http.StatusFound)
		case "/toolong":
			http.Redirect(w, r, "/x?"+strings.Repeat("x", 8200), http.StatusFound)
		}
	})
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}})
	mustGet(t, g.Client(""), s.URL+"/long")
	_, _, err := get(g.Client(""), s.URL+"/toolong")
	if !errors.Is(err, errURL) || Transient(err) || len(err.Error()) > 10_000 {
		t.Errorf("%v, want errURL", err)
	}
}

// The next address is tried when the first one refuses, and beside it when it
// does not answer.
func TestConnectTriesAllAddresses(t *testing.T) {
	s, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, silent := range []bool{false, true} {
		network := Network{Resolver: nameServer("93.184.216.34 93.184.216.35"), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			switch {
			case strings.HasPrefix(address, "93.184.216.35:"):
				return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
			case silent:
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, errors.New("connection refused")
		}}
		mustGet(t, newGuard(t, Options{Attempts: 1, Network: network}).Client(""), "http://two.example/")
	}
}
