package sip_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Documents without an envelope, where they are allowed.
func TestHandlerPlain(t *testing.T) {
	const xmlOut = "text/xml; charset=utf-8"
	plain := sip.Handler{Plain: true}
	runCalls(t, []handlerCall{
		{name: "get-properties", body: docProperties, handler: plain, status: 200, mediaOut: xmlOut, says: "<sip:ingest-properties", ran: 1},
		{name: "ingest", body: "\xef\xbb\xbf<!-- c -->" + docRequest, handler: plain, status: 200, mediaOut: xmlOut, says: "lib/1", ran: 1},
		{name: "notify", body: docAccepted, handler: plain, status: 202, mediaOut: "none", headOut: "Content-Length: 0", ran: 1},
		{name: "provisional", body: docLater, handler: plain, status: 400, says: "ingest-disposition/provisionally-accepted:1:60: ", ran: 0},
		{name: "bad", body: docRequest[:len(docRequest)-20], handler: plain, status: 400, says: "ingest-request"},
		{name: "DOCTYPE", body: "<!DOCTYPE x>" + docRequest, handler: plain, status: 400, says: "document:1:1: DOCTYPE is refused"},
		{name: "no XML", body: "hello", handler: plain, status: 400, says: "document:1:1: "},
		{name: "nothing", body: "", handler: plain, status: 400, says: "document:1:1: the document is empty"},
		{name: "no root", body: "<x", handler: plain, status: 400, says: "document:1:3: the document is cut off"},
		{name: "a processing instruction", body: "<?a b?>" + docProperties, handler: plain, status: 400, says: "the processing instruction <?a is refused"},
		{name: "a processing instruction and an envelope", body: "<?a b?>" + inEnvelope(docProperties), handler: plain, status: 500, code: sip.Client},
		{name: "storing fails", body: docAccepted, handler: plain, backend: &memoryServer{fail: io.ErrShortWrite}, status: 500, says: "try again later", ran: 1},
		{name: "denied", body: docAccepted, handler: plain, backend: &memoryServer{fail: &sip.Denied{Status: 429, Reason: "slowly"}}, status: 429, says: "slowly", ran: 1},
		{name: "not offered", body: docRequest, handler: sip.Handler{Plain: true, Offers: sip.Operations{Notify: true}}, status: 400, says: "offered: notify"},
		{name: "with an envelope all the same", body: inEnvelope(docProperties), handler: plain, status: 200, mediaOut: xmlOut, says: ":Envelope", ran: 1},
		{name: "fault with an envelope", body: inEnvelope(docLater), handler: plain, status: 500, code: sip.Client, path: "ingest-disposition/provisionally-accepted"},
		{name: "another envelope", body: "<Envelope/>", handler: plain, status: 500, code: sip.VersionMismatch, path: ""},
		{name: "off", body: docProperties, status: 500, code: sip.Client, path: "get-properties"},
	})
	base := serveBackend(t, &sip.Handler{Backend: &memoryServer{}, Offers: everything(), Plain: true})
	call := handlerCall{body: docProperties}
	got := ask(t, call.request(t, base))
	if m, err := sip.ReadDocument(got.body); err != nil || m.Kind != sip.KindProperties || bytes.Contains(got.body, []byte("Envelope")) {
		t.Errorf("%v: %s", err, got.body)
	}
}

func TestHandlerDescribes(t *testing.T) {
	backend := &memoryServer{}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	get := func(method, query string) answerSeen {
		t.Helper()
		call := handlerCall{method: method, behind: query}
		got := ask(t, call.request(t, base))
		if got.status != 200 || got.head.Get("Content-Type") != "text/xml; charset=utf-8" {
			t.Errorf("%s %s: %d, %s", method, query, got.status, got.head.Get("Content-Type"))
		}
		return got
	}
	for query, want := range map[string][]byte{
		"?wsdl": sip.WSDL(everything(), base), "?WSDL": sip.WSDL(everything(), base), "?Wsdl=": sip.WSDL(everything(), base),
		"?xsd": sip.Schema(), "?XSD": sip.Schema(),
		"/a%20b?wsdl": sip.WSDL(everything(), base+"/a%20b"), // the token's own
	} {
		if got := get("GET", query); !bytes.Equal(got.body, want) || len(want) == 0 {
			t.Errorf("%s: %s", query, got.body)
		}
		if got := get("HEAD", query); len(got.body) != 0 || got.length != int64(len(want)) {
			t.Errorf("HEAD %s: %d bytes, Content-Length %d, want %d", query, len(got.body), got.length, len(want))
		}
	}
	if asked, ran := backend.counts(); ran != 0 || asked != 12 {
		t.Errorf("%d operations ran, Admit was asked %d times", ran, asked)
	}
}

