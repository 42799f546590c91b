package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// After a failed harvest, the next attempt is retryFirst later after the first failure, and
// at most retryMost or retryTimes the usual time after many. pendingEvery and probeEvery
// are how often serve checks for pending contents that are due, and for space while the
// disk is full. flushEvery is how often it stores when Sources were last asked.
const (
	retryFirst   = time.Minute
	retryMost    = 24 * time.Hour
	retryTimes   = 24
	pendingEvery = time.Minute
	probeEvery   = 10 * time.Second
	flushEvery   = time.Minute
	restartAfter = time.Minute // see restartOnPanic
	// pendingAtOnce is for how many Sources pending contents are requested at the same
	// time.
	pendingAtOnce = 16
)

// Harvest makes one pass over a Source, whether it is due or not.
func (b *Bridge) Harvest(ctx context.Context, s *Source, o harvest.Options) (harvest.Report, error) {
	return b.harvestSource(ctx, s, 0, o)
}

// harvestSource harvests a Source, and stores the report and when the Source is due next:
// after every, or at once if that is 0. If every is not 0, the harvest is a scheduled one,
// which a pause ends.
func (b *Bridge) harvestSource(running context.Context, s *Source, every time.Duration, o harvest.Options) (harvest.Report, error) {
	ctx, done := s.turn.take(running)
	defer done()
	if every > 0 { // a pause since it was due could not end it
		if pause, err := b.paused(running, s.ID); pause != nil && err == nil {
			return harvest.Report{}, errInterrupted
		}
	}
	b.pushBegun(running, s.ID)
	var under *harvestJob
	o.Begin = func() { under = b.underway.begin(s) }
	tell := o.Progress
	o.Progress = func(p harvest.Progress) {
		under.update(p)
		if tell != nil {
			tell(p)
		}
	}
	defer func() {
		if under != nil {
			under.end()
		}
	}()
	var report harvest.Report
	err := defect.Guard(func() (err error) {
		report, err = b.harvest.Run(ctx, &s.Source, o)
		return err
	})
	if ctx.Err() != nil { // a reload ends it too
		b.pushAgain(s.ID)
		if running.Err() == nil {
			err = errInterrupted
		}
		part := report // it has not failed, and the next one continues it, as after a limit
		part.ErrorKind = harvest.KindSpent
		return report, errors.Join(err, b.saveSettled(context.WithoutCancel(running), s, &part))
	}
	if s.Kind == harvest.SIP {
		return report, err // it sends no request, and is not stored
	}
	failed := err
	if err == nil && o.Full {
		err = b.restoreContents(ctx, s, &report)
	}
	if err == nil {
		err = b.completeSetOf(ctx, s.Set)
	}
	return report, errors.Join(err, b.saveSchedule(ctx, s, every, &report, failed))
}

// errInterrupted means that an operator has ended a harvest, which the next one continues.
var errInterrupted = errors.New("an operator has ended the harvest; the next one continues it")

// saveSchedule stores when a Source is due next, the report of the last harvest, and its
// row in the Source's history.
func (b *Bridge) saveSchedule(ctx context.Context, s *Source, every time.Duration, r *harvest.Report, failed error) error {
	was, err := b.Log.Schedule(ctx, s.ID)
	if err != nil {
		return err
	}
	next, row, err := nextSchedule(was, r)
	if err != nil {
		return err
	}
	next.Next, next.Failures = 0, 0
	if failed != nil && !isLocalFault(failed) {
		next.Failures = was.Failures + 1
	}
	if every > 0 {
		next.Next = event.MicrosOf(nextHarvest(r, failed, next.Failures, every))
	}
	if row == nil {
		err = b.Log.SaveSchedule(ctx, s.ID, next, true) // losing it in a crash costs one more request
	} else {
		err = b.Log.SaveHarvest(ctx, s.ID, next, row)
	}
	b.metrics.Harvested(s.Set, s.label(), r)
	if errors.Is(err, eventlog.ErrFull) || errors.Is(err, eventlog.ErrStopped) {
		return nil // it is kept in memory, and anything important was logged already
	}
	return err
}

