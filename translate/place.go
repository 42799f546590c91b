package translate

import (
	"strings"

	"github.com/pmh-bridge/bridge/event"
)

// RecordURL returns the URL under which we serve a record of a set, which is
// its loc in modes mirror and redirect: {base}/sets/{set}/records/{key}. base
// has no slash at its end.
func RecordURL(base, set, identifier string) string {
	return string(event.AppendKey([]byte(recordsURL(base, set)), identifier))
}

// RepresentationURL returns the URL of one representation of a record. name is
// its event.Representation.Name.
func RepresentationURL(base, set, identifier, name string) string {
	return RecordURL(base, set, identifier) + "." + name
}

func recordsURL(base, set string) string { return base + "/sets/" + set + "/records/" }

// place is where the records of one set are published. It uses its memory again.
type place struct {
	records string // what all our record URLs of the set begin with
	content event.Content
	url     []byte
}

// record is our URL of a record of the set.
func (p *place) record(identifier string) string {
	p.url = event.AppendKey(append(p.url[:0], p.records...), identifier)
	return string(p.url)
}

// loc is the URL under which the event's record is published.
func (p *place) loc(e *event.Event) string {
	if p.content == event.Reference {
		return e.Loc
	}
	return p.record(e.Record)
}

// representation is where a representation that is not preferred can be had.
func (p *place) representation(loc string, r *event.Representation) string {
	if p.content == event.Reference {
		return r.Href
	}
	return loc + "." + r.Name
}

// related is where a link is published that describes: at our URL of the record
// of the set that it leads to. What leads elsewhere, and every other relation, is
// true of the Source's copy and not of ours: it is "".
func (p *place) related(l *event.Link) string {
	switch {
	case !l.InSet || !l.Describes():
		return ""
	case p.content != event.Reference:
		return p.record(l.Record)
	case event.Public(l.Href):
		return l.Href
	}
	return ""
}

// otherThan is the identifier that travels beside href: none where it is href.
func otherThan(href, identifier string) string {
	if identifier == href {
		return ""
	}
	return identifier
}

// mediaType is the type that GET answers with: the stated one. Only where we
// answer ourselves, and it is none that a header can hold, it is another.
func (p *place) mediaType(stated string) string {
	if p.content == event.Mirror && (stated == "" || !printable(stated)) {
		return "application/octet-stream"
	}
	return stated
}

// printable tells whether a header field can hold s.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c >= 0x7f })
}

// original is the link to the original of the event's record, with the time at
// which the Source says it was modified; ok is false when it may not be named, or
// there is none: what was deposited by SIP is nowhere else, and its Href only the
// identifier.
func original(e *event.Event) (via event.Link, ok bool) {
	via = e.Via
	if !via.Modified.Known() {
		via.Modified = e.Modified
	}
	deposited := e.Origin.Protocol == "sip" && !strings.HasPrefix(via.Href, "http://") && !strings.HasPrefix(via.Href, "https://")
	return via, event.Public(via.Href) && !deposited
}
