package daemon

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/server"
)

// Several nodes may publish one log that is on a server (Options.Beside). One of them writes
// it, and does all that a bridge alone does: see Serve. The others publish what is there:
// PublishBeside. A worker among them takes over when nobody writes.

// beside is what a node knows that publishes beside the one that writes.
type beside struct {
	sets   map[string]string // the Feed of each set by its name, as of the last look
	former []eventlog.FormerName
	stale  bool // the log has changed since
}

// lookEvery is about how often such a node looks what is new, and whether somebody writes.
const lookEvery = time.Second

// openBeside opens what publishes. The error is a fs.ErrNotExist when no node has made the
// content store yet.
func (b *Bridge) openBeside(ctx context.Context) error {
	if b.Contents == nil {
		return database.Missing("there is no content store in %s yet", database.Shown(b.Config().Store.Log))
	}
	if err := b.openGuard(ctx, nil); err != nil {
		return err
	}
	return b.look(ctx)
}

// PublishBeside serves the contents of the log on the listener, beside the node that writes
// it, until ctx ends, or the log was copied away, which is an eventlog.ErrMoved. With takeOver
// it does so until no other node writes the log. Then it returns the log, open for writing, for
// Options.Log of another Bridge; this one is to be closed first.
func (b *Bridge) PublishBeside(ctx context.Context, l net.Listener, takeOver bool) (taken *eventlog.Log, err error) {
	b.setBaseURL(b.Base(l))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	var moved error
	group.Go(func() {
		b.restartOnPanic(ctx, "following the log", func(ctx context.Context) {
			if taken, moved = b.followLog(ctx, takeOver); taken != nil || moved != nil {
				stop()
			}
		})
	})
	err = b.Publish(ctx, l)
	stop()
	group.Wait()
	return taken, errors.Join(err, moved)
}

// followLog looks what is new in the log, until ctx ends, or this node has taken over, or the
// log was copied away, which is the only error.
func (b *Bridge) followLog(ctx context.Context, takeOver bool) (*eventlog.Log, error) {
	var said string
	lost := false
	for {
		err := b.look(ctx)
		var taken *eventlog.Log
		if err == nil && takeOver {
			taken, err = b.takeOver(ctx)
		}
		if taken != nil {
			return taken, nil
		}
		if errors.Is(err, eventlog.ErrMoved) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		loss := b.Log.Loss()
		if loss != nil && !lost {
			b.opt.Logger.Error("THE LOG HAS LOST DATA that this node has seen; a worker that has seen it begins a new epoch when it takes over", "lost", loss.String())
		}
		lost = loss != nil
		switch text := errorText(err); {
		case text == said:
		case err != nil:
			b.opt.Logger.Error("the log cannot be followed; it is tried again", "error", err)
			defect.Log(b.opt.Logger, err)
		default:
			b.opt.Logger.Info("the log can be followed again")
		}
		said = errorText(err)
		// Not all nodes look at the same moment.
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(lookEvery/2 + rand.N(lookEvery)):
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// look notes how far the log has come, and what sets it has.
func (b *Bridge) look(ctx context.Context) error {
	changed, err := b.Log.Follow(ctx)
	b.beside.stale = b.beside.stale || changed
	if b.beside.stale {
		refreshed := b.refresh(ctx)
		b.beside.stale = refreshed != nil
		err = errors.Join(err, refreshed)
	}
	return err
}

// takeOver returns the log, open for writing, if this node is to write it.
func (b *Bridge) takeOver(ctx context.Context) (*eventlog.Log, error) {
	may, err := b.Log.MayTakeOver(ctx)
	if err != nil || !may {
		return nil, err
	}
	taken, err := b.Log.TakeOver(ctx)
	if errors.Is(err, eventlog.ErrInUse) {
		return nil, nil // another node was faster
	}
	return taken, err
}

// refresh makes another generation when the log has other sets than before, and forgets what
// is in memory, and in the data folder, of those that are others now.
func (b *Bridge) refresh(ctx context.Context) error {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return err
	}
	if err := b.readFormerNames(ctx); err != nil {
		return err
	}
	now, former := map[string]string{}, *b.formerNames.Load()
	for i := range sets {
		now[sets[i].Name] = sets[i].Feed
	}
	was := b.beside.sets
	if was != nil && maps.Equal(was, now) && slices.Equal(b.beside.former, former) {
		return nil
	}
	for name := range was {
		if forget := b.forgetSet.Load(); forget != nil && was[name] != now[name] {
			(*forget)(name)
		}
	}
	b.removeSnapshots(ctx)
	b.changing.Lock()
	defer b.changing.Unlock()
	last := b.generation.Load()
	g := newGeneration(b.underNewNames(last.file))
	g.guard = last.guard
	configs, err := b.expand(ctx, g, last)
	if err != nil {
		return err
	}
	g.names = map[string]bool{}
	for i := range configs {
		g.names[configs[i].Name] = true
	}
	b.generation.Store(g)
	b.beside.sets, b.beside.former = now, former
	return nil
}

// laterSIP is the SIP service of a set at a node that does not write.
func (b *Bridge) laterSIP(set string) server.SIPService {
	s := b.Config().Set(set)
	if s == nil || len(s.Submit) == 0 && !slices.ContainsFunc(s.Sources, func(src config.Source) bool { return src.SIP != nil }) {
		return nil
	}
	return later
}

// laterFormerSIP is what takes messages with a token to a set without a SIP service at such a
// node: only the node that writes knows what ingest servers owe to the set.
func laterFormerSIP(string) server.SIPService { return later }

// later answers what only the node that writes can answer. A balancer asks the next node.
func later(w http.ResponseWriter, _ *http.Request, _ string) {
	w.Header().Set("Retry-After", "10")
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, "This node publishes, and takes nothing: another one does. Send it again.", http.StatusServiceUnavailable)
}
