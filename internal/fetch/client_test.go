package fetch

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/internal/testenv"
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

// bubble returns a guard that reaches one handler, whatever the URL, inside a
// synctest bubble. stop ends everything that runs there.
func bubble(o Options, h http.HandlerFunc) (g *Guard, stop func()) {
	p := testenv.NewPipes()
	s := &http.Server{Handler: h}
	go s.Serve(p)
	g = New(o)
	g.base.DialContext = p.Dial
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
		if !errors.Is(err, errScheme) || Transient(err) {
			t.Errorf("GET %s: %v, want errScheme, not transient", bad, err)
		}
	}
}

// Documents name addresses as people write them. What no URI may have is escaped on the way, in
// a query as in a path; else servers refuse the request line.
func TestQueryIsSentAsAURI(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}})
	for asked, want := range map[string]string{
		`/a b?q=c d|"ü"&e=%20+[f]`: "/a%20b?q=c%20d%7C%22%C3%BC%22&e=%20+[f]",
		"/?a=%C3%BC&b=100%":        "/?a=%C3%BC&b=100%",
		"/a?":                      "/a?",
	} {
		resp, err := g.Client("").Get(s.URL + asked)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != want {
			t.Errorf("%s was sent as %q, %v; want %q", asked, got, err, want)
		}
		if u, _ := url.Parse(s.URL + asked); resp.Request.URL.String() != u.String() {
			t.Errorf("the answer is said to be that of %s; want %s", resp.Request.URL, u) // or it would look like a redirect
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

func TestPlain(t *testing.T) {
	for raw, want := range map[string]string{
		"http://u:secret@h.example/a?b=c#d": "http://h.example/a?b=c",
		"http://token@h.example/":           "http://h.example/",
		"https://h.example/a%2Fb":           "https://h.example/a%2Fb",
		"urn:x:y":                           "urn:x:y",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := Plain(u); got != want {
			t.Errorf("Plain(%s) = %s, want %s", raw, got, want)
		}
	}
}

// withUser adds userinfo to a URL.
func withUser(t *testing.T, raw, user string) string {
	t.Helper()
	return strings.Replace(raw, "://", "://"+user+"@", 1)
}

func TestCredentials(t *testing.T) {
	var got string
	h := func(w http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }
	a, _ := serve(t, h)
	b, _ := serve(t, h)
	var log bytes.Buffer
	g := newGuard(t, Options{
		Reach: Reach{Origin: a.URL + "/feed", User: url.UserPassword("ann", "secret"), Typed: []string{"127.0.0.1"}},
		Log:   slog.New(slog.NewTextHandler(&log, nil)),
	})
	ann := basic(url.UserPassword("ann", "secret"))
	for _, c := range []struct{ what, url, want string }{
		{"typed, with its user", withUser(t, a.URL, "ann:secret"), ann},
		{"a link on the same host", a.URL + "/archive/3", ann},
		{"another port", b.URL, ""},
		{"another user out of a document", withUser(t, a.URL, "eve:x"), ann},
		{"a user for another host", withUser(t, b.URL, "ann:secret"), ""},
		{"a bare token", withUser(t, b.URL, "token"), ""},
	} {
		got = "nothing"
		mustGet(t, g.Client(""), c.url)
		if got != c.want {
			t.Errorf("%s: sent %q, want %q", c.what, got, c.want)
		}
	}
	if strings.Count(log.String(), "was not sent") != 4 || strings.Contains(log.String(), "secret") || strings.Contains(log.String(), "token@") {
		t.Errorf("log %s", log.String())
	}
}

// What the caller sets for a request stays, and goes nowhere else.
func TestCredentialsOnRedirect(t *testing.T) {
	got := map[string]http.Header{}
	record := func(_ http.ResponseWriter, r *http.Request) { got[r.Host] = r.Header.Clone() }
	other, _ := serve(t, record)
	var target string
	first, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/start" {
			http.Redirect(w, r, target, http.StatusFound)
			return
		}
		record(w, r)
	})
	g := newGuard(t, Options{Reach: Reach{Origin: first.URL, User: url.UserPassword("ann", "secret"), Typed: []string{"127.0.0.1", "localhost"}}})
	host := func(raw string) string { u, _ := url.Parse(raw); return u.Host }
	for _, c := range []struct {
		what, target string
		want         bool
	}{
		{"same host, another path", first.URL + "/next", true},
		{"relative", "/next", true},
		{"another port", other.URL + "/next", false},
		{"another name", named(t, other, "localhost") + "/next", false},
		{"a user name in Location", withUser(t, other.URL, "ann:secret") + "/next", false},
	} {
		for _, own := range []string{"", "Bearer of-the-caller"} {
			clear(got)
			target = c.target
			req, _ := http.NewRequest("GET", first.URL+"/start?token=1", nil)
			if own != "" {
				req.Header.Set("Authorization", own)
			}
			req.Header.Set("Cookie", "a=b")
			resp, err := g.Client("").Do(req)
			if err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
			resp.Body.Close()
			h := got[host(resp.Request.URL.String())]
			if h == nil {
				t.Fatalf("%s: ended at %s", c.what, resp.Request.URL)
			}
			want := ""
			switch {
			case c.want && own != "":
				want = own
			case c.want:
				want = basic(url.UserPassword("ann", "secret"))
			}
			if h.Get("Authorization") != want || (h.Get("Cookie") != "") != c.want || h.Get("Referer") != "" {
				t.Errorf("%s: Authorization %q (want %q), Cookie %q, Referer %q", c.what, h.Get("Authorization"), want, h.Get("Cookie"), h.Get("Referer"))
			}
			if resp.Request.URL.User != nil {
				t.Errorf("%s: the answer's URL is %s", c.what, resp.Request.URL)
			}
		}
	}
}

