package harvest

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
)

// Report is what a harvest was worth.
type Report struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Documents and Entries count what was read, Events what was logged.
	Documents   int64 `json:"documents"`
	Entries     int64 `json:"entries"`
	Created     int64 `json:"created"`
	Updated     int64 `json:"updated"`
	Deleted     int64 `json:"deleted"`
	Unchanged   int64 `json:"unchanged"`
	Historical  int64 `json:"historical"`
	Fetched     int64 `json:"fetched"`
	Pending     int64 `json:"pending"`     // observations put off in this harvest
	Held        int64 `json:"held"`        // deletions kept back in this harvest
	Quarantined int64 `json:"quarantined"` // entries in this harvest
	// Dropped counts what was removed from quarantine to make room for newer.
	Dropped int64 `json:"dropped,omitempty"`
	// Skipped counts what was left alone: not selected by prefix or since, or
	// given back by another bridge.
	Skipped int64 `json:"skipped,omitempty"`
	// Dialects names what the Source's lists are written in, besides
	// ResourceSync 1.1.
	Dialects []string `json:"dialects,omitempty"`
	// Moved is where the Source's URL has moved permanently (301 or 308), "" when
	// it has not.
	Moved string `json:"moved,omitempty"`
	// NotModified: the Source said that nothing has changed.
	NotModified bool `json:"not_modified,omitempty"`
	// Withheld: the Source is a bridge that has not walked all its own Sources yet,
	// and will give its lists soon.
	Withheld bool `json:"withheld,omitempty"`
	// Full: the walk reached the oldest document.
	Full bool `json:"full,omitempty"`
	// Problems counts broken rules, and the error; Examples are the first of each
	// rule.
	Problems int64     `json:"problems"`
	Examples []Example `json:"examples,omitempty"`
	// Warnings are what an operator should know, in sentences.
	Warnings []string `json:"warnings,omitempty"`
	// Gap is the missing archive document, "" when none is missing.
	Gap string `json:"gap,omitempty"`
	// RetryAfter is until when the Source wants to be left alone.
	RetryAfter time.Time `json:"retry_after,omitzero"`
	// Error is why the harvest failed, "" when it did not.
	Error string `json:"error,omitempty"`
}

// Example is a broken rule: how often, and the first place.
type Example struct {
	Rule  string `json:"rule"`
	Count int64  `json:"count"`
	First string `json:"first"`
}

// Events is how many events were logged.
func (r *Report) Events() int64 { return r.Created + r.Updated + r.Deleted }

// Partial tells whether something was left undone: failed, pending, held,
// quarantined, or missing at the Source.
func (r *Report) Partial() bool {
	return r.Error != "" || r.Pending > 0 || r.Held > 0 || r.Quarantined > 0 || r.Gap != "" || len(r.Warnings) > 0
}

// note changes the report. The walker and the writer of a harvest both do.
func (r *run) note(change func(*Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.report)
}

// problem counts a broken rule and keeps the first place of each.
func (r *run) problem(rule, text string) {
	r.note(func(p *Report) {
		p.Problems++
		for i := range p.Examples {
			if p.Examples[i].Rule == rule {
				p.Examples[i].Count++
				return
			}
		}
		p.Examples = append(p.Examples, Example{Rule: rule, Count: 1, First: text})
	})
}

// redirected notes that the Source's URL has moved permanently, as far as each
// redirect on the way says so.
func (r *run) redirected(next *http.Request, via []*http.Request) {
	if fetch.Plain(via[0].URL) != r.src.URL || next.Response.StatusCode != http.StatusMovedPermanently && next.Response.StatusCode != http.StatusPermanentRedirect {
		return
	}
	r.note(func(p *Report) {
		if from := fetch.Plain(via[len(via)-1].URL); len(via) == 1 || p.Moved == from {
			p.Moved = fetch.Plain(next.URL)
		}
	})
}

// warn says something once.
func (r *run) warn(text string) {
	r.note(func(p *Report) { p.Warnings = appendNew(p.Warnings, text) })
}

func appendNew(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

// ended returns the report as it is now.
func (r *run) ended(failed error) Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.report
	out.Ended = r.h.now().UTC()
	out.Documents, out.Entries, out.Fetched = r.documents.Load(), r.entries.Load(), r.fetched.Load()
	if out.Dropped > 0 {
		out.Warnings = append(slices.Clip(out.Warnings), fmt.Sprintf("the quarantine of this Source is full: bad inputs that were met last the longest ago have made room for newer ones, in this harvest %d", out.Dropped))
	}
	if failed != nil {
		out.Error = failed.Error()
		out.Problems++
	}
	return out
}

// tell says how far the harvest has come.
func (r *run) tell() {
	if r.opt.Progress == nil {
		return
	}
	r.telling.Lock()
	defer r.telling.Unlock()
	p := Progress{Documents: r.documents.Load(), Entries: r.entries.Load(), Events: r.events.Load(), Fetched: r.fetched.Load(), Wanted: r.needed.Load()}
	if a := r.activity.Load(); a != nil {
		p.Doing, p.Until = a.doing, a.until
	}
	r.opt.Progress(p)
}

// activity is what a harvest does, or waits for.
type activity struct {
	doing string
	until time.Time
}

// doing says what the harvest does now, or waits for, and until when if that is
// known.
func (r *run) doing(what string, until time.Time) {
	r.activity.Store(&activity{doing: what, until: until})
	r.tell()
}

// count adds what became of a batch to the report.
func (r *run) count(b *event.Batch, out *event.Appended) {
	r.events.Add(int64(out.Created + out.Updated + out.Deleted))
	r.note(func(p *Report) {
		p.Dropped += int64(out.Dropped)
		p.Created += int64(out.Created)
		p.Updated += int64(out.Updated)
		p.Deleted += int64(out.Deleted)
		for i, o := range out.Outcomes {
			switch o {
			case event.Unchanged, event.Suppressed, event.Tombstone:
				p.Unchanged++
			case event.Loopback:
				p.Skipped++
			case event.Historical:
				p.Historical++
			}
			switch {
			case b.Mode == event.ModeHold:
				p.Held++
			case b.Items[i].Pending != "" && (o == event.Waiting || b.Items[i].Partial):
				p.Pending++
			}
		}
	})
	for _, i := range out.Broken {
		it := &b.Items[i]
		rule := "S2"
		if !it.Place.IsZero() {
			rule = ruleOrder
		}
		r.problem(rule, fmt.Sprintf("%s: record %q was met in a newer document with an earlier stamp than %s here",
			b.Documents[it.Document].URL, it.Record, it.Order))
	}
}
