package daemon

import (
	"context"
	"reflect"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// generation is a configuration and what was made from it. It never changes: another one
// replaces it when the file is read again, or when a set is derived from a template. Work
// that began with one generation may end with it.
type generation struct {
	file      *config.Config // as it was read
	config    *config.Config // with the derived sets in place of their templates
	guard     *fetch.Guard   // the limits that all requests share
	sources   []*Source      // in the order of the configuration; derived later ones come last
	templates []*template
	names     map[string]bool // of the sets
	// repositories are the OAI-PMH repositories that were asked for so far.
	repositories *repositories
}

// repositories keeps the OAI-PMH repositories of sets, each of which is made when it is
// first asked for.
type repositories struct {
	turn chan struct{}
	made map[string]*publish.Repository
}

func newGeneration(file *config.Config) *generation {
	return &generation{file: file, config: file, repositories: &repositories{make(chan struct{}, 1), map[string]*publish.Repository{}}}
}

// Config returns the configuration in force.
func (b *Bridge) Config() *config.Config { return b.generation.Load().config }

// FileConfig returns the configuration in force as its file has it: with the templates of sets.
func (b *Bridge) FileConfig() *config.Config { return b.generation.Load().file }

// Sources returns the configured Sources, in the order of the configuration. Those of sets
// that are derived later come last.
func (b *Bridge) Sources() []*Source { return b.generation.Load().sources }

// Templates returns the Sources that are asked for their sets; the Set of each is the
// template.
func (b *Bridge) Templates() (all []*Source) {
	for _, t := range b.generation.Load().templates {
		all = append(all, t.source)
	}
	return all
}

// openSets makes the first generation.
func (b *Bridge) openSets(ctx context.Context) error {
	b.changing.Lock()
	defer b.changing.Unlock()
	g := newGeneration(b.underNewNames(b.generation.Load().file))
	g.guard = b.generation.Load().guard
	sets, err := b.expand(ctx, g, nil)
	if err != nil {
		return err
	}
	former, err := b.configure(ctx, g, sets, nil)
	if err != nil {
		return err
	}
	b.logFormer(sets, former)
	b.generation.Store(g)
	b.completeSets(ctx)
	return nil
}

// formerLogged is how many Sources that are not configured any more have a line of their own in the
// log: each start logs them, and there may be thousands.
const formerLogged = 20

// logFormer logs that Sources are not configured any more.
func (b *Bridge) logFormer(sets []eventlog.SetConfig, former []eventlog.FormerSource) {
	for _, f := range former[:min(len(former), formerLogged)] {
		b.opt.Logger.Warn("a Source is no longer configured: its records stay as they are until it is configured again or ended with bridge source forget",
			append([]any{"set", f.Set, "source", Redact(f.URL)}, alsoConfigured(sets, f.URL)...)...)
	}
	if more := len(former) - formerLogged; more > 0 {
		b.opt.Logger.Warn("more Sources are no longer configured: bridge source ls shows them", "number", more)
	}
}

// expand completes the configuration of a generation: the sets that were derived so far
// replace their templates. It returns the configuration of the sets for the log, and
// changes nothing.
func (b *Bridge) expand(ctx context.Context, g, last *generation) (out []eventlog.SetConfig, err error) {
	var sets []config.Set
	made := map[string][]string{} // names, by template
	for _, s := range g.file.Sets {
		if !s.IsTemplate() {
			sets = append(sets, s)
			continue
		}
		known, err := b.Log.DerivedSets(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		for _, d := range known {
			sets = append(sets, s.Derive(d.Name, d.URL))
			made[s.Name] = append(made[s.Name], d.Name)
		}
		made[s.Name] = append([]string{}, made[s.Name]...) // also when there are none yet
		source, err := b.source(g, &s, 0, &eventlog.SetConfig{Sources: make([]eventlog.SourceConfig, 1)})
		if err != nil {
			return nil, err
		}
		t := &template{set: s, source: source}
		if last != nil { // an unchanged one remembers what it has listed
			if i := slices.IndexFunc(last.templates, func(was *template) bool { return was.same(t) }); i >= 0 {
				t = last.templates[i]
			}
		}
		g.templates = append(g.templates, t)
	}
	expandMembers(sets, made)
	expanded := *g.file
	expanded.Sets, g.config = sets, &expanded
	stored, err := b.storedSets(ctx)
	if err != nil {
		return nil, err
	}
	for i := range sets {
		c, err := b.setConfig(&sets[i])
		if err != nil {
			return nil, err
		}
		for j := range c.Sources { // find errors before anything changes
			if _, err := b.source(g, &sets[i], j, &c); err != nil {
				return nil, err
			}
		}
		if has, ok := stored[c.Name]; ok && has.Content != c.Content && !c.AnyContent {
			return nil, &eventlog.ContentError{Set: c.Name, Has: has.Content, Want: c.Content}
		}
		out = append(out, c)
	}
	return out, nil
}

// storedSets returns the sets of the log by their names, which are read at once: there may be
// thousands, and each reading may wait for those of harvests.
func (b *Bridge) storedSets(ctx context.Context) (map[string]event.Set, error) {
	all, err := b.Log.Sets(ctx)
	sets := make(map[string]event.Set, len(all))
	for _, s := range all {
		sets[s.Name] = s
	}
	return sets, err
}

// configure creates the sets and Sources of a generation in the log, in one transaction,
// and makes its Sources; unchanged ones are taken over from last. It returns the Sources
// that are not configured any more.
func (b *Bridge) configure(ctx context.Context, g *generation, sets []eventlog.SetConfig, last *generation) ([]eventlog.FormerSource, error) {
	former, err := b.Log.Configure(ctx, sets)
	if err != nil {
		return nil, err
	}
	stored, err := b.storedSets(ctx)
	if err != nil {
		return nil, err
	}
	g.names = map[string]bool{}
	for i := range sets {
		g.names[sets[i].Name] = true
		made, err := b.openSources(g, &g.config.Sets[i], &sets[i], stored[sets[i].Name].Feed)
		if err != nil {
			return nil, err
		}
		for _, src := range made {
			if was := last.source(src.ID); was != nil && was.same(src) {
				src = was
			}
			g.sources = append(g.sources, src)
		}
	}
	return former, nil
}

// source returns a Source by its number, nil when there is none.
func (g *generation) source(id event.SourceID) *Source {
	if g != nil {
		for _, s := range g.sources {
			if s.ID == id {
				return s
			}
		}
	}
	return nil
}

// settings is the part of the configuration that concerns one Source.
type settings struct {
	set        config.Set // without its Sources and settings that do not concern harvests
	source     config.Source
	allowHosts []string
	contact    string
	proxy      string
	limits     config.Limits
	name       string // in the identifiers of its records
}

func (g *generation) settings(s *config.Set, source *config.Source) settings {
	set := config.Set{Name: s.Name, Content: s.Content, Prefer: s.Prefer, Formats: s.Formats, Identity: s.Identity, Inline: s.Inline, Template: s.Template}
	return settings{set: set, source: *source, allowHosts: g.file.AllowHosts, contact: g.file.Contact, proxy: g.file.Proxy, limits: g.file.Limits}
}

// same reports whether two Sources have the same settings, so that one can take the other's
// place.
func (s *Source) same(other *Source) bool {
	return s.ID == other.ID && reflect.DeepEqual(s.settings, other.settings)
}

// is reports whether a Source has these settings; its name in identifiers does not count.
func (s *Source) is(other settings) bool {
	other.name = s.settings.name
	return reflect.DeepEqual(s.settings, other)
}

func (t *template) same(other *template) bool {
	return reflect.DeepEqual(t.set, other.set) && t.source.same(other.source)
}

// publishes reports whether a set is published: the configuration has it, or configures no
// set at all, so that all in the data folder are published.
func (b *Bridge) publishes(set string) bool {
	g := b.generation.Load()
	return g.config.File == "" || len(g.file.Sets) == 0 || g.names[set]
}

// configuredSets returns the names of the sets that the configuration has, with those that
// were derived from its templates so far; nil when it configures no set at all, so that all
// in the data folder are published.
func (b *Bridge) configuredSets(ctx context.Context) (map[string]bool, error) {
	file := b.generation.Load().file
	if file.File == "" || len(file.Sets) == 0 {
		return nil, nil
	}
	names := map[string]bool{}
	for _, s := range file.Sets {
		if !s.IsTemplate() {
			names[s.Name] = true
			continue
		}
		known, err := b.Log.DerivedSets(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		for _, d := range known {
			names[d.Name] = true
		}
	}
	return names, nil
}

// published is the log without the sets that are not published. The server asks publishes
// itself before it reads anything else of a set.
type published struct {
	*eventlog.Log
	has func(set string) bool
}

// Sets returns the sets that are published.
func (l published) Sets(ctx context.Context) ([]event.Set, error) {
	all, err := l.Log.Sets(ctx)
	return slices.DeleteFunc(all, func(s event.Set) bool { return !l.has(s.Name) }), err
}

// Set returns a set that is published.
func (l published) Set(ctx context.Context, name string) (event.Set, error) {
	if !l.has(name) {
		return event.Set{}, database.Missing("set %q is not published", name)
	}
	return l.Log.Set(ctx, name)
}
