//go:build unix

package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestMain lets the test binary be the process that a test kills.
func TestMain(m *testing.M) {
	if os.Getenv("TESTENV_VICTIM") != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(testenv.WithS3(testenv.WithPostgres(m)))
}

// Fatal makes a recorder of failures that end the test.
func (r *recorder) Fatal(...any) { r.verdict = "failed"; panic(r) }

// query returns what SQL answers at a URL: the values of all rows, one after another.
func query(t testing.TB, at, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgconn.Connect(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	var values []string
	for _, r := range results {
		for _, row := range r.Rows {
			for _, v := range row {
				values = append(values, string(v))
			}
		}
	}
	return strings.Join(values, " ")
}

// Two schemas of a server have tables of the same name, and their rows are there again after
// either kind of shutdown. A server that is a copy of the first has none of them.
func TestPostgres(t *testing.T) {
	t.Setenv("BRIDGE_CLUSTERS", t.TempDir())
	p := testenv.Postgres(t)
	one, two := p.NewSchema(t), p.NewSchema(t)
	if one == two {
		t.Fatalf("%s twice", one)
	}
	query(t, one, "CREATE TABLE t (v text); INSERT INTO t VALUES ('one')")
	query(t, two, "CREATE TABLE t (v text); INSERT INTO t VALUES ('two')")
	const identity = "SELECT system_identifier FROM pg_control_system()"
	if other := testenv.Postgres(t); query(t, other.URL(), identity) != query(t, p.URL(), identity) {
		t.Error("the second server is no copy of the first")
	} else if got := query(t, other.URL(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'test%'"); got != "0" {
		t.Errorf("the second server has %s schemas of the first", got)
	}
	address := addressOf(p.URL())
	for name, how := range map[string]testenv.Shutdown{"immediate": testenv.ImmediateShutdown, "fast": testenv.FastShutdown} {
		p.Stop(t, how)
		if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%s: called a stopped server: %v, %v", name, c, err)
		}
		p.Start(t)
		if got := query(t, one, "SELECT v FROM t") + " " + query(t, two, "SELECT v FROM t"); got != "one two" {
			t.Errorf("%s: found %q", name, got)
		}
	}
	for name, want := range map[string]string{
		"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "server_encoding": "UTF8",
		"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200",
	} {
		if got := query(t, p.URL(), "SHOW "+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := query(t, p.URL(), "SELECT datcollate FROM pg_database WHERE datname = current_database()"); got != "C" {
		t.Errorf("the order of texts is that of %q, want C", got)
	}
	folder := filepath.Dir(query(t, p.URL(), "SHOW data_directory"))
	refused := func(when string) {
		t.Helper()
		if got := outcome(t, func(r *recorder) { p.Start(r) }); got != "failed" {
			t.Errorf("started %s: %s", when, got)
		}
	}
	refused("while it runs")
	p.Stop(t, testenv.ImmediateShutdown)
	if err := os.Remove(filepath.Join(folder, "data", "PG_VERSION")); err != nil {
		t.Fatal(err)
	}
	refused("with damaged data")
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	refused("when it is closed")
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
}

// All tests of a process share one server, or the one that BRIDGE_POSTGRES names, whose
// schemas go with the test; no test stops it.
func TestSharedPostgres(t *testing.T) {
	t.Setenv("BRIDGE_POSTGRES", "")
	p := testenv.SharedPostgres(t)
	if other := testenv.SharedPostgres(t); other != p {
		t.Errorf("%s, then %s", p.URL(), other.URL())
	}
	named := p.URL() + "?search_path=public&application_name=a%20test"
	t.Setenv("BRIDGE_POSTGRES", named)
	var schema string
	t.Run("named", func(t *testing.T) {
		other := testenv.SharedPostgres(t)
		if other.URL() != named {
			t.Errorf("%s, want %s", other.URL(), named)
		}
		at := other.NewSchema(t)
		query(t, at, "CREATE TABLE t (v text)")
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		schema = u.Query().Get("search_path")
		if got := query(t, at, "SHOW application_name; SELECT schemaname FROM pg_tables WHERE tablename = 't'"); got != "a test "+schema {
			t.Errorf("at %s: %q", at, got)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := query(t, p.URL(), "SELECT count(*) FROM pg_namespace WHERE nspname = '"+schema+"'"); got != "0" {
		t.Errorf("the schema %s is still there", schema)
	}
	for _, s := range []*testenv.PostgresServer{p, testenv.SharedPostgres(t)} {
		if got := outcome(t, func(r *recorder) { s.Stop(r, testenv.FastShutdown) }); got != "failed" {
			t.Errorf("stopping %s: %s", s.URL(), got)
		}
	}
}

// A process that is killed leaves neither the server nor its data behind.
func TestPostgresKilled(t *testing.T) {
	testenv.Heavy(t)
	testenv.NeedPostgres(t)
	var folder, address string
	kill(t, "postgres", func(url string) {
		folder, address = filepath.Dir(query(t, url, "SHOW data_directory")), addressOf(url)
	})
	gone(t, folder, address)
}

func addressOf(url string) string {
	return strings.TrimSuffix(strings.TrimPrefix(url, "postgres://bridge@"), "/postgres")
}

// kill runs TestVictim as another process with a server, and kills it when alive, which gets
// what it says, has returned.
func kill(t *testing.T, server string, alive func(said string)) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestVictim$")
	cmd.Env = append(os.Environ(), "TESTENV_VICTIM="+server, "BRIDGE_POSTGRES=")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it is killed
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	alive(strings.TrimSpace(line))
}

// gone waits until a folder is removed and nobody listens at an address.
func gone(t *testing.T, folder, address string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(2 * time.Minute); ; <-tick.C {
		_, missing := os.Stat(folder)
		c, refused := net.Dial("tcp", address)
		if refused == nil {
			c.Close()
		}
		if errors.Is(missing, fs.ErrNotExist) && errors.Is(refused, syscall.ECONNREFUSED) {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%s: %v; %s: %v", folder, missing, address, refused)
		}
	}
}

// TestVictim is the process that kill kills.
func TestVictim(t *testing.T) {
	switch os.Getenv("TESTENV_VICTIM") {
	case "postgres":
		fmt.Println(testenv.SharedPostgres(t).URL())
	case "s3":
		s := testenv.SharedS3(t)
		fmt.Println(s.Endpoint(), filepath.Dir(s.Folder()))
	default:
		t.Skip("another test runs it")
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
}

// The PostgreSQL of PATH is found before those of the folders, and of these the newest that
// is complete. Without any, a test is skipped or fails.
func TestFindPostgres(t *testing.T) {
	top := t.TempDir()
	t.Cleanup(testenv.SetPostgresFolders(filepath.Join(top, "lib", "*", "bin")))
	install := func(dir string, programs ...string) string {
		dir = filepath.Join(top, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range programs {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	found := func(want string) {
		t.Helper()
		if got := testenv.FindPostgres(); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	t.Setenv("PATH", install("path"))
	t.Setenv("BRIDGE_POSTGRES", "")
	for env, want := range map[string]string{"": "skipped", "required": "failed"} {
		t.Setenv("BRIDGE_PEERS", env)
		for name, need := range map[string]func(testing.TB) *testenv.PostgresServer{"Postgres": testenv.Postgres, "SharedPostgres": testenv.SharedPostgres} {
			if got := outcome(t, func(r *recorder) { need(r) }); got != want {
				t.Errorf("BRIDGE_PEERS=%q, %s: %s, want %s", env, name, got, want)
			}
		}
	}
	found("")
	install("lib/20/bin", "postgres")
	found("")
	install("lib/9.6/bin", "postgres", "initdb")
	newest := install("lib/17/bin", "postgres", "initdb")
	install("lib/15/bin", "postgres", "initdb")
	install("lib/current/bin", "postgres", "initdb")
	found(newest)
	elsewhere := install("elsewhere", "postgres")
	if err := os.Symlink(filepath.Join(elsewhere, "postgres"), filepath.Join(top, "path", "postgres")); err != nil {
		t.Fatal(err)
	}
	found(newest)
	install("elsewhere", "initdb")
	found(elsewhere)
}

// A server that another user runs has its folder where that user gets to.
func TestPostgresFolder(t *testing.T) {
	dir := t.TempDir() // in a folder for the caller alone
	t.Setenv("TMPDIR", dir)
	if got := testenv.Temporary(nil); got != dir {
		t.Errorf("for the caller: %s, want %s", got, dir)
	}
	if got := testenv.Temporary(&syscall.Credential{}); got != "/tmp" {
		t.Errorf("for another user: %s, want /tmp", got)
	}
	t.Setenv("TMPDIR", "/")
	if got := testenv.Temporary(&syscall.Credential{}); got != "/" {
		t.Errorf("for another user: %s, want /", got)
	}
}
