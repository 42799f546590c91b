package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// measurement is one line of the table of cases. Its jobs are done one after the other, and
// the fastest result of each counts.
type measurement struct {
	name   string // of the case, which may have several measurements in succession
	server job    // runs beside the jobs, if it has a name; they get its URL and Kind
	inside bool   // the server uses the folder, so it starts when all is built
	build  []job  // done before, and not measured
	jobs   []job  // ours, its rival, and others
	once   bool   // done once, whatever the number of runs
	same   bool   // all runs are done in one folder, which is built once
	// rows makes rows from the results of the case up to this measurement, whose own are
	// the last.
	rows func(all []results) ([]row, error)
	// own measures and prints in its own way, in a new folder, instead of the above.
	own func(folder string) error
}

// results are those of a measurement: of each of its jobs, and the last one of its server.
type results struct {
	jobs   []result
	server result
}

// measure does the measurements of a case in turn, as often as there are runs: how fast a
// machine is changes, and ours and its rival should meet the same.
func (b *bench) measure(all []measurement) ([]results, error) {
	best := make([]results, len(all))
	for i := range all {
		best[i].jobs = make([]result, len(all[i].jobs))
	}
	for run := range b.runs {
		for i := range all {
			m, times := &all[i], 1
			switch {
			case run > 0 && (m.once || m.same):
				continue
			case m.same && !m.once:
				times = b.runs
			}
			if err := b.in(m.name, func(folder string) error { return b.measureIn(folder, m, times, &best[i]) }); err != nil {
				return nil, err
			}
		}
	}
	return best, nil
}

// measureIn builds in a folder and does the jobs there several times.
func (b *bench) measureIn(folder string, m *measurement, times int, best *results) error {
	var url string
	do := func(j job) (result, error) {
		j.Folder = folder
		j.URL = cmp.Or(j.URL, url)
		j.Kind = cmp.Or(j.Kind, m.server.Kind)
		return b.do(j)
	}
	build := func() error {
		for _, j := range m.build {
			if _, err := do(j); err != nil {
				return err
			}
		}
		return nil
	}
	work := func() error {
		for range times {
			for i, j := range m.jobs {
				r, err := do(j)
				if err != nil {
					return err
				}
				best.jobs[i] = faster(best.jobs[i], r)
			}
		}
		return nil
	}
	server := m.server
	if m.inside {
		server.Folder = folder
		if err := build(); err != nil {
			return err
		}
	}
	if server.Name == "" {
		return errors.Join(build(), work())
	}
	p, at, err := b.serve(server)
	if err != nil {
		return err
	}
	url = at.URL
	if !m.inside {
		err = build()
	}
	if err == nil {
		err = work()
	}
	last, ended := p.end()
	if best.server.CPU == 0 || last.CPU < best.server.CPU {
		best.server = last
	}
	return errors.Join(err, ended)
}

// faster returns the result that took less time.
func faster(best, r result) result {
	if best.Took == 0 || r.Took < best.Took {
		return r
	}
	return best
}

// process is a running child.
type process struct {
	cmd    *exec.Cmd
	in     io.Closer
	out    *bufio.Reader
	errors *strings.Builder
	name   string
}

func (b *bench) start(j job) (*process, error) {
	j.Profile = b.profile
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(b.ctx, self, childArgument, string(text)), errors: &strings.Builder{}, name: j.Name}
	p.cmd.Stderr = p.errors
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	return p, p.cmd.Start()
}

// read reads the next result.
func (p *process) read() (r result, err error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return r, p.failed(errors.Join(err, p.cmd.Wait()))
	}
	return r, json.Unmarshal(line, &r)
}

// failed returns the reason why a child has failed: its own error output, if there is any.
func (p *process) failed(err error) error {
	if text := strings.TrimSpace(p.errors.String()); text != "" {
		return fmt.Errorf("%s: %s", p.name, text)
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// end ends the input of a child that serves, and returns its last result.
func (p *process) end() (r result, err error) {
	if err = p.in.Close(); err != nil {
		return r, err
	}
	if r, err = p.read(); err != nil {
		return r, err
	}
	if err := p.cmd.Wait(); err != nil {
		return r, p.failed(err)
	}
	return r, nil
}

// do runs a child to its end.
func (b *bench) do(j job) (result, error) {
	p, r, err := b.serve(j)
	if err != nil {
		return r, err
	}
	if err := errors.Join(p.in.Close(), p.cmd.Wait()); err != nil {
		return r, p.failed(err)
	}
	return r, nil
}

// serve starts a child and waits for its first result: when it serves, or when its job is
// done.
func (b *bench) serve(j job) (*process, result, error) {
	p, err := b.start(j)
	if err != nil {
		return nil, result{}, err
	}
	r, err := p.read()
	return p, r, err
}

// parallel runs workers calls of work at once, until one fails. next returns the next
// number below n, each number once, and false when there are no more.
func parallel(ctx context.Context, workers, n int, work func(ctx context.Context, next func() (int, bool)) error) (time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var taken atomic.Int64
	next := func() (int, bool) {
		i := int(taken.Add(1)) - 1
		return i, i < n && ctx.Err() == nil
	}
	var group sync.WaitGroup
	start := time.Now()
	for range workers {
		group.Go(func() {
			if err := work(ctx, next); err != nil {
				stop(err)
			}
		})
	}
	group.Wait()
	return time.Since(start), context.Cause(ctx)
}

// reply is the response of a server, read to the end.
type reply struct {
	code   int
	status string
	header http.Header
	body   []byte
}

// send sends a request and reads the response.
func send(ctx context.Context, client *http.Client, method, url string, header http.Header, body []byte) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	maps.Copy(req.Header, header)
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Status, resp.Header, content}, err
}

// get returns the body of a response with 200 OK.
func get(ctx context.Context, url string) ([]byte, error) {
	a, err := send(ctx, http.DefaultClient, http.MethodGet, url, nil, nil)
	if err == nil && a.code != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, a.status)
	}
	return a.body, err
}
