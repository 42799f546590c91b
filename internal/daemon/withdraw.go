package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/ingest"
)

// withdraw carries out the decision to withdraw a record. What it needs to know is
// in the log, so that the set need not be configured here, or not any more.
func (b *Bridge) withdraw(ctx context.Context, d Decision) error {
	src, err := b.sipSource(ctx, d.Set)
	if err != nil {
		return err
	}
	server := ingest.Server{Set: d.Set, Source: src.ID, URL: src.URL, Store: &b.sip.log, Now: b.opt.Now, Log: b.opt.Logger}
	return server.Withdraw(ctx, d.Withdraw, d.Reason)
}

// sipSource returns the Source of kind sip that a set has, or had.
func (b *Bridge) sipSource(ctx context.Context, set string) (*eventlog.Source, error) {
	if _, err := b.Log.Set(ctx, set); err != nil {
		return nil, err
	}
	all, err := b.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Kind == config.KindSIP {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("set %s has no SIP Source: only what came by SIP can be withdrawn; what another Source has goes when that Source deletes it", set)
}

// stays reports whether a record that was withdrawn from a set is published all the
// same, because another Source of the set has it too (A15).
func (b *Bridge) stays(ctx context.Context, set, identifier string) (bool, error) {
	ev, err := b.Log.Record(ctx, set, event.Key(identifier))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // its content has never come
	case err != nil || !ev.Live():
		return false, err
	}
	src, err := b.sipSource(ctx, set)
	if err != nil {
		return false, err
	}
	holds, err := b.Log.Presence(ctx, src.ID, identifier)
	return holds == event.Withdrawn, err // else it has been submitted again since
}
