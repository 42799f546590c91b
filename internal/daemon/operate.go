package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
)

// What an operator does to a Source. All of it works beside scheduled harvests: a harvest
// of the Source that is under way ends at its next border, keeps what it has committed, and
// continues later. Each method finds the Source as Find does, and returns a sentence that
// describes what was done.

// forever is the time until a Source is due that is paused without an end.
const forever = time.Duration(math.MaxInt64)

// Pause stops harvests of a Source, and requests for its pending contents, until it is
// resumed or, if until is not zero, until then. Its records stay published. A Source that
// is already paused keeps the time at which its pause began.
func (b *Bridge) Pause(ctx context.Context, set, source, reason string, until time.Time) (string, error) {
	src, err := b.Lookup(ctx, set, source)
	if err != nil {
		return "", err
	}
	if src.Kind == harvest.SIP {
		return "", fmt.Errorf("%s: %s calls bridge and is not harvested: there is nothing to pause", src.Set, Redact(src.URL))
	}
	p := eventlog.Pause{Since: event.MicrosOf(b.now()), Reason: reason}
	if !until.IsZero() {
		p.Until = event.MicrosOf(until)
		if p.Over(p.Since) {
			return "", fmt.Errorf("a pause until %s has ended already: write a later time, or leave it out", until.UTC().Format(time.RFC3339))
		}
	}
	was, err := b.paused(ctx, src.ID)
	if err != nil {
		return "", err
	}
	if was != nil {
		p.Since = was.Since
	}
	if err := b.Log.SetPause(ctx, src.ID, &p); err != nil {
		return "", err
	}
	if running := b.sourceByID(src.ID); running != nil {
		running.turn.interrupt()
		wake(running.wake)
	}
	return fmt.Sprintf("%s: %s is paused until %s; its records stay published", src.Set, Redact(src.URL), endOf(p.Until.Time(), p.Until != 0)), nil
}

// endOf returns the end of a pause in words.
func endOf(until time.Time, has bool) string {
	if !has {
		return "it is resumed"
	}
	return until.UTC().Format(time.RFC3339)
}

