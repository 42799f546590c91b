package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/export"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
)

// Base returns the start of the URLs of published documents: the configured one, or that of
// the listener where the configuration leaves the port to the system.
func (b *Bridge) Base(l net.Listener) string {
	return cmp.Or(b.Config().BaseURL, "http://"+l.Addr().String())
}

// Listen listens on an address. what says what for, such as " for mail"; another says where
// another address is written.
func Listen(ctx context.Context, address, what, another string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s%s: %w: %s, or %s", address, what, err, listenAdvice(err), another)
	}
	return l, nil
}

// listenAdvice says what to do about an address that cannot be listened on.
func listenAdvice(err error) string {
	switch {
	case errors.Is(err, syscall.EACCES):
		return "only root, and who has CAP_NET_BIND_SERVICE, may use a port below 1024: put a web server in front, give the service that right as bridge.service says"
	case errors.Is(err, syscall.EADDRINUSE):
		return "stop what uses that address"
	}
	return "give this machine that address"
}

// Serve harvests every Source on its schedule and publishes on the listener, until ctx ends
// or the log has stopped. done, if not nil, is called after each harvest. When Serve
// returns, no goroutine of it runs any more, and everything that was acknowledged is
// durable.
func (b *Bridge) Serve(ctx context.Context, l net.Listener, done func(*Source, harvest.Report, error)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	b.setBaseURL(b.Base(l))
	b.reachedAt(b.Base(l))
	b.stop.Store(&stop)
	if err := b.ListenMail(ctx); err != nil {
		return errors.Join(err, l.Close())
	}
	b.loadPushes(ctx) // before a hub calls, and before a Source is due
	var group sync.WaitGroup
	group.Go(func() { b.schedule(ctx, stop, done) })
	group.Go(func() {
		b.restartOnPanic(ctx, "the check of the data folder", func(ctx context.Context) { b.watchFolder(ctx, stop) })
	})
	group.Go(func() { b.restartOnPanic(ctx, "the count of contents", b.watchContents) })
	group.Go(func() { b.restartOnPanic(ctx, "telling of alerts", b.alerter().Run) })
	group.Go(func() { b.restartOnPanic(ctx, "subscribing at hubs", b.subscribe) })
	group.Go(func() { b.runExchange(ctx, stop, b.sip.mails) })
	err := b.Publish(ctx, l)
	stop(nil)
	group.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, eventlog.ErrStopped) || errors.As(cause, new(*haltedError)) {
		err = errors.Join(err, cause)
	}
	return err
}

// endIfStopped ends Serve when an error means that the log has stopped: the client of a SIP
// service only gets the response to try again later.
func (b *Bridge) endIfStopped(err error) {
	if stop := b.stop.Load(); stop != nil && errors.Is(err, eventlog.ErrStopped) {
		(*stop)(err)
	}
}

// console holds the arguments of SetConsole.
type console struct {
	handler  http.Handler
	listener net.Listener
}

// SetConsole makes Publish, and so Serve, serve the console with a handler: on a listener
// of its own, which Publish closes, or below /console of the public address when the
// listener is nil.
func (b *Bridge) SetConsole(h http.Handler, l net.Listener) { b.console = console{h, l} }

// The console is for a few people, so its limits are low.
const (
	consoleConnections = 64
	consoleTime        = time.Minute // for a request, and for its response
)

