package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
)

// raw sends bytes as they are and reads one answer.
func (h *testServer) raw(request string) (reply, *bufio.Reader) {
	h.t.Helper()
	c, err := net.Dial("tcp", h.web.Listener.Addr().String())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, request); err != nil {
		h.t.Fatal(err)
	}
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(body)}, br
}

func TestPathsAreExact(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	key := event.Key("urn:example:main:1")
	for _, target := range []string{
		"/sets/none", "/sets/", "/sets", "/sets//", "//", "//sets/main/", "/sets//main/", "/./healthz", "/healthz/", "/healthz/.", "/HEALTHZ",
		"/sets/main/capabilitylist.xml/", "/sets/main//capabilitylist.xml", "/sets/main/./capabilitylist.xml", "/sets/main/x/../capabilitylist.xml",
		"/sets/other/../main/capabilitylist.xml", "/sets/main/%63apabilitylist.xml", "/sets/main%2fcapabilitylist.xml", "/sets/main/records%2f" + key,
		"/sets/main/records/../../../../etc/passwd", "/sets/main/records/%2e%2e/%2e%2e/log.db", "/sets/main/records/..%2f..%2flog.db", "/..", "/../",
		"/sets/main/changelist/0.xml", "/sets/main/changelist/01.xml", "/sets/main/changelist/99.xml", "/sets/main/changelist/", "/sets/main/changelist/1.xml.sum",
		"/sets/..%00/", "/sets/main%00/", "/sets/%c0%ae%c0%ae/", "/sets/main/feed/3.atom", "/sets/main/feed/1.xml", "/sets/main/recent", "/sets/none/recent.rss", "/sets/main/resourcedump.xml", "/sip/main",
		"/api/v1/", "/metrics", "/.well-known/", "/favicon.ico", "/sets/:set/", "/sets/*", `/sets\main\`,
	} {
		r, _ := h.raw("GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		r.want(t, 404).field(t, "X-Content-Type-Options", "nosniff").field(t, "Content-Type", "text/plain; charset=utf-8").
			field(t, "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if !strings.Contains(r.body, h.base+"/.well-known/resourcesync") {
			t.Errorf("%s: the 404 does not help: %q", target, r.body)
		}
	}
	h.get("/sets/main/capabilitylist.xml?x=1").want(t, 200)
	h.get("/sets/main/records/"+key).want(t, 200)
}

func TestMount(t *testing.T) {
	h := newTestServer(t, "/some where/é", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	root := "http://" + h.web.Listener.Addr().String()
	record := recordPath("main", "urn:example:main:1", "")
	for _, path := range []string{"/", "/healthz", "/robots.txt", "/.well-known/resourcesync", "/sets/main/", "/sets/main/changelist.xml", record} {
		kept := h.ask(http.MethodGet, h.base+path).want(t, 200)
		stripped := h.ask(http.MethodGet, root+path).want(t, 200)
		if kept.body != stripped.body {
			t.Errorf("%s answers differently under the path of the base URL", path)
		}
	}
	h.ask(http.MethodGet, h.base).want(t, 308).field(t, "Location", "/some%20where/%C3%A9/")
	h.ask(http.MethodGet, h.base+"/sets/main").want(t, 301).field(t, "Location", "/some%20where/%C3%A9/sets/main/")
	h.ask(http.MethodGet, h.base+"x/healthz").want(t, 404)
	h.ask(http.MethodGet, h.base+h.base[len(root):]+"/healthz").want(t, 404)
}

func TestMethodsAndBodies(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"} {
		for _, path := range []string{"/", "/sets/main/changelist.xml", "/nothing"} {
			h.ask(method, h.base+path).want(t, 405).field(t, "Allow", "GET, HEAD")
		}
	}
	for _, target := range []string{"http://localhost", "http://localhost/", "http://localhost?from=0"} {
		r, _ := h.raw("GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		if r.status != 200 || !strings.Contains(r.body, "<h1>bridge</h1>") {
			t.Errorf("GET %s: %d\n%s", target, r.status, r.body)
		}
	}
	r, _ := h.raw("OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	if r.status == 500 {
		t.Error("OPTIONS * is a fault")
	}
	for _, body := range []string{"Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "Content-Length: 999999999999\r\n\r\nx"} {
		r, rest := h.raw("GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + body)
		r.want(t, 413)
		if _, err := rest.ReadByte(); err == nil {
			t.Error("the connection goes on after a body that nobody read")
		}
	}
}

// Addresses under a former name of a set lead to its present one, by a redirect that no cache
// keeps: 301, or 308 where something may be sent. A message to its SIP service is taken there.
// All others are answered as ever.
func TestFormerNames(t *testing.T) {
	h := newTestServer(t, "/some%20where", func(o *server.Options) {
		o.Moved = func(name string) string { return map[string]string{"maps": "charts"}[name] }
		o.SIPService = func(set string) server.SIPService {
			if set != "charts" {
				return nil
			}
			return func(w http.ResponseWriter, _ *http.Request, token string) {
				w.Header().Set("Token", token)
				w.WriteHeader(http.StatusAccepted)
			}
		}
	}).set("charts", "Charts", event.Mirror)
	for _, row := range []struct {
		method, path string
		status       int
		to           string
	}{
		{"GET", "/sets/maps", 301, "/sets/charts"}, {"GET", "/sets/maps/", 301, "/sets/charts/"},
		{"HEAD", "/sets/maps/changelist.xml?x=1&y", 301, "/sets/charts/changelist.xml?x=1&y"},
		{"GET", "/sets/maps/oai?verb=Identify", 301, "/sets/charts/oai?verb=Identify"}, {"POST", "/sets/maps/oai", 308, "/sets/charts/oai"},
		{"GET", "/sip/maps?wsdl", 301, "/sip/charts?wsdl"}, {"POST", "/sip/maps/t0k-en", 202, ""}, {"PUT", "/sip/maps/t0k-en", 308, "/sip/charts/t0k-en"},
		{"POST", "/sets/maps/", 405, ""}, {"GET", "/sets/map%73/", 404, ""}, {"GET", "/sets/", 404, ""}, {"GET", "/sets/mapsx/", 404, ""}, {"GET", "/maps/", 404, ""},
		{"GET", "/sets/charts/", 200, ""}, {"POST", "/sip/none", 404, ""},
	} {
		r := h.ask(row.method, h.base+row.path).want(t, row.status)
		if row.to != "" {
			r.field(t, "Location", "/some%20where"+row.to).field(t, "Cache-Control", "no-cache")
		} else {
			r.field(t, "Location", "")
		}
		if row.status == http.StatusAccepted {
			r.field(t, "Token", "t0k-en")
		}
	}
	if log := strings.Join(h.journal.at(slog.LevelDebug), "\n"); strings.Contains(log, "t0k-en") || !strings.Contains(log, "path=/some where/sip/maps/***") {
		t.Errorf("log: %s", log)
	}
}

// Hubs and the console are answered by others, whatever the method; what is below their paths
// is nobody else's, and each answer is counted under its route.
func TestCallbackAndConsole(t *testing.T) {
	var mu sync.Mutex
	var routes []string
	h := newTestServer(t, "/here", func(o *server.Options) {
		o.Callback = tells
		o.Console = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tells(w, r, "console") })
		o.Answered = func(route string, status int, _ time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			routes = append(routes, fmt.Sprint(route, " ", status))
		}
	})
	for _, row := range []struct{ method, path, body, route string }{
		{"GET", "/websub/t0k-en?hub.mode=subscribe", `GET "t0k-en" /websub/t0k-en?hub.mode=subscribe `, "/websub/:token 200"},
		{"DELETE", "/websub/", `DELETE "" /websub/ `, "/websub/:token 200"},
		{"GET", "/console", `GET "console" /console `, "/console 200"},
		{"PUT", "/console/sets/main", `PUT "console" /console/sets/main `, "/console 200"},
		{"GET", "/api/v1/status", `GET "console" /api/v1/status `, "/console 200"},
		{"GET", "/healthz", "ok\n", "/healthz 200"},
		{"GET", "/consoles", "", "other 404"}, {"GET", "/api", "", "other 404"}, {"POST", "/sets/main/", "", "other 405"}, {"GET", "/sets/none/", "", "/sets/:set/ 404"},
	} {
		mu.Lock()
		routes = nil
		mu.Unlock()
		ended := h.journal.expect("DEBUG request")
		r := h.ask(row.method, h.base+row.path)
		<-ended
		mu.Lock()
		if row.body != "" && r.body != row.body || !slices.Equal(routes, []string{row.route}) {
			t.Errorf("%s %s: %q, counted as %q, want %q as %q", row.method, row.path, r.body, routes, row.body, row.route)
		}
		mu.Unlock()
	}
	if r, _ := h.raw("POST /websub/t0k-en HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"); r.body != `POST "t0k-en" /websub/t0k-en hello` {
		t.Errorf("a push: %q", r.body)
	}
	for _, path := range []string{"/websub/t0k-en", "/console", "/api/v1/status"} {
		newTestServer(t, "", nil).get(path).want(t, 404)
	}
}

func TestPanicIsOneAnswer(t *testing.T) {
	h := newTestServer(t, "", func(o *server.Options) {
		o.Status = func(context.Context) ([]status.Set, error) { panic("no such thing") }
	}).set("main", "Main", event.Mirror)
	h.get("/").want(t, 500)
	h.get("/sets/main/").want(t, 500)
	h.get("/healthz").want(t, 200)
	lines := h.journal.at(slog.LevelError)
	if len(lines) != 2 || !strings.Contains(lines[0], "no such thing") || !strings.Contains(lines[0], "pages.go") {
		t.Errorf("log: %q", lines)
	}
}

func TestReady(t *testing.T) {
	var why error
	h := newTestServer(t, "", func(o *server.Options) { o.Ready = func(context.Context) error { return why } })
	h.get("/readyz").want(t, 200)
	why = errors.New("the log is locked")
	if r := h.get("/readyz").want(t, 503).field(t, "Retry-After", "5"); !strings.Contains(r.body, "the log is locked") {
		t.Errorf("body %q", r.body)
	}
	h.get("/healthz").want(t, 200).field(t, "Content-Type", "text/plain; charset=utf-8")
}

// waits is a service that tells when it is asked, and answers when it may.
func waits(inside, leave chan struct{}) server.SIPService {
	return func(w http.ResponseWriter, _ *http.Request, _ string) {
		inside <- struct{}{}
		<-leave
		w.WriteHeader(http.StatusOK)
	}
}

func TestRequestsOfOneAddress(t *testing.T) {
	const limit = 3
	inside, leave := make(chan struct{}), make(chan struct{})
	h := newTestServer(t, "", func(o *server.Options) {
		o.Limits.PerAddress = limit
		withSIP(waits(inside, leave))(o)
	})
	ended := make(chan error, limit)
	for range limit {
		go func() {
			res, err := h.web.Client().Get(h.base + "/sip/main")
			if err == nil {
				res.Body.Close()
				if res.StatusCode != 200 {
					err = fmt.Errorf("status %d", res.StatusCode)
				}
			}
			ended <- err
		}()
		<-inside
	}
	h.get("/robots.txt").want(t, 429).field(t, "Retry-After", "1")
	// What is refused is no request under way.
	h.get("/robots.txt").want(t, 429)
	close(leave)
	for range limit {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	h.get("/robots.txt").want(t, 200)
}

func TestAccessLog(t *testing.T) {
	h := newTestServer(t, "", nil)
	line := h.journal.expect("DEBUG request")
	h.get("/healthz?token=secret")
	if got := <-line; !strings.Contains(got, "path=/healthz status=200 bytes=3") || strings.Contains(got, "secret") {
		t.Errorf("log: %s", got)
	}
}

// counted returns whom a request counts as coming from, by its connection and
// its X-Forwarded-For lines.
func counted(t interface{ Fatalf(string, ...any) }, proxies []netip.Prefix, from string, lines ...string) string {
	var seen string
	service := func(w http.ResponseWriter, r *http.Request, _ string) {
		seen = r.RemoteAddr
		w.WriteHeader(http.StatusAccepted)
	}
	s := server.New(server.Options{BaseURL: "http://bridge.example", Proxies: proxies, SIPService: func(string) server.SIPService { return service }})
	r := httptest.NewRequest(http.MethodPost, "/sip/main", nil)
	r.RemoteAddr = from
	if lines != nil {
		r.Header["X-Forwarded-For"] = lines
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	if rec.Code != http.StatusAccepted || r.RemoteAddr != from {
		t.Fatalf("status %d, and the server's own request is from %s", rec.Code, r.RemoteAddr)
	}
	return seen
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func TestForwardedFor(t *testing.T) {
	ours := prefixes("127.0.0.1/32", "::1/128", "10.0.0.0/8", "fd00::/8")
	const proxy = "127.0.0.1:4711"
	for _, c := range []struct {
		from  string
		lines []string
		want  string
	}{
		{proxy, nil, proxy},
		{proxy, []string{""}, proxy},
		{proxy, []string{"203.0.113.7"}, "203.0.113.7:0"},
		{proxy, []string{" 203.0.113.7\t"}, "203.0.113.7:0"},
		{"[::1]:4711", []string{"2001:db8::7"}, "[2001:db8::7]:0"},
		{"[::ffff:127.0.0.1]:4711", []string{"203.0.113.7"}, "203.0.113.7:0"},
		{"[fd00::1%eth0]:4711", []string{"203.0.113.7"}, "203.0.113.7:0"},

		// With a port, with brackets, in another form.
		{proxy, []string{"203.0.113.7:99"}, "203.0.113.7:99"},
		{proxy, []string{"[2001:db8::7]:99"}, "[2001:db8::7]:99"},
		{proxy, []string{"[2001:db8::7]"}, "[2001:db8::7]:0"},
		{proxy, []string{"2001:DB8:0::7"}, "[2001:db8::7]:0"},
		{proxy, []string{"2001:db8::7:99"}, "[2001:db8::7:99]:0"},
		{proxy, []string{"::ffff:203.0.113.7"}, "203.0.113.7:0"},
		{proxy, []string{"fe80::7%eth0"}, "[fe80::7]:0"},

		// Who calls a trusted proxy is believed no further.
		{proxy, []string{"192.0.2.1, 203.0.113.7"}, "203.0.113.7:0"},
		{proxy, []string{"192.0.2.1", "203.0.113.7"}, "203.0.113.7:0"},
		{proxy, []string{"127.0.0.1, 10.0.0.1, 203.0.113.7"}, "203.0.113.7:0"},
		{proxy, []string{"unknown, 203.0.113.7"}, "203.0.113.7:0"},

		// Through several of ours.
		{proxy, []string{"192.0.2.1, 203.0.113.7, 10.1.2.3"}, "203.0.113.7:0"},
		{proxy, []string{"192.0.2.1,203.0.113.7", "10.1.2.3,[fd00::1]:5", "::1"}, "203.0.113.7:0"},
		{proxy, []string{"203.0.113.7", "::ffff:10.1.2.3"}, "203.0.113.7:0"},
		{proxy, []string{"10.9.9.9, 10.1.2.3"}, "10.9.9.9:0"}, // one of our own

		// Something else ends the walk at the last good one.
		{proxy, []string{"203.0.113.7, unknown"}, proxy},
		{proxy, []string{"203.0.113.7,"}, proxy},
		{proxy, []string{"203.0.113.7", ""}, proxy},
		{proxy, []string{"203.0.113.7, , 10.1.2.3"}, "10.1.2.3:0"},
		{proxy, []string{"203.0.113.7, _hidden, 10.1.2.3"}, "10.1.2.3:0"},
		{proxy, []string{"localhost"}, proxy},
		{proxy, []string{"203.0.113.7:"}, proxy},
		{proxy, []string{"203.0.113.7:70000"}, proxy},
		{proxy, []string{"203.0.113.256"}, proxy},
		{proxy, []string{"203.0.113.07"}, proxy},
		{proxy, []string{"[203.0.113.7]"}, proxy},
		{proxy, []string{"[2001:db8::7"}, proxy},
		{proxy, []string{"2001:db8::7]"}, proxy},
		{proxy, []string{"203.0.113.0/24"}, proxy},
		{proxy, []string{"203.0.113.7 10.1.2.3"}, proxy},
		{proxy, []string{`"203.0.113.7"`}, proxy},

		// Everybody else may write what he likes.
		{"203.0.113.9:4711", []string{"192.0.2.1"}, "203.0.113.9:4711"},
		{"203.0.113.9:4711", []string{"127.0.0.1"}, "203.0.113.9:4711"},
		{"127.0.0.2:4711", []string{"192.0.2.1"}, "127.0.0.2:4711"},
		{"[2001:db8::9]:4711", []string{"::1"}, "[2001:db8::9]:4711"},
		{"@", []string{"192.0.2.1"}, "@"},
	} {
		if got := counted(t, ours, c.from, c.lines...); got != c.want {
			t.Errorf("%s with %q counts as %s, want %s", c.from, c.lines, got, c.want)
		}
		if got := counted(t, nil, c.from, c.lines...); got != c.from {
			t.Errorf("without proxies %s with %q counts as %s", c.from, c.lines, got)
		}
	}
}

// Whatever a client writes, and through however many of our proxies it comes in
// whatever form they write it, it counts as itself.
func TestForwardedForCannotBeForged(t *testing.T) {
	ours := prefixes("10.0.0.0/8", "fd00::/8")
	address := func(v4, v6 string) *rapid.Generator[netip.Addr] {
		return rapid.Custom(func(t *rapid.T) netip.Addr {
			n := rapid.IntRange(1, 0xffff).Draw(t, "host")
			if rapid.Bool().Draw(t, "six") {
				return netip.MustParseAddr(fmt.Sprintf("%s%x", v6, n))
			}
			return netip.MustParseAddr(fmt.Sprintf("%s%d.%d", v4, n>>8, n&0xff))
		})
	}
	client, proxy := address("203.0.", "2001:db8::"), address("10.1.", "fd00::")
	written := rapid.Custom(func(t *rapid.T) string {
		return rapid.OneOf(rapid.Map(client, netip.Addr.String), rapid.Map(proxy, netip.Addr.String),
			rapid.SampledFrom([]string{"unknown", "", ",", "10.1.0.1:", "[fd00::1", " ", "10.1.0.1,"}), rapid.StringMatching(`[ -~]{0,20}`)).Draw(t, "written")
	})
	rapid.Check(t, func(t *rapid.T) {
		caller := client.Draw(t, "client")
		lines := rapid.SliceOfN(written, 0, 4).Draw(t, "lines of the client")
		from := caller
		for range rapid.IntRange(1, 4).Draw(t, "proxies") {
			entry := from.String()
			switch {
			case rapid.Bool().Draw(t, "with a port"):
				entry = netip.AddrPortFrom(from, 99).String()
			case from.Is6() && rapid.Bool().Draw(t, "in brackets"):
				entry = "[" + entry + "]"
			case from.Is4() && rapid.Bool().Draw(t, "in IPv6's form"):
				entry = "::ffff:" + entry
			}
			if n := len(lines); n > 0 && rapid.Bool().Draw(t, "in the same line") {
				lines[n-1] += ", " + entry
			} else {
				lines = append(lines, entry)
			}
			from = proxy.Draw(t, "proxy")
		}
		got := counted(t, ours, netip.AddrPortFrom(from, 4711).String(), lines...)
		if ap, err := netip.ParseAddrPort(got); err != nil || ap.Addr() != caller {
			t.Fatalf("%s counts as %s, with %q", caller, got, lines)
		}
		if direct := netip.AddrPortFrom(caller, 4711).String(); counted(t, ours, direct, lines...) != direct {
			t.Fatalf("%s is believed", caller)
		}
	})
}

// callFrom is a client whose connections come from an address of loopback.
func callFrom(t *testing.T, address string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: d.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestRequestsThroughAProxyAreCountedApart(t *testing.T) {
	for _, trusted := range []bool{true, false} {
		inside, leave := make(chan struct{}), make(chan struct{})
		h := newTestServer(t, "", func(o *server.Options) {
			o.Limits.PerAddress = 1
			withSIP(waits(inside, leave))(o)
			if trusted {
				o.Proxies = prefixes("127.0.0.1/32")
			}
		})
		to, err := url.Parse(h.base)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(to)) // it adds to what it was sent
		t.Cleanup(proxy.Close)
		ask := func(from, path, claim string) (int, error) {
			r, err := http.NewRequest(http.MethodGet, proxy.URL+path, nil)
			if err != nil {
				return 0, err
			}
			if claim != "" {
				r.Header.Set("X-Forwarded-For", claim)
			}
			res, err := callFrom(t, from).Do(r)
			if err != nil {
				return 0, err
			}
			defer res.Body.Close()
			_, err = io.Copy(io.Discard, res.Body)
			return res.StatusCode, err
		}
		want := func(status int, from, claim string) {
			t.Helper()
			if got, err := ask(from, "/robots.txt", claim); err != nil || got != status {
				t.Errorf("proxy trusted %t: %s, which claims to be %q, gets %d, want %d: %v", trusted, from, claim, got, status, err)
			}
		}
		ended := make(chan error, 1)
		go func() {
			status, err := ask("127.0.0.2", "/sip/main", "")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d", status)
			}
			ended <- err
		}()
		<-inside
		want(http.StatusTooManyRequests, "127.0.0.2", "")
		want(http.StatusTooManyRequests, "127.0.0.2", "127.0.0.3")
		others := http.StatusTooManyRequests // with the one address that is seen
		if trusted {
			others = http.StatusOK
		}
		line := h.journal.expect("path=/robots.txt")
		want(others, "127.0.0.3", "")
		if trusted && !strings.HasSuffix(<-line, " client=127.0.0.3:0") {
			t.Error("the access log has another client")
		}
		want(others, "127.0.0.3", "127.0.0.2")
		close(leave)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want(http.StatusOK, "127.0.0.2", "")
	}
}
