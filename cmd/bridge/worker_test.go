package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// worker is a process that runs the command lines of a script one after the other: to start a
// process takes several times as long as most of them. What main adds to run, the commands
// "exec", "start" and "end" of scripts show, and TestSignals.
type worker struct {
	jobs    *json.Encoder
	results *json.Decoder
	said    *testenv.Log // on standard error, such as a panic
}

// job is a command line of bridge, and where it runs.
type job struct {
	Folder string
	Args   []string
}

// result is what became of it.
type result struct {
	Status         int
	Stdout, Stderr []byte
}

// startWorker starts a worker in the environment of a script. It ends with the script.
func startWorker(e *testscript.Env) (*worker, error) {
	w := &worker{said: new(testenv.Log)}
	cmd := exec.Command("bridge-worker")
	cmd.Dir, cmd.Env, cmd.Stderr = e.WorkDir, e.Vars, w.said
	jobs, errJobs := cmd.StdinPipe()
	results, errResults := cmd.StdoutPipe()
	if err := errors.Join(errJobs, errResults); err != nil {
		return nil, err
	}
	w.jobs, w.results = json.NewEncoder(jobs), json.NewDecoder(results)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	e.Defer(func() {
		_ = jobs.Close()
		_ = cmd.Wait()
	})
	return w, nil
}

// do runs a command line.
func (w *worker) do(j job) (*result, error) {
	if err := w.jobs.Encode(j); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, w.said)
	}
	var r result
	if err := w.results.Decode(&r); err != nil {
		return nil, fmt.Errorf("bridge %q: %w\n%s", j.Args, err, w.said)
	}
	return &r, nil
}

// work is the program "bridge-worker": it runs command lines until there are no more.
func work() {
	daemon.LimitMemory()
	jobs, results := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var j job
		if err := jobs.Decode(&j); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			panic(err)
		}
		if err := errors.Join(os.Chdir(j.Folder), os.Setenv("PWD", j.Folder)); err != nil {
			panic(err)
		}
		var stdout, stderr testenv.Log
		status := run(context.Background(), j.Args, strings.NewReader(""), &stdout, &stderr)
		if err := results.Encode(result{status, []byte(stdout.String()), []byte(stderr.String())}); err != nil {
			panic(err)
		}
	}
}
