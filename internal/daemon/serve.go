package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/server"
)

// Base is the URL that published documents begin with: the configured one, or
// that of the listener where the configuration leaves the port to the system.
func (b *Bridge) Base(l net.Listener) string {
	return cmp.Or(b.Config.BaseURL, "http://"+l.Addr().String())
}

// Serve harvests every Source on its schedule and publishes on the listener,
// until ctx ends or the log has stopped. done, if not nil, is called after each
// harvest. When Serve returns, nothing runs any more, and everything that was
// acknowledged is durable.
func (b *Bridge) Serve(ctx context.Context, l net.Listener, done func(*Source, harvest.Report, error)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	b.setBaseURL(b.Base(l))
	b.reachedAt(b.Base(l))
	b.sip.log.stop = stop // before the first call
	if err := b.ListenMail(ctx); err != nil {
		return errors.Join(err, l.Close())
	}
	var group sync.WaitGroup
	group.Go(func() { b.schedule(ctx, stop, done) })
	group.Go(func() {
		b.restartOnPanic(ctx, "the check of the data folder", func(ctx context.Context) { b.watchFolder(ctx, stop) })
	})
	group.Go(func() { b.restartOnPanic(ctx, "the count of contents", b.watchContents) })
	group.Go(func() { b.runExchange(ctx, stop, b.sip.mails) })
	err := b.Publish(ctx, l)
	stop(nil)
	group.Wait()
	var halted *haltedError
	if cause := context.Cause(ctx); errors.Is(cause, eventlog.ErrStopped) || errors.As(cause, &halted) {
		err = errors.Join(err, cause)
	}
	return err
}

// Publish serves what the log has on the listener, and keeps the snapshots of
// large sets, until ctx ends.
func (b *Bridge) Publish(ctx context.Context, l net.Listener) error {
	base := b.Base(l)
	p, err := b.Publisher(base)
	if err != nil {
		l.Close()
		return err
	}
	s := server.New(server.Options{
		Documents: p, Log: b.Log, Contents: contents{b.Contents}, BaseURL: base, Proxies: b.Config.TrustedProxies, Logger: b.opt.Logger,
		Status: b.pageStatus, SIPService: b.sipService, Bodies: b.requestBudget, Full: b.diskSpace.Low,
		Limits: server.Limits{StatusAge: b.opt.StatusAge}, Ready: b.ready, PartialHeader: b.partialHeader,
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() {
		b.restartOnPanic(ctx, "the making of snapshots", func(ctx context.Context) {
			if err := p.Run(ctx); err != nil {
				b.opt.Logger.Error("snapshots have stopped", "error", err)
			}
		})
	})
	err = s.Run(ctx, l)
	cancel()
	group.Wait()
	return err
}

// ContentError: a set was made with another content mode, which is fixed.
type ContentError = eventlog.ContentError

// Replay applies quarantined input again, and marks it as replayed if that succeeds.
func (b *Bridge) Replay(ctx context.Context, q *event.Quarantined) (harvest.Report, error) {
	all, err := b.Log.Sources(ctx, q.Set)
	if err != nil {
		return harvest.Report{}, err
	}
	for i := range all {
		if all[i].ID != q.Source {
			continue
		}
		src, err := b.Find(ctx, q.Set, all[i].URL)
		if err != nil {
			return harvest.Report{}, err
		}
		report, err := b.harvest.Replay(ctx, &src.Source, q)
		if err != nil {
			return report, err
		}
		return report, b.Log.Replayed(ctx, q.ID)
	}
	return harvest.Report{}, fmt.Errorf("set %s no longer has the Source it came from", q.Set)
}

// Only keeps those configured Sources that names contains, by their own name or their
// set's; without names all.
func (b *Bridge) Only(names []string) {
	if len(names) > 0 {
		b.Sources = slices.DeleteFunc(b.Sources, func(s *Source) bool {
			return !slices.Contains(names, s.Set) && (s.Name == "" || !slices.Contains(names, s.Name))
		})
	}
}

// PathWarning says what the operator has to do when the base URL has a path, ""
// when it has none.
func (b *Bridge) PathWarning() string {
	u, err := url.Parse(b.Config.BaseURL)
	if err != nil || u.Path == "" || u.Path == "/" {
		return ""
	}
	return fmt.Sprintf("base_url has a path: let the web server of %s answer /.well-known/resourcesync and /robots.txt with those of %s", u.Host, b.Config.BaseURL)
}
