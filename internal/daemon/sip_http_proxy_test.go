package daemon_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// TestSIPAccess_BehindAProxy: access by addresses goes by what a trusted proxy
// says, and by nothing that a caller writes.
func TestSIPAccess_BehindAProxy(t *testing.T) {
	const friend, stranger = "127.0.0.2", "127.0.0.3"
	set := sipSet("main", `access = "addresses"`, fmt.Sprintf("access_addresses = [%q]", friend))
	for name, c := range map[string]struct {
		key string
		// What each gets through the proxy.
		friend, stranger int
	}{
		"trusted":     {`trusted_proxies = ["127.0.0.1", "::1"]` + "\n", 202, 403},
		"not trusted": {"", 403, 403},
		"another":     {`trusted_proxies = ["127.0.0.4/30"]` + "\n", 403, 403},
	} {
		t.Run(name, func(t *testing.T) {
			h := newSIPBridge(t, c.key+set)
			to, err := url.Parse(h.base)
			if err != nil {
				t.Fatal(err)
			}
			proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
			t.Cleanup(proxy.Close)
			n := 0
			notify := func(want int, server, from string, claims ...string) {
				t.Helper()
				n++
				r, err := http.NewRequest(http.MethodPost, server+"/sip/main", strings.NewReader(notifyOf(sourceOf(fmt.Sprint(n))+rejectedFor("no"))))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", "text/xml")
				r.Header["X-Forwarded-For"] = claims
				transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}
				defer transport.CloseIdleConnections()
				res, err := transport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if res.StatusCode != want {
					t.Errorf("%s, which claims to be %q, gets %d from %s, want %d: %s", from, claims, res.StatusCode, server, want, readAll(t, res.Body))
				}
			}
			notify(c.friend, proxy.URL, friend)
			notify(c.friend, proxy.URL, friend, stranger)
			notify(c.stranger, proxy.URL, stranger)
			notify(c.stranger, proxy.URL, stranger, friend)
			notify(c.stranger, proxy.URL, stranger, friend, "127.0.0.1")
			notify(c.stranger, proxy.URL, stranger, "unknown", friend+",")
			// Past the proxy.
			notify(202, h.base, friend)
			notify(403, h.base, stranger, friend)
			if c.friend == 202 && !strings.Contains(h.said.String(), "client="+stranger+":0") {
				t.Error("the log does not tell the clients apart")
			}
		})
	}
}
