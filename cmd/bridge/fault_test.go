package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
)

// TestTerminate ends bridge serve with SIGTERM while a harvest is under way and
// 32 clients fetch: it ends with status 0, within 10 s where nothing else runs, and
// no answer that it began is cut short.
func TestTerminate(t *testing.T) {
	testenv.Heavy(t)
	chain := httptest.NewServer(&testserver.Chain{Documents: 5, Entries: 500})
	defer chain.Close()
	slow := fixtures.Catalogue(nil)
	underWay := make(chan struct{})
	slow.SetHook(fixtures.Archive(2), fixtures.Hook{Before: func(*http.Request) { close(underWay) }, Wait: make(chan struct{}), Times: 1})
	slowServer := httptest.NewServer(slow)
	defer slowServer.Close()

	f := newFolder(t, fmt.Sprintf("listen = \"127.0.0.1:0\"\n[[set]]\nname = \"big\"\ncontent = \"reference\"\n[[set.source]]\nurl = %q\n"+
		"[[set]]\nname = \"slow\"\n[[set.source]]\nurl = %q\n", chain.URL+fixtures.Subscription, slowServer.URL+fixtures.Subscription))
	c, server := f.serve()
	<-underWay
	if _, err := c.stderr.expect(regexp.MustCompile(`"msg":"harvested","set":"big".*"created":2500,`)); err != nil {
		t.Fatal(err)
	}

	var whole, cut atomic.Int64
	var clients, warm sync.WaitGroup
	for range 32 {
		warm.Add(1)
		clients.Go(func() {
			first := sync.OnceFunc(warm.Done)
			defer first()
			for {
				n, err := fetchWhole(server + "/sets/big/changelist.xml")
				switch {
				case errors.Is(err, errCut):
					return
				case err != nil:
					cut.Add(1)
					t.Errorf("after %d bytes of an answer: %v", n, err)
					return
				}
				whole.Add(1)
				first()
			}
		})
	}
	warm.Wait()
	began := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	status, err := c.status()
	took := time.Since(began)
	clients.Wait()
	if err != nil || status != exitDone || overdue(took, 10*time.Second) {
		t.Errorf("ended with %d after %v, %v; want 0 within 10 s\n%s", status, took, err, c.stderr.String())
	}
	t.Logf("ended after %v; %d answers whole, %d cut", took, whole.Load(), cut.Load())
}

// fetchWhole reads a document to its end; errCut is a connection without an
// answer.
func fetchWhole(url string) (int, error) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, errCut
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("answered %s", resp.Status)
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.HasSuffix(bytes.TrimSpace(body), []byte("</urlset>")) {
		err = io.ErrUnexpectedEOF
	}
	return len(body), err
}

// TestDiskFull fills the disk under a bridge that serves: nothing is
// acknowledged that is not there, reading goes on, and within 60 s of space
// everything is taken in without a hand.
func TestDiskFull(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	data := smallDisk(t, 4<<20)
	provider, feed := newUpstream(t, "first")
	f := newFolder(t, "")
	f.run(exitDone, "harvest", "--data", data, feed)
	released := make(chan struct{})
	provider.SetHook(fixtures.Subscription, fixtures.Hook{Wait: released})
	c, base := f.serve("--data", data, "--listen", "127.0.0.1:0", feed)
	for n := range 50 {
		provider.Create(fixtures.Record{Name: fmt.Sprintf("late-%d", n)})
	}
	filler := fill(t, data)
	close(released)
	if _, err := c.stderr.expect(regexp.MustCompile(`"level":"ERROR","msg":"harvest failed".*no space left`)); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, base); got != 1 {
		t.Errorf("with a full disk the Change List has %d entries, want 1", got)
	}
	asked := provider.Requests(fixtures.Subscription)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := c.stderr.expect(regexp.MustCompile(`"msg":"harvested",.*"created":50,`)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); overdue(took, time.Minute) {
		t.Errorf("everything was taken in %v after there was space again, want 60 s at most", took)
	}
	if got := entries(t, base); got != 51 {
		t.Errorf("with space again the Change List has %d entries, want 51", got)
	}
	if got := provider.Requests(fixtures.Subscription); got != asked+1 {
		t.Errorf("it asked %d times for the feed when there was space again, want once", got-asked)
	}
	f.end(c, syscall.SIGTERM)
	f.run(exitDone, "harvest", "--data", data, feed)
	f.run(exitDone, "verify", "--data", data)
}

