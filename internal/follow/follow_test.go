package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/defect"
)

// serve is a server on loopback; the path says what it answers.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func newClient(t *testing.T, o Options) *Client {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A file is asked for as it is stored, and from an offset on only where it is still the
// same.
func TestGetFile(t *testing.T) {
	const whole = "0123456789"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("Accept-Encoding %q", got)
		}
		switch r.URL.Path {
		case "/elsewhere":
			w.Header().Set("Content-Range", "bytes 1-9/10")
			w.WriteHeader(http.StatusPartialContent)
		case "/unasked":
			w.WriteHeader(http.StatusPartialContent)
		case "/gone":
			http.NotFound(w, r)
		default:
			w.Header().Set("ETag", `"1"`)
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(whole))
		}
	}))
	defer server.Close()
	c, err := New(Options{Start: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, tag string
		offset    int64
		want      string // the answer's Offset and body; "" is an error
	}{
		{"/", "", 0, "0 " + whole},
		{"/", `"1"`, 4, "4 456789"},
		{"/", `"2"`, 4, "0 " + whole},
		{"/", `"1"`, 99, ""},
		{"/elsewhere", `"1"`, 4, ""},
		{"/unasked", "", 0, ""},
		{"/gone", `"1"`, 4, ""},
	} {
		a, err := c.GetFile(t.Context(), server.URL+tt.path, Validators{ETag: tt.tag}, tt.offset)
		got := ""
		if err == nil {
			body, _ := io.ReadAll(a.Body)
			got = fmt.Sprintf("%d %s", a.Offset, body)
			a.Close()
		}
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s from %d with %s: %q, %v; want %q", tt.path, tt.offset, tt.tag, got, err, tt.want)
		}
	}
	if _, err := c.GetFile(t.Context(), server.URL+"/", Validators{ETag: `"1"`}, 0); Status(err) != http.StatusNotModified {
		t.Errorf("conditionally: %v", err)
	}
}

func TestStart(t *testing.T) {
	for _, start := range []string{"", "feed", "ftp://example.org/feed", "mailto:x@example.org", ":"} {
		if _, err := New(Options{Start: start}); err == nil {
			t.Errorf("%q is a start", start)
		}
	}
}

func TestAllowed(t *testing.T) {
	const web, local = "https://a.example/dir/list.xml", "file:///data/in/list.xml"
	for _, tt := range []struct {
		start, to string
		allow     bool // every host but a.example
		ok        bool
	}{
		{web, "https://a.example/x", false, true},
		{web, "http://A.EXAMPLE:8080/x", false, true},
		{"https://Bücher.example/list.xml", "https://xn--bcher-kva.example/x", false, true},
		{"https://xn--bcher-kva.example/list.xml", "https://bücher.example./x", false, true},
		{web, "https://b.example/x", false, false},
		{web, "https://b.example/x", true, true},
		{web, "https://a.example.evil.example/x", false, false},
		{web, "https://a.example@evil.example/x", false, false},
		{web, "file:///etc/passwd", true, false},
		{web, "ftp://a.example/x", true, false},
		{web, "javascript:alert(1)", true, false},
		{web, "relative", true, false},
		{web, ":", true, false},
		{local, "file:///data/in/parts/1.xml", false, true},
		{local, "file:///data/in/../in/1.xml", false, true},
		{local, "file:///data/other.xml", true, false},
		{local, "file:///data/in/../other.xml", true, false},
		{local, "file:///data/in/%2e%2e/other.xml", true, false},
		{local, "file:///data/inner/1.xml", true, false},
		{local, "file://host/data/in/1.xml", true, false},
		{local, "https://a.example/x", false, false},
		{local, "https://b.example/x", true, true},
		{"http://a.example/", "http://a.example/" + strings.Repeat("x", 8000), false, true},
		{"http://a.example/", "http://a.example/" + strings.Repeat("x", 8<<10), true, false}, // D60
	} {
		c := newClient(t, Options{Start: tt.start, AllowHost: func(host string) bool { return tt.allow && host != "a.example" }})
		err := c.Allowed(tt.to)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, ErrRefused) {
			t.Errorf("%s to %s: %v", tt.start, tt.to, err)
		}
	}
}