// nextSchedule returns the schedule of a Source after a harvest, and the row of that harvest in
// the Source's history, nil when it is only counted.
func nextSchedule(was event.Schedule, r *harvest.Report) (next event.Schedule, row *event.Harvest, err error) {
	next = was
	if next.Report, err = json.Marshal(r); err != nil {
		return next, nil, err
	}
	ended := event.MicrosOf(r.Ended)
	switch result := r.Result(); {
	case result == event.ResultFailed:
		next.LastError = r.Failure()
		if was.FailingSince == 0 || was.FailingSince > ended { // the clock was ahead
			next.FailingSince = ended
		}
	case r.Withheld: // it has delivered nothing yet
		next.FailingSince = 0
	default:
		next.LastSuccess, next.FailingSince = ended, 0
	}
	var before harvest.Report
	if was.Report == nil || json.Unmarshal(was.Report, &before) != nil || was.Harvests == 0 || !r.SameAs(&before) {
		added := r.Row()
		next.Harvests++
		added.Number, added.Before = next.Harvests, was.Quiet
		next.Quiet = event.Quiet{}
		return next, &added, nil
	}
	next.Quiet.Add(ended)
	return next, nil, nil
}

// saveSettled adds a row to the history of a Source when pending contents have become
// events, or a harvest has logged some before it was interrupted. It does not change the
// schedule.
func (b *Bridge) saveSettled(ctx context.Context, s *Source, r *harvest.Report) error {
	if r.Events() == 0 {
		return nil
	}
	b.metrics.Logged(s.Set, s.label(), r)
	next, err := b.Log.Schedule(ctx, s.ID)
	if err != nil {
		return err
	}
	row := r.Row()
	next.Harvests++
	row.Number, row.Before = next.Harvests, next.Quiet
	next.Quiet = event.Quiet{}
	return b.Log.SaveHarvest(ctx, s.ID, next, &row)
}

// isLocalFault reports whether a harvest failed for a reason that is not the Source's.
func isLocalFault(err error) bool {
	return errors.Is(err, eventlog.ErrFull) || errors.Is(err, content.ErrFull) || errors.Is(err, database.ErrDisk) || errors.Is(err, eventlog.ErrStopped) || errors.Is(err, event.ErrClock) || errors.Is(err, event.ErrUnavailable) || errors.Is(err, harvest.ErrSpent)
}

// nextHarvest returns when a Source is due after a harvest: no earlier than its
// Retry-After, and spread at random, so that Sources that were harvested together are not
// harvested together again.
func nextHarvest(r *harvest.Report, failed error, failures int, every time.Duration) time.Time {
	delay := every
	if failed != nil && !errors.Is(failed, harvest.ErrSpent) || r.Withheld {
		delay = retryDelay(max(failures, 1), every)
	}
	next := r.Ended.Add(delay + rand.N(delay/10+1))
	if (failed != nil || r.Withheld) && r.RetryAfter.After(next) {
		next = r.RetryAfter
	}
	return next
}

// retryDelay returns the delay after so many failures in a row: a minute, then twice as
// long each time, up to retryTimes the time between its harvests and to a day. So the next
// attempt comes after about as long as the Source has been failing.
func retryDelay(failures int, every time.Duration) time.Duration {
	return submission.BackOff(retryFirst, retryTimes*min(every, retryMost/retryTimes), failures)
}

