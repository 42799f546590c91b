package fetch

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

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
		g := newGuard(t, Options{Reach: Reach{Origin: "http://evil.example/feed"}, Network: w.network(nameServer(t, addresses)), Names: names})
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
		first := newGuard(t, Options{Reach: reach, Network: w.network(nameServer(t, c.first)), Names: NewNames(nil, save)})
		mustGet(t, first.Client(""), "http://source.example/")
		if want := map[string]bool{"source.example": c.first == public}; !maps.Equal(durable, want) {
			t.Fatalf("remembered %v, want %v", durable, want)
		}
		// As after a restart.
		w.dialed = nil
		again := newGuard(t, Options{Reach: reach, Network: w.network(nameServer(t, c.then)), Names: NewNames(durable, save)})
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
	g := newGuard(t, Options{Attempts: 1, Reach: Reach{Origin: "http://a.example/", Typed: []string{"b.example", "10.0.0.1"}}, Network: w.network(nameServer(t, "10.0.0.1")), Names: names})
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
	private := newGuard(t, Options{Attempts: 1, Network: w.network(nameServer(t, "10.0.0.1")), Reach: Reach{Origin: "http://private.example:8080/feed", User: url.UserPassword("ann", "secret")}})
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
	g := newGuard(t, Options{Network: w.network(nameServer(t, "93.184.216.34")),
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

// D75: notices go where HTTP and mail are to be expected.
func TestNoticePorts(t *testing.T) {
	g := newGuard(t, Options{Reach: Reach{Notices: true, Allowed: []string{"10.0.0.1", "10.0.0.2:22"}}})
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
	if !errors.Is(err, ErrURL) || Transient(err) || len(err.Error()) > 10_000 {
		t.Errorf("%v, want ErrURL", err)
	}
}

// The next address is tried when the first one refuses, and beside it when it
// does not answer.
func TestConnectTriesAllAddresses(t *testing.T) {
	s, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, silent := range []bool{false, true} {
		network := Network{Resolver: nameServer(t, "93.184.216.34 93.184.216.35"), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
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