// A scheme may be in capitals (RFC 3986 3.1).
func TestForeign(t *testing.T) {
	for _, c := range []struct {
		document, link string
		want           bool
	}{
		{"https://a.example/feed", "file:///etc/passwd", true},
		{"https://a.example/feed", "FILE:///etc/passwd", true},
		{"https://a.example/feed", "https://a.example/file:1", false},
		{"file:///data/in/feed.atom", "File:///data/in/1.xml", false},
	} {
		if got := Foreign(c.document, c.link); got != c.want {
			t.Errorf("%s in %s: %t, want %t", c.link, c.document, got, c.want)
		}
	}
}

func TestGet(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/doc", http.StatusFound)
		case r.Header.Get("If-None-Match") == `"1"`, r.Header.Get("If-Modified-Since") == "then":
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Last-Modified", "then")
			w.Header().Set("Date", "Fri, 03 Jan 2020 10:00:00 GMT")
			_, _ = io.WriteString(w, r.Header.Get("Accept"))
		}
	})
	c := newClient(t, Options{Start: s.URL, Accept: "a/b"})
	a, err := c.Get(t.Context(), s.URL+"/moved", Validators{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil || string(body) != "a/b" {
		t.Errorf("body %q, %v", body, err)
	}
	date := time.Date(2020, 1, 3, 10, 0, 0, 0, time.UTC)
	if a.Requested != s.URL+"/moved" || a.URL != s.URL+"/doc" || !a.Date.Equal(date) {
		t.Errorf("%+v", a)
	}
	if a.Late(date.Add(999*time.Millisecond)) || !a.Late(date.Add(time.Second)) {
		t.Error("Late does not go by the second of Date")
	}
	for _, v := range []Validators{a.Validators, {ETag: `"1"`}, {LastModified: "then"}} {
		if _, err := c.Get(t.Context(), s.URL+"/doc", v); Status(err) != http.StatusNotModified {
			t.Errorf("%+v: %v", v, err)
		}
	}
}

// What makes a request conditional is of the document that answered (RFC 9110 8.8): where a redirect
// leads elsewhere by now, or not any more, an older file or another one of the same version there is
// a change.
func TestConditionsAreOfTheDocument(t *testing.T) {
	var to atomic.Value
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if to := to.Load().(string); r.URL.Path == "/the feed" && to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		times := map[string]string{"/a": "2026-01-02", "/b": "2026-01-01"}
		if at, err := time.Parse(time.DateOnly, times[r.URL.Path]); err == nil {
			http.ServeContent(w, r, "", at, strings.NewReader(r.URL.Path))
			return
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(r.URL.Path))
	})
	var v Validators
	for _, step := range []struct{ to, want string }{
		{"/a", "/a"}, {"/a", "304"}, {"/b", "/b"}, {"/b", "304"}, {"/hop", "/hop"}, {"/hop", "304"}, {"", "/the feed"}, {"", "304"}, {"/other", "/other"},
	} {
		to.Store(step.to)
		a, err := newClient(t, Options{Start: s.URL}).Get(t.Context(), s.URL+"/the feed", v)
		got := fmt.Sprint(Status(err))
		if err == nil {
			body, _ := io.ReadAll(a.Body)
			a.Close()
			got, v = string(body), a.Validators
		}
		if got != step.want {
			t.Errorf("redirected to %q: %s, want %s", step.to, got, step.want)
		}
	}
}

// A document that was written in the second of its answer may be written again within it, which
// its Last-Modified does not show.
func TestNoConditionOfTheSameSecond(t *testing.T) {
	at := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	text, now := "one", at
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", now.Format(http.TimeFormat))
		http.ServeContent(w, r, "", at, strings.NewReader(text))
	})
	c := newClient(t, Options{Start: s.URL, Now: func() time.Time { return now }})
	var v Validators
	for n, want := range []string{"one", "two", "304"} {
		a, err := c.Get(t.Context(), s.URL, v)
		got := fmt.Sprint(Status(err))
		if err == nil {
			body, _ := io.ReadAll(a.Body)
			a.Close()
			got, v = string(body), a.Validators
		}
		if got != want {
			t.Errorf("request %d: %s, want %s", n, got, want)
		}
		text, now = "two", now.Add(time.Minute)
	}
}

