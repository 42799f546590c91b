package daemon

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/translate"
)

// Source is a configured Source, ready to be harvested.
type Source struct {
	harvest.Source
	Name     string // in the configuration, "" when it has none
	Template string // the configured set that its set was derived from, "" none
	Every    time.Duration
	turn     *turn         // serializes harvests, requests for pending contents and operators
	wake     chan struct{} // sent to when the Source may be due earlier than before
	settings settings
	guards   []*fetch.Guard // of its clients
}

// setConfig returns the configuration of a set for the log.
func (b *Bridge) setConfig(s *config.Set) (eventlog.SetConfig, error) {
	mode, err := event.ParseContent(s.Content)
	if err != nil {
		return eventlog.SetConfig{}, err
	}
	c := eventlog.SetConfig{Name: s.Name, Title: s.Title, Description: s.Description, Content: mode,
		AnyContent: b.Config().File == "", // the command line has no option for it
		Whole:      b.Config().File != "", // other Sources of the set may not be in this command
		KeepOrder:  b.Config().File == "", // Sources may be given one at a time, so their order has no meaning
		NoRobots:   !s.Robots, NoFeeds: !s.Feeds,
		SegmentEvents: s.SegmentEvents, SegmentHours: s.SegmentHours, History: s.History, Dumps: s.Dumps,
		KeepLists: s.KeepLists, KeepListsFor: s.KeepListsFor,
		Partial: slices.ContainsFunc(s.Sources, func(s config.Source) bool { return s.Kind != config.KindSIP })}
	for _, src := range s.Sources {
		u, err := url.Parse(src.URL)
		if err != nil {
			return c, fmt.Errorf("source %s: %w", src.URL, err)
		}
		c.Sources = append(c.Sources, eventlog.SourceConfig{Name: src.Name, Kind: src.Kind, URL: fetch.Plain(u)})
	}
	return c, nil
}

// openSources returns the Sources of a set that the log has with an id of its feed, ready to be
// harvested.
func (b *Bridge) openSources(g *generation, s *config.Set, in *eventlog.SetConfig, feed string) (all []*Source, err error) {
	for j, stored := range in.Sources {
		src, err := b.source(g, s, j, in)
		if err != nil {
			return nil, err
		}
		src.Epoch = feed
		b.own(src)
		// If the configuration has no kind, it is the one that was detected.
		if src.Kind = stored.Kind; src.Kind == "" {
			src.Found = func(ctx context.Context, kind string) error {
				_, err := b.Log.EnsureSource(ctx, src.Set, kind, src.URL, -1)
				return err
			}
		}
		all = append(all, src)
	}
	return all, nil
}

// alsoConfigured returns the log attributes that name the set in which a former Source is
// configured now: its records are published in both sets until it is forgotten in its old
// one.
func alsoConfigured(sets []eventlog.SetConfig, url string) []any {
	for i := range sets {
		if slices.ContainsFunc(sets[i].Sources, func(s eventlog.SourceConfig) bool { return s.URL == url }) {
			return []any{"also_published_in", sets[i].Name}
		}
	}
	return nil
}

// source returns the i-th Source of a set of a generation.
func (b *Bridge) source(g *generation, s *config.Set, i int, in *eventlog.SetConfig) (*Source, error) {
	c, mode, id := &s.Sources[i], in.Content, in.Sources[i].ID
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", c.URL, err)
	}
	plain, root, l := fetch.Plain(u), "", g.file.Limits
	src := &Source{turn: new(turn), wake: make(chan struct{}, 1), Name: c.Name, Template: s.Template, Every: c.Every, Source: harvest.Source{
		ID: id, Set: s.Name, Kind: c.Kind, URL: plain, Content: mode, From: b.Log,
		Overlap: c.Overlap, MaxDocuments: c.MaxDocuments, HoldDeletions: c.HoldDeletions, FullEvery: c.FullEvery, AllowHost: allowHost(g.file.AllowHosts), User: c.User, Token: c.Token.Reveal() != "",
		Repository: harvest.Repository{Format: c.Format, Also: c.Also, Set: c.OAISet, Window: c.Window},
		Folder:     harvest.FolderNames{Name: cmp.Or(c.Name, path.Base(u.Path)), ByName: c.Identifier == config.ByName},
		Selection:  translate.Selection{Formats: s.Formats, Prefer: s.Prefer, PublicURL: c.PublicURL, Prefixes: c.Prefixes, Inline: s.Inline == config.Take},
		Limits:     harvest.Limits{Document: l.FeedDocument, List: l.ListDocument, Package: l.DumpPackage, Record: l.Record, Depth: l.Depth, Text: int(l.Text), Attributes: l.Attributes, Time: l.HarvestTime, Bytes: l.HarvestSize},
	}}
	if !c.Since.IsZero() {
		src.Selection.Since, _ = event.StampOf(c.Since)
	}
	if u.Scheme == "file" {
		root = filepath.Dir(filepath.FromSlash(u.Path))
		src.Selection.LocalURL = plain[:strings.LastIndexByte(plain, '/')+1]
		if remote := c.Kind == config.CSV || c.Kind == config.Sitemap; mode != event.Mirror && c.PublicURL == "" && !remote { // their rows have only http URLs
			return nil, &LocalError{Set: s.Name, Content: mode, Path: u.Path}
		}
	}
	if s.Identity == config.PerSource && id != in.First { // only the Source that was added first has identifiers without its name
		src.Selection.Name = cmp.Or(c.Name, plain)
	}
	src.settings = g.settings(s, c)
	src.settings.name = src.Selection.Name
	return src, src.openClients(g, c, root)
}

