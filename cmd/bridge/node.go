package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// The roles of bridge serve.
const (
	roleAll    = "all"    // one process does everything
	roleWeb    = "web"    // publishes beside a node that writes
	roleWorker = "worker" // the same, and does the work when no other node does
)

// node is a process of several that have one log.
type node struct {
	role    string
	hangups <-chan os.Signal
	options daemon.Options
	out     io.Writer
	// reload reads the configuration again.
	reload func() (*config.Config, error)
}

// checkNode returns what the configuration of a node lacks: all nodes must publish the same,
// and what one of them has made.
func checkNode(c *config.Config, role string) error {
	var missing []string
	for _, key := range []struct{ value, name string }{
		{c.Store.Log, `log = "postgres://..." in [store]`},
		{c.Store.Contents, `contents = "s3://..." in [store]`},
		{c.Store.Files, `files = "s3://..." in [store]`},
		{c.BaseURL, `base_url = "https://..."`},
	} {
		if key.value == "" {
			missing = append(missing, key.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return usage(fmt.Errorf("--role %s is for one of several nodes, which need the same log, contents and URLs: write into the configuration of each:\n  %s", role, strings.Join(missing, "\n  ")))
}

// serve publishes, and works when it is the turn of this node, until ctx ends.
func (n *node) serve(ctx context.Context, c *config.Config) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w: stop what uses that address, or choose another with --listen", c.Listen, err)
	}
	defer listener.Close()
	l, ok := listener.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("listening on %s: not a TCP address", c.Listen)
	}
	last := c // that could be opened
	for ready := false; ; {
		taken, err := n.beside(ctx, c, l, &ready)
		switch {
		case ctx.Err() != nil:
			return errors.Join(unlessEnded(ctx, err), closeLog(taken))
		case errors.Is(err, errHangup):
			last, c = c, n.reread(c)
			continue
		case errors.Is(err, errAgain):
			continue
		case err != nil && c != last:
			n.options.Logger.Error("the configuration was read again, and cannot be used; the former one is", "error", err)
			c = last
			continue
		case ready && errors.Is(err, eventlog.ErrAway):
			n.options.Logger.Error("this node cannot be opened again; it is tried until it can", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(openAgain):
			}
			continue
		case err != nil:
			return err
		}
		last = c
		n.options.Logger.Info("no other node works: this one does from now on")
		again, err := part(l)
		if err != nil {
			return errors.Join(err, closeLog(taken))
		}
		o := n.options
		o.Log = taken
		err = serveOn(ctx, c, n.hangups, o, n.out, again)
		if ctx.Err() != nil || !errors.Is(err, eventlog.ErrInUse) {
			return err
		}
		n.options.Logger.Error("another node works, and this one does no longer; it publishes, and works again when no other node does", "error", err)
		c = n.reread(c) // commands and hangups may have changed it
	}
}

// openAgain is how long a node waits that could not be opened again.
const openAgain = 2 * time.Second

func closeLog(l *eventlog.Log) error {
	if l == nil {
		return nil
	}
	return l.Close()
}

// errHangup: the configuration is to be read again.
var errHangup = errors.New("the configuration is read again")

// reread reads the configuration again; one that is wrong changes nothing.
func (n *node) reread(c *config.Config) *config.Config {
	other, err := n.reload()
	if err == nil {
		err = checkNode(other, n.role)
	}
	if err == nil && (other.Data != c.Data || other.Listen != c.Listen) {
		err = errors.New("data and listen cannot be changed while bridge runs: restart bridge serve")
	}
	if err != nil {
		n.options.Logger.Error("the configuration was not read again, and nothing has changed", "error", err)
		return c
	}
	n.options.Logger.Info("the configuration was read again")
	return other
}

// part returns a listener on the same socket, which can be closed without the other: a
// connection that comes between two of them waits.
func part(l *net.TCPListener) (net.Listener, error) {
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileListener(f)
}

// beside publishes beside the node that works, until ctx ends, which is no error, or on a
// hangup, which is errHangup, or until this node is to work: then it returns the log, open for
// writing. ready becomes true when it has begun to publish.
func (n *node) beside(ctx context.Context, c *config.Config, l *net.TCPListener, ready *bool) (*eventlog.Log, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	o := n.options
	o.ReadOnly, o.Beside = true, true
	b, err := openBridge(ctx, c, o)
	if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, eventlog.ErrOlder)) && n.role == roleWorker { // the first start of all, or of a version
		n.options.Logger.Info("there is no log yet, or no content store, or an older one: this node makes it", "error", err)
		return n.first(ctx, c, err)
	}
	if err != nil {
		return nil, err
	}
	again, err := part(l)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	*ready = true
	fmt.Fprintf(n.out, "serving %s on %s\n  beside the node that works (--role %s)\n", b.Base(again), again.Addr(), n.role)
	ended := make(chan struct{})
	go func() {
		select {
		case <-n.hangups:
			stop(errHangup)
		case <-ended:
		}
	}()
	taken, err := b.PublishBeside(ctx, again, n.role == roleWorker)
	close(ended)
	err = errors.Join(err, b.Close())
	if cause := context.Cause(ctx); taken == nil && errors.Is(cause, errHangup) {
		err = errors.Join(err, cause)
	}
	if err != nil {
		err = errors.Join(err, closeLog(taken))
		taken = nil
	}
	return taken, err
}

// errAgain: another node has just begun to work.
var errAgain = errors.New("another node works")

// first opens the log for writing, and makes it where there is none yet: why it could not be
// opened beside another node.
func (n *node) first(ctx context.Context, c *config.Config, why error) (*eventlog.Log, error) {
	log, err := eventlog.Open(ctx, c.Data, eventlog.Options{URL: c.Store.Log, AcceptClock: n.options.AcceptClock, Holder: n.options.Command})
	if errors.Is(err, eventlog.ErrInUse) || errors.Is(err, eventlog.ErrOthers) && errors.Is(why, fs.ErrNotExist) { // made since by another node
		err = errAgain
	}
	return log, err
}