// A login is for the very origin that was typed: not for TLS on the same host,
// nor for another port or a name below.
func TestLoginIsForItsOriginOnly(t *testing.T) {
	g := New(Options{Reach: Reach{Origin: "http://up.example/", User: url.UserPassword("u", "p")}})
	for raw, want := range map[string]bool{
		"http://up.example/": true, "http://UP.example:80/x": true, "https://up.example/": false, "http://up.example:8080/": false,
		"http://sub.up.example/": false, "http://up.example.evil.example/": false, "http://down.example/": false,
	} {
		r := g.prepare(httptest.NewRequest("GET", raw, nil))
		if got := r.Header.Get("Authorization") != ""; got != want {
			t.Errorf("%s: credentials sent: %t", raw, got)
		}
	}
}

func TestNoSecretsInErrors(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		w.Write([]byte("short"))
	})
	typed := withUser(t, s.URL, "ann:secret") + "/x"
	u, _ := url.Parse(typed)
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL, User: u.User}})
	_, _, broken := get(g.Client(""), Plain(u))
	_, _, refused := get(newGuard(t, Options{}).Client(""), Plain(u))
	for _, err := range []error{broken, refused} {
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "ann") || !strings.Contains(err.Error(), s.URL+"/x") {
			t.Errorf("error %v", err)
		}
	}
}

// BenchmarkGet compares GETs of a small document over 32 connections with a
// plain http.Client that is tuned and reads its bodies to the end.
func BenchmarkGet(b *testing.B) {
	doc := noise(2000)
	zipped := gz(doc)
	s, _ := serve(b, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gzip" && r.Header.Get("Accept-Encoding") != "" {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(zipped)
			return
		}
		w.Write(doc)
	})
	tuned := &http.Transport{MaxIdleConnsPerHost: 32, DisableCompression: true}
	defer tuned.CloseIdleConnections()
	plainGzip := &http.Transport{MaxIdleConnsPerHost: 32}
	defer plainGzip.CloseIdleConnections()
	g := newGuard(b, Options{Reach: Reach{Origin: s.URL}, PerHost: 32, IdleTimeout: time.Minute})
	for _, c := range []struct {
		name   string
		client *http.Client
		path   string
	}{
		{"plain", &http.Client{Transport: tuned}, "/"},
		{"guarded", g.Client(""), "/"},
		{"plain-gzip", &http.Client{Transport: plainGzip}, "/gzip"},
		{"guarded-gzip", g.Client(""), "/gzip"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetParallelism(max(1, 32/runtime.GOMAXPROCS(0)))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := c.client.Get(s.URL + c.path)
					if err != nil {
						b.Error(err)
						return
					}
					if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(doc)) {
						b.Errorf("%d bytes, %v", n, err)
						return
					}
					resp.Body.Close()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "gets/s")
		})
	}
}