// A Last-Modified in the future, of a server whose clock was ahead or of a file with a wrong time, is
// no condition until that time has come: many servers answer 304 to it whatever has changed.
func TestNoConditionInTheFuture(t *testing.T) {
	now := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	written := now.AddDate(1, 0, 0)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", written, strings.NewReader("text"))
	})
	c := newClient(t, Options{Start: s.URL, Now: func() time.Time { return now }})
	a, err := c.Get(t.Context(), s.URL, Validators{})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	written = now // the file was replaced, or the clock set
	if again, err := c.Get(t.Context(), s.URL, a.Validators); err != nil {
		t.Errorf("a year early: %v", err)
	} else {
		again.Close()
	}
	now = now.AddDate(1, 0, 1)
	if _, err := c.Get(t.Context(), s.URL, a.Validators); Status(err) != http.StatusNotModified {
		t.Errorf("a year later: %v", err)
	}
}

// D50: what the operator typed, and the well-known places of its host, may be
// redirected to other hosts, which links may lead to from then on; other
// documents may not. D75: no redirect leads to a file.
func TestRedirectsOfWhatWasTyped(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
		}
		if strings.HasSuffix(r.URL.Path, "resourcesync") && strings.HasPrefix(r.Host, "127.") {
			http.Redirect(w, r, "http://"+strings.Replace(r.Host, "127.0.0.1", "third.localhost", 1)+"/", http.StatusFound)
		}
	})
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	local := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	other := strings.Replace(s.URL, "127.0.0.1", "other.localhost", 1)
	get := func(c *Client, to string) error {
		a, err := c.Get(t.Context(), to, Validators{})
		if err == nil {
			a.Close()
		}
		return err
	}
	start := s.URL + "/start?to=" + other + "/feed"
	c := newClient(t, Options{HTTP: local, Start: start})
	if err := get(c, other+"/archive"); !errors.Is(err, ErrRefused) {
		t.Errorf("a link to another host: %v", err)
	}
	if err := get(c, s.URL+"/archive?to="+other+"/x"); !errors.Is(err, ErrRefused) {
		t.Errorf("a redirect of another document: %v", err)
	}
	for _, to := range []string{start, other + "/archive", s.URL + "/archive?to=" + other + "/x", s.URL + "/.well-known/resourcesync"} {
		if err := get(c, to); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	if got := c.Hosts(); len(got) != 2 || got[0] != "other.localhost" || got[1] != "third.localhost" {
		t.Errorf("led to %q", got)
	}
	again := newClient(t, Options{HTTP: local, Start: start, Hosts: c.Hosts()})
	if err := get(again, other+"/archive"); err != nil {
		t.Errorf("where it has led to before: %v", err)
	}
	files := newClient(t, Options{HTTP: local, Start: "file:///data/in/feed.atom", AllowHost: func(string) bool { return true }})
	if err := get(files, s.URL+"/x?to=file:///data/in/x"); !errors.Is(err, ErrRefused) {
		t.Errorf("a redirect to a file: %v", err)
	}
	for n := range maxHosts + 1 {
		err := get(c, fmt.Sprintf("%s/robots.txt?to=http://n%d.localhost:%s/", s.URL, n, s.URL[strings.LastIndexByte(s.URL, ':')+1:]))
		if wanted := n < maxHosts-2; (err == nil) != wanted {
			t.Errorf("host %d: %v", n+3, err)
		}
	}
}

