package daemon

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// retryFirst and retryMost are how soon a harvest is tried again after the first
// failure and after many; settleEvery and probeEvery how often serve looks for
// pending contents that are due, and for space when the disk is full.
const (
	retryFirst  = time.Minute
	retryMost   = 24 * time.Hour
	settleEvery = time.Minute
	probeEvery  = 10 * time.Second
)

// schedule harvests every Source when it is due, each on its own, until ctx
// ends. stop is called when the log itself is in doubt. Other failures are logged and tried again sooner than the next harvest is
// due, ever later up to then. done is told of each harvest; nil is allowed.
func (h *House) schedule(ctx context.Context, stop context.CancelCauseFunc, done func(*Source, harvest.Report, error)) {
	var group sync.WaitGroup
	for _, src := range h.Sources {
		if src.Kind == harvest.SIP {
			continue // it calls us
		}
		group.Go(func() { h.follow(ctx, src, stop, done) })
	}
	group.Wait()
}

func (h *House) follow(ctx context.Context, src *Source, stop context.CancelCauseFunc, done func(*Source, harvest.Report, error)) {
	log := h.opt.Logger.With("set", src.Set, "source", src.URL)
	failures := 0
	for {
		report, err := h.Harvest(ctx, src, harvest.Options{Every: src.Every})
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, eventlog.ErrStopped) {
			stop(err)
			return
		}
		wait := src.Every
		if err != nil {
			failures++
			wait = retryDelay(failures, src.Every)
			log.Error("harvest failed", "error", err, "failures", failures, "again_in", wait)
		} else {
			failures = 0
			log.Info("harvested", "created", report.Created, "updated", report.Updated, "deleted", report.Deleted, "documents", report.Documents,
				"pending", report.Pending, "held", report.Held, "quarantined", report.Quarantined)
			for _, w := range report.Warnings {
				log.Warn(w)
			}
			if report.Gap != "" {
				log.Warn("gap: " + report.Gap)
			}
		}
		if done != nil {
			done(src, report, err)
		}
		again := h.pause
		if errors.Is(err, eventlog.ErrFull) || errors.Is(err, content.ErrFull) {
			again = h.space
		}
		if !again(ctx, src, wait) {
			return
		}
	}
}

// retryDelay is how long a Source is left alone after so many failures in a row,
// the last included: a minute, then twice as long each time, up to the time
// between its harvests and to a day.
func retryDelay(failures int, every time.Duration) time.Duration {
	most := min(every, retryMost)
	delay := retryFirst
	for ; failures > 1 && delay < most; failures-- {
		delay *= 2
	}
	return min(delay, most)
}

// pause waits for the next harvest, and asks for pending contents as they come
// due meanwhile. It tells whether there is a next harvest.
func (h *House) pause(ctx context.Context, src *Source, wait time.Duration) bool {
	return until(ctx, wait, settleEvery, func() bool {
		if _, err := h.harvest.Settle(ctx, &src.Source); err != nil && ctx.Err() == nil {
			h.opt.Logger.Error("asking for pending contents failed", "set", src.Set, "source", src.URL, "error", err)
		}
		return false
	})
}

// space waits until the data folder takes a file again, or the next harvest is
// due: what a full disk has kept from being logged must not wait for the
// schedule, and the Source need not be asked meanwhile. It tells whether there
// is a next harvest.
func (h *House) space(ctx context.Context, src *Source, wait time.Duration) bool {
	return until(ctx, wait, probeEvery, func() bool {
		if h.probe() != nil {
			return false
		}
		h.opt.Logger.Info("there is space again", "set", src.Set, "source", src.URL)
		return true
	})
}

// until returns true after wait, or sooner when look, which is called every so
// often meanwhile, says so; false when ctx ends first.
func until(ctx context.Context, wait, every time.Duration, look func() bool) bool {
	due := time.NewTimer(wait)
	defer due.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-due.C:
			return true
		case <-tick.C:
			if look() {
				return true
			}
		}
	}
}

// probe writes a megabyte into the data folder and takes it away.
func (h *House) probe() error {
	f, err := os.CreateTemp(h.Config.Data, ".space-*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 1<<20))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}
