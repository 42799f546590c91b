package daemon

import (
	"context"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// completeSets marks the sets that are complete by now: the Source that kept a set
// incomplete may have been removed from the configuration. It logs an error: how far a Source
// was harvested may be damaged, and bridge source reset needs the Bridge open.
func (b *Bridge) completeSets(ctx context.Context) {
	sets, err := b.Log.Sets(ctx)
	if err == nil && !slices.ContainsFunc(sets, func(s event.Set) bool { return s.Partial }) {
		return
	}
	var sources map[string][]eventlog.Source
	if err == nil {
		sources, _, err = b.Log.SourcesOfSets(ctx) // at once: there may be thousands of sets
	}
	for i := 0; i < len(sets) && err == nil; i++ {
		err = b.completeSet(ctx, &sets[i], sources[sets[i].Name])
	}
	if err != nil {
		b.opt.Logger.Error("whether the sets are complete could not be stored; the next harvest of each tries again", "error", err)
	}
}

// completeSet marks a set as complete once each of its Sources was walked to the end, or is
// a bridge that waits only for this one. all are the Sources that the log has of it.
func (b *Bridge) completeSet(ctx context.Context, set *event.Set, all []eventlog.Source) error {
	if !set.Partial {
		return nil
	}
	walked, ids, configured := b.progress(all)
	if configured == 0 && !b.hasNoSource(set.Name) { // this run configures no Source of it
		return nil
	}
	b.awaited.Delete(set.Name)
	if len(harvest.AwaitedSets(set.Feed, walked, b.now()).Sets) > 0 {
		if i := slices.IndexFunc(walked, func(p event.Progress) bool { return b.awaits(set, p) }); i >= 0 && b.Config().File != "" {
			b.awaited.Store(set.Name, ids[i])
		}
		return nil
	}
	b.opt.Logger.Info("all Sources of the set were walked: its complete lists are published from now on", "set", set.Name)
	if err := b.Log.MarkSetComplete(ctx, set.Name); err != nil {
		return err
	}
	b.wakeUsersOf(set.Name)
	return nil
}

// hasNoSource reports whether the configuration has a set and no Source of it, or nothing is
// configured: what the log has of its former ones is all there will be.
func (b *Bridge) hasNoSource(set string) bool {
	if b.hasNoSet() {
		return true
	}
	s := b.FileConfig().Set(set)
	return s != nil && len(s.Sources) == 0
}

// hasNoSet reports whether nothing is configured: all that the log has is published.
func (b *Bridge) hasNoSet() bool { return len(b.FileConfig().Sets) == 0 }

// awaits reports whether a set waits for a Source, whatever its others have said.
func (b *Bridge) awaits(set *event.Set, p event.Progress) bool {
	_, waits := harvest.AwaitedSets(set.Feed, []event.Progress{p}, b.now()).Sets[set.Feed]
	return waits
}

// completeSetOf marks a set as complete if it is, after a harvest of one of its
// Sources. It does not look at all of them, of which there may be thousands, as long as the
// set waits for the one that it waited for before.
func (b *Bridge) completeSetOf(ctx context.Context, name string) error {
	set, err := b.Log.Set(ctx, name)
	if err != nil {
		return err
	}
	if id, ok := b.awaited.Load(name); ok && set.Partial {
		p, err := b.Log.Progress(ctx, id.(event.SourceID))
		if err != nil || b.awaits(&set, p) {
			return err
		}
	}
	if !set.Partial {
		return nil
	}
	all, err := b.Log.Sources(ctx, name)
	if err != nil {
		return err
	}
	return b.completeSet(ctx, &set, all)
}

// progress returns the progress of the walks that must end before a set is complete, of which
// all are the Sources: those of the configured ones, also when this run harvests some of them
// alone, without a configuration those of this run and the unfinished ones, and all where this
// run has none. ids are the numbers of their Sources. configured counts SIP Sources too, which are not walked.
func (b *Bridge) progress(all []eventlog.Source) (walks []event.Progress, ids []event.SourceID, configured int) {
	for i := range all {
		src := &all[i]
		ours := (b.Config().File != "" || b.opt.Beside || b.hasNoSet()) && !src.Former || b.sourceByID(src.ID) != nil
		if ours {
			configured++
		}
		begun := b.Config().File == "" && (src.Cursor.Data != nil || src.Gap != "")
		if (ours || begun) && src.Kind != harvest.SIP {
			walks, ids = append(walks, src.Progress), append(ids, src.ID)
		}
	}
	return walks, ids, configured
}

// partialHeader returns the header value that tells other bridges which Sources an
// incomplete set waits for, see follow.PartialHeader.
func (b *Bridge) partialHeader(ctx context.Context, name string) string {
	now := b.now()
	set, err := b.Log.Set(ctx, name)
	if err != nil {
		return ""
	}
	all, err := b.Log.Sources(ctx, name)
	if err != nil {
		return ""
	}
	walks, _, _ := b.progress(all)
	if len(walks) == 0 { // no Source of it is walked
		return follow.WaitsOf(set.Feed, []*follow.Waits{nil}, now).Header(now)
	}
	return harvest.AwaitedSets(set.Feed, walks, now).Header(now)
}