// schedule harvests every Source when it is due, each on its own, until ctx
// ends. stop is called when the log has stopped. Other failures are logged and tried
// again, with growing delays. done, if not nil, is called after each harvest.
func (b *Bridge) schedule(ctx context.Context, stop context.CancelCauseFunc, done func(*Source, harvest.Report, error)) {
	var group sync.WaitGroup
	group.Go(func() {
		b.loops.run(ctx, b.Sources, func(ctx context.Context, src *Source) {
			if src.Kind != harvest.SIP { // the client of a SIP Source calls us
				b.restartOnPanic(ctx, "harvests of "+Redact(src.URL), func(ctx context.Context) { b.harvestLoop(ctx, src, stop, done) })
			}
		})
	})
	group.Go(func() {
		b.restartOnPanic(ctx, "asking Sources for their sets", func(ctx context.Context) { b.watchTemplates(ctx, b.loops.begin) })
	})
	group.Go(func() { b.restartOnPanic(ctx, "asking for pending contents", b.retryPending) })
	group.Go(func() { b.restartOnPanic(ctx, "watching the sets that others are made of", b.watchMembers) })
	group.Go(func() {
		b.restartOnPanic(ctx, "writing when Sources were asked", func(ctx context.Context) {
			for sleepOrWake(ctx, flushEvery, nil) {
				if err := b.Log.FlushSchedules(ctx); err != nil && ctx.Err() == nil {
					b.opt.Logger.Error("the times of harvests cannot be written", "error", err)
				}
			}
		})
	})
	group.Wait()
}

// restartOnPanic runs do, and runs it again a minute after a panic, until it returns or ctx
// ends: a panic in one task does not end the other tasks, nor that one for good.
func (b *Bridge) restartOnPanic(ctx context.Context, what string, do func(context.Context)) {
	for {
		err := defect.Guard(func() error {
			do(ctx)
			return nil
		})
		if err == nil {
			return
		}
		b.opt.Logger.Error(what+" has failed, and restarts in a minute", "error", err)
		defect.Log(b.opt.Logger, err)
		if !sleepOrWake(ctx, restartAfter, nil) {
			return
		}
	}
}

func (b *Bridge) harvestLoop(ctx context.Context, src *Source, stop context.CancelCauseFunc, done func(*Source, harvest.Report, error)) {
	log := b.opt.Logger.With("set", src.Set, "source", src.URL)
	for {
		wait, err := b.DueIn(ctx, src)
		if err != nil && ctx.Err() == nil {
			log.Error("the time of the Source's next harvest cannot be read", "error", err)
			wait = min(src.Every, retryFirst)
		}
		due := sleepOrWake(ctx, wait, src.wake)
		if ctx.Err() != nil {
			return
		}
		if !due || err != nil {
			continue
		}
		run := b.tagged(ctx, src)
		before, _ := b.Log.Schedule(ctx, src.ID) // DueIn has just read it
		report, err := b.harvestSource(run, src, src.Every, harvest.Options{})
		if ctx.Err() != nil || src.turn.isClosed() {
			return
		}
		if errors.Is(err, errInterrupted) {
			log.InfoContext(run, err.Error())
			continue
		}
		if errors.Is(err, eventlog.ErrStopped) {
			stop(err)
			return
		}
		b.logHarvest(run, src, &before, &report, err)
		if done != nil {
			done(src, report, err)
		}
		// Where there is space here it is missing elsewhere, as on the server with the log: then the
		// Source is asked when it is due.
		if (errors.Is(err, eventlog.ErrFull) || errors.Is(err, content.ErrFull)) && b.probeSpace() != nil && !b.awaitSpace(ctx, src) {
			return
		}
	}
}

// DueIn returns the time until a Source is due: at most the time between two harvests, and
// after failures a day, even if another configuration or another clock has planned it
// later. A paused Source is due when its pause ends.
func (b *Bridge) DueIn(ctx context.Context, src *Source) (time.Duration, error) {
	pause, err := b.paused(ctx, src.ID)
	switch {
	case err != nil:
		return 0, err
	case pause != nil && pause.Until == 0:
		return forever, nil
	case pause != nil:
		return pause.Until.Time().Sub(b.now()), nil
	}
	s, err := b.Log.Schedule(ctx, src.ID)
	if err != nil || s.Next == 0 {
		return 0, err
	}
	if wait, ok := b.pushDue(src.ID, &s); ok && s.Next.Time().Sub(b.now()) > wait {
		return wait, nil
	}
	most := max(src.Every, time.Hour)
	if s.Failures > 0 {
		most = max(most, retryMost)
	}
	planned := min(s.Next.Time().Sub(b.now()), most+most/10)
	if src.Kind == harvest.Set && s.FailingSince == 0 { // Failures leaves out those that are not its fault
		return b.memberDueIn(ctx, src, &s, planned)
	}
	return planned, nil
}

