package sip_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/sip"
)

// doors has one caller with each token that is not let in, for the status that
// the token names.
func doors(c sip.Caller) error {
	for _, status := range []int{401, 403, 429} {
		if c.Token == fmt.Sprint(status) {
			return &sip.Denied{Status: status, Reason: "no"}
		}
	}
	return nil
}

// A client that listens only when it has sent everything hears why its message is
// refused, however early that was known.
func TestHandlerHeardOut(t *testing.T) {
	base := serveBackend(t, &sip.Handler{Backend: &memoryServer{admit: doors}, Offers: everything()})
	message := inEnvelope(docAccepted)
	large := message + strings.Repeat(" ", 4<<20+1000-len(message))
	for _, c := range []struct{ method, path, head, want string }{
		{"POST", "/sip", "Content-Type: text/xml", "413 Request Entity Too Large"},
		{"POST", "/sip", "Content-Type: text/plain", "415 Unsupported Media Type"},
		{"POST", "/sip", "Content-Type: text/xml\r\nContent-Encoding: gzip", "415 Unsupported Media Type"},
		{"POST", "/sip/403", "Content-Type: text/xml", "403 Forbidden"},
		{"POST", "/sip/401", "Content-Type: text/xml", "401 Unauthorized"},
		{"PUT", "/sip", "Content-Type: text/xml", "405 Method Not Allowed"},
	} {
		conn := dial(t, base)
		_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n\r\n%s", c.method, c.path, len(large), c.head, large)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); strings.TrimSpace(line) != "HTTP/1.1 "+c.want {
			t.Errorf("%+v: %q, %v", c, line, err)
		}
	}
}

// dial connects to a server for half a minute at most.
func dial(t *testing.T, base string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/sip"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// supply is a body without an end. It counts what is taken from it, and before
// that looks whether the answer has gone out.
type supply struct {
	taken  int64
	answer *httptest.ResponseRecorder
	early  bool
}

func (s *supply) Read(p []byte) (int, error) {
	s.early = s.early || !s.answer.Flushed
	s.taken += int64(len(p))
	clear(p)
	return len(p), nil
}

func (s *supply) Close() error { return nil }

// What is heard out is bounded, and some are not heard out at all.
func TestHandlerHeardOutBounds(t *testing.T) {
	const most = 1000
	for _, c := range []struct {
		name, token, head string
		length            int64 // -1: in chunks
		status            int
		least, most       int64 // taken
		early             bool
	}{
		{name: "too long in chunks", head: "Content-Type: text/xml", length: -1, status: 413, least: most + 1<<20, most: 2*most + 1<<20 + 4096, early: true},
		{name: "too long", head: "Content-Type: text/xml", length: most + 1<<20, status: 413, least: most + 1<<20, most: most + 1<<20},
		{name: "wrong type", head: "Content-Type: text/plain", length: -1, status: 415, least: most + 1<<20, most: most + 1<<20},
		{name: "not let in", token: "403", length: -1, status: 403, least: most + 1<<20, most: most + 1<<20},
		{name: "much too long", head: "Content-Type: text/xml", length: most + 1<<20 + 1, status: 413},
		{name: "too often", token: "429", length: -1, status: 429},
		{name: "waits for leave", head: "Expect: 100-continue", length: -1, status: 415},
	} {
		w := httptest.NewRecorder()
		body := &supply{answer: w}
		r := httptest.NewRequest("POST", "/sip", body)
		r.ContentLength = c.length
		if name, value, ok := strings.Cut(c.head, ": "); ok {
			r.Header.Set(name, value)
		}
		h := &sip.Handler{Backend: &memoryServer{admit: doors}, Offers: everything(), MaxBytes: most}
		h.Serve(w, r, c.token)
		if w.Code != c.status || body.taken < c.least || body.taken > c.most || body.early != c.early {
			t.Errorf("%s: %d, %d bytes taken, before the answer: %v", c.name, w.Code, body.taken, body.early)
		}
	}
}

// A client that does not go on is waited for no longer than the server's deadline
// says.
func TestHandlerHeardOutInTime(t *testing.T) {
	h := &sip.Handler{Backend: &memoryServer{}, Offers: everything()}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Error(err)
		}
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	conn := dial(t, server.URL)
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 4000000\r\n\r\n")
	// That this ends without an error is the server's doing.
	if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 415 ") {
		t.Errorf("%s, %v", got, err)
	}
}

// misled is a server that finds fault with whatever element it is told to.
type misled struct {
	memoryServer
	path string
}

func (m *misled) fault() error {
	return fmt.Errorf("wrapped: %w", &sip.Fault{Code: sip.Client, Text: "not that", Path: m.path})
}

