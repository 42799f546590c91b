package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

// childArgument and a job make this program a child of itself.
const childArgument = "-child"

// job is what a child is to do.
type job struct {
	Name      string // of the task
	Folder    string // data folder
	Kind      string // of a provider; "" is Atom-PMH
	URL       string // of a provider
	Path      string // of a document that we publish, or a format for those of bodies
	Content   string // content mode of the set main
	Number    int    // how much of it
	Documents int    // of a chain, of Number entries each
	Changes   int    // in the Change List of a Source
	Body      int    // bytes of a resource
	Latency   time.Duration
	Segment   int // events of a segment
	Repeat    int
	Full      bool
	Profile   string // where profiles go, "" nowhere
}

// result is what a child has measured. A task that serves sends one when it is
// ready, with its URL, and goes on until its input ends.
type result struct {
	URL   string
	Took  time.Duration
	Count int64 // of what the case counts
	Bytes int64
	Other time.Duration // of the rival, or of a second thing
	Peak  int64         // resident memory of the child, in bytes
	CPU   time.Duration // processor time of the child, from its start
	Half  time.Duration // within which half of the answers came
	Tail  time.Duration // and 99 of a hundred

	Tenths []tenth // of an outbox
}

// task does a job. ready, for tasks that serve, sends a result and returns when
// the parent wants no more.
type task func(ctx context.Context, j job, ready func(result)) (result, error)

func tasks() map[string]task {
	return map[string]task{
		"provider":      provide,
		"harvest":       harvestOnce,
		"follow":        followLists,
		"readlist":      readList,
		"longlist":      serveLongList,
		"takelong":      takeLongList,
		"tokens":        readTokens,
		"insert":        insertRows,
		"fetch":         fetchBodies,
		"build":         buildLog,
		"segments":      buildSegments,
		"render":        renderDocument,
		"changelist":    encodeChangeList,
		"feed":          encodeFeed,
		"snapshot":      makeSnapshot,
		"serve":         serveBridge,
		"memory":        serveMemory,
		"append":        appendMore,
		"poll":          pollBridge,
		"sources":       harvestSources,
		"open":          openSources,
		"library":       serveLibrary,
		"target":        serveTarget,
		"sink":          serveSink,
		"post":          postAll,
		"postbare":      postBare,
		"submissions":   buildSubmissions,
		"set to submit": buildSetToSubmit,
		"drain":         drainOutbox,
	}
}

// child is the main function of a child: a job in JSON, its result on the
// standard output. It returns the exit status.
func child(text string) int {
	daemon.LimitMemory() // as the command does
	err := func() error {
		var j job
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		wanted := make(chan struct{})
		go func() { // the parent's end closes our input, whatever ended it
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(wanted)
			cancel()
		}()
		out := json.NewEncoder(os.Stdout)
		ready := func(r result) {
			if out.Encode(r) == nil {
				<-wanted
			}
		}
		done, err := profiled(j)
		if err != nil {
			return err
		}
		r, err := tasks()[j.Name](ctx, j, ready)
		if err := errors.Join(err, done()); err != nil {
			return err
		}
		r.Peak, r.CPU = peak(), processorTime()
		return out.Encode(r)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// profiled starts the profiles that the job wants; done writes them.
func profiled(j job) (done func() error, err error) {
	if j.Profile == "" {
		return func() error { return nil }, nil
	}
	name := filepath.Join(j.Profile, fmt.Sprintf("%s-%d", j.Name, os.Getpid()))
	cpu, err := os.Create(name + ".cpu.prof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, err
	}
	return func() error {
		pprof.StopCPUProfile()
		heap, err := os.Create(name + ".heap.prof")
		if err != nil {
			return errors.Join(err, cpu.Close())
		}
		runtime.GC()
		return errors.Join(cpu.Close(), pprof.Lookup("allocs").WriteTo(heap, 0), heap.Close())
	}, nil
}

// process is a child that is running.
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

// read takes the next result.
func (p *process) read() (r result, err error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return r, p.failed(errors.Join(err, p.cmd.Wait()))
	}
	return r, json.Unmarshal(line, &r)
}

// failed says why a child that has ended did so: in its own words, if it had
// any.
func (p *process) failed(err error) error {
	if text := strings.TrimSpace(p.errors.String()); text != "" {
		return fmt.Errorf("%s: %s", p.name, text)
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// end asks a child that serves to end, and returns its last result.
func (p *process) end() (result, error) {
	if err := p.in.Close(); err != nil {
		return result{}, err
	}
	r, err := p.read()
	if err != nil {
		return r, err
	}
	if err := p.cmd.Wait(); err != nil {
		return r, p.failed(err)
	}
	return r, nil
}

// do runs a child to its end.
func (b *bench) do(j job) (result, error) {
	p, err := b.start(j)
	if err != nil {
		return result{}, err
	}
	r, err := p.read()
	if err != nil {
		return r, err
	}
	if err := errors.Join(p.in.Close(), p.cmd.Wait()); err != nil {
		return r, p.failed(err)
	}
	return r, nil
}

// serve starts a child that serves, and waits until it does.
func (b *bench) serve(j job) (*process, result, error) {
	p, err := b.start(j)
	if err != nil {
		return nil, result{}, err
	}
	r, err := p.read()
	return p, r, err
}