// What the Backend learns of the caller.
func TestHandlerCaller(t *testing.T) {
	for _, c := range []struct {
		from, token, authorization string
		want                       sip.Caller
	}{
		{from: "192.0.2.1:80", want: sip.Caller{Address: netip.MustParseAddr("192.0.2.1")}},
		{from: "[::ffff:192.0.2.1]:80", token: "abc", want: sip.Caller{Token: "abc", Address: netip.MustParseAddr("192.0.2.1")}},
		{from: "[fe80::1%eth0]:80", want: sip.Caller{Address: netip.MustParseAddr("fe80::1")}},
		{from: "@", want: sip.Caller{}}, // a Unix socket
		{from: "192.0.2.1:80", authorization: "Basic " + base64.StdEncoding.EncodeToString([]byte("ann:p:w")),
			want: sip.Caller{Address: netip.MustParseAddr("192.0.2.1"), User: "ann", Password: "p:w", HasLogin: true}},
		{from: "192.0.2.1:80", authorization: "Basic " + base64.StdEncoding.EncodeToString([]byte(":")),
			want: sip.Caller{Address: netip.MustParseAddr("192.0.2.1"), HasLogin: true}},
		{from: "192.0.2.1:80", authorization: "Bearer x", want: sip.Caller{Address: netip.MustParseAddr("192.0.2.1")}},
	} {
		backend := &memoryServer{}
		r := httptest.NewRequest("POST", "/sip", strings.NewReader(inEnvelope(docAccepted)))
		r.RemoteAddr = c.from
		r.Header.Set("Content-Type", "text/xml")
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		w := httptest.NewRecorder()
		(&sip.Handler{Backend: backend, Offers: everything()}).Serve(w, r, c.token)
		if w.Code != 202 || len(backend.asked) != 1 || backend.asked[0] != c.want || backend.callers[0] != c.want {
			t.Errorf("%s %s: %d, Admit %+v, Notify %+v, want %+v", c.from, c.authorization, w.Code, backend.asked, backend.callers, c.want)
		}
	}
}

// stuck is a server whose Notify lasts until the call is over.
type stuck struct {
	memoryServer
	entered chan struct{}
	left    chan error
}

func (s *stuck) Notify(ctx context.Context, _ sip.Caller, _ *sip.Disposition) error {
	close(s.entered)
	<-ctx.Done()
	s.left <- ctx.Err()
	return fmt.Errorf("storing: %w", ctx.Err())
}

// A call that was given up is no failure to log; should the other side still be
// there, it must not take silence for success.
func TestHandlerGivenUp(t *testing.T) {
	var log bytes.Buffer
	s := &stuck{entered: make(chan struct{}), left: make(chan error, 1)}
	h := &sip.Handler{Backend: s, Offers: everything(), Log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequest("POST", "/sip", strings.NewReader(inEnvelope(docAccepted))).WithContext(ctx)
	r.Header.Set("Content-Type", "text/xml")
	w := httptest.NewRecorder()
	go func() {
		<-s.entered
		cancel()
	}()
	h.ServeHTTP(w, r)
	if code, _, _ := readFault(t, w.Body.Bytes()); w.Code != 500 || code != "Server" || log.Len() > 0 {
		t.Errorf("%d %s; log %q", w.Code, w.Body, log.String())
	}

	s = &stuck{entered: make(chan struct{}), left: make(chan error, 1)}
	base := serveBackend(t, &sip.Handler{Backend: s, Offers: everything()})
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		<-s.entered
		cancel()
	}()
	err := (&sip.HTTPClient{URL: base}).Notify(ctx, &sip.Disposition{Outcome: sip.Rejected})
	if err == nil || !sip.Sent(err) {
		t.Errorf("a call that was given up: %v", err)
	}
	if err := <-s.left; err != context.Canceled {
		t.Errorf("the Backend's context: %v", err)
	}
}