func (m *misled) Ingest(context.Context, sip.Caller, *sip.Request) (*sip.Disposition, error) {
	return nil, m.fault()
}

func (m *misled) Notify(context.Context, sip.Caller, *sip.Disposition) error { return m.fault() }

// What a Backend finds wrong with an element has its place too.
func TestHandlerPlaces(t *testing.T) {
	const begin = "<?xml version='1.0'?>\n<S:Envelope xmlns:S='" + soapSpace + "'><S:Header><x/></S:Header>\n<S:Body xmlns='http://www.alexandria.ucsb.edu'>\n"
	const end = "</S:Body></S:Envelope>"
	request := begin + " <ingest-request>\n  <source><!-- \u00e9 --><submitter><name/>\n<email-address/></submitter><source-identifier>7</source-identifier></source>\n" +
		"\t<notification-recipient>x</notification-recipient>\n<record>\n<r xmlns=''><source/></r></record></ingest-request>" + end
	disposition := func(outcome string) string {
		return begin + "<ingest-disposition>" + outcome + "</ingest-disposition>" + end
	}
	for _, c := range []struct{ body, path, line, column string }{
		{request, "ingest-request", "4", "2"},
		{request, "ingest-request/source", "5", "3"},
		{request, "ingest-request/source/submitter/name", "5", "33"},
		{request, "ingest-request/source/submitter/email-address", "6", "1"},
		{request, "ingest-request/source/source-identifier", "6", "29"},
		{request, "ingest-request/notification-recipient", "7", "2"},
		{request, "ingest-request/record", "8", "1"},
		{disposition("<accepted>\n <assigned-identifier>7</assigned-identifier></accepted>"), "ingest-disposition/accepted/assigned-identifier", "5", "2"},
		{disposition("<provisionally-accepted/>"), "ingest-disposition/provisionally-accepted", "4", "21"},
	} {
		for _, plain := range []bool{false, true} {
			base := serveBackend(t, &sip.Handler{Backend: &misled{path: c.path}, Offers: everything(), Plain: plain})
			call := handlerCall{body: c.body}
			got := ask(t, call.request(t, base))
			if want := fmt.Sprintf(`path="%s" line="%s" column="%s"`, c.path, c.line, c.column); !strings.Contains(string(got.body), want) {
				t.Errorf("%s\nwant %s", got.body, want)
			}
		}
	}
	base := serveBackend(t, &sip.Handler{Backend: &misled{path: "ingest-request/record/r/source"}, Offers: everything()})
	call := handlerCall{body: request}
	if got := ask(t, call.request(t, base)); strings.Contains(string(got.body), "line=") || !strings.Contains(string(got.body), "not that") {
		t.Errorf("a place that is not known: %s", got.body)
	}
	base = serveBackend(t, &sip.Handler{Backend: &misled{path: "ingest-request/record/r"}, Offers: everything(), Plain: true})
	call = handlerCall{body: docRequest}
	if got := ask(t, call.request(t, base)); got.status != 400 || string(got.body) != "ingest-request/record/r: not that\n" {
		t.Errorf("a place that is not known, without an envelope: %d %q", got.status, got.body)
	}
}

// A message that breaks off is answered in its own form, as far as it came.
func TestHandlerPlainBrokenOff(t *testing.T) {
	base := serveBackend(t, &sip.Handler{Backend: &memoryServer{}, Offers: everything(), Plain: true})
	for body, want := range map[string]string{docRequest: "400", "": "400", inEnvelope(docRequest): "500"} {
		got := conversation(t, base, fmt.Sprintf("POST /sip HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body)+1, body), true)
		if !strings.HasPrefix(got, "HTTP/1.1 "+want) || !strings.Contains(got, "broke off") {
			t.Errorf("%s: %s", body, got)
		}
	}
}

// TestEmptyBody: the draft has no document for get-properties, so clients differ; an
// empty Body with its SOAPAction is one too, and without it nothing (D39).
func TestEmptyBody(t *testing.T) {
	h := &sip.Handler{Backend: &memoryServer{}, Offers: sip.Operations{Ingest: true}}
	for action, want := range map[string]int{
		`"http://www.alexandria.ucsb.edu/get-properties"`: 200, "get-properties": 200, `"urn:x#get-properties"`: 200,
		"": 500, `""`: 500, `"http://www.alexandria.ucsb.edu/ingest"`: 500, "forget-properties": 500,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(inEnvelope(" ")))
		r.Header.Set("Content-Type", "text/xml")
		r.Header.Set("SOAPAction", action)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || want == 200 && !strings.Contains(w.Body.String(), "ingest-properties") {
			t.Errorf("SOAPAction %s: %d %s", action, w.Code, w.Body)
		}
	}
}
