//go:build unix

package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// S3Server is an S3 server on loopback, a versitygw, with one account that may do everything.
// Its region is us-east-1. As it keeps objects as files, the key of one cannot be that of
// another and a slash and more. Its methods but NewBucket, Address, Proxy, Folder, Env and Setenv
// are for one goroutine at a time.
type S3Server struct {
	service
	AccessKey, SecretKey string
	program              string
}

// S3 starts a server of the test's own, which stops and whose data goes when the test ends. A
// test that does not stop the server, and damages no objects but its own, better uses
// SharedS3. Without versitygw the test is skipped, as by Need.
func S3(t testing.TB) *S3Server {
	t.Helper()
	s, err := startS3(needS3(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("versitygw said:\n%s", s.said())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// sharedS3 is the server of this process.
var sharedS3 struct {
	sync.Mutex
	server *S3Server
	err    error
}

// SharedS3 returns the server that all tests of this process share; the first call starts it.
// Each test needs a bucket of its own: NewBucket. WithS3 stops the server in TestMain, before
// a search for goroutines that are left; at the latest it stops, and its data goes, when the
// process ends, however it ends. The first call must not be in a synctest bubble. Without
// versitygw the test is skipped, as by Need.
func SharedS3(t testing.TB) *S3Server {
	t.Helper()
	program := needS3(t)
	sharedS3.Lock()
	defer sharedS3.Unlock()
	if sharedS3.server == nil && sharedS3.err == nil {
		if sharedS3.server, sharedS3.err = startS3(program); sharedS3.err == nil {
			sharedS3.server.lasting = true
		}
	}
	if sharedS3.err != nil {
		t.Fatal(sharedS3.err)
	}
	return sharedS3.server
}

func stopSharedS3() error {
	sharedS3.Lock()
	defer sharedS3.Unlock()
	s := sharedS3.server
	sharedS3.server = nil
	if s == nil {
		return nil
	}
	return s.Close()
}

// WithS3 makes m, a *testing.M or what wraps one, stop the shared server when it has run:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.WithS3(m)) }
func WithS3(m interface{ Run() int }) interface{ Run() int } { return withServer{m, stopSharedS3} }

// needS3 returns the path of versitygw: the one that make deps has installed, else that of
// PATH.
func needS3(t testing.TB) string {
	t.Helper()
	for _, program := range [...]string{filepath.Join(Root(t), ".tools", "versitygw"), "versitygw"} {
		if path, err := exec.LookPath(program); err == nil {
			return path
		}
	}
	if Required() {
		t.Fatalf("peer versitygw is missing: make deps installs it")
	}
	t.Skipf("peer versitygw is missing, so nothing is tested with it: make deps installs it")
	return ""
}

// startS3 starts a server without a bucket.
func startS3(program string) (_ *S3Server, err error) {
	s := &S3Server{service: service{name: "versitygw"}, program: program, AccessKey: rand.Text(), SecretKey: rand.Text()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.settle(os.TempDir()); err != nil {
		return nil, err
	}
	for _, dir := range [...]string{s.Folder(), s.metadata()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	return s, s.start()
}

// metadata returns the folder of what the server knows of the objects: not every file system
// has attributes for it.
func (s *S3Server) metadata() string { return filepath.Join(s.folder, "metadata") }

// Folder returns the folder that has a folder for each bucket, and in that a file for each
// object, named like its key.
func (s *S3Server) Folder() string { return filepath.Join(s.folder, "data") }

// NewBucket makes an empty bucket and returns its name.
func (s *S3Server) NewBucket(t testing.TB) string {
	t.Helper()
	name := "test-" + strings.ToLower(rand.Text())
	if err := os.Mkdir(filepath.Join(s.Folder(), name), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

// Endpoint returns the URL of the server.
func (s *S3Server) Endpoint() string { return "http://" + s.address }

// Address returns the address of a bucket, or of a prefix in it, whose parts are joined by
// slashes: s3://bucket/prefix?endpoint=URL.
func (s *S3Server) Address(bucket string, prefix ...string) string {
	return "s3://" + strings.Join(append([]string{bucket}, prefix...), "/") + "?endpoint=" + s.Endpoint()
}

// Proxy returns the endpoint of a proxy of the server, until the test ends. answers gets each
// request first, and returns true if it has answered it itself.
func (s *S3Server) Proxy(t testing.TB, answers func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	reverse := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", s.address // its Host stays, as that is signed
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers(w, r) {
			reverse.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL
}

// Env returns the account as variables of the environment, for another process.
func (s *S3Server) Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s.SecretKey, "AWS_SESSION_TOKEN="}
}

// Setenv sets the variables of Env until the test ends.
func (s *S3Server) Setenv(t testing.TB) {
	t.Helper()
	for _, variable := range s.Env() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
}

// Stop kills the server and waits until it has ended. A shared server is not stopped.
func (s *S3Server) Stop(t testing.TB) {
	t.Helper()
	if s.lasting {
		t.Fatal("a shared server is stopped: take one of the test's own")
	}
	if err := s.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// Start starts a stopped server again, at the same address and with the same objects, and
// waits until it answers.
func (s *S3Server) Start(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// Close stops the server and removes its data.
func (s *S3Server) Close() error { return s.close(syscall.SIGKILL) }

func (s *S3Server) start() error {
	const health = "/health"
	cmd := exec.Command(s.program, "--port", s.address, "--keep-alive", "--quiet", "--health", health, "posix", "--sidecar", s.metadata(), s.Folder())
	cmd.Dir = s.folder
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + s.folder, "TZ=UTC", "ROOT_ACCESS_KEY_ID=" + s.AccessKey, "ROOT_SECRET_ACCESS_KEY=" + s.SecretKey}
	cmd.SysProcAttr = childAttributes(nil, syscall.SIGKILL)
	transport := &http.Transport{DisableKeepAlives: true}
	return s.run(cmd, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint()+health, nil)
		if err != nil {
			return err
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("versitygw answers %s", answer.Status)
		}
		return nil
	}, syscall.SIGKILL)
}
