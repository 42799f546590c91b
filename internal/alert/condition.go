// Package alert notifies a person of problems that need attention. It finds the alerts of a
// condition in the state of the sets (condition.go), and notifies each receiver once when
// an alert begins and once when it ends (alert.go).
package alert

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/status"
)

// State is the state that conditions are about.
type State struct {
	Status *status.Status // redacted; nil when it could not be read
	// Unreadable is the reason why there is no Status.
	Unreadable string
	// Unnoticed has what warnings begin with that may be missing in Status, since the process has
	// not run for long enough to notice them.
	Unnoticed []string
	// Free is the free share of the disk of the data folder in percent, below 0 when it
	// is not known.
	Free float64
	Now  time.Time
}

// Alert is a condition that holds.
type Alert struct {
	// Condition is the kind of the condition.
	Condition string `json:"condition"`
	// Level counts the conditions of that kind of the same receiver that are met earlier, as
	// failing:1h before failing:24h: 0 is the first.
	Level int `json:"level,omitempty"`
	// Set and Source are the place; "" when the alert is about the whole bridge.
	Set    string `json:"set,omitempty"`
	Source string `json:"source,omitempty"`
	// Since is when it began, or was first noticed; in UTC.
	Since time.Time `json:"since"`
	// Text is a sentence for a person.
	Text string `json:"text"`
}

// key identifies an alert. Those about the log have no place: what their sentences begin with,
// up to a colon, tells one from another, and stays while times and errors behind it change.
func (a *Alert) key() string {
	what := a.Source
	if a.Condition == config.OnLog {
		what, _, _ = strings.Cut(a.Text, ":")
	}
	return strings.Join([]string{a.Condition, strconv.Itoa(a.Level), a.Set, what}, "\x00")
}

// find returns the alerts of a condition, in the order of the status.
func find(c *config.Condition, s *State) (out []Alert) {
	add := func(set, source string, since time.Time, format string, args ...any) {
		out = append(out, Alert{Condition: c.Kind, Set: set, Source: source, Since: cmp.Or(since, s.Now).UTC().Truncate(time.Second), Text: fmt.Sprintf(format, args...)})
	}
	switch {
	case c.Kind == config.OnDisk && s.Free >= 0 && s.Free < c.Share:
		add("", "", time.Time{}, "only %.1f%% of the disk of the data folder is free: free some space, or give it a larger disk", s.Free)
	case c.Kind == config.OnLog && s.Status == nil:
		add("", "", time.Time{}, "the state of the log cannot be read: %s", s.Unreadable)
	case c.Kind == config.OnLog:
		for _, warning := range s.Status.Warnings {
			add("", "", time.Time{}, "%s", warning)
		}
	}
	if s.Status == nil {
		return out
	}
	for i := range s.Status.Sets {
		set, names := &s.Status.Sets[i], status.Names{}
		for j := range set.Sources {
			if src := &set.Sources[j]; !src.Former {
				ofSource(c, s, set.Name, names.Add("source", cmp.Or(src.Name, src.URL)), src, add)
			}
		}
		for j := range set.Submissions {
			p := &set.Submissions[j]
			ofPeer(c, s, set.Name, names.Add("peer", p.URL), p, add)
		}
		for j := range set.Hubs {
			ofHub(c, s, set.Name, names.Add("hub", "hub "+set.Hubs[j].URL), &set.Hubs[j], add)
		}
		if d := set.Dumps; c.Kind == config.OnDumps && d != nil && len(d.Faults) > 0 {
			add(set.Name, "", time.Time{}, "the newest dumps of set %s could not be made: %s", set.Name, strings.Join(d.Faults, "; "))
		}
	}
	return out
}

// ofSource finds the alerts of a Source, which is called name.
func ofSource(c *config.Condition, s *State, set, name string, src *status.Source, add func(set, source string, since time.Time, format string, args ...any)) {
	switch {
	case c.Kind == config.OnFailing && !src.FailingSince.IsZero() && src.Paused == nil && s.Now.Sub(src.FailingSince.Time) >= c.For:
		why := ""
		if src.LastError != nil {
			why = ": " + src.LastError.Text
		}
		add(set, name, src.FailingSince.Time, "%s (set %s) has failed since %s%s", name, set, src.FailingSince.UTC().Format(time.RFC3339), why)
	case c.Kind == config.OnHeld && src.Held > 0:
		add(set, name, time.Time{}, "%d deletions of %s (set %s) are held: look with bridge source show, then release them or not with bridge source release", src.Held, name, set)
	case c.Kind == config.OnGap && src.Gap != "":
		add(set, name, time.Time{}, "a document of %s (set %s) is missing: %s", name, set, src.Gap)
	case c.Kind == config.OnQuarantine && int64(src.Quarantined) >= c.Count:
		add(set, name, time.Time{}, "%d bad inputs of %s (set %s) are in quarantine: look with bridge quarantine ls", src.Quarantined, name, set)
	}
}

// ofPeer finds the alerts of the submissions with one peer, which is called name.
func ofPeer(c *config.Condition, s *State, set, name string, p *status.Peer, add func(set, source string, since time.Time, format string, args ...any)) {
	switch {
	case p.Former:
	case c.Kind == config.OnFailing && p.Failing != nil && s.Now.Sub(p.Failing.Since.Time) >= c.For:
		add(set, name, p.Failing.Since.Time, "the ingest server %s (set %s) has failed since %s: %s", name, set, p.Failing.Since.UTC().Format(time.RFC3339), p.Failing.Reason)
	case c.Kind == config.OnReview && p.UnderReview >= c.Count:
		add(set, name, time.Time{}, "%d submissions to set %s wait for a reviewer: look with bridge submission ls", p.UnderReview, set)
	}
}

// ofHub finds the alerts of a hub, which is called name.
func ofHub(c *config.Condition, s *State, set, name string, h *status.Hub, add func(set, source string, since time.Time, format string, args ...any)) {
	if c.Kind == config.OnFailing && !h.FailingSince.IsZero() && s.Now.Sub(h.FailingSince.Time) >= c.For {
		add(set, name, h.FailingSince.Time, "the %s is not told of changes of set %s since %s: %s", name, set, h.FailingSince.UTC().Format(time.RFC3339), h.Error)
	}
}