// retryPending fetches pending contents as they come due, until ctx ends.
func (b *Bridge) retryPending(ctx context.Context) {
	slots := make(chan struct{}, pendingAtOnce)
	var group sync.WaitGroup
	defer group.Wait()
	for sleepOrWake(ctx, pendingEvery, nil) {
		due, err := b.Log.DuePending(ctx, event.MicrosOf(b.now()))
		pauses, perr := b.pauseStatus(ctx)
		if err = errors.Join(err, perr); err != nil && ctx.Err() == nil {
			b.opt.Logger.Error("pending contents cannot be read", "error", err)
		}
		for _, id := range due {
			src := b.sourceByID(id)
			if _, paused := pauses[id]; src == nil || paused {
				continue
			}
			ctx, done, ok := src.turn.try(ctx)
			if !ok {
				continue // it is being asked
			}
			select {
			case slots <- struct{}{}:
			default: // slow hosts use all slots: it is tried again in the next minute
				done()
				continue
			}
			group.Go(func() {
				defer func() { done(); <-slots }()
				if err := b.retryPendingOf(ctx, src); err != nil && ctx.Err() == nil {
					b.opt.Logger.Error("asking for pending contents failed", "set", src.Set, "source", src.URL, "error", err)
					defect.Log(b.opt.Logger, err)
				}
			})
		}
	}
}

// retryPendingOf fetches the pending contents of a Source that are due.
func (b *Bridge) retryPendingOf(ctx context.Context, src *Source) error {
	return defect.Guard(func() error {
		if pause, err := b.paused(ctx, src.ID); pause != nil && err == nil {
			return nil
		}
		report, err := b.harvest.Settle(ctx, &src.Source)
		return errors.Join(err, b.saveSettled(ctx, src, &report))
	})
}

// awaitSpace waits until a file can be written to the data folder again, or the Source is
// due: a harvest that failed on a full disk must not wait for its schedule, and the Source
// need not be asked meanwhile. It returns false when ctx ends.
func (b *Bridge) awaitSpace(ctx context.Context, src *Source) bool {
	for {
		wait, err := b.DueIn(ctx, src)
		if err != nil || wait <= 0 {
			return ctx.Err() == nil
		}
		if !sleepOrWake(ctx, min(wait, probeEvery), nil) {
			return false
		}
		if b.probeSpace() == nil {
			b.opt.Logger.Info("there is space again", "set", src.Set, "source", src.URL)
			if s, err := b.Log.Schedule(ctx, src.ID); err == nil { // else the Source is harvested when it is due
				s.Next = 0
				_ = b.Log.SaveSchedule(ctx, src.ID, s, true) // only in memory, which cannot fail
			}
			return ctx.Err() == nil
		}
	}
}

// sleepOrWake returns true after wait, and false when ctx ends or awake delivers first.
func sleepOrWake(ctx context.Context, wait time.Duration, awake <-chan struct{}) bool {
	due := time.NewTimer(wait)
	defer due.Stop()
	select {
	case <-ctx.Done():
	case <-awake:
	case <-due.C:
		return ctx.Err() == nil
	}
	return false
}

// probeSpace writes a megabyte to a file in the data folder that has no name.
func (b *Bridge) probeSpace() error {
	f, err := os.CreateTemp(b.Config().Data, ".space-*.tmp")
	if err != nil {
		return err
	}
	err = os.Remove(f.Name()) // at once, so that a crash leaves nothing behind
	_, written := f.Write(make([]byte, 1<<20))
	return errors.Join(err, written, f.Sync(), f.Close())
}
