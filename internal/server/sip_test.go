package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/sip"
)

// withSIP gives the set main a service, and no other set.
func withSIP(d server.SIPService) func(*server.Options) {
	return func(o *server.Options) {
		o.SIPService = func(set string) server.SIPService {
			if set != "main" {
				return nil
			}
			return d
		}
	}
}

// tells answers with what it was asked.
func tells(w http.ResponseWriter, r *http.Request, token string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "%s %q %s %s", r.Method, token, r.URL, body)
}

func TestSIPIsAskedWhateverTheMethod(t *testing.T) {
	for _, mount := range []string{"", "/some where/\u00e9", "/sip"} {
		h := newTestServer(t, mount, withSIP(tells))
		roots := []string{h.base}
		if mount != "/sip" { // which a proxy must keep
			roots = append(roots, "http://"+h.web.Listener.Addr().String())
		}
		for _, root := range roots {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"} {
				for path, token := range map[string]string{"/sip/main": "", "/sip/main?wsdl": "", "/sip/main/t0k-en": "t0k-en", "/sip/main/..": "..", "/sip/main/a?xsd&b": "a"} {
					want := fmt.Sprintf("%s %q %s ", method, token, path)
					if method == "HEAD" {
						want = ""
					}
					got := h.ask(method, root+path).want(t, 200).field(t, "X-Content-Type-Options", "nosniff").
						field(t, "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'").body
					if got != want {
						t.Errorf("%s %s: %q, want %q", method, root+path, got, want)
					}
				}
			}
		}
	}
}

