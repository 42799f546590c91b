package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// credentials sets some, for servers that do not look.
func credentials(t *testing.T) {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_SESSION_TOKEN", "")
}

// serve starts a bad S3 server, and returns its bucket. The server must not be waiting when
// the test ends.
func serve(t *testing.T, patience time.Duration, bad http.HandlerFunc) *bucket.Bucket {
	t.Helper()
	credentials(t)
	server := httptest.NewServer(bad)
	t.Cleanup(server.Close)
	return openAt(t, server.URL, patience)
}

// openAt returns a bucket of a server until the test ends.
func openAt(t *testing.T, endpoint string, patience time.Duration) *bucket.Bucket {
	t.Helper()
	a, err := bucket.Parse("s3://library/p?endpoint=" + endpoint)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bucket.OpenPatience(a, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, b) })
	return b
}

// Each answer of a server is one of the four errors. The fifth is about the object.
func TestAnswers(t *testing.T) {
	testenv.Heavy(t)
	credentials(t)
	var all sync.WaitGroup
	for _, c := range []struct {
		status int
		answer string // a code, or a whole body
		want   error
		says   string
	}{
		{404, "NoSuchKey", fs.ErrNotExist, ""},
		{404, "NoSuchBucket", bucket.ErrRefused, "create it"},
		{404, "<html><h1>Not Found</h1></html>", bucket.ErrAway, "not in the words of S3"},
		{404, "", bucket.ErrAway, "not in the words of S3"},
		{403, "AccessDenied", bucket.ErrRefused, "allow them s3:GetObject (AccessDenied"},
		{403, "", bucket.ErrRefused, "allow them s3:GetObject"},
		{403, "InvalidAccessKeyId", bucket.ErrRefused, "AWS_ACCESS_KEY_ID"},
		{403, "SignatureDoesNotMatch", bucket.ErrRefused, "AWS_SECRET_ACCESS_KEY"},
		{403, "RequestTimeTooSkewed", bucket.ErrRefused, "the clock of this machine and that of the server differ too much"},
		{400, "ExpiredToken", bucket.ErrRefused, "AWS_SESSION_TOKEN"},
		{301, "<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message><Region>eu-north-1</Region></Error>", bucket.ErrRefused, "write region=eu-north-1"},
		{400, "AuthorizationHeaderMalformed", bucket.ErrRefused, "write region=the region of the bucket"},
		{405, "MethodNotAllowed", bucket.ErrRefused, "MethodNotAllowed"},
		{501, "NotImplemented", bucket.ErrRefused, "NotImplemented"},
		{400, "Client sent an HTTP request to an HTTPS server.", bucket.ErrRefused, "Client sent an HTTP request"},
		{503, "SlowDown", bucket.ErrAway, "SlowDown"},
		{503, "", bucket.ErrAway, "503"},
		{502, "<html>Bad Gateway</html>", bucket.ErrAway, "502"},
		{500, "InternalError", bucket.ErrAway, "InternalError"},
		{429, "", bucket.ErrAway, "429"},
		{408, "", bucket.ErrAway, "408"},
		{400, "RequestTimeout", bucket.ErrAway, "RequestTimeout"},
		{409, "OperationAborted", bucket.ErrAway, "OperationAborted"},
	} {
		var asked atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.WriteHeader(c.status)
			answer := c.answer
			if answer != "" && !strings.ContainsAny(answer, "< ") {
				answer = "<Error><Code>" + answer + "</Code><Message>no\nreason</Message></Error>"
			}
			fmt.Fprint(w, answer)
		}))
		t.Cleanup(server.Close)
		b := openAt(t, server.URL, time.Minute)
		all.Go(func() {
			_, err := b.Get(t.Context(), "k", 0, -1)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), b.String()+": cannot read \"k\": ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%d %s: %v\nwant %v, %s", c.status, c.answer, err, c.want, c.says)
			}
			for _, other := range []error{fs.ErrNotExist, bucket.ErrRefused, bucket.ErrAway} {
				if other != c.want && errors.Is(err, other) {
					t.Errorf("%d %s: %v is %v too", c.status, c.answer, err, other)
				}
			}
			if n := asked.Load(); n > 3 {
				t.Errorf("%d %s: asked %d times", c.status, c.answer, n)
			}
		})
	}
	all.Wait()
}

