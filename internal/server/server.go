// Package server serves over HTTP: the documents of package publish, the records of
// the content store, and pages for browsers.
//
// It only reads, and only through the interfaces of Options; no path of a request becomes a
// path of a file here. Every request passes serveHTTP (handler.go: methods, limits, the base
// path), is routed, and is answered by one handler, or by handleError. Only these requests may
// have a body: those below /sip/, which go to the SIPService of their set (sip.go), those below
// /websub/ (Options.Callback), those to the console (Options.Console), and those to an OAI-PMH
// repository, /sets/{set}/oai (oai.go).
//
// A base URL with a path, such as https://example.org/bridge, means that there is a
// proxy in front. It may strip that path or keep it: the server answers under the path
// and at the root. (Only a path that begins like one of the server's own, such as
// /sets, needs a proxy that keeps it.)
package server

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/status"
)

// The interfaces below are what a server reads. This package may import neither the log
// nor the content store (imports_test.go).

// Documents are the published documents; publish.Publisher is one. Tests that run under a fake
// clock have others, since SQLite does not follow that clock.
type Documents interface {
	// Document returns the document at a path that follows the base URL. The
	// error is publish.ErrNotFound, a *publish.NotReadyError, a
	// *publish.TooManyError, or a fault.
	Document(ctx context.Context, path string, gzip bool) (*publish.Document, error)
	// LinkHeader leads from a record of a set to the set's Capability List
	// (ResourceSync 6.3.3).
	LinkHeader(set string) string
	// Segments returns a set and all of its segments, oldest first; the last is open.
	// The caller must not change them. The error may be publish.ErrNotFound.
	Segments(ctx context.Context, set string) (event.Set, []event.Segment, error)
}

// Log is the event log; eventlog.Log is one.
type Log interface {
	publish.Log
	// Record returns the last event of the record whose key it is, see
	// event.Key; fs.ErrNotExist when the set has never had it.
	Record(ctx context.Context, set, key string) (*event.Event, error)
	// Version returns the newest version of a record that is at seq or before and was
	// observed at a time or before, else its first one, with those beside it;
	// fs.ErrNotExist when the set keeps no history, or has never had the record.
	Version(ctx context.Context, set, key string, seq event.Seq, observed event.Micros) (*event.Versions, error)
	// VersionPage returns a page of so many versions of a record, oldest first, with its
	// first and last version. Page 0 is the newest one; fs.ErrNotExist as in Version.
	VersionPage(ctx context.Context, set, key string, page, size int) (list []event.Version, first, last event.Version, err error)
	// Forgotten reports whether a Seq is none of this log: it was given out for an event
	// that has been lost, or is later than the last one.
	Forgotten(ctx context.Context, seq event.Seq) (bool, error)
}

// Contents holds the representations of sets in mode mirror; content.Store has them.
type Contents interface {
	// Open returns a representation by its SHA-256, and its length in bytes.
	// ctx holds until it is closed.
	Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error)
}

// Limits bound what one client can take. Zero values are the defaults; the only
// negative value with a meaning is PerAddress.
type Limits struct {
	// HeaderBytes of a request; 0 is 64 KiB. More is answered with 431.
	HeaderBytes int
	// HeaderTime in which the header of a request must have been sent; 0 is 10 s. Requests that
	// may not have a body (see the package comment) are refused with 413 if they have one. For
	// the unread rest of a body the server waits as long again.
	HeaderTime time.Duration
	// BodyTime in which a body must have been sent whole; 0 is a minute.
	BodyTime time.Duration
	// WriteTime is how long a client may take for the next 256 KiB of an answer; 0 is
	// 30 s. The whole answer may take as long as it needs while the client reads.
	WriteTime time.Duration
	// Idle is how long a connection is kept between requests; 0 is 2 minutes.
	Idle time.Duration
	// PerAddress is how many requests of one IP address (of one /64 in IPv6) are
	// answered at a time; more are answered with 429. 0 is 256; below 0 is no
	// limit. Behind a proxy that is none of Options.Proxies its address is the only
	// one seen.
	PerAddress int
	// Connections at a time, in all and of one client; 0 is half of the file
	// descriptors of the process, at most 4096, and a quarter of that for one client.
	// Those of a proxy of Options.Proxies count in all alone. Above that idle ones are
	// closed for new ones, and where none is idle the new one gets 503, or an answer of
	// /healthz or /readyz.
	Connections, ConnectionsPerAddress int
	// StatusAge is how long pages show the same status; 0 is 3 s, or ten times as long as it takes
	// to read it, if that is longer.
	StatusAge time.Duration
	// Drain is how long requests may go on when the server ends; 0 is 8 s. In the
	// last eighth of it calls of a SIPService are to be answered; see there.
	Drain time.Duration
}