func TestSIPPathsAreExact(t *testing.T) {
	h := newTestServer(t, "", withSIP(func(http.ResponseWriter, *http.Request, string) { t.Error("the service was called") }))
	for _, target := range []string{
		"/sip/", "/sip//", "/sip/none", "/sip/none/token", "/sip//main", "/sip/main/", "/sip/main//", "/sip/main//token", "/sip/main/token/", "/sip/main/a/b", "/sip/./main",
		"/sip%2fmain", "/sip/main%2ftoken", "/sip/%6dain", "/sip/main/%74oken", "/sip/MAIN", "/sip/..%2fsip/main", "/sip/:set", "/sip/*",
	} {
		for _, method := range []string{"GET", "POST", "BREW"} {
			r, rest := h.raw(method + " " + target + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello")
			r.want(t, 404).field(t, "X-Content-Type-Options", "nosniff")
			if _, err := rest.ReadByte(); err == nil {
				t.Errorf("%s %s: the connection goes on after a body that nobody read", method, target)
			}
		}
	}
	for _, target := range []string{"/sip", "//sip/main", "/SIP/main", "/x/sip/main", "/sipmain", "/sets/main/sip/main"} {
		h.get(target).want(t, 404)
		h.ask(http.MethodPost, h.base+target).want(t, 405).field(t, "Allow", "GET, HEAD")
	}
}

// Who knows a token may tell what became of a submission.
func TestTokensAreInNoLog(t *testing.T) {
	const token = "s3cr3ttoken"
	serve := func(w http.ResponseWriter, r *http.Request, token string) {
		switch r.Method {
		case "PANIC":
			panic("no such submission: " + token + " of " + r.URL.Path)
		case "FAULT":
			w.WriteHeader(http.StatusInternalServerError)
			panic(errors.New(token))
		}
		tells(w, r, token)
	}
	for _, mount := range []string{"", "/bridge/here", "/library/sip/"} {
		h := newTestServer(t, mount, withSIP(serve))
		mount = strings.TrimSuffix(mount, "/")
		for _, root := range []string{"", "/bridge/here", "/library/sip", "/other"} {
			for _, path := range []string{"/sip/main/" + token, "/sip/none/" + token, "/sip/main/" + token + "/", "/sip/main//" + token, "/sip//main/" + token,
				"/sip%2fmain%2f" + token, "/SIP/main/" + token, "//sip/main/" + token, "/sip/main/a%0a/" + token, "/sip/main?" + token} {
				for _, method := range []string{"GET", "POST", "PANIC", "FAULT"} {
					line := h.journal.expect("DEBUG request")
					func() {
						req, err := http.NewRequest(method, "http://"+h.web.Listener.Addr().String()+root+path, strings.NewReader("x"))
						if err != nil {
							t.Fatal(err)
						}
						if res, err := h.web.Client().Do(req); err == nil { // FAULT has none
							res.Body.Close()
						}
					}()
					got := <-line
					if root == mount && path == "/sip/main/"+token && !strings.Contains(got, "path="+root+"/sip/main/*** ") {
						t.Errorf("log: %s", got)
					}
				}
			}
		}
		h.journal.mu.Lock()
		if n := len(h.journal.lines); n < 160 {
			t.Errorf("%d lines in the log", n)
		}
		for _, l := range h.journal.lines {
			if strings.Contains(l, token) {
				t.Errorf("log: %s", l)
			}
		}
		h.journal.mu.Unlock()
		if lines := h.journal.at(slog.LevelError); len(lines) == 0 || !strings.Contains(lines[0], "no such submission: ***") {
			t.Errorf("log: %q", lines)
		}
	}
}

// post begins a request whose body the test writes.
func (r *running) post(t *testing.T, header string) (io.ReadWriteCloser, *bufio.Reader) {
	t.Helper()
	c := r.dial()
	if _, err := io.WriteString(c, "POST /sip/main/token HTTP/1.1\r\nHost: localhost\r\n"+header+"\r\n"); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// answered reads one answer.
func answered(t *testing.T, r *bufio.Reader, status int) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != status {
		t.Fatalf("status %d, want %d", res.StatusCode, status)
	}
	return res
}

// reads is a service that reads the body, and remembers how that ended.
type reads struct {
	n   int64
	err error
}

func (d *reads) serve(w http.ResponseWriter, r *http.Request, _ string) {
	d.n, d.err = io.Copy(io.Discard, r.Body)
	if d.err != nil {
		w.WriteHeader(http.StatusRequestTimeout)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// A client that sends a little now and then does not hold on for longer.
func TestSlowBody(t *testing.T) {
	for _, header := range []string{"Content-Length: 1000000\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 1000000\r\nExpect: 100-continue\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			var d reads
			r := runWith(oneRecord{service: d.serve})
			began := time.Now()
			c, br := r.post(t, header)
			if strings.Contains(header, "100-continue") {
				if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
					t.Fatalf("%q, %v", line, err)
				}
				if _, err := br.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			var client sync.WaitGroup
			client.Go(func() {
				for {
					if _, err := io.WriteString(c, "1\r\nx\r\n"); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
			res := answered(t, br, http.StatusRequestTimeout)
			if took := time.Since(began); took != time.Minute || !errors.Is(d.err, os.ErrDeadlineExceeded) || !res.Close {
				t.Errorf("%q: answered after %v, body ended with %v, close %t", header, took, d.err, res.Close)
			}
			if b, err := io.ReadAll(br); len(b) > 0 || err != nil || time.Since(began) > 71*time.Second {
				t.Errorf("%q: cut after %v with %q, %v", header, time.Since(began), b, err)
			}
			c.Close()
			client.Wait()
			r.end(t)
		})
	}
}

// One that sends steadily has nearly a minute, and its connection goes on.
func TestLongBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		var d reads
		r := runWith(oneRecord{service: d.serve})
		c, br := r.post(t, fmt.Sprintf("Content-Length: %d\r\n", size))
		began := time.Now()
		for range size / (20 << 10) {
			if _, err := io.WriteString(c, strings.Repeat("x", 20<<10)); err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
			time.Sleep(time.Second)
		}
		if _, err := io.WriteString(c, strings.Repeat("x", size%(20<<10))); err != nil {
			t.Fatal(err)
		}
		if res := answered(t, br, http.StatusAccepted); res.Close || d.n != size || time.Since(began) < 50*time.Second {
			t.Errorf("%d bytes, %v, close %t", d.n, time.Since(began), res.Close)
		}
		if _, err := io.WriteString(c, "POST /sip/main HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"); err != nil {
			t.Fatal(err)
		}
		if answered(t, br, http.StatusAccepted); d.n != 2 {
			t.Errorf("%d bytes", d.n)
		}
		c.Close()
		r.end(t)
	})
}

// The time of a body ends with the body: a service may take as long as it needs.
func TestSlowSIP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone error
		r := runWith(oneRecord{service: server.SIPService(func(w http.ResponseWriter, r *http.Request, _ string) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("after the end: %d, %v", n, err)
			}
			time.Sleep(5 * time.Minute)
			gone = r.Context().Err()
			w.WriteHeader(http.StatusAccepted)
		})})
		c, br := r.post(t, "Content-Length: 5\r\n")
		io.WriteString(c, "hello")
		if res := answered(t, br, http.StatusAccepted); gone != nil || res.Close {
			t.Errorf("the context ended with %v, close %t", gone, res.Close)
		}
		c.Close()
		r.end(t)
	})
}

