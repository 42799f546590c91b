// Package daemon runs a configuration: the log and the content store of a data folder,
// scheduled harvests, the publisher and the server.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/metrics"
	"github.com/pmh-bridge/bridge/internal/submission/store"
)

// Options are the options with which a command opens a data folder, besides the
// configuration.
type Options struct {
	// ReadOnly opens it for reading only; another process may write to it.
	ReadOnly bool
	// Beside, with ReadOnly: the log is on a server, and another node may write it; the data
	// folder is of this node alone. See PublishBeside.
	Beside bool
	// Log is the log of the data folder where it is open already; Close closes it.
	Log *eventlog.Log
	// DryRun undoes every change at the end.
	DryRun bool
	// AcceptClock confirms a clock that jumped ahead (I3).
	AcceptClock bool
	// NewData allows a new log in a data folder that was used before and holds none.
	NewData bool
	// AdoptBucket lets a content store without a bucket take over that of another one.
	AdoptBucket bool
	// Command is the name of the command that the lock file states.
	Command string
	// Version goes into the user agent.
	Version string
	Logger  *slog.Logger
	// Now is the clock; nil is the system's.
	Now func() time.Time
	// Network looks up names and makes connections; the zero value is the system's.
	Network fetch.Network
	// StatusAge is how long pages show the same status; see server.Limits.
	StatusAge time.Duration
}

// Bridge is an open data folder with all that runs on it.
type Bridge struct {
	Log             *eventlog.Log
	SIP             *store.Store // the submissions and notifications in the log
	Contents        *content.Store
	generation      atomic.Pointer[generation] // see Reload
	changing        sync.Mutex                 // held while another generation is made
	formerNames     atomic.Pointer[[]eventlog.FormerName]
	awaited         sync.Map                         // by the name of a set that is not complete: the event.SourceID of a configured Source that it waits for
	turns           sync.Map                         // by the event.SourceID of a Source that is not configured: the *turn that all who find it share
	forgetSet       atomic.Pointer[func(set string)] // set by Publish: it drops what is cached in memory of a set
	loops           loops                            // the harvests that Serve schedules
	base            string                           // of the URLs of our documents, "" while it is not known
	only            []string                         // see Only; nil is everything
	newTemplates    chan struct{}                    // sent to when there are other templates
	opt             Options
	missingContents atomic.Pointer[missingContents] // nil when no content is missing
	filesTrouble    atomic.Pointer[string]          // why snapshots cannot be shared; nil while they can
	bucketTrouble   atomic.Pointer[string]          // why contents cannot be moved to their bucket; nil while they can
	alertTrouble    atomic.Pointer[string]          // why alerts cannot be sent; nil while they can
	names           *fetch.Names                    // the host names that were connected to
	guards          []*fetch.Guard                  // of targets; Sources have their own
	publicOnly      atomic.Pointer[fetch.Guard]     // for URLs that clients send; see openPublicOnly
	harvest         *harvest.Harvester
	underway        underway
	sip             sipState
	stop            atomic.Pointer[context.CancelCauseFunc] // ends Serve
	requestBudget   *limit.Bytes                            // of the requests under way
	console         console
	diskSpace       *limit.Space // what submissions and the cache leave free of the disk
	metrics         *metrics.Metrics
	hubs            hubNotifier // notifies our hubs
	push            pushState   // the subscriptions at hubs of Sources
	beside          beside      // of a node that publishes beside another
}

