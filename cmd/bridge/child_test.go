package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// patience is how long a test waits for what must come soon. It is long because
// the machine may be busy; nothing waits for it to pass.
const patience = 3 * time.Minute

// overdue reports whether something took longer than it may. Only a soak has the
// machine to itself; elsewhere this may stand still for as long.
func overdue(took, most time.Duration) bool { return took > most && testenv.Soaking() }

// child is a bridge in a process of its own.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{} // closed when the process has ended
}

// start runs a program (bridge: this test binary) in a folder.
func start(folder string, environment []string, name string, args ...string) (*child, error) {
	c := &child{cmd: exec.Command(name, args...), ended: make(chan struct{})}
	c.cmd.Dir, c.cmd.Env = folder, append(os.Environ(), environment...)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait() // ProcessState says how it ended
		close(c.ended)
		c.stdout.end()
		c.stderr.end()
	}()
	return c, nil
}

// folder is where a test runs bridges. What goes wrong ends the test.
type folder struct {
	t      testing.TB
	path   string
	worker *worker // nil before run
}

// newFolder makes a folder with a bridge.toml, and with files, a name and a text each.
func newFolder(t testing.TB, config string, files ...string) *folder {
	t.Helper()
	f := &folder{t: t, path: t.TempDir()}
	for files = append(files, "bridge.toml", config); len(files) > 0; files = files[2:] {
		if err := os.WriteFile(filepath.Join(f.path, files[0]), []byte(files[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// newUpstream serves a provider with records, and returns the URL of its feed.
func newUpstream(t testing.TB, records ...string) (p *fixtures.Provider, feed string) {
	p = fixtures.New(fixtures.Options{})
	for _, name := range records {
		p.Create(fixtures.Record{Name: name})
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return p, server.URL + fixtures.Subscription
}

// answerOf returns what is answered at a URL.
func answerOf(t testing.TB, url string) (status int, body string, header http.Header) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// configure writes another bridge.toml.
func (f *folder) configure(config string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.path, "bridge.toml"), []byte(config), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// start starts a bridge, which is killed at the end of the test at the latest.
func (f *folder) start(args ...string) *child {
	f.t.Helper()
	c, err := start(f.path, nil, "bridge", args...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.kill)
	return c
}

// serve starts bridge serve and returns the URL where it is ready.
func (f *folder) serve(args ...string) (c *child, server string) {
	f.t.Helper()
	c = f.start(append([]string{"serve"}, args...)...)
	server, err := c.ready()
	if err != nil {
		f.t.Fatal(err)
	}
	return c, server
}

// printed is the exit status of a bridge, and what it has written.
type printed struct {
	status         int
	stdout, stderr string
}

// run runs a bridge to its end, with the exit status that is wanted.
func (f *folder) run(want int, args ...string) printed {
	f.t.Helper()
	return f.runEnding([]int{want}, args...)
}

// runEnding is run with one of several exit statuses. The runs of a folder have one process.
func (f *folder) runEnding(want []int, args ...string) printed {
	f.t.Helper()
	if f.worker == nil {
		w, err := startWorker(os.Environ())
		if err != nil {
			f.t.Fatal(err)
		}
		f.worker = w
		f.t.Cleanup(w.end)
	}
	r, err := f.worker.do(job{f.path, args})
	if err != nil {
		f.t.Fatal(err)
	}
	if !slices.Contains(want, r.Status) {
		f.t.Fatalf("bridge %q: exit status %d, want %d\n%s%s", args, r.Status, want, r.Stdout, r.Stderr)
	}
	return printed{r.Status, string(r.Stdout), string(r.Stderr)}
}

// end ends a bridge with a signal.
func (f *folder) end(c *child, signal os.Signal) {
	f.t.Helper()
	if err := c.cmd.Process.Signal(signal); err != nil {
		f.t.Fatal(err)
	}
	f.wantStatus(c, exitDone)
}

func (f *folder) wantStatus(c *child, want int) {
	f.t.Helper()
	if got, err := c.status(); err != nil || got != want {
		f.t.Fatalf("%q: exit status %d, want %d: %v\n%s%s", c.cmd.Args, got, want, err, c.stdout.String(), c.stderr.String())
	}
}

// kill ends the process without asking, and waits for that.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// status waits for the end of the process; -1 is a signal.
func (c *child) status() (int, error) {
	select {
	case <-c.ended:
		return c.cmd.ProcessState.ExitCode(), nil
	case <-time.After(patience):
		return 0, fmt.Errorf("the process does not end; so far:\n%s%s", c.stdout.String(), c.stderr.String())
	}
}

var servingLine = regexp.MustCompile(`(?m)^serving http://\S+ on (\S+)$`)

// ready waits until bridge serve says where it serves, and /readyz there answers
// 200. It returns the URL to ask.
func (c *child) ready() (string, error) {
	m, err := c.stdout.expect(servingLine)
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, c.stderr.String())
	}
	server := "http://" + m[1]
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for limit := time.Now().Add(patience); ; <-tick.C {
		resp, err := http.Get(server + "/readyz")
		if err != nil {
			return "", fmt.Errorf("/readyz: %w\n%s", err, c.stderr.String())
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return server, nil
		}
		if time.Now().After(limit) {
			return "", fmt.Errorf("/readyz: %s\n%s", resp.Status, c.stderr.String())
		}
	}
}

// output is what a process has written.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	more  chan struct{} // closed and replaced by every write
	ended bool
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.announce()
	return o.text.Write(b)
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.announce()
}

func (o *output) announce() {
	if o.more != nil {
		close(o.more)
	}
	o.more = nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// expect waits until what was written matches, and returns the match.
func (o *output) expect(re *regexp.Regexp) ([]string, error) {
	limit := time.After(patience)
	for {
		o.mu.Lock()
		if o.more == nil {
			o.more = make(chan struct{})
		}
		more, ended, text := o.more, o.ended, o.text.String()
		o.mu.Unlock()
		if m := re.FindStringSubmatch(text); m != nil {
			return m, nil
		}
		if ended {
			return nil, fmt.Errorf("the process ended without %q; it wrote:\n%s", re, text)
		}
		select {
		case <-more:
		case <-limit:
			return nil, errors.New("no " + re.String() + " in:\n" + text)
		}
	}
}
