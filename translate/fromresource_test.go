package translate

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

func TestFromResource(t *testing.T) {
	at := func(day int) resourcesync.Datetime {
		return resourcesync.Exact(time.Date(2026, 3, day, 0, 0, 0, 5, time.UTC))
	}
	stamp := func(day int) event.Stamp {
		s, _ := event.StampOf(time.Date(2026, 3, day, 0, 0, 0, 5, time.UTC))
		return s
	}
	const loc = "https://source.example/maps/1.xml"
	entry := func(change func(*resourcesync.Entry)) *resourcesync.Entry {
		e := &resourcesync.Entry{Loc: loc, LastMod: at(2), Metadata: resourcesync.Metadata{Change: "updated", Datetime: at(3), Hash: "md5:AB", Length: resourcesync.Bytes(0), Type: "text/xml"}}
		if change != nil {
			change(e)
		}
		return e
	}
	rep := event.Representation{Href: loc, Type: "text/xml", Length: 0, Hash: "md5:AB"}
	plain := func(change func(*event.Observation)) event.Observation {
		o := event.Observation{Record: loc, Order: stamp(3), Modified: stamp(2), Representations: []event.Representation{rep}}
		if change != nil {
			change(&o)
		}
		return o
	}
	link := func(rel, href string, more func(*resourcesync.Link)) func(*resourcesync.Entry) {
		return func(e *resourcesync.Entry) {
			l := resourcesync.Link{Rel: rel, Href: href}
			if more != nil {
				more(&l)
			}
			e.Links = append(e.Links, l)
		}
	}
	bare := func(rel, href string) event.Link { return event.Link{Rel: rel, Href: href, Length: event.NoLength} }
	for _, c := range []struct {
		name  string
		entry *resourcesync.Entry
		wants Selection
		want  event.Observation
		err   error
	}{
		{"as it is", entry(nil), Selection{}, plain(nil), nil},
		{"carried by another bridge", entry(func(e *resourcesync.Entry) { e.Metadata.ID, e.Metadata.Title = "urn:x:1", "A map" }), Selection{},
			plain(func(o *event.Observation) { o.Record, o.Title = "urn:x:1", "A map" }), nil},
		{"identifiers of its own", entry(nil), Selection{Name: "maps"},
			plain(func(o *event.Observation) { o.Record, o.SourceIdentifier = OwnIdentifier("maps", loc), loc }), nil},
		{"no lastmod", entry(func(e *resourcesync.Entry) { e.LastMod = resourcesync.Datetime{} }), Selection{},
			plain(func(o *event.Observation) { o.Modified = stamp(3) }), nil},
		{"nothing but a loc", &resourcesync.Entry{Loc: loc}, Selection{}, event.Observation{Record: loc,
			Representations: []event.Representation{{Href: loc, Length: event.NoLength}}}, nil},
		{"deleted", entry(func(e *resourcesync.Entry) { e.Metadata.Change = "deleted" }), Selection{},
			event.Observation{Record: loc, Deleted: true, Order: stamp(3), Modified: stamp(2)}, nil},
		{"via", entry(link("via", "https://origin.example/1", func(l *resourcesync.Link) {
			l.Modified, l.Hash, l.Length, l.Type = at(1), "md5:1B2CF535F27731C974343645A3985328", resourcesync.Bytes(7), "text/html"
		})), Selection{}, plain(func(o *event.Observation) {
			o.Modified, o.CopyModified = stamp(1), stamp(2) // D11
			o.Via = event.Link{Href: "https://origin.example/1", Type: "text/html", Length: 7, Hash: "md5:1b2cf535f27731c974343645a3985328", Modified: stamp(1)}
		}), nil},
		{"via of a deletion", entry(func(e *resourcesync.Entry) {
			e.Metadata.Change = "deleted"
			link("via", "https://origin.example/1", nil)(e)
		}), Selection{}, event.Observation{Record: loc, Deleted: true, Order: stamp(3), Modified: stamp(2),
			Via: event.Link{Href: "https://origin.example/1", Length: event.NoLength}}, nil},
		{"D12: via without a stamp, the bridge's before it carries that", entry(func(e *resourcesync.Entry) {
			link("via", "https://origin.example/1", nil)(e)
			e.Metadata.CarriedModified = at(1)
		}), Selection{}, plain(func(o *event.Observation) {
			o.Modified, o.CopyModified, o.Via = stamp(1), stamp(2), bare("", "https://origin.example/1")
		}), nil},
		{"D14: an alternate that is not on the web", entry(link("alternate", "urn:isbn:1", func(l *resourcesync.Link) { l.Type = "text/plain" })), Selection{},
			plain(func(o *event.Observation) {
				o.Links = []event.Link{{Rel: "related", Href: "urn:isbn:1", Type: "text/plain", Length: event.NoLength}}
			}), nil},
		{"D14: nothing on the web", &resourcesync.Entry{Loc: "ftp://source.example/1"}, Selection{}, event.Observation{Record: "ftp://source.example/1", Representations: nil}, ErrUnreachable},
		{"D16, D24: a language, a profile, changefreq", entry(func(e *resourcesync.Entry) {
			link("alternate", "https://source.example/maps/1.de", func(l *resourcesync.Link) { l.Hreflang, l.Profile = "de", "urn:p" })(e)
			link("profile", "urn:q", nil)(e)
			e.Metadata.Hreflang, e.ChangeFreq = "en", "weekly"
		}), Selection{}, plain(func(o *event.Observation) {
			o.Representations = []event.Representation{rep, {Href: "https://source.example/maps/1.de", Hreflang: "de", Profile: "urn:p", Length: event.NoLength}}
			o.Representations[0].Hreflang = "en"
			o.Details, o.Links = &event.Details{ChangeFreq: "weekly"}, []event.Link{bare("profile", "urn:q")}
		}), nil},
		{"via that is a file", entry(link("via", "file:///etc/passwd", nil)), Selection{}, plain(nil), nil},
		{"comes back to us", entry(link("via", "https://we.example/sets/main/records/x", nil)), Selection{Own: "https://we.example/sets/main/"},
			plain(func(o *event.Observation) { o.Via = bare("", "https://we.example/sets/main/records/x") }), ErrOwn},
		{"alternates", entry(func(e *resourcesync.Entry) {
			link("alternate", "https://source.example/maps/1.json", func(l *resourcesync.Link) { l.Type = "application/json" })(e)
			link("alternate", loc, nil)(e)
		}), Selection{Prefer: []string{"application/json"}}, plain(func(o *event.Observation) {
			o.Representations = append(o.Representations, event.Representation{Href: "https://source.example/maps/1.json", Type: "application/json", Length: event.NoLength})
			o.Preferred = 1
		}), nil},
		{"no wanted format", entry(nil), Selection{Formats: []string{"text/html"}}, event.Observation{Record: loc, Deleted: true, Order: stamp(3), Modified: stamp(2)}, nil},
		{"mirrors, the best first", entry(func(e *resourcesync.Entry) {
			link("duplicate", "https://m.example/none", nil)(e)
			link("duplicate", "https://m.example/2", func(l *resourcesync.Link) { l.Pri = 2 })(e)
			link("duplicate", "https://m.example/1", func(l *resourcesync.Link) { l.Pri = 1 })(e)
		}), Selection{}, plain(func(o *event.Observation) {
			o.Links = []event.Link{bare("duplicate", "https://m.example/1"), bare("duplicate", "https://m.example/2"), bare("duplicate", "https://m.example/none")}
		}), nil},
		{"other links", entry(func(e *resourcesync.Entry) {
			link("describedby", "https://source.example/maps/1.rdf", nil)(e)
			link("describes", "https://source.example/x", func(l *resourcesync.Link) { l.ID = "urn:x:9" })(e)
			link("collection", "https://source.example/maps/", nil)(e)
			link("up", "https://source.example/capabilitylist.xml", nil)(e)
		}), Selection{}, plain(func(o *event.Observation) {
			described, describes := bare("describedby", "https://source.example/maps/1.rdf"), bare("describes", "https://source.example/x")
			described.Record, describes.Record = "https://source.example/maps/1.rdf", "urn:x:9"
			o.Links = []event.Link{described, describes, bare("collection", "https://source.example/maps/")}
		}), nil},
		{"selected by its prefix", entry(nil), Selection{Prefixes: []string{"https://other.example/", "https://source.example/maps/"}}, plain(nil), nil},
		{"not selected by its prefix", entry(nil), Selection{Prefixes: []string{"https://source.example/books/"}}, plain(nil), ErrUnselected},
		{"modified before", entry(nil), Selection{Since: stamp(3)}, plain(nil), ErrUnselected},
		{"modified since", entry(nil), Selection{Since: stamp(2)}, plain(nil), nil},
		{"a local file without a place", &resourcesync.Entry{Loc: "file:///data/1.xml"}, Selection{Published: true},
			event.Observation{Record: "file:///data/1.xml"}, ErrLocal},
		{"a local file that is published", &resourcesync.Entry{Loc: "file:///data/1.xml"}, Selection{Published: true, LocalURL: "file:///data/", PublicURL: "https://p.example/d"},
			event.Observation{Record: "file:///data/1.xml", Representations: []event.Representation{{Href: "https://p.example/d/1.xml", Length: event.NoLength}}}, nil},
	} {
		got, err := FromResource(c.entry, &c.wants)
		if !errors.Is(err, c.err) || err != nil && c.err == nil {
			t.Errorf("%s: error %v, want %v", c.name, err, c.err)
		}
		if len(got.Links) == 0 {
			got.Links = nil
		}
		if errors.Is(err, ErrLocal) {
			got.Representations = nil
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}