// TestContentsFail: contents that cannot be written, for another reason than a full disk, are no
// failure of the Source. It is asked again soon, however often that was.
func TestContentsFail(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	provider, feed := newUpstream(t, "first")
	f := newFolder(t, fmt.Sprintf("data = \"data\"\nlisten = \"127.0.0.1:0\"\nallow_hosts = [\"127.0.0.1\"]\n[[set]]\nname = \"main\"\ncontent = \"mirror\"\n[[set.source]]\nurl = %q\n", feed))
	c, _ := f.serve()
	if _, err := c.stderr.expect(regexp.MustCompile(`"msg":"harvested",.*"created":1,`)); err != nil {
		t.Fatal(err)
	}
	log, err := os.Stat(filepath.Join(f.path, "data", "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	longest := func(bytes uint64) { // that a file may be
		t.Helper()
		if err := unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil); err != nil {
			t.Skipf("the files of a process cannot be limited: %v", err)
		}
	}
	longest(uint64(log.Size()) + 200_000)
	for n := range 8 {
		provider.Create(fixtures.Record{Name: fmt.Sprintf("late-%d", n), Summary: strings.Repeat("x", 200_000)})
	}
	for times := range 2 {
		f.run(exitDone, "source", "harvest", "main")
		if _, err := c.stderr.expect(regexp.MustCompile(fmt.Sprintf(`(?:[^\n]*"msg":"harvest failed",[^\n]*content\.db[^\n]*the file system fails[^\n]*"failures":0,[^\n]*\n){%d}`, times+1))); err != nil {
			t.Fatal(err)
		}
	}
	longest(unix.RLIM_INFINITY)
	f.run(exitDone, "source", "harvest", "main")
	if _, err := c.stderr.expect(regexp.MustCompile(`"msg":"harvested",.*"created":8,`)); err != nil {
		t.Fatal(err)
	}
	f.end(c, syscall.SIGTERM)
	f.run(exitDone, "verify")
}

