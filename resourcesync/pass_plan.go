package resourcesync

import (
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// step is one document that a walk is to read.
type step struct {
	// Stream is the index of its stream.
	Stream int    `json:"stream"`
	URL    string `json:"url"`
	// Baseline tells Resource Lists from Change Lists.
	Baseline bool `json:"baseline,omitempty"`
	// Depth is the number of indexes that lead to it.
	Depth int `json:"depth,omitempty"`
	// From and At are what its index says of it, IndexAt is what that says of
	// itself. Until is up to when it reaches; zero when that is unknown.
	From    time.Time `json:"from,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	At      time.Time `json:"at,omitzero"`
	IndexAt time.Time `json:"index_at,omitzero"`
	// Validators make the request conditional.
	Validators follow.Validators `json:"validators,omitzero"`
	// Again: the Capability List was asked again and still names it.
	Again bool `json:"again,omitempty"`
	// Behind is up to when the list reaches that this one goes on from, and that
	// comes after it.
	Behind time.Time `json:"behind,omitzero"`
	// Sum is the digest of an index whose parts were read, which is asked again
	// to see that it has not changed meanwhile.
	Sum string `json:"sum,omitempty"`
}

// chronological returns the lists of a Change List Index in the order of their
// times (clause 12.2), in which they should stand. Lists without times stay
// behind the one that they follow.
func chronological(lists []step) []step {
	times := begins(lists)
	forward, backward := true, true
	var last time.Time
	for i, t := range times {
		switch {
		case t.IsZero():
			times[i] = last
			continue
		case !last.IsZero():
			forward = forward && !t.Before(last)
			backward = backward && !t.After(last)
		}
		last = t
	}
	if !forward && backward {
		sorted := slices.Clone(lists)
		slices.Reverse(sorted)
		return sorted
	}
	order := make([]int, len(lists))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if c := times[a].Compare(times[b]); c != 0 || lists[a].From.IsZero() || lists[b].From.IsZero() {
			return c
		}
		// Of lists that begin in the same second the one that is open is the last.
		return newer(&lists[a], &lists[b])
	})
	sorted := make([]step, len(lists))
	for i, at := range order {
		sorted[i] = lists[at]
	}
	return sorted
}

// begins returns the times by which lists are put in order: their from, else
// their until. Where no list says from, one that does not say until either is
// the open one, and the last.
func begins(lists []step) []time.Time {
	times := make([]time.Time, len(lists))
	closed, from := false, false
	for i := range lists {
		times[i] = lists[i].From
		from = from || !lists[i].From.IsZero()
		if times[i].IsZero() {
			times[i] = lists[i].Until
			closed = closed || !times[i].IsZero()
		}
	}
	if closed && !from {
		for i := range times {
			if times[i].IsZero() {
				times[i] = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
			}
		}
	}
	return times
}

// reach sets up to when each of some lists in chronological order reaches: its
// until, else the from of the next one that begins later.
func reach(lists []step) {
	var next, after time.Time // when the next lists begin, and those behind them
	for i := len(lists) - 1; i >= 0; i-- {
		until := next
		switch from := lists[i].From; {
		case from.IsZero():
		case from.Equal(next):
			until = after
		default:
			next, after = from, next
		}
		if lists[i].Until.IsZero() {
			lists[i].Until = until
		}
	}
}

// needed returns the lists that have to be read to know all changes since a
// moment, newest first. lists are in chronological order and reach has been
// applied.
func needed(lists []step, since time.Time) []step {
	i := slices.IndexFunc(lists, func(s step) bool { return s.Until.IsZero() || !s.Until.Before(since) })
	if i < 0 {
		return nil
	}
	out := slices.Clone(lists[i:])
	slices.Reverse(out)
	return out
}

// holes returns the indexes of the lists before which a span of time is missing.
func holes(lists []step) []int {
	var at []int
	for i := 1; i < len(lists); i++ {
		if until, from := lists[i-1].Until, lists[i].From; !until.IsZero() && until.Before(from) {
			at = append(at, i)
		}
	}
	return at
}

// merge puts two sequences of steps, each newest first, into one. Resource Lists
// stay behind all Change Lists.
func merge(a, b []step) []step {
	out := make([]step, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if newer(&a[0], &b[0]) >= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// newer is positive when a comes before b.
func newer(a, b *step) int {
	switch {
	case a.Baseline != b.Baseline:
		if b.Baseline {
			return 1
		}
		return -1
	case a.Baseline:
		return 0
	case a.Until.IsZero() != b.Until.IsZero():
		if a.Until.IsZero() {
			return 1
		}
		return -1
	}
	return a.Until.Compare(b.Until)
}
