//go:build unix

package testenv_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// open returns the bucket at an address, for the account that the environment has.
func open(t *testing.T, address string) *bucket.Bucket {
	t.Helper()
	a, err := bucket.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bucket.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Objects are there again when the server was killed and has started at the same address, and
// are files that a test can damage. Both hold wherever temporary files are.
func TestS3(t *testing.T) {
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		t.Run(strings.ReplaceAll(dir, "/", " "), func(t *testing.T) {
			t.Setenv("TMPDIR", dir)
			testS3(t)
		})
	}
}

func testS3(t *testing.T) {
	s := testenv.S3(t)
	s.Setenv(t)
	name, other := s.NewBucket(t), s.NewBucket(t)
	if name == other {
		t.Fatalf("%s twice", name)
	}
	b := open(t, s.Address(name, "a", "prefix"))
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "one", strings.NewReader("first"), 5); err != nil {
		t.Fatal(err)
	}
	for o, err := range open(t, s.Address(other)).Objects(t.Context(), "") {
		t.Errorf("in another bucket: %v, %v", o, err)
	}
	s.Stop(t)
	if c, err := net.Dial("tcp", strings.TrimPrefix(s.Endpoint(), "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("called a stopped server: %v, %v", c, err)
	}
	s.Start(t)
	if got, err := b.Get(t.Context(), "one", 0, -1); err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
	file := filepath.Join(s.Folder(), name, "a", "prefix", "one")
	if err := os.WriteFile(file, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Get(t.Context(), "one", 0, -1); err != nil || string(got) != "other" {
		t.Errorf("damaged: %q, %v", got, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "one", 0, -1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	if got := outcome(t, func(r *recorder) { s.Start(r) }); got != "failed" {
		t.Errorf("started while it runs: %s", got)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := outcome(t, func(r *recorder) { s.Start(r) }); got != "failed" {
		t.Errorf("started when it is closed: %s", got)
	}
	if _, err := os.Stat(s.Folder()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
}

// All tests of a process share one server, which none of them stops.
func TestSharedS3(t *testing.T) {
	s := testenv.SharedS3(t)
	if other := testenv.SharedS3(t); other != s {
		t.Errorf("%s, then %s", s.Endpoint(), other.Endpoint())
	}
	if got := outcome(t, func(r *recorder) { s.Stop(r) }); got != "failed" {
		t.Errorf("stopping it: %s", got)
	}
}

// Without versitygw a test is skipped or fails; one in PATH will do.
func TestFindS3(t *testing.T) {
	top := t.TempDir()
	if err := os.WriteFile(filepath.Join(top, "go.mod"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(top)
	path := os.Getenv("PATH")
	t.Setenv("PATH", top)
	for env, want := range map[string]string{"": "skipped", "required": "failed"} {
		t.Setenv("BRIDGE_PEERS", env)
		for name, need := range map[string]func(testing.TB) *testenv.S3Server{"S3": testenv.S3, "SharedS3": testenv.SharedS3} {
			if got := outcome(t, func(r *recorder) { need(r) }); got != want {
				t.Errorf("BRIDGE_PEERS=%q, %s: %s, want %s", env, name, got, want)
			}
		}
	}
	for _, want := range []string{filepath.Join(top, "versitygw"), filepath.Join(top, ".tools", "versitygw")} {
		if err := os.MkdirAll(filepath.Dir(want), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := testenv.NeedS3(t); got != want {
			t.Errorf("found %s, want %s", got, want)
		}
	}
	t.Setenv("PATH", path) // for what removes the folder
	if got := outcome(t, func(r *recorder) { testenv.S3(r) }); got != "failed" {
		t.Errorf("a server that ends at once: %s", got)
	}
}

// A process that is killed leaves neither the server nor its data behind.
func TestS3Killed(t *testing.T) {
	testenv.NeedS3(t)
	var folder, endpoint string
	kill(t, "s3", func(said string) { endpoint, folder, _ = strings.Cut(said, " ") })
	gone(t, folder, strings.TrimPrefix(endpoint, "http://"))
}