// A peer that is no S3 server, or that has no certificate that we trust.
func TestNoServer(t *testing.T) {
	testenv.Heavy(t)
	credentials(t)
	plain, secure := httptest.NewServer(http.NotFoundHandler()), httptest.NewUnstartedServer(http.NotFoundHandler())
	defer plain.Close()
	defer secure.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	for endpoint, want := range map[string]struct {
		kind error
		says string
	}{
		strings.Replace(plain.URL, "http:", "https:", 1): {bucket.ErrRefused, "it speaks http, not https"},
		secure.URL: {bucket.ErrRefused, "its certificate is not valid; correct the endpoint, or name the authority's certificate with SSL_CERT_FILE"},
		strings.Replace(secure.URL, "https:", "http:", 1): {bucket.ErrRefused, "HTTP request to an HTTPS server"},
		"http://" + testenv.Nobody(t):                     {bucket.ErrAway, "connection refused"},
	} {
		began := time.Now()
		err := openAt(t, endpoint, time.Minute).Check(t.Context())
		if !errors.Is(err, want.kind) || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v\nwant %v, %s", endpoint, err, want.kind, want.says)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s took %v", endpoint, took)
		}
	}
}

// A server that goes silent, or breaks off, before the answer, within the body of one or of a
// request, is away after the time that a connection may move no byte.
func TestSilence(t *testing.T) {
	testenv.Heavy(t)
	header := func(w http.ResponseWriter, length int) {
		w.Header().Set("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", length-1, length))
		w.Header().Set("Content-Length", fmt.Sprint(length))
	}
	half := func(w http.ResponseWriter) {
		_, _ = w.Write(make([]byte, 500))
		_ = http.NewResponseController(w).Flush()
	}
	wait := func(r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	credentials(t)
	var all sync.WaitGroup
	for name, bad := range map[string]http.HandlerFunc{
		"says nothing": func(_ http.ResponseWriter, r *http.Request) { wait(r) },
		"stalls in the body": func(w http.ResponseWriter, r *http.Request) {
			header(w, 1000)
			half(w)
			wait(r)
		},
		"stalls in a body without length": func(w http.ResponseWriter, r *http.Request) {
			header(w, 1000)
			w.Header().Del("Content-Length")
			half(w)
			wait(r)
		},
		"breaks off in the body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			header(w, 1000)
			half(w)
			panic(http.ErrAbortHandler)
		},
		"breaks off in a body without length": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			header(w, 1000)
			w.Header().Del("Content-Length")
			half(w)
			panic(http.ErrAbortHandler)
		},
		"ends a body without length early": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			header(w, 1000)
			w.Header().Del("Content-Length")
			half(w)
		},
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"hangs up late": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		},
	} {
		server := httptest.NewServer(bad)
		t.Cleanup(server.Close)
		b := openAt(t, server.URL, 200*time.Millisecond)
		all.Go(func() {
			began := time.Now()
			if got, err := b.Get(t.Context(), "k", 0, 1000); !errors.Is(err, bucket.ErrAway) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, Get: %d bytes, %v", name, len(got), err)
			}
			for _, err := range b.Objects(t.Context(), "") {
				if !errors.Is(err, bucket.ErrAway) {
					t.Errorf("%s, Objects: %v", name, err)
				}
			}
			if strings.Contains(name, "body") {
				return // which other calls do not read
			}
			calls(t, b, "k", func(call string, err error) {
				if !errors.Is(err, bucket.ErrAway) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s, %s: %v", name, call, err)
				}
			})
			if took := time.Since(began); took > time.Minute {
				t.Errorf("%s: the calls took %v", name, took)
			}
		})
	}
	all.Wait()
}

