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
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/server"
)

// raw sends bytes as they are and reads one answer.
func (h *house) raw(request string) (reply, *bufio.Reader) {
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
	h := newHouse(t, "", nil).set("main", "Main", event.Mirror)
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
	h := newHouse(t, "/some where/é", nil).set("main", "Main", event.Mirror)
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
	h.ask(http.MethodGet, h.base+"x/healthz").want(t, 404)
	h.ask(http.MethodGet, h.base+h.base[len(root):]+"/healthz").want(t, 404)
}

func TestMethodsAndBodies(t *testing.T) {
	h := newHouse(t, "", nil).set("main", "Main", event.Mirror)
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"} {
		for _, path := range []string{"/", "/sets/main/changelist.xml", "/nothing"} {
			h.ask(method, h.base+path).want(t, 405).field(t, "Allow", "GET, HEAD")
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

func TestPanicIsOneAnswer(t *testing.T) {
	h := newHouse(t, "", func(o *server.Options) {
		o.Status = func(context.Context) ([]server.SetStatus, error) { panic("no such thing") }
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
	h := newHouse(t, "", func(o *server.Options) { o.Ready = func(context.Context) error { return why } })
	h.get("/readyz").want(t, 200)
	why = errors.New("the log is locked")
	if r := h.get("/readyz").want(t, 503).field(t, "Retry-After", "5"); !strings.Contains(r.body, "the log is locked") {
		t.Errorf("body %q", r.body)
	}
	h.get("/healthz").want(t, 200).field(t, "Content-Type", "text/plain; charset=utf-8")
}

// waits is a desk that tells when it is asked, and answers when it may.
func waits(inside, leave chan struct{}) desk {
	return func(w http.ResponseWriter, _ *http.Request, _ string) {
		inside <- struct{}{}
		<-leave
		w.WriteHeader(http.StatusOK)
	}
}

func TestRequestsOfOneAddress(t *testing.T) {
	const limit = 3
	inside, leave := make(chan struct{}), make(chan struct{})
	h := newHouse(t, "", func(o *server.Options) {
		o.Limits.PerAddress = limit
		withDesk(waits(inside, leave))(o)
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
	h := newHouse(t, "", nil)
	line := h.journal.expect("DEBUG request")
	h.get("/healthz?token=secret")
	if got := <-line; !strings.Contains(got, "path=/healthz status=200 bytes=3") || strings.Contains(got, "secret") {
		t.Errorf("log: %s", got)
	}
}
