package status

import (
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// State sums up the state of a Source.
type State string

// The states of Sources, in the order in which lists show them.
const (
	Failing State = "failing" // the last harvest has failed
	Waiting State = "waiting" // it has not been harvested to its end yet
	Paused  State = "paused"  // by an operator
	Former  State = "former"  // not configured any more
	OK      State = "ok"
)

// states has the order of the states.
var states = []State{Failing, Waiting, Paused, Former, OK}

// Order returns the place of a state among all, from 0.
func (s State) Order() int {
	for i, known := range states {
		if s == known {
			return i
		}
	}
	return len(states)
}

// Known reports whether it is one of the states.
func (s State) Known() bool { return s.Order() < len(states) }

// HarvestError is an error with which a harvest has ended.
type HarvestError struct {
	At   Time   `json:"at"`
	Text string `json:"text"`
	// Kind is one of those of package harvest: network, http, document, ...
	Kind string `json:"kind,omitempty"`
	// Rule is the rule that the Source has broken, "" when it is none.
	Rule string `json:"rule,omitempty"`
}

// Unchanged is a number of harvests in a row that found nothing new.
type Unchanged struct {
	Count int64 `json:"count"`
	First Time  `json:"first"`
	Last  Time  `json:"last"`
}

// SetSchedule sets the fields that follow from the results of the Source's harvests. Its other
// fields must be set before.
func (s *Source) SetSchedule(f *event.Schedule) {
	s.Failures = f.Failures
	s.LastSuccess, s.FailingSince = at(f.LastSuccess), at(f.FailingSince)
	if !s.Former && s.Paused == nil {
		s.Next = at(f.Next)
	}
	if e := f.LastError; e != (event.Failure{}) {
		s.LastError = &HarvestError{at(e.At), e.Text, e.Kind, e.Rule}
	}
	if q := f.Quiet; q.Count > 0 {
		s.Unchanged = &Unchanged{q.Count, at(q.First), at(q.Last)}
	}
	if s.Last != nil {
		s.Moved = s.Last.Moved
		if s.RetryAfter.Time = s.Last.RetryAfter; s.RetryAfter.Before(s.Last.Ended) {
			s.RetryAfter = Time{}
		}
	}
	s.State = s.state()
}

func at(m event.Micros) Time {
	if m == 0 {
		return Time{}
	}
	return Time{m.Time()}
}

func (s *Source) state() State {
	switch {
	case s.Former:
		return Former
	case s.Paused != nil:
		return Paused
	case !s.FailingSince.IsZero():
		return Failing
	case s.Kind == harvest.SIP:
		return OK
	case s.LastSuccess.IsZero(), s.Last != nil && s.Last.Withheld:
		return Waiting
	}
	return OK
}

// Summary counts the Sources by their state, and all that needs an operator.
type Summary struct {
	Sources int `json:"sources"`
	OK      int `json:"ok"`
	Failing int `json:"failing"`
	Waiting int `json:"waiting"`
	Paused  int `json:"paused"`
	Former  int `json:"former"`
	// Servers counts the failing ingest servers, and Dumps the sets whose newest dumps
	// could not be made.
	Servers int `json:"failing_servers,omitempty"`
	Dumps   int `json:"failing_dumps,omitempty"`

	// What needs an operator: held deletions, gaps, bad inputs, Sources that have moved,
	// submissions that are under review, in doubt or unresolved, or have contradicting
	// dispositions, and notifications to submitters that were refused or given up.
	Held        int   `json:"held,omitempty"`
	Gaps        int   `json:"gaps,omitempty"`
	Quarantined int   `json:"quarantined,omitempty"`
	Moved       int   `json:"moved,omitempty"`
	Reviews     int64 `json:"reviews,omitempty"`
	InDoubt     int64 `json:"in_doubt,omitempty"`
	Unresolved  int64 `json:"unresolved,omitempty"`
	Conflicts   int64 `json:"conflicts,omitempty"`
	Undelivered int64 `json:"undelivered,omitempty"`
}

// Fails reports whether something fails.
func (s *Summary) Fails() bool { return s.Failing > 0 || s.Servers > 0 || s.Dumps > 0 }

// Summarize returns the Summary of sets.
func Summarize(sets []Set) (out Summary) {
	for i := range sets {
		if d := sets[i].Dumps; d != nil && len(d.Faults) > 0 {
			out.Dumps++
		}
		for j := range sets[i].Sources {
			out.source(&sets[i].Sources[j])
		}
		for j := range sets[i].Submissions {
			p := &sets[i].Submissions[j]
			out.Reviews += p.UnderReview
			out.InDoubt += p.States[submission.StateInDoubt]
			out.Unresolved += p.States[submission.StateUnresolved]
			out.Conflicts += p.Conflicts
			out.Undelivered += p.Undelivered()
			if p.Failing != nil && !p.Former {
				out.Servers++
			}
		}
	}
	return out
}

func (out *Summary) source(s *Source) {
	out.Sources++
	switch s.State {
	case Failing:
		out.Failing++
	case Waiting:
		out.Waiting++
	case Paused:
		out.Paused++
	case Former:
		out.Former++
	default:
		out.OK++
	}
	out.Held += s.Held
	out.Quarantined += s.Quarantined
	if s.Gap != "" {
		out.Gaps++
	}
	if s.Moved != "" {
		out.Moved++
	}
}

// HarvestRow is a row of the history of a Source.
type HarvestRow struct {
	Number      int64              `json:"number"`
	Started     Time               `json:"started"`
	Ended       Time               `json:"ended"`
	Result      event.Result       `json:"result"`
	Documents   int64              `json:"documents"`
	Entries     int64              `json:"entries"`
	Bytes       int64              `json:"bytes"`
	Contents    int64              `json:"contents"`
	Created     int64              `json:"created"`
	Updated     int64              `json:"updated"`
	Deleted     int64              `json:"deleted"`
	Pending     int64              `json:"pending,omitempty"`
	Held        int64              `json:"held,omitempty"`
	Quarantined int64              `json:"quarantined,omitempty"`
	Problems    []event.BrokenRule `json:"problems,omitempty"`
	Error       *HarvestError      `json:"error,omitempty"`
	// Unchanged counts the harvests between the row before and this one.
	Unchanged *Unchanged `json:"unchanged_before,omitempty"`
}

// Took returns how long the harvest took.
func (r *HarvestRow) Took() time.Duration { return r.Ended.Sub(r.Started.Time) }

// RowOf returns a row of the history in the form of a status.
func RowOf(h *event.Harvest) HarvestRow {
	r := HarvestRow{Number: h.Number, Started: at(h.Started), Ended: at(h.Ended), Result: h.Result, Documents: h.Documents, Entries: h.Entries, Bytes: h.Bytes, Contents: h.Contents,
		Created: h.Created, Updated: h.Updated, Deleted: h.Deleted, Pending: h.Pending, Held: h.Held, Quarantined: h.Quarantined, Problems: h.Problems}
	if h.Result == event.ResultFailed {
		r.Error = &HarvestError{at(h.Error.At), h.Error.Text, h.Error.Kind, h.Error.Rule}
	}
	if h.Before.Count > 0 {
		r.Unchanged = &Unchanged{h.Before.Count, at(h.Before.First), at(h.Before.Last)}
	}
	return r
}

// Day has the sums of the harvests of a day in UTC, of a Source or of all.
type Day struct {
	Date     string `json:"date"` // 2006-01-02
	Harvests int64  `json:"harvests"`
	Failed   int64  `json:"failed"`
	Created  int64  `json:"created"`
	Updated  int64  `json:"updated"`
	Deleted  int64  `json:"deleted"`
}

// Events returns how many events were logged.
func (d *Day) Events() int64 { return d.Created + d.Updated + d.Deleted }