// A peer that takes no more of a body is given up as well. One that is slow is not, whatever
// it takes altogether.
func TestSlowPeer(t *testing.T) {
	testenv.Heavy(t)
	credentials(t)
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts connections to it
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	b := openAt(t, "http://"+deaf.Addr().String(), 200*time.Millisecond)
	if err := b.Put(t.Context(), "k", pattern{}, bucket.PartSize); !errors.Is(err, bucket.ErrAway) {
		t.Errorf("to a peer that reads nothing: %v", err)
	}

	const patience = 2 * time.Second
	tick := time.NewTicker(patience / 20)
	defer tick.Stop()
	slow := serve(t, patience, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")
		_ = http.NewResponseController(w).Flush()
		for range 25 {
			<-tick.C
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
		}
	})
	if got, err := slow.Get(t.Context(), "k", 0, -1); err != nil || len(got) != 25 {
		t.Errorf("from a slow peer: %q, %v", got, err)
	}
}

// A call ends at once with the error of its context, which is no other error.
func TestCancelled(t *testing.T) {
	credentials(t)
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Query().Has("uploadId") && r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/streamed") {
			w.Header().Set("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")
			w.Header().Set("Content-Length", "1000")
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Query().Has("uploads") {
			fmt.Fprint(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
			return
		}
		select {
		case asked <- struct{}{}:
		default: // it has said so
		}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	b := openAt(t, server.URL, time.Hour)
	for name, call := range map[string]func(ctx context.Context) error{
		"Put":          func(ctx context.Context) error { return b.Put(ctx, "k", strings.NewReader("x"), 1) },
		"Put in parts": func(ctx context.Context) error { return b.Put(ctx, "k", pattern{}, bucket.PartSize+1) },
		"Get":          func(ctx context.Context) error { _, err := b.Get(ctx, "k", 0, -1); return err },
		"Stream":       func(ctx context.Context) error { _, err := b.Stream(ctx, "k", 0); return err },
		"read":         func(ctx context.Context) error { var all []byte; return readAll(b.Stream(ctx, "streamed", 0))(&all) },
		"Remove":       func(ctx context.Context) error { return b.Remove(ctx, "k", "other") },
		"Check":        b.Check,
		"Objects": func(ctx context.Context) (err error) {
			for _, err = range b.Objects(ctx, "") {
			}
			return err
		},
	} {
		for _, want := range []error{context.Canceled, context.DeadlineExceeded} {
			ctx, cancel := context.WithCancel(t.Context())
			if want == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
			}
			select {
			case <-asked: // by the call before
			default:
			}
			ended := make(chan error)
			go func() { ended <- call(ctx) }()
			if want == context.Canceled {
				<-asked
				cancel()
			}
			began := time.Now()
			err := <-ended
			cancel()
			if !errors.Is(err, want) || errors.Is(err, bucket.ErrAway) || errors.Is(err, bucket.ErrRefused) || !strings.HasPrefix(err.Error(), b.String()+": cannot ") {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s took %v", name, took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled before: %v", name, err)
		}
	}
}

