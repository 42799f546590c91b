package fetch

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newGuard returns a guard for real sockets, whose retries take no time worth
// mentioning, and closes it at the test's end.
func newGuard(t testing.TB, o Options) *Guard {
	t.Helper()
	if o.Backoff == 0 {
		o.Backoff = time.Millisecond
	}
	g := New(o)
	t.Cleanup(g.Close)
	return g
}

// serve starts a server on 127.0.0.1 that counts its connections.
func serve(t testing.TB, h http.HandlerFunc) (*httptest.Server, func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			mu.Lock()
			n++
			mu.Unlock()
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// named returns the server's URL with another host name for its address.
func named(t testing.TB, s *httptest.Server, name string) string {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = net.JoinHostPort(name, u.Port())
	return u.String()
}

// get reads a whole answer; a failing body is an error too.
func get(c *http.Client, rawURL string) (status int, body string, err error) {
	resp, err := c.Get(rawURL)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func mustGet(t testing.TB, c *http.Client, rawURL string) string {
	t.Helper()
	status, body, err := get(c, rawURL)
	if err != nil || status != http.StatusOK {
		t.Fatalf("GET %s: status %d, %v", rawURL, status, err)
	}
	return body
}

// pipes is a network in memory, for tests whose clock is synctest's.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// bubble returns a guard that reaches one handler, whatever the URL, inside a
// synctest bubble. stop ends everything that runs there.
func bubble(o Options, h http.HandlerFunc) (g *Guard, stop func()) {
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	s := &http.Server{Handler: h}
	go s.Serve(p)
	g = New(o)
	g.base.DialContext = p.dial
	return g, func() {
		g.Close()
		s.Close()
	}
}

func TestUserAgentAndErrorsOfCallers(t *testing.T) {
	var agent string
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { agent = r.UserAgent() })
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}, UserAgent: "bridge/1.2", Contact: "https://example.org/bot"})
	mustGet(t, g.Client(""), s.URL)
	if want := "bridge/1.2 (+https://example.org/bot)"; agent != want {
		t.Errorf("user agent %q, want %q", agent, want)
	}

	for _, bad := range []string{"ftp://example.org/x", "gopher://example.org/", "data:,x", "file:///etc/passwd"} {
		_, _, err := get(g.Client(""), bad)
		if !errors.Is(err, ErrScheme) || Transient(err) {
			t.Errorf("GET %s: %v, want ErrScheme, not transient", bad, err)
		}
	}
}

// A request of the caller's is its own: the guard adds to a copy.
func TestRequestIsNotChanged(t *testing.T) {
	s, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	u, _ := url.Parse(s.URL)
	u.User = url.UserPassword("u", "p")
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}})
	req := &http.Request{Method: "GET", URL: u, Header: http.Header{"X-Own": {"1"}}}
	resp, err := g.Client("").Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(req.Header) != 1 || req.URL.User == nil {
		t.Errorf("the request was changed: %v %v", req.Header, req.URL)
	}
}

func TestNewKeepsWhatWasGiven(t *testing.T) {
	o := withDefaults(Options{Attempts: 2, MaxWait: time.Hour})
	if o.Attempts != 2 || o.MaxWait != time.Hour || o.Redirects != 5 || o.HeaderBytes != 64<<10 || o.Ratio != 100 || o.Log == nil {
		t.Errorf("options %+v", o)
	}
}

func TestHeaderCap(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Big", strings.Repeat("x", 70<<10))
	})
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}, Attempts: 1})
	if _, _, err := get(g.Client(""), s.URL); err == nil {
		t.Error("a header of 70 KiB was taken")
	}
	roomy := newGuard(t, Options{Reach: Reach{Origin: s.URL}, Attempts: 1, HeaderBytes: 128 << 10})
	mustGet(t, roomy.Client(""), s.URL)
}

// No variable of the environment sends our requests elsewhere.
func TestNoProxyFromTheEnvironment(t *testing.T) {
	proxy, proxied := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for _, k := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(k, proxy.URL)
	}
	if g := newGuard(t, Options{}); g.base.Proxy != nil {
		t.Error("a proxy function without a configured proxy")
	}
	if proxied() != 0 {
		t.Error("the proxy was asked")
	}
}

func TestConfiguredProxy(t *testing.T) {
	var asked []string
	proxy, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { asked = append(asked, r.URL.String()) })
	direct, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "direct") })
	pu, _ := url.Parse(proxy.URL)
	typed := named(t, direct, "localhost")
	g := newGuard(t, Options{Proxy: pu, Reach: Reach{Origin: typed}})

	mustGet(t, g.Client(""), "http://repository.example/feed")
	if len(asked) != 1 || asked[0] != "http://repository.example/feed" {
		t.Errorf("the proxy was asked for %q", asked)
	}
	if body := mustGet(t, g.Client(""), typed); body != "direct" {
		t.Error("a trusted loopback host went through the proxy")
	}
	for _, bad := range []string{"http://10.0.0.1/", "http://[::1]/", "http://a.localhost/", named(t, proxy, "127.0.0.1")} {
		if _, _, err := get(g.Client(""), bad); !errors.Is(err, ErrAddress) {
			t.Errorf("GET %s through the proxy: %v, want ErrAddress", bad, err)
		}
	}
	if len(asked) != 1 {
		t.Errorf("the proxy was asked for %q", asked[1:])
	}
}