// Options are what a server serves. Documents, Log, Contents and BaseURL must be
// given.
type Options struct {
	Documents Documents
	Log       Log
	Contents  Contents
	// SIPService returns the SIP service of a set, nil when it has none; a nil func is
	// no service at all. Pages ask too, to link it.
	SIPService func(set string) SIPService
	// FormerSIPService returns what takes messages with a token to a set that has no SIP
	// service any more, nil when nothing does. A nil func is nothing for all sets.
	FormerSIPService func(set string) SIPService
	// Repository returns the OAI-PMH repository of a set; the error is
	// publish.ErrNotFound when there is no such set. A nil func is no repository at all.
	Repository func(ctx context.Context, set string) (*publish.Repository, error)
	// Moved returns the name that a set has by now, "" when a name is none that a set had
	// before. A nil func is a server whose sets keep their names.
	Moved func(name string) string
	// Renamed reports whether a set has got, or lost, a name so recently that what is not found
	// under it has moved. A nil func is as with Moved.
	Renamed func(ctx context.Context, name string) bool
	// Published reports whether a set may be served, which can end while the server runs. A nil
	// func is a server of all sets that Log has.
	Published func(set string) bool
	// Status returns the state of all sets for the pages, which redact it; nil when
	// there is none. They show it, and all texts of a Source, as Redact returns it and
	// without local folders.
	Status func(ctx context.Context) ([]status.Set, error)
	// Ready returns why log or Change Lists cannot be served, nil when they can; a nil func is
	// a server that is always ready.
	Ready func(ctx context.Context) error
	// BaseURL is what all published URLs begin with, absolute.
	BaseURL string
	// Proxies are the networks of the web servers in front of this one, none of them an IPv4
	// network in IPv6's form. The address that one of them adds to X-Forwarded-For is taken as
	// the client's wherever addresses matter. The header of any other client is ignored.
	Proxies []netip.Prefix
	// PartialHeader is the value of follow.PartialHeader for a set that is not whole yet; a nil
	// func is a server whose sets are whole.
	PartialHeader func(ctx context.Context, set string) string
	// About returns the licence of a set's records and its contact, a mail address or a URL; ""
	// where there is none. With a nil func no set has either.
	About func(set string) (licence, contact string)
	// Hubs returns the WebSub hubs of a set, which the feeds for feed readers name; a nil
	// func is none.
	Hubs func(set string) []string
	// Callback answers WebSub hubs at /websub/{token}, whatever the method; with nil there is
	// no such path.
	Callback func(w http.ResponseWriter, r *http.Request, token string)
	// Console answers /console and /api and all below them, whatever the method; nil when the
	// console is elsewhere.
	Console http.Handler
	// HasConsole: there is a console, here or elsewhere. Pages show everybody what
	// consumers need, and leave what operators need to it.
	HasConsole bool
	// Static: what the server answers is kept as files for another server. Pages leave
	// out what changes without the log: Sources, submissions, and the server's health.
	Static bool
	// Answered, if not nil, is called after each request with its route, such as "/sets/:set/",
	// or "other"; the status of the answer, and the time until its end.
	Answered func(route string, status int, took time.Duration)
	// Logger gets faults as errors, what clients do as debug; nil discards all.
	Logger *slog.Logger
	// Bodies is the budget of the bytes of requests under way, shared with other
	// servers; nil is one of 64 MiB, a quarter of it for one client.
	Bodies *limit.Bytes
	Limits Limits
	// Full returns why no request body may be stored now, nil while the disk has room;
	// a nil func means that it always has.
	Full func() error
	// Now is the clock; nil is the system's.
	Now func() time.Time
}

