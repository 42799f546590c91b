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
	"syscall"
	"time"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// worker is a process that runs command lines one after the other, for a script or in the folder
// of a test: to start a process takes several times as long as most of them. What main adds to
// run, the bridges show that are processes of their own.
type worker struct {
	cmd     *exec.Cmd
	more    io.Closer
	jobs    *json.Encoder
	results *json.Decoder
	said    testenv.Log // on standard error, such as a panic
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

// startWorker starts a worker in an environment.
func startWorker(environment []string) (*worker, error) {
	w := &worker{cmd: exec.Command("bridge-worker")}
	w.cmd.Env, w.cmd.Stderr = environment, &w.said
	jobs, errJobs := w.cmd.StdinPipe()
	results, errResults := w.cmd.StdoutPipe()
	if err := errors.Join(errJobs, errResults); err != nil {
		return nil, err
	}
	w.more, w.jobs, w.results = jobs, json.NewEncoder(jobs), json.NewDecoder(results)
	return w, w.cmd.Start()
}

// do runs a command line, which must end soon.
func (w *worker) do(j job) (*result, error) {
	late := time.AfterFunc(patience, func() { _ = w.cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	var r result
	if err := errors.Join(w.jobs.Encode(j), w.results.Decode(&r)); err != nil {
		return nil, fmt.Errorf("bridge %q: %w\n%s", j.Args, err, w.said.String())
	}
	return &r, nil
}

// end ends the process.
func (w *worker) end() {
	_ = w.more.Close()
	_ = w.cmd.Wait() // do has said what was wrong
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