// Open opens the data folder of a configuration, and creates its sets and Sources. The
// caller closes the Bridge.
func Open(ctx context.Context, c *config.Config, opt Options) (*Bridge, error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{Log: opt.Log, newTemplates: make(chan struct{}, 1), hubs: hubNotifier{wake: make(chan struct{}, 1)}, push: pushState{wake: make(chan struct{}, 1)}, opt: opt, requestBudget: newRequestBudget(c.Limits.SIPMessage)}
	b.generation.Store(newGeneration(c))
	b.formerNames.Store(new([]eventlog.FormerName))
	b.diskSpace = &limit.Space{Folder: c.Data, Floor: c.Limits.FreeSpace, Share: 20, Changed: func(why error) {
		if why == nil {
			opt.Logger.Info("the disk has space again: submissions are accepted, documents are cached")
			return
		}
		opt.Logger.Error("submissions are refused and documents are not cached, so that harvests can continue: free some space", "error", why)
	}}
	b.metrics = b.newMetrics()
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Bridge) open(ctx context.Context) error {
	remember := b.Config().File != "" && !b.opt.ReadOnly && !b.opt.DryRun
	list, err := dataFoldersOf(b.Config())
	if err == nil && remember && !b.opt.NewData {
		err = list.check()
	}
	if err != nil {
		return err
	}
	if b.Log != nil {
		b.Log.ReportCommits(b.metrics.Committed)
	} else {
		b.Log, err = eventlog.Open(ctx, b.Config().Data, eventlog.Options{URL: b.Config().Store.Log, ReadOnly: b.opt.ReadOnly && !b.opt.Beside, Beside: b.opt.Beside, DryRun: b.opt.DryRun, AcceptClock: b.opt.AcceptClock, Holder: b.opt.Command, Clock: b.clock(), Committed: b.metrics.Committed})
	}
	if err != nil {
		return err
	}
	b.SIP = store.New(b.Log)
	b.SIP.Hook = func(query string, call func() error) error {
		err := call()
		if query == "" { // a page that cannot be shown stops nothing
			b.endIfStopped(err)
		}
		return err
	}
	if err := b.readFormerNames(ctx); err != nil {
		return err
	}
	b.logLoss()
	if remember {
		list.add(b.opt.Logger)
	}
	if len(b.Config().Sets) > 0 && !b.opt.ReadOnly && !b.opt.DryRun {
		b.noteConfiguration()
	}
	if err = b.openContents(ctx); err == nil && b.opt.Beside {
		err = b.openBeside(ctx)
	}
	if err != nil || b.opt.ReadOnly {
		return err
	}
	if !b.opt.DryRun {
		if err := b.finishRemovals(ctx); err != nil {
			return err
		}
		b.removeSnapshots(ctx)
	}
	if err := b.openGuard(ctx, b.Log.RememberHost); err != nil {
		return err
	}
	b.openPublicOnly(b.generation.Load())
	b.harvest = &harvest.Harvester{Log: b.Log, Contents: b.Contents, Now: b.opt.Now, Workers: b.Config().Limits.Connections, Folder: b.Config().Data}
	if b.opt.DryRun {
		b.harvest.Folder = "" // the data folder may not exist
	}
	if b.Config().File != "" && b.Config().BaseURL != "" {
		b.base = b.Config().BaseURL
	}
	if err := b.openSets(ctx); err != nil {
		return err
	}
	if err := b.openUnderway(ctx); err != nil {
		return err
	}
	return b.openSIP(ctx)
}

// openGuard makes the Guard from which all others of the first generation are made. save
// stores a host name when it is connected to for the first time; nil stores nothing.
func (b *Bridge) openGuard(ctx context.Context, save func(ctx context.Context, name string, public bool) error) error {
	known, err := b.Log.Hosts(ctx)
	if err != nil {
		return err
	}
	b.names = fetch.NewNames(known, save)
	g := *b.generation.Load()
	g.guard = b.newBase(&g)
	b.generation.Store(&g)
	return nil
}

// clock returns Options.Now as the log's clock and its monotonic clock; nil means the
// system's.
func (b *Bridge) clock() func() (time.Time, time.Duration) {
	if b.opt.Now == nil {
		return nil
	}
	epoch := b.opt.Now()
	return func() (time.Time, time.Duration) {
		now := b.opt.Now()
		return now, now.Sub(epoch)
	}
}

// newBase returns a Guard from which the others of a generation are made.
func (b *Bridge) newBase(g *generation) *fetch.Guard {
	o := b.fetchOptions(g.file)
	o.Names = b.names
	return fetch.New(o)
}

func (b *Bridge) fetchOptions(c *config.Config) fetch.Options {
	l := c.Limits
	o := fetch.Options{
		UserAgent: "bridge/" + b.opt.Version, Contact: c.Contact, Network: b.opt.Network,
		PerHost: l.Connections, Rate: float64(l.Rate), ConnectTimeout: l.ConnectTimeout, HeaderTimeout: l.HeaderTimeout, IdleTimeout: l.IdleTimeout,
		Redirects: l.Redirects, HeaderBytes: l.Header, Ratio: int64(l.Ratio), Log: b.opt.Logger, Asked: b.metrics.Asked,
	}
	if c.Proxy != "" {
		o.Proxy, _ = url.Parse(c.Proxy) // checked by config
	}
	return o
}

// openPublicOnly makes the Guard for URLs that clients send, as a generation has it. It does
// not reach the configured hosts and does not have their passwords: unauthenticated clients
// choose the URLs.
func (b *Bridge) openPublicOnly(g *generation) {
	if was := b.publicOnly.Swap(g.guard.With(fetch.Reach{Allowed: g.config.AllowHosts, SafePorts: true})); was != nil {
		was.Close()
	}
}

// newGuard returns a Guard that is closed with the Bridge.
func (b *Bridge) newGuard(r fetch.Reach) *fetch.Guard {
	g := b.generation.Load().guard.With(r)
	b.guards = append(b.guards, g)
	return g
}

// Close stops everything and releases the data folder.
func (b *Bridge) Close() error {
	errs := []error{b.underway.close()}
	if b.Contents != nil {
		errs = append(errs, b.Contents.Close())
	}
	if b.Log != nil {
		errs = append(errs, b.Log.Close())
	}
	for _, m := range b.sip.mails {
		_ = m.listener.Close() // Serve has closed it, if it ran
	}
	if b.console.listener != nil {
		_ = b.console.listener.Close() // Publish has closed it, if it ran
	}
	for _, g := range b.guards {
		g.Close()
	}
	if g := b.publicOnly.Load(); g != nil {
		g.Close()
	}
	for _, s := range slices.Concat(b.Sources(), b.Templates()) {
		s.closeClients()
	}
	return errors.Join(errs...)
}