// smallDisk mounts a file system of so many bytes, which only root may.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	folder := t.TempDir()
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("a small disk cannot be made (mount tmpfs: %v): this needs root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, 0); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// fill writes a file that takes all the space there is.
func fill(t *testing.T, folder string) string {
	t.Helper()
	name := filepath.Join(folder, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			return name
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// entries counts what the Change List tells.
func entries(t *testing.T, base string) int {
	t.Helper()
	status, body, _ := answerOf(t, base+"/sets/main/changelist.xml")
	var l list
	if err := xml.Unmarshal([]byte(body), &l); err != nil || status != http.StatusOK {
		t.Fatalf("%d: %v", status, err)
	}
	return len(l.Resources)
}

// TestSignals: a hangup does not end bridge serve, and who asks twice for its end
// need not wait for requests under way (D152).
func TestSignals(t *testing.T) {
	_, feed := newUpstream(t, "first")
	c, server := newFolder(t, "").serve("--data", "data", "--listen", "127.0.0.1:0", feed)
	if err := c.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if _, err := c.stderr.expect(regexp.MustCompile(`the configuration was not read again, and nothing has changed.*started without a configuration file`)); err != nil {
		t.Fatal(err)
	}
	// A request that never ends its header is waited for. Connections are taken in
	// their order, so it has that one when it answers the next.
	conn, err := net.Dial("tcp", strings.TrimPrefix(server, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(server + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} { // two of one kind might arrive as one
		if err := c.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	if status, err := c.status(); status != exitFailed || err != nil || !strings.Contains(c.stderr.String(), "ending at once") {
		t.Errorf("ended with %d, %v\n%s", status, err, c.stderr.String())
	}
}

// TestHangupWhileStarting: a hangup that comes while bridge serve starts does not end it,
// and has the configuration read again once it runs.
func TestHangupWhileStarting(t *testing.T) {
	t.Parallel()
	const text = "data = \"data\"\nlisten = \"127.0.0.1:0\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \"http://127.0.0.1:9/feed.atom\"\n"
	f := newFolder(t, "")
	file := filepath.Join(f.path, "bridge.toml")
	if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	c := f.start("serve", "--config", "bridge.toml")
	slow, err := os.OpenFile(file, os.O_WRONLY, 0) // when it is being read
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := c.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(slow, text)
	if err := errors.Join(err, os.Remove(file), os.WriteFile(file, []byte(text), 0o600), slow.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.stderr.expect(regexp.MustCompile(`the configuration was read again: nothing has changed`)); err != nil {
		t.Error(err)
	}
}

// TestEndWhileStarting: an end that is asked for while bridge serve starts, or when it has
// just said that it serves, is no failure, and nothing tells of one.
func TestEndWhileStarting(t *testing.T) {
	t.Parallel()
	source := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })) // whose harvest does not fail before the end
	t.Cleanup(source.Close)
	f := newFolder(t, fmt.Sprintf("listen = \"127.0.0.1:0\"\n[[set]]\nname = \"main\"\nhub = \"http://127.0.0.1:9/\"\n[[set.source]]\nurl = \"%s/feed.atom\"\n", source.URL))
	for n := range 4 { // of all that it writes
		c, err := config.Load(filepath.Join(f.path, "bridge.toml"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		said := &endingWriter{left: n, end: end}
		_, _ = said.Write(nil) // as the first of all, so that 0 ends it before it begins
		var log bytes.Buffer
		o := daemon.Options{Command: "bridge serve", Logger: daemon.NewLogger(&log, slog.LevelInfo, false)}
		defer time.AfterFunc(patience, end).Stop()
		if err := serve(ctx, c, nil, o, said); err != nil || strings.Contains(log.String(), "canceled") || strings.Contains(log.String(), "ERROR") {
			t.Errorf("ended after %d writes: %v\n%s", n, err, log.String())
		}
		end()
	}
	for range 5 {
		c := f.start("serve")
		if _, err := c.stdout.expect(servingLine); err != nil {
			t.Fatal(err)
		}
		f.end(c, syscall.SIGTERM)
		if said := c.stderr.String(); strings.Contains(said, "ERROR") || strings.Contains(said, "canceled") {
			t.Errorf("its log: %s", said)
		}
	}
	f.run(exitDone, "verify")
}

// endingWriter is an output that asks for the end after so many writes.
type endingWriter struct {
	left int
	end  func()
}

func (w *endingWriter) Write(b []byte) (int, error) {
	if w.left--; w.left < 0 {
		w.end()
	}
	return len(b), nil
}

// TestTerminateGateway ends a gateway with SIGTERM while 32 requests wait for an
// ingest server that takes its time: all of them are told that they are in doubt,
// and so they are when it starts again.
func TestTerminateGateway(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	const n = 32
	arrived, release := make(chan struct{}, n), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !bytes.Contains(body, []byte("ingest-request")) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		arrived <- struct{}{}
		<-release
	}))
	defer slow.Close()
	defer close(release)

	s := newStation(t, "gateway", newProxy(t, idle()), fmt.Sprintf("\n[[set]]\nname = \"gate\"\n[[set.source]]\nkind = \"sip\"\nmode = \"gateway\"\nupstream = %q\n", slow.URL))
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	client := &sip.HTTPClient{URL: s.proxy.url() + "/sip/gate"}
	var callers sync.WaitGroup
	for i := range n {
		callers.Go(func() {
			id := fmt.Sprint("record ", i)
			_, err := client.Ingest(context.Background(), &sip.Request{Source: &sip.Source{Identifier: &id}, Record: sip.Record{XML: []byte("<r/>")}})
			if fault, ok := errors.AsType[*sip.Fault](err); !ok || fault.Code != sip.Server || !strings.HasPrefix(fault.Text, "in doubt: ") {
				t.Errorf("%s is answered: %v", id, err)
			}
		})
	}
	for range n {
		select {
		case <-arrived:
		case <-time.After(patience):
			t.Fatalf("the requests are not sent on\n%s", s.serve.stderr.String())
		}
	}
	began := time.Now()
	if err := s.serve.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	callers.Wait()
	status, err := s.serve.status()
	if took := time.Since(began); err != nil || status != exitDone || overdue(took, 10*time.Second) {
		t.Errorf("ended with %d after %v, %v; want 0 within 10 s\n%s", status, took, err, s.serve.stderr.String())
	}
	s.proxy.shut()
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(s.run("submission", "ls", "--set", "gate", "--state", "in doubt", "--limit", "0"), "in doubt"); got != n {
		t.Errorf("%d of %d are in doubt", got, n)
	}
}

// Who asks a bridge to withdraw a record, and it is killed before it answers, is not
// told that it was withdrawn.
func TestWithdrawalIsKilled(t *testing.T) {
	testenv.Heavy(t)
	f := newFolder(t, "data = \"data\"\n"+ingestConfig)
	first, base := f.serve("--listen", "127.0.0.1:0")
	name := "145"
	library := &sip.HTTPClient{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, URL: base + "/sip/library"}
	disp, err := library.Ingest(t.Context(), &sip.Request{Source: &sip.Source{Identifier: &name}, Record: sip.Record{XML: []byte(`<r xmlns="urn:r"/>`)}})
	if err != nil || disp.Outcome != sip.Accepted {
		t.Fatalf("submitted: %+v, %v", disp, err)
	}

	// It has the data folder, and takes nothing any more.
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	command := f.start("submission", "withdraw", "--set", "library", disp.AssignedIdentifier)
	first.kill()
	if status, err := command.status(); err != nil || status != exitDone && status != exitFailed {
		t.Errorf("exit status %d, %v", status, err)
	}
	said := command.stdout.String()
	log := f.run(exitDone, "log", "--set", "library").stdout
	if gone := strings.Contains(log, "  "+event.Deleted.String()+"   library  "+disp.AssignedIdentifier); gone != strings.Contains(said, "is withdrawn") {
		t.Errorf("the command says %q, and the log has:\n%s", said, log)
	}
	f.run(exitDone, "verify")
}
