// Package daemon runs a configuration: the log and the content store of a data folder,
// scheduled harvests, the publisher and the server.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/translate"
)

// Options are what a command wants of a data folder, besides the configuration.
type Options struct {
	// ReadOnly opens it beside whoever writes it.
	ReadOnly bool
	// DryRun undoes everything in the end.
	DryRun bool
	// AcceptClock confirms a clock that jumped ahead (I3).
	AcceptClock bool
	// NewData allows a new log in a data folder that was used before and holds none.
	NewData bool
	// Command is the name that the writer's lock states.
	Command string
	// Version goes into the user agent.
	Version string
	Logger  *slog.Logger
	// Now is the clock; nil is the system's.
	Now func() time.Time
	// Network is what names are looked up and connections made with; the zero
	// value is the system's.
	Network fetch.Network
	// StatusAge is how long pages show the same status; 0 is 3 s.
	StatusAge time.Duration
}

// Bridge is an open data folder with everything that runs on it.
type Bridge struct {
	Config          *config.Config
	Log             *eventlog.Log
	SIP             *store.Store // the submissions and notifications in the log
	Contents        *content.Store
	Sources         []*Source // in the order of the configuration
	opt             Options
	missingContents atomic.Pointer[missingContents] // nil when no content is missing
	guard           *fetch.Guard                    // the limits that all have in common
	guards          []*fetch.Guard                  // one or two of each Source and target
	publicOnly      *fetch.Guard                    // of these, the one that goes where strangers send it
	harvest         *harvest.Harvester
	underway        underway
	sip             sipState
	requestBudget   *limit.Bytes // of the requests of strangers under way
	diskSpace       *limit.Space // what strangers leave free of the disk
}

// Source is a configured Source, ready to be harvested.
type Source struct {
	harvest.Source
	Name  string // in the configuration, "" when it has none
	Every time.Duration
	busy  sync.Mutex // held while it is harvested, or its pending contents are asked for
}

// Open opens the data folder of a configuration and makes its sets and Sources.
// Close it.
func Open(ctx context.Context, c *config.Config, opt Options) (*Bridge, error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{Config: c, opt: opt, requestBudget: newRequestBudget(c.Limits.SIPMessage)}
	b.diskSpace = &limit.Space{Folder: c.Data, Floor: c.Limits.FreeSpace, Share: 20, Changed: func(why error) {
		if why == nil {
			opt.Logger.Info("the disk has space again: submissions are accepted, documents are cached")
			return
		}
		opt.Logger.Error("submissions are refused and documents are not cached, so that harvests can continue: free some space", "error", why)
	}}
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Bridge) open(ctx context.Context) error {
	remember := b.Config.File != "" && !b.opt.ReadOnly && !b.opt.DryRun
	list, err := dataFoldersOf(b.Config)
	if err == nil && remember && !b.opt.NewData {
		err = list.check()
	}
	if err != nil {
		return err
	}
	b.Log, err = eventlog.Open(ctx, b.Config.Data, eventlog.Options{ReadOnly: b.opt.ReadOnly, DryRun: b.opt.DryRun, AcceptClock: b.opt.AcceptClock, Holder: b.opt.Command, Clock: b.clock()})
	if err != nil {
		return err
	}
	b.SIP = store.New(b.Log)
	b.logLoss()
	if remember {
		list.add(b.opt.Logger)
	}
	b.Contents, err = content.Open(ctx, filepath.Join(b.Config.Data, "content.db"), content.Options{ReadOnly: b.opt.ReadOnly, DryRun: b.opt.DryRun})
	if b.opt.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		b.Contents, err = nil, nil
	}
	if err != nil || b.opt.ReadOnly {
		return err
	}
	known, err := b.Log.Hosts(ctx)
	if err != nil {
		return err
	}
	o := b.fetchOptions()
	o.Names = fetch.NewNames(known, b.Log.RememberHost)
	b.guard = fetch.New(o)
	// This Guard does not reach the configured hosts, nor has it their passwords:
	// unauthenticated clients choose where it sends requests.
	b.publicOnly = b.newGuard(fetch.Reach{Allowed: b.Config.AllowHosts, SafePorts: true})
	b.harvest = &harvest.Harvester{Log: b.Log, Contents: b.Contents, Now: b.opt.Now, Workers: b.Config.Limits.Connections, Folder: b.Config.Data}
	if b.opt.DryRun {
		b.harvest.Folder = "" // the data folder may not be there
	}
	if err := b.openSets(ctx); err != nil {
		return err
	}
	if err := b.openEpochs(ctx); err != nil {
		return err
	}
	if b.Config.File != "" && b.Config.BaseURL != "" {
		b.setBaseURL(b.Config.BaseURL)
	}
	if err := b.openUnderway(ctx); err != nil {
		return err
	}
	return b.openSIP(ctx)
}