// A body that the service does not want is not waited for, and ends the connection.
func TestBodyThatIsNotRead(t *testing.T) {
	for _, sent := range []string{"Content-Length: 5000000000\r\n\r\nx", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			r := runWith(oneRecord{service: func(w http.ResponseWriter, r *http.Request, _ string) { http.Error(w, "no", http.StatusForbidden) }})
			began := time.Now()
			c := r.dial()
			io.WriteString(c, "POST /sip/main HTTP/1.1\r\nHost: localhost\r\n"+sent)
			br := bufio.NewReader(c)
			if res := answered(t, br, http.StatusForbidden); !res.Close || time.Since(began) != 0 {
				t.Errorf("%q: after %v, close %t", sent, time.Since(began), res.Close)
			}
			if b, err := io.ReadAll(br); len(b) > 0 || err != nil || time.Since(began) > 11*time.Second {
				t.Errorf("%q: cut after %v with %q, %v", sent, time.Since(began), b, err)
			}
			r.end(t)
		})
	}
}

// A service that closes the body waits no longer for it either.
func TestBodyThatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runWith(oneRecord{service: server.SIPService(func(w http.ResponseWriter, r *http.Request, _ string) {
			r.Body.Close()
			w.WriteHeader(http.StatusForbidden)
		})})
		began := time.Now()
		c, br := r.post(t, "Content-Length: 5\r\n")
		if res := answered(t, br, http.StatusForbidden); !res.Close || time.Since(began) != time.Minute {
			t.Errorf("after %v, close %t", time.Since(began), res.Close)
		}
		c.Close()
		r.end(t)
	})
}

func TestHugeBody(t *testing.T) {
	const limit = 1 << 20
	h := newTestServer(t, "", withSIP(func(w http.ResponseWriter, r *http.Request, _ string) {
		n, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, limit))
		var tooLarge *http.MaxBytesError
		if !errors.As(err, &tooLarge) || n != limit {
			t.Errorf("%d bytes, %v", n, err)
		}
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))
	// The client is a patient one, which reads only after it has sent it all.
	body := strings.Repeat("x", 1_100_000)
	for _, rest := range []string{"Content-Length: 1100000\r\n\r\n" + body, "Transfer-Encoding: chunked\r\n\r\n10c8e0\r\n" + body + "\r\n0\r\n\r\n"} {
		r, after := h.raw("POST /sip/main HTTP/1.1\r\nHost: localhost\r\n" + rest)
		r.want(t, 413)
		if _, err := after.ReadByte(); err == nil {
			t.Error("the connection goes on after a body that nobody read")
		}
	}
}

// To end without an answer is not to say 200.
func TestSIPThatSaysNothing(t *testing.T) {
	h := newTestServer(t, "", withSIP(func(http.ResponseWriter, *http.Request, string) {}))
	res, err := h.web.Client().Post(h.base+"/sip/main", "text/xml", strings.NewReader("<x/>"))
	if err == nil {
		res.Body.Close()
		t.Errorf("status %d", res.StatusCode)
	}
	if lines := h.journal.at(slog.LevelError); len(lines) > 0 {
		t.Errorf("log: %q", lines)
	}
}

// Nor is it when the server ends: whoever sent a notification must send it again.
func TestEndCutsSIP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		r := runWith(oneRecord{service: server.SIPService(func(_ http.ResponseWriter, r *http.Request, _ string) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			close(asked)
			<-r.Context().Done()
		})})
		c, br := r.post(t, "Content-Length: 5\r\n")
		io.WriteString(c, "hello")
		<-asked
		r.end(t)
		if b, err := io.ReadAll(br); len(b) > 0 {
			t.Errorf("%q, %v", b, err)
		}
	})
}

func TestSIPPanicIsOneAnswer(t *testing.T) {
	h := newTestServer(t, "", withSIP(func(http.ResponseWriter, *http.Request, string) { panic("no such thing") }))
	h.ask(http.MethodPost, h.base+"/sip/main").want(t, 500)
	h.get("/healthz").want(t, 200)
	if lines := h.journal.at(slog.LevelError); len(lines) != 1 || !strings.Contains(lines[0], "path=/sip/main ") || !strings.Contains(lines[0], "no such thing") {
		t.Errorf("log: %q", lines)
	}
}

func TestGateCountsBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d reads
		r := runLimited(d.serve, func(o *server.Options) { o.Limits = server.Limits{PerAddress: 1} })
		first, firstReader := r.post(t, "Content-Length: 5\r\n")
		synctest.Wait() // its body is being waited for
		began := time.Now()
		second, secondReader := r.post(t, "Content-Length: 5\r\n")
		if res := answered(t, secondReader, http.StatusTooManyRequests); !res.Close || time.Since(began) != 0 {
			t.Errorf("after %v, close %t", time.Since(began), res.Close)
		}
		if b, err := io.ReadAll(secondReader); len(b) > 0 || err != nil || time.Since(began) > 11*time.Second {
			t.Errorf("cut after %v with %q, %v", time.Since(began), b, err)
		}
		io.WriteString(first, "hello")
		answered(t, firstReader, http.StatusAccepted)
		third, thirdReader := r.post(t, "Content-Length: 2\r\n")
		io.WriteString(third, "hi")
		answered(t, thirdReader, http.StatusAccepted)
		for _, c := range []io.Closer{first, second, third} {
			c.Close()
		}
		r.end(t)
	})
}

// recipient is a notification recipient.
type recipient struct {
	sip.Backend
	token string
}

func (b *recipient) Admit(context.Context, sip.Caller) error { return nil }
func (b *recipient) Notify(_ context.Context, c sip.Caller, _ *sip.Disposition) error {
	b.token = c.Token
	return nil
}

// The service itself gets on with what is around it.
func TestServiceOfSIP(t *testing.T) {
	const message = `<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body><ingest-disposition xmlns="` + sip.Namespace +
		`"><rejected/></ingest-disposition></e:Body></e:Envelope>`
	synctest.Test(t, func(t *testing.T) {
		var b recipient
		r := runWith(oneRecord{service: (&sip.Handler{Backend: &b, Offers: sip.Operations{Notify: true}, Location: "http://x/sip/main"}).Serve})
		c, br := r.post(t, fmt.Sprintf("Content-Type: text/xml\r\nContent-Length: %d\r\n", len(message)))
		io.WriteString(c, message)
		if res := answered(t, br, http.StatusAccepted); res.ContentLength != 0 || res.Close || b.token != "token" {
			t.Errorf("length %d, close %t, token %q", res.ContentLength, res.Close, b.token)
		}
		io.WriteString(c, "GET /sip/main?wsdl HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if res := answered(t, br, http.StatusOK); res.Header.Get("Content-Type") != "text/xml; charset=utf-8" || res.Close {
			t.Errorf("description: %v, close %t", res.Header, res.Close)
		}
		io.WriteString(c, "PUT /sip/main HTTP/1.1\r\nHost: localhost\r\n\r\n")
		answered(t, br, http.StatusMethodNotAllowed)
		io.WriteString(c, "POST /sip/main HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nContent-Length: 500\r\n\r\n"+message[:9])
		if res := answered(t, br, http.StatusRequestTimeout); !res.Close {
			t.Error("the connection goes on after half a message")
		}
		c.Close()
		for _, header := range []string{"Content-Type: text/xml\r\nContent-Length: 5000000\r\n", "Content-Type: image/png\r\nContent-Length: 5\r\n"} {
			c, br := r.post(t, header)
			res, err := http.ReadResponse(br, nil)
			if err != nil || res.StatusCode != 413 && res.StatusCode != 415 || !res.Close {
				t.Errorf("%q: %v, %v", header, res, err)
			}
			c.Close()
		}
		r.end(t)
	})
}

func TestPagesLinkTheSIPService(t *testing.T) {
	for _, mount := range []string{"", "/bridge/here"} {
		h := newTestServer(t, mount, withSIP(tells)).set("main", "Main", event.Mirror).set("other", "Other", event.Mirror)
		wsdl := h.base + "/sip/main?wsdl"
		if d := h.page("/sets/main/"); !strings.Contains(strings.Join(d.links, " "), wsdl) {
			t.Errorf("the set's page leads to %q", d.links)
		}
		h.ask(http.MethodGet, wsdl).want(t, 200)
		for _, path := range []string{"/", "/sets/other/"} {
			if d := h.page(path); strings.Contains(strings.Join(d.links, " "), "/sip/") {
				t.Errorf("%s leads to a service that it has not: %q", path, d.links)
			}
		}
	}
}
