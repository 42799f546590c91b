package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// changesLogged is how many changes of a reload a line of the log names: with thousands of Sources
// it would be longer than journald takes.
const changesLogged = 20

// Reload reads the configuration file again, and returns what has changed, a sentence each;
// none means that nothing has. The file is read and checked completely before anything
// changes: when the error is not nil, everything stays as it was. Sets and Sources are
// added, changed and removed; any other change in the file is an error that names it.
//
// Harvests of unchanged Sources continue. Those of others end at their next border, and
// keep what they have committed. Requests under way are answered by the configuration they
// began with.
func (b *Bridge) Reload(ctx context.Context) ([]string, error) {
	said, err := b.reload(ctx)
	switch {
	case err != nil:
		b.opt.Logger.Error("the configuration was not read again, and nothing has changed", "error", err)
	case len(said) == 0:
		b.opt.Logger.Info("the configuration was read again: nothing has changed")
	default:
		named := said[:min(len(said), changesLogged)]
		if more := len(said) - len(named); more > 0 {
			named = append(slices.Clone(named), fmt.Sprintf("and %d more", more))
		}
		b.opt.Logger.Info("the configuration was read again", "changes", strings.Join(named, "; "))
	}
	return said, err
}

func (b *Bridge) reload(ctx context.Context) ([]string, error) {
	b.changing.Lock()
	defer b.changing.Unlock()
	last := b.generation.Load()
	if last.file.File == "" {
		return nil, errors.New("bridge serve was started without a configuration file: there is none to read again")
	}
	file, err := last.file.Reload()
	if err != nil {
		return nil, err
	}
	return b.change(ctx, last, b.underNewNames(file))
}

// change replaces the last configuration by another. The caller holds changing.
func (b *Bridge) change(ctx context.Context, last *generation, file *config.Config) ([]string, error) {
	if keys := last.file.Fixed(file); len(keys) > 0 {
		return nil, fmt.Errorf("%s: these keys cannot be changed while bridge runs: restart bridge serve, or write them as they were: %s", file.File, strings.Join(keys, ", "))
	}
	if err := last.file.Empties(file); err != nil {
		return nil, err
	}
	said := last.file.Changes(file)
	for i := range said {
		said[i] = Redact(said[i])
	}
	if len(said) == 0 {
		return nil, nil
	}
	g := newGeneration(file)
	g.guard = last.guard
	if file.Contact != last.file.Contact || file.Proxy != last.file.Proxy {
		g.guard = b.newBase(g)
	}
	if err := b.replace(ctx, g, last); err != nil {
		return nil, err
	}
	return said, nil
}

// replace replaces the last generation by another. The caller holds changing.
func (b *Bridge) replace(ctx context.Context, g, last *generation) error {
	sets, err := b.expand(ctx, g, last)
	if err != nil {
		return err
	}
	// From here on only a failing disk can cause an error.
	ended := b.endChanged(g, last)
	former, err := b.configure(ctx, g, sets, last)
	if err != nil {
		b.restart(last, ended)
		return err
	}
	b.generation.Store(g)
	if g.guard != last.guard || !slices.Equal(g.config.AllowHosts, last.config.AllowHosts) {
		b.openPublicOnly(g) // notifications of sets that do not use SIP any more still go out
	}
	b.logFormer(sets, slices.DeleteFunc(former, func(f eventlog.FormerSource) bool {
		return !slices.ContainsFunc(last.sources, func(s *Source) bool { return s.Set == f.Set && s.URL == f.URL })
	}))
	for _, was := range last.sources {
		if !slices.Contains(g.sources, was) {
			b.loops.end(was) // only one that endChanged could not find is still there
			was.turn.close()
			was.closeClients()
		}
	}
	for _, src := range g.sources {
		if was := last.source(src.ID); was != nil && was != src {
			b.askMended(ctx, src)
		}
		b.loops.begin(src)
	}
	wake(b.newTemplates)
	wake(b.hubs.wake)
	wake(b.push.wake)
	b.completeSets(ctx)
	return nil
}

// askMended makes a failing Source that has other settings now due at once, or after its
// Retry-After: these may be what it lacked, and its next attempt could be a day away.
func (b *Bridge) askMended(ctx context.Context, src *Source) {
	s, err := b.Log.Schedule(ctx, src.ID)
	if err != nil || s.Failures == 0 {
		return // the harvest reports the error
	}
	due := b.now()
	var failed harvest.Report
	if json.Unmarshal(s.Report, &failed) == nil && failed.RetryAfter.After(due) {
		due = failed.RetryAfter
	}
	if s.Next > event.MicrosOf(due) {
		s.Next = event.MicrosOf(due)
		_ = b.Log.SaveSchedule(ctx, src.ID, s, true) // only in memory, which cannot fail
	}
}

// endChanged ends the harvests of the Sources that g does not have unchanged, and returns
// these Sources.
func (b *Bridge) endChanged(g, last *generation) (ended []*Source) {
	type configured struct {
		set    *config.Set
		source *config.Source
	}
	all := map[[2]string]configured{} // by the names of the sets and the URLs
	for i := range g.config.Sets {
		s := &g.config.Sets[i]
		for j := range s.Sources {
			all[[2]string{s.Name, s.Sources[j].URL}] = configured{s, &s.Sources[j]}
		}
	}
	for _, was := range last.sources {
		now, stays := all[[2]string{was.Set, was.settings.source.URL}]
		if !stays || !was.is(g.settings(now.set, now.source)) {
			b.loops.end(was)
			was.turn.close()
			ended = append(ended, was)
		}
	}
	return ended
}

// restart starts harvests again that endChanged ended, when the change has failed.
func (b *Bridge) restart(last *generation, ended []*Source) {
	g := *last
	g.sources = slices.Clone(last.sources)
	for _, was := range ended {
		again := &Source{Source: was.Source, Name: was.Name, Template: was.Template, Every: was.Every, turn: new(turn), wake: make(chan struct{}, 1), settings: was.settings, guards: was.guards}
		g.sources[slices.Index(g.sources, was)] = again
	}
	b.generation.Store(&g)
	for _, src := range g.sources {
		b.loops.begin(src)
	}
}