// conversation sends raw bytes, ends the sending side if told, and returns the
// answers to the end of the connection.
func conversation(t *testing.T, base, sent string, end bool) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/sip"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, sent); err != nil {
		t.Fatal(err)
	}
	if end {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Logf("%v after %q", err, got)
	}
	return string(got)
}

// Lengths that lie, chunks that break off: nothing of it reaches the Backend.
func TestHandlerBrokenBodies(t *testing.T) {
	backend := &memoryServer{}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything(), MaxBytes: 2000})
	message := inEnvelope(docAccepted)
	head := "POST /sip HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\nConnection: close\r\n"
	for name, c := range map[string]struct {
		sent, status, says string
	}{
		"more announced than sent": {fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(message)+1, message), "500", "broke off"},
		"less announced than sent": {fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(message)-1, message), "500", "cut off"},
		"chunk breaks off":         {fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", head, len(message), message), "500", "broke off"},
		"no chunk":                 {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "500", "broke off"},
		"endless chunks":           {head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("400\r\n"+strings.Repeat(" ", 1024)+"\r\n", 3), "413", "2000 bytes"},
		"huge length":              {head + "Content-Length: 9223372036854775807\r\n\r\n", "413", "2000 bytes"},
	} {
		got := conversation(t, base, c.sent, true)
		if !strings.HasPrefix(got, "HTTP/1.1 "+c.status) || !strings.Contains(got, c.says) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if _, ran := backend.counts(); ran > 0 {
		t.Errorf("%d operations ran", ran)
	}
	whole := fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(message), message)
	if got := conversation(t, base, whole, false); !strings.HasPrefix(got, "HTTP/1.1 202") || len(backend.notified()) != 1 {
		t.Errorf("whole chunks: %s", got)
	}
}

// A caller that waits for leave to send its message gets it only when the
// message will be read.
func TestHandlerExpectContinue(t *testing.T) {
	deny := func(c sip.Caller) error {
		if c.Token == "wrong" {
			return &sip.Denied{Status: 403, Reason: "no"}
		}
		return nil
	}
	base := serveBackend(t, &sip.Handler{Backend: &memoryServer{admit: deny}, Offers: everything(), MaxBytes: 2000})
	message := inEnvelope(docAccepted)
	for _, c := range []struct{ path, contentType, length, want string }{
		{"/sip", "text/xml", fmt.Sprint(len(message)), "HTTP/1.1 100 Continue"},
		{"/sip/wrong", "text/xml", fmt.Sprint(len(message)), "HTTP/1.1 403 Forbidden"},
		{"/sip", "text/plain", fmt.Sprint(len(message)), "HTTP/1.1 415 Unsupported Media Type"},
		{"/sip", "text/xml", "2001", "HTTP/1.1 413 Request Entity Too Large"},
	} {
		conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/sip"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %s\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n", c.path, c.contentType, c.length)
		lines := bufio.NewReader(conn)
		if line, err := lines.ReadString('\n'); strings.TrimSpace(line) != c.want {
			t.Errorf("%+v: %q, %v", c, line, err)
		}
		if strings.HasSuffix(c.want, "Continue") {
			io.WriteString(conn, message)
			if rest, err := io.ReadAll(lines); err != nil || !strings.Contains(string(rest), "202 Accepted") {
				t.Errorf("%q, %v", rest, err)
			}
		}
	}
}

