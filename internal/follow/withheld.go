package follow

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PartialHeader is in the answer of a bridge that withholds the complete lists of a set
// until it has walked all its Sources. It names the sets for which that set waits, see
// Waits. Without it bridges that harvest each other would wait for each other without
// end.
const PartialHeader = "Bridge-Partial"

// Waits is the last answer of a bridge about a set: the sets for which it waits, by the
// URNs of their feeds. Each of these has a Source that was not walked yet and that is
// not itself a bridge which waits. A set passes on the sets for which its Sources wait,
// without itself: in a ring of bridges that wait only for each other no set is left,
// and there is nothing to wait for.
type Waits struct {
	Asked time.Time            `json:"asked"`
	Sets  map[string]time.Time `json:"sets"` // when each last stated it itself
	// Over is when the set was walked whole: the sets for which it waited until then do
	// not wait any more, even if another answer still names them.
	Over time.Time `json:"over,omitzero"`
}

const (
	// waitsForNone is the header of a set that has yet to notice that it need not wait.
	waitsForNone = "none"
	// waitsHold is how long a statement of a set counts. Bridges that wait ask every
	// minute, so that a statement that still holds is younger, and one that only goes
	// round among other bridges ends.
	waitsHold = time.Hour
	// maxWaits and maxWaitsName bound what is kept of a header.
	maxWaits     = 100
	maxWaitsName = 200
)

// ParseWaits reads a PartialHeader that came just now. It is nil when nothing in it can
// be read.
func ParseWaits(header string, now time.Time) *Waits {
	w := newWaits(now)
	for field := range strings.SplitSeq(header, ",") {
		set, age, ok := strings.Cut(strings.TrimSpace(field), ";age=")
		seconds, err := strconv.ParseUint(age, 10, 16)
		if ok && err == nil && set != "" && len(set) <= maxWaitsName && len(w.Sets) < maxWaits {
			w.Sets[set] = latest(w.Sets[set], now.Add(-time.Duration(seconds)*time.Second))
		}
	}
	if len(w.Sets) == 0 && header != waitsForNone {
		return nil
	}
	return w
}

// WaitsOf returns the sets for which a set waits. sources are the last answers of its
// Sources, nil for a Source that was not asked or has failed. They leave out a Source
// that was walked and has never answered with a PartialHeader.
func WaitsOf(set string, sources []*Waits, now time.Time) *Waits {
	over := map[string]time.Time{}
	for _, w := range sources {
		if w != nil && !w.Over.IsZero() {
			for other := range w.Sets {
				over[other] = latest(over[other], w.Over)
			}
		}
	}
	all := newWaits(now)
	for _, w := range sources {
		switch {
		case w == nil, w.Over.IsZero() && old(w.Asked, now):
			all.Sets[set] = now
		case w.Over.IsZero():
			for other, said := range w.Sets {
				if other != set && !old(said, now) && said.After(over[other]) {
					all.Sets[other] = latest(all.Sets[other], said)
				}
			}
		}
	}
	return all
}

// Header returns the value of PartialHeader. Ages are in seconds, rounded up, so that a
// statement that goes round grows older.
func (w *Waits) Header(now time.Time) string {
	if len(w.Sets) == 0 {
		return waitsForNone
	}
	fields := make([]string, 0, len(w.Sets))
	for _, set := range slices.Sorted(maps.Keys(w.Sets)) {
		fields = append(fields, set+";age="+strconv.FormatInt(int64((max(now.Sub(w.Sets[set]), 0)+time.Second-1)/time.Second), 10))
	}
	return strings.Join(fields, ", ")
}

func newWaits(now time.Time) *Waits { return &Waits{Asked: now, Sets: map[string]time.Time{}} }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func old(said, now time.Time) bool { return now.Sub(said) > waitsHold }
