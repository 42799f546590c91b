package daemon

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"

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
// until ctx ends or the log is in doubt. done is told of each harvest; nil is
// allowed. When it returns nothing runs any more, and what was acknowledged is durable.
func (b *Bridge) Serve(ctx context.Context, l net.Listener, done func(*Source, harvest.Report, error)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	b.servedAt(b.Base(l))
	b.reachedAt(b.Base(l))
	b.exchange.log.stop = stop // before the first call
	if err := b.ListenMail(ctx); err != nil {
		return errors.Join(err, l.Close())
	}
	var group sync.WaitGroup
	group.Go(func() { b.schedule(ctx, stop, done) })
	group.Go(func() {
		b.keep(ctx, "the check of the data folder", func(ctx context.Context) { b.watch(ctx, stop) })
	})
	group.Go(func() { b.keep(ctx, "the count of contents", b.count) })
	group.Go(func() { b.runExchange(ctx, stop, b.exchange.mails) })
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
	all, perClient := connections()
	s := server.New(server.Options{
		Documents: p, Records: b.Log, Contents: contents{b.Contents}, Sets: b.Log, BaseURL: base, Proxies: b.Config.TrustedProxies, Logger: b.opt.Logger,
		Status: b.serverStatus, SIPService: b.desk, Bodies: b.bodies, Full: b.diskSpace.Low,
		Limits: server.Limits{Connections: all, ConnectionsPerAddress: perClient, StatusAge: b.opt.StatusAge},
		Ready:  b.ready, PartialHeader: b.waits,
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() {
		b.keep(ctx, "the making of snapshots", func(ctx context.Context) {
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

func (b *Bridge) serverStatus(ctx context.Context) ([]server.SetStatus, error) {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]server.SetStatus, len(sets))
	for i, set := range sets {
		out[i].Set = set.Name
		sources, err := b.sources(ctx, set.Name)
		if err != nil {
			return nil, err
		}
		if out[i].Submissions, err = b.submissionStatus(ctx, set.Name); err != nil {
			return nil, err
		}
		for _, s := range sources {
			out[i].Sources = append(out[i].Sources, server.SourceStatus{Kind: s.Kind, URL: s.URL, Mark: s.Mark, Last: s.Last,
				Pending: int64(s.Pending), Held: int64(s.Held), Quarantined: int64(s.Quarantined), Gap: s.GapText, Next: s.Next})
		}
	}
	return out, nil
}