// A message that is not there in time.
func TestHandlerSlowCaller(t *testing.T) {
	backend := &memoryServer{}
	h := &sip.Handler{Backend: backend, Offers: everything()}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The server's patience has ended before the body begins.
		if err := http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Error(err)
		}
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	got := conversation(t, server.URL, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\nContent-Length: 9\r\n\r\n", false)
	if _, ran := backend.counts(); !strings.HasPrefix(got, "HTTP/1.1 408 ") || !strings.Contains(got, "too slowly") || ran != 0 {
		t.Errorf("%s; %d operations ran", got, ran)
	}
}

// curl, which the protocol's users have, and which sends what a strict SOAP
// client cannot: an empty provisionally-accepted.
func TestHandlerCurl(t *testing.T) {
	curl := testenv.Need(t, "curl", "curl")
	backend := &memoryServer{admit: func(c sip.Caller) error {
		if c.Token == "locked" && c.Password != "open sesame" {
			return &sip.Denied{Status: 401, Reason: "who are you?"}
		}
		return nil
	}}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	record := `<r xmlns="urn:r">` + strings.Repeat("x", 2<<20) + `</r>`
	large := strings.Replace(docRequest, `<r xmlns="urn:r">x</r>`, record, 1)
	for _, c := range []struct {
		name, body, behind string
		sent               string // Content-Type
		args               []string
		status             int
		media, says        string
	}{
		{name: "properties", body: inEnvelope(docProperties), status: 200, media: "text/xml; charset=utf-8", says: "http://example.org/a.xsd"},
		{name: "large, with Expect", body: inEnvelope(large), status: 200, media: "text/xml; charset=utf-8", says: "lib/1"},
		{name: "chunked", body: inEnvelope(docRequest), args: []string{"-H", "Transfer-Encoding: chunked"}, status: 200, media: "text/xml; charset=utf-8", says: "lib/2"},
		{name: "HTTP/1.0", body: inEnvelope(docAccepted), args: []string{"--http1.0"}, status: 202},
		{name: "notify", body: inEnvelope(docAccepted), status: 202},
		{name: "provisional", body: inEnvelope(docLater), status: 500, media: "text/xml; charset=utf-8", says: "ingest-disposition/provisionally-accepted"},
		{name: "no login", body: inEnvelope(docAccepted), behind: "/locked", status: 401, media: "text/plain; charset=utf-8", says: "who are you?"},
		{name: "login", body: inEnvelope(docAccepted), behind: "/locked", args: []string{"--user", "ann:open sesame"}, status: 202},
		{name: "form", body: inEnvelope(docAccepted), sent: "application/x-www-form-urlencoded", status: 415, media: "text/plain; charset=utf-8"},
		{name: "description", behind: "?wsdl", status: 200, media: "text/xml; charset=utf-8", says: base + "?xsd"},
	} {
		args := append([]string{"-sS", "--noproxy", "*", "-w", "\n%{json}", base + c.behind}, c.args...)
		if c.body != "" {
			args = append(args, "--data-binary", "@-", "-H", "Content-Type: "+cmp.Or(c.sent, "text/xml"))
		}
		cmd := exec.Command(curl, args...)
		cmd.Stdin = strings.NewReader(c.body)
		var wrong bytes.Buffer
		cmd.Stderr = &wrong
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, wrong.String())
			continue
		}
		cut := bytes.LastIndexByte(out, '\n')
		var told struct {
			Status int    `json:"response_code"`
			Media  string `json:"content_type"`
			Bytes  int    `json:"size_download"`
		}
		if err := json.Unmarshal(out[cut+1:], &told); err != nil {
			t.Fatal(err)
		}
		body := string(out[:cut])
		if told.Status != c.status || told.Media != c.media || !strings.Contains(body, c.says) || c.status == 202 && told.Bytes != 0 {
			t.Errorf("%s: %+v, %s", c.name, told, body)
		}
	}
	requests := backend.ingested()
	if len(requests) != 2 || string(requests[0].Record.XML) != record {
		t.Errorf("%d requests", len(requests))
	}
	if got := len(backend.notified()); got != 3 {
		t.Errorf("%d notifications", got)
	}
}
