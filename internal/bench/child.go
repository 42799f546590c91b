package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

// childArgument, followed by a job, makes this program run as a child.
const childArgument = "-child"

// job is the work of a child.
type job struct {
	Name      string // of the task
	Folder    string // data folder
	Kind      string // of a provider, or of messages
	URL       string // of a provider
	Path      string // of a document that we publish, or a format for the paths of bodies
	Set       string // for which a log is built, "" is main
	Content   string // content mode of the set
	Number    int    // size of the work
	Documents int    // of a chain, of Number entries each
	Changes   int    // in the Change List of a Source
	Dumps     bool   // a Source has its resources in a dump
	LongList  string // capability of a list of Number entries, the only document of the provider
	Body      int    // bytes of a resource
	Latency   time.Duration
	Segment   int // events of a segment
	Repeat    int // how often, or how many at the same time
	Full      bool
	Profile   string // folder for profiles, "" for none
}

// result is the measurement of a child. A task that serves sends one when it is ready, with
// its URL, and continues until its input ends.
type result struct {
	URL      string
	Took     time.Duration
	Count    int64 // number of the items that the case counts
	Bytes    int64 // written by an export
	Events   int64 // logged by a harvest
	Requests int64 // sent by a harvest
	Other    time.Duration
	First    time.Duration // with many Sources: until one, and until half of them were harvested
	Half     time.Duration // or the time within which half of the responses came
	Tail     time.Duration // and 99 in a hundred
	Peak     int64         // resident memory of the child, in bytes
	CPU      time.Duration // processor time of the child, from its start
	Tenths   []tenth       // of an outbox
}

// task does a job. A task that serves calls ready, which sends a result and returns when
// the parent ends its input.
type task func(ctx context.Context, j job, ready func(result)) (result, error)

func tasks() map[string]task {
	return map[string]task{
		"provider":    provide,
		"harvest":     harvestOnce,
		"follow":      followLists,
		"savelist":    saveList,
		"readlist":    readList,
		"tokens":      readTokens,
		"python":      readWithPython,
		"insert":      insertRows,
		"fetch":       fetchBodies,
		"savepages":   savePages,
		"build":       buildLog,
		"render":      renderDocument,
		"changelist":  encodeChangeList,
		"feed":        encodeFeed,
		"snapshot":    makeSnapshot,
		"export":      exportTree,
		"dump":        makeDump,
		"serve":       serveBridge,
		"memory":      serveMemory,
		"append":      appendMore,
		"poll":        pollBridge,
		"sources":     harvestSources,
		"open":        openSources,
		"library":     serveLibrary,
		"target":      serveTarget,
		"sink":        serveSink,
		"post":        postAll,
		"postbare":    postBare,
		"submissions": buildSubmissions,
		"drain":       drainOutbox,
	}
}

// child is the main function of a child: it does a job in JSON, and writes its result to
// the standard output. It returns the exit status.
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
		go func() { // the end of the parent closes our input, even if it was killed
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
		r.Peak, r.CPU = memory("self", "VmHWM"), processorTime()
		return out.Encode(r)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// profiled starts the profiles of the job, if it has any; done writes them.
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
