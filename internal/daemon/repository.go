package daemon

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/oaipmh"
)

// noContact is the adminEmail of a bridge whose configuration names no mail address. The
// protocol requires the form of a mail address, and nobody can own a name in .invalid (RFC
// 2606).
const noContact = "contact-not-configured@bridge.invalid"

// adminEmail returns the adminEmail that OAI-PMH repositories state.
func (b *Bridge) adminEmail() string {
	if oaipmh.CanBeAdminEmail(b.Config().Contact) {
		return b.Config().Contact
	}
	return noContact
}

// repositoriesAt returns a function that finds the OAI-PMH repository of a set below a base
// URL. Each is made at the first request for it.
func (b *Bridge) repositoriesAt(base string) func(ctx context.Context, set string) (*publish.Repository, error) {
	return func(ctx context.Context, set string) (*publish.Repository, error) {
		all, log := b.generation.Load().repositories, published{b.Log, b.publishes}
		select {
		case all.turn <- struct{}{}:
			defer func() { <-all.turn }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if all.made[set] != nil {
			return all.made[set], nil
		}
		if _, err := log.Set(ctx, set); errors.Is(err, fs.ErrNotExist) {
			return nil, publish.ErrNotFound
		} else if err != nil {
			return nil, err
		}
		sources, err := b.Log.Sources(ctx, set)
		if err != nil {
			return nil, err
		}
		known := func(ctx context.Context) ([]oaipmh.Format, error) { return b.knownFormats(ctx, set) }
		o := publish.RepositoryOptions{Log: log, BaseURL: base, Set: set, Content: b.openContent, SmallContents: b.smallContents, AdminEmail: b.adminEmail(), Known: known, Lost: b.lost}
		for i := range sources {
			if !sources[i].Former {
				o.Sources = append(o.Sources, publish.RepositorySource{URL: sources[i].URL, Name: sources[i].Name})
			}
		}
		if c := b.configured(set); c != nil {
			o.Page = c.OAIPage
			for _, f := range c.OAIFormats {
				o.Formats = append(o.Formats, publish.RepositoryFormat{Format: oaipmh.Format{Prefix: f.Prefix, Schema: f.Schema, Namespace: f.Namespace}, Type: f.Type})
			}
		}
		all.made[set] = publish.NewRepository(o)
		return all.made[set], nil
	}
}

// lost reports whether an error is about one content that is missing or damaged, and logs
// it if so.
func (b *Bridge) lost(identifier string, err error) bool {
	if b.Contents == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, content.ErrDamaged) {
		return false
	}
	b.opt.Logger.Error("a list goes on without a record or its content, which cannot be served", "record", identifier, "error", err)
	return true
}

// knownFormats returns the formats of the repositories from which a set is or was
// harvested.
func (b *Bridge) knownFormats(ctx context.Context, set string) ([]oaipmh.Format, error) {
	sources, err := b.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	var all []oaipmh.Format
	for i := range sources {
		if sources[i].Kind == harvest.OAIPMH {
			all = append(all, harvest.KnownFormats(&sources[i].Progress)...)
		}
	}
	return all, nil
}

// configured returns the configuration of a set: the template's for a set that was derived
// from it, and nil for a set that is only in the data folder.
func (b *Bridge) configured(set string) *config.Set {
	if c := b.Config().Set(set); c != nil {
		return c
	}
	for _, s := range b.Sources() {
		if s.Set != set {
			continue
		}
		i := slices.IndexFunc(b.Config().Sets, func(c config.Set) bool { return c.Name == s.Template || c.Template == s.Template })
		if i >= 0 {
			return &b.Config().Sets[i]
		}
	}
	return nil
}
