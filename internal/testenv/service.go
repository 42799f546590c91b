//go:build unix

package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	// servicePatience is how long a server may take to start or to stop on a loaded machine.
	servicePatience = time.Minute
	serviceLook     = 10 * time.Millisecond
)

// service is a server on loopback that is a process of ours, with its data in a temporary
// folder. The zero value is one that is not ours. Its methods are for one goroutine at a
// time.
type service struct {
	name    string
	address string // host:port
	folder  string // with its data and its log
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended; nil before the first start
	keeper  *keeper
	release func() // of the port
	lasting bool   // beyond a test
}

// settle reserves a port, and makes a folder in dir that goes when this process ends.
func (s *service) settle(dir string) (err error) {
	if s.address, s.release, err = reserve(); err != nil {
		return err
	}
	if s.folder, err = os.MkdirTemp(dir, "bridge-"+s.name+"-"); err != nil {
		return err
	}
	if s.keeper, err = keep(s.folder); err != nil {
		return errors.Join(err, os.RemoveAll(s.folder))
	}
	return nil
}

func (s *service) log() string { return filepath.Join(s.folder, "log") }

// said returns the end of the log.
func (s *service) said() string {
	text, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// running reports whether the process has been started and has not ended.
func (s *service) running() bool {
	if s.ended == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// run starts the process and waits until it is ready. If that fails it is stopped by a
// signal.
func (s *service) run(cmd *exec.Cmd, ready func(context.Context) error, signal syscall.Signal) error {
	if s.keeper == nil || s.running() {
		return errors.New(s.name + ": started while it is running or closed")
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = cmd
	cmd.Stdout, cmd.Stderr = log, log
	began, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the system ends a child with the thread that has started it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		began <- err
		if err == nil {
			_ = cmd.Wait() // it is told to end
		}
	}()
	s.ended = ended
	if err := <-began; err != nil {
		<-ended
		return err
	}
	if err := s.await(ready); err != nil {
		return errors.Join(fmt.Errorf("%s does not start: %w\n%s", s.name, err, s.said()), s.stop(signal))
	}
	return nil
}

// await waits until the process is ready.
func (s *service) await(ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), servicePatience)
	defer cancel()
	tick := time.NewTicker(serviceLook)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// stop stops the process by a signal, and waits until it has ended.
func (s *service) stop(signal syscall.Signal) error {
	if !s.running() {
		return nil
	}
	err := s.cmd.Process.Signal(signal)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(servicePatience):
		err := s.cmd.Process.Kill()
		<-s.ended
		return errors.Join(fmt.Errorf("%s did not stop in %v\n%s", s.name, servicePatience, s.said()), err)
	}
}

// close stops the process by a signal and removes its folder.
func (s *service) close(signal syscall.Signal) error {
	err := s.stop(signal)
	if s.keeper != nil {
		err = errors.Join(err, s.keeper.remove())
		s.keeper = nil
	}
	if s.release != nil {
		s.release()
		s.release = nil
	}
	return err
}

// keeper is a process that removes a folder when this process wants it or has ended.
type keeper struct {
	cmd *exec.Cmd
	end *os.File // is closed in either case
}

// Whatever still ends in the folder may write a file behind rm's back.
const keeping = `cat >/dev/null
for i in 1 2 3 4 5 6 7 8 9; do
	rm -rf "$1" 2>/dev/null && exit
	sleep 0.2
done
exec rm -rf "$1"`

func keep(folder string) (*keeper, error) {
	in, end, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	k := &keeper{exec.Command("/bin/sh", "-c", keeping, "sh", folder), end}
	k.cmd.Dir, k.cmd.Stdin = "/", in
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal from the terminal is not for it
	if err := k.cmd.Start(); err != nil {
		end.Close()
		return nil, err
	}
	return k, nil
}

// remove removes the folder.
func (k *keeper) remove() error {
	if err := errors.Join(k.end.Close(), k.cmd.Wait()); err != nil {
		return fmt.Errorf("removing the folder of a server: %w", err)
	}
	return nil
}

// withServer stops a shared server when the tests of a package have run.
type withServer struct {
	tests interface{ Run() int }
	stop  func() error
}

// Run runs the tests.
func (w withServer) Run() int {
	code := w.tests.Run()
	if err := w.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}