// serveConsole serves the console on its own listener until ctx ends.
func (b *Bridge) serveConsole(ctx context.Context) {
	limited := limit.NewListener(b.console.listener, limit.ConnLimits{All: consoleConnections, PerClient: consoleConnections})
	s := &http.Server{Handler: server.WithClientAddress(b.Config().TrustedProxies, b.console.handler), ReadTimeout: consoleTime, WriteTimeout: consoleTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ConnState: limited.State, ErrorLog: slog.NewLogLogger(b.opt.Logger.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(limited) }()
	select {
	case err := <-ended:
		b.opt.Logger.Error("the console answers no more", "error", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = s.Shutdown(end)
	_ = s.Close() // closes the connections that are still open
}

// Publish serves the contents of the log on the listener, and maintains the snapshots of
// large sets, until ctx ends.
func (b *Bridge) Publish(ctx context.Context, l net.Listener) error {
	base := b.Base(l)
	var public http.Handler
	if b.console.listener == nil {
		public = b.console.handler
	}
	log, o := published{b.Log, b.publishes}, b.publishOptions(base)
	o.Log, o.Hubs, o.ReportFiles = log, b.hubsOf, b.reportFiles
	files, err := b.openFiles()
	if err != nil {
		l.Close()
		return err
	}
	if files != nil {
		defer func() { _ = files.Close() }() // only idle connections
	}
	o.Files, o.Follow = files, b.opt.Beside
	if o.FilesOwner, err = b.filesOwner(true); err != nil {
		l.Close()
		return err
	}
	p, err := publish.New(o)
	if err != nil {
		l.Close()
		return err
	}
	sipService, formerSIPService, callback := b.sipService, b.formerSIPService, b.serveCallback
	if b.opt.Beside {
		sipService, formerSIPService, callback = b.laterSIP, laterFormerSIP, later
	}
	s := server.New(server.Options{
		Moved: b.movedTo, Renamed: b.isRenamed, Published: b.publishes,
		Documents: p, Log: log, Contents: contents{b.Contents}, BaseURL: base, Proxies: b.Config().TrustedProxies, Logger: b.opt.Logger,
		Status: b.pageStatus, About: b.about, SIPService: sipService, FormerSIPService: formerSIPService, Repository: b.repositoriesAt(base), Bodies: b.requestBudget, Full: b.diskSpace.Low,
		Limits: server.Limits{StatusAge: b.opt.StatusAge}, Ready: b.ready, PartialHeader: b.partialHeader, Console: public, HasConsole: b.console.handler != nil, Answered: b.metrics.Answered,
		Hubs: b.hubsOf, Callback: callback,
	})
	forget := func(set string) {
		p.Forget(set)
		s.Forget(set)
	}
	b.forgetSet.Store(&forget)
	defer b.forgetSet.Store(nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	if b.console.listener != nil {
		group.Go(func() { b.serveConsole(ctx) })
	}
	if b.opt.Beside {
		group.Go(func() { b.restartOnPanic(ctx, "the getting of snapshots", p.Follow) })
	} else {
		group.Go(func() { b.restartOnPanic(ctx, "the making of snapshots", p.Run) })
		group.Go(func() {
			b.restartOnPanic(ctx, "telling hubs of changes", func(ctx context.Context) { b.notifyHubs(ctx, p, base) })
		})
	}
	err = s.Run(ctx, l)
	cancel()
	group.Wait()
	return err
}

// about returns the licence of a set and the contact, for the page of the set.
func (b *Bridge) about(set string) (licence, contact string) {
	c := b.Config()
	for i := range c.Sets {
		if c.Sets[i].Name == set {
			licence = c.Sets[i].Licence
		}
	}
	return licence, c.Contact
}

// renderingAge is how old an open document may become before it is rendered again, for each
// 1,000 of its entries: about fifty times the time to render them.
const renderingAge = 200 * time.Millisecond

// snapshotsKept is how many snapshots of a set are kept at most.
const snapshotsKept = 100

// Publisher returns a publisher of the log's documents below a base URL; without one it
// only lists the documents.
func (b *Bridge) Publisher(base string) (*publish.Publisher, error) {
	return publish.New(b.publishOptions(base))
}

// publishOptions returns the options of the publisher of serve.
func (b *Bridge) publishOptions(base string) publish.Options {
	s := b.Config().Snapshot
	return publish.Options{
		Log: b.Log, BaseURL: cmp.Or(base, "http://localhost"), AnyBase: base == "", MinAge: renderingAge, Full: b.diskSpace.Low, Room: b.diskSpace.Room,
		CacheBytes: b.Config().Limits.Cache, Retention: publish.Retention{Age: s.Keep, Count: snapshotsKept, Bytes: s.KeepSize}, CacheDir: b.cacheDir(), SnapshotDir: b.snapshotDir(),
		AfterDeletion: s.AfterDeletion, AfterChange: s.AfterChange, DumpEvery: s.DumpEvery, Content: b.dumpContent, Now: b.opt.Now, Logger: b.opt.Logger,
	}
}

// Export writes what serve publishes as files. From the options it takes the destination,
// the base URL and the sets. Like serve, it leaves out sets that are not configured.
func (b *Bridge) Export(ctx context.Context, o export.Options) (export.Report, error) {
	names, err := b.configuredSets(ctx)
	if err != nil {
		return export.Report{}, err
	}
	if names != nil {
		o.Published = func(set string) bool { return names[set] }
	}
	o.Log, o.Contents, o.Data, o.Now, o.Logger, o.About = b.Log, b.Contents, b.Config().Data, b.opt.Now, b.opt.Logger, b.about
	o.Publisher = func(l publish.Log, folder string) (*publish.Publisher, error) {
		p := b.publishOptions(o.BaseURL)
		p.Log, p.MinAge, p.Full, p.Room, p.Retention = l, 0, nil, nil, publish.Retention{}
		p.CacheDir, p.SnapshotDir = filepath.Join(folder, "cache"), filepath.Join(folder, "snapshots")
		return publish.New(p)
	}
	return export.Run(ctx, o)
}

// openFiles opens the bucket of snapshots and dumps, nil if none is configured. The caller
// closes it. It uses no network.
func (b *Bridge) openFiles() (*bucket.Bucket, error) {
	if b.Config().Store.Files == "" {
		return nil, nil
	}
	address, err := bucket.Parse(b.Config().Store.Files)
	if err != nil {
		return nil, fmt.Errorf("[store] files: %w", err)
	}
	return bucket.Open(address)
}

// filesOwnerName is the file in the data folder with the identity by which that bucket knows a
// log that is a file.
const filesOwnerName = "files.owner"

// filesOwner returns the identity of the log, by which that bucket knows it. A log in a file has
// none before make makes it.
func (b *Bridge) filesOwner(make bool) (string, error) {
	if _, identity := b.Log.Server(); identity != "" || b.Config().Store.Files == "" {
		return identity, nil
	}
	file := filepath.Join(b.Config().Data, filesOwnerName)
	data, err := os.ReadFile(file)
	owner := strings.TrimSpace(string(data))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case owner != "" || !make:
		return owner, nil
	}
	owner = rand.Text()
	f, err := os.Create(file)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(owner + "\n")
	return owner, errors.Join(err, f.Sync(), f.Close(), database.SyncDir(filepath.Dir(file)))
}

// reportFiles notes and logs whether that bucket can be used.
func (b *Bridge) reportFiles(err error) {
	if err == nil {
		b.filesTrouble.Store(nil)
		b.opt.Logger.Info("snapshots and dumps can be shared through their bucket again")
		return
	}
	const text = filesCannot + "; what is in the data folder is published until they can"
	b.filesTrouble.Store(new(text + ": " + Redact(err.Error())))
	b.opt.Logger.Error(text, "error", err)
}

func (b *Bridge) cacheDir() string { return filepath.Join(b.Config().Data, "cache") }

func (b *Bridge) snapshotDir() string { return filepath.Join(b.Config().Data, "snapshots") }

// PathWarning returns what the operator has to do when the base URL has a path, "" when it
// has none.
func (b *Bridge) PathWarning() string {
	u, err := url.Parse(b.Config().BaseURL)
	if err != nil || u.Path == "" || u.Path == "/" {
		return ""
	}
	return fmt.Sprintf("base_url has a path: let the web server of %s answer /.well-known/resourcesync and /robots.txt with those of %s", u.Host, b.Config().BaseURL)
}