// An answer without Date is dated by the clock that was handed in, exactly.
func TestClock(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil })
	now := time.Date(2020, 1, 3, 10, 0, 0, 500, time.FixedZone("", 3600))
	c := newClient(t, Options{Start: s.URL, Now: func() time.Time { return now }})
	a, err := c.Get(t.Context(), s.URL, Validators{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Date != now.UTC() || a.Late(now) || !a.Late(now.Add(1)) {
		t.Errorf("date %v", a.Date)
	}
}

func TestStatus(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		status := 0
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.WriteHeader(status)
	})
	c := newClient(t, Options{Start: s.URL})
	for status, say := range map[int]string{
		204: "want 200", 304: "unconditional", 401: "credentials", 403: "credentials", 404: "check the URL",
		407: "credentials", 410: "check the URL", 429: "later", 500: "later", 503: "later",
	} {
		_, err := c.Get(t.Context(), fmt.Sprint(s.URL, "/", status), Validators{})
		if Status(err) != status || !strings.Contains(err.Error(), say) || !strings.Contains(err.Error(), s.URL) {
			t.Errorf("%d: %v", status, err)
		}
		if gone := status == 404 || status == 410; Missing(err) != gone {
			t.Errorf("%d: missing %v", status, !gone)
		}
	}
	if err := errors.New("x"); Status(err) != 0 || Missing(err) || Missing(nil) {
		t.Error("an error without a status has one")
	}
}

func TestRedirects(t *testing.T) {
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) {})
	other := strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := 0
		switch _, err := fmt.Sscanf(r.URL.Path, "/%d", &n); {
		case err != nil:
			http.Redirect(w, r, other, http.StatusFound)
		case n > 0:
			http.Redirect(w, r, fmt.Sprintf("/%d", n-1), http.StatusFound)
		}
	})
	for path, ok := range map[string]bool{"/5": true, "/6": false, "/out": false} {
		a, err := newClient(t, Options{Start: s.URL}).Get(t.Context(), s.URL+path, Validators{})
		if ok != (err == nil) {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			a.Close()
		}
	}
	_, err := newClient(t, Options{Start: s.URL}).Get(t.Context(), s.URL+"/out", Validators{})
	if !errors.Is(err, ErrRefused) {
		t.Errorf("a redirect to another host: %v", err)
	}
	inner := errors.New("inner")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return inner }}
	if _, err := newClient(t, Options{HTTP: client, Start: s.URL}).Get(t.Context(), s.URL+"/1", Validators{}); !errors.Is(err, inner) {
		t.Errorf("the client's own check was not asked: %v", err)
	}
}

// What is asked for ahead is asked for once, and is dropped when something else
// is wanted.
func TestAhead(t *testing.T) {
	var asked atomic.Int32
	arrived, gone := make(chan string, 10), make(chan string, 10)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		arrived <- r.URL.Path
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			gone <- r.URL.Path
			return
		}
		_, _ = io.WriteString(w, "body")
	})
	c := newClient(t, Options{Start: s.URL})
	get := func(path string) {
		t.Helper()
		a, err := c.Get(t.Context(), s.URL+path, Validators{})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if body, err := io.ReadAll(a.Body); string(body) != "body" || err != nil {
			t.Errorf("%s: %q, %v", path, body, err)
		}
	}
	c.Ahead(t.Context(), s.URL+"/1", Validators{})
	<-arrived
	get("/1")
	if n := asked.Load(); n != 1 {
		t.Errorf("%d requests for one document", n)
	}
	c.Ahead(t.Context(), s.URL+"/slow", Validators{})
	<-arrived
	get("/2")
	<-gone
	c.Ahead(t.Context(), s.URL+"/slow", Validators{})
	c.Close()
	c.Ahead(t.Context(), "https://other.example/", Validators{})
	if _, err := c.Get(t.Context(), "https://other.example/", Validators{}); !errors.Is(err, ErrRefused) {
		t.Errorf("ahead to another host: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.Ahead(ctx, s.URL+"/slow", Validators{})
	cancel()
	if _, err := c.Get(t.Context(), s.URL+"/slow", Validators{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context ended: %v", err)
	}
}

func TestKey(t *testing.T) {
	for raw, want := range map[string]string{"https://a.example/x#y": "https://a.example/x", "https://a.example/x?y": "https://a.example/x?y", ":#": ":#"} {
		if got := Key(raw); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("a defect") }

// D75: a panic in a request that is made ahead is an error of who wants its answer.
func TestPanicAhead(t *testing.T) {
	const start = "http://a.example/feed"
	c := newClient(t, Options{Start: start, HTTP: &http.Client{Transport: panics{}}})
	c.Ahead(t.Context(), start, Validators{})
	var found *defect.Error
	if _, err := c.Get(t.Context(), start, Validators{}); !errors.As(err, &found) {
		t.Errorf("got %v", err)
	}
}

// What was asked for ahead is asked for again when it has waited too long, be it an answer or an
// error; but a query, which may be answered only once, only after an error.
func TestAheadLongAgo(t *testing.T) {
	for _, tt := range []struct {
		name     string
		status   int // of the first answer
		waited   time.Duration
		queries  bool
		requests int64
		want     int // status in the end
	}{
		{"an answer", 200, aheadFor, false, 1, 200},
		{"an answer, long ago", 200, aheadFor + 1, false, 2, 200},
		{"an answer to a query, long ago", 200, aheadFor + 1, true, 1, 200},
		{"an error", 503, aheadFor, false, 1, 503},
		{"an error, long ago", 503, aheadFor + 1, false, 2, 200},
		{"an error of a query, long ago", 503, aheadFor + 1, true, 2, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var requests, late atomic.Int64
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if requests.Add(1) == 1 {
					w.WriteHeader(tt.status)
				}
			})
			began := time.Now()
			c := newClient(t, Options{Start: s.URL, Queries: tt.queries, Now: func() time.Time { return began.Add(time.Duration(late.Load())) }})
			c.Ahead(t.Context(), s.URL, Validators{})
			<-c.ahead.done
			late.Store(int64(tt.waited))
			a, err := c.Get(t.Context(), s.URL, Validators{})
			status := Status(err)
			if err == nil {
				status = a.Status
				a.Close()
			}
			if status != tt.want || requests.Load() != tt.requests {
				t.Errorf("status %d after %d requests, want %d after %d", status, requests.Load(), tt.want, tt.requests)
			}
		})
	}
}

