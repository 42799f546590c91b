package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// checkEvery is how often serve looks whether its data folder is still there and
// can be used, and beatEvery how often it leaves word that it runs.
const (
	checkEvery = 2 * time.Second
	beatEvery  = 30 * time.Second
)

// Epoch is a new beginning of the log after a loss.
type Epoch = eventlog.Epoch

// HasLog reports whether a data folder holds a log, or something that stands where
// one must be.
func HasLog(folder string) bool { return eventlog.Exists(folder) }

// watch stops serve when the data folder has gone or its disk fails: what is
// acknowledged then would be lost. It ends with ctx.
func (h *House) watch(ctx context.Context, stop context.CancelCauseFunc) {
	check, beat := time.NewTicker(checkEvery), time.NewTicker(beatEvery)
	defer check.Stop()
	defer beat.Stop()
	refused := false
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			err = h.Log.Check(ctx)
		case <-beat.C:
			err = h.Log.Beat()
		}
		if errors.Is(err, eventlog.ErrStopped) {
			h.opt.Logger.Error("the data folder cannot be used any more", "folder", h.Config.Data, "error", err)
			stop(err)
			return
		}
		clock := h.Log.Clock()
		if (clock != nil) != refused {
			refused = clock != nil
			if refused {
				h.opt.Logger.Error("nothing is logged", "error", clock)
			} else {
				h.opt.Logger.Info("the clock is believed again")
			}
		}
	}
}

// sayLoss says loudly what the log has lost.
func (h *House) sayLoss() {
	switch loss := h.Log.Loss(); {
	case loss == nil:
	case loss.Events() && !h.opt.ReadOnly && !h.opt.DryRun:
		h.opt.Logger.Error("THE LOG HAS LOST EVENTS THAT MAY HAVE BEEN PUBLISHED; it goes on in a new epoch: sets and feeds begin anew, and Destinations compare everything",
			"folder", h.Config.Data, "lost", loss.String())
	default:
		h.opt.Logger.Error("THE LOG HAS LOST SOMETHING", "folder", h.Config.Data, "lost", loss.String())
	}
}

// openEpochs tells the Sources in which epoch their sets are, and takes note of
// the sets that have become whole since: a Source that was never walked may have
// left the configuration.
func (h *House) openEpochs(ctx context.Context) error {
	sets, err := h.Log.Sets(ctx)
	if err != nil {
		return err
	}
	for i := range sets {
		for _, s := range h.Sources {
			if s.Set == sets[i].Name {
				s.Epoch = sets[i].Feed
			}
		}
		if err := h.whole(ctx, &sets[i]); err != nil {
			return err
		}
	}
	return nil
}

// whole takes note that a set has all its records, once each of its Sources was
// walked whole: the configured ones, and without a configuration those of this run
// and any whose walk is unfinished.
func (h *House) whole(ctx context.Context, set *event.Set) error {
	if !set.Partial {
		return nil
	}
	all, err := h.Log.Sources(ctx, set.Name)
	if err != nil {
		return err
	}
	configured := 0
	for i := range all {
		src := &all[i]
		ours := h.configured(src.ID)
		if ours {
			configured++
		}
		begun := h.Config.File == "" && (src.Cursor.Data != nil || src.Gap != "")
		if (ours || begun) && src.Kind != harvest.SIP && harvest.Whole(&src.Progress) != set.Feed {
			return nil
		}
	}
	if configured == 0 {
		return nil // nobody speaks for it in this run
	}
	h.opt.Logger.Info("all Sources of the set were walked: its complete lists are published from now on", "set", set.Name)
	return h.Log.Whole(ctx, set.Name)
}

func (h *House) configured(id event.SourceID) bool {
	for _, s := range h.Sources {
		if s.ID == id {
			return true
		}
	}
	return false
}

// walked looks, after a harvest, whether its set has become whole.
func (h *House) walked(ctx context.Context, name string) error {
	set, err := h.Log.Set(ctx, name)
	if err != nil {
		return err
	}
	return h.whole(ctx, &set)
}

// ready returns why the bridge is not ready to be relied on: it cannot read its
// log, or it reads it and logs nothing.
func (h *House) ready(ctx context.Context) error {
	if _, err := h.Log.Sets(ctx); err != nil {
		return err
	}
	if h.opt.ReadOnly {
		return nil
	}
	return errors.Join(h.Log.Check(ctx), h.Log.Clock(), h.contentsThere(ctx))
}

// contentsThere returns an error when the log has records whose copies we serve,
// and there is not one copy.
func (h *House) contentsThere(ctx context.Context) error {
	sets, err := h.Log.Sets(ctx)
	if err != nil {
		return err
	}
	stats, err := h.Contents.Stats(ctx)
	if err != nil || stats.Count > 0 {
		return err
	}
	for i := range sets {
		if s := &sets[i]; s.Content == event.Mirror && s.Live > 0 {
			return fmt.Errorf("the contents of the records are gone (set %s has %d records, content.db has nothing): restore content.db from a backup, or have them fetched again with bridge harvest --full", s.Name, s.Live)
		}
	}
	return nil
}