// Server answers requests. Its methods may be called from any goroutine.
type Server struct {
	opt      Options
	log      *slog.Logger
	base     string // without a slash at its end
	mount    string // path of base, "" when there is none
	host     string // of base, without its port
	echo     *echo.Echo
	limiter  *requestLimiter
	pages    pages
	docs     *docCache
	ready    readyCheck
	statuses statusCache
	// logins are those that failed.
	logins limit.Attempts
	// nosniff and policy are header fields that all answers begin with.
	nosniff, policy []string
	// buffers are *[bufferSize]byte, for answers that are no files.
	buffers sync.Pool
	// compressors are *publish.Compressor.
	compressors sync.Pool
	// streams counts those of changes that are open; ending ends, by endStreams, when the
	// server does.
	streams    *requestLimiter
	ending     context.Context
	endStreams context.CancelFunc
	// draining ends, by startDraining, when calls of SIP services must be answered.
	draining      context.Context
	startDraining context.CancelFunc
}

// New returns a server. It reads nothing before the first request.
func New(o Options) *Server {
	o.Limits = o.Limits.orDefaults()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Bodies == nil {
		o.Bodies = limit.NewBytes(64<<20, 16<<20)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{
		opt: o, log: o.Logger, base: strings.TrimRight(o.BaseURL, "/"),
		limiter: newRequestLimiter(o.Limits.PerAddress), pages: newPages(), docs: newDocCache(),
		nosniff: []string{"nosniff"}, policy: []string{"default-src 'none'; frame-ancestors 'none'"},
	}
	if u, err := url.Parse(s.base); err == nil {
		s.mount, s.host = u.Path, u.Hostname()
	}
	s.draining, s.startDraining = context.WithCancel(context.Background())
	s.ending, s.endStreams = context.WithCancel(context.Background())
	all := min(streams, o.Limits.Connections/2) // the rest is for everybody else
	s.streams = newRequestLimiter(min(streamsPerAddress, all/2))
	s.streams.all = all
	s.buffers.New = func() any { return new([bufferSize]byte) }
	s.compressors.New = func() any { return publish.NewCompressor() }
	s.echo = s.routes()
	return s
}

func (l Limits) orDefaults() Limits {
	l.HeaderTime = cmp.Or(l.HeaderTime, 10*time.Second)
	l.BodyTime = cmp.Or(l.BodyTime, time.Minute)
	l.WriteTime = cmp.Or(l.WriteTime, 30*time.Second)
	l.Idle = cmp.Or(l.Idle, 2*time.Minute)
	l.Drain = cmp.Or(l.Drain, 8*time.Second)
	l.HeaderBytes = cmp.Or(l.HeaderBytes, 64<<10)
	l.PerAddress = cmp.Or(l.PerAddress, 256)
	if l.Connections == 0 {
		l.Connections = 4096
		var files syscall.Rlimit // what the server leaves is for the log, the cache and harvests
		if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil && files.Cur/2 < uint64(l.Connections) {
			l.Connections = max(int(files.Cur/2), 64)
		}
		l.ConnectionsPerAddress = cmp.Or(l.ConnectionsPerAddress, max(l.Connections/4, min(256, l.Connections*3/4)))
	}
	l.ConnectionsPerAddress = min(cmp.Or(l.ConnectionsPerAddress, l.Connections), l.Connections)
	return l
}

// spareConnections are kept for those that find the server full.
const spareConnections = 32

// connKey is the key of the connection in the context of its requests.
type connKey struct{}

// routes is the part of the table of URLs that this server answers.
func (s *Server) routes() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = s.handleError
	handlers := map[string]echo.HandlerFunc{
		"/":                         s.indexPage,
		"/healthz":                  s.healthz,
		"/readyz":                   s.readyz,
		"/robots.txt":               s.document,
		"/.well-known/resourcesync": s.document,
		"/sets/:set":                s.redirectToSlash,
		"/sets/:set/":               s.setPage,
		"/sets/:set/records/:name":  s.record,
		"/sets/:set/changes.json":   s.changes,
		"/sets/:set/changes/stream": s.changeStream,

		"/sets/:set/records/:name/timegate":      s.timeGate,
		"/sets/:set/records/:name/timemap":       s.timeMap,
		"/sets/:set/records/:name/timemap/:page": s.timeMap,
		"/sets/:set/records/:name/at/:seq":       s.memento,

		"/sets/:set/*": s.document, // publish decides which exist
	}
	for _, form := range recentForms() {
		handlers["/sets/:set/"+form.Name] = s.recent(form)
	}
	for path, h := range handlers {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, func(c echo.Context) error {
			c.Response().Writer.(*responseWriter).route = path
			if set := c.Param("set"); set != "" && s.opt.Published != nil && !s.opt.Published(set) {
				return publish.ErrNotFound // whatever is in memory of it
			}
			return h(c)
		})
	}
	return e
}