// A mark is no later than the Client's clock, whatever the server's says.
func TestMark(t *testing.T) {
	now := time.Date(2026, 1, 3, 10, 0, 0, 0, time.UTC)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", now.Add(time.Hour).Format(http.TimeFormat))
	})
	c := newClient(t, Options{Start: s.URL, Now: func() time.Time { return now }})
	a, err := c.Get(t.Context(), s.URL, Validators{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, d := range []time.Duration{-time.Hour, 0, time.Minute, time.Hour} {
		if got, want := a.Mark(now.Add(d)), now.Add(min(d, 0)); !got.Equal(want) {
			t.Errorf("the mark of %v is %v, want %v", now.Add(d), got, want)
		}
	}
}

func TestAmong(t *testing.T) {
	listed := []string{"A.example", "b.example.:8080", "münchen.example/path", "[2001:db8::1]:443", "2001:db8::2", "192.0.2.1"}
	for host, want := range map[string]bool{
		"a.example": true, "a.example.": true, "sub.a.example": false, "b.example": true, "xn--mnchen-3ya.example": true, "MÜNCHEN.example": true,
		"2001:DB8:0::1": true, "2001:db8::2": true, "2001:db8::3": false, "192.0.2.1": true, "::ffff:192.0.2.1": true, "192.0.2.10": false, "": false,
	} {
		if got := Among(listed, host); got != want {
			t.Errorf("%q is among %v: %v, want %v", host, listed, got, want)
		}
	}
	if Among(nil, "a.example") {
		t.Error("a host is among none")
	}
}

// Who has to be told of it is told when Get waits for a server: of what was asked for ahead too,
// as long as it has not come.
func TestWithWait(t *testing.T) {
	answer := make(chan struct{})
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-answer
		}
	})
	c := newClient(t, Options{Start: s.URL})
	waits := 0
	ctx := WithWait(t.Context(), func(do func()) {
		if waits++; waits == 2 {
			close(answer)
		}
		do()
	})
	get := func(path string) {
		t.Helper()
		a, err := c.Get(ctx, s.URL+path, Validators{})
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	get("/1")
	c.Ahead(ctx, s.URL+"/slow", Validators{})
	get("/slow") // it can be answered only when it is waited for
	if waits != 2 {
		t.Errorf("%d waits", waits)
	}
}