// A server that sends something else than was asked for is not believed.
func TestWrongAnswers(t *testing.T) {
	testenv.Heavy(t)
	contents := func(keys ...string) string {
		var text strings.Builder
		for _, key := range keys {
			fmt.Fprintf(&text, "<Contents><Key>%s</Key><Size>1</Size><LastModified>2026-11-02T10:00:00Z</LastModified></Contents>", key)
		}
		return "<ListBucketResult>" + text.String() + "</ListBucketResult>"
	}
	var answer, part string
	b := serve(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")
		if part != "" {
			w.Header().Set("Content-Range", part)
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, "23")
			return
		}
		fmt.Fprint(w, answer)
	})
	answer = "0123456789"
	if got, err := b.Get(t.Context(), "k", 2, 3); !errors.Is(err, bucket.ErrRefused) || !strings.Contains(err.Error(), "answers requests with Range") {
		t.Errorf("the whole for a part: %q, %v", got, err)
	}
	if body, err := b.Stream(t.Context(), "k", 2); !errors.Is(err, bucket.ErrRefused) {
		t.Errorf("the whole for a part: %v, %v", body, err)
	}
	for said, want := range map[string]error{
		"bytes 2-3/100": bucket.ErrAway, "bytes 2-4/100": bucket.ErrAway, "bytes 2-4/*": bucket.ErrAway, // it has two bytes
		"bytes 2-3/4": io.ErrUnexpectedEOF, "bytes 2-3/*": io.ErrUnexpectedEOF,
	} {
		part = said
		_, err := b.Get(t.Context(), "k", 2, 3)
		if !errors.Is(err, want) || want == bucket.ErrAway && errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("less than was asked for, %s: %v, want %v", said, err, want)
		}
	}
	part = "bytes 2-3/100"
	if body, err := b.Stream(t.Context(), "k", 2); !errors.Is(err, bucket.ErrAway) {
		t.Errorf("less than was asked for: %v, %v", body, err)
	}
	part = ""
	for list, want := range map[string]string{
		contents("p/a", "p/c", "p/b"): "a c access refused", contents("p/a", "p/a"): "a access refused", contents("p/a", "q/b"): "a access refused",
		contents("p/", "p/a"): "a ", contents(): "", "<ListBucketResult><Contents>": "the S3 server is not available",
		"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>": "access refused",
	} {
		answer = list
		got := ""
		for o, err := range b.Objects(t.Context(), "") {
			switch {
			case errors.Is(err, bucket.ErrAway):
				got += bucket.ErrAway.Error()
			case errors.Is(err, bucket.ErrRefused):
				got += bucket.ErrRefused.Error()
			case err != nil:
				got += err.Error()
			default:
				got += o.Key + " "
			}
		}
		if got != want {
			t.Errorf("%s\ngave %s, want %s", list, got, want)
		}
	}
}

// proxy is between a client and the shared S3 server, and spoils what passes.
type proxy struct {
	mu sync.Mutex
	// before returns true if it has answered a request itself; after may spoil an answer,
	// which then gets lost if it returns an error.
	before func(w http.ResponseWriter, r *http.Request) bool
	after  func(r *http.Response) error
}

// behind returns a bucket of the shared server, once directly and once through a proxy.
func behind(t *testing.T) (direct, spoilt *bucket.Bucket, p *proxy) {
	t.Helper()
	s := testenv.SharedS3(t)
	s.Setenv(t)
	upstream, err := url.Parse(s.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	p = &proxy{}
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	reverse := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = upstream.Scheme, upstream.Host // its Host stays, as that is signed
		},
		ModifyResponse: func(r *http.Response) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.after != nil {
				return p.after(r)
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		answered := p.before != nil && p.before(w, r)
		p.mu.Unlock()
		if !answered {
			reverse.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	name := s.NewBucket(t)
	return open(t, s.Address(name, "p")), open(t, "s3://"+name+"/p?endpoint="+server.URL), p
}

// set changes what the proxy does.
func (p *proxy) set(before func(w http.ResponseWriter, r *http.Request) bool, after func(*http.Response) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}

// Bytes that are damaged on the way to the server are refused there, and the call may be made
// again.
func TestDamaged(t *testing.T) {
	testenv.Heavy(t)
	direct, spoilt, p := behind(t)
	for _, size := range []int64{1000, bucket.PartSize + 1000} {
		p.set(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut {
				r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, 500), flip{r.Body}))
			}
			return false
		}, nil)
		if err := spoilt.Put(t.Context(), "k", pattern{}, size); !errors.Is(err, bucket.ErrAway) {
			t.Errorf("%d bytes, damaged: %v", size, err)
		}
		if _, err := direct.Get(t.Context(), "k", 0, -1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d bytes: damaged ones are stored: %v", size, err)
		}
		p.set(nil, nil)
		if err := spoilt.Put(t.Context(), "k", pattern{}, size); err != nil {
			t.Errorf("%d bytes again: %v", size, err)
		}
		if err := spoilt.Remove(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	}
}

// flip changes a bit of what it reads.
type flip struct{ io.Reader }

func (f flip) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if n > 0 {
		p[0] ^= 1
	}
	return n, err
}

