package sip_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/sip"
)

func silent() *log.Logger { return log.New(io.Discard, "", 0) }

// answering is a server on a socket that reads one request on each connection,
// answers with raw bytes and hangs up.
func answering(t *testing.T, raw string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				io.WriteString(conn, raw)
			}
			conn.Close()
		}
	}()
	return "http://" + l.Addr().String() + "/sip"
}

// httpAnswer writes an answer with its length.
func httpAnswer(status, head, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: text/xml\r\n%sContent-Length: %d\r\n\r\n%s", status, head, len(body), body)
}

func faultOf(code string) string {
	return inEnvelope("<S:Fault><faultcode>" + code + "</faultcode><faultstring>because</faultstring></S:Fault>")
}

// badAnswer is an answer that is no success, and what its error is.
type badAnswer struct {
	name, raw string
	temporary bool
	code      sip.Code // of a *Fault
	status    int      // of a *StatusError
	says      string
	wait      time.Duration
}

func badAnswers() []badAnswer {
	const later = "HTTP/1.1 503 X\r\nDate: Mon, 02 Jan 2006 15:04:05 GMT\r\nContent-Length: 0\r\nRetry-After: "
	properties := inEnvelope(docAnswer)
	return []badAnswer{
		{name: "fault Server", raw: httpAnswer("500 X", "", faultOf("S:Server")), temporary: true, code: sip.Server, says: "because"},
		{name: "fault Server.Busy", raw: httpAnswer("500 X", "", faultOf("S:Server.Busy")), temporary: true, code: sip.Server},
		{name: "fault Client", raw: httpAnswer("500 X", "", faultOf("S:Client")), code: sip.Client, says: "because"},
		{name: "fault VersionMismatch", raw: httpAnswer("500 X", "", faultOf("S:VersionMismatch")), code: sip.VersionMismatch},
		{name: "fault MustUnderstand", raw: httpAnswer("500 X", "", faultOf("S:MustUnderstand")), code: sip.MustUnderstand},
		{name: "fault with 200", raw: httpAnswer("200 OK", "", faultOf("S:Server")), temporary: true, code: sip.Server},
		{name: "500 with a page", raw: httpAnswer("500 X", "", "<html>oops"), temporary: true, status: 500},
		{name: "500 with nothing", raw: httpAnswer("500 X", "", ""), temporary: true, status: 500},
		{name: "500 with an answer", raw: httpAnswer("500 X", "", properties), temporary: true, status: 500},
		{name: "500 that breaks off", raw: httpAnswer("500 X", "", faultOf("S:Client"))[:200], temporary: true, status: 500},
		{name: "404", raw: httpAnswer("404 Not Found", "", "<html>"), status: 404, says: "404 Not Found"},
		{name: "400 in words", raw: "HTTP/1.1 400 X\r\nContent-Type: text/plain\r\n\r\nno\r\n such \x1b thing", status: 400, says: "400 Bad Request: no such thing"},
		{name: "401", raw: httpAnswer("401 X", "WWW-Authenticate: Basic realm=x\r\n", ""), status: 401},
		{name: "403", raw: httpAnswer("403 X", "", ""), status: 403},
		{name: "405", raw: httpAnswer("405 X", "Allow: GET\r\n", ""), status: 405},
		{name: "408", raw: httpAnswer("408 X", "", ""), temporary: true, status: 408},
		{name: "413", raw: httpAnswer("413 X", "", ""), status: 413},
		{name: "425", raw: httpAnswer("425 X", "", ""), temporary: true, status: 425},
		{name: "429", raw: httpAnswer("429 X", "Retry-After: 90\r\n", ""), temporary: true, status: 429, wait: 90 * time.Second, says: "1m30s"},
		{name: "502", raw: httpAnswer("502 X", "", faultOf("S:Client")), temporary: true, status: 502},
		{name: "503 until a date", raw: later + "Mon, 02 Jan 2006 15:05:05 GMT\r\n\r\n", temporary: true, status: 503, wait: time.Minute},
		{name: "503 until a date that is over", raw: later + "Mon, 02 Jan 2006 15:03:05 GMT\r\n\r\n", temporary: true, status: 503},
		{name: "503 for ever", raw: later + "18446744073709551615\r\n\r\n", temporary: true, status: 503, wait: 1<<63 - 1 - (1<<63-1)%time.Second},
		{name: "503 for some time", raw: later + "soon\r\n\r\n", temporary: true, status: 503},
		{name: "moved", raw: "HTTP/1.1 301 X\r\nLocation: http://192.0.2.1/other\r\nContent-Length: 0\r\n\r\n", status: 301, says: "moved to http://192.0.2.1/other"},
		{name: "see other", raw: "HTTP/1.1 303 X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", status: 303, says: "moved to /other"},

		{name: "reset", raw: httpAnswer("205 X", "", properties), status: 205, says: "205 Reset Content"},
		{name: "partial", raw: httpAnswer("206 X", "", properties), status: 206},
		{name: "not modified", raw: "HTTP/1.1 304 X\r\n\r\n", status: 304},
		{name: "moved for now", raw: "HTTP/1.1 307 X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", status: 307, says: "moved to /other"},

		{name: "compressed", raw: httpAnswer("200 OK", "Content-Encoding: gzip\r\n", "\x1f\x8b\x08\x00"), says: "Content-Encoding is gzip, and none was asked for"},
		{name: "compressed fault", raw: httpAnswer("500 X", "Content-Encoding: gzip\r\n", "\x1f\x8b\x08\x00"), temporary: true, status: 500, says: "Content-Encoding is gzip"},
		{name: "MTOM", raw: "HTTP/1.1 200 OK\r\nContent-Type: multipart/related; boundary=b\r\nContent-Length: 7\r\n\r\n--b\r\n\r\n", says: "Content-Type is multipart/related; boundary=b: messages with attachments (MTOM) are not read"},
		{name: "a page of its type", raw: "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", says: "Content-Type is text/html"},
		{name: "not compressed", raw: "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: Identity\r\nContent-Length: 2\r\n\r\n{}",
			says: "not a message of the Simple Ingest Protocol; its Content-Type is text/plain; it says: {}"},
		{name: "garbage", raw: httpAnswer("200 OK", "", "\x00\x01\x02"), says: "cannot be read"},
		{name: "a page", raw: httpAnswer("200 OK", "", "<html><body>Welcome</body></html>"), says: "cannot be read"},
		{name: "text", raw: "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello", says: "it says: hello"},
		{name: "cut off in its XML", raw: httpAnswer("200 OK", "", properties[:len(properties)-30]), says: "cannot be read"},
		{name: "cut off without a length", raw: "HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\n\r\n" + properties[:200], temporary: true, says: "not known"},
		{name: "cut off", raw: httpAnswer("200 OK", "", properties)[:150], temporary: true, says: "not known"},
		{name: "chunks cut off", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\nabc", temporary: true, says: "not known"},
		{name: "huge", raw: httpAnswer("200 OK", "", strings.Repeat(" ", 3000)), says: "too large: more than 2000 bytes"},
		{name: "endless", raw: "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat(" ", 3000), says: "too large: more than 2000 bytes"},
		{name: "no HTTP", raw: "220 mail.example.org ESMTP\r\n", temporary: true, says: "not known"},
		{name: "nothing", raw: "", temporary: true, says: "not known"},
		{name: "header cut off", raw: "HTTP/1.1 200 OK\r\nContent-Ty", temporary: true, says: "not known"},
	}
}

func (b *badAnswer) check(t *testing.T, err error) {
	t.Helper()
	var (
		fault  *sip.Fault
		status *sip.StatusError
	)
	if err == nil {
		t.Fatal("no error")
	}
	if got := errors.As(err, &fault); got != (b.code != "") || got && fault.Code != b.code {
		t.Errorf("fault %+v, want %q", fault, b.code)
	}
	if got := errors.As(err, &status); got != (b.status != 0) || got && (status.Status != b.status || status.RetryAfter != b.wait) {
		t.Errorf("status %+v, want %d and %v", status, b.status, b.wait)
	}
	if sip.Temporary(err) != b.temporary || !sip.Sent(err) {
		t.Errorf("temporary %t, sent %t", sip.Temporary(err), sip.Sent(err))
	}
	if !strings.Contains(err.Error(), b.says) || !strings.Contains(err.Error(), " at http://127.0.0.1:") {
		t.Errorf("%v; %q is not in it, or the address", err, b.says)
	}
}

// Whatever a server answers, the error says what it was and whether trying again
// may help.
func TestClientBadAnswers(t *testing.T) {
	own := &http.Transport{DisableKeepAlives: true}
	for _, b := range badAnswers() {
		t.Run(b.name, func(t *testing.T) {
			c := &sip.HTTPClient{URL: answering(t, b.raw), HTTP: &http.Client{Transport: own}, MaxBytes: 2000}
			_, err := c.GetProperties(t.Context())
			b.check(t, err)
			_, err = c.Ingest(t.Context(), &sip.Request{Record: sip.Record{XML: []byte("<r/>")}})
			b.check(t, err)
			b.check(t, c.Notify(t.Context(), &sip.Disposition{Outcome: sip.Rejected}))
		})
	}
}

// An answer to another question.
func TestClientOtherDocument(t *testing.T) {
	c := &sip.HTTPClient{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	c.URL = answering(t, httpAnswer("200 OK", "", inEnvelope(docAnswer)))
	if _, err := c.Ingest(t.Context(), &sip.Request{Record: sip.Record{XML: []byte("<r/>")}}); err == nil ||
		!strings.Contains(err.Error(), "<ingest-properties>, expected <ingest-disposition>") || sip.Temporary(err) || !sip.Sent(err) {
		t.Error(err)
	}
	for document, name := range map[string]string{docAccepted: "<ingest-disposition>", docProperties: "<get-properties>", docRequest: "<ingest-request>"} {
		c.URL = answering(t, httpAnswer("200 OK", "", inEnvelope(document)))
		if _, err := c.GetProperties(t.Context()); err == nil || !strings.Contains(err.Error(), name+", expected <ingest-properties>") {
			t.Error(err)
		}
	}
	for _, status := range []string{"202 Accepted", "204 No Content", "201 Created"} {
		c.URL = answering(t, "HTTP/1.1 "+status+"\r\nContent-Length: 0\r\n\r\n")
		_, err := c.GetProperties(t.Context())
		var se *sip.StatusError
		if !errors.As(err, &se) || fmt.Sprintf("%d", se.Status) != status[:3] || !strings.Contains(err.Error(), "not in the answer") || sip.Temporary(err) {
			t.Errorf("%s: %v", status, err)
		}
	}
}

// A document is the answer with each status that says that there is one.
func TestClientAnswerStatus(t *testing.T) {
	c := &sip.HTTPClient{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	r := &sip.Request{Record: sip.Record{XML: []byte("<r/>")}}
	for _, status := range []string{"200 OK", "201 Created", "202 Accepted", "203 X"} {
		c.URL = answering(t, httpAnswer(status, "", inEnvelope(docAccepted)))
		if d, err := c.Ingest(t.Context(), r); err != nil || d.Outcome != sip.Accepted {
			t.Errorf("%s: %+v, %v", status, d, err)
		}
		c.URL = answering(t, httpAnswer(status, "", faultOf("S:Client")))
		_, err := c.Ingest(t.Context(), r)
		var fault *sip.Fault
		if !errors.As(err, &fault) || fault.Code != sip.Client {
			t.Errorf("%s: %v", status, err)
		}
		c.URL = answering(t, httpAnswer(status, "", inEnvelope(docAccepted))[:150])
		if _, err := c.Ingest(t.Context(), r); err == nil || !sip.Temporary(err) || !sip.Sent(err) {
			t.Errorf("%s, cut off: %v", status, err)
		}
	}
}

// The answer is asked for as it is, and a compressed one is not undone, however
// small it came.
func TestClientAsksForIdentity(t *testing.T) {
	asked := make(chan []string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Values("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, inEnvelope(docAnswer))
		z.Close()
	}))
	defer server.Close()
	_, err := (&sip.HTTPClient{URL: server.URL}).GetProperties(t.Context())
	if got := <-asked; !slices.Equal(got, []string{"identity"}) {
		t.Errorf("asked for %q", got)
	}
	if err == nil || !strings.Contains(err.Error(), "Content-Encoding is gzip") || sip.Temporary(err) {
		t.Error(err)
	}
	// One that only says so is read.
	said := answering(t, httpAnswer("200 OK", "Content-Encoding: UTF-8\r\n", inEnvelope(docAnswer)))
	if _, err := (&sip.HTTPClient{URL: said, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}).GetProperties(t.Context()); err != nil {
		t.Error(err)
	}
}

// An answer may be as long as MaxBytes says, beyond what is usual.
func TestClientMaxBytes(t *testing.T) {
	reason := strings.Repeat("x", 5<<20)
	c := &sip.HTTPClient{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	c.URL = answering(t, httpAnswer("200 OK", "", sipDocument("ingest-disposition", "<rejected><reason>"+reason+"</reason></rejected>")))
	r := &sip.Request{Record: sip.Record{XML: []byte("<r/>")}}
	if _, err := c.Ingest(t.Context(), r); !errors.Is(err, sip.ErrTooLarge) || !strings.Contains(err.Error(), "4194304 bytes") {
		t.Errorf("%.200v", err)
	}
	c.MaxBytes = 6 << 20
	if d, err := c.Ingest(t.Context(), r); err != nil || d.Reason != reason {
		t.Errorf("%.200v", err)
	}
}

// What counts as an acknowledgement of a notification.
func TestClientAcknowledgement(t *testing.T) {
	c := &sip.HTTPClient{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	d := &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "7"}
	for name, raw := range map[string]string{
		"202":                      "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
		"202 with words":           httpAnswer("202 Accepted", "", "thank you"),
		"204":                      "HTTP/1.1 204 No Content\r\n\r\n",
		"200":                      httpAnswer("200 OK", "", ""),
		"200 and white space":      httpAnswer("200 OK", "", "\r\n"),
		"200 without a length":     "HTTP/1.1 200 OK\r\n\r\n",
		"an envelope with nothing": httpAnswer("200 OK", "", inEnvelope("")),
		"an answer of its own":     httpAnswer("200 OK", "", inEnvelope(`<notifyResponse xmlns="urn:x"><return>ok</return></notifyResponse>`)),
		"a disposition":            httpAnswer("200 OK", "", inEnvelope(docAccepted)),
	} {
		c.URL = answering(t, raw)
		if err := c.Notify(t.Context(), d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, raw := range map[string]string{
		"a Fault, though malformed": httpAnswer("200 OK", "", inEnvelope("<S:Fault/>")),
		"another envelope":          httpAnswer("200 OK", "", `<Envelope xmlns="urn:x"><Body/></Envelope>`),
		"no body":                   httpAnswer("200 OK", "", `<S:Envelope xmlns:S="`+soapSpace+`"/>`),
		"a document alone":          httpAnswer("200 OK", "", docAccepted),
		"201":                       "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
		"201 with a disposition":    httpAnswer("201 Created", "", inEnvelope(docAccepted)),
	} {
		c.URL = answering(t, raw)
		if err := c.Notify(t.Context(), d); err == nil || sip.Temporary(err) || !sip.Sent(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that hangs, at each place where it can: the call ends at its deadline,
// its own or the caller's, or when it is given up.
func TestClientHangs(t *testing.T) {
	for _, part := range []string{"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<x>"} {
		for _, c := range []struct {
			name    string
			timeout time.Duration
			limit   func(context.Context) (context.Context, context.CancelFunc)
			took    time.Duration
			is      error
		}{
			{"by default", 0, context.WithCancel, time.Minute, context.DeadlineExceeded},
			{"timeout", 7 * time.Second, context.WithCancel, 7 * time.Second, context.DeadlineExceeded},
			{"the caller's deadline", 0, func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 3*time.Second)
			}, 3 * time.Second, context.DeadlineExceeded},
			{"given up", 0, func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(2*time.Second, cancel)
				return ctx, cancel
			}, 2 * time.Second, context.Canceled},
		} {
			synctest.Test(t, func(t *testing.T) {
				pipe := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go func() {
						r, err := http.ReadRequest(bufio.NewReader(theirs))
						if err == nil {
							_, _ = io.Copy(io.Discard, r.Body)
							io.WriteString(theirs, part)
							_, _ = io.Copy(io.Discard, theirs) // until the client has enough
						}
						theirs.Close()
					}()
					return ours, nil
				}}
				defer pipe.CloseIdleConnections()
				ctx, cancel := c.limit(t.Context())
				defer cancel()
				began := time.Now()
				client := &sip.HTTPClient{URL: "http://192.0.2.1/", HTTP: &http.Client{Transport: pipe}, Timeout: c.timeout}
				_, err := client.GetProperties(ctx)
				if took := time.Since(began); took != c.took || !errors.Is(err, c.is) || !sip.Temporary(err) || !sip.Sent(err) {
					t.Errorf("%s after %q: %v after %v", c.name, part, err, took)
				}
			})
		}
	}
}

// A message that waits, for its turn or a connection, has a minute for that. From when
// it is sent, there is a minute for the answer.
func TestClientWaitsToSend(t *testing.T) {
	for _, c := range []struct {
		turn, answer, took time.Duration
		says               string // "" is an answer
	}{
		{59 * time.Second, 59 * time.Second, 118 * time.Second, ""},
		{61 * time.Second, 0, time.Minute, "not sent within 1m0s: context deadline exceeded; nothing was sent"},
		{59 * time.Second, 61 * time.Second, 119 * time.Second, "no whole answer within 1m0s: context deadline exceeded; whether the message was taken is not known"},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := &sip.HTTPClient{URL: "http://192.0.2.1/", HTTP: &http.Client{Transport: carrier(func(r *http.Request) (*http.Response, error) {
				for _, wait := range []time.Duration{c.turn, c.answer} {
					select {
					case <-r.Context().Done():
						return nil, r.Context().Err() // as HTTP/2 has it
					case <-time.After(wait):
					}
					if _, err := io.Copy(io.Discard, r.Body); err != nil {
						return nil, err
					}
				}
				return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}, nil
			})}}
			began := time.Now()
			err := client.Post(t.Context(), []byte(inEnvelope(docAccepted)))
			if took := time.Since(began); took != c.took || (err == nil) != (c.says == "") || err != nil && !strings.HasSuffix(err.Error(), c.says) {
				t.Errorf("%v after %v, want %q after %v", err, took, c.says, c.took)
			}
			if unsent := c.turn > time.Minute; err != nil && (sip.Sent(err) == unsent || !errors.Is(err, context.DeadlineExceeded) || !sip.Temporary(err)) {
				t.Errorf("sent %t: %v", sip.Sent(err), err)
			}
		})
	}
}
