package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"testing"
	"time"

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

// launch is start in a test, which kills what is left of it.
func launch(t testing.TB, name string, args ...string) *child {
	t.Helper()
	c, err := start(t.TempDir(), nil, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
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
