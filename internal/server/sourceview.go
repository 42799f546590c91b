package server

import (
	"strings"
	"time"
)

// sourceView is a Source as a page shows it.
type sourceView struct {
	Kind string
	URL  string // redacted
	Link bool   // URL is whole and leads to the web
	Mark *time.Time
	Next *time.Time
	Last *lastView
	// What waits.
	Pending, Held, Quarantined int64
	// Attention are sentences about what an operator should look at.
	Attention []string
}

// lastView is a harvest as a page shows it.
type lastView struct {
	Ended                                         time.Time
	Documents, Entries, Events, Problems, Fetched int64
	NotModified                                   bool
}

func viewSource(s *SourceStatus) sourceView {
	v := sourceView{
		Kind: s.Kind, URL: redact(s.URL), Mark: known(s.Mark.Time()), Next: known(s.Next),
		Pending: s.Pending, Held: s.Held, Quarantined: s.Quarantined,
	}
	v.Link = v.URL == s.URL && isWeb(s.URL)
	if r := s.Last; r != nil {
		v.Last = &lastView{Ended: r.Ended, Documents: r.Documents, Entries: r.Entries, Events: r.Events(), Problems: r.Problems, Fetched: r.Fetched, NotModified: r.NotModified}
		if r.Error != "" {
			v.Attention = append(v.Attention, "The last harvest failed: "+redact(r.Error))
		}
		for _, w := range r.Warnings {
			v.Attention = append(v.Attention, redact(w))
		}
		for _, x := range r.Examples {
			v.Attention = append(v.Attention, "Rule "+x.Rule+" was broken "+times(x.Count)+", first: "+redact(x.First))
		}
	}
	if s.Gap != "" {
		v.Attention = append(v.Attention, "An archive document is missing, changes may be lost: "+redact(s.Gap)+
			". When it stays away, go on with bridge source accept-gap.")
	}
	if s.Held > 0 {
		v.Attention = append(v.Attention, "Deletions held back by the guard: "+number(s.Held)+". Look at the Source, then apply them with bridge source release.")
	}
	if s.Quarantined > 0 {
		v.Attention = append(v.Attention, "Bad input in quarantine: "+number(s.Quarantined)+". See it with bridge quarantine ls.")
	}
	return v
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return number(n) + " times"
}

// Host is what to call the Source in a line.
func (v sourceView) Host() string {
	_, rest, ok := strings.Cut(v.URL, "://")
	if !ok {
		return v.URL
	}
	host, _, _ := strings.Cut(rest, "/")
	return host
}
