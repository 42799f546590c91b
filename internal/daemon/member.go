package daemon

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// Sets that are Sources of other sets (kind harvest.Set). Nothing is requested: what such a
// set logs is applied as soon as it is committed.

const (
	// memberPace is the least time between two harvests of a set that keeps growing,
	// watchPace the least time between two checks for sets that have grown.
	memberPace = time.Second
	watchPace  = 100 * time.Millisecond
)

// watchMembers wakes the Sources whose sets have grown, until ctx ends.
func (b *Bridge) watchMembers(ctx context.Context) {
	looked := map[string]event.Set{}
	for {
		changed := b.Log.Changed() // before the sets are read, so that no change is missed
		b.wakeMembers(ctx, looked)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		if !sleepOrWake(ctx, watchPace, nil) {
			return
		}
	}
}

// wakeMembers wakes the Sources whose sets have grown since looked, which has the sets by their
// names as they were. There may be thousands, of which few have grown.
func (b *Bridge) wakeMembers(ctx context.Context, looked map[string]event.Set) {
	var members []*Source
	for _, src := range b.Sources() {
		if src.Kind == harvest.Set {
			members = append(members, src)
		}
	}
	if len(members) == 0 {
		return
	}
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return // the harvests report it
	}
	grown := map[string]bool{}
	for i := range sets {
		s := &sets[i]
		if was := looked[s.Name]; was.Feed != s.Feed || was.Last != s.Last {
			grown[s.Name], looked[s.Name] = true, *s
		}
	}
	for _, src := range members {
		name := harvest.MemberOf(src.URL)
		if !grown[name] {
			continue
		}
		behind, err := b.harvest.Behind(ctx, &src.Source)
		if err != nil {
			delete(looked, name) // it is looked at again; the harvest reports the error
		} else if behind {
			wake(src.wake)
		}
	}
}

// wakeUsersOf wakes the Sources that read from a set.
func (b *Bridge) wakeUsersOf(set string) {
	for _, src := range b.Sources() {
		if src.Kind == harvest.Set && harvest.MemberOf(src.URL) == set {
			wake(src.wake)
		}
	}
}

// memberDueIn returns how long to wait until a set that has not failed is harvested. When
// the set has something new, that is memberPace after the last success, or earlier if
// planned is.
func (b *Bridge) memberDueIn(ctx context.Context, src *Source, s *event.Schedule, planned time.Duration) (time.Duration, error) {
	behind, err := b.harvest.Behind(ctx, &src.Source)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the harvest reports this
		return planned, nil
	case err != nil || !behind:
		return planned, err
	case s.LastSuccess.Time().After(b.now()): // the clock was ahead
		return 0, nil
	}
	return min(planned, s.LastSuccess.Time().Add(memberPace).Sub(b.now())), nil
}

// Rounds returns the Sources in the order in which one pass harvests them: the Sources of a
// set come in an earlier round than the Sources that read from this set. Those of one round
// may be harvested at the same time.
func (b *Bridge) Rounds() (rounds [][]*Source) {
	left := slices.Clone(b.Sources())
	for len(left) > 0 {
		waits := func(src *Source) bool {
			return src.Kind == harvest.Set && slices.ContainsFunc(left, func(o *Source) bool { return o.Set == harvest.MemberOf(src.URL) })
		}
		var round, later []*Source
		for _, src := range left {
			if waits(src) {
				later = append(later, src)
			} else {
				round = append(round, src)
			}
		}
		if len(round) == 0 { // a cycle from the command line, in which nothing is new
			return append(rounds, later)
		}
		rounds, left = append(rounds, round), later
	}
	return rounds
}

// expandMembers replaces each Source that is a template by the sets that were made of it.
func expandMembers(sets []config.Set, made map[string][]string) {
	for i := range sets {
		var sources []config.Source
		for _, s := range sets[i].Sources {
			names, isTemplate := made[s.Member()]
			if s.Kind != config.KindSet || !isTemplate {
				sources = append(sources, s)
				continue
			}
			for _, name := range names {
				if one := s.AsMember(name); !slices.ContainsFunc(sets[i].Sources, func(o config.Source) bool { return o.URL == one.URL }) {
					sources = append(sources, one)
				}
			}
		}
		sets[i].Sources = sources
	}
}