// openClients creates the clients of a Source: for its documents, and for the contents of
// its records.
func (s *Source) openClients(g *generation, c *config.Source, root string) error {
	reach := fetch.Reach{Origin: cmp.Or(c.Origin, s.URL), Allowed: g.file.AllowHosts, Header: http.Header{}, HeaderTimeout: c.Timeout}
	if c.User != "" {
		reach.User = url.UserPassword(c.User, c.Password.Reveal())
	}
	for name, value := range c.Headers {
		reach.Header.Set(name, value.Reveal())
	}
	if token := c.Token.Reveal(); token != "" {
		reach.Header.Set("Authorization", "Bearer "+token)
	}
	var err error
	if reach.Roots, err = authorities(c.CA); err != nil {
		return fmt.Errorf("set %s: %w", s.Set, err)
	}
	if c.PublicURL != "" {
		reach.Typed = append(reach.Typed, c.PublicURL)
	}
	if c.SIP != nil && c.SIP.RecordURL != "" {
		reach.Typed = append(reach.Typed, c.SIP.RecordURL)
	}
	client := func() *http.Client {
		guard := g.guard.With(reach)
		s.guards = append(s.guards, guard)
		return guard.Client(root)
	}
	s.Client = client()
	if c.OwnContents {
		reach.Only, reach.Typed = true, append(reach.Typed, c.ContentHosts...)
		s.ContentClient = client()
	}
	return nil
}

// authorities returns the certificate authorities of a Source's ca_file and of the system;
// nil means only the system's.
func authorities(ca []byte) (*x509.CertPool, error) {
	if ca == nil {
		return nil, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the authorities of this system, beside those of ca_file: %w", err)
	}
	roots.AppendCertsFromPEM(ca)
	return roots, nil
}

// closeClients closes the idle connections.
func (s *Source) closeClients() {
	for _, g := range s.guards {
		g.Close()
	}
}

// LocalError means that a set would publish the URLs of local files.
type LocalError struct {
	Set     string
	Content event.Content
	Path    string
}

func (e *LocalError) Error() string {
	return fmt.Sprintf("set %s: content = %q publishes the Source's own URLs, and %s is a local file: give its source a public_url, or use content = \"mirror\"; of a table or a text sitemap write the kind, csv or sitemap", e.Set, e.Content, e.Path)
}

// allowHost returns a function that reports whether the documents of a Source may link to a
// host: hosts contains it, on any port.
func allowHost(hosts []string) func(host string) bool {
	return func(host string) bool { return follow.Among(hosts, host) }
}

// setBaseURL sets the URL of our own documents on all Sources.
func (b *Bridge) setBaseURL(base string) {
	b.changing.Lock()
	defer b.changing.Unlock()
	b.base = base
	for _, s := range b.Sources() {
		b.own(s)
	}
}

// own sets the URL of our own documents on a Source: a record whose original is below that
// URL has come back from another bridge.
func (b *Bridge) own(s *Source) {
	if b.base == "" {
		return
	}
	s.Selection.Own = []string{b.base + "/sets/" + s.Set + "/"}
	for _, f := range *b.formerNames.Load() {
		if f.Now == s.Set {
			s.Selection.Own = append(s.Selection.Own, b.base+"/sets/"+f.Name+"/")
		}
	}
}

// Find returns the Source of a set that a person means. source is its name, or its URL,
// which may be redacted if no other URL is then the same; "" means the only one. If set is
// "", all sets are searched. A Source that is not configured has the default settings.
func (b *Bridge) Find(ctx context.Context, set, source string) (*Source, error) {
	found, err := b.lookUp(ctx, set, source, b.Log.SourceNames)
	if err != nil {
		return nil, err
	}
	if s := b.sourceByID(found.ID); s != nil {
		return s, nil
	}
	src, err := b.unconfigured(ctx, found.Set, found)
	if err == nil {
		shared, _ := b.turns.LoadOrStore(src.ID, src.turn)
		src.turn = shared.(*turn)
	}
	return src, err
}

// Lookup is Find for the Source in the log.
func (b *Bridge) Lookup(ctx context.Context, set, source string) (*eventlog.Source, error) {
	return b.lookUp(ctx, set, source, b.Log.Sources)
}

