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
func (h *House) Base(l net.Listener) string {
	return cmp.Or(h.Config.BaseURL, "http://"+l.Addr().String())
}

// Serve harvests every Source on its schedule and publishes on the listener,
// until ctx ends or the log is in doubt. done is told of each harvest; nil is
// allowed. When it returns nothing runs any more, and what was acknowledged is durable.
func (h *House) Serve(ctx context.Context, l net.Listener, done func(*Source, harvest.Report, error)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	h.servedAt(h.Base(l))
	h.reachedAt(h.Base(l))
	h.exchange.log.stop = stop // before the first call
	if err := h.ListenMail(ctx); err != nil {
		return errors.Join(err, l.Close())
	}
	var group sync.WaitGroup
	group.Go(func() { h.schedule(ctx, stop, done) })
	group.Go(func() {
		h.keep(ctx, "the check of the data folder", func(ctx context.Context) { h.watch(ctx, stop) })
	})
	group.Go(func() { h.keep(ctx, "the count of contents", h.count) })
	group.Go(func() { h.runExchange(ctx, stop, h.exchange.mails) })
	err := h.Publish(ctx, l)
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
func (h *House) Publish(ctx context.Context, l net.Listener) error {
	base := h.Base(l)
	p, err := h.Publisher(base)
	if err != nil {
		l.Close()
		return err
	}
	all, perClient := connections()
	s := server.New(server.Options{
		Documents: p, Records: h.Log, Contents: contents{h.Contents}, Sets: h.Log, BaseURL: base, Proxies: h.Config.TrustedProxies, Logger: h.opt.Logger,
		Status: h.serverStatus, Desk: h.desk, Bodies: h.bodies, Full: h.diskSpace.Low,
		Limits: server.Limits{Connections: all, ConnectionsPerAddress: perClient, StatusAge: h.opt.StatusAge},
		Ready:  h.ready, Waits: h.waits,
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() {
		h.keep(ctx, "the making of snapshots", func(ctx context.Context) {
			if err := p.Run(ctx); err != nil {
				h.opt.Logger.Error("snapshots have stopped", "error", err)
			}
		})
	})
	err = s.Run(ctx, l)
	cancel()
	group.Wait()
	return err
}

func (h *House) serverStatus(ctx context.Context) ([]server.SetStatus, error) {
	sets, err := h.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]server.SetStatus, len(sets))
	for i, set := range sets {
		out[i].Set = set.Name
		sources, err := h.sources(ctx, set.Name)
		if err != nil {
			return nil, err
		}
		if out[i].Submissions, err = h.submissionStatus(ctx, set.Name); err != nil {
			return nil, err
		}
		for _, s := range sources {
			out[i].Sources = append(out[i].Sources, server.SourceStatus{Kind: s.Kind, URL: s.URL, Mark: s.Mark, Last: s.Last,
				Pending: int64(s.Pending), Held: int64(s.Held), Quarantined: int64(s.Quarantined), Gap: s.GapText, Next: s.Next})
		}
	}
	return out, nil
}