// clock returns Options.Now as the log's clock, and as its monotonic clock too; nil is
// the system's.
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

func (b *Bridge) fetchOptions() fetch.Options {
	l := b.Config.Limits
	o := fetch.Options{
		UserAgent: "bridge/" + b.opt.Version, Contact: b.Config.Contact, Network: b.opt.Network,
		PerHost: l.Connections, Rate: float64(l.Rate), ConnectTimeout: l.ConnectTimeout, HeaderTimeout: l.HeaderTimeout, IdleTimeout: l.IdleTimeout,
		Redirects: l.Redirects, HeaderBytes: l.Header, Ratio: int64(l.Ratio), Log: b.opt.Logger,
	}
	if b.Config.Proxy != "" {
		o.Proxy, _ = url.Parse(b.Config.Proxy) // checked by config
	}
	return o
}

// openSets creates the configured sets and Sources, in one transaction.
func (b *Bridge) openSets(ctx context.Context) error {
	sets := make([]eventlog.SetConfig, len(b.Config.Sets))
	for i := range b.Config.Sets {
		s := &b.Config.Sets[i]
		mode, err := event.ParseContent(s.Content)
		if err != nil {
			return err
		}
		sets[i] = eventlog.SetConfig{Name: s.Name, Title: s.Title, Description: s.Description, Content: mode,
			AnyContent:    b.Config.File == "", // SOURCEs of the command line do not speak of it
			Whole:         b.Config.File != "", // nor of other Sources
			KeepOrder:     b.Config.File == "", // nor of the order, one at a time
			SegmentEvents: s.SegmentEvents, SegmentHours: s.SegmentHours,
			Partial: slices.ContainsFunc(s.Sources, func(s config.Source) bool { return s.Kind != config.KindSIP })}
		for _, src := range s.Sources {
			u, err := url.Parse(src.URL)
			if err != nil {
				return fmt.Errorf("source %s: %w", src.URL, err)
			}
			sets[i].Sources = append(sets[i].Sources, eventlog.SourceConfig{Name: src.Name, Kind: src.Kind, URL: fetch.Plain(u)})
		}
	}
	former, err := b.Log.Configure(ctx, sets)
	if err != nil {
		return err
	}
	for _, f := range former {
		b.opt.Logger.Warn("a Source is no longer configured: its records stay as they are until it is configured again or ended with bridge source forget",
			append([]any{"set", f.Set, "source", Redact(f.URL)}, alsoConfigured(sets, f.URL)...)...)
	}
	for i := range sets {
		for j, stored := range sets[i].Sources {
			src, err := b.source(&b.Config.Sets[i], j, &sets[i])
			if err != nil {
				return err
			}
			// Where the configuration leaves the kind open, it is the one that was
			// detected.
			if src.Kind = stored.Kind; src.Kind == "" {
				src.Found = func(ctx context.Context, kind string) error {
					_, err := b.Log.EnsureSource(ctx, src.Set, kind, src.URL, -1)
					return err
				}
			}
			b.Sources = append(b.Sources, src)
		}
	}
	return nil
}

// alsoConfigured returns the log attributes that name the set that a former Source is
// configured in now: its records are published in both sets until it is forgotten in
// its old one.
func alsoConfigured(sets []eventlog.SetConfig, url string) []any {
	for i := range sets {
		if slices.ContainsFunc(sets[i].Sources, func(s eventlog.SourceConfig) bool { return s.URL == url }) {
			return []any{"also_published_in", sets[i].Name}
		}
	}
	return nil
}