// lookUp finds a Source among those that sourcesOf returns of a set.
func (b *Bridge) lookUp(ctx context.Context, set, source string, sourcesOf func(ctx context.Context, set string) ([]eventlog.Source, error)) (*eventlog.Source, error) {
	if set == "" {
		return b.findAnywhere(ctx, source, sourcesOf)
	}
	all, err := sourcesOf(ctx, set)
	if err != nil {
		return nil, err
	}
	found := findSource(all, source)
	switch {
	case found != nil:
		return found, nil
	case len(all) == 0:
		return nil, fmt.Errorf("set %q has no Source in this data folder: see bridge source ls", set)
	case source == "":
		return nil, fmt.Errorf("set %q has %d Sources: name one of them, see bridge source ls %s", set, len(all), set)
	}
	return nil, fmt.Errorf("set %q has no Source %q: see bridge source ls %s", set, source, set)
}

// findAnywhere returns the only Source of all sets with a name or URL.
func (b *Bridge) findAnywhere(ctx context.Context, source string, sourcesOf func(ctx context.Context, set string) ([]eventlog.Source, error)) (found *eventlog.Source, err error) {
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	for i := range sets {
		all, err := sourcesOf(ctx, sets[i].Name)
		if err != nil {
			return nil, err
		}
		f := findSource(all, source)
		switch {
		case f == nil || source == "":
		case found != nil:
			return nil, fmt.Errorf("sets %q and %q both have a Source %q: name the set as well, like %s/%s", found.Set, f.Set, source, f.Set, source)
		default:
			found = f
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no set has a Source %q: see bridge source ls", source)
	}
	return found, nil
}

// findSource returns the Source with a name, URL or path, else the only one whose redacted URL is
// the same; with source "" the only Source. It returns nil if there is none.
func findSource(all []eventlog.Source, source string) *eventlog.Source {
	if source == "" && len(all) == 1 {
		return &all[0]
	}
	var alike []*eventlog.Source
	for i := range all {
		switch {
		case source != "" && all[i].Name == source, all[i].URL == source, IsPath(source, all[i].URL):
			return &all[i]
		case Redact(all[i].URL) == source:
			alike = append(alike, &all[i])
		}
	}
	if len(alike) != 1 {
		return nil
	}
	return alike[0]
}

// IsPath reports whether a text is the absolute path of the local file or folder that a URL is of.
func IsPath(text, address string) bool {
	return strings.HasPrefix(text, "/") && strings.TrimSuffix(address, "/") == (&url.URL{Scheme: "file", Path: strings.TrimSuffix(text, "/")}).String()
}

// unconfigured prepares a Source for use that is only in the log.
func (b *Bridge) unconfigured(ctx context.Context, set string, s *eventlog.Source) (*Source, error) {
	stored, err := b.Log.Set(ctx, set)
	if err != nil {
		return nil, err
	}
	source := s.URL
	switch s.Kind {
	case "":
	case config.KindSet: // the URL names the set
	case config.KindSIP:
		source = config.KindSIP + ":" // whatever its URL: its client calls us
	default:
		source = s.Kind + ":" + source
	}
	c, err := config.FromArguments(config.Flags{Data: b.Config().Data}, []string{set + "=" + source})
	if err != nil {
		return nil, err
	}
	c.Sets[0].Sources[0].URL = s.URL
	src, err := b.source(b.generation.Load(), &c.Sets[0], 0, &eventlog.SetConfig{Content: stored.Content, Sources: []eventlog.SourceConfig{{ID: s.ID}}, First: s.ID})
	if err == nil {
		src.Epoch = stored.Feed
	}
	return src, err
}

// Only restricts the Bridge to the configured Sources that names contains, by their own
// name or their set's; empty names keep all. The name of a template stands for all its
// sets.
func (b *Bridge) Only(names []string) {
	if len(names) == 0 {
		return
	}
	b.only = names
	g := *b.generation.Load()
	g.sources = slices.DeleteFunc(slices.Clone(g.sources), func(s *Source) bool {
		return !slices.Contains(names, s.Set) && (s.Name == "" || !slices.Contains(names, s.Name)) && !slices.Contains(names, s.Template)
	})
	b.generation.Store(&g)
}

func (b *Bridge) sourceByID(id event.SourceID) *Source { return b.generation.Load().source(id) }

// sourceOf returns a configured Source.
func (b *Bridge) sourceOf(set, url string) *Source {
	for _, s := range b.Sources() {
		if s.Set == set && s.URL == url {
			return s
		}
	}
	return nil
}

// Replay applies quarantined input again, and marks it as replayed if that succeeds. A
// harvest of its Source that is under way ends at its next border, and continues later. That of
// a Source that is paused stays as it is: its content would be asked for.
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
		was, err := b.paused(ctx, src.ID)
		if err != nil {
			return harvest.Report{}, err
		}
		if was != nil {
			return harvest.Report{}, fmt.Errorf("%s: %s is paused, and not asked for anything: resume it with bridge source resume, and replay this again", src.Set, Redact(src.URL))
		}
		done := src.turn.takeFirst()
		report, err := b.harvest.Replay(ctx, &src.Source, q)
		done()
		wake(src.wake)
		if err != nil {
			return report, err
		}
		return report, b.Log.Replayed(ctx, q.ID)
	}
	return harvest.Report{}, fmt.Errorf("set %s no longer has the Source it came from", q.Set)
}
