package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
)

// attacked is a bridge serve under attack, in a process of its own, so that its processor
// time and memory can be measured. While it runs, /healthz is requested ten times a second,
// each time on a new connection.
type attacked struct {
	url, mail string // its base URL, and the address of its mail server
	binary    string
	folder    string
	pid       int
	cmd       *exec.Cmd
	output    *output

	probing  context.CancelFunc
	probes   sync.WaitGroup
	slowest  atomic.Int64 // nanoseconds until the slowest response of /healthz
	failed   atomic.Int64 // number of responses of /healthz other than 200
	overgrew atomic.Bool  // it was killed because it used more than tooMuch
}

// tooMuch is the memory in bytes at which a victim is killed: the rest of the table still
// needs the machine.
const tooMuch = 3 << 30

// service is the SIP service of every victim, open to all clients.
const service = `
[[set]]
name = "library"
[[set.source]]
kind = "sip"
mode = "library"
formats = ` + format + `
[[set]]
name = "notified"
[[set.source]]
kind = "sip"
smtp_listen = %q
mailbox = "library@bridge.example.org"
`

// startAttacked starts bridge serve for an attack, with a set "main" that has the given
// Source, "" for none.
func (b *bench) startAttacked(binary string, a *attack, url string) (*attacked, error) {
	folder, err := os.MkdirTemp(b.folder, "victim-")
	if err != nil {
		return nil, err
	}
	mail, err := freeAddress()
	if err != nil {
		return nil, err
	}
	v := &attacked{binary: binary, folder: folder, mail: mail, output: &output{seen: make(chan struct{})}}
	text := "listen = \"127.0.0.1:0\"\ndata = \"data\"\nallow_hosts = [\"127.0.0.1\"]\n" + fmt.Sprintf(service, mail)
	if url != "" {
		content := config.Mirror
		if a.document != nil {
			content = config.Reference // its contents do not exist
		}
		text += fmt.Sprintf("[[set]]\nname = \"main\"\ncontent = %q\n[[set.source]]\nkind = %q\nurl = %q\n", content, a.source, url)
	}
	if err := os.WriteFile(filepath.Join(folder, "bridge.toml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	v.cmd = exec.CommandContext(b.ctx, binary, "serve")
	if a.descriptors > 0 {
		v.cmd = exec.CommandContext(b.ctx, "sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" serve`, a.descriptors), binary)
	}
	v.cmd.Dir, v.cmd.Stdout, v.cmd.Stderr = folder, v.output, v.output
	if err := v.cmd.Start(); err != nil {
		return nil, err
	}
	v.pid = v.cmd.Process.Pid
	select {
	case <-v.output.seen:
	case <-time.After(30 * time.Second):
		v.kill()
		return nil, fmt.Errorf("bridge serve is not ready after 30 s: %s", v.output.text())
	}
	v.url = "http://" + v.output.address
	ctx, cancel := context.WithCancel(b.ctx)
	v.probing = cancel
	v.probes.Go(func() { v.probe(ctx) })
	return v, nil
}

// probe requests /healthz, and watches the memory, until ctx ends.
func (v *attacked) probe(ctx context.Context) {
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if v.memory("VmRSS") > tooMuch {
			v.overgrew.Store(true)
			v.failed.Add(1)
			_ = v.cmd.Process.Kill()
			return
		}
		start := time.Now()
		resp, err := client.Get(v.url + "/healthz")
		if ctx.Err() != nil {
			return
		}
		if err != nil || resp.StatusCode != http.StatusOK {
			v.failed.Add(1)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
		if took := int64(time.Since(start)); took > v.slowest.Load() {
			v.slowest.Store(took)
		}
	}
}

func (v *attacked) kill() {
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}

// end stops the victim and removes its folder.
func (v *attacked) end() error {
	v.probing()
	v.probes.Wait()
	v.kill()
	return os.RemoveAll(v.folder)
}

// memory returns a line of the victim's status, in bytes; 0 when it has ended.
func (v *attacked) memory(name string) int64 {
	return memory(strconv.Itoa(v.pid), name)
}

// processorTime returns the processor time of the victim so far, in user and system mode.
func (v *attacked) processorTime() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), ") ") // the name may contain spaces
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	const ticks = 100 // of a second, on every Linux that Go runs on
	return time.Duration(user+system) * time.Second / ticks
}

// quiet waits until the victim has been almost idle for two seconds, at most for patience.
// The probes use almost no processor time.
func (v *attacked) quiet(ctx context.Context) (ended bool) {
	end := time.Now().Add(patience)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	last, still := v.processorTime(), 0
	for time.Now().Before(end) && ctx.Err() == nil {
		<-tick.C
		now := v.processorTime()
		if now == 0 {
			return true
		}
		if now-last < 60*time.Millisecond {
			still++
		} else {
			still = 0
		}
		if last = now; still >= 4 {
			return true
		}
	}
	return false
}

// output collects the output of a victim, and finds the line with the URL at which it
// serves.
type output struct {
	mu      sync.Mutex
	all     strings.Builder
	address string
	seen    chan struct{}
}

var servingLine = regexp.MustCompile(`(?m)^serving http://\S+ on (\S+)$`)

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all.Len() < 1<<20 {
		o.all.Write(p)
	}
	if o.address == "" {
		if m := servingLine.FindStringSubmatch(o.all.String()); m != nil {
			o.address = m[1]
			close(o.seen)
		}
	}
	return len(p), nil
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// freeAddress returns a loopback address on which no process listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