// A call whose answer gets lost has taken effect, and is made again without harm: at once, or
// by the caller.
func TestAnswersLost(t *testing.T) {
	testenv.Heavy(t)
	direct, spoilt, p := behind(t)
	// lose loses the next n answers to a method.
	lose := func(method string, n int) {
		p.set(nil, func(r *http.Response) error {
			if r.Request.Method == method && n > 0 {
				n--
				_, _ = io.Copy(io.Discard, r.Body)
				return errors.New("lost")
			}
			return nil
		})
	}
	for _, n := range []int{1, 2, 3} {
		for _, size := range []int64{1000, bucket.PartSize + 1000} {
			for _, method := range []string{http.MethodPut, http.MethodPost} {
				lose(method, n)
				err := spoilt.Put(t.Context(), "k", pattern{}, size)
				if err != nil && !errors.Is(err, bucket.ErrAway) {
					t.Errorf("%d bytes, %d answers to %s lost: %v", size, n, method, err)
				}
				if err != nil {
					lose("", 0)
					err = spoilt.Put(t.Context(), "k", pattern{}, size)
				}
				if err != nil {
					t.Errorf("%d bytes, again: %v", size, err)
				}
				want := make([]byte, 16)
				_, _ = pattern{}.ReadAt(want, size-16)
				if got, err := direct.Get(t.Context(), "k", size-16, -1); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes, %d answers to %s lost: %x, %v", size, n, method, got, err)
				}
			}
		}
		lose(http.MethodDelete, n)
		if err := spoilt.Remove(t.Context(), "k"); err != nil && !errors.Is(err, bucket.ErrAway) {
			t.Errorf("Remove, %d answers lost: %v", n, err)
		}
		if _, err := direct.Get(t.Context(), "k", 0, -1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Remove, %d answers lost: %v", n, err)
		}
	}
}

// Check says which permission is missing, and finds a server that is not what it should be.
// What it has written it removes if it may.
func TestCheckFinds(t *testing.T) {
	testenv.Heavy(t)
	direct, spoilt, p := behind(t)
	deny := func(is func(r *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !is(r) {
				return false
			}
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>AccessDenied</Code></Error>")
			return true
		}
	}
	list := func(r *http.Request) bool { return r.URL.Query().Has("list-type") }
	for name, c := range map[string]struct {
		before func(http.ResponseWriter, *http.Request) bool
		after  func(*http.Response) error
		want   string
		left   int
	}{
		"nothing is wrong": {},
		"list":             {before: deny(list), want: "cannot list \"bridge-check-\": access refused: the credentials do not permit it; allow them s3:ListBucket"},
		"write":            {before: deny(func(r *http.Request) bool { return r.Method == http.MethodPut }), want: "allow them s3:PutObject and s3:AbortMultipartUpload"},
		"read":             {before: deny(func(r *http.Request) bool { return r.Method == http.MethodGet && !list(r) }), want: "allow them s3:GetObject"},
		"remove":           {before: deny(func(r *http.Request) bool { return r.Method == http.MethodDelete }), want: "allow them s3:DeleteObject", left: 1},
		"does not remove": {before: func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodDelete {
				w.WriteHeader(http.StatusNoContent)
			}
			return r.Method == http.MethodDelete
		}, want: "is still there after it was removed", left: 1},
		"has other bytes": {after: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && !list(r.Request) && r.StatusCode == http.StatusOK {
				r.Body = struct {
					io.Reader
					io.Closer
				}{flip{r.Body}, r.Body}
			}
			return nil
		}, want: "does not have the bytes that were written"},
		"lists nothing": {before: func(w http.ResponseWriter, r *http.Request) bool {
			if list(r) {
				fmt.Fprint(w, "<ListBucketResult></ListBucketResult>")
			}
			return list(r)
		}, want: "is not listed after it was written"},
	} {
		p.set(c.before, c.after)
		err := spoilt.Check(t.Context())
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, bucket.ErrRefused) || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), spoilt.String()+": ")) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
		left := keys(t, direct, "")
		if len(left) != c.left {
			t.Errorf("%s: left %q", name, left)
		}
		for _, o := range left {
			key, _, _ := strings.Cut(o, " ")
			if err := direct.Remove(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
	}
}
