package translate

import (
	"slices"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
)

// RecordURL returns the URL under which we serve a record of a set, which is
// its loc in modes mirror and redirect: {base}/sets/{set}/records/{key}. base
// has no slash at its end.
func RecordURL(base, set, identifier string) string {
	return string(event.AppendKey([]byte(recordsURL(base, set)), identifier))
}

func recordsURL(base, set string) string { return base + "/sets/" + set + "/records/" }

// urls is where the records of one set are published. It reuses its memory.
type urls struct {
	records string // what all our record URLs of the set begin with
	content event.Content
	url     []byte
}

// record is our URL of a record of the set.
func (p *urls) record(identifier string) string {
	p.url = event.AppendKey(append(p.url[:0], p.records...), identifier)
	return string(p.url)
}

// loc is the URL under which the event's record is published.
func (p *urls) loc(e *event.Event) string {
	if p.content == event.Reference {
		return e.Loc
	}
	return p.record(e.Record)
}

// representation is the URL of a representation that is not preferred.
func (p *urls) representation(loc string, r *event.Representation) string {
	if p.content == event.Reference {
		return r.Href
	}
	return loc + "." + r.Name
}

// related is where a link of a live or a deleted record is published: one to or from a
// description at our URL of the record of the set that it leads to. What is not
// published is "".
func (p *urls) related(l *event.Link, live bool) string {
	switch {
	case live && !l.Published(p.content), !live && !l.PublishedOfDeletion():
		return ""
	case l.Describes() && p.content != event.Reference:
		return p.record(l.Record)
	case event.Public(l.Href):
		return l.Href
	}
	return ""
}

// otherThan returns the identifier that has to be stated beside href, "" where it is
// href.
func otherThan(href, identifier string) string {
	if identifier == href {
		return ""
	}
	return identifier
}

// mediaType is the media type that GET answers with: that of the served bytes where we
// answer ourselves, elsewhere the stated one, if that is a media type.
func (p *urls) mediaType(stated string) string {
	if p.content == event.Mirror {
		return ServedType(stated)
	}
	return linkType(stated)
}

// original is the link to the original of the event's record, as it came, or by the loc if
// that names the same; ok is false when there is none that may be named. A record that was
// submitted to us (SIP) has its original here, unless the submitter's identifier of it is a
// URL.
func original(e *event.Event) (via event.Link, ok bool) {
	via = e.Via
	if e.Origin.Protocol == "sip" && !event.OnTheWeb(via.Href) {
		via = event.Link{Href: e.Origin.SourceIdentifier, Length: event.NoLength}
		return via, event.OnTheWeb(via.Href) && atompmh.CanBeID(via.Href)
	}
	own := func(r event.Representation) bool { return r.Href == via.Href }
	if e.Loc != "" && (e.Loc == event.URI(via.Href) || e.Loc == event.FormerURI(via.Href)) && slices.ContainsFunc(e.Representations, own) {
		via.Href = e.Loc
	}
	return via, event.Public(via.Href) && !event.IsInline(via.Href)
}

// carriedModified is when the record was last modified, where the link to the
// original does not say so; unknown where it does.
func carriedModified(e *event.Event) event.Stamp {
	if via, ok := original(e); ok && via.Modified == e.Modified {
		return event.Stamp{}
	}
	return e.Modified
}

// inherited reports whether the Source's copy is not the original.
func inherited(e *event.Event) bool {
	r, ok := e.Pref()
	return ok && r.Href != e.Via.Href
}
