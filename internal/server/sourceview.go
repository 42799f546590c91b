package server

import (
	"strings"
	"time"
)

// sourceView is a Source as a page shows it.
type sourceView struct {
	Kind string // "" while it is not known
	// Asked: it is harvested. A SIP Source is not, it sends.
	Asked bool
	// Forms are the older forms of its protocol in which the Source was read.
	Forms []string
	URL   string // redacted
	Link  bool   // URL is whole and leads to the web
	Mark  *time.Time
	// Timeless: it was harvested to its end, and states no times.
	Timeless bool
	Next     *time.Time
	Last     *lastView
	// What waits.
	Pending, Held, Quarantined int64
	// Attention are sentences about what an operator should look at.
	Attention []string
}

// lastView is a harvest as a page shows it.
type lastView struct {
	Ended                                                  time.Time
	Documents, Entries, Events, Problems, Fetched, Skipped int64
	NotModified                                            bool
}

func viewSource(s *SourceStatus) sourceView {
	v := sourceView{
		Kind: s.Kind, Asked: s.Kind != "sip", URL: public(s.URL), Mark: known(s.Mark.Time()), Next: known(s.Next),
		Pending: s.Pending, Held: s.Held, Quarantined: s.Quarantined,
	}
	v.Link = v.URL == s.URL && isWeb(s.URL)
	if r := s.Last; r != nil {
		v.Last = &lastView{Ended: r.Ended, Documents: r.Documents, Entries: r.Entries, Events: r.Events(), Problems: r.Problems, Fetched: r.Fetched, Skipped: r.Skipped, NotModified: r.NotModified}
		v.Timeless = v.Mark == nil && r.Error == "" && s.Gap == "" && (r.NotModified || r.Documents > 0)
		for _, d := range r.Dialects {
			v.Forms = append(v.Forms, form(d))
		}
		if r.Moved != "" {
			v.Attention = append(v.Attention, "Moved permanently to "+public(r.Moved)+": change url in the configuration.")
		}
		if r.Error != "" {
			v.Attention = append(v.Attention, "The last harvest failed: "+public(r.Error))
		}
		for _, w := range r.Warnings {
			v.Attention = append(v.Attention, public(w))
		}
		for _, x := range r.Examples {
			v.Attention = append(v.Attention, "Rule "+x.Rule+" was broken "+times(x.Count)+", first: "+public(x.First))
		}
	}
	if s.Gap != "" {
		v.Attention = append(v.Attention, "A document is missing, changes may be lost: "+public(s.Gap)+
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

// strangersView is what a stranger may know of a Source: where it is, if that is no
// address of our own network, and how far it has been harvested.
func strangersView(s *SourceStatus) sourceView {
	v := sourceView{Kind: s.Kind, Asked: s.Kind != "sip", Mark: known(s.Mark.Time())}
	if publicName(s.URL) {
		v.URL = public(s.URL)
		v.URL = v.Host()
	}
	if r := s.Last; r != nil {
		v.Last = &lastView{Ended: r.Ended}
	}
	return v
}

// form is what to call a dialect of ResourceSync.
func form(dialect string) string {
	if dialect == "sitemap" {
		return "plain sitemap"
	}
	return "ResourceSync " + dialect
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
