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

	config *config.Config // what the node works by from the next opening on
	opened *config.Config // what it could be opened with last, nil before the first time
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
	listener, err := listen(ctx, c)
	if err != nil {
		return err
	}
	defer listener.Close()
	l, ok := listener.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("listening on %s: not a TCP address", c.Listen)
	}
	for n.config = c; ; {
		taken, err := n.beside(ctx, l)
		switch {
		case ctx.Err() != nil:
			return errors.Join(unlessEnded(ctx, err), closeLog(taken))
		case errors.Is(err, errAgain):
			continue
		case n.opened != nil && errors.Is(err, eventlog.ErrAway):
			n.openLater(ctx, err)
			continue
		case err != nil && n.opened != nil && n.config != n.opened:
			n.options.Logger.Error("the configuration was read again, and cannot be used; the former one is", "error", err)
			n.config = n.opened
			continue
		case err != nil:
			return err
		}
		n.options.Logger.Info("no other node works: this one does from now on")
		again, err := part(l)
		if err != nil {
			return errors.Join(err, closeLog(taken))
		}
		o := n.options
		o.Log = taken
		n.config, err = serveOn(ctx, n.config, n.hangups, o, n.out, again)
		n.opened = n.config
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, eventlog.ErrInUse):
			n.options.Logger.Error("another node works, and this one does no longer; it publishes, and works again when no other node does", "error", err)
		case errors.Is(err, eventlog.ErrAway) && !errors.Is(err, eventlog.ErrStopped):
			n.openLater(ctx, err)
		default:
			return err
		}
	}
}

// openLater says why this node cannot be opened, and waits until it is tried again.
func (n *node) openLater(ctx context.Context, why error) {
	n.options.Logger.Error("this node cannot be opened again; it is tried until it can", "error", why)
	select {
	case <-ctx.Done():
	case <-time.After(openAgain):
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

// reread reads the configuration again; it has to be one of this node.
func (n *node) reread() (*config.Config, error) {
	other, err := n.reload()
	if err == nil {
		err = checkNode(other, n.role)
	}
	if err == nil {
		err = n.config.Empties(other)
	}
	if c := n.config; err == nil && (other.Data != c.Data || other.Listen != c.Listen || other.Store.Log != c.Store.Log) {
		err = errors.New("data, listen and log cannot be changed while bridge runs: restart bridge serve")
	}
	return other, err
}

// rereadOnHangup reads the configuration again on a hangup, and ends with stop what b publishes by
// the former one; a configuration that is wrong changes nothing. While the log cannot be read b
// goes on: nothing could take its place.
func (n *node) rereadOnHangup(ctx context.Context, b *daemon.Bridge, stop context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.hangups:
		}
		c, err := n.reread()
		if err != nil {
			n.options.Logger.Error("the configuration was not read again, and nothing has changed", "error", err)
			continue
		}
		n.config = c
		for said := false; ; said = true {
			_, err := b.Log.Sets(ctx)
			if err == nil {
				n.options.Logger.Info("the configuration was read again")
				stop(errAgain)
				return
			}
			if !said {
				n.options.Logger.Error("the configuration was read again, and is used as soon as the log can be read", "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(openAgain):
			}
		}
	}
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

// beside publishes beside the node that works, until ctx ends, which is no error, or the
// configuration was read again, which is errAgain, or this node is to work: then it returns the
// log, open for writing.
func (n *node) beside(ctx context.Context, l *net.TCPListener) (*eventlog.Log, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	o := n.options
	o.ReadOnly, o.Beside = true, true
	b, err := openBridge(ctx, n.config, o)
	if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, eventlog.ErrOlder)) && n.role == roleWorker { // the first start of all, or of a version
		n.options.Logger.Info("there is no log yet, or no content store, or an older one: this node makes it", "error", err)
		return n.first(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	again, err := part(l)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	n.opened = n.config
	fmt.Fprintf(n.out, "serving %s on %s\n  beside the node that works (--role %s)\n", b.Base(again), again.Addr(), n.role)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.rereadOnHangup(ctx, b, stop)
	}()
	taken, err := b.PublishBeside(ctx, again, n.role == roleWorker)
	stop(nil)
	<-ended
	err = errors.Join(err, b.Close())
	if cause := context.Cause(ctx); taken == nil && errors.Is(cause, errAgain) {
		err = errors.Join(err, cause)
	}
	if err != nil {
		err = errors.Join(err, closeLog(taken))
		taken = nil
	}
	return taken, err
}

// errAgain: another node has just begun to work, or the configuration was read again.
var errAgain = errors.New("this node is to be opened again")

// first opens the log for writing, and makes it where there is none yet: why it could not be
// opened beside another node.
func (n *node) first(ctx context.Context, why error) (*eventlog.Log, error) {
	log, err := eventlog.Open(ctx, n.config.Data, eventlog.Options{URL: n.config.Store.Log, AcceptClock: n.options.AcceptClock, Holder: n.options.Command})
	switch {
	case errors.Is(err, eventlog.ErrInUse) || errors.Is(err, eventlog.ErrOthers) && errors.Is(why, fs.ErrNotExist): // made since by another node
		err = errAgain
	case errors.Is(err, eventlog.ErrOthers): // an older one, and the folder of this node has not had it
		err = fmt.Errorf("the database %w %s, and an older bridge has written it: start a node that has had it with this version of bridge first (%w)", eventlog.ErrOthers, n.config.Data, why)
	}
	return log, err
}
