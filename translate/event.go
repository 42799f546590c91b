package translate

import (
	"cmp"
	"slices"

	"github.com/pmh-bridge/bridge/event"
)

// FromEvent translates an event of another set of the log into an observation, with
// that set as the Source. The original stays the one that the event names. Of the
// representations those remain that the set wants; a record without any is deleted
// here.
func FromEvent(ev *event.Event, wants *Selection) event.Observation {
	o := event.Observation{Deleted: ev.Kind == event.Deleted, Modified: ev.Modified, CopyModified: ev.CopyModified, Title: ev.Title,
		Categories: slices.Clone(ev.Categories), Details: ev.Details, Via: ev.Via, Loc: ev.Loc, ContentBits: ev.ContentBits}
	o.Record, o.SourceIdentifier = wants.Identifier(ev.Record)
	o.SourceIdentifier = cmp.Or(o.SourceIdentifier, ev.Origin.SourceIdentifier)
	o.Links = slices.Clone(ev.Links)
	for i := range o.Links {
		if l := &o.Links[i]; l.Record != "" {
			l.Record, _ = wants.Identifier(l.Record)
		}
		o.Links[i].InSet = false // as the set of the log finds out
	}
	if o.Deleted {
		return o
	}
	preferred, ok := ev.Pref()
	for _, r := range ev.Representations {
		if Wanted(wants.Formats, r.Type) {
			o.Representations = append(o.Representations, r)
		}
	}
	if len(o.Representations) == 0 && len(ev.Representations) > 0 {
		o.Deleted, o.Links, o.Categories, o.ContentBits = true, nil, nil, 0
		return o
	}
	o.Preferred = Preferred(wants.Prefer, o.Representations)
	if at := slices.Index(o.Representations, preferred); ok && at >= 0 && len(wants.Prefer) == 0 {
		o.Preferred = at
	}
	if o.Preferred < len(o.Representations) && o.Representations[o.Preferred].Href != preferred.Href {
		o.Loc = "" // that of the one which is preferred here
	}
	return o
}
