package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// With sets = "each", each set of a Source becomes a set of ours. The log keeps their
// names, so that a set stays configured while the Source cannot be reached.

// maxDerived is the number of sets that one template can become. Sets are never removed on
// their own, so a Source that lists ever more of them could fill the disk.
const maxDerived = 1000

// template is a configured set that stands for all sets of its Source.
type template struct {
	set    config.Set
	source *Source // asked for its list of sets, and never harvested
	listed []string
	// Of watchTemplates: when it is asked next, and how many attempts in a row have failed.
	// Others may read trouble too.
	due      time.Time
	failures int
	trouble  atomic.Pointer[string] // why the sets cannot be found out; nil while they can
}

// DeriveSets asks the Sources of templates for their sets, and creates a set for each new
// one. It returns the new Sources. The error joins those of the Sources that could not be
// asked.
func (b *Bridge) DeriveSets(ctx context.Context) (found []*Source, err error) {
	var failed []error
	for _, t := range b.generation.Load().templates {
		if b.only != nil && !slices.Contains(b.only, t.set.Name) {
			continue
		}
		more, err := b.derive(ctx, t)
		found, failed = append(found, more...), append(failed, err)
	}
	return found, errors.Join(failed...)
}

// derive makes a set for each set of a template's Source that has none yet.
func (b *Bridge) derive(ctx context.Context, t *template) (found []*Source, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("set %s: the sets of %s cannot be found out: %w", t.set.Name, Redact(t.source.URL), err)
		}
	}()
	listed, err := b.harvest.SetsOf(ctx, &t.source.Source)
	if err != nil {
		return nil, err
	}
	for _, gone := range t.listed {
		if !slices.Contains(listed, gone) {
			b.opt.Logger.Warn("the Source lists a set no longer: what was made of it stays as it is; bridge source forget ends it", "template", t.set.Name, "capability_list", Redact(gone))
		}
	}
	t.listed = listed
	b.changing.Lock()
	defer b.changing.Unlock()
	if !slices.Contains(b.generation.Load().templates, t) {
		return nil, nil // it was taken out of the configuration meanwhile
	}
	known, err := b.Log.DerivedSets(ctx, t.set.Name)
	if err != nil {
		return nil, err
	}
	var others []string
	for i := range b.Config().Sets {
		others = append(others, b.Config().Sets[i].Name)
	}
sets:
	for _, list := range listed {
		i := slices.IndexFunc(known, func(d eventlog.DerivedSet) bool { return d.URL == list })
		switch {
		case i >= 0 && b.generation.Load().names[known[i].Name]:
			continue
		case i >= 0: // it has its name, and could not be opened then
		case len(known) >= maxDerived:
			b.opt.Logger.Warn(fmt.Sprintf("the Source lists more sets than are made of one template, %d: the others are not harvested; configure those that you want by their URLs", maxDerived), "template", t.set.Name, "listed", len(listed), "first_left_out", Redact(list))
			break sets
		default:
			name, err := b.Log.DeriveSet(ctx, t.set.Name, list, t.set.DerivedNames(list), others)
			if err != nil {
				return found, err
			}
			i, known = len(known), append(known, eventlog.DerivedSet{Name: name, URL: list})
		}
		set := t.set.Derive(known[i].Name, list)
		more, err := b.openNewSet(ctx, &set)
		found = append(found, more...)
		if err != nil {
			return found, err
		}
	}
	if len(found) == 0 || !b.usesTemplate(t.set.Name) {
		return found, nil
	}
	last := b.generation.Load()
	g := newGeneration(last.file)
	g.guard = last.guard
	if err := b.replace(ctx, g, last); err != nil {
		return found, err
	}
	b.Only(b.only)
	return found, nil
}

// usesTemplate reports whether the set name is made of all sets of a template.
func (b *Bridge) usesTemplate(name string) bool {
	return slices.ContainsFunc(b.generation.Load().file.Sets, func(s config.Set) bool {
		return slices.ContainsFunc(s.Sources, func(src config.Source) bool { return src.Member() == name })
	})
}

// openNewSet creates a set while the bridge runs.
func (b *Bridge) openNewSet(ctx context.Context, set *config.Set) ([]*Source, error) {
	c, err := b.setConfig(set)
	if err != nil {
		return nil, err
	}
	sets := []eventlog.SetConfig{c}
	sets[0].Whole = false // that would make all other Sources former ones
	if _, err := b.Log.Configure(ctx, sets); err != nil {
		return nil, err
	}
	made, err := b.Log.Set(ctx, set.Name)
	if err != nil {
		return nil, err
	}
	g := *b.generation.Load()
	sources, err := b.openSources(&g, set, &sets[0], made.Feed)
	if err != nil {
		return nil, err
	}
	g.names = maps.Clone(g.names)
	g.names[set.Name] = true
	g.sources = slices.Concat(g.sources, sources)
	b.generation.Store(&g)
	return sources, nil
}

// watchTemplates asks the Sources of templates for their sets until ctx ends: each at once, then
// as often as the configuration says, and with growing delays while it fails. It calls begin
// with each new Source.
func (b *Bridge) watchTemplates(ctx context.Context, begin func(*Source)) {
	for {
		wait := forever
		for _, t := range b.generation.Load().templates {
			if time.Until(t.due) <= 0 {
				b.askTemplate(ctx, t, begin)
			}
			wait = min(wait, time.Until(t.due))
		}
		if sleepOrWake(ctx, wait, b.newTemplates); ctx.Err() != nil {
			return
		}
	}
}

// askTemplate asks the Source of a template for its sets, and sets when it is asked next.
func (b *Bridge) askTemplate(ctx context.Context, t *template, begin func(*Source)) {
	t.failures++ // also if it panics
	t.due = time.Now().Add(retryDelay(t.failures, t.source.Every))
	found, err := b.derive(ctx, t)
	for _, s := range found {
		b.opt.Logger.Info("the Source has a set that was not known", "set", s.Set, "source", Redact(s.URL))
		begin(s)
	}
	switch {
	case err == nil:
		t.failures, t.due = 0, time.Now().Add(t.source.Every)
		t.trouble.Store(nil)
	case ctx.Err() == nil:
		t.due = time.Now().Add(retryDelay(t.failures, t.source.Every))
		b.opt.Logger.Error("the sets of a Source cannot be found out", "error", err)
		if t.failures > 1 { // an alert tells of it
			t.trouble.Store(new(fmt.Sprintf(templateTrouble+"%s: its sets cannot be found out: %s", t.set.Name, Redact(err.Error()))))
		}
	}
}

// templateWarnings returns a sentence about each template whose Source cannot be asked for its
// sets or, where none is asked because the Bridge only reads, of which no set is known.
func (b *Bridge) templateWarnings(ctx context.Context) (out []string, err error) {
	for _, t := range b.generation.Load().templates {
		if trouble := t.trouble.Load(); trouble != nil {
			out = append(out, *trouble)
		}
	}
	if !b.opt.ReadOnly {
		return out, nil
	}
	for _, s := range b.FileConfig().Sets {
		if !s.IsTemplate() {
			continue
		}
		known, err := b.Log.DerivedSets(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		if len(known) == 0 {
			out = append(out, fmt.Sprintf("template %s: no set of %s is known yet, so nothing of it is harvested: bridge serve and bridge harvest ask for them, and say why they cannot", s.Name, Redact(s.Sources[0].URL)))
		}
	}
	return out, nil
}