// source returns the i-th Source of a configured set, ready to be harvested.
func (b *Bridge) source(s *config.Set, i int, in *eventlog.SetConfig) (*Source, error) {
	c, mode, id := &s.Sources[i], in.Content, in.Sources[i].ID
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", c.URL, err)
	}
	plain, root, l := fetch.Plain(u), "", b.Config.Limits
	src := &Source{Name: c.Name, Every: c.Every, Source: harvest.Source{
		ID: id, Set: s.Name, Kind: c.Kind, URL: plain, Content: mode,
		Overlap: c.Overlap, MaxDocuments: c.MaxDocuments, HoldDeletions: c.HoldDeletions, FullEvery: c.FullEvery, AllowHost: b.allowHost, User: c.User,
		Selection: translate.Selection{Formats: s.Formats, Prefer: s.Prefer, PublicURL: c.PublicURL, Prefixes: c.Prefixes},
		Limits:    harvest.Limits{Document: l.FeedDocument, List: l.ListDocument, Record: l.Record, Depth: l.Depth, Text: int(l.Text), Attributes: l.Attributes, Time: l.HarvestTime, Bytes: l.HarvestSize},
	}}
	if !c.Since.IsZero() {
		src.Selection.Since, _ = event.StampOf(c.Since)
	}
	if u.Scheme == "file" {
		root = filepath.Dir(filepath.FromSlash(u.Path))
		src.Selection.LocalURL = plain[:strings.LastIndexByte(plain, '/')+1]
		if mode != event.Mirror && c.PublicURL == "" {
			return nil, &LocalError{Set: s.Name, Content: mode, Path: u.Path}
		}
	}
	if s.Identity == config.PerSource && id != in.First { // whoever stands first by now
		src.Selection.Name = cmp.Or(c.Name, plain)
	}
	b.openClients(src, c, root)
	return src, nil
}

// openClients gives a Source its clients: for its documents, and for the contents
// of its records.
func (b *Bridge) openClients(src *Source, c *config.Source, root string) {
	reach := fetch.Reach{Origin: src.URL, Allowed: b.Config.AllowHosts}
	if c.User != "" {
		reach.User = url.UserPassword(c.User, c.Password.Reveal())
	}
	if c.PublicURL != "" {
		reach.Typed = append(reach.Typed, c.PublicURL)
	}
	if c.SIP != nil && c.SIP.RecordURL != "" {
		reach.Typed = append(reach.Typed, c.SIP.RecordURL)
	}
	src.Client = b.newGuard(reach).Client(root)
	if c.OwnContents {
		reach.Only, reach.Typed = true, append(reach.Typed, c.ContentHosts...)
		src.ContentClient = b.newGuard(reach).Client(root)
	}
}

// newGuard returns a Guard that is closed with the Bridge.
func (b *Bridge) newGuard(r fetch.Reach) *fetch.Guard {
	g := b.guard.With(r)
	b.guards = append(b.guards, g)
	return g
}

// LocalError: a set would publish the URLs of local files.
type LocalError struct {
	Set     string
	Content event.Content
	Path    string
}

func (e *LocalError) Error() string {
	return fmt.Sprintf("set %s: content = %q publishes the Source's own URLs, and %s is a local file: give its source a public_url, or use content = \"mirror\"", e.Set, e.Content, e.Path)
}

// allowHost reports whether the documents of a Source may lead to a host: allow_hosts
// names it, on any port.
func (b *Bridge) allowHost(host string) bool {
	for _, allowed := range b.Config.AllowHosts {
		if name, _, err := net.SplitHostPort(allowed); err == nil {
			allowed = name
		}
		if strings.EqualFold(allowed, host) {
			return true
		}
	}
	return false
}

// Close ends everything and releases the data folder.
func (b *Bridge) Close() error {
	errs := []error{b.underway.close()}
	if b.Contents != nil {
		errs = append(errs, b.Contents.Close())
	}
	if b.Log != nil {
		errs = append(errs, b.Log.Close())
	}
	for _, m := range b.sip.mails {
		_ = m.listener.Close() // Serve has, if it ran
	}
	for _, g := range b.guards {
		g.Close()
	}
	return errors.Join(errs...)
}

// Harvester returns the Harvester, for its operations besides Harvest.
func (b *Bridge) Harvester() *harvest.Harvester { return b.harvest }

// setBaseURL sets the URL of our own documents on all Sources: a record whose original
// is below it has come back from another bridge.
func (b *Bridge) setBaseURL(base string) {
	for _, s := range b.Sources {
		s.Selection.Own = base + "/sets/" + s.Set + "/"
	}
}
