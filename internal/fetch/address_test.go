package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
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
	g := newGuard(t, Options{Network: Network{Resolver: nameServer(t, "127.0.0.1")}})
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
			if rule, err := c.rule(canonical(u.Hostname()), port(u)); err != nil || rule == publicAddress {
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
		if _, _, err := get(g.Client("/"), s.URL+path); !errors.Is(err, ErrRedirects) || Transient(err) {
			t.Errorf("%s: %v, want ErrRedirects", path, err)
		}
	}
	// Even for a client that may read every file.
	if _, _, err := get(g.Client("/"), s.URL+"/file"); !errors.Is(err, ErrScheme) {
		t.Errorf("redirect to a file: %v, want ErrScheme", err)
	}
	c := g.Client("/")
	c.CheckRedirect = nil
	if _, _, err := get(c, s.URL+"/file"); !errors.Is(err, ErrScheme) {
		t.Errorf("redirect to a file, past CheckRedirect: %v, want ErrScheme", err)
	}
}

// nameServer answers every name with the next of the given answers, and the last
// one from then on. An answer is the addresses of a name, with spaces between
// them; "" says that there is no such name.
func nameServer(t *testing.T, answers ...string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			q, addresses := m.Questions[0], strings.Fields(answers[0])
			if q.Type == dnsmessage.TypeA && len(answers) > 1 {
				answers = answers[1:]
			}
			if len(addresses) == 0 {
				m.RCode = dnsmessage.RCodeNameError
			}
			for _, text := range addresses {
				h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
				switch a := netip.MustParseAddr(text); {
				case a.Is4() && q.Type == dnsmessage.TypeA:
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
				case a.Is6() && q.Type == dnsmessage.TypeAAAA:
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
				}
			}
			if out, err := m.Pack(); err == nil {
				conn.WriteTo(out, from)
			}
		}
	})
	t.Cleanup(func() { conn.Close(); running.Wait() })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

// The address is judged when it is connected to, so neither a public name with a
// private address nor one that changes its address gets through.
func TestNamesWithPrivateAddresses(t *testing.T) {
	s, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, answer := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0"} {
		g := newGuard(t, Options{Network: Network{Resolver: nameServer(t, answer)}})
		if _, _, err := get(g.Client(""), named(t, s, "harmless.example.org")); !errors.Is(err, ErrAddress) {
			t.Errorf("a name for %s: %v, want ErrAddress", answer, err)
		}
	}
	if conns() != 0 {
		t.Error("the server was reached")
	}

	g := newGuard(t, Options{Reach: Reach{Allowed: []string{"allowed.example.org"}}, Network: Network{Resolver: nameServer(t, "127.0.0.1")}})
	mustGet(t, g.Client(""), named(t, s, "allowed.example.org"))
	if _, _, err := get(g.Client(""), named(t, s, "harmless.example.org")); !errors.Is(err, ErrAddress) {
		t.Errorf("another name of the allowed address: %v, want ErrAddress", err)
	}
}

func TestRebinding(t *testing.T) {
	s, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	names := nameServer(t, "93.184.216.34", "127.0.0.1")
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
		g := newGuard(t, Options{Reach: Reach{Allowed: []string{"typed.example", "xn--bcher-kva.example", "192.168.7.7"}}, Network: Network{Resolver: nameServer(t, c.names)}})
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
	g := newGuard(t, Options{Proxy: &url.URL{Scheme: "http", Host: "proxy.example:3128"}, Network: Network{Resolver: nameServer(t, "10.0.0.1")}})
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
	g := newGuard(t, Options{Network: Network{Resolver: nameServer(t, "93.184.216.34", "127.0.0.1")}})
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
	g := newGuard(t, Options{Reach: Reach{Allowed: []string{"relay.example"}}, Proxy: &url.URL{Scheme: "http", Host: l.Addr().String()}, Network: Network{Resolver: nameServer(t, "127.0.0.1")}})
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