// LeaveOutPaused restricts the Bridge, which does not serve, to the configured Sources that are
// not paused. It returns a sentence about each of the others.
func (b *Bridge) LeaveOutPaused(ctx context.Context) (said []string, err error) {
	all, err := b.pauseStatus(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	g := *b.generation.Load()
	g.sources = slices.DeleteFunc(slices.Clone(g.sources), func(s *Source) bool {
		p := all[s.ID]
		if p != nil {
			said = append(said, fmt.Sprintf("%s: %s is paused until %s, and not harvested", s.Set, Redact(s.URL), endOf(p.Until.Time, !p.Until.IsZero())))
		}
		return p != nil
	})
	b.generation.Store(&g)
	return said, nil
}

// Resume ends the pause of a Source, which is harvested when it is due.
func (b *Bridge) Resume(ctx context.Context, set, source string) (string, error) {
	src, err := b.Lookup(ctx, set, source)
	if err != nil {
		return "", err
	}
	was, err := b.paused(ctx, src.ID)
	if err != nil {
		return "", err
	}
	if was == nil {
		return fmt.Sprintf("%s: %s is not paused", src.Set, Redact(src.URL)), nil
	}
	if err := b.Log.SetPause(ctx, src.ID, nil); err != nil {
		return "", err
	}
	if running := b.sourceByID(src.ID); running != nil {
		wake(running.wake)
	}
	return fmt.Sprintf("%s: %s is resumed", src.Set, Redact(src.URL)), nil
}

// HarvestNow harvests a Source at once. While Serve runs it only starts the harvest.
func (b *Bridge) HarvestNow(ctx context.Context, set, source string) (string, error) {
	found, err := b.Lookup(ctx, set, source)
	if err != nil {
		return "", err
	}
	src, name := b.sourceByID(found.ID), found.Set+": "+Redact(found.URL)
	switch {
	case src == nil:
		return "", fmt.Errorf("%s is not configured: write it into the configuration again", name)
	case src.Kind == harvest.SIP:
		return "", fmt.Errorf("%s calls bridge: nothing is harvested there", name)
	}
	was, err := b.paused(ctx, src.ID)
	if err != nil {
		return "", err
	}
	if was != nil {
		return "", fmt.Errorf("%s is paused: resume it with bridge source resume", name)
	}
	if b.stop.Load() == nil { // no harvests are scheduled
		report, err := b.Harvest(ctx, src, harvest.Options{})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s is harvested: %d created, %d updated, %d deleted", name, report.Created, report.Updated, report.Deleted), nil
	}
	if b.underway.has(src.ID) {
		return name + " is being harvested now: see bridge status", nil
	}
	defer src.turn.takeFirst()()          // requests for pending contents end: the harvest sends them again
	s, err := b.Log.Schedule(ctx, src.ID) // the harvest stores more of it
	if err != nil {
		return "", err
	}
	s.Next = event.MicrosOf(b.now())
	if err := b.Log.SaveSchedule(ctx, src.ID, s, false); err != nil {
		return "", err
	}
	wake(src.wake)
	return name + " is harvested now: see bridge status", nil
}

// Reset makes the next harvest of a Source read all of it; see harvest.Harvester.Reset.
func (b *Bridge) Reset(ctx context.Context, set, source string) (string, error) {
	return b.operate(ctx, set, source, func(src *Source) (string, error) {
		if err := b.harvest.Reset(ctx, src.ID); err != nil {
			return "", err
		}
		return Redact(src.URL) + " is read from the beginning in the next harvest; its records and events stay", nil
	})
}

// AcceptGap continues without a document of a Source that is gone for good, or without a
// Source that was never read whole; see harvest.Harvester.AcceptGap.
func (b *Bridge) AcceptGap(ctx context.Context, set, source string) (string, error) {
	return b.operate(ctx, set, source, func(src *Source) (string, error) {
		url, err := b.harvest.AcceptGap(ctx, &src.Source)
		kind, unknown := b.Log.SourceKind(ctx, src.ID)
		switch {
		case errors.Is(err, harvest.ErrNoGap):
			return Redact(src.URL) + " has no gap: nothing to accept", nil
		case err != nil || unknown != nil:
			return "", errors.Join(err, unknown)
		case url == src.URL: // it has no gap, and was never read whole
			return "the set is published without waiting until " + Redact(url) + " was read whole", nil
		case kind == harvest.ResourceSync:
			return Redact(url) + " is no longer requested; changes that only it contained are lost", nil
		}
		return "from now on the chain ends before " + Redact(url) + "; deletions that only it contained are lost", nil
	})
}

// Release applies the held deletions of a Source: all of them or, if since is not 0, those
// that were held at that time or before. So only deletions that the operator has seen are
// released.
func (b *Bridge) Release(ctx context.Context, set, source string, since event.Micros) (string, error) {
	since = cmp.Or(since, math.MaxInt64)
	return b.operate(ctx, set, source, func(src *Source) (string, error) {
		report, err := b.harvest.Release(ctx, &src.Source, since)
		return count(report.Deleted, "held deletion") + " applied", err
	})
}

// KeepHeld holds the held deletions of a Source until an operator releases them: they are
// not released when their time has passed.
func (b *Bridge) KeepHeld(ctx context.Context, set, source string) (string, error) {
	return b.operate(ctx, set, source, func(src *Source) (string, error) {
		n, err := b.Log.KeepHeld(ctx, src.ID)
		return count(int64(n), "held deletion") + " kept until a person releases them", err
	})
}

// Discard removes bad input for good.
func (b *Bridge) Discard(ctx context.Context, id int64) error {
	q, err := b.Log.QuarantinedInput(ctx, id)
	if err != nil {
		return err
	}
	if err := b.Log.Discard(ctx, id); err != nil {
		return err
	}
	b.opt.Logger.Info("a bad input was discarded", "set", q.Set, "number", q.ID, "url", q.URL, "rule", q.Rule, "record", q.Record)
	return nil
}

// actOnInput replays or discards bad input, and returns a sentence that describes what was
// done.
func (b *Bridge) actOnInput(ctx context.Context, do string, id int64) (string, error) {
	switch do {
	case "replay":
		q, err := b.Log.QuarantinedInput(ctx, id)
		if err != nil {
			return "", err
		}
		report, err := b.Replay(ctx, &q)
		return "replayed: " + count(report.Events(), "event"), err
	case "discard":
		return "discarded for good", b.Discard(ctx, id)
	}
	return "", fmt.Errorf("this version of bridge does not know %q: restart bridge serve with the version of the command", do)
}

// Forget ends a Source that is not harvested any more. The records that only this Source
// has stay as they are with keep, and are deleted with remove. If there are such records
// and neither is set, the error is an UndecidedError. It refuses a SIP Source with
// submissions that are not concluded.
func (b *Bridge) Forget(ctx context.Context, set, source string, keep, remove bool) (string, error) {
	if keep && remove {
		return "", &UndecidedError{"keep and delete exclude each other: say one of them"}
	}
	return b.operate(ctx, set, source, func(src *Source) (string, error) {
		_, have, err := b.Log.CountAbsent(ctx, src.ID, event.Stamp{})
		if err != nil {
			return "", err
		}
		if have > 0 && !keep && !remove {
			return "", &UndecidedError{fmt.Sprintf("%s: %s has %s: say --delete to delete those that no other Source of the set has, or --keep to keep them as they are",
				src.Set, Redact(src.URL), count(have, "record"))}
		}
		if b.stop.Load() != nil && b.sourceByID(src.ID) != nil { // otherwise it would be harvested again at once
			return "", fmt.Errorf("%s: %s is configured, and harvested again: take it out of the configuration first, and have that read with bridge reload", src.Set, Redact(src.URL))
		}
		if err := b.concluded(ctx, src.Set, src.URL); err != nil { // nothing here would conclude them any more
			return "", err
		}
		report, err := b.harvest.Forget(ctx, &src.Source, keep)
		return Redact(src.URL) + " is forgotten: " + count(report.Deleted, "record") + " deleted", err
	})
}

// UndecidedError means that the operator must give another option.
type UndecidedError struct{ text string }

func (e *UndecidedError) Error() string { return e.text }

func count(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// operate calls do for a Source while nothing else works on that Source.
func (b *Bridge) operate(ctx context.Context, set, source string, do func(*Source) (string, error)) (string, error) {
	src, err := b.Find(ctx, set, source)
	if err != nil {
		return "", err
	}
	done := src.turn.takeFirst()
	said, err := do(src)
	done()
	wake(src.wake)
	if err != nil {
		return "", err
	}
	return src.Set + ": " + said, nil
}

// paused returns the pause of a Source, nil when it is not paused.
func (b *Bridge) paused(ctx context.Context, id event.SourceID) (*eventlog.Pause, error) {
	all, err := b.Log.Pauses(ctx)
	if p, ok := all[id]; ok && !p.Over(event.MicrosOf(b.now())) {
		return &p, err
	}
	return nil, err
}

// pauseStatus returns the pauses in force.
func (b *Bridge) pauseStatus(ctx context.Context) (map[event.SourceID]*status.Pause, error) {
	all, err := b.Log.Pauses(ctx)
	out := map[event.SourceID]*status.Pause{}
	for id, p := range all {
		if p.Over(event.MicrosOf(b.now())) {
			continue
		}
		out[id] = &status.Pause{Since: status.Time{Time: p.Since.Time()}, Reason: p.Reason}
		if p.Until != 0 {
			out[id].Until.Time = p.Until.Time()
		}
	}
	return out, err
}

// SourceAction is a call of one of the methods above, as commands send it to the serving
// process.
type SourceAction struct {
	Do     string    `json:"do"` // pause, resume, harvest, reset, accept-gap, release, keep, forget
	Set    string    `json:"set"`
	Source string    `json:"source,omitempty"`
	Reason string    `json:"reason,omitempty"` // of a pause
	Until  time.Time `json:"until,omitzero"`   // of a pause
	// Since bounds a release: deletions that are held since a later time stay held; 0 is no
	// bound.
	Since  event.Micros `json:"since,omitempty"`
	Keep   bool         `json:"keep,omitempty"` // of forget, as Delete is
	Delete bool         `json:"delete,omitempty"`
}

func (b *Bridge) actOnSource(ctx context.Context, a *SourceAction) (string, error) {
	switch a.Do {
	case "pause":
		return b.Pause(ctx, a.Set, a.Source, a.Reason, a.Until)
	case "resume":
		return b.Resume(ctx, a.Set, a.Source)
	case "harvest":
		return b.HarvestNow(ctx, a.Set, a.Source)
	case "reset":
		return b.Reset(ctx, a.Set, a.Source)
	case "accept-gap":
		return b.AcceptGap(ctx, a.Set, a.Source)
	case "release":
		return b.Release(ctx, a.Set, a.Source, a.Since)
	case "keep":
		return b.KeepHeld(ctx, a.Set, a.Source)
	case "forget":
		return b.Forget(ctx, a.Set, a.Source, a.Keep, a.Delete)
	}
	return "", fmt.Errorf("this version of bridge does not know %q: restart bridge serve with the version of the command", a.Do)
}