// Forget drops what is kept in memory of a set that has another name from now on, was
// removed, or has the name of one that was.
func (s *Server) Forget(set string) { s.docs.forget("/sets/" + set + "/") }

// Handler returns the server as a handler, without the limits that belong to
// connections.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Run serves on a listener, which it closes, until ctx is done. Then it takes no
// more connections, lets requests go on for Limits.Drain, and cuts what is left.
// When it returns, no handler runs any more that minds its context. The error is
// nil after ctx is done, else why the listener failed.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	lim := s.opt.Limits
	limited := limit.NewListener(l, limit.ConnLimits{All: lim.Connections, PerClient: lim.ConnectionsPerAddress, Spare: spareConnections, Exempt: s.isProxy})
	srv := &http.Server{
		Handler: s.Handler(), MaxHeaderBytes: lim.HeaderBytes, ReadHeaderTimeout: lim.HeaderTime,
		// No ReadTimeout: it would end the context of an answer that takes longer.
		WriteTimeout: lim.WriteTime, IdleTimeout: lim.Idle,
		BaseContext: func(net.Listener) context.Context { return requests },
		ConnState:   limited.State, ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	srv.RegisterOnShutdown(s.endStreams)
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = srv.Serve(limited)
	}()
	select {
	case <-ended:
		// A listener that failed takes no more; what it has taken is drained too.
	case <-ctx.Done():
		_ = limited.Close()
		<-ended
		err = nil
	}
	until := time.Now().Add(lim.Drain)
	s.settle(srv, limited, until)
	s.drain(srv, cancel, until)
	return err
}

// settleTime is how long a client that has just connected may take to send its request before a
// server that ends hangs up.
const settleTime = 2 * time.Second

// settle waits for the requests of connections that were accepted last, until a time at most.
func (s *Server) settle(srv *http.Server, l *limit.Listener, until time.Time) {
	ctx, done := context.WithTimeout(context.Background(), min(settleTime, time.Until(until)))
	defer done()
	srv.SetKeepAlivesEnabled(false)
	l.Settle(ctx)
}

// drain waits for requests under way until a time, and cuts those that take longer.
func (s *Server) drain(srv *http.Server, cancel context.CancelFunc, until time.Time) {
	ctx, done := context.WithDeadline(context.Background(), until)
	defer done()
	defer time.AfterFunc(time.Until(until)-s.opt.Limits.Drain/8, s.startDraining).Stop()
	if srv.Shutdown(ctx) == nil {
		return
	}
	cancel()
	_ = srv.Close() // of connections that are cut anyway
	left := s.limiter.wait(time.Second)
	s.log.Warn("connections were cut: their requests took too long to end", "waited", s.opt.Limits.Drain, "still running", left)
}

// readyTime is how long /readyz waits for an answer of the log.
const readyTime = 5 * time.Second

// healthz answers while the process serves at all.
func (s *Server) healthz(c echo.Context) error {
	writeText(c.Response().Writer, http.StatusOK, "ok\n")
	return nil
}

// readyz answers 200 when log and Change Lists are served, else 503 and why.
func (s *Server) readyz(c echo.Context) error {
	w := c.Response().Writer
	if s.opt.Ready != nil {
		if err := s.ready.run(c.Request().Context(), s.opt.Ready); err != nil {
			why := "not ready; bridge status and the server's log say why\n"
			if s.operator(c.Request()) {
				why = "not ready: " + public(err.Error()) + "\n"
			}
			w.Header().Set("Retry-After", "5")
			writeText(w, http.StatusServiceUnavailable, why)
			return nil
		}
	}
	writeText(w, http.StatusOK, "ready\n")
	return nil
}

// readyCheck runs one check for all requests at the same time: no limit bounds how
// many these are, so together they must cost no more than one. One that takes longer than
// readyTime goes on without them.
type readyCheck struct {
	mu      sync.Mutex
	running *readyResult // nil while no check runs
}

type readyResult struct {
	done chan struct{}
	err  error
}

func (r *readyCheck) run(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	r.mu.Lock()
	a := r.running
	if a == nil {
		a = &readyResult{done: make(chan struct{})}
		r.running = a
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTime)
			defer cancel()
			a.err = defect.Guard(func() error { return ready(ctx) })
			r.mu.Lock()
			r.running = nil
			r.mu.Unlock()
			close(a.done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
